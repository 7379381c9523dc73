/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Count the bytes that a program moves over the links between ranks, and to and from the store.
 *
 * Bytes of a collective are those that a rank sends when a vector of n bytes goes round a ring of N ranks: n(N-1)/N for
 * an all-gather or a reduce-scatter, and an all-reduce is one of each (Thakur, Rabenseifner, Gropp 2005). These are the
 * least that any algorithm sends over links, and formulas for ZeRO and tensor parallelism count them. An engine over
 * shared memory may move other bytes; its price gives its time.
 */
#include <math.h>
#include <string.h>

#include "program/build.h"

enum lade_queue_id lade_axis_queue(enum lade_axis axis)
{
  return lade_axis_has_parts(axis) ? LADE_Q_COMM_TP : LADE_Q_COMM_DP;
}

/* Return the bytes that one rank of @size sends; @bytes: of the whole vector. */
static uint64_t collective_sent_bytes(enum lade_collective_kind kind, uint64_t bytes, int size)
{
  uint64_t ring = bytes * (uint64_t)(size - 1) / (uint64_t)size;
  switch (kind) {
  case LADE_ALL_REDUCE:
    return 2 * bytes * (uint64_t)(size - 1) / (uint64_t)size;
  case LADE_BROADCAST:
    return bytes;
  case LADE_BARRIER:
    return 0;
  default:
    return ring;
  }
}

static uint64_t largest_operand_bytes(const struct lade_program *program, const struct lade_instr *instr)
{
  uint64_t max = 0;
  for (int i = 0; i < instr->n_operands; i++)
    max = LADE_MAX(max, program->operands[instr->first_operand + i].bytes);
  return max;
}

/*
 * Return the bytes of the vector that ranks move together: the larger operand, or the shared part of a gradient in
 * place.
 */
static uint64_t collective_bytes(const struct lade_program *program, const struct lade_instr *instr)
{
  const struct lade_model_graph *graph = program->graph;
  if (instr->param < 0 || !lade_axis_has_parts((enum lade_axis)instr->axis))
    return largest_operand_bytes(program, instr);
  const struct lade_parts parts = lade_param_parts(graph, program->layout, instr->param);
  return (uint64_t)parts.n * lade_dtype_bytes(graph->accumulator);
}

int lade_program_group_end(const struct lade_program *program, int at)
{
  int end = at + 1;
  while (end < program->n_instrs && program->instrs[end].is_grouped)
    end++;
  return end;
}

void lade_program_comm_groups(const struct lade_program *program, int *ret_n_groups)
{
  memset(ret_n_groups, 0, LADE_N_AXES * sizeof(*ret_n_groups));
  for (int i = 0; i < program->n_instrs; i++) {
    const struct lade_instr *instr = &program->instrs[i];
    ret_n_groups[instr->axis] += (instr->kind == LADE_INSTR_COLLECTIVE && !instr->is_grouped) ||
                                  instr->kind == LADE_INSTR_SEND;
  }
}

static const struct lade_transfer_price *collective_price(const struct lade_build_params *params,
                                                          enum lade_collective_kind kind, enum lade_axis axis)
{
  return kind == LADE_ALL_REDUCE ? &params->prices->comm_sum[axis] : &params->prices->comm[axis];
}

/*
 * Return the bytes of a bucket. V bytes go in groups of B, each with a latency of L, and a byte takes s. Latencies are
 * L V/B in all. No compute overlaps the last group, which takes s B. The sum is least for B = sqrt(V L/s).
 */
uint64_t plan_bucket_bytes(const struct lade_build_params *params, enum lade_axis axis)
{
  const struct lade_model_graph *graph = params->graph;
  const struct lade_transfer_price *price = &params->prices->comm[axis];
  const int size = lade_layout_size(params->layout, axis);
  const double byte_ns = price->ns_per_byte * (size - 1) / size;
  if (size == 1)
    return 0;
  double bytes = 0;
  for (int param = 0; param < graph->n_params; param++)
    bytes += (double)lade_held_bytes(graph, params->layout, graph->params[param].tensor);
  double best = byte_ns > 0 ? sqrt(bytes * (double)price->latency_ns / byte_ns) : bytes;
  return (uint64_t)best;
}

int64_t plan_collective_ns(const struct lade_build_params *params, enum lade_collective_kind kind, enum lade_axis axis,
                           uint64_t bytes)
{
  const struct lade_transfer_price *price = collective_price(params, kind, axis);
  uint64_t sent = collective_sent_bytes(kind, bytes, lade_layout_size(params->layout, axis));
  return (int64_t)lade_transfer_ns(price, 1, (double)sent);
}

void lade_program_comm_traffic(const struct lade_program *program, uint64_t *ret_sent_bytes)
{
  memset(ret_sent_bytes, 0, LADE_N_AXES * sizeof(*ret_sent_bytes));
  for (int i = 0; i < program->n_instrs; i++) {
    const struct lade_instr *instr = &program->instrs[i];
    if (instr->kind == LADE_INSTR_SEND)
      ret_sent_bytes[instr->axis] += largest_operand_bytes(program, instr);
    else if (instr->kind == LADE_INSTR_COLLECTIVE)
      ret_sent_bytes[instr->axis] += collective_sent_bytes((enum lade_collective_kind)instr->collective,
                                                           collective_bytes(program, instr),
                                                           lade_layout_size(program->layout,
                                                                            (enum lade_axis)instr->axis));
  }
}

uint64_t lade_program_forward_gathers(const struct lade_program *program)
{
  const int size = lade_layout_size(program->layout, LADE_AXIS_SHARD);
  uint64_t bytes = 0;
  for (int i = 0; i < program->n_instrs; i++) {
    const struct lade_instr *instr = &program->instrs[i];
    if (instr->kind != LADE_INSTR_COLLECTIVE || instr->axis != LADE_AXIS_SHARD)
      continue;
    if (instr->collective != LADE_ALL_GATHER)
      break; /* the first gradient leaves */
    bytes += collective_sent_bytes(LADE_ALL_GATHER, collective_bytes(program, instr), size);
  }
  return bytes;
}

void lade_program_store_traffic(const struct lade_program *program, uint64_t *ret_read_bytes,
                                uint64_t *ret_written_bytes)
{
  *ret_read_bytes = *ret_written_bytes = 0;
  for (int i = 0; i < program->n_operands; i++) {
    const struct lade_operand *operand = &program->operands[i];
    if (program->buffers[operand->buffer].space != LADE_STORE)
      continue;
    *ret_read_bytes += operand->access & LADE_READS ? operand->bytes : 0;
    *ret_written_bytes += operand->access & LADE_MAKES ? operand->bytes : 0;
  }
}
