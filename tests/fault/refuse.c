/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Run a command without some system calls, as containers do: refuse ERRNO NUMBER... -- COMMAND. Exits 77 if that is
 * forbidden.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/seccomp.h"

#define MAX_CALLS 16

int main(int argc, char **argv)
{
  int calls[MAX_CALLS], n = 0, at = 2;
  while (at < argc && strcmp(argv[at], "--") != 0 && n < MAX_CALLS)
    calls[n++] = atoi(argv[at++]);
  if (n == 0 || at + 1 >= argc || strcmp(argv[at], "--") != 0) {
    fprintf(stderr, "usage: refuse ERRNO NUMBER... -- COMMAND\n");
    return 2;
  }
  if (!seccomp_refuse(calls, n, atoi(argv[1])))
    return 77;
  execv(argv[at + 1], argv + at + 1);
  perror(argv[at + 1]);
  return 2;
}
