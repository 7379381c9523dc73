/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The call sites of a snapshot's blocks, and the holders of memory at the peak, by owner.
 *
 * PyTorch writes a block's stack as frames, innermost first, of C++ and of Python. The call site is the innermost frame
 * of the user's own Python: not in a file of torch or of installed packages. Without one it is the innermost frame of
 * Python, and then the innermost of all. Lade's own snapshots have one frame, whose name is the owner's tag.
 *
 * The file is untrusted: text becomes printable ASCII of bounded length. The frames of a block and the sites of a trace
 * are bounded. A walk past the pickle's limit leaves the rest unknown. Blocks that are live at the peak are read first,
 * so these limits reach them last.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/pickle.h"
#include "alloc/trace.h"
#include "alloc/trace/trace_internal.h"

#define SITE_BYTES 96
#define SITES_MAX 4096    /* later ones count as unknown */
#define N_SLOTS 8192      /* a power of two, twice SITES_MAX */
#define FRAMES_MAX 256    /* of a block */

/* Site numbers by the hash of their text; 0: an empty slot. */
struct site_index {
  int slots[N_SLOTS];
};

static uint64_t text_hash(const char *text)
{
  uint64_t hash = UINT64_C(0xcbf29ce484222325);
  for (; *text; text++)
    hash = (hash ^ (unsigned char)*text) * UINT64_C(0x100000001b3);
  return hash ^ hash >> 29;
}

/* Return the number of the site @text, which is added at its first use; 0 if there are too many, or -ENOMEM. */
static int site_number(struct lade_trace *trace, struct site_index *index, const char *text)
{
  size_t i = text_hash(text) & (N_SLOTS - 1);
  for (; index->slots[i]; i = (i + 1) & (N_SLOTS - 1))
    if (strcmp(trace->sites.items[index->slots[i] - 1], text) == 0)
      return index->slots[i];
  if (trace->sites.n == SITES_MAX)
    return 0;
  char *own = strdup(text);
  if (!own || !LADE_PUSH(&trace->sites, own)) {
    free(own);
    return -ENOMEM;
  }
  return index->slots[i] = trace->sites.n;
}

/* Rank a frame's file: 2 for the user's own Python, 1 for other Python, 0 for the rest. */
static int file_rank(const char *file)
{
  size_t n = strlen(file);
  if (n < 3 || strcmp(file + n - 3, ".py") != 0)
    return 0;
  return strstr(file, "/torch/") || strstr(file, "site-packages/") || strstr(file, "dist-packages/") ? 1 : 2;
}

/* Write "folder/file.py:12 name" from the frame's fields. */
static void site_format(lade_pickle *pickle, int frame, const char *file, char text[SITE_BYTES])
{
  char name[40] = "";
  uint64_t line = 0;
  int field = 0;
  const char *slash = strrchr(file, '/');
  while (slash && slash > file && slash[-1] != '/') /* keep the last folder */
    slash--;
  if (!lade_pickle_find(pickle, frame, "line", &field))
    lade_pickle_get_integer(pickle, field, &line);
  if (!lade_pickle_find(pickle, frame, "name", &field))
    lade_pickle_get_text(pickle, field, name, sizeof(name));
  snprintf(text, SITE_BYTES, "%.*s:%" PRIu64 "%s%s", SITE_BYTES - 64, slash ? slash : file, line, name[0] ? " " : "",
           name);
}

/* Write the call site of the entry @value into @text. False if it has none. */
static bool site_find(lade_pickle *pickle, int value, char text[SITE_BYTES])
{
  int frames = 0, frame = 0, field = 0, cursor = LADE_PICKLE_START, best = -1;
  if (lade_pickle_find(pickle, value, "frames", &frames))
    return false;
  for (int i = 0; i < FRAMES_MAX && best < 2 && !lade_pickle_next(pickle, frames, &cursor, &frame); i++) {
    char file[512];
    if (lade_pickle_kind(pickle, frame) != LADE_PICKLE_DICT || lade_pickle_find(pickle, frame, "filename", &field) ||
        lade_pickle_get_text(pickle, field, file, sizeof(file)) || file_rank(file) <= best)
      continue;
    best = file_rank(file);
    site_format(pickle, frame, file, text);
  }
  return best >= 0;
}

static bool is_at_peak(const struct lade_trace *trace, const struct lade_trace_block *block)
{
  return block->first <= trace->peak_event && block->last > trace->peak_event;
}

int lade_trace_sites_read(struct lade_trace *trace, lade_pickle *pickle, const int *values)
{
  struct site_index *index = calloc(1, sizeof(*index));
  int number = index ? 0 : -ENOMEM;
  for (int pass = 0; pass < 2; pass++) {
    for (int i = 0; i < trace->blocks.n && number >= 0; i++) {
      struct lade_trace_block *block = &trace->blocks.items[i];
      char text[SITE_BYTES];
      if (is_at_peak(trace, block) != (pass == 0) || values[i] < 0 || !site_find(pickle, values[i], text))
        continue;
      number = site_number(trace, index, text);
      block->site = LADE_MAX(number, 0);
    }
  }
  free(index);
  return LADE_MIN(number, 0);
}

static int holder_compare(const void *a, const void *b)
{
  const struct lade_trace_holder *x = a, *y = b;
  if (x->bytes != y->bytes)
    return x->bytes > y->bytes ? -1 : 1;
  return x->site && y->site ? strcmp(x->site, y->site) : !x->site - !y->site;
}

int lade_trace_holders(const struct lade_trace *trace, struct lade_trace_holder **ret_holders)
{
  if (!trace->sites.n)
    return 0;
  struct lade_trace_holder *holders = calloc((size_t)trace->sites.n + 1, sizeof(*holders));
  int n = 0;
  if (!holders)
    return -ENOMEM;
  for (int i = 0; i < trace->blocks.n; i++) {
    const struct lade_trace_block *block = &trace->blocks.items[i];
    if (!is_at_peak(trace, block))
      continue;
    holders[block->site].n_blocks++;
    holders[block->site].bytes += block->bytes;
  }
  for (int i = 0; i <= trace->sites.n; i++) {
    holders[i].site = i ? trace->sites.items[i - 1] : NULL;
    if (holders[i].n_blocks)
      holders[n++] = holders[i];
  }
  qsort(holders, (size_t)n, sizeof(*holders), holder_compare);
  *ret_holders = holders;
  return n;
}
