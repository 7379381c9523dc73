/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Byte movement of the fake for NCCL: collectives through a slot of each rank, a chunk at a time between two meetings;
 * sends and receives through a box for each pair. Waits poll and sleep, and stop when the communicator is aborted: like
 * a kernel, a wait never learns that a peer has ended.
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "base/base.h"
#include "base/float.h"
#include "nccl_internal.h"
#include "tests/fakes/cuda_driver/fake_driver_internal.h"

#define POLL_NS 20000
#define MAX_WAITING_CTAS 4 /* of a receive alone, whose send may come late */

static void pause_take(void)
{
  nanosleep(&(struct timespec){.tv_nsec = POLL_NS}, NULL);
}

/* ---- the file ---- */

bool nccl_segment_open(struct ncclComm *comm)
{
  int fd = open(comm->path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0)
    return false;
  void *data = MAP_FAILED;
  if (posix_fallocate(fd, 0, sizeof(struct segment)) == 0)
    data = mmap(NULL, sizeof(struct segment), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close(fd);
  comm->shared = data == MAP_FAILED ? NULL : data;
  return comm->shared != NULL;
}

/* ---- buffers ---- */

typedef enum fake_place place_fn(uint64_t address, uint64_t bytes);

void *nccl_driver_find(const char *name)
{
  void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD), *found = driver ? dlsym(driver, name) : NULL;
  if (driver)
    dlclose(driver);
  return found;
}

bool nccl_is_of_device(const void *at, uint64_t bytes)
{
  place_fn *place = (place_fn *)nccl_driver_find("fake_place");
  return place && place((uint64_t)(uintptr_t)at, bytes) == PLACE_DEVICE;
}

typedef bool buffer_fn(struct ncclComm *comm, const void *at, uint64_t bytes);

/* True if @is holds for all buffers that @op uses at this rank. */
static bool buffers_all(struct ncclComm *comm, const struct op *op, buffer_fn *is)
{
  uint64_t bytes = op->n * nccl_type_bytes(op->type), size = (uint64_t)comm->size;
  bool has_src = op->kind != OP_RECV && !(op->kind == OP_BROADCAST && op->peer != comm->rank);
  return (!has_src || is(comm, op->src, bytes * (op->kind == OP_REDUCE_SCATTER ? size : 1)))
         && (op->kind == OP_SEND || is(comm, op->dst, bytes * (op->kind == OP_ALL_GATHER ? size : 1)));
}

static bool is_of_device(struct ncclComm *comm, const void *at, uint64_t bytes)
{
  return nccl_is_of_device(at, bytes);
}

static void buffers_check(const struct launch *launch, const struct op *op)
{
  if (!buffers_all(launch->comm, op, is_of_device))
    nccl_misuse(launch->comm, "a buffer of operation %d is no device memory", (int)op->kind);
  nccl_n_direct += buffers_all(launch->comm, op, nccl_is_registered);
}

/* ---- meetings ---- */

/* Meet the other members. False if the communicator was aborted meanwhile. */
static bool meet(struct ncclComm *comm)
{
  struct segment *shared = comm->shared;
  uint32_t n_met = atomic_load(&shared->n_met);
  if (atomic_fetch_add(&shared->n_here, 1) + 1 == (uint32_t)comm->size) {
    atomic_store(&shared->n_here, 0);
    atomic_store(&shared->n_met, n_met + 1);
    return true;
  }
  while (atomic_load(&shared->n_met) == n_met) {
    if (atomic_load(&comm->family->is_aborted))
      return false;
    pause_take();
  }
  return true;
}

/* Check that all members post the same operation. */
static bool agree(struct ncclComm *comm, const struct op *op)
{
  struct post own = {op->kind, (uint64_t)op->type, op->kind == OP_BROADCAST ? (uint64_t)op->peer : 0, op->n,
                     buffers_all(comm, op, nccl_is_registered)};
  comm->shared->posts[comm->rank] = own;
  if (!meet(comm))
    return false;
  for (int rank = 0; rank < comm->size; rank++)
    if (memcmp(&comm->shared->posts[rank], &own, sizeof(own)) != 0)
      nccl_misuse(comm, "rank %d runs another collective, or one on memory that is registered as ours is not", rank);
  return meet(comm);
}

/* ---- collectives ---- */

uint64_t nccl_type_bytes(int type)
{
  return type == NCCL_FLOAT32 ? 4 : type == NCCL_BFLOAT16 || type == NCCL_FLOAT16 ? 2 : 1;
}

static float half_get(int type, uint16_t bits)
{
  return type == NCCL_FLOAT16 ? lade_f16_to_f32(bits) : lade_bf16_to_f32(bits);
}

static uint16_t half_make(int type, float value)
{
  return type == NCCL_FLOAT16 ? lade_f32_to_f16(value) : lade_f32_to_bf16(value);
}

static float element_get(int type, const char *data, uint64_t i)
{
  return type == NCCL_FLOAT32 ? ((const float *)(const void *)data)[i]
                              : half_get(type, ((const uint16_t *)(const void *)data)[i]);
}

/* Sum element @i of the ranks' slots as a ring does: begun at @first, each addition rounded to the type. */
static void element_sum(struct ncclComm *comm, int type, int first, uint64_t i, char *dst, uint64_t at)
{
  float sum = element_get(type, comm->shared->slots[first], i);
  for (int step = 1; step < comm->size; step++) {
    sum += element_get(type, comm->shared->slots[(first + step) % comm->size], i);
    if (type != NCCL_FLOAT32)
      sum = half_get(type, half_make(type, sum));
  }
  if (type == NCCL_FLOAT32)
    ((float *)(void *)dst)[at] = sum;
  else
    ((uint16_t *)(void *)dst)[at] = half_make(type, sum);
}

/* Copy this rank's part of elements [from, from + n) into its slot. */
static void slot_fill(struct ncclComm *comm, const struct op *op, uint64_t from, uint64_t n)
{
  uint64_t item = nccl_type_bytes(op->type);
  int n_blocks = op->kind == OP_REDUCE_SCATTER ? comm->size : 1;
  bool is_silent = op->kind == OP_BROADCAST && op->peer != comm->rank;
  for (int block = 0; block < n_blocks && !is_silent; block++)
    memcpy(comm->shared->slots[comm->rank] + (uint64_t)block * n * item,
           op->src + ((uint64_t)block * op->n + from) * item, n * item);
}

static void slots_take(struct ncclComm *comm, const struct op *op, uint64_t from, uint64_t n)
{
  uint64_t item = nccl_type_bytes(op->type);
  for (int rank = 0; rank < comm->size && op->kind == OP_ALL_GATHER; rank++)
    memcpy(op->dst + ((uint64_t)rank * op->n + from) * item, comm->shared->slots[rank], n * item);
  if (op->kind == OP_BROADCAST)
    memcpy(op->dst + from * item, comm->shared->slots[op->peer], n * item);
  for (uint64_t i = 0; i < n && op->kind == OP_ALL_REDUCE; i++)
    element_sum(comm, op->type, (int)((from + i) * (uint64_t)comm->size / op->n), i, op->dst, from + i);
  for (uint64_t i = 0; i < n && op->kind == OP_REDUCE_SCATTER; i++)
    element_sum(comm, op->type, (comm->rank + 1) % comm->size, (uint64_t)comm->rank * n + i, op->dst, from + i);
}

static void collective_run(struct ncclComm *comm, const struct op *op)
{
  uint64_t max = SLOT_BYTES / nccl_type_bytes(op->type) / (op->kind == OP_REDUCE_SCATTER ? (uint64_t)comm->size : 1);
  bool is_well = agree(comm, op);
  for (uint64_t from = 0; from < op->n && is_well; from += max) {
    uint64_t n = LADE_MIN(max, op->n - from);
    slot_fill(comm, op, from, n);
    is_well = meet(comm);
    if (is_well)
      slots_take(comm, op, from, n);
    is_well = is_well && meet(comm);
  }
}

/* ---- pairs ---- */

static bool part_send(struct ncclComm *comm, struct op *op, uint64_t total_bytes)
{
  struct box *box = &comm->shared->boxes[comm->rank][op->peer];
  if (atomic_load(&box->is_full))
    return false;
  box->type = (uint32_t)op->type;
  box->total_bytes = total_bytes;
  box->bytes = LADE_MIN(total_bytes - op->n_done_bytes, BOX_BYTES);
  memcpy(box->data, op->src + op->n_done_bytes, box->bytes);
  op->n_done_bytes += box->bytes;
  atomic_store(&box->is_full, 1);
  return true;
}

static bool part_recv(struct ncclComm *comm, struct op *op, uint64_t total_bytes)
{
  struct box *box = &comm->shared->boxes[op->peer][comm->rank];
  if (!atomic_load(&box->is_full))
    return false;
  if (box->type != (uint32_t)op->type || box->total_bytes != total_bytes)
    nccl_misuse(comm, "a receive of %llu bytes from rank %d, and %llu come", (unsigned long long)total_bytes, op->peer,
                (unsigned long long)box->total_bytes);
  memcpy(op->dst + op->n_done_bytes, box->data, box->bytes);
  op->n_done_bytes += box->bytes;
  atomic_store(&box->is_full, 0);
  return true;
}

/* Move a part of every pair that can move; ops of one pair in order. Return the number of unfinished ones. */
static int pairs_step(struct launch *launch, bool *ret_has_moved)
{
  int n_left = 0;
  for (int i = 0; i < launch->n_ops; i++) {
    struct op *op = &launch->ops[i];
    uint64_t total_bytes = op->n * nccl_type_bytes(op->type);
    if (op->n_done_bytes == total_bytes)
      continue;
    bool is_first = true;
    for (int before = 0; before < i; before++) {
      const struct op *other = &launch->ops[before];
      is_first = is_first && !(other->kind == op->kind && other->peer == op->peer
                               && other->n_done_bytes < other->n * nccl_type_bytes(other->type));
    }
    if (is_first && (op->kind == OP_SEND ? part_send : part_recv)(launch->comm, op, total_bytes))
      *ret_has_moved = true;
    n_left += op->n_done_bytes < total_bytes;
  }
  return n_left;
}

static void pairs_run(struct launch *launch)
{
  bool has_moved = true;
  while (!atomic_load(&launch->comm->family->is_aborted)) {
    has_moved = false;
    if (pairs_step(launch, &has_moved) == 0)
      return;
    if (!has_moved)
      pause_take();
  }
}

/* ---- launches ---- */

void nccl_launch_run(struct launch *launch)
{
  for (int i = 0; i < launch->n_ops; i++)
    buffers_check(launch, &launch->ops[i]);
  if (launch->n_ops == 1 && launch->ops[0].kind == OP_RECV && (unsigned)launch->comm->max_ctas > MAX_WAITING_CTAS)
    nccl_misuse(launch->comm, "a receive may wait on as many multiprocessors as it likes: max_ctas is not set");
  if (launch->ops[0].kind == OP_SEND || launch->ops[0].kind == OP_RECV)
    pairs_run(launch);
  else
    for (int i = 0; i < launch->n_ops; i++)
      collective_run(launch->comm, &launch->ops[i]);
}
