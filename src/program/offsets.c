/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Placement: offsets for a program's buffers, the resulting peaks, and bytes by owner.
 *
 * Each space is packed by itself: a buffer is a rectangle, as wide as its lifetime in list positions and as high as its
 * bytes. Buffers that another program over the same arena has already placed keep their offsets: the evaluation keeps
 * the residents of training. Resident buffers in the store come first, one after another. Their lifetimes overlap every
 * other one, so this costs no bytes, and the offsets of durable state depend on the graph alone.
 *
 * In a caller's own step given storages come first in every space. All of them are present at the start of a step, so
 * this costs no bytes there. Given storages that leave the device for a while follow those that stay, so that the bytes
 * that they free are one range. Such a storage has one buffer at the start of the list and one at its end; both get one
 * offset.
 *
 * Effort beyond the fast pass is spent on the device alone, because its bytes are the scarce ones.
 *
 * Owners are counted at the instruction of the live peak. Bytes that the packer and the rounding to whole chunks add
 * are fragmentation, so the owners sum to the peak.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "graph/graph.h"
#include "lade/pack.h"
#include "program/build.h"

/* Return the offset of buffer @i after those up to @next, and let them reach to its end. */
static int64_t stack(const struct lade_program *program, int i, uint64_t *next)
{
  const uint64_t offset = lade_align_up(*next, program->buffers[i].align);
  *next = offset + program->buffers[i].bytes;
  return (int64_t)offset;
}

/* Fill @fixed, by buffer: the offsets of given storages of @space in a caller's own step. */
static void given_stack(const struct lade_program *program, enum lade_space space, int64_t *fixed)
{
  uint64_t next = 0;
  for (int is_moved = 0; is_moved < 2; is_moved++) {
    for (int s = 0; s < program->step_graph->storages.n; s++) {
      const int32_t start = program->start_buffers[s], end = program->end_buffers[s];
      if (start < 0 || program->buffers[start].space != space || (start != end) != is_moved)
        continue;
      fixed[start] = fixed[end] = stack(program, start, &next);
    }
  }
}

static int items_fill(const struct lade_place_params *params, const struct lade_program *program,
                      enum lade_space space, const int64_t *fixed, struct lade_pack_item *items)
{
  int n = 0;
  uint64_t next = 0;
  for (int i = 0; i < program->n_buffers; i++) {
    const struct lade_buffer *buffer = &program->buffers[i];
    if (buffer->space != space)
      continue;
    bool is_fixed = params->residents && buffer->is_resident;
    bool is_state = space == LADE_STORE && buffer->is_resident && !program->step_graph;
    LADE_ASSERT(!is_fixed || params->residents->buffers[i].bytes == buffer->bytes);
    items[n++] = (struct lade_pack_item){
        .lower = buffer->first, .upper = buffer->last + 1, .bytes = buffer->bytes, .align = buffer->align,
        .fixed = is_fixed ? (int64_t)params->residents->buffers[i].offset
                          : is_state ? stack(program, i, &next) : fixed[i]};
  }
  return n;
}

static int space_pack(const struct lade_place_params *params, struct lade_program *program, enum lade_space space)
{
  struct lade_pack_item *items = calloc((size_t)program->n_buffers + 1, sizeof(*items));
  uint64_t *offsets = calloc((size_t)program->n_buffers + 1, sizeof(*offsets));
  int64_t *fixed = malloc(((size_t)program->n_buffers + 1) * sizeof(*fixed));
  struct lade_pack_params pack_params = {.struct_size = sizeof(pack_params),
                                         .work_limit = space == LADE_DEVICE ? params->pack_work_limit : 0};
  struct lade_pack_result result = {0};
  int status = items && offsets && fixed ? 0 : -ENOMEM;
  for (int i = 0; i < program->n_buffers && !status; i++)
    fixed[i] = -1;
  if (!status && program->step_graph)
    given_stack(program, space, fixed);
  int n = status ? 0 : items_fill(params, program, space, fixed, items);
  if (n)
    status = lade_packer_pack(params->packer, items, n, &pack_params, offsets, &result, NULL);
  for (int i = 0, k = 0; i < program->n_buffers && !status; i++) {
    if (program->buffers[i].space == space)
      program->buffers[i].offset = offsets[k++];
  }
  program->peak_bytes[space] = lade_align_up(result.peak_bytes, params->granule_bytes[space]);
  free(items);
  free(offsets);
  free(fixed);
  return status;
}

int plan_peaks_find(const struct lade_program *program, uint64_t ret_bytes[LADE_N_SPACES],
                    int32_t ret_at[LADE_N_SPACES])
{
  /* By instruction: bytes that begin to live before it, less those that end. */
  int64_t(*change)[LADE_N_SPACES] = calloc((size_t)program->n_instrs + 1, sizeof(*change));
  int64_t live[LADE_N_SPACES] = {0}, max[LADE_N_SPACES] = {0};
  if (!change)
    return -ENOMEM;
  memset(ret_at, 0, LADE_N_SPACES * sizeof(*ret_at));
  for (int i = 0; i < program->n_buffers; i++) {
    const struct lade_buffer *buffer = &program->buffers[i];
    change[buffer->first][buffer->space] += (int64_t)buffer->bytes;
    change[buffer->last + 1][buffer->space] -= (int64_t)buffer->bytes;
  }
  for (int i = 0; i < program->n_instrs; i++) {
    for (int space = 0; space < LADE_N_SPACES; space++) {
      live[space] += change[i][space];
      if (live[space] > max[space]) {
        max[space] = live[space];
        ret_at[space] = i;
      }
    }
  }
  for (int space = 0; space < LADE_N_SPACES; space++) {
    LADE_ASSERT(live[space] + change[program->n_instrs][space] == 0);
    ret_bytes[space] = (uint64_t)max[space];
  }
  free(change);
  return 0;
}

/*
 * Count the bytes of each owner at the instruction where the most bytes are live. The rest of the peak is
 * fragmentation.
 */
static void owners_count(struct lade_program *program, enum lade_space space)
{
  uint64_t *owners = program->owner_bytes[space];
  const uint64_t live_bytes = program->live_peak_bytes[space];
  const int at = program->live_peak_at[space];
  LADE_ASSERT(live_bytes <= program->peak_bytes[space]);
  memset(owners, 0, sizeof(program->owner_bytes[space]));
  for (int i = 0; i < program->n_buffers; i++) {
    const struct lade_buffer *buffer = &program->buffers[i];
    if (buffer->space == space && buffer->first <= at && at <= buffer->last)
      owners[buffer->owner] += buffer->bytes;
  }
  owners[LADE_OWNER_FRAGMENTATION] = program->peak_bytes[space] - live_bytes;
}

int lade_program_place_apart(const struct lade_build_params *params, struct lade_program *program)
{
  uint64_t next[LADE_N_SPACES] = {0};
  for (int i = 0; i < program->n_buffers; i++) {
    struct lade_buffer *buffer = &program->buffers[i];
    buffer->offset = next[buffer->space];
    next[buffer->space] += lade_align_up(buffer->bytes, LADE_BUFFER_ALIGN);
  }
  const int status = lade_program_order(program);
  return status ? status : lade_program_simulate(program, params->prices, NULL);
}

int lade_program_place_within(const struct lade_place_params *params, struct lade_program *program)
{
  int status = plan_peaks_find(program, program->live_peak_bytes, program->live_peak_at);
  for (int space = 0; space < LADE_N_SPACES && !status; space++) {
    status = space_pack(params, program, (enum lade_space)space);
    if (!status)
      owners_count(program, (enum lade_space)space);
    if (space == LADE_DEVICE && params->device_max_bytes && program->peak_bytes[space] > params->device_max_bytes)
      return status; /* of no use to its caller */
  }
  if (!status)
    status = lade_program_order(program);
  return status ? status : lade_program_simulate(program, params->prices, NULL);
}

int lade_program_place(const struct lade_build_params *params, struct lade_program *program)
{
  const struct lade_place_params place_params = {
      .granule_bytes = {params->chunk_bytes, params->chunk_bytes, LADE_STORE_ALIGN}, .residents = params->residents,
      .packer = params->packer, .pack_work_limit = params->pack_work_limit,
      .device_max_bytes = params->device_max_bytes, .prices = params->prices};
  return lade_program_place_within(&place_params, program);
}
