/* SPDX-License-Identifier: Apache-2.0 */
/* A program of the CUDA runtime. The fake lacks the private tables that the runtime needs, so it fails early there. */
#include <cuda_runtime_api.h>
#include <stdio.h>

int main(void)
{
  void *at = NULL;
  int small = cudaMalloc(&at, 1 << 20), large = cudaMalloc(&at, 64 << 20);
  printf("%d %d\n", small, large);
  return 0;
}
