/* SPDX-License-Identifier: Apache-2.0 */
/* Lade's declarations of cuBLASLt compared with its cublasLt.h, if installed: values, layouts, functions. */
#include <cublasLt.h>
#include <stddef.h>

#include "kernels/cuda/matmul/cublaslt_library.h"

#define SAME(ours, theirs) _Static_assert((long)(ours) == (long)(theirs), #ours " is not " #theirs)

SAME(CUBLASLT_DONE, CUBLAS_STATUS_SUCCESS);
SAME(CUBLASLT_NOT_INITIALIZED, CUBLAS_STATUS_NOT_INITIALIZED);
SAME(CUBLASLT_ALLOC_FAILED, CUBLAS_STATUS_ALLOC_FAILED);
SAME(CUBLASLT_INVALID_VALUE, CUBLAS_STATUS_INVALID_VALUE);
SAME(CUBLASLT_EXECUTION_FAILED, CUBLAS_STATUS_EXECUTION_FAILED);
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
SAME(CUBLASLT_EPILOGUE_MAKE_GELU, CUBLASLT_EPILOGUE_GELU_AUX);
SAME(CUBLASLT_EPILOGUE_ADD_BIAS_MAKE_GELU, CUBLASLT_EPILOGUE_GELU_AUX_BIAS);
SAME(CUBLASLT_EPILOGUE_GELU_SLOPE, CUBLASLT_EPILOGUE_DGELU);
SAME(CUBLASLT_REDUCE_NONE, CUBLASLT_REDUCTION_SCHEME_NONE);
SAME(CUBLASLT_REDUCE_IN_PLACE, CUBLASLT_REDUCTION_SCHEME_INPLACE);
SAME(CUBLASLT_REDUCE_COMPUTE_TYPE, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE);
SAME(CUBLASLT_REDUCE_OUTPUT_TYPE, CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE);
SAME(CUBLASLT_DESC_TRANSA, CUBLASLT_MATMUL_DESC_TRANSA);
SAME(CUBLASLT_DESC_TRANSB, CUBLASLT_MATMUL_DESC_TRANSB);
SAME(CUBLASLT_DESC_EPILOGUE, CUBLASLT_MATMUL_DESC_EPILOGUE);
SAME(CUBLASLT_DESC_BIAS_POINTER, CUBLASLT_MATMUL_DESC_BIAS_POINTER);
SAME(CUBLASLT_DESC_AUX_POINTER, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER);
SAME(CUBLASLT_DESC_AUX_STRIDE, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD);
SAME(CUBLASLT_PREF_MAX_WORKSPACE_BYTES, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES);
SAME(CUBLASLT_PREF_REDUCTION_SCHEMES, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK);
SAME(CUBLASLT_PREF_MIN_ALIGNMENT_A, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES);
SAME(CUBLASLT_PREF_MIN_ALIGNMENT_B, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES);
SAME(CUBLASLT_PREF_MIN_ALIGNMENT_C, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES);
SAME(CUBLASLT_PREF_MIN_ALIGNMENT_D, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES);
SAME(sizeof(cublaslt_status), sizeof(cublasStatus_t));
SAME(sizeof(cublaslt_type), sizeof(cudaDataType));
SAME(sizeof(cublaslt_compute), sizeof(cublasComputeType_t));
SAME(sizeof(cublaslt_attribute), sizeof(cublasLtMatmulDescAttributes_t));
SAME(sizeof(cublaslt_wish), sizeof(cublasLtMatmulPreferenceAttributes_t));
SAME(sizeof(struct cublaslt_algo), sizeof(cublasLtMatmulAlgo_t));
SAME(sizeof(struct cublaslt_choice), sizeof(cublasLtMatmulHeuristicResult_t));
SAME(offsetof(struct cublaslt_choice, algo), offsetof(cublasLtMatmulHeuristicResult_t, algo));
SAME(offsetof(struct cublaslt_choice, workspace_bytes), offsetof(cublasLtMatmulHeuristicResult_t, workspaceSize));
SAME(offsetof(struct cublaslt_choice, waves), offsetof(cublasLtMatmulHeuristicResult_t, wavesCount));
SAME(offsetof(struct cublaslt_choice, status), offsetof(cublasLtMatmulHeuristicResult_t, state));

/* The functions as Lade declares them, in the types of cublasLt.h. */
#define cublaslt_status cublasStatus_t
#define cublaslt_type cudaDataType
#define cublaslt_compute cublasComputeType_t
#define cublaslt_attribute cublasLtMatmulDescAttributes_t
#define cublaslt_wish cublasLtMatmulPreferenceAttributes_t
#define cublaslt_handle cublasLtHandle_t
#define cublaslt_layout cublasLtMatrixLayout_t
#define cublaslt_product cublasLtMatmulDesc_t
#define cublaslt_preference cublasLtMatmulPreference_t
#define cublaslt_stream cudaStream_t
#define cublaslt_algo cublasLtMatmulAlgo_t
#define cublaslt_choice cublasLtMatmulHeuristicResult_t
#define struct /* cublasLt.h's structs have no tags */
#define FORM(type, name, arguments) typedef type name##_form arguments;
LADE_CUBLASLT_FUNCTIONS(FORM)
#undef struct
#define TAKES(type, name, arguments) \
  _Static_assert(__builtin_types_compatible_p(__typeof__(name), name##_form), #name " is declared so");
LADE_CUBLASLT_FUNCTIONS(TAKES)

int main(void)
{
  return sizeof(struct cublaslt_library) > 0 ? 0 : 1;
}
