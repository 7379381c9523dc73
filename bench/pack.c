/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Packs instances and prints the peaks: bench-pack [-w WORK] [-s SECONDS] [-t STOP_BYTES] [-r REPEATS] FILE...
 *
 * A file is any that `lade replay` reads; lifetimes are in its calls. Names in place of a file are drawn:
 *   stack:LAYERS             the skeleton of a training step: nested saved activations, transients, gradients
 *   network:LAYERS[:SEED]    a step whose layers and sizes are drawn
 *   random:N:PART[:SEED]     N buffers of random sizes that begin at any time and live for 1/PART of the program on
 *                            average
 *   boxes:N[:SEED]           N short buffers of like sizes
 *   even:PIECES:PER_MILLE:SEED, any:, wheels:
 *                            jigsaws on a grid of 1,024 with so many pieces taken out (pack_instances.h), which fit
 *                            into 1 MiB
 *
 * The independent checker checks every answer. Columns: buffers, lower bound, peak, excess in percent, whether it is
 * proved optimal, CPU milliseconds of the fastest of the repeats.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "alloc/trace.h"
#include "base/base.h"
#include "base/philox.h"
#include "bench/pack_instances.h"
#include "lade/pack.h"

typedef LADE_ARRAY(struct lade_pack_item) item_array;

static bool item_add(item_array *items, int64_t lower, int64_t upper, uint64_t bytes, uint32_t align)
{
  struct lade_pack_item item = {(int32_t)lower, (int32_t)upper, bytes, align, -1};
  return LADE_PUSH(items, item);
}

static int file_read(const char *path, item_array *items)
{
  struct lade_error error = {0};
  struct lade_trace trace = {0};
  int rc = lade_trace_load(path, &error, &trace);
  if (rc)
    fprintf(stderr, "bench-pack: %s\n", error.text);
  else if (!lade_array_reserve((void **)&items->items, &items->capacity, trace.blocks.n, sizeof(*items->items)))
    rc = -ENOMEM;
  if (!rc) {
    items->n = trace.blocks.n;
    lade_trace_items(&trace, items->items);
  }
  lade_trace_destroy(&trace);
  return rc;
}

/*
 * Make forward saves per layer, and the backward in reverse order; sizes in multiples of 1 KiB as for 12 sequences of
 * 64.
 */
static int stack_make(int n_layers, item_array *items)
{
  const uint64_t unit = 393216;
  int t = 0, last = n_layers * 18 + 8;
  bool ok = true;
  for (int l = 0; l < n_layers; l++) {
    int back = last - (l + 1) * 9;
    const uint64_t saved[] = {1, 3, 1, 1, 4, 4};
    for (int k = 0; k < 6; k++) {
      ok &= item_add(items, t + k, back + 8 - k, saved[k] * unit, 256);
      ok &= item_add(items, t + k, t + k + 2, (uint64_t)(k % 3 + 1) * unit / 3, 256);
      ok &= item_add(items, back + k, back + k + 3, saved[5 - k] * unit, 256);
      ok &= item_add(items, back + k, back + k + 1, 4096, 256);
    }
    ok &= item_add(items, t, t + 9, unit, 256);
    ok &= item_add(items, t + 1, back + 8, 3072, 256);
    t += 9;
  }
  return ok ? 0 : -ENOMEM;
}

/* Make room for @n items, which the caller fills. */
static bool room_make(int n, item_array *items)
{
  if (n < 1 || !lade_array_reserve((void **)&items->items, &items->capacity, n, sizeof(*items->items)))
    return false;
  items->n = n;
  return true;
}

/* Make a drawn instance named NAME:N[:PART][:SEED]. 1: @name has another form. */
static int drawn_make(const char *name, item_array *items)
{
  uint64_t seed = 1;
  int n = 0, part = 0;
  if (sscanf(name, "random:%d:%d:%" SCNu64, &n, &part, &seed) >= 2) {
    if (part < 1 || !room_make(n, items))
      return -EINVAL;
    lives_make(seed, n, part, items->items);
    return 0;
  }
  if (sscanf(name, "boxes:%d:%" SCNu64, &n, &seed) >= 1) {
    if (!room_make(n, items))
      return -EINVAL;
    boxes_make(seed, n, items->items);
    return 0;
  }
  if (sscanf(name, "network:%d:%" SCNu64, &n, &seed) >= 1) {
    if (n > 1000 || !room_make(n * NETWORK_LAYER_ITEMS, items))
      return -EINVAL;
    items->n = network_make(&(struct network){n, seed}, items->items);
    return 0;
  }
  return 1;
}

static int jigsaw_add(struct jigsaw spec, item_array *items)
{
  if (spec.n_pieces < 1 || spec.n_pieces > spec.span || spec.per_mille_out < 0 || spec.per_mille_out >= 1000)
    return -EINVAL;
  if (!lade_array_reserve((void **)&items->items, &items->capacity, spec.n_pieces, sizeof(*items->items)))
    return -ENOMEM;
  items->n = jigsaw_make(&spec, items->items);
  return 0;
}

/* Make the buffers of instance @name. */
static int instance_make(const char *name, item_array *items)
{
  static const char *const cuts[JIGSAW_N_CUTS] = {"even", "any", "wheels"};
  struct jigsaw spec = {.span = 1024, .height = 1024, .granule = 1024};
  char kind[8];
  int rc = drawn_make(name, items);
  if (rc <= 0)
    return rc;
  if (sscanf(name, "%7[a-z]:%d:%d:%" SCNu64, kind, &spec.n_pieces, &spec.per_mille_out, &spec.seed) == 4)
    for (int k = 0; k < JIGSAW_N_CUTS; k++)
      if (!strcmp(kind, cuts[k])) {
        spec.cuts = (enum jigsaw_cuts)k;
        return jigsaw_add(spec, items);
      }
  return strncmp(name, "stack:", 6) ? file_read(name, items) : stack_make(atoi(name + 6), items);
}

/* Return the CPU time of this process: the packer has one thread, and other programs do not count. */
static int64_t cpu_ns(void)
{
  struct timespec now;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

static int instance_run(const char *name, const struct lade_pack_params *params, int n_repeats)
{
  item_array items = {0};
  int rc = instance_make(name, &items);
  uint64_t *offsets = calloc((size_t)items.n + 1, sizeof(*offsets));
  lade_packer *packer = NULL;
  struct lade_pack_result result = {0};
  struct lade_error error = {0};
  int64_t best_ns = INT64_MAX;
  if (!rc)
    rc = offsets ? lade_packer_create(&packer) : -ENOMEM;
  for (int r = 0; r < n_repeats && !rc; r++) {
    int64_t start_ns = cpu_ns();
    rc = lade_packer_pack(packer, items.items, items.n, params, offsets, &result, &error);
    best_ns = LADE_MIN(best_ns, cpu_ns() - start_ns);
  }
  if (!rc)
    rc = lade_pack_check(items.items, items.n, offsets, result.peak_bytes, &error);
  const char *base = strrchr(name, '/') ? strrchr(name, '/') + 1 : name;
  if (rc)
    printf("%-32s failed: %s\n", base, error.text[0] ? error.text : strerror(-rc));
  else
    printf("%-32s %7d %14" PRIu64 " %14" PRIu64 " %8.4f%% %s %10.2f ms\n", base, items.n, result.lower_bound_bytes,
           result.peak_bytes, 100.0 * ((double)result.peak_bytes / (double)result.lower_bound_bytes - 1),
           result.is_optimal ? "optimal" : "       ", (double)best_ns / 1e6);
  fflush(stdout);
  lade_packer_destroy(packer);
  free(offsets);
  LADE_ARRAY_FREE(&items);
  return rc;
}

int main(int argc, char **argv)
{
  struct lade_pack_params params = {.struct_size = sizeof(params)};
  int n_repeats = 1, option, n_failed = 0;
  while ((option = getopt(argc, argv, "w:s:t:r:")) != -1)
    switch (option) {
    case 'w': params.work_limit = strtoull(optarg, NULL, 10); break;
    case 's': params.time_limit_ns = (int64_t)(atof(optarg) * 1e9); break;
    case 't': params.stop_bytes = strtoull(optarg, NULL, 10); break;
    case 'r': n_repeats = atoi(optarg); break;
    default: return 2;
    }
  for (int k = optind; k < argc; k++)
    n_failed += instance_run(argv[k], &params, n_repeats) != 0;
  return n_failed > 0;
}
