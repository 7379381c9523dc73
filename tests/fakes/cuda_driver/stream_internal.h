/* SPDX-License-Identifier: Apache-2.0 */
/* Shared declarations of the fake's streams (streams.c) and its captures and graphs (graphs.c). */
#ifndef LADE_TEST_FAKE_DRIVER_STREAM_INTERNAL_H
#define LADE_TEST_FAKE_DRIVER_STREAM_INTERNAL_H

#include "fake_driver_internal.h"

struct CUevent_st {
  cuda_context context;
  int n_refs; /* the owner and every piece of work that names it */
  uint64_t n_recorded, n_happened;
  bool is_blocking;
  int64_t ns;       /* time of its last occurrence */
  bool is_captured; /* its last record was in a capture, and never happens */
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
  uint64_t place; /* number among the pieces that share a channel, from 1; 0: it has a channel of its own */
  struct piece *next;
};

/* Captured work in order; shared by a graph, its instances, and each run in flight. */
struct nodes {
  int n_refs;
  struct piece *first, **last;
};

/* A capture in progress. */
struct capture {
  struct nodes *nodes; /* NULL: none */
  pthread_t thread;    /* thread that began it */
  bool is_invalid;     /* a forbidden call was made: the capture gives no graph */
};

struct CUstream_st {
  cuda_context context;
  struct channel *channel; /* NULL: one of its own */
  pthread_t thread;
  struct piece *first, **last;
  uint64_t n_put, n_run;
  struct capture capture;
  cuda_stream next; /* of all captures */
};

void fake_piece_put(cuda_stream stream, const struct piece *piece);
void fake_piece_free(struct piece *piece); /* lock held */

/* Lock held. */
void fake_nodes_add(struct nodes *nodes, struct piece *piece);
void fake_nodes_unref(struct nodes *nodes);

/*
 * Return the code of work on @stream because of a capture: 0 without a capture, or if the capture may contain such work
 * (@is_allowed). Forbidden work makes the capture invalid.
 */
cuda_result fake_capture_check(cuda_stream stream, bool is_allowed);
/* The same for a wait: a capture cannot wait for an event from outside, nor the outside for one of a capture. */
cuda_result fake_capture_wait(cuda_stream stream, cuda_event event);

#endif
