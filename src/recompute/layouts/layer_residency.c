/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Residencies of a layer for the search over layouts, by the residency planner's prices of changes.
 *
 * All layers of a layout have one residency, so changes are priced on one layer. It begins with all values kept. Each
 * round makes the change with the least estimated time per byte: a value is recomputed, or copied to the host and back.
 * Each round's residency is costed by the share's walk. The rounds end when only the layer's input waits in device
 * memory. Two descents are made, one with copies and one without, and the three recipes are added. Of all these
 * residencies those remain that no other beats in both time and memory.
 *
 * A copy is priced above its time on the link: by the time of both halves over that of the forward half, because all
 * copies out must fit beside the forward half.
 *
 * O(rounds * values * ops), with a few tens of rounds and values.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "recompute/change_price.h"
#include "recompute/layouts/share_internal.h"
#include "recompute/plan.h"

#define N_DESCENTS 4
#define CANDIDATES_MAX (N_DESCENTS * LADE_LAYER_VALUES_MAX + LADE_N_RECIPES) /* residencies of descents and recipes */
#define COPY_EXPOSED 0.05 /* as the planner's first trajectory (plan.c) */

struct residency_maker {
  const struct share_basis *basis;
  bool stores_values;
  bool has_experts; /* recipes alone: a mixture's rows are no values of the dense layer's graph */
  struct lade_unit_costs unit_costs;
  lade_pricer *pricer;
  struct lade_residency *residency;
  bool *is_saved; /* by tensor: waits in device memory */
  struct lade_queue_times times;
  int n;
  struct lade_share_cost *found;
};

/* ---- places ---- */

int share_values_visit(const struct lade_model_graph *graph, int unit, share_visit *visit, void *user)
{
  const struct lade_unit *of = &graph->units[unit];
  int place = 0;
  for (int op = of->first_fwd; op < of->first_fwd + of->n_fwd; op++) {
    for (int i = 0; i < graph->ops[op].n_out; i++) {
      const int tensor = graph->ops[op].out[i];
      if (tensor >= 0 && graph->tensors[tensor].kind == LADE_TENSOR_ACTIVATION)
        visit(user, graph, tensor, place++);
    }
  }
  return place;
}

struct policies_copy {
  const struct lade_residency *residency;
  struct lade_layer_residency *layer;
};

static void policy_copy(void *user, const struct lade_model_graph *graph, int tensor, int place)
{
  const struct policies_copy *copy = user;
  if (place < LADE_LAYER_VALUES_MAX)
    copy->layer->saved[place] = copy->residency->choices[tensor].saved;
}

/* ---- one descent ---- */

static int residency_add(struct residency_maker *m, enum lade_recipe recipe)
{
  struct lade_share_cost *cost = &m->found[m->n];
  struct policies_copy copy = {m->residency, &cost->residency};
  memset(m->is_saved, 0, (size_t)m->basis->graph->n_tensors * sizeof(*m->is_saved));
  int status = share_walk_cost(m->basis, m->residency, recipe, m->is_saved, cost);
  if (status)
    return status;
  cost->residency.n = share_values_visit(m->basis->graph, SHARE_LAYER, policy_copy, &copy);
  m->n++;
  return 0;
}

struct best_change {
  struct lade_change change;
  struct lade_queue_times added;
  double score;
  bool is_found;
};

struct change_search {
  struct residency_maker *maker;
  bool may_copy, may_store; /* to the host, to drives */
  struct best_change best;
};

static void change_try(struct change_search *search, int tensor, enum lade_residency_policy to)
{
  struct residency_maker *m = search->maker;
  const struct lade_change change = {LADE_CHANGE_SAVED, (uint8_t)to, tensor};
  const struct lade_queue_times added = lade_change_price(m->pricer, m->residency, &change);
  const struct lade_queue_times sum = lade_queue_times_sum(&m->times, &added, 1);
  const double score = (lade_queue_times_ns(m->pricer, &sum) - lade_queue_times_ns(m->pricer, &m->times)) /
                       (double)m->basis->graph->tensors[tensor].bytes;
  if (!search->best.is_found || score < search->best.score)
    search->best = (struct best_change){change, added, score, true};
}

/* True for the value that the next layer begins with: without it there is nothing to recompute a layer from. */
static bool is_layer_output(const struct lade_model_graph *graph, int tensor)
{
  const struct lade_unit *head = &graph->units[SHARE_HEAD];
  bool is_read = false;
  for (int op = head->first_fwd; op < head->first_fwd + head->n_fwd; op++) {
    for (int i = 0; i < graph->ops[op].n_in; i++)
      is_read |= graph->ops[op].in[i] == tensor;
  }
  return is_read;
}

static void value_try(void *user, const struct lade_model_graph *graph, int tensor, int place)
{
  struct change_search *search = user;
  if (place >= LADE_LAYER_VALUES_MAX || !search->maker->is_saved[tensor] || is_layer_output(graph, tensor) ||
      search->maker->residency->choices[tensor].saved != LADE_RESIDENCY_KEEP)
    return;
  if (lade_tensor_is_repeatable(graph, tensor))
    change_try(search, tensor, LADE_RESIDENCY_RECOMPUTE);
  if (search->may_copy)
    change_try(search, tensor, LADE_RESIDENCY_HOST);
  if (search->may_store)
    change_try(search, tensor, LADE_RESIDENCY_STORE);
}

/* Go from keeping everything to the least memory, and add each residency on the way. */
static int descent_add(struct residency_maker *m, bool may_copy, bool may_store)
{
  struct change_search search = {.maker = m, .may_copy = may_copy, .may_store = may_store};
  int status = share_residency_create(m->basis, &m->residency), n_rounds = 0;
  if (!status)
    status = residency_add(m, LADE_RECIPE_AUTO);
  if (status)
    return status;
  const struct lade_unit_cost *layer = &m->found[m->n - 1].layer;
  m->times = (struct lade_queue_times){.compute_ns = layer->forward_ns + layer->backward_ns};
  const double share = layer->forward_ns > 0 ? m->times.compute_ns / layer->forward_ns : 1;
  m->unit_costs.to_host_ns = m->basis->prices.to_host.ns_per_byte * share;
  m->unit_costs.to_device_ns = m->basis->prices.to_device.ns_per_byte * share;
  m->unit_costs.write_ns = m->basis->prices.write.ns_per_byte; /* both directions are one queue: no share */
  m->unit_costs.read_ns = m->basis->prices.read.ns_per_byte;
  do {
    search.best.is_found = false;
    lade_pricer_rebase(m->pricer, m->residency);
    share_values_visit(m->basis->graph, SHARE_LAYER, value_try, &search);
    if (!search.best.is_found)
      break;
    lade_change_apply(&search.best.change, m->residency);
    m->times = lade_queue_times_sum(&m->times, &search.best.added, 1);
    status = residency_add(m, LADE_RECIPE_AUTO);
  } while (!status && ++n_rounds < LADE_LAYER_VALUES_MAX - 1);
  lade_residency_destroy(m->residency);
  m->residency = NULL;
  return status;
}

static int recipe_add(struct residency_maker *m, enum lade_recipe recipe)
{
  int status = share_residency_create(m->basis, &m->residency);
  if (!status) {
    lade_residency_apply_recipe(m->basis->graph, recipe, m->residency);
    status = residency_add(m, recipe);
  }
  lade_residency_destroy(m->residency);
  m->residency = NULL;
  return status;
}

/* ---- the best of all ---- */

static double layer_ns(const struct lade_share_cost *cost)
{
  return cost->layer.forward_ns + cost->layer.backward_ns;
}

static int residency_compare(const void *a, const void *b)
{
  const struct lade_share_cost *x = a, *y = b;
  if (layer_ns(x) != layer_ns(y))
    return layer_ns(x) < layer_ns(y) ? -1 : 1;
  if (x->layer.saved_bytes != y->layer.saved_bytes)
    return x->layer.saved_bytes < y->layer.saved_bytes ? -1 : 1;
  /* of equals the solver's comes first, because a plan without --recompute finds it again at the same price */
  return (y->residency.recipe == LADE_RECIPE_AUTO) - (x->residency.recipe == LADE_RECIPE_AUTO);
}

/* True if a faster residency among the first @n needs no more bytes than @cost on any tier. */
static bool is_beaten(const struct residency_maker *m, int n, const struct lade_share_cost *cost)
{
  for (int i = 0; i < n; i++) {
    const struct lade_unit_cost *faster = &m->found[i].layer;
    if (faster->saved_bytes <= cost->layer.saved_bytes && faster->host_bytes <= cost->layer.host_bytes &&
        faster->store_bytes <= cost->layer.store_bytes)
      return true;
  }
  return false;
}

/* Return which of the first @n residencies needs the least device memory, of those without copies if @is_here. */
static int least_find(const struct residency_maker *m, int n, bool is_here)
{
  int least = 0; /* the fastest: all values kept */
  for (int i = 1; i < n; i++) {
    const struct lade_unit_cost *layer = &m->found[i].layer;
    const bool has_copies = layer->host_bytes > 0 || layer->store_bytes > 0;
    if (!(is_here && has_copies) && layer->saved_bytes < m->found[least].layer.saved_bytes)
      least = i;
  }
  return least;
}

/*
 * Keep the residencies that need fewer bytes of a tier than each faster one. Of very many, keep those that need the
 * least device memory and, of the others, evenly spread ones.
 */
static void residencies_pick(struct residency_maker *m, struct lade_share_residencies *residencies)
{
  bool is_kept[CANDIDATES_MAX] = {false};
  int n = 0;
  qsort(m->found, (size_t)m->n, sizeof(*m->found), residency_compare);
  for (int i = 0; i < m->n; i++) {
    if (!is_beaten(m, n, &m->found[i]))
      m->found[n++] = m->found[i];
  }
  const int n_spread = LADE_MIN(n, LADE_SHARE_RESIDENCIES_MAX - 2);
  for (int i = 0; i < n_spread; i++)
    is_kept[n_spread > 1 ? i * (n - 1) / (n_spread - 1) : 0] = true;
  is_kept[least_find(m, n, false)] = is_kept[least_find(m, n, true)] = true;
  residencies->n = 0;
  for (int i = 0; i < n; i++) {
    if (is_kept[i])
      residencies->items[residencies->n++] = m->found[i];
  }
}

static int residencies_fill(struct residency_maker *m, bool may_copy, struct lade_share_residencies *residencies)
{
  static const enum lade_recipe recipes[] = {LADE_RECIPE_NONE, LADE_RECIPE_SELECTIVE, LADE_RECIPE_FULL};
  const struct lade_prices *prices = &m->basis->prices;
  m->unit_costs = (struct lade_unit_costs){.op_ns = prices->op_ns, .n_shards = 1, .n_grad_shards = 1,
                                           .n_microbatches = 1, .exposed_fraction = COPY_EXPOSED};
  m->is_saved = calloc((size_t)m->basis->graph->n_tensors + 1, sizeof(*m->is_saved));
  m->found = calloc(CANDIDATES_MAX, sizeof(*m->found));
  int status = m->is_saved && m->found ? lade_pricer_create(m->basis->graph, &m->unit_costs, &m->pricer) : -ENOMEM;
  for (size_t i = 0; i < LADE_COUNT(recipes) && !status; i++)
    status = recipe_add(m, recipes[i]);
  if (!status && !m->has_experts)
    status = descent_add(m, false, false);
  if (!status && !m->has_experts && may_copy)
    status = descent_add(m, true, false);
  for (int may_mix = 0; may_mix < 2 && !status && !m->has_experts && m->stores_values; may_mix++)
    status = descent_add(m, may_mix, true);
  if (!status)
    residencies_pick(m, residencies);
  lade_residency_destroy(m->residency);
  lade_pricer_destroy(m->pricer);
  free(m->is_saved);
  free(m->found);
  return status;
}

int lade_share_residencies_make(const struct lade_layout_job *job, const struct lade_share_key *key,
                                struct lade_error *error, struct lade_share_residencies *ret_residencies)
{
  struct share_basis basis;
  int status;
  if (key->recipe != LADE_RECIPE_AUTO) {
    ret_residencies->n = 1;
    status = lade_share_cost_make(job, key, error, &ret_residencies->items[0]);
  } else {
    status = share_basis_init(job, key, error, &basis);
    if (!status) {
      struct residency_maker maker = {.basis = &basis, .has_experts = job->experts,
                                      .stores_values = job->stores_values};
      status = residencies_fill(&maker, !job->cluster->device.is_unified, ret_residencies);
      if (status)
        lade_error_set(error, status, "no memory for the residencies of a layer");
    }
    share_basis_finish(&basis);
  }
  for (int i = 0; i < (status ? 0 : ret_residencies->n); i++) {
    lade_experts_cost_add(job, key, &ret_residencies->items[i]);
    lade_context_cost_add(job, key, LADE_MAX(job->n_context, 1), &ret_residencies->items[i]);
  }
  return status;
}

/* ---- names ---- */

struct names_list {
  const struct lade_layer_residency *residency;
  int policy;
  size_t bytes, at;
  char *text;
};

static void name_add(void *user, const struct lade_model_graph *graph, int tensor, int place)
{
  struct names_list *list = user;
  if (place >= list->residency->n || list->residency->saved[place] != list->policy ||
      graph->tensors[tensor].is_optional || list->at >= list->bytes)
    return;
  const int n = snprintf(list->text + list->at, list->bytes - list->at, "%s%s", list->at ? ", " : "",
                         lade_name_within(graph, tensor));
  list->at += n > 0 ? (size_t)n : 0;
}

int lade_layer_residency_names(const struct lade_layout_job *job, const struct lade_share_key *key,
                               const struct lade_layer_residency *residency, int policy, size_t text_bytes,
                               char *ret_text)
{
  struct share_basis basis;
  struct names_list list = {residency, policy, text_bytes, 0, ret_text};
  int status = share_basis_init(job, key, NULL, &basis);
  ret_text[0] = 0;
  if (!status)
    share_values_visit(basis.graph, SHARE_LAYER, name_add, &list);
  share_basis_finish(&basis);
  return status;
}
