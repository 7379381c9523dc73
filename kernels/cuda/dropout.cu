/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Dropout with the mask drawn anew wherever it is needed: the same Philox words as on every device, so the same bits.
 *
 * Moves 2 n elements. Bound: arithmetic, ten rounds of Philox for four elements, whose draw neighbours in one thread
 * share; the first element of a tensor need not begin a draw.
 */
#include "kernels/cuda/kernel.h"

template <class T>
static __device__ void dropout_of(const struct lade_dropout_args &a, const struct lade_step *step)
{
  const T *x = (const T *)a.x;
  T *y = (T *)a.y;
  int64_t lead = (int64_t)(a.drop.first_element % 4); /* elements of the first draw that are not ours */
  for (int64_t block = thread_get(); block * 4 < a.n_elements + lead; block += n_threads_get()) {
    struct lade_philox draw = {{0, 0, 0, 0}};
    if (a.drop.drop_below)
      draw = lade_philox_draw(step->seed, step->step, a.drop.stream, a.drop.first_element / 4 + (uint64_t)block);
    for (int j = 0; j < 4; j++) {
      int64_t i = block * 4 + j - lead;
      if (i < 0 || i >= a.n_elements)
        continue;
      float value = get(x[i]);
      if (a.drop.drop_below)
        value = draw.word[j] >= a.drop.drop_below ? value * a.drop.scale : 0.0f;
      put(y + i, value);
    }
  }
}
LADE_KERNEL_OF_DTYPES(dropout, lade_dropout_args)
