/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tensor and sequence parallel graphs, run in lockstep: the graphs of all ranks, op by op, with the collectives between
 * them done by the test. Losses and gradients, assembled from the ranks' slices, are those of the whole model's graph:
 * in FP32 mostly bit for bit, in double and BF16 within their roundings. Values that several ranks hold are equal bit
 * for bit, and the bytes sent follow Megatron's closed form.
 */
#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/base.h"
#include "base/cpu.h"
#include "kernels/host/element/element.h"
#include "tests/support/graph_run.h"
#include "tests/support/names.h"

#define BATCH 2
#define SEQ_LEN 16
#define ROWS (BATCH * SEQ_LEN)
#define RANKS_MAX 8
#define MICROBATCHES 2

struct shape {
  const struct lade_model *model;
  enum lade_dtype dtype;
  float dropout;
  int tp;
  bool is_sequence, is_tied;
};

static const struct lade_model gpt2 = {.name = "small gpt2", .family = LADE_GPT2, .layers = 2, .heads = 8,
                                       .n_kv_heads = 8, .width = 64, .hidden = 256, .context = 24, .vocabulary = 65,
                                       .norm_eps = 1e-5f};
static const struct lade_model llama = {.name = "small llama", .family = LADE_LLAMA, .layers = 2, .heads = 8,
                                        .n_kv_heads = 4, .width = 256, .hidden = 512, .context = 32,
                                        .vocabulary = 1000, .norm_eps = 1e-5f, .rope_base = 10000};
/* One KV head for all: as many copies as ranks; heads wider than the model. */
static const struct lade_model llama_one_key = {.name = "one key head", .family = LADE_LLAMA, .layers = 2, .heads = 8,
                                                .n_kv_heads = 1, .width = 32, .hidden = 48, .context = 32,
                                                .vocabulary = 61, .head_dim = 6, .norm_eps = 1e-5f,
                                                .rope_base = 10000};

/* Every form of attention's scores: with masked documents, a window in one layer. */
static const struct lade_model windows = {.name = "windows", .family = LADE_LLAMA, .layers = 2, .heads = 8,
                                          .n_kv_heads = 4, .width = 64, .hidden = 96, .context = 32, .vocabulary = 61,
                                          .norm_eps = 1e-5f, .rope_base = 10000, .attention_scale = 0.3f,
                                          .attention_softcap = 2, .window = 5, .windowed = {.bits = {2}},
                                          .has_sinks = true};

/* ALiBi, whose slopes are of all ranks' heads, after clamped queries, keys and values. */
static const struct lade_model mpt = {.name = "small mpt", .family = LADE_MPT, .layers = 2, .heads = 8,
                                      .n_kv_heads = 8, .width = 64, .hidden = 256, .context = 24, .vocabulary = 65,
                                      .norm_eps = 1e-5f, .alibi_max = 8, .qkv_clip = 0.5f};

/* ---- the ranks ---- */

struct job {
  struct shape shape;
  struct lade_model model;
  struct lade_kernels kernels;
  struct lade_model_graph *whole, *graphs[RANKS_MAX];
  struct graph_run whole_run, runs[RANKS_MAX];
  int32_t tokens[MICROBATCHES * ROWS], targets[MICROBATCHES * ROWS];
};

static struct lade_model_graph *graph_make(const struct job *job, int tp, int rank)
{
  struct lade_model_graph_params params = {.struct_size = sizeof(params), .model = &job->model,
                                           .dtype = job->shape.dtype,
                                     .batch = BATCH, .seq_len = SEQ_LEN, .dropout = job->shape.dropout,
                                     .kernels = &job->kernels, .n_threads = 1,
                                     .has_documents = job->model.has_sinks,
                                     .share = {.tp = tp, .tp_rank = rank, .is_sequence = job->shape.is_sequence}};
  struct lade_error error = {0};
  struct lade_model_graph *graph = NULL;
  if (lade_model_graph_create(&params, &error, &graph))
    print_error("%s\n", error.text);
  assert_non_null(graph);
  return graph;
}

/* Return the first element of row @row of a slice in the whole model's parameter. */
static int64_t whole_element(const struct lade_param_slice *slice, int64_t row)
{
  return (slice->base_row + slice->file_row + row) * slice->file_cols + slice->file_col;
}

static int64_t tensor_cols(const struct lade_model_graph *graph, int tensor)
{
  return graph->tensors[tensor].n_dims > 1 ? graph->tensors[tensor].dims[1] : 1;
}

/* Cut a rank's parameters out of the whole model's; padding is zero. */
static void params_cut(struct job *job, int rank)
{
  const struct lade_model_graph *graph = job->graphs[rank];
  size_t element_bytes = lade_dtype_bytes(graph->dtype);
  for (int p = 0; p < graph->n_params; p++) {
    const struct lade_param *param = &graph->params[p];
    int64_t n_cols = tensor_cols(graph, param->tensor);
    const char *from = job->whole_run.memory[job->whole->params[p].tensor];
    char *to = job->runs[rank].memory[param->tensor];
    memset(to, 0, graph->tensors[param->tensor].bytes);
    for (int i = 0; i < param->n_slices; i++)
      for (int64_t row = 0; row < param->slices[i].n_rows; row++)
        memcpy(to + (size_t)((param->slices[i].first_row + row) * n_cols) * element_bytes,
               from + (size_t)whole_element(&param->slices[i], row) * element_bytes, (size_t)n_cols * element_bytes);
  }
}

static void job_init(struct job *job, const struct shape *shape, struct lade_cpu cpu)
{
  *job = (struct job){.shape = *shape, .model = *shape->model};
  job->model.is_tied = shape->is_tied;
  lade_kernels_init(&job->kernels, &cpu);
  job->whole = graph_make(job, 1, 0);
  graph_run_init(&job->whole_run, job->whole, &job->kernels, NULL);
  graph_run_randomize(&job->whole_run, 5, 0.08);
  for (int rank = 0; rank < shape->tp; rank++) {
    job->graphs[rank] = graph_make(job, shape->tp, rank);
    graph_run_init(&job->runs[rank], job->graphs[rank], &job->kernels, NULL);
    params_cut(job, rank);
  }
  for (int i = 0; i < MICROBATCHES * ROWS; i++) {
    job->tokens[i] = (int32_t)((i * 37 + i / 5) % job->model.vocabulary);
    job->targets[i] = i % 9 == 4 ? -1 : (int32_t)((i * 53 + 3) % job->model.vocabulary);
  }
}

static void job_finish(struct job *job)
{
  for (int rank = 0; rank < job->shape.tp; rank++) {
    graph_run_finish(&job->runs[rank]);
    lade_model_graph_destroy(job->graphs[rank]);
  }
  graph_run_finish(&job->whole_run);
  lade_model_graph_destroy(job->whole);
}

/* ---- collectives ---- */

/*
 * Return the sum over ranks [first, first + n) of element @i of @tensor, over the communicators' tree and in their
 * precision.
 */
static double ranks_sum(const struct job *job, int first, int n, int tensor, int64_t i)
{
  if (n == 1)
    return graph_run_get(&job->runs[first], tensor, i);
  int n_left = 1;
  while (2 * n_left < n)
    n_left *= 2;
  double left = ranks_sum(job, first, n_left, tensor, i);
  double right = ranks_sum(job, first + n_left, n - n_left, tensor, i);
  return job->shape.dtype == LADE_F64 ? left + right : (double)((float)left + (float)right);
}

static void sums_run(struct job *job, const struct lade_op *op)
{
  int n_ranks = job->shape.tp, in = op->in[0], out = op->out[0];
  int64_t n = graph_run_elements(&job->runs[0], out);
  bool is_scatter = op->kind == LADE_OP_REDUCE_SCATTER;
  for (int64_t i = 0; i < (is_scatter ? n * n_ranks : n); i++) {
    double sum = ranks_sum(job, 0, n_ranks, in, i);
    for (int rank = 0; rank < n_ranks; rank++)
      if (!is_scatter || i / n == rank)
        graph_run_set(&job->runs[rank], out, is_scatter ? i % n : i, sum);
  }
}

static void gather_run(struct job *job, const struct lade_op *op)
{
  uint64_t bytes = job->graphs[0]->tensors[op->in[0]].bytes;
  for (int to = 0; to < job->shape.tp; to++)
    for (int from = 0; from < job->shape.tp; from++)
      memcpy((char *)job->runs[to].memory[op->out[0]] + (size_t)from * bytes, job->runs[from].memory[op->in[0]], bytes);
}

static void op_run(struct job *job, int i_op, int microbatch)
{
  const struct lade_op *op = &job->graphs[0]->ops[i_op];
  for (int rank = 0; rank < job->shape.tp; rank++) {
    assert_int_equal(job->graphs[rank]->ops[i_op].kind, op->kind);
    if (!lade_op_is_collective(op->kind))
      graph_run_op(&job->runs[rank], i_op, microbatch, MICROBATCHES);
  }
  if (op->kind == LADE_OP_ALL_GATHER)
    gather_run(job, op);
  else if (lade_op_is_collective(op->kind))
    sums_run(job, op);
}

/* Sum the parts of a complete gradient over the ranks that have them, as a step does. */
static void shared_rows_add(struct job *job, int param)
{
  const struct lade_param *the_param = &job->graphs[0]->params[param];
  int n_sharers = the_param->n_sharers, grad = the_param->grad;
  int64_t n_cols = tensor_cols(job->graphs[0], grad), n = graph_run_elements(&job->runs[0], grad);
  if (n_sharers == 1)
    return;
  for (int first = 0; first < job->shape.tp; first += n_sharers)
    for (int64_t i = the_param->first_shared_row * n_cols; i < n; i++) {
      double sum = ranks_sum(job, first, n_sharers, grad, i);
      for (int rank = first; rank < first + n_sharers; rank++)
        graph_run_set(&job->runs[rank], grad, i, sum);
    }
}

/* Run one step of all ranks. Their losses have the same bits. Return the first rank's. */
static double ranks_step(struct job *job)
{
  double loss = 0;
  for (int m = 0; m < MICROBATCHES; m++) {
    for (int rank = 0; rank < job->shape.tp; rank++)
      graph_run_feed(&job->runs[rank], job->tokens, job->targets, m);
    for (int i = 0; i < job->graphs[0]->n_ops; i++)
      op_run(job, i, m);
    for (int rank = 1; rank < job->shape.tp; rank++)
      assert_true(graph_run_get(&job->runs[rank], job->graphs[rank]->loss, 0) ==
                  graph_run_get(&job->runs[0], job->graphs[0]->loss, 0));
    loss += graph_run_get(&job->runs[0], job->graphs[0]->loss, 0) / MICROBATCHES;
  }
  for (int param = 0; param < job->graphs[0]->n_params; param++)
    shared_rows_add(job, param);
  return loss;
}

/* ---- comparison ---- */

/*
 * Return one rank's squared differences from @reference's whole gradient of @param in the elements that it owns, and
 * count them.
 */
static double rank_compare(const struct job *job, const struct graph_run *reference, int rank, int param,
                           uint8_t *n_owners)
{
  const struct lade_model_graph *graph = job->graphs[rank];
  const struct lade_param *part = &graph->params[param];
  int64_t n_cols = tensor_cols(graph, part->grad);
  double squares = 0;
  for (int i = 0; i < part->n_slices; i++) {
    const struct lade_param_slice *slice = &part->slices[i];
    for (int64_t row = 0; row < LADE_MIN(slice->n_rows, part->n_owned_rows - slice->first_row); row++)
      for (int64_t col = 0; col < n_cols; col++) {
        int64_t at = (slice->first_row + row) * n_cols + col, whole = whole_element(slice, row) + col;
        squares += pow(graph_run_get(&job->runs[rank], part->grad, at) -
                           graph_run_get(reference, reference->graph->params[param].grad, whole),
                       2);
        n_owners[whole]++;
      }
  }
  return squares;
}

/* Return the distance of the ranks' gradient from @reference's. Every element has one owner. */
static double ranks_error(const struct job *job, const struct graph_run *reference, int param)
{
  int64_t n = graph_run_elements(reference, reference->graph->params[param].grad);
  uint8_t *n_owners = calloc((size_t)n, 1);
  assert_non_null(n_owners);
  double squares = 0;
  for (int rank = 0; rank < job->shape.tp; rank++)
    squares += rank_compare(job, reference, rank, param, n_owners);
  for (int64_t i = 0; i < n; i++)
    assert_int_equal(n_owners[i], 1);
  free(n_owners);
  return sqrt(squares);
}

/* Return the distance of the whole model's gradient from @reference's, or from zero if that is NULL. */
static double whole_error(const struct job *job, const struct graph_run *reference, int param)
{
  int grad = job->whole->params[param].grad;
  double squares = 0;
  for (int64_t i = 0; i < graph_run_elements(&job->whole_run, grad); i++) {
    double other = reference ? graph_run_get(reference, reference->graph->params[param].grad, i) : 0;
    squares += pow(graph_run_get(&job->whole_run, grad, i) - other, 2);
  }
  return sqrt(squares);
}

/* Return the scale for zero gradients, which are rounding alone: a thousandth of all gradients' norm. */
static double min_get(const struct job *job)
{
  double all = 0;
  for (int i = 0; i < job->whole->n_params; i++)
    all += pow(whole_error(job, NULL, i), 2);
  return 1e-3 * sqrt(all);
}

static void gradient_compare(const struct job *job, int param, double tolerance, double min)
{
  double error = ranks_error(job, &job->whole_run, param), scale = fmax(whole_error(job, NULL, param), min);
  if (!(error <= tolerance * scale))
    fail_msg("%s tp %d%s %s: gradient of %s differs by %g of %g", job->model.name, job->shape.tp,
             job->shape.is_sequence ? " with rows cut" : "", lade_dtype_name(job->shape.dtype),
             job->whole->tensors[job->whole->params[param].tensor].name, error, scale);
}

/*
 * Check that rows which a rank holds and does not own equal the owner's bit for bit. The owner is the first rank, or
 * the first of its KV heads.
 */
static void replicas_compare(const struct job *job, int param)
{
  for (int rank = 1; rank < job->shape.tp; rank++) {
    const struct lade_model_graph *graph = job->graphs[rank];
    const struct lade_param *the_param = &graph->params[param];
    const struct lade_tensor *tensor = &graph->tensors[the_param->grad];
    size_t first = (size_t)(the_param->n_owned_rows * tensor_cols(graph, the_param->grad)) *
                   lade_dtype_bytes(tensor->dtype);
    int owner = the_param->n_owned_rows > 0 ? rank / the_param->n_sharers * the_param->n_sharers : 0;
    if (the_param->n_owned_rows < tensor->dims[0])
      assert_memory_equal((const char *)job->runs[rank].memory[the_param->grad] + first,
                          (const char *)job->runs[owner].memory[the_param->grad] + first, tensor->bytes - first);
  }
}

/* Check that rows outside all slices are padding without gradient. */
static void padding_check(const struct job *job, int param)
{
  for (int rank = 0; rank < job->shape.tp; rank++) {
    const struct lade_param *the_param = &job->graphs[rank]->params[param];
    const struct lade_param_slice *last = &the_param->slices[the_param->n_slices - 1];
    int64_t n_cols = tensor_cols(job->graphs[rank], the_param->grad);
    int64_t n = graph_run_elements(&job->runs[rank], the_param->grad);
    for (int64_t i = (last->first_row + last->n_rows) * n_cols; i < n; i++)
      assert_true(graph_run_get(&job->runs[rank], the_param->grad, i) == 0);
  }
}

struct bounds {
  double loss, gradient; /* relative */
  double summed_gradient; /* of gradients summed once a step from the ranks' parts */
};

static void shape_check(const struct shape *shape, struct lade_cpu cpu, struct bounds bounds)
{
  struct job job;
  job_init(&job, shape, cpu);
  double whole_loss = graph_run_step(&job.whole_run, job.tokens, job.targets, MICROBATCHES, true);
  double loss = ranks_step(&job), min = min_get(&job);
  if (!(fabs(loss - whole_loss) <= bounds.loss * whole_loss))
    fail_msg("%s tp %d: loss %.9g, of the whole model %.9g", job.model.name, shape->tp, loss, whole_loss);
  for (int param = 0; param < job.whole->n_params; param++) {
    bool is_summed = job.graphs[0]->params[param].n_sharers > 1;
    gradient_compare(&job, param, is_summed ? bounds.summed_gradient : bounds.gradient, min);
    replicas_compare(&job, param);
    padding_check(&job, param);
  }
  job_finish(&job);
}

/* ---- properties ---- */

static void double_gradients_are_those_of_the_whole_model(void **state)
{
  const struct lade_model *const models[] = {&gpt2, &llama_one_key, &windows, &mpt};
  for (int i = 0; i < 32; i++) {
    struct shape shape = {.model = models[i / 8], .dtype = LADE_F64, .dropout = 0.2f, .tp = i & 1 ? 8 : 2,
                          .is_sequence = i & 2, .is_tied = i & 4};
    shape_check(&shape, (struct lade_cpu){0}, (struct bounds){1e-12, 1e-11, 1e-11});
  }
}

/*
 * In FP32 all sums that ranks share have one order for 1, 2, 4 and 8 ranks. Only sums over parts of a parameter's
 * gradient have other orders, and no other value depends on them: with rows cut, those of norms and of biases after a
 * sum. Fewer KV heads than ranks are a separate case, because parts of their gradients pass through products before
 * they are summed.
 */
static void fp32_losses_and_gradients_have_the_bits_of_the_whole_model(void **state)
{
  const struct lade_model *const models[] = {&gpt2, &llama, &windows, &mpt};
  for (int i = 0; i < 48; i++) {
    struct shape shape = {.model = models[i / 12], .dtype = LADE_F32, .dropout = i & 1 ? 0.1f : 0,
                          .tp = 2 << i / 4 % 3, .is_sequence = i & 2, .is_tied = i & 1};
    bool has_all_keys = shape.tp <= shape.model->n_kv_heads;
    shape_check(&shape, lade_cpu_get(), (struct bounds){0, has_all_keys ? 0 : 1e-6, 1e-6});
  }
}

/* Compare with the gradient in double, of parameters that every type represents exactly. */
static void fp32_gradients_are_as_exact_as_the_whole_models(void **state)
{
  for (int i = 0; i < 4; i++) {
    struct job job, exact;
    struct shape shape = {.model = &gpt2, .dtype = LADE_F32, .tp = i & 1 ? 8 : 2, .is_sequence = i & 2};
    job_init(&job, &shape, lade_cpu_get());
    shape.dtype = LADE_F64;
    job_init(&exact, &shape, (struct lade_cpu){0});
    graph_run_step(&job.whole_run, job.tokens, job.targets, MICROBATCHES, true);
    graph_run_step(&exact.whole_run, job.tokens, job.targets, MICROBATCHES, true);
    ranks_step(&job);
    double min = min_get(&exact);
    for (int param = 0; param < job.whole->n_params; param++) {
      double scale = fmax(whole_error(&exact, NULL, param), min);
      assert_true(ranks_error(&job, &exact.whole_run, param) <=
                  2 * whole_error(&job, &exact.whole_run, param) + 2e-7 * scale);
    }
    job_finish(&exact);
    job_finish(&job);
  }
}

/*
 * In addition to the whole model's roundings a rank rounds its part of each sum, and the sum: two of 2^-9 more at four
 * places of a layer and direction. Sixteen units bound their total.
 */
static void bf16_stays_within_its_roundings(void **state)
{
  const struct lade_model *const models[] = {&gpt2, &llama};
  for (int i = 0; i < 8; i++) {
    struct shape shape = {.model = models[i / 4], .dtype = LADE_BF16, .tp = i & 1 ? 8 : 2, .is_sequence = i & 2};
    shape_check(&shape, lade_cpu_get(), (struct bounds){4 * 0x1p-8, 16 * 0x1p-8, 16 * 0x1p-8});
  }
}

/* ---- bytes sent ---- */

/*
 * Return the bytes that a rank sends per microbatch. Megatron-LM: four sums of [N, d] in a layer, two forward and two
 * backward (Narayanan et al. 2021, 3.2), each 2 (t-1)/t of it in a ring. The embedding and the head add one of each
 * direction. As many with rows cut, where a gather and a scatter replace a sum (Korthikanti et al. 2022, 4.2.2).
 * *ret_small: three FP32 numbers per row for the loss, from every rank to every other.
 */
static double bytes_by_formula(const struct shape *shape, double *ret_small)
{
  double t = shape->tp, whole = (double)ROWS * (double)shape->model->width * (double)lade_dtype_bytes(shape->dtype);
  *ret_small = (t - 1) * 3 * ROWS * sizeof(float);
  return (4 * (double)shape->model->layers + 2) * 2 * (t - 1) / t * whole;
}

static void bytes_sent_are_megatrons(void **state)
{
  for (int i = 0; i < 12; i++) {
    struct shape shape = {.model = i & 1 ? &gpt2 : &llama, .dtype = i & 2 ? LADE_BF16 : LADE_F32, .tp = 2 << i / 4,
                          .is_sequence = i & 2, .is_tied = i & 1};
    struct job job;
    double sent = 0, small;
    job_init(&job, &shape, (struct lade_cpu){0});
    for (int j = 0; j < job.graphs[0]->n_ops; j++)
      if (lade_op_is_collective(job.graphs[0]->ops[j].kind))
        sent += job.graphs[0]->ops[j].bytes;
    double wanted = bytes_by_formula(&shape, &small);
    assert_true(sent == wanted + small);
    job_finish(&job);
  }
}

static void sizes_that_do_not_divide_are_refused(void **state)
{
  const struct {
    struct lade_share share;
    const char *words;
  } bad[] = {{{.tp = 3}, "heads"}, {{.tp = 2, .tp_rank = 2}, "rank 2"}, {{.tp = 16}, "heads"}};
  struct job job = {.model = llama};
  lade_kernels_init(&job.kernels, &(struct lade_cpu){0});
  struct lade_model_graph_params params = {.struct_size = sizeof(params), .model = &job.model, .dtype = LADE_F32,
                                           .batch = 1,
                                     .seq_len = 5, .kernels = &job.kernels, .n_threads = 1};
  struct lade_model_graph *graph = NULL;
  struct lade_error error = {0};
  for (size_t i = 0; i < LADE_COUNT(bad); i++) {
    params.share = bad[i].share;
    assert_int_equal(lade_model_graph_create(&params, &error, &graph), -EINVAL);
    assert_non_null(strstr(error.text, bad[i].words));
  }
  params.share = (struct lade_share){.tp = 2, .is_sequence = true}; /* of five rows */
  assert_int_equal(lade_model_graph_create(&params, &error, &graph), -EINVAL);
  assert_names(error.text, "5 tokens", "2 ranks");
  job.model.vocabulary = 9; /* two each: the last three would have none */
  params.share = (struct lade_share){.tp = 8};
  assert_int_equal(lade_model_graph_create(&params, &error, &graph), -EINVAL);
  assert_names(error.text, "vocabulary of 9", "8");
  assert_null(graph);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(double_gradients_are_those_of_the_whole_model),
      cmocka_unit_test(fp32_losses_and_gradients_have_the_bits_of_the_whole_model),
      cmocka_unit_test(fp32_gradients_are_as_exact_as_the_whole_models),
      cmocka_unit_test(bytes_sent_are_megatrons),
      cmocka_unit_test(sizes_that_do_not_divide_are_refused),
      cmocka_unit_test(bf16_stays_within_its_roundings),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
