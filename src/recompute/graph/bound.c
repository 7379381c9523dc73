/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A lower bound on the time of redos, by a relaxation of one turn at a time, and then of all turns (relax.c).
 *
 * While op t runs, its operands and its scratch are on the device. Each other value that was made before and that a
 * later op uses is held beside it, or is made again afterwards. To make it again runs each of its makers at least once
 * more. So redos must take the place of the bytes that the limit does not leave. The cheapest way to do so is at least
 * the fractional knapsack over ops, by time per byte of all values that they make. The bound is the largest over the
 * turns looked at: those with the most bytes when everything is held. It says nothing of inputs that are not there any
 * more, so the true optimum may lie far above it. The ascent of relax.c begins from it, and looks at all turns
 * together.
 *
 * With other tiers the order of ops and of transfers that every step has is another bound (residents_bound).
 *
 * O(TURNS_MAX * n_ops + n_ops log n_ops).
 */
#include "recompute/graph/bound.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "recompute/graph/relax.h"

#define TURNS_MAX 512 /* turns looked at, those with the most bytes: the time grows with them */
#define ROUNDING 1e-9 /* of sums in double precision */

struct bound_item {
  int32_t op;
  double ns_per_byte;
};

struct bound_turn {
  int32_t turn;
  uint64_t bytes; /* held at its beginning, if everything is held */
};

struct bound_search {
  const struct remat_problem *problem;
  struct bound_item *items; /* ops that may run again, by time per byte */
  int n_items;
  struct bound_turn *turns; /* by bytes, the most first */
  uint8_t *is_operand;      /* by value */
};

static int item_compare(const void *x, const void *y)
{
  const struct bound_item *a = x, *b = y;
  return a->ns_per_byte != b->ns_per_byte ? (a->ns_per_byte > b->ns_per_byte) - (a->ns_per_byte < b->ns_per_byte)
                                          : a->op - b->op;
}

static int turn_compare(const void *x, const void *y)
{
  const struct bound_turn *a = x, *b = y;
  return a->bytes != b->bytes ? (a->bytes < b->bytes) - (a->bytes > b->bytes) : a->turn - b->turn;
}

static void items_make(struct bound_search *search)
{
  const struct remat_problem *problem = search->problem;
  for (int t = 0; t < problem->n_ops; t++) {
    const struct remat_op *op = &problem->ops[t];
    double bytes = 0;
    for (int i = 0; i < op->n_out; i++)
      bytes += (double)problem->values[problem->edges[op->first_out + i].value].bytes;
    if (op->redo_until >= 0 && bytes > 0)
      search->items[search->n_items++] = (struct bound_item){t, (double)op->ns / bytes};
  }
  qsort(search->items, (size_t)search->n_items, sizeof(*search->items), item_compare);
}

static void turns_make(struct bound_search *search)
{
  const struct remat_problem *problem = search->problem;
  for (int t = 0; t <= problem->n_ops; t++)
    search->turns[t] = (struct bound_turn){t, 0};
  for (int v = 0; v < problem->n_values; v++) { /* as differences, which the next loop sums up */
    const struct remat_value *value = &problem->values[v];
    search->turns[value->birth + 1].bytes += value->bytes;
    if (value->last_use < problem->n_ops)
      search->turns[value->last_use + 1].bytes -= value->bytes;
  }
  for (int t = 1; t <= problem->n_ops; t++)
    search->turns[t].bytes += search->turns[t - 1].bytes;
  qsort(search->turns, (size_t)problem->n_ops + 1, sizeof(*search->turns), turn_compare);
}

/* Mark or unmark the operands of the turn's op. Return their bytes and its scratch. */
static uint64_t operands_mark(struct bound_search *search, int turn, bool is_marked)
{
  const struct remat_problem *problem = search->problem;
  if (turn == problem->n_ops)
    return 0;
  const struct remat_op *op = &problem->ops[turn];
  uint64_t bytes = op->scratch_bytes;
  for (int i = 0; i < op->n_in + op->n_out; i++) {
    int value = problem->edges[op->first_in + i].value;
    bytes += search->is_operand[value] == is_marked ? 0 : problem->values[value].bytes;
    search->is_operand[value] = is_marked;
  }
  return bytes;
}

/* Return the bytes of values that @op makes and that wait during @turn, and are no operands of its op. */
static uint64_t waiting_bytes(const struct bound_search *search, int op, int turn)
{
  const struct remat_problem *problem = search->problem;
  const struct remat_op *o = &problem->ops[op];
  uint64_t bytes = 0;
  for (int i = 0; i < o->n_out; i++) {
    int value = problem->edges[o->first_out + i].value;
    bool waits = problem->values[value].birth < turn && problem->values[value].last_use > turn;
    bytes += waits && !search->is_operand[value] ? problem->values[value].bytes : 0;
  }
  return bytes;
}

/* Return the least time of redos that free @bytes during @turn; infinite if the redos of all ops free less. */
static double turn_bound(const struct bound_search *search, int turn, double bytes)
{
  double ns = 0;
  for (int i = 0; i < search->n_items && bytes > 0; i++) {
    const struct bound_item *item = &search->items[i];
    const struct remat_op *op = &search->problem->ops[item->op];
    double frees = item->op < turn && op->redo_until > turn ? (double)waiting_bytes(search, item->op, turn) : 0;
    ns += LADE_MIN(frees, bytes) * item->ns_per_byte;
    bytes -= LADE_MIN(frees, bytes);
  }
  return bytes > 0 ? (double)INT64_MAX : ns;
}

static uint64_t turn_waiting(const struct bound_search *search, int turn)
{
  const struct remat_problem *problem = search->problem;
  uint64_t bytes = 0;
  for (int v = 0; v < problem->n_values; v++) {
    const struct remat_value *value = &problem->values[v];
    bool waits = value->birth < turn && value->last_use > turn && !remat_is_given(problem, v);
    bytes += waits && !search->is_operand[v] ? value->bytes : 0;
  }
  return bytes;
}

/* Find the turn that bounds the time of redos best, and its bound; without other tiers. */
static double bound_run(struct bound_search *search, uint64_t limit_bytes, struct remat_relax_params *params)
{
  double max = 0;
  for (int i = 0; i <= search->problem->n_ops && i < TURNS_MAX; i++) {
    int turn = search->turns[i].turn;
    double excess = (double)operands_mark(search, turn, true) - (double)limit_bytes;
    excess += (double)turn_waiting(search, turn);
    const double ns = excess > 0 ? turn_bound(search, turn, excess) : 0;
    if (ns > max) {
      max = ns;
      params->first_turn = turn;
      params->first_price = ns / excess;
    }
    operands_mark(search, turn, false);
  }
  return max;
}

/*
 * Sum the times of transfers that every step has, by tier and op: into the device by the first use of a value, and out
 * of it by its last change or a later one.
 */
static void residents_sum(const struct remat_bound_params *params, double *in_ns, double *out_ns)
{
  const struct remat_problem *problem = params->problem;
  const size_t n = (size_t)problem->n_ops + 1;
  for (int v = 0; v < problem->n_values; v++) {
    const struct remat_value *value = &problem->values[v];
    const size_t row = value->home * n;
    if (remat_is_guest(problem, v))
      continue;
    const int use = problem->graph->storages.items[value->storage].first_use;
    in_ns[row + (size_t)problem->graph->uses[use].op] += list_time_move(&params->links->in[value->home], value->bytes);
    if (value->n_makers)
      out_ns[row + (size_t)problem->makers[value->first_maker + value->n_makers - 1]] +=
          list_time_move(&params->links->out[value->home], value->bytes);
  }
  for (size_t i = LADE_N_SPACES * n - 1; i > 0; i--)
    out_ns[i - 1] += i % n ? out_ns[i] : 0;
}

/*
 * Find the least time of a step that the values which live on tiers allow. An op waits until all values have come that
 * it or an earlier op uses. Values that it or a later op changes go back after it. Each link moves one at a time.
 */
static int residents_bound(const struct remat_bound_params *params, double *ret_ns)
{
  const size_t n = (size_t)params->problem->n_ops + 1;
  double *in_ns = calloc(2 * LADE_N_SPACES * n, sizeof(*in_ns));
  double now_ns = 0, come_ns[LADE_N_SPACES] = {0};
  if (!in_ns)
    return -ENOMEM;
  const double *out_ns = in_ns + LADE_N_SPACES * n;
  residents_sum(params, in_ns, in_ns + LADE_N_SPACES * n);
  *ret_ns = 0;
  for (size_t t = 0; t + 1 < n; t++) {
    for (size_t tier = 0; tier < LADE_N_SPACES; tier++) {
      come_ns[tier] += in_ns[tier * n + t];
      now_ns = LADE_MAX(now_ns, come_ns[tier]);
    }
    now_ns += (double)params->problem->ops[t].ns;
    for (size_t tier = 0; tier < LADE_N_SPACES; tier++)
      *ret_ns = LADE_MAX(*ret_ns, now_ns + out_ns[tier * n + t]);
  }
  free(in_ns);
  return 0;
}

static int search_allocate(struct bound_search *search)
{
  const size_t n = (size_t)search->problem->n_ops + 1;
  search->items = malloc(n * sizeof(*search->items));
  search->turns = malloc((n + 1) * sizeof(*search->turns));
  search->is_operand = calloc((size_t)search->problem->n_values + 1, sizeof(*search->is_operand));
  return search->items && search->turns && search->is_operand ? 0 : -ENOMEM;
}

static void search_free(struct bound_search *search)
{
  free(search->items);
  free(search->turns);
  free(search->is_operand);
}

int remat_bound_find(const struct remat_bound_params *params, int64_t *ret_bound_ns)
{
  const struct remat_problem *problem = params->problem;
  struct bound_search search = {.problem = problem};
  struct remat_relax_params relax_params = {.problem = problem, .limit_bytes = params->limit_bytes,
                                            .links = params->links, .ret_prices = params->ret_prices};
  bool can_wait = params->may_wait[LADE_HOST] || params->may_wait[LADE_STORE];
  double redo_ns = 0, relaxed_ns = 0, moved_ns = 0;
  *ret_bound_ns = INT64_MAX;
  if (problem->floor_bytes - problem->fixed_bytes > params->limit_bytes)
    return 0;
  memcpy(relax_params.may_wait, params->may_wait, sizeof(relax_params.may_wait));
  int status = search_allocate(&search);
  if (!status) {
    items_make(&search);
    turns_make(&search);
    redo_ns = can_wait ? 0 : bound_run(&search, params->limit_bytes, &relax_params);
  }
  search_free(&search);
  if (status || redo_ns >= (double)INT64_MAX)
    return status;
  relax_params.upper_ns = params->known_ns ? params->known_ns : problem->base_ns + (int64_t)(2 * redo_ns);
  status = remat_relax(&relax_params, &relaxed_ns);
  if (!status && params->links)
    status = residents_bound(params, &moved_ns);
  *ret_bound_ns = LADE_MAX(problem->base_ns + (int64_t)redo_ns,
                           (int64_t)(LADE_MAX(relaxed_ns, moved_ns) * (1 - ROUNDING)));
  return status;
}
