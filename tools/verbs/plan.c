/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `lade plan`: the needs and costs of a run, without running it. The ledger, the residency and the times are those of
 * the program that `lade train` would execute; nothing is estimated separately. With --device dry the executor runs
 * that program for one step on a simulated clock.
 */
#include <errno.h>
#include <jansson.h>
#include <string.h>

#include "base/base.h"
#include "program/export.h"
#include "tools/cli/options.h"
#include "tools/cli/verbs.h"
#include "tools/report/placement_report.h"
#include "tools/report/report.h"
#include "tools/report/timeline.h"
#include "tools/verbs/cluster/plan_cluster.h"
#include "tools/verbs/plan.h"
#include "tools/verbs/plan_advice.h"
#include "tools/verbs/plan_experts.h"
#include "tools/verbs/plan_graph.h"
#include "tools/verbs/plan_ranks.h"

#define COLUMNS_MAX 100 /* of a screen */

struct planning {
  struct options options;
  struct ranks_plan ranks; /* the rank of --rank; else one of every stage */
  struct lade_session_info info; /* of the first rank; budget and bounds are the job's */
  bool has_step; /* was executed dry */
  struct lade_step_report step;
  struct placement_report places;
  struct advice advice;
  struct lade_error error;
};

/* Return the program with the peak of @space: nearly always the training program. */
static const struct lade_program *peak_program(const struct lade_plan *plan, int space)
{
  return plan->eval->peak_bytes[space] > plan->train->peak_bytes[space] ? plan->eval : plan->train;
}

/* ---- text ---- */

/*
 * Return the bytes of @owner in @space at the peak. The context is outside the plan and the budget: bytes in use on a
 * GPU before the run, by kernels and by NCCL.
 */
static uint64_t owner_bytes(const struct lade_session_info *info, int space, int owner)
{
  uint64_t bytes = peak_program(info->plan, space)->owner_bytes[space][owner];
  for (int taker = 0; taker < LADE_CUDA_N_TAKERS && space == LADE_DEVICE && owner == LADE_OWNER_CONTEXT; taker++)
    bytes += info->taken_bytes[taker];
  return bytes;
}

static uint64_t owners_bytes(const struct lade_session_info *info, int space)
{
  return info->plan->peak_bytes[space] + owner_bytes(info, space, LADE_OWNER_CONTEXT);
}

static void ledger_print(const struct lade_session_info *info)
{
  char text[32];
  printf("\n%-24s", "memory at the peak");
  for (int space = 0; space < LADE_N_SPACES; space++)
    printf(" %12s", lade_space_name((enum lade_space)space));
  for (int owner = 0; owner < LADE_N_OWNERS; owner++) {
    uint64_t device = owner_bytes(info, LADE_DEVICE, owner);
    printf("\n  %-22s", lade_owner_name((enum lade_owner)owner));
    for (int space = 0; space < LADE_N_SPACES; space++) {
      uint64_t bytes = owner_bytes(info, space, owner);
      printf(" %12s", bytes ? lade_size_format(bytes, text, sizeof(text)) : "-");
    }
    if (device)
      printf("  %5.1f %% of the device", 100 * (double)device / (double)owners_bytes(info, LADE_DEVICE));
  }
  printf("\n  %-22s", "together");
  for (int space = 0; space < LADE_N_SPACES; space++)
    printf(" %12s", lade_size_format(owners_bytes(info, space), text, sizeof(text)));
  putchar('\n');
}

static void times_print(const struct planning *planning)
{
  const struct lade_plan *plan = planning->info.plan;
  char a[32];
  for (int queue = 0; queue < LADE_N_QUEUES; queue++) {
    int64_t predicted_ns = plan->train->predicted_busy_ns[queue], dry_ns = planning->step.busy_ns[queue];
    if (!predicted_ns && !dry_ns)
      continue;
    printf("  %-11s predicted %s", lade_queue_name((enum lade_queue_id)queue),
           seconds_format((double)predicted_ns / 1e9, a, sizeof(a)));
    printf(planning->has_step ? ", executed dry %s\n" : "\n", seconds_format((double)dry_ns / 1e9, a, sizeof(a)));
  }
}

/* Format bytes; "none" if @bytes is @none, the number that stands for no plan. */
static const char *bound_format(uint64_t bytes, uint64_t none, char *text, size_t text_bytes)
{
  return bytes == none ? "none" : lade_size_format(bytes, text, text_bytes);
}

/* True if the plan covers several ranks, and not that of --rank alone. */
static bool has_all_ranks(const struct planning *planning)
{
  return planning->info.layout.mesh.world > 1 && !option_is_set(&planning->options, "rank");
}

/* State how the ranks of a node share a host or store budget that the user stated. */
static void node_print(const struct planning *planning)
{
  const int n = planning->info.n_node_ranks;
  const bool is_stated = option_is_set(&planning->options, "host-budget") ||
                         option_is_set(&planning->options, "store-budget");
  if (is_stated && n > 1)
    printf("              of a rank: stated budgets are a node's, whose %d ranks share them%s\n", n,
           option_is_set(&planning->options, "node-ranks") ? "" : " (--node-ranks)");
}

/* Return the predicted time of a step: of all ranks together, or of the rank that is planned alone. */
static int64_t step_ns(const struct planning *planning)
{
  return planning->ranks.step_ns ? planning->ranks.step_ns : planning->info.plan->predicted_ns;
}

static double tokens_per_second(const struct planning *planning)
{
  const double tokens = (double)(planning->info.batch * planning->info.seq_len);
  return tokens / (double)LADE_MAX(step_ns(planning), 1) * 1e9;
}

/* Return the first rank's predicted step over its step with everything kept. */
static double slowdown(const struct planning *planning)
{
  return (double)planning->info.plan->predicted_ns / (double)LADE_MAX(planning->info.bounds.unconstrained_ns, 1);
}

/* Print the machine of the figures, and their source. */
static void machine_print(const struct planning *planning)
{
  const char *named = planning->options.session.machine;
  const bool is_preset = named && !strchr(named, '/') && !strchr(named, '.');
  printf("machine       %s: %s\n", planning->info.cost->machine.name,
         !named ? "measured" : is_preset ? "data sheet, not measured" : "described, not measured");
}

/* Print the busy time of each queue, from the longest on, as long as the line has room. */
static void queues_print(const struct planning *planning)
{
  int64_t busy_ns[LADE_N_QUEUES];
  char text[32], word[64];
  int column = printf("time          "), n = 0;
  memcpy(busy_ns, planning->info.plan->train->predicted_busy_ns, sizeof(busy_ns));
  for (;;) {
    int max = 0;
    for (int queue = 1; queue < LADE_N_QUEUES; queue++)
      max = busy_ns[queue] > busy_ns[max] ? queue : max;
    if (busy_ns[max] <= 0)
      break;
    snprintf(word, sizeof(word), "%s%s %s", n ? ", " : "", lade_queue_name((enum lade_queue_id)max),
             seconds_format((double)busy_ns[max] / 1e9, text, sizeof(text)));
    if (column + (int)(strlen(word) + strlen(", at once")) > COLUMNS_MAX)
      break;
    column += printf("%s", word);
    n++;
    busy_ns[max] = 0;
  }
  puts(n > 1 ? ", at once" : "");
}

static void speed_print(const struct planning *planning)
{
  char a[32], b[32];
  printf("step          predicted %s; unconstrained %s, slowdown %.2f\n",
         seconds_format((double)planning->info.plan->predicted_ns / 1e9, a, sizeof(a)),
         seconds_format((double)planning->info.bounds.unconstrained_ns / 1e9, b, sizeof(b)), slowdown(planning));
  if (planning->has_step)
    printf("              executed dry %s\n", seconds_format((double)planning->step.wall_ns / 1e9, a, sizeof(a)));
  printf("speed         %.0f tokens/s\n", tokens_per_second(planning));
}

static void bounds_print(const struct planning *planning)
{
  const struct lade_session_info *info = &planning->info;
  char a[32], b[32], c[32];
  printf("model         %s, %lld parameters; batch %lld of %lld tokens, in %d pass%s\n", info->model.name,
         (long long)info->n_params, (long long)info->batch, (long long)info->seq_len, info->n_microbatches,
         info->n_microbatches == 1 ? "" : "es");
  machine_print(planning);
  layout_print(info, stdout);
  printf("budgets       device %s, host %s, store %s\n", bound_format(info->budget_bytes, UINT64_MAX, a, sizeof(a)),
         lade_size_format(info->host_budget_bytes, b, sizeof(b)),
         lade_size_format(info->store_budget_bytes, c, sizeof(c)));
  node_print(planning);
  printf("bounds        unconstrained %s, smallest budget %s, lower bound %s\n",
         bound_format(info->bounds.unconstrained_bytes, 0, a, sizeof(a)),
         bound_format(info->bounds.min_bytes, UINT64_MAX, b, sizeof(b)),
         lade_size_format(info->bounds.lower_bound_bytes, c, sizeof(c)));
}

/* Print the facts that a first look leaves out: --detail. */
static void detail_print(const struct planning *planning)
{
  const struct lade_session_info *info = &planning->info;
  if (has_all_ranks(planning))
    ranks_plan_print(&planning->ranks, stdout);
  if (!info->plan)
    return;
  printf("\nqueues%s\n", has_all_ranks(planning) ? " of rank 0" : "");
  times_print(planning);
  ledger_print(info);
  printf("\nwhere values wait for the backward pass, and what it keeps busy in a step\n");
  placement_report_print(&planning->places, info->graph, stdout);
}

/* Print at most a screen, of 24 lines and 100 columns; then the details that are asked for. */
static void plan_print(const struct planning *planning)
{
  const struct lade_session_info *info = &planning->info;
  const bool has_many = has_all_ranks(planning);
  char peak[32];
  bounds_print(planning);
  if (info->plan) {
    printf("planned peak  %s, proved%s\n", lade_size_format(ranks_plan_peak(&planning->ranks), peak, sizeof(peak)),
           has_many ? planning->ranks.fits ? "; the most of any rank's" : "; other ranks do not fit" : "");
    outside_print(info, stdout);
    speed_print(planning);
    queues_print(planning);
    store_traffic_print(info, (double)info->plan->predicted_ns / 1e9, stdout);
  }
  if (has_many)
    ranks_step_print(&planning->ranks, stdout);
  advice_print(&planning->advice, stdout);
  if (planning->options.has_detail)
    detail_print(planning);
  else if (info->plan)
    puts("\n--detail: the ledger, the queues, and the place of each value");
}

/* ---- JSON ---- */

static json_t *ledger_json(const struct lade_session_info *info)
{
  json_t *spaces = json_object();
  for (int space = 0; space < LADE_N_SPACES; space++) {
    json_t *owners = json_object();
    for (int owner = 0; owner < LADE_N_OWNERS; owner++)
      json_object_set_new(owners, lade_owner_name((enum lade_owner)owner), json_bytes(owner_bytes(info, space, owner)));
    json_object_set_new(owners, "total", json_bytes(owners_bytes(info, space)));
    json_object_set_new(spaces, lade_space_name((enum lade_space)space), owners);
  }
  return spaces;
}

static json_t *queues_json(const struct planning *planning, const int64_t ns[LADE_N_QUEUES])
{
  double seconds[LADE_N_QUEUES];
  for (int queue = 0; queue < LADE_N_QUEUES; queue++)
    seconds[queue] = (double)ns[queue] / 1e9;
  return json_queue_seconds(seconds, &planning->info.layout);
}

static void plan_set(json_t *object, const struct planning *planning)
{
  const struct lade_plan *plan = planning->info.plan;
  json_object_set_new(object, "planned_peak_bytes", json_bytes(ranks_plan_peak(&planning->ranks)));
  outside_set(object, &planning->info);
  json_object_set_new(object, "host_bytes", json_bytes(plan->peak_bytes[LADE_HOST]));
  json_object_set_new(object, "store_bytes", json_bytes(planning->info.store_bytes));
  json_object_set_new(object, "store_read_bytes_per_step", json_bytes(planning->info.store_read_bytes));
  json_object_set_new(object, "store_written_bytes_per_step", json_bytes(planning->info.store_written_bytes));
  json_object_set_new(object, "predicted_step_seconds", json_number((double)plan->predicted_ns / 1e9));
  json_object_set_new(object, "tokens_per_second", json_number(tokens_per_second(planning)));
  json_object_set_new(object, "slowdown", json_number(slowdown(planning)));
  json_object_set_new(object, "predicted_queue_seconds", queues_json(planning, plan->train->predicted_busy_ns));
  json_object_set_new(object, "ledger", ledger_json(&planning->info));
  json_object_set_new(object, "residency", placement_report_json(&planning->places, planning->info.graph));
  if (planning->has_step) {
    json_object_set_new(object, "dry_step_seconds", json_number((double)planning->step.wall_ns / 1e9));
    json_object_set_new(object, "dry_queue_seconds", queues_json(planning, planning->step.busy_ns));
    json_object_set_new(object, "dry_stall_seconds", queues_json(planning, planning->step.stall_ns));
  }
}

static int plan_dump(const struct planning *planning)
{
  const struct lade_session_info *info = &planning->info;
  const struct lade_plan_bounds *bounds = &info->bounds;
  json_t *min = bounds->min_bytes == UINT64_MAX ? json_null() : json_bytes(bounds->min_bytes);
  json_t *budget = info->budget_bytes == UINT64_MAX ? json_null() : json_bytes(info->budget_bytes);
  json_t *object = json_pack("{s:i, s:s, s:I, s:I, s:b, s:I, s:I, s:I, s:b}", "schema_version", REPORT_SCHEMA_VERSION,
                             "model", info->model.name, "parameters", (json_int_t)info->n_params, "active_parameters",
                             (json_int_t)info->n_params, "trainable", 1, "batch", (json_int_t)info->batch,
                             "micro_batch", (json_int_t)info->micro_batch, "seq", (json_int_t)info->seq_len, "fits",
                             info->plan != NULL);
  if (!object)
    return -ENOMEM;
  layout_set(object, info);
  json_object_set_new(object, "budget_bytes", budget);
  json_object_set_new(object, "host_budget_bytes", json_bytes(info->host_budget_bytes));
  json_object_set_new(object, "store_budget_bytes", json_bytes(info->store_budget_bytes));
  json_object_set_new(object, "min_budget_bytes", min);
  json_object_set_new(object, "lower_bound_bytes", json_bytes(bounds->lower_bound_bytes));
  json_object_set_new(object, "unconstrained_bytes", json_bytes(bounds->unconstrained_bytes));
  json_object_set_new(object, "unconstrained_step_seconds", json_number((double)bounds->unconstrained_ns / 1e9));
  json_object_set_new(object, "advice", advice_json(&planning->advice));
  json_object_set_new(object, "is_measured", json_boolean(!planning->options.session.machine));
  if (has_all_ranks(planning))
    ranks_plan_set(object, &planning->ranks);
  if (info->plan)
    plan_set(object, planning);
  return json_print(object);
}

/* ---- the verb ---- */

/* Return the first stage that does not fit; NULL: all fit. */
static const struct stage_plan *refused_find(const struct ranks_plan *ranks)
{
  for (int i = 0; i < ranks->n_stages; i++) {
    if (!ranks->stages[i].info.plan)
      return &ranks->stages[i];
  }
  return NULL;
}

/* Write the planned step as a graph. */
static int graph_out_write(struct planning *planning)
{
  lade_graph *graph = NULL;
  int status = lade_program_export(planning->info.plan->train, &planning->error, &graph);
  if (!status)
    status = lade_graph_save(graph, planning->options.graph_out, &planning->error);
  lade_graph_destroy(graph);
  return status;
}

static int plan_run(struct planning *planning)
{
  struct options *options = &planning->options;
  const int64_t begin_ns = advice_clock();
  int status = outputs_check(options, &planning->error);
  if (!status)
    status = option_is_set(options, "rank") ? rank_plan_make(options, &planning->ranks, &planning->error)
                                            : ranks_plan_make(options, &planning->ranks, &planning->error);
  if (status)
    return status;
  planning->info = planning->ranks.stages[0].info;
  ranks_plan_max(&planning->ranks, &planning->info);
  planning->step = planning->ranks.stages[0].step;
  planning->has_step = planning->info.plan && options->device == DEVICE_DRY;
  if (!option_is_set(options, "rank"))
    advice_make(options, &planning->ranks, advice_clock() - begin_ns, &planning->advice);
  if (!planning->info.plan)
    return 0;
  status = placement_report_make(&planning->info, options->session.recipe, options->session.residency_file,
                                 &planning->error,
                       &planning->places);
  if (!status && options->timeline)
    status = timeline_write(options->timeline, &planning->info, &planning->error);
  if (!status && options->graph_out)
    status = graph_out_write(planning);
  return status;
}

/*
 * Note a plan that needs more than the described device has. Such a plan is made to learn the need, but cannot run
 * there.
 */
static void capacity_note(const struct planning *planning)
{
  const struct lade_session_info *info = &planning->info;
  const uint64_t has_bytes = info->cost->machine.device_bytes;
  char line[256], asked[32], has[32];
  if (!option_is_set(&planning->options, "machine") || info->budget_bytes == UINT64_MAX ||
      info->budget_bytes <= has_bytes)
    return;
  snprintf(line, sizeof(line), "the budget of %s is more than the %s of the device of --machine %.64s",
           lade_size_format(info->budget_bytes, asked, sizeof(asked)), lade_size_format(has_bytes, has, sizeof(has)),
           planning->options.session.machine);
  message_print("plan: note", line);
}

/* Note a drive that is too full for the plan to keep anything there. */
static void full_store_note(const struct planning *planning)
{
  const struct lade_session_info *info = &planning->info;
  char line[320], left[32];
  if (!planning->options.session.store || !info->plan || info->plan->peak_bytes[LADE_STORE] ||
      info->store_budget_bytes >= info->bounds.unconstrained_bytes)
    return;
  snprintf(line, sizeof(line), "the plan keeps no values in --store %.128s, which has %s of room",
           planning->options.session.store, lade_size_format(info->store_budget_bytes, left, sizeof(left)));
  message_print("plan: note", line);
}

/* Report a plan that was made or refused. Return the exit code. */
static int plan_tell(struct planning *planning)
{
  if (!planning->options.is_json)
    plan_print(planning);
  else if (plan_dump(planning))
    return exit_fail("plan", -ENOMEM, NULL);
  capacity_note(planning);
  full_store_note(planning);
  const struct stage_plan *refused = refused_find(&planning->ranks);
  if (!refused)
    return LADE_EXIT_DONE;
  fflush(stdout);
  if (planning->info.layout.mesh.world > 1)
    lade_error_set(&planning->error, -EOVERFLOW, "rank %d %s", refused->info.layout.rank, refused->refusal.text);
  else
    planning->error = refused->refusal;
  return exit_fail("plan", -EOVERFLOW, &planning->error);
}

int plan_main(int argc, char **argv)
{
  struct planning planning = {.has_step = false};
  int experts_code = 0;
  int code = options_read(VERB_PLAN, argc, argv, &planning.options);
  if (code == OPTIONS_GO && planning.options.graph)
    code = plan_graph(&planning.options);
  else if (code == OPTIONS_GO && option_is_set(&planning.options, "ep")) /* needs --cluster */
    code = plan_cluster(&planning.options);
  else if (code == OPTIONS_GO && plan_experts(&planning.options, &experts_code))
    code = experts_code;
  else if (code == OPTIONS_GO && option_is_set(&planning.options, "expert-capacity"))
    code = exit_fail("plan", lade_error_set(&planning.error, -EINVAL, "--expert-capacity needs a mixture of experts, "
                                            "such as --model mixtral-8x7b"), &planning.error);
  else if (code == OPTIONS_GO && planning.options.cluster)
    code = plan_cluster(&planning.options);
  else if (code == OPTIONS_GO && planning.options.max)
    code = plan_max(&planning.options);
  else if (code == OPTIONS_GO && planning.options.has_frontier)
    code = plan_frontier(&planning.options);
  else if (code == OPTIONS_GO) {
    int status = plan_run(&planning);
    code = status ? exit_fail("plan", status, &planning.error) : plan_tell(&planning);
    placement_report_finish(&planning.places);
    ranks_plan_finish(&planning.ranks);
  }
  options_finish(&planning.options);
  return code;
}
