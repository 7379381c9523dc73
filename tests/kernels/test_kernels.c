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

#define N_OPS_LIMIT 64

static const struct op_set *const op_sets[] = {&row_ops, &element_ops, &optimizer_ops};
static uint64_t seed;

static void variants_equal_plain(void **state)
{
  op_check(*state, seed);
}

static int check_all(void)
{
  struct CMUnitTest tests[N_OPS_LIMIT];
  int n_tests = 0;
  seed = getenv("SEED") ? strtoull(getenv("SEED"), NULL, 10) : (uint64_t)time(NULL);
  printf("SEED=%llu\n", (unsigned long long)seed);
  for (size_t i = 0; i < LADE_COUNT(op_sets); i++) {
    for (int j = 0; j < op_sets[i]->n_ops && n_tests < N_OPS_LIMIT - 1; j++) {
      const struct op *op = &op_sets[i]->ops[j];
      tests[n_tests++] = (struct CMUnitTest){
          .name = op->name, .test_func = variants_equal_plain, .initial_state = (void *)(uintptr_t)op};
    }
  }
  tests[n_tests++] = (struct CMUnitTest)cmocka_unit_test(fused_equals_parts);
  tests[n_tests++] = (struct CMUnitTest)cmocka_unit_test(bias_gradients_are_equal);
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
