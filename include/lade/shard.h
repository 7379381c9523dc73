/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lade/shard.h - a trainer's own flat parameters over the ranks of a job: who owns which elements, gather, reduce.
 *
 * A vector of n elements is cut into one block for each rank, all of one length: n over the ranks, rounded up to
 * LADE_SHARD_ELEMENTS. Rank r owns [r * block, (r + 1) * block). What lies past n is padding; it belongs to the last
 * blocks, and a block may be padding alone. Whole vectors have room for the padding as well.
 *
 * A data-parallel step whose optimizer state is sharded (ZeRO stage 1: Rajbhandari et al. 2020) is then
 *
 *     lade_shard_reduce(shard, LADE_F32, grads, own_grad, &error);          the sum of all ranks' gradients, own block
 *     lade_adam_update(adam, &own, &step, &error);                          lade/adam.h on the own block
 *     lade_shard_gather(shard, LADE_BF16, own_weights, weights, &error);    everybody's weights
 *
 * in a program that is started on every rank by mpirun, `lade launch -n N`, or srun with PMIx; started by itself it is
 * a world of one, where the same calls copy. Memory is the host's. examples/shard.c is the whole of it.
 *
 * Collective calls are made by every rank, in one order; they block until this rank's part has ended. A rank that makes
 * another call, or has another size, is found out and named (-EPROTO). An error of a collective call is
 * final for its ranks: every later call gives the same one. -EPIPE: a rank has ended; -ECANCELED: a rank called
 * lade_ranks_abort; -ETIMEDOUT: a rank did not come; -EIO: MPI failed. docs/parallel.md says within which time.
 *
 * One thread at a time uses a handle and what was made of it. The parts of lade_ranks_split are handles of their own.
 */
#ifndef LADE_SHARD_H
#define LADE_SHARD_H

#include <stdbool.h>

#include "lade/types.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Blocks are a multiple of this: shards of lade/adam.h begin there. */
#define LADE_SHARD_ELEMENTS 512

typedef struct lade_ranks lade_ranks; /* the ranks of the job, or a part of them */
typedef struct lade_shard lade_shard; /* a vector cut into a block for each of them */

struct lade_ranks_params {
  size_t struct_size;
  int n_threads;  /* of this rank, for sums and copies; 0: its part of the cores of this machine */
  int timeout_ms; /* how long another rank may be late; 0: ten minutes */
};

struct lade_ranks_info {
  size_t struct_size; /* set by the caller */
  int rank, size;
  const char *engine, *path; /* "mpi", "shared memory (memfd)"; static */
};

struct lade_shard_info {
  size_t struct_size; /* set by the caller */
  uint64_t n_elements;
  uint64_t block_elements;  /* of each rank, padding included */
  uint64_t padded_elements; /* of a whole vector: block_elements for each rank */
};

struct lade_shard_block {
  size_t struct_size;     /* set by the caller */
  uint64_t first_element; /* in the padded vector */
  uint64_t n_elements;    /* that are no padding, the first of the block; 0 to block_elements */
};

/* ---- the ranks ---- */

/*
 * Join the other ranks of the job, as the launcher's variables describe it; collective. The caller closes it. @params
 * may be NULL. -ENOSYS when there are several ranks and MPI is not here; -EINVAL when launchers disagree, or for a
 * torchrun that starts processes which MPI does not know; -ENOMEM, -EAGAIN when the machine refuses threads, -EIO.
 * Starts MPI unless the program has, with MPI_THREAD_MULTIPLE. One thread; blocks until all ranks have come.
 */
LADE_API int lade_ranks_open(const struct lade_ranks_params *params, struct lade_error *error, lade_ranks **ret_ranks);

/*
 * Leave; collective, unless a call has failed. Shards, memory and parts are given back before. NULL is allowed. Blocks;
 * after a failure for a fifth of a second, so that the others see the first cause.
 */
LADE_API void lade_ranks_close(lade_ranks *ranks);

/*
 * Ranks that give the same @colour form a part, ordered by @key, then by rank; collective. The caller closes it. A
 * negative colour takes no part and gets NULL. A mesh of two axes is two splits: shard within a group, replicate
 * across. -ENOMEM.
 */
LADE_API int lade_ranks_split(lade_ranks *ranks, int colour, int key, struct lade_error *error, lade_ranks **ret_part);

/* Who this is among how many. -EINVAL for a struct_size that is none. Any thread. Never blocks. */
LADE_API int lade_ranks_get_info(const lade_ranks *ranks, struct lade_ranks_info *ret_info, struct lade_error *error);

/*
 * Memory that the other ranks of this machine read where it is, zeroed and page-aligned; collective, @bytes may differ.
 * Vectors in it are gathered and reduced without a copy in between; any other memory is right as well. The caller gives
 * it back. -EINVAL for no bytes; -ENOMEM, at every rank, and the ranks can go on.
 */
LADE_API int lade_ranks_alloc(lade_ranks *ranks, uint64_t bytes, struct lade_error *error, void **ret_data);
/* This rank's part. NULL is allowed. No collective call may be using it. Never blocks. */
LADE_API void lade_ranks_free(lade_ranks *ranks, void *data);

/* Replace @values [n] by their sums over the ranks (losses, squares of norms), in the order of ranks; collective. */
LADE_API int lade_ranks_sum(lade_ranks *ranks, float *values, uint64_t n, struct lade_error *error);

/* Replace @data everywhere by what rank @root has (first weights, a seed); collective. -EINVAL for no such rank. */
LADE_API int lade_ranks_broadcast(lade_ranks *ranks, int root, void *data, uint64_t bytes, struct lade_error *error);

/*
 * This rank cannot go on: the others' calls end with -ECANCELED and @words. Ranks on several machines are
 * ended by MPI, this one too. Any thread. Never blocks.
 */
LADE_API void lade_ranks_abort(lade_ranks *ranks, const char *words);

/* ---- the shards ---- */

/*
 * Cut a vector of @n_elements; collective. The caller destroys it. -EINVAL for no elements, more than 2^44, or
 * when the ranks state different numbers; -ENOMEM.
 */
LADE_API int lade_shard_create(lade_ranks *ranks, uint64_t n_elements, struct lade_error *error,
                               lade_shard **ret_shard);
/* NULL is allowed. Never blocks. */
LADE_API void lade_shard_destroy(lade_shard *shard);

/* Lengths. -EINVAL for a struct_size that is none. Any thread. Never blocks. */
LADE_API int lade_shard_get_info(const lade_shard *shard, struct lade_shard_info *ret_info, struct lade_error *error);

/* What @rank owns. -EINVAL for no such rank. Any thread. Never blocks. */
LADE_API int lade_shard_get_block(const lade_shard *shard, int rank, struct lade_shard_block *ret_block,
                                  struct lade_error *error);

/* Who owns @element of the vector. -EINVAL when it has no such element. Any thread. Never blocks. */
LADE_API int lade_shard_get_owner(const lade_shard *shard, uint64_t element, int *ret_rank, struct lade_error *error);

/*
 * Copy the own block out of @all [n_elements] into @own [block_elements], its padding zero. Any dtype. -EINVAL. Not
 * collective, nobody else is asked. Blocks for the copy.
 */
LADE_API int lade_shard_cut(const lade_shard *shard, enum lade_dtype dtype, const void *all, void *own,
                            struct lade_error *error);

/*
 * @own [block_elements] of every rank -> @all [padded_elements], everywhere; collective. Padding travels as it is. Any
 * dtype. @own may be the own block of @all, and apart from that they do not overlap. -EINVAL, with nothing done.
 */
LADE_API int lade_shard_gather(lade_shard *shard, enum lade_dtype dtype, const void *own, void *all,
                               struct lade_error *error);

/*
 * The sum over ranks of @all [padded_elements], own block of it -> @own [block_elements]; collective. LADE_F32 or
 * LADE_BF16, over a tree in FP32, rounded once when stored: the sum of n ranks is that of the first p and that of the
 * others, p being the largest power of two below n, as (x0 + x1) + (x2 + x3) of four. @own may be the own block of
 * @all. -EINVAL, with nothing done.
 */
LADE_API int lade_shard_reduce(lade_shard *shard, enum lade_dtype dtype, const void *all, void *own,
                               struct lade_error *error);

#ifdef __cplusplus
}
#endif
#endif
