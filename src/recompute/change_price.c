/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The estimate of a step is the time of its busiest queue. Queues run concurrently, so a copy is free while its link
 * has time left. On a device that shares the machine's cores, a copy also takes its share of them. The price of a
 * change is its difference to each queue's time. A fraction of each transfer is charged to the compute queue on top,
 * because no schedule hides every copy. So of two changes that are free by the estimate the one that moves fewer bytes
 * wins.
 *
 * With shards a rank updates and moves its own block, and a dropped working copy is gathered again. If unit costs
 * include shards, the queue of gathers and sums counts like the others.
 *
 * The recompute cost is that of a pass over a microbatch's backward ops with the set of present values, as the
 * program's sequence makes it. As long as no value is dropped more than once, an op runs again at most once, in
 * whatever order: if a backward op, or an op that runs again, reads a dropped output of it. So one more dropped
 * value adds its own op, and the ops that this one needs: O(ops added) per price, after O(ops) for the residency.
 * Values that are dropped after each backward op need a pass per price.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "recompute/change_price.h"

#define OTHERS_SHARE 0.01 /* of the other queues' work is charged, so that it is not free if gathers take longest */
#define TRANSFER_CORES 0.25 /* cores that a transfer to the drive uses for checksums */

/* Tensors of each op, op after op, because a pass over the graph's ops would read ten times as many bytes. */
struct op_values {
  int32_t *first; /* by op, n_ops + 1 entries */
  int32_t *tensors;
};

struct lade_pricer {
  const struct lade_model_graph *graph;
  const struct lade_unit_costs *unit_costs;
  int32_t *order;       /* tensors, ordered by group */
  int32_t *group_first; /* by tensor: first index in order of its group */
  int32_t *group_n;     /* by tensor */
  int32_t *param_order; /* as above, for parameters */
  int32_t *lean_ops;    /* ops with a lean form */
  int n_lean_ops;
  bool *is_forward;     /* by tensor: a forward op makes it */
  struct op_values inputs;  /* by op: activations that must be present; not one that its lean form makes itself */
  struct op_values outputs; /* by op */
  bool *is_there;       /* scratch, by tensor */
  int32_t *dropped;     /* scratch: values made for one backward op that are dropped after each */
  int32_t *stack;
  double base_ns;       /* of the residency of lade_pricer_rebase: its recompute time */
  bool is_dropped_often; /* that residency drops some value after each backward op */
  bool *is_again;       /* by op: it runs again under that residency */
  bool *is_needed;      /* by tensor: a backward op, or an op that runs again under that residency, reads it */
};

struct group_key {
  int32_t class_id, local, unit, tensor;
};

static int key_compare(const void *x, const void *y)
{
  const struct group_key *a = x, *b = y;
  if (a->class_id != b->class_id)
    return a->class_id < b->class_id ? -1 : 1;
  if (a->local != b->local)
    return a->local < b->local ? -1 : 1;
  return (a->unit > b->unit) - (a->unit < b->unit);
}

/*
 * Group tensors. Those of a unit are made in one order for every unit of a class, so their rank in the unit identifies
 * them.
 */
static int groups_make(lade_pricer *s)
{
  const struct lade_model_graph *graph = s->graph;
  struct group_key *keys = calloc((size_t)graph->n_tensors, sizeof(*keys));
  int32_t *locals = calloc((size_t)graph->n_units, sizeof(*locals));
  if (!keys || !locals) {
    free(keys);
    free(locals);
    return -ENOMEM;
  }
  for (int i = 0; i < graph->n_tensors; i++) {
    int unit = LADE_MAX(graph->tensors[i].unit, 0);
    keys[i] = (struct group_key){graph->units[unit].class_id, locals[unit]++, unit, i};
  }
  qsort(keys, (size_t)graph->n_tensors, sizeof(*keys), key_compare);
  for (int i = 0, first = 0; i < graph->n_tensors; i++) {
    if (keys[i].class_id != keys[first].class_id || keys[i].local != keys[first].local)
      first = i;
    s->order[i] = keys[i].tensor;
    s->group_first[keys[i].tensor] = first;
    s->group_n[keys[first].tensor]++;
  }
  for (int i = 0; i < graph->n_tensors; i++)
    s->group_n[i] = s->group_n[s->order[s->group_first[i]]];
  for (int i = 0; i < graph->n_tensors; i++)
    s->param_order[i] = graph->tensors[s->order[i]].param;
  free(keys);
  free(locals);
  return 0;
}

/* Return the activation that must be present as input @i of @op, or -1. */
static int32_t input_needed(const struct lade_model_graph *graph, const struct lade_op *op, int i)
{
  const int32_t tensor = op->in[i];
  bool is_needed = tensor >= 0 && graph->tensors[tensor].kind == LADE_TENSOR_ACTIVATION &&
                   tensor != op->optional; /* the lean form makes the optional one itself */
  return is_needed ? tensor : -1;
}

/* Note lean forms, forward ops' outputs, and the tensors of each op: no residency changes these. */
static void ops_note(lade_pricer *s)
{
  int32_t n_in = 0, n_out = 0;
  for (int i_op = 0; i_op < s->graph->n_ops; i_op++) {
    const struct lade_op *op = &s->graph->ops[i_op];
    if (op->lean >= 0)
      s->lean_ops[s->n_lean_ops++] = i_op;
    s->inputs.first[i_op] = n_in;
    s->outputs.first[i_op] = n_out;
    for (int i = 0; i < op->n_in; i++) {
      const int32_t tensor = input_needed(s->graph, op, i);
      if (tensor >= 0)
        s->inputs.tensors[n_in++] = tensor;
    }
    for (int i = 0; i < op->n_out; i++) {
      if (op->out[i] < 0)
        continue;
      s->outputs.tensors[n_out++] = op->out[i];
      s->is_forward[op->out[i]] |= i_op < s->graph->n_fwd_ops;
    }
  }
  s->inputs.first[s->graph->n_ops] = n_in;
  s->outputs.first[s->graph->n_ops] = n_out;
}

static bool op_values_alloc(int n_ops, size_t n_operands, struct op_values *values)
{
  values->first = calloc((size_t)n_ops + 1, sizeof(*values->first));
  values->tensors = calloc(n_operands + 1, sizeof(*values->tensors));
  return values->first && values->tensors;
}

/* Allocate the lists of the ops' tensors. */
static bool op_lists_alloc(lade_pricer *s)
{
  size_t n_in = 0, n_out = 0;
  for (int op = 0; op < s->graph->n_ops; op++) {
    n_in += (size_t)s->graph->ops[op].n_in;
    n_out += (size_t)s->graph->ops[op].n_out;
  }
  return op_values_alloc(s->graph->n_ops, n_in, &s->inputs) && op_values_alloc(s->graph->n_ops, n_out, &s->outputs);
}

int lade_pricer_create(const struct lade_model_graph *graph, const struct lade_unit_costs *unit_costs,
                       lade_pricer **ret_pricer)
{
  size_t n = (size_t)graph->n_tensors;
  lade_pricer *s = calloc(1, sizeof(*s));
  if (!s)
    return -ENOMEM;
  s->graph = graph;
  s->unit_costs = unit_costs;
  s->order = calloc(n, sizeof(*s->order));
  s->group_first = calloc(n, sizeof(*s->group_first));
  s->group_n = calloc(n, sizeof(*s->group_n));
  s->param_order = calloc(n, sizeof(*s->param_order));
  s->lean_ops = calloc((size_t)graph->n_ops + 1, sizeof(*s->lean_ops));
  s->is_forward = calloc(n, sizeof(*s->is_forward));
  s->is_there = calloc(n, sizeof(*s->is_there));
  s->dropped = calloc(n, sizeof(*s->dropped));
  s->stack = calloc((size_t)graph->n_ops + 1, sizeof(*s->stack));
  s->is_again = calloc((size_t)graph->n_ops + 1, sizeof(*s->is_again));
  s->is_needed = calloc(n, sizeof(*s->is_needed));
  bool is_whole = s->order && s->group_first && s->group_n && s->param_order && s->lean_ops && s->is_forward &&
                  s->is_there && s->dropped && s->stack && s->is_again && s->is_needed && op_lists_alloc(s);
  int status = is_whole ? 0 : -ENOMEM;
  if (!status)
    status = groups_make(s);
  if (!status)
    ops_note(s);
  if (status) {
    lade_pricer_destroy(s);
    return status;
  }
  *ret_pricer = s;
  return 0;
}

void lade_pricer_destroy(lade_pricer *s)
{
  if (!s)
    return;
  free(s->order);
  free(s->group_first);
  free(s->group_n);
  free(s->param_order);
  free(s->lean_ops);
  free(s->is_forward);
  free(s->inputs.first);
  free(s->inputs.tensors);
  free(s->outputs.first);
  free(s->outputs.tensors);
  free(s->is_there);
  free(s->dropped);
  free(s->stack);
  free(s->is_again);
  free(s->is_needed);
  free(s);
}

const int32_t *lade_change_group(const lade_pricer *s, enum lade_change_kind kind, int32_t id, int *ret_n)
{
  const bool is_tier = kind == LADE_CHANGE_STATE || kind == LADE_CHANGE_WEIGHT;
  int tensor = is_tier ? s->graph->params[id].tensor : id;
  *ret_n = s->group_n[tensor];
  return (is_tier ? s->param_order : s->order) + s->group_first[tensor];
}

double lade_queue_times_bound_ns(const lade_pricer *s, const struct lade_queue_times *queue_times)
{
  double max = LADE_MAX(queue_times->compute_ns, queue_times->host_ns);
  max = LADE_MAX(max, LADE_MAX(queue_times->to_host_ns, queue_times->to_device_ns));
  max = LADE_MAX(max, queue_times->io_ns);
  if (s->unit_costs->n_cores <= 0)
    return max;
  double copies = s->unit_costs->copy_cores * (queue_times->to_host_ns + queue_times->to_device_ns) +
                  TRANSFER_CORES * queue_times->io_ns;
  return LADE_MAX(max, queue_times->compute_ns + queue_times->host_ns + copies / s->unit_costs->n_cores);
}

/* Return the time of a step whose updates begin after its last op: updates of different tiers run side by side. */
static double serial_ns(const struct lade_queue_times *queue_times)
{
  const double *update_ns = queue_times->update_ns;
  const double longest_ns = LADE_MAX(update_ns[LADE_TIER_DEVICE], LADE_MAX(update_ns[LADE_TIER_HOST],
                                                                          update_ns[LADE_TIER_STORE]));
  return queue_times->compute_ns - update_ns[LADE_TIER_DEVICE] + longest_ns;
}

double lade_queue_times_ns(const lade_pricer *s, const struct lade_queue_times *queue_times)
{
  const double others_ns = queue_times->compute_ns + queue_times->host_ns + queue_times->to_host_ns +
                           queue_times->to_device_ns + queue_times->io_ns;
  double max = lade_queue_times_bound_ns(s, queue_times);
  if (s->unit_costs->has_serial_updates)
    max = LADE_MAX(max, serial_ns(queue_times));
  if (s->unit_costs->n_shards > 1)
    max = LADE_MAX(max, queue_times->comm_ns) + OTHERS_SHARE * others_ns;
  return max;
}

struct lade_queue_times lade_queue_times_sum(const struct lade_queue_times *queue_times,
                                             const struct lade_queue_times *added, int times)
{
  struct lade_queue_times sum = *queue_times;
  sum.compute_ns += times * added->compute_ns;
  sum.to_host_ns += times * added->to_host_ns;
  sum.to_device_ns += times * added->to_device_ns;
  sum.io_ns += times * added->io_ns;
  sum.host_ns += times * added->host_ns;
  sum.comm_ns += times * added->comm_ns;
  for (int tier = 0; tier < 3; tier++)
    sum.update_ns[tier] += times * added->update_ns[tier];
  return sum;
}

/* True if a value of this choice is recomputed, and dropped again after each backward op. */
static bool is_often(struct lade_choice choice)
{
  return choice.saved == LADE_RESIDENCY_RECOMPUTE && choice.spill == LADE_RESIDENCY_RECOMPUTE;
}

/* Note the outputs of @op as present. Return the number of dropped values, of which @n were noted before. */
static int op_run(lade_pricer *s, const struct lade_residency *residency, int op, int n)
{
  for (int i = s->outputs.first[op]; i < s->outputs.first[op + 1]; i++) {
    const int32_t tensor = s->outputs.tensors[i];
    s->is_there[tensor] = true;
    if (is_often(residency->choices[tensor]))
      s->dropped[n++] = tensor;
  }
  return n;
}

static int producer_missing(const lade_pricer *s, int op)
{
  for (int i = s->inputs.first[op]; i < s->inputs.first[op + 1]; i++) {
    if (!s->is_there[s->inputs.tensors[i]])
      return s->graph->tensors[s->inputs.tensors[i]].producer;
  }
  return -1;
}

/* Return the extra time of the lean form of @op. */
static double lean_ns(const lade_pricer *s, int op)
{
  return (double)(s->unit_costs->op_ns[s->graph->ops[op].lean] - s->unit_costs->op_ns[op]);
}

static double lean_forms_ns(const lade_pricer *s, const struct lade_residency *residency)
{
  double ns = 0;
  for (int i = 0; i < s->n_lean_ops; i++)
    ns += lade_residency_is_lean(s->graph, residency, s->lean_ops[i]) ? lean_ns(s, s->lean_ops[i]) : 0;
  return ns;
}

double lade_pricer_recompute_ns(lade_pricer *s, const struct lade_residency *residency)
{
  const struct lade_model_graph *graph = s->graph;
  double ns = lean_forms_ns(s, residency);
  memcpy(s->is_there, s->is_forward, (size_t)graph->n_tensors * sizeof(*s->is_there));
  for (int i = 0; i < graph->n_tensors; i++)
    s->is_there[i] &= residency->choices[i].saved != LADE_RESIDENCY_RECOMPUTE;
  for (int op = graph->n_fwd_ops; op < graph->n_ops; op++) {
    int depth = 0, n_dropped = 0;
    s->stack[depth++] = op;
    while (depth) {
      int producer = producer_missing(s, s->stack[depth - 1]);
      if (producer >= 0) {
        s->stack[depth++] = producer;
        continue;
      }
      depth--;
      n_dropped = op_run(s, residency, s->stack[depth], n_dropped);
      if (depth)
        ns += (double)s->unit_costs->op_ns[s->stack[depth]];
    }
    for (int i = 0; i < n_dropped; i++)
      s->is_there[s->dropped[i]] = false;
  }
  return ns;
}

/* Let the dropped inputs of @op be made again: push their ops on the stack of @n. Return its new number. */
static int inputs_require(lade_pricer *s, const struct lade_residency *residency, int op, int n)
{
  for (int i = s->inputs.first[op]; i < s->inputs.first[op + 1]; i++) {
    const int32_t tensor = s->inputs.tensors[i];
    if (!s->is_forward[tensor] || residency->choices[tensor].saved != LADE_RESIDENCY_RECOMPUTE)
      continue;
    const int32_t producer = s->graph->tensors[tensor].producer;
    if (!s->is_again[producer])
      s->stack[n++] = producer;
    s->is_again[producer] = true;
  }
  return n;
}

void lade_pricer_rebase(lade_pricer *s, const struct lade_residency *residency)
{
  const struct lade_model_graph *graph = s->graph;
  int n = 0;
  s->is_dropped_often = false;
  for (int i = 0; i < graph->n_tensors; i++)
    s->is_dropped_often |= is_often(residency->choices[i]);
  s->base_ns = s->is_dropped_often ? lade_pricer_recompute_ns(s, residency) : lean_forms_ns(s, residency);
  memset(s->is_again, 0, (size_t)graph->n_ops * sizeof(*s->is_again));
  memset(s->is_needed, 0, (size_t)graph->n_tensors * sizeof(*s->is_needed));
  for (int op = graph->n_fwd_ops; op < graph->n_ops; op++)
    n = inputs_require(s, residency, op, n);
  for (int i = 0; i < n; i++) {
    s->base_ns += s->is_dropped_often ? 0 : (double)s->unit_costs->op_ns[s->stack[i]];
    n = inputs_require(s, residency, s->stack[i], n);
  }
  for (int op = 0; op < graph->n_ops; op++) {
    for (int i = s->inputs.first[op]; i < s->inputs.first[op + 1] && (op >= graph->n_fwd_ops || s->is_again[op]); i++)
      s->is_needed[s->inputs.tensors[i]] = true;
  }
}

/* Return the recompute time per microbatch that is added if @tensor, which is kept, is made again instead. */
static double saved_drop_ns(lade_pricer *s, const struct lade_residency *residency, int32_t tensor)
{
  const int32_t producer = s->graph->tensors[tensor].producer;
  double ns = 0;
  int n = 0;
  for (int i = 0; i < s->n_lean_ops; i++) {
    if (s->graph->ops[s->lean_ops[i]].optional == tensor)
      ns += lean_ns(s, s->lean_ops[i]);
  }
  if (s->is_needed[tensor] && s->is_forward[tensor] && !s->is_again[producer]) {
    s->is_again[producer] = true;
    s->stack[n++] = producer;
  }
  for (int i = 0; i < n; i++) {
    ns += (double)s->unit_costs->op_ns[s->stack[i]];
    n = inputs_require(s, residency, s->stack[i], n);
  }
  for (int i = 0; i < n; i++)
    s->is_again[s->stack[i]] = false;
  return ns;
}

void lade_change_apply(const struct lade_change *change, struct lade_residency *residency)
{
  const int id = change->id;
  const enum lade_tier to = (enum lade_tier)change->to;
  switch ((enum lade_change_kind)change->kind) {
  case LADE_CHANGE_STATE:
    lade_residency_set_tiers(residency, id, LADE_MIN((enum lade_tier)residency->weight_tiers[id], to), to);
    break;
  case LADE_CHANGE_WEIGHT:
    lade_residency_set_tiers(residency, id, to, LADE_MAX((enum lade_tier)residency->state_tiers[id], to));
    break;
  case LADE_CHANGE_SPILL:
    residency->choices[id].spill = change->to;
    break;
  default:
    residency->choices[id].saved = change->to;
    break;
  }
}

/* Add a copy out and a copy in of @bytes, per microbatch. */
static void round_trip_add(const lade_pricer *s, bool is_store, double bytes, bool is_out, bool is_in,
                           struct lade_queue_times *queue_times)
{
  const struct lade_unit_costs *t = s->unit_costs;
  double out_ns = is_out ? bytes * (is_store ? t->write_ns : t->to_host_ns) : 0;
  double in_ns = is_in ? bytes * (is_store ? t->read_ns : t->to_device_ns) : 0;
  if (is_store)
    queue_times->io_ns += out_ns + in_ns;
  else {
    queue_times->to_host_ns += out_ns;
    queue_times->to_device_ns += in_ns;
  }
  queue_times->compute_ns += s->unit_costs->exposed_fraction * (out_ns + in_ns);
}

/* Add the cost of updating this rank's block of @param with these tiers, @sign times; and the copies it needs. */
static void update_add(const struct lade_pricer *s, int param, enum lade_tier weight, enum lade_tier state, double sign,
                       struct lade_queue_times *queue_times)
{
  const struct lade_unit_costs *t = s->unit_costs;
  const bool is_near = state == LADE_TIER_STORE && weight != LADE_TIER_STORE;
  sign /= t->n_shards;
  const double ns = sign * (double)(is_near ? t->update_near_ns : t->update_ns[state])[param];
  const struct lade_tensor *grad = &s->graph->tensors[s->graph->params[param].grad];
  const size_t n = grad->bytes / lade_dtype_bytes(grad->dtype);
  const double grad_bytes = (double)(n * lade_dtype_bytes(s->graph->grad_dtype));
  const double weight_bytes = (double)s->graph->tensors[s->graph->params[param].tensor].bytes;
  queue_times->update_ns[state] += ns;
  if (state == LADE_TIER_DEVICE)
    queue_times->compute_ns += ns;
  else if (state == LADE_TIER_HOST)
    queue_times->host_ns += ns;
  else
    queue_times->io_ns += ns;
  /* An update off the device runs after the backward half, where no compute overlaps it. */
  if (state != LADE_TIER_DEVICE && !t->has_serial_updates)
    queue_times->compute_ns += t->exposed_fraction * ns;
  if (state == LADE_TIER_HOST)
    round_trip_add(s, false, sign * grad_bytes, true, false, queue_times);
  if (weight == LADE_TIER_DEVICE && state != LADE_TIER_DEVICE && !t->is_unified)
    round_trip_add(s, false, sign * weight_bytes, true, true, queue_times);
  if (weight != LADE_TIER_DEVICE)
    round_trip_add(s, weight == LADE_TIER_STORE, sign * weight_bytes, false, true, queue_times);
}

static void state_tier_price(const struct lade_pricer *s, struct lade_residency *residency,
                             const struct lade_change *change, struct lade_queue_times *added)
{
  const int id = change->id;
  const enum lade_tier weight = (enum lade_tier)residency->weight_tiers[id];
  const enum lade_tier state = (enum lade_tier)residency->state_tiers[id];
  update_add(s, id, weight, state, -1, added);
  lade_change_apply(change, residency);
  update_add(s, id, (enum lade_tier)residency->weight_tiers[id], (enum lade_tier)residency->state_tiers[id], 1, added);
  lade_residency_set_tiers(residency, id, weight, state);
}

/* Add one more gather of a sharded working copy per microbatch; its block is first copied in from @tier. */
static void gathers_add(const struct lade_pricer *s, enum lade_tier tier, double bytes,
                        struct lade_queue_times *queue_times)
{
  const struct lade_unit_costs *t = s->unit_costs;
  const double m = t->n_microbatches, gather_ns = m * (t->gather_latency_ns + bytes * t->gather_ns);
  queue_times->comm_ns += gather_ns;
  queue_times->compute_ns += t->exposed_fraction * gather_ns;
  if (tier != LADE_TIER_DEVICE)
    round_trip_add(s, tier == LADE_TIER_STORE, m * bytes / t->n_shards, false, true, queue_times);
}

/* Return the change of the recompute time of a microbatch by @change, by a pass over all of it. */
static double recompute_change_ns(lade_pricer *s, struct lade_residency *residency, const struct lade_change *change)
{
  const struct lade_choice before = residency->choices[change->id];
  lade_change_apply(change, residency);
  const double ns = lade_pricer_recompute_ns(s, residency) - s->base_ns;
  residency->choices[change->id] = before;
  return ns;
}

struct lade_queue_times lade_change_price(lade_pricer *s, struct lade_residency *residency,
                                          const struct lade_change *change)
{
  struct lade_queue_times added = {0};
  const double m = s->unit_costs->n_microbatches;
  if (lade_change_is_tier(change)) {
    state_tier_price(s, residency, change, &added);
    return added;
  }
  const struct lade_tensor *tensor = &s->graph->tensors[change->id];
  if (tensor->kind == LADE_TENSOR_PARAM && s->unit_costs->n_shards > 1) {
    gathers_add(s, (enum lade_tier)residency->weight_tiers[tensor->param], (double)tensor->bytes, &added);
    return added;
  }
  if (change->to != LADE_RESIDENCY_RECOMPUTE) {
    bool is_clean = tensor->kind == LADE_TENSOR_PARAM || lade_tensor_is_data(tensor);
    bool is_block = tensor->kind == LADE_TENSOR_GRAD && change->kind == LADE_CHANGE_SAVED;
    const double bytes = (double)tensor->bytes / (is_block ? s->unit_costs->n_grad_shards : 1);
    round_trip_add(s, change->to == LADE_RESIDENCY_STORE, m * bytes, !is_clean, true, &added);
    if (change->kind == LADE_CHANGE_SAVED && residency->choices[change->id].saved == LADE_RESIDENCY_RECOMPUTE)
      added.compute_ns += m * recompute_change_ns(s, residency, change);
    return added;
  }
  const struct lade_choice before = residency->choices[change->id];
  if (change->kind == LADE_CHANGE_SAVED && before.saved == LADE_RESIDENCY_KEEP && !s->is_dropped_often &&
      before.spill != LADE_RESIDENCY_RECOMPUTE) {
    added.compute_ns = m * saved_drop_ns(s, residency, change->id);
    return added;
  }
  added.compute_ns = m * recompute_change_ns(s, residency, change);
  return added;
}
