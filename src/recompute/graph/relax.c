/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bound the time of a step from below, by a price for each byte in each turn.
 *
 * A gap lies between two uses of a value. Either the value is on the device in all turns of the gap, or it is absent in
 * one of them. Then an op makes it again, or a transfer brings it back, within the gap. Gaps of one value do not
 * overlap, so each takes a run or a transfer of its own. For any prices per byte and turn that are not negative,
 *
 *   sum over turns of price * (need - limit) + sum over gaps of min(0, cost - bytes * price of the gap's turns)
 *
 * is at most the time above the unconstrained step (weak duality; need: bytes of a turn if every gap is held). An
 * ascent along subgradients with Polyak's steps (1969) looks for good prices; each of them gives a bound.
 *
 * The cost of an op that runs again includes its inputs that no later op uses. Each of them was kept over the gap, at
 * the price of its bytes, or is made again, too. Costs that several may share are split among all that could: the time
 * of an op by the bytes of its outputs, the presence of an input among its readers.
 *
 * With other tiers the step takes at least any mean of three times: of the ops, of all transfers into the device, and
 * of those out of it. So the time of ops counts with a weight w, and transfers with 1 - w. The best of several weights
 * is taken.
 *
 * O(rounds * gaps).
 */
#include "recompute/graph/relax.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define ROUNDS_MAX 300           /* of an ascent, in a graph of few gaps */
#define GAP_ROUNDS_MAX 20000000  /* gaps times rounds, of one weight */
#define ROUNDS_MIN 20
#define IDLE_ROUNDS 10           /* rounds without a better bound that halve the step */
#define DEPTH_MAX 6              /* of inputs of inputs */
#define OPS_MAX 64               /* inputs looked at for one gap */

/* Turns first .. last, in which @value may be absent. */
struct relax_gap {
  int32_t value, maker; /* the op that makes it again; -1: none */
  int32_t begin;        /* the turn before the gap, which uses the value */
  int32_t first, last;  /* in which it may be absent, if it waits on a tier */
  int32_t redo_last;    /* the same, if it is made again */
};

struct relax {
  const struct remat_relax_params *params;
  const struct remat_problem *problem;
  LADE_ARRAY(struct relax_gap) gaps;
  int32_t *n_readers; /* by value */
  double *need;       /* by turn: bytes above the limit if everything is held */
  double *price, *best_price;
  double *sum;        /* by turn: the prices of all turns before it */
  double *slope;      /* by turn: the subgradient */
  double compute_weight, link_weight;
  int n_looked;       /* inputs of the gap under evaluation */
};

/* ---- gaps ---- */

/* Return the last maker of @value up to @turn; -1 for a given one. */
static int last_maker(const struct remat_problem *problem, int value, int turn)
{
  const int n_before = remat_makers_before(problem, value, turn + 1);
  return remat_is_given(problem, value) ? -1 : problem->makers[problem->values[value].first_maker + n_before - 1];
}

static int gap_add(struct relax *relax, int value, int begin, int end)
{
  const struct remat_problem *problem = relax->problem;
  struct relax_gap gap = {.value = value, .maker = last_maker(problem, value, begin), .begin = begin,
                          .first = begin + 1, .last = end - 1, .redo_last = -1};
  if (gap.first > gap.last || !problem->values[value].bytes)
    return 0;
  relax->need[gap.first] += (double)problem->values[value].bytes; /* as differences */
  relax->need[gap.last + 1] -= (double)problem->values[value].bytes;
  if (gap.maker >= 0)
    gap.redo_last = LADE_MIN(gap.last, problem->ops[gap.maker].redo_until - 1);
  return LADE_PUSH(&relax->gaps, gap) ? 0 : -ENOMEM;
}

/* Add the gaps of @value, and count its readers. One that lives on a tier need not be on the device in a gap. */
static int value_add(struct relax *relax, int value)
{
  const struct remat_problem *problem = relax->problem;
  const struct remat_value *v = &problem->values[value];
  const struct lade_graph *graph = problem->graph;
  const int first = graph->storages.items[v->storage].first_use, end = graph_uses_end(graph, v->storage);
  int status = 0, begin = v->birth;
  for (int i = first; i < end && !status; i++) {
    const int op = graph->uses[i].op;
    relax->n_readers[value] += !(graph->uses[i].access & GRAPH_WRITES);
    if (op > begin && remat_is_guest(problem, value))
      status = gap_add(relax, value, begin, op);
    begin = op;
  }
  if (!status && v->last_use == problem->n_ops && remat_is_guest(problem, value))
    status = gap_add(relax, value, begin, problem->n_ops);
  return status;
}

/* Return the bytes of operands and scratch of @op, each storage once. */
static double op_bytes(const struct remat_problem *problem, int op)
{
  const struct remat_op *o = &problem->ops[op];
  double bytes = (double)o->scratch_bytes;
  for (int i = 0; i < o->n_in + o->n_out; i++) {
    const struct remat_edge *edge = &problem->edges[o->first_in + i];
    bool is_again = i >= o->n_in && (edge->version > 1 || remat_is_given(problem, edge->value));
    bytes += is_again ? 0 : (double)problem->values[edge->value].bytes;
  }
  return bytes;
}

static int gaps_make(struct relax *relax)
{
  const struct remat_problem *problem = relax->problem;
  int status = 0;
  for (int v = 0; v < problem->n_values && !status; v++)
    status = value_add(relax, v);
  for (int t = 1; t <= problem->n_ops; t++)
    relax->need[t] += relax->need[t - 1];
  for (int t = 0; t <= problem->n_ops; t++)
    relax->need[t] += (t < problem->n_ops ? op_bytes(problem, t) : 0) - (double)relax->params->limit_bytes;
  return status;
}

/* ---- costs ---- */

/* A cost, and how it grows with the price of the gap, in bytes. */
struct relax_cost {
  double ns, bytes;
};

/* Return the share of @value in the outputs of @op, which makes it. */
static double output_share(const struct remat_problem *problem, int op, int value)
{
  const struct remat_op *o = &problem->ops[op];
  double bytes = 0;
  for (int i = 0; i < o->n_out; i++)
    bytes += (double)problem->values[problem->edges[o->first_out + i].value].bytes;
  return bytes > 0 ? (double)problem->values[value].bytes / bytes : 1.0 / o->n_out;
}

/*
 * Return the least cost of a run of @op in a gap after turn @begin, whose turns have @price in all: its time, and for
 * each input that no op uses after @begin the bytes to keep it or its own run.
 */
static struct relax_cost run_cost(struct relax *relax, int op, int begin, double price, int depth)
{
  const struct remat_problem *problem = relax->problem;
  const struct remat_op *o = &problem->ops[op];
  struct relax_cost cost = {relax->compute_weight * (double)o->ns, 0};
  for (int i = 0; i < o->n_in && depth < DEPTH_MAX && relax->n_looked < OPS_MAX; i++) {
    const int value = problem->edges[o->first_in + i].value;
    const struct remat_value *v = &problem->values[value];
    if (remat_is_given(problem, value) || v->last_use > begin || v->n_makers > 1)
      continue;
    relax->n_looked++;
    const double share = 1.0 / LADE_MAX(relax->n_readers[value], 1);
    struct relax_cost input = {price * (double)v->bytes, (double)v->bytes};
    if (relax->params->links)
      input = (struct relax_cost){0, 0}; /* it may wait on a tier */
    else if (problem->ops[v->birth].redo_until > begin) {
      struct relax_cost again = run_cost(relax, v->birth, begin, price, depth + 1);
      const double part = output_share(problem, v->birth, value);
      if (again.ns * part < input.ns)
        input = (struct relax_cost){again.ns * part, again.bytes * part};
    }
    cost.ns += share * input.ns;
    cost.bytes += share * input.bytes;
  }
  return cost;
}

/* Return the weighed time of moving @value out and back by the cheapest tier; infinite if it may not wait. */
static double move_cost(const struct relax *relax, int value)
{
  const struct remat_relax_params *params = relax->params;
  double min = INFINITY;
  for (int tier = LADE_HOST; tier <= LADE_STORE && params->links; tier++) {
    if (!params->may_wait[tier])
      continue;
    const uint64_t bytes = relax->problem->values[value].bytes;
    const double out_ns = list_time_move(&params->links->out[tier], bytes);
    const double in_ns = list_time_move(&params->links->in[tier], bytes);
    min = LADE_MIN(min, relax->link_weight * (out_ns + in_ns));
  }
  return min;
}

/* ---- prices ---- */

static void slope_add(struct relax *relax, int first, int last, double bytes)
{
  relax->slope[first] -= bytes;
  relax->slope[last + 1] += bytes;
}

/* Return the term of @gap in the bound at the prices, 0 or less; add to the differences of the slope. */
static double gap_evaluate(struct relax *relax, const struct relax_gap *gap)
{
  const double bytes = (double)relax->problem->values[gap->value].bytes;
  double min = 0;
  struct relax_cost run = {0, 0};
  bool is_run = false;
  if (gap->redo_last >= gap->first) {
    const double price = relax->sum[gap->redo_last + 1] - relax->sum[gap->first];
    if (price > 0) {
      relax->n_looked = 0;
      run = run_cost(relax, gap->maker, gap->begin, price, 0);
      const double share = output_share(relax->problem, gap->maker, gap->value);
      run = (struct relax_cost){run.ns * share, run.bytes * share};
      min = run.ns - bytes * price;
      is_run = min < 0;
      min = LADE_MIN(min, 0);
    }
  }
  const double price = relax->sum[gap->last + 1] - relax->sum[gap->first];
  const double moved = relax->params->links && price > 0 ? move_cost(relax, gap->value) - bytes * price : 0;
  if (moved < min) {
    slope_add(relax, gap->first, gap->last, bytes);
    return moved;
  }
  if (is_run)
    slope_add(relax, gap->first, gap->redo_last, bytes - run.bytes);
  return min;
}

/* Return the bound that the prices give, above the unconstrained step's weighed time, and find the subgradient. */
static double prices_evaluate(struct relax *relax)
{
  const int n = relax->problem->n_ops + 1;
  double bound = 0, change = 0;
  relax->sum[0] = 0;
  for (int t = 0; t < n; t++)
    relax->sum[t + 1] = relax->sum[t] + relax->price[t];
  memset(relax->slope, 0, ((size_t)n + 1) * sizeof(*relax->slope));
  for (int i = 0; i < relax->gaps.n; i++)
    bound += gap_evaluate(relax, &relax->gaps.items[i]);
  for (int t = 0; t < n; t++) {
    change += relax->slope[t];
    relax->slope[t] = relax->need[t] + change;
    bound += relax->price[t] * relax->need[t];
  }
  return bound;
}

/* Move the prices along the subgradient. Return false if it is 0. */
static bool prices_step(struct relax *relax, double length_ns)
{
  const int n = relax->problem->n_ops + 1;
  double square = 0;
  for (int t = 0; t < n; t++) {
    if (relax->slope[t] < 0 && relax->price[t] <= 0)
      relax->slope[t] = 0;
    square += relax->slope[t] * relax->slope[t];
  }
  for (int t = 0; t < n && square > 0; t++)
    relax->price[t] = LADE_MAX(relax->price[t] + length_ns / square * relax->slope[t], 0);
  return square > 0;
}

/* Return the best bound that an ascent from the prices finds, above the weighed time of the unconstrained step. */
static double ascend(struct relax *relax, double upper_ns)
{
  const int rounds = LADE_MAX(LADE_MIN(GAP_ROUNDS_MAX / (relax->gaps.n + relax->problem->n_ops + 1), ROUNDS_MAX),
                              ROUNDS_MIN);
  double best = 0, scale = 1;
  for (int round = 0, idle = 0; round < rounds; round++) {
    const double bound = prices_evaluate(relax);
    idle = bound > best ? 0 : idle + 1;
    if (bound > best) {
      best = bound;
      memcpy(relax->best_price, relax->price, ((size_t)relax->problem->n_ops + 1) * sizeof(*relax->price));
    }
    if (idle == IDLE_ROUNDS) {
      scale /= 2;
      idle = 0;
      memcpy(relax->price, relax->best_price, ((size_t)relax->problem->n_ops + 1) * sizeof(*relax->price));
      prices_evaluate(relax);
    }
    if (!prices_step(relax, scale * LADE_MAX(upper_ns - bound, upper_ns / 100)))
      break;
  }
  return best;
}

/* ---- weights ---- */

/* Return the weighed time of the transfers of values that live on tiers: in, and out if they change. */
static double forced_ns(const struct relax *relax)
{
  const struct remat_problem *problem = relax->problem;
  double ns = 0;
  for (int v = 0; v < problem->n_values && relax->params->links; v++) {
    const struct remat_value *value = &problem->values[v];
    if (remat_is_guest(problem, v))
      continue;
    ns += list_time_move(&relax->params->links->in[value->home], value->bytes);
    if (value->n_makers)
      ns += list_time_move(&relax->params->links->out[value->home], value->bytes);
  }
  return relax->link_weight * ns;
}

/* Return the bound with @weight for ops, and the rest for the links in equal parts. */
static double weight_bound(struct relax *relax, double weight)
{
  const struct remat_relax_params *params = relax->params;
  const int n_tiers = params->may_wait[LADE_HOST] + params->may_wait[LADE_STORE];
  relax->compute_weight = weight;
  relax->link_weight = n_tiers ? (1 - weight) / 2 / n_tiers : 0;
  const double base = weight * (double)relax->problem->base_ns + forced_ns(relax);
  memset(relax->price, 0, ((size_t)relax->problem->n_ops + 1) * sizeof(*relax->price));
  relax->price[params->first_turn] = weight * params->first_price;
  return base + ascend(relax, LADE_MAX((double)params->upper_ns - base, 1));
}

static bool arrays_allocate(struct relax *relax)
{
  const size_t n = (size_t)relax->problem->n_ops + 3;
  relax->n_readers = calloc((size_t)relax->problem->n_values + 1, sizeof(*relax->n_readers));
  relax->need = calloc(n, sizeof(*relax->need));
  relax->price = calloc(n, sizeof(*relax->price));
  relax->best_price = calloc(n, sizeof(*relax->best_price));
  relax->sum = calloc(n, sizeof(*relax->sum));
  relax->slope = calloc(n, sizeof(*relax->slope));
  return relax->n_readers && relax->need && relax->price && relax->best_price && relax->sum && relax->slope;
}

int remat_relax(const struct remat_relax_params *params, double *ret_bound_ns)
{
  static const double weights[] = {1, 0.9, 0.7, 0.5, 0.3, 0};
  struct relax relax = {.params = params, .problem = params->problem};
  bool has_tiers = params->links && (params->may_wait[LADE_HOST] || params->may_wait[LADE_STORE]);
  int status = arrays_allocate(&relax) ? gaps_make(&relax) : -ENOMEM;
  *ret_bound_ns = 0;
  for (size_t i = 0; i < (has_tiers ? LADE_COUNT(weights) : 1) && !status; i++)
    *ret_bound_ns = LADE_MAX(*ret_bound_ns, weight_bound(&relax, weights[i]));
  if (!status && params->ret_prices)
    memcpy(params->ret_prices, relax.best_price, ((size_t)params->problem->n_ops + 1) * sizeof(*relax.best_price));
  free(relax.n_readers);
  free(relax.need);
  free(relax.price);
  free(relax.best_price);
  free(relax.sum);
  free(relax.slope);
  LADE_ARRAY_FREE(&relax.gaps);
  return status;
}
