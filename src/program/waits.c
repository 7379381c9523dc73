/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Derive waits between queues, from addresses alone.
 *
 * Each space is cut at every operand's ends into segments; a segment remembers its last writer and, per queue, its last
 * reader. An instruction that reads a segment depends on the writer. An instruction that writes it depends on the
 * writer and on all readers since. This one rule covers values not yet made, values still being read, and addresses
 * that another buffer had before. Dependencies within a queue cost nothing.
 *
 * Reduction: each instruction carries a vector clock, per queue the last instruction known to be done before it starts.
 * At most one dependency per queue matters: the latest. Those already implied by the queue's previous instruction or by
 * another wait are dropped. They are tried latest first, because a later instruction's clock implies more.
 *
 * A group of collectives begins at once: its first instruction waits for all dependencies of its members.
 *
 * Consecutive compute instructions without a wait between them, on either side, are then members of one CUDA graph
 * (program.h): a GPU can be given all at once, and no instruction begins later than it could.
 *
 * O(operands * segments spanned + instructions * queues^2); a segment is never smaller than an operand's page.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "program/build.h"

struct range {
  uint64_t start, end;
};

struct access_segment {
  int32_t writer;
  int32_t readers[LADE_N_QUEUES];
};

struct space_map {
  uint64_t *cuts; /* sorted, distinct */
  int n_cuts;
  struct access_segment *segments; /* between cuts i and i+1 */
};

/* The segments of all spaces. */
struct address_map {
  struct space_map spaces[LADE_N_SPACES];
  int32_t *buffer_cuts; /* by buffer: number of the cut where it begins; -1: not looked up yet */
};

struct clock {
  int32_t known[LADE_N_QUEUES];
};

static uint64_t range_start(const struct lade_program *program, const struct lade_operand *operand)
{
  return program->buffers[operand->buffer].offset + operand->offset;
}

/*
 * Return the end of an operand's range. Drives write whole pages of memory: a read also overwrites the bytes behind a
 * value in its last page.
 */
static uint64_t range_end(const struct lade_program *program, const struct lade_instr *instr,
                          const struct lade_operand *operand)
{
  uint64_t end = range_start(program, operand) + operand->bytes;
  bool is_page = instr->kind == LADE_INSTR_READ && (operand->access & LADE_MAKES);
  return is_page ? lade_align_up(end, LADE_BUFFER_ALIGN) : end;
}

static int u64_compare(const void *x, const void *y)
{
  uint64_t a = *(const uint64_t *)x, b = *(const uint64_t *)y;
  return (a > b) - (a < b);
}

/*
 * Collect both ends of every operand into the cuts of its space. Most operands cover their whole buffer, as the operand
 * before did: ends equal to those of the buffer's @latest operand are left out.
 */
static void cuts_collect(const struct lade_program *program, struct range *latest, struct space_map *spaces)
{
  for (int at = 0; at < program->n_instrs; at++) {
    const struct lade_instr *instr = &program->instrs[at];
    for (int i = 0; i < instr->n_operands; i++) {
      const struct lade_operand *operand = &program->operands[instr->first_operand + i];
      const struct range range = {range_start(program, operand), range_end(program, instr, operand)};
      struct range *before = &latest[operand->buffer];
      struct space_map *map = &spaces[program->buffers[operand->buffer].space];
      if (range.start == before->start && range.end == before->end)
        continue;
      map->cuts[map->n_cuts++] = range.start;
      map->cuts[map->n_cuts++] = range.end;
      *before = range;
    }
  }
}

/* Sort the cuts of a space, and make its segments, without accesses so far. */
static int space_map_fill(struct space_map *map)
{
  const int n = map->n_cuts;
  map->n_cuts = 0;
  qsort(map->cuts, (size_t)n, sizeof(*map->cuts), u64_compare);
  for (int i = 0; i < n; i++) {
    if (map->n_cuts == 0 || map->cuts[map->n_cuts - 1] != map->cuts[i])
      map->cuts[map->n_cuts++] = map->cuts[i];
  }
  map->segments = malloc(((size_t)map->n_cuts + 1) * sizeof(*map->segments));
  if (!map->segments)
    return -ENOMEM;
  memset(map->segments, -1, ((size_t)map->n_cuts + 1) * sizeof(*map->segments));
  return 0;
}

static int address_map_init(struct address_map *map, const struct lade_program *program)
{
  struct range *latest = calloc((size_t)program->n_buffers + 1, sizeof(*latest));
  const size_t n_buffers = (size_t)program->n_buffers + 1;
  int status = latest ? 0 : -ENOMEM;
  *map = (struct address_map){.buffer_cuts = malloc(n_buffers * sizeof(*map->buffer_cuts))};
  if (map->buffer_cuts)
    memset(map->buffer_cuts, -1, n_buffers * sizeof(*map->buffer_cuts));
  else
    status = -ENOMEM;
  for (int space = 0; space < LADE_N_SPACES && !status; space++) {
    map->spaces[space].cuts = malloc(((size_t)program->n_operands * 2 + 1) * sizeof(*map->spaces[space].cuts));
    status = map->spaces[space].cuts ? 0 : -ENOMEM;
  }
  if (!status)
    cuts_collect(program, latest, map->spaces);
  free(latest);
  for (int space = 0; space < LADE_N_SPACES && !status; space++)
    status = space_map_fill(&map->spaces[space]);
  return status;
}

static void address_map_finish(struct address_map *map)
{
  for (int space = 0; space < LADE_N_SPACES; space++) {
    free(map->spaces[space].cuts);
    free(map->spaces[space].segments);
  }
  free(map->buffer_cuts);
}

static int cut_find(const struct space_map *map, uint64_t at)
{
  int lo = 0, hi = map->n_cuts - 1;
  while (lo < hi) {
    int mid = lo + (hi - lo) / 2;
    if (map->cuts[mid] < at)
      lo = mid + 1;
    else
      hi = mid;
  }
  return lo;
}

/* Return the number of the cut where @operand begins. Most begin where their buffer does, which is looked up once. */
static int operand_cut(struct address_map *map, const struct lade_program *program, const struct lade_operand *operand)
{
  const struct space_map *space = &map->spaces[program->buffers[operand->buffer].space];
  int32_t *cut = &map->buffer_cuts[operand->buffer];
  if (operand->offset)
    return cut_find(space, range_start(program, operand));
  if (*cut < 0)
    *cut = cut_find(space, range_start(program, operand));
  return *cut;
}

static void later(int32_t *latest, int32_t instr)
{
  if (instr > *latest)
    *latest = instr;
}

/* Raise @needs by the dependencies of @operand of instruction @at, and record its own access. */
static void operand_visit(struct address_map *addresses, const struct lade_program *program, int at,
                          const struct lade_operand *operand, int32_t *needs)
{
  const uint64_t end = range_end(program, &program->instrs[at], operand);
  struct space_map *map = &addresses->spaces[program->buffers[operand->buffer].space];
  for (int i = operand_cut(addresses, program, operand); i < map->n_cuts && map->cuts[i] < end; i++) {
    struct access_segment *segment = &map->segments[i];
    if (segment->writer >= 0 && segment->writer != at)
      later(&needs[program->instrs[segment->writer].queue], segment->writer);
    if (!(operand->access & LADE_MAKES)) {
      segment->readers[program->instrs[at].queue] = at;
      continue;
    }
    for (int q = 0; q < LADE_N_QUEUES; q++) {
      if (segment->readers[q] >= 0 && segment->readers[q] != at)
        later(&needs[q], segment->readers[q]);
      segment->readers[q] = -1;
    }
    segment->writer = at;
  }
}

/* Visit all operands of instruction @at, which has no waits so far. */
static void instr_visit(struct address_map *map, struct lade_program *program, int at, int32_t *needs)
{
  struct lade_instr *instr = &program->instrs[at];
  memset(instr->waits, -1, sizeof(instr->waits));
  for (int i = 0; i < instr->n_operands; i++)
    operand_visit(map, program, at, &program->operands[instr->first_operand + i], needs);
}

static void clock_join(struct clock *clock, const struct clock *other)
{
  for (int q = 0; q < LADE_N_QUEUES; q++)
    later(&clock->known[q], other->known[q]);
}

/* Turn dependencies into waits: the latest first, without those that are already implied. */
static void waits_reduce(struct lade_instr *instr, int32_t *needs, struct clock *now, const struct clock *clocks)
{
  needs[instr->queue] = -1;
  for (;;) {
    int pick = -1;
    for (int q = 0; q < LADE_N_QUEUES; q++) {
      if (needs[q] > now->known[q] && (pick < 0 || needs[q] > needs[pick]))
        pick = q;
    }
    if (pick < 0)
      return;
    instr->waits[pick] = needs[pick];
    later(&now->known[pick], needs[pick]);
    clock_join(now, &clocks[needs[pick]]);
  }
}

static bool has_waits(const struct lade_instr *instr)
{
  bool has = false;
  for (int q = 0; q < LADE_N_QUEUES; q++)
    has = has || instr->waits[q] >= 0;
  return has;
}

/* Mark members of CUDA graphs. pre: @is_awaited has room for a mark per instruction. */
static void graph_members_mark(struct lade_program *program, bool *is_awaited)
{
  int before = -1;
  for (int at = 0; at < program->n_instrs; at++) {
    is_awaited[at] = false; /* waits name earlier instructions only */
    for (int q = 0; q < LADE_N_QUEUES; q++) {
      if (program->instrs[at].waits[q] >= 0)
        is_awaited[program->instrs[at].waits[q]] = true;
    }
  }
  for (int at = 0; at < program->n_instrs; at++) {
    struct lade_instr *instr = &program->instrs[at];
    const bool is_compute = instr->queue == LADE_Q_COMPUTE;
    instr->is_graph_member = is_compute && before >= 0 && !is_awaited[before] && !has_waits(instr);
    before = is_compute ? at : before;
  }
}

int lade_program_order(struct lade_program *program)
{
  struct address_map map;
  struct clock *clocks = malloc(((size_t)program->n_instrs + 1) * sizeof(*clocks));
  int last[LADE_N_QUEUES], status = address_map_init(&map, program);
  if (!clocks)
    status = -ENOMEM;
  memset(last, -1, sizeof(last));
  for (int at = 0; at < program->n_instrs && !status;) { /* group by group */
    struct lade_instr *instr = &program->instrs[at];
    int32_t needs[LADE_N_QUEUES];
    const int end = lade_program_group_end(program, at);
    memset(needs, -1, sizeof(needs));
    for (int member = at; member < end; member++)
      instr_visit(&map, program, member, needs);
    struct clock now;
    memset(&now, -1, sizeof(now));
    if (last[instr->queue] >= 0)
      now = clocks[last[instr->queue]];
    waits_reduce(instr, needs, &now, clocks);
    for (; at < end; at++) {
      now.known[instr->queue] = at;
      clocks[at] = now;
    }
    last[instr->queue] = end - 1;
  }
  if (!status) /* clocks are no longer needed, and are larger than the marks */
    graph_members_mark(program, (bool *)clocks);
  address_map_finish(&map);
  free(clocks);
  return status;
}
