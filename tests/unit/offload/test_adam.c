/* SPDX-License-Identifier: Apache-2.0 */
/* lade/adam.h: shards and threads change no bit, values can be set and read back, invalid arguments change nothing. */
#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/base.h"
#include "base/philox.h"
#include "lade/adam.h"
#include "tests/support/names.h"

#define N 70001
#define N_STEPS 3
#define N_ARRAYS 7

static const struct {
  enum lade_dtype dtype, grad_dtype;
  enum lade_moments moments;
  enum lade_master master;
} forms[] = {
    {LADE_BF16, LADE_BF16, LADE_MOMENTS_F32, LADE_MASTER_EXACT},
    {LADE_BF16, LADE_F32, LADE_MOMENTS_BF16, LADE_MASTER_EXACT},
    {LADE_BF16, LADE_BF16, LADE_MOMENTS_8BIT, LADE_MASTER_24BIT},
    {LADE_F32, LADE_F32, LADE_MOMENTS_8BIT, LADE_MASTER_EXACT},
    {LADE_F16, LADE_F32, LADE_MOMENTS_BF16, LADE_MASTER_EXACT},
};

/* All state of a parameter of N elements. */
struct state {
  struct lade_adam_shard shard;
  void *arrays[N_ARRAYS];
  uint64_t bytes[N_ARRAYS];
};

static void state_init(struct state *s, size_t form)
{
  struct lade_adam_bytes bytes = {.struct_size = sizeof(bytes)};
  s->shard = (struct lade_adam_shard){
      .struct_size = sizeof(s->shard), .dtype = forms[form].dtype, .grad_dtype = forms[form].grad_dtype,
      .moments = forms[form].moments, .master = forms[form].master, .n_elements = N, .param = 5, .has_decay = true};
  assert_int_equal(lade_adam_get_bytes(&s->shard, &bytes, NULL), 0);
  memcpy(s->bytes, &bytes.grad, sizeof(s->bytes));
  for (int i = 0; i < N_ARRAYS; i++) {
    s->arrays[i] = s->bytes[i] ? calloc(1, s->bytes[i]) : NULL;
    assert_true(s->arrays[i] || !s->bytes[i]);
  }
  s->shard.grad = s->arrays[0];
  s->shard.weight = s->arrays[1];
  s->shard.residual = s->arrays[2];
  s->shard.m = s->arrays[3];
  s->shard.v = s->arrays[4];
  s->shard.m_scales = s->arrays[5];
  s->shard.v_scales = s->arrays[6];
}

static void state_finish(struct state *s)
{
  for (int i = 0; i < N_ARRAYS; i++)
    free(s->arrays[i]);
}

static bool state_equal(const struct state *a, const struct state *b)
{
  for (int i = 0; i < N_ARRAYS; i++) {
    if (a->bytes[i] && memcmp(a->arrays[i], b->arrays[i], a->bytes[i]) != 0)
      return false;
  }
  return true;
}

static float number_at(uint32_t stream, int64_t i)
{
  return ((float)lade_philox_word(3, 0, stream, (uint64_t)i) * 0x1p-31f - 1) * 0.02f;
}

static void gradient_fill(struct state *s, uint32_t step)
{
  for (int64_t i = 0; i < N; i++) {
    float grad = number_at(100 + step, i);
    if (s->shard.grad_dtype == LADE_F32)
      ((float *)s->arrays[0])[i] = grad;
    else
      memcpy((uint16_t *)s->arrays[0] + i, (char *)&grad + 2, 2);
  }
}

static struct lade_adam_step step_make(uint32_t step)
{
  return (struct lade_adam_step){.struct_size = sizeof(struct lade_adam_step), .seed = 8, .step = step, .lr = 1e-3,
                                 .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8, .weight_decay = 0.1, .grad_scale = 0.5};
}

/* Make the part of @whole that begins at element @from. */
static struct lade_adam_shard part_make(const struct state *whole, int64_t from, int64_t n)
{
  struct lade_adam_shard part = whole->shard;
  uint64_t width[N_ARRAYS];
  for (int i = 0; i < N_ARRAYS; i++)
    width[i] = whole->bytes[i] / N * (uint64_t)from;
  part.n_elements = n;
  part.first_element = (uint64_t)from;
  part.grad = (char *)whole->arrays[0] + width[0];
  part.weight = (char *)whole->arrays[1] + width[1];
  if (whole->bytes[2])
    part.residual = (char *)whole->arrays[2] + width[2];
  part.m = (char *)whole->arrays[3] + width[3];
  part.v = (char *)whole->arrays[4] + width[4];
  if (whole->bytes[5]) {
    part.m_scales += from / LADE_MOMENT_BLOCK;
    part.v_scales += from / LADE_MOMENT_BLOCK;
  }
  return part;
}

static void run_whole(lade_adam *adam, struct state *s, const float *master)
{
  assert_int_equal(lade_adam_set(adam, &s->shard, master, NULL), 0);
  for (uint32_t i = 0; i < N_STEPS; i++) {
    struct lade_adam_step step = step_make(i);
    gradient_fill(s, i);
    assert_int_equal(lade_adam_update(adam, &s->shard, &step, NULL), 0);
  }
}

static void run_parts(lade_adam *adam, struct state *s, const float *master)
{
  static const int64_t cuts[] = {0, 512, 40960, 69632, N};
  for (size_t c = 0; c + 1 < LADE_COUNT(cuts); c++) {
    struct lade_adam_shard part = part_make(s, cuts[c], cuts[c + 1] - cuts[c]);
    assert_int_equal(lade_adam_set(adam, &part, master + cuts[c], NULL), 0);
  }
  for (uint32_t i = 0; i < N_STEPS; i++) {
    struct lade_adam_step step = step_make(i);
    gradient_fill(s, i);
    for (size_t c = LADE_COUNT(cuts) - 1; c-- > 0;) {
      struct lade_adam_shard part = part_make(s, cuts[c], cuts[c + 1] - cuts[c]);
      assert_int_equal(lade_adam_update(adam, &part, &step, NULL), 0);
    }
  }
}

static void shards_and_threads_change_no_bit(void **state)
{
  lade_adam *one = NULL, *three = NULL;
  float *master = malloc(N * sizeof(*master));
  for (int64_t i = 0; i < N; i++)
    master[i] = number_at(1, i);
  assert_int_equal(lade_adam_create(1, NULL, &one), 0);
  assert_int_equal(lade_adam_create(3, NULL, &three), 0);
  for (size_t form = 0; form < LADE_COUNT(forms); form++) {
    struct state whole, parts;
    state_init(&whole, form);
    state_init(&parts, form);
    run_whole(one, &whole, master);
    run_parts(three, &parts, master);
    assert_true(state_equal(&whole, &parts));
    state_finish(&whole);
    state_finish(&parts);
  }
  lade_adam_destroy(one);
  lade_adam_destroy(three);
  free(master);
}

/* An exact form returns the masters unchanged, the others near values; a first step moves by about the rate. */
static void values_go_in_and_come_out(void **state)
{
  lade_adam *adam = NULL;
  float *master = malloc(N * sizeof(*master)), *got = malloc(N * sizeof(*got)), *m = malloc(N * sizeof(*m));
  assert_int_equal(lade_adam_create(2, NULL, &adam), 0);
  for (size_t form = 0; form < LADE_COUNT(forms); form++) {
    struct state s;
    struct lade_adam_step step = step_make(0);
    state_init(&s, form);
    for (int64_t i = 0; i < N; i++)
      master[i] = number_at(2, i);
    assert_int_equal(lade_adam_set(adam, &s.shard, master, NULL), 0);
    assert_int_equal(lade_adam_get(adam, &s.shard, got, m, NULL, NULL), 0);
    double relative = forms[form].master == LADE_MASTER_24BIT ? 0x1p-16 : 0;
    for (int64_t i = 0; i < N; i++)
      assert_true(m[i] == 0 && fabs((double)(got[i] - master[i])) <= relative * fabs((double)master[i]));
    gradient_fill(&s, 0);
    assert_int_equal(lade_adam_update(adam, &s.shard, &step, NULL), 0);
    assert_int_equal(lade_adam_get(adam, &s.shard, got, m, NULL, NULL), 0);
    for (int64_t i = 0; i < N; i++) {
      double grad = (double)number_at(100, i), moved = (double)(got[i] - master[i]);
      if (fabs(grad) > 1e-4)
        assert_true(moved * grad < 0 && fabs(moved) < 1.1e-3 && fabs(moved) > 0.9e-3);
    }
    state_finish(&s);
  }
  lade_adam_destroy(adam);
  free(master);
  free(got);
  free(m);
}

static void impossible_arguments_are_refused(void **state)
{
  lade_adam *adam = NULL;
  struct lade_error error = {0};
  struct state s;
  assert_int_equal(lade_adam_create(-1, &error, &adam), -EINVAL);
  assert_int_equal(lade_adam_create(1, NULL, &adam), 0);
  state_init(&s, 2);
  const struct lade_adam_step good = step_make(0);
  struct lade_adam_shard shards[8];
  for (size_t i = 0; i < LADE_COUNT(shards); i++)
    shards[i] = s.shard;
  shards[0].dtype = LADE_F64;
  shards[1].grad_dtype = LADE_F16;
  shards[2].moments = (enum lade_moments)9;
  shards[3].dtype = LADE_F32; /* with a 24-bit master */
  shards[4].n_elements = 0;
  shards[5].first_element = 100;
  shards[6].v_scales = NULL;
  shards[7].struct_size = 4;
  for (size_t i = 0; i < LADE_COUNT(shards); i++) {
    error.text[0] = 0;
    assert_int_equal(lade_adam_update(adam, &shards[i], &good, &error), -EINVAL);
    assert_true(strstr(error.text, "lade_adam_shard") != NULL);
  }
  struct lade_adam_bytes bytes = {.struct_size = sizeof(bytes)};
  assert_int_equal(lade_adam_get_bytes(&shards[4], &bytes, &error), -EINVAL);
  assert_names(error.text, "lade_adam_shard", "n_elements is 0", "1 to 17592186044416");
  struct lade_adam_step steps[9] = {good, good, good, good, good, good, good, good, good};
  steps[0].beta2 = 1;
  steps[1].eps = 0;
  steps[2].lr = (double)NAN;
  steps[3].grad_scale = (double)INFINITY;
  steps[4].eps = 1e-60; /* the next values underflow in FP32 */
  steps[5].beta1 = 1 - 1e-10;
  steps[6].lr = 1e300;
  steps[7].grad_scale = 1e300;
  steps[8].grad_scale = 1e-60;
  for (size_t i = 0; i < LADE_COUNT(steps); i++)
    assert_int_equal(lade_adam_update(adam, &s.shard, &steps[i], &error), -EINVAL);
  for (int i = 0; i < N_ARRAYS; i++) {
    for (uint64_t at = 0; at < s.bytes[i]; at++)
      assert_int_equal(((const char *)s.arrays[i])[at], 0);
  }
  assert_int_equal(lade_adam_set(adam, &s.shard, NULL, &error), -EINVAL);
  state_finish(&s);
  lade_adam_destroy(adam);
  lade_adam_destroy(NULL);
}

static void children_leave_the_threads_alone(void **state)
{
  lade_adam *adam = NULL;
  struct state s;
  const struct lade_adam_step step = step_make(0);
  int status = 1;
  assert_int_equal(lade_adam_create(4, NULL, &adam), 0);
  state_init(&s, 0);
  pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) {
    alarm(20);
    status = lade_adam_update(adam, &s.shard, &step, NULL) != -EPERM;
    lade_adam_destroy(adam);
    _exit(status);
  }
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_int_equal(status, 0);
  assert_int_equal(lade_adam_update(adam, &s.shard, &step, NULL), 0);
  state_finish(&s);
  lade_adam_destroy(adam);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(shards_and_threads_change_no_bit),
      cmocka_unit_test(values_go_in_and_come_out),
      cmocka_unit_test(impossible_arguments_are_refused),
      cmocka_unit_test(children_leave_the_threads_alone),
  };
  return cmocka_run_group_tests_name("lade/adam.h", tests, NULL, NULL);
}
