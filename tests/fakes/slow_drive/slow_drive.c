/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A drive that serves reads and writes at stated rates, preloaded into a program without io_uring. It delays pread and
 * pwrite of files of at most SLOW_FILE_BYTES: the drive serves their bytes one after another, at SLOW_READ and
 * SLOW_WRITE bytes per second. The probe's file is longer and stays fast, as with a drive that serves its first
 * gigabytes from a cache. The process's first SLOW_BURST_BYTES of such files have BURST_FACTOR times the rates. With
 * SLOW_SIZES, a list of sizes in bytes, all files of other sizes are fast.
 *
 * SLOW_LOG names a file that gets a line for each delayed call: the size of its file and the bytes moved. SLOW_ERRNO is
 * the error of calls on delayed files of less than SLOW_ERRNO_FILE_BYTES, after SLOW_ERRNO_BYTES of these were moved.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int64_t free_ns; /* when the drive will have served all bytes so far */
static double served;   /* bytes so far */
static double failing_served; /* of these, bytes of files whose calls will fail */

#define BURST_FACTOR 8 /* far above the tenth by which a prediction may miss, and below the rate of a drive of today */

static double number_of(const char *name)
{
  const char *text = getenv(name);
  return text ? strtod(text, NULL) : 0;
}

/* True if SLOW_SIZES, if there is one, lists @bytes. */
static bool is_listed(off_t bytes)
{
  const char *at = getenv("SLOW_SIZES");
  if (!at)
    return true;
  for (char *end; *at; at = *end == ',' ? end + 1 : end) {
    if (strtoll(at, &end, 10) == bytes)
      return true;
  }
  return false;
}

/* True if calls on @fd are delayed. */
static bool is_slow(int fd, const char *rate_name, off_t *ret_file_bytes)
{
  struct stat st;
  if (number_of(rate_name) <= 0 || fstat(fd, &st))
    return false;
  *ret_file_bytes = st.st_size;
  return st.st_size <= (off_t)number_of("SLOW_FILE_BYTES") && is_listed(st.st_size);
}

/* Return the error that a call on @fd is to have; 0: none. */
static int failure_of(int fd, const char *rate_name)
{
  off_t file_bytes;
  if (!getenv("SLOW_ERRNO") || !is_slow(fd, rate_name, &file_bytes) ||
      file_bytes >= (off_t)number_of("SLOW_ERRNO_FILE_BYTES"))
    return 0;
  pthread_mutex_lock(&lock);
  const bool is_due = failing_served >= number_of("SLOW_ERRNO_BYTES");
  pthread_mutex_unlock(&lock);
  return is_due ? (int)number_of("SLOW_ERRNO") : 0;
}

/* Append a call to SLOW_LOG. pre: the lock is held. */
static void call_log(off_t file_bytes, ssize_t bytes)
{
  static int log_fd = -1;
  if (log_fd < 0 && getenv("SLOW_LOG"))
    log_fd = open(getenv("SLOW_LOG"), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (log_fd >= 0)
    dprintf(log_fd, "%lld %lld\n", (long long)file_bytes, (long long)bytes);
}

/* Sleep until the drive has served @bytes more. */
static void serve(int fd, ssize_t bytes, const char *rate_name)
{
  struct timespec now;
  off_t file_bytes;
  const double rate = number_of(rate_name);
  if (bytes <= 0 || !is_slow(fd, rate_name, &file_bytes))
    return;
  pthread_mutex_lock(&lock);
  call_log(file_bytes, bytes);
  failing_served += file_bytes < (off_t)number_of("SLOW_ERRNO_FILE_BYTES") ? (double)bytes : 0;
  const double factor = served < number_of("SLOW_BURST_BYTES") ? BURST_FACTOR : 1;
  served += (double)bytes;
  clock_gettime(CLOCK_MONOTONIC, &now);
  const int64_t now_ns = now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
  free_ns = (free_ns > now_ns ? free_ns : now_ns) + (int64_t)((double)bytes / (factor * rate) * 1e9);
  const struct timespec until = {.tv_sec = free_ns / 1000000000, .tv_nsec = free_ns % 1000000000};
  pthread_mutex_unlock(&lock);
  while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL))
    ;
}

__attribute__((visibility("default")))
ssize_t pread64(int fd, void *data, size_t bytes, off64_t offset)
{
  ssize_t (*real)(int, void *, size_t, off64_t) =
      (ssize_t (*)(int, void *, size_t, off64_t))dlsym(RTLD_NEXT, "pread64");
  const int failure = failure_of(fd, "SLOW_READ");
  if (failure) {
    errno = failure;
    return -1;
  }
  const ssize_t n = real(fd, data, bytes, offset);
  serve(fd, n, "SLOW_READ");
  return n;
}

__attribute__((visibility("default")))
ssize_t pwrite64(int fd, const void *data, size_t bytes, off64_t offset)
{
  ssize_t (*real)(int, const void *, size_t, off64_t) =
      (ssize_t (*)(int, const void *, size_t, off64_t))dlsym(RTLD_NEXT, "pwrite64");
  const int failure = failure_of(fd, "SLOW_WRITE");
  if (failure) {
    errno = failure;
    return -1;
  }
  const ssize_t n = real(fd, data, bytes, offset);
  serve(fd, n, "SLOW_WRITE");
  return n;
}
