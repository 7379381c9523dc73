/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The driver's types for its memory calls that src/device/cuda_driver.h does not need. The test shim-declarations
 * compares them with the toolkit's cuda.h if it is installed.
 */
#ifndef LADE_SHIM_TYPES_H
#define LADE_SHIM_TYPES_H

#include "device/cuda_driver.h"

enum { CUDA_MEMORY_MANAGED = 2 }; /* of a pool, in addition to CUDA_MEMORY_PINNED */

typedef struct CUarray_st *cuda_array;
typedef struct CUmipmappedArray_st *cuda_mipmapped;
typedef struct CUmemPoolHandle_st *cuda_pool;
typedef struct CUextMemory_st *cuda_external;
typedef struct CUgraphNode_st *cuda_node;

struct cuda_array_shape { /* CUDA_ARRAY_DESCRIPTOR */
  size_t width, height;
  int format;
  unsigned n_channels;
};

struct cuda_array_shape_3d { /* CUDA_ARRAY3D_DESCRIPTOR */
  size_t width, height, depth;
  int format;
  unsigned n_channels, flags;
};

struct cuda_array_shape_v1 {
  unsigned width, height;
  int format;
  unsigned n_channels;
};

struct cuda_array_shape_3d_v1 {
  unsigned width, height, depth;
  int format;
  unsigned n_channels, flags;
};

struct cuda_pool_properties { /* CUmemPoolProps */
  int type, handle_types;
  struct cuda_location location;
  void *win32;
  size_t bytes_max;
  unsigned short usage;
  unsigned char reserved[54];
};

struct cuda_graph_memory { /* CUDA_MEM_ALLOC_NODE_PARAMS_v1 */
  struct cuda_pool_properties pool;
  const struct cuda_access *access;
  size_t n_access, bytes;
  cuda_address at;
};

enum { CUDA_NODE_GRAPH = 4, CUDA_NODE_MEMORY = 10, CUDA_NODE_MEMORY_BACK = 11 }; /* CU_GRAPH_NODE_TYPE */

struct cuda_ipc_handle { /* CUipcMemHandle, passed by value */
  char bytes[64];
};

struct cuda_external_properties { /* CUDA_EXTERNAL_MEMORY_HANDLE_DESC */
  int type;
  void *handle[2];
  unsigned long long bytes;
  unsigned flags, reserved[16];
};

#endif
