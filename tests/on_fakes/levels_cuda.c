/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The plain reference and the CUDA kernels, run on the CPU. The orders of execution (rising, falling, shuffled) replace
 * the host's numbers of threads.
 */
#include "levels.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cpu.h"
#include "kernels/cuda.h"
#include "kernels/cuda/launch_internal.h"
#include "tests/fakes/cuda_on_cpu/cuda_on_cpu_run.h"

struct launcher {
  struct lade_cuda_launcher base;
  enum cuda_on_cpu_order order;
};

const char *const level_names[] = {"cuda", NULL};
const int64_t level_max_elements = 150000;

/* All products: only here do orders of execution differ. */
int64_t level_max_products(void)
{
  return INT64_MAX;
}

static void launch_run(const struct lade_cuda_launcher *base, const struct lade_cuda_launch *launch,
                       const struct lade_step *step)
{
  char symbol[96];
  snprintf(symbol, sizeof(symbol), "%s_on_cpu", lade_cuda_function_name(launch->place));
  struct cuda_on_cpu_launch on_cpu = {
      .kernel = dlsym(RTLD_DEFAULT, symbol), .grid = {launch->grid[0], launch->grid[1], launch->grid[2]},
      .n_threads = launch->n_threads, .shared_bytes = launch->shared_bytes,
      .order = ((const struct launcher *)base)->order, .args = launch->args, .step = step};
  if (!on_cpu.kernel)
    fprintf(stderr, "no kernel is called %s\n", symbol);
  cuda_on_cpu_run(&on_cpu);
}

void *level_alloc(size_t n_bytes)
{
  void *block = NULL;
  return posix_memalign(&block, 64, LADE_MAX(n_bytes, (size_t)1)) ? NULL : block;
}

bool level_get(const char *level, struct lade_kernels *ret_kernels)
{
  struct lade_cpu none = {0};
  if (strcmp(level, "cuda") == 0)
    lade_cuda_kernels_init(ret_kernels);
  else
    lade_kernels_init(ret_kernels, &none);
  return true;
}

/* Attention has one more variant on Hopper. */
int levels_make(enum lade_kernel kernel, struct lade_kernels levels[LEVELS])
{
  level_get("plain", &levels[0]);
  level_get("cuda", &levels[1]);
  if (kernel != LADE_K_ATTENTION_FWD)
    return 2;
  for (int attention = LADE_CUDA_BY_WGMMA; attention < LADE_CUDA_N_ATTENTIONS; attention++) {
    levels[attention] = levels[1];
    lade_cuda_attention_choose(&levels[attention], LADE_K_ATTENTION_FWD, (enum lade_cuda_attention)attention);
    lade_cuda_attention_choose(&levels[attention], LADE_K_ATTENTION_BWD, (enum lade_cuda_attention)attention);
  }
  return LADE_CUDA_N_ATTENTIONS;
}

bool level_takes(const struct lade_kernels *kernels, enum lade_kernel kernel, enum lade_dtype dtype, const void *args)
{
  bool is_cuda = kernels->workspace_bytes != NULL, is_attention = kernel == LADE_K_ATTENTION_FWD;
  if (is_attention && kernels->fn[kernel] == lade_cuda_attention_fn(kernel, LADE_CUDA_BY_WGMMA))
    return lade_cuda_attention_has(LADE_CUDA_BY_WGMMA, dtype,
                                   ((const struct lade_attention_fwd_args *)args)->head_dim) &&
           !lade_cuda_attention_has_form(&((const struct lade_attention_fwd_args *)args)->form);
  bool is_f64 = dtype == LADE_F64 || (kernel == LADE_K_CAST && ((const struct lade_cast_args *)args)->to == LADE_F64);
  return !is_cuda || (kernels->fn[kernel] && !is_f64);
}

bool level_whole(struct lade_kernels *kernels)
{
  lade_kernel_fn *whole = lade_cuda_attention_whole_fn(kernels->fn[LADE_K_ATTENTION_BWD]);
  if (whole)
    kernels->fn[LADE_K_ATTENTION_BWD] = whole;
  return whole;
}

struct lade_kernel_ctx level_ctx(const struct lade_kernels *kernels, lade_pool *pool, const struct lade_step *step)
{
  static const struct launcher launchers[CUDA_N_ORDERS] = {
      {{launch_run}, CUDA_FORWARD}, {{launch_run}, CUDA_BACKWARD}, {{launch_run}, CUDA_SHUFFLED}};
  int n_threads = lade_pool_n_threads(pool);
  int order = n_threads < 2 ? CUDA_FORWARD : n_threads == 2 ? CUDA_BACKWARD : CUDA_SHUFFLED;
  return (struct lade_kernel_ctx){.pool = pool, .step = step, .launcher = &launchers[order].base,
                                  .kernels = kernels};
}
