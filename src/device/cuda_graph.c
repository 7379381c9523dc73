/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Graphs: work that is put on a stream once and launched many times, by one call each.
 *
 * Work is captured on a separate stream, so no queue is affected by any outcome of the capture. The capture is relaxed:
 * no call of any thread disturbs it or is refused because of it. That includes a library's request for memory at its
 * first product of a kind. The stricter modes protect work that is put on the captured stream by accident, and this
 * stream is private. A capture that was begun is always ended, because otherwise the stream would be unusable. The
 * graph takes its device memory when it is created (cuGraphUpload), and not at its first launch.
 *
 * Rejected: capturing the queues' own streams. A failed capture loses the work put on them meanwhile, and the caller's
 * adopted stream may be in another capture.
 */
#include <errno.h>
#include <stdlib.h>

#include "device/cuda_internal.h"

struct lade_cuda_graph {
  struct cuda_device *cuda;
  cuda_graph_exec exec;
};

/* Record the first @call that failed. Return true if this one succeeded. */
static bool call_check(const struct cuda_device *cuda, const char *call, cuda_result result, struct lade_error *error)
{
  if (result && !error->code)
    lade_cuda_error_set(&cuda->driver, error, call, result);
  return !result;
}

/* Capture the work that @fn puts on @stream into a driver's graph; NULL if any call failed. */
static cuda_graph work_capture(const struct cuda_device *cuda, cuda_stream stream, lade_cuda_enqueue_fn *fn, void *args,
                               struct lade_error *error)
{
  const struct cuda_driver *driver = &cuda->driver;
  cuda_graph graph = NULL;
  if (!call_check(cuda, "cuStreamBeginCapture", driver->cuStreamBeginCapture(stream, CUDA_CAPTURE_RELAXED), error))
    return NULL;
  bool is_put = call_check(cuda, "work in a capture", fn(stream, args), error);
  bool is_ended = call_check(cuda, "cuStreamEndCapture", driver->cuStreamEndCapture(stream, &graph), error);
  if (graph && !(is_put && is_ended)) {
    driver->cuGraphDestroy(graph);
    graph = NULL;
  }
  return graph;
}

/* Capture the work, instantiate the graph and upload it. Context current. */
static void graph_make(lade_cuda_graph *made, cuda_stream stream, lade_cuda_enqueue_fn *fn, void *args,
                       struct lade_error *error)
{
  const struct cuda_driver *driver = &made->cuda->driver;
  cuda_graph graph = work_capture(made->cuda, stream, fn, args, error);
  if (!graph)
    return;
  bool is_made = call_check(made->cuda, "cuGraphInstantiate",
                            driver->cuGraphInstantiateWithFlags(&made->exec, graph, 0), error);
  call_check(made->cuda, "cuGraphDestroy", driver->cuGraphDestroy(graph), error);
  if (is_made && call_check(made->cuda, "cuGraphUpload", driver->cuGraphUpload(made->exec, stream), error))
    call_check(made->cuda, "cuStreamSynchronize", driver->cuStreamSynchronize(stream), error);
}

int lade_cuda_graph_create(lade_device *device, lade_cuda_enqueue_fn *fn, void *args, struct lade_error *error,
                           lade_cuda_graph **ret_graph)
{
  struct cuda_device *cuda = (struct cuda_device *)device;
  struct lade_error why = {0};
  cuda_stream stream = NULL;
  lade_cuda_graph *graph = lade_fault_calloc(cuda->base.faults, 1, sizeof(*graph));
  if (!graph)
    return lade_error_set(error, -ENOMEM, "no memory for a graph");
  graph->cuda = cuda;
  bool is_entered = lade_cuda_enter(cuda);
  if (call_check(cuda, "cuStreamCreate", cuda->driver.cuStreamCreate(&stream, CUDA_STREAM_NON_BLOCKING), &why)) {
    graph_make(graph, stream, fn, args, &why);
    call_check(cuda, "cuStreamDestroy", cuda->driver.cuStreamDestroy(stream), &why);
  }
  lade_cuda_leave(cuda, is_entered);
  if (why.code) {
    lade_cuda_graph_destroy(graph);
    return lade_error_set(error, why.code, "%s", why.text);
  }
  *ret_graph = graph;
  return 0;
}

void lade_cuda_graph_destroy(lade_cuda_graph *graph)
{
  if (!graph)
    return;
  bool is_entered = lade_cuda_enter(graph->cuda);
  if (graph->exec)
    graph->cuda->driver.cuGraphExecDestroy(graph->exec); /* failures are ignored, because no caller can receive them */
  lade_cuda_leave(graph->cuda, is_entered);
  free(graph);
}

static int graph_put(void *stream, void *args)
{
  const lade_cuda_graph *graph = args;
  return graph->cuda->driver.cuGraphLaunch(graph->exec, stream);
}

void lade_cuda_graph_launch(lade_cuda_graph *graph, lade_queue *queue, struct lade_span *ret_span, uint64_t *ret_count)
{
  lade_cuda_queue_enqueue(queue, graph_put, graph, ret_span, ret_count);
}
