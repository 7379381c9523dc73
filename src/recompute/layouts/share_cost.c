/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The units of a share: one layer between an embedding and a head, in the program's order and at its prices.
 *
 * plan_sequence gives the steps of one microbatch, recomputed ops included. They run on two queues, as in a program:
 * kernels on one, tensor parallel collectives on the other, each step after its inputs. Queues meet at the ends of a
 * unit's halves, because layers pass one value on and the next layer begins with it. So a unit's halves have times that
 * add up over layers.
 *
 * A job may overlap tensor parallel collectives, as no program of Lade does and Megatron-LM's --tp-comm-overlap does. A
 * gather, and the product that reads it, are cut into one piece for each rank, as are a product and the scatter behind
 * it. The collective of one piece runs beside the product of another: of C and P for t ranks, C - P (t - 1)/t of the
 * collective remain, and at least one piece. The rest slows the product down by the multiprocessors that it takes.
 *
 * PyTorch without a compiler overlaps less than a program: its all-reduces run beside no kernel.
 *
 * A kernel cannot start before the host has launched it, and the host runs ahead of the device within a step. So both
 * halves of a unit together take at least the host's time for its launches, recompute included: lade_cost_launches
 * kernels of host_op_ns each. A program of Lade launches from C, which takes less than launch_ns.
 *
 * Memory. A forward value that a backward step reads before it is made again is saved. The peak of the backward half
 * counts all values from the step that makes them to the last one that reads them. Its lower bound counts no value that
 * returns from the host, and lets outputs take their inputs' places. No program of the layer holds less at that step,
 * because a program's live ranges contain these.
 *
 * Host. A saved value that waits in host memory is copied out beside the forward half of its unit and in beside the
 * backward half: a half takes at least the time of its copies. Copies in fill the memory of a unit's values before its
 * backward half, and that of the unit before it, whose copies are under way. A value that waits on drives is copied so
 * too, and written and read by this device's share of them.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "program/build.h"
#include "recompute/layouts/share_internal.h"

/*
 * Part of a copy's time that no schedule hides, as the residency planner charges it (plan.c).
 */
#define COPY_EXPOSED 0.05
#define COPIES_AHEAD 3 /* layers whose copies are under way: with fewer a program waits for them (tested) */

struct share_walk {
  const struct lade_model_graph *graph;
  const struct lade_cost *cost;
  const struct lade_residency *residency;
  const struct lade_prices *prices;
  const struct plan_step *steps;
  int n_steps;
  double *ready_ns;  /* by tensor */
  int32_t *made_at;  /* by tensor: the last step that made it, before the step that is looked at; -1: none */
  int32_t *last_use; /* by step and output: the last step that reads this making of the value */
  bool *is_saved;    /* by tensor, to be filled; NULL: unasked */
  double host_ns_per_byte; /* of host memory */
  int n_overlapping; /* ranks whose collectives run beside products; 0: they do not */
  bool stops_early;  /* full recompute leaves out ops whose results no backward op reads */
  double host_op_ns; /* of the host, to launch a kernel; 0: never the longer time */
  double n_stored;   /* values of the layer that wait on drives */
  double host_ns[N_SHARE_UNITS][2]; /* of the host, to launch all kernels of a unit's halves */
};

/* Return the op of step @at, without optional operands. */
static const struct lade_op *op_at(const struct share_walk *walk, int at)
{
  const struct lade_op *op = &walk->graph->ops[walk->steps[at].op];
  return op->lean < 0 ? op : &walk->graph->ops[op->lean];
}

static double op_ns_at(const struct share_walk *walk, int at)
{
  return (double)walk->prices->op_ns[op_at(walk, at) - walk->graph->ops];
}

static bool is_weights_step(const struct lade_model_graph *graph, const struct lade_op *op)
{
  bool is_grad = op->n_out > 0;
  for (int i = 0; i < op->n_out; i++)
    is_grad &= op->out[i] < 0 || graph->tensors[op->out[i]].kind == LADE_TENSOR_GRAD;
  return is_grad;
}

/* ---- time ---- */

struct queue_pair {
  double now_ns[2]; /* kernels, collectives */
};

static bool is_product(enum lade_op_kind kind)
{
  return kind == LADE_OP_MATMUL || kind == LADE_OP_MATMUL_GELU || kind == LADE_OP_MATMUL_DX ||
         kind == LADE_OP_MATMUL_GELU_BWD || kind == LADE_OP_MATMUL_DW;
}

/* Return the step of the product that reads the gather, or makes the input of the scatter, of step @at; -1: none. */
static int partner_find(const struct share_walk *walk, int at)
{
  const struct lade_op *op = op_at(walk, at);
  const bool is_gather = op->kind == LADE_OP_ALL_GATHER;
  if (!is_gather && op->kind != LADE_OP_REDUCE_SCATTER)
    return -1;
  for (int near = is_gather ? at + 1 : at - 1; near >= 0 && near < walk->n_steps; near += is_gather ? 1 : -1) {
    const struct lade_op *other = op_at(walk, near);
    bool is_partner = false;
    for (int i = 0; i < (is_gather ? other->n_in : other->n_out); i++)
      is_partner |= is_gather ? other->in[i] == op->out[0] : other->out[i] == op->in[0];
    if (is_partner)
      return is_product(other->kind) ? near : -1;
  }
  return -1;
}

/*
 * Return the time of step @at: of a collective, the part that does not run beside its product, and the time that the
 * other part adds to this.
 */
static double step_ns(const struct share_walk *walk, int at)
{
  const double ns = op_ns_at(walk, at);
  const int t = walk->n_overlapping, partner = t ? partner_find(walk, at) : -1;
  if (partner < 0)
    return ns;
  const double exposed_ns = LADE_MAX(ns - op_ns_at(walk, partner) * (t - 1) / t, ns / t);
  return exposed_ns + OVERLAP_SHARE * (ns - exposed_ns);
}

/*
 * True if no kernel runs beside @op, a collective: autograd computes both gradients of a linear layer as one node, and
 * the sum of its input's over ranks is the next one. Megatron-LM's own linear layers start that sum in between.
 */
static bool collective_runs_alone(const struct share_walk *walk, const struct lade_op *op)
{
  return walk->cost->is_eager && op->kind == LADE_OP_ALL_REDUCE;
}

/* Run step @at on its queue, after its inputs. Return the time that its queue waited for collectives. */
static double step_run(struct share_walk *walk, struct queue_pair *queues, int at)
{
  const struct lade_op *op = op_at(walk, at);
  const bool is_alone = collective_runs_alone(walk, op);
  const int queue = lade_op_is_collective(op->kind) && !is_alone;
  double start_ns = queues->now_ns[queue];
  for (int i = 0; i < op->n_in; i++) {
    if (op->in[i] >= 0)
      start_ns = LADE_MAX(start_ns, walk->ready_ns[op->in[i]]);
  }
  const double waited_ns = queue == 0 ? start_ns - queues->now_ns[0] + (is_alone ? step_ns(walk, at) : 0) : 0;
  queues->now_ns[queue] = start_ns + step_ns(walk, at);
  for (int i = 0; i < op->n_out; i++) {
    if (op->out[i] >= 0)
      walk->ready_ns[op->out[i]] = queues->now_ns[queue];
  }
  return waited_ns;
}

/* True if step @at is the last one of a half of its unit. */
static bool ends_half(const struct share_walk *walk, int at)
{
  const struct plan_step *step = &walk->steps[at], *next = at + 1 < walk->n_steps ? step + 1 : NULL;
  return !next || walk->graph->ops[next->op].unit != walk->graph->ops[step->op].unit ||
         next->is_backward != step->is_backward;
}

/* Return the host's time to launch the kernels of @op. */
static double launches_ns(const struct share_walk *walk, int op)
{
  return walk->host_op_ns * lade_cost_launches(walk->cost, walk->graph, op);
}

/* Return the part of the time of @op, a collective, in which no byte moves. */
static double empty_ns(const struct share_walk *walk, const struct lade_op *op)
{
  const bool is_sum = op->kind == LADE_OP_ALL_REDUCE;
  return lade_transfer_ns(&(is_sum ? walk->prices->comm_sum : walk->prices->comm)[op->attr.axis], 1, 0);
}

/* Fill the times of all units. */
static void times_fill(struct share_walk *walk, struct lade_unit_cost *units)
{
  struct queue_pair queues = {{0, 0}};
  double begin_ns = 0;
  for (int at = 0; at < walk->n_steps; at++) {
    const struct plan_step *step = &walk->steps[at];
    const struct lade_op *op = op_at(walk, at);
    struct lade_unit_cost *unit = &units[op->unit];
    unit->exposed_ns += step_run(walk, &queues, at);
    if (lade_op_is_collective(op->kind))
      unit->tensor_ns[step->is_backward] += LADE_MAX(op_ns_at(walk, at) - empty_ns(walk, op), 0);
    if (op->kind == LADE_OP_ATTENTION || op->kind == LADE_OP_ATTENTION_BWD)
      unit->attention_ns[step->is_backward] += (double)walk->prices->op_ns[step->op];
    if (is_weights_step(walk->graph, op))
      unit->weights_ns += op_ns_at(walk, at);
    walk->host_ns[op->unit][step->is_backward] += launches_ns(walk, step->op);
    if (!ends_half(walk, at))
      continue;
    const double end_ns = LADE_MAX(queues.now_ns[0], queues.now_ns[1]);
    unit->exposed_ns += end_ns - queues.now_ns[0];
    *(step->is_backward ? &unit->backward_ns : &unit->forward_ns) += end_ns - begin_ns;
    queues = (struct queue_pair){{end_ns, end_ns}};
    begin_ns = end_ns;
  }
}

/*
 * Fill the times by which the backward halves without weights' gradients exceed the difference: collectives run beside
 * those gradients, and beside nothing where a schedule gives them a slot of their own.
 */
static void unhidden_fill(struct share_walk *walk, struct lade_unit_cost *units)
{
  struct queue_pair queues = {{0, 0}};
  for (int at = 0; at < walk->n_steps; at++) {
    struct lade_unit_cost *unit = &units[op_at(walk, at)->unit];
    if (!is_weights_step(walk->graph, op_at(walk, at)))
      step_run(walk, &queues, at);
    if (!ends_half(walk, at))
      continue;
    const double inputs_ns = LADE_MAX(queues.now_ns[0], queues.now_ns[1]);
    if (walk->steps[at].is_backward)
      unit->unhidden_ns = LADE_MAX(inputs_ns - (unit->backward_ns - unit->weights_ns), 0);
    queues = (struct queue_pair){{0, 0}};
    memset(walk->ready_ns, 0, (size_t)walk->graph->n_tensors * sizeof(*walk->ready_ns));
  }
}

/* Make both halves of each unit together as long as the host takes to launch them. The shorter halves grow. */
static void host_wait(const struct share_walk *walk, struct lade_unit_cost *units)
{
  for (int unit = 0; unit < N_SHARE_UNITS; unit++) {
    const double *host_ns = walk->host_ns[unit];
    double *halves_ns[] = {&units[unit].forward_ns, &units[unit].backward_ns}, lacks_ns[2];
    for (int half = 0; half < 2; half++)
      lacks_ns[half] = LADE_MAX(host_ns[half] - *halves_ns[half], 0);
    const double wait_ns = host_ns[0] + host_ns[1] - *halves_ns[0] - *halves_ns[1];
    for (int half = 0; half < 2 && wait_ns > 0; half++)
      *halves_ns[half] += wait_ns * lacks_ns[half] / (lacks_ns[0] + lacks_ns[1]);
  }
}

/*
 * Add the forward ops of the layer that the backward half does not run again. Frameworks rerun the whole layer under
 * full recompute; the program leaves out ops whose results no backward op reads, the last product above all.
 */
static void rerun_add(struct share_walk *walk, bool *is_rerun, struct lade_unit_cost *units)
{
  for (int at = 0; at < walk->n_steps; at++)
    is_rerun[walk->steps[at].op] |= walk->steps[at].is_recompute;
  for (int op = 0; op < walk->graph->n_fwd_ops; op++) {
    if (walk->graph->ops[op].unit != SHARE_LAYER || is_rerun[op])
      continue;
    units[SHARE_LAYER].skipped_ns += (double)walk->prices->op_ns[op];
    walk->host_ns[SHARE_LAYER][1] += launches_ns(walk, op);
  }
  units[SHARE_LAYER].backward_ns += units[SHARE_LAYER].skipped_ns;
}

/* ---- memory ---- */

static bool is_activation(const struct share_walk *walk, int tensor)
{
  return tensor >= 0 && walk->graph->tensors[tensor].kind == LADE_TENSOR_ACTIVATION;
}

/* Return the bytes of @unit that count @tensor, because it waits in host memory or on drives; NULL: on the device. */
static double *away_bytes(const struct share_walk *walk, int tensor, struct lade_unit_cost *unit)
{
  const int policy = walk->residency->choices[tensor].saved;
  return policy == LADE_RESIDENCY_HOST ? &unit->host_bytes : policy == LADE_RESIDENCY_STORE ? &unit->store_bytes : NULL;
}

/* Find the last reader of each making of each value; outputs that no step reads are read by their maker. */
static void uses_find(struct share_walk *walk)
{
  for (int tensor = 0; tensor < walk->graph->n_tensors; tensor++)
    walk->made_at[tensor] = -1;
  for (int at = 0; at < walk->n_steps; at++) {
    const struct lade_op *op = op_at(walk, at);
    for (int i = 0; i < op->n_in; i++) {
      const int made = op->in[i] < 0 ? -1 : walk->made_at[op->in[i]];
      for (int o = 0; made >= 0 && o < LADE_OP_MAX_OUT; o++) {
        if (walk->graph->ops[walk->steps[made].op].out[o] == op->in[i] &&
            o < walk->graph->ops[walk->steps[made].op].n_out)
          walk->last_use[made * LADE_OP_MAX_OUT + o] = at;
      }
    }
    for (int i = 0; i < op->n_out; i++) {
      walk->last_use[at * LADE_OP_MAX_OUT + i] = at;
      if (op->out[i] >= 0)
        walk->made_at[op->out[i]] = at;
    }
  }
}

static int first_backward(const struct share_walk *walk)
{
  int at = 0;
  while (at < walk->n_steps && !walk->steps[at].is_backward)
    at++;
  return at;
}

/* Return the first step of the backward half of each unit; n_steps: it has none. */
static void backward_begins(const struct share_walk *walk, int *ret_begins)
{
  for (int unit = 0; unit < N_SHARE_UNITS; unit++)
    ret_begins[unit] = walk->n_steps;
  for (int at = walk->n_steps - 1; at >= 0 && walk->steps[at].is_backward; at--)
    ret_begins[walk->graph->ops[walk->steps[at].op].unit] = at;
}

/* Live bytes that begin at a step, less those that end before it. */
struct live_change {
  double bytes, bound_bytes; /* the bound: values that return from the host are not counted */
};

/* Count a value that step @at makes, and that @last reads last. */
static void value_count(struct share_walk *walk, int at, int last, int tensor, const int *begins,
                        struct live_change *change, struct lade_unit_cost *units)
{
  const int middle = first_backward(walk), unit = op_at(walk, at)->unit;
  const double bytes = (double)walk->graph->tensors[tensor].bytes;
  const bool is_saved = at < middle && last >= middle;
  change[last + 1].bytes -= bytes;
  double *away = is_saved ? away_bytes(walk, tensor, &units[unit]) : NULL;
  if (away) {
    *away += bytes;
    walk->n_stored += away == &units[SHARE_LAYER].store_bytes;
    if (away == &units[unit].store_bytes)
      units[unit].store_max_bytes = LADE_MAX(units[unit].store_max_bytes, bytes);
    change[LADE_MIN(begins[unit], last)].bytes += bytes;
    return;
  }
  change[last + 1].bound_bytes -= bytes;
  change[at].bytes += bytes;
  change[at].bound_bytes += bytes;
  units[unit].saved_bytes += is_saved ? bytes : 0;
  if (walk->is_saved)
    walk->is_saved[tensor] |= is_saved;
}

/* Return the bytes of outputs of step @at that may take an input's place. */
static double alias_bytes(const struct share_walk *walk, int at)
{
  const struct lade_op *op = op_at(walk, at);
  double bytes = 0;
  for (int i = 0; i < op->n_out; i++)
    bytes += is_activation(walk, op->out[i]) && op->alias[i] >= 0 ? (double)walk->graph->tensors[op->out[i]].bytes : 0;
  return bytes;
}

/*
 * Return the bytes beside activations that step @at needs on a device under ZeRO stage @zero: under 2 and 3 the whole
 * gradients that it makes, in the type of sums; under 3 the gathered parameters that it reads.
 */
static double shard_bytes(const struct share_walk *walk, int at, int zero)
{
  const struct lade_op *op = op_at(walk, at);
  double bytes = 0;
  for (int i = 0; i < op->n_out && zero >= 2; i++) {
    if (op->out[i] >= 0 && walk->graph->tensors[op->out[i]].kind == LADE_TENSOR_GRAD)
      bytes += (double)walk->graph->tensors[op->out[i]].bytes;
  }
  for (int i = 0; i < op->n_in && zero >= 3; i++) {
    if (op->in[i] >= 0 && walk->graph->tensors[op->in[i]].kind == LADE_TENSOR_PARAM)
      bytes += (double)walk->graph->tensors[op->in[i]].bytes;
  }
  return bytes;
}

/*
 * Raise the lower bounds of @unit's peak by step @at of its backward half, with @beyond_bytes live beyond saved values.
 * An output that may take an input's place does.
 */
static void peak_bounds_fill(const struct share_walk *walk, int at, double beyond_bytes, struct lade_unit_cost *unit)
{
  const double bound_bytes = beyond_bytes - alias_bytes(walk, at) + (double)op_at(walk, at)->workspace_bytes;
  for (int zero = 0; zero <= LADE_ZERO_MAX; zero++)
    unit->bound_peak_bytes[zero] = LADE_MAX(unit->bound_peak_bytes[zero], bound_bytes + shard_bytes(walk, at, zero));
}

/*
 * Fill saved bytes by the unit that makes them, and each unit's peak. An alias lets an output take an input's place;
 * the walk counts both, so it never states too little.
 */
static int memory_fill(struct share_walk *walk, struct lade_unit_cost *units)
{
  const int middle = first_backward(walk);
  struct live_change *change = calloc((size_t)walk->n_steps + 2, sizeof(*change)), live = {0, 0};
  int begins[N_SHARE_UNITS];
  if (!change)
    return -ENOMEM;
  backward_begins(walk, begins);
  for (int at = 0; at < walk->n_steps; at++) {
    const struct lade_op *op = op_at(walk, at);
    for (int i = 0; i < op->n_out; i++) {
      if (is_activation(walk, op->out[i]))
        value_count(walk, at, walk->last_use[at * LADE_OP_MAX_OUT + i], op->out[i], begins, change, units);
    }
    change[at].bytes += (double)op->workspace_bytes;
    change[at + 1].bytes -= (double)op->workspace_bytes;
  }
  const double saved = units[SHARE_EMBED].saved_bytes + units[SHARE_LAYER].saved_bytes;
  for (int at = 0; at < walk->n_steps; at++) {
    struct lade_unit_cost *unit = &units[walk->graph->ops[walk->steps[at].op].unit];
    live.bytes += change[at].bytes;
    live.bound_bytes += change[at].bound_bytes;
    if (at < middle)
      continue;
    unit->peak_bytes = LADE_MAX(unit->peak_bytes, live.bytes - saved);
    peak_bounds_fill(walk, at, live.bound_bytes - saved, unit);
  }
  for (int unit = SHARE_LAYER; unit <= SHARE_HEAD; unit++)
    units[unit].peak_bytes += COPIES_AHEAD * (units[SHARE_LAYER].host_bytes + units[SHARE_LAYER].store_bytes);
  free(change);
  return 0;
}

/*
 * Return the time that copies of @copies_ns add to a half of @half_ns, @tensor_ns of it tensor parallel collectives,
 * where both share the device's link to the host: collectives slow down while copies run beside them.
 */
static double copies_delay_ns(const struct share_walk *walk, double tensor_ns, double half_ns, double copies_ns)
{
  const struct lade_link_shares copy = {{[LADE_LINK_HOST] = 1}};
  const double slowdown = lade_links_slowdown(&copy, &walk->prices->comm_shares[LADE_AXIS_TP]);
  return half_ns > 0 ? (slowdown - 1) * tensor_ns * LADE_MIN(copies_ns / half_ns, 1) : 0;
}

/*
 * Make both halves of a layer as long as its drives take for its values. They are written beside the forward half and
 * read beside the backward half, one after another, while others are copied. Each pays its latency, because its step
 * makes it shortly before. The values of the last layer come back at once: the head hides no more of that than its own
 * time.
 */
static void drives_wait(const struct share_walk *walk, struct lade_unit_cost *layer, struct lade_unit_cost *head)
{
  const double out_ns = lade_transfer_ns(&walk->prices->write, walk->n_stored, layer->store_bytes);
  const double in_ns = lade_transfer_ns(&walk->prices->read, walk->n_stored, layer->store_bytes);
  layer->forward_ns = LADE_MAX(layer->forward_ns, out_ns) + COPY_EXPOSED * out_ns;
  layer->backward_ns = LADE_MAX(layer->backward_ns, in_ns) + COPY_EXPOSED * in_ns;
  head->backward_ns = LADE_MAX(head->backward_ns, out_ns + in_ns - head->forward_ns);
}

/*
 * Add the copies of each unit's values on the host to its halves; those on drives pass the host. Both together take at
 * least the time that this device's share of host memory needs for them.
 */
static void copies_add(const struct share_walk *walk, struct lade_unit_cost *units)
{
  for (int i = 0; i < N_SHARE_UNITS; i++) {
    struct lade_unit_cost *unit = &units[i];
    const double bytes = unit->host_bytes + unit->store_bytes;
    const double out_ns = bytes * walk->prices->to_host.ns_per_byte;
    const double in_ns = bytes * walk->prices->to_device.ns_per_byte;
    unit->forward_ns = LADE_MAX(unit->forward_ns, out_ns) + COPY_EXPOSED * out_ns +
                       copies_delay_ns(walk, unit->tensor_ns[0], unit->forward_ns, out_ns);
    unit->backward_ns = LADE_MAX(unit->backward_ns, in_ns) + COPY_EXPOSED * in_ns +
                        copies_delay_ns(walk, unit->tensor_ns[1], unit->backward_ns, in_ns);
    unit->backward_ns = LADE_MAX(unit->backward_ns, 2 * bytes * walk->host_ns_per_byte - unit->forward_ns);
  }
  if (units[SHARE_LAYER].store_bytes > 0)
    drives_wait(walk, &units[SHARE_LAYER], &units[SHARE_HEAD]);
}

/*
 * Count the flops that run again. Attention's op counts the half of the square that causality leaves; the whole counts
 * here, as in lade_step_flops.
 */
static void again_count(const struct share_walk *walk, struct lade_unit_cost *units)
{
  for (int at = 0; at < walk->n_steps; at++) {
    const struct lade_op *op = op_at(walk, at);
    if (walk->steps[at].is_recompute)
      units[op->unit].again_flops += op->flops * (op->kind == LADE_OP_ATTENTION ? 2 : 1);
  }
}

/* Uses of a value that keep it on the device until weights' gradients read it, and that it has been counted. */
enum { USED_BACKWARD = 1, USED_COUNTED = 2 };

/*
 * Mark the values that a backward op which is not of weights reads or makes. Between that op and weights' gradients of
 * the same microbatch no residency moves a value (gap_space in liveness.c) or makes it again (sequence.c).
 */
static void backward_mark(const struct share_walk *walk, uint8_t *used)
{
  for (int at = 0; at < walk->n_steps; at++) {
    const struct lade_op *op = op_at(walk, at);
    if (!walk->steps[at].is_backward || walk->steps[at].is_recompute || is_weights_step(walk->graph, op))
      continue;
    for (int i = 0; i < op->n_in + op->n_out; i++) {
      const int tensor = i < op->n_in ? op->in[i] : op->out[i - op->n_in];
      if (tensor >= 0)
        used[tensor] |= USED_BACKWARD;
    }
  }
}

/* Fill the bytes that wait for weights' gradients, and a lower bound of them: each value once. */
static int weights_fill(const struct share_walk *walk, struct lade_unit_cost *units)
{
  uint8_t *used = calloc((size_t)walk->graph->n_tensors + 1, sizeof(*used));
  if (!used)
    return -ENOMEM;
  backward_mark(walk, used);
  for (int at = 0; at < walk->n_steps; at++) {
    const struct lade_op *op = op_at(walk, at);
    for (int i = 0; i < op->n_in && is_weights_step(walk->graph, op); i++) {
      const int tensor = op->in[i];
      if (!is_activation(walk, tensor) || used[tensor] & USED_COUNTED)
        continue;
      const bool is_kept = walk->residency->choices[tensor].saved == LADE_RESIDENCY_KEEP;
      const double bytes = (double)walk->graph->tensors[tensor].bytes;
      units[op->unit].weights_bytes += bytes;
      units[op->unit].bound_weights_bytes += is_kept || used[tensor] & USED_BACKWARD ? bytes : 0;
      used[tensor] |= USED_COUNTED;
    }
  }
  free(used);
  return 0;
}

static void params_count(const struct lade_model_graph *graph, struct lade_unit_cost *units)
{
  for (int param = 0; param < graph->n_params; param++) {
    const struct lade_tensor *tensor = &graph->tensors[graph->params[param].tensor];
    units[tensor->unit].n_params += (int64_t)(tensor->bytes / lade_dtype_bytes(tensor->dtype));
  }
}

static int walk_run(struct share_walk *walk, enum lade_recipe recipe, struct lade_unit_cost *units)
{
  const size_t n_tensors = (size_t)walk->graph->n_tensors + 1, n_steps = (size_t)walk->n_steps + 1;
  walk->ready_ns = calloc(n_tensors, sizeof(*walk->ready_ns));
  walk->made_at = calloc(n_tensors, sizeof(*walk->made_at));
  walk->last_use = calloc(n_steps * LADE_OP_MAX_OUT, sizeof(*walk->last_use));
  bool *is_rerun = calloc((size_t)walk->graph->n_ops + 1, sizeof(*is_rerun));
  int status = walk->ready_ns && walk->made_at && walk->last_use && is_rerun ? 0 : -ENOMEM;
  if (!status) {
    times_fill(walk, units);
    memset(walk->ready_ns, 0, n_tensors * sizeof(*walk->ready_ns));
    unhidden_fill(walk, units);
    if (recipe == LADE_RECIPE_FULL && !walk->stops_early)
      rerun_add(walk, is_rerun, units);
    host_wait(walk, units);
    uses_find(walk);
    again_count(walk, units);
    status = memory_fill(walk, units);
    status = status ? status : weights_fill(walk, units);
    copies_add(walk, units);
  }
  free(is_rerun);
  free(walk->ready_ns);
  free(walk->made_at);
  free(walk->last_use);
  return status;
}

int share_walk_cost(const struct share_basis *basis, const struct lade_residency *residency, enum lade_recipe recipe,
                    bool *is_saved, struct lade_share_cost *ret_cost)
{
  const bool is_pytorch = basis->software != LADE_SOFTWARE_LADE || basis->cost.is_eager;
  struct share_walk walk = {.graph = basis->graph, .cost = &basis->cost, .residency = residency,
                            .prices = &basis->prices,
                            .host_op_ns = is_pytorch ? basis->cost.machine.kernels.host_op_ns : 0,
                            .is_saved = is_saved,
                            .host_ns_per_byte = 1e9 / basis->cost.machine.host_bytes_per_s,
                            .n_overlapping = basis->n_overlapping,
                            .stops_early = lade_software_stops_early(basis->software)};
  struct lade_unit_cost units[N_SHARE_UNITS] = {{0}};
  struct plan_step *steps = NULL;
  const struct lade_build_params params = {.graph = basis->graph, .residency = residency, .prices = &basis->prices,
                                           .n_microbatches = 1, .is_training = true};
  int status = plan_sequence(&params, &steps, &walk.n_steps);
  walk.steps = steps;
  if (!status)
    status = walk_run(&walk, recipe, units);
  free(steps);
  if (status)
    return status;
  params_count(basis->graph, units);
  *ret_cost = (struct lade_share_cost){.embed = units[SHARE_EMBED], .layer = units[SHARE_LAYER],
                                       .head = units[SHARE_HEAD], .residency = {.recipe = recipe},
                                       .software = basis->software};
  return 0;
}

int share_residency_create(const struct share_basis *basis, struct lade_residency **ret_residency)
{
  int status = lade_residency_create(basis->graph, ret_residency);
  for (int tensor = 0; tensor < basis->graph->n_tensors && !status; tensor++) {
    if (basis->graph->tensors[tensor].is_optional)
      (*ret_residency)->choices[tensor].saved = LADE_RESIDENCY_RECOMPUTE;
  }
  return status;
}

int lade_share_graph_make(const struct lade_layout_job *job, const struct lade_share_key *key,
                          struct lade_error *error, struct lade_model_graph **ret_graph)
{
  struct lade_model model = *job->model;
  for (int64_t i = 0; i < job->model->layers; i++) /* of layers with and without a window, the dearer kind counts */
    model.window = lade_layer_set_has(&job->model->windowed, i) ? model.window : 0;
  model.layers = 1;
  const struct lade_model_graph_params params = {
      .struct_size = sizeof(params), .model = &model, .dtype = job->dtype, .batch = key->micro_batch,
      .seq_len = job->seq_len, .dropout = (float)job->dropout, .kernels = job->kernels, .n_threads = 1,
      .moments = job->moments, .master = job->master, .grad_dtype = job->grad_dtype,
      .fuses_gelu = lade_machine_fuses_gelu(&job->cluster->device, job->dtype), .fuses_gelu_fwd = job->fuses_gelu_fwd,
      .share = {.tp = key->tp, .is_sequence = key->is_sequence}};
  return lade_model_graph_create(&params, error, ret_graph);
}

int share_basis_init(const struct lade_layout_job *job, const struct lade_share_key *key, struct lade_error *error,
                     struct share_basis *ret_basis)
{
  const struct lade_mesh_params sizes = {.struct_size = sizeof(sizes), .tp = key->tp,
                                         .n_kv_heads = job->model->n_kv_heads};
  *ret_basis = (struct share_basis){.software = key->software};
  int status = lade_mesh_init(&sizes, error, &ret_basis->mesh);
  if (!status && !key->graph)
    status = lade_share_graph_make(job, key, error, &ret_basis->own_graph);
  if (status)
    return status;
  ret_basis->graph = key->graph ? key->graph : ret_basis->own_graph;
  ret_basis->n_overlapping = key->is_sequence && lade_software_overlaps_tensor(job, key->software) ? key->tp : 0;
  lade_cluster_links_make(job->cluster, &ret_basis->mesh, &ret_basis->links);
  share_cost_init(job, key->software, &ret_basis->cost);
  ret_basis->cost.links = &ret_basis->links;
  status = lade_cost_prices(&ret_basis->cost, ret_basis->graph, &ret_basis->prices);
  return status ? lade_error_set(error, status, "no memory for the prices of a layer") : 0;
}

void share_basis_finish(struct share_basis *basis)
{
  if (!basis->graph)
    return;
  lade_prices_finish(&basis->prices);
  lade_cost_finish(&basis->cost);
  lade_model_graph_destroy(basis->own_graph);
}

int lade_share_cost_make(const struct lade_layout_job *job, const struct lade_share_key *key, struct lade_error *error,
                         struct lade_share_cost *ret_cost)
{
  struct share_basis basis;
  struct lade_residency *residency = NULL;
  LADE_ASSERT(key->recipe != LADE_RECIPE_AUTO);
  int status = share_basis_init(job, key, error, &basis);
  if (!status) {
    status = share_residency_create(&basis, &residency);
    if (!status) {
      lade_residency_apply_recipe(basis.graph, key->recipe, residency);
      status = share_walk_cost(&basis, residency, key->recipe, NULL, ret_cost);
    }
    if (status)
      lade_error_set(error, status, "no memory for the cost of a layer");
  }
  lade_residency_destroy(residency);
  share_basis_finish(&basis);
  return status;
}
