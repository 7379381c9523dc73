/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The proved program of one stage of a layout.
 *
 * A stage's list repeats itself once its pipeline is full. So a program over two more microbatches than are in flight
 * has the peak of the whole list. It is built with those: the time to build it does not grow with the batch. A program
 * with fewer microbatches than that is whole.
 *
 * Under ZeRO 2 and 3 gathers begin ahead of their use, and gradients stay until they are reduced. Where the budget has
 * no room for both, the program gathers just in time: it is slower than its layout's price, and fits.
 *
 * The layout's residency states a policy for each value of a share's layer (layer_residency.c). A value of the stage
 * takes the policy of the value with its name in that layer. So a layer of another shape, without rotary positions for
 * instance, takes the policies of the values that it has.
 */
#include <errno.h>
#include <string.h>

#include "base/base.h"
#include "lade/pack.h"
#include "program/build.h"
#include "recompute/layouts/share_internal.h"
#include "recompute/plan.h"

/* Return the microbatches of a program with the peak of @n: a multiple of the stages where the schedule asks for it. */
static int enough_microbatches(const struct lade_layout *layout, int stage, int n)
{
  const struct lade_pipeline whole = lade_pipeline_get(layout, n, true);
  int enough = lade_schedule_in_flight(&whole, stage) + 2;
  if (layout->schedule == LADE_SCHEDULE_INTERLEAVED)
    enough = (lade_div_up(enough, whole.n_chunks) + whole.n_stages) / whole.n_stages * whole.n_stages;
  if (layout->schedule == LADE_SCHEDULE_ZBH1 || layout->schedule == LADE_SCHEDULE_ZBH2)
    enough += 2 * whole.n_stages;
  return LADE_MIN(enough, n);
}

static int graph_make(const struct lade_layout_job *job, const struct lade_layout *layout, int64_t micro_batch,
                      struct lade_error *error, struct lade_model_graph **ret_graph)
{
  const struct lade_model_graph_params params = {
      .struct_size = sizeof(params), .model = job->model, .dtype = job->dtype, .batch = micro_batch,
      .seq_len = job->seq_len, .dropout = (float)job->dropout, .kernels = job->kernels, .n_threads = 1,
      .moments = job->moments, .master = job->master, .grad_dtype = job->grad_dtype,
      .fuses_gelu = lade_machine_fuses_gelu(&job->cluster->device, job->dtype), .fuses_gelu_fwd = job->fuses_gelu_fwd,
      .share = {.tp = lade_layout_size(layout, LADE_AXIS_TP), .tp_rank = lade_layout_position(layout, LADE_AXIS_TP),
                .is_sequence = layout->is_sequence, .pp = lade_layout_size(layout, LADE_AXIS_PP),
                .pp_rank = lade_layout_position(layout, LADE_AXIS_PP), .n_chunks = layout->virtual_stages,
                .is_scattered = lade_layout_sends_scattered(job, layout, micro_batch),
                .n_shards = layout->zero == LADE_ZERO_MAX ? lade_shard_count(layout) : 1}};
  return lade_model_graph_create(&params, error, ret_graph);
}

/*
 * Drop gathered copies between the halves of microbatches under ZeRO-3. Each is gathered again from its shards, so no
 * copy moves to another tier.
 */
static void gathers_drop(const struct lade_model_graph *graph, const struct lade_layout *layout,
                         struct lade_residency *residency)
{
  const bool is_gathering = layout->zero == LADE_ZERO_MAX && lade_shard_count(layout) > 1;
  for (int param = 0; param < graph->n_params && is_gathering; param++)
    residency->choices[graph->params[param].tensor].saved = LADE_RESIDENCY_HOST;
}

/* ---- residency ---- */

struct stage_values {
  const struct lade_model_graph *layer; /* of a share */
  const struct lade_layer_residency *policies;
  int32_t tensors[LADE_LAYER_VALUES_MAX]; /* of @layer, by place */
  struct lade_residency *residency;
};

static void layer_value_list(void *user, const struct lade_model_graph *graph, int tensor, int place)
{
  struct stage_values *values = user;
  (void)graph;
  if (place < LADE_LAYER_VALUES_MAX)
    values->tensors[place] = tensor;
}

static void stage_value_set(void *user, const struct lade_model_graph *graph, int tensor, int place)
{
  struct stage_values *values = user;
  const char *name = lade_name_within(graph, tensor);
  (void)place;
  for (int i = 0; i < values->policies->n; i++) {
    if (strcmp(lade_name_within(values->layer, values->tensors[i]), name) == 0)
      values->residency->choices[tensor].saved = values->policies->saved[i];
  }
}

static bool is_layer_unit(const struct lade_model_graph *graph, int unit)
{
  return strncmp(graph->units[unit].name, "h.", 2) == 0;
}

/* Apply the policies of a share's layer to all layers of the stage. */
static int policies_apply(const struct lade_layout_job *job, const struct lade_layout *layout, int64_t micro_batch,
                          const struct lade_layer_residency *policies, const struct lade_stage_build *build,
                          struct lade_error *error)
{
  const struct lade_share_key key = {lade_layout_size(layout, LADE_AXIS_TP), layout->is_sequence, micro_batch,
                                     LADE_RECIPE_AUTO};
  struct share_basis basis;
  struct stage_values values = {.policies = policies, .residency = build->residency};
  int status = share_basis_init(job, &key, error, &basis);
  if (!status) {
    values.layer = basis.graph;
    const int n = share_values_visit(basis.graph, SHARE_LAYER, layer_value_list, &values);
    LADE_ASSERT(policies->n == LADE_MIN(n, LADE_LAYER_VALUES_MAX));
    for (int unit = 0; unit < build->graph->n_units; unit++) {
      if (is_layer_unit(build->graph, unit))
        share_values_visit(build->graph, unit, stage_value_set, &values);
    }
  }
  share_basis_finish(&basis);
  return status;
}

/* True if values or optimizer state are copied to the host or to drives, and back. */
static bool has_copies(const struct lade_stage_residency *tiers)
{
  bool is_copied = tiers->state_tier != LADE_TIER_DEVICE;
  for (int i = 0; i < tiers->layer.n; i++)
    is_copied |= tiers->layer.recipe == LADE_RECIPE_AUTO && (tiers->layer.saved[i] == LADE_RESIDENCY_HOST ||
                                                             tiers->layer.saved[i] == LADE_RESIDENCY_STORE);
  return is_copied;
}

/* True if each microbatch gathers working copies, or scatters gradients, beside kernels. */
static bool is_in_motion(const struct lade_layout *layout)
{
  return layout->zero >= 2 && lade_shard_count(layout) > 1;
}

static int residency_make(const struct lade_layout_job *job, int64_t micro_batch,
                          const struct lade_stage_residency *tiers, struct lade_stage_build *build,
                          struct lade_error *error)
{
  int status = lade_residency_create(build->graph, &build->residency);
  if (status)
    return lade_error_set(error, status, "no memory for the program of a stage");
  if (tiers->layer.recipe == LADE_RECIPE_AUTO)
    status = policies_apply(job, &build->layout, micro_batch, &tiers->layer, build, error);
  else
    lade_residency_apply_recipe(build->graph, tiers->layer.recipe, build->residency);
  gathers_drop(build->graph, &build->layout, build->residency);
  for (int param = 0; param < build->graph->n_params; param++)
    lade_residency_set_tiers(build->residency, param, LADE_TIER_DEVICE, tiers->state_tier);
  if (has_copies(tiers) || is_in_motion(&build->layout))
    build->residency->prefetch_bytes = tiers->device_bytes - tiers->device_bytes / LADE_PREFETCH_SLACK;
  return status;
}

/* ---- programs ---- */

void lade_stage_program_read(const struct lade_program *program, struct lade_stage_program *ret_program)
{
  *ret_program = (struct lade_stage_program){
      .peak_bytes = program->peak_bytes[LADE_DEVICE], .host_bytes = program->peak_bytes[LADE_HOST],
      .store_bytes = program->peak_bytes[LADE_STORE], .n_instrs = program->n_instrs,
      .n_microbatches = program->n_microbatches, .step_ns = program->predicted_ns};
  for (int owner = 0; owner < LADE_N_OWNERS; owner++)
    ret_program->owner_bytes[owner] = program->owner_bytes[LADE_DEVICE][owner];
  lade_program_comm_traffic(program, ret_program->sent_bytes);
}

static int program_make(const struct lade_build_params *params, struct lade_error *error,
                        struct lade_program **ret_program)
{
  const uint64_t all[LADE_N_SPACES] = {[LADE_DEVICE] = UINT64_MAX, [LADE_HOST] = UINT64_MAX, [LADE_STORE] = UINT64_MAX};
  int status = lade_program_build(params, ret_program);
  return status ? lade_error_set(error, status, "no memory for the program of a stage")
                : lade_program_prove(*ret_program, all, error);
}

/* Make a program without a proof; and without offsets, if its live bytes alone take more than @device_bytes. */
static int program_measure(const struct lade_build_params *params, uint64_t device_bytes, struct lade_error *error,
                           struct lade_program **ret_program)
{
  int status = lade_program_emit(params, ret_program);
  if (!status)
    (*ret_program)->peak_bytes[LADE_DEVICE] = (*ret_program)->live_peak_bytes[LADE_DEVICE];
  if (!status && (*ret_program)->peak_bytes[LADE_DEVICE] <= device_bytes)
    status = lade_program_place(params, *ret_program);
  return status ? lade_error_set(error, status, "no memory for the program of a stage") : 0;
}

static int programs_make(const struct lade_stage_params *stage, int n_microbatches, struct lade_error *error,
                         struct lade_stage_build *build)
{
  struct lade_build_params params = {
      .graph = build->graph, .layout = &build->layout, .residency = build->residency, .prices = &build->prices,
      .is_training = true, .chunk_bytes = LADE_STAGE_CHUNK_BYTES, .packer = build->packer,
      .n_microbatches = enough_microbatches(&build->layout, lade_layout_position(&build->layout, LADE_AXIS_PP),
                                            n_microbatches)};
  if (stage->aim == LADE_STAGE_MEASURE)
    return program_measure(&params, stage->residency.device_bytes, error, &build->train);
  int status = program_make(&params, error, &build->train);
  params.is_training = false;
  params.residents = build->train;
  return status || stage->aim != LADE_STAGE_RUN ? status : program_make(&params, error, &build->eval);
}

int lade_stage_build_make(const struct lade_stage_params *params, struct lade_error *error,
                          struct lade_stage_build *build)
{
  int64_t rows;
  int n = 0;
  const struct lade_layout_job *job = params->job;
  const struct lade_layout *layout = params->layout;
  build->layout = *layout;
  int status = lade_layout_share_batch(layout, job->batch, params->micro_batch, error, &rows, &n);
  if (!status)
    status = graph_make(job, layout, rows, error, &build->graph);
  if (status)
    return status;
  lade_cluster_links_make(job->cluster, &layout->mesh, &build->links);
  share_cost_init(job, LADE_SOFTWARE_LADE, &build->cost);
  build->cost.links = &build->links;
  status = lade_cost_prices(&build->cost, build->graph, &build->prices);
  if (!status)
    status = lade_packer_create(&build->packer);
  if (status)
    return lade_error_set(error, status, "no memory for the program of a stage");
  status = residency_make(job, rows, &params->residency, build, error);
  if (!status)
    status = programs_make(params, n, error, build);
  if (status || !build->residency->prefetch_bytes || has_copies(&params->residency) ||
      build->train->peak_bytes[LADE_DEVICE] <= params->residency.device_bytes)
    return status;
  build->residency->prefetch_bytes = 0;
  lade_program_destroy(build->eval);
  lade_program_destroy(build->train);
  build->eval = build->train = NULL;
  return programs_make(params, n, error, build);
}

void lade_stage_build_finish(struct lade_stage_build *build)
{
  lade_program_destroy(build->eval);
  lade_program_destroy(build->train);
  lade_packer_destroy(build->packer);
  lade_residency_destroy(build->residency);
  if (build->graph) {
    lade_prices_finish(&build->prices);
    lade_cost_finish(&build->cost);
  }
  lade_model_graph_destroy(build->graph);
}

int lade_stage_program_make(const struct lade_stage_params *params, struct lade_error *error,
                            struct lade_stage_program *ret_program)
{
  struct lade_stage_build build = {0};
  int status = lade_stage_build_make(params, error, &build);
  if (!status)
    lade_stage_program_read(build.train, ret_program);
  lade_stage_build_finish(&build);
  return status;
}
