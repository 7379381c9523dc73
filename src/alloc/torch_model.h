/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A model of PyTorch's CUDA caching allocator: the bytes that it would reserve for a sequence of calls, without a GPU.
 *
 * It gives addresses of its own; what it reproduces is which block serves a request, what is cut and joined, and when
 * memory is asked for and given back. One thread drives a model. Nothing blocks.
 */
#ifndef LADE_ALLOC_TORCH_MODEL_H
#define LADE_ALLOC_TORCH_MODEL_H

#include <stdbool.h>
#include <stdint.h>

struct torch_model;

/*
 * A model of the native allocator, or with @is_expandable of its expandable segments, on a device of @total_bytes
 * (0: no limit). The caller destroys it. -ENOMEM.
 */
int torch_model_create(bool is_expandable, uint64_t total_bytes, struct torch_model **ret_model);

/*
 * A block of @bytes for work on @stream, its address in *@ret_address. -ENOMEM when PyTorch would say that the device
 * is out of memory, after it gave back what it caches, or when the heap is; -EINVAL for 0 bytes.
 */
int torch_model_alloc(struct torch_model *model, uint64_t bytes, int stream, uint64_t *ret_address);

/* Give a live block back. -EINVAL, nothing changed, for an address that is none. */
int torch_model_free(struct torch_model *model, uint64_t address);

/* Bytes taken from the device now, and the most that they were. */
uint64_t torch_model_reserved_bytes(const struct torch_model *model);
uint64_t torch_model_peak_reserved_bytes(const struct torch_model *model);

/* NULL is allowed. */
void torch_model_destroy(struct torch_model *model);

#endif
