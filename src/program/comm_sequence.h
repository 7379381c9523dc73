/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls that programs make on communicators, and their comparison over a communicator's members.
 *
 * A call is a collective, a send or a recv, as the engine sees it: bytes, type and use. The calls of a rank on an axis
 * fall into lanes. One lane is its collectives, which all ranks of its group issue in one order. For each peer there is
 * a lane of sends and one of recvs: the k-th send is the peer's k-th recv. Two lanes agree if their digests are equal.
 * Otherwise the first calls that differ name the reason.
 *
 * A training program and its evaluation are one sequence: the training calls, then the evaluation's.
 */
#ifndef LADE_CALLS_H
#define LADE_CALLS_H

#include "program/program.h"

/* One instruction to a communicator. It is sent to other ranks as raw bytes, so it has no padding and no pointers. */
struct lade_call {
  uint64_t bytes;     /* of one rank's block, or of the message */
  int32_t instr;      /* its index in its program */
  int32_t peer;       /* SEND, RECV: position on the axis; else -1 */
  int16_t microbatch;
  uint8_t kind;       /* enum lade_collective_kind, sends and recvs among them */
  uint8_t dtype;
  uint8_t is_training; /* else of the evaluation program */
  uint8_t is_grouped; /* grouped with the collective before it: the engine sees one list */
  uint8_t unused[2];  /* 0 */
};

struct lade_calls {
  struct lade_call *items; /* the caller frees it */
  int n;
};

/* List the calls of @train, then of @eval (may be NULL), on @axis. -ENOMEM. Any thread. */
int lade_calls_list(const struct lade_program *train, const struct lade_program *eval, enum lade_axis axis,
                    struct lade_calls *ret_calls);

/* @kind LADE_SEND or LADE_RECV: transfers to, or from, the member at @peer. Any other: the collectives. */
struct lade_call_lane {
  enum lade_collective_kind kind;
  int peer;
};

/*
 * Return the digest of a lane; equal for lanes that agree: collectives with collectives, sends with the peer's recvs.
 */
uint64_t lade_calls_digest(const struct lade_calls *calls, struct lade_call_lane lane);

/*
 * Find the first calls in which @lane of @calls and @other_lane of @other differ. *ret_call or *ret_other is NULL where
 * that lane has ended. False if the lanes agree.
 */
bool lade_calls_differ(const struct lade_calls *calls, struct lade_call_lane lane, const struct lade_calls *other,
                       struct lade_call_lane other_lane, const struct lade_call **ret_call,
                       const struct lade_call **ret_other);

#define LADE_CALL_TEXT_BYTES 240
/*
 * Write "instruction 12 (all_reduce of h.0.mlp.fc.grad, microbatch 0), 512 bytes of fp32", or "nothing more" for NULL,
 * into @text; return @text. @call is of @train, or of @eval.
 */
const char *lade_call_describe(const struct lade_program *train, const struct lade_program *eval,
                               const struct lade_call *call, char *text);

#endif
