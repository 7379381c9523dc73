/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The proof's second part: space. A sweep over the list takes buffers in and out of a set of live ones, ordered by
 * offset. While no two of them overlap, a new one can only overlap its neighbours, so two comparisons per arrival are
 * enough. The first overlap ends the proof. The most bytes ever in the set are the live peak. Offsets are ranked by one
 * sort per space, and the set is a bitset over ranks: O(n log n).
 */
#include <stdlib.h>

#include "base/ordered_bitset.h"
#include "program/proof/proof.h"

struct space_sweep {
  enum lade_space space;
  int n;             /* buffers of the space */
  int32_t *by_rank;  /* buffers, ascending by offset */
  int32_t *rank;     /* by buffer of the program */
  int32_t *arrivals; /* by instruction: first buffer that begins there; -1 */
  int32_t *departures;
  int32_t *next_arrival, *next_departure; /* by buffer: links of the two lists above */
  struct ordered_bitset live;  /* ranks */
};

struct ranked {
  uint64_t offset;
  int32_t buffer;
};

static int ranked_compare(const void *x, const void *y)
{
  const struct ranked *a = x, *b = y;
  if (a->offset != b->offset)
    return a->offset < b->offset ? -1 : 1;
  return (a->buffer > b->buffer) - (a->buffer < b->buffer);
}

static int ranks_make(const struct lade_program *program, struct space_sweep *sweep)
{
  struct ranked *sorted = calloc((size_t)program->n_buffers + 1, sizeof(*sorted));
  if (!sorted)
    return -ENOMEM;
  for (int i = 0; i < program->n_buffers; i++) {
    if (program->buffers[i].space == sweep->space)
      sorted[sweep->n++] = (struct ranked){program->buffers[i].offset, i};
  }
  qsort(sorted, (size_t)sweep->n, sizeof(*sorted), ranked_compare);
  for (int k = 0; k < sweep->n; k++) {
    sweep->by_rank[k] = sorted[k].buffer;
    sweep->rank[sorted[k].buffer] = k;
  }
  free(sorted);
  return 0;
}

static void boundaries_index(const struct lade_program *program, struct space_sweep *sweep)
{
  for (int at = 0; at <= program->n_instrs; at++)
    sweep->arrivals[at] = sweep->departures[at] = -1;
  for (int k = 0; k < sweep->n; k++) {
    int i = sweep->by_rank[k], first = program->buffers[i].first, end = program->buffers[i].last + 1;
    sweep->next_arrival[i] = sweep->arrivals[first];
    sweep->arrivals[first] = i;
    sweep->next_departure[i] = sweep->departures[end];
    sweep->departures[end] = i;
  }
}

static int overlap_fail(const struct proof *proof, int at, int a, int b)
{
  const struct lade_buffer *x = &proof->program->buffers[a], *y = &proof->program->buffers[b];
  return proof_fail(proof, at, -1, "buffers %d (%llu bytes at %llu) and %d (%llu bytes at %llu) overlap in %s", a,
                    (unsigned long long)x->bytes, (unsigned long long)x->offset, b, (unsigned long long)y->bytes,
                    (unsigned long long)y->offset, lade_space_name(x->space));
}

/* Take buffer @i into the live set at instruction @at. */
static int buffer_arrive(const struct proof *proof, struct space_sweep *sweep, int at, int i)
{
  const struct lade_buffer *buffers = proof->program->buffers, *buffer = &buffers[i];
  int below = ordered_bitset_prev(&sweep->live, sweep->rank[i]), above =
      ordered_bitset_next(&sweep->live, sweep->rank[i]);
  if (below >= 0) {
    const struct lade_buffer *other = &buffers[sweep->by_rank[below]];
    if (other->offset + other->bytes > buffer->offset)
      return overlap_fail(proof, at, sweep->by_rank[below], i);
  }
  if (above >= 0 && buffer->offset + buffer->bytes > buffers[sweep->by_rank[above]].offset)
    return overlap_fail(proof, at, i, sweep->by_rank[above]);
  ordered_bitset_set(&sweep->live, sweep->rank[i]);
  return 0;
}

static int sweep_run(const struct proof *proof, struct space_sweep *sweep)
{
  const struct lade_program *program = proof->program;
  uint64_t live_bytes = 0, max_bytes = 0;
  for (int at = 0; at < program->n_instrs; at++) {
    for (int i = sweep->departures[at]; i >= 0; i = sweep->next_departure[i]) {
      ordered_bitset_clear(&sweep->live, sweep->rank[i]);
      live_bytes -= program->buffers[i].bytes;
    }
    for (int i = sweep->arrivals[at]; i >= 0; i = sweep->next_arrival[i]) {
      int status = buffer_arrive(proof, sweep, at, i);
      if (status)
        return status;
      live_bytes += program->buffers[i].bytes;
    }
    max_bytes = LADE_MAX(max_bytes, live_bytes);
  }
  if (max_bytes != program->live_peak_bytes[sweep->space])
    return proof_fail_all(proof, "%s: %llu bytes live at once: stated are %llu", lade_space_name(sweep->space),
                          (unsigned long long)max_bytes, (unsigned long long)program->live_peak_bytes[sweep->space]);
  return 0;
}

static int sweep_make(const struct proof *proof, struct space_sweep *sweep)
{
  const struct lade_program *program = proof->program;
  size_t n_buffers = (size_t)program->n_buffers + 1, n_instrs = (size_t)program->n_instrs + 1;
  sweep->by_rank = malloc(n_buffers * sizeof(*sweep->by_rank));
  sweep->rank = malloc(n_buffers * sizeof(*sweep->rank));
  sweep->next_arrival = malloc(n_buffers * sizeof(*sweep->next_arrival));
  sweep->next_departure = malloc(n_buffers * sizeof(*sweep->next_departure));
  sweep->arrivals = malloc(n_instrs * sizeof(*sweep->arrivals));
  sweep->departures = malloc(n_instrs * sizeof(*sweep->departures));
  if (!sweep->by_rank || !sweep->rank || !sweep->next_arrival || !sweep->next_departure || !sweep->arrivals ||
      !sweep->departures || ranks_make(program, sweep))
    return -ENOMEM;
  boundaries_index(program, sweep);
  return ordered_bitset_init(&sweep->live, sweep->n);
}

static void sweep_finish(struct space_sweep *sweep)
{
  free(sweep->by_rank);
  free(sweep->rank);
  free(sweep->next_arrival);
  free(sweep->next_departure);
  free(sweep->arrivals);
  free(sweep->departures);
  ordered_bitset_finish(&sweep->live);
}

/*
 * Check that the stated numbers of a space agree with each other and with the budget. Form has shown that buffers end
 * below the peak.
 */
static int totals_check(const struct proof *proof, enum lade_space space, uint64_t budget_bytes)
{
  const struct lade_program *program = proof->program;
  uint64_t peak = program->peak_bytes[space], owned = 0;
  if (peak > budget_bytes)
    return proof_fail_all(proof, "%s: the peak of %llu bytes is past the budget of %llu", lade_space_name(space),
                          (unsigned long long)peak, (unsigned long long)budget_bytes);
  for (int owner = 0; owner < LADE_N_OWNERS; owner++) {
    if (program->owner_bytes[space][owner] > peak - owned)
      return proof_fail_all(proof, "%s: owners hold more than the peak of %llu bytes", lade_space_name(space),
                            (unsigned long long)peak);
    owned += program->owner_bytes[space][owner];
  }
  if (owned != peak)
    return proof_fail_all(proof, "%s: owners hold %llu bytes of a peak of %llu", lade_space_name(space),
                          (unsigned long long)owned, (unsigned long long)peak);
  return 0;
}

int proof_space(struct proof *proof, const uint64_t *budget_bytes)
{
  int status = 0;
  for (int space = 0; space < LADE_N_SPACES && !status; space++) {
    struct space_sweep sweep = {.space = (enum lade_space)space};
    status = totals_check(proof, sweep.space, budget_bytes[space]);
    if (!status)
      status = sweep_make(proof, &sweep);
    if (!status)
      status = sweep_run(proof, &sweep);
    sweep_finish(&sweep);
  }
  return status;
}

/* Check the step block's buffer: a resident of @space with room for it, which no instruction touches. */
static int step_block_check(const struct proof *proof, int32_t i, enum lade_space space)
{
  const struct lade_program *program = proof->program;
  const struct lade_buffer *buffer = i >= 0 && i < program->n_buffers ? &program->buffers[i] : NULL;
  if (!buffer || buffer->space != space || !buffer->is_resident ||
      buffer->bytes < sizeof(struct lade_step))
    return proof_fail_all(proof, "buffer %d is no place for the step block in %s", i, lade_space_name(space));
  for (int at = 0; at < program->n_operands; at++) {
    if (program->operands[at].buffer == i)
      return proof_fail_all(proof, "buffer %d in %s is for the step block, but operand %d is there", i,
                            lade_space_name(space), at);
  }
  return 0;
}

int proof_buffers(const struct proof *proof)
{
  const struct lade_program *program = proof->program;
  for (int i = 0; i < program->n_buffers; i++) {
    const struct lade_buffer *buffer = &program->buffers[i];
    if ((unsigned)buffer->space >= LADE_N_SPACES || (unsigned)buffer->owner >= LADE_N_OWNERS)
      return proof_fail_all(proof, "buffer %d: space %d and owner %d: no such", i, (int)buffer->space,
                            (int)buffer->owner);
    const char *space = lade_space_name(buffer->space);
    uint64_t align = buffer->space == LADE_STORE ? LADE_STORE_ALIGN : LADE_BUFFER_ALIGN;
    if (buffer->bytes == 0 || buffer->bytes % align || buffer->offset % align)
      return proof_fail_all(proof, "buffer %d in %s: offset %llu and size %llu: expected multiples of %llu", i, space,
                            (unsigned long long)buffer->offset, (unsigned long long)buffer->bytes,
                            (unsigned long long)align);
    uint64_t peak = program->peak_bytes[buffer->space];
    if (buffer->offset > peak || buffer->bytes > peak - buffer->offset)
      return proof_fail_all(proof, "buffer %d in %s: ends past the stated peak of %llu bytes", i, space,
                            (unsigned long long)peak);
    if (buffer->first < 0 || buffer->first > buffer->last || buffer->last >= program->n_instrs)
      return proof_fail_all(proof, "buffer %d in %s: lifetime from %d to %d of %d instructions", i, space,
                            buffer->first, buffer->last, program->n_instrs);
    if (buffer->is_resident && (buffer->first != 0 || buffer->last != program->n_instrs - 1))
      return proof_fail_all(proof, "buffer %d in %s: resident, but lives from %d to %d only", i, space, buffer->first,
                            buffer->last);
  }
  if (program->is_unified || !proof->graph)
    return 0;
  int status = step_block_check(proof, program->step_on_host, LADE_HOST);
  return status ? status : step_block_check(proof, program->step_on_device, LADE_DEVICE);
}
