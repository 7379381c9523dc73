/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A session whose state outlives it, step by step. Every parameter is at home in the store, so that what a step
 * publishes beside it is small: a table of checksums, and a memo with the rest of the training state, which is what
 * a checkpoint's state.json says of it, as it is in memory. State elsewhere would have to be written whole in every
 * step, as much as the store's own, through code of its own; so a choice of another home is refused rather than
 * honoured at that price.
 *
 * What is found in the directory is what the run goes on from, whatever else it is told to begin with: the command that
 * began a run goes on with it. Only a checkpoint that is further than what is found is a question for a person.
 */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <xxhash.h>

#include "run/session_internal.h"

#define MEMO_VERSION 3

struct memo {
  uint64_t version;
  struct lade_checkpoint_state state;
};

_Static_assert(sizeof(struct memo) == 8 + 288, "a memo that is another is of another version");
_Static_assert(sizeof(struct memo) <= LADE_DURABLE_MEMO_BYTES, "a memo has room in a record");

/* ---- what is found ---- */

/* A checkpoint that is further is not passed over in silence, nor overwritten by going on from before it. */
static int resume_weigh(lade_session *s, struct lade_error *error)
{
  struct lade_checkpoint_state saved;
  int status = lade_checkpoint_find(s->params.resume, s->resume_path, sizeof(s->resume_path), error);
  if (!status)
    status = lade_checkpoint_read_state(s->resume_path, &saved, error);
  if (status)
    return status;
  if (saved.step > s->state.step)
    return lade_error_set(error, -EINVAL, "%s is of step %lld, and the state in --store %s of step %lld: remove %s and "
                          "%s there to go on from the checkpoint, or leave --resume away", s->resume_path,
                          (long long)saved.step, s->params.store, (long long)s->state.step, LADE_DURABLE_DATA,
                          LADE_DURABLE_JOURNAL);
  session_notice(s, "going on from step %lld in --store %s; %s is not further", (long long)s->state.step,
                 s->params.store, s->resume_path);
  return 0;
}

static int memo_take(lade_session *s, const void *data, size_t bytes, struct lade_error *error)
{
  struct memo memo = {0};
  memcpy(&memo, data, LADE_MIN(bytes, sizeof(memo)));
  if (bytes != sizeof(memo) || memo.version != MEMO_VERSION)
    return lade_error_set(error, -EINVAL, "%s/%s: its memo is of a version that is unknown to this build",
                          s->params.store, LADE_DURABLE_JOURNAL);
  s->state = memo.state;
  s->is_recovered = true;
  return 0;
}

int session_durable_begin(lade_session *s, struct lade_error *error)
{
  if (!s->params.is_durable)
    return 0;
  if (!s->params.store)
    return lade_error_set(error, -EINVAL, "--durable means nothing without --store");
  if (s->params.is_dry || s->params.is_plan_only)
    return 0;
  const struct lade_durable_params how = {.struct_size = sizeof(how), .dir = s->params.store,
                                          .allow_tmpfs = s->params.allow_tmpfs, .faults = s->params.faults};
  size_t bytes = 0;
  int status = lade_durable_open(&how, error, &s->durable);
  const void *memo = status ? NULL : lade_durable_memo(s->durable, &bytes);
  if (!memo)
    return status;
  status = memo_take(s, memo, bytes, error);
  if (!status && s->params.resume)
    status = resume_weigh(s, error);
  else if (!status)
    session_notice(s, "going on from step %lld in --store %s%s", (long long)s->state.step, s->params.store,
                   s->params.init ? "; --init was for its beginning" : "");
  if (status)
    return status;
  session_seed_take(s, s->params.store);
  s->params.resume = s->params.init = NULL;
  return 0;
}

/* ---- where state is ---- */

uint64_t session_durable_extra(const lade_session *s)
{
  return s->params.is_durable ? lade_durable_extra_bytes(lade_state_store_bytes(s->graph)) : 0;
}

/* A plan opens nothing: somebody may be training there. */
uint64_t session_durable_held(const lade_session *s)
{
  struct stat what;
  char path[PATH_MAX];
  if (s->durable)
    return lade_durable_held_bytes(s->durable);
  if (!s->params.is_durable || !s->params.is_plan_only)
    return 0;
  const int length = snprintf(path, sizeof(path), "%s/%s", s->params.store, LADE_DURABLE_DATA);
  return length < (int)sizeof(path) && stat(path, &what) == 0 ? (uint64_t)what.st_blocks * 512 : 0;
}

uint64_t session_durable_published(const lade_session *s)
{
  return s->params.is_durable ? lade_durable_publish_bytes(lade_state_store_bytes(s->graph)) : 0;
}

int session_durable_check_room(const lade_session *s, struct lade_error *error)
{
  char need[32], have[32];
  if (!s->params.is_durable)
    return 0;
  uint64_t bytes = lade_state_store_bytes(s->graph) + session_durable_extra(s);
  if (s->store_bytes >= bytes)
    return 0;
  lade_size_format(bytes, need, sizeof(need));
  lade_size_format(s->store_bytes, have, sizeof(have));
  if (s->params.store_budget_bytes)
    return lade_error_set(error, -EOVERFLOW, "--durable needs %s (%llu bytes) in --store, two slots of all state, and "
                          "--store-budget is %s", need, (unsigned long long)bytes, have);
  return lade_error_set(error, -ENOSPC, "--durable needs %s (%llu bytes) in --store %s, two slots of all state, and %s "
                        "can be had there; free more or name another directory", need, (unsigned long long)bytes,
                        s->params.store, have);
}

int session_durable_pin(lade_session *s, struct lade_error *error)
{
  if (!s->params.is_durable)
    return 0;
  for (int i = 0; i < s->n_pins; i++) {
    const struct lade_change *pin = &s->pins[i];
    if (!lade_change_is_home(pin) || pin->to == LADE_HOME_STORE)
      continue;
    return lade_error_set(error, -EINVAL, "--residency %s has %s at home on the %s: with --durable all state is in the "
                          "store", s->params.residency_file,
                          s->graph->tensors[s->graph->params[pin->id].tensor].name,
                          pin->to == LADE_HOME_HOST ? "host" : "device");
  }
  struct lade_change *pins = realloc(s->pins, (size_t)(s->n_pins + s->graph->n_params + 1) * sizeof(*pins));
  if (!pins)
    return lade_error_set(error, -ENOMEM, "no memory for a session");
  s->pins = pins;
  for (int param = 0; param < s->graph->n_params; param++)
    s->pins[s->n_pins++] = (struct lade_change){LADE_CHANGE_WEIGHT, LADE_HOME_STORE, param}; /* and with it the state */
  return 0;
}

/* What the bytes of a slot are, as a number: tensors in their order, their form, and what the model does with them. */
static uint64_t layout_of(const lade_session *s)
{
  const struct lade_model *m = &s->model;
  const double numbers[] = {m->family, (double)m->heads, (double)m->key_heads, (double)lade_model_head_dim(m),
                            m->is_tied, m->norm_eps, m->rope_base, m->rope_scale_factor, m->rope_low_freq_factor,
                            m->rope_high_freq_factor, (double)m->rope_original_context, s->params.dtype,
                            s->params.moments, s->params.master};
  uint64_t sum = XXH3_64bits(numbers, sizeof(numbers));
  for (int param = 0; param < s->graph->n_params; param++) {
    const struct lade_tensor *tensor = &s->graph->tensors[s->graph->params[param].tensor];
    sum = XXH3_64bits_withSeed(tensor->name, strlen(tensor->name), sum);
    sum = XXH3_64bits_withSeed(tensor->dims, (size_t)tensor->n_dims * sizeof(tensor->dims[0]), sum);
  }
  return sum;
}

int session_durable_prepare(lade_session *s, struct lade_error *error)
{
  char differences[300] = "";
  if (!s->durable)
    return 0;
  int status = lade_durable_prepare(s->durable, lade_state_store_bytes(s->graph), layout_of(s), error);
  if (status != -EINVAL || !s->is_recovered)
    return status;
  const struct lade_checkpoint_run now = session_run(s);
  lade_checkpoint_run_compare(&s->state.run, &now, differences, sizeof(differences));
  return lade_error_set(error, status, "--store %s holds durable state of another model or form (%s%s%s): name another "
                        "directory, or remove %s and %s there to begin anew", s->params.store, s->state.model,
                        *differences ? "; " : "", differences, LADE_DURABLE_DATA, LADE_DURABLE_JOURNAL);
}

int session_durable_publish(lade_session *s, struct lade_error *error)
{
  if (!s->durable)
    return 0;
  struct memo memo;
  memset(&memo, 0, sizeof(memo)); /* padding too: it is hashed */
  memo.version = MEMO_VERSION;
  memo.state = s->state;
  return lade_executor_publish(s->executor, &memo, sizeof(memo), error);
}
