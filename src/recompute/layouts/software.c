/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Differences between the software that runs a layout.
 *
 * A program of Lade has fused elementwise ops, and its tensor parallel collectives run beside weights' gradients alone.
 * Other projects run the same layout in their own ways:
 *
 *   Megatron-LM   on Hopper and later devices, collectives of sequence parallel ranks run beside their products
 *                 (Transformer Engine's user buffers, which NVIDIA's recipes turn on). Gradients are summed in buckets
 *                 of 40 million parameters, or of a million for each replica if that is more, instead of a layer at a
 *                 time (its DistributedDataParallel). On earlier devices its kernels are fused as Lade's are, and
 *                 collectives run beside no product, as in 2021 and 2022
 *   DeepSpeed     elementwise ops are PyTorch's, a kernel each (lade_cost.is_eager), and no kernel runs beside sums of
 *                 input gradients over tensor parallel ranks. Megatron-DeepSpeed has one product for queries, keys and
 *                 values, and one for gate and up. Where a user asks for --eager, each tensor of a checkpoint is a
 *                 product of its own, whose layer sums its own input gradient over ranks
 *   FSDP          the same, and attention is fused: it is younger than FlashAttention. Stages of a pipeline scatter
 *                 their gradients after the last microbatch alone (torch.distributed.pipelining). Gathered parameters
 *                 and gradients are copied between tensors and flat buffers (fully_shard). Full recompute stops at the
 *                 last value that the backward half reads, so the last product does not run again (checkpoint's early
 *                 stop, PyTorch 2.1). Sums over the replicas of shard groups have a stream of their own
 *
 * The user may name one. Otherwise the layout decides. The residency planner's layouts are Lade's alone. One whose
 * recompute is a recipe is priced as the project that publishes such layouts: with ZeRO 2 or 3, which Megatron-LM does
 * not have, FSDP; with ZeRO 1 on devices before Hopper DeepSpeed (GPT-NeoX, BLOOM); else Megatron-LM.
 *
 * FSDP's published runs of models with learned positions are of 2022 and 2023. Their attention was FlashAttention in
 * Triton: 0.56 of FlashAttention-2's rate on A100 and H100 alike, from MPT's runs of 65,536 tokens; 0.42 to 0.51
 * alone (figure 5 of Dao 2023, heads of 128). Gathers of the backward half ran beside no kernel (BACKWARD_POST, the
 * default of MosaicML's Composer). A user who names fsdp, or asks for --fused-attention, gets neither.
 *
 * On Hopper and later devices its published runs are of 2024 and later. They are compiled, or have fused norms of their
 * own, as PyTorch itself has since 2.9: an RMS norm is one kernel. A user who names fsdp, or asks for --eager, gets
 * PyTorch's ops.
 *
 * Prices of PyTorch's ops are those of 16 bits on a device with kernels. Where they are missing, the layout is Lade's.
 *
 * A device before Hopper is one with a price for attention that is not fused.
 */
#include "base/base.h"
#include "graph/family.h"
#include "recompute/layouts/share_internal.h"

#define EARLY_ATTENTION_SLOWER (1 / 0.56) /* above */

static bool is_early(const struct lade_layout_job *job)
{
  return job->cluster->device.kernels.score_forward_bytes > 0;
}

bool lade_software_has_eager(const struct lade_layout_job *job)
{
  return job->cluster->device.kernels.n_sms > 0 && lade_dtype_bytes(job->dtype) == 2;
}

enum lade_software lade_software_of(const struct lade_layout_job *job, int zero, enum lade_recipe recipe)
{
  if (job->software != LADE_SOFTWARE_AUTO)
    return job->software;
  if (recipe == LADE_RECIPE_AUTO || !lade_software_has_eager(job))
    return LADE_SOFTWARE_LADE;
  if (zero >= 2)
    return LADE_SOFTWARE_FSDP;
  return zero && is_early(job) ? LADE_SOFTWARE_DEEPSPEED : LADE_SOFTWARE_MEGATRON;
}

bool lade_software_is_eager(const struct lade_layout_job *job, enum lade_software software)
{
  return job->is_eager || software == LADE_SOFTWARE_DEEPSPEED || software == LADE_SOFTWARE_FSDP;
}

bool lade_software_overlaps_tensor(const struct lade_layout_job *job, enum lade_software software)
{
  return job->overlaps_tensor || (software == LADE_SOFTWARE_MEGATRON && !is_early(job));
}

bool lade_software_scatters_once(enum lade_software software, int n_stages)
{
  return software == LADE_SOFTWARE_FSDP && n_stages > 1;
}

bool lade_software_is_early_fsdp(const struct lade_layout_job *job, enum lade_software software)
{
  return software == LADE_SOFTWARE_FSDP && job->software == LADE_SOFTWARE_AUTO && !job->has_fused_attention &&
         lade_family_get(job->model->family)->has_positions;
}

/* True if FSDP runs on Hopper or a later device, and the user names neither software nor --eager. */
static bool is_late_fsdp(const struct lade_layout_job *job, enum lade_software software)
{
  return software == LADE_SOFTWARE_FSDP && job->software == LADE_SOFTWARE_AUTO && !job->is_eager && !is_early(job);
}

bool lade_software_gathers_late(const struct lade_layout_job *job, enum lade_software software)
{
  return job->gathers_late || lade_software_is_early_fsdp(job, software);
}

bool lade_software_sums_apart(enum lade_software software)
{
  return software == LADE_SOFTWARE_FSDP;
}

bool lade_software_copies_flat(enum lade_software software)
{
  return software == LADE_SOFTWARE_FSDP;
}

bool lade_software_stops_early(enum lade_software software)
{
  return software == LADE_SOFTWARE_FSDP;
}

double lade_software_bucket_params(const struct lade_layout_job *job, enum lade_software software, int n_replicas)
{
  if (software != LADE_SOFTWARE_MEGATRON || is_early(job))
    return 0;
  return LADE_MAX(40e6, 1e6 * n_replicas);
}

void share_cost_init(const struct lade_layout_job *job, enum lade_software software, struct lade_cost *ret_cost)
{
  lade_cost_init(ret_cost, &job->cluster->device);
  ret_cost->is_eager = lade_software_is_eager(job, software);
  ret_cost->has_fused_norms = job->has_fused_norms || is_late_fsdp(job, software);
  ret_cost->sums_products_apart = job->is_eager;
  ret_cost->has_plain_products = software != LADE_SOFTWARE_LADE;
  if (lade_software_is_early_fsdp(job, software))
    ret_cost->attention_slower = EARLY_ATTENTION_SLOWER;
  if (job->has_fused_attention || software == LADE_SOFTWARE_FSDP)
    ret_cost->machine.kernels.score_forward_bytes = 0;
}
