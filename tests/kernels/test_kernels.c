/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every variant of every kernel compared with the plain reference. `--bench [OP…]` times them; the yardstick is the
 * bandwidth of a plain copy of as many bytes on the same threads. SEED=n in the environment repeats a run whose seed a
 * failure printed.
 */
#include "harness.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "base/base.h"
#include "fused.h"

#define N_OPS_LIMIT 64 /* and other tests */

static const struct op_set *const op_sets[] = {&row_ops, &element_ops, &optimizer_ops};
static uint64_t seed;

static void variants_equal_plain(void **state)
{
  op_check(*state, seed);
}

/*
 * A GPU adds a frequent token's rows in pieces, beside each other: of a first row of 2^24 and many of 1 it loses those
 * of the first piece alone. Added one after the other, all of them would be rounded away.
 */
static void rows_of_a_frequent_token_are_added_in_pieces(void **state)
{
  enum { ROWS = 2048, LOST_MAX = ROWS / 8 };
  const float first = 0x1p24f;
  const struct lade_step step = step_make(7);
  int32_t *tokens = level_alloc(ROWS * sizeof(*tokens));
  float *rows = level_alloc(ROWS * sizeof(*rows)), *sum = level_alloc(sizeof(*sum));
  struct lade_kernels kernels;
  assert_true(tokens && rows && sum);
  for (int i = 0; i < ROWS; i++) {
    tokens[i] = 0;
    rows[i] = i == 0 ? first : 1;
  }
  for (int i = 0; level_names[i]; i++) {
    if (!level_get(level_names[i], &kernels) || !kernels.workspace_bytes) /* not a GPU's */
      continue;
    struct lade_embed_bwd_args args = {.dtype = LADE_F32, .batch = 1, .seq_len = ROWS, .d = 1, .vocabulary = 1,
                                       .tokens = tokens, .dx = rows, .d_token_table = sum};
    const struct lade_kernel_ctx ctx = level_ctx(&kernels, NULL, &step);
    args.workspace = level_alloc(lade_kernel_workspace_bytes(&kernels, LADE_K_EMBED_BWD, &args, 1));
    assert_non_null(args.workspace);
    kernels.fn[LADE_K_EMBED_BWD](&ctx, &args);
    assert_true(*sum <= first + ROWS && *sum >= first + ROWS - LOST_MAX);
    free(args.workspace);
  }
  free(sum);
  free(rows);
  free(tokens);
}

static int check_all(void)
{
  struct CMUnitTest tests[N_OPS_LIMIT];
  int n_tests = 0;
  seed = getenv("SEED") ? strtoull(getenv("SEED"), NULL, 10) : (uint64_t)time(NULL);
  printf("SEED=%llu\n", (unsigned long long)seed);
  for (size_t i = 0; i < LADE_COUNT(op_sets); i++) {
    for (int j = 0; j < op_sets[i]->n_ops && n_tests < N_OPS_LIMIT - 3; j++) {
      const struct op *op = &op_sets[i]->ops[j];
      tests[n_tests++] = (struct CMUnitTest){
          .name = op->name, .test_func = variants_equal_plain, .initial_state = (void *)(uintptr_t)op};
    }
  }
  tests[n_tests++] = (struct CMUnitTest)cmocka_unit_test(fused_equals_parts);
  tests[n_tests++] = (struct CMUnitTest)cmocka_unit_test(bias_gradients_are_equal);
  tests[n_tests++] = (struct CMUnitTest)cmocka_unit_test(rows_of_a_frequent_token_are_added_in_pieces);
  return _cmocka_run_group_tests("variants equal the plain reference", tests, (size_t)n_tests, NULL, NULL);
}

static bool is_asked(const char *name, int n_names, char **names)
{
  for (int i = 0; i < n_names; i++) {
    if (strcmp(names[i], name) == 0)
      return true;
  }
  return n_names == 0;
}

int main(int argc, char **argv)
{
  if (argc < 2 || strcmp(argv[1], "--bench") != 0)
    return check_all();
  for (size_t i = 0; i < LADE_COUNT(op_sets); i++) {
    for (int j = 0; j < op_sets[i]->n_ops; j++) {
      if (is_asked(op_sets[i]->ops[j].name, argc - 2, argv + 2))
        op_bench(&op_sets[i]->ops[j]);
    }
  }
  if (is_asked("fused", argc - 2, argv + 2))
    fused_bench();
  return 0;
}
