/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The memory that NCCL takes for the collectives of a run.
 *
 * Since 2.22 NCCL connects an algorithm (ring, tree, the switches' sums, ...) at its first use by a communicator, and
 * takes the connections' buffers then: about 220 MiB of the device for rings, 256 to 384 for sums in switches. Its
 * choice of an algorithm depends on the kind of a collective, on its bytes, and on whether its buffers are registered.
 * The budget is made of the free memory, so all of this must be taken before that is measured. Therefore each kind that
 * programs of a graph call on an axis runs here once for each size class: powers of two up to the largest call. The
 * buffers are a window that is registered as the arena is, and released afterwards. Sends and receives connect by peer,
 * whatever the size, and Lade's communicators of stages connect when they open (comm_nccl.c).
 *
 * The kinds of each axis are those that src/program/build emits:
 *
 *   every axis           gathers the ranks' sums of squares: a few numbers
 *   tensor parallel      sums, gathers and scatters activations, as its ops say; sums parts of gradients
 *   data parallel        sums gradients, and the loss
 *   shards               scatter gradients and gather weights
 *   replicas of shards   sum gradients
 *   ends of a pipeline   sum the gradient of a tied table
 *
 * A list of collectives counts with the bytes of all its items, because NCCL chooses once for items of similar sizes.
 * A list has at most all gradients, so all gradients together are the largest call of an axis that reduces them.
 *
 * Rejected: NCCL_RUNTIME_CONNECT=0, which connects every algorithm of every communicator, used or not.
 */
#include <errno.h>

#include "base/base.h"
#include "device/cuda.h"
#include "run/rank_group.h"

#define SUMS_BYTES 4096u   /* bound of a gather of sums, and of a sum of losses */
#define WINDOW_MIN 65536u /* a window is not made smaller than this */

/* The largest call of each kind on each axis: bytes of all ranks' blocks. 0: not called. */
struct calls_max {
  uint64_t bytes[LADE_N_AXES][LADE_N_COLLECTIVES];
};

/* ---- the calls of a graph's programs ---- */

static void max_raise(uint64_t *max, uint64_t bytes)
{
  *max = LADE_MAX(*max, bytes);
}

/* Return the bytes of a tensor's elements as FP32, at least its own. */
static uint64_t wide_bytes(const struct lade_tensor *tensor)
{
  return tensor->bytes / lade_dtype_bytes(tensor->dtype) * LADE_MAX(lade_dtype_bytes(tensor->dtype), sizeof(float));
}

/* Add the collectives of ops, whose largest tensor has all ranks' blocks. */
static void ops_add(const struct lade_model_graph *graph, struct calls_max *max)
{
  for (int i = 0; i < graph->n_ops; i++) {
    const struct lade_op *op = &graph->ops[i];
    const enum lade_collective_kind kind = op->kind == LADE_OP_ALL_REDUCE   ? LADE_ALL_REDUCE
                                           : op->kind == LADE_OP_ALL_GATHER ? LADE_ALL_GATHER
                                                                            : LADE_REDUCE_SCATTER;
    if (op->kind != LADE_OP_ALL_REDUCE && op->kind != LADE_OP_ALL_GATHER && op->kind != LADE_OP_REDUCE_SCATTER)
      continue;
    for (int j = 0; j < op->n_in; j++)
      max_raise(&max->bytes[op->attr.axis][kind], op->in[j] < 0 ? 0 : graph->tensors[op->in[j]].bytes);
    for (int j = 0; j < op->n_out; j++)
      max_raise(&max->bytes[op->attr.axis][kind], op->out[j] < 0 ? 0 : graph->tensors[op->out[j]].bytes);
  }
}

static void grads_add(const struct lade_rank_group *group, const struct lade_model_graph *graph,
                      struct calls_max *max)
{
  uint64_t all = 0, shared = 0, tied = 0;
  for (int i = 0; i < graph->n_params; i++) {
    const struct lade_param *param = &graph->params[i];
    const uint64_t bytes = wide_bytes(&graph->tensors[param->tensor]);
    all += bytes;
    shared += param->n_sharers > 1 ? bytes : 0;
    tied = LADE_MAX(tied, param->is_at_both_ends ? bytes : 0);
  }
  const bool is_sharded = group->layout.zero > 0;
  max_raise(&max->bytes[LADE_AXIS_DP][LADE_ALL_REDUCE], is_sharded ? SUMS_BYTES : all);
  max_raise(&max->bytes[LADE_AXIS_SHARD][LADE_REDUCE_SCATTER], is_sharded ? all : 0);
  max_raise(&max->bytes[LADE_AXIS_SHARD][LADE_ALL_GATHER], is_sharded ? all : 0);
  max_raise(&max->bytes[LADE_AXIS_REPLICATE][LADE_ALL_REDUCE], is_sharded ? all : 0);
  max_raise(&max->bytes[LADE_AXIS_EMBED][LADE_ALL_REDUCE], tied);
  max_raise(&max->bytes[LADE_AXIS_TP][LADE_ALL_REDUCE], shared);
  max_raise(&max->bytes[LADE_AXIS_KV][LADE_ALL_REDUCE], shared);
}

/* Find the calls of this rank's programs, then the largest of any rank, so that all ranks run the same. Collective. */
static int calls_find(struct lade_rank_group *group, const struct lade_model_graph *graph, uint64_t max_bytes,
                      struct calls_max *ret_max, struct lade_error *error)
{
  int status = 0;
  ops_add(graph, ret_max);
  grads_add(group, graph, ret_max);
  for (int axis = 0; axis < LADE_N_AXES; axis++)
    max_raise(&ret_max->bytes[axis][LADE_ALL_GATHER], SUMS_BYTES);
  for (int i = 0; i < LADE_N_AXES * LADE_N_COLLECTIVES && !status; i++) {
    uint64_t *bytes = &ret_max->bytes[i / LADE_N_COLLECTIVES][i % LADE_N_COLLECTIVES];
    int64_t max = 0;
    status = lade_rank_group_max(group, (int64_t)*bytes, &max, error);
    *bytes = LADE_MIN((uint64_t)max, max_bytes);
  }
  return status;
}

/* ---- warming up ---- */

/* Run @kind once on @bytes of @window, all ranks' blocks, in place. */
static int call_run(lade_comm *comm, enum lade_collective_kind kind, uint64_t bytes, char *window,
                    struct lade_error *error)
{
  const uint64_t size = (uint64_t)lade_comm_size(comm), n = bytes / sizeof(float) / size;
  char *own = window + (uint64_t)lade_comm_rank(comm) * n * sizeof(float);
  struct lade_collective call = {.kind = kind, .dtype = LADE_F32, .n = n, .src = own, .dst = window};
  if (kind == LADE_REDUCE_SCATTER)
    call = (struct lade_collective){.kind = kind, .dtype = LADE_F32, .n = n, .src = window, .dst = own};
  else if (kind == LADE_ALL_REDUCE)
    call = (struct lade_collective){.kind = kind, .dtype = LADE_F32, .n = n * size, .src = window, .dst = window};
  return lade_comm_run(comm, &call, error);
}

/* Run the kinds of an axis in every size class, up to the size of the window. */
static int classes_run(lade_comm *comm, const uint64_t *max, uint64_t window_bytes, char *window,
                       struct lade_error *error)
{
  const uint64_t min = sizeof(float) * (uint64_t)lade_comm_size(comm);
  int status = 0;
  for (int kind = 0; kind < LADE_N_COLLECTIVES; kind++) {
    const uint64_t last = LADE_MIN(max[kind], window_bytes);
    for (uint64_t bytes = min; bytes < 2 * last && !status; bytes *= 2)
      status = call_run(comm, (enum lade_collective_kind)kind, LADE_MIN(bytes, last), window, error);
  }
  return status;
}

/* Allocate the window, of half the size each time that a GPU has no memory for it. All ranks get the same. */
static int window_alloc(lade_comm *comm, uint64_t *bytes, void **ret_window, struct lade_error *error)
{
  int status = lade_comm_alloc(comm, *bytes, error, ret_window);
  while (status == -ENOMEM && *bytes > WINDOW_MIN) {
    *bytes /= 2;
    status = lade_comm_alloc(comm, *bytes, error, ret_window);
  }
  return status;
}

static int axis_warm(lade_comm *comm, const uint64_t *max, struct lade_error *error)
{
  uint64_t bytes = 0;
  void *window = NULL;
  for (int kind = 0; kind < LADE_N_COLLECTIVES; kind++)
    max_raise(&bytes, max[kind]);
  int status = window_alloc(comm, &bytes, &window, error);
  if (status)
    return status;
  status = classes_run(comm, max, bytes, window, error);
  lade_comm_free(comm, window);
  return status;
}

int lade_rank_group_warm_gpus(struct lade_rank_group *group, const struct lade_model_graph *graph, uint64_t max_bytes,
                              lade_device *device, struct lade_error *error)
{
  struct calls_max max = {0};
  int status = calls_find(group, graph, max_bytes, &max, error);
  for (int axis = 0; axis < LADE_N_AXES && !status; axis++)
    if (group->gpu_axes[axis] && lade_comm_size(group->gpu_axes[axis]) > 1)
      status = axis_warm(group->gpu_axes[axis], max.bytes[axis], error);
  if (!status)
    lade_cuda_mark_memory(device, LADE_CUDA_NCCL);
  return status;
}
