/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plan a chain by dynamic programming over its segments.
 *
 * A chain begins with ops, each of which reads only outputs of the op before it. Backward ops follow, which read the
 * outputs in reverse order: those of one op, and of the one before it. A stage is an op whose outputs a backward op
 * reads, with the ops before it of which none does. The plan of stages s .. t with m bytes, whose input is there, is
 * the better one of (Beaumont, Eyraud-Dubois, Herrmann, Joly, Shilova 2019; rotor):
 *
 *   save        run stage s, keep all its outputs for its backward ops, and plan s + 1 .. t with the rest of the bytes
 *   checkpoint  run stages s .. k - 1, keep the input of stage k alone, plan k .. t with the rest of the bytes, and
 *               then s .. k - 1 with all of them
 *
 * Values stay until they have been used (persistent plans). Bytes are counted in parts of the limit, rounded to the
 * nearest, unless one part divides all sizes. So the caller checks the schedule, and asks for a smaller share of the
 * limit if it is too large.
 *
 * O(stages^3 * parts) time, O(stages^2 * parts) bytes.
 */
#include "recompute/graph/chain.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define STAGES_MAX 200      /* the time grows with their cube */
#define STAGES_MIN 3        /* a shorter chain leaves nothing to choose */
#define PARTS_MAX 1000      /* of the limit, in which bytes are counted */
#define WORK_MAX 400000000  /* steps of the innermost loop */

struct chain_stage {
  int first_op, last_op;
  double run_ns;        /* of its ops */
  int input;            /* bytes, in parts, that the next stage reads */
  int saved;            /* of outputs that backward ops or the next stage read */
  int run, backward;    /* more bytes, in parts, while its ops run; while its backward ops run, beside saved values */
  int gradient;         /* bytes, in parts, that are live when the backward ops of later stages have run */
  int first_turn, last_turn; /* its backward ops; first > last: it has none */
};

struct remat_chain {
  const struct remat_problem *problem;
  int n_ops, n_stages, n_parts; /* n_ops: forward ones */
  struct chain_stage stages[STAGES_MAX];
  float *cost;    /* by segment and parts: time of forward ops; infinite: does not fit */
  uint8_t *split; /* the choice: 0 saves stage s, k - s checkpoints the input of stage k */
  double part_bytes;
};

static size_t cell(const struct remat_chain *chain, int s, int t, int parts)
{
  return ((size_t)s * (size_t)chain->n_stages + (size_t)t) * (size_t)(chain->n_parts + 1) + (size_t)parts;
}

static int parts_of(const struct remat_chain *chain, uint64_t bytes)
{
  return (int)LADE_MIN(lround((double)bytes / chain->part_bytes), PARTS_MAX + 1);
}

/* ---- recognition ---- */

/* True if all values that @op reads are made by stage @stage. */
static bool reads_stage(const struct remat_problem *problem, int op, int stage)
{
  const struct remat_op *o = &problem->ops[op];
  for (int i = 0; i < o->n_in; i++) {
    if (problem->values[problem->edges[o->first_in + i].value].birth != stage)
      return false;
  }
  return true;
}

/* Count the ops from the first on of which each reads the one before it, and may run again. */
static int ops_count(const struct remat_problem *problem)
{
  int n = 0;
  while (n < problem->n_ops && n <= STAGES_MAX && reads_stage(problem, n, n - 1) && problem->ops[n].n_out &&
         (n == 0 || problem->ops[n].n_in) && problem->ops[n].redo_until >= 0)
    n++;
  return n;
}

/* Return the last op below @n whose outputs @op reads; -1: none; -2: it reads others than those and the one before. */
static int stage_find(const struct remat_problem *problem, int op, int n)
{
  const struct remat_op *o = &problem->ops[op];
  int max = -1;
  for (int i = 0; i < o->n_in; i++) {
    const int birth = problem->values[problem->edges[o->first_in + i].value].birth;
    max = birth < n ? LADE_MAX(max, birth) : max;
  }
  for (int i = 0; i < o->n_in; i++) {
    const int birth = problem->values[problem->edges[o->first_in + i].value].birth;
    if (birth < n && birth < max - 1)
      return -2;
  }
  return max;
}

/*
 * Assign backward ops to the first @n ops, and make the stages. Return false if they do not stand in reverse order.
 */
static bool stages_make(struct remat_chain *chain, int n)
{
  int32_t first_turn[STAGES_MAX], last_turn[STAGES_MAX], before = n - 1;
  for (int i = 0; i < n; i++) {
    first_turn[i] = INT32_MAX;
    last_turn[i] = -1;
  }
  for (int op = n; op < chain->problem->n_ops; op++) {
    const int found = stage_find(chain->problem, op, n), at = found == -1 ? before : found;
    if (at < 0 || at > before)
      return false;
    first_turn[at] = LADE_MIN(first_turn[at], op);
    last_turn[at] = op;
    before = at;
  }
  chain->n_ops = n;
  chain->n_stages = 0;
  for (int i = 0, first = 0; i < n; i++) {
    if (last_turn[i] < 0 && i + 1 < n)
      continue;
    chain->stages[chain->n_stages++] = (struct chain_stage){.first_op = first, .last_op = i,
                                                            .first_turn = first_turn[i], .last_turn = last_turn[i]};
    first = i + 1;
  }
  return chain->n_stages >= STAGES_MIN;
}

/* The last ops that read the one before them may be backward ops already: try fewer, too. */
static bool chain_recognize(struct remat_chain *chain)
{
  const struct remat_problem *problem = chain->problem;
  for (int v = 0; v < problem->n_values; v++) {
    if (problem->values[v].n_makers != 1 || problem->values[v].birth < 0)
      return false;
  }
  for (int n = LADE_MIN(ops_count(problem), STAGES_MAX); n >= STAGES_MIN && n > problem->n_ops / 4; n--) {
    if (stages_make(chain, n))
      return true;
  }
  return false;
}

/* ---- sizes ---- */

/* Return the bytes of operands of @op that no stage makes, and of its scratch. */
static uint64_t backward_bytes(const struct remat_chain *chain, int op)
{
  const struct remat_problem *problem = chain->problem;
  const struct remat_op *o = &problem->ops[op];
  uint64_t bytes = o->scratch_bytes;
  for (int i = 0; i < o->n_in + o->n_out; i++) {
    const struct remat_value *v = &problem->values[problem->edges[o->first_in + i].value];
    bytes += v->birth >= chain->n_ops ? v->bytes : 0;
  }
  for (int v = 0; v < problem->n_values; v++) { /* and those that wait for later ops */
    const struct remat_value *value = &problem->values[v];
    bool is_operand = value->birth == op || value->last_use == op;
    bytes += value->birth >= chain->n_ops && value->birth < op && value->last_use > op && !is_operand ? value->bytes
                                                                                                      : 0;
  }
  return bytes;
}

/* Return the bytes that are live before @turn and that no stage makes. */
static uint64_t gradient_bytes(const struct remat_chain *chain, int turn)
{
  uint64_t bytes = 0;
  for (int v = 0; v < chain->problem->n_values; v++) {
    const struct remat_value *value = &chain->problem->values[v];
    bytes += value->birth >= chain->n_ops && value->birth < turn && value->last_use >= turn ? value->bytes : 0;
  }
  return bytes;
}

/* Return the last turn of @first .. @last that reads @value; -1: none. */
static int last_reader(const struct remat_problem *problem, int value, int first, int last)
{
  for (int turn = last; turn >= first; turn--) {
    const struct remat_op *op = &problem->ops[turn];
    for (int i = 0; i < op->n_in; i++) {
      if (problem->edges[op->first_in + i].value == value)
        return turn;
    }
  }
  return -1;
}

/* True if the stage after that of @value reads it. */
static bool is_input(const struct remat_chain *chain, int stage, int value)
{
  const int op = chain->stages[stage].last_op + 1;
  return op < chain->n_ops && last_reader(chain->problem, value, op, op) == op;
}

static void stage_size(struct remat_chain *chain, int i)
{
  const struct remat_problem *problem = chain->problem;
  struct chain_stage *stage = &chain->stages[i];
  uint64_t input = 0, saved = 0, backward = 0, before = 0, max = 0; /* before: outputs of the op before, not saved */
  for (int at = stage->first_op; at <= stage->last_op; at++) {
    const struct remat_op *op = &problem->ops[at];
    uint64_t out = 0, out_saved = 0;
    for (int k = 0; k < op->n_out; k++) {
      const int value = problem->edges[op->first_out + k].value;
      const struct remat_value *v = &problem->values[value];
      input += is_input(chain, i, value) ? v->bytes : 0;
      out += v->bytes;
      out_saved += is_input(chain, i, value) || v->last_use >= chain->n_ops ? v->bytes : 0;
    }
    max = LADE_MAX(max, saved + before + out + op->scratch_bytes);
    saved += out_saved;
    before = out - out_saved;
    stage->run_ns += (double)op->ns;
  }
  for (int turn = stage->first_turn; turn <= stage->last_turn; turn++)
    backward = LADE_MAX(backward, backward_bytes(chain, turn));
  stage->input = parts_of(chain, input);
  stage->saved = parts_of(chain, saved);
  stage->run = parts_of(chain, max);
  stage->backward = parts_of(chain, backward);
  stage->gradient = stage->last_turn >= 0 ? parts_of(chain, gradient_bytes(chain, stage->first_turn)) : 0;
}

/* ---- the program ---- */

/* Return the parts that running stages @s .. @t - 1 for the input of @t takes. */
static int run_parts(const struct remat_chain *chain, int s, int t)
{
  int max = 0;
  for (int i = s; i < t; i++)
    max = LADE_MAX(max, chain->stages[i].run + (i > s ? chain->stages[i - 1].input : 0));
  return max;
}

static void save_try(struct remat_chain *chain, int s, int t)
{
  const struct chain_stage *stage = &chain->stages[s];
  const int gradient = chain->stages[t].gradient;
  const int min = LADE_MAX(stage->run + gradient, stage->saved + stage->backward);
  for (int m = LADE_MAX(min, stage->saved); m <= chain->n_parts; m++) {
    const float rest = s == t ? 0 : chain->cost[cell(chain, s + 1, t, m - stage->saved)];
    chain->cost[cell(chain, s, t, m)] = (float)stage->run_ns + rest;
  }
}

static void checkpoint_try(struct remat_chain *chain, int s, int t, int k)
{
  const int kept = chain->stages[k - 1].input, min = run_parts(chain, s, k) + chain->stages[t].gradient;
  float run_ns = 0;
  for (int i = s; i < k; i++)
    run_ns += (float)chain->stages[i].run_ns;
  float *cost = chain->cost + cell(chain, s, t, 0);
  uint8_t *split = chain->split + cell(chain, s, t, 0);
  const float *after = chain->cost + cell(chain, k, t, 0), *before = chain->cost + cell(chain, s, k - 1, 0);
  for (int m = LADE_MAX(min, kept); m <= chain->n_parts; m++) {
    const float ns = run_ns + after[m - kept] + before[m];
    split[m] = ns < cost[m] ? (uint8_t)(k - s) : split[m];
    cost[m] = LADE_MIN(ns, cost[m]);
  }
}

static void segments_solve(struct remat_chain *chain)
{
  const size_t n_cells = cell(chain, chain->n_stages - 1, chain->n_stages - 1, chain->n_parts) + 1;
  for (size_t i = 0; i < n_cells; i++)
    chain->cost[i] = INFINITY;
  for (int length = 0; length < chain->n_stages; length++) {
    for (int s = 0; s + length < chain->n_stages; s++) {
      save_try(chain, s, s + length);
      for (int k = s + 1; k <= s + length; k++)
        checkpoint_try(chain, s, s + length, k);
    }
  }
}

/* Return the greatest common divisor of all sizes; 0 if they are 0. */
static uint64_t sizes_divisor(const struct remat_problem *problem)
{
  uint64_t divisor = 0;
  for (int i = 0; i < problem->n_values + problem->n_ops; i++) {
    uint64_t bytes = i < problem->n_values ? problem->values[i].bytes
                                           : problem->ops[i - problem->n_values].scratch_bytes;
    while (bytes) {
      const uint64_t rest = divisor % bytes;
      divisor = bytes;
      bytes = rest;
    }
  }
  return divisor;
}

/* Choose the part of the limit in which bytes are counted: one that divides all sizes, if the effort allows it. */
static void parts_choose(struct remat_chain *chain, uint64_t limit_bytes)
{
  const double n = chain->n_stages, max = LADE_MIN((double)PARTS_MAX, WORK_MAX / (n * n * n / 6));
  const uint64_t divisor = sizes_divisor(chain->problem);
  bool is_exact = divisor && (double)(limit_bytes / divisor) <= max && limit_bytes >= divisor;
  chain->n_parts = is_exact ? (int)(limit_bytes / divisor) : (int)max;
  chain->part_bytes = is_exact ? (double)divisor : (double)limit_bytes / chain->n_parts;
}

int remat_chain_create(const struct remat_problem *problem, uint64_t limit_bytes, struct remat_chain **ret_chain)
{
  struct remat_chain *chain = calloc(1, sizeof(*chain));
  if (!chain)
    return -ENOMEM;
  chain->problem = problem;
  if (!limit_bytes || !chain_recognize(chain)) {
    remat_chain_destroy(chain);
    return -ENOENT;
  }
  parts_choose(chain, limit_bytes);
  const size_t n_cells = cell(chain, chain->n_stages - 1, chain->n_stages - 1, chain->n_parts) + 1;
  chain->cost = malloc(n_cells * sizeof(*chain->cost));
  chain->split = calloc(n_cells, sizeof(*chain->split));
  if (!chain->cost || !chain->split) {
    remat_chain_destroy(chain);
    return -ENOMEM;
  }
  for (int i = 0; i < chain->n_stages; i++)
    stage_size(chain, i);
  segments_solve(chain);
  *ret_chain = chain;
  return 0;
}

void remat_chain_destroy(struct remat_chain *chain)
{
  if (!chain)
    return;
  free(chain->cost);
  free(chain->split);
  free(chain);
}

/* ---- the plan ---- */

/*
 * Outputs of a stage that wait for later readers. They are made in turn @made, or in the turns of their ops if that is
 * -1; the next stage reads them last in turn @last_run.
 */
struct chain_retention {
  int32_t stage, made, last_run; /* last_run -1: the next stage does not run again */
  bool is_checkpoint; /* only the outputs that the next stage reads are held, up to that stage's own backward ops */
};

struct chain_walk {
  const struct remat_chain *chain;
  LADE_ARRAY(struct chain_retention) retained;
};

/* Return the turn at which the backward ops of stages @s .. @t begin; -1: they have none. */
static int backward_turn(const struct remat_chain *chain, int s, int t)
{
  for (int i = t; i >= s; i--) {
    if (chain->stages[i].last_turn >= 0)
      return chain->stages[i].first_turn;
  }
  return -1;
}

/*
 * Walk the plan of stages @s .. @t, whose ops run in @turn, or in their own turns if that is -1. Return the last turn
 * in which stage @s runs; -1: it does not.
 */
static int segment_walk(struct chain_walk *walk, int s, int t, int parts, int turn, int *status)
{
  const struct remat_chain *chain = walk->chain;
  if (s > t || *status || (turn >= 0 && backward_turn(chain, s, t) < 0))
    return -1;
  const int split = chain->split[cell(chain, s, t, parts)], k = s + split;
  struct chain_retention retention = {split ? k - 1 : s, turn, -1, split > 0};
  if (split)
    retention.last_run = segment_walk(walk, k, t, parts - chain->stages[k - 1].input, turn, status);
  else
    retention.last_run = segment_walk(walk, s + 1, t, parts - chain->stages[s].saved, turn, status);
  if (!*status && !LADE_PUSH(&walk->retained, retention))
    *status = -ENOMEM;
  const int again = split ? backward_turn(chain, s, k - 1) : -1;
  const int last_run = again < 0 ? -1 : segment_walk(walk, s, k - 1, parts, again, status);
  return LADE_MAX(turn < 0 ? chain->stages[s].first_op : turn, last_run);
}

/* Return the last turn for which @retention holds @value. */
static int retention_end(const struct remat_chain *chain, const struct chain_retention *retention, int value)
{
  const struct remat_problem *problem = chain->problem;
  const struct chain_stage *next = &chain->stages[retention->stage + 1]; /* if there is one */
  const int last_use = problem->values[value].last_use;
  if (!is_input(chain, retention->stage, value))
    return retention->is_checkpoint ? -1 : last_use;
  if (retention->is_checkpoint)
    return LADE_MAX(retention->last_run, last_reader(problem, value, next->first_turn, next->last_turn));
  return LADE_MAX(retention->last_run, last_use);
}

static int choice_compare(const void *x, const void *y)
{
  const struct remat_choice *a = x, *b = y;
  return a->value != b->value ? a->value - b->value : a->span.from - b->span.from;
}

/* Sort the choices, and join spans of one value that touch. */
static void choices_join(struct remat_choices *choices)
{
  int n = 0;
  if (choices->list.n)
    qsort(choices->list.items, (size_t)choices->list.n, sizeof(*choices->list.items), choice_compare);
  for (int i = 0; i < choices->list.n; i++) {
    struct remat_choice *last = n ? &choices->list.items[n - 1] : NULL;
    const struct remat_choice choice = choices->list.items[i];
    if (last && last->value == choice.value && choice.span.from <= last->span.to + 1)
      last->span.to = LADE_MAX(last->span.to, choice.span.to);
    else
      choices->list.items[n++] = choice;
  }
  choices->list.n = n;
}

/* Hold the retained outputs of stages, and all values that no stage makes. */
static int choices_make(const struct chain_walk *walk, struct remat_choices *choices)
{
  const struct remat_problem *problem = walk->chain->problem;
  choices->list.n = choices->waiting.n = 0;
  choices->is_saved = true;
  for (int i = 0; i < walk->retained.n; i++) {
    const struct chain_retention *retention = &walk->retained.items[i];
    const struct chain_stage *stage = &walk->chain->stages[retention->stage];
    for (int op = stage->first_op; op <= stage->last_op; op++) {
      const struct remat_edge *edges = problem->edges + problem->ops[op].first_out;
      for (int k = 0; k < problem->ops[op].n_out; k++) {
        const int value = edges[k].value, made = retention->made < 0 ? op : retention->made;
        const struct remat_choice choice = {value, {made + 1, retention_end(walk->chain, retention, value)}};
        if (choice.span.from <= choice.span.to && !LADE_PUSH(&choices->list, choice))
          return -ENOMEM;
      }
    }
  }
  for (int v = 0; v < problem->n_values; v++) {
    struct remat_choice choice = {v, remat_span_whole(problem, v)};
    bool is_forward = problem->values[v].birth < walk->chain->n_ops;
    if (is_forward) /* the first run of the next op reads it */
      choice.span.to = LADE_MIN(last_reader(problem, v, choice.span.from, choice.span.from), choice.span.to);
    if ((!is_forward || choice.span.from < walk->chain->n_ops) && choice.span.from <= choice.span.to &&
        !LADE_PUSH(&choices->list, choice))
      return -ENOMEM;
  }
  choices_join(choices);
  return 0;
}

int remat_chain_plan(const struct remat_chain *chain, double share, struct remat_choices *choices)
{
  struct chain_walk walk = {.chain = chain};
  const int parts = (int)(share * chain->n_parts), last = chain->n_stages - 1;
  int status = 0;
  if (isinf(chain->cost[cell(chain, 0, last, parts)]))
    return -ENOSPC;
  segment_walk(&walk, 0, last, parts, -1, &status);
  if (!status)
    status = choices_make(&walk, choices);
  LADE_ARRAY_FREE(&walk.retained);
  return status;
}
