/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The planner: trajectories.c makes its trajectories, and search.c chooses a pair of proved programs from their states.
 *
 * Ranks that share collectives must decide alike. Ranks of one data parallel group have programs of equal sizes. But
 * each has its block at another address, and so slightly other waits and times. Every rank of a group plans as the
 * group's first rank, and then builds that decision for its own layout.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lade/pack.h"
#include "machine/cost.h"
#include "parallel/schedule.h"
#include "program/comm_sequence.h"
#include "recompute/decision.h"
#include "recompute/search/plan_internal.h"

/* A fixed machine, whose costs of moving bytes and of computing have common proportions. */
static const struct lade_machine plain_machine = {
    .name = "plain", .n_cores = 8, .is_unified = true,
    .matmul_flops_per_s = {[LADE_F32] = 1e12, [LADE_BF16] = 1e12, [LADE_F16] = 1e12}, .device_bytes_per_s = 1e11,
    .launch_ns = 1000, .to_host = {10000000000, 1000}, .to_device = {10000000000, 1000}, .is_duplex = true,
    .host_bytes_per_s = 5e10, .store = {.bytes = 1, .read_bytes_per_s = 4e9, .write_bytes_per_s = 2e9}};

/* ---- the start of a trajectory ---- */

static void recipe_apply(lade_planner *planner)
{
  const struct lade_model_graph *graph = planner->params.graph;
  if (planner->params.recipe == LADE_RECIPE_AUTO)
    return;
  lade_residency_apply_recipe(graph, planner->params.recipe, planner->start);
  for (int tensor = 0; tensor < graph->n_tensors; tensor++)
    planner->is_pinned[tensor] |= lade_tensor_is_repeatable(graph, tensor);
}

static void overrides_apply(lade_planner *planner)
{
  for (int i = 0; i < planner->params.n_overrides; i++) {
    const struct lade_change *pin = &planner->params.overrides[i];
    lade_change_apply(pin, planner->start);
    planner->is_pinned[lade_change_index(planner->params.graph, pin)] = true;
  }
}

/* ---- public ---- */

static int pricing_init(const lade_planner *planner, const struct lade_prices *prices, struct pricing *pricing)
{
  const struct lade_plan_params *params = &planner->params;
  pricing->params = *params;
  pricing->params.prices = prices;
  pricing->unit_costs = (struct lade_unit_costs){
      .op_ns = prices->op_ns, .update_ns = {prices->update_ns[0], prices->update_ns[1], prices->update_ns[2]},
      .update_near_ns = prices->update_near_ns, .is_unified = params->is_unified,
      .to_host_ns = prices->to_host.ns_per_byte, .to_device_ns = prices->to_device.ns_per_byte,
      .read_ns = prices->read.ns_per_byte, .write_ns = prices->write.ns_per_byte,
      .copy_cores = prices->copy_cores, .n_cores = prices->n_cores,
      .n_microbatches = params->n_microbatches};
  return lade_pricer_create(params->graph, &pricing->unit_costs, &pricing->pricer);
}

static int plain_init(lade_planner *planner)
{
  struct lade_cost cost;
  lade_cost_init(&cost, &plain_machine);
  cost.machine.is_unified = planner->params.is_unified;
  int status = lade_cost_prices(&cost, planner->params.graph, &planner->plain_prices);
  lade_cost_finish(&cost);
  planner->plain_prices.streaming = planner->params.prices->streaming; /* as the run streams them */
  return status ? status : pricing_init(planner, &planner->plain_prices, &planner->plain);
}

/* Check that the planner supports the layout. */
static int layout_check(const struct lade_plan_params *params, struct lade_error *error)
{
  const struct lade_layout *layout = params->layout;
  const bool is_gathering = lade_shard_count(layout) > 1 && layout->zero == LADE_ZERO_MAX;
  for (int i = 0; i < params->n_overrides && !is_gathering; i++) {
    const struct lade_change *pin = &params->overrides[i];
    if (pin->kind == LADE_CHANGE_SAVED && params->graph->tensors[pin->id].kind == LADE_TENSOR_PARAM)
      return lade_error_set(error, -EINVAL, "--residency: copies are kept or dropped where ranks gather them: with "
                            "--zero 3");
  }
  return 0;
}

/*
 * True if rows that several ranks hold begin with a block of 8-bit moments. Otherwise each rank's own rows would share
 * the block's scale, and the copies would diverge.
 */
static bool copies_begin_block(const struct lade_model_graph *graph, const struct lade_param *param)
{
  const struct lade_tensor *tensor = &graph->tensors[param->tensor];
  const int64_t row_elements = tensor->n_dims > 1 ? tensor->dims[1] : 1;
  return graph->moments != LADE_MOMENTS_8BIT || param->n_sharers == 1 ||
         param->first_shared_row * row_elements % LADE_MOMENT_BLOCK == 0;
}

/*
 * Check that the sharers of every gradient are a group of the layout, and that their copies stay equal. No layout: 0.
 */
static int parts_check(const struct lade_model_graph *graph, const struct lade_layout *layout, struct lade_error *error)
{
  for (int param = 0; param < graph->n_params && layout; param++) {
    const int n = graph->params[param].n_sharers;
    if (!copies_begin_block(graph, &graph->params[param]))
      return lade_error_set(error, -EINVAL, "model %s: %d ranks share a key head, whose rows begin within a block of "
                            "%d elements that --moments 8bit scales together; use --moments bf16, or --tp %lld at most",
                            graph->model.name, n, LADE_MOMENT_BLOCK, (long long)graph->model.n_kv_heads);
    if (n > 1 && n != lade_layout_size(layout, lade_param_parts(graph, layout, param).axis))
      return lade_error_set(error, -EINVAL, "model %s: %d ranks share a key head, and the layout was not made for its "
                            "%lld KV heads", graph->model.name, n, (long long)graph->model.n_kv_heads);
  }
  return 0;
}

static void leader_set(lade_planner *planner)
{
  if (!planner->own_layout)
    return;
  planner->leader = *planner->own_layout;
  planner->leader.rank = lade_mesh_member(&planner->leader.mesh, LADE_AXIS_DP, planner->leader.rank, 0);
  if (planner->leader.rank != planner->own_layout->rank)
    planner->params.layout = &planner->leader;
}

int lade_plan_units_check(const struct lade_model_graph *graph, struct lade_error *error)
{
  if (graph->n_units <= LADE_UNITS_MAX)
    return 0;
  return lade_error_set(error, -EINVAL, "model %s: %d layers, with embedding and head, on one rank: a plan takes at "
                        "most %d; state fewer --layers, or cut the model into more stages with --pp",
                        graph->model.name, graph->n_units, LADE_UNITS_MAX);
}

int lade_planner_create(const struct lade_plan_params *params, struct lade_error *error, lade_planner **ret_planner)
{
  if (params->n_microbatches < 1 || params->n_microbatches > LADE_MICROBATCHES_MAX)
    return lade_error_set(error, -EINVAL, "%d microbatches in a step: there may be 1 to %d; raise --micro-batch",
                          params->n_microbatches, LADE_MICROBATCHES_MAX);
  const struct lade_pipeline pipeline = lade_pipeline_get(params->layout, params->n_microbatches, true);
  int refusal = lade_schedule_check(&pipeline, error);
  if (refusal)
    return refusal;
  if (params->optimizer_in_backward && params->graph->n_params > LADE_IN_BACKWARD_PARAMS_MAX)
    return lade_error_set(error, -EINVAL, "--optimizer-in-backward: the model has %d parameter tensors, and it takes "
                          "at most %d; leave it out", params->graph->n_params, LADE_IN_BACKWARD_PARAMS_MAX);
  int status = lade_plan_units_check(params->graph, error);
  if (!status)
    status = layout_check(params, error);
  if (!status)
    status = parts_check(params->graph, params->layout, error);
  if (status)
    return status;
  lade_planner *planner = calloc(1, sizeof(*planner));
  if (!planner)
    return lade_error_set(error, -ENOMEM, "planning ran out of memory");
  planner->params = *params;
  if (params->chunk_bytes) /* a tier takes whole chunks: bytes beside them would mislead the descent */
    planner->params.host_bytes -= params->host_bytes % params->chunk_bytes;
  planner->own_layout = params->layout;
  leader_set(planner);
  planner->is_pinned = calloc((size_t)lade_change_count(params->graph) + 1, sizeof(bool));
  status = planner->is_pinned ? lade_residency_create(params->graph, &planner->start) : -ENOMEM;
  if (!status)
    status = pricing_init(planner, params->prices, &planner->stated);
  if (!status)
    status = plain_init(planner);
  if (!status)
    status = lade_packer_create(&planner->packer);
  if (!status) {
    recipe_apply(planner);
    overrides_apply(planner);
    status = planner_make_trajectories(planner);
  }
  if (status) {
    lade_planner_destroy(planner);
    return lade_error_set(error, status, "planning ran out of memory");
  }
  *ret_planner = planner;
  return 0;
}

void lade_planner_destroy(lade_planner *planner)
{
  if (!planner)
    return;
  for (int i = 0; i < planner->n_trajectories; i++)
    descent_finish(&planner->trajectories[i]);
  LADE_ARRAY_FREE(&planner->peaks);
  lade_packer_destroy(planner->packer);
  lade_pricer_destroy(planner->plain.pricer);
  lade_pricer_destroy(planner->stated.pricer);
  lade_prices_finish(&planner->plain_prices);
  lade_residency_destroy(planner->start);
  free(planner->is_pinned);
  free(planner);
}

/* Return the bytes of all parameters and of their state, wherever they are. */
static uint64_t state_bytes(const lade_planner *planner)
{
  const struct lade_model_graph *graph = planner->params.graph;
  uint64_t bytes = 0;
  for (int param = 0; param < graph->n_params; param++) {
    bytes += lade_value_bytes(graph, graph->params[param].tensor);
    for (int part = 0; part < LADE_N_PARTS; part++) {
      const int tensor = lade_value_part(graph, param, (enum lade_part)part);
      bytes += tensor < 0 ? 0 : lade_value_bytes(graph, tensor);
    }
  }
  return bytes / (uint64_t)lade_shard_count(planner->params.layout);
}

/* Name the ways to make room, the first of which depends on the need: the state's or that of activations. */
static int room_words(const lade_planner *planner, uint64_t device_bytes, char *words, size_t words_bytes)
{
  const struct lade_plan_params *params = &planner->params;
  const uint64_t needed = state_bytes(planner), has = device_bytes + params->host_bytes + params->store_bytes;
  const char *store =
      params->store_bytes ? ", or a larger store: --store-budget, free bytes in --store" : ", or a --store";
  char state[32];
  if (needed > has || params->graph->batch == 1)
    return snprintf(words, words_bytes, "parameters and optimizer state alone are %s; more room comes from --moments "
                    "8bit, a larger --host-budget%s", lade_size_format(needed, state, sizeof(state)), store);
  return snprintf(words, words_bytes, "more room comes from a smaller --micro-batch, a larger --host-budget%s", store);
}

static int refuse(lade_planner *planner, uint64_t device_bytes, struct lade_error *error)
{
  char words[256], asked[LADE_SIZE_TEXT], min[LADE_SIZE_TEXT], host[32], store_room[32];
  struct lade_plan_bounds bounds;
  int status = lade_planner_get_bounds(planner, &bounds);
  if (status)
    return lade_error_set(error, status, "planning ran out of memory");
  if (bounds.min_bytes == UINT64_MAX)
    return lade_error_set(error, -EOVERFLOW,
                          "does not fit in any budget found: of what would have to leave the device the host may hold "
                          "%s and the store %s; raise --host-budget or --store-budget, give the store more room, or "
                          "lower --micro-batch", lade_size_format(planner->params.host_bytes, host, sizeof(host)),
                          lade_size_format(planner->params.store_bytes, store_room, sizeof(store_room)));
  room_words(planner, device_bytes, words, sizeof(words));
  return lade_error_set(error, -EOVERFLOW, "does not fit in %s: the smallest budget found is %s; %s",
                        lade_size_exact(device_bytes, asked), lade_size_exact(bounds.min_bytes, min), words);
}

/* Build the decision for this rank. All sizes are those of the plan leader, so it packs as tightly. */
static int own_plan(const lade_planner *planner, struct lade_plan **plan)
{
  if (planner->own_layout == planner->params.layout)
    return 0;
  struct lade_plan *decided = *plan;
  struct plan_trial trial = {.device_bytes = decided->peak_bytes[LADE_DEVICE], .worst_ns = INT64_MAX};
  int status = planner_residency_try(planner, planner->own_layout, decided->residency, &trial, plan);
  LADE_ASSERT(status || *plan);
  lade_plan_destroy(decided);
  return status;
}

/* Prove @plan; destroy it on failure. */
static int plan_prove(const struct lade_plan_params *params, struct lade_plan *plan, uint64_t device_bytes,
                      struct lade_error *error)
{
  const uint64_t budgets[LADE_N_SPACES] = {device_bytes, planner_host_budget(params), params->store_bytes};
  int status = lade_program_prove(plan->train, budgets, error);
  if (!status)
    status = lade_program_prove(plan->eval, budgets, error);
  if (!status)
    status = lade_program_prove_shared(plan->train, plan->eval, error);
  if (status)
    lade_plan_destroy(plan);
  return status;
}

int lade_planner_plan(lade_planner *planner, uint64_t device_bytes, struct lade_error *error,
                      struct lade_plan **ret_plan)
{
  struct lade_plan *best = NULL;
  int status = planner_best(planner, device_bytes, &best);
  if (status)
    return lade_error_set(error, status, "planning ran out of memory");
  if (!best)
    return refuse(planner, device_bytes, error);
  status = own_plan(planner, &best);
  if (status)
    return lade_error_set(error, status, "planning ran out of memory");
  status = plan_prove(&planner->params, best, device_bytes, error);
  if (!status)
    *ret_plan = best;
  return status;
}

int lade_plan_follow(const struct lade_plan_params *params, const struct lade_decision *decided,
                     uint64_t device_bytes, struct lade_error *error, struct lade_plan **ret_plan)
{
  struct lade_planner planner = {.params = *params};
  struct plan_trial trial = {.device_bytes = decided->peak_bytes[LADE_DEVICE], .worst_ns = INT64_MAX};
  struct lade_plan *plan = NULL;
  int status = lade_packer_create(&planner.packer);
  if (!status)
    status = planner_residency_try(&planner, params->layout, decided->residency, &trial, &plan);
  lade_packer_destroy(planner.packer);
  if (status)
    return lade_error_set(error, status, "planning ran out of memory");
  if (!plan)
    return lade_error_set(error, -EINVAL, "what was decided for another rank of the stage does not fit this one");
  status = plan_prove(params, plan, device_bytes, error);
  if (!status)
    *ret_plan = plan;
  return status;
}

/* Compare the calls of two plans on @axis, one by one. */
static int calls_compare(const struct lade_plan *plan, const struct lade_plan *other, enum lade_axis axis,
                         struct lade_error *error)
{
  struct lade_calls calls = {0}, others = {0};
  int status = lade_calls_list(plan->train, plan->eval, axis, &calls);
  if (!status)
    status = lade_calls_list(other->train, other->eval, axis, &others);
  if (status)
    lade_error_set(error, status, "no memory for the calls of two ranks");
  else if (calls.n != others.n ||
           (calls.n && memcmp(calls.items, others.items, (size_t)calls.n * sizeof(*calls.items))))
    status = lade_error_set(error, -EINVAL, "their calls along %s differ", lade_axis_name(axis));
  free(calls.items);
  free(others.items);
  return status;
}

int lade_plan_compare(const struct lade_plan *plan, const struct lade_plan *other, struct lade_error *error)
{
  int status = 0;
  for (int space = 0; space < LADE_N_SPACES && !status; space++) {
    const unsigned long long bytes = plan->peak_bytes[space], other_bytes = other->peak_bytes[space];
    if (bytes != other_bytes)
      status = lade_error_set(error, -EINVAL, "they need %llu and %llu bytes of the %s", bytes, other_bytes,
                              lade_space_name((enum lade_space)space));
  }
  for (int axis = 0; axis < LADE_N_AXES && !status; axis++)
    status = calls_compare(plan, other, (enum lade_axis)axis, error);
  return status;
}
