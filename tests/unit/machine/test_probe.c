/* SPDX-License-Identifier: Apache-2.0 */
/* The probe measures every figure that a plan needs, caches it, and rejects a damaged cache. No figure is judged. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/base.h"
#include "base/faults.h"
#include "base/cpu.h"
#include "base/file.h"
#include "kernels/cuda.h"
#include "machine/probe.h"
#include "machine/probe_internal.h"

static char directory[64];
static struct lade_kernels kernels;
static lade_pool *pool;
static struct lade_model_graph *graph;

static struct lade_probe_params params_make(void)
{
  return (struct lade_probe_params){.struct_size = sizeof(struct lade_probe_params), .kernels = &kernels,
                                    .pool = pool, .graph = graph, .cache_dir = directory};
}

/* Return the only file in the cache @where. */
static const char *file_of(const char *where)
{
  static char path[512];
  path[0] = 0;
  DIR *dir = opendir(where);
  assert_non_null(dir);
  for (struct dirent *entry; (entry = readdir(dir));) {
    if (entry->d_name[0] == '.')
      continue;
    assert_true(path[0] == 0);
    snprintf(path, sizeof(path), "%s/%s", where, entry->d_name);
  }
  closedir(dir);
  return path;
}

static const char *cache_file(void)
{
  return file_of(directory);
}

static void costs_are_equal(const struct lade_cost *a, const struct lade_cost *b)
{
  assert_int_equal(a->n_ops, b->n_ops);
  for (int i = 0; i < a->n_ops; i++)
    assert_true(a->ops[i].key == b->ops[i].key && a->ops[i].ns == b->ops[i].ns);
  assert_true(a->machine.host_bytes_per_s == b->machine.host_bytes_per_s);
  assert_true(a->machine.launch_ns == b->machine.launch_ns);
  assert_memory_equal(&a->machine.to_host, &b->machine.to_host, sizeof(a->machine.to_host));
  assert_true(a->sum_squares_bytes_per_s == b->sum_squares_bytes_per_s);
}

static void everything_that_a_plan_asks_is_measured(void **state)
{
  struct lade_probe_params params = params_make();
  struct lade_cost cost;
  int64_t ns;
  params.skip_cache = true;
  assert_int_equal(lade_probe(&params, NULL, &cost), 0);
  assert_int_equal(lade_machine_check(&cost.machine, "probe", NULL), 0);
  assert_true(cost.machine.is_unified);
  assert_int_equal(cost.machine.n_cores, lade_pool_n_threads(pool));
  assert_true(cost.machine.matmul_flops_per_s[graph->dtype] > 0);
  assert_true(cost.sum_squares_bytes_per_s > 0);
  for (int op = 0; op < graph->n_ops; op++) {
    assert_true(lade_cost_find(&cost, lade_cost_op_key(graph, op), &ns));
    assert_true(ns > 0);
  }
  assert_string_equal(cache_file(), "");
  lade_cost_finish(&cost);
}

static bool has_met_a_busy_moment;

/* Take more than a second at the first call, as in a moment in which other programs use the cores. */
static void op_run_late_once(const struct lade_kernel_ctx *ctx, const void *args)
{
  if (!has_met_a_busy_moment)
    nanosleep(&(struct timespec){.tv_sec = 1, .tv_nsec = 50000000}, NULL);
  has_met_a_busy_moment = true;
}

static void one_busy_moment_is_no_price_of_a_long_op(void **state)
{
  struct lade_probe_params params = params_make();
  struct lade_kernels late = kernels;
  struct lade_cost cost;
  late.fn[LADE_K_HEAD_LOSS_FWD] = op_run_late_once;
  params.kernels = &late;
  params.skip_cache = true;
  has_met_a_busy_moment = false;
  assert_int_equal(lade_probe(&params, NULL, &cost), 0);
  assert_true(has_met_a_busy_moment && cost.n_ops > 0);
  for (int i = 0; i < cost.n_ops; i++)
    assert_true(cost.ops[i].ns < 1000000000);
  lade_cost_finish(&cost);
}

static void a_second_probe_remembers_the_first(void **state)
{
  struct lade_probe_params params = params_make();
  struct lade_cost first, second;
  assert_int_equal(lade_probe(&params, NULL, &first), 0);
  assert_int_equal(lade_probe(&params, NULL, &second), 0);
  costs_are_equal(&first, &second);
  assert_true(second.n_ops > 0);
  lade_cost_finish(&first);
  lade_cost_finish(&second);
}

/* Write @text over the cache, and check that the probe measures anew and repairs it. */
static void damage_is_repaired(const char *text, size_t bytes)
{
  struct lade_probe_params params = params_make();
  struct lade_cost cost, again;
  assert_int_equal(lade_file_replace(cache_file(), text, bytes, NULL), 0);
  assert_int_equal(lade_probe(&params, NULL, &cost), 0);
  assert_int_equal(lade_probe(&params, NULL, &again), 0);
  costs_are_equal(&cost, &again);
  assert_true(cost.n_ops > 0 && cost.machine.launch_ns > 0);
  lade_cost_finish(&cost);
  lade_cost_finish(&again);
}

/* A busy moment does not lower the limit; only measuring anew does. */
static void the_best_matmul_rate_is_kept(void **state)
{
  struct lade_probe_params params = params_make();
  struct lade_cost cost;
  assert_int_equal(lade_probe(&params, NULL, &cost), 0);
  const double measured = cost.machine.matmul_flops_per_s[LADE_BF16];
  lade_cost_finish(&cost);
  assert_true(lade_probe_best_rate(&params, LADE_BF16, measured / 2) == measured);
  assert_true(lade_probe_best_rate(&params, LADE_BF16, measured * 1000) == measured * 1000);
  assert_true(lade_probe_best_rate(&params, LADE_BF16, 0) == measured * 1000);
  assert_true(lade_probe_recall(&params, &cost));
  assert_true(cost.machine.matmul_flops_per_s[LADE_BF16] == measured * 1000);
  lade_cost_finish(&cost);
  params.is_renewed = true;
  assert_int_equal(lade_probe(&params, NULL, &cost), 0);
  assert_true(cost.machine.matmul_flops_per_s[LADE_BF16] < measured * 500);
  lade_cost_finish(&cost);
  assert_true(lade_probe_best_rate(&params, LADE_BF16, 0) < measured * 500);
}

static void a_damaged_cache_is_ignored_and_replaced(void **state)
{
  struct lade_probe_params params = params_make();
  struct lade_cost cost;
  assert_int_equal(lade_probe(&params, NULL, &cost), 0);
  lade_cost_finish(&cost);
  char *text;
  size_t bytes;
  assert_int_equal(lade_file_load(cache_file(), 1 << 20, NULL, &text, &bytes), 0);
  damage_is_repaired(text, bytes / 2);
  char *ops = strstr(text, "\"ops\"");
  assert_non_null(ops);
  char *digit = strstr(ops, ": ");
  char *value = strstr(digit + 1, ": ");
  assert_non_null(value);
  value[2] = '-'; /* a negative time */
  damage_is_repaired(text, bytes);
  char *format = strstr(text, "\"format\": 5");
  assert_non_null(format);
  format[10] = '9';
  damage_is_repaired(text, bytes);
  free(text);
}

/* A kill between creation and rename of a temporary file leaves it; the next write of the cache removes it. */
static void files_of_a_killed_probe_are_removed_by_the_next_save(void **state)
{
  struct lade_probe_params params = params_make();
  struct lade_cost cost;
  const struct timespec old[2] = {{.tv_sec = 1}, {.tv_sec = 1}};
  char left[600];
  params.graph = NULL;
  assert_int_equal(lade_probe(&params, NULL, &cost), 0);
  lade_cost_finish(&cost);
  char *path = strdup(cache_file());
  snprintf(left, sizeof(left), "%s/.%s.tmp-QwErTy", directory, strrchr(path, '/') + 1);
  FILE *file = fopen(left, "w");
  assert_non_null(file);
  assert_int_equal(fclose(file), 0);
  assert_int_equal(utimensat(AT_FDCWD, left, old, 0), 0);
  assert_int_equal(unlink(path), 0);
  assert_int_equal(lade_probe(&params, NULL, &cost), 0);
  lade_cost_finish(&cost);
  assert_int_equal(access(path, F_OK), 0);
  assert_int_equal(access(left, F_OK), -1);
  free(path);
}

static void no_place_for_a_cache_is_no_error(void **state)
{
  struct lade_probe_params params = params_make();
  struct lade_cost cost;
  params.graph = NULL;
  params.cache_dir = "/proc/no/such/place";
  assert_int_equal(lade_probe(&params, NULL, &cost), 0);
  assert_int_equal(cost.n_ops, 0);
  assert_true(cost.machine.matmul_flops_per_s[LADE_BF16] > 0);
  lade_cost_finish(&cost);
}

static void a_link_of_another_user_does_not_lead_the_cache(void **state)
{
  char victim[96], link[96];
  struct lade_probe_params params = params_make();
  struct lade_cost cost;
  if (geteuid() != 0)
    skip(); /* only root can make a link of another user */
  snprintf(victim, sizeof(victim), "%s.victim", directory);
  snprintf(link, sizeof(link), "%s.link", directory);
  assert_int_equal(mkdir(victim, 0700), 0);
  assert_int_equal(symlink(victim, link), 0);
  assert_int_equal(lchown(link, 65534, 65534), 0);
  params.graph = NULL;
  params.cache_dir = link;
  assert_int_equal(lade_probe(&params, NULL, &cost), 0);
  lade_cost_finish(&cost);
  assert_int_equal(unlink(link), 0);
  assert_int_equal(rmdir(victim), 0); /* empty */
}

static void a_store_is_measured_and_kept_by_its_directory(void **state)
{
  char dir[96];
  snprintf(dir, sizeof(dir), "%s.store", directory);
  assert_int_equal(mkdir(dir, 0700), 0);
  struct lade_store_params store = {.struct_size = sizeof(store), .dir = dir, .capacity_bytes = 1 << 20,
                                    .allow_tmpfs = true, .allow_buffered = true};
  struct lade_probe_params params = params_make();
  struct lade_cost first, second;
  params.graph = NULL;
  params.store = &store;
  struct lade_error error = {0};
  assert_int_equal(lade_probe(&params, &error, &first), 0);
  assert_int_equal(first.machine.store.bytes, 1 << 20);
  assert_int_equal(lade_machine_check(&first.machine, "probe", NULL), 0);
  assert_int_equal(lade_probe(&params, NULL, &second), 0);
  assert_memory_equal(&first.machine.store, &second.machine.store, sizeof(first.machine.store));
  assert_true(lade_cost_read_ns(&first, 1 << 20) > 0);
  const struct lade_machine_store *rates = &first.machine.store; /* three of them, or all five of a faster drive */
  const bool has_five = rates->total_mostly_reads_bytes_per_s > 0;
  assert_int_equal(rates->total_mostly_writes_bytes_per_s > 0, has_five);
  assert_true(has_five || rates->total_bytes_per_s < 4.2e8); /* 32 MiB in 80 ms */
  assert_true(first.machine.store.piece_bytes && first.machine.store.n_pieces && first.machine.store.window_bytes &&
              first.machine.store.n_windows);
  lade_cost_finish(&second);
  store.dir = "/tmp"; /* another directory on the same drive: nothing is measured again */
  assert_int_equal(lade_probe(&params, NULL, &second), 0);
  assert_memory_equal(&first.machine.store, &second.machine.store, sizeof(first.machine.store));
  lade_cost_finish(&first);
  lade_cost_finish(&second);
  store.dir = dir;
  assert_int_equal(rmdir(dir), 0); /* it is empty */
  assert_int_equal(lade_probe(&params, &error, &first), -ENOENT);
  assert_non_null(strstr(error.text, dir));
}

/* Overwrite the figure @name of the first store in the cache @where with @number, which is no longer than it. */
static void figure_state(const char *where, const char *name, const char *number)
{
  char *text, key[64];
  size_t bytes;
  assert_int_equal(lade_file_load(file_of(where), 1 << 20, NULL, &text, &bytes), 0);
  snprintf(key, sizeof(key), "\"%s\": ", name);
  char *figure = strstr(text, "\"stores\"");
  assert_non_null(figure);
  figure = strstr(figure, key);
  assert_non_null(figure);
  figure += strlen(key);
  const size_t room = strspn(figure, "0123456789.e+");
  assert_true(room >= strlen(number));
  memset(figure, ' ', room);
  memcpy(figure, number, strlen(number));
  FILE *file = fopen(file_of(where), "w");
  assert_non_null(file);
  assert_int_equal(fwrite(text, 1, bytes, file), bytes);
  assert_int_equal(fclose(file), 0);
  free(text);
}

/* A plan takes the kept rates of the drive. A run that begins finds that the drive has others, and keeps those. */
static void a_drive_that_has_changed_is_measured_again_by_a_run(void **state)
{
  char dir[96];
  snprintf(dir, sizeof(dir), "%s.again", directory);
  assert_int_equal(mkdir(dir, 0700), 0);
  struct lade_store_params store = {.struct_size = sizeof(store), .dir = ".", .capacity_bytes = 1 << 20,
                                    .allow_tmpfs = true, .allow_buffered = true};
  struct lade_probe_params params = params_make();
  struct lade_cost cost[4];
  params.graph = NULL;
  params.store = &store;
  params.cache_dir = dir;
  assert_int_equal(lade_probe(&params, NULL, &cost[0]), 0);
  figure_state(dir, "total_bytes_per_s", "9e11");
  figure_state(dir, "read_bytes_per_s", "9e11");
  assert_int_equal(lade_probe(&params, NULL, &cost[1]), 0);
  params.has_fresh_ops = true;
  assert_int_equal(lade_probe(&params, NULL, &cost[2]), 0);
  params.has_fresh_ops = false;
  assert_int_equal(lade_probe(&params, NULL, &cost[3]), 0);
  const struct lade_machine_store *first = &cost[0].machine.store, *stated = &cost[1].machine.store,
                                  *found = &cost[2].machine.store;
  assert_true(stated->total_bytes_per_s == 9e11 && stated->read_bytes_per_s == 9e11);
  assert_true(found->total_bytes_per_s < 9e10 && found->read_bytes_per_s < 9e10);
  assert_true(found->piece_bytes == first->piece_bytes && found->n_pieces == first->n_pieces);
  assert_true(found->window_bytes == first->window_bytes && found->n_windows == first->n_windows);
  assert_memory_equal(&cost[3].machine.store, found, sizeof(*found));
  for (size_t i = 0; i < LADE_COUNT(cost); i++)
    lade_cost_finish(&cost[i]);
  assert_int_equal(unlink(file_of(dir)), 0);
  assert_int_equal(rmdir(dir), 0);
}

/* Transfers give one latency, of which a part may be hidden, and ratios for reads and writes; updates have none. */
static void a_long_run_tells_latency_and_rates(void **state)
{
  struct lade_drive_points points = {0};
  double latency_ns = -1, ratios[LADE_DRIVE_N_WORKS];
  assert_false(lade_drive_points_fit(&points, &latency_ns, ratios));
  for (int i = 1; i <= 40; i++) {
    lade_drive_point_add(&points, LADE_DRIVE_READS, 25e3 * i, 70e3 + 1.5 * 25e3 * i, 1);
    lade_drive_point_add(&points, LADE_DRIVE_WRITES, 45e3 * i, 70e3 + 0.5 * 45e3 * i, 1);
    lade_drive_point_add(&points, LADE_DRIVE_READS, 35e3 * i, 0.5 * 70e3 + 1.5 * 35e3 * i, 0.5);
  }
  lade_drive_point_add(&points, LADE_DRIVE_UPDATES, 90e6, 3 * 90e6, 0);
  assert_true(lade_drive_points_fit(&points, &latency_ns, ratios));
  assert_true(fabs(latency_ns / 70e3 - 1) < 1e-6);
  assert_true(fabs(ratios[LADE_DRIVE_READS] / 1.5 - 1) < 1e-6 && fabs(ratios[LADE_DRIVE_WRITES] / 0.5 - 1) < 1e-6 &&
              fabs(ratios[LADE_DRIVE_UPDATES] / 3 - 1) < 1e-6);
  lade_drive_points_fade(&points, 0.25); /* all the same, until later points outweigh the earlier ones */
  assert_true(lade_drive_points_fit(&points, &latency_ns, ratios) && fabs(ratios[LADE_DRIVE_UPDATES] / 3 - 1) < 1e-6);
  lade_drive_point_add(&points, LADE_DRIVE_UPDATES, 90e6, 90e6, 0);
  assert_true(lade_drive_points_fit(&points, &latency_ns, ratios) && fabs(ratios[LADE_DRIVE_UPDATES] - 1.4) < 1e-6);
  points = (struct lade_drive_points){0}; /* short ones were faster than latency 0 allows: the ratio alone */
  lade_drive_point_add(&points, LADE_DRIVE_READS, 1e6, 1e5, 1);
  lade_drive_point_add(&points, LADE_DRIVE_READS, 2e6, 4e6, 1);
  assert_true(lade_drive_points_fit(&points, &latency_ns, ratios));
  assert_true(latency_ns == 0 && fabs(ratios[LADE_DRIVE_READS] / (8.1 / 5) - 1) < 1e-6);
  assert_true(ratios[LADE_DRIVE_WRITES] == 0 && ratios[LADE_DRIVE_UPDATES] == 0);
  points = (struct lade_drive_points){0}; /* one length: no latency can be told from the rate */
  for (int i = 0; i < 3; i++)
    lade_drive_point_add(&points, LADE_DRIVE_WRITES, 1e6, 2e6, 1);
  assert_true(lade_drive_points_fit(&points, &latency_ns, ratios));
  assert_true(latency_ns == 0 && fabs(ratios[LADE_DRIVE_WRITES] - 2) < 1e-9);
}

/*
 * Later probes of a drive take the lasting rates of its latest long run, also if its first rate has changed. A rate
 * that the run did not see stays, and a run during which the drive rested raises none.
 */
static void the_rates_of_the_latest_long_run_are_kept(void **state)
{
  char dir[96];
  snprintf(dir, sizeof(dir), "%s.lasting", directory);
  assert_int_equal(mkdir(dir, 0700), 0);
  struct lade_store_params store = {.struct_size = sizeof(store), .dir = ".", .capacity_bytes = 1 << 20,
                                    .allow_tmpfs = true, .allow_buffered = true};
  struct lade_probe_params params = params_make();
  struct lade_cost first, slow, fast, fresh, rested;
  const struct lade_drive_lasting slow_run = {1e6, 2e6, 0, 70000}, fast_run = {9e12, 0, 8e12, 0};
  params.graph = NULL;
  params.store = &store;
  params.cache_dir = dir;
  lade_probe_keep_lasting(&params, &slow_run, false); /* no cache yet: nothing is written */
  assert_int_equal(access(dir, F_OK), 0);
  assert_int_equal(lade_probe(&params, NULL, &first), 0);
  assert_false(lade_drive_is_lasting(&first.machine.store));
  lade_probe_keep_lasting(&params, &slow_run, true); /* nothing is known that it could raise */
  assert_int_equal(lade_probe(&params, NULL, &slow), 0);
  const struct lade_machine_store *kept = &slow.machine.store;
  assert_true(kept->lasting_read_bytes_per_s == 1e6 && kept->lasting_write_bytes_per_s == 2e6 &&
              kept->lasting_bytes_per_s == 0 && kept->lasting_latency_ns == 70000);
  assert_true(kept->read_bytes_per_s == first.machine.store.read_bytes_per_s);
  figure_state(dir, "total_bytes_per_s", "9e11");
  figure_state(dir, "burst_bytes", "7");
  params.has_fresh_ops = true;
  assert_int_equal(lade_probe(&params, NULL, &fresh), 0);
  kept = &fresh.machine.store;
  assert_true(kept->total_bytes_per_s < 9e10 && kept->lasting_read_bytes_per_s == 1e6 && kept->burst_bytes == 7);
  params.has_fresh_ops = false;
  lade_probe_keep_lasting(&params, &fast_run, true);
  assert_true(lade_probe_recall(&params, &rested));
  kept = &rested.machine.store;
  assert_true(kept->lasting_read_bytes_per_s == 1e6 && kept->lasting_bytes_per_s == 8e12);
  lade_probe_keep_lasting(&params, &fast_run, false);
  assert_true(lade_probe_recall(&params, &fast));
  kept = &fast.machine.store;
  assert_true(kept->lasting_read_bytes_per_s == 9e12 && kept->lasting_write_bytes_per_s == 2e6 &&
              kept->burst_bytes == 7);
  lade_cost_finish(&first);
  lade_cost_finish(&slow);
  lade_cost_finish(&fresh);
  lade_cost_finish(&rested);
  lade_cost_finish(&fast);
  assert_int_equal(unlink(file_of(dir)), 0);
  assert_int_equal(rmdir(dir), 0);
}

/*
 * A drive that is measured past its burst has lasting rates, and later predictions of its directory know them. Without
 * the cache only the caller does.
 */
static void lasting_rates_are_measured_and_kept(void **state)
{
  char dir[96];
  snprintf(dir, sizeof(dir), "%s.sustained", directory);
  assert_int_equal(mkdir(dir, 0700), 0);
  struct lade_store_params store = {.struct_size = sizeof(store), .dir = ".", .capacity_bytes = 1 << 20,
                                    .allow_tmpfs = true, .allow_buffered = true};
  struct lade_probe_params params = params_make();
  struct lade_cost first, kept;
  bool is_new = false;
  int64_t limit_ns = 250000000;
  params.graph = NULL;
  params.store = &store;
  params.cache_dir = dir;
  assert_int_equal(lade_probe(&params, NULL, &first), 0);
  struct lade_machine_store *drive = &first.machine.store;
  const struct lade_machine_store before = *drive;
  params.skip_cache = true;
  for (; !is_new && limit_ns < LADE_DRIVE_SUSTAINED_NS; limit_ns *= 2) /* until this drive is fast enough */
    assert_int_equal(lade_probe_measure_sustained(&params, limit_ns, NULL, drive, &is_new), 0);
  assert_true(is_new && lade_drive_is_lasting(drive));
  assert_true(lade_probe_recall(&params, &kept));
  assert_false(lade_drive_is_lasting(&kept.machine.store));
  lade_cost_finish(&kept);
  params.skip_cache = false;
  *drive = before;
  for (is_new = false; !is_new && limit_ns < LADE_DRIVE_SUSTAINED_NS; limit_ns *= 2)
    assert_int_equal(lade_probe_measure_sustained(&params, limit_ns, NULL, drive, &is_new), 0);
  assert_true(lade_probe_recall(&params, &kept));
  const struct lade_machine_store *recalled = &kept.machine.store;
  assert_true(recalled->lasting_read_bytes_per_s == drive->lasting_read_bytes_per_s && drive->burst_bytes > 0 &&
              recalled->lasting_write_bytes_per_s == drive->lasting_write_bytes_per_s &&
              recalled->lasting_bytes_per_s == drive->lasting_bytes_per_s &&
              recalled->lasting_latency_ns == drive->lasting_latency_ns &&
              recalled->burst_bytes == drive->burst_bytes && recalled->known_bytes == drive->known_bytes);
  assert_true(drive->lasting_read_bytes_per_s > 0 && drive->lasting_write_bytes_per_s > 0 &&
              drive->lasting_bytes_per_s > 0);
  assert_true(drive->read_bytes_per_s == before.read_bytes_per_s && drive->piece_bytes == before.piece_bytes);
  const struct lade_drive_lasting long_run = {1e6, 2e6, 3e6, 0, .known_bytes = UINT64_C(20) << 30};
  lade_probe_keep_lasting(&params, &long_run, false);
  lade_cost_finish(&kept);
  assert_true(lade_probe_recall(&params, &kept));
  assert_true(recalled->burst_bytes == drive->burst_bytes && recalled->known_bytes == long_run.known_bytes);
  store.dir = "no such directory";
  const struct lade_machine_store unchanged = *drive;
  assert_int_equal(lade_probe_measure_sustained(&params, limit_ns, NULL, drive, &is_new), -ENOENT);
  assert_false(is_new);
  drive->lasting_write_bytes_per_s = 1e5; /* a pass would take longer than its share of the limit: nothing is opened */
  assert_int_equal(lade_probe_measure_sustained(&params, limit_ns, NULL, drive, &is_new), 0);
  assert_true(!is_new && drive->lasting_write_bytes_per_s == 1e5 &&
              drive->lasting_read_bytes_per_s == unchanged.lasting_read_bytes_per_s);
  lade_cost_finish(&first);
  lade_cost_finish(&kept);
  assert_int_equal(unlink(file_of(dir)), 0);
  assert_int_equal(rmdir(dir), 0);
}

static void a_small_copy_that_was_delayed_makes_no_rate(void **state)
{
  const struct lade_link link = probe_link_make(4 << 20, 400000, 5000);
  assert_int_equal(link.latency_ns, 5000);
  assert_int_equal(link.bytes_per_s, (uint64_t)((4 << 20) / 395e-6));
  const struct lade_link delayed = probe_link_make(4 << 20, 400000, 4000000);
  assert_int_equal(delayed.latency_ns, 200000);
  assert_int_equal(delayed.bytes_per_s, (uint64_t)((4 << 20) / 200e-6));
}

static void a_quartile_is_below_delayed_times(void **state)
{
  int64_t ns[] = {4000000, 410, 4000000, 400, 4000000, 4000000, 420, 4000000};
  assert_int_equal(probe_quartile(ns, 8), 420);
  assert_int_equal(probe_median(ns, 8), 4000000);
}

static void one_slow_round_is_no_rate_of_a_drive(void **state)
{
  const double ns_per_byte[] = {0.5, 80, 0.25, 0.5};
  assert_true(probe_rounds_rate(ns_per_byte, 4) == 3e9 / 1.25);
  assert_true(probe_rounds_rate(ns_per_byte, 2) == 2e9 / 80.5); /* of two, none is known to be the slow one */
  assert_true(probe_rounds_rate(ns_per_byte, 1) == 2e9);
  assert_true(probe_rounds_rate(ns_per_byte, 0) == 0);
}

/* A list of directories is not a path, and a single one of them is measured differently. */
static void several_directories_are_a_store_with_room(void **state)
{
  char dirs[192], first[96], second[96];
  snprintf(first, sizeof(first), "%s.one", directory);
  snprintf(second, sizeof(second), "%s.two,", directory);
  snprintf(dirs, sizeof(dirs), "%s,%s,", first, second);
  assert_int_equal(mkdir(first, 0700), 0);
  assert_int_equal(mkdir(second, 0700), 0);
  struct lade_store_params store = {.struct_size = sizeof(store), .dir = dirs, .allow_tmpfs = true,
                                    .allow_buffered = true};
  struct lade_probe_params params = params_make();
  struct lade_error error = {0};
  struct lade_cost measured, kept, alone;
  params.graph = NULL;
  params.store = &store;
  if (lade_probe(&params, &error, &measured))
    fail_msg("%s", error.text);
  assert_true(measured.machine.store.bytes > 0);
  assert_true(measured.machine.store.read_bytes_per_s > 0 && lade_cost_read_ns(&measured, 1 << 20) > 0);
  assert_int_equal(measured.machine.store.n_pieces, 0); /* the store balances several; they are not tuned */
  assert_int_equal(lade_probe(&params, NULL, &kept), 0);
  kept.machine.store.bytes = measured.machine.store.bytes; /* free space at this moment */
  assert_memory_equal(&kept.machine.store, &measured.machine.store, sizeof(kept.machine.store));
  store.dir = first;
  assert_int_equal(lade_probe(&params, NULL, &alone), 0);
  assert_true(alone.machine.store.n_pieces > 0);
  lade_cost_finish(&measured);
  lade_cost_finish(&kept);
  lade_cost_finish(&alone);
  assert_int_equal(rmdir(first), 0);
  assert_int_equal(rmdir(second), 0);
}

/*
 * A run may fit into less space than the probe's 64 MiB. The next run may have more space, so only values that do not
 * depend on the drive are cached.
 */
static void a_drive_is_measured_in_the_room_that_it_has(void **state)
{
  struct lade_faults faults;
  struct lade_store_params store = {.struct_size = sizeof(store), .dir = directory, .faults = &faults,
                                    .allow_tmpfs = true, .allow_buffered = true};
  struct lade_probe_params params = params_make();
  struct lade_cost cost;
  struct lade_error error = {0};
  char cache[96], *text;
  size_t bytes;
  snprintf(cache, sizeof(cache), "%s.cache", directory);
  params.graph = NULL;
  params.store = &store;
  params.cache_dir = cache;
  lade_faults_init(&faults);
  lade_faults_arm(&faults, LADE_FAULT_FILE_WRITE, 2, false, -ENOSPC); /* after the first trial: the allocation */
  if (lade_probe(&params, &error, &cost))
    fail_msg("%s", error.text);
  assert_int_equal(lade_faults_injected(&faults), 1);
  assert_true(cost.machine.store.write_bytes_per_s > 0 && cost.machine.store.read_bytes_per_s > 0);
  assert_int_equal(cost.machine.store.window_bytes, 0); /* not tuned: the defaults */
  lade_cost_finish(&cost);
  assert_int_equal(lade_file_load(file_of(cache), 1 << 20, NULL, &text, &bytes), 0);
  assert_non_null(strstr(text, "sum_squares"));
  assert_null(strstr(text, directory));
  free(text);
  assert_int_equal(unlink(file_of(cache)), 0);
  assert_int_equal(rmdir(cache), 0);
}

/* Return the distinct ops of a large microbatch that are measured together in at most @limit_bytes. */
static int large_ops_count(uint64_t limit_bytes, const struct lade_cost *cost)
{
  struct lade_kernels table;
  struct lade_model model;
  struct lade_model_graph *large = NULL;
  lade_cuda_kernels_init(&table);
  assert_int_equal(lade_model_preset("gpt2-1.5b", &model, NULL), 0);
  const struct lade_model_graph_params params = {.struct_size = sizeof(params), .model = &model, .dtype = LADE_BF16,
                                                 .batch = 16, .seq_len = 1024, .kernels = &table, .n_threads = 1};
  assert_int_equal(lade_model_graph_create(&params, NULL, &large), 0);
  int *const ops = calloc((size_t)(large->n_ops + large->n_lean_ops), sizeof(*ops));
  assert_non_null(ops);
  const int n_ops = probe_ops_find(large, cost, limit_bytes, ops);
  free(ops);
  lade_model_graph_destroy(large);
  return n_ops;
}

/* A GPU's microbatch has ops of some GB: each of them is measured, and none keeps a price by its shape. */
static void a_gpus_large_microbatch_is_measured(void **state)
{
  struct lade_cost cost;
  struct lade_machine machine;
  assert_int_equal(lade_machine_preset("h200-141g", NULL, &machine), 0);
  lade_cost_init(&cost, &machine);
  const int n_all = large_ops_count(UINT64_MAX, &cost);
  assert_true(n_all > 20);
  assert_int_equal(large_ops_count(probe_ops_limit(true, &machine), &cost), n_all);
  assert_true(large_ops_count(probe_ops_limit(false, &machine), &cost) < n_all);
  machine.device_bytes = UINT64_C(2) << 30; /* a small GPU has a part of it */
  assert_int_equal(probe_ops_limit(true, &machine), UINT64_C(1) << 29);
  lade_cost_finish(&cost);
}

static int setup(void **state)
{
  struct lade_cpu cpu = lade_cpu_get();
  struct lade_model model;
  lade_kernels_init(&kernels, &cpu);
  snprintf(directory, sizeof(directory), "/tmp/lade-probe-XXXXXX");
  if (!mkdtemp(directory) || lade_pool_create(2, &pool) || lade_model_preset("nano", &model, NULL))
    return -1;
  struct lade_model_graph_params params = {.struct_size = sizeof(params), .model = &model, .dtype = LADE_BF16,
                                           .batch = 2,
                                     .seq_len = 32, .dropout = 0.1f, .kernels = &kernels, .n_threads = 2};
  return lade_model_graph_create(&params, NULL, &graph);
}

static int teardown(void **state)
{
  char command[128];
  lade_model_graph_destroy(graph);
  lade_pool_destroy(pool);
  snprintf(command, sizeof(command), "rm -rf %s", directory);
  return system(command);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(everything_that_a_plan_asks_is_measured),
      cmocka_unit_test(one_busy_moment_is_no_price_of_a_long_op),
      cmocka_unit_test(a_second_probe_remembers_the_first),
      cmocka_unit_test(the_best_matmul_rate_is_kept),
      cmocka_unit_test(a_damaged_cache_is_ignored_and_replaced),
      cmocka_unit_test(files_of_a_killed_probe_are_removed_by_the_next_save),
      cmocka_unit_test(no_place_for_a_cache_is_no_error),
      cmocka_unit_test(a_link_of_another_user_does_not_lead_the_cache),
      cmocka_unit_test(a_store_is_measured_and_kept_by_its_directory),
      cmocka_unit_test(a_drive_that_has_changed_is_measured_again_by_a_run),
      cmocka_unit_test(a_long_run_tells_latency_and_rates),
      cmocka_unit_test(the_rates_of_the_latest_long_run_are_kept),
      cmocka_unit_test(lasting_rates_are_measured_and_kept),
      cmocka_unit_test(several_directories_are_a_store_with_room),
      cmocka_unit_test(a_drive_is_measured_in_the_room_that_it_has),
      cmocka_unit_test(a_small_copy_that_was_delayed_makes_no_rate),
      cmocka_unit_test(a_quartile_is_below_delayed_times),
      cmocka_unit_test(one_slow_round_is_no_rate_of_a_drive),
      cmocka_unit_test(a_gpus_large_microbatch_is_measured),
  };
  return cmocka_run_group_tests(tests, setup, teardown);
}
