/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A layout's step from the units of its share.
 *
 * Time. Pieces have the layers that lade_piece_layers gives them; the first has the embedding, the last the head. Their
 * halves go through the schedule (lade_schedule_time). Behind it stand gradients, gathers and the update (step_end.c).
 *
 * Memory. A stage holds its state, and the saved values of as many microbatches as the schedule keeps in flight; on top
 * of that the values of one layer's or the head's backward half. Host memory holds values that are copied there, and
 * the optimizer state if that is its tier, with working copies and gradients on their way. Drives hold such state with
 * the gradients; the host then has working copies on their way.
 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>

#include "base/base.h"
#include "recompute/layouts/layout_internal.h"
#include "recompute/layouts/share_internal.h"

#define ENOUGH_ROUNDS 3 /* microbatches for each stage, with which a list is full again behind its first gradients */

struct layout_sum {
  const struct lade_layout_job *job;
  const struct lade_layout *layout;
  const struct lade_share_cost *share;
  struct lade_pipeline pipeline;
  double boundary_bytes, boundary_ns; /* that a rank sends to the next stage */
  double gather_ns;                   /* of a boundary value's parts; 0: it comes whole */
  double held_bytes;                  /* that a rank holds of a boundary value */
  const int64_t *layers; /* by piece */
  int64_t *own_layers;   /* of @layers, unless the job has them */
};

/* ---- flops ---- */

double lade_step_flops(const struct lade_model *model, int64_t batch, int64_t seq_len, enum lade_recipe recipe)
{
  const double tokens = (double)batch * (double)seq_len, T = (double)seq_len, L = (double)model->layers;
  const double width = (double)model->heads * (double)lade_model_head_dim(model);
  const double head = 2 * (double)model->width * (double)model->vocabulary;
  const double layer = (lade_model_flops_per_token(model, seq_len) / 3 - head - 2 * L * width * T) / L;
  const double attention = 4 * width * T; /* both products over the whole square */
  const double again = recipe == LADE_RECIPE_FULL ? layer + attention : recipe == LADE_RECIPE_SELECTIVE ? attention : 0;
  return tokens * (3 * (L * (layer + attention) + head) + L * again);
}

/* ---- time ---- */

static bool is_last_piece(const struct layout_sum *sum, int piece)
{
  return piece == sum->pipeline.n_stages * sum->pipeline.n_chunks - 1;
}

/* Return the time of the halves of @piece. */
static struct lade_piece_time piece_time(const struct layout_sum *sum, int piece)
{
  const struct lade_unit_cost *layer = &sum->share->layer;
  const double n = (double)sum->layers[piece];
  struct lade_piece_time time = {n * layer->forward_ns, n * layer->backward_ns, n * layer->weights_ns};
  double unhidden_ns = n * layer->unhidden_ns;
  const struct lade_unit_cost *ends[] = {piece == 0 ? &sum->share->embed : NULL,
                                         is_last_piece(sum, piece) ? &sum->share->head : NULL};
  for (size_t i = 0; i < LADE_COUNT(ends); i++) {
    time.forward_ns += ends[i] ? ends[i]->forward_ns : 0;
    time.backward_ns += ends[i] ? ends[i]->backward_ns : 0;
    time.weights_ns += ends[i] ? ends[i]->weights_ns : 0;
    unhidden_ns += ends[i] ? ends[i]->unhidden_ns : 0;
  }
  time.forward_ns += piece > 0 ? sum->gather_ns : 0;
  time.backward_ns += is_last_piece(sum, piece) ? 0 : sum->gather_ns;
  if (lade_schedule_is_split(&sum->pipeline))
    time.backward_ns = LADE_MAX(time.backward_ns - time.weights_ns, 0) + unhidden_ns;
  else
    time.weights_ns = 0;
  return time;
}

/* Return the parameters that a rank of @stage holds. */
static double stage_params(const struct layout_sum *sum, int stage)
{
  double n = 0;
  for (int chunk = 0; chunk < sum->pipeline.n_chunks; chunk++)
    n += (double)sum->layers[chunk * sum->pipeline.n_stages + stage];
  n *= (double)sum->share->layer.n_params;
  n += stage == 0 ? (double)sum->share->embed.n_params : 0;
  if (stage == sum->pipeline.n_stages - 1) {
    n += (double)sum->share->head.n_params;
    if (sum->job->model->is_tied && sum->pipeline.n_stages > 1) /* its own copy of the table */
      n += (double)sum->job->model->width * (double)sum->job->model->vocabulary /
           lade_layout_size(sum->layout, LADE_AXIS_TP);
  }
  return n;
}

/* Fill the times of transfers beside the halves of a microbatch of the first stage. pre: its layers are counted. */
static void transfers_fill(const struct layout_sum *sum, struct lade_layout_core *core)
{
  const struct lade_machine *device = &sum->job->cluster->device;
  const struct lade_unit_cost *embed = &sum->share->embed, *layer = &sum->share->layer;
  const double bytes_per_s[] = {(double)device->to_host.bytes_per_s, (double)device->to_device.bytes_per_s};
  for (int half = 0; half < 2; half++) {
    core->tensor_ns[half] = embed->tensor_ns[half] + core->n_layers * layer->tensor_ns[half];
    core->copies_ns[half] = core->n_layers * (layer->host_bytes + layer->store_bytes) / bytes_per_s[half] * 1e9;
  }
}

/* Fill the times of the pipeline: run its schedule, or bound it. */
static int times_fill(const struct layout_sum *sum, bool is_bound, struct lade_layout_core *core)
{
  const int n_pieces = sum->pipeline.n_stages * sum->pipeline.n_chunks;
  struct lade_piece_time *pieces = malloc((size_t)n_pieces * sizeof(*pieces));
  struct lade_schedule_times times = {0};
  int alike = 0; /* a piece between the ends: those with as many layers take its times */
  if (!pieces)
    return -ENOMEM;
  for (int piece = 0; piece < n_pieces; piece++) {
    const bool is_end = piece == 0 || piece == n_pieces - 1;
    pieces[piece] = !is_end && alike && sum->layers[piece] == sum->layers[alike] ? pieces[alike]
                                                                                  : piece_time(sum, piece);
    alike = is_end ? alike : piece;
    if (piece % sum->pipeline.n_stages == 0) {
      core->n_layers += (double)sum->layers[piece];
      core->forward_ns += pieces[piece].forward_ns;
      core->backward_ns += pieces[piece].backward_ns + pieces[piece].weights_ns;
    }
  }
  transfers_fill(sum, core);
  int status = 0;
  if (is_bound)
    lade_schedule_time_bound(&sum->pipeline, pieces, sum->boundary_ns, &times);
  else
    status = lade_schedule_time(&sum->pipeline, pieces, sum->boundary_ns, &times);
  free(pieces);
  core->span_ns = times.span_ns;
  core->busy_ns = times.busy_ns;
  core->stage_span_ns = times.stage_span_ns;
  return status;
}

/* ---- memory ---- */

double lade_zero_state_bytes(int zero, int n_shards, double weight, double state, double grad)
{
  const double held = weight * (zero >= 3 ? 1.0 / n_shards : 1) + grad * (zero >= 2 ? 1.0 / n_shards : 1);
  return held + (state - weight) * (zero >= 1 ? 1.0 / n_shards : 1);
}

/* Return the bytes of the state of a stage of @n_params. */
static double state_bytes(const struct lade_layout_job *job, const struct lade_layout_core *core,
                          const struct lade_layout *layout, enum lade_tier state_tier, double n_params)
{
  const int zero = layout->zero, shard = zero ? lade_layout_size(layout, LADE_AXIS_SHARD) : 1;
  const struct lade_adamw_args form = {.dtype = job->dtype, .grad_dtype = job->grad_dtype, .moments = job->moments,
                                       .master = job->master};
  const double weight = (double)lade_dtype_bytes(job->dtype), layer = (double)core->share->layer.n_params;
  int read, state;
  lade_cost_adamw_bytes(&form, &read, &state);
  const double on_device = state_tier == LADE_TIER_DEVICE ? state : weight, n_experts = n_params * core->expert_share;
  double bytes = (n_params - n_experts) * lade_zero_state_bytes(zero, shard, weight, on_device, 4) +
                 n_experts * lade_zero_state_bytes(zero, expert_shards(job, shard), weight, on_device, 4);
  if (zero == 2 && shard > 1)
    bytes += 4 * (layer * 2 + (double)core->share->embed.n_params); /* whole gradients on their way to their blocks */
  if (zero >= 3 && shard > 1) /* tables are cut into parameters of their own (graph/table.c) */
    bytes += 4 * layer + weight * layer * 2; /* a layer's gradients; gathered copies in use, and the next */
  return bytes;
}

/* Return the bytes of @tier for the optimizer state of @n_params there, working copies and gradients on their way. */
static double state_tier_bytes(const struct lade_layout_job *job, const struct lade_layout_core *core,
                               const struct lade_layout *layout, enum lade_tier tier, double n_params)
{
  const struct lade_adamw_args form = {.dtype = job->dtype, .grad_dtype = job->grad_dtype, .moments = job->moments,
                                       .master = job->master};
  const double stays = tier == LADE_TIER_STORE ? (double)lade_dtype_bytes(job->dtype) : 0; /* copies pass the host */
  int read, state;
  lade_cost_adamw_bytes(&form, &read, &state);
  return held_params(job, core, layout, n_params) * (read - stays);
}

/* Return the host bytes that working copies pass through if state is on drives: one leaves and one comes back. */
static double passing_bytes(const struct lade_layout_job *job, const struct lade_layout_core *core,
                            const struct lade_layout *layout)
{
  const int64_t n_most = LADE_MAX(core->share->embed.n_params, core->share->layer.n_params);
  return 2 * held_params(job, core, layout, (double)n_most) * (double)lade_dtype_bytes(job->dtype);
}

/* Return the bytes of the values of @stage that each layer saves @layer_bytes of: on the host, or on drives. */
static double stage_away_bytes(const struct layout_sum *sum, int stage, double layer_bytes)
{
  double n_layers = 0;
  for (int chunk = 0; chunk < sum->pipeline.n_chunks; chunk++)
    n_layers += (double)sum->layers[chunk * sum->pipeline.n_stages + stage];
  return lade_schedule_in_flight(&sum->pipeline, stage) * n_layers / sum->pipeline.n_chunks * layer_bytes;
}

/* Return the bytes of activations of @stage at its peak. */
static double stage_values_bytes(const struct layout_sum *sum, int stage)
{
  /* A stage saves its input and not its output, which the next one saves; layers are counted with their outputs. */
  const double sent = sum->pipeline.n_stages > 1 ? sum->held_bytes : 0;
  const struct lade_share_cost *share = sum->share;
  const int n_stages = sum->pipeline.n_stages, n_chunks = sum->pipeline.n_chunks;
  double n_layers = 0;
  for (int chunk = 0; chunk < n_chunks; chunk++)
    n_layers += (double)sum->layers[chunk * n_stages + stage];
  const double in_flight = lade_schedule_in_flight(&sum->pipeline, stage); /* chunks of microbatches */
  const double waiting = LADE_MIN(lade_schedule_lag(&sum->pipeline, stage), sum->pipeline.n_microbatches);
  double bytes = (in_flight - waiting) * n_layers / n_chunks * share->layer.saved_bytes, peak = share->layer.peak_bytes;
  bytes += waiting * n_layers * share->layer.weights_bytes;
  bytes += stage == 0 ? in_flight / n_chunks * LADE_MAX(share->embed.saved_bytes - sent, 0) : 0;
  if (stage == n_stages - 1)
    peak = LADE_MAX(peak, share->head.peak_bytes);
  return bytes + peak;
}

/* Return how many of a stage's first @n halves are of @chunk; backward halves count chunks from the last. */
static int chunk_halves(const struct lade_pipeline *pipeline, int n, int chunk)
{
  const int round = pipeline->n_chunks > 1 ? pipeline->n_stages : n; /* halves of one chunk in a row */
  const int all = round * pipeline->n_chunks, rest = all ? n % all - chunk * round : 0;
  return all ? n / all * round + LADE_MIN(LADE_MAX(rest, 0), round) : 0;
}

/* Return the microbatches of @chunk that @stage holds at its backward half number @n_before, without a split one. */
static int chunk_held(const struct lade_pipeline *pipeline, int stage, int n_before, int chunk)
{
  const int n_all = pipeline->n_microbatches * pipeline->n_chunks;
  const int n_forward = LADE_MIN(lade_schedule_in_flight(pipeline, stage) + n_before, n_all);
  return chunk_halves(pipeline, n_forward, chunk) - chunk_halves(pipeline, n_before, pipeline->n_chunks - 1 - chunk);
}

/* Return the layers whose values @stage holds at its backward half number @n_before, without a split one. */
static double layers_held(const struct layout_sum *sum, int stage, int n_before)
{
  double n_layers = 0;
  for (int chunk = 0; chunk < sum->pipeline.n_chunks; chunk++)
    n_layers += (double)sum->layers[chunk * sum->pipeline.n_stages + stage] *
                chunk_held(&sum->pipeline, stage, n_before, chunk);
  return n_layers;
}

/*
 * Return the bytes of a microbatch that the first stage saves less than its layers' values. A stage saves its input and
 * sends its output. The first one's input is the embedding's, which may be made again.
 */
static double embed_lacks(const struct layout_sum *sum, int stage)
{
  return stage == 0 && sum->pipeline.n_stages > 1 ? LADE_MAX(sum->held_bytes - sum->share->embed.saved_bytes, 0) : 0;
}

/*
 * Return a lower bound of the bytes of saved values of @stage at one of its backward halves: the first one that meets
 * as many as are in flight. With @has_grads: the first one before which all chunks have made gradients, and after which
 * all add to them again; 0 without such a half.
 */
static double stage_lower_bound(const struct layout_sum *sum, int stage, bool has_grads)
{
  const struct lade_pipeline *pipeline = &sum->pipeline;
  const struct lade_unit_cost *layer = &sum->share->layer;
  const int m = pipeline->n_microbatches, n_stages = pipeline->n_stages, n_chunks = pipeline->n_chunks;
  if (!lade_schedule_is_split(pipeline)) {
    if (has_grads && m < (n_chunks > 1 ? 2 * n_stages : 2))
      return 0;
    const int n_before = has_grads ? (n_chunks - 1) * n_stages + 1 : 0;
    return layers_held(sum, stage, n_before) * layer->saved_bytes -
           chunk_held(pipeline, stage, n_before, 0) * embed_lacks(sum, stage);
  }
  if (has_grads && m < ENOUGH_ROUNDS * n_stages)
    return 0;
  const double in_flight = lade_schedule_in_flight(pipeline, stage), n_layers = (double)sum->layers[stage];
  const double waiting = LADE_MIN(lade_schedule_lag(pipeline, stage), m);
  return n_layers * ((in_flight - waiting) * layer->saved_bytes +
                     waiting * LADE_MAX(LADE_MIN(layer->weights_bytes, layer->saved_bytes),
                                        layer->bound_weights_bytes)) -
         in_flight * embed_lacks(sum, stage);
}

/*
 * Return a lower bound of the bytes of @stage's values that are copied to the host, at the first backward half that
 * meets as many as are in flight. Each is on the host or has come back; those of the layer whose half runs may be gone.
 */
static double stage_away_bound(const struct layout_sum *sum, int stage)
{
  const struct lade_pipeline *pipeline = &sum->pipeline;
  const double waiting = LADE_MIN(lade_schedule_lag(pipeline, stage), pipeline->n_microbatches);
  const double n_layers = lade_schedule_is_split(pipeline)
                              ? (lade_schedule_in_flight(pipeline, stage) - waiting) * (double)sum->layers[stage]
                              : layers_held(sum, stage, 0);
  return LADE_MAX(n_layers - 1, 0) * sum->share->layer.host_bytes;
}

/*
 * Fill the sizes of stages. Of stages with equal parameters the one with the most values stands for all. Numbers of
 * parameters are few: those of the first stage, of the last, and of the others, whose layers differ by one at most
 * (graph/stage.c).
 */
static void sizes_fill(const struct layout_sum *sum, struct lade_layout_core *core)
{
  for (int stage = 0; stage < sum->pipeline.n_stages; stage++) {
    const double n_params = stage_params(sum, stage), values = stage_values_bytes(sum, stage);
    int at = 0;
    while (at < core->n_sizes && core->sizes[at].n_params != n_params)
      at++;
    LADE_ASSERT(at < LADE_LAYOUT_SIZES_MAX);
    if (at < core->n_sizes && core->sizes[at].values_bytes >= values)
      continue;
    core->sizes[at].values_bytes = values;
    const struct lade_unit_cost *layer = &sum->share->layer; /* values on drives pass through host memory */
    core->sizes[at].host_bytes = stage_away_bytes(sum, stage, layer->host_bytes) +
                                 LADE_VALUES_PASSING * layer->store_max_bytes;
    core->sizes[at].store_bytes = stage_away_bytes(sum, stage, layer->store_bytes);
    core->sizes[at].n_params = n_params;
    core->sizes[at].bound_away_bytes = stage_away_bound(sum, stage);
    for (int has_grads = 0; has_grads < 2; has_grads++)
      core->sizes[at].bound_bytes[has_grads] = stage_lower_bound(sum, stage, has_grads);
    core->sizes[at].stage = stage;
    core->n_sizes = LADE_MAX(core->n_sizes, at + 1);
  }
  const struct lade_unit_cost *layer = &sum->share->layer;
  core->expert_share = layer->n_expert_params ? (double)layer->n_expert_params * core->n_layers / stage_params(sum, 0)
                                              : 0;
  core->params[0] = stage_params(sum, 0);
  core->params[1] = stage_params(sum, sum->pipeline.n_stages - 1);
}

/*
 * Return a lower bound of the proved device bytes of size @i of @core: the most of three moments of its program. Saved
 * values are at their most, and no gradient is counted. Or all gradients are held and as many values as then are saved.
 * Or the step ends, and gradients wait for their updates. A layer's backward half adds its own values to the first two,
 * with two microbatches only to the first: the second one's gradients may leave one by one. @ret_first is the bound of
 * the first moment alone.
 */
static double device_lower_bound(const struct lade_layout_job *job, const struct lade_layout_core *core,
                                 const struct lade_layout *layout, enum lade_tier state_tier, int i, double *ret_first)
{
  const int zero = layout->zero, shard = zero ? lade_layout_size(layout, LADE_AXIS_SHARD) : 1;
  const struct lade_adamw_args form = {.dtype = job->dtype, .grad_dtype = job->grad_dtype, .moments = job->moments,
                                       .master = job->master};
  const double weight = (double)lade_dtype_bytes(job->dtype), n_params = core->sizes[i].n_params;
  const double peak = core->share->layer.bound_peak_bytes[shard > 1 ? zero : 0];
  int read, state;
  lade_cost_adamw_bytes(&form, &read, &state);
  const double on_device = state_tier == LADE_TIER_DEVICE ? state : weight;
  const double held = n_params * lade_zero_state_bytes(zero, shard, weight, on_device, 0);
  const double grads = n_params * lade_zero_state_bytes(zero, shard, 0, 0, sizeof(float));
  const double steady = core->sizes[i].bound_bytes[true];
  double bound = *ret_first = held + core->sizes[i].bound_bytes[false] + peak;
  if (steady > 0)
    bound = LADE_MAX(bound, held + grads + steady + (core->pipeline.n_microbatches > 2 ? peak : 0));
  /* Else complete gradients leave for the host one by one: of one microbatch sharded ones too. */
  if (state_tier == LADE_TIER_DEVICE || (shard > 1 && core->pipeline.n_microbatches > 1))
    bound = LADE_MAX(bound, held + grads * (double)lade_dtype_bytes(job->grad_dtype) / sizeof(float));
  return bound;
}

/* Return a lower bound of the state's bytes of size @i beside the device's. Copies of values may come back early. */
static double away_lower_bound(const struct lade_layout_job *job, const struct lade_layout_core *core,
                               const struct lade_layout *layout, int i)
{
  const struct lade_adamw_args form = {.dtype = job->dtype, .grad_dtype = job->grad_dtype, .moments = job->moments,
                                       .master = job->master};
  const int shard = layout->zero ? lade_layout_size(layout, LADE_AXIS_SHARD) : 1;
  const double weight = (double)lade_dtype_bytes(job->dtype);
  int read, state;
  lade_cost_adamw_bytes(&form, &read, &state);
  return core->sizes[i].n_params * (state - weight) / shard;
}

static void memory_fill(const struct lade_layout_job *job, const struct lade_layout_core *core,
                        const struct lade_layout *layout, enum lade_tier state_tier, struct lade_layout_cost *cost)
{
  for (int i = 0; i < core->n_sizes; i++) {
    const double n_params = core->sizes[i].n_params, state = state_bytes(job, core, layout, state_tier, n_params);
    const double room = core->sizes[i].host_bytes > 0 ? LADE_PREFETCH_SLACK / (LADE_PREFETCH_SLACK - 1.0) : 1;
    const double all = (state + core->sizes[i].values_bytes) * room;
    const double away = state_tier == LADE_TIER_DEVICE ? 0 : state_tier_bytes(job, core, layout, state_tier, n_params);
    const double host = core->sizes[i].host_bytes +
                        (state_tier == LADE_TIER_STORE ? passing_bytes(job, core, layout) : away);
    cost->host_bytes = LADE_MAX(cost->host_bytes, (uint64_t)host);
    const double stored = core->sizes[i].store_bytes + (state_tier == LADE_TIER_STORE ? away : 0);
    cost->store_bytes = LADE_MAX(cost->store_bytes, (uint64_t)stored);
    double first;
    const double bound = device_lower_bound(job, core, layout, state_tier, i, &first);
    const double away_bound = away_lower_bound(job, core, layout, i);
    const double host_bound = state_tier == LADE_TIER_HOST ? away_bound : 0;
    const double store_bound = state_tier == LADE_TIER_STORE ? away_bound : 0;
    cost->bound_bytes = LADE_MAX(cost->bound_bytes, (uint64_t)bound);
    cost->bound_host_bytes = LADE_MAX(cost->bound_host_bytes, (uint64_t)host_bound);
    cost->bound_store_bytes = LADE_MAX(cost->bound_store_bytes, (uint64_t)store_bound);
    cost->bound_sum_bytes = LADE_MAX(cost->bound_sum_bytes,
                                     (uint64_t)(first + host_bound + core->sizes[i].bound_away_bytes));
    cost->stages[cost->n_stages++] = core->sizes[i].stage;
    if (all <= (double)cost->peak_bytes)
      continue;
    cost->peak_bytes = (uint64_t)all;
    cost->state_bytes = (uint64_t)state;
  }
}

/* ---- the whole ---- */

int lade_layers_cut(const struct lade_model *model, int64_t seq_len, int n_pieces, struct lade_error *error,
                    int64_t **ret_layers)
{
  int64_t *layers = calloc((size_t)n_pieces, sizeof(*layers));
  int status = layers ? lade_pieces_cut(model, seq_len, n_pieces, error, layers)
                      : lade_error_set(error, -ENOMEM, "no memory for %d pieces", n_pieces);
  if (status)
    free(layers);
  else
    *ret_layers = layers;
  return status;
}

/* Take the cut of the job, or make one. */
static int layers_get(struct layout_sum *sum, struct lade_error *error)
{
  const int n_pieces = sum->pipeline.n_stages * sum->pipeline.n_chunks;
  if (sum->job->cuts && n_pieces <= lade_pieces_max(sum->job->model) && sum->job->cuts[n_pieces]) {
    sum->layers = sum->job->cuts[n_pieces];
    return 0;
  }
  int status = lade_layers_cut(sum->job->model, sum->job->seq_len, n_pieces, error, &sum->own_layers);
  sum->layers = sum->own_layers;
  return status;
}

bool lade_layout_sends_scattered(const struct lade_layout_job *job, const struct lade_layout *layout,
                                 int64_t micro_batch)
{
  const int64_t rows = micro_batch * job->seq_len;
  const double bytes = (double)rows * (double)job->model->width * (double)lade_dtype_bytes(job->dtype);
  return !layout->is_sequence && lade_layout_size(layout, LADE_AXIS_PP) > 1 &&
         rows % lade_layout_size(layout, LADE_AXIS_TP) == 0 &&
         lade_cluster_sends_scattered(job->cluster, &layout->mesh, bytes);
}

/* Fill the price of a boundary value of @bytes: sent whole, in parts, or by ranks that hold a part each. */
static void boundary_fill(struct layout_sum *sum, int64_t micro_batch, double bytes)
{
  const int tp = lade_layout_size(sum->layout, LADE_AXIS_TP);
  const bool is_scattered = lade_layout_sends_scattered(sum->job, sum->layout, micro_batch);
  struct lade_transfer_price boundary, gather, unused;
  lade_cluster_boundary_price(sum->job->cluster, &sum->layout->mesh, &boundary);
  axis_price(sum->job, sum->layout, LADE_AXIS_TP, &gather, &unused);
  sum->held_bytes = sum->layout->is_sequence ? bytes / tp : bytes;
  sum->boundary_bytes = is_scattered ? bytes / tp : sum->held_bytes;
  sum->boundary_ns = ring_ns(&boundary, sum->boundary_bytes);
  sum->gather_ns = is_scattered ? ring_ns(&gather, bytes * ring_share(tp)) : 0;
}

/* Start the sum of @layout's parts, up to the layers of its pieces. Free own_layers in any case. */
static int sum_init(struct layout_sum *sum, int64_t micro_batch, struct lade_error *error)
{
  const struct lade_layout_job *job = sum->job;
  int64_t rows;
  int n_microbatches;
  int status = lade_layout_share_batch(sum->layout, job->batch, micro_batch, error, &rows, &n_microbatches);
  if (status)
    return status;
  sum->pipeline = lade_pipeline_get(sum->layout, n_microbatches, true);
  status = lade_schedule_check(&sum->pipeline, error);
  if (!status)
    status = layers_get(sum, error);
  if (!status)
    boundary_fill(sum, rows, (double)rows * (double)job->seq_len * (double)job->model->width *
                                 (double)lade_dtype_bytes(job->dtype));
  return status;
}

int lade_layout_core_make(const struct lade_layout_cost_params *params, bool is_bound, struct lade_error *error,
                          struct lade_layout_core *ret_core)
{
  struct layout_sum sum = {.job = params->job, .layout = params->layout, .share = params->share};
  struct lade_layout_core core = {.share = params->share};
  int status = sum_init(&sum, params->micro_batch, error);
  if (!status) {
    core.pipeline = sum.pipeline;
    core.gather_ns = core.pipeline.n_chunks * 2 * sum.gather_ns;
    status = times_fill(&sum, is_bound, &core);
    sizes_fill(&sum, &core);
  }
  free(sum.own_layers);
  if (!status)
    *ret_core = core;
  return status;
}

int lade_layout_span_bound(const struct lade_layout_cost_params *params, double *ret_span_ns)
{
  struct layout_sum sum = {.job = params->job, .layout = params->layout, .share = params->share};
  struct lade_layout_core core = {.share = params->share};
  int status = sum_init(&sum, params->micro_batch, NULL);
  if (!status)
    status = times_fill(&sum, true, &core);
  free(sum.own_layers);
  if (!status)
    *ret_span_ns = core.span_ns;
  return status;
}

void lade_layout_core_memory(const struct lade_layout_job *job, const struct lade_layout_core *core,
                             const struct lade_layout *layout, enum lade_tier state_tier,
                             struct lade_layout_cost *ret_cost)
{
  *ret_cost = (struct lade_layout_cost){0};
  memory_fill(job, core, layout, state_tier, ret_cost);
}

void lade_layout_core_cost(const struct lade_layout_job *job, const struct lade_layout_core *core,
                           const struct lade_layout *layout, enum lade_tier state_tier,
                           struct lade_layout_cost *ret_cost)
{
  const struct step_end end = step_end_get(job, core, layout, state_tier);
  struct lade_layout_cost cost = {.grad_ns = end.grad_ns, .update_ns = end.update_ns};
  const double halves = (double)core->pipeline.n_microbatches * (double)job->model->layers / core->pipeline.n_stages;
  cost.step_ns = core->span_ns + cost.grad_ns + cost.update_ns + end.sums_ns + end.copies_ns;
  cost.bubble = (core->span_ns - core->busy_ns) / cost.step_ns;
  cost.stage_bubble = 1 - core->busy_ns / core->stage_span_ns;
  cost.skipped_ns = halves * core->share->layer.skipped_ns;
  const struct lade_unit_cost *layer = &core->share->layer;
  const double unhidden_ns = lade_schedule_is_split(&core->pipeline) ? layer->unhidden_ns : 0;
  cost.exposed = (cost.grad_ns + halves * (layer->exposed_ns + unhidden_ns) +
                  core->pipeline.n_microbatches * core->gather_ns) / cost.step_ns;
  memory_fill(job, core, layout, state_tier, &cost);
  *ret_cost = cost;
}

int lade_layout_cost_make(const struct lade_layout_cost_params *params, enum lade_tier state_tier,
                          struct lade_error *error, struct lade_layout_cost *ret_cost)
{
  const struct lade_layout_job *job = params->job;
  const struct lade_layout *layout = params->layout;
  const struct lade_share_cost *share = params->share;
  const enum lade_recipe recipe = share->residency.recipe;
  struct lade_layout_core core;
  int status = lade_layout_core_make(params, false, error, &core);
  if (status)
    return status;
  lade_layout_core_cost(job, &core, layout, state_tier, ret_cost);
  ret_cost->model_flops = lade_step_flops(job->model, job->batch, job->seq_len, LADE_RECIPE_NONE);
  ret_cost->hardware_flops = lade_step_flops(job->model, job->batch, job->seq_len, recipe);
  if (recipe == LADE_RECIPE_AUTO) /* of all tensor parallel ranks, microbatches and replicas */
    ret_cost->hardware_flops += share->layer.again_flops * lade_layout_size(layout, LADE_AXIS_TP) *
                                (double)job->model->layers * (double)job->batch / (double)params->micro_batch;
  return 0;
}
