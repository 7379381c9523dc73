/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Replay a list of instructions over a graph: the proof that a list is right, and the count of its bytes.
 *
 * The replay knows for each storage the version on the device and the version of each copy on a tier. It runs the list
 * against them. Each operand of an op must be on the device, at the version that the graph gave it. So the replay finds
 * an op that runs again after an update of its input, and an update that runs twice. It shares the graph with the
 * search, and nothing else. O(operands of all instructions).
 */
#include <errno.h>
#include <stdlib.h>

#include "graph/graph.h"
#include "lade/graph_plan.h"
#include "lade/plan.h"

#define NOWHERE (-1) /* the version of a storage without a copy in a space */

struct replay_storage {
  int32_t version[LADE_N_SPACES]; /* of the copy there; NOWHERE: none. A made storage's first version is 1 */
  int32_t writer;                 /* the instruction that wrote it last */
};

struct list_replay {
  const struct lade_graph *graph;
  const struct lade_graph_instr *instrs;
  int at;
  struct lade_error *error;
  struct replay_storage *storages;
  uint64_t bytes[LADE_N_SPACES], peak_bytes[LADE_N_SPACES];
  int n_ops; /* that ran for the first time */
  int64_t compute_ns;
  int n_redone;
  uint64_t moved_bytes;
};

static const char *storage_name(const struct list_replay *replay, int storage)
{
  return graph_name(replay->graph, replay->graph->storages.items[storage].name);
}

static const char *op_name(const struct list_replay *replay, int op)
{
  return graph_name(replay->graph, replay->graph->ops.items[op].name);
}

/* ---- bytes ---- */

static void copy_set(struct list_replay *replay, int storage, enum lade_space space, int32_t version)
{
  struct replay_storage *state = &replay->storages[storage];
  const uint64_t bytes = replay->graph->storages.items[storage].bytes;
  if (state->version[space] == NOWHERE && version != NOWHERE)
    replay->bytes[space] += bytes;
  else if (state->version[space] != NOWHERE && version == NOWHERE)
    replay->bytes[space] -= bytes;
  state->version[space] = version;
  replay->peak_bytes[space] = LADE_MAX(replay->peak_bytes[space], replay->bytes[space]);
}

/* ---- ops ---- */

static int operand_fail(const struct list_replay *replay, int op, const struct graph_operand *operand, int32_t version)
{
  const int32_t found = replay->storages[operand->storage].version[LADE_DEVICE];
  if (found == NOWHERE)
    return lade_error_set(replay->error, -EINVAL, "instruction %d, op %d \"%s\": \"%s\" is not on the device",
                          replay->at, op, op_name(replay, op), storage_name(replay, operand->storage));
  return lade_error_set(replay->error, -EINVAL,
                        "instruction %d, op %d \"%s\": \"%s\" is at version %d, and the op takes version %d",
                        replay->at, op, op_name(replay, op), storage_name(replay, operand->storage), found, version);
}

/* Check that operand @i of @op is there at the version that the op takes. */
static int operand_check(const struct list_replay *replay, int op, const struct graph_operand *operand)
{
  const struct graph_storage *storage = &replay->graph->storages.items[operand->storage];
  const int32_t found = replay->storages[operand->storage].version[LADE_DEVICE];
  bool is_whole = operand->offset == 0 && operand->bytes == storage->bytes;
  int32_t takes = operand->version;
  if (operand->access == GRAPH_WRITES) {
    /* The first write makes the storage. A later one supersedes a version, of which it may keep bytes. */
    takes = operand->version - 1;
    bool is_first = !storage->is_given && takes == 0;
    if (is_first || (is_whole && found == NOWHERE && !storage->is_given))
      return 0;
  }
  return found == takes ? 0 : operand_fail(replay, op, operand, takes);
}

static void operand_write(struct list_replay *replay, const struct graph_operand *operand)
{
  if (operand->access != GRAPH_READS)
    copy_set(replay, operand->storage, LADE_DEVICE,
             operand->access == GRAPH_WRITES ? operand->version : operand->version + 1);
}

static int op_run(struct list_replay *replay, int op)
{
  const struct graph_op *o = &replay->graph->ops.items[op];
  const struct graph_operand *operands = replay->graph->operands.items + o->first_operand;
  const int n = graph_op_n_operands(o);
  for (int i = 0; i < n; i++) {
    int status = operand_check(replay, op, &operands[i]);
    if (status)
      return status;
  }
  for (int i = 0; i < n; i++)
    operand_write(replay, &operands[i]);
  const uint64_t bytes = replay->bytes[LADE_DEVICE] + o->scratch_bytes;
  replay->peak_bytes[LADE_DEVICE] = LADE_MAX(replay->peak_bytes[LADE_DEVICE], bytes);
  replay->compute_ns += o->ns;
  return 0;
}

static int op_first_run(struct list_replay *replay, int op)
{
  if (op != replay->n_ops)
    return lade_error_set(replay->error, -EINVAL, "instruction %d: op %d \"%s\" runs where op %d is next", replay->at,
                          op, op_name(replay, op), replay->n_ops);
  replay->n_ops++;
  return op_run(replay, op);
}

static int op_redo(struct list_replay *replay, int op)
{
  const struct graph_op *o = &replay->graph->ops.items[op];
  if (op >= replay->n_ops || o->is_once)
    return lade_error_set(replay->error, -EINVAL, "instruction %d: op %d \"%s\" runs again, %s", replay->at, op,
                          op_name(replay, op), o->is_once ? "which its graph rules out" : "before its first run");
  for (int i = o->n_reads; i < graph_op_n_operands(o); i++) {
    int storage = replay->graph->operands.items[o->first_operand + i].storage;
    if (replay->graph->storages.items[storage].is_given)
      return lade_error_set(replay->error, -EINVAL, "instruction %d: op %d \"%s\" runs again, and changes \"%s\" twice",
                            replay->at, op, op_name(replay, op), storage_name(replay, storage));
  }
  replay->n_redone++;
  return op_run(replay, op);
}

/* ---- storages ---- */

static int not_there_fail(const struct list_replay *replay, const char *does, enum lade_space space)
{
  const int storage = replay->instrs[replay->at].index;
  return lade_error_set(replay->error, -EINVAL, "instruction %d: %s \"%s\", which is not on the %s", replay->at, does,
                        storage_name(replay, storage), lade_space_name(space));
}

static int storage_drop(struct list_replay *replay, int storage)
{
  const struct graph_storage *s = &replay->graph->storages.items[storage];
  const struct replay_storage *state = &replay->storages[storage];
  if (state->version[LADE_DEVICE] == NOWHERE)
    return not_there_fail(replay, "drops", LADE_DEVICE);
  if (s->is_given && (s->tier == LADE_DEVICE || state->version[s->tier] != state->version[LADE_DEVICE]))
    return lade_error_set(replay->error, -EINVAL, "instruction %d: drops \"%s\", which is given and has no other copy",
                          replay->at, storage_name(replay, storage));
  copy_set(replay, storage, LADE_DEVICE, NOWHERE);
  return 0;
}

static int storage_put(struct list_replay *replay, int storage, enum lade_space tier)
{
  const struct replay_storage *state = &replay->storages[storage];
  if (state->version[LADE_DEVICE] == NOWHERE)
    return not_there_fail(replay, "puts", LADE_DEVICE);
  copy_set(replay, storage, tier, state->version[LADE_DEVICE]);
  copy_set(replay, storage, LADE_DEVICE, NOWHERE);
  replay->moved_bytes += replay->graph->storages.items[storage].bytes;
  return 0;
}

static int storage_get(struct list_replay *replay, int storage, enum lade_space tier)
{
  const struct graph_storage *s = &replay->graph->storages.items[storage];
  const struct replay_storage *state = &replay->storages[storage];
  if (state->version[tier] == NOWHERE)
    return not_there_fail(replay, "gets", tier);
  if (state->version[LADE_DEVICE] != NOWHERE)
    return lade_error_set(replay->error, -EINVAL, "instruction %d: gets \"%s\", which is on the device", replay->at,
                          storage_name(replay, storage));
  copy_set(replay, storage, LADE_DEVICE, state->version[tier]);
  if (!s->is_given || s->tier != tier)
    copy_set(replay, storage, tier, NOWHERE);
  replay->moved_bytes += s->bytes;
  return 0;
}

/* ---- the list ---- */

/* Check that kind, index and tier of the instruction exist. */
static int instr_check(const struct list_replay *replay)
{
  const struct lade_graph_instr *instr = &replay->instrs[replay->at];
  bool is_op = instr->kind == LADE_GRAPH_INSTR_OP || instr->kind == LADE_GRAPH_INSTR_REDO;
  bool is_move = instr->kind == LADE_GRAPH_INSTR_PUT || instr->kind == LADE_GRAPH_INSTR_GET;
  const int n = is_op ? replay->graph->ops.n : replay->graph->storages.n;
  if ((unsigned)instr->kind >= LADE_GRAPH_N_INSTR_KINDS)
    return lade_error_set(replay->error, -EINVAL, "instruction %d is of kind %d: expected 0 to %d", replay->at,
                          (int)instr->kind, LADE_GRAPH_N_INSTR_KINDS - 1);
  if (instr->index < 0 || instr->index >= n)
    return lade_error_set(replay->error, -EINVAL, "instruction %d names %s %d of %d", replay->at,
                          is_op ? "op" : "storage", instr->index, n);
  if (is_move && instr->tier != LADE_HOST && instr->tier != LADE_STORE)
    return lade_error_set(replay->error, -EINVAL, "instruction %d moves \"%s\" to or from tier %d: expected 1 or 2",
                          replay->at, storage_name(replay, instr->index), (int)instr->tier);
  return 0;
}

static int instr_run(struct list_replay *replay)
{
  const struct lade_graph_instr *instr = &replay->instrs[replay->at];
  int status = instr_check(replay);
  if (status)
    return status;
  switch (instr->kind) {
  case LADE_GRAPH_INSTR_OP:
    return op_first_run(replay, instr->index);
  case LADE_GRAPH_INSTR_REDO:
    return op_redo(replay, instr->index);
  case LADE_GRAPH_INSTR_DROP:
    return storage_drop(replay, instr->index);
  case LADE_GRAPH_INSTR_PUT:
    return storage_put(replay, instr->index, instr->tier);
  default:
    return storage_get(replay, instr->index, instr->tier);
  }
}

/* Let given storages be where they are between steps. */
static void beginning_make(struct list_replay *replay)
{
  for (int s = 0; s < replay->graph->storages.n; s++) {
    const struct graph_storage *storage = &replay->graph->storages.items[s];
    for (int space = 0; space < LADE_N_SPACES; space++)
      replay->storages[s].version[space] = NOWHERE;
    if (storage->is_given)
      copy_set(replay, s, (enum lade_space)storage->tier, 0);
  }
}

/* Check that every op ran, and that results and given storages are where they must be, at their last version. */
static int end_check(const struct list_replay *replay)
{
  if (replay->n_ops < replay->graph->ops.n)
    return lade_error_set(replay->error, -EINVAL, "the list ends before op %d \"%s\" ran", replay->n_ops,
                          op_name(replay, replay->n_ops));
  for (int s = 0; s < replay->graph->storages.n; s++) {
    const struct graph_storage *storage = &replay->graph->storages.items[s];
    const bool is_lasting = storage->is_given || storage->is_kept;
    const enum lade_space tier = storage->is_given ? (enum lade_space)storage->tier : LADE_DEVICE;
    for (int space = 0; space < LADE_N_SPACES; space++) {
      int32_t expected = is_lasting && space == (int)tier ? storage->n_versions : NOWHERE;
      if (replay->storages[s].version[space] != expected)
        return lade_error_set(replay->error, -EINVAL, "at the end \"%s\" is at version %d on the %s: expected %d",
                              storage_name(replay, s), replay->storages[s].version[space],
                              lade_space_name((enum lade_space)space), expected);
    }
  }
  return 0;
}

static void totals_fill(const struct list_replay *replay, struct lade_graph_totals *ret_totals)
{
  const struct lade_graph_totals totals = {
      .struct_size = ret_totals->struct_size, .peak_bytes = replay->peak_bytes[LADE_DEVICE],
      .host_peak_bytes = replay->peak_bytes[LADE_HOST], .store_peak_bytes = replay->peak_bytes[LADE_STORE],
      .compute_ns = replay->compute_ns, .n_redone = replay->n_redone, .moved_bytes = replay->moved_bytes};
  lade_struct_fill("lade_graph_totals", ret_totals, &totals, sizeof(totals), NULL);
}

int lade_graph_replay(const lade_graph *graph, const struct lade_graph_instr *instrs, int n_instrs,
                      struct lade_error *error, struct lade_graph_totals *ret_totals)
{
  if (!graph || !graph->is_closed || (!instrs && n_instrs) || n_instrs < 0 || !ret_totals)
    return lade_error_set(error, -EINVAL, "a replay needs a closed graph, a list and room for its totals");
  int status = lade_struct_check("lade_graph_totals", ret_totals, error);
  if (status)
    return status;
  struct list_replay replay = {.graph = graph, .instrs = instrs, .error = error};
  replay.storages = calloc((size_t)graph->storages.n + 1, sizeof(*replay.storages));
  if (!replay.storages)
    return lade_error_set(error, -ENOMEM, "out of memory replaying a list of %d instructions", n_instrs);
  beginning_make(&replay);
  for (; replay.at < n_instrs && !status; replay.at++)
    status = instr_run(&replay);
  if (!status)
    status = end_check(&replay);
  if (!status)
    totals_fill(&replay, ret_totals);
  free(replay.storages);
  return status;
}
