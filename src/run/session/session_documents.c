/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Masks of documents: the first key that each token may see, from the tokens of its row.
 *
 * A separator ends a document and belongs to it, as in Megatron-LM's reset of attention masks and in nanoGPT's files.
 * The token after it begins the next document and sees no earlier key. Documents that cross the end of a row are cut,
 * as without masks. Positions continue over documents: rotary ones are relative, so each document has the numbers that
 * it has alone, but learned ones differ. The loss of a separator, whose target begins the next document, counts.
 *
 * Every rank derives first keys from the whole rows that it has read, so stages without an embedding have them too.
 */
#include <errno.h>

#include <xxhash.h>

#include "run/session/session_internal.h"

int session_documents_open(lade_session *s, struct lade_error *error)
{
  const struct lade_session_params *p = &s->params;
  struct lade_data_info info = {.separator = -1};
  s->separator = -1;
  if (!p->mask_documents)
    return 0;
  if (s->data)
    lade_data_get_info(s->data, &info);
  const int64_t separator = p->separator >= 0 ? p->separator : info.separator;
  const bool is_run = !p->is_plan_only && !p->is_dry;
  if (separator < 0 && is_run)
    return lade_error_set(error, -EINVAL, "--mask-documents needs --separator, the token that ends a document: the "
                          "data names none");
  if (separator >= s->model.vocabulary)
    return lade_error_set(error, -EINVAL, "--separator %lld is outside of the vocabulary of %lld",
                          (long long)separator, (long long)s->model.vocabulary);
  s->separator = separator;
  return 0;
}

void session_documents_fill(const lade_session *s, const struct lade_batch *batch, int32_t *ret_first_keys)
{
  for (int64_t row = 0; row < batch->n_rows; row++) {
    const int32_t *tokens = batch->tokens + row * batch->seq;
    int32_t *first_keys = ret_first_keys + row * batch->seq, first = 0;
    for (int64_t i = 0; i < batch->seq; i++) {
      first_keys[i] = first;
      first = tokens[i] == s->separator ? (int32_t)i + 1 : first;
    }
  }
}

uint64_t session_documents_key(const lade_session *s, uint64_t key)
{
  return s->params.mask_documents ? XXH3_64bits_withSeed(&s->separator, sizeof(s->separator), key) : key;
}
