/* SPDX-License-Identifier: Apache-2.0 */
/*
 * List the calls of a rank on communicators, digest them, and find the first difference.
 *
 * Peers must agree on a call's kind, bytes, type, microbatch, is_training and is_grouped. They may differ in its place
 * in the list and its peer number, because ranks of a group have different programs around equal calls. A send is
 * digested as the recv that meets it, so both sides of a stage boundary have one digest. Linear in instructions and
 * calls.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/base.h"
#include "program/comm_sequence.h"

_Static_assert(sizeof(struct lade_call) == 24, "calls are sent as they stand");

static bool instr_is_call(const struct lade_instr *instr, enum lade_axis axis)
{
  switch (instr->kind) {
  case LADE_INSTR_COLLECTIVE:
  case LADE_INSTR_SEND:
  case LADE_INSTR_RECV:
    return instr->axis == axis;
  default:
    return false;
  }
}

/*
 * Return the bytes of one rank's block: of the moved operands, the smaller is the block and the larger holds all
 * blocks.
 */
static uint64_t block_bytes(const struct lade_program *program, const struct lade_instr *instr)
{
  uint64_t min = UINT64_MAX;
  for (int i = 0; i < instr->n_operands; i++)
    min = LADE_MIN(min, program->operands[instr->first_operand + i].bytes);
  return instr->n_operands ? min : 0;
}

static int moved_tensor(const struct lade_program *program, const struct lade_instr *instr)
{
  const struct lade_operand *first = &program->operands[instr->first_operand];
  return first->access & LADE_READS ? first->reads.tensor : first->makes.tensor;
}

static struct lade_call call_make(const struct lade_program *program, int at)
{
  const struct lade_instr *instr = &program->instrs[at];
  const bool is_collective = instr->kind == LADE_INSTR_COLLECTIVE;
  const uint8_t boundary = instr->kind == LADE_INSTR_SEND ? LADE_SEND : LADE_RECV;
  return (struct lade_call){
      .bytes = block_bytes(program, instr), .instr = at, .peer = is_collective ? -1 : instr->peer,
      .microbatch = instr->microbatch, .kind = is_collective ? instr->collective : boundary,
      .dtype = (uint8_t)lade_value_dtype(program->graph, moved_tensor(program, instr)),
      .is_training = program->is_training, .is_grouped = instr->is_grouped};
}

static int calls_count(const struct lade_program *program, enum lade_axis axis)
{
  int n = 0;
  for (int at = 0; program && at < program->n_instrs; at++)
    n += instr_is_call(&program->instrs[at], axis);
  return n;
}

static void calls_add(const struct lade_program *program, enum lade_axis axis, struct lade_calls *calls)
{
  for (int at = 0; program && at < program->n_instrs; at++) {
    if (instr_is_call(&program->instrs[at], axis))
      calls->items[calls->n++] = call_make(program, at);
  }
}

int lade_calls_list(const struct lade_program *train, const struct lade_program *eval, enum lade_axis axis,
                    struct lade_calls *ret_calls)
{
  const size_t n = (size_t)(calls_count(train, axis) + calls_count(eval, axis));
  struct lade_calls calls = {.items = calloc(n + 1, sizeof(*calls.items))};
  if (!calls.items)
    return -ENOMEM;
  calls_add(train, axis, &calls);
  calls_add(eval, axis, &calls);
  *ret_calls = calls;
  return 0;
}

static bool is_boundary(enum lade_collective_kind kind)
{
  return kind == LADE_SEND || kind == LADE_RECV;
}

/* Return the first call of @lane at index @from or later; NULL: none. */
static const struct lade_call *lane_next(const struct lade_calls *calls, struct lade_call_lane lane, int from)
{
  for (int i = from; i < calls->n; i++) {
    const struct lade_call *call = &calls->items[i];
    const enum lade_collective_kind kind = (enum lade_collective_kind)call->kind;
    if (is_boundary(lane.kind) ? kind == lane.kind && call->peer == lane.peer : !is_boundary(kind))
      return call;
  }
  return NULL;
}

/* Return the fields of @call that its peers must match. */
static struct lade_call call_common(const struct lade_call *call)
{
  struct lade_call common = *call;
  common.instr = common.peer = 0;
  common.kind = call->kind == LADE_SEND ? LADE_RECV : call->kind;
  return common;
}

uint64_t lade_calls_digest(const struct lade_calls *calls, struct lade_call_lane lane)
{
  uint64_t digest = 0;
  for (const struct lade_call *call = lane_next(calls, lane, 0); call;
       call = lane_next(calls, lane, (int)(call - calls->items) + 1)) {
    const struct lade_call common = call_common(call);
    digest = XXH3_64bits_withSeed(&common, sizeof(common), digest);
  }
  return digest;
}

bool lade_calls_differ(const struct lade_calls *calls, struct lade_call_lane lane, const struct lade_calls *other,
                       struct lade_call_lane other_lane, const struct lade_call **ret_call,
                       const struct lade_call **ret_other)
{
  const struct lade_call *a = lane_next(calls, lane, 0), *b = lane_next(other, other_lane, 0);
  while (a && b) {
    const struct lade_call common = call_common(a), other_common = call_common(b);
    if (memcmp(&common, &other_common, sizeof(common)) != 0)
      break;
    a = lane_next(calls, lane, (int)(a - calls->items) + 1);
    b = lane_next(other, other_lane, (int)(b - other->items) + 1);
  }
  *ret_call = a;
  *ret_other = b;
  return a || b;
}

const char *lade_call_describe(const struct lade_program *train, const struct lade_program *eval,
                               const struct lade_call *call, char *text)
{
  char name[LADE_NAME_BYTES + 16];
  if (!call) {
    snprintf(text, LADE_CALL_TEXT_BYTES, "nothing more");
    return text;
  }
  const struct lade_program *program = call->is_training ? train : eval;
  snprintf(text, LADE_CALL_TEXT_BYTES, "instruction %d%s%s (%s of %s, microbatch %d), %" PRIu64 " bytes of %s",
           call->instr, call->is_training ? "" : " of the evaluation",
           call->is_grouped ? " together with the one before" : "",
           lade_collective_name((enum lade_collective_kind)call->kind),
           lade_value_name(program->graph, moved_tensor(program, &program->instrs[call->instr]), name),
           call->microbatch, call->bytes, lade_dtype_name((enum lade_dtype)call->dtype));
  return text;
}
