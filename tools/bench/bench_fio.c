/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs fio, the common drive tester, and reads its JSON.
 *
 * fio gets an unnamed file through /proc, written whole beforehand. So the layout of the file is not timed, and no end
 * of this process, SIGKILL included, leaves gigabytes behind. The program fio is started without a shell, so that
 * directory names may contain any characters. Rate and processor time are fio's own figures for the job, without its
 * start.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/base.h"
#include "tools/bench/bench_fio.h"

#define ENVIRONMENT_MAX 1024 /* variables that fio inherits; later ones are left out */

extern char **environ;

static int file_fill(int fd, uint64_t bytes, const void *data, uint64_t data_bytes)
{
  for (uint64_t at = 0; at < bytes;) {
    ssize_t n = pwrite(fd, data, LADE_MIN(data_bytes, bytes - at), (off_t)at);
    if (n < 0 && errno == EINTR)
      continue;
    if (n <= 0)
      return n ? -errno : -EIO;
    at += (uint64_t)n;
  }
  return 0;
}

int fio_file_open(struct fio_file *ret_file, const char *dir, uint64_t bytes, const void *data, uint64_t data_bytes,
                  struct lade_error *error)
{
  int fd = open(dir, O_TMPFILE | O_RDWR | O_DIRECT | O_CLOEXEC, 0600);
  int status = fd < 0 ? -errno : file_fill(fd, bytes, data, data_bytes);
  if (!status) {
    *ret_file = (struct fio_file){.fd = fd, .bytes = bytes};
    return 0;
  }
  if (fd >= 0)
    close(fd);
  return lade_error_set(error, status, "%s: the file for fio could not be written: %s", dir, strerror(-status));
}

void fio_file_close(struct fio_file *file)
{
  if (file->fd >= 0)
    close(file->fd);
  file->fd = -1;
}

/* Start fio, its stdout readable from *ret_output. A negative errno. */
static int fio_start(const struct fio_file *file, bool is_write, bool has_huge_pages, pid_t *ret_pid, int *ret_output)
{
  char filename[64], size[64], rw[16], *env[ENVIRONMENT_MAX + 2];
  int pipe_fds[2], n_env = 0;
  snprintf(filename, sizeof(filename), "--filename=/proc/%d/fd/%d", (int)getpid(), file->fd);
  snprintf(size, sizeof(size), "--size=%" PRIu64, file->bytes);
  snprintf(rw, sizeof(rw), "--rw=%s", is_write ? "write" : "read");
  char *args[] = {"fio", "--name=bench", filename, size, rw, "--ioengine=io_uring", "--direct=1", "--bs=8m",
                  "--iodepth=32", "--overwrite=1", "--output-format=json", has_huge_pages ? "--iomem=malloc" : NULL,
                  "--iomem_align=2097152", NULL};
  for (char **entry = environ; *entry && n_env < ENVIRONMENT_MAX; entry++)
    env[n_env++] = *entry;
  if (has_huge_pages)
    env[n_env++] = "GLIBC_TUNABLES=glibc.malloc.hugetlb=1";
  env[n_env] = NULL;
  if (pipe2(pipe_fds, O_CLOEXEC) < 0)
    return -errno;
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  int status = -posix_spawn_file_actions_adddup2(&actions, pipe_fds[1], STDOUT_FILENO);
  if (!status)
    status = -posix_spawnp(ret_pid, "fio", &actions, NULL, args, env);
  posix_spawn_file_actions_destroy(&actions);
  close(pipe_fds[1]);
  if (status)
    close(pipe_fds[0]);
  else
    *ret_output = pipe_fds[0];
  return status;
}

static json_t *output_load(int fd)
{
  FILE *file = fdopen(fd, "r");
  json_t *root = file ? json_loadf(file, JSON_DISABLE_EOF_CHECK, NULL) : NULL;
  while (file && fgetc(file) != EOF) { /* a full pipe would block fio */
  }
  if (file)
    fclose(file);
  else
    close(fd);
  return root;
}

static bool child_wait(pid_t pid)
{
  int status;
  while (waitpid(pid, &status, 0) < 0) {
    if (errno != EINTR)
      return false;
  }
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static bool result_read(json_t *root, const char *op, struct fio_result *ret_result)
{
  json_t *job = json_array_get(json_object_get(root, "jobs"), 0), *part = json_object_get(job, op);
  double rate = json_number_value(json_object_get(part, "bw_bytes"));
  double gigabytes = json_number_value(json_object_get(part, "io_bytes")) / 1e9;
  double seconds = json_number_value(json_object_get(job, "job_runtime")) / 1e3;
  double percent = json_number_value(json_object_get(job, "usr_cpu")) +
                   json_number_value(json_object_get(job, "sys_cpu"));
  if (rate <= 0 || gigabytes <= 0)
    return false;
  *ret_result = (struct fio_result){.bytes_per_s = rate, .cpu_s_per_gb = percent / 100 * seconds / gigabytes};
  return true;
}

int fio_run(const struct fio_file *file, bool is_write, bool has_huge_pages, struct fio_result *ret_result,
            struct lade_error *error)
{
  pid_t pid;
  int output;
  int status = fio_start(file, is_write, has_huge_pages, &pid, &output);
  if (status)
    return lade_error_set(error, status, "fio cannot be started: %s", strerror(-status));
  json_t *root = output_load(output);
  bool has_ended = child_wait(pid);
  bool is_read = has_ended && result_read(root, is_write ? "write" : "read", ret_result);
  json_decref(root);
  return is_read ? 0 : lade_error_set(error, -EIO, "fio failed, or its output is not what version 3 prints");
}
