/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NCCL: opened at run time, declared here. Private to src/parallel/ and the tests.
 *
 * The declarations are Lade's own, so that every machine builds and tests the engine that uses it. The test
 * nccl-declarations compares them with nccl.h if there is one. NCCL keeps the forms of its functions within
 * libnccl.so.2.
 */
#ifndef LADE_NCCL_LIBRARY_H
#define LADE_NCCL_LIBRARY_H

#include <limits.h>
#include <stddef.h>

#include "lade/types.h"

/* 2.18, the first that splits communicators. */
#define LADE_NCCL_MIN_VERSION 21800
/* 2.19, the first that registers memory. */
#define LADE_NCCL_REGISTER_VERSION 21900

typedef int nccl_result;              /* ncclResult_t */
typedef struct ncclComm *nccl_handle; /* ncclComm_t */
typedef void *nccl_stream;            /* cudaStream_t, which is a CUstream */

enum {
  NCCL_DONE = 0,
  NCCL_CUDA_ERROR = 1,
  NCCL_SYSTEM_ERROR = 2,
  NCCL_INTERNAL_ERROR = 3,
  NCCL_INVALID_ARGUMENT = 4,
  NCCL_INVALID_USAGE = 5,
  NCCL_REMOTE_ERROR = 6,
  NCCL_IN_PROGRESS = 7
};
enum { NCCL_UINT8 = 1, NCCL_FLOAT16 = 6, NCCL_FLOAT32 = 7, NCCL_BFLOAT16 = 9 };
enum { NCCL_SUM = 0 };
#define NCCL_CONFIG_MAGIC 0xcafebeefu
#define NCCL_UNSET INT_MIN

struct nccl_id {
  char bytes[128];
};

/*
 * ncclConfig_t of 2.18, plus one field that later versions read where 2.18 has padding. If the struct is longer than
 * NCCL's, NCCL cuts it by its size; if it is shorter, NCCL fills it by its version.
 */
struct nccl_config {
  size_t size;
  unsigned magic, version;
  int blocking, cluster_size, min_ctas, max_ctas;
  const char *net_name;
  int split_share, traffic_class;
};

/* X(type, name, arguments): every function that is used, once. */
#define LADE_NCCL_FUNCTIONS(X) \
  X(nccl_result, ncclGetVersion, (int *ret_version)) \
  X(const char *, ncclGetErrorString, (nccl_result result)) \
  X(const char *, ncclGetLastError, (nccl_handle handle)) \
  X(nccl_result, ncclGetUniqueId, (struct nccl_id *ret_id)) \
  X(nccl_result, ncclCommInitRankConfig, (nccl_handle *ret_handle, int size, struct nccl_id id, int rank, \
                                          struct nccl_config *config)) \
  X(nccl_result, ncclCommSplit, (nccl_handle handle, int colour, int key, nccl_handle *ret_part, \
                                 struct nccl_config *config)) \
  X(nccl_result, ncclCommGetAsyncError, (nccl_handle handle, nccl_result *ret_result)) \
  X(nccl_result, ncclCommFinalize, (nccl_handle handle)) \
  X(nccl_result, ncclCommDestroy, (nccl_handle handle)) \
  X(nccl_result, ncclCommAbort, (nccl_handle handle)) \
  X(nccl_result, ncclGroupStart, (void)) \
  X(nccl_result, ncclGroupEnd, (void)) \
  X(nccl_result, ncclAllGather, (const void *src, void *dst, size_t n, int type, nccl_handle handle, \
                                 nccl_stream stream)) \
  X(nccl_result, ncclReduceScatter, (const void *src, void *dst, size_t n, int type, int op, nccl_handle handle, \
                                     nccl_stream stream)) \
  X(nccl_result, ncclAllReduce, (const void *src, void *dst, size_t n, int type, int op, nccl_handle handle, \
                                 nccl_stream stream)) \
  X(nccl_result, ncclBroadcast, (const void *src, void *dst, size_t n, int type, int root, nccl_handle handle, \
                                 nccl_stream stream)) \
  X(nccl_result, ncclSend, (const void *src, size_t n, int type, int peer, nccl_handle handle, nccl_stream stream)) \
  X(nccl_result, ncclRecv, (void *dst, size_t n, int type, int peer, nccl_handle handle, nccl_stream stream))

/* X(type, name, arguments): functions that exist since LADE_NCCL_REGISTER_VERSION. */
#define LADE_NCCL_LATER_FUNCTIONS(X) \
  X(nccl_result, ncclCommRegister, (nccl_handle handle, void *data, size_t bytes, void **ret_registration)) \
  X(nccl_result, ncclCommDeregister, (nccl_handle handle, void *registration))

struct nccl_library {
  void *library;
  int version; /* 22809 for 2.28.9 */
#define LADE_NCCL_MEMBER(type, name, arguments) type(*name) arguments;
  LADE_NCCL_FUNCTIONS(LADE_NCCL_MEMBER)
  LADE_NCCL_LATER_FUNCTIONS(LADE_NCCL_MEMBER) /* both, or both NULL */
#undef LADE_NCCL_MEMBER
};

/*
 * Open the machine's libnccl.so.2, which is never unloaded. -ENOSYS, with the remedy: there is none, or it is older
 * than MIN_VERSION. Any thread; blocks while it is loaded.
 */
int lade_nccl_library_open(struct nccl_library *nccl, struct lade_error *error);

/* Fill @error with the result of @call, with NCCL's text; @handle may be NULL. Return -EIO. */
int lade_nccl_error_set(const struct nccl_library *nccl, nccl_handle handle, const char *call, nccl_result result,
                        struct lade_error *error);

#endif
