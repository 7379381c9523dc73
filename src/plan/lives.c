/* SPDX-License-Identifier: Apache-2.0 */
/*
 * When is a value in device memory? Its uses, in list order, are cut into intervals: a new one begins where
 * the value is made (again), and where the gap before a use is one in which the residency sends it away.
 * Then each interval's copies get a slot, a position between two steps.
 *
 * Just in time, a copy out stands right behind the last use and a copy in right before the first. With
 * prefetch, slots follow a timeline of the compute queue alone: copies out are laid one after another on
 * their link from the moment that each value is ready, and the memory is held until the copy will
 * be done; copies in are laid backwards from the moment that each is needed; both as far as the bytes that are
 * live meanwhile allow. The position of a copy in the list does not delay it (its queue runs ahead as
 * far as its waits allow); what the position decides is which memory is taken while it runs. O(uses +
 * intervals log intervals + positions that copies are moved over).
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "plan/build.h"

#define HOLD_FACTOR 1.5 /* of a copy's own time: it may meet others on its link, and a busy machine */

struct use {
  int32_t pos;
  bool is_made; /* the step makes the value; it does not read it */
};

struct builder {
  const struct lade_build_params *params;
  const struct lade_graph *graph;
  const struct plan_step *steps;
  int n_steps, n_values;
  const int32_t *update_ends; /* by parameter: steps that come before its update */
  int32_t *first_use; /* by value, n_values + 1 */
  struct use *uses;
  int64_t *start_ns; /* by step and n_steps: the compute timeline */
  uint64_t *live_bytes; /* by step and n_steps: on the device */
  LADE_ARRAY(struct plan_interval) intervals;
  int32_t *first_interval;
};

/* Call @use_add(b, value, pos, is_made) for every use, in list order. */
static void uses_walk(struct builder *b, void (*use_add)(struct builder *, int, int, bool))
{
  for (int pos = 0; pos < b->n_steps; pos++) {
    const struct lade_op *op = &b->graph->ops[b->steps[pos].op];
    for (int i = 0; i < op->n_in; i++) {
      if (op->in[i] >= 0)
        use_add(b, plan_value_number(b->graph, op->in[i], b->steps[pos].microbatch), pos, false);
    }
    for (int i = 0; i < op->n_out; i++) {
      if (op->out[i] >= 0)
        use_add(b, plan_value_number(b->graph, op->out[i], b->steps[pos].microbatch), pos, true);
    }
  }
}

static void use_count(struct builder *b, int value, int pos, bool is_made)
{
  b->first_use[value + 1]++;
}

static void use_store(struct builder *b, int value, int pos, bool is_made)
{
  b->uses[b->first_use[value]++] = (struct use){pos, is_made};
}

static int uses_collect(struct builder *b)
{
  b->first_use = calloc((size_t)b->n_values + 1, sizeof(*b->first_use));
  if (!b->first_use)
    return -ENOMEM;
  uses_walk(b, use_count);
  for (int i = 0; i < b->n_values; i++)
    b->first_use[i + 1] += b->first_use[i];
  b->uses = calloc((size_t)b->first_use[b->n_values] + 1, sizeof(*b->uses));
  if (!b->uses)
    return -ENOMEM;
  uses_walk(b, use_store);
  memmove(b->first_use + 1, b->first_use, (size_t)b->n_values * sizeof(*b->first_use));
  b->first_use[0] = 0;
  return 0;
}

static int phase_of(const struct builder *b, int pos)
{
  return 2 * b->steps[pos].microbatch + b->steps[pos].is_backward;
}

static enum lade_space wait_space(enum lade_wait wait)
{
  return wait == LADE_WAIT_STORE ? LADE_STORE : LADE_HOST;
}

/* Where the value goes in the gap between two uses, or before its update; LADE_DEVICE: it stays. */
static enum lade_space gap_space(const struct builder *b, int tensor, int from_pos, int to_pos, bool is_for_update)
{
  if (to_pos <= from_pos + 1)
    return LADE_DEVICE; /* nothing happens in between */
  struct lade_choice choice = b->params->residency->choices[tensor];
  if (choice.spill == LADE_WAIT_HOST || choice.spill == LADE_WAIT_STORE)
    return wait_space(choice.spill);
  bool is_saved = is_for_update || phase_of(b, from_pos) != phase_of(b, to_pos);
  if (is_saved && (choice.saved == LADE_WAIT_HOST || choice.saved == LADE_WAIT_STORE))
    return wait_space(choice.saved);
  return LADE_DEVICE;
}

/* The space in which a copy of the value lies ready at the start of the step; LADE_DEVICE: none. */
static enum lade_space home_space(const struct builder *b, int tensor)
{
  const struct lade_tensor *what = &b->graph->tensors[tensor];
  if (what->kind == LADE_TENSOR_TOKENS || what->kind == LADE_TENSOR_TARGETS)
    return LADE_HOST;
  if (what->kind == LADE_TENSOR_PARAM)
    return plan_home_space(b->params->residency, what->param);
  return LADE_DEVICE;
}

/* Where a value must be after its last use, for the update or the caller; LADE_DEVICE: anywhere. */
static enum lade_space end_space(const struct builder *b, int tensor, int last_pos)
{
  const struct lade_tensor *what = &b->graph->tensors[tensor];
  if (what->kind == LADE_TENSOR_LOSS)
    return LADE_HOST;
  if (what->kind != LADE_TENSOR_GRAD)
    return LADE_DEVICE;
  enum lade_space home = plan_home_space(b->params->residency, what->param);
  if (home != LADE_STORE)
    return home;
  enum lade_space away = gap_space(b, tensor, last_pos, b->update_ends[what->param], true);
  /* An update that streams from the store reads the gradient there too, unless it reaches device memory. */
  return away == LADE_DEVICE && !b->params->is_unified ? LADE_STORE : away;
}

static bool is_made_anew(const struct builder *b, int tensor, const struct use *use)
{
  return use->is_made && b->graph->tensors[tensor].kind != LADE_TENSOR_GRAD;
}

static bool interval_push(struct builder *b, const struct plan_interval *interval)
{
  return LADE_PUSH(&b->intervals, *interval);
}

/*
 * Cut one value's uses into intervals. A copy elsewhere stays good until the value is made anew or added to,
 * so only the first departure after that is a copy out; later ones just drop the device's copy.
 */
static bool value_cut(struct builder *b, int value)
{
  int tensor = value % b->graph->n_tensors, n_uses = b->first_use[value + 1] - b->first_use[value];
  const struct use *uses = b->uses + b->first_use[value];
  enum lade_space home = home_space(b, tensor), copy = home;
  bool is_grad = b->graph->tensors[tensor].kind == LADE_TENSOR_GRAD;
  if (n_uses == 0 || (b->graph->tensors[tensor].kind == LADE_TENSOR_PARAM && home == LADE_DEVICE))
    return true; /* resident parameters have no intervals */
  struct plan_interval now = {.value = value, .first_pos = -1, .leave_slot = -1};
  for (int i = 0; i < n_uses; i++) {
    if (is_made_anew(b, tensor, &uses[i]) || (is_grad && i == 0)) {
      if (now.first_pos >= 0 && !interval_push(b, &now))
        return false;
      now = (struct plan_interval){value, uses[i].pos, uses[i].pos, -1, -1, LADE_DEVICE, LADE_DEVICE};
      copy = LADE_DEVICE;
    } else if (now.first_pos < 0) {
      now = (struct plan_interval){value, uses[i].pos, uses[i].pos, uses[i].pos, -1, (uint8_t)copy, LADE_DEVICE};
    }
    if (is_grad)
      copy = LADE_DEVICE; /* whatever lies elsewhere is out of date */
    now.last_pos = uses[i].pos;
    if (i + 1 == n_uses || is_made_anew(b, tensor, &uses[i + 1]))
      continue;
    enum lade_space away = gap_space(b, tensor, uses[i].pos, uses[i + 1].pos, false);
    if (away == LADE_DEVICE)
      continue;
    if (copy == LADE_DEVICE) {
      now.leave_slot = uses[i].pos + 1;
      now.target = (uint8_t)away;
      copy = away;
    }
    if (!interval_push(b, &now))
      return false;
    now.first_pos = now.leave_slot = -1;
  }
  enum lade_space end = end_space(b, tensor, now.last_pos);
  if (end != LADE_DEVICE) {
    now.leave_slot = now.last_pos + 1;
    now.target = (uint8_t)end;
  } else if (is_grad && b->params->is_training) {
    int32_t n_before = b->update_ends[b->graph->tensors[tensor].param];
    now.last_pos = n_before < b->n_steps ? n_before - 1 : b->n_steps;
  }
  return interval_push(b, &now);
}

int64_t plan_transfer_ns(const struct lade_prices *prices, enum lade_space from, enum lade_space to, uint64_t bytes)
{
  const struct lade_transfer_price *price = to == LADE_STORE     ? &prices->write
                                            : from == LADE_STORE ? &prices->read
                                            : to == LADE_HOST    ? &prices->to_host
                                                                 : &prices->to_device;
  return price->latency_ns + (int64_t)((double)bytes * price->ns_per_byte);
}

static int link_of(enum lade_space from, enum lade_space to)
{
  if (from == LADE_STORE || to == LADE_STORE)
    return LADE_Q_IO;
  return to == LADE_HOST ? LADE_Q_TO_HOST : LADE_Q_TO_DEVICE;
}

static int timeline_make(struct builder *b)
{
  b->start_ns = calloc((size_t)b->n_steps + 1, sizeof(*b->start_ns));
  if (!b->start_ns)
    return -ENOMEM;
  for (int pos = 0; pos < b->n_steps; pos++)
    b->start_ns[pos + 1] = b->start_ns[pos] + b->params->prices->op_ns[b->steps[pos].op];
  return 0;
}

/* The first position in [lo, n_steps] that starts at @ns or later (n_steps if none). */
static int pos_at(const struct builder *b, int lo, int64_t ns)
{
  int hi = b->n_steps;
  while (lo < hi) {
    int mid = lo + (hi - lo) / 2;
    if (b->start_ns[mid] < ns)
      lo = mid + 1;
    else
      hi = mid;
  }
  return lo;
}

static uint64_t value_bytes(const struct builder *b, int value)
{
  return plan_buffer_bytes(LADE_DEVICE, b->graph->tensors[value % b->graph->n_tensors].bytes);
}

static int64_t held_ns(const struct builder *b, enum lade_space from, enum lade_space to, int value)
{
  uint64_t bytes = b->graph->tensors[value % b->graph->n_tensors].bytes;
  return (int64_t)(HOLD_FACTOR * (double)plan_transfer_ns(b->params->prices, from, to, bytes));
}

/* ---- what is live just in time ---- */

static uint64_t resident_bytes(const struct builder *b)
{
  uint64_t bytes = 0;
  for (int param = 0; param < b->graph->n_params; param++) {
    if (b->params->residency->homes[param] != LADE_HOME_DEVICE)
      continue;
    bytes += plan_buffer_bytes(LADE_DEVICE, lade_value_bytes(b->graph, b->graph->params[param].tensor));
    for (int part = 0; part < LADE_N_PARTS; part++) {
      int tensor = lade_value_part(b->graph, param, (enum lade_part)part);
      bytes += tensor < 0 ? 0 : plan_buffer_bytes(LADE_DEVICE, lade_value_bytes(b->graph, tensor));
    }
  }
  return bytes;
}

/* Does the step at @pos make an output in the memory of this value, whose interval ends there? */
static bool is_taken_over(const struct builder *b, int value, int pos)
{
  const struct lade_op *op = &b->graph->ops[b->steps[pos].op];
  for (int i = 0; i < op->n_out; i++) {
    if (op->out[i] >= 0 && op->alias[i] >= 0 && op->in[op->alias[i]] == value % b->graph->n_tensors)
      return true;
  }
  return false;
}

static int live_count(struct builder *b)
{
  b->live_bytes = calloc((size_t)b->n_steps + 2, sizeof(*b->live_bytes));
  if (!b->live_bytes)
    return -ENOMEM;
  uint64_t *change = b->live_bytes; /* wraps below zero and back: the running sum is what counts */
  change[0] += resident_bytes(b);
  for (int i = 0; i < b->intervals.n; i++) {
    const struct plan_interval *it = &b->intervals.items[i];
    bool is_taken = it->leave_slot < 0 && it->last_pos < b->n_steps && it->last_pos > it->first_pos &&
                    is_taken_over(b, it->value, it->last_pos);
    change[it->first_pos] += value_bytes(b, it->value);
    change[it->last_pos + (is_taken ? 0 : 1)] -= value_bytes(b, it->value);
  }
  for (int pos = 1; pos <= b->n_steps; pos++)
    b->live_bytes[pos] += b->live_bytes[pos - 1];
  for (int pos = 0; pos < b->n_steps; pos++)
    b->live_bytes[pos] += lade_align_up(b->graph->ops[b->steps[pos].op].workspace_bytes, LADE_BUFFER_ALIGN);
  return 0;
}

static bool live_take(struct builder *b, int pos, uint64_t bytes)
{
  if (b->live_bytes[pos] + bytes > b->params->residency->prefetch_bytes)
    return false;
  b->live_bytes[pos] += bytes;
  return true;
}

static int leave_compare(const void *x, const void *y)
{
  const struct plan_interval *a = *(struct plan_interval *const *)x, *b = *(struct plan_interval *const *)y;
  return a->last_pos != b->last_pos ? (a->last_pos > b->last_pos) - (a->last_pos < b->last_pos)
                                    : (a->value > b->value) - (a->value < b->value);
}

static int fetch_compare(const void *x, const void *y)
{
  const struct plan_interval *a = *(struct plan_interval *const *)x, *b = *(struct plan_interval *const *)y;
  return a->first_pos != b->first_pos ? (a->first_pos < b->first_pos) - (a->first_pos > b->first_pos)
                                      : (a->value < b->value) - (a->value > b->value);
}

/* The step before which the value is copied in again; n_steps if it is not. */
static int next_fetch(const struct builder *b, const struct plan_interval *it)
{
  const struct plan_interval *next = it + 1;
  bool is_same = next < b->intervals.items + b->intervals.n && next->value == it->value && next->fetch_slot >= 0;
  return is_same ? next->first_pos : b->n_steps;
}

/* The first slot at which the value can be copied in: not before it has left. */
static int first_slot(const struct builder *b, const struct plan_interval *it)
{
  const struct plan_interval *before = it - 1;
  if (it == b->intervals.items || before->value != it->value)
    return 0;
  return LADE_MAX(before->last_pos + 1, before->leave_slot);
}

/* Hold memory behind each copy out until its link will have moved it. */
static void leaves_place(struct builder *b, struct plan_interval **order, int n)
{
  int64_t free_ns[LADE_N_QUEUES] = {0};
  qsort(order, (size_t)n, sizeof(*order), leave_compare);
  for (int i = 0; i < n; i++) {
    struct plan_interval *it = order[i];
    int link = link_of(LADE_DEVICE, it->target);
    int64_t ready = b->start_ns[it->last_pos + 1];
    free_ns[link] = LADE_MAX(free_ns[link], ready) + held_ns(b, LADE_DEVICE, it->target, it->value);
    int wanted = pos_at(b, it->last_pos + 1, free_ns[link]);
    int next = next_fetch(b, it); /* it is needed again: no use in holding it longer */
    while (it->leave_slot < LADE_MIN(wanted, next) && live_take(b, it->leave_slot, value_bytes(b, it->value)))
      it->leave_slot++;
  }
}

/* Start each copy in early enough to be done in time, the last first. */
static void fetches_place(struct builder *b, struct plan_interval **order, int n)
{
  int64_t next_ns[LADE_N_QUEUES];
  for (int i = 0; i < LADE_N_QUEUES; i++)
    next_ns[i] = b->start_ns[b->n_steps];
  qsort(order, (size_t)n, sizeof(*order), fetch_compare);
  for (int i = 0; i < n; i++) {
    struct plan_interval *it = order[i];
    int link = link_of(it->source, LADE_DEVICE);
    int64_t done = LADE_MIN(next_ns[link], b->start_ns[it->first_pos]);
    next_ns[link] = done - held_ns(b, it->source, LADE_DEVICE, it->value);
    int wanted = next_ns[link] <= 0 ? 0 : pos_at(b, 0, next_ns[link] + 1) - 1;
    wanted = LADE_MAX(wanted, first_slot(b, it));
    while (it->fetch_slot > wanted && live_take(b, it->fetch_slot - 1, value_bytes(b, it->value)))
      it->fetch_slot--;
  }
}

static int slots_place(struct builder *b)
{
  struct plan_interval **order = calloc((size_t)b->intervals.n + 1, sizeof(*order));
  if (!order || timeline_make(b) || live_count(b)) {
    free(order);
    return -ENOMEM;
  }
  int n = 0;
  for (int i = 0; i < b->intervals.n; i++) {
    if (b->intervals.items[i].leave_slot >= 0)
      order[n++] = &b->intervals.items[i];
  }
  leaves_place(b, order, n);
  n = 0;
  for (int i = 0; i < b->intervals.n; i++) {
    if (b->intervals.items[i].fetch_slot >= 0)
      order[n++] = &b->intervals.items[i];
  }
  fetches_place(b, order, n);
  free(order);
  return 0;
}

static int values_cut(struct builder *b)
{
  b->first_interval = calloc((size_t)b->n_values + 1, sizeof(*b->first_interval));
  if (!b->first_interval)
    return -ENOMEM;
  for (int value = 0; value < b->n_values; value++) {
    b->first_interval[value] = b->intervals.n;
    if (!value_cut(b, value))
      return -ENOMEM;
  }
  b->first_interval[b->n_values] = b->intervals.n;
  return 0;
}

int plan_lives_create(const struct lade_build_params *params, const struct plan_step *steps, int n_steps,
                      const int32_t *update_ends, struct plan_lives *ret_lives)
{
  struct builder b = {
      .params = params, .graph = params->graph, .steps = steps, .n_steps = n_steps, .update_ends = update_ends};
  LADE_ASSERT(params->graph->n_tensors <= INT32_MAX / params->n_microbatches);
  b.n_values = params->graph->n_tensors * params->n_microbatches;
  int status = uses_collect(&b);
  if (!status)
    status = values_cut(&b);
  if (!status && params->residency->prefetch_bytes > 0)
    status = slots_place(&b);
  free(b.first_use);
  free(b.uses);
  free(b.start_ns);
  free(b.live_bytes);
  if (status) {
    free(b.first_interval);
    LADE_ARRAY_FREE(&b.intervals);
    return status;
  }
  *ret_lives = (struct plan_lives){b.intervals.items, b.first_interval, b.intervals.n, b.n_values};
  return 0;
}

void plan_lives_finish(struct plan_lives *lives)
{
  free(lives->intervals);
  free(lives->first_interval);
  *lives = (struct plan_lives){0};
}
