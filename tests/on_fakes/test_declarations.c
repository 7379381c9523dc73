/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lade's declarations of the driver compared with the toolkit's cuda.h, if installed: values, layouts, and functions
 * with easily confused arguments, all checked by the compiler.
 */
#include <cuda.h>
#include <stddef.h>

#include "device/cuda_driver.h"

#define SAME(ours, theirs) _Static_assert((long)(ours) == (long)(theirs), #ours " is not " #theirs)

SAME(CUDA_DONE, CUDA_SUCCESS);
SAME(CUDA_INVALID_VALUE, CUDA_ERROR_INVALID_VALUE);
SAME(CUDA_OUT_OF_MEMORY, CUDA_ERROR_OUT_OF_MEMORY);
SAME(CUDA_NOT_INITIALIZED, CUDA_ERROR_NOT_INITIALIZED);
SAME(CUDA_STUB_LIBRARY, CUDA_ERROR_STUB_LIBRARY);
SAME(CUDA_DEVICE_UNAVAILABLE, CUDA_ERROR_DEVICE_UNAVAILABLE);
SAME(CUDA_NO_DEVICE, CUDA_ERROR_NO_DEVICE);
SAME(CUDA_INVALID_DEVICE, CUDA_ERROR_INVALID_DEVICE);
SAME(CUDA_INVALID_CONTEXT, CUDA_ERROR_INVALID_CONTEXT);
SAME(CUDA_ECC_UNCORRECTABLE, CUDA_ERROR_ECC_UNCORRECTABLE);
SAME(CUDA_NVLINK_UNCORRECTABLE, CUDA_ERROR_NVLINK_UNCORRECTABLE);
SAME(CUDA_INVALID_HANDLE, CUDA_ERROR_INVALID_HANDLE);
SAME(CUDA_NOT_FOUND, CUDA_ERROR_NOT_FOUND);
SAME(CUDA_NOT_READY, CUDA_ERROR_NOT_READY);
SAME(CUDA_ILLEGAL_ADDRESS, CUDA_ERROR_ILLEGAL_ADDRESS);
SAME(CUDA_ALREADY_REGISTERED, CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
SAME(CUDA_NOT_REGISTERED, CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
SAME(CUDA_LAUNCH_FAILED, CUDA_ERROR_LAUNCH_FAILED);
SAME(CUDA_UNSUPPORTED_PTX, CUDA_ERROR_UNSUPPORTED_PTX_VERSION);
SAME(CUDA_INVALID_IMAGE, CUDA_ERROR_INVALID_IMAGE);
SAME(CUDA_INVALID_PTX, CUDA_ERROR_INVALID_PTX);
SAME(CUDA_NOT_SUPPORTED, CUDA_ERROR_NOT_SUPPORTED);
SAME(CUDA_DRIVER_MISMATCH, CUDA_ERROR_SYSTEM_DRIVER_MISMATCH);
SAME(CUDA_ILLEGAL_STATE, CUDA_ERROR_ILLEGAL_STATE);
SAME(CUDA_CAPTURE_UNSUPPORTED, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
SAME(CUDA_CAPTURE_INVALIDATED, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
SAME(CUDA_CAPTURE_ISOLATION, CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
SAME(CUDA_CAPTURED_EVENT, CUDA_ERROR_CAPTURED_EVENT);
SAME(CUDA_CAPTURE_WRONG_THREAD, CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
SAME(CUDA_CAPTURE_RELAXED, CU_STREAM_CAPTURE_MODE_RELAXED);
SAME(CUDA_UNKNOWN, CUDA_ERROR_UNKNOWN);
#if CUDA_VERSION >= 12020
SAME(CUDA_NEEDS_NEWER_DRIVER, CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER);
#endif
SAME(CUDA_DEVICE_NOT_LICENSED, CUDA_ERROR_DEVICE_NOT_LICENSED);
SAME(CUDA_NO_JIT_COMPILER, CUDA_ERROR_JIT_COMPILER_NOT_FOUND);
SAME(CUDA_JIT_DISABLED, CUDA_ERROR_JIT_COMPILATION_DISABLED);
#if CUDA_VERSION >= 12080
SAME(CUDA_CONTAINED, CUDA_ERROR_CONTAINED);
#endif
SAME(CUDA_SYSTEM_NOT_READY, CUDA_ERROR_SYSTEM_NOT_READY);
SAME(CUDA_COMPAT_NOT_SUPPORTED, CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE);
SAME(CUDA_MPS_CONNECTION_FAILED, CUDA_ERROR_MPS_CONNECTION_FAILED);
SAME(CUDA_MPS_RPC_FAILURE, CUDA_ERROR_MPS_RPC_FAILURE);
SAME(CUDA_MPS_NOT_READY, CUDA_ERROR_MPS_SERVER_NOT_READY);
SAME(CUDA_MPS_NO_MORE_CLIENTS, CUDA_ERROR_MPS_MAX_CLIENTS_REACHED);
SAME(CUDA_MPS_NO_MORE_CONNECTIONS, CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED);
SAME(CUDA_EXTERNAL_DEVICE, CUDA_ERROR_EXTERNAL_DEVICE);

SAME(CUDA_ATTRIBUTE_UNIFIED_ADDRESSING, CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING);
SAME(CUDA_ATTRIBUTE_CAPABILITY_MAJOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
SAME(CUDA_ATTRIBUTE_CAPABILITY_MINOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
SAME(CUDA_ATTRIBUTE_VIRTUAL_MEMORY, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED);
SAME(CUDA_ATTRIBUTE_POSIX_HANDLES, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED);
SAME(CUDA_ATTRIBUTE_PCI_DOMAIN, CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID);
SAME(CUDA_ATTRIBUTE_PCI_BUS, CU_DEVICE_ATTRIBUTE_PCI_BUS_ID);
SAME(CUDA_ATTRIBUTE_PCI_DEVICE, CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID);
SAME(CUDA_ATTRIBUTE_RDMA, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED);
SAME(CUDA_ATTRIBUTE_STREAM_WORDS, CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS);
#if CUDA_VERSION >= 12090
SAME(CUDA_ATTRIBUTE_HOST_CHUNKS, CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED);
#endif

SAME(CUDA_GRANULARITY_MINIMUM, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
SAME(CUDA_GRANULARITY_RECOMMENDED, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);
SAME(CUDA_MEMORY_PINNED, CU_MEM_ALLOCATION_TYPE_PINNED);
SAME(CUDA_LOCATION_DEVICE, CU_MEM_LOCATION_TYPE_DEVICE);
#if CUDA_VERSION >= 12020
SAME(CUDA_LOCATION_HOST_NUMA, CU_MEM_LOCATION_TYPE_HOST_NUMA);
#endif
SAME(CUDA_HANDLE_POSIX, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
SAME(CUDA_ACCESS_READ_WRITE, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
SAME(CUDA_STREAM_NON_BLOCKING, CU_STREAM_NON_BLOCKING);
SAME(CUDA_STREAM_WAIT_GEQ, CU_STREAM_WAIT_VALUE_GEQ);
SAME(CUDA_EVENT_DEFAULT, CU_EVENT_DEFAULT);
SAME(CUDA_EVENT_BLOCKING_SYNC, CU_EVENT_BLOCKING_SYNC);
SAME(CUDA_HOST_PORTABLE, CU_MEMHOSTALLOC_PORTABLE);
SAME(CUDA_HOST_PORTABLE, CU_MEMHOSTREGISTER_PORTABLE);
SAME(CUDA_HOST_DEVICE_MAP, CU_MEMHOSTREGISTER_DEVICEMAP);
SAME(CUDA_NO_BINARY, CUDA_ERROR_NO_BINARY_FOR_GPU);
SAME(CUDA_FILE_NOT_FOUND, CUDA_ERROR_FILE_NOT_FOUND);
SAME(CUDA_ATTRIBUTE_SHARED_MAX, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
SAME(CUDA_FUNCTION_SHARED_MAX, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES);

SAME(sizeof(cuda_result), sizeof(CUresult));
SAME(sizeof(cuda_device_id), sizeof(CUdevice));
SAME(sizeof(cuda_address), sizeof(CUdeviceptr));
SAME(sizeof(cuda_memory), sizeof(CUmemGenericAllocationHandle));
SAME(sizeof(struct cuda_location), sizeof(CUmemLocation));
SAME(offsetof(struct cuda_location, id), offsetof(CUmemLocation, id));
SAME(sizeof(struct cuda_uuid), sizeof(CUuuid));
SAME(sizeof(struct cuda_access), sizeof(CUmemAccessDesc));
SAME(offsetof(struct cuda_access, flags), offsetof(CUmemAccessDesc, flags));
SAME(sizeof(struct cuda_memory_properties), sizeof(CUmemAllocationProp));
SAME(offsetof(struct cuda_memory_properties, handle_types), offsetof(CUmemAllocationProp, requestedHandleTypes));
SAME(offsetof(struct cuda_memory_properties, location), offsetof(CUmemAllocationProp, location));
SAME(offsetof(struct cuda_memory_properties, flags), offsetof(CUmemAllocationProp, allocFlags));
SAME(offsetof(struct cuda_memory_properties, flags.is_rdma_capable),
     offsetof(CUmemAllocationProp, allocFlags.gpuDirectRDMACapable));

/* The function types of the pointers in cuda_driver.h, in the types of cuda.h. */
typedef CUresult map_fn(CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, unsigned long long);
typedef CUresult reserve_fn(CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long);
typedef CUresult create_fn(CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *, unsigned long long);
typedef CUresult alloc_fn(CUdeviceptr *, size_t);
typedef CUresult free_fn(CUdeviceptr);
typedef CUresult see_fn(CUdeviceptr *, void *, unsigned);
typedef CUresult export_fn(void *, CUmemGenericAllocationHandle, CUmemAllocationHandleType, unsigned long long);
typedef CUresult import_fn(CUmemGenericAllocationHandle *, void *, CUmemAllocationHandleType);
typedef CUresult access_fn(CUdeviceptr, size_t, const CUmemAccessDesc *, size_t);
typedef CUresult granularity_fn(size_t *, const CUmemAllocationProp *, CUmemAllocationGranularity_flags);
typedef CUresult word_fn(CUstream, CUdeviceptr, cuuint64_t, unsigned);
typedef CUresult host_fn(CUstream, CUhostFn, void *);
typedef CUresult copy_fn(CUdeviceptr, CUdeviceptr, size_t, CUstream);
typedef CUresult set_fn(CUdeviceptr, unsigned char, size_t, CUstream);
typedef CUresult launch_fn(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream,
                           void **, void **);
typedef CUresult load_fn(CUmodule *, const char *);
typedef CUresult function_fn(CUfunction *, CUmodule, const char *);
typedef CUresult capture_fn(CUstream, CUstreamCaptureMode);
typedef CUresult mode_fn(CUstreamCaptureMode *);
typedef CUresult query_fn(CUevent);
typedef CUresult end_fn(CUstream, CUgraph *);
typedef CUresult instantiate_fn(CUgraphExec *, CUgraph, unsigned long long);
typedef CUresult graph_fn(CUgraphExec, CUstream);
#define TAKES(name, type) _Static_assert(__builtin_types_compatible_p(__typeof__(name), type), #name " is declared so")
TAKES(cuMemMap, map_fn);
TAKES(cuMemAddressReserve, reserve_fn);
TAKES(cuMemCreate, create_fn);
TAKES(cuMemAlloc, alloc_fn);
TAKES(cuMemFree, free_fn);
TAKES(cuMemHostGetDevicePointer, see_fn);
TAKES(cuMemExportToShareableHandle, export_fn);
TAKES(cuMemImportFromShareableHandle, import_fn);
TAKES(cuMemSetAccess, access_fn);
TAKES(cuMemGetAllocationGranularity, granularity_fn);
TAKES(cuStreamWaitValue64, word_fn);
TAKES(cuStreamWriteValue64, word_fn);
TAKES(cuLaunchHostFunc, host_fn);
TAKES(cuMemcpyAsync, copy_fn);
TAKES(cuMemsetD8Async, set_fn);
TAKES(cuLaunchKernel, launch_fn);
TAKES(cuStreamBeginCapture, capture_fn);
TAKES(cuStreamEndCapture, end_fn);
TAKES(cuThreadExchangeStreamCaptureMode, mode_fn);
TAKES(cuEventQuery, query_fn);
TAKES(cuGraphInstantiateWithFlags, instantiate_fn);
TAKES(cuGraphUpload, graph_fn);
TAKES(cuGraphLaunch, graph_fn);
TAKES(cuModuleLoad, load_fn);
TAKES(cuModuleGetFunction, function_fn);

int main(void)
{
  return sizeof(struct cuda_driver) > 0 ? 0 : 1;
}
