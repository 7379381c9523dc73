/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/checkpoint_model.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/cpu.h"

struct lade_model_graph *checkpoint_graph(enum lade_family family, enum lade_dtype dtype, enum checkpoint_size size)
{
  static struct lade_kernels kernels;
  struct lade_cpu cpu = {0};
  const bool is_wide = size == SIZE_WINDOWS || size == SIZE_CHUNKS;
  struct lade_model model = {.name = "test", .family = family, .layers = size == SIZE_DEEP ? 1600 : 2, .heads = 4,
                             .n_kv_heads = 2, .width = is_wide ? 264 : 16,
                             .hidden = size == SIZE_CHUNKS ? 8100 : is_wide ? 520 : 24, .context = 16,
                             .vocabulary = is_wide ? 2501 : 31, .norm_eps = 1e-5f, .rope_base = 10000};
  if (family == LADE_GPT2) {
    model.n_kv_heads = model.heads;
    model.is_tied = true;
  }
  lade_kernels_init(&kernels, &cpu);
  struct lade_model_graph_params params = {.struct_size = sizeof(params), .model = &model, .dtype = dtype, .batch = 1,
                                     .seq_len = 8, .kernels = &kernels, .n_threads = 1};
  struct lade_model_graph *graph = NULL;
  struct lade_error error = {0};
  if (lade_model_graph_create(&params, &error, &graph) < 0) {
    fprintf(stderr, "%s\n", error.text);
    abort();
  }
  return graph;
}
