/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The io_uring engine: it passes pieces to the kernel through a ring and needs no threads.
 *
 * One entry is submitted per call. A piece is 2 MiB, so the call takes a thousandth of its time, and a refusal concerns
 * exactly one piece. An entry that the kernel did not take stays in the ring. It is overwritten for the next piece, so
 * that nothing is submitted twice and the ring stays usable.
 *
 * The ring has as many entries as there are pieces and twice as many completions, so it cannot overflow. Submitting and
 * reaping use different ends of it and may run in two threads at once; the store ensures that each end has one thread
 * at a time.
 *
 * Memory that the owner pins is registered with the ring, so that its pages are not pinned for each piece. This saves a
 * quarter of the ring's processor time (docs/store.md). All registered memory is one table, which is passed to the
 * kernel again after each change; owners change it only before and after a run. If the limit of locked memory is too
 * low, or the kernel has no such call, pieces use unregistered memory.
 *
 * No setup flags. A single issuer with deferred task work is bound to one thread for life, but any thread may submit.
 * Cooperative task work delays completions while the submitting thread computes. Kernel polling occupies a core. With
 * pieces this large the first two save next to nothing.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <liburing.h>

#include "base/base.h"
#include "offload/store.h"
#include "offload/store/engine.h"

#define SLAB_BYTES_MAX (UINT64_C(1) << 30) /* of one registered buffer; a piece across two buffers is not registered */
#define SLABS_MAX 1024                     /* limit of older kernels */

struct uring_engine {
  struct io_uring ring;
  int fds[LADE_STORE_DRIVES_MAX];
  struct io_uring_sqe *not_taken; /* an entry that the kernel refused */
  struct lade_faults *faults;
  struct iovec slabs[SLABS_MAX]; /* registered */
  int n_slabs;
};

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

/* ---- registered memory ---- */

/*
 * Register the first @n entries of the table in place of the present ones. False: refused, and nothing is registered.
 */
static bool slabs_register(struct uring_engine *engine, int n)
{
  if (engine->n_slabs)
    io_uring_unregister_buffers(&engine->ring);
  int code = n ? lade_fault(engine->faults, LADE_FAULT_RING_SETUP) : 0;
  if (!code && n)
    code = io_uring_register_buffers(&engine->ring, engine->slabs, (unsigned)n);
  engine->n_slabs = code ? 0 : n;
  return !code;
}

static uint64_t slabs_bytes(const struct uring_engine *engine)
{
  uint64_t bytes = 0;
  for (int i = 0; i < engine->n_slabs; i++)
    bytes += engine->slabs[i].iov_len;
  return bytes;
}

static uint64_t uring_pin(void *arg, void *data, uint64_t bytes)
{
  struct uring_engine *engine = arg;
  const int n_before = engine->n_slabs;
  int n = n_before;
  for (uint64_t at = 0; at < bytes && n < SLABS_MAX; at += SLAB_BYTES_MAX)
    engine->slabs[n++] =
        (struct iovec){.iov_base = (char *)data + at, .iov_len = LADE_MIN(bytes - at, SLAB_BYTES_MAX)};
  if (!slabs_register(engine, n)) /* too much, or unsupported: register the former table again */
    slabs_register(engine, n_before);
  return slabs_bytes(engine);
}

static uint64_t uring_unpin(void *arg, void *data, uint64_t bytes)
{
  struct uring_engine *engine = arg;
  int n = 0;
  for (int i = 0; i < engine->n_slabs; i++) {
    const char *at = engine->slabs[i].iov_base;
    if (at < (char *)data || at >= (char *)data + bytes)
      engine->slabs[n++] = engine->slabs[i];
  }
  if (n < engine->n_slabs)
    slabs_register(engine, n);
  return slabs_bytes(engine);
}

/* Return the registered buffer that contains all of @io; -1: none. */
static int slab_find(const struct uring_engine *engine, const struct store_io *io)
{
  for (int i = 0; i < engine->n_slabs; i++) {
    const struct iovec *slab = &engine->slabs[i];
    const uint64_t at = (uint64_t)((uintptr_t)io->data - (uintptr_t)slab->iov_base); /* wraps if it is before */
    if (at < slab->iov_len && io->bytes <= slab->iov_len - at)
      return i;
  }
  return -1;
}

/*
 * Unregister memory first, because the kernel frees a ring some time after its descriptor is closed. Until then pinned
 * memory would count against the user's limit.
 */
static void uring_close(void *arg)
{
  struct uring_engine *engine = arg;
  if (!engine)
    return;
  slabs_register(engine, 0);
  io_uring_queue_exit(&engine->ring);
  free(engine);
}

/* ---- pieces ---- */

static void sqe_fill(const struct uring_engine *engine, const struct store_io *io, struct io_uring_sqe *sqe)
{
  const int fd = engine->fds[io->file], slab = slab_find(engine, io);
  if (io->is_write && slab >= 0)
    io_uring_prep_write_fixed(sqe, fd, io->data, io->bytes, io->offset, slab);
  else if (io->is_write)
    io_uring_prep_write(sqe, fd, io->data, io->bytes, io->offset);
  else if (slab >= 0)
    io_uring_prep_read_fixed(sqe, fd, io->data, io->bytes, io->offset, slab);
  else
    io_uring_prep_read(sqe, fd, io->data, io->bytes, io->offset);
  sqe->user_data = (uint64_t)io->slot;
}

/* Submit once; return 1 if the kernel took the entry. */
static int ring_submit(struct uring_engine *engine)
{
  int code = lade_fault(engine->faults, LADE_FAULT_RING_SUBMIT);
  return code ? code : io_uring_submit(&engine->ring);
}

static int uring_submit(void *arg, const struct store_io *io)
{
  struct uring_engine *engine = arg;
  struct io_uring_sqe *sqe = engine->not_taken ? engine->not_taken : io_uring_get_sqe(&engine->ring);
  LADE_ASSERT(sqe); /* the ring has as many entries as pieces */
  sqe_fill(engine, io, sqe);
  engine->not_taken = sqe;
  int code, n_tries = 0;
  do {
    code = ring_submit(engine);
    code = code ? code : -EAGAIN;
  } while (lade_retry(code, &n_tries));
  if (code != 1)
    return code;
  engine->not_taken = NULL;
  return 0;
}

/* Wait for the first completion. A ring whose wait is refused for good (lade_retry) delivers none any more. */
static int ring_wait(struct uring_engine *engine, struct io_uring_cqe **ret_cqe)
{
  int code, n_tries = 0;
  do {
    code = lade_fault(engine->faults, LADE_FAULT_RING_WAIT);
    code = code ? code : io_uring_wait_cqe(&engine->ring, ret_cqe);
  } while (code == -EINTR || (code && lade_retry(code, &n_tries)));
  return code;
}

static int uring_reap(void *arg, struct store_completion *completions, int n, bool may_block)
{
  struct uring_engine *engine = arg;
  struct io_uring_cqe *cqe;
  int n_reaped = 0;
  int code = may_block ? ring_wait(engine, &cqe) : io_uring_peek_cqe(&engine->ring, &cqe);
  if (may_block && code)
    return code;
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
    .pin = uring_pin,
    .unpin = uring_unpin,
};

const struct store_engine_ops *const store_engine_uring = &uring_ops;
