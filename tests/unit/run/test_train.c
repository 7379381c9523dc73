/* SPDX-License-Identifier: Apache-2.0 */
/* The public interface of planning and training, called as by a linked program. */
#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "lade/plan.h"
#include "lade/shard.h"
#include "lade/train.h"
#include "tests/support/names.h"

#define N_STEPS 4
#define LAYERS 2
#define BATCH 4
#define SEQ 16

/* Batches of the caller's own: a function of step, row and position. */
struct feed {
  int64_t bad_step;   /* step that gives one token outside the vocabulary, once */
  int64_t fail_step;  /* step that refuses, once */
  int n_calls;
  bool is_masked;     /* every other target is masked */
};

static int feed_fill(void *user, const struct lade_batch *batch, struct lade_error *error)
{
  struct feed *feed = user;
  feed->n_calls++;
  if (!batch->is_valid && batch->number == feed->fail_step) {
    feed->fail_step = -1;
    return lade_error_set(error, -EIO, "the loader lost its shard");
  }
  for (int64_t row = 0; row < batch->n_rows; row++) {
    for (int64_t t = 0; t < batch->seq; t++) {
      int64_t i = row * batch->seq + t;
      uint64_t at = (uint64_t)(batch->number * 31 + (batch->first_row + row) * 7 + t);
      batch->tokens[i] = (int32_t)(at % 40);
      batch->targets[i] = feed->is_masked && t % 2 ? -1 : (int32_t)((at + 1) % 40);
    }
  }
  if (!batch->is_valid && batch->number == feed->bad_step) {
    feed->bad_step = -1;
    batch->tokens[SEQ + 3] = 64;
  }
  return 0;
}

static struct feed feed_make(void)
{
  return (struct feed){.bad_step = -1, .fail_step = -1};
}

static void run_init(struct lade_run_params *run)
{
  lade_run_params_init(run, sizeof(*run));
  run->layers = LAYERS;
  run->vocabulary = 64;
  run->batch = BATCH;
  run->seq = SEQ;
  run->machine = "laptop-8c"; /* described: nothing is measured */
  run->n_threads = 1;
}

static void params_init(struct lade_trainer_params *params, const struct lade_run_params *run, struct feed *feed)
{
  lade_trainer_params_init(params, sizeof(*params));
  params->run = run;
  params->batch = feed_fill;
  params->batch_user = feed;
  params->n_valid_batches = 2;
  params->steps = 2 * N_STEPS;
  params->warmup = 1;
}

static lade_trainer *trainer_open(const struct lade_trainer_params *params)
{
  lade_trainer *trainer = NULL;
  struct lade_error error = {0};
  int status = lade_trainer_open(params, &error, &trainer);
  if (status)
    print_message("%s\n", error.text);
  assert_int_equal(status, 0);
  return trainer;
}

static void steps_make(lade_trainer *trainer, int n)
{
  struct lade_error error = {0};
  for (int i = 0; i < n; i++) {
    int status = lade_trainer_step(trainer, NULL, &error);
    if (status)
      print_message("%s\n", error.text);
    assert_int_equal(status, 0);
  }
}

struct outcome {
  struct lade_trainer_info info;
  uint64_t params_digest;
};

static struct outcome outcome_get(lade_trainer *trainer)
{
  struct outcome outcome = {.info.struct_size = sizeof(outcome.info)};
  assert_int_equal(lade_trainer_get_info(trainer, &outcome.info), 0);
  assert_int_equal(lade_trainer_digest_params(trainer, &outcome.params_digest, NULL), 0);
  return outcome;
}

static struct outcome outcome_of(const struct lade_run_params *run, struct feed feed)
{
  struct lade_trainer_params params;
  params_init(&params, run, &feed);
  lade_trainer *trainer = trainer_open(&params);
  steps_make(trainer, N_STEPS);
  struct outcome outcome = outcome_get(trainer);
  lade_trainer_close(trainer);
  return outcome;
}

static void the_smallest_budget_gives_the_numbers_of_the_unconstrained_run(void **state)
{
  struct lade_run_params run;
  run_init(&run);
  run.budget = (struct lade_budget){.kind = LADE_BUDGET_PERCENT, .percent = 100};
  struct outcome all = outcome_of(&run, feed_make());
  run.budget = (struct lade_budget){.kind = LADE_BUDGET_MIN};
  run.micro_batch = BATCH;
  struct outcome min = outcome_of(&run, feed_make());
  assert_true(min.info.budget_bytes < all.info.budget_bytes);
  assert_true(min.info.loss_digest == all.info.loss_digest);
  assert_true(min.params_digest == all.params_digest);
  assert_true(min.info.measured_peak_bytes == min.info.planned_peak_bytes);
  assert_true(min.info.planned_peak_bytes <= min.info.budget_bytes);
  assert_int_equal(min.info.step, N_STEPS);
  assert_int_equal(min.info.vocabulary, 64);
}

static void a_plan_states_the_peak_and_ledger_that_training_has(void **state)
{
  struct lade_run_params run;
  struct lade_trainer_params params;
  struct feed feed = feed_make();
  struct lade_plan_report plan = {.struct_size = sizeof(plan)}, ran = {.struct_size = sizeof(ran)};
  run_init(&run);
  run.budget = (struct lade_budget){.kind = LADE_BUDGET_BYTES, .bytes = 8 << 20};
  run.has_host_budget = true;
  run.host_budget_bytes = 64 << 20;
  assert_int_equal(lade_plan_find(&run, &plan, NULL), 0);
  assert_true(plan.has_plan);
  assert_int_equal(plan.batch, BATCH);
  params_init(&params, &run, &feed);
  lade_trainer *trainer = trainer_open(&params);
  steps_make(trainer, 1);
  assert_int_equal(lade_trainer_get_plan(trainer, &ran), 0);
  struct outcome outcome = outcome_get(trainer);
  lade_trainer_close(trainer);
  assert_true(outcome.info.measured_peak_bytes == ran.peak_bytes[LADE_DEVICE]);
  assert_true(plan.n_params == ran.n_params && plan.lower_bound_bytes == ran.lower_bound_bytes);
  for (int space = 0; space < LADE_N_SPACES; space++) {
    uint64_t sum = 0;
    for (int owner = 0; owner < LADE_OWNERS_MAX; owner++)
      sum += ran.owner_bytes[space][owner];
    assert_true(sum == ran.peak_bytes[space]);
  }
}

static void a_budget_that_does_not_suffice_is_an_answer_of_a_plan_and_an_error_of_a_trainer(void **state)
{
  struct lade_run_params run;
  struct lade_trainer_params params;
  struct feed feed = feed_make();
  struct lade_plan_report plan = {.struct_size = sizeof(plan)};
  struct lade_error error = {0};
  lade_trainer *trainer = (lade_trainer *)&feed;
  run_init(&run);
  run.budget = (struct lade_budget){.kind = LADE_BUDGET_BYTES, .bytes = 1};
  assert_int_equal(lade_plan_find(&run, &plan, &error), 0);
  assert_false(plan.has_plan);
  assert_true(plan.min_budget_bytes >= plan.lower_bound_bytes && plan.lower_bound_bytes > 0);
  assert_true(plan.peak_bytes[LADE_DEVICE] == 0 && plan.step_ns == 0);
  assert_true(strstr(error.text, "host_budget_bytes") && strstr(error.text, "micro_batch"));
  assert_null(strstr(error.text, "--"));
  params_init(&params, &run, &feed);
  error.text[0] = 0;
  assert_int_equal(lade_trainer_open(&params, &error, &trainer), -EOVERFLOW);
  assert_int_not_equal(strlen(error.text), 0);
  assert_ptr_equal(trainer, &feed);
  run.budget = (struct lade_budget){.kind = LADE_BUDGET_BYTES, .bytes = plan.min_budget_bytes};
  assert_int_equal(lade_plan_find(&run, &plan, &error), 0);
  assert_true(plan.has_plan);
}

static void own_batches_come_by_number_and_row_whatever_the_microbatch(void **state)
{
  struct lade_run_params run;
  struct lade_trainer_params params;
  struct feed feed = feed_make();
  run_init(&run);
  run.micro_batch = 1;
  params_init(&params, &run, &feed);
  lade_trainer *trainer = trainer_open(&params);
  steps_make(trainer, 2);
  assert_int_equal(feed.n_calls, 2 * BATCH);
  double loss = 0;
  assert_int_equal(lade_trainer_eval(trainer, &loss, NULL), 0);
  assert_int_equal(feed.n_calls, 4 * BATCH);
  assert_true(loss > 0 && loss < 10);
  lade_trainer_close(trainer);
}

static void a_file_and_a_callback_with_its_bytes_train_alike(void **state)
{
  static char text[4096];
  char path[] = "/tmp/lade-train-XXXXXX";
  struct lade_run_params run;
  struct lade_trainer_params params;
  struct feed feed = feed_make();
  struct lade_trainer_report report = {.struct_size = sizeof(report)}, other = {.struct_size = sizeof(other)};
  int fd = mkstemp(path);
  assert_true(fd >= 0);
  /* One row: sequential batch k begins at token k T, and the callback's at 31 k: equal for k = 0. */
  for (size_t i = 0; i < sizeof(text); i++)
    text[i] = (char)(i % 40);
  assert_int_equal(write(fd, text, sizeof(text)), sizeof(text));
  run_init(&run);
  run.vocabulary = 0;
  run.batch = 1;
  params_init(&params, &run, &feed);
  lade_trainer *trainer = trainer_open(&params);
  assert_int_equal(lade_trainer_step(trainer, &report, NULL), 0);
  lade_trainer_close(trainer);
  const char *const files[] = {path};
  params.batch = NULL;
  params.data = files;
  params.n_data = 1;
  params.order = LADE_ORDER_SEQUENTIAL;
  trainer = trainer_open(&params);
  assert_int_equal(lade_trainer_step(trainer, &other, NULL), 0);
  lade_trainer_close(trainer);
  close(fd);
  unlink(path);
  assert_true(report.loss == other.loss && report.grad_norm == other.grad_norm);
  assert_true(report.loss > 5 && report.loss < 6); /* near log 256 at first */
}

static void a_bad_token_or_a_failing_callback_changes_nothing_and_may_be_tried_again(void **state)
{
  struct lade_run_params run;
  struct lade_trainer_params params;
  struct feed feed = {.bad_step = 1, .fail_step = 2};
  struct lade_trainer_report report = {.struct_size = sizeof(report), .step = 77};
  struct lade_error error = {0};
  run_init(&run);
  struct outcome clean = outcome_of(&run, feed_make());
  params_init(&params, &run, &feed);
  lade_trainer *trainer = trainer_open(&params);
  steps_make(trainer, 1);
  assert_int_equal(lade_trainer_step(trainer, &report, &error), -EINVAL);
  assert_names(error.text, "step 1", "row 1", "position 3", "is 64", "vocabulary of 64");
  assert_int_equal(report.step, 77);
  steps_make(trainer, 1);
  assert_int_equal(lade_trainer_step(trainer, &report, &error), -EIO);
  assert_string_equal(error.text, "step 2: the loader lost its shard");
  steps_make(trainer, N_STEPS - 2);
  struct outcome outcome = outcome_get(trainer);
  lade_trainer_close(trainer);
  assert_true(outcome.params_digest == clean.params_digest && outcome.info.loss_digest == clean.info.loss_digest);
}

static void targets_below_zero_are_not_counted(void **state)
{
  struct lade_run_params run;
  struct feed masked = feed_make();
  run_init(&run);
  struct outcome all = outcome_of(&run, feed_make());
  masked.is_masked = true;
  struct outcome some = outcome_of(&run, masked);
  assert_true(all.info.loss_digest != some.info.loss_digest);
}

static void a_saved_run_with_own_batches_goes_on_bit_for_bit(void **state)
{
  char dir[] = "/tmp/lade-train-XXXXXX", command[64];
  struct lade_run_params run;
  struct lade_trainer_params params;
  struct feed feed = feed_make();
  run_init(&run);
  assert_non_null(mkdtemp(dir));
  struct outcome whole = outcome_of(&run, feed_make());
  params_init(&params, &run, &feed);
  lade_trainer *trainer = trainer_open(&params);
  steps_make(trainer, N_STEPS / 2);
  assert_int_equal(lade_trainer_save(trainer, dir, 1, NULL), 0);
  lade_trainer_close(trainer);
  params.resume = dir;
  trainer = trainer_open(&params);
  steps_make(trainer, N_STEPS - N_STEPS / 2);
  struct outcome resumed = outcome_get(trainer);
  lade_trainer_close(trainer);
  snprintf(command, sizeof(command), "rm -r %s", dir);
  assert_int_equal(system(command), 0);
  assert_int_equal(resumed.info.step, N_STEPS);
  assert_true(resumed.params_digest == whole.params_digest && resumed.info.loss_digest == whole.info.loss_digest);
}

static void parameters_can_be_read_in_full(void **state)
{
  struct lade_run_params run;
  struct lade_trainer_params params;
  struct feed feed = feed_make();
  struct lade_trainer_info info = {.struct_size = sizeof(info)};
  struct lade_plan_report plan = {.struct_size = sizeof(plan)};
  struct lade_param_info param = {.struct_size = sizeof(param)};
  int64_t n_elements = 0;
  int n_changed = 0;
  run_init(&run);
  params_init(&params, &run, &feed);
  lade_trainer *trainer = trainer_open(&params);
  assert_int_equal(lade_trainer_get_info(trainer, &info), 0);
  assert_int_equal(lade_trainer_get_plan(trainer, &plan), 0);
  for (int i = 0; i < info.n_param_tensors; i++) {
    assert_int_equal(lade_trainer_get_param(trainer, i, &param), 0);
    float *before = test_calloc((size_t)param.n_elements, sizeof(float));
    assert_int_equal(lade_trainer_read_param(trainer, i, before, NULL), 0);
    for (int64_t k = 0; k < param.n_elements; k++)
      assert_true(isfinite(before[k]) && fabsf(before[k]) < 2);
    n_elements += param.n_elements;
    test_free(before);
  }
  assert_int_equal(n_elements, plan.n_params);
  /* An update moves the parameters: the last one is the final norm's, which begins as a constant. */
  float first = 0, *after = test_calloc((size_t)param.n_elements, sizeof(float));
  assert_int_equal(lade_trainer_read_param(trainer, info.n_param_tensors - 1, after, NULL), 0);
  first = after[0];
  steps_make(trainer, 1);
  assert_int_equal(lade_trainer_read_param(trainer, info.n_param_tensors - 1, after, NULL), 0);
  for (int64_t k = 0; k < param.n_elements; k++)
    n_changed += after[k] != first;
  test_free(after);
  assert_true(n_changed > 0);
  assert_int_equal(lade_trainer_get_param(trainer, info.n_param_tensors, &param), -EINVAL);
  assert_int_equal(lade_trainer_read_param(trainer, -1, NULL, NULL), -EINVAL);
  lade_trainer_close(trainer);
}

static void a_dry_trainer_steps_in_simulated_time_and_has_no_values(void **state)
{
  struct lade_run_params run;
  struct lade_trainer_params params;
  struct lade_trainer_report report = {.struct_size = sizeof(report)};
  struct lade_error error = {0};
  uint64_t digest = 77;
  double loss = 77;
  run_init(&run);
  run.model = "gpt2-124m";
  run.vocabulary = 0;
  run.device = "dry";
  run.machine = "h100-80g";
  lade_trainer_params_init(&params, sizeof(params));
  params.run = &run;
  lade_trainer *trainer = trainer_open(&params);
  assert_int_equal(lade_trainer_step(trainer, &report, &error), 0);
  assert_true(report.wall_ns > 0);
  assert_int_equal(lade_trainer_digest_params(trainer, &digest, &error), -ENODATA);
  assert_int_equal(lade_trainer_save(trainer, "/nowhere", 0, &error), -ENODATA);
  assert_int_equal(lade_trainer_eval(trainer, &loss, &error), -ENODATA);
  assert_true(digest == 77 && loss == 77);
  lade_trainer_close(trainer);
}

/* Computing and its stalls, each with its cause, add up to the step; over a slow drive the drive is the cause. */
static void stalls_are_reported_by_their_cause(void **state)
{
  struct lade_run_params run;
  struct lade_trainer_params params;
  struct lade_trainer_report report = {.struct_size = sizeof(report)};
  struct lade_error error = {0};
  lade_trainer *trainer = NULL;
  lade_run_params_init(&run, sizeof(run));
  lade_trainer_params_init(&params, sizeof(params));
  run.model = "gpt2-124m";
  run.device = "dry";
  run.machine = "h100-80g";
  run.store = ".";
  run.store_budget_bytes = UINT64_C(1) << 40;
  run.has_host_budget = true;
  run.host_budget_bytes = UINT64_C(256) << 20; /* to pass through */
  run.budget = (struct lade_budget){.kind = LADE_BUDGET_MIN};
  params.run = &run;
  assert_int_equal(lade_trainer_open(&params, &error, &trainer), 0);
  for (int step = 0; step < 2; step++) {
    int64_t sum_ns = 0, io_ns = 0;
    assert_int_equal(lade_trainer_step(trainer, &report, &error), 0);
    for (int queue = 0; queue < LADE_N_QUEUES; queue++) {
      assert_true(report.stall_ns[queue] >= 0);
      sum_ns += report.stall_ns[queue];
      io_ns += queue == LADE_Q_IO ? report.stall_ns[queue] : 0;
    }
    assert_int_equal(sum_ns + report.queue_ns[LADE_Q_COMPUTE], report.wall_ns);
    assert_true(io_ns > sum_ns / 2);
  }
  lade_trainer_close(trainer);
}

static void a_program_of_older_headers_gets_defaults_and_no_more_than_it_has_room_for(void **state)
{
  struct lade_run_params run;
  struct lade_trainer_params params;
  struct feed feed = feed_make();
  run_init(&run);
  run.struct_size = offsetof(struct lade_run_params, n_threads);
  run.n_threads = -5; /* past its end: never read */
  params_init(&params, &run, &feed);
  params.struct_size = offsetof(struct lade_trainer_params, notice);
  memset((char *)&params + params.struct_size, 0xff, sizeof(params) - params.struct_size);
  lade_trainer *trainer = trainer_open(&params);
  struct lade_trainer_report report = {.struct_size = offsetof(struct lade_trainer_report, wall_ns), .wall_ns = 77};
  assert_int_equal(lade_trainer_step(trainer, &report, NULL), 0);
  assert_true(report.loss > 0);
  assert_int_equal(report.wall_ns, 77);
  report.struct_size = 0;
  assert_int_equal(lade_trainer_step(trainer, &report, NULL), -EINVAL);
  struct lade_trainer_info info = {.struct_size = sizeof(info)};
  assert_int_equal(lade_trainer_get_info(trainer, &info), 0);
  assert_int_equal(info.step, 1); /* the refused report made no step */
  lade_trainer_close(trainer);
}

#define REFUSE_RUN(change) \
  do { \
    struct lade_run_params run; \
    struct lade_plan_report plan = {.struct_size = sizeof(plan), .n_params = 77}; \
    struct lade_error error = {0}; \
    run_init(&run); \
    change; \
    assert_in_range(-lade_plan_find(&run, &plan, &error), 1, 4095); \
    assert_int_not_equal(strlen(error.text), 0); \
    assert_null(strstr(error.text, "--")); /* options are the command's words */ \
    assert_int_equal(plan.n_params, 77); \
  } while (0)

#define REFUSE_TRAINING(change) \
  do { \
    struct lade_run_params run; \
    struct lade_trainer_params params; \
    struct feed feed = feed_make(); \
    struct lade_error error = {0}; \
    lade_trainer *trainer = NULL; \
    run_init(&run); \
    params_init(&params, &run, &feed); \
    change; \
    assert_in_range(-lade_trainer_open(&params, &error, &trainer), 1, 4095); \
    assert_int_not_equal(strlen(error.text), 0); \
    assert_null(strstr(error.text, "--")); \
    assert_null(trainer); \
  } while (0)

static void impossible_runs_are_refused_in_words(void **state)
{
  REFUSE_RUN(run.struct_size = 0);
  REFUSE_RUN(run.model = NULL);
  REFUSE_RUN(run.model = "gpt5");
  REFUSE_RUN(run.machine = "pdp11");
  REFUSE_RUN(run.device = "abacus");
  REFUSE_RUN(run.dtype = LADE_F64);
  REFUSE_RUN(run.dropout = NAN);
  REFUSE_RUN(run.dropout = 1);
  REFUSE_RUN(run.budget.kind = (enum lade_budget_kind)9);
  REFUSE_RUN(run.budget.percent = -1);
  REFUSE_RUN(run.recipe = LADE_N_RECIPES);
  REFUSE_RUN(run.batch = 0);
  REFUSE_RUN(run.micro_batch = 3);
  REFUSE_RUN(run.seq = 65);
  REFUSE_RUN(run.layers = -1);
  REFUSE_RUN(run.vocabulary = -1);
  REFUSE_RUN(run.tp = -1);
  REFUSE_RUN(run.zero = 4);
  REFUSE_RUN(run.model = "gpt2-124m");
}

static void impossible_training_is_refused_in_words(void **state)
{
  const char *const none[] = {"/nowhere/at/all"};
  REFUSE_TRAINING(params.struct_size = 0);
  REFUSE_TRAINING(params.batch = NULL);
  REFUSE_TRAINING((params.data = none, params.n_data = 1));
  REFUSE_TRAINING((params.batch = NULL, params.data = none, params.n_data = 1));
  REFUSE_TRAINING(params.lr = NAN);
  REFUSE_TRAINING(params.beta2 = 1);
  REFUSE_TRAINING(params.beta2 = 1 - 1e-10); /* 1 in FP32 */
  REFUSE_TRAINING(params.eps = 0);
  REFUSE_TRAINING(params.eps = 1e-60);
  REFUSE_TRAINING(params.lr = 1e300);
  REFUSE_TRAINING(params.steps = -1);
  REFUSE_TRAINING(params.valid_fraction = 1);
  REFUSE_TRAINING(params.n_valid_batches = -1);
  REFUSE_TRAINING(params.resume = "/nowhere");
  REFUSE_TRAINING(params.init = "/nowhere");
  REFUSE_TRAINING(run.batch = 0);
  REFUSE_TRAINING(run.optimizer_in_backward = true);
  REFUSE_TRAINING(run.durable = true);
  REFUSE_TRAINING(run.residency_file = "/nowhere");
  REFUSE_TRAINING(run.tp = 2);
}

/* ---- several ranks ---- */

/* Train @path on the ranks of this job, joined if @joins, and print the digest of all losses, or the refusal. */
static int ranks_train(const char *path, bool joins)
{
  struct lade_error error = {0};
  struct lade_run_params run;
  struct lade_trainer_params params;
  struct lade_trainer_info info = {.struct_size = sizeof(info)};
  lade_ranks *ranks = NULL;
  lade_trainer *trainer = NULL;
  int status = joins ? lade_ranks_open(NULL, &error, &ranks) : 0;
  lade_run_params_init(&run, sizeof(run));
  lade_trainer_params_init(&params, sizeof(params));
  run.batch = 4;
  run.zero = 1;
  params.run = &run;
  params.data = &path;
  params.n_data = 1;
  params.steps = 3;
  params.ranks = ranks;
  if (!status)
    status = lade_trainer_open(&params, &error, &trainer);
  for (int step = 0; step < 3 && !status; step++)
    status = lade_trainer_step(trainer, NULL, &error);
  if (!status)
    status = lade_trainer_get_info(trainer, &info);
  if (status)
    printf("END %d: %s\n", status, error.text);
  else
    printf("DIGEST %016llx\n", (unsigned long long)info.loss_digest);
  lade_trainer_close(trainer);
  lade_ranks_close(ranks);
  return status != 0;
}

/* With "ranks TEXT" or "alone TEXT" this program is one rank of a job (tests/system/ranks.py). */
int main(int argc, char **argv)
{
  if (argc == 3)
    return ranks_train(argv[2], strcmp(argv[1], "ranks") == 0);
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(the_smallest_budget_gives_the_numbers_of_the_unconstrained_run),
      cmocka_unit_test(a_plan_states_the_peak_and_ledger_that_training_has),
      cmocka_unit_test(a_budget_that_does_not_suffice_is_an_answer_of_a_plan_and_an_error_of_a_trainer),
      cmocka_unit_test(own_batches_come_by_number_and_row_whatever_the_microbatch),
      cmocka_unit_test(a_file_and_a_callback_with_its_bytes_train_alike),
      cmocka_unit_test(a_bad_token_or_a_failing_callback_changes_nothing_and_may_be_tried_again),
      cmocka_unit_test(targets_below_zero_are_not_counted),
      cmocka_unit_test(a_saved_run_with_own_batches_goes_on_bit_for_bit),
      cmocka_unit_test(parameters_can_be_read_in_full),
      cmocka_unit_test(a_dry_trainer_steps_in_simulated_time_and_has_no_values),
      cmocka_unit_test(stalls_are_reported_by_their_cause),
      cmocka_unit_test(a_program_of_older_headers_gets_defaults_and_no_more_than_it_has_room_for),
      cmocka_unit_test(impossible_runs_are_refused_in_words),
      cmocka_unit_test(impossible_training_is_refused_in_words),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
