/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A plan with addresses. The search for plans counts live bytes (lade/graph_plan.h), and memory is taken by addresses,
 * in whole chunks. So each plan that the search finds is lowered to a program and packed. If the highest address, or
 * that of another tier, is past its budget, the packer works longer; then the search begins again with a budget that is
 * smaller by the excess. If no attempt fits, the list of the smallest live peak is tried, whose own peak with addresses
 * is the smallest budget that is stated. So a stated budget always finds a plan.
 *
 * Rejected: a search over addresses. A packing is within 1 % of the live peak on almost all graphs, and a search of
 * lists looks at 300,000 of them.
 */
#include <errno.h>
#include <string.h>

#include "lade/pack.h"
#include "program/build.h"
#include "program/lower.h"
#include "recompute/plan.h"
#include "run/step/step_internal.h"

#define ATTEMPTS 6 /* plans with lower and lower live budgets */
#define PACK_WORK 200000000 /* elementary steps of about 1 ns, where the fast pass does not fit */

struct step_planning {
  const struct step_plan_params *params;
  struct lade_error *error;
  struct lade_packer *packer;
  uint64_t limit_bytes[LADE_N_SPACES]; /* budgets; on host and store given storages come on top */
  int64_t start_ns;
};

static uint64_t add_saturated(uint64_t a, uint64_t b)
{
  return a > UINT64_MAX - b ? UINT64_MAX : a + b;
}

/*
 * Return the budget of @space for addresses: given storages of other tiers, which have the first offsets, come on top.
 */
static uint64_t limit_get(const struct step_planning *planning, const struct lade_program *program,
                          enum lade_space space)
{
  uint64_t given_bytes = 0;
  for (int i = 0; i < program->n_buffers && space != LADE_DEVICE; i++) {
    const struct lade_buffer *buffer = &program->buffers[i];
    if (buffer->space == space && buffer->is_resident) /* in these spaces all given storages are resident */
      given_bytes = LADE_MAX(given_bytes, buffer->offset + buffer->bytes);
  }
  return add_saturated(planning->limit_bytes[space], given_bytes);
}

/* Return the bytes by which @program is past its budget in @space. */
static uint64_t excess_get(const struct step_planning *planning, const struct lade_program *program,
                           enum lade_space space)
{
  const uint64_t limit = limit_get(planning, program, space), peak = program->peak_bytes[space];
  return peak > limit ? peak - limit : 0;
}

static bool tiers_fit(const struct step_planning *planning, const struct lade_program *program)
{
  return !excess_get(planning, program, LADE_HOST) && !excess_get(planning, program, LADE_STORE);
}

static bool fits(const struct step_planning *planning, const struct lade_program *program)
{
  return tiers_fit(planning, program) && !excess_get(planning, program, LADE_DEVICE);
}

static int place(const struct step_planning *planning, uint64_t pack_work, struct lade_program *program)
{
  const struct lade_prices prices = {0}; /* queues do not share cores: ops have measured times */
  const struct lade_place_params params = {
      .granule_bytes = {planning->params->chunk_bytes, LADE_BUFFER_ALIGN, LADE_STORE_ALIGN},
      .packer = planning->packer, .pack_work_limit = pack_work, .prices = &prices};
  const int status = lade_program_place_within(&params, program);
  return status ? lade_error_set(planning->error, status, "out of memory placing %d buffers", program->n_buffers) : 0;
}

/* Make the program of a list, with addresses; the packer works longer if the first ones do not fit. */
static int list_place(const struct step_planning *planning, const lade_graph_plan *list,
                      struct lade_program **ret_program)
{
  struct lade_lower_params params = {
      .graph = planning->params->graph, .to_host = planning->params->search.to_host,
      .from_host = planning->params->search.from_host, .to_store = planning->params->search.to_store,
      .from_store = planning->params->search.from_store, .is_unified = planning->params->is_unified};
  struct lade_program *program = NULL;
  params.instrs = lade_graph_plan_instrs(list, &params.n_instrs);
  int status = lade_program_lower(&params, planning->error, &program);
  if (!status)
    status = place(planning, 0, program);
  if (!status && excess_get(planning, program, LADE_DEVICE) &&
      program->live_peak_bytes[LADE_DEVICE] <= planning->limit_bytes[LADE_DEVICE])
    status = place(planning, PACK_WORK, program);
  if (status) {
    lade_program_destroy(program);
    return status;
  }
  *ret_program = program;
  return 0;
}

/* Plan with live budgets, in half of the time that is left, and place the list. */
static int attempt(const struct step_planning *planning, const struct lade_graph_plan_params *base,
                   struct step_plan *plan)
{
  struct lade_graph_plan_params search = *base;
  lade_graph_plan *list = NULL;
  if (search.time_limit_ns)
    search.time_limit_ns = LADE_MAX((search.time_limit_ns - (lade_now_ns() - planning->start_ns)) / 2, 1);
  plan->info = (struct lade_graph_plan_info){.struct_size = sizeof(plan->info)};
  int status = lade_graph_plan_find(planning->params->graph, &search, planning->error, &plan->info, &list);
  if (!status)
    status = list_place(planning, list, &plan->program);
  lade_graph_plan_destroy(list);
  return status;
}

static void program_drop(struct step_plan *plan)
{
  lade_program_destroy(plan->program);
  plan->program = NULL;
}

/* Make the live budget of the device smaller by the excess of @program. False: nothing would be left. */
static bool device_lower(const struct step_planning *planning, const struct lade_program *program,
                         struct lade_graph_plan_params *search)
{
  const uint64_t excess = excess_get(planning, program, LADE_DEVICE);
  if (!excess)
    return true;
  search->budget_bytes = LADE_MIN(search->budget_bytes, program->live_peak_bytes[LADE_DEVICE]);
  if (excess >= search->budget_bytes)
    return false;
  search->budget_bytes -= excess;
  return true;
}

/* Do the same for bytes that wait on the host and in the store; the last attempt is without them. */
static void tiers_lower(const struct step_planning *planning, const struct lade_program *program, bool is_last,
                        struct lade_graph_plan_params *search)
{
  const uint64_t host = excess_get(planning, program, LADE_HOST), store = excess_get(planning, program, LADE_STORE);
  if (host > search->host_budget_bytes) /* transfers of a store have no room on the host */
    search->store_budget_bytes = 0;
  search->host_budget_bytes -= LADE_MIN(host, search->host_budget_bytes);
  search->store_budget_bytes -= LADE_MIN(store, search->store_budget_bytes);
  if (is_last && (host || store))
    search->host_budget_bytes = search->store_budget_bytes = 0;
}

/* Search lists within @budget_bytes until one fits with its addresses. -ENOSPC: none did; plan->program is NULL. */
static int budget_search(const struct step_planning *planning, uint64_t budget_bytes, struct step_plan *plan)
{
  struct lade_graph_plan_params search = planning->params->search;
  search.budget_bytes = budget_bytes;
  for (int i = 0; i < ATTEMPTS; i++) {
    int status = budget_bytes ? attempt(planning, &search, plan) : -ENOSPC;
    if (status)
      return status;
    if (fits(planning, plan->program))
      return 0;
    bool is_possible = device_lower(planning, plan->program, &search);
    tiers_lower(planning, plan->program, i + 2 == ATTEMPTS, &search);
    program_drop(plan);
    if (!is_possible)
      break;
  }
  return -ENOSPC;
}

/*
 * Place the list of the smallest live peak that the search finds within the budgets of host and store. -ENOSPC: there
 * is none, or it does not fit.
 */
static int min_search(const struct step_planning *planning, struct step_plan *plan)
{
  struct lade_graph_plan_params search = planning->params->search;
  search.budget_bytes = LADE_GRAPH_BUDGET_MIN;
  for (int i = 0; i < ATTEMPTS; i++) {
    int status = attempt(planning, &search, plan);
    if (status)
      return status;
    if (tiers_fit(planning, plan->program))
      break;
    tiers_lower(planning, plan->program, i + 2 == ATTEMPTS, &search);
    program_drop(plan);
  }
  if (!plan->program)
    return -ENOSPC;
  plan->min_budget_bytes = plan->program->peak_bytes[LADE_DEVICE];
  if (fits(planning, plan->program))
    return 0;
  program_drop(plan);
  return -ENOSPC;
}

/*
 * Search a faster list in the chunks of the one with the smallest live peak, which leaves its last chunk in part
 * unused.
 */
static int min_improve(struct step_planning *planning, struct step_plan *plan)
{
  const uint64_t bytes = plan->program->peak_bytes[LADE_DEVICE];
  struct step_plan other = {.budget_bytes = bytes, .min_budget_bytes = bytes};
  planning->limit_bytes[LADE_DEVICE] = plan->budget_bytes = bytes;
  int status = budget_search(planning, bytes, &other);
  if (status)
    return status == -ENOSPC ? 0 : status;
  if (other.program->predicted_ns <= plan->program->predicted_ns) {
    program_drop(plan);
    *plan = other;
  } else {
    program_drop(&other);
  }
  return 0;
}

static int refuse(const struct step_planning *planning, uint64_t budget_bytes, const struct step_plan *plan)
{
  char budget[LADE_SIZE_TEXT], min[LADE_SIZE_TEXT];
  if (!plan->min_budget_bytes)
    return lade_error_set(planning->error, -ENOSPC, "no plan of this step within the budgets of host and store (%s) "
                          "was found", lade_size_exact(add_saturated(planning->limit_bytes[LADE_HOST],
                                                                     planning->limit_bytes[LADE_STORE]), budget));
  return lade_error_set(planning->error, -ENOSPC, "no plan of this step within %s was found; the smallest one takes %s",
                        lade_size_exact(budget_bytes, budget), lade_size_exact(plan->min_budget_bytes, min));
}

static int search_run(struct step_planning *planning, struct step_plan *plan)
{
  const uint64_t wanted_bytes = planning->params->search.budget_bytes;
  int status = -ENOSPC;
  planning->limit_bytes[LADE_HOST] = planning->params->search.host_budget_bytes;
  planning->limit_bytes[LADE_STORE] = planning->params->search.store_budget_bytes;
  planning->limit_bytes[LADE_DEVICE] = UINT64_MAX;
  if (wanted_bytes != LADE_GRAPH_BUDGET_MIN && wanted_bytes != LADE_GRAPH_BUDGET_NONE)
    planning->limit_bytes[LADE_DEVICE] = wanted_bytes / planning->params->chunk_bytes * planning->params->chunk_bytes;
  plan->budget_bytes = planning->limit_bytes[LADE_DEVICE];
  if (wanted_bytes != LADE_GRAPH_BUDGET_MIN)
    status = budget_search(planning, plan->budget_bytes, plan);
  if (!status)
    plan->min_budget_bytes = plan->program->peak_bytes[LADE_DEVICE];
  if (status == -ENOSPC)
    status = min_search(planning, plan);
  if (status == -ENOSPC)
    return refuse(planning, wanted_bytes, plan);
  if (!status && wanted_bytes == LADE_GRAPH_BUDGET_MIN)
    status = min_improve(planning, plan);
  return status;
}

static int prove(const struct step_planning *planning, struct step_plan *plan)
{
  uint64_t budgets[LADE_N_SPACES];
  for (int space = 0; space < LADE_N_SPACES; space++)
    budgets[space] = limit_get(planning, plan->program, (enum lade_space)space);
  return lade_program_prove(plan->program, budgets, planning->error);
}

int step_plan_find(const struct step_plan_params *params, struct lade_error *error, struct step_plan *ret_plan)
{
  struct step_planning planning = {.params = params, .error = error, .start_ns = lade_now_ns()};
  struct step_plan plan = {0};
  int status = lade_packer_create(&planning.packer);
  if (status)
    return lade_error_set(error, status, "out of memory for a packer");
  status = search_run(&planning, &plan);
  if (!status)
    status = prove(&planning, &plan);
  lade_packer_destroy(planning.packer);
  if (status) {
    program_drop(&plan);
    if (status == -ENOSPC)
      *ret_plan = (struct step_plan){.min_budget_bytes = plan.min_budget_bytes};
    return status;
  }
  LADE_ASSERT(!LADE_CHECK_FULL || program_is_valid(plan.program));
  *ret_plan = plan;
  return 0;
}
