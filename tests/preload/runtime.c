/* SPDX-License-Identifier: Apache-2.0 */
/* A program of the CUDA runtime. The stand-in lacks the private tables that it wants, so it does not get far. */
#include <cuda_runtime_api.h>

int main(void)
{
  void *at = NULL;
  return cudaMalloc(&at, 1 << 20) == cudaSuccess ? 1 : 0;
}
