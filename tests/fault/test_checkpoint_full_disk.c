/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A full disk is an error with a name, and earlier checkpoints stay. The test saves into a small file system in memory,
 * mounted in a namespace of its own, until there is no space. Every save checks the free space at its moment: another
 * program's file in the way is reported before a byte is written, and no longer matters once it is gone. Skips if such
 * a namespace is refused.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/base.h"
#include "run/checkpoint.h"
#include "tests/support/checkpoint_model.h"
#include "tests/support/scratch.h"
#include "tests/support/values_memory.h"

#define SKIPPED 77
#define N_STEPS 100 /* more than fit */

static int failed(const char *label, const struct lade_error *error)
{
  printf("FAIL: %s: %s\n", label, error->text);
  return 1;
}

static int disk_fill(const char *dir)
{
  struct lade_model_graph *graph = checkpoint_graph(LADE_GPT2, LADE_BF16, SIZE_SMALL);
  struct values_memory memory, loaded;
  struct lade_error error = {0};
  struct lade_checkpoint_state state = {.loss_scale = 1, .model = "test"}, loaded_state = {0};
  const struct lade_checkpoint_place all = {.dir = dir}, one = {.dir = dir, .keep = 1};
  char found[512];
  values_memory_init(&memory, graph);
  values_memory_init(&loaded, graph);
  values_memory_randomize(&memory, 1);
  int rc = 0, result = 0;
  while (rc == 0 && state.step < N_STEPS) {
    state.step++;
    rc = lade_checkpoint_save(&memory.values, &state, &all, NULL, &error);
  }
  if (rc != -ENOSPC || state.step == 1 || !strstr(error.text, dir))
    result = failed("no room, expected ENOSPC with the path", &error);
  else if (lade_checkpoint_find(dir, found, sizeof(found), &error) != 0 ||
           lade_checkpoint_load(&loaded.values, found, NULL, &loaded_state, &error) != 0)
    result = failed("the one before", &error);
  else if (loaded_state.step != state.step - 1 || !values_memory_equal(&memory, &loaded))
    result = failed("the one before is not what was saved", &error);
  else if (lade_checkpoint_save(&memory.values, &loaded_state, &one, NULL, &error) != -ENOSPC)
    result = failed("rotation made room before the new one was safe", &error);
  values_memory_finish(&memory);
  values_memory_finish(&loaded);
  lade_model_graph_destroy(graph);
  return result;
}

/* Make another program's file that takes all free space but @left_bytes. */
static bool others_take(const char *path, uint64_t left_bytes)
{
  struct statvfs fs;
  int fd = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
  bool is_taken = fd >= 0 && fstatvfs(fd, &fs) == 0 &&
                  fallocate(fd, 0, 0, (off_t)(fs.f_bavail * fs.f_frsize - left_bytes)) == 0;
  if (fd >= 0)
    close(fd);
  return is_taken;
}

/*
 * Check that a save without enough space is refused before it begins, with the bytes that it needs, and no other save.
 */
static int room_asked(const char *dir, const struct lade_values *values, int expected)
{
  struct lade_error error = {0};
  char fresh[300];
  snprintf(fresh, sizeof(fresh), "%s/fresh", dir);
  const struct lade_checkpoint_place there = {.dir = dir}, anew = {.dir = fresh};
  if (lade_checkpoint_check_room(values, &there, NULL, &error) != expected)
    return failed("asked whether a save has room", &error);
  if (expected && !strstr(error.text, "a checkpoint needs"))
    return failed("asked whether a save has room, expected what it needs", &error);
  if (lade_checkpoint_check_room(values, &anew, NULL, &error) != expected)
    return failed("asked whether a save into a directory that is not there has room", &error);
  return access(fresh, F_OK) ? 0 : failed("the question leaves a directory", &error);
}

/* Save @state into the space left by the other program's file, without that file, and with it again. */
static int others_run(const char *dir, const struct lade_values *values, struct lade_checkpoint_state *state)
{
  struct lade_error error = {0};
  const struct lade_checkpoint_place two = {.dir = dir, .keep = 2};
  char path[300];
  snprintf(path, sizeof(path), "%s/others", dir);
  for (int round = 0; round < 2; round++) {
    state->step++;
    if (!others_take(path, 8192))
      return failed("the disk cannot be filled", &error);
    if (room_asked(dir, values, -ENOSPC))
      return 1;
    if (lade_checkpoint_save(values, state, &two, NULL, &error) != -ENOSPC || !strstr(error.text, dir) ||
        !strstr(error.text, "a checkpoint needs") || !strstr(error.text, "(8192 bytes) are free"))
      return failed("others' bytes in the way, expected ENOSPC with what is free", &error);
    if (unlink(path) || room_asked(dir, values, 0))
      return 1;
    if (lade_checkpoint_save(values, state, &two, NULL, &error))
      return failed("the room is back, expected a save", &error);
  }
  return 0;
}

static int room_come_and_go(const char *dir)
{
  struct lade_model_graph *graph = checkpoint_graph(LADE_GPT2, LADE_BF16, SIZE_SMALL);
  struct values_memory memory;
  struct lade_checkpoint_state state = {.loss_scale = 1, .model = "test"};
  values_memory_init(&memory, graph);
  values_memory_randomize(&memory, 1);
  int result = others_run(dir, &memory.values, &state);
  values_memory_finish(&memory);
  lade_model_graph_destroy(graph);
  return result;
}

static int disk_run(const char *dir)
{
  if (!scratch_disk_mount(dir, "256k"))
    return SKIPPED;
  int result = room_come_and_go(dir);
  return result ? result : disk_fill(dir);
}

int main(void)
{
  char dir[256];
  int status = 0;
  scratch_make(dir, true);
  pid_t child = fork();
  if (child == 0) {
    int result = disk_run(dir);
    fflush(stdout);
    _exit(result);
  }
  bool has_ended = child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status);
  scratch_remove(dir);
  int result = has_ended ? WEXITSTATUS(status) : 1;
  if (result == SKIPPED)
    printf("SKIP: this container refuses a mount namespace, which a full disk is made in\n");
  return result;
}
