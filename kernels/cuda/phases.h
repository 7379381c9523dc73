/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared by the launcher (C) and the kernels (CUDA), beyond kernels.h: the cuts of work, and the arguments of phases
 * that are no kernels of the table.
 *
 * Every cut is a function of the shape, never of the device that runs it: another GPU gives the same bits.
 */
#ifndef LADE_CUDA_PHASES_H
#define LADE_CUDA_PHASES_H

#include "base/inline.h"
#include "kernels/kernels.h"

/*
 * Increment this when a kernel makes other bits from the same arguments and no cut in launch.c changes. A resumed
 * checkpoint then reports that its numbers differ, and cached measurements of the kernels are repeated.
 */
#define LADE_CUDA_REVISION 13

#define LADE_CUDA_THREADS 256 /* of a block, at most */
#define LADE_CUDA_TURNS 4     /* packs of 16 bytes of one tensor that a thread of an elementwise kernel has in flight */

/* ---- sums over rows ---- */

/*
 * Gradients of parameters are summed per block of rows and then over the blocks in their order. One block of threads
 * works on one block of rows: 256 of them fill the largest GPU about twice, and their partial sums stay small in
 * comparison with the tensor.
 */
#define LADE_CUDA_ROW_BLOCKS 256
#define LADE_CUDA_ROW_BLOCK_ROWS 16

LADE_INLINE int64_t lade_cuda_row_block(int64_t n_rows)
{
  int64_t rows = (n_rows + LADE_CUDA_ROW_BLOCKS - 1) / LADE_CUDA_ROW_BLOCKS;
  return rows > LADE_CUDA_ROW_BLOCK_ROWS ? rows : LADE_CUDA_ROW_BLOCK_ROWS;
}

LADE_INLINE int64_t lade_cuda_row_blocks(int64_t n_rows)
{
  return (n_rows + lade_cuda_row_block(n_rows) - 1) / lade_cuda_row_block(n_rows);
}

/* Packs of 16 bytes of a row, or of rows, that a thread has in registers. */
#define LADE_CUDA_ROW_PACKS 4

/*
 * Long rows: partial sums of a block of rows wait in shared memory if they and the room of reductions fit into the
 * 96 KiB of every GPU; else in their final place in the workspace.
 */
#define LADE_CUDA_ROOM_FLOATS 64 /* of two reductions over the block in turn: two sums of each of two rows, by warp */
#define LADE_CUDA_ROW_SHARED_FLOATS (24576 - LADE_CUDA_ROOM_FLOATS)

LADE_INLINE int64_t lade_cuda_row_shared(int64_t d, int n_outputs)
{
  return d * n_outputs <= LADE_CUDA_ROW_SHARED_FLOATS ? d * n_outputs : 0;
}

/* Rows of a block of norms. More than one if a GPU still gets NORM_FWD_BLOCKS blocks. They decide no bits. */
#define LADE_CUDA_NORM_FWD_ROWS 8
#define LADE_CUDA_NORM_FWD_BLOCKS 2048

LADE_INLINE int64_t lade_cuda_norm_fwd_rows(int64_t n_rows)
{
  const int64_t rows = n_rows / LADE_CUDA_NORM_FWD_BLOCKS;
  return rows < 1 ? 1 : rows < LADE_CUDA_NORM_FWD_ROWS ? rows : LADE_CUDA_NORM_FWD_ROWS;
}

/*
 * A norm's backward: packs of 16 bytes of each tensor that a thread has in a turn; threads of the largest block, which
 * rows of more packs than two for each of LADE_CUDA_THREADS have; floats of two turns of three tensors.
 */
#define LADE_CUDA_NORM_BWD_PACKS 2
#define LADE_CUDA_NORM_BWD_THREADS 512
#define LADE_CUDA_NORM_BWD_FLOATS(threads) (2 * 3 * LADE_CUDA_NORM_BWD_PACKS * (threads) * 4)

/* Return the most threads of a block, LADE_CUDA_THREADS or LADE_CUDA_NORM_BWD_THREADS. @pack: elements of 16 bytes. */
LADE_INLINE int lade_cuda_norm_bwd_threads(int64_t d, int pack)
{
  const int64_t max_packs = LADE_CUDA_NORM_BWD_PACKS * LADE_CUDA_NORM_BWD_THREADS;
  const bool is_large = d > (int64_t)LADE_CUDA_NORM_BWD_PACKS * LADE_CUDA_THREADS * pack;
  return d % pack == 0 && is_large && d <= max_packs * pack ? LADE_CUDA_NORM_BWD_THREADS : LADE_CUDA_THREADS;
}

/* Return a thread's packs of a row, 1 or 2; 0 for longer rows and for those that are not whole packs. */
LADE_INLINE int lade_cuda_norm_bwd_packs(int64_t d, int pack)
{
  const int64_t width = (int64_t)pack * lade_cuda_norm_bwd_threads(d, pack), n_packs = (d + width - 1) / width;
  return d % pack || n_packs > LADE_CUDA_NORM_BWD_PACKS ? 0 : (int)n_packs;
}

/* Return the floats of shared memory of a block, with the room of its reductions. */
LADE_INLINE int64_t lade_cuda_norm_bwd_floats(int64_t d, int pack, int n_outputs)
{
  return LADE_CUDA_ROOM_FLOATS + (lade_cuda_norm_bwd_packs(d, pack)
                                      ? LADE_CUDA_NORM_BWD_FLOATS(lade_cuda_norm_bwd_threads(d, pack))
                                      : lade_cuda_row_shared(d, n_outputs));
}

/* outputs[i][d] (+)= the sum over blocks of partials[block][i][d]; an output may be NULL. */
#define LADE_CUDA_ROW_OUTPUTS 4
#define LADE_CUDA_SUM_COLUMNS 32 /* of a block of threads */
struct lade_cuda_row_sums {
  int64_t n_blocks, d;
  int n_outputs;
  const float *partials;
  float *outputs[LADE_CUDA_ROW_OUTPUTS];
  bool accumulate;
};

/* ---- gradients of the token table ---- */

#define LADE_CUDA_EMBED_PIECE 64 /* rows of one token that a thread adds in turn */

/* ---- the optimizer's sums ---- */

#define LADE_CUDA_SUM_LANES 16  /* threads that add one block of LADE_SUM_BLOCK elements */
#define LADE_CUDA_SUM_SPAN 2048 /* elements of it in shared memory, next to those of the next span */
#define LADE_CUDA_SUM_THREADS 128

/* ---- the update ---- */

/*
 * A thread has EACH neighbours at a time, 16 bytes of F32: a warp's are a block of 8-bit moments. TURNS of those are a
 * run of random words; every lane then makes the words of one draw.
 */
#define LADE_CUDA_ADAMW_EACH 4
#define LADE_CUDA_ADAMW_TURNS 4

/* ---- norms of queries and keys ---- */

#define LADE_CUDA_QK_PACK 4 /* neighbours of a head that a lane has at a time */

/* ---- rotation ---- */

#define LADE_CUDA_ROPE_RUN 16  /* rows of the table for a thread */
#define LADE_CUDA_ROPE_TURNS 2 /* packs of pairs that a thread has in flight */

/* ---- matrix product ---- */

#define LADE_CUDA_TILE 64 /* of c, each way, for one block of threads */
#define LADE_CUDA_SLAB 32 /* of k, at a time in shared memory */
#define LADE_CUDA_SLAB_STRIDE (LADE_CUDA_TILE + 1)

/* ---- attention ---- */

/*
 * A block of threads is four warps. A warp has some rows of its own: queries, or keys in the gradients of keys and
 * values. It goes over tiles of 32 rows of the other side, one row for each lane.
 */
#define LADE_CUDA_ATTENTION_THREADS 128
#define LADE_CUDA_ATTENTION_TILE 32
#define LADE_CUDA_ATTENTION_MAX_DIM 256  /* of a head: sums wait in registers */
#define LADE_CUDA_ATTENTION_FWD_ROWS 16  /* of a block of threads */
#define LADE_CUDA_ATTENTION_BWD_ROWS 8
#define LADE_CUDA_DELTA_LANES 8 /* threads of a row of delta: 16 bytes each of a head of 64 */

/*
 * With tensor cores: rows of a block of threads, and rows of the tiles of the other side, by the size of a head. PITCH
 * is the elements of a tile's row in shared memory. Sums wait in registers, rows and two tiles in shared memory. Up to
 * heads of 128 they take 64.5 KiB, and GPUs with more than 130 KiB have room for two blocks, as many as registers
 * allow; heads of 256 take 96.3 KiB, which every GPU from sm_80 on has. DKV_PARTS blocks share the columns of dk and
 * dv, whose sums would not fit the registers of one.
 */
#define LADE_CUDA_MMA_PITCH(dim) ((dim) <= 64 ? 64 : (dim) <= 128 ? 128 : 256)
#define LADE_CUDA_MMA_FWD_ROWS(dim) ((dim) <= 128 ? 128 : 64)
#define LADE_CUDA_MMA_FWD_TILE(dim) ((dim) == 64 ? 64 : (dim) <= 128 ? 32 : 16)
#define LADE_CUDA_MMA_DQ_ROWS(dim) ((dim) == 64 ? 128 : 64)
#define LADE_CUDA_MMA_DQ_TILE(dim) ((dim) <= 128 ? 32 : 16)
#define LADE_CUDA_MMA_DKV_ROWS(dim) 64
#define LADE_CUDA_MMA_DKV_TILE(dim) ((dim) == 64 ? 64 : (dim) <= 128 ? 32 : 16)
#define LADE_CUDA_MMA_DKV_PARTS(dim) ((dim) <= 128 ? 1 : 2)

/*
 * By warpgroups, which have 64 rows each of a block's, over tiles of the other side. Shared memory holds those rows,
 * and tiles in PLACES places. BLOCKS are those of a multiprocessor, for which registers and shared memory must do.
 *
 * Heads of 128 have one block of two warpgroups: no fewer than 200 registers of a thread hold their sums and scores.
 * Forward has 160 KiB: queries, and two places for keys and for values. The gradients of queries have 224 KiB: queries
 * and those of out, three places for keys and two for values. Those of keys and values have 161.5 KiB: three places for
 * queries and their companions. Alignment to 1024 bytes comes on top.
 *
 * Heads of 64 have half the sums, and smaller tiles. So a multiprocessor has several blocks: one's products run beside
 * the other's exponentials, its first copies, and its results. With short sequences those are a large part of a block.
 */
#define LADE_CUDA_WGMMA_ROWS 128
#define LADE_CUDA_WGMMA_THREADS (2 * LADE_CUDA_WGMMA_ROWS)
#define LADE_CUDA_WGMMA_BLOCKS(dim) ((dim) == 64 ? 2 : 1)
#define LADE_CUDA_WGMMA_TILE(dim) ((dim) == 64 ? 64 : 128)
#define LADE_CUDA_WGMMA_DQ_ROWS(dim) ((dim) == 64 ? 64 : 128)
#define LADE_CUDA_WGMMA_DQ_THREADS(dim) (2 * LADE_CUDA_WGMMA_DQ_ROWS(dim))
#define LADE_CUDA_WGMMA_DQ_BLOCKS(dim) ((dim) == 64 ? 4 : 1)
#define LADE_CUDA_WGMMA_DQ_TILE(dim) ((dim) == 64 ? 64 : 128)
#define LADE_CUDA_WGMMA_DKV_ROWS(dim) ((dim) == 64 ? 64 : 128)
#define LADE_CUDA_WGMMA_DKV_THREADS(dim) (2 * LADE_CUDA_WGMMA_DKV_ROWS(dim))
#define LADE_CUDA_WGMMA_DKV_BLOCKS(dim) ((dim) == 64 ? 3 : 1)
#define LADE_CUDA_WGMMA_DKV_TILE 64
#define LADE_CUDA_WGMMA_PLACES 3
#define LADE_CUDA_WGMMA_BWD_PLACES(dim) ((dim) == 64 ? 2 : 3)
#define LADE_CUDA_WGMMA_ALIGN 1024 /* eight rows of 128 bytes, after which swizzling begins anew */

/*
 * Gradients of keys and values: where @n_blocks of whole key heads are fewer than @enough, a key head's query heads,
 * @group of them, are divided among parts. Each part is a block of threads. Then the longest block, that of the first
 * keys, has at most a multiprocessor's share of the work: the average block of a causal sequence is half as long.
 * ENOUGH is twice the multiprocessors of an H100, for each block that one of them has room for. Parts are FP32 rows of
 * dk and dv in the workspace after delta, at most 96 MiB for heads of 128; attention_dkv_sum adds them in order.
 */
#define LADE_CUDA_WGMMA_DKV_ENOUGH(dim) (256 * LADE_CUDA_WGMMA_DKV_BLOCKS(dim))
#define LADE_CUDA_MMA_DKV_ENOUGH 512

LADE_INLINE int64_t lade_cuda_dkv_parts(int64_t n_blocks, int64_t group, int64_t enough)
{
  const int64_t wanted = (enough + n_blocks - 1) / n_blocks, heads = group / wanted;
  return heads > 1 ? (group + heads - 1) / heads : group;
}

/* Return the number of floats of the workspace before the first part: delta's, up to a multiple of 16 bytes. */
LADE_INLINE int64_t lade_cuda_dkv_parts_begin(const struct lade_attention_bwd_args *a)
{
  return (a->batch * a->heads * a->seq_len + 3) / 4 * 4;
}

/*
 * Partial column sums of d_qkv by wgmma, after delta: [batch][blocks of queries][heads][head_dim], then
 * [batch][blocks of keys][dk, dv][n_kv_heads][head_dim].
 */
LADE_INLINE int64_t lade_cuda_attention_blocks(const struct lade_attention_bwd_args *a, int64_t block_rows)
{
  return a->batch * ((a->seq_len + block_rows - 1) / block_rows);
}

/* Return the floats before the second of them. @head_dim: @a's, a constant in kernels, where no thread divides then. */
LADE_INLINE int64_t lade_cuda_bias_keys_begin(const struct lade_attention_bwd_args *a, int64_t head_dim)
{
  return lade_cuda_dkv_parts_begin(a) +
         lade_cuda_attention_blocks(a, LADE_CUDA_WGMMA_DQ_ROWS(head_dim)) * a->heads * head_dim;
}

/*
 * d_qkv's keys and values = the sums over parts of [part][batch][n_kv_heads][seq_len][dk, dv][head_dim], times factors.
 */
struct lade_cuda_dkv_sum {
  struct lade_attention_bwd_args bwd;
  int64_t n_parts;
};

/* ---- rotary embedding ---- */

/* The table of cosines and sines: LONGROPE's factors travel with the arguments, by value. */
struct lade_cuda_rope_table {
  struct lade_rope_args rope;
  float factors[LADE_ROPE_MAX_FACTORS];
};

/* ---- head and loss ---- */

/* Logits exist for this many columns of the vocabulary at a time, and for rows up to so many numbers in all. */
#define LADE_CUDA_HEAD_CHUNK 4096
#define LADE_CUDA_HEAD_ELEMENTS (1 << 23)

/* One block of rows of one chunk, or all rows if a phase says so. */
struct lade_cuda_head {
  int64_t n, first_row, first_column, n_columns;
  int64_t first_token; /* of the vocabulary; it is column 0 */
  const float *logits; /* [current rows, n_columns] */
  const int32_t *targets;
  const float *before;             /* [3, n]: values that column 0 finds in the next three; may be NULL */
  float *max, *sum, *target_logit; /* [n], forward, one after the other */
  float *losses, *lse, *loss;
  float softcap;       /* of logits; 0: none */
  float scale;         /* of the mean loss, before loss scale and count */
  float *row_scale;    /* [1]: with them; made by head_scale */
  void *d_logits;      /* [n, n_columns], of the kernel's dtype */
};

#endif
