/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A fake for cuBLASLt: a libcublasLt.so.13 of exactly the calls that Lade makes, for machines without GPUs. It needs
 * the fake driver: products run on its streams, in its memory.
 *
 * It is strict where cuBLASLt corrupts or is undefined. It refuses shapes that do not match, an algorithm chosen for
 * another product, and too little scratch. It refuses operands outside device memory, aligned less than promised, or
 * overlapping the output. On a lost context a product fails to execute.
 *
 * Where cuBLASLt is free to choose, it does the least convenient thing. The first algorithm of a heuristic does not
 * work; the next ones round between reductions if that is allowed. k is split if there is scratch for it. All scratch
 * is poisoned. FP32 operands lose bits unless the compute type is pedantic. 16-bit matrices whose columns do not begin
 * at multiples of 16 bytes have no algorithm.
 *
 * This header declares the control calls, which tests look up with dlsym.
 */
#ifndef LADE_TEST_FAKE_CUBLASLT_H
#define LADE_TEST_FAKE_CUBLASLT_H

#include <stdint.h>

/*
 * Apply settings as in fake_driver.h, from LADE_FAKE_CUBLASLT or this call:
 *   version=130100
 *   fail=cublasLtMatmul  nth=1  code=14  forever=0   that call number of that function returns code
 * Resets the counts. Return 0, or -1 for an unknown key.
 */
typedef int fake_cublaslt_set_fn(const char *settings);
/* Return the calls of one function since the counts were reset; failed calls; handles and descriptors that exist. */
typedef uint64_t fake_cublaslt_calls_fn(const char *function);
typedef uint64_t fake_cublaslt_failed_fn(void);
typedef int64_t fake_cublaslt_live_fn(void);

#endif
