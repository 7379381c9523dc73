/* SPDX-License-Identifier: Apache-2.0 */
/* The names of GPUs in options. Separate from cuda.c, so that a build without cuda.c reads them too. */
#include <errno.h>
#include <string.h>

#include "device/cuda.h"

#define MAX_DIGITS 4 /* of the ordinal in "cuda:N" */

int lade_cuda_ordinal(const char *name)
{
  if (strcmp(name, "cuda") == 0)
    return 0;
  size_t n = strncmp(name, "cuda:", 5) == 0 ? strspn(name + 5, "0123456789") : 0;
  if (n == 0 || n > MAX_DIGITS || name[5 + n])
    return -EINVAL;
  int ordinal = 0;
  for (size_t i = 0; i < n; i++)
    ordinal = ordinal * 10 + (name[5 + i] - '0');
  return ordinal;
}
