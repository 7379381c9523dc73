/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A comparison of files that ranks read under one name: it may be another mount, or an older copy, on some ranks.
 * Hashing whole files of weights would take minutes, and two trainings of one model have equal headers and sizes. So
 * contents are sampled at places spread over the file; a training changes all of them. A difference between two places
 * only is not found: that is damage, which checksums detect.
 *
 * The order of names in a directory is undefined, so the keys of its files are added up.
 */
#include "run/session/file_key.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/base.h"

#define PLACE_BYTES 4096 /* hashed at each place */
#define N_PLACES 64 /* over the whole file, the last one included */

/* Hash size and samples of the open file @fd, seeded with @before. */
static int contents_key(int fd, uint64_t before, uint64_t *ret_key)
{
  unsigned char place[PLACE_BYTES];
  struct stat file;
  if (fstat(fd, &file))
    return -errno;
  const uint64_t size = (uint64_t)file.st_size, last = size > PLACE_BYTES ? size - PLACE_BYTES : 0;
  const uint64_t n = LADE_MIN(lade_div_up(size, PLACE_BYTES), N_PLACES);
  uint64_t key = XXH3_64bits_withSeed(&size, sizeof(size), before);
  for (uint64_t i = 0; i < n; i++) {
    const uint64_t offset = n > 1 ? (uint64_t)((double)last / (double)(n - 1) * (double)i) : 0;
    const ssize_t n_read = pread(fd, place, sizeof(place), (off_t)offset);
    if (n_read < 0)
      return -errno;
    key = XXH3_64bits_withSeed(place, (size_t)n_read, key);
  }
  *ret_key = key;
  return 0;
}

static bool name_counts(const char *name)
{
  const char *dot = strrchr(name, '.');
  return dot && (strcmp(dot, ".safetensors") == 0 || strcmp(dot, ".json") == 0);
}

/* Add the key of the file @name in the open directory @dir_fd. */
static int entry_add(int dir_fd, const char *name, uint64_t *key)
{
  uint64_t own = 0;
  int fd = openat(dir_fd, name, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* opening a fifo must not block */
  if (fd < 0)
    return -errno;
  int status = contents_key(fd, XXH3_64bits(name, strlen(name)), &own);
  close(fd);
  *key += own;
  return status;
}

/* Compute the key of a directory. Takes ownership of @fd. */
static int directory_key(int fd, uint64_t *ret_key)
{
  uint64_t key = 0;
  int status = 0;
  DIR *directory = fdopendir(fd);
  if (!directory) {
    status = -errno;
    close(fd);
    return status;
  }
  for (const struct dirent *entry = readdir(directory); entry && !status; entry = readdir(directory)) {
    if (name_counts(entry->d_name))
      status = entry_add(fd, entry->d_name, &key);
  }
  closedir(directory);
  *ret_key = key;
  return status;
}

int lade_file_key(const char *path, uint64_t *ret_key)
{
  struct stat file;
  uint64_t key = 0;
  int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK), status = 0;
  if (fd < 0 || fstat(fd, &file)) {
    status = -errno;
    if (fd >= 0)
      close(fd);
  } else if (S_ISDIR(file.st_mode)) {
    status = directory_key(fd, &key);
  } else {
    status = contents_key(fd, 0, &key);
    close(fd);
  }
  if (!status)
    *ret_key = key;
  return status;
}
