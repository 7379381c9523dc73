/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Several ranks, one run: what they must agree on before step 0.
 *
 * Asked for the same? The first rank's options, model and data go to all, and who differs says how and ends the job:
 * a rank with another learning rate or another file would train a model of its own, and nothing later would show it.
 *
 * Measured the same? Plans follow from prices and from what a machine has left. Ranks that share a collective must
 * have the same plan, so the first rank measures, on a machine where the others wait, and its figures go to all; of
 * what is left everybody takes the least.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "run/session_internal.h"

/* What is compared. Members that nobody sets are 0 at all ranks. */
struct request {
  struct lade_checkpoint_run run;
  int64_t layers, heads, key_heads, width, hidden, vocabulary;
  int64_t step;
  uint64_t seed, numerics_key;
};

static struct request request_make(const lade_session *s)
{
  const struct lade_model *m = &s->model;
  struct request request;
  memset(&request, 0, sizeof(request)); /* padding too: it is sent */
  request.run = session_run(s);
  request.layers = m->layers;
  request.heads = m->heads;
  request.key_heads = m->key_heads;
  request.width = m->width;
  request.hidden = m->hidden;
  request.vocabulary = m->vocabulary;
  request.step = s->state.step;
  request.seed = s->params.seed;
  request.numerics_key = lade_kernels_key(&s->kernels);
  return request;
}

static bool model_is_same(const struct request *a, const struct request *b)
{
  return a->layers == b->layers && a->heads == b->heads && a->key_heads == b->key_heads && a->width == b->width &&
         a->hidden == b->hidden && a->vocabulary == b->vocabulary;
}

int session_agree_run(lade_session *s, struct lade_error *error)
{
  const struct request own = request_make(s);
  struct request first = own;
  char differences[300] = "";
  int status = lade_peers_broadcast(&s->peers, &first, sizeof(first), error);
  if (status)
    return status;
  if (!model_is_same(&own, &first))
    snprintf(differences, sizeof(differences), "another model");
  else if (own.step != first.step)
    snprintf(differences, sizeof(differences), "a checkpoint of step %lld instead of %lld", (long long)own.step,
             (long long)first.step);
  else if (own.seed != first.seed)
    snprintf(differences, sizeof(differences), "--seed %llu instead of %llu", (unsigned long long)own.seed,
             (unsigned long long)first.seed);
  else if (own.numerics_key != first.numerics_key)
    snprintf(differences, sizeof(differences), "a processor with other kernels (LADE_CPU can hold all to one kind)");
  else if (!lade_checkpoint_run_compare(&first.run, &own.run, differences, sizeof(differences)))
    return 0;
  return lade_error_set(error, -EINVAL, "rank %d does not do what the first rank does: %s; all ranks take the same "
                        "options and files", s->peers.layout.rank, differences);
}

/* The first rank's @n measured ops. */
static int ops_agree(lade_session *s, int64_t n, struct lade_error *error)
{
  struct lade_cost *cost = &s->cost;
  struct lade_cost_op *ops = calloc((size_t)n, sizeof(*ops));
  if (!ops)
    return lade_error_set(error, -ENOMEM, "no memory for %lld prices", (long long)n);
  if (cost->n_ops) /* elsewhere there are none yet */
    memcpy(ops, cost->ops, (size_t)cost->n_ops * sizeof(*ops));
  int status = lade_peers_broadcast(&s->peers, ops, (uint64_t)n * sizeof(*ops), error);
  for (int64_t i = 0; i < n && !status; i++) {
    if (lade_cost_set(cost, ops[i].key, ops[i].ns))
      status = lade_error_set(error, -ENOMEM, "no memory for prices");
  }
  free(ops);
  return status;
}

int session_agree_cost(lade_session *s, struct lade_error *error)
{
  struct lade_cost *cost = &s->cost;
  struct {
    struct lade_machine machine;
    double sum_squares_bytes_per_s, matmul_flops_per_s;
    int64_t n_ops;
  } first;
  if (!s->peers.world)
    return 0;
  memset(&first, 0, sizeof(first));
  first.machine = cost->machine;
  first.sum_squares_bytes_per_s = cost->sum_squares_bytes_per_s;
  first.matmul_flops_per_s = s->matmul_flops_per_s;
  first.n_ops = cost->n_ops;
  int status = lade_peers_broadcast(&s->peers, &first, sizeof(first), error);
  if (status)
    return status;
  cost->machine = first.machine;
  cost->sum_squares_bytes_per_s = first.sum_squares_bytes_per_s;
  s->matmul_flops_per_s = first.matmul_flops_per_s;
  return first.n_ops ? ops_agree(s, first.n_ops, error) : 0;
}

int session_agree_least(lade_session *s, uint64_t *bytes, struct lade_error *error)
{
  int64_t most = 0;
  const int64_t own = (int64_t)LADE_MIN(*bytes, (uint64_t)INT64_MAX);
  int status = lade_peers_max(&s->peers, -own, &most, error);
  if (!status)
    *bytes = (uint64_t)-most;
  return status;
}

int session_place(const lade_session *s, const char *where, int status, struct lade_error *error)
{
  if (!error || (status != -EPIPE && status != -ETIMEDOUT))
    return status;
  const struct lade_error why = *error;
  return lade_error_set(error, status, "%s step %lld: %s", where, (long long)s->state.step, why.text);
}

int session_fail(lade_session *s, int status, struct lade_error *error)
{
  if (status)
    lade_peers_abort(&s->peers, error && *error->text ? error->text : strerror(-status));
  return status;
}
