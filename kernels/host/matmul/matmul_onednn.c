/* SPDX-License-Identifier: Apache-2.0 */
/*
 * oneDNN as a variant of the matrix product, for comparison: chosen if the environment has LADE_MATMUL=onednn and the
 * plug-in opens (LADE_ONEDNN_PLUGIN names its file; otherwise the loader's path).
 *
 * c is cut by shape into blocks of rows, one single-threaded product each. Our own level computes a product in three
 * cases: oneDNN has no primitive for its shape or dtype; k is a tree of leaves; the gradient must be added to the
 * present value. oneDNN offers that addition only as a post-operation without a stated place in the sum.
 *
 * It is not the default. At the shapes of training our own kernel is as fast (docs/kernels.md). Executing a primitive
 * also allocates from the heap, which a training step must not.
 *
 * The plug-in's functions and our own level are global to the process, because a kernel gets only its arguments. They
 * are written once, before a table that leads to them is returned.
 */
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "kernels/host/host.h"
#include "kernels/host/matmul/matmul_onednn.h"

#define BLOCK_ROWS 512 /* each block packs b for itself */

static struct {
  pthread_once_t once;
  lade_onednn_prepare_fn *prepare;
  lade_onednn_run_fn *run;
  lade_kernel_fn *own; /* the best level of this CPU */
} plugin = {.once = PTHREAD_ONCE_INIT};

static void plugin_open(void)
{
  const char *file = getenv("LADE_ONEDNN_PLUGIN");
  struct lade_cpu cpu = lade_cpu_get();
  struct lade_kernels kernels = {0};
  lade_matmul_init(&kernels);
  lade_kernels_init_levels(&kernels, &cpu);
  plugin.own = kernels.fn[LADE_K_MATMUL];
  void *library = dlopen(file ? file : "liblade-onednn.so", RTLD_NOW | RTLD_LOCAL);
  if (!library)
    return;
  /* ISO C has no cast from an object's pointer to a function's; POSIX guarantees that the bits are the same. */
  void *prepare = dlsym(library, LADE_ONEDNN_PREPARE), *run = dlsym(library, LADE_ONEDNN_RUN);
  if (prepare && run) {
    memcpy(&plugin.prepare, &prepare, sizeof(prepare));
    memcpy(&plugin.run, &run, sizeof(run));
  }
}

struct onednn_run {
  const struct lade_matmul_args *args;
  atomic_bool is_failed;
};

static struct lade_onednn_block block_get(const struct lade_matmul_args *args, int64_t first)
{
  bool is_tn = args->layout == LADE_TN;
  struct lade_onednn_block block = {.args = *args, .a_stride = is_tn ? args->m : args->k};
  block.args.m = LADE_MIN(BLOCK_ROWS, args->m - first);
  block.args.a = (const char *)args->a + first * (is_tn ? 1 : args->k) * (int64_t)lade_dtype_bytes(args->dtype);
  block.args.c = (char *)args->c + first * args->n * (int64_t)lade_dtype_bytes(args->out);
  return block;
}

static void block_task(void *arg, int i_task, int i_thread)
{
  struct onednn_run *run = arg;
  struct lade_onednn_block block = block_get(run->args, (int64_t)i_task * BLOCK_ROWS);
  if (plugin.run(&block))
    atomic_store(&run->is_failed, true);
}

/* Prepare the primitives of whole blocks and of the last one. -ENOTSUP: our own level computes it. -ENOMEM. */
static int blocks_prepare(const struct lade_matmul_args *args)
{
  if (args->accumulate || args->tree.n_leaves)
    return -ENOTSUP;
  struct lade_onednn_block whole = block_get(args, 0), last = block_get(args, (args->m - 1) / BLOCK_ROWS * BLOCK_ROWS);
  int error = plugin.prepare(&whole);
  return error ? error : plugin.prepare(&last);
}

void lade_matmul_onednn(const struct lade_kernel_ctx *ctx, const void *arg)
{
  const struct lade_matmul_args *args = arg;
  struct onednn_run run = {.args = args};
  bool is_ready = blocks_prepare(args) == 0;
  if (is_ready)
    lade_pool_run(ctx->pool, block_task, &run, (int)lade_div_up(args->m, BLOCK_ROWS));
  if (!is_ready || atomic_load(&run.is_failed))
    plugin.own(ctx, args);
}

bool lade_matmul_init_onednn(struct lade_kernels *kernels)
{
  pthread_once(&plugin.once, plugin_open);
  if (!plugin.run)
    return false;
  lade_kernels_set(kernels, LADE_K_MATMUL, lade_matmul_onednn, "onednn");
  return true;
}
