/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The smallest tools: checks, alignment, growable arrays, errors, sizes, the clock.
 *
 * LADE_ASSERT states a condition that must be true and is compiled out with -Dchecks=off; it is never error handling.
 * LADE_CHECK_FULL guards the expensive recounts of -Dchecks=full.
 */
#ifndef LADE_BASE_H
#define LADE_BASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lade/types.h"

#ifndef LADE_CHECKS
#define LADE_CHECKS 1
#endif

#if LADE_CHECKS > 0
#include <assert.h>
#define LADE_ASSERT(expr) assert(expr)
#else
#define LADE_ASSERT(expr) ((void)sizeof(expr))
#endif
#define LADE_CHECK_FULL (LADE_CHECKS > 1)

#define LADE_COUNT(array) (sizeof(array) / sizeof((array)[0]))
#define LADE_MIN(a, b) ((a) < (b) ? (a) : (b))
#define LADE_MAX(a, b) ((a) > (b) ? (a) : (b))

/* Round up to @align, a power of two. */
static inline uint64_t lade_align_up(uint64_t n, uint64_t align)
{
  return (n + align - 1) & ~(align - 1);
}

static inline int64_t lade_div_up(int64_t n, int64_t by)
{
  return (n + by - 1) / by;
}

/*
 * A growable array of plain values: `struct { T *items; int n, capacity; }`, for these macros. LADE_RESERVE makes room
 * for one more value. It and LADE_PUSH evaluate to false, with the array unchanged, if memory is out.
 */
#define LADE_ARRAY(type) \
  struct { \
    type *items; \
    int n, capacity; \
  }
#define LADE_RESERVE(array) \
  ((array)->n < (array)->capacity || \
   lade_array_reserve((void **)&(array)->items, &(array)->capacity, (array)->n + 1, sizeof(*(array)->items)))
#define LADE_PUSH(array, value) (LADE_RESERVE(array) ? ((array)->items[(array)->n++] = (value), true) : false)
#define LADE_ARRAY_FREE(array) lade_array_free((void **)&(array)->items, &(array)->n, &(array)->capacity)

/* Grow *@items to a capacity of at least @n of @item_bytes, doubling. False, with nothing changed, if memory is out. */
bool lade_array_reserve(void **items, int *capacity, int n, size_t item_bytes);
void lade_array_free(void **items, int *n, int *capacity);

/*
 * Parse a size: "24MiB", "1.5GiB", "512KB", "4096" (bytes). Decimal and binary suffixes. -EINVAL if @text is not a
 * size, -ERANGE past 2^63.
 */
int lade_size_parse(const char *text, uint64_t *ret_bytes);

/*
 * Read a decimal number, such as -1.5e3, as strtod does, with a point in any locale, unless memory is out. Other texts
 * are no numbers (a leading blank, 0x10, inf, nan): return 0, and set *@ret_end to @text. Any thread.
 */
double lade_number_read(const char *text, char **ret_end);

/* Write "24.0 MiB" into @text (at least 16 bytes); return @text. */
char *lade_size_format(uint64_t bytes, char *text, size_t text_bytes);

/* Write "24.0 MiB (25165824 bytes)", or "700 bytes", into @text; return @text. */
#define LADE_SIZE_TEXT 48
char *lade_size_exact(uint64_t bytes, char text[LADE_SIZE_TEXT]);

/*
 * Structs of the public interface begin with a struct_size, which the caller sets (lade/types.h).
 *
 * Read the caller's @given into @ret_own, @own_bytes of this library's version, with zeros past the caller's end.
 * -EINVAL if struct_size is smaller than size_t, or if the caller's struct has non-zero bytes beyond @own_bytes, which
 * are fields unknown to this library. @type_name names the struct in @error.
 */
int lade_struct_read(const char *type_name, const void *given, void *ret_own, size_t own_bytes,
                     struct lade_error *error);

/*
 * Fill the caller's @ret_given from this library's @own. Write at most the caller's struct_size bytes, keep
 * struct_size, and write zeros past this library's fields. -EINVAL if struct_size is smaller than size_t.
 */
int lade_struct_fill(const char *type_name, void *ret_given, const void *own, size_t own_bytes,
                     struct lade_error *error);

/* Return the error that lade_struct_fill would return. Callers use it before the work whose result they fill in. */
int lade_struct_check(const char *type_name, const void *given, struct lade_error *error);

/*
 * True if a call that failed with @code, a negative errno, should be tried again. Retries -EINTR, -EAGAIN and -EBUSY,
 * at most 32 times. Sleeps before it returns true, each time longer: 50 ms in all. *@n_tries belongs to the caller,
 * which resets it to 0 after any progress. Blocks.
 */
bool lade_retry(int code, int *n_tries);

/* Return monotonic nanoseconds. */
int64_t lade_now_ns(void);

#endif
