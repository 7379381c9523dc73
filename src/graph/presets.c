/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Models by name. `nano` is nanoGPT's character-level CPU configuration and `baby` its GPU one; both take their
 * vocabulary from the data. The gpt2 sizes are OpenAI's. The llama3 sizes are Meta's: 405b is Llama 3.1; 8b and 70b are
 * as first released, with context 8192 and no frequency scaling. gpt3-175b and gpt-1t are from Table 1 of Narayanan et
 * al., "Efficient large-scale language model training on GPU clusters using Megatron-LM" (2021). Tests compare the
 * parameter counts with the published ones.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/base.h"
#include "graph/experts.h"

/* A GPT-2 model: hidden is four times the width, and the head is tied. */
#define GPT2(layers_, heads_, width_, context_, vocabulary_) \
  .family = LADE_GPT2, .layers = layers_, .heads = heads_, .n_kv_heads = heads_, .width = width_, \
  .hidden = 4 * (width_), .context = context_, .vocabulary = vocabulary_, .is_tied = true, .norm_eps = 1e-5f
#define LLAMA3(layers_, heads_, width_, hidden_, context_) \
  .family = LADE_LLAMA, .layers = layers_, .heads = heads_, .n_kv_heads = 8, .width = width_, .hidden = hidden_, \
  .context = context_, .vocabulary = 128256, .norm_eps = 1e-5f, .rope_base = 500000

static const struct lade_model presets[] = {
    {.name = "nano", GPT2(4, 4, 128, 64, 256), .takes_vocabulary = true},
    {.name = "baby", GPT2(6, 6, 384, 256, 256), .takes_vocabulary = true},
    {.name = "gpt2-124m", GPT2(12, 12, 768, 1024, 50257)},
    {.name = "gpt2-350m", GPT2(24, 16, 1024, 1024, 50257)},
    {.name = "gpt2-774m", GPT2(36, 20, 1280, 1024, 50257)},
    {.name = "gpt2-1.5b", GPT2(48, 25, 1600, 1024, 50257)},
    {.name = "llama3-8b", LLAMA3(32, 32, 4096, 14336, 8192)},
    {.name = "llama3-70b", LLAMA3(80, 64, 8192, 28672, 8192)},
    {.name = "llama3-405b", LLAMA3(126, 128, 16384, 53248, 131072), .rope_scale_factor = 8,
     .rope_low_freq_factor = 1, .rope_high_freq_factor = 4, .rope_original_context = 8192},
    {.name = "gpt3-175b", GPT2(96, 96, 12288, 2048, 51200)},
    {.name = "gpt-1t", GPT2(128, 160, 25600, 2048, 51200)},
};

const char *lade_model_preset_name(int i)
{
  return i >= 0 && i < (int)LADE_COUNT(presets) ? presets[i].name : NULL;
}

int lade_model_preset(const char *name, struct lade_model *ret_model, struct lade_error *error)
{
  char names[256] = "";
  for (size_t i = 0; i < LADE_COUNT(presets); i++) {
    if (strcmp(presets[i].name, name) == 0) {
      *ret_model = presets[i];
      return 0;
    }
    size_t used = strlen(names);
    snprintf(names + used, sizeof(names) - used, "%s%s", i ? ", " : "", presets[i].name);
  }
  for (int i = 0; lade_experts_preset_name(i); i++) {
    if (strcmp(lade_experts_preset_name(i), name) == 0)
      return lade_experts_refuse(name, error);
  }
  return lade_error_set(error, -ENOENT, "no model named '%.64s': expected one of %s, or the path of a config.json",
                        name, names);
}
