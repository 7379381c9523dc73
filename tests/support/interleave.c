/* SPDX-License-Identifier: Apache-2.0 */
/* See interleave.h. Nothing is shared with the proof: this file moves tags, the proof reasons over ranges. */
#include "tests/support/interleave.h"

#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "tests/support/program_fixture.h"

#define CELL 8

struct machine {
  const struct lade_program *program;
  uint64_t *cells[LADE_N_SPACES];
  int32_t running[LADE_N_QUEUES]; /* -1: none */
  int32_t next[LADE_N_QUEUES];    /* instruction of that queue to begin; n_instrs: none left */
  bool *is_done;
};

static uint64_t mix(uint64_t x)
{
  x = (x ^ (x >> 31)) * UINT64_C(0x9E3779B97F4A7C15);
  return x ^ (x >> 29);
}

static uint64_t value_tag(struct lade_value value, uint64_t cell)
{
  uint64_t name = (uint64_t)(uint32_t)value.tensor << 32 | (uint64_t)(uint16_t)value.microbatch << 16 |
                  (uint16_t)value.version;
  return mix(mix(name + 1) + cell);
}

static uint64_t *operand_cells(const struct machine *m, const struct lade_operand *operand)
{
  const struct lade_buffer *buffer = &m->program->buffers[operand->buffer];
  return m->cells[buffer->space] + (buffer->offset + operand->offset) / CELL;
}

static uint64_t n_cells(const struct lade_operand *operand)
{
  return (operand->bytes + CELL - 1) / CELL;
}

/*
 * Return where in its value an operand's range begins. Sums of squares are one parameter's, or a whole of pieces. An
 * update of shards, or the copy for it, reads its block of a whole working copy, which begins with its buffer. A
 * scattered send reads its rows of a value, too.
 */
static uint64_t first_cell(const struct machine *m, const struct lade_instr *instr, const struct lade_operand *operand,
                           struct lade_value value)
{
  const struct lade_model_graph *graph = m->program->graph;
  bool is_param = value.tensor >= 0 && value.tensor < graph->n_tensors &&
                  graph->tensors[value.tensor].kind == LADE_TENSOR_PARAM;
  if (is_param && ((instr->kind == LADE_INSTR_UPDATE && operand->role == LADE_ROLE_WEIGHT) ||
                   instr->kind == LADE_INSTR_COPY))
    return operand->offset / CELL;
  if (instr->kind == LADE_INSTR_SEND)
    return operand->offset / CELL;
  if (instr->param < 0 || value.tensor != lade_value_scalar(graph, LADE_SCALAR_PARTIALS))
    return 0;
  return (uint64_t)lade_held_first_partial(graph, m->program->layout, instr->param) * sizeof(double) / CELL;
}

static bool is_read_right(const struct machine *m, int at, const struct lade_operand *operand, uint64_t scribble)
{
  const struct lade_instr *instr = &m->program->instrs[at];
  const uint64_t *cells = operand_cells(m, operand), first = first_cell(m, instr, operand, operand->reads);
  for (uint64_t i = 0; i < n_cells(operand); i++) {
    if (cells[i] != value_tag(operand->reads, first + i) && (!scribble || cells[i] != scribble))
      return false;
  }
  return true;
}

/* Begin an instruction: check that its inputs are there; its outputs are overwritten from now on. */
static bool instr_begin(struct machine *m, int at)
{
  const struct lade_instr *instr = &m->program->instrs[at];
  const struct lade_operand *operands = m->program->operands + instr->first_operand;
  for (int i = 0; i < instr->n_operands; i++) {
    if ((operands[i].access & LADE_READS) && !is_read_right(m, at, &operands[i], 0))
      return false;
  }
  for (int i = 0; i < instr->n_operands; i++) {
    uint64_t *cells = operand_cells(m, &operands[i]);
    for (uint64_t k = 0; (operands[i].access & LADE_MAKES) && k < n_cells(&operands[i]); k++)
      cells[k] = mix((uint64_t)at) | 1;
  }
  return true;
}

/* End an instruction: check that its inputs and outputs were not touched meanwhile; write the tags of its outputs. */
static bool instr_end(struct machine *m, int at)
{
  const struct lade_instr *instr = &m->program->instrs[at];
  const struct lade_operand *operands = m->program->operands + instr->first_operand;
  for (int i = 0; i < instr->n_operands; i++) {
    if ((operands[i].access & LADE_READS) && !is_read_right(m, at, &operands[i], mix((uint64_t)at) | 1))
      return false;
  }
  for (int i = 0; i < instr->n_operands; i++) {
    if (!(operands[i].access & LADE_MAKES))
      continue;
    uint64_t *cells = operand_cells(m, &operands[i]), first = first_cell(m, instr, &operands[i], operands[i].makes);
    for (uint64_t k = 0; k < n_cells(&operands[i]); k++) {
      if (cells[k] != (mix((uint64_t)at) | 1))
        return false;
      cells[k] = value_tag(operands[i].makes, first + k);
    }
  }
  m->is_done[at] = true;
  return true;
}

static int queue_next(const struct lade_program *program, int queue, int at)
{
  while (at < program->n_instrs && program->instrs[at].queue != queue)
    at++;
  return at;
}

static bool can_begin(const struct machine *m, int queue)
{
  if (m->running[queue] >= 0 || m->next[queue] == m->program->n_instrs)
    return false;
  const struct lade_instr *instr = &m->program->instrs[m->next[queue]];
  for (int q = 0; q < LADE_N_QUEUES; q++) {
    if (instr->waits[q] >= 0 && !m->is_done[instr->waits[q]])
      return false;
  }
  return true;
}

/* Let randomly drawn queues begin or end their next instruction until all are done. */
static bool machine_run(struct machine *m, uint32_t seed)
{
  for (int idle = 0; idle < 1000; idle++) {
    int queue = (int)program_fixture_draw(&seed, LADE_N_QUEUES);
    if (m->running[queue] >= 0) {
      if (!instr_end(m, m->running[queue]))
        return false;
      m->running[queue] = -1;
      idle = 0;
    } else if (can_begin(m, queue)) {
      m->running[queue] = m->next[queue];
      m->next[queue] = queue_next(m->program, queue, m->next[queue] + 1);
      if (!instr_begin(m, m->running[queue]))
        return false;
      idle = 0;
    }
  }
  for (int q = 0; q < LADE_N_QUEUES; q++) {
    if (m->next[q] != m->program->n_instrs)
      return false; /* stuck */
  }
  return true;
}

static bool is_brought(const struct lade_model_graph *graph, int tensor)
{
  const int block = tensor - lade_value_block(graph, 0, (enum lade_block)0);
  if (block >= 0)
    return block % LADE_N_BLOCKS == LADE_BLOCK_WEIGHT;
  return tensor == graph->tokens || tensor == graph->targets ||
         (tensor < graph->n_tensors ? graph->tensors[tensor].kind == LADE_TENSOR_PARAM
                                    : tensor < lade_value_scalar(graph, (enum lade_scalar)0));
}

/* Visit each resident buffer that is read first: fill it (@is_end false), or compare it with the next step's start. */
static bool residents_visit(struct machine *m, bool is_end)
{
  const struct lade_program *program = m->program;
  bool *is_seen = calloc((size_t)program->n_buffers + 1, sizeof(*is_seen)), is_right = true;
  for (int i = 0; i < program->n_operands; i++) {
    const struct lade_operand *operand = &program->operands[i];
    bool is_first = !is_seen[operand->buffer];
    is_seen[operand->buffer] = true;
    if (!is_first || !program->buffers[operand->buffer].is_resident || !(operand->access & LADE_READS) ||
        !is_brought(program->graph, operand->reads.tensor))
      continue;
    struct lade_value value = operand->reads;
    bool is_data = value.tensor == program->graph->tokens || value.tensor == program->graph->targets;
    value.version = (int16_t)(value.version + (is_end && program->is_training && !is_data));
    uint64_t *cells = operand_cells(m, operand);
    for (uint64_t k = 0; k < n_cells(operand); k++) {
      is_right &= !is_end || cells[k] == value_tag(value, k);
      cells[k] = value_tag(value, k);
    }
  }
  free(is_seen);
  return is_right;
}

bool interleave_runs(const struct lade_program *program, uint32_t seed)
{
  struct machine m = {.program = program, .is_done = calloc((size_t)program->n_instrs, sizeof(*m.is_done))};
  bool is_right = m.is_done != NULL;
  for (int space = 0; space < LADE_N_SPACES; space++) {
    m.cells[space] = calloc(program->peak_bytes[space] / CELL + 1, sizeof(uint64_t));
    is_right = is_right && m.cells[space];
  }
  for (int q = 0; q < LADE_N_QUEUES; q++) {
    m.running[q] = -1;
    m.next[q] = queue_next(program, q, 0);
  }
  is_right = is_right && residents_visit(&m, false) && machine_run(&m, seed) && residents_visit(&m, true);
  for (int space = 0; space < LADE_N_SPACES; space++)
    free(m.cells[space]);
  free(m.is_done);
  return is_right;
}
