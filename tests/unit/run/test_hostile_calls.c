/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every public function with arguments that no program should pass: NULL for a required object, numbers at the ends of
 * their types, invalid enumerators, structs of other lengths. Each call ends with its documented code, in one process,
 * which goes on; the undefined-behaviour sanitizer finds no overflow.
 */
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
#include "lade/adam.h"
#include "lade/cache.h"
#include "lade/device.h"
#include "lade/graph.h"
#include "lade/graph_plan.h"
#include "lade/pack.h"
#include "lade/plan.h"
#include "lade/shard.h"
#include "lade/step.h"
#include "lade/store.h"
#include "lade/train.h"
#include "tests/support/scratch.h"

static const int64_t hostile[] = {0, -1, 1, INT64_MIN, INT64_MAX, INT32_MAX, (int64_t)INT32_MIN, (int64_t)1 << 62};
static struct lade_error error;

static void must_refuse(int status)
{
  if (status != -EINVAL)
    fail_msg("%d with '%s'", status, error.text);
}

/* Make a newer header's struct, whose unknown tail is @tail in every byte. */
static void *grown_make(const void *given, size_t bytes, int tail)
{
  const size_t grown_bytes = bytes + 64;
  char *grown = malloc(grown_bytes);
  assert_non_null(grown);
  memset(grown, tail, grown_bytes);
  memcpy(grown, given, bytes);
  memcpy(grown, &grown_bytes, sizeof(grown_bytes));
  return grown;
}

/* ---- types ---- */

static void names_of_no_value_are_a_question_mark(void **state)
{
  const int values[] = {-1, 99, INT32_MAX, INT32_MIN};
  for (size_t i = 0; i < LADE_COUNT(values); i++) {
    assert_string_equal(lade_dtype_name((enum lade_dtype)values[i]), "?");
    assert_string_equal(lade_space_name((enum lade_space)values[i]), "?");
    assert_string_equal(lade_owner_name((enum lade_owner)values[i]), "?");
    assert_string_equal(lade_queue_name((enum lade_queue_id)values[i]), "?");
    assert_int_equal(lade_dtype_bytes((enum lade_dtype)values[i]), 0);
  }
  assert_non_null(lade_version());
}

static void an_error_has_a_negative_code(void **state)
{
  assert_int_equal(lade_error_set(NULL, -EIO, "%d", 1), -EIO);
  assert_int_equal(lade_error_set(&error, 0, "%d", 1), -EINVAL);
  assert_int_equal(lade_error_set(&error, INT32_MAX, "%d", 1), -EINVAL);
  assert_int_equal(lade_error_set(&error, INT32_MIN, "%d", 1), INT32_MIN);
}

/* ---- plan ---- */

static struct lade_run_params run_make(void)
{
  struct lade_run_params run;
  lade_run_params_init(&run, sizeof(run));
  run.layers = 1;
  run.batch = 1;
  run.seq = 8;
  run.machine = "laptop-8c";
  return run;
}

/* Try a plan of arbitrary numbers: found or refused with a line, and never with a code that blames the machine. */
static void plan_try(const struct lade_run_params *run)
{
  struct lade_plan_report report = {.struct_size = sizeof(report)};
  error.text[0] = 0;
  int status = lade_plan_find(run, &report, &error);
  if (status && (!error.text[0] || (status != -EINVAL && status != -EOVERFLOW && status != -ENOMEM)))
    fail_msg("%d with '%s'", status, error.text);
}

static void plans_take_no_numbers_that_are_none(void **state)
{
  static const size_t numbers[] = {
      offsetof(struct lade_run_params, layers), offsetof(struct lade_run_params, vocabulary),
      offsetof(struct lade_run_params, batch), offsetof(struct lade_run_params, micro_batch),
      offsetof(struct lade_run_params, seq), offsetof(struct lade_run_params, link_bytes_per_s),
      offsetof(struct lade_run_params, link_latency_ns), offsetof(struct lade_run_params, budget.bytes),
      offsetof(struct lade_run_params, host_budget_bytes)};
  for (size_t i = 0; i < LADE_COUNT(numbers); i++) {
    for (size_t j = 0; j < LADE_COUNT(hostile); j++) {
      struct lade_run_params run = run_make();
      run.budget.kind = numbers[i] == offsetof(struct lade_run_params, budget.bytes) ? LADE_BUDGET_BYTES
                                                                                     : LADE_BUDGET_AUTO;
      run.has_host_budget = numbers[i] == offsetof(struct lade_run_params, host_budget_bytes);
      memcpy((char *)&run + numbers[i], &hostile[j], sizeof(hostile[j]));
      plan_try(&run);
    }
  }
  struct lade_plan_report report = {.struct_size = sizeof(report)};
  struct lade_run_params run = run_make();
  run.link_bytes_per_s = 1000000000;
  run.link_latency_ns = INT64_MAX;
  must_refuse(lade_plan_find(&run, &report, &error));
}

static void plans_take_no_enumerators_that_are_none(void **state)
{
  static const size_t enums[] = {
      offsetof(struct lade_run_params, dtype), offsetof(struct lade_run_params, budget.kind),
      offsetof(struct lade_run_params, recipe), offsetof(struct lade_run_params, moments),
      offsetof(struct lade_run_params, master), offsetof(struct lade_run_params, grad_dtype),
      offsetof(struct lade_run_params, n_threads)};
  const int values[] = {-1, 99, INT32_MAX, INT32_MIN};
  struct lade_plan_report report = {.struct_size = sizeof(report)};
  for (size_t i = 0; i < LADE_COUNT(enums); i++) {
    for (size_t j = 0; j < LADE_COUNT(values); j++) {
      struct lade_run_params run = run_make();
      if (enums[i] == offsetof(struct lade_run_params, n_threads) && values[j] == 99)
        continue;
      memcpy((char *)&run + enums[i], &values[j], sizeof(values[j]));
      must_refuse(lade_plan_find(&run, &report, &error));
    }
  }
  const double reals[] = {(double)NAN, (double)INFINITY, -1};
  for (size_t i = 0; i < LADE_COUNT(reals); i++) {
    struct lade_run_params run = run_make();
    run.dropout = reals[i];
    must_refuse(lade_plan_find(&run, &report, &error));
    run = run_make();
    run.budget = (struct lade_budget){.kind = LADE_BUDGET_PERCENT, .percent = reals[i]};
    must_refuse(lade_plan_find(&run, &report, &error));
  }
}

static void a_budget_of_any_percent_is_no_less_than_all_memory(void **state)
{
  for (int kind = LADE_BUDGET_PERCENT; kind <= LADE_BUDGET_PERCENT_DEVICE; kind++) {
    struct lade_run_params run = run_make();
    struct lade_plan_report report = {.struct_size = sizeof(report)};
    run.budget = (struct lade_budget){.kind = (enum lade_budget_kind)kind, .percent = 1e300};
    assert_int_equal(lade_plan_find(&run, &report, &error), 0);
    assert_true(report.has_plan);
    assert_true(report.budget_bytes[LADE_DEVICE] >= report.unconstrained_bytes);
  }
}

static void structs_of_other_lengths_are_refused(void **state)
{
  struct lade_run_params run = run_make();
  struct lade_plan_report report = {.struct_size = sizeof(report)};
  void *grown = grown_make(&run, sizeof(run), 1);
  must_refuse(lade_plan_find(grown, &report, &error));
  free(grown);
  grown = grown_make(&run, sizeof(run), 0);
  assert_int_equal(lade_plan_find(grown, &report, &error), 0);
  free(grown);
  run.struct_size = offsetof(struct lade_run_params, moments);
  assert_int_equal(lade_plan_find(&run, &report, &error), 0);
  const size_t none[] = {0, 1, sizeof(size_t) - 1, SIZE_MAX};
  for (size_t i = 0; i < LADE_COUNT(none); i++) {
    run.struct_size = none[i];
    must_refuse(lade_plan_find(&run, &report, &error));
    run = run_make();
    report.struct_size = none[i];
    run.model = "none"; /* the report's length is checked before any work */
    must_refuse(lade_plan_find(&run, &report, &error));
    assert_non_null(strstr(error.text, "lade_plan_report"));
    run = run_make();
    report.struct_size = sizeof(report);
  }
  must_refuse(lade_plan_find(&run, NULL, &error));
  run.model = NULL;
  must_refuse(lade_plan_find(&run, &report, NULL));
  lade_run_params_init(NULL, sizeof(run));
  lade_trainer_params_init(NULL, 0);
}

/* ---- trainer ---- */

static void trainers_that_are_none_are_refused(void **state)
{
  struct lade_trainer_params params;
  lade_trainer *trainer = NULL;
  double loss;
  uint64_t digest;
  float value;
  lade_trainer_params_init(&params, sizeof(params));
  must_refuse(lade_trainer_open(NULL, &error, &trainer));
  must_refuse(lade_trainer_open(&params, &error, NULL));
  params.n_data = 1;
  must_refuse(lade_trainer_open(&params, &error, &trainer));
  lade_trainer_close(NULL);
  must_refuse(lade_trainer_step(NULL, NULL, &error));
  must_refuse(lade_trainer_eval(NULL, &loss, &error));
  must_refuse(lade_trainer_save(NULL, ".", 0, &error));
  must_refuse(lade_trainer_get_info(NULL, NULL));
  must_refuse(lade_trainer_get_plan(NULL, NULL));
  must_refuse(lade_trainer_digest_params(NULL, &digest, &error));
  must_refuse(lade_trainer_get_param(NULL, 0, NULL));
  must_refuse(lade_trainer_read_param(NULL, 0, &value, &error));
}

static int batch_fill(void *user, const struct lade_batch *batch, struct lade_error *ret_error)
{
  memset(batch->tokens, 0, (size_t)(batch->n_rows * batch->seq) * sizeof(*batch->tokens));
  memset(batch->targets, 0, (size_t)(batch->n_rows * batch->seq) * sizeof(*batch->targets));
  return 0;
}

static void trainers_refuse_missing_arguments(void **state)
{
  struct lade_trainer_params params;
  struct lade_run_params run = run_make();
  struct lade_trainer_report report = {0};
  struct lade_trainer_info info = {0};
  struct lade_plan_report plan = {0};
  struct lade_param_info param = {.struct_size = sizeof(param)};
  lade_trainer *trainer;
  float value;
  lade_trainer_params_init(&params, sizeof(params));
  params.run = &run;
  params.batch = batch_fill;
  params.n_valid_batches = 1;
  assert_int_equal(lade_trainer_open(&params, &error, &trainer), 0);
  must_refuse(lade_trainer_step(trainer, &report, &error));
  must_refuse(lade_trainer_eval(trainer, NULL, &error));
  must_refuse(lade_trainer_save(trainer, NULL, 0, &error));
  must_refuse(lade_trainer_save(trainer, scratch, -1, &error));
  must_refuse(lade_trainer_get_info(trainer, &info));
  must_refuse(lade_trainer_get_info(trainer, NULL));
  must_refuse(lade_trainer_get_plan(trainer, &plan));
  must_refuse(lade_trainer_get_plan(trainer, NULL));
  must_refuse(lade_trainer_digest_params(trainer, NULL, &error));
  must_refuse(lade_trainer_get_param(trainer, 0, NULL));
  must_refuse(lade_trainer_read_param(trainer, 0, NULL, &error));
  const int indices[] = {-1, INT32_MAX, INT32_MIN};
  for (size_t i = 0; i < LADE_COUNT(indices); i++) {
    must_refuse(lade_trainer_get_param(trainer, indices[i], &param));
    must_refuse(lade_trainer_read_param(trainer, indices[i], &value, &error));
  }
  assert_int_equal(lade_trainer_step(trainer, NULL, NULL), 0);
  lade_trainer_close(trainer);
}

/* ---- device ---- */

static void queues_that_are_none_do_nothing(void **state)
{
  struct lade_device_info info;
  lade_device *device;
  lade_queue *queue;
  uint64_t count = 7;
  must_refuse(lade_device_open(NULL, &error, &device));
  must_refuse(lade_device_status(NULL));
  must_refuse(lade_queue_create(NULL, LADE_QUEUE_COMPUTE, &queue));
  must_refuse(lade_queue_sync(NULL, UINT64_MAX));
  must_refuse(lade_queue_adopt(NULL, LADE_QUEUE_COMPUTE, &info, &queue));
  must_refuse(lade_queue_record(NULL, &count));
  lade_device_get_info(NULL, &info);
  assert_int_equal(info.capacity_bytes, 0);
  lade_device_get_info(NULL, NULL);
  lade_device_close(NULL);
  lade_queue_destroy(NULL);
  lade_queue_launch(NULL, NULL, &count);
  assert_int_equal(count, 0);
  lade_queue_copy(NULL, NULL, NULL);
  lade_queue_wait(NULL, NULL, UINT64_MAX);
  assert_int_equal(lade_queue_submitted(NULL), 0);
  assert_true(lade_queue_poll(NULL, UINT64_MAX));
}

static void submissions_that_are_none_stick_to_the_device(void **state)
{
  static char byte;
  const struct lade_copy nowhere = {.bytes = 1, .src = &byte}, before = {.predicted_ns = -1};
  const struct lade_work nothing = {.predicted_ns = INT64_MIN};
  for (int i = 0; i < 4; i++) {
    const struct lade_device_params params = {.struct_size = sizeof(params), .name = "dry", .capacity_bytes = 1 << 24};
    lade_device *device;
    lade_queue *queue, *signal;
    assert_int_equal(lade_device_open(&params, &error, &device), 0);
    must_refuse(lade_queue_create(device, (enum lade_queue_role)99, &queue));
    must_refuse(lade_queue_create(device, (enum lade_queue_role)-1, &queue));
    must_refuse(lade_queue_create(device, LADE_QUEUE_COMPUTE, NULL));
    assert_int_equal(lade_queue_create(device, LADE_QUEUE_COMPUTE, &queue), 0);
    assert_int_equal(lade_queue_create(device, LADE_QUEUE_SIGNAL, &signal), 0);
    const struct lade_work work = {.predicted_ns = INT64_MAX};
    for (int j = 0; j < 3; j++) /* a clock at the end of time */
      lade_queue_launch(queue, &work, NULL);
    assert_int_equal(lade_device_status(device), 0);
    if (i == 0)
      lade_queue_launch(queue, &nothing, NULL);
    else if (i == 1)
      lade_queue_copy(queue, &nowhere, NULL);
    else if (i == 2)
      lade_queue_copy(queue, &before, NULL);
    else
      lade_queue_launch(signal, &work, NULL);
    must_refuse(lade_device_status(device));
    lade_queue_destroy(signal);
    lade_queue_destroy(queue);
    lade_device_close(device);
  }
}

/* ---- cache ---- */

static void caches_that_are_none_are_refused(void **state)
{
  struct lade_cache_params params = {.struct_size = sizeof(params)};
  lade_cache *cache;
  must_refuse(lade_cache_create(NULL, &error, &cache));
  must_refuse(lade_cache_create(&params, &error, &cache)); /* without a device */
  must_refuse(lade_cache_create(&params, &error, NULL));
  lade_cache_destroy(NULL);
  must_refuse(lade_cache_alloc(NULL, NULL, &error, NULL));
  must_refuse(lade_cache_free(NULL, &params, NULL, &error));
  must_refuse(lade_cache_record(NULL, NULL, NULL));
  lade_cache_forget(NULL, NULL);
  must_refuse(lade_cache_trim(NULL, 0));
  must_refuse(lade_cache_get_block(NULL, NULL, NULL));
  must_refuse(lade_cache_pool_create(NULL, 1, NULL));
  must_refuse(lade_cache_pool_create_shared(NULL, 1, NULL));
  must_refuse(lade_cache_pool_destroy(NULL, NULL));
  must_refuse(lade_cache_route(NULL, NULL, NULL));
  must_refuse(lade_cache_capture_begin(NULL, NULL));
  must_refuse(lade_cache_capture_end(NULL, NULL));
  must_refuse(lade_cache_share_get(NULL, NULL, NULL, NULL, 0));
  must_refuse(lade_cache_share_open(NULL, NULL, NULL, NULL));
  must_refuse(lade_cache_share_close(NULL, NULL));
  must_refuse(lade_cache_get_stats(NULL, NULL));
  lade_cache_reset_peaks(NULL);
  must_refuse(lade_cache_tag_add(NULL, "x", NULL));
  must_refuse(lade_cache_get_tag(NULL, 0, NULL));
  assert_int_equal(lade_cache_get_trace(NULL, NULL, INT32_MAX), 0);
  assert_int_equal(lade_cache_report(NULL, NULL, 0), 0);
  must_refuse(lade_cache_write_snapshot(NULL, NULL, &error));
  must_refuse(lade_cache_get_finding(NULL, 0, NULL));
  must_refuse(lade_cache_check(NULL, &error));
}

static void requests_refused(lade_cache *cache, lade_queue *queue)
{
  struct lade_cache_share share = {.struct_size = sizeof(share), .bytes = UINT64_MAX, .offset = UINT64_MAX,
                                   .chunk_bytes = UINT64_MAX, .n_chunks = INT32_MAX};
  struct lade_cache_request request = {.struct_size = sizeof(request), .bytes = 1};
  const int descriptors[1] = {-1};
  void *address;
  for (size_t i = 0; i < LADE_COUNT(hostile); i++) {
    request.bytes = (uint64_t)hostile[i];
    int status = lade_cache_alloc(cache, &request, &error, &address);
    assert_true(!status || status == -EINVAL || status == -ENOMEM);
    if (!status)
      assert_int_equal(lade_cache_free(cache, address, NULL, &error), 0);
  }
  request.bytes = 1;
  const int tags[] = {-1, LADE_CACHE_MAX_TAGS, INT32_MAX, INT32_MIN};
  for (size_t i = 0; i < LADE_COUNT(tags); i++) {
    request.tag = tags[i];
    must_refuse(lade_cache_alloc(cache, &request, &error, &address));
  }
  must_refuse(lade_cache_alloc(cache, NULL, &error, &address));
  must_refuse(lade_cache_alloc(cache, &request, &error, NULL));
  must_refuse(lade_cache_free(cache, (void *)UINTPTR_MAX, NULL, &error));
  must_refuse(lade_cache_record(cache, (void *)UINTPTR_MAX, queue));
  must_refuse(lade_cache_record(cache, NULL, NULL));
  must_refuse(lade_cache_route(cache, NULL, NULL));
  must_refuse(lade_cache_share_open(cache, NULL, descriptors, &address));
  must_refuse(lade_cache_share_open(cache, &share, descriptors, &address));
  must_refuse(lade_cache_share_get(cache, NULL, NULL, NULL, 0));
  must_refuse(lade_cache_share_get(cache, (void *)UINTPTR_MAX, &share, NULL, -1));
  must_refuse(lade_cache_share_close(cache, (void *)UINTPTR_MAX));
}

static void caches_refuse_missing_arguments(void **state)
{
  const struct lade_device_params device_params = {.struct_size = sizeof(device_params), .capacity_bytes = 64 << 20};
  struct lade_cache_params params = {.struct_size = sizeof(params)};
  struct lade_cache_stats stats = {0};
  struct lade_cache_tag tag;
  struct lade_cache_pool *pool = NULL;
  struct lade_cache_event event;
  lade_device *device;
  lade_queue *queue;
  lade_cache *cache;
  int number;
  assert_int_equal(lade_device_open(&device_params, &error, &device), 0);
  assert_int_equal(lade_queue_create(device, LADE_QUEUE_COMPUTE, &queue), 0);
  params.device = device;
  params.flags = UINT32_MAX;
  must_refuse(lade_cache_create(&params, &error, &cache));
  params.flags = 0;
  assert_int_equal(lade_cache_create(&params, &error, &cache), 0);
  requests_refused(cache, queue);
  assert_int_equal(lade_cache_pool_create(cache, UINT64_MAX, &pool), -ENOMEM);
  must_refuse(lade_cache_pool_create(cache, 1, NULL));
  must_refuse(lade_cache_capture_begin(cache, NULL));
  must_refuse(lade_cache_capture_end(cache, NULL));
  assert_int_equal(lade_cache_pool_destroy(cache, NULL), 0);
  must_refuse(lade_cache_get_stats(cache, NULL));
  must_refuse(lade_cache_get_stats(cache, &stats));
  must_refuse(lade_cache_tag_add(cache, NULL, &number));
  must_refuse(lade_cache_tag_add(cache, "x", NULL));
  assert_int_equal(lade_cache_get_tag(cache, INT32_MAX, &tag), -ENOENT);
  assert_int_equal(lade_cache_get_tag(cache, INT32_MIN, &tag), -ENOENT);
  assert_int_equal(lade_cache_get_finding(cache, INT32_MAX, &error), -ENOENT);
  assert_int_equal(lade_cache_get_finding(cache, -1, &error), -ENOENT);
  assert_int_equal(lade_cache_get_trace(cache, &event, INT32_MIN), 0);
  assert_int_equal(lade_cache_report(cache, NULL, 10), 0);
  assert_true(lade_cache_report(cache, NULL, 0) > 0);
  assert_int_equal(lade_cache_trim(cache, UINT64_MAX), 0);
  must_refuse(lade_cache_write_snapshot(cache, NULL, &error));
  assert_int_equal(lade_cache_check(cache, NULL), 0);
  lade_cache_forget(cache, NULL);
  lade_cache_destroy(cache);
  lade_queue_destroy(queue);
  lade_device_close(device);
}

/* ---- packing ---- */

static void packings_of_nothing_are_refused(void **state)
{
  struct lade_pack_item item = {.lower = 0, .upper = 1, .bytes = 8, .fixed = -1};
  struct lade_pack_result result;
  lade_packer *packer;
  uint64_t offset, peak;
  must_refuse(lade_packer_create(NULL));
  assert_int_equal(lade_packer_create(&packer), 0);
  must_refuse(lade_packer_pack(NULL, &item, 1, NULL, &offset, &result, &error));
  must_refuse(lade_packer_pack(packer, NULL, 1, NULL, &offset, &result, &error));
  must_refuse(lade_packer_pack(packer, &item, 1, NULL, NULL, &result, &error));
  must_refuse(lade_packer_pack(packer, &item, 1, NULL, &offset, NULL, &error));
  must_refuse(lade_packer_pack(packer, &item, INT32_MIN, NULL, &offset, &result, &error));
  assert_int_equal(lade_packer_pack(packer, NULL, 0, NULL, NULL, &result, &error), 0);
  lade_packer_destroy(packer);
  lade_packer_destroy(NULL);
  must_refuse(lade_pack(NULL, 1, NULL, &offset, &result, &error));
  must_refuse(lade_pack_check(NULL, 1, &offset, 0, &error));
  must_refuse(lade_pack_check(&item, 1, NULL, 0, &error));
  must_refuse(lade_pack_check(&item, -1, &offset, 0, &error));
  must_refuse(lade_pack_live_peak(NULL, 1, &peak));
  must_refuse(lade_pack_live_peak(&item, 1, NULL));
  must_refuse(lade_pack_live_peak(&item, INT32_MIN, &peak));
  for (size_t i = 0; i < LADE_COUNT(hostile); i++) {
    item.bytes = (uint64_t)hostile[i];
    offset = (uint64_t)hostile[i];
    int status = lade_pack(&item, 1, NULL, &offset, &result, &error);
    assert_true(!status || status == -EINVAL || status == -EOVERFLOW);
    offset = UINT64_MAX;
    status = lade_pack_check(&item, 1, &offset, UINT64_MAX, &error);
    assert_true(status == -EBADMSG || status == -EINVAL);
  }
}

/* ---- steps ---- */

static void steppers_that_are_none_are_refused(void **state)
{
  const struct lade_step_params params = {.struct_size = sizeof(params)};
  struct lade_step_info info = {.struct_size = sizeof(info)};
  struct lade_step_measures measures = {.struct_size = sizeof(measures)};
  lade_stepper *stepper = NULL;
  char byte = 0;
  must_refuse(lade_step_create(NULL, &params, &error, NULL, &stepper));
  must_refuse(lade_step_create(NULL, NULL, NULL, NULL, NULL));
  must_refuse(lade_step_run(NULL, &measures, &error));
  must_refuse(lade_step_run(NULL, NULL, NULL));
  must_refuse(lade_step_get_info(NULL, &info));
  must_refuse(lade_step_get_info(NULL, NULL));
  must_refuse(lade_step_get(NULL, 0, 0, &byte, 1, &error));
  must_refuse(lade_step_set(NULL, 0, 0, &byte, 1, NULL));
  assert_null(lade_step_address(NULL, 0));
  lade_step_destroy(NULL);
  assert_null(stepper);
}

/* ---- graphs of steps ---- */

static void graphs_that_are_none_are_refused(void **state)
{
  const struct lade_storage storage = {.struct_size = sizeof(storage), .name = "x"};
  const struct lade_graph_op op = {.struct_size = sizeof(op), .name = "f"};
  lade_graph *graph = NULL;
  must_refuse(lade_graph_create(NULL));
  must_refuse(lade_graph_add_storage(NULL, &storage, &error, NULL));
  must_refuse(lade_graph_add_op(NULL, &op, &error, NULL));
  must_refuse(lade_graph_keep(NULL, 0, &error));
  must_refuse(lade_graph_close(NULL, &error));
  must_refuse(lade_graph_set_addresses(NULL, true));
  must_refuse(lade_graph_load(NULL, &error, &graph));
  must_refuse(lade_graph_load("-", &error, NULL));
  must_refuse(lade_graph_parse(NULL, 0, &error, &graph));
  must_refuse(lade_graph_parse("{}", SIZE_MAX, &error, &graph));
  must_refuse(lade_graph_parse("{}", 2, &error, NULL));
  must_refuse(lade_graph_parse("{}", 2, NULL, &graph));
  must_refuse(lade_graph_save(NULL, in_scratch("graph.json"), &error));
  assert_null(graph);
  assert_int_equal(lade_graph_n_storages(NULL), 0);
  assert_int_equal(lade_graph_n_ops(NULL), 0);
  assert_string_equal(lade_graph_storage_name(NULL, 0), "");
  assert_string_equal(lade_graph_op_name(NULL, 0), "");
  assert_true(lade_graph_has_addresses(NULL));
  lade_graph_destroy(NULL);
}

static void plans_of_no_graph_are_refused(void **state)
{
  const struct lade_graph_plan_params params = {.struct_size = sizeof(params)};
  struct lade_graph_totals totals = {.struct_size = sizeof(totals)};
  lade_graph_plan *plan = NULL;
  lade_graph *graph;
  int n = 7;
  assert_int_equal(lade_graph_create(&graph), 0);
  must_refuse(lade_graph_plan_find(NULL, &params, &error, NULL, &plan));
  must_refuse(lade_graph_plan_find(graph, &params, &error, NULL, &plan)); /* it is open */
  must_refuse(lade_graph_replay(NULL, NULL, 0, &error, &totals));
  must_refuse(lade_graph_replay(graph, NULL, 0, &error, &totals));
  assert_int_equal(lade_graph_close(graph, &error), 0);
  must_refuse(lade_graph_plan_find(graph, NULL, &error, NULL, &plan));
  must_refuse(lade_graph_plan_find(graph, &params, &error, NULL, NULL));
  must_refuse(lade_graph_replay(graph, NULL, 1, &error, &totals));
  must_refuse(lade_graph_replay(graph, NULL, INT32_MIN, &error, &totals));
  must_refuse(lade_graph_replay(graph, NULL, 0, &error, NULL));
  assert_null(lade_graph_plan_instrs(NULL, &n));
  assert_int_equal(n, 0);
  assert_null(plan);
  lade_graph_plan_destroy(NULL);
  lade_graph_destroy(graph);
}

static void graphs_take_no_numbers_that_are_none(void **state)
{
  lade_graph *graph;
  struct lade_error none = {0};
  assert_int_equal(lade_graph_create(&graph), 0);
  for (size_t i = 0; i < LADE_COUNT(hostile); i++) {
    const uint64_t number = (uint64_t)hostile[i];
    const struct lade_operand_range range = {.storage = (int)hostile[i], .offset = number, .bytes = number};
    struct lade_storage storage = {.struct_size = sizeof(storage), .name = "x", .bytes = number, .is_given = true};
    struct lade_graph_op op = {.struct_size = sizeof(op), .name = "f", .reads = &range, .n_reads = 1};
    int status = lade_graph_add_storage(graph, &storage, &error, NULL);
    assert_true(!status || status == -EOVERFLOW);
    storage.bytes = 0;
    storage.align = number;
    status = lade_graph_add_storage(graph, &storage, NULL, NULL);
    assert_true(!status || status == -EINVAL);
    status = lade_graph_add_op(graph, &op, NULL, NULL);
    assert_true(!status || status == -EINVAL);
    op.n_reads = 0;
    op.ns = hostile[i];
    op.scratch_bytes = number;
    status = lade_graph_add_op(graph, &op, &error, NULL);
    assert_true(!status || status == -EINVAL || status == -EOVERFLOW);
    status = lade_graph_keep(graph, (int)hostile[i], &error);
    assert_true(!status || status == -EINVAL);
    assert_string_equal(lade_graph_op_name(graph, (int)hostile[i] | INT32_MIN), "");
  }
  void *grown = grown_make(&(struct lade_storage){.name = "x"}, sizeof(struct lade_storage), 1);
  must_refuse(lade_graph_add_storage(graph, grown, &error, NULL));
  free(grown);
  grown = grown_make(&(struct lade_graph_op){.name = "f"}, sizeof(struct lade_graph_op), 0);
  assert_int_equal(lade_graph_add_op(graph, grown, &error, NULL), 0);
  free(grown);
  must_refuse(lade_graph_save(graph, in_scratch("graph.json"), &error));
  assert_int_equal(lade_graph_close(graph, &none), 0);
  must_refuse(lade_graph_save(graph, NULL, &error));
  lade_graph_destroy(graph);
}

/* ---- AdamW ---- */

static void updates_of_nothing_are_refused(void **state)
{
  struct lade_adam_shard shard = {.struct_size = sizeof(shard), .n_elements = 1};
  struct lade_adam_bytes bytes = {.struct_size = sizeof(bytes)};
  lade_adam *adam;
  must_refuse(lade_adam_create(0, &error, NULL));
  must_refuse(lade_adam_create(-1, &error, &adam));
  must_refuse(lade_adam_create(INT32_MAX, &error, &adam));
  must_refuse(lade_adam_get_bytes(NULL, &bytes, &error));
  must_refuse(lade_adam_get_bytes(&shard, NULL, &error));
  for (size_t i = 0; i < LADE_COUNT(hostile); i++) {
    shard.n_elements = hostile[i];
    shard.first_element = (uint64_t)hostile[i];
    int status = lade_adam_get_bytes(&shard, &bytes, &error);
    assert_true(!status || status == -EINVAL);
  }
  shard = (struct lade_adam_shard){.struct_size = sizeof(shard), .n_elements = 1, .dtype = (enum lade_dtype)99};
  must_refuse(lade_adam_get_bytes(&shard, &bytes, &error));
  shard.dtype = LADE_BF16;
  assert_int_equal(lade_adam_create(1, &error, &adam), 0);
  must_refuse(lade_adam_set(NULL, &shard, NULL, &error));
  must_refuse(lade_adam_set(adam, NULL, NULL, &error));
  must_refuse(lade_adam_set(adam, &shard, NULL, &error));
  must_refuse(lade_adam_get(NULL, &shard, NULL, NULL, NULL, &error));
  must_refuse(lade_adam_get(adam, &shard, NULL, NULL, NULL, &error));
  must_refuse(lade_adam_update(NULL, &shard, NULL, &error));
  must_refuse(lade_adam_update(adam, &shard, NULL, &error));
  lade_adam_destroy(adam);
  lade_adam_destroy(NULL);
}

/* ---- tensors on a drive ---- */

static void stores_of_nothing_are_refused(void **state)
{
  struct lade_tensor_store_params params = {.struct_size = sizeof(params), .dirs = scratch, .allow_tmpfs = true,
                                            .allow_buffered = true, .use_threads = true};
  struct lade_tensor_store_info info = {0};
  struct lade_tensor_request request = {.struct_size = sizeof(request)};
  lade_tensor_ticket *ticket;
  lade_tensor_store *store;
  uint64_t bytes;
  char text[8];
  must_refuse(lade_tensor_store_open(NULL, &error, &store));
  must_refuse(lade_tensor_store_open(&params, &error, &store));
  params.budget_bytes = UINT64_MAX;
  must_refuse(lade_tensor_store_open(&params, &error, &store));
  must_refuse(lade_tensor_store_open(&params, &error, NULL));
  lade_tensor_store_close(NULL);
  assert_string_equal(lade_tensor_store_note(NULL), "");
  must_refuse(lade_tensor_store_put(NULL, "x", text, 1, &error));
  must_refuse(lade_tensor_store_get(NULL, "x", text, 1, &error));
  must_refuse(lade_tensor_store_find(NULL, "x", &bytes));
  must_refuse(lade_tensor_store_drop(NULL, "x"));
  must_refuse(lade_tensor_store_get_info(NULL, NULL));
  must_refuse(lade_tensor_store_take_notice(NULL, NULL, 0));
  must_refuse(lade_tensor_store_submit(NULL, NULL, &error, NULL));
  must_refuse(lade_tensor_store_is_done(NULL, NULL));
  must_refuse(lade_tensor_store_wait(NULL, NULL, &error));
  must_refuse(lade_tensor_store_publish(NULL, &error));
  must_refuse(lade_tensor_store_find_next(NULL, NULL, text, sizeof(text), &bytes));
  params.budget_bytes = 1 << 16;
  assert_int_equal(lade_tensor_store_open(&params, &error, &store), 0);
  must_refuse(lade_tensor_store_put(store, NULL, text, 1, &error));
  must_refuse(lade_tensor_store_put(store, "x", NULL, 1, &error));
  must_refuse(lade_tensor_store_put(store, "x", text, 0, &error));
  assert_int_equal(lade_tensor_store_put(store, "x", text, UINT64_MAX, &error), -EOVERFLOW);
  must_refuse(lade_tensor_store_get(store, "x", NULL, 1, &error));
  assert_int_equal(lade_tensor_store_get(store, "x", text, UINT64_MAX, &error), -ENOENT);
  must_refuse(lade_tensor_store_find(store, NULL, &bytes));
  must_refuse(lade_tensor_store_find(store, "x", NULL));
  must_refuse(lade_tensor_store_get_info(store, &info));
  must_refuse(lade_tensor_store_take_notice(store, NULL, 512));
  must_refuse(lade_tensor_store_submit(store, NULL, &error, &ticket));
  must_refuse(lade_tensor_store_submit(store, &request, &error, &ticket));
  must_refuse(lade_tensor_store_submit(store, &request, &error, NULL));
  must_refuse(lade_tensor_store_is_done(store, NULL));
  must_refuse(lade_tensor_store_wait(store, NULL, &error));
  must_refuse(lade_tensor_store_publish(store, &error));
  must_refuse(lade_tensor_store_find_next(store, NULL, NULL, 0, &bytes));
  must_refuse(lade_tensor_store_find_next(store, NULL, text, sizeof(text), NULL));
  lade_tensor_store_close(store);
}

/* ---- ranks ---- */

static void ranks_that_are_none_are_refused(void **state)
{
  lade_ranks *ranks;
  lade_shard *shard;
  float value = 0;
  int rank;
  void *data;
  struct lade_ranks_params params = {.struct_size = sizeof(params), .n_threads = -1};
  must_refuse(lade_ranks_open(&params, &error, &ranks));
  params.n_threads = INT32_MAX;
  must_refuse(lade_ranks_open(&params, &error, &ranks));
  must_refuse(lade_ranks_open(NULL, &error, NULL));
  lade_ranks_close(NULL);
  must_refuse(lade_ranks_split(NULL, 0, 0, &error, &ranks));
  must_refuse(lade_ranks_get_info(NULL, NULL, &error));
  must_refuse(lade_ranks_alloc(NULL, 1, &error, &data));
  lade_ranks_free(NULL, &value);
  must_refuse(lade_ranks_sum(NULL, &value, 1, &error));
  must_refuse(lade_ranks_broadcast(NULL, 0, &value, 1, &error));
  lade_ranks_abort(NULL, NULL);
  must_refuse(lade_shard_create(NULL, 1, &error, &shard));
  lade_shard_destroy(NULL);
  must_refuse(lade_shard_get_info(NULL, NULL, &error));
  must_refuse(lade_shard_get_block(NULL, 0, NULL, &error));
  must_refuse(lade_shard_get_owner(NULL, 0, &rank, &error));
  must_refuse(lade_shard_cut(NULL, LADE_F32, &value, &value, &error));
  must_refuse(lade_shard_gather(NULL, LADE_F32, &value, &value, &error));
  must_refuse(lade_shard_reduce(NULL, LADE_F32, &value, &value, &error));
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(names_of_no_value_are_a_question_mark),
      cmocka_unit_test(an_error_has_a_negative_code),
      cmocka_unit_test(plans_take_no_numbers_that_are_none),
      cmocka_unit_test(plans_take_no_enumerators_that_are_none),
      cmocka_unit_test(a_budget_of_any_percent_is_no_less_than_all_memory),
      cmocka_unit_test(structs_of_other_lengths_are_refused),
      cmocka_unit_test(trainers_that_are_none_are_refused),
      cmocka_unit_test(trainers_refuse_missing_arguments),
      cmocka_unit_test(queues_that_are_none_do_nothing),
      cmocka_unit_test(submissions_that_are_none_stick_to_the_device),
      cmocka_unit_test(caches_that_are_none_are_refused),
      cmocka_unit_test(caches_refuse_missing_arguments),
      cmocka_unit_test(packings_of_nothing_are_refused),
      cmocka_unit_test(graphs_that_are_none_are_refused),
      cmocka_unit_test(steppers_that_are_none_are_refused),
      cmocka_unit_test(plans_of_no_graph_are_refused),
      cmocka_unit_test(graphs_take_no_numbers_that_are_none),
      cmocka_unit_test(updates_of_nothing_are_refused),
      cmocka_unit_test(stores_of_nothing_are_refused),
      cmocka_unit_test(ranks_that_are_none_are_refused),
  };
  return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
