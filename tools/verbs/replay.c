/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `lade replay`: a trace of allocations under one policy, or under all for comparison. The report shows the peak that a
 * policy reserves, the live peak and, for a snapshot, the bytes reserved when it was recorded.
 *
 * With a budget that is too small the figures are those without a budget, because they show the need. The first call
 * that runs out is named on stderr. The exit code is then 3, for one policy or for any of several.
 */
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/replay.h"
#include "base/base.h"
#include "tools/cli/options.h"
#include "tools/cli/verbs.h"
#include "tools/page/memory_page.h"
#include "tools/page/memory_plot.h"
#include "tools/report/report.h"

#define HOLDERS_MAX 10 /* lines of text; JSON has all */

struct replaying {
  struct options options;
  struct lade_trace trace;
  enum lade_policy policies[LADE_N_POLICIES];
  struct lade_replay replays[LADE_N_POLICIES]; /* in the same order */
  int n;
  struct lade_trace_holder *holders; /* of the peak, the largest first */
  int n_holders;
  struct lade_error error;
};

static double waste_get(const struct replaying *replaying, uint64_t bytes)
{
  return (double)bytes / (double)replaying->trace.peak_live_bytes - 1;
}

static int replays_run(struct replaying *replaying)
{
  const struct options *options = &replaying->options;
  int status = lade_trace_load(options->trace, &replaying->error, &replaying->trace);
  for (int policy = 0; policy < LADE_N_POLICIES && !status; policy++) {
    struct lade_replay_params params = {.policy = (enum lade_policy)policy,
                                        .budget_bytes = options->replay_budget_bytes,
                                        .time_limit_ns = (int64_t)(options->seconds * 1e9)};
    if (options->policy != POLICY_ALL && options->policy != policy)
      continue;
    status = lade_replay(&replaying->trace, &params, &replaying->error, &replaying->replays[replaying->n]);
    if (!status)
      replaying->policies[replaying->n++] = params.policy;
  }
  int n_holders = status ? 0 : lade_trace_holders(&replaying->trace, &replaying->holders);
  replaying->n_holders = LADE_MAX(n_holders, 0);
  return status ? status : LADE_MIN(n_holders, 0);
}

/* ---- JSON ---- */

static json_t *replay_json(const struct replaying *replaying, int i)
{
  const struct lade_replay *replay = &replaying->replays[i];
  const struct lade_trace *trace = &replaying->trace;
  json_t *object = json_pack("{s:i, s:s, s:i, s:o, s:o, s:o, s:o, s:o, s:b}", "schema_version", REPORT_SCHEMA_VERSION,
                             "policy", lade_policy_name(replaying->policies[i]), "allocations", trace->blocks.n,
                             "peak_live_bytes", json_bytes(trace->peak_live_bytes), "reserved_peak_bytes",
                             json_bytes(replay->reserved_peak_bytes), "lower_bound_bytes",
                             json_bytes(replay->lower_bound_bytes), "waste",
                             json_number(waste_get(replaying, replay->reserved_peak_bytes)), "seconds",
                             json_number((double)replay->ns / 1e9), "verified", true);
  if (object && trace->has_recorded)
    json_object_set_new(object, "recorded_reserved_bytes", json_bytes(trace->recorded_reserved_bytes));
  return object;
}

/* Add the holders of the peak to @object, if the trace has call sites. */
static json_t *holders_add(const struct replaying *replaying, json_t *object)
{
  json_t *list = replaying->n_holders ? json_array() : NULL;
  for (int i = 0; i < replaying->n_holders && list; i++) {
    const struct lade_trace_holder *holder = &replaying->holders[i];
    json_array_append_new(list, json_pack("{s:s?, s:i, s:o}", "site", holder->site, "blocks", holder->n_blocks,
                                          "bytes", json_bytes(holder->bytes)));
  }
  if (object && list)
    json_object_set_new(object, "holders", list);
  return object;
}

/* Print one policy as one object, several as a list in one object. */
static int replays_dump(const struct replaying *replaying)
{
  if (replaying->options.policy != POLICY_ALL)
    return json_print(holders_add(replaying, replay_json(replaying, 0)));
  json_t *list = json_array();
  for (int i = 0; i < replaying->n; i++) {
    if (json_array_append_new(list, replay_json(replaying, i))) {
      json_decref(list);
      return -ENOMEM;
    }
  }
  return json_print(holders_add(replaying, json_pack("{s:i, s:o}", "schema_version", REPORT_SCHEMA_VERSION, "policies",
                                                     list)));
}

/* ---- text ---- */

static void trace_print(const struct replaying *replaying)
{
  const struct lade_trace *trace = &replaying->trace;
  const struct lade_trace_event *peak = &trace->events.items[trace->peak_event];
  char a[32], b[32];
  printf("trace         %d allocations, %d calls, %d queue%s\n", trace->blocks.n, trace->events.n, trace->n_queues,
         trace->n_queues == 1 ? "" : "s");
  if (trace->n_devices > 1)
    printf("              of device %d, which has the longest history of %d\n", trace->device, trace->n_devices);
  printf("peak live     %s, at call %d", lade_size_format(trace->peak_live_bytes, a, sizeof(a)), trace->peak_event + 1);
  if (peak->place)
    printf(" (%s %d)", trace->place_word, peak->place);
  putchar('\n');
  if (trace->n_devices == 0)
    return; /* not a snapshot */
  if (!trace->has_recorded)
    printf("recorded      unknown: the snapshot lists no segments\n");
  else if (trace->recorded_reserved_bytes < trace->peak_live_bytes)
    printf("recorded      unknown: the snapshot lists segments of %s, less than was live\n",
           lade_size_format(trace->recorded_reserved_bytes, b, sizeof(b)));
  else
    printf("recorded      %s reserved, waste %.2f %%\n",
           lade_size_format(trace->recorded_reserved_bytes, b, sizeof(b)),
           100 * waste_get(replaying, trace->recorded_reserved_bytes));
}

static void table_print(const struct replaying *replaying)
{
  char reserved[32], bound[32], seconds[32];
  printf("\n%-18s %15s %11s %10s %12s %10s\n", "policy", "reserved", "", "waste", "lower bound", "took");
  for (int i = 0; i < replaying->n; i++) {
    const struct lade_replay *replay = &replaying->replays[i];
    printf("%-18s %15" PRIu64 " %11s %8.2f %% %12s %10s%s\n", lade_policy_name(replaying->policies[i]),
           replay->reserved_peak_bytes, lade_size_format(replay->reserved_peak_bytes, reserved, sizeof(reserved)),
           100 * waste_get(replaying, replay->reserved_peak_bytes),
           lade_size_format(replay->lower_bound_bytes, bound, sizeof(bound)),
           seconds_format((double)replay->ns / 1e9, seconds, sizeof(seconds)),
           replay->is_within ? "" : "  over the budget");
  }
}

static void holder_print(const char *site, int n_blocks, uint64_t bytes, uint64_t peak_bytes)
{
  char size[32];
  printf("%-70.70s %8d %11s %6.1f %%\n", site, n_blocks, lade_size_format(bytes, size, sizeof(size)),
         100 * (double)bytes / (double)peak_bytes);
}

/* Print the call sites that hold the most bytes at the peak, and the sum of the others. */
static void holders_print(const struct replaying *replaying)
{
  const uint64_t peak_bytes = replaying->trace.peak_live_bytes;
  struct lade_trace_holder others = {0};
  if (replaying->n_holders)
    printf("\n%-70s %8s %11s %8s\n", "holders at the peak", "blocks", "", "of it");
  for (int i = 0; i < replaying->n_holders; i++) {
    const struct lade_trace_holder *holder = &replaying->holders[i];
    if (i < HOLDERS_MAX) {
      holder_print(holder->site ? holder->site : "unknown: before the history, or without frames", holder->n_blocks,
                   holder->bytes, peak_bytes);
      continue;
    }
    others.n_blocks += holder->n_blocks;
    others.bytes += holder->bytes;
  }
  if (others.n_blocks)
    holder_print("others", others.n_blocks, others.bytes, peak_bytes);
}

/* Return the bytes live just before event @i. */
static uint64_t live_before(const struct lade_trace *trace, int i)
{
  uint64_t live_bytes = 0;
  for (int k = 0; k < i; k++) {
    const struct lade_trace_event *event = &trace->events.items[k];
    uint64_t bytes = trace->blocks.items[event->block].bytes;
    live_bytes = event->is_free ? live_bytes - bytes : live_bytes + bytes;
  }
  return live_bytes;
}

/*
 * Return the reason why the budget is too small for policy @policy, as the beginning of a line that ends with the need.
 */
static const char *reason_get(const struct replaying *replaying, enum lade_policy policy)
{
  if (replaying->trace.peak_live_bytes > replaying->options.replay_budget_bytes)
    return "the live peak is past it, and it needs";
  return policy == LADE_POLICY_PACKED ? "the search found no better packing: it needs" : "without a budget it needs";
}

/* Print on stderr the call at which replay @i exceeds the budget. */
static void out_print(const struct replaying *replaying, int i)
{
  const struct lade_replay *replay = &replaying->replays[i];
  const struct lade_trace *trace = &replaying->trace;
  const struct lade_trace_event *event = &trace->events.items[replay->out_event];
  uint64_t live_bytes = live_before(trace, replay->out_event), bytes = trace->blocks.items[event->block].bytes;
  char text[512], place[64] = "from before the trace", a[32], b[32], c[32], d[LADE_SIZE_TEXT];
  if (event->place)
    snprintf(place, sizeof(place), "%s %d, time %" PRIu64, trace->place_word, event->place, event->time);
  snprintf(text, sizeof(text), "%s: a budget of %s runs out at call %d of %d (%s): %s more with %s live; %s %s",
           lade_policy_name(replaying->policies[i]),
           lade_size_format(replaying->options.replay_budget_bytes, a, sizeof(a)), replay->out_event + 1,
           trace->events.n, place, lade_size_format(bytes, b, sizeof(b)),
           lade_size_format(live_bytes, c, sizeof(c)), reason_get(replaying, replaying->policies[i]),
           lade_size_exact(replay->reserved_peak_bytes, d));
  message_print("replay", text);
}

/* ---- the verb ---- */

static int memory_plot_make(struct replaying *replaying)
{
  struct memory_plot_line lines[LADE_N_POLICIES];
  const struct options *options = &replaying->options;
  const char *slash = strrchr(options->trace, '/');
  for (int i = 0; i < replaying->n; i++)
    lines[i] = (struct memory_plot_line){lade_policy_name(replaying->policies[i]), replaying->replays[i].reserved_bytes,
                                     replaying->replays[i].reserved_peak_bytes};
  struct memory_plot plot = {slash && slash[1] ? slash + 1 : options->trace, &replaying->trace, lines, replaying->n,
                            options->replay_budget_bytes};
  int status = options->is_json ? 0 : memory_plot_print(&plot, stdout);
  if (!status && options->html)
    status = memory_page_write(&plot, options->html, &replaying->error);
  return status;
}

/* Print the results. Return the exit code of the replayed policies. */
static int replays_tell(struct replaying *replaying)
{
  int code = LADE_EXIT_DONE, status = 0;
  if (replaying->options.is_json) {
    status = replays_dump(replaying);
  } else {
    trace_print(replaying);
    table_print(replaying);
    holders_print(replaying);
  }
  if (!status)
    status = memory_plot_make(replaying);
  if (status)
    return exit_fail("replay", status, &replaying->error);
  fflush(stdout);
  for (int i = 0; i < replaying->n; i++) {
    if (!replaying->replays[i].is_within) {
      out_print(replaying, i);
      code = exit_code(-EOVERFLOW);
    }
  }
  return code;
}

int replay_main(int argc, char **argv)
{
  struct replaying replaying = {.n = 0};
  int code = options_read(VERB_REPLAY, argc, argv, &replaying.options);
  if (code == OPTIONS_GO) {
    int status = outputs_check(&replaying.options, &replaying.error);
    if (!status)
      status = replays_run(&replaying);
    code = status ? exit_fail("replay", status, &replaying.error) : replays_tell(&replaying);
  }
  for (int i = 0; i < replaying.n; i++)
    lade_replay_finish(&replaying.replays[i]);
  free(replaying.holders);
  lade_trace_destroy(&replaying.trace);
  options_finish(&replaying.options);
  return code;
}
