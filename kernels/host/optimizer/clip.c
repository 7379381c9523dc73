/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The clip result of one step's gradients. Partials are added in one fixed tree (tree_sum.c). A norm that is not finite
 * in F32 skips the step; its factor is 0.
 */
#include <math.h>

#include "kernels/host/host.h"

/* Find the first partial that is not finite; n if each part is finite but the sum overflowed. */
static uint32_t bad_find(const double *partial, int64_t n)
{
  int64_t i = 0;
  while (i < n && isfinite(partial[i]))
    i++;
  return (uint32_t)i;
}

static void clip_plain(const struct lade_kernel_ctx *ctx, const void *args)
{
  const struct lade_clip_args *a = args;
  const struct lade_step *step = ctx->step;
  float norm = (float)(sqrt(lade_tree_sum(a->partial, a->n_partials)) / (double)step->loss_scale);
  bool is_skipped = !isfinite(norm);
  float factor = step->clip > 0 && norm > step->clip ? step->clip / norm : 1.0f;
  *a->clip_result = (struct lade_clip_result){
      .norm = norm, .factor = is_skipped ? 0.0f : factor / step->loss_scale, .is_skipped = is_skipped,
      .first_bad = is_skipped ? bad_find(a->partial, a->n_partials) : 0};
}

void lade_clip_init(struct lade_kernels *kernels)
{
  lade_kernels_set(kernels, LADE_K_CLIP, clip_plain, "plain");
}
