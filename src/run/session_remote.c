/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Values that ranks hold in shards, whole at the first rank: what saves and digests read.
 *
 * The first rank runs the code that saves as if it held everything. Where that code gets a window of a value, the
 * request goes to all ranks, which answer with the part of the window that they hold; the first puts the parts
 * together. The others answer until they are told that it is over. So there is one code that saves, and what it writes
 * has logical tensors and no trace of the layout. Windows are gathered from all ranks, replicas of a shard included:
 * saves are rare, and one exchange for all layouts is simpler than the fewest bytes.
 *
 * Loading needs none of this: every rank reads the checkpoint and keeps what it holds.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "run/session_internal.h"

/* A window of a value; tensor -1: that was all. */
struct request {
  int64_t tensor;
  uint64_t offset, bytes;
};

/* One rank's part of it: [first, first + n) of the window, then the window, of which the rest is not looked at. */
struct answer {
  uint64_t first, n;
  unsigned char window[LADE_VALUES_WINDOW_BYTES];
};

struct remote {
  lade_session *session;
  struct answer own, *all; /* all: one of each rank */
};

/* What this rank holds of @request. */
static int answer_make(lade_session *s, const struct request *request, struct answer *ret_answer,
                       struct lade_error *error)
{
  uint64_t held, held_bytes, end = request->offset + request->bytes;
  lade_executor_share(s->executor, (int)request->tensor, &held, &held_bytes);
  const uint64_t first = LADE_MAX(held, request->offset), last = LADE_MIN(held + held_bytes, end);
  ret_answer->first = first - LADE_MIN(first, request->offset);
  ret_answer->n = first < last ? last - first : 0;
  return lade_executor_get(s->executor, (int)request->tensor, request->offset, ret_answer->window, request->bytes,
                           error);
}

/* One exchange; @remote->all is whole at every rank. */
static int exchange(struct remote *remote, struct request *request, struct lade_error *error)
{
  struct lade_peers *peers = &remote->session->peers;
  int status = lade_peers_broadcast(peers, request, sizeof(*request), error);
  if (status || request->tensor < 0)
    return status;
  status = answer_make(remote->session, request, &remote->own, error);
  return status ? status : lade_peers_gather(peers, &remote->own, sizeof(remote->own), remote->all, error);
}

static int remote_get(void *user, int tensor, uint64_t offset, void *dst, uint64_t bytes, struct lade_error *error)
{
  struct remote *remote = user;
  struct request request = {tensor, offset, bytes};
  const int n_ranks = remote->session->peers.layout.mesh.world;
  int status = exchange(remote, &request, error);
  for (int rank = 0; rank < n_ranks && !status; rank++) {
    const struct answer *answer = &remote->all[rank];
    LADE_ASSERT(answer->n == 0 || answer->first + answer->n <= bytes);
    memcpy((char *)dst + answer->first, answer->window + answer->first, answer->n);
  }
  return status;
}

static int remote_set(void *user, int tensor, uint64_t offset, const void *src, uint64_t bytes,
                      struct lade_error *error)
{
  return lade_error_set(error, -EINVAL, "values of other ranks are read only");
}

/* Answer until the first rank has all. */
static int answers_serve(struct remote *remote, struct lade_error *error)
{
  struct request request = {0};
  int status = 0;
  while (!status && request.tensor >= 0)
    status = exchange(remote, &request, error);
  return status;
}

static int whole_use(struct remote *remote, session_use_fn *use, void *user, struct lade_error *error)
{
  lade_session *s = remote->session;
  if (!lade_peers_is_first(&s->peers))
    return answers_serve(remote, error);
  const struct lade_values values = {.graph = s->graph, .get = remote_get, .set = remote_set, .user = remote};
  int status = use(user, &values, error);
  struct request over = {.tensor = -1};
  return status ? status : exchange(remote, &over, error); /* a failure is told by session_fail, with its words */
}

int session_values_use(lade_session *s, session_use_fn *use, void *user, struct lade_error *error)
{
  if (lade_shard_count(lade_peers_layout(&s->peers)) == 1) {
    const struct lade_values values = lade_session_values(s);
    return lade_peers_is_first(&s->peers) ? use(user, &values, error) : 0;
  }
  struct remote *remote = malloc(sizeof(*remote));
  struct answer *all = malloc((size_t)s->peers.layout.mesh.world * sizeof(*all));
  int status = -ENOMEM;
  if (remote && all) {
    *remote = (struct remote){.session = s, .all = all};
    status = whole_use(remote, use, user, error);
  } else {
    lade_error_set(error, status, "no memory to put a value together from %d ranks", s->peers.layout.mesh.world);
  }
  free(all);
  free(remote);
  return status;
}
