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
 *
 * Devices. With a GPU there are two communicators: NCCL's for the vectors, and the hosts' for lengths and for values in
 * host memory. A call on a queue needs its arguments until its event, so the ranks keep a ring of calls in flight. A
 * communicator has one collective in flight: a call on another queue than the last one waits for it on the device. A
 * blocking call waits for all of them first.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "base/cpu.h"
#include "base/pool.h"
#include "device/cuda.h"
#include "device/device.h"
#include "lade/adam.h"
#include "lade/shard.h"
#include "parallel/comm.h"

#define ELEMENTS_MAX (UINT64_C(1) << 44)
#define THREADS_MAX 1024
#define CALLS_MAX 64 /* on queues, in flight */

_Static_assert(LADE_SHARD_ELEMENTS == LADE_ADAM_SHARD_ELEMENTS, "a block is a shard of the optimizer");

extern char **environ;

/* A call on a queue. */
struct queued_call {
  struct lade_collective collective;
  struct lade_comm_work work;
  lade_queue *queue; /* NULL: the slot was never in use */
  uint64_t count;
};

struct lade_ranks {
  lade_comm *comm;             /* of the vectors */
  lade_comm *host;             /* of values in host memory: comm itself, unless NCCL is comm's engine */
  struct lade_kernels kernels; /* of the job's handle; a part borrows it */
  lade_pool *pool;             /* owned by the job's handle; NULL in a part */
  lade_device *device;         /* borrowed; NULL: vectors are in host memory */
  lade_queue *copies;          /* of the job's handle, on a GPU: copies of lade_shard_cut; a part borrows it */
  bool is_part, is_used;       /* used: it has had parts, shards or memory */
  int local_rank;
  int timeout_ms;
  struct queued_call calls[CALLS_MAX];
  uint64_t n_calls;            /* call i is in slot i % CALLS_MAX */
};

struct lade_shard {
  lade_ranks *ranks; /* borrowed */
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
  ranks->local_rank = launch.local_rank;
  ranks->timeout_ms = params->timeout_ms;
  status = lade_comm_open(&comm, error, &ranks->comm);
  ranks->host = ranks->comm;
  return status;
}

int lade_ranks_open(const struct lade_ranks_params *params, struct lade_error *error, lade_ranks **ret_ranks)
{
  if (!ret_ranks)
    return lade_error_set(error, -EINVAL, "lade_ranks_open: ret_ranks is NULL");
  struct lade_ranks_params own = {.struct_size = sizeof(own)};
  int status = params ? lade_struct_read("lade_ranks_params", params, &own, sizeof(own), error) : 0;
  if (status)
    return status;
  if (own.n_threads < 0 || own.n_threads > THREADS_MAX || own.timeout_ms < 0)
    return lade_error_set(error, -EINVAL, "lade_ranks_params: %d threads and a timeout of %d ms: 0 for what is usual, "
                          "or at most %d threads", own.n_threads, own.timeout_ms, THREADS_MAX);
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
  return ranks->host;
}

/* ---- devices and queues ---- */

static int device_check(const lade_ranks *ranks, lade_device *device, struct lade_error *error)
{
  struct lade_device_info info;
  if (ranks->is_part || ranks->is_used || ranks->device)
    return lade_error_set(error, -EINVAL, "lade_ranks_set_device: it comes once, on the ranks of the job, and before "
                          "parts, shards and memory");
  lade_device_get_info(device, &info);
  if (info.is_dry)
    return lade_error_set(error, -EINVAL, "lade_ranks_set_device: a dry device has no memory for vectors");
  return 0;
}

int lade_ranks_set_device(lade_ranks *ranks, lade_device *device, struct lade_error *error)
{
  if (!ranks || !device)
    return lade_error_set(error, -EINVAL, "lade_ranks_set_device: ranks or device is NULL");
  int status = device_check(ranks, device, error);
  if (status)
    return status;
  if (lade_cuda_is(device)) {
    const struct lade_comm_params params = {.struct_size = sizeof(params), .engine = LADE_COMM_NCCL,
                                            .kernels = &ranks->kernels, .pool = ranks->pool, .device = device,
                                            .control = ranks->host, .timeout_ms = ranks->timeout_ms};
    lade_comm *comm = NULL;
    status = lade_queue_create(device, LADE_QUEUE_COMPUTE, &ranks->copies);
    if (status)
      lade_comm_abort(ranks->host, "the device refused a queue"); /* the others wait in the opening */
    status = status ? lade_error_set(error, status, "lade_ranks_set_device: the device refused a queue (%s)",
                                     strerror(-status)) : lade_comm_open(&params, error, &comm);
    if (status) {
      lade_queue_destroy(ranks->copies);
      ranks->copies = NULL;
      return status;
    }
    ranks->comm = comm;
  }
  ranks->device = device;
  return 0;
}

/* Wait for the calls on queues that are in flight, all but the last @n_left of them. */
static void calls_wait(lade_ranks *ranks, uint64_t n_left)
{
  uint64_t n = LADE_MIN(ranks->n_calls, CALLS_MAX);
  for (uint64_t i = ranks->n_calls - n; i + n_left < ranks->n_calls; i++) {
    struct queued_call *call = &ranks->calls[i % CALLS_MAX];
    if (call->queue)
      lade_queue_sync(call->queue, call->count);
    call->queue = NULL; /* it may be destroyed from here on */
  }
}

int lade_ranks_wait(lade_ranks *ranks, struct lade_error *error)
{
  if (!ranks)
    return lade_error_set(error, -EINVAL, "lade_ranks_wait: ranks is NULL");
  calls_wait(ranks, 0);
  int status = lade_comm_status(ranks->comm, error);
  if (!status && ranks->device && lade_device_status(ranks->device))
    status = lade_error_set(error, lade_device_status(ranks->device), "the device has failed (%s)",
                            strerror(-lade_device_status(ranks->device)));
  return status;
}

/* Put a collective on @queue behind all earlier calls. */
static int call_submit(lade_ranks *ranks, lade_queue *queue, const struct lade_collective *collective,
                       uint64_t *ret_count, struct lade_error *error)
{
  if (!ranks->device || !queue || lade_queue_get_device(queue) != ranks->device)
    return lade_error_set(error, -EINVAL, "%s: the queue must be one of the ranks' device; see lade_ranks_set_device",
                          lade_collective_name(collective->kind));
  int status = lade_comm_check(ranks->comm, collective, error);
  if (!status)
    status = lade_comm_status(ranks->comm, error);
  if (status)
    return status;
  calls_wait(ranks, CALLS_MAX - 1);
  struct queued_call *last = ranks->n_calls ? &ranks->calls[(ranks->n_calls - 1) % CALLS_MAX] : NULL;
  if (last && last->queue && last->queue != queue)
    lade_queue_wait(queue, last->queue, last->count);
  struct queued_call *call = &ranks->calls[ranks->n_calls % CALLS_MAX];
  *call = (struct queued_call){.collective = *collective, .queue = queue};
  call->work.list = (struct lade_comm_list){&call->collective, 1};
  status = lade_comm_launch(ranks->comm, queue, &call->work, &call->count);
  LADE_ASSERT(!status); /* the arguments are checked */
  ranks->n_calls++;
  if (ret_count)
    *ret_count = call->count;
  return 0;
}

/* Run a collective behind all earlier calls. */
static int call_run(lade_ranks *ranks, const struct lade_collective *collective, struct lade_error *error)
{
  calls_wait(ranks, 0);
  return lade_comm_run(ranks->comm, collective, error);
}

void lade_ranks_close(lade_ranks *ranks)
{
  if (!ranks)
    return;
  calls_wait(ranks, 0);
  if (!ranks->is_part)
    lade_queue_destroy(ranks->copies);
  if (ranks->comm != ranks->host)
    lade_comm_close(ranks->comm);
  lade_comm_close(ranks->host);
  lade_pool_destroy(ranks->pool);
  free(ranks);
}

/* ---- ranks, continued ---- */

/* Split both communicators. On failure none is left. */
static int comms_split(lade_ranks *ranks, int colour, int key, lade_ranks *part, struct lade_error *error)
{
  int status = lade_comm_split(ranks->comm, colour, key, error, &part->comm);
  part->host = part->comm;
  if (status || ranks->comm == ranks->host)
    return status;
  status = lade_comm_split(ranks->host, colour, key, error, &part->host);
  if (status)
    lade_comm_close(part->comm);
  return status;
}

int lade_ranks_split(lade_ranks *ranks, int colour, int key, struct lade_error *error, lade_ranks **ret_part)
{
  if (!ranks || !ret_part)
    return lade_error_set(error, -EINVAL, "lade_ranks_split: ranks or ret_part is NULL");
  lade_ranks own = {.kernels = ranks->kernels, .device = ranks->device, .copies = ranks->copies, .is_part = true,
                    .local_rank = ranks->local_rank, .timeout_ms = ranks->timeout_ms};
  calls_wait(ranks, 0);
  int status = comms_split(ranks, colour, key, &own, error);
  if (status)
    return status;
  ranks->is_used = true;
  lade_ranks *part = own.comm ? malloc(sizeof(*part)) : NULL;
  if (own.comm && !part) {
    lade_comm_abort(own.comm, "no memory for a part of the ranks"); /* the other members have created their parts */
    if (own.host != own.comm)
      lade_comm_close(own.host);
    lade_comm_close(own.comm);
    return lade_error_set(error, -ENOMEM, "lade_ranks_split: out of memory");
  }
  if (part)
    *part = own;
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
                                       .size = lade_comm_size(ranks->comm), .engine = comm.engine, .path = comm.path,
                                       .local_rank = ranks->local_rank};
  return lade_struct_fill("lade_ranks_info", ret_info, &info, sizeof(info), error);
}

int lade_ranks_alloc(lade_ranks *ranks, uint64_t bytes, struct lade_error *error, void **ret_data)
{
  if (!ranks || !ret_data)
    return lade_error_set(error, -EINVAL, "lade_ranks_alloc: ranks or ret_data is NULL");
  ranks->is_used = true;
  calls_wait(ranks, 0);
  return lade_comm_alloc(ranks->comm, bytes, error, ret_data);
}

void lade_ranks_free(lade_ranks *ranks, void *data)
{
  if (!ranks)
    return;
  if (data)
    lade_comm_free(ranks->comm, data);
}

/* Run a collective on host memory; behind the calls on queues, if it is on their communicator. */
static int host_run(lade_ranks *ranks, const struct lade_collective *collective, struct lade_error *error)
{
  int status = ranks->host != ranks->comm ? lade_comm_status(ranks->comm, error) : 0;
  if (ranks->host == ranks->comm)
    calls_wait(ranks, 0);
  return status ? status : lade_comm_run(ranks->host, collective, error);
}

int lade_ranks_sum(lade_ranks *ranks, float *values, uint64_t n, struct lade_error *error)
{
  if (!ranks)
    return lade_error_set(error, -EINVAL, "lade_ranks_sum: ranks is NULL");
  const struct lade_collective sum = {.kind = LADE_ALL_REDUCE, .dtype = LADE_F32, .n = n, .src = values, .dst = values};
  return host_run(ranks, &sum, error);
}

int lade_ranks_broadcast(lade_ranks *ranks, int root, void *data, uint64_t bytes, struct lade_error *error)
{
  if (!ranks)
    return lade_error_set(error, -EINVAL, "lade_ranks_broadcast: ranks is NULL");
  const struct lade_collective broadcast = {.kind = LADE_BROADCAST, .dtype = LADE_U8, .peer = root, .n = bytes,
                                            .src = data, .dst = data};
  return host_run(ranks, &broadcast, error);
}

void lade_ranks_abort(lade_ranks *ranks, const char *words)
{
  if (!ranks)
    return;
  lade_comm_abort(ranks->comm, words);
}

/* ---- the shards ---- */

/*
 * Check that the vectors of all ranks have the same length, with @all as memory for a number of each rank. Every rank
 * receives the same numbers, so all return the same result.
 */
static int sizes_compare(lade_comm *comm, uint64_t n_elements, uint64_t *all, struct lade_error *error)
{
  const int size = lade_comm_size(comm);
  const struct lade_collective gather = {.kind = LADE_ALL_GATHER, .dtype = LADE_U8, .n = sizeof(*all),
                                         .src = &n_elements, .dst = all};
  int status = lade_comm_run(comm, &gather, error);
  for (int rank = 1; rank < size && !status; rank++) {
    if (all[rank] != all[0])
      status = lade_error_set(error, -EINVAL, "lade_shard_create: rank %d cuts %llu elements and rank 0 %llu", rank,
                              (unsigned long long)all[rank], (unsigned long long)all[0]);
  }
  if (!status && (n_elements == 0 || n_elements > ELEMENTS_MAX))
    status = lade_error_set(error, -EINVAL, "lade_shard_create: %llu elements cannot be cut",
                            (unsigned long long)n_elements);
  return status;
}

/*
 * Compare the lengths of all ranks. All memory is allocated first, so that every rank passes the comparison or none
 * does. A rank without memory ends the calls of the others, which would wait for it until the timeout.
 */
static int shard_make(lade_ranks *ranks, uint64_t n_elements, struct lade_error *error, lade_shard **ret_shard)
{
  uint64_t *all = calloc((size_t)lade_comm_size(ranks->host), sizeof(*all));
  lade_shard *shard = calloc(1, sizeof(*shard));
  int status = 0;
  if (!all || !shard) {
    status = lade_error_set(error, -ENOMEM, "lade_shard_create: out of memory");
    lade_comm_abort(ranks->host, "no memory for a shard");
  }
  if (!status)
    status = sizes_compare(ranks->host, n_elements, all, error);
  free(all);
  if (status)
    free(shard);
  else
    *ret_shard = shard;
  return status;
}

int lade_shard_create(lade_ranks *ranks, uint64_t n_elements, struct lade_error *error, lade_shard **ret_shard)
{
  if (!ranks || !ret_shard)
    return lade_error_set(error, -EINVAL, "lade_shard_create: ranks or ret_shard is NULL");
  if (ranks->host == ranks->comm)
    calls_wait(ranks, 0);
  lade_shard *shard = NULL;
  int status = shard_make(ranks, n_elements, error, &shard);
  if (status)
    return status;
  uint64_t size = (uint64_t)lade_comm_size(ranks->comm);
  ranks->is_used = true;
  shard->ranks = ranks;
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
      .padded_elements = shard->block_elements * (uint64_t)lade_comm_size(shard->ranks->comm)};
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
  if (rank < 0 || rank >= lade_comm_size(shard->ranks->comm))
    return lade_error_set(error, -EINVAL, "lade_shard_get_block: there is no rank %d among %d", rank,
                          lade_comm_size(shard->ranks->comm));
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

/* Copy a block of a GPU's vector, and zeros behind it: less than LADE_SHARD_ELEMENTS for each rank. */
static int device_cut(const lade_ranks *ranks, void *own, const void *from, uint64_t bytes, uint64_t padding_bytes,
                      struct lade_error *error)
{
  void *zeros = calloc(1, LADE_MAX(padding_bytes, 1));
  uint64_t count = 0;
  if (!zeros)
    return lade_error_set(error, -ENOMEM, "lade_shard_cut: out of memory");
  if (bytes)
    lade_queue_copy(ranks->copies, &(struct lade_copy){.dst = own, .src = from, .bytes = bytes}, &count);
  if (padding_bytes)
    lade_queue_copy(ranks->copies, &(struct lade_copy){.dst = (char *)own + bytes, .src = zeros,
                                                       .bytes = padding_bytes}, &count);
  int status = lade_queue_sync(ranks->copies, count);
  free(zeros);
  return status ? lade_error_set(error, status, "lade_shard_cut: the device failed (%s)", strerror(-status)) : 0;
}

int lade_shard_cut(const lade_shard *shard, enum lade_dtype dtype, const void *all, void *own,
                   struct lade_error *error)
{
  if (!shard)
    return lade_error_set(error, -EINVAL, "lade_shard_cut: shard is NULL");
  if ((unsigned)dtype >= LADE_N_DTYPES || !all || !own)
    return lade_error_set(error, -EINVAL, "lade_shard_cut: dtype %d, and both vectors must be there", (int)dtype);
  const struct lade_shard_block block = block_get(shard, lade_comm_rank(shard->ranks->comm));
  size_t item = lade_dtype_bytes(dtype), bytes = block.n_elements * item;
  uint64_t padding_bytes = shard->block_elements * item - bytes;
  const void *from = (const char *)all + (bytes ? block.first_element * item : 0);
  if (shard->ranks->copies)
    return device_cut(shard->ranks, own, from, bytes, padding_bytes, error);
  if (bytes) /* a block of only padding begins past the vector's end */
    memcpy(own, from, bytes);
  memset((char *)own + bytes, 0, padding_bytes);
  return 0;
}

static struct lade_collective gather_of(const lade_shard *shard, enum lade_dtype dtype, const void *own, void *all)
{
  return (struct lade_collective){.kind = LADE_ALL_GATHER, .dtype = dtype, .n = shard->block_elements, .src = own,
                                  .dst = all};
}

static struct lade_collective reduce_of(const lade_shard *shard, enum lade_dtype dtype, const void *all, void *own)
{
  return (struct lade_collective){.kind = LADE_REDUCE_SCATTER, .dtype = dtype, .n = shard->block_elements, .src = all,
                                  .dst = own};
}

int lade_shard_gather(lade_shard *shard, enum lade_dtype dtype, const void *own, void *all, struct lade_error *error)
{
  if (!shard)
    return lade_error_set(error, -EINVAL, "lade_shard_gather: shard is NULL");
  const struct lade_collective gather = gather_of(shard, dtype, own, all);
  return call_run(shard->ranks, &gather, error);
}

int lade_shard_reduce(lade_shard *shard, enum lade_dtype dtype, const void *all, void *own, struct lade_error *error)
{
  if (!shard)
    return lade_error_set(error, -EINVAL, "lade_shard_reduce: shard is NULL");
  const struct lade_collective reduce = reduce_of(shard, dtype, all, own);
  return call_run(shard->ranks, &reduce, error);
}

int lade_shard_gather_on(lade_shard *shard, lade_queue *queue, enum lade_dtype dtype, const void *own, void *all,
                         uint64_t *ret_count, struct lade_error *error)
{
  if (!shard)
    return lade_error_set(error, -EINVAL, "lade_shard_gather_on: shard is NULL");
  const struct lade_collective gather = gather_of(shard, dtype, own, all);
  return call_submit(shard->ranks, queue, &gather, ret_count, error);
}

int lade_shard_reduce_on(lade_shard *shard, lade_queue *queue, enum lade_dtype dtype, const void *all, void *own,
                         uint64_t *ret_count, struct lade_error *error)
{
  if (!shard)
    return lade_error_set(error, -EINVAL, "lade_shard_reduce_on: shard is NULL");
  const struct lade_collective reduce = reduce_of(shard, dtype, all, own);
  return call_submit(shard->ranks, queue, &reduce, ret_count, error);
}
