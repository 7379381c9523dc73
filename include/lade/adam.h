/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lade/adam.h - AdamW on the host, with exact or compact state.
 *
 * An update changes a shard of a parameter in place, at the speed of memory. It uses the best instructions of this CPU
 * and gives the same bits on every CPU. It depends on no other part of Lade: memory, files and schedule are the
 * caller's.
 *
 *     struct lade_adam_shard shard = {.struct_size = sizeof(shard), .dtype = LADE_BF16, .grad_dtype = LADE_BF16,
 *                                     .moments = LADE_MOMENTS_8BIT, .n_elements = n};
 *     struct lade_adam_bytes bytes = {.struct_size = sizeof(bytes)};
 *     lade_adam_get_bytes(&shard, &bytes, &error);       bytes to allocate
 *     lade_adam_create(0, &error, &adam);
 *     lade_adam_set(adam, &shard, master, &error);       first weights, moments of zero
 *     lade_adam_update(adam, &shard, &step, &error);     every step
 *
 * Bytes of state per parameter, with BF16 weights and without the working copy:
 *
 *   moments   exact master   24-bit master
 *   FP32           10              9
 *   BF16            6              5
 *   8 bits          4.02           3.02
 *
 * FP32 moments with the exact master change no number. The compact forms round stochastically and reproducibly: the
 * random bits are a function of seed, step, parameter and element. They do not depend on the place of the state, on its
 * shards or on the number of threads. The page docs/store.md has the formats and their effect on the loss.
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
 * Elements [first_element, first_element + n_elements) of a parameter, and their arrays in the caller's memory, each
 * aligned to its element. Two shards of a parameter give the same bits as one shard of both.
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
  void *residual;               /* BF16: the master's other bits; F16: the FP32 master; F32: NULL */
  void *m, *v;
  uint8_t *m_scales, *v_scales; /* scales of 8-bit moments; else NULL */
};

/* Bytes of each array of a shard; 0: the form has no such array. */
struct lade_adam_bytes {
  size_t struct_size; /* set by the caller */
  uint64_t grad, weight, residual, m, v, m_scales, v_scales;
};

/* Values that all updates of a step share. */
struct lade_adam_step {
  size_t struct_size;
  uint64_t seed;     /* of random draws */
  uint32_t step;     /* from 0: bias corrections, random draws */
  double lr, beta1, beta2, eps, weight_decay;
  double grad_scale; /* factor of gradients (clipping, loss scales); 0: 1 */
};

typedef struct lade_adam lade_adam;

/*
 * Create an updater with @n_threads threads; 0: as many as this process may use. The caller destroys it. -EINVAL for
 * @n_threads, -EAGAIN when a thread is refused, -ENOMEM. Any thread. Blocks while threads start.
 */
LADE_API int lade_adam_create(int n_threads, struct lade_error *error, lade_adam **ret_adam);

/*
 * Join the threads of @adam and free it. NULL is allowed. pre: no call with @adam is in progress. A child made by fork
 * has no such threads: there this does nothing, and set, get and update return -EPERM.
 */
LADE_API void lade_adam_destroy(lade_adam *adam);

/*
 * Return the bytes of every array of @shard; its pointers are ignored. -EINVAL for an unknown form. Any thread. Never
 * blocks.
 */
LADE_API int lade_adam_get_bytes(const struct lade_adam_shard *shard, struct lade_adam_bytes *ret_bytes,
                                 struct lade_error *error);

/*
 * Set weight and residual from @master [n_elements], and the moments to 0. A 24-bit master rounds to nearest. -EINVAL
 * for an unknown form or a missing pointer, -EPERM after fork. Any thread, different shards at once. Blocks until
 * done.
 */
LADE_API int lade_adam_set(lade_adam *adam, const struct lade_adam_shard *shard, const float *master,
                           struct lade_error *error);

/* Copy the FP32 values of @shard into @master, @m and @v, each [n_elements] or NULL. As lade_adam_set. */
LADE_API int lade_adam_get(lade_adam *adam, const struct lade_adam_shard *shard, float *master, float *m, float *v,
                           struct lade_error *error);

/*
 * Update weight, residual and moments in place (Loshchilov, Hutter 2019; docs/store.md has the sequence). pre: the
 * gradients are finite; check their norm before. -EINVAL as above, or for a step out of range, with nothing changed:
 * betas are in [0, 1), eps is above 0, and all are finite, also when rounded to FP32. Allocates nothing. Any thread,
 * different shards at once. Blocks until done.
 */
LADE_API int lade_adam_update(lade_adam *adam, const struct lade_adam_shard *shard, const struct lade_adam_step *step,
                              struct lade_error *error);

#ifdef __cplusplus
}
#endif
#endif
