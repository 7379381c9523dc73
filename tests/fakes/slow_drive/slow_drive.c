/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A drive that serves reads and writes at stated rates, preloaded into a program without io_uring. It delays pread and
 * pwrite of files of at most SLOW_FILE_BYTES: the drive serves their bytes one after another, at SLOW_READ and
 * SLOW_WRITE bytes per second. The probe's file is longer and stays fast, as with a drive that serves its first
 * gigabytes from a cache. The process's first SLOW_BURST_BYTES of such files have BURST_FACTOR times the rates.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int64_t free_ns; /* when the drive will have served all bytes so far */
static double served;   /* bytes so far */

#define BURST_FACTOR 8

static double number_of(const char *name)
{
  const char *text = getenv(name);
  return text ? strtod(text, NULL) : 0;
}

/* Sleep until the drive has served @bytes more. */
static void serve(int fd, ssize_t bytes, const char *rate_name)
{
  struct stat st;
  struct timespec now;
  const double rate = number_of(rate_name);
  if (bytes <= 0 || rate <= 0 || fstat(fd, &st) || st.st_size > (off_t)number_of("SLOW_FILE_BYTES"))
    return;
  pthread_mutex_lock(&lock);
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
  const ssize_t n = real(fd, data, bytes, offset);
  serve(fd, n, "SLOW_READ");
  return n;
}

__attribute__((visibility("default")))
ssize_t pwrite64(int fd, const void *data, size_t bytes, off64_t offset)
{
  ssize_t (*real)(int, const void *, size_t, off64_t) =
      (ssize_t (*)(int, const void *, size_t, off64_t))dlsym(RTLD_NEXT, "pwrite64");
  const ssize_t n = real(fd, data, bytes, offset);
  serve(fd, n, "SLOW_WRITE");
  return n;
}
