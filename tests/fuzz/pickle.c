/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as a pickle: refused with one line, or every value can be read, and walking it ends. */
#include <errno.h>
#include <string.h>

#include "alloc/pickle.h"
#include "tests/fuzz/fuzz_file.h"

#define DEPTH 64

struct step {
  int value, cursor;
};

/* Walk lists in lists, as deep as DEPTH, until all values were visited or the reader stops the walk. */
static void lists_walk(lade_pickle *pickle)
{
  struct step steps[DEPTH] = {{lade_pickle_root(pickle), LADE_PICKLE_START}};
  for (int depth = 0; depth >= 0;) {
    uint64_t integer;
    int item, found, code = lade_pickle_next(pickle, steps[depth].value, &steps[depth].cursor, &item);
    if (code == -ELOOP)
      return;
    if (code) {
      depth--;
      continue;
    }
    if (lade_pickle_kind(pickle, item) >= LADE_PICKLE_N_KINDS)
      abort();
    if (!lade_pickle_get_integer(pickle, item, &integer) && lade_pickle_kind(pickle, item) != LADE_PICKLE_INTEGER)
      abort();
    if (lade_pickle_is_text(pickle, item, "alloc") && lade_pickle_kind(pickle, item) != LADE_PICKLE_TEXT)
      abort();
    code = lade_pickle_find(pickle, item, "blocks", &found);
    if (code == -ELOOP)
      return;
    if (depth + 1 < DEPTH)
      steps[++depth] = (struct step){code ? item : found, LADE_PICKLE_START};
  }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
  struct lade_error error = {0};
  lade_pickle *pickle = NULL;
  int code = lade_pickle_read("input", data, size, &error, &pickle);
  if (code) {
    if (code != -EBADMSG || pickle)
      abort();
    fuzz_error_check(&error);
    return 0;
  }
  lists_walk(pickle);
  lade_pickle_destroy(pickle);
  return 0;
}
