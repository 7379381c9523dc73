/* SPDX-License-Identifier: Apache-2.0 */
/* The fuzzer's bytes as a file: its path, valid until the next call. */
#ifndef LADE_TESTS_FUZZ_FILE_H
#define LADE_TESTS_FUZZ_FILE_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "lade/types.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* FUZZ_DIR is the runner's and removed by it. */
static inline const char *fuzz_file(const char *name, const uint8_t *data, size_t size)
{
  static char path[256];
  const char *dir = getenv("FUZZ_DIR");
  snprintf(path, sizeof(path), "%s/%s", dir ? dir : "/tmp", name);
  FILE *file = fopen(path, "wb");
  if (!file || fwrite(data, 1, size, file) != size || fclose(file))
    abort();
  return path;
}

/* Check that a refusal has one line; anything else is a bug. */
static inline void fuzz_error_check(const struct lade_error *error)
{
  if (!error->text[0])
    abort();
  for (const char *c = error->text; *c; c++) {
    if (*c == '\n')
      abort();
  }
}

#endif
