/* SPDX-License-Identifier: Apache-2.0 */
/* The cost model: which ops share a measurement, the roofline's time, and that a plan gets a price for everything. */
#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/base.h"
#include "base/cpu.h"
#include "machine/cluster.h"
#include "machine/cost.h"

static struct lade_model_graph *graph_make(const char *preset, enum lade_dtype dtype, int64_t batch, float dropout)
{
  struct lade_cpu cpu = {0};
  struct lade_kernels kernels;
  struct lade_model model;
  struct lade_model_graph *graph;
  lade_kernels_init(&kernels, &cpu);
  assert_int_equal(lade_model_preset(preset, &model, NULL), 0);
  struct lade_model_graph_params params = {.struct_size = sizeof(params), .model = &model, .dtype = dtype,
                                           .batch = batch,
                                     .seq_len = 64, .dropout = dropout, .kernels = &kernels, .n_threads = 1};
  assert_int_equal(lade_model_graph_create(&params, NULL, &graph), 0);
  return graph;
}

static void machine_make(struct lade_cost *cost, const char *preset)
{
  struct lade_machine machine;
  assert_int_equal(lade_machine_preset(preset, NULL, &machine), 0);
  lade_cost_init(cost, &machine);
}

static int distinct_keys(const struct lade_model_graph *graph)
{
  int n = 0;
  for (int i = 0; i < graph->n_ops; i++) {
    bool is_first = true;
    for (int j = 0; j < i && is_first; j++)
      is_first = lade_cost_op_key(graph, j) != lade_cost_op_key(graph, i);
    n += is_first;
  }
  return n;
}

static void equal_ops_of_all_layers_share_one_key(void **state)
{
  struct lade_model_graph *nano = graph_make("nano", LADE_F32, 2, 0);
  struct lade_model deeper = nano->model;
  deeper.layers = 9;
  struct lade_cpu cpu = {0};
  struct lade_kernels kernels;
  lade_kernels_init(&kernels, &cpu);
  struct lade_model_graph_params params = {.struct_size = sizeof(params), .model = &deeper, .dtype = LADE_F32,
                                           .batch = 2,
                                     .seq_len = 64, .kernels = &kernels, .n_threads = 1};
  struct lade_model_graph *graph;
  assert_int_equal(lade_model_graph_create(&params, NULL, &graph), 0);
  assert_true(graph->n_ops > nano->n_ops);
  assert_int_equal(distinct_keys(graph), distinct_keys(nano));
  lade_model_graph_destroy(graph);
  lade_model_graph_destroy(nano);
}

static void another_type_shape_or_dropout_is_another_key(void **state)
{
  struct lade_model_graph *base = graph_make("nano", LADE_F32, 2, 0), *type = graph_make("nano", LADE_BF16, 2, 0);
  struct lade_model_graph *shape = graph_make("nano", LADE_F32, 3, 0), *drop = graph_make("nano", LADE_F32, 2, 0.1f);
  int n_dropout = 0;
  for (int op = 0; op < base->n_ops; op++) {
    assert_true(lade_cost_op_key(base, op) != lade_cost_op_key(type, op));
    assert_true(lade_cost_op_key(base, op) != lade_cost_op_key(shape, op));
  }
  for (int op = 0; op < drop->n_ops; op++) {
    if (drop->ops[op].attr.dropout == 0)
      continue;
    uint64_t key = lade_cost_op_key(drop, op);
    drop->ops[op].attr.dropout = 0;
    assert_true(lade_cost_op_key(drop, op) != key);
    n_dropout++;
  }
  assert_true(n_dropout > 0);
  lade_model_graph_destroy(base);
  lade_model_graph_destroy(type);
  lade_model_graph_destroy(shape);
  lade_model_graph_destroy(drop);
}

/* Layers with a window, or a soft cap, have prices of their own; a window's follows from its pairs. */
static void a_window_or_a_cap_is_another_key(void **state)
{
  struct lade_model_graph *graph = graph_make("nano", LADE_F32, 2, 0);
  int n_attention = 0;
  for (int op = 0; op < graph->n_ops; op++) {
    struct lade_op_attr *attr = &graph->ops[op].attr;
    if (graph->ops[op].kind != LADE_OP_ATTENTION && graph->ops[op].kind != LADE_OP_ATTENTION_BWD)
      continue;
    const uint64_t whole = lade_cost_op_key(graph, op);
    attr->window = 8;
    const uint64_t window = lade_cost_op_key(graph, op);
    attr->window = 9;
    assert_true(window != whole && lade_cost_op_key(graph, op) != window);
    attr->window = 0;
    attr->attention_softcap = 30;
    assert_true(lade_cost_op_key(graph, op) != whole && lade_cost_op_key(graph, op) != window);
    n_attention++;
  }
  assert_true(n_attention > 0);
  lade_model_graph_destroy(graph);
}

static void a_measured_op_costs_its_measurement(void **state)
{
  struct lade_cost cost;
  machine_make(&cost, "laptop-8c");
  struct lade_model_graph *graph = graph_make("nano", LADE_F32, 2, 0);
  for (int op = graph->n_ops - 1; op >= 0; op--)
    assert_int_equal(lade_cost_set(&cost, lade_cost_op_key(graph, op), 1000 + op), 0);
  assert_int_equal(cost.n_ops, distinct_keys(graph));
  for (int i = 1; i < cost.n_ops; i++)
    assert_true(cost.ops[i - 1].key < cost.ops[i].key);
  int64_t ns;
  assert_true(lade_cost_find(&cost, lade_cost_op_key(graph, 0), &ns));
  assert_int_equal(ns, 1000); /* the last one set of that key was op 0 */
  assert_int_equal(lade_cost_op_ns(&cost, graph, 0), 1000 + (int64_t)cost.machine.launch_ns);
  assert_false(lade_cost_find(&cost, ~UINT64_C(0), &ns));
  lade_model_graph_destroy(graph);
  lade_cost_finish(&cost);
}

static void a_roofline_is_bound_by_flops_or_by_bytes(void **state)
{
  struct lade_cost cost;
  machine_make(&cost, "laptop-8c");
  struct lade_model_graph *graph = graph_make("baby", LADE_BF16, 2, 0);
  for (int op = 0; op < graph->n_ops; op++) {
    double min_s = graph->ops[op].bytes / cost.machine.device_bytes_per_s;
    int64_t ns = lade_cost_op_ns(&cost, graph, op);
    assert_true((double)ns >= min_s * 1e9);
    if (graph->ops[op].kind == LADE_OP_MATMUL) {
      struct lade_cost faster = cost;
      faster.machine.matmul_flops_per_s[LADE_BF16] *= 2;
      assert_true(lade_cost_op_ns(&faster, graph, op) < ns);
      faster.machine.matmul_flops_per_s[LADE_BF16] = 0; /* unknown: the rate of FP32 is used */
      faster.machine.matmul_flops_per_s[LADE_F32] = cost.machine.matmul_flops_per_s[LADE_BF16];
      assert_int_equal(lade_cost_op_ns(&faster, graph, op), ns);
    }
  }
  lade_model_graph_destroy(graph);
}

/* Return the summed prices of ops @kind of a model on a device whose loss moves @logit_bytes. */
static int64_t device_kind_ns(const char *preset, enum lade_op_kind kind, bool is_eager, double logit_bytes,
                              bool has_fused_norms)
{
  struct lade_model_graph *graph = graph_make(preset, LADE_BF16, 1, 0);
  struct lade_cluster cluster;
  struct lade_cost cost;
  int64_t ns = 0;
  assert_int_equal(lade_cluster_preset("dgx-h100", NULL, &cluster), 0);
  cluster.device.launch_ns = 0;
  cluster.device.kernels.logit_bytes = logit_bytes;
  lade_cost_init(&cost, &cluster.device);
  cost.is_eager = is_eager;
  cost.has_fused_norms = has_fused_norms;
  for (int op = 0; op < graph->n_ops; op++)
    ns += graph->ops[op].kind == kind ? lade_cost_op_ns(&cost, graph, op) : 0;
  lade_model_graph_destroy(graph);
  return ns;
}

static int64_t kind_ns(const char *preset, enum lade_op_kind kind, bool is_eager)
{
  return device_kind_ns(preset, kind, is_eager, 0, false);
}

/* Return the price, without launches, of layer 0's product before GELU and of GELU; @is_fused: of one op. */
static double gelu_priced_ns(struct lade_cost *cost, enum lade_dtype dtype, bool is_fused, double *ret_bytes)
{
  struct lade_kernels kernels;
  struct lade_model model;
  struct lade_model_graph *graph;
  double ns = 0;
  lade_kernels_init(&kernels, &(struct lade_cpu){0});
  assert_int_equal(lade_model_preset("gpt2-124m", &model, NULL), 0);
  const struct lade_model_graph_params params = {.struct_size = sizeof(params), .model = &model, .dtype = dtype,
                                                 .batch = 4, .seq_len = 1024, .kernels = &kernels, .n_threads = 1,
                                                 .fuses_gelu_fwd = is_fused};
  assert_int_equal(lade_model_graph_create(&params, NULL, &graph), 0);
  for (int op = 0; op < graph->n_fwd_ops; op++) {
    const struct lade_op *the_op = &graph->ops[op];
    if (graph->tensors[the_op->out[0]].unit != 1 || graph->tensors[the_op->out[0]].dims[1] != model.hidden)
      continue;
    ns += (double)lade_cost_op_ns(cost, graph, op);
    *ret_bytes = (double)graph->tensors[the_op->out[0]].bytes;
  }
  lade_model_graph_destroy(graph);
  return ns;
}

static double gelu_ns(struct lade_machine machine, enum lade_dtype dtype, bool is_fused, double *ret_bytes)
{
  struct lade_cost cost;
  machine.launch_ns = 0;
  lade_cost_init(&cost, &machine);
  return gelu_priced_ns(&cost, dtype, is_fused, ret_bytes);
}

/*
 * GELU in its product costs a GPU the product alone, which 16-bit products bind; in FP32 a GPU reads the sums again. A
 * host writes and reads them in FP32 too.
 */
static void gelu_in_its_product_costs_what_the_device_runs(void **state)
{
  struct lade_cluster cluster;
  struct lade_machine host;
  double bytes;
  assert_int_equal(lade_cluster_preset("dgx-h100", NULL, &cluster), 0);
  assert_int_equal(lade_machine_preset("laptop-8c", NULL, &host), 0);
  const double two = gelu_ns(cluster.device, LADE_BF16, false, &bytes);
  const double one = gelu_ns(cluster.device, LADE_BF16, true, &bytes);
  assert_true(fabs(two - one - 2 * bytes / cluster.device.device_bytes_per_s * 1e9) < 4);
  struct lade_cost plain;
  cluster.device.launch_ns = 0;
  lade_cost_init(&plain, &cluster.device);
  plain.has_plain_products = true; /* they have GELU themselves */
  const double two_plain = gelu_priced_ns(&plain, LADE_BF16, false, &bytes);
  const double one_plain = gelu_priced_ns(&plain, LADE_BF16, true, &bytes);
  assert_true(fabs(two_plain - one_plain - 2 * bytes / cluster.device.device_bytes_per_s * 1e9) < 4);
  const double rate = 0.85 * cluster.device.device_bytes_per_s, host_rate = 0.85 * host.device_bytes_per_s;
  const double two_f32 = gelu_ns(cluster.device, LADE_F32, false, &bytes);
  const double one_f32 = gelu_ns(cluster.device, LADE_F32, true, &bytes);
  assert_true(fabs(two_f32 - one_f32 - bytes / rate * 1e9) < 4);
  const double host_two = gelu_ns(host, LADE_BF16, false, &bytes), host_one = gelu_ns(host, LADE_BF16, true, &bytes);
  assert_true(fabs(host_one - host_two - (4 - 2) * bytes / host_rate * 1e9) < 4);
}

/* At 500 of 700 W, a quarter of which is steady, products and attention run at the cube root of 13/21 of their rate. */
static void a_lower_power_limit_slows_computing(void **state)
{
  static const struct lade_cost_work works[] = {
      {.kind = LADE_OP_MATMUL, .m = 4096, .n = 4096, .k = 4096, .n_products = 1},
      {.kind = LADE_OP_ATTENTION, .flops = 1e12},
      {.kind = LADE_OP_ATTENTION_BWD, .flops = 1e12},
      {.kind = LADE_OP_NORM, .bytes = 1e9}};
  struct lade_cluster cluster;
  assert_int_equal(lade_cluster_preset("dgx-h100", NULL, &cluster), 0);
  cluster.device.launch_ns = 0;
  for (size_t i = 0; i < LADE_COUNT(works); i++) {
    double ns[3];
    for (int at = 0; at < 3; at++) {
      struct lade_cost cost;
      cluster.device.kernels.power_watts = (double[]){0, 700, 500}[at];
      lade_cost_init(&cost, &cluster.device);
      ns[at] = (double)lade_cost_work_ns(&cost, LADE_BF16, &works[i]);
    }
    assert_true(ns[0] == ns[1]);
    assert_true(fabs(ns[2] / ns[0] * (works[i].kind == LADE_OP_NORM ? 1 : cbrt(13.0 / 21)) - 1) < 1e-4);
  }
}

/* Attention over as many tokens as the device's depth takes twice the time of its rate over very many. */
static void short_attention_is_slower(void **state)
{
  struct lade_cluster cluster;
  struct lade_cost cost;
  assert_int_equal(lade_cluster_preset("dgx-a100-80g", NULL, &cluster), 0);
  cluster.device.launch_ns = 0;
  lade_cost_init(&cost, &cluster.device);
  for (int half = 0; half < 2; half++) {
    struct lade_cost_work work = {.kind = half ? LADE_OP_ATTENTION_BWD : LADE_OP_ATTENTION, .flops = 1e12};
    const double long_ns = (double)lade_cost_work_ns(&cost, LADE_BF16, &work);
    work.seq_len = cluster.device.kernels.attention_depth;
    assert_true(fabs((double)lade_cost_work_ns(&cost, LADE_BF16, &work) / long_ns - 2) < 1e-6);
  }
}

/* 64 tokens, a vocabulary of 128,256, in both halves together @logit_bytes each. */
static void a_loss_that_is_not_fused_moves_its_logits(void **state)
{
  struct lade_cluster cluster;
  int64_t ns = 0;
  assert_int_equal(lade_cluster_preset("dgx-h100", NULL, &cluster), 0);
  for (int half = 0; half < 2; half++) {
    const enum lade_op_kind kind = half ? LADE_OP_HEAD_LOSS_BWD : LADE_OP_HEAD_LOSS;
    ns += device_kind_ns("llama3-8b", kind, false, 58, false) - kind_ns("llama3-8b", kind, false);
  }
  assert_true(fabs((double)ns - 64.0 * 128256 * 58 / cluster.device.device_bytes_per_s * 1e9) < 4);
}

/* Without a compiler norms of Llama make nine passes, layer norms one; products cost the same. */
static void eager_ops_cost_their_own_passes(void **state)
{
  const int64_t fused = kind_ns("llama3-8b", LADE_OP_NORM, false), eager = kind_ns("llama3-8b", LADE_OP_NORM, true);
  assert_true(fused > 0 && llabs(eager - 9 * fused) <= 9 * 64); /* prices of an op are whole nanoseconds */
  assert_int_equal(kind_ns("nano", LADE_OP_NORM, true), kind_ns("nano", LADE_OP_NORM, false));
  assert_int_equal(kind_ns("llama3-8b", LADE_OP_MATMUL, true), kind_ns("llama3-8b", LADE_OP_MATMUL, false));
  /* Queries, keys and values, gate and up: three sums of input gradients a layer. GPT-2's weights are whole. */
  const double sums = 32 * 3 * 3 * 2.0 * 64 * 4096 / (0.785 * 3350e9) * 1e9;
  const int64_t fused_dx = kind_ns("llama3-8b", LADE_OP_MATMUL_DX, false);
  assert_true(fabs((double)(kind_ns("llama3-8b", LADE_OP_MATMUL_DX, true) - fused_dx) - sums) < 128);
  assert_int_equal(kind_ns("nano", LADE_OP_MATMUL_DX, true), kind_ns("nano", LADE_OP_MATMUL_DX, false));
  assert_true(kind_ns("llama3-8b", LADE_OP_HEAD_LOSS, true) > kind_ns("llama3-8b", LADE_OP_HEAD_LOSS, false));
}

/* Fused RMS norms make the passes of layer norms, and other ops keep theirs. */
static void fused_norms_cost_their_own_passes(void **state)
{
  static const struct {
    enum lade_op_kind kind;
    double eager, fused; /* factors on the bytes of the fused op */
  } kinds[] = {{LADE_OP_NORM, 9, 1}, {LADE_OP_NORM_BWD, 92.0 / 6, 10.0 / 6}, {LADE_OP_RESIDUAL, 42.0 / 8, 10.0 / 8},
               {LADE_OP_RESIDUAL_BWD, 98.0 / 8, 16.0 / 8}, {LADE_OP_SWIGLU, 10.0 / 6, 10.0 / 6}};
  for (size_t i = 0; i < LADE_COUNT(kinds); i++) {
    const double own = (double)kind_ns("llama3-8b", kinds[i].kind, false);
    const double eager = (double)kind_ns("llama3-8b", kinds[i].kind, true);
    const double fused = (double)device_kind_ns("llama3-8b", kinds[i].kind, true, 0, true);
    assert_true(own > 0 && fabs(eager / own - kinds[i].eager) < 0.02 * kinds[i].eager);
    assert_true(fabs(fused / own - kinds[i].fused) < 0.02 * kinds[i].fused);
  }
}

static void copies_take_latency_and_bytes(void **state)
{
  struct lade_cost cost;
  machine_make(&cost, "h100-80g");
  cost.machine.to_host = (struct lade_link){1000000000, 5000};
  assert_int_equal(lade_cost_to_host_ns(&cost, 1000000), 5000 + 1000000);
  cost.machine.store = (struct lade_machine_store){
      .bytes = 1 << 30, .read_bytes_per_s = 4e9, .write_bytes_per_s = 2e9, .total_bytes_per_s = 5e9, .latency_ns = 100};
  assert_int_equal(lade_cost_read_ns(&cost, 4000), 100 + 1000);
  assert_int_equal(lade_cost_write_ns(&cost, 4000), 100 + 2000);
  assert_int_equal(lade_cost_read_write_ns(&cost, 8000, 4000), 100 + 2400); /* the drive's own limit binds */
}

/* The five points of a drive's curve, time linear between them, and the three rates if a point is missing. */
static void mixes_go_along_the_curve_of_the_drive(void **state)
{
  struct lade_cost cost;
  machine_make(&cost, "h100-80g");
  cost.machine.store = (struct lade_machine_store){
      .bytes = 1 << 30, .read_bytes_per_s = 4e9, .write_bytes_per_s = 1e9, .total_bytes_per_s = 2e9,
      .total_mostly_writes_bytes_per_s = 1.25e9, .total_mostly_reads_bytes_per_s = 2.5e9};
  static const struct {
    uint64_t read, write;
    int64_t ns;
  } mixes[] = {{0, 8000, 8000}, {1000, 7000, 7200}, {2000, 6000, 6400}, {3000, 5000, 5200},
               {4000, 4000, 4000}, {5000, 3000, 3600}, {6000, 2000, 3200}, {8000, 0, 2000}};
  for (size_t i = 0; i < LADE_COUNT(mixes); i++) { /* to the nanosecond to which doubles are rounded up */
    int64_t ns = lade_cost_read_write_ns(&cost, mixes[i].read, mixes[i].write);
    assert_in_range(ns, mixes[i].ns, mixes[i].ns + 1);
  }
  cost.machine.store.total_mostly_writes_bytes_per_s = 0; /* its writes bind: 6000 at 1 GB/s */
  assert_in_range(lade_cost_read_write_ns(&cost, 2000, 6000), 6000, 6001);
  assert_in_range(lade_cost_read_write_ns(&cost, 6000, 2000), 3200, 3201);
  cost.machine.store.total_mostly_reads_bytes_per_s = 0; /* both together bind */
  assert_in_range(lade_cost_read_write_ns(&cost, 6000, 2000), 4000, 4001);
}

/*
 * Known lasting rates replace the first ones, in either direction. Other mixes go between them, or with the nearest.
 */
static void lasting_rates_replace_those_of_the_first_bytes(void **state)
{
  struct lade_cost cost;
  machine_make(&cost, "h100-80g");
  struct lade_machine_store *store = &cost.machine.store;
  *store = (struct lade_machine_store){
      .bytes = 1 << 30, .read_bytes_per_s = 4e9, .write_bytes_per_s = 1e9, .total_bytes_per_s = 2e9,
      .total_mostly_writes_bytes_per_s = 1.25e9, .total_mostly_reads_bytes_per_s = 2.5e9, .latency_ns = 100};
  assert_true(fabs(lade_drive_bytes_per_s(store, 0.5) / 2e9 - 1) < 1e-9);
  store->lasting_bytes_per_s = 0.5e9; /* alone: all rates fall to a quarter */
  store->lasting_latency_ns = 900;
  assert_true(lade_drive_latency_ns(store) == 900);
  assert_true(fabs(lade_drive_bytes_per_s(store, 0.5) / 0.5e9 - 1) < 1e-9);
  assert_in_range(lade_cost_read_ns(&cost, 8000), 8900, 8901);
  assert_in_range(lade_cost_write_ns(&cost, 8000), 32900, 32901);
  assert_in_range(lade_cost_read_write_ns(&cost, 4000, 4000), 16900, 16901);
  store->lasting_read_bytes_per_s = 8e9; /* half the time of reads, and four times that of both: 2.25 between them */
  assert_in_range(lade_cost_read_ns(&cost, 8000), 1900, 1901);
  assert_in_range(lade_cost_write_ns(&cost, 8000), 32900, 32901);
  assert_in_range(lade_cost_read_write_ns(&cost, 6000, 2000), 900 + 7200, 900 + 7201);
  store->lasting_bytes_per_s = 0;
  store->lasting_write_bytes_per_s = 0.5e9; /* twice the time of writes: 1.25 in the middle */
  assert_in_range(lade_cost_write_ns(&cost, 8000), 16900, 16901);
  assert_in_range(lade_cost_read_write_ns(&cost, 4000, 4000), 900 + 5000, 900 + 5001);
  struct lade_prices prices;
  struct lade_model_graph *graph = graph_make("nano", LADE_F32, 2, 0);
  assert_int_equal(lade_cost_prices(&cost, graph, &prices), 0);
  assert_true(fabs(prices.read.ns_per_byte * 8 - 1) < 1e-9 && fabs(prices.write.ns_per_byte / 2 - 1) < 1e-9);
  lade_prices_finish(&prices);
  lade_model_graph_destroy(graph);
}

/* Without a cluster bytes between ranks go over the link to the host; on a unified machine cores are shared instead. */
static void links_are_those_of_the_machine(void **state)
{
  struct lade_model_graph *graph = graph_make("nano", LADE_F32, 2, 0);
  for (int kind = 0; kind < 3; kind++) {
    struct lade_machine machine;
    struct lade_prices prices;
    struct lade_error error;
    struct lade_cost cost;
    assert_int_equal(lade_machine_preset(kind == 2 ? "laptop-8c" : "a100-80g", &error, &machine), 0);
    machine.is_duplex = kind != 1;
    lade_cost_init(&cost, &machine);
    assert_int_equal(lade_cost_prices(&cost, graph, &prices), 0);
    const double share = kind == 2 ? 0 : 1;
    assert_true(prices.comm_shares[LADE_AXIS_DP].of[LADE_LINK_HOST] == share);
    assert_true(prices.boundary_shares.of[LADE_LINK_HOST] == share && prices.has_half_duplex == (kind == 1));
    assert_true(prices.comm_shares[LADE_AXIS_DP].of[LADE_LINK_LEVELS] == 0);
    lade_prices_finish(&prices);
    lade_cost_finish(&cost);
  }
  lade_model_graph_destroy(graph);
}

static void adamw_moves_the_bytes_of_its_types(void **state)
{
  int read, written;
  struct lade_adamw_args form = {.dtype = LADE_BF16, .grad_dtype = LADE_F32};
  lade_cost_adamw_bytes(&form, &read, &written);
  assert_int_equal(read, 2 + 2 + 4 + 4 + 4);
  assert_int_equal(written, 2 + 2 + 4 + 4);
  form.moments = LADE_MOMENTS_8BIT;
  form.master = LADE_MASTER_24BIT;
  lade_cost_adamw_bytes(&form, &read, &written);
  assert_int_equal(written, 2 + 1 + 1 + 1);
  form = (struct lade_adamw_args){.dtype = LADE_F32, .grad_dtype = LADE_F32};
  lade_cost_adamw_bytes(&form, &read, &written);
  assert_int_equal(read, 16);
  form = (struct lade_adamw_args){.dtype = LADE_F16, .grad_dtype = LADE_BF16};
  lade_cost_adamw_bytes(&form, &read, &written);
  assert_int_equal(written, 2 + 4 + 4 + 4);
  assert_int_equal(read, written + 2);
}

static void an_update_costs_more_the_further_its_state_is(void **state)
{
  struct lade_cost cost;
  machine_make(&cost, "h100-80g");
  struct lade_adamw_args form = {.dtype = LADE_BF16, .grad_dtype = LADE_F32, .n_elements = 100 << 20};
  int64_t device = lade_cost_adamw_ns(&cost, &form, false);
  int64_t host = lade_cost_adamw_ns(&cost, &form, true);
  int64_t near = lade_cost_adamw_store_ns(&cost, &form, false), store = lade_cost_adamw_store_ns(&cost, &form, true);
  assert_true(device < host && host < near && near < store);
  int64_t edge = lade_cost_stream_edge_ns(&cost, &form, true);
  assert_true(edge > 0 && edge < store / 100); /* a window at each end */
  form.n_elements = 1000;
  assert_true(lade_cost_stream_edge_ns(&cost, &form, true) < edge);
  /* Windows of a run follow each other, so the drive's latency counts at both ends of a run and not in each update. */
  store = lade_cost_adamw_store_ns(&cost, &form, true);
  edge = lade_cost_stream_edge_ns(&cost, &form, true);
  cost.machine.store.latency_ns += 1000000;
  assert_int_equal(lade_cost_adamw_store_ns(&cost, &form, true), store);
  assert_int_equal(lade_cost_stream_edge_ns(&cost, &form, true), edge + 2000000);
}

/* Whatever the bytes of an element, a window takes about the same time, in whole grains. */
static void windows_are_cut_by_bytes(void **state)
{
  struct lade_cost cost;
  machine_make(&cost, "h100-80g");
  struct lade_streaming streaming = lade_cost_streaming(&cost);
  assert_int_equal(streaming.window_bytes, 3 << 19); /* of no particular drive */
  assert_int_equal(streaming.n_windows, 6);
  for (size_t bytes = 3; bytes <= 12; bytes++) {
    int64_t n = lade_stream_window_elements(&streaming, bytes);
    assert_int_equal(n % LADE_STREAM_GRAIN, 0);
    assert_true((uint64_t)n * bytes <= streaming.window_bytes);
    assert_true((uint64_t)(n + LADE_STREAM_GRAIN) * bytes > streaming.window_bytes);
  }
  cost.machine.store.window_bytes = 1; /* too few for a grain */
  cost.machine.store.n_windows = 2;
  streaming = lade_cost_streaming(&cost);
  assert_int_equal(streaming.n_windows, 2);
  assert_int_equal(lade_stream_window_elements(&streaming, 10), LADE_STREAM_GRAIN);
}

static void every_part_of_a_step_has_a_price(void **state)
{
  static const char *const machines[] = {"h100-80g", "laptop-8c"};
  struct lade_model_graph *graph = graph_make("nano", LADE_BF16, 2, 0);
  for (size_t i = 0; i < LADE_COUNT(machines); i++) {
    struct lade_cost cost;
    struct lade_prices prices;
    machine_make(&cost, machines[i]);
    cost.machine.store.bytes = 0; /* an absent store is never the cheapest */
    cost.machine.store.n_windows = 4;
    assert_int_equal(lade_cost_prices(&cost, graph, &prices), 0);
    /* as measured on the drive */
    assert_true(prices.streaming.n_windows == 4 && prices.streaming.window_bytes == 3 << 19);
    for (int op = 0; op < graph->n_ops; op++)
      assert_int_equal(prices.op_ns[op], lade_cost_op_ns(&cost, graph, op));
    for (int p = 0; p < graph->n_params; p++) {
      assert_true(prices.grad_sumsq_ns[p] > 0);
      assert_true(prices.update_ns[LADE_TIER_DEVICE][p] > 0 && prices.update_ns[LADE_TIER_HOST][p] > 0);
      assert_true(prices.update_ns[LADE_TIER_STORE][p] > 1000 * prices.update_ns[LADE_TIER_HOST][p]);
    }
    assert_true(prices.clip_ns > 0 && prices.read.ns_per_byte > prices.to_host.ns_per_byte);
    assert_true((prices.n_cores > 0) == cost.machine.is_unified);
    lade_prices_finish(&prices);
  }
  lade_model_graph_destroy(graph);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(equal_ops_of_all_layers_share_one_key),
      cmocka_unit_test(another_type_shape_or_dropout_is_another_key),
      cmocka_unit_test(a_window_or_a_cap_is_another_key),
      cmocka_unit_test(a_measured_op_costs_its_measurement),
      cmocka_unit_test(a_roofline_is_bound_by_flops_or_by_bytes),
      cmocka_unit_test(eager_ops_cost_their_own_passes),
      cmocka_unit_test(fused_norms_cost_their_own_passes),
      cmocka_unit_test(gelu_in_its_product_costs_what_the_device_runs),
      cmocka_unit_test(a_lower_power_limit_slows_computing),
      cmocka_unit_test(short_attention_is_slower),
      cmocka_unit_test(a_loss_that_is_not_fused_moves_its_logits),
      cmocka_unit_test(copies_take_latency_and_bytes),
      cmocka_unit_test(mixes_go_along_the_curve_of_the_drive),
      cmocka_unit_test(lasting_rates_replace_those_of_the_first_bytes),
      cmocka_unit_test(links_are_those_of_the_machine),
      cmocka_unit_test(adamw_moves_the_bytes_of_its_types),
      cmocka_unit_test(an_update_costs_more_the_further_its_state_is),
      cmocka_unit_test(windows_are_cut_by_bytes),
      cmocka_unit_test(every_part_of_a_step_has_a_price),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
