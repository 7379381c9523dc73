/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lade's collectives next to MPI's own, on the same ranks, buffers and rounds: mpirun -n 8 bench-comm [BYTES [ROUNDS]].
 *
 * BYTES is the whole vector per rank: an all_reduce's operand, a reduce_scatter's input and an all_gather's output.
 * Each round runs every series once, between two barriers; ratios are taken within rounds, and the median round counts.
 * "direct" has its buffers in shared memory (lade_comm_alloc). "arena" has them in a registered chunk of a device, as
 * in training, at another offset in each rank. "staged" has them in private memory, like MPI.
 *
 * Then the same number of small tensors, as in a bucket of gradients, one by one and as a list.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/base.h"
#include "base/cpu.h"
#include "parallel/comm.h"

#define ROUNDS_MAX 101
#define N_SIZES_MAX 1024
#define N_SMALL LADE_COMM_LIST_MAX
#define SMALL_ELEMENTS 4096

extern char **environ;

enum op { ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER, N_OPS };
enum way { DIRECT, ARENA, STAGED, MPI, N_WAYS };

static const char *const op_names[N_OPS] = {"all_reduce", "reduce_scatter", "all_gather"};
static const char *const way_names[MPI] = {"direct", "arena", "staged"};
static const enum lade_collective_kind kinds[N_OPS] = {LADE_ALL_REDUCE, LADE_REDUCE_SCATTER, LADE_ALL_GATHER};

struct bench {
  lade_comm *comm;
  int rank, size, n_rounds;
  uint64_t n; /* elements of the whole vector */
  float *src[N_WAYS], *dst[N_WAYS];
  lade_device *device; /* of the arena */
  lade_chunk *chunk;
  struct lade_comm_range arena;
  bool is_registered;
  int counts[N_SIZES_MAX];
  double ms[N_OPS][N_WAYS][ROUNDS_MAX];
  double small_ms[2][ROUNDS_MAX]; /* one by one, and as a list */
};

static void die(const struct bench *bench, const char *why)
{
  fprintf(stderr, "bench-comm: rank %d: %s\n", bench->rank, why);
  MPI_Abort(MPI_COMM_WORLD, 1);
}

static void lade_run(struct bench *bench, enum lade_collective_kind kind, uint64_t n, float *src, float *dst)
{
  struct lade_collective c = {.kind = kind, .dtype = LADE_F32, .n = n, .src = src, .dst = dst};
  struct lade_error error;
  if (lade_comm_run(bench->comm, &c, &error))
    die(bench, error.text);
}

static void mpi_run(struct bench *bench, enum op op)
{
  int n = (int)bench->n, each = n / bench->size;
  float *src = bench->src[MPI], *dst = bench->dst[MPI];
  if (op == ALL_REDUCE)
    MPI_Allreduce(src, dst, n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  else if (op == REDUCE_SCATTER)
    MPI_Reduce_scatter(src, dst, bench->counts, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  else
    MPI_Allgather(src, each, MPI_FLOAT, dst, each, MPI_FLOAT, MPI_COMM_WORLD);
}

static double series_run(struct bench *bench, enum op op, enum way way)
{
  lade_run(bench, LADE_BARRIER, 0, NULL, NULL);
  int64_t begin_ns = lade_now_ns();
  if (way == MPI)
    mpi_run(bench, op);
  else
    lade_run(bench, kinds[op], op == ALL_REDUCE ? bench->n : bench->n / (uint64_t)bench->size, bench->src[way],
             bench->dst[way]);
  lade_run(bench, LADE_BARRIER, 0, NULL, NULL);
  return (double)(lade_now_ns() - begin_ns) * 1e-6;
}

/* Time reductions of N_SMALL tensors of the arena. */
static double small_run(struct bench *bench, bool is_list)
{
  struct lade_collective items[N_SMALL];
  struct lade_error error;
  for (uint64_t i = 0; i < N_SMALL; i++)
    items[i] = (struct lade_collective){.kind = LADE_ALL_REDUCE, .dtype = LADE_F32, .n = SMALL_ELEMENTS,
                                        .src = bench->src[ARENA] + i * SMALL_ELEMENTS,
                                        .dst = bench->dst[ARENA] + i * SMALL_ELEMENTS};
  lade_run(bench, LADE_BARRIER, 0, NULL, NULL);
  int64_t begin_ns = lade_now_ns();
  for (int i = 0; i < N_SMALL; i += is_list ? N_SMALL : 1)
    if (lade_comm_run_list(bench->comm, &(struct lade_comm_list){items + i, is_list ? N_SMALL : 1}, &error))
      die(bench, error.text);
  lade_run(bench, LADE_BARRIER, 0, NULL, NULL);
  return (double)(lade_now_ns() - begin_ns) * 1e-6;
}

/* Check that every way gives equal values: small whole numbers, whose sums are exact in any order. */
static void results_compare(struct bench *bench, enum op op)
{
  uint64_t n = op == REDUCE_SCATTER ? bench->n / (uint64_t)bench->size : bench->n;
  for (int way = 0; way < MPI; way++)
    if (memcmp(bench->dst[way], bench->dst[MPI], n * sizeof(float)))
      die(bench, "results differ from MPI's");
}

/* Make a rank's arena, as its executor does; the offset of the buffers differs from rank to rank. */
static void arena_make(struct bench *bench)
{
  const struct lade_host_device_params params = {.struct_size = sizeof(params)};
  const uint64_t bytes = bench->n * sizeof(float), below = (uint64_t)bench->rank * 4096;
  struct lade_error error = {.text = "no memory"};
  uint64_t address = 0;
  struct lade_comm_range *arena = &bench->arena;
  arena->bytes = lade_align_up(2 * bytes + below, 2 << 20);
  if (lade_device_open_host(&params, &error, &bench->device) ||
      lade_device_reserve(bench->device, arena->bytes, &address) ||
      lade_device_chunk_create_shared(bench->device, arena->bytes, &bench->chunk) ||
      lade_device_map(bench->device, address, bench->chunk) ||
      lade_device_chunk_export(bench->device, bench->chunk, &arena->descriptor))
    die(bench, error.text);
  arena->data = (void *)(uintptr_t)address;
  if (lade_comm_register(bench->comm, arena, &error, &bench->is_registered))
    die(bench, error.text);
  if (!bench->is_registered && bench->rank == 0)
    printf("an arena cannot be registered here: it is staged\n");
  bench->src[ARENA] = (float *)(void *)((char *)arena->data + below);
  bench->dst[ARENA] = bench->src[ARENA] + bench->n;
}

static void buffers_make(struct bench *bench)
{
  const uint64_t bytes = bench->n * sizeof(float);
  struct lade_error error;
  void *src = NULL, *dst = NULL;
  if (lade_comm_alloc(bench->comm, bytes, &error, &src) || lade_comm_alloc(bench->comm, bytes, &error, &dst))
    die(bench, error.text);
  bench->src[DIRECT] = src;
  bench->dst[DIRECT] = dst;
  arena_make(bench);
  for (int way = STAGED; way < N_WAYS; way++) {
    bench->src[way] = aligned_alloc(4096, bytes);
    bench->dst[way] = aligned_alloc(4096, bytes);
  }
  for (int way = 0; way < N_WAYS; way++) {
    if (!bench->src[way] || !bench->dst[way])
      die(bench, "no memory");
    for (uint64_t i = 0; i < bench->n; i++)
      bench->src[way][i] = (float)((i * 7 + (uint64_t)bench->rank * 13) % 101);
    memset(bench->dst[way], 0, bytes);
  }
}

static int double_compare(const void *a, const void *b)
{
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

/* Return the median over rounds of numerator / denominator; a NULL denominator is one. */
static double median(const double *numerator, const double *denominator, int n)
{
  double sorted[ROUNDS_MAX];
  for (int i = 0; i < n; i++)
    sorted[i] = numerator[i] / (denominator ? denominator[i] : 1);
  qsort(sorted, (size_t)n, sizeof(*sorted), double_compare);
  return n % 2 ? sorted[n / 2] : (sorted[n / 2 - 1] + sorted[n / 2]) / 2;
}

static void results_print(const struct bench *bench)
{
  printf("%d ranks on %d cores, %.0f MiB, %d rounds; ms, and MPI's time over ours\n", bench->size, lade_cpu_count(),
         (double)bench->n * 4 / (1 << 20), bench->n_rounds);
  for (int op = 0; op < N_OPS; op++) {
    const double (*ms)[ROUNDS_MAX] = bench->ms[op];
    printf("%-15s MPI %8.2f", op_names[op], median(ms[MPI], NULL, bench->n_rounds));
    for (int way = 0; way < MPI; way++)
      printf("   %s %7.2f (%5.2f times)", way_names[way], median(ms[way], NULL, bench->n_rounds),
             median(ms[MPI], ms[way], bench->n_rounds));
    printf("\n");
  }
  if (bench->n < N_SMALL * SMALL_ELEMENTS)
    return;
  printf("all_reduce of %d tensors of %d KiB: one by one %.2f, a list %.2f (%.2f times)\n", N_SMALL,
         SMALL_ELEMENTS * 4 / 1024, median(bench->small_ms[0], NULL, bench->n_rounds),
         median(bench->small_ms[1], NULL, bench->n_rounds),
         median(bench->small_ms[0], bench->small_ms[1], bench->n_rounds));
}

static void bench_finish(struct bench *bench)
{
  if (bench->is_registered)
    lade_comm_unregister(bench->comm, bench->arena.data);
  lade_comm_free(bench->comm, bench->src[DIRECT]);
  lade_comm_free(bench->comm, bench->dst[DIRECT]);
  lade_comm_close(bench->comm);
  close(bench->arena.descriptor);
  lade_device_chunk_release(bench->device, bench->chunk);
  lade_device_release(bench->device, (uint64_t)(uintptr_t)bench->arena.data, bench->arena.bytes);
  lade_device_close(bench->device);
}

int main(int argc, char **argv)
{
  static struct bench bench = {.n_rounds = 11};
  uint64_t bytes = 64 << 20;
  int level;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
  if ((argc > 1 && lade_size_parse(argv[1], &bytes)) || bytes > 1u << 30)
    die(&bench, "usage: mpirun -n N bench-comm [BYTES [ROUNDS]], at most 1 GiB");
  bench.n_rounds = argc > 2 ? LADE_MAX(1, LADE_MIN(ROUNDS_MAX, atoi(argv[2]))) : bench.n_rounds;
  struct lade_cpu cpu = lade_cpu_get();
  struct lade_kernels kernels;
  struct lade_launch launch;
  struct lade_error error;
  lade_kernels_init(&kernels, &cpu);
  struct lade_comm_params params = {.struct_size = sizeof(params), .engine = LADE_COMM_MPI, .launch = &launch,
                                    .kernels = &kernels};
  if (lade_launch_read(environ, &error, &launch) || lade_comm_open(&params, &error, &bench.comm))
    die(&bench, error.text);
  bench.rank = lade_comm_rank(bench.comm);
  bench.size = LADE_MIN(lade_comm_size(bench.comm), N_SIZES_MAX);
  bench.n = lade_align_up(bytes / 4 / (uint64_t)bench.size, 1024) * (uint64_t)bench.size;
  for (int i = 0; i < bench.size; i++)
    bench.counts[i] = (int)bench.n / bench.size;
  buffers_make(&bench);
  for (int round = -1; round < bench.n_rounds; round++) { /* the first touches pages and makes connections */
    for (int op = 0; op < N_OPS; op++) {
      for (int i = 0; i < N_WAYS; i++) { /* in rotation: the first way changes from round to round */
        enum way way = (enum way)((i + round + 1) % N_WAYS);
        bench.ms[op][way][LADE_MAX(round, 0)] = series_run(&bench, op, way);
      }
      results_compare(&bench, op);
    }
    for (int i = 0; i < 2 && bench.n >= N_SMALL * SMALL_ELEMENTS; i++) {
      const bool is_list = (i + round) & 1;
      bench.small_ms[is_list][LADE_MAX(round, 0)] = small_run(&bench, is_list);
    }
  }
  if (bench.rank == 0)
    results_print(&bench);
  bench_finish(&bench);
  MPI_Finalize();
  return 0;
}
