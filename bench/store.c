/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sequential bandwidth of the store beside fio's on the same file system, in the same run:
 *
 *   bench-store DIR [SIZE [ROUNDS [PIECE [DEPTH]]]]
 *
 * Each round writes and reads SIZE bytes with every engine, without and with checksums, then has fio do it (if it is
 * installed: io_uring, O_DIRECT, 8 MiB requests, 32 at once, overwriting, memory on huge pages). Printed are the
 * medians over the rounds in GB/s and their ratios to fio's; ratios are what carries over to another machine.
 */
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/base.h"
#include "offload/staging.h"
#include "offload/store.h"

#define N_ROUNDS_MAX 32
#define TRANSFER_BYTES (8u << 20)
#define N_TRANSFERS 16 /* under way at once, each with its part of the slab */

enum { WRITE, READ, N_OPS };

struct series {
  const char *name;
  enum lade_store_engine engine;
  bool is_checked;
  double bytes_per_s[N_OPS][N_ROUNDS_MAX];
};

struct bench {
  const char *dir;
  uint64_t bytes;
  int n_rounds;
  uint32_t piece_bytes;
  int depth;
  struct lade_staging staging;
};

static _Noreturn void die(const char *text)
{
  fprintf(stderr, "bench-store: %s\n", text);
  exit(1);
}

/* One pass over the extent with N_TRANSFERS under way. */
static double pass_run(const struct bench *bench, lade_store *store, struct lade_extent extent, int op, bool is_checked)
{
  struct lade_transfer transfers[N_TRANSFERS];
  struct lade_error error;
  uint64_t n = bench->bytes / TRANSFER_BYTES;
  int64_t start_ns = lade_now_ns();
  for (uint64_t i = 0; i < n + N_TRANSFERS; i++) {
    struct lade_transfer *transfer = &transfers[i % N_TRANSFERS];
    if (i >= N_TRANSFERS && i - N_TRANSFERS < n && lade_store_wait(store, transfer, &error))
      die(error.text);
    if (i >= n)
      continue;
    *transfer = (struct lade_transfer){
        .op = op == WRITE ? LADE_STORE_WRITE : LADE_STORE_READ,
        .check = is_checked ? LADE_CHECK_STORE : LADE_CHECK_CALLER,
        .extent = extent,
        .offset = i * TRANSFER_BYTES,
        .bytes = TRANSFER_BYTES,
        .data = bench->staging.data + i % N_TRANSFERS * TRANSFER_BYTES,
    };
    if (lade_store_submit(store, transfer))
      die("a transfer was refused");
  }
  return (double)n * TRANSFER_BYTES * 1e9 / (double)(lade_now_ns() - start_ns);
}

static void store_run(const struct bench *bench, struct series *series, int round)
{
  struct lade_store_params params = {.struct_size = sizeof(params), .dir = bench->dir, .engine = series->engine,
                                     .piece_bytes = bench->piece_bytes, .depth = bench->depth};
  struct lade_error error;
  struct lade_extent extent;
  lade_store *store;
  if (lade_store_open(&params, &error, &store))
    die(error.text);
  if (lade_store_reserve(store, bench->bytes, &extent))
    die("cannot reserve");
  if (lade_store_prepare(store, &error))
    die(error.text);
  for (int op = 0; op < N_OPS; op++)
    series->bytes_per_s[op][round] = pass_run(bench, store, extent, op, series->is_checked);
  lade_store_close(store);
}

/* fio's rate in bytes per second, 0 without fio. */
static double fio_run(const struct bench *bench, int op)
{
  char command[1024];
  const char *name = op == WRITE ? "write" : "read";
  snprintf(command, sizeof(command),
           "GLIBC_TUNABLES=glibc.malloc.hugetlb=1 fio --name=bench --filename=%s/bench-store.fio --size=%" PRIu64
           " --rw=%s --ioengine=io_uring --direct=1 --bs=8m --iodepth=32 --overwrite=1 --iomem=malloc"
           " --iomem_align=2097152 --output-format=json 2>/dev/null",
           bench->dir, bench->bytes, name);
  FILE *pipe = popen(command, "r");
  json_t *root = pipe ? json_loadf(pipe, JSON_DISABLE_EOF_CHECK, NULL) : NULL;
  double rate = json_number_value(json_object_get(
      json_object_get(json_array_get(json_object_get(root, "jobs"), 0), name), "bw_bytes"));
  json_decref(root);
  if (pipe)
    pclose(pipe);
  return rate;
}

static int double_compare(const void *a, const void *b)
{
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static double median(const double *values, int n)
{
  double sorted[N_ROUNDS_MAX];
  memcpy(sorted, values, (size_t)n * sizeof(*sorted));
  qsort(sorted, (size_t)n, sizeof(*sorted), double_compare);
  return n % 2 ? sorted[n / 2] : (sorted[n / 2 - 1] + sorted[n / 2]) / 2;
}

static void series_print(const struct bench *bench, const struct series *series, const double *fio)
{
  printf("%-24s", series->name);
  for (int op = 0; op < N_OPS; op++) {
    double rate = median(series->bytes_per_s[op], bench->n_rounds);
    printf("  %s %6.2f GB/s", op == WRITE ? "write" : "read", rate / 1e9);
    if (fio[op] > 0)
      printf(" (%.2f of fio)", rate / fio[op]);
  }
  printf("\n");
}

int main(int argc, char **argv)
{
  static struct series all[] = {
      {.name = "fio"},
      {.name = "io_uring", .engine = LADE_STORE_URING},
      {.name = "io_uring, checksums", .engine = LADE_STORE_URING, .is_checked = true},
      {.name = "threads", .engine = LADE_STORE_POSIX},
      {.name = "threads, checksums", .engine = LADE_STORE_POSIX, .is_checked = true},
  };
  struct bench bench = {.dir = argc > 1 ? argv[1] : ".", .bytes = 1ull << 30, .n_rounds = 5};
  uint64_t piece_bytes = 0;
  if ((argc > 2 && lade_size_parse(argv[2], &bench.bytes)) || bench.bytes < TRANSFER_BYTES ||
      (argc > 4 && lade_size_parse(argv[4], &piece_bytes)))
    die("usage: bench-store DIR [SIZE [ROUNDS [PIECE [DEPTH]]]]");
  bench.n_rounds = argc > 3 ? LADE_MAX(1, LADE_MIN(N_ROUNDS_MAX, atoi(argv[3]))) : bench.n_rounds;
  bench.piece_bytes = (uint32_t)piece_bytes;
  bench.depth = argc > 5 ? atoi(argv[5]) : 0;
  if (lade_staging_init(&bench.staging, (uint64_t)N_TRANSFERS * TRANSFER_BYTES, -1, NULL))
    die("no memory");
  memset(bench.staging.data, 0x3c, bench.staging.bytes);
  fio_run(&bench, WRITE); /* lays out its file */
  for (int round = 0; round < bench.n_rounds; round++) {
    for (int op = 0; op < N_OPS; op++)
      all[0].bytes_per_s[op][round] = fio_run(&bench, op);
    for (size_t i = 1; i < LADE_COUNT(all); i++)
      store_run(&bench, &all[i], round);
  }
  double fio[N_OPS];
  for (int op = 0; op < N_OPS; op++)
    fio[op] = median(all[0].bytes_per_s[op], bench.n_rounds);
  for (size_t i = fio[WRITE] > 0 ? 0 : 1; i < LADE_COUNT(all); i++)
    series_print(&bench, &all[i], fio);
  char path[4096];
  snprintf(path, sizeof(path), "%s/bench-store.fio", bench.dir);
  unlink(path);
  lade_staging_finish(&bench.staging);
  return 0;
}
