/* SPDX-License-Identifier: Apache-2.0 */
/* Machines by name and from untrusted files; files are replaced whole. */
#include <errno.h>
#include <fcntl.h>
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
#include "base/file.h"
#include "machine/machine.h"
#include "tests/support/scratch.h"

static const char *file_with(const char *text)
{
  const char *path = in_scratch("machine.json");
  FILE *file = fopen(path, "w");
  assert_non_null(file);
  fputs(text, file);
  fclose(file);
  return path;
}

static void presets_pass_their_own_check(void **state)
{
  struct lade_machine machine;
  struct lade_error error;
  int n = 0;
  for (; lade_machine_preset_name(n); n++) {
    assert_int_equal(lade_machine_preset(lade_machine_preset_name(n), &error, &machine), 0);
    assert_string_equal(machine.name, lade_machine_preset_name(n));
    assert_int_equal(lade_machine_check(&machine, machine.name, &error), 0);
    assert_true(machine.store.bytes > 0);
    /* A link is never faster than the memory at its slow end, and a device never slower than its host. */
    assert_true((double)machine.to_host.bytes_per_s <= machine.device_bytes_per_s);
    assert_true(machine.device_bytes_per_s >= machine.host_bytes_per_s);
    assert_true(machine.is_unified == (machine.device_bytes == machine.host_bytes));
  }
  assert_true(n >= 6);
  assert_null(lade_machine_preset_name(-1));
}

static void an_unknown_name_lists_the_presets(void **state)
{
  struct lade_machine machine;
  struct lade_error error;
  assert_int_equal(lade_machine_get("h100", &error, &machine), -ENOENT);
  for (int i = 0; lade_machine_preset_name(i); i++)
    assert_non_null(strstr(error.text, lade_machine_preset_name(i)));
}

static void saved_machines_load_unchanged(void **state)
{
  for (int i = 0; lade_machine_preset_name(i); i++) {
    struct lade_machine machine, again;
    memset(&again, 0, sizeof(again));
    assert_int_equal(lade_machine_preset(lade_machine_preset_name(i), NULL, &machine), 0);
    assert_int_equal(lade_machine_save(&machine, in_scratch("saved.json"), NULL), 0);
    assert_int_equal(lade_machine_get(in_scratch("saved.json"), NULL, &again), 0);
    assert_string_equal(again.name, machine.name);
    assert_memory_equal(again.matmul_flops_per_s, machine.matmul_flops_per_s, sizeof(machine.matmul_flops_per_s));
    assert_memory_equal(&again.to_host, &machine.to_host, sizeof(machine.to_host));
    assert_memory_equal(&again.store, &machine.store, sizeof(machine.store));
    assert_true(again.device_bytes == machine.device_bytes && again.host_bytes == machine.host_bytes);
    assert_true(again.device_bytes_per_s == machine.device_bytes_per_s && again.launch_ns == machine.launch_ns);
    assert_true(again.is_unified == machine.is_unified && again.is_duplex == machine.is_duplex);
    assert_true(again.n_cores == machine.n_cores && again.host_bytes_per_s == machine.host_bytes_per_s);
  }
}

static void a_file_may_change_a_preset(void **state)
{
  struct lade_machine machine, preset;
  const char *path = file_with("{\"preset\":\"h100-80g\",\"name\":\"mine\",\"device_bytes\":\"40GiB\","
                               "\"to_host\":{\"bytes_per_s\":1000000},\"store\":{\"piece_bytes\":\"1MiB\","
                               "\"pieces\":16,\"window_bytes\":\"3MiB\",\"windows\":4,"
                               "\"total_mostly_reads_bytes_per_s\":3e9}}");
  assert_int_equal(lade_machine_load(path, NULL, &machine), 0);
  assert_int_equal(lade_machine_preset("h100-80g", NULL, &preset), 0);
  assert_string_equal(machine.name, "mine");
  assert_true(machine.device_bytes == UINT64_C(40) << 30);
  assert_true(machine.to_host.bytes_per_s == 1000000);
  assert_true(machine.to_host.latency_ns == preset.to_host.latency_ns);
  assert_true(machine.to_device.bytes_per_s == preset.to_device.bytes_per_s);
  assert_true(machine.store.piece_bytes == 1 << 20 && machine.store.window_bytes == 3 << 20);
  assert_true(machine.store.n_pieces == 16 && machine.store.n_windows == 4);
  assert_true(machine.store.bytes == preset.store.bytes);
  assert_true(machine.store.total_mostly_reads_bytes_per_s == 3e9);
  assert_true(machine.store.total_mostly_writes_bytes_per_s == 0); /* a file that states three rates is complete */
}

static void a_bad_file_is_refused_by_the_name_of_its_field(void **state)
{
  static const struct {
    const char *text, *names;
  } bad[] = {
      {"", "not valid JSON"},
      {"[]", "not a JSON object"},
      {"{}", "name is missing"},
      {"{\"preset\":\"h100-80g\",\"devise_bytes\":1}", "devise_bytes"},
      {"{\"preset\":\"h100-80g\",\"store\":{\"speed\":1}}", "store.\"speed\""},
      {"{\"preset\":\"h100-80g\",\"store\":{\"bytes\":{\"a\":1}}}", "store.bytes"},
      {"{\"preset\":\"h100-80g\",\"store\":3}", "store is no object"},
      {"{\"preset\":\"h100-80g\",\"device_bytes\":-1}", "device_bytes is -1"},
      {"{\"preset\":\"h100-80g\",\"device_bytes\":1e300}", "device_bytes"},
      {"{\"preset\":\"h100-80g\",\"device_bytes\":\"lots\"}", "device_bytes is \"lots\""},
      {"{\"preset\":\"h100-80g\",\"device_bytes\":\"80 GiBs\"}", "device_bytes is \"80 GiBs\": expected one of the "
       "units B, KiB"},
      {"{\"preset\":\"h100-80g\",\"device_bytes\":\"80 B\"}", "device_bytes is \"80 B\": expected bytes or a size such "
       "as \"80GiB\", from 1.0 MiB to 1.0 EiB"},
      {"{\"preset\":\"h100-80g\",\"device_bytes\":9223372036854775807}", "device_bytes"},
      {"{\"preset\":\"h100-80g\",\"cores\":1.5}", "cores is 1.5: expected a whole number"},
      {"{\"preset\":\"h100-80g\",\"unified\":1}", "unified is 1: expected true or false"},
      {"{\"preset\":\"h100-80g\",\"launch_ns\":null}", "launch_ns is null"},
      {"{\"preset\":\"h100-80g\",\"host_bytes_per_s\":0}", "host_bytes_per_s is 0"},
      {"{\"preset\":\"h100-80g\",\"name\":\"\"}", "name"},
      {"{\"preset\":\"h100-80g\",\"name\":\"a\",\"name\":\"b\"}", "not valid JSON"},
      {"{\"preset\":\"nosuch\"}", ": preset: no machine named 'nosuch': expected one of a100-40g"},
      {"{\"preset\":7}", "preset"},
      {"{\"preset\":\"h100-80g\",\"store\":{\"read_bytes_per_s\":0}}", "store.read_bytes_per_s"},
      {"{\"preset\":\"h100-80g\",\"store\":{\"total_mostly_writes_bytes_per_s\":-1}}",
       "store.total_mostly_writes_bytes_per_s is -1"},
      {"{\"preset\":\"h100-80g\",\"store\":{\"piece_bytes\":100000}}", "store.piece_bytes is 100000"},
      {"{\"preset\":\"h100-80g\",\"store\":{\"windows\":1}}", "store.windows is 1"},
      {"{\"preset\":\"h100-80g\",\"a\\nb\":1}", "\"a\\nb\""},
  };
  for (size_t i = 0; i < LADE_COUNT(bad); i++) {
    struct lade_machine machine = {.n_cores = 77};
    struct lade_error error = {0};
    const char *path = file_with(bad[i].text);
    const bool is_damaged = strstr(bad[i].names, "JSON") != NULL; /* as other files */
    assert_int_equal(lade_machine_get(path, &error, &machine), is_damaged ? -EBADMSG : -EINVAL);
    assert_non_null(strstr(error.text, path));
    if (!strstr(error.text, bad[i].names))
      fail_msg("%s: %s", bad[i].text, error.text);
    assert_null(strchr(error.text, '\n'));
    assert_int_equal(machine.n_cores, 77);
  }
}

static void deep_and_large_files_are_refused(void **state)
{
  struct lade_machine machine;
  char *text = malloc((2 << 20) + 1);
  memset(text, '[', 2 << 20);
  text[2 << 20] = 0;
  assert_int_equal(lade_machine_load(file_with(text), NULL, &machine), -EINVAL);
  text[100000] = 0;
  assert_int_equal(lade_machine_load(file_with(text), NULL, &machine), -EBADMSG);
  free(text);
  assert_int_equal(lade_machine_load(scratch, NULL, &machine), -EINVAL);
  assert_int_equal(mkfifo(in_scratch("fifo"), 0600), 0);
  assert_int_equal(lade_machine_load(in_scratch("fifo"), NULL, &machine), -EINVAL);
}

static void replacing_a_file_is_all_or_nothing(void **state)
{
  char *text;
  size_t bytes;
  char path[128];
  snprintf(path, sizeof(path), "%s", in_scratch("whole"));
  assert_int_equal(lade_file_replace(path, "one", 3, NULL), 0);
  assert_int_equal(lade_file_replace(path, "three", 5, NULL), 0);
  assert_int_equal(lade_file_load(path, 100, NULL, &text, &bytes), 0);
  assert_int_equal(bytes, 5);
  assert_string_equal(text, "three");
  free(text);
  assert_int_equal(lade_file_load(path, 4, NULL, &text, &bytes), -EINVAL);
  struct lade_error error;
  assert_int_equal(lade_file_replace(in_scratch("no/such/dir"), "x", 1, &error), -ENOENT);
  assert_int_equal(mkdir(in_scratch("taken"), 0700), 0);
  assert_true(lade_file_replace(in_scratch("taken"), "x", 1, &error) < 0);
  char command[128]; /* and no temporary file is left */
  snprintf(command, sizeof(command), "! ls -A %s | grep -q tmp", scratch);
  assert_int_equal(system(command), 0);
}

/* The process's umask sets the permissions of new files; an existing file keeps its own. */
static void a_new_file_has_the_rights_of_new_files(void **state)
{
  static const mode_t masks[] = {0, 002, 022, 077};
  const mode_t before = umask(0);
  struct stat status;
  for (size_t i = 0; i < LADE_COUNT(masks); i++) {
    umask(masks[i]);
    unlink(in_scratch("masked"));
    assert_int_equal(lade_file_replace(in_scratch("masked"), "x", 1, NULL), 0);
    assert_int_equal(stat(in_scratch("masked"), &status), 0);
    assert_int_equal(status.st_mode & 07777, 0666 & ~masks[i]);
    assert_int_equal(chmod(in_scratch("masked"), 0640), 0);
    assert_int_equal(lade_file_replace(in_scratch("masked"), "y", 1, NULL), 0);
    assert_int_equal(stat(in_scratch("masked"), &status), 0);
    assert_int_equal(status.st_mode & 07777, 0640);
  }
  umask(before);
}

/* A rename by a privileged caller would replace /dev/null by a file, for all processes. */
static void only_regular_files_are_replaced_and_links_are_kept(void **state)
{
  char target[128], link[128], *text;
  size_t bytes;
  struct stat status;
  struct lade_error error;
  assert_int_equal(mkfifo(in_scratch("a-pipe"), 0600), 0);
  assert_int_equal(lade_file_replace(in_scratch("a-pipe"), "x", 1, &error), -EINVAL);
  assert_non_null(strstr(error.text, "not a regular file"));
  assert_int_equal(lstat(in_scratch("a-pipe"), &status), 0);
  assert_true(S_ISFIFO(status.st_mode));
  snprintf(target, sizeof(target), "%s", in_scratch("target"));
  snprintf(link, sizeof(link), "%s", in_scratch("link"));
  assert_int_equal(lade_file_replace(target, "old", 3, NULL), 0);
  assert_int_equal(chmod(target, 0600), 0);
  assert_int_equal(symlink("target", link), 0);
  assert_int_equal(lade_file_replace(link, "new", 3, NULL), 0);
  assert_int_equal(stat(target, &status), 0);
  assert_int_equal(status.st_mode & 0777, 0600);
  assert_int_equal(lstat(link, &status), 0);
  assert_true(S_ISLNK(status.st_mode));
  assert_int_equal(lade_file_load(target, 100, NULL, &text, &bytes), 0);
  assert_string_equal(text, "new");
  free(text);
  assert_int_equal(unlink(target), 0);
  assert_int_equal(lade_file_replace(link, "x", 1, &error), -ENOENT);
  assert_non_null(strstr(error.text, "cannot follow the link"));
  assert_int_equal(access(target, F_OK), -1);
}

static void leftovers_of_killed_replacements_go_when_they_are_old(void **state)
{
  static const struct {
    const char *name;
    bool is_old, is_leftover;
  } files[] = {{".aged.tmp-aB3xYz", true, true},   {".aged.tmp-aB3xYy", false, false},
               {".aged.tmp-aB3xYzz", true, false}, {".other.tmp-aB3xYz", true, false},
               {"aged.tmp-aB3xYz", true, false},   {"aged.backup", true, false},
               {"aged", true, false}};
  for (size_t i = 0; i < LADE_COUNT(files); i++) {
    const char *path = in_scratch(files[i].name);
    time_t at = time(NULL) - (files[i].is_old ? LADE_FILE_STALE_S + 60 : 0);
    const struct timespec times[2] = {{.tv_sec = at}, {.tv_sec = at}};
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_int_equal(fclose(file), 0);
    assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
  }
  assert_int_equal(mkdir(in_scratch("elsewhere"), 0700), 0);
  assert_int_equal(symlink("../aged", in_scratch("elsewhere/link")), 0);
  lade_file_remove_leftovers(in_scratch("elsewhere/link")); /* they are in the directory that the link leads to */
  for (size_t i = 0; i < LADE_COUNT(files); i++)
    assert_int_equal(access(in_scratch(files[i].name), F_OK), files[i].is_leftover ? -1 : 0);
  lade_file_remove_leftovers(in_scratch("no/such/place"));
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(presets_pass_their_own_check),
      cmocka_unit_test(an_unknown_name_lists_the_presets),
      cmocka_unit_test(saved_machines_load_unchanged),
      cmocka_unit_test(a_file_may_change_a_preset),
      cmocka_unit_test(a_bad_file_is_refused_by_the_name_of_its_field),
      cmocka_unit_test(deep_and_large_files_are_refused),
      cmocka_unit_test(replacing_a_file_is_all_or_nothing),
      cmocka_unit_test(a_new_file_has_the_rights_of_new_files),
      cmocka_unit_test(only_regular_files_are_replaced_and_links_are_kept),
      cmocka_unit_test(leftovers_of_killed_replacements_go_when_they_are_old),
  };
  return cmocka_run_group_tests(tests, scratch_setup_in_memory, scratch_teardown);
}
