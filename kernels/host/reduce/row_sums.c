/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The second half of every sum over rows. The first half, in each op, leaves one partial sum per block of rows; here
 * they are added per column in the order of blocks, and the complete sum goes into the gradient. Blocks follow from the
 * number of rows alone, so the bits do not depend on threads. The partials are at most 64 rows, so this half is a
 * percent of the work; tasks are ranges of columns.
 *
 * Rejected: a tree over blocks (64 terms do not need it), and atomics, because the order of the threads would then be
 * the order of the sum.
 */
#include "kernels/host/host.h"

#define COLUMNS 512

static void columns_add_f32(const struct lade_row_sums *sums, int output, int64_t from, int64_t n)
{
  float total[COLUMNS] = {0}, *to = (float *)sums->outputs[output] + from;
  const float *partial = (const float *)sums->partials + output * sums->d + from;
  for (int64_t block = 0; block < sums->n_blocks; block++, partial += sums->n_outputs * sums->d) {
    for (int64_t i = 0; i < n; i++)
      total[i] += partial[i];
  }
  for (int64_t i = 0; i < n; i++)
    to[i] = sums->accumulate ? to[i] + total[i] : total[i];
}

static void columns_add_f64(const struct lade_row_sums *sums, int output, int64_t from, int64_t n)
{
  double total[COLUMNS] = {0}, *to = (double *)sums->outputs[output] + from;
  const double *partial = (const double *)sums->partials + output * sums->d + from;
  for (int64_t block = 0; block < sums->n_blocks; block++, partial += sums->n_outputs * sums->d) {
    for (int64_t i = 0; i < n; i++)
      total[i] += partial[i];
  }
  for (int64_t i = 0; i < n; i++)
    to[i] = sums->accumulate ? to[i] + total[i] : total[i];
}

static void columns_task(void *arg, int i_task, int i_thread)
{
  const struct lade_row_sums *sums = arg;
  int64_t from = (int64_t)i_task * COLUMNS, n = LADE_MIN(COLUMNS, sums->d - from);
  for (int output = 0; output < sums->n_outputs; output++) {
    if (!sums->outputs[output])
      continue;
    if (sums->accumulator == LADE_F64)
      columns_add_f64(sums, output, from, n);
    else
      columns_add_f32(sums, output, from, n);
  }
}

void lade_row_sums_add(lade_pool *pool, const struct lade_row_sums *sums)
{
  lade_pool_run(pool, columns_task, (void *)sums, (int)lade_div_up(sums->d, COLUMNS));
}

size_t lade_row_sums_bytes(enum lade_dtype dtype, int64_t n_rows, int64_t d, int n_outputs)
{
  int64_t n_blocks = lade_div_up(n_rows, lade_row_block(n_rows));
  return (size_t)(n_blocks * n_outputs * d) * lade_dtype_bytes(lade_accumulator(dtype));
}
