/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Share memory between processes of one node that are not related by fork.
 *
 * The first choice is a memfd. It belongs to no file system, so a container's small /dev/shm does not limit it. Member
 * 0 creates and fills it and sends its process number and descriptor; the other members open it through /proc. If /proc
 * is hidden, a file in /dev/shm is used, if that has space; member 0 unlinks the file as soon as all have opened it. A
 * try succeeds only if all members succeeded. They exchange their results, so that all take the same path.
 *
 * Rejected: MPI_Win_allocate_shared. Open MPI 4 backs it by a file in the session's directory or in /dev/shm. It
 * detects missing space by SIGBUS, and a library cannot change that.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/free_space.h"
#include "parallel/comm/comm_segment_internal.h"

#define FOLDER "/dev/shm"

/* Result of member 0's try. */
struct offer {
  int status;
  char path[92]; /* path by which the other members open it */
};

static int memfd_make(uint64_t bytes, struct offer *offer)
{
  int fd = memfd_create("lade-comm", MFD_CLOEXEC);
  if (fd < 0)
    return -errno;
  int status = ftruncate(fd, (off_t)bytes) ? -errno : -posix_fallocate(fd, 0, (off_t)bytes);
  if (status) {
    close(fd);
    return status;
  }
  snprintf(offer->path, sizeof(offer->path), "/proc/%d/fd/%d", (int)getpid(), fd);
  return fd;
}

/* Check the free space first, because filling a shared /dev/shm would leave none to others for a moment. */
static int room_check(uint64_t bytes)
{
  uint64_t room_bytes;
  int status = lade_free_space_get(FOLDER, &room_bytes);
  return !status && room_bytes < bytes ? -ENOSPC : status;
}

static int file_make(uint64_t bytes, struct offer *offer)
{
  int status = room_check(bytes);
  if (status)
    return status;
  snprintf(offer->path, sizeof(offer->path), FOLDER "/lade-%d-%llx", (int)getpid(), (unsigned long long)lade_now_ns());
  int fd = open(offer->path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd < 0)
    return -errno;
  status = -posix_fallocate(fd, 0, (off_t)bytes);
  if (status) {
    unlink(offer->path);
    close(fd);
    return status;
  }
  return fd;
}

/* Map @fd, or if it is negative the file that @offer names. */
static int offer_map(const struct offer *offer, int fd, uint64_t bytes, void **ret_data)
{
  int own = fd >= 0 ? fd : open(offer->path, O_RDWR | O_CLOEXEC);
  if (own < 0)
    return -errno;
  void *data = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, own, 0);
  int status = data == MAP_FAILED ? -errno : 0;
  if (own != fd)
    close(own);
  if (!status) {
    madvise(data, bytes, MADV_DONTFORK);
    *ret_data = data;
  }
  return status;
}

/* Try one backing; *ret_outcome is 0, or the reason why it did not work at all members. */
static int backing_try(struct comm_group *group, enum lade_comm_backing backing, struct comm_segment *segment,
                       int *ret_outcome, struct lade_error *error)
{
  struct offer offer = {.status = 0};
  int fd = -1;
  if (group->rank == 0) {
    fd = backing == LADE_COMM_BACKING_MEMFD ? memfd_make(segment->bytes, &offer) : file_make(segment->bytes, &offer);
    offer.status = LADE_MIN(fd, 0);
  }
  struct lade_mpi_transfer broadcast = {.kind = LADE_MPI_BROADCAST, .dst = &offer, .bytes = sizeof(offer)};
  int failed = comm_group_transfer(group, &broadcast, error);
  int status = failed || offer.status ? offer.status : offer_map(&offer, fd, segment->bytes, &segment->data);
  int member = -1;
  if (!failed)
    failed = comm_group_vote(group, status, &member, error);
  *ret_outcome = member >= 0 ? group->outcomes[member] : 0;
  if (group->rank == 0 && fd >= 0) {
    if (backing == LADE_COMM_BACKING_FILE)
      unlink(offer.path);
    close(fd);
  }
  if ((failed || *ret_outcome) && segment->data) {
    munmap(segment->data, segment->bytes);
    segment->data = NULL;
  }
  return failed;
}

int comm_segment_open(struct comm_group *group, uint64_t bytes, enum lade_comm_backing backing,
                      struct lade_error *ret_why, struct lade_error *error, struct comm_segment *ret_segment)
{
  static const enum lade_comm_backing tries[] = {LADE_COMM_BACKING_MEMFD, LADE_COMM_BACKING_FILE};
  static const char *const names[] = {"a memfd", "a file in " FOLDER};
  struct comm_segment segment = {.bytes = lade_align_up(bytes, 4096), .backing = LADE_COMM_BACKING_NONE};
  int outcomes[LADE_COUNT(tries)] = {0};
  for (size_t i = 0; i < LADE_COUNT(tries) && !segment.data; i++) {
    if (backing != LADE_COMM_BACKING_AUTO && backing != tries[i])
      continue;
    int failed = backing_try(group, tries[i], &segment, &outcomes[i], error);
    if (failed)
      return failed;
    segment.backing = segment.data ? tries[i] : LADE_COMM_BACKING_NONE;
  }
  size_t at = 0;
  ret_why->text[0] = 0;
  for (size_t i = 0; i < LADE_COUNT(tries) && !segment.data; i++)
    if (outcomes[i])
      at += (size_t)snprintf(ret_why->text + at, sizeof(ret_why->text) - at, "%s%s of %llu bytes: %s", at ? "; " : "",
                             names[i], (unsigned long long)segment.bytes, strerror(-outcomes[i]));
  *ret_segment = segment;
  return 0;
}

void comm_segment_close(struct comm_segment *segment)
{
  if (segment->data)
    munmap(segment->data, segment->bytes);
  segment->data = NULL;
}
