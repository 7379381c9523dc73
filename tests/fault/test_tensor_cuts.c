/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A durable tensor store (lade/store.h) under a power cut at any moment, on a disk that keeps an arbitrary selection of
 * unsynced operations: the tensors of the last acknowledged publish are found whole, or those of the one in progress.
 * Three runs put, put parts, drop and publish; the second and third begin with the tensors of the last publish.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/base.h"
#include "lade/store.h"
#include "tests/fault/disk.h"
#include "tests/support/scratch.h"

#define GRANULE 65536u
#define BUDGET (8 * (uint64_t)GRANULE)
#define N_LIVES 3
#define N_PUBLISHES 6 /* two a life */
#define N_WHIMS 2     /* random images of a cut, beside those that keep all and none */

/*
 * The tensors of publish @k: "whole" is put anew by each, "parts" has its second granule put anew, and "odd" is there
 * in every other one.
 */
static unsigned char value_of(const char *name, uint64_t granule, int k)
{
  const int age = strcmp(name, "parts") == 0 && granule != 1 ? 0 : k;
  return (unsigned char)(name[0] + (int)granule * 16 + age * 5);
}

static void tensor_fill(const char *name, uint64_t first, uint64_t granules, int k, unsigned char *data)
{
  for (uint64_t g = 0; g < granules; g++)
    memset(data + g * GRANULE, value_of(name, first + g, k), GRANULE);
}

static lade_tensor_store *store_open(const char *dir, struct lade_error *error)
{
  struct lade_tensor_store_params params = {.struct_size = sizeof(params), .dirs = dir, .budget_bytes = BUDGET,
                                            .allow_tmpfs = true, .allow_buffered = true, .use_threads = true,
                                            .is_durable = true};
  lade_tensor_store *store = NULL;
  lade_tensor_store_open(&params, error, &store);
  return store;
}

static void part_put(lade_tensor_store *store, int k, unsigned char *data)
{
  struct lade_tensor_request request = {.struct_size = sizeof(request), .name = "parts", .data = data,
                                        .bytes = GRANULE, .tensor_bytes = 3 * GRANULE, .offset = GRANULE};
  lade_tensor_ticket *ticket;
  tensor_fill("parts", 1, 1, k, data);
  assert_int_equal(lade_tensor_store_submit(store, &request, NULL, &ticket), 0);
  assert_int_equal(lade_tensor_store_wait(store, ticket, NULL), 0);
}

static void publish_make(lade_tensor_store *store, int k)
{
  static _Alignas(4096) unsigned char data[3 * GRANULE];
  struct lade_error error;
  tensor_fill("whole", 0, 1, k, data);
  assert_int_equal(lade_tensor_store_put(store, "whole", data, GRANULE, &error), 0);
  if (k == 0) {
    tensor_fill("parts", 0, 3, 0, data);
    assert_int_equal(lade_tensor_store_put(store, "parts", data, 3 * GRANULE, &error), 0);
  }
  part_put(store, k, data);
  if (k % 2) {
    tensor_fill("odd", 0, 1, k, data);
    assert_int_equal(lade_tensor_store_put(store, "odd", data, GRANULE, &error), 0);
  } else if (k) {
    assert_int_equal(lade_tensor_store_drop(store, "odd"), 0);
  }
  if (lade_tensor_store_publish(store, &error))
    fail_msg("%s", error.text);
  disk_mark(k);
}

/* Return NULL, or the fault in a tensor of publish @k. */
static const char *tensor_fault(lade_tensor_store *store, const char *name, uint64_t granules, int k)
{
  static _Alignas(4096) unsigned char data[3 * GRANULE], wanted[3 * GRANULE];
  static struct lade_error error;
  if (lade_tensor_store_get(store, name, data, granules * GRANULE, &error))
    return error.text;
  tensor_fill(name, 0, granules, k, wanted);
  if (memcmp(data, wanted, granules * GRANULE) != 0)
    fail_msg("wrong bytes of '%s' were read and not noticed", name);
  return NULL;
}

/* Return NULL, or the fault of an image if publish @acknowledged was the last one that returned; -1: none did. */
static const char *image_fault(const char *dir, int acknowledged)
{
  static struct lade_error error;
  struct lade_tensor_store_info info = {.struct_size = sizeof(info)};
  lade_tensor_store *store = store_open(dir, &error);
  if (!store)
    return error.text;
  assert_int_equal(lade_tensor_store_get_info(store, &info), 0);
  const int k = (int)info.n_published - 1;
  const char *fault = k < acknowledged || k > acknowledged + 1 ? "an acknowledged publish is gone" : NULL;
  if (!fault && k >= 0)
    fault = tensor_fault(store, "whole", 1, k);
  if (!fault && k >= 0)
    fault = tensor_fault(store, "parts", 3, k);
  if (!fault && k >= 0 && k % 2)
    fault = tensor_fault(store, "odd", 1, k);
  if (!fault && info.n_tensors != (k < 0 ? 0u : 2u + (unsigned)k % 2))
    fault = "there are other tensors";
  lade_tensor_store_close(store);
  return fault;
}

static struct disk_log log_of_lives;
static char image_dir[SCRATCH_PATH_BYTES];

static int lives_record(void **state)
{
  scratch_setup_in_memory(state);
  const char *dir = in_scratch("disk");
  struct lade_error error = {0};
  snprintf(image_dir, sizeof(image_dir), "%s", in_scratch("image"));
  if (mkdir(dir, 0700) || mkdir(image_dir, 0700))
    return -1;
  disk_record(dir, &log_of_lives);
  for (int life = 0, k = 0; life < N_LIVES; life++) {
    lade_tensor_store *store = store_open(dir, &error);
    if (!store)
      fail_msg("%s", error.text);
    for (const int end = k + N_PUBLISHES / N_LIVES; k < end; k++)
      publish_make(store, k);
    lade_tensor_store_close(store);
  }
  disk_record_end();
  return 0;
}

static int lives_finish(void **state)
{
  disk_log_finish(&log_of_lives);
  return scratch_teardown(state);
}

static const char *selection_try(const struct disk_log *log, int n, const struct disk_selection *selection)
{
  static const char *const names[] = {"lade-tensors.data", "lade-tensors.journal", "lade-tensors.journal.new"};
  int acknowledged = -1;
  for (int i = 0; i < n; i++)
    acknowledged = log->ops[i].kind == DISK_MARK ? (int)log->ops[i].mark : acknowledged;
  for (size_t i = 0; i < LADE_COUNT(names); i++) {
    char path[SCRATCH_PATH_BYTES + 64];
    snprintf(path, sizeof(path), "%s/%s", image_dir, names[i]);
    unlink(path);
  }
  disk_image(log, n, selection, image_dir);
  return image_fault(image_dir, acknowledged);
}

/* Return NULL, or the first loss after a cut after any operation. */
static const char *log_fault(const struct disk_log *log)
{
  const char *fault = NULL;
  for (int n = 1; n <= log->n && !fault; n++) {
    fault = selection_try(log, n, &(struct disk_selection){.kind = DISK_ALL});
    if (fault || !disk_n_pending(log, n))
      continue;
    fault = selection_try(log, n, &(struct disk_selection){.kind = DISK_NONE});
    for (int i = 0; i < N_WHIMS && !fault; i++)
      fault = selection_try(log, n, &(struct disk_selection){.kind = DISK_ANY, .seed = (uint64_t)(n * 100 + i)});
  }
  return fault;
}

static void acknowledged_publishes_survive_every_cut(void **state)
{
  int n_marks = 0;
  for (int i = 0; i < log_of_lives.n; i++)
    n_marks += log_of_lives.ops[i].kind == DISK_MARK;
  assert_int_equal(n_marks, N_PUBLISHES);
  const char *fault = log_fault(&log_of_lives);
  if (fault)
    fail_msg("%s", fault);
}

/* Without the sync of a publish's data, some cut loses it: the test above sees what it should see. */
static void a_missing_sync_is_seen(void **state)
{
  struct disk_log without = log_of_lives;
  int at = without.n - 1, n_syncs = 0;
  for (; at > 0; at--) { /* the last publish: its data, then its record */
    n_syncs += without.ops[at].kind == DISK_SYNC;
    if (n_syncs == 2)
      break;
  }
  memmove(&without.ops[at], &without.ops[at + 1], (size_t)(without.n - at - 1) * sizeof(without.ops[0]));
  without.n--;
  assert_non_null(log_fault(&without));
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(acknowledged_publishes_survive_every_cut),
      cmocka_unit_test(a_missing_sync_is_seen),
  };
  return cmocka_run_group_tests(tests, lives_record, lives_finish);
}
