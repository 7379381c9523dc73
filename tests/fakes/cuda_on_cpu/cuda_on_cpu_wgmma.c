/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Products of warpgroups (wgmma) on a CPU, with checks of their order.
 *
 * A product runs asynchronously. Here it is computed as late as possible: when a thread waits for its group. From issue
 * to that moment the thread's sums are poison. A read that is too early reads NaN, and a write is found because the
 * poison is checked again. The operands in shared memory are read when the first of the 128 threads issues the product.
 * They must still be there, bit by bit, when each warp is done. Copies that come too early are found, because their
 * target is poison at once. A chunk of 16 bytes may be read after a copy of this block brought it, the copying thread
 * waited, and then published it; missing barriers show as copies that have not arrived.
 *
 * Between a wait and the next product a thread must pass a fence. Sums that are added to, and register operands, must
 * be as they were at that fence; an array is tracked from its first product on. Register operands must be unchanged
 * until the product is done. All 128 threads issue the same products in the same order, and wait for all of them. Of
 * descriptors only swizzling by 128 bytes is supported. Swizzling uses the address in shared memory. That memory begins
 * here at SHARED_FIRST, which is aligned to 16 bytes and no more, as CUDA promises it.
 *
 * Sums are in rising order of k; the hardware's order may differ.
 */
#include "cuda_on_cpu_wgmma.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "base/float.h"
#include "cuda_on_cpu_run.h"

#define GROUP 128 /* threads */
#define MAX_THREADS 1024
#define MAX_IN_FLIGHT 64  /* products of a thread */
#define MAX_SUMS 4        /* arrays of sums per thread */
#define LEFTS_MAX 16      /* register operands per thread */
#define MAX_N 128
#define M 64
#define K 16
#define CHUNK 16
#define LEFT 4 /* registers of a thread's part of a */
#define SHARED_FIRST 0x4d0u
#define SHARED_MAX (256u << 10)
#define IN_FLIGHT UINT64_MAX

/* 16 bytes that a product reads, and their contents at issue. */
struct chunk {
  const unsigned char *at;
  unsigned char bytes[CHUNK];
};

/* A product of a warpgroup. */
struct product {
  struct cuda_on_cpu_product form; /* of the first thread; c and a are each thread's own */
  float a[M][K];
  float b[4][K][MAX_N / 4]; /* by the lane of four that reads it: its columns in order */
  struct chunk chunks[M * K * 2 / CHUNK + MAX_N * K * 2 / CHUNK];
  int n_chunks;
};

static struct group {
  uint64_t n_issued; /* products, counted at the thread that has issued the most */
  struct product products[MAX_IN_FLIGHT];
  bool is_ended;     /* a thread has ended, after n_ended products */
  uint64_t n_ended;
} groups[MAX_THREADS / GROUP];

/* An array of sums that the thread has used. */
struct sums {
  float *c;
  int n;                     /* elements: half the columns */
  int n_under_way;           /* products */
  float value[MAX_N / 2];    /* during a product */
  float fenced[MAX_N / 2];   /* as of the last fence */
};

/* Registers of operand a that the thread has used. */
struct left {
  const uint32_t *a;
  uint32_t fenced[LEFT]; /* as of the last fence */
};

static struct thread {
  uint64_t n_issued, n_done;
  uint64_t groups_end[MAX_IN_FLIGHT]; /* products before the end of each committed group in flight */
  int n_groups;
  bool is_fenced;
  struct sums sums[MAX_SUMS];
  int n_sums;
  struct left lefts[LEFTS_MAX];
  int n_lefts;
  struct sums *sums_of[MAX_IN_FLIGHT]; /* by product */
  const uint32_t *left_of[MAX_IN_FLIGHT];
  uint32_t left[MAX_IN_FLIGHT][LEFT];   /* contents at issue */
  uint64_t published;                   /* time of the last publication */
} threads[MAX_THREADS];

static struct {
  int n_threads;
  size_t shared_bytes;
  uint64_t now, block_began; /* a clock that advances at every event */
  struct {
    uint64_t arrived; /* time of arrival, or IN_FLIGHT */
    unsigned writer;
  } chunks[SHARED_MAX / CHUNK];
} state;

extern unsigned char lade_shared[] __attribute__((visibility("default")));

__attribute__((format(printf, 1, 2))) static _Noreturn void wrong(const char *format, ...)
{
  va_list list;
  va_start(list, format);
  fprintf(stderr, "thread %u of block %u,%u,%u: ", cuda_on_cpu_thread.x, cuda_on_cpu_block.x, cuda_on_cpu_block.y,
          cuda_on_cpu_block.z);
  vfprintf(stderr, format, list);
  fprintf(stderr, "\n");
  va_end(list);
  abort();
}

static struct thread *self(void)
{
  return &threads[cuda_on_cpu_thread.x];
}

static struct group *group_get(void)
{
  return &groups[cuda_on_cpu_thread.x / GROUP];
}

/* ---- blocks and copies ---- */

void wgmma_block_begin(int n_threads, size_t shared_bytes)
{
  for (int i = 0; i < state.n_threads; i++) {
    struct thread *thread = &threads[i];
    thread->n_issued = thread->n_done = thread->published = 0;
    thread->n_groups = thread->n_sums = thread->n_lefts = 0;
    thread->is_fenced = false;
  }
  for (int i = 0; i < (state.n_threads + GROUP - 1) / GROUP; i++) {
    groups[i].n_issued = 0;
    groups[i].is_ended = false;
  }
  state.n_threads = n_threads;
  state.shared_bytes = shared_bytes;
  state.block_began = ++state.now;
}

void wgmma_copy_begin(const void *to)
{
  state.chunks[((const unsigned char *)to - lade_shared) / CHUNK].arrived = IN_FLIGHT;
}

void wgmma_copy_end(const void *to)
{
  const ptrdiff_t i = ((const unsigned char *)to - lade_shared) / CHUNK;
  state.chunks[i].arrived = ++state.now;
  state.chunks[i].writer = cuda_on_cpu_thread.x;
}

void cuda_on_cpu_copies_publish(void)
{
  self()->published = ++state.now;
}

unsigned cuda_on_cpu_shared(const void *at)
{
  return SHARED_FIRST + (unsigned)((const unsigned char *)at - lade_shared);
}

void wgmma_thread_end(void)
{
  const struct thread *thread = self();
  struct group *group = group_get();
  if (thread->n_done != thread->n_issued)
    wrong("it ended without waiting for %llu products", (unsigned long long)(thread->n_issued - thread->n_done));
  if (group->is_ended && group->n_ended != thread->n_issued)
    wrong("it issued %llu products, and another thread of its warpgroup %llu", (unsigned long long)thread->n_issued,
          (unsigned long long)group->n_ended);
  group->is_ended = true;
  group->n_ended = thread->n_issued;
}

/* ---- operands ---- */

/* Note 16 bytes of shared memory at @address for a product, after checking that it may read them. */
static const unsigned char *chunk_take(struct product *product, uint32_t address)
{
  const uint32_t at = address - SHARED_FIRST; /* wraps for an address before it */
  if (at % CHUNK || at >= state.shared_bytes || state.shared_bytes - at < CHUNK)
    wrong("a product reads at %#x of shared memory, which is %zu bytes from %#x on", address, state.shared_bytes,
          SHARED_FIRST);
  const uint64_t arrived = state.chunks[at / CHUNK].arrived;
  if (arrived == IN_FLIGHT || arrived <= state.block_began)
    wrong("a product reads at %#x of shared memory, %s", address,
          arrived == IN_FLIGHT ? "where a copy is under way" : "where no copy of this block has been");
  if (threads[state.chunks[at / CHUNK].writer].published < arrived)
    wrong("a product reads at %#x of shared memory, whose copy was not published", address);
  struct chunk *chunk = &product->chunks[product->n_chunks++];
  chunk->at = lade_shared + at;
  memcpy(chunk->bytes, chunk->at, CHUNK);
  return chunk->bytes;
}

/*
 * Return the address of eight elements, by the canonical layouts of PTX ISA section 9.7.15.5.1.2.1.3. Upright: row @i,
 * elements 8 @j.. of k. Transposed: element @i of k, columns 8 @j...
 */
static uint32_t chunk_address(uint64_t descriptor, bool is_turned, int i, int j)
{
  const uint32_t start = (uint32_t)(descriptor & 0x3fff) << 4, leading = (uint32_t)(descriptor >> 16 & 0x3fff) << 4;
  const uint32_t stride = (uint32_t)(descriptor >> 32 & 0x3fff) << 4;
  if (descriptor >> 62 != 1 || descriptor & 0x3fffc000c000c000)
    wrong("descriptor %#llx: only tiles swizzled by 128 bytes, from the pattern's first row on, are known here",
          (unsigned long long)descriptor);
  if (start & 0x380 || (is_turned && start & 0x70))
    wrong("descriptor %#llx begins within a pattern of eight rows", (unsigned long long)descriptor);
  const uint32_t column = is_turned ? (uint32_t)(j / 8) * leading + (uint32_t)(j % 8) * CHUNK : (uint32_t)j * CHUNK;
  const uint32_t address = start + (uint32_t)(i / 8) * stride + (uint32_t)(i % 8) * 128 + column;
  return address ^ (address >> 3 & 0x70);
}

static float element_get(const struct product *product, const unsigned char *bytes, int i)
{
  uint16_t bits;
  memcpy(&bits, bytes + 2 * i, sizeof(bits));
  return product->form.is_bf16 ? lade_bf16_to_f32(bits) : lade_f16_to_f32(bits);
}

static void b_put(struct product *product, int k, int column, float value)
{
  product->b[column % 8 / 2][k][column / 8 * 2 + column % 2] = value;
}

/* Read the operands in shared memory, when the first thread of the warpgroup issues the product. */
static void operands_take(struct product *product)
{
  const struct cuda_on_cpu_product *form = &product->form;
  product->n_chunks = 0;
  for (int i = 0; !form->a && i < M; i++)
    for (int j = 0; j < K / 8; j++) {
      const unsigned char *bytes = chunk_take(product, chunk_address(form->a_at, false, i, j));
      for (int e = 0; e < 8; e++)
        product->a[i][8 * j + e] = element_get(product, bytes, e);
    }
  const int n_i = form->is_turned ? K : form->n, n_j = (form->is_turned ? form->n : K) / 8;
  for (int i = 0; i < n_i; i++)
    for (int j = 0; j < n_j; j++) {
      const unsigned char *bytes = chunk_take(product, chunk_address(form->b_at, form->is_turned, i, j));
      for (int e = 0; e < 8; e++)
        b_put(product, form->is_turned ? i : 8 * j + e, form->is_turned ? 8 * j + e : i,
              element_get(product, bytes, e));
    }
}

/* Return the first row, of 64, that this thread has parts of. */
static int row_get(void)
{
  return (int)(cuda_on_cpu_thread.x % GROUP / 32 * 16 + cuda_on_cpu_thread.x % 32 / 4);
}

/* Store this thread's register part of a, laid out as in PTX ISA section 9.7.15.5.1.1.1. */
static void fragment_put(struct product *product, const uint32_t *a)
{
  const int row = row_get(), column = (int)(cuda_on_cpu_thread.x % 4 * 2);
  for (int i = 0; i < 4; i++)
    for (int e = 0; e < 2; e++)
      product->a[row + i % 2 * 8][column + i / 2 * 8 + e] =
          element_get(product, (const unsigned char *)&a[i], e);
}

/* ---- sums ---- */

static void poison_check(const struct sums *sums)
{
  const unsigned char *bytes = (const unsigned char *)sums->c;
  for (size_t i = 0; i < (size_t)sums->n * sizeof(float); i++)
    if (bytes[i] != 0xff)
      wrong("sum %zu was written while a product was under way", i / sizeof(float));
}

static struct sums *sums_find(struct thread *thread, float *c, int n)
{
  for (int i = 0; i < thread->n_sums; i++)
    if (thread->sums[i].c == c && thread->sums[i].n == n)
      return &thread->sums[i];
  LADE_ASSERT(thread->n_sums < MAX_SUMS);
  struct sums *sums = &thread->sums[thread->n_sums++];
  *sums = (struct sums){.c = c, .n = n};
  memcpy(sums->fenced, c, (size_t)n * sizeof(float)); /* its contents at the fence are unknown */
  return sums;
}

/* Begin a product of @sums: from the first product on they are poison. */
static void sums_begin(struct sums *sums, bool is_added)
{
  const size_t n_bytes = (size_t)sums->n * sizeof(float);
  if (sums->n_under_way++) {
    poison_check(sums);
    return;
  }
  if (is_added && memcmp(sums->c, sums->fenced, n_bytes) != 0)
    wrong("sums were written between the fence and the product that adds to them");
  memcpy(sums->value, sums->c, n_bytes);
  memset(sums->c, 0xff, n_bytes);
}

static void sums_end(struct sums *sums)
{
  poison_check(sums);
  if (--sums->n_under_way > 0)
    return;
  memcpy(sums->c, sums->value, (size_t)sums->n * sizeof(float));
  memcpy(sums->fenced, sums->value, sizeof(sums->fenced)); /* products need no fence between them */
}

/* Compute this thread's part of a product: two rows, two columns in each eight. */
static void product_make(const struct product *product, struct sums *sums)
{
  const int row = row_get(), n = product->form.n / 4;
  for (int half = 0; half < 2; half++) {
    float c[MAX_N / 4];
    for (int i = 0; i < n; i++)
      c[i] = product->form.is_added ? sums->value[i / 2 * 4 + 2 * half + i % 2] : 0;
    for (int k = 0; k < K; k++) {
      const float a = product->a[row + 8 * half][k], *b = product->b[cuda_on_cpu_thread.x % 4][k];
      for (int i = 0; i < n; i++)
        c[i] += a * b[i]; /* the product is exact */
    }
    for (int i = 0; i < n; i++)
      sums->value[i / 2 * 4 + 2 * half + i % 2] = c[i];
  }
}

/* ---- a from registers ---- */

/* Note that the next product reads registers @a; NULL: none. */
static void left_begin(struct thread *thread, const uint32_t *a)
{
  const uint64_t product = thread->n_issued % MAX_IN_FLIGHT;
  thread->left_of[product] = a;
  if (!a)
    return;
  int i = 0;
  while (i < thread->n_lefts && thread->lefts[i].a != a)
    i++;
  LADE_ASSERT(i < LEFTS_MAX);
  struct left *left = &thread->lefts[i];
  if (i == thread->n_lefts) { /* its contents at the fence are unknown */
    thread->n_lefts++;
    left->a = a;
    memcpy(left->fenced, a, sizeof(left->fenced));
  }
  if (memcmp(a, left->fenced, sizeof(left->fenced)) != 0)
    wrong("a was written between the fence and the product that reads it from registers");
  memcpy(thread->left[product], a, sizeof(thread->left[product]));
}

static void left_end(const struct thread *thread, uint64_t product)
{
  const uint32_t *a = thread->left_of[product % MAX_IN_FLIGHT];
  if (a && memcmp(a, thread->left[product % MAX_IN_FLIGHT], sizeof(thread->left[0])) != 0)
    wrong("a was written while a product read it from registers");
}

/* ---- for compiled kernels ---- */

void cuda_on_cpu_products_fence(int line)
{
  struct thread *thread = self();
  cuda_on_cpu_exchange(0, line);
  thread->is_fenced = true;
  for (int i = 0; i < thread->n_lefts; i++)
    memcpy(thread->lefts[i].fenced, thread->lefts[i].a, sizeof(thread->lefts[i].fenced));
  for (int i = 0; i < thread->n_sums; i++)
    if (!thread->sums[i].n_under_way)
      memcpy(thread->sums[i].fenced, thread->sums[i].c, (size_t)thread->sums[i].n * sizeof(float));
}

/* Check that all threads of a warpgroup issue the same product. */
static void product_compare(const struct product *first, const struct cuda_on_cpu_product *own)
{
  const struct cuda_on_cpu_product *form = &first->form;
  if (form->n != own->n || form->is_bf16 != own->is_bf16 || !form->a != !own->a || form->is_turned != own->is_turned ||
      form->is_added != own->is_added || form->b_at != own->b_at || form->a_at != own->a_at)
    wrong("it issues another product than the first of its warpgroup");
}

void cuda_on_cpu_product_issue(const struct cuda_on_cpu_product *form)
{
  struct thread *thread = self();
  struct group *group = group_get();
  struct product *product = &group->products[thread->n_issued % MAX_IN_FLIGHT];
  LADE_ASSERT(form->n <= MAX_N && state.n_threads % GROUP == 0);
  LADE_ASSERT(thread->n_issued - thread->n_done < MAX_IN_FLIGHT);
  if (!thread->is_fenced)
    wrong("a product without a fence since the last wait");
  if (thread->n_issued == group->n_issued) {
    product->form = *form;
    operands_take(product);
    group->n_issued++;
  }
  product_compare(product, form);
  left_begin(thread, form->a);
  if (form->a)
    fragment_put(product, form->a);
  struct sums *sums = sums_find(thread, form->c, form->n / 2);
  thread->sums_of[thread->n_issued++ % MAX_IN_FLIGHT] = sums;
  sums_begin(sums, form->is_added);
}

void cuda_on_cpu_products_commit(void)
{
  struct thread *thread = self();
  LADE_ASSERT(thread->n_groups < MAX_IN_FLIGHT);
  thread->groups_end[thread->n_groups++] = thread->n_issued;
}

static void product_end(struct thread *thread, uint64_t i)
{
  const struct product *product = &group_get()->products[i % MAX_IN_FLIGHT];
  struct sums *sums = thread->sums_of[i % MAX_IN_FLIGHT];
  for (int c = 0; cuda_on_cpu_thread.x % 32 == 0 && c < product->n_chunks; c++)
    if (memcmp(product->chunks[c].at, product->chunks[c].bytes, CHUNK) != 0)
      wrong("shared memory at %#x was written while a product read it", cuda_on_cpu_shared(product->chunks[c].at));
  left_end(thread, i);
  product_make(product, sums);
  sums_end(sums);
}

void cuda_on_cpu_products_wait(int n_pending, int line)
{
  struct thread *thread = self();
  const int n_done = thread->n_groups - n_pending;
  cuda_on_cpu_exchange(0, line); /* all lanes have issued */
  thread->is_fenced = false;
  if (n_done <= 0)
    return;
  while (thread->n_done < thread->groups_end[n_done - 1])
    product_end(thread, thread->n_done++);
  thread->n_groups = n_pending;
  memmove(thread->groups_end, thread->groups_end + n_done, (size_t)n_pending * sizeof(*thread->groups_end));
}
