/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All ranks of a layout in one process, one plan after another.
 *
 * Ranks of a stage have one plan: tensor parallel ranks hold slices of equal size (padded if they do not divide), data
 * parallel ones blocks of equal size. A plan is therefore made per stage, and counts for each of its ranks. Stages
 * differ in their layers, in the tensors at their ends, and in the number of microbatches in flight.
 *
 * With --every-rank this is checked: each other rank of a stage takes the decision for the stage's first rank. Its
 * program is built, proved and, on a dry device, executed from a graph of its own. Its calls and peak must equal the
 * first rank's.
 *
 * The plans are proved to be one job's. The sends of each stage are compared with the receives of the others
 * (program/comm_sequence.h). All stages are simulated together, which completes only if no stages wait in a circle.
 * That simulation gives the step's time and bubble.
 */
#include "tools/verbs/plan_ranks.h"

#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "program/comm_sequence.h"
#include "tools/report/progress.h"
#include "tools/report/report.h"

#define GROUPS_SHOWN 4     /* of an axis, in text */
#define MEMBERS_SHOWN 16   /* of a group */
#define LISTED_MAX 4096    /* ranks, in JSON; above it sizes and strides describe the groups */

static int ranks_per_stage(const struct ranks_plan *ranks)
{
  return ranks->stages[0].info.layout.mesh.world / ranks->n_stages;
}

static const struct lade_program *stage_program(const struct ranks_plan *ranks, int stage)
{
  return ranks->stages[stage].info.plan->train;
}

/* ---- plans ---- */

/* Measure how long computing waits for exchanges among tensor and data parallel ranks. */
static int exposed_count(struct stage_plan *stage, struct lade_error *error)
{
  int64_t stalls_ns[LADE_N_QUEUES];
  int status = lade_program_stalls(stage->info.plan->train, stage->info.prices, stalls_ns);
  if (status)
    return lade_error_set(error, status, "no memory to simulate a step");
  stage->exposed_ns = stalls_ns[LADE_Q_COMM_TP] + stalls_ns[LADE_Q_COMM_DP];
  return 0;
}

static int stage_make(struct options *options, int rank, struct stage_plan *stage, struct lade_error *error)
{
  struct lade_session_params params = options->session;
  params.layout.rank = rank;
  params.is_plan_only = options->device != DEVICE_DRY;
  int status = lade_session_open(&params, error, &stage->session);
  if (status == -EOVERFLOW && !params.is_plan_only) { /* a dry device is opened only for a plan that fits */
    params.is_plan_only = true;
    status = lade_session_open(&params, error, &stage->session);
  }
  if (status)
    return status;
  stage->n_made = 1;
  lade_session_get_info(stage->session, &stage->info);
  if (!stage->info.plan) {
    stage->refusal = *error;
    return 0;
  }
  if (options->device == DEVICE_DRY)
    status = lade_session_step(stage->session, &stage->step, error);
  return status ? status : exposed_count(stage, error);
}

/* ---- ranks of a stage ---- */

/* For @rank build, prove and, on a dry device, execute the decision of @first, the first rank of its stage. */
static int rank_follow(const struct options *options, const struct stage_plan *first, int rank,
                       struct lade_error *error)
{
  struct lade_session_params params = options->session;
  struct lade_session_info info;
  struct lade_step_report step;
  struct lade_error why;
  lade_session *session;
  params.layout.rank = rank;
  params.is_plan_only = options->device != DEVICE_DRY;
  params.template_session = first->session;
  int status = lade_session_open(&params, error, &session);
  if (status)
    return status;
  lade_session_get_info(session, &info);
  status = lade_plan_compare(first->info.plan, info.plan, &why);
  if (status)
    lade_error_set(error, status, "ranks %d and %d of one stage have different programs: %s",
                   first->info.layout.rank, rank, why.text);
  if (!status && options->device == DEVICE_DRY)
    status = lade_session_step(session, &step, error);
  lade_session_close(session);
  return status;
}

static int ranks_follow(const struct options *options, struct stage_plan *first, struct progress *progress,
                        struct lade_error *error)
{
  const struct lade_mesh *mesh = &first->info.layout.mesh;
  const int stage = lade_mesh_position(mesh, LADE_AXIS_PP, first->info.layout.rank);
  int status = 0;
  for (int rank = 0; rank < mesh->world && first->info.plan && !status; rank++) {
    if (rank == first->info.layout.rank || lade_mesh_position(mesh, LADE_AXIS_PP, rank) != stage)
      continue;
    progress_note(progress, "building rank %d of %d", rank, mesh->world);
    status = rank_follow(options, first, rank, error);
    first->n_made += !status;
  }
  return status;
}

/* ---- stage boundaries ---- */

/* Check that all sends of @from to @to match the receives there, on the pipeline's axis. */
static int boundary_check(const struct lade_calls *calls, int from, int to, const struct ranks_plan *ranks,
                          struct lade_error *error)
{
  char text[LADE_CALL_TEXT_BYTES], other_text[LADE_CALL_TEXT_BYTES];
  const struct lade_plan *plan = ranks->stages[from].info.plan, *other_plan = ranks->stages[to].info.plan;
  const struct lade_call *call, *other;
  if (!lade_calls_differ(&calls[from], (struct lade_call_lane){LADE_SEND, to}, &calls[to],
                         (struct lade_call_lane){LADE_RECV, from}, &call, &other))
    return 0;
  return lade_error_set(error, -EINVAL, "the programs of stages %d and %d do not match: %s in the first, %s in the "
                        "second", from, to, lade_call_describe(plan->train, plan->eval, call, text),
                        lade_call_describe(other_plan->train, other_plan->eval, other, other_text));
}

/*
 * Check that the sends and receives of every pair of stages match, and that collectives along the pipeline are equal at
 * all stages.
 */
static int boundaries_check(const struct ranks_plan *ranks, const struct lade_calls *calls, struct lade_error *error)
{
  const struct lade_call_lane all = {LADE_BARRIER, -1};
  const uint64_t first = lade_calls_digest(&calls[0], all);
  int status = 0;
  for (int from = 0; from < ranks->n_stages && !status; from++) {
    for (int to = 0; to < ranks->n_stages && !status; to++)
      status = boundary_check(calls, from, to, ranks, error);
    if (!status && lade_calls_digest(&calls[from], all) != first)
      status = lade_error_set(error, -EINVAL, "stages 0 and %d issue different collectives along the pipeline", from);
  }
  return status;
}

static int stages_meet(const struct ranks_plan *ranks, struct lade_error *error)
{
  struct lade_calls *calls = calloc((size_t)ranks->n_stages, sizeof(*calls));
  int status = calls ? 0 : -ENOMEM;
  for (int i = 0; i < ranks->n_stages && !status; i++)
    status = lade_calls_list(stage_program(ranks, i), ranks->stages[i].info.plan->eval, LADE_AXIS_PP, &calls[i]);
  status = status ? lade_error_set(error, status, "no memory for the calls of %d stages", ranks->n_stages)
                  : boundaries_check(ranks, calls, error);
  for (int i = 0; i < ranks->n_stages && calls; i++)
    free(calls[i].items);
  free(calls);
  return status;
}

static int stages_simulate(struct ranks_plan *ranks, struct lade_error *error)
{
  const size_t n = (size_t)ranks->n_stages;
  const struct lade_program **programs = calloc(n, sizeof(*programs));
  const struct lade_prices **prices = calloc(n, sizeof(*prices));
  struct lade_stages_time time = {0};
  int status = programs && prices ? 0 : lade_error_set(error, -ENOMEM, "no memory for %zu stages", n);
  for (int i = 0; i < ranks->n_stages && !status; i++) {
    programs[i] = stage_program(ranks, i);
    prices[i] = ranks->stages[i].info.prices;
  }
  if (!status)
    status = lade_stages_simulate(programs, prices, ranks->n_stages, error, &time);
  free(programs);
  free(prices);
  ranks->step_ns = time.span_ns;
  return status;
}

/* Compute the facts that need all stages: matching calls, the step's time, the bubble. */
static int together_find(struct ranks_plan *ranks, struct lade_error *error)
{
  int status = stages_meet(ranks, error);
  if (!status)
    status = stages_simulate(ranks, error);
  for (int i = 0; i < ranks->n_stages && !status; i++) {
    const double alone_ns = (double)LADE_MAX(stage_program(ranks, i)->predicted_ns, 1);
    ranks->bubble = LADE_MAX(ranks->bubble, (double)ranks->step_ns / alone_ns - 1);
    const double exposed = (double)ranks->stages[i].exposed_ns / (double)LADE_MAX(ranks->step_ns, 1);
    ranks->exposed = LADE_MAX(ranks->exposed, exposed);
  }
  return status;
}

static int stages_alloc(int n, struct ranks_plan *ret_ranks, struct lade_error *error)
{
  *ret_ranks = (struct ranks_plan){.stages = calloc((size_t)n, sizeof(*ret_ranks->stages)), .fits = true};
  if (!ret_ranks->stages)
    return lade_error_set(error, -ENOMEM, "no memory for the plans of %d stages", n);
  ret_ranks->n_stages = n;
  return 0;
}

/* Plan one stage after another, which may take a minute, and then simulate all of them together. */
static int stages_make(struct options *options, const struct lade_mesh *mesh, struct ranks_plan *ranks,
                       struct lade_error *error)
{
  struct progress progress;
  const int n = ranks->n_stages;
  int status = 0;
  progress_init(&progress, options->is_quiet, 0, n);
  for (int i = 0; i < n && !status; i++) {
    if (n > 1)
      progress_note(&progress, "planning the ranks of stage %d of %d", i + 1, n);
    status = stage_make(options, lade_mesh_member(mesh, LADE_AXIS_PP, 0, i), &ranks->stages[i], error);
    if (!status && options->has_every_rank)
      status = ranks_follow(options, &ranks->stages[i], &progress, error);
    ranks->fits &= ranks->stages[i].info.plan != NULL;
  }
  if (!status && ranks->fits) {
    if (n > 1)
      progress_note(&progress, "simulating %d stages together", n);
    status = together_find(ranks, error);
  }
  progress_clear(&progress);
  return status;
}

int ranks_plan_make(struct options *options, struct ranks_plan *ret_ranks, struct lade_error *error)
{
  struct lade_layout layout;
  struct lade_layout_params params = options->session.layout;
  params.struct_size = sizeof(params);
  *ret_ranks = (struct ranks_plan){0};
  int status = lade_layout_init(&params, error, &layout);
  const int n = status ? 0 : lade_layout_size(&layout, LADE_AXIS_PP);
  if (!status)
    status = stages_alloc(n, ret_ranks, error);
  return status ? status : stages_make(options, &layout.mesh, ret_ranks, error);
}

int rank_plan_make(struct options *options, struct ranks_plan *ret_ranks, struct lade_error *error)
{
  int status = stages_alloc(1, ret_ranks, error);
  if (!status)
    status = stage_make(options, options->session.layout.rank, &ret_ranks->stages[0], error);
  ret_ranks->fits = !status && ret_ranks->stages[0].info.plan;
  return status;
}

void ranks_plan_finish(struct ranks_plan *ranks)
{
  for (int i = 0; i < ranks->n_stages; i++)
    lade_session_close(ranks->stages[i].session);
  free(ranks->stages);
}

void ranks_plan_max(const struct ranks_plan *ranks, struct lade_session_info *info)
{
  for (int i = 0; i < ranks->n_stages; i++) {
    const struct lade_session_info *own = &ranks->stages[i].info;
    info->budget_bytes = LADE_MAX(info->budget_bytes, own->budget_bytes);
    info->bounds.min_bytes = LADE_MAX(info->bounds.min_bytes, own->bounds.min_bytes);
    info->bounds.lower_bound_bytes = LADE_MAX(info->bounds.lower_bound_bytes, own->bounds.lower_bound_bytes);
    info->bounds.unconstrained_bytes = LADE_MAX(info->bounds.unconstrained_bytes, own->bounds.unconstrained_bytes);
  }
}

uint64_t ranks_plan_peak(const struct ranks_plan *ranks)
{
  uint64_t max = 0;
  for (int i = 0; i < ranks->n_stages; i++) {
    if (ranks->stages[i].info.plan)
      max = LADE_MAX(max, ranks->stages[i].info.plan->peak_bytes[LADE_DEVICE]);
  }
  return max;
}

/* ---- the spread over ranks ---- */

struct spread {
  uint64_t min, median, max;
};

static int u64_compare(const void *a, const void *b)
{
  const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
  return (x > y) - (x < y);
}

/* Return the device bytes of @owner at the peak of a stage; LADE_N_OWNERS: of all owners. */
static uint64_t stage_owner_bytes(const struct stage_plan *stage, int owner)
{
  const struct lade_plan *plan = stage->info.plan;
  const bool is_eval = plan->eval->peak_bytes[LADE_DEVICE] > plan->train->peak_bytes[LADE_DEVICE];
  const struct lade_program *program = is_eval ? plan->eval : plan->train;
  return owner == LADE_N_OWNERS ? plan->peak_bytes[LADE_DEVICE] : program->owner_bytes[LADE_DEVICE][owner];
}

/* Compute the spread over ranks. All stages have equally many ranks, so the median over stages is that over ranks. */
static struct spread spread_find(const struct ranks_plan *ranks, int owner, uint64_t *scratch)
{
  const int n = ranks->n_stages;
  for (int i = 0; i < n; i++)
    scratch[i] = stage_owner_bytes(&ranks->stages[i], owner);
  qsort(scratch, (size_t)n, sizeof(*scratch), u64_compare);
  return (struct spread){scratch[0], (scratch[(n - 1) / 2] + scratch[n / 2]) / 2, scratch[n - 1]};
}

static const char *row_name(int owner)
{
  return owner == LADE_N_OWNERS ? "together" : lade_owner_name((enum lade_owner)owner);
}

/* ---- text ---- */

static void group_print(const struct lade_mesh *mesh, enum lade_axis axis, int first, FILE *file)
{
  const int size = mesh->axes[axis].size;
  fputs(" {", file);
  for (int i = 0; i < LADE_MIN(size, MEMBERS_SHOWN); i++)
    fprintf(file, "%s%d", i ? " " : "", lade_mesh_member(mesh, axis, first, i));
  if (size > MEMBERS_SHOWN)
    fprintf(file, " ... %d", lade_mesh_member(mesh, axis, first, size - 1));
  fputc('}', file);
}

/* True if @rank is the first of a group of several. On the embedding's axis, stages between the ends are alone. */
static bool is_group_first(const struct lade_mesh *mesh, enum lade_axis axis, int rank)
{
  return lade_mesh_group(mesh, axis, rank) == rank && rank + mesh->axes[axis].stride < mesh->world;
}

/* True if an axis before @axis has the same groups. */
static bool is_repeated(const struct lade_mesh *mesh, int axis)
{
  bool is_found = false;
  for (int other = 0; other < axis; other++)
    is_found |= mesh->axes[other].size == mesh->axes[axis].size && mesh->axes[other].stride == mesh->axes[axis].stride;
  return is_found;
}

static void groups_print(const struct lade_mesh *mesh, FILE *file)
{
  for (int axis = 0; axis < LADE_N_AXES; axis++) {
    int n = 0;
    if (mesh->axes[axis].size == 1 || is_repeated(mesh, axis))
      continue;
    fprintf(file, "%-13s", lade_axis_name((enum lade_axis)axis));
    for (int rank = 0; rank < mesh->world; rank++) {
      if (!is_group_first(mesh, (enum lade_axis)axis, rank))
        continue;
      if (n++ < GROUPS_SHOWN)
        group_print(mesh, (enum lade_axis)axis, rank, file);
    }
    if (n > GROUPS_SHOWN)
      fprintf(file, " and %d more", n - GROUPS_SHOWN);
    fputc('\n', file);
  }
}

static void spreads_print(const struct ranks_plan *ranks, uint64_t *scratch, FILE *file)
{
  char min[32], median[32], max[32];
  fprintf(file, "\n%-24s %12s %12s %12s\n", "device, over all ranks", "min", "median", "max");
  for (int owner = 0; owner <= LADE_N_OWNERS; owner++) {
    const struct spread spread = spread_find(ranks, owner, scratch);
    if (!spread.max)
      continue;
    fprintf(file, "  %-22s %12s %12s %12s\n", row_name(owner), lade_size_format(spread.min, min, sizeof(min)),
            lade_size_format(spread.median, median, sizeof(median)),
            lade_size_format(spread.max, max, sizeof(max)));
  }
}

static void stage_print(const struct stage_plan *stage, int n_ranks, FILE *file)
{
  char peak[32], step[32], sent[32];
  const struct lade_session_info *info = &stage->info;
  fprintf(file, "  %-7d %6d ", info->layout.rank, n_ranks);
  if (!info->plan) {
    fprintf(file, " %s\n", stage->refusal.text);
    return;
  }
  fprintf(file, "%12s %12s ", lade_size_format(info->plan->peak_bytes[LADE_DEVICE], peak, sizeof(peak)),
          seconds_format((double)info->plan->predicted_ns / 1e9, step, sizeof(step)));
  for (int axis = 0; axis < LADE_N_AXES; axis++) {
    if (info->comm_bytes[axis])
      fprintf(file, " %s %s", lade_axis_name((enum lade_axis)axis),
              lade_size_format(info->comm_bytes[axis], sent, sizeof(sent)));
  }
  fputc('\n', file);
}

void ranks_plan_print(const struct ranks_plan *ranks, FILE *file)
{
  uint64_t *scratch = calloc((size_t)ranks->n_stages, sizeof(*scratch));
  fputc('\n', file);
  groups_print(&ranks->stages[0].info.layout.mesh, file);
  if (ranks->fits && scratch)
    spreads_print(ranks, scratch, file);
  free(scratch);
  fprintf(file, "\n  %-7s %6s %12s %12s  sent by a rank in a step\n", "rank", "alike", "peak", "step alone");
  for (int i = 0; i < ranks->n_stages; i++)
    stage_print(&ranks->stages[i], ranks_per_stage(ranks), file);
  fputc('\n', file);
}

void ranks_step_print(const struct ranks_plan *ranks, FILE *file)
{
  char text[32];
  if (!ranks->fits)
    return;
  fprintf(file, "all ranks     a step of %s; bubble %.1f %%, exposed communication %.1f %%%s\n",
          seconds_format((double)ranks->step_ns / 1e9, text, sizeof(text)), 100 * ranks->bubble / (1 + ranks->bubble),
          100 * ranks->exposed, ranks->stages[0].n_made > 1
                                    ? ";\n              each rank's own program is built and alike" : "");
}

/* ---- JSON ---- */

static json_t *groups_json(const struct lade_mesh *mesh, enum lade_axis axis)
{
  json_t *groups = json_array();
  for (int rank = 0; rank < mesh->world; rank++) {
    if (!is_group_first(mesh, axis, rank))
      continue;
    json_t *members = json_array();
    for (int i = 0; i < mesh->axes[axis].size; i++)
      json_array_append_new(members, json_integer(lade_mesh_member(mesh, axis, rank, i)));
    json_array_append_new(groups, members);
  }
  return groups;
}

static json_t *axes_json(const struct lade_mesh *mesh)
{
  json_t *axes = json_object();
  for (int axis = 0; axis < LADE_N_AXES; axis++) {
    if (mesh->axes[axis].size == 1)
      continue;
    json_t *object = json_pack("{s:i, s:i}", "size", mesh->axes[axis].size, "stride", mesh->axes[axis].stride);
    if (mesh->world <= LISTED_MAX)
      json_object_set_new(object, "members", groups_json(mesh, (enum lade_axis)axis));
    json_object_set_new(axes, lade_axis_name((enum lade_axis)axis), object);
  }
  return axes;
}

static json_t *spreads_json(const struct ranks_plan *ranks)
{
  uint64_t *scratch = calloc((size_t)ranks->n_stages, sizeof(*scratch));
  json_t *rows = json_object();
  for (int owner = 0; owner <= LADE_N_OWNERS && scratch; owner++) {
    const struct spread spread = spread_find(ranks, owner, scratch);
    json_object_set_new(rows, owner == LADE_N_OWNERS ? "total" : row_name(owner),
                        json_pack("{s:o, s:o, s:o}", "min", json_bytes(spread.min), "median",
                                  json_bytes(spread.median), "max", json_bytes(spread.max)));
  }
  free(scratch);
  return rows;
}

static json_t *peaks_json(const struct ranks_plan *ranks)
{
  const struct lade_mesh *mesh = &ranks->stages[0].info.layout.mesh;
  json_t *peaks = json_array();
  for (int rank = 0; rank < mesh->world; rank++) {
    const struct stage_plan *stage = &ranks->stages[lade_mesh_position(mesh, LADE_AXIS_PP, rank)];
    json_array_append_new(peaks, json_bytes(stage_owner_bytes(stage, LADE_N_OWNERS)));
  }
  return peaks;
}

static json_t *stage_json(const struct stage_plan *stage, int n_ranks)
{
  const struct lade_session_info *info = &stage->info;
  json_t *object = json_pack("{s:i, s:i, s:b}", "rank", info->layout.rank, "ranks_alike", n_ranks, "fits",
                             info->plan != NULL);
  json_object_set_new(object, "ranks_built", json_integer(stage->n_made));
  if (!info->plan) {
    json_object_set_new(object, "refusal", json_text(stage->refusal.text));
    return object;
  }
  json_t *ledger = json_object();
  for (int owner = 0; owner <= LADE_N_OWNERS; owner++)
    json_object_set_new(ledger, owner == LADE_N_OWNERS ? "total" : row_name(owner),
                        json_bytes(stage_owner_bytes(stage, owner)));
  json_object_set_new(object, "ledger", ledger);
  json_object_set_new(object, "host_bytes", json_bytes(info->plan->peak_bytes[LADE_HOST]));
  comm_set(object, info);
  json_object_set_new(object, "predicted_step_seconds", json_number((double)info->plan->predicted_ns / 1e9));
  if (stage->step.wall_ns) {
    json_object_set_new(object, "dry_step_seconds", json_number((double)stage->step.wall_ns / 1e9));
    json_object_set_new(object, "measured_peak_bytes", json_bytes(info->measured_peak_bytes));
  }
  return object;
}

void ranks_plan_set(json_t *object, const struct ranks_plan *ranks)
{
  json_t *stages = json_array();
  for (int i = 0; i < ranks->n_stages; i++)
    json_array_append_new(stages, stage_json(&ranks->stages[i], ranks_per_stage(ranks)));
  json_object_set_new(object, "fits", json_boolean(ranks->fits));
  json_object_set_new(object, "groups", axes_json(&ranks->stages[0].info.layout.mesh));
  json_object_set_new(object, "by_stage", stages);
  if (!ranks->fits)
    return;
  if (ranks->stages[0].info.layout.mesh.world <= LISTED_MAX)
    json_object_set_new(object, "planned_peak_bytes_by_rank", peaks_json(ranks));
  json_object_set_new(object, "ledger_over_ranks", spreads_json(ranks));
  json_object_set_new(object, "all_ranks_step_seconds", json_number((double)ranks->step_ns / 1e9));
  json_object_set_new(object, "bubble", json_number(ranks->bubble));
  json_object_set_new(object, "exposed_communication", json_number(ranks->exposed));
}
