/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One element of a tensor of any type: how the plain references read and write. Slow by design; the levels convert
 * whole vectors.
 */
#ifndef LADE_ELEMENT_H
#define LADE_ELEMENT_H

#include <stdint.h>

#include "base/float.h"
#include "lade/types.h"

/* Return the accumulator type A of a model in @dtype. */
static inline enum lade_dtype lade_accumulator(enum lade_dtype dtype)
{
  return dtype == LADE_F64 ? LADE_F64 : LADE_F32;
}

/* Return data[i], exactly. */
static inline double lade_element_load(enum lade_dtype dtype, const void *data, int64_t i)
{
  switch (dtype) {
  case LADE_F64: return ((const double *)data)[i];
  case LADE_BF16: return lade_bf16_to_f32(((const uint16_t *)data)[i]);
  case LADE_F16: return lade_f16_to_f32(((const uint16_t *)data)[i]);
  default: return ((const float *)data)[i];
  }
}

/* Set data[i] = value, rounded to F32 first if the type is narrower than F64, as the levels round. */
static inline void lade_element_store(enum lade_dtype dtype, void *data, int64_t i, double value)
{
  switch (dtype) {
  case LADE_F64: ((double *)data)[i] = value; break;
  case LADE_BF16: ((uint16_t *)data)[i] = lade_f32_to_bf16((float)value); break;
  case LADE_F16: ((uint16_t *)data)[i] = lade_f32_to_f16((float)value); break;
  default: ((float *)data)[i] = (float)value; break;
  }
}

#endif
