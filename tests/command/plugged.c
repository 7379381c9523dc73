/* SPDX-License-Identifier: Apache-2.0 */
/* A consumer of an installed liblade-allocator.so: without a GPU its first allocation names the reason. */
#include <lade/allocator.h>
#include <stdio.h>
int main(void)
{
  struct lade_error error = {0};
  void *block = lade_plugged_alloc(1 << 20, 0, NULL);
  lade_plugged_error(&error);
  lade_plugged_free(block, 1 << 20, 0, NULL);
  printf("plugged: %s\n", block ? "a block" : error.text);
  return !block && !error.code;
}
