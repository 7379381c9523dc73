/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Agreements of several ranks of one run before step 0.
 *
 * Options, model and data. The first rank broadcasts its own. A rank that differs reports the difference and ends the
 * job. With another learning rate or another file it would train another model, and no later check would find that.
 *
 * Measurements. A plan depends on prices and on the free memory of a machine, and ranks that share a collective must
 * have the same plan. So the first rank measures while the others wait, and broadcasts its measurements. Of their free
 * bytes of memory all ranks take the least.
 *
 * Decisions. Of ranks with equal inputs the first one decides (session_plan.c).
 *
 * Before a broadcast or a gather the ranks vote on its memory, so a rank without memory ends all ranks with its line.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/host_id.h"
#include "graph/model_json.h"
#include "run/session/file_key.h"
#include "run/session/session_internal.h"

#define NODE_RANKS 8 /* ranks of a described node whose budgets are stated: the GPUs of a common server */

/* The compared numbers of a run. A number without a meaning at a rank is 0 there. */
enum choice {
  CHOICE_FAMILY,
  CHOICE_LAYERS,
  CHOICE_HEADS,
  CHOICE_N_KV_HEADS,
  CHOICE_WIDTH,
  CHOICE_HIDDEN,
  CHOICE_VOCABULARY,
  CHOICE_MODEL, /* all other numbers of the model */
  CHOICE_SEED,
  CHOICE_STEP,
  CHOICE_HISTORY,
  CHOICE_PRODUCTS,
  CHOICE_NUMERICS,
  CHOICE_STEPS,
  CHOICE_EVAL_ITERS,
  CHOICE_VALID,
  CHOICE_UPDATE,
  CHOICE_RECIPE,
  CHOICE_RESIDENCY,
  CHOICE_MACHINE,
  CHOICE_BUDGET,
  CHOICE_HOST_BUDGET,
  CHOICE_STORE,
  CHOICE_INIT,
  CHOICE_SAVES,
  CHOICE_LINK_RATE,
  CHOICE_LINK_LATENCY,
  CHOICE_SAVE_FILE,
  CHOICE_SEPARATOR,
  N_CHOICES
};

static const struct choice_line {
  const char *name;
  bool is_number; /* the message has both values; else the name states the difference */
} choice_lines[N_CHOICES] = {
    [CHOICE_FAMILY] = {"a model of another family"},
    [CHOICE_LAYERS] = {"the model's layers", true},
    [CHOICE_HEADS] = {"the model's heads", true},
    [CHOICE_N_KV_HEADS] = {"the model's KV heads", true},
    [CHOICE_WIDTH] = {"the model's width", true},
    [CHOICE_HIDDEN] = {"the model's hidden width", true},
    [CHOICE_VOCABULARY] = {"the vocabulary", true},
    [CHOICE_MODEL] = {"a model of the same shape with other numbers"},
    [CHOICE_SEED] = {"--seed", true},
    [CHOICE_STEP] = {"the checkpoint's step", true},
    [CHOICE_HISTORY] = {"another checkpoint of the same step"},
    [CHOICE_PRODUCTS] = {"other matrix products (another library or GPU, another LADE_MATMUL, or another file of "
                         "LADE_MATMUL_CHOICES)"},
    [CHOICE_NUMERICS] = {"other kernels (LADE_CPU can hold all processors to one kind, LADE_ATTENTION all GPUs)"},
    [CHOICE_STEPS] = {"--steps", true},
    [CHOICE_EVAL_ITERS] = {"--eval-iters", true},
    [CHOICE_VALID] = {"other validation data"},
    [CHOICE_UPDATE] = {"--optimizer-in-backward at one of them only"},
    [CHOICE_RECIPE] = {"another --recompute"},
    [CHOICE_RESIDENCY] = {"another file of --residency"},
    [CHOICE_MACHINE] = {"a --machine at one of them only"},
    [CHOICE_BUDGET] = {"another kind of --budget"},
    [CHOICE_HOST_BUDGET] = {"--host-budget at one of them only"},
    [CHOICE_STORE] = {"a --store at one of them only"},
    [CHOICE_INIT] = {"other weights of --init"},
    [CHOICE_SAVES] = {"--save-every at one of them only"},
    [CHOICE_LINK_RATE] = {"--link-rate", true},
    [CHOICE_LINK_LATENCY] = {"--link-latency", true},
    [CHOICE_SEPARATOR] = {"the separator of masked documents", true},
    [CHOICE_SAVE_FILE] = {"the bytes of a checkpoint's file", true},
};

/* All compared values, as they are sent. */
struct request {
  struct lade_checkpoint_run run;
  int64_t choices[N_CHOICES];
  int64_t own[LADE_SESSION_CHOICES_MAX]; /* of the caller's loop */
};

/* Return a hash of the model's numbers that do not change shapes. */
static uint64_t model_key(const struct lade_model *m)
{
  const double numbers[] = {(double)m->context, (double)m->head_dim, m->is_tied, (double)m->norm_eps,
                            (double)m->rope_base, (double)m->rope_scale_factor, (double)m->rope_low_freq_factor,
                            (double)m->rope_high_freq_factor, (double)m->rope_original_context};
  return XXH3_64bits_withSeed(numbers, sizeof(numbers), lade_model_key(m));
}

static void model_add(const struct lade_model *m, int64_t *choices)
{
  choices[CHOICE_FAMILY] = m->family;
  choices[CHOICE_LAYERS] = m->layers;
  choices[CHOICE_HEADS] = m->heads;
  choices[CHOICE_N_KV_HEADS] = m->n_kv_heads;
  choices[CHOICE_WIDTH] = m->width;
  choices[CHOICE_HIDDEN] = m->hidden;
  choices[CHOICE_VOCABULARY] = m->vocabulary;
  choices[CHOICE_MODEL] = (int64_t)model_key(m);
}

static struct request request_make(const lade_session *s)
{
  const struct lade_session_params *p = &s->params;
  struct lade_data_info data = {0};
  struct request request;
  memset(&request, 0, sizeof(request)); /* zeroes padding too, because it is sent */
  request.run = session_run(s);
  if (s->data)
    lade_data_get_info(s->data, &data);
  int64_t *choices = request.choices;
  model_add(&s->model, choices);
  choices[CHOICE_SEED] = (int64_t)p->seed;
  choices[CHOICE_STEP] = s->state.step;
  choices[CHOICE_HISTORY] = (int64_t)s->state.loss_digest;
  choices[CHOICE_PRODUCTS] =
      s->kernels.library ? (int64_t)XXH3_64bits(s->kernels.library, strlen(s->kernels.library)) : 0;
  choices[CHOICE_NUMERICS] = (int64_t)lade_kernels_key(&s->kernels);
  choices[CHOICE_STEPS] = p->steps;
  choices[CHOICE_EVAL_ITERS] = p->eval_iters;
  choices[CHOICE_VALID] = (int64_t)data.valid_key;
  choices[CHOICE_UPDATE] = p->optimizer_in_backward;
  choices[CHOICE_RECIPE] = p->recipe;
  choices[CHOICE_MACHINE] = p->machine != NULL;
  choices[CHOICE_BUDGET] = p->budget.kind;
  choices[CHOICE_HOST_BUDGET] = p->has_host_budget;
  choices[CHOICE_STORE] = p->store != NULL;
  choices[CHOICE_SAVES] = p->async_save;
  choices[CHOICE_LINK_RATE] = (int64_t)p->throttle.bytes_per_s;
  choices[CHOICE_LINK_LATENCY] = (int64_t)p->throttle.latency_ns;
  choices[CHOICE_SEPARATOR] = s->separator;
  choices[CHOICE_SAVE_FILE] = (int64_t)p->save_file_bytes;
  LADE_ASSERT(p->n_choices <= LADE_SESSION_CHOICES_MAX);
  for (int i = 0; i < p->n_choices; i++)
    request.own[i] = p->choices[i].value;
  return request;
}

/* Write a hash of the file or directory @path of --@option into @ret_choice; 0 if @path is NULL. */
static int file_hash(const char *option, const char *path, int64_t *ret_choice, struct lade_error *error)
{
  uint64_t key = 0;
  int status = path ? lade_file_key(path, &key) : 0;
  *ret_choice = (int64_t)key;
  return status ? lade_error_set(error, status, "--%s %s: %s", option, path, strerror(-status)) : 0;
}

static int files_hash(const lade_session *s, int64_t *choices, struct lade_error *error)
{
  int status = file_hash("residency", s->params.residency_file, &choices[CHOICE_RESIDENCY], error);
  return status ? status : file_hash("init", s->params.init, &choices[CHOICE_INIT], error);
}

static void difference_write(const char *name, int64_t own, int64_t first, char *text, size_t text_bytes)
{
  snprintf(text, text_bytes, "%s %lld instead of %lld", name, (long long)own, (long long)first);
}

/* Write the first choice in which this rank differs from the first rank; false: none. */
static bool choices_differ(const struct request *own, const struct request *first, char *text, size_t text_bytes)
{
  int i = 0;
  while (i < N_CHOICES && own->choices[i] == first->choices[i])
    i++;
  if (i == N_CHOICES)
    return false;
  if (choice_lines[i].is_number)
    difference_write(choice_lines[i].name, own->choices[i], first->choices[i], text, text_bytes);
  else
    snprintf(text, text_bytes, "%s", choice_lines[i].name);
  return true;
}

/* As choices_differ, for the numbers of the caller's loop. */
static bool caller_choices_differ(const lade_session *s, const struct request *own, const struct request *first,
                                  char *text, size_t text_bytes)
{
  const struct lade_session_params *p = &s->params;
  int i = 0;
  while (i < p->n_choices && own->own[i] == first->own[i])
    i++;
  if (i == p->n_choices)
    return false;
  difference_write(p->choices[i].name, own->own[i], first->own[i], text, text_bytes);
  return true;
}

static int request_compare(const lade_session *s, const struct request *own, const struct request *first,
                           struct lade_error *error)
{
  char differences[300] = "";
  if (!choices_differ(own, first, differences, sizeof(differences)) &&
      !caller_choices_differ(s, own, first, differences, sizeof(differences)) &&
      !lade_checkpoint_run_compare(&first->run, &own->run, differences, sizeof(differences)))
    return 0;
  return lade_error_set(error, -EINVAL, "differs from the first rank: %s; give all ranks the same options and files",
                        differences);
}

int session_agree_run(lade_session *s, struct lade_error *error)
{
  struct request own = request_make(s);
  if (!s->group.world)
    return 0;
  int status = lade_rank_group_vote(&s->group, files_hash(s, own.choices, error), error);
  struct request first = own;
  if (!status)
    status = lade_rank_group_broadcast(&s->group, 0, &first, sizeof(first), error);
  return status ? status : lade_rank_group_vote(&s->group, request_compare(s, &own, &first, error), error);
}

/* Broadcast the first rank's @n measured ops. */
static int ops_agree(lade_session *s, int64_t n, struct lade_error *error)
{
  struct lade_cost *cost = &s->cost;
  struct lade_cost_op *ops = lade_fault_calloc(s->params.faults, (size_t)n, sizeof(*ops));
  int status = ops ? 0 : lade_error_set(error, -ENOMEM, "no memory for %lld prices", (long long)n);
  status = lade_rank_group_vote(&s->group, status, error);
  if (!status && cost->n_ops) /* the other ranks have none yet */
    memcpy(ops, cost->ops, (size_t)cost->n_ops * sizeof(*ops));
  if (!status)
    status = lade_rank_group_broadcast(&s->group, 0, ops, (uint64_t)n * sizeof(*ops), error);
  for (int64_t i = 0; i < n && !status; i++) {
    if (lade_cost_set(cost, ops[i].key, ops[i].ns))
      status = lade_error_set(error, -ENOMEM, "no memory for prices");
  }
  free(ops);
  return lade_rank_group_vote(&s->group, status, error);
}

int session_agree_cost(lade_session *s, struct lade_error *error)
{
  struct lade_cost *cost = &s->cost;
  struct {
    struct lade_machine machine;
    double sum_squares_bytes_per_s, matmul_flops_per_s;
    int64_t n_ops;
  } first;
  if (!s->group.world)
    return 0;
  memset(&first, 0, sizeof(first));
  first.machine = cost->machine;
  first.sum_squares_bytes_per_s = cost->sum_squares_bytes_per_s;
  first.matmul_flops_per_s = s->matmul_flops_per_s;
  first.n_ops = cost->n_ops;
  int status = lade_rank_group_broadcast(&s->group, 0, &first, sizeof(first), error);
  if (status)
    return status;
  cost->machine = first.machine;
  cost->sum_squares_bytes_per_s = first.sum_squares_bytes_per_s;
  s->matmul_flops_per_s = first.matmul_flops_per_s;
  return first.n_ops ? ops_agree(s, first.n_ops, error) : 0;
}

int session_agree_min(lade_session *s, uint64_t *bytes, struct lade_error *error)
{
  int64_t max = 0;
  const int64_t own = (int64_t)LADE_MIN(*bytes, (uint64_t)INT64_MAX);
  int status = lade_rank_group_max(&s->group, -own, &max, error);
  if (!status)
    *bytes = (uint64_t)-max;
  return status;
}

/* Set *bytes to the least of the ranks of this stage, which share collectives with this rank. */
int session_agree_stage_min(lade_session *s, uint64_t *bytes, struct lade_error *error)
{
  const struct lade_mesh *mesh = &s->group.layout.mesh;
  const int stage = lade_layout_position(&s->group.layout, LADE_AXIS_PP);
  uint64_t *all = NULL;
  if (!s->group.world)
    return 0;
  int status = lade_rank_group_collect(&s->group, bytes, sizeof(*bytes), s->params.faults, error, (void **)&all);
  for (int rank = 0; rank < mesh->world && !status; rank++) {
    if (lade_mesh_position(mesh, LADE_AXIS_PP, rank) == stage)
      *bytes = LADE_MIN(*bytes, all[rank]);
  }
  free(all);
  return status;
}

int session_agree_leader(lade_session *s, uint64_t key, struct lade_error *error)
{
  const int world = s->group.layout.mesh.world, rank = s->group.layout.rank;
  uint64_t *keys = NULL;
  s->leader = rank;
  s->n_followers = 0;
  if (!s->group.world)
    return 0;
  int status = lade_rank_group_collect(&s->group, &key, sizeof(key), s->params.faults, error, (void **)&keys);
  for (int i = world - 1; i >= 0 && !status; i--) {
    if (keys[i] != key)
      continue;
    s->leader = i;
    s->n_followers += i > rank;
  }
  free(keys);
  return status;
}

int session_agree_bounds(lade_session *s, struct lade_error *error)
{
  struct rank_bounds {
    struct lade_plan_bounds bounds;
    int64_t is_leader;
  } own, *all = NULL;
  s->n_plan_leaders = 1;
  if (!s->group.world)
    return 0;
  memset(&own, 0, sizeof(own)); /* zeroes padding too, because it is sent */
  own.bounds = s->bounds;
  own.is_leader = session_is_plan_leader(s);
  int status = lade_rank_group_collect(&s->group, &own, sizeof(own), s->params.faults, error, (void **)&all);
  if (!status) {
    s->bounds = all[s->leader].bounds;
    s->n_plan_leaders = 0;
    for (int rank = 0; rank < s->group.layout.mesh.world; rank++)
      s->n_plan_leaders += all[rank].is_leader != 0;
  }
  free(all);
  return status;
}

/* Broadcast the decision of @rank, @bytes at @own. Its followers keep the bytes in *ret_data. */
static int decision_broadcast(lade_session *s, int rank, void *own, uint64_t bytes, void **ret_data,
                              struct lade_error *error)
{
  const bool is_ours = rank == s->group.layout.rank;
  void *data = is_ours ? own : lade_fault_calloc(s->params.faults, 1, bytes);
  int status = data ? 0 : lade_error_set(error, -ENOMEM, "no memory for what rank %d decided", rank);
  status = lade_rank_group_vote(&s->group, status, error);
  if (!status)
    status = lade_rank_group_broadcast(&s->group, rank, data, bytes, error);
  if (is_ours)
    return status;
  if (!status && rank == s->leader)
    *ret_data = data;
  else
    free(data);
  return status;
}

int session_agree_decision(lade_session *s, void *own, uint64_t own_bytes, void **ret_data, uint64_t *ret_bytes,
                           struct lade_error *error)
{
  const int world = s->group.layout.mesh.world;
  uint64_t *all_bytes = NULL;
  if (!s->group.world)
    return 0;
  int status = lade_rank_group_collect(&s->group, &own_bytes, sizeof(own_bytes), s->params.faults, error,
                                  (void **)&all_bytes);
  for (int rank = 0; rank < world && !status; rank++) {
    if (all_bytes[rank])
      status = decision_broadcast(s, rank, own, all_bytes[rank], ret_data, error);
  }
  if (!status && !session_is_plan_leader(s))
    *ret_bytes = all_bytes[s->leader];
  free(all_bytes);
  return status;
}

/* A rank's node: the machine, and the index of its run of n_node_ranks ranks; 0 if the caller stated no number. */
struct rank_node {
  uint64_t host;
  int64_t place;
  uint64_t name; /* hash of the host name, which the next boot keeps */
};

static struct rank_node node_of(const lade_session *s, uint64_t host, int rank)
{
  return (struct rank_node){host, s->params.n_node_ranks > 0 ? rank / s->params.n_node_ranks : 0,
                            lade_links_host()};
}

static bool is_one_node(const struct rank_node *a, const struct rank_node *b)
{
  return a->host == b->host && a->place == b->place;
}

/*
 * True if every tensor parallel group is within one node, and some stage and the next one are on different nodes.
 * @nodes are those of all ranks, so all ranks return the same.
 */
static bool has_split_pipeline(const struct lade_mesh *mesh, const struct rank_node *nodes)
{
  const int tp = mesh->axes[LADE_AXIS_TP].size, next = mesh->axes[LADE_AXIS_PP].stride;
  bool has_boundary = false;
  for (int rank = 0; rank < mesh->world; rank++) {
    if (!is_one_node(&nodes[rank], &nodes[rank - rank % tp]))
      return false;
    has_boundary |= rank + next < mesh->world && !is_one_node(&nodes[rank], &nodes[rank + next]);
  }
  return has_boundary;
}

/* Find the nodes of all ranks. Without other processes, as for a plan, they follow from the ranks' numbers. */
static int nodes_collect(lade_session *s, struct lade_error *error, struct rank_node **ret_nodes)
{
  const int world = s->group.layout.mesh.world;
  const struct rank_node own = node_of(s, lade_host_id(), s->group.layout.rank);
  if (s->group.world)
    return lade_rank_group_collect(&s->group, &own, sizeof(own), s->params.faults, error, (void **)ret_nodes);
  struct rank_node *nodes = calloc((size_t)world, sizeof(*nodes));
  for (int rank = 0; nodes && rank < world; rank++)
    nodes[rank] = node_of(s, own.host, rank);
  *ret_nodes = nodes;
  return nodes ? 0 : lade_error_set(error, -ENOMEM, "no memory for the nodes of %d ranks", world);
}

/*
 * Make the key of the links between ranks. The links of nodes with different numbers of ranks, or whose ranks are not
 * neighbours, are not described: n_nodes 0.
 */
static struct lade_links_key links_key_make(const struct rank_node *nodes, int world)
{
  struct lade_links_key key = {0};
  int n_node = 1;
  while (n_node < world && is_one_node(&nodes[n_node], &nodes[0]))
    n_node++;
  for (int rank = 0; rank < world; rank++) {
    const bool begins = rank % n_node == 0;
    if (world % n_node || (rank && begins == is_one_node(&nodes[rank], &nodes[rank - 1])))
      return (struct lade_links_key){0};
    if (begins)
      lade_links_key_add_node(&key, nodes[0].name, nodes[rank].name);
  }
  key.n_node_ranks = n_node;
  return key;
}

int session_count_node_ranks(lade_session *s, struct lade_error *error)
{
  const uint64_t own = lade_host_id();
  struct rank_node *nodes = NULL;
  int n = 0, status = nodes_collect(s, error, &nodes);
  for (int rank = 0; nodes && s->group.world && rank < s->group.layout.mesh.world; rank++)
    n += nodes[rank].host == own;
  s->is_scattered = nodes && has_split_pipeline(&s->group.layout.mesh, nodes);
  if (nodes)
    s->links_key = links_key_make(nodes, s->group.layout.mesh.world);
  free(nodes);
  if (!s->group.world && !session_is_described(s)) /* a plan for the ranks that `lade launch` would start here */
    n = s->group.layout.mesh.world;
  if (session_is_described(s) && (s->params.host_budget_bytes || s->params.store_budget_bytes))
    n = LADE_MIN(s->group.layout.mesh.world, NODE_RANKS);
  if (!status && s->params.n_node_ranks < 1)
    s->params.n_node_ranks = LADE_MAX(n, 1);
  return status;
}

int session_share_drive(lade_session *s, struct lade_error *error)
{
  struct lade_machine_store *store = &s->cost.machine.store;
  int64_t n_sharing = 1;
  int status = lade_rank_group_max(&s->group, s->params.n_node_ranks, &n_sharing, error);
  if (status)
    return status;
  s->n_sharing_drive = (double)n_sharing;
  store->read_bytes_per_s /= (double)n_sharing;
  store->write_bytes_per_s /= (double)n_sharing;
  store->total_bytes_per_s /= (double)n_sharing;
  store->total_mostly_writes_bytes_per_s /= (double)n_sharing;
  store->total_mostly_reads_bytes_per_s /= (double)n_sharing;
  store->lasting_read_bytes_per_s /= (double)n_sharing;
  store->lasting_write_bytes_per_s /= (double)n_sharing;
  store->lasting_bytes_per_s /= (double)n_sharing;
  return 0;
}

/* Bytes that a rank will take of its drives; @drives identifies these (lade_store_room). */
struct drive_room {
  uint64_t drives, taken_bytes, free_bytes;
};

static int room_measure(const lade_session *s, struct drive_room *ret_room, struct lade_error *error)
{
  int status = lade_store_room(s->params.store, &ret_room->free_bytes, &ret_room->drives, error);
  if (status)
    return status;
  const uint64_t durable_bytes = session_durable_slot(s); /* already taken */
  ret_room->taken_bytes = s->plan->peak_bytes[LADE_STORE] - LADE_MIN(s->plan->peak_bytes[LADE_STORE], durable_bytes);
  return 0;
}

static int room_check(const lade_session *s, const struct drive_room *own, const struct drive_room *all,
                      struct lade_error *error)
{
  char need[LADE_SIZE_TEXT], have[LADE_SIZE_TEXT];
  struct drive_room sum = {.free_bytes = UINT64_MAX};
  int n_sharing = 0;
  for (int rank = 0; rank < s->group.layout.mesh.world; rank++) {
    if (all[rank].drives != own->drives)
      continue;
    n_sharing++;
    sum.taken_bytes += all[rank].taken_bytes;
    sum.free_bytes = LADE_MIN(sum.free_bytes, all[rank].free_bytes);
  }
  if (sum.taken_bytes <= sum.free_bytes)
    return 0;
  return lade_error_set(error, -ENOSPC, "%d ranks need %s in --store %s, and %s are free there; free more, name "
                        "another directory or lower --store-budget", n_sharing, lade_size_exact(sum.taken_bytes, need),
                        s->params.store, lade_size_exact(sum.free_bytes, have));
}

int session_agree_room(lade_session *s, struct lade_error *error)
{
  if (!s->group.world || !s->params.store)
    return 0;
  struct drive_room own = {0}, *all = NULL;
  int status = lade_rank_group_vote(&s->group, room_measure(s, &own, error), error);
  if (!status) /* all ranks measure free bytes before any takes some */
    status = lade_rank_group_collect(&s->group, &own, sizeof(own), s->params.faults, error, (void **)&all);
  if (!status)
    status = lade_rank_group_vote(&s->group, room_check(s, &own, all, error), error);
  free(all);
  return status;
}

int session_agree_programs(lade_session *s, struct lade_error *error)
{
  if (!s->group.world)
    return 0;
  int status = lade_rank_group_prove(&s->group, s->plan->train, s->plan->eval, s->params.faults, error);
  /* All members of an axis return its mismatch and come here. Other errors reach the other ranks by an abort. */
  return !status || status == -EINVAL || status == -ENOMEM ? lade_rank_group_vote(&s->group, status, error) : status;
}
