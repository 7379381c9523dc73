/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The executor: a plan's two programs, training and evaluation, bound to memory and run step after step.
 *
 * lade_executor_create prepares everything. It maps the device's arena to the planned peak and not a chunk more, and
 * takes the host tier's slab and the store's extents. It binds each instruction to its kernel, with arguments as
 * addresses. On a GPU chains of kernels become graphs, unless the environment's LADE_CUDA_GRAPHS is "0". A step then
 * only submits the instructions in list order, each with its waits, to the device's queues, and waits for all of them:
 * it allocates nothing and makes no memory call. The executor does not know recompute or offload.
 *
 * State can be durable: every parameter's tier is then the store, and one place there in the program is two slots of a
 * lade_durable. A step reads the slot of the generation that counts and writes the other. Until lade_executor_publish
 * the step has not happened.
 *
 * On a dry device nothing is bound and nothing runs; the same walk drives the device's simulated clock.
 *
 * One thread at a time. Parameters and optimizer state are read and written between steps, in any tier.
 */
#ifndef LADE_EXECUTOR_H
#define LADE_EXECUTOR_H

#include "device/device.h"
#include "kernels/cuda.h"
#include "kernels/kernels.h"
#include "offload/durable.h"
#include "recompute/plan.h"
#include "run/values.h"

typedef struct lade_executor lade_executor;

struct lade_executor_params {
  size_t struct_size;
  const struct lade_plan *plan; /* borrowed; proved, else -EINVAL */
  lade_device *device;          /* borrowed */
  const struct lade_kernels *kernels;    /* of the host: for its queues; on a host device for all queues */
  const lade_cuda_kernels *cuda_kernels; /* borrowed; of a CUDA device; NULL on others */
  lade_pool *pool;
  uint64_t host_limit_bytes;    /* most bytes of the host tier if memory comes in chunks; 0: as planned */
  lade_store *store;            /* borrowed, not yet prepared; NULL if the plan needs none */
  lade_durable *durable;        /* borrowed, prepared, of lade_state_store_bytes; NULL: state ends with the process */
  /*
   * Borrowed; by enum lade_axis, each of the ranks of that axis in order. An entry is NULL if no instruction needs it;
   * the array is NULL for one rank or on a dry device. Only the executor uses them until it is destroyed.
   */
  lade_comm *const *comms;
  struct lade_faults *faults;   /* may be NULL */
};

/*
 * Create this rank's executor. -EINVAL (plan not proved, store or communicator missing), -ENOMEM, -ENOSPC and others of
 * the store, with one line in @error.
 */
int lade_executor_create(const struct lade_executor_params *params, struct lade_error *error,
                         lade_executor **ret_executor);

/*
 * Let the ranks of params->comms read each other's arenas directly, if they share memory; else bytes are staged. pre:
 * all of them have created their executors, and none has run a step. Collective: a rank that cannot call this must
 * abort the communicators, because the others wait. As lade_comm_run.
 */
int lade_executor_meet(lade_executor *executor, struct lade_error *error);
void lade_executor_destroy(lade_executor *executor);

/*
 * Return the memory for the tokens, targets and first keys [B,T] of a microbatch, which the caller fills before a step.
 * Valid until destroy. NULL on a dry device, and on a stage that does not read them: the first stage reads tokens, the
 * last one targets, and stages with layers read first keys if documents are masked.
 */
int32_t *lade_executor_tokens(lade_executor *executor, int microbatch);
int32_t *lade_executor_targets(lade_executor *executor, int microbatch);
int32_t *lade_executor_first_keys(lade_executor *executor, int microbatch);

struct lade_step_result {
  double loss; /* mean over data parallel ranks and microbatches, summed in their order; 0 on a stage without the head
                  */
  struct lade_clip_result clip_result; /* training only */
  int64_t wall_ns;             /* from entry to exit; simulated on a dry device */
  int64_t busy_ns[LADE_N_QUEUES];
  int64_t stall_ns[LADE_N_QUEUES]; /* time that this queue stalled the compute queue; its own: launches */
};

/*
 * Run one training step, or one forward evaluation of the same batch size, and wait for its end. @step is copied first.
 * After an error of any instruction (-EIO, -EBADMSG naming the tensor, ...) the state is undefined: every later call
 * but destroy returns the same error. -ERANGE: the clip result skipped the update because a gradient is not finite;
 * nothing changed. In a program with updates in the backward half parameters did change, and later calls return -EDOM;
 * such a program refuses a step with clipping or a loss scale with -EINVAL.
 *
 * All ranks call together. A failure at one rank aborts the communicators, which ends the waits of the others. An error
 * of a communicator (a dead rank, for instance) is an error of the step.
 */
int lade_executor_step(lade_executor *executor, const struct lade_step *step, struct lade_step_result *ret_result,
                       struct lade_error *error);
int lade_executor_eval(lade_executor *executor, struct lade_step_result *ret_result, struct lade_error *error);

/*
 * Copy @bytes at @offset of a value that lives across steps to or from host memory. Such a value is a parameter's
 * working copy, or a part of its state (lade_value_part). Offsets are multiples of LADE_EXECUTOR_WINDOW_BYTES. A value
 * in the store is written in whole windows, in ascending order, all of them. Only between steps. Blocks.
 */
#define LADE_EXECUTOR_WINDOW_BYTES LADE_VALUES_WINDOW_BYTES
/*
 * Return the range of a value that this rank holds if state is in shards. Offsets of get and set are those of the whole
 * value: a get fills the held range, a set takes it, and other bytes are left unchanged.
 */
void lade_executor_share(const lade_executor *executor, int tensor, uint64_t *ret_offset, uint64_t *ret_bytes);
int lade_executor_get(lade_executor *executor, int tensor, uint64_t offset, void *dst, uint64_t bytes,
                      struct lade_error *error);
int lade_executor_set(lade_executor *executor, int tensor, uint64_t offset, const void *src, uint64_t bytes,
                      struct lade_error *error);

/* Give the same functions as a table, for checkpoints. */
static inline int lade_executor_values_get(void *executor, int tensor, uint64_t offset, void *dst, uint64_t bytes,
                                           struct lade_error *error)
{
  return lade_executor_get((lade_executor *)executor, tensor, offset, dst, bytes, error);
}

static inline int lade_executor_values_set(void *executor, int tensor, uint64_t offset, const void *src,
                                           uint64_t bytes, struct lade_error *error)
{
  return lade_executor_set((lade_executor *)executor, tensor, offset, src, bytes, error);
}

static inline struct lade_values lade_executor_values(lade_executor *executor, const struct lade_model_graph *graph)
{
  return (struct lade_values){
      .graph = graph, .get = lade_executor_values_get, .set = lade_executor_values_set, .user = executor};
}

/*
 * Publish the last step with @memo or, before the first step, the values that were set. -EINVAL: state is not durable.
 * Else as lade_durable_publish; after its failure every later call but destroy returns the same error. Blocks.
 */
int lade_executor_publish(lade_executor *executor, const void *memo, size_t memo_bytes, struct lade_error *error);

/* Return the bytes of the host tier: as planned, or a little more (host_limit_bytes). 0 on a dry device. */
uint64_t lade_executor_host_bytes(const lade_executor *executor);

/* Return one line if the device makes no graphs, with the reason; else "". */
const char *lade_executor_note(const lade_executor *executor);

/* Return the steps completed since creation; with durable state, the published generation. */
uint64_t lade_executor_n_steps(const lade_executor *executor);

/*
 * Return the spans of the last step, one per instruction of the training program. Instructions may be submitted
 * together (a group, or a chain on a GPU). Then the first span covers all, and the others are empty, at its end.
 */
const struct lade_span *lade_executor_spans(const lade_executor *executor);

/*
 * Fill @ret_stall_ns, by queue (LADE_N_QUEUES entries), with the time for which the queue stalls the compute queue in a
 * step of @program. Times are those of @prices; the meaning is that of a step's stall_ns (stalls.c). -ENOMEM. Any
 * thread.
 */
int lade_program_stalls(const struct lade_program *program, const struct lade_prices *prices, int64_t *ret_stall_ns);

#endif
