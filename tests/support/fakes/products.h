/* SPDX-License-Identifier: Apache-2.0 */
/* Products for tests over the fake cuBLASLt: operands on the host, and the distance between two results. */
#ifndef LADE_TESTS_PRODUCTS_H
#define LADE_TESTS_PRODUCTS_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/float.h"
#include "kernels/kernels.h"

#define PLACE_BYTES ((uint64_t)256 << 10) /* of one tensor in the arena */

/* A product, its operands on the host. */
struct product {
  struct lade_matmul_args args;
  _Alignas(64) char a[PLACE_BYTES / 4], b[PLACE_BYTES / 4], c[PLACE_BYTES / 4], bias[4096];
};

static inline void operand_make(enum lade_dtype dtype, void *at, int64_t n, int seed)
{
  for (int64_t i = 0; i < n; i++) {
    float value = (float)((i * 37 + seed * 11) % 203 - 101) / 64.0f + 0x1p-13f * (float)(i % 7);
    if (dtype == LADE_F32)
      ((float *)at)[i] = value;
    else
      ((uint16_t *)at)[i] = dtype == LADE_BF16 ? lade_f32_to_bf16(value) : lade_f32_to_f16(value);
  }
}

static inline float operand_get(enum lade_dtype dtype, const void *at, int64_t i)
{
  if (dtype == LADE_F32)
    return ((const float *)at)[i];
  uint16_t bits = ((const uint16_t *)at)[i];
  return dtype == LADE_BF16 ? lade_bf16_to_f32(bits) : lade_f16_to_f32(bits);
}

static inline void product_make(struct product *p, const struct lade_matmul_args *args, bool has_bias)
{
  p->args = *args;
  operand_make(args->dtype, p->a, args->m * args->k, 1);
  operand_make(args->dtype, p->b, args->n * args->k, 2);
  operand_make(args->dtype, p->bias, args->n, 3);
  operand_make(args->out, p->c, args->m * args->n, 4);
  p->args.a = p->a;
  p->args.b = p->b;
  p->args.c = p->c;
  p->args.bias = has_bias ? p->bias : NULL;
}

static inline uint64_t c_bytes(const struct product *p)
{
  return (uint64_t)(p->args.m * p->args.n) * lade_dtype_bytes(p->args.out);
}

static inline void distance_check(const struct lade_matmul_args *args, const void *got, const void *want)
{
  double norm = 0, distance = 0, unit = args->out == LADE_F32 ? 0x1p-18 : args->out == LADE_BF16 ? 0x1p-8 : 0x1p-10;
  for (int64_t i = 0; i < args->m * args->n; i++) {
    double x = operand_get(args->out, want, i), d = operand_get(args->out, got, i) - x;
    norm += x * x;
    distance += d * d;
  }
  if (!(sqrt(distance) <= unit * sqrt(norm)))
    fail_msg("%s to %s, layout %d, %ld x %ld x %ld: %g of %g", lade_dtype_name(args->dtype),
             lade_dtype_name(args->out), args->layout, (long)args->m, (long)args->n, (long)args->k, sqrt(distance),
             sqrt(norm));
}

#endif
