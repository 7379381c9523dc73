/* SPDX-License-Identifier: Apache-2.0 */
/* Ops for any graph, and their reference. */
#include "tests/support/graph/step_ops.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static uint64_t mix(uint64_t hash, uint64_t value)
{
  hash = (hash ^ value) * 0x9e3779b97f4a7c15u;
  return hash ^ (hash >> 29);
}

/* ---- samples ---- */

static uint64_t sample_step(uint64_t bytes)
{
  return bytes / 256 + 1;
}

/* Return the place of sample @i of a storage of @bytes; @bytes: there is none. The last byte is the last sample. */
static uint64_t sample_at(uint64_t bytes, int i)
{
  if (i == STEP_OPS_SAMPLES - 1 && bytes)
    return bytes - 1;
  const uint64_t at = (uint64_t)i * sample_step(bytes);
  return at < bytes ? at : bytes;
}

static bool range_has(const struct graph_operand *range, uint64_t at)
{
  return at >= range->offset && at - range->offset < range->bytes;
}

/* ---- an op ---- */

static const struct graph_operand *operand_get(const struct step_ops *ops, int op, int i)
{
  return &ops->graph->operands.items[ops->graph->ops.items[op].first_operand + i];
}

static unsigned char *address_get(const struct graph_op *op, const struct lade_op_call *call, int i)
{
  if (i < op->n_reads)
    return call->reads[i];
  i -= op->n_reads;
  return i < op->n_writes ? call->writes[i] : call->updates[i - op->n_writes];
}

/* Hash the samples of all ranges that the op reads. */
static uint64_t operands_hash(const struct step_ops *ops, const struct lade_op_call *call)
{
  const struct graph_op *op = &ops->graph->ops.items[call->op];
  uint64_t hash = mix((uint64_t)call->op, op->draws ? call->draw : 0);
  for (int i = 0; i < graph_op_n_operands(op); i++) {
    const struct graph_operand *range = operand_get(ops, call->op, i);
    const uint64_t bytes = ops->graph->storages.items[range->storage].bytes;
    for (int s = 0; s < STEP_OPS_SAMPLES && range->access != GRAPH_WRITES; s++) {
      const uint64_t at = sample_at(bytes, s);
      if (range_has(range, at) && ops->is_defined[op->first_operand + i][s])
        hash = mix(hash, address_get(op, call, i)[at - range->offset]);
    }
  }
  return hash;
}

static void range_write(const struct step_ops *ops, const struct graph_operand *range, uint64_t hash,
                        unsigned char *address)
{
  const uint64_t bytes = ops->graph->storages.items[range->storage].bytes;
  if (!range->bytes)
    return;
  memset(address, (int)(hash & 0xff), range->bytes);
  for (int s = 0; s < STEP_OPS_SAMPLES; s++) {
    const uint64_t at = sample_at(bytes, s);
    if (range_has(range, at))
      address[at - range->offset] = (unsigned char)(mix(hash, at) >> 17);
  }
}

static void op_compute(const struct step_ops *ops, const struct lade_op_call *call)
{
  const struct graph_op *op = &ops->graph->ops.items[call->op];
  if (op->scratch_bytes)
    memset(call->scratch, 0x5a, op->scratch_bytes);
  const uint64_t hash = operands_hash(ops, call);
  for (int i = op->n_reads; i < graph_op_n_operands(op); i++)
    range_write(ops, operand_get(ops, call->op, i), mix(hash, (uint64_t)i), address_get(op, call, i));
  for (uint64_t at = 0; at < op->scratch_bytes; at += 509)
    assert_int_equal(((unsigned char *)call->scratch)[at], 0x5a);
}

/* True if addresses are aligned, and are there where ranges have bytes. */
static bool addresses_are_right(const struct step_ops *ops, const struct lade_op_call *call)
{
  const struct graph_op *op = &ops->graph->ops.items[call->op];
  for (int i = 0; i < graph_op_n_operands(op); i++) {
    const struct graph_operand *range = operand_get(ops, call->op, i);
    const struct graph_storage *storage = &ops->graph->storages.items[range->storage];
    const unsigned char *address = address_get(op, call, i);
    if (storage->bytes == 0 ? address != NULL : ((uintptr_t)address - range->offset) % storage->align)
      return false;
  }
  return (op->scratch_bytes == 0) == (call->scratch == NULL);
}

int step_ops_run(void *user, const struct lade_op_call *call)
{
  struct step_ops *ops = user;
  const int number = atomic_fetch_add(&ops->n_calls, 1) + 1;
  if (ops->fail_at && number >= ops->fail_at)
    return ops->fail_code;
  if (!ops->has_run[call->op])
    ops->draws[call->op] = call->draw;
  bool is_right = call->struct_size == sizeof(*call) && call->is_redo == ops->has_run[call->op] &&
                  call->draw == ops->draws[call->op] && call->step == ops->step && !call->stream &&
                  addresses_are_right(ops, call);
  ops->has_run[call->op] = true;
  if (call->is_redo)
    atomic_fetch_add(&ops->n_redone, 1);
  if (is_right)
    op_compute(ops, call);
  else
    atomic_fetch_add(&ops->n_wrong, 1);
  return 0;
}

void step_ops_begin(struct step_ops *ops, uint64_t step)
{
  memset(ops->has_run, 0, (size_t)ops->graph->ops.n * sizeof(*ops->has_run));
  ops->step = step;
  atomic_store(&ops->n_calls, 0);
  atomic_store(&ops->n_redone, 0);
}

/* ---- the reference ---- */

void step_ops_reference(struct step_ops *ops, uint64_t step)
{
  void *reads[64], *writes[64], *updates[64];
  for (int op = 0; op < ops->graph->ops.n; op++) {
    const struct graph_op *o = &ops->graph->ops.items[op];
    const struct lade_op_call call = {.struct_size = sizeof(call), .op = op, .step = step,
                                      .draw = step * (uint64_t)ops->graph->ops.n + (uint64_t)op, .reads = reads,
                                      .writes = writes, .updates = updates, .scratch = ops->scratch};
    assert_true(o->n_reads <= 64 && o->n_writes <= 64 && o->n_updates <= 64);
    for (int i = 0; i < graph_op_n_operands(o); i++) {
      const struct graph_operand *range = operand_get(ops, op, i);
      void *address = ops->storages[range->storage] + range->offset;
      if (i < o->n_reads)
        reads[i] = address;
      else if (i < o->n_reads + o->n_writes)
        writes[i - o->n_reads] = address;
      else
        updates[i - o->n_reads - o->n_writes] = address;
    }
    op_compute(ops, &call);
  }
}

void step_ops_fill(struct step_ops *ops, lade_stepper *stepper)
{
  struct lade_error error = {0};
  for (int s = 0; s < ops->graph->storages.n; s++) {
    const struct graph_storage *storage = &ops->graph->storages.items[s];
    const struct graph_operand all = {.storage = s, .bytes = storage->bytes};
    if (!storage->is_given)
      continue;
    range_write(ops, &all, mix(77, (uint64_t)s), ops->storages[s]);
    if (stepper && lade_step_set(stepper, s, 0, ops->storages[s], storage->bytes, &error))
      fail_msg("%s", error.text);
  }
}

void step_ops_compare(const struct step_ops *ops, lade_stepper *stepper)
{
  struct lade_error error = {0};
  for (int s = 0; s < ops->graph->storages.n; s++) {
    const struct graph_storage *storage = &ops->graph->storages.items[s];
    if (!storage->is_given && !storage->is_kept)
      continue;
    unsigned char *found = malloc(storage->bytes + 1);
    assert_non_null(found);
    if (lade_step_get(stepper, s, 0, found, storage->bytes, &error))
      fail_msg("%s", error.text);
    for (int i = 0; i < STEP_OPS_SAMPLES; i++) {
      const uint64_t at = sample_at(storage->bytes, i);
      if (at < storage->bytes && (storage->is_given || ops->is_defined_at_end[s][i]))
        assert_int_equal(found[at], ops->storages[s][at]);
    }
    if (storage->is_given)
      assert_memory_equal(found, ops->storages[s], storage->bytes);
    free(found);
  }
}

/* Note which samples earlier ops wrote, for each operand and for the end. */
static void defined_find(struct step_ops *ops)
{
  const lade_graph *graph = ops->graph;
  bool(*now)[STEP_OPS_SAMPLES] = ops->is_defined_at_end;
  for (int s = 0; s < graph->storages.n; s++)
    memset(now[s], graph->storages.items[s].is_given, sizeof(now[s]));
  for (int op = 0; op < graph->ops.n; op++) {
    const struct graph_op *o = &graph->ops.items[op];
    for (int i = 0; i < graph_op_n_operands(o); i++)
      memcpy(ops->is_defined[o->first_operand + i], now[operand_get(ops, op, i)->storage], sizeof(now[0]));
    for (int i = o->n_reads; i < graph_op_n_operands(o); i++) {
      const struct graph_operand *range = operand_get(ops, op, i);
      for (int s = 0; s < STEP_OPS_SAMPLES; s++)
        now[range->storage][s] |= range_has(range, sample_at(graph->storages.items[range->storage].bytes, s));
    }
  }
}

void step_ops_init(struct step_ops *ops, const lade_graph *graph)
{
  uint64_t scratch_bytes = 0;
  *ops = (struct step_ops){.graph = graph};
  ops->is_defined = calloc((size_t)graph->operands.n + 1, sizeof(*ops->is_defined));
  ops->is_defined_at_end = calloc((size_t)graph->storages.n + 1, sizeof(*ops->is_defined_at_end));
  ops->storages = calloc((size_t)graph->storages.n + 1, sizeof(*ops->storages));
  ops->has_run = calloc((size_t)graph->ops.n + 1, sizeof(*ops->has_run));
  ops->draws = calloc((size_t)graph->ops.n + 1, sizeof(*ops->draws));
  assert_true(ops->is_defined && ops->is_defined_at_end && ops->storages && ops->has_run && ops->draws);
  for (int s = 0; s < graph->storages.n; s++) {
    ops->storages[s] = calloc(1, graph->storages.items[s].bytes + 1);
    assert_non_null(ops->storages[s]);
  }
  for (int op = 0; op < graph->ops.n; op++)
    scratch_bytes = LADE_MAX(scratch_bytes, graph->ops.items[op].scratch_bytes);
  ops->scratch = malloc(scratch_bytes + 1);
  assert_non_null(ops->scratch);
  defined_find(ops);
}

void step_ops_finish(struct step_ops *ops)
{
  for (int s = 0; s < ops->graph->storages.n; s++)
    free(ops->storages[s]);
  free(ops->scratch);
  free(ops->storages);
  free(ops->is_defined);
  free(ops->is_defined_at_end);
  free(ops->has_run);
  free(ops->draws);
}

/* ---- larger graphs ---- */

lade_graph *step_ops_scale(const lade_graph *graph, uint64_t factor)
{
  lade_graph *larger;
  struct lade_error error = {0};
  struct lade_operand_range ranges[192];
  assert_int_equal(lade_graph_create(&larger), 0);
  for (int s = 0; s < graph->storages.n; s++) {
    const struct graph_storage *x = &graph->storages.items[s];
    const struct lade_storage storage = {
        .struct_size = sizeof(storage), .name = graph_name(graph, x->name), .bytes = x->bytes * factor,
        .align = x->align, .is_given = x->is_given, .tier = (enum lade_space)x->tier};
    assert_int_equal(lade_graph_add_storage(larger, &storage, &error, NULL), 0);
  }
  for (int i = 0; i < graph->ops.n; i++) {
    const struct graph_op *x = &graph->ops.items[i];
    const struct lade_graph_op op = {
        .struct_size = sizeof(op), .name = graph_name(graph, x->name), .reads = ranges,
        .writes = ranges + x->n_reads, .updates = ranges + x->n_reads + x->n_writes, .n_reads = x->n_reads,
        .n_writes = x->n_writes, .n_updates = x->n_updates, .scratch_bytes = x->scratch_bytes * factor, .ns = x->ns,
        .is_once = x->is_once, .draws = x->draws, .pass = (enum lade_pass)x->pass,
        .queue = (enum lade_op_queue)x->queue};
    assert_true(graph_op_n_operands(x) <= 192);
    for (int k = 0; k < graph_op_n_operands(x); k++) {
      const struct graph_operand *range = &graph->operands.items[x->first_operand + k];
      ranges[k] = (struct lade_operand_range){range->storage, range->offset * factor, range->bytes * factor};
    }
    if (lade_graph_add_op(larger, &op, &error, NULL))
      fail_msg("%s", error.text);
  }
  for (int k = 0; k < graph->kept.n; k++)
    assert_int_equal(lade_graph_keep(larger, graph->kept.items[k], &error), 0);
  if (lade_graph_close(larger, &error))
    fail_msg("%s", error.text);
  return larger;
}
