/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keep tensors that do not fit memory on a drive. A loop puts sixteen tensors through one buffer and gets them back,
 * checked. Name several directories, separated by commas, to use several drives.
 *
 *   cc store.c $(pkg-config --cflags --libs lade) && ./a.out /nvme/scratch
 */
#include <lade/store.h>
#include <stdio.h>
#include <stdlib.h>

#define N_TENSORS 16
#define N_ELEMENTS (1 << 20) /* 4 MiB each */

static void name_of(int i, char name[32])
{
  snprintf(name, 32, "layer.%d.exp_avg", i);
}

/* Fill @data with the values of tensor @i. */
static void fill(float *data, int i)
{
  for (int k = 0; k < N_ELEMENTS; k++)
    data[k] = (float)(i * 1000 + k % 997);
}

static int put_all(lade_tensor_store *store, float *data, struct lade_error *error)
{
  char name[32];
  for (int i = 0; i < N_TENSORS; i++) {
    name_of(i, name);
    fill(data, i);
    int status = lade_tensor_store_put(store, name, data, N_ELEMENTS * sizeof(*data), error);
    if (status)
      return status;
  }
  printf("put %d tensors of %zu MiB\n", N_TENSORS, N_ELEMENTS * sizeof(*data) >> 20);
  return 0;
}

static int get_all(lade_tensor_store *store, float *data, struct lade_error *error)
{
  char name[32];
  for (int i = N_TENSORS - 1; i >= 0; i--) { /* a backward pass reads in reverse */
    name_of(i, name);
    int status = lade_tensor_store_get(store, name, data, N_ELEMENTS * sizeof(*data), error);
    if (status)
      return status;
    if (data[0] != (float)(i * 1000) || data[996] != (float)(i * 1000 + 996))
      return lade_error_set(error, -1, "%s is not what was put", name);
  }
  printf("got %d tensors, all as they were put\n", N_TENSORS);
  return 0;
}

int main(int argc, char **argv)
{
  struct lade_error error = {0};
  struct lade_tensor_store_info info = {.struct_size = sizeof(info)};
  struct lade_tensor_store_params params = {.struct_size = sizeof(params), .budget_bytes = (uint64_t)80 << 20};
  lade_tensor_store *store = NULL;
  if (argc != 2) {
    fprintf(stderr, "usage: store DIR[,DIR...]\n");
    return 2;
  }
  params.dirs = argv[1];
  float *data = aligned_alloc(4096, N_ELEMENTS * sizeof(*data)); /* aligned, so the drive accesses it directly */
  int status = data ? lade_tensor_store_open(&params, &error, &store) : -1;
  if (!status && *lade_tensor_store_note(store))
    printf("%s\n", lade_tensor_store_note(store));
  if (!status)
    status = put_all(store, data, &error);
  if (!status)
    status = get_all(store, data, &error);
  double weight = 0.5; /* unaligned memory works too, with a copy */
  if (!status)
    status = lade_tensor_store_put(store, "weight", &weight, sizeof(weight), &error);
  if (!status)
    status = lade_tensor_store_get(store, "weight", &weight, sizeof(weight), &error);
  if (!status && !lade_tensor_store_get_info(store, &info))
    printf("weight: %.1f\n%llu of %llu MiB used, by %s\n", weight, (unsigned long long)info.used_bytes >> 20,
           (unsigned long long)info.budget_bytes >> 20, info.uses_io_uring ? "io_uring" : "threads");
  if (status)
    fprintf(stderr, "%s\n", error.text);
  lade_tensor_store_close(store);
  free(data);
  return status ? 1 : 0;
}
