/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The first header of the kernels when nvcc compiles them; tests/fakes/cuda_on_cpu/cuda_on_cpu.h is its twin for the
 * CPU.
 */
#ifndef LADE_CUDA_GPU_H
#define LADE_CUDA_GPU_H

#include "kernels/cuda/ptx_90a.h"

#define LADE_CUDA_EXPORT(name, args_type) /* the driver finds a kernel by its name */

#endif
