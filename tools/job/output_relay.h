/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A pipe for the standard output of a child process, and a thread that writes its bytes to this process's standard
 * output. This process then knows if the bytes arrived, even if the child ignores write errors.
 */
#ifndef LADE_OUTPUT_RELAY_H
#define LADE_OUTPUT_RELAY_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct output_relay {
  int read_fd, write_fd, wake_fd;
  pthread_t thread;
  _Atomic uint64_t n_bytes; /* written to the target */
  atomic_int failure;       /* negative errno of the first write that lost bytes; 0: none */
  atomic_bool has_ended;
};

/*
 * Start to relay; @relay must not move until output_relay_close. -EMFILE, -ENFILE, -ENOMEM or -EAGAIN if the machine
 * refuses the pipe, the event or the thread.
 */
int output_relay_open(struct output_relay *relay);

/* Make the pipe this process's standard output. Called in a new process. A negative errno. Async-signal-safe. */
int output_relay_take(const struct output_relay *relay);

/* Tell the thread that no more bytes come: it ends after writing the bytes in the pipe. */
void output_relay_drain(struct output_relay *relay);

/*
 * Close a drained relay. Blocks until its thread has ended. Return output_relay.failure. pre: has_ended, or the caller
 * may wait any time for the reader of standard output.
 */
int output_relay_close(struct output_relay *relay);

#endif
