/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The CPU trainer of llm.c (https://github.com/karpathy/llm.c), inside a byte budget. docs/linking.md explains the
 * port. Each call of its forward and backward pass is an op, and its gpt2_update is an op for each tensor. No kernel is
 * replaced. The program trains a small GPT-2 of random weights by llm.c itself and by a stepper, step by step in turn,
 * at several budgets. It compares losses and all parameters by their bits, and prints peaks and the ratio of times.
 *
 *   cc -O3 -march=native -w -ILLM.C bench/llmc.c $(pkg-config --cflags --libs lade) -lm && ./a.out
 *
 * LLM.C is a checkout. Without -w its own file warns.
 */
#define TESTING /* llm.c's file without its main */
#include "train_gpt2.c"

#include <lade/step.h>

enum { WTE, WPE, LN1W, LN1B, QKVW, QKVB, PROJW, PROJB, LN2W, LN2B, FCW, FCB, FCPROJW, FCPROJB, LNFW, LNFB };
enum { LAYERS = 6, CHANNELS = 192, HEADS = 6, VOCABULARY = 1000, PADDED = 1024, B = 4, T = 128, N = B * T, STEPS = 3 };
enum { OPS_MAX = 64 * LAYERS, ATT = B * HEADS * T * T };

enum call_kind {
  ENCODER, LAYERNORM, MATMUL, ATTENTION, RESIDUAL, GELU, SOFTMAX, CROSSENTROPY,
  CROSSENTROPY_BACK, MATMUL_BACK, LAYERNORM_BACK, RESIDUAL_BACK, GELU_BACK, ATTENTION_BACK, ENCODER_BACK, UPDATE
};

/* A call of llm.c: matrices have @n_in and @n_out, other calls @n_in elements. */
struct call {
  enum call_kind kind;
  int n_in, n_out;
  bool is_bare; /* of matrix products: without a bias; of layernorm's backward: the first to add to its input's */
};

struct trainer {
  GPT2 model; /* of llm.c, which trains beside */
  lade_graph *graph;
  struct call calls[OPS_MAX];
  int64_t ns[OPS_MAX]; /* of the last run of each op; 0: not measured yet */
  int params[NUM_PARAMETER_TENSORS][LAYERS], m[NUM_PARAMETER_TENSORS][LAYERS], v[NUM_PARAMETER_TENSORS][LAYERS];
  int tokens, targets, losses, step;
  struct lade_error error;
};

/* Storages of a layer's activations. */
struct layer {
  int input, ln1, mean1, rstd1, qkv, atty, att, proj, sum, ln2, mean2, rstd2, fch, gelu, fcproj, output;
};

static void must(struct trainer *t, int status)
{
  if (!status)
    return;
  fprintf(stderr, "%s\n", t->error.text);
  exit(1);
}

static int64_t now_ns(void)
{
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1000000000LL + now.tv_nsec;
}

/* ---- parameters: one tensor of each layer is one storage ---- */

static bool is_of_layers(int tensor)
{
  return tensor >= LN1W && tensor <= FCPROJB;
}

static int n_of(int tensor)
{
  return is_of_layers(tensor) ? LAYERS : 1;
}

static size_t elements_of(const struct trainer *t, int tensor)
{
  return t->model.param_sizes[tensor] / n_of(tensor);
}

/* ---- the graph ---- */

static int storage(struct trainer *t, const char *name, size_t floats, bool is_given)
{
  const struct lade_storage new_storage = {.struct_size = sizeof(new_storage), .name = name,
                                           .bytes = floats * sizeof(float), .is_given = is_given};
  int index = 0;
  must(t, lade_graph_add_storage(t->graph, &new_storage, &t->error, &index));
  return index;
}

#define LIST(...) ((const int[]){__VA_ARGS__, -1})
#define NONE ((const int[]){-1})

/* Copy a list that ends with -1; return its length. */
static int ranges_fill(struct lade_operand_range *ranges, const int *list)
{
  int n = 0;
  for (; list[n] >= 0; n++)
    ranges[n] = (struct lade_operand_range){.storage = list[n]};
  return n;
}

static void op(struct trainer *t, struct call call, const char *name, enum lade_pass pass, const int *reads,
               const int *writes, const int *updates, size_t scratch_floats)
{
  struct lade_operand_range in[8], out[8], both[8];
  const int index = lade_graph_n_ops(t->graph);
  const struct lade_graph_op new_op = {
      .struct_size = sizeof(new_op), .name = name, .reads = in, .n_reads = ranges_fill(in, reads), .writes = out,
      .n_writes = ranges_fill(out, writes), .updates = both, .n_updates = ranges_fill(both, updates),
      .scratch_bytes = scratch_floats * sizeof(float), .pass = pass, .is_once = call.kind == UPDATE,
      .ns = t->ns[index] ? t->ns[index] : 1000000};
  must(t, lade_graph_add_op(t->graph, &new_op, &t->error, NULL));
  t->calls[index] = call;
}

static void given_add(struct trainer *t)
{
  for (int k = 0; k < NUM_PARAMETER_TENSORS; k++) {
    for (int l = 0; l < n_of(k); l++) {
      t->params[k][l] = storage(t, "parameter", elements_of(t, k), true);
      t->m[k][l] = storage(t, "m", elements_of(t, k), true);
      t->v[k][l] = storage(t, "v", elements_of(t, k), true);
    }
  }
  t->tokens = storage(t, "tokens", N, true);
  t->targets = storage(t, "targets", N, true);
}

static void layer_storages(struct trainer *t, struct layer *a)
{
  const size_t size = (size_t)N * CHANNELS;
  a->ln1 = storage(t, "ln1", size, false);
  a->mean1 = storage(t, "ln1_mean", N, false);
  a->rstd1 = storage(t, "ln1_rstd", N, false);
  a->qkv = storage(t, "qkv", 3 * size, false);
  a->atty = storage(t, "atty", size, false);
  a->att = storage(t, "att", ATT, false);
  a->proj = storage(t, "attproj", size, false);
  a->sum = storage(t, "residual2", size, false);
  a->ln2 = storage(t, "ln2", size, false);
  a->mean2 = storage(t, "ln2_mean", N, false);
  a->rstd2 = storage(t, "ln2_rstd", N, false);
  a->fch = storage(t, "fch", 4 * size, false);
  a->gelu = storage(t, "fch_gelu", 4 * size, false);
  a->fcproj = storage(t, "fcproj", size, false);
  a->output = storage(t, "residual3", size, false);
}

static void layer_forward(struct trainer *t, int l, struct layer *a)
{
  int(*p)[LAYERS] = t->params;
  const int pass = LADE_PASS_FORWARD, c = CHANNELS;
  layer_storages(t, a);
  op(t, (struct call){LAYERNORM}, "layernorm_forward", pass, LIST(a->input, p[LN1W][l], p[LN1B][l]),
     LIST(a->ln1, a->mean1, a->rstd1), NONE, 0);
  op(t, (struct call){MATMUL, c, 3 * c}, "matmul_forward", pass, LIST(a->ln1, p[QKVW][l], p[QKVB][l]), LIST(a->qkv),
     NONE, 0);
  op(t, (struct call){ATTENTION}, "attention_forward", pass, LIST(a->qkv), LIST(a->atty, a->att), NONE, ATT);
  op(t, (struct call){MATMUL, c, c}, "matmul_forward", pass, LIST(a->atty, p[PROJW][l], p[PROJB][l]), LIST(a->proj),
     NONE, 0);
  op(t, (struct call){RESIDUAL}, "residual_forward", pass, LIST(a->input, a->proj), LIST(a->sum), NONE, 0);
  op(t, (struct call){LAYERNORM}, "layernorm_forward", pass, LIST(a->sum, p[LN2W][l], p[LN2B][l]),
     LIST(a->ln2, a->mean2, a->rstd2), NONE, 0);
  op(t, (struct call){MATMUL, c, 4 * c}, "matmul_forward", pass, LIST(a->ln2, p[FCW][l], p[FCB][l]), LIST(a->fch),
     NONE, 0);
  op(t, (struct call){GELU, 4 * N * c}, "gelu_forward", pass, LIST(a->fch), LIST(a->gelu), NONE, 0);
  op(t, (struct call){MATMUL, 4 * c, c}, "matmul_forward", pass, LIST(a->gelu, p[FCPROJW][l], p[FCPROJB][l]),
     LIST(a->fcproj), NONE, 0);
  op(t, (struct call){RESIDUAL}, "residual_forward", pass, LIST(a->sum, a->fcproj), LIST(a->output), NONE, 0);
}

static void update(struct trainer *t, int tensor, int l, int grad)
{
  op(t, (struct call){UPDATE, (int)elements_of(t, tensor)}, "gpt2_update", LADE_PASS_UPDATE, LIST(grad), NONE,
     LIST(t->params[tensor][l], t->m[tensor][l], t->v[tensor][l]), 0);
}

/* Add the backward calls of a layer, and its updates. @dout: the gradient of its output. Return its input's. */
static int layer_backward(struct trainer *t, int l, const struct layer *a, int dout)
{
  const int pass = LADE_PASS_BACKWARD, c = CHANNELS;
  const size_t size = (size_t)N * CHANNELS;
  int(*p)[LAYERS] = t->params, d[NUM_PARAMETER_TENSORS];
  for (int k = LN1W; k <= FCPROJB; k++)
    d[k] = storage(t, "parameter's gradient", elements_of(t, k), false);
  const int dsum = storage(t, "dresidual2", size, false), dfcproj = storage(t, "dfcproj", size, false);
  const int dgelu = storage(t, "dfch_gelu", 4 * size, false), dfch = storage(t, "dfch", 4 * size, false);
  const int dln2 = storage(t, "dln2", size, false), dinput = storage(t, "dresidual3", size, false);
  const int dproj = storage(t, "dattproj", size, false), datty = storage(t, "datty", size, false);
  const int dqkv = storage(t, "dqkv", 3 * size, false), dln1 = storage(t, "dln1", size, false);
  op(t, (struct call){RESIDUAL_BACK}, "residual_backward", pass, LIST(dout), LIST(dsum, dfcproj), NONE, 0);
  op(t, (struct call){MATMUL_BACK, 4 * c, c}, "matmul_backward", pass, LIST(dfcproj, a->gelu, p[FCPROJW][l]),
     LIST(dgelu, d[FCPROJW], d[FCPROJB]), NONE, 0);
  op(t, (struct call){GELU_BACK, 4 * N * c}, "gelu_backward", pass, LIST(a->fch, dgelu), LIST(dfch), NONE, 0);
  op(t, (struct call){MATMUL_BACK, c, 4 * c}, "matmul_backward", pass, LIST(dfch, a->ln2, p[FCW][l]),
     LIST(dln2, d[FCW], d[FCB]), NONE, 0);
  op(t, (struct call){LAYERNORM_BACK}, "layernorm_backward", pass, LIST(dln2, a->sum, p[LN2W][l], a->mean2, a->rstd2),
     LIST(d[LN2W], d[LN2B]), LIST(dsum), 0);
  op(t, (struct call){RESIDUAL_BACK}, "residual_backward", pass, LIST(dsum), LIST(dinput, dproj), NONE, 0);
  op(t, (struct call){MATMUL_BACK, c, c}, "matmul_backward", pass, LIST(dproj, a->atty, p[PROJW][l]),
     LIST(datty, d[PROJW], d[PROJB]), NONE, 0);
  op(t, (struct call){ATTENTION_BACK}, "attention_backward", pass, LIST(datty, a->qkv, a->att), LIST(dqkv), NONE,
     2 * ATT);
  op(t, (struct call){MATMUL_BACK, c, 3 * c}, "matmul_backward", pass, LIST(dqkv, a->ln1, p[QKVW][l]),
     LIST(dln1, d[QKVW], d[QKVB]), NONE, 0);
  op(t, (struct call){LAYERNORM_BACK}, "layernorm_backward", pass, LIST(dln1, a->input, p[LN1W][l], a->mean1, a->rstd1),
     LIST(d[LN1W], d[LN1B]), LIST(dinput), 0);
  for (int k = LN1W; k <= FCPROJB; k++)
    update(t, k, l, d[k]);
  return dinput;
}

/* Add head and loss with their backward calls after @last. Return the gradient of its output; @dwte: its share. */
static int head_add(struct trainer *t, const struct layer *last, int dwte)
{
  int(*p)[LAYERS] = t->params;
  const size_t size = (size_t)N * CHANNELS, wide = (size_t)N * PADDED;
  const int forward = LADE_PASS_FORWARD, backward = LADE_PASS_BACKWARD;
  const int lnf = storage(t, "lnf", size, false), mean = storage(t, "lnf_mean", N, false);
  const int rstd = storage(t, "lnf_rstd", N, false), logits = storage(t, "logits", wide, false);
  const int probs = storage(t, "probs", wide, false), dlogits = storage(t, "dlogits", wide, false);
  const int dlnf = storage(t, "dlnf", size, false), dlast = storage(t, "dresidual3", size, false);
  const int dw = storage(t, "dlnfw", CHANNELS, false), db = storage(t, "dlnfb", CHANNELS, false);
  t->losses = storage(t, "losses", N, false);
  op(t, (struct call){LAYERNORM}, "layernorm_forward", forward, LIST(last->output, p[LNFW][0], p[LNFB][0]),
     LIST(lnf, mean, rstd), NONE, 0);
  op(t, (struct call){MATMUL, CHANNELS, PADDED, true}, "matmul_forward", forward, LIST(lnf, p[WTE][0]), LIST(logits),
     NONE, 0);
  op(t, (struct call){SOFTMAX}, "softmax_forward", forward, LIST(logits), LIST(probs), NONE, 0);
  op(t, (struct call){CROSSENTROPY}, "crossentropy_forward", forward, LIST(probs, t->targets), LIST(t->losses), NONE,
     0);
  op(t, (struct call){CROSSENTROPY_BACK}, "crossentropy_softmax_backward", backward, LIST(probs, t->targets),
     LIST(dlogits), NONE, N);
  op(t, (struct call){MATMUL_BACK, CHANNELS, PADDED, true}, "matmul_backward", backward, LIST(dlogits, lnf, p[WTE][0]),
     LIST(dlnf, dwte), NONE, 0);
  op(t, (struct call){LAYERNORM_BACK, 0, 0, true}, "layernorm_backward", backward,
     LIST(dlnf, last->output, p[LNFW][0], mean, rstd), LIST(dlast, dw, db), NONE, 0);
  update(t, LNFW, 0, dw);
  update(t, LNFB, 0, db);
  return dlast;
}

static void graph_build(struct trainer *t)
{
  struct layer layers[LAYERS];
  must(t, lade_graph_create(&t->graph));
  given_add(t);
  const int dwte = storage(t, "dwte", elements_of(t, WTE), false);
  const int dwpe = storage(t, "dwpe", elements_of(t, WPE), false);
  layers[0].input = storage(t, "encoded", (size_t)N * CHANNELS, false);
  op(t, (struct call){ENCODER}, "encoder_forward", LADE_PASS_FORWARD,
     LIST(t->tokens, t->params[WTE][0], t->params[WPE][0]), LIST(layers[0].input), NONE, 0);
  for (int l = 0; l < LAYERS; l++) {
    layers[l].input = l ? layers[l - 1].output : layers[0].input;
    layer_forward(t, l, &layers[l]);
  }
  int grad = head_add(t, &layers[LAYERS - 1], dwte);
  for (int l = LAYERS - 1; l >= 0; l--)
    grad = layer_backward(t, l, &layers[l], grad);
  op(t, (struct call){ENCODER_BACK}, "encoder_backward", LADE_PASS_BACKWARD, LIST(grad, t->tokens), LIST(dwpe),
     LIST(dwte), 0);
  update(t, WTE, 0, dwte);
  update(t, WPE, 0, dwpe);
  must(t, lade_graph_keep(t->graph, t->losses, &t->error));
  must(t, lade_graph_close(t->graph, &t->error));
}

/* ---- the calls ---- */

static void forward_call(const struct call *c, float *const *in, float *const *out, float *scratch)
{
  switch (c->kind) {
  case ENCODER: encoder_forward(out[0], (int *)in[0], in[1], in[2], B, T, CHANNELS); break;
  case LAYERNORM: layernorm_forward(out[0], out[1], out[2], in[0], in[1], in[2], B, T, CHANNELS); break;
  case MATMUL: matmul_forward(out[0], in[0], in[1], c->is_bare ? NULL : in[2], B, T, c->n_in, c->n_out); break;
  case ATTENTION: attention_forward(out[0], scratch, out[1], in[0], B, T, CHANNELS, HEADS); break;
  case RESIDUAL: residual_forward(out[0], in[0], in[1], N * CHANNELS); break;
  case GELU: gelu_forward(out[0], in[0], c->n_in); break;
  case SOFTMAX: softmax_forward(out[0], in[0], B, T, VOCABULARY, PADDED); break;
  default: crossentropy_forward(out[0], in[0], (int *)in[1], B, T, PADDED);
  }
}

static void clear(float *data, size_t n)
{
  memset(data, 0, n * sizeof(*data));
}

static void loss_back(float *const *in, float *const *out, float *scratch)
{
  for (int i = 0; i < N; i++)
    scratch[i] = 1.0f / N;
  clear(out[0], (size_t)N * PADDED);
  crossentropy_softmax_backward(out[0], scratch, in[0], (int *)in[1], B, T, VOCABULARY, PADDED);
}

static void matmul_back(const struct call *c, float *const *in, float *const *out)
{
  clear(out[0], (size_t)N * c->n_in);
  clear(out[1], (size_t)c->n_in * c->n_out);
  if (!c->is_bare)
    clear(out[2], c->n_out);
  matmul_backward(out[0], out[1], c->is_bare ? NULL : out[2], in[0], in[1], in[2], B, T, c->n_in, c->n_out);
}

static void layernorm_back(const struct call *c, float *const *in, float *const *out, float *const *both)
{
  float *dinput = c->is_bare ? out[0] : both[0], *const *dparams = c->is_bare ? out + 1 : out;
  if (c->is_bare)
    clear(dinput, N * CHANNELS);
  clear(dparams[0], CHANNELS);
  clear(dparams[1], CHANNELS);
  layernorm_backward(dinput, dparams[0], dparams[1], in[0], in[1], in[2], in[3], in[4], B, T, CHANNELS);
}

/* Run a backward call. llm.c's functions add to their outputs: the first that adds clears them. */
static void backward_call(const struct call *c, float *const *in, float *const *out, float *const *both,
                          float *scratch)
{
  switch (c->kind) {
  case CROSSENTROPY_BACK: loss_back(in, out, scratch); break;
  case MATMUL_BACK: matmul_back(c, in, out); break;
  case LAYERNORM_BACK: layernorm_back(c, in, out, both); break;
  case RESIDUAL_BACK:
    clear(out[0], N * CHANNELS);
    clear(out[1], N * CHANNELS);
    residual_backward(out[0], out[1], in[0], N * CHANNELS);
    break;
  case GELU_BACK:
    clear(out[0], c->n_in);
    gelu_backward(out[0], in[0], in[1], c->n_in);
    break;
  case ATTENTION_BACK:
    clear(out[0], (size_t)N * 3 * CHANNELS);
    clear(scratch, 2 * ATT);
    attention_backward(out[0], scratch, scratch + ATT, in[0], in[1], in[2], B, T, CHANNELS, HEADS);
    break;
  default:
    clear(out[0], (size_t)T * CHANNELS);
    encoder_backward(both[0], out[0], in[0], (int *)in[1], B, T, CHANNELS);
  }
}

static void adamw(GPT2 *model, int step)
{
  gpt2_update(model, 1e-3f, 0.9f, 0.999f, 1e-8f, 0.0f, step + 1);
}

static int op_run(void *user, const struct lade_op_call *call)
{
  struct trainer *t = user;
  const struct call *c = &t->calls[call->op];
  float *const *in = (float *const *)call->reads, *const *out = (float *const *)call->writes;
  float *const *both = (float *const *)call->updates;
  const int64_t start_ns = now_ns();
  if (c->kind == UPDATE) {
    GPT2 tensor = {.params_memory = both[0], .grads_memory = in[0], .m_memory = both[1], .v_memory = both[2],
                   .num_parameters = c->n_in};
    adamw(&tensor, t->step);
  } else if (c->kind <= CROSSENTROPY) {
    forward_call(c, in, out, call->scratch);
  } else {
    backward_call(c, in, out, both, call->scratch);
  }
  t->ns[call->op] = now_ns() - start_ns;
  return 0;
}

/* ---- llm.c itself ---- */

/* Write a checkpoint of random weights, as llm.c reads it. */
static void checkpoint_write(const char *path)
{
  const int header[256] = {20240326, 3, T, VOCABULARY, LAYERS, HEADS, CHANNELS, PADDED};
  const GPT2Config config = {.max_seq_len = T, .vocab_size = VOCABULARY, .padded_vocab_size = PADDED,
                             .num_layers = LAYERS, .num_heads = HEADS, .channels = CHANNELS};
  size_t sizes[NUM_PARAMETER_TENSORS];
  uint64_t state = 1;
  FILE *file = fopenCheck(path, "wb");
  fill_in_parameter_sizes(sizes, config);
  fwrite(header, sizeof(header), 1, file);
  for (int k = 0; k < NUM_PARAMETER_TENSORS; k++) {
    const bool is_gain = k == LN1W || k == LN2W || k == LNFW, is_weight = k == WTE || k == WPE || k == QKVW ||
                                                                           k == PROJW || k == FCW || k == FCPROJW;
    for (size_t i = 0; i < sizes[k]; i++) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      const float value = is_gain ? 1 : is_weight ? ((float)(state >> 40) / (1 << 24) - 0.5f) * 0.07f : 0;
      fwrite(&value, sizeof(value), 1, file);
    }
  }
  fcloseCheck(file);
}

static void batch_fill(int step, int *tokens, int *targets)
{
  for (int i = 0; i <= N; i++) {
    const int token = (int)((uint32_t)(step * 7919 + i * 104729 + i / 13) % VOCABULARY);
    if (i < N)
      tokens[i] = token;
    if (i)
      targets[i - 1] = token;
  }
}

/* Run one step of llm.c; return its time. */
static int64_t llmc_step(GPT2 *model, int step)
{
  int tokens[N], targets[N];
  batch_fill(step, tokens, targets);
  const int64_t start_ns = now_ns();
  gpt2_forward(model, tokens, targets, B, T);
  if (model->grads_memory)
    gpt2_zero_grad(model);
  gpt2_backward(model);
  adamw(model, step);
  return now_ns() - start_ns;
}

/* Let llm.c's model begin again from @weights. */
static void llmc_reset(GPT2 *model, const float *weights)
{
  memcpy(model->params_memory, weights, model->num_parameters * sizeof(float));
  if (model->m_memory) {
    clear(model->m_memory, model->num_parameters);
    clear(model->v_memory, model->num_parameters);
  }
}

/* ---- both ---- */

/* Copy all parameters in llm.c's order to the stepper, or compare them with it. */
static bool params_visit(struct trainer *t, lade_stepper *stepper, const float *params, bool is_set)
{
  bool is_equal = true;
  for (int k = 0; k < NUM_PARAMETER_TENSORS; k++) {
    for (int l = 0; l < n_of(k); l++) {
      void *here = lade_step_address(stepper, t->params[k][l]);
      const size_t bytes = elements_of(t, k) * sizeof(float);
      if (is_set)
        memcpy(here, params, bytes);
      else
        is_equal = is_equal && !memcmp(here, params, bytes);
      params += elements_of(t, k);
    }
  }
  return is_equal;
}

static float loss_mean(struct trainer *t, lade_stepper *stepper)
{
  const float *losses = lade_step_address(stepper, t->losses);
  float sum = 0;
  for (int i = 0; i < N; i++)
    sum += losses[i];
  return sum / N;
}

/* Train both in turn within @budget_bytes, and print a line. Return the planned peak; 0: refused. */
static uint64_t budget_run(struct trainer *t, lade_device *device, uint64_t budget_bytes, const float *weights)
{
  const struct lade_graph_plan_params plan = {.struct_size = sizeof(plan), .budget_bytes = budget_bytes};
  const struct lade_step_params params = {.struct_size = sizeof(params), .op = op_run, .user = t, .device = device,
                                          .plan = &plan};
  struct lade_step_info info = {.struct_size = sizeof(info)};
  struct lade_step_measures measures = {.struct_size = sizeof(measures)};
  lade_stepper *stepper = NULL;
  int64_t own_ns = INT64_MAX, lade_ns = INT64_MAX;
  bool is_equal = true;
  graph_build(t);
  must(t, lade_step_create(t->graph, &params, &t->error, &info, &stepper));
  params_visit(t, stepper, weights, true);
  llmc_reset(&t->model, weights);
  for (t->step = 0; t->step < STEPS; t->step++) {
    const int64_t ns = llmc_step(&t->model, t->step);
    batch_fill(t->step, lade_step_address(stepper, t->tokens), lade_step_address(stepper, t->targets));
    must(t, lade_step_run(stepper, &measures, &t->error));
    own_ns = ns < own_ns ? ns : own_ns;
    lade_ns = measures.wall_ns < lade_ns ? measures.wall_ns : lade_ns;
    is_equal = is_equal && loss_mean(t, stepper) == t->model.mean_loss;
  }
  is_equal = params_visit(t, stepper, t->model.params_memory, false) && is_equal;
  printf("| %.1f | %.1f | %d | %.3f | %.3f | %s |\n", (double)info.peak_bytes[LADE_DEVICE] / (1 << 20),
         (double)measures.peak_bytes[LADE_DEVICE] / (1 << 20), measures.n_redone,
         (double)info.compute_ns / (double)info.base_ns, (double)lade_ns / (double)own_ns,
         is_equal ? "equal" : "DIFFER");
  lade_step_destroy(stepper);
  lade_graph_destroy(t->graph);
  return info.peak_bytes[LADE_DEVICE];
}

int main(void)
{
  static struct trainer t;
  static const int percents[] = {90, 80, 70, 60, 0}; /* of the unconstrained peak; 0: the smallest budget */
  const struct lade_device_params host = {.struct_size = sizeof(host)};
  lade_device *device = NULL;
  checkpoint_write("llmc-bench.bin");
  gpt2_build_from_checkpoint(&t.model, "llmc-bench.bin");
  remove("llmc-bench.bin");
  float *weights = mallocCheck(t.model.num_parameters * sizeof(float));
  memcpy(weights, t.model.params_memory, t.model.num_parameters * sizeof(float));
  must(&t, lade_device_open(&host, &t.error, &device));
  llmc_step(&t.model, 0);
  printf("llm.c's own memory: %.1f MiB\n",
         (4.0 * t.model.num_parameters + 2.0 * t.model.num_activations) * 4 / (1 << 20));
  printf("| planned peak, MiB | measured | ops again | ops' time, of once each | step's time, of llm.c's | bits |\n"
         "|---|---|---|---|---|---|\n");
  const uint64_t peak = budget_run(&t, device, LADE_GRAPH_BUDGET_NONE, weights); /* measures the ops too */
  for (int i = 0; i < 5; i++)
    budget_run(&t, device, percents[i] ? peak * percents[i] / 100 : LADE_GRAPH_BUDGET_MIN, weights);
  lade_device_close(device);
  gpt2_free(&t.model);
  free(weights);
  return 0;
}
