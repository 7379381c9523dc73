/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lade/store.h over the store: life of a tensor store, and its blocking calls.
 *
 * The budget is one extent. A tensor has runs of it (free_extents.h) and a number. Its checksums are seeded with that
 * number, and with the count of puts as generation. A tensor that is being moved has requests, which move it without
 * the mutex. So calls for different tensors contend only in the store itself.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/fork_guard.h"
#include "offload/store/tensor_internal.h"

#define IN_FLIGHT_BYTES (256u << 20) /* default bound: a few of a trainer's largest tensors */

/* ---- putting, getting, finding ---- */

int lade_tensor_store_put(struct lade_tensor_store *s, const char *name, const void *data, uint64_t bytes,
                          struct lade_error *error)
{
  if (!s)
    return lade_error_set(error, -EINVAL, "lade_tensor_store_put: store is NULL");
  if (!name || !*name || !data || !bytes)
    return lade_error_set(error, -EINVAL, "a tensor to put has a name and bytes");
  return tensor_request_run(s, LADE_TENSOR_PUT, name, (void *)data, bytes, error);
}

int lade_tensor_store_get(struct lade_tensor_store *s, const char *name, void *data, uint64_t bytes,
                          struct lade_error *error)
{
  if (!s)
    return lade_error_set(error, -EINVAL, "lade_tensor_store_get: store is NULL");
  if (!name || !data)
    return lade_error_set(error, -EINVAL, "a tensor to get has a name and memory to come to");
  return tensor_request_run(s, LADE_TENSOR_GET, name, data, bytes, error);
}

int lade_tensor_store_find(struct lade_tensor_store *s, const char *name, uint64_t *ret_bytes)
{
  if (!s || !name || !ret_bytes)
    return -EINVAL;
  if (!*s->is_alive)
    return -EPERM;
  pthread_mutex_lock(&s->mutex);
  struct tensor *tensor = tensor_find(s, name);
  const bool is_there = tensor && !tensor->is_lost;
  if (is_there)
    *ret_bytes = tensor->bytes;
  pthread_mutex_unlock(&s->mutex);
  return is_there ? 0 : -ENOENT;
}

int lade_tensor_store_find_next(struct lade_tensor_store *s, const char *after, char *ret_name, size_t name_bytes,
                                uint64_t *ret_bytes)
{
  if (!s || !ret_name || !ret_bytes)
    return -EINVAL;
  if (!*s->is_alive)
    return -EPERM;
  pthread_mutex_lock(&s->mutex);
  const struct tensor *best = tensor_find_next(s, after);
  int code = !best ? -ENOENT : strlen(best->name) >= name_bytes ? -EOVERFLOW : 0;
  if (!code) {
    memcpy(ret_name, best->name, strlen(best->name) + 1);
    *ret_bytes = best->bytes;
  }
  pthread_mutex_unlock(&s->mutex);
  return code;
}

int lade_tensor_store_drop(struct lade_tensor_store *s, const char *name)
{
  if (!s || !name)
    return -EINVAL;
  if (!*s->is_alive)
    return -EPERM;
  pthread_mutex_lock(&s->mutex);
  struct tensor *tensor = tensor_find(s, name);
  int status = !tensor || tensor->is_lost ? -ENOENT : tensor->requests ? -EBUSY : 0;
  if (!status)
    tensor_remove(s, tensor);
  pthread_mutex_unlock(&s->mutex);
  return status;
}

/* ---- life ---- */

static int room_init(struct lade_tensor_store *s)
{
  if (s->durable)
    return 0; /* the catalog has filled it */
  struct store_run all = {.bytes = lade_align_up(s->budget_bytes, LADE_STORE_GRANULE_BYTES)};
  return LADE_PUSH(&s->room.free, all) ? 0 : -ENOMEM;
}

/* Allocate the slab near the drives. */
static int bounce_init(struct lade_tensor_store *s)
{
  struct lade_store_info info;
  lade_store_get_info(s->store, &info);
  int status = lade_staging_init(&s->bounce, (uint64_t)TENSOR_N_WINDOWS * TENSOR_WINDOW_BYTES, info.numa_node, NULL);
  if (!status)
    lade_store_pin(s->store, s->bounce.data, s->bounce.bytes); /* until close; if pinning is refused, windows still
                                                                  move */
  return status;
}

static int store_make(struct lade_tensor_store *s, const struct lade_tensor_store_params *given,
                      struct lade_error *error)
{
  const struct lade_store_params params = {
      .struct_size = sizeof(params), .dir = given->dirs, .allow_tmpfs = given->allow_tmpfs,
      .allow_buffered = given->allow_buffered, .engine = given->use_threads ? LADE_STORE_POSIX : LADE_STORE_AUTO};
  if (given->is_durable)
    return tensor_catalog_open(s, given, error);
  int status = lade_store_open(&params, error, &s->store);
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
  if (!given.dirs || (!given.budget_bytes && !given.is_durable) || given.budget_bytes > INT64_MAX / 2)
    return lade_error_set(error, -EINVAL, "a store needs directories and a budget of bytes");
  struct lade_tensor_store *s = calloc(1, sizeof(*s));
  if (!s)
    return lade_error_set(error, -ENOMEM, "no memory for a store");
  s->budget_bytes = given.budget_bytes;
  s->in_flight_limit_bytes = given.in_flight_bytes ? given.in_flight_bytes : IN_FLIGHT_BYTES;
  pthread_mutex_init(&s->mutex, NULL);
  pthread_cond_init(&s->changed, NULL);
  s->is_alive = lade_fork_guard_create();
  status = s->is_alive ? store_make(s, &given, error) : lade_error_set(error, -ENOMEM, "no memory for a store");
  if (!status) {
    status = room_init(s);
    if (!status)
      status = bounce_init(s);
    if (status)
      lade_error_set(error, status, "no memory for a store");
  }
  if (!status)
    status = tensor_movers_start(s, error);
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
  tensor_movers_stop(s);
  if (s->durable)
    lade_durable_close(s->durable);
  else
    lade_store_close(s->store);
  tensors_free(s);
  LADE_ARRAY_FREE(&s->room.free);
  LADE_ARRAY_FREE(&s->room.held);
  lade_staging_finish(&s->bounce);
  pthread_cond_destroy(&s->changed);
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
  size_t memo_bytes = 0;
  if (!*s->is_alive)
    return -EPERM;
  lade_store_get_info(s->store, &info);
  pthread_mutex_lock(&s->mutex);
  const bool is_published = s->durable && lade_durable_memo(s->durable, &memo_bytes);
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
      .is_durable = s->durable != NULL,
      .n_published = is_published ? lade_durable_generation(s->durable) + 1 : 0,
      .held_bytes = store_runs_bytes(&s->room.held),
      .in_flight_bytes = s->in_flight_bytes,
      .in_flight_peak_bytes = s->in_flight_peak_bytes,
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
