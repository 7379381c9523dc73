/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as a graph of a step: refused with one line, or a graph whose text reads back to the same text. */
#include <stddef.h>
#include <string.h>

#include "graph/graph.h"
#include "tests/fuzz/fuzz_file.h"

/* Each use is one of an op that has the storage, and versions grow by one with each op that writes it. */
static void graph_verify(const lade_graph *graph)
{
  for (int i = 0; i < graph->storages.n; i++) {
    const int first = graph->storages.items[i].first_use;
    int n_versions = 0;
    for (int j = first; j < graph_uses_end(graph, i); j++) {
      if (graph->uses[j].op >= graph->ops.n || (j > first && graph->uses[j].op <= graph->uses[j - 1].op))
        abort();
      n_versions += (graph->uses[j].access & GRAPH_WRITES) != 0;
    }
    if (n_versions != graph->storages.items[i].n_versions)
      abort();
  }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
  struct lade_error error = {0};
  lade_graph *graph = NULL, *again = NULL;
  char *text, *copy;
  size_t n_bytes, n_copy;
  if (lade_graph_parse((const char *)data, size, &error, &graph)) {
    fuzz_error_check(&error);
    return 0;
  }
  graph_verify(graph);
  if (lade_graph_write(graph, &error, &text, &n_bytes) || lade_graph_parse(text, n_bytes, &error, &again) ||
      lade_graph_write(again, &error, &copy, &n_copy))
    abort();
  if (n_bytes != n_copy || memcmp(text, copy, n_bytes) != 0 || again->n_uses != graph->n_uses)
    abort();
  free(text);
  free(copy);
  lade_graph_destroy(graph);
  lade_graph_destroy(again);
  return 0;
}
