/* SPDX-License-Identifier: Apache-2.0 */
/* Running a model forward for sampling: its logits give the losses that training computes. */
#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/base.h"
#include "base/cpu.h"
#include "run/forward.h"
#include "tests/support/graph_run.h"

#define SEQ_LEN 24
#define VOCABULARY 96

struct fixture {
  struct lade_model model;
  struct lade_kernels kernels;
  lade_pool *pool;
  struct lade_model_graph *graph;
  struct graph_run run;
  lade_forward *forward;
  int32_t tokens[SEQ_LEN], targets[SEQ_LEN];
};

static struct lade_model model_of(enum lade_family family)
{
  struct lade_model model = {.name = "small", .family = family, .layers = 2, .heads = 4, .n_kv_heads = 4, .width = 32,
                             .hidden = 64, .context = SEQ_LEN, .vocabulary = VOCABULARY, .norm_eps = 1e-5f};
  if (family == LADE_GPT2) {
    model.is_tied = true;
    model.hidden = 4 * model.width;
  } else {
    model.n_kv_heads = 2;
    model.rope_base = 10000;
  }
  return model;
}

static void fixture_init(struct fixture *f, enum lade_family family)
{
  struct lade_cpu cpu = lade_cpu_get();
  *f = (struct fixture){.model = model_of(family)};
  lade_kernels_init(&f->kernels, &cpu);
  assert_int_equal(lade_pool_create(2, &f->pool), 0);
  const struct lade_model_graph_params graph_params = {
      .struct_size = sizeof(graph_params), .model = &f->model, .dtype = LADE_F32, .batch = 1, .seq_len = SEQ_LEN,
      .kernels = &f->kernels, .n_threads = 2};
  assert_int_equal(lade_model_graph_create(&graph_params, NULL, &f->graph), 0);
  graph_run_init(&f->run, f->graph, &f->kernels, f->pool);
  graph_run_randomize(&f->run, 7, 0.2);
  for (int i = 0; i < SEQ_LEN; i++) {
    f->tokens[i] = (i * 37 + 11) % VOCABULARY;
    f->targets[i] = (i * 53 + 5) % VOCABULARY;
  }
  struct lade_forward_params params = {.struct_size = sizeof(params), .model = &f->model, .seq_len = SEQ_LEN,
                                       .kernels = &f->kernels, .pool = f->pool};
  assert_int_equal(lade_forward_create(&params, NULL, &f->forward), 0);
  struct lade_values values = lade_forward_values(f->forward);
  for (int i = 0; i < f->graph->n_params; i++) {
    int tensor = f->graph->params[i].tensor;
    assert_int_equal(values.set(values.user, tensor, 0, f->run.memory[tensor], f->graph->tensors[tensor].bytes, NULL),
                     0);
  }
}

static void fixture_finish(struct fixture *f)
{
  lade_forward_destroy(f->forward);
  graph_run_finish(&f->run);
  lade_model_graph_destroy(f->graph);
  lade_pool_destroy(f->pool);
}

/* Return -log softmax(logits)[target]. */
static double loss_of(const float *logits, int32_t target)
{
  double max = -INFINITY, sum = 0;
  for (int i = 0; i < VOCABULARY; i++)
    max = logits[i] > max ? logits[i] : max;
  for (int i = 0; i < VOCABULARY; i++)
    sum += exp(logits[i] - max);
  return log(sum) + max - logits[target];
}

static void check_losses(enum lade_family family)
{
  struct fixture f;
  double sum = 0;
  fixture_init(&f, family);
  double loss = graph_run_step(&f.run, f.tokens, f.targets, 1, false);
  for (int n = 1; n <= SEQ_LEN; n++) {
    float logits[VOCABULARY] __attribute__((aligned(64)));
    assert_int_equal(lade_forward_logits(f.forward, f.tokens, n, logits), 0);
    sum += loss_of(logits, f.targets[n - 1]) / SEQ_LEN;
  }
  assert_true(loss > 1);
  assert_true(fabs(sum - loss) < 1e-4 * loss);
  fixture_finish(&f);
}

static void test_gpt2_logits_give_the_training_loss(void **state)
{
  (void)state;
  check_losses(LADE_GPT2);
}

static void test_llama_logits_give_the_training_loss(void **state)
{
  (void)state;
  check_losses(LADE_LLAMA);
}

static void test_refuses_tokens_and_lengths_out_of_range(void **state)
{
  struct fixture f;
  float logits[VOCABULARY] __attribute__((aligned(64)));
  (void)state;
  fixture_init(&f, LADE_GPT2);
  assert_int_equal(lade_forward_logits(f.forward, f.tokens, 0, logits), -EINVAL);
  assert_int_equal(lade_forward_logits(f.forward, f.tokens, SEQ_LEN + 1, logits), -EINVAL);
  f.tokens[2] = VOCABULARY;
  assert_int_equal(lade_forward_logits(f.forward, f.tokens, 3, logits), -EINVAL);
  assert_int_equal(lade_forward_logits(f.forward, f.tokens, 2, logits), 0);
  f.tokens[0] = -1;
  assert_int_equal(lade_forward_logits(f.forward, f.tokens, 2, logits), -EINVAL);
  fixture_finish(&f);
}

static void test_optimizer_state_is_dropped_and_not_given(void **state)
{
  struct fixture f;
  float ones[4] = {1, 1, 1, 1};
  (void)state;
  fixture_init(&f, LADE_GPT2);
  struct lade_values values = lade_forward_values(f.forward);
  int part = lade_value_part(f.graph, 0, LADE_PART_M);
  assert_int_equal(values.set(values.user, part, 0, ones, sizeof(ones), NULL), 0);
  assert_int_equal(values.get(values.user, part, 0, ones, sizeof(ones), NULL), -EINVAL);
  fixture_finish(&f);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_gpt2_logits_give_the_training_loss),
      cmocka_unit_test(test_llama_logits_give_the_training_loss),
      cmocka_unit_test(test_refuses_tokens_and_lengths_out_of_range),
      cmocka_unit_test(test_optimizer_state_is_dropped_and_not_given),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
