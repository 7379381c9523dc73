/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lade/store.h over the store: names, space and memory that the drive cannot use directly.
 *
 * The whole budget is one extent. A tensor has runs of it (free_extents.h) and a number. Its checksums are seeded with
 * that number, and with the count of puts as generation. A tree finds names. One mutex guards tree and space. A tensor
 * that is being moved is marked busy and moved without the mutex, so that calls for different tensors contend only in
 * the store itself.
 *
 * A tensor moves in windows, a few of them in flight. A window in aligned memory of whole blocks moves directly. Others
 * go through a slab of bounce windows, which one call uses at a time: fast callers align their memory.
 */
#include <errno.h>
#include <pthread.h>
#include <search.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "base/fork_guard.h"
#include "lade/store.h"
#include "offload/staging.h"
#include "offload/store.h"
#include "offload/store/free_extents.h"

#define WINDOW_BYTES (4u << 20)
#define N_WINDOWS 8 /* of one call in flight; 32 MiB keep a drive busy */
#define NAME_SHOWN 200 /* of a name in messages */

struct tensor {
  char *name;
  uint32_t number;
  uint64_t bytes, generation;
  store_runs runs;
  bool is_busy;
};

struct lade_tensor_store {
  _Atomic int *is_alive; /* 0 in a child of fork, which must not use the ring that it shares with its parent */
  lade_store *store;
  struct lade_extent extent;
  uint64_t budget_bytes;
  pthread_mutex_t mutex; /* guards the fields below */
  void *tree;
  struct store_room room;
  uint64_t n_tensors, n_puts;
  uint32_t n_numbers;
  pthread_mutex_t bounce_mutex; /* guards the slab */
  struct lade_staging bounce;
};

/* ---- names; mutex held ---- */

static int name_compare(const void *a, const void *b)
{
  return strcmp(((const struct tensor *)a)->name, ((const struct tensor *)b)->name);
}

static struct tensor *tensor_find(struct lade_tensor_store *s, const char *name)
{
  struct tensor key = {.name = (char *)name};
  struct tensor **found = tfind(&key, &s->tree, name_compare);
  return found ? *found : NULL;
}

static void tensor_free(void *arg)
{
  struct tensor *tensor = arg;
  LADE_ARRAY_FREE(&tensor->runs);
  free(tensor->name);
  free(tensor);
}

/* Create a tensor called @name, without space. NULL if memory is out. */
static struct tensor *tensor_make(struct lade_tensor_store *s, const char *name)
{
  struct tensor *tensor = calloc(1, sizeof(*tensor));
  char *copy = strdup(name);
  if (tensor)
    tensor->name = copy;
  if (!tensor || !copy || !tsearch(tensor, &s->tree, name_compare)) {
    free(copy);
    free(tensor);
    return NULL;
  }
  tensor->number = s->n_numbers++;
  s->n_tensors++;
  return tensor;
}

static void tensor_remove(struct lade_tensor_store *s, struct tensor *tensor)
{
  store_room_give(&s->room, &tensor->runs);
  tdelete(tensor, &s->tree, name_compare);
  s->n_tensors--;
  tensor_free(tensor);
}

/* ---- moving ---- */

/* State of one call that moves a tensor. */
struct mover {
  struct lade_tensor_store *s;
  const struct tensor *tensor;
  enum lade_store_op op;
  char *data;
  bool has_bounce;
  int i_run;
  uint64_t at, at_in_run; /* in the tensor, in the run */
  struct {
    struct lade_transfer transfer;
    char *data; /* caller's memory of a bounced window; NULL: moved directly */
  } windows[N_WINDOWS];
};

static char *bounce_at(const struct mover *m, int i)
{
  return m->s->bounce.data + (uint64_t)i * WINDOW_BYTES;
}

/* Fill window @i with the next part of the tensor. */
static void window_next(struct mover *m, int i)
{
  const struct store_run *run = &m->tensor->runs.items[m->i_run];
  uint64_t bytes = LADE_MIN(LADE_MIN(run->bytes - m->at_in_run, m->tensor->bytes - m->at), WINDOW_BYTES);
  char *data = m->data + m->at;
  if ((uintptr_t)data % LADE_STORE_BLOCK_BYTES == 0 && bytes > LADE_STORE_GRANULE_BYTES)
    bytes &= ~(uint64_t)(LADE_STORE_GRANULE_BYTES - 1); /* an unaligned tail is a separate window */
  bool is_straight = (uintptr_t)data % LADE_STORE_BLOCK_BYTES == 0 && bytes % LADE_STORE_BLOCK_BYTES == 0;
  m->windows[i].data = is_straight ? NULL : data;
  m->windows[i].transfer = (struct lade_transfer){
      .op = m->op,
      .check = LADE_CHECK_STORE,
      .extent = m->s->extent,
      .offset = run->offset + m->at_in_run,
      .bytes = bytes,
      .data = is_straight ? data : bounce_at(m, i),
      .identity = {.tensor = m->tensor->number, .generation = m->tensor->generation},
  };
  m->at += bytes;
  m->at_in_run += bytes;
  if (m->at_in_run == run->bytes) {
    m->i_run++;
    m->at_in_run = 0;
  }
}

static int window_begin(struct mover *m, int i)
{
  struct lade_transfer *transfer = &m->windows[i].transfer;
  window_next(m, i);
  if (m->windows[i].data && !m->has_bounce) {
    pthread_mutex_lock(&m->s->bounce_mutex);
    m->has_bounce = true;
  }
  if (m->windows[i].data && m->op == LADE_STORE_WRITE)
    memcpy(transfer->data, m->windows[i].data, transfer->bytes);
  return lade_store_submit(m->s->store, transfer);
}

static int window_end(struct mover *m, int i, struct lade_error *error)
{
  const struct lade_transfer *transfer = &m->windows[i].transfer;
  int code = lade_store_wait(m->s->store, &m->windows[i].transfer, error);
  if (!code && m->windows[i].data && m->op == LADE_STORE_READ)
    memcpy(m->windows[i].data, transfer->data, transfer->bytes);
  return code;
}

/* Move all of @tensor. The first failure ends it, after the transfers in flight have come back. */
static int tensor_move(struct lade_tensor_store *s, const struct tensor *tensor, enum lade_store_op op, void *data,
                       struct lade_error *error)
{
  struct mover m = {.s = s, .tensor = tensor, .op = op, .data = data};
  struct lade_error why = {0};
  uint64_t n_begun = 0, n_done = 0;
  int status = 0;
  while (n_done < n_begun || (!status && m.at < tensor->bytes)) {
    if (!status && m.at < tensor->bytes && n_begun - n_done < N_WINDOWS) {
      int code = window_begin(&m, (int)(n_begun % N_WINDOWS));
      LADE_ASSERT(!code); /* the transfers are valid */
      n_begun += !code;
      status = code;
      continue;
    }
    int code = window_end(&m, (int)(n_done++ % N_WINDOWS), status ? NULL : &why);
    status = status ? status : code;
  }
  if (m.has_bounce)
    pthread_mutex_unlock(&s->bounce_mutex);
  if (!status)
    return 0;
  return lade_error_set(error, status, "%s '%.*s' failed: %s", op == LADE_STORE_WRITE ? "putting" : "getting",
                        NAME_SHOWN, tensor->name, why.text);
}

/* ---- putting and getting ---- */

static int child_error(struct lade_error *error)
{
  return lade_error_set(error, -EPERM, "this process is a fork of the one that opened the store; open one after the "
                        "fork");
}

static int busy_error(const struct tensor *tensor, struct lade_error *error)
{
  return lade_error_set(error, -EBUSY, "'%.*s' is being moved by another thread", NAME_SHOWN, tensor->name);
}

/* Give @tensor space for @bytes; keep its present space if that fits. Mutex held. */
static int tensor_room(struct lade_tensor_store *s, struct tensor *tensor, uint64_t bytes, struct lade_error *error)
{
  /* A size near UINT64_MAX rounds to 0. */
  const uint64_t rounded = LADE_MAX(bytes, lade_align_up(bytes, LADE_STORE_GRANULE_BYTES));
  const uint64_t has = store_runs_bytes(&tensor->runs);
  uint64_t free_bytes = store_runs_bytes(&s->room.free);
  if (has == rounded)
    return 0;
  if (rounded > has + free_bytes)
    return lade_error_set(error, -EOVERFLOW, "'%.*s' needs %llu bytes of the store, and %llu of its %llu are free; "
                          "drop tensors or open it with a larger budget", NAME_SHOWN, tensor->name,
                          (unsigned long long)rounded, (unsigned long long)(has + free_bytes),
                          (unsigned long long)s->budget_bytes);
  store_room_give(&s->room, &tensor->runs);
  int code = store_room_take(&s->room, &tensor->runs, rounded);
  LADE_ASSERT(code != -EOVERFLOW);
  return code ? lade_error_set(error, code, "no memory for '%.*s' in the store", NAME_SHOWN, tensor->name) : 0;
}

/* Find or create @name with space for @bytes, and mark it busy. Mutex held. */
static int put_begin(struct lade_tensor_store *s, const char *name, uint64_t bytes, struct tensor **ret_tensor,
                     struct lade_error *error)
{
  struct tensor *tensor = tensor_find(s, name);
  bool is_new = !tensor;
  if (tensor && tensor->is_busy)
    return busy_error(tensor, error);
  if (is_new && !(tensor = tensor_make(s, name)))
    return lade_error_set(error, -ENOMEM, "no memory for '%.*s' in the store", NAME_SHOWN, name);
  int code = tensor_room(s, tensor, bytes, error);
  if (code) {
    if (!tensor->runs.n) /* a new tensor, or one whose old space was given back */
      tensor_remove(s, tensor);
    return code;
  }
  tensor->is_busy = true;
  tensor->bytes = bytes;
  tensor->generation = ++s->n_puts;
  *ret_tensor = tensor;
  return 0;
}

int lade_tensor_store_put(struct lade_tensor_store *s, const char *name, const void *data, uint64_t bytes,
                          struct lade_error *error)
{
  if (!s)
    return lade_error_set(error, -EINVAL, "lade_tensor_store_put: store is NULL");
  struct tensor *tensor = NULL;
  if (!name || !*name || !data || !bytes)
    return lade_error_set(error, -EINVAL, "a tensor to put has a name and bytes");
  if (!*s->is_alive)
    return child_error(error);
  pthread_mutex_lock(&s->mutex);
  int status = put_begin(s, name, bytes, &tensor, error);
  pthread_mutex_unlock(&s->mutex);
  if (status)
    return status;
  status = tensor_move(s, tensor, LADE_STORE_WRITE, (void *)data, error);
  pthread_mutex_lock(&s->mutex);
  tensor->is_busy = false;
  if (status)
    tensor_remove(s, tensor);
  pthread_mutex_unlock(&s->mutex);
  return status;
}

static int get_begin(struct lade_tensor_store *s, const char *name, uint64_t bytes, struct tensor **ret_tensor,
                     struct lade_error *error)
{
  struct tensor *tensor = tensor_find(s, name);
  if (!tensor)
    return lade_error_set(error, -ENOENT, "there is no '%.*s' in the store", NAME_SHOWN, name);
  if (tensor->is_busy)
    return busy_error(tensor, error);
  if (tensor->bytes != bytes)
    return lade_error_set(error, -EINVAL, "'%.*s' has %llu bytes, and %llu were asked for", NAME_SHOWN, name,
                          (unsigned long long)tensor->bytes, (unsigned long long)bytes);
  tensor->is_busy = true;
  *ret_tensor = tensor;
  return 0;
}

int lade_tensor_store_get(struct lade_tensor_store *s, const char *name, void *data, uint64_t bytes,
                          struct lade_error *error)
{
  if (!s)
    return lade_error_set(error, -EINVAL, "lade_tensor_store_get: store is NULL");
  struct tensor *tensor = NULL;
  if (!name || !data)
    return lade_error_set(error, -EINVAL, "a tensor to get has a name and memory to come to");
  if (!*s->is_alive)
    return child_error(error);
  pthread_mutex_lock(&s->mutex);
  int status = get_begin(s, name, bytes, &tensor, error);
  pthread_mutex_unlock(&s->mutex);
  if (status)
    return status;
  status = tensor_move(s, tensor, LADE_STORE_READ, data, error);
  pthread_mutex_lock(&s->mutex);
  tensor->is_busy = false;
  pthread_mutex_unlock(&s->mutex);
  return status;
}

int lade_tensor_store_find(struct lade_tensor_store *s, const char *name, uint64_t *ret_bytes)
{
  if (!s || !name || !ret_bytes)
    return -EINVAL;
  if (!*s->is_alive)
    return -EPERM;
  pthread_mutex_lock(&s->mutex);
  struct tensor *tensor = name ? tensor_find(s, name) : NULL;
  if (tensor)
    *ret_bytes = tensor->bytes;
  pthread_mutex_unlock(&s->mutex);
  return tensor ? 0 : -ENOENT;
}

int lade_tensor_store_drop(struct lade_tensor_store *s, const char *name)
{
  if (!s || !name)
    return -EINVAL;
  if (!*s->is_alive)
    return -EPERM;
  pthread_mutex_lock(&s->mutex);
  struct tensor *tensor = name ? tensor_find(s, name) : NULL;
  int status = !tensor ? -ENOENT : tensor->is_busy ? -EBUSY : 0;
  if (!status)
    tensor_remove(s, tensor);
  pthread_mutex_unlock(&s->mutex);
  return status;
}

/* ---- life ---- */

static int room_init(struct lade_tensor_store *s)
{
  struct store_run all = {.bytes = lade_align_up(s->budget_bytes, LADE_STORE_GRANULE_BYTES)};
  return LADE_PUSH(&s->room.free, all) ? 0 : -ENOMEM;
}

/* Allocate the slab near the drives. */
static int bounce_init(struct lade_tensor_store *s)
{
  struct lade_store_info info;
  lade_store_get_info(s->store, &info);
  int status = lade_staging_init(&s->bounce, (uint64_t)N_WINDOWS * WINDOW_BYTES, info.numa_node, NULL);
  if (!status)
    lade_store_pin(s->store, s->bounce.data, s->bounce.bytes); /* until close; if pinning is refused, windows still
                                                                  move */
  return status;
}

static int store_make(struct lade_tensor_store *s, const struct lade_tensor_store_params *given,
                      struct lade_error *error)
{
  struct lade_store_params how = {.struct_size = sizeof(how), .dir = given->dirs, .allow_tmpfs = given->allow_tmpfs,
                                  .allow_buffered = given->allow_buffered,
                                  .engine = given->use_threads ? LADE_STORE_POSIX : LADE_STORE_AUTO};
  int status = lade_store_open(&how, error, &s->store);
  if (status)
    return status;
  status = lade_store_reserve(s->store, lade_align_up(s->budget_bytes, LADE_STORE_GRANULE_BYTES), &s->extent);
  if (status)
    return lade_error_set(error, status, "a store cannot have a budget of %llu bytes",
                          (unsigned long long)s->budget_bytes);
  return lade_store_prepare(s->store, error);
}

int lade_tensor_store_open(const struct lade_tensor_store_params *params, struct lade_error *error,
                           struct lade_tensor_store **ret_store)
{
  if (!ret_store)
    return lade_error_set(error, -EINVAL, "lade_tensor_store_open: ret_store is NULL");
  struct lade_tensor_store_params given;
  int status = lade_struct_read("lade_tensor_store_params", params, &given, sizeof(given), error);
  if (status)
    return status;
  if (!given.dirs || !given.budget_bytes || given.budget_bytes > INT64_MAX / 2)
    return lade_error_set(error, -EINVAL, "a store needs directories and a budget of bytes");
  struct lade_tensor_store *s = calloc(1, sizeof(*s));
  if (!s)
    return lade_error_set(error, -ENOMEM, "no memory for a store");
  s->budget_bytes = given.budget_bytes;
  pthread_mutex_init(&s->mutex, NULL);
  pthread_mutex_init(&s->bounce_mutex, NULL);
  s->is_alive = lade_fork_guard_create();
  status = s->is_alive ? store_make(s, &given, error) : lade_error_set(error, -ENOMEM, "no memory for a store");
  if (!status) {
    status = room_init(s);
    if (!status)
      status = bounce_init(s);
    if (status)
      lade_error_set(error, status, "no memory for a store");
  }
  if (status) {
    lade_tensor_store_close(s);
    return status;
  }
  *ret_store = s;
  return 0;
}

/*
 * Close the store. In a child of fork it does nothing: the store's threads are absent, its mutexes may be locked for
 * ever, and its ring belongs to the parent.
 */
void lade_tensor_store_close(struct lade_tensor_store *s)
{
  if (!s || (s->is_alive && !*s->is_alive))
    return;
  lade_store_close(s->store);
  tdestroy(s->tree, tensor_free);
  LADE_ARRAY_FREE(&s->room.free);
  lade_staging_finish(&s->bounce);
  pthread_mutex_destroy(&s->bounce_mutex);
  pthread_mutex_destroy(&s->mutex);
  lade_fork_guard_destroy(s->is_alive);
  free(s);
}

const char *lade_tensor_store_note(const struct lade_tensor_store *s)
{
  if (!s)
    return "";
  return lade_store_note(s->store);
}

int lade_tensor_store_get_info(struct lade_tensor_store *s, struct lade_tensor_store_info *ret_info)
{
  if (!s || !ret_info)
    return -EINVAL;
  struct lade_store_info info;
  if (!*s->is_alive)
    return -EPERM;
  lade_store_get_info(s->store, &info);
  pthread_mutex_lock(&s->mutex);
  struct lade_tensor_store_info own = {
      .budget_bytes = s->budget_bytes,
      .used_bytes = lade_align_up(s->budget_bytes, LADE_STORE_GRANULE_BYTES) - store_runs_bytes(&s->room.free),
      .n_tensors = s->n_tensors,
      .read_bytes = info.read_bytes,
      .written_bytes = info.written_bytes,
      .n_dirs = (uint32_t)info.n_drives,
      .n_aside = (uint32_t)info.n_aside,
      .is_direct = info.is_direct,
      .uses_io_uring = strcmp(info.engine, "io_uring") == 0,
  };
  pthread_mutex_unlock(&s->mutex);
  return lade_struct_fill("lade_tensor_store_info", ret_info, &own, sizeof(own), NULL);
}

int lade_tensor_store_take_notice(struct lade_tensor_store *s, char *text, size_t text_bytes)
{
  if (!s || !text)
    return -EINVAL;
  return *s->is_alive ? lade_store_take_notice(s->store, text, text_bytes) : -EPERM;
}
