/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What programs ask of communicators, and whether the members of one ask for the same.
 *
 * A call is a collective, a send or a recv, as the engine will see it: how many bytes of which type, and what is done
 * with them. The calls of a rank on an axis fall into lanes: its collectives, in which it has to go with all others of
 * its group; and for each peer its sends to it and its recvs from it, of which the k-th send has to be the peer's k-th
 * recv. Lanes agree when their digests do. If they do not, the first calls that differ say why.
 *
 * A training program and its evaluation are one sequence: the first's calls, then the second's.
 */
#ifndef LADE_CALLS_H
#define LADE_CALLS_H

#include "plan/program.h"

/* One instruction to a communicator. It is sent to other ranks as it stands: no padding, no pointers. */
struct lade_call {
  uint64_t bytes;     /* of one rank's block, of what a send carries */
  int32_t instr;      /* its place in its program */
  int32_t peer;       /* SEND, RECV: position on the axis; else -1 */
  int16_t microbatch;
  uint8_t kind;       /* enum lade_collective_kind, sends and recvs among them */
  uint8_t dtype;
  uint8_t is_training; /* else of the evaluation */
  uint8_t is_joined;   /* to the collective before it: the engine sees one list */
  uint8_t unused[2];   /* 0 */
};

struct lade_calls {
  struct lade_call *items; /* the caller's to free */
  int n;
};

/* The calls of @train, then of @eval (may be NULL), on @axis. -ENOMEM. Any thread. */
int lade_calls_list(const struct lade_program *train, const struct lade_program *eval, enum lade_axis axis,
                    struct lade_calls *ret_calls);

/* @kind LADE_SEND or LADE_RECV: what goes to, or comes from, the member at @peer. Any other: the collectives. */
struct lade_call_lane {
  enum lade_collective_kind kind;
  int peer;
};

/* Equal for lanes that agree: collectives with collectives, sends with the peer's recvs. */
uint64_t lade_calls_digest(const struct lade_calls *calls, struct lade_call_lane lane);

/*
 * The first calls in which @lane of @calls and @other_lane of @other differ; where one has ended, NULL. False: they
 * agree.
 */
bool lade_calls_differ(const struct lade_calls *calls, struct lade_call_lane lane, const struct lade_calls *other,
                       struct lade_call_lane other_lane, const struct lade_call **ret_call,
                       const struct lade_call **ret_other);

#define LADE_CALL_TEXT_BYTES 240
/*
 * "instruction 12 (all_reduce of h.0.mlp.fc.grad, microbatch 0), 512 bytes of fp32", or "nothing more" for NULL, into
 * @text; returns it. @call is of @train, or of @eval.
 */
const char *lade_call_describe(const struct lade_program *train, const struct lade_program *eval,
                               const struct lade_call *call, char *text);

#endif
