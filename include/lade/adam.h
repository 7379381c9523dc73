/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lade/adam.h - the forms in which AdamW's state may be kept.
 *
 * Bytes per parameter beside the working copy, with BF16 weights:
 *
 *   moments   exact master   24-bit master
 *   FP32           10              9
 *   BF16            6              5
 *   8 bits          4.02           3.02
 *
 * FP32 moments with the exact master change no number. The compact forms round, stochastically but reproducibly: the
 * random bits are a function of seed, step, parameter and element, never of where the state lies, of how it is
 * cut or of the number of threads. docs/adam.md has the formats and what they cost in loss.
 */
#ifndef LADE_ADAM_H
#define LADE_ADAM_H

#include "lade/types.h"

#ifdef __cplusplus
extern "C" {
#endif

/* How both moments are kept. */
enum lade_moments {
  LADE_MOMENTS_F32,
  LADE_MOMENTS_BF16,
  LADE_MOMENTS_8BIT, /* with an exponent for each moment of LADE_MOMENT_BLOCK elements */
  LADE_N_MOMENTS
};

/* What a BF16 weight's residual holds. */
enum lade_master {
  LADE_MASTER_EXACT, /* 16 bits: the FP32 master exactly */
  LADE_MASTER_24BIT, /* 8 bits: its upper 24 */
  LADE_N_MASTERS
};

#define LADE_MOMENT_BLOCK 128

#ifdef __cplusplus
}
#endif
#endif
