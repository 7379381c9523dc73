/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lade/plan.h - will it fit, how small can it go, and what will a step cost?
 *
 * A run is a model, a batch, numbers, and budgets for the places where bytes may live. lade_plan_find plans it as
 * lade/train.h would run it, and says what the plan needs, without taking that memory: the figures are
 * those of the very program that a trainer executes, proved, so the planned peak is the peak that a
 * trainer measures. A trillion parameters are planned on a laptop.
 *
 * The library never prints. Strings in parameters are borrowed for the time of the call.
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

/* Where bytes live. */
enum lade_space { LADE_DEVICE, LADE_HOST, LADE_STORE, LADE_N_SPACES };

/* Who owns a byte: the lines of a ledger. */
enum lade_owner {
  LADE_OWNER_PARAMETERS,
  LADE_OWNER_GRADIENTS,
  LADE_OWNER_OPTIMIZER,
  LADE_OWNER_SAVED,     /* activations that wait for the backward */
  LADE_OWNER_TRANSIENT, /* the others */
  LADE_OWNER_COMM,
  LADE_OWNER_WORKSPACE,
  LADE_OWNER_FRAGMENTATION,
  LADE_OWNER_CONTEXT,
  LADE_N_OWNERS
};

/* What runs beside each other in a step. */
enum lade_queue_id {
  LADE_Q_COMPUTE,
  LADE_Q_TO_HOST,
  LADE_Q_TO_DEVICE,
  LADE_Q_IO,
  LADE_Q_HOST,
  LADE_Q_COMM_TP, /* collectives of tensor parallel ranks */
  LADE_Q_COMM_DP, /* of data parallel ranks and all others */
  LADE_Q_SEND,
  LADE_Q_RECV,
  LADE_N_QUEUES
};

/* "device", "parameters", "compute" and so on; static. Any thread. */
LADE_API const char *lade_space_name(enum lade_space space);
LADE_API const char *lade_owner_name(enum lade_owner owner);
LADE_API const char *lade_queue_name(enum lade_queue_id queue);

/* Room in reports, so that a new owner or queue moves no field; what there is none of is 0. */
#define LADE_OWNERS_MOST 16
#define LADE_QUEUES_MOST 16

enum lade_budget_kind {
  LADE_BUDGET_AUTO,           /* what the device has, less what the host tier needs where memory is one */
  LADE_BUDGET_BYTES,
  LADE_BUDGET_PERCENT,        /* of the unconstrained peak */
  LADE_BUDGET_PERCENT_DEVICE, /* of the device's memory */
  LADE_BUDGET_MIN             /* the smallest for which there is a plan */
};

struct lade_budget {
  enum lade_budget_kind kind;
  uint64_t bytes;
  double percent; /* of the unconstrained peak, or of the device */
};

/* Who decides where a value waits for the backward pass. */
enum lade_recipe {
  LADE_RECIPE_AUTO,      /* the solver decides */
  LADE_RECIPE_NONE,      /* keep all activations */
  LADE_RECIPE_FULL,      /* keep units' inputs, recompute everything inside */
  LADE_RECIPE_SELECTIVE, /* recompute what is cheap for its size: norms, gelu, swiglu, dropout, attention */
  LADE_N_RECIPES
};

struct lade_run_params {
  size_t struct_size;          /* see lade/types.h */
  const char *model;           /* a preset ("nano", "gpt2-124m", "llama3-8b", ...) or the path of a config.json */
  int64_t layers;              /* 0: the model's own */
  int64_t vocabulary;          /* of models that take theirs from the data (nano, baby); 0: the data's, or 256 */
  int64_t batch;               /* sequences per step */
  int64_t micro_batch;         /* sequences per pass, divides batch; 0: batch */
  int64_t seq;                 /* tokens per sequence; 0: the smaller of 1024 and the model's context */
  enum lade_dtype dtype;       /* LADE_BF16, LADE_F32 or LADE_F16 */
  double dropout;
  struct lade_budget budget;   /* of the device */
  bool has_host_budget;        /* else 80 % of what the machine has left */
  uint64_t host_budget_bytes;  /* 0 with has_host_budget: nothing may wait on the host */
  const char *store;           /* directory on a drive; NULL: nothing may wait there */
  uint64_t store_budget_bytes; /* 0: what its file system has free */
  bool allow_tmpfs;            /* a store that is memory in truth, for tests */
  enum lade_recipe recipe;
  const char *residency_file;  /* NULL, or lines "PATTERN keep|recompute|host|store"; docs/recompute.md */
  const char *device;          /* "host" (also NULL), "cuda:N": a GPU, "auto": one or else the host, "dry": no memory */
  const char *machine;         /* preset or file that describes a machine; NULL: this one, measured (then cached) */
  uint64_t link_bytes_per_s;   /* throttle the host device's copies to a link's rate, each way; 0: not */
  uint64_t link_latency_ns;
  int n_threads;               /* 0: as many as this process may use */
  /*
   * A parameter may be updated inside the backward pass, as soon as its gradient is complete: gradients then need not
   * wait for each other. For training without clipping (clip 0) and not in LADE_F16. The numbers are the same.
   */
  bool updates_early;
  enum lade_moments moments;   /* how AdamW's moments are kept */
  enum lade_master master;     /* LADE_MASTER_24BIT with LADE_BF16 only */
  /*
   * All parameters and optimizer state live in the store, one directory, and are published there after each step. A
   * trainer that is opened over what another one left goes on from its last completed step, whatever ended that one:
   * init and resume are for the first. Another model or form of state is -EINVAL; a directory in use is -EBUSY.
   */
  bool durable;
  /*
   * In which AdamW takes gradients. They are added up in FP32; LADE_BF16 rounds each once, when it is complete, to half
   * the bytes: a gradient of a single microbatch waits for its update in them, and travels to where that is.
   */
  enum lade_dtype grad_dtype;
};

/*
 * Fill in every default (nano, batch 12, BF16, automatic budget) and @struct_size, which is sizeof *ret_run.
 * Any thread. Never blocks.
 */
LADE_API void lade_run_params_init(struct lade_run_params *ret_run, size_t struct_size);

/* What a run needs and costs. Without a plan (has_plan false) what stands below `has_plan` is 0. */
struct lade_plan_report {
  size_t struct_size;                    /* set by the caller */
  int64_t n_params;                      /* of the model, tied ones once */
  int64_t batch, micro_batch, seq;       /* resolved */
  uint64_t budget_bytes[LADE_N_SPACES];  /* resolved */
  uint64_t unconstrained_bytes;          /* device peak with everything kept */
  uint64_t min_budget_bytes;             /* smallest device budget for which a plan was found; 0: none was */
  uint64_t lower_bound_bytes;            /* no plan over these ops can do with less */
  int64_t unconstrained_step_ns;
  bool has_plan;                         /* the budget suffices */
  uint64_t peak_bytes[LADE_N_SPACES];    /* of training and evaluation; the device's in whole chunks */
  uint64_t owner_bytes[LADE_N_SPACES][LADE_OWNERS_MOST]; /* the ledger: by owner, sums to peak_bytes */
  int64_t step_ns;                       /* predicted, of a training step */
  int64_t queue_ns[LADE_QUEUES_MOST];    /* predicted, how long each queue is busy in it */
  int64_t n_instructions;                /* of the training program */
  uint64_t store_read_bytes, store_written_bytes; /* moved by a training step */
};

/*
 * Plan @run and fill @ret_report, whose struct_size is set. A budget that does not suffice is an answer and no
 * failure: 0, has_plan false, and @error (may be NULL) has the line that a trainer would be refused with: the smallest
 * budget that would do, and what would make more room.
 *
 * -EINVAL, -ENOENT and the like for a model, machine, file or size that is none, with one line in @error; -ENOMEM.
 * Nothing is kept. Any thread, several at once. Blocks: milliseconds for a described machine, seconds where
 * this one is measured for the first time.
 */
LADE_API int lade_plan_find(const struct lade_run_params *run, struct lade_plan_report *ret_report,
                            struct lade_error *error);

#ifdef __cplusplus
}
#endif
#endif
