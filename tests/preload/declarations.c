/* SPDX-License-Identifier: Apache-2.0 */
/* The shim's types of the driver compared with the toolkit's cuda.h: the compiler checks the layouts. */
#include <cuda.h>
#include <stddef.h>

#include "preload/types.h"

#define SAME(ours, theirs) _Static_assert((long)(ours) == (long)(theirs), #ours " is not " #theirs)

SAME(sizeof(struct cuda_array_shape), sizeof(CUDA_ARRAY_DESCRIPTOR));
SAME(offsetof(struct cuda_array_shape, n_channels), offsetof(CUDA_ARRAY_DESCRIPTOR, NumChannels));
SAME(sizeof(struct cuda_array_shape_3d), sizeof(CUDA_ARRAY3D_DESCRIPTOR));
SAME(offsetof(struct cuda_array_shape_3d, depth), offsetof(CUDA_ARRAY3D_DESCRIPTOR, Depth));
SAME(offsetof(struct cuda_array_shape_3d, format), offsetof(CUDA_ARRAY3D_DESCRIPTOR, Format));
SAME(offsetof(struct cuda_array_shape_3d, flags), offsetof(CUDA_ARRAY3D_DESCRIPTOR, Flags));
SAME(sizeof(struct cuda_pool_properties), sizeof(CUmemPoolProps));
SAME(offsetof(struct cuda_pool_properties, location), offsetof(CUmemPoolProps, location));
SAME(sizeof(struct cuda_ipc_handle), sizeof(CUipcMemHandle));
SAME(sizeof(struct cuda_external_properties), sizeof(CUDA_EXTERNAL_MEMORY_HANDLE_DESC));
SAME(offsetof(struct cuda_external_properties, bytes), offsetof(CUDA_EXTERNAL_MEMORY_HANDLE_DESC, size));
SAME(sizeof(struct cuda_graph_memory), sizeof(CUDA_MEM_ALLOC_NODE_PARAMS));
SAME(offsetof(struct cuda_graph_memory, bytes), offsetof(CUDA_MEM_ALLOC_NODE_PARAMS, bytesize));
SAME(offsetof(struct cuda_graph_memory, at), offsetof(CUDA_MEM_ALLOC_NODE_PARAMS, dptr));
SAME(CUDA_NODE_GRAPH, CU_GRAPH_NODE_TYPE_GRAPH);
SAME(CUDA_NODE_MEMORY, CU_GRAPH_NODE_TYPE_MEM_ALLOC);
SAME(CUDA_NODE_MEMORY_BACK, CU_GRAPH_NODE_TYPE_MEM_FREE);
#if CUDA_VERSION >= 13000
SAME(CUDA_MEMORY_MANAGED, CU_MEM_ALLOCATION_TYPE_MANAGED);
#endif

int main(void)
{
  return 0;
}
