/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The plain references' view of memory: one element of any dtype, read as double and rounded once when it is stored (to
 * F32 and from there to 16 bits). With double in between, every sum, product, quotient and root of two F32 numbers has
 * the F32 result, and longer expressions are more exact. So the references show the faster variants' errors.
 *
 * REF_TASKS(body) makes the four functions for the pool from one `void body(const void *arg, int64_t i_task, enum
 * lade_dtype dtype)`. The body is inlined into each with a constant dtype. It also makes body_run, which picks one.
 */
#ifndef LADE_KERNELS_REF_H
#define LADE_KERNELS_REF_H

#include "base/philox.h"
#include "kernels/host/host.h"

#define REF_INLINE static inline __attribute__((always_inline))

/* Load and store an element. Names are short, because references are formulas. The compiler would not inline all. */
REF_INLINE double ref_get(enum lade_dtype dtype, const void *x, int64_t i)
{
  return lade_element_load(dtype, x, i);
}

REF_INLINE void ref_put(enum lade_dtype dtype, void *x, int64_t i, double value)
{
  lade_element_store(dtype, x, i, value);
}

/* Return x[i], or 0 if x is NULL. */
REF_INLINE double ref_get_or_zero(enum lade_dtype dtype, const void *x, int64_t i)
{
  return x ? ref_get(dtype, x, i) : 0;
}

REF_INLINE double ref_drop(const struct lade_step *step, const struct lade_drop *drop, int64_t i, double value)
{
  if (drop->drop_below == 0)
    return value;
  uint32_t word = lade_philox_word(step->seed, step->step, drop->stream, drop->first_element + (uint64_t)i);
  return word >= drop->drop_below ? value * (double)drop->scale : 0;
}

#define REF_TASKS(body) \
  static void body##_f32(void *arg, int i_task, int i_thread) { body(arg, i_task, LADE_F32); } \
  static void body##_bf16(void *arg, int i_task, int i_thread) { body(arg, i_task, LADE_BF16); } \
  static void body##_f16(void *arg, int i_task, int i_thread) { body(arg, i_task, LADE_F16); } \
  static void body##_f64(void *arg, int i_task, int i_thread) { body(arg, i_task, LADE_F64); } \
  static void body##_run(lade_pool *pool, enum lade_dtype dtype, const void *arg, int64_t n_tasks) \
  { \
    static lade_task_fn *const of_dtype[] = {body##_f32, body##_bf16, body##_f16, body##_f64}; \
    lade_pool_run(pool, of_dtype[dtype], (void *)arg, (int)n_tasks); \
  }

#endif
