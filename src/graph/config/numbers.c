/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The facts of a model that vary within its family and that shapes do not show: a model that differs in them would load
 * another one's weights, and compute other results. One table serves the comparison and the key.
 */
#include <stddef.h>
#include <string.h>

#include "base/base.h"
#include "graph/model_json.h"

static const struct {
  const char *name;
  size_t offset, bytes;
} numbers[] = {
#define NUMBER(field, text) {text, offsetof(struct lade_model, field), sizeof(((struct lade_model *)0)->field)}
    NUMBER(rope_kind, "a form of RoPE"),
    NUMBER(rotary_dim, "RoPE's part of a head"),
    NUMBER(rope_magnitude, "RoPE's attention factor"),
    NUMBER(rope_beta_fast, "YaRN's beta_fast"),
    NUMBER(rope_beta_slow, "YaRN's beta_slow"),
    NUMBER(rope_is_untruncated, "YaRN's truncation"),
    NUMBER(rope_short_factors, "RoPE's short factors"),
    NUMBER(rope_long_factors, "RoPE's long factors"),
    NUMBER(rope_local_base, "RoPE's base in windowed layers"),
    NUMBER(unrotated, "layers without RoPE"),
    NUMBER(activation, "an activation"),
    NUMBER(biases, "biases"),
    NUMBER(n_parallel_norms, "parallel branches"),
    NUMBER(is_grouped, "a decoder architecture"),
    NUMBER(embedding_scale, "a scale of the embedding"),
    NUMBER(logit_softcap, "a soft cap of the logits"),
    NUMBER(has_pad_token, "a padding token"),
    NUMBER(pad_token, "a padding token"),
    NUMBER(attention_scale, "a scale of attention"),
    NUMBER(attention_softcap, "a soft cap of attention"),
    NUMBER(window, "a window of attention"),
    NUMBER(windowed, "windowed layers"),
    NUMBER(has_sinks, "sinks"),
    NUMBER(alibi_max, "ALiBi's slopes"),
    NUMBER(is_alibi_rounded, "a form of ALiBi"),
    NUMBER(qkv_clip, "a clamp of queries, keys and values"),
    NUMBER(residual_scale, "a scale of the residual branches"),
    NUMBER(logit_scale, "a scale of the logits"),
    NUMBER(attention_temperature_beta, "an attention temperature that grows with the position"),
#undef NUMBER
};

const char *lade_model_difference(const struct lade_model *a, const struct lade_model *b)
{
  for (size_t i = 0; i < LADE_COUNT(numbers); i++)
    if (memcmp((const char *)a + numbers[i].offset, (const char *)b + numbers[i].offset, numbers[i].bytes) != 0)
      return numbers[i].name;
  return a->family != b->family ? "a family" : NULL;
}

/* Hash the numbers by FNV-1a of 64 bits (Fowler, Noll, Vo). */
uint64_t lade_model_key(const struct lade_model *model)
{
  uint64_t key = 0xcbf29ce484222325;
  unsigned any = 0;
  for (size_t i = 0; i < LADE_COUNT(numbers); i++) {
    const uint8_t *at = (const uint8_t *)model + numbers[i].offset;
    for (size_t j = 0; j < numbers[i].bytes; j++) {
      key = (key ^ at[j]) * 0x100000001b3;
      any |= at[j];
    }
  }
  return any ? key : 0;
}
