/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ops over rows: sums, embedding, norms, the fused residual, rotation, swiglu. Shapes are one, primes, vector
 * widths and their neighbours. A tolerance has two parts: ulps of the stored type, for the one rounding, and a share of
 * the largest result, for sums made in F32 in another order.
 */
#include "harness.h"

#include <math.h>

#include "base/base.h"

#define SUM_SCALE 8      /* of random terms, some dozens of which are summed and may cancel */
#define N_TERMS 64       /* as many: the scale of longer sums grows with the root of their terms */
#define SUM_LIMIT 0x1p56 /* of MIN and MAX where squares are summed: larger ones overflow F32 */

struct shape {
  int64_t n, d;
};
static const struct shape shapes[] = {{1, 1}, {1, 16}, {3, 7}, {2, 17}, {37, 31}, {64, 64}, {131, 33}, {2, 1027},
                                      {70, 160}};
static const struct shape bench_shapes[] = {{4096, 384}, {4096, 1536}, {4096, 4096}};

static bool shape_get(const struct call *call, int i_shape, struct shape *ret_shape)
{
  int n_shapes = call->is_bench ? LADE_COUNT(bench_shapes) : LADE_COUNT(shapes);
  if (i_shape >= n_shapes)
    return false;
  *ret_shape = call->is_bench ? bench_shapes[i_shape] : shapes[i_shape];
  return true;
}

/* Each shape once per kind of norm, and once with outputs in the inputs' memory. */
struct norm_shape {
  struct shape shape;
  enum lade_norm_kind kind;
  bool is_in_place;
};

/*
 * Rows that GPUs process in other ways, each in one dtype, because a fake GPU takes seconds for them. Of two packs a
 * thread, of two in the largest block, of more than its packs; and, for norms alone, a block of 34 rows: more than the
 * lanes of a warp.
 */
static const struct wide_shape {
  enum lade_dtype dtype;
  bool is_of_norms;
  struct norm_shape shape;
} wide_shapes[] = {{LADE_F32, false, {{5, 1536}, LADE_NORM_LAYER, false}},
                   {LADE_F32, false, {{3, 2056}, LADE_NORM_RMS, true}},
                   {LADE_F32, false, {{1, 4104}, LADE_NORM_RMS, true}},
                   {LADE_F32, true, {{8450, 4}, LADE_NORM_LAYER, false}},
                   {LADE_F32, true, {{8450, 3}, LADE_NORM_LAYER, false}},
                   {LADE_BF16, false, {{3, 3080}, LADE_NORM_LAYER, false}},
                   {LADE_BF16, false, {{3, 5120}, LADE_NORM_LAYER, false}},
                   {LADE_BF16, true, {{1, 6144}, LADE_NORM_RMS, true}},
                   {LADE_BF16, true, {{2, 8192}, LADE_NORM_LAYER, false}},
                   {LADE_BF16, false, {{1, 8200}, LADE_NORM_LAYER, false}}};

static bool wide_shape_get(const struct call *call, int at, bool has_none, struct norm_shape *ret_shape)
{
  for (int i = 0; i < (int)LADE_COUNT(wide_shapes) && !call->is_bench; i++) {
    const bool is_its = wide_shapes[i].dtype == call->dtype && (!wide_shapes[i].is_of_norms || !has_none);
    if (is_its && at-- == 0) {
      *ret_shape = wide_shapes[i].shape;
      return true;
    }
  }
  return false;
}

static bool norm_shape_get(const struct call *call, int i_shape, bool has_none, struct norm_shape *ret_shape)
{
  static const enum lade_norm_kind kinds[] = {LADE_NORM_LAYER, LADE_NORM_RMS, LADE_NORM_NONE};
  int n_kinds = has_none ? 3 : 2, n_modes = call->is_bench ? 1 : 2;
  ret_shape->kind = kinds[i_shape % n_kinds];
  ret_shape->is_in_place = i_shape / n_kinds % n_modes;
  return shape_get(call, i_shape / n_kinds / n_modes, &ret_shape->shape) ||
         wide_shape_get(call, i_shape - n_kinds * n_modes * (int)LADE_COUNT(shapes), has_none, ret_shape);
}

static double bytes_of(const struct call *call, double n_elements)
{
  return n_elements * (double)lade_dtype_bytes(call->dtype);
}

/* Declare an output that is a sum whose terms may cancel; @limit as in struct operand. */
static void sum_out(struct call *call, const void *field, const void *also, enum lade_dtype dtype, int64_t n,
                    double ulps, double relative, double limit)
{
  struct operand *operand = call_inout(call, field, also, dtype, n, ulps, relative);
  operand->limit = limit;
  operand->scale = SUM_SCALE;
}

static bool column_sum_build(struct call *call, int i_shape)
{
  struct lade_column_sum_args *a = (void *)&call->args;
  struct shape s;
  if (!shape_get(call, i_shape / 2, &s))
    return false;
  *a = (struct lade_column_sum_args){.dtype = call->dtype, .m = s.n, .n = s.d, .accumulate = i_shape % 2};
  call_in(call, &a->x, call->dtype, s.n * s.d)->limit = SUM_LIMIT;
  call_inout(call, &a->sum, NULL, accumulator_of(call->dtype), s.d, 4, 1e-6)->scale = SUM_SCALE;
  call_workspace(call, &a->workspace);
  call->traffic_bytes = bytes_of(call, (double)(s.n * s.d));
  return true;
}

/* Return the first token: every other shape has a part of the vocabulary, with tokens before and past it. */
static int64_t first_token(const struct call *call, int i_shape)
{
  return !call->is_bench && i_shape / 2 % 2 ? 5 : 0;
}

static bool embed_fwd_build(struct call *call, int i_shape)
{
  struct lade_embed_fwd_args *a = (void *)&call->args;
  struct shape s;
  if (!shape_get(call, i_shape / 2, &s))
    return false;
  int64_t batch = s.n > 1 ? 2 : 1, seq_len = LADE_MAX(1, s.n / 2), vocabulary = call->is_bench ? 256 : 13;
  *a = (struct lade_embed_fwd_args){.dtype = call->dtype, .batch = batch, .seq_len = seq_len, .d = s.d,
                                    .vocabulary = vocabulary, .first_token = first_token(call, i_shape)};
  struct operand *tokens = call_in(call, &a->tokens, LADE_I32, batch * seq_len);
  tokens->fill = FILL_INDEX;
  tokens->limit = (double)(vocabulary + 2 * a->first_token);
  call_in(call, &a->token_table, call->dtype, vocabulary * s.d);
  if (i_shape % 2)
    call_in(call, &a->position_table, call->dtype, seq_len * s.d);
  const bool is_later_part = a->first_token && i_shape / 4 > 0, is_in_place = i_shape / 4 % 2; /* of a table */
  if (is_later_part && is_in_place) {
    call_inout(call, &a->x, &a->before, call->dtype, batch * seq_len * s.d, 0, 0);
  } else {
    if (is_later_part)
      call_in(call, &a->before, call->dtype, batch * seq_len * s.d);
    call_out(call, &a->x, call->dtype, batch * seq_len * s.d, 0, 0);
  }
  call->traffic_bytes = bytes_of(call, (double)(batch * seq_len * s.d) * 2);
  return true;
}

/*
 * Rows of so few tokens that each has several pieces, and runs end and begin anywhere. Every other shape has ten more
 * tokens. Most in one dtype, because a fake GPU takes seconds for them.
 */
static const struct frequent_shape {
  enum lade_dtype dtype;
  struct shape shape;
  int64_t vocabulary;
} frequent_shapes[] = {{LADE_F32, {800, 8}, 1}, {LADE_BF16, {450, 24}, 3}, {LADE_BF16, {900, 5}, 3},
                       {LADE_F32, {300, 17}, 2}, {LADE_F16, {300, 17}, 2}, {LADE_F64, {450, 24}, 3}};

/* Return the shape number @at of those in @dtype, or NULL. */
static const struct frequent_shape *frequent_shape_get(enum lade_dtype dtype, int at)
{
  for (int i = 0; i < (int)LADE_COUNT(frequent_shapes) && at >= 0; i++) {
    if (frequent_shapes[i].dtype == dtype && at-- == 0)
      return &frequent_shapes[i];
  }
  return NULL;
}

static bool embed_bwd_build(struct call *call, int i_shape)
{
  struct lade_embed_bwd_args *a = (void *)&call->args;
  struct shape s;
  enum lade_dtype accumulator = accumulator_of(call->dtype);
  const struct frequent_shape *frequent =
      call->is_bench ? NULL : frequent_shape_get(call->dtype, i_shape / 2 - (int)LADE_COUNT(shapes));
  int64_t vocabulary = call->is_bench ? 256 : 13;
  if (frequent) {
    s = frequent->shape;
    vocabulary = frequent->vocabulary;
  } else if (!shape_get(call, i_shape / 2, &s)) {
    return false;
  }
  int64_t batch = s.n > 1 ? 2 : 1, seq_len = LADE_MAX(1, s.n / 2);
  bool accumulate = i_shape % 2;
  *a = (struct lade_embed_bwd_args){.dtype = call->dtype, .batch = batch, .seq_len = seq_len, .d = s.d,
                                    .vocabulary = vocabulary, .first_token = first_token(call, i_shape),
                                    .positions = seq_len + 3, .accumulate_token = accumulate,
                                    .accumulate_position = accumulate};
  struct operand *tokens = call_in(call, &a->tokens, LADE_I32, batch * seq_len);
  tokens->fill = FILL_INDEX;
  tokens->limit = (double)(vocabulary + 2 * a->first_token);
  call_in(call, &a->dx, call->dtype, batch * seq_len * s.d)->limit = SUM_LIMIT;
  sum_out(call, &a->d_token_table, NULL, accumulator, vocabulary * s.d, 4, 1e-6, SUM_LIMIT);
  if (s.d != 17)
    sum_out(call, &a->d_position_table, NULL, accumulator, a->positions * s.d, 4, 1e-6, SUM_LIMIT);
  call_workspace(call, &a->workspace);
  call->traffic_bytes = bytes_of(call, (double)(batch * seq_len * s.d) * 2);
  return true;
}

static bool norm_fwd_build(struct call *call, int i_shape)
{
  struct lade_norm_fwd_args *a = (void *)&call->args;
  enum lade_dtype accumulator = accumulator_of(call->dtype);
  struct norm_shape s;
  if (!norm_shape_get(call, i_shape, false, &s))
    return false;
  int64_t n = s.shape.n, d = s.shape.d;
  /* Thousands of rows of three numbers: in some they nearly coincide. A large eps keeps the mean's rounding small. */
  const float eps = d < 8 ? 1 : 1e-5f;
  *a = (struct lade_norm_fwd_args){.dtype = call->dtype, .kind = s.kind, .n = n, .d = d, .eps = eps,
                                   .weight_offset = s.kind == LADE_NORM_RMS && s.is_in_place};
  call_in(call, &a->x, call->dtype, n * d)->limit = s.is_in_place ? 1 : SUM_LIMIT;
  call_in(call, &a->weight, call->dtype, d)->limit = 8;
  if (s.kind == LADE_NORM_LAYER) {
    call_in(call, &a->bias, call->dtype, d)->limit = 8;
    call_out(call, &a->mean, accumulator, n, 4, 1e-6)->scale = SUM_SCALE;
  }
  call_out(call, &a->rstd, accumulator, n, 64, 1e-6);
  call_out(call, &a->y, call->dtype, n * d, 1, 4e-6)->scale = SUM_SCALE;
  call->traffic_bytes = bytes_of(call, (double)(n * d) * 2);
  return true;
}

/* A column's sum over @n rows. Random terms cancel: sums of a great many are as large as the root of their number. */
static void rows_out(struct call *call, const void *field, int64_t n, int64_t d)
{
  sum_out(call, field, NULL, accumulator_of(call->dtype), d, 4, 2e-6, 64);
  call->operands[call->n_operands - 1].scale = SUM_SCALE * fmax(1, sqrt((double)n / N_TERMS));
}

static bool norm_bwd_build(struct call *call, int i_shape)
{
  struct lade_norm_bwd_args *a = (void *)&call->args;
  enum lade_dtype accumulator = accumulator_of(call->dtype);
  struct norm_shape s;
  if (!norm_shape_get(call, i_shape, false, &s))
    return false;
  int64_t n = s.shape.n, d = s.shape.d;
  *a = (struct lade_norm_bwd_args){.dtype = call->dtype, .kind = s.kind, .n = n, .d = d,
                                   .accumulate = s.is_in_place, .weight_offset = s.kind == LADE_NORM_RMS &&
                                       s.is_in_place};
  call_in(call, &a->x, call->dtype, n * d)->limit = 64;
  call_in(call, &a->dy, call->dtype, n * d)->limit = 64;
  call_in(call, &a->weight, call->dtype, d)->limit = 64;
  if (s.kind == LADE_NORM_LAYER) {
    call_in(call, &a->mean, accumulator, n)->limit = 64;
    rows_out(call, &a->d_bias, n, d);
  }
  call_in(call, &a->rstd, accumulator, n)->fill = FILL_POSITIVE;
  rows_out(call, &a->d_weight, n, d);
  if (s.is_in_place) {
    sum_out(call, &a->dx, &a->d_residual, call->dtype, n * d, 1, 4e-6, 64);
  } else {
    if (call->is_bench || d != 17)
      call_in(call, &a->d_residual, call->dtype, n * d)->limit = 64;
    call_out(call, &a->dx, call->dtype, n * d, 1, 4e-6)->scale = SUM_SCALE;
  }
  call_workspace(call, &a->workspace);
  call->traffic_bytes = bytes_of(call, (double)(n * d) * 4);
  return true;
}

/* Make dropout: half of the elements stay; the first element is not a multiple of the generator's four. */
static struct lade_drop drop_make(int i_shape)
{
  return i_shape % 2 ? (struct lade_drop){.drop_below = 0x40000000, .stream = 5, .scale = 4.0f / 3,
                                          .first_element = (1ULL << 34) + 3}
                     : (struct lade_drop){.scale = 1};
}

static bool residual_fwd_build(struct call *call, int i_shape)
{
  struct lade_residual_fwd_args *a = (void *)&call->args;
  enum lade_dtype accumulator = accumulator_of(call->dtype);
  struct norm_shape s;
  if (!norm_shape_get(call, i_shape / 2, true, &s))
    return false;
  int64_t n = s.shape.n, d = s.shape.d;
  *a = (struct lade_residual_fwd_args){.dtype = call->dtype, .kind = s.kind, .n = n, .d = d, .eps = 1e-3f,
                                       .drop = drop_make(i_shape)};
  /* The norm of a row of equal values is the mean's rounding error over sqrt(eps): limits keep both small. */
  call_in(call, &a->x, call->dtype, n * d)->limit = 1;
  if (d != 17)
    call_in(call, &a->bias, call->dtype, d)->limit = 1;
  if (s.is_in_place) {
    sum_out(call, &a->sum, &a->residual, call->dtype, n * d, 1, 1e-6, 1);
  } else {
    call_in(call, &a->residual, call->dtype, n * d)->limit = 1;
    call_out(call, &a->sum, call->dtype, n * d, 1, 1e-6)->scale = SUM_SCALE;
  }
  call->traffic_bytes = bytes_of(call, (double)(n * d) * (s.kind == LADE_NORM_NONE ? 3 : 4));
  if (s.kind == LADE_NORM_NONE)
    return true;
  /* A sum rounded to its neighbour in D moves the norm by as much: an ulp more than for the norm alone. */
  double share = call->dtype == LADE_F32 || call->dtype == LADE_F64 ? 8e-6 : call->dtype == LADE_F16 ? 2e-3 : 1.6e-2;
  call_in(call, &a->weight, call->dtype, d)->limit = 8;
  if (s.kind == LADE_NORM_LAYER) {
    call_in(call, &a->norm_bias, call->dtype, d)->limit = 8;
    call_out(call, &a->mean, accumulator, n, 64, share)->scale = SUM_SCALE;
  }
  call_out(call, &a->rstd, accumulator, n, 64, share);
  call_out(call, &a->y, call->dtype, n * d, 1, share)->scale = SUM_SCALE;
  return true;
}

static bool residual_bwd_build(struct call *call, int i_shape)
{
  struct lade_residual_bwd_args *a = (void *)&call->args;
  enum lade_dtype accumulator = accumulator_of(call->dtype);
  struct norm_shape s;
  if (!norm_shape_get(call, i_shape / 2, true, &s))
    return false;
  int64_t n = s.shape.n, d = s.shape.d;
  const bool has_d_sum = s.is_in_place || call->is_bench || d != 17;
  double share = call->dtype == LADE_F16 ? 1e-3 : call->dtype == LADE_BF16 ? 8e-3 : 4e-6;
  *a = (struct lade_residual_bwd_args){.dtype = call->dtype, .kind = s.kind, .n = n, .d = d,
                                       .drop = drop_make(i_shape), .accumulate = s.is_in_place};
  if (s.is_in_place) {
    sum_out(call, &a->d_residual, &a->d_sum, call->dtype, n * d, 1, 4e-6, 64);
  } else {
    if (has_d_sum)
      call_in(call, &a->d_sum, call->dtype, n * d)->limit = 64;
    call_out(call, &a->d_residual, call->dtype, n * d, 1, 4e-6)->scale = SUM_SCALE;
  }
  if (a->drop.drop_below)
    call_out(call, &a->dx, call->dtype, n * d, 2, 4e-6)->scale = SUM_SCALE;
  if (d != 33)
    sum_out(call, &a->d_x_bias, NULL, accumulator, d, 4, share, 64);
  if (has_d_sum && !call->is_bench && i_shape % 3 != 1)
    sum_out(call, &a->d_sum_bias, NULL, accumulator, d, 4, 2e-6, 64);
  call_workspace(call, &a->workspace);
  double n_tensors = (s.kind == LADE_NORM_NONE ? 2 : 4) + (a->drop.drop_below ? 1 : 0);
  call->traffic_bytes = bytes_of(call, (double)(n * d) * n_tensors);
  if (s.kind == LADE_NORM_NONE)
    return true;
  call_in(call, &a->dy, call->dtype, n * d)->limit = 64;
  call_in(call, &a->sum, call->dtype, n * d)->limit = 64;
  call_in(call, &a->weight, call->dtype, d)->limit = 64;
  call_in(call, &a->rstd, accumulator, n)->fill = FILL_POSITIVE;
  sum_out(call, &a->d_weight, NULL, accumulator, d, 4, 2e-6, 64);
  if (s.kind == LADE_NORM_LAYER) {
    call_in(call, &a->mean, accumulator, n)->limit = 64;
    sum_out(call, &a->d_norm_bias, NULL, accumulator, d, 4, 2e-6, 64);
  }
  return true;
}

static bool rope_build(struct call *call, int i_shape)
{
  static const struct {
    int64_t batch, seq_len, heads, n_kv_heads, head_dim;
  } sizes[] = {{1, 1, 1, 1, 2}, {2, 37, 3, 1, 6}, {1, 70, 4, 2, 32}, {3, 5, 2, 2, 34}, {2, 33, 6, 2, 64}},
    bench_sizes[] = {{16, 256, 6, 6, 64}, {2, 2048, 32, 8, 128}, {2, 2048, 32, 8, 128}};
  struct lade_rope_args *a = (void *)&call->args;
  int i = call->is_bench ? i_shape : i_shape / 8;
  if (i >= (int)(call->is_bench ? LADE_COUNT(bench_sizes) : LADE_COUNT(sizes)))
    return false;
  const bool is_interleaved = call->is_bench ? i_shape == 2 : i_shape / 4 % 2;
  *a = (struct lade_rope_args){.dtype = call->dtype, .base = 10000, .is_inverse = i_shape & 1,
                               .is_interleaved = is_interleaved};
  a->batch = call->is_bench ? bench_sizes[i].batch : sizes[i].batch;
  a->seq_len = call->is_bench ? bench_sizes[i].seq_len : sizes[i].seq_len;
  a->heads = call->is_bench ? bench_sizes[i].heads : sizes[i].heads;
  a->n_kv_heads = call->is_bench ? bench_sizes[i].n_kv_heads : sizes[i].n_kv_heads;
  a->head_dim = call->is_bench ? bench_sizes[i].head_dim : sizes[i].head_dim;
  static const float factors[32] = {1, 1.5f, 3, 9, 1.25f, 64, 2, 7, 1, 1, 4, 5.5f, 8, 2, 2, 2,
                                    3, 3,    3, 3, 31,    32, 1, 1, 2, 2, 5, 6,    7, 8, 9, 10};
  if (!call->is_bench && i_shape % 4 == 3 && a->head_dim >= 32) {
    a->kind = LADE_ROPE_LONGROPE;
    a->factors = factors;
    a->magnitude = 1.1875f;
  } else if (i_shape & 1) {
    a->scale_factor = 8;
    a->low = 1;
    a->high = 4;
    a->original_context = i % 2 ? 64 : 9;
    a->temperature_beta = i % 2 ? 0 : 0.3f; /* an attention temperature */
  } else if (!call->is_bench && i_shape & 2 && a->head_dim > 4) { /* a part of each head, in YaRN's form */
    a->rotary_dim = a->head_dim / 4 * 2;
    a->kind = LADE_ROPE_YARN;
    a->scale_factor = 4;
    a->low = 1;
    a->high = 3;
    a->magnitude = 1.25f;
  }
  int64_t n_elements = a->batch * a->seq_len * (a->heads + 2 * a->n_kv_heads) * a->head_dim;
  if (i_shape & 2 && !call->is_bench) {
    sum_out(call, &a->y, &a->x, call->dtype, n_elements, 1, 1e-6, 1e4);
  } else {
    call_in(call, &a->x, call->dtype, n_elements)->limit = 1e4;
    call_out(call, &a->y, call->dtype, n_elements, 1, 1e-6)->scale = SUM_SCALE;
  }
  call_workspace(call, &a->workspace);
  call->traffic_bytes = bytes_of(call, (double)n_elements * 2);
  return true;
}

static bool swiglu_fwd_build(struct call *call, int i_shape)
{
  struct lade_swiglu_fwd_args *a = (void *)&call->args;
  struct shape s;
  if (!shape_get(call, i_shape, &s))
    return false;
  *a = (struct lade_swiglu_fwd_args){.dtype = call->dtype, .n = s.n, .f = s.d};
  call_in(call, &a->x, call->dtype, 2 * s.n * s.d);
  call_out(call, &a->y, call->dtype, s.n * s.d, call->dtype == LADE_F32 ? 4 : 1, 0x1p-149);
  call->traffic_bytes = bytes_of(call, (double)(s.n * s.d) * 3);
  return true;
}

static bool swiglu_bwd_build(struct call *call, int i_shape)
{
  struct lade_swiglu_bwd_args *a = (void *)&call->args;
  struct shape s;
  if (!shape_get(call, i_shape / 2, &s))
    return false;
  *a = (struct lade_swiglu_bwd_args){.dtype = call->dtype, .n = s.n, .f = s.d};
  call_in(call, &a->dy, call->dtype, s.n * s.d)->limit = 64;
  if (i_shape % 2) {
    call_inout(call, &a->dx, &a->x, call->dtype, 2 * s.n * s.d, 1, 1e-6)->limit = 1e4;
  } else {
    call_in(call, &a->x, call->dtype, 2 * s.n * s.d)->limit = 1e4;
    call_out(call, &a->dx, call->dtype, 2 * s.n * s.d, 1, 1e-6);
  }
  call->traffic_bytes = bytes_of(call, (double)(s.n * s.d) * 5);
  return true;
}

static bool gated_fwd_build(struct call *call, int i_shape)
{
  struct lade_gated_fwd_args *a = (void *)&call->args;
  struct shape s;
  if (!shape_get(call, i_shape / 2, &s))
    return false;
  *a = (struct lade_gated_fwd_args){.dtype = call->dtype, .n = s.n, .f = s.d,
                                    .activation = i_shape % 2 ? LADE_GELU_ERF : LADE_GELU_TANH};
  call_in(call, &a->x, call->dtype, 2 * s.n * s.d)->limit = 6;
  call_out(call, &a->y, call->dtype, s.n * s.d, call->dtype == LADE_F32 ? 64 : 1, 1e-6);
  call->traffic_bytes = bytes_of(call, (double)(s.n * s.d) * 3);
  return true;
}

static bool gated_bwd_build(struct call *call, int i_shape)
{
  struct lade_gated_bwd_args *a = (void *)&call->args;
  struct shape s;
  if (!shape_get(call, i_shape / 2, &s))
    return false;
  *a = (struct lade_gated_bwd_args){.dtype = call->dtype, .n = s.n, .f = s.d,
                                    .activation = i_shape / 2 % 2 ? LADE_GELU_ERF : LADE_GELU_TANH};
  call_in(call, &a->dy, call->dtype, s.n * s.d)->limit = 1;
  if (i_shape % 2) {
    sum_out(call, &a->dx, &a->x, call->dtype, 2 * s.n * s.d, 1, 2e-6, 12);
  } else {
    call_in(call, &a->x, call->dtype, 2 * s.n * s.d)->limit = 12;
    call_out(call, &a->dx, call->dtype, 2 * s.n * s.d, 1, 2e-6)->scale = SUM_SCALE;
  }
  call->traffic_bytes = bytes_of(call, (double)(s.n * s.d) * 5);
  return true;
}

/* Rows of heads; the bits of i_shape: over all heads, with sums of ranks, in place. */
struct heads_shape {
  int64_t n, heads, n_kv_heads, head_dim;
};

static bool heads_shape_get(const struct call *call, int i, struct heads_shape *ret_shape)
{
  static const struct heads_shape sizes[] = {{1, 1, 1, 1},   {5, 3, 1, 7},    {37, 4, 2, 20},
                                             {19, 2, 2, 64}, {3, 8, 2, 129}, {3, 8, 2, 132},
                                             {17, 9, 1, 100}}; /* more heads of a block than a GPU's has in flight */
  static const struct heads_shape bench_sizes[] = {{4096, 32, 8, 128}};
  if (i >= (int)(call->is_bench ? LADE_COUNT(bench_sizes) : LADE_COUNT(sizes)))
    return false;
  *ret_shape = call->is_bench ? bench_sizes[i] : sizes[i];
  return true;
}

static bool qk_norm_fwd_build(struct call *call, int i_shape)
{
  struct lade_qk_norm_fwd_args *a = (void *)&call->args;
  enum lade_dtype accumulator = accumulator_of(call->dtype);
  struct heads_shape s;
  if (!heads_shape_get(call, i_shape / 4, &s))
    return false;
  *a = (struct lade_qk_norm_fwd_args){.dtype = call->dtype, .n = s.n, .heads = s.heads, .n_kv_heads = s.n_kv_heads,
                                      .head_dim = s.head_dim, .is_by_head = i_shape & 1, .eps = 1e-5f,
                                      .weight_offset = i_shape >> 1 & 1, .q_total = 2 * s.heads * s.head_dim,
                                      .k_total = 2 * s.n_kv_heads * s.head_dim};
  const int64_t n_elements = s.n * (s.heads + 2 * s.n_kv_heads) * s.head_dim;
  call_in(call, &a->q_weight, call->dtype, (a->is_by_head ? 1 : s.heads) * s.head_dim)->limit = 8;
  call_in(call, &a->k_weight, call->dtype, (a->is_by_head ? 1 : s.n_kv_heads) * s.head_dim)->limit = 8;
  call_in(call, &a->x, call->dtype, n_elements)->limit = 64;
  if (!a->is_by_head && i_shape & 2)
    call_in(call, &a->sums, accumulator, 2 * s.n)->fill = FILL_POSITIVE;
  call_out(call, &a->y, call->dtype, n_elements, 1, 4e-6)->scale = SUM_SCALE;
  call_out(call, &a->rstd, accumulator, s.n * (a->is_by_head ? s.heads + s.n_kv_heads : 2), 64, 1e-6);
  call->traffic_bytes = bytes_of(call, (double)n_elements * 2);
  return true;
}

static bool qk_norm_bwd_build(struct call *call, int i_shape)
{
  struct lade_qk_norm_bwd_args *a = (void *)&call->args;
  enum lade_dtype accumulator = accumulator_of(call->dtype);
  struct heads_shape s;
  if (!heads_shape_get(call, i_shape / 4, &s))
    return false;
  *a = (struct lade_qk_norm_bwd_args){.dtype = call->dtype, .n = s.n, .heads = s.heads, .n_kv_heads = s.n_kv_heads,
                                      .head_dim = s.head_dim, .is_by_head = i_shape & 1, .accumulate = i_shape & 1,
                                      .weight_offset = i_shape >> 1 & 1, .q_total = 2 * s.heads * s.head_dim,
                                      .k_total = 2 * s.n_kv_heads * s.head_dim};
  const int64_t n_elements = s.n * (s.heads + 2 * s.n_kv_heads) * s.head_dim;
  const int64_t q_width = (a->is_by_head ? 1 : s.heads) * s.head_dim;
  const int64_t k_width = (a->is_by_head ? 1 : s.n_kv_heads) * s.head_dim;
  call_in(call, &a->q_weight, call->dtype, q_width)->limit = 8;
  call_in(call, &a->k_weight, call->dtype, k_width)->limit = 8;
  call_in(call, &a->x, call->dtype, n_elements)->limit = 8;
  call_in(call, &a->rstd, accumulator, s.n * (a->is_by_head ? s.heads + s.n_kv_heads : 2))->fill = FILL_POSITIVE;
  if (!a->is_by_head && i_shape & 2)
    call_in(call, &a->dots, accumulator, 2 * s.n)->limit = 8;
  if (i_shape & 2) {
    sum_out(call, &a->dx, &a->dy, call->dtype, n_elements, 2, 8e-6, 8);
  } else {
    call_in(call, &a->dy, call->dtype, n_elements)->limit = 8;
    call_out(call, &a->dx, call->dtype, n_elements, 2, 8e-6)->scale = SUM_SCALE;
  }
  sum_out(call, &a->d_q_weight, NULL, accumulator, q_width, 4, 4e-6, 64);
  sum_out(call, &a->d_k_weight, NULL, accumulator, k_width, 4, 4e-6, 64);
  call_workspace(call, &a->workspace);
  call->traffic_bytes = bytes_of(call, (double)n_elements * 3);
  return true;
}

static bool qk_sums_build(struct call *call, int i_shape)
{
  struct lade_qk_sums_args *a = (void *)&call->args;
  struct heads_shape s;
  if (!heads_shape_get(call, i_shape, &s))
    return false;
  *a = (struct lade_qk_sums_args){.dtype = call->dtype, .n = s.n, .heads = s.heads, .n_kv_heads = s.n_kv_heads,
                                  .head_dim = s.head_dim, .n_copies = 1 + i_shape};
  call_in(call, &a->x, call->dtype, s.n * (s.heads + 2 * s.n_kv_heads) * s.head_dim)->limit = 64;
  call_out(call, &a->sums, accumulator_of(call->dtype), 2 * s.n, 16, 2e-6);
  return true;
}

static bool qk_dots_build(struct call *call, int i_shape)
{
  struct lade_qk_dots_args *a = (void *)&call->args;
  enum lade_dtype accumulator = accumulator_of(call->dtype);
  struct heads_shape s;
  if (!heads_shape_get(call, i_shape, &s))
    return false;
  *a = (struct lade_qk_dots_args){.dtype = call->dtype, .n = s.n, .heads = s.heads, .n_kv_heads = s.n_kv_heads,
                                  .head_dim = s.head_dim, .weight_offset = i_shape & 1};
  const int64_t n_elements = s.n * (s.heads + 2 * s.n_kv_heads) * s.head_dim;
  call_in(call, &a->dy, call->dtype, n_elements)->limit = 8;
  call_in(call, &a->x, call->dtype, n_elements)->limit = 8;
  call_in(call, &a->q_weight, call->dtype, s.heads * s.head_dim)->limit = 8;
  call_in(call, &a->k_weight, call->dtype, s.n_kv_heads * s.head_dim)->limit = 8;
  call_in(call, &a->rstd, accumulator, 2 * s.n)->fill = FILL_POSITIVE;
  call_out(call, &a->dots, accumulator, 2 * s.n, 16, 8e-6)->scale = 64 * SUM_SCALE;
  return true;
}

static const struct op ops[] = {
    {"column_sum", LADE_K_COLUMN_SUM, column_sum_build},
    {"embed_fwd", LADE_K_EMBED_FWD, embed_fwd_build},
    {"embed_bwd", LADE_K_EMBED_BWD, embed_bwd_build},
    {"norm_fwd", LADE_K_NORM_FWD, norm_fwd_build},
    {"norm_bwd", LADE_K_NORM_BWD, norm_bwd_build},
    {"residual_fwd", LADE_K_RESIDUAL_FWD, residual_fwd_build},
    {"residual_bwd", LADE_K_RESIDUAL_BWD, residual_bwd_build},
    {"rope", LADE_K_ROPE, rope_build},
    {"swiglu_fwd", LADE_K_SWIGLU_FWD, swiglu_fwd_build},
    {"swiglu_bwd", LADE_K_SWIGLU_BWD, swiglu_bwd_build},
    {"gated_fwd", LADE_K_GATED_FWD, gated_fwd_build},
    {"gated_bwd", LADE_K_GATED_BWD, gated_bwd_build},
    {"qk_sums", LADE_K_QK_SUMS, qk_sums_build},
    {"qk_norm_fwd", LADE_K_QK_NORM_FWD, qk_norm_fwd_build},
    {"qk_dots", LADE_K_QK_DOTS, qk_dots_build},
    {"qk_norm_bwd", LADE_K_QK_NORM_BWD, qk_norm_bwd_build},
};
const struct op_set row_ops = {ops, LADE_COUNT(ops)};
