/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fields of a durable record that no run writes, under a valid checksum: each ends the opening with -EBADMSG and a line
 * that names journal and field. The record of a trainer is changed field by field and restored.
 */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/cpu.h"
#include "lade/train.h"
#include "offload/durable.h"
#include "offload/hash.h"
#include "run/checkpoint.h"
#include "run/rank_group.h"
#include "tests/support/scratch.h"

#define RECORD_BYTES 4096

/* Record as durable.c and session_durable.c write it. */
struct memo {
  uint64_t version;
  struct lade_checkpoint_state state;
  int64_t rank;
  char layout[LADE_LAYOUT_NAME_BYTES];
};

struct record {
  char magic[8];
  uint32_t version, memo_bytes;
  uint64_t generation, slot_bytes, layout, table_sum;
  unsigned char memo[LADE_DURABLE_MEMO_BYTES];
  uint64_t sum;
};

_Static_assert(sizeof(struct record) == RECORD_BYTES, "records are blocks");

static struct record whole;

static int batch_fill(void *user, const struct lade_batch *batch, struct lade_error *error)
{
  const size_t n = (size_t)(batch->n_rows * batch->seq);
  memset(batch->tokens, 0, n * sizeof(*batch->tokens));
  memset(batch->targets, 0, n * sizeof(*batch->targets));
  return 0;
}

static int trainer_open(struct lade_error *error, lade_trainer **ret_trainer)
{
  struct lade_run_params run;
  struct lade_trainer_params params;
  lade_run_params_init(&run, sizeof(run));
  lade_trainer_params_init(&params, sizeof(params));
  run.layers = 1;
  run.batch = 1;
  run.seq = 8;
  run.vocabulary = 64;
  run.machine = "laptop-8c";
  run.device = "host";
  run.n_threads = 1;
  run.store = scratch;
  run.durable = run.allow_tmpfs = true;
  params.run = &run;
  params.batch = batch_fill;
  params.steps = 10;
  return lade_trainer_open(&params, error, ret_trainer);
}

static void journal_move(struct record *record, int is_write)
{
  int fd = open(in_scratch(LADE_DURABLE_JOURNAL), O_RDWR | O_CLOEXEC);
  assert_true(fd >= 0);
  ssize_t n = is_write ? pwrite(fd, record, RECORD_BYTES, RECORD_BYTES) : pread(fd, record, RECORD_BYTES, RECORD_BYTES);
  assert_int_equal(n, RECORD_BYTES);
  close(fd);
}

/* Write the whole record with @bytes at @offset set to @value, under a valid checksum. */
static void record_change(size_t offset, const void *value, size_t bytes)
{
  struct lade_cpu cpu = lade_cpu_get();
  struct record record = whole;
  memcpy((char *)&record + offset, value, bytes);
  record.sum = store_hash_choose(&cpu)(&record, offsetof(struct record, sum), 0);
  journal_move(&record, 1);
}

static void must_be_refused(const char *field)
{
  lade_trainer *trainer = NULL;
  struct lade_error error = {0};
  int status = trainer_open(&error, &trainer);
  if (status != -EBADMSG || !strstr(error.text, field) || !strstr(error.text, LADE_DURABLE_JOURNAL) ||
      strchr(error.text, '\n'))
    fail_msg("%s: %d with '%s'", field, status, error.text);
  assert_null(trainer);
}

static int state_leave(void **state)
{
  lade_trainer *trainer;
  struct lade_error error = {0};
  if (scratch_setup(state))
    return -1;
  int status = trainer_open(&error, &trainer);
  if (status) {
    print_message("%s\n", error.text);
    return -1;
  }
  status = lade_trainer_step(trainer, NULL, &error);
  lade_trainer_close(trainer);
  if (!status)
    journal_move(&whole, 0); /* of the step; generation 0, from before it, is in the first record */
  return status;
}

#define MEMO(field) (offsetof(struct record, memo) + offsetof(struct memo, field))

/* ---- tests ---- */

static void numbers_out_of_range_are_damage(void **state)
{
  static const struct {
    const char *name;
    size_t offset;
  } numbers[] = {
      {"step", MEMO(state.step)},
      {"good_steps", MEMO(state.good_steps)},
      {"data_position", MEMO(state.data_position)},
      {"dtype", MEMO(state.run.dtype)},
      {"order", MEMO(state.run.order)},
      {"batch", MEMO(state.run.batch)},
      {"micro-batch", MEMO(state.run.micro_batch)},
      {"seq", MEMO(state.run.seq)},
      {"steps", MEMO(state.run.steps)},
      {"warmup", MEMO(state.run.warmup)},
      {"moments", MEMO(state.run.moments)},
      {"master", MEMO(state.run.master)},
      {"grad-dtype", MEMO(state.run.grad_dtype)},
      {"grad-reduce", MEMO(state.run.grad_reduce)},
      {"gelu-fusion", MEMO(state.run.gelu_fusion)},
      {"rank", MEMO(rank)},
  };
  const int64_t negatives[] = {-1, INT64_MIN};
  for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
    for (int j = 0; j < 2; j++) {
      record_change(numbers[i].offset, &negatives[j], sizeof(negatives[j]));
      must_be_refused(numbers[i].name);
    }
  }
  const int64_t great = 99, greatest = INT64_MAX;
  const char *const choices[] = {"dtype", "order", "moments", "master", "grad-dtype", "grad-reduce", "gelu-fusion"};
  for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
    for (size_t j = 0; j < sizeof(choices) / sizeof(choices[0]); j++) {
      if (strcmp(numbers[i].name, choices[j]) != 0)
        continue;
      record_change(numbers[i].offset, &great, sizeof(great));
      must_be_refused(choices[j]);
    }
  }
  record_change(MEMO(state.step), &greatest, sizeof(greatest));
  must_be_refused("step");
  record_change(MEMO(state.data_position), &greatest, sizeof(greatest)); /* the next step would overflow it */
  must_be_refused("data_position");
  record_change(MEMO(state.run.is_known), &great, 1);
  must_be_refused("is_known");
}

static void reals_that_are_not_finite_are_damage(void **state)
{
  static const struct {
    const char *name;
    size_t offset;
  } reals[] = {
      {"loss_scale", MEMO(state.loss_scale)}, {"lr", MEMO(state.run.lr)},       {"min-lr", MEMO(state.run.min_lr)},
      {"dropout", MEMO(state.run.dropout)},   {"beta1", MEMO(state.run.beta1)}, {"beta2", MEMO(state.run.beta2)},
      {"eps", MEMO(state.run.eps)},           {"clip", MEMO(state.run.clip)},
      {"weight-decay", MEMO(state.run.weight_decay)},
  };
  const double values[] = {(double)NAN, (double)INFINITY, -(double)INFINITY};
  for (size_t i = 0; i < sizeof(reals) / sizeof(reals[0]); i++) {
    for (int j = 0; j < 3; j++) {
      record_change(reals[i].offset, &values[j], sizeof(values[j]));
      must_be_refused(reals[i].name);
    }
  }
  const double none = 0;
  record_change(MEMO(state.loss_scale), &none, sizeof(none));
  must_be_refused("loss_scale");
}

static void texts_without_their_end_are_damage(void **state)
{
  char text[LADE_LAYOUT_NAME_BYTES + LADE_NAME_BYTES];
  memset(text, 'x', sizeof(text));
  record_change(MEMO(layout), text, LADE_LAYOUT_NAME_BYTES);
  must_be_refused("layout");
  record_change(MEMO(state.model), text, LADE_NAME_BYTES);
  must_be_refused("model");
}

static void the_records_own_fields_are_checked(void **state)
{
  const uint64_t generations[] = {2, (uint64_t)INT64_MAX + 1, UINT64_MAX};
  const uint64_t sizes[] = {0, 1, UINT64_MAX};
  const uint32_t lengths[] = {LADE_DURABLE_MEMO_BYTES + 1, UINT32_MAX};
  const uint32_t cut = sizeof(struct memo) - 1, empty = 0;
  for (int i = 0; i < 3; i++) {
    record_change(offsetof(struct record, generation), &generations[i], sizeof(generations[i]));
    must_be_refused("generation");
    record_change(offsetof(struct record, slot_bytes), &sizes[i], sizeof(sizes[i]));
    must_be_refused("slot_bytes");
  }
  for (int i = 0; i < 2; i++) {
    record_change(offsetof(struct record, memo_bytes), &lengths[i], sizeof(lengths[i]));
    must_be_refused("memo_bytes");
  }
  record_change(offsetof(struct record, memo_bytes), &cut, sizeof(cut));
  must_be_refused("length");
  record_change(offsetof(struct record, memo_bytes), &empty, sizeof(empty));
  must_be_refused("length");
}

static void the_record_as_it_was_is_gone_on_from(void **state)
{
  lade_trainer *trainer;
  struct lade_error error = {0};
  struct lade_trainer_info info = {.struct_size = sizeof(info)};
  journal_move(&whole, 1);
  int status = trainer_open(&error, &trainer);
  if (status)
    fail_msg("%s", error.text);
  assert_int_equal(lade_trainer_get_info(trainer, &info), 0);
  assert_int_equal(info.step, 1);
  lade_trainer_close(trainer);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(numbers_out_of_range_are_damage),
      cmocka_unit_test(reals_that_are_not_finite_are_damage),
      cmocka_unit_test(texts_without_their_end_are_damage),
      cmocka_unit_test(the_records_own_fields_are_checked),
      cmocka_unit_test(the_record_as_it_was_is_gone_on_from),
  };
  return cmocka_run_group_tests(tests, state_leave, scratch_teardown);
}
