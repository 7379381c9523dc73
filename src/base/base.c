/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Arrays, sizes, element types, errors, retries and the clock.
 *
 * Arrays double, so that n pushes cost O(n). They hold plain values only and never shrink, because each array lives for
 * one build of a program. Sizes are parsed as strtod does in the C locale, in any locale of the program, and checked
 * against 2^63 afterwards. A size that a user types, like "1.5GiB", is exact in a double.
 */
#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <locale.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include "base/base.h"

#define STRUCT_BYTES_MAX (1 << 16) /* a larger struct_size is uninitialised memory */
#define TRIES_MAX 32
#define TRY_PAUSE_NS 100000 /* multiplied by the number of tries */

struct size_unit {
  const char *suffix;
  uint64_t bytes;
};

static const struct size_unit size_units[] = {
    {"", 1},
    {"B", 1},
    {"K", 1024},
    {"KB", 1000},
    {"KiB", UINT64_C(1) << 10},
    {"M", UINT64_C(1) << 20},
    {"MB", 1000 * 1000},
    {"MiB", UINT64_C(1) << 20},
    {"G", UINT64_C(1) << 30},
    {"GB", 1000 * 1000 * 1000},
    {"GiB", UINT64_C(1) << 30},
    {"T", UINT64_C(1) << 40},
    {"TB", UINT64_C(1000) * 1000 * 1000 * 1000},
    {"TiB", UINT64_C(1) << 40},
    {"PB", UINT64_C(1000) * 1000 * 1000 * 1000 * 1000},
    {"PiB", UINT64_C(1) << 50},
    {"EiB", UINT64_C(1) << 60},
};

static const struct {
  const char *name;
  size_t bytes;
} dtypes[LADE_N_DTYPES] = {
    [LADE_F32] = {"f32", 4}, [LADE_BF16] = {"bf16", 2}, [LADE_F16] = {"f16", 2}, [LADE_F64] = {"f64", 8},
    [LADE_I32] = {"i32", 4}, [LADE_I16] = {"i16", 2},   [LADE_U8] = {"u8", 1},
};

#define TEXT_OF(number) #number
#define TEXT_OF_VALUE(macro) TEXT_OF(macro)

const char *lade_version(void)
{
  return TEXT_OF_VALUE(LADE_VERSION_MAJOR) "." TEXT_OF_VALUE(LADE_VERSION_MINOR) "." TEXT_OF_VALUE(LADE_VERSION_PATCH);
}

size_t lade_dtype_bytes(enum lade_dtype dtype)
{
  return (unsigned)dtype < LADE_N_DTYPES ? dtypes[dtype].bytes : 0;
}

const char *lade_dtype_name(enum lade_dtype dtype)
{
  return (unsigned)dtype < LADE_N_DTYPES ? dtypes[dtype].name : "?";
}

int lade_error_set(struct lade_error *error, int code, const char *format, ...)
{
  code = code < 0 ? code : -EINVAL; /* a failure must have a negative code */
  if (!error)
    return code;
  char whole[2 * PATH_MAX];
  error->code = code;
  va_list args;
  va_start(args, format);
  vsnprintf(whole, sizeof(whole), format, args);
  va_end(args);
  size_t n = strlen(whole), max = sizeof(error->text) - 1, head = max / 2;
  if (n <= max)
    memcpy(error->text, whole, n + 1);
  else /* leave out the middle, so that a long path does not cut off the reason at the end */
    snprintf(error->text, sizeof(error->text), "%.*s...%s", (int)head, whole, whole + n - (max - head - 3));
  return code;
}

bool lade_array_reserve(void **items, int *capacity, int n, size_t item_bytes)
{
  if (n <= *capacity)
    return true;
  int wanted = *capacity > INT_MAX / 2 ? INT_MAX : *capacity ? *capacity * 2 : 16;
  if (wanted < n)
    wanted = n;
  void *grown = realloc(*items, (size_t)wanted * item_bytes);
  if (!grown)
    return false;
  *items = grown;
  *capacity = wanted;
  return true;
}

void lade_array_free(void **items, int *n, int *capacity)
{
  free(*items);
  *items = NULL;
  *n = *capacity = 0;
}

double lade_number_read(const char *text, char **ret_end)
{
  char *end = NULL;
  locale_t plain = newlocale(LC_NUMERIC_MASK, "C", (locale_t)0);
  double value = plain ? strtod_l(text, &end, plain) : strtod(text, &end);
  if (plain)
    freelocale(plain);
  const bool is_decimal = strspn(text, "0123456789+-.eE") >= (size_t)(end - text);
  *ret_end = is_decimal ? end : (char *)(uintptr_t)text;
  return is_decimal ? value : 0;
}

int lade_size_parse(const char *text, uint64_t *ret_bytes)
{
  char *end = NULL;
  if (!isdigit((unsigned char)text[0]) && text[0] != '.')
    return -EINVAL; /* a number has no sign here */
  double value = lade_number_read(text, &end);
  const char *unit = end + strspn(end, " ");
  if (unit > end && !*unit)
    return -EINVAL; /* blanks stand between a number and its unit alone */
  for (size_t i = 0; i < LADE_COUNT(size_units); i++) {
    if (strcasecmp(unit, size_units[i].suffix) != 0)
      continue;
    double bytes = value * (double)size_units[i].bytes;
    if (!(bytes < 9.2e18))
      return -ERANGE;
    const bool is_whole = strspn(text, "0123456789") == (size_t)(end - text); /* doubles round those above 2^53 */
    *ret_bytes = is_whole ? strtoull(text, NULL, 10) * size_units[i].bytes : (uint64_t)llround(bytes);
    return 0;
  }
  return -EINVAL;
}

char *lade_size_format(uint64_t bytes, char *text, size_t text_bytes)
{
  static const char *const suffixes[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  double value = (double)bytes;
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < LADE_COUNT(suffixes)) {
    value /= 1024;
    unit++;
  }
  if (unit == 0) {
    snprintf(text, text_bytes, "%" PRIu64 " B", bytes);
  } else {
    /* In integers, because a locale may have another decimal point. */
    const uint64_t tenths = (uint64_t)llrint(value * 10);
    snprintf(text, text_bytes, "%" PRIu64 ".%" PRIu64 " %s", tenths / 10, tenths % 10, suffixes[unit]);
  }
  return text;
}

char *lade_size_exact(uint64_t bytes, char text[LADE_SIZE_TEXT])
{
  char rounded[16];
  if (bytes < 1024)
    snprintf(text, LADE_SIZE_TEXT, "%" PRIu64 " byte%s", bytes, bytes == 1 ? "" : "s");
  else
    snprintf(text, LADE_SIZE_TEXT, "%s (%" PRIu64 " bytes)", lade_size_format(bytes, rounded, sizeof(rounded)), bytes);
  return text;
}

static size_t struct_bytes(const void *given)
{
  size_t bytes;
  memcpy(&bytes, given, sizeof(bytes));
  return bytes;
}

int lade_struct_check(const char *type_name, const void *given, struct lade_error *error)
{
  if (!given)
    return lade_error_set(error, -EINVAL, "%s: the pointer is NULL", type_name);
  size_t bytes = struct_bytes(given);
  if (bytes >= sizeof(bytes) && bytes <= STRUCT_BYTES_MAX)
    return 0;
  return lade_error_set(error, -EINVAL, "%s: struct_size is %zu: set it to sizeof the struct", type_name, bytes);
}

int lade_struct_read(const char *type_name, const void *given, void *ret_own, size_t own_bytes,
                     struct lade_error *error)
{
  int status = lade_struct_check(type_name, given, error);
  if (status)
    return status;
  size_t bytes = struct_bytes(given);
  for (size_t i = own_bytes; i < bytes; i++) {
    if (((const char *)given)[i])
      return lade_error_set(error, -EINVAL, "%s: asks for what this library, version %s, does not know: it was "
                            "compiled against newer headers", type_name, lade_version());
  }
  memset(ret_own, 0, own_bytes);
  memcpy(ret_own, given, LADE_MIN(bytes, own_bytes));
  memcpy(ret_own, &own_bytes, sizeof(own_bytes));
  return 0;
}

int lade_struct_fill(const char *type_name, void *ret_given, const void *own, size_t own_bytes,
                     struct lade_error *error)
{
  int status = lade_struct_check(type_name, ret_given, error);
  if (status)
    return status;
  size_t bytes = struct_bytes(ret_given);
  memset(ret_given, 0, bytes);
  memcpy(ret_given, own, LADE_MIN(bytes, own_bytes));
  memcpy(ret_given, &bytes, sizeof(bytes));
  return 0;
}

bool lade_retry(int code, int *n_tries)
{
  if ((code != -EINTR && code != -EAGAIN && code != -EBUSY) || *n_tries == TRIES_MAX)
    return false;
  const struct timespec pause = {.tv_nsec = (long)++*n_tries * TRY_PAUSE_NS};
  nanosleep(&pause, NULL);
  return true;
}

int64_t lade_now_ns(void)
{
  struct timespec ts;
  clock_gettime(CLOCK_MONOTONIC, &ts);
  return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}
