/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The variants that a test holds against the plain reference: those of this CPU (levels_host.c), the CUDA kernels run
 * on it (tests/standin/levels_cuda.c), or a GPU's (levels_gpu.c). Tests are the same sources, linked with one of them.
 */
#ifndef LADE_TESTS_LEVELS_H
#define LADE_TESTS_LEVELS_H

#include "kernels/kernels.h"

#define LEVELS 6

/* Names of tables that may exist here, the reference's first, up to a NULL. */
extern const char *const level_names[];

/* Calls with more elements than this are left out: running a GPU's threads one by one is slow. */
extern const int64_t level_most_elements;

/* Attention of more products than this, queries by keys by the size of a head, is left out for the same reason. */
int64_t level_most_products(void);

/* Memory that kernels of all levels reach, of at least 64 bytes' alignment; free() gives it back. */
void *level_alloc(size_t n_bytes);

/* A table of the level's name, or of the "best" that this machine has; false when it lacks the level. */
bool level_get(const char *level, struct lade_kernels *ret_kernels);

/* One table per level that this machine has and that may have a variant of @kernel, the plain one first; how many. */
int levels_make(enum lade_kernel kernel, struct lade_kernels levels[LEVELS]);

/* Whether the level's @kernel knows these arguments, whose dtype is @dtype. */
bool level_takes(const struct lade_kernels *kernels, enum lade_kernel kernel, enum lade_dtype dtype, const void *args);

/* A context for calls of @kernels. The bits may not depend on the pool's threads, nor on what stands for them. */
struct lade_kernel_ctx level_ctx(const struct lade_kernels *kernels, lade_pool *pool, const struct lade_step *step);

#endif
