/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Between the host kernels and their table (table.c): one init per op and level, one workspace
 * bound per op that needs one. Private to kernels/host.
 *
 * lade_<op>_init puts the plain reference into the table; lade_<op>_init_<level> overwrites it where the
 * level improves it. Level files are compiled with that level's instructions and are linked only on
 * x86-64: levels_x86.c calls their inits behind the CPU probe, levels_none.c stands in elsewhere.
 */
#ifndef LADE_KERNELS_HOST_H
#define LADE_KERNELS_HOST_H

#include "base/cpu.h"
#include "kernels/kernels.h"

/* Every level that @cpu has, in rising order. */
void lade_kernels_init_levels(struct lade_kernels *kernels, const struct lade_cpu *cpu);

static inline void lade_kernels_set(struct lade_kernels *kernels, enum lade_kernel kernel, lade_kernel_fn *fn,
                                    const char *variant)
{
  kernels->fn[kernel] = fn;
  kernels->variant[kernel] = variant;
}

/* For the ops whose plain form multiplies matrices. */
lade_kernel_fn lade_matmul_plain;

void lade_matmul_init(struct lade_kernels *kernels);
void lade_attention_init(struct lade_kernels *kernels);
void lade_head_loss_init(struct lade_kernels *kernels);

void lade_matmul_init_avx2(struct lade_kernels *kernels);
void lade_matmul_init_avx512(struct lade_kernels *kernels);
void lade_matmul_init_avx512_bf16(struct lade_kernels *kernels);

size_t lade_matmul_workspace_bytes(const struct lade_matmul_args *args, int n_threads);
size_t lade_attention_fwd_workspace_bytes(const struct lade_attention_fwd_args *args, int n_threads);
size_t lade_attention_bwd_workspace_bytes(const struct lade_attention_bwd_args *args, int n_threads);
size_t lade_head_loss_fwd_workspace_bytes(const struct lade_head_loss_fwd_args *args, int n_threads);
size_t lade_head_loss_bwd_workspace_bytes(const struct lade_head_loss_bwd_args *args, int n_threads);

#endif
