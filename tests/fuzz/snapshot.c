/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as a memory snapshot: what a pickle's reader accepts must still be a history to be believed. */
#include "tests/fuzz/fuzz_trace.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
  if (size && data[0] == 0x80) /* else it is a text: another target's */
    fuzz_trace_read(data, size);
  return 0;
}
