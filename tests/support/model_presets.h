/* SPDX-License-Identifier: Apache-2.0 */
/* Presets of models, and the parameters that a graph of one holds. */
#ifndef LADE_TESTS_MODEL_PRESETS_H
#define LADE_TESTS_MODEL_PRESETS_H

#include <cmocka.h>

#include "graph/model_graph.h"

/* Return preset @name, which must exist. */
static inline struct lade_model preset_get(const char *name)
{
  struct lade_model model;
  assert_int_equal(lade_model_preset(name, &model, NULL), 0);
  return model;
}

/* Return the elements of all parameters of @graph. */
static inline int64_t params_count(const struct lade_model_graph *graph)
{
  int64_t n = 0;
  for (int i = 0; i < graph->n_params; i++) {
    const struct lade_tensor *tensor = &graph->tensors[graph->params[i].tensor];
    n += (int64_t)(tensor->bytes / lade_dtype_bytes(tensor->dtype));
  }
  return n;
}

#endif
