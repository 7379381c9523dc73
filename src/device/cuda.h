/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a CUDA device has besides the device contract: work that is put on a stream, the caller's own context and
 * streams, and what the driver knows of the memory.
 */
#ifndef LADE_DEVICE_CUDA_H
#define LADE_DEVICE_CUDA_H

#include "device/device.h"

struct lade_cuda_device_params {
  size_t struct_size;
  int ordinal;             /* of the driver's devices, from 0; with a context, the context's own device counts */
  uint64_t capacity_bytes; /* hard; 0: what is free once the device is open */
  void *context;           /* a CUcontext to work in, borrowed; NULL: the device's primary one */
  struct lade_faults *faults; /* borrowed, may be NULL */
};

/*
 * Open a GPU through the machine's driver. -ENODEV, with what to do about it, when there is no driver, it is too old,
 * there is no such device, or Lade has no kernels for it; -EOVERFLOW when it has less than @capacity_bytes; -ENOMEM.
 * Whatever context is current stays so, here and in every later call. Any thread; blocks while the driver starts.
 */
int lade_device_open_cuda(const struct lade_cuda_device_params *params, struct lade_error *error,
                          lade_device **ret_device);

#define LADE_CUDA_SEEN_MOST 32 /* more no machine gives one process */

/* The devices that this process sees, by their ordinals: those of a launcher's choice come first, and may be all. */
struct lade_cuda_seen {
  int n;
  struct lade_cuda_name {
    unsigned char uuid[16]; /* of a GPU or of a slice of one (MIG) */
  } names[LADE_CUDA_SEEN_MOST];
};

/*
 * Which devices are there for this process? Takes nothing of them. -ENODEV as lade_device_open_cuda, and what the
 * driver answers. Any thread; blocks while the driver starts.
 */
int lade_cuda_list(struct lade_error *error, struct lade_cuda_seen *ret_seen);

/* A queue on the caller's CUstream, which must outlive it. Role as in lade_queue_create; not SIGNAL, IO or HOST. */
int lade_cuda_queue_adopt(lade_device *device, enum lade_queue_role role, void *stream, lade_queue **ret_queue);

/* Puts work on the CUstream @stream and returns the CUresult. The device's context is current. */
typedef int lade_cuda_enqueue_fn(void *stream, void *args);

/*
 * Submit what @fn puts on the queue's stream; @fn is called before this returns. Without @fn (NULL) it is an event
 * behind all that the caller has put on an adopted stream itself. Otherwise as lade_queue_launch.
 */
void lade_cuda_queue_enqueue(lade_queue *queue, lade_cuda_enqueue_fn *fn, void *args, struct lade_span *ret_span,
                             uint64_t *ret_count);

/* Whether a queue is a stream of @device, for lade_cuda_queue_enqueue. Any thread. Never blocks. */
bool lade_cuda_queue_is_stream(const lade_device *device, const lade_queue *queue);

/*
 * In an enqueue function: the stream writes @value to the 64-bit word at @address when it gets there, after all that
 * was put on it before. The address is of lade_cuda_get_address. Returns the CUresult.
 */
int lade_cuda_stream_write(lade_device *device, void *stream, uint64_t address, uint64_t value);

/*
 * A little memory for what is beside a plan: no chunk, not zeroed, and of outside_bytes. free takes 0. -ENOMEM, and as
 * the device's calls. Any thread.
 */
int lade_cuda_alloc(lade_device *device, uint64_t bytes, uint64_t *ret_address);
void lade_cuda_free(lade_device *device, uint64_t address);

/*
 * Where the device sees @at, in memory that is pinned (lade_device_pin): not where the host does, on some machines.
 * -EINVAL for other memory. Any thread.
 */
int lade_cuda_get_address(lade_device *device, void *at, uint64_t *ret_address);

/* Whether it is a CUDA device. Any thread. Never blocks. */
bool lade_cuda_is(const lade_device *device);

/* The compute capability, 90 for 9.0. Any thread. Never blocks. */
int lade_cuda_get_capability(const lade_device *device);

/*
 * Call @fn with the device's context current in this thread, for libraries that look for it there. Returns what it
 * returns, or the device's status when the context cannot be entered. Any thread.
 */
int lade_cuda_call(lade_device *device, int (*fn)(void *args), void *args);

/* Who takes memory of a device beside chunks. */
enum lade_cuda_taker {
  LADE_CUDA_CONTEXT, /* contexts, the driver's own, and other processes before the device was opened */
  LADE_CUDA_KERNELS, /* machine code, cuBLASLt, and what streams, launches and graphs need */
  LADE_CUDA_NCCL,    /* communicators, and memory that is registered with them */
  LADE_CUDA_N_TAKERS
};

struct lade_cuda_memory {
  uint64_t total_bytes;
  uint64_t free_bytes;    /* now */
  uint64_t opened_bytes;  /* in use when the device was opened: contexts, the driver's own, other processes */
  uint64_t outside_bytes; /* in use now and in no chunk: the same, and what libraries have taken since */
  uint64_t taken_bytes[LADE_CUDA_N_TAKERS]; /* of outside_bytes, up to the last mark */
};

/* What the driver says of the device's memory. The device's status when it no longer answers. Any thread. */
int lade_cuda_get_memory(lade_device *device, struct lade_cuda_memory *ret_memory);

/*
 * All that has come into use since the last mark, or since the device was opened, and is in no chunk, was taken by
 * @taker; so it was if no other process took or gave back any meanwhile. Nothing where the driver does not answer. Any
 * thread, one at a time.
 */
void lade_cuda_mark_memory(lade_device *device, enum lade_cuda_taker taker);

/*
 * Fill @error with the call that failed first and the driver's words for it, or with what a library said of its own;
 * nothing when none has failed. Any thread.
 */
void lade_cuda_get_error(lade_device *device, struct lade_error *error);

/*
 * Why a call to @device came to @status: as lade_cuda_get_error, or, where nothing is broken, the call of the driver's
 * that was refused last, if that is what it came to; else @error is left alone. Any thread.
 */
void lade_cuda_get_refusal(lade_device *device, int status, struct lade_error *error);

/*
 * A library could not put its work on a stream: @error's code is the device's status if it is the first; where the
 * context is lost, what the driver says of that is. Any thread.
 */
void lade_cuda_fail(lade_device *device, const struct lade_error *error);

/* ---- graphs: work that is put on streams again and again ---- */

typedef struct lade_cuda_graph lade_cuda_graph;

/*
 * Keep what @fn puts on a stream, to be launched later and as often as wanted; none of it runs now. @fn is called
 * before this returns, and may put kernels and copies of pinned memory there, but neither wait nor take memory of the
 * device. Arguments are kept as they are now; what they point to is read when the work runs. In the words of the call
 * that failed: -ENOMEM, or as lade_cuda_get_error; nothing of that is the device's status. The caller destroys, before
 * the device. Any thread; blocks while the device takes the graph.
 */
int lade_cuda_graph_create(lade_device *device, lade_cuda_enqueue_fn *fn, void *args, struct lade_error *error,
                           lade_cuda_graph **ret_graph);

/* None of its launches may be under way. NULL is allowed. */
void lade_cuda_graph_destroy(lade_cuda_graph *graph);

/* Submit all of it to @queue, a stream of its device, by one call of the driver; as lade_cuda_queue_enqueue. */
void lade_cuda_graph_launch(lade_cuda_graph *graph, lade_queue *queue, struct lade_span *ret_span, uint64_t *ret_count);

/* ---- functions that run on the device ---- */

typedef struct lade_cuda_functions lade_cuda_functions;

/* A function of the file @folder/@file.fatbin, the machine code that nvcc makes. */
struct lade_cuda_symbol {
  const char *file, *name; /* name NULL: none at this place */
};

/*
 * Load @wanted[0..n), those of one file after each other; the caller closes before the device. Their launches may ask
 * for all the shared memory that the device allows a block. -ENOENT when a file is not there or has no code for this
 * GPU, -ENOMEM, and what the driver answers. Any thread; blocks while the driver reads and, from PTX, compiles.
 */
int lade_cuda_functions_open(lade_device *device, const char *folder, const struct lade_cuda_symbol *wanted, int n,
                             struct lade_error *error, lade_cuda_functions **ret_functions);

/* None of them may be on its way. NULL is allowed. */
void lade_cuda_functions_close(lade_cuda_functions *functions);

struct lade_cuda_grid {
  unsigned blocks[3], n_threads, shared_bytes;
};

/*
 * Put function @i on @stream, for use in a lade_cuda_enqueue_fn; @params are the addresses of its arguments, which are
 * read before this returns. Returns the CUresult.
 */
int lade_cuda_functions_launch(const lade_cuda_functions *functions, int i, void *stream,
                               const struct lade_cuda_grid *grid, void **params);

/* "cuda" and "cuda:3" are devices of this kind: their ordinal, or -EINVAL for any other name. */
int lade_cuda_ordinal(const char *name);

#endif
