/* SPDX-License-Identifier: Apache-2.0 */
/*
 * AdamW: the written sequence of kernels/host/adamw.c, bit-equal to it; a thread has EACH neighbours, and loads what
 * they have before it waits for any of it. Of 8-bit moments a warp has exactly one block of LADE_MOMENT_BLOCK elements,
 * which shares an exponent: its lanes read it before one writes, and find the new one as a maximum of integers.
 *
 * Moves for each parameter the gradient once (4 or 2 bytes) and its state twice: 12 bytes with exact BF16 masters and
 * F32 moments (28 with an F32 gradient). Bound: memory; 8-bit moments' codes are some hundred operations for 16 bytes.
 * Compact forms draw the words of the block of threads' elements, one for four of them, once.
 */
#include "base/moments.h"
#include "kernels/cuda/kernel.h"

#define EACH LADE_CUDA_ADAMW_EACH

static_assert(LADE_MOMENT_BLOCK == 32 * EACH, "a warp has a block of moments");
static_assert(LADE_CUDA_THREADS * EACH % LADE_DRAW_RUN == 0, "a block of threads has whole runs of random words");

/* Where this thread's elements are, and how many there are; the number of the first in its parameter. */
struct place {
  int64_t i;
  int n;
  uint64_t element;
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

/* ---- master weights ---- */

static __device__ void masters_get(float, const struct lade_adamw_args &a, const struct place &place, float (&w)[EACH])
{
  items_load(w, a.weight, place);
}

static __device__ void masters_get(bf16, const struct lade_adamw_args &a, const struct place &place, float (&w)[EACH])
{
  uint16_t weight[EACH];
  int16_t residual[EACH] = {};
  int8_t short_residual[EACH] = {};
  const bool is_short = a.master == LADE_MASTER_24BIT;
  items_load(weight, a.weight, place);
  if (is_short)
    items_load(short_residual, a.residual, place);
  else
    items_load(residual, a.residual, place);
#pragma unroll
  for (int k = 0; k < EACH; k++)
    w[k] = is_short ? lade_master24_join(weight[k], short_residual[k]) : lade_master_join(weight[k], residual[k]);
}

static __device__ void masters_get(f16, const struct lade_adamw_args &a, const struct place &place, float (&w)[EACH])
{
  items_load(w, a.residual, place);
}

static __device__ void masters_put(float, const struct lade_adamw_args &a, const struct place &place,
                                   const float (&w)[EACH], const uint32_t (&words)[EACH])
{
  items_store(a.weight, place, w);
}

static __device__ void masters_put(bf16, const struct lade_adamw_args &a, const struct place &place,
                                   const float (&w)[EACH], const uint32_t (&words)[EACH])
{
  uint16_t weight[EACH];
  int16_t residual[EACH];
  int8_t short_residual[EACH];
  const bool is_short = a.master == LADE_MASTER_24BIT;
#pragma unroll
  for (int k = 0; k < EACH; k++)
    if (is_short)
      lade_master24_split(w[k], lade_draw_master(words[k]), &weight[k], &short_residual[k]);
    else
      lade_master_split(w[k], &weight[k], &residual[k]);
  items_store(a.weight, place, weight);
  if (is_short)
    items_store(a.residual, place, short_residual);
  else
    items_store(a.residual, place, residual);
}

static __device__ void masters_put(f16, const struct lade_adamw_args &a, const struct place &place,
                                   const float (&w)[EACH], const uint32_t (&words)[EACH])
{
  uint16_t weight[EACH];
#pragma unroll
  for (int k = 0; k < EACH; k++)
    weight[k] = lade_f32_to_f16(w[k]);
  items_store(a.residual, place, w);
  items_store(a.weight, place, weight);
}

/* ---- moments ---- */

static __device__ void moments_get(const struct lade_adamw_args &a, const struct place &place, bool is_v,
                                   float (&x)[EACH])
{
  const void *from = is_v ? a.v : a.m;
  if (a.moments == LADE_MOMENTS_F32) {
    items_load(x, from, place);
  } else if (a.moments == LADE_MOMENTS_BF16) {
    uint16_t bits[EACH];
    items_load(bits, from, place);
#pragma unroll
    for (int k = 0; k < EACH; k++)
      x[k] = lade_bf16_to_f32(bits[k]);
  } else {
    uint8_t codes[EACH];
    uint32_t scale = place.n > 0 ? (is_v ? a.v_scales : a.m_scales)[place.i / LADE_MOMENT_BLOCK] : 0;
    scale = lade_scale_clamp(scale);
    items_load(codes, from, place);
#pragma unroll
    for (int k = 0; k < EACH; k++)
      x[k] = is_v ? lade_v_value(codes[k], scale) : lade_m_value(codes[k], scale);
  }
}

/* The exponent of the warp's block: the largest of its elements'. Whole warps. */
static __device__ uint32_t scale_get(const struct place &place, const float (&x)[EACH],
                                     const uint32_t (&rounding)[EACH])
{
  uint32_t scale = 0;
#pragma unroll
  for (int k = 0; k < EACH; k++) {
    uint32_t own = k < place.n ? lade_scale_of(lade_f32_bits(x[k]) & 0x7fffffffu, rounding[k]) : 0;
    scale = own > scale ? own : scale;
  }
  for (int half = 16; half > 0; half /= 2) {
    uint32_t other = __shfl_xor_sync(0xffffffffu, scale, half);
    scale = other > scale ? other : scale;
  }
  return lade_scale_clamp(scale);
}

static __device__ void codes_put(const struct lade_adamw_args &a, const struct place &place, bool is_v,
                                 const float (&x)[EACH], const uint32_t (&words)[EACH])
{
  uint32_t rounding[EACH];
  uint8_t codes[EACH];
#pragma unroll
  for (int k = 0; k < EACH; k++)
    rounding[k] = lade_round_random(is_v ? lade_draw_v(words[k]) : lade_draw_m(words[k]));
  uint32_t scale = scale_get(place, x, rounding);
#pragma unroll
  for (int k = 0; k < EACH; k++)
    codes[k] = is_v ? lade_v_code(x[k], scale, rounding[k]) : lade_m_code(x[k], scale, rounding[k]);
  items_store(is_v ? a.v : a.m, place, codes);
  if (threadIdx.x % 32 == 0 && place.n > 0)
    (is_v ? a.v_scales : a.m_scales)[place.i / LADE_MOMENT_BLOCK] = (uint8_t)scale;
}

static __device__ void moments_put(const struct lade_adamw_args &a, const struct place &place, bool is_v,
                                   const float (&x)[EACH], const uint32_t (&words)[EACH])
{
  void *to = is_v ? a.v : a.m;
  uint16_t bits[EACH];
  if (a.moments == LADE_MOMENTS_F32) {
    items_store(to, place, x);
  } else if (a.moments == LADE_MOMENTS_BF16) {
#pragma unroll
    for (int k = 0; k < EACH; k++)
      bits[k] = lade_f32_to_bf16_random(x[k], is_v ? lade_draw_v(words[k]) : lade_draw_m(words[k]));
    items_store(to, place, bits);
  } else {
    codes_put(a, place, is_v, x, words);
  }
}

/* ---- the update ---- */

/* Random words of this thread's elements, 0 where no form wants any. @room: a word for each thread. Whole blocks. */
static __device__ void words_get(const struct lade_adamw_args &a, const struct lade_step &s, const struct place &place,
                                 uint32_t *room, uint32_t (&words)[EACH])
{
  const uint64_t first = (a.first_element + (uint64_t)blockIdx.x * blockDim.x * EACH) / LADE_DRAW_RUN;
  const bool has_words = a.moments != LADE_MOMENTS_F32 || a.master != LADE_MASTER_EXACT;
  if (has_words && threadIdx.x < blockDim.x / 4) {
    struct lade_philox draw =
        lade_philox_draw(s.seed, s.step, a.stream, first * (LADE_DRAW_WORDS / 4) + threadIdx.x);
#pragma unroll
    for (int k = 0; k < 4; k++)
      room[4 * threadIdx.x + k] = draw.word[k];
  }
  __syncthreads();
#pragma unroll
  for (int k = 0; k < EACH; k++) {
    const uint64_t element = place.element + k;
    const uint32_t at = (uint32_t)(element / LADE_DRAW_RUN - first) * LADE_DRAW_WORDS + lade_draw_place(element);
    words[k] = has_words ? lade_draw_turn(room[at], element) : 0;
  }
}

static __device__ void grads_get(const struct lade_adamw_args &a, const struct place &place, float (&grad)[EACH])
{
  bf16 bits[EACH];
  if (a.grad_dtype != LADE_BF16) {
    items_load(grad, a.grad, place);
    return;
  }
  items_load(bits, a.grad, place);
#pragma unroll
  for (int k = 0; k < EACH; k++)
    grad[k] = get(bits[k]);
}

template <class T> static __device__ void adamw_of(const struct lade_adamw_args &a, const struct lade_step *step)
{
  LADE_SHARED(uint32_t, room);
  const struct lade_step s = *step;
  const float decay = a.has_decay ? s.weight_decay : 0.0f;
  struct place place = {thread_get() * EACH, EACH, 0};
  float w[EACH], grad[EACH], m[EACH], v[EACH];
  uint32_t words[EACH];
  if (a.verdict->is_skipped)
    return;
  if (a.n_elements - place.i < EACH)
    place.n = a.n_elements > place.i ? (int)(a.n_elements - place.i) : 0;
  place.element = a.first_element + (uint64_t)place.i;
  grads_get(a, place, grad);
  masters_get(T(), a, place, w);
  moments_get(a, place, false, m);
  moments_get(a, place, true, v);
  words_get(a, s, place, room, words);
#pragma unroll
  for (int k = 0; k < EACH; k++) {
    float g = grad[k] * a.verdict->factor;
    m[k] = fmaf(s.beta1, m[k], (1.0f - s.beta1) * g);
    v[k] = fmaf(s.beta2, v[k], (1.0f - s.beta2) * (g * g));
    float u = m[k] * s.correction1 / (sqrtf(v[k] * s.correction2) + s.eps);
    w[k] = fmaf(-s.lr, fmaf(decay, w[k], u), w[k]);
  }
  masters_put(T(), a, place, w, words);
  moments_put(a, place, false, m, words);
  moments_put(a, place, true, v, words);
}
LADE_KERNEL_OF_DTYPES(adamw, lade_adamw_args)
