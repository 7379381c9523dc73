/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The engine that hands pieces to the kernel through a ring and needs no thread of its own.
 *
 * One entry is submitted per call: a piece is two mebibytes, so that the call is a thousandth of its
 * time, and a refusal concerns exactly one piece. An entry that the kernel did not take stays in the ring; it is
 * filled anew for the next piece, so that nothing is submitted twice and the ring stays usable.
 *
 * The ring has as many entries as there are pieces and twice as many completions, so it cannot overflow.
 * Submitting and reaping are different ends of it and may run in two threads at once; each end has one thread
 * at a time, which the store sees to.
 *
 * No setup flags. A single issuer with deferred task work is bound to one thread for life, and transfers
 * are submitted by whoever has them; cooperative task work delays completions while the submitting thread
 * computes; kernel polling burns a core. With pieces this large their savings are not measurable.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <liburing.h>

#include "base/base.h"
#include "offload/engine.h"
#include "offload/store.h"

#define TRIES_MAX 32
#define TRY_PAUSE_NS 100000 /* times the number of tries */

struct uring_engine {
  struct io_uring ring;
  int fds[LADE_STORE_DRIVES_MAX];
  struct io_uring_sqe *not_taken; /* an entry that the kernel refused */
  struct lade_faults *faults;
};

static void uring_close(void *arg)
{
  struct uring_engine *engine = arg;
  if (!engine)
    return;
  io_uring_queue_exit(&engine->ring);
  free(engine);
}

static int uring_open(const int *fds, int n_fds, int depth, struct lade_faults *faults, void **ret_engine)
{
  struct uring_engine *engine = lade_fault_calloc(faults, 1, sizeof(*engine));
  if (!engine)
    return -ENOMEM;
  memcpy(engine->fds, fds, (size_t)n_fds * sizeof(*fds));
  engine->faults = faults;
  int code = lade_fault(faults, LADE_FAULT_RING_SETUP);
  if (!code)
    code = io_uring_queue_init((unsigned)depth, &engine->ring, 0);
  if (code) {
    free(engine);
    return code;
  }
  *ret_engine = engine;
  return 0;
}

/* One attempt: 1 if the kernel took the entry. */
static int ring_submit(struct uring_engine *engine)
{
  int code = lade_fault(engine->faults, LADE_FAULT_RING_SUBMIT);
  return code ? code : io_uring_submit(&engine->ring);
}

static bool is_worth_a_retry(int code)
{
  return code == 0 || code == -EINTR || code == -EAGAIN || code == -EBUSY;
}

static int uring_submit(void *arg, const struct store_io *io)
{
  struct uring_engine *engine = arg;
  struct io_uring_sqe *sqe = engine->not_taken ? engine->not_taken : io_uring_get_sqe(&engine->ring);
  LADE_ASSERT(sqe); /* there are as many entries as pieces */
  if (io->is_write)
    io_uring_prep_write(sqe, engine->fds[io->file], io->data, io->bytes, io->offset);
  else
    io_uring_prep_read(sqe, engine->fds[io->file], io->data, io->bytes, io->offset);
  sqe->user_data = (uint64_t)io->slot;
  engine->not_taken = sqe;
  int code = ring_submit(engine);
  for (int n_tries = 1; is_worth_a_retry(code) && n_tries < TRIES_MAX; n_tries++) {
    struct timespec pause = {.tv_nsec = (long)n_tries * TRY_PAUSE_NS};
    nanosleep(&pause, NULL);
    code = ring_submit(engine);
  }
  if (code != 1)
    return code ? code : -EAGAIN;
  engine->not_taken = NULL;
  return 0;
}

static int uring_reap(void *arg, struct store_completion *completions, int n, bool may_block)
{
  struct uring_engine *engine = arg;
  struct io_uring_cqe *cqe;
  int n_reaped = 0, code;
  do {
    code = may_block ? io_uring_wait_cqe(&engine->ring, &cqe) : io_uring_peek_cqe(&engine->ring, &cqe);
  } while (may_block && code);
  while (!code && n_reaped < n) {
    int fault = lade_fault(engine->faults, LADE_FAULT_RING_COMPLETE);
    completions[n_reaped++] = (struct store_completion){
        .slot = (int)cqe->user_data,
        .result = fault ? fault : cqe->res,
    };
    io_uring_cqe_seen(&engine->ring, cqe);
    code = io_uring_peek_cqe(&engine->ring, &cqe);
  }
  return n_reaped;
}

static const struct store_engine_ops uring_ops = {
    .name = "io_uring",
    .open = uring_open,
    .close = uring_close,
    .submit = uring_submit,
    .reap = uring_reap,
};

const struct store_engine_ops *const store_engine_uring = &uring_ops;
