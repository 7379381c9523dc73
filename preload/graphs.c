/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that graphs allocate when they run. An allocation on a captured stream, or one added to a graph by hand, is a
 * node. It has an address at once. The driver takes memory for it when the graph is first launched or uploaded, and
 * keeps that memory.
 *
 * A graph is charged from its instantiation, before any memory is taken, until the executable graph is destroyed. The
 * driver lets nodes of a graph with disjoint lifetimes share addresses. So a graph needs the bytes that its nodes'
 * addresses cover, on each device. It also lets graphs that do not run together share memory, which no call reports:
 * each counts whole. So the budget holds, and may be reached before the device's memory would be.
 */
#include <stdlib.h>

#include "account.h"
#include "base/base.h"
#include "driver.h"

#define N_ACCOUNTS (LADE_LEDGER_DEVICES + 1)

struct account_span {
  int account;
  uint64_t at, bytes;
};

struct spans {
  LADE_ARRAY(struct account_span) list;
};

/* The holdings of a graph, by account. */
struct holdings {
  struct lade_holding *of[N_ACCOUNTS];
  uint64_t bytes[N_ACCOUNTS];
};

/* ---- the needs of a graph ---- */

static cuda_result graph_look(struct spans *spans, cuda_graph graph);

static cuda_result node_look(struct spans *spans, cuda_node node)
{
  struct cuda_graph_memory memory;
  cuda_graph child;
  int type = 0;
  if (REAL(cuGraphNodeGetType)(node, &type))
    return CUDA_DONE;
  if (type == CUDA_NODE_GRAPH && REAL(cuGraphChildGraphNodeGetGraph)(node, &child) == 0)
    return graph_look(spans, child);
  if (type != CUDA_NODE_MEMORY || REAL(cuGraphMemAllocNodeGetParams)(node, &memory))
    return CUDA_DONE;
  const struct account_span span = {.account = place_location(&memory.pool.location).account, .at = memory.at,
                                    .bytes = memory.bytes};
  return span.account < 0 || LADE_PUSH(&spans->list, span) ? CUDA_DONE : CUDA_OUT_OF_MEMORY;
}

/* Add the memory of all nodes. Nodes that the driver does not report are not counted. */
static cuda_result graph_look(struct spans *spans, cuda_graph graph)
{
  size_t n = 0;
  if (REAL(cuGraphGetNodes)(graph, NULL, &n) || n == 0)
    return CUDA_DONE;
  cuda_node *nodes = calloc(n, sizeof(*nodes));
  cuda_result result = nodes ? CUDA_DONE : CUDA_OUT_OF_MEMORY;
  if (nodes && REAL(cuGraphGetNodes)(graph, nodes, &n))
    n = 0;
  for (size_t i = 0; i < n && !result; i++)
    result = node_look(spans, nodes[i]);
  free(nodes);
  return result;
}

static int spans_order(const void *a, const void *b)
{
  const struct account_span *left = a, *right = b;
  return (left->at > right->at) - (left->at < right->at);
}

/* Return the bytes of @account that the spans cover; spans ascend by address. */
static uint64_t spans_cover(const struct spans *spans, int account)
{
  uint64_t sum = 0, end = 0;
  for (int i = 0; i < spans->list.n; i++) {
    const struct account_span *span = &spans->list.items[i];
    if (span->account != account || span->at + span->bytes <= end)
      continue;
    sum += span->at + span->bytes - LADE_MAX(span->at, end);
    end = span->at + span->bytes;
  }
  return sum;
}

/* ---- charging it ---- */

/* Return one key for each account: handles are further apart than the number of accounts. */
static uint64_t key_of(cuda_graph_exec exec, int account)
{
  return (uintptr_t)exec + (unsigned)account;
}

static void holdings_drop(lade_ledger *ledger, const struct holdings *holdings)
{
  for (int i = 0; i < N_ACCOUNTS; i++)
    if (holdings->of[i])
      lade_ledger_drop(ledger, holdings->of[i]);
}

/*
 * Charge a graph. Memory on the current context's device ends with that context; on another device only with the graph.
 */
static cuda_result graph_charge(lade_ledger *ledger, cuda_graph graph, struct holdings *holdings)
{
  struct spans spans = {0};
  cuda_result result = graph_look(&spans, graph);
  const struct account_place current = spans.list.n ? place_current() : (struct account_place){.account = -1};
  if (spans.list.n)
    qsort(spans.list.items, (size_t)spans.list.n, sizeof(spans.list.items[0]), spans_order);
  for (int i = 0; i < N_ACCOUNTS && spans.list.n && !result; i++) {
    const uint64_t bytes = holdings->bytes[i] = spans_cover(&spans, i);
    const void *owner = i == current.account ? current.owner : NULL;
    if (bytes && lade_ledger_charge(ledger, i, LADE_LEDGER_GRAPH, bytes, owner, &holdings->of[i]))
      result = CUDA_OUT_OF_MEMORY;
  }
  LADE_ARRAY_FREE(&spans.list);
  return result;
}

static void graph_settle(lade_ledger *ledger, const struct holdings *holdings, cuda_graph_exec exec)
{
  for (int i = 0; i < N_ACCOUNTS; i++)
    if (holdings->of[i])
      lade_ledger_settle(ledger, holdings->of[i], LADE_LEDGER_GRAPHS, key_of(exec, i), holdings->bytes[i]);
}

/* The bracket around the driver's instantiation of @graph. */
struct graph_instantiation {
  struct taking taking; /* it counts no bytes itself, and lets the driver's calls to itself through */
  struct holdings holdings;
};

static cuda_result making_begin(struct graph_instantiation *making, cuda_graph graph)
{
  lade_ledger *ledger = account_ledger();
  *making = (struct graph_instantiation){0};
  cuda_result result = ledger && is_outermost() ? graph_charge(ledger, graph, &making->holdings) : CUDA_DONE;
  if (!result)
    result = taking_begin(&making->taking, (struct account_place){.account = -1}, LADE_LEDGER_NOTHING, 0);
  if (result)
    holdings_drop(ledger, &making->holdings);
  return result;
}

static cuda_result making_end(struct graph_instantiation *making, cuda_result result, const cuda_graph_exec *exec)
{
  taking_end(&making->taking, result, LADE_LEDGER_GRAPHS, 0, 0);
  if (result)
    holdings_drop(making->taking.ledger, &making->holdings);
  else
    graph_settle(making->taking.ledger, &making->holdings, *exec);
  return result;
}

/* ---- the hooks ---- */

static cuda_result old_make(__typeof__(cuGraphInstantiate) *real, cuda_graph_exec *ret_exec, cuda_graph graph,
                            cuda_node *ret_node, char *text, size_t text_bytes)
{
  struct graph_instantiation making;
  cuda_result result = making_begin(&making, graph);
  return result ? result : making_end(&making, real(ret_exec, graph, ret_node, text, text_bytes), ret_exec);
}

cuda_result cuGraphInstantiate(cuda_graph_exec *ret_exec, cuda_graph graph, cuda_node *ret_node, char *text,
                               size_t text_bytes)
{
  return old_make(REAL(cuGraphInstantiate), ret_exec, graph, ret_node, text, text_bytes);
}

cuda_result cuGraphInstantiate_v2(cuda_graph_exec *ret_exec, cuda_graph graph, cuda_node *ret_node, char *text,
                                  size_t text_bytes)
{
  return old_make(REAL(cuGraphInstantiate_v2), ret_exec, graph, ret_node, text, text_bytes);
}

cuda_result cuGraphInstantiateWithFlags(cuda_graph_exec *ret_exec, cuda_graph graph, unsigned long long flags)
{
  struct graph_instantiation making;
  cuda_result result = making_begin(&making, graph);
  return result ? result : making_end(&making, REAL(cuGraphInstantiateWithFlags)(ret_exec, graph, flags), ret_exec);
}

static cuda_result params_make(__typeof__(cuGraphInstantiateWithParams) *real, cuda_graph_exec *ret_exec,
                               cuda_graph graph, void *params)
{
  struct graph_instantiation making;
  cuda_result result = making_begin(&making, graph);
  return result ? result : making_end(&making, real(ret_exec, graph, params), ret_exec);
}

cuda_result cuGraphInstantiateWithParams(cuda_graph_exec *ret_exec, cuda_graph graph, void *params)
{
  return params_make(REAL(cuGraphInstantiateWithParams), ret_exec, graph, params);
}

cuda_result cuGraphInstantiateWithParams_ptsz(cuda_graph_exec *ret_exec, cuda_graph graph, void *params)
{
  return params_make(REAL(cuGraphInstantiateWithParams_ptsz), ret_exec, graph, params);
}

cuda_result cuGraphExecDestroy(cuda_graph_exec exec)
{
  lade_ledger *ledger = account_ledger();
  struct holdings holdings = {0};
  for (int i = 0; i < N_ACCOUNTS && ledger; i++)
    holdings.of[i] = lade_ledger_take(ledger, LADE_LEDGER_GRAPHS, key_of(exec, i));
  cuda_result result = REAL(cuGraphExecDestroy)(exec);
  for (int i = 0; i < N_ACCOUNTS && result; i++)
    if (holdings.of[i])
      lade_ledger_keep(ledger, holdings.of[i]);
  if (!result)
    holdings_drop(ledger, &holdings);
  return result;
}
