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
 *
 * Several ranks keep each what they hold, in files of their own, in the form of one layout: another number of ranks, or
 * another cut, is another state, which --save is for. A step counts when all of them have published it, which a vote
 * says; only then does any of them begin the next. So a start finds ranks at one generation, or some at the one after
 * it, which those take back (offload/durable.h). Anything else is not what one run has left.
 */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <xxhash.h>

#include "run/session_internal.h"

#define MEMO_VERSION 6
#define FILES "lade-durable*" /* of all ranks, as a person removes them */

struct memo {
  uint64_t version;
  struct lade_checkpoint_state state;
  int64_t rank;
  char layout[LADE_LAYOUT_NAME_BYTES];
};

_Static_assert(sizeof(struct memo) == 8 + 288 + 8 + 96, "a memo that is another is of another version");
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
    return lade_error_set(error, -EINVAL, "%s is of step %lld, and the state in --store %s of step %lld: remove " FILES
                          " there to go on from the checkpoint, or leave --resume away", s->resume_path,
                          (long long)saved.step, s->params.store, (long long)s->state.step);
  session_notice(s, "going on from step %lld in --store %s; %s is not further", (long long)s->state.step,
                 s->params.store, s->resume_path);
  return 0;
}

/* Are these the files of a rank that stood where we stand? */
static int memo_check(const lade_session *s, const struct memo *memo, size_t bytes, struct lade_error *error)
{
  char own[LADE_LAYOUT_NAME_BYTES] = "";
  if (bytes != sizeof(*memo) || memo->version != MEMO_VERSION)
    return lade_error_set(error, -EINVAL, "--store %s holds durable state of another version of lade (%llu, and this "
                          "build has %d): go on with the build that wrote it, name another directory, or remove " FILES
                          " there to begin anew", s->params.store, (unsigned long long)memo->version, MEMO_VERSION);
  lade_layout_name(&s->peers.layout, own);
  if (strcmp(own, memo->layout) == 0 && memo->rank == s->peers.layout.rank)
    return 0;
  return lade_error_set(error, -EINVAL, "--store %s holds what rank %lld of \"%s\" keeps, and this is rank %d of "
                        "\"%s\": take the layout that it was begun with, name another directory, or remove " FILES
                        " there to begin anew", s->params.store, (long long)memo->rank, memo->layout,
                        s->peers.layout.rank, own);
}

/* What counts at this rank, if something does. */
static int memo_take(lade_session *s, struct lade_error *error)
{
  struct memo memo = {0};
  size_t bytes = 0;
  const void *data = s->durable ? lade_durable_memo(s->durable, &bytes) : NULL;
  if (!data)
    return 0;
  memcpy(&memo, data, LADE_MIN(bytes, sizeof(memo)));
  int status = memo_check(s, &memo, bytes, error);
  if (status)
    return status;
  s->state = memo.state;
  s->is_recovered = true;
  return 0;
}

/* Its files, locked, and what counts in them. */
static int files_open(lade_session *s, struct lade_error *error)
{
  if (!s->params.is_durable)
    return 0;
  if (!s->params.store)
    return lade_error_set(error, -EINVAL, "--durable means nothing without --store");
  if (s->params.is_dry || s->params.is_plan_only)
    return 0;
  const struct lade_durable_params how = {.struct_size = sizeof(how), .dir = s->params.store,
                                          .rank = s->peers.layout.rank, .allow_tmpfs = s->params.allow_tmpfs,
                                          .faults = s->params.faults};
  int status = lade_durable_open(&how, error, &s->durable);
  return status ? status : memo_take(s, error);
}

/* ---- what ranks have together ---- */

/* As ranks tell each other. */
struct found {
  int64_t is_durable, generation; /* -1: nothing counts */
  uint64_t history, before;       /* what memos say of its run, and of the one before it; 0: it is not there */
};

/* A number of the run that left a memo and of where it stood, the same at all its ranks; 0: no memo. */
static uint64_t memo_history(const void *data, size_t bytes)
{
  struct memo memo;
  if (!data || bytes != sizeof(memo))
    return 0;
  memcpy(&memo, data, sizeof(memo));
  const uint64_t numbers[] = {memo.state.seed, (uint64_t)memo.state.step, memo.state.loss_digest};
  return memo.version == MEMO_VERSION ? XXH3_64bits(numbers, sizeof(numbers)) : 0;
}

static struct found found_get(const lade_session *s)
{
  struct found found = {s->durable != NULL, -1, 0, 0};
  size_t bytes = 0;
  const void *memo = s->durable ? lade_durable_memo(s->durable, &bytes) : NULL;
  if (!memo)
    return found;
  found.generation = (int64_t)lade_durable_generation(s->durable);
  found.history = memo_history(memo, bytes);
  memo = lade_durable_memo_before(s->durable, &bytes);
  found.before = memo_history(memo, bytes);
  return found;
}

/* Is what all @n ranks have of one run? Before any of them takes anything back. */
static int histories_compare(const lade_session *s, const struct found *all, int n, int64_t least,
                             struct lade_error *error)
{
  const uint64_t first = all[0].generation == least ? all[0].history : all[0].before;
  for (int rank = 1; rank < n; rank++) {
    const uint64_t own = all[rank].generation == least ? all[rank].history : all[rank].before;
    if (own && first && own != first)
      return lade_error_set(error, -EBADMSG, "--store %s: rank %d finds generation %lld of another run than rank 0: "
                            "put back what was there, or remove " FILES " at all ranks to begin anew",
                            s->params.store, rank, (long long)all[rank].generation);
  }
  return 0;
}

/*
 * The newest that all @n ranks have. -EBADMSG where some have lost more than a step that was under way, or have another
 * run's.
 */
static int found_weigh(const lade_session *s, const struct found *all, int n, int64_t *ret_least,
                       struct lade_error *error)
{
  int first = 0, last = 0;
  for (int rank = 1; rank < n; rank++) {
    if (all[rank].is_durable != all[0].is_durable)
      return lade_error_set(error, -EINVAL, "rank %d does not do what the first rank does: --durable at one of them "
                            "only; all ranks take the same options and files", rank);
    first = all[rank].generation < all[first].generation ? rank : first;
    last = all[rank].generation > all[last].generation ? rank : last;
  }
  *ret_least = all[first].generation;
  if (all[last].generation - all[first].generation <= 1)
    return histories_compare(s, all, n, *ret_least, error);
  if (all[first].generation < 0)
    return lade_error_set(error, -EBADMSG, "--store %s: rank %d finds no durable state, and rank %d finds generation "
                          "%lld: put back what was there, or remove " FILES " at all ranks to begin anew",
                          s->params.store, first, last, (long long)all[last].generation);
  return lade_error_set(error, -EBADMSG, "--store %s: rank %d finds generation %lld and rank %d finds %lld, which are "
                        "no parts of one state: put back what was there, or remove " FILES " at all ranks to begin "
                        "anew", s->params.store, first, (long long)all[first].generation, last,
                        (long long)all[last].generation);
}

/* What all ranks have; one rank alone has what it found. Collective. */
static int found_agree(lade_session *s, int64_t *ret_least, struct lade_error *error)
{
  const int n = s->peers.layout.mesh.world;
  const struct found own = found_get(s);
  *ret_least = own.generation;
  if (!s->peers.world)
    return 0;
  struct found *all = NULL;
  int status = lade_peers_collect(&s->peers, &own, sizeof(own), s->params.faults, error, (void **)&all);
  if (!status)
    status = found_weigh(s, all, n, ret_least, error);
  free(all);
  return status;
}

/* A rank that is ahead of generation @least takes back its last. */
static int found_limit(lade_session *s, int64_t least, struct lade_error *error)
{
  if (found_get(s).generation == least)
    return 0;
  s->is_recovered = false;
  s->state = (struct lade_checkpoint_state){0};
  int status = lade_durable_withdraw(s->durable, error);
  return status ? status : memo_take(s, error);
}

int session_durable_begin(lade_session *s, struct lade_error *error)
{
  int64_t least = -1;
  int status = lade_peers_vote(&s->peers, files_open(s, error), error);
  if (!status)
    status = found_agree(s, &least, error);
  if (!status)
    status = lade_peers_vote(&s->peers, found_limit(s, least, error), error);
  if (status || !s->is_recovered)
    return status;
  status = lade_peers_vote(&s->peers, s->params.resume ? resume_weigh(s, error) : 0, error);
  if (!status && !s->params.resume)
    session_notice(s, "going on from step %lld in --store %s%s", (long long)s->state.step, s->params.store,
                   s->params.init ? "; --init was for its beginning" : "");
  if (status)
    return status;
  session_seed_take(s, s->params.store);
  s->params.resume = s->params.init = NULL;
  return 0;
}

/* ---- where state is ---- */

uint64_t session_durable_slot(const lade_session *s)
{
  return s->params.is_durable ? lade_state_store_bytes(s->graph, lade_peers_layout(&s->peers)) : 0;
}

uint64_t session_durable_extra(const lade_session *s)
{
  return s->params.is_durable ? lade_durable_extra_bytes(session_durable_slot(s)) : 0;
}

/* A plan opens nothing: somebody may be training there. */
uint64_t session_durable_held(const lade_session *s)
{
  struct stat what;
  char name[64], path[PATH_MAX];
  if (s->durable)
    return lade_durable_held_bytes(s->durable);
  if (!s->params.is_durable || !s->params.is_plan_only)
    return 0;
  lade_durable_data_name(s->peers.layout.rank, name, sizeof(name));
  const int length = snprintf(path, sizeof(path), "%s/%s", s->params.store, name);
  return length < (int)sizeof(path) && stat(path, &what) == 0 ? (uint64_t)what.st_blocks * 512 : 0;
}

uint64_t session_durable_published(const lade_session *s)
{
  return s->params.is_durable ? lade_durable_publish_bytes(session_durable_slot(s)) : 0;
}

int session_durable_check_room(const lade_session *s, struct lade_error *error)
{
  char need[LADE_SIZE_TEXT], have[32];
  if (!s->params.is_durable)
    return 0;
  const char *each = s->peers.layout.mesh.world > 1 ? " for each rank" : "";
  uint64_t bytes = session_durable_slot(s) + session_durable_extra(s);
  if (s->store_bytes >= bytes)
    return 0;
  lade_size_exact(bytes, need);
  lade_size_format(s->store_bytes, have, sizeof(have));
  if (s->params.store_budget_bytes)
    return lade_error_set(error, -EOVERFLOW, "--durable needs %s%s in --store, two slots of all state, and "
                          "--store-budget is %s", need, each, have);
  return lade_error_set(error, -ENOSPC, "--durable needs %s%s in --store %s, two slots of all state, and %s can be had "
                        "there; free more or name another directory", need, each, s->params.store, have);
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

/*
 * What the bytes of a slot are, as a number: tensors in their order, their form, which of their elements where they are
 * cut, and what the model does with them.
 */
static uint64_t layout_of(const lade_session *s)
{
  const struct lade_model *m = &s->model;
  const struct lade_layout *layout = lade_peers_layout(&s->peers);
  const double numbers[] = {m->family, (double)m->heads, (double)m->key_heads, (double)lade_model_head_dim(m),
                            m->is_tied, m->norm_eps, m->rope_base, m->rope_scale_factor, m->rope_low_freq_factor,
                            m->rope_high_freq_factor, (double)m->rope_original_context, s->params.dtype,
                            s->params.moments, s->params.master, s->peers.layout.rank};
  uint64_t sum = XXH3_64bits(numbers, sizeof(numbers));
  for (int param = 0; param < s->graph->n_params; param++) {
    const struct lade_tensor *tensor = &s->graph->tensors[s->graph->params[param].tensor];
    sum = XXH3_64bits_withSeed(tensor->name, strlen(tensor->name), sum);
    sum = XXH3_64bits_withSeed(tensor->dims, (size_t)tensor->n_dims * sizeof(tensor->dims[0]), sum);
    const struct lade_shard shard = lade_param_shard(s->graph, layout, param);
    if (lade_shard_count(layout) > 1)
      sum = XXH3_64bits_withSeed(&shard, sizeof(shard), sum);
  }
  return sum;
}

/* Open the slots; of another model's say whose they are. */
static int slots_open(lade_session *s, struct lade_error *error)
{
  char differences[300] = "";
  if (!s->durable)
    return 0;
  const struct lade_machine_store *drive = &s->cost.machine.store;
  lade_durable_set_pieces(s->durable, (uint32_t)drive->piece_bytes, drive->n_pieces);
  int status = lade_durable_prepare(s->durable, session_durable_slot(s), layout_of(s), error);
  if (status != -EINVAL || !s->is_recovered)
    return status;
  const struct lade_checkpoint_run now = session_run(s);
  lade_checkpoint_run_compare(&s->state.run, &now, differences, sizeof(differences));
  return lade_error_set(error, status, "--store %s holds durable state of another model or form (%s%s%s): name another "
                        "directory, or remove " FILES " there to begin anew", s->params.store, s->state.model,
                        *differences ? "; " : "", differences);
}

/* Nobody writes before all have made durable what they go on from. */
int session_durable_prepare(lade_session *s, struct lade_error *error)
{
  return s->params.is_durable ? lade_peers_vote(&s->peers, slots_open(s, error), error) : 0;
}

/* Nobody begins the next step before all have published this one. */
int session_durable_publish(lade_session *s, struct lade_error *error)
{
  if (!s->durable)
    return 0;
  struct memo memo;
  memset(&memo, 0, sizeof(memo)); /* padding too: it is hashed */
  memo.version = MEMO_VERSION;
  memo.state = s->state;
  memo.rank = s->peers.layout.rank;
  lade_layout_name(&s->peers.layout, memo.layout);
  int status = lade_executor_publish(s->executor, &memo, sizeof(memo), error);
  return session_place(s, "at the end of", lade_peers_vote(&s->peers, status, error), error);
}
