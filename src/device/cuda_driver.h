/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The CUDA driver: opened at run time, declared here. Private to src/device/ and the tests.
 *
 * The declarations are Lade's own, so that every machine builds and tests the CUDA device, with a CUDA toolkit or
 * without. The test cuda-declarations compares them with the toolkit's cuda.h if there is one. The driver's ABI is
 * stable: Lade requests each function in its form of MIN_VERSION, and every later driver still provides that form.
 *
 * No CUDA library is linked. libcuda.so.1 is opened when a device is opened, never before, and its functions come
 * through its own cuGetProcAddress.
 */
#ifndef LADE_CUDA_DRIVER_H
#define LADE_CUDA_DRIVER_H

#include <stddef.h>
#include <stdint.h>

#include "lade/types.h"

/* 12.0: drivers since R525 provide stream waits on 64-bit words of memory, and know every supported GPU. */
#define LADE_CUDA_MIN_VERSION 12000

typedef int cuda_result;            /* CUresult */
typedef int cuda_device_id;         /* CUdevice */
typedef uint64_t cuda_address;      /* CUdeviceptr */
typedef uint64_t cuda_memory;       /* CUmemGenericAllocationHandle */
typedef struct CUctx_st *cuda_context;
typedef struct CUstream_st *cuda_stream;
typedef struct CUevent_st *cuda_event;
typedef struct CUmod_st *cuda_module;    /* CUmodule */
typedef struct CUfunc_st *cuda_function; /* CUfunction */
typedef struct CUgraph_st *cuda_graph;
typedef struct CUgraphExec_st *cuda_graph_exec;
typedef void cuda_host_fn(void *args);

/* The results that the code distinguishes. Others are failures under the driver's own names. */
enum {
  CUDA_DONE = 0,
  CUDA_INVALID_VALUE = 1,
  CUDA_OUT_OF_MEMORY = 2,
  CUDA_NOT_INITIALIZED = 3,
  CUDA_STUB_LIBRARY = 34,
  CUDA_NEEDS_NEWER_DRIVER = 36,
  CUDA_DEVICE_UNAVAILABLE = 46,
  CUDA_NO_DEVICE = 100,
  CUDA_INVALID_DEVICE = 101,
  CUDA_DEVICE_NOT_LICENSED = 102,
  CUDA_INVALID_IMAGE = 200,
  CUDA_INVALID_CONTEXT = 201,
  CUDA_NO_BINARY = 209,
  CUDA_ECC_UNCORRECTABLE = 214,
  CUDA_INVALID_PTX = 218,
  CUDA_NVLINK_UNCORRECTABLE = 220,
  CUDA_NO_JIT_COMPILER = 221,
  CUDA_UNSUPPORTED_PTX = 222,
  CUDA_JIT_DISABLED = 223,
  CUDA_CONTAINED = 226, /* a hardware error that did not affect other processes */
  CUDA_FILE_NOT_FOUND = 301,
  CUDA_INVALID_HANDLE = 400,
  CUDA_ILLEGAL_STATE = 401,
  CUDA_NOT_FOUND = 500,
  CUDA_NOT_READY = 600,
  CUDA_ILLEGAL_ADDRESS = 700,
  CUDA_ALREADY_REGISTERED = 712,
  CUDA_NOT_REGISTERED = 713,
  CUDA_LAUNCH_FAILED = 719,
  CUDA_NOT_SUPPORTED = 801,
  CUDA_SYSTEM_NOT_READY = 802, /* a daemon that the machine's GPUs need is not running */
  CUDA_DRIVER_MISMATCH = 803,
  CUDA_COMPAT_NOT_SUPPORTED = 804,
  CUDA_MPS_CONNECTION_FAILED = 805,
  CUDA_MPS_RPC_FAILURE = 806,
  CUDA_MPS_NOT_READY = 807,
  CUDA_MPS_NO_MORE_CLIENTS = 808,
  CUDA_MPS_NO_MORE_CONNECTIONS = 809,
  CUDA_CAPTURE_UNSUPPORTED = 900,
  CUDA_CAPTURE_INVALIDATED = 901,
  CUDA_CAPTURE_ISOLATION = 905,
  CUDA_CAPTURED_EVENT = 907,
  CUDA_CAPTURE_WRONG_THREAD = 908,
  CUDA_EXTERNAL_DEVICE = 911, /* data from another device is not valid */
  CUDA_UNKNOWN = 999
};

enum {
  CUDA_ATTRIBUTE_PCI_BUS = 33,
  CUDA_ATTRIBUTE_PCI_DEVICE = 34,
  CUDA_ATTRIBUTE_UNIFIED_ADDRESSING = 41,
  CUDA_ATTRIBUTE_PCI_DOMAIN = 50,
  CUDA_ATTRIBUTE_CAPABILITY_MAJOR = 75,
  CUDA_ATTRIBUTE_CAPABILITY_MINOR = 76,
  CUDA_ATTRIBUTE_SHARED_MAX = 97, /* shared bytes of a block, if its function requests them */
  CUDA_ATTRIBUTE_VIRTUAL_MEMORY = 102,
  CUDA_ATTRIBUTE_POSIX_HANDLES = 103,
  CUDA_ATTRIBUTE_RDMA = 110,
  CUDA_ATTRIBUTE_STREAM_WORDS = 122, /* 64-bit stream memory operations */
  CUDA_ATTRIBUTE_HOST_CHUNKS = 141   /* memory of the host's NUMA nodes by cuMemCreate; known to drivers since 12.9 */
};

enum { CUDA_GRANULARITY_MINIMUM = 0, CUDA_GRANULARITY_RECOMMENDED = 1 };
enum { CUDA_MEMORY_PINNED = 1, CUDA_HANDLE_POSIX = 1 };
enum { CUDA_LOCATION_DEVICE = 1, CUDA_LOCATION_HOST_NUMA = 3 };
enum { CUDA_ACCESS_READ_WRITE = 3 };
enum { CUDA_STREAM_NON_BLOCKING = 1, CUDA_STREAM_WAIT_GEQ = 0 };
enum { CUDA_EVENT_DEFAULT = 0, CUDA_EVENT_BLOCKING_SYNC = 1 };
enum { CUDA_CAPTURE_RELAXED = 2 }; /* of a capture: it restricts no call; of a thread: no capture restricts its calls */
enum { CUDA_HOST_PORTABLE = 1, CUDA_HOST_DEVICE_MAP = 2 };
enum { CUDA_FUNCTION_SHARED_MAX = 8 }; /* limit of the dynamic shared memory of a function's launches */

struct cuda_location {
  int type, id;
};

struct cuda_memory_properties {
  int type, handle_types;
  struct cuda_location location;
  void *win32;
  struct {
    unsigned char compression, is_rdma_capable;
    unsigned short usage;
    unsigned char reserved[4];
  } flags;
};

/* Identity of a device, or of a slice of one (MIG); globally unique. */
struct cuda_uuid {
  unsigned char bytes[16];
};

struct cuda_access {
  struct cuda_location location;
  int flags;
};

/*
 * X(name, arguments): every function that is used, once. The driver returns the newest form up to MIN_VERSION. For most
 * functions cuda.h calls it name_v2.
 */
#define LADE_DRIVER_FUNCTIONS(X) \
  X(cuInit, (unsigned flags)) \
  X(cuDriverGetVersion, (int *ret_version)) \
  X(cuGetErrorName, (cuda_result result, const char **ret_text)) \
  X(cuGetErrorString, (cuda_result result, const char **ret_text)) \
  X(cuDeviceGetCount, (int *ret_n)) \
  X(cuDeviceGet, (cuda_device_id *ret_id, int ordinal)) \
  X(cuDeviceGetName, (char *ret_name, int bytes, cuda_device_id id)) \
  X(cuDeviceGetUuid, (struct cuda_uuid *ret_uuid, cuda_device_id id)) \
  X(cuDeviceGetAttribute, (int *ret_value, int attribute, cuda_device_id id)) \
  X(cuDevicePrimaryCtxRetain, (cuda_context *ret_context, cuda_device_id id)) \
  X(cuDevicePrimaryCtxRelease, (cuda_device_id id)) \
  X(cuCtxPushCurrent, (cuda_context context)) \
  X(cuCtxPopCurrent, (cuda_context *ret_context)) \
  X(cuCtxGetDevice, (cuda_device_id *ret_id)) \
  X(cuMemGetInfo, (size_t *ret_free, size_t *ret_total)) \
  X(cuMemGetAllocationGranularity, (size_t *ret_bytes, const struct cuda_memory_properties *properties, int which)) \
  X(cuMemAddressReserve, (cuda_address *ret_address, size_t bytes, size_t alignment, cuda_address hint, \
                          unsigned long long flags)) \
  X(cuMemAddressFree, (cuda_address address, size_t bytes)) \
  X(cuMemCreate, (cuda_memory *ret_memory, size_t bytes, const struct cuda_memory_properties *properties, \
                  unsigned long long flags)) \
  X(cuMemRelease, (cuda_memory memory)) \
  X(cuMemExportToShareableHandle, (void *ret_handle, cuda_memory memory, int type, unsigned long long flags)) \
  X(cuMemImportFromShareableHandle, (cuda_memory *ret_memory, void *handle, int type)) \
  X(cuMemMap, (cuda_address address, size_t bytes, size_t offset, cuda_memory memory, unsigned long long flags)) \
  X(cuMemUnmap, (cuda_address address, size_t bytes)) \
  X(cuMemSetAccess, (cuda_address address, size_t bytes, const struct cuda_access *access, size_t n)) \
  X(cuMemAlloc, (cuda_address *ret_address, size_t bytes)) \
  X(cuMemFree, (cuda_address address)) \
  X(cuMemHostAlloc, (void **ret_at, size_t bytes, unsigned flags)) \
  X(cuMemFreeHost, (void *at)) \
  X(cuMemHostRegister, (void *at, size_t bytes, unsigned flags)) \
  X(cuMemHostUnregister, (void *at)) \
  X(cuMemHostGetDevicePointer, (cuda_address *ret_address, void *at, unsigned flags)) \
  X(cuMemcpy, (cuda_address dst, cuda_address src, size_t bytes)) \
  X(cuMemcpyAsync, (cuda_address dst, cuda_address src, size_t bytes, cuda_stream stream)) \
  X(cuMemsetD8Async, (cuda_address at, unsigned char value, size_t n, cuda_stream stream)) \
  X(cuStreamCreate, (cuda_stream *ret_stream, unsigned flags)) \
  X(cuStreamDestroy, (cuda_stream stream)) \
  X(cuStreamSynchronize, (cuda_stream stream)) \
  X(cuStreamWaitEvent, (cuda_stream stream, cuda_event event, unsigned flags)) \
  X(cuStreamWaitValue64, (cuda_stream stream, cuda_address at, uint64_t value, unsigned flags)) \
  X(cuStreamWriteValue64, (cuda_stream stream, cuda_address at, uint64_t value, unsigned flags)) \
  X(cuLaunchHostFunc, (cuda_stream stream, cuda_host_fn *fn, void *args)) \
  X(cuStreamBeginCapture, (cuda_stream stream, int mode)) \
  X(cuStreamIsCapturing, (cuda_stream stream, int *ret_status)) \
  X(cuStreamEndCapture, (cuda_stream stream, cuda_graph *ret_graph)) \
  X(cuThreadExchangeStreamCaptureMode, (int *mode)) \
  X(cuGraphInstantiateWithFlags, (cuda_graph_exec *ret_exec, cuda_graph graph, unsigned long long flags)) \
  X(cuGraphUpload, (cuda_graph_exec exec, cuda_stream stream)) \
  X(cuGraphLaunch, (cuda_graph_exec exec, cuda_stream stream)) \
  X(cuGraphDestroy, (cuda_graph graph)) \
  X(cuGraphExecDestroy, (cuda_graph_exec exec)) \
  X(cuEventCreate, (cuda_event *ret_event, unsigned flags)) \
  X(cuEventDestroy, (cuda_event event)) \
  X(cuEventRecord, (cuda_event event, cuda_stream stream)) \
  X(cuEventQuery, (cuda_event event)) \
  X(cuEventSynchronize, (cuda_event event)) \
  X(cuEventElapsedTime, (float *ret_ms, cuda_event start, cuda_event end)) \
  X(cuModuleLoad, (cuda_module *ret_module, const char *file)) \
  X(cuModuleUnload, (cuda_module module)) \
  X(cuModuleGetFunction, (cuda_function *ret_function, cuda_module module, const char *name)) \
  X(cuFuncSetAttribute, (cuda_function function, int attribute, int value)) \
  X(cuLaunchKernel, (cuda_function function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, \
                     unsigned block_y, unsigned block_z, unsigned shared_bytes, cuda_stream stream, void **params, \
                     void **extra))

struct cuda_driver {
  void *library;
  int version; /* of the driver, 13000 for 13.0 */
#define LADE_CUDA_MEMBER(name, arguments) cuda_result(*name) arguments;
  LADE_DRIVER_FUNCTIONS(LADE_CUDA_MEMBER)
#undef LADE_CUDA_MEMBER
};

/*
 * Open the machine's driver and start it. The caller closes. -ENODEV, with the remedy: there is no driver, it is older
 * than MIN_VERSION, or it finds no device. Any thread; blocks while the driver starts.
 */
int lade_cuda_driver_open(struct cuda_driver *driver, struct lade_error *error);
void lade_cuda_driver_close(struct cuda_driver *driver);

/*
 * Return the errno of a result by its documented meaning. It decides the command's exit code, in parentheses
 * (docs/cuda.md has the table). -ENOMEM (4); -ENODEV: the GPU or a requirement of it is absent or not ready (7);
 * -EBADMSG: the hardware found damaged data (5); -EFAULT: all others, CUDA_UNKNOWN among them (1).
 */
int lade_cuda_errno(cuda_result result);

/* Fill @error with the result of @call, by the driver's own name and text. Return lade_cuda_errno(@result). */
int lade_cuda_error_set(const struct cuda_driver *driver, struct lade_error *error, const char *call,
                        cuda_result result);

#endif
