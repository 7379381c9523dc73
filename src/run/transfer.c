/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What runs on the io queue: transfers of whole values, and optimizer updates that stream.
 *
 * A transfer is submitted and waited for here, in its queue's thread; the store keeps several pieces of it in
 * flight. An update streams its parameter through a few windows of scratch: while one window is
 * computed, the next is being read and the one before written, so the drive is busy all the time
 * and each byte of state moves once each way. Scales of 8-bit moments are read whole before the first window and
 * written after the last. Checksums are the store's.
 *
 * Identities: a parameter's bytes belong to (tensor, number of updates so far), any other value's to
 * (tensor, microbatch, this run of a program, version). A block that was left from an earlier step, or from
 * another value, does not verify. Where state is durable, the number of updates also says in which slot the bytes are:
 * what a step reads is never where it writes. The program sees one place; its waits, which keep a write behind the
 * reads of that place, are more than two slots need.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "run/executor_internal.h"

#define TRANSIENT_GENERATION (UINT64_C(1) << 63)

static bool is_durable(const lade_executor *ex, uint32_t tensor)
{
  return ex->params.durable && ex->resident[tensor] >= 0;
}

void executor_address_stored(const lade_executor *ex, struct lade_value value, uint64_t offset,
                             struct lade_transfer *transfer)
{
  bool is_resident = ex->resident[value.tensor] >= 0;
  struct lade_identity identity = {.tensor = (uint32_t)value.tensor, .microbatch = (uint32_t)value.microbatch};
  identity.generation = is_resident ? ex->n_steps + (uint64_t)value.version
                                    : TRANSIENT_GENERATION | ex->n_runs << 16 | (uint64_t)(uint16_t)value.version;
  transfer->identity = identity;
  if (is_durable(ex, identity.tensor)) {
    transfer->extent = lade_durable_slot(ex->params.durable, identity.generation);
    transfer->offset = offset;
  } else {
    LADE_ASSERT(offset >= ex->spill_offset);
    transfer->extent = ex->extent;
    transfer->offset = offset - ex->spill_offset;
  }
}

static lade_store *store_of(const lade_executor *ex, const struct lade_transfer *transfer)
{
  return is_durable(ex, transfer->identity.tensor) ? lade_durable_store(ex->params.durable) : ex->params.store;
}

int executor_transfer_begin(const lade_executor *ex, struct lade_transfer *transfer, struct lade_error *error)
{
  int status = lade_store_submit(store_of(ex, transfer), transfer);
  return status ? lade_error_set(error, status, "the store refused a transfer") : 0;
}

int executor_transfer_wait(const lade_executor *ex, struct lade_transfer *transfer, struct lade_error *error)
{
  struct lade_error why = {0};
  char name[LADE_NAME_BYTES + 16];
  int status = lade_store_wait(store_of(ex, transfer), transfer, &why);
  return status ? lade_error_set(error, status, "%s of tensor %s failed: %s",
                                 transfer->op == LADE_STORE_READ ? "reading back" : "writing out",
                                 lade_value_name(ex->graph, (int)transfer->identity.tensor, name), why.text)
                : 0;
}

static int transfer_wait(lade_executor *ex, struct lade_transfer *transfer)
{
  struct lade_error line = {0};
  int status = executor_transfer_wait(ex, transfer, &line);
  if (status)
    executor_fail(ex, status, &line);
  return status;
}

static int transfer_begin(lade_executor *ex, struct lade_transfer *transfer)
{
  struct lade_error line = {0};
  int status = executor_transfer_begin(ex, transfer, &line);
  if (status)
    executor_fail(ex, status, &line);
  return status;
}

void io_call_run(void *arg)
{
  struct io_call *call = arg;
  lade_executor *ex = call->executor;
  if (atomic_load(&ex->failure))
    return;
  executor_address_stored(ex, call->value, call->store_offset, &call->transfer);
  if (!transfer_begin(ex, &call->transfer))
    transfer_wait(ex, &call->transfer);
}

static int64_t window_elements(const struct stream_call *s, int window)
{
  int64_t first = (int64_t)window * LADE_STREAM_ELEMENTS;
  return LADE_MIN(s->args.n_elements - first, LADE_STREAM_ELEMENTS);
}

static char *window_data(const struct stream_call *s, int window, const struct stream_part *part)
{
  return s->scratch + (uint64_t)(window % LADE_STREAM_WINDOWS) * s->window_bytes + part->window_offset;
}

static void window_transfer(struct stream_call *s, int window, int i, enum lade_store_op op,
                            struct lade_transfer *ret_transfer)
{
  const struct stream_part *part = &s->parts[i];
  lade_executor *ex = s->executor;
  struct lade_value value = part->value;
  value.version = (int16_t)(value.version + (op == LADE_STORE_WRITE));
  *ret_transfer = (struct lade_transfer){
      .op = op, .check = LADE_CHECK_STORE, .data = window_data(s, window, part),
      .bytes = (uint64_t)window_elements(s, window) * part->element_bytes};
  uint64_t first = (uint64_t)window * LADE_STREAM_ELEMENTS * part->element_bytes;
  executor_address_stored(ex, value, part->store_offset + first, ret_transfer);
}

static int window_read(struct stream_call *s, int window)
{
  int slot = window % LADE_STREAM_WINDOWS;
  for (int i = 0; i < s->n_parts; i++) {
    window_transfer(s, window, i, LADE_STORE_READ, &s->reads[slot][i]);
    int status = transfer_begin(s->executor, &s->reads[slot][i]);
    if (status) {
      s->reads[slot][i].bytes = 0;
      return status;
    }
  }
  return 0;
}

static int window_write(struct stream_call *s, int window)
{
  int slot = window % LADE_STREAM_WINDOWS;
  for (int i = 0; i < s->n_parts; i++) {
    if (!s->parts[i].is_written)
      continue;
    window_transfer(s, window, i, LADE_STORE_WRITE, &s->writes[slot][i]);
    int status = transfer_begin(s->executor, &s->writes[slot][i]);
    if (status) {
      s->writes[slot][i].bytes = 0;
      return status;
    }
  }
  return 0;
}

/* Wait for all of a slot's transfers that have begun; bytes 0 marks one that has not. */
static int slot_wait(struct stream_call *s, struct lade_transfer *transfers)
{
  int status = 0;
  for (int i = 0; i < s->n_parts; i++) {
    if (!transfers[i].bytes)
      continue;
    int one = transfer_wait(s->executor, &transfers[i]);
    transfers[i].bytes = 0;
    status = status ? status : one;
  }
  return status;
}

static const void *role_data(const struct stream_call *s, int window, int role, const void *whole, size_t element_bytes)
{
  if (s->part_of_role[role] >= 0)
    return window_data(s, window, &s->parts[s->part_of_role[role]]);
  return whole ? (const char *)whole + (size_t)window * LADE_STREAM_ELEMENTS * element_bytes : NULL;
}

static void window_compute(struct stream_call *s, int window)
{
  struct lade_adamw_args args = s->args;
  args.n_elements = window_elements(s, window);
  args.weight = (void *)role_data(s, window, LADE_ROLE_WEIGHT, s->args.weight, lade_dtype_bytes(s->args.dtype));
  args.grad = role_data(s, window, LADE_ROLE_GRAD, s->args.grad, lade_dtype_bytes(s->args.grad_dtype));
  args.residual = (void *)role_data(s, window, LADE_ROLE_RESIDUAL, NULL, 0);
  args.m = (void *)role_data(s, window, LADE_ROLE_M, NULL, 0);
  args.v = (void *)role_data(s, window, LADE_ROLE_V, NULL, 0);
  const uint64_t first = (uint64_t)window * LADE_STREAM_ELEMENTS; /* in what this rank holds */
  args.first_element += first;
  if (s->n_scales) {
    args.m_scales += first / LADE_MOMENT_BLOCK;
    args.v_scales += first / LADE_MOMENT_BLOCK;
  }
  s->executor->params.kernels->fn[LADE_K_ADAMW](&s->executor->ctx, &args);
}

/* All scales in, or out again. */
static int scales_transfer(struct stream_call *s, enum lade_store_op op)
{
  lade_executor *ex = s->executor;
  int status = 0, n_begun = 0;
  for (; n_begun < s->n_scales && !status; n_begun += !status) {
    struct stream_scales *scales = &s->scales[n_begun];
    struct lade_value value = scales->value;
    value.version = (int16_t)(value.version + (op == LADE_STORE_WRITE));
    scales->transfer = (struct lade_transfer){
        .op = op, .check = LADE_CHECK_STORE, .data = scales->data, .bytes = scales->bytes};
    executor_address_stored(ex, value, scales->store_offset, &scales->transfer);
    status = transfer_begin(ex, &scales->transfer);
  }
  for (int i = 0; i < n_begun; i++) {
    int one = transfer_wait(ex, &s->scales[i].transfer);
    status = status ? status : one;
  }
  return status;
}

void stream_call_run(void *arg)
{
  struct stream_call *s = arg;
  lade_executor *ex = s->executor;
  if (atomic_load(&ex->failure))
    return;
  int n_windows = (int)lade_div_up(s->args.n_elements, LADE_STREAM_ELEMENTS);
  memset(s->reads, 0, sizeof(s->reads));
  memset(s->writes, 0, sizeof(s->writes));
  int status = window_read(s, 0);
  if (!status)
    status = scales_transfer(s, LADE_STORE_READ);
  for (int w = 0; w < n_windows && !status; w++) {
    int next = (w + 1) % LADE_STREAM_WINDOWS;
    if (w + 1 < n_windows) {
      status = slot_wait(s, s->writes[next]);
      if (!status)
        status = window_read(s, w + 1);
    }
    if (!status)
      status = slot_wait(s, s->reads[w % LADE_STREAM_WINDOWS]);
    if (status)
      break;
    window_compute(s, w);
    status = window_write(s, w);
  }
  if (!status)
    status = scales_transfer(s, LADE_STORE_WRITE);
  for (int slot = 0; slot < LADE_STREAM_WINDOWS; slot++) {
    slot_wait(s, s->reads[slot]);
    slot_wait(s, s->writes[slot]);
  }
}
