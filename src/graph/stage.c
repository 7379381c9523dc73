/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A stage's share of a model: its layers, and a graph of only these.
 *
 * The cut. Blocks cost the same, a flops each; the head costs h more, the embedding about nothing. The last piece has n
 * layers, and the rest is spread over the others. The slowest piece takes max(n a + h, ceil((L - n) / (P - 1)) a). n
 * minimises this; if several values do, the smallest is taken, because the last stage holds the head and its gradient.
 * The remainder of the division goes to later pieces except the last, because their stages hold fewer microbatches.
 * There may be one or two pieces more than layers: the last one then has the head alone, and the first one the
 * embedding. O(layers).
 *
 * The graph. A piece without the embedding begins with a RECV, and a piece without the head ends with a SEND. Each is
 * in a unit of its own, so that blocks keep one shape. In the scattered form (Narayanan et al. 2021, section 4.1) a
 * rank receives its rows alone, and gathers the others from its tensor parallel group; the backward half does the same
 * with the gradient. The gather belongs to the slot that reads the rows, after the collectives of slots before it, so
 * all ranks gather in one order. Parameters are numbered and random draws are counted as in the whole model: both
 * counts skip the parameters and ops of other stages before a piece, and stage boundaries do not count. The last stage
 * of a tied model has copies of the table's parts under the owner's number, as its last parameters.
 */
#include <errno.h>

#include "base/base.h"
#include "graph/build.h"
#include "graph/family.h"

/* Return the layers of the last piece. */
static int64_t last_layers(const struct lade_model *model, int64_t seq_len, int n_pieces)
{
  if (n_pieces == 1)
    return model->layers;
  if (n_pieces > model->layers)
    return 0;
  double head = 6.0 * (double)model->vocabulary * (double)model->width;
  double block = (lade_model_flops_per_token(model, seq_len) - head) / (double)model->layers, min = 0;
  int64_t best = 0;
  for (int64_t n = 1; n <= model->layers - (n_pieces - 1); n++) {
    double others = (double)lade_div_up(model->layers - n, n_pieces - 1) * block;
    double slowest = LADE_MAX((double)n * block + head, others);
    if (best == 0 || slowest < min) {
      best = n;
      min = slowest;
    }
  }
  return best;
}

static int pieces_check(const struct lade_model *model, int n_pieces, struct lade_error *error)
{
  if (n_pieces <= lade_pieces_max(model))
    return 0;
  return lade_error_set(error, -EINVAL,
                        "model %s: %d stages times virtual stages are too many for %lld layers, an embedding and a "
                        "head: give at most %lld",
                        model->name, n_pieces, (long long)model->layers, (long long)lade_pieces_max(model));
}

/* Return the layers of @piece, with @last layers in the last one. */
static struct lade_layer_span piece_span(const struct lade_model *model, int64_t last, int n_pieces, int piece)
{
  const int64_t n_others = n_pieces - 1;
  if (piece == n_others)
    return (struct lade_layer_span){model->layers - last, last};
  const int64_t each = (model->layers - last) / n_others, extra = (model->layers - last) % n_others;
  const int64_t n_longer = LADE_MAX(piece - (n_others - extra), 0); /* longer pieces before this one */
  return (struct lade_layer_span){piece * each + n_longer, each + (piece >= n_others - extra)};
}

int lade_piece_layers(const struct lade_model *model, int64_t seq_len, int n_pieces, int piece,
                      struct lade_error *error, struct lade_layer_span *ret_span)
{
  LADE_ASSERT(n_pieces > 0 && piece >= 0 && piece < n_pieces);
  int status = pieces_check(model, n_pieces, error);
  if (status)
    return status;
  *ret_span = piece_span(model, last_layers(model, seq_len, n_pieces), n_pieces, piece);
  return 0;
}

int lade_pieces_cut(const struct lade_model *model, int64_t seq_len, int n_pieces, struct lade_error *error,
                    int64_t *ret_layers)
{
  LADE_ASSERT(n_pieces > 0);
  int status = pieces_check(model, n_pieces, error);
  const int64_t last = status ? 0 : last_layers(model, seq_len, n_pieces);
  for (int piece = 0; piece < n_pieces && !status; piece++)
    ret_layers[piece] = piece_span(model, last, n_pieces, piece).n;
  return status;
}

/* Build the beginning of @piece: its input, gathered if it comes in parts. Return the input. */
static int recv_build(struct lade_build *build, int piece)
{
  const struct lade_op_attr attr = {.peer = (piece - 1) % build->graph->share.pp};
  const struct lade_op_attr gather = {.axis = LADE_AXIS_TP};
  const bool is_scattered = build->graph->share.is_scattered;
  lade_build_unit(build, LADE_CLASS_RECV, "recv.%d", piece);
  const int x = lade_build_out(build, lade_build_op(build, LADE_OP_RECV, is_scattered ? "part" : "x", &attr, NULL), 0);
  return is_scattered ? lade_build_out(build, lade_build_op(build, LADE_OP_ALL_GATHER, "x", &gather, &x), 0) : x;
}

/* Build the end of the piece before @piece, which receives @x. */
static void send_build(struct lade_build *build, int piece, int x)
{
  const struct lade_op_attr attr = {.peer = piece % build->graph->share.pp, .axis = LADE_AXIS_TP};
  lade_build_unit(build, LADE_CLASS_SEND, "send.%d", piece);
  lade_build_op(build, LADE_OP_SEND, "x", &attr, &x);
}

/* Advance both counts as if the pieces before this one, which begins with layer @first, were in this graph. */
static void piece_skip(struct lade_build *build, int64_t first)
{
  const struct lade_model_graph *graph = build->graph;
  const struct lade_family_row *row = lade_family_get(graph->model.family);
  int n_params = 1 + row->has_positions, n_ops = 1 + (build->dropout > 0);
  if (row->table_norm) {
    n_params += 1 + lade_model_has_bias(&graph->model, LADE_BIAS_NORM);
    n_ops++;
  }
  for (int64_t i = 0; i < first; i++) {
    n_params += lade_model_layer_n_tensors(&graph->model);
    n_ops += lade_model_layer_n_ops(&graph->model, i);
  }
  build->n_skipped_params = n_params - graph->n_params;
  build->n_skipped_ops = n_ops - (graph->n_ops + build->n_joined_ops - build->n_boundary_ops);
}

/* Return the layers of @piece. pre: lade_model_graph_create has checked the number of pieces. */
static struct lade_layer_span graph_piece_layers(const struct lade_model_graph *graph, int piece)
{
  struct lade_layer_span span;
  int status = lade_piece_layers(&graph->model, graph->seq_len, graph->share.pp * graph->share.n_chunks, piece, NULL,
                                 &span);
  LADE_ASSERT(status == 0);
  return span;
}

bool lade_stage_has_layers(const struct lade_model_graph *graph)
{
  bool has_layers = false;
  for (int chunk = 0; chunk < graph->share.n_chunks; chunk++)
    has_layers |= graph_piece_layers(graph, chunk * graph->share.pp + graph->share.pp_rank).n > 0;
  return has_layers;
}

static void piece_build(struct lade_build *build, int piece, int *table)
{
  const struct lade_model_graph *graph = build->graph;
  const int n_pieces = graph->share.pp * graph->share.n_chunks;
  const struct lade_layer_span span = graph_piece_layers(graph, piece);
  int x;
  if (piece == 0) {
    *table = lade_build_embedding(build, &x);
    if (graph->model.is_tied && n_pieces > 1)
      lade_build_table_tie(build, *table, false);
  } else {
    x = recv_build(build, piece);
  }
  piece_skip(build, span.first);
  for (int64_t i = 0; i < span.n; i++)
    x = lade_build_block(build, span.first + i, x);
  if (piece + 1 < n_pieces)
    send_build(build, piece + 1, x);
  else
    lade_build_head(build, x, *table);
}

void lade_build_stage(struct lade_build *build)
{
  const struct lade_share *share = &build->graph->share;
  int table = -1;
  for (build->chunk = 0; build->chunk < share->n_chunks; build->chunk++)
    piece_build(build, build->chunk * share->pp + share->pp_rank, &table);
}
