/* SPDX-License-Identifier: Apache-2.0 */
/* Any text as lifetimes in CSV, unchanged and under the right header, and as lines of calls. */
#include "tests/fuzz/fuzz_trace.h"

static void headed_read(const char *header, const uint8_t *data, size_t size)
{
  size_t n = strlen(header);
  uint8_t *text = malloc(n + size);
  memcpy(text, header, n);
  memcpy(text + n, data, size);
  fuzz_trace_read(text, n + size);
  free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
  fuzz_trace_read(data, size);
  headed_read("id,lower,upper,size\n", data, size);
  headed_read("lade-trace 1\n", data, size);
  return 0;
}
