/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Forward: sum = residual + (x + bias), y = norm(sum), in one call or as a residual without norm and a norm. Backward:
 * in one call, or as the norm's backward, dropout, and the bias's column sum. The column sum adds rows in another order
 * than the fused op, so its bits are not compared.
 */
#include "fused.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/base.h"
#include "base/float.h"
#include "harness.h"

enum { X, RESIDUAL, SUM, Y, DY, D_SUM, D_RESIDUAL, DX, N_WIDE }; /* [n,d], BF16 */

struct work {
  int64_t n, d;
  struct lade_drop drop;
  uint16_t *wide[N_WIDE];
  uint16_t *bias, *weight, *norm_bias;
  float *mean, *rstd, *d_bias, *d_weight, *d_norm_bias;
  void *workspace;
  struct lade_step step;
  struct lade_kernels kernels;
  lade_pool *pool;
};

static void *zeros_make(size_t n_bytes)
{
  void *block = level_alloc(n_bytes);
  assert_non_null(block);
  memset(block, 0, n_bytes);
  return block;
}

static uint16_t *bf16_make(int64_t n, uint64_t *random)
{
  uint16_t *x = zeros_make((size_t)n * sizeof(*x));
  for (int64_t i = 0; i < n; i++)
    x[i] = lade_f32_to_bf16((float)(2 * random_next(random)));
  return x;
}

static struct lade_residual_bwd_args bwd_args(const struct work *w)
{
  return (struct lade_residual_bwd_args){
      .dtype = LADE_BF16, .kind = LADE_NORM_LAYER, .n = w->n, .d = w->d, .drop = w->drop, .d_sum = w->wide[D_SUM],
      .dy = w->wide[DY], .sum = w->wide[SUM], .weight = w->weight, .mean = w->mean, .rstd = w->rstd,
      .d_residual = w->wide[D_RESIDUAL], .dx = w->drop.drop_below ? w->wide[DX] : NULL,
      .d_x_bias = w->d_bias, .d_weight = w->d_weight, .d_norm_bias = w->d_norm_bias, .workspace = w->workspace};
}

static void work_init(struct work *w, int64_t n, int64_t d, bool has_dropout)
{
  uint64_t random = 7;
  *w = (struct work){.n = n, .d = d, .step = step_make(7)};
  if (has_dropout)
    w->drop = (struct lade_drop){.drop_below = 0x20000000, .stream = 2, .scale = 8.0f / 7};
  for (int i = 0; i < N_WIDE; i++)
    w->wide[i] = bf16_make(n * d, &random);
  w->bias = bf16_make(d, &random);
  w->weight = bf16_make(d, &random);
  w->norm_bias = bf16_make(d, &random);
  w->mean = zeros_make((size_t)n * sizeof(float));
  w->rstd = zeros_make((size_t)n * sizeof(float));
  w->d_bias = zeros_make((size_t)d * sizeof(float));
  w->d_weight = zeros_make((size_t)d * sizeof(float));
  w->d_norm_bias = zeros_make((size_t)d * sizeof(float));
  struct lade_residual_bwd_args args = bwd_args(w); /* the largest need of any part; a GPU has four times the blocks */
  level_get("best", &w->kernels);
  w->workspace = zeros_make(4 * lade_kernel_workspace_bytes(&w->kernels, LADE_K_RESIDUAL_BWD, &args, 1));
  assert_int_equal(lade_pool_create(0, &w->pool), 0);
}

static void work_finish(struct work *w)
{
  for (int i = 0; i < N_WIDE; i++)
    free(w->wide[i]);
  free(w->bias);
  free(w->weight);
  free(w->norm_bias);
  free(w->mean);
  free(w->rstd);
  free(w->d_bias);
  free(w->d_weight);
  free(w->d_norm_bias);
  free(w->workspace);
  lade_pool_destroy(w->pool);
}

static void run(const struct work *w, enum lade_kernel kernel, const void *args)
{
  const struct lade_kernel_ctx ctx = level_ctx(&w->kernels, w->pool, &w->step);
  w->kernels.fn[kernel](&ctx, args);
}

static struct lade_residual_fwd_args fwd_args(const struct work *w, enum lade_norm_kind kind)
{
  return (struct lade_residual_fwd_args){
      .dtype = LADE_BF16, .kind = kind, .n = w->n, .d = w->d, .eps = 1e-5f, .x = w->wide[X], .bias = w->bias,
      .residual = w->wide[RESIDUAL], .sum = w->wide[SUM], .weight = w->weight, .norm_bias = w->norm_bias,
      .y = w->wide[Y], .mean = w->mean, .rstd = w->rstd};
}

static void forward_fused(const struct work *w)
{
  struct lade_residual_fwd_args args = fwd_args(w, LADE_NORM_LAYER);
  run(w, LADE_K_RESIDUAL_FWD, &args);
}

static void forward_parts(const struct work *w)
{
  struct lade_residual_fwd_args args = fwd_args(w, LADE_NORM_NONE);
  struct lade_norm_fwd_args norm = {.dtype = LADE_BF16, .kind = LADE_NORM_LAYER, .n = w->n, .d = w->d, .eps = 1e-5f,
                                    .x = w->wide[SUM], .weight = w->weight, .bias = w->norm_bias, .y = w->wide[Y],
                                    .mean = w->mean, .rstd = w->rstd};
  run(w, LADE_K_RESIDUAL_FWD, &args);
  run(w, LADE_K_NORM_FWD, &norm);
}

static void backward_fused(const struct work *w)
{
  struct lade_residual_bwd_args args = bwd_args(w);
  run(w, LADE_K_RESIDUAL_BWD, &args);
}

static void backward_parts(const struct work *w)
{
  struct lade_norm_bwd_args norm = {.dtype = LADE_BF16, .kind = LADE_NORM_LAYER, .n = w->n, .d = w->d,
                                    .dy = w->wide[DY], .x = w->wide[SUM], .weight = w->weight, .mean = w->mean,
                                    .rstd = w->rstd, .d_residual = w->wide[D_SUM], .dx = w->wide[D_RESIDUAL],
                                    .d_weight = w->d_weight, .d_bias = w->d_norm_bias, .workspace = w->workspace};
  struct lade_dropout_args drop = {.dtype = LADE_BF16, .n_elements = w->n * w->d, .drop = w->drop,
                                   .x = w->wide[D_RESIDUAL], .y = w->wide[DX]};
  struct lade_column_sum_args sum = {.dtype = LADE_BF16, .m = w->n, .n = w->d, .sum = w->d_bias,
                                     .x = w->drop.drop_below ? w->wide[DX] : w->wide[D_RESIDUAL],
                                     .workspace = w->workspace};
  run(w, LADE_K_NORM_BWD, &norm);
  if (w->drop.drop_below)
    run(w, LADE_K_DROPOUT, &drop);
  run(w, LADE_K_COLUMN_SUM, &sum);
}

/* Run both variants and compare @n_bytes at each of @outputs. */
static void both_compare(const struct work *w, void (*fused)(const struct work *), void (*parts)(const struct work *),
                         void *const *outputs, const size_t *n_bytes, int n_outputs)
{
  void *copies[4];
  fused(w);
  for (int i = 0; i < n_outputs; i++) {
    copies[i] = zeros_make(n_bytes[i]);
    memcpy(copies[i], outputs[i], n_bytes[i]);
    memset(outputs[i], 0xee, n_bytes[i]);
  }
  parts(w);
  for (int i = 0; i < n_outputs; i++) {
    assert_memory_equal(outputs[i], copies[i], n_bytes[i]);
    free(copies[i]);
  }
}

static struct lade_gelu_bwd_args gelu_args(const struct work *w)
{
  return (struct lade_gelu_bwd_args){.dtype = LADE_BF16, .n_elements = w->n * w->d, .f = w->d, .x = w->wide[X],
                                     .dy = w->wide[DY], .dx = w->wide[DX], .workspace = w->workspace};
}

static void gelu_fused(const struct work *w)
{
  struct lade_gelu_bwd_args args = gelu_args(w);
  args.d_bias = w->d_bias;
  run(w, LADE_K_GELU_BWD, &args);
  args.accumulate = true;
  run(w, LADE_K_GELU_BWD, &args);
}

static void gelu_parts(const struct work *w)
{
  struct lade_gelu_bwd_args args = gelu_args(w);
  struct lade_column_sum_args sum = {.dtype = LADE_BF16, .m = w->n, .n = w->d, .x = w->wide[DX], .sum = w->d_bias,
                                     .workspace = w->workspace};
  run(w, LADE_K_GELU_BWD, &args);
  run(w, LADE_K_COLUMN_SUM, &sum);
  sum.accumulate = true;
  run(w, LADE_K_COLUMN_SUM, &sum);
}

/*
 * A bias's gradient has one set of bits, whichever kernel sums it. Shapes: single elements, several blocks of packs.
 */
void bias_gradients_are_equal(void **state)
{
  static const int64_t shapes[][2] = {{67, 131}, {300, 8 * 37}, {5000, 16}};
  for (size_t i_shape = 0; i_shape < LADE_COUNT(shapes); i_shape++) {
    struct work w;
    work_init(&w, shapes[i_shape][0], shapes[i_shape][1], false);
    for (int i = 0; level_names[i]; i++)
      if (level_get(level_names[i], &w.kernels))
        both_compare(&w, gelu_fused, gelu_parts, (void *[]){w.wide[DX], w.d_bias},
                     (size_t[]){(size_t)(w.n * w.d) * sizeof(uint16_t), (size_t)w.d * sizeof(float)}, 2);
    work_finish(&w);
  }
}

void fused_equals_parts(void **state)
{
  struct work w;
  work_init(&w, 67, 131, true);
  size_t wide_bytes = (size_t)(w.n * w.d) * sizeof(uint16_t), row_bytes = (size_t)w.d * sizeof(float);
  for (int i = 0; level_names[i]; i++) {
    if (!level_get(level_names[i], &w.kernels))
      continue;
    both_compare(&w, forward_fused, forward_parts, (void *[]){w.wide[SUM], w.wide[Y]},
                 (size_t[]){wide_bytes, wide_bytes}, 2);
    both_compare(&w, backward_fused, backward_parts,
                 (void *[]){w.wide[D_RESIDUAL], w.wide[DX], w.d_weight, w.d_norm_bias},
                 (size_t[]){wide_bytes, wide_bytes, row_bytes, row_bytes}, 4);
  }
  work_finish(&w);
}

/* Print the gain from the best of interleaved runs. */
static void gain_print(const struct work *w, const char *name, void (*fused)(const struct work *),
                       void (*parts)(const struct work *))
{
  double fused_ns = INFINITY, parts_ns = INFINITY;
  for (int i = 0; i < 15; i++) {
    int64_t begin_ns = lade_now_ns();
    fused(w);
    int64_t middle_ns = lade_now_ns();
    parts(w);
    fused_ns = fmin(fused_ns, (double)(middle_ns - begin_ns));
    parts_ns = fmin(parts_ns, (double)(lade_now_ns() - middle_ns));
  }
  printf("%-16s bf16  [%lld,%lld] fused %9.3f ms, parts %9.3f ms: %.2f times faster\n", name, (long long)w->n,
         (long long)w->d, fused_ns * 1e-6, parts_ns * 1e-6, parts_ns / fused_ns);
}

void fused_bench(void)
{
  static const int64_t widths[] = {384, 1024, 4096};
  for (size_t i = 0; i < LADE_COUNT(widths); i++) {
    struct work w;
    work_init(&w, 4096, widths[i], false);
    gain_print(&w, "residual_fwd", forward_fused, forward_parts);
    gain_print(&w, "residual_bwd", backward_fused, backward_parts);
    work_finish(&w);
    work_init(&w, 4096, widths[i], true);
    gain_print(&w, "  with dropout", backward_fused, backward_parts);
    work_finish(&w);
  }
}
