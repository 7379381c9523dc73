/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Causal attention, plain: the reference of both directions.
 *
 * Forward: one task per (sequence, head). A query's scores against all keys up to it are one row in the thread's
 * scratch. So the softmax is the textbook one, in double for every dtype.
 *
 * Backward: one task per (sequence, key head), which alone writes that head's dk and dv; they are summed in scratch
 * over the group's query heads and their queries in rising order. With delta_i = dout_i . out_i (Dao et al. 2022,
 * appendix B.4) and p_ij = exp(s_ij - lse_i), keep factors z:
 *   dv_j = sum_i z_ij p_ij dout_i      ds_ij = p_ij (z_ij dout_i . v_j - delta_i)
 *   dq_i = sum_j ds_ij k_j / sqrt(D)   dk_j = sum_i ds_ij q_i / sqrt(D)
 * With a soft cap c the scores are c t with t = tanh(s / c), and ds has the factor 1 - t^2 as well. ALiBi's term is a
 * constant of a pair, so it is in the scores alone. A sink is a key whose value is zero: d_sink = -sum_i exp(sink -
 * lse_i) delta_i, summed for each sequence and then over them.
 *
 * Time O(B H T^2 D), scratch O(T D) per thread: no T*T matrix here either.
 */
#include <math.h>
#include <string.h>

#include "base/base.h"
#include "base/philox.h"
#include "kernels/host/attention/attention_blocked.h"
#include "kernels/host/attention/attention_form.h"
#include "kernels/host/element/element.h"
#include "kernels/host/host.h"

/* Shared by both directions: sizes, and the places of heads in a row of qkv. */
struct attention_shape {
  enum lade_dtype dtype;
  int64_t batch, seq_len, heads, n_kv_heads, head_dim;
  int64_t row;   /* elements of a qkv row */
  int64_t group; /* query heads per key head */
  int64_t draw_heads; /* heads of the whole model, by which dropout's draws count */
  double scale;
  const struct lade_score_form *form;
};

static struct attention_shape shape_make(enum lade_dtype dtype, int64_t batch, int64_t seq_len, int64_t heads,
                                         int64_t n_kv_heads, int64_t head_dim, const struct lade_score_form *form)
{
  LADE_ASSERT(heads % n_kv_heads == 0);
  return (struct attention_shape){.dtype = dtype, .batch = batch, .seq_len = seq_len, .heads = heads,
                                  .n_kv_heads = n_kv_heads, .head_dim = head_dim,
                                  .row = (heads + 2 * n_kv_heads) * head_dim, .group = heads / n_kv_heads,
                                  .draw_heads = heads, .scale = score_scale_get(form, head_dim), .form = form};
}

static int64_t q_index(const struct attention_shape *shape, int64_t b, int64_t h, int64_t i)
{
  return (b * shape->seq_len + i) * shape->row + h * shape->head_dim;
}

static int64_t k_index(const struct attention_shape *shape, int64_t b, int64_t h, int64_t j)
{
  return q_index(shape, b, shape->heads + h / shape->group, j);
}

static int64_t v_index(const struct attention_shape *shape, int64_t b, int64_t h, int64_t j)
{
  return q_index(shape, b, shape->heads + shape->n_kv_heads + h / shape->group, j);
}

static int64_t out_index(const struct attention_shape *shape, int64_t b, int64_t h, int64_t i)
{
  return ((b * shape->seq_len + i) * shape->heads + h) * shape->head_dim;
}

static double dot(const struct attention_shape *shape, const void *x, int64_t i, const void *y, int64_t j)
{
  double sum = 0;
  for (int64_t c = 0; c < shape->head_dim; c++)
    sum += lade_element_load(shape->dtype, x, i + c) * lade_element_load(shape->dtype, y, j + c);
  return sum;
}

/* Return dropout's factor of probability (b,h,i,j): 0 or 1/(1-p). */
static double keep_factor(const struct attention_shape *shape, const struct lade_step *step,
                          const struct lade_drop *drop, int64_t b, int64_t h, int64_t i, int64_t j)
{
  if (!drop->drop_below)
    return 1;
  int64_t query = (b * shape->draw_heads + h) * shape->seq_len + i;
  uint64_t element = drop->first_element + (uint64_t)(query * shape->seq_len + j);
  return lade_philox_word(step->seed, step->step, drop->stream, element) >= drop->drop_below ? drop->scale : 0;
}

/* Return ALiBi's term of query @i and key @j of head @h. */
static double alibi_term(const struct attention_shape *shape, int64_t h, int64_t i, int64_t j)
{
  const struct alibi alibi = alibi_get(shape->form, shape->draw_heads, h, shape->scale);
  return (double)alibi.slope * ((double)alibi_position(&alibi, j, 0) - (double)alibi_position(&alibi, i, 0));
}

/* Return the score of query @i and key @j of a head. *@ret_slope: by the product q k^T. */
static double score_get(const struct attention_shape *shape, const void *qkv, int64_t b, int64_t h, int64_t i,
                        int64_t j, double *ret_slope)
{
  const double product = dot(shape, qkv, q_index(shape, b, h, i), qkv, k_index(shape, b, h, j));
  const double score = shape->scale * product + alibi_term(shape, h, i, j), cap = (double)shape->form->softcap;
  *ret_slope = shape->scale;
  if (cap == 0)
    return score;
  const double t = tanh(score / cap);
  *ret_slope = (1 - t * t) * shape->scale;
  return cap * t;
}

struct fwd {
  struct attention_shape shape;
  const struct lade_step *step;
  const struct lade_attention_fwd_args *args;
};

/* Write the softmax of the scores of query i against keys @first..i into @p; return the log of their sum. */
static double softmax_row(const struct attention_shape *shape, const void *qkv, int64_t b, int64_t h, int64_t first,
                          int64_t i, double *p)
{
  const double sink = sink_get(shape->form, shape->dtype, h);
  double max = sink, slope;
  for (int64_t j = first; j <= i; j++) {
    p[j] = score_get(shape, qkv, b, h, i, j, &slope);
    max = fmax(max, p[j]);
  }
  double sum = exp(sink - max);
  for (int64_t j = first; j <= i; j++)
    sum += p[j] = exp(p[j] - max);
  for (int64_t j = first; j <= i; j++)
    p[j] /= sum;
  return max + log(sum);
}

static void fwd_task(void *arg, int i_task, int i_thread)
{
  const struct fwd *fwd = arg;
  const struct attention_shape *shape = &fwd->shape;
  const struct lade_attention_fwd_args *args = fwd->args;
  int64_t b = i_task / shape->heads, h = i_task % shape->heads;
  double *p = (double *)args->workspace + i_thread * shape->seq_len;
  for (int64_t i = 0; i < shape->seq_len; i++) {
    int64_t first = first_key_get(shape->form, shape->seq_len, b, i);
    double lse = softmax_row(shape, args->qkv, b, h, first, i, p);
    lade_element_store(lade_accumulator(shape->dtype), args->lse, i_task * shape->seq_len + i, lse);
    for (int64_t j = first; j <= i; j++)
      p[j] *= keep_factor(shape, fwd->step, &args->drop, b, h, i, j);
    for (int64_t c = 0; c < shape->head_dim; c++) {
      double sum = 0;
      for (int64_t j = first; j <= i; j++)
        sum += p[j] * lade_element_load(shape->dtype, args->qkv, v_index(shape, b, h, j) + c);
      lade_element_store(shape->dtype, args->out, out_index(shape, b, h, i) + c, sum);
    }
  }
}

void lade_attention_fwd_plain(const struct lade_kernel_ctx *ctx, const void *arg)
{
  const struct lade_attention_fwd_args *args = arg;
  struct fwd fwd = {shape_make(args->dtype, args->batch, args->seq_len, args->heads, args->n_kv_heads, args->head_dim,
                               &args->form),
                    ctx->step, args};
  if (args->draw_heads)
    fwd.shape.draw_heads = args->draw_heads;
  lade_pool_run(ctx->pool, fwd_task, &fwd, (int)(args->batch * args->heads));
}

struct bwd {
  struct attention_shape shape;
  const struct lade_step *step;
  const struct lade_attention_bwd_args *args;
};

/* A thread's scratch: gradients of one key head, and of one query. */
struct head_bwd_scratch {
  double *dk, *dv; /* [T, D] */
  double *dq;      /* [D] */
};

static size_t bwd_scratch_doubles(int64_t seq_len, int64_t head_dim)
{
  return (size_t)(2 * seq_len * head_dim + head_dim);
}

static struct head_bwd_scratch bwd_scratch_at(const struct bwd *bwd, int i_thread)
{
  const struct attention_shape *shape = &bwd->shape;
  int64_t n = shape->seq_len * shape->head_dim;
  double *first = (double *)((char *)bwd->args->workspace + sink_sums_bytes(bwd->args));
  double *at = first + i_thread * bwd_scratch_doubles(shape->seq_len, shape->head_dim);
  return (struct head_bwd_scratch){at, at + n, at + 2 * n};
}

/* Add all contributions of query i of head h: its dq, and its part of dk and dv. Return that to the sink's gradient. */
static double bwd_query(const struct bwd *bwd, struct head_bwd_scratch scratch, int64_t b, int64_t h, int64_t i)
{
  const struct attention_shape *shape = &bwd->shape;
  const struct lade_attention_bwd_args *args = bwd->args;
  int64_t q_at = q_index(shape, b, h, i), out_at = out_index(shape, b, h, i);
  double delta = dot(shape, args->d_out, out_at, args->out, out_at);
  double lse = lade_element_load(lade_accumulator(shape->dtype), args->lse, (b * shape->heads + h) * shape->seq_len +
                                 i);
  memset(scratch.dq, 0, (size_t)shape->head_dim * sizeof(double));
  for (int64_t j = first_key_get(shape->form, shape->seq_len, b, i); j <= i; j++) {
    int64_t k_at = k_index(shape, b, h, j);
    double slope, p = exp(score_get(shape, args->qkv, b, h, i, j, &slope) - lse);
    double keep = keep_factor(shape, bwd->step, &args->drop, b, h, i, j);
    double dp = keep * dot(shape, args->d_out, out_at, args->qkv, v_index(shape, b, h, j));
    double ds = p * (dp - delta) * slope;
    for (int64_t c = 0; c < shape->head_dim; c++) {
      scratch.dq[c] += ds * lade_element_load(shape->dtype, args->qkv, k_at + c);
      scratch.dk[j * shape->head_dim + c] += ds * lade_element_load(shape->dtype, args->qkv, q_at + c);
      scratch.dv[j * shape->head_dim + c] += keep * p * lade_element_load(shape->dtype, args->d_out, out_at + c);
    }
  }
  for (int64_t c = 0; c < shape->head_dim; c++)
    lade_element_store(shape->dtype, args->d_qkv, q_at + c, scratch.dq[c]);
  return -exp(sink_get(shape->form, shape->dtype, h) - lse) * delta;
}

static void bwd_task(void *arg, int i_task, int i_thread)
{
  const struct bwd *bwd = arg;
  const struct attention_shape *shape = &bwd->shape;
  int64_t b = i_task / shape->n_kv_heads, first_head = i_task % shape->n_kv_heads * shape->group;
  struct head_bwd_scratch scratch = bwd_scratch_at(bwd, i_thread);
  memset(scratch.dk, 0, (size_t)(2 * shape->seq_len * shape->head_dim) * sizeof(double));
  for (int64_t h = first_head; h < first_head + shape->group; h++) {
    double d_sink = 0;
    for (int64_t i = 0; i < shape->seq_len; i++)
      d_sink += bwd_query(bwd, scratch, b, h, i);
    if (shape->form->sinks)
      ((double *)bwd->args->workspace)[b * shape->heads + h] = d_sink;
  }
  for (int64_t j = 0; j < shape->seq_len; j++) {
    for (int64_t c = 0; c < shape->head_dim; c++) {
      int64_t at = j * shape->head_dim + c;
      lade_element_store(shape->dtype, bwd->args->d_qkv, k_index(shape, b, first_head, j) + c, scratch.dk[at]);
      lade_element_store(shape->dtype, bwd->args->d_qkv, v_index(shape, b, first_head, j) + c, scratch.dv[at]);
    }
  }
}

void lade_attention_bwd_plain(const struct lade_kernel_ctx *ctx, const void *arg)
{
  const struct lade_attention_bwd_args *args = arg;
  struct bwd bwd = {shape_make(args->dtype, args->batch, args->seq_len, args->heads, args->n_kv_heads, args->head_dim,
                               &args->form),
                    ctx->step, args};
  if (args->draw_heads)
    bwd.shape.draw_heads = args->draw_heads;
  lade_pool_run(ctx->pool, bwd_task, &bwd, (int)(args->batch * args->n_kv_heads));
  sink_sums_add(args);
  const struct lade_column_sum_args sum = lade_attention_bias_sum(args);
  if (args->d_bias)
    lade_column_sum_plain(ctx, &sum);
}

void lade_attention_init(struct lade_kernels *kernels)
{
  lade_kernels_set(kernels, LADE_K_ATTENTION_FWD, lade_attention_fwd_plain, "plain");
  lade_kernels_set(kernels, LADE_K_ATTENTION_BWD, lade_attention_bwd_plain, "plain");
}

size_t lade_attention_fwd_workspace_bytes(const struct lade_attention_fwd_args *args, int n_threads)
{
  size_t plain_bytes = (size_t)args->seq_len * sizeof(double);
  return (size_t)n_threads * LADE_MAX(plain_bytes, lade_attention_fwd_scratch_bytes(args->head_dim));
}

size_t lade_attention_bwd_workspace_bytes(const struct lade_attention_bwd_args *args, int n_threads)
{
  size_t plain_bytes = bwd_scratch_doubles(args->seq_len, args->head_dim) * sizeof(double);
  size_t blocked_bytes = lade_attention_bwd_scratch_bytes(args->seq_len, args->head_dim);
  const size_t bytes = sink_sums_bytes(args) + (size_t)n_threads * LADE_MAX(plain_bytes, blocked_bytes);
  const struct lade_column_sum_args sum = lade_attention_bias_sum(args); /* made when the other scratch is unused */
  return args->d_bias ? LADE_MAX(bytes, lade_column_sum_workspace_bytes(&sum)) : bytes;
}
