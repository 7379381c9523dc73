/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as a machine file: refused with one line, or a machine that passes its check. */
#include "machine/machine.h"
#include "tests/fuzz/fuzz_file.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
  struct lade_error error = {0};
  struct lade_machine machine;
  if (lade_machine_load(fuzz_file("input", data, size), &error, &machine))
    fuzz_error_check(&error);
  else if (lade_machine_check(&machine, "fuzz", NULL))
    abort();
  return 0;
}
