/* SPDX-License-Identifier: Apache-2.0 */
/*
 * liblade-allocator.so over the fake driver, opened with dlopen as PyTorch does: its names, LADE_ALLOCATOR_LIMIT and
 * lade_plugged_limit, NULL without memory, and failures that stay. Usage: test-allocator-plugin PLUGIN [limit|wrong]
 */
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lade/allocator.h"

#define MIB (UINT64_C(1) << 20)

#define REQUIRE(condition) \
  do { \
    if (!(condition)) { \
      fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
      exit(1); \
    } \
  } while (0)

static struct {
  void *(*alloc)(ssize_t size, int device, void *stream);
  void (*free)(void *address, ssize_t size, int device, void *stream);
  void (*record)(void *address, void *stream);
  void (*reset)(void);
  int (*limit)(uint64_t bytes, struct lade_error *error);
  void (*error)(struct lade_error *ret_error);
  lade_allocator *(*get)(struct lade_error *error);
} plugin;

static void plugin_open(const char *path)
{
  void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!library)
    fprintf(stderr, "%s\n", dlerror());
  REQUIRE(library);
  REQUIRE(!dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD)); /* only the first allocation opens the driver */
  *(void **)&plugin.alloc = dlsym(library, "lade_plugged_alloc");
  *(void **)&plugin.free = dlsym(library, "lade_plugged_free");
  *(void **)&plugin.record = dlsym(library, "lade_plugged_record_stream");
  *(void **)&plugin.reset = dlsym(library, "lade_plugged_reset");
  *(void **)&plugin.limit = dlsym(library, "lade_plugged_limit");
  *(void **)&plugin.error = dlsym(library, "lade_plugged_error");
  *(void **)&plugin.get = dlsym(library, "lade_plugged_allocator");
  REQUIRE(plugin.alloc && plugin.free && plugin.record && plugin.reset && plugin.limit && plugin.error && plugin.get);
}

static struct lade_error last(void)
{
  struct lade_error error = {0};
  plugin.error(&error);
  return error;
}

static void a_wrong_variable_fails_every_allocation(const char *value)
{
  struct lade_error error = {0};
  setenv("LADE_ALLOCATOR_LIMIT", value, 1);
  REQUIRE(!plugin.alloc(512, 0, NULL));
  REQUIRE(last().code == -EINVAL && strstr(last().text, value) && strstr(last().text, "LADE_ALLOCATOR_LIMIT"));
  REQUIRE(!plugin.get(&error) && error.code == -EINVAL);
}

/* Before the first use the call wins over the variable; @limit_bytes is in force afterwards. */
static void the_limit_holds(uint64_t limit_bytes)
{
  void *whole = plugin.alloc((ssize_t)limit_bytes, 0, NULL);
  REQUIRE(whole && last().code == 0);
  REQUIRE(!plugin.alloc(512, 0, NULL) && last().code == -ENOMEM && last().text[0]);
  REQUIRE(plugin.limit(2 * limit_bytes, NULL) == -EBUSY);
  plugin.free(whole, (ssize_t)limit_bytes, 0, NULL);
  void *again = plugin.alloc((ssize_t)limit_bytes, 0, NULL);
  REQUIRE(again == whole);
  plugin.record(again, (void *)1); /* the legacy stream by its handle: the block's own */
  plugin.free(again, 0, 0, NULL);
  plugin.free(again, 0, 0, NULL);
  REQUIRE(last().code == -EINVAL); /* freed twice */
  plugin.record(again, NULL);
  REQUIRE(last().code == -EINVAL && strstr(last().text, "record"));
  REQUIRE(!plugin.alloc(0, 0, NULL) && !plugin.alloc(-1, 0, NULL));
  plugin.reset();
  struct lade_allocator_stats stats = {.struct_size = sizeof(stats)};
  REQUIRE(!lade_allocator_get_stats(plugin.get(NULL), 0, &stats, NULL));
  REQUIRE(stats.reserved_bytes == 0 && stats.limit_bytes == limit_bytes && stats.reserved_peak_bytes == limit_bytes);
}

int main(int argc, char **argv)
{
  const char *scenario = argc > 2 ? argv[2] : "";
  REQUIRE(argc > 1);
  plugin_open(argv[1]);
  if (strcmp(scenario, "wrong") == 0) {
    a_wrong_variable_fails_every_allocation("20 apples");
    a_wrong_variable_fails_every_allocation("20"); /* bytes: a unit is missing */
    REQUIRE(plugin.limit(8 * MIB, NULL) == 0); /* the call needs no variable */
    the_limit_holds(8 * MIB);
  } else if (strcmp(scenario, "limit") == 0) {
    setenv("LADE_ALLOCATOR_LIMIT", "64MiB", 1);
    REQUIRE(plugin.limit(8 * MIB, NULL) == 0);
    the_limit_holds(8 * MIB);
  } else {
    setenv("LADE_ALLOCATOR_LIMIT", "16MiB", 1);
    the_limit_holds(16 * MIB);
  }
  return 0;
}
