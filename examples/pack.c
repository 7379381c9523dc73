/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pack the buffers of a small training step: buffers that are live together do not overlap, and the arena is as small
 * as the packer can make it. Each layer makes one activation for the backward pass, and needs a scratch buffer in both
 * passes. Time counts layers: up in the forward pass, down in the backward pass.
 *
 *   cc pack.c $(pkg-config --cflags --libs lade) && ./a.out
 */
#include <lade/pack.h>
#include <stdio.h>

#define LAYERS 6
#define N_ITEMS (3 * LAYERS)
#define KIB 1024u

static int items_make(struct lade_pack_item *items)
{
  int n = 0;
  for (int layer = 0; layer < LAYERS; layer++) {
    int forward = layer, backward = 2 * LAYERS - 1 - layer;
    uint64_t saved = (uint64_t)(64 + 16 * layer) * KIB, scratch = (uint64_t)(256 - 24 * layer) * KIB;
    const struct lade_pack_item items_of_layer[] = {
        {.lower = forward, .upper = backward + 1, .bytes = saved, .align = 4096, .fixed = -1},
        {.lower = forward, .upper = forward + 1, .bytes = scratch, .align = 4096, .fixed = -1},
        {.lower = backward, .upper = backward + 1, .bytes = 2 * scratch, .align = 4096, .fixed = -1},
    };
    for (int k = 0; k < 3; k++)
      items[n++] = items_of_layer[k];
  }
  return n;
}

int main(void)
{
  struct lade_pack_item items[N_ITEMS];
  uint64_t offsets[N_ITEMS], together = 0;
  struct lade_pack_result result;
  struct lade_error error = {0};
  struct lade_pack_params params = {.struct_size = sizeof(params), .work_limit = 10 * 1000 * 1000};
  int n = items_make(items);
  if (lade_pack(items, n, &params, offsets, &result, &error)
      || lade_pack_check(items, n, offsets, result.peak_bytes, &error)) {
    fprintf(stderr, "%s\n", error.text);
    return 1;
  }
  printf("live      KiB   at offset\n");
  for (int i = 0; i < n; i++) {
    printf("%2d..%-2d  %5llu  %10llu\n", items[i].lower, items[i].upper, (unsigned long long)(items[i].bytes / KIB),
           (unsigned long long)offsets[i]);
    together += items[i].bytes;
  }
  printf("one after another %llu KiB; packed %llu KiB, %s\n", (unsigned long long)(together / KIB),
         (unsigned long long)(result.peak_bytes / KIB),
         result.is_optimal ? "which is optimal" : "which may not be the least");
  return 0;
}
