// SPDX-License-Identifier: Apache-2.0
// lade_plugged_alloc_or_throw in a program in C++, as PyTorch is: a failure is an exception with the allocator's line.
#include <cstdio>
#include <cstring>
#include <stdexcept>

#include "lade/allocator.h"

int main()
{
  struct lade_error error = {};
  if (lade_plugged_limit(8 << 20, &error))
    return 1;
  void *block = lade_plugged_alloc_or_throw(8 << 20, 0, nullptr);
  bool is_thrown = false;
  try {
    lade_plugged_alloc_or_throw(1 << 20, 0, nullptr);
  } catch (const std::runtime_error &caught) {
    lade_plugged_error(&error);
    is_thrown = std::strcmp(caught.what(), error.text) == 0 && std::strstr(error.text, "8.0 MiB");
  }
  lade_plugged_free(block, 8 << 20, 0, nullptr);
  if (!block || !is_thrown || lade_plugged_alloc_or_throw(0, 0, nullptr))
    std::fprintf(stderr, "%s\n", error.text);
  return block && is_thrown ? 0 : 1;
}
