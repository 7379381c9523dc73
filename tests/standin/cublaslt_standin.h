/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A stand-in for cuBLASLt: a libcublasLt.so.13 of exactly the calls that Lade makes, for machines without GPUs. It goes
 * with the stand-in for the driver: products run on its streams, in its memory.
 *
 * It is strict where cuBLASLt corrupts or is undefined: shapes that do not fit each other, an algorithm that was
 * chosen for another product, operands that are no device memory, lie less aligned than was promised, or overlap what
 * is written; too little scratch. On a context that is lost a product fails to execute. Where cuBLASLt may do as it
 * likes, it does what is least convenient: the first choice of a heuristic is one that does not work, the next are of
 * the reduction schemes that round in between if they are allowed, k is split where there is scratch for it, all
 * scratch is poisoned, FP32 operands lose bits unless the compute type is pedantic. 16-bit matrices whose columns do
 * not begin at 16 bytes have no algorithm.
 *
 * This header is the control calls, which tests look up with dlsym.
 */
#ifndef LADE_TEST_CUBLASLT_STANDIN_H
#define LADE_TEST_CUBLASLT_STANDIN_H

#include <stdint.h>

/*
 * Settings as in standin.h, from LADE_STANDIN_CUBLASLT or this call:
 *   version=130100
 *   fail=cublasLtMatmul  nth=1  code=14  forever=0   that call number of that function answers code
 * Starts counting anew. Returns 0, or -1 for a key that it does not know.
 */
typedef int standin_cublaslt_set_fn(const char *settings);
/* Calls of one function since counting began; calls that were made to fail; handles and descriptors that exist. */
typedef uint64_t standin_cublaslt_calls_fn(const char *function);
typedef uint64_t standin_cublaslt_failed_fn(void);
typedef int64_t standin_cublaslt_live_fn(void);

#endif
