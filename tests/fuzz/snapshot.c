/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as a memory snapshot: a pickle that the reader accepts must still be a consistent history. */
#include "tests/fuzz/fuzz_trace.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
  if (size && data[0] == 0x80) /* else it is text, which another target covers */
    fuzz_trace_read(data, size);
  return 0;
}
