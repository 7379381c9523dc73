/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The device contract's memory, over every device. A test accesses memory only if the device is not dry, and on a GPU
 * by copies; sizes, places and errors are the same for all.
 */
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/philox.h"
#include "device_target.h"

static uint64_t *words(uint64_t address)
{
  return (uint64_t *)(uintptr_t)address;
}

static uint64_t word_value(uint64_t tag, uint64_t i)
{
  return tag * 0x9e3779b97f4a7c15u + i;
}

/* Fill one word in 64; on a device that only copies reach, all the others are zero. */
static void words_fill(lade_device *device, uint64_t address, uint64_t bytes, uint64_t tag)
{
  uint64_t *own = info_get(device).is_unified ? words(address) : calloc(1, bytes);
  for (uint64_t i = 0; i < bytes / 8; i += 64)
    own[i] = word_value(tag, i);
  if (own != words(address)) {
    memory_write(device, address, own, bytes);
    free(own);
  }
}

static void words_check(lade_device *device, uint64_t address, uint64_t bytes, uint64_t tag)
{
  uint64_t *own = info_get(device).is_unified ? words(address) : malloc(bytes);
  if (own != words(address))
    memory_read(device, own, address, bytes);
  for (uint64_t i = 0; i < bytes / 8; i += 64)
    assert_int_equal(own[i], word_value(tag, i));
  if (own != words(address))
    free(own);
}

static void words_zero_check(lade_device *device, uint64_t address, uint64_t bytes)
{
  uint64_t *own = malloc(bytes);
  memory_read(device, own, address, bytes);
  for (uint64_t i = 0; i < bytes / 8; i++)
    assert_int_equal(own[i], 0);
  free(own);
}

static sigjmp_buf segv_back;

static void segv_caught(int signal)
{
  siglongjmp(segv_back, 1);
}

/* True if reading at @address raises SIGSEGV. */
static bool is_faulting(uint64_t address)
{
  struct sigaction action = {.sa_handler = segv_caught}, before;
  sigaction(SIGSEGV, &action, &before);
  volatile bool is_caught = true;
  if (sigsetjmp(segv_back, 1) == 0) {
    (void)*(volatile char *)(uintptr_t)address;
    is_caught = false;
  }
  sigaction(SIGSEGV, &before, NULL);
  return is_caught;
}

static void ranges_are_aligned_and_apart(void **state)
{
  lade_device *device = device_open(state, NULL);
  uint64_t at[8];
  for (uint64_t i = 0; i < 8; i++) {
    assert_int_equal(lade_device_reserve(device, (i + 1) * CHUNK, &at[i]), 0);
    assert_int_equal(at[i] % CHUNK, 0);
    for (uint64_t j = 0; j < i; j++)
      assert_true(at[i] + (i + 1) * CHUNK <= at[j] || at[j] + (j + 1) * CHUNK <= at[i]);
  }
  for (uint64_t i = 0; i < 8; i++)
    lade_device_release(device, at[(i * 3) % 8], ((i * 3) % 8 + 1) * CHUNK);
  lade_device_close(device);
}

static void addresses_cost_nothing(void **state)
{
  lade_device *device = device_open(state, NULL);
  uint64_t at = 0;
  assert_int_equal(lade_device_reserve(device, 1024 * CAPACITY, &at), 0);
  assert_int_equal(info_get(device).created_bytes, 0);
  assert_int_equal(info_get(device).peak_bytes, 0);
  lade_device_release(device, at, 1024 * CAPACITY);
  lade_device_close(device);
}

static void senseless_arguments_are_refused_and_change_nothing(void **state)
{
  lade_device *device = device_open(state, NULL);
  uint64_t at = 1, other = 0;
  lade_chunk *chunk = NULL, *second = NULL;
  lade_queue *queue = NULL;
  assert_int_equal(lade_device_reserve(device, 0, &at), -EINVAL);
  assert_int_equal(lade_device_reserve(device, CHUNK + 4096, &at), -EINVAL);
  assert_int_equal(at, 1);
  assert_int_equal(lade_device_chunk_create(device, 0, &chunk), -EINVAL);
  assert_int_equal(lade_device_chunk_create(device, CHUNK / 2, &chunk), -EINVAL);
  assert_null(chunk);
  assert_int_equal(lade_queue_create(device, LADE_N_QUEUE_ROLES, &queue), -EINVAL);

  assert_int_equal(lade_device_reserve(device, 4 * CHUNK, &at), 0);
  assert_int_equal(lade_device_reserve(device, 4 * CHUNK, &other), 0);
  chunk = chunk_open(device, 2 * CHUNK);
  second = chunk_open(device, CHUNK);
  assert_int_equal(lade_device_map(device, at + 4096, chunk), -EINVAL);
  assert_int_equal(lade_device_map(device, at + 3 * CHUNK, chunk), -EINVAL); /* past the end */
  assert_int_equal(lade_device_map(device, LADE_MIN(at, other) - CHUNK, second), -EINVAL);
  assert_int_equal(lade_device_map(device, at + CHUNK, chunk), 0);
  assert_int_equal(lade_device_map(device, other, chunk), -EBUSY); /* mapped already */
  assert_int_equal(lade_device_map(device, at + CHUNK, second), -EBUSY);
  assert_int_equal(lade_device_map(device, at + 2 * CHUNK, second), -EBUSY); /* its second half */
  assert_int_equal(lade_device_unmap(device, at, 2 * CHUNK), -EINVAL);       /* cuts the mapped chunk */
  assert_int_equal(lade_device_unmap(device, at + 2 * CHUNK, CHUNK), -EINVAL);
  assert_int_equal(lade_device_unmap(device, at + CHUNK, 4 * CHUNK), -EINVAL); /* past the range */
  assert_int_equal(lade_device_unmap(device, at, 4 * CHUNK), 0);
  assert_int_equal(lade_device_map(device, at + 2 * CHUNK, chunk), 0);
  assert_int_equal(lade_device_unmap(device, at + 2 * CHUNK, 2 * CHUNK), 0);

  lade_device_chunk_release(device, chunk);
  lade_device_chunk_release(device, second);
  lade_device_chunk_release(device, NULL);
  lade_device_release(device, at, 4 * CHUNK);
  lade_device_release(device, other, 4 * CHUNK);
  lade_device_close(device);
  lade_device_close(NULL);
  lade_queue_destroy(NULL);
}

static void opening_wants_complete_params(void **state)
{
  const struct target *target = *state;
  struct lade_error error = {0};
  lade_device *device = NULL;
  if (target->is_cuda) {
    struct lade_cuda_device_params cuda = {.struct_size = 3};
    assert_int_equal(lade_device_open_cuda(&cuda, &error, &device), -EINVAL);
    cuda = (struct lade_cuda_device_params){.struct_size = sizeof(cuda), .ordinal = target->ordinal};
    assert_int_equal(lade_device_open_cuda(&cuda, &error, &device), 0);
    assert_true(info_get(device).capacity_bytes >= CHUNK); /* all free memory */
    lade_device_close(device);
    return;
  }
  if (!target->is_dry) {
    struct lade_host_device_params host = {.struct_size = 3};
    assert_int_equal(lade_device_open_host(&host, &error, &device), -EINVAL);
    host = (struct lade_host_device_params){.struct_size = sizeof(host)};
    assert_int_equal(lade_device_open_host(&host, &error, &device), 0);
    assert_true(info_get(device).capacity_bytes >= CHUNK); /* all memory of this process */
    lade_device_close(device);
    return;
  }
  struct lade_dry_device_params dry = {.struct_size = sizeof(dry), .to_host = link_to_host};
  assert_int_equal(lade_device_open_dry(&dry, &error, &device), -EINVAL);
  assert_non_null(strstr(error.text, "capacity_bytes"));
  dry.capacity_bytes = CAPACITY;
  assert_int_equal(lade_device_open_dry(&dry, &error, &device), -EINVAL);
  assert_non_null(strstr(error.text, "links"));
  dry.to_device = link_to_device;
  dry.chunk_bytes = 3000;
  assert_int_equal(lade_device_open_dry(&dry, &error, &device), -EINVAL);
  dry.chunk_bytes = 4096;
  assert_int_equal(lade_device_open_dry(&dry, &error, &device), 0);
  assert_int_equal(info_get(device).chunk_bytes, 4096);
  lade_device_close(device);
}

static void capacity_is_hard_and_exact(void **state)
{
  lade_device *device = device_open(state, NULL);
  uint64_t half = CAPACITY / 2;
  lade_chunk *first = chunk_open(device, half), *chunk = NULL;
  assert_int_equal(lade_device_chunk_create(device, half + CHUNK, &chunk), -ENOMEM);
  assert_int_equal(lade_device_chunk_create(device, UINT64_MAX / CHUNK * CHUNK, &chunk), -ENOMEM);
  assert_null(chunk);
  chunk = chunk_open(device, half);
  lade_chunk *none = NULL;
  assert_int_equal(lade_device_chunk_create(device, CHUNK, &none), -ENOMEM);
  assert_int_equal(info_get(device).created_bytes, CAPACITY);
  lade_device_chunk_release(device, first);
  first = chunk_open(device, half);
  assert_int_equal(lade_device_chunk_create(device, CHUNK, &none), -ENOMEM);
  lade_device_chunk_release(device, first);
  lade_device_chunk_release(device, chunk);
  assert_int_equal(info_get(device).created_bytes, 0);
  lade_device_close(device);
}

/* Releasing must not need a call that a machine may refuse. */
static void a_chunk_may_be_released_where_it_is_mapped(void **state)
{
  lade_device *device = device_open(state, NULL);
  uint64_t at = 0;
  assert_int_equal(lade_device_reserve(device, 4 * CHUNK, &at), 0);
  lade_chunk *first = chunk_open(device, CHUNK), *second = chunk_open(device, 2 * CHUNK);
  assert_int_equal(lade_device_map(device, at, first), 0);
  assert_int_equal(lade_device_map(device, at + CHUNK, second), 0);
  lade_device_chunk_release(device, first);
  assert_int_equal(info_get(device).created_bytes, 2 * CHUNK);
  first = chunk_open(device, CHUNK);
  assert_int_equal(lade_device_map(device, at + CHUNK, first), -EBUSY);
  assert_int_equal(lade_device_map(device, at, first), 0); /* its place is empty again */
  lade_device_chunk_release(device, second);
  assert_int_equal(lade_device_unmap(device, at, 4 * CHUNK), 0);
  lade_device_chunk_release(device, first);
  lade_device_release(device, at, 4 * CHUNK);
  assert_int_equal(info_get(device).created_bytes, 0);
  lade_device_close(device);
}

static void *creator_main(void *arg)
{
  lade_device *device = arg;
  for (int i = 0; i < 40; i++) {
    lade_chunk *chunk = NULL;
    if (lade_device_chunk_create(device, 6 * CHUNK, &chunk) == 0)
      lade_device_chunk_release(device, chunk);
    struct lade_device_info info = info_get(device);
    if (info.created_bytes > info.capacity_bytes || info.peak_bytes > info.capacity_bytes)
      return device;
  }
  return NULL;
}

static void threads_cannot_overshoot_the_capacity_together(void **state)
{
  lade_device *device = device_open(state, NULL);
  lade_chunk *max = chunk_open(device, CAPACITY - 8 * CHUNK);
  pthread_t threads[4];
  for (int i = 0; i < 4; i++)
    assert_int_equal(pthread_create(&threads[i], NULL, creator_main, device), 0);
  for (int i = 0; i < 4; i++) {
    void *failed = NULL;
    pthread_join(threads[i], &failed);
    assert_null(failed);
  }
  assert_int_equal(info_get(device).created_bytes, CAPACITY - 8 * CHUNK);
  assert_true(info_get(device).peak_bytes <= CAPACITY - 2 * CHUNK);
  lade_device_chunk_release(device, max);
  lade_device_close(device);
}

static void peak_is_the_max_that_existed_at_once(void **state)
{
  lade_device *device = device_open(state, NULL);
  lade_chunk *one = chunk_open(device, CHUNK), *two = chunk_open(device, 2 * CHUNK), *none = NULL;
  lade_device_chunk_release(device, two);
  two = chunk_open(device, CHUNK);
  assert_int_equal(info_get(device).peak_bytes, 3 * CHUNK);
  assert_int_equal(lade_device_chunk_create(device, CAPACITY, &none), -ENOMEM);
  assert_int_equal(info_get(device).peak_bytes, 3 * CHUNK); /* a refused request does not count */
  lade_device_peak_reset(device);
  assert_int_equal(info_get(device).peak_bytes, 2 * CHUNK);
  lade_device_chunk_release(device, one);
  lade_device_chunk_release(device, two);
  assert_int_equal(info_get(device).peak_bytes, 2 * CHUNK);
  lade_device_close(device);
}

static uint64_t resident_bytes(void)
{
  unsigned long long total = 0, resident = 0;
  FILE *file = fopen("/proc/self/statm", "re");
  assert_non_null(file);
  assert_int_equal(fscanf(file, "%llu %llu", &total, &resident), 2);
  fclose(file);
  return resident * (uint64_t)sysconf(_SC_PAGESIZE);
}

/* A chunk that a machine out of addresses refuses to unmap can still be released, and leaves its place free. */
static void a_mapped_chunk_can_be_given_back(void **state)
{
  lade_device *device = device_open(state, NULL);
  uint64_t at = 0;
  lade_chunk *one = chunk_open(device, CHUNK), *two = chunk_open(device, 2 * CHUNK);
  assert_int_equal(lade_device_reserve(device, 4 * CHUNK, &at), 0);
  assert_int_equal(lade_device_map(device, at, one), 0);
  assert_int_equal(lade_device_map(device, at + CHUNK, two), 0);
  lade_device_chunk_release(device, one);
  assert_int_equal(info_get(device).created_bytes, 2 * CHUNK);
  lade_chunk *three = chunk_open(device, CHUNK);
  assert_int_equal(lade_device_map(device, at + CHUNK, three), -EBUSY);
  assert_int_equal(lade_device_map(device, at, three), 0);
  lade_device_chunk_release(device, two);
  lade_device_chunk_release(device, three);
  lade_device_release(device, at, 4 * CHUNK);
  lade_device_close(device);
}

/* Return the bytes in use: of the process's memory, or of the GPU's by its driver's count. */
static uint64_t used_bytes(const struct target *target, lade_device *device)
{
  struct lade_cuda_memory memory = {0};
  if (!target->is_cuda)
    return resident_bytes();
  assert_int_equal(lade_cuda_get_memory(device, &memory), 0);
  return memory.total_bytes - memory.free_bytes;
}

static void chunks_are_real_memory_and_go_back(void **state)
{
  const struct target *target = *state;
  lade_device *device = device_open(state, NULL);
  uint64_t before = used_bytes(target, device);
  lade_chunk *chunk = chunk_open(device, CAPACITY);
  uint64_t with = used_bytes(target, device);
  lade_device_chunk_release(device, chunk);
  uint64_t after = used_bytes(target, device);
  if (target->is_dry) {
    assert_true(with < before + CAPACITY / 8);
  } else {
    assert_true(with >= before + CAPACITY / 8 * 7);
    assert_true(after <= before + CAPACITY / 8);
  }
  lade_device_close(device);
}

/* True if every page is present, by the kernel's report. */
static bool is_present(uint64_t address, uint64_t bytes)
{
  unsigned char present[5 * CHUNK / 4096];
  size_t n_pages = bytes / (uint64_t)sysconf(_SC_PAGESIZE);
  bool is_all = n_pages <= sizeof(present) && mincore(words(address), bytes, present) == 0;
  for (size_t i = 0; is_all && i < n_pages; i++)
    is_all = present[i] & 1;
  return is_all;
}

static void fresh_chunks_are_zero_and_present(void **state)
{
  const struct target *target = *state;
  unsigned char *bytes = malloc(5 * CHUNK);
  lade_device *device = device_open(state, NULL);
  uint64_t at = 0;
  assert_int_equal(lade_device_reserve(device, 8 * CHUNK, &at), 0);
  for (int round = 0; round < 3; round++) {
    lade_chunk *chunk = chunk_open(device, 5 * CHUNK);
    assert_int_equal(lade_device_map(device, at + CHUNK, chunk), 0);
    if (info_get(device).is_unified)
      assert_true(is_present(at + CHUNK, 5 * CHUNK));
    if (!target->is_dry) {
      memory_read(device, bytes, at + CHUNK, 5 * CHUNK);
      for (uint64_t i = 0; i < 5 * CHUNK; i++)
        assert_int_equal(bytes[i], 0);
      memset(bytes, 0xff, 5 * CHUNK);
      memory_write(device, at + CHUNK, bytes, 5 * CHUNK);
    }
    assert_int_equal(lade_device_unmap(device, at, 8 * CHUNK), 0);
    lade_device_chunk_release(device, chunk);
  }
  lade_device_release(device, at, 8 * CHUNK);
  lade_device_close(device);
  free(bytes);
}

static void contents_survive_unmap_and_remap(void **state)
{
  const struct target *target = *state;
  struct lade_faults faults;
  lade_faults_init(&faults);
  lade_device *device = device_open(state, &faults);
  uint64_t at = 0;
  assert_int_equal(lade_device_reserve(device, 8 * CHUNK, &at), 0);
  lade_chunk *one = chunk_open(device, 2 * CHUNK), *two = chunk_open(device, CHUNK);
  uint64_t place[] = {0, 5, 1, 3};
  for (int round = 0; round < 4; round++) {
    uint64_t at_one = at + place[round] * CHUNK, at_two = at_one + 2 * CHUNK;
    /* The second half of the rounds simulates a kernel that cannot keep the source of a move. */
    lade_faults_arm(&faults, LADE_FAULT_MOVE, round >= 2, true, -EINVAL);
    assert_int_equal(lade_device_map(device, at_one, one), 0);
    assert_int_equal(lade_device_map(device, at_two, two), 0);
    if (!target->is_dry) {
      if (round == 0) {
        words_fill(device, at_one, 2 * CHUNK, 1);
        words_fill(device, at_two, CHUNK, 2);
      }
      words_check(device, at_one, 2 * CHUNK, 1);
      words_check(device, at_two, CHUNK, 2);
    }
    assert_int_equal(lade_device_unmap(device, at_one, 3 * CHUNK), 0);
    if (info_get(device).is_unified) {
      assert_true(is_faulting(at_one));
      assert_int_equal(lade_faults_injected(&faults), round >= 2 ? 2 : 0);
    }
  }
  lade_device_chunk_release(device, one);
  lade_device_chunk_release(device, two);
  lade_device_release(device, at, 8 * CHUNK);
  lade_device_close(device);
}

static void an_access_past_the_mapping_faults(void **state)
{
  const struct target *target = *state;
  if (target->is_dry || target->is_cuda) /* the processor does not reach the memory */
    return;
  lade_device *device = device_open(state, NULL);
  uint64_t at = 0;
  assert_int_equal(lade_device_reserve(device, 4 * CHUNK, &at), 0);
  assert_true(is_faulting(at));
  lade_chunk *chunk = chunk_open(device, 2 * CHUNK);
  assert_int_equal(lade_device_map(device, at + CHUNK, chunk), 0);
  assert_true(is_faulting(at + CHUNK - 1));
  assert_false(is_faulting(at + CHUNK));
  assert_false(is_faulting(at + 3 * CHUNK - 1));
  assert_true(is_faulting(at + 3 * CHUNK));
  assert_int_equal(lade_device_unmap(device, at + CHUNK, 2 * CHUNK), 0);
  assert_true(is_faulting(at + CHUNK));
  assert_true(is_faulting(at + 3 * CHUNK - 1));
  lade_device_chunk_release(device, chunk);
  lade_device_release(device, at, 4 * CHUNK);
  lade_device_close(device);
}

static void a_shared_chunk_has_two_addresses(void **state)
{
  const struct target *target = *state;
  lade_device *device = device_open(state, NULL);
  lade_chunk *shared = NULL, *twin = NULL, *common = chunk_open(device, CHUNK);
  uint64_t at = 0;
  int descriptor = -1;
  const bool is_reached = !target->is_cuda; /* by the processor; and only there an import knows the size */
  if (target->is_dry) {
    assert_int_equal(lade_device_chunk_create_shared(device, CHUNK, &shared), -ENOTSUP);
    assert_int_equal(lade_device_chunk_export(device, common, &descriptor), -ENOTSUP);
    assert_int_equal(lade_device_chunk_import(device, 0, CHUNK, &twin), -ENOTSUP);
  } else {
    assert_int_equal(lade_device_chunk_export(device, common, &descriptor), -EINVAL);
    assert_int_equal(lade_device_chunk_create_shared(device, CAPACITY, &shared), -ENOMEM);
    assert_int_equal(lade_device_chunk_create_shared(device, 2 * CHUNK, &shared), 0);
    assert_int_equal(lade_device_chunk_export(device, shared, &descriptor), 0);
    if (is_reached)
      assert_int_equal(lade_device_chunk_import(device, descriptor, CHUNK, &twin), -EINVAL);
    assert_int_equal(lade_device_chunk_import(device, descriptor, 2 * CHUNK, &twin), 0);
    close(descriptor);
    assert_int_equal(info_get(device).created_bytes, 3 * CHUNK); /* the twin has no memory of its own */
    assert_int_equal(lade_device_reserve(device, 4 * CHUNK, &at), 0);
    assert_int_equal(lade_device_map(device, at + 2 * CHUNK, twin), 0);
    words_zero_check(device, at + 2 * CHUNK, 2 * CHUNK);
    words_fill(device, at + 2 * CHUNK, 2 * CHUNK, 1);
    assert_int_equal(lade_device_map(device, at, shared), 0);
    words_check(device, at, 2 * CHUNK, 1);
    assert_int_equal(lade_device_unmap(device, at, 2 * CHUNK), 0);
    assert_true(!is_reached || is_faulting(at));
    words_fill(device, at + 2 * CHUNK, 2 * CHUNK, 2);
    assert_int_equal(lade_device_map(device, at, shared), 0);
    words_check(device, at, 2 * CHUNK, 2);
    lade_device_chunk_release(device, shared); /* mapped: its place is empty then, and the twin keeps the memory */
    assert_true(!is_reached || is_faulting(at));
    words_check(device, at + 2 * CHUNK, 2 * CHUNK, 2);
    lade_device_chunk_release(device, twin);
    assert_true(!is_reached || is_faulting(at + 2 * CHUNK));
    lade_device_release(device, at, 4 * CHUNK);
  }
  lade_device_chunk_release(device, common);
  assert_int_equal(info_get(device).created_bytes, 0);
  lade_device_close(device);
}

/* So no page is copied on write during a step, and a child cannot damage it. */
static void a_forked_child_has_no_chunks(void **state)
{
  const struct target *target = *state;
  if (target->is_dry || target->is_cuda) /* the processor does not reach the memory */
    return;
  lade_device *device = device_open(state, NULL);
  uint64_t at = 0;
  assert_int_equal(lade_device_reserve(device, 2 * CHUNK, &at), 0);
  lade_chunk *chunk = chunk_open(device, CHUNK);
  for (int round = 0; round < 2; round++) { /* also after a move */
    assert_int_equal(lade_device_map(device, at + (uint64_t)round * CHUNK, chunk), 0);
    words_fill(device, at + (uint64_t)round * CHUNK, CHUNK, 5);
    pid_t child = fork();
    if (child == 0)
      _exit(is_faulting(at + (uint64_t)round * CHUNK) ? 0 : 1);
    int status = -1;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    words_check(device, at + (uint64_t)round * CHUNK, CHUNK, 5);
    assert_int_equal(lade_device_unmap(device, at, 2 * CHUNK), 0);
  }
  lade_device_chunk_release(device, chunk);
  lade_device_release(device, at, 2 * CHUNK);
  lade_device_close(device);
}

#define N_PLACES 24
#define N_CHUNKS 8

/* Random creating, mapping, unmapping and releasing, compared with a table of the expected mappings. */
static void random_mapping_agrees_with_a_model(void **state)
{
  const struct target *target = *state;
  lade_device *device = device_open(state, NULL);
  lade_chunk *chunks[N_CHUNKS] = {0};
  uint64_t n[N_CHUNKS] = {0}, place[N_CHUNKS] = {0}, at = 0, created = 0;
  bool is_mapped[N_CHUNKS] = {0};
  int owner[N_PLACES];
  memset(owner, -1, sizeof(owner));
  assert_int_equal(lade_device_reserve(device, N_PLACES * CHUNK, &at), 0);
  for (uint64_t step = 0; step < 600; step++) {
    struct lade_philox draw = lade_philox_draw(7, 0, 0, step);
    uint32_t i = draw.word[0] % N_CHUNKS, to = draw.word[1] % N_PLACES;
    if (!chunks[i]) {
      n[i] = 1 + draw.word[2] % 4;
      chunks[i] = chunk_open(device, n[i] * CHUNK);
      created += n[i] * CHUNK;
      assert_int_equal(info_get(device).created_bytes, created);
      continue;
    }
    if (is_mapped[i]) {
      if (!target->is_dry)
        words_check(device, at + place[i] * CHUNK, n[i] * CHUNK, i);
      assert_int_equal(lade_device_unmap(device, at + place[i] * CHUNK, n[i] * CHUNK), 0);
      for (uint64_t k = 0; k < n[i]; k++)
        owner[place[i] + k] = -1;
      is_mapped[i] = false;
      if (draw.word[3] % 3 == 0) {
        lade_device_chunk_release(device, chunks[i]);
        chunks[i] = NULL;
        created -= n[i] * CHUNK;
      }
      continue;
    }
    int expected = to + n[i] > N_PLACES ? -EINVAL : 0;
    for (uint64_t k = 0; !expected && k < n[i]; k++)
      expected = owner[to + k] >= 0 ? -EBUSY : 0;
    assert_int_equal(lade_device_map(device, at + to * CHUNK, chunks[i]), expected);
    if (expected)
      continue;
    is_mapped[i] = true;
    place[i] = to;
    for (uint64_t k = 0; k < n[i]; k++)
      owner[to + k] = (int)i;
    if (!target->is_dry)
      words_fill(device, at + to * CHUNK, n[i] * CHUNK, i);
  }
  assert_int_equal(lade_device_unmap(device, at, N_PLACES * CHUNK), 0);
  for (int i = 0; i < N_CHUNKS; i++)
    lade_device_chunk_release(device, chunks[i]);
  lade_device_release(device, at, N_PLACES * CHUNK);
  lade_device_close(device);
}

/* Host memory is copied correctly, pinned or not; the caller's only duty is whole pages. */
static void pinned_memory_is_copied_like_any_other(void **state)
{
  const struct target *target = *state;
  lade_device *device = device_open(state, NULL);
  unsigned char *host = mmap(NULL, 2 * CHUNK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  uint64_t at = 0;
  assert_ptr_not_equal(host, MAP_FAILED);
  assert_int_equal(lade_device_pin(device, host + 5, CHUNK), -EINVAL);
  assert_int_equal(lade_device_pin(device, host, 100), -EINVAL);
  assert_int_equal(lade_device_pin(device, host, 0), -EINVAL);
  assert_int_equal(lade_device_pin(device, host, 2 * CHUNK), 0);
  assert_int_equal(lade_device_reserve(device, CHUNK, &at), 0);
  lade_chunk *chunk = chunk_open(device, CHUNK);
  assert_int_equal(lade_device_map(device, at, chunk), 0);
  if (!target->is_dry) {
    memset(host, 0x3c, CHUNK);
    copy_now(device, LADE_QUEUE_TO_DEVICE, (void *)(uintptr_t)at, host, CHUNK);
    copy_now(device, LADE_QUEUE_TO_HOST, host + CHUNK, (void *)(uintptr_t)at, CHUNK);
    assert_memory_equal(host, host + CHUNK, CHUNK);
  }
  lade_device_unpin(device, host, 2 * CHUNK);
  lade_device_chunk_release(device, chunk);
  lade_device_release(device, at, CHUNK);
  lade_device_close(device);
  munmap(host, 2 * CHUNK);
}

/* A driver's own host memory, if the device has any: zero, copied like other memory, refused past the limit. */
static void a_drivers_host_memory_is_zero_and_copied_like_any_other(void **state)
{
  lade_device *device = device_open(state, NULL);
  struct lade_host_chunk host = {0};
  uint64_t at = 0;
  assert_int_equal(lade_device_host_create(device, 0, CHUNK, 0, &host), -EINVAL);
  assert_int_equal(lade_device_host_create(device, CHUNK, CHUNK, -1, &host), -EINVAL);
  const int status = lade_device_host_create(device, CHUNK + 1, 16 * CHUNK, 0, &host);
  if (status) { /* unsupported here: pinned memory replaces it */
    assert_int_equal(host.bytes, 0);
    lade_device_close(device);
    return;
  }
  assert_true(host.bytes > CHUNK && host.bytes <= 16 * CHUNK);
  for (uint64_t i = 0; i < host.bytes; i++)
    assert_int_equal(host.data[i], 0);
  struct lade_host_chunk other = {0};
  assert_int_equal(lade_device_host_create(device, host.bytes, host.bytes - 1, 0, &other), -EOVERFLOW);
  assert_int_equal(lade_device_reserve(device, CHUNK, &at), 0);
  lade_chunk *chunk = chunk_open(device, CHUNK);
  assert_int_equal(lade_device_map(device, at, chunk), 0);
  memset(host.data, 0x3c, 64);
  copy_now(device, LADE_QUEUE_TO_DEVICE, (void *)(uintptr_t)at, host.data, CHUNK);
  copy_now(device, LADE_QUEUE_TO_HOST, host.data + 64, (void *)(uintptr_t)at, CHUNK);
  assert_memory_equal(host.data, host.data + 64, 64);
  lade_device_chunk_release(device, chunk);
  lade_device_release(device, at, CHUNK);
  lade_device_host_release(device, &host);
  lade_device_close(device);
}

int main(int argc, char **argv)
{
  struct CMUnitTest tests[] = {
      cmocka_unit_test(ranges_are_aligned_and_apart),
      cmocka_unit_test(addresses_cost_nothing),
      cmocka_unit_test(senseless_arguments_are_refused_and_change_nothing),
      cmocka_unit_test(opening_wants_complete_params),
      cmocka_unit_test(a_chunk_may_be_released_where_it_is_mapped),
      cmocka_unit_test(capacity_is_hard_and_exact),
      cmocka_unit_test(threads_cannot_overshoot_the_capacity_together),
      cmocka_unit_test(peak_is_the_max_that_existed_at_once),
      cmocka_unit_test(a_mapped_chunk_can_be_given_back),
      cmocka_unit_test(chunks_are_real_memory_and_go_back),
      cmocka_unit_test(fresh_chunks_are_zero_and_present),
      cmocka_unit_test(contents_survive_unmap_and_remap),
      cmocka_unit_test(an_access_past_the_mapping_faults),
      cmocka_unit_test(a_shared_chunk_has_two_addresses),
      cmocka_unit_test(a_forked_child_has_no_chunks),
      cmocka_unit_test(pinned_memory_is_copied_like_any_other),
      cmocka_unit_test(a_drivers_host_memory_is_zero_and_copied_like_any_other),
      cmocka_unit_test(random_mapping_agrees_with_a_model),
  };
  return target_run(argc, argv, tests, LADE_COUNT(tests));
}
