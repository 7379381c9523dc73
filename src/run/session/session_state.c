/* SPDX-License-Identifier: Apache-2.0 */
/*
 * State and services that all parts of a session use: its values, the settings of its run, the bytes of a durable slot
 * and of host memory, its prices, the parameters of its store and of its measurements, notices, and failures.
 *
 * A notice goes to the caller's function. The line of a lost rank gets this rank's step in front (session_place). A
 * failure that other ranks cannot detect aborts the communicators, so that no rank waits for this one (session_fail).
 */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "run/session/session_internal.h"

void session_notice(const lade_session *session, const char *format, ...)
{
  char line[512];
  va_list args;
  if (!session->params.notice)
    return;
  va_start(args, format);
  vsnprintf(line, sizeof(line), format, args);
  va_end(args);
  session->params.notice(session->params.user, line);
}

struct lade_values lade_session_values(lade_session *session)
{
  struct lade_values values = lade_executor_values(session->executor, session->graph);
  values.whole = session->whole;
  values.group = session->group.world ? &session->group : NULL;
  values.pool = session->pool;
  return values;
}

struct lade_checkpoint_run session_run(const lade_session *s)
{
  const struct lade_session_params *p = &s->params;
  struct lade_data_info data = {0};
  if (s->data)
    lade_data_get_info(s->data, &data);
  return (struct lade_checkpoint_run){
      .is_known = true, .dtype = p->dtype, .order = p->order, .batch = p->batch, .micro_batch = p->micro_batch,
      .seq = p->seq_len, .steps = p->steps, .warmup = p->warmup, .lr = p->lr, .min_lr = p->min_lr,
      .dropout = p->dropout, .beta1 = p->beta1, .beta2 = p->beta2, .eps = p->eps, .weight_decay = p->weight_decay,
      .clip = p->clip, .moments = p->moments, .master = p->master, .grad_dtype = p->grad_dtype,
      .gelu_fusion = p->gelu_fusion && p->dtype != LADE_F32, /* in F32 both forms have one result */
      .grad_reduce = s->group.layout.grad_reduce, .data_key = session_documents_key(s, data.key)};
}

int session_place(const lade_session *s, const char *where, int status, struct lade_error *error)
{
  if (!error || (status != -EPIPE && status != -ETIMEDOUT))
    return status;
  const struct lade_error why = *error;
  return lade_error_set(error, status, "%s step %lld: %s", where, (long long)s->state.step, why.text);
}

int session_own(lade_session *s, int status, struct lade_error *error)
{
  if (!status || !error || lade_comm_has_failed(status) || !s->group.world || s->group.layout.mesh.world == 1)
    return status;
  session_fail(s, status, error); /* the other ranks put this one's number before it themselves */
  const struct lade_error why = *error;
  return lade_error_set(error, status, "rank %d: %.440s", s->group.layout.rank, why.text);
}

int session_fail(lade_session *s, int status, struct lade_error *error)
{
  if (status)
    lade_rank_group_abort(&s->group, error && *error->text ? error->text : strerror(-status));
  return status;
}

uint64_t session_durable_slot(const lade_session *s)
{
  return s->params.is_durable ? lade_state_store_bytes(s->graph, lade_rank_group_layout(&s->group)) : 0;
}

uint64_t session_durable_extra(const lade_session *s)
{
  return s->params.is_durable ? lade_durable_extra_bytes(session_durable_slot(s)) : 0;
}

uint64_t session_host_bytes(const lade_session *s)
{
  const uint64_t planned = s->plan ? s->plan->peak_bytes[LADE_HOST] : 0;
  return s->executor ? LADE_MAX(planned, lade_executor_host_bytes(s->executor)) : planned;
}

struct lade_store_params session_store_params(const lade_session *s)
{
  const struct lade_machine_store *drive = &s->cost.machine.store;
  return (struct lade_store_params){.struct_size = sizeof(struct lade_store_params), .dir = s->params.store,
                                    .allow_tmpfs = s->params.allow_tmpfs, .faults = s->params.faults,
                                    .piece_bytes = (uint32_t)drive->piece_bytes, .depth = drive->n_pieces};
}

struct lade_probe_params session_cache_params(const lade_session *s, const struct lade_probe_gpu *gpu)
{
  return (struct lade_probe_params){.struct_size = sizeof(struct lade_probe_params), .kernels = &s->host_kernels,
                                    .gpu = s->params.is_gpu ? gpu : NULL, .pool = s->pool};
}

int session_prices_make(lade_session *s, struct lade_error *error)
{
  const double copy_cores = s->prices.copy_cores;
  struct lade_prices prices;
  int status = lade_cost_prices(&s->cost, s->graph, &prices);
  if (status) {
    lade_error_set(error, status, "no memory for prices");
  } else {
    lade_prices_finish(&s->prices);
    s->prices = prices;
    s->prices.copy_cores = copy_cores;
    s->has_prices = true;
  }
  return lade_rank_group_vote(&s->group, status, error);
}
