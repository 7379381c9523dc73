/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lade/train.h: a session behind an opaque handle.
 *
 * A trainer is a session whose parameters were checked, and whose reports are copied into structs that may grow. It
 * decides nothing. The session reads its caller's strings, paths of files, while opening. It borrows only the strings
 * that later messages name, as the header states. Copying them would need a second owner of every path, without a
 * benefit for callers with string literals or argv.
 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/base.h"
#include "base/cpu.h"
#include "parallel/comm.h"
#include "run/checkpoint.h"
#include "run/session/api_internal.h"

#define REFUSAL_S 2 /* mpirun ends the other ranks sooner than this after the first one has failed */

extern char **environ;

struct lade_trainer {
  lade_session *session;
  bool is_dry;
  lade_notice_fn *notice; /* the caller's */
  void *notice_user;
};

void lade_trainer_params_init(struct lade_trainer_params *ret_params, size_t struct_size)
{
  if (!ret_params)
    return;
  struct lade_session_params session;
  lade_session_defaults(&session);
  struct lade_trainer_params own = {
      .struct_size = sizeof(own), .valid_fraction = session.valid_fraction, .order = session.order,
      .steps = session.steps, .lr = session.lr, .min_lr = session.min_lr, .warmup = session.warmup,
      .beta1 = session.beta1, .beta2 = session.beta2, .eps = session.eps, .weight_decay = session.weight_decay,
      .clip = session.clip, .seed = session.seed, .eval_batches = session.eval_iters,
      .separator = session.separator};
  ret_params->struct_size = struct_size;
  lade_struct_fill("lade_trainer_params", ret_params, &own, sizeof(own), NULL);
}

/* True if @value, also when rounded to FP32 for the computation, is in [@min, @below). */
static bool is_within(double value, double min, double below)
{
  float rounded = (float)value;
  return isfinite(rounded) && value >= min && (double)rounded < below;
}

static int params_check(const struct lade_trainer_params *p, struct lade_error *error)
{
  if (p->batch && (p->n_data || p->n_valid))
    return lade_error_set(error, -EINVAL, "lade_trainer_params: data comes from files or from a callback, not both");
  if (p->n_data < 0 || p->n_valid < 0 || (p->n_data && !p->data) || (p->n_valid && !p->valid)
      || p->n_valid_batches < 0 || p->eval_batches < 0)
    return lade_error_set(error, -EINVAL, "lade_trainer_params: a number of files or batches is negative, or its list "
                          "is NULL");
  if (!is_within(p->valid_fraction, 0, 1) || (unsigned)p->order > LADE_ORDER_RANDOM)
    return lade_error_set(error, -EINVAL, "lade_trainer_params: valid_fraction must be at least 0 and below 1, order "
                          "sequential or random");
  if (p->steps < 0 || p->warmup < 0)
    return lade_error_set(error, -EINVAL, "lade_trainer_params: steps and warmup may not be negative");
  if (!is_within(p->lr, 0, HUGE_VAL) || !is_within(p->min_lr, 0, HUGE_VAL) || !is_within(p->clip, 0, HUGE_VAL)
      || !is_within(p->weight_decay, 0, HUGE_VAL))
    return lade_error_set(error, -EINVAL, "lade_trainer_params: lr, min_lr, clip and weight_decay must be finite and "
                          "not negative");
  if (!is_within(p->beta1, 0, 1) || !is_within(p->beta2, 0, 1) || !is_within(p->eps, 0, HUGE_VAL)
      || (float)p->eps == 0)
    return lade_error_set(error, -EINVAL, "lade_trainer_params: beta1 and beta2 must be at least 0 and below 1, eps "
                          "positive");
  if (p->init && p->resume)
    return lade_error_set(error, -EINVAL, "lade_trainer_params: init and resume exclude each other");
  return 0;
}

/* Set the session parameters that training adds to a run's. */
static void params_apply(const struct lade_trainer_params *p, struct lade_session_params *session)
{
  session->data = p->data;
  session->n_data = p->n_data;
  session->valid = p->n_valid ? p->valid : NULL;
  session->n_valid = p->n_valid;
  session->valid_fraction = p->valid_fraction;
  session->order = p->order;
  session->mask_documents = p->mask_documents;
  session->separator = p->separator;
  session->batch_fn = p->batch;
  session->batch_user = p->batch_user;
  session->n_valid_batches = p->n_valid_batches;
  session->steps = p->steps;
  session->lr = p->lr;
  session->min_lr = p->min_lr;
  session->warmup = p->warmup;
  session->beta1 = p->beta1;
  session->beta2 = p->beta2;
  session->eps = p->eps;
  session->weight_decay = p->weight_decay;
  session->clip = p->clip;
  session->seed = p->seed;
  session->eval_iters = p->eval_batches;
  session->init = p->init;
  session->resume = p->resume;
}

/*
 * Take the ranks that train together. Without them a process of a job of several ranks is refused, because each would
 * train the same model alone. Launchers end a job with its first failure, so the first rank returns at once and the
 * others later: the program's message is then printed once.
 */
static int ranks_apply(const struct lade_trainer_params *p, struct lade_session_params *session,
                       struct lade_error *error)
{
  struct lade_launch launch;
  int status = lade_launch_read(environ, error, &launch);
  if (status)
    return status;
  if (!p->ranks && launch.world > 1 && !session->is_dry) {
    if (launch.rank > 0)
      nanosleep(&(struct timespec){.tv_sec = REFUSAL_S}, NULL);
    return lade_error_set(error, -EINVAL, "lade_trainer_params: ranks is NULL, and %s started %d ranks of this "
                          "program: each would train alone; give lade_ranks_open's ranks, or start one",
                          lade_launcher_name(launch.launcher), launch.world);
  }
  lade_comm *comm = p->ranks ? lade_ranks_comm(p->ranks) : NULL;
  const struct lade_layout_params *layout = &session->layout;
  const int64_t n = (int64_t)LADE_MAX(layout->tp, 1) * LADE_MAX(layout->pp, 1) * LADE_MAX(layout->dp, 1);
  if ((!comm || lade_comm_size(comm) == 1) && n > 1 && !session->is_dry)
    return lade_error_set(error, -EINVAL, "lade_run_params: the layout is of %lld ranks, and this process is one: give "
                          "as many in ranks of lade_trainer_params", (long long)n);
  if (!comm || lade_comm_size(comm) == 1)
    return 0;
  if (session->is_dry)
    return lade_error_set(error, -EINVAL, "lade_trainer_params: a dry device executes one rank, and there are %d",
                          lade_comm_size(comm));
  session->world = comm;
  if (!session->n_threads)
    session->n_threads = LADE_MAX(lade_cpu_count() / LADE_MAX(launch.local_world, 1), 1);
  return 0;
}

static void notice_pass(void *user, const char *line)
{
  const lade_trainer *trainer = user;
  char words[512];
  lade_api_words(line, words, sizeof(words));
  trainer->notice(trainer->notice_user, words);
}

int lade_trainer_open(const struct lade_trainer_params *params, struct lade_error *error, lade_trainer **ret_trainer)
{
  if (!ret_trainer)
    return lade_error_set(error, -EINVAL, "lade_trainer_open: ret_trainer is NULL");
  struct lade_trainer_params own;
  struct lade_session_params session;
  int status = lade_struct_read("lade_trainer_params", params, &own, sizeof(own), error);
  if (!status)
    status = params_check(&own, error);
  if (!status)
    status = lade_run_session_params(own.run, &session, error);
  if (!status)
    status = ranks_apply(&own, &session, error);
  if (status)
    return status;
  params_apply(&own, &session);
  lade_trainer *trainer = calloc(1, sizeof(*trainer));
  if (!trainer)
    return lade_error_set(error, -ENOMEM, "no memory for a trainer");
  trainer->is_dry = session.is_dry;
  trainer->notice = own.notice;
  trainer->notice_user = own.notice_user;
  session.notice = own.notice ? notice_pass : NULL;
  session.user = trainer;
  status = lade_session_open(&session, error, &trainer->session);
  if (status) {
    free(trainer);
    return lade_api_error(status, error);
  }
  *ret_trainer = trainer;
  return 0;
}

void lade_trainer_close(lade_trainer *trainer)
{
  if (!trainer)
    return;
  lade_session_close(trainer->session);
  free(trainer);
}

int lade_trainer_step(lade_trainer *trainer, struct lade_trainer_report *ret_report, struct lade_error *error)
{
  if (!trainer)
    return lade_error_set(error, -EINVAL, "lade_trainer_step: trainer is NULL");
  struct lade_step_report step;
  int status = ret_report ? lade_struct_check("lade_trainer_report", ret_report, error) : 0;
  if (!status)
    status = lade_api_error(lade_session_step(trainer->session, &step, error), error);
  if (status || !ret_report)
    return status;
  struct lade_trainer_report report = {
      .step = step.step, .loss = step.loss, .grad_norm = step.grad_norm, .lr = step.lr,
      .is_skipped = step.is_skipped, .loss_scale = step.loss_scale, .wall_ns = step.wall_ns};
  memcpy(report.queue_ns, step.busy_ns, sizeof(step.busy_ns));
  memcpy(report.stall_ns, step.stall_ns, sizeof(step.stall_ns));
  return lade_struct_fill("lade_trainer_report", ret_report, &report, sizeof(report), error);
}

int lade_trainer_eval(lade_trainer *trainer, double *ret_loss, struct lade_error *error)
{
  if (!trainer || !ret_loss)
    return lade_error_set(error, -EINVAL, "lade_trainer_eval: trainer or ret_loss is NULL");
  return lade_api_error(lade_session_eval(trainer->session, ret_loss, error), error);
}

/* Return -ENODATA on a dry device, which has addresses and no bytes behind them. */
static int values_check(const lade_trainer *trainer, struct lade_error *error)
{
  return trainer->is_dry ? lade_error_set(error, -ENODATA, "a dry device holds no values") : 0;
}

int lade_trainer_save(lade_trainer *trainer, const char *dir, int keep, struct lade_error *error)
{
  if (!trainer || !dir)
    return lade_error_set(error, -EINVAL, "lade_trainer_save: trainer or dir is NULL");
  if (keep < 0)
    return lade_error_set(error, -EINVAL, "lade_trainer_save: keep is %d: 0 for all, or positive", keep);
  int status = values_check(trainer, error);
  return status ? status : lade_api_error(lade_session_save(trainer->session, dir, keep, error), error);
}

int lade_trainer_get_info(lade_trainer *trainer, struct lade_trainer_info *ret_info)
{
  if (!trainer)
    return -EINVAL;
  struct lade_session_info session;
  lade_session_get_info(trainer->session, &session);
  const struct lade_trainer_info info = {
      .step = session.step, .vocabulary = session.model.vocabulary, .n_param_tensors = session.graph->n_params,
      .budget_bytes = session.budget_bytes, .planned_peak_bytes = session.plan->peak_bytes[LADE_DEVICE],
      .measured_peak_bytes = session.measured_peak_bytes, .host_bytes = session.host_bytes,
      .store_bytes = session.store_bytes, .predicted_step_ns = session.plan->predicted_ns,
      .roofline_step_ns = (int64_t)session.roofline_step_ns, .loss_digest = session.loss_digest,
      .numerics_key = session.numerics_key};
  return lade_struct_fill("lade_trainer_info", ret_info, &info, sizeof(info), NULL);
}

int lade_trainer_get_plan(lade_trainer *trainer, struct lade_plan_report *ret_report)
{
  if (!trainer)
    return -EINVAL;
  struct lade_session_info info;
  lade_session_get_info(trainer->session, &info);
  return lade_run_report(&info, ret_report, NULL);
}

int lade_trainer_digest_params(lade_trainer *trainer, uint64_t *ret_digest, struct lade_error *error)
{
  if (!trainer || !ret_digest)
    return lade_error_set(error, -EINVAL, "lade_trainer_digest_params: trainer or ret_digest is NULL");
  int status = values_check(trainer, error);
  return status ? status
                : lade_api_error(lade_session_params_digest(trainer->session, ret_digest, error), error);
}

/* Return the graph's tensor of parameter @i, or NULL. */
static const struct lade_tensor *param_find(const struct lade_model_graph *graph, int i)
{
  return i >= 0 && i < graph->n_params ? &graph->tensors[graph->params[i].tensor] : NULL;
}

int lade_trainer_get_param(lade_trainer *trainer, int i, struct lade_param_info *ret_info)
{
  if (!trainer)
    return -EINVAL;
  struct lade_session_info session;
  lade_session_get_info(trainer->session, &session);
  const struct lade_tensor *tensor = param_find(session.graph, i);
  struct lade_param_info info = {.n_elements = 1};
  _Static_assert(sizeof(info.name) == sizeof(tensor->name) && sizeof(info.dims) == sizeof(tensor->dims),
                 "names and shapes are a tensor's");
  if (!tensor)
    return -EINVAL;
  memcpy(info.name, tensor->name, sizeof(info.name));
  info.n_dims = tensor->n_dims;
  for (int dim = 0; dim < tensor->n_dims; dim++) {
    info.dims[dim] = tensor->dims[dim];
    info.n_elements *= tensor->dims[dim];
  }
  return lade_struct_fill("lade_param_info", ret_info, &info, sizeof(info), NULL);
}

static int elements_copy(void *user, int64_t first, const float *elements, int64_t n)
{
  memcpy((float *)user + first, elements, (size_t)n * sizeof(*elements));
  return 0;
}

int lade_trainer_read_param(lade_trainer *trainer, int i, float *dst, struct lade_error *error)
{
  if (!trainer || !dst)
    return lade_error_set(error, -EINVAL, "lade_trainer_read_param: trainer or dst is NULL");
  struct lade_session_info session;
  lade_session_get_info(trainer->session, &session);
  int status = values_check(trainer, error);
  if (status)
    return status;
  if (session.layout.mesh.world > 1)
    return lade_error_set(error, -EINVAL, "lade_trainer_read_param: ranks hold parts of tensors; lade_trainer_save "
                          "writes them whole");
  if (!param_find(session.graph, i))
    return lade_error_set(error, -EINVAL, "there is no parameter %d of %d", i, session.graph->n_params);
  struct lade_values values = lade_executor_values(session.executor, session.graph);
  return lade_checkpoint_master(&values, i, elements_copy, dst, error);
}
