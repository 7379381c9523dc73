/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Blocks and threads of a CUDA grid on one CPU thread.
 *
 * A thread of a block is a fiber. It runs until it ends or waits, at a barrier of the block, a named one or an
 * exchange of its warp; then the next thread runs. A warp goes on when its 32 lanes wait at the same exchange; if no
 * warp can, a block goes on when all its threads wait at the same barrier. If neither is possible the kernel is wrong:
 * some threads wait at another place, or have ended, and on a GPU it would hang or be undefined. A named barrier lets
 * go when as many threads as it names have arrived or wait; no thread may arrive twice before, and none may be left
 * there when the block ends. A thread has a stack from its first turn to its end, the one released last. Threads that
 * never wait therefore all use the same stack, which stays in the cache.
 *
 * Shared memory is poison (0xff bytes, NaN as floats) when a block begins, and a strip behind it must stay unchanged.
 * Threads take turns in rising, falling or shuffled order, and so do blocks: a kernel whose result depends on the order
 * lacks a barrier. In rising and falling order a warp goes as far ahead of the others as barriers allow. Warps that a
 * named barrier lets go come next, if they are before the one that arrived last: they are then ahead of products that
 * it has not waited for. A race within one turn, such as two lanes that store to one place, is not detected. An
 * asynchronous copy poisons its target when it begins and is carried out when the thread waits for it. A read before
 * that, or a late one of the old contents, reads poison.
 *
 * The address sanitizer, if linked in, is notified of every switch. The thread sanitizer would need a fiber of its own
 * for every thread of every block. This file and the kernels are therefore built without it, because they are one
 * thread's work under one lock.
 */
#include "cuda_on_cpu_run.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/base.h"
#include "cuda_on_cpu_wgmma.h"
#include "fiber.h"

#define MAX_THREADS 1024
#define WARP 32
#define STACK_BYTES (64 << 10)
#define N_COLOURS 61 /* stacks begin at different cache lines of a page, because equal ones would compete for a few
                        lines of the cache */
#define COLOUR_BYTES ((size_t)320)
#define SHARED_BYTES (227 << 10) /* shared memory of a block on the largest GPU */
#define STRIP_BYTES 256
#define POISON 0xff
#define SHUFFLE 0x9e3779b9u /* seed of shuffled orders */
#define N_NAMED 16 /* barriers; number 0 is that of the block */
#define MAX_COPIES 64 /* of a thread, in flight */

enum state { READY, AT_BARRIER, AT_EXCHANGE, AT_NAMED, ENDED };

/* An asynchronous copy; @from is NULL for zeroes. */
struct copy {
  void *to;
  const void *from;
  size_t n_bytes;
};

struct thread {
  struct fiber fiber;
  int stack;        /* -1: the thread has not begun, or has ended */
  enum state state;
  int line;         /* of the source, where it waits; at a named barrier, the barrier */
  unsigned n_exchanges;
  void *asan_stack; /* the address sanitizer's saved state of the fiber while it does not run */
  struct copy copies[MAX_COPIES];
  int n_copies;
};

/*
 * Values that lanes of a warp exchange: two sets in turn, because a lane may be in the next exchange while others still
 * read.
 */
struct warp {
  uint64_t bits[2][WARP];
};

/* A named barrier: the threads that have arrived, or wait there, since it began anew. */
struct named {
  bool is_there[MAX_THREADS];
  int n_there, n_expected;
};

static struct {
  pthread_mutex_t lock;
  struct thread threads[MAX_THREADS], scheduler;
  struct warp warps[MAX_THREADS / WARP];
  struct named named[N_NAMED];
  char *stacks;
  int free_stacks[MAX_THREADS], n_free;
  int current, n_threads;
  bool has_let_go; /* a named barrier, since this was cleared */
  uint32_t shuffle;
  const void *scheduler_bottom;
  size_t scheduler_bytes;
  struct cuda_on_cpu_launch launch;
} cpu = {.lock = PTHREAD_MUTEX_INITIALIZER};

struct cuda_on_cpu_index cuda_on_cpu_thread, cuda_on_cpu_block, cuda_on_cpu_block_size, cuda_on_cpu_grid_size;
extern unsigned char lade_shared[] __attribute__((visibility("default"))); /* as declared by kernels */
_Alignas(64) unsigned char lade_shared[SHARED_BYTES + STRIP_BYTES];

/* The address sanitizer's own interfaces (common_interface_defs.h, asan_interface.h), absent without it. */
void __sanitizer_start_switch_fiber(void **save, const void *bottom, size_t bytes) __attribute__((weak));
void __sanitizer_finish_switch_fiber(void *saved, const void **ret_bottom, size_t *ret_bytes) __attribute__((weak));
void __asan_unpoison_memory_region(const volatile void *at, size_t bytes) __attribute__((weak));

static char *stack_of(const struct thread *thread)
{
  return cpu.stacks + (ptrdiff_t)thread->stack * STACK_BYTES;
}

static void switch_to(struct thread *from, struct thread *to, bool is_last)
{
  const void *bottom = to == &cpu.scheduler ? cpu.scheduler_bottom : stack_of(to);
  size_t bytes = to == &cpu.scheduler ? cpu.scheduler_bytes : STACK_BYTES;
  if (__sanitizer_start_switch_fiber)
    __sanitizer_start_switch_fiber(is_last ? NULL : &from->asan_stack, bottom, bytes);
  fiber_switch(&from->fiber, &to->fiber);
  if (__sanitizer_finish_switch_fiber)
    __sanitizer_finish_switch_fiber(from->asan_stack, NULL, NULL);
}

/* ---- inside a thread of the block ---- */

static void thread_main(void)
{
  if (__sanitizer_finish_switch_fiber)
    __sanitizer_finish_switch_fiber(NULL, &cpu.scheduler_bottom, &cpu.scheduler_bytes);
  cpu.launch.kernel->run(cpu.launch.args, cpu.launch.step);
  struct thread *thread = &cpu.threads[cpu.current];
  if (thread->n_copies) {
    fprintf(stderr, "thread %d ended without waiting for its %d copies\n", cpu.current, thread->n_copies);
    abort();
  }
  wgmma_thread_end();
  thread->state = ENDED;
  switch_to(thread, &cpu.scheduler, true);
}

static void thread_wait(enum state state, int line)
{
  struct thread *thread = &cpu.threads[cpu.current];
  thread->state = state;
  thread->line = line;
  switch_to(thread, &cpu.scheduler, false);
}

void cuda_on_cpu_barrier(int line)
{
  thread_wait(AT_BARRIER, line);
}

/* Count this thread at a barrier. True if it is the last: those who wait there go on, and the barrier begins anew. */
static bool named_count(int barrier, int n_threads)
{
  LADE_ASSERT(barrier > 0 && barrier < N_NAMED && n_threads % WARP == 0);
  struct named *named = &cpu.named[barrier];
  if (named->is_there[cpu.current] || (named->n_there && named->n_expected != n_threads)) {
    fprintf(stderr, "thread %d of block %u,%u,%u %s\n", cpu.current, cuda_on_cpu_block.x, cuda_on_cpu_block.y,
            cuda_on_cpu_block.z, named->is_there[cpu.current] ? "arrives twice at a named barrier"
                                                              : "arrives at a named barrier of another size");
    abort();
  }
  named->is_there[cpu.current] = true;
  named->n_expected = n_threads;
  if (++named->n_there < n_threads)
    return false;
  for (int i = 0; i < cpu.n_threads; i++)
    if (cpu.threads[i].state == AT_NAMED && cpu.threads[i].line == barrier)
      cpu.threads[i].state = READY;
  memset(named, 0, sizeof(*named));
  cpu.has_let_go = true;
  return true;
}

void cuda_on_cpu_barrier_arrive(int barrier, int n_threads)
{
  named_count(barrier, n_threads);
}

void cuda_on_cpu_barrier_wait(int barrier, int n_threads)
{
  if (!named_count(barrier, n_threads))
    thread_wait(AT_NAMED, barrier);
}

const uint64_t *cuda_on_cpu_exchange(uint64_t bits, int line)
{
  int i = cpu.current;
  uint64_t *set = cpu.warps[i / WARP].bits[cpu.threads[i].n_exchanges++ % 2];
  set[i % WARP] = bits;
  thread_wait(AT_EXCHANGE, line);
  return set;
}

static void shared_check(const void *at, size_t n_bytes, const char *label)
{
  const unsigned char *byte = at;
  if (byte >= lade_shared && byte + n_bytes <= lade_shared + cpu.launch.shared_bytes && (uintptr_t)at % n_bytes == 0)
    return;
  fprintf(stderr, "%s at %td of %zu bytes of shared memory, not %zu whole ones there\n", label, byte - lade_shared,
          cpu.launch.shared_bytes, n_bytes);
  abort();
}

void cuda_on_cpu_copy(void *to, const void *from, size_t n_bytes)
{
  struct thread *thread = &cpu.threads[cpu.current];
  shared_check(to, n_bytes, "a copy");
  LADE_ASSERT((uintptr_t)from % n_bytes == 0 && thread->n_copies < MAX_COPIES);
  memset(to, POISON, n_bytes);
  wgmma_copy_begin(to);
  thread->copies[thread->n_copies++] = (struct copy){to, from, n_bytes};
}

void cuda_on_cpu_copies_wait(void)
{
  struct thread *thread = &cpu.threads[cpu.current];
  for (int i = 0; i < thread->n_copies; i++) {
    const struct copy *copy = &thread->copies[i];
    if (copy->from)
      memcpy(copy->to, copy->from, copy->n_bytes);
    else
      memset(copy->to, 0, copy->n_bytes);
    wgmma_copy_end(copy->to);
  }
  thread->n_copies = 0;
}

uint64_t cuda_on_cpu_row(const void *row)
{
  shared_check(row, 16, "a matrix's row");
  return (uint64_t)(uintptr_t)row;
}

/* ---- a block ---- */

static void threads_begin(void)
{
  for (int i = 0; i < cpu.n_threads; i++) {
    struct thread *thread = &cpu.threads[i];
    thread->state = READY;
    thread->n_exchanges = 0;
    thread->n_copies = 0;
    thread->stack = -1;
  }
  LADE_ASSERT(cpu.n_free == MAX_THREADS);
}

static void stack_take(struct thread *thread)
{
  thread->stack = cpu.free_stacks[--cpu.n_free];
  if (__asan_unpoison_memory_region) /* frames of the thread that ended here are left behind */
    __asan_unpoison_memory_region(stack_of(thread), STACK_BYTES);
  const size_t bytes = STACK_BYTES - (size_t)thread->stack % N_COLOURS * COLOUR_BYTES;
  fiber_init(&thread->fiber, stack_of(thread), bytes, thread_main);
}

/* Run thread @i until it waits or ends. */
static void turn_give(int i)
{
  struct thread *thread = &cpu.threads[i];
  if (thread->stack < 0)
    stack_take(thread);
  cpu.current = i;
  cuda_on_cpu_thread.x = (unsigned)i;
  switch_to(&cpu.scheduler, thread, false);
  if (thread->state == ENDED) {
    cpu.free_stacks[cpu.n_free++] = thread->stack;
    thread->stack = -1;
  }
}

/* An order of @n items: from the first on by a fixed step, cyclically, which meets each of them once. */
struct order {
  unsigned at, step, n;
};

static struct order order_begin(unsigned n, uint32_t shuffle)
{
  static const unsigned primes[] = {7919, 104729, 611953};
  unsigned prime = primes[(shuffle >> 16) % LADE_COUNT(primes)];
  if (cpu.launch.order == CUDA_BACKWARD)
    return (struct order){n - 1, n - 1, n};
  if (cpu.launch.order == CUDA_FORWARD || n % prime == 0)
    return (struct order){0, 1, n};
  return (struct order){(shuffle >> 8) % n, prime % n, n};
}

static unsigned order_next(struct order *order)
{
  unsigned at = order->at, next = at + order->step;
  order->at = next >= order->n ? next - order->n : next;
  return at;
}

/* Give each ready one of @n threads from @first on a turn. Return the number of turns. */
static int turns_give(int first, int n)
{
  int n_ready = 0;
  cpu.shuffle = cpu.shuffle * 1664525u + 1013904223u; /* Numerical Recipes' quick generator */
  struct order order = order_begin((unsigned)n, cpu.shuffle);
  for (int turn = 0; turn < n; turn++) {
    int i = first + (int)order_next(&order);
    if (cpu.threads[i].state != READY)
      continue;
    turn_give(i);
    n_ready++;
  }
  return n_ready;
}

/* Release all @n threads from @first if they wait in the same way and at one place. */
static void group_release(int first, int n, enum state state)
{
  for (int i = first; i < first + n; i++) {
    if (cpu.threads[i].state != state || cpu.threads[i].line != cpu.threads[first].line)
      return;
  }
  for (int i = first; i < first + n; i++)
    cpu.threads[i].state = READY;
}

/*
 * Run all threads to the next barrier of the block. Return the number of turns. In rising and falling order a warp gets
 * there before the next one begins, and the order begins anew when a named barrier has let warps go; in shuffled order
 * all warps go from exchange to exchange together.
 */
static int warps_run(void)
{
  const int n_warps = cpu.n_threads / WARP, n_at_once = cpu.launch.order == CUDA_SHUFFLED ? n_warps : 1;
  struct order order = order_begin((unsigned)(n_warps / n_at_once), cpu.shuffle);
  int n = 0;
  for (int turn = 0; turn < n_warps; turn += n_at_once) {
    const int first = (int)order_next(&order) * WARP;
    int n_ready;
    cpu.has_let_go = false;
    do {
      n_ready = turns_give(first, n_at_once * WARP);
      n += n_ready;
      for (int warp = 0; warp < n_at_once; warp++)
        group_release(first + warp * WARP, WARP, AT_EXCHANGE);
    } while (n_ready && (n_at_once > 1 || !cpu.has_let_go));
    if (n_at_once == 1 && cpu.has_let_go) {
      order = order_begin((unsigned)n_warps, cpu.shuffle);
      turn = -n_at_once;
    }
  }
  return n;
}

static bool all_ended(void)
{
  int n = 0;
  for (int i = 0; i < cpu.n_threads; i++)
    n += cpu.threads[i].state == ENDED;
  return n == cpu.n_threads;
}

static void stuck_report(void)
{
  static const char *const words[] = {"is ready", "waits at the barrier of", "waits at the shuffle of",
                                      "waits at named barrier", "has ended"};
  fprintf(stderr, "divergent barrier: in block %u,%u,%u", cuda_on_cpu_block.x, cuda_on_cpu_block.y,
          cuda_on_cpu_block.z);
  for (int i = 0, n = 0; i < cpu.n_threads && n < 4; i++) {
    const struct thread *thread = &cpu.threads[i], *before = &cpu.threads[i ? i - 1 : 0];
    if (i && thread->state == before->state && thread->line == before->line)
      continue;
    fprintf(stderr, "%s thread %d %s", n ? ";" : "", i, words[thread->state]);
    if (thread->state != ENDED)
      fprintf(stderr, thread->state == AT_NAMED ? " %d" : " line %d", thread->line);
    n++;
  }
  fprintf(stderr, "\n");
  abort();
}

static void block_run(void)
{
  memset(lade_shared, POISON, cpu.launch.shared_bytes + STRIP_BYTES);
  threads_begin();
  wgmma_block_begin(cpu.n_threads, cpu.launch.shared_bytes);
  while (warps_run() > 0)
    group_release(0, cpu.n_threads, AT_BARRIER);
  if (!all_ended())
    stuck_report();
  for (int i = 0; i < N_NAMED; i++) {
    if (cpu.named[i].n_there) {
      fprintf(stderr, "a block ended with %d of %d threads at named barrier %d\n", cpu.named[i].n_there,
              cpu.named[i].n_expected, i);
      abort();
    }
  }
  for (size_t i = 0; i < STRIP_BYTES; i++) {
    if (lade_shared[cpu.launch.shared_bytes + i] != POISON) {
      fprintf(stderr, "a block wrote %zu bytes behind its %zu of shared memory\n", i, cpu.launch.shared_bytes);
      abort();
    }
  }
}

static void stacks_make(void)
{
  cpu.stacks = mmap(NULL, (size_t)MAX_THREADS * STACK_BYTES, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  LADE_ASSERT(cpu.stacks != MAP_FAILED);
  for (; cpu.n_free < MAX_THREADS; cpu.n_free++)
    cpu.free_stacks[cpu.n_free] = MAX_THREADS - 1 - cpu.n_free;
}

static void begin(const struct cuda_on_cpu_launch *launch)
{
  LADE_ASSERT(launch->n_threads % WARP == 0 && launch->n_threads <= MAX_THREADS && launch->n_threads > 0);
  LADE_ASSERT(launch->shared_bytes <= SHARED_BYTES);
  if (!cpu.stacks)
    stacks_make();
  cpu.launch = *launch;
  cpu.n_threads = (int)launch->n_threads;
  cpu.shuffle = SHUFFLE;
  cuda_on_cpu_thread = (struct cuda_on_cpu_index){0, 0, 0};
  cuda_on_cpu_block_size = (struct cuda_on_cpu_index){launch->n_threads, 1, 1};
  cuda_on_cpu_grid_size = (struct cuda_on_cpu_index){launch->grid[0], launch->grid[1], launch->grid[2]};
}

void cuda_on_cpu_run(const struct cuda_on_cpu_launch *launch)
{
  pthread_mutex_lock(&cpu.lock);
  begin(launch);
  unsigned n_flat = launch->grid[0] * launch->grid[1] * launch->grid[2];
  struct order order = order_begin(n_flat, SHUFFLE);
  for (unsigned turn = 0; turn < n_flat; turn++) {
    unsigned i = order_next(&order);
    cuda_on_cpu_block = (struct cuda_on_cpu_index){i % launch->grid[0], i / launch->grid[0] % launch->grid[1],
                                                   i / launch->grid[0] / launch->grid[1]};
    block_run();
  }
  pthread_mutex_unlock(&cpu.lock);
}
