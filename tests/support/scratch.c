/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/scratch.h"

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define N_PATHS 8

char scratch[SCRATCH_BYTES];

void scratch_make(char *path, bool is_memory)
{
  snprintf(path, SCRATCH_BYTES, "/dev/shm/lade-scratch-XXXXXX");
  if (is_memory && mkdtemp(path))
    return;
  snprintf(path, SCRATCH_BYTES, "./scratch-XXXXXX");
  if (!mkdtemp(path))
    abort();
}

static int entry_remove(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
  return remove(path);
}

void scratch_remove(const char *path)
{
  if (nftw(path, entry_remove, 16, FTW_DEPTH | FTW_PHYS) != 0)
    abort();
}

int scratch_setup(void **state)
{
  scratch_make(scratch, false);
  return 0;
}

int scratch_setup_in_memory(void **state)
{
  scratch_make(scratch, true);
  return 0;
}

int scratch_teardown(void **state)
{
  scratch_remove(scratch);
  return 0;
}

const char *in_scratch(const char *name)
{
  static char paths[N_PATHS][SCRATCH_PATH_BYTES];
  static int next;
  char *path = paths[next++ % N_PATHS];
  snprintf(path, SCRATCH_PATH_BYTES, "%s/%s", scratch, name);
  return path;
}
