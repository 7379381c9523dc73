/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The GPU part of a session: its device, its kernels, and its communicators with the GPUs of other ranks.
 *
 * The device is opened before planning, because its free memory is the capacity of a plan. Its kernels are opened
 * before the graph, because they state the scratch of each op. Both are then as at the start of the run: context and
 * machine code are loaded, and their memory does not count as free. Once there is a budget, the device is limited to
 * it.
 *
 * Each rank takes a GPU of its own (rank_group_gpus.c). NCCL's communicators are opened and warmed up before memory is
 * measured, so NCCL's memory is not planned for. The warm-up needs the graph, so the free memory is measured a second
 * time after it. Agreements use the hosts' communicators, as in every session.
 */
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "device/cuda.h"
#include "kernels/cuda.h"
#include "run/session/session_internal.h"

#define WINDOW_SHARE 4     /* of a GPU's free memory, the most for buffers to warm up NCCL */
#define STAGE_CHANNELS 16 /* streams of a stage: compute, copies, and two for each axis */

/*
 * Say that stages share hardware channels. Their lists agree on one order of all transfers and slots
 * (parallel/layout/schedule_phases.c), so one channel suffices. In it a receive that waits holds back the work behind.
 */
static void channels_note(lade_session *s)
{
  const int n = lade_cuda_n_channels();
  if (s->group.world && s->group.layout.mesh.axes[LADE_AXIS_PP].size > 1 && n < STAGE_CHANNELS)
    session_notice(s, "%s gives streams %d hardware channels: a receive that waits holds back other work of its stage; "
                   "set it to %d before the process starts CUDA", LADE_CUDA_CHANNELS_VARIABLE, n,
                   LADE_CUDA_CHANNELS_MAX);
}

/* Find the ordinal of the GPU that this rank takes; collective. */
static int gpu_find(lade_session *s, int *ret_ordinal, struct lade_error *error)
{
  channels_note(s);
  return lade_rank_group_find_gpu(&s->group, s->params.gpu, s->params.faults, error, ret_ordinal);
}

/* Open the device of @ordinal and its kernels. */
static int gpu_open(lade_session *s, int ordinal, struct lade_error *error)
{
  const struct lade_cuda_device_params params = {.struct_size = sizeof(params), .ordinal = ordinal,
                                                 .faults = s->params.faults};
  struct lade_error why = {0};
  int status = lade_device_open_cuda(&params, error, &s->device);
  if (status)
    return status;
  status = lade_cuda_kernels_open(s->device, NULL, &why, &s->cuda_kernels);
  if (status) /* missing machine code is a missing part of the machine, not a mistake */
    lade_error_set(error, status == -ENOENT ? -ENODEV : status, "device cuda:%d: %s", ordinal, why.text);
  return status == -ENOENT ? -ENODEV : status;
}

int session_gpu_limit(lade_session *s, uint64_t bytes, struct lade_error *error)
{
  struct lade_device_info info;
  const int status = lade_device_limit(s->device, bytes);
  if (!status)
    return 0;
  lade_device_get_info(s->device, &info);
  return lade_error_set(error, status, "device %s holds %" PRIu64 " bytes before step 0, and is to hold %" PRIu64
                        " at most: raise the budget, or end other programs on the device", info.name,
                        info.created_bytes, bytes);
}

/* Limit the device to its free memory, the capacity of a plan. pre: memory of the first use is taken. */
static int gpu_limit(lade_session *s, struct lade_error *error)
{
  struct lade_cuda_memory memory;
  int status = lade_cuda_get_memory(s->device, &memory);
  if (!status)
    return session_gpu_limit(s, memory.free_bytes, error);
  lade_cuda_get_error(s->device, error);
  return status;
}

/* Limit the device to its free memory, and find the least capacity of any rank; collective. */
static int capacity_find(lade_session *s, struct lade_error *error)
{
  struct lade_device_info info;
  int status = lade_rank_group_vote(&s->group, gpu_limit(s, error), error);
  if (status)
    return status;
  lade_device_get_info(s->device, &info);
  s->capacity_bytes = info.capacity_bytes;
  s->chunk_bytes = info.chunk_bytes;
  return s->group.world ? session_agree_min(s, &s->capacity_bytes, error) : 0;
}

/*
 * Open device, kernels and communicators as session_gpu_open states. After a failure the session owns those that are
 * open.
 */
static int gpu_take(lade_session *s, struct lade_error *error)
{
  int ordinal = 0, status = 0;
  if (s->params.throttle.bytes_per_s || s->params.throttle.latency_ns)
    status = lade_error_set(error, -EINVAL, "--link-rate throttles copies of the host device; a GPU has a link of its "
                            "own");
  status = lade_rank_group_vote(&s->group, status, error);
  if (!status)
    status = gpu_find(s, &ordinal, error);
  if (!status)
    status = lade_rank_group_vote(&s->group, gpu_open(s, ordinal, error), error);
  if (!status && s->group.world)
    status = lade_rank_group_open_gpus(&s->group, &s->host_kernels, s->device, error);
  if (!status)
    status = capacity_find(s, error);
  if (status)
    return status;
  lade_cuda_kernels_get(s->cuda_kernels, &s->kernels);
  if (*lade_cuda_kernels_note(s->cuda_kernels))
    session_notice(s, "%s", lade_cuda_kernels_note(s->cuda_kernels));
  if (*lade_cuda_kernels_attention_note(s->cuda_kernels))
    session_notice(s, "%s", lade_cuda_kernels_attention_note(s->cuda_kernels));
  return 0;
}

int session_gpu_warm(lade_session *s, struct lade_error *error)
{
  if (!s->params.is_gpu || !s->group.world)
    return 0;
  int status = lade_rank_group_warm_gpus(&s->group, s->graph, s->capacity_bytes / WINDOW_SHARE, s->device, error);
  return status ? status : capacity_find(s, error);
}

void session_gpu_note_forms(const lade_session *s)
{
  const int32_t first_key = 0;
  const float sink = 0;
  for (int i = 0; i < s->graph->n_ops; i++) {
    const struct lade_op *op = &s->graph->ops[i];
    if (op->kind != LADE_OP_ATTENTION)
      continue;
    const struct lade_score_form form = {.softcap = op->attr.attention_softcap, .window = op->attr.window,
                                         .alibi_max = op->attr.alibi_max,
                                         .sinks = op->in[1] >= 0 ? &sink : NULL,
                                         .first_keys = op->in[2] >= 0 ? &first_key : NULL};
    const char *note = lade_cuda_attention_form_note(&s->kernels, s->graph->dtype, op->attr.head_dim, &form);
    if (!*note)
      continue;
    session_notice(s, "%s", note);
    return;
  }
}

int session_gpu_check_gelu(const lade_session *s, struct lade_error *error)
{
  _Alignas(64) char args[LADE_OP_ARGS_BYTES];
  const struct lade_matmul_args *product = (const void *)args;
  struct lade_bind bind = {.n_microbatches = 1};
  int i = 0;
  while (i < s->graph->n_fwd_ops && s->graph->ops[i].kind != LADE_OP_MATMUL_GELU)
    i++;
  if (i == s->graph->n_fwd_ops)
    return 0;
  for (int in = 0; in < s->graph->ops[i].n_in; in++) /* only whether an operand is there counts */
    bind.in[in] = s->graph->ops[i].in[in] >= 0 ? (uintptr_t)args : 0;
  bind.out[0] = bind.out[1] = (uintptr_t)args;
  lade_op_bind(s->graph, i, &bind, args);
  if (!lade_cuda_lacks_gelu(&s->kernels, product))
    return 0;
  return lade_error_set(error, -EINVAL, "--gelu-fusion: %s has no product of %lld x %lld x %lld with GELU in %s, and a "
                        "kernel without tensor cores would take its place: leave the option out", s->kernels.library,
                        (long long)product->m, (long long)product->n, (long long)product->k,
                        lade_dtype_name(product->dtype));
}

/* Release the GPU because the host computes instead. pre: all ranks had the same status. */
static void gpu_leave(lade_session *s)
{
  lade_rank_group_close_gpus(&s->group);
  lade_cuda_kernels_close(s->cuda_kernels);
  lade_device_close(s->device);
  s->cuda_kernels = NULL;
  s->device = NULL;
  s->params.is_gpu = false;
}

int session_gpu_open(lade_session *s, struct lade_error *error)
{
  struct lade_error why = {0};
  int status = gpu_take(s, &why);
  if (status == -ENODEV && s->params.or_host) {
    gpu_leave(s);
    session_notice(s, "%s; the host trains", why.text);
    return 0;
  }
  return status ? lade_error_set(error, status, "%s", why.text) : 0;
}

uint64_t session_gpu_outside(const lade_session *s)
{
  struct lade_cuda_memory memory = {0};
  if (!s->cuda_kernels || lade_cuda_get_memory(s->device, &memory))
    return 0;
  return memory.outside_bytes;
}
