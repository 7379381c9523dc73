/* SPDX-License-Identifier: Apache-2.0 */
/* Collectives among ranks of one node, through shared memory. Private to src/parallel/. */
#ifndef LADE_COMM_NODE_INTERNAL_H
#define LADE_COMM_NODE_INTERNAL_H

#include "parallel/comm/comm_window_internal.h"

#define COMM_WORDS_BYTES 448 /* part of lade_error's text; the rest names the rank */

/* A member's next collective; compared before anything moves. No padding. */
struct comm_intent {
  uint32_t kind, dtype, peer, sequence;
  uint64_t n_items;
  uint64_t n[LADE_COMM_LIST_MAX]; /* elements of each item; 0 after the last */
};

/* Locations of an item's buffers. Window 0: private memory, or no buffer. */
struct comm_whereabouts {
  uint64_t src_window, src_offset, dst_window, dst_offset;
};

struct comm_member {
  _Alignas(64) _Atomic uint32_t n_arrived; /* meetings at which it has arrived */
  _Atomic uint32_t n_busy;                 /* in the world's segment: nested calls of lade_comm_set_busy */
  struct comm_intent intents[2];           /* by the parity of their sequence; whereabouts: the locations of each
                                              item */
  struct comm_whereabouts whereabouts[2][LADE_COMM_LIST_MAX];
  char words[COMM_WORDS_BYTES];            /* reason of an abort */
};

/* At the start of a segment. */
struct comm_control {
  _Alignas(64) _Atomic uint32_t n_here; /* members that have arrived at the present meeting */
  _Atomic uint32_t n_met;               /* meetings that have ended: the futex word */
  _Atomic uint32_t n_sleepers;
  _Atomic uint32_t failure; /* 0, or the cause and the member */
  _Atomic uint32_t n_spoken;
  struct comm_member members[];
};

struct comm_node {
  struct comm_group *group;
  const struct lade_comm_params *params;
  struct comm_segment segment;
  struct comm_control *control;
  char *slots, *results;            /* slots: two chunks per member; results: two chunks for all */
  uint64_t chunk_bytes;             /* a multiple of size cache lines */
  uint32_t n_meetings, n_sequences; /* of this member */
  const void **terms;               /* scratch, one per member */
  _Atomic uint64_t n_direct;        /* lists moved without staging */
  atomic_bool has_aborted;          /* this member: its words are written, and no later abort changes them */
  int n_spins;
};

/*
 * Initialise @node in a shared segment of @group. If there is no shared memory, *ret_is_shared is false and @ret_why
 * has the reason. Collective.
 */
int comm_node_init(struct comm_node *node, struct comm_group *group, const struct lade_comm_params *params,
                   struct lade_error *ret_why, struct lade_error *error, bool *ret_is_shared);
void comm_node_finish(struct comm_node *node);

/* True if control, slots and results of @node tile its segment in this order. Asserted with -Dchecks=full. */
bool comm_node_is_valid(const struct comm_node *node);

/* Run a list; send and recv are not supported. */
int comm_node_run(struct comm_node *node, const struct lade_comm_list *list, struct lade_error *error);

/* Fill @intent with the kind and sizes of @list; @sequence counts the collectives of this member. */
void comm_intent_fill(struct comm_intent *intent, const struct lade_comm_list *list, uint32_t sequence);
/* Return -EPROTO with the line about two intents that differ. */
int comm_intents_report(const struct comm_group *group, int member, const struct comm_intent *other,
                        const struct comm_intent *first, struct lade_error *error);

/* Wait until all members have arrived. If it returns 0, all members see all earlier writes. */
int comm_node_meet(struct comm_node *node, struct lade_error *error);

/* End every member's waits with the reason @words. Later calls have no effect: the first reason counts. Any thread. */
void comm_node_abort(struct comm_node *node, const char *words);
/* Return 0, or the error if a member has failed or aborted. Never blocks. */
int comm_node_status(struct comm_node *node, struct lade_error *error);

/* Return the status of comm_node_status, after a check that all members live. */
int comm_node_look(struct comm_node *node, struct lade_error *error);
/* Record that @member has not arrived in time, as detected here or by another engine. */
void comm_node_late(struct comm_node *node, int member);

/* Elements [from, from + n) of a total: those that one member sums. Parts begin at whole cache lines. */
struct comm_part {
  uint64_t from, n;
};
#define COMM_PART_ALIGN 64 /* a cache line */

static inline uint64_t comm_part_max(uint64_t total, int size)
{
  return lade_align_up((total + (uint64_t)size - 1) / (uint64_t)size, COMM_PART_ALIGN);
}

static inline struct comm_part comm_part_get(uint64_t total, int size, int member)
{
  uint64_t max = comm_part_max(total, size), from = LADE_MIN(max * (uint64_t)member, total);
  return (struct comm_part){from, LADE_MIN(max, total - from)};
}

/* Copy bytes, on the pool if there are many. */
void comm_copy(lade_pool *pool, void *dst, const void *src, uint64_t bytes);
/* Copy a result that is not read soon: a large one bypasses the caches. */
void comm_deliver(const struct lade_comm_params *params, void *dst, const void *src, uint64_t bytes);
void comm_sum(const struct lade_comm_params *params, enum lade_dtype dtype, const void *const *terms, int n_terms,
              void *dst, uint64_t n);

#endif
