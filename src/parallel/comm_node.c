/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Meetings of the ranks of one node, and how they fail.
 *
 * A meeting is over when every member has come. Members count up one word; the last to come sets it back, raises
 * n_met and wakes those who sleep on that word. Nobody spins where ranks outnumber cores; else a short spin saves the
 * sleep. A sleeper wakes every COMM_LOOK_MS to look whether those who are missing still live.
 *
 * Failure is one word, set once, by whoever sees it first: so all members tell the same story. A member that has come
 * to the meeting and then died does not fail it: the meeting can end, and the next one fails.
 *
 * Before a collective moves anything the members meet and compare their intents, which costs one meeting of
 * a few microseconds and turns a program that went astray into an error with names. Intents alternate between two
 * places: a member writes the third one only when all have come to the second, hence have read the first.
 */
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/cpu.h"
#include "parallel/comm_node_internal.h"
#include "parallel/comm_node_moves_internal.h"

#define SPINS 2000
#define CHUNK_LEAST 4096 /* per member: parts of a chunk stay whole pages */

/* The failure word: what in the upper half, the member less one in the lower. */
enum {
  FAILED_DEAD = 1 << 24,
  FAILED_ABORT = 2 << 24,
  FAILED_LATE = 3 << 24,
  FAILED_STOPPED = 4 << 24,
  FAILED_MASK = 0xff << 24
};

static void futex_wait(_Atomic uint32_t *word, uint32_t value)
{
  const struct timespec most = {.tv_nsec = COMM_LOOK_MS * 1000000l};
  syscall(SYS_futex, word, FUTEX_WAIT, value, &most, NULL, 0);
}

static void futex_wake(_Atomic uint32_t *word)
{
  syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

static void failure_set(struct comm_node *node, uint32_t what, int member)
{
  uint32_t none = 0;
  atomic_compare_exchange_strong(&node->control->failure, &none, what | (uint32_t)(member + 1));
  atomic_store(&node->group->job->has_failed, true);
  futex_wake(&node->control->n_met);
}

int comm_node_status(struct comm_node *node, struct lade_error *error)
{
  uint32_t failure = atomic_load(&node->control->failure);
  if (!failure)
    return 0;
  atomic_store(&node->group->job->has_failed, true);
  int member = (int)(failure & ~(uint32_t)FAILED_MASK) - 1, rank = node->group->members[member];
  switch (failure & FAILED_MASK) {
  case FAILED_DEAD: return comm_member_tell_dead(node->group, member, error);
  case FAILED_ABORT:
    return lade_error_set(error, -ECANCELED, "rank %d gave up: %.*s", rank, COMM_WORDS_BYTES,
                          node->control->members[member].words);
  case FAILED_STOPPED: return comm_member_tell_stopped(node->group, member, error);
  default: return comm_member_tell_late(node->group, member, error);
  }
}

static bool is_over(struct comm_node *node, uint32_t meeting)
{
  return (int32_t)(atomic_load_explicit(&node->control->n_met, memory_order_acquire) - meeting) >= 0;
}

/* Has @member not come? */
static bool is_missing(struct comm_node *node, uint32_t meeting, int member)
{
  return atomic_load(&node->control->members[member].n_arrived) != meeting;
}

/* Look for a member that has not come and is dead, stopped, or too late and not busy. */
static void missing_check(struct comm_node *node, uint32_t meeting, struct comm_patience *patience)
{
  int late = -1;
  for (int member = 0; member < node->group->size && !is_over(node, meeting); member++) {
    if (!is_missing(node, meeting, member))
      continue;
    /* It may have come since: looked at again once it is known to be dead, its last word is final. */
    if (comm_member_is_dead(node->group, member) && is_missing(node, meeting, member)) {
      failure_set(node, FAILED_DEAD, member);
      return;
    }
    if (comm_member_is_stopped(node->group, member)) {
      failure_set(node, FAILED_STOPPED, member);
      return;
    }
    late = late < 0 && !comm_member_is_busy(node->group, member) ? member : late;
  }
  comm_patience_count(patience, late < 0);
  if (late >= 0 && patience->waited_ns > node->params->timeout_ms * INT64_C(1000000))
    failure_set(node, FAILED_LATE, late);
}

static int meeting_wait(struct comm_node *node, uint32_t meeting, struct lade_error *error)
{
  struct comm_control *control = node->control;
  for (int i = 0; i < node->n_spins; i++)
    if (is_over(node, meeting))
      return 0;
  struct comm_patience patience;
  int status = 0;
  comm_patience_begin(&patience);
  atomic_fetch_add(&control->n_sleepers, 1);
  while (!is_over(node, meeting) && !(status = comm_node_status(node, error))) {
    futex_wait(&control->n_met, meeting - 1);
    if (comm_patience_is_due(&patience))
      missing_check(node, meeting, &patience);
  }
  atomic_fetch_sub(&control->n_sleepers, 1);
  return status;
}

int comm_node_meet(struct comm_node *node, struct lade_error *error)
{
  struct comm_control *control = node->control;
  uint32_t meeting = ++node->n_meetings;
  bool is_last = atomic_fetch_add(&control->n_here, 1) + 1 == (uint32_t)node->group->size;
  if (is_last) {
    atomic_store(&control->n_here, 0);
    atomic_store(&control->n_met, meeting);
  }
  /* Said last: whoever ends before this counts as missing, and is found. */
  atomic_store(&control->members[node->group->rank].n_arrived, meeting);
  if (!is_last)
    return meeting_wait(node, meeting, error);
  if (atomic_load(&control->n_sleepers))
    futex_wake(&control->n_met);
  return 0;
}

void comm_node_abort(struct comm_node *node, const char *words)
{
  struct comm_member *own = &node->control->members[node->group->rank];
  snprintf(own->words, sizeof(own->words), "%s", words);
  failure_set(node, FAILED_ABORT, node->group->rank);
}

int comm_node_look(struct comm_node *node, struct lade_error *error)
{
  bool is_well = atomic_load(&node->control->failure) == 0;
  for (int member = 0; is_well && member < node->group->size; member++) {
    is_well = !comm_member_is_dead(node->group, member);
    if (!is_well)
      failure_set(node, FAILED_DEAD, member);
    else if (comm_member_is_stopped(node->group, member))
      failure_set(node, FAILED_STOPPED, member);
  }
  return comm_node_status(node, error);
}

void comm_node_late(struct comm_node *node, int member)
{
  failure_set(node, FAILED_LATE, member);
}

/* ---- agreeing ---- */

void comm_intent_fill(struct comm_intent *intent, const struct lade_comm_list *list, uint32_t sequence)
{
  const struct lade_collective *first = list->items;
  *intent = (struct comm_intent){.kind = first->kind, .dtype = first->dtype, .n_items = (uint64_t)list->n};
  intent->sequence = sequence;
  intent->peer = first->kind == LADE_BROADCAST ? (uint32_t)first->peer : 0;
  for (int i = 0; i < list->n; i++)
    intent->n[i] = list->items[i].n;
}

#define INTENT_TEXT_BYTES 128
/* "all_reduce of 5 fp32 with peer 0", of item @at; into @text. */
static const char *intent_describe(const struct comm_intent *intent, uint64_t at, char *text)
{
  char which[48] = "";
  at = LADE_MIN(at, intent->n_items - 1);
  if (intent->n_items > 1)
    snprintf(which, sizeof(which), " (number %d of %d together)", (int)at + 1, (int)intent->n_items);
  snprintf(text, INTENT_TEXT_BYTES, "%s of %llu %s%s with peer %u", lade_collective_name(intent->kind),
           (unsigned long long)intent->n[at], lade_dtype_name(intent->dtype), which, intent->peer);
  return text;
}

int comm_intents_tell(const struct comm_group *group, int member, const struct comm_intent *other,
                      const struct comm_intent *first, struct lade_error *error)
{
  char text[INTENT_TEXT_BYTES], first_text[INTENT_TEXT_BYTES];
  uint64_t at = 0;
  while (at + 1 < LADE_MIN(other->n_items, first->n_items) && other->n[at] == first->n[at])
    at++;
  at += other->n[at] == first->n[at] && other->n_items != first->n_items;
  return lade_error_set(error, -EPROTO, "rank %d runs %s, rank %d runs %s; all ranks of a group must run the same",
                        group->members[member], intent_describe(other, at, text), group->members[0],
                        intent_describe(first, at, first_text));
}

/* Does every item that has elements lie in one window at both? */
static void whereabouts_compare(const struct comm_intent *intent, const struct comm_whereabouts *own,
                                const struct comm_whereabouts *first, struct comm_agreement *ret)
{
  for (uint64_t i = 0; i < intent->n_items; i++) {
    if (!intent->n[i])
      continue;
    ret->is_src_shared &= own[i].src_window && own[i].src_window == first[i].src_window;
    ret->is_dst_shared &= own[i].dst_window && own[i].dst_window == first[i].dst_window;
  }
}

/* All intents of this sequence are there: are they one, and is all memory shared? */
static int intents_compare(struct comm_node *node, struct comm_agreement *ret, struct lade_error *error)
{
  int parity = node->n_sequences & 1;
  const struct comm_member *members = node->control->members;
  const struct comm_intent *first = &members[0].intents[parity];
  const size_t bytes = offsetof(struct comm_intent, n) + first->n_items * sizeof(first->n[0]);
  *ret = (struct comm_agreement){.parity = parity, .is_src_shared = true, .is_dst_shared = true};
  for (int member = 0; member < node->group->size; member++) {
    if (memcmp(&members[member].intents[parity], first, bytes) != 0) {
      atomic_store(&node->group->job->has_failed, true);
      return comm_intents_tell(node->group, member, &members[member].intents[parity], first, error);
    }
    whereabouts_compare(first, members[member].whereabouts[parity], members[0].whereabouts[parity], ret);
  }
  return 0;
}

/* Blocks of n elements in a buffer. */
static uint64_t src_blocks(const struct comm_node *node, const struct lade_collective *c)
{
  bool is_world = c->kind == LADE_REDUCE_SCATTER || c->kind == LADE_ALL_TO_ALL;
  return is_world ? (uint64_t)node->group->size : 1;
}

static uint64_t dst_blocks(const struct comm_node *node, const struct lade_collective *c)
{
  return c->kind == LADE_ALL_GATHER || c->kind == LADE_ALL_TO_ALL ? (uint64_t)node->group->size : 1;
}

static int intents_meet(struct comm_node *node, const struct lade_comm_list *list, struct comm_agreement *ret,
                        struct lade_error *error)
{
  const int parity = ++node->n_sequences & 1;
  struct comm_member *own = &node->control->members[node->group->rank];
  comm_intent_fill(&own->intents[parity], list, node->n_sequences);
  for (int i = 0; i < list->n; i++) {
    const struct lade_collective *c = &list->items[i];
    struct comm_whereabouts *where = &own->whereabouts[parity][i];
    uint64_t bytes = lade_collective_bytes(c);
    *where = (struct comm_whereabouts){0};
    if (!bytes)
      continue;
    where->src_window = comm_window_find(node->group, c->src, bytes * src_blocks(node, c), &where->src_offset);
    where->dst_window = comm_window_find(node->group, c->dst, bytes * dst_blocks(node, c), &where->dst_offset);
  }
  int status = comm_node_meet(node, error);
  return status ? status : intents_compare(node, ret, error);
}

int comm_node_run(struct comm_node *node, const struct lade_comm_list *list, struct lade_error *error)
{
  struct comm_agreement agreement;
  int status = comm_node_status(node, error);
  if (!status)
    status = intents_meet(node, list, &agreement, error);
  if (status || list->items->kind == LADE_BARRIER || comm_list_elements(list) == 0)
    return status;
  if (!comm_move_is_direct(list, &agreement))
    return comm_move_staged(node, list, error);
  atomic_fetch_add(&node->n_direct, 1);
  return comm_move_direct(node, list, &agreement, error);
}

/* ---- making and ending ---- */

int comm_node_init(struct comm_node *node, struct comm_group *group, const struct lade_comm_params *params,
                   struct lade_error *ret_why, struct lade_error *error, bool *ret_is_shared)
{
  uint64_t size = (uint64_t)group->size;
  uint64_t chunk = lade_align_up(LADE_MAX(params->staging_bytes / 2, size * CHUNK_LEAST), 4096);
  uint64_t control = lade_align_up(sizeof(struct comm_control) + size * sizeof(struct comm_member), 4096);
  *node = (struct comm_node){.group = group, .params = params, .chunk_bytes = chunk};
  node->n_spins = group->job->n_here <= lade_cpu_count() ? SPINS : 0;
  node->terms = lade_fault_calloc(params->faults, size, sizeof(*node->terms));
  int failed = comm_group_agree(group, node->terms, "a communicator", error);
  if (!failed)
    failed = comm_segment_open(group, control + 2 * chunk * (size + 1), params->backing, ret_why, error,
                               &node->segment);
  if (failed || !node->segment.data) {
    free(node->terms);
    node->terms = NULL;
    *ret_is_shared = false;
    return failed;
  }
  node->control = node->segment.data;
  node->slots = (char *)node->segment.data + control;
  node->results = node->slots + 2 * chunk * size;
  *ret_is_shared = true;
  return 0;
}

void comm_node_finish(struct comm_node *node)
{
  comm_segment_close(&node->segment);
  free(node->terms);
}
