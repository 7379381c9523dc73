/* SPDX-License-Identifier: Apache-2.0 */
/*
 * AdamW: the written sequence of kernels/host/optimizer/adamw.c, bit-equal to it. A thread has EACH neighbours in a
 * turn, and TURNS turns. With 8-bit moments a warp has exactly one block of LADE_MOMENT_BLOCK elements in a turn, which
 * shares an exponent: all lanes read it before one writes, and the new one is a maximum of integers. A warp's turns
 * together are a run of random words: each lane makes one draw of them, and turns differ in where in a word an
 * element's bits begin.
 *
 * Each form of the state is compiled by itself, and whole runs apart from the last one. Without a branch between them
 * all loads of AHEAD turns are in flight before a thread waits for one. The random words are made meanwhile, and no
 * instruction tests the form.
 *
 * Roots and divisions are made as the compiler makes them, but without its test of the operands' exponents before each.
 * Here one test covers EACH elements, and if one of them is out of range all are recomputed with the plain operators.
 * The same path handles moments and rates for which the short ways of decoding are not exact.
 *
 * Moves for each parameter the gradient once (4 or 2 bytes) and its state twice: 12 bytes with exact BF16 masters and
 * F32 moments (28 with an F32 gradient). Bound: memory. Codes and random bits are integer arithmetic, of which a
 * multiprocessor has half as many operations in a cycle as of floats. So packed elements are split and joined by bytes,
 * four at a time. Conversions between codes and numbers use the float units where they can.
 */
#include "base/moments.h"
#include "kernels/cuda/kernel.h"

#define EACH LADE_CUDA_ADAMW_EACH
#define TURNS LADE_CUDA_ADAMW_TURNS

static_assert(LADE_MOMENT_BLOCK == 32 * EACH, "a warp has a block of moments");
static_assert(LADE_DRAW_RUN == 32 * EACH * TURNS && LADE_DRAW_WORDS == 32 * 4, "a warp has a run, a lane a draw");
static_assert(EACH == 4, "pairs and words are written out");

/* The place of this thread's elements of a turn, from those of the first on, and their number. */
struct thread_place {
  int i, n;
};

static __device__ inline uint32_t less_of(uint32_t a, uint32_t b) { return a < b ? a : b; }
static __device__ inline uint32_t more_of(uint32_t a, uint32_t b) { return a > b ? a : b; }

/* EACH elements of type T in their memory layout. */
template <class T> struct items {
  uint32_t word[sizeof(T)];
};

template <class T> static __device__ inline void items_load(struct items<T> &to, const void *from,
                                                            const thread_place &place)
{
  constexpr int N = sizeof(T);
  if (place.n == EACH) {
    pack<uint32_t, N> p = pack_load<uint32_t, N>((const uint32_t *)((const T *)from + place.i));
    memcpy(to.word, &p, sizeof(to.word));
    return;
  }
  T x[EACH] = {};
#pragma unroll
  for (int k = 0; k < EACH; k++)
    if (k < place.n)
      x[k] = ((const T *)from)[place.i + k];
  memcpy(to.word, x, sizeof(x));
}

template <class T> static __device__ inline void items_store(void *to, const thread_place &place,
                                                             const struct items<T> &from)
{
  constexpr int N = sizeof(T);
  if (place.n == EACH) {
    pack<uint32_t, N> p;
    memcpy(&p, from.word, sizeof(p));
    pack_store((uint32_t *)((T *)to + place.i), p);
    return;
  }
  T x[EACH];
  memcpy(x, from.word, sizeof(x));
#pragma unroll
  for (int k = 0; k < EACH; k++)
    if (k < place.n)
      ((T *)to)[place.i + k] = x[k];
}

/* Return the low, or the high, halves of two words in one. */
static __device__ inline uint32_t halves_low(uint32_t a, uint32_t b) { return ptx_bytes(a, b, 0x5410); }
static __device__ inline uint32_t halves_high(uint32_t a, uint32_t b) { return ptx_bytes(a, b, 0x7632); }

/* Return byte @byte of each of four words, in one word. */
static __device__ inline uint32_t bytes_gather(const uint32_t (&x)[EACH], int byte)
{
  const uint32_t which = (uint32_t)(byte | (4 + byte) << 4);
  return halves_low(ptx_bytes(x[0], x[1], which), ptx_bytes(x[2], x[3], which));
}

/* Return bytes @pair and @pair + 1 of a word, each above a byte of zeros. */
static __device__ inline uint32_t bytes_spread(uint32_t x, int pair)
{
  return ptx_bytes(x, 0, pair ? 0x3424 : 0x1404);
}

/* ---- numbers of a kind that stands alone: F32 and BF16 ---- */

static __device__ inline void numbers_get(const struct items<float> &x, float (&to)[EACH])
{
#pragma unroll
  for (int k = 0; k < EACH; k++)
    to[k] = lade_f32_from_bits(x.word[k]);
}

static __device__ inline void numbers_get(const struct items<bf16> &x, float (&to)[EACH])
{
#pragma unroll
  for (int k = 0; k < EACH; k++)
    to[k] = lade_f32_from_bits(k % 2 ? x.word[k / 2] & 0xffff0000u : x.word[k / 2] << 16);
}

static __device__ inline void numbers_put(struct items<float> &to, const float (&x)[EACH])
{
#pragma unroll
  for (int k = 0; k < EACH; k++)
    to.word[k] = lade_f32_bits(x[k]);
}

/* ---- random words ---- */

/*
 * Get the words of this thread's elements for the first turn; other turns use other bits of them. @i: the warp's first
 * element. @room: of a run of words for each warp. Whole warps. A thread's four neighbours have two pairs of words, 16
 * apart (lade_draw_place).
 */
static __device__ inline void words_get(const struct lade_adamw_args &a, const struct lade_step &s, uint32_t *room,
                                        int64_t i, uint32_t (&words)[EACH])
{
  const uint32_t lane = threadIdx.x % 32;
  const uint64_t first = (a.first_element + (uint64_t)i) / LADE_DRAW_RUN * (LADE_DRAW_WORDS / 4);
  const struct lade_philox draw = lade_philox_draw(s.seed, s.step, a.stream, first + lane);
  uint32_t *run = room + threadIdx.x / 32 * LADE_DRAW_WORDS;
#pragma unroll
  for (int k = 0; k < 4; k++)
    run[4 * lane + k] = draw.word[k];
  __syncwarp();
  const uint32_t *at = run + lade_draw_place(lane * EACH);
#pragma unroll
  for (int k = 0; k < EACH; k++)
    words[k] = at[k / 2 + k % 2 * 16];
}

/* Return the 16 random bits that round a moment: lade_draw_m or lade_draw_v of lade_draw_turn's word. */
static __device__ inline uint32_t draw_get(bool is_v, uint32_t word, int turn)
{
  const uint32_t first = (uint32_t)((is_v ? 2 : 0) - turn);
  return ptx_bytes(word, 0, 0x7600u | (first & 3) | ((first + 1) & 3) << 4);
}

static __device__ inline uint32_t master_draw(uint32_t word, int turn)
{
  return lade_draw_master(lade_draw_turn(word, (uint64_t)turn * LADE_DRAW_WORDS));
}

/* ---- master weights: of a working copy of type T and a residual of type R ---- */

static __device__ inline void masters_get(const struct items<float> &weight, const struct items<float> &,
                                          float (&w)[EACH])
{
  numbers_get(weight, w);
}

static __device__ inline void masters_get(const struct items<f16> &, const struct items<float> &residual,
                                          float (&w)[EACH])
{
  numbers_get(residual, w);
}

/*
 * Join BF16 and a signed residual, of two elements. Below the working copy lie the residual's bits with its sign
 * inverted, which is the master and half a step of the working copy.
 */
static __device__ inline void pair_join(uint32_t weights, uint32_t residuals, float *w)
{
  w[0] = lade_f32_from_bits(ptx_bytes(weights, residuals, 0x1054) - 0x8000u);
  w[1] = lade_f32_from_bits(ptx_bytes(weights, residuals, 0x3276) - 0x8000u);
}

static __device__ inline void masters_get(const struct items<bf16> &weight, const struct items<int16_t> &residual,
                                          float (&w)[EACH])
{
#pragma unroll
  for (int pair = 0; pair < EACH / 2; pair++)
    pair_join(weight.word[pair], residual.word[pair] ^ 0x80008000u, w + 2 * pair);
}

static __device__ inline void masters_get(const struct items<bf16> &weight, const struct items<int8_t> &residual,
                                          float (&w)[EACH])
{
#pragma unroll
  for (int pair = 0; pair < EACH / 2; pair++)
    pair_join(weight.word[pair], bytes_spread(residual.word[0] ^ 0x80808080u, pair), w + 2 * pair);
}

static __device__ inline void masters_put(struct items<float> &weight, struct items<float> &, const float (&w)[EACH],
                                          const uint32_t (&)[EACH], int)
{
  numbers_put(weight, w);
}

static __device__ inline void masters_put(struct items<f16> &weight, struct items<float> &residual,
                                          const float (&w)[EACH], const uint32_t (&)[EACH], int)
{
#pragma unroll
  for (int pair = 0; pair < EACH / 2; pair++)
    weight.word[pair] = lade_f32_to_f16(w[2 * pair]) | (uint32_t)lade_f32_to_f16(w[2 * pair + 1]) << 16;
  numbers_put(residual, w);
}

static __device__ inline void masters_put(struct items<bf16> &weight, struct items<int16_t> &residual,
                                          const float (&w)[EACH], const uint32_t (&)[EACH], int)
{
#pragma unroll
  for (int pair = 0; pair < EACH / 2; pair++) {
    const uint32_t a = lade_f32_bits_quiet(w[2 * pair]), b = lade_f32_bits_quiet(w[2 * pair + 1]);
    weight.word[pair] = halves_high(a + 0x8000u, b + 0x8000u);
    residual.word[pair] = halves_low(a, b);
  }
}

static __device__ inline void masters_put(struct items<bf16> &weight, struct items<int8_t> &residual,
                                          const float (&w)[EACH], const uint32_t (&words)[EACH], int turn)
{
  uint32_t bits[EACH];
#pragma unroll
  for (int k = 0; k < EACH; k++)
    bits[k] = lade_f32_bits_quiet(w[k]) + master_draw(words[k], turn) + 0x8000u;
  weight.word[0] = halves_high(bits[0], bits[1]);
  weight.word[1] = halves_high(bits[2], bits[3]);
  residual.word[0] = bytes_gather(bits, 1) ^ 0x80808080u;
}

/* ---- moments of type X: float, bf16, or the codes of a block of known scale ---- */

/* Return the exponent of moments whose code has exponent 0. */
static __device__ inline uint32_t lowest_get(bool is_v, uint32_t scale)
{
  return scale - (is_v ? LADE_V_TOP : LADE_M_TOP);
}

/*
 * Decode: a code whose fields are put into a float's is that float times a power of two, subnormal or not. The power
 * may exceed a float's range, but is the product of two floats. Exact, as moments.h's.
 */
static __device__ inline void moments_get(bool is_v, const struct items<uint8_t> &x, uint32_t scale, float (&to)[EACH])
{
#pragma unroll
  for (int k = 0; k < EACH; k++) {
    const uint32_t word = x.word[0] << (24 - 8 * k) & 0xff000000u;
    const uint32_t bits = is_v ? word >> 5 : (uint32_t)((int32_t)word >> 5) & 0x83f80000u;
    to[k] = lade_f32_from_bits(bits) * 0x1p127f * lade_f32_from_bits(lowest_get(is_v, scale) << 23);
  }
}

template <class X>
static __device__ inline void moments_get(bool, const struct items<X> &x, uint32_t, float (&to)[EACH])
{
  numbers_get(x, to);
}

/*
 * Decode over the block's power of two, by the hardware's half-precision floats: a code has their fields, above six
 * bits of zeros. code_rate is a rate times that power. Exact for rates and scales in the usual range (rates_are_usual,
 * scale_is_usual).
 */
static __device__ inline void codes_get(bool is_v, const struct items<uint8_t> &x, float (&to)[EACH])
{
#pragma unroll
  for (int pair = 0; pair < EACH / 2; pair++) {
    const uint32_t bytes = bytes_spread(x.word[0], pair), fields = bytes >> 2;
    const uint32_t halves = is_v ? fields : (fields & 0x1fc01fc0u) | (bytes & 0x80008000u);
    ptx_f32_of_f16_pair(halves, to[2 * pair], to[2 * pair + 1]);
  }
}
static __device__ inline void codes_get(bool, const struct items<float> &x, float (&to)[EACH]) { numbers_get(x, to); }
static __device__ inline void codes_get(bool, const struct items<bf16> &x, float (&to)[EACH]) { numbers_get(x, to); }

#define HALF_BIAS 15 /* of half-precision exponents */

static __device__ inline float code_rate(uint8_t, bool is_v, float rate, uint32_t scale)
{
  return rate * lade_f32_from_bits((lowest_get(is_v, scale) + HALF_BIAS) << 23);
}
static __device__ inline float code_rate(float, bool, float rate, uint32_t) { return rate; }
static __device__ inline float code_rate(bf16, bool, float rate, uint32_t) { return rate; }

/* True if the power is a float. That of v always is. */
static __device__ inline bool scale_is_usual(uint8_t, uint32_t m_scale)
{
  return m_scale <= 254 - HALF_BIAS + LADE_M_TOP;
}
static __device__ inline bool scale_is_usual(float, uint32_t) { return true; }
static __device__ inline bool scale_is_usual(bf16, uint32_t) { return true; }

/* Exponents of a run, a byte for each turn: of the old moments, and of the new. @n: the number of turns. */
struct scales {
  uint32_t m, v;
};

static __device__ inline uint32_t scales_load(const uint8_t *from, int n)
{
  uint32_t scales = 0;
  if (n == TURNS)
    return *(const uint32_t *)from;
  for (int turn = 0; turn < n; turn++)
    scales |= (uint32_t)from[turn] << 8 * turn;
  return scales;
}

static __device__ inline void scales_store(uint8_t *to, int n, uint32_t scales)
{
  if (n == TURNS)
    *(uint32_t *)to = scales;
  for (int turn = 0; turn < n && n < TURNS; turn++)
    to[turn] = (uint8_t)(scales >> 8 * turn);
}

static __device__ inline uint32_t scale_get(uint32_t scales, int turn)
{
  return lade_scale_clamp(scales >> 8 * turn & 0xff);
}

/* Store moments. Return the exponent of their block, in the byte of @turn; 0: they have none. */
static __device__ inline uint32_t moments_put(bool, float *to, const thread_place &place, const float (&x)[EACH],
                                              const uint32_t (&)[EACH], int)
{
  struct items<float> items;
  numbers_put(items, x);
  items_store(to, place, items);
  return 0;
}

static __device__ inline uint32_t moments_put(bool is_v, bf16 *to, const thread_place &place, const float (&x)[EACH],
                                              const uint32_t (&words)[EACH], int turn)
{
  struct items<bf16> items;
  uint32_t bits[EACH];
#pragma unroll
  for (int k = 0; k < EACH; k++)
    bits[k] = lade_f32_bits_quiet(x[k]) + draw_get(is_v, words[k], turn);
  items.word[0] = halves_high(bits[0], bits[1]);
  items.word[1] = halves_high(bits[2], bits[3]);
  items_store(to, place, items);
  return 0;
}

/*
 * Limit moments whose codes are the largest with any random bits to one such value, so that none exceeds its block's
 * scale. They are out of range (state_add_near), not numbers or nearly so.
 */
static __device__ inline void moments_limit(float (&m)[EACH], float (&v)[EACH])
{
  const uint32_t max = (uint32_t)LADE_SCALE_MAX << 23 | 15 << LADE_MANTISSA_SHIFT;
#pragma unroll
  for (int k = 0; k < EACH; k++) {
    const uint32_t m_bits = lade_f32_bits(m[k]) & 0x7fffffffu, v_bits = lade_f32_bits(v[k]) & 0x7fffffffu;
    const uint32_t sign = lade_f32_bits(m[k]) & 0x80000000u;
    m[k] = lade_f32_from_bits(less_of(m_bits, max) | sign);
    v[k] = lade_f32_from_bits(less_of(v_bits, max));
  }
}

/* Return the exponent of the warp's block, of its largest element as rounded. @rounded: this thread's. Whole warps. */
static __device__ inline uint32_t scale_make(const uint32_t (&rounded)[EACH], const thread_place &place)
{
  uint32_t largest = 0;
#pragma unroll
  for (int k = 0; k < EACH; k++)
    largest = more_of(largest, k < place.n ? rounded[k] : 0);
  return more_of(LADE_SCALE_MIN, lade_scale_of(__reduce_max_sync(0xffffffffu, largest), 0));
}

/*
 * Make moments.h's lade_m_code and lade_v_code, in a word's highest byte. In steps of a subnormal a magnitude, a random
 * part of one and 1 are added and truncated. With 127 more the result has its bits one byte lower, less that 1. Normal
 * codes are bits of the magnitude as rounded.
 */
static __device__ inline uint32_t code_make(bool is_v, float x, uint32_t rounded, uint32_t lowest, uint32_t draw)
{
  const float steps = lade_f32_from_bits((257 - lowest) << 23), normals = lade_f32_from_bits((lowest + 1) << 23);
  float parts = fmaf(fabsf(x), steps, lade_f32_from_bits(0x3f800000u + draw * 128));
  if (is_v && x != 0)
    parts = fmaxf(parts, 2); /* code 1 */
  const uint32_t subnormal = lade_f32_bits(ptx_add_cut(parts, 127)) << 8;
  const uint32_t normal = rounded * 32 - (lowest << 28);
  return fabsf(x) >= normals ? normal : subnormal;
}

static __device__ inline uint32_t moments_put(bool is_v, uint8_t *to, const thread_place &place, const float (&x)[EACH],
                                              const uint32_t (&words)[EACH], int turn)
{
  uint32_t rounded[EACH], draws[EACH], codes[EACH];
#pragma unroll
  for (int k = 0; k < EACH; k++) {
    draws[k] = draw_get(is_v, words[k], turn);
    rounded[k] = (is_v ? lade_f32_bits(x[k]) : lade_f32_bits(x[k]) & 0x7fffffffu) + draws[k] * 8;
  }
  const uint32_t scale = scale_make(rounded, place);
#pragma unroll
  for (int k = 0; k < EACH; k++) {
    codes[k] = code_make(is_v, x[k], rounded[k], lowest_get(is_v, scale), draws[k]);
    codes[k] |= is_v ? 0 : lade_f32_bits(x[k]) & 0x80000000u;
  }
  items_store(to, place, (struct items<uint8_t>){{bytes_gather(codes, 3)}});
  return scale << 8 * turn;
}

/* ---- the update ---- */

/* Values that are equal for all elements. */
struct rates {
  struct lade_step s;
  float factor, decay, rest1, rest2;
  bool are_usual;
};

/*
 * True if rates may be multiplied by any block's power of two, epsilon may be added to the divisor, and corrections
 * keep near values near.
 */
static __device__ inline bool rates_are_usual(const struct lade_step &s)
{
  return s.beta1 >= 0x1p-23f && s.beta1 <= 1 && s.beta2 >= 0x1p-23f && s.beta2 <= 1 && s.eps >= 0 && s.eps <= 1 &&
         s.correction1 >= 1 && s.correction1 <= 0x1p20f && s.correction2 >= 1 && s.correction2 <= 0x1p20f;
}

static __device__ inline struct rates rates_get(const struct lade_adamw_args &a, const struct lade_step *step,
                                                const struct lade_clip_result &clip_result)
{
  const struct lade_step s = *step;
  return (struct rates){s, clip_result.factor, a.has_decay ? s.weight_decay : 0.0f, 1.0f - s.beta1, 1.0f - s.beta2,
                        rates_are_usual(s)};
}

/* This thread's elements of a turn in their memory layout. F32 weights have no residual. */
template <class T, class R, class G, class X> struct state {
  struct items<G> grad;
  struct items<T> weight;
  struct items<R> residual;
  struct items<X> m, v;
};

template <class T, class R, class G, class X>
static __device__ inline void state_load(struct state<T, R, G, X> &s, const struct lade_adamw_args &a,
                                         const thread_place &place)
{
  items_load(s.grad, a.grad, place);
  items_load(s.weight, a.weight, place);
  if (sizeof(T) < sizeof(float))
    items_load(s.residual, a.residual, place);
  items_load(s.m, a.m, place);
  items_load(s.v, a.v, place);
}

/* Numbers of a turn in progress: the first three are replaced. */
struct numbers {
  float m[EACH], v[EACH], w[EACH], g[EACH];
};

/* Run the written sequence without its last two lines. @beta1 and @beta2: the factors of the old moments. */
static __device__ inline void moments_add(const struct rates &r, struct numbers &x, float beta1, float beta2)
{
#pragma unroll
  for (int k = 0; k < EACH; k++) {
    const float g = x.g[k] * r.factor;
    x.m[k] = fmaf(beta1, x.m[k], r.rest1 * g);
    x.v[k] = fmaf(beta2, x.v[k], r.rest2 * (g * g));
  }
}

static __device__ inline float weight_add(const struct rates &r, float w, float u)
{
  return fmaf(-r.s.lr, fmaf(r.decay, w, u), w);
}

/* Magnitudes of moments for which roots and quotients need no test: bits from LEAST on and below END. */
#define NEAR_MIN ((uint32_t)(127 - 100) << 23)
#define NEAR_END ((uint32_t)(127 + 28) << 23)

/*
 * Return sqrt(x) and n/d, correctly rounded, for moments in that range, bias-corrected (2^-100 to 2^48): one Newton
 * step, an exact remainder, and its correction, as nvcc emits them if its own range test passes. The root lies between
 * 2^-50 and 2^24. The quotient of n by it is normal and at most 1, and no remainder loses bits to underflow.
 */
static __device__ inline float root_near(float x)
{
  const float y = ptx_root_reciprocal(x), root = x * y;
  return fmaf(fmaf(-root, root, x), y * 0.5f, root);
}

static __device__ inline float quotient_near(float n, float d)
{
  const float y = ptx_reciprocal(d), reciprocal = fmaf(y, fmaf(-d, y, 1), y), quotient = n * reciprocal;
  return fmaf(reciprocal, fmaf(-d, quotient, n), quotient);
}

/* Run the sequence for usual numbers; true if some were not. */
template <class T, class R, class G, class X>
static __device__ inline bool state_add_near(const struct rates &r, const struct state<T, R, G, X> &s,
                                             struct numbers &x, uint32_t m_scale, uint32_t v_scale)
{
  uint32_t min = NEAR_MIN, max = NEAR_MIN;
  numbers_get(s.grad, x.g);
  codes_get(false, s.m, x.m);
  codes_get(true, s.v, x.v);
  masters_get(s.weight, s.residual, x.w);
  moments_add(r, x, code_rate(X(), false, r.s.beta1, m_scale), code_rate(X(), true, r.s.beta2, v_scale));
#pragma unroll
  for (int k = 0; k < EACH; k++) {
    const uint32_t m = lade_f32_bits(x.m[k]) & 0x7fffffffu, v = lade_f32_bits(x.v[k]);
    min = less_of(less_of(min, m), v);
    max = more_of(more_of(max, m), v);
    const float root = root_near(x.v[k] * r.s.correction2);
    x.w[k] = weight_add(r, x.w[k], quotient_near(x.m[k] * r.s.correction1, root + r.s.eps));
  }
  return min < NEAR_MIN || max >= NEAR_END || !r.are_usual || !scale_is_usual(X(), m_scale);
}

/* Run the sequence with the plain operators. */
template <class T, class R, class G, class X>
static __device__ inline void state_add_plain(const struct rates &r, const struct state<T, R, G, X> &s,
                                              struct numbers &x, uint32_t m_scale, uint32_t v_scale)
{
  numbers_get(s.grad, x.g);
  moments_get(false, s.m, m_scale, x.m);
  moments_get(true, s.v, v_scale, x.v);
  masters_get(s.weight, s.residual, x.w);
  moments_add(r, x, r.s.beta1, r.s.beta2);
#pragma unroll
  for (int k = 0; k < EACH; k++) {
    const float u = x.m[k] * r.s.correction1 / (sqrtf(x.v[k] * r.s.correction2) + r.s.eps);
    x.w[k] = weight_add(r, x.w[k], u);
  }
}

template <class T, class R, class G, class X>
static __device__ inline void state_update(const struct lade_adamw_args &a, const struct rates &r,
                                           struct state<T, R, G, X> &s, const struct scales &old, struct scales &made,
                                           const uint32_t (&words)[EACH], const thread_place &place, int turn)
{
  const uint32_t m_scale = scale_get(old.m, turn), v_scale = scale_get(old.v, turn);
  struct numbers x;
  if (state_add_near(r, s, x, m_scale, v_scale)) {
    state_add_plain(r, s, x, m_scale, v_scale);
    if (sizeof(X) == 1)
      moments_limit(x.m, x.v);
  }
  masters_put(s.weight, s.residual, x.w, words, turn);
  items_store(a.weight, place, s.weight);
  if (sizeof(T) < sizeof(float))
    items_store(a.residual, place, s.residual);
  made.m |= moments_put(false, (X *)a.m, place, x.m, words, turn);
  made.v |= moments_put(true, (X *)a.v, place, x.v, words, turn);
}

/* This thread's part of the tensors: from @i on, the first of its elements, in the warp's run from @run on. */
template <class T, class R, class G, class X>
static __device__ inline struct lade_adamw_args own_get(const struct lade_adamw_args &a, int64_t run, int64_t i)
{
  struct lade_adamw_args own = a;
  own.n_elements = a.n_elements > i ? a.n_elements - i : 0;
  own.grad = (const G *)a.grad + i;
  own.weight = (T *)a.weight + i;
  if (sizeof(T) < sizeof(float))
    own.residual = (R *)a.residual + i;
  own.m = (X *)a.m + i;
  own.v = (X *)a.v + i;
  if (sizeof(X) == 1) {
    own.m_scales = a.m_scales + run / LADE_MOMENT_BLOCK;
    own.v_scales = a.v_scales + run / LADE_MOMENT_BLOCK;
  }
  return own;
}

/* Return this thread's place. IS_WHOLE: every thread of the warp has EACH elements. */
template <bool IS_WHOLE> static __device__ inline struct thread_place place_get(const struct lade_adamw_args &own,
                                                                                int turn)
{
  const int i = turn * (32 * EACH);
  const int64_t left = own.n_elements - i;
  return (struct thread_place){i, IS_WHOLE || left > EACH ? EACH : left > 0 ? (int)left : 0};
}

/* Process this warp's run, with AHEAD turns of loads in flight. */
template <bool IS_WHOLE, int AHEAD, class T, class R, class G, class X>
static __device__ inline void run_update(const struct lade_adamw_args &a, const struct lade_step *step, uint32_t *room)
{
  constexpr bool HAS_WORDS = sizeof(X) < sizeof(float) || sizeof(R) == 1, HAS_SCALES = sizeof(X) == 1;
  const int64_t run = thread_get() / 32 * LADE_DRAW_RUN, i = run + threadIdx.x % 32 * EACH;
  const int64_t blocks = IS_WHOLE ? TURNS : (a.n_elements - run + LADE_MOMENT_BLOCK - 1) / LADE_MOMENT_BLOCK;
  const int n_blocks = blocks < TURNS ? (int)blocks : TURNS;
  uint32_t words[EACH] = {};
  struct scales old = {}, made = {};
  const struct lade_clip_result clip_result = *a.clip_result;
  if (clip_result.is_skipped)
    return;
  const struct lade_adamw_args own = own_get<T, R, G, X>(a, run, i);
  if (HAS_SCALES)
    old = (struct scales){scales_load(own.m_scales, n_blocks), scales_load(own.v_scales, n_blocks)};
#pragma unroll 1
  for (int first = 0; first < TURNS; first += AHEAD) {
    struct state<T, R, G, X> states[AHEAD];
#pragma unroll
    for (int turn = 0; turn < AHEAD; turn++)
      state_load(states[turn], own, place_get<IS_WHOLE>(own, first + turn));
    const struct rates r = rates_get(a, step, clip_result);
    if (HAS_WORDS && first == 0)
      words_get(a, r.s, room, run, words);
#pragma unroll
    for (int turn = 0; turn < AHEAD; turn++)
      state_update(own, r, states[turn], old, made, words, place_get<IS_WHOLE>(own, first + turn), first + turn);
  }
  if (HAS_SCALES && threadIdx.x % 32 == 0) {
    scales_store(own.m_scales, n_blocks, made.m);
    scales_store(own.v_scales, n_blocks, made.v);
  }
}

template <class T, class R, class G, class X>
static __device__ inline void form_update(const struct lade_adamw_args &a, const struct lade_step *step, uint32_t *room)
{
  constexpr int AHEAD = sizeof(X) == 1 ? TURNS : TURNS / 2; /* as many as registers hold */
  if (((int64_t)blockIdx.x + 1) * blockDim.x * (EACH * TURNS) <= a.n_elements)
    run_update<true, AHEAD, T, R, G, X>(a, step, room);
  else
    run_update<false, 1, T, R, G, X>(a, step, room);
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
LADE_KERNEL_OF_DTYPES_BLOCKS(adamw, lade_adamw_args, 2)
