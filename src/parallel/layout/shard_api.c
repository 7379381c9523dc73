/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lade/shard.h: a communicator, a pool and a table of kernels behind one handle, and a layout of equal blocks behind
 * another.
 *
 * Blocks are equal because all-gather and reduce-scatter move equal blocks. The price is padding, at most
 * LADE_SHARD_ELEMENTS - 1 elements for each rank. Rejected: blocks that follow the caller's tensors. They need counts
 * per rank in every collective, and the slowest rank would own the largest tensor.
 *
 * Parts share the pool and the kernels of the job's handle, which outlives them. Invalid arguments are detected before
 * any communication. Vectors of different length at the ranks can only be detected together, so the ranks compare
 * lengths once, when a shard is created.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "base/cpu.h"
#include "base/pool.h"
#include "lade/adam.h"
#include "lade/shard.h"
#include "parallel/comm.h"

#define ELEMENTS_MOST (UINT64_C(1) << 44)
#define THREADS_MOST 1024

_Static_assert(LADE_SHARD_ELEMENTS == LADE_ADAM_SHARD_ELEMENTS, "a block is a shard of the optimizer");

extern char **environ;

struct lade_ranks {
  lade_comm *comm;
  struct lade_kernels kernels; /* of the job's handle; a part borrows it */
  lade_pool *pool;             /* owned by the job's handle; NULL in a part */
};

struct lade_shard {
  lade_comm *comm; /* borrowed from the ranks */
  uint64_t n_elements, block_elements;
};

/* ---- the ranks ---- */

/*
 * Return the number of threads. Ranks of one machine share its cores. If the launcher does not report their number, it
 * has bound this process to its own cores.
 */
static int threads_count(const struct lade_ranks_params *params, const struct lade_launch *launch)
{
  if (params->n_threads)
    return params->n_threads;
  return LADE_MAX(1, lade_cpu_count() / LADE_MAX(1, launch->local_world));
}

static int ranks_open(lade_ranks *ranks, const struct lade_ranks_params *params, struct lade_error *error)
{
  struct lade_launch launch;
  int status = lade_launch_read(environ, error, &launch);
  if (status)
    return status;
  status = lade_pool_create(threads_count(params, &launch), &ranks->pool);
  if (status)
    return lade_error_set(error, status, "lade_ranks_open: the machine refused threads (%s)", strerror(-status));
  struct lade_cpu cpu = lade_cpu_get();
  lade_kernels_init(&ranks->kernels, &cpu);
  struct lade_comm_params comm = {.struct_size = sizeof(comm), .launch = &launch, .kernels = &ranks->kernels,
                                  .pool = ranks->pool, .timeout_ms = params->timeout_ms};
  return lade_comm_open(&comm, error, &ranks->comm);
}

int lade_ranks_open(const struct lade_ranks_params *params, struct lade_error *error, lade_ranks **ret_ranks)
{
  if (!ret_ranks)
    return lade_error_set(error, -EINVAL, "lade_ranks_open: ret_ranks is NULL");
  struct lade_ranks_params own = {.struct_size = sizeof(own)};
  int status = params ? lade_struct_read("lade_ranks_params", params, &own, sizeof(own), error) : 0;
  if (status)
    return status;
  if (own.n_threads < 0 || own.n_threads > THREADS_MOST || own.timeout_ms < 0)
    return lade_error_set(error, -EINVAL, "lade_ranks_params: %d threads and a timeout of %d ms: 0 for what is usual, "
                          "or at most %d threads", own.n_threads, own.timeout_ms, THREADS_MOST);
  lade_ranks *ranks = calloc(1, sizeof(*ranks));
  if (!ranks)
    return lade_error_set(error, -ENOMEM, "lade_ranks_open: out of memory");
  status = ranks_open(ranks, &own, error);
  if (status) {
    lade_ranks_close(ranks);
    return status;
  }
  *ret_ranks = ranks;
  return 0;
}

lade_comm *lade_ranks_comm(lade_ranks *ranks)
{
  return ranks->comm;
}

void lade_ranks_close(lade_ranks *ranks)
{
  if (!ranks)
    return;
  lade_comm_close(ranks->comm);
  lade_pool_destroy(ranks->pool);
  free(ranks);
}

int lade_ranks_split(lade_ranks *ranks, int colour, int key, struct lade_error *error, lade_ranks **ret_part)
{
  if (!ranks || !ret_part)
    return lade_error_set(error, -EINVAL, "lade_ranks_split: ranks or ret_part is NULL");
  lade_comm *comm = NULL;
  int status = lade_comm_split(ranks->comm, colour, key, error, &comm);
  if (status)
    return status;
  lade_ranks *part = comm ? calloc(1, sizeof(*part)) : NULL;
  if (comm && !part) {
    lade_comm_abort(comm, "no memory for a part of the ranks"); /* the other members have created their parts */
    lade_comm_close(comm);
    return lade_error_set(error, -ENOMEM, "lade_ranks_split: out of memory");
  }
  if (part)
    part->comm = comm;
  *ret_part = part;
  return 0;
}

int lade_ranks_get_info(const lade_ranks *ranks, struct lade_ranks_info *ret_info, struct lade_error *error)
{
  if (!ranks)
    return lade_error_set(error, -EINVAL, "lade_ranks_get_info: ranks is NULL");
  struct lade_comm_info comm;
  lade_comm_get_info(ranks->comm, &comm);
  const struct lade_ranks_info info = {.struct_size = sizeof(info), .rank = lade_comm_rank(ranks->comm),
                                       .size = lade_comm_size(ranks->comm), .engine = comm.engine, .path = comm.path};
  return lade_struct_fill("lade_ranks_info", ret_info, &info, sizeof(info), error);
}

int lade_ranks_alloc(lade_ranks *ranks, uint64_t bytes, struct lade_error *error, void **ret_data)
{
  if (!ranks || !ret_data)
    return lade_error_set(error, -EINVAL, "lade_ranks_alloc: ranks or ret_data is NULL");
  return lade_comm_alloc(ranks->comm, bytes, error, ret_data);
}

void lade_ranks_free(lade_ranks *ranks, void *data)
{
  if (!ranks)
    return;
  if (data)
    lade_comm_free(ranks->comm, data);
}

int lade_ranks_sum(lade_ranks *ranks, float *values, uint64_t n, struct lade_error *error)
{
  if (!ranks)
    return lade_error_set(error, -EINVAL, "lade_ranks_sum: ranks is NULL");
  const struct lade_collective sum = {.kind = LADE_ALL_REDUCE, .dtype = LADE_F32, .n = n, .src = values, .dst = values};
  return lade_comm_run(ranks->comm, &sum, error);
}

int lade_ranks_broadcast(lade_ranks *ranks, int root, void *data, uint64_t bytes, struct lade_error *error)
{
  if (!ranks)
    return lade_error_set(error, -EINVAL, "lade_ranks_broadcast: ranks is NULL");
  const struct lade_collective tell = {.kind = LADE_BROADCAST, .dtype = LADE_U8, .peer = root, .n = bytes, .src = data,
                                       .dst = data};
  return lade_comm_run(ranks->comm, &tell, error);
}

void lade_ranks_abort(lade_ranks *ranks, const char *words)
{
  if (!ranks)
    return;
  lade_comm_abort(ranks->comm, words);
}

/* ---- the shards ---- */

/*
 * Check that the vectors of all ranks have the same length. Every rank receives the same numbers, so all return the
 * same result.
 */
static int sizes_compare(lade_comm *comm, uint64_t n_elements, struct lade_error *error)
{
  int size = lade_comm_size(comm);
  uint64_t *all = calloc((size_t)size, sizeof(*all));
  if (!all) {
    lade_comm_abort(comm, "no memory to compare the sizes of a vector"); /* otherwise the other ranks wait until the
                                                                            timeout */
    return lade_error_set(error, -ENOMEM, "lade_shard_create: out of memory");
  }
  const struct lade_collective gather = {.kind = LADE_ALL_GATHER, .dtype = LADE_U8, .n = sizeof(*all),
                                         .src = &n_elements, .dst = all};
  int status = lade_comm_run(comm, &gather, error);
  for (int rank = 1; rank < size && !status; rank++) {
    if (all[rank] != all[0])
      status = lade_error_set(error, -EINVAL, "lade_shard_create: rank %d cuts %llu elements and rank 0 %llu", rank,
                              (unsigned long long)all[rank], (unsigned long long)all[0]);
  }
  if (!status && (n_elements == 0 || n_elements > ELEMENTS_MOST))
    status = lade_error_set(error, -EINVAL, "lade_shard_create: %llu elements cannot be cut",
                            (unsigned long long)n_elements);
  free(all);
  return status;
}

int lade_shard_create(lade_ranks *ranks, uint64_t n_elements, struct lade_error *error, lade_shard **ret_shard)
{
  if (!ranks || !ret_shard)
    return lade_error_set(error, -EINVAL, "lade_shard_create: ranks or ret_shard is NULL");
  int status = sizes_compare(ranks->comm, n_elements, error);
  if (status)
    return status;
  lade_shard *shard = calloc(1, sizeof(*shard));
  if (!shard)
    return lade_error_set(error, -ENOMEM, "lade_shard_create: out of memory");
  uint64_t size = (uint64_t)lade_comm_size(ranks->comm);
  shard->comm = ranks->comm;
  shard->n_elements = n_elements;
  shard->block_elements = lade_align_up((n_elements + size - 1) / size, LADE_SHARD_ELEMENTS);
  *ret_shard = shard;
  return 0;
}

void lade_shard_destroy(lade_shard *shard)
{
  free(shard);
}

int lade_shard_get_info(const lade_shard *shard, struct lade_shard_info *ret_info, struct lade_error *error)
{
  if (!shard)
    return lade_error_set(error, -EINVAL, "lade_shard_get_info: shard is NULL");
  const struct lade_shard_info info = {
      .struct_size = sizeof(info), .n_elements = shard->n_elements, .block_elements = shard->block_elements,
      .padded_elements = shard->block_elements * (uint64_t)lade_comm_size(shard->comm)};
  return lade_struct_fill("lade_shard_info", ret_info, &info, sizeof(info), error);
}

static struct lade_shard_block block_get(const lade_shard *shard, int rank)
{
  uint64_t first = (uint64_t)rank * shard->block_elements;
  uint64_t left = shard->n_elements - LADE_MIN(shard->n_elements, first);
  return (struct lade_shard_block){.struct_size = sizeof(struct lade_shard_block), .first_element = first,
                                   .n_elements = LADE_MIN(left, shard->block_elements)};
}

int lade_shard_get_block(const lade_shard *shard, int rank, struct lade_shard_block *ret_block,
                         struct lade_error *error)
{
  if (!shard)
    return lade_error_set(error, -EINVAL, "lade_shard_get_block: shard is NULL");
  if (rank < 0 || rank >= lade_comm_size(shard->comm))
    return lade_error_set(error, -EINVAL, "lade_shard_get_block: there is no rank %d among %d", rank,
                          lade_comm_size(shard->comm));
  const struct lade_shard_block block = block_get(shard, rank);
  return lade_struct_fill("lade_shard_block", ret_block, &block, sizeof(block), error);
}

int lade_shard_get_owner(const lade_shard *shard, uint64_t element, int *ret_rank, struct lade_error *error)
{
  if (!shard || !ret_rank)
    return lade_error_set(error, -EINVAL, "lade_shard_get_owner: shard or ret_rank is NULL");
  if (element >= shard->n_elements)
    return lade_error_set(error, -EINVAL, "lade_shard_get_owner: there is no element %llu among %llu",
                          (unsigned long long)element, (unsigned long long)shard->n_elements);
  *ret_rank = (int)(element / shard->block_elements);
  return 0;
}

int lade_shard_cut(const lade_shard *shard, enum lade_dtype dtype, const void *all, void *own,
                   struct lade_error *error)
{
  if (!shard)
    return lade_error_set(error, -EINVAL, "lade_shard_cut: shard is NULL");
  if ((unsigned)dtype >= LADE_N_DTYPES || !all || !own)
    return lade_error_set(error, -EINVAL, "lade_shard_cut: dtype %d, and both vectors must be there", (int)dtype);
  const struct lade_shard_block block = block_get(shard, lade_comm_rank(shard->comm));
  size_t item = lade_dtype_bytes(dtype), bytes = block.n_elements * item;
  if (bytes) /* a block of only padding begins past the vector's end */
    memcpy(own, (const char *)all + block.first_element * item, bytes);
  memset((char *)own + bytes, 0, shard->block_elements * item - bytes);
  return 0;
}

int lade_shard_gather(lade_shard *shard, enum lade_dtype dtype, const void *own, void *all, struct lade_error *error)
{
  if (!shard)
    return lade_error_set(error, -EINVAL, "lade_shard_gather: shard is NULL");
  const struct lade_collective gather = {.kind = LADE_ALL_GATHER, .dtype = dtype, .n = shard->block_elements,
                                         .src = own, .dst = all};
  return lade_comm_run(shard->comm, &gather, error);
}

int lade_shard_reduce(lade_shard *shard, enum lade_dtype dtype, const void *all, void *own, struct lade_error *error)
{
  if (!shard)
    return lade_error_set(error, -EINVAL, "lade_shard_reduce: shard is NULL");
  const struct lade_collective reduce = {.kind = LADE_REDUCE_SCATTER, .dtype = dtype, .n = shard->block_elements,
                                         .src = all, .dst = own};
  return lade_comm_run(shard->comm, &reduce, error);
}
