/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Operands that the proof expects of an instruction, one by one: proof_form.c writes them, and proof_ranks.c those of
 * instructions over several ranks. Capacity is fixed; no call fails.
 */
#ifndef LADE_PROOF_EXPECT_H
#define LADE_PROOF_EXPECT_H

#include "program/proof/proof.h"

#define MAX_EXPECTED (LADE_OP_MAX_IN + LADE_OP_MAX_OUT + 1)
#define ON(space) (1u << (space))

/* The required form of an operand. */
struct expected {
  uint8_t role, access;
  uint8_t spaces; /* bit per space in which it may lie */
  struct lade_value reads, makes; /* tensor -1: it reads, or makes, no value */
  uint64_t bytes;
};

struct expectation {
  struct expected operands[MAX_EXPECTED];
  int n;
};

static inline struct lade_value value_of(int tensor, int microbatch, int version)
{
  return (struct lade_value){tensor, (int16_t)microbatch, (int16_t)version};
}

/* Expect one more operand, in one of @spaces: scratch of @bytes, or one that reads, or makes, all of @value. */
void expect_scratch(struct expectation *e, unsigned spaces, uint64_t bytes);
void expect_read(const struct proof *proof, struct expectation *e, int role, unsigned spaces, struct lade_value value);
void expect_make(const struct proof *proof, struct expectation *e, int role, unsigned spaces, struct lade_value value);
/* Expect an operand that consumes version @version of @tensor, in microbatch 0, and makes the next. */
void expect_change(const struct proof *proof, struct expectation *e, int role, unsigned spaces, int tensor,
                   int version);

/* Return the bytes of a whole value in this program. */
uint64_t proof_value_bytes(const struct proof *proof, int tensor);

/* True if a collective of this kind, axis and parameter belongs to the layout. */
bool proof_collective_exists(const struct proof *proof, const struct lade_instr *instr);
/* True if ranks of its axis hold other gradients, so that sums of squares are gathered over it. */
bool proof_axis_is_summed(const struct proof *proof, const struct lade_instr *instr);

/* Write down the operands of COLLECTIVE, ADD, CAST, SUM. */
void collective_expect(const struct proof *proof, const struct lade_instr *instr, struct expectation *e);
void add_expect(const struct proof *proof, const struct lade_instr *instr, struct expectation *e);
void cast_expect(const struct proof *proof, const struct lade_instr *instr, struct expectation *e);
void sum_expect(const struct proof *proof, const struct lade_instr *instr, struct expectation *e);
/*
 * Write down the sums of squares that are gathered below @level: of all ranks of a lower one, or this rank's partials.
 */
void sums_expect(const struct proof *proof, int level, struct expectation *e);

#endif
