/* SPDX-License-Identifier: Apache-2.0 */
/* What the kernels are told first when nvcc compiles them; tests/standin/cuda_on_cpu.h is its twin for the CPU. */
#ifndef LADE_CUDA_GPU_H
#define LADE_CUDA_GPU_H

#include "kernels/cuda/ptx_90a.h"

#define LADE_CUDA_EXPORT(name, args_type) /* the driver finds a kernel by its name */

#endif
