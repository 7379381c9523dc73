/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Functions of a CUDA device beyond the device contract: work on a stream, the caller's own context and streams, and
 * the driver's report of memory.
 */
#ifndef LADE_DEVICE_CUDA_H
#define LADE_DEVICE_CUDA_H

#include "device/device.h"

struct lade_cuda_device_params {
  size_t struct_size;
  int ordinal;             /* index of the driver's devices, from 0; ignored with a context, which determines its
                              device */
  uint64_t capacity_bytes; /* hard limit; 0: the free memory after the device is open */
  void *context;           /* a CUcontext to work in, borrowed; NULL: the device's primary one */
  struct lade_faults *faults; /* borrowed, may be NULL */
};

/*
 * Open a GPU through the machine's driver. -ENODEV, with the remedy in @error: no driver, a driver too old, no such
 * device, or no Lade kernels for it. -EOVERFLOW: the GPU has less than @capacity_bytes; -ENOMEM. The calling thread's
 * current context is unchanged after this and every later call. Any thread; blocks while the driver starts.
 */
int lade_device_open_cuda(const struct lade_cuda_device_params *params, struct lade_error *error,
                          lade_device **ret_device);

#define LADE_CUDA_SEEN_MAX 32 /* no machine has more for one process */

/*
 * The devices that this process sees, in the order of their ordinals. If the launcher selected devices, they come
 * first, and may be all.
 */
struct lade_cuda_seen {
  int n;
  struct lade_cuda_name {
    unsigned char uuid[16]; /* of a GPU or of a slice of one (MIG) */
  } names[LADE_CUDA_SEEN_MAX];
};

/*
 * List the devices of this process without opening them. -ENODEV as lade_device_open_cuda, and the driver's errors. Any
 * thread; blocks while the driver starts.
 */
int lade_cuda_list(struct lade_error *error, struct lade_cuda_seen *ret_seen);

/*
 * Return the hardware channels that the driver gives a context: CUDA_DEVICE_MAX_CONNECTIONS as it stands, which the
 * driver reads when it starts, or 8. Streams beyond that number share channels, and a stream that waits for an event
 * then holds back the others of its channel. Any thread.
 */
#define LADE_CUDA_CHANNELS_VARIABLE "CUDA_DEVICE_MAX_CONNECTIONS"
#define LADE_CUDA_CHANNELS_MAX 32 /* the driver's own limit */
int lade_cuda_n_channels(void);

/*
 * Create a queue on the caller's CUstream, which must outlive it. Role as in lade_queue_create, except SIGNAL, IO and
 * HOST.
 */
int lade_cuda_queue_adopt(lade_device *device, enum lade_queue_role role, void *stream, lade_queue **ret_queue);

/* Put work on the CUstream @stream and return the CUresult. The device's context is current. */
typedef int lade_cuda_enqueue_fn(void *stream, void *args);

/*
 * Submit the work that @fn puts on the queue's stream; @fn is called before this returns. If @fn is NULL, submit only
 * an event after all work that the caller has put on an adopted stream. Otherwise as lade_queue_launch.
 */
void lade_cuda_queue_enqueue(lade_queue *queue, lade_cuda_enqueue_fn *fn, void *args, struct lade_span *ret_span,
                             uint64_t *ret_count);

/* True if @queue is a stream of @device, so that lade_cuda_queue_enqueue accepts it. Any thread. Never blocks. */
bool lade_cuda_queue_is_stream(const lade_device *device, const lade_queue *queue);

/* True if the stream of @queue is under capture, or the driver cannot tell. pre: a stream. Any thread. Never blocks. */
bool lade_cuda_queue_is_capturing(const lade_queue *queue);

/*
 * Make the stream write @value to the 64-bit word at @address, after all work that was put on it before. Called in an
 * enqueue function. The address comes from lade_cuda_get_address. Return the CUresult.
 */
int lade_cuda_stream_write(lade_device *device, void *stream, uint64_t address, uint64_t value);

/*
 * Allocate a little memory outside of the plan: no chunk, not zeroed, counted in outside_bytes. lade_cuda_free accepts
 * 0. -ENOMEM, and the errors of the device's calls. Any thread.
 */
int lade_cuda_alloc(lade_device *device, uint64_t bytes, uint64_t *ret_address);
void lade_cuda_free(lade_device *device, uint64_t address);

/*
 * Return the device's address of @at, in pinned memory (lade_device_pin). On some machines it differs from the host's.
 * -EINVAL for other memory. Any thread.
 */
int lade_cuda_get_address(lade_device *device, void *at, uint64_t *ret_address);

/* True if @device is a CUDA device. Any thread. Never blocks. */
bool lade_cuda_is(const lade_device *device);

/* Return the compute capability, 90 for 9.0. Any thread. Never blocks. */
int lade_cuda_get_capability(const lade_device *device);

/* Return the newest CUDA version that the driver runs: 1000 times the major number plus 10 times the minor one. */
int lade_cuda_get_version(const lade_device *device);

/*
 * Call @fn with the device's context current in this thread, for libraries that use the current context. Return its
 * result, or the device's status if the context cannot be entered. Any thread.
 */
int lade_cuda_call(lade_device *device, int (*fn)(void *args), void *args);

/* Users of a device's memory outside of chunks. */
enum lade_cuda_taker {
  LADE_CUDA_CONTEXT, /* contexts, the driver's own, and other processes before the device was opened */
  LADE_CUDA_KERNELS, /* machine code, cuBLASLt, and the memory of streams, launches and graphs */
  LADE_CUDA_NCCL,    /* communicators, and memory registered with them */
  LADE_CUDA_N_TAKERS
};

struct lade_cuda_memory {
  uint64_t total_bytes;
  uint64_t free_bytes;    /* now */
  uint64_t opened_bytes;  /* in use when the device was opened: contexts, the driver's own, other processes */
  uint64_t outside_bytes; /* in use now and in no chunk: opened_bytes, and memory that libraries took since */
  uint64_t taken_bytes[LADE_CUDA_N_TAKERS]; /* of outside_bytes, up to the last mark */
};

/*
 * Return the driver's report of the device's memory, or the device's status if the driver no longer answers. Any
 * thread.
 */
int lade_cuda_get_memory(lade_device *device, struct lade_cuda_memory *ret_memory);

/*
 * Attribute to @taker all memory outside of chunks that has come into use since the last mark, or since the device was
 * opened. The attribution is exact only if no other process allocated or freed memory meanwhile. Does nothing if the
 * driver does not answer. Any thread, one at a time.
 */
void lade_cuda_mark_memory(lade_device *device, enum lade_cuda_taker taker);

/*
 * Fill @error with the call that failed first and the driver's text for it, or with a library's own text. Leave @error
 * unchanged if no call has failed. Any thread.
 */
void lade_cuda_get_error(lade_device *device, struct lade_error *error);

/*
 * Explain why a call to @device returned @status: as lade_cuda_get_error. If no error has stuck, name the driver call
 * that was refused last, if it is the cause; otherwise leave @error unchanged. Any thread.
 */
void lade_cuda_get_refusal(lade_device *device, int status, struct lade_error *error);

/*
 * Report that a library could not put its work on a stream. @error's code becomes the device's status if it is the
 * first failure. If the context is lost, the driver's text replaces the library's. Any thread.
 */
void lade_cuda_fail(lade_device *device, const struct lade_error *error);

/* ---- graphs: work that is launched repeatedly ---- */

typedef struct lade_cuda_graph lade_cuda_graph;

/*
 * Record the work that @fn puts on a stream, for repeated launches; none of it runs now. @fn is called before this
 * returns. It may put kernels and copies of pinned memory on the stream. It must not wait, nor allocate device memory.
 * Argument values are fixed now; memory that they point to is read when the work runs. Errors with the text of the
 * failed call: -ENOMEM, or as lade_cuda_get_error; they do not change the device's status. The caller destroys the
 * graph before the device. Any thread; blocks while the device prepares the graph.
 */
int lade_cuda_graph_create(lade_device *device, lade_cuda_enqueue_fn *fn, void *args, struct lade_error *error,
                           lade_cuda_graph **ret_graph);

/* Destroy @graph. NULL is allowed. pre: none of its launches is in flight. */
void lade_cuda_graph_destroy(lade_cuda_graph *graph);

/* Submit the whole graph to @queue, a stream of its device, by one driver call; as lade_cuda_queue_enqueue. */
void lade_cuda_graph_launch(lade_cuda_graph *graph, lade_queue *queue, struct lade_span *ret_span, uint64_t *ret_count);

/* ---- functions that run on the device ---- */

typedef struct lade_cuda_functions lade_cuda_functions;

/* A function in the machine code that nvcc makes: @name in @file.fatbin. */
struct lade_cuda_symbol {
  const char *file, *name; /* name NULL: no function at this index */
};

/*
 * Load @wanted[0..n), with the functions of one file contiguous; the caller closes before the device. Launches may
 * request all the shared memory that the device allows a block. -ENOENT if a file is absent or has no code for this
 * GPU, -ENOMEM, and the driver's errors. Any thread; blocks while the driver loads and, from PTX, compiles.
 */
int lade_cuda_functions_open(lade_device *device, const char *folder, const struct lade_cuda_symbol *wanted, int n,
                             struct lade_error *error, lade_cuda_functions **ret_functions);

/* Unload the functions. NULL is allowed. pre: none of them is in flight. */
void lade_cuda_functions_close(lade_cuda_functions *functions);

struct lade_cuda_grid {
  unsigned blocks[3], n_threads, shared_bytes;
};

/*
 * Put function @i on @stream, in a lade_cuda_enqueue_fn. @params are the addresses of its arguments, which are read
 * before this returns. Return the CUresult.
 */
int lade_cuda_functions_launch(const lade_cuda_functions *functions, int i, void *stream,
                               const struct lade_cuda_grid *grid, void **params);

/* Return the ordinal of a device name, "cuda" or "cuda:3"; -EINVAL for any other name. */
int lade_cuda_ordinal(const char *name);

#endif
