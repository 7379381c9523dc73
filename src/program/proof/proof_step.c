/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Form of a caller's own step (lade/graph.h): every instruction is an op of the graph or a copy of one storage.
 *
 * For each op the operands follow from the graph: one for each storage that it uses, in the order in which the op first
 * names it, with the versions that the graph gave. Its scratch is the last. Ops run for the first time in the graph's
 * order, each once. One that runs again has run before, may do so, and changes no given storage. Copies move a whole
 * storage at one version. The walk then shows that the versions are there, so together each op reads the bytes that it
 * reads when the step runs unconstrained. Linear in operands.
 */
#include <stdlib.h>
#include <string.h>

#include "program/proof/proof.h"

struct step_form {
  const struct proof *proof;
  const struct lade_graph *graph;
  int n_run;       /* ops that ran for the first time */
  int32_t *place;  /* by storage: its operand in the instruction at hand, valid if stamp is the instruction */
  int32_t *stamp;  /* by storage */
  int32_t *touched; /* by buffer: the last instruction that has an operand there */
  struct lade_operand *expected; /* of the instruction at hand: access, reads and makes */
  int capacity;
};

static const struct lade_value nothing = {-1, 0, 0};

/* ---- ops ---- */

/* Take one range into the operand of its storage. */
static void range_expect(struct step_form *form, int at, const struct graph_operand *range, int *n)
{
  const struct graph_storage *storage = &form->graph->storages.items[range->storage];
  if (storage->bytes == 0)
    return;
  if (form->stamp[range->storage] != at) {
    form->stamp[range->storage] = at;
    form->place[range->storage] = *n;
    form->expected[(*n)++] = (struct lade_operand){.bytes = storage->bytes, .reads = nothing, .makes = nothing};
  }
  struct lade_operand *e = &form->expected[form->place[range->storage]];
  const int before = range->access == GRAPH_WRITES ? range->version - 1 : range->version;
  const bool is_first = range->access == GRAPH_WRITES && before == 0 && !storage->is_given;
  const bool is_covered = range->access == GRAPH_WRITES && range->bytes == storage->bytes;
  if (!is_first && !is_covered) {
    e->access |= LADE_READS;
    e->reads = (struct lade_value){range->storage, 0, (int16_t)before};
  }
  if (range->access != GRAPH_READS) {
    e->access |= LADE_MAKES;
    e->makes = (struct lade_value){range->storage, 0, (int16_t)(before + 1)};
  }
}

/* Check that the storage of @operand lies at its alignment on the device. */
static int operand_aligned(const struct step_form *form, int at, int i, int storage)
{
  const struct proof *proof = form->proof;
  const struct lade_operand *operand = &proof->program->operands[proof->program->instrs[at].first_operand + i];
  const uint32_t align = form->graph->storages.items[storage].align;
  if (operand_start(proof, operand) % align)
    return proof_fail(proof, at, i, "lies at %llu, which is no multiple of %u",
                      (unsigned long long)operand_start(proof, operand), align);
  return 0;
}

static int operand_compare(const struct step_form *form, int at, int i)
{
  const struct proof *proof = form->proof;
  const struct lade_operand *operand = &proof->program->operands[proof->program->instrs[at].first_operand + i];
  const struct lade_operand *e = &form->expected[i];
  if (operand->access != e->access || operand->role != e->role)
    return proof_fail(proof, at, i, "has role %d and access %d: expected %d and %d", operand->role, operand->access,
                      e->role, e->access);
  if (operand->offset || operand->bytes != e->bytes)
    return proof_fail(proof, at, i, "is %llu bytes at %llu of its buffer: expected all %llu",
                      (unsigned long long)operand->bytes, (unsigned long long)operand->offset,
                      (unsigned long long)e->bytes);
  if (!value_is_equal(operand->reads, e->reads) || !value_is_equal(operand->makes, e->makes)) {
    char reads[PROOF_VALUE_BYTES], makes[PROOF_VALUE_BYTES];
    return proof_fail(proof, at, i, "is another value: expected to read %s and to make %s",
                      proof_value(proof, e->reads, reads), proof_value(proof, e->makes, makes));
  }
  return 0;
}

/* Check that operands are disjoint: each is in a buffer of its own, and no two live buffers overlap. */
static int operand_apart(const struct step_form *form, int at, int i)
{
  const struct lade_program *program = form->proof->program;
  const int32_t buffer = program->operands[program->instrs[at].first_operand + i].buffer;
  if (form->touched[buffer] == at)
    return proof_fail(form->proof, at, i, "lies on another operand, in buffer %d", buffer);
  form->touched[buffer] = at;
  return 0;
}

static int op_compare(const struct step_form *form, int at, int n)
{
  const struct proof *proof = form->proof;
  const struct lade_instr *instr = &proof->program->instrs[at];
  if (instr->n_operands != n)
    return proof_fail(proof, at, -1, "has %d operands: expected %d", instr->n_operands, n);
  for (int i = 0; i < n; i++) {
    int status = operand_compare(form, at, i);
    const struct lade_value value = form->expected[i].access & LADE_READS ? form->expected[i].reads
                                                                           : form->expected[i].makes;
    if (!status && operand_buffer(proof, &proof->program->operands[instr->first_operand + i])->space != LADE_DEVICE)
      status = proof_fail(proof, at, i, "is not on the device");
    if (!status && value.tensor >= 0)
      status = operand_aligned(form, at, i, value.tensor);
    if (!status)
      status = operand_apart(form, at, i);
    if (status)
      return status;
  }
  return 0;
}

static bool expected_reserve(struct step_form *form, int n)
{
  return lade_array_reserve((void **)&form->expected, &form->capacity, n, sizeof(*form->expected));
}

/* Check that the op may run here: for the first time in its turn, or again. */
static int turn_check(struct step_form *form, int at)
{
  const struct proof *proof = form->proof;
  const struct lade_instr *instr = &proof->program->instrs[at];
  const struct graph_op *op = &form->graph->ops.items[instr->op];
  if (!instr->is_recompute) {
    if (instr->op != form->n_run)
      return proof_fail(proof, at, -1, "runs where op %d is next", form->n_run);
    form->n_run++;
    return 0;
  }
  if (instr->op >= form->n_run || op->is_once)
    return proof_fail(proof, at, -1, op->is_once ? "runs again, which its graph rules out"
                                                 : "is marked as recomputed, but has not run before");
  for (int i = op->n_reads; i < graph_op_n_operands(op); i++) {
    if (form->graph->storages.items[form->graph->operands.items[op->first_operand + i].storage].is_given)
      return proof_fail(proof, at, -1, "runs again, and changes a given storage twice");
  }
  return 0;
}

static int op_check(struct step_form *form, int at)
{
  const struct proof *proof = form->proof;
  const struct lade_instr *instr = &proof->program->instrs[at];
  if (instr->op < 0 || instr->op >= form->graph->ops.n)
    return proof_fail(proof, at, -1, "has op %d of %d", instr->op, form->graph->ops.n);
  const struct graph_op *op = &form->graph->ops.items[instr->op];
  int n = 0, status = turn_check(form, at);
  if (status)
    return status;
  if (instr->queue != (op->queue == LADE_OP_ON_HOST ? LADE_Q_HOST : LADE_Q_COMPUTE))
    return proof_fail(proof, at, -1, "is on queue %s", lade_queue_name((enum lade_queue_id)instr->queue));
  if (!expected_reserve(form, graph_op_n_operands(op) + 1))
    return -ENOMEM;
  for (int i = 0; i < graph_op_n_operands(op); i++)
    range_expect(form, at, &form->graph->operands.items[op->first_operand + i], &n);
  if (op->scratch_bytes)
    form->expected[n++] = (struct lade_operand){.access = LADE_MAKES, .role = LADE_ROLE_SCRATCH,
                                                .bytes = op->scratch_bytes, .reads = nothing, .makes = nothing};
  return op_compare(form, at, n);
}

/* ---- copies ---- */

/* True if @kind on @queue goes from @src to @dst. */
static bool is_path(const struct lade_program *program, const struct lade_instr *instr, enum lade_space src,
                    enum lade_space dst)
{
  const bool is_out = dst != LADE_DEVICE;
  switch (instr->kind) {
  case LADE_INSTR_COPY:
    return instr->queue == (is_out ? LADE_Q_TO_HOST : LADE_Q_TO_DEVICE) && src == (is_out ? LADE_DEVICE : LADE_HOST) &&
           dst == (is_out ? LADE_HOST : LADE_DEVICE);
  case LADE_INSTR_WRITE:
    return instr->queue == LADE_Q_IO && dst == LADE_STORE &&
           (src == LADE_HOST || (src == LADE_DEVICE && program->is_unified));
  case LADE_INSTR_READ:
    return instr->queue == LADE_Q_IO && src == LADE_STORE &&
           (dst == LADE_HOST || (dst == LADE_DEVICE && program->is_unified));
  default:
    return false;
  }
}

static int copy_check(const struct step_form *form, int at)
{
  const struct proof *proof = form->proof;
  const struct lade_instr *instr = &proof->program->instrs[at];
  const struct lade_operand *operands = proof->program->operands + instr->first_operand;
  if (instr->n_operands != 2 || instr->op != -1 || instr->is_recompute)
    return proof_fail(proof, at, -1, "is no copy of one storage");
  const struct lade_operand *src = &operands[0], *dst = &operands[1];
  if (!is_path(proof->program, instr, operand_buffer(proof, src)->space, operand_buffer(proof, dst)->space))
    return proof_fail(proof, at, -1, "goes from %s to %s on queue %s",
                      lade_space_name(operand_buffer(proof, src)->space),
                      lade_space_name(operand_buffer(proof, dst)->space),
                      lade_queue_name((enum lade_queue_id)instr->queue));
  const struct lade_value value = src->reads;
  if (src->access != LADE_READS || dst->access != LADE_MAKES || src->role != LADE_ROLE_SRC ||
      dst->role != LADE_ROLE_DST || !value_is_equal(value, dst->makes))
    return proof_fail(proof, at, 1, "is not the value that is read");
  if (value.tensor < 0 || value.tensor >= form->graph->storages.n || value.microbatch || value.version < 0)
    return proof_fail(proof, at, 0, "does not exist");
  const uint64_t bytes = form->graph->storages.items[value.tensor].bytes;
  if (src->offset || dst->offset || src->bytes != bytes || dst->bytes != bytes)
    return proof_fail(proof, at, 1, "is not all of the storage");
  return 0;
}

/* ---- the start and the end of a step ---- */

/* Check the buffer that holds given storage @s at the start of a step: its end buffer, or one at the same offset. */
static int start_check(const struct step_form *form, int s, bool *is_taken)
{
  const struct lade_program *program = form->proof->program;
  const struct graph_storage *storage = &form->graph->storages.items[s];
  const char *name = graph_name(form->graph, storage->name);
  const int32_t start = program->start_buffers[s], end = program->end_buffers[s];
  if (!storage->is_given || storage->bytes == 0)
    return start == -1 ? 0 : proof_fail_all(form->proof, "storage %d \"%s\" has a start, and is not given", s, name);
  if (start == end && program->buffers[end].is_resident)
    return 0;
  if (start < 0 || start >= program->n_buffers || is_taken[start])
    return proof_fail_all(form->proof, "storage %d \"%s\" has no start of its own", s, name);
  is_taken[start] = true;
  const struct lade_buffer *buffer = &program->buffers[start], *last = &program->buffers[end];
  if (buffer->space != last->space || buffer->offset != last->offset || buffer->bytes < storage->bytes ||
      buffer->first != 0 || buffer->is_resident || last->is_resident)
    return proof_fail_all(form->proof, "buffer %d in %s is no start for storage %d \"%s\", which ends in buffer %d",
                          start, lade_space_name(buffer->space), s, name, end);
  return 0;
}

/* Check the buffer that holds @storage at the end of a step. */
static int end_check(const struct step_form *form, int s, bool *is_taken)
{
  const struct proof *proof = form->proof;
  const struct lade_program *program = proof->program;
  const struct graph_storage *storage = &form->graph->storages.items[s];
  const char *name = graph_name(form->graph, storage->name);
  const int32_t end = program->end_buffers[s];
  if ((!storage->is_given && !storage->is_kept) || storage->bytes == 0)
    return end == -1 ? 0 : proof_fail_all(proof, "storage %d \"%s\" has an end, and is not kept", s, name);
  if (end < 0 || end >= program->n_buffers || is_taken[end])
    return proof_fail_all(proof, "storage %d \"%s\" has no end of its own", s, name);
  is_taken[end] = true;
  const struct lade_buffer *buffer = &program->buffers[end];
  const enum lade_space tier = storage->is_given ? (enum lade_space)storage->tier : LADE_DEVICE;
  if (buffer->space != tier || buffer->bytes < storage->bytes || buffer->last != program->n_instrs - 1 ||
      (buffer->is_resident && !storage->is_given) ||
      (buffer->space != LADE_STORE && buffer->offset % storage->align))
    return proof_fail_all(proof, "buffer %d in %s is no end for storage %d \"%s\"", end,
                          lade_space_name(buffer->space), s, name);
  return 0;
}

static int given_check(const struct step_form *form)
{
  bool *is_taken = calloc((size_t)form->proof->program->n_buffers + 1, sizeof(*is_taken));
  int status = is_taken ? 0 : -ENOMEM;
  for (int s = 0; s < form->graph->storages.n && !status; s++)
    status = end_check(form, s, is_taken);
  for (int s = 0; s < form->graph->storages.n && !status; s++)
    status = start_check(form, s, is_taken);
  free(is_taken);
  return status;
}

/* ---- the list ---- */

/* Check fields of a model's instructions, which a caller's step has none of. */
static int fields_check(const struct proof *proof, int at)
{
  const struct lade_instr *instr = &proof->program->instrs[at];
  if (instr->is_streamed || instr->collective || instr->axis || instr->is_grouped || instr->microbatch ||
      instr->param != -1 || instr->peer || instr->accumulate)
    return proof_fail(proof, at, -1, "has fields of a model's instruction");
  return 0;
}

static int instr_check(struct step_form *form, int at)
{
  const struct proof *proof = form->proof;
  const struct lade_instr *instr = &proof->program->instrs[at];
  int status = fields_check(proof, at);
  for (int i = 0; i < instr->n_operands && !status; i++)
    status = proof_operand_bounds(proof, at, i);
  if (!status)
    status = proof_waits(proof, at);
  if (status)
    return status;
  return instr->kind == LADE_INSTR_COMPUTE ? op_check(form, at) : copy_check(form, at);
}

static int form_init(struct step_form *form)
{
  const size_t n = (size_t)form->graph->storages.n + 1, n_buffers = (size_t)form->proof->program->n_buffers + 1;
  form->place = calloc(n, sizeof(*form->place));
  form->stamp = malloc(n * sizeof(*form->stamp));
  form->touched = malloc(n_buffers * sizeof(*form->touched));
  if (!form->place || !form->stamp || !form->touched)
    return -ENOMEM;
  memset(form->stamp, -1, n * sizeof(*form->stamp));
  memset(form->touched, -1, n_buffers * sizeof(*form->touched));
  return 0;
}

int proof_form_step(const struct proof *proof)
{
  struct step_form form = {.proof = proof, .graph = proof->step_graph};
  int status = proof_list(proof);
  if (!status)
    status = proof_buffers(proof);
  if (!status)
    status = form_init(&form);
  for (int at = 0; at < proof->program->n_instrs && !status; at++)
    status = instr_check(&form, at);
  if (!status && form.n_run < form.graph->ops.n)
    status = proof_fail_all(proof, "op %d \"%s\" never runs", form.n_run,
                            graph_name(form.graph, form.graph->ops.items[form.n_run].name));
  if (!status)
    status = given_check(&form);
  free(form.place);
  free(form.stamp);
  free(form.touched);
  free(form.expected);
  return status;
}
