/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ground floor's smallest tools: checks, alignment, growable arrays, errors, sizes, the clock.
 *
 * LADE_ASSERT states what must be true and is compiled out with -Dchecks=off; it is never
 * error handling. LADE_CHECK_FULL guards the expensive recounts of -Dchecks=full.
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
 * A growable array of plain values: `struct { T *items; int n, capacity; }` with these three.
 * LADE_PUSH evaluates to false, with the array unchanged, when memory is out.
 */
#define LADE_ARRAY(type) \
  struct { \
    type *items; \
    int n, capacity; \
  }
#define LADE_PUSH(array, value) \
  (lade_array_reserve((void **)&(array)->items, &(array)->capacity, (array)->n + 1, \
                      sizeof(*(array)->items)) \
       ? ((array)->items[(array)->n++] = (value), true) \
       : false)
#define LADE_ARRAY_FREE(array) lade_array_free((void **)&(array)->items, &(array)->n, &(array)->capacity)

/* Grow *@items to room for @n of @item_bytes, doubling. False and unchanged when memory is out. */
bool lade_array_reserve(void **items, int *capacity, int n, size_t item_bytes);
void lade_array_free(void **items, int *n, int *capacity);

/*
 * A person's size: "24MiB", "1.5GiB", "512KB", "4096" (bytes). Decimal and binary suffixes.
 * -EINVAL when it is not one, -ERANGE past 2^63.
 */
int lade_size_parse(const char *text, uint64_t *ret_bytes);

/*
 * strtod with a point for the decimals whatever the program's locale is: what people write to us is not in their
 * program's language. Where memory is out it is in that language. Any thread.
 */
double lade_number_read(const char *text, char **ret_end);

/* "24.0 MiB" into @text (at least 16 bytes); returns @text. */
char *lade_size_format(uint64_t bytes, char *text, size_t text_bytes);

/* "24.0 MiB (25165824 bytes)", or "700 bytes", into @text; returns @text. */
#define LADE_SIZE_TEXT 48
char *lade_size_exact(uint64_t bytes, char text[LADE_SIZE_TEXT]);

/*
 * Structs of the public interface that begin with a struct_size, which the caller set (lade/types.h).
 *
 * Read the caller's @given into @ret_own, this library's @own_bytes of it with zeros where the caller's ends.
 * -EINVAL when struct_size is smaller than itself or the caller's tail has what this library does not know; @what
 * names the struct in @error.
 */
int lade_struct_read(const char *what, const void *given, void *ret_own, size_t own_bytes, struct lade_error *error);

/*
 * Fill the caller's @ret_given from this library's @own: no more than the caller's struct_size, which stays, and
 * zeros past what this library knows. -EINVAL when struct_size is smaller than itself.
 */
int lade_struct_fill(const char *what, void *ret_given, const void *own, size_t own_bytes, struct lade_error *error);

/* Would that fill be refused? To be asked before the work whose result it takes. */
int lade_struct_check(const char *what, const void *given, struct lade_error *error);

/*
 * Is a call that failed with @code, a negative errno, worth another try? -EINTR, -EAGAIN and -EBUSY are, 32 times at
 * most, each after a longer pause, which this makes: 50 ms in all. *@n_tries is the caller's, who sets it to 0 wherever
 * something has moved.
 */
bool lade_retry(int code, int *n_tries);

/* Monotonic nanoseconds. */
int64_t lade_now_ns(void);

#endif
