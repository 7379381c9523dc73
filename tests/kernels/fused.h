/* SPDX-License-Identifier: Apache-2.0 */
/* The fused residual op against its separate parts: the same bits, and what fusing gains. */
#ifndef LADE_TESTS_FUSED_H
#define LADE_TESTS_FUSED_H

/* cmocka test: at every level, fused tensors have the bits that the parts give one after the other. */
void fused_equals_parts(void **state);
/* One line per shape and direction. */
void fused_bench(void);

#endif
