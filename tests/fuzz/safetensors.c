/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as a safetensors file: refused with one line, or every tensor can be read whole. */
#include <string.h>

#include "run/safetensors.h"
#include "tests/fuzz/fuzz_file.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
  struct lade_error error = {0};
  lade_safetensors *file;
  if (lade_safetensors_open(fuzz_file("input", data, size), NULL, &error, &file)) {
    fuzz_error_check(&error);
    return 0;
  }
  uint64_t covered = 0;
  for (int i = 0; i < lade_safetensors_count(file); i++) {
    const struct lade_safetensor *tensor = lade_safetensors_get(file, i);
    char *bytes = malloc(tensor->bytes + 1);
    if (lade_safetensors_read(file, tensor, 0, tensor->bytes, bytes, NULL) || tensor->offset != covered)
      abort();
    if (lade_safetensors_find(file, tensor->name) != tensor)
      abort();
    covered += tensor->bytes;
    free(bytes);
  }
  lade_safetensors_metadata(file, "format");
  lade_safetensors_close(file);
  return 0;
}
