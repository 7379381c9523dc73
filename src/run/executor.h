/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The executor: a plan's two programs, training and evaluation, bound to memory and run step after step.
 *
 * Everything is prepared by lade_executor_create: the device's arena mapped to the planned peak and not a chunk
 * more, the host tier's slab, the store's extents, and for every instruction its kernel with arguments bound to
 * addresses; on a GPU chains of kernels become graphs, unless the environment's LADE_CUDA_GRAPHS is "0". A step then
 * only submits the instructions in list order, each with its waits, to the device's queues, and waits for all of them:
 * it allocates nothing and makes no memory call. The executor does not know what recompute or offload is.
 *
 * State can be durable: every parameter is then at home in the store, and what the program addresses there as one place
 * is two slots of a lade_durable. A step reads the slot of the generation that counts and writes the other; until
 * lade_executor_publish it has not happened.
 *
 * On a dry device nothing is bound and nothing runs; the same walk drives the device's simulated clock.
 *
 * One thread at a time. Parameters and optimizer state are read and written between steps, wherever they live.
 */
#ifndef LADE_EXECUTOR_H
#define LADE_EXECUTOR_H

#include "device/device.h"
#include "kernels/cuda.h"
#include "kernels/kernels.h"
#include "offload/durable.h"
#include "plan/plan.h"
#include "run/values.h"

typedef struct lade_executor lade_executor;

struct lade_executor_params {
  size_t struct_size;
  const struct lade_plan *plan; /* borrowed; proved, else -EINVAL */
  lade_device *device;          /* borrowed */
  const struct lade_kernels *kernels;    /* of the host: what its queues run, and on a host device everything */
  const lade_cuda_kernels *cuda_kernels; /* borrowed; what runs on a CUDA device; NULL on others */
  lade_pool *pool;
  uint64_t host_limit_bytes;    /* how large the host tier may get where memory comes in chunks; 0: as planned */
  lade_store *store;            /* borrowed, not yet prepared; NULL when the plan has nothing for one */
  lade_durable *durable;        /* borrowed, prepared, of lade_state_store_bytes; NULL: state ends with the process */
  /*
   * Borrowed; by enum lade_axis, each of the ranks of that axis in its order; NULL where no instruction needs one, NULL
   * altogether for one rank or on a dry device. They are the executor's alone until it is destroyed.
   */
  lade_comm *const *comms;
  struct lade_faults *faults;   /* may be NULL */
};

/*
 * This rank's part. -EINVAL (plan not proved, store or communicator missing), -ENOMEM, -ENOSPC and others of the store,
 * with one line in @error.
 */
int lade_executor_create(const struct lade_executor_params *params, struct lade_error *error,
                         lade_executor **ret_executor);

/*
 * Once all ranks of params->comms have theirs, and before the first step: let each read the others' arenas where they
 * are, if they share memory. Without it, and where they do not, bytes are staged. Collective; a rank that does not come
 * has to abort the communicators, or the others wait. As lade_comm_run.
 */
int lade_executor_meet(lade_executor *executor, struct lade_error *error);
void lade_executor_destroy(lade_executor *executor);

/*
 * Where the caller writes tokens and targets [B,T] of a microbatch before a step. Valid until destroy. NULL on a dry
 * device, and on a stage that does not read them: tokens are the first one's, targets the last one's.
 */
int32_t *lade_executor_tokens(lade_executor *executor, int microbatch);
int32_t *lade_executor_targets(lade_executor *executor, int microbatch);

struct lade_step_result {
  double loss; /* mean over data parallel ranks and microbatches, summed in their order; 0 where no stage's head is */
  struct lade_verdict verdict; /* training only */
  int64_t wall_ns;             /* from entry to exit; simulated on a dry device */
  int64_t busy_ns[LADE_N_QUEUES];
  int64_t stall_ns[LADE_N_QUEUES]; /* how long the compute queue stood still because of this one; its own: launches */
};

/*
 * Run one training step, or one forward evaluation of the same batch size, and wait for its end. @step is copied
 * first. On an error of any instruction (-EIO, -EBADMSG naming the tensor, ...) state is not to be trusted: every
 * later call but destroy returns the same. -ERANGE: the verdict skipped the update because a gradient is not
 * finite; nothing changed. In a program that updates early parameters did change, and later calls return -EDOM;
 * there -EINVAL meets a step with clipping or a loss scale.
 *
 * All ranks call together. What fails at one ends the others' waits too: it aborts the communicators, and an error of
 * a communicator (a peer that died, say) is one of the step.
 */
int lade_executor_step(lade_executor *executor, const struct lade_step *step, struct lade_step_result *ret_result,
                       struct lade_error *error);
int lade_executor_eval(lade_executor *executor, struct lade_step_result *ret_result, struct lade_error *error);

/*
 * Copy @bytes at @offset of a value that lives across steps (a parameter's working copy, or a part of its state,
 * by lade_value_part) to or from host memory. Offsets are multiples of LADE_EXECUTOR_WINDOW_BYTES. A value in the
 * store is written whole windows at a time, in ascending order, all of them. Between steps. Blocks.
 */
#define LADE_EXECUTOR_WINDOW_BYTES LADE_VALUES_WINDOW_BYTES
/*
 * Where state is in shards, offsets are those of the whole value all the same: a get fills what this rank holds, a set
 * takes it, and the rest is left alone. This is what it holds.
 */
void lade_executor_share(const lade_executor *executor, int tensor, uint64_t *ret_offset, uint64_t *ret_bytes);
int lade_executor_get(lade_executor *executor, int tensor, uint64_t offset, void *dst, uint64_t bytes,
                      struct lade_error *error);
int lade_executor_set(lade_executor *executor, int tensor, uint64_t offset, const void *src, uint64_t bytes,
                      struct lade_error *error);

/* The same as a table of functions, for checkpoints. */
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

static inline struct lade_values lade_executor_values(lade_executor *executor, const struct lade_graph *graph)
{
  return (struct lade_values){
      .graph = graph, .get = lade_executor_values_get, .set = lade_executor_values_set, .user = executor};
}

/*
 * Make the step that was run count, with @memo, or, before the first step of all, the values that were set. -EINVAL:
 * nothing is durable here; else as lade_durable_publish, and every later call but destroy returns the same. Blocks.
 */
int lade_executor_publish(lade_executor *executor, const void *memo, size_t memo_bytes, struct lade_error *error);

/* What the host tier has: what is planned, or a little more (host_limit_bytes). 0 on a dry device. */
uint64_t lade_executor_host_bytes(const lade_executor *executor);

/* One line on what the executor does without though the device could have it, graphs, and why; else "". */
const char *lade_executor_note(const lade_executor *executor);

/* Steps completed since creation, or the generation that counts; the generation of what is in the store follows it. */
uint64_t lade_executor_n_steps(const lade_executor *executor);

/*
 * Spans of the last step, one per instruction of the training program. Of instructions that were submitted together, a
 * bundle or on a GPU a chain, the first has the time of all, and the others none, at its end.
 */
const struct lade_span *lade_executor_spans(const lade_executor *executor);

/*
 * By queue, how long computing stands still because of it in a step of @program that takes the times of @prices, as a
 * step's report has it of one that was run (LADE_N_QUEUES entries; stalls.c). -ENOMEM. Any thread.
 */
int lade_program_stalls(const struct lade_program *program, const struct lade_prices *prices, int64_t *ret_stall_ns);

#endif
