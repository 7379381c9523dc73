/* SPDX-License-Identifier: Apache-2.0 */
/* Our own declarations of cuBLASLt against its cublasLt.h, where there is one: values, layouts, functions. */
#include <cublasLt.h>
#include <stddef.h>

#include "kernels/cuda/cublaslt_library.h"

#define SAME(ours, theirs) _Static_assert((long)(ours) == (long)(theirs), #ours " is not " #theirs)

SAME(CUBLASLT_DONE, CUBLAS_STATUS_SUCCESS);
SAME(CUBLASLT_NOT_INITIALIZED, CUBLAS_STATUS_NOT_INITIALIZED);
SAME(CUBLASLT_ALLOC_FAILED, CUBLAS_STATUS_ALLOC_FAILED);
SAME(CUBLASLT_INVALID_VALUE, CUBLAS_STATUS_INVALID_VALUE);
SAME(CUBLASLT_INTERNAL_ERROR, CUBLAS_STATUS_INTERNAL_ERROR);
SAME(CUBLASLT_NOT_SUPPORTED, CUBLAS_STATUS_NOT_SUPPORTED);
SAME(CUBLASLT_R_32F, CUDA_R_32F);
SAME(CUBLASLT_R_16F, CUDA_R_16F);
SAME(CUBLASLT_R_16BF, CUDA_R_16BF);
SAME(CUBLASLT_COMPUTE_32F, CUBLAS_COMPUTE_32F);
SAME(CUBLASLT_COMPUTE_32F_PEDANTIC, CUBLAS_COMPUTE_32F_PEDANTIC);
SAME(CUBLASLT_OP_N, CUBLAS_OP_N);
SAME(CUBLASLT_OP_T, CUBLAS_OP_T);
SAME(CUBLASLT_EPILOGUE_NONE, CUBLASLT_EPILOGUE_DEFAULT);
SAME(CUBLASLT_EPILOGUE_ADD_BIAS, CUBLASLT_EPILOGUE_BIAS);
SAME(CUBLASLT_REDUCE_NONE, CUBLASLT_REDUCTION_SCHEME_NONE);
SAME(CUBLASLT_REDUCE_IN_PLACE, CUBLASLT_REDUCTION_SCHEME_INPLACE);
SAME(CUBLASLT_REDUCE_COMPUTE_TYPE, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE);
SAME(CUBLASLT_REDUCE_OUTPUT_TYPE, CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE);
SAME(CUBLASLT_DESC_TRANSA, CUBLASLT_MATMUL_DESC_TRANSA);
SAME(CUBLASLT_DESC_TRANSB, CUBLASLT_MATMUL_DESC_TRANSB);
SAME(CUBLASLT_DESC_EPILOGUE, CUBLASLT_MATMUL_DESC_EPILOGUE);
SAME(CUBLASLT_DESC_BIAS_POINTER, CUBLASLT_MATMUL_DESC_BIAS_POINTER);
SAME(CUBLASLT_PREF_MAX_WORKSPACE_BYTES, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES);
SAME(CUBLASLT_PREF_REDUCTION_SCHEMES, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK);
SAME(CUBLASLT_PREF_MIN_ALIGNMENT_A, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES);
SAME(CUBLASLT_PREF_MIN_ALIGNMENT_B, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES);
SAME(CUBLASLT_PREF_MIN_ALIGNMENT_C, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES);
SAME(CUBLASLT_PREF_MIN_ALIGNMENT_D, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES);
SAME(sizeof(struct cublaslt_algo), sizeof(cublasLtMatmulAlgo_t));
SAME(sizeof(struct cublaslt_choice), sizeof(cublasLtMatmulHeuristicResult_t));
SAME(offsetof(struct cublaslt_choice, algo), offsetof(cublasLtMatmulHeuristicResult_t, algo));
SAME(offsetof(struct cublaslt_choice, workspace_bytes), offsetof(cublasLtMatmulHeuristicResult_t, workspaceSize));
SAME(offsetof(struct cublaslt_choice, status), offsetof(cublasLtMatmulHeuristicResult_t, state));

/* The forms that our members have, in the types of cublasLt.h. */
typedef cublasStatus_t create_fn(cublasLtHandle_t *);
typedef cublasStatus_t destroy_fn(cublasLtHandle_t);
typedef cublasStatus_t layout_fn(cublasLtMatrixLayout_t *, cudaDataType, uint64_t, uint64_t, int64_t);
typedef cublasStatus_t layout_end_fn(cublasLtMatrixLayout_t);
typedef cublasStatus_t product_fn(cublasLtMatmulDesc_t *, cublasComputeType_t, cudaDataType_t);
typedef cublasStatus_t product_end_fn(cublasLtMatmulDesc_t);
typedef cublasStatus_t product_set_fn(cublasLtMatmulDesc_t, cublasLtMatmulDescAttributes_t, const void *, size_t);
typedef cublasStatus_t preference_fn(cublasLtMatmulPreference_t *);
typedef cublasStatus_t preference_end_fn(cublasLtMatmulPreference_t);
typedef cublasStatus_t preference_set_fn(cublasLtMatmulPreference_t, cublasLtMatmulPreferenceAttributes_t, const void *,
                                         size_t);
typedef cublasStatus_t choose_fn(cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                 cublasLtMatrixLayout_t, cublasLtMatrixLayout_t, cublasLtMatmulPreference_t, int,
                                 cublasLtMatmulHeuristicResult_t *, int *);
typedef cublasStatus_t matmul_fn(cublasLtHandle_t, cublasLtMatmulDesc_t, const void *, const void *,
                                 cublasLtMatrixLayout_t, const void *, cublasLtMatrixLayout_t, const void *,
                                 const void *, cublasLtMatrixLayout_t, void *, cublasLtMatrixLayout_t,
                                 const cublasLtMatmulAlgo_t *, void *, size_t, cudaStream_t);
#define TAKES(name, type) _Static_assert(__builtin_types_compatible_p(__typeof__(name), type), #name " is declared so")
TAKES(cublasLtCreate, create_fn);
TAKES(cublasLtDestroy, destroy_fn);
TAKES(cublasLtMatrixLayoutCreate, layout_fn);
TAKES(cublasLtMatrixLayoutDestroy, layout_end_fn);
TAKES(cublasLtMatmulDescCreate, product_fn);
TAKES(cublasLtMatmulDescDestroy, product_end_fn);
TAKES(cublasLtMatmulDescSetAttribute, product_set_fn);
TAKES(cublasLtMatmulPreferenceCreate, preference_fn);
TAKES(cublasLtMatmulPreferenceDestroy, preference_end_fn);
TAKES(cublasLtMatmulPreferenceSetAttribute, preference_set_fn);
TAKES(cublasLtMatmulAlgoGetHeuristic, choose_fn);
TAKES(cublasLtMatmul, matmul_fn);

int main(void)
{
  return sizeof(struct cublaslt_library) > 0 ? 0 : 1;
}
