/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The budget bounds the process, not only Lade's own counts. From the end of planning on, resident memory (VmHWM, the
 * kernel's high-water mark) rises by at most the planned device and host bytes and SLACK_BYTES. The slack is for
 * threads, queues, checksums and windows. Steps, evaluations, a save and a digest are included. The argument names the
 * model.
 */
#include <fcntl.h>
#include <malloc.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/base.h"
#include "run/checkpoint.h"
#include "tests/support/run_fixture.h"

#define SLACK_BYTES (UINT64_C(16) << 20)

enum { KEPT = 40, EXCEEDED, NOT_RUN };

static struct run_fixture_model model;
static int n_steps;
static const char *store_refusal;

/* Return a line of /proc/self/status, in bytes; 0: there is none. */
static uint64_t status_bytes(const char *name)
{
  char line[256];
  unsigned long long kib = 0;
  FILE *file = fopen("/proc/self/status", "r");
  while (file && fgets(line, sizeof(line), file)) {
    if (strncmp(line, name, strlen(name)) == 0)
      sscanf(line + strlen(name), ": %llu", &kib);
  }
  if (file)
    fclose(file);
  return (uint64_t)kib << 10;
}

/* Reset the mark to the memory now resident, because planning's own peak would hide later ones. */
static void mark_reset(void)
{
  malloc_trim(0);
  int fd = open("/proc/self/clear_refs", O_WRONLY | O_CLOEXEC);
  if (fd >= 0 && write(fd, "5", 1) != 1)
    fprintf(stderr, "the mark cannot be reset; planning's is taken\n");
  if (fd >= 0)
    close(fd);
}

static int run(struct run_fixture *run_fixture, const struct lade_plan *plan, struct lade_error *error)
{
  struct lade_step_result result;
  struct lade_checkpoint_state state = {.step = n_steps, .loss_scale = 1, .model = "fixture"};
  uint64_t digest;
  double loss;
  int status = run_fixture_open(run_fixture, plan, error);
  for (int i = 0; i < n_steps && !status; i++)
    status = run_fixture_step(run_fixture, i, &result, error);
  if (!status)
    status = run_fixture_eval(run_fixture, &loss, error);
  if (!status)
    status = run_fixture_digest(run_fixture, &digest, error);
  if (status)
    return status;
  struct lade_values values = lade_executor_values(run_fixture->executor, run_fixture->graph);
  const struct lade_checkpoint_place place = {.dir = "saves"};
  return lade_checkpoint_save(&values, &state, &place, NULL, error);
}

static int budget_run(double share, bool has_host, bool has_store)
{
  struct lade_error error = {0};
  struct lade_plan_bounds bounds;
  struct lade_plan *plan = NULL;
  struct run_fixture run_fixture;
  run_fixture_init(&run_fixture, &model);
  run_fixture.chunk_bytes = 2 << 20;
  lade_planner *planner = run_fixture_planner(&run_fixture, has_host ? UINT64_C(4) << 30 : 0, has_store ?
                                              UINT64_C(4) << 30 : 0,
                                      LADE_RECIPE_AUTO);
  if (lade_planner_get_bounds(planner, &bounds))
    return NOT_RUN;
  uint64_t budget = LADE_MAX(bounds.min_bytes, (uint64_t)(share * (double)bounds.unconstrained_bytes));
  if (lade_planner_plan(planner, budget, &error, &plan)) {
    fprintf(stderr, "%s\n", error.text);
    return NOT_RUN;
  }
  mark_reset();
  uint64_t before = status_bytes("VmHWM"), planned = plan->peak_bytes[LADE_DEVICE] + plan->peak_bytes[LADE_HOST];
  if (run(&run_fixture, plan, &error)) {
    fprintf(stderr, "%s\n", error.text);
    return NOT_RUN;
  }
  uint64_t grown = status_bytes("VmHWM") - before;
  printf("%3.0f %%%s%s: planned %.1f MiB on the device and %.1f on the host; VmHWM rose by %.1f\n", share * 100,
         has_host ? ", host" : "", has_store ? ", store" : "", (double)plan->peak_bytes[LADE_DEVICE] / 1048576,
         (double)plan->peak_bytes[LADE_HOST] / 1048576, (double)grown / 1048576);
  fflush(stdout);
  return before && grown <= planned + SLACK_BYTES ? KEPT : EXCEEDED;
}

/* Run in a child, because the mark never falls. */
static void budget_keeps(double share, bool has_host, bool has_store)
{
  int status = 0;
  if (has_store && store_refusal) {
    printf("SKIP: with a store: %s\n", store_refusal);
    return;
  }
  fflush(stdout);
  pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0)
    _exit(budget_run(share, has_host, has_store));
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_true(WIFEXITED(status));
  assert_int_equal(WEXITSTATUS(status), KEPT);
}

static void the_process_grows_by_no_more_than_was_planned(void **state)
{
  if (!status_bytes("VmHWM")) {
    printf("SKIP: this kernel does not tell VmHWM\n");
    skip();
  }
  budget_keeps(1, false, false);
  budget_keeps(0.85, false, false);
  budget_keeps(0.5, true, false);
  budget_keeps(0, true, false);
  budget_keeps(0.5, false, true);
  budget_keeps(0, false, true);
}

static int directory_enter(void **state)
{
  const char *dir = run_fixture_directory();
  return dir ? chdir(dir) : -1;
}

static int directory_leave(void **state)
{
  return system("rm -rf saves") || chdir("..") ? -1 : 0;
}

int main(int argc, char **argv)
{
  const struct CMUnitTest tests[] = {cmocka_unit_test(the_process_grows_by_no_more_than_was_planned)};
  bool is_baby = argc > 1 && strcmp(argv[1], "baby") == 0;
  model = run_fixture_tiny(LADE_GPT2);
  model.vocabulary = 256;
  model.layers = is_baby ? 6 : 4;
  model.width = is_baby ? 384 : 128;
  model.batch = is_baby ? 16 : 12;
  model.seq_len = is_baby ? 256 : 64;
  n_steps = is_baby ? 2 : 3;
  store_refusal = run_fixture_store_refusal(LADE_STORE_AUTO);
  return cmocka_run_group_tests(tests, directory_enter, directory_leave);
}
