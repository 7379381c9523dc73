/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Placement: offsets for a program's buffers, the resulting peaks, and bytes by owner.
 *
 * Each space is packed by itself: a buffer is a rectangle, its lifetime in list positions wide and its bytes high.
 * Buffers that another program over the same arena has already placed keep their offsets: residents of training, when
 * the evaluation is placed. Resident buffers in the store stand first, one after another. They overlap every other
 * lifetime, so this costs no bytes, and the graph alone tells where durable state lies. In a caller's own step they do
 * so in every space, so that a large step has little left to pack.
 *
 * Effort beyond the fast pass is spent on the device alone, because its bytes are the scarce ones.
 *
 * Owners are counted at the instruction of the live peak. Bytes that the packer and the rounding to whole chunks add
 * are fragmentation, so the owners sum to the peak.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "lade/pack.h"
#include "program/build.h"

static int items_fill(const struct lade_place_params *params, const struct lade_program *program,
                      enum lade_space space, struct lade_pack_item *items)
{
  const bool is_stacked = space == LADE_STORE || program->step_graph;
  int n = 0;
  uint64_t next = 0;
  for (int i = 0; i < program->n_buffers; i++) {
    const struct lade_buffer *buffer = &program->buffers[i];
    if (buffer->space != space)
      continue;
    bool is_fixed = params->residents && buffer->is_resident, is_state = is_stacked && buffer->is_resident;
    LADE_ASSERT(!is_fixed || params->residents->buffers[i].bytes == buffer->bytes);
    next = is_state ? lade_align_up(next, buffer->align) : next;
    items[n++] = (struct lade_pack_item){
        .lower = buffer->first, .upper = buffer->last + 1, .bytes = buffer->bytes, .align = buffer->align,
        .fixed = is_fixed ? (int64_t)params->residents->buffers[i].offset : is_state ? (int64_t)next : -1};
    next += is_state ? buffer->bytes : 0;
  }
  return n;
}

static int space_pack(const struct lade_place_params *params, struct lade_program *program, enum lade_space space)
{
  struct lade_pack_item *items = calloc((size_t)program->n_buffers + 1, sizeof(*items));
  uint64_t *offsets = calloc((size_t)program->n_buffers + 1, sizeof(*offsets));
  struct lade_pack_params how = {.struct_size = sizeof(how),
                                 .work_limit = space == LADE_DEVICE ? params->pack_work_limit : 0};
  struct lade_pack_result result = {0};
  int status = items && offsets ? 0 : -ENOMEM;
  int n = status ? 0 : items_fill(params, program, space, items);
  if (n)
    status = lade_packer_pack(params->packer, items, n, &how, offsets, &result, NULL);
  for (int i = 0, k = 0; i < program->n_buffers && !status; i++) {
    if (program->buffers[i].space == space)
      program->buffers[i].offset = offsets[k++];
  }
  program->peak_bytes[space] = lade_align_up(result.peak_bytes, params->granule_bytes[space]);
  free(items);
  free(offsets);
  return status;
}

int plan_peak_find(const struct lade_program *program, enum lade_space space, int *ret_at, uint64_t *ret_bytes)
{
  int64_t *change = calloc((size_t)program->n_instrs + 1, sizeof(*change)), live = 0, most = 0;
  int at = 0;
  if (!change)
    return -ENOMEM;
  for (int i = 0; i < program->n_buffers; i++) {
    const struct lade_buffer *buffer = &program->buffers[i];
    if (buffer->space != space)
      continue;
    change[buffer->first] += (int64_t)buffer->bytes;
    change[buffer->last + 1] -= (int64_t)buffer->bytes;
  }
  for (int i = 0; i < program->n_instrs; i++) {
    live += change[i];
    if (live > most) {
      most = live;
      at = i;
    }
  }
  LADE_ASSERT(live + change[program->n_instrs] == 0);
  free(change);
  *ret_at = at;
  *ret_bytes = (uint64_t)most;
  return 0;
}

/*
 * Count the bytes of each owner at the instruction where the most bytes are live. The rest of the peak is
 * fragmentation.
 */
static int owners_count(struct lade_program *program, enum lade_space space)
{
  uint64_t *owners = program->owner_bytes[space], live_bytes = 0;
  int at = 0, status = plan_peak_find(program, space, &at, &live_bytes);
  if (status)
    return status;
  LADE_ASSERT(live_bytes <= program->peak_bytes[space]);
  memset(owners, 0, sizeof(program->owner_bytes[space]));
  for (int i = 0; i < program->n_buffers; i++) {
    const struct lade_buffer *buffer = &program->buffers[i];
    if (buffer->space == space && buffer->first <= at && at <= buffer->last)
      owners[buffer->owner] += buffer->bytes;
  }
  program->live_peak_bytes[space] = live_bytes;
  owners[LADE_OWNER_FRAGMENTATION] = program->peak_bytes[space] - live_bytes;
  return 0;
}

int lade_program_place_within(const struct lade_place_params *params, struct lade_program *program)
{
  int status = 0;
  for (int space = 0; space < LADE_N_SPACES && !status; space++) {
    status = space_pack(params, program, (enum lade_space)space);
    if (!status)
      status = owners_count(program, (enum lade_space)space);
  }
  if (!status)
    status = lade_program_order(program);
  return status ? status : lade_program_simulate(program, params->prices, NULL);
}

int lade_program_place(const struct lade_build_params *params, struct lade_program *program)
{
  const struct lade_place_params how = {
      .granule_bytes = {params->chunk_bytes, params->chunk_bytes, LADE_STORE_ALIGN}, .residents = params->residents,
      .packer = params->packer, .pack_work_limit = params->pack_work_limit, .prices = params->prices};
  return lade_program_place_within(&how, program);
}
