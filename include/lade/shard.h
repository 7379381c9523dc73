/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lade/shard.h - a trainer's own flat parameters over the ranks of a job: ownership of elements, gather, reduce.
 *
 * A vector of n elements is divided into one block for each rank. All blocks have one length: n over the ranks, rounded
 * up to LADE_SHARD_ELEMENTS. Rank r owns [r * block, (r + 1) * block). Elements past n are padding. Padding is in the
 * last blocks, and a block may be padding alone. Whole vectors have room for the padding as well.
 *
 * A data-parallel step whose optimizer state is sharded (ZeRO stage 1: Rajbhandari et al. 2020) is then
 *
 *     lade_shard_reduce(shard, LADE_F32, grads, own_grad, &error);          the sum of all ranks' gradients, own block
 *     lade_adam_update(adam, &own, &step, &error);                          lade/adam.h on the own block
 *     lade_shard_gather(shard, LADE_BF16, own_weights, weights, &error);    the weights of all ranks
 *
 * in a program that mpirun, `lade launch -n N`, or srun with PMIx starts on every rank. Started alone, the program is a
 * world of one, where the same calls copy. examples/shard.c is a whole program.
 *
 * Vectors are in host memory, or after lade_ranks_set_device in the memory of a device. On a GPU NCCL is the engine.
 * The calls that end in _on put the same work on a queue of the device and return; the caller's own streams are queues
 * by lade_queue_adopt. Values of lade_ranks_sum and lade_ranks_broadcast are in host memory always.
 *
 * Every rank makes the same collective calls in the same order. A collective call blocks until this rank's part is
 * done. An error of a collective call is final for its ranks: every later call returns the same error.
 *   -EPROTO     a rank made another call, or has another size; the message names the rank
 *   -EPIPE      a rank has ended
 *   -ECANCELED  a rank called lade_ranks_abort
 *   -ETIMEDOUT  a rank is late (docs/ranks.md)
 *   -EIO        MPI failed
 *
 * One thread at a time uses a handle and the handles made from it. The parts of lade_ranks_split are separate handles.
 */
#ifndef LADE_SHARD_H
#define LADE_SHARD_H

#include <stdbool.h>

#include "lade/device.h"
#include "lade/types.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Blocks are a multiple of this, so that shards of lade/adam.h can begin there. */
#define LADE_SHARD_ELEMENTS 512

typedef struct lade_ranks lade_ranks; /* the ranks of the job, or some of them */
typedef struct lade_shard lade_shard; /* a vector with a block for each rank */

struct lade_ranks_params {
  size_t struct_size;
  int n_threads;  /* threads of this rank for sums and copies; 0: its part of this machine's cores */
  int timeout_ms; /* timeout for a late rank; 0: ten minutes */
};

struct lade_ranks_info {
  size_t struct_size; /* set by the caller */
  int rank, size;
  const char *engine, *path; /* "mpi", "shared memory (memfd)"; "nccl" on a GPU; static */
  int local_rank;            /* among the ranks of this machine, for the choice of a GPU; -1: unknown */
};

struct lade_shard_info {
  size_t struct_size; /* set by the caller */
  uint64_t n_elements;
  uint64_t block_elements;  /* length of each block, padding included */
  uint64_t padded_elements; /* length of a whole vector: block_elements for each rank */
};

struct lade_shard_block {
  size_t struct_size;     /* set by the caller */
  uint64_t first_element; /* in the padded vector */
  uint64_t n_elements;    /* elements before the block's padding; 0 to block_elements */
};

/* ---- the ranks ---- */

/*
 * Join the ranks of the job that the launcher's variables describe; collective. The caller closes @ret_ranks. @params
 * may be NULL. Starts MPI, with MPI_THREAD_MULTIPLE, unless the program has started it. One thread. Blocks until all
 * ranks have joined.
 *   -ENOSYS  several ranks without MPI
 *   -EINVAL  launchers disagree, or the launcher is torchrun, whose processes MPI does not know
 *   -EAGAIN  the machine refuses threads
 *   -ENOMEM, -EIO
 */
LADE_API int lade_ranks_open(const struct lade_ranks_params *params, struct lade_error *error, lade_ranks **ret_ranks);

/*
 * Leave the job; collective, unless a call has failed. NULL is allowed. pre: shards, memory and parts of @ranks are
 * destroyed. Blocks; after a failure for a fifth of a second, so that other ranks see the first cause.
 */
LADE_API void lade_ranks_close(lade_ranks *ranks);

/*
 * Form a part of the ranks with the same @colour, ordered by @key, then by rank; collective. The caller closes
 * @ret_part. A negative colour gets NULL. A mesh of two axes is two splits: shard within a group, replicate across
 * groups. -ENOMEM. Blocks.
 */
LADE_API int lade_ranks_split(lade_ranks *ranks, int colour, int key, struct lade_error *error, lade_ranks **ret_part);

/*
 * Move the vectors of @ranks to the memory of @device, a GPU in its primary context or a host device; collective, once,
 * before parts, shards and memory are made. The device is borrowed until @ranks is closed. All ranks give a device of
 * one kind. -EINVAL for a dry device, a part, a second call or ranks that have shards, parts or memory; -ENOSYS without
 * NCCL; -ENOMEM, -EIO. Blocks.
 */
LADE_API int lade_ranks_set_device(lade_ranks *ranks, lade_device *device, struct lade_error *error);

/*
 * Wait until the work of all _on calls of @ranks is over, and return its first error. Call it before a queue that
 * carried such work is destroyed. Blocks.
 */
LADE_API int lade_ranks_wait(lade_ranks *ranks, struct lade_error *error);

/* Return this rank and the number of ranks. -EINVAL for a wrong struct_size. Any thread. Never blocks. */
LADE_API int lade_ranks_get_info(const lade_ranks *ranks, struct lade_ranks_info *ret_info, struct lade_error *error);

/*
 * Allocate memory that other ranks of this machine read in place, zeroed and page-aligned; collective, @bytes may
 * differ. On a GPU it is memory of the device, which NCCL moves without buffers of its own. The caller frees it.
 * Vectors in it are gathered and reduced without an extra copy; other memory works too. -EINVAL for no bytes; -ENOMEM
 * at every rank, after which the ranks can continue. Blocks.
 */
LADE_API int lade_ranks_alloc(lade_ranks *ranks, uint64_t bytes, struct lade_error *error, void **ret_data);
/* Free this rank's memory. NULL is allowed. pre: no collective call uses it. Never blocks. */
LADE_API void lade_ranks_free(lade_ranks *ranks, void *data);

/* Replace host @values [n] by their sums over the ranks, in the order of ranks (losses, norms); collective. Blocks. */
LADE_API int lade_ranks_sum(lade_ranks *ranks, float *values, uint64_t n, struct lade_error *error);

/* Replace host @data at all ranks by that of rank @root; collective. -EINVAL for no such rank. Blocks. */
LADE_API int lade_ranks_broadcast(lade_ranks *ranks, int root, void *data, uint64_t bytes, struct lade_error *error);

/*
 * End the job because this rank cannot continue: calls of other ranks return -ECANCELED with @words. If the ranks are
 * on several machines, MPI ends all their processes, this one included. Any thread. Never blocks.
 */
LADE_API void lade_ranks_abort(lade_ranks *ranks, const char *words);

/* ---- the shards ---- */

/*
 * Divide a vector of @n_elements into blocks; collective. The caller destroys @ret_shard. -EINVAL for no elements, more
 * than 2^44, or different numbers at different ranks; -ENOMEM. Blocks.
 */
LADE_API int lade_shard_create(lade_ranks *ranks, uint64_t n_elements, struct lade_error *error,
                               lade_shard **ret_shard);
/* Destroy a shard; its vectors are the caller's. NULL is allowed. Never blocks. */
LADE_API void lade_shard_destroy(lade_shard *shard);

/* Return the lengths. -EINVAL for a wrong struct_size. Any thread. Never blocks. */
LADE_API int lade_shard_get_info(const lade_shard *shard, struct lade_shard_info *ret_info, struct lade_error *error);

/* Return the block of @rank. -EINVAL for no such rank. Any thread. Never blocks. */
LADE_API int lade_shard_get_block(const lade_shard *shard, int rank, struct lade_shard_block *ret_block,
                                  struct lade_error *error);

/* Return the rank that owns @element. -EINVAL for no such element. Any thread. Never blocks. */
LADE_API int lade_shard_get_owner(const lade_shard *shard, uint64_t element, int *ret_rank, struct lade_error *error);

/*
 * Copy this rank's block of @all [n_elements] into @own [block_elements], with zero padding. Any dtype. -EINVAL. Not
 * collective. Blocks for the copy.
 */
LADE_API int lade_shard_cut(const lade_shard *shard, enum lade_dtype dtype, const void *all, void *own,
                            struct lade_error *error);

/*
 * Gather @own [block_elements] of every rank into @all [padded_elements] at every rank; collective. Padding is copied
 * unchanged. Any dtype. @own may be this rank's block inside @all; otherwise they do not overlap. -EINVAL, with nothing
 * done. Blocks.
 */
LADE_API int lade_shard_gather(lade_shard *shard, enum lade_dtype dtype, const void *own, void *all,
                               struct lade_error *error);

/*
 * Sum @all [padded_elements] over ranks and store this rank's block of the sum in @own [block_elements]; collective.
 * LADE_F32 or LADE_BF16, summed in FP32 over a tree and rounded once. The tree adds the sum of the first p of n ranks
 * to the sum of the others, where p is the largest power of two below n: (x0 + x1) + (x2 + x3) for four ranks. On a GPU
 * the order is NCCL's, and BF16 is rounded at each addition. @own may be this rank's block inside @all. -EINVAL, with
 * nothing done. Blocks.
 */
LADE_API int lade_shard_reduce(lade_shard *shard, enum lade_dtype dtype, const void *all, void *own,
                               struct lade_error *error);

/*
 * Submit the gather or the sum to @queue of the ranks' device; its event is (@queue, *ret_count), and ret_count may be
 * NULL. The vectors stay valid, and are not read or written, until the event. Calls on different queues run in the
 * order of the calls, which is the same at every rank. lade_ranks_wait and every later call return an error of the
 * work itself. -EINVAL, with nothing done: no device was set, @queue is of another device, or an argument is wrong.
 * Blocks while 64 calls are in flight.
 */
LADE_API int lade_shard_gather_on(lade_shard *shard, lade_queue *queue, enum lade_dtype dtype, const void *own,
                                  void *all, uint64_t *ret_count, struct lade_error *error);
LADE_API int lade_shard_reduce_on(lade_shard *shard, lade_queue *queue, enum lade_dtype dtype, const void *all,
                                  void *own, uint64_t *ret_count, struct lade_error *error);

#ifdef __cplusplus
}
#endif
#endif
