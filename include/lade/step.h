/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lade/step.h - run a training step of your own inside a byte budget.
 *
 * A step is a graph (lade/graph.h) and a function that runs its ops. lade_step_create plans the graph
 * (lade/graph_plan.h) and gives every storage an address. It proves the resulting program and takes its memory: device,
 * host and drive. lade_step_run then calls the function for each op of the plan, again for those that the plan
 * recomputes, and moves storages beside the ops. All budgets give the same bits, if ops compute the same bytes from the
 * same operands.
 *
 *   int run_op(void *user, const struct lade_op_call *call);     // one op: its operands have addresses
 *
 *   lade_step_create(graph, &params, &error, &stepper);
 *   lade_step_set(stepper, weights, 0, initial, n_bytes, &error);
 *   for (...) {
 *     memcpy(lade_step_address(stepper, batch), next, batch_bytes);
 *     lade_step_run(stepper, NULL, &error);
 *   }
 *
 * Memory. Peak device memory is the highest address that the plan uses, in whole chunks of the device
 * (lade_device_info.chunk_bytes). A stepper takes only these bytes there. Given storages keep their address on the
 * device, or on the host, until destroy; made storages move from op to op. Kept results stay until the next run.
 *
 * Threads. One thread at a time uses a stepper. Ops run in threads of Lade. Ops of the device run one at a time, and so
 * do ops of the host (LADE_OP_ON_HOST). An op of the device and one of the host may overlap unless one changes bytes
 * that the other uses: both may read a storage at once. On a CUDA device the thread of lade_step_run calls the device's
 * ops with the device's context current, and they put their work on the stream.
 *
 * The library never prints.
 */
#ifndef LADE_PUBLIC_STEP_H
#define LADE_PUBLIC_STEP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lade/device.h"
#include "lade/graph.h"
#include "lade/graph_plan.h"
#include "lade/plan.h"
#include "lade/types.h"

#ifdef __cplusplus
extern "C" {
#endif

/* One run of one op. Everything is valid during the call only. */
struct lade_op_call {
  size_t struct_size;  /* set by the library */
  int op;              /* index in the graph */
  bool is_redo;        /* the op ran in this step before, and makes the same bytes again */
  uint64_t step;       /* steps completed before this one */
  /*
   * A number for the counter of a random generator: equal for all runs of an op in one step, different for any other op
   * and step.
   */
  uint64_t draw;
  /*
   * Addresses of the op's operands, in the graph's order, each of its range; NULL for a storage of no bytes. On a CUDA
   * device they are device addresses, also for ops of the host.
   */
  void *const *reads, *const *writes, *const *updates;
  void *scratch;       /* scratch_bytes, aligned to 4096, with undefined contents; NULL: none */
  void *stream;        /* CUstream that gets the op's work; NULL on other devices and for ops of the host */
};

/*
 * Run an op; return 0, or a negative errno, which ends the step. It may not call functions of its stepper. It writes
 * only its writes, updates and scratch.
 */
typedef int lade_op_fn(void *user, const struct lade_op_call *call);

struct lade_step_params {
  size_t struct_size;   /* sizeof(struct lade_step_params) */
  lade_op_fn *op;       /* called for each op; never on a dry device */
  void *user;
  lade_device *device;  /* borrowed, until destroy; its measured peak is reset */
  /*
   * Budgets, rates of transfers, and effort of the search. The device's budget is one of addresses, in whole chunks.
   * Given storages whose tier is the host or a store come on top of the budgets there. On a device whose memory drives
   * do not reach, transfers of a store pass through the host's budget.
   */
  const struct lade_graph_plan_params *plan;
  const char *store;    /* directories on drives, as in lade/store.h; needed if the plan uses a store */
  bool allow_tmpfs;     /* allow a store in a memory file system */
  void *stream;         /* on a CUDA device: the CUstream of all ops, borrowed until destroy; NULL: one of Lade's */
};

/* Planned figures. */
struct lade_step_info {
  size_t struct_size;                    /* the caller's; set it before the call */
  uint64_t budget_bytes;                 /* of the device, in whole chunks; UINT64_MAX: no limit */
  uint64_t peak_bytes[LADE_N_SPACES];    /* the device's in whole chunks */
  uint64_t used_bytes;                   /* highest address used on the device, without the rest of its chunk */
  uint64_t live_bytes[LADE_N_SPACES];    /* most bytes in use at once */
  uint64_t owner_bytes[LADE_N_SPACES][LADE_OWNERS_MAX]; /* the ledger; sums to peak_bytes */
  /*
   * The smallest budget of the device that was found. After -ENOSPC, or with LADE_GRAPH_BUDGET_MIN, the search looked
   * for it; else it is the peak of this plan.
   */
  uint64_t min_budget_bytes;
  uint64_t min_live_bytes, unconstrained_bytes; /* live bytes, without addresses: as in lade_graph_plan_info */
  uint64_t moved_bytes;                  /* between the device and other tiers, in one step */
  int n_instrs, n_redone;
  int64_t base_ns, compute_ns, predicted_ns; /* ops once each; all ops that run; the step, by simulation */
};

/* Measured figures of one run. On a dry device no op is called and nothing moves, and the time is simulated. */
struct lade_step_measures {
  size_t struct_size;                 /* the caller's; set it before the call */
  uint64_t peak_bytes[LADE_N_SPACES]; /* the device's own high-water since create; bytes taken on host and drives */
  uint64_t moved_bytes;
  int n_ops, n_redone;                /* calls of the op function, redos included; redos */
  int64_t wall_ns;                    /* of the run */
  int64_t busy_ns[LADE_QUEUES_MAX];   /* by queue */
};

typedef struct lade_stepper lade_stepper;

/*
 * Plan @graph and take the memory of its step; the caller destroys the stepper before graph, device and stream.
 * @ret_info (may be NULL) is filled as by lade_step_get_info. Given storages are zero. Blocks, for seconds of planning
 * and while a drive writes the store once. Any thread. Errors; @error (may be NULL) has one line:
 *   -ENOSPC  no plan within the budgets was found: @ret_info has min_budget_bytes, and else zeros; or a store is full
 *   -EINVAL  the graph is open, has no ops, or has no addresses; a parameter is out of range; the plan needs a store,
 *            and @params names none
 *   -EOVERFLOW  an op of more than 65,534 operands
 *   -ENOMEM  memory, or the device has less than the plan needs
 *   others   of the store (lade/store.h) and of the device
 */
LADE_API int lade_step_create(const lade_graph *graph, const struct lade_step_params *params, struct lade_error *error,
                              struct lade_step_info *ret_info, lade_stepper **ret_stepper);
/* Free a stepper and its memory on all tiers. NULL is allowed. pre: no run is in progress. Blocks. */
LADE_API void lade_step_destroy(lade_stepper *stepper);

/*
 * Run one step, and wait for its end. @ret_measures may be NULL. A failed op ends the step: no later op is called, and
 * the code is the op's, with its name in @error. An error of the device or the store also ends the step (-EIO, -EBADMSG
 * and others, with the storage's name). Contents are then undefined, and every later call but destroy returns the same
 * error. A run allocates nothing. Blocks.
 */
LADE_API int lade_step_run(lade_stepper *stepper, struct lade_step_measures *ret_measures, struct lade_error *error);

/* Return the planned figures. -EINVAL for a wrong struct_size. Never blocks. */
LADE_API int lade_step_get_info(const lade_stepper *stepper, struct lade_step_info *ret_info);

/*
 * Return the address of a given storage, constant until destroy, or of a kept result, valid until the next run. It is
 * in host memory, or in device memory for storages of a CUDA device. NULL for all other storages, storages in a store,
 * storages of no bytes, and on a dry device. Read and write it between runs only. Never blocks.
 */
LADE_API void *lade_step_address(lade_stepper *stepper, int storage);

/*
 * Copy @bytes at @offset of a given storage, in any tier, or of a kept result to @dst; or from @src into a given
 * storage. Call them between runs. Blocks.
 *   -EINVAL   no such storage or range
 *   -ENOTSUP  the device is dry
 *   others    of the device and of the store; or the error of a failed run
 */
LADE_API int lade_step_get(lade_stepper *stepper, int storage, uint64_t offset, void *dst, uint64_t bytes,
                           struct lade_error *error);
LADE_API int lade_step_set(lade_stepper *stepper, int storage, uint64_t offset, const void *src, uint64_t bytes,
                           struct lade_error *error);

#ifdef __cplusplus
}
#endif
#endif
