/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Recounts: that live ranges and programs are whole, derived from their own lists alone.
 *
 * They are asserted at the end of the passes that make them, in builds with -Dchecks=full. So a broken list is found in
 * the pass that broke it. The proof would find it only in the finished program. Each recount is one pass over its lists
 * without memory of its own. The proof shows that the list computes the step; for that it needs the graph.
 */
#include "program/build.h"

/* ---- live ranges ---- */

/* True if the copies of @range lie outside of its steps, and exist exactly where it comes from or goes elsewhere. */
static bool range_is_valid(const struct live_range *range, int n_steps)
{
  if (range->first_pos < 0 || range->last_pos < range->first_pos || range->last_pos > n_steps)
    return false;
  if (range->held_pos < 0 || range->held_pos > range->first_pos)
    return false;
  if (range->source > PLAN_GATHERED || range->target >= LADE_N_SPACES)
    return false;
  if ((range->fetch_slot >= 0) != (range->source != LADE_DEVICE) ||
      (range->leave_slot >= 0) != (range->target != LADE_DEVICE))
    return false;
  return range->fetch_slot <= range->first_pos &&
         (range->leave_slot < 0 || (range->leave_slot > range->last_pos && range->leave_slot <= n_steps));
}

/* True if @next begins, with its copy in, after the end of @range, and after its copy out. */
static bool ranges_follow(const struct live_range *range, const struct live_range *next)
{
  const int32_t begin = next->fetch_slot >= 0 ? next->fetch_slot : next->held_pos;
  return next->first_pos > range->last_pos && begin > range->last_pos && begin >= range->leave_slot;
}

/* True if @reduction is summed after the step that completes it, and added before the next step that adds to it. */
static bool reduction_is_valid(const struct grad_reduction *reduction, int n_steps)
{
  return reduction->pos >= 0 && reduction->slot > reduction->pos && reduction->slot <= n_steps &&
         reduction->until > reduction->pos && reduction->source < LADE_N_SPACES && reduction->target < LADE_N_SPACES;
}

static bool reductions_are_valid(const struct live_ranges *live, int n_steps)
{
  for (int i = 0; i < live->n_reductions; i++) {
    const struct grad_reduction *reduction = &live->reductions[i], *before = reduction - 1;
    if (!reduction_is_valid(reduction, n_steps))
      return false;
    if (i && (before->slot > reduction->slot || (before->slot == reduction->slot && before->pos > reduction->pos)))
      return false;
  }
  return true;
}

bool live_ranges_are_valid(const struct live_ranges *live, int n_steps)
{
  if (live->first_range[0] != 0 || live->first_range[live->n_values] != live->n_ranges)
    return false;
  for (int value = 0; value < live->n_values; value++) {
    const int first = live->first_range[value], end = live->first_range[value + 1];
    if (first > end || end > live->n_ranges)
      return false;
    for (int i = first; i < end; i++) {
      if (live->ranges[i].value != value || !range_is_valid(&live->ranges[i], n_steps))
        return false;
      if (i > first && !ranges_follow(&live->ranges[i - 1], &live->ranges[i]))
        return false;
    }
  }
  return reductions_are_valid(live, n_steps);
}

/* ---- programs ---- */

/* True if instruction @at may use @operand: its buffer exists, lives there, and is as long as it says. */
static bool operand_is_valid(const struct lade_program *program, const struct lade_operand *operand, int at)
{
  if (operand->buffer < 0 || operand->buffer >= program->n_buffers)
    return false;
  const struct lade_buffer *buffer = &program->buffers[operand->buffer];
  return operand->access >= LADE_READS && operand->access <= LADE_READS_AND_MAKES && buffer->first <= at &&
         at <= buffer->last && operand->offset <= buffer->bytes && operand->bytes <= buffer->bytes - operand->offset;
}

/* True if each wait of instruction @at is for an earlier one of the queue that it names. */
static bool waits_are_valid(const struct lade_program *program, int at)
{
  for (int q = 0; q < LADE_N_QUEUES; q++) {
    const int32_t wait = program->instrs[at].waits[q];
    if (wait < -1 || wait >= at || (wait >= 0 && program->instrs[wait].queue != q))
      return false;
  }
  return true;
}

static bool instr_is_valid(const struct lade_program *program, int at)
{
  const struct lade_instr *instr = &program->instrs[at];
  if (instr->queue >= LADE_N_QUEUES || instr->n_operands > program->n_operands - instr->first_operand)
    return false;
  for (int i = 0; i < instr->n_operands; i++) {
    if (!operand_is_valid(program, &program->operands[instr->first_operand + i], at))
      return false;
  }
  return waits_are_valid(program, at);
}

/* True if @buffer lives within the list, and lies at an aligned offset below the peak of its space. */
static bool buffer_is_valid(const struct lade_program *program, const struct lade_buffer *buffer)
{
  if ((unsigned)buffer->space >= LADE_N_SPACES || (unsigned)buffer->owner >= LADE_N_OWNERS)
    return false;
  if (!buffer->align || buffer->first < 0 || buffer->last < buffer->first || buffer->last >= program->n_instrs)
    return false;
  if (buffer->is_resident && (buffer->first != 0 || buffer->last != program->n_instrs - 1))
    return false;
  const uint64_t granule = plan_space_align(buffer->space), peak = program->peak_bytes[buffer->space];
  return buffer->bytes > 0 && buffer->bytes % granule == 0 && buffer->align % granule == 0 &&
         buffer->offset % buffer->align == 0 && buffer->offset <= peak && buffer->bytes <= peak - buffer->offset;
}

/* True if no bound of @space is above its peak, and its owners' bytes sum to the peak. */
static bool peak_is_valid(const struct lade_program *program, enum lade_space space)
{
  uint64_t left = program->peak_bytes[space];
  if (program->live_peak_bytes[space] > left)
    return false;
  for (int owner = 0; owner < LADE_N_OWNERS; owner++) {
    if (program->owner_bytes[space][owner] > left)
      return false;
    left -= program->owner_bytes[space][owner];
  }
  return left == 0;
}

bool program_is_valid(const struct lade_program *program)
{
  int n_operands = 0;
  for (int at = 0; at < program->n_instrs; at++) {
    if (program->instrs[at].first_operand != n_operands || !instr_is_valid(program, at))
      return false;
    n_operands += program->instrs[at].n_operands;
  }
  for (int i = 0; i < program->n_buffers; i++) {
    if (!buffer_is_valid(program, &program->buffers[i]))
      return false;
  }
  for (int space = 0; space < LADE_N_SPACES; space++) {
    if (!peak_is_valid(program, (enum lade_space)space))
      return false;
  }
  return n_operands == program->n_operands;
}
