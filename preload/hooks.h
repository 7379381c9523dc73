/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The shim's own versions of driver functions: those that take device memory or give it back, that return pools of it,
 * that report its size, and that look functions up. Each asks the account (account.h) and calls the real one. The
 * results are the driver's own, except for memory above the budget, which is CUDA_ERROR_OUT_OF_MEMORY.
 *
 * HOOK(symbol, name, since, per_thread, arguments): the exported symbol; the name and the first version under which
 * cuGetProcAddress returns it; whether it is the form for the per-thread default stream. Forms of one name are
 * adjacent, from old to new, per-thread ones last. Names and versions are those of the toolkit's cudaTypedefs.h.
 */
#ifndef LADE_SHIM_HOOKS_H
#define LADE_SHIM_HOOKS_H

#include <stdbool.h>

#include "preload/types.h"

#define LADE_SHIM_CUDA_VERSION 13000 /* the newest version whose forms are below */

#define LADE_SHIM_HOOKS(HOOK) \
  HOOK(cuInit, "cuInit", 2000, false, (unsigned flags)) \
  HOOK(cuGetProcAddress, "cuGetProcAddress", 11030, false, \
       (const char *name, void **ret, int version, uint64_t flags)) \
  HOOK(cuGetProcAddress_v2, "cuGetProcAddress", 12000, false, \
       (const char *name, void **ret, int version, uint64_t flags, int *ret_status)) \
  /* queries.c */ \
  HOOK(cuMemGetInfo, "cuMemGetInfo", 2000, false, (unsigned *ret_free, unsigned *ret_total)) \
  HOOK(cuMemGetInfo_v2, "cuMemGetInfo", 3020, false, (size_t *ret_free, size_t *ret_total)) \
  HOOK(cuDeviceTotalMem, "cuDeviceTotalMem", 2000, false, (unsigned *ret_bytes, cuda_device_id id)) \
  HOOK(cuDeviceTotalMem_v2, "cuDeviceTotalMem", 3020, false, (size_t *ret_bytes, cuda_device_id id)) \
  /* linear.c */ \
  HOOK(cuMemAlloc, "cuMemAlloc", 2000, false, (unsigned *ret_at, unsigned bytes)) \
  HOOK(cuMemAlloc_v2, "cuMemAlloc", 3020, false, (cuda_address *ret_at, size_t bytes)) \
  HOOK(cuMemAllocPitch, "cuMemAllocPitch", 2000, false, \
       (unsigned *ret_at, unsigned *ret_pitch, unsigned row_bytes, unsigned n_rows, unsigned element_bytes)) \
  HOOK(cuMemAllocPitch_v2, "cuMemAllocPitch", 3020, false, \
       (cuda_address *ret_at, size_t *ret_pitch, size_t row_bytes, size_t n_rows, unsigned element_bytes)) \
  HOOK(cuMemAllocManaged, "cuMemAllocManaged", 6000, false, (cuda_address *ret_at, size_t bytes, unsigned flags)) \
  HOOK(cuMemFree, "cuMemFree", 2000, false, (unsigned at)) \
  HOOK(cuMemFree_v2, "cuMemFree", 3020, false, (cuda_address at)) \
  /* pools.c */ \
  HOOK(cuMemAllocAsync, "cuMemAllocAsync", 11020, false, (cuda_address *ret_at, size_t bytes, cuda_stream stream)) \
  HOOK(cuMemAllocAsync_ptsz, "cuMemAllocAsync", 11020, true, \
       (cuda_address *ret_at, size_t bytes, cuda_stream stream)) \
  HOOK(cuMemAllocFromPoolAsync, "cuMemAllocFromPoolAsync", 11020, false, \
       (cuda_address *ret_at, size_t bytes, cuda_pool pool, cuda_stream stream)) \
  HOOK(cuMemAllocFromPoolAsync_ptsz, "cuMemAllocFromPoolAsync", 11020, true, \
       (cuda_address *ret_at, size_t bytes, cuda_pool pool, cuda_stream stream)) \
  HOOK(cuMemFreeAsync, "cuMemFreeAsync", 11020, false, (cuda_address at, cuda_stream stream)) \
  HOOK(cuMemFreeAsync_ptsz, "cuMemFreeAsync", 11020, true, (cuda_address at, cuda_stream stream)) \
  HOOK(cuMemPoolCreate, "cuMemPoolCreate", 11020, false, \
       (cuda_pool *ret_pool, const struct cuda_pool_properties *properties)) \
  HOOK(cuDeviceGetDefaultMemPool, "cuDeviceGetDefaultMemPool", 11020, false, \
       (cuda_pool *ret_pool, cuda_device_id id)) \
  HOOK(cuDeviceGetMemPool, "cuDeviceGetMemPool", 11020, false, (cuda_pool *ret_pool, cuda_device_id id)) \
  HOOK(cuMemGetDefaultMemPool, "cuMemGetDefaultMemPool", 13000, false, \
       (cuda_pool *ret_pool, struct cuda_location *location, int type)) \
  HOOK(cuMemGetMemPool, "cuMemGetMemPool", 13000, false, \
       (cuda_pool *ret_pool, struct cuda_location *location, int type)) \
  HOOK(cuMemPoolDestroy, "cuMemPoolDestroy", 11020, false, (cuda_pool pool)) \
  HOOK(cuMemPoolImportPointer, "cuMemPoolImportPointer", 11020, false, \
       (cuda_address *ret_at, cuda_pool pool, void *data)) \
  /* graphs.c */ \
  HOOK(cuGraphInstantiate, "cuGraphInstantiate", 10000, false, \
       (cuda_graph_exec *ret_exec, cuda_graph graph, cuda_node *ret_node, char *text, size_t text_bytes)) \
  HOOK(cuGraphInstantiate_v2, "cuGraphInstantiate", 11000, false, \
       (cuda_graph_exec *ret_exec, cuda_graph graph, cuda_node *ret_node, char *text, size_t text_bytes)) \
  HOOK(cuGraphInstantiateWithFlags, "cuGraphInstantiate", 12000, false, \
       (cuda_graph_exec *ret_exec, cuda_graph graph, unsigned long long flags)) \
  HOOK(cuGraphInstantiateWithFlags, "cuGraphInstantiateWithFlags", 11040, false, \
       (cuda_graph_exec *ret_exec, cuda_graph graph, unsigned long long flags)) \
  HOOK(cuGraphInstantiateWithParams, "cuGraphInstantiateWithParams", 12000, false, \
       (cuda_graph_exec *ret_exec, cuda_graph graph, void *params)) \
  HOOK(cuGraphInstantiateWithParams_ptsz, "cuGraphInstantiateWithParams", 12000, true, \
       (cuda_graph_exec *ret_exec, cuda_graph graph, void *params)) \
  HOOK(cuGraphExecDestroy, "cuGraphExecDestroy", 10000, false, (cuda_graph_exec exec)) \
  /* arrays.c */ \
  HOOK(cuArrayCreate, "cuArrayCreate", 2000, false, (cuda_array *ret_array, const struct cuda_array_shape_v1 *shape)) \
  HOOK(cuArrayCreate_v2, "cuArrayCreate", 3020, false, (cuda_array *ret_array, const struct cuda_array_shape *shape)) \
  HOOK(cuArray3DCreate, "cuArray3DCreate", 2000, false, \
       (cuda_array *ret_array, const struct cuda_array_shape_3d_v1 *shape)) \
  HOOK(cuArray3DCreate_v2, "cuArray3DCreate", 3020, false, \
       (cuda_array *ret_array, const struct cuda_array_shape_3d *shape)) \
  HOOK(cuArrayDestroy, "cuArrayDestroy", 2000, false, (cuda_array array)) \
  HOOK(cuMipmappedArrayCreate, "cuMipmappedArrayCreate", 5000, false, \
       (cuda_mipmapped *ret_array, const struct cuda_array_shape_3d *shape, unsigned n_levels)) \
  HOOK(cuMipmappedArrayDestroy, "cuMipmappedArrayDestroy", 5000, false, (cuda_mipmapped array)) \
  /* chunks.c */ \
  HOOK(cuMemCreate, "cuMemCreate", 10020, false, \
       (cuda_memory *ret_memory, size_t bytes, const struct cuda_memory_properties *properties, \
        unsigned long long flags)) \
  HOOK(cuMemRelease, "cuMemRelease", 10020, false, (cuda_memory memory)) \
  HOOK(cuMemMap, "cuMemMap", 10020, false, \
       (cuda_address address, size_t bytes, size_t offset, cuda_memory memory, unsigned long long flags)) \
  HOOK(cuMemUnmap, "cuMemUnmap", 10020, false, (cuda_address address, size_t bytes)) \
  HOOK(cuMemRetainAllocationHandle, "cuMemRetainAllocationHandle", 11000, false, (cuda_memory *ret_memory, void *at)) \
  HOOK(cuMemImportFromShareableHandle, "cuMemImportFromShareableHandle", 10020, false, \
       (cuda_memory *ret_memory, void *os_handle, int type)) \
  /* foreign.c */ \
  HOOK(cuIpcOpenMemHandle, "cuIpcOpenMemHandle", 4010, false, \
       (cuda_address *ret_at, struct cuda_ipc_handle handle, unsigned flags)) \
  HOOK(cuIpcOpenMemHandle_v2, "cuIpcOpenMemHandle", 11000, false, \
       (cuda_address *ret_at, struct cuda_ipc_handle handle, unsigned flags)) \
  HOOK(cuIpcCloseMemHandle, "cuIpcCloseMemHandle", 4010, false, (cuda_address at)) \
  HOOK(cuImportExternalMemory, "cuImportExternalMemory", 10000, false, \
       (cuda_external *ret_memory, const struct cuda_external_properties *properties)) \
  HOOK(cuDestroyExternalMemory, "cuDestroyExternalMemory", 10000, false, (cuda_external memory)) \
  /* pinned.c */ \
  HOOK(cuMemHostAlloc, "cuMemHostAlloc", 2020, false, (void **ret_at, size_t bytes, unsigned flags)) \
  HOOK(cuMemAllocHost, "cuMemAllocHost", 2000, false, (void **ret_at, unsigned bytes)) \
  HOOK(cuMemAllocHost_v2, "cuMemAllocHost", 3020, false, (void **ret_at, size_t bytes)) \
  HOOK(cuMemFreeHost, "cuMemFreeHost", 2000, false, (void *at)) \
  HOOK(cuMemHostRegister, "cuMemHostRegister", 4000, false, (void *at, size_t bytes, unsigned flags)) \
  HOOK(cuMemHostRegister_v2, "cuMemHostRegister", 6050, false, (void *at, size_t bytes, unsigned flags)) \
  HOOK(cuMemHostUnregister, "cuMemHostUnregister", 4000, false, (void *at)) \
  /* contexts.c */ \
  HOOK(cuCtxDestroy, "cuCtxDestroy", 2000, false, (cuda_context context)) \
  HOOK(cuCtxDestroy_v2, "cuCtxDestroy", 4000, false, (cuda_context context)) \
  HOOK(cuCtxDetach, "cuCtxDetach", 2000, false, (cuda_context context)) \
  HOOK(cuDevicePrimaryCtxRelease, "cuDevicePrimaryCtxRelease", 7000, false, (cuda_device_id id)) \
  HOOK(cuDevicePrimaryCtxRelease_v2, "cuDevicePrimaryCtxRelease", 11000, false, (cuda_device_id id)) \
  HOOK(cuDevicePrimaryCtxReset, "cuDevicePrimaryCtxReset", 7000, false, (cuda_device_id id)) \
  HOOK(cuDevicePrimaryCtxReset_v2, "cuDevicePrimaryCtxReset", 11000, false, (cuda_device_id id))

#define DECLARE_HOOK(symbol, name, since, per_thread, arguments) \
  __attribute__((visibility("default"))) cuda_result symbol arguments;
LADE_SHIM_HOOKS(DECLARE_HOOK)
#undef DECLARE_HOOK

/* Functions of the real driver that the shim only calls. */
cuda_result cuCtxGetCurrent(cuda_context *ret_context);
cuda_result cuCtxGetDevice(cuda_device_id *ret_id);
cuda_result cuCtxPushCurrent_v2(cuda_context context);
cuda_result cuCtxPopCurrent_v2(cuda_context *ret_context);
cuda_result cuStreamGetCtx(cuda_stream stream, cuda_context *ret_context);
cuda_result cuStreamIsCapturing(cuda_stream stream, int *ret_status);
cuda_result cuStreamIsCapturing_ptsz(cuda_stream stream, int *ret_status);
cuda_result cuMemGetAddressRange_v2(cuda_address *ret_base, size_t *ret_bytes, cuda_address at);
cuda_result cuGraphGetNodes(cuda_graph graph, cuda_node *ret_nodes, size_t *n_nodes);
cuda_result cuGraphNodeGetType(cuda_node node, int *ret_type);
cuda_result cuGraphMemAllocNodeGetParams(cuda_node node, struct cuda_graph_memory *ret_memory);
cuda_result cuGraphChildGraphNodeGetGraph(cuda_node node, cuda_graph *ret_graph);
cuda_result cuDevicePrimaryCtxGetState(cuda_device_id id, unsigned *ret_flags, int *ret_is_active);
cuda_result cuDevicePrimaryCtxRetain(cuda_context *ret_context, cuda_device_id id);

#endif
