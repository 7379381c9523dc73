/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The end of a layout's step: its gradients, gathers and update.
 *
 * Behind the schedule stand, for the first stage, whose last backward half ends the step:
 *
 *   gradients  sums over replicas in the type of --grad-reduce. They run beside the last microbatch's backward half
 *              (ZeRO 2 and 3: beside each one's). Exposed are the excess over its time, and one layer's sum. With shard
 *              groups the sums of blocks over their replicas run beside the last one's too, in the time that its
 *              scatters and gathers leave: they share a queue. FSDP has another stream for sums, and these wait for
 *              other collectives only where both have the same outermost level
 *   gathers    of working copies under ZeRO: stage 1 and 2 once a step, beside the first forward half; stage 3 twice
 *              for each microbatch, beside the computing of the layer before. A job may gather late, like FSDP with
 *              BACKWARD_POST, but unlike Lade: in the backward half nothing is computed beside a gather
 *   tables     the sum of a tied table's two gradients
 *   update     AdamW over this rank's state, and norms. With the state on the host the CPU updates it, after gradients
 *              have come there and beside the copies of working copies. With the state on drives gradients are written
 *              there, and state and gradients stream through host memory
 *
 * Links. Collectives over replicas run beside tensor parallel ones, and beside copies to the host and back. Those that
 * use one link share its rate, as in the simulator (program/simulate.c). If two kinds together want D times a link's
 * rate, both take D times as long while they run at once. A microbatch's halves then wait (D - 1) of their own
 * collectives' time longer, as far as collectives over replicas run beside them. These do not lose time, because they
 * move on in that wait. Copies lose no time to halves that are long enough, so they take D - 1 of their time from
 * collectives over replicas alone.
 */
#include <math.h>

#include "base/base.h"
#include "recompute/layouts/layout_internal.h"
#include "recompute/layouts/share_internal.h"

/* Return the parts of links that collectives on @axis of @layout take. */
static struct lade_link_shares axis_shares(const struct lade_layout_job *job, const struct lade_layout *layout,
                                           enum lade_axis axis)
{
  return lade_cluster_group_shares(job->cluster, layout->mesh.axes[axis].size, layout->mesh.axes[axis].stride);
}

/* Return the outermost level that the group on @axis of @layout crosses. */
static int axis_level(const struct lade_layout_job *job, const struct lade_layout *layout, enum lade_axis axis)
{
  return lade_cluster_group_level(job->cluster, layout->mesh.axes[axis].size, layout->mesh.axes[axis].stride);
}

/* A half of a microbatch, beside which collectives run, with the transfers that share links with them. */
struct half_time {
  double ns;
  double tensor_slowdown, tensor_ns; /* of both kinds together, and the half's own collectives */
  double copies_slowdown, copies_ns;
};

/*
 * Return the time that @all_ns of collectives add to a half. The part 1 - @hidden of them has no kernels beside it; the
 * others slow down the kernels by the multiprocessors that they take, and transfers by the links that they share.
 */
static double overlap_ns(double all_ns, struct half_time half, double hidden)
{
  const double beside_ns = LADE_MAX(half.ns - (half.copies_slowdown - 1) * half.copies_ns, 0);
  const double exposed_ns = LADE_MAX(all_ns - beside_ns * hidden, all_ns * (1 - hidden));
  const double shared = half.ns > 0 ? LADE_MIN((all_ns - exposed_ns) / half.ns, 1) : 0;
  return exposed_ns + OVERLAP_SHARE * (all_ns - exposed_ns) + (half.tensor_slowdown - 1) * half.tensor_ns * shared;
}

/* Return a half of the first stage's microbatches, beside which collectives on @axis run. */
static struct half_time half_get(const struct lade_layout_job *job, const struct lade_layout_core *core,
                                 const struct lade_layout *layout, enum lade_axis axis, bool is_backward)
{
  const struct lade_link_shares copies = {{[LADE_LINK_HOST] = 1}}, own = axis_shares(job, layout, axis);
  const struct lade_link_shares tensor = axis_shares(job, layout, LADE_AXIS_TP);
  return (struct half_time){.ns = is_backward ? core->backward_ns : core->forward_ns,
                            .tensor_slowdown = lade_links_slowdown(&own, &tensor),
                            .tensor_ns = core->tensor_ns[is_backward],
                            .copies_slowdown = lade_links_slowdown(&own, &copies),
                            .copies_ns = core->copies_ns[is_backward]};
}

/*
 * Return the share of a rank's parameters that it sends in a ring of @n ranks: experts' go round the ranks that hold
 * the same ones.
 */
static double sent_share(const struct lade_layout_job *job, const struct lade_layout_core *core, int n)
{
  const int n_holders = LADE_MAX(n / LADE_MAX(job->n_expert_ranks, 1), 1);
  return (1 - core->expert_share) * ring_share(n) + core->expert_share * ring_share(n_holders);
}

/* Return the collectives in which the gradients of a stage's first rank are summed: one a layer, or one a bucket. */
static double grad_collectives(const struct lade_layout_job *job, const struct lade_layout_core *core, int n_replicas)
{
  const double bucket = lade_software_bucket_params(job, core->share->software, n_replicas);
  return bucket > 0 ? LADE_MIN(core->n_layers, ceil(core->params[0] / bucket)) : core->n_layers;
}

/* Return the last part of @half, behind @filled_ns of it, with its part of the transfers. */
static struct half_time half_rest(struct half_time half, double filled_ns)
{
  const double part = half.ns > 0 ? LADE_MAX(1 - filled_ns / half.ns, 0) : 0;
  half.ns *= part;
  half.tensor_ns *= part;
  half.copies_ns *= part;
  return half;
}

/*
 * Return the exposed time of sums of blocks over the replicas of a shard group, in @n collectives, each behind its
 * block's last scatter. @filled_ns: of scatters and gathers beside the last backward half.
 */
static double replicas_exposed(const struct lade_layout_job *job, const struct lade_layout_core *core,
                               const struct lade_layout *layout, double n, double filled_ns)
{
  const int dp = lade_layout_size(layout, LADE_AXIS_DP), shard = lade_layout_size(layout, LADE_AXIS_SHARD);
  const double grad_bytes = core->params[0] * (double)lade_dtype_bytes(layout->grad_reduce);
  const bool is_apart = lade_software_sums_apart(core->share->software) &&
                        axis_level(job, layout, LADE_AXIS_SHARD) != axis_level(job, layout, LADE_AXIS_REPLICATE);
  const struct half_time backward = half_rest(half_get(job, core, layout, LADE_AXIS_REPLICATE, true),
                                              is_apart ? 0 : filled_ns);
  struct lade_transfer_price sum, unused;
  axis_price(job, layout, LADE_AXIS_REPLICATE, &unused, &sum);
  return overlap_ns(rings_ns(&sum, n, 2 * grad_bytes / shard * ring_share(dp / shard)), backward, 1 - 1 / (n + 1));
}

/*
 * Return the exposed time of sums and gathers of stage 0. The last collective cannot hide, because nothing is left
 * beside it.
 */
static double grads_exposed(const struct lade_layout_job *job, const struct lade_layout_core *core,
                            const struct lade_layout *layout)
{
  const int dp = lade_layout_size(layout, LADE_AXIS_DP), zero = layout->zero;
  const int shard = zero ? lade_layout_size(layout, LADE_AXIS_SHARD) : 1;
  if (dp == 1)
    return 0;
  struct lade_transfer_price sum, gather;
  const double m = core->pipeline.n_microbatches, n_params = core->params[0], n = grad_collectives(job, core, dp);
  const double weight = (double)lade_dtype_bytes(job->dtype), hidden = 1 - 1 / (n + 1);
  const double grad_bytes = n_params * (double)lade_dtype_bytes(layout->grad_reduce);
  const enum lade_axis axis = zero == 0 ? LADE_AXIS_DP : LADE_AXIS_SHARD;
  const struct half_time forward = half_get(job, core, layout, axis, false);
  const struct half_time backward = half_get(job, core, layout, axis, true);
  axis_price(job, layout, axis, &gather, &sum);
  if (zero == 0)
    return overlap_ns(rings_ns(&sum, n, 2 * grad_bytes * sent_share(job, core, dp)), backward, hidden);
  const double scatter_ns = rings_ns(&gather, n, grad_bytes * sent_share(job, core, shard));
  const double gather_ns = rings_ns(&gather, n, n_params * weight * sent_share(job, core, shard));
  double exposed_ns = overlap_ns(gather_ns, forward, hidden);
  const double late_ns = lade_software_gathers_late(job, core->share->software) ? gather_ns : 0;
  const double n_scatters = lade_software_scatters_once(core->share->software, core->pipeline.n_stages) ? 1 : m;
  if (zero == LADE_ZERO_MAX)
    exposed_ns += (m - 1) * overlap_ns(gather_ns, forward, 1) + scatter_ns * (1 - hidden) +
                  n_scatters * (late_ns + overlap_ns(gather_ns - late_ns + scatter_ns, backward, 1)) +
                  (m - n_scatters) * (late_ns + overlap_ns(gather_ns - late_ns, backward, 1));
  else if (zero == 2)
    exposed_ns += n_scatters * overlap_ns(scatter_ns, backward, 1) + scatter_ns * (1 - hidden);
  else
    exposed_ns += overlap_ns(scatter_ns, backward, hidden);
  const double filled_ns = scatter_ns + (zero == LADE_ZERO_MAX ? gather_ns - late_ns : 0);
  return exposed_ns + (dp > shard ? replicas_exposed(job, core, layout, n, filled_ns) : 0);
}

/*
 * Return the time of sums of gradients over microbatches, if they are kernels of their own: PyTorch without a compiler
 * reads a product's gradient and adds it to the sum. ZeRO 2 and 3 scatter each microbatch's gradients, and the sums of
 * their shards are too short to count. Software that scatters once a step adds whole gradients, in the type of the
 * scatter (fully_shard: to_accumulated_grad_if_needed).
 */
static double grad_sums_ns(const struct lade_layout_job *job, const struct lade_layout_core *core,
                           const struct lade_layout *layout)
{
  const enum lade_software software = core->share->software;
  const bool is_once = layout->zero >= 2 && lade_software_scatters_once(software, core->pipeline.n_stages);
  if (!lade_software_is_eager(job, software) || (layout->zero >= 2 && !is_once) || core->pipeline.n_microbatches == 1)
    return 0;
  const enum lade_dtype sum = is_once ? layout->grad_reduce : job->grad_dtype;
  const double bytes = (double)lade_dtype_bytes(job->dtype) + 2 * (double)lade_dtype_bytes(sum);
  const double slots = core->pipeline.n_microbatches * core->span_ns / core->busy_ns;
  return slots * core->params[0] * bytes / job->cluster->device.device_bytes_per_s * 1e9;
}

/*
 * Return the time in which FSDP copies between parameters and the flat buffers of its collectives. A gather's result is
 * read and written, once a half under ZeRO 3 and once a step under ZeRO 2; gradients are read, and written in the type
 * of their sum. (torch's fully_shard: split_with_sizes_copy, chunk_cat.)
 */
static double flat_copies_ns(const struct lade_layout_job *job, const struct lade_layout_core *core,
                             const struct lade_layout *layout)
{
  if (!lade_software_copies_flat(core->share->software) || layout->zero < 2 ||
      lade_layout_size(layout, LADE_AXIS_SHARD) == 1)
    return 0;
  const double m = core->pipeline.n_microbatches, weight = (double)lade_dtype_bytes(job->dtype);
  const double n_gathers = layout->zero == LADE_ZERO_MAX ? 2 * m : 1;
  const double n_scatters = lade_software_scatters_once(core->share->software, core->pipeline.n_stages) ? 1 : m;
  const double bytes = n_gathers * 2 * weight + n_scatters * (weight + (double)lade_dtype_bytes(layout->grad_reduce));
  return core->params[0] * bytes / job->cluster->device.device_bytes_per_s * 1e9;
}

/*
 * Return the time that gradients of @form take to @state_tier, beyond @grad_ns of their sums over replicas. Where both
 * share the device's link to the host, both are slower while they run at once.
 */
static double grads_leave_ns(const struct lade_layout_job *job, const struct lade_layout *layout,
                             const struct lade_adamw_args *form, enum lade_tier state_tier, double grad_ns)
{
  const struct lade_machine *device = &job->cluster->device;
  const double link = (double)device->to_host.bytes_per_s;
  const double rate = state_tier == LADE_TIER_STORE ? lade_drive_bytes_per_s(&device->store, 0) : link;
  const struct lade_link_shares own = axis_shares(job, layout, layout->zero ? LADE_AXIS_SHARD : LADE_AXIS_DP);
  const struct lade_link_shares copies = {{[LADE_LINK_HOST] = LADE_MIN(rate / link, 1)}};
  const double ns = (double)form->n_elements * (double)lade_dtype_bytes(job->grad_dtype) / rate * 1e9;
  return LADE_MAX(ns - grad_ns, 0) + (lade_links_slowdown(&own, &copies) - 1) * LADE_MIN(ns, grad_ns);
}

/*
 * Return the time of AdamW over @form on the host or on drives, in @n_layers pieces, with all gradients there. Working
 * copies go to the host and come back beside the updates. An update on drives reads its state with the gradients, and
 * writes it back.
 */
static double away_update_ns(const struct lade_layout_job *job, const struct lade_cost *cost,
                             const struct lade_adamw_args *form, enum lade_tier state_tier, double n_layers)
{
  const struct lade_machine *device = &job->cluster->device;
  const bool is_stored = state_tier == LADE_TIER_STORE;
  const double n = (double)form->n_elements, weight = (double)lade_dtype_bytes(job->dtype);
  const double out_ns = n * weight / (double)device->to_host.bytes_per_s * 1e9;
  const double in_ns = n * weight / (double)device->to_device.bytes_per_s * 1e9;
  const double adamw_ns = is_stored ? (double)(lade_cost_adamw_store_ns(cost, form, false) +
                                               lade_cost_stream_edge_ns(cost, form, false))
                                    : (double)lade_cost_adamw_ns(cost, form, true);
  const double all_ns = adamw_ns + out_ns + in_ns, longest_ns = LADE_MAX(adamw_ns, LADE_MAX(out_ns, in_ns));
  return longest_ns + (all_ns - longest_ns) / (n_layers + 1);
}

/* Return the time of the tied table's sum, of the norms and of AdamW on the stage with the most state. */
static double update_time(const struct lade_layout_job *job, const struct lade_layout_core *core,
                          const struct lade_layout *layout, enum lade_tier state_tier, double grad_ns)
{
  const double n_params = held_params(job, core, layout, LADE_MAX(core->params[0], core->params[1]));
  struct lade_cost cost;
  lade_cost_init(&cost, &job->cluster->device);
  const struct lade_adamw_args form = {.dtype = job->dtype, .grad_dtype = job->grad_dtype, .moments = job->moments,
                                       .master = job->master, .n_elements = (int64_t)n_params};
  double ns = state_tier == LADE_TIER_DEVICE
                  ? (double)lade_cost_adamw_ns(&cost, &form, false)
                  : grads_leave_ns(job, layout, &form, state_tier, grad_ns) +
                        away_update_ns(job, &cost, &form, state_tier, core->n_layers);
  ns += (double)lade_cost_sum_squares_ns(&cost, (int64_t)n_params, job->grad_dtype);
  lade_cost_finish(&cost);
  if (job->model->is_tied && core->pipeline.n_stages > 1) {
    struct lade_transfer_price gather, sum;
    axis_price(job, layout, LADE_AXIS_EMBED, &gather, &sum);
    ns += ring_ns(&sum, 4 * (double)job->model->width * (double)job->model->vocabulary /
                            lade_layout_size(layout, LADE_AXIS_TP));
  }
  return ns;
}

struct step_end step_end_get(const struct lade_layout_job *job, const struct lade_layout_core *core,
                             const struct lade_layout *layout, enum lade_tier state_tier)
{
  const double grad_ns = grads_exposed(job, core, layout);
  return (struct step_end){.grad_ns = grad_ns, .update_ns = update_time(job, core, layout, state_tier, grad_ns),
                           .sums_ns = grad_sums_ns(job, core, layout),
                           .copies_ns = flat_copies_ns(job, core, layout)};
}
