/* SPDX-License-Identifier: Apache-2.0 */
/* Fused ops, the residual above all, compared with their separate parts: equal bits, and the time saved by fusing. */
#ifndef LADE_TESTS_FUSED_H
#define LADE_TESTS_FUSED_H

/* cmocka tests: at every level, fused tensors have the bits of the parts run one after the other. */
void fused_equals_parts(void **state);
void bias_gradients_are_equal(void **state);
/* Print one line per shape and direction. */
void fused_bench(void);

#endif
