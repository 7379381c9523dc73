/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Prove two programs over one arena. Each was proved alone: it ends with its residents as its own next step begins. It
 * remains to show that both use the same bytes. Residents are matched in order. A range must be in both, for the same
 * owner; if both begin with a value there, it is the same one. A program that never touches a resident (optimizer state
 * in an evaluation) was shown not to write it. Tokens, targets and results are exchanged with the caller around every
 * step, so they need only fit. Linear.
 */
#include <stdlib.h>

#include "program/proof/proof.h"

/* A value that a buffer is first read as, and its offset there; tensor below 0 if it is written first or never. */
struct brought {
  struct lade_value value;
  uint64_t offset;
};

static void brought_collect(const struct lade_program *program, struct brought *ret_brought)
{
  for (int i = 0; i < program->n_buffers; i++)
    ret_brought[i] = (struct brought){{-2, 0, 0}, 0}; /* not touched yet */
  for (int i = 0; i < program->n_operands; i++) {
    const struct lade_operand *operand = &program->operands[i];
    const bool is_read = operand->access & LADE_READS;
    if (ret_brought[operand->buffer].value.tensor == -2)
      ret_brought[operand->buffer] = (struct brought){is_read ? operand->reads : (struct lade_value){-1, 0, 0},
                                                      operand->offset};
  }
}

static int resident_next(const struct lade_program *program, int i)
{
  while (i < program->n_buffers && !program->buffers[i].is_resident)
    i++;
  return i;
}

static bool is_same_range(const struct lade_buffer *a, const struct lade_buffer *b)
{
  return a->space == b->space && a->owner == b->owner && a->offset == b->offset && a->bytes == b->bytes;
}

static int residents_compare(const struct lade_program *a, const struct brought *a_brought,
                             const struct lade_program *b, const struct brought *b_brought, struct lade_error *error)
{
  const struct proof proof = {.program = a, .graph = a->graph, .error = error};
  char one[PROOF_VALUE_BYTES], two[PROOF_VALUE_BYTES];
  int i = resident_next(a, 0), k = resident_next(b, 0);
  for (; i < a->n_buffers && k < b->n_buffers; i = resident_next(a, i + 1), k = resident_next(b, k + 1)) {
    if (!is_same_range(&a->buffers[i], &b->buffers[k]))
      return proof_fail_all(&proof, "resident buffers %d and %d of two programs over one arena are not one range", i,
                            k);
    if (a_brought[i].value.tensor < 0 || b_brought[k].value.tensor < 0)
      continue;
    if (!value_is_equal(a_brought[i].value, b_brought[k].value))
      return proof_fail_all(&proof, "resident buffer %d holds %s for one program and %s for the other", i,
                            proof_value(&proof, a_brought[i].value, one), proof_value(&proof, b_brought[k].value, two));
    if (a_brought[i].offset != b_brought[k].offset)
      return proof_fail_all(&proof, "resident buffer %d holds %s in two places for two programs", i,
                            proof_value(&proof, a_brought[i].value, one));
  }
  if (i < a->n_buffers || k < b->n_buffers)
    return proof_fail_all(&proof, "two programs over one arena have different numbers of resident buffers");
  return 0;
}

int lade_program_prove_shared(const struct lade_program *program, const struct lade_program *other,
                              struct lade_error *error)
{
  if (!program->is_proved || !other->is_proved || program->graph != other->graph)
    return lade_error_set(error, -EINVAL, "two programs over one arena: both must be proved, and of one graph");
  size_t n = (size_t)program->n_buffers + 1, n_other = (size_t)other->n_buffers + 1;
  struct brought *brought = malloc(n * sizeof(*brought)), *other_brought = malloc(n_other * sizeof(*other_brought));
  int status = -ENOMEM;
  if (brought && other_brought) {
    brought_collect(program, brought);
    brought_collect(other, other_brought);
    status = residents_compare(program, brought, other, other_brought, error);
  } else {
    lade_error_set(error, status, "out of memory comparing two programs over one arena");
  }
  free(brought);
  free(other_brought);
  return status;
}
