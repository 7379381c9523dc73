/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ranks of a run: a communicator for each axis of the layout, and the agreements around their programs. Everything
 * that a step sends is in the program; agreements come before step 0 and between steps.
 *
 * One rank alone has no communicators, and each call below is then done at once.
 */
#ifndef LADE_RANK_GROUP_H
#define LADE_RANK_GROUP_H

#include "base/faults.h"
#include "parallel/comm.h"
#include "parallel/layout.h"
#include "program/program.h"

struct lade_rank_group {
  struct lade_layout layout;
  lade_comm *world;             /* borrowed; NULL: a single rank */
  lade_comm *axes[LADE_N_AXES]; /* of axes with several ranks, else NULL */
  lade_comm *gpu_axes[LADE_N_AXES]; /* the same over GPU memory, if ranks compute on GPUs */
  /* Of all ranks, for the thread that saves concurrently with the steps; NULL: not needed. */
  lade_comm *async_comm;
  int64_t *words, *async_words; /* memory of agreements over world and async_comm: a word from each rank */
};

/*
 * Join the ranks of @world (NULL: one rank) before there is a layout: from here on they can agree and vote. The caller
 * closes @ret_group. -ENOMEM at this rank alone; the others do not learn of it.
 */
int lade_rank_group_join(lade_comm *world, struct lade_error *error, struct lade_rank_group *ret_group);

/*
 * Compute the layout of @params for the world that @group has joined, and split the world by its axes; collective. The
 * world's size and rank replace those of @params. After a failure the caller still closes @group. As
 * lade_rank_group_vote.
 */
int lade_rank_group_open(const struct lade_layout_params *params, struct lade_error *error,
                         struct lade_rank_group *group);

/*
 * Find the ordinal, @first or later, of the GPU that this rank takes; collective (rank_group_gpus.c). One rank alone
 * takes @first. -ENODEV, with two ranks and the GPU, if there are fewer GPUs than ranks; errors of the driver.
 */
int lade_rank_group_find_gpu(struct lade_rank_group *group, int first, struct lade_faults *faults,
                             struct lade_error *error, int *ret_ordinal);

/*
 * Make @group->gpu_axes on @device, and run a barrier over each; collective. Close them (lade_rank_group_close) before
 * the device. As lade_comm_open.
 */
int lade_rank_group_open_gpus(struct lade_rank_group *group, const struct lade_kernels *kernels, lade_device *device,
                              struct lade_error *error);

/*
 * Run on each axis the collectives that programs of @graph will call, in every size class (rank_group_warm.c). So NCCL
 * takes the memory of its connections now. Collective. A window of at most @max_bytes, the same at all ranks, is taken
 * of each axis in turn and released. pre: the GPUs are open. -ENOMEM; as lade_comm_run.
 */
int lade_rank_group_warm_gpus(struct lade_rank_group *group, const struct lade_model_graph *graph, uint64_t max_bytes,
                              lade_device *device, struct lade_error *error);

/* Close @group->gpu_axes; lade_rank_group_close does that too. */
void lade_rank_group_close_gpus(struct lade_rank_group *group);

/* Make @group->async_comm, for the thread of concurrent saves; collective. As lade_rank_group_vote. */
int lade_rank_group_open_async(struct lade_rank_group *group, struct lade_error *error);

/* Return @group for the thread that saves concurrently: it agrees over async_comm. @group keeps ownership. */
struct lade_rank_group lade_rank_group_async(const struct lade_rank_group *group);

/* Close all communicators but the world, which stays open; collective, unless a communicator has failed. */
void lade_rank_group_close(struct lade_rank_group *group);

/*
 * Abort all communicators because this rank cannot continue: current and later waits of other ranks end with @words.
 * Any thread.
 */
void lade_rank_group_abort(struct lade_rank_group *group, const char *words);

/*
 * For the calls below @group may be NULL: a single rank.
 *
 * Send @bytes at @data of rank @from to all ranks; collective. As lade_comm_run.
 */
int lade_rank_group_broadcast(struct lade_rank_group *group, int from, void *data, uint64_t bytes,
                              struct lade_error *error);

/* Gather each rank's @bytes at @own, in rank order, into @ret_all, which has room for all of them; collective. */
int lade_rank_group_gather(struct lade_rank_group *group, const void *own, uint64_t bytes, void *ret_all,
                           struct lade_error *error);

/*
 * Replace @number by that of rank @from, which may differ at each rank that calls; collective. As lade_comm_run.
 * Allocates nothing.
 */
int lade_rank_group_take(struct lade_rank_group *group, int from, double *number, struct lade_error *error);

/*
 * Gather into new memory, which the caller frees; @faults may be NULL. If a rank lacks memory: -ENOMEM at all ranks,
 * with its line.
 */
int lade_rank_group_collect(struct lade_rank_group *group, const void *own, uint64_t bytes, struct lade_faults *faults,
                            struct lade_error *error, void **ret_all);

/* Return the largest @value of any rank, at all of them; collective. As lade_comm_run. Allocates nothing. */
int lade_rank_group_max(struct lade_rank_group *group, int64_t value, int64_t *ret_max, struct lade_error *error);

/*
 * Sum @n numbers element by element over all ranks, modulo 2^64, at all ranks; collective. As lade_comm_run; -ENOMEM at
 * all ranks if one lacks memory.
 */
int lade_rank_group_sum(struct lade_rank_group *group, uint64_t *numbers, size_t n, struct lade_error *error);

/*
 * Vote on success. @status is this rank's, with its line in @error. Return 0 when it is 0 at all ranks; else the status
 * and line of the first rank that failed, at every rank, with that rank's number unless all have failed alike;
 * collective. As lade_comm_run. Allocates nothing, so that a rank without memory can report it.
 */
int lade_rank_group_vote(struct lade_rank_group *group, int status, struct lade_error *error);

typedef int lade_rank_group_work_fn(void *user, struct lade_error *error);

/*
 * Do @fn, on this thread, if this rank has long work; NULL: it has none. The others wait for as long as the working
 * process lives, beyond any timeout, and then all vote on the result; collective (rank_group_leader.c). @fn must not
 * use @group. As lade_rank_group_vote.
 */
int lade_rank_group_work(struct lade_rank_group *group, lade_rank_group_work_fn *fn, void *user,
                         struct lade_error *error);

/*
 * Check on every axis that this rank's programs (@eval may be NULL) make the same calls as those of its other members:
 * the same collectives in the same order, and to each send the recv that meets it. Collective (rank_group_sequences.c).
 * -EINVAL at all members of the axis, with the first instruction that differs at two of them. -ENOMEM at all ranks if
 * one lacks memory or, once a difference is found, at all members of that axis. Else as lade_comm_run. @faults may be
 * NULL.
 */
int lade_rank_group_prove(struct lade_rank_group *group, const struct lade_program *train,
                          const struct lade_program *eval,
                          struct lade_faults *faults, struct lade_error *error);

/*
 * Return the layout that a plan is made for: NULL where a rank is alone in it, so that its programs are those of one
 * rank.
 */
static inline const struct lade_layout *lade_rank_group_layout(const struct lade_rank_group *group)
{
  return group && group->layout.mesh.world > 1 ? &group->layout : NULL;
}

static inline bool lade_rank_group_is_first(const struct lade_rank_group *group)
{
  return !group || group->layout.rank == 0;
}

#endif
