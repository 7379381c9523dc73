/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Collectives of the ranks of one node: their agreement before any byte moves.
 *
 * Each member writes its intent: the kind, dtype, peer and sizes of its next collective. The members meet and compare
 * all intents. This costs one meeting of a few microseconds. If ranks run different collectives, the result is an error
 * that names them instead of wrong memory. Intents alternate between two places. A member writes its third intent over
 * the first only after the second meeting, at which all members have read the first.
 */
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cpu.h"
#include "parallel/comm/comm_node_internal.h"
#include "parallel/comm/comm_node_moves_internal.h"

#define SPINS 2000 /* before a sleep, if each rank of the node has a core */
#define CHUNK_MIN 4096 /* per member, so that parts of a chunk are whole pages */

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
/* Write "all_reduce of 5 fp32 with peer 0", for item @at, into @text. */
static const char *intent_describe(const struct comm_intent *intent, uint64_t at, char *text)
{
  char position[48] = "";
  at = LADE_MIN(at, intent->n_items - 1);
  if (intent->n_items > 1)
    snprintf(position, sizeof(position), " (number %d of %d together)", (int)at + 1, (int)intent->n_items);
  snprintf(text, INTENT_TEXT_BYTES, "%s of %llu %s%s with peer %u", lade_collective_name(intent->kind),
           (unsigned long long)intent->n[at], lade_dtype_name(intent->dtype), position, intent->peer);
  return text;
}

int comm_intents_report(const struct comm_group *group, int member, const struct comm_intent *other,
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

/* Clear is_src_shared or is_dst_shared in @ret if an item with elements is not in the same window at both members. */
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

/*
 * Compare all members' intents of this sequence, and find out if all memory is shared. pre: all members have written
 * theirs.
 */
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
      return comm_intents_report(node->group, member, &members[member].intents[parity], first, error);
    }
    whereabouts_compare(first, members[member].whereabouts[parity], members[0].whereabouts[parity], ret);
  }
  return 0;
}

/* Return the number of blocks of n elements in the buffer. */
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

/* Return the bytes of the control of @size members. */
static uint64_t control_bytes(uint64_t size)
{
  return lade_align_up(sizeof(struct comm_control) + size * sizeof(struct comm_member), 4096);
}

bool comm_node_is_valid(const struct comm_node *node)
{
  const uint64_t size = (uint64_t)node->group->size, control = control_bytes(size);
  return node->terms && node->segment.data && (void *)node->control == node->segment.data &&
         node->chunk_bytes % 4096 == 0 && node->chunk_bytes >= size * CHUNK_MIN &&
         node->slots == (char *)node->segment.data + control &&
         node->results == node->slots + 2 * node->chunk_bytes * size &&
         node->segment.bytes >= control + 2 * node->chunk_bytes * (size + 1);
}

int comm_node_init(struct comm_node *node, struct comm_group *group, const struct lade_comm_params *params,
                   struct lade_error *ret_why, struct lade_error *error, bool *ret_is_shared)
{
  uint64_t size = (uint64_t)group->size;
  uint64_t chunk = lade_align_up(LADE_MAX(params->staging_bytes / 2, size * CHUNK_MIN), 4096);
  uint64_t control = control_bytes(size);
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
  LADE_ASSERT(!LADE_CHECK_FULL || comm_node_is_valid(node));
  *ret_is_shared = true;
  return 0;
}

void comm_node_finish(struct comm_node *node)
{
  comm_segment_close(&node->segment);
  free(node->terms);
}
