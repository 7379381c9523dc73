/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/program.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

bool program_exists(const char *program)
{
  char candidate[PATH_MAX];
  if (strchr(program, '/'))
    return access(program, X_OK) == 0;
  const char *dir = getenv("PATH");
  while (dir) {
    const char *end = strchrnul(dir, ':');
    bool is_here = end == dir; /* an empty entry is the directory in which we are */
    int n = snprintf(candidate, sizeof(candidate), "%.*s/%s", is_here ? 1 : (int)(end - dir), is_here ? "." : dir,
                     program);
    if (n < (int)sizeof(candidate) && access(candidate, X_OK) == 0)
      return true;
    dir = *end ? end + 1 : NULL;
  }
  return false;
}
