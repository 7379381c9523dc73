/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Collectives among ranks of one node, through memory that all have mapped. Private to src/parallel/.
 */
#ifndef LADE_COMM_NODE_INTERNAL_H
#define LADE_COMM_NODE_INTERNAL_H

#include "parallel/comm_window_internal.h"

#define COMM_WORDS_BYTES 448 /* of a line of lade_error; the rest says whose they are */

/* What a member is about to run; compared before anything moves. No padding. */
struct comm_intent {
  uint32_t kind, dtype, peer, sequence;
  uint64_t n_items;
  uint64_t n[LADE_COMM_LIST_MOST]; /* of each; 0 behind the last */
};

/* Where an item's buffers lie; window 0: private memory, or none. */
struct comm_whereabouts {
  uint64_t src_window, src_offset, dst_window, dst_offset;
};

struct comm_member {
  _Alignas(64) _Atomic uint32_t n_arrived; /* meetings that it has come to */
  _Atomic uint32_t n_busy;                 /* in the world's segment: things that it does by itself */
  struct comm_intent intents[2];           /* by the parity of their sequence; and of each item, where it is */
  struct comm_whereabouts whereabouts[2][LADE_COMM_LIST_MOST];
  char words[COMM_WORDS_BYTES];            /* of an abort */
};

/* At the start of a segment. */
struct comm_control {
  _Alignas(64) _Atomic uint32_t n_here; /* come to the present meeting */
  _Atomic uint32_t n_met;               /* meetings that are over: the futex word */
  _Atomic uint32_t n_sleepers;
  _Atomic uint32_t failure; /* 0, or what and who */
  _Atomic uint32_t n_spoken;
  struct comm_member members[];
};

struct comm_node {
  struct comm_group *group;
  const struct lade_comm_params *params;
  struct comm_segment segment;
  struct comm_control *control;
  char *slots, *results;            /* two chunks per member; two for all */
  uint64_t chunk_bytes;             /* a multiple of size cache lines */
  uint32_t n_meetings, n_sequences; /* of this member */
  const void **terms;               /* scratch, one per member */
  _Atomic uint64_t n_direct;        /* lists that went without staging */
  int n_spins;
};

/* Set up in a segment of the group; *is_shared false: no shared memory is to be had, and why. Collective. */
int comm_node_init(struct comm_node *node, struct comm_group *group, const struct lade_comm_params *params,
                   struct lade_error *ret_why, struct lade_error *error, bool *ret_is_shared);
void comm_node_finish(struct comm_node *node);

/* Not for send and recv. */
int comm_node_run(struct comm_node *node, const struct lade_comm_list *list, struct lade_error *error);

/* The intent of a list. */
void comm_intent_fill(struct comm_intent *intent, const struct lade_comm_list *list, uint32_t sequence);
/* -EPROTO with the line about two intents that differ. */
int comm_intents_tell(const struct comm_group *group, int member, const struct comm_intent *other,
                      const struct comm_intent *first, struct lade_error *error);

/* End every member's waits. */
void comm_node_abort(struct comm_node *node, const char *words);
/* Has a member failed or given up? 0 or the error. Never blocks. */
int comm_node_status(struct comm_node *node, struct lade_error *error);

/* The same, after a look whether all members live. */
int comm_node_look(struct comm_node *node, struct lade_error *error);
/* Say that a member has not come in time, wherever that was found out. */
void comm_node_late(struct comm_node *node, int member);

/* Elements [from, from + n) of @total: those that are @member's to sum. Parts begin at whole cache lines. */
struct comm_part {
  uint64_t from, n;
};
#define COMM_PART_ALIGN 64

static inline uint64_t comm_part_most(uint64_t total, int size)
{
  return lade_align_up((total + (uint64_t)size - 1) / (uint64_t)size, COMM_PART_ALIGN);
}

static inline struct comm_part comm_part_get(uint64_t total, int size, int member)
{
  uint64_t most = comm_part_most(total, size), from = LADE_MIN(most * (uint64_t)member, total);
  return (struct comm_part){from, LADE_MIN(most, total - from)};
}

/* Bytes by the pool where there are many. */
void comm_copy(lade_pool *pool, void *dst, const void *src, uint64_t bytes);
/* The same where it is the result, not read soon: large ones past the caches. */
void comm_deliver(const struct lade_comm_params *params, void *dst, const void *src, uint64_t bytes);
void comm_sum(const struct lade_comm_params *params, enum lade_dtype dtype, const void *const *terms, int n_terms,
              void *dst, uint64_t n);

#endif
