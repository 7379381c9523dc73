/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every option once: its name, type, default, bounds, effect, and the verbs that take it. To add an option, add a field
 * to struct options and one entry here. Parsing, configuration files, --help, --print-config and the resume line follow
 * from the entry.
 */
#include <string.h>

#include "alloc/replay.h"
#include "base/base.h"
#include "recompute/layout_cost.h"
#include "tools/cli/options.h"
#include "tools/cli/verbs.h"

#define RUN (VERB_TRAIN | VERB_SWEEP)             /* verbs that train */
#define ALL (VERB_TRAIN | VERB_SWEEP | VERB_PLAN) /* verbs that plan a run */
#define AT(field) .offset = offsetof(struct options, field)
#define SECTION(title) {.type = OPTION_SECTION, .verbs = ~0u, .help = title}

#define SHAPE_MAX 1e9  /* below 2^31, so that sizes and token numbers fit 32 bits */
#define BATCH_MAX 1e6  /* rows: products with any sequence stay far below 2^63 */
#define MICRO_BATCH_MAX INT16_MAX /* rows of a microbatch are counted in 16 bits */

#define HELP_COLUMN 29   /* column where the text of --help begins */
#define HELP_COLUMNS 100 /* columns of a line of --help */

static const struct option_choice order_choices[] = {
    {"random", LADE_ORDER_RANDOM}, {"sequential", LADE_ORDER_SEQUENTIAL}, {0}};
static const struct option_choice dtype_choices[] = {
    {"bf16", LADE_BF16}, {"fp32", LADE_F32}, {"fp16", LADE_F16}, {0}};
const struct option_choice moments_choices[] = {
    {"fp32", LADE_MOMENTS_F32}, {"bf16", LADE_MOMENTS_BF16}, {"8bit", LADE_MOMENTS_8BIT}, {0}};
const struct option_choice master_choices[] = {
    {"exact", LADE_MASTER_EXACT}, {"24bit", LADE_MASTER_24BIT}, {0}};
static const struct option_choice grad_dtype_choices[] = {{"fp32", LADE_F32}, {"bf16", LADE_BF16}, {0}};
static const struct option_choice schedule_choices[] = {{"1f1b", LADE_SCHEDULE_1F1B},
                                                        {"gpipe", LADE_SCHEDULE_GPIPE},
                                                        {"interleaved", LADE_SCHEDULE_INTERLEAVED},
                                                        {"zbh1", LADE_SCHEDULE_ZBH1},
                                                        {"zbh2", LADE_SCHEDULE_ZBH2},
                                                        {0}};
static const struct option_choice max_choices[] = {
    {"micro-batch", MAX_MICRO_BATCH}, {"seq", MAX_SEQ}, {"layers", MAX_LAYERS}, {0}};

static const struct option_choice export_choices[] = {{"megatron", EXPORT_MEGATRON}, {"deepspeed", EXPORT_DEEPSPEED},
                                                      {"torchtitan", EXPORT_TORCHTITAN},
                                                      {"torchtitan-py", EXPORT_TORCHTITAN_PY},
                                                      {"fsdp2", EXPORT_FSDP2}, {"lade", EXPORT_LADE}, {0}};

const struct option_choice software_choices[] = {
    {"auto", LADE_SOFTWARE_AUTO},           {"lade", LADE_SOFTWARE_LADE}, {"megatron", LADE_SOFTWARE_MEGATRON},
    {"deepspeed", LADE_SOFTWARE_DEEPSPEED}, {"fsdp", LADE_SOFTWARE_FSDP}, {0}};

static const struct option_choice policy_choices[] = {
    {"all", POLICY_ALL},
    {"caching", LADE_POLICY_CACHING},
    {"torch-native", LADE_POLICY_TORCH_NATIVE},
    {"torch-expandable", LADE_POLICY_TORCH_EXPANDABLE},
    {"packed", LADE_POLICY_PACKED},
    {0}};

static const struct option_choice text_format_choices[] = {{"auto", 0}, {"text", 1}, {"jsonl", 2}, {"parquet", 3}, {0}};
static const struct option_choice document_choices[] = {{"file", 0}, {"line", 1}, {"paragraph", 2}, {0}};

const struct option_choice recompute_choices[] = {{"auto", LADE_RECIPE_AUTO},
                                                  {"none", LADE_RECIPE_NONE},
                                                  {"selective", LADE_RECIPE_SELECTIVE},
                                                  {"full", LADE_RECIPE_FULL},
                                                  {0}};

/* Names that scripts and files of earlier versions have, and the options that took their places. */
static const struct {
  const char *name, *successor;
} replaced_options[] = {{"update", "optimizer-in-backward"}};

/* Options of other trainers for techniques that Lade lacks, with the nearest ones that it has. */
static const struct {
  const char *name, *reason;
} absent_options[] = {
    {"cp", "context parallel ranks are not supported; --tp N --sequence-parallel shards activations between layers"},
    {"ep", "expert parallel ranks are not supported: models with experts are planned on one rank, and not trained"}};

const struct option option_table[] = {
    SECTION("Model and data"),
    {OPTION_TEXT, "model", "NAME|FILE", ALL, AT(session.model), .preset = "nano",
     .help = "model: a preset (nano, baby, gpt2-124m ... gpt-1t: docs/models.md) or a HuggingFace config.json; lade "
             "plan takes mixtures of experts too (mixtral-8x7b ... deepseek-v3)"},
    {OPTION_COUNT, "layers", "N", ALL, AT(session.layers), .unset = "the model's own", .min = 1, .max = 10000,
     .help = "layers of the model, instead of its own number"},
    {OPTION_FILES, "data", "FILE...", RUN, VERB_PLAN, AT(data), .unset = "required",
     .help = "training data: text, read as bytes, or token files (.bin) of llm.c and nanoGPT"},
    {OPTION_FILES, "valid", "FILE...", RUN, VERB_PLAN, AT(valid), .unset = "the end of --data",
     .help = "validation data, in the formats of --data"},
    {OPTION_REAL, "valid-fraction", "F", RUN, VERB_PLAN, AT(session.valid_fraction), .preset = "0.1", .max = 0.9,
     .help = "fraction of --data, from its end, that validates if --valid is not given; 0: no validation"},
    {OPTION_CHOICE, "order", "random|sequential", RUN, VERB_PLAN, AT(session.order), .preset = "random",
     .choices = order_choices, .help = "order of the data: rows from random offsets, or all tokens in sequence"},
    {OPTION_FLAG, "mask-documents", NULL, ALL, AT(session.mask_documents),
     .help = "attend within documents: a token sees no token of an earlier document"},
    {OPTION_COUNT, "separator", "ID", RUN, VERB_PLAN, AT(session.separator), .unset = "the one that --data names",
     .max = SHAPE_MAX, .help = "token that ends a document, for --mask-documents"},
    {OPTION_COUNT, "steps", "N", RUN, VERB_PLAN, AT(session.steps), .preset = "2000", .min = 0, .max = 4e9,
     .help = "training steps in all, including those before a resume"},
    {OPTION_COUNT, "batch", "N", ALL, AT(session.batch), .preset = "12", .min = 1, .max = BATCH_MAX,
     .help = "sequences per step, over all ranks"},
    {OPTION_COUNT, "micro-batch", "N", ALL, AT(session.micro_batch), .unset = "the batch", .min = 1,
     .max = MICRO_BATCH_MAX, .help = "sequences per forward and backward pass; must divide --batch"},
    {OPTION_COUNT, "seq", "T", ALL, AT(session.seq_len), .unset = "the model's context, at most 1024", .min = 1,
     .max = SHAPE_MAX, .help = "tokens per sequence"},
    {OPTION_REAL, "expert-capacity", "X", VERB_PLAN, AT(expert_capacity), .preset = "1", .min = 1, .max = 1e6,
     .help = "of a mixture of experts: room of each expert, in shares of a balanced load; memory and time count it"},
    {OPTION_SEED, "seed", "N", RUN | VERB_SAMPLE | VERB_PLAN, AT(session.seed), .preset = "1", .subject = OF_BOTH,
     .help = "seed of all random numbers"},

    SECTION("Arithmetic and optimizer"),
    {OPTION_CHOICE, "dtype", "bf16|fp32|fp16", ALL, AT(session.dtype), .preset = "bf16", .choices = dtype_choices,
     .help = "type of parameters and activations; sums and master weights are FP32"},
    {OPTION_CHOICE, "moments", "fp32|bf16|8bit", ALL, AT(session.moments), .preset = "fp32",
     .choices = moments_choices, .help = "type of AdamW's two moments: 8, 4 or 2 bytes per parameter"},
    {OPTION_CHOICE, "master", "exact|24bit", ALL, AT(session.master), .preset = "exact", .choices = master_choices,
     .help = "master weights: exact FP32 (16 bits beside a bf16 weight) or their upper 24 bits (8 beside it)"},
    {OPTION_CHOICE, "grad-dtype", "fp32|bf16", ALL, AT(session.grad_dtype), .preset = "fp32",
     .choices = grad_dtype_choices,
     .help = "type of complete gradients, which wait for the optimizer: 4 or 2 bytes per parameter; they are "
             "summed in FP32"},
    {OPTION_FLAG, "gelu-fusion", NULL, ALL, AT(session.gelu_fusion),
     .help = "compute GELU in the product before it, of sums that are not rounded yet: fewer bytes on GPUs, and other "
             "numbers; for GPT-2 and models with the same GELU"},
    {OPTION_REAL, "lr", "X", RUN, VERB_PLAN, AT(session.lr), .preset = "1e-3", .max = 1e3,
     .help = "peak learning rate"},
    {OPTION_REAL, "min-lr", "X", RUN, VERB_PLAN, AT(session.min_lr), .unset = "a tenth of --lr", .max = 1e3,
     .help = "learning rate at the last step, where the cosine decay ends"},
    {OPTION_COUNT, "warmup", "N", RUN, VERB_PLAN, AT(session.warmup), .preset = "100", .max = 4e9,
     .help = "steps in which the learning rate rises to --lr"},
    {OPTION_REAL, "dropout", "P", ALL, AT(session.dropout), .preset = "0", .max = 0.999,
     .help = "dropout probability"},
    {OPTION_REAL, "beta1", "X", RUN, VERB_PLAN, AT(session.beta1), .preset = "0.9", .max = 0.999999,
     .help = "AdamW's decay of the first moment"},
    {OPTION_REAL, "beta2", "X", RUN, VERB_PLAN, AT(session.beta2), .preset = "0.99", .max = 0.999999,
     .help = "AdamW's decay of the second moment"},
    {OPTION_REAL, "eps", "X", RUN, VERB_PLAN, AT(session.eps), .preset = "1e-8", .min = 1e-30, .max = 1,
     .help = "AdamW's epsilon"},
    {OPTION_REAL, "weight-decay", "X", RUN, VERB_PLAN, AT(session.weight_decay), .preset = "0.1", .max = 1e3,
     .help = "AdamW's weight decay, of tensors with two or more dimensions"},
    {OPTION_REAL, "clip", "X", RUN, VERB_PLAN, AT(session.clip), .preset = "1", .max = 1e9,
     .help = "clip gradients to this global norm; 0: no clipping"},

    SECTION("Memory"),
    {OPTION_BUDGET, "budget", "SIZE|P%|P%dev|min|auto", VERB_TRAIN | VERB_PLAN, AT(session.budget),
     .unset = "auto", .subject = OF_BOTH,
     .help = "device memory: bytes, P% of the unconstrained peak, P%dev of the device, the smallest that fits (min), "
             "or the device's free memory (auto; on the host a part of it)"},
    {OPTION_TEXT, "budgets", "LIST", VERB_SWEEP, AT(budgets), .preset = "100%,60%,40%,25%,min",
     .help = "device budgets, separated by commas; each is one run"},
    {OPTION_COUNT, "repeat", "N", VERB_SWEEP, AT(n_repeats), .preset = "1", .min = 1, .max = 99,
     .help = "run everything N times, in rounds, and print medians with their spread"},
    {OPTION_SIZE, "host-budget", "SIZE", ALL, AT(session.host_budget_bytes), .subject = OF_BOTH,
     .unset = "80 % of the memory left free",
     .help = "host memory for values that leave the device; 0: none"},
    {OPTION_TEXT, "store", "DIR[,DIR...]", ALL | VERB_DOCTOR, AT(session.store), .unset = "no store",
     .help = "directory on a drive for values that leave memory; several directories, one per drive, share the bytes "
             "in proportion to the drives' speeds; write a comma in a name twice"},
    {OPTION_SIZE, "store-budget", "SIZE", ALL, AT(session.store_budget_bytes), .unset = "the free bytes there",
     .subject = OF_BOTH, .help = "drive space for --store, or with --cluster of a node"},
    {OPTION_FLAG, "durable", NULL, VERB_TRAIN | VERB_PLAN, AT(session.is_durable),
     .help = "keep all parameters and optimizer state in --store and publish them after every step: the same command "
             "continues after a kill or a power cut"},
    {OPTION_FLAG, "allow-tmpfs", NULL, ALL | VERB_DOCTOR, AT(session.allow_tmpfs),
     .help = "accept a --store directory in memory"},
    {OPTION_CHOICE, "recompute", "auto|none|selective|full", ALL, AT(session.recipe), .preset = "auto",
     .choices = recompute_choices,
     .help = "recompute activations in the backward pass: as the planner decides, none, the cheap ones, or all but the "
             "inputs of layers"},
    {OPTION_TEXT, "residency", "FILE", ALL, AT(session.residency_file), .unset = "the planner decides",
     .help = "fix where single values wait, by lines `PATTERN PLACE` (docs/residency.md)"},
    {OPTION_FLAG, "optimizer-in-backward", NULL, ALL, AT(session.optimizer_in_backward),
     .help = "update a parameter inside the backward pass, as soon as its gradient is complete, where the plan gains "
             "by it; needs --clip 0, and is not for fp16"},
    {OPTION_DEVICE, "device", "host|cuda:N|auto|dry", ALL | VERB_DOCTOR, AT(device), .preset = "host",
     .help = "device that trains: the host, GPU N, a GPU if one works and else the host (auto), or no device (dry: the "
             "same program on a simulated clock, without memory)"},
    {OPTION_TEXT, "machine", "NAME|FILE", ALL, AT(session.machine), .unset = "this one, measured", .subject = OF_BOTH,
     .help = "plan for a described machine: a preset or a file (docs/machines.md)"},
    {OPTION_SIZE, "link-rate", "SIZE", ALL, AT(session.throttle.bytes_per_s), .unset = "as fast as memory", .min = 1,
     .help = "limit copies between device and host to SIZE per second in each direction"},
    {OPTION_COUNT, "threads", "N", ALL | VERB_DOCTOR | VERB_SAMPLE, AT(n_threads), .unset = "all of the process",
     .min = 1, .max = 4096, .help = "CPU threads; numbers do not depend on them"},

    SECTION("Several ranks"),
    {OPTION_TEXT, "tp", "LIST", VERB_SWEEP, AT(sweep_sizes[0]), .unset = "1",
     .help = "tensor parallel ranks, separated by commas; a run for each, which lade launch starts"},
    {OPTION_TEXT, "pp", "LIST", VERB_SWEEP, AT(sweep_sizes[1]), .unset = "1",
     .help = "pipeline stages, separated by commas, likewise"},
    {OPTION_TEXT, "dp", "LIST", VERB_SWEEP, AT(sweep_sizes[2]), .unset = "1",
     .help = "data parallel replicas, separated by commas, likewise"},
    {OPTION_TEXT, "zero", "LIST", VERB_SWEEP, AT(sweep_sizes[3]), .unset = "0",
     .help = "ZeRO stages, separated by commas, likewise"},
    {OPTION_COUNT, "dp", "N", VERB_TRAIN | VERB_PLAN, AT(dp), .unset = "ranks / (--tp * --pp)", .min = 1,
     .max = 1e6, .help = "data parallel: N replicas, each with its part of --batch (lade launch starts the ranks)"},
    {OPTION_COUNT, "zero", "0..3", VERB_TRAIN | VERB_PLAN, AT(zero), .preset = "0", .max = 3,
     .help = "ZeRO stage: 1 shards optimizer state, 2 also gradients, 3 also parameters"},
    {OPTION_COUNT, "shard", "N", VERB_TRAIN | VERB_PLAN, AT(shard), .unset = "all replicas", .min = 1, .max = 1e6,
     .help = "replicas that --zero shards over; must divide --dp"},
    {OPTION_CHOICE, "grad-reduce", "fp32|bf16", VERB_TRAIN | VERB_PLAN, AT(grad_reduce), .preset = "fp32",
     .choices = grad_dtype_choices, .help = "type in which replicas sum gradients: bf16 sends half the bytes, and "
     "rounds each rank's gradient and the sum"},
    {OPTION_COUNT, "tp", "N", VERB_TRAIN | VERB_PLAN, AT(tp), .preset = "1", .min = 1, .max = 1e6,
     .help = "tensor parallel: shard the matrix products of each layer over N ranks"},
    {OPTION_FLAG, "sequence-parallel", NULL, VERB_TRAIN | VERB_PLAN, AT(is_sequence),
     .help = "with --tp: shard norms, dropout and the activations between layers too"},
    {OPTION_COUNT, "pp", "N", VERB_TRAIN | VERB_PLAN, AT(pp), .preset = "1", .min = 1, .max = 1e6,
     .help = "pipeline parallel: divide the layers into N stages"},
    {OPTION_REAL, "comm-timeout", "SECONDS", VERB_TRAIN, VERB_PLAN, AT(comm_timeout_s), .preset = "300", .min = 0.1,
     .max = 1e6, .help = "end the job if a live rank that is not loading or saving is late by this many seconds"},
    {OPTION_CHOICE, "schedule", "1f1b|gpipe|interleaved|zbh1|zbh2", VERB_TRAIN | VERB_PLAN, AT(schedule), .preset =
        "1f1b",
     .choices = schedule_choices, .help = "pipeline schedule: the order of microbatches in a stage"},
    {OPTION_COUNT, "virtual-stages", "N", VERB_TRAIN | VERB_PLAN, AT(virtual_stages), .preset = "1", .min = 1,
     .max = 1e4, .help = "chunks of layers per stage, for --schedule interleaved"},
    {OPTION_COUNT, "rank", "N", VERB_PLAN, AT(rank), .unset = "all", .max = 1e6,
     .help = "plan rank N alone"},
    {OPTION_FLAG, "every-rank", NULL, VERB_PLAN, AT(has_every_rank),
     .help = "build and prove the program of every rank, instead of one per stage; --device dry executes each"},
    {OPTION_FLAG, "detail", NULL, VERB_PLAN, AT(has_detail),
     .help = "print also the ledger, the time of each queue, the table of ranks, and the place of each value"},
    {OPTION_COUNT, "node-ranks", "N", VERB_PLAN, VERB_TRAIN, AT(n_node_ranks), .min = 1, .max = 1e6,
     .unset = "all; with --machine at most 8",
     .help = "ranks per node; they share --host-budget, --store-budget, drive and CPU threads"},

    SECTION("The run"),
    {OPTION_COUNT, "eval-every", "N", RUN, VERB_PLAN, AT(eval_every),
     .unset = "before the first and after the last step", .min = 1, .max = 4e9, .help = "steps between evaluations"},
    {OPTION_COUNT, "eval-iters", "N", RUN, VERB_PLAN, AT(session.eval_iters), .preset = "20", .min = 1,
     .max = 4e9, .help = "batches of validation data per evaluation"},
    {OPTION_TEXT, "log", "FILE", RUN, VERB_PLAN, AT(log), .unset = "none",
     .help = "write each step as a JSON line; a sweep appends the budget to the name"},
    {OPTION_TEXT, "html", "FILE", VERB_TRAIN, AT(html), .unset = "none",
     .help = "write the step's memory by owner, its largest buffers and its queues as one self-contained page"},
    {OPTION_TEXT, "save", "DIR", RUN, VERB_PLAN, AT(save), .unset = "none",
     .help = "write a checkpoint at the end and when interrupted; a sweep appends the budget to the name"},
    {OPTION_INTERVAL, "save-every", "N|auto", RUN, VERB_PLAN, AT(save_every), .unset = "at the end only", .min = 1,
     .max = 4e9,
     .help = "steps between checkpoints; auto: the best interval for --mtbf and the measured time of a save"},
    {OPTION_REAL, "mtbf", "SECONDS", RUN, VERB_PLAN, AT(mtbf_seconds), .unset = "unknown", .min = 1e-9,
     .max = 1e12, .help = "mean time between failures of the job: gives the best interval of saves (Young 1974)"},
    {OPTION_COUNT, "keep", "N", RUN, VERB_PLAN, AT(keep), .unset = "all", .min = 1, .max = 1e6,
     .help = "checkpoints to keep; older ones are removed"},
    {OPTION_SIZE, "save-file", "SIZE", RUN, VERB_PLAN, AT(session.save_file_bytes), .unset = "4GiB", .min = 1,
     .help = "largest tensor file of a checkpoint; a larger model has several, as HuggingFace's do"},
    {OPTION_TEXT, "resume", "DIR", RUN, VERB_PLAN, AT(session.resume), .unset = "start at step 0",
     .help = "continue from the newest checkpoint in DIR, bit for bit"},
    {OPTION_TEXT, "init", "FILE", RUN, VERB_PLAN, AT(session.init), .unset = "random",
     .help = "initial parameters: a HuggingFace safetensors file, or a directory with such files"},
    {OPTION_TEXT, "timeline", "FILE", ALL, AT(timeline), .unset = "none",
     .help = "write a step, predicted and measured, as a Perfetto trace; a sweep appends the budget to the name"},
    {OPTION_TEXT, "graph-out", "FILE", VERB_PLAN, AT(graph_out), .unset = "none",
     .help = "write the step of one rank as a graph, which lade plan --graph reads; the plan must keep all values on "
             "the device"},
    {OPTION_CHOICE, "max", "micro-batch|seq|layers", VERB_PLAN, AT(max), .choices = max_choices, .unset = "no search",
     .help = "search the largest --micro-batch, --seq or --layers that fits; one more exits 3"},

    SECTION("A cluster"),
    {OPTION_TEXT, "cluster", "NAME|FILE", VERB_PLAN, AT(cluster), .unset = "no cluster",
     .help = "plan on a described cluster: a preset (dgx-a100-80g, dgx-h100, dgx-h200, gb200-nvl72, p4d, p5, "
             "rtx4090x4) "
             "or a file (docs/cluster.md); times of all ranks, whether they fit or not"},
    {OPTION_COUNT, "ranks", "N", VERB_PLAN, AT(n_ranks), .unset = "--tp * --pp * --dp", .min = 1, .max = 1 << 24,
     .help = "devices of the cluster to use"},
    {OPTION_COUNT, "cp", "N", VERB_PLAN, AT(n_context), .preset = "1", .min = 1, .max = 1 << 16,
     .help = "context parallel: cut each sequence over N ranks; priced by formula, not proved"},
    {OPTION_COUNT, "ep", "N", VERB_PLAN, AT(n_expert_ranks), .preset = "1", .min = 1, .max = 1 << 16,
     .help = "expert parallel: N of the replicas share the experts of each layer; prices a mixture of experts by "
             "formula, not proved"},
    {OPTION_CHOICE, "software", "auto|lade|megatron|deepspeed|fsdp", VERB_PLAN, AT(software), .preset = "auto",
     .choices = software_choices,
     .help = "price the step of this project; auto: Lade without --recompute and in FP32, else FSDP for --zero 2 and "
             "3, DeepSpeed for --zero 1 on A100, else Megatron-LM (docs/cluster.md)"},
    {OPTION_FLAG, "fused-attention", NULL, VERB_PLAN, AT(has_fused_attention),
     .help = "price attention as fused at any length; otherwise A100 presets price that of models with learned "
             "positions, up to 2,048 keys, as the published runs of 2021 and 2022 computed it"},
    {OPTION_FLAG, "eager", NULL, VERB_PLAN, AT(is_eager),
     .help = "price elementwise ops as PyTorch runs them without torch.compile, a kernel each; in no program of Lade"},
    {OPTION_FLAG, "fused-norms", NULL, VERB_PLAN, AT(has_fused_norms),
     .help = "price an RMS norm as one kernel where other ops are PyTorch's, as FlashAttention's "
             "and Apex's are"},
    {OPTION_FLAG, "overlap-tensor", NULL, VERB_PLAN, AT(overlaps_tensor),
     .help = "price the collectives of --sequence-parallel as run beside products, as Megatron-LM's --tp-comm-overlap "
             "does and no program of Lade"},
    {OPTION_FLAG, "late-gathers", NULL, VERB_PLAN, AT(gathers_late),
     .help = "price ZeRO 3's gathers of the backward half beside no kernel, as FSDP's BACKWARD_POST has them and no "
             "program of Lade"},
    {OPTION_FLAG, "search", NULL, VERB_PLAN, AT(has_search),
     .help = "search layouts of --ranks; options that are given confine the search"},
    {OPTION_FLAG, "any-precision", NULL, VERB_PLAN, AT(is_any_precision),
     .help = "with --search: search precisions of optimizer states too, as --moments and --master name them; one that "
             "is given confines the search. Other precisions train to other numbers"},
    {OPTION_COUNT, "top", "K", VERB_PLAN, AT(n_top), .preset = "5", .min = 1, .max = 1000,
     .help = "layouts to print, the fastest of each (tp, pp, dp); each is built as programs and proved"},
    {OPTION_REAL, "tokens", "T", VERB_PLAN, AT(n_train_tokens), .unset = "none", .min = 1, .max = 1e18,
     .help = "tokens of the training: adds its days and device-hours"},
    {OPTION_FLAG, "explain", NULL, VERB_PLAN, AT(has_explain), .help = "say in sentences why the layout is as it is"},
    {OPTION_REAL, "noise-scale", "TOKENS", VERB_PLAN, AT(noise_scale_tokens), .unset = "unknown", .min = 1,
     .max = 1e15, .help = "gradient noise scale of the training, for --explain: the batch beyond which tokens are "
            "wasted"},
    {OPTION_CHOICE, "export", "megatron|deepspeed|torchtitan|torchtitan-py|fsdp2|lade", VERB_PLAN,
     AT(export_format),
     .choices = export_choices, .unset = "none",
     .help = "print the layout, with --search the best one, as options or settings of that project"},

    SECTION("A graph of your own"),
    {OPTION_TEXT, "graph", "FILE", VERB_PLAN, AT(graph), .unset = "plan a model", .subject = OF_GRAPH,
     .help = "plan the step in FILE, ops and storages as JSON (docs/graph.md), instead of a model; -: standard input. "
             "--budget auto is no limit then; --host-budget and --store-budget are 0 unless given, and need --machine, "
             "for its links"},
    {OPTION_REAL, "seconds", "S", VERB_PLAN, AT(search_seconds), .unset = "no limit", .min = 0.001, .max = 86400,
     .subject = OF_GRAPH, .help = "time of the search; a frontier shares it among its budgets"},
    {OPTION_COUNT, "iterations", "N", VERB_PLAN, AT(n_iterations), .min = 1, .max = 1e15, .subject = OF_GRAPH,
     .unset = "with --seconds no limit, else 100000 for each budget, or fewer for experts",
     .help = "moves that the search tries; a frontier shares them among its budgets"},
    {OPTION_TEXT, "instructions", "FILE", VERB_PLAN, AT(instructions), .unset = "none", .subject = OF_GRAPH,
     .help = "write the plan as JSON: its ops, redos, drops and moves in their order"},
    {OPTION_FLAG, "frontier", NULL, VERB_PLAN, AT(has_frontier), .subject = OF_BOTH,
     .help = "plan a model or a graph at up to 16 budgets, from the smallest one to the unconstrained peak: time "
             "against memory"},
    {OPTION_TEXT, "svg", "FILE", VERB_PLAN, AT(svg), .unset = "none", .subject = OF_BOTH,
     .help = "draw the frontier"},

    SECTION("Token files"),
    {OPTION_FILES, "texts", "FILE...", VERB_DATA, AT(texts), .unset = "required",
     .help = "texts, JSON Lines (.jsonl, .ndjson) or Parquet (.parquet), which form one stream in this order; the "
             "option's name may be omitted: lade data FILE..."},
    {OPTION_TEXT, "tokenizer", "FILE", VERB_DATA, AT(tokenizer), .unset = "required",
     .help = "tokenizer.json of HuggingFace's tokenizers, or a directory that has it"},
    {OPTION_TEXT, "output", "DIR", VERB_DATA, AT(output), .unset = "required",
     .help = "new directory for the token files and the tokenizer; -o DIR for short"},
    {OPTION_CHOICE, "format", "auto|text|jsonl|parquet", VERB_DATA, AT(text_format), .preset = "auto",
     .choices = text_format_choices, .help = "format of the files; auto: by their names, others are texts"},
    {OPTION_TEXT, "field", "NAME", VERB_DATA, AT(field), .preset = "text",
     .help = "field of a JSON line, or column of a Parquet file, that has the text of a document"},
    {OPTION_CHOICE, "documents", "file|line|paragraph", VERB_DATA, AT(documents), .preset = "file",
     .choices = document_choices,
     .help = "documents of a text: the whole file, each line that is not blank, or texts between blank lines"},
    {OPTION_TEXT, "separator", "TOKEN|none", VERB_DATA, AT(separator), .unset = "the tokenizer's end of text",
     .help = "token after each document"},
    {OPTION_FLAG, "special-tokens", NULL, VERB_DATA, AT(has_special_tokens),
     .help = "text that spells a special token becomes this token, instead of tokens of its letters"},
    {OPTION_REAL, "valid-fraction", "F", VERB_DATA, AT(data_valid_fraction), .preset = "0", .max = 0.9,
     .help = "fraction that goes to validation files: of the documents, or the end of each text that is one document"},
    {OPTION_COUNT, "processes", "N", VERB_DATA, AT(n_processes), .unset = "one for each CPU", .min = 1, .max = 1024,
     .help = "processes that make tokens; the files do not depend on them"},

    SECTION("Text"),
    {OPTION_TEXT, "checkpoint", "DIR", VERB_SAMPLE, AT(checkpoint), .unset = "required",
     .help = "directory with checkpoints or HuggingFace files; the option's name may be omitted: lade sample DIR"},
    {OPTION_TEXT, "prompt", "TEXT", VERB_SAMPLE, AT(prompt), .preset = "\n", .help = "text to continue"},
    {OPTION_COUNT, "tokens", "N", VERB_SAMPLE, AT(n_tokens), .preset = "500", .min = 1, .max = 1e9,
     .help = "tokens to write: of the checkpoint's tokenizer.json, or bytes without one"},
    {OPTION_REAL, "temperature", "X", VERB_SAMPLE, AT(temperature), .preset = "0.8", .max = 100,
     .help = "sampling temperature; 0: always the most likely token"},
    {OPTION_COUNT, "top-k", "N", VERB_SAMPLE, AT(top_k), .unset = "all", .min = 1, .max = SHAPE_MAX,
     .help = "sample from the N most likely tokens"},

    SECTION("Replay"),
    {OPTION_TEXT, "trace", "FILE", VERB_REPLAY, AT(trace), .unset = "required",
     .help = "PyTorch memory snapshot (.pickle), lifetimes as CSV (id,lower,upper,size), or a lade-trace; the option's "
             "name may be omitted: lade replay FILE"},
    {OPTION_CHOICE, "policy", "caching|torch-native|torch-expandable|packed|all", VERB_REPLAY, AT(policy),
     .preset = "all", .choices = policy_choices,
     .help = "allocator: Lade's caching allocator; a model of PyTorch's, plain or with expandable segments; the "
             "packer, which knows all lifetimes in advance"},
    {OPTION_SIZE, "budget", "SIZE", VERB_REPLAY, AT(replay_budget_bytes), .unset = "no limit", .min = 1,
     .help = "limit of reserved memory; if a policy needs more, exits 3 and says where memory runs out"},
    {OPTION_REAL, "seconds", "S", VERB_REPLAY, AT(seconds), .preset = "2", .min = 0.001, .max = 86400,
     .help = "time limit of the packer's search; it stops earlier at the budget or at the lower bound"},
    {OPTION_TEXT, "html", "FILE", VERB_REPLAY, AT(html), .unset = "none",
     .help = "draw memory over time as one self-contained page"},

    SECTION("Other programs"),
    {OPTION_TEXT, "budget", "SIZE|P%", VERB_RUN, AT(run_budget), .unset = "no limit",
     .help = "device memory of each process on each device: bytes, or P% of the device; memory is counted in any case"},
    {OPTION_TEXT, "report", "FILE", VERB_RUN, AT(report), .unset = "none",
     .help = "write the memory of each process as JSON"},

    SECTION("Measuring"),
    {OPTION_FLAG, "probe", NULL, VERB_DOCTOR, AT(has_probe),
     .help = "measure the rates of this machine anew, and replace those that earlier runs have kept"},
    {OPTION_TEXT, "dir", "DIR", VERB_BENCH_STORE, AT(bench_dir), .unset = "required",
     .help = "directory on the drive to measure; its files are removed"},
    {OPTION_SIZE, "size", "SIZE", VERB_BENCH_STORE, AT(bench_bytes), .preset = "4GiB", .min = 8 << 20,
     .help = "bytes per pass, a multiple of 8MiB; the drive needs five times as many free"},
    {OPTION_COUNT, "rounds", "N", VERB_BENCH_STORE, AT(n_rounds), .preset = "5", .min = 1, .max = 99,
     .help = "rounds of measurement; results are medians"},

    {OPTION_DEVICE, "device", "host|cuda:N", VERB_BENCH_LINKS, AT(device), .preset = "host",
     .help = "links to measure: of ranks on hosts, or of their GPUs from GPU N on, one each, through NCCL"},
    {OPTION_TEXT, "write", "FILE", VERB_BENCH_LINKS, AT(links_file), .unset = "none",
     .help = "write the measured cluster, for lade plan --cluster FILE"},

    SECTION("The command"),
    {OPTION_FLAG, "json", NULL,
     ALL | VERB_DATA | VERB_DOCTOR | VERB_BENCH | VERB_BENCH_STORE | VERB_BENCH_LINKS | VERB_REPLAY,
     AT(is_json), .subject = OF_BOTH, .help = "print results as JSON"},
    {OPTION_FLAG, "quiet", NULL, ALL | VERB_DATA, AT(is_quiet), .subject = OF_BOTH,
     .help = "print no progress on stderr"},
    {OPTION_TEXT, "config", "FILE", ALL, AT(config), .unset = "none",
     .subject = OF_BOTH, .help = "read options from `name = value` lines; the command line overrides them"},
    {OPTION_FLAG, "print-config", NULL, ALL, AT(has_print_config),
     .subject = OF_BOTH, .help = "print each option's value and origin as a --config file, and stop"},
    {OPTION_FLAG, "help", NULL, ~0u, AT(has_help), .subject = OF_BOTH, .help = "print this page and stop"},
    {0},
};

_Static_assert(LADE_COUNT(option_table) <= OPTIONS_MAX, "OPTIONS_MAX is too small");

struct verb_page {
  enum verb_id verb;
  const char *name, *page;
};

static const struct verb_page verb_pages[] = {
    {VERB_TRAIN, "train",
     "Examples:\n"
     "  lade train --model nano --data input.txt                       2000 steps in the memory that is free\n"
     "  lade train --model baby --data input.txt --batch 16 --budget 60%\n"
     "  lade train --data input.txt --budget min --host-budget 0 --store /nvme/scratch    as little memory as\n"
     "                                                                  possible, over a drive\n"
     "  lade train --data input.txt --save run --save-every 500         checkpoints; then, after a stop:\n"
     "  lade train --data input.txt --save run --resume run\n"
     "  lade train --data input.txt --store /nvme/scratch --durable    after a crash, the same line continues\n"
     "\nUsage: lade train --data FILE... [OPTION...]\n"
     "Trains a model inside a memory budget, with the numbers of the unconstrained run.\n"},
    {VERB_SWEEP, "sweep",
     "Examples:\n"
     "  lade sweep --model nano --data input.txt --steps 200\n"
     "  lade sweep --model baby --data input.txt --steps 20 --budgets 100%,50%,min --host-budget 0 --json\n"
     "  lade sweep --data input.txt --steps 20 --budgets 100% --dp 1,2 --zero 0,1 --repeat 3\n"
     "  lade sweep --model gpt3-175b --batch 64 --machine h100-80g --device dry --tp 8 --dp 8,16 --zero 1,3 --budgets "
     "min,80GB\n"
     "\nUsage: lade sweep --data FILE... [--budgets LIST] [OPTION...]\n"
     "Trains the same model at several budgets and in several layouts, one process or job each, and compares memory,\n"
     "speed and numbers. Exits 6 if the numbers of one layout differ. --device dry plans layouts instead.\n"},
    {VERB_PLAN, "plan",
     "Examples:\n"
     "  lade plan --model baby --batch 16 --budget 40%           the place of each value, and its cost\n"
     "  lade plan --model gpt3-175b --batch 1 --machine h100-80g --store /nvme --device dry\n"
     "  lade plan --model baby --max micro-batch --budget 512MiB the largest that fits\n"
     "  lade plan --cluster dgx-h100 --ranks 1024 --model llama3-70b --batch 2048 --seq 8192 --search\n"
     "  lade plan --graph step.json --budget 60% --instructions plan.json    a step of your own\n"
     "  lade plan --graph step.json --frontier --svg frontier.svg  its time at every budget\n"
     "\nUsage: lade plan [OPTION...]\n"
     "Plans without running. Accepts every option of `lade train`; those that change a plan are below.\n"
     "With --graph, the options of models are refused.\n"
     "Exits 3 and names the smallest budget if the model or the graph does not fit.\n"},
    {VERB_DOCTOR, "doctor",
     "Examples:\n"
     "  lade doctor                       features of this machine, and how to get missing ones\n"
     "  lade doctor --store /nvme/scratch the same, and whether that directory can be a store\n"
     "  lade doctor --probe               measures the machine anew; better when it is idle\n"
     "\nUsage: lade doctor [OPTION...]\n"
     "Exits 7 if a requested feature, or one that every run needs, is missing.\n"},
    {VERB_BENCH, "bench",
     "Examples:\n"
     "  lade bench adam                   the optimizer: exact, compact, in three passes, and memory's speed\n"
     "  lade bench alloc                  an allocation and a free: the caching allocator, a best fit, malloc\n"
     "  lade bench alloc --json           the same for a script\n"
     "  lade bench store --dir /nvme/x    a drive: the store with and without checksums, fio\n"
     "  lade launch -n 4 -- bench links   the links between the ranks of a job\n"
     "\nUsage: lade bench NAME [OPTION...]\n"
     "Measures a part of Lade on this machine, in turns with the usual alternatives. The machine should be idle.\n"},
    {VERB_BENCH_STORE, "bench store",
     "Examples:\n"
     "  lade bench store --dir /nvme/scratch                         five rounds of 4 GiB\n"
     "  lade bench store --dir /nvme/scratch --size 512MiB --json    a quick one, for a script\n"
     "\nUsage: lade bench store --dir DIR [OPTION...]\n"
     "Measures the sequential bandwidth of the store, and of fio if it is installed. A round moves up to twelve\n"
     "times --size. Ratios are to fio's rate in the same round.\n"},
    {VERB_BENCH_LINKS, "bench links",
     "Examples:\n"
     "  lade launch -n 4 -- bench links                        rates and latencies between four ranks\n"
     "  lade launch -n 4 -- bench links --write cluster.json   the same, and a file for lade plan --cluster\n"
     "  lade launch -n 8 -- bench links --device cuda:0        of eight GPUs, through NCCL\n"
     "\nUsage: lade launch -n N -- bench links [OPTION...]\n"
     "Measures collectives of ranks within a node and between nodes; mpirun and srun start it too. The links are kept\n"
     "for the predictions of later jobs with as many ranks. The first rank probes the machine, unless an earlier run\n"
     "has kept its rates.\n"},
    {VERB_DATA, "data",
     "Examples:\n"
     "  lade data books/*.txt --tokenizer tokenizer.json -o books.tokens\n"
     "  lade data pages.jsonl --field body --valid-fraction 0.01 --tokenizer llama/ -o pages\n"
     "  lade train --model llama/ --data pages/train.bin --valid pages/valid.bin\n"
     "\nUsage: lade data FILE... --tokenizer FILE -o DIR [OPTION...]\n"
     "Writes texts as token files for `lade train`, with a copy of the tokenizer. Needs Python 3.10, its packages\n"
     "lade and tokenizers, and pyarrow for Parquet; LADE_PYTHON names the Python. DIR appears when all is written.\n"},
    {VERB_SAMPLE, "sample",
     "Examples:\n"
     "  lade sample run                             text from the newest checkpoint in run/\n"
     "  lade sample run --prompt 'ROMEO:' --tokens 200 --temperature 0.7 --top-k 40\n"
     "\nUsage: lade sample DIR [OPTION...]\n"
     "Prints text from a model. Its tokens are those of a tokenizer.json in its directory, which needs Python;\n"
     "without one they are bytes.\n"},
    {VERB_RUN, "run",
     "Examples:\n"
     "  lade run -- python train.py                      the program's GPU memory, by kind\n"
     "  lade run --budget 24GiB -- python train.py       out of memory there, as on a smaller GPU\n"
     "  lade run --budget 80% --report held.json -- ./my-program --its-option\n"
     "\nUsage: lade run [OPTION...] -- COMMAND [ARGUMENT...]\n"
     "Runs an unmodified CUDA program with a library in front of the CUDA driver that counts and limits its memory.\n"
     "Each child process is counted on its own. Exits with the command's code; 7 if the command succeeded but no\n"
     "process started the driver.\n"},
    {VERB_REPLAY, "replay",
     "Examples:\n"
     "  lade replay snapshot.pickle                     reserved memory of a PyTorch program, by policy\n"
     "  lade replay snapshot.pickle --policy caching --budget 8GiB    the allocation that fails, if any\n"
     "  lade replay buffers.csv --policy packed --seconds 0.5 --json\n"
     "  lade replay snapshot.pickle --html memory.html  with a picture of memory over time\n"
     "\nUsage: lade replay FILE [OPTION...]\n"
     "Replays a trace of allocations without memory. Prints the peak of reserved memory for each policy, and the\n"
     "wasted part of it. Snapshots are read as data: a pickle that calls functions is refused.\n"},
};

const struct option *option_find(enum verb_id verb, const char *name, size_t name_bytes)
{
  const struct option *found = NULL;
  for (const struct option *option = option_table; option->help; option++) {
    if (!option->name || strlen(option->name) != name_bytes || memcmp(option->name, name, name_bytes) != 0)
      continue;
    if ((option->verbs | option->silent) & verb)
      return option;
    found = found ? found : option;
  }
  return found;
}

const struct option *option_successor(enum verb_id verb, const char *name, size_t name_bytes)
{
  for (size_t i = 0; i < LADE_COUNT(replaced_options); i++) {
    const char *old = replaced_options[i].name, *successor = replaced_options[i].successor;
    if (strlen(old) == name_bytes && memcmp(old, name, name_bytes) == 0) {
      const struct option *option = option_find(verb, successor, strlen(successor));
      return (option->verbs | option->silent) & verb ? option : NULL;
    }
  }
  return NULL;
}

const char *option_absence(enum verb_id verb, const char *name)
{
  for (size_t i = 0; i < LADE_COUNT(absent_options) && (verb & ALL); i++) {
    if (strcmp(absent_options[i].name, name) == 0)
      return absent_options[i].reason;
  }
  return NULL;
}

static const struct verb_page *page_find(enum verb_id verb)
{
  for (size_t i = 0; i < LADE_COUNT(verb_pages); i++) {
    if (verb_pages[i].verb == verb)
      return &verb_pages[i];
  }
  return NULL;
}

const char *verb_name(enum verb_id verb)
{
  return page_find(verb)->name;
}

static const char *default_of(const struct option *option)
{
  if (option->type == OPTION_FLAG)
    return "off";
  if (!option->preset)
    return option->unset;
  return strcmp(option->preset, "\n") == 0 ? "a line break" : option->preset;
}

/* Print @text from HELP_COLUMN on, broken between words at HELP_COLUMNS. */
static void text_wrap(const char *text, FILE *file)
{
  int column = HELP_COLUMN;
  while (*text) {
    int n = (int)strcspn(text, " ");
    if (column > HELP_COLUMN && column + 1 + n > HELP_COLUMNS) {
      fprintf(file, "\n%*s", HELP_COLUMN, "");
      column = HELP_COLUMN;
    }
    column += fprintf(file, "%s%.*s", column > HELP_COLUMN ? " " : "", n, text);
    text += n + (text[n] == ' ');
  }
  fputc('\n', file);
}

static void option_print(const struct option *option, FILE *file)
{
  char left[64], text[512];
  snprintf(left, sizeof(left), "--%s%s%s", option->name, option->metavar ? " " : "",
           option->metavar ? option->metavar : "");
  if (strlen(left) > HELP_COLUMN - 4)
    fprintf(file, "  %s\n%*s", left, HELP_COLUMN, "");
  else
    fprintf(file, "  %-*s", HELP_COLUMN - 2, left);
  snprintf(text, sizeof(text), "%s [%s]", option->help, default_of(option));
  text_wrap(text, file);
}

void options_help(enum verb_id verb, FILE *file)
{
  const struct option *section = NULL;
  fputs(page_find(verb)->page, file);
  for (const struct option *option = option_table; option->help; option++) {
    if (option->type == OPTION_SECTION)
      section = option;
    else if (option->verbs & verb) {
      if (section)
        fprintf(file, "\n%s: [default]\n", section->help);
      section = NULL;
      option_print(option, file);
    }
  }
  fprintf(file, "\nSizes are 512MiB, 24GiB, 1.5GB or bytes. Exit codes: lade --help. Pages such as docs/guide.md: the\n"
                "source, or %s.\n", LADE_PAGES);
}
