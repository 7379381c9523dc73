/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Arrays and mipmapped arrays. The driver does not report an array's bytes, so it counts with its elements; padding and
 * tiling are unknown. Arrays without memory of their own (sparse, mapped later) count nothing.
 */
#include "account.h"
#include "base/base.h"
#include "driver.h"

enum { ARRAY_LAYERED = 0x01, ARRAY_CUBEMAP = 0x04, ARRAY_WITHOUT_MEMORY = 0x40 | 0x80 };

/* Return the bytes of a channel by the driver's number of its format; for rare formats the largest possible. */
static uint64_t format_bytes(int format)
{
  switch (format) {
  case 0x01: /* 8 bits, and the same normalized with 1, 2 and 4 channels */
  case 0x08:
  case 0xc0:
  case 0xc1:
  case 0xc2:
  case 0xc6:
  case 0xc7:
  case 0xc8:
    return 1;
  case 0x02: /* 16 bits, likewise, and half */
  case 0x09:
  case 0x10:
  case 0xc3:
  case 0xc4:
  case 0xc5:
  case 0xc9:
  case 0xca:
  case 0xcb:
    return 2;
  default:
    return 4;
  }
}

/* Return the bytes of all levels; layers and faces do not shrink from level to level. */
static uint64_t shape_bytes(const struct cuda_array_shape_3d *shape, unsigned n_levels)
{
  uint64_t element = format_bytes(shape->format) * shape->n_channels, sum = 0;
  bool is_stack = shape->flags & (ARRAY_LAYERED | ARRAY_CUBEMAP);
  if (shape->flags & ARRAY_WITHOUT_MEMORY)
    return 0;
  for (unsigned i = 0; i < LADE_MIN(n_levels, 32u); i++) {
    uint64_t depth = is_stack ? shape->depth : shape->depth >> i, n;
    if (__builtin_mul_overflow(LADE_MAX(shape->width >> i, 1), LADE_MAX(shape->height >> i, 1), &n) ||
        __builtin_mul_overflow(n, LADE_MAX(depth, 1), &n) || __builtin_mul_overflow(n, element, &n) ||
        __builtin_add_overflow(sum, n, &sum))
      return UINT64_MAX / 2; /* too large: the driver refuses it, unless the budget does first */
  }
  return sum;
}

/* Convert the older and the flatter shapes to the newest form; the driver itself handles NULL. */
#define SHAPE_OF(shape, its_depth, its_flags) \
  ((shape) ? (struct cuda_array_shape_3d){(shape)->width, (shape)->height, its_depth, (shape)->format, \
                                          (shape)->n_channels, its_flags} \
           : (struct cuda_array_shape_3d){0})

static cuda_result array_take(struct taking *taking, const struct cuda_array_shape_3d *shape, unsigned n_levels,
                              uint64_t *ret_bytes)
{
  *ret_bytes = shape ? shape_bytes(shape, n_levels) : 0;
  return taking_begin(taking, place_current(), LADE_LEDGER_ARRAY, *ret_bytes);
}

cuda_result cuArrayCreate_v2(cuda_array *ret_array, const struct cuda_array_shape *shape)
{
  struct taking taking;
  uint64_t bytes;
  struct cuda_array_shape_3d whole = SHAPE_OF(shape, 0, 0);
  cuda_result result = array_take(&taking, &whole, 1, &bytes);
  if (!result) {
    result = REAL(cuArrayCreate_v2)(ret_array, shape);
    result = taking_end(&taking, result, LADE_LEDGER_ARRAYS, result ? 0 : (uintptr_t)*ret_array, bytes);
  }
  return result;
}

cuda_result cuArrayCreate(cuda_array *ret_array, const struct cuda_array_shape_v1 *shape)
{
  struct taking taking;
  uint64_t bytes;
  struct cuda_array_shape_3d whole = SHAPE_OF(shape, 0, 0);
  cuda_result result = array_take(&taking, &whole, 1, &bytes);
  if (!result) {
    result = REAL(cuArrayCreate)(ret_array, shape);
    result = taking_end(&taking, result, LADE_LEDGER_ARRAYS, result ? 0 : (uintptr_t)*ret_array, bytes);
  }
  return result;
}

cuda_result cuArray3DCreate_v2(cuda_array *ret_array, const struct cuda_array_shape_3d *shape)
{
  struct taking taking;
  uint64_t bytes;
  cuda_result result = array_take(&taking, shape, 1, &bytes);
  if (!result) {
    result = REAL(cuArray3DCreate_v2)(ret_array, shape);
    result = taking_end(&taking, result, LADE_LEDGER_ARRAYS, result ? 0 : (uintptr_t)*ret_array, bytes);
  }
  return result;
}

cuda_result cuArray3DCreate(cuda_array *ret_array, const struct cuda_array_shape_3d_v1 *shape)
{
  struct taking taking;
  uint64_t bytes;
  struct cuda_array_shape_3d whole = SHAPE_OF(shape, shape->depth, shape->flags);
  cuda_result result = array_take(&taking, &whole, 1, &bytes);
  if (!result) {
    result = REAL(cuArray3DCreate)(ret_array, shape);
    result = taking_end(&taking, result, LADE_LEDGER_ARRAYS, result ? 0 : (uintptr_t)*ret_array, bytes);
  }
  return result;
}

cuda_result cuArrayDestroy(cuda_array array)
{
  struct giving giving = giving_begin(LADE_LEDGER_ARRAYS, (uintptr_t)array);
  return giving_end(&giving, REAL(cuArrayDestroy)(array));
}

cuda_result cuMipmappedArrayCreate(cuda_mipmapped *ret_array, const struct cuda_array_shape_3d *shape,
                                   unsigned n_levels)
{
  struct taking taking;
  uint64_t bytes;
  cuda_result result = array_take(&taking, shape, n_levels, &bytes);
  if (!result) {
    result = REAL(cuMipmappedArrayCreate)(ret_array, shape, n_levels);
    result = taking_end(&taking, result, LADE_LEDGER_ARRAYS, result ? 0 : (uintptr_t)*ret_array, bytes);
  }
  return result;
}

cuda_result cuMipmappedArrayDestroy(cuda_mipmapped array)
{
  struct giving giving = giving_begin(LADE_LEDGER_ARRAYS, (uintptr_t)array);
  return giving_end(&giving, REAL(cuMipmappedArrayDestroy)(array));
}
