/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tables, a row for each token: the embedding's and the head's, cut in time.
 *
 * If parameters are gathered for each use and dropped afterwards (ZeRO-3), the largest of them decides the transient
 * memory. Layers come one after the other. Only one layer's working copies are live, D bytes an element, or two layers'
 * if one is fetched ahead. The head has one parameter. Its backward op reads it and makes its whole gradient, D + A
 * bytes an element. With 128 Ki tokens it may be larger than a layer. So such a table is several parameters of
 * consecutive rows. Their number is such that one of them, its gradient, and this rank's blocks of the parts before it
 * fit within two layers' copies. Each part is gathered, used and dropped, and its gradient reduced, by itself; the
 * bytes sent stay the same.
 *
 * The ops work on one part after the other, in the order of tokens, and continue from the result of the part before:
 * the rows of x so far, each row's statistics so far, the sum of dx so far in A. Parts begin at multiples of the head's
 * chunk, so their sums are those of an uncut table; only a row's sum of exponentials is rounded to A between parts.
 * Such multiples also contain whole blocks of 8-bit moments.
 *
 * The number of parts depends on the model and the layout, not on the budget, so all budgets give the same bits. Tables
 * are not cut if D is A, because D + A is then twice D, or if a rank has its parameters whole.
 *
 * Random draws, numbers and checkpoints do not depend on the cut. A part has the number of its table in the model, and
 * the position of its rows in the table. A slice gives its rows of the one file tensor.
 *
 * Rejected: an instruction that computes a piece of an op over a piece of a parameter. Gathers, drops, tiers,
 * reductions and the proof all handle whole values; each would have to handle pieces.
 */
#include <stdio.h>

#include "base/base.h"
#include "graph/build.h"

_Static_assert(LADE_HEAD_CHUNK % LADE_MOMENT_BLOCK == 0, "a part cuts a block of moments");

/*
 * Return the first row of part @i of @n parts of @n_rows. Parts differ by at most a chunk, and the last one has the
 * rows past the last whole chunk.
 */
static int64_t part_first_row(int64_t n_rows, int n, int i)
{
  return i == n ? n_rows : n_rows / LADE_HEAD_CHUNK * i / n * LADE_HEAD_CHUNK;
}

/*
 * Return the bytes of the largest of @n parts in the head's backward op: the working copy, the gradient, and this
 * rank's blocks of the two parts before it, whose reductions are in flight.
 */
static int64_t part_bytes(const struct lade_model_graph *graph, int n)
{
  const int64_t copy_bytes = (int64_t)lade_dtype_bytes(graph->dtype), n_rows = lade_share_vocabulary(graph);
  const int64_t grad_bytes = (int64_t)lade_dtype_bytes(graph->accumulator);
  const int64_t blocks_bytes = n > 1 ? lade_div_up(2 * grad_bytes, graph->share.n_shards) : 0;
  int64_t max = 0;
  for (int i = 0; i < n; i++)
    max = LADE_MAX(max, part_first_row(n_rows, n, i + 1) - part_first_row(n_rows, n, i));
  return max * graph->model.width * (copy_bytes + grad_bytes + blocks_bytes);
}

static int parts_count(const struct lade_model_graph *graph)
{
  if (graph->share.n_shards == 1 || graph->dtype == graph->accumulator)
    return 1;
  const int64_t layer = lade_model_layer_n_params(&graph->model) / graph->share.tp;
  const int64_t two_layers_bytes = 2 * layer * (int64_t)lade_dtype_bytes(graph->dtype);
  const int max = (int)LADE_MIN(lade_share_vocabulary(graph) / LADE_HEAD_CHUNK, LADE_TABLE_PARTS_MAX);
  int n = 1;
  while (n < max && part_bytes(graph, n) > two_layers_bytes)
    n++;
  return n;
}

/* ---- parameters ---- */

static int part_build(struct lade_build *build, const char *name, const char *file_name, float init_std, int n, int i)
{
  struct lade_model_graph *graph = build->graph;
  const int64_t n_rows = lade_share_vocabulary(graph), first_row = part_first_row(n_rows, n, i);
  char part_name[LADE_NAME_BYTES];
  snprintf(part_name, sizeof(part_name), n > 1 ? "%s.%d" : "%s", name, i);
  int tensor = lade_build_param(build, part_name, part_first_row(n_rows, n, i + 1) - first_row, graph->model.width,
                                LADE_INIT_NORMAL, init_std);
  struct lade_param *param = &graph->params[graph->tensors[tensor].param];
  param->n_parts = n;
  param->first_row = first_row;
  struct lade_param_slice slice = lade_slice_vocabulary(graph);
  slice.file_row += first_row;
  slice.n_rows = graph->tensors[tensor].dims[0] - lade_table_padding(graph, tensor);
  lade_build_slice(build, tensor, &slice, "%s", file_name);
  return tensor;
}

int lade_build_table(struct lade_build *build, const char *name, const char *file_name, float init_std)
{
  const int n = parts_count(build->graph), table = part_build(build, name, file_name, init_std, n, 0);
  for (int i = 1; i < n; i++) {
    build->n_skipped_params--; /* the whole model counts them once */
    part_build(build, name, file_name, init_std, n, i);
  }
  return table;
}

void lade_build_table_tie(struct lade_build *build, int table, bool is_copy)
{
  for (int i = 0; i < lade_table_n_parts(build->graph, table); i++) {
    struct lade_param *param = &build->graph->params[build->graph->tensors[table].param + i];
    param->is_at_both_ends = true;
    param->is_copy = is_copy;
    param->number = 0;
  }
}

/* ---- parts ---- */

bool lade_model_graph_has_parts(const struct lade_model_graph *graph)
{
  for (int param = 0; param < graph->n_params; param++)
    if (graph->params[param].n_parts > 1)
      return true;
  return false;
}

int64_t lade_table_first_token(const struct lade_model_graph *graph, int part)
{
  return graph->share.tp_rank * lade_share_vocabulary(graph) + graph->params[graph->tensors[part].param].first_row;
}

int64_t lade_table_padding(const struct lade_model_graph *graph, int part)
{
  const int64_t end = graph->params[graph->tensors[part].param].first_row + graph->tensors[part].dims[0];
  return end == lade_share_vocabulary(graph) ? lade_share_padding(graph) : 0;
}

/* ---- ops ---- */

int lade_build_embed(struct lade_build *build, int table, int positions)
{
  const int n_parts = lade_table_n_parts(build->graph, table);
  int x = -1;
  for (int i = 0; i < n_parts; i++) {
    char name[16] = "x";
    if (i + 1 < n_parts)
      snprintf(name, sizeof(name), "x.%d", i);
    int in[] = {build->graph->tokens, lade_table_part(build->graph, table, i), positions, x};
    x = lade_build_out(build, lade_build_op(build, LADE_OP_EMBED, name, NULL, in), 0);
  }
  build->n_boundary_ops += n_parts - 1;
  return x;
}
