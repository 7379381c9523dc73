/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cost of a layout on a cluster: its step time and its memory, without a program for each rank.
 *
 * Ranks of a stage are alike, layers are alike, and microbatches are alike. So the graph of one layer between an
 * embedding and a head is built once per share of it. Its ops are ordered as the program builder orders them
 * (build/sequence.c, recompute included). Each takes the price that the program's instructions take (lade_cost_prices).
 * Layers make up pieces, pieces a schedule (parallel/schedule.h), and the schedule a step, with the collectives of data
 * parallel ranks and the update. Time does not grow with ranks of a stage.
 *
 * All functions: any thread; no state is shared.
 */
#ifndef LADE_LAYOUT_COST_H
#define LADE_LAYOUT_COST_H

#include "graph/experts.h"
#include "lade/plan.h"
#include "machine/cluster.h"
#include "parallel/schedule.h"
#include "program/program.h"

/* The project whose step a price is of (software.c). */
enum lade_software {
  LADE_SOFTWARE_AUTO, /* the one that the layout suggests */
  LADE_SOFTWARE_LADE,
  LADE_SOFTWARE_MEGATRON,
  LADE_SOFTWARE_DEEPSPEED,
  LADE_SOFTWARE_FSDP,
  LADE_N_SOFTWARE
};

/* All properties that a layout's parts depend on, beside the layout. */
struct lade_layout_job {
  const struct lade_cluster *cluster; /* borrowed, as the model and the kernels */
  const struct lade_model *model;
  const struct lade_kernels *kernels; /* of the host: graphs ask them for scratch */
  int64_t batch, seq_len;
  enum lade_dtype dtype, grad_dtype;
  enum lade_moments moments;
  enum lade_master master;
  double dropout;
  bool fuses_gelu_fwd; /* as in struct lade_model_graph_params */
  enum lade_software software;
  /* Properties of its steps, whichever software runs them: */
  bool overlaps_tensor; /* gathers and scatters of sequence parallel ranks run beside their products (share_cost.c) */
  bool gathers_late;    /* ZeRO 3's gathers of the backward half run beside no kernel (layout_cost.c) */
  bool is_eager;        /* elementwise ops are not fused (lade_cost) */
  bool has_fused_norms; /* of eager ops: RMS norms are one kernel (lade_cost) */
  bool has_fused_attention; /* at any length, also where the device has a price for scores in memory */
  bool stores_values;   /* values of layers may wait on the device's drives */
  int n_context; /* context parallel ranks, each with seq_len tokens of a sequence; 0: 1 */
  const struct lade_experts *experts; /* borrowed; @model is its dense one (lade_experts_dense_model); NULL: none */
  int n_expert_ranks;                 /* of the replicas, that divide each layer's experts; pre: divides their number */
  double expert_capacity;             /* an expert's rows over its share of a balanced load */
  const int64_t *const *cuts; /* by number of pieces, up to lade_pieces_max: the layers of each piece; NULL, or a NULL
                                 entry: they are computed */
};

/* One unit of a model on one rank: an embedding, a layer, a head. */
struct lade_unit_cost {
  double forward_ns, backward_ns; /* of a microbatch; backward with recompute and weights' gradients */
  double skipped_ns;              /* of backward, under full recompute: ops that frameworks run again and a program
                                     of Lade does not, because no backward op reads their results */
  double weights_ns;              /* of backward: gradients of parameters alone */
  double unhidden_ns;             /* of collectives that these hide, and do not where they are a slot of their own */
  double tensor_ns[2];            /* of both halves: tensor parallel collectives, while their bytes move */
  double attention_ns[2];         /* of forward and of backward, recompute included: attention alone */
  double exposed_ns;              /* of both: time that computing waits for tensor parallel collectives */
  double saved_bytes;             /* held for backward by a microbatch */
  double peak_bytes;              /* live in its backward half beyond its own saved values */
  double bound_peak_bytes[LADE_ZERO_MAX + 1]; /* lower bounds of that, by ZeRO stage: see share_cost.c */
  double weights_bytes;           /* read by weights' gradients: held until these are made, where that is a slot of
                                     its own */
  double bound_weights_bytes;     /* a lower bound of these: on the device from the backward half on, or before */
  double host_bytes;              /* saved in host memory by a microbatch; its copies are part of both halves' times */
  double store_bytes;             /* the same on drives, by way of host memory */
  double store_max_bytes;         /* of the largest of these values */
  double again_flops;             /* of ops that run again, attention's whole square counted */
  int64_t n_params;               /* of this rank */
  int64_t n_expert_params;        /* of these, of experts: on 1 / n_expert_ranks of the replicas */
};

#define LADE_LAYER_VALUES_MAX 64 /* forward values of a layer that the solver may move */

/* Where the values of each layer wait for the backward half. */
struct lade_layer_residency {
  enum lade_recipe recipe; /* AUTO: by the policies below; else a rule (lade_residency_apply_recipe) */
  int n;
  uint8_t saved[LADE_LAYER_VALUES_MAX]; /* enum lade_residency_policy, by forward value in the order of their ops */
};

/* The units of a share: made once for all layouts with equal tp, is_sequence, microbatch, residency and software. */
struct lade_share_cost {
  struct lade_unit_cost embed, layer, head;
  struct lade_layer_residency residency;
  enum lade_software software; /* not AUTO */
};

struct lade_share_key {
  int tp;
  bool is_sequence;
  int64_t micro_batch;
  enum lade_recipe recipe; /* AUTO: lade_share_residencies_make alone takes it */
  enum lade_software software; /* lade_software_of the layout */
  const struct lade_model_graph *graph; /* borrowed: lade_share_graph_make's of this key; NULL: it is made */
};

/* ---- software (software.c) ---- */

/* Return the software whose step a layout of ZeRO stage @zero with @recipe is priced as: the job's, if it names one. */
enum lade_software lade_software_of(const struct lade_layout_job *job, int zero, enum lade_recipe recipe);

/* True if the job's device and type have prices for ops as PyTorch runs them: kernels, and 16 bits. */
bool lade_software_has_eager(const struct lade_layout_job *job);

/* True if elementwise ops and sums of gradients are kernels of their own. */
bool lade_software_is_eager(const struct lade_layout_job *job, enum lade_software software);

/* True if collectives of sequence parallel ranks run beside products. */
bool lade_software_overlaps_tensor(const struct lade_layout_job *job, enum lade_software software);

/* True if a pipeline of @n_stages scatters gradients under ZeRO 2 and 3 once a step; false: once a microbatch. */
bool lade_software_scatters_once(enum lade_software software, int n_stages);

/* True for steps of FSDP as runs of 2022 and 2023 had them: slower attention, and gathers that are late. */
bool lade_software_is_early_fsdp(const struct lade_layout_job *job, enum lade_software software);

/* True if ZeRO 3's gathers of the backward half run beside no kernel. */
bool lade_software_gathers_late(const struct lade_layout_job *job, enum lade_software software);

/* True if sums over replicas of shard groups have a queue of their own; false: that of gathers and scatters. */
bool lade_software_sums_apart(enum lade_software software);

/* True if gathered parameters and gradients to be scattered are copied out of and into one flat buffer. */
bool lade_software_copies_flat(enum lade_software software);

/* True if full recompute stops at the last value that the backward half reads. */
bool lade_software_stops_early(enum lade_software software);

/* Return the parameters whose gradients one collective sums over @n_replicas; 0: those of a layer. */
double lade_software_bucket_params(const struct lade_layout_job *job, enum lade_software software, int n_replicas);

/* Compute the units of a share. -EINVAL: the model cannot be shared so, with a line; -ENOMEM. */
int lade_share_cost_make(const struct lade_layout_job *job, const struct lade_share_key *key, struct lade_error *error,
                         struct lade_share_cost *ret_cost);

/* ---- residencies of a layer (layer_residency.c) ---- */

#define LADE_SHARE_RESIDENCIES_MAX 48

/*
 * A share under several residencies of its layers: the fastest first, and each needs fewer bytes of the device, of the
 * host or of the drives than each before it.
 */
struct lade_share_residencies {
  int n;
  struct lade_share_cost items[LADE_SHARE_RESIDENCIES_MAX];
};

/* Make the graph of @key's layer, whatever its recipe and software. Errors as lade_share_cost_make's. */
int lade_share_graph_make(const struct lade_layout_job *job, const struct lade_share_key *key,
                          struct lade_error *error, struct lade_model_graph **ret_graph);

/*
 * Compute the residencies of @key's recipe, with the job's experts and context parallel ranks. AUTO: those of the
 * residency planner's solver. It begins with all values kept, and recomputes values or copies them to the host if the
 * device has links there, or to drives if the job stores values; and the recipes that none of these beats. Another
 * recipe has one: @ret_residencies may then end behind its first item. Errors as lade_share_cost_make's.
 */
int lade_share_residencies_make(const struct lade_layout_job *job, const struct lade_share_key *key,
                                struct lade_error *error, struct lade_share_residencies *ret_residencies);

/*
 * Write the names of a layer's values with @policy, "attn.qkv, mlp.fc", into @ret_text. @key is the share's. Errors as
 * lade_share_cost_make's.
 */
int lade_layer_residency_names(const struct lade_layout_job *job, const struct lade_share_key *key,
                               const struct lade_layer_residency *residency, int policy, size_t text_bytes,
                               char *ret_text);

/*
 * Make @share, of a job with 1/@size of each sequence, that of @size context parallel ranks (context_cost.c): by
 * formula. pre: the job has_fused_attention, and its layouts have @size times the replicas.
 */
void lade_context_cost_add(const struct lade_layout_job *job, const struct lade_share_key *key, int size,
                           struct lade_share_cost *share);

/*
 * Write the dense model from which the cost of @experts begins (experts_cost.c). -EINVAL with a line: latent attention,
 * or sizes that no model has.
 */
int lade_experts_dense_model(const struct lade_experts *experts, struct lade_error *error,
                             struct lade_model *ret_model);

/* Make @share, of a job's dense model, that of its experts: by formula. Nothing without experts. */
void lade_experts_cost_add(const struct lade_layout_job *job, const struct lade_share_key *key,
                           struct lade_share_cost *share);

/* Return the layers of each of @n_pieces (lade_piece_layers), which the caller frees. -EINVAL; -ENOMEM. */
int lade_layers_cut(const struct lade_model *model, int64_t seq_len, int n_pieces, struct lade_error *error,
                    int64_t **ret_layers);

#define LADE_LAYOUT_SIZES_MAX 8 /* different numbers of parameters of stages */

struct lade_layout_cost {
  double step_ns;
  double bubble;             /* share of the step in which the busiest stage waits for other stages */
  double stage_bubble;       /* the same share of the longest time from a stage's first half to its last */
  double exposed;            /* share of the step in which computing waits for collectives */
  double grad_ns, update_ns; /* of step_ns: exposed sums of gradients and gathers; the update */
  double skipped_ns;         /* of step_ns, under full recompute: rerun by frameworks, left out by Lade's programs */
  uint64_t peak_bytes;       /* device memory of the fullest stage */
  uint64_t bound_bytes;      /* a lower bound of its proved bytes */
  uint64_t state_bytes;      /* of it: parameters, gradients, optimizer state */
  uint64_t host_bytes;       /* host memory of a rank: saved values and optimizer state there */
  uint64_t bound_host_bytes; /* a lower bound of its proved bytes */
  uint64_t store_bytes;      /* of a rank on its node's drives: saved values, optimizer state and its gradients */
  uint64_t bound_store_bytes; /* a lower bound of its proved bytes */
  uint64_t bound_sum_bytes;  /* a lower bound of a rank's bytes on device and host together, at one moment */
  int n_stages;              /* stages that may need the most memory: of those with equal parameters, one with the */
  int stages[LADE_LAYOUT_SIZES_MAX];  /* most values */
  double model_flops, hardware_flops; /* of a step over all ranks; hardware counts recompute */
};

/* A layout to price. Borrows all; the layout's mesh decides the links. */
struct lade_layout_cost_params {
  const struct lade_layout_job *job;
  const struct lade_layout *layout;
  int64_t micro_batch;
  const struct lade_share_cost *share; /* of the layout's ranks */
};

/*
 * Compute the cost of a layout. @state_tier: that of optimizer state; pre, if it is STORE: the job's device has a
 * store, and memory of its own. -EINVAL with a line if batch or layers do not divide as they must; -ENOMEM.
 */
int lade_layout_cost_make(const struct lade_layout_cost_params *params, enum lade_tier state_tier,
                          struct lade_error *error, struct lade_layout_cost *ret_cost);

/*
 * The part of a cost that all ZeRO stages and shard groups of a layout share: its pipeline's time, and the sizes of its
 * stages. A plain value; borrows the share.
 */
struct lade_layout_core {
  const struct lade_share_cost *share;
  struct lade_pipeline pipeline;
  double span_ns, busy_ns;         /* of the pipeline, and of its busiest stage */
  double stage_span_ns;            /* as lade_schedule_times has it */
  double n_layers;                 /* of the first stage */
  double forward_ns, backward_ns;  /* of a microbatch there, over its chunks */
  double gather_ns;                /* of both halves of a microbatch: gathers of a middle stage's scattered inputs */
  double tensor_ns[2], copies_ns[2]; /* of both halves, of a microbatch there, while bytes move: tensor parallel
                                        collectives; copies of values to the host and back */
  double params[2];                /* of a rank of the first stage and of the last */
  double expert_share;             /* part of them that are of experts */
  int n_sizes;
  struct {
    double n_params, values_bytes; /* values: the most of the stages with so many parameters */
    double host_bytes, store_bytes; /* of values of that stage on the host, and on drives */
    double bound_bytes[2];         /* lower bounds of saved values: while no gradients are held, and while all are */
    double bound_away_bytes;       /* of values that are copied to the host and not read again, at the first of these */
    int stage;                     /* the first with these */
  } sizes[LADE_LAYOUT_SIZES_MAX];
};

/*
 * Compute the core of a layout. @is_bound: span_ns is a lower bound of the schedule's time, O(pieces) for any batch;
 * otherwise the schedule is run. Errors as lade_layout_cost_make's.
 */
int lade_layout_core_make(const struct lade_layout_cost_params *params, bool is_bound, struct lade_error *error,
                          struct lade_layout_core *ret_core);

/* Compute the lower bound of the core's span_ns alone. Errors as lade_layout_cost_make's, without a line. */
int lade_layout_span_bound(const struct lade_layout_cost_params *params, double *ret_span_ns);

/* Compute the cost of @layout, whose ZeRO stage and shard group may differ from those of @core's: O(1). Flops are 0. */
void lade_layout_core_cost(const struct lade_layout_job *job, const struct lade_layout_core *core,
                           const struct lade_layout *layout, enum lade_tier state_tier,
                           struct lade_layout_cost *ret_cost);

/* Fill the bytes and the stages of @ret_cost alone, as lade_layout_core_cost does. */
void lade_layout_core_memory(const struct lade_layout_job *job, const struct lade_layout_core *core,
                             const struct lade_layout *layout, enum lade_tier state_tier,
                             struct lade_layout_cost *ret_cost);

/* True if the layout's stages send in the scattered form (lade_share), because it is the faster one. */
bool lade_layout_sends_scattered(const struct lade_layout_job *job, const struct lade_layout *layout,
                                 int64_t micro_batch);

/* Return the floating point operations of a step, by Korthikanti et al. 2022, equations 7 and 8: attention's whole
 * square counts. @recipe NONE and AUTO: the model's own. */
double lade_step_flops(const struct lade_model *model, int64_t batch, int64_t seq_len, enum lade_recipe recipe);

/*
 * Bytes of device memory per parameter for weights, gradients and optimizer state, by the ZeRO stage over @n_shards:
 * docs/ranks.md. @state: of weights and optimizer state; @grad: of a gradient.
 */
double lade_zero_state_bytes(int zero, int n_shards, double weight, double state, double grad);

/* ---- published formulas (formulas.c) ---- */

/* Return ZeRO's bytes per parameter of @zero over @n_ranks, K = 12. */
double lade_zero_bytes_per_param(int zero, double n_ranks);

/* Return Korthikanti et al.'s bytes of a layer's activations; the model's hidden width is four times its width. */
double lade_korthikanti_layer_bytes(const struct lade_model *model, int64_t micro_batch, int64_t seq_len, int tp,
                                    bool is_sequence, enum lade_recipe recipe);

/* Return the layers whose activations the first stage holds under 1F1B, or interleaved (their section 4.2.3). */
double lade_korthikanti_in_flight(int64_t layers, int pp, int virtual_stages);

/* ---- proof (stage_program.c) ---- */

#define LADE_STAGE_CHUNK_BYTES (UINT64_C(2) << 20) /* the granule of a stage's device memory */
#define LADE_PREFETCH_SLACK 32 /* this part of a budget is left to the packer where copies start early */

/* Tiers of a stage's values and of its optimizer state. */
struct lade_stage_residency {
  struct lade_layer_residency layer;
  enum lade_tier state_tier;     /* of optimizer state */
  uint64_t device_bytes;         /* budget within which copies start early; 0: they start just in time */
};

/* A proved training program of the stage of @layout's rank. */
struct lade_stage_program {
  uint64_t peak_bytes;                 /* of the device */
  uint64_t host_bytes, store_bytes;    /* of the host tier, and of the drives */
  uint64_t owner_bytes[LADE_N_OWNERS]; /* sum to peak_bytes */
  uint64_t sent_bytes[LADE_N_AXES];    /* over its microbatches */
  int n_instrs, n_microbatches;        /* as many as give the peak of all of them */
  int64_t step_ns;                     /* of these microbatches, the stage alone */
};

/* A program with everything that it borrows, for a caller that executes it. */
struct lade_stage_build {
  struct lade_layout layout;
  struct lade_model_graph *graph;
  struct lade_residency *residency;
  struct lade_packer *packer;
  struct lade_prices prices;
  struct lade_cost cost;
  struct lade_cluster_links links;
  struct lade_program *train, *eval; /* @eval: NULL unless asked for; it keeps the training program's residents */
};

/* The use of a stage's program. */
enum lade_stage_aim {
  LADE_STAGE_MEASURE, /* its bytes, without a proof, which would find the same. If its live bytes are above
                         device_bytes it gets no offsets, and its proof would find at least these bytes */
  LADE_STAGE_PROOF,   /* the proved training program */
  LADE_STAGE_RUN      /* the evaluation's program too, both proved */
};

struct lade_stage_params {
  const struct lade_layout_job *job;
  const struct lade_layout *layout; /* of a rank of the stage */
  int64_t micro_batch;
  struct lade_stage_residency residency;
  enum lade_stage_aim aim;
};

/* Build a stage's program and describe it. The proof's errors; -EINVAL and -ENOMEM as lade_layout_cost_make. */
int lade_stage_program_make(const struct lade_stage_params *params, struct lade_error *error,
                            struct lade_stage_program *ret_program);

/*
 * Build a stage's program into @build, which is all 0. Errors as above. Finish in any case. A build is not moved: its
 * parts point into it.
 */
int lade_stage_build_make(const struct lade_stage_params *params, struct lade_error *error,
                          struct lade_stage_build *build);
void lade_stage_build_finish(struct lade_stage_build *build);

/* Fill @ret_program from a training program. */
void lade_stage_program_read(const struct lade_program *program, struct lade_stage_program *ret_program);

/* ---- search (layout_search.c) ---- */

/* True if @a and @b differ in no size and in no schedule. The search keeps one layout of each kind. */
static inline bool lade_layout_is_same_kind(const struct lade_layout_params *a, const struct lade_layout_params *b)
{
  return a->tp == b->tp && a->pp == b->pp && a->dp == b->dp && a->schedule == b->schedule;
}

/*
 * A layout whose proof found @more times its fitted_bytes. The search takes that factor for all residencies of the
 * layout; with @is_of_kind for all layouts of its kind.
 */
struct lade_layout_correction {
  struct lade_layout_params layout;
  int64_t micro_batch;
  enum lade_tier state_tier;
  enum lade_moments moments;
  enum lade_master master;
  double more;
  bool is_of_kind;
};

/* A layout that is proved to fit. */
struct lade_layout_rival {
  int tp, pp, dp;
  double step_ns;
};

struct lade_layout_search_params {
  int n_ranks;
  uint64_t device_bytes;       /* budget of a rank */
  uint64_t host_bytes;         /* of its share of the node's host memory; 0: nothing is copied there */
  uint64_t store_bytes;        /* of its share of the node's drives; 0: no state is there */
  /* Confinements; 0, or -1 where 0 is a value: free. @dp counts replicas, each of n_context ranks of a layout. */
  int tp, pp, dp, virtual_stages, zero, shard, schedule, is_sequence;
  int64_t micro_batch;
  enum lade_recipe recipe;     /* AUTO: free, optimizer state may be on the host or drives; else it is on the device */
  enum lade_dtype grad_reduce;
  int n_max; /* layouts to return */
  int n_corrections;
  const struct lade_layout_correction *corrections; /* borrowed */
  /* Precisions of optimizer states to try; none: the job's alone. A job of FP16 or FP32 has no 24-bit masters. */
  int n_moments, n_masters;
  enum lade_moments moments[LADE_N_MOMENTS];
  enum lade_master masters[LADE_N_MASTERS];
  /* Of lade_layout_search_undecided alone: */
  double limit_ns; /* time of the slowest rival that counts; INFINITY: there are fewer than are wanted */
  int n_rivals;
  const struct lade_layout_rival *rivals; /* borrowed; each of other (tp, pp, dp) */
};

struct lade_layout_found {
  struct lade_layout_params layout;
  int64_t micro_batch;
  struct lade_layer_residency residency;
  enum lade_tier state_tier;
  enum lade_moments moments; /* of its optimizer states */
  enum lade_master master;
  struct lade_layout_cost cost;
  double fitted_bytes; /* of cost.peak_bytes, the part that was held against device_bytes, without corrections */
};

struct lade_layout_search {
  int64_t n_evaluated; /* layouts whose memory and time were computed, or bounded together with those that differ in
                          ZeRO stage, shard group, residency, and tier and precision of states alone */
  int64_t n_costed;    /* of them, with the whole schedule */
  int64_t n_undecided; /* of lade_layout_search_undecided */
  int n_found;
  struct lade_layout_found *found; /* fastest first; of one (tp, pp, dp, schedule) the fastest alone */
};

/*
 * Search layouts of @n_ranks: the fastest ones that fit by their estimates, less the part that a proof may find less.
 * Proofs decide; lade_layout_search_undecided lists the layouts for which these estimates may be wrong.
 * -EOVERFLOW: none fits; the found ones are then those that need the least memory. -EINVAL: no layout is possible, with
 * the nearest one; -ENOMEM. Free found.
 */
int lade_layout_search_run(const struct lade_layout_job *job, const struct lade_layout_search_params *params,
                           struct lade_error *error, struct lade_layout_search *ret_search);

/*
 * List the layouts that may be faster than rivals: those whose time is below limit_ns and below the time of the rival
 * of their (tp, pp, dp), and whose lower bounds of bytes (bound_bytes and the like) are within
 * the budgets. A layout that is not listed does not fit, or is no faster. Jobs that cannot be proved are held
 * against the budgets by their estimates. The fastest @n_max come in order of time; n_undecided counts all. An empty
 * list is no error. -ENOMEM. Free found.
 */
int lade_layout_search_undecided(const struct lade_layout_job *job, const struct lade_layout_search_params *params,
                                 struct lade_error *error, struct lade_layout_search *ret_search);

#endif
