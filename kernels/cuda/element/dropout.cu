/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Dropout with the mask drawn again at each use: the same Philox words as on every device, so the same bits.
 *
 * Moves 2 n elements. Bound: arithmetic for 16 bits on fast memory, ten rounds of Philox for four elements. If the
 * tensor's first element begins a draw, which is the usual case, no word is moved to its place. All draws of a thread
 * are then made at once, so that they share the keys of the rounds.
 */
#include "kernels/cuda/kernel.h"

/* Run one round of lade_philox_draw, with the round's keys, on a counter. */
static __device__ inline void philox_round(struct lade_philox *counter, uint32_t k0, uint32_t k1)
{
  uint32_t *const c = counter->word;
  const uint64_t p0 = (uint64_t)LADE_PHILOX_FACTOR_0 * c[0], p1 = (uint64_t)LADE_PHILOX_FACTOR_1 * c[2];
  const struct lade_philox next = {
      {(uint32_t)(p1 >> 32) ^ c[1] ^ k0, (uint32_t)p1, (uint32_t)(p0 >> 32) ^ c[3] ^ k1, (uint32_t)p0}};
  *counter = next;
}

/*
 * Make the draws of a pack of N elements in each of a thread's turns, the first with the draw @first. All draws go
 * through a round together: they share its keys, which the compiler would else compute anew for each draw.
 */
template <int N>
static __device__ inline void draws_make(struct lade_philox (&draws)[LADE_CUDA_TURNS][N / 4], uint64_t seed,
                                         uint32_t number, uint32_t stream, uint64_t first)
{
  uint32_t keys[4] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
#pragma unroll
  for (int at = 0; at < LADE_CUDA_TURNS * (N / 4); at++) {
    const uint64_t draw = first + (uint64_t)(at / (N / 4)) * blockDim.x * (N / 4) + at % (N / 4);
    draws[at / (N / 4)][at % (N / 4)] = {{(uint32_t)draw, (uint32_t)(draw >> 32), stream, number}};
  }
#pragma unroll
  for (int round = 0; round < LADE_PHILOX_ROUNDS; round++) {
#pragma unroll
    for (int at = 0; at < LADE_CUDA_TURNS * (N / 4); at++)
      philox_round(&draws[at / (N / 4)][at % (N / 4)], keys[0], keys[1]);
    keys[0] += LADE_PHILOX_KEY_0;
    keys[1] += LADE_PHILOX_KEY_1;
    ptx_words_forget(keys);
  }
}

/* Packs of whole draws. */
template <class T, int N>
static __device__ void dropout_draws(const struct lade_dropout_args &a, const struct lade_step *step, int64_t end)
{
  const uint64_t seed = step->seed;
  const uint32_t number = step->step;
#pragma unroll 1
  for (int64_t i = packs_first<N>(); i < end; i += packs_step<N>()) {
    pack<T, N> p[LADE_CUDA_TURNS];
    struct lade_philox draws[LADE_CUDA_TURNS][N / 4];
    packs_load(p, (const T *)a.x, i, end);
    draws_make<N>(draws, seed, number, a.drop.stream, (a.drop.first_element + (uint64_t)i) / 4);
#pragma unroll
    for (int turn = 0; turn < LADE_CUDA_TURNS; turn++) {
      float numbers[N];
#pragma unroll
      for (int j = 0; j < N; j++)
        numbers[j] = draws[turn][j / 4].word[j % 4] >= a.drop.drop_below ? get(p[turn].x[j]) * a.drop.scale : 0.0f;
      pack_put(p[turn], numbers);
    }
    packs_store((T *)a.y, p, i, end);
  }
}

template <class T, int N>
static __device__ void dropout_packs(const struct lade_dropout_args &a, const struct lade_step *step, int64_t first,
                                     int64_t end)
{
  const struct lade_step own = *step;
#pragma unroll 1
  for (int64_t i = first + packs_first<N>(); i < end; i += packs_step<N>()) {
    pack<T, N> p[LADE_CUDA_TURNS];
    packs_load(p, (const T *)a.x, i, end);
#pragma unroll
    for (int turn = 0; turn < LADE_CUDA_TURNS; turn++) {
      float numbers[N];
#pragma unroll
      for (int j = 0; j < N; j++)
        numbers[j] = get(p[turn].x[j]);
      drop_numbers(numbers, &own, a.drop, i + (int64_t)turn * blockDim.x * N);
      pack_put(p[turn], numbers);
    }
    packs_store((T *)a.y, p, i, end);
  }
}

template <class T>
static __device__ void dropout_of(const struct lade_dropout_args &a, const struct lade_step *step)
{
  int64_t whole = a.n_elements / LADE_PACK(T) * LADE_PACK(T);
  if (a.drop.drop_below && a.drop.first_element % 4 == 0)
    dropout_draws<T, LADE_PACK(T)>(a, step, whole);
  else
    dropout_packs<T, LADE_PACK(T)>(a, step, 0, whole);
  dropout_packs<T, 1>(a, step, whole, a.n_elements);
}
LADE_KERNEL_OF_DTYPES_BLOCKS(dropout, lade_dropout_args, 3)
