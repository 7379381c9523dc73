/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The proof's third part: the walk. Each space is a row of pieces that tile it. A piece records its value, the buffer
 * through which it was written, its writer, and per queue its last reader since. In list order, a read must find, over
 * its whole range, the value that it names and no other. A write replaces the pieces that it covers, and cuts those at
 * its ends.
 *
 * Order between queues: instruction x is done before y begins if y's vector clock covers x. The clock of y has for each
 * queue the last instruction known to be done. It joins the clock of the queue's previous instruction, that instruction
 * itself, and the same for each wait. Queues are first-in first-out, so one number per queue is enough, and so is the
 * last reader per queue of a piece. A read must come after the piece's writer, a write after its writer and readers.
 * Waits are used for nothing but the clocks.
 *
 * The start of a step: a resident buffer that is read before it is written brings a value with it. Only parameters,
 * their state and data may come from before the step; all other buffers begin empty. At the end each such buffer must
 * hold the beginning of the next step: parameters and state are updated in training and untouched in evaluation, which
 * may gather a working copy around this rank's block. A value that this program does not read may still matter to
 * another program over the same arena: in an evaluation a resident buffer of optimizer state is never written. In a
 * caller's own step given storages begin in program->start_buffers, and given and kept storages end in
 * program->end_buffers.
 *
 * Pieces begin only at the ends of operands. So a sorted list of those ends numbers them, and the row is a bitset over
 * the list. A write removes the marks that it covers and adds at most three. A read of a part of a piece cuts it, which
 * adds at most two: writers of the rest need not wait for that reader. So all pieces ever visited are O(operands). The
 * partial sums, which one instruction reads all of, come on top.
 */
#include <stdlib.h>
#include <string.h>

#include "base/ordered_bitset.h"
#include "program/proof/proof.h"

/* One per queue. */
#define DATA_KINDS (LADE_TENSOR_FIRST_KEYS + 1)
#define NO_READERS {-1, -1, -1, -1, -1, -1, -1, -1, -1}
_Static_assert(LADE_N_QUEUES == 9, "a queue without its reader");

struct value_piece {
  struct lade_value value; /* tensor -1: no readable value */
  uint64_t origin;         /* address of the value's first byte */
  int32_t buffer;          /* through which it was written */
  int32_t writer;          /* -1: not written in this step */
  int32_t readers[LADE_N_QUEUES]; /* last readers since the write, -1: none */
};

struct row {
  LADE_ARRAY(uint64_t) cuts; /* ascending, distinct */
  struct ordered_bitset starts;       /* cuts at which a piece starts */
  struct value_piece *pieces; /* by the cut of their start */
};

/* The range of cuts of a buffer's last operand: most buffers have one range only. */
struct cut_span {
  uint64_t start, end;
  int32_t from, to;
};

struct value_walk {
  const struct proof *proof;
  struct row rows[LADE_N_SPACES];
  struct cut_span *spans;      /* by buffer */
  struct lade_value *brought;  /* by buffer: its value at the start of a step; tensor -1: none */
  uint64_t *brought_at;        /* by buffer: that value's offset in it */
  bool *is_updated;            /* by parameter */
  int32_t (*clocks)[LADE_N_QUEUES];
  int32_t last[LADE_N_QUEUES]; /* last instruction of each queue so far */
};

static const struct lade_value nothing = {-1, 0, 0};

/* ---- rows ---- */

static int u64_compare(const void *x, const void *y)
{
  uint64_t a = *(const uint64_t *)x, b = *(const uint64_t *)y;
  return (a > b) - (a < b);
}

static bool cuts_add(struct row *row, uint64_t start, uint64_t end)
{
  return LADE_PUSH(&row->cuts, start) && LADE_PUSH(&row->cuts, end);
}

/* Collect the ends of pages that drives write. */
static int pages_cut(struct value_walk *walk)
{
  const struct proof *proof = walk->proof;
  for (int at = 0; at < proof->program->n_instrs; at++) {
    const struct lade_instr *instr = &proof->program->instrs[at];
    for (int i = 0; i < instr->n_operands && instr->kind == LADE_INSTR_READ; i++) {
      const struct lade_operand *operand = &proof->program->operands[instr->first_operand + i];
      uint64_t end = operand_start(proof, operand) + operand->bytes;
      if (!cuts_add(&walk->rows[operand_buffer(proof, operand)->space], end, lade_align_up(end, LADE_BUFFER_ALIGN)))
        return -ENOMEM;
    }
  }
  return 0;
}

/* Collect the ends of every resident buffer and operand, with duplicates. */
static int cuts_collect(struct value_walk *walk)
{
  const struct proof *proof = walk->proof;
  const struct lade_program *program = proof->program;
  for (int i = 0; i < program->n_buffers; i++) {
    const struct lade_buffer *buffer = &program->buffers[i];
    walk->spans[i] = (struct cut_span){UINT64_MAX, UINT64_MAX, -1, -1};
    if (!cuts_add(&walk->rows[buffer->space], buffer->offset, buffer->offset + buffer->bytes))
      return -ENOMEM;
  }
  for (int i = 0; i < program->n_operands; i++) {
    const struct lade_operand *operand = &program->operands[i];
    struct cut_span *span = &walk->spans[operand->buffer];
    uint64_t start = operand_start(proof, operand), end = start + operand->bytes;
    if (span->start == start && span->end == end)
      continue;
    *span = (struct cut_span){start, end, -1, -1};
    if (!cuts_add(&walk->rows[operand_buffer(proof, operand)->space], start, end))
      return -ENOMEM;
  }
  for (int s = 0; !proof->graph && s < proof->step_graph->storages.n; s++) { /* a start buffer has its offset */
    const int32_t end = program->end_buffers[s];
    const uint64_t start = end < 0 ? 0 : program->buffers[end].offset;
    if (end >= 0 && !cuts_add(&walk->rows[program->buffers[end].space], start,
                               start + proof->step_graph->storages.items[s].bytes))
      return -ENOMEM;
  }
  return pages_cut(walk);
}

static int row_init(struct row *row)
{
  int n = 0;
  if (row->cuts.n) /* a space may be empty, and qsort needs an address */
    qsort(row->cuts.items, (size_t)row->cuts.n, sizeof(*row->cuts.items), u64_compare);
  for (int i = 0; i < row->cuts.n; i++) {
    if (n == 0 || row->cuts.items[n - 1] != row->cuts.items[i])
      row->cuts.items[n++] = row->cuts.items[i];
  }
  row->cuts.n = n;
  row->pieces = malloc(((size_t)n + 1) * sizeof(*row->pieces));
  if (!row->pieces || ordered_bitset_init(&row->starts, n))
    return -ENOMEM;
  struct value_piece empty = {.value = nothing, .buffer = -1, .writer = -1, .readers = NO_READERS};
  row->pieces[0] = empty;
  if (n)
    ordered_bitset_set(&row->starts, 0);
  return 0;
}

static int32_t cut_at(const struct row *row, uint64_t address)
{
  int lo = 0, hi = row->cuts.n - 1;
  while (lo < hi) {
    int mid = lo + (hi - lo) / 2;
    if (row->cuts.items[mid] < address)
      lo = mid + 1;
    else
      hi = mid;
  }
  LADE_ASSERT(row->cuts.items[lo] == address);
  return lo;
}

static const struct cut_span *span_get(struct value_walk *walk, int buffer, uint64_t start, uint64_t bytes)
{
  struct cut_span *span = &walk->spans[buffer];
  if (span->start != start || span->end != start + bytes || span->from < 0) {
    const struct row *row = &walk->rows[walk->proof->program->buffers[buffer].space];
    *span = (struct cut_span){start, start + bytes, cut_at(row, start), cut_at(row, start + bytes)};
  }
  return span;
}

static const struct cut_span *operand_span(struct value_walk *walk, const struct lade_operand *operand)
{
  return span_get(walk, operand->buffer, operand_start(walk->proof, operand), operand->bytes);
}

/* Let a piece start at @cut, by cutting the piece that contains it. */
static void row_cut(struct row *row, int32_t cut)
{
  if (cut == row->cuts.n - 1 || ordered_bitset_has(&row->starts, cut))
    return;
  row->pieces[cut] = row->pieces[ordered_bitset_prev(&row->starts, cut)];
  ordered_bitset_set(&row->starts, cut);
}

/* Return the piece after the one that starts at @cut; row->cuts.n past the last. */
static int32_t row_next(const struct row *row, int32_t cut)
{
  int32_t next = ordered_bitset_next(&row->starts, cut + 1);
  return next < 0 ? row->cuts.n : next;
}

/* Replace all pieces in @span by @piece. */
static void row_fill(struct row *row, const struct cut_span *span, const struct value_piece *piece)
{
  row_cut(row, span->from);
  row_cut(row, span->to);
  for (int32_t cut = row_next(row, span->from); cut < span->to; cut = row_next(row, cut))
    ordered_bitset_clear(&row->starts, cut);
  row->pieces[span->from] = *piece;
}

/* ---- order ---- */

static void clock_join(int32_t *clock, const int32_t *other)
{
  for (int q = 0; q < LADE_N_QUEUES; q++)
    clock[q] = LADE_MAX(clock[q], other[q]);
}

/* Make the clock of instruction @at: all instructions that are done before it begins. */
static void clock_make(struct value_walk *walk, int at)
{
  const struct lade_instr *instr = &walk->proof->program->instrs[at];
  int32_t *clock = walk->clocks[at], before = walk->last[instr->queue];
  for (int q = 0; q < LADE_N_QUEUES; q++)
    clock[q] = -1;
  if (before >= 0) {
    clock_join(clock, walk->clocks[before]);
    clock[instr->queue] = before;
  }
  for (int q = 0; q < LADE_N_QUEUES; q++) {
    if (instr->waits[q] < 0)
      continue;
    clock_join(clock, walk->clocks[instr->waits[q]]);
    clock[q] = LADE_MAX(clock[q], instr->waits[q]);
  }
  walk->last[instr->queue] = at;
}

/* True if @other, an earlier instruction or -1, is done before @at begins, or is @at itself. */
static bool is_done_before(const struct value_walk *walk, int other, int at)
{
  return other < 0 || other == at || walk->clocks[at][walk->proof->program->instrs[other].queue] >= other;
}

static int order_fail(const struct value_walk *walk, int at, int i, const char *does, int other, const char *did)
{
  return proof_fail(walk->proof, at, i, "%s what instruction %d on queue %s %s, and no wait puts it after that", does,
                    other, lade_queue_name((enum lade_queue_id)walk->proof->program->instrs[other].queue), did);
}

/* ---- operands ---- */

static int found_fail(const struct value_walk *walk, int at, int i, const struct value_piece *piece)
{
  const struct lade_program *program = walk->proof->program;
  const struct lade_operand *operand = &program->operands[program->instrs[at].first_operand + i];
  char text[PROOF_VALUE_BYTES];
  if (piece->value.tensor < 0)
    return proof_fail(walk->proof, at, i, "is not there: its range, or a part of it, holds nothing");
  if (!value_is_equal(piece->value, operand->reads))
    return proof_fail(walk->proof, at, i, "is not there: found %s, from instruction %d",
                      proof_value(walk->proof, piece->value, text), piece->writer);
  if (piece->buffer != operand->buffer)
    return proof_fail(walk->proof, at, i, "was left in buffer %d, which is another", piece->buffer);
  return proof_fail(walk->proof, at, i, "begins elsewhere: at byte %lld of the range",
                    (long long)(piece->origin - operand_start(walk->proof, operand)));
}

/*
 * Return the address of the first byte of the whole value whose range @operand names. Partial sums are made in pieces
 * of one value, and those of one parameter may be read alone. An update of shards reads its block of a whole working
 * copy, or a copy of the block. A scattered send reads the rows at this rank's position.
 */
static uint64_t value_origin(const struct value_walk *walk, const struct lade_instr *instr,
                             const struct lade_operand *operand, struct lade_value value)
{
  const struct lade_model_graph *graph = walk->proof->graph;
  uint64_t start = operand_start(walk->proof, operand);
  if (!graph)
    return start;
  bool is_part = instr->kind == LADE_INSTR_GRAD_SUMSQ ? operand->role == LADE_ROLE_DST
                                                : instr->kind == LADE_INSTR_CLIP && instr->param >= 0 &&
                                                      operand->role == LADE_ROLE_SRC;
  bool is_whole = value.tensor >= 0 && value.tensor < graph->n_tensors && is_sharded(walk->proof) &&
                  ((instr->kind == LADE_INSTR_UPDATE && operand->role == LADE_ROLE_WEIGHT) ||
                   proof_is_block_out(walk->proof, instr));
  if (proof_sends_part(walk->proof, instr))
    return start - operand->bytes * (uint64_t)lade_layout_position(walk->proof->program->layout, LADE_AXIS_TP);
  if (is_whole)
    return start - operand->bytes * (uint64_t)lade_layout_position(walk->proof->program->layout, LADE_AXIS_SHARD);
  return is_part ? start - (uint64_t)walk->proof->partial_at[instr->param] * sizeof(double) : start;
}

static int operand_read(struct value_walk *walk, int at, int i)
{
  const struct lade_instr *instr = &walk->proof->program->instrs[at];
  const struct lade_operand *operand = &walk->proof->program->operands[instr->first_operand + i];
  const struct cut_span *span = operand_span(walk, operand);
  struct row *row = &walk->rows[operand_buffer(walk->proof, operand)->space];
  row_cut(row, span->from);
  row_cut(row, span->to);
  for (int32_t cut = span->from; cut < span->to; cut = row_next(row, cut)) {
    struct value_piece *piece = &row->pieces[cut];
    if (!value_is_equal(piece->value, operand->reads) || piece->buffer != operand->buffer ||
        piece->origin != value_origin(walk, instr, operand, operand->reads))
      return found_fail(walk, at, i, piece);
    if (!is_done_before(walk, piece->writer, at))
      return order_fail(walk, at, i, "reads", piece->writer, "writes");
    piece->readers[instr->queue] = at;
  }
  return 0;
}

/* Check that writers and readers of @span are done before it is written. */
static int span_order(struct value_walk *walk, struct row *row, const struct cut_span *span, int at, int i)
{
  for (int32_t cut = ordered_bitset_prev(&row->starts, span->from); cut < span->to; cut = row_next(row, cut)) {
    const struct value_piece *piece = &row->pieces[cut];
    if (!is_done_before(walk, piece->writer, at))
      return order_fail(walk, at, i, "overwrites", piece->writer, "writes");
    for (int q = 0; q < LADE_N_QUEUES; q++) {
      if (!is_done_before(walk, piece->readers[q], at))
        return order_fail(walk, at, i, "overwrites", piece->readers[q], "reads");
    }
  }
  return 0;
}

/* Clear the bytes behind a value in its last page, because drives write whole pages. */
static int page_make(struct value_walk *walk, int at, int i)
{
  const struct lade_instr *instr = &walk->proof->program->instrs[at];
  const struct lade_operand *operand = &walk->proof->program->operands[instr->first_operand + i];
  uint64_t start = operand_start(walk->proof, operand) + operand->bytes;
  uint64_t end = lade_align_up(start, LADE_BUFFER_ALIGN);
  if (instr->kind != LADE_INSTR_READ || start == end)
    return 0;
  struct row *row = &walk->rows[operand_buffer(walk->proof, operand)->space];
  const struct cut_span span = {start, end, cut_at(row, start), cut_at(row, end)};
  int status = span_order(walk, row, &span, at, i);
  struct value_piece gone = {nothing, start, operand->buffer, at, NO_READERS};
  if (!status)
    row_fill(row, &span, &gone);
  return status;
}

static int operand_make(struct value_walk *walk, int at, int i)
{
  const struct lade_instr *instr = &walk->proof->program->instrs[at];
  const struct lade_operand *operand = &walk->proof->program->operands[instr->first_operand + i];
  const struct cut_span *span = operand_span(walk, operand);
  struct row *row = &walk->rows[operand_buffer(walk->proof, operand)->space];
  int status = span_order(walk, row, span, at, i);
  if (status)
    return status;
  struct value_piece made = {operand->makes, value_origin(walk, instr, operand, operand->makes), operand->buffer, at,
                             NO_READERS};
  row_fill(row, span, &made);
  return page_make(walk, at, i);
}

/* Refuse a read of a parameter after its update: the value is the next step's. */
static int updated_check(const struct value_walk *walk, int at, int i)
{
  const struct lade_model_graph *graph = walk->proof->graph;
  const struct lade_instr *instr = &walk->proof->program->instrs[at];
  struct lade_value value = walk->proof->program->operands[instr->first_operand + i].reads;
  int param = part_param(graph, value.tensor);
  if (value.tensor < graph->n_tensors && graph->tensors[value.tensor].kind == LADE_TENSOR_PARAM)
    param = graph->tensors[value.tensor].param;
  else if (param < 0 && block_param(graph, value.tensor) >= 0 && block_kind(graph, value.tensor) == LADE_BLOCK_WEIGHT)
    param = block_param(graph, value.tensor);
  if (param >= 0 && value.version == 0 && walk->is_updated[param])
    return proof_fail(walk->proof, at, i, "is out of date: its parameter has been updated");
  return 0;
}

static int instr_walk(struct value_walk *walk, int at)
{
  const struct lade_instr *instr = &walk->proof->program->instrs[at];
  const struct lade_operand *operands = walk->proof->program->operands + instr->first_operand;
  int status = 0;
  clock_make(walk, at);
  for (int i = 0; i < instr->n_operands && !status; i++) {
    if (!(operands[i].access & LADE_READS))
      continue;
    status = walk->proof->graph ? updated_check(walk, at, i) : 0;
    if (!status)
      status = operand_read(walk, at, i);
  }
  for (int i = 0; i < instr->n_operands && !status; i++) {
    if (operands[i].access & LADE_MAKES)
      status = operand_make(walk, at, i);
  }
  if (instr->kind == LADE_INSTR_UPDATE)
    walk->is_updated[instr->param] = true;
  return status;
}

/* ---- the start of a step ---- */

/* Return the owner of a resident buffer that may bring @value from the step before; -1: it may not. */
static int brought_owner(const struct proof *proof, struct lade_value value)
{
  const struct lade_model_graph *graph = proof->graph;
  if (value.tensor < 0 || value.version != 0)
    return -1;
  if (block_param(graph, value.tensor) >= 0)
    return block_kind(graph, value.tensor) == LADE_BLOCK_WEIGHT ? LADE_OWNER_PARAMETERS : -1;
  if (value.tensor >= graph->n_tensors)
    return part_param(graph, value.tensor) >= 0 ? LADE_OWNER_OPTIMIZER : -1;
  if (graph->tensors[value.tensor].kind == LADE_TENSOR_PARAM)
    return LADE_OWNER_PARAMETERS;
  return lade_tensor_is_data(&graph->tensors[value.tensor]) ? LADE_OWNER_TRANSIENT : -1;
}

/* True if @operand reads this rank's block of a working copy at its place in the memory of the whole copy. */
static bool is_own_place(const struct proof *proof, const struct lade_operand *operand)
{
  const int tensor = operand->reads.tensor;
  return is_sharded(proof) && block_param(proof->graph, tensor) >= 0 &&
         block_kind(proof->graph, tensor) == LADE_BLOCK_WEIGHT &&
         operand_buffer(proof, operand)->space == LADE_DEVICE &&
         operand->offset == operand->bytes * (uint64_t)lade_layout_position(proof->program->layout, LADE_AXIS_SHARD);
}

/*
 * Note the value that a resident buffer brought, from the first instruction that touches it. Each value is brought at
 * most once: @holders has its buffer plus one, for each value and, past those, each microbatch's data.
 */
static int brought_note(struct value_walk *walk, int at, int i, int32_t *holders)
{
  const struct proof *proof = walk->proof;
  const struct lade_operand *operand = &proof->program->operands[proof->program->instrs[at].first_operand + i];
  int owner = brought_owner(proof, operand->reads);
  if (!(operand->access & LADE_READS) || owner < 0 || (operand->offset && !is_own_place(proof, operand)))
    return 0; /* no value: the walk refuses its readers */
  if ((int)operand_buffer(proof, operand)->owner != owner)
    return proof_fail(proof, at, i, "is brought by a buffer that the ledger counts as %s",
                      lade_owner_name(operand_buffer(proof, operand)->owner));
  size_t number = (size_t)operand->reads.tensor;
  if (operand->reads.microbatch)
    number = (size_t)lade_value_count(proof->graph) + (size_t)operand->reads.microbatch * DATA_KINDS +
             (size_t)proof->graph->tensors[operand->reads.tensor].kind;
  if (holders[number])
    return proof_fail(proof, at, i, "is brought by buffer %d already, and by %d again", holders[number] - 1,
                      operand->buffer);
  holders[number] = operand->buffer + 1;
  walk->brought[operand->buffer] = operand->reads;
  walk->brought_at[operand->buffer] = operand->offset;
  struct value_piece piece = {operand->reads, operand_start(proof, operand), operand->buffer, -1, NO_READERS};
  row_fill(&walk->rows[operand_buffer(proof, operand)->space], operand_span(walk, operand), &piece);
  return 0;
}

static int brought_find(struct value_walk *walk)
{
  const struct lade_program *program = walk->proof->program;
  size_t n_values = (size_t)lade_value_count(walk->proof->graph) + DATA_KINDS * (size_t)program->n_microbatches;
  int32_t *holders = calloc(n_values, sizeof(*holders));
  bool *is_touched = calloc((size_t)program->n_buffers + 1, sizeof(*is_touched));
  int status = holders && is_touched ? 0 : -ENOMEM;
  for (int at = 0; at < program->n_instrs && !status; at++) {
    const struct lade_instr *instr = &program->instrs[at];
    for (int i = 0; i < instr->n_operands && !status; i++) {
      int buffer = program->operands[instr->first_operand + i].buffer;
      if (!program->buffers[buffer].is_resident || is_touched[buffer])
        continue;
      is_touched[buffer] = true;
      status = brought_note(walk, at, i, holders);
    }
  }
  free(holders);
  free(is_touched);
  return status;
}

/* Let the start buffers of given storages hold version 0. */
static void given_bring(struct value_walk *walk)
{
  const struct lade_program *program = walk->proof->program;
  const struct lade_graph *graph = walk->proof->step_graph;
  for (int s = 0; s < graph->storages.n; s++) {
    const int32_t start = program->start_buffers[s];
    if (start < 0)
      continue;
    const struct lade_buffer *buffer = &program->buffers[start];
    const struct value_piece piece = {{s, 0, 0}, buffer->offset, start, -1, NO_READERS};
    row_fill(&walk->rows[buffer->space], span_get(walk, start, buffer->offset, graph->storages.items[s].bytes), &piece);
  }
}

/* ---- the end of a step ---- */

/* Return the only piece in a value's range from @offset of buffer @i; NULL: several. */
static const struct value_piece *piece_whole(struct value_walk *walk, int i, uint64_t offset, uint64_t bytes)
{
  const struct lade_buffer *buffer = &walk->proof->program->buffers[i];
  struct row *row = &walk->rows[buffer->space];
  const struct cut_span *span = span_get(walk, i, buffer->offset + offset, bytes);
  int32_t cut = ordered_bitset_prev(&row->starts, span->from);
  return row_next(row, cut) >= span->to ? &row->pieces[cut] : NULL;
}

/*
 * True if @piece is the working copy that an evaluation gathered in buffer @i around its own @block of @bytes, which
 * lies at this rank's place.
 */
static bool is_gathered_over(const struct value_walk *walk, int i, struct lade_value block, uint64_t bytes,
                             const struct value_piece *piece)
{
  const struct proof *proof = walk->proof;
  const int param = block_param(proof->graph, block.tensor);
  return !proof->program->is_training && param >= 0 &&
         walk->brought_at[i] == bytes * (uint64_t)lade_layout_position(proof->program->layout, LADE_AXIS_SHARD) &&
         value_is_equal(piece->value, (struct lade_value){proof->graph->params[param].tensor, 0, 0}) &&
         piece->buffer == i && piece->origin == proof->program->buffers[i].offset;
}

/* Check that buffer @i ends the step with the next version of the value with which it began. */
static int brought_check(struct value_walk *walk, int i)
{
  const struct proof *proof = walk->proof;
  char text[PROOF_VALUE_BYTES];
  struct lade_value value = walk->brought[i];
  bool is_data = value.tensor < proof->graph->n_tensors && lade_tensor_is_data(&proof->graph->tensors[value.tensor]);
  value.version = proof->program->is_training && !is_data ? 1 : 0;
  const uint64_t bytes = lade_held_bytes(proof->graph, proof->program->layout, value.tensor);
  const struct value_piece *piece = piece_whole(walk, i, walk->brought_at[i], bytes);
  if (piece && is_gathered_over(walk, i, value, bytes, piece))
    return 0;
  if (!piece || !value_is_equal(piece->value, value) || piece->buffer != i ||
      piece->origin != proof->program->buffers[i].offset + walk->brought_at[i])
    return proof_fail_all(proof, "buffer %d in %s ends the step without %s, with which the next one begins", i,
                          lade_space_name(proof->program->buffers[i].space), proof_value(proof, value, text));
  return 0;
}

/* Check a resident buffer that brought no value: results, and buffers of another program over the same arena. */
static int result_check(struct value_walk *walk, int i)
{
  const struct proof *proof = walk->proof;
  const struct lade_buffer *buffer = &proof->program->buffers[i];
  if (buffer->owner != LADE_OWNER_PARAMETERS && buffer->owner != LADE_OWNER_OPTIMIZER)
    return 0;
  if (proof->program->is_training)
    return proof_fail_all(proof, "buffer %d in %s is resident for %s, but nothing is updated there", i,
                          lade_space_name(buffer->space), lade_owner_name(buffer->owner));
  const struct value_piece *piece = piece_whole(walk, i, 0, buffer->bytes);
  if (!piece || piece->writer >= 0)
    return proof_fail_all(proof, "buffer %d in %s is resident for %s, but an evaluation writes it", i,
                          lade_space_name(buffer->space), lade_owner_name(buffer->owner));
  return 0;
}

/* Return the value that lies whole at the beginning of resident buffer @i. */
static struct lade_value result_find(struct value_walk *walk, int i)
{
  const struct lade_buffer *buffer = &walk->proof->program->buffers[i];
  const struct row *row = &walk->rows[buffer->space];
  const struct value_piece *first = &row->pieces[ordered_bitset_prev(&row->starts, cut_at(row, buffer->offset))];
  if (first->value.tensor < 0 || first->buffer != i || first->origin != buffer->offset)
    return nothing;
  uint64_t bytes = lade_held_bytes(walk->proof->graph, walk->proof->program->layout, first->value.tensor);
  return piece_whole(walk, i, 0, bytes) ? first->value : nothing;
}

/* Check that losses of all microbatches, and in training the clip result, are on the host for the caller. */
static int results_check(struct value_walk *walk)
{
  const struct proof *proof = walk->proof;
  const struct lade_program *program = proof->program;
  const int clip_result = lade_value_scalar(proof->graph, LADE_SCALAR_CLIP_RESULT);
  bool *is_there = calloc((size_t)program->n_microbatches, sizeof(*is_there)), has_clip_result = !program->is_training;
  if (!is_there)
    return -ENOMEM;
  for (int i = 0; i < program->n_buffers; i++) {
    const struct lade_buffer *buffer = &program->buffers[i];
    if (!buffer->is_resident || buffer->space != LADE_HOST)
      continue;
    struct lade_value value = result_find(walk, i);
    has_clip_result |= value.tensor == clip_result;
    if (value.tensor == proof->graph->loss && value.version == loss_complete(proof))
      is_there[value.microbatch] = true;
  }
  int missing = proof->graph->loss < 0 ? program->n_microbatches : 0; /* only the last stage has them */
  while (missing < program->n_microbatches && is_there[missing])
    missing++;
  free(is_there);
  if (missing < program->n_microbatches)
    return proof_fail_all(proof, "the loss of microbatch %d is in no resident buffer of the host at the end", missing);
  if (!has_clip_result)
    return proof_fail_all(proof, "the clip result is in no resident buffer of the host at the end");
  return 0;
}

/* Check that each end buffer holds its storage's last version, for the next step or the caller. */
static int ends_check(struct value_walk *walk)
{
  const struct proof *proof = walk->proof;
  for (int s = 0; s < proof->step_graph->storages.n; s++) {
    const struct graph_storage *storage = &proof->step_graph->storages.items[s];
    const struct lade_value last = {s, 0, (int16_t)storage->n_versions};
    const int32_t end = proof->program->end_buffers[s];
    char text[PROOF_VALUE_BYTES];
    if (end < 0)
      continue;
    const struct value_piece *piece = piece_whole(walk, end, 0, storage->bytes);
    if (!piece || !value_is_equal(piece->value, last) || piece->buffer != end ||
        piece->origin != proof->program->buffers[end].offset)
      return proof_fail_all(proof, "buffer %d in %s ends the step without %s", end,
                            lade_space_name(proof->program->buffers[end].space), proof_value(proof, last, text));
  }
  return 0;
}

static int end_check(struct value_walk *walk)
{
  const struct lade_program *program = walk->proof->program;
  int status = 0;
  for (int i = 0; i < program->n_buffers && !status; i++) {
    if (program->buffers[i].is_resident)
      status = walk->brought[i].tensor >= 0 ? brought_check(walk, i) : result_check(walk, i);
  }
  return status ? status : results_check(walk);
}

/* ---- whole walk ---- */

static int walk_init(struct value_walk *walk)
{
  const struct lade_program *program = walk->proof->program;
  size_t n_buffers = (size_t)program->n_buffers + 1;
  walk->spans = malloc(n_buffers * sizeof(*walk->spans));
  walk->brought = malloc(n_buffers * sizeof(*walk->brought));
  walk->brought_at = calloc(n_buffers, sizeof(*walk->brought_at));
  walk->is_updated = calloc(walk->proof->graph ? (size_t)walk->proof->graph->n_params + 1 : 1,
                            sizeof(*walk->is_updated));
  walk->clocks = malloc((size_t)program->n_instrs * sizeof(*walk->clocks));
  if (!walk->spans || !walk->brought || !walk->brought_at || !walk->is_updated || !walk->clocks || cuts_collect(walk))
    return -ENOMEM;
  for (int i = 0; i < program->n_buffers; i++)
    walk->brought[i] = nothing;
  for (int q = 0; q < LADE_N_QUEUES; q++)
    walk->last[q] = -1;
  for (int space = 0; space < LADE_N_SPACES; space++) {
    if (row_init(&walk->rows[space]))
      return -ENOMEM;
  }
  return 0;
}

static void walk_finish(struct value_walk *walk)
{
  for (int space = 0; space < LADE_N_SPACES; space++) {
    LADE_ARRAY_FREE(&walk->rows[space].cuts);
    ordered_bitset_finish(&walk->rows[space].starts);
    free(walk->rows[space].pieces);
  }
  free(walk->spans);
  free(walk->brought);
  free(walk->brought_at);
  free(walk->is_updated);
  free(walk->clocks);
}

int proof_walk(struct proof *proof)
{
  struct value_walk walk = {.proof = proof};
  int status = walk_init(&walk);
  if (!status && !proof->graph)
    given_bring(&walk);
  else if (!status)
    status = brought_find(&walk);
  for (int at = 0; at < proof->program->n_instrs && !status; at++)
    status = instr_walk(&walk, at);
  if (!status)
    status = proof->graph ? end_check(&walk) : ends_check(&walk);
  walk_finish(&walk);
  return status;
}
