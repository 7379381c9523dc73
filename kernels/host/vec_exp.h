/* SPDX-License-Identifier: Apache-2.0 */
/*
 * exp of a vector, to about one unit in the last place for x <= 88; included by vec_avx*.h.
 *
 * x = n ln2 + r with |r| <= ln2/2: ln2 is subtracted in two parts, the first exact in its product
 * with n (Cody, Waite 1980); exp(r) is its Taylor polynomial to r^7, whose remainder at ln2/2 is
 * under 6e-9, a tenth of a unit; the power of two is put into the exponent. Below -110 the answer is 0.
 */
#ifndef LADE_VEC_EXP_H
#define LADE_VEC_EXP_H

static inline vec vec_exp(vec x)
{
  x = vec_max(vec_set(-110.0f), x); /* in this order NaN stays */
  vec n = vec_round(vec_mul(x, vec_set(0x1.715476p+0f)));
  vec r = vec_fma(n, vec_set(-0x1.62e4p-1f), x);
  r = vec_fma(n, vec_set(-0x1.7f7d1cp-20f), r);
  vec sum = vec_set(1.0f / 5040);
  sum = vec_fma(sum, r, vec_set(1.0f / 720));
  sum = vec_fma(sum, r, vec_set(1.0f / 120));
  sum = vec_fma(sum, r, vec_set(1.0f / 24));
  sum = vec_fma(sum, r, vec_set(1.0f / 6));
  sum = vec_fma(sum, r, vec_set(0.5f));
  sum = vec_fma(sum, r, vec_set(1.0f));
  sum = vec_fma(sum, r, vec_set(1.0f));
  return vec_times_power(sum, n);
}

#endif
