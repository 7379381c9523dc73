/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Train a convolutional network of your own kernels inside a byte budget. The network has ten convolutions with skip
 * connections, plain loops, and SGD. Its step is a graph of 31 ops. Lade plans it at five budgets: it decides which
 * activations to keep and which to compute again, places all memory, and calls the ops. Every budget gives the same
 * bits.
 *
 *   cc graph.c $(pkg-config --cflags --libs lade) && ./a.out
 */
#include <lade/step.h>
#include <stdio.h>
#include <string.h>

enum { IMAGES = 8, CHANNELS = 2, SIDE = 128, LAYERS = 10, STEPS = 2, TAPS = 9, OPS = 3 * LAYERS + 1 };
enum { PIXELS = SIDE * SIDE, ELEMENTS = IMAGES * CHANNELS * PIXELS, WEIGHTS = CHANNELS * CHANNELS * TAPS };
enum { BYTES = ELEMENTS * sizeof(float), WEIGHT_BYTES = WEIGHTS * sizeof(float) };

/* ---- the kernels of the program as it was ---- */

enum way { OUTPUT, INPUT_GRAD, WEIGHT_GRAD };
/* Add one tap of a 3x3 convolution: y += w x, or for the backward pass x += w y or w += x y. */
static void tap_add(enum way way, int tap, float *x, float *w, float *y)
{
  const int down = tap / 3 - 1, right = tap % 3 - 1;
  for (int row = down < 0; row < SIDE - (down > 0); row++) {
    float *from = x + (row + down) * SIDE + (right > 0), *to = y + row * SIDE + (right < 0), weight = *w;
    const float *end = to + SIDE - (right != 0);
    if (way == OUTPUT)
      while (to < end)
        *to++ += weight * *from++;
    else if (way == INPUT_GRAD)
      while (to < end)
        *from++ += weight * *to++;
    else
      while (to < end)
        weight += *from++ * *to++;
    if (way == WEIGHT_GRAD)
      *w = weight;
  }
}

static void conv(enum way way, float *x, float *w, float *y)
{
  for (int n = 0; n < IMAGES; n++)
    for (int out = 0; out < CHANNELS; out++)
      for (int in = 0; in < CHANNELS; in++)
        for (int tap = 0; tap < TAPS; tap++)
          tap_add(way, tap, x + (n * CHANNELS + in) * PIXELS, w + (out * CHANNELS + in) * TAPS + tap,
                  y + (n * CHANNELS + out) * PIXELS);
}

/* y = relu(w * x + skip) */
static void forward(const float *x, const float *w, const float *skip, float *y)
{
  memset(y, 0, BYTES);
  conv(OUTPUT, (float *)x, (float *)w, y);
  for (int i = 0; i < ELEMENTS; i++) {
    const float sum = y[i] + (skip ? skip[i] : 0);
    y[i] = sum > 0 ? sum : 0;
  }
}

/*
 * Compute the gradients of x and w; @in is {x, w, y}. dy becomes the gradient of the sum, which is also that of the
 * skip. @more is the gradient that reaches x through another skip, or NULL.
 */
static void backward(const float *const *in, const float *more, float *dy, float *dx, float *dw)
{
  const float *x = in[0], *w = in[1], *y = in[2];
  for (int i = 0; i < ELEMENTS; i++) {
    dy[i] = y[i] > 0 ? dy[i] : 0;
    dx[i] = more ? more[i] : 0;
  }
  memset(dw, 0, WEIGHT_BYTES);
  conv(INPUT_GRAD, dx, (float *)w, dy);
  conv(WEIGHT_GRAD, (float *)x, dw, dy);
}

static void loss_of(const float *y, const float *target, double *loss, float *dy)
{
  *loss = 0;
  for (int i = 0; i < ELEMENTS; i++) {
    const float off = y[i] - target[i];
    *loss += (double)off * off / ELEMENTS;
    dy[i] = 2 * off / ELEMENTS;
  }
}

static void sgd(const float *dw, float *w)
{
  for (int i = 0; i < WEIGHTS; i++)
    w[i] -= 0.05f * dw[i];
}

/* ---- the step as a graph ---- */

struct op {
  enum { FORWARD, LOSS, BACKWARD, SGD } kind;
  bool has_skip; /* a skip connection ends here, or one comes back here: one operand more */
};
struct net {
  lade_graph *graph;
  struct op ops[OPS]; /* by op of the graph */
  int input, target, loss, weights[LAYERS];
  int status; /* the first error */
  struct lade_error error;
};

static int storage(struct net *net, const char *name, size_t bytes, bool is_given)
{
  const struct lade_storage item = {.struct_size = sizeof(item), .name = name, .bytes = bytes, .is_given = is_given};
  int index = 0;
  if (!net->status)
    net->status = lade_graph_add_storage(net->graph, &item, &net->error, &index);
  return index;
}

/* Add an op. Lists of storages end with -1; @update is one, or -1. */
static void op(struct net *net, struct op details, struct lade_graph_op new_op, const int *reads, const int *writes,
               int update)
{
  struct lade_operand_range in[8] = {{0, 0, 0}}, out[8] = {{0, 0, 0}}, both = {update, 0, 0};
  int index = 0;
  for (; reads[new_op.n_reads] >= 0; new_op.n_reads++)
    in[new_op.n_reads].storage = reads[new_op.n_reads];
  for (; writes[new_op.n_writes] >= 0; new_op.n_writes++)
    out[new_op.n_writes].storage = writes[new_op.n_writes];
  new_op.struct_size = sizeof(new_op);
  new_op.reads = in, new_op.writes = out, new_op.updates = &both;
  new_op.n_updates = update >= 0;
  if (!net->status)
    net->status = lade_graph_add_op(net->graph, &new_op, &net->error, &index);
  net->ops[index] = details;
}

/* Every second layer of the second half adds the input of layer LAYERS - i: a skip connection. */
static bool has_skip(int i)
{
  return i > LAYERS / 2 && i < LAYERS && i % 2 == 1;
}

static void net_build(struct net *net)
{
  int h[LAYERS + 1], grad[LAYERS + 1]; /* the input of layer i, and its gradient */
  net->status = lade_graph_create(&net->graph);
  h[0] = net->input = storage(net, "input", BYTES, true);
  net->target = storage(net, "target", BYTES, true);
  net->loss = storage(net, "loss", sizeof(double), false);
  for (int i = 0; i < LAYERS; i++) {
    net->weights[i] = storage(net, "weights", WEIGHT_BYTES, true);
    h[i + 1] = storage(net, "activation", BYTES, false);
    op(net, (struct op){FORWARD, has_skip(i)}, (struct lade_graph_op){.name = "forward", .ns = 10000000},
       (int[]){h[i], net->weights[i], has_skip(i) ? h[LAYERS - i] : -1, -1}, (int[]){h[i + 1], -1}, -1);
  }
  grad[LAYERS] = storage(net, "gradient", BYTES, false);
  op(net, (struct op){LOSS, false}, (struct lade_graph_op){.name = "loss", .ns = 2000000},
     (int[]){h[LAYERS], net->target, -1}, (int[]){net->loss, grad[LAYERS], -1}, -1);
  for (int i = LAYERS - 1; i >= 0; i--) {
    const int dw = storage(net, "weight gradient", WEIGHT_BYTES, false);
    const bool has_more = has_skip(LAYERS - i);
    grad[i] = storage(net, "gradient", BYTES, false);
    op(net, (struct op){BACKWARD, has_more},
       (struct lade_graph_op){.name = "backward", .ns = 20000000, .pass = LADE_PASS_BACKWARD},
       (int[]){h[i], net->weights[i], h[i + 1], has_more ? grad[LAYERS - i + 1] : -1, -1}, (int[]){grad[i], dw, -1},
       grad[i + 1]);
    op(net, (struct op){SGD, false}, (struct lade_graph_op){.name = "sgd", .ns = 1000, .pass = LADE_PASS_UPDATE},
       (int[]){dw, -1}, (int[]){-1}, net->weights[i]);
  }
  if (!net->status && !(net->status = lade_graph_keep(net->graph, net->loss, &net->error)))
    net->status = lade_graph_close(net->graph, &net->error);
}

/* Run one op: Lade calls this with the addresses of its operands. */
static int op_run(void *user, const struct lade_op_call *call)
{
  const struct op *op = &((struct net *)user)->ops[call->op];
  const float *const *in = (const float *const *)call->reads;
  if (op->kind == FORWARD)
    forward(in[0], in[1], op->has_skip ? in[2] : NULL, call->writes[0]);
  else if (op->kind == LOSS)
    loss_of(in[0], in[1], call->writes[0], call->writes[1]);
  else if (op->kind == BACKWARD)
    backward(in, op->has_skip ? in[3] : NULL, call->updates[0], call->writes[0], call->writes[1]);
  else
    sgd(in[0], call->updates[0]);
  return 0;
}

/* Fill a storage that the step is given; it has an address between steps. */
static void given_fill(lade_stepper *stepper, int storage, int n, int factor, float first, float scale)
{
  float *data = lade_step_address(stepper, storage);
  for (int i = 0; i < n; i++)
    data[i] = first + scale * (float)(i * factor % 1009);
}

/* Train within @budget_bytes; return 0, and all weights in @ret_weights. */
static int train(struct net *net, lade_device *device, uint64_t budget_bytes, float (*ret_weights)[WEIGHTS],
                 struct lade_step_info *ret_info)
{
  const struct lade_graph_plan_params plan = {.struct_size = sizeof(plan), .budget_bytes = budget_bytes};
  const struct lade_step_params params = {.struct_size = sizeof(params), .op = op_run, .user = net, .device = device,
                                          .plan = &plan};
  struct lade_step_measures measures = {.struct_size = sizeof(measures)};
  lade_stepper *stepper = NULL;
  int status = lade_step_create(net->graph, &params, &net->error, ret_info, &stepper);
  if (status)
    return status;
  given_fill(stepper, net->input, ELEMENTS, 7919, 0, 0.001f);
  given_fill(stepper, net->target, ELEMENTS, 1, 0, 0.001f);
  for (int k = 0; k < LAYERS; k++)
    given_fill(stepper, net->weights[k], WEIGHTS, 37 + k, -0.18f, 0.0004f);
  for (int i = 0; i < STEPS && !status; i++)
    status = lade_step_run(stepper, &measures, &net->error);
  for (int k = 0; k < LAYERS && !status; k++)
    status = lade_step_get(stepper, net->weights[k], 0, ret_weights[k], sizeof(*ret_weights), &net->error);
  if (!status)
    printf("planned peak %2d MiB, measured peak %2d MiB, %2d ops run again, loss %.9f\n",
           (int)(ret_info->peak_bytes[LADE_DEVICE] >> 20), (int)(measures.peak_bytes[LADE_DEVICE] >> 20),
           measures.n_redone, *(double *)lade_step_address(stepper, net->loss));
  lade_step_destroy(stepper);
  return status;
}

int main(void)
{
  static const int percents[] = {100, 88, 75, 65, 0}; /* of the unconstrained peak; 0: the smallest budget */
  static float weights[2][LAYERS][WEIGHTS];
  const struct lade_device_params host = {.struct_size = sizeof(host)};
  struct lade_step_info info = {.struct_size = sizeof(info)};
  struct net net = {0};
  lade_device *device = NULL;
  uint64_t peak = 0;
  net_build(&net);
  if (!net.status)
    net.status = lade_device_open(&host, &net.error, &device);
  for (int i = 0; i < 5 && !net.status; i++) {
    const uint64_t budget_bytes = i ? peak * percents[i] / 100 : LADE_GRAPH_BUDGET_NONE;
    net.status = train(&net, device, budget_bytes, weights[i > 0], &info);
    peak = i ? peak : info.peak_bytes[LADE_DEVICE];
    if (!net.status && i && memcmp(weights[0], weights[1], sizeof(weights[0])))
      net.status = lade_error_set(&net.error, -1, "the weights differ");
  }
  fprintf(net.status ? stderr : stdout, "%s\n",
          net.status ? net.error.text : "the weights of all five are equal, bit for bit");
  lade_device_close(device);
  lade_graph_destroy(net.graph);
  return net.status ? 1 : 0;
}
