/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The proof, from both sides: programs of the builder over small models and all kinds of residencies are proved;
 * then proved programs are broken, each in one way, and every break is caught and named. Last come random
 * breaks by the hundred, of any field that means something.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "alloc/pack.h"
#include "base/base.h"
#include "base/cpu.h"
#include "base/philox.h"
#include "plan/build.h"

/* ---- programs to prove ---- */

/* Where things wait, by name; RANDOM draws for every tensor and parameter. */
enum manner { KEEP, RECOMPUTE, HOST, STORE, SPILL_HOST, SPILL_STORE, RANDOM, N_MANNERS };

struct scene {
  struct lade_graph *graph;
  struct lade_residency *residency;
  struct lade_prices prices;
  struct lade_packer *packer;
  struct lade_program *program;
  struct lade_build_params params;
};

struct setting {
  enum lade_family family;
  enum lade_dtype dtype;
  int n_microbatches, homes; /* enum lade_home, or 3: drawn */
  enum manner manner;
  bool is_unified, is_evaluation;
  uint64_t prefetch_bytes;
  uint32_t seed;
  float dropout;
};

static const uint64_t no_limit[LADE_N_SPACES] = {UINT64_MAX, UINT64_MAX, UINT64_MAX};

static uint32_t draw(uint32_t *seed, uint32_t below)
{
  return lade_philox_word(7, 0, 0, (*seed)++) % below;
}

static struct lade_graph *graph_make(enum lade_family family, enum lade_dtype dtype, float dropout)
{
  struct lade_model model = {.name = "tiny", .family = family, .layers = 2, .heads = 4, .key_heads = 4, .width = 32,
                             .hidden = 128, .context = 16, .vocabulary = 4096, .is_tied = true, .norm_eps = 1e-5f};
  if (family == LADE_LLAMA) {
    model.key_heads = 2;
    model.is_tied = false;
    model.rope_base = 10000;
  }
  struct lade_cpu cpu = {0};
  struct lade_kernels kernels;
  lade_kernels_init(&kernels, &cpu);
  struct lade_graph_params params = {.struct_size = sizeof(params), .model = &model, .dtype = dtype, .batch = 2,
                                     .time = 16, .dropout = dropout, .kernels = &kernels, .n_threads = 2};
  struct lade_graph *graph = NULL;
  assert_int_equal(lade_graph_create(&params, NULL, &graph), 0);
  return graph;
}

/* One nanosecond per sixteen bytes of an op, links a few times slower. */
static struct lade_prices prices_make(const struct lade_graph *graph)
{
  struct lade_prices prices = {.clip_ns = 100, .to_host = {50, 0.2}, .to_device = {50, 0.2}, .read = {200, 0.5},
                               .write = {200, 0.5}};
  prices.op_ns = calloc((size_t)graph->n_ops, sizeof(int64_t));
  prices.norm_ns = calloc((size_t)graph->n_params, sizeof(int64_t));
  for (int op = 0; op < graph->n_ops; op++)
    prices.op_ns[op] = 10 + (int64_t)(graph->ops[op].bytes / 16);
  for (int param = 0; param < graph->n_params; param++)
    prices.norm_ns[param] = 10 + (int64_t)(graph->tensors[graph->params[param].tensor].bytes / 16);
  for (int home = 0; home < 3; home++) {
    prices.update_ns[home] = calloc((size_t)graph->n_params, sizeof(int64_t));
    for (int param = 0; param < graph->n_params; param++)
      prices.update_ns[home][param] = prices.norm_ns[param] * 4 * (home + 1);
  }
  return prices;
}

static void residency_set(struct lade_residency *residency, const struct lade_graph *graph, const struct setting *how)
{
  static const struct lade_choice choices[] = {
      [KEEP] = {LADE_WAIT_KEEP, LADE_WAIT_KEEP},         [RECOMPUTE] = {LADE_WAIT_RECOMPUTE, LADE_WAIT_KEEP},
      [HOST] = {LADE_WAIT_HOST, LADE_WAIT_KEEP},         [STORE] = {LADE_WAIT_STORE, LADE_WAIT_KEEP},
      [SPILL_HOST] = {LADE_WAIT_HOST, LADE_WAIT_HOST},   [SPILL_STORE] = {LADE_WAIT_STORE, LADE_WAIT_STORE},
  };
  uint32_t seed = how->seed;
  for (int i = 0; i < graph->n_tensors; i++) {
    int manner = how->manner == RANDOM ? (int)draw(&seed, N_MANNERS - 1) : (int)how->manner;
    bool is_forward = graph->tensors[i].producer >= 0 && graph->tensors[i].producer < graph->n_fwd_ops;
    if (manner == KEEP || (manner == RECOMPUTE && (graph->tensors[i].kind != LADE_TENSOR_ACTIVATION || !is_forward)))
      continue;
    if (manner == RECOMPUTE && how->manner == RECOMPUTE && draw(&seed, 2))
      continue; /* some */
    residency->choices[i] = choices[manner];
  }
  for (int i = 0; i < graph->n_params; i++)
    residency->homes[i] = (uint8_t)(how->homes < 3 ? how->homes : (int)draw(&seed, 3));
  residency->prefetch_bytes = how->prefetch_bytes;
}

static struct scene scene_make(const struct setting *how)
{
  struct scene s = {.graph = graph_make(how->family, how->dtype, how->dropout)};
  s.prices = prices_make(s.graph);
  assert_int_equal(lade_residency_create(s.graph, &s.residency), 0);
  residency_set(s.residency, s.graph, how);
  assert_int_equal(lade_packer_create(&s.packer), 0);
  s.params = (struct lade_build_params){.graph = s.graph, .residency = s.residency, .n_microbatches = how->n_microbatches,
                                        .is_training = !how->is_evaluation, .is_unified = how->is_unified,
                                        .chunk_bytes = 65536, .packer = s.packer};
  s.params.prices = &s.prices;
  assert_int_equal(lade_program_build(&s.params, &s.program), 0);
  return s;
}

static void scene_finish(struct scene *s)
{
  lade_program_destroy(s->program);
  lade_packer_destroy(s->packer);
  lade_residency_destroy(s->residency);
  free(s->prices.op_ns);
  free(s->prices.norm_ns);
  for (int home = 0; home < 3; home++)
    free(s->prices.update_ns[home]);
  lade_graph_destroy(s->graph);
}

static void assert_proved(struct lade_program *program)
{
  struct lade_error error = {0};
  int status = lade_program_prove(program, no_limit, &error);
  if (status)
    print_message("%s\n", error.text);
  assert_int_equal(status, 0);
  assert_true(program->is_proved);
}

static void built_programs_are_proved(void **state)
{
  int n = 0;
  for (uint32_t i = 0; i < 2 * N_MANNERS * 4 * 2 * 2; i++) {
    struct setting how = {.family = i & 1 ? LADE_LLAMA : LADE_GPT2, .n_microbatches = i & 2 ? 3 : 1, .seed = i * 1000,
                          .is_unified = i & 4, .homes = (int)(i / 8 % 4), .manner = (enum manner)(i / 32),
                          .prefetch_bytes = i % 3 ? UINT64_MAX / 2 : 0, .dropout = i % 5 ? 0 : 0.1f,
                          .dtype = i % 7 == 0 ? LADE_F16 : i % 2 ? LADE_F32 : LADE_BF16};
    struct scene s = scene_make(&how);
    assert_proved(s.program);
    s.params.is_training = false;
    s.params.residents = s.program;
    struct lade_program *evaluation = NULL;
    assert_int_equal(lade_program_build(&s.params, &evaluation), 0);
    assert_proved(evaluation);
    lade_program_destroy(evaluation);
    scene_finish(&s);
    n++;
  }
  assert_int_equal(n, 224);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(built_programs_are_proved),
  };
  return cmocka_run_group_tests_name("proof", tests, NULL, NULL);
}
