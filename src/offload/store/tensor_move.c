/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Move the bytes of a request, in windows, several of them in flight. A window of whole blocks in aligned memory moves
 * directly. Every other window goes through a bounce window of a slab that all requests share. If no bounce window is
 * free, a request with transfers in flight completes one of these first, and only a request without any sleeps. So a
 * sleeper never holds a bounce window, and no cycle of waits forms.
 */
#include <string.h>

#include "offload/store/tensor_internal.h"

#define NO_BOUNCE (-1)

struct move_window {
  struct lade_transfer transfer;
  char *data; /* caller's memory of a bounced window */
  int bounce; /* its bounce window; NO_BOUNCE: the drive accesses the caller's memory */
};

/* State of one call that moves a request. */
struct mover {
  struct lade_tensor_store *s;
  const lade_tensor_ticket *request;
  int i_run;
  uint64_t at, at_in_run; /* in the request, in the run */
  struct move_window windows[TENSOR_N_WINDOWS];
};

/* Take a bounce window; sleep until one is free if @may_wait. NO_BOUNCE: none is free. */
static int bounce_take(struct lade_tensor_store *s, bool may_wait)
{
  int found = NO_BOUNCE;
  pthread_mutex_lock(&s->mutex);
  while (found == NO_BOUNCE) {
    for (int i = 0; i < TENSOR_N_WINDOWS && found == NO_BOUNCE; i++)
      found = s->bounce_used >> i & 1 ? NO_BOUNCE : i;
    if (found != NO_BOUNCE)
      s->bounce_used |= 1u << found;
    else if (may_wait)
      pthread_cond_wait(&s->changed, &s->mutex);
    else
      break;
  }
  pthread_mutex_unlock(&s->mutex);
  return found;
}

static void bounce_give(struct lade_tensor_store *s, int bounce)
{
  pthread_mutex_lock(&s->mutex);
  s->bounce_used &= ~(1u << bounce);
  pthread_cond_broadcast(&s->changed);
  pthread_mutex_unlock(&s->mutex);
}

/* Advance by @bytes in the request and in its runs. */
static void mover_advance(struct mover *m, uint64_t bytes)
{
  m->at += bytes;
  m->at_in_run += bytes;
  if (m->at_in_run == m->request->runs.items[m->i_run].bytes) {
    m->i_run++;
    m->at_in_run = 0;
  }
}

/* Begin the next part of the request in @window. False if it needs a bounce window, and none is free. */
static bool window_begin(struct mover *m, struct move_window *window, bool may_wait)
{
  const lade_tensor_ticket *request = m->request;
  const struct store_run *run = &request->runs.items[m->i_run];
  uint64_t bytes = LADE_MIN(LADE_MIN(run->bytes - m->at_in_run, request->bytes - m->at), TENSOR_WINDOW_BYTES);
  char *data = request->data + m->at;
  const bool is_aligned = (uintptr_t)data % LADE_STORE_BLOCK_BYTES == 0;
  if (is_aligned && bytes > LADE_STORE_GRANULE_BYTES)
    bytes &= ~(uint64_t)(LADE_STORE_GRANULE_BYTES - 1); /* an unaligned tail is a separate window */
  window->bounce = NO_BOUNCE;
  if (!is_aligned || bytes % LADE_STORE_BLOCK_BYTES) {
    window->bounce = bounce_take(m->s, may_wait);
    if (window->bounce == NO_BOUNCE)
      return false;
    window->data = data;
    data = (char *)m->s->bounce.data + (uint64_t)window->bounce * TENSOR_WINDOW_BYTES;
    if (request->op == LADE_TENSOR_PUT)
      memcpy(data, window->data, bytes);
  }
  window->transfer = (struct lade_transfer){
      .op = request->op == LADE_TENSOR_PUT ? LADE_STORE_WRITE : LADE_STORE_READ,
      .check = LADE_CHECK_STORE,
      .extent = m->s->extent,
      .offset = run->offset + m->at_in_run,
      .bytes = bytes,
      .data = data,
      .identity = {.tensor = request->tensor->number, .generation = request->tensor->generation},
  };
  mover_advance(m, bytes);
  int code = lade_store_submit(m->s->store, &window->transfer);
  LADE_ASSERT(!code); /* the transfers are valid */
  return true;
}

static int window_end(struct mover *m, struct move_window *window, struct lade_error *error)
{
  const struct lade_transfer *transfer = &window->transfer;
  int code = lade_store_wait(m->s->store, &window->transfer, error);
  if (window->bounce == NO_BOUNCE)
    return code;
  if (!code && m->request->op == LADE_TENSOR_GET)
    memcpy(window->data, transfer->data, transfer->bytes);
  bounce_give(m->s, window->bounce);
  return code;
}

int tensor_move(struct lade_tensor_store *s, const lade_tensor_ticket *request, struct lade_error *error)
{
  struct mover m = {.s = s, .request = request};
  struct lade_error why = {0};
  uint64_t n_begun = 0, n_done = 0;
  int status = 0;
  while (n_done < n_begun || (!status && m.at < request->bytes)) {
    const bool has_more = !status && m.at < request->bytes && n_begun - n_done < TENSOR_N_WINDOWS;
    if (has_more && window_begin(&m, &m.windows[n_begun % TENSOR_N_WINDOWS], n_begun == n_done)) {
      n_begun++;
      continue;
    }
    int code = window_end(&m, &m.windows[n_done++ % TENSOR_N_WINDOWS], status ? NULL : &why);
    status = status ? status : code;
  }
  if (!status)
    return 0;
  return lade_error_set(error, status, "%s '%.*s' failed: %s", request->op == LADE_TENSOR_PUT ? "putting" : "getting",
                        TENSOR_NAME_SHOWN, request->tensor->name, why.text);
}
