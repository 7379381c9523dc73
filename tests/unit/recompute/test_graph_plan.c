/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plans of a caller's graph. A plan's list replays with the bytes and the time that the plan states, within its budget,
 * and it depends on graph and parameters alone. On tiny graphs an exhaustive search finds no faster list. A replay
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
    const struct random_graph_params params = {.seed = seed, .n_layers = 1 + (int)(seed % 17), .is_soup = seed % 3 == 2,
                                               .is_written_once = seed % 4 == 3};
    lade_graph *graph = random_graph_make(&params);
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
    const struct random_graph_params given = {.seed = seed, .n_layers = 12, .is_soup = seed % 2};
    lade_graph *graph = random_graph_make(&given);
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
  search->is_full = search->is_full || search->n_entries >= EXACT_ENTRIES / 2 ||
                    search->n_heap >= 4 * EXACT_ENTRIES - 1;
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
  int64_t min_ns = INT64_MAX;
  assert_true(graph->storages.n <= EXACT_STORAGES);
  search.entries = calloc(EXACT_ENTRIES, sizeof(*search.entries));
  search.heap = malloc(4 * EXACT_ENTRIES * sizeof(*search.heap));
  search.heap_ns = malloc(4 * EXACT_ENTRIES * sizeof(*search.heap_ns));
  assert_true(search.entries && search.heap && search.heap_ns);
  const struct exact_state start = {.n_run = 0};
  state_reach(&search, start, 0);
  while (search.n_heap > 0 && min_ns == INT64_MAX && !search.is_full) {
    int64_t ns;
    const int slot = heap_pop(&search, &ns);
    struct exact_entry *entry = &search.entries[slot];
    if (entry->is_done || ns > entry->ns)
      continue;
    entry->is_done = true;
    const struct exact_state state = entry->state;
    if (state_is_end(graph, &state))
      min_ns = ns;
    else
      state_expand(&search, &state, ns);
  }
  free(search.entries);
  free(search.heap);
  free(search.heap_ns);
  return search.is_full ? TOO_MANY_STATES : min_ns;
}

struct exact_counts {
  int n_checked, n_best;
};

/* Compare the plan within @budget_bytes with the exhaustive searches, unless they have too many states. */
static void exact_check(const lade_graph *graph, uint64_t budget_bytes, struct exact_counts *counts)
{
  const struct lade_graph_plan_params params = params_get(budget_bytes, 20000);
  const int64_t best_ns = exact_redo_ns(graph, budget_bytes, true), any_ns = exact_redo_ns(graph, budget_bytes, false);
  struct lade_graph_plan_info info;
  lade_graph_plan *plan;
  if (best_ns == TOO_MANY_STATES || any_ns == TOO_MANY_STATES)
    return;
  const int status = plan_find(graph, &params, &info, &plan);
  assert_true(any_ns <= best_ns);
  if (any_ns < INT64_MAX)
    assert_true(info.bound_ns <= info.base_ns + any_ns);
  if (best_ns == INT64_MAX)
    assert_int_equal(status, -ENOSPC);
  else if (!status)
    assert_true(info.compute_ns >= info.base_ns + best_ns);
  counts->n_best += best_ns == INT64_MAX || (!status && info.compute_ns == info.base_ns + best_ns);
  counts->n_checked++;
  lade_graph_plan_destroy(plan);
}

/* A random search may miss the best plan, most often in the smallest budgets. Here it misses one of fifty. */
static void plans_of_tiny_graphs_are_the_best_ones(void **state)
{
  struct exact_counts counts = {0};
  for (uint64_t seed = 0; seed < TINY_GRAPHS; seed++) {
    const struct random_graph_params params = {.seed = 100 + seed, .n_layers = 2 + (int)(seed % 3),
                                               .is_soup = seed % 4 == 3, .is_written_once = true};
    lade_graph *graph = random_graph_make(&params);
    uint64_t unconstrained_bytes = 0, floor_bytes = 0;
    assert_int_equal(lade_graph_bounds(graph, NULL, &unconstrained_bytes, &floor_bytes), 0);
    for (uint64_t i = 0; i <= 6; i++)
      exact_check(graph, LADE_MAX(floor_bytes + (unconstrained_bytes - floor_bytes) * i / 6, 1), &counts);
    lade_graph_destroy(graph);
  }
  assert_true(counts.n_checked >= 5 * TINY_GRAPHS);
  print_message("%d of %d plans are the best ones\n", counts.n_best, counts.n_checked);
  assert_true(counts.n_best >= counts.n_checked * 9 / 10);
}

/* ---- small and extreme graphs ---- */

static int text_storage_add(lade_graph *graph, const char *name, uint64_t bytes, bool is_given)
{
  const struct lade_storage storage = {.struct_size = sizeof(storage), .name = name, .bytes = bytes,
                                       .is_given = is_given};
  int index = -1;
  assert_int_equal(lade_graph_add_storage(graph, &storage, NULL, &index), 0);
  return index;
}

/* Add an op with at most two reads, a write and an update; -1: none. */
static void text_op_add(lade_graph *graph, const char *name, int read, int read_too, int write, int update,
                        uint64_t scratch_bytes)
{
  const struct lade_operand_range reads[2] = {{.storage = read}, {.storage = read_too}}, writes = {.storage = write},
                                  updates = {.storage = update};
  const struct lade_graph_op op = {.struct_size = sizeof(op), .name = name, .reads = reads, .writes = &writes,
                                   .updates = &updates, .n_reads = (read >= 0) + (read_too >= 0),
                                   .n_writes = write >= 0, .n_updates = update >= 0, .ns = 10,
                                   .scratch_bytes = scratch_bytes};
  assert_int_equal(lade_graph_add_op(graph, &op, NULL, NULL), 0);
}

static lade_graph *graph_open(void)
{
  lade_graph *graph = NULL;
  assert_int_equal(lade_graph_create(&graph), 0);
  return graph;
}

static void a_graph_without_ops_or_bytes_has_a_plan(void **state)
{
  for (int n_ops = 0; n_ops <= 1; n_ops++) {
    for (uint64_t bytes = 0; bytes <= 4096; bytes += 4096) {
      lade_graph *graph = graph_open();
      const int given = text_storage_add(graph, "given", bytes, true);
      const int made = text_storage_add(graph, "made", bytes, false);
      if (n_ops)
        text_op_add(graph, "op", given, -1, made, -1, 0);
      assert_int_equal(lade_graph_close(graph, NULL), 0);
      budget_check(graph, LADE_GRAPH_BUDGET_NONE);
      budget_check(graph, LADE_GRAPH_BUDGET_MIN);
      budget_check(graph, 1);
      budget_check(graph, LADE_MAX(bytes * (uint64_t)(1 + n_ops), 1));
      lade_graph_destroy(graph);
    }
  }
}

/* The smallest budget of this graph is reached by a schedule that holds nothing between ops. */
static void a_schedule_that_holds_nothing_is_found(void **state)
{
  lade_graph *graph = graph_open();
  const int a = text_storage_add(graph, "a", 100, false), c = text_storage_add(graph, "c", 1, false);
  text_op_add(graph, "f0", -1, -1, a, -1, 0);
  text_op_add(graph, "f1", -1, -1, -1, -1, 1000);
  text_op_add(graph, "f2", a, -1, c, -1, 0);
  assert_int_equal(lade_graph_close(graph, NULL), 0);
  struct lade_graph_plan_info info;
  lade_graph_plan *plan;
  const struct lade_graph_plan_params params = params_get(LADE_GRAPH_BUDGET_MIN, 1000);
  assert_int_equal(plan_find(graph, &params, &info, &plan), 0);
  assert_true(info.unconstrained_bytes == 1100 && info.planned_peak_bytes == 1000 && info.n_redone == 1);
  assert_plan_holds(graph, plan, &info, info.min_budget_bytes);
  lade_graph_plan_destroy(plan);
  budget_check(graph, 1000);
  budget_check(graph, 1099);
  lade_graph_destroy(graph);
}

/* A result that is kept after an update of its maker's input has to be made again before that update. */
static void a_kept_value_is_made_again_before_its_inputs_change(void **state)
{
  lade_graph *graph = graph_open();
  const int w = text_storage_add(graph, "w", 100, true), kept = text_storage_add(graph, "kept", 1000, false);
  const int g = text_storage_add(graph, "g", 10, false);
  text_op_add(graph, "f0", w, -1, kept, -1, 0);
  text_op_add(graph, "b1", w, -1, g, -1, 2000);
  text_op_add(graph, "u2", g, -1, -1, w, 0);
  assert_int_equal(lade_graph_keep(graph, kept, NULL), 0);
  assert_int_equal(lade_graph_close(graph, NULL), 0);
  struct lade_graph_plan_info info;
  lade_graph_plan *plan;
  const struct lade_graph_plan_params params = params_get(LADE_GRAPH_BUDGET_MIN, 1000);
  assert_int_equal(plan_find(graph, &params, &info, &plan), 0);
  assert_true(info.planned_peak_bytes == 2110 && info.n_redone == 1);
  assert_plan_holds(graph, plan, &info, info.min_budget_bytes);
  lade_graph_plan_destroy(plan);
  lade_graph_destroy(graph);
}

/* b can be made again as long as a is held, and a cannot: holding neither is no plan. */
static void a_value_without_its_input_is_not_made_again(void **state)
{
  lade_graph *graph = graph_open();
  const int a = text_storage_add(graph, "a", 100, false), b = text_storage_add(graph, "b", 100, false);
  const struct lade_operand_range writes = {.storage = a};
  const struct lade_graph_op once = {.struct_size = sizeof(once), .name = "f0", .writes = &writes, .n_writes = 1,
                                     .is_once = true, .ns = 10};
  assert_int_equal(lade_graph_add_op(graph, &once, NULL, NULL), 0);
  text_op_add(graph, "f1", a, -1, b, -1, 0);
  text_op_add(graph, "f2", -1, -1, -1, -1, 1000);
  text_op_add(graph, "f3", b, -1, -1, -1, 0);
  assert_int_equal(lade_graph_close(graph, NULL), 0);
  struct lade_graph_plan_info info;
  lade_graph_plan *plan;
  for (uint64_t budget_bytes = 900; budget_bytes <= 1200; budget_bytes += 50) {
    const struct lade_graph_plan_params params = params_get(budget_bytes, 50000);
    assert_int_equal(plan_find(graph, &params, &info, &plan), budget_bytes < 1100 ? -ENOSPC : 0);
    assert_int_equal(info.min_budget_bytes, 1100);
    lade_graph_plan_destroy(plan);
  }
  lade_graph_destroy(graph);
}

static void extreme_parameters_are_planned_or_refused(void **state)
{
  const struct random_graph_params given = {.seed = 5, .n_layers = 8};
  lade_graph *graph = random_graph_make(&given), *open = graph_open();
  struct lade_graph_plan_params params = params_get(LADE_GRAPH_BUDGET_NONE, 100);
  struct lade_graph_plan_info info = {.struct_size = sizeof(info)};
  struct lade_error error;
  lade_graph_plan *plan = NULL;
  int n = 7;
  assert_int_equal(lade_graph_plan_find(NULL, &params, &error, &info, &plan), -EINVAL);
  assert_int_equal(lade_graph_plan_find(graph, NULL, &error, &info, &plan), -EINVAL);
  assert_int_equal(lade_graph_plan_find(graph, &params, &error, &info, NULL), -EINVAL);
  assert_int_equal(lade_graph_plan_find(open, &params, NULL, NULL, &plan), -EINVAL);
  assert_int_equal(lade_graph_bounds(NULL, NULL, NULL, NULL), -EINVAL);
  assert_int_equal(lade_graph_bounds(open, &error, NULL, NULL), -EINVAL);
  assert_int_equal(lade_graph_bounds(graph, NULL, NULL, NULL), 0);
  info.struct_size = 1;
  assert_int_equal(lade_graph_plan_find(graph, &params, &error, &info, &plan), -EINVAL);
  info.struct_size = sizeof(info);
  params.struct_size = 0;
  assert_int_equal(lade_graph_plan_find(graph, &params, &error, &info, &plan), -EINVAL);
  params = params_get(LADE_GRAPH_BUDGET_NONE, -1);
  assert_int_equal(lade_graph_plan_find(graph, &params, &error, &info, &plan), -EINVAL);
  params = params_get(LADE_GRAPH_BUDGET_NONE, 100);
  params.time_limit_ns = -1;
  assert_int_equal(lade_graph_plan_find(graph, &params, &error, &info, &plan), -EINVAL);
  params = params_get(LADE_GRAPH_BUDGET_NONE, 100);
  params.to_host = params.from_host = (struct lade_graph_path){.bytes_per_s = 1e-9};
  assert_int_equal(lade_graph_plan_find(graph, &params, &error, &info, &plan), -EINVAL);
  assert_non_null(strstr(error.text, "a path of 1e-09 bytes/s"));
  assert_null(plan);
  lade_graph_plan_destroy(NULL);
  assert_null(lade_graph_plan_instrs(NULL, &n));
  assert_int_equal(n, 0);
  const uint64_t budgets[] = {LADE_GRAPH_BUDGET_MIN, 1, UINT64_MAX - 1, LADE_GRAPH_BUDGET_NONE, (uint64_t)1 << 63};
  for (size_t i = 0; i < LADE_COUNT(budgets); i++) {
    params = params_get(budgets[i], i % 2 ? INT64_MAX : 1);
    params.time_limit_ns = i % 2 ? 1 : 0;
    params.seed = UINT64_MAX;
    const int status = lade_graph_plan_find(graph, &params, NULL, NULL, &plan);
    assert_int_equal(status, budgets[i] == 1 ? -ENOSPC : 0);
    if (!status)
      lade_graph_plan_destroy(plan);
  }
  lade_graph_destroy(graph);
  lade_graph_destroy(open);
}

static void a_limit_of_time_ends_the_search(void **state)
{
  const struct random_graph_params given = {.seed = 11, .n_layers = 80};
  lade_graph *graph = random_graph_make(&given);
  struct lade_graph_plan_params params = params_get(LADE_GRAPH_BUDGET_MIN, INT64_MAX);
  struct lade_graph_plan_info info;
  lade_graph_plan *plan;
  params.time_limit_ns = 100 * 1000 * 1000;
  assert_int_equal(plan_find(graph, &params, &info, &plan), 0);
  assert_plan_holds(graph, plan, &info, info.min_budget_bytes);
  lade_graph_plan_destroy(plan);
  lade_graph_destroy(graph);
}

/* The longest limit searches as no limit does: all iterations, for the same list. */
static void the_longest_limit_of_time_is_none(void **state)
{
  const struct random_graph_params given = {.seed = 11, .n_layers = 20};
  lade_graph *graph = random_graph_make(&given);
  struct lade_graph_plan_params params = params_get(LADE_GRAPH_BUDGET_MIN, 20000);
  struct lade_graph_plan_info limited, unlimited;
  lade_graph_plan *plans[2];
  assert_int_equal(plan_find(graph, &params, &unlimited, &plans[0]), 0);
  params.time_limit_ns = INT64_MAX;
  assert_int_equal(plan_find(graph, &params, &limited, &plans[1]), 0);
  assert_int_equal(limited.min_budget_bytes, unlimited.min_budget_bytes);
  assert_same_list(plans[0], plans[1]);
  lade_graph_plan_destroy(plans[0]);
  lade_graph_plan_destroy(plans[1]);
  lade_graph_destroy(graph);
}

static void an_allocation_that_fails_is_an_error_without_a_plan(void **state)
{
  const struct random_graph_params given = {.seed = 3, .n_layers = 6};
  lade_graph *graph = random_graph_make(&given);
  const struct lade_graph_plan_params params = params_get(LADE_GRAPH_BUDGET_MIN, 100);
  int status = -ENOMEM, step = 1;
  for (int n = 0; status; n += step) {
    struct lade_error error = {0};
    lade_graph_plan *plan = NULL;
    allocations_left = n;
    status = lade_graph_plan_find(graph, &params, &error, NULL, &plan);
    allocations_left = -1;
    assert_true(status ? status == -ENOMEM && !plan && error.text[0] : plan != NULL);
    lade_graph_plan_destroy(plan);
    step = 1 + n / 64; /* the later ones are alike */
  }
  for (int n = 0; (allocations_left = n, status = lade_graph_bounds(graph, NULL, NULL, NULL)); n++)
    assert_int_equal(status, -ENOMEM);
  allocations_left = -1;
  lade_graph_destroy(graph);
}

/* ---- invalid lists ---- */

enum { W, A, B, C, G, STAT, N_STORAGES }; /* storages of the graph below */
enum { F0, F1, F1B, F2, B2, UP, ADD_STAT, N_OPS };

/*
 * Two given storages, one of which a repeatable op updates; b has two makers; g is kept.
 */
static lade_graph *replay_graph(void)
{
  static const char *const names[N_STORAGES] = {"w", "a", "b", "c", "g", "stat"};
  lade_graph *graph = graph_open();
  for (int i = 0; i < N_STORAGES; i++)
    text_storage_add(graph, names[i], 64, i == W || i == STAT);
  text_op_add(graph, "f0", W, -1, A, -1, 0);
  text_op_add(graph, "f1", A, -1, B, -1, 0);
  text_op_add(graph, "f1b", -1, -1, -1, B, 0);
  text_op_add(graph, "f2", B, -1, C, -1, 0);
  text_op_add(graph, "b2", C, A, G, -1, 0);
  const struct lade_operand_range reads = {.storage = G}, updates = {.storage = W};
  const struct lade_graph_op up = {.struct_size = sizeof(up), .name = "up", .reads = &reads, .updates = &updates,
                                   .n_reads = 1, .n_updates = 1, .is_once = true, .ns = 10};
  assert_int_equal(lade_graph_add_op(graph, &up, NULL, NULL), 0);
  text_op_add(graph, "add", G, -1, -1, STAT, 0);
  assert_int_equal(lade_graph_keep(graph, G, NULL), 0);
  assert_int_equal(lade_graph_close(graph, NULL), 0);
  return graph;
}

#define OP(op) {LADE_GRAPH_INSTR_OP, op, LADE_DEVICE}
#define REDO(op) {LADE_GRAPH_INSTR_REDO, op, LADE_DEVICE}
#define DROP(storage) {LADE_GRAPH_INSTR_DROP, storage, LADE_DEVICE}
#define PUT(storage, tier) {LADE_GRAPH_INSTR_PUT, storage, tier}
#define GET(storage, tier) {LADE_GRAPH_INSTR_GET, storage, tier}

/* A valid list: a is dropped and made again. */
static const struct lade_graph_instr right_list[] = {OP(F0), OP(F1), DROP(A), OP(F1B), OP(F2), DROP(B), REDO(F0),
                                                     OP(B2), DROP(A), DROP(C), OP(UP), OP(ADD_STAT)};

/* A change of the list: @n_removed instructions at @at give place to @added. */
struct list_edit {
  int at, n_removed, n_added;
  struct lade_graph_instr added[4];
  const char *names[4]; /* that the message has; NULL: the list is right */
};

static const struct list_edit edits[] = {
    {0, 0, 0, {OP(0)}, {NULL}},
    {2, 1, 1, {PUT(A, LADE_HOST)}, {"a", "host", "1"}}, /* left there at the end; f0 ran again beside it */
    {3, 0, 1, {DROP(A)}, {"instruction 3", "a", "device"}},
    {1, 0, 1, {DROP(B)}, {"instruction 1", "b", "device"}},
    {0, 0, 1, {REDO(F0)}, {"instruction 0", "f0"}},
    {1, 0, 1, {REDO(F2)}, {"instruction 1", "f2"}},
    {4, 1, 0, {OP(0)}, {"instruction 6", "b2", "3"}}, /* f2 is missing; nothing drops c before b2 */
    {0, 1, 0, {OP(0)}, {"instruction 0", "f1", "0"}},
    {11, 1, 0, {OP(0)}, {"6", "add"}},
    {0, 2, 2, {OP(F1), OP(F0)}, {"instruction 0", "f1"}},
    {12, 0, 1, {OP(ADD_STAT)}, {"instruction 12", "add"}},
    {3, 0, 1, {GET(A, LADE_HOST)}, {"instruction 3", "a", "host"}},
    {3, 0, 1, {GET(A, LADE_STORE)}, {"instruction 3", "a", "store"}},
    {3, 0, 1, {PUT(A, LADE_HOST)}, {"instruction 3", "a", "device"}},
    {3, 0, 1, {PUT(B, LADE_DEVICE)}, {"instruction 3", "b"}},
    {2, 1, 3, {PUT(A, LADE_HOST), REDO(F0), GET(A, LADE_HOST)}, {"instruction 4", "a", "device"}},
    {9, 1, 0, {OP(0)}, {"c", "1", "device"}},
    {12, 0, 1, {DROP(G)}, {"g", "device"}},
    {12, 0, 1, {DROP(W)}, {"instruction 12", "w"}},
    {12, 0, 1, {REDO(UP)}, {"instruction 12", "up"}},
    {12, 0, 1, {REDO(ADD_STAT)}, {"instruction 12", "add", "stat"}},
    {12, 0, 2, {REDO(F0), DROP(A)}, {"instruction 12", "w", "1", "0"}}, /* w has been updated */
    {4, 0, 1, {REDO(F1B)}, {"instruction 4", "b", "2", "1"}},
    {4, 0, 1, {DROP(B)}, {"instruction 5", "f2", "b"}},
    {3, 1, 0, {OP(0)}, {"instruction 3", "f2", "2"}},
    {5, 0, 1, {PUT(W, LADE_HOST)}, {"instruction 7", "f0", "w"}},
    {12, 0, 1, {PUT(W, LADE_STORE)}, {"w", "device"}},
    {0, 0, 1, {{LADE_GRAPH_N_INSTR_KINDS, 0, LADE_DEVICE}}, {"instruction 0", "5"}},
    {0, 0, 1, {{(enum lade_graph_instr_kind)-1, 0, LADE_DEVICE}}, {"instruction 0", "-1"}},
    {12, 0, 1, {DROP(N_STORAGES)}, {"instruction 12", "6"}},
    {12, 0, 1, {DROP(-1)}, {"instruction 12", "-1"}},
    {12, 0, 1, {REDO(N_OPS)}, {"instruction 12", "7"}},
    {12, 0, 1, {REDO(INT32_MIN)}, {"instruction 12"}},
    {12, 0, 1, {PUT(G, (enum lade_space)3)}, {"instruction 12", "g", "3"}},
};

static int edit_replay(const lade_graph *graph, const struct list_edit *edit, struct lade_error *error,
                       struct lade_graph_totals *totals)
{
  struct lade_graph_instr list[LADE_COUNT(right_list) + 4];
  const int n = (int)LADE_COUNT(right_list), n_new = n - edit->n_removed + edit->n_added;
  memcpy(list, right_list, (size_t)edit->at * sizeof(*list));
  memcpy(list + edit->at, edit->added, (size_t)edit->n_added * sizeof(*list));
  memcpy(list + edit->at + edit->n_added, right_list + edit->at + edit->n_removed,
         (size_t)(n - edit->at - edit->n_removed) * sizeof(*list));
  *totals = (struct lade_graph_totals){.struct_size = sizeof(*totals)};
  return lade_graph_replay(graph, list, n_new, error, totals);
}

static void a_wrong_list_is_refused_with_its_instruction(void **state)
{
  lade_graph *graph = replay_graph();
  for (size_t i = 0; i < LADE_COUNT(edits); i++) {
    struct lade_error error = {0};
    struct lade_graph_totals totals;
    const int status = edit_replay(graph, &edits[i], &error, &totals);
    if ((status ? -EINVAL : 0) != status || !status != !edits[i].names[0])
      print_message("edit %d: %d %s\n", (int)i, status, error.text);
    assert_int_equal(status, edits[i].names[0] ? -EINVAL : 0);
    for (int k = 0; k < 4 && edits[i].names[k]; k++)
      assert_names(error.text, edits[i].names[k]);
    if (status)
      assert_int_equal(totals.peak_bytes, 0);
  }
  lade_graph_destroy(graph);
}

static void moves_are_counted_by_a_replay(void **state)
{
  lade_graph *graph = replay_graph();
  struct lade_graph_instr list[LADE_COUNT(right_list)];
  struct lade_graph_totals totals = {.struct_size = sizeof(totals)};
  memcpy(list, right_list, sizeof(list));
  list[2] = (struct lade_graph_instr)PUT(A, LADE_HOST);
  list[6] = (struct lade_graph_instr)GET(A, LADE_HOST);
  assert_int_equal(lade_graph_replay(graph, list, (int)LADE_COUNT(list), NULL, &totals), 0);
  assert_true(totals.n_redone == 0 && totals.moved_bytes == 128 && totals.host_peak_bytes == 64);
  assert_true(totals.store_peak_bytes == 0 && totals.compute_ns == 10 * N_OPS);
  assert_int_equal(totals.peak_bytes, 5 * 64); /* w, stat; a, c, g */
  lade_graph_destroy(graph);
}

static void a_replay_refuses_wrong_arguments(void **state)
{
  lade_graph *graph = replay_graph(), *open = graph_open();
  const int n = (int)LADE_COUNT(right_list);
  struct lade_graph_totals totals = {.struct_size = sizeof(totals)};
  struct lade_error error;
  assert_int_equal(lade_graph_replay(NULL, right_list, n, &error, &totals), -EINVAL);
  assert_int_equal(lade_graph_replay(open, right_list, n, &error, &totals), -EINVAL);
  assert_int_equal(lade_graph_replay(graph, NULL, n, &error, &totals), -EINVAL);
  assert_int_equal(lade_graph_replay(graph, right_list, -1, &error, &totals), -EINVAL);
  assert_int_equal(lade_graph_replay(graph, right_list, n, NULL, NULL), -EINVAL);
  assert_int_equal(lade_graph_replay(graph, NULL, 0, NULL, &totals), -EINVAL); /* no op ran */
  totals.struct_size = 0;
  assert_int_equal(lade_graph_replay(graph, right_list, n, &error, &totals), -EINVAL);
  totals.struct_size = sizeof(totals);
  allocations_left = 0;
  assert_int_equal(lade_graph_replay(graph, right_list, n, &error, &totals), -ENOMEM);
  allocations_left = -1;
  lade_graph_destroy(graph);
  lade_graph_destroy(open);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(plans_of_drawn_graphs_hold_within_every_budget),
      cmocka_unit_test(a_budget_of_the_unconstrained_peak_costs_nothing),
      cmocka_unit_test(plans_of_tiny_graphs_are_the_best_ones),
      cmocka_unit_test(a_graph_without_ops_or_bytes_has_a_plan),
      cmocka_unit_test(a_schedule_that_holds_nothing_is_found),
      cmocka_unit_test(a_kept_value_is_made_again_before_its_inputs_change),
      cmocka_unit_test(a_value_without_its_input_is_not_made_again),
      cmocka_unit_test(extreme_parameters_are_planned_or_refused),
      cmocka_unit_test(a_limit_of_time_ends_the_search),
      cmocka_unit_test(the_longest_limit_of_time_is_none),
      cmocka_unit_test(an_allocation_that_fails_is_an_error_without_a_plan),
      cmocka_unit_test(a_wrong_list_is_refused_with_its_instruction),
      cmocka_unit_test(moves_are_counted_by_a_replay),
      cmocka_unit_test(a_replay_refuses_wrong_arguments),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
