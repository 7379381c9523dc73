/* SPDX-License-Identifier: Apache-2.0 */
/* Tensor stores (lade/store.h) for tests, and bytes to put into them. */
#ifndef LADE_TESTS_TENSOR_FIXTURE_H
#define LADE_TESTS_TENSOR_FIXTURE_H

#include <stdint.h>

#include "lade/store.h"

/* Open a store with @params, whose struct_size is set here. A refusal fails the test with its line. */
lade_tensor_store *tensor_fixture_open(struct lade_tensor_store_params params);

/* Fill @data with random bytes that depend on @seed alone. */
void tensor_fixture_fill(unsigned char *data, uint64_t bytes, uint64_t seed);

#endif
