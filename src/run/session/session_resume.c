/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Resume from a checkpoint. Its state is read before the data is opened, because its seed draws the batches. Its values
 * are loaded once the executor can hold them.
 *
 * Settings that would change the numbers are reported, not refused: a lower learning rate or a larger batch is a common
 * reason to resume. Another form of GELU is refused, because it is a property of the model. Values of another model
 * cannot be loaded; lade_checkpoint_load detects that.
 */
#include <errno.h>
#include <string.h>

#include "run/session/session_internal.h"

#define FIRST_LOSS_SCALE 65536.0 /* FP16; halved after an overflow, doubled after a run of good steps */

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

int session_gelu_check(const lade_session *s, const char *where, struct lade_error *error)
{
  const struct lade_checkpoint_run *saved = &s->state.run;
  const bool is_same = saved->dtype == LADE_F32 || s->params.dtype == LADE_F32; /* F32 has one GELU */
  if (!saved->is_known || is_same || saved->gelu_fusion == s->params.gelu_fusion)
    return 0;
  return lade_error_set(error, -EINVAL, "%s was computed %s --gelu-fusion, which changes the numbers of GELU: %s the "
                        "option to go on", where, saved->gelu_fusion ? "with" : "without",
                        saved->gelu_fusion ? "give" : "leave out");
}

static int resume_find(lade_session *s, struct lade_error *error)
{
  if (!s->params.resume || s->params.is_dry || s->params.is_plan_only)
    return 0;
  int status = lade_checkpoint_find(s->params.resume, s->resume_path, sizeof(s->resume_path), error);
  if (!status)
    status = lade_checkpoint_read_state(s->resume_path, &s->state, error);
  return status ? status : session_gelu_check(s, s->resume_path, error);
}

/*
 * Begin the resume on all ranks. If several do not find the checkpoint, the first rank's line is returned, because the
 * checkpoint is then absent, not merely missing on one node.
 */
int session_resume_begin(lade_session *s, struct lade_error *error)
{
  int status = lade_rank_group_vote(&s->group, resume_find(s, error), error);
  if (!status && *s->resume_path)
    session_seed_take(s, s->resume_path);
  return status;
}

/* Keep the saved loss scale if both runs are FP16; else begin with the first one. */
static void scale_take(lade_session *s, const struct lade_checkpoint_run *saved)
{
  bool is_kept = s->params.dtype == LADE_F16 && (!saved->is_known || saved->dtype == LADE_F16);
  if (is_kept)
    return;
  s->state.loss_scale = session_first_scale(s);
  s->state.good_steps = 0;
}

void session_run_replace(lade_session *s, const char *where)
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
    session_run_replace(s, s->resume_path);
  return status;
}
