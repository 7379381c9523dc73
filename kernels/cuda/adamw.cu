/* SPDX-License-Identifier: Apache-2.0 */
/*
 * AdamW: the written sequence of kernels/host/adamw.c, bit-equal to it; a thread has EACH neighbours. Of 8-bit moments
 * a warp has exactly one block of LADE_MOMENT_BLOCK elements, which shares an exponent: its lanes read it before one
 * writes, and find the new one as a maximum of integers.
 *
 * Each form of the state is compiled by itself, and whole blocks of threads apart from the last one: without a branch
 * between them all loads of a thread are under way before it waits for one, the random words are made meanwhile, and
 * no instruction asks what the form is. Compact forms draw the words of the block of threads' elements, one for four of
 * them, once.
 *
 * Moves for each parameter the gradient once (4 or 2 bytes) and its state twice: 12 bytes with exact BF16 masters and
 * F32 moments (28 with an F32 gradient). Bound: memory; 8-bit moments: as much integer arithmetic, of which a
 * multiprocessor has half as many operations in a cycle as of floats. So codes are decoded by two products, and the
 * warp's maximum is one instruction.
 */
#include "base/moments.h"
#include "kernels/cuda/kernel.h"

#define EACH LADE_CUDA_ADAMW_EACH

static_assert(LADE_MOMENT_BLOCK == 32 * EACH, "a warp has a block of moments");
static_assert(LADE_CUDA_THREADS * EACH % LADE_DRAW_RUN == 0, "a block of threads has whole runs of random words");

/* Where this thread's elements are, and how many there are. */
struct place {
  int64_t i;
  int n;
};

template <class T> static __device__ inline void items_load(T (&to)[EACH], const void *from, const struct place &place)
{
  if (place.n == EACH) {
    pack<T, EACH> p = pack_load<T, EACH>((const T *)from + place.i);
    memcpy(to, &p, sizeof(to));
    return;
  }
#pragma unroll
  for (int k = 0; k < EACH; k++)
    to[k] = k < place.n ? ((const T *)from)[place.i + k] : T();
}

template <class T> static __device__ inline void items_store(void *to, const struct place &place, const T (&from)[EACH])
{
  if (place.n == EACH) {
    pack<T, EACH> p;
    memcpy(&p, from, sizeof(p));
    pack_store((T *)to + place.i, p);
    return;
  }
#pragma unroll
  for (int k = 0; k < EACH; k++)
    if (k < place.n)
      ((T *)to)[place.i + k] = from[k];
}

/* ---- master weights: of a working copy of type T and a residual of type R ---- */

static __device__ inline float master_get(float weight, float) { return weight; }
static __device__ inline float master_get(bf16 weight, int16_t residual)
{
  return lade_master_join(weight.bits, residual);
}
static __device__ inline float master_get(bf16 weight, int8_t residual)
{
  return lade_master24_join(weight.bits, residual);
}
static __device__ inline float master_get(f16, float residual) { return residual; }

static __device__ inline void master_put(float *weight, float *, float w, uint32_t) { *weight = w; }
static __device__ inline void master_put(bf16 *weight, int16_t *residual, float w, uint32_t)
{
  lade_master_split(w, &weight->bits, residual);
}
static __device__ inline void master_put(bf16 *weight, int8_t *residual, float w, uint32_t word)
{
  lade_master24_split(w, lade_draw_master(word), &weight->bits, residual);
}
static __device__ inline void master_put(f16 *weight, float *residual, float w, uint32_t)
{
  weight->bits = lade_f32_to_f16(w);
  *residual = w;
}

/* ---- moments of type X: float, bf16, or the codes of a block of known scale ---- */

/* The exponent of moments whose codes' is 0. */
static __device__ inline uint32_t lowest_get(bool is_v, uint32_t scale)
{
  return scale - (is_v ? LADE_V_TOP : LADE_M_TOP);
}

/*
 * A code whose fields are put where a float has its own is that float times a power of two, subnormal or not; the power
 * may be no float, but it is two of them. Exact, as moments.h's.
 */
static __device__ inline float code_value(bool is_v, uint8_t code, uint32_t scale)
{
  const uint32_t word = (uint32_t)code << 24;
  const uint32_t bits = is_v ? word >> 5 : (uint32_t)((int32_t)word >> 5) & 0x83f80000u;
  return lade_f32_from_bits(bits) * 0x1p127f * lade_f32_from_bits(lowest_get(is_v, scale) << 23);
}

static __device__ inline float moment_get(bool, float x, uint32_t) { return x; }
static __device__ inline float moment_get(bool, bf16 x, uint32_t) { return get(x); }
static __device__ inline float moment_get(bool is_v, uint8_t code, uint32_t scale)
{
  return code_value(is_v, code, scale);
}

/* What all codes of a block of moments have of its scale. */
struct coder {
  uint32_t lowest, least_normal; /* as FP32 bits */
  float steps;                   /* of a subnormal code in 1 */
};

static __device__ inline struct coder coder_get(bool is_v, uint32_t scale)
{
  const uint32_t lowest = lowest_get(is_v, scale);
  return (struct coder){lowest << 23, (lowest + 1) << 23, lade_f32_from_bits((257 - lowest) << 23)};
}

/* moments.h's lade_m_code and lade_v_code, of numbers' 32 bits: both kinds of codes are made, and no lane waits. */
static __device__ inline uint8_t code_make(bool is_v, float x, const struct coder &coder, uint32_t rounding)
{
  const uint32_t magnitude = lade_f32_bits(x) & 0x7fffffffu, most = (is_v ? LADE_V_TOP : LADE_M_TOP) << 4 | 15;
  const float part = lade_f32_from_bits(0x3f800000u | rounding << LADE_MANTISSA_BITS);
  const uint32_t subnormal = (uint32_t)(int32_t)(lade_f32_from_bits(magnitude) * coder.steps + part) - 1;
  const uint32_t normal = (magnitude + rounding - coder.lowest) >> LADE_MANTISSA_SHIFT;
  uint32_t code = magnitude >= coder.least_normal ? normal : subnormal;
  code = code < most ? code : most;
  return (uint8_t)(is_v ? code > (magnitude != 0) ? code : magnitude != 0 : lade_f32_bits(x) >> 31 << 7 | code);
}

static __device__ inline uint32_t rounding_get(bool is_v, uint32_t word)
{
  return lade_round_random(is_v ? lade_draw_v(word) : lade_draw_m(word));
}

/* Scales of a form: this thread's block of moments has one of each where X is a code. */
static __device__ inline uint32_t scale_load(float, const uint8_t *, const struct place &) { return 0; }
static __device__ inline uint32_t scale_load(bf16, const uint8_t *, const struct place &) { return 0; }
static __device__ inline uint32_t scale_load(uint8_t, const uint8_t *scales, const struct place &place)
{
  return place.n > 0 ? scales[place.i / LADE_MOMENT_BLOCK] : 0;
}

static __device__ inline void moments_put(bool, float *to, uint8_t *, const struct place &place,
                                          const float (&x)[EACH], const uint32_t (&)[EACH])
{
  items_store(to, place, x);
}

static __device__ inline void moments_put(bool is_v, bf16 *to, uint8_t *, const struct place &place,
                                          const float (&x)[EACH], const uint32_t (&words)[EACH])
{
  bf16 bits[EACH];
#pragma unroll
  for (int k = 0; k < EACH; k++)
    bits[k].bits = lade_f32_to_bf16_random(x[k], is_v ? lade_draw_v(words[k]) : lade_draw_m(words[k]));
  items_store(to, place, bits);
}

/* The exponent of the warp's block is that of the largest of its elements as rounded. Whole warps. */
static __device__ inline void moments_put(bool is_v, uint8_t *to, uint8_t *scales, const struct place &place,
                                          const float (&x)[EACH], const uint32_t (&words)[EACH])
{
  uint32_t largest = 0;
  uint8_t codes[EACH];
#pragma unroll
  for (int k = 0; k < EACH; k++) {
    uint32_t own = k < place.n ? (lade_f32_bits(x[k]) & 0x7fffffffu) + rounding_get(is_v, words[k]) : 0;
    largest = own > largest ? own : largest;
  }
  const uint32_t scale = lade_scale_clamp(lade_scale_of(__reduce_max_sync(0xffffffffu, largest), 0));
  const struct coder coder = coder_get(is_v, scale);
#pragma unroll
  for (int k = 0; k < EACH; k++)
    codes[k] = code_make(is_v, x[k], coder, rounding_get(is_v, words[k]));
  items_store(to, place, codes);
  if (threadIdx.x % 32 == 0 && place.n > 0)
    scales[place.i / LADE_MOMENT_BLOCK] = (uint8_t)scale;
}

/* ---- the update ---- */

/* This thread's elements as they lie in memory. F32 weights have no residual. */
template <class T, class R, class G, class X> struct state {
  G grad[EACH];
  T weight[EACH];
  R residual[EACH];
  X m[EACH], v[EACH];
  uint32_t m_scale, v_scale;
};

template <class T, class R, class G, class X>
static __device__ inline void state_load(struct state<T, R, G, X> &s, const struct lade_adamw_args &a,
                                         const struct place &place)
{
  items_load(s.grad, a.grad, place);
  items_load(s.weight, a.weight, place);
  if (sizeof(T) < sizeof(float))
    items_load(s.residual, a.residual, place);
  items_load(s.m, a.m, place);
  items_load(s.v, a.v, place);
  s.m_scale = scale_load(X(), a.m_scales, place);
  s.v_scale = scale_load(X(), a.v_scales, place);
}

/*
 * Random words of this thread's elements. @room: a word for each thread. Whole blocks. A block's elements begin a run
 * of words; a thread's four neighbours have two pairs of them, 16 apart (lade_draw_place).
 */
static __device__ inline void words_get(const struct lade_adamw_args &a, const struct lade_step &s, uint32_t *room,
                                        uint32_t (&words)[EACH])
{
  const uint64_t first = (a.first_element + (uint64_t)blockIdx.x * blockDim.x * EACH) / LADE_DRAW_RUN;
  if (threadIdx.x < blockDim.x / 4) {
    struct lade_philox draw =
        lade_philox_draw(s.seed, s.step, a.stream, first * (LADE_DRAW_WORDS / 4) + threadIdx.x);
#pragma unroll
    for (int k = 0; k < 4; k++)
      room[4 * threadIdx.x + k] = draw.word[k];
  }
  __syncthreads();
  const uint32_t element = threadIdx.x * EACH;
  const uint32_t *at = room + element / LADE_DRAW_RUN * LADE_DRAW_WORDS + lade_draw_place(element);
#pragma unroll
  for (int k = 0; k < EACH; k++)
    words[k] = lade_draw_turn(at[k / 2 + k % 2 * 16], element);
}

template <class T, class R, class G, class X>
static __device__ inline void update(const struct lade_adamw_args &a, const struct lade_step *step, uint32_t *room,
                                     const struct place &place)
{
  constexpr bool HAS_WORDS = sizeof(X) < sizeof(float) || sizeof(R) == 1;
  struct state<T, R, G, X> state;
  float w[EACH], m[EACH], v[EACH];
  uint32_t words[EACH] = {};
  state_load(state, a, place);
  const struct lade_verdict verdict = *a.verdict;
  const struct lade_step s = *step;
  const float decay = a.has_decay ? s.weight_decay : 0.0f;
  if (verdict.is_skipped)
    return;
  if (HAS_WORDS)
    words_get(a, s, room, words);
  const uint32_t m_scale = lade_scale_clamp(state.m_scale), v_scale = lade_scale_clamp(state.v_scale);
#pragma unroll
  for (int k = 0; k < EACH; k++) {
    float g = get(state.grad[k]) * verdict.factor;
    m[k] = fmaf(s.beta1, moment_get(false, state.m[k], m_scale), (1.0f - s.beta1) * g);
    v[k] = fmaf(s.beta2, moment_get(true, state.v[k], v_scale), (1.0f - s.beta2) * (g * g));
    float u = m[k] * s.correction1 / (sqrtf(v[k] * s.correction2) + s.eps);
    w[k] = master_get(state.weight[k], state.residual[k]);
    w[k] = fmaf(-s.lr, fmaf(decay, w[k], u), w[k]);
    master_put(&state.weight[k], &state.residual[k], w[k], words[k]);
  }
  items_store(a.weight, place, state.weight);
  if (sizeof(T) < sizeof(float))
    items_store(a.residual, place, state.residual);
  moments_put(false, (X *)a.m, a.m_scales, place, m, words);
  moments_put(true, (X *)a.v, a.v_scales, place, v, words);
}

template <class T, class R, class G, class X>
static __device__ inline void form_update(const struct lade_adamw_args &a, const struct lade_step *step, uint32_t *room)
{
  struct place place = {thread_get() * EACH, EACH};
  if (((int64_t)blockIdx.x + 1) * blockDim.x * EACH <= a.n_elements) {
    update<T, R, G, X>(a, step, room, place);
    return;
  }
  if (a.n_elements - place.i < EACH)
    place.n = a.n_elements > place.i ? (int)(a.n_elements - place.i) : 0;
  update<T, R, G, X>(a, step, room, place);
}

template <class T, class R, class G>
static __device__ inline void moments_choose(const struct lade_adamw_args &a, const struct lade_step *step,
                                             uint32_t *room)
{
  if (a.moments == LADE_MOMENTS_F32)
    form_update<T, R, G, float>(a, step, room);
  else if (a.moments == LADE_MOMENTS_BF16)
    form_update<T, R, G, bf16>(a, step, room);
  else
    form_update<T, R, G, uint8_t>(a, step, room);
}

template <class T, class R>
static __device__ inline void grads_choose(const struct lade_adamw_args &a, const struct lade_step *step,
                                           uint32_t *room)
{
  if (a.grad_dtype == LADE_BF16)
    moments_choose<T, R, bf16>(a, step, room);
  else
    moments_choose<T, R, float>(a, step, room);
}

static __device__ inline void masters_choose(float, const struct lade_adamw_args &a, const struct lade_step *step,
                                             uint32_t *room)
{
  grads_choose<float, float>(a, step, room);
}

static __device__ inline void masters_choose(f16, const struct lade_adamw_args &a, const struct lade_step *step,
                                             uint32_t *room)
{
  grads_choose<f16, float>(a, step, room);
}

static __device__ inline void masters_choose(bf16, const struct lade_adamw_args &a, const struct lade_step *step,
                                             uint32_t *room)
{
  if (a.master == LADE_MASTER_24BIT)
    grads_choose<bf16, int8_t>(a, step, room);
  else
    grads_choose<bf16, int16_t>(a, step, room);
}

template <class T> static __device__ void adamw_of(const struct lade_adamw_args &a, const struct lade_step *step)
{
  LADE_SHARED(uint32_t, room);
  masters_choose(T(), a, step, room);
}
LADE_KERNEL_OF_DTYPES(adamw, lade_adamw_args)
