/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The launcher's grids of CUDA kernels are within a GPU's limits and follow from shapes alone. No device is opened.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/base.h"
#include "kernels/cuda.h"
#include "kernels/cuda/launch_internal.h"

static void grid_verify(const struct lade_cuda_launcher *launcher, const struct lade_cuda_launch *launch,
                        const struct lade_step *step)
{
  assert_true(launch->grid[0] >= 1 && launch->grid[0] <= INT32_MAX);
  assert_true(launch->grid[1] >= 1 && launch->grid[1] <= 65535);
  assert_true(launch->grid[2] >= 1 && launch->grid[2] <= 65535);
  assert_true(launch->shared_bytes <= 227 << 10);
}

/* The largest attention that a table supports has a grid that a GPU accepts, in every variant. */
static void the_largest_attention_has_a_grid(void **state)
{
  const struct lade_cuda_launcher launcher = {.launch = grid_verify};
  const struct lade_kernel_ctx ctx = {.launcher = &launcher};
  const struct lade_attention_max max = lade_cuda_attention_max();
  const struct {
    enum lade_dtype dtype;
    int64_t head_dim, batch, seq_len;
  } shapes[] = {{LADE_F32, max.head_dim, 1, max.seq_len}, {LADE_F32, max.head_dim, max.batch, 64},
                {LADE_BF16, 64, 1, max.seq_len},           {LADE_F16, 128, 1, max.seq_len},
                {LADE_BF16, 128, max.batch, 64},           {LADE_BF16, max.head_dim, 1, max.seq_len},
                {LADE_F16, 80, 1, max.seq_len},            {LADE_BF16, 96, max.batch, 64}};
  for (int i = 0; i < (int)LADE_COUNT(shapes) * LADE_CUDA_N_ATTENTIONS; i++) {
    const enum lade_cuda_attention attention = (enum lade_cuda_attention)(i % LADE_CUDA_N_ATTENTIONS);
    const int k = i / LADE_CUDA_N_ATTENTIONS;
    const struct lade_attention_fwd_args fwd = {
        .dtype = shapes[k].dtype, .batch = shapes[k].batch, .seq_len = shapes[k].seq_len, .heads = 8, .n_kv_heads = 2,
        .head_dim = shapes[k].head_dim};
    const struct lade_attention_bwd_args bwd = {
        .dtype = shapes[k].dtype, .batch = shapes[k].batch, .seq_len = shapes[k].seq_len, .heads = 8, .n_kv_heads = 2,
        .head_dim = shapes[k].head_dim};
    lade_cuda_attention_fn(LADE_K_ATTENTION_FWD, attention)(&ctx, &fwd);
    lade_cuda_attention_fn(LADE_K_ATTENTION_BWD, attention)(&ctx, &bwd);
  }
}

struct grid_list {
  struct lade_cuda_launcher base;
  unsigned dq_blocks, dkv_blocks; /* of the gradients of queries; of keys and values */
  unsigned n_sums, n_deltas; /* launches of the sum of parts, and of delta */
};

static void grid_note(const struct lade_cuda_launcher *launcher, const struct lade_cuda_launch *launch,
                      const struct lade_step *step)
{
  struct grid_list *list = (struct grid_list *)(uintptr_t)launcher;
  const char *name = lade_cuda_function_name(launch->place);
  if (strstr(name, "dkv_sum"))
    list->n_sums++;
  else if (strstr(name, "delta"))
    list->n_deltas++;
  else if (strstr(name, "dkv"))
    list->dkv_blocks = launch->grid[0] * launch->grid[1] * launch->grid[2];
  else if (strstr(name, "dq"))
    list->dq_blocks = launch->grid[0] * launch->grid[1] * launch->grid[2];
}

/*
 * The blocks of keys and values fill 132 multiprocessors where query heads can be divided, by shape alone; their
 * scratch is priced. Whole key heads keep the grid of key heads.
 */
static void few_key_heads_are_divided(void **state)
{
  const struct {
    enum lade_cuda_attention attention;
    int64_t batch, seq_len, heads, n_kv_heads, head_dim;
    unsigned n_blocks, n_whole;
    int64_t n_parts;
  } cases[] = {{LADE_CUDA_BY_WGMMA, 1, 2048, 32, 8, 128, 256, 128, 2}, /* llama3-8b */
               {LADE_CUDA_BY_WGMMA, 1, 1024, 32, 8, 128, 256, 64, 4},
               {LADE_CUDA_BY_WGMMA, 1, 512, 32, 8, 128, 128, 32, 4},
               {LADE_CUDA_BY_WGMMA, 1, 4096, 32, 8, 128, 256, 256, 1},
               {LADE_CUDA_BY_WGMMA, 1, 1024, 25, 25, 64, 400, 400, 1}, /* gpt2-1.5b: blocks have 64 keys, */
               {LADE_CUDA_BY_WGMMA, 1, 2048, 32, 8, 64, 1024, 256, 4}, /* and three fill a multiprocessor */
               {LADE_CUDA_BY_WGMMA, 1, 2000, 28, 4, 128, 64 * 7, 64, 7},
               {LADE_CUDA_BY_WGMMA, 2, 2048, 28, 4, 128, 128 * 3, 128, 3},
               {LADE_CUDA_BY_MMA, 1, 2048, 32, 8, 128, 512, 256, 2},
               {LADE_CUDA_BY_MMA, 1, 2048, 8, 1, 256, 64 * 8, 64, 8},
               {LADE_CUDA_BY_PLAIN, 1, 512, 32, 8, 128, 8 * 64, 8 * 64, 1}};
  for (size_t i = 0; i < LADE_COUNT(cases); i++) {
    struct grid_list list = {{.launch = grid_note}};
    const struct lade_kernel_ctx ctx = {.launcher = &list.base};
    const struct lade_attention_bwd_args args = {
        .dtype = LADE_BF16, .batch = cases[i].batch, .seq_len = cases[i].seq_len, .heads = cases[i].heads,
        .n_kv_heads = cases[i].n_kv_heads, .head_dim = cases[i].head_dim};
    struct lade_kernels table;
    lade_cuda_kernels_init(&table);
    lade_cuda_attention_choose(&table, LADE_K_ATTENTION_BWD, cases[i].attention);
    table.fn[LADE_K_ATTENTION_BWD](&ctx, &args);
    assert_int_equal(list.dkv_blocks, cases[i].n_blocks);
    if (cases[i].attention == LADE_CUDA_BY_WGMMA) /* for heads of 64 one warpgroup, so that blocks overlap */
      assert_int_equal(list.dq_blocks,
                       args.batch * args.heads * lade_div_up(args.seq_len, args.head_dim == 64 ? 64 : 128));
    assert_int_equal(list.n_sums, cases[i].n_parts > 1);
    assert_int_equal(list.n_deltas, cases[i].attention != LADE_CUDA_BY_WGMMA); /* there dq makes it */
    const int64_t n_rows = args.batch * args.seq_len, delta = (n_rows * args.heads + 3) / 4 * 4;
    const int64_t part = n_rows * args.n_kv_heads * 2 * args.head_dim;
    assert_int_equal(lade_kernel_workspace_bytes(&table, LADE_K_ATTENTION_BWD, &args, 1),
                     4 * (delta + (cases[i].n_parts > 1 ? cases[i].n_parts * part : 0)));
    list.n_sums = 0;
    lade_kernel_fn *whole = lade_cuda_attention_whole_fn(table.fn[LADE_K_ATTENTION_BWD]);
    assert_int_equal(whole == NULL, cases[i].attention == LADE_CUDA_BY_PLAIN);
    if (whole)
      whole(&ctx, &args);
    assert_int_equal(list.dkv_blocks, cases[i].n_whole);
    assert_int_equal(list.n_sums, 0);
  }
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(the_largest_attention_has_a_grid),
      cmocka_unit_test(few_key_heads_are_divided),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
