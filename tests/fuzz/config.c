/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as a config.json: refused with one line, or a model that passes its check; also one with experts. */
#include <errno.h>

#include "graph/experts.h"
#include "tests/fuzz/fuzz_file.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
  struct lade_error error = {0};
  struct lade_model model;
  struct lade_experts experts;
  const int status = lade_experts_find(fuzz_file("config.json", data, size), &experts, &error);
  if (status && status != -ENOENT)
    fuzz_error_check(&error);
  else if (!status && (lade_experts_n_params(&experts) <= 0 ||
                       lade_experts_n_active_params(&experts) > lade_experts_n_params(&experts)))
    abort();
  error = (struct lade_error){0};
  if (lade_model_load(fuzz_file("config.json", data, size), &model, &error))
    fuzz_error_check(&error);
  else if (lade_model_check(&model, NULL) || lade_model_n_params(&model) <= 0)
    abort();
  return 0;
}
