/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The declarations of cuBLASLt, which is opened at run time. Private to kernels/cuda/ and the tests.
 *
 * The declarations are our own, so that every machine builds and tests their callers; the test cublaslt-declarations
 * compares them with cublasLt.h if it is installed. The functions have had these forms since CUDA 11.
 */
#ifndef LADE_CUBLASLT_LIBRARY_H
#define LADE_CUBLASLT_LIBRARY_H

#include <stddef.h>
#include <stdint.h>

#include "lade/types.h"

/* CUDA 12.0's, as old as the oldest driver that is accepted. */
#define LADE_CUBLASLT_MIN_VERSION 120000

typedef int cublaslt_status;         /* cublasStatus_t */
typedef int cublaslt_type;           /* cudaDataType */
typedef int cublaslt_compute;        /* cublasComputeType_t */
typedef int cublaslt_attribute;      /* cublasLtMatmulDescAttributes_t */
typedef int cublaslt_wish;           /* cublasLtMatmulPreferenceAttributes_t */
typedef struct cublasLtContext *cublaslt_handle;
typedef void *cublaslt_layout;       /* cublasLtMatrixLayout_t */
typedef void *cublaslt_product;      /* cublasLtMatmulDesc_t */
typedef void *cublaslt_preference;   /* cublasLtMatmulPreference_t */
typedef void *cublaslt_stream;       /* cudaStream_t, which is a CUstream */

enum {
  CUBLASLT_DONE = 0,
  CUBLASLT_NOT_INITIALIZED = 1,
  CUBLASLT_ALLOC_FAILED = 3,
  CUBLASLT_INVALID_VALUE = 7,
  CUBLASLT_EXECUTION_FAILED = 13,
  CUBLASLT_INTERNAL_ERROR = 14,
  CUBLASLT_NOT_SUPPORTED = 15
};
enum { CUBLASLT_R_32F = 0, CUBLASLT_R_16F = 2, CUBLASLT_R_16BF = 14 };       /* cudaDataType_t */
enum { CUBLASLT_COMPUTE_32F = 68, CUBLASLT_COMPUTE_32F_PEDANTIC = 69 };      /* cublasComputeType_t */
enum { CUBLASLT_OP_N = 0, CUBLASLT_OP_T = 1 };                               /* cublasOperation_t, an int32_t */
enum { /* cublasLtEpilogue_t, a uint32_t */
  CUBLASLT_EPILOGUE_NONE = 1,
  CUBLASLT_EPILOGUE_ADD_BIAS = 4,
  CUBLASLT_EPILOGUE_MAKE_GELU = 160,
  CUBLASLT_EPILOGUE_ADD_BIAS_MAKE_GELU = 164,
  CUBLASLT_EPILOGUE_GELU_SLOPE = 192
};
enum {                                                                       /* cublasLtReductionScheme_t, a uint32_t */
  CUBLASLT_REDUCE_NONE = 0,
  CUBLASLT_REDUCE_IN_PLACE = 1,
  CUBLASLT_REDUCE_COMPUTE_TYPE = 2,
  CUBLASLT_REDUCE_OUTPUT_TYPE = 4
};
enum { /* cublasLtMatmulDescAttributes_t */
  CUBLASLT_DESC_TRANSA = 3,
  CUBLASLT_DESC_TRANSB = 4,
  CUBLASLT_DESC_EPILOGUE = 7,
  CUBLASLT_DESC_BIAS_POINTER = 8,
  CUBLASLT_DESC_AUX_POINTER = 11,
  CUBLASLT_DESC_AUX_STRIDE = 12
};
enum { /* cublasLtMatmulPreferenceAttributes_t; the alignments are uint32_t, the workspace a uint64_t */
  CUBLASLT_PREF_MAX_WORKSPACE_BYTES = 1,
  CUBLASLT_PREF_REDUCTION_SCHEMES = 3,
  CUBLASLT_PREF_MIN_ALIGNMENT_A = 5,
  CUBLASLT_PREF_MIN_ALIGNMENT_B = 6,
  CUBLASLT_PREF_MIN_ALIGNMENT_C = 7,
  CUBLASLT_PREF_MIN_ALIGNMENT_D = 8
};

struct cublaslt_algo {
  uint64_t data[8];
};

/* cublasLtMatmulHeuristicResult_t */
struct cublaslt_choice {
  struct cublaslt_algo algo;
  size_t workspace_bytes;
  cublaslt_status status;
  float waves;
  int reserved[4];
};

/* X(type, name, arguments): every used function, once. */
#define LADE_CUBLASLT_FUNCTIONS(X) \
  X(size_t, cublasLtGetVersion, (void)) \
  X(const char *, cublasLtGetStatusName, (cublaslt_status status)) \
  X(cublaslt_status, cublasLtCreate, (cublaslt_handle *ret_handle)) \
  X(cublaslt_status, cublasLtDestroy, (cublaslt_handle handle)) \
  X(cublaslt_status, cublasLtMatrixLayoutCreate, (cublaslt_layout *ret_layout, cublaslt_type type, uint64_t rows, \
                                                  uint64_t columns, int64_t stride)) \
  X(cublaslt_status, cublasLtMatrixLayoutDestroy, (cublaslt_layout layout)) \
  X(cublaslt_status, cublasLtMatmulDescCreate, (cublaslt_product *ret_product, cublaslt_compute compute, \
                                                cublaslt_type scale)) \
  X(cublaslt_status, cublasLtMatmulDescDestroy, (cublaslt_product product)) \
  X(cublaslt_status, cublasLtMatmulDescSetAttribute, (cublaslt_product product, cublaslt_attribute attribute, \
                                                      const void *value, size_t value_bytes)) \
  X(cublaslt_status, cublasLtMatmulPreferenceCreate, (cublaslt_preference *ret_preference)) \
  X(cublaslt_status, cublasLtMatmulPreferenceDestroy, (cublaslt_preference preference)) \
  X(cublaslt_status, cublasLtMatmulPreferenceSetAttribute, (cublaslt_preference preference, cublaslt_wish wish, \
                                                            const void *value, size_t value_bytes)) \
  X(cublaslt_status, cublasLtMatmulAlgoGetHeuristic, \
    (cublaslt_handle handle, cublaslt_product product, cublaslt_layout a, cublaslt_layout b, cublaslt_layout c, \
     cublaslt_layout d, cublaslt_preference preference, int n_wanted, struct cublaslt_choice *ret_choices, \
     int *ret_n)) \
  X(cublaslt_status, cublasLtMatmul, \
    (cublaslt_handle handle, cublaslt_product product, const void *alpha, const void *a, cublaslt_layout a_layout, \
     const void *b, cublaslt_layout b_layout, const void *beta, const void *c, cublaslt_layout c_layout, void *d, \
     cublaslt_layout d_layout, const struct cublaslt_algo *algo, void *workspace, size_t workspace_bytes, \
     cublaslt_stream stream))

struct cublaslt_library {
  void *library;
  size_t version; /* 130100 for 13.1.0 */
#define LADE_CUBLASLT_MEMBER(type, name, arguments) type(*name) arguments;
  LADE_CUBLASLT_FUNCTIONS(LADE_CUBLASLT_MEMBER)
#undef LADE_CUBLASLT_MEMBER
};

/*
 * Open @soname, which is never unloaded again. Errors name the fix: -ENOENT if there is none, -ENOSYS if it is older
 * than MIN_VERSION. Any thread; blocks while it is read.
 */
int lade_cublaslt_library_open(struct cublaslt_library *cublaslt, const char *soname, struct lade_error *error);

/* Fill @error with the result of @call, under cuBLASLt's own name for it. Return -ENOMEM, -ENODEV or -EFAULT. */
int lade_cublaslt_error_set(const struct cublaslt_library *cublaslt, const char *call, cublaslt_status result,
                            struct lade_error *error);

#endif
