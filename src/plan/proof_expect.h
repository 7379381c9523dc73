/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the proof expects of an instruction: its operands one by one, written down by proof_form.c and, for what several
 * ranks do together, by proof_ranks.c. Fixed room, no errors.
 */
#ifndef LADE_PROOF_EXPECT_H
#define LADE_PROOF_EXPECT_H

#include "plan/proof.h"

#define MAX_EXPECTED (LADE_OP_MAX_IN + LADE_OP_MAX_OUT + 1)
#define ON(space) (1u << (space))

/* An operand as it must be. */
struct expected {
  uint8_t role, access;
  uint8_t spaces; /* bit per space in which it may lie */
  struct lade_value reads, makes;
  uint64_t bytes;
};

struct expectation {
  struct expected operands[MAX_EXPECTED];
  int n;
};

/* Another operand, of @bytes; a value that it does not read or make has tensor -1. */
void expect(struct expectation *e, int role, enum lade_access access, unsigned spaces, struct lade_value reads,
            struct lade_value makes, uint64_t bytes);
/* It reads, or makes, all of such a value. */
void expect_read(const struct proof *proof, struct expectation *e, int role, unsigned spaces, int tensor,
                 int microbatch, int version);
void expect_make(const struct proof *proof, struct expectation *e, int role, unsigned spaces, int tensor,
                 int microbatch, int version);
/* It consumes version @version and makes the next. */
void expect_change(const struct proof *proof, struct expectation *e, int role, unsigned spaces, int tensor,
                   int version);

/* Bytes of a whole value in this program. */
uint64_t proof_value_bytes(const struct proof *proof, int tensor);

/* Does a collective of this kind, axis and parameter belong to the layout? */
bool proof_collective_exists(const struct proof *proof, const struct lade_instr *instr);
/* Do ranks of its axis hold other gradients, so that sums of squares are gathered over it? */
bool proof_axis_is_summed(const struct proof *proof, const struct lade_instr *instr);

/* Of COLLECTIVE, ADD, CAST, SUM. */
void collective_expect(const struct proof *proof, const struct lade_instr *instr, struct expectation *e);
void add_expect(const struct proof *proof, const struct lade_instr *instr, struct expectation *e);
void cast_expect(const struct proof *proof, const struct lade_instr *instr, struct expectation *e);
void sum_expect(const struct proof *proof, const struct lade_instr *instr, struct expectation *e);
/* The sums of squares that are together below @level: of all ranks of a lower one, or this rank's partials. */
void sums_expect(const struct proof *proof, int level, struct expectation *e);

#endif
