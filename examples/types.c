/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Print Lade's element types.
 *
 *   cc types.c $(pkg-config --cflags --libs lade) && ./a.out
 */
#include <lade/types.h>
#include <stdio.h>

int main(void)
{
  for (int dtype = 0; dtype < LADE_N_DTYPES; dtype++)
    printf("%-5s %zu bytes\n", lade_dtype_name((enum lade_dtype)dtype), lade_dtype_bytes((enum lade_dtype)dtype));
  return 0;
}
