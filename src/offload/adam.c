/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lade/adam.h: the AdamW kernel behind an opaque handle, for callers with their own memory and files.
 *
 * A handle is a pool and a table of kernels. A shard's struct holds all its state, so no state here can differ from the
 * caller's. The struct is checked here, and the kernels do not check it again. Each form is one row of element widths.
 * A pointer must not be NULL if its form needs a non-zero number of bytes.
 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "base/cpu.h"
#include "base/fork_guard.h"
#include "base/moments.h"
#include "kernels/kernels.h"
#include "lade/adam.h"

#define THREADS_MAX 1024 /* more is a mistake of the caller */
#define ELEMENTS_MAX (INT64_C(1) << 44) /* of a shard: the sum of its bytes does not overflow */
#define PIECE_ELEMENTS 32768 /* of one task; a multiple of draw runs and of blocks */

_Static_assert(LADE_ADAM_SHARD_ELEMENTS == LADE_DRAW_RUN && PIECE_ELEMENTS % LADE_DRAW_RUN == 0,
               "a shard and a piece begin a run of draws");

struct lade_adam {
  _Atomic int *is_alive; /* 0 in a child of fork, which does not have the pool's threads */
  struct lade_kernels kernels;
  lade_pool *pool;
};

int lade_adam_create(int n_threads, struct lade_error *error, lade_adam **ret_adam)
{
  if (!ret_adam)
    return lade_error_set(error, -EINVAL, "lade_adam_create: ret_adam is NULL");
  if (n_threads < 0 || n_threads > THREADS_MAX)
    return lade_error_set(error, -EINVAL, "lade_adam_create: %d threads: 0 for all, or at most %d", n_threads,
                          THREADS_MAX);
  lade_adam *adam = calloc(1, sizeof(*adam));
  if (!adam)
    return lade_error_set(error, -ENOMEM, "lade_adam_create: out of memory");
  adam->is_alive = lade_fork_guard_create();
  int status = adam->is_alive ? lade_pool_create(n_threads, &adam->pool) : -ENOMEM;
  if (status) {
    lade_fork_guard_destroy(adam->is_alive);
    free(adam);
    return lade_error_set(error, status, "lade_adam_create: the machine refused threads (%s)", strerror(-status));
  }
  struct lade_cpu cpu = lade_cpu_get();
  lade_kernels_init(&adam->kernels, &cpu);
  *ret_adam = adam;
  return 0;
}

void lade_adam_destroy(lade_adam *adam)
{
  if (!adam || !*adam->is_alive)
    return;
  lade_pool_destroy(adam->pool);
  lade_fork_guard_destroy(adam->is_alive);
  free(adam);
}

/* ---- checks ---- */

static int form_check(const struct lade_adam_shard *s, struct lade_error *error)
{
  if (s->dtype != LADE_F32 && s->dtype != LADE_BF16 && s->dtype != LADE_F16)
    return lade_error_set(error, -EINVAL, "lade_adam_shard: dtype is %d: LADE_F32, LADE_BF16 or LADE_F16 is updated",
                          (int)s->dtype);
  if (s->grad_dtype != LADE_F32 && s->grad_dtype != LADE_BF16)
    return lade_error_set(error, -EINVAL, "lade_adam_shard: grad_dtype is %d: LADE_F32 or LADE_BF16 is read",
                          (int)s->grad_dtype);
  if ((unsigned)s->moments >= LADE_N_MOMENTS || (unsigned)s->master >= LADE_N_MASTERS
      || (s->master == LADE_MASTER_24BIT && s->dtype != LADE_BF16))
    return lade_error_set(error, -EINVAL, "lade_adam_shard: no form has moments %d and master %d with this dtype",
                          (int)s->moments, (int)s->master);
  if (s->n_elements < 1 || s->n_elements > ELEMENTS_MAX)
    return lade_error_set(error, -EINVAL, "lade_adam_shard: n_elements is %lld: 1 to %lld are updated",
                          (long long)s->n_elements, (long long)ELEMENTS_MAX);
  if (s->first_element % LADE_ADAM_SHARD_ELEMENTS)
    return lade_error_set(error, -EINVAL, "lade_adam_shard: first_element is %llu: a multiple of %d is needed",
                          (unsigned long long)s->first_element, LADE_ADAM_SHARD_ELEMENTS);
  return 0;
}

static struct lade_adam_bytes bytes_of(const struct lade_adam_shard *s)
{
  static const uint64_t moments[LADE_N_MOMENTS] = {
      [LADE_MOMENTS_F32] = 4, [LADE_MOMENTS_BF16] = 2, [LADE_MOMENTS_8BIT] = 1};
  uint64_t n = (uint64_t)s->n_elements, residual = s->dtype == LADE_F16 ? 4 : 0;
  if (s->dtype == LADE_BF16)
    residual = s->master == LADE_MASTER_24BIT ? 1 : 2;
  uint64_t scales = s->moments == LADE_MOMENTS_8BIT ? (uint64_t)lade_div_up(s->n_elements, LADE_MOMENT_BLOCK) : 0;
  return (struct lade_adam_bytes){
      .struct_size = sizeof(struct lade_adam_bytes), .grad = n * lade_dtype_bytes(s->grad_dtype),
      .weight = n * lade_dtype_bytes(s->dtype), .residual = n * residual, .m = n * moments[s->moments],
      .v = n * moments[s->moments], .m_scales = scales, .v_scales = scales};
}

static int pointers_check(const struct lade_adam_shard *s, bool needs_grad, struct lade_error *error)
{
  const struct lade_adam_bytes bytes = bytes_of(s);
  const struct {
    const char *name;
    const void *at;
    bool is_needed;
  } arrays[] = {{"grad", s->grad, needs_grad},           {"weight", s->weight, true},
                {"residual", s->residual, bytes.residual > 0}, {"m", s->m, true},
                {"v", s->v, true},                       {"m_scales", s->m_scales, bytes.m_scales > 0},
                {"v_scales", s->v_scales, bytes.v_scales > 0}};
  for (size_t i = 0; i < LADE_COUNT(arrays); i++) {
    if (arrays[i].is_needed && !arrays[i].at)
      return lade_error_set(error, -EINVAL, "lade_adam_shard: %s is NULL, and this form needs it", arrays[i].name);
  }
  return 0;
}

static int shard_read(const lade_adam *adam, const struct lade_adam_shard *given, bool needs_grad,
                      struct lade_adam_shard *ret_own, struct lade_error *error)
{
  if (!*adam->is_alive)
    return lade_error_set(error, -EPERM, "lade_adam: this process is a fork of the one that created it; create one "
                          "after the fork");
  int status = lade_struct_read("lade_adam_shard", given, ret_own, sizeof(*ret_own), error);
  if (!status)
    status = form_check(ret_own, error);
  return status ? status : pointers_check(ret_own, needs_grad, error);
}

/*
 * True if @value, rounded to FP32, is in the range. Kernels compute in FP32: an eps that rounds to 0 divides by zero,
 * and a beta that rounds to 1 never decays.
 */
static bool is_below(double value, double min, double end)
{
  float rounded = (float)value;
  return isfinite(rounded) && value >= min && (double)rounded < end;
}

static int step_read(const struct lade_adam_step *given, struct lade_adam_step *ret_own, struct lade_error *error)
{
  int status = lade_struct_read("lade_adam_step", given, ret_own, sizeof(*ret_own), error);
  if (status)
    return status;
  if (!is_below(ret_own->beta1, 0, 1) || !is_below(ret_own->beta2, 0, 1) || !is_below(ret_own->eps, 0, HUGE_VAL)
      || (float)ret_own->eps == 0)
    return lade_error_set(error, -EINVAL, "lade_adam_step: betas must be in [0, 1) and eps above 0, in FP32");
  if (!isfinite((float)ret_own->lr) || !isfinite((float)ret_own->weight_decay) || !isfinite((float)ret_own->grad_scale))
    return lade_error_set(error, -EINVAL, "lade_adam_step: lr, weight_decay and grad_scale must be finite, in FP32");
  if (ret_own->grad_scale != 0 && (float)ret_own->grad_scale == 0)
    return lade_error_set(error, -EINVAL, "lade_adam_step: grad_scale is %g, which is 0 in FP32", ret_own->grad_scale);
  return 0;
}

int lade_adam_get_bytes(const struct lade_adam_shard *shard, struct lade_adam_bytes *ret_bytes,
                        struct lade_error *error)
{
  struct lade_adam_shard own;
  int status = lade_struct_read("lade_adam_shard", shard, &own, sizeof(own), error);
  if (!status)
    status = form_check(&own, error);
  if (status)
    return status;
  struct lade_adam_bytes bytes = bytes_of(&own);
  status = lade_struct_fill("lade_adam_bytes", ret_bytes, &bytes, sizeof(bytes), error);
  return status;
}

/* ---- FP32 values in and out ---- */

struct state_copy {
  const struct lade_adam_shard *shard;
  const float *from; /* source of set */
  float *master, *m, *v; /* destinations of get; each may be NULL */
};

static void master_put(const struct lade_adam_shard *s, int64_t i, float master)
{
  uint16_t *half = (uint16_t *)s->weight + i;
  if (s->dtype == LADE_F32) {
    ((float *)s->weight)[i] = master;
  } else if (s->dtype == LADE_F16) {
    *half = lade_f32_to_f16(master);
    ((float *)s->residual)[i] = master;
  } else if (s->master == LADE_MASTER_24BIT) {
    lade_master24_split(master, 0x80, half, (int8_t *)s->residual + i);
  } else {
    lade_master_split(master, half, (int16_t *)s->residual + i);
  }
}

static float master_get(const struct lade_adam_shard *s, int64_t i)
{
  if (s->dtype == LADE_F32)
    return ((const float *)s->weight)[i];
  if (s->dtype == LADE_F16)
    return ((const float *)s->residual)[i];
  uint16_t half = ((const uint16_t *)s->weight)[i];
  if (s->master == LADE_MASTER_24BIT)
    return lade_master24_join(half, ((const int8_t *)s->residual)[i]);
  return lade_master_join(half, ((const int16_t *)s->residual)[i]);
}

static float moment_get(const struct lade_adam_shard *s, int64_t i, bool is_v)
{
  const void *moment = is_v ? s->v : s->m;
  if (s->moments == LADE_MOMENTS_F32)
    return ((const float *)moment)[i];
  if (s->moments == LADE_MOMENTS_BF16)
    return lade_bf16_to_f32(((const uint16_t *)moment)[i]);
  uint32_t scale = lade_scale_clamp((is_v ? s->v_scales : s->m_scales)[i / LADE_MOMENT_BLOCK]);
  uint8_t code = ((const uint8_t *)moment)[i];
  return is_v ? lade_v_value(code, scale) : lade_m_value(code, scale);
}

static void set_piece(void *arg, int i_task, int i_thread)
{
  const struct state_copy *copy = arg;
  const struct lade_adam_shard *s = copy->shard;
  int64_t from = (int64_t)i_task * PIECE_ELEMENTS, end = LADE_MIN(s->n_elements, from + PIECE_ELEMENTS);
  for (int64_t i = from; i < end; i++)
    master_put(s, i, copy->from[i]);
}

static void get_piece(void *arg, int i_task, int i_thread)
{
  const struct state_copy *copy = arg;
  const struct lade_adam_shard *s = copy->shard;
  int64_t from = (int64_t)i_task * PIECE_ELEMENTS, end = LADE_MIN(s->n_elements, from + PIECE_ELEMENTS);
  for (int64_t i = from; i < end; i++) {
    if (copy->master)
      copy->master[i] = master_get(s, i);
    if (copy->m)
      copy->m[i] = moment_get(s, i, false);
    if (copy->v)
      copy->v[i] = moment_get(s, i, true);
  }
}

int lade_adam_set(lade_adam *adam, const struct lade_adam_shard *shard, const float *master, struct lade_error *error)
{
  if (!adam)
    return lade_error_set(error, -EINVAL, "lade_adam_set: adam is NULL");
  struct lade_adam_shard own;
  int status = shard_read(adam, shard, false, &own, error);
  if (!status && !master)
    status = lade_error_set(error, -EINVAL, "lade_adam_set: master is NULL");
  if (status)
    return status;
  const struct lade_adam_bytes bytes = bytes_of(&own);
  struct state_copy copy = {.shard = &own, .from = master};
  lade_pool_run(adam->pool, set_piece, &copy, (int)lade_div_up(own.n_elements, PIECE_ELEMENTS));
  memset(own.m, 0, bytes.m);
  memset(own.v, 0, bytes.v);
  if (bytes.m_scales) {
    memset(own.m_scales, 0, bytes.m_scales);
    memset(own.v_scales, 0, bytes.v_scales);
  }
  return 0;
}

int lade_adam_get(lade_adam *adam, const struct lade_adam_shard *shard, float *master, float *m, float *v,
                  struct lade_error *error)
{
  if (!adam)
    return lade_error_set(error, -EINVAL, "lade_adam_get: adam is NULL");
  struct lade_adam_shard own;
  int status = shard_read(adam, shard, false, &own, error);
  if (status)
    return status;
  struct state_copy copy = {.shard = &own, .master = master, .m = m, .v = v};
  lade_pool_run(adam->pool, get_piece, &copy, (int)lade_div_up(own.n_elements, PIECE_ELEMENTS));
  return 0;
}

/* ---- the update ---- */

static struct lade_step step_block(const struct lade_adam_step *s)
{
  double t = (double)s->step + 1;
  return (struct lade_step){
      .seed = s->seed, .step = s->step, .lr = (float)s->lr, .beta1 = (float)s->beta1, .beta2 = (float)s->beta2,
      .eps = (float)s->eps, .weight_decay = (float)s->weight_decay,
      .correction1 = (float)(1 / (1 - pow(s->beta1, t))), .correction2 = (float)(1 / (1 - pow(s->beta2, t))),
      .loss_scale = 1};
}

int lade_adam_update(lade_adam *adam, const struct lade_adam_shard *shard, const struct lade_adam_step *step,
                     struct lade_error *error)
{
  if (!adam)
    return lade_error_set(error, -EINVAL, "lade_adam_update: adam is NULL");
  struct lade_adam_shard s;
  struct lade_adam_step own;
  int status = shard_read(adam, shard, true, &s, error);
  if (!status)
    status = step_read(step, &own, error);
  if (status)
    return status;
  const struct lade_step block = step_block(&own);
  const struct lade_clip_result clip_result = {.factor = own.grad_scale == 0 ? 1.0f : (float)own.grad_scale};
  const struct lade_adamw_args args = {
      .dtype = s.dtype, .grad_dtype = s.grad_dtype, .moments = s.moments, .master = s.master,
      .n_elements = s.n_elements, .has_decay = s.has_decay, .stream = s.param, .first_element = s.first_element,
      .clip_result = &clip_result, .grad = s.grad, .weight = s.weight, .residual = s.residual, .m = s.m, .v = s.v,
      .m_scales = s.m_scales, .v_scales = s.v_scales};
  const struct lade_kernel_ctx ctx = {.pool = adam->pool, .step = &block};
  adam->kernels.fn[LADE_K_ADAMW](&ctx, &args);
  return 0;
}
