/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lade/adam.h - AdamW on the host, and the forms in which its state may be kept.
 *
 * One update of a shard of a parameter, in place, at the speed of memory, by the best instructions that this CPU has
 * and with the same bits on any. It needs nothing of the rest of Lade: memory, files and schedule are the caller's.
 *
 *     struct lade_adam_shard shard = {.struct_size = sizeof(shard), .dtype = LADE_BF16, .grad_dtype = LADE_BF16,
 *                                     .moments = LADE_MOMENTS_8BIT, .n_elements = n};
 *     struct lade_adam_bytes bytes = {.struct_size = sizeof(bytes)};
 *     lade_adam_get_bytes(&shard, &bytes, &error);       what to allocate
 *     lade_adam_create(0, &error, &adam);
 *     lade_adam_set(adam, &shard, master, &error);       weights, and moments of zero
 *     lade_adam_update(adam, &shard, &step, &error);     every step
 *
 * Bytes per parameter beside the working copy, with BF16 weights:
 *
 *   moments   exact master   24-bit master
 *   FP32           10              9
 *   BF16            6              5
 *   8 bits          4.02           3.02
 *
 * FP32 moments with the exact master change no number. The compact forms round, stochastically but reproducibly: the
 * random bits are a function of seed, step, parameter and element, never of where the state lies, of how it is
 * cut or of the number of threads. docs/adam.md has the formats and what they cost in loss.
 */
#ifndef LADE_ADAM_H
#define LADE_ADAM_H

#include <stdbool.h>

#include "lade/types.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Shards of a parameter begin at multiples of this. */
#define LADE_ADAM_SHARD_ELEMENTS 512

/*
 * Elements [first_element, first_element + n_elements) of a parameter, and where everything of them lies: the caller's
 * memory, aligned as its elements are. Two shards of one parameter give the bits that one shard of both gives.
 */
struct lade_adam_shard {
  size_t struct_size;
  enum lade_dtype dtype;        /* of the weight: LADE_BF16, LADE_F16 or LADE_F32 */
  enum lade_dtype grad_dtype;   /* LADE_F32 or LADE_BF16 */
  enum lade_moments moments;
  enum lade_master master;      /* LADE_MASTER_24BIT with LADE_BF16 only */
  int64_t n_elements;
  uint64_t first_element;       /* a multiple of LADE_ADAM_SHARD_ELEMENTS */
  uint32_t param;               /* the parameter's number, for random draws of compact forms */
  bool has_decay;
  const void *grad;
  void *weight;                 /* the working copy; FP32 weights are their own master */
  void *residual;               /* BF16: what the master has beside it; F16: the FP32 master; F32: NULL */
  void *m, *v;
  uint8_t *m_scales, *v_scales; /* of 8-bit moments; else NULL */
};

/* What each array of a shard needs; 0: it has none. */
struct lade_adam_bytes {
  size_t struct_size; /* set by the caller */
  uint64_t grad, weight, residual, m, v, m_scales, v_scales;
};

/* What a step's updates share. */
struct lade_adam_step {
  size_t struct_size;
  uint64_t seed;     /* of random draws */
  uint32_t step;     /* from 0: bias corrections, random draws */
  double lr, beta1, beta2, eps, weight_decay;
  double grad_scale; /* gradients are multiplied by it (clipping, loss scales); 0: 1 */
};

typedef struct lade_adam lade_adam;

/* Threads to update with: @n_threads, 0 for as many as this process may use. -EINVAL, -EAGAIN, -ENOMEM. Any thread. */
LADE_API int lade_adam_create(int n_threads, struct lade_error *error, lade_adam **ret_adam);

/*
 * NULL is allowed. No call with @adam may be under way. Joins its threads. In a child made by fork, which does not have
 * them, it does nothing, and set, get and update are -EPERM.
 */
LADE_API void lade_adam_destroy(lade_adam *adam);

/*
 * The bytes of every array of @shard, whose pointers are not looked at. -EINVAL for a form that there is not. Any
 * thread. Never blocks.
 */
LADE_API int lade_adam_get_bytes(const struct lade_adam_shard *shard, struct lade_adam_bytes *ret_bytes,
                                 struct lade_error *error);

/*
 * Begin: the weight (and residual) from @master [n_elements], the moments 0. A 24-bit master rounds to nearest.
 * -EINVAL for a form that there is not, or a pointer that is missing. Any thread, different shards at once.
 */
LADE_API int lade_adam_set(lade_adam *adam, const struct lade_adam_shard *shard, const float *master,
                           struct lade_error *error);

/* Copy the FP32 values that @shard holds into @master, @m and @v, each [n_elements] or NULL. As lade_adam_set. */
LADE_API int lade_adam_get(lade_adam *adam, const struct lade_adam_shard *shard, float *master, float *m, float *v,
                           struct lade_error *error);

/*
 * Update weight, residual and moments in place (Loshchilov, Hutter 2019; docs/adam.md has the sequence). Gradients must
 * be finite: check their norm before. -EINVAL as above, or for a step out of range (betas in [0, 1), eps above 0, all
 * finite, also when rounded to FP32, as they are used); nothing was changed. Allocates nothing. Any thread, different
 * shards at once. Blocks until it is done.
 */
LADE_API int lade_adam_update(lade_adam *adam, const struct lade_adam_shard *shard, const struct lade_adam_step *step,
                              struct lade_error *error);

#ifdef __cplusplus
}
#endif
#endif
