/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A layout on a cluster as settings of other projects: Megatron-LM's options, DeepSpeed's JSON, torchtitan's TOML, a
 * snippet for PyTorch's fully_shard, and Lade's own command. Names are those of the projects' argument parsers and
 * configuration classes. A part of the layout that a project has no setting for is a comment.
 */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "program/residency.h"
#include "tools/report/cluster_report.h"
#include "tools/report/report.h"

/* @dp counts context parallel ranks too, as @shard does: all of them sum gradients. */
struct export_sizes {
  int tp, pp, cp, dp, shard, n_microbatches;
};

static struct export_sizes sizes_get(const struct cluster_plan *plan)
{
  struct export_sizes sizes = {lade_layout_size(&plan->layout, LADE_AXIS_TP),
                               lade_layout_size(&plan->layout, LADE_AXIS_PP), plan->n_context,
                               lade_layout_size(&plan->layout, LADE_AXIS_DP), 1, 0};
  sizes.shard = plan->layout.zero ? lade_layout_size(&plan->layout, LADE_AXIS_SHARD) : 1;
  sizes.n_microbatches = (int)(plan->job->batch / sizes.dp / plan->micro_batch);
  return sizes;
}

static bool is_zero_bubble(const struct cluster_plan *plan)
{
  return plan->layout.schedule == LADE_SCHEDULE_ZBH1 || plan->layout.schedule == LADE_SCHEDULE_ZBH2;
}

static enum lade_recipe recipe_get(const struct cluster_plan *plan)
{
  return plan->share.residency.recipe;
}

/* Name the planned values of each layer in comments that begin with @mark: @project has no such choice. */
static void residency_export(const struct cluster_plan *plan, const char *mark, const char *project, FILE *file)
{
  static const struct {
    int policy;
    const char *mode;
  } ways[] = {{LADE_RESIDENCY_RECOMPUTE, "recomputed"}, {LADE_RESIDENCY_HOST, "on the host between both halves"},
              {LADE_RESIDENCY_STORE, "on drives between both halves"}};
  char names[CLUSTER_NAMES_BYTES];
  for (size_t i = 0; i < LADE_COUNT(ways) && recipe_get(plan) == LADE_RECIPE_AUTO; i++) {
    cluster_values_name(plan, ways[i].policy, sizeof(names), names);
    if (names[0])
      fprintf(file, "%s of each layer %s: %s; %s has no option for each value\n", mark, ways[i].mode, names, project);
  }
}

/* Say in a comment that begins with @mark that the planned precision of optimizer states has no setting. */
static void precision_export(const struct cluster_plan *plan, const char *mark, FILE *file)
{
  if (plan->job->moments != LADE_MOMENTS_F32 || plan->job->master != LADE_MASTER_EXACT)
    fprintf(file, "%s optimizer states were planned with moments %s and masters %s: no setting here; FP32 takes more\n",
            mark, moments_name(plan->job->moments), master_name(plan->job->master));
}

/* Say in a comment that begins with @mark that state was planned on drives, which one project alone has. */
static void drives_export(const struct cluster_plan *plan, const char *mark, FILE *file)
{
  if (plan->state_tier == LADE_TIER_STORE)
    fprintf(file, "%s optimizer state was planned on the node's drives: %s\n", mark,
            plan->options->export_format == EXPORT_DEEPSPEED
                ? "offload_optimizer with device nvme and an nvme_path, of ZeRO 3"
                : "no setting here; on the device it takes more");
}

static bool is_state_on_host(const struct cluster_plan *plan)
{
  return plan->state_tier == LADE_TIER_HOST;
}

/* ---- Megatron-LM ---- */

static void megatron_schedule(const struct cluster_plan *plan, const struct export_sizes *sizes, FILE *file)
{
  const int64_t layers = plan->job->model->layers;
  const int n_pieces = sizes->pp * plan->layout.virtual_stages;
  if (plan->layout.virtual_stages > 1 && layers % n_pieces == 0)
    fprintf(file, "--num-layers-per-virtual-pipeline-stage %lld\n", (long long)layers / n_pieces);
  else if (layers % n_pieces)
    fprintf(file, "# %lld layers in %d pieces are uneven: Megatron-LM wants them equal, or "
            "--pipeline-model-parallel-layout\n",
            (long long)layers, n_pieces);
  if (is_zero_bubble(plan))
    fprintf(file, "# schedule %s is not in Megatron-LM, which runs 1F1B here (sail-sg/zero-bubble-pipeline-parallelism "
            "has it)\n", lade_schedule_name(plan->layout.schedule));
}

static void megatron_export(const struct cluster_plan *plan, FILE *file)
{
  const struct export_sizes sizes = sizes_get(plan);
  cluster_megatron_model(plan, file);
  fprintf(file, "--tensor-model-parallel-size %d --pipeline-model-parallel-size %d\n", sizes.tp, sizes.pp);
  if (sizes.cp > 1)
    fprintf(file, "--context-parallel-size %d\n", sizes.cp);
  fprintf(file, "--micro-batch-size %lld --global-batch-size %lld\n", (long long)plan->micro_batch,
          (long long)plan->batch);
  megatron_schedule(plan, &sizes, file);
  if (plan->layout.is_sequence)
    fprintf(file, "--sequence-parallel\n");
  if (plan->layout.is_sequence && lade_software_overlaps_tensor(plan->job, plan->share.software))
    fprintf(file, "--tp-comm-overlap\n");
  if (recipe_get(plan) == LADE_RECIPE_FULL)
    fprintf(file, "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1\n");
  if (recipe_get(plan) == LADE_RECIPE_SELECTIVE || recipe_get(plan) == LADE_RECIPE_AUTO)
    fprintf(file, "--recompute-granularity selective\n");
  residency_export(plan, "#", "Megatron-LM", file);
  if (plan->layout.zero || is_state_on_host(plan))
    fprintf(file, "--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather\n");
  if (is_state_on_host(plan))
    fprintf(file, "--optimizer-cpu-offload --optimizer-offload-fraction 1.0 --use-precision-aware-optimizer\n");
  if (plan->layout.zero >= 2)
    fprintf(file, "# the plan has ZeRO %d; the distributed optimizer is stage 1, and needs more memory\n",
            plan->layout.zero);
  if (sizes.shard > 1 && sizes.shard < sizes.dp)
    fprintf(file, "--num-distributed-optimizer-instances %d\n", sizes.dp / sizes.shard);
  fprintf(file, plan->job->dtype == LADE_F16 ? "--fp16\n" : plan->job->dtype == LADE_BF16 ? "--bf16\n" : "# FP32\n");
}

/* ---- DeepSpeed ---- */

static json_t *deepspeed_zero(const struct cluster_plan *plan, const struct export_sizes *sizes)
{
  json_t *zero = json_pack("{s:i}", "stage", plan->layout.zero);
  if (plan->layout.zero >= 1)
    json_object_set_new(zero, "overlap_comm", json_true());
  if (is_state_on_host(plan))
    json_object_set_new(zero, "offload_optimizer", json_pack("{s:s, s:b}", "device", "cpu", "pin_memory", 1));
  if (plan->layout.zero == LADE_ZERO_MAX && sizes->shard < sizes->dp)
    json_object_set_new(zero, "zero_hpz_partition_size", json_integer(sizes->shard));
  return zero;
}

/* Print the JSON, and on lines before it the parts that it cannot hold. */
static void deepspeed_export(const struct cluster_plan *plan, FILE *file)
{
  const struct export_sizes sizes = sizes_get(plan);
  json_t *object = json_pack("{s:I, s:I, s:i, s:o, s:f}", "train_batch_size", (json_int_t)plan->batch,
                             "train_micro_batch_size_per_gpu", (json_int_t)plan->micro_batch,
                             "gradient_accumulation_steps", sizes.n_microbatches, "zero_optimization",
                             deepspeed_zero(plan, &sizes), "gradient_clipping", 1.0);
  json_object_set_new(object, plan->job->dtype == LADE_F16 ? "fp16" : "bf16",
                      json_pack("{s:b}", "enabled", plan->job->dtype != LADE_F32));
  if (sizes.tp > 1)
    fprintf(file, "// tp %d is the model's: pass an mpu, or Megatron-DeepSpeed's --tensor-model-parallel-size\n",
        sizes.tp);
  if (sizes.cp > 1)
    fprintf(file, "// cp %d: DeepSpeed cuts sequences by heads (Ulysses), not by keys and values round a ring\n",
            sizes.cp);
  if (sizes.pp > 1)
    fprintf(file, "// pp %d is PipelineModule(num_stages=%d), which runs 1F1B and takes ZeRO 0 or 1\n", sizes.pp,
        sizes.pp);
  if (plan->layout.zero && sizes.shard < sizes.dp)
    fprintf(file, "// shard %d of %d replicas: DeepSpeed shards state over all of them%s\n", sizes.shard, sizes.dp,
            plan->layout.zero == LADE_ZERO_MAX ? ", and gathers parameters from copies in groups of so many" : "");
  if (is_state_on_host(plan) && !plan->layout.zero)
    fprintf(file, "// optimizer state on the host needs ZeRO 1 or more in DeepSpeed\n");
  residency_export(plan, "//", "DeepSpeed", file);
  if (recipe_get(plan) != LADE_RECIPE_NONE && recipe_get(plan) != LADE_RECIPE_AUTO)
    fprintf(file, "// recompute %s: deepspeed.checkpointing around %s\n", recipe_name(recipe_get(plan)),
            recipe_get(plan) == LADE_RECIPE_FULL ? "each layer" : "attention");
  char *text = json_dumps(object, JSON_INDENT(2) | JSON_REAL_PRECISION(6));
  fprintf(file, "%s\n", text ? text : "");
  free(text);
  json_decref(object);
}

/* ---- torchtitan ---- */

static const char *torchtitan_schedule(enum lade_schedule schedule)
{
  switch (schedule) {
  case LADE_SCHEDULE_GPIPE:
    return "GPipe";
  case LADE_SCHEDULE_INTERLEAVED:
    return "Interleaved1F1B";
  case LADE_SCHEDULE_ZBH1:
  case LADE_SCHEDULE_ZBH2:
    return "InterleavedZeroBubble";
  default:
    return "1F1B";
  }
}

/*
 * Write torchtitan's fields of training, each as "@prefix<name> = value", which TOML and Python read alike. @mark
 * begins a comment.
 */
static void torchtitan_training(const struct cluster_plan *plan, const char *prefix, const char *mark, FILE *file)
{
  const struct export_sizes sizes = sizes_get(plan);
  fprintf(file, "%slocal_batch_size = %lld\n%sglobal_batch_size = %lld\n%sseq_len = %lld\n", prefix,
          (long long)(sizes.pp > 1 ? plan->micro_batch * sizes.n_microbatches : plan->micro_batch), prefix,
          (long long)plan->batch, prefix, (long long)plan->seq_len);
  if (plan->job->dtype == LADE_F32)
    fprintf(file, "%smixed_precision_param = \"float32\"\n", prefix);
  if (plan->job->dtype == LADE_F16)
    fprintf(file, "%s FP16 was planned: torchtitan computes in BF16\n", mark);
}

/* Write torchtitan's fields of the pipeline, as above. */
static void torchtitan_pipeline(const struct cluster_plan *plan, const char *prefix, const char *mark, FILE *file)
{
  const struct export_sizes sizes = sizes_get(plan);
  const int64_t layers = plan->job->model->layers;
  const int n_pieces = sizes.pp * plan->layout.virtual_stages;
  fprintf(file, "%spipeline_parallel_degree = %d\n", prefix, sizes.pp);
  if (sizes.pp == 1)
    return;
  fprintf(file, "%spipeline_parallel_schedule = \"%s\"\n%spipeline_parallel_microbatch_size = %lld\n", prefix,
          torchtitan_schedule(plan->layout.schedule), prefix, (long long)plan->micro_batch);
  if (!is_zero_bubble(plan) && layers % n_pieces == 0) /* torchtitan counts embedding and head as a layer each */
    fprintf(file, "%spipeline_parallel_layers_per_stage = %lld\n%spipeline_parallel_first_stage_less_layers = 0\n"
            "%spipeline_parallel_last_stage_less_layers = 0\n", prefix, (long long)layers / n_pieces, prefix, prefix);
  else if (layers % n_pieces)
    fprintf(file, "%s %lld layers in %d pieces are uneven: state the pieces in module_fqns_per_model_part\n", mark,
            (long long)layers, n_pieces);
  if (is_zero_bubble(plan))
    fprintf(file, "%s schedule %s has one chunk a stage; torchtitan's zero bubble schedule interleaves two\n", mark,
            lade_schedule_name(plan->layout.schedule));
}

/* Write the fields of [parallelism], as above, and a comment for each setting that torchtitan has no field for. */
static void torchtitan_parallelism(const struct cluster_plan *plan, const char *prefix, const char *mark, FILE *file)
{
  const struct export_sizes sizes = sizes_get(plan);
  const bool is_sharded = plan->layout.zero >= 1;
  fprintf(file, "%sdata_parallel_replicate_degree = %d\n%sdata_parallel_shard_degree = %d\n", prefix,
          is_sharded ? sizes.dp / sizes.shard : sizes.dp / sizes.cp, prefix,
          is_sharded ? LADE_MAX(sizes.shard / sizes.cp, 1) : 1);
  if (sizes.cp > 1)
    fprintf(file, "%scontext_parallel_degree = %d # parameters are sharded over these ranks too\n", prefix, sizes.cp);
  fprintf(file, "%sfsdp_reshard_after_forward = \"%s\"\n%stensor_parallel_degree = %d\n", prefix,
          plan->layout.zero == LADE_ZERO_MAX ? "always" : "never", prefix, sizes.tp);
  torchtitan_pipeline(plan, prefix, mark, file);
  if (plan->layout.zero == 1 || plan->layout.zero == 2)
    fprintf(file, "%s ZeRO %d: fully_shard shards gradients and parameters too; without resharding it sends the same\n",
            mark, plan->layout.zero);
  if (is_state_on_host(plan))
    fprintf(file, "%s optimizer state on the host: enable_cpu_offload of training moves parameters and gradients too\n",
            mark);
}

/* The file of torchtitan before 0.3. */
static void torchtitan_export(const struct cluster_plan *plan, FILE *file)
{
  const bool is_planned = recipe_get(plan) == LADE_RECIPE_AUTO;
  fprintf(file, "[training]\n");
  torchtitan_training(plan, "", "#", file);
  fprintf(file, "\n[parallelism]\n");
  torchtitan_parallelism(plan, "", "#", file);
  if (sizes_get(plan).tp > 1 && !plan->layout.is_sequence)
    fprintf(file, "# torchtitan's tensor parallel plans cut rows of norms too (sequence parallel); this plan does "
            "not\n");
  fprintf(file, "\n[activation_checkpoint]\nmode = \"%s\"\n",
          is_planned ? "selective" : recipe_name(recipe_get(plan)));
  residency_export(plan, "#", "torchtitan", file);
  if (is_planned || recipe_get(plan) == LADE_RECIPE_SELECTIVE)
    fprintf(file, "selective_ac_option = \"op\" # by op; a number means every n-th layer\n");
  fprintf(file, "# TOML is read by torchtitan before 0.3; for later versions: --export torchtitan-py\n");
}

/* Write the settings for torchtitan 0.3 and later, whose configurations are Python: a function of a Trainer.Config. */
static void torchtitan_py_export(const struct cluster_plan *plan, FILE *file)
{
  const bool is_planned = recipe_get(plan) == LADE_RECIPE_AUTO, is_kept = recipe_get(plan) == LADE_RECIPE_NONE;
  const char *policy = recipe_get(plan) == LADE_RECIPE_FULL ? "FullAC" : "SelectiveAC";
  if (!is_kept)
    fprintf(file, "from torchtitan.distributed.activation_checkpoint import %s\n\n\n", policy);
  fprintf(file, "def apply(config):  # a Trainer.Config of torchtitan 0.3, in the function that --config names\n");
  torchtitan_training(plan, "    config.training.", "    #", file);
  fprintf(file, "    parallel = config.parallelism\n    parallel.enable_sequence_parallel = %s\n",
          plan->layout.is_sequence ? "True" : "False");
  torchtitan_parallelism(plan, "    parallel.", "    #", file);
  if (is_planned)
    residency_export(plan, "    #", "torchtitan", file);
  fprintf(file, "    config.activation_checkpoint = %s%s\n    return config\n", is_kept ? "None" : policy,
          is_kept ? "" : ".Config()");
}

/* ---- PyTorch's fully_shard ---- */

static void fsdp2_export(const struct cluster_plan *plan, FILE *file)
{
  const struct export_sizes sizes = sizes_get(plan);
  if (sizes.pp > 1)
    fprintf(file, "# pp %d: cut the model into stages with torch.distributed.pipelining first\n", sizes.pp);
  fprintf(file, "import torch\nfrom torch.distributed.device_mesh import init_device_mesh\n"
          "from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard\n\n"
          "mesh = init_device_mesh(\"cuda\", (%d, %d, %d, %d), mesh_dim_names=(\"pp\", \"replicate\", \"shard\", "
          "\"tp\"))\n",
          sizes.pp, sizes.dp / sizes.shard, sizes.shard, sizes.tp);
  if (sizes.cp > 1)
    fprintf(file, "# cp %d: cut each sequence with torch.distributed.tensor.experimental.context_parallel over %d of "
            "the replicas\n", sizes.cp, sizes.cp);
  if (sizes.tp > 1)
    fprintf(file, "# tp %d: parallelize_module(block, mesh[\"tp\"], plan) before fully_shard%s\n", sizes.tp,
            plan->layout.is_sequence ? ", with SequenceParallel norms" : "");
  fprintf(file, "policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.%s)\n",
          plan->layout.grad_reduce == LADE_F32 ? "float32" : "bfloat16");
  fprintf(file, "for block in model.layers:\n");
  residency_export(plan, "    #", "fully_shard", file);
  if (recipe_get(plan) != LADE_RECIPE_NONE && recipe_get(plan) != LADE_RECIPE_AUTO)
    fprintf(file, "    # recompute %s: wrap %s with torch.utils.checkpoint\n", recipe_name(recipe_get(plan)),
            recipe_get(plan) == LADE_RECIPE_FULL ? "the block" : "its attention");
  fprintf(file, "    fully_shard(block, mesh=mesh[\"replicate\", \"shard\"], mp_policy=policy, "
          "reshard_after_forward=%s)\n"
          "fully_shard(model, mesh=mesh[\"replicate\", \"shard\"], mp_policy=policy)\n",
          plan->layout.zero == LADE_ZERO_MAX ? "True" : "False");
  if (is_state_on_host(plan))
    fprintf(file, "# optimizer state on the host: offload_policy=CPUOffloadPolicy() moves parameters and gradients "
            "too\n");
  if (plan->layout.zero < LADE_ZERO_MAX)
    fprintf(file, "# the plan has ZeRO %d: fully_shard shards parameters and gradients as well\n", plan->layout.zero);
  fprintf(file, "# %d microbatches of %lld: model.set_requires_gradient_sync(False) on all but the last%s\n",
          sizes.n_microbatches, (long long)plan->micro_batch, plan->layout.zero >= 2 ? " needs whole gradients" : "");
}

/* ---- Lade ---- */

static void lade_export(const struct cluster_plan *plan, FILE *file)
{
  const struct export_sizes sizes = sizes_get(plan);
  if (sizes.cp > 1)
    fprintf(file, "# cp %d is priced, not built: this runs its ranks as replicas\n", sizes.cp);
  fprintf(file, "lade launch -n %d -- train --model %s --batch %lld --micro-batch %lld --seq %lld --tp %d --pp %d "
          "--dp %d --recompute %s", plan->layout.mesh.world, plan->options->session.model, (long long)plan->batch,
          (long long)plan->micro_batch, (long long)plan->seq_len, sizes.tp, sizes.pp, sizes.dp,
          recipe_name(recipe_get(plan)));
  if (sizes.pp > 1)
    fprintf(file, " --schedule %s", lade_schedule_name(plan->layout.schedule));
  if (plan->layout.virtual_stages > 1)
    fprintf(file, " --virtual-stages %d", plan->layout.virtual_stages);
  if (plan->layout.is_sequence)
    fprintf(file, " --sequence-parallel");
  if (plan->layout.zero)
    fprintf(file, " --zero %d --shard %d", plan->layout.zero, sizes.shard);
  if (plan->job->dtype != LADE_BF16)
    fprintf(file, " --dtype %s", plan->job->dtype == LADE_F16 ? "fp16" : "fp32");
  if (plan->job->moments != LADE_MOMENTS_F32)
    fprintf(file, " --moments %s", moments_name(plan->job->moments));
  if (plan->job->master != LADE_MASTER_EXACT)
    fprintf(file, " --master %s", master_name(plan->job->master));
  if (plan->job->grad_dtype != LADE_F32)
    fprintf(file, " --grad-dtype bf16");
  if (plan->job->fuses_gelu_fwd)
    fprintf(file, " --gelu-fusion");
  if (sizes.dp > 1 && plan->layout.grad_reduce != LADE_F32)
    fprintf(file, " --grad-reduce bf16");
  if (plan->state_tier == LADE_TIER_STORE)
    fprintf(file, " --store DIR --store-budget %llu", (unsigned long long)plan->options->session.store_budget_bytes);
  fprintf(file, " --device cuda:0 --data FILE\n");
}

void cluster_export(const struct cluster_plan *plan, FILE *file)
{
  if (plan->job->experts && plan->options->export_format != EXPORT_MEGATRON)
    fprintf(file, "%s ep %d: experts are priced by formula; %s\n",
            plan->options->export_format == EXPORT_DEEPSPEED ? "//" : "#", plan->job->n_expert_ranks,
            plan->options->export_format == EXPORT_LADE ? "lade train refuses them" :
                                                         "this export has no setting for them");
  if (plan->options->export_format != EXPORT_LADE) {
    const char *mark = plan->options->export_format == EXPORT_DEEPSPEED ? "//" : "#";
    precision_export(plan, mark, file);
    drives_export(plan, mark, file);
  }
  switch (plan->options->export_format) {
  case EXPORT_MEGATRON:
    megatron_export(plan, file);
    break;
  case EXPORT_DEEPSPEED:
    deepspeed_export(plan, file);
    break;
  case EXPORT_TORCHTITAN:
    torchtitan_export(plan, file);
    break;
  case EXPORT_TORCHTITAN_PY:
    torchtitan_py_export(plan, file);
    break;
  case EXPORT_FSDP2:
    fsdp2_export(plan, file);
    break;
  default:
    lade_export(plan, file);
    break;
  }
}
