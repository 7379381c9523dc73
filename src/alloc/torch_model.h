/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A model of PyTorch's CUDA caching allocator: the bytes that it would reserve for a sequence of calls, without a GPU.
 *
 * The addresses are the model's own. The model reproduces the choice of the block for a request, the cuts and joins,
 * and the requests and returns of memory. One thread drives a model. Nothing blocks.
 */
#ifndef LADE_ALLOC_TORCH_MODEL_H
#define LADE_ALLOC_TORCH_MODEL_H

#include <stdbool.h>
#include <stdint.h>

struct torch_model;

/*
 * Create a model of the native allocator, or with @is_expandable of its expandable segments, on a device of
 * @total_bytes (0: no limit). The caller destroys it. -ENOMEM.
 */
int torch_model_create(bool is_expandable, uint64_t total_bytes, struct torch_model **ret_model);

/*
 * Return a block of @bytes for work on @stream, its address in *@ret_address. -ENOMEM if the heap is full, or if
 * PyTorch would report out of memory after it returned its cached memory; -EINVAL for 0 bytes.
 */
int torch_model_alloc(struct torch_model *model, uint64_t bytes, int stream, uint64_t *ret_address);

/* Free a live block. -EINVAL, and nothing changes, if no live block begins at @address. */
int torch_model_free(struct torch_model *model, uint64_t address);

/* Return the bytes taken from the device now, and their peak. */
uint64_t torch_model_reserved_bytes(const struct torch_model *model);
uint64_t torch_model_peak_reserved_bytes(const struct torch_model *model);

/* Destroy a model; NULL is allowed. */
void torch_model_destroy(struct torch_model *model);

#endif
