/* SPDX-License-Identifier: Apache-2.0 */
/* What the wrong kernels are told. */
#ifndef LADE_TEST_HOSTILE_H
#define LADE_TEST_HOSTILE_H

struct hostile_args {
  float *to;
  int n;
};

/* What is wrong about a product of a warpgroup. */
enum wrong {
  NOTHING,
  SUMS_READ, /* while it runs: they are NaN; all that follow end the test */
  SUMS_WRITTEN,
  TILE_WRITTEN,
  UNPUBLISHED,
  UNFENCED,
  FENCED_TOO_EARLY,
  ASKEW, /* a tile that begins within a pattern */
  OTHERS_ISSUE,
  UNCOMMITTED,
  UNWAITED,
  LEFT_WRITTEN, /* registers that a product reads */
  LEFT_FENCED_TOO_EARLY,
  N_WRONGS
};

#endif
