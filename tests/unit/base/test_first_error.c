/* SPDX-License-Identifier: Apache-2.0 */
/* Of errors that several threads report at once, one is kept, with its own line. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "base/base.h"
#include "base/first_error.h"

enum { N_THREADS = 8, N_ROUNDS = 200 };

struct reporter {
  struct lade_first_error *first;
  pthread_barrier_t *start;
  int code;
  bool was_first;
  int seen;              /* code that this thread reads after its report */
  struct lade_error line;
};

static void *report(void *arg)
{
  struct reporter *r = arg;
  struct lade_error line;
  lade_error_set(&line, -EIO, "code %d", r->code); /* the code of the line is replaced by the reported one */
  pthread_barrier_wait(r->start);
  r->was_first = lade_first_error_set(r->first, r->code, &line);
  r->seen = lade_first_error_get(r->first, &r->line);
  return NULL;
}

static void one_error_is_kept_with_its_line(void **state)
{
  pthread_barrier_t start;
  pthread_barrier_init(&start, NULL, N_THREADS);
  for (int round = 0; round < N_ROUNDS; round++) {
    struct lade_first_error first;
    struct reporter reporters[N_THREADS];
    pthread_t threads[N_THREADS];
    char text[16];
    int kept = 0, n_first = 0;
    lade_first_error_init(&first);
    assert_int_equal(lade_first_error_get(&first, NULL), 0);
    for (int i = 0; i < N_THREADS; i++) {
      reporters[i] = (struct reporter){.first = &first, .start = &start, .code = -1 - i};
      assert_int_equal(pthread_create(&threads[i], NULL, report, &reporters[i]), 0);
    }
    for (int i = 0; i < N_THREADS; i++) {
      pthread_join(threads[i], NULL);
      n_first += reporters[i].was_first;
      kept = reporters[i].was_first ? reporters[i].code : kept;
    }
    assert_int_equal(n_first, 1);
    assert_int_equal(lade_first_error_code(&first), kept);
    snprintf(text, sizeof(text), "code %d", kept);
    for (int i = 0; i < N_THREADS; i++) {
      assert_int_equal(reporters[i].seen, kept);
      assert_int_equal(reporters[i].line.code, kept);
      assert_string_equal(reporters[i].line.text, text);
    }
    lade_first_error_finish(&first);
  }
  pthread_barrier_destroy(&start);
}

static void an_error_is_untouched_where_none_is_kept(void **state)
{
  struct lade_first_error first;
  struct lade_error error = {.code = 7, .text = "as before"};
  lade_first_error_init(&first);
  assert_int_equal(lade_first_error_get(&first, &error), 0);
  assert_int_equal(error.code, 7);
  assert_string_equal(error.text, "as before");
  lade_first_error_finish(&first);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(one_error_is_kept_with_its_line),
      cmocka_unit_test(an_error_is_untouched_where_none_is_kept),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
