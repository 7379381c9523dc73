/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tables, a row for each token: the embedding's and the head's, cut in time.
 *
 * Where parameters are gathered for each use and dropped after it (ZeRO-3), memory on the way is that of the largest of
 * them. A layer's come one after the other: its working copies, D bytes an element, are all that there is, and two
 * layers' where one is fetched ahead. The head has one parameter, whose backward op reads it and makes its whole
 * gradient, D + A bytes an element, and with 128 Ki tokens it may be larger than a layer. So such a table is several
 * parameters of consecutive rows, so many that one of them, its gradient, and this rank's blocks of those before it are
 * within two layers' copies. Each is gathered, used, dropped, and its gradient handed on by itself; what is sent stays
 * the same.
 *
 * The ops work on one part after the other, in the order of tokens, and go on from what the part before has left: the
 * rows of x so far, each row's statistics so far, the sum of dx so far in A. Parts begin at multiples of the head's
 * chunk, so that its sums are those of one part; only a row's sum of exponentials is rounded to A between parts. Such
 * multiples are of whole blocks of 8-bit moments too.
 *
 * How many parts there are is a matter of the model and the layout, never of a budget: all budgets have the same bits.
 * Nothing is cut where D is A, for there D + A is D twice; nor where a rank has its parameters whole.
 *
 * Draws, numbers and checkpoints know nothing of it: a part has the number of its table in the model, its rows' place
 * in it, and a slice that says which rows of the one file tensor it is.
 *
 * Rejected: an instruction that computes a piece of an op over a piece of a parameter. Gathers, drops, homes,
 * reductions and the proof all deal with whole values; each would have had to learn pieces.
 */
#include <stdio.h>

#include "base/base.h"
#include "graph/build.h"

_Static_assert(LADE_HEAD_CHUNK % LADE_MOMENT_BLOCK == 0, "a part cuts a block of moments");

/* The first row of part @i of @n parts of @n_rows: parts differ by a chunk at most, and by what is no whole chunk. */
static int64_t part_first_row(int64_t n_rows, int n, int i)
{
  return i == n ? n_rows : n_rows / LADE_HEAD_CHUNK * i / n * LADE_HEAD_CHUNK;
}

/*
 * What the largest of @n parts takes in the head's backward op: working copy, gradient, and of the two parts before it,
 * whose reductions are under way, the blocks that this rank is to add up.
 */
static int64_t part_bytes(const struct lade_graph *graph, int n)
{
  const int64_t copy_bytes = (int64_t)lade_dtype_bytes(graph->dtype), n_rows = lade_share_vocabulary(graph);
  const int64_t grad_bytes = (int64_t)lade_dtype_bytes(graph->accumulator);
  const int64_t blocks_bytes = n > 1 ? lade_div_up(2 * grad_bytes, graph->share.n_shards) : 0;
  int64_t most = 0;
  for (int i = 0; i < n; i++)
    most = LADE_MAX(most, part_first_row(n_rows, n, i + 1) - part_first_row(n_rows, n, i));
  return most * graph->model.width * (copy_bytes + grad_bytes + blocks_bytes);
}

static int parts_count(const struct lade_graph *graph)
{
  if (graph->share.n_shards == 1 || graph->dtype == graph->accumulator)
    return 1;
  const int64_t layer = lade_model_layer_n_params(&graph->model) / graph->share.tp;
  const int64_t two_layers_bytes = 2 * layer * (int64_t)lade_dtype_bytes(graph->dtype);
  const int most = (int)LADE_MIN(lade_share_vocabulary(graph) / LADE_HEAD_CHUNK, LADE_TABLE_PARTS_MOST);
  int n = 1;
  while (n < most && part_bytes(graph, n) > two_layers_bytes)
    n++;
  return n;
}

/* ---- parameters ---- */

static int part_build(struct lade_build *build, const char *name, const char *file_name, float init_std, int n, int i)
{
  struct lade_graph *graph = build->graph;
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
    build->n_skipped_params--; /* the whole model has them once */
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

int lade_table_n_parts(const struct lade_graph *graph, int table)
{
  return graph->params[graph->tensors[table].param].n_parts;
}

int lade_table_part(const struct lade_graph *graph, int table, int i)
{
  LADE_ASSERT(i < lade_table_n_parts(graph, table));
  return graph->params[graph->tensors[table].param + i].tensor;
}

bool lade_graph_has_parts(const struct lade_graph *graph)
{
  for (int param = 0; param < graph->n_params; param++)
    if (graph->params[param].n_parts > 1)
      return true;
  return false;
}

int64_t lade_table_first_token(const struct lade_graph *graph, int part)
{
  return graph->share.tp_rank * lade_share_vocabulary(graph) + graph->params[graph->tensors[part].param].first_row;
}

int64_t lade_table_padding(const struct lade_graph *graph, int part)
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
  build->n_border_ops += n_parts - 1;
  return x;
}
