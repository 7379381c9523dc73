/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Going on from a checkpoint. Its state is read before the data is opened, because its seed draws the batches; its
 * values are loaded once there is somewhere to put them.
 *
 * What would change the numbers is told, not refused: a lower learning rate or a larger batch is a common reason to
 * resume. Of another model nothing can be loaded, which checkpoints themselves see.
 */
#include <errno.h>
#include <string.h>

#include "run/session_internal.h"

#define FIRST_LOSS_SCALE 65536.0 /* FP16; halved when a gradient overflows, doubled after a run of good steps */

double session_first_scale(const lade_session *s)
{
  return s->params.dtype == LADE_F16 ? FIRST_LOSS_SCALE : 1;
}

void session_seed_take(lade_session *s, const char *where)
{
  if (s->state.seed != s->params.seed)
    session_notice(s, "%s was started with --seed %llu, not %llu; going on with %llu", where,
                   (unsigned long long)s->state.seed, (unsigned long long)s->params.seed,
                   (unsigned long long)s->state.seed);
  s->params.seed = s->state.seed;
}

static int resume_find(lade_session *s, struct lade_error *error)
{
  if (!s->params.resume || s->params.is_dry || s->params.is_plan_only)
    return 0;
  int status = lade_checkpoint_find(s->params.resume, s->resume_path, sizeof(s->resume_path), error);
  return status ? status : lade_checkpoint_read_state(s->resume_path, &s->state, error);
}

/* Of ranks that do not find it the first one speaks: then it is not there, and not a directory of one node. */
int session_resume_begin(lade_session *s, struct lade_error *error)
{
  int status = lade_peers_vote(&s->peers, resume_find(s, error), error);
  if (!status && *s->resume_path)
    session_seed_take(s, s->resume_path);
  return status;
}

struct lade_checkpoint_run session_run(const lade_session *s)
{
  const struct lade_session_params *p = &s->params;
  struct lade_data_info data = {0};
  if (s->data)
    lade_data_get_info(s->data, &data);
  return (struct lade_checkpoint_run){
      .is_known = true, .dtype = p->dtype, .order = p->order, .batch = p->batch, .micro_batch = p->micro_batch,
      .seq = p->time, .steps = p->steps, .warmup = p->warmup, .lr = p->lr, .min_lr = p->min_lr,
      .dropout = p->dropout, .beta1 = p->beta1, .beta2 = p->beta2, .eps = p->eps, .weight_decay = p->weight_decay,
      .clip = p->clip, .moments = p->moments, .master = p->master, .grad_dtype = p->grad_dtype,
      .grad_reduce = s->peers.layout.grad_reduce, .data_key = data.key};
}

/* FP16's scale goes on; a run in another dtype begins its own. */
static void scale_take(lade_session *s, const struct lade_checkpoint_run *saved)
{
  bool is_kept = s->params.dtype == LADE_F16 && (!saved->is_known || saved->dtype == LADE_F16);
  if (is_kept)
    return;
  s->state.loss_scale = session_first_scale(s);
  s->state.good_steps = 0;
}

void session_go_on(lade_session *s, const char *where)
{
  char differences[400];
  const struct lade_checkpoint_run saved = s->state.run, now = session_run(s);
  if (lade_checkpoint_run_compare(&saved, &now, differences, sizeof(differences)))
    session_notice(s, "%s goes on with other numbers than an uninterrupted run would have: %s", where, differences);
  if (s->state.numerics_key != lade_kernels_key(&s->kernels))
    session_notice(s, "%s was computed by other kernels: the numbers will not be those of an uninterrupted run", where);
  scale_take(s, &saved);
  s->state.run = now;
  s->state.numerics_key = lade_kernels_key(&s->kernels);
}

int session_resume(lade_session *s, const struct lade_values *values, struct lade_error *error)
{
  int status = lade_checkpoint_load(values, s->resume_path, s->params.faults, &s->state, error);
  if (!status)
    session_go_on(s, s->resume_path);
  return status;
}
