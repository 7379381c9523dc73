/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The compact forms of AdamW (base/moments.h) in vectors.
 *
 * With fewer bytes to move, instructions bind. Most elements have 8 or 16 bits, so 32 of them are processed at once as
 * 16 pairs. A 32-bit lane holds an even element below its odd neighbour, and one shift or one mask extracts either.
 * Widening and narrowing would shuffle across the register for each stream. FP32 streams, if the form has any, are
 * sorted into evens and odds instead. Random words have that order by definition.
 *
 * Work is in whole blocks of LADE_MOMENT_BLOCK. A tensor's last, partial block is done in a copy padded with zeros,
 * whose moments are zero too and do not raise the scale. Every branch on the form is a constant: each form is a
 * function of its own.
 */
#include "base/moments.h"
#include "kernels/host/optimizer/adamw_vec.h"

#define PAIR_ELEMENTS (2 * VEC_LANES)

_Static_assert(LADE_MOMENT_BLOCK == LADE_DRAW_WORDS && LADE_DRAW_WORDS == VEC_DRAW_WORDS,
               "a run is four blocks that share one draw of random words");

struct form {
  enum lade_dtype grad_dtype, dtype;
  enum lade_moments moments;
  enum lade_master master;
};

/* 32 elements: the even ones and the odd ones. */
struct even_odd {
  vu even, odd;
};
struct pairs_f32 {
  vf even, odd;
};

/* ---- streams ---- */

/* Load 32 numbers of 16 bits, each into the upper half of its lane. */
VEC_INLINE struct even_odd high_load(const void *x, int64_t i)
{
  vu both = vu_load((const uint32_t *)((const uint16_t *)x + i));
  return (struct even_odd){vu_shift_left(both, 16), vu_and(both, vu_set(0xffff0000))};
}

/* Store the upper halves of all lanes. */
VEC_INLINE void high_store(void *x, int64_t i, struct even_odd value)
{
  vu both = vu_or(vu_shift_right(value.even, 16), vu_and(value.odd, vu_set(0xffff0000)));
  vu_store((uint32_t *)((uint16_t *)x + i), both);
}

VEC_INLINE void low_store(void *x, int64_t i, struct even_odd value)
{
  vu both = vu_or(vu_and(value.even, vu_set(0xffff)), vu_shift_left(value.odd, 16));
  vu_store((uint32_t *)((uint16_t *)x + i), both);
}

/* Load 32 bytes, zero-extended; and store the low bytes of all lanes. */
VEC_INLINE struct even_odd bytes_load(const void *x, int64_t i)
{
  vu both = vu_load_u8_pairs((const uint8_t *)x + i);
  return (struct even_odd){vu_and(both, vu_set(0xff)), vu_shift_right(both, 16)};
}

VEC_INLINE void bytes_store(void *x, int64_t i, struct even_odd value)
{
  vu even = vu_and(value.even, vu_set(0xff)), odd = vu_and(value.odd, vu_set(0xff));
  vu_store_u8_pairs((uint8_t *)x + i, vu_or(even, vu_shift_left(odd, 16)));
}

VEC_INLINE struct pairs_f32 f32_load(const void *x, int64_t i)
{
  struct pairs_f32 value;
  vf_load_pairs((const float *)x + i, &value.even, &value.odd);
  return value;
}

VEC_INLINE void f32_store(void *x, int64_t i, struct pairs_f32 value)
{
  vf_store_pairs((float *)x + i, value.even, value.odd);
}

VEC_INLINE struct pairs_f32 from_bits(struct even_odd bits)
{
  return (struct pairs_f32){vf_from_bits(bits.even), vf_from_bits(bits.odd)};
}

VEC_INLINE struct even_odd to_bits(struct pairs_f32 value)
{
  return (struct even_odd){vu_bits_quiet(value.even), vu_bits_quiet(value.odd)};
}

VEC_INLINE struct pairs_f32 grad_load(const struct lade_adamw_args *a, int64_t i, enum lade_dtype dtype)
{
  return dtype == LADE_BF16 ? from_bits(high_load(a->grad, i)) : f32_load(a->grad, i);
}

/* ---- the master ---- */

VEC_INLINE struct pairs_f32 master_load(const struct lade_adamw_args *a, int64_t i, struct form form)
{
  if (form.dtype != LADE_BF16)
    return f32_load(form.dtype == LADE_F32 ? a->weight : a->residual, i);
  struct even_odd high = high_load(a->weight, i), low;
  if (form.master == LADE_MASTER_EXACT) {
    low = high_load(a->residual, i);
    low.even = vu_sign_extend(vu_shift_right(low.even, 16));
    low.odd = vu_sign_extend(vu_shift_right(low.odd, 16));
  } else {
    low = bytes_load(a->residual, i);
    low.even = vu_sign_extend(vu_shift_left(low.even, 8));
    low.odd = vu_sign_extend(vu_shift_left(low.odd, 8));
  }
  return from_bits((struct even_odd){vu_add(high.even, low.even), vu_add(high.odd, low.odd)});
}

/* Round the bits of a 24-bit master by the middle of its random word. */
VEC_INLINE vu master24_round(vu bits, vu word)
{
  return vu_shift_right(vu_add(bits, vu_and(vu_shift_right(word, 12), vu_set(0xff))), 8);
}

VEC_INLINE void master_store(const struct lade_adamw_args *a, int64_t i, struct pairs_f32 master, struct even_odd word,
                             struct form form)
{
  if (form.dtype == LADE_F32) {
    f32_store(a->weight, i, master);
  } else if (form.dtype == LADE_F16) {
    f32_store(a->residual, i, master);
    low_store(a->weight, i, (struct even_odd){vu_f16(master.even), vu_f16(master.odd)});
  } else if (form.master == LADE_MASTER_EXACT) {
    struct even_odd bits = to_bits(master);
    const vu half = vu_set(0x8000);
    high_store(a->weight, i, (struct even_odd){vu_add(bits.even, half), vu_add(bits.odd, half)});
    low_store(a->residual, i, bits);
  } else {
    struct even_odd bits = to_bits(master);
    bits = (struct even_odd){master24_round(bits.even, word.even), master24_round(bits.odd, word.odd)};
    const vu half = vu_set(0x80);
    struct even_odd high = {vu_shift_right(vu_add(bits.even, half), 8), vu_shift_right(vu_add(bits.odd, half), 8)};
    low_store(a->weight, i, high);
    bytes_store(a->residual, i, bits);
  }
}

/* ---- moments of eight bits ---- */

VEC_INLINE vf code_value(vu code, uint32_t scale, uint32_t top)
{
  uint32_t lowest = scale - top;
  vu normal = vu_shift_left(vu_add(code, vu_set(lowest << LADE_MANTISSA_BITS)), LADE_MANTISSA_SHIFT);
  vf subnormal = vf_mul(vf_from_int(code), vf_from_bits(vu_set((lowest - 3) << 23)));
  return vf_from_bits(vu_where_below(code, vu_set(1 << LADE_MANTISSA_BITS), vu_bits(subnormal), normal));
}

VEC_INLINE vf m_value(vu code, uint32_t scale)
{
  vf magnitude = code_value(vu_and(code, vu_set(0x7f)), scale, LADE_M_TOP);
  return vf_from_bits(vu_or(vu_bits(magnitude), vu_shift_left(vu_shift_right(code, 7), 31)));
}

/* Return the random bits that are added to an element's bits to round it. */
VEC_INLINE vu m_added(vu word)
{
  return vu_shift_left(vu_and(word, vu_set(0xffff)), LADE_MANTISSA_SHIFT - 16);
}

VEC_INLINE vu v_added(vu word)
{
  return vu_shift_left(vu_shift_right(word, 16), LADE_MANTISSA_SHIFT - 16);
}

VEC_INLINE vu code_make(vu magnitude, uint32_t scale, uint32_t top, vu added)
{
  uint32_t lowest = scale - top;
  vu rounded = vu_shift_right(vu_add(magnitude, added), LADE_MANTISSA_SHIFT);
  vu normal = vu_sub(rounded, vu_set(lowest << LADE_MANTISSA_BITS));
  vf steps = vf_mul(vf_from_bits(magnitude), vf_from_bits(vu_set((257 - lowest) << 23)));
  vf part = vf_from_bits(vu_or(vu_shift_left(added, LADE_MANTISSA_BITS), vu_set(0x3f800000)));
  vu subnormal = vu_sub(vu_truncate(vf_add(steps, part)), vu_set(1));
  vu code = vu_where_below(magnitude, vu_set((lowest + 1) << 23), subnormal, normal);
  return vu_min(code, vu_set(top << LADE_MANTISSA_BITS | 15));
}

VEC_INLINE vu m_code(vu m, uint32_t scale, vu word)
{
  vu code = code_make(vu_and(m, vu_set(0x7fffffff)), scale, LADE_M_TOP, m_added(word));
  return vu_or(code, vu_shift_left(vu_shift_right(m, 31), 7));
}

/* Return the code of v; a nonzero value has a nonzero code. */
VEC_INLINE vu v_code(vu v, uint32_t scale, vu word)
{
  vu bits = vu_and(v, vu_set(0x7fffffff));
  return vu_max(code_make(bits, scale, LADE_V_TOP, v_added(word)), vu_min(bits, vu_set(1)));
}

/* ---- blocks ---- */

/* A block's new moments until their scales are known, and their targets. */
struct compact_block {
  uint32_t m[LADE_MOMENT_BLOCK], v[LADE_MOMENT_BLOCK]; /* in each group of 32 elements the even ones come first */
  uint32_t scale_m, scale_v;
  vu max_m, max_v; /* largest rounded magnitude, by lane */
};

VEC_INLINE void lines_prefetch(const struct lade_adamw_args *a, int64_t i, struct form form)
{
  const size_t moment_bytes = form.moments == LADE_MOMENTS_F32 ? 4 : form.moments == LADE_MOMENTS_BF16 ? 2 : 1;
  vec_prefetch(a->grad, i, form.grad_dtype == LADE_BF16 ? 2 : 4, PAIR_ELEMENTS);
  vec_prefetch(a->weight, i, form.dtype == LADE_F32 ? 4 : 2, PAIR_ELEMENTS);
  if (form.dtype != LADE_F32)
    vec_prefetch(a->residual, i, form.dtype == LADE_F16 ? 4 : form.master == LADE_MASTER_24BIT ? 1 : 2, PAIR_ELEMENTS);
  vec_prefetch(a->m, i, moment_bytes, PAIR_ELEMENTS);
  vec_prefetch(a->v, i, moment_bytes, PAIR_ELEMENTS);
}

VEC_INLINE struct pairs_f32 moment_load(const void *moment, int64_t i, uint32_t scale, bool is_v,
                                        enum lade_moments moments)
{
  if (moments == LADE_MOMENTS_F32)
    return f32_load(moment, i);
  if (moments == LADE_MOMENTS_BF16)
    return from_bits(high_load(moment, i));
  struct even_odd code = bytes_load(moment, i);
  if (is_v)
    return (struct pairs_f32){code_value(code.even, scale, LADE_V_TOP), code_value(code.odd, scale, LADE_V_TOP)};
  return (struct pairs_f32){m_value(code.even, scale), m_value(code.odd, scale)};
}

VEC_INLINE void bf16_store(const struct lade_adamw_args *a, int64_t i, struct even_odd m, struct even_odd v,
                           struct even_odd word)
{
  const vu low = vu_set(0xffff);
  high_store(a->m, i, (struct even_odd){vu_add(m.even, vu_and(word.even, low)), vu_add(m.odd, vu_and(word.odd, low))});
  high_store(a->v, i, (struct even_odd){vu_add(v.even, vu_shift_right(word.even, 16)),
                                        vu_add(v.odd, vu_shift_right(word.odd, 16))});
}

/* Put sixteen new moments into the block. */
VEC_INLINE void block_put(struct compact_block *block, int at, vu m, vu v, vu word)
{
  const vu size = vu_set(0x7fffffff);
  vu_store(block->m + at, m);
  vu_store(block->v + at, v);
  block->max_m = vu_max(block->max_m, vu_add(vu_and(m, size), m_added(word)));
  block->max_v = vu_max(block->max_v, vu_add(vu_and(v, size), v_added(word)));
}

/* Process 32 elements from @i, at @at in their block. */
VEC_INLINE void pairs_step(const struct lade_adamw_args *a, const struct factors *f, struct compact_block *block,
                           int64_t i, int at, struct even_odd word, struct form form)
{
  struct pairs_f32 g = grad_load(a, i, form.grad_dtype), w = master_load(a, i, form);
  struct pairs_f32 m = moment_load(a->m, i, block->scale_m, false, form.moments);
  struct pairs_f32 v = moment_load(a->v, i, block->scale_v, true, form.moments);
  factors_apply(f, g.even, &m.even, &v.even, &w.even);
  factors_apply(f, g.odd, &m.odd, &v.odd, &w.odd);
  master_store(a, i, w, word, form);
  if (form.moments == LADE_MOMENTS_F32) {
    f32_store(a->m, i, m);
    f32_store(a->v, i, v);
  } else if (form.moments == LADE_MOMENTS_BF16) {
    bf16_store(a, i, to_bits(m), to_bits(v), word);
  } else {
    block_put(block, at, vu_bits(m.even), vu_bits(v.even), word.even);
    block_put(block, at + VEC_LANES, vu_bits(m.odd), vu_bits(v.odd), word.odd);
  }
}

VEC_INLINE struct even_odd words_load(const uint32_t *word, int at, uint32_t turn)
{
  return (struct even_odd){vu_rotate(vu_load(word + at), turn), vu_rotate(vu_load(word + at + VEC_LANES), turn)};
}

VEC_INLINE void codes_store(const struct lade_adamw_args *a, const struct compact_block *block, int64_t from,
                            const uint32_t *draw, uint32_t turn)
{
  for (int at = 0; at < LADE_MOMENT_BLOCK; at += PAIR_ELEMENTS) {
    struct even_odd word = words_load(draw, at, turn);
    struct even_odd m = {m_code(vu_load(block->m + at), block->scale_m, word.even),
                         m_code(vu_load(block->m + at + VEC_LANES), block->scale_m, word.odd)};
    struct even_odd v = {v_code(vu_load(block->v + at), block->scale_v, word.even),
                         v_code(vu_load(block->v + at + VEC_LANES), block->scale_v, word.odd)};
    bytes_store(a->m, from + at, m);
    bytes_store(a->v, from + at, v);
  }
}

/* Process the whole block from @from on, whose random words are @draw rotated by @turn. */
VEC_INLINE void block_step(const struct lade_adamw_args *a, const struct factors *f, int64_t from,
                           const uint32_t *draw, uint32_t turn, struct form form)
{
  struct compact_block block;
  const int64_t i_block = from / LADE_MOMENT_BLOCK;
  block.scale_m = block.scale_v = 0;
  if (form.moments == LADE_MOMENTS_8BIT) {
    block.scale_m = lade_scale_clamp(a->m_scales[i_block]);
    block.scale_v = lade_scale_clamp(a->v_scales[i_block]);
    block.max_m = block.max_v = vu_set(0);
  }
  for (int at = 0; at < LADE_MOMENT_BLOCK; at += PAIR_ELEMENTS) {
    lines_prefetch(a, from + at, form);
    pairs_step(a, f, &block, from + at, at, words_load(draw, at, turn), form);
  }
  if (form.moments != LADE_MOMENTS_8BIT)
    return;
  block.scale_m = lade_scale_clamp(vu_largest(block.max_m) >> 23);
  block.scale_v = lade_scale_clamp(vu_largest(block.max_v) >> 23);
  a->m_scales[i_block] = (uint8_t)block.scale_m;
  a->v_scales[i_block] = (uint8_t)block.scale_v;
  codes_store(a, &block, from, draw, turn);
}

/* ---- the last block ---- */

/* Space for a block of every stream, at its widest. */
struct tail {
  _Alignas(64) float grad[LADE_MOMENT_BLOCK], weight[LADE_MOMENT_BLOCK], residual[LADE_MOMENT_BLOCK];
  _Alignas(64) float m[LADE_MOMENT_BLOCK], v[LADE_MOMENT_BLOCK];
};

/* Bytes of an element of each stream. */
struct widths {
  size_t grad, weight, residual, moment;
};

static struct widths widths_get(struct form form)
{
  return (struct widths){.grad = lade_dtype_bytes(form.grad_dtype), .weight = lade_dtype_bytes(form.dtype),
                         .residual = form.dtype == LADE_F32 ? 0 : form.dtype == LADE_F16 ? 4
                                     : form.master == LADE_MASTER_24BIT ? 1 : 2,
                         .moment = form.moments == LADE_MOMENTS_F32 ? 4 : form.moments == LADE_MOMENTS_BF16 ? 2 : 1};
}

static void stream_copy(void *dst, int64_t dst_from, const void *src, int64_t src_from, int64_t n, size_t width)
{
  if (width)
    memcpy((char *)dst + (size_t)dst_from * width, (const char *)src + (size_t)src_from * width, (size_t)n * width);
}

/* Copy elements [from, from + n) of @a into a whole block of their own, and bind @ret_args to it. */
static void tail_load(const struct lade_adamw_args *a, int64_t from, int64_t n, struct form form, struct tail *tail,
                      struct lade_adamw_args *ret_args)
{
  const struct widths width = widths_get(form);
  memset(tail, 0, sizeof(*tail));
  stream_copy(tail->grad, 0, a->grad, from, n, width.grad);
  stream_copy(tail->weight, 0, a->weight, from, n, width.weight);
  stream_copy(tail->residual, 0, a->residual, from, n, width.residual);
  stream_copy(tail->m, 0, a->m, from, n, width.moment);
  stream_copy(tail->v, 0, a->v, from, n, width.moment);
  *ret_args = *a;
  ret_args->grad = tail->grad;
  ret_args->weight = tail->weight;
  ret_args->residual = tail->residual;
  ret_args->m = tail->m;
  ret_args->v = tail->v;
  if (form.moments == LADE_MOMENTS_8BIT) {
    ret_args->m_scales += from / LADE_MOMENT_BLOCK;
    ret_args->v_scales += from / LADE_MOMENT_BLOCK;
  }
}

static void tail_store(const struct lade_adamw_args *a, int64_t from, int64_t n, struct form form,
                       const struct tail *tail)
{
  const struct widths width = widths_get(form);
  stream_copy(a->weight, from, tail->weight, 0, n, width.weight);
  stream_copy(a->residual, from, tail->residual, 0, n, width.residual);
  stream_copy(a->m, from, tail->m, 0, n, width.moment);
  stream_copy(a->v, from, tail->v, 0, n, width.moment);
}

/* ---- spans ---- */

VEC_INLINE void compact_span(const struct adamw_call *call, int64_t i_task, struct form form)
{
  VEC_COPY(lade_adamw_args, a, call->args);
  const struct factors f = factors_make(call);
  int64_t from = i_task * LADE_TASK_ELEMENTS, end = LADE_MIN(a->n_elements, from + LADE_TASK_ELEMENTS);
  uint32_t draw[LADE_DRAW_WORDS];
  for (; from < end; from += LADE_MOMENT_BLOCK) {
    uint32_t turn = (uint32_t)(from % LADE_DRAW_RUN / LADE_DRAW_WORDS * 8);
    if (!turn)
      vec_words_draw(draw, call->step, a->stream, (a->first_element + (uint64_t)from) / 4);
    if (from + LADE_MOMENT_BLOCK <= end) {
      block_step(a, &f, from, draw, turn, form);
    } else {
      struct tail tail;
      struct lade_adamw_args own;
      tail_load(a, from, end - from, form, &tail, &own);
      block_step(&own, &f, 0, draw, turn, form);
      tail_store(a, from, end - from, form, &tail);
    }
  }
}

#define SPAN(name, dtype, moments, master) \
  static void name(void *arg, int i_task, int i_thread) \
  { \
    const struct adamw_call *call = arg; \
    if (call->args->grad_dtype == LADE_BF16) \
      compact_span(call, i_task, (struct form){LADE_BF16, dtype, moments, master}); \
    else \
      compact_span(call, i_task, (struct form){LADE_F32, dtype, moments, master}); \
  }
SPAN(f32_bf16, LADE_F32, LADE_MOMENTS_BF16, LADE_MASTER_EXACT)
SPAN(f32_8bit, LADE_F32, LADE_MOMENTS_8BIT, LADE_MASTER_EXACT)
SPAN(f16_bf16, LADE_F16, LADE_MOMENTS_BF16, LADE_MASTER_EXACT)
SPAN(f16_8bit, LADE_F16, LADE_MOMENTS_8BIT, LADE_MASTER_EXACT)
SPAN(bf16_bf16, LADE_BF16, LADE_MOMENTS_BF16, LADE_MASTER_EXACT)
SPAN(bf16_8bit, LADE_BF16, LADE_MOMENTS_8BIT, LADE_MASTER_EXACT)
SPAN(bf16_f32_24, LADE_BF16, LADE_MOMENTS_F32, LADE_MASTER_24BIT)
SPAN(bf16_bf16_24, LADE_BF16, LADE_MOMENTS_BF16, LADE_MASTER_24BIT)
SPAN(bf16_8bit_24, LADE_BF16, LADE_MOMENTS_8BIT, LADE_MASTER_24BIT)

lade_task_fn *VEC_NAME(adamw_compact_task)(const struct lade_adamw_args *args)
{
  static lade_task_fn *const tasks[][LADE_N_MOMENTS] = {
      [LADE_F32] = {NULL, f32_bf16, f32_8bit}, [LADE_BF16] = {NULL, bf16_bf16, bf16_8bit},
      [LADE_F16] = {NULL, f16_bf16, f16_8bit}};
  static lade_task_fn *const tasks_24[LADE_N_MOMENTS] = {bf16_f32_24, bf16_bf16_24, bf16_8bit_24};
  LADE_ASSERT(args->master == LADE_MASTER_EXACT || args->dtype == LADE_BF16);
  return args->master == LADE_MASTER_24BIT ? tasks_24[args->moments] : tasks[args->dtype][args->moments];
}
