/* SPDX-License-Identifier: Apache-2.0 */
/* The levels of this CPU, and oneDNN's products if its plug-in opens. */
#include "levels.h"

#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "base/cpu.h"
#include "kernels/host/host.h"

const char *const level_names[] = {"plain", "avx2", "avx512", "avx512_bf16", "amx", NULL};
const int64_t level_max_elements = INT64_MAX;

int64_t level_max_products(void)
{
  return INT64_MAX;
}

void *level_alloc(size_t n_bytes)
{
  void *block = NULL;
  return posix_memalign(&block, 64, LADE_MAX(n_bytes, (size_t)1)) ? NULL : block;
}

/* Return a CPU that has the first @n levels above. */
static struct lade_cpu cpu_of(int n)
{
  return (struct lade_cpu){.has_avx2 = n > 1, .has_avx512 = n > 2, .has_avx512_bf16 = n > 3, .has_amx_bf16 = n > 4};
}

/* True if @has has all features of @wanted. */
static bool cpu_has(const struct lade_cpu *has, const struct lade_cpu *wanted)
{
  return has->has_avx2 >= wanted->has_avx2 && has->has_avx512 >= wanted->has_avx512 &&
         has->has_avx512_bf16 >= wanted->has_avx512_bf16 && has->has_amx_bf16 >= wanted->has_amx_bf16;
}

bool level_get(const char *level, struct lade_kernels *ret_kernels)
{
  const struct lade_cpu has = lade_cpu_get();
  int n = 0;
  while (level_names[n] && strcmp(level_names[n], level) != 0)
    n++;
  const struct lade_cpu cpu = level_names[n] ? cpu_of(n + 1) : has; /* "best" */
  if (!cpu_has(&has, &cpu)) /* a level's table is filled by code that is compiled for the level */
    return false;
  lade_kernels_init(ret_kernels, &cpu);
  return true;
}

int levels_make(enum lade_kernel kernel, struct lade_kernels levels[LEVELS])
{
  const struct lade_cpu has = lade_cpu_get();
  int n = 0;
  while (level_names[n]) {
    const struct lade_cpu cpu = cpu_of(n + 1);
    if (!cpu_has(&has, &cpu))
      break;
    lade_kernels_init(&levels[n++], &cpu);
  }
  levels[n] = levels[n - 1];
  n += lade_matmul_init_onednn(&levels[n]);
  return n;
}

bool level_takes(const struct lade_kernels *kernels, enum lade_kernel kernel, enum lade_dtype dtype, const void *args)
{
  return true;
}

bool level_whole(struct lade_kernels *kernels)
{
  return false;
}

struct lade_kernel_ctx level_ctx(const struct lade_kernels *kernels, lade_pool *pool, const struct lade_step *step)
{
  return (struct lade_kernel_ctx){.pool = pool, .step = step, .kernels = kernels};
}
