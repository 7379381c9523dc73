/* SPDX-License-Identifier: Apache-2.0 */
/* The levels of this CPU, and oneDNN's products where its plug-in opens. */
#include "levels.h"

#include <stdlib.h>
#include <string.h>

#include "kernels/host/host.h"

const char *const level_names[] = {"plain", "avx2", "avx512", "best", NULL};
const int64_t level_most_elements = INT64_MAX;

void *level_alloc(size_t n_bytes)
{
  void *block = NULL;
  return posix_memalign(&block, 64, LADE_MAX(n_bytes, (size_t)1)) ? NULL : block;
}

bool level_get(const char *level, struct lade_kernels *ret_kernels)
{
  struct lade_cpu has = lade_cpu_get(), cpu = {0};
  bool is_best = strcmp(level, "best") == 0, is_avx512 = strcmp(level, "avx512") == 0;
  cpu.has_avx2 = has.has_avx2 && (is_best || is_avx512 || strcmp(level, "avx2") == 0);
  cpu.has_avx512 = has.has_avx512 && (is_best || is_avx512);
  cpu.has_avx512_bf16 = has.has_avx512_bf16 && is_best;
  lade_kernels_init(ret_kernels, &cpu);
  return is_best || strcmp(level, "plain") == 0 || cpu.has_avx512 || (cpu.has_avx2 && !is_avx512);
}

int levels_make(enum lade_kernel kernel, struct lade_kernels levels[LEVELS])
{
  struct lade_cpu has = lade_cpu_get(), cpu = {0};
  int n = 0;
  lade_kernels_init(&levels[n++], &cpu);
  cpu.has_avx2 = true;
  if (has.has_avx2)
    lade_kernels_init(&levels[n++], &cpu);
  cpu.has_avx512 = true;
  if (has.has_avx512)
    lade_kernels_init(&levels[n++], &cpu);
  cpu.has_avx512_bf16 = true;
  if (has.has_avx512_bf16)
    lade_kernels_init(&levels[n++], &cpu);
  lade_kernels_init(&levels[n], &cpu);
  n += lade_matmul_init_onednn(&levels[n]);
  return n;
}

bool level_takes(const struct lade_kernels *kernels, enum lade_kernel kernel, enum lade_dtype dtype, const void *args)
{
  return true;
}

struct lade_kernel_ctx level_ctx(const struct lade_kernels *kernels, lade_pool *pool, const struct lade_step *step)
{
  return (struct lade_kernel_ctx){.pool = pool, .step = step};
}
