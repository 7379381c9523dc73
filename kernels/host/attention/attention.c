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

/* Shared by both directions: sizes and inputs as the caller gives them, and the fields that job_derive sets. */
struct plain_job {
  enum lade_dtype dtype;
  int64_t batch, seq_len, heads, n_kv_heads, head_dim;
  int64_t draw_heads; /* heads of the whole model, by which dropout's draws count; 0: heads */
  const struct lade_score_form *form;
  const struct lade_step *step;
  const struct lade_drop *drop;
  const void *qkv;
  int64_t row;   /* elements of a qkv row */
  int64_t group; /* query heads per key head */
  double scale;
};

static void job_derive(struct plain_job *job)
{
  LADE_ASSERT(job->heads % job->n_kv_heads == 0);
  job->row = (job->heads + 2 * job->n_kv_heads) * job->head_dim;
  job->group = job->heads / job->n_kv_heads;
  job->scale = score_scale_get(job->form, job->head_dim);
  if (!job->draw_heads)
    job->draw_heads = job->heads;
}

static int64_t q_index(const struct plain_job *job, int64_t b, int64_t h, int64_t i)
{
  return (b * job->seq_len + i) * job->row + h * job->head_dim;
}

static int64_t k_index(const struct plain_job *job, int64_t b, int64_t h, int64_t j)
{
  return q_index(job, b, job->heads + h / job->group, j);
}

static int64_t v_index(const struct plain_job *job, int64_t b, int64_t h, int64_t j)
{
  return q_index(job, b, job->heads + job->n_kv_heads + h / job->group, j);
}

static int64_t out_index(const struct plain_job *job, int64_t b, int64_t h, int64_t i)
{
  return ((b * job->seq_len + i) * job->heads + h) * job->head_dim;
}

static double dot(const struct plain_job *job, const void *x, int64_t i, const void *y, int64_t j)
{
  double sum = 0;
  for (int64_t c = 0; c < job->head_dim; c++)
    sum += lade_element_load(job->dtype, x, i + c) * lade_element_load(job->dtype, y, j + c);
  return sum;
}

/* Return dropout's factor of probability (b,h,i,j): 0 or 1/(1-p). */
static double keep_factor(const struct plain_job *job, int64_t b, int64_t h, int64_t i, int64_t j)
{
  const struct lade_drop *drop = job->drop;
  if (!drop->drop_below)
    return 1;
  int64_t query = (b * job->draw_heads + h) * job->seq_len + i;
  uint64_t element = drop->first_element + (uint64_t)(query * job->seq_len + j);
  uint32_t word = lade_philox_word(job->step->seed, job->step->step, drop->stream, element);
  return word >= drop->drop_below ? drop->scale : 0;
}

/* Return ALiBi's term of query @i and key @j of head @h. */
static double alibi_term(const struct plain_job *job, int64_t h, int64_t i, int64_t j)
{
  const struct alibi alibi = alibi_get(job->form, job->draw_heads, h, job->scale);
  return (double)alibi.slope * ((double)alibi_position(&alibi, j, 0) - (double)alibi_position(&alibi, i, 0));
}

/* Return the score of query @i and key @j of a head. *@ret_slope: by the product q k^T. */
static double score_get(const struct plain_job *job, int64_t b, int64_t h, int64_t i, int64_t j, double *ret_slope)
{
  const double product = dot(job, job->qkv, q_index(job, b, h, i), job->qkv, k_index(job, b, h, j));
  const double score = job->scale * product + alibi_term(job, h, i, j), cap = (double)job->form->softcap;
  *ret_slope = job->scale;
  if (cap == 0)
    return score;
  const double t = tanh(score / cap);
  *ret_slope = (1 - t * t) * job->scale;
  return cap * t;
}

struct fwd {
  struct plain_job job;
  const struct lade_attention_fwd_args *args;
};

/* Write the softmax of the scores of query i against keys @first..i into @p; return the log of their sum. */
static double softmax_row(const struct plain_job *job, int64_t b, int64_t h, int64_t first, int64_t i, double *p)
{
  const double sink = sink_get(job->form, job->dtype, h);
  double max = sink, slope;
  for (int64_t j = first; j <= i; j++) {
    p[j] = score_get(job, b, h, i, j, &slope);
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
  const struct plain_job *job = &fwd->job;
  const struct lade_attention_fwd_args *args = fwd->args;
  int64_t b = i_task / job->heads, h = i_task % job->heads;
  double *p = (double *)args->workspace + i_thread * job->seq_len;
  for (int64_t i = 0; i < job->seq_len; i++) {
    int64_t first = first_key_get(job->form, job->seq_len, b, i);
    double lse = softmax_row(job, b, h, first, i, p);
    lade_element_store(lade_accumulator(job->dtype), args->lse, i_task * job->seq_len + i, lse);
    for (int64_t j = first; j <= i; j++)
      p[j] *= keep_factor(job, b, h, i, j);
    for (int64_t c = 0; c < job->head_dim; c++) {
      double sum = 0;
      for (int64_t j = first; j <= i; j++)
        sum += p[j] * lade_element_load(job->dtype, args->qkv, v_index(job, b, h, j) + c);
      lade_element_store(job->dtype, args->out, out_index(job, b, h, i) + c, sum);
    }
  }
}

void lade_attention_fwd_plain(const struct lade_kernel_ctx *ctx, const void *arg)
{
  const struct lade_attention_fwd_args *args = arg;
  struct fwd fwd = {
      .job = {.dtype = args->dtype, .batch = args->batch, .seq_len = args->seq_len, .heads = args->heads,
              .n_kv_heads = args->n_kv_heads, .head_dim = args->head_dim, .draw_heads = args->draw_heads,
              .form = &args->form, .step = ctx->step, .drop = &args->drop, .qkv = args->qkv},
      .args = args,
  };
  job_derive(&fwd.job);
  lade_pool_run(ctx->pool, fwd_task, &fwd, (int)(args->batch * args->heads));
}

struct bwd {
  struct plain_job job;
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
  const struct plain_job *job = &bwd->job;
  int64_t n = job->seq_len * job->head_dim;
  double *first = (double *)((char *)bwd->args->workspace + sink_sums_bytes(bwd->args));
  double *at = first + i_thread * bwd_scratch_doubles(job->seq_len, job->head_dim);
  return (struct head_bwd_scratch){at, at + n, at + 2 * n};
}

/* Add all contributions of query i of head h: its dq, and its part of dk and dv. Return that to the sink's gradient. */
static double bwd_query(const struct bwd *bwd, struct head_bwd_scratch scratch, int64_t b, int64_t h, int64_t i)
{
  const struct plain_job *job = &bwd->job;
  const struct lade_attention_bwd_args *args = bwd->args;
  int64_t q_at = q_index(job, b, h, i), out_at = out_index(job, b, h, i);
  double delta = dot(job, args->d_out, out_at, args->out, out_at);
  double lse = lade_element_load(lade_accumulator(job->dtype), args->lse, (b * job->heads + h) * job->seq_len +
                                 i);
  memset(scratch.dq, 0, (size_t)job->head_dim * sizeof(double));
  for (int64_t j = first_key_get(job->form, job->seq_len, b, i); j <= i; j++) {
    int64_t k_at = k_index(job, b, h, j);
    double slope, p = exp(score_get(job, b, h, i, j, &slope) - lse);
    double keep = keep_factor(job, b, h, i, j);
    double dp = keep * dot(job, args->d_out, out_at, args->qkv, v_index(job, b, h, j));
    double ds = p * (dp - delta) * slope;
    for (int64_t c = 0; c < job->head_dim; c++) {
      scratch.dq[c] += ds * lade_element_load(job->dtype, args->qkv, k_at + c);
      scratch.dk[j * job->head_dim + c] += ds * lade_element_load(job->dtype, args->qkv, q_at + c);
      scratch.dv[j * job->head_dim + c] += keep * p * lade_element_load(job->dtype, args->d_out, out_at + c);
    }
  }
  for (int64_t c = 0; c < job->head_dim; c++)
    lade_element_store(job->dtype, args->d_qkv, q_at + c, scratch.dq[c]);
  return -exp(sink_get(job->form, job->dtype, h) - lse) * delta;
}

static void bwd_task(void *arg, int i_task, int i_thread)
{
  const struct bwd *bwd = arg;
  const struct plain_job *job = &bwd->job;
  int64_t b = i_task / job->n_kv_heads, first_head = i_task % job->n_kv_heads * job->group;
  struct head_bwd_scratch scratch = bwd_scratch_at(bwd, i_thread);
  memset(scratch.dk, 0, (size_t)(2 * job->seq_len * job->head_dim) * sizeof(double));
  for (int64_t h = first_head; h < first_head + job->group; h++) {
    double d_sink = 0;
    for (int64_t i = 0; i < job->seq_len; i++)
      d_sink += bwd_query(bwd, scratch, b, h, i);
    if (job->form->sinks)
      ((double *)bwd->args->workspace)[b * job->heads + h] = d_sink;
  }
  for (int64_t j = 0; j < job->seq_len; j++) {
    for (int64_t c = 0; c < job->head_dim; c++) {
      int64_t at = j * job->head_dim + c;
      lade_element_store(job->dtype, bwd->args->d_qkv, k_index(job, b, first_head, j) + c, scratch.dk[at]);
      lade_element_store(job->dtype, bwd->args->d_qkv, v_index(job, b, first_head, j) + c, scratch.dv[at]);
    }
  }
}

void lade_attention_bwd_plain(const struct lade_kernel_ctx *ctx, const void *arg)
{
  const struct lade_attention_bwd_args *args = arg;
  struct bwd bwd = {
      .job = {.dtype = args->dtype, .batch = args->batch, .seq_len = args->seq_len, .heads = args->heads,
              .n_kv_heads = args->n_kv_heads, .head_dim = args->head_dim, .draw_heads = args->draw_heads,
              .form = &args->form, .step = ctx->step, .drop = &args->drop, .qkv = args->qkv},
      .args = args,
  };
  job_derive(&bwd.job);
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
