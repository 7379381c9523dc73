/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The calls of the fake for NCCL: handles and their states, groups, settings, and the calls that fail.
 *
 * A handle that does not block is in progress after each call that NCCL may do in the background. It advances when its
 * asynchronous error is queried: then members are looked for, work is put on the stream, and parts are made. A handle
 * that blocks advances in the call. One lock guards all of it; no code waits while holding it.
 */
#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "base/base.h"
#include "device/cuda_driver.h"
#include "nccl_internal.h"
#include "tests/fakes/cuda_driver/control.h"

#define EXPORT __attribute__((visibility("default")))
#define DECLARE(type, name, arguments) EXPORT type name arguments;
LADE_NCCL_FUNCTIONS(DECLARE)
LADE_NCCL_LATER_FUNCTIONS(DECLARE)

EXPORT fake_nccl_set_fn fake_nccl_set;
EXPORT fake_nccl_calls_fn fake_nccl_calls;
EXPORT fake_nccl_failed_fn fake_nccl_failed;
EXPORT fake_nccl_live_fn fake_nccl_live;
EXPORT fake_nccl_direct_fn fake_nccl_direct;

#define TREE_BYTES 1024  /* sums below this are made along a tree */
#define RING_BYTES 16384 /* and others below this along a ring, the rest in the switch */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t version = 22809, n_polls = 2, async, async_code = NCCL_REMOTE_ERROR, only_rank = UINT64_MAX;
static uint64_t registers = 1, memory, connect_kib;
static const struct setting settings[] = {{"version", &version}, {"polls", &n_polls},    {"async", &async},
                                          {"async_code", &async_code}, {"rank", &only_rank},
                                          {"register", &registers}, {"memory", &memory}, {"connect", &connect_kib},
                                          {NULL, NULL}};
static struct control control = {.settings = settings, .nth = 1, .code = NCCL_INTERNAL_ERROR};
static _Atomic uint64_t n_run, n_async_errors; /* pieces of work since the counts were reset, and those that hang */
static _Atomic int64_t n_live;
_Atomic uint64_t nccl_n_direct;
static struct launch *launches; /* on streams; a stream with a broken context never runs its own, and they stay */

/* Depth of the thread's open groups. */
static _Thread_local int group_depth;
static _Thread_local bool is_group_bad;
static _Thread_local struct launch group;

void nccl_misuse(const struct ncclComm *comm, const char *format, ...)
{
  va_list args;
  va_start(args, format);
  fprintf(stderr, "fake NCCL: rank %d of %d: ", comm->rank, comm->size);
  vfprintf(stderr, format, args);
  fprintf(stderr, "\n");
  va_end(args);
  abort();
}

/* ---- settings, counting, failing ---- */

int fake_nccl_set(const char *text)
{
  pthread_mutex_lock(&lock);
  n_run = n_async_errors = nccl_n_direct = 0;
  int status = control_set(&control, text);
  pthread_mutex_unlock(&lock);
  return status;
}

__attribute__((constructor)) static void settings_load(void)
{
  const char *rank = getenv("OMPI_COMM_WORLD_RANK");
  control_load("LADE_FAKE_NCCL", fake_nccl_set);
  if (only_rank != UINT64_MAX && (!rank || strtoull(rank, NULL, 10) != only_rank))
    control.fail[0] = 0, async = 0;
}

/* Count a call. Return its code. Takes the lock, which leave releases. */
static nccl_result enter(const char *function)
{
  pthread_mutex_lock(&lock);
  return (nccl_result)control_enter(&control, function);
}

static nccl_result leave(nccl_result result)
{
  pthread_mutex_unlock(&lock);
  return result;
}

uint64_t fake_nccl_calls(const char *function)
{
  pthread_mutex_lock(&lock);
  uint64_t n = control_calls(&control, function);
  pthread_mutex_unlock(&lock);
  return n;
}

uint64_t fake_nccl_failed(void)
{
  pthread_mutex_lock(&lock);
  uint64_t n = control.n_failed + n_async_errors;
  pthread_mutex_unlock(&lock);
  return n;
}

int64_t fake_nccl_live(void)
{
  return n_live;
}

uint64_t fake_nccl_direct(void)
{
  return nccl_n_direct;
}

/* ---- handles ---- */

void nccl_comm_unref(struct ncclComm *comm)
{
  if (atomic_fetch_sub(&comm->n_refs, 1) > 1)
    return;
  munmap(comm->shared, sizeof(*comm->shared));
  while (comm->registrations) { /* registrations of an aborted communicator */
    struct registration *next = comm->registrations->next;
    free(comm->registrations);
    comm->registrations = next;
  }
  if (atomic_fetch_sub(&comm->family->n_members, 1) == 1)
    free(comm->family);
  pthread_mutex_destroy(&comm->lock);
  free(comm->pending);
  free(comm);
}

/* Take memory of the current device. False if it has too little. */
static bool memory_take(struct ncclComm *comm, uint64_t bytes)
{
  int (*take)(uint64_t bytes) = (int (*)(uint64_t))nccl_driver_find("fake_library_take");
  const int device = take ? take(bytes) : -1;
  if (device < 0)
    return bytes == 0;
  comm->device = device;
  comm->memory_bytes += bytes;
  return true;
}

static void memory_give_back(struct ncclComm *comm)
{
  void (*give)(int device, uint64_t bytes) = (void (*)(int, uint64_t))nccl_driver_find("fake_library_give_back");
  if (give)
    give(comm->device, comm->memory_bytes);
}

static struct family *family_join(struct family *family)
{
  struct family *joined = family ? family : calloc(1, sizeof(*joined));
  LADE_ASSERT(joined);
  atomic_fetch_add(&joined->n_members, 1);
  return joined;
}

/*
 * Join the other members by @path, without waiting for them. @family: that of the parent that shares it, whose memory
 * this one uses; or NULL. NCCL_COMM_BLOCKING in the environment replaces @config's choice, as in NCCL.
 */
static struct ncclComm *comm_create(const char *path, int size, int rank, const struct nccl_config *config,
                                    struct family *family)
{
  const char *wish = getenv("NCCL_COMM_BLOCKING");
  struct ncclComm *comm = calloc(1, sizeof(*comm));
  LADE_ASSERT(comm && size <= MAX_RANKS);
  comm->rank = rank;
  comm->size = size;
  comm->n_refs = 1;
  comm->device = -1;
  comm->max_ctas = config->max_ctas;
  comm->is_blocking = wish ? atoi(wish) == 1 : config->blocking == 1;
  comm->shares = config->split_share == 1;
  comm->family = family_join(family);
  snprintf(comm->path, sizeof(comm->path), "%s", path);
  pthread_mutex_init(&comm->lock, NULL);
  if ((!family && !memory_take(comm, memory << 10)) || !nccl_segment_open(comm)) {
    memory_give_back(comm);
    free(comm->family);
    free(comm);
    return NULL;
  }
  if (atomic_fetch_add(&comm->shared->joined[rank], 1))
    nccl_misuse(comm, "this rank is there already");
  n_live++;
  atomic_fetch_add(&comm->shared->n_grouped, 1);
  return comm;
}

const char *ncclGetErrorString(nccl_result result)
{
  static const char *const texts[] = {
      "no error",         "unhandled cuda error", "unhandled system error", "internal error",
      "invalid argument", "invalid usage",        "remote process exited",  "operation in progress",
  };
  return result >= 0 && result < (int)LADE_COUNT(texts) ? texts[result] : NULL;
}

const char *ncclGetLastError(nccl_handle handle)
{
  return "the fake was set to fail";
}

nccl_result ncclGetVersion(int *ret_version)
{
  nccl_result result = enter("ncclGetVersion");
  *ret_version = (int)version;
  return leave(result);
}

nccl_result ncclGetUniqueId(struct nccl_id *ret_id)
{
  struct timespec now;
  nccl_result result = enter("ncclGetUniqueId");
  clock_gettime(CLOCK_MONOTONIC, &now);
  memset(ret_id, 0, sizeof(*ret_id));
  snprintf(ret_id->bytes, sizeof(ret_id->bytes), "%s/lade-nccl-%d-%lld", access("/dev/shm", W_OK) ? "/tmp" : "/dev/shm",
           (int)getpid(), (long long)now.tv_sec * 1000000000 + now.tv_nsec);
  return leave(result);
}

static bool config_is_good(const struct nccl_config *config)
{
  return config && config->size == sizeof(*config) && config->magic == NCCL_CONFIG_MAGIC
         && config->version >= LADE_NCCL_MIN_VERSION && (config->blocking == 0 || config->blocking == 1);
}

nccl_result ncclCommInitRankConfig(nccl_handle *ret_handle, int size, struct nccl_id id, int rank,
                                   struct nccl_config *config)
{
  nccl_result result = enter("ncclCommInitRankConfig");
  bool is_good = config_is_good(config) && config->blocking == 0 && rank >= 0 && rank < size;
  if (result || !is_good)
    return leave(result ? result : NCCL_INVALID_ARGUMENT);
  *ret_handle = comm_create(id.bytes, size, rank, config, NULL);
  if (*ret_handle)
    (*ret_handle)->is_blocking = false; /* creation is polled in any case: Lade begins no other */
  return leave(*ret_handle ? NCCL_IN_PROGRESS : NCCL_SYSTEM_ERROR);
}

/* Enter a state that other members, or later calls, end. */
static nccl_result state_begin(struct ncclComm *comm, enum state state)
{
  comm->state = state;
  comm->n_polls = 0;
  return NCCL_IN_PROGRESS;
}

nccl_result ncclCommSplit(nccl_handle handle, int colour, int key, nccl_handle *ret_part, struct nccl_config *config)
{
  nccl_result result = enter("ncclCommSplit");
  if (result || handle->state != STATE_READY || handle->is_blocking || !config_is_good(config) || colour < 0)
    return leave(result ? result : NCCL_INVALID_USAGE);
  uint32_t round = ++handle->n_splits;
  struct split_post *post = &handle->shared->splits[round % 2][handle->rank];
  handle->colour = post->colour = colour;
  handle->key = post->key = key;
  handle->ret_part = ret_part;
  handle->part_config = *config;
  *ret_part = NULL;
  atomic_store(&post->round, round);
  state_begin(handle, STATE_SPLITTING);
  return leave(NCCL_DONE); /* as NCCL 2.28 answers while its work goes on */
}

/* Make the part that this member belongs to, once all members have answered. */
static bool part_make(struct ncclComm *comm)
{
  const struct split_post *posts = comm->shared->splits[comm->n_splits % 2];
  int size = 0, rank = 0;
  for (int other = 0; other < comm->size; other++)
    if (atomic_load(&posts[other].round) != comm->n_splits)
      return false;
  for (int other = 0; other < comm->size; other++) {
    bool is_in = posts[other].colour == comm->colour;
    size += is_in;
    rank += is_in && (posts[other].key < comm->key || (posts[other].key == comm->key && other < comm->rank));
  }
  char path[96 + 32];
  snprintf(path, sizeof(path), "%s-%u-%d", comm->path, comm->n_splits, comm->colour);
  comm->part = comm_create(path, size, rank, &comm->part_config, comm->shares ? comm->family : NULL);
  LADE_ASSERT(comm->part);
  return true;
}

/* True if all members have come, whose file then needs no name. */
static bool is_joined(const struct ncclComm *comm)
{
  if (atomic_load(&comm->shared->n_grouped) < (uint32_t)comm->size)
    return false;
  unlink(comm->path);
  return true;
}

/* Make the part, and hand it out once it is complete. */
static bool part_advance(struct ncclComm *comm)
{
  if (!comm->part && !part_make(comm))
    return false;
  if (!is_joined(comm->part))
    return false;
  comm->part->state = STATE_READY;
  *comm->ret_part = comm->part;
  comm->part = NULL;
  return true;
}

/* ---- memory ---- */

nccl_result ncclCommRegister(nccl_handle handle, void *data, size_t bytes, void **ret_registration)
{
  nccl_result result = enter("ncclCommRegister");
  if (result || handle->state != STATE_READY || !nccl_is_of_device(data, bytes))
    return leave(result ? result : NCCL_INVALID_USAGE);
  struct registration *registration = registers ? calloc(1, sizeof(*registration)) : NULL;
  if (registration) {
    pthread_mutex_lock(&handle->lock);
    *registration = (struct registration){(uint64_t)(uintptr_t)data, bytes, handle->registrations};
    handle->registrations = registration;
    pthread_mutex_unlock(&handle->lock);
  }
  *ret_registration = registration;
  return leave(NCCL_DONE);
}

nccl_result ncclCommDeregister(nccl_handle handle, void *registration)
{
  nccl_result result = enter("ncclCommDeregister");
  if (result)
    return leave(result);
  pthread_mutex_lock(&handle->lock);
  struct registration **at = &handle->registrations;
  while (*at && *at != registration)
    at = &(*at)->next;
  if (!*at)
    nccl_misuse(handle, "deregistered what is not registered");
  const struct registration gone = **at;
  free(*at);
  *at = gone.next;
  pthread_mutex_unlock(&handle->lock);
  if (!nccl_is_of_device((void *)(uintptr_t)gone.address, gone.bytes))
    nccl_misuse(handle, "registered memory was given back before it was deregistered");
  return leave(NCCL_DONE);
}

bool nccl_is_registered(struct ncclComm *comm, const void *at, uint64_t bytes)
{
  uint64_t address = (uint64_t)(uintptr_t)at;
  bool is_found = false;
  pthread_mutex_lock(&comm->lock);
  for (const struct registration *r = comm->registrations; r && !is_found; r = r->next)
    is_found = address >= r->address && bytes <= r->bytes && address - r->address <= r->bytes - bytes;
  pthread_mutex_unlock(&comm->lock);
  return is_found;
}

/* ---- work ---- */

/* Forget a launch. Lock held. */
static void launch_forget(struct launch *launch)
{
  struct launch **at = &launches;
  while (*at != launch)
    at = &(*at)->next;
  *at = launch->next;
  free(launch);
}

static void launch_host(void *arg)
{
  struct launch *launch = arg;
  struct ncclComm *comm = launch->comm;
  bool is_lost = async && atomic_fetch_add(&n_run, 1) + 1 == async;
  if (is_lost) {
    n_async_errors++;
    atomic_store(&comm->async_error, (int)async_code);
  }
  while (is_lost && !atomic_load(&comm->family->is_aborted))
    nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
  if (!atomic_load(&comm->family->is_aborted))
    nccl_launch_run(launch);
  pthread_mutex_lock(&lock);
  launch_forget(launch);
  pthread_mutex_unlock(&lock);
  atomic_fetch_sub(&comm->n_launches, 1);
  nccl_comm_unref(comm);
}

/* Put the pending work on its stream. */
static nccl_result pending_put(struct ncclComm *comm)
{
  static cuda_result (*host_launch)(cuda_stream stream, cuda_host_fn *fn, void *args);
  void *driver = host_launch ? NULL : dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  host_launch = driver ? (cuda_result(*)(cuda_stream, cuda_host_fn *, void *))dlsym(driver, "cuLaunchHostFunc")
                       : host_launch;
  struct launch *launch = comm->pending;
  comm->pending = NULL;
  atomic_fetch_add(&comm->n_refs, 1);
  atomic_fetch_add(&comm->n_launches, 1);
  launch->next = launches;
  launches = launch;
  if (host_launch && host_launch(launch->stream, launch_host, launch) == CUDA_DONE)
    return NCCL_DONE;
  atomic_fetch_sub(&comm->n_launches, 1);
  atomic_fetch_sub(&comm->n_refs, 1);
  launch_forget(launch);
  return NCCL_CUDA_ERROR;
}

/*
 * True if connected: the first call of a pair in either direction waits for the peer's before any work is on the
 * stream.
 */
static bool is_connected(struct ncclComm *comm)
{
  bool is_connected = true;
  for (int i = 0; i < comm->pending->n_ops; i++) {
    const struct op *op = &comm->pending->ops[i];
    if (op->kind == OP_SEND) {
      atomic_store(&comm->shared->wants_send[comm->rank][op->peer], true);
      is_connected &= atomic_load(&comm->shared->wants_recv[comm->rank][op->peer]);
    } else if (op->kind == OP_RECV) {
      atomic_store(&comm->shared->wants_recv[op->peer][comm->rank], true);
      is_connected &= atomic_load(&comm->shared->wants_send[op->peer][comm->rank]);
    }
  }
  return is_connected;
}

static bool is_pair(enum op_kind kind)
{
  return kind == OP_SEND || kind == OP_RECV;
}

/* True if all members have ended, and this one's work. */
static bool is_final(struct ncclComm *comm)
{
  if (atomic_load(&comm->n_launches) == 0 && !comm->has_finalized) {
    comm->has_finalized = true;
    atomic_fetch_add(&comm->shared->n_finalized, 1);
  }
  return atomic_load(&comm->shared->n_finalized) == (uint32_t)comm->size;
}

/* Join NCCL's thread of the group, if there is one. */
static void group_join(struct ncclComm *comm)
{
  if (comm->has_group)
    pthread_join(comm->group, NULL);
  comm->has_group = false;
}

/* Wait in a call on a handle that blocks, until @is_done, without the lock. False if the family was aborted. */
static bool inside_wait(struct ncclComm *comm, bool (*is_done)(struct ncclComm *comm))
{
  bool is_well = true;
  comm->n_inside++;
  while (is_well && !is_done(comm)) {
    pthread_mutex_unlock(&lock);
    nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
    is_well = !atomic_load(&comm->family->is_aborted);
    pthread_mutex_lock(&lock);
  }
  comm->n_inside--;
  return is_well;
}

static enum algorithm algorithm_of(struct ncclComm *comm)
{
  const struct op *op = comm->pending->ops;
  const bool is_sum = op->kind == OP_ALL_REDUCE, is_moved = op->kind == OP_BROADCAST;
  uint64_t bytes = 0;
  for (int i = 0; i < comm->pending->n_ops; i++)
    bytes += op[i].n * nccl_type_bytes(op[i].type) * (is_sum || is_moved ? 1 : (uint64_t)comm->size);
  if (is_sum && bytes < TREE_BYTES)
    return ALGORITHM_TREE;
  if (is_moved || bytes < RING_BYTES)
    return ALGORITHM_RING;
  return nccl_is_registered(comm, op->dst, 1) ? ALGORITHM_SWITCH_REGISTERED : ALGORITHM_SWITCH;
}

/* Take the memory of connections that the pending work is the first to use. */
static bool connections_make(struct ncclComm *comm)
{
  uint64_t wanted = 0;
  for (int i = 0; i < comm->pending->n_ops; i++) {
    const struct op *op = &comm->pending->ops[i];
    if (!is_pair(op->kind) || op->peer != comm->rank)
      wanted |= UINT64_C(1) << (is_pair(op->kind) ? N_ALGORITHMS + op->peer : (int)algorithm_of(comm));
  }
  wanted &= comm->size > 1 ? ~comm->connected : 0;
  comm->connected |= wanted;
  return memory_take(comm, (uint64_t)__builtin_popcountll(wanted) * (connect_kib << 10));
}

/* Put the pending work on its stream, with its connections. */
static nccl_result pending_issue(struct ncclComm *comm)
{
  if (connections_make(comm))
    return pending_put(comm);
  free(comm->pending);
  comm->pending = NULL;
  return NCCL_CUDA_ERROR;
}

static bool is_over(struct ncclComm *comm)
{
  if (++comm->n_polls <= (int)n_polls)
    return false;
  switch (comm->state) {
  case STATE_ISSUING:
    return is_connected(comm);
  case STATE_JOINING:
    return is_joined(comm);
  case STATE_SPLITTING:
    return part_advance(comm);
  case STATE_FINALIZING:
    return is_final(comm);
  default: return true;
  }
}

nccl_result ncclCommGetAsyncError(nccl_handle handle, nccl_result *ret_result)
{
  nccl_result result = enter("ncclCommGetAsyncError");
  *ret_result = NCCL_DONE;
  if (result)
    return leave(result);
  if (atomic_load(&handle->async_error))
    *ret_result = atomic_load(&handle->async_error);
  else if (handle->state == STATE_READY || handle->state == STATE_FINAL)
    *ret_result = NCCL_DONE;
  else if (!is_over(handle))
    *ret_result = NCCL_IN_PROGRESS;
  else {
    group_join(handle);
    *ret_result = handle->state == STATE_ISSUING ? pending_issue(handle) : NCCL_DONE;
    handle->state = handle->state == STATE_FINALIZING ? STATE_FINAL : STATE_READY;
  }
  return leave(NCCL_DONE);
}

nccl_result ncclCommFinalize(nccl_handle handle)
{
  nccl_result result = enter("ncclCommFinalize");
  if (result || handle->state != STATE_READY)
    return leave(result ? result : NCCL_INVALID_USAGE);
  if (!handle->is_blocking)
    return leave(state_begin(handle, STATE_FINALIZING));
  if (!inside_wait(handle, is_final))
    return leave(NCCL_INTERNAL_ERROR);
  handle->state = STATE_FINAL;
  return leave(NCCL_DONE);
}

nccl_result ncclCommDestroy(nccl_handle handle)
{
  nccl_result result = enter("ncclCommDestroy");
  if (handle->state != STATE_FINAL)
    nccl_misuse(handle, "destroyed before it was finalized");
  if (handle->registrations)
    nccl_misuse(handle, "destroyed with memory that is still registered");
  n_live--;
  memory_give_back(handle);
  nccl_comm_unref(handle);
  return leave(result);
}

/* Abort: the family's work ends as soon as it notices. A part that is not complete is handed out, to be aborted. */
nccl_result ncclCommAbort(nccl_handle handle)
{
  nccl_result result = enter("ncclCommAbort");
  if (handle->n_inside)
    nccl_misuse(handle, "aborted while a thread is in a call on it");
  atomic_store(&handle->family->is_aborted, true);
  group_join(handle);
  if (handle->state == STATE_JOINING)
    unlink(handle->path);
  if (handle->part)
    *handle->ret_part = handle->part;
  n_live--;
  memory_give_back(handle);
  nccl_comm_unref(handle);
  return leave(result);
}

/* ---- groups and operations ---- */

/* NCCL's thread of a group: it does nothing, and its creation takes the time of a real one. */
static void *group_main(void *arg)
{
  return arg;
}

/* Issue the pending work in the call. */
static nccl_result pending_block(struct ncclComm *comm)
{
  if (inside_wait(comm, is_connected))
    return pending_issue(comm);
  free(comm->pending);
  comm->pending = NULL;
  return NCCL_INTERNAL_ERROR;
}

static nccl_result group_close(void)
{
  struct launch *launch = malloc(sizeof(*launch));
  struct ncclComm *comm = group.comm;
  LADE_ASSERT(launch);
  if (comm->state != STATE_READY)
    nccl_misuse(comm, "work on a handle that is in state %d", (int)comm->state);
  *launch = group;
  comm->pending = launch;
  if (comm->is_blocking)
    return pending_block(comm);
  comm->has_group = pthread_create(&comm->group, NULL, group_main, NULL) == 0;
  return state_begin(comm, STATE_ISSUING);
}

nccl_result ncclGroupStart(void)
{
  nccl_result result = enter("ncclGroupStart");
  if (!result && group_depth++ == 0) {
    group = (struct launch){.n_ops = 0};
    is_group_bad = false;
  }
  return leave(result);
}

nccl_result ncclGroupEnd(void)
{
  nccl_result result = enter("ncclGroupEnd");
  LADE_ASSERT(group_depth >= 1);
  if (--group_depth > 0)
    return leave(result);
  if (result || is_group_bad || group.n_ops == 0)
    return leave(result ? result : is_group_bad ? NCCL_INVALID_USAGE : NCCL_DONE);
  return leave(group_close());
}

/* Add an operation to the open group, or to a group of its own. */
static nccl_result op_put(const char *function, struct ncclComm *comm, void *stream, const struct op *op)
{
  nccl_result result = enter(function);
  bool is_good = comm && op->n && op->peer >= 0 && op->peer < comm->size;
  if (result || !is_good) {
    is_group_bad = true;
    return leave(result ? result : NCCL_INVALID_ARGUMENT);
  }
  bool is_alone = group_depth == 0;
  if (is_alone)
    group = (struct launch){.n_ops = 0};
  const enum op_kind first = group.ops[0].kind;
  if (group.n_ops && ((is_pair(op->kind) ? !is_pair(first) : op->kind != first) || group.comm != comm
                      || group.stream != stream || group.n_ops == MAX_OPS))
    nccl_misuse(comm, "a group of more than one communicator, or of different operations");
  group.comm = comm;
  group.stream = stream;
  group.ops[group.n_ops++] = *op;
  return leave(is_alone ? group_close() : NCCL_DONE);
}

nccl_result ncclAllGather(const void *src, void *dst, size_t n, int type, nccl_handle handle, nccl_stream stream)
{
  return op_put("ncclAllGather", handle, stream,
                &(struct op){.kind = OP_ALL_GATHER, .src = src, .dst = dst, .n = n, .type = type});
}

/* Add @sum by the reduction @op; only sums of floats are supported. */
static nccl_result sum_put(const char *function, nccl_handle handle, nccl_stream stream, int op, struct op sum)
{
  bool is_float = sum.type == NCCL_FLOAT32 || sum.type == NCCL_BFLOAT16 || sum.type == NCCL_FLOAT16;
  if (op != NCCL_SUM || !is_float)
    sum.n = 0; /* op_put refuses it */
  return op_put(function, handle, stream, &sum);
}

nccl_result ncclReduceScatter(const void *src, void *dst, size_t n, int type, int op, nccl_handle handle,
                              nccl_stream stream)
{
  return sum_put("ncclReduceScatter", handle, stream, op,
                 (struct op){.kind = OP_REDUCE_SCATTER, .src = src, .dst = dst, .n = n, .type = type});
}

nccl_result ncclAllReduce(const void *src, void *dst, size_t n, int type, int op, nccl_handle handle,
                          nccl_stream stream)
{
  return sum_put("ncclAllReduce", handle, stream, op,
                 (struct op){.kind = OP_ALL_REDUCE, .src = src, .dst = dst, .n = n, .type = type});
}

nccl_result ncclBroadcast(const void *src, void *dst, size_t n, int type, int root, nccl_handle handle,
                          nccl_stream stream)
{
  return op_put("ncclBroadcast", handle, stream,
                &(struct op){.kind = OP_BROADCAST, .src = src, .dst = dst, .n = n, .type = type, .peer = root});
}

nccl_result ncclSend(const void *src, size_t n, int type, int peer, nccl_handle handle, nccl_stream stream)
{
  return op_put("ncclSend", handle, stream,
                &(struct op){.kind = OP_SEND, .src = src, .n = n, .type = type, .peer = peer});
}

nccl_result ncclRecv(void *dst, size_t n, int type, int peer, nccl_handle handle, nccl_stream stream)
{
  return op_put("ncclRecv", handle, stream,
                &(struct op){.kind = OP_RECV, .dst = dst, .n = n, .type = type, .peer = peer});
}
