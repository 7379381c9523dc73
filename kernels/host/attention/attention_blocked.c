/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Causal attention in the flash manner on packed tiles (Dao et al. 2022, 2023).
 *
 * Queries and keys are cut into blocks; pairs above the diagonal are skipped in units of a micro-tile. With windows or
 * documents, keys before the first one that a query sees are skipped too, in units of SKIP keys for every mr queries;
 * sums over queries, for dK and dV, end at the last mr queries that see one of mr keys. So the time is in proportion to
 * the window. The rest is masked. The skipped products are those of zeros: skipping them changes no bit.
 *
 * Forward, one task per (sequence, head, block of queries), the longest first. For each block of keys, K and V are
 * packed once. Then mr queries at a time make their scores, and the online softmax turns them into probabilities
 * (rounded to the level's product type). The queries' output in FP32 is scaled to the new maximum, and the
 * probabilities times V are added. At the end the output is divided by the sum. A sink is a key with the value zero
 * before all others: a row's maximum and sum begin with it. ALiBi's positions of keys and queries are made once for
 * each pair of blocks.
 *
 * Backward, one task per (sequence, key head): only it writes that head's dK and dV, so tasks share no sums. They are
 * summed in FP32 scratch over the group's query heads and their blocks in rising order; dQ of a block is complete when
 * its keys are done. Five products per pair of blocks; scores are recomputed from q, k and lse.
 *
 * The cut is by shape alone and a task sums in a fixed order: the same bits for any number of threads. Scratch per
 * thread: forward under 1 MiB for any T; backward 8 T D bytes and under 2 MiB.
 *
 * Rejected: a backward with tasks per block of keys and dQ summed afterwards. It gives more threads work, but costs a T
 * x D buffer per block. Rejected: transposed scores, which need no packing of probabilities, but waste an eighth of the
 * registers' rows at head dimension 64.
 */
#include <math.h>
#include <string.h>

#include "base/base.h"
#include "kernels/host/attention/attention_blocked.h"
#include "kernels/host/attention/attention_form.h"
#include "kernels/host/host.h"

#define QUERIES LADE_ATTENTION_QUERIES
#define KEYS_FWD LADE_ATTENTION_KEYS
#define KEYS_BWD QUERIES /* equal, so that only pairs (i, i) touch the diagonal */
#define MAX_MR LADE_ATTENTION_ROWS
#define SKIP 32 /* keys: a multiple of every level's nr and group; a divisor of KEYS_FWD */

struct attention_job {
  const struct lade_attention_level *level;
  const struct lade_matmul_cut *cut;
  const struct lade_step *step;
  const struct lade_drop *drop;
  const struct lade_score_form *form;
  enum lade_dtype dtype;
  int64_t batch, seq_len, heads, n_kv_heads, group;
  int head_dim;
  int64_t row, out_row; /* elements of a row of qkv and of out */
  int64_t draw_heads;   /* heads of the whole model, by which dropout's draws count */
  int n_column_tiles;   /* of head_dim, nr wide */
  float scale;
  const void *qkv, *out, *d_out;
  const float *lse;
  char *workspace;
  size_t scratch_bytes;
  const struct lade_attention_fwd_args *fwd;
  const struct lade_attention_bwd_args *bwd;
};

static const void *element_at(const struct attention_job *job, const void *data, int64_t i)
{
  return (const char *)data + i * (int64_t)lade_dtype_bytes(job->dtype);
}

/*
 * Return the index of an element of qkv: slot is a query head, or heads + a key head, or heads + n_kv_heads + a value
 * head.
 */
static int64_t qkv_index(const struct attention_job *job, int64_t b, int64_t i, int64_t slot)
{
  return (b * job->seq_len + i) * job->row + slot * job->head_dim;
}

static int64_t out_index(const struct attention_job *job, int64_t b, int64_t i, int64_t h)
{
  return (b * job->seq_len + i) * job->out_row + h * job->head_dim;
}

/* Pack rows of head_dim elements as lanes of a right operand, with the columns as k. */
static void rows_pack(const struct attention_job *job, const void *source, int64_t stride, int n_rows, void *panels)
{
  job->level->matmul->pack(&(struct lade_pack_args){.dtype = job->dtype, .source = source, .stride = stride,
                                                    .is_k_inner = true, .n_lanes = n_rows, .n_k = job->head_dim,
                                                    .width = job->cut->nr, .panels = panels});
}

/* Pack the same rows as k, with the columns as lanes. */
static void columns_pack(const struct attention_job *job, const void *source, int64_t stride, int n_rows, void *panels)
{
  job->level->matmul->pack(&(struct lade_pack_args){.dtype = job->dtype, .source = source, .stride = stride,
                                                    .n_lanes = job->head_dim, .n_k = n_rows,
                                                    .width = job->cut->nr, .panels = panels});
}

/* Make a left operand of @n_rows rows of head_dim elements: queries, or the gradient of their output. */
static struct lade_left_block queries_left(const struct attention_job *job, const void *source, int64_t stride,
                                           int n_rows, char *panels)
{
  struct lade_left_block block = {.level = job->level->matmul, .dtype = job->dtype, .source = source,
                                  .stride = stride, .is_k_inner = true, .n_rows = n_rows, .n_k = job->head_dim,
                                  .panels = panels};
  lade_left_prepare(&block);
  return block;
}

/*
 * Make a left operand of a pair's probabilities or slopes, in rows of KEYS_BWD: @n_rows rows of queries, or as many
 * columns of keys if !@is_k_inner.
 */
static struct lade_left_block pairs_left(const struct attention_job *job, const void *source, bool is_k_inner,
                                         int n_rows, int n_k, char *panels)
{
  struct lade_left_block block = {.level = job->level->matmul, .dtype = job->level->p_dtype, .source = source,
                                  .stride = KEYS_BWD, .is_k_inner = is_k_inner, .n_rows = n_rows, .n_k = n_k,
                                  .panels = panels};
  lade_left_prepare(&block);
  return block;
}

static int groups(const struct attention_job *job, int n_k)
{
  return (n_k + job->cut->group - 1) / job->cut->group;
}

/*
 * Return the byte offset of the right panel of lane @lane (a multiple of nr) in a block of depth @n_k, from its k @k.
 */
static int64_t panel_offset(const struct attention_job *job, int lane, int n_k, int k)
{
  int64_t group_bytes = (int64_t)job->cut->group * job->cut->element_bytes;
  return ((int64_t)lane * groups(job, n_k) + (int64_t)(k / job->cut->group) * job->cut->nr) * group_bytes;
}

/* Compute scores[mr][first..n_columns) = queries times packed keys, in rows of @stride. */
static void scores_make(const struct attention_job *job, struct lade_left q, const char *k, int first, int n_columns,
                        float *scores, int stride)
{
  int nr = job->cut->nr;
  for (int j = first; j < n_columns; j += nr)
    job->level->matmul->micro(&(struct lade_micro_args){
        .a = q, .b = k + panel_offset(job, j, job->head_dim, 0), .n_groups = groups(job, job->head_dim),
        .out = LADE_F32, .c = scores + j, .c_stride = stride, .n_rows = job->cut->mr, .n_columns = nr});
}

/*
 * Add to sums[mr, head_dim], tiles side by side, the rows of @a from @row on times packed columns. The index k is in
 * [k_first, k_end) of a block that is a->n_k deep.
 */
static void sums_add(const struct attention_job *job, const struct lade_left_block *a, int row, const char *b,
                     int k_first, int k_end, float *sums)
{
  const struct lade_matmul_cut *cut = job->cut;
  for (int tile = 0; tile < job->n_column_tiles; tile++) {
    float *sum = sums + tile * cut->mr * cut->nr;
    job->level->matmul->micro(&(struct lade_micro_args){
        .a = lade_left_at(a, row, k_first), .b = b + panel_offset(job, tile * cut->nr, a->n_k, k_first),
        .n_groups = groups(job, k_end) - k_first / cut->group, .from = sum, .to = sum});
  }
}

/* Round finished sums of @n_rows rows into @to, rows of @stride: a product of no groups. */
static void sums_store(const struct attention_job *job, const float *sums, int n_rows, void *to, int64_t stride)
{
  const struct lade_matmul_cut *cut = job->cut;
  for (int tile = 0; tile < job->n_column_tiles; tile++) {
    int column = tile * cut->nr;
    job->level->matmul->micro(&(struct lade_micro_args){
        .from = sums + tile * cut->mr * cut->nr, .out = job->dtype, .c = (void *)element_at(job, to, column),
        .c_stride = stride, .n_rows = n_rows, .n_columns = LADE_MIN(cut->nr, job->head_dim - column)});
  }
}

static void sums_scale(const struct attention_job *job, float *sums, int n_rows, const float *factor)
{
  for (int tile = 0; tile < job->n_column_tiles; tile++)
    job->level->scale(sums + tile * job->cut->mr * job->cut->nr, n_rows, job->cut->nr, factor);
}

/* Hands out parts of a thread's scratch, each on a cache line. Without memory it only counts. */
struct carver {
  char *base;
  size_t n_bytes;
};

static void *carve(struct carver *carver, int64_t n_elements, size_t element_bytes)
{
  void *piece = carver->base ? carver->base + carver->n_bytes : NULL;
  carver->n_bytes += lade_align_up((uint64_t)n_elements * element_bytes, 64);
  return piece;
}

/* ALiBi's positions of a pair of blocks, padded to whole rows and vectors. */
struct positions {
  float *keys, *queries; /* [KEYS_FWD], [QUERIES + MAX_MR] */
};

static struct positions positions_carve(struct carver *carver)
{
  return (struct positions){.keys = carve(carver, KEYS_FWD, 4), .queries = carve(carver, QUERIES + MAX_MR, 4)};
}

struct fwd_scratch {
  char *q, *k, *v;       /* packed; q only if it cannot be read in place */
  float *scores;         /* [mr][KEYS_FWD] */
  void *p;               /* the same in p_dtype */
  float *sums;           /* [QUERIES, head_dim] in tiles */
  float *max, *sum;      /* [QUERIES] */
  struct positions positions;
};

/* Return the sizes for the widest elements and tiles of any level. */
static struct fwd_scratch fwd_scratch_carve(struct carver *carver, int64_t head_dim)
{
  int64_t depth = lade_align_up((uint64_t)head_dim, 32), columns = lade_align_up((uint64_t)head_dim, 32);
  return (struct fwd_scratch){
      .q = carve(carver, QUERIES * depth, 4), .k = carve(carver, KEYS_FWD * depth, 4),
      .v = carve(carver, KEYS_FWD * columns, 4), .scores = carve(carver, MAX_MR * KEYS_FWD, 4),
      .p = carve(carver, MAX_MR * KEYS_FWD, 4),
      .sums = carve(carver, QUERIES * columns, 4), .max = carve(carver, QUERIES + MAX_MR, 4),
      .sum = carve(carver, QUERIES + MAX_MR, 4), .positions = positions_carve(carver)};
}

/* A block of queries of one head; or one such block and one block of keys. */
struct block_pair {
  int64_t b, h, q_first, k_first;
  int n_q, n_k;
  bool is_first; /* of the block's pairs, in forward */
  struct alibi alibi;
  struct positions positions; /* with ALiBi */
};

static struct alibi pair_alibi(const struct attention_job *job, int64_t h)
{
  return alibi_get(job->form, job->draw_heads, h, (double)job->scale);
}

/* Set the positions of the pair's queries, or of its keys. */
static void query_positions_set(const struct block_pair *pair)
{
  for (int i = 0; i < pair->n_q && pair->alibi.slope != 0; i++)
    pair->positions.queries[i] = alibi_position(&pair->alibi, pair->q_first + i, pair->q_first);
}

static void key_positions_set(const struct block_pair *pair, int n_keys)
{
  for (int j = 0; j < n_keys && pair->alibi.slope != 0; j++)
    pair->positions.keys[j] = alibi_position(&pair->alibi, pair->k_first + j, pair->q_first);
}

/* Return the keys of the pair's block that the mr queries from @i on can see. */
static int visible_keys(const struct attention_job *job, const struct block_pair *pair, int i)
{
  return (int)LADE_MIN(pair->n_k, pair->q_first + i + job->cut->mr - pair->k_first);
}

/* Return the first key, of those of @b, that the query @i of the pair's block sees. */
static int64_t pair_first_key(const struct attention_job *job, const struct block_pair *pair, int i)
{
  return first_key_get(job->form, job->seq_len, pair->b, pair->q_first + i);
}

/* True if rows may not see the first keys. */
static bool has_first_keys(const struct attention_job *job)
{
  return job->form->window || job->form->first_keys;
}

/*
 * Set n_hidden of the rows of @ret_rows, which begin with query @i of the pair: as many of their columns as come before
 * the first key that they see. @n_hidden has room for MAX_MR.
 */
static void hidden_set(const struct attention_job *job, const struct block_pair *pair, int i, int first_column,
                       int *n_hidden, struct lade_score_rows *ret_rows)
{
  if (!has_first_keys(job))
    return;
  for (int r = 0; r < ret_rows->n_rows; r++) {
    const int64_t hidden = pair_first_key(job, pair, i + r) - pair->k_first - first_column;
    n_hidden[r] = (int)LADE_MIN(LADE_MAX(hidden, 0), ret_rows->n_columns);
  }
  ret_rows->n_hidden = n_hidden;
}

static struct lade_score_rows score_rows(const struct attention_job *job, const struct block_pair *pair, int i,
                                         float *scores, int stride, int n_columns)
{
  int64_t query = (pair->b * job->draw_heads + pair->h) * job->seq_len + pair->q_first + i; /* in the order of draws */
  return (struct lade_score_rows){.scores = scores, .stride = stride, .n_columns = n_columns, .scale = job->scale,
                                  .softcap = job->form->softcap, .alibi_slope = pair->alibi.slope,
                                  .key_positions = pair->alibi.slope != 0 ? pair->positions.keys : NULL,
                                  .query_positions = pair->positions.queries + i,
                                  .n_rows = LADE_MIN(job->cut->mr, pair->n_q - i),
                                  .first_visible = (int)(pair->q_first + i - pair->k_first) + 1,
                                  .drop = job->drop->drop_below ? job->drop : NULL, .step = job->step,
                                  .element = query * job->seq_len + pair->k_first, .element_stride = job->seq_len};
}

/* Leave out the first @n columns of @rows. */
static void columns_drop(int n, struct lade_score_rows *rows)
{
  rows->scores += n;
  if (rows->key_positions)
    rows->key_positions += n;
  rows->n_columns -= n;
  rows->first_visible -= n;
  rows->element += n;
}

/* Return the columns that all queries of the pair from @i on do not see, in units of SKIP. */
static int skipped_columns(const struct attention_job *job, const struct block_pair *pair, int i)
{
  return (int)LADE_MAX(pair_first_key(job, pair, i) - pair->k_first, 0) / SKIP * SKIP;
}

/* Process mr queries from @i on with the pair's keys. */
static void fwd_panel(const struct attention_job *job, const struct fwd_scratch *scratch, const struct block_pair *pair,
                      const struct lade_left_block *q, int i)
{
  int visible = visible_keys(job, pair, i), n_hidden[MAX_MR];
  int first = skipped_columns(job, pair, i);
  float factor[MAX_MR], *sums = scratch->sums + (int64_t)i * job->n_column_tiles * job->cut->nr;
  if (first >= visible)
    return;
  scores_make(job, lade_left_at(q, i, 0), scratch->k, first, visible, scratch->scores, KEYS_FWD);
  struct lade_softmax_rows rows = {
      .rows = score_rows(job, pair, i, scratch->scores, KEYS_FWD, groups(job, visible) * job->cut->group),
      .max = scratch->max + i, .sum = scratch->sum + i, .factor = factor,
      .p = (char *)scratch->p + (size_t)first * lade_dtype_bytes(job->level->p_dtype)};
  columns_drop(first, &rows.rows);
  hidden_set(job, pair, i, first, n_hidden, &rows.rows);
  job->level->softmax(&rows);
  if (!pair->is_first)
    sums_scale(job, sums, rows.rows.n_rows, factor);
  /* In place, all mr rows: rows past the last query make sums that are never stored. */
  struct lade_left_block p = {.level = job->level->matmul, .source = scratch->p, .stride = KEYS_FWD,
                              .n_rows = job->cut->mr, .n_in_place = job->cut->mr, .n_k = pair->n_k};
  sums_add(job, &p, 0, scratch->v, first, visible, sums);
}

static void fwd_finish(const struct attention_job *job, const struct fwd_scratch *scratch,
                       const struct block_pair *pair)
{
  float *lse = (float *)job->fwd->lse + (pair->b * job->heads + pair->h) * job->seq_len + pair->q_first;
  float inverse[QUERIES];
  for (int i = 0; i < pair->n_q; i++) {
    lse[i] = scratch->max[i] + logf(scratch->sum[i]);
    inverse[i] = 1 / scratch->sum[i];
  }
  for (int i = 0; i < pair->n_q; i += job->cut->mr) {
    int n_rows = LADE_MIN(job->cut->mr, pair->n_q - i);
    float *sums = scratch->sums + (int64_t)i * job->n_column_tiles * job->cut->nr;
    int64_t at = out_index(job, pair->b, pair->q_first + i, pair->h);
    sums_scale(job, sums, n_rows, inverse + i);
    sums_store(job, sums, n_rows, (void *)element_at(job, job->fwd->out, at), job->out_row);
  }
}

static void fwd_task(void *arg, int i_task, int i_thread)
{
  const struct attention_job *job = arg;
  lade_matmul_enter(job->level->matmul);
  struct carver carver = {.base = job->workspace + (size_t)i_thread * job->scratch_bytes};
  struct fwd_scratch scratch = fwd_scratch_carve(&carver, job->head_dim);
  int64_t n_heads = job->batch * job->heads, n_blocks = lade_div_up(job->seq_len, QUERIES);
  struct block_pair pair = {.b = i_task % n_heads / job->heads, .h = i_task % n_heads % job->heads,
                            .q_first = (n_blocks - 1 - i_task / n_heads) * QUERIES,
                            .positions = scratch.positions};
  pair.n_q = (int)LADE_MIN(QUERIES, job->seq_len - pair.q_first);
  pair.alibi = pair_alibi(job, pair.h);
  query_positions_set(&pair);
  int64_t key_slot = job->heads + pair.h / job->group, end = pair.q_first + pair.n_q;
  const void *queries = element_at(job, job->qkv, qkv_index(job, pair.b, pair.q_first, pair.h));
  struct lade_left_block q = queries_left(job, queries, job->row, pair.n_q, scratch.q);
  memset(scratch.sums, 0, (size_t)(QUERIES * job->n_column_tiles * job->cut->nr) * sizeof(float));
  for (int i = 0; i < pair.n_q; i++) {
    scratch.max[i] = (float)sink_get(job->form, job->dtype, pair.h);
    scratch.sum[i] = job->form->sinks ? 1 : 0;
  }
  pair.is_first = true;
  for (pair.k_first = pair_first_key(job, &pair, 0) / SKIP * SKIP; pair.k_first < end; pair.k_first += KEYS_FWD) {
    pair.n_k = (int)LADE_MIN(KEYS_FWD, end - pair.k_first);
    key_positions_set(&pair, KEYS_FWD);
    const void *k = element_at(job, job->qkv, qkv_index(job, pair.b, pair.k_first, key_slot));
    const void *v = element_at(job, job->qkv, qkv_index(job, pair.b, pair.k_first, key_slot + job->n_kv_heads));
    rows_pack(job, k, job->row, pair.n_k, scratch.k);
    columns_pack(job, v, job->row, pair.n_k, scratch.v);
    for (int i = 0; i < pair.n_q; i += job->cut->mr)
      fwd_panel(job, &scratch, &pair, &q, i);
    pair.is_first = false;
  }
  fwd_finish(job, &scratch, &pair);
  lade_matmul_leave(job->level->matmul);
}

struct blocked_bwd_scratch {
  char *q_rows, *q_columns, *d_out_rows, *d_out_columns; /* a block of queries, packed both ways if needed */
  char *k_rows, *k_columns, *v_rows;                     /* a block of keys */
  float *scores, *d_p;                                   /* [mr][KEYS_BWD] */
  char *p, *d_s;                                         /* [QUERIES][KEYS_BWD] in p_dtype */
  char *p_by_key, *d_s_by_key, *d_s_by_query;            /* packed as left operands */
  float *d_q;                                            /* [QUERIES, head_dim] in tiles */
  float *d_k, *d_v;                                      /* [T, head_dim] in tiles */
  float *delta;                                          /* [QUERIES] */
  struct positions positions;
  struct lade_left_block q, d_out;                       /* the block of queries as left operands */
};

static int64_t sums_rows(int64_t seq_len)
{
  return lade_div_up(seq_len, KEYS_BWD) * KEYS_BWD;
}

static struct blocked_bwd_scratch bwd_scratch_carve(struct carver *carver, int64_t seq_len, int64_t head_dim)
{
  int64_t depth = lade_align_up((uint64_t)head_dim, 32), columns = lade_align_up((uint64_t)head_dim, 32);
  int64_t rows = sums_rows(seq_len), square = QUERIES * KEYS_BWD;
  return (struct blocked_bwd_scratch){
      .q_rows = carve(carver, QUERIES * depth, 4), .q_columns = carve(carver, QUERIES * columns, 4),
      .d_out_rows = carve(carver, QUERIES * depth, 4), .d_out_columns = carve(carver, QUERIES * columns, 4),
      .k_rows = carve(carver, KEYS_BWD * depth, 4), .k_columns = carve(carver, KEYS_BWD * columns, 4),
      .v_rows = carve(carver, KEYS_BWD * depth, 4), .scores = carve(carver, MAX_MR * KEYS_BWD, 4),
      .d_p = carve(carver, MAX_MR * KEYS_BWD, 4),
      .p = carve(carver, square, 4), .d_s = carve(carver, square, 4), .p_by_key = carve(carver, square, 4),
      .d_s_by_key = carve(carver, square, 4), .d_s_by_query = carve(carver, square, 4),
      .d_q = carve(carver, QUERIES * columns, 4), .d_k = carve(carver, rows * columns, 4),
      .d_v = carve(carver, rows * columns, 4), .delta = carve(carver, QUERIES + MAX_MR, 4),
      .positions = positions_carve(carver)};
}

/* Set the first @n_bytes bytes of @n_rows rows to 0. */
static void columns_clear(char *rows, int64_t row_bytes, int n_rows, size_t n_bytes)
{
  for (int r = 0; r < n_rows && n_bytes > 0; r++)
    memset(rows + r * row_bytes, 0, n_bytes);
}

/* Make p and d_s of the whole pair, mr queries at a time: 0 in columns that the window or the document hides. */
static void bwd_scores(const struct attention_job *job, const struct blocked_bwd_scratch *scratch,
                       const struct block_pair *pair)
{
  int mr = job->cut->mr;
  const float *lse = job->lse + (pair->b * job->heads + pair->h) * job->seq_len + pair->q_first;
  int64_t row_bytes = KEYS_BWD * (int64_t)lade_dtype_bytes(job->level->p_dtype);
  for (int i = 0; i < pair->n_q; i += mr) {
    int visible = visible_keys(job, pair, i), first = LADE_MIN(skipped_columns(job, pair, i), pair->n_k);
    int n_hidden[MAX_MR], n_rows = LADE_MIN(mr, pair->n_q - i);
    size_t skipped_bytes = (size_t)first * lade_dtype_bytes(job->level->p_dtype);
    char *p = scratch->p + i * row_bytes, *d_s = scratch->d_s + i * row_bytes;
    columns_clear(p, row_bytes, n_rows, skipped_bytes);
    columns_clear(d_s, row_bytes, n_rows, skipped_bytes);
    if (first == pair->n_k)
      continue;
    scores_make(job, lade_left_at(&scratch->q, i, 0), scratch->k_rows, first, visible, scratch->scores, KEYS_BWD);
    scores_make(job, lade_left_at(&scratch->d_out, i, 0), scratch->v_rows, first, visible, scratch->d_p, KEYS_BWD);
    struct lade_gradient_rows rows = {
        .rows = score_rows(job, pair, i, scratch->scores, KEYS_BWD, pair->n_k), .d_p = scratch->d_p + first,
        .lse = lse + i, .delta = scratch->delta + i, .p = p + skipped_bytes, .d_s = d_s + skipped_bytes};
    columns_drop(first, &rows.rows);
    hidden_set(job, pair, i, first, n_hidden, &rows.rows);
    job->level->gradient(&rows);
  }
}

/* Return the end of the pair's queries that see one of the mr keys from @j on, in units of mr queries. */
static int seeing_queries(const struct attention_job *job, const struct block_pair *pair, int j)
{
  int mr = job->cut->mr, i = 0;
  while (i < pair->n_q && pair_first_key(job, pair, i) < pair->k_first + j + mr)
    i += mr;
  return LADE_MIN(i, pair->n_q);
}

/* Add all gradients of one block of queries and one block of keys. */
static void bwd_pair(const struct attention_job *job, const struct blocked_bwd_scratch *scratch,
                     const struct block_pair *pair)
{
  int mr = job->cut->mr, row_elements = job->n_column_tiles * job->cut->nr;
  bool is_diagonal = pair->k_first == pair->q_first;
  bwd_scores(job, scratch, pair);
  struct lade_left_block p = pairs_left(job, scratch->p, false, pair->n_k, pair->n_q, scratch->p_by_key);
  struct lade_left_block d_s = pairs_left(job, scratch->d_s, false, pair->n_k, pair->n_q, scratch->d_s_by_key);
  for (int j = 0; j < pair->n_k; j += mr) {
    int64_t sums = (pair->k_first + j) * row_elements;
    int first = is_diagonal ? j : 0; /* earlier queries do not see these keys */
    int end = has_first_keys(job) ? seeing_queries(job, pair, j) : pair->n_q;
    if (end <= first)
      continue; /* the window or the document hides these keys */
    sums_add(job, &p, j, scratch->d_out_columns, first, end, scratch->d_v + sums);
    sums_add(job, &d_s, j, scratch->q_columns, first, end, scratch->d_k + sums);
  }
  d_s = pairs_left(job, scratch->d_s, true, pair->n_q, pair->n_k, scratch->d_s_by_query);
  for (int i = 0; i < pair->n_q; i += mr) {
    int skipped = skipped_columns(job, pair, i), visible = visible_keys(job, pair, i);
    if (skipped < visible)
      sums_add(job, &d_s, i, scratch->k_columns, skipped, visible, scratch->d_q + (int64_t)i * row_elements);
  }
}

/* Pack a block of queries and its output's gradient both ways; delta. */
static void bwd_queries(const struct attention_job *job, struct blocked_bwd_scratch *scratch,
                        const struct block_pair *pair)
{
  int64_t out_at = out_index(job, pair->b, pair->q_first, pair->h);
  const void *q = element_at(job, job->qkv, qkv_index(job, pair->b, pair->q_first, pair->h));
  const void *d_out = element_at(job, job->d_out, out_at);
  scratch->q = queries_left(job, q, job->row, pair->n_q, scratch->q_rows);
  scratch->d_out = queries_left(job, d_out, job->out_row, pair->n_q, scratch->d_out_rows);
  columns_pack(job, q, job->row, pair->n_q, scratch->q_columns);
  columns_pack(job, d_out, job->out_row, pair->n_q, scratch->d_out_columns);
  for (int i = 0; i < pair->n_q; i++)
    scratch->delta[i] = job->level->dot(job->dtype, job->out, job->d_out, out_at + i * job->out_row, job->head_dim);
  memset(scratch->d_q, 0, (size_t)(QUERIES * job->n_column_tiles * job->cut->nr) * sizeof(float));
}

static void bwd_keys(const struct attention_job *job, const struct blocked_bwd_scratch *scratch,
                     const struct block_pair *pair)
{
  int64_t slot = job->heads + pair->h / job->group;
  const void *k = element_at(job, job->qkv, qkv_index(job, pair->b, pair->k_first, slot));
  const void *v = element_at(job, job->qkv, qkv_index(job, pair->b, pair->k_first, slot + job->n_kv_heads));
  rows_pack(job, k, job->row, pair->n_k, scratch->k_rows);
  columns_pack(job, k, job->row, pair->n_k, scratch->k_columns);
  rows_pack(job, v, job->row, pair->n_k, scratch->v_rows);
}

/* Round @n_rows rows of gradients into slot @slot of d_qkv from row @first on. */
static void gradient_store(const struct attention_job *job, const float *sums, int64_t b, int64_t first, int64_t n_rows,
                           int64_t slot)
{
  int mr = job->cut->mr;
  for (int64_t i = 0; i < n_rows; i += mr)
    sums_store(job, sums + i * job->n_column_tiles * job->cut->nr, (int)LADE_MIN(mr, n_rows - i),
               (void *)element_at(job, job->bwd->d_qkv, qkv_index(job, b, first + i, slot)), job->row);
}

/* Return the part of a block of queries in the gradient of its head's sink. */
static double bwd_sink(const struct attention_job *job, const struct blocked_bwd_scratch *scratch,
                       const struct block_pair *pair)
{
  const float *lse = job->lse + (pair->b * job->heads + pair->h) * job->seq_len + pair->q_first;
  const double sink = sink_get(job->form, job->dtype, pair->h);
  double sum = 0;
  for (int i = 0; i < pair->n_q && job->form->sinks; i++)
    sum -= exp(sink - (double)lse[i]) * (double)scratch->delta[i];
  return sum;
}

/* Process one query head: adds to d_k and d_v, finishes d_q and the sink's gradient of this sequence. */
static void bwd_head(const struct attention_job *job, struct blocked_bwd_scratch *scratch, int64_t b, int64_t h)
{
  struct block_pair pair = {.b = b, .h = h, .alibi = pair_alibi(job, h), .positions = scratch->positions};
  double d_sink = 0;
  for (pair.q_first = 0; pair.q_first < job->seq_len; pair.q_first += QUERIES) {
    pair.n_q = (int)LADE_MIN(QUERIES, job->seq_len - pair.q_first);
    bwd_queries(job, scratch, &pair);
    query_positions_set(&pair);
    d_sink += bwd_sink(job, scratch, &pair);
    pair.k_first = pair_first_key(job, &pair, 0) / KEYS_BWD * KEYS_BWD;
    for (; pair.k_first <= pair.q_first; pair.k_first += KEYS_BWD) {
      pair.n_k = (int)LADE_MIN(KEYS_BWD, job->seq_len - pair.k_first);
      bwd_keys(job, scratch, &pair);
      key_positions_set(&pair, KEYS_BWD);
      bwd_pair(job, scratch, &pair);
    }
    gradient_store(job, scratch->d_q, b, pair.q_first, pair.n_q, h);
  }
  if (job->form->sinks)
    ((double *)job->bwd->workspace)[b * job->heads + h] = d_sink;
}

static void bwd_task(void *arg, int i_task, int i_thread)
{
  const struct attention_job *job = arg;
  lade_matmul_enter(job->level->matmul);
  struct carver carver = {.base = job->workspace + (size_t)i_thread * job->scratch_bytes};
  struct blocked_bwd_scratch scratch = bwd_scratch_carve(&carver, job->seq_len, job->head_dim);
  int64_t b = i_task / job->n_kv_heads, key_head = i_task % job->n_kv_heads;
  size_t sums_bytes = (size_t)(sums_rows(job->seq_len) * job->n_column_tiles * job->cut->nr) * sizeof(float);
  memset(scratch.d_k, 0, sums_bytes);
  memset(scratch.d_v, 0, sums_bytes);
  for (int64_t h = key_head * job->group; h < (key_head + 1) * job->group; h++)
    bwd_head(job, &scratch, b, h);
  gradient_store(job, scratch.d_k, b, 0, job->seq_len, job->heads + key_head);
  gradient_store(job, scratch.d_v, b, 0, job->seq_len, job->heads + job->n_kv_heads + key_head);
  lade_matmul_leave(job->level->matmul);
}

/* Make a job from the arguments that both directions share. */
static struct attention_job job_make(const struct lade_attention_level *level, const struct lade_kernel_ctx *ctx,
                                     const struct lade_attention_fwd_args *args)
{
  LADE_ASSERT(args->dtype != LADE_F64 && args->heads % args->n_kv_heads == 0);
  LADE_ASSERT(level->p_dtype == level->matmul->direct);
  LADE_ASSERT(level->matmul->cut->mr <= MAX_MR && QUERIES % level->matmul->cut->mr == 0);
  return (struct attention_job){
      .level = level, .cut = level->matmul->cut, .step = ctx->step, .dtype = args->dtype, .batch = args->batch,
      .seq_len = args->seq_len, .heads = args->heads, .n_kv_heads = args->n_kv_heads,
      .group = args->heads / args->n_kv_heads,
      .head_dim = (int)args->head_dim, .row = (args->heads + 2 * args->n_kv_heads) * args->head_dim,
      .out_row = args->heads * args->head_dim, .draw_heads = args->draw_heads ? args->draw_heads : args->heads,
      .n_column_tiles = (int)lade_div_up(args->head_dim, level->matmul->cut->nr),
      .scale = (float)score_scale_get(&args->form, args->head_dim), .qkv = args->qkv,
      .workspace = args->workspace};
}

void lade_attention_fwd_blocked(const struct lade_attention_level *level, const struct lade_kernel_ctx *ctx,
                                const struct lade_attention_fwd_args *args)
{
  struct attention_job job = job_make(level, ctx, args);
  job.drop = &args->drop;
  job.form = &args->form;
  job.fwd = args;
  job.scratch_bytes = lade_attention_fwd_scratch_bytes(args->head_dim);
  lade_pool_run(ctx->pool, fwd_task, &job, (int)(args->batch * args->heads * lade_div_up(args->seq_len, QUERIES)));
}

void lade_attention_bwd_blocked(const struct lade_attention_level *level, const struct lade_kernel_ctx *ctx,
                                const struct lade_attention_bwd_args *args)
{
  struct lade_attention_fwd_args sizes = {.dtype = args->dtype, .batch = args->batch, .seq_len = args->seq_len,
                                          .heads = args->heads, .n_kv_heads = args->n_kv_heads,
                                          .head_dim = args->head_dim, .draw_heads = args->draw_heads,
                                          .form = args->form, .qkv = args->qkv,
                                          .workspace = (char *)args->workspace + sink_sums_bytes(args)};
  struct attention_job job = job_make(level, ctx, &sizes);
  job.drop = &args->drop;
  job.form = &args->form;
  job.bwd = args;
  job.out = args->out;
  job.d_out = args->d_out;
  job.lse = args->lse;
  job.scratch_bytes = lade_attention_bwd_scratch_bytes(args->seq_len, args->head_dim);
  lade_pool_run(ctx->pool, bwd_task, &job, (int)(args->batch * args->n_kv_heads));
  sink_sums_add(args);
  const struct lade_column_sum_args sum = lade_attention_bias_sum(args);
  if (args->d_bias)
    level->column_sum(ctx, &sum);
}

size_t lade_attention_fwd_scratch_bytes(int64_t head_dim)
{
  struct carver carver = {0};
  fwd_scratch_carve(&carver, head_dim);
  return carver.n_bytes;
}

size_t lade_attention_bwd_scratch_bytes(int64_t seq_len, int64_t head_dim)
{
  struct carver carver = {0};
  bwd_scratch_carve(&carver, seq_len, head_dim);
  return carver.n_bytes;
}
