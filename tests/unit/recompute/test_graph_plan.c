/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plans of a caller's graph. A plan's list replays with the bytes and the time that the plan states, within its budget,
 * and it depends on graph and parameters alone. On tiny graphs an exhaustive search takes no less time. A replay
 * refuses each kind of wrong list, and names the instruction.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/base.h"
#include "graph/graph.h"
#include "lade/graph_plan.h"
#include "tests/support/heap/allocations.h"
#include "tests/support/names.h"
#include "tests/support/graph/random_graph.h"

enum { GRAPHS = 40, TINY_GRAPHS = 24 };

static struct lade_graph_plan_params params_get(uint64_t budget_bytes, int64_t iterations)
{
  return (struct lade_graph_plan_params){.struct_size = sizeof(struct lade_graph_plan_params),
                                         .budget_bytes = budget_bytes, .iterations = iterations, .seed = 1};
}

/* Plan, and check that an error comes with one line. */
static int plan_find(const lade_graph *graph, const struct lade_graph_plan_params *params,
                     struct lade_graph_plan_info *ret_info, lade_graph_plan **ret_plan)
{
  struct lade_error error = {0};
  *ret_info = (struct lade_graph_plan_info){.struct_size = sizeof(*ret_info)};
  *ret_plan = NULL;
  const int status = lade_graph_plan_find(graph, params, &error, ret_info, ret_plan);
  assert_true(!status == !error.text[0] && !strchr(error.text, '\n'));
  if (status && status != -ENOSPC)
    print_message("%s\n", error.text);
  return status;
}

/* ---- plans of drawn graphs ---- */

static void assert_plan_holds(const lade_graph *graph, const lade_graph_plan *plan,
                              const struct lade_graph_plan_info *info, uint64_t budget_bytes)
{
  struct lade_graph_totals totals = {.struct_size = sizeof(totals)};
  struct lade_error error = {0};
  int n = -1;
  const struct lade_graph_instr *instrs = lade_graph_plan_instrs(plan, &n);
  int status = lade_graph_replay(graph, instrs, n, &error, &totals);
  if (status)
    print_message("%s\n", error.text);
  assert_int_equal(status, 0);
  assert_true(info->planned_peak_bytes <= budget_bytes);
  assert_int_equal(totals.peak_bytes, info->planned_peak_bytes);
  assert_int_equal(totals.compute_ns, info->compute_ns);
  assert_int_equal(totals.n_redone, info->n_redone);
  assert_int_equal(totals.moved_bytes, info->moved_bytes);
  assert_true(info->floor_bytes <= info->min_budget_bytes);
  assert_true(info->min_budget_bytes <= info->planned_peak_bytes);
  assert_true(info->planned_peak_bytes <= info->unconstrained_bytes);
  assert_true(info->base_ns <= info->bound_ns && info->bound_ns <= info->compute_ns);
  assert_true(info->compute_ns <= info->predicted_step_ns && info->seconds >= 0);
  assert_true((info->n_redone == 0) <= (info->compute_ns == info->base_ns));
}

static void assert_same_list(const lade_graph_plan *a, const lade_graph_plan *b)
{
  int n_a, n_b;
  const struct lade_graph_instr *x = lade_graph_plan_instrs(a, &n_a), *y = lade_graph_plan_instrs(b, &n_b);
  assert_int_equal(n_a, n_b);
  for (int i = 0; i < n_a; i++)
    assert_true(x[i].kind == y[i].kind && x[i].index == y[i].index && x[i].tier == y[i].tier);
}

/* Plan twice within the budget: both have the same list, which holds, or both are refused with the smallest peak. */
static void budget_check(const lade_graph *graph, uint64_t budget_bytes)
{
  const struct lade_graph_plan_params params = params_get(budget_bytes, 3000);
  struct lade_graph_plan_info info, info_again;
  lade_graph_plan *plan, *plan_again;
  const int status = plan_find(graph, &params, &info, &plan);
  assert_int_equal(plan_find(graph, &params, &info_again, &plan_again), status);
  if (!status) {
    assert_plan_holds(graph, plan, &info, budget_bytes == LADE_GRAPH_BUDGET_MIN ? info.min_budget_bytes : budget_bytes);
    assert_same_list(plan, plan_again);
  } else {
    assert_int_equal(status, -ENOSPC);
    assert_true(budget_bytes != LADE_GRAPH_BUDGET_MIN && budget_bytes < info.unconstrained_bytes);
    assert_true(info.planned_peak_bytes > budget_bytes && info.min_budget_bytes == info.planned_peak_bytes);
    assert_null(plan);
  }
  lade_graph_plan_destroy(plan);
  lade_graph_plan_destroy(plan_again);
}

static void plans_of_drawn_graphs_hold_within_every_budget(void **state)
{
  static const int percents[] = {100, 85, 70, 55, 40, 10};
  for (uint64_t seed = 0; seed < GRAPHS; seed++) {
    const struct random_graph_params how = {.seed = seed, .n_layers = 1 + (int)(seed % 17), .is_soup = seed % 3 == 2,
                                            .is_written_once = seed % 4 == 3};
    lade_graph *graph = random_graph_make(&how);
    uint64_t unconstrained_bytes = 0, floor_bytes = 0;
    assert_int_equal(lade_graph_bounds(graph, NULL, &unconstrained_bytes, &floor_bytes), 0);
    assert_true(floor_bytes <= unconstrained_bytes);
    budget_check(graph, LADE_GRAPH_BUDGET_NONE);
    budget_check(graph, LADE_GRAPH_BUDGET_MIN);
    for (size_t i = 0; i < LADE_COUNT(percents); i++)
      budget_check(graph, LADE_MAX(unconstrained_bytes * (uint64_t)percents[i] / 100, 1));
    lade_graph_destroy(graph);
  }
}

static void a_budget_of_the_unconstrained_peak_costs_nothing(void **state)
{
  for (uint64_t seed = 0; seed < GRAPHS; seed++) {
    const struct random_graph_params how = {.seed = seed, .n_layers = 12, .is_soup = seed % 2};
    lade_graph *graph = random_graph_make(&how);
    struct lade_graph_plan_params params = params_get(LADE_GRAPH_BUDGET_NONE, 60);
    struct lade_graph_plan_info info;
    lade_graph_plan *plan;
    uint64_t unconstrained_bytes = 0;
    assert_int_equal(lade_graph_bounds(graph, NULL, &unconstrained_bytes, NULL), 0);
    for (int i = 0; i < 2; i++) {
      assert_int_equal(plan_find(graph, &params, &info, &plan), 0);
      assert_int_equal(info.unconstrained_bytes, unconstrained_bytes);
      assert_int_equal(info.planned_peak_bytes, unconstrained_bytes);
      assert_true(info.n_redone == 0 && info.compute_ns == info.base_ns && info.bound_ns == info.base_ns);
      lade_graph_plan_destroy(plan);
      params.budget_bytes = LADE_MAX(unconstrained_bytes, 1);
    }
    lade_graph_destroy(graph);
  }
}

/* ---- an exhaustive search ---- */

/*
 * The cheapest list within a budget, by Dijkstra's algorithm over all states: ops run so far, and the version of each
 * made storage on the device. Drops cost nothing. With is_ascending, the ops that run again before the next first run
 * do so in ascending order, each once: the lists that the search chooses from.
 */
struct exact_state {
  uint64_t versions; /* two bits for each made storage; 0: not on the device */
  int16_t n_run, n_redo_from; /* first runs so far; ops below n_redo_from may not run again before the next first run */
};

struct exact_entry {
  struct exact_state state;
  int64_t ns; /* of redos */
  bool is_used, is_done;
};

enum { EXACT_ENTRIES = 1 << 18, EXACT_STORAGES = 32 };

struct exact_search {
  const lade_graph *graph;
  uint64_t budget_bytes;
  bool is_ascending;
  struct exact_entry *entries; /* a hash table */
  int *heap, n_heap, n_entries;
  bool is_full; /* more states than the table takes: no answer */
  int64_t *heap_ns;
};

static int *entry_find(struct exact_search *search, const struct exact_state *state, int *slot)
{
  uint64_t hash = (state->versions * 31 + (uint64_t)state->n_run) * 67 + (uint64_t)state->n_redo_from;
  hash = (hash ^ (hash >> 29)) * 0xbf58476d1ce4e5b9u;
  *slot = (int)((hash >> 20) % EXACT_ENTRIES);
  while (search->entries[*slot].is_used && memcmp(&search->entries[*slot].state, state, sizeof(*state)) != 0)
    *slot = (*slot + 1) % EXACT_ENTRIES;
  return slot;
}

static void heap_push(struct exact_search *search, int slot, int64_t ns)
{
  int at = search->n_heap++;
  for (; at > 0 && search->heap_ns[(at - 1) / 2] > ns; at = (at - 1) / 2) {
    search->heap[at] = search->heap[(at - 1) / 2];
    search->heap_ns[at] = search->heap_ns[(at - 1) / 2];
  }
  search->heap[at] = slot;
  search->heap_ns[at] = ns;
}

static int heap_pop(struct exact_search *search, int64_t *ret_ns)
{
  const int top = search->heap[0], last = search->heap[--search->n_heap];
  const int64_t ns = search->heap_ns[search->n_heap];
  *ret_ns = search->heap_ns[0];
  int at = 0;
  for (int child; (child = 2 * at + 1) < search->n_heap; at = child) {
    if (child + 1 < search->n_heap && search->heap_ns[child + 1] < search->heap_ns[child])
      child++;
    if (search->heap_ns[child] >= ns)
      break;
    search->heap[at] = search->heap[child];
    search->heap_ns[at] = search->heap_ns[child];
  }
  search->heap[at] = last;
  search->heap_ns[at] = ns;
  return top;
}

static void state_reach(struct exact_search *search, struct exact_state state, int64_t ns)
{
  int slot;
  struct exact_entry *entry = &search->entries[*entry_find(search, &state, &slot)];
  if (entry->is_used && entry->ns <= ns)
    return;
  search->n_entries += !entry->is_used;
  search->is_full = search->is_full || search->n_entries >= EXACT_ENTRIES / 2 || search->n_heap >= 4 * EXACT_ENTRIES - 1;
  if (search->is_full)
    return;
  *entry = (struct exact_entry){.state = state, .ns = ns, .is_used = true};
  heap_push(search, slot, ns);
}

static int version_get(const struct exact_state *state, int storage)
{
  return (int)(state->versions >> (2 * storage) & 3);
}

static void version_set(struct exact_state *state, int storage, int version)
{
  state->versions = (state->versions & ~(UINT64_C(3) << (2 * storage))) | (uint64_t)version << (2 * storage);
}

/* Return the version of a given storage once @n_run ops ran. */
static int given_version(const lade_graph *graph, int storage, int n_run)
{
  int version = 0;
  for (int i = graph->storages.items[storage].first_use; i < graph_uses_end(graph, storage); i++)
    version += graph->uses[i].op < n_run && (graph->uses[i].access & GRAPH_WRITES);
  return version;
}

static uint64_t state_bytes(const lade_graph *graph, const struct exact_state *state)
{
  uint64_t bytes = 0;
  for (int s = 0; s < graph->storages.n; s++)
    bytes += graph->storages.items[s].is_given || version_get(state, s) ? graph->storages.items[s].bytes : 0;
  return bytes;
}

/* Run @op in @state. Return false if an operand is missing, or if the op does not fit. */
static bool exact_run(const struct exact_search *search, int op, bool is_redo, struct exact_state *state)
{
  const lade_graph *graph = search->graph;
  const struct graph_op *o = &graph->ops.items[op];
  const struct graph_operand *operands = graph->operands.items + o->first_operand;
  for (int i = 0; i < graph_op_n_operands(o); i++) {
    const struct graph_storage *storage = &graph->storages.items[operands[i].storage];
    const bool is_write = operands[i].access == GRAPH_WRITES;
    const int takes = operands[i].version - is_write;
    if (storage->is_given && is_redo && operands[i].access != GRAPH_READS)
      return false;
    const int found = storage->is_given ? given_version(graph, operands[i].storage, state->n_run)
                                        : version_get(state, operands[i].storage);
    if (found != takes && !(is_write && takes == 0 && !storage->is_given))
      return false;
  }
  for (int i = 0; i < graph_op_n_operands(o); i++) {
    if (operands[i].access != GRAPH_READS && !graph->storages.items[operands[i].storage].is_given)
      version_set(state, operands[i].storage, operands[i].version + (operands[i].access == GRAPH_UPDATES));
  }
  return state_bytes(graph, state) + o->scratch_bytes <= search->budget_bytes;
}

static bool state_is_end(const lade_graph *graph, const struct exact_state *state)
{
  if (state->n_run < graph->ops.n)
    return false;
  for (int s = 0; s < graph->storages.n; s++) {
    const struct graph_storage *storage = &graph->storages.items[s];
    if (storage->is_kept && !storage->is_given && version_get(state, s) != storage->n_versions)
      return false;
  }
  return true;
}

static void state_expand(struct exact_search *search, const struct exact_state *from, int64_t ns)
{
  const lade_graph *graph = search->graph;
  struct exact_state state = *from;
  if (from->n_run < graph->ops.n && exact_run(search, from->n_run, false, &state)) {
    state.n_run++;
    state.n_redo_from = 0;
    state_reach(search, state, ns);
  }
  for (int op = from->n_redo_from; op < from->n_run; op++) {
    state = *from;
    if (graph->ops.items[op].is_once || !exact_run(search, op, true, &state))
      continue;
    state.n_redo_from = (int16_t)(search->is_ascending ? op + 1 : 0);
    state_reach(search, state, ns + graph->ops.items[op].ns);
  }
  for (int s = 0; s < graph->storages.n; s++) {
    state = *from;
    version_set(&state, s, 0);
    if (version_get(from, s))
      state_reach(search, state, ns);
  }
}

#define TOO_MANY_STATES (-1)

/* Return the least time of redos within @budget_bytes; INT64_MAX: no list fits; or TOO_MANY_STATES. */
static int64_t exact_redo_ns(const lade_graph *graph, uint64_t budget_bytes, bool is_ascending)
{
  struct exact_search search = {.graph = graph, .budget_bytes = budget_bytes, .is_ascending = is_ascending};
  int64_t least_ns = INT64_MAX;
  assert_true(graph->storages.n <= EXACT_STORAGES);
  search.entries = calloc(EXACT_ENTRIES, sizeof(*search.entries));
  search.heap = malloc(4 * EXACT_ENTRIES * sizeof(*search.heap));
  search.heap_ns = malloc(4 * EXACT_ENTRIES * sizeof(*search.heap_ns));
  assert_true(search.entries && search.heap && search.heap_ns);
  const struct exact_state start = {.n_run = 0};
  state_reach(&search, start, 0);
  while (search.n_heap > 0 && least_ns == INT64_MAX && !search.is_full) {
    int64_t ns;
    const int slot = heap_pop(&search, &ns);
    struct exact_entry *entry = &search.entries[slot];
    if (entry->is_done || ns > entry->ns)
      continue;
    entry->is_done = true;
    const struct exact_state state = entry->state;
    if (state_is_end(graph, &state))
      least_ns = ns;
    else
      state_expand(&search, &state, ns);
  }
  free(search.entries);
  free(search.heap);
  free(search.heap_ns);
  return search.is_full ? TOO_MANY_STATES : least_ns;
}

/* Compare the plan within @budget_bytes with the exhaustive searches. Return false if they have too many states. */
static bool exact_check(const lade_graph *graph, uint64_t budget_bytes)
{
  const struct lade_graph_plan_params params = params_get(budget_bytes, 20000);
  const int64_t best_ns = exact_redo_ns(graph, budget_bytes, true), any_ns = exact_redo_ns(graph, budget_bytes, false);
  if (best_ns == TOO_MANY_STATES || any_ns == TOO_MANY_STATES)
    return false;
  struct lade_graph_plan_info info;
  lade_graph_plan *plan;
  const int status = plan_find(graph, &params, &info, &plan);
  assert_true(any_ns <= best_ns);
  if (any_ns < INT64_MAX)
    assert_true(info.bound_ns <= info.base_ns + any_ns);
  if (best_ns == INT64_MAX) {
    assert_int_equal(status, -ENOSPC);
    return true;
  }
  assert_int_equal(status, 0);
  assert_int_equal(info.compute_ns, info.base_ns + best_ns);
  lade_graph_plan_destroy(plan);
  return true;
}

static void plans_of_tiny_graphs_are_the_best_ones(void **state)
{
  int n_checked = 0;
  for (uint64_t seed = 0; seed < TINY_GRAPHS; seed++) {
    const struct random_graph_params how = {.seed = 100 + seed, .n_layers = 2 + (int)(seed % 4), .is_soup = seed % 4 == 3,
                                            .is_written_once = true};
    lade_graph *graph = random_graph_make(&how);
    uint64_t unconstrained_bytes = 0, floor_bytes = 0;
    assert_int_equal(lade_graph_bounds(graph, NULL, &unconstrained_bytes, &floor_bytes), 0);
    for (uint64_t i = 0; i <= 6; i++)
      n_checked += exact_check(graph, LADE_MAX(floor_bytes + (unconstrained_bytes - floor_bytes) * i / 6, 1));
    lade_graph_destroy(graph);
  }
  assert_true(n_checked >= 5 * TINY_GRAPHS);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(plans_of_drawn_graphs_hold_within_every_budget),
      cmocka_unit_test(a_budget_of_the_unconstrained_peak_costs_nothing),
      cmocka_unit_test(plans_of_tiny_graphs_are_the_best_ones),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
