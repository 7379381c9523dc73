/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Relay of a child's standard output. mpirun passes output on and ignores write errors: after a full disk or a closed
 * standard output bytes are lost, and its exit code is 0. mpirun therefore writes into a pipe. This process, which
 * reports the exit code, writes the bytes to their target.
 *
 * After a failed write the thread reads on and drops the bytes, because a child that waits for room in the pipe would
 * never end. The bytes that arrived are a prefix of the output. If the reader has gone (-EPIPE) the pipe is closed
 * instead: the child meets the same error as without a relay, and an endless writer can end.
 *
 * The write end stays open here because a job may start several children one after another. An eventfd therefore
 * signals the end of the output. End of file would not do, because a forgotten descendant may keep the pipe open.
 *
 * Writes to the target block, because its O_NONBLOCK flag would be shared with other processes. If it has the flag, the
 * thread polls. The relay has its own thread because the reader of the target may take any time.
 */
#include "tools/job/output_relay.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/base.h"
#include "base/thread.h"

#define CHUNK_BYTES 65536 /* default capacity of a pipe */

/* Write @n_bytes to standard output. A negative errno if some bytes did not arrive. */
static int bytes_write(struct output_relay *relay, const char *bytes, size_t n_bytes)
{
  while (n_bytes) {
    const ssize_t n = write(STDOUT_FILENO, bytes, n_bytes);
    if (n < 0 && errno == EAGAIN)
      poll(&(struct pollfd){.fd = STDOUT_FILENO, .events = POLLOUT}, 1, -1);
    else if (n < 0 && errno != EINTR)
      return -errno;
    bytes += LADE_MAX(n, 0);
    n_bytes -= (size_t)LADE_MAX(n, 0);
    atomic_fetch_add(&relay->n_bytes, (uint64_t)LADE_MAX(n, 0));
  }
  return 0;
}

/* Pass on the bytes in the pipe. False if no more will come: the pipe failed, or its reader is gone. */
static bool pipe_pass(struct output_relay *relay)
{
  static char chunk[CHUNK_BYTES]; /* one thread per process relays */
  ssize_t n;
  while ((n = read(relay->read_fd, chunk, sizeof(chunk))) > 0) {
    if (!atomic_load(&relay->failure))
      atomic_store(&relay->failure, bytes_write(relay, chunk, (size_t)n));
    if (atomic_load(&relay->failure) == -EPIPE)
      return false;
  }
  return n < 0 && (errno == EAGAIN || errno == EINTR);
}

static void *relay_run(void *user)
{
  struct output_relay *relay = user;
  struct pollfd events[] = {{.fd = relay->read_fd, .events = POLLIN}, {.fd = relay->wake_fd, .events = POLLIN}};
  bool is_last = false, is_open = true;
  while (is_open && !is_last) {
    if (poll(events, LADE_COUNT(events), -1) < 0)
      continue; /* all signals are blocked here, so a failed poll is a brief lack of memory */
    is_last = events[1].revents != 0; /* read before the pipe is emptied for the last time */
    is_open = pipe_pass(relay);
  }
  close(relay->read_fd);
  atomic_store(&relay->has_ended, true);
  return NULL;
}

static void descriptors_close(const struct output_relay *relay)
{
  const int fds[] = {relay->wake_fd, relay->write_fd};
  for (size_t i = 0; i < LADE_COUNT(fds); i++)
    if (fds[i] >= 0)
      close(fds[i]);
}

int output_relay_open(struct output_relay *relay)
{
  int ends[2];
  *relay = (struct output_relay){0};
  if (pipe2(ends, O_CLOEXEC))
    return -errno;
  relay->read_fd = ends[0];
  relay->write_fd = ends[1];
  relay->wake_fd = eventfd(0, EFD_CLOEXEC);
  int status = relay->wake_fd < 0 || fcntl(relay->read_fd, F_SETFL, O_NONBLOCK) ? -errno : 0;
  if (!status)
    status = lade_thread_start(&relay->thread, "lade-output", relay_run, relay);
  if (status) {
    close(relay->read_fd);
    descriptors_close(relay);
  }
  return status;
}

int output_relay_take(const struct output_relay *relay)
{
  return dup2(relay->write_fd, STDOUT_FILENO) < 0 ? -errno : 0;
}

void output_relay_drain(struct output_relay *relay)
{
  eventfd_write(relay->wake_fd, 1); /* fails only if 2^64 - 2 events are pending */
}

int output_relay_close(struct output_relay *relay)
{
  pthread_join(relay->thread, NULL);
  LADE_ASSERT(atomic_load(&relay->has_ended));
  descriptors_close(relay);
  return atomic_load(&relay->failure);
}
