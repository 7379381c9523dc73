/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The proved program of one stage of a layout, with its state and its saved values on the device.
 *
 * A stage's list repeats itself once its pipeline is full, so a program over as many microbatches as are in flight, and
 * two more, has the peak of the whole list. It is built with those: the time to build it does not grow with the batch.
 * A program with fewer microbatches than that is whole.
 */
#include <errno.h>

#include "base/base.h"
#include "lade/pack.h"
#include "program/build.h"
#include "program/layout_cost.h"

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
  const struct lade_model_graph_params how = {
      .struct_size = sizeof(how), .model = job->model, .dtype = job->dtype, .batch = micro_batch,
      .seq_len = job->seq_len, .dropout = (float)job->dropout, .kernels = job->kernels, .n_threads = 1,
      .moments = job->moments, .master = job->master, .grad_dtype = job->grad_dtype,
      .share = {.tp = lade_layout_size(layout, LADE_AXIS_TP), .tp_rank = lade_layout_position(layout, LADE_AXIS_TP),
                .is_sequence = layout->is_sequence, .pp = lade_layout_size(layout, LADE_AXIS_PP),
                .pp_rank = lade_layout_position(layout, LADE_AXIS_PP), .n_chunks = layout->virtual_stages,
                .n_shards = layout->zero == LADE_ZERO_MOST ? lade_shard_count(layout) : 1}};
  return lade_model_graph_create(&how, error, ret_graph);
}

/*
 * Drop gathered copies between the halves of microbatches under ZeRO-3. A shard stands behind each, so no copy moves.
 */
static void gathers_drop(const struct lade_model_graph *graph, const struct lade_layout *layout,
                         struct lade_residency *residency)
{
  const bool is_gathering = layout->zero == LADE_ZERO_MOST && lade_shard_count(layout) > 1;
  for (int param = 0; param < graph->n_params && is_gathering; param++)
    residency->choices[graph->params[param].tensor].saved = LADE_RESIDENCY_HOST;
}

static int program_prove(const struct lade_build_params *how, struct lade_error *error, struct lade_stage_program *ret)
{
  const uint64_t all[LADE_N_SPACES] = {[LADE_DEVICE] = UINT64_MAX, [LADE_HOST] = UINT64_MAX, [LADE_STORE] = UINT64_MAX};
  struct lade_program *program = NULL;
  int status = lade_program_build(how, &program);
  if (status)
    return lade_error_set(error, status, "no memory for the program of a stage");
  status = lade_program_prove(program, all, error);
  if (!status) {
    *ret = (struct lade_stage_program){.peak_bytes = program->peak_bytes[LADE_DEVICE], .n_instrs = program->n_instrs,
                                       .n_microbatches = program->n_microbatches, .step_ns = program->predicted_ns};
    for (int owner = 0; owner < LADE_N_OWNERS; owner++)
      ret->owner_bytes[owner] = program->owner_bytes[LADE_DEVICE][owner];
    lade_program_comm_traffic(program, ret->sent_bytes);
  }
  lade_program_destroy(program);
  return status;
}

int lade_stage_program_prove(const struct lade_layout_job *job, const struct lade_layout *layout, int64_t micro_batch,
                             enum lade_recipe recipe, struct lade_error *error, struct lade_stage_program *ret_program)
{
  struct lade_cluster_links links;
  struct lade_model_graph *graph = NULL;
  struct lade_residency *residency = NULL;
  struct lade_packer *packer = NULL;
  struct lade_prices prices = {0};
  struct lade_cost cost;
  int64_t rows;
  int n = 0;
  int status = lade_layout_share_batch(layout, job->batch, micro_batch, error, &rows, &n);
  if (!status)
    status = graph_make(job, layout, rows, error, &graph);
  if (status)
    return status;
  lade_cluster_links_make(job->cluster, &layout->mesh, layout->is_sequence, &links);
  lade_cost_init(&cost, &job->cluster->device);
  cost.links = &links;
  status = lade_cost_prices(&cost, graph, &prices);
  if (!status)
    status = lade_residency_create(graph, &residency);
  if (!status)
    status = lade_packer_create(&packer);
  if (status) {
    lade_error_set(error, status, "no memory for the program of a stage");
  } else {
    lade_residency_apply_recipe(graph, recipe, residency);
    gathers_drop(graph, layout, residency);
    const struct lade_build_params how = {
        .graph = graph, .layout = layout, .residency = residency, .prices = &prices, .is_training = true,
        .n_microbatches = enough_microbatches(layout, lade_layout_position(layout, LADE_AXIS_PP), n),
        .chunk_bytes = UINT64_C(2) << 20, .packer = packer};
    status = program_prove(&how, error, ret_program);
  }
  lade_packer_destroy(packer);
  lade_residency_destroy(residency);
  lade_prices_finish(&prices);
  lade_cost_finish(&cost);
  lade_model_graph_destroy(graph);
  return status;
}
