/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The peers of a rank in its run: a communicator for each axis of the layout, and what all have to agree on around
 * their programs. Everything that a step sends is in the program; here is what happens before step 0 and between steps.
 *
 * One rank alone has no communicators, and each call below is then done at once.
 */
#ifndef LADE_PEERS_H
#define LADE_PEERS_H

#include "base/faults.h"
#include "parallel/comm.h"
#include "parallel/layout.h"
#include "plan/program.h"

struct lade_peers {
  struct lade_layout layout;
  lade_comm *world;             /* borrowed; NULL: we are alone */
  lade_comm *axes[LADE_N_AXES]; /* of axes with several ranks, else NULL */
  lade_comm *gpu_axes[LADE_N_AXES]; /* the same over GPUs' memory, where ranks compute there */
  lade_comm *beside;            /* of all, for what one thread does beside the steps; NULL: nothing has asked for it */
  int64_t *words, *words_beside; /* one of each rank, for agreements over the one and the other; NULL as they are */
};

/*
 * The ranks of @world (NULL: one rank) before there is a layout: they can agree and vote, and know who is the first.
 * @ret_peers is the caller's to close. -ENOMEM, of which nobody else is told.
 */
int lade_peers_join(lade_comm *world, struct lade_error *error, struct lade_peers *ret_peers);

/*
 * Work out the layout of @params, whose world and rank are those of the world that @peers have joined, and split that
 * by its axes; collective. On failure they stay to be closed. As lade_peers_vote.
 */
int lade_peers_open(const struct lade_layout_params *params, struct lade_error *error, struct lade_peers *peers);

/*
 * Make @peers->gpu_axes on @device, and let each meet once, so that what NCCL takes for it is taken; collective. To be
 * closed (lade_peers_close) before the device is. As lade_comm_open.
 */
int lade_peers_open_gpus(struct lade_peers *peers, const struct lade_kernels *kernels, lade_device *device,
                         struct lade_error *error);

/* Undo it; lade_peers_close does, too. NULL axes are none. */
void lade_peers_close_gpus(struct lade_peers *peers);

/* Make @peers->beside; collective. As lade_peers_vote. */
int lade_peers_open_beside(struct lade_peers *peers, struct lade_error *error);

/* @peers as the thread beside the steps sees them: it agrees over their second communicator. They stay the owner. */
struct lade_peers lade_peers_beside(const struct lade_peers *peers);

/* Close all but the world; collective, unless something failed. @world stays. */
void lade_peers_close(struct lade_peers *peers);

/* This rank cannot go on: the others' waits end, now and later, with @words. Any thread. */
void lade_peers_abort(struct lade_peers *peers, const char *words);

/*
 * In what follows @peers may be NULL, and then this rank is alone.
 *
 * Rank @from's @bytes at @data to all; collective. As lade_comm_run.
 */
int lade_peers_broadcast(struct lade_peers *peers, int from, void *data, uint64_t bytes, struct lade_error *error);

/* Each rank's @bytes at @own, in their order, into @ret_all, which has room for those of all; collective. */
int lade_peers_gather(struct lade_peers *peers, const void *own, uint64_t bytes, void *ret_all,
                      struct lade_error *error);

/*
 * The same into memory of its own, which is the caller's to free; @faults may be NULL. -ENOMEM at all ranks where one
 * lacks memory, with its line.
 */
int lade_peers_collect(struct lade_peers *peers, const void *own, uint64_t bytes, struct lade_faults *faults,
                       struct lade_error *error, void **ret_all);

/* The largest @value of any rank, at all of them; collective. As lade_comm_run. Allocates nothing. */
int lade_peers_max(struct lade_peers *peers, int64_t value, int64_t *ret_max, struct lade_error *error);

/*
 * Add up @n numbers of all ranks, each by itself and modulo 2^64, at all of them; collective. As lade_comm_run; -ENOMEM
 * at all ranks where one lacks memory.
 */
int lade_peers_sum(struct lade_peers *peers, uint64_t *numbers, size_t n, struct lade_error *error);

/*
 * Does everybody go on? @status is this rank's, with its line in @error. 0 when it is 0 at all ranks; else what the
 * first rank has that failed, with its line, at every one of them, and with its number unless all have failed alike;
 * collective. As lade_comm_run.
 * Allocates nothing, so that a rank whose memory has ended can say so.
 */
int lade_peers_vote(struct lade_peers *peers, int status, struct lade_error *error);

typedef int lade_peers_work_fn(void *user, struct lade_error *error);

/*
 * Do @fn, on this thread, where a rank has something to do that takes its time; NULL: it has nothing. The others wait
 * for as long as the process that works lives, whatever their patience, and then all vote on what it returned;
 * collective (peers_work.c). @fn makes no use of @peers. As lade_peers_vote.
 */
int lade_peers_work(struct lade_peers *peers, lade_peers_work_fn *fn, void *user, struct lade_error *error);

/*
 * Do this rank's programs (@eval may be NULL) ask of every axis what its other members' programs ask: the same
 * collectives in the same order, and to each send the recv that meets it? Collective (peers_calls.c). -EINVAL, at all
 * members of the axis, with the first instruction that differs at two of them; -ENOMEM at all ranks where one lacks
 * memory, or, once something differs, at all members of that axis; as lade_comm_run. @faults may be NULL.
 */
int lade_peers_prove(struct lade_peers *peers, const struct lade_program *train, const struct lade_program *eval,
                     struct lade_faults *faults, struct lade_error *error);

/*
 * The layout that a plan is made for: NULL where a rank is alone in it, so that its programs are those of
 * one rank.
 */
static inline const struct lade_layout *lade_peers_layout(const struct lade_peers *peers)
{
  return peers && peers->layout.mesh.world > 1 ? &peers->layout : NULL;
}

static inline bool lade_peers_is_first(const struct lade_peers *peers)
{
  return !peers || peers->layout.rank == 0;
}

#endif
