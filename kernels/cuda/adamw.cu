/* SPDX-License-Identifier: Apache-2.0 */
/*
 * AdamW: the written sequence of kernels/host/adamw.c, bit-equal to it; a thread has an element. Of 8-bit moments a
 * block of LADE_MOMENT_BLOCK elements shares an exponent: the block of threads has exactly one, reads it before
 * anyone writes, and finds the new one as a maximum of integers.
 *
 * Moves for each parameter the gradient once (4 or 2 bytes) and its state twice: 12 bytes with exact BF16 masters and
 * F32 moments (28 with an F32 gradient). Bound: memory; compact forms draw Philox words anew for each element, some
 * hundred integer operations, which bound 8-bit moments on GPUs with fast memory.
 */
#include "base/moments.h"
#include "kernels/cuda/kernel.h"

/* What one element's update carries from its arithmetic to its storing. */
struct update {
  float m, v;
  uint32_t word; /* random bits of compact forms */
};

template <class T> static __device__ float master_get(const struct lade_adamw_args &a, int64_t i);

template <> __device__ float master_get<float>(const struct lade_adamw_args &a, int64_t i)
{
  return ((const float *)a.weight)[i];
}

template <> __device__ float master_get<bf16>(const struct lade_adamw_args &a, int64_t i)
{
  uint16_t weight = ((const uint16_t *)a.weight)[i];
  return a.master == LADE_MASTER_24BIT ? lade_master24_join(weight, ((const int8_t *)a.residual)[i])
                                       : lade_master_join(weight, ((const int16_t *)a.residual)[i]);
}

template <> __device__ float master_get<f16>(const struct lade_adamw_args &a, int64_t i)
{
  return ((const float *)a.residual)[i];
}

static __device__ void master_put(float, const struct lade_adamw_args &a, int64_t i, float master, uint32_t word)
{
  ((float *)a.weight)[i] = master;
}

static __device__ void master_put(bf16, const struct lade_adamw_args &a, int64_t i, float master, uint32_t word)
{
  uint16_t *weight = (uint16_t *)a.weight + i;
  if (a.master == LADE_MASTER_24BIT)
    lade_master24_split(master, lade_draw_master(word), weight, (int8_t *)a.residual + i);
  else
    lade_master_split(master, weight, (int16_t *)a.residual + i);
}

static __device__ void master_put(f16, const struct lade_adamw_args &a, int64_t i, float master, uint32_t word)
{
  ((float *)a.residual)[i] = master;
  ((uint16_t *)a.weight)[i] = lade_f32_to_f16(master);
}

static __device__ float moment_get(const struct lade_adamw_args &a, const void *moment, int64_t i, bool is_v)
{
  if (a.moments == LADE_MOMENTS_F32)
    return ((const float *)moment)[i];
  if (a.moments == LADE_MOMENTS_BF16)
    return lade_bf16_to_f32(((const uint16_t *)moment)[i]);
  uint32_t scale = lade_scale_clamp((is_v ? a.v_scales : a.m_scales)[i / LADE_MOMENT_BLOCK]);
  uint8_t code = ((const uint8_t *)moment)[i];
  return is_v ? lade_v_value(code, scale) : lade_m_value(code, scale);
}

template <class T>
static __device__ struct update element_update(const struct lade_adamw_args &a, const struct lade_step &s, int64_t i)
{
  float grad = a.grad_dtype == LADE_BF16 ? get(((const bf16 *)a.grad)[i]) : ((const float *)a.grad)[i];
  float g = grad * a.verdict->factor, w = master_get<T>(a, i), decay = a.has_decay ? s.weight_decay : 0.0f;
  float m = fmaf(s.beta1, moment_get(a, a.m, i, false), (1.0f - s.beta1) * g);
  float v = fmaf(s.beta2, moment_get(a, a.v, i, true), (1.0f - s.beta2) * (g * g));
  float u = m * s.correction1 / (sqrtf(v * s.correction2) + s.eps);
  u = fmaf(decay, w, u);
  w = fmaf(-s.lr, u, w);
  bool has_words = a.moments != LADE_MOMENTS_F32 || a.master != LADE_MASTER_EXACT;
  uint32_t word = has_words ? lade_draw_word(s.seed, s.step, a.stream, a.first_element + (uint64_t)i) : 0;
  master_put(T(), a, i, w, word);
  struct update update = {m, v, word};
  return update;
}

/* The largest of the block's @value, known to all its threads. @room: a word for each warp. */
static __device__ uint32_t block_max_bits(uint32_t value, uint32_t *room)
{
  for (int half = 16; half > 0; half /= 2) {
    uint32_t other = __shfl_xor_sync(0xffffffffu, value, half);
    value = value > other ? value : other;
  }
  __syncthreads();
  if (threadIdx.x % 32 == 0)
    room[threadIdx.x / 32] = value;
  __syncthreads();
  for (unsigned i = 0; i < blockDim.x / 32; i++)
    value = value > room[i] ? value : room[i];
  return value;
}

/* All threads of the block; those past the end have no element but take part in the maxima. */
static __device__ void codes_put(const struct lade_adamw_args &a, int64_t i, struct update update, uint32_t *room)
{
  uint32_t m = lade_f32_bits(update.m) & 0x7fffffffu, v = lade_f32_bits(update.v) & 0x7fffffffu;
  uint32_t m_rounding = lade_round_random(lade_draw_m(update.word));
  uint32_t v_rounding = lade_round_random(lade_draw_v(update.word)), m_scale = 0, v_scale = 0;
  bool is_inside = i < a.n_elements;
  m_scale = lade_scale_clamp(block_max_bits(is_inside ? lade_scale_of(m, m_rounding) : 0, room));
  v_scale = lade_scale_clamp(block_max_bits(is_inside ? lade_scale_of(v, v_rounding) : 0, room));
  if (!is_inside)
    return;
  ((uint8_t *)a.m)[i] = lade_m_code(update.m, m_scale, m_rounding);
  ((uint8_t *)a.v)[i] = lade_v_code(update.v, v_scale, v_rounding);
  if (threadIdx.x == 0) {
    a.m_scales[i / LADE_MOMENT_BLOCK] = (uint8_t)m_scale;
    a.v_scales[i / LADE_MOMENT_BLOCK] = (uint8_t)v_scale;
  }
}

static __device__ void moments_put(const struct lade_adamw_args &a, int64_t i, struct update update)
{
  if (a.moments == LADE_MOMENTS_BF16) {
    ((uint16_t *)a.m)[i] = lade_f32_to_bf16_random(update.m, lade_draw_m(update.word));
    ((uint16_t *)a.v)[i] = lade_f32_to_bf16_random(update.v, lade_draw_v(update.word));
  } else {
    ((float *)a.m)[i] = update.m;
    ((float *)a.v)[i] = update.v;
  }
}

template <class T> static __device__ void adamw_of(const struct lade_adamw_args &a, const struct lade_step *step)
{
  LADE_SHARED(uint32_t, room);
  int64_t i = thread_get();
  struct update update = {0, 0, 0};
  if (a.verdict->is_skipped)
    return;
  if (i < a.n_elements)
    update = element_update<T>(a, *step, i);
  if (a.moments == LADE_MOMENTS_8BIT)
    codes_put(a, i, update, room);
  else if (i < a.n_elements)
    moments_put(a, i, update);
}
LADE_KERNEL_OF_DTYPES(adamw, lade_adamw_args)
