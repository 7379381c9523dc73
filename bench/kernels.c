/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The compute kernels, in GFLOP/s and as a share of the best product measured in the same run: the products of a
 * training step of `baby` in all three layouts, larger ones, attention, and the head. The library oneDNN runs
 * interleaved with our own if its plug-in opens (LADE_ONEDNN_PLUGIN names its file).
 *
 *   bench-kernels [THREADS [forms]]
 *
 * With `forms`, attention alone: windows, soft caps, sinks and short documents beside whole causal attention. Each has
 * the ratio of its time from interleaved rounds, and of its pairs of queries and keys.
 *
 * With one thread the clock is the thread's own, so that other work on the machine does not count.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/base.h"
#include "base/cpu.h"
#include "base/philox.h"
#include "kernels/host/element/element.h"
#include "kernels/host/host.h"

#define ROUNDS 7
#define ROUND_FLOPS 2e10

struct bench {
  struct lade_kernels own, peer;
  bool has_peer;
  struct lade_kernel_ctx ctx;
  int n_threads;
  double peak; /* flops per second of all threads */
};

static double now(const struct bench *bench)
{
  struct timespec at;
  clock_gettime(bench->n_threads == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &at);
  return (double)at.tv_sec + (double)at.tv_nsec * 1e-9;
}

static void *memory_make(size_t n_bytes)
{
  void *memory = aligned_alloc(64, lade_align_up(n_bytes + 1, 64));
  if (!memory)
    exit(1);
  memset(memory, 0, n_bytes);
  return memory;
}

/* Return @n random values in -1..1. */
static void *values_make(enum lade_dtype dtype, int64_t n)
{
  void *data = memory_make((size_t)n * lade_dtype_bytes(dtype));
  for (int64_t i = 0; i < n; i++)
    lade_element_store(dtype, data, i, (double)lade_philox_word(1, 0, 0, (uint64_t)i) / 0x1p31 - 1);
  return data;
}

static double call_seconds(const struct bench *bench, const struct lade_kernels *kernels, enum lade_kernel kernel,
                           const void *args, int n_calls)
{
  double start = now(bench);
  for (int i = 0; i < n_calls; i++)
    kernels->fn[kernel](&bench->ctx, args);
  return (now(bench) - start) / n_calls;
}

/* Time a call, best of interleaved rounds, and print one line. */
static void call_bench(const struct bench *bench, const char *name, enum lade_kernel kernel, const void *args,
                       double flops)
{
  int n_calls = LADE_MAX(1, (int)(ROUND_FLOPS / flops));
  bool has_peer = bench->has_peer && kernel == LADE_K_MATMUL;
  double own = 1e30, peer = 1e30;
  for (int round = 0; round < ROUNDS; round++) {
    own = LADE_MIN(own, call_seconds(bench, &bench->own, kernel, args, n_calls));
    if (has_peer)
      peer = LADE_MIN(peer, call_seconds(bench, &bench->peer, kernel, args, n_calls));
  }
  printf("%-40s %8.3f ms %7.0f GFLOP/s %5.1f %%", name, own * 1e3, flops / own * 1e-9, 100 * flops / own / bench->peak);
  if (has_peer)
    printf("   oneDNN %7.0f GFLOP/s, ours %.2f of it", flops / peer * 1e-9, peer / own);
  printf("\n");
}

static void *workspace_make(const struct bench *bench, enum lade_kernel kernel, const void *args)
{
  return memory_make(lade_kernel_workspace_bytes(&bench->own, kernel, args, bench->n_threads));
}

static void product_bench(const struct bench *bench, enum lade_dtype dtype, enum lade_matmul_layout layout, int64_t m,
                          int64_t n, int64_t k)
{
  struct lade_matmul_args args = {.layout = layout, .dtype = dtype, .out = layout == LADE_TN ? LADE_F32 : dtype, .m = m,
                                  .n = n, .k = k, .a = values_make(dtype, m * k), .b = values_make(dtype, n * k),
                                  .c = memory_make((size_t)(m * n) * sizeof(float))};
  args.workspace = workspace_make(bench, LADE_K_MATMUL, &args);
  char name[64];
  snprintf(name, sizeof(name), "matmul %s %s %ldx%ldx%ld", lade_dtype_name(dtype),
           ((const char *const[]){"NT", "NN", "TN"})[layout], (long)m, (long)n, (long)k);
  call_bench(bench, name, LADE_K_MATMUL, &args, 2.0 * (double)m * (double)n * (double)k);
  free((void *)args.a);
  free((void *)args.b);
  free(args.c);
  free(args.workspace);
}

/* Measure attention by the flops of the products alone, half of them masked away. */
static void attention_bench(const struct bench *bench, int64_t batch, int64_t seq_len, int64_t heads,
                            int64_t n_kv_heads,
                            int64_t head_dim)
{
  int64_t n_qkv = batch * seq_len * (heads + 2 * n_kv_heads) * head_dim, n_out = batch * seq_len * heads * head_dim;
  struct lade_attention_fwd_args fwd = {.dtype = LADE_BF16, .batch = batch, .seq_len = seq_len, .heads = heads,
                                        .n_kv_heads = n_kv_heads, .head_dim = head_dim,
                                        .qkv = values_make(LADE_BF16, n_qkv), .out = values_make(LADE_BF16, n_out),
                                        .lse = memory_make((size_t)(batch * seq_len * heads) * sizeof(float))};
  struct lade_attention_bwd_args bwd = {.dtype = LADE_BF16, .batch = batch, .seq_len = seq_len, .heads = heads,
                                        .n_kv_heads = n_kv_heads, .head_dim = head_dim, .qkv = fwd.qkv, .out = fwd.out,
                                        .lse = fwd.lse, .d_out = values_make(LADE_BF16, n_out),
                                        .d_qkv = memory_make((size_t)n_qkv * 2)};
  fwd.workspace = workspace_make(bench, LADE_K_ATTENTION_FWD, &fwd);
  bwd.workspace = workspace_make(bench, LADE_K_ATTENTION_BWD, &bwd);
  double flops = 2.0 * (double)(batch * heads * head_dim) * (double)seq_len * (double)seq_len;
  char name[64];
  snprintf(name, sizeof(name), "attention B%ld T%ld H%ld/%ld D%ld forward", (long)batch, (long)seq_len, (long)heads,
           (long)n_kv_heads, (long)head_dim);
  call_bench(bench, name, LADE_K_ATTENTION_FWD, &fwd, flops);
  snprintf(name, sizeof(name), "attention B%ld T%ld H%ld/%ld D%ld backward", (long)batch, (long)seq_len, (long)heads,
           (long)n_kv_heads, (long)head_dim);
  call_bench(bench, name, LADE_K_ATTENTION_BWD, &bwd, 2.5 * flops);
  void *const all[] = {(void *)fwd.qkv, fwd.out, fwd.lse, fwd.workspace, (void *)bwd.d_out, bwd.d_qkv, bwd.workspace};
  for (size_t i = 0; i < LADE_COUNT(all); i++)
    free(all[i]);
}

static void head_bench(const struct bench *bench, int64_t n, int64_t d, int64_t vocabulary)
{
  int32_t *targets = memory_make((size_t)n * sizeof(*targets));
  for (int64_t i = 0; i < n; i++)
    targets[i] = (int32_t)(lade_philox_word(2, 0, 0, (uint64_t)i) % (uint32_t)vocabulary);
  struct lade_head_loss_fwd_args fwd = {.dtype = LADE_BF16, .n = n, .d = d, .vocabulary = vocabulary,
                                        .targets = targets,
                                        .x = values_make(LADE_BF16, n * d),
                                        .weight = values_make(LADE_BF16, vocabulary * d),
                                        .losses = memory_make((size_t)n * 4), .lse = memory_make((size_t)n * 4),
                                        .loss = memory_make(4)};
  struct lade_head_loss_bwd_args bwd = {.dtype = LADE_BF16, .n = n, .d = d, .vocabulary = vocabulary, .scale = 1,
                                        .x = fwd.x, .weight = fwd.weight, .targets = targets, .lse = fwd.lse,
                                        .dx = memory_make((size_t)(n * d) * 2),
                                        .d_weight = memory_make((size_t)(vocabulary * d) * 4)};
  struct lade_head_stats_args stats = {.dtype = LADE_BF16, .n = n, .d = d, .vocabulary = vocabulary, .x = fwd.x,
                                       .weight = fwd.weight, .targets = targets,
                                       .stats = memory_make((size_t)(3 * n) * 4)};
  fwd.workspace = workspace_make(bench, LADE_K_HEAD_LOSS_FWD, &fwd);
  stats.workspace = fwd.workspace;
  bwd.workspace = workspace_make(bench, LADE_K_HEAD_LOSS_BWD, &bwd);
  double flops = 2.0 * (double)n * (double)d * (double)vocabulary;
  char name[64];
  snprintf(name, sizeof(name), "head N%ld d%ld V%ld forward", (long)n, (long)d, (long)vocabulary);
  call_bench(bench, name, LADE_K_HEAD_LOSS_FWD, &fwd, flops);
  snprintf(name, sizeof(name), "head N%ld d%ld V%ld backward", (long)n, (long)d, (long)vocabulary);
  call_bench(bench, name, LADE_K_HEAD_LOSS_BWD, &bwd, 3 * flops);
  snprintf(name, sizeof(name), "head N%ld d%ld V%ld statistics of a part", (long)n, (long)d, (long)vocabulary);
  call_bench(bench, name, LADE_K_HEAD_STATS, &stats, flops);
  void *const all[] = {targets,  (void *)fwd.x, (void *)fwd.weight, fwd.losses,   fwd.lse,       stats.stats,
                       fwd.loss, fwd.workspace, bwd.dx,             bwd.d_weight, bwd.workspace};
  for (size_t i = 0; i < LADE_COUNT(all); i++)
    free(all[i]);
}

/* Return the best rate of cubes of 512 to 2048: the denominator of a step's speed of light. */
static double peak_measure(const struct bench *bench)
{
  double best = 0;
  for (int64_t n = 512; n <= 2048; n *= 2) {
    struct lade_matmul_args args = {.layout = LADE_NT, .dtype = LADE_BF16, .out = LADE_BF16, .m = n, .n = n, .k = n,
                                    .a = values_make(LADE_BF16, n * n), .b = values_make(LADE_BF16, n * n),
                                    .c = memory_make((size_t)(n * n) * 2)};
    args.workspace = workspace_make(bench, LADE_K_MATMUL, &args);
    double flops = 2.0 * (double)n * (double)n * (double)n;
    for (int round = 0; round < ROUNDS; round++) {
      double seconds = call_seconds(bench, &bench->own, LADE_K_MATMUL, &args, (int)(ROUND_FLOPS / flops) + 1);
      best = LADE_MAX(best, flops / seconds);
    }
    free((void *)args.a);
    free((void *)args.b);
    free(args.c);
    free(args.workspace);
  }
  return best;
}

/* A form of scores that is timed, and its pairs per head. */
struct form_bench {
  const char *name;
  int64_t window, document;
  float softcap;
  bool has_sinks;
  double seconds[2]; /* forward, backward */
};

static double pairs_count(const struct form_bench *form, int64_t seq_len)
{
  double pairs = 0;
  for (int64_t i = 0; i < seq_len; i++) {
    int64_t first = form->window ? LADE_MAX(i + 1 - form->window, 0) : 0;
    pairs += (double)(i + 1 - LADE_MAX(first, form->document ? i / form->document * form->document : 0));
  }
  return pairs;
}

/* Time both directions of @form once; the least of all rounds stays. */
static void form_round(const struct bench *bench, struct form_bench *form, struct lade_attention_fwd_args fwd,
                       struct lade_attention_bwd_args bwd, const void *sinks, int32_t *first_keys)
{
  fwd.form = (struct lade_score_form){.window = form->window, .softcap = form->softcap,
                                      .sinks = form->has_sinks ? sinks : NULL,
                                      .first_keys = form->document ? first_keys : NULL};
  bwd.form = fwd.form;
  for (int64_t i = 0; form->document && i < fwd.seq_len; i++)
    first_keys[i] = (int32_t)(i / form->document * form->document);
  form->seconds[0] = LADE_MIN(form->seconds[0], call_seconds(bench, &bench->own, LADE_K_ATTENTION_FWD, &fwd, 1));
  form->seconds[1] = LADE_MIN(form->seconds[1], call_seconds(bench, &bench->own, LADE_K_ATTENTION_BWD, &bwd, 1));
}

static void forms_bench(const struct bench *bench)
{
  struct form_bench forms[] = {
      {"whole"}, {"window 2048", .window = 2048}, {"window 1024", .window = 1024}, {"window 512", .window = 512},
      {"window 256", .window = 256}, {"window 128", .window = 128}, {"documents of 512", .document = 512},
      {"soft cap", .softcap = 30}, {"sinks", .has_sinks = true}};
  const int64_t seq_len = 4096, heads = 2, head_dim = 64, n_qkv = seq_len * 3 * heads * head_dim, n_out = n_qkv / 3;
  void *sinks = values_make(LADE_BF16, heads);
  int32_t *first_keys = memory_make((size_t)seq_len * sizeof(*first_keys));
  struct lade_attention_fwd_args fwd = {.dtype = LADE_BF16, .batch = 1, .seq_len = seq_len, .heads = heads,
                                        .n_kv_heads = heads, .head_dim = head_dim, .form = {.sinks = sinks},
                                        .qkv = values_make(LADE_BF16, n_qkv), .out = values_make(LADE_BF16, n_out),
                                        .lse = memory_make((size_t)(seq_len * heads) * sizeof(float))};
  struct lade_attention_bwd_args bwd = {.dtype = LADE_BF16, .batch = 1, .seq_len = seq_len, .heads = heads,
                                        .n_kv_heads = heads, .head_dim = head_dim, .form = {.sinks = sinks},
                                        .qkv = fwd.qkv, .out = fwd.out, .lse = fwd.lse,
                                        .d_out = values_make(LADE_BF16, n_out), .d_qkv = memory_make((size_t)n_qkv * 2),
                                        .d_sinks = memory_make((size_t)heads * sizeof(float))};
  fwd.workspace = workspace_make(bench, LADE_K_ATTENTION_FWD, &fwd);
  bwd.workspace = workspace_make(bench, LADE_K_ATTENTION_BWD, &bwd);
  for (int round = 0; round < ROUNDS; round++)
    for (size_t i = 0; i < LADE_COUNT(forms); i++) {
      forms[i].seconds[0] = round ? forms[i].seconds[0] : 1e30;
      forms[i].seconds[1] = round ? forms[i].seconds[1] : 1e30;
      form_round(bench, &forms[i], fwd, bwd, sinks, first_keys);
    }
  printf("attention T%ld H%ld D%ld, of whole causal attention: pairs, forward, backward\n", (long)seq_len, (long)heads,
         (long)head_dim);
  for (size_t i = 0; i < LADE_COUNT(forms); i++)
    printf("%-20s %.3f %.3f %.3f\n", forms[i].name, pairs_count(&forms[i], seq_len) / pairs_count(&forms[0], seq_len),
           forms[i].seconds[0] / forms[0].seconds[0], forms[i].seconds[1] / forms[0].seconds[1]);
  void *const all[] = {sinks, first_keys, (void *)fwd.qkv, fwd.out, fwd.lse, fwd.workspace, (void *)bwd.d_out,
                       bwd.d_qkv, bwd.d_sinks, bwd.workspace};
  for (size_t i = 0; i < LADE_COUNT(all); i++)
    free(all[i]);
}

int main(int argc, char **argv)
{
  struct bench bench = {.n_threads = argc > 1 ? atoi(argv[1]) : lade_cpu_count()};
  struct lade_cpu cpu = lade_cpu_get();
  struct lade_step step = {.seed = 1, .loss_scale = 1};
  lade_pool *pool;
  if (lade_pool_create(bench.n_threads, &pool))
    return 1;
  lade_kernels_init(&bench.own, &cpu);
  bench.peer = bench.own;
  bench.has_peer = lade_matmul_init_onednn(&bench.peer);
  bench.ctx = (struct lade_kernel_ctx){pool, &step};
  if (argc > 2 && strcmp(argv[2], "forms") == 0) {
    forms_bench(&bench);
    lade_pool_destroy(pool);
    return 0;
  }
  bench.peak = peak_measure(&bench);
  char name[128];
  lade_cpu_name(name, sizeof(name));
  printf("%s, %d threads, %s; best of 512^3 to 2048^3: %.0f GFLOP/s\n", name, bench.n_threads,
         bench.own.variant[LADE_K_MATMUL], bench.peak * 1e-9);
  static const int64_t widths[][2] = {{1152, 384}, {384, 384}, {1536, 384}, {384, 1536}};
  for (size_t i = 0; i < LADE_COUNT(widths); i++) {
    product_bench(&bench, LADE_BF16, LADE_NT, 4096, widths[i][0], widths[i][1]);
    product_bench(&bench, LADE_BF16, LADE_NN, 4096, widths[i][1], widths[i][0]);
    product_bench(&bench, LADE_BF16, LADE_TN, widths[i][0], widths[i][1], 4096);
  }
  product_bench(&bench, LADE_BF16, LADE_NT, 1024, 4096, 4096);
  product_bench(&bench, LADE_BF16, LADE_NN, 1024, 4096, 4096);
  product_bench(&bench, LADE_BF16, LADE_TN, 4096, 4096, 1024);
  product_bench(&bench, LADE_F32, LADE_NT, 1024, 1024, 1024);
  attention_bench(&bench, 16, 256, 6, 6, 64);
  attention_bench(&bench, 1, 2048, 16, 4, 128);
  head_bench(&bench, 4096, 384, 256);
  head_bench(&bench, 1024, 768, 50257);
  lade_pool_destroy(pool);
  return 0;
}
