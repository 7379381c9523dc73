/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Choose the attention of a GPU: the fastest that it has and that agrees with the plain kernels.
 *
 * Code for tensor cores states by hand where operands lie, and an error there gives wrong numbers, not a failure. So,
 * when kernels are opened, each candidate runs a small fixed problem. The problem has whole and partial tiles, one more
 * tile than places, the diagonal, and heads that share keys. It runs in both dtypes and for all head sizes that the
 * variant supports. mma.sync also runs a window with a soft cap. Where it stands in for wgmma it runs these and the
 * sizes that wgmma lacks. The result is compared with the plain kernels' own, within the bound that tests demand of
 * every level. A candidate that is further off, or whose launch the driver refuses, is replaced by the next: wgmma,
 * mma.sync, plain. Forward and backward are chosen separately. If the launch of a plain kernel is refused no candidate
 * is at fault, and kernels are not opened.
 *
 * Tensors are in a chunk of the device's memory that is released at once, two megabytes. An error that sticks to the
 * context is the device's status, and no kernel is left to fall back to. A kernel that LADE_ATTENTION names is used
 * without this check.
 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/float.h"
#include "kernels/cuda/launch_internal.h"

#define SEQ_LEN 136       /* with tiles of 64 rows the third, a partial one, is in the place of the first */
#define WINDOW 21         /* begins inside of tiles */
#define SOFTCAP 3
#define SEQ_LEN_MORE 72   /* the same for heads of other sizes than 64 and 128, whose tiles have 32 rows at most */
#define SEQ_LEN_WGMMA 392 /* with tiles of 128 rows the fourth, where there are three places */
#define SEQ_LEN_MAX SEQ_LEN_WGMMA
#define HEADS 2
#define N_KV_HEADS 1
#define MAX_DIM 128
#define QKV (SEQ_LEN_MAX * (HEADS + 2 * N_KV_HEADS) * MAX_DIM)
#define OUT (SEQ_LEN_MAX * HEADS * MAX_DIM)

/* Tensors that the GPU reads and writes, on host and device; the plain kernels' results come first. */
struct probe_buffers {
  struct lade_step step;
  _Alignas(256) uint16_t qkv[QKV];
  _Alignas(256) uint16_t d_out[OUT];
  _Alignas(256) uint16_t out[2][OUT];
  _Alignas(256) uint16_t d_qkv[2][QKV];
  float lse[2][SEQ_LEN_MAX * HEADS];
  _Alignas(256) float scratch[SEQ_LEN_MAX * HEADS * (1 + 2 * MAX_DIM)]; /* delta, and parts of dk and dv */
};

struct probe {
  const lade_cuda_kernels *kernels;
  lade_device *device;
  lade_queue *compute, *copies;
  lade_chunk *chunk;
  uint64_t address, chunk_bytes;
  struct probe_buffers *host, *room; /* room is @address */
  enum lade_cuda_attention attention; /* the candidate under test */
  enum lade_dtype dtype;
  int64_t head_dim, seq_len;
  struct lade_score_form form;
  struct lade_error refusal; /* of a plain kernel: there is no reference, and no fallback */
};

/* ---- running ---- */

struct probe_call {
  const struct probe *probe;
  lade_kernel_fn *fn;
  const void *args;
  int result;
};

/* Launch a kernel. A refused launch is the candidate's fault, and must not become the device's status. */
static int call_enqueue(void *stream, void *args)
{
  struct probe_call *call = args;
  call->result = lade_cuda_kernels_call(call->probe->kernels, stream, call->fn, call->args, &call->probe->room->step);
  return 0;
}

/* Return 0, or the device's status; *ret_refused: the CUresult of a refused launch, or 0. */
static int call_run(const struct probe *probe, lade_kernel_fn *fn, const void *args, int *ret_refused)
{
  struct probe_call call = {.probe = probe, .fn = fn, .args = args};
  uint64_t count = 0;
  lade_cuda_queue_enqueue(probe->compute, call_enqueue, &call, NULL, &count);
  *ret_refused = call.result;
  return lade_queue_sync(probe->compute, count);
}

static int room_move(const struct probe *probe, void *dst, const void *src)
{
  uint64_t count = 0;
  lade_queue_copy(probe->copies, &(struct lade_copy){.dst = dst, .src = src, .bytes = sizeof(struct probe_buffers)},
                  &count);
  return lade_queue_sync(probe->copies, count);
}

/* Run @kernel by one attention; its results are number @i. */
static int attention_run(const struct probe *probe, enum lade_kernel kernel, enum lade_cuda_attention attention, int i,
                         int *ret_refused)
{
  struct probe_buffers *room = probe->room;
  const struct lade_attention_fwd_args fwd = {.dtype = probe->dtype, .batch = 1, .seq_len = probe->seq_len,
                                              .heads = HEADS,
                                              .n_kv_heads = N_KV_HEADS, .head_dim = probe->head_dim,
                                              .drop = {.scale = 1}, .form = probe->form, .qkv = room->qkv,
                                              .out = room->out[i], .lse = room->lse[i]};
  const struct lade_attention_bwd_args bwd = {.dtype = probe->dtype, .batch = 1, .seq_len = probe->seq_len,
                                              .heads = HEADS,
                                              .n_kv_heads = N_KV_HEADS, .head_dim = probe->head_dim,
                                              .drop = {.scale = 1}, .form = probe->form, .qkv = room->qkv,
                                              .out = room->out[0],
                                              .lse = room->lse[0], .d_out = room->d_out, .d_qkv = room->d_qkv[i],
                                              .workspace = room->scratch};
  bool is_fwd = kernel == LADE_K_ATTENTION_FWD;
  return call_run(probe, lade_cuda_attention_fn(kernel, attention), is_fwd ? (const void *)&fwd : &bwd, ret_refused);
}

/* ---- comparing ---- */

static float value_get(enum lade_dtype dtype, const void *at, int64_t i)
{
  if (dtype == LADE_F32)
    return ((const float *)at)[i];
  uint16_t bits = ((const uint16_t *)at)[i];
  return dtype == LADE_BF16 ? lade_bf16_to_f32(bits) : lade_f16_to_f32(bits);
}

/* Return the distance of @x from @y over the norm of @y. */
static double distance_get(enum lade_dtype dtype, const void *x, const void *y, int64_t n)
{
  double norm = 0, distance = 0;
  for (int64_t i = 0; i < n; i++) {
    double want = value_get(dtype, y, i), off = value_get(dtype, x, i) - want;
    norm += want * want;
    distance += off * off;
  }
  return sqrt(distance / norm);
}

static double result_compare(const struct probe *probe, enum lade_kernel kernel)
{
  const struct probe_buffers *room = probe->host;
  const int64_t n_out = probe->seq_len * HEADS * probe->head_dim, n_qkv = n_out / HEADS * (HEADS + 2 * N_KV_HEADS);
  if (kernel == LADE_K_ATTENTION_BWD)
    return distance_get(probe->dtype, room->d_qkv[1], room->d_qkv[0], n_qkv);
  double out = distance_get(probe->dtype, room->out[1], room->out[0], n_out);
  double lse = distance_get(LADE_F32, room->lse[1], room->lse[0], probe->seq_len * HEADS);
  return out > lse || isnan(out) ? out : lse;
}

/* Fill inputs with random numbers in -2..2, of Knuth's MMIX; results with NaN. */
static void room_fill(const struct probe *probe)
{
  struct probe_buffers *room = probe->host;
  uint64_t random = 1;
  memset(room, 0xff, sizeof(*room));
  for (int i = 0; i < QKV + OUT; i++) {
    random = random * 6364136223846793005u + 1442695040888963407u;
    float value = (float)(int64_t)random * 0x1p-62f;
    uint16_t bits = probe->dtype == LADE_BF16 ? lade_f32_to_bf16(value) : lade_f32_to_f16(value);
    *(i < QKV ? &room->qkv[i] : &room->d_out[i - QKV]) = bits;
  }
}

/* Compute the plain kernels' results of a problem. 0, -EFAULT with the refusal, or the device's status. */
static int plain_run(struct probe *probe, enum lade_kernel kernel)
{
  int refused = 0;
  int status = attention_run(probe, LADE_K_ATTENTION_FWD, LADE_CUDA_BY_PLAIN, 0, &refused);
  if (!status && !refused && kernel == LADE_K_ATTENTION_BWD)
    status = attention_run(probe, kernel, LADE_CUDA_BY_PLAIN, 0, &refused);
  if (status || !refused)
    return status;
  return lade_error_set(&probe->refusal, -EFAULT, "attention by %s, heads of %d in %s: the driver answers %d",
                        lade_cuda_attention_name(LADE_CUDA_BY_PLAIN), (int)probe->head_dim,
                        lade_dtype_name(probe->dtype), refused);
}

/*
 * Compare a candidate with the plain kernels on one problem. Returns 0, with the reason for a difference in @why or an
 * empty text; or the device's status.
 */
static int problem_check(struct probe *probe, enum lade_kernel kernel, enum lade_cuda_attention attention,
                         struct lade_error *why)
{
  const char *direction = kernel == LADE_K_ATTENTION_FWD ? "forward" : "backward";
  double max = 4 * (probe->dtype == LADE_BF16 ? 0x1p-8 : 0x1p-11) + 0x1p-20;
  int refused = 0;
  room_fill(probe);
  int status = room_move(probe, probe->room, probe->host);
  if (!status)
    status = plain_run(probe, kernel);
  if (!status)
    status = attention_run(probe, kernel, attention, 1, &refused);
  if (!status)
    status = room_move(probe, probe->host, probe->room);
  if (status)
    return status;
  double distance = refused ? 0 : result_compare(probe, kernel);
  const char *form = probe->form.window ? " with a window" : "";
  if (refused)
    lade_error_set(why, -EIO, "%s for heads of %d in %s%s: the driver answers %d", direction, (int)probe->head_dim,
                   lade_dtype_name(probe->dtype), form, refused);
  else if (!(distance <= max))
    lade_error_set(why, -EIO, "%s for heads of %d in %s%s is %.2g off, of at most %.2g", direction,
                   (int)probe->head_dim, lade_dtype_name(probe->dtype), form, distance, max);
  return 0;
}

/* The problems of a candidate: heads of a size, over whole causal scores or with a window and a soft cap. */
static const struct {
  int64_t head_dim;
  bool has_form;
} problems[] = {{128, false}, {64, false}, {80, false}, {96, false}, {256, false}, {128, true}, {64, true}};

/* True if wgmma leaves this problem to mma.sync. */
static bool is_left(int i, enum lade_dtype dtype)
{
  return problems[i].has_form || !lade_cuda_attention_has(LADE_CUDA_BY_WGMMA, dtype, problems[i].head_dim);
}

/*
 * Check @attention on its problems. If it is mma.sync beside the chosen wgmma, check only the problems that wgmma
 * leaves to it.
 */
static int candidate_check(struct probe *probe, enum lade_kernel kernel, enum lade_cuda_attention attention,
                           enum lade_cuda_attention chosen, struct lade_error *why)
{
  static const enum lade_dtype dtypes[] = {LADE_BF16, LADE_F16};
  const bool is_wgmma = attention >= LADE_CUDA_BY_WGMMA;
  int status = 0;
  probe->attention = attention;
  for (int i = 0; i < 2 * (int)LADE_COUNT(problems) && !status && !why->code; i++) {
    probe->dtype = dtypes[i % 2];
    probe->head_dim = problems[i / 2].head_dim;
    probe->form = (struct lade_score_form){0};
    if (problems[i / 2].has_form)
      probe->form = (struct lade_score_form){.window = WINDOW, .softcap = SOFTCAP};
    probe->seq_len = is_wgmma ? SEQ_LEN_WGMMA : i < 4 ? SEQ_LEN : SEQ_LEN_MORE;
    if (is_wgmma ? is_left(i / 2, probe->dtype) : chosen >= LADE_CUDA_BY_WGMMA && !is_left(i / 2, probe->dtype))
      continue;
    LADE_ASSERT(probe->seq_len * probe->head_dim <= SEQ_LEN_MAX * MAX_DIM);
    status = problem_check(probe, kernel, attention, why);
  }
  return status;
}

/* ---- choosing ---- */

/* Append a wrong candidate to the line. @next takes its place. */
static void note_add(struct lade_error *note, enum lade_cuda_attention attention, enum lade_cuda_attention next,
                     const char *why)
{
  struct lade_error before = *note;
  lade_error_set(note, -EIO, "%s%sattention by %s is wrong on this GPU (%s): %s attends instead; please report it",
                 before.text, *before.text ? "; " : "", lade_cuda_attention_name(attention), why,
                 lade_cuda_attention_name(next));
}

/*
 * Choose the first from @best down that agrees with the plain kernels, which need no check; a line in @note for others.
 * If mma.sync is wrong where it stands in for wgmma, the plain kernels compute all shapes: a table has one variant.
 */
static int kernel_choose(struct probe *probe, enum lade_kernel kernel, enum lade_cuda_attention best,
                         struct lade_kernels *table, struct lade_error *note)
{
  enum lade_cuda_attention attention = best;
  struct lade_error why = {0};
  int status = 0;
  while (attention != LADE_CUDA_BY_PLAIN && !status) {
    why = (struct lade_error){0};
    status = candidate_check(probe, kernel, attention, attention, &why);
    if (!why.code)
      break;
    note_add(note, attention, attention - 1, why.text);
    attention--;
  }
  if (!status && attention >= LADE_CUDA_BY_WGMMA)
    status = candidate_check(probe, kernel, LADE_CUDA_BY_MMA, attention, &why);
  if (why.code && attention >= LADE_CUDA_BY_WGMMA) {
    note_add(note, LADE_CUDA_BY_MMA, LADE_CUDA_BY_PLAIN, why.text);
    attention = LADE_CUDA_BY_PLAIN;
  }
  lade_cuda_attention_choose(table, kernel, attention);
  return status;
}

/* Open the probe. On failure probe_close closes the open parts. */
static int probe_open(struct probe *probe)
{
  struct lade_device_info info;
  lade_device_get_info(probe->device, &info);
  probe->chunk_bytes = lade_align_up(sizeof(*probe->room), info.chunk_bytes);
  probe->host = aligned_alloc(_Alignof(struct probe_buffers), sizeof(*probe->host));
  int status = probe->host ? lade_device_reserve(probe->device, probe->chunk_bytes, &probe->address) : -ENOMEM;
  if (!status)
    status = lade_device_chunk_create(probe->device, probe->chunk_bytes, &probe->chunk);
  if (!status)
    status = lade_device_map(probe->device, probe->address, probe->chunk);
  probe->room = status ? NULL : (struct probe_buffers *)(uintptr_t)probe->address;
  if (!status)
    status = lade_queue_create(probe->device, LADE_QUEUE_COMPUTE, &probe->compute);
  if (!status)
    status = lade_queue_create(probe->device, LADE_QUEUE_TO_DEVICE, &probe->copies);
  return status;
}

static void probe_close(struct probe *probe)
{
  lade_queue_destroy(probe->copies);
  lade_queue_destroy(probe->compute);
  if (probe->room)
    lade_device_unmap(probe->device, probe->address, probe->chunk_bytes);
  lade_device_chunk_release(probe->device, probe->chunk);
  if (probe->address)
    lade_device_release(probe->device, probe->address, probe->chunk_bytes);
  free(probe->host);
}

/* Report that the device has failed for good: its message, and how to run without the tried candidate. */
static void failure_tell(const struct probe *probe, struct lade_error *error)
{
  struct lade_error why = {0};
  lade_cuda_get_error(probe->device, &why);
  if (probe->attention == LADE_CUDA_BY_PLAIN)
    *error = why;
  else
    lade_error_set(error, why.code, "%.300s, while attention by %s was tried; LADE_ATTENTION=%s does without it",
                   why.text, lade_cuda_attention_name(probe->attention),
                   lade_cuda_attention_name(probe->attention - 1));
}

/* Get the attention that the environment names, if any. */
static bool wish_get(enum lade_cuda_attention *ret_attention)
{
  const char *wish = getenv("LADE_ATTENTION");
  for (int i = 0; wish && i < LADE_CUDA_N_ATTENTIONS; i++)
    if (strcmp(wish, lade_cuda_attention_name((enum lade_cuda_attention)i)) == 0) {
      *ret_attention = (enum lade_cuda_attention)i;
      return true;
    }
  return false;
}

int lade_cuda_attention_open(const lade_cuda_kernels *kernels, lade_device *device, struct lade_kernels *table,
                             struct lade_error *note, struct lade_error *error)
{
  const int capability = lade_cuda_get_capability(device);
  const enum lade_cuda_attention best = capability == 90 ? LADE_CUDA_BY_WGMMA : LADE_CUDA_BY_MMA;
  enum lade_cuda_attention wish;
  struct probe probe = {.kernels = kernels, .device = device};
  if (wish_get(&wish)) {
    if (wish > best)
      return lade_error_set(error, -ENODEV, "LADE_ATTENTION is '%s', which is for GPUs of compute capability 9.0, and "
                            "this one is of %d.%d", lade_cuda_attention_name(wish), capability / 10, capability % 10);
    lade_cuda_attention_choose(table, LADE_K_ATTENTION_FWD, wish);
    lade_cuda_attention_choose(table, LADE_K_ATTENTION_BWD, wish);
    return 0;
  }
  int status = probe_open(&probe);
  if (status)
    lade_error_set(error, status, "attention on the GPU cannot be tried: %s", strerror(-status));
  else
    status = kernel_choose(&probe, LADE_K_ATTENTION_FWD, best, table, note);
  if (!status)
    status = kernel_choose(&probe, LADE_K_ATTENTION_BWD, best, table, note);
  probe_close(&probe);
  if (probe.refusal.code)
    *error = probe.refusal;
  if (lade_device_status(device))
    failure_tell(&probe, error);
  return status;
}
