/* SPDX-License-Identifier: Apache-2.0 */
/*
 * RMM over the pluggable allocator, as docs/linking.md says: blocks come from it, its limit is kept, a refusal is an
 * exception with its line, and a freed block is used again. rmm.py compiles it.
 */
#include <rmm/mr/callback_memory_resource.hpp>
#include <rmm/resource_ref.hpp>

#include <cstdio>
#include <cstring>
#include <stdexcept>

#include "lade/allocator.h"

static bool is_refused(rmm::device_async_resource_ref resource, cuda::stream_ref stream)
{
  try {
    (void)resource.allocate(stream, std::size_t{1} << 30, 256);
  } catch (const std::runtime_error &error) {
    return std::strstr(error.what(), "no room for 1.0 GiB") != nullptr;
  }
  return false;
}

int main()
{
  rmm::mr::callback_memory_resource lade(
      [](std::size_t bytes, cuda::stream_ref stream, void *) {
        return lade_plugged_alloc_or_throw(static_cast<ssize_t>(bytes), 0, stream.get());
      },
      [](void *address, std::size_t bytes, cuda::stream_ref stream, void *) {
        lade_plugged_free(address, static_cast<ssize_t>(bytes), 0, stream.get());
      });
  rmm::device_async_resource_ref resource = lade;
  cuda::stream_ref stream{cudaStream_t{}};
  void *first = resource.allocate(stream, 1 << 20, 256);
  const bool is_limited = is_refused(resource, stream);
  resource.deallocate(stream, first, 1 << 20, 256);
  void *second = resource.allocate(stream, 1 << 20, 256);
  resource.deallocate(stream, second, 1 << 20, 256);
  std::printf("limit %s, block %s\n", is_limited ? "kept" : "exceeded", first == second ? "used again" : "lost");
  return !(is_limited && first == second);
}
