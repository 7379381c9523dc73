/* SPDX-License-Identifier: Apache-2.0 */
/* What the stand-in's streams (streams.c) and its captures and graphs (graphs.c) share. */
#ifndef LADE_TEST_STANDIN_STREAM_INTERNAL_H
#define LADE_TEST_STANDIN_STREAM_INTERNAL_H

#include "standin_internal.h"

struct CUevent_st {
  cuda_context context;
  int n_refs; /* the owner and every piece of work that names it */
  uint64_t n_recorded, n_happened;
  int64_t ns;       /* when it happened last */
  bool is_captured; /* it was recorded last in a capture, and never happens */
};

enum piece_kind {
  PIECE_COPY,
  PIECE_SET,
  PIECE_HOST,
  PIECE_CALL,
  PIECE_RECORD,
  PIECE_WAIT_EVENT,
  PIECE_WAIT_WORD,
  PIECE_WRITE_WORD,
  PIECE_GRAPH,
  PIECE_TAKE, /* of a graph: memory, which has an address here and no bytes */
  PIECE_GIVE,
  PIECE_STOP
};

struct piece {
  enum piece_kind kind;
  uint64_t dst, src, bytes;
  unsigned char value;
  cuda_host_fn *fn;
  void *args;
  cuda_event event;
  uint64_t count; /* of the event, or of the word */
  struct nodes *graph;
  uint64_t place; /* of those that share a channel, from 1; 0: it has a channel of its own */
  struct piece *next;
};

/* What was captured, in its order; of a graph, of what was instantiated from it, and of each run under way. */
struct nodes {
  int n_refs;
  struct piece *first, **last;
};

/* A capture under way. */
struct capture {
  struct nodes *nodes; /* NULL: none */
  pthread_t thread;    /* that began it */
  bool is_invalid;     /* something was called that it does not allow: it has no graph */
};

struct CUstream_st {
  cuda_context context;
  pthread_t thread;
  struct piece *first, **last;
  uint64_t n_put, n_run;
  struct capture capture;
  cuda_stream next; /* of all */
};

void standin_piece_put(cuda_stream stream, const struct piece *piece);
void standin_piece_free(struct piece *piece); /* lock held */

/* Lock held. */
void standin_nodes_add(struct nodes *nodes, struct piece *piece);
void standin_nodes_unref(struct nodes *nodes);

/*
 * What work on @stream answers on account of a capture: 0 where there is none, or one that may have such work
 * (@is_allowed). Work that is not allowed makes the capture invalid.
 */
cuda_result standin_capture_check(cuda_stream stream, bool is_allowed);
/* The same of a wait: a capture knows no event from outside, and the outside none of a capture. */
cuda_result standin_capture_wait(cuda_stream stream, cuda_event event);

#endif
