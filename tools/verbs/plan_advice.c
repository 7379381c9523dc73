/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Advice of `lade plan`, by trial: a table of changes, each applied to a copy of the options and planned.
 *
 * Estimates were rejected, because the effect of a change on the smallest budget depends on the residency that the
 * planner then finds. The trials cost about as much as the plan itself. So they are made only if the plan does not fit
 * or is slower than the unconstrained step. They end once they have taken as long as the plan, but at least
 * LIMIT_MIN_NS, of processor time, which other programs do not stretch. A plan that does not fit cannot be used
 * without advice, so its trials have LIMIT_UNFIT_NS at least. A plan that itself took longer than LIMIT_MAX_NS gets no
 * advice.
 *
 * Without --machine a trial measures the ops that it alone has. Changes of the optimizer's state have none. A smaller
 * microbatch has, so it is tried only if the plan does not fit. More ranks and a drive are advised for described
 * machines alone, because the hardware of this machine is fixed.
 */
#include "tools/verbs/plan_advice.h"

#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/base.h"
#include "tools/report/report.h"

#define LIMIT_MIN_NS INT64_C(1000000000)    /* for trials, however short the plan took */
#define LIMIT_UNFIT_NS INT64_C(5000000000)  /* for trials of a plan that does not fit */
#define LIMIT_MAX_NS INT64_C(10000000000)   /* of a plan that still gets advice */
#define TRIALS_MAX 24                       /* more than the changes below */
#define TP_MAX 8       /* ranks of a tensor parallel group that share fast links */
#define FASTER 0.98    /* a change is worth a line if its step takes at most this part of the plan's */
#define SLOW 1.5       /* more devices are worth a line from this slowdown on */
#define SMALLER 0.95   /* a change is worth a line if its smallest budget is at most this part of the plan's */

struct advising {
  const struct options *options;
  const struct lade_session_info *info; /* of the first rank, with the budgets of all */
  bool fits;
  int64_t step_ns;
  int64_t begin_ns, limit_ns;
  struct advice_item items[TRIALS_MAX];
  int n;
};

static const struct lade_layout *layout_of(const struct advising *a)
{
  return &a->info->layout;
}

/* Return the step over that with everything kept. pre: it fits. */
static double slowdown(const struct advising *a)
{
  return (double)a->info->plan->predicted_ns / (double)LADE_MAX(a->info->bounds.unconstrained_ns, 1);
}

static bool is_described(const struct advising *a)
{
  return a->options->session.machine != NULL;
}

int64_t advice_clock(void)
{
  struct timespec now;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

/* ---- trials ---- */

static bool helps(const struct advising *a, const struct advice_item *item)
{
  const uint64_t before = a->info->bounds.min_bytes;
  if (a->fits)
    return item->fits && (double)item->step_ns < FASTER * (double)a->step_ns;
  return item->fits || (double)item->min_bytes < SMALLER * (double)before;
}

/* Fill in the figures of @item from the plans of its ranks. */
static void item_measure(const struct ranks_plan *ranks, int n_before, struct advice_item *item)
{
  struct lade_session_info info = ranks->stages[0].info;
  ranks_plan_max(ranks, &info);
  item->fits = ranks->fits;
  item->min_bytes = info.bounds.min_bytes;
  item->step_ns = ranks->fits ? ranks->step_ns : 0;
  item->n_more_ranks = info.layout.mesh.world - n_before;
}

/* Plan @changed and keep it if it helps. Return whether it fits; a run that is refused does not. */
static bool trial(struct advising *a, struct options *changed, const char *change, bool has_drive)
{
  struct ranks_plan ranks;
  struct lade_error error;
  struct advice_item item = {.has_drive = has_drive};
  if (a->n == TRIALS_MAX || advice_clock() - a->begin_ns > a->limit_ns)
    return false;
  snprintf(item.change, sizeof(item.change), "%s", change);
  changed->is_quiet = true;
  changed->has_every_rank = false;
  changed->device = changed->device == DEVICE_DRY ? DEVICE_HOST : changed->device;
  changed->session.is_dry = false;
  if (ranks_plan_make(changed, &ranks, &error) == 0) {
    item_measure(&ranks, layout_of(a)->mesh.world, &item);
    if (helps(a, &item))
      a->items[a->n++] = item;
  }
  ranks_plan_finish(&ranks);
  return item.fits;
}

/* ---- changes ---- */

static void micro_batch_try(struct advising *a)
{
  char change[ADVICE_CHANGE_BYTES];
  int64_t n = a->info->micro_batch;
  bool fits = a->fits;
  while (!fits && n > 1) {
    int64_t next = n / 2;
    while (n % next)
      next--;
    n = next;
    struct options changed = *a->options;
    changed.session.micro_batch = n;
    snprintf(change, sizeof(change), "--micro-batch %lld", (long long)n);
    fits = trial(a, &changed, change, false);
  }
}

/* Try the compact forms of the optimizer's state, one by one, and all of them if none fits alone. */
static void state_try(struct advising *a)
{
  const struct lade_session_params *session = &a->options->session;
  const bool has_moments = session->moments == LADE_MOMENTS_F32, has_gradients = session->grad_dtype == LADE_F32;
  const bool has_master = session->master == LADE_MASTER_EXACT && session->dtype == LADE_BF16;
  struct options all = *a->options, changed;
  bool fits = false;
  changed = *a->options;
  changed.session.moments = all.session.moments = has_moments ? LADE_MOMENTS_8BIT : session->moments;
  fits |= has_moments && trial(a, &changed, "--moments 8bit", false);
  changed = *a->options;
  changed.session.grad_dtype = all.session.grad_dtype = LADE_BF16;
  fits |= has_gradients && trial(a, &changed, "--grad-dtype bf16", false);
  changed = *a->options;
  changed.session.master = all.session.master = has_master ? LADE_MASTER_24BIT : session->master;
  fits |= has_master && trial(a, &changed, "--master 24bit", false);
  if (!a->fits && !fits && has_moments && has_gradients && has_master)
    trial(a, &all, "--moments 8bit --grad-dtype bf16 --master 24bit", false);
}

/* Try to keep everything, where the device has room for it. */
static void budget_try(struct advising *a)
{
  struct options changed = *a->options;
  if (!a->fits || a->info->bounds.unconstrained_bytes > a->info->cost->machine.device_bytes)
    return;
  changed.session.budget = (struct lade_budget){.kind = LADE_BUDGET_PERCENT, .percent = 100};
  trial(a, &changed, "--budget 100%", false);
}

static void store_try(struct advising *a)
{
  struct options changed = *a->options;
  if (!is_described(a) || a->options->session.store || !a->info->cost->machine.store.bytes)
    return;
  changed.session.store = "DIR"; /* not opened for a described machine */
  trial(a, &changed, "--store DIR", true);
}

static void zero_try(struct advising *a)
{
  char change[ADVICE_CHANGE_BYTES];
  bool fits = lade_layout_size(layout_of(a), LADE_AXIS_DP) == 1;
  for (int zero = layout_of(a)->zero + 1; zero <= LADE_ZERO_MAX && !fits; zero++) {
    struct options changed = *a->options;
    changed.session.layout.zero = zero;
    snprintf(change, sizeof(change), "--zero %d", zero);
    fits = trial(a, &changed, change, false);
  }
}

static void tp_try(struct advising *a)
{
  char change[ADVICE_CHANGE_BYTES];
  const int tp = lade_layout_size(layout_of(a), LADE_AXIS_TP);
  const bool is_slow = a->fits && slowdown(a) > SLOW;
  bool fits = (a->fits && !is_slow) || !is_described(a) || a->info->cost->machine.is_unified;
  for (int n = 2 * tp; n <= TP_MAX && !fits; n *= 2) {
    struct options changed = *a->options;
    changed.session.layout.tp = n;
    snprintf(change, sizeof(change), "--tp %d", n);
    fits = trial(a, &changed, change, false);
  }
}

/* ---- the choice ---- */

/* Order by need: changes that fit, then those without more hardware, then short steps and small budgets. */
static int item_compare(const void *x, const void *y)
{
  const struct advice_item *a = x, *b = y;
  const int a_cost = 2 * a->n_more_ranks + a->has_drive, b_cost = 2 * b->n_more_ranks + b->has_drive;
  if (a->fits != b->fits)
    return a->fits ? -1 : 1;
  if (!a->fits)
    return (a->min_bytes > b->min_bytes) - (a->min_bytes < b->min_bytes);
  if (a_cost != b_cost)
    return a_cost < b_cost ? -1 : 1;
  return (a->step_ns > b->step_ns) - (a->step_ns < b->step_ns);
}

static bool needs_advice(const struct advising *a, int64_t took_ns)
{
  return (!a->fits || FASTER * slowdown(a) > 1) && took_ns <= LIMIT_MAX_NS;
}

void advice_make(const struct options *options, const struct ranks_plan *ranks, int64_t took_ns,
                 struct advice *ret_advice)
{
  struct lade_session_info info = ranks->stages[0].info;
  ranks_plan_max(ranks, &info);
  struct advising a = {.options = options, .info = &info, .fits = ranks->fits, .step_ns = ranks->step_ns,
                       .begin_ns = advice_clock(),
                       .limit_ns = LADE_MAX(took_ns, ranks->fits ? LIMIT_MIN_NS : LIMIT_UNFIT_NS)};
  *ret_advice = (struct advice){.n = 0};
  if (!needs_advice(&a, took_ns))
    return;
  budget_try(&a);
  store_try(&a);
  zero_try(&a);
  tp_try(&a);
  state_try(&a);
  micro_batch_try(&a);
  qsort(a.items, (size_t)a.n, sizeof(*a.items), item_compare);
  for (int i = 0; i < LADE_MIN(a.n, ADVICE_MAX); i++)
    ret_advice->items[ret_advice->n++] = a.items[i];
}

/* ---- results ---- */

void advice_print(const struct advice *advice, FILE *file)
{
  char min[32], step[32], more[48] = "";
  for (int i = 0; i < advice->n; i++) {
    const struct advice_item *item = &advice->items[i];
    if (i == 0)
      fprintf(file, "\nchanges that help                                 budget and step\n");
    if (item->n_more_ranks)
      snprintf(more, sizeof(more), ", %d more device%s", item->n_more_ranks, item->n_more_ranks == 1 ? "" : "s");
    else
      more[0] = 0;
    fprintf(file, "  %-47s smallest %s, ", item->change,
            item->min_bytes == UINT64_MAX ? "none" : lade_size_format(item->min_bytes, min, sizeof(min)));
    if (item->fits)
      fprintf(file, "step %s%s\n", seconds_format((double)item->step_ns / 1e9, step, sizeof(step)), more);
    else
      fprintf(file, "still more%s\n", more);
  }
}

json_t *advice_json(const struct advice *advice)
{
  json_t *list = json_array();
  for (int i = 0; i < advice->n; i++) {
    const struct advice_item *item = &advice->items[i];
    json_t *min = item->min_bytes == UINT64_MAX ? json_null() : json_bytes(item->min_bytes);
    json_t *step = item->fits ? json_number((double)item->step_ns / 1e9) : json_null();
    json_array_append_new(list, json_pack("{s:s, s:b, s:o, s:o, s:i}", "change", item->change, "fits", item->fits,
                                          "min_budget_bytes", min, "step_seconds", step, "more_ranks",
                                          item->n_more_ranks));
  }
  return list;
}
