/* SPDX-License-Identifier: Apache-2.0 */
/* Norm, clip and update: the three ops whose bits are the same in every variant, also for hostile values. */
#include "harness.h"

#include <float.h>
#include <math.h>

#include "base/base.h"
#include "base/float.h"

static const int64_t sizes[] = {1, 17, 1009, 32768 + 5, 65536, 131073};
static const int64_t bench_sizes[] = {4096 * 384, 4096 * 4096};

static bool size_get(const struct call *call, int i_shape, int64_t *ret_n)
{
  int n_sizes = call->is_bench ? LADE_COUNT(bench_sizes) : LADE_COUNT(sizes);
  if (i_shape >= n_sizes)
    return false;
  *ret_n = call->is_bench ? bench_sizes[i_shape] : sizes[i_shape];
  return true;
}

static bool sum_squares_build(struct call *call, int i_shape)
{
  struct lade_sum_squares_args *a = (void *)&call->args;
  int64_t n;
  if ((call->dtype != LADE_F32 && call->dtype != LADE_BF16) || !size_get(call, i_shape, &n))
    return false;
  *a = (struct lade_sum_squares_args){.dtype = call->dtype, .n_elements = n};
  call_in(call, &a->grad, call->dtype, n);
  call_out(call, &a->partial, LADE_F64, lade_div_up(n, LADE_SUM_BLOCK), 0, 0);
  call->traffic_bytes = (double)n * (double)lade_dtype_bytes(call->dtype);
  return true;
}

static bool clip_build(struct call *call, int i_shape)
{
  struct lade_clip_args *a = (void *)&call->args;
  static const int64_t n_partials[] = {1, 8, 9, 1009};
  if (call->is_bench || call->dtype != LADE_F32 || i_shape >= (int)LADE_COUNT(n_partials))
    return false;
  *a = (struct lade_clip_args){.n_partials = n_partials[i_shape]};
  call_in(call, &a->partial, LADE_F64, n_partials[i_shape])->fill = FILL_SQUARE;
  call_out(call, &a->clip_result, LADE_U8, sizeof(struct lade_clip_result), 0, 0);
  return true;
}

static bool tree_sum_build(struct call *call, int i_shape)
{
  struct lade_tree_sum_args *a = (void *)&call->args;
  static const int64_t n[] = {0, 1, 8, 9, 1009, 70001};
  if (call->is_bench || call->dtype != LADE_F32 || i_shape >= (int)LADE_COUNT(n))
    return false;
  *a = (struct lade_tree_sum_args){.n = n[i_shape]};
  call_in(call, &a->x, LADE_F64, n[i_shape])->fill = FILL_SQUARE;
  call_out(call, &a->sum, LADE_F64, 1, 0, 0);
  return true;
}

static void clip_result_set(struct call *call, float factor, bool is_skipped)
{
  struct lade_clip_result *clip_result = call->operands[0].data;
  *clip_result = (struct lade_clip_result){.norm = 1, .factor = factor, .is_skipped = is_skipped};
}

/* Add denormal, huge, signed zero and infinite values, cycled with coprime periods. */
static void hostile_values_put(struct call *call)
{
  static const float values[] = {0.0f, -0.0f, 0x1p-149f, -0x1p-130f, FLT_MIN, 1e-20f, 3e19f, -1e30f, FLT_MAX, 1, -0.5f};
  struct operand *grad = &call->operands[1], *m = &call->operands[2], *v = &call->operands[3];
  for (int64_t i = 0; i < grad->n_elements; i += 3) {
    element_set(grad->dtype, grad->data, i, (double)values[i % 11]);
    ((float *)m->data)[i] = values[i / 11 % 11];
    ((float *)v->data)[i] = fabsf(values[i / 121 % 11]);
  }
  if (grad->n_elements)
    ((float *)m->data)[grad->n_elements - 1] = lade_f32_from_bits(0x7fffffff); /* the NaN that GPUs make */
}

static void adamw_setup(struct call *call, struct lade_step *step)
{
  step->lr = 3e-4f;
  clip_result_set(call, 0.37f, false);
  hostile_values_put(call);
}

static void adamw_skip_setup(struct call *call, struct lade_step *step)
{
  struct operand *grad = &call->operands[1];
  clip_result_set(call, 0, true);
  element_set(grad->dtype, grad->data, grad->n_elements / 2, NAN);
  element_set(grad->dtype, grad->data, 0, INFINITY);
}

static void adamw_bench_setup(struct call *call, struct lade_step *step)
{
  clip_result_set(call, 1, false);
}

/* Build four calls per size: F32 and BF16 gradients, updated and skipped, with and without decay. */
static bool adamw_build(struct call *call, int i_shape)
{
  struct lade_adamw_args *a = (void *)&call->args;
  int64_t n;
  if (call->dtype == LADE_F64 || !size_get(call, i_shape / 4, &n))
    return false;
  *a = (struct lade_adamw_args){.dtype = call->dtype, .grad_dtype = i_shape & 1 ? LADE_BF16 : LADE_F32,
                                .n_elements = n, .has_decay = i_shape % 4 != 3};
  struct operand *clip_result = call_in(call, &a->clip_result, LADE_U8, sizeof(struct lade_clip_result));
  clip_result->fill = FILL_NONE;
  call_in(call, &a->grad, a->grad_dtype, n);
  call_inout(call, &a->m, NULL, LADE_F32, n, 0, 0);
  call_inout(call, &a->v, NULL, LADE_F32, n, 0, 0)->fill = FILL_SQUARE;
  call_inout(call, &a->weight, NULL, call->dtype, n, 0, 0)->limit = 1e30;
  if (call->dtype == LADE_BF16)
    call_inout(call, &a->residual, NULL, LADE_I16, n, 0, 0)->limit = 32767;
  else if (call->dtype == LADE_F16)
    call_inout(call, &a->residual, NULL, LADE_F32, n, 0, 0)->limit = 1e30;
  call->setup = call->is_bench ? adamw_bench_setup : i_shape % 4 == 2 ? adamw_skip_setup : adamw_setup;
  call->traffic_bytes = (double)n * (16 + (call->dtype == LADE_F16 ? 12 : 8) +
                                     (double)lade_dtype_bytes(a->grad_dtype));
  return true;
}

/* Declare an operand of random bytes: codes and exponents of moments, and 8-bit residuals. */
static void bytes_inout(struct call *call, const void *field, int64_t n)
{
  struct operand *operand = call_inout(call, field, NULL, LADE_U8, n, 0, 0);
  operand->fill = FILL_INDEX;
  operand->limit = 256;
}

static void compact_moments_add(struct call *call, struct lade_adamw_args *a)
{
  if (a->moments == LADE_MOMENTS_8BIT) {
    bytes_inout(call, &a->m, a->n_elements);
    bytes_inout(call, &a->v, a->n_elements);
    bytes_inout(call, &a->m_scales, lade_div_up(a->n_elements, LADE_MOMENT_BLOCK));
    bytes_inout(call, &a->v_scales, lade_div_up(a->n_elements, LADE_MOMENT_BLOCK));
    return;
  }
  enum lade_dtype dtype = a->moments == LADE_MOMENTS_BF16 ? LADE_BF16 : LADE_F32;
  call_inout(call, &a->m, NULL, dtype, a->n_elements, 0, 0)->limit = 1e30;
  struct operand *v = call_inout(call, &a->v, NULL, dtype, a->n_elements, 0, 0);
  v->fill = FILL_SQUARE;
  v->limit = 1e30;
}

/* Set gradients of every size within one block, so that codes of all kinds result. */
static void compact_setup(struct call *call, struct lade_step *step)
{
  struct operand *grad = &call->operands[1];
  clip_result_set(call, 0.37f, false);
  for (int64_t i = 0; i < grad->n_elements; i += 2)
    element_set(grad->dtype, grad->data, i, ldexp(i % 4 ? 1.375 : -1.75, (int)(i * 7 % 90) - 80));
}

static void compact_skip_setup(struct call *call, struct lade_step *step)
{
  clip_result_set(call, 0, true);
  element_set(call->operands[1].dtype, call->operands[1].data, 0, NAN);
}

/* Build each compact form, with F32 and BF16 gradients, and skipped; in the bench the forms that are timed. */
static bool adamw_compact_build(struct call *call, int i_shape)
{
  struct lade_adamw_args *a = (void *)&call->args;
  enum { N_FORMS = 5, N_KINDS = 3 };
  static const enum lade_moments moments[N_FORMS] = {LADE_MOMENTS_BF16, LADE_MOMENTS_8BIT, LADE_MOMENTS_F32,
                                                     LADE_MOMENTS_BF16, LADE_MOMENTS_8BIT};
  int form = i_shape / N_KINDS % N_FORMS, kind = i_shape % N_KINDS;
  int64_t n;
  if (call->dtype == LADE_F64 || !size_get(call, i_shape / (N_FORMS * N_KINDS), &n))
    return false;
  bool is_24bit = form >= 2 && call->dtype == LADE_BF16;
  *a = (struct lade_adamw_args){
      .dtype = call->dtype, .grad_dtype = kind == 0 ? LADE_F32 : LADE_BF16, .moments = moments[form],
      .master = is_24bit ? LADE_MASTER_24BIT : LADE_MASTER_EXACT, .n_elements = n, .has_decay = form != 1,
      .stream = 77, .first_element = UINT64_C(512) << (form * 8)};
  call_in(call, &a->clip_result, LADE_U8, sizeof(struct lade_clip_result))->fill = FILL_NONE;
  call_in(call, &a->grad, a->grad_dtype, n)->limit = 1e18;
  compact_moments_add(call, a);
  call_inout(call, &a->weight, NULL, call->dtype, n, 0, 0)->limit = 1e30;
  if (is_24bit)
    bytes_inout(call, &a->residual, n);
  else if (call->dtype != LADE_F32)
    call_inout(call, &a->residual, NULL, call->dtype == LADE_BF16 ? LADE_I16 : LADE_F32, n, 0, 0)->limit = 32767;
  call->setup = call->is_bench ? adamw_bench_setup : kind == 2 ? compact_skip_setup : compact_setup;
  for (int i = 1; i < call->n_operands; i++)
    call->traffic_bytes += (double)call->operands[i].n_elements *
                           (double)lade_dtype_bytes(call->operands[i].dtype) * (i == 1 ? 1 : 2);
  return true;
}

static const struct op ops[] = {
    {"sum_squares", LADE_K_SUM_SQUARES, sum_squares_build},
    {"clip", LADE_K_CLIP, clip_build},
    {"tree_sum", LADE_K_TREE_SUM, tree_sum_build},
    {"adamw", LADE_K_ADAMW, adamw_build},
    {"adamw_compact", LADE_K_ADAMW, adamw_compact_build},
};
const struct op_set optimizer_ops = {ops, LADE_COUNT(ops)};
