/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Published formulas of memory, to be printed beside the program's own numbers.
 *
 * ZeRO (Rajbhandari et al. 2020, table 1): weights and gradients in 16 bits and K = 12 bytes of optimizer state,
 * sharded over N: (2 + 2 + K/N), (2 + (2 + K)/N), (2 + 2 + K)/N bytes a parameter. Megatron-LM keeps gradients in 32
 * bits too, 18 bytes; SageMaker's guide counts 20, with a copy of the gradients in 32 bits beside that of 16.
 *
 * Korthikanti et al. 2022, for a layer with sequence s, microbatch b, width h, a heads, t tensor parallel ranks:
 *
 *   no parallelism           sbh (34 + 5 as/h)            equation 1
 *   tensor parallel          sbh (10 + 24/t + 5 as/(ht))  equation 2
 *   and sequence parallel    sbh/t (34 + 5 as/h)          equation 4
 *   and selective recompute  34 sbh/t                     equation 6
 *   full recompute           2 sbh
 */
#include "recompute/layout_cost.h"

double lade_zero_bytes_per_param(int zero, double n_ranks)
{
  const double weights = 2, grads = 2, state = 12;
  return weights / (zero >= 3 ? n_ranks : 1) + grads / (zero >= 2 ? n_ranks : 1) + state / (zero >= 1 ? n_ranks : 1);
}

double lade_korthikanti_layer_bytes(const struct lade_model *model, int64_t micro_batch, int64_t seq_len, int tp,
                                    bool is_sequence, enum lade_recipe recipe)
{
  const double s = (double)seq_len, h = (double)model->width, sbh = s * (double)micro_batch * h, t = tp;
  const double scores = 5 * (double)model->heads * s / h;
  if (recipe == LADE_RECIPE_FULL)
    return 2 * sbh;
  const double kept = recipe == LADE_RECIPE_SELECTIVE ? 0 : scores;
  return is_sequence ? sbh / t * (34 + kept) : sbh * (10 + 24 / t + kept / t);
}

double lade_korthikanti_in_flight(int64_t layers, int pp, int virtual_stages)
{
  const double more = virtual_stages > 1 ? 1 + (double)(pp - 1) / ((double)pp * virtual_stages) : 1;
  return (double)layers * more;
}
