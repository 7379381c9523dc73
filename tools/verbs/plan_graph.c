/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `lade plan --graph`: a graph from a file, one plan inside a budget, its figures and its list of instructions.
 *
 * The list is written as it is walked, an instruction a line. So a list of a million instructions takes no memory
 * beside the plan's own. Two plans can then be compared line by line.
 *
 * Without a machine there are no links, so values wait on the device alone: --host-budget and --store-budget need
 * --machine, because rates are never guessed.
 */
#include "tools/verbs/plan_graph.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "base/base.h"
#include "machine/machine.h"
#include "tools/cli/verbs.h"
#include "tools/report/report.h"

#define BUDGET_MAX ((uint64_t)1 << 62) /* above every sum of a graph's bytes */

struct graph_answer {
  struct lade_graph_plan_info info;
  lade_graph_plan *plan; /* NULL: does not fit */
};

/* ---- the request ---- */

static struct lade_graph_path link_path(const struct lade_link *link)
{
  return (struct lade_graph_path){(double)link->bytes_per_s, (int64_t)link->latency_ns};
}

/* Take the links of @machine for the tiers that have a budget. */
static int links_fill(struct graph_request *request, const struct lade_machine *machine, struct lade_error *error)
{
  struct lade_graph_plan_params *params = &request->params;
  const int64_t latency_ns = (int64_t)machine->store.latency_ns;
  params->to_host = link_path(&machine->to_host);
  params->from_host = link_path(&machine->to_device);
  if (params->store_budget_bytes && !machine->store.bytes)
    return lade_error_set(error, -EINVAL, "--store-budget: --machine %.64s has no drive",
                          request->options->session.machine);
  if (machine->store.bytes) {
    params->to_store = (struct lade_graph_path){machine->store.write_bytes_per_s, latency_ns};
    params->from_store = (struct lade_graph_path){machine->store.read_bytes_per_s, latency_ns};
  }
  return 0;
}

/* Read --machine, if it is given, and refuse options that need it if it is not. */
static int machine_read(struct graph_request *request, struct lade_error *error, struct lade_machine *ret_machine)
{
  const struct options *options = request->options;
  const char *asks = request->params.host_budget_bytes    ? "--host-budget"
                     : request->params.store_budget_bytes ? "--store-budget"
                                                          : NULL;
  if (options->session.machine) {
    int status = lade_machine_get(options->session.machine, error, ret_machine);
    return status ? status : links_fill(request, ret_machine, error);
  }
  if (asks)
    return lade_error_set(error, -EINVAL, "%s of a graph needs --machine, whose links the plan would use", asks);
  if (options->session.budget.kind == LADE_BUDGET_PERCENT_DEVICE)
    return lade_error_set(error, -EINVAL, "--budget %g%%dev of a graph needs --machine, which has the device",
                          options->session.budget.percent);
  return 0;
}

/* Return @percent of @bytes: at least 1, because 0 bytes stand for the smallest budget. */
static uint64_t percent_of(uint64_t bytes, double percent)
{
  const double part = (double)bytes * percent / 100;
  if (percent == 100) /* doubles round sizes above 2^53 */
    return LADE_MAX(LADE_MIN(bytes, BUDGET_MAX), 1);
  return part >= (double)BUDGET_MAX ? BUDGET_MAX : LADE_MAX((uint64_t)part, 1);
}

static int budget_resolve(struct graph_request *request, const struct lade_machine *machine, struct lade_error *error)
{
  const struct lade_budget *budget = &request->options->session.budget;
  uint64_t *bytes = &request->params.budget_bytes;
  switch (budget->kind) {
  case LADE_BUDGET_BYTES:
    *bytes = budget->bytes;
    return *bytes ? 0 : lade_error_set(error, -EINVAL, "--budget 0: expected a size from 1 byte up, a percentage, min "
                                       "or auto");
  case LADE_BUDGET_PERCENT:
    *bytes = percent_of(request->unconstrained_bytes, budget->percent);
    return 0;
  case LADE_BUDGET_PERCENT_DEVICE:
    *bytes = percent_of(machine->device_bytes, budget->percent);
    return 0;
  case LADE_BUDGET_MIN:
    *bytes = LADE_GRAPH_BUDGET_MIN;
    return 0;
  default:
    *bytes = LADE_GRAPH_BUDGET_NONE;
    return 0;
  }
}

/* Read the options into @request, and the graph if it has none; the caller destroys the graph in every case. */
static int request_make(struct graph_request *request, struct lade_error *error)
{
  const struct options *options = request->options;
  struct lade_machine machine = {.device_bytes = 0};
  request->params = (struct lade_graph_plan_params){
      .struct_size = sizeof(request->params), .host_budget_bytes = options->session.host_budget_bytes,
      .store_budget_bytes = options->session.store_budget_bytes, .iterations = options->n_iterations,
      .time_limit_ns = (int64_t)(options->search_seconds * 1e9), .seed = options->session.seed};
  int status = outputs_check(options, error);
  if (!status)
    status = machine_read(request, error, &machine);
  request->device_bytes = machine.device_bytes;
  if (!status && !request->graph)
    status = lade_graph_load(options->graph, error, &request->graph);
  if (!status)
    status = lade_graph_bounds(request->graph, error, &request->unconstrained_bytes, &request->floor_bytes);
  return status ? status : budget_resolve(request, &machine, error);
}

/* ---- the list ---- */

static void instr_write(FILE *file, const struct lade_graph_instr *instr)
{
  static const char *const kinds[LADE_GRAPH_N_INSTR_KINDS] = {"op", "redo", "drop", "put", "get"};
  fprintf(file, "[\"%s\",%d", kinds[instr->kind], instr->index);
  if (instr->kind == LADE_GRAPH_INSTR_PUT)
    fprintf(file, ",\"%s\"", lade_space_name(instr->tier));
  fputc(']', file);
}

static int instructions_write(const char *path, const lade_graph_plan *plan, struct lade_error *error)
{
  int n = 0;
  const struct lade_graph_instr *instrs = lade_graph_plan_instrs(plan, &n);
  FILE *file = NULL;
  int status = output_open("instructions", path, false, error, &file);
  if (status)
    return status;
  fputs("{\"instructions\":[", file);
  for (int i = 0; i < n; i++) {
    fputs(i ? ",\n" : "\n", file);
    instr_write(file, &instrs[i]);
  }
  fputs("\n]}\n", file);
  return output_close("instructions", path, file, error);
}

/* ---- the figures ---- */

/* Return the budget as a number: the smallest one if that was asked for; UINT64_MAX without a limit. */
static uint64_t budget_bytes_get(const struct graph_request *request, const struct graph_answer *answer)
{
  return request->params.budget_bytes == LADE_GRAPH_BUDGET_MIN ? answer->info.min_budget_bytes
                                                               : request->params.budget_bytes;
}

/* Return a time; null for INT64_MAX, which stands for none. */
static json_t *json_ns(int64_t ns)
{
  return ns == INT64_MAX ? json_null() : json_integer(ns);
}

static int answer_dump(const struct graph_request *request, const struct graph_answer *answer)
{
  const struct lade_graph_plan_info *info = &answer->info;
  const uint64_t budget_bytes = budget_bytes_get(request, answer);
  json_t *object = json_pack("{s:i, s:b}", "schema_version", REPORT_SCHEMA_VERSION, "fits", answer->plan != NULL);
  if (!object || (request->fields && json_object_update(object, request->fields))) {
    json_decref(object);
    return -ENOMEM;
  }
  json_object_set_new(object, "budget_bytes",
                      budget_bytes == LADE_GRAPH_BUDGET_NONE ? json_null() : json_bytes(budget_bytes));
  json_object_set_new(object, "planned_peak_bytes", answer->plan ? json_bytes(info->planned_peak_bytes) : json_null());
  json_object_set_new(object, "unconstrained_bytes", json_bytes(info->unconstrained_bytes));
  json_object_set_new(object, "min_budget_bytes", json_bytes(info->min_budget_bytes));
  json_object_set_new(object, "floor_bytes", json_bytes(info->floor_bytes));
  json_object_set_new(object, "host_bytes", answer->plan ? json_bytes(info->host_bytes) : json_null());
  json_object_set_new(object, "store_bytes", answer->plan ? json_bytes(info->store_bytes) : json_null());
  json_object_set_new(object, "base_ns", json_ns(info->base_ns));
  json_object_set_new(object, "compute_ns", answer->plan ? json_ns(info->compute_ns) : json_null());
  json_object_set_new(object, "bound_ns", json_ns(info->bound_ns));
  json_object_set_new(object, "predicted_step_ns", answer->plan ? json_ns(info->predicted_step_ns) : json_null());
  json_object_set_new(object, "n_redone", answer->plan ? json_integer(info->n_redone) : json_null());
  json_object_set_new(object, "moved_bytes", answer->plan ? json_bytes(info->moved_bytes) : json_null());
  json_object_set_new(object, "seconds", json_number(info->seconds));
  return json_print(object);
}

static char *ns_format(int64_t ns, char *text, size_t text_bytes)
{
  return seconds_format((double)ns / 1e9, text, text_bytes);
}

/* Return how much @ns is above @base_ns, in percent. */
static double excess_percent(int64_t ns, int64_t base_ns)
{
  return base_ns > 0 ? 100 * ((double)ns / (double)base_ns - 1) : 0;
}

/* Print the lines that only a plan has. */
static void plan_print(const struct lade_graph_plan_info *info)
{
  char a[32], b[32], c[32];
  printf("step          predicted %s; unconstrained %s: %+.2f %%\n",
         ns_format(info->predicted_step_ns, a, sizeof(a)), ns_format(info->base_ns, b, sizeof(b)),
         excess_percent(info->predicted_step_ns, info->base_ns));
  if (info->bound_ns < INT64_MAX)
    printf("lower bound   %s; the plan is at most %.2f %% above the best one\n",
           ns_format(info->bound_ns, a, sizeof(a)), excess_percent(info->predicted_step_ns, info->bound_ns));
  printf("redone        %d ops, %s\n", info->n_redone, ns_format(info->compute_ns - info->base_ns, a, sizeof(a)));
  if (info->moved_bytes)
    printf("moved         %s; at most %s wait on the host, %s in the store\n",
           lade_size_format(info->moved_bytes, a, sizeof(a)), lade_size_format(info->host_bytes, b, sizeof(b)),
           lade_size_format(info->store_bytes, c, sizeof(c)));
}

/* Print whether the plan fits; without --budget, whether the device of --machine would hold it. */
static void fits_print(const struct graph_request *request, const struct graph_answer *answer)
{
  const uint64_t budget_bytes = budget_bytes_get(request, answer);
  const bool is_free = budget_bytes == LADE_GRAPH_BUDGET_NONE;
  char a[32], b[32];
  printf("fits          %s", !answer->plan ? "no" : is_free ? "no --budget to fit into" : "yes");
  if (answer->plan)
    printf(", planned peak %s", lade_size_format(answer->info.planned_peak_bytes, a, sizeof(a)));
  if (!is_free)
    printf("; budget %s", lade_size_format(budget_bytes, b, sizeof(b)));
  else if (request->device_bytes)
    printf("; the device has %s%s", lade_size_format(request->device_bytes, b, sizeof(b)),
           answer->info.planned_peak_bytes > request->device_bytes ? ", which is less: --budget 100%dev" : "");
  printf("\n");
}

static void answer_print(const struct graph_request *request, const struct graph_answer *answer)
{
  const struct lade_graph_plan_info *info = &answer->info;
  char a[32], b[32], c[32];
  if (request->heading)
    fputs(request->heading, stdout);
  printf("graph         %d ops, %d storages\n", lade_graph_n_ops(request->graph),
         lade_graph_n_storages(request->graph));
  fits_print(request, answer);
  printf("bounds        unconstrained %s, smallest budget found %s, lower bound %s\n",
         lade_size_format(info->unconstrained_bytes, a, sizeof(a)),
         lade_size_format(info->min_budget_bytes, b, sizeof(b)), lade_size_format(info->floor_bytes, c, sizeof(c)));
  if (answer->plan)
    plan_print(info);
  printf("planning      %s\n", seconds_format(info->seconds, a, sizeof(a)));
}

/* ---- the verb ---- */

/* Print @answer, and write its list. Return the exit code; @refusal is the line of a graph that does not fit. */
static int answer_tell(const struct graph_request *request, const struct graph_answer *answer,
                       const struct lade_error *refusal)
{
  const struct options *options = request->options;
  struct lade_error error = {0};
  int status = 0;
  if (answer->plan && options->instructions)
    status = instructions_write(options->instructions, answer->plan, &error);
  if (!status && options->is_json)
    status = answer_dump(request, answer);
  else if (!status)
    answer_print(request, answer);
  if (status)
    return exit_fail("plan", status, &error);
  if (answer->plan)
    return LADE_EXIT_DONE;
  fflush(stdout);
  return exit_fail("plan", -EOVERFLOW, refusal);
}

static int one_plan(const struct graph_request *request)
{
  struct lade_error error = {0};
  struct graph_answer answer = {.info.struct_size = sizeof(answer.info)};
  int status = lade_graph_plan_find(request->graph, &request->params, &error, &answer.info, &answer.plan);
  if (status && status != -ENOSPC)
    return exit_fail("plan", status, &error);
  int code = answer_tell(request, &answer, &error);
  lade_graph_plan_destroy(answer.plan);
  return code;
}

int plan_graph_made(struct graph_request *request)
{
  struct lade_error error = {0};
  int status = request_make(request, &error);
  if (!status && !request->options->has_frontier)
    return one_plan(request);
  if (!status)
    status = plan_graph_frontier(request, &error);
  return status ? exit_fail("plan", status, &error) : LADE_EXIT_DONE;
}

int plan_graph(const struct options *options)
{
  struct graph_request request = {.options = options};
  const int code = plan_graph_made(&request);
  lade_graph_destroy(request.graph);
  return code;
}
