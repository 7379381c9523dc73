/* SPDX-License-Identifier: Apache-2.0 */
/* `lade bench store` (tools/bench_store.c) as a program of its own. */
#include "tools/verbs.h"

int main(int argc, char **argv)
{
  return bench_store_main(argc, argv);
}
