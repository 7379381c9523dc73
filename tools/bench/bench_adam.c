/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `lade bench adam`: parameters per second of the optimizer, exact and compact, compared with the usual cast sequence
 * and with the speed of memory.
 *
 * The job: BF16 gradient in, BF16 weight out. The cast sequence is three passes, each by the best kernel that this CPU
 * has: gradient to FP32, AdamW on an FP32 master, master to BF16. The memory loop loads and stores in place as many
 * bytes as the exact update reads and writes: the weight, the residual, both moments, and half of the gradient, which
 * the update only reads. All run on one pool in turns, and the median round of each counts. The arrays are several
 * times any cache, in huge pages if available.
 */
#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/base.h"
#include "base/cpu.h"
#include "kernels/kernels.h"
#include "tools/cli/options.h"
#include "tools/cli/verbs.h"
#include "tools/report/report.h"

#define N_PARAMETERS ((int64_t)32 << 20) /* their arrays are several times any cache */
#define N_ROUNDS 9                       /* odd, so that the median is a round */
#define PAGE_BYTES ((size_t)2 << 20)     /* a huge page */

enum adam_candidate { EXACT, BF16_MOMENTS, EIGHT_BIT, EIGHT_BIT_24, CASTS, IN_PLACE, N_CANDIDATES };

struct adam_bench {
  struct lade_kernels kernels;
  struct lade_kernel_ctx ctx;
  struct lade_step step;
  struct lade_clip_result clip_result;
  uint16_t *grad, *weight;
  char *residual, *m, *v;
  uint8_t *scales;
  float *grad32, *master;
  int64_t ns[N_CANDIDATES][N_ROUNDS];
};

/* Allocate an array, zeroed and touched. */
static void *array_make(size_t n_bytes)
{
  n_bytes = lade_align_up(n_bytes, PAGE_BYTES);
  void *array = aligned_alloc(PAGE_BYTES, n_bytes);
  if (!array)
    return NULL;
  madvise(array, n_bytes, MADV_HUGEPAGE); /* a hint, which may fail */
  memset(array, 0, n_bytes);
  return array;
}

static void adam_bench_finish(struct adam_bench *s)
{
  free(s->grad);
  free(s->weight);
  free(s->residual);
  free(s->m);
  free(s->v);
  free(s->scales);
  free(s->grad32);
  free(s->master);
  lade_pool_destroy(s->ctx.pool);
}

static int adam_bench_init(struct adam_bench *s)
{
  const size_t n = (size_t)N_PARAMETERS;
  struct lade_cpu cpu = lade_cpu_get();
  lade_kernels_init(&s->kernels, &cpu);
  s->step = (struct lade_step){.seed = 1, .lr = 1e-4f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f,
                               .weight_decay = 0.1f, .correction1 = 10, .correction2 = 20, .loss_scale = 1};
  s->clip_result = (struct lade_clip_result){.norm = 1, .factor = 1};
  int status = lade_pool_create(0, &s->ctx.pool);
  if (status)
    return status;
  s->ctx.step = &s->step;
  s->grad = array_make(2 * n);
  s->weight = array_make(2 * n);
  s->residual = array_make(2 * n);
  s->m = array_make(4 * n);
  s->v = array_make(4 * n);
  s->scales = array_make(2 * n / LADE_MOMENT_BLOCK);
  s->grad32 = array_make(4 * n);
  s->master = array_make(4 * n);
  if (!s->grad || !s->weight || !s->residual || !s->m || !s->v || !s->scales || !s->grad32 || !s->master)
    return -ENOMEM;
  for (size_t i = 0; i < n; i++) /* of both signs, around 0.01 */
    s->grad[i] = (uint16_t)(0x3c00 + ((uint32_t)i * 2654435761u >> 17 & 0x83ff));
  return 0;
}

static void kernel_call(const struct adam_bench *s, enum lade_kernel kernel, const void *args)
{
  s->kernels.fn[kernel](&s->ctx, args);
}

static void update_run(const struct adam_bench *s, enum lade_moments moments, enum lade_master master)
{
  kernel_call(s, LADE_K_ADAMW, &(struct lade_adamw_args){
      .dtype = LADE_BF16, .grad_dtype = LADE_BF16, .moments = moments, .master = master, .n_elements = N_PARAMETERS,
      .has_decay = true, .clip_result = &s->clip_result, .grad = s->grad, .weight = s->weight, .residual = s->residual,
      .m = s->m, .v = s->v, .m_scales = s->scales,
      .v_scales = s->scales + N_PARAMETERS / LADE_MOMENT_BLOCK});
}

static void casts_run(const struct adam_bench *s)
{
  kernel_call(s, LADE_K_CAST, &(struct lade_cast_args){LADE_BF16, LADE_F32, N_PARAMETERS, s->grad, s->grad32});
  kernel_call(s, LADE_K_ADAMW, &(struct lade_adamw_args){
      .dtype = LADE_F32, .grad_dtype = LADE_F32, .n_elements = N_PARAMETERS, .has_decay = true,
      .clip_result = &s->clip_result, .grad = s->grad32, .weight = s->master, .m = s->m, .v = s->v});
  kernel_call(s, LADE_K_CAST, &(struct lade_cast_args){LADE_F32, LADE_BF16, N_PARAMETERS, s->master, s->weight});
}

/* Load and store in place: dropout with probability 0. */
static void in_place_run(const struct adam_bench *s)
{
  void *const arrays[] = {s->weight, s->residual, s->m, s->v, s->grad};
  static const int64_t bytes_each[] = {2, 2, 4, 4, 1};
  for (size_t i = 0; i < LADE_COUNT(arrays); i++)
    kernel_call(s, LADE_K_DROPOUT, &(struct lade_dropout_args){
        .dtype = LADE_F32, .n_elements = N_PARAMETERS * bytes_each[i] / 4, .x = arrays[i], .y = arrays[i]});
}

static void candidate_run(const struct adam_bench *s, enum adam_candidate candidate)
{
  switch (candidate) {
  case EXACT: update_run(s, LADE_MOMENTS_F32, LADE_MASTER_EXACT); break;
  case BF16_MOMENTS: update_run(s, LADE_MOMENTS_BF16, LADE_MASTER_EXACT); break;
  case EIGHT_BIT: update_run(s, LADE_MOMENTS_8BIT, LADE_MASTER_EXACT); break;
  case EIGHT_BIT_24: update_run(s, LADE_MOMENTS_8BIT, LADE_MASTER_24BIT); break;
  case CASTS: casts_run(s); break;
  default: in_place_run(s); break;
  }
}

/*
 * Clear the state before every round. One form's moments are noise to another, and an infinity in them would make the
 * next form's arithmetic slow.
 */
static void state_clear(struct adam_bench *s)
{
  const size_t n = (size_t)N_PARAMETERS;
  memset(s->m, 0, 4 * n);
  memset(s->v, 0, 4 * n);
  memset(s->scales, 0, 2 * n / LADE_MOMENT_BLOCK);
}

static int ns_compare(const void *a, const void *b)
{
  int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
  return (x > y) - (x < y);
}

/* Measure the median round of each candidate, in seconds. */
static void rounds_run(struct adam_bench *s, double ret_seconds[N_CANDIDATES])
{
  for (int round = -1; round < N_ROUNDS; round++) { /* the first is warm-up */
    for (int candidate = 0; candidate < N_CANDIDATES; candidate++) {
      state_clear(s);
      int64_t start_ns = lade_now_ns();
      candidate_run(s, (enum adam_candidate)candidate);
      if (round >= 0)
        s->ns[candidate][round] = lade_now_ns() - start_ns;
    }
  }
  for (int candidate = 0; candidate < N_CANDIDATES; candidate++) {
    qsort(s->ns[candidate], N_ROUNDS, sizeof(s->ns[candidate][0]), ns_compare);
    ret_seconds[candidate] = (double)s->ns[candidate][N_ROUNDS / 2] * 1e-9;
  }
}

static int result_print(const double seconds[N_CANDIDATES], bool is_json)
{
  if (is_json)
    return json_print(json_pack("{s:i, s:I, s:f, s:f, s:f, s:f}", "schema_version", REPORT_SCHEMA_VERSION,
                                "parameters", (json_int_t)N_PARAMETERS,
                                "exact_vs_cast_sequence", seconds[CASTS] / seconds[EXACT],
                                "bf16_moments_vs_cast_sequence", seconds[CASTS] / seconds[BF16_MOMENTS],
                                "eight_bit_vs_cast_sequence", seconds[CASTS] / seconds[EIGHT_BIT],
                                "exact_fraction_of_rmw", seconds[IN_PLACE] / seconds[EXACT]));
  static const char *const names[N_CANDIDATES] = {
      "exact", "BF16 moments", "8-bit moments", "8-bit moments, 24-bit master", "cast, FP32 AdamW, cast",
      "exact's bytes in place"};
  printf("updates of %lld million parameters, BF16 gradient to BF16 weight\n", (long long)(N_PARAMETERS >> 20));
  for (int i = 0; i < N_CANDIDATES; i++)
    printf("  %-29s %6.1f million/s  %5.2f of the cast sequence\n", names[i],
           (double)N_PARAMETERS / seconds[i] * 1e-6, seconds[CASTS] / seconds[i]);
  return 0;
}

static int bench_run(double ret_seconds[N_CANDIDATES])
{
  struct adam_bench bench = {0};
  int status = adam_bench_init(&bench);
  if (!status)
    rounds_run(&bench, ret_seconds);
  adam_bench_finish(&bench);
  return status;
}

int bench_adam_main(int argc, char **argv)
{
  struct options options;
  double seconds[N_CANDIDATES];
  int code = options_read(VERB_BENCH, argc, argv, &options);
  if (code == OPTIONS_GO) {
    int status = bench_run(seconds);
    if (!status)
      status = result_print(seconds, options.is_json);
    code = status ? exit_fail("bench adam", status, NULL) : LADE_EXIT_DONE;
  }
  options_finish(&options);
  return code;
}
