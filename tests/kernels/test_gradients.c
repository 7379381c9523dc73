/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every backward compared with central differences in double precision.
 *
 * A check is a function of input tensors to output tensors. With fixed random weights on its outputs it is a scalar L.
 * Each input's gradient g must satisfy g.v = dL/dh along random directions v. The difference is of fourth order, (8
 * (L(h) - L(-h)) - (L(2h) - L(-2h))) / 12h, which at h = 1e-3 is exact to about 1e-11. The bound for kernels is 1e-6 of
 * |g| |v|.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/base.h"
#include "harness.h"

#define N_TENSORS 5
#define N_DIRECTIONS 4
#define STEP 1e-3
#define TOLERANCE 1e-6

struct tensor {
  int64_t n;
  double *x, *g; /* value and gradient: backward computes an input's, the check sets an output's */
};

struct check {
  int n_in, n_out;
  struct tensor in[N_TENSORS], out[N_TENSORS];
  int32_t *tokens;
  double *mean, *rstd; /* values that forward keeps for backward: also lse and losses */
  enum lade_norm_kind kind;
  struct lade_drop drop;
  float scale_factor; /* of rope */
  struct lade_step step;
  lade_pool *pool;
  struct lade_kernels kernels;
  void (*forward)(struct check *check);
  void (*backward)(struct check *check);
};

/* Small, and not multiples of anything. */
enum { BATCH = 2, SEQ_LEN = 5, N = BATCH * SEQ_LEN, D = 7, VOCABULARY = 6 };
enum { HEADS = 4, N_KV_HEADS = 2, HEAD_DIM = 6, F = 3 };
#define EPS 1e-5f

static const struct lade_drop drop_half = {.drop_below = 0x60000000, .stream = 3, .scale = 1.6f, .first_element = 10};

/* Call @kernel with @args, whose workspace pointer is at @workspace (NULL: none). */
static void call(struct check *check, enum lade_kernel kernel, void *args, void **workspace)
{
  const struct lade_kernel_ctx ctx = {.pool = check->pool, .step = &check->step, .kernels = &check->kernels};
  size_t n_bytes = lade_kernel_workspace_bytes(&check->kernels, kernel, args, lade_pool_n_threads(check->pool));
  void *block = NULL;
  assert_int_equal(posix_memalign(&block, 64, n_bytes + 64), 0);
  if (workspace)
    *workspace = block;
  check->kernels.fn[kernel](&ctx, args);
  free(block);
}

static double scalar_get(struct check *check)
{
  double sum = 0;
  check->forward(check);
  for (int i = 0; i < check->n_out; i++) {
    for (int64_t j = 0; j < check->out[i].n; j++)
      sum += check->out[i].x[j] * check->out[i].g[j];
  }
  return sum;
}

/* Return L with @x moved by @h along @v; x is restored. */
static double moved_get(struct check *check, const struct tensor *tensor, const double *v, double h)
{
  double *before = malloc((size_t)tensor->n * sizeof(double));
  assert_non_null(before);
  memcpy(before, tensor->x, (size_t)tensor->n * sizeof(double));
  for (int64_t i = 0; i < tensor->n; i++)
    tensor->x[i] += h * v[i];
  double value = scalar_get(check);
  memcpy(tensor->x, before, (size_t)tensor->n * sizeof(double));
  free(before);
  return value;
}

static void direction_check(struct check *check, const struct tensor *tensor, uint64_t *random)
{
  double *v = malloc((size_t)tensor->n * sizeof(double)), along = 0, g_norm = 0, v_norm = 0;
  assert_non_null(v);
  for (int64_t i = 0; i < tensor->n; i++) {
    v[i] = random_next(random);
    along += v[i] * tensor->g[i];
    g_norm += tensor->g[i] * tensor->g[i];
    v_norm += v[i] * v[i];
  }
  double near = moved_get(check, tensor, v, STEP) - moved_get(check, tensor, v, -STEP);
  double far = moved_get(check, tensor, v, 2 * STEP) - moved_get(check, tensor, v, -2 * STEP);
  double difference = (8 * near - far) / (12 * STEP), limit = TOLERANCE * sqrt(g_norm * v_norm);
  if (!(fabs(difference - along) <= limit))
    fail_msg("input %d: gradient along a direction is %.12g, difference %.12g", (int)(tensor - check->in), along,
             difference);
  assert_true(g_norm > 0); /* a gradient of zeros would prove nothing */
  free(v);
}

static double *doubles_make(int64_t n, uint64_t *random)
{
  double *x = malloc((size_t)n * sizeof(double));
  assert_non_null(x);
  for (int64_t i = 0; i < n; i++)
    x[i] = 1.5 * random_next(random);
  return x;
}

static void tensors_fill(struct tensor *tensors, int n_tensors, uint64_t *random)
{
  for (int i = 0; i < n_tensors; i++) {
    if (!tensors[i].g)
      tensors[i].g = doubles_make(tensors[i].n, random);
    tensors[i].x = doubles_make(tensors[i].n, random);
  }
}

/* Fill, differentiate, compare, release. The caller has set sizes and functions. */
static void check_run(struct check *check)
{
  uint64_t random = 20240607;
  check->step = step_make(99);
  check->step.loss_scale = 2;
  level_get("plain", &check->kernels);
  assert_int_equal(lade_pool_create(2, &check->pool), 0);
  tensors_fill(check->in, check->n_in, &random);
  tensors_fill(check->out, check->n_out, &random);
  check->mean = doubles_make(N * HEADS, &random);
  check->rstd = doubles_make(N * HEADS, &random);
  check->tokens = calloc(N, sizeof(int32_t));
  assert_non_null(check->tokens);
  for (int i = 0; i < N; i++)
    check->tokens[i] = (int32_t)((random_next(&random) + 1) / 2 * (VOCABULARY - 1)); /* the last one never occurs */
  check->forward(check);
  check->backward(check);
  for (int i = 0; i < check->n_in; i++) {
    for (int j = 0; j < N_DIRECTIONS; j++)
      direction_check(check, &check->in[i], &random);
  }
  for (int i = 0; i < N_TENSORS; i++) {
    free(check->in[i].x);
    free(check->in[i].g);
    free(check->out[i].x);
    free(check->out[i].g);
  }
  free(check->mean);
  free(check->rstd);
  free(check->tokens);
  lade_pool_destroy(check->pool);
}

/* Matrix product with bias; its backward is three calls, one of them the column sum. */

static void matmul_forward(struct check *c)
{
  struct lade_matmul_args a = {.layout = LADE_NT, .dtype = LADE_F64, .out = LADE_F64, .m = N, .n = F, .k = D,
                               .a = c->in[0].x, .b = c->in[1].x, .bias = c->in[2].x, .c = c->out[0].x};
  call(c, LADE_K_MATMUL, &a, &a.workspace);
}

static void matmul_backward(struct check *c)
{
  struct lade_matmul_args dx = {.layout = LADE_NN, .dtype = LADE_F64, .out = LADE_F64, .m = N, .n = D, .k = F,
                                .a = c->out[0].g, .b = c->in[1].x, .c = c->in[0].g};
  struct lade_matmul_args dw = {.layout = LADE_TN, .dtype = LADE_F64, .out = LADE_F64, .m = F, .n = D, .k = N,
                                .a = c->out[0].g, .b = c->in[0].x, .c = c->in[1].g};
  struct lade_column_sum_args db = {.dtype = LADE_F64, .m = N, .n = F, .x = c->out[0].g, .sum = c->in[2].g};
  call(c, LADE_K_MATMUL, &dx, &dx.workspace);
  call(c, LADE_K_MATMUL, &dw, &dw.workspace);
  call(c, LADE_K_COLUMN_SUM, &db, &db.workspace);
}

static void matmul_and_column_sum(void **state)
{
  struct check c = {.n_in = 3, .n_out = 1, .in = {{.n = N * D}, {.n = F * D}, {.n = F}}, .out = {{.n = N * F}},
                    .forward = matmul_forward, .backward = matmul_backward};
  check_run(&c);
}

static void embed_forward(struct check *c)
{
  struct lade_embed_fwd_args a = {.dtype = LADE_F64, .batch = BATCH, .seq_len = SEQ_LEN, .d = D,
                                  .vocabulary = VOCABULARY, .tokens = c->tokens, .token_table = c->in[0].x,
                                  .position_table = c->in[1].x, .x = c->out[0].x};
  call(c, LADE_K_EMBED_FWD, &a, NULL);
}

static void embed_backward(struct check *c)
{
  struct lade_embed_bwd_args a = {.dtype = LADE_F64, .batch = BATCH, .seq_len = SEQ_LEN, .d = D,
                                  .vocabulary = VOCABULARY, .tokens = c->tokens, .dx = c->out[0].g,
                                  .d_token_table = c->in[0].g, .d_position_table = c->in[1].g,
                                  .positions = SEQ_LEN + 1};
  call(c, LADE_K_EMBED_BWD, &a, &a.workspace);
}

static void embed(void **state)
{
  struct check c = {.n_in = 2, .n_out = 1, .in = {{.n = VOCABULARY * D}, {.n = (SEQ_LEN + 1) * D}},
                    .out = {{.n = N * D}}, .forward = embed_forward, .backward = embed_backward};
  check_run(&c);
}

/* The norm's second output is its input: the residual stream, whose gradient is d_residual. */

static void norm_forward(struct check *c)
{
  struct lade_norm_fwd_args a = {.dtype = LADE_F64, .kind = c->kind, .n = N, .d = D, .eps = EPS, .x = c->in[0].x,
                                 .weight = c->in[1].x, .bias = c->n_in > 2 ? c->in[2].x : NULL, .y = c->out[0].x,
                                 .mean = c->mean, .rstd = c->rstd};
  call(c, LADE_K_NORM_FWD, &a, NULL);
  memcpy(c->out[1].x, c->in[0].x, N * D * sizeof(double));
}

static void norm_backward(struct check *c)
{
  struct lade_norm_bwd_args a = {.dtype = LADE_F64, .kind = c->kind, .n = N, .d = D, .dy = c->out[0].g,
                                 .x = c->in[0].x, .weight = c->in[1].x, .mean = c->mean, .rstd = c->rstd,
                                 .d_residual = c->out[1].g, .dx = c->in[0].g, .d_weight = c->in[1].g,
                                 .d_bias = c->n_in > 2 ? c->in[2].g : NULL};
  call(c, LADE_K_NORM_BWD, &a, &a.workspace);
}

static void layer_norm(void **state)
{
  struct check c = {.n_in = 3, .n_out = 2, .in = {{.n = N * D}, {.n = D}, {.n = D}},
                    .out = {{.n = N * D}, {.n = N * D}},
                    .kind = LADE_NORM_LAYER, .forward = norm_forward, .backward = norm_backward};
  check_run(&c);
}

static void rms_norm(void **state)
{
  struct check c = {.n_in = 2, .n_out = 2, .in = {{.n = N * D}, {.n = D}}, .out = {{.n = N * D}, {.n = N * D}},
                    .kind = LADE_NORM_RMS, .forward = norm_forward, .backward = norm_backward};
  check_run(&c);
}

/* Inputs: x, residual, bias, weight, norm bias. Outputs: sum, y. */

static void residual_forward(struct check *c)
{
  struct lade_residual_fwd_args a = {.dtype = LADE_F64, .kind = c->kind, .n = N, .d = D, .eps = EPS, .drop = c->drop,
                                     .x = c->in[0].x, .residual = c->in[1].x, .bias = c->in[2].x,
                                     .sum = c->out[0].x, .weight = c->in[3].x,
                                     .norm_bias = c->n_in > 4 ? c->in[4].x : NULL, .y = c->out[1].x,
                                     .mean = c->mean, .rstd = c->rstd};
  call(c, LADE_K_RESIDUAL_FWD, &a, NULL);
}

static void residual_backward(struct check *c)
{
  bool has_drop = c->drop.drop_below != 0;
  struct lade_residual_bwd_args a = {.dtype = LADE_F64, .kind = c->kind, .n = N, .d = D, .drop = c->drop,
                                     .d_sum = c->out[0].g, .dy = c->out[1].g, .sum = c->out[0].x,
                                     .weight = c->in[3].x, .mean = c->mean, .rstd = c->rstd,
                                     .d_residual = c->in[1].g, .dx = has_drop ? c->in[0].g : NULL,
                                     .d_x_bias = c->in[2].g, .d_weight = c->in[3].g,
                                     .d_norm_bias = c->n_in > 4 ? c->in[4].g : NULL};
  call(c, LADE_K_RESIDUAL_BWD, &a, &a.workspace);
  if (!has_drop)
    memcpy(c->in[0].g, c->in[1].g, N * D * sizeof(double));
}

static void residual_check(enum lade_norm_kind kind, struct lade_drop drop)
{
  bool has_norm = kind != LADE_NORM_NONE;
  struct check c = {.n_in = kind == LADE_NORM_LAYER ? 5 : has_norm ? 4 : 3, .n_out = has_norm ? 2 : 1,
                    .in = {{.n = N * D}, {.n = N * D}, {.n = D}, {.n = D}, {.n = D}},
                    .out = {{.n = N * D}, {.n = N * D}}, .kind = kind, .drop = drop, .forward = residual_forward,
                    .backward = residual_backward};
  check_run(&c);
}

static void residual_alone(void **state)
{
  residual_check(LADE_NORM_NONE, (struct lade_drop){0});
  residual_check(LADE_NORM_NONE, drop_half);
}

static void residual_with_layer_norm(void **state)
{
  residual_check(LADE_NORM_LAYER, (struct lade_drop){0});
  residual_check(LADE_NORM_LAYER, drop_half);
}

static void residual_with_rms_norm(void **state)
{
  residual_check(LADE_NORM_RMS, (struct lade_drop){0});
  residual_check(LADE_NORM_RMS, drop_half);
}

static void dropout_forward(struct check *c)
{
  struct lade_dropout_args a = {.dtype = LADE_F64, .n_elements = N * D, .drop = drop_half, .x = c->in[0].x,
                                .y = c->out[0].x};
  call(c, LADE_K_DROPOUT, &a, NULL);
}

static void dropout_backward(struct check *c)
{
  struct lade_dropout_args a = {.dtype = LADE_F64, .n_elements = N * D, .drop = drop_half, .x = c->out[0].g,
                                .y = c->in[0].g};
  call(c, LADE_K_DROPOUT, &a, NULL);
}

static void dropout(void **state)
{
  struct check c = {.n_in = 1, .n_out = 1, .in = {{.n = N * D}}, .out = {{.n = N * D}}, .forward = dropout_forward,
                    .backward = dropout_backward};
  check_run(&c);
}

enum { QKV = (HEADS + 2 * N_KV_HEADS) * HEAD_DIM };

static void rope_call(struct check *c, const double *x, double *y, bool is_inverse)
{
  struct lade_rope_args a = {.dtype = LADE_F64, .batch = BATCH, .seq_len = SEQ_LEN, .heads = HEADS,
                             .n_kv_heads = N_KV_HEADS,
                             .head_dim = HEAD_DIM, .base = 100, .kind = LADE_ROPE_LLAMA3,
                             .scale_factor = c->scale_factor, .low = 1, .high = 4, .original_context = 16,
                             .is_inverse = is_inverse, .x = x, .y = y};
  call(c, LADE_K_ROPE, &a, &a.workspace);
}

static void rope_forward(struct check *c)
{
  rope_call(c, c->in[0].x, c->out[0].x, false);
}

static void rope_backward(struct check *c)
{
  rope_call(c, c->out[0].g, c->in[0].g, true);
}

static void rope(void **state)
{
  struct check c = {.n_in = 1, .n_out = 1, .in = {{.n = N * QKV}}, .out = {{.n = N * QKV}}, .forward = rope_forward,
                    .backward = rope_backward};
  check_run(&c);
  struct check scaled = {.n_in = 1, .n_out = 1, .in = {{.n = N * QKV}}, .out = {{.n = N * QKV}}, .scale_factor = 8,
                         .forward = rope_forward, .backward = rope_backward};
  check_run(&scaled);
}

static void attention_forward(struct check *c)
{
  struct lade_attention_fwd_args a = {.dtype = LADE_F64, .batch = BATCH, .seq_len = SEQ_LEN, .heads = HEADS,
                                      .n_kv_heads = N_KV_HEADS, .head_dim = HEAD_DIM, .drop = c->drop,
                                      .qkv = c->in[0].x, .out = c->out[0].x, .lse = c->mean};
  call(c, LADE_K_ATTENTION_FWD, &a, &a.workspace);
}

static void attention_backward(struct check *c)
{
  struct lade_attention_bwd_args a = {.dtype = LADE_F64, .batch = BATCH, .seq_len = SEQ_LEN, .heads = HEADS,
                                      .n_kv_heads = N_KV_HEADS, .head_dim = HEAD_DIM, .drop = c->drop,
                                      .qkv = c->in[0].x, .out = c->out[0].x, .lse = c->mean, .d_out = c->out[0].g,
                                      .d_qkv = c->in[0].g};
  call(c, LADE_K_ATTENTION_BWD, &a, &a.workspace);
}

static void attention(void **state)
{
  struct check c = {.n_in = 1, .n_out = 1, .in = {{.n = N * QKV}}, .out = {{.n = N * HEADS * HEAD_DIM}},
                    .forward = attention_forward, .backward = attention_backward};
  check_run(&c);
  struct check dropped = {.n_in = 1, .n_out = 1, .in = {{.n = N * QKV}}, .out = {{.n = N * HEADS * HEAD_DIM}},
                          .drop = drop_half, .forward = attention_forward, .backward = attention_backward};
  check_run(&dropped);
}

static void gelu_forward(struct check *c)
{
  struct lade_gelu_fwd_args a = {.dtype = LADE_F64, .n_elements = N * D, .x = c->in[0].x, .y = c->out[0].x};
  call(c, LADE_K_GELU_FWD, &a, NULL);
}

static void gelu_backward(struct check *c)
{
  struct lade_gelu_bwd_args a = {.dtype = LADE_F64, .n_elements = N * D, .x = c->in[0].x, .dy = c->out[0].g,
                                 .dx = c->in[0].g};
  call(c, LADE_K_GELU_BWD, &a, NULL);
}

static void gelu(void **state)
{
  struct check c = {.n_in = 1, .n_out = 1, .in = {{.n = N * D}}, .out = {{.n = N * D}}, .forward = gelu_forward,
                    .backward = gelu_backward};
  check_run(&c);
}

/* y = gelu(x) W^T, whose gradient of x is one kernel. */
static double middle[N * D]; /* gelu(x) */

static void gelu_product_forward(struct check *c)
{
  struct lade_gelu_fwd_args gelu = {.dtype = LADE_F64, .n_elements = N * D, .x = c->in[0].x, .y = middle};
  struct lade_matmul_args a = {.layout = LADE_NT, .dtype = LADE_F64, .out = LADE_F64, .m = N, .n = F, .k = D,
                               .a = middle, .b = c->in[1].x, .c = c->out[0].x};
  call(c, LADE_K_GELU_FWD, &gelu, NULL);
  call(c, LADE_K_MATMUL, &a, &a.workspace);
}

static void gelu_product_backward(struct check *c)
{
  struct lade_matmul_gelu_bwd_args a = {
      .product = {.layout = LADE_NN, .dtype = LADE_F64, .out = LADE_F64, .m = N, .n = D, .k = F, .a = c->out[0].g,
                  .b = c->in[1].x, .c = c->in[0].g, .gelu_x = c->in[0].x}};
  struct lade_matmul_args dw = {.layout = LADE_TN, .dtype = LADE_F64, .out = LADE_F64, .m = F, .n = D, .k = N,
                                .a = c->out[0].g, .b = middle, .c = c->in[1].g};
  call(c, LADE_K_MATMUL_GELU_BWD, &a, &a.product.workspace);
  call(c, LADE_K_MATMUL, &dw, &dw.workspace);
}

static void gelu_and_product(void **state)
{
  struct check c = {.n_in = 2, .n_out = 1, .in = {{.n = N * D}, {.n = F * D}}, .out = {{.n = N * F}},
                    .forward = gelu_product_forward, .backward = gelu_product_backward};
  check_run(&c);
}

static void swiglu_forward(struct check *c)
{
  struct lade_swiglu_fwd_args a = {.dtype = LADE_F64, .n = N, .f = F, .x = c->in[0].x, .y = c->out[0].x};
  call(c, LADE_K_SWIGLU_FWD, &a, NULL);
}

static void swiglu_backward(struct check *c)
{
  struct lade_swiglu_bwd_args a = {.dtype = LADE_F64, .n = N, .f = F, .x = c->in[0].x, .dy = c->out[0].g,
                                   .dx = c->in[0].g};
  call(c, LADE_K_SWIGLU_BWD, &a, NULL);
}

static void swiglu(void **state)
{
  struct check c = {.n_in = 1, .n_out = 1, .in = {{.n = N * 2 * F}}, .out = {{.n = N * F}}, .forward = swiglu_forward,
                    .backward = swiglu_backward};
  check_run(&c);
}

#define LOSS_SCALE 0.37f /* of the op; the step's loss scale is 2 */

static void head_loss_forward(struct check *c)
{
  struct lade_head_loss_fwd_args a = {.dtype = LADE_F64, .n = N, .d = D, .vocabulary = VOCABULARY, .x = c->in[0].x,
                                      .weight = c->in[1].x, .targets = c->tokens, .losses = c->mean, .lse = c->rstd,
                                      .loss = c->out[0].x};
  c->tokens[3] = -1; /* ignored */
  call(c, LADE_K_HEAD_LOSS_FWD, &a, &a.workspace);
}

static void head_loss_backward(struct check *c)
{
  struct lade_head_loss_bwd_args a = {.dtype = LADE_F64, .n = N, .d = D, .vocabulary = VOCABULARY,
                                      .scale = LOSS_SCALE, .x = c->in[0].x, .weight = c->in[1].x,
                                      .targets = c->tokens, .lse = c->rstd, .dx = c->in[0].g, .d_weight = c->in[1].g};
  call(c, LADE_K_HEAD_LOSS_BWD, &a, &a.workspace);
}

static void head_loss(void **state)
{
  double *weight = malloc(sizeof(*weight));
  assert_non_null(weight);
  *weight = 2 * (double)LOSS_SCALE;
  struct check c = {.n_in = 2, .n_out = 1, .in = {{.n = N * D}, {.n = VOCABULARY * D}},
                    .out = {{.n = 1, .g = weight}}, .forward = head_loss_forward, .backward = head_loss_backward};
  check_run(&c);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(matmul_and_column_sum), cmocka_unit_test(embed),
      cmocka_unit_test(layer_norm),            cmocka_unit_test(rms_norm),
      cmocka_unit_test(residual_alone),        cmocka_unit_test(residual_with_layer_norm),
      cmocka_unit_test(residual_with_rms_norm), cmocka_unit_test(dropout),
      cmocka_unit_test(rope),                  cmocka_unit_test(attention),
      cmocka_unit_test(gelu),                  cmocka_unit_test(swiglu),
      cmocka_unit_test(head_loss),             cmocka_unit_test(gelu_and_product),
  };
  return cmocka_run_group_tests_name("backwards equal central differences", tests, NULL, NULL);
}
