/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The digest of a model's masters, the same in every layout.
 *
 * Each rank tallies the masters that it would save, and separately all that it holds, replicas and copies included.
 * Added up over the ranks, the first gives a sum for each tensor, and the digest is computed over these sums. The
 * second must be that sum times the number of holders; otherwise holders differ.
 */
#include <errno.h>
#include <stdlib.h>

#include <xxhash.h>

#include "run/checkpoint/checkpoint_internal.h"

struct digest {
  const struct lade_values *values;
  struct checkpoint_table table; /* its tallies: of the masters that this rank saves */
  struct tensor_tally *all;      /* of the masters that this rank holds; one per tensor */
  struct tensor_tally **held, **written; /* one per slice of this rank */
  struct chunk_buffer chunk;
};

static int digest_begin(struct digest *digest, struct lade_error *error)
{
  const struct lade_values *values = digest->values;
  const size_t n_own = (size_t)slices_count(values->graph);
  int rc = table_init(&digest->table, values, NULL, error);
  if (rc == 0)
    rc = chunk_init(&digest->chunk, values, 1, NULL, error);
  if (rc < 0)
    return rc;
  digest->all = calloc((size_t)digest->table.n_slices, sizeof(*digest->all));
  digest->held = calloc(2 * n_own, sizeof(*digest->held));
  if (!digest->all || !digest->held)
    return lade_error_set(error, -ENOMEM, "model %s: out of memory for its digest", values->graph->model.name);
  digest->written = digest->held + n_own;
  for (size_t i = 0; i < n_own; i++) {
    digest->held[i] = &digest->all[digest->table.of_slice[i]];
    digest->written[i] = &digest->table.tallies[digest->table.of_slice[i]];
  }
  return 0;
}

/* Check that all holders of a tensor hold the same bits. */
static int holders_compare(const struct digest *digest, struct lade_error *error)
{
  for (int i = 0; i < digest->table.n_slices; i++) {
    const struct table_tensor *tensor = &digest->table.tensors[i];
    const struct tensor_tally *all = &digest->all[i], *one = &digest->table.tallies[i];
    LADE_ASSERT(one->n_elements == (uint64_t)tensor->n_elements);
    if (all->sum != one->sum * (all->n_elements / one->n_elements))
      return lade_error_set(error, -EBADMSG, "ranks hold other values of tensor %s than each other: replicas must be "
                            "equal to the bit", tensor->slice->name);
  }
  return 0;
}

static int digest_make(struct digest *digest, uint64_t *ret_digest, struct lade_error *error)
{
  struct lade_rank_group *group = digest->values->group;
  const size_t n = (size_t)digest->table.n_slices;
  int rc = slices_tally(&digest->chunk, digest->held, digest->written, error);
  if (rc == 0)
    rc = table_sum(&digest->table, group, error);
  if (rc == 0)
    rc = lade_rank_group_sum(group, (uint64_t *)digest->all, 2 * n, error);
  if (rc == 0)
    rc = holders_compare(digest, error);
  if (rc == 0)
    *ret_digest = XXH3_64bits(digest->table.tallies, n * sizeof(*digest->table.tallies));
  return rc;
}

int lade_checkpoint_digest(const struct lade_values *values, uint64_t *ret_digest, struct lade_error *error)
{
  struct digest digest = {.values = values};
  int rc = digest_begin(&digest, error);
  if (rc == 0)
    rc = digest_make(&digest, ret_digest, error);
  chunk_finish(&digest.chunk);
  free(digest.held);
  free(digest.all);
  table_finish(&digest.table);
  return rc;
}
