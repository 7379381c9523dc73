/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The job of this rank, and one checked collective; see comm_world.h. With nccl the memory is the device's, which the
 * fake driver makes accessible to the processor; on a GPU this would fault.
 */
#include "comm_world.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "base/cpu.h"
#include "base/float.h"
#include "device/cuda.h"

#define GUARD 0xa5

extern char **environ;

struct world world;

static void line_note(void *user, const char *line)
{
  ((struct world *)user)->n_lines++;
  printf("LOG: %s\n", line);
}

int world_open(const char *path, uint64_t staging_bytes, int timeout_ms, struct lade_error *error)
{
  static const char *const names[] = {"auto", "memfd", "file", "apart"};
  struct lade_cpu cpu = lade_cpu_get();
  lade_kernels_init(&world.kernels, &cpu);
  lade_faults_init(&world.faults);
  int status = lade_launch_read(environ, error, &world.launch);
  if (status)
    return status;
  world.params = (struct lade_comm_params){.struct_size = sizeof(world.params), .launch = &world.launch,
                                           .kernels = &world.kernels, .staging_bytes = staging_bytes,
                                           .timeout_ms = timeout_ms, .is_checked = true, .log = line_note,
                                           .log_user = &world, .faults = &world.faults,
                                           .has_neighbours = true};
  for (int i = 0; i < (int)LADE_COUNT(names); i++)
    world.params.backing = strcmp(path, names[i]) == 0 ? (enum lade_comm_backing)i : world.params.backing;
  world.params.engine = strcmp(path, "self") == 0 ? LADE_COMM_SELF : LADE_COMM_MPI;
  if (strcmp(path, "nccl") == 0) {
    struct lade_cuda_device_params gpu = {.struct_size = sizeof(gpu)};
    world.params.engine = LADE_COMM_NCCL;
    status = lade_device_open_cuda(&gpu, error, &world.device);
    world.params.device = world.device;
  }
  if (!status)
    status = lade_comm_open(&world.params, error, &world.comm);
  if (!status) {
    world.rank = lade_comm_rank(world.comm);
    world.size = lade_comm_size(world.comm);
  }
  return status;
}

void world_close(void)
{
  lade_comm_close(world.comm);
  lade_device_close(world.device);
}

/* ---- values of ranks ---- */

/*
 * Return an element that every rank can compute for every other: of all magnitudes, so that the order of a sum shows.
 */
float value_get(int rank, uint64_t element, uint32_t seed)
{
  uint64_t x = (uint64_t)(rank + 1) * 0x9e3779b97f4a7c15u ^ (element + 1) * 0xbf58476d1ce4e5b9u ^ seed * 0x94d049bbu;
  x ^= x >> 29;
  x *= 0x94d049bb133111ebu;
  x ^= x >> 32;
  float magnitude = (float)((int64_t)(x & 0xffffff) - 0x800000) * 0x1p-20f;
  return x >> 60 == 0 ? magnitude * 1e6f : x >> 60 == 1 ? -0.0f : magnitude;
}

static uint16_t half_make(enum lade_dtype dtype, float value)
{
  return dtype == LADE_F16 ? lade_f32_to_f16(value) : lade_f32_to_bf16(value);
}

static float half_get(enum lade_dtype dtype, uint16_t bits)
{
  return dtype == LADE_F16 ? lade_f16_to_f32(bits) : lade_bf16_to_f32(bits);
}

static void element_put(enum lade_dtype dtype, void *data, uint64_t i, float value)
{
  if (dtype == LADE_F32)
    ((float *)data)[i] = value;
  else
    ((uint16_t *)data)[i] = half_make(dtype, value);
}

/* Return an element as its dtype has it; in F16 scaled, so that no sum leaves its range. */
static float element_of(enum lade_dtype dtype, int rank, uint64_t element, uint32_t seed)
{
  float value = value_get(rank, element, seed) * (dtype == LADE_F16 ? 0x1p-10f : 1);
  return dtype == LADE_F32 ? value : half_get(dtype, half_make(dtype, value));
}

/* Return the sum over ranks [first, first + n) in the order of the contract. */
static float sum_of(enum lade_dtype dtype, int first, int n, uint64_t element, uint32_t seed)
{
  int n_left = 1;
  if (n == 1)
    return element_of(dtype, first, element, seed);
  while (2 * n_left < n)
    n_left *= 2;
  return sum_of(dtype, first, n_left, element, seed) + sum_of(dtype, first + n_left, n - n_left, element, seed);
}

void value_expect(enum lade_dtype dtype, const void *data, uint64_t i, float value)
{
  uint32_t got, want;
  if (dtype == LADE_F32) {
    memcpy(&got, (const float *)data + i, sizeof(got));
    want = lade_f32_bits(value);
  } else {
    got = ((const uint16_t *)data)[i];
    want = half_make(dtype, value);
  }
  if (got != want)
    fail_msg("rank %d: element %llu of %s: got %08x, want %08x", world.rank, (unsigned long long)i,
             lade_dtype_name(dtype), got, want);
}

/* Check a sum in any order, rounded at each addition: off by an epsilon of all magnitudes for each. */
static void expect_sum(enum lade_dtype dtype, int size, const void *data, uint64_t i, uint64_t element, uint32_t seed)
{
  float want = sum_of(dtype, 0, size, element, seed), magnitude = 0;
  if (world.is_ordered) {
    value_expect(dtype, data, i, want);
    return;
  }
  for (int rank = 0; rank < size; rank++)
    magnitude += fabsf(element_of(dtype, rank, element, seed));
  float got = dtype == LADE_F32 ? ((const float *)data)[i] : half_get(dtype, ((const uint16_t *)data)[i]);
  if (!(fabsf(got - want) <= (float)size * magnitude * (dtype == LADE_F32 ? 0x1p-23f : 0x1p-8f)))
    fail_msg("rank %d: element %llu of a sum of %s: got %g, want %g", world.rank, (unsigned long long)i,
             lade_dtype_name(dtype), (double)got, (double)want);
}

/* ---- one checked collective ---- */

static bool is_of_world(enum lade_collective_kind kind)
{
  return kind == LADE_REDUCE_SCATTER || kind == LADE_ALL_TO_ALL;
}

void trial_fill(struct trial *t)
{
  uint64_t item = lade_dtype_bytes(t->dtype), block = (uint64_t)t->rank * t->n;
  uint64_t n_src = t->n * (is_of_world(t->kind) ? (uint64_t)t->size : 1);
  uint64_t n_dst = t->n * (t->kind == LADE_ALL_GATHER || t->kind == LADE_ALL_TO_ALL ? (uint64_t)t->size : 1);
  t->c = (struct lade_collective){.kind = t->kind, .dtype = t->dtype, .n = t->n, .src = t->src, .dst = t->dst};
  t->c.peer = t->kind == LADE_BROADCAST ? (int)(t->seed % (uint32_t)t->size) : 0;
  memset(t->dst, GUARD, (n_dst + 1) * item);
  if (t->is_in_place && t->kind == LADE_ALL_GATHER)
    t->c.src = t->dst + block * item;
  else if (t->is_in_place && t->kind == LADE_REDUCE_SCATTER)
    t->c.dst = t->src + block * item;
  else if (t->is_in_place)
    t->c.src = t->dst;
  for (uint64_t i = 0; i < n_src; i++)
    element_put(t->dtype, (void *)(uintptr_t)t->c.src, i, element_of(t->dtype, t->rank, i, t->seed));
}

void trial_expect(const struct trial *t)
{
  uint64_t block = (uint64_t)t->rank * t->n, item = lade_dtype_bytes(t->dtype), n_dst = t->n;
  for (uint64_t i = 0; i < t->n; i++) {
    switch (t->kind) {
    case LADE_REDUCE_SCATTER: expect_sum(t->dtype, t->size, t->c.dst, i, block + i, t->seed); break;
    case LADE_ALL_REDUCE: expect_sum(t->dtype, t->size, t->c.dst, i, i, t->seed); break;
    case LADE_BROADCAST: value_expect(t->dtype, t->c.dst, i, element_of(t->dtype, t->c.peer, i, t->seed)); break;
    default:
      for (int other = 0; other < t->size; other++) {
        uint64_t from = t->kind == LADE_ALL_TO_ALL ? block + i : i;
        value_expect(t->dtype, t->c.dst, (uint64_t)other * t->n + i, element_of(t->dtype, other, from, t->seed));
      }
      n_dst = t->n * (uint64_t)t->size;
    }
  }
  if (!t->is_in_place || t->kind != LADE_REDUCE_SCATTER) /* no byte past the end */
    for (uint64_t i = 0; i < item; i++)
      assert_int_equal(((const uint8_t *)t->dst)[n_dst * item + i], GUARD);
}

void trial_run(struct trial *t)
{
  struct lade_error error = {0};
  trial_fill(t);
  if (lade_comm_run(t->comm, &t->c, &error))
    fail_msg("rank %d: %s", world.rank, error.text);
  trial_expect(t);
}

/* Allocate memory through the communicator, or plain memory, which only engines on hosts take. */
void *bytes_get(lade_comm *comm, uint64_t bytes, bool is_window)
{
  void *data = NULL;
  struct lade_error error = {0};
  if ((is_window || world.device) && lade_comm_alloc(comm, bytes, &error, &data))
    fail_msg("%s", error.text);
  if (!data)
    data = malloc(bytes);
  assert_non_null(data);
  return data;
}

void *room_get(lade_comm *comm, bool is_window)
{
  return bytes_get(comm, ((uint64_t)lade_comm_size(comm) * N_MAX + 1) * sizeof(float), is_window);
}

void room_free(lade_comm *comm, void *data, bool is_window)
{
  if (is_window || world.device)
    lade_comm_free(comm, data);
  else
    free(data);
}
