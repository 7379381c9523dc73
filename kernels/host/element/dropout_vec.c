/* SPDX-License-Identifier: Apache-2.0 */
/* dropout.c in vectors: a run of random words into L1, then the elements of those words. */
#include "kernels/host/lanes.h"

struct dropout_vec_call {
  const struct lade_step *step;
  const void *args;
};

VEC_INLINE void copy_step(int64_t i, int n, const struct lade_dropout_args *a, enum lade_dtype dtype)
{
  vec_store(dtype, a->y, i, n, vec_load(dtype, a->x, i, n));
}

VEC_INLINE void drop_step(int64_t i, int n, const struct lade_dropout_args *a, const uint32_t *word, int64_t from,
                          enum lade_dtype dtype)
{
  vec_store(dtype, a->y, i, n, vec_drop(&a->drop, word + (i - from), vec_load(dtype, a->x, i, n)));
}

VEC_INLINE void drop_span(const void *arg, int64_t i_task, enum lade_dtype dtype)
{
  const struct dropout_vec_call *call = arg;
  const struct lade_step step = *call->step;
  VEC_COPY(lade_dropout_args, a, call->args);
  int64_t first = i_task * LADE_TASK_ELEMENTS, last = LADE_MIN(a->n_elements, first + LADE_TASK_ELEMENTS);
  uint32_t words[VEC_RUN_WORDS];
  if (a->drop.drop_below == 0) {
    VEC_STEPS(copy_step, first, last, a, dtype);
    return;
  }
  for (int64_t from = first; from < last; from += VEC_RUN) {
    int64_t end = LADE_MIN(last, from + VEC_RUN);
    const uint32_t *word = vec_words_fill(words, &step, &a->drop, from, end - from);
    VEC_STEPS(drop_step, from, end, a, word, from, dtype);
  }
}
VEC_TASKS(drop_span)

static void dropout(const struct lade_kernel_ctx *ctx, const void *args)
{
  const struct lade_dropout_args *a = args;
  if (a->dtype == LADE_F64)
    lade_dropout_plain(ctx, args);
  else
    drop_span_run(ctx->pool, a->dtype, &(struct dropout_vec_call){ctx->step, a},
                  lade_div_up(a->n_elements, LADE_TASK_ELEMENTS));
}

void VEC_NAME(lade_dropout_init)(struct lade_kernels *kernels)
{
  lade_kernels_set(kernels, LADE_K_DROPOUT, dropout, VEC_VARIANT);
}
