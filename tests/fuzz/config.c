/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as a config.json: refused with one line, or a model that passes its check. */
#include "graph/model_graph.h"
#include "tests/fuzz/fuzz_file.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
  struct lade_error error = {0};
  struct lade_model model;
  if (lade_model_load(fuzz_file("config.json", data, size), &model, &error))
    fuzz_error_check(&error);
  else if (lade_model_check(&model, NULL) || lade_model_n_params(&model) <= 0)
    abort();
  return 0;
}
