/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The engine for GPUs: NCCL's collectives on the streams of a CUDA device, in the device's memory.
 *
 * Each communicator has a second one of the same members, the control: MPI's, or a world of one. The control starts
 * NCCL (it broadcasts NCCL's unique id), agrees on failures during creation, and reports those at run time
 * (comm_nccl_watch.c). Parts have an id of their own and share nothing with the whole, so that ending one does not end
 * another.
 *
 * A communicator has two handles of NCCL. The root does not block: NCCL works in a thread of its own, and the creator
 * polls, so that creation ends when a peer fails. The root's split by one colour gives the handle, which blocks: a call
 * puts its kernel on the stream before it returns, and costs no thread. NCCL (since 2.23) creates a thread for each
 * group of a handle that does not block, and Lade would then poll for it: 100 to 150 us for each collective. A call
 * that blocks cannot be aborted by its own handle: NCCL allows no abort of a handle while a thread is in a call on it.
 * Root and handle are therefore one family (splitShare), whose kernels and waits end by one flag. Aborting the root
 * raises the flag, the call returns, and then the handle is aborted. The root makes no connections, so it takes little
 * memory. NCCL_COMM_BLOCKING=0 in the environment makes the handle one that is polled.
 *
 * The launching thread puts a piece of work on a stream: a word that marks its begin, NCCL's calls, a word that marks
 * its end. Moves without a sum are sent as bytes for every dtype, because NCCL lacks some of Lade's types. An
 * all_to_all is one group of sends and receives, and a list is one group of the calls of its items. A collective of 0
 * elements and a barrier are a sum of one number, because NCCL skips empty calls.
 *
 * NCCL connects two ranks at the first send from one to the other. Both then wait for each other, one in its send, one
 * in its receive, and calls on a handle are made one at a time. So two neighbours of a pipeline that both begin with
 * the receive would never reach their sends. Therefore neighbours exchange a byte when a communicator is created for
 * them. One group sends and receives both ways, and NCCL connects such a group at once.
 *
 * A receive between stages waits on the device until its send begins, while another microbatch is computed. NCCL gives
 * it up to 32 blocks, each of which takes a multiprocessor. Communicators of neighbours are therefore limited to
 * PAIR_CTAS blocks. NCCL reckons 20 GB/s a block on Ampere and 36.7 on Hopper (perChMaxRingLL128Bws in its tuning
 * model), so a send keeps 80 and 147 GB/s; NCCL_MAX_CTAS in the environment replaces the limit.
 *
 * lade_comm_run uses a stream of the communicator and waits for its event.
 *
 * Rejected: reductions as exchanges with sums here over the tree of ranks, which would give the bits of the hosts'
 * engine. They send as many bytes and take another pass over memory, and they cannot use NCCL's reductions inside the
 * switches. Rejected: collectives captured into CUDA graphs, which also cost no thread. NCCL keeps the buffers and work
 * of each captured collective for as long as its graph. No warm-up measures that memory, and the host's checks count
 * launches.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "device/cuda.h"
#include "parallel/comm/comm_nccl_internal.h"

#define SCRATCH_BYTES 64 /* of each communicator: a number to sum; a byte to send and one to receive */
#define SCRATCHES 64     /* for communicators in turn; outside the device's chunks and their capacity */
#define SCRATCH_SEND 16
#define SCRATCH_RECV 32 /* offsets in the scratch */
#define PAGE_BYTES 4096
#define PAIR_CTAS 4 /* blocks of a send or receive between stages */

static void *memory_at(uint64_t address)
{
  return (void *)(uintptr_t)address;
}

/* ---- collectives ---- */

/* Send bytes to @peer and receive as many from it; called inside a group. */
static nccl_result peer_exchange(const struct nccl_comm *comm, int peer, const void *src, void *dst, uint64_t bytes,
                                 nccl_stream stream)
{
  const struct nccl_library *nccl = &comm->job->nccl;
  nccl_result result = nccl->ncclSend(src, bytes, NCCL_UINT8, peer, comm->handle, stream);
  return result ? result : nccl->ncclRecv(dst, bytes, NCCL_UINT8, peer, comm->handle, stream);
}

static nccl_result blocks_exchange(const struct nccl_comm *comm, const struct lade_collective *c, nccl_stream stream)
{
  const struct nccl_library *nccl = &comm->job->nccl;
  uint64_t bytes = lade_collective_bytes(c);
  nccl_result result = nccl->ncclGroupStart();
  if (result)
    return result;
  for (int peer = 0; peer < comm->base.size && !result; peer++) {
    uint64_t at = (uint64_t)peer * bytes;
    result = peer_exchange(comm, peer, (const char *)c->src + at, (char *)c->dst + at, bytes, stream);
  }
  nccl_result ended = nccl->ncclGroupEnd(); /* also after a failure inside the group */
  return result ? result : ended;
}

/* Call NCCL for one collective. Sums use the dtype, all other kinds bytes. */
static nccl_result collective_call(const struct nccl_comm *comm, const struct lade_collective *c, nccl_stream stream,
                                   const char **ret_call)
{
  const struct nccl_library *nccl = &comm->job->nccl;
  nccl_handle handle = comm->handle;
  uint64_t bytes = lade_collective_bytes(c);
  int type = c->dtype == LADE_BF16 ? NCCL_BFLOAT16 : c->dtype == LADE_F16 ? NCCL_FLOAT16 : NCCL_FLOAT32;
  const void *src = c->kind == LADE_BROADCAST && c->peer != comm->base.rank ? c->dst : c->src;
  switch (c->kind) {
  case LADE_ALL_GATHER:
    *ret_call = "ncclAllGather";
    return nccl->ncclAllGather(src, c->dst, bytes, NCCL_UINT8, handle, stream);
  case LADE_REDUCE_SCATTER:
    *ret_call = "ncclReduceScatter";
    return nccl->ncclReduceScatter(src, c->dst, c->n, type, NCCL_SUM, handle, stream);
  case LADE_ALL_TO_ALL:
    *ret_call = "a group of ncclSend and ncclRecv";
    return blocks_exchange(comm, c, stream);
  case LADE_BROADCAST:
    *ret_call = "ncclBroadcast";
    return nccl->ncclBroadcast(src, c->dst, bytes, NCCL_UINT8, c->peer, handle, stream);
  case LADE_SEND:
    *ret_call = "ncclSend";
    return nccl->ncclSend(src, bytes, NCCL_UINT8, c->peer, handle, stream);
  case LADE_RECV:
    *ret_call = "ncclRecv";
    return nccl->ncclRecv(c->dst, bytes, NCCL_UINT8, c->peer, handle, stream);
  default:
    *ret_call = "ncclAllReduce";
    return nccl->ncclAllReduce(src, c->dst, c->n, type, NCCL_SUM, handle, stream);
  }
}

static bool is_pair(enum lade_collective_kind kind)
{
  return kind == LADE_SEND || kind == LADE_RECV;
}

/* Call NCCL for the items of a list that have elements, as one piece of work; other kinds have one item. */
static nccl_result list_call(const struct nccl_comm *comm, const struct lade_comm_list *list, nccl_stream stream,
                             const char **ret_call)
{
  const struct nccl_library *nccl = &comm->job->nccl;
  if (list->n == 1)
    return collective_call(comm, list->items, stream, ret_call);
  nccl_result result = nccl->ncclGroupStart();
  *ret_call = "ncclGroupStart";
  if (result)
    return result;
  for (int i = 0; i < list->n && !result; i++) {
    if (list->items[i].n)
      result = collective_call(comm, &list->items[i], stream, ret_call);
  }
  nccl_result ended = nccl->ncclGroupEnd(); /* also after a failure inside the group */
  return result ? result : ended;
}

/* Return the collective that replaces one without elements, which must still synchronise. */
static struct lade_collective meeting_of(const struct nccl_comm *comm, const struct lade_collective *c)
{
  if (is_pair(c->kind))
    return (struct lade_collective){.kind = c->kind, .dtype = LADE_U8, .n = 1, .peer = c->peer,
                                    .src = memory_at(comm->scratch + SCRATCH_SEND),
                                    .dst = memory_at(comm->scratch + SCRATCH_RECV)};
  return (struct lade_collective){.kind = LADE_ALL_REDUCE, .dtype = LADE_F32, .n = 1,
                                  .src = memory_at(comm->scratch), .dst = memory_at(comm->scratch)};
}

/* Exchange a byte with the next rank and the previous one, which are the same with two ranks. */
static nccl_result neighbours_exchange(const struct nccl_comm *comm, nccl_stream stream)
{
  const struct nccl_library *nccl = &comm->job->nccl;
  const int size = comm->base.size, rank = comm->base.rank;
  const int peers[] = {(rank + 1) % size, (rank + size - 1) % size};
  nccl_result result = nccl->ncclGroupStart();
  if (result)
    return result;
  for (int i = 0; i < LADE_MIN(size - 1, 2) && !result; i++)
    result = peer_exchange(comm, peers[i], memory_at(comm->scratch + SCRATCH_SEND),
                           memory_at(comm->scratch + SCRATCH_RECV + (uint64_t)i), 1, stream);
  nccl_result ended = nccl->ncclGroupEnd(); /* also after a failure inside the group */
  return result ? result : ended;
}

/* Make the stream write @n to @word, so that the watcher sees that it has reached piece @n. */
static int progress_put(struct nccl_comm *comm, nccl_stream stream, const _Atomic uint64_t *word, uint64_t n,
                        struct lade_error *error)
{
  uint64_t offset = (uint64_t)((const char *)word - (const char *)comm->progress);
  int result = lade_cuda_stream_write(comm->job->device, stream, comm->progress_address + offset, n);
  return result ? lade_error_set(error, -EIO, "the device takes no more work: cuStreamWriteValue64 answers %d", result)
                : 0;
}

struct put {
  struct nccl_comm *comm;
  const struct lade_comm_list *list;
  bool is_of_neighbours; /* exchange bytes with the neighbours; the list is a barrier for the watcher */
};

/* Put one piece of work on the stream. pre: calls is held. */
static int piece_put(const struct put *put, nccl_stream stream, struct lade_error *error)
{
  struct nccl_comm *comm = put->comm;
  const struct lade_comm_list *list = put->list;
  const struct lade_collective *c = list->items, meeting = meeting_of(comm, c);
  bool is_moving = comm_list_elements(list) && c->kind != LADE_BARRIER;
  const struct lade_comm_list real = is_moving ? *list : (struct lade_comm_list){&meeting, 1};
  const char *call = "a group of ncclSend and ncclRecv";
  int status = is_pair(c->kind) ? 0 : comm_nccl_intent_publish(comm, list, error);
  if (status)
    return status;
  const int lane = c->kind == LADE_RECV;
  uint64_t n = atomic_load(&comm->n_pieces[lane]) + 1;
  atomic_store(&comm->n_pieces[lane], n);
  status = progress_put(comm, stream, &comm->progress[lane].n_begun, n, error);
  if (status)
    return status;
  comm_nccl_enter(comm);
  nccl_result result = put->is_of_neighbours ? neighbours_exchange(comm, stream)
                                             : list_call(comm, &real, stream, &call);
  status = comm_nccl_leave(comm, call, result, error);
  return status ? status : progress_put(comm, stream, &comm->progress[lane].n_ended, n, error);
}

/*
 * Put a collective on the stream, in the launching thread, with the device's context. A failure becomes the
 * communicator's status, not the device's.
 */
static int collective_put(void *stream, void *args)
{
  const struct put *put = args;
  struct nccl_comm *comm = put->comm;
  struct lade_error error = {0};
  pthread_mutex_lock(&comm->calls);
  int status = lade_comm_status(&comm->base, NULL);
  if (!status) {
    status = piece_put(put, stream, &error);
    if (status)
      comm_nccl_fail(comm, status, &error);
  }
  pthread_mutex_unlock(&comm->calls);
  return 0;
}

/* Run @put on the communicator's own stream and wait for it. */
static int put_run(struct put *put, struct lade_error *error)
{
  struct nccl_comm *comm = put->comm;
  uint64_t count = 0;
  lade_cuda_queue_enqueue(comm->queue, collective_put, put, NULL, &count);
  int device_status = lade_queue_sync(comm->queue, count); /* the watcher ensures that this ends */
  int status = lade_comm_status(&comm->base, error);
  if (!status && device_status) {
    status = lade_error_set(error, device_status, "the device has failed");
    lade_cuda_get_error(comm->job->device, error);
    error->code = status;
  }
  return status;
}

static int nccl_run(lade_comm *base, const struct lade_comm_list *list, struct lade_error *error)
{
  return put_run(&(struct put){.comm = (struct nccl_comm *)base, .list = list}, error);
}

static int neighbours_meet(struct nccl_comm *comm, struct lade_error *error)
{
  const struct lade_collective barrier = {.kind = LADE_BARRIER};
  const struct lade_comm_list list = {&barrier, 1};
  if (!comm->base.params.has_neighbours || comm->base.size == 1)
    return 0;
  return put_run(&(struct put){comm, &list, true}, error);
}

static bool nccl_launch(lade_comm *base, lade_queue *queue, struct lade_comm_work *work, uint64_t *ret_count)
{
  struct nccl_comm *comm = (struct nccl_comm *)base;
  if (!lade_cuda_queue_is_stream(comm->job->device, queue))
    return false;
  struct put put = {.comm = comm, .list = &work->list};
  lade_cuda_queue_enqueue(queue, collective_put, &put, work->ret_span, ret_count);
  return true;
}

/* ---- the job ---- */

static void job_unref(struct nccl_job *job)
{
  if (atomic_fetch_sub(&job->n_refs, 1) > 1)
    return;
  comm_nccl_watch_stop(job);
  LADE_ASSERT(job->windows.n == 0 && job->comms.n == 0);
  LADE_ARRAY_FREE(&job->windows);
  LADE_ARRAY_FREE(&job->comms);
  lade_cuda_free(job->device, job->scratch);
  pthread_cond_destroy(&job->changed);
  pthread_mutex_destroy(&job->mutex);
  free(job);
}

static int job_fill(struct nccl_job *job, struct lade_error *error)
{
  int status = lade_nccl_library_open(&job->nccl, error);
  if (status)
    return status;
  status = lade_cuda_alloc(job->device, SCRATCHES * SCRATCH_BYTES, &job->scratch);
  if (status)
    return lade_error_set(error, status, "no memory of the device for a communicator");
  status = comm_nccl_watch_start(job);
  return status ? lade_error_set(error, status, "the machine refused a thread (%s)", strerror(-status)) : 0;
}

static int job_create(const struct lade_comm_params *params, struct lade_error *error, struct nccl_job **ret_job)
{
  struct nccl_job *job = lade_fault_calloc(params->faults, 1, sizeof(*job));
  if (!job)
    return lade_error_set(error, -ENOMEM, "no memory for a communicator");
  pthread_condattr_t monotonic;
  pthread_condattr_init(&monotonic);
  pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
  pthread_cond_init(&job->changed, &monotonic);
  pthread_condattr_destroy(&monotonic);
  pthread_mutex_init(&job->mutex, NULL);
  job->device = params->device;
  atomic_store(&job->n_refs, 1);
  int status = job_fill(job, error);
  if (status) {
    job_unref(job);
    return status;
  }
  *ret_job = job;
  return 0;
}

/* ---- one communicator ---- */

static void progress_destroy(struct nccl_comm *comm)
{
  if (!comm->progress)
    return;
  lade_device_unpin(comm->job->device, comm->progress, PAGE_BYTES);
  free(comm->progress);
}

static int progress_create(struct nccl_comm *comm)
{
  void *page = lade_fault(comm->base.params.faults, LADE_FAULT_HEAP) ? NULL : aligned_alloc(PAGE_BYTES, PAGE_BYTES);
  if (!page)
    return -ENOMEM;
  memset(page, 0, PAGE_BYTES);
  int status = lade_device_pin(comm->job->device, page, PAGE_BYTES);
  if (status) {
    free(page);
    return status;
  }
  comm->progress = page;
  return lade_cuda_get_address(comm->job->device, page, &comm->progress_address);
}

/* Create the parts of a communicator that need no other member. */
static int comm_fill(struct nccl_comm *comm, struct lade_error *error)
{
  struct nccl_job *job = comm->job;
  struct lade_faults *faults = comm->base.params.faults;
  size_t size = (size_t)comm->base.size;
  unsigned n_made = atomic_fetch_add(&job->n_made, 1);
  comm->scratch = job->scratch + n_made % SCRATCHES * SCRATCH_BYTES;
  comm->ranks = lade_fault_calloc(faults, size, sizeof(*comm->ranks));
  comm->boards = lade_fault_calloc(faults, size, sizeof(*comm->boards));
  if (!comm->ranks || !comm->boards)
    return lade_error_set(error, -ENOMEM, "no memory for a communicator");
  int status = progress_create(comm);
  if (!status)
    status = lade_queue_create(job->device, LADE_QUEUE_COMM, &comm->queue);
  if (!status)
    status = comm_nccl_watch_add(comm);
  if (status)
    return lade_error_set(error, status, "no progress page, queue or watcher for a communicator (%s)",
                          strerror(-status));
  return 0;
}

static void boards_close(struct nccl_comm *comm)
{
  if (comm->boards && comm->boards[comm->base.rank])
    lade_comm_free(comm->control, comm->boards[comm->base.rank]);
  free(comm->boards);
  comm->boards = NULL;
}

/*
 * Allocate the boards in memory that all members see, if there is any, and exchange the members' ranks in the world.
 * Collective.
 */
static int boards_open(struct nccl_comm *comm, int rank_in_world, struct lade_error *error)
{
  void *own = NULL;
  const struct lade_collective gather = {.kind = LADE_ALL_GATHER, .dtype = LADE_I32, .n = 1, .src = &rank_in_world,
                                         .dst = comm->ranks};
  int status = lade_comm_run(comm->control, &gather, error);
  if (!status)
    status = lade_comm_alloc(comm->control, sizeof(struct nccl_board), error, &own);
  if (status)
    return status;
  bool is_shared = comm->control->ops->peer_memory != NULL;
  comm->boards[comm->base.rank] = own;
  for (int member = 0; member < comm->base.size && is_shared; member++) {
    const void *at = comm->control->ops->peer_memory(comm->control, own, member);
    is_shared = at != NULL;
    if (is_shared)
      comm->boards[member] = (struct nccl_board *)(uintptr_t)at;
  }
  if (!is_shared)
    boards_close(comm);
  return 0;
}

static void comm_destroy(struct nccl_comm *comm)
{
  comm_nccl_watch_remove(comm);
  lade_queue_destroy(comm->queue);
  progress_destroy(comm);
  boards_close(comm);
  lade_comm_close(comm->control);
  job_unref(comm->job);
  pthread_mutex_destroy(&comm->calls);
  pthread_mutex_destroy(&comm->root_lock);
  LADE_ARRAY_FREE(&comm->registrations);
  free(comm->ranks);
  lade_comm_finish(&comm->base);
  free(comm);
}

/* End the root, if the watcher has not. pre: the handle has ended. */
static int root_end(struct nccl_comm *comm, struct lade_error *error)
{
  const struct nccl_library *nccl = &comm->job->nccl;
  nccl_handle root = comm_nccl_root_take(comm);
  if (!root)
    return 0;
  nccl_result result = nccl->ncclCommFinalize(root);
  int status = comm_nccl_settle(comm, root, "ncclCommFinalize", result, error);
  if (status)
    nccl->ncclCommAbort(root);
  else
    nccl->ncclCommDestroy(root);
  return status;
}

/* End handle and root in order. pre: calls is held, and the device's context is current. */
static int handles_end(void *arg)
{
  struct nccl_comm *comm = arg;
  const struct nccl_library *nccl = &comm->job->nccl;
  struct lade_error error = {0};
  comm_nccl_enter(comm);
  nccl_result result = nccl->ncclCommFinalize(comm->handle);
  int status = comm_nccl_leave(comm, "ncclCommFinalize", result, &error);
  if (!status) {
    nccl->ncclCommDestroy(comm->handle);
    comm->handle = NULL;
    status = root_end(comm, &error);
  }
  if (status)
    comm_nccl_fail(comm, status, &error);
  return 0;
}

static void nccl_close(lade_comm *base)
{
  struct nccl_comm *comm = (struct nccl_comm *)base;
  struct lade_error error = {0};
  pthread_mutex_lock(&comm->calls);
  int status = lade_comm_status(base, &error);
  if (comm->handle && !status)
    lade_cuda_call(comm->job->device, handles_end, comm);
  if (comm->handle)
    comm_nccl_fail(comm, status ? status : -EIO, &error);
  pthread_mutex_unlock(&comm->calls);
  comm_destroy(comm);
}

static void nccl_abort(lade_comm *base, const char *words)
{
  struct nccl_comm *comm = (struct nccl_comm *)base;
  lade_comm_abort(comm->control, words); /* the watcher ends the kernels */
}

static void nccl_set_busy(lade_comm *base, bool is_busy)
{
  lade_comm_set_busy(((struct nccl_comm *)base)->control, is_busy);
}

static bool nccl_is_speaker(lade_comm *base)
{
  return lade_comm_is_speaker(((struct nccl_comm *)base)->control);
}

static void nccl_get_info(const lade_comm *base, struct lade_comm_info *ret_info)
{
  const struct nccl_comm *comm = (const struct nccl_comm *)base;
  struct lade_comm_info control;
  lade_comm_get_info(comm->control, &control);
  *ret_info = (struct lade_comm_info){.engine = "nccl", .path = "NCCL's collectives",
                                      .staging_bytes = control.staging_bytes, .version = comm->job->nccl.version,
                                      .can_register = comm->job->nccl.ncclCommRegister != NULL};
}

/* ---- making ---- */

static int nccl_split(lade_comm *base, int colour, int key, struct lade_error *error, lade_comm **ret_comm);

static const struct lade_comm_ops nccl_ops = {
    .run = nccl_run,
    .split = nccl_split,
    .alloc = comm_nccl_alloc,
    .free = comm_nccl_free,
    .register_range = comm_nccl_register,
    .unregister_range = comm_nccl_unregister,
    .abort = nccl_abort,
    .is_speaker = nccl_is_speaker,
    .get_info = nccl_get_info,
    .close = nccl_close,
    .launch = nccl_launch,
    .set_busy = nccl_set_busy,
};

/*
 * Create a communicator without its handle. It takes ownership of @control and of a reference of the job once *ret_comm
 * is set. The caller then closes *ret_comm, also if this fails.
 */
static int comm_create(const struct lade_comm_params *params, struct nccl_job *job, lade_comm *control,
                       struct lade_error *error, struct nccl_comm **ret_comm)
{
  struct nccl_comm *comm = lade_fault_calloc(params->faults, 1, sizeof(*comm));
  if (!comm)
    return lade_error_set(error, -ENOMEM, "no memory for a communicator");
  lade_comm_init(&comm->base, &nccl_ops, params, lade_comm_rank(control), lade_comm_size(control));
  pthread_mutex_init(&comm->calls, NULL);
  pthread_mutex_init(&comm->root_lock, NULL);
  comm->job = job;
  comm->control = control;
  *ret_comm = comm;
  return comm_fill(comm, error);
}

struct nccl_comm_request {
  struct nccl_comm *comm, *parent; /* parent: NULL for the first */
  struct nccl_id id;
  struct lade_error *error;
};

static struct nccl_config config_make(const struct nccl_comm *comm, bool is_blocking)
{
  return (struct nccl_config){.size = sizeof(struct nccl_config), .magic = NCCL_CONFIG_MAGIC,
                              .version = LADE_NCCL_MIN_VERSION, .blocking = is_blocking, .cluster_size = NCCL_UNSET,
                              .min_ctas = NCCL_UNSET,
                              .max_ctas = comm->base.params.has_neighbours ? PAIR_CTAS : NCCL_UNSET,
                              .split_share = is_blocking ? NCCL_UNSET : 1, .traffic_class = NCCL_UNSET};
}

/* Create root and handle. pre: calls is held, and the device's context is current. */
static int handles_init(void *arg)
{
  struct nccl_comm_request *making = arg;
  struct nccl_comm *comm = making->comm;
  const struct nccl_library *nccl = &comm->job->nccl;
  struct nccl_config polled = config_make(comm, false), blocking = config_make(comm, true);
  nccl_result result = nccl->ncclCommInitRankConfig(&comm->root, comm->base.size, making->id, comm->base.rank, &polled);
  int status = comm_nccl_settle(comm, comm->root, "ncclCommInitRankConfig", result, making->error);
  if (status)
    return status;
  /*
   * NCCL writes the handle from its own thread until the root is settled or aborted. ncclCommSplit (2.28) answers
   * success while its work continues. So the root is always asked.
   */
  result = nccl->ncclCommSplit(comm->root, 0, comm->base.rank, &comm->handle, &blocking);
  return comm_nccl_settle(comm, comm->root, "ncclCommSplit", result ? result : NCCL_IN_PROGRESS, making->error);
}

/* Create the handles. A failure here is a failure of all its members, and of the parent. */
static int handles_make(struct nccl_comm_request *making)
{
  struct nccl_comm *parent = making->parent, *comm = making->comm;
  pthread_mutex_lock(&comm->calls);
  int status = parent ? lade_comm_status(&parent->base, making->error) : 0;
  if (!status)
    status = lade_cuda_call(comm->job->device, handles_init, making);
  if (status && !making->error->text[0])
    lade_error_set(making->error, status, "the device's context cannot be entered");
  if (status)
    comm_nccl_fail(comm, status, making->error);
  pthread_mutex_unlock(&comm->calls);
  if (status && parent) {
    pthread_mutex_lock(&parent->calls);
    comm_nccl_fail(parent, status, making->error);
    pthread_mutex_unlock(&parent->calls);
  }
  return status;
}

/*
 * Create a part without its handles. All members of the parent agree on each half of it, also those outside all parts,
 * so that all of them get the same answer.
 */
static int part_create(struct nccl_comm *parent, lade_comm *control, struct lade_error *error,
                       struct nccl_comm **ret_part)
{
  int status = 0;
  if (control) {
    status = comm_create(&parent->base.params, parent->job, control, error, ret_part);
    atomic_fetch_add(&parent->job->n_refs, *ret_part ? 1 : 0);
  }
  status = comm_nccl_outcomes_meet(parent->control, status, error);
  if (status && !*ret_part)
    lade_comm_close(control);
  if (status)
    return status;
  if (control)
    status = boards_open(*ret_part, parent->ranks[parent->base.rank], error);
  return comm_nccl_outcomes_meet(parent->control, status, error);
}

/* Broadcast NCCL's unique id from rank 0. */
static int id_meet(struct nccl_comm *comm, struct nccl_id *ret_id, struct lade_error *error)
{
  const struct nccl_library *nccl = &comm->job->nccl;
  nccl_result result = comm->base.rank == 0 ? nccl->ncclGetUniqueId(ret_id) : NCCL_DONE;
  int status = result ? lade_nccl_error_set(nccl, NULL, "ncclGetUniqueId", result, error) : 0;
  status = comm_nccl_outcomes_meet(comm->control, status, error);
  const struct lade_collective broadcast = {.kind = LADE_BROADCAST, .dtype = LADE_U8, .n = sizeof(*ret_id),
                                            .src = ret_id, .dst = ret_id};
  return status ? status : lade_comm_run(comm->control, &broadcast, error);
}

/* Complete a communicator that has its other parts: its handles, and the connections of its neighbours. */
static int comm_connect(struct nccl_comm_request *making)
{
  int status = id_meet(making->comm, &making->id, making->error);
  if (!status)
    status = handles_make(making);
  return status ? status : neighbours_meet(making->comm, making->error);
}

static int nccl_split(lade_comm *base, int colour, int key, struct lade_error *error, lade_comm **ret_comm)
{
  struct nccl_comm *parent = (struct nccl_comm *)base;
  struct nccl_comm_request making = {.parent = parent, .error = error};
  lade_comm *control = NULL;
  int status = lade_comm_split(parent->control, colour, key, error, &control);
  if (!status)
    status = part_create(parent, control, error, &making.comm);
  if (!status && making.comm)
    status = comm_connect(&making);
  if (status && making.comm)
    nccl_close(&making.comm->base);
  if (!status && making.comm)
    *ret_comm = &making.comm->base;
  return status;
}

int lade_comm_open_nccl(const struct lade_comm_params *params, struct lade_error *error, lade_comm **ret_comm)
{
  if (!params->device || !lade_cuda_is(params->device))
    return lade_error_set(error, -EINVAL, "the engine NCCL needs a CUDA device");
  struct lade_comm_params control_params = *params;
  lade_comm *control = NULL;
  struct nccl_job *job = NULL;
  struct nccl_comm_request making = {.error = error};
  control_params.engine = LADE_COMM_AUTO;
  int status = params->control ? lade_comm_split(params->control, 0, lade_comm_rank(params->control), error, &control)
                               : lade_comm_open_host(&control_params, error, &control);
  if (status)
    return status;
  status = job_create(params, error, &job);
  if (!status)
    status = comm_create(params, job, control, error, &making.comm);
  status = comm_nccl_outcomes_meet(control, status, error);
  if (!making.comm) {
    if (job)
      job_unref(job);
    lade_comm_close(control);
    return status;
  }
  if (!status)
    status = boards_open(making.comm, params->launch ? params->launch->rank : making.comm->base.rank, error);
  if (!status)
    status = comm_connect(&making);
  if (status) {
    nccl_close(&making.comm->base);
    return status;
  }
  *ret_comm = &making.comm->base;
  return 0;
}
