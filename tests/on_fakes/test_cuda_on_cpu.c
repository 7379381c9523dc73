/* SPDX-License-Identifier: Apache-2.0 */
/* Running CUDA kernels on the CPU catches the documented errors: wrong kernels fail, a right one does not. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/base.h"
#include "base/float.h"
#include "hostile.h"
#include "tests/fakes/cuda_on_cpu/cuda_on_cpu_run.h"

#define N_THREADS 64
#define N_BLOCKS 5

extern const struct cuda_on_cpu_kernel reverse_on_cpu, reverse_raced_on_cpu, barrier_of_some_on_cpu,
    barrier_in_two_places_on_cpu, turns_on_cpu, shuffle_of_some_on_cpu, shared_unwritten_on_cpu,
    shared_overrun_on_cpu, copy_on_cpu, matrix_askew_on_cpu, product_on_cpu, warpgroup_on_cpu;

static void run_with(const struct cuda_on_cpu_kernel *kernel, enum cuda_on_cpu_order order, int n, float *to,
                     size_t shared_bytes)
{
  struct hostile_args args = {to, n};
  struct cuda_on_cpu_launch launch = {.kernel = kernel, .grid = {N_BLOCKS, 1, 1}, .n_threads = N_THREADS,
                                      .shared_bytes = shared_bytes, .order = order, .args = &args};
  cuda_on_cpu_run(&launch);
}

static void run(const struct cuda_on_cpu_kernel *kernel, enum cuda_on_cpu_order order, int n, float *to)
{
  run_with(kernel, order, n, to, N_THREADS * sizeof(float));
}

/* True if the launch ends its process by an abort, in every order. */
static bool aborts_in_every_order(struct cuda_on_cpu_launch launch)
{
  for (int order = 0; order < CUDA_N_ORDERS; order++) {
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
      signal(SIGABRT, SIG_DFL);
      launch.order = (enum cuda_on_cpu_order)order;
      cuda_on_cpu_run(&launch);
      _exit(0);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    if (!WIFSIGNALED(status))
      return false;
  }
  return true;
}

static bool aborts_with(const struct cuda_on_cpu_kernel *kernel, int n, size_t shared_bytes)
{
  _Alignas(16) float to[4 * N_THREADS * N_BLOCKS];
  struct hostile_args args = {to, n};
  return aborts_in_every_order((struct cuda_on_cpu_launch){.kernel = kernel, .grid = {N_BLOCKS, 1, 1},
                                                           .n_threads = N_THREADS, .shared_bytes = shared_bytes,
                                                           .args = &args});
}

static bool aborts(const struct cuda_on_cpu_kernel *kernel, int n)
{
  return aborts_with(kernel, n, N_THREADS * sizeof(float));
}

static void a_right_kernel_is_right_in_every_order(void **state)
{
  for (int order = 0; order < CUDA_N_ORDERS; order++) {
    float to[N_THREADS * N_BLOCKS];
    run(&reverse_on_cpu, (enum cuda_on_cpu_order)order, 0, to);
    for (int i = 0; i < N_THREADS * N_BLOCKS; i++)
      assert_true(to[i] == (float)(N_THREADS - 1 - i % N_THREADS));
  }
}

static void a_missing_barrier_shows(void **state)
{
  float forward[N_THREADS * N_BLOCKS], backward[N_THREADS * N_BLOCKS];
  run(&reverse_raced_on_cpu, CUDA_FORWARD, 0, forward);
  run(&reverse_raced_on_cpu, CUDA_BACKWARD, 0, backward);
  assert_memory_not_equal(forward, backward, sizeof(forward));
  assert_true(isnan(forward[0]) && isnan(backward[N_THREADS - 1]));
}

static void divergent_barriers_are_caught(void **state)
{
  assert_true(aborts(&barrier_of_some_on_cpu, 1));
  assert_true(aborts(&barrier_of_some_on_cpu, N_THREADS - 1));
  assert_true(aborts(&barrier_in_two_places_on_cpu, 32));
  assert_true(aborts(&shuffle_of_some_on_cpu, 31));
  assert_false(aborts(&barrier_of_some_on_cpu, N_THREADS));
  assert_false(aborts(&shuffle_of_some_on_cpu, 32));
}

static void named_barriers_are_turns(void **state)
{
  for (int order = 0; order < CUDA_N_ORDERS; order++) {
    float to[N_THREADS * N_BLOCKS];
    run(&turns_on_cpu, (enum cuda_on_cpu_order)order, 0, to);
    for (int i = 0; i < N_THREADS * N_BLOCKS; i++)
      assert_true(i % N_THREADS >= 32 || to[i] == (float)(31 - i % N_THREADS));
  }
  for (int wrong = 1; wrong <= 4; wrong++)
    assert_true(aborts(&turns_on_cpu, wrong));
}

static void shared_memory_is_poison_in_every_block_and_has_an_end(void **state)
{
  float to[N_THREADS * N_BLOCKS];
  run(&shared_unwritten_on_cpu, CUDA_FORWARD, 0, to);
  for (int i = 0; i < N_THREADS * N_BLOCKS; i++)
    assert_true(isnan(to[i]));
  assert_true(aborts(&shared_overrun_on_cpu, 0));
}

/* Each thread copies four values, and its own is the first of them. */
static void a_copy_is_there_once_it_was_waited_for(void **state)
{
  for (int has_waited = 0; has_waited < 2; has_waited++) {
    _Alignas(16) float to[4 * N_THREADS * N_BLOCKS];
    for (int i = 0; i < 4 * N_THREADS * N_BLOCKS; i++)
      to[i] = (float)i;
    run_with(&copy_on_cpu, CUDA_SHUFFLED, has_waited, to, 4 * N_THREADS * sizeof(float));
    for (int i = 0; i < N_THREADS * N_BLOCKS; i++)
      assert_true(has_waited ? to[4 * i] == (float)(4 * i + i % 4) : isnan(to[4 * i]));
  }
  assert_true(aborts_with(&copy_on_cpu, 2, 4 * N_THREADS * sizeof(float)));
}

static void matrices_begin_at_whole_chunks(void **state)
{
  assert_true(aborts(&matrix_askew_on_cpu, 1));
  assert_false(aborts(&matrix_askew_on_cpu, 0));
}

static void fragments_make_the_product(void **state)
{
  for (int is_turned = 0; is_turned < 2; is_turned++) {
    float c[16 * 8];
    run_with(&product_on_cpu, CUDA_SHUFFLED, is_turned, c, (256 + 128) * sizeof(uint16_t));
    for (int i = 0; i < 16; i++)
      for (int j = 0; j < 8; j++) {
        float sum = 0;
        for (int k = 0; k < 16; k++)
          sum += (float)(16 * i + k) * (float)(k - j);
        assert_true(c[8 * i + j] == sum);
      }
  }
}

/* The operands of a product, rows of 64, and its sums. */
struct warpgroup {
  _Alignas(16) uint16_t rows[64 + 128][64];
  float c[64][128];
};

static struct cuda_on_cpu_launch warpgroup_launch(struct warpgroup *warpgroup, struct hostile_args *args,
                                                  enum wrong wrong)
{
  for (int i = 0; i < 64 + 128; i++)
    for (int k = 0; k < 64; k++)
      warpgroup->rows[i][k] = lade_f32_to_bf16((float)((i * 5 + k * 3) % 17 - 8));
  *args = (struct hostile_args){(float *)warpgroup, (int)wrong};
  return (struct cuda_on_cpu_launch){.kernel = &warpgroup_on_cpu, .grid = {1, 1, 1}, .n_threads = 128,
                                     .shared_bytes = 25 << 10, .args = args};
}

static void warpgroups_make_the_product(void **state)
{
  static struct warpgroup warpgroup;
  struct hostile_args args;
  for (int order = 0; order < CUDA_N_ORDERS; order++) {
    struct cuda_on_cpu_launch launch = warpgroup_launch(&warpgroup, &args, NOTHING);
    launch.order = (enum cuda_on_cpu_order)order;
    cuda_on_cpu_run(&launch);
    for (int i = 0; i < 64; i++)
      for (int j = 0; j < 128; j++) {
        float sum = 0;
        for (int k = 0; k < 64; k++)
          sum += lade_bf16_to_f32(warpgroup.rows[i][k]) * lade_bf16_to_f32(warpgroup.rows[64 + j][k]);
        assert_true(warpgroup.c[i][j] == sum);
      }
  }
}

static void errors_in_products_of_warpgroups_are_caught(void **state)
{
  static struct warpgroup warpgroup;
  struct hostile_args args;
  struct cuda_on_cpu_launch launch = warpgroup_launch(&warpgroup, &args, SUMS_READ);
  cuda_on_cpu_run(&launch);
  for (int i = 0; i < 128; i++)
    assert_true(isnan(warpgroup.c[0][i]));
  for (int wrong = SUMS_READ + 1; wrong < N_WRONGS; wrong++) {
    launch = warpgroup_launch(&warpgroup, &args, (enum wrong)wrong);
    if (!aborts_in_every_order(launch))
      fail_msg("wrong %d is not caught", wrong);
  }
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_right_kernel_is_right_in_every_order),
      cmocka_unit_test(a_missing_barrier_shows),
      cmocka_unit_test(divergent_barriers_are_caught),
      cmocka_unit_test(named_barriers_are_turns),
      cmocka_unit_test(shared_memory_is_poison_in_every_block_and_has_an_end),
      cmocka_unit_test(a_copy_is_there_once_it_was_waited_for),
      cmocka_unit_test(matrices_begin_at_whole_chunks),
      cmocka_unit_test(fragments_make_the_product),
      cmocka_unit_test(warpgroups_make_the_product),
      cmocka_unit_test(errors_in_products_of_warpgroups_are_caught),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
