/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lade/types.h - shared by all public headers: element types, visibility, errors.
 *
 * Every function that can fail returns 0 or a negative errno. Out-parameters are named
 * ret_... and stay untouched on failure. Functions that read a person's input (options,
 * files, directories) also take a struct lade_error and write one line into it: the fault,
 * its place, and the remedy. The library never prints and never exits.
 *
 * NULL for an object, parameters or an out-parameter that a call needs is -EINVAL. Functions that return no error code
 * then do nothing and return 0, "" or true.
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

/* Return the version of the linked library, "0.1.0"; static. Any thread. Never blocks. */
LADE_API const char *lade_version(void);

/*
 * Structs that begin with a size_t struct_size may grow at their end. The caller sets it to sizeof the struct in its
 * headers. The library reads fields that an older program does not have as 0, which is the default. Fields that an
 * older library does not have must be 0, or the call returns -EINVAL. The library writes at most struct_size bytes
 * into a struct that it fills.
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

/* Return the bytes of one element; 0 for a value out of range. Any thread. Never blocks. */
LADE_API size_t lade_dtype_bytes(enum lade_dtype dtype);

/* Return the short name, "f32", "bf16", ..., "?" for a value out of range; static. Any thread. Never blocks. */
LADE_API const char *lade_dtype_name(enum lade_dtype dtype);

/* Tiers of memory. */
enum lade_space { LADE_DEVICE, LADE_HOST, LADE_STORE, LADE_N_SPACES };

/* Axes along which ranks share the work: see docs/ranks.md. */
enum lade_axis {
  LADE_AXIS_TP,        /* tensor (and sequence) parallel */
  LADE_AXIS_CP,        /* context parallel */
  LADE_AXIS_EP,        /* expert parallel: inside dp */
  LADE_AXIS_DP,        /* data parallel, all of it */
  LADE_AXIS_PP,        /* pipeline parallel */
  LADE_AXIS_EXPERT_DP, /* replicas of the same experts: dp / ep */
  LADE_AXIS_SHARD,     /* holders of one sharded copy of the state: inside dp */
  LADE_AXIS_REPLICATE, /* holders of the same shard: dp / shard */
  LADE_AXIS_EMBED,     /* the first and the last stage, which share a tied token table; other stages are alone */
  LADE_AXIS_KV,        /* holders of the same KV head, if tp is larger than the number of KV heads: inside tp */
  LADE_N_AXES
};

/* The form of AdamW's two moments between steps; docs/store.md. */
enum lade_moments {
  LADE_MOMENTS_F32,
  LADE_MOMENTS_BF16,
  LADE_MOMENTS_8BIT, /* with one exponent per moment for each LADE_MOMENT_BLOCK elements */
  LADE_N_MOMENTS
};

/* The form of a BF16 weight's residual. */
enum lade_master {
  LADE_MASTER_EXACT, /* 16 bits: the FP32 master exactly */
  LADE_MASTER_24BIT, /* 8 bits: the upper 24 bits of the master */
  LADE_N_MASTERS
};

#define LADE_MOMENT_BLOCK 128

/* One line about a failure, for a person. The caller owns it; text is empty when unset. */
struct lade_error {
  int code; /* the negative errno that was returned */
  char text[512];
};

/*
 * Fill @error (may be NULL) from a printf format and return @code. A failing path reads
 * `return lade_error_set(error, -EINVAL, "...")`. A @code of 0 or more counts as -EINVAL.
 * Any thread. Never blocks.
 */
LADE_API int lade_error_set(struct lade_error *error, int code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/*
 * Codes with a fixed meaning across the library, and the exit code of the command:
 *   -EOVERFLOW  does not fit the stated budget (3)
 *   -ENOMEM     memory ran out while running (4)
 *   -EIO -EBADMSG -ENOSPC -EROFS  I/O failed, data is damaged, a store is full or cannot be written (5)
 *   -EDOM       numbers differ, or a value that must be finite is not (6 and 1)
 *   -ENODEV -ENOSYS  this machine lacks a device or a feature (7)
 *   -EINVAL     the caller's input is wrong (2)
 */

#ifdef __cplusplus
}
#endif
#endif
