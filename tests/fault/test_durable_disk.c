/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A power cut at any moment of publishing, on a disk that keeps an arbitrary selection of unsynced operations: the last
 * acknowledged generation is found whole, or the one after it. Every sync of the protocol is necessary: without any one
 * of them, or with a sync moved earlier or later by one operation, some cut loses a generation.
 *
 * The state has three lives. The first two end in a publish whose last sync fails, so that the next life finds in the
 * page cache alone: the journal's name, then a record.
 *
 * With the argument "every", more images for each cut of the intact protocol. If a sync is missing, a few random images
 * suffice to find a loss; the first loss for each sync is printed.
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
#include "base/faults.h"
#include "offload/durable.h"
#include "tests/fault/disk.h"
#include "tests/support/scratch.h"

#define N_GENERATIONS 5
#define N_LIVES 3
#define LAYOUT 77
#define TAKEN_BACK (-1) /* a mark: the current generation is made anew */
#define TAKE 1000       /* in a memo: the number of earlier withdrawals of its generation */
#define JOURNAL_FILE 1 /* the file created second */

/* A slot: tensors of less than a granule, of more, and of a block. */
static const uint64_t tensor_bytes[] = {5000, 100000, 4096};
#define N_TENSORS (int)LADE_COUNT(tensor_bytes)
#define SLOT_BYTES (4 * (uint64_t)LADE_STORE_GRANULE_BYTES)

#define WHIMS_FEW 8 /* random images of a cut, beside those that keep all, none, one and all but one operation */
#define WHIMS_MANY 64
static int n_whims = WHIMS_FEW; /* for cuts that may lose nothing */

static uint64_t tensor_offset(int tensor)
{
  uint64_t offset = 0;
  for (int i = 0; i < tensor; i++)
    offset += lade_align_up(tensor_bytes[i], LADE_STORE_GRANULE_BYTES);
  return offset;
}

/* Return the memo, which determines the bytes. */
static uint64_t memo_of(uint64_t generation, int take)
{
  return generation * 3 + (uint64_t)take * TAKE;
}

static uint64_t word_of(int tensor, uint64_t memo, uint64_t i)
{
  return (i + 1) * UINT64_C(0x9e3779b97f4a7c15) ^ memo << 32 ^ (uint64_t)tensor;
}

static int tensor_move(lade_durable *durable, int tensor, uint64_t generation, enum lade_store_op op, void *data)
{
  struct lade_transfer transfer = {
      .op = op, .check = LADE_CHECK_STORE, .extent = lade_durable_slot(durable, generation),
      .offset = tensor_offset(tensor), .bytes = tensor_bytes[tensor], .data = data,
      .identity = {.tensor = (uint32_t)tensor, .generation = generation}};
  int status = lade_store_submit(lade_durable_store(durable), &transfer);
  return status ? status : lade_store_wait(lade_durable_store(durable), &transfer, NULL);
}

static _Alignas(4096) uint64_t window[2 * LADE_STORE_GRANULE_BYTES / sizeof(uint64_t)];

static void generation_make(lade_durable *durable, uint64_t generation, uint64_t memo)
{
  for (int tensor = 0; tensor < N_TENSORS; tensor++) {
    for (uint64_t i = 0; i < LADE_COUNT(window); i++)
      window[i] = word_of(tensor, memo, i);
    assert_int_equal(tensor_move(durable, tensor, generation, LADE_STORE_WRITE, window), 0);
  }
}

/* Return NULL, or the error in the newest generation. If that is after @acknowledged, it must be the one of @take. */
static const char *generation_fault(lade_durable *durable, int64_t acknowledged, int take)
{
  uint64_t generation = lade_durable_generation(durable);
  size_t memo_bytes = 0;
  const uint64_t *memo = lade_durable_memo(durable, &memo_bytes);
  if (memo_bytes != sizeof(*memo) || *memo % TAKE != memo_of(generation, 0))
    return "the memo is another's";
  if ((int64_t)generation > acknowledged && *memo < memo_of(generation, take))
    return "a generation that was taken back counts";
  for (int tensor = 0; tensor < N_TENSORS; tensor++) {
    if (tensor_move(durable, tensor, generation, LADE_STORE_READ, window))
      return "a tensor is not what was written";
    for (uint64_t i = 0; i < tensor_bytes[tensor] / sizeof(uint64_t); i++) {
      if (window[i] != word_of(tensor, *memo, i))
        fail_msg("wrong bytes were read and not noticed");
    }
  }
  return NULL;
}

static int durable_open(const char *dir, struct lade_faults *faults, lade_durable **ret_durable,
                        struct lade_error *error)
{
  const struct lade_durable_params params = {
      .struct_size = sizeof(params), .dir = dir, .engine = LADE_STORE_POSIX, .allow_tmpfs = true, .faults = faults};
  return lade_durable_open(&params, error, ret_durable);
}

/* Publish; return 0, or the error. */
static int generation_publish(lade_durable *durable, uint64_t generation, int take)
{
  struct lade_error error = {0};
  uint64_t memo = memo_of(generation, take);
  generation_make(durable, generation, memo);
  int status = lade_durable_publish(durable, generation, &memo, sizeof(memo), &error);
  if (!status)
    disk_mark((int64_t)generation);
  return status;
}

static struct disk_log protocol;
static int opened_at[N_LIVES]; /* by life: the operation from which its owner may write */

/*
 * Run a life of the owner: generations from the current one to @last, in which sync number @failing fails; 0: none
 * does.
 */
static void owner_live(int life, const char *dir, uint64_t last, uint64_t failing)
{
  lade_durable *durable;
  struct lade_faults faults;
  struct lade_error error = {0};
  lade_faults_init(&faults);
  lade_faults_arm(&faults, LADE_FAULT_FILE_SYNC, failing, false, -EIO);
  if (durable_open(dir, &faults, &durable, &error) || lade_durable_prepare(durable, SLOT_BYTES, LAYOUT, &error))
    fail_msg("%s", error.text);
  opened_at[life] = protocol.n;
  size_t memo_bytes;
  uint64_t next = lade_durable_memo(durable, &memo_bytes) ? lade_durable_generation(durable) + 1 : 0;
  for (; next <= last; next++)
    assert_int_equal(generation_publish(durable, next, 0), failing && next == last ? -EIO : 0);
  lade_durable_close(durable);
}

/* ---- images and their contents ---- */

static char image_dir[SCRATCH_PATH_BYTES];

static void image_clear(void)
{
  static const char *const names[] = {LADE_DURABLE_DATA, LADE_DURABLE_JOURNAL, LADE_DURABLE_JOURNAL ".new"};
  for (size_t i = 0; i < LADE_COUNT(names); i++) {
    char path[SCRATCH_PATH_BYTES + 64];
    snprintf(path, sizeof(path), "%s/%s", image_dir, names[i]);
    unlink(path);
  }
}

/*
 * Return NULL, or the error in the image if @acknowledged was the last generation published, and later ones had been
 * withdrawn @take times.
 */
static const char *image_fault(int64_t acknowledged, int take)
{
  static struct lade_error error;
  lade_durable *durable;
  size_t memo_bytes;
  if (durable_open(image_dir, NULL, &durable, &error))
    return error.text;
  const char *fault = NULL;
  if (!lade_durable_memo(durable, &memo_bytes))
    fault = acknowledged >= 0 ? "all is gone" : NULL;
  else if ((int64_t)lade_durable_generation(durable) < acknowledged)
    fault = "an acknowledged generation is gone";
  else if (lade_durable_prepare(durable, SLOT_BYTES, LAYOUT, &error))
    fault = error.text;
  else
    fault = generation_fault(durable, acknowledged, take);
  lade_durable_close(durable);
  return fault;
}

static const char *selection_try(const struct disk_log *log, int n, const struct disk_selection *selection)
{
  int64_t acknowledged = -1;
  int take = 0;
  for (int i = 0; i < n; i++) {
    const bool is_mark = log->ops[i].kind == DISK_MARK, is_taken = is_mark && log->ops[i].mark == TAKEN_BACK;
    acknowledged = is_mark && !is_taken ? log->ops[i].mark : acknowledged;
    take += is_taken;
  }
  image_clear();
  disk_image(log, n, selection, image_dir);
  return image_fault(acknowledged, take);
}

/* Return NULL, or the error in some image of a cut after the first @n operations. */
static const char *cut_fault(const struct disk_log *log, int n, int n_drawn)
{
  int n_pending = disk_n_pending(log, n);
  const char *fault = selection_try(log, n, &(struct disk_selection){.kind = DISK_ALL});
  if (!fault && n_pending)
    fault = selection_try(log, n, &(struct disk_selection){.kind = DISK_NONE});
  for (int i = 0; i < n_pending && n_pending > 1 && !fault; i++) {
    fault = selection_try(log, n, &(struct disk_selection){.kind = DISK_ONLY, .which = i});
    if (!fault)
      fault = selection_try(log, n, &(struct disk_selection){.kind = DISK_BUT, .which = i});
  }
  for (int i = 0; i < n_drawn && n_pending && !fault; i++)
    fault = selection_try(log, n, &(struct disk_selection){.kind = DISK_ANY, .seed = (uint64_t)(n * 1000 + i)});
  return fault;
}

/* Return NULL, or the error after a cut somewhere from operation @first on, by @n_drawn images of each. */
static const char *log_fault(const struct disk_log *log, int first, int n_drawn)
{
  const char *fault = NULL;
  for (int n = first; n <= log->n && !fault; n++)
    fault = cut_fault(log, n, n_drawn);
  return fault;
}

/* Return the first loss after a cut from operation @first on; NULL: none. */
static const char *loss_find(const struct disk_log *log, int first)
{
  return log_fault(log, first, WHIMS_FEW);
}

/* Check that no cut from operation @first on loses anything. */
static void keeps(const struct disk_log *log, int first)
{
  const char *fault = log_fault(log, first, n_whims);
  if (fault)
    fail_msg("%s", fault);
}

/* ---- the tests ---- */

static int protocol_record(void **state)
{
  scratch_setup_in_memory(state);
  const char *dir = in_scratch("disk");
  snprintf(image_dir, sizeof(image_dir), "%s", in_scratch("image"));
  if (mkdir(dir, 0700) || mkdir(image_dir, 0700))
    return -1;
  disk_record(dir, &protocol);
  owner_live(0, dir, 0, 4); /* after data, journal and their names: the journal's last name */
  owner_live(1, dir, 2, 6); /* after two to open, two for generation 1, and one: the record of generation 2 */
  owner_live(2, dir, N_GENERATIONS - 1, 0);
  disk_record_end();
  return 0;
}

static int protocol_finish(void **state)
{
  disk_log_finish(&protocol);
  return scratch_teardown(state);
}

static void acknowledged_generations_survive_every_cut(void **state)
{
  int n_syncs = 0;
  for (int i = 0; i < protocol.n; i++)
    n_syncs += disk_is_sync(&protocol.ops[i]);
  /* Two a generation, two names of the journal, two to open existing state, twice; and two failed. */
  assert_int_equal(n_syncs, 2 * N_GENERATIONS + 2 + 2 * 2 - 2);
  keeps(&protocol, 0);
}

/* Return the log with operation @from moved to position @to. */
static struct disk_log op_moved(const struct disk_log *log, int from, int to)
{
  struct disk_log moved = *log;
  const struct disk_op op = log->ops[from];
  memmove(&moved.ops[from], &moved.ops[from + 1], (size_t)(log->n - from - 1) * sizeof(op));
  memmove(&moved.ops[to + 1], &moved.ops[to], (size_t)(log->n - to - 1) * sizeof(op));
  moved.ops[to] = op;
  return moved;
}

static struct disk_log op_removed(const struct disk_log *log, int at)
{
  struct disk_log without = op_moved(log, at, log->n - 1);
  without.n--;
  return without;
}

/* True for the two syncs at the begin of a life that finds state; each is there for another life's end. */
static bool is_of_opening(int at)
{
  return (at < opened_at[1] && at >= opened_at[1] - 2) || (at < opened_at[2] && at >= opened_at[2] - 2);
}

static bool is_sync_of_publish(int at)
{
  return disk_is_sync(&protocol.ops[at]) && !is_of_opening(at);
}

/* Return the loss without its directory. */
static const char *loss_words(const char *loss)
{
  const char *path = strstr(loss, image_dir);
  return path ? path + strlen(image_dir) + strspn(path + strlen(image_dir), "/: ") : loss;
}

static void loss_print(int at, const char *ending, const char *loss)
{
  const struct disk_op *op = &protocol.ops[at];
  const char *synced = op->kind == DISK_SYNC_DIR ? "names" : op->file == JOURNAL_FILE ? "journal" : "data";
  printf("operation %d, a sync of the %s, %s: %s\n", at, synced, ending, loss_words(loss));
}

static void no_sync_is_in_vain(void **state)
{
  for (int at = 0; at < protocol.n; at++) {
    if (!is_sync_of_publish(at))
      continue;
    struct disk_log without = op_removed(&protocol, at);
    const char *loss = loss_find(&without, at);
    if (!loss)
      fail_msg("nothing is lost without the sync that is operation %d", at);
    loss_print(at, "without it", loss);
  }
}

/*
 * Return the first operation after @at that makes state current: the journal's name, a record in it, the word of
 * either.
 */
static int decisive_find(const struct disk_log *log, int at)
{
  bool has_name = false;
  for (int i = 0;; i++) {
    const struct disk_op *op = &log->ops[i];
    has_name |= op->kind == DISK_RENAME;
    bool is_record = has_name && op->kind == DISK_WRITE && op->file == JOURNAL_FILE;
    if (i > at && (op->kind == DISK_RENAME || op->kind == DISK_MARK || is_record))
      return i;
  }
}

/* Return the last operation that sync @at settles; of names the first, because the last name is never read. */
static int settled_find(const struct disk_log *log, int at)
{
  const struct disk_op *sync = &log->ops[at];
  int found = -1;
  for (int i = at - 1; i >= 0 && !(log->ops[i].kind == DISK_SYNC_DIR && sync->kind == DISK_SYNC_DIR); i--) {
    if (disk_settles(sync, &log->ops[i]) && (found < 0 || sync->kind == DISK_SYNC_DIR))
      found = i;
  }
  assert_true(found >= 0);
  return found;
}

static void no_order_is_in_vain(void **state)
{
  for (int at = 0; at < protocol.n; at++) {
    if (!is_sync_of_publish(at))
      continue;
    int before = settled_find(&protocol, at), after = decisive_find(&protocol, at);
    struct disk_log earlier = op_moved(&protocol, at, before);
    const char *loss = loss_find(&earlier, before);
    if (!loss)
      fail_msg("nothing is lost when the sync that is operation %d comes before operation %d", at, before);
    loss_print(at, "too early", loss);
    struct disk_log later = op_moved(&protocol, at, after);
    loss = loss_find(&later, at);
    if (!loss)
      fail_msg("nothing is lost when the sync that is operation %d comes after operation %d", at, after);
    loss_print(at, "too late", loss);
  }
}

static int last_before(int at, enum disk_op_kind kind, int file)
{
  while (--at >= 0 && (protocol.ops[at].kind != kind || (file >= 0 && protocol.ops[at].file != file)))
    ;
  assert_true(at >= 0);
  return at;
}

static void loses(struct disk_log log, int from, const char *when)
{
  const char *loss = loss_find(&log, from);
  if (!loss)
    fail_msg("nothing is lost %s", when);
  printf("%s: %s\n", when, loss_words(loss));
}

/* The second life finds a name in memory alone, which must be on the disk before a generation is acknowledged. */
static void opening_makes_the_name_durable(void **state)
{
  int at = last_before(opened_at[1], DISK_SYNC_DIR, -1), mark = opened_at[1];
  while (protocol.ops[mark].kind != DISK_MARK)
    mark++;
  loses(op_removed(&protocol, at), at, "when opening does not sync the directory");
  loses(op_moved(&protocol, at, mark), at, "when the directory is synced after the next generation is acknowledged");
}

/* The third life finds a record in memory alone, which must be on the disk before the other slot is written to. */
static void opening_makes_the_record_durable(void **state)
{
  int at = last_before(opened_at[2], DISK_SYNC, JOURNAL_FILE);
  loses(op_removed(&protocol, at), at, "when opening does not sync the journal");
  loses(op_moved(&protocol, at, opened_at[2]), at, "when the journal is synced after the other slot is written to");
}

/* The failed sync may have left pages that are clean but not on the disk: no later sync writes them. */
static void opening_writes_the_record_again(void **state)
{
  int again = last_before(opened_at[2], DISK_WRITE, JOURNAL_FILE), found = last_before(again, DISK_WRITE, JOURNAL_FILE);
  struct disk_log dropped = op_removed(&protocol, found);
  keeps(&dropped, found);
  again--; /* one operation less comes before it */
  loses(op_removed(&dropped, again), again, "when opening does not write the record again");
  loses(op_moved(&dropped, again + 1, again), again, "when the journal is synced before the record is written again");
}

/*
 * Needed even if losing a generation were acceptable: without the record, the next generation overwrites the newest
 * one.
 */
static void a_slot_is_not_reused_before_the_other_counts(void **state)
{
  struct disk_log log = protocol;
  int n_found = 0;
  log.n = 0;
  for (int i = 0; i < protocol.n; i++) {
    if (protocol.ops[i].kind != DISK_MARK)
      log.ops[log.n++] = protocol.ops[i];
  }
  for (int at = 0; at + 1 < log.n; at++) {
    if (log.ops[at].kind != DISK_SYNC || log.ops[at].file != JOURNAL_FILE || disk_is_sync(&log.ops[at + 1]))
      continue;
    struct disk_log without = op_removed(&log, at);
    n_found += loss_find(&without, at) != NULL;
  }
  assert_int_equal(n_found, N_GENERATIONS - 3); /* all between the first and the last, except the failed one */
}

static void one_record_in_place_would_not_do(void **state)
{
  struct disk_log in_place = protocol;
  for (int i = 0; i < in_place.n; i++) {
    if (in_place.ops[i].kind == DISK_WRITE && in_place.ops[i].file == JOURNAL_FILE)
      in_place.ops[i].offset = 0;
  }
  assert_non_null(loss_find(&in_place, 0));
}

/*
 * Another rank did not publish generation 2, so this one withdraws it, and makes it anew with other bytes. From then on
 * the old one may not be found, because the other rank might have the new one.
 */
static void withdrawn_generations_do_not_return(void **state)
{
  static struct disk_log log;
  const char *dir = in_scratch("ahead");
  lade_durable *durable;
  struct lade_error error = {0};
  int n_taken = 0;
  assert_int_equal(mkdir(dir, 0700), 0);
  disk_record(dir, &log);
  owner_live(0, dir, 2, 0);
  disk_mark(1);
  assert_int_equal(durable_open(dir, NULL, &durable, &error), 0);
  assert_int_equal(lade_durable_withdraw(durable, &error), 0);
  disk_mark(TAKEN_BACK);
  assert_int_equal(lade_durable_prepare(durable, SLOT_BYTES, LAYOUT, &error), 0);
  assert_int_equal(generation_publish(durable, 2, 1), 0);
  lade_durable_close(durable);
  disk_record_end();
  keeps(&log, 0);
  while (log.ops[n_taken].kind != DISK_MARK || log.ops[n_taken].mark != TAKEN_BACK)
    n_taken++;
  assert_true(disk_is_sync(&log.ops[n_taken - 1]));
  loses(op_removed(&log, n_taken - 1), n_taken - 1, "when the record that is taken away is not synced");
  loses(op_moved(&log, n_taken - 1, n_taken), n_taken - 1, "when it is synced after other ranks know of it");
  loses(op_removed(&log, n_taken - 2), n_taken - 2, "when the record stays");
  disk_log_finish(&log);
}

int main(int argc, char **argv)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(acknowledged_generations_survive_every_cut),
      cmocka_unit_test(no_sync_is_in_vain),
      cmocka_unit_test(no_order_is_in_vain),
      cmocka_unit_test(opening_makes_the_name_durable),
      cmocka_unit_test(opening_makes_the_record_durable),
      cmocka_unit_test(opening_writes_the_record_again),
      cmocka_unit_test(a_slot_is_not_reused_before_the_other_counts),
      cmocka_unit_test(one_record_in_place_would_not_do),
      cmocka_unit_test(withdrawn_generations_do_not_return),
  };
  n_whims = argc > 1 && strcmp(argv[1], "every") == 0 ? WHIMS_MANY : n_whims;
  return cmocka_run_group_tests(tests, protocol_record, protocol_finish);
}
