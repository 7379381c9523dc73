/* SPDX-License-Identifier: Apache-2.0 */
/* Arguments of the wrong kernels. */
#ifndef LADE_TEST_HOSTILE_H
#define LADE_TEST_HOSTILE_H

struct hostile_args {
  float *to;
  int n;
};

/* The error in a product of a warpgroup. */
enum wrong {
  NOTHING,
  SUMS_READ, /* during the product: they are NaN; all the errors below end the test */
  SUMS_WRITTEN,
  TILE_WRITTEN,
  UNPUBLISHED,
  UNFENCED,
  FENCED_TOO_EARLY,
  ASKEW, /* a tile that begins within a swizzle pattern */
  OTHERS_ISSUE,
  UNCOMMITTED,
  UNWAITED,
  LEFT_WRITTEN, /* registers that a product reads */
  LEFT_FENCED_TOO_EARLY,
  N_WRONGS
};

#endif
