/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The CUDA part of the executor: the step block, kernels, and chains of kernels as graphs.
 *
 * Kernels read everything that changes from step to step in the step block, which is copied to the device before all of
 * them. So a launch has the same arguments in every step. Each chain of the program (program/program.h) is captured
 * when the executor is created. It is one launch in a step, however many kernels it has. An unchained instruction with
 * several launches is captured too. An instruction that is one launch is launched directly. If a capture fails, all
 * instructions are launched directly: the work and the bits are the same.
 *
 * Every launch of a step is captured before the step, at least to make the driver load its kernel. The driver loads a
 * library's kernel at its first launch; it then waits for all work of the context and blocks other threads. Inside a
 * step that would deadlock: a stream waits for a drive, and the drive waits, through a queue's witness, for the driver.
 * With idle streams the driver waits for nothing. Kernels that could not be captured may still cause this deadlock.
 * Only CUDA_MODULE_LOADING=EAGER loads everything at once, and cuBLASLt alone then takes hundreds of megabytes.
 *
 * Chains are on the compute queue alone. Copies stay on their own queues, so each begins as soon as its waits are met
 * and has its own times.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "run/executor/executor_internal.h"

void executor_step_block_submit(lade_executor *ex, const struct bound_program *bound)
{
  const struct lade_program *program = bound->program;
  struct lade_step *host = executor_address(ex, program, program->step_on_host, 0);
  const struct lade_copy copy = {.dst = executor_address(ex, program, program->step_on_device, 0), .src = host,
                                 .bytes = sizeof(*host)};
  *host = ex->step;
  lade_queue_copy(ex->queues[LADE_Q_COMPUTE], &copy, NULL);
}

/* ---- graphs ---- */

/* A chain that is being captured. */
struct chain {
  lade_executor *executor;
  const struct bound_program *bound;
  int first, end;
  int n_launches;
  struct lade_error error; /* from a library */
};

/* Return the index after the last member of the chain that begins at @first. */
static int chain_end(const struct lade_program *program, int first)
{
  int end = first + 1;
  for (int at = end; at < program->n_instrs; at++) {
    if (program->instrs[at].queue != LADE_Q_COMPUTE)
      continue;
    if (!program->instrs[at].is_graph_member)
      break;
    end = at + 1;
  }
  return end;
}

static int chain_put(void *stream, void *args)
{
  struct chain *chain = args;
  lade_executor *ex = chain->executor;
  const struct lade_program *program = chain->bound->program;
  const struct lade_step *step = executor_address(ex, program, program->step_on_device, 0);
  int result = 0;
  for (int at = chain->first; at < chain->end && !result && !chain->error.code; at++) {
    const struct kernel_call *call = &chain->bound->calls[at];
    const struct lade_cuda_work work = {(enum lade_kernel)call->kernel, call->args, step};
    if (program->instrs[at].queue == LADE_Q_COMPUTE && call->kernel != CALL_NOTHING)
      result = lade_cuda_kernels_put(ex->params.cuda_kernels, stream, &work, &chain->n_launches, &chain->error);
  }
  return result;
}

/*
 * Capture the instructions from @first to @end. A single launch is loaded by this, and its graph is dropped because it
 * saves no call.
 */
static int chain_capture(lade_executor *ex, struct bound_program *bound, int first, int end, struct lade_error *error)
{
  struct chain chain = {.executor = ex, .bound = bound, .first = first, .end = end};
  int status = lade_cuda_graph_create(ex->device, chain_put, &chain, error, &bound->graphs[first]);
  if (!status && end == first + 1 && chain.n_launches == 1) {
    lade_cuda_graph_destroy(bound->graphs[first]);
    bound->graphs[first] = NULL;
  }
  return chain.error.code ? lade_error_set(error, chain.error.code, "%s", chain.error.text) : status;
}

/* True if a kernel runs in the chain from @first to @end. */
static bool chain_has_work(const struct bound_program *bound, int first, int end)
{
  bool has_work = false;
  for (int at = first; at < end && !has_work; at++)
    has_work = bound->program->instrs[at].queue == LADE_Q_COMPUTE && bound->calls[at].kernel != CALL_NOTHING;
  return has_work;
}

/*
 * Capture all chains. After a failure the other chains are captured too, so that their kernels are loaded. @bound owns
 * the graphs, also on failure.
 */
static int chains_capture(lade_executor *ex, struct bound_program *bound, struct lade_error *error)
{
  const struct lade_program *program = bound->program;
  int status = 0;
  bound->graphs = calloc((size_t)program->n_instrs + 1, sizeof(*bound->graphs));
  if (!bound->graphs)
    return lade_error_set(error, -ENOMEM, "no memory for graphs");
  for (int at = 0; at < program->n_instrs; at++) {
    if (program->instrs[at].queue != LADE_Q_COMPUTE || program->instrs[at].is_graph_member)
      continue;
    const int end = chain_end(program, at);
    if (!chain_has_work(bound, at, end))
      continue;
    struct lade_error later;
    const int found = chain_capture(ex, bound, at, end, status ? &later : error);
    status = status ? status : found;
  }
  return status;
}

void executor_graphs_finish(struct bound_program *bound)
{
  for (int at = 0; bound->graphs && at < bound->program->n_instrs; at++)
    lade_cuda_graph_destroy(bound->graphs[at]);
  free(bound->graphs);
  bound->graphs = NULL;
}

void executor_graphs_init(lade_executor *ex)
{
  const char *wish = getenv("LADE_CUDA_GRAPHS");
  const bool is_unwanted = wish && strcmp(wish, "0") == 0;
  struct lade_error why = {0};
  if (!ex->params.cuda_kernels)
    return;
  struct lade_error later;
  int status = chains_capture(ex, &ex->train, &why);
  const int found = chains_capture(ex, &ex->eval, status ? &later : &why);
  status = status ? status : found;
  if (status || is_unwanted) {
    executor_graphs_finish(&ex->eval);
    executor_graphs_finish(&ex->train);
  }
  lade_cuda_mark_memory(ex->device, LADE_CUDA_KERNELS); /* all kernels of a step are loaded now */
  if (status)
    lade_error_set(&ex->note, status, "kernels are launched one by one, as the driver made no graph of them: %s",
                   why.text);
}

/* ---- a step ---- */

void executor_kernel_submit(lade_executor *ex, struct bound_program *bound, int at)
{
  const struct kernel_call *call = &bound->calls[at];
  lade_queue *queue = ex->queues[LADE_Q_COMPUTE];
  lade_cuda_graph *graph = bound->graphs ? bound->graphs[at] : NULL;
  const bool is_failed = lade_first_error_code(&ex->failure) != 0;
  if (bound->graphs && bound->program->instrs[at].is_graph_member) /* launched with the first of its chain */
    bound->counts[at] = bound->counts[bound->before[at]];
  else if (is_failed || (call->kernel == CALL_NOTHING && !graph)) /* an event without work */
    lade_cuda_queue_enqueue(queue, NULL, NULL, &bound->spans[at], &bound->counts[at]);
  else if (graph)
    lade_cuda_graph_launch(graph, queue, &bound->spans[at], &bound->counts[at]);
  else {
    const struct lade_cuda_work work = {(enum lade_kernel)call->kernel, call->args,
                                        executor_address(ex, bound->program, bound->program->step_on_device, 0)};
    lade_cuda_kernels_submit(ex->params.cuda_kernels, queue, &work, &bound->spans[at], &bound->counts[at]);
  }
}
