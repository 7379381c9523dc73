/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `lade bench store`: sequential bandwidth of the store compared with fio's, on one file system, in one run.
 *
 * A round is one pass of writing and one of reading by each series. The series: fio with buffers on huge pages; the
 * store with its default engine; the same with checksums; durable state; the store on threads without and with
 * checksums; and fio with its defaults, whose processor time is the usual cost. Each series has a file of its own,
 * written once beforehand.
 *
 * Durable state has checksums too. Its writing pass writes a generation while it keeps the one before, and ends with
 * the publication. The difference to the series with checksums is the cost of `--durable` per step. Its files have
 * names, so they are in a directory of their own, and a signal ends the run after a pass, not within it.
 *
 * Each round begins with another series, so that a drive that slows down over minutes or a neighbour's load affects all
 * series alike. A ratio is the median over rounds of a round's two rates, which cancels drift. Rates are medians too.
 *
 * The processor time of the store is this process's, with its threads. Time in interrupts is not counted.
 */
#include <errno.h>
#include <jansson.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/base.h"
#include "offload/durable.h"
#include "offload/staging.h"
#include "offload/store.h"
#include "tools/cli/options.h"
#include "tools/cli/signals.h"
#include "tools/cli/verbs.h"
#include "tools/report/report.h"
#include "tools/bench/bench_fio.h"

#define N_ROUNDS_MAX 99 /* the maximum in the table of options */
#define TRANSFER_BYTES (8u << 20)
#define N_TRANSFERS 16 /* in flight at once, each with its part of the slab */

enum { WRITE, READ, N_OPS };
enum { FIO, STORE, STORE_CHECKED, DURABLE, POSIX, POSIX_CHECKED, FIO_PLAIN, N_SERIES };
enum { BEST, THREADS, N_STORES }; /* a store with its default engine; one with threads */

static const char *const series_names[N_SERIES] = {
    "fio", "store", "store, checksums", "durable state", "threads", "threads, checksums", "fio, default buffers"};

struct store_sample {
  double bytes_per_s, cpu_s_per_gb;
};

struct store_bench {
  const char *dir;          /* one directory; commas in it are plain characters */
  char store_dir[PATH_MAX]; /* as a list for a store */
  uint64_t bytes;
  int n_rounds;
  bool has_fio;
  struct lade_staging staging;
  struct fio_file file;
  lade_store *stores[N_STORES];
  struct lade_extent extents[N_STORES];
  uint64_t generation; /* of the last write to the stores */
  char durable_dir[PATH_MAX]; /* "" until created */
  char durable_list[PATH_MAX];
  lade_durable *durable;
  uint64_t durable_generation; /* written last */
  struct store_sample samples[N_SERIES][N_OPS][N_ROUNDS_MAX];
  double publish_s[N_ROUNDS_MAX]; /* of the writing passes of durable state */
};

/* ---- measuring ---- */

static double cpu_seconds(void)
{
  struct rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
         (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1e-6;
}

/* The store and extent of one pass, and how its blocks are checked. */
struct store_pass {
  lade_store *store;
  struct lade_extent extent;
  enum lade_store_check check;
  uint64_t generation;
};

static struct lade_transfer transfer_of(const struct store_bench *bench, const struct store_pass *pass, int op,
                                        uint64_t i)
{
  return (struct lade_transfer){
      .op = op == WRITE ? LADE_STORE_WRITE : LADE_STORE_READ,
      .check = pass->check,
      .extent = pass->extent,
      .offset = i * TRANSFER_BYTES,
      .bytes = LADE_MIN(TRANSFER_BYTES, bench->bytes - i * TRANSFER_BYTES),
      .data = bench->staging.data + i % N_TRANSFERS * TRANSFER_BYTES,
      .identity = {.tensor = (uint32_t)i, .generation = pass->generation},
  };
}

/* Move the whole extent with N_TRANSFERS in flight. After a failure wait for those in flight. */
static int transfers_run(struct store_bench *bench, const struct store_pass *pass, int op, struct lade_error *error)
{
  struct lade_transfer transfers[N_TRANSFERS];
  uint64_t n = (uint64_t)lade_div_up((int64_t)bench->bytes, TRANSFER_BYTES), n_begun = 0, n_done = 0;
  int status = 0;
  while (n_done < n_begun || (!status && n_begun < n)) {
    bool is_full = n_begun - n_done == N_TRANSFERS;
    if (!status && !is_full && n_begun < n) {
      struct lade_transfer *transfer = &transfers[n_begun % N_TRANSFERS];
      *transfer = transfer_of(bench, pass, op, n_begun);
      status = lade_store_submit(pass->store, transfer);
      LADE_ASSERT(!status); /* its arguments are valid */
      n_begun += !status;
      continue;
    }
    int code = lade_store_wait(pass->store, &transfers[n_done++ % N_TRANSFERS], status ? NULL : error);
    status = status ? status : code;
  }
  return status;
}

/*
 * Write the next generation while keeping the last one, or read the last one. @ret_publish_s: seconds of the
 * publication.
 */
static int durable_run(struct store_bench *bench, int op, double *ret_publish_s, struct lade_error *error)
{
  bench->durable_generation += op == WRITE;
  const struct store_pass pass = {lade_durable_store(bench->durable),
                                  lade_durable_slot(bench->durable, bench->durable_generation), LADE_CHECK_STORE,
                                  bench->durable_generation};
  int status = transfers_run(bench, &pass, op, error);
  if (status || op == READ)
    return status;
  int64_t start_ns = lade_now_ns();
  status = lade_durable_publish(bench->durable, bench->durable_generation, "", 0, error);
  *ret_publish_s = (double)(lade_now_ns() - start_ns) * 1e-9;
  return status;
}

static int store_run(struct store_bench *bench, int series, int op, struct lade_error *error)
{
  const int store = series < POSIX ? BEST : THREADS;
  const bool is_checked = series == STORE_CHECKED || series == POSIX_CHECKED;
  bench->generation += op == WRITE;
  const struct store_pass pass = {bench->stores[store], bench->extents[store],
                                  is_checked ? LADE_CHECK_STORE : LADE_CHECK_CALLER, bench->generation};
  return transfers_run(bench, &pass, op, error);
}

/* Run one pass by this process. */
static int own_pass(struct store_bench *bench, int series, int op, int round, struct lade_error *error)
{
  double cpu = cpu_seconds();
  int64_t start_ns = lade_now_ns();
  int status = series == DURABLE ? durable_run(bench, op, &bench->publish_s[round], error)
                                 : store_run(bench, series, op, error);
  double seconds = (double)(lade_now_ns() - start_ns) * 1e-9;
  if (!status)
    bench->samples[series][op][round] =
        (struct store_sample){.bytes_per_s = (double)bench->bytes / seconds,
                              .cpu_s_per_gb = (cpu_seconds() - cpu) / ((double)bench->bytes * 1e-9)};
  return status;
}

static int fio_pass(struct store_bench *bench, int op, bool has_huge_pages, struct store_sample *ret_sample,
                    struct lade_error *error)
{
  struct fio_result result;
  if (!bench->has_fio)
    return 0;
  int status = fio_run(&bench->file, op == WRITE, has_huge_pages, &result, error);
  if (!status)
    *ret_sample = (struct store_sample){result.bytes_per_s, result.cpu_s_per_gb};
  return status;
}

static int series_run(struct store_bench *bench, int series, int round, struct lade_error *error)
{
  int status = 0;
  for (int op = 0; op < N_OPS && !status; op++) {
    if (series == FIO || series == FIO_PLAIN)
      status = fio_pass(bench, op, series == FIO, &bench->samples[series][op][round], error);
    else
      status = own_pass(bench, series, op, round, error);
  }
  return status;
}

static int rounds_run(struct store_bench *bench, struct lade_error *error)
{
  int status = 0;
  for (int round = 0; round < bench->n_rounds; round++) {
    for (int i = 0; i < N_SERIES && !status && !signals_get(); i++)
      status = series_run(bench, (round + i) % N_SERIES, round, error);
  }
  return status;
}

/* ---- preparing ---- */

/* Write @dir as a list of directories, in which a comma in a name is doubled. False: too long. */
static bool list_write(const char *dir, char *ret_list, size_t list_bytes)
{
  size_t n = 0;
  for (; *dir && n + 2 < list_bytes; dir++) {
    ret_list[n++] = *dir;
    if (*dir == ',')
      ret_list[n++] = ',';
  }
  ret_list[n] = '\0';
  return !*dir;
}

static int store_begin(struct store_bench *bench, int i, struct lade_error *error)
{
  struct lade_store_params params = {.struct_size = sizeof(params), .dir = bench->store_dir,
                                     .engine = i == BEST ? LADE_STORE_AUTO : LADE_STORE_POSIX};
  int status = lade_store_open(&params, error, &bench->stores[i]);
  if (status)
    return status;
  status = lade_store_reserve(bench->stores[i], bench->bytes, &bench->extents[i]);
  if (status)
    return lade_error_set(error, status, "%s: no room for the bytes to be measured", bench->dir);
  return lade_store_prepare(bench->stores[i], error);
}

/* Make durable state in a directory of its own, apart from any run's state. Publish its first generation. */
static int durable_begin(struct store_bench *bench, struct lade_error *error)
{
  double publish_s;
  snprintf(bench->durable_dir, sizeof(bench->durable_dir), "%s/lade-bench-XXXXXX", bench->dir);
  if (!mkdtemp(bench->durable_dir)) {
    int code = -errno;
    bench->durable_dir[0] = '\0';
    return lade_error_set(error, code, "%s: no directory can be made in it: %s", bench->dir, strerror(-code));
  }
  if (!list_write(bench->durable_dir, bench->durable_list, sizeof(bench->durable_list)))
    return lade_error_set(error, -ENAMETOOLONG, "--dir: its name is too long");
  const struct lade_durable_params params = {.struct_size = sizeof(params), .dir = bench->durable_list};
  int status = lade_durable_open(&params, error, &bench->durable);
  if (!status)
    status = lade_durable_prepare(bench->durable, bench->bytes, 0, error);
  if (!status)
    lade_store_pin(lade_durable_store(bench->durable), bench->staging.data, bench->staging.bytes);
  bench->durable_generation = UINT64_MAX; /* the first one published is 0 */
  return status ? status : durable_run(bench, WRITE, &publish_s, error);
}

static void durable_end(struct store_bench *bench)
{
  static const char *const names[] = {LADE_DURABLE_DATA, LADE_DURABLE_JOURNAL};
  char path[PATH_MAX + 64];
  lade_durable_close(bench->durable);
  for (size_t i = 0; i < LADE_COUNT(names) && *bench->durable_dir; i++) {
    snprintf(path, sizeof(path), "%s/%s", bench->durable_dir, names[i]);
    unlink(path);
  }
  if (*bench->durable_dir)
    rmdir(bench->durable_dir);
}

/* Try fio on a small file first, to know that it is installed and works before gigabytes are written for it. */
static int fio_begin(struct store_bench *bench, struct lade_error *error)
{
  struct fio_result result;
  struct fio_file trial = {.fd = -1};
  int status = fio_file_open(&trial, bench->dir, TRANSFER_BYTES, bench->staging.data, TRANSFER_BYTES, error);
  if (status)
    return status;
  status = fio_run(&trial, true, true, &result, error);
  fio_file_close(&trial);
  if (status) {
    fprintf(stderr, "lade bench store: %s%s; the store is measured alone\n", error->text,
            status == -ENOENT ? " (it is the package called fio)" : "");
    *error = (struct lade_error){0};
    return 0;
  }
  bench->has_fio = true;
  return fio_file_open(&bench->file, bench->dir, bench->bytes, bench->staging.data, TRANSFER_BYTES, error);
}

static int bench_begin(struct store_bench *bench, struct lade_error *error)
{
  struct lade_store_info info;
  int status = 0;
  for (int i = 0; i < N_STORES && !status; i++)
    status = store_begin(bench, i, error);
  if (status)
    return status;
  lade_store_get_info(bench->stores[BEST], &info);
  status = lade_staging_init(&bench->staging, (uint64_t)N_TRANSFERS * TRANSFER_BYTES, info.numa_node, NULL);
  if (status)
    return lade_error_set(error, status, "no memory for the buffers, %u MiB", N_TRANSFERS * TRANSFER_BYTES >> 20);
  memset(bench->staging.data, 0x3c, bench->staging.bytes);
  lade_store_pin(bench->stores[BEST], bench->staging.data, bench->staging.bytes); /* as a run does */
  if (*lade_store_note(bench->stores[BEST]))
    fprintf(stderr, "lade bench store: %s\n", lade_store_note(bench->stores[BEST]));
  status = durable_begin(bench, error);
  return status ? status : fio_begin(bench, error);
}

static void bench_end(struct store_bench *bench)
{
  for (int i = 0; i < N_STORES; i++)
    lade_store_close(bench->stores[i]);
  durable_end(bench);
  fio_file_close(&bench->file);
  lade_staging_finish(&bench->staging);
}

/* ---- results ---- */

static int double_compare(const void *a, const void *b)
{
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static double median(double *values, int n)
{
  qsort(values, (size_t)n, sizeof(*values), double_compare);
  return n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

static double rate_of(const struct store_bench *bench, int series, int op)
{
  double values[N_ROUNDS_MAX];
  for (int i = 0; i < bench->n_rounds; i++)
    values[i] = bench->samples[series][op][i].bytes_per_s;
  return median(values, bench->n_rounds);
}

static double cpu_of(const struct store_bench *bench, int series, int op)
{
  double values[N_ROUNDS_MAX];
  for (int i = 0; i < bench->n_rounds; i++)
    values[i] = bench->samples[series][op][i].cpu_s_per_gb;
  return median(values, bench->n_rounds);
}

static double publish_s_of(const struct store_bench *bench)
{
  double values[N_ROUNDS_MAX];
  memcpy(values, bench->publish_s, sizeof(values));
  return median(values, bench->n_rounds);
}

/* Return the median ratio to fio's rate in the same round; NAN without fio. */
static double ratio_of(const struct store_bench *bench, int series, int op)
{
  double values[N_ROUNDS_MAX];
  if (!bench->has_fio)
    return NAN;
  for (int i = 0; i < bench->n_rounds; i++)
    values[i] = bench->samples[series][op][i].bytes_per_s / bench->samples[FIO][op][i].bytes_per_s;
  return median(values, bench->n_rounds);
}

static void bench_print(const struct store_bench *bench)
{
  printf("%-22s %24s %24s %19s\n", "", "write", "read", "CPU s/GB (w, r)");
  for (int series = 0; series < N_SERIES; series++) {
    if (!bench->has_fio && (series == FIO || series == FIO_PLAIN))
      continue;
    printf("%-22s", series_names[series]);
    for (int op = 0; op < N_OPS; op++) {
      printf(" %9.2f GB/s", rate_of(bench, series, op) * 1e-9);
      if (bench->has_fio)
        printf("  %4.2f fio", ratio_of(bench, series, op));
      else
        printf("%10s", "");
    }
    printf("    %7.3f %7.3f\n", cpu_of(bench, series, WRITE), cpu_of(bench, series, READ));
  }
  printf("publishing a generation of durable state: %.2f ms, within its writes\n", 1e3 * publish_s_of(bench));
}

static json_t *number_or_null(double value)
{
  return isfinite(value) ? json_real(value) : json_null();
}

/* Add @value as @before, the operation, @after: for example "read_ratio". */
static int entry_add(json_t *object, const char *before, int op, const char *after, double value)
{
  char name[64];
  snprintf(name, sizeof(name), "%s%s%s", before, op == WRITE ? "write" : "read", after);
  return json_object_set_new(object, name, number_or_null(value));
}

static int bench_dump(const struct store_bench *bench)
{
  struct lade_store_info info;
  lade_store_get_info(bench->stores[BEST], &info);
  json_t *object = json_pack("{s:i, s:i, s:I, s:s, s:b}", "schema_version", REPORT_SCHEMA_VERSION, "rounds",
                             bench->n_rounds, "bytes", (json_int_t)bench->bytes, "engine", info.engine, "has_fio",
                             bench->has_fio);
  int status = object ? 0 : -1;
  for (int op = 0; op < N_OPS; op++) {
    double none = bench->has_fio ? 1 : NAN;
    status |= entry_add(object, "fio_", op, "_bytes_per_s", none * rate_of(bench, FIO, op));
    status |= entry_add(object, "store_", op, "_bytes_per_s", rate_of(bench, STORE, op));
    status |= entry_add(object, "", op, "_ratio", ratio_of(bench, STORE, op));
    status |= entry_add(object, "", op, "_checked_ratio", ratio_of(bench, STORE_CHECKED, op));
    status |= entry_add(object, "", op, "_durable_ratio", ratio_of(bench, DURABLE, op));
    status |= entry_add(object, "posix_", op, "_ratio", ratio_of(bench, POSIX, op));
    status |= entry_add(object, "posix_", op, "_checked_ratio", ratio_of(bench, POSIX_CHECKED, op));
    status |= entry_add(object, "store_", op, "_cpu_s_per_gb", cpu_of(bench, STORE, op));
    status |= entry_add(object, "store_", op, "_checked_cpu_s_per_gb", cpu_of(bench, STORE_CHECKED, op));
    status |= entry_add(object, "store_", op, "_durable_cpu_s_per_gb", cpu_of(bench, DURABLE, op));
    status |= entry_add(object, "fio_", op, "_cpu_s_per_gb", none * cpu_of(bench, FIO, op));
    status |= entry_add(object, "fio_default_", op, "_cpu_s_per_gb", none * cpu_of(bench, FIO_PLAIN, op));
  }
  status |= json_object_set_new(object, "durable_publish_seconds", json_real(publish_s_of(bench)));
  if (!status)
    return json_print(object);
  json_decref(object);
  return -ENOMEM;
}

/* ---- the verb ---- */

/* Take the options, and check them beyond the limits in the table. */
static int options_take(const struct options *options, struct store_bench *bench, struct lade_error *error)
{
  if (!options->bench_dir)
    return lade_error_set(error, -EINVAL, "--dir DIR is missing: a directory on the drive to measure");
  if (options->bench_bytes % TRANSFER_BYTES)
    return lade_error_set(error, -EINVAL, "--size: expected a multiple of 8MiB, like 512MiB or 4GiB");
  if (!list_write(options->bench_dir, bench->store_dir, sizeof(bench->store_dir)))
    return lade_error_set(error, -EINVAL, "--dir: its name is too long");
  bench->dir = options->bench_dir;
  bench->bytes = options->bench_bytes;
  bench->n_rounds = (int)options->n_rounds;
  return 0;
}

static int bench_run(struct store_bench *bench, const struct options *options, struct lade_error *error)
{
  int status = options_take(options, bench, error);
  if (!status)
    status = bench_begin(bench, error);
  if (!status)
    status = rounds_run(bench, error);
  if (!status && !signals_get() && options->is_json)
    status = bench_dump(bench);
  else if (!status && !signals_get())
    bench_print(bench);
  bench_end(bench);
  return status;
}

int bench_store_main(int argc, char **argv)
{
  struct options options;
  struct lade_error error = {0};
  int code = options_read(VERB_BENCH_STORE, argc, argv, &options);
  if (code == OPTIONS_GO) {
    struct store_bench *bench = calloc(1, sizeof(*bench));
    int status = -ENOMEM;
    if (bench) {
      signals_init();
      bench->file.fd = -1;
      status = bench_run(bench, &options, &error);
    }
    free(bench);
    /* a terminal's signal reaches fio too, so that its pass may have failed */
    code = signals_get() ? 128 + signals_get() : status ? exit_fail("bench store", status, &error) : LADE_EXIT_DONE;
  }
  options_finish(&options);
  return code;
}
