/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lade/types.h - what every public header shares: element types, visibility, errors.
 *
 * Every function that can fail returns 0 or a negative errno. Out-parameters are named
 * ret_... and are untouched on failure. Functions that read what a person wrote (options,
 * files, directories) also take a struct lade_error and put one line into it: what is wrong,
 * where, and what to do. The library never prints and never exits.
 */
#ifndef LADE_TYPES_H
#define LADE_TYPES_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define LADE_API __attribute__((visibility("default")))

/* The version of these headers. */
#define LADE_VERSION_MAJOR 0
#define LADE_VERSION_MINOR 1
#define LADE_VERSION_PATCH 0

/* The version of the library that is linked, "0.1.0"; static. Any thread. Never blocks. */
LADE_API const char *lade_version(void);

/*
 * Structs that begin with a size_t struct_size may grow at their end. The caller sets it to the size that its headers
 * know. What an older program does not know is 0 to the library, and 0 is a default; what an older library does
 * not know must be 0, or the call is refused with -EINVAL. Of a struct that the library fills, it writes no more than
 * struct_size bytes.
 */

/* Element types of tensors. Values are stable: they are written into files. */
enum lade_dtype {
  LADE_F32 = 0,
  LADE_BF16 = 1,
  LADE_F16 = 2,
  LADE_F64 = 3, /* references only */
  LADE_I32 = 4,
  LADE_I16 = 5, /* residual of a split master weight */
  LADE_U8 = 6,
  LADE_N_DTYPES
};

/* Bytes of one element. Any thread. */
LADE_API size_t lade_dtype_bytes(enum lade_dtype dtype);

/* Short name, "f32", "bf16", ...; static. Any thread. */
LADE_API const char *lade_dtype_name(enum lade_dtype dtype);

/* Along what ranks share the work: see docs/parallel.md. */
enum lade_axis {
  LADE_AXIS_TP, /* tensor (and sequence) parallel */
  LADE_AXIS_CP, /* context parallel */
  LADE_AXIS_EP, /* expert parallel: inside dp */
  LADE_AXIS_DP, /* data parallel, all of it */
  LADE_AXIS_PP, /* pipeline parallel */
  LADE_AXIS_EXPERT_DP, /* replicas of the same experts: dp / ep */
  LADE_AXIS_SHARD,     /* holders of one sharded copy of the state: inside dp */
  LADE_AXIS_REPLICATE, /* holders of the same shard: dp / shard */
  LADE_AXIS_EMBED,     /* the first and the last stage, where a token table is tied; stages between are alone */
  LADE_AXIS_KEY,       /* holders of the same key head, where tp is more than there are: inside tp */
  LADE_N_AXES
};

/* How AdamW's two moments are kept between steps; docs/adam.md. */
enum lade_moments {
  LADE_MOMENTS_F32,
  LADE_MOMENTS_BF16,
  LADE_MOMENTS_8BIT, /* with an exponent for each moment of LADE_MOMENT_BLOCK elements */
  LADE_N_MOMENTS
};

/* What a BF16 weight's residual holds. */
enum lade_master {
  LADE_MASTER_EXACT, /* 16 bits: the FP32 master exactly */
  LADE_MASTER_24BIT, /* 8 bits: its upper 24 */
  LADE_N_MASTERS
};

#define LADE_MOMENT_BLOCK 128

/* One line about a failure, for a person. Owned by the caller; text is empty when unset. */
struct lade_error {
  int code; /* the negative errno that was returned */
  char text[512];
};

/*
 * Fill @error (may be NULL) from a printf format and return @code, so that a failing path
 * reads `return lade_error_set(error, -EINVAL, "...")`. Any thread; never blocks.
 */
LADE_API int lade_error_set(struct lade_error *error, int code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/*
 * The codes with a meaning of their own across the library:
 *   -EOVERFLOW  does not fit the stated budget (the command exits 3)
 *   -ENOMEM     memory ran out while running (4)
 *   -EIO -EBADMSG -ENOSPC -EROFS  I/O failed, data is damaged, a store is full or cannot be written (5)
 *   -EDOM       numbers differ, or a value that must be finite is not (6 and 1)
 *   -ENODEV -ENOSYS  something this machine does not have (7)
 *   -EINVAL     the caller's input is wrong (2)
 */

#ifdef __cplusplus
}
#endif
#endif
