/* SPDX-License-Identifier: Apache-2.0 */
/*
 * AdamW (Loshchilov, Hutter 2019), the one op with the same bits in every variant, because optimizer state must not
 * depend on its place. Per element, in F32, each line one IEEE operation (round to nearest even, denormals kept,
 * nothing contracted):
 *
 *   g = grad * factor
 *   m = fma(beta1, m, (1-beta1) * g)                   1-beta1 is rounded to F32 once
 *   v = fma(beta2, v, (1-beta2) * (g * g))
 *   u = (m * c1) / (sqrt(v * c2) + eps)                c1, c2: the bias corrections
 *   u = fma(decay, w, u)                               decay is 0 for tensors without decay
 *   w = fma(-lr, u, w)
 *
 * The master w is weight + residual for BF16, by the exact split of base/float.h. It is a separate F32 master for F16,
 * and the weight itself for F32. A skipped step returns at once: every value keeps its bits, also where a gradient is
 * not finite.
 *
 * In a compact form (base/moments.h) m, v and w are read as F32 and rounded when they are stored, in blocks of
 * LADE_MOMENT_BLOCK elements: eight-bit moments share an exponent that is known once all moments of a block are.
 *
 * This variant is correct on every CPU. It is slow where the compiler may not assume an instruction for fma, because
 * fmaf is a library call there.
 */
#include <math.h>

#include "base/float.h"
#include "base/moments.h"
#include "kernels/host/host.h"

_Static_assert(LADE_TASK_ELEMENTS % LADE_DRAW_RUN == 0 && LADE_DRAW_RUN % LADE_MOMENT_BLOCK == 0, "tasks are whole");

struct adamw_ref_call {
  const struct lade_step *step;
  const struct lade_adamw_args *args;
};

/* The new moments of a block, and the random words that round them. */
struct moment_block {
  float m[LADE_MOMENT_BLOCK], v[LADE_MOMENT_BLOCK];
  uint32_t word[LADE_MOMENT_BLOCK];
};

static float master_get(const struct lade_adamw_args *a, int64_t i)
{
  if (a->dtype == LADE_BF16 && a->master == LADE_MASTER_24BIT)
    return lade_master24_join(((uint16_t *)a->weight)[i], ((int8_t *)a->residual)[i]);
  if (a->dtype == LADE_BF16)
    return lade_master_join(((uint16_t *)a->weight)[i], ((int16_t *)a->residual)[i]);
  return a->dtype == LADE_F16 ? ((float *)a->residual)[i] : ((float *)a->weight)[i];
}

static void master_put(const struct lade_adamw_args *a, int64_t i, float master, uint32_t word)
{
  if (a->dtype == LADE_BF16 && a->master == LADE_MASTER_24BIT) {
    lade_master24_split(master, lade_draw_master(word), &((uint16_t *)a->weight)[i], &((int8_t *)a->residual)[i]);
  } else if (a->dtype == LADE_BF16) {
    lade_master_split(master, &((uint16_t *)a->weight)[i], &((int16_t *)a->residual)[i]);
  } else if (a->dtype == LADE_F16) {
    ((float *)a->residual)[i] = master;
    ((uint16_t *)a->weight)[i] = lade_f32_to_f16(master);
  } else {
    ((float *)a->weight)[i] = master;
  }
}

static float moment_get(const struct lade_adamw_args *a, const void *moment, int64_t i, bool is_v)
{
  if (a->moments == LADE_MOMENTS_F32)
    return ((const float *)moment)[i];
  if (a->moments == LADE_MOMENTS_BF16)
    return lade_bf16_to_f32(((const uint16_t *)moment)[i]);
  uint32_t scale = lade_scale_clamp((is_v ? a->v_scales : a->m_scales)[i / LADE_MOMENT_BLOCK]);
  uint8_t code = ((const uint8_t *)moment)[i];
  return is_v ? lade_v_value(code, scale) : lade_m_value(code, scale);
}

/* Compute elements [from, from + n), all but the stores of m and v. */
static void block_compute(const struct adamw_ref_call *call, int64_t from, int64_t n, struct moment_block *ret_block)
{
  const struct lade_adamw_args *a = call->args;
  const struct lade_step s = *call->step;
  float factor = a->clip_result->factor, decay = a->has_decay ? s.weight_decay : 0.0f;
  float rest1 = 1.0f - s.beta1, rest2 = 1.0f - s.beta2;
  bool has_words = a->moments != LADE_MOMENTS_F32 || a->master != LADE_MASTER_EXACT;
  for (int64_t j = 0; j < n; j++) {
    int64_t i = from + j;
    float grad = a->grad_dtype == LADE_BF16 ? lade_bf16_to_f32(((uint16_t *)a->grad)[i]) : ((float *)a->grad)[i];
    float g = grad * factor, w = master_get(a, i);
    float m = fmaf(s.beta1, moment_get(a, a->m, i, false), rest1 * g);
    float v = fmaf(s.beta2, moment_get(a, a->v, i, true), rest2 * (g * g));
    float u = m * s.correction1 / (sqrtf(v * s.correction2) + s.eps);
    u = fmaf(decay, w, u);
    w = fmaf(-s.lr, u, w);
    uint32_t word = has_words ? lade_draw_word(s.seed, s.step, a->stream, a->first_element + (uint64_t)i) : 0;
    master_put(a, i, w, word);
    ret_block->m[j] = m;
    ret_block->v[j] = v;
    ret_block->word[j] = word;
  }
}

static void codes_put(const struct lade_adamw_args *a, int64_t from, int64_t n, const struct moment_block *block)
{
  uint32_t m_scale = 0, v_scale = 0;
  for (int64_t j = 0; j < n; j++) {
    uint32_t m = lade_f32_bits(block->m[j]) & 0x7fffffffu, v = lade_f32_bits(block->v[j]) & 0x7fffffffu;
    m_scale = LADE_MAX(m_scale, lade_scale_of(m, lade_round_random(lade_draw_m(block->word[j]))));
    v_scale = LADE_MAX(v_scale, lade_scale_of(v, lade_round_random(lade_draw_v(block->word[j]))));
  }
  m_scale = lade_scale_clamp(m_scale);
  v_scale = lade_scale_clamp(v_scale);
  a->m_scales[from / LADE_MOMENT_BLOCK] = (uint8_t)m_scale;
  a->v_scales[from / LADE_MOMENT_BLOCK] = (uint8_t)v_scale;
  for (int64_t j = 0; j < n; j++) {
    uint32_t word = block->word[j];
    ((uint8_t *)a->m)[from + j] = lade_m_code(block->m[j], m_scale, lade_round_random(lade_draw_m(word)));
    ((uint8_t *)a->v)[from + j] = lade_v_code(block->v[j], v_scale, lade_round_random(lade_draw_v(word)));
  }
}

static void moments_put(const struct lade_adamw_args *a, int64_t from, int64_t n, const struct moment_block *block)
{
  if (a->moments == LADE_MOMENTS_8BIT) {
    codes_put(a, from, n, block);
    return;
  }
  for (int64_t j = 0; j < n; j++) {
    if (a->moments == LADE_MOMENTS_BF16) {
      ((uint16_t *)a->m)[from + j] = lade_f32_to_bf16_random(block->m[j], lade_draw_m(block->word[j]));
      ((uint16_t *)a->v)[from + j] = lade_f32_to_bf16_random(block->v[j], lade_draw_v(block->word[j]));
    } else {
      ((float *)a->m)[from + j] = block->m[j];
      ((float *)a->v)[from + j] = block->v[j];
    }
  }
}

static void adamw_span(void *arg, int i_task, int i_thread)
{
  const struct adamw_ref_call *call = arg;
  int64_t n_elements = call->args->n_elements, from = (int64_t)i_task * LADE_TASK_ELEMENTS;
  int64_t end = LADE_MIN(n_elements, from + LADE_TASK_ELEMENTS);
  for (; from < end; from += LADE_MOMENT_BLOCK) {
    struct moment_block block;
    int64_t n = LADE_MIN(end - from, LADE_MOMENT_BLOCK);
    block_compute(call, from, n, &block);
    moments_put(call->args, from, n, &block);
  }
}

static void adamw_plain(const struct lade_kernel_ctx *ctx, const void *args)
{
  const struct lade_adamw_args *a = args;
  if (a->clip_result->is_skipped)
    return;
  lade_pool_run(ctx->pool, adamw_span, &(struct adamw_ref_call){ctx->step, a},
                (int)lade_div_up(a->n_elements, LADE_TASK_ELEMENTS));
}

void lade_adamw_init(struct lade_kernels *kernels)
{
  lade_kernels_set(kernels, LADE_K_ADAMW, adamw_plain, "plain");
}
