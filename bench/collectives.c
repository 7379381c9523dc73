/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Costs of NCCL as Lade uses it. The bytes of a GPU that communicators and first collectives take; the time of the
 * submitting thread in a small collective; messages of a pipeline between two processes.
 *
 *   lade launch -n N -- bench-collectives [--one-gpu] [BYTES]
 *
 * Each rank has the GPU of its number on its node; --one-gpu gives all of them the first, which NCCL allows since 2.30
 * with NCCL_MULTI_RANK_GPU_ENABLE=1. BYTES is the size of the large collectives [64 MiB]. NCCL_COMM_BLOCKING=0 has NCCL
 * make handles that are polled (comm_nccl.c), for comparison. Over the fake driver, times show only the cost of threads
 * and of polling.
 *
 * Rank 0 prints one JSON object. Bytes are those of rank 0, in use outside of chunks and beyond those before the
 * communicator. Microseconds are medians of N_ROUNDS rounds of N_PIECES pieces: until the thread has submitted a piece,
 * and until the last piece has ended. In the pipeline of two ranks, rank 0 submits the receive of an answer before its
 * message. So a receive waits on the GPU for work of the other process. Exits 77 without a GPU or NCCL.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "base/cpu.h"
#include "device/cuda.h"
#include "parallel/comm.h"

#define N_ROUNDS 9
#define N_PIECES 100 /* a queue holds 128 */
#define N_MESSAGES 32
#define MESSAGE_BYTES 65536u
#define TIMEOUT_MS 30000
#define MISSING 77

extern char **environ;

enum moment { COMMUNICATOR, SMALL, LARGE, OTHERS, AGAIN, N_MOMENTS };
static const char *const moment_names[N_MOMENTS] = {"communicator", "first_small", "first_large", "other_kinds",
                                                    "repeated"};

struct bench {
  lade_device *device;
  lade_comm *comm;
  lade_queue *queues[2]; /* 1: of receives */
  int rank, size;
  uint64_t opened_bytes, large_bytes;
  char *data;
  uint64_t in_use[N_MOMENTS];
  double submit_us[N_ROUNDS], run_us[N_ROUNDS];
};

static _Noreturn void die(const struct bench *bench, int status, const struct lade_error *error)
{
  fprintf(stderr, "bench-collectives: rank %d: %s\n", bench->rank, error->text[0] ? error->text : strerror(-status));
  exit(status == -ENODEV || status == -ENOSYS ? MISSING : 1);
}

static void must(const struct bench *bench, int status, const struct lade_error *error)
{
  if (status)
    die(bench, status, error);
}

static uint64_t in_use_get(const struct bench *bench)
{
  struct lade_cuda_memory memory = {0};
  struct lade_error error = {0};
  must(bench, lade_cuda_get_memory(bench->device, &memory), &error);
  return memory.outside_bytes - LADE_MIN(bench->opened_bytes, memory.outside_bytes);
}

/* ---- memory ---- */

static void kind_run(struct bench *bench, enum lade_collective_kind kind, uint64_t bytes)
{
  struct lade_error error = {0};
  const uint64_t n = LADE_MAX(bytes / sizeof(float) / (uint64_t)bench->size, 1);
  char *own = bench->data + (uint64_t)bench->rank * n * sizeof(float);
  const struct lade_collective call = {
      .kind = kind, .dtype = LADE_F32, .n = kind == LADE_ALL_REDUCE ? n * (uint64_t)bench->size : n,
      .src = kind == LADE_ALL_GATHER ? own : bench->data, .dst = kind == LADE_REDUCE_SCATTER ? own : bench->data};
  must(bench, lade_comm_run(bench->comm, &call, &error), &error);
}

static void memory_measure(struct bench *bench)
{
  bench->in_use[COMMUNICATOR] = in_use_get(bench);
  kind_run(bench, LADE_ALL_REDUCE, 4);
  bench->in_use[SMALL] = in_use_get(bench);
  kind_run(bench, LADE_ALL_REDUCE, bench->large_bytes);
  bench->in_use[LARGE] = in_use_get(bench);
  for (uint64_t bytes = 4; bytes <= bench->large_bytes; bytes *= 4) {
    kind_run(bench, LADE_ALL_REDUCE, bytes);
    kind_run(bench, LADE_ALL_GATHER, bytes);
    kind_run(bench, LADE_REDUCE_SCATTER, bytes);
  }
  bench->in_use[OTHERS] = in_use_get(bench);
  kind_run(bench, LADE_ALL_REDUCE, bench->large_bytes);
  bench->in_use[AGAIN] = in_use_get(bench);
}

/* ---- time ---- */

static void pieces_run(struct bench *bench, int round)
{
  const struct lade_collective sum = {.kind = LADE_ALL_REDUCE, .dtype = LADE_F32, .n = 1, .src = bench->data,
                                      .dst = bench->data};
  struct lade_comm_work works[N_PIECES];
  struct lade_error error = {0};
  uint64_t count = 0;
  kind_run(bench, LADE_ALL_REDUCE, 4);
  const int64_t begin_ns = lade_now_ns();
  for (int i = 0; i < N_PIECES; i++) {
    works[i] = (struct lade_comm_work){.list = {&sum, 1}};
    must(bench, lade_comm_launch(bench->comm, bench->queues[0], &works[i], &count), &error);
  }
  bench->submit_us[round] = (double)(lade_now_ns() - begin_ns) * 1e-3 / N_PIECES;
  int status = lade_queue_sync(bench->queues[0], count);
  must(bench, status ? status : lade_comm_status(bench->comm, &error), &error);
  bench->run_us[round] = (double)(lade_now_ns() - begin_ns) * 1e-3 / N_PIECES;
}

static int double_compare(const void *x, const void *y)
{
  const double a = *(const double *)x, b = *(const double *)y;
  return (a > b) - (a < b);
}

static double median(double *values)
{
  qsort(values, N_ROUNDS, sizeof(*values), double_compare);
  return values[N_ROUNDS / 2];
}

/* ---- a pipeline ---- */

/* Submit a send or a receive of message @i in its place. */
static uint64_t message_submit(struct bench *bench, struct lade_comm_work *work, struct lade_collective *call,
                               enum lade_collective_kind kind, int i)
{
  struct lade_error error = {0};
  char *at = bench->data + (uint64_t)(i + (kind == LADE_RECV && bench->rank == 0 ? N_MESSAGES : 0)) * MESSAGE_BYTES;
  uint64_t count = 0;
  *call = (struct lade_collective){.kind = kind, .dtype = LADE_U8, .n = MESSAGE_BYTES, .peer = 1 - bench->rank,
                                   .src = at, .dst = at};
  *work = (struct lade_comm_work){.list = {call, 1}};
  must(bench, lade_comm_launch(bench->comm, bench->queues[kind == LADE_RECV], work, &count), &error);
  return count;
}

static void messages_submit(struct bench *bench)
{
  static struct lade_comm_work works[2][N_MESSAGES];
  static struct lade_collective calls[2][N_MESSAGES];
  uint64_t counts[2] = {0, 0};
  struct lade_error error = {0};
  for (int i = 0; i < N_MESSAGES; i++) {
    counts[1] = message_submit(bench, &works[1][i], &calls[1][i], LADE_RECV, i);
    if (bench->rank == 1)
      lade_queue_wait(bench->queues[0], bench->queues[1], counts[1]);
    counts[0] = message_submit(bench, &works[0][i], &calls[0][i], LADE_SEND, i);
  }
  for (int i = 0; i < 2; i++)
    must(bench, lade_queue_sync(bench->queues[i], counts[i]), &error);
  must(bench, lade_comm_status(bench->comm, &error), &error);
}

static void data_copy(struct bench *bench, enum lade_queue_role role, void *dst, const void *src, uint64_t bytes)
{
  const struct lade_copy copy = {.dst = dst, .src = src, .bytes = bytes};
  struct lade_error error = {0};
  lade_queue *queue = NULL;
  uint64_t count = 0;
  must(bench, lade_queue_create(bench->device, role, &queue), &error);
  lade_queue_copy(queue, &copy, &count);
  must(bench, lade_queue_sync(queue, count), &error);
  lade_queue_destroy(queue);
}

/* Send messages and receive the answers. Return the microseconds of a message and its answer; negative: wrong bytes. */
static double pipeline_run(struct bench *bench)
{
  const uint64_t bytes = (uint64_t)N_MESSAGES * MESSAGE_BYTES;
  struct lade_error error = {.text = "no memory"};
  uint8_t *sent = malloc(bytes), *got = malloc(bytes);
  if (!sent || !got)
    die(bench, -ENOMEM, &error);
  for (uint64_t i = 0; i < bytes; i++)
    sent[i] = (uint8_t)(i * 2654435761u >> 13);
  kind_run(bench, LADE_ALL_REDUCE, 4); /* both are there */
  if (bench->rank == 0)
    data_copy(bench, LADE_QUEUE_TO_DEVICE, bench->data, sent, bytes);
  const int64_t begin_ns = lade_now_ns();
  messages_submit(bench);
  const double us = (double)(lade_now_ns() - begin_ns) * 1e-3 / N_MESSAGES;
  data_copy(bench, LADE_QUEUE_TO_HOST, got, bench->data + (bench->rank == 0 ? bytes : 0), bytes);
  const bool is_right = memcmp(sent, got, bytes) == 0;
  free(sent);
  free(got);
  return is_right ? us : -us;
}

/* ---- all of it ---- */

static void comm_open(struct bench *bench, const struct lade_kernels *kernels, bool is_one_gpu)
{
  struct lade_error error = {0};
  struct lade_launch launch;
  must(bench, lade_launch_read(environ, &error, &launch), &error);
  bench->rank = launch.rank;
  bench->size = launch.world;
  const struct lade_cuda_device_params gpu = {.struct_size = sizeof(gpu),
                                              .ordinal = is_one_gpu ? 0 : LADE_MAX(launch.local_rank, 0)};
  must(bench, lade_device_open_cuda(&gpu, &error, &bench->device), &error);
  bench->opened_bytes = in_use_get(bench);
  const struct lade_comm_params params = {.struct_size = sizeof(params), .engine = LADE_COMM_NCCL, .launch = &launch,
                                          .kernels = kernels, .device = bench->device, .timeout_ms = TIMEOUT_MS,
                                          .has_neighbours = true};
  must(bench, lade_comm_open(&params, &error, &bench->comm), &error);
}

static void result_print(struct bench *bench, double message_us)
{
  printf("{\"ranks\": %d, \"large_bytes\": %llu, \"memory\": {", bench->size, (unsigned long long)bench->large_bytes);
  for (int i = 0; i < N_MOMENTS; i++)
    printf("%s\"%s\": %llu", i ? ", " : "", moment_names[i], (unsigned long long)bench->in_use[i]);
  printf("}, \"submit_us\": %.2f, \"run_us\": %.2f", median(bench->submit_us), median(bench->run_us));
  if (bench->size == 2)
    printf(", \"message_us\": %.2f, \"is_right\": %s", message_us < 0 ? -message_us : message_us,
           message_us < 0 ? "false" : "true");
  printf("}\n");
}

int main(int argc, char **argv)
{
  struct bench bench = {.large_bytes = 64 << 20};
  struct lade_kernels kernels;
  struct lade_error error = {0};
  const struct lade_cpu cpu = lade_cpu_get();
  const bool is_one_gpu = argc > 1 && strcmp(argv[1], "--one-gpu") == 0;
  if (argc > 1 + is_one_gpu)
    bench.large_bytes = strtoull(argv[1 + is_one_gpu], NULL, 10);
  lade_kernels_init(&kernels, &cpu);
  comm_open(&bench, &kernels, is_one_gpu);
  void *data = NULL;
  const uint64_t bytes = LADE_MAX(bench.large_bytes, (uint64_t)2 * N_MESSAGES * MESSAGE_BYTES) + 4096;
  must(&bench, lade_comm_alloc(bench.comm, bytes, &error, &data), &error);
  bench.data = data;
  for (int i = 0; i < 2; i++)
    must(&bench, lade_queue_create(bench.device, LADE_QUEUE_COMM, &bench.queues[i]), &error);
  memory_measure(&bench);
  for (int round = 0; round < N_ROUNDS; round++)
    pieces_run(&bench, round);
  const double message_us = bench.size == 2 ? pipeline_run(&bench) : 0;
  if (bench.rank == 0)
    result_print(&bench, message_us);
  for (int i = 0; i < 2; i++)
    lade_queue_destroy(bench.queues[i]);
  lade_comm_free(bench.comm, data);
  lade_comm_close(bench.comm);
  lade_device_close(bench.device);
  return message_us < 0;
}
