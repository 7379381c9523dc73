/* SPDX-License-Identifier: Apache-2.0 */
/* Choices among cuBLASLt's algorithms, kept in a file of the machine. Private to kernels/cuda. */
#ifndef LADE_CUDA_MATMUL_CHOICES_H
#define LADE_CUDA_MATMUL_CHOICES_H

#include <stdio.h>

#include "base/base.h"
#include "kernels/kernels.h"

/* A kind of product: the inputs of a choice of algorithm besides library, driver and GPU. */
struct lade_product_kind {
  enum lade_matmul_layout layout;
  enum lade_dtype dtype, out;
  int64_t m, n, k;
  bool has_bias, has_gelu, makes_gelu; /* the epilogue: a bias, GELU's slope, GELU of the sum */
};

/* The algorithm of a kind: its number among those that the heuristic offers. */
struct lade_product_choice {
  struct lade_product_kind kind;
  int number;
};

struct lade_product_choices {
  LADE_ARRAY(struct lade_product_choice) list; /* of one key, in the file's order */
  uint32_t hash;                               /* of the list */
};

bool lade_product_kind_is(const struct lade_product_kind *x, const struct lade_product_kind *y);

/*
 * Read the choices of @key from the file at @path; those of other keys are skipped. -EINVAL, naming the line, for a
 * file that cannot be read or has a line of another form; -ENOMEM. The caller finishes @ret, also after an error.
 */
int lade_product_choices_read(const char *path, const char *key, struct lade_error *error,
                              struct lade_product_choices *ret);
void lade_product_choices_finish(struct lade_product_choices *choices);

/* Return the number for @kind, the last one in the file; 0: the heuristic's first, if the file has none. */
int lade_product_choices_find(const struct lade_product_choices *choices, const struct lade_product_kind *kind);

/* Append a line to @file. 0, or -EIO. */
int lade_product_choice_write(FILE *file, const char *key, const struct lade_product_choice *choice);

#endif
