/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The fake's captures and graphs. Work submitted to a captured stream does not run then. It runs each time that the
 * graph is launched, in the order of the capture, with the same arguments.
 *
 * It is as strict as the driver, and gives its results. In a thread that captures, a call that waits, takes memory or
 * loads code is refused and makes the capture invalid; if a capture is global, in every thread. An invalid capture ends
 * without a graph. A capture ends in the thread that began it. An event recorded in a capture cannot be waited for
 * outside, nor one from outside within. It is stricter than the driver. A capture has one stream, which no other can
 * join, and stream words cannot be waited for or written in it.
 */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "preload/hooks.h"
#include "stream_internal.h"

EXPORT cuda_result cuStreamBeginCapture_v2(cuda_stream stream, int mode);
EXPORT cuda_result cuStreamEndCapture(cuda_stream stream, cuda_graph *ret_graph);
EXPORT cuda_result cuThreadExchangeStreamCaptureMode(int *mode);
EXPORT cuda_result cuStreamIsCapturing(cuda_stream stream, int *ret_status);
EXPORT cuda_result cuStreamIsCapturing_ptsz(cuda_stream stream, int *ret_status);
EXPORT cuda_result cuGraphGetNodes(cuda_graph graph, cuda_node *ret_nodes, size_t *n_nodes);
EXPORT cuda_result cuGraphNodeGetType(cuda_node node, int *ret_type);
EXPORT cuda_result cuGraphMemAllocNodeGetParams(cuda_node node, struct cuda_graph_memory *ret_memory);
EXPORT cuda_result cuGraphUpload(cuda_graph_exec exec, cuda_stream stream);
EXPORT cuda_result cuGraphLaunch(cuda_graph_exec exec, cuda_stream stream);
EXPORT cuda_result cuGraphDestroy(cuda_graph graph);

enum { MODE_GLOBAL, MODE_THREAD_LOCAL, MODE_RELAXED };

struct CUgraph_st {
  struct nodes *nodes;
};

struct CUgraphExec_st {
  struct nodes *nodes;
  bool is_uploaded;
};

static _Thread_local cuda_stream capturing_here; /* unless the capture is relaxed */
static _Thread_local int thread_mode;            /* MODE_*: the captures that restrict this thread */
static cuda_stream capturing_all;                /* the global capture; guarded by the lock */

/* ---- contents of captures ---- */

void fake_nodes_add(struct nodes *nodes, struct piece *piece)
{
  *nodes->last = piece;
  nodes->last = &piece->next;
}

void fake_nodes_unref(struct nodes *nodes)
{
  if (--nodes->n_refs > 0)
    return;
  for (struct piece *piece = nodes->first, *next; piece; piece = next) {
    next = piece->next;
    fake_piece_free(piece);
  }
  free(nodes);
}

static struct nodes *nodes_make(void)
{
  struct nodes *nodes = calloc(1, sizeof(*nodes));
  LADE_ASSERT(nodes);
  nodes->n_refs = 1;
  nodes->last = &nodes->first;
  return nodes;
}

static struct nodes *nodes_ref(struct nodes *nodes)
{
  pthread_mutex_lock(&fake.lock);
  nodes->n_refs++;
  pthread_mutex_unlock(&fake.lock);
  return nodes;
}

static void nodes_unref(struct nodes *nodes)
{
  pthread_mutex_lock(&fake.lock);
  fake_nodes_unref(nodes);
  pthread_mutex_unlock(&fake.lock);
}

/* ---- calls allowed during captures ---- */

bool fake_is_capturing(cuda_stream stream)
{
  return (uintptr_t)stream > 1 && stream->capture.nodes;
}

cuda_result fake_capture_check(cuda_stream stream, bool is_allowed)
{
  if (!fake_is_capturing(stream))
    return 0;
  if (stream->capture.is_invalid)
    return CUDA_CAPTURE_INVALIDATED;
  stream->capture.is_invalid = !is_allowed;
  return is_allowed ? 0 : CUDA_CAPTURE_UNSUPPORTED;
}

cuda_result fake_capture_wait(cuda_stream stream, cuda_event event)
{
  cuda_result result = fake_capture_check(stream, true);
  if (result || event->is_captured == fake_is_capturing(stream))
    return result;
  if (event->is_captured)
    return CUDA_CAPTURE_UNSUPPORTED;
  stream->capture.is_invalid = true;
  return CUDA_CAPTURE_ISOLATION;
}

bool fake_is_captured(void)
{
  return capturing_here;
}

cuda_result fake_capture_refuses(const char *function)
{
  static const char *const unsafe[] = {
      "cuEventQuery",   "cuEventSynchronize", "cuMemAddressFree",    "cuMemAddressReserve", "cuMemAlloc",
      "cuMemCreate",    "cuMemFree",          "cuMemFreeHost",       "cuMemHostAlloc",      "cuMemHostRegister",
      "cuMemHostUnregister", "cuMemMap",      "cuMemRelease",        "cuMemSetAccess",      "cuMemUnmap",
      "cuMemcpy",       "cuModuleLoad",       "cuModuleGetFunction", "cuModuleUnload",      "cuStreamSynchronize"};
  cuda_stream all = thread_mode == MODE_GLOBAL ? capturing_all : NULL;
  cuda_stream stream = capturing_here ? capturing_here : all;
  if (!stream || thread_mode == MODE_RELAXED)
    return 0;
  for (size_t i = 0; i < LADE_COUNT(unsafe); i++) {
    if (strcmp(function, unsafe[i]) == 0) {
      stream->capture.is_invalid = true;
      return CUDA_CAPTURE_UNSUPPORTED;
    }
  }
  return 0;
}

/* ---- memory of graphs ---- */

#define MEMORY_FIRST ((uint64_t)1 << 46) /* first address of it; nothing else is there */
#define MEMORY_GRANULE ((uint64_t)2 << 20)

/* Return the last node of the capture that takes or releases @address. */
static const struct piece *memory_last(const struct nodes *nodes, uint64_t address)
{
  const struct piece *last = NULL;
  for (const struct piece *piece = nodes->first; piece; piece = piece->next)
    if ((piece->kind == PIECE_TAKE || piece->kind == PIECE_GIVE) && piece->dst == address)
      last = piece;
  return last;
}

/* Return an address where memory of that size was and has been released; 0: none. */
static uint64_t memory_again(const struct nodes *nodes, int device, uint64_t bytes)
{
  for (const struct piece *piece = nodes->first; piece; piece = piece->next)
    if (piece->kind == PIECE_TAKE && piece->bytes == bytes && piece->value == device &&
        memory_last(nodes, piece->dst)->kind == PIECE_GIVE)
      return piece->dst;
  return 0;
}

uint64_t fake_capture_take(cuda_stream stream, int device, uint64_t bytes)
{
  static _Atomic uint64_t next = MEMORY_FIRST;
  uint64_t address = memory_again(stream->capture.nodes, device, bytes);
  if (!address)
    address = atomic_fetch_add(&next, lade_align_up(bytes, MEMORY_GRANULE));
  fake_piece_put(stream, &(struct piece){.kind = PIECE_TAKE, .dst = address, .bytes = bytes,
                                            .value = (unsigned char)device});
  return address;
}

void fake_capture_give(cuda_stream stream, uint64_t address)
{
  fake_piece_put(stream, &(struct piece){.kind = PIECE_GIVE, .dst = address});
}

/* Return the nodes of a graph; a node's handle is its piece of work. */
cuda_result cuGraphGetNodes(cuda_graph graph, cuda_node *ret_nodes, size_t *n_nodes)
{
  size_t n = 0;
  for (struct piece *piece = graph->nodes->first; piece; piece = piece->next, n++)
    if (ret_nodes && n < *n_nodes)
      ret_nodes[n] = (cuda_node)piece;
  *n_nodes = n;
  return fake_enter("cuGraphGetNodes", false);
}

cuda_result cuGraphNodeGetType(cuda_node node, int *ret_type)
{
  const enum piece_kind kind = ((const struct piece *)node)->kind;
  *ret_type = kind == PIECE_TAKE ? CUDA_NODE_MEMORY : kind == PIECE_GIVE ? CUDA_NODE_MEMORY_BACK : 0;
  return fake_enter("cuGraphNodeGetType", false);
}

cuda_result cuGraphMemAllocNodeGetParams(cuda_node node, struct cuda_graph_memory *ret_memory)
{
  const struct piece *piece = (const struct piece *)node;
  *ret_memory = (struct cuda_graph_memory){.pool.location = {CUDA_LOCATION_DEVICE, piece->value},
                                           .bytes = piece->bytes, .at = piece->dst};
  return fake_enter("cuGraphMemAllocNodeGetParams", false);
}

/* ---- captures ---- */

cuda_result cuStreamBeginCapture_v2(cuda_stream stream, int mode)
{
  cuda_result result = fake_enter("cuStreamBeginCapture", true);
  if (result)
    return result;
  if (!stream)
    return CUDA_CAPTURE_UNSUPPORTED;
  if (fake_is_capturing(stream) || capturing_here)
    return CUDA_ILLEGAL_STATE;
  pthread_mutex_lock(&fake.lock);
  stream->capture = (struct capture){.nodes = nodes_make(), .thread = pthread_self()};
  capturing_here = mode == MODE_RELAXED ? NULL : stream;
  capturing_all = mode == MODE_GLOBAL ? stream : capturing_all;
  pthread_mutex_unlock(&fake.lock);
  return 0;
}

/* End the stream's capture. Return its nodes. */
static struct nodes *capture_end(cuda_stream stream)
{
  struct nodes *nodes = stream->capture.nodes;
  pthread_mutex_lock(&fake.lock);
  stream->capture.nodes = NULL;
  capturing_here = capturing_here == stream ? NULL : capturing_here;
  capturing_all = capturing_all == stream ? NULL : capturing_all;
  pthread_mutex_unlock(&fake.lock);
  return nodes;
}

cuda_result cuStreamEndCapture(cuda_stream stream, cuda_graph *ret_graph)
{
  *ret_graph = NULL;
  if (!fake_is_capturing(stream))
    return CUDA_ILLEGAL_STATE;
  if (!pthread_equal(stream->capture.thread, pthread_self()))
    return CUDA_CAPTURE_WRONG_THREAD;
  struct nodes *nodes = capture_end(stream);
  cuda_result result = fake_leave("cuStreamEndCapture");
  if (!result && stream->capture.is_invalid)
    result = CUDA_CAPTURE_INVALIDATED;
  cuda_graph graph = result ? NULL : calloc(1, sizeof(*graph));
  if (!graph) {
    nodes_unref(nodes);
    return result;
  }
  graph->nodes = nodes;
  fake_alive(1);
  *ret_graph = graph;
  return 0;
}

cuda_result cuThreadExchangeStreamCaptureMode(int *mode)
{
  cuda_result result = fake_enter("cuThreadExchangeStreamCaptureMode", true);
  if (result || *mode < MODE_GLOBAL || *mode > MODE_RELAXED)
    return result ? result : CUDA_INVALID_VALUE;
  int before = thread_mode;
  thread_mode = *mode;
  *mode = before;
  return 0;
}

cuda_result cuStreamIsCapturing(cuda_stream stream, int *ret_status)
{
  stream = fake_stream(stream);
  *ret_status = !fake_is_capturing(stream) ? 0 : stream->capture.is_invalid ? 2 : 1;
  return fake_enter("cuStreamIsCapturing", true);
}

cuda_result cuStreamIsCapturing_ptsz(cuda_stream stream, int *ret_status)
{
  return cuStreamIsCapturing(stream, ret_status);
}

/* ---- graphs ---- */

cuda_result cuGraphInstantiateWithFlags(cuda_graph_exec *ret_exec, cuda_graph graph, unsigned long long flags)
{
  cuda_result result = fake_enter("cuGraphInstantiateWithFlags", true);
  if (result || flags)
    return result ? result : CUDA_INVALID_VALUE;
  cuda_graph_exec exec = calloc(1, sizeof(*exec));
  LADE_ASSERT(exec);
  exec->nodes = nodes_ref(graph->nodes);
  fake_alive(1);
  *ret_exec = exec;
  return 0;
}

cuda_result cuGraphInstantiate_v2(cuda_graph_exec *ret_exec, cuda_graph graph, cuda_node *ret_node, char *text,
                                  size_t text_bytes)
{
  return cuGraphInstantiateWithFlags(ret_exec, graph, 0);
}

cuda_result cuGraphInstantiateWithParams(cuda_graph_exec *ret_exec, cuda_graph graph, void *params)
{
  return cuGraphInstantiateWithFlags(ret_exec, graph, 0);
}

cuda_result cuGraphInstantiateWithParams_ptsz(cuda_graph_exec *ret_exec, cuda_graph graph, void *params)
{
  return cuGraphInstantiateWithParams(ret_exec, graph, params);
}

cuda_result cuGraphUpload(cuda_graph_exec exec, cuda_stream stream)
{
  cuda_result result = fake_enter("cuGraphUpload", true);
  if (!result)
    result = fake_capture_check(stream, false);
  exec->is_uploaded = !result;
  return result;
}

/* Launch a graph. Stricter than the driver, whose upload at the first launch may take memory. */
cuda_result cuGraphLaunch(cuda_graph_exec exec, cuda_stream stream)
{
  cuda_result result = fake_enter("cuGraphLaunch", true);
  if (!result)
    result = fake_capture_check(stream, false);
  if (result || !exec->is_uploaded)
    return result ? result : CUDA_INVALID_VALUE;
  fake_piece_put(stream, &(struct piece){.kind = PIECE_GRAPH, .graph = nodes_ref(exec->nodes)});
  return 0;
}

cuda_result cuGraphDestroy(cuda_graph graph)
{
  nodes_unref(graph->nodes);
  free(graph);
  fake_alive(-1);
  return fake_leave("cuGraphDestroy");
}

cuda_result cuGraphExecDestroy(cuda_graph_exec exec)
{
  nodes_unref(exec->nodes);
  free(exec);
  fake_alive(-1);
  return fake_leave("cuGraphExecDestroy");
}
