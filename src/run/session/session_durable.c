/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A session whose state is durable, step by step. The store is the tier of every parameter. So a step publishes little
 * beside the state: a table of checksums, and a memo with the rest of the training state. The memo is the struct of a
 * checkpoint's state.json as it is in memory. State in another tier would have to be written whole in every step, as
 * many bytes as the store's own, by separate code. So durable state in another tier is refused.
 *
 * State found in the directory takes precedence over --init and --resume: the command that began a run also resumes it.
 * Only a checkpoint of a later step than the found state is an error, which the user must decide.
 *
 * Each of several ranks keeps the state that it holds, in files of its own, in the form of one layout. Another number
 * of ranks or another layout is another state; --save converts between layouts. A step counts when all ranks have
 * published it, which a vote establishes; only then does any rank begin the next step. So at a start all ranks are at
 * one generation, or some are one ahead and withdraw it (offload/durable.h). Any other difference cannot come from one
 * run.
 */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <xxhash.h>

#include "graph/model_json.h"
#include "run/checkpoint/checkpoint_internal.h"
#include "run/session/session_internal.h"

#define MEMO_VERSION 7 /* of the memo's layout */
#define FILES "lade-durable*" /* of all ranks, as a user would remove them */

struct memo {
  uint64_t version;
  struct lade_checkpoint_state state;
  int64_t rank;
  char layout[LADE_LAYOUT_NAME_BYTES];
};

_Static_assert(sizeof(struct memo) == 8 + 296 + 8 + 96, "a memo that is another is of another version");
_Static_assert(sizeof(struct memo) <= LADE_DURABLE_MEMO_BYTES, "a memo has room in a record");

/* ---- the state that is found ---- */

/* Refuse a checkpoint of a later step than the found state: the user decides which of both continues. */
static int resume_compare(lade_session *s, struct lade_error *error)
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
  session_notice(s, "continuing from step %lld in --store %s; %s is not newer", (long long)s->state.step,
                 s->params.store, s->resume_path);
  return 0;
}

/* Return -EBADMSG, naming the journal, if a field of @memo, which is of this version, is out of range. */
static int memo_check_fields(const lade_session *s, const struct memo *memo, size_t bytes, struct lade_error *error)
{
  const char *fault = bytes != sizeof(*memo) ? "length" : saved_state_fault(&memo->state);
  if (!fault && (memo->rank < 0 || memo->rank > INT_MAX))
    fault = "rank";
  if (!fault && !memchr(memo->layout, 0, sizeof(memo->layout)))
    fault = "layout";
  return !fault ? 0
                : lade_error_set(error, -EBADMSG, "--store: %s/%s is damaged: the %s in its memo is out of range",
                                 s->params.store, lade_durable_journal_name(s->durable), fault);
}

/* Check that the memo is of this version, this layout and this rank. */
static int memo_check(const lade_session *s, const struct memo *memo, size_t bytes, struct lade_error *error)
{
  char own[LADE_LAYOUT_NAME_BYTES] = "";
  if (bytes >= sizeof(memo->version) && memo->version != MEMO_VERSION)
    return lade_error_set(error, -EINVAL, "--store %s holds durable state of another version of lade (%llu, and this "
                          "build has %d): go on with the build that wrote it, name another directory, or remove " FILES
                          " there to begin anew", s->params.store, (unsigned long long)memo->version, MEMO_VERSION);
  int status = memo_check_fields(s, memo, bytes, error);
  if (status)
    return status;
  lade_layout_name(&s->group.layout, own);
  if (strcmp(own, memo->layout) == 0 && memo->rank == s->group.layout.rank)
    return 0;
  return lade_error_set(error, -EINVAL, "--store %s holds what rank %lld of \"%s\" keeps, and this is rank %d of "
                        "\"%s\": take the layout that it was begun with, name another directory, or remove " FILES
                        " there to begin anew", s->params.store, (long long)memo->rank, memo->layout,
                        s->group.layout.rank, own);
}

/* Copy the memo at @data into @ret_memo, checked. */
static int memo_read(const lade_session *s, const void *data, size_t bytes, struct memo *ret_memo,
                     struct lade_error *error)
{
  memset(ret_memo, 0, sizeof(*ret_memo));
  memcpy(ret_memo, data, LADE_MIN(bytes, sizeof(*ret_memo)));
  return memo_check(s, ret_memo, bytes, error);
}

/* Take the state in this rank's files, if there is one. */
static int memo_take(lade_session *s, struct lade_error *error)
{
  struct memo memo;
  size_t bytes = 0;
  const void *data = s->durable ? lade_durable_memo(s->durable, &bytes) : NULL;
  if (!data)
    return 0;
  int status = memo_read(s, data, bytes, &memo, error);
  if (status)
    return status;
  s->state = memo.state;
  s->is_recovered = true;
  return 0;
}

/* Open and lock this rank's files, and take their state. */
static int files_open(lade_session *s, struct lade_error *error)
{
  if (!s->params.is_durable)
    return 0;
  if (!s->params.store)
    return lade_error_set(error, -EINVAL, "--durable has no effect without --store");
  if (s->params.is_dry || s->params.is_plan_only)
    return 0;
  const struct lade_durable_params params = {.struct_size = sizeof(params), .dir = s->params.store,
                                             .rank = s->group.layout.rank, .allow_tmpfs = s->params.allow_tmpfs,
                                             .faults = s->params.faults, .is_stopping = s->params.is_stopping,
                                             .user = s->params.user};
  int status = lade_durable_open(&params, error, &s->durable);
  return status ? status : memo_take(s, error);
}

/* ---- the state that ranks have together ---- */

/* One rank's found state, as ranks gather it. */
struct memo_found {
  int64_t is_durable, generation; /* generation -1: no state */
  uint64_t history, before;       /* by memo_history, of the current memo and of the one before it; 0: absent */
};

/* Return a hash of the run and the step of a memo, the same at all ranks of the run; 0: no memo. */
static uint64_t memo_history(const void *data, size_t bytes)
{
  struct memo memo;
  if (!data || bytes != sizeof(memo))
    return 0;
  memcpy(&memo, data, sizeof(memo));
  const uint64_t numbers[] = {memo.state.seed, (uint64_t)memo.state.step, memo.state.loss_digest};
  return memo.version == MEMO_VERSION ? XXH3_64bits(numbers, sizeof(numbers)) : 0;
}

static struct memo_found found_get(const lade_session *s)
{
  struct memo_found found = {s->durable != NULL, -1, 0, 0};
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

/* Check that all @n ranks' states at generation @min are of one run, before any rank withdraws a generation. */
static int histories_compare(const lade_session *s, const struct memo_found *all, int n, int64_t min,
                             struct lade_error *error)
{
  const uint64_t first = all[0].generation == min ? all[0].history : all[0].before;
  for (int rank = 1; rank < n; rank++) {
    const uint64_t own = all[rank].generation == min ? all[rank].history : all[rank].before;
    if (own && first && own != first)
      return lade_error_set(error, -EBADMSG, "--store %s: rank %d finds generation %lld of another run than rank 0: "
                            "restore the files of one run, or remove " FILES " at all ranks to begin anew",
                            s->params.store, rank, (long long)all[rank].generation);
  }
  return 0;
}

/*
 * Find the newest generation that all @n ranks have. -EBADMSG: a rank lacks more than one generation that another has,
 * or has the state of another run.
 */
static int found_compare(const lade_session *s, const struct memo_found *all, int n, int64_t *ret_generation,
                         struct lade_error *error)
{
  int first = 0, last = 0;
  for (int rank = 1; rank < n; rank++) {
    if (all[rank].is_durable != all[0].is_durable)
      return lade_error_set(error, -EINVAL, "rank %d differs from the first rank: --durable at one of them only; give "
                            "all ranks the same options and files", rank);
    first = all[rank].generation < all[first].generation ? rank : first;
    last = all[rank].generation > all[last].generation ? rank : last;
  }
  *ret_generation = all[first].generation;
  if (all[last].generation - all[first].generation <= 1)
    return histories_compare(s, all, n, *ret_generation, error);
  if (all[first].generation < 0)
    return lade_error_set(error, -EBADMSG, "--store %s: rank %d finds no durable state, and rank %d finds generation "
                          "%lld: restore the missing files, or remove " FILES " at all ranks to begin anew",
                          s->params.store, first, last, (long long)all[last].generation);
  return lade_error_set(error, -EBADMSG, "--store %s: rank %d finds generation %lld and rank %d finds %lld, which are "
                        "not of one state: restore the files of one state, or remove " FILES " at all ranks to begin "
                        "anew", s->params.store, first, (long long)all[first].generation, last,
                        (long long)all[last].generation);
}

/* Find the newest generation of all ranks; a single rank has the one that it found. Collective. */
static int found_agree(lade_session *s, int64_t *ret_generation, struct lade_error *error)
{
  const int n = s->group.layout.mesh.world;
  const struct memo_found own = found_get(s);
  *ret_generation = own.generation;
  if (!s->group.world)
    return 0;
  struct memo_found *all = NULL;
  int status = lade_rank_group_collect(&s->group, &own, sizeof(own), s->params.faults, error, (void **)&all);
  if (!status)
    status = found_compare(s, all, n, ret_generation, error);
  free(all);
  return status;
}

/* Withdraw the last generation if this rank is ahead of @min. pre: the memo before it is checked here first. */
static int found_limit(lade_session *s, int64_t min, struct lade_error *error)
{
  struct memo memo;
  size_t bytes = 0;
  if (found_get(s).generation == min)
    return 0;
  const void *before = lade_durable_memo_before(s->durable, &bytes);
  int status = before ? memo_read(s, before, bytes, &memo, error) : 0;
  if (status)
    return status;
  s->is_recovered = false;
  s->state = (struct lade_checkpoint_state){0};
  status = lade_durable_withdraw(s->durable, error);
  return status ? status : memo_take(s, error);
}

int session_durable_begin(lade_session *s, struct lade_error *error)
{
  int64_t min = -1;
  int status = lade_rank_group_vote(&s->group, files_open(s, error), error);
  if (!status)
    status = found_agree(s, &min, error);
  if (!status)
    status = lade_rank_group_vote(&s->group, found_limit(s, min, error), error);
  if (status || !s->is_recovered)
    return status;
  status = lade_rank_group_vote(&s->group, session_gelu_check(s, s->params.store, error), error);
  if (status)
    return status;
  status = lade_rank_group_vote(&s->group, s->params.resume ? resume_compare(s, error) : 0, error);
  if (!status && !s->params.resume)
    session_notice(s, "continuing from step %lld in --store %s%s", (long long)s->state.step, s->params.store,
                   s->params.init ? "; --init applies to a new run only" : "");
  if (status)
    return status;
  session_seed_take(s, s->params.store);
  s->params.resume = s->params.init = NULL;
  return 0;
}

/* ---- where state is ---- */

/* Read the size of the data file for a plan, which opens no files, because a training run may have them locked. */
uint64_t session_durable_held(const lade_session *s)
{
  struct stat file_status;
  char name[64], path[PATH_MAX];
  if (s->durable)
    return lade_durable_held_bytes(s->durable);
  if (!s->params.is_durable || !s->params.is_plan_only)
    return 0;
  lade_durable_data_name(s->group.layout.rank, name, sizeof(name));
  const int length = snprintf(path, sizeof(path), "%s/%s", s->params.store, name);
  return length < (int)sizeof(path) && stat(path, &file_status) == 0 ? (uint64_t)file_status.st_blocks * 512 : 0;
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
  const char *each = s->group.layout.mesh.world > 1 ? " for each rank" : "";
  uint64_t bytes = session_durable_slot(s) + session_durable_extra(s);
  if (s->store_bytes >= bytes)
    return 0;
  lade_size_exact(bytes, need);
  lade_size_format(s->store_bytes, have, sizeof(have));
  if (s->params.store_budget_bytes)
    return lade_error_set(error, -EOVERFLOW, "--durable needs %s%s in --store, two slots of all state, and "
                          "--store-budget is %s", need, each, have);
  return lade_error_set(error, -ENOSPC, "--durable needs %s%s in --store %s, two slots of all state, and %s are free "
                        "there; free more or name another directory", need, each, s->params.store, have);
}

int session_durable_fix_tiers(lade_session *s, struct lade_error *error)
{
  if (!s->params.is_durable)
    return 0;
  for (int i = 0; i < s->n_overrides; i++) {
    const struct lade_change *override = &s->overrides[i];
    if (!lade_change_is_tier(override) || override->to == LADE_TIER_STORE)
      continue;
    return lade_error_set(error, -EINVAL, "--residency %s puts %s on the %s: with --durable all state is in the "
                          "store", s->params.residency_file,
                          s->graph->tensors[s->graph->params[override->id].tensor].name,
                          override->to == LADE_TIER_HOST ? "host" : "device");
  }
  struct lade_change *overrides = realloc(s->overrides, (size_t)(s->n_overrides + s->graph->n_params +
                                                                 1) * sizeof(*overrides));
  if (!overrides)
    return lade_error_set(error, -ENOMEM, "no memory for a session");
  s->overrides = overrides;
  for (int param = 0; param < s->graph->n_params; param++)
    /* the state has the weight's tier */
    s->overrides[s->n_overrides++] = (struct lade_change){LADE_CHANGE_WEIGHT, LADE_TIER_STORE, param};
  return 0;
}

/*
 * Return a hash of the meaning of a slot's bytes: tensors in order, their form, the elements held if they are cut, and
 * the model's numbers that change its function.
 */
static uint64_t layout_of(const lade_session *s)
{
  const struct lade_model *m = &s->model;
  const struct lade_layout *layout = lade_rank_group_layout(&s->group);
  const double numbers[] = {m->family, (double)m->heads, (double)m->n_kv_heads, (double)lade_model_head_dim(m),
                            m->is_tied, m->norm_eps, m->rope_base, m->rope_scale_factor, m->rope_low_freq_factor,
                            m->rope_high_freq_factor, (double)m->rope_original_context, s->params.dtype,
                            s->params.moments, s->params.master, s->group.layout.rank};
  const uint64_t key = lade_model_key(m);
  uint64_t sum = XXH3_64bits(numbers, sizeof(numbers));
  if (key) /* so that the hashes of models without such facts stay */
    sum = XXH3_64bits_withSeed(&key, sizeof(key), sum);
  for (int param = 0; param < s->graph->n_params; param++) {
    const struct lade_tensor *tensor = &s->graph->tensors[s->graph->params[param].tensor];
    sum = XXH3_64bits_withSeed(tensor->name, strlen(tensor->name), sum);
    sum = XXH3_64bits_withSeed(tensor->dims, (size_t)tensor->n_dims * sizeof(tensor->dims[0]), sum);
    const struct lade_state_shard shard = lade_param_shard(s->graph, layout, param);
    if (lade_shard_count(layout) > 1)
      sum = XXH3_64bits_withSeed(&shard, sizeof(shard), sum);
  }
  return sum;
}

/* Open the slots. If they are another model's, the line names that model. */
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

/* Open the slots and vote, so that no rank writes before all ranks have a durable state to resume from. */
int session_durable_prepare(lade_session *s, struct lade_error *error)
{
  return s->params.is_durable ? lade_rank_group_vote(&s->group, slots_open(s, error), error) : 0;
}

/* Publish and vote, so that no rank begins the next step before all ranks have published this one. */
int session_durable_publish(lade_session *s, struct lade_error *error)
{
  if (!s->durable)
    return 0;
  struct memo memo;
  memset(&memo, 0, sizeof(memo)); /* zeroes padding too, because it is hashed */
  memo.version = MEMO_VERSION;
  memo.state = s->state;
  memo.rank = s->group.layout.rank;
  lade_layout_name(&s->group.layout, memo.layout);
  int status = lade_executor_publish(s->executor, &memo, sizeof(memo), error);
  return session_place(s, "at the end of", lade_rank_group_vote(&s->group, status, error), error);
}
