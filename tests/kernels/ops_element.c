/* SPDX-License-Identifier: Apache-2.0 */
/* The elementwise ops: dropout, gelu, add, cast, rank_sum, copy. All exact but gelu: a few ulp of F32. */
#include "harness.h"

#include <math.h>

#include "base/base.h"

static const int64_t sizes[] = {1, 15, 16, 17, 1009, 32768 + 5, 70001};
static const int64_t bench_sizes[] = {4096 * 384, 4096 * 1536, 4096 * 4096};

static bool size_get(const struct call *call, int i_shape, int64_t *ret_n)
{
  int n_sizes = call->is_bench ? LADE_COUNT(bench_sizes) : LADE_COUNT(sizes);
  if (i_shape >= n_sizes)
    return false;
  *ret_n = call->is_bench ? bench_sizes[i_shape] : sizes[i_shape];
  return true;
}

static bool dropout_build(struct call *call, int i_shape)
{
  struct lade_dropout_args *a = (void *)&call->args;
  int64_t n;
  if (!size_get(call, i_shape / 2, &n))
    return false;
  *a = (struct lade_dropout_args){
      .dtype = call->dtype, .n_elements = n, .drop = {0x1999999a, 9, 1 / 0.9f, (uint64_t)i_shape * 0x3fffffff}};
  if (i_shape % 2) {
    call_inout(call, &a->y, &a->x, call->dtype, n, 0, 0);
  } else {
    call_in(call, &a->x, call->dtype, n);
    call_out(call, &a->y, call->dtype, n, 0, 0);
  }
  call->traffic_bytes = (double)n * 2 * (double)lade_dtype_bytes(call->dtype);
  return true;
}

static bool gelu_fwd_build(struct call *call, int i_shape)
{
  struct lade_gelu_fwd_args *a = (void *)&call->args;
  int64_t n;
  if (!size_get(call, i_shape / 2, &n))
    return false;
  *a = (struct lade_gelu_fwd_args){.dtype = call->dtype, .n_elements = n};
  double ulps = call->dtype == LADE_F32 ? 8 : 1, relative = 1e-7;
  if (i_shape % 2) {
    call_inout(call, &a->y, &a->x, call->dtype, n, ulps, relative);
  } else {
    call_in(call, &a->x, call->dtype, n)->limit = 12;
    call_out(call, &a->y, call->dtype, n, ulps, relative);
  }
  call->traffic_bytes = (double)n * 2 * (double)lade_dtype_bytes(call->dtype);
  return true;
}

static const enum lade_activation activations[] = {LADE_SILU,       LADE_GELU_TANH, LADE_GELU_ERF,
                                                   LADE_GELU_QUICK, LADE_RELU,      LADE_RELU_SQUARED,
                                                   LADE_CLAMP,      LADE_SCALE};

/* Every activation over each size, in place and not. */
static bool activation_fwd_build(struct call *call, int i_shape)
{
  struct lade_activation_fwd_args *a = (void *)&call->args;
  const int n_activations = LADE_COUNT(activations);
  int64_t n;
  if (!size_get(call, i_shape / n_activations, &n))
    return false;
  *a = (struct lade_activation_fwd_args){.dtype = call->dtype, .n_elements = n, .limit = 1.5f,
                                         .activation = activations[i_shape % n_activations]};
  double ulps = call->dtype == LADE_F32 ? 64 : 1, relative = 1e-6; /* a tail's exponent has rounding errors of x^2 */
  if (i_shape % 2) {
    call_inout(call, &a->y, &a->x, call->dtype, n, ulps, relative)->limit = 6;
  } else {
    call_in(call, &a->x, call->dtype, n)->limit = 6;
    call_out(call, &a->y, call->dtype, n, ulps, relative);
  }
  call->traffic_bytes = (double)n * 2 * (double)lade_dtype_bytes(call->dtype);
  return true;
}

#define TERM_SCALE 0.2 /* of inputs around 1: the slope's two terms where they cancel, at x = -0.75 */

static bool gelu_bwd_build(struct call *call, int i_shape)
{
  struct lade_gelu_bwd_args *a = (void *)&call->args;
  int64_t n;
  if (!size_get(call, i_shape / 2, &n))
    return false;
  *a = (struct lade_gelu_bwd_args){.dtype = call->dtype, .n_elements = n};
  call_in(call, &a->x, call->dtype, n);
  struct operand *dx;
  if (i_shape % 2) {
    dx = call_inout(call, &a->dx, &a->dy, call->dtype, n, 1, 1e-6);
    dx->limit = 1e4;
  } else {
    call_in(call, &a->dy, call->dtype, n)->limit = 1e4;
    dx = call_out(call, &a->dx, call->dtype, n, 1, 1e-6);
  }
  dx->scale = TERM_SCALE;
  call->traffic_bytes = (double)n * 3 * (double)lade_dtype_bytes(call->dtype);
  return true;
}

static bool activation_bwd_build(struct call *call, int i_shape)
{
  struct lade_activation_bwd_args *a = (void *)&call->args;
  const int n_activations = LADE_COUNT(activations);
  int64_t n;
  if (!size_get(call, i_shape / n_activations, &n))
    return false;
  *a = (struct lade_activation_bwd_args){.dtype = call->dtype, .n_elements = n, .limit = 1.5f,
                                         .activation = activations[i_shape % n_activations]};
  call_in(call, &a->x, call->dtype, n)->limit = 1e4;
  struct operand *dx;
  if (i_shape % 2) {
    dx = call_inout(call, &a->dx, &a->dy, call->dtype, n, 1, 2e-6);
    dx->limit = 1;
  } else {
    call_in(call, &a->dy, call->dtype, n)->limit = 1;
    dx = call_out(call, &a->dx, call->dtype, n, 1, 2e-6);
  }
  dx->scale = TERM_SCALE;
  call->traffic_bytes = (double)n * 3 * (double)lade_dtype_bytes(call->dtype);
  return true;
}

static bool add_build(struct call *call, int i_shape)
{
  struct lade_add_args *a = (void *)&call->args;
  int64_t n;
  if (call->dtype != LADE_F32 || !size_get(call, i_shape, &n))
    return false;
  *a = (struct lade_add_args){.n_elements = n};
  call_in(call, &a->x, LADE_F32, n);
  call_inout(call, &a->y, NULL, LADE_F32, n, 0, 0);
  call->traffic_bytes = (double)n * 12;
  return true;
}

/* Add halfway cases, infinities and NaNs, which no pattern has. */
static void cast_setup(struct call *call, struct lade_step *step)
{
  static const double special[] = {1 + 0x1p-8, 1 + 3 * 0x1p-8, 1 + 0x1p-11, 65504, 65519.996, 65520,
                                   0x1p-25, 0x1.8p-24, 0x1p-14, 0x1.ffcp-15, 1e300, -1e300};
  struct operand *x = &call->operands[0];
  double nan = (double)NAN;
  for (int64_t i = 0; i + 1 < x->n_elements && i < (int64_t)LADE_COUNT(special); i++)
    element_set(x->dtype, x->data, i, special[i]);
  element_set(x->dtype, x->data, x->n_elements - 1, nan);
}

static bool cast_build(struct call *call, int i_shape)
{
  struct lade_cast_args *a = (void *)&call->args;
  static const enum lade_dtype to[] = {LADE_F32, LADE_BF16, LADE_F16, LADE_F64};
  int64_t n;
  int n_types = call->is_bench ? 2 : (int)LADE_COUNT(to);
  if (!size_get(call, i_shape / n_types, &n))
    return false;
  *a = (struct lade_cast_args){.from = call->dtype, .to = to[i_shape % n_types], .n_elements = n};
  call_in(call, &a->x, a->from, n);
  call_out(call, &a->y, a->to, n, 0, 0);
  call->setup = cast_setup;
  call->traffic_bytes = (double)n * (double)(lade_dtype_bytes(a->from) + lade_dtype_bytes(a->to));
  return true;
}

/* The terms are contiguous. The pointers to them are set after the arguments, once the data has its address. */
#define TERMS 8
#define TERMS_AT 128

static void rank_sum_setup(struct call *call, struct lade_step *step)
{
  struct lade_rank_sum_args *a = (void *)&call->args;
  size_t bytes = (size_t)a->n_elements * lade_dtype_bytes(a->dtype);
  const void **terms = (void *)(call->args.bytes + TERMS_AT);
  for (int i = 0; i < a->n_terms; i++)
    terms[i] = (const char *)call->operands[0].data + (size_t)i * bytes;
  a->x = terms;
}

static bool rank_sum_build(struct call *call, int i_shape)
{
  static const int counts[] = {1, 2, 3, 8};
  struct lade_rank_sum_args *a = (void *)&call->args;
  int n_counts = call->is_bench ? 1 : (int)LADE_COUNT(counts);
  int64_t n;
  if (call->dtype == LADE_F64 || !size_get(call, i_shape / n_counts, &n))
    return false;
  *a = (struct lade_rank_sum_args){.dtype = call->dtype, .n_elements = n};
  a->n_terms = call->is_bench ? TERMS : counts[i_shape % n_counts];
  call_in(call, &a->x, call->dtype, n * a->n_terms);
  call_out(call, &a->y, call->dtype, n, 0, 0);
  call->setup = rank_sum_setup;
  call->traffic_bytes = (double)n * (a->n_terms + 1) * (double)lade_dtype_bytes(call->dtype);
  return true;
}

static bool copy_build(struct call *call, int i_shape)
{
  struct lade_copy_args *a = (void *)&call->args;
  int64_t n;
  if (call->dtype == LADE_F64 || !size_get(call, i_shape, &n))
    return false;
  *a = (struct lade_copy_args){.n_bytes = n * (int64_t)lade_dtype_bytes(call->dtype)};
  call_in(call, &a->x, call->dtype, n);
  call_out(call, &a->y, call->dtype, n, 0, 0);
  call->traffic_bytes = (double)a->n_bytes * 2;
  return true;
}

static const struct op ops[] = {
    {"dropout", LADE_K_DROPOUT, dropout_build},
    {"gelu_fwd", LADE_K_GELU_FWD, gelu_fwd_build},
    {"activation_fwd", LADE_K_ACTIVATION_FWD, activation_fwd_build},
    {"activation_bwd", LADE_K_ACTIVATION_BWD, activation_bwd_build},
    {"gelu_bwd", LADE_K_GELU_BWD, gelu_bwd_build},
    {"add", LADE_K_ADD, add_build},
    {"cast", LADE_K_CAST, cast_build},
    {"rank_sum", LADE_K_RANK_SUM, rank_sum_build},
    {"copy", LADE_K_COPY, copy_build},
};
const struct op_set element_ops = {ops, LADE_COUNT(ops)};
