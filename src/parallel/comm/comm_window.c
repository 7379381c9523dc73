/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Windows: memory of each member of a group that the other members read in place.
 *
 * An allocation is one segment divided among the members. A registration is existing memory of each member, for example
 * a shared chunk of its host device. Every member maps the others' memory through /proc, read-only, so that no error
 * here can write to it. Pages are mapped as they are read. A rank reads about 1/size of each peer's buffer in a
 * collective. So its page tables for all peers together are no larger than those of its own memory. Mapping everything
 * ahead would take size times that.
 *
 * A member's death does not remove its memory: a mapping holds the memory. Only memory sealed against shrinking is
 * accepted, so that reading it never raises SIGBUS.
 *
 * A registration serves its own group alone. Two axes of a mesh have different members, and a buffer may be registered
 * with both; members of a group must find the same window. An allocation serves the groups that were split from its
 * own, too. If members of such a group did not allocate together, they find different windows and use staging.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "parallel/comm/comm_window_internal.h"

/* One member's part of a window. No padding. */
struct claim {
  uint64_t bytes, id; /* id: its id for the window; the first member's is used */
  int64_t descriptor; /* of a registration */
};

struct comm_window {
  uint64_t id;                    /* the same at every member; never 0 */
  const struct comm_group *group; /* group whose collectives may use it; NULL: any */
  struct comm_segment segment;    /* of an allocation, if memory is shared */
  char *own;                      /* this rank's part */
  uint64_t own_bytes;
  bool is_shared, is_registered;
  int n_members;
  int *ranks;           /* of the world */
  struct claim *claims; /* of all members */
  const char **parts;   /* local address of each part; NULL: not mapped */
};

/* ---- making ---- */

static void parts_unmap(struct comm_window *window)
{
  for (int member = 0; member < window->n_members; member++)
    if (window->parts[member] && window->parts[member] != window->own)
      munmap((void *)(uintptr_t)window->parts[member], window->claims[member].bytes);
}

static void window_destroy(struct comm_window *window)
{
  if (!window)
    return;
  if (window->is_registered)
    parts_unmap(window);
  else if (!window->segment.data)
    free(window->own);
  comm_segment_close(&window->segment);
  free(window->ranks);
  free(window->claims);
  free(window->parts);
  free(window);
}

static struct comm_window *window_create(const struct comm_group *group, struct lade_faults *faults)
{
  const size_t size = (size_t)group->size;
  struct comm_window *window = lade_fault_calloc(faults, 1, sizeof(*window));
  if (!window)
    return NULL;
  window->n_members = group->size;
  window->ranks = lade_fault_calloc(faults, size, sizeof(*window->ranks));
  window->claims = lade_fault_calloc(faults, size, sizeof(*window->claims));
  window->parts = lade_fault_calloc(faults, size, sizeof(*window->parts));
  if (!window->ranks || !window->claims || !window->parts) {
    window_destroy(window);
    return NULL;
  }
  memcpy(window->ranks, group->members, size * sizeof(*window->ranks));
  return window;
}

/*
 * Reserve capacity for one more window in the job's table, and return an id that no other window of this process has.
 */
static bool table_reserve(struct comm_job *job, int rank, uint64_t *ret_id)
{
  pthread_mutex_lock(&job->windows_mutex);
  *ret_id = (uint64_t)(rank + 1) << 32 | ++job->n_windows_made;
  const bool has_room = lade_array_reserve((void **)&job->windows.items, &job->windows.capacity, job->windows.n + 1,
                                           sizeof(*job->windows.items));
  pthread_mutex_unlock(&job->windows_mutex);
  return has_room;
}

static void table_add(struct comm_job *job, struct comm_window *window)
{
  pthread_mutex_lock(&job->windows_mutex);
  job->windows.items[job->windows.n++] = window;
  pthread_mutex_unlock(&job->windows_mutex);
}

/* Exchange all members' claims; the first member's id becomes the window's. */
static int claims_meet(struct comm_group *group, struct comm_window *window, const struct claim *own,
                       struct lade_error *error)
{
  int failed = comm_group_gather(group, own, window->claims, sizeof(*own), error);
  window->id = window->claims[0].id;
  window->own_bytes = own->bytes;
  return failed;
}

/* ---- allocations ---- */

/* Allocate the window's memory: a shared segment, or private memory if none is shared. */
static int window_back(struct comm_group *group, const struct lade_comm_params *params, struct comm_window *window,
                       struct lade_error *error)
{
  struct lade_error why = {0};
  uint64_t total = 0, at = 0;
  for (int member = 0; member < group->size; member++)
    total += window->claims[member].bytes;
  int failed = group->node ? comm_segment_open(group, total, params->backing, &why, error, &window->segment) : 0;
  if (failed)
    return failed;
  window->is_shared = window->segment.data;
  for (int member = 0; window->is_shared && member < group->size; member++) {
    window->parts[member] = (const char *)window->segment.data + at;
    if (member == group->rank)
      window->own = (char *)window->segment.data + at;
    at += window->claims[member].bytes;
  }
  if (window->is_shared)
    return 0;
  window->own = lade_fault(params->faults, LADE_FAULT_HEAP) ? NULL : aligned_alloc(4096, window->own_bytes);
  failed = comm_group_agree(group, window->own, "an allocation", error);
  if (!failed)
    memset(window->own, 0, window->own_bytes);
  return failed;
}

int comm_window_alloc(struct comm_group *group, const struct lade_comm_params *params, uint64_t bytes,
                      struct lade_error *error, void **ret_data)
{
  struct comm_window *window = window_create(group, params->faults);
  struct claim own = {.bytes = lade_align_up(bytes, 4096), .descriptor = -1};
  const bool has_room = table_reserve(group->job, group->members[group->rank], &own.id);
  int failed = comm_group_agree(group, window && has_room, "an allocation", error);
  if (!failed)
    failed = claims_meet(group, window, &own, error);
  if (!failed)
    failed = window_back(group, params, window, error);
  if (failed) {
    if (!atomic_load(&group->job->has_failed)) /* otherwise MPI may still write into it */
      window_destroy(window);
    return failed;
  }
  table_add(group->job, window);
  *ret_data = window->own;
  return 0;
}

/* ---- registrations ---- */

/* True if @descriptor has at least @bytes and is sealed against shrinking. */
static bool is_firm(int descriptor, uint64_t bytes)
{
  struct stat status;
  const int seals = fcntl(descriptor, F_GET_SEALS);
  return seals >= 0 && (seals & F_SEAL_SHRINK) && !fstat(descriptor, &status) && (uint64_t)status.st_size >= bytes;
}

/* Map the memory of process @pid that @claim describes; NULL if that fails. */
static const char *part_map(pid_t pid, const struct claim *claim)
{
  char path[64];
  snprintf(path, sizeof(path), "/proc/%d/fd/%d", (int)pid, (int)claim->descriptor);
  int descriptor = open(path, O_RDONLY | O_CLOEXEC);
  if (descriptor < 0)
    return NULL;
  void *data = MAP_FAILED;
  if (is_firm(descriptor, claim->bytes))
    data = mmap(NULL, claim->bytes, PROT_READ, MAP_SHARED, descriptor, 0);
  close(descriptor);
  if (data == MAP_FAILED)
    return NULL;
  madvise(data, claim->bytes, MADV_DONTFORK);
  madvise(data, claim->bytes, MADV_DONTDUMP); /* a core dump has its own rank's arena, not those of all ranks */
  return data;
}

/* Map the parts of all other members; this rank's own part is used in place. */
static bool parts_map(const struct comm_group *group, struct comm_window *window)
{
  bool is_whole = true;
  for (int member = 0; member < group->size && is_whole; member++) {
    window->parts[member] =
        member == group->rank ? window->own
                              : part_map(group->job->processes[group->members[member]].pid, &window->claims[member]);
    is_whole = window->parts[member];
  }
  return is_whole;
}

int comm_window_register(struct comm_group *group, const struct lade_comm_params *params,
                         const struct lade_comm_range *range, struct lade_error *error, bool *ret_is_registered)
{
  struct comm_window *window = window_create(group, params->faults);
  struct claim own = {.bytes = range->bytes, .descriptor = range->descriptor};
  int unable;
  const bool has_room = table_reserve(group->job, group->members[group->rank], &own.id);
  int failed = comm_group_vote(group, !(window && has_room && range->descriptor >= 0), &unable, error);
  if (!failed && unable < 0) {
    window->own = range->data;
    window->group = group;
    window->is_registered = true;
    failed = claims_meet(group, window, &own, error);
  }
  if (!failed && unable < 0)
    failed = comm_group_vote(group, !parts_map(group, window), &unable, error);
  if (failed || unable >= 0) {
    if (!failed || !atomic_load(&group->job->has_failed)) /* otherwise MPI may still write into it */
      window_destroy(window);
    *ret_is_registered = false;
    return failed;
  }
  window->is_shared = true;
  table_add(group->job, window);
  *ret_is_registered = true;
  return 0;
}

/* ---- using and ending ---- */

void comm_window_release(struct comm_job *job, const struct comm_group *group, const void *data)
{
  struct comm_window *found = NULL;
  pthread_mutex_lock(&job->windows_mutex);
  for (int i = 0; i < job->windows.n && !found; i++) {
    struct comm_window *window = job->windows.items[i];
    if (window->own == data && window->group == group) {
      found = window;
      job->windows.items[i] = job->windows.items[--job->windows.n];
    }
  }
  pthread_mutex_unlock(&job->windows_mutex);
  LADE_ASSERT(found);
  window_destroy(found);
}

uint64_t comm_window_find(const struct comm_group *group, const void *data, uint64_t bytes, uint64_t *ret_offset)
{
  struct comm_job *job = group->job;
  uint64_t id = 0;
  pthread_mutex_lock(&job->windows_mutex);
  for (int i = 0; data && i < job->windows.n && !id; i++) {
    const struct comm_window *window = job->windows.items[i];
    const bool is_for_us = window->is_shared && (!window->group || window->group == group);
    uint64_t offset = (uint64_t)((uintptr_t)data - (uintptr_t)window->own);
    if (is_for_us && offset < window->own_bytes && bytes <= window->own_bytes - offset) {
      id = window->id;
      *ret_offset = offset;
    }
  }
  pthread_mutex_unlock(&job->windows_mutex);
  return id;
}

const void *comm_window_at(struct comm_job *job, uint64_t id, int rank, uint64_t offset)
{
  const char *at = NULL;
  pthread_mutex_lock(&job->windows_mutex);
  for (int i = 0; i < job->windows.n && !at; i++) {
    const struct comm_window *window = job->windows.items[i];
    for (int member = 0; window->id == id && member < window->n_members && !at; member++)
      if (window->ranks[member] == rank)
        at = window->parts[member] + offset;
  }
  pthread_mutex_unlock(&job->windows_mutex);
  return at;
}
