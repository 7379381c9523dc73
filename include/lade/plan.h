/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lade/plan.h - plans: the memory and the time of a run, its smallest budget, and the cost of a step.
 *
 * A run is a model, a batch, types of numbers, and budgets for the tiers. lade_plan_find plans it as lade/train.h would
 * run it, without taking the memory. Its figures are those of the proved program that a trainer executes, so the
 * planned peak is the peak that a trainer measures. A laptop can plan a trillion parameters.
 *
 * The library never prints. Strings in parameters are borrowed during the call.
 */
#ifndef LADE_PUBLIC_PLAN_H
#define LADE_PUBLIC_PLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lade/types.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Owners of bytes: the lines of a ledger. */
enum lade_owner {
  LADE_OWNER_PARAMETERS,
  LADE_OWNER_GRADIENTS,
  LADE_OWNER_OPTIMIZER,
  LADE_OWNER_SAVED,     /* activations that wait for the backward pass */
  LADE_OWNER_TRANSIENT, /* other activations */
  LADE_OWNER_COMM,
  LADE_OWNER_WORKSPACE,
  LADE_OWNER_FRAGMENTATION,
  LADE_OWNER_CONTEXT,
  LADE_N_OWNERS
};

/* Queues of a step; they run beside each other. */
enum lade_queue_id {
  LADE_Q_COMPUTE,
  LADE_Q_TO_HOST,
  LADE_Q_TO_DEVICE,
  LADE_Q_IO,
  LADE_Q_HOST,
  LADE_Q_COMM_TP, /* collectives of tensor parallel ranks */
  LADE_Q_COMM_DP, /* collectives of data parallel ranks and all others */
  LADE_Q_SEND,
  LADE_Q_RECV,
  LADE_N_QUEUES
};

/*
 * Return a name: "device", "parameters", "compute" and so on, "?" for a value out of range; static. Any thread. Never
 * blocks.
 */
LADE_API const char *lade_space_name(enum lade_space space);
LADE_API const char *lade_owner_name(enum lade_owner owner);
LADE_API const char *lade_queue_name(enum lade_queue_id queue);

/* Sizes of arrays in reports, so that a new owner or queue moves no field; unused entries are 0. */
#define LADE_OWNERS_MAX 16
#define LADE_QUEUES_MAX 16

enum lade_budget_kind {
  LADE_BUDGET_AUTO,           /* the device's free memory, less the host tier where the two share memory */
  LADE_BUDGET_BYTES,
  LADE_BUDGET_PERCENT,        /* a part of the unconstrained peak */
  LADE_BUDGET_PERCENT_DEVICE, /* a part of the device's memory */
  LADE_BUDGET_MIN             /* the smallest budget with a plan */
};

struct lade_budget {
  enum lade_budget_kind kind;
  uint64_t bytes;
  double percent; /* percent of the unconstrained peak, or of the device */
};

/* Rules that choose the place of activations until the backward pass. */
enum lade_recipe {
  LADE_RECIPE_AUTO,      /* the planner chooses */
  LADE_RECIPE_NONE,      /* keep all activations */
  LADE_RECIPE_FULL,      /* keep the inputs of units, recompute the rest */
  LADE_RECIPE_SELECTIVE, /* recompute cheap and large values: norms, gelu, swiglu, dropout, attention */
  LADE_N_RECIPES
};

struct lade_run_params {
  size_t struct_size;          /* see lade/types.h */
  const char *model;           /* a preset ("nano", "gpt2-124m", "llama3-8b", ...) or the path of a config.json */
  int64_t layers;              /* 0: the model's own */
  int64_t vocabulary;          /* for models that take it from the data (nano, baby); 0: the data's, or 256 */
  int64_t batch;               /* sequences per step */
  int64_t micro_batch;         /* sequences per pass; divides batch; 0: batch */
  int64_t seq;                 /* tokens per sequence; 0: the smaller of 1024 and the model's context */
  enum lade_dtype dtype;       /* LADE_BF16, LADE_F32 or LADE_F16 */
  double dropout;
  struct lade_budget budget;   /* of the device tier */
  bool has_host_budget;        /* false: 80 % of the memory that the machine has left */
  uint64_t host_budget_bytes;  /* 0 with has_host_budget: no host tier */
  const char *store;           /* directory on a drive; NULL: no store */
  uint64_t store_budget_bytes; /* 0: the free room of its file system */
  bool allow_tmpfs;            /* allow a store in a memory file system, for tests */
  enum lade_recipe recipe;
  const char *residency_file;  /* NULL, or a file of lines "PATTERN CHOICE"; docs/residency.md */
  const char *device;          /* "host" (also NULL), "cuda:N", "auto": a GPU or else the host, "dry": no memory */
  const char *machine;         /* preset or file that describes a machine; NULL: this one, measured and cached */
  uint64_t link_bytes_per_s;   /* limit the host device's copies to this rate, each way; 0: no limit */
  uint64_t link_latency_ns;
  int n_threads;               /* 0: as many as this process may use */
  /*
   * Allow an update inside the backward pass, as soon as the parameter's gradient is complete. Gradients then need not
   * wait for each other. Needs training without clipping (clip 0), and not LADE_F16. The numbers are the same.
   */
  bool optimizer_in_backward;
  enum lade_moments moments;   /* form of AdamW's moments */
  enum lade_master master;     /* LADE_MASTER_24BIT with LADE_BF16 only */
  /*
   * Keep all parameters and optimizer state in the store, one directory, and publish them there after each step. A
   * trainer that opens such a directory continues from its last completed step, however the earlier process ended. The
   * parameters init and resume then apply to a new directory only. Another model or form of state is -EINVAL, a
   * directory in use is -EBUSY.
   */
  bool durable;
  /*
   * The type of gradients for AdamW. Sums are in FP32; LADE_BF16 rounds each complete gradient once, to half the bytes.
   * A gradient of a single microbatch waits for its update in this type, and is copied to other tiers in it.
   */
  enum lade_dtype grad_dtype;
  /*
   * The layout of several ranks (docs/ranks.md): numbers of tensor, pipeline and data parallel ranks. tp 0 and pp 0
   * mean 1; dp 0 means all ranks that train over tp * pp. zero is the ZeRO stage, 0 to 3. lade_plan_find plans the
   * first of tp * pp * dp ranks; a trainer of such a layout needs all of them (lade/train.h).
   */
  int tp, pp, dp, zero;
  bool sequence_parallel;      /* with tp: norms, dropout and the activations between layers in parts, too */
  /*
   * Compute GELU in the product before it, of its sums before they are rounded. In 16 bits these are other numbers, the
   * same at every budget. For models whose MLPs have GELU's tanh form without a gate (GPT-2).
   */
  bool gelu_fusion;
};

/*
 * Set every field to its default (nano, batch 12, BF16, automatic budget) and struct_size to @struct_size, which is
 * sizeof *ret_run. Any thread. Never blocks.
 */
LADE_API void lade_run_params_init(struct lade_run_params *ret_run, size_t struct_size);

/* The memory and time of a run. Without a plan (has_plan false) the fields below `has_plan` are 0. */
struct lade_plan_report {
  size_t struct_size;                    /* set by the caller */
  int64_t n_params;                      /* parameters of the model, tied ones once */
  int64_t batch, micro_batch, seq;       /* resolved */
  uint64_t budget_bytes[LADE_N_SPACES];  /* resolved */
  uint64_t unconstrained_bytes;          /* device peak with everything kept */
  uint64_t min_budget_bytes;             /* smallest device budget with a known plan; 0: no plan was found */
  uint64_t lower_bound_bytes;            /* no plan over these ops needs less */
  int64_t unconstrained_step_ns;
  bool has_plan;                         /* the budget suffices */
  uint64_t peak_bytes[LADE_N_SPACES];    /* larger of training and evaluation; the device's in whole chunks */
  uint64_t owner_bytes[LADE_N_SPACES][LADE_OWNERS_MAX]; /* the ledger, by owner; sums to peak_bytes */
  int64_t step_ns;                       /* predicted time of a training step */
  int64_t queue_ns[LADE_QUEUES_MAX];     /* predicted busy time of each queue in it */
  int64_t n_instructions;                /* instructions of the training program */
  uint64_t store_read_bytes, store_written_bytes; /* moved by a training step */
};

/*
 * Plan @run and fill @ret_report, whose struct_size is set. A budget that is too small is an answer and not an error:
 * the return is 0 and has_plan is false. @error (may be NULL) then has the line of a trainer's refusal, with the
 * smallest budget that fits and the ways to make room.
 *
 * -EINVAL, -ENOENT and the like for a wrong model, machine, file or size, with one line in @error; -ENOMEM. Keeps no
 * memory. Any thread, several at once. Computes for milliseconds on a described machine; blocks for seconds when it
 * measures this machine for the first time.
 */
LADE_API int lade_plan_find(const struct lade_run_params *run, struct lade_plan_report *ret_report,
                            struct lade_error *error);

#ifdef __cplusplus
}
#endif
#endif
