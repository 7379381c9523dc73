/* SPDX-License-Identifier: Apache-2.0 */
/* Lade's declarations of NCCL compared with its nccl.h, if installed: values, layouts, functions. */
#include <nccl.h>
#include <stddef.h>

#include "parallel/nccl_library.h"

#define SAME(ours, theirs) _Static_assert((long)(ours) == (long)(theirs), #ours " is not " #theirs)

SAME(NCCL_DONE, ncclSuccess);
SAME(NCCL_CUDA_ERROR, ncclUnhandledCudaError);
SAME(NCCL_SYSTEM_ERROR, ncclSystemError);
SAME(NCCL_INTERNAL_ERROR, ncclInternalError);
SAME(NCCL_INVALID_ARGUMENT, ncclInvalidArgument);
SAME(NCCL_INVALID_USAGE, ncclInvalidUsage);
SAME(NCCL_REMOTE_ERROR, ncclRemoteError);
SAME(NCCL_IN_PROGRESS, ncclInProgress);
SAME(NCCL_UINT8, ncclUint8);
SAME(NCCL_FLOAT16, ncclFloat16);
SAME(NCCL_FLOAT32, ncclFloat32);
SAME(NCCL_BFLOAT16, ncclBfloat16);
SAME(NCCL_SUM, ncclSum);
SAME(NCCL_UNSET, NCCL_CONFIG_UNDEF_INT);
SAME(sizeof(nccl_result), sizeof(ncclResult_t));
SAME(sizeof(struct nccl_id), sizeof(ncclUniqueId));

/* Lade's struct is the beginning of NCCL's. */
SAME(offsetof(struct nccl_config, size), offsetof(ncclConfig_t, size));
SAME(offsetof(struct nccl_config, magic), offsetof(ncclConfig_t, magic));
SAME(offsetof(struct nccl_config, version), offsetof(ncclConfig_t, version));
SAME(offsetof(struct nccl_config, blocking), offsetof(ncclConfig_t, blocking));
SAME(offsetof(struct nccl_config, cluster_size), offsetof(ncclConfig_t, cgaClusterSize));
SAME(offsetof(struct nccl_config, min_ctas), offsetof(ncclConfig_t, minCTAs));
SAME(offsetof(struct nccl_config, max_ctas), offsetof(ncclConfig_t, maxCTAs));
SAME(offsetof(struct nccl_config, net_name), offsetof(ncclConfig_t, netName));
SAME(offsetof(struct nccl_config, split_share), offsetof(ncclConfig_t, splitShare));

/* The function types of Lade's members, in the types of nccl.h. */
typedef ncclResult_t init_fn(ncclComm_t *, int, ncclUniqueId, int, ncclConfig_t *);
typedef ncclResult_t split_fn(ncclComm_t, int, int, ncclComm_t *, ncclConfig_t *);
typedef ncclResult_t async_fn(ncclComm_t, ncclResult_t *);
typedef ncclResult_t end_fn(ncclComm_t);
typedef ncclResult_t group_fn(void);
typedef ncclResult_t gather_fn(const void *, void *, size_t, ncclDataType_t, ncclComm_t, cudaStream_t);
typedef ncclResult_t sum_fn(const void *, void *, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t, cudaStream_t);
typedef ncclResult_t tell_fn(const void *, void *, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t);
typedef ncclResult_t send_fn(const void *, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t);
typedef ncclResult_t recv_fn(void *, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t);
#define TAKES(name, type) _Static_assert(__builtin_types_compatible_p(__typeof__(name), type), #name " is declared so")
TAKES(ncclCommInitRankConfig, init_fn);
TAKES(ncclCommSplit, split_fn);
TAKES(ncclCommGetAsyncError, async_fn);
TAKES(ncclCommFinalize, end_fn);
TAKES(ncclCommDestroy, end_fn);
TAKES(ncclCommAbort, end_fn);
TAKES(ncclGroupStart, group_fn);
TAKES(ncclGroupEnd, group_fn);
TAKES(ncclAllGather, gather_fn);
TAKES(ncclReduceScatter, sum_fn);
TAKES(ncclAllReduce, sum_fn);
TAKES(ncclBroadcast, tell_fn);
TAKES(ncclSend, send_fn);
TAKES(ncclRecv, recv_fn);
#if NCCL_VERSION_CODE >= LADE_NCCL_REGISTER_VERSION
typedef ncclResult_t register_fn(const ncclComm_t, void *, size_t, void **);
typedef ncclResult_t deregister_fn(const ncclComm_t, void *);
TAKES(ncclCommRegister, register_fn);
TAKES(ncclCommDeregister, deregister_fn);
#endif

int main(void)
{
  return sizeof(struct nccl_library) > 0 ? 0 : 1;
}
