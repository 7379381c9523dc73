/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The attention of one layer, for every builder of blocks: its attributes, its sinks, and its op.
 *
 * The form of the scores is the model's (scale, soft cap, ALiBi, sinks), and the window is the layer's. A windowed
 * layer does less work than a whole one, so units of the two kinds have different classes. On tensor parallel ranks,
 * heads and their sinks are cut alike, and ALiBi's slopes are of the heads of all ranks; nothing else here depends on
 * the rank. If documents are masked, every layer reads the first keys that the data give.
 */
#include "graph/build.h"

/* Return the window of layer @i_layer; 0: none, or one that hides no key. */
static int64_t layer_window(const struct lade_model_graph *graph, int64_t i_layer)
{
  const struct lade_model *model = &graph->model;
  const bool is_windowed = model->window > 0 && lade_layer_set_has(&model->windowed, i_layer);
  return is_windowed && model->window < graph->seq_len ? model->window : 0;
}

int lade_layer_class(const struct lade_model_graph *graph, int64_t i_layer)
{
  return layer_window(graph, i_layer) ? LADE_CLASS_WINDOWED_BLOCK : LADE_CLASS_BLOCK;
}

int lade_build_sinks(struct lade_build *build, const char *name, const char *file_name, float init_std)
{
  if (!build->graph->model.has_sinks)
    return -1;
  struct lade_param_slice slice = lade_slice_rows(build->graph, build->graph->model.heads, 1);
  int param = lade_build_param(build, name, slice.n_rows, 0, LADE_INIT_NORMAL, init_std);
  lade_build_slice(build, param, &slice, "%s", file_name);
  return param;
}

int lade_build_attention(struct lade_build *build, const char *name, int64_t i_layer, int qkv, int sinks)
{
  const struct lade_model *model = &build->graph->model;
  struct lade_op_attr attr = {.dropout = build->dropout, .heads = lade_share_heads(build->graph),
                              .n_kv_heads = lade_share_kv_heads(build->graph),
                              .head_dim = lade_model_head_dim(model),
                              .attention_scale = model->attention_scale,
                              .attention_softcap = model->attention_softcap,
                              .alibi_max = model->alibi_max, .is_alibi_rounded = model->is_alibi_rounded,
                              .window = layer_window(build->graph, i_layer)};
  int op = lade_build_op(build, LADE_OP_ATTENTION, name, &attr, (int[]){qkv, sinks, build->graph->first_keys});
  return lade_build_out(build, op, 0);
}
