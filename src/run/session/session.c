/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Steps of a session: the schedule, the step block, FP16's loss scale, digests and evaluation.
 *
 * The learning rate rises linearly over the warm-up and falls along half a cosine to its minimum at the last
 * step. The loss digest is a chain: each step's loss, as its 64 bits, hashed with the digest so far as seed; so it
 * covers every step since step 0, and a resumed run continues it.
 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "run/session/session_internal.h"

#define SCALE_GROWTH_STEPS 2000 /* good steps after which FP16's loss scale is doubled, as GradScaler does */
#define SCALE_MAX 0x1p24

static double lr_at(const struct lade_session_params *p, int64_t step)
{
  const double pi = 3.14159265358979323846;
  if (step < p->warmup)
    return p->lr * (double)(step + 1) / (double)(p->warmup + 1);
  if (step >= p->steps)
    return p->min_lr;
  double part = (double)(step - p->warmup) / (double)LADE_MAX(p->steps - p->warmup, 1);
  return p->min_lr + 0.5 * (1 + cos(pi * part)) * (p->lr - p->min_lr);
}

static struct lade_step step_block(const lade_session *s)
{
  const struct lade_session_params *p = &s->params;
  double t = (double)s->state.step + 1;
  return (struct lade_step){
      .seed = s->state.seed, .step = (uint32_t)s->state.step, .lr = (float)lr_at(p, s->state.step),
      .beta1 = (float)p->beta1, .beta2 = (float)p->beta2, .eps = (float)p->eps,
      .weight_decay = (float)p->weight_decay, .correction1 = (float)(1 / (1 - pow(p->beta1, t))),
      .correction2 = (float)(1 / (1 - pow(p->beta2, t))), .clip = (float)p->clip,
      .loss_scale = (float)s->state.loss_scale};
}

/*
 * Check the tokens and targets that a caller's function wrote: one past the vocabulary would be an address past a
 * table.
 */
static int tokens_check(const lade_session *s, const struct lade_batch *batch, struct lade_error *error)
{
  const int64_t vocabulary = s->model.vocabulary;
  for (int64_t i = 0; i < batch->n_rows * batch->seq; i++) {
    const int32_t token = batch->tokens[i], target = batch->targets[i];
    bool is_token_bad = token < 0 || token >= vocabulary;
    if (is_token_bad || target >= vocabulary)
      return lade_error_set(error, -EINVAL, "%s %lld: the %s in row %lld at position %lld is %d, outside of the "
                            "vocabulary of %lld", batch->is_valid ? "validation batch" : "step",
                            (long long)batch->number, is_token_bad ? "token" : "target",
                            (long long)(batch->first_row + i / batch->seq), (long long)(i % batch->seq),
                            is_token_bad ? token : target, (long long)vocabulary);
  }
  return 0;
}

/* Fill rows of a batch by the caller's function, and check its tokens. */
static int rows_request(lade_session *s, const struct lade_batch *batch, struct lade_error *error)
{
  struct lade_error own = {0};
  int status = s->params.batch_fn(s->params.batch_user, batch, &own);
  if (!status)
    return tokens_check(s, batch, error);
  if (status > 0)
    status = -EINVAL;
  return lade_error_set(error, status, "%s %lld: %s", batch->is_valid ? "validation batch" : "step",
                        (long long)batch->number, *own.text ? own.text : strerror(-status));
}

/* Fill all microbatches of this rank. A stage without tokens or targets still reads whole rows, into spare ones. */
static int batch_fill(lade_session *s, bool is_valid, uint64_t number, struct lade_error *error)
{
  int status = 0;
  const int64_t rows = s->params.micro_batch;
  const int64_t first = rows * s->n_microbatches * lade_layout_position(&s->group.layout, LADE_AXIS_DP);
  for (int m = 0; m < s->n_microbatches && !status; m++) {
    int32_t *tokens = lade_executor_tokens(s->executor, m), *targets = lade_executor_targets(s->executor, m);
    int32_t *first_keys = lade_executor_first_keys(s->executor, m);
    const struct lade_batch batch = {.is_valid = is_valid, .number = (int64_t)number, .first_row = first + m * rows,
                                     .n_rows = rows, .seq = s->params.seq_len,
                                     .tokens = tokens ? tokens : s->spare_tokens,
                                     .targets = targets ? targets : s->spare_targets};
    status = s->params.batch_fn ? rows_request(s, &batch, error) : lade_data_read(s->data, &batch, error);
    if (!status && first_keys)
      session_documents_fill(s, &batch, first_keys);
  }
  return status;
}

/*
 * Return the name of the gradient whose sum of squares @first_bad, the first that is not finite, belongs to. Sums over
 * several ranks do not locate it.
 */
static const char *bad_tensor(const lade_session *s, uint32_t first_bad)
{
  const struct lade_layout *layout = s->plan->train->layout;
  for (int param = 0; param < s->graph->n_params && lade_sums_count(layout) == 1; param++) {
    if (first_bad < lade_held_first_partial(s->graph, layout, param + 1))
      return s->graph->tensors[s->graph->params[param].grad].name;
  }
  return "the norm of all gradients";
}

/* Adapt FP16's loss scale: halve it after an overflow, double it after SCALE_GROWTH_STEPS good steps. */
static void scale_adapt(lade_session *s, bool is_skipped)
{
  if (s->params.dtype != LADE_F16)
    return;
  if (is_skipped) {
    s->state.loss_scale = LADE_MAX(s->state.loss_scale / 2, 1);
    s->state.good_steps = 0;
  } else if (++s->state.good_steps >= SCALE_GROWTH_STEPS) {
    s->state.loss_scale = LADE_MIN(s->state.loss_scale * 2, SCALE_MAX);
    s->state.good_steps = 0;
  }
}

static void loss_record(lade_session *s, double loss)
{
  uint64_t bits;
  memcpy(&bits, &loss, sizeof(bits));
  s->state.loss_digest = XXH3_64bits_withSeed(&bits, sizeof(bits), s->state.loss_digest);
}

/*
 * Return -EDOM for a step whose loss or gradients are not finite. The line names the first bad gradient, if there is
 * one, and states whether the update was made. A loss can overflow while all gradients, differences of probabilities,
 * are finite.
 */
static int not_finite(const lade_session *s, const struct lade_step_result *result, struct lade_error *error)
{
  const long long step = s->state.step;
  const double loss = isnan(result->loss) ? (double)NAN : result->loss; /* a NaN's sign means nothing */
  if (!result->clip_result.is_skipped)
    return lade_error_set(error, -EDOM, "step %lld: the loss is %f, while all gradients are finite: the loss itself "
                          "overflowed, and the update was made; go on from the newest save, with a smaller --lr", step,
                          loss);
  const char *bad = bad_tensor(s, result->clip_result.first_bad);
  const char *updated = s->plan->train->optimizer_in_backward
                            ? "others were updated before it; go on from the newest save"
                            : "nothing was updated";
  if (isfinite(result->loss))
    return lade_error_set(error, -EDOM, "step %lld: %s is not finite, though the loss is (%f); %s", step, bad, loss,
                          updated);
  return lade_error_set(error, -EDOM, "step %lld: the loss is %f, and the first gradient that is not finite is %s; %s",
                        step, loss, bad, updated);
}

/*
 * Return the error of not_finite after a meeting of all ranks, which all call this, because all have the same loss and
 * norm. If a rank died or aborted, the bad numbers are its consequence, and the meeting's error is returned instead.
 */
static int not_finite_together(lade_session *s, const struct lade_step_result *result, struct lade_error *error)
{
  int64_t max = 0;
  int status = session_place(s, "at the end of", lade_rank_group_max(&s->group, 0, &max, error), error);
  return status ? status : not_finite(s, result, error);
}

/* Record the step in the state. The update was made or skipped; the loss counts even if it is not finite. */
static void step_count(lade_session *s, const struct lade_step_result *result)
{
  loss_record(s, result->loss);
  scale_adapt(s, result->clip_result.is_skipped);
  s->state.step++;
  s->state.data_position += s->params.batch * s->params.seq_len;
}

/* Report a drive that was set aside, whether or not the step succeeded. */
static void store_notices(const lade_session *s)
{
  char line[512];
  if (s->store && lade_store_take_notice(s->store, line, sizeof(line)))
    session_notice(s, "%s", line);
}

/* Publish the step's durable state. The time counts as the step's, and as a stall of the io queue. */
static int step_publish(lade_session *s, struct lade_step_report *report, struct lade_error *error)
{
  const int64_t start_ns = lade_now_ns();
  int status = session_durable_publish(s, error);
  const int64_t took_ns = s->durable ? lade_now_ns() - start_ns : 0;
  report->wall_ns += took_ns;
  report->busy_ns[LADE_Q_IO] += took_ns;
  report->stall_ns[LADE_Q_IO] += took_ns;
  return status;
}

/* Give the last stage's loss to every rank. */
static int loss_share(lade_session *s, double *loss, struct lade_error *error)
{
  const struct lade_mesh *mesh = &s->group.layout.mesh;
  const int n_stages = mesh->axes[LADE_AXIS_PP].size;
  if (n_stages == 1)
    return 0;
  const int last = lade_mesh_member(mesh, LADE_AXIS_PP, s->group.layout.rank, n_stages - 1);
  return session_place(s, "at the end of", lade_rank_group_take(&s->group, last, loss, error), error);
}

static int step_run(lade_session *s, struct lade_step_report *ret_report, struct lade_error *error)
{
  struct lade_step block = step_block(s);
  struct lade_step_result result = {0};
  int status = s->params.is_dry ? 0 : batch_fill(s, false, (uint64_t)s->state.step, error);
  if (!status)
    status = lade_executor_step(s->executor, &block, &result, error);
  if (status != -ERANGE)
    status = session_own(s, status, error);
  store_notices(s);
  if (!status || status == -ERANGE) {
    const int failed = loss_share(s, &result.loss, error);
    status = failed ? failed : status;
  }
  bool is_skipped = status == -ERANGE;
  if (status && !is_skipped)
    return status;
  bool is_rescaled = s->params.dtype == LADE_F16 && s->state.loss_scale > 1 && isfinite(result.loss);
  if (is_skipped && !is_rescaled)
    return not_finite_together(s, &result, error);
  struct lade_step_report report = {
      .step = s->state.step, .loss = result.loss, .grad_norm = result.clip_result.norm, .lr = block.lr,
      .is_skipped = is_skipped, .loss_scale = s->state.loss_scale, .wall_ns = result.wall_ns};
  memcpy(report.busy_ns, result.busy_ns, sizeof(report.busy_ns));
  memcpy(report.stall_ns, result.stall_ns, sizeof(report.stall_ns));
  status = isfinite(result.loss) ? 0 : not_finite_together(s, &result, error);
  step_count(s, &result);
  const int failed = step_publish(s, &report, error);
  if (failed)
    return failed;
  if (!status)
    *ret_report = report;
  return status;
}

/* Return the bytes that all stores of this run have moved so far. */
static void stores_count(const lade_session *s, uint64_t *ret_read, uint64_t *ret_written)
{
  lade_store *const stores[] = {s->store, s->durable ? lade_durable_store(s->durable) : NULL};
  *ret_read = *ret_written = 0;
  for (size_t i = 0; i < LADE_COUNT(stores); i++) {
    struct lade_store_info info;
    if (!stores[i])
      continue;
    lade_store_get_info(stores[i], &info);
    *ret_read += info.read_bytes;
    *ret_written += info.written_bytes;
  }
}

int lade_session_step(lade_session *s, struct lade_step_report *ret_report, struct lade_error *error)
{
  uint64_t read_before, written_before;
  stores_count(s, &read_before, &written_before);
  const int status = step_run(s, ret_report, error);
  stores_count(s, &s->read_bytes, &s->written_bytes);
  s->read_bytes -= read_before;
  s->written_bytes -= written_before;
  if (!status) {
    session_rate_raise(s, ret_report->wall_ns);
    session_drive_count(s, ret_report->wall_ns);
  }
  return session_fail(s, status, error);
}

static int64_t n_valid_batches(const lade_session *s)
{
  struct lade_data_info info = {0};
  if (s->params.batch_fn)
    return s->params.n_valid_batches;
  if (s->data)
    lade_data_get_info(s->data, &info);
  return info.n_valid_batches;
}

int lade_session_eval(lade_session *s, double *ret_loss, struct lade_error *error)
{
  double sum = 0;
  if (s->params.is_dry)
    return lade_error_set(error, -ENODATA, "there is no validation data");
  int64_t n = LADE_MIN(s->params.eval_iters, n_valid_batches(s));
  if (n < 1)
    return lade_error_set(error, -ENODATA, "there is not one batch of validation data");
  for (int64_t i = 0; i < n; i++) {
    struct lade_step_result result;
    int status = batch_fill(s, true, (uint64_t)i, error);
    if (!status)
      status = lade_executor_eval(s->executor, &result, error);
    status = session_own(s, status, error);
    if (!status)
      status = loss_share(s, &result.loss, error);
    if (status == -ENODATA) /* a drive's error for a bad sector; callers would take -ENODATA for missing validation data
                               */
      status = -EIO;
    if (session_fail(s, status, error))
      return status;
    sum += result.loss;
  }
  *ret_loss = sum / (double)n;
  return 0;
}

int lade_session_params_digest(lade_session *s, uint64_t *ret_digest, struct lade_error *error)
{
  const struct lade_values values = lade_session_values(s);
  return session_fail(s, lade_checkpoint_digest(&values, ret_digest, error), error);
}

int lade_session_agree(lade_session *s, int value, int *ret_value, struct lade_error *error)
{
  int64_t max = 0;
  int status = lade_rank_group_max(&s->group, value, &max, error);
  if (!status)
    *ret_value = (int)max;
  return session_fail(s, session_place(s, "between steps, after", status, error), error);
}

int lade_session_max(lade_session *s, double value, double *ret_max, struct lade_error *error)
{
  int64_t bits, max;
  LADE_ASSERT(!(value < 0));
  memcpy(&bits, &value, sizeof(bits)); /* bits of numbers from 0 on are ordered as the numbers are */
  int status = lade_rank_group_max(&s->group, bits, &max, error);
  if (!status)
    memcpy(ret_max, &max, sizeof(*ret_max));
  return session_fail(s, status, error);
}

int lade_session_gather_peaks(lade_session *s, uint64_t *ret_planned, uint64_t *ret_measured,
                              struct lade_error *error)
{
  struct lade_session_info info;
  lade_session_get_info(s, &info);
  const uint64_t planned = s->plan->peak_bytes[LADE_DEVICE];
  int status = lade_rank_group_gather(&s->group, &planned, sizeof(planned), ret_planned, error);
  if (!status)
    status = lade_rank_group_gather(&s->group, &info.measured_peak_bytes, sizeof(planned), ret_measured, error);
  return session_fail(s, status, error);
}

/*
 * Set the bytes outside the arena, on a GPU. In a run, NCCL's memory for the arena came after outside_bytes was
 * measured, so growth counts too. In a plan, growth since the kernels were opened is theirs and is measured now.
 */
static void outside_get(const lade_session *s, struct lade_session_info *info)
{
  struct lade_cuda_memory memory;
  uint64_t taken_bytes = 0;
  info->outside_bytes = s->outside_bytes;
  if (s->cuda_kernels && !s->executor)
    lade_cuda_mark_memory(s->device, LADE_CUDA_KERNELS);
  if (!s->cuda_kernels || lade_cuda_get_memory(s->device, &memory))
    return;
  memcpy(info->taken_bytes, memory.taken_bytes, sizeof(memory.taken_bytes));
  for (int taker = 0; taker < LADE_CUDA_N_TAKERS; taker++)
    taken_bytes += memory.taken_bytes[taker];
  info->outside_bytes = s->executor ? LADE_MAX(s->outside_bytes, taken_bytes) : memory.outside_bytes;
  info->grown_bytes = memory.outside_bytes - LADE_MIN(info->outside_bytes, memory.outside_bytes);
}

void lade_session_get_info(lade_session *s, struct lade_session_info *ret_info)
{
  struct lade_device_info device = {0};
  if (s->device)
    lade_device_get_info(s->device, &device);
  double flops =
      lade_model_flops_per_token(&s->model, s->params.seq_len) * (double)(s->params.batch * s->params.seq_len);
  const double n_ranks = s->group.world ? s->group.layout.mesh.world : 1; /* each at the first rank's measured rate */
  *ret_info = (struct lade_session_info){
      .layout = s->group.layout, .model = s->model, .n_params = lade_model_n_params(&s->model),
      .batch = s->params.batch,
      .micro_batch = s->params.micro_batch, .seq_len = s->params.seq_len, .n_microbatches = s->n_microbatches,
      .budget_bytes = s->budget_bytes, .bounds = s->bounds, .plan = s->plan, .n_plan_leaders = s->n_plan_leaders,
      .graph = s->graph, .whole = s->whole, .prices = &s->prices, .cost = &s->cost, .executor = s->executor,
      .measured_peak_bytes = device.peak_bytes,
      .host_bytes = session_host_bytes(s) + session_saver_bytes(s),
      .measured_read_bytes = s->read_bytes, .measured_written_bytes = s->written_bytes,
      .is_unified = s->is_unified, .n_node_ranks = s->params.n_node_ranks, .is_async_saving = s->saver != NULL,
      .store_bytes = s->plan ? s->plan->peak_bytes[LADE_STORE] + session_durable_extra(s) : 0,
      .host_budget_bytes = s->host_bytes, .store_budget_bytes = s->store_bytes,
      .numerics_key = s->state.numerics_key, .step = s->state.step, .loss_digest = s->state.loss_digest,
      .roofline_step_ns = s->matmul_flops_per_s > 0 ? flops / s->matmul_flops_per_s / n_ranks * 1e9 : 0};
  outside_get(s, ret_info);
  if (!s->plan)
    return;
  lade_program_store_traffic(s->plan->train, &ret_info->store_read_bytes, &ret_info->store_written_bytes);
  ret_info->store_written_bytes += session_durable_published(s);
  lade_program_comm_traffic(s->plan->train, ret_info->comm_bytes);
  lade_program_comm_groups(s->plan->train, ret_info->comm_calls);
  ret_info->forward_gather_bytes = lade_program_forward_gathers(s->plan->train);
}
