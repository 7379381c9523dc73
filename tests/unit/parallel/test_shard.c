/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lade/shard.h on the ranks that it is started on: one here, several through tests/system/shard.py.
 *
 * Usage: test-shard [kill|abort|sizes|memory]. Without an ending all properties are tested. With one, the last rank
 * dies, aborts, cuts a vector of another size, or has no memory for a shard. Each rank prints the status of its call.
 */
#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/base.h"
#include "base/float.h"
#include "lade/adam.h"
#include "lade/shard.h"
#include "tests/support/heap/allocations.h"
#include "tests/support/names.h"

#define N 70001 /* no multiple of a block, for any number of ranks */
#define STEPS 4

static lade_ranks *ranks;
static int rank, size;
static struct lade_error error;

#define assert_works(call) \
  do { \
    if (call) \
      fail_msg("rank %d: %s", rank, error.text); \
  } while (0)

static int ranks_open(void)
{
  const struct lade_ranks_params params = {.struct_size = sizeof(params), .n_threads = 1, .timeout_ms = 60000};
  struct lade_ranks_info info = {.struct_size = sizeof(info)};
  int status = lade_ranks_open(&params, &error, &ranks);
  if (!status)
    status = lade_ranks_get_info(ranks, &info, &error);
  rank = info.rank;
  size = info.size;
  return status;
}

static void *room(uint64_t bytes)
{
  void *data = calloc(1, bytes);
  assert_non_null(data);
  return data;
}

/* Return the value of @of_rank at @element: of all magnitudes, so that the order of a sum shows. */
static float value_at(int of_rank, uint64_t element)
{
  uint64_t x = (uint64_t)(of_rank + 1) * 0x9e3779b97f4a7c15u ^ (element + 1) * 0xbf58476d1ce4e5b9u;
  x = (x ^ x >> 29) * 0x94d049bb133111ebu;
  float value = (float)((int64_t)(x >> 40) - 0x800000) * 0x1p-22f;
  return x % 16 == 0 ? value * 1e5f : value;
}

static struct lade_shard_info info_of(const lade_shard *shard)
{
  struct lade_shard_info info = {.struct_size = sizeof(info)};
  assert_works(lade_shard_get_info(shard, &info, &error));
  return info;
}

static struct lade_shard_block block_of(const lade_shard *shard, int of_rank)
{
  struct lade_shard_block block = {.struct_size = sizeof(block)};
  assert_works(lade_shard_get_block(shard, of_rank, &block, &error));
  return block;
}

/* ---- the layout ---- */

static void blocks_cover_the_vector_once(void **state)
{
  static const uint64_t sizes[] = {1, 511, 512, 513, 2048, 2049, 100003, UINT64_C(1) << 40};
  for (size_t i = 0; i < LADE_COUNT(sizes); i++) {
    lade_shard *shard = NULL;
    assert_works(lade_shard_create(ranks, sizes[i], &error, &shard));
    struct lade_shard_info info = info_of(shard);
    assert_int_equal(info.n_elements, sizes[i]);
    assert_int_equal(info.padded_elements, info.block_elements * (uint64_t)size);
    assert_int_equal(info.block_elements % LADE_SHARD_ELEMENTS, 0);
    assert_true(info.padded_elements - sizes[i] < (uint64_t)size * LADE_SHARD_ELEMENTS);
    uint64_t next = 0;
    for (int of_rank = 0; of_rank < size; of_rank++) {
      struct lade_shard_block block = block_of(shard, of_rank);
      int first = -1, last = -1;
      assert_int_equal(block.first_element, (uint64_t)of_rank * info.block_elements);
      if (block.n_elements) {
        assert_int_equal(block.first_element, next);
        assert_works(lade_shard_get_owner(shard, next, &first, &error));
        assert_works(lade_shard_get_owner(shard, next + block.n_elements - 1, &last, &error));
        assert_true(first == of_rank && last == of_rank);
      }
      next += block.n_elements;
    }
    assert_int_equal(next, sizes[i]);
    lade_shard_destroy(shard);
  }
}

/* ---- moving ---- */

/* Store a value as @dtype, whatever its width. */
static void element_put(enum lade_dtype dtype, void *data, uint64_t i, float value)
{
  if (dtype == LADE_F32)
    ((float *)data)[i] = value;
  else
    ((uint16_t *)data)[i] = lade_f32_to_bf16(value);
}

static float element_of(enum lade_dtype dtype, int of_rank, uint64_t i)
{
  float value = value_at(of_rank, i);
  return dtype == LADE_F32 ? value : lade_bf16_to_f32(lade_f32_to_bf16(value));
}

static void cutting_and_gathering_gives_the_vector_back(void **state)
{
  static const enum lade_dtype dtypes[] = {LADE_F32, LADE_BF16, LADE_I16};
  lade_shard *shard = NULL;
  assert_works(lade_shard_create(ranks, N, &error, &shard));
  struct lade_shard_info info = info_of(shard);
  for (size_t i = 0; i < 2 * LADE_COUNT(dtypes); i++) {
    enum lade_dtype dtype = dtypes[i / 2];
    size_t item = lade_dtype_bytes(dtype);
    bool is_in_place = i % 2;
    char *whole = room(N * item), *all = room(info.padded_elements * item), *apart = room(info.block_elements * item);
    char *own = is_in_place ? all + block_of(shard, rank).first_element * item : apart;
    for (uint64_t at = 0; at < N; at++)
      element_put(dtype, whole, at, value_at(0, at));
    memset(all, 0xa5, info.padded_elements * item);
    assert_works(lade_shard_cut(shard, dtype, whole, own, &error));
    assert_works(lade_shard_gather(shard, dtype, own, all, &error));
    assert_memory_equal(all, whole, N * item);
    for (uint64_t at = N * item; at < info.padded_elements * item; at++)
      assert_int_equal(all[at], 0);
    free(apart);
    free(all);
    free(whole);
  }
  lade_shard_destroy(shard);
}

/* Return the sum of the values of ranks [first, first + n) at @at, over the tree of sums over ranks. */
static float rank_sum(enum lade_dtype dtype, int first, int n, uint64_t at)
{
  int n_left = 1;
  if (n == 1)
    return element_of(dtype, first, at);
  while (2 * n_left < n)
    n_left *= 2;
  return rank_sum(dtype, first, n_left, at) + rank_sum(dtype, first + n_left, n - n_left, at);
}

static void sums_are_over_the_tree_of_ranks(void **state)
{
  lade_shard *shard = NULL;
  assert_works(lade_shard_create(ranks, N, &error, &shard));
  struct lade_shard_info info = info_of(shard);
  struct lade_shard_block block = block_of(shard, rank);
  void *shared = NULL;
  assert_works(lade_ranks_alloc(ranks, info.padded_elements * sizeof(float), &error, &shared));
  float *own = room(info.block_elements * sizeof(float));
  for (int is_f32 = 0; is_f32 < 2; is_f32++) {
    enum lade_dtype dtype = is_f32 ? LADE_F32 : LADE_BF16;
    for (uint64_t i = 0; i < info.padded_elements; i++)
      element_put(dtype, shared, i, value_at(rank, i));
    assert_works(lade_shard_reduce(shard, dtype, shared, own, &error));
    for (uint64_t i = 0; i < block.n_elements; i++) {
      float sum = rank_sum(dtype, 0, size, block.first_element + i);
      uint32_t got = is_f32 ? lade_f32_bits(own[i]) : ((uint16_t *)own)[i];
      assert_int_equal(got, is_f32 ? lade_f32_bits(sum) : lade_f32_to_bf16(sum));
    }
  }
  free(own);
  lade_ranks_free(ranks, shared);
  lade_ranks_free(ranks, NULL);
  lade_shard_destroy(shard);
}

static void sums_and_broadcasts_of_a_few_values(void **state)
{
  float values[3] = {(float)rank, 0.5f, -1};
  char words[16] = "";
  assert_works(lade_ranks_sum(ranks, values, 3, &error));
  assert_true(values[0] == (float)(size * (size - 1) / 2));
  assert_true(values[1] == 0.5f * (float)size && values[2] == (float)-size);
  if (rank == size - 1)
    strcpy(words, "from the last");
  assert_works(lade_ranks_broadcast(ranks, size - 1, words, sizeof(words), &error));
  assert_string_equal(words, "from the last");
}

/* Hybrid sharding from two splits: shards within a group of half the ranks, sums across groups. */
static void parts_have_ranks_of_their_own(void **state)
{
  lade_ranks *within = NULL, *across = NULL, *none = NULL;
  struct lade_ranks_info info = {.struct_size = sizeof(info)};
  int half = (size + 1) / 2;
  assert_works(lade_ranks_split(ranks, rank / half, 0, &error, &within));
  assert_works(lade_ranks_split(ranks, rank % half, 0, &error, &across));
  assert_works(lade_ranks_split(ranks, -1, 0, &error, &none));
  assert_null(none);
  assert_works(lade_ranks_get_info(within, &info, &error));
  assert_int_equal(info.rank, rank % half);
  float value = 1;
  assert_works(lade_ranks_sum(within, &value, 1, &error));
  assert_works(lade_ranks_sum(across, &value, 1, &error));
  if (size % 2 == 0 || size == 1)
    assert_true(value == (float)size);
  lade_ranks_close(across);
  lade_ranks_close(within);
}

/* ---- a training step ---- */

/* One copy of weights and state: of the whole vector, or of a block of it. */
struct copy {
  struct lade_adam_shard shard;
  void *state[5];
  float *grad;
  uint16_t *weight;
};

static void copy_init(struct copy *copy, lade_adam *adam, uint64_t first, uint64_t n, uint16_t *weight)
{
  struct lade_adam_bytes bytes = {.struct_size = sizeof(bytes)};
  copy->shard = (struct lade_adam_shard){
      .struct_size = sizeof(copy->shard), .dtype = LADE_BF16, .grad_dtype = LADE_F32, .moments = LADE_MOMENTS_8BIT,
      .master = LADE_MASTER_24BIT, .n_elements = (int64_t)n, .first_element = first, .has_decay = true};
  assert_works(lade_adam_get_bytes(&copy->shard, &bytes, &error));
  const uint64_t sizes[5] = {bytes.residual, bytes.m, bytes.v, bytes.m_scales, bytes.v_scales};
  for (int i = 0; i < 5; i++)
    copy->state[i] = room(sizes[i]);
  copy->shard.residual = copy->state[0];
  copy->shard.m = copy->state[1];
  copy->shard.v = copy->state[2];
  copy->shard.m_scales = copy->state[3];
  copy->shard.v_scales = copy->state[4];
  copy->grad = room(n * sizeof(float));
  copy->weight = weight;
  copy->shard.grad = copy->grad;
  copy->shard.weight = weight;
  float *master = room(n * sizeof(float));
  for (uint64_t i = 0; i < n; i++)
    master[i] = value_at(77, first + i);
  assert_works(lade_adam_set(adam, &copy->shard, master, &error));
  free(master);
}

static void copy_finish(struct copy *copy)
{
  for (int i = 0; i < 5; i++)
    free(copy->state[i]);
  free(copy->grad);
}

/* Return the gradient of @of_rank's data for a weight. */
static float gradient_at(int of_rank, uint64_t i, uint16_t weight, int step)
{
  return lade_bf16_to_f32(weight) - value_at(of_rank + 100 * step, i);
}

static void copy_update(struct copy *copy, lade_adam *adam, int step)
{
  const struct lade_adam_step adam_step = {.struct_size = sizeof(adam_step), .seed = 3, .step = (uint32_t)step,
                                           .lr = 0.01, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8,
                                           .weight_decay = 0.1,
                                           .grad_scale = 1.0 / size};
  assert_works(lade_adam_update(adam, &copy->shard, &adam_step, &error));
}

/* Return the sum of the gradients of the data of ranks [first, first + n), over the tree of sums over ranks. */
static float gradient_sum(int first, int n, uint64_t i, uint16_t weight, int step)
{
  int n_left = 1;
  if (n == 1)
    return gradient_at(first, i, weight, step);
  while (2 * n_left < n)
    n_left *= 2;
  return gradient_sum(first, n_left, i, weight, step) + gradient_sum(first + n_left, n - n_left, i, weight, step);
}

/* Step as one rank that has all the data: sum over the same tree, update everything. */
static void whole_step(struct copy *whole, lade_adam *adam, int step)
{
  for (uint64_t i = 0; i < N; i++)
    whole->grad[i] = gradient_sum(0, size, i, whole->weight[i], step);
  copy_update(whole, adam, step);
}

static void sharded_step(lade_shard *shard, struct copy *own, lade_adam *adam, uint16_t *weights, float *grads,
                         int step)
{
  for (uint64_t i = 0; i < N; i++)
    grads[i] = gradient_at(rank, i, weights[i], step);
  assert_works(lade_shard_reduce(shard, LADE_F32, grads, own->grad, &error));
  if (own->shard.n_elements)
    copy_update(own, adam, step);
  assert_works(lade_shard_gather(shard, LADE_BF16, own->weight, weights, &error));
}

static void a_sharded_step_is_one_rank_s_step_bit_for_bit(void **state)
{
  lade_shard *shard = NULL;
  lade_adam *adam = NULL;
  assert_works(lade_adam_create(1, &error, &adam));
  assert_works(lade_shard_create(ranks, N, &error, &shard));
  struct lade_shard_info info = info_of(shard);
  struct lade_shard_block block = block_of(shard, rank);
  uint16_t *weights = room(info.padded_elements * sizeof(*weights)), *all = room(N * sizeof(*all));
  float *grads = room(info.padded_elements * sizeof(*grads));
  struct copy whole, own;
  copy_init(&whole, adam, 0, N, all);
  copy_init(&own, adam, block.first_element, info.block_elements, weights + block.first_element);
  assert_works(lade_shard_gather(shard, LADE_BF16, own.weight, weights, &error));
  for (int step = 0; step < STEPS; step++) {
    whole_step(&whole, adam, step);
    sharded_step(shard, &own, adam, weights, grads, step);
    assert_memory_equal(weights, all, N * sizeof(*all));
  }
  copy_finish(&own);
  copy_finish(&whole);
  free(grads);
  free(all);
  free(weights);
  lade_shard_destroy(shard);
  lade_adam_destroy(adam);
}

/* ---- refusals ---- */

/* Check @status and that the line has all @names, which end with NULL. */
static void refused(int status, const char *const *names)
{
  assert_int_equal(status, -EINVAL);
  names_verify(error.text, names, __FILE__, __LINE__);
}

static void calls_that_make_no_sense_are_refused(void **state)
{
  const struct lade_ranks_params params = {.struct_size = sizeof(params), .n_threads = -1};
  struct lade_ranks_info none = {0};
  struct lade_shard_block block = {.struct_size = sizeof(block)};
  lade_ranks *more = NULL;
  lade_shard *shard = NULL;
  void *data = NULL;
  float x[LADE_SHARD_ELEMENTS] = {0};
  int owner;
  refused(lade_ranks_open(&params, &error, &more), NAMES("lade_ranks_params", "-1 threads"));
  refused(lade_ranks_get_info(ranks, &none, &error), NAMES("lade_ranks_info"));
  refused(lade_ranks_alloc(ranks, 0, &error, &data), NAMES("0 bytes"));
  refused(lade_ranks_broadcast(ranks, size, x, 4, &error), NAMES("broadcast", "rank"));
  refused(lade_shard_create(ranks, 0, &error, &shard), NAMES("lade_shard_create", "0 elements"));
  refused(lade_shard_create(ranks, UINT64_MAX, &error, &shard),
          NAMES("lade_shard_create", "18446744073709551615 elements"));
  assert_null(shard);
  assert_works(lade_shard_create(ranks, 100, &error, &shard));
  refused(lade_shard_get_block(shard, size, &block, &error), NAMES("lade_shard_get_block", "rank"));
  refused(lade_shard_get_owner(shard, 100, &owner, &error), NAMES("lade_shard_get_owner", "element 100"));
  refused(lade_shard_cut(shard, LADE_F32, NULL, x, &error), NAMES("lade_shard_cut"));
  refused(lade_shard_gather(shard, LADE_F32, x, NULL, &error), NAMES("all_gather", "buffer"));
  refused(lade_shard_reduce(shard, LADE_I16, x, x, &error), NAMES("f32", "bf16"));
  lade_shard_destroy(shard);
  lade_ranks_close(NULL);
  lade_shard_destroy(NULL);
}

/* ---- failing jobs ---- */

static int ending_run(const char *ending)
{
  bool is_bad = rank == size - 1;
  lade_shard *shard = NULL;
  float value = 1;
  signal(SIGTERM, SIG_IGN); /* the launcher ends the job by SIGTERM; the test is about Lade's own error */
  int status = lade_ranks_sum(ranks, &value, 1, &error);
  if (is_bad && strcmp(ending, "kill") == 0)
    kill(getpid(), SIGKILL);
  if (is_bad && strcmp(ending, "abort") == 0)
    lade_ranks_abort(ranks, "no data left");
  if (strcmp(ending, "sizes") == 0)
    status = lade_shard_create(ranks, is_bad ? 1001 : 1000, &error, &shard);
  if (strcmp(ending, "memory") == 0) {
    allocations_left = is_bad ? 2 : -1; /* the second allocation of the call fails */
    status = lade_shard_create(ranks, 1000, &error, &shard);
    allocations_left = -1;
  }
  while (!status)
    status = lade_ranks_sum(ranks, &value, 1, &error);
  lade_shard_destroy(shard);
  printf("END rank %d: %d: %s\n", rank, status, error.text);
  fflush(stdout);
  lade_ranks_close(ranks);
  return 1;
}

int main(int argc, char **argv)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(blocks_cover_the_vector_once),
      cmocka_unit_test(cutting_and_gathering_gives_the_vector_back),
      cmocka_unit_test(sums_are_over_the_tree_of_ranks),
      cmocka_unit_test(sums_and_broadcasts_of_a_few_values),
      cmocka_unit_test(parts_have_ranks_of_their_own),
      cmocka_unit_test(a_sharded_step_is_one_rank_s_step_bit_for_bit),
      cmocka_unit_test(calls_that_make_no_sense_are_refused),
  };
  int status = ranks_open();
  if (status) {
    printf("OPEN %d: %s\n", status, error.text);
    return 1;
  }
  if (argc > 1)
    return ending_run(argv[1]);
  int n_failed = cmocka_run_group_tests(tests, NULL, NULL);
  lade_ranks_close(ranks);
  return n_failed;
}
