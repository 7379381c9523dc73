/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The variants that a test compares with the plain reference: those of this CPU (levels_host.c), the CUDA kernels run
 * on it (tests/on_fakes/levels_cuda.c), or a GPU's (levels_gpu.c). Tests are the same sources, linked with one of them.
 */
#ifndef LADE_TESTS_LEVELS_H
#define LADE_TESTS_LEVELS_H

#include "kernels/kernels.h"

#define LEVELS 6

/* Names of tables that may exist here, the reference's first, up to a NULL. */
extern const char *const level_names[];

/* Calls with more elements than this are skipped, because running a GPU's threads one by one is slow. */
extern const int64_t level_max_elements;

/* Attention with more products than this (queries by keys by head dimension) is skipped for the same reason. */
int64_t level_max_products(void);

/* Allocate memory accessible to kernels of all levels, aligned to at least 64 bytes; free() releases it. */
void *level_alloc(size_t n_bytes);

/* Get the table of the level's name, or the "best" of this machine; false if it lacks the level. */
bool level_get(const char *level, struct lade_kernels *ret_kernels);

/*
 * Get one table per level of this machine that may have a variant of @kernel, the plain one first. Return their number.
 */
int levels_make(enum lade_kernel kernel, struct lade_kernels levels[LEVELS]);

/* True if the level's @kernel supports these arguments, whose dtype is @dtype. */
bool level_takes(const struct lade_kernels *kernels, enum lade_kernel kernel, enum lade_dtype dtype, const void *args);

/*
 * Replace attention's backward in @kernels by its variant that never divides the query heads of a key head. False if
 * the level has none.
 */
bool level_whole(struct lade_kernels *kernels);

/* Make a context for calls of @kernels. The bits may not depend on the pool's threads, or on their equivalent. */
struct lade_kernel_ctx level_ctx(const struct lade_kernels *kernels, lade_pool *pool, const struct lade_step *step);

#endif
