/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kernels on a GPU next to their bounds, as tables in Markdown.
 *
 *   bench-gpu [--small] [--choices FILE [PRODUCT...]]
 *
 *   --small: sizes for the fake driver, whose times have no meaning
 *   --choices: measure products alone, such as NT:16384x4800x1600, and append to FILE the algorithm of each that is
 *              faster than the heuristic's first; LADE_MATMUL_CHOICES=FILE makes runs use them (matmul_choices.c)
 *
 * Memory: the bytes that a kernel must move over the time between the events around it. The table has this rate as a
 * share of that of a device-to-device copy in the same run. Products: operations per second of the algorithm that a run
 * uses, as a share of the best of all that cuBLASLt's heuristic offers. Attention: by each kernel that the GPU has, as
 * a share of the best product. Times are medians. Tensors are larger than any cache, and products multiply random
 * numbers, because a GPU's clock depends on how many bits change.
 *
 * Each table, and each kernel of attention, is made by a process of its own with SECTION_S to do it in. So a fault,
 * which destroys the context, or an endless kernel affects no other table. Rows are printed as they are made.
 */
#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/base.h"
#include "base/float.h"
#include "device/cuda.h"
#include "kernels/cuda.h"
#include "kernels/cuda/launch_internal.h"
#include "kernels/cuda/matmul/matmul_cublaslt.h"

#define N_RUNS 7
#define N_WARM 2
#define N_PLACES 8
#define WORKSPACE 7 /* the place of scratch */
#define MAX_CHOICES 8
#define CLEARLY_FASTER 0.98
#define SECTION_S 30
#define MISSING 77 /* exit code without a GPU */

/* Inputs of kernels besides tensors. */
struct words {
  struct lade_step step;
  struct lade_clip_result clip_result;
};

struct bench {
  bool is_small;
  const char *choices_path; /* the file that best algorithms are appended to, or NULL */
  char **products;          /* "NT:16384x4800x1600", ...; empty: those of two models */
  lade_device *device;
  lade_chunk *chunk;
  uint64_t arena, arena_bytes, place_bytes;
  lade_queue *compute, *copies;
  lade_cuda_kernels *kernels;
  struct lade_kernels table;
  struct words *words; /* on the device, after the places */
  double copy_bytes_per_s;
  double *best_flops_per_s; /* shared by all sections */
};

static void *place(const struct bench *bench, int i)
{
  return (void *)(uintptr_t)(bench->arena + (uint64_t)i * bench->place_bytes);
}

/*
 * Fill places [@first, @end) with random BF16 numbers in -1..1, whose bits outside @mask are cleared; they are valid as
 * FP32 numbers, too.
 */
static void places_fill(struct bench *bench, int first, int end, uint16_t mask)
{
  const size_t n = bench->place_bytes / sizeof(uint16_t);
  uint16_t *values = malloc(bench->place_bytes);
  uint64_t state = 1, count = 0;
  int status = values ? 0 : -ENOMEM;
  for (size_t i = 0; values && i < n; i++) { /* Knuth's MMIX */
    state = state * 6364136223846793005u + 1442695040888963407u;
    values[i] = lade_f32_to_bf16((float)(int64_t)state * 0x1p-63f) & mask;
  }
  for (int i = first; !status && i < end; i++)
    lade_queue_copy(bench->copies,
                    &(struct lade_copy){.dst = place(bench, i), .src = values, .bytes = bench->place_bytes}, &count);
  if (!status)
    status = lade_queue_sync(bench->copies, count);
  free(values);
  if (status) {
    fprintf(stderr, "bench-gpu: places for numbers: %s\n", strerror(-status));
    exit(1);
  }
}

/* ---- time ---- */

static int time_compare(const void *x, const void *y)
{
  double a = *(const double *)x, b = *(const double *)y;
  return (a > b) - (a < b);
}

/* Put one piece of work on its queue; return its event's count. */
typedef uint64_t submit_fn(struct bench *bench, const void *work, struct lade_span *ret_span);

/* Return the median; if the device fails, print its error and end the process. */
static double seconds_take(struct bench *bench, lade_queue *queue, submit_fn *submit, const void *work)
{
  double seconds[N_RUNS];
  for (int i = -N_WARM; i < N_RUNS; i++) {
    struct lade_span span = {0};
    struct lade_error error = {0};
    if (lade_queue_sync(queue, submit(bench, work, &span))) {
      lade_cuda_get_error(bench->device, &error);
      fprintf(stderr, "bench-gpu: %s\n", error.text);
      exit(1);
    }
    if (i >= 0)
      seconds[i] = (double)LADE_MAX(span.end_ns - span.start_ns, 1) * 1e-9;
  }
  qsort(seconds, N_RUNS, sizeof(*seconds), time_compare);
  return seconds[N_RUNS / 2];
}

static uint64_t copy_submit(struct bench *bench, const void *work, struct lade_span *ret_span)
{
  const struct lade_copy copy = {.dst = place(bench, 1), .src = place(bench, 0), .bytes = bench->place_bytes,
                                 .ret_span = ret_span};
  uint64_t count = 0;
  lade_queue_copy(bench->copies, &copy, &count);
  return count;
}

struct call {
  enum lade_kernel kernel;
  const void *args;
};

static uint64_t call_submit(struct bench *bench, const void *work, struct lade_span *ret_span)
{
  const struct call *call = work;
  uint64_t count = 0;
  const struct lade_cuda_work launched = {call->kernel, call->args, &bench->words->step};
  lade_cuda_kernels_submit(bench->kernels, bench->compute, &launched, ret_span, &count);
  return count;
}

static double kernel_seconds(struct bench *bench, enum lade_kernel kernel, const void *args)
{
  if (lade_kernel_workspace_bytes(&bench->table, kernel, args, 1) > bench->place_bytes) {
    fprintf(stderr, "bench-gpu: %s wants more scratch than a place has\n", lade_kernel_name(kernel));
    exit(1);
  }
  return seconds_take(bench, bench->compute, call_submit, &(struct call){kernel, args});
}

/* ---- memory ---- */

/* Measure one form of a kernel; @form: the text after the kernel's name. */
static void form_row(struct bench *bench, enum lade_kernel kernel, const char *form, const void *args, double bytes)
{
  double seconds = kernel_seconds(bench, kernel, args);
  printf("| %s%s | %.1f | %.1f | %.0f | %.0f %% |\n", lade_kernel_name(kernel), form, bytes / 1e6, seconds * 1e6,
         bytes / seconds / 1e9, 100 * bytes / seconds / bench->copy_bytes_per_s);
}

static void memory_row(struct bench *bench, enum lade_kernel kernel, const void *args, double bytes)
{
  form_row(bench, kernel, "", args, bytes);
}

static void elements_bench(struct bench *b, int64_t n)
{
  const double elements = (double)n;
  memory_row(b, LADE_K_ADD, &(struct lade_add_args){.n_elements = n / 2, .x = place(b, 0), .y = place(b, 1)},
             6 * elements);
  memory_row(b, LADE_K_CAST,
             &(struct lade_cast_args){.from = LADE_F32, .to = LADE_BF16, .n_elements = n / 2, .x = place(b, 0),
                                      .y = place(b, 1)},
             3 * elements);
  memory_row(b, LADE_K_GELU_FWD,
             &(struct lade_gelu_fwd_args){.dtype = LADE_BF16, .n_elements = n, .x = place(b, 0), .y = place(b, 1)},
             4 * elements);
  memory_row(b, LADE_K_GELU_BWD,
             &(struct lade_gelu_bwd_args){.dtype = LADE_BF16, .n_elements = n, .x = place(b, 0), .dy = place(b, 1),
                                          .dx = place(b, 2)},
             6 * elements);
  memory_row(b, LADE_K_DROPOUT,
             &(struct lade_dropout_args){.dtype = LADE_BF16, .n_elements = n, .drop = {1u << 29, 1, 8.0f / 7, 0},
                                         .x = place(b, 0), .y = place(b, 1)},
             4 * elements);
  memory_row(b, LADE_K_SUM_SQUARES,
             &(struct lade_sum_squares_args){.dtype = LADE_F32, .n_elements = n / 2, .grad = place(b, 0),
                                             .partial = place(b, 1)},
             2 * elements);
}

/*
 * Measure AdamW. Moments begin as zeros, as a run's do. With random bits half of the second moments would be negative,
 * or no numbers.
 */
static void adamw_bench(struct bench *b, int64_t n)
{
  const double elements = (double)n;
  struct lade_adamw_args args = {.dtype = LADE_BF16, .n_elements = n, .has_decay = true,
                                 .clip_result = &b->words->clip_result,
                                 .grad = place(b, 0), .weight = place(b, 1), .residual = place(b, 2), .m = place(b, 3),
                                 .v = place(b, 4)};
  places_fill(b, 3, 5, 0);
  form_row(b, LADE_K_ADAMW, "", &args, 28 * elements);
  args.moments = LADE_MOMENTS_BF16;
  places_fill(b, 3, 5, 0);
  form_row(b, LADE_K_ADAMW, ", BF16 moments", &args, 20 * elements);
  args.moments = LADE_MOMENTS_8BIT;
  args.m_scales = place(b, 5);
  args.v_scales = args.m_scales + n / LADE_MOMENT_BLOCK;
  places_fill(b, 3, 6, 0);
  form_row(b, LADE_K_ADAMW, ", 8-bit moments", &args, (16 + 4.0 / LADE_MOMENT_BLOCK) * elements);
  args.master = LADE_MASTER_24BIT;
  places_fill(b, 3, 6, 0);
  form_row(b, LADE_K_ADAMW, ", 8-bit moments, 24-bit master", &args, (14 + 4.0 / LADE_MOMENT_BLOCK) * elements);
  places_fill(b, 0, N_PLACES, 0xffff);
}

/* Measure the backward kernels that make a bias's gradient too, on rows of @d. */
static void bias_bench(struct bench *b, int64_t n, int64_t d)
{
  const int64_t rows = n / d;
  const double elements = (double)(rows * d);
  float *statistics = place(b, 6);
  char form[64];
  snprintf(form, sizeof(form), ", with a bias, rows of %lld", (long long)d);
  form_row(b, LADE_K_GELU_BWD, form,
           &(struct lade_gelu_bwd_args){.dtype = LADE_BF16, .n_elements = rows * d, .f = d, .x = place(b, 0),
                                        .dy = place(b, 1), .dx = place(b, 2), .d_bias = place(b, 3),
                                        .workspace = place(b, WORKSPACE)},
           6 * elements);
  struct lade_residual_bwd_args residual = {
      .dtype = LADE_BF16, .kind = LADE_NORM_LAYER, .n = rows, .d = d, .drop = {.scale = 1}, .d_sum = place(b, 0),
      .dy = place(b, 1), .sum = place(b, 2), .weight = place(b, 4), .mean = statistics, .rstd = statistics + rows,
      .d_residual = place(b, 3), .d_x_bias = statistics + 2 * rows, .d_weight = place(b, 5),
      .d_norm_bias = statistics + 2 * rows + d, .workspace = place(b, WORKSPACE)};
  form_row(b, LADE_K_RESIDUAL_BWD, form, &residual, 8 * elements);
  residual.d_sum_bias = statistics + 2 * rows + 2 * d;
  snprintf(form, sizeof(form), ", with two biases, rows of %lld", (long long)d);
  form_row(b, LADE_K_RESIDUAL_BWD, form, &residual, 8 * elements);
  snprintf(form, sizeof(form), ", rows of %lld", (long long)d);
  form_row(b, LADE_K_COLUMN_SUM, form,
           &(struct lade_column_sum_args){.dtype = LADE_BF16, .m = rows, .n = d, .x = place(b, 0), .sum = place(b, 1),
                                          .workspace = place(b, WORKSPACE)},
           2 * elements);
  form_row(b, LADE_K_NORM_FWD, form,
           &(struct lade_norm_fwd_args){.dtype = LADE_BF16, .kind = LADE_NORM_LAYER, .n = rows, .d = d, .eps = 1e-5f,
                                        .x = place(b, 0), .weight = place(b, 4), .bias = place(b, 5),
                                        .y = place(b, 1), .mean = statistics, .rstd = statistics + rows},
           4 * elements);
}

/* Measure kernels on rows of @d, as many as make @n elements. */
static void rows_bench(struct bench *b, int64_t n, int64_t d)
{
  const double elements = (double)n;
  const int64_t rows = n / d, dim = b->is_small ? 16 : 128; /* of a head */
  float *statistics = place(b, 6);
  memory_row(b, LADE_K_NORM_FWD,
             &(struct lade_norm_fwd_args){.dtype = LADE_BF16, .kind = LADE_NORM_LAYER, .n = rows, .d = d, .eps = 1e-5f,
                                          .x = place(b, 0), .weight = place(b, 4), .bias = place(b, 5),
                                          .y = place(b, 1), .mean = statistics, .rstd = statistics + rows},
             4 * elements);
  memory_row(b, LADE_K_NORM_BWD,
             &(struct lade_norm_bwd_args){.dtype = LADE_BF16, .kind = LADE_NORM_LAYER, .n = rows, .d = d,
                                          .dy = place(b, 1), .x = place(b, 0), .weight = place(b, 4),
                                          .mean = statistics, .rstd = statistics + rows, .dx = place(b, 2),
                                          .d_weight = statistics + 2 * rows, .d_bias = place(b, 3),
                                          .workspace = place(b, WORKSPACE)},
             6 * elements);
  memory_row(b, LADE_K_RESIDUAL_FWD,
             &(struct lade_residual_fwd_args){.dtype = LADE_BF16, .kind = LADE_NORM_RMS, .n = rows, .d = d,
                                              .eps = 1e-5f, .drop = {.scale = 1}, .x = place(b, 0),
                                              .residual = place(b, 1), .sum = place(b, 2), .weight = place(b, 4),
                                              .y = place(b, 3), .rstd = statistics},
             8 * elements);
  memory_row(b, LADE_K_RESIDUAL_BWD,
             &(struct lade_residual_bwd_args){.dtype = LADE_BF16, .kind = LADE_NORM_RMS, .n = rows, .d = d,
                                              .drop = {.scale = 1}, .d_sum = place(b, 0), .dy = place(b, 1),
                                              .sum = place(b, 2), .weight = place(b, 4), .rstd = statistics,
                                              .d_residual = place(b, 3), .d_weight = place(b, 5),
                                              .workspace = place(b, WORKSPACE)},
             8 * elements);
  memory_row(b, LADE_K_ROPE,
             &(struct lade_rope_args){.dtype = LADE_BF16, .batch = 1, .seq_len = rows, .heads = d / dim - 2,
                                      .n_kv_heads = 1, .head_dim = dim, .base = 10000, .x = place(b, 0),
                                      .y = place(b, 0), .workspace = place(b, WORKSPACE)},
             4 * elements);
  for (int by_head = 0; by_head < 2; by_head++)
    form_row(b, LADE_K_QK_NORM_FWD, by_head ? ", by head" : ", over all heads",
             &(struct lade_qk_norm_fwd_args){.dtype = LADE_BF16, .n = rows, .heads = d / dim - 2, .n_kv_heads = 1,
                                             .head_dim = dim, .is_by_head = by_head, .eps = 1e-5f, .x = place(b, 0),
                                             .q_weight = place(b, 4), .k_weight = place(b, 5), .y = place(b, 1),
                                             .rstd = statistics},
             4 * elements);
  form_row(b, LADE_K_QK_NORM_BWD, ", by head",
           &(struct lade_qk_norm_bwd_args){.dtype = LADE_BF16, .n = rows, .heads = d / dim - 2, .n_kv_heads = 1,
                                           .head_dim = dim, .is_by_head = true, .dy = place(b, 1), .x = place(b, 0),
                                           .q_weight = place(b, 4), .k_weight = place(b, 5), .rstd = statistics,
                                           .dx = place(b, 2), .d_q_weight = place(b, 3),
                                           .d_k_weight = (float *)place(b, 3) + dim, .workspace = place(b, WORKSPACE)},
           10 * elements); /* x and dy twice: weights first */
  memory_row(b, LADE_K_SWIGLU_FWD,
             &(struct lade_swiglu_fwd_args){.dtype = LADE_BF16, .n = rows, .f = d / 2, .x = place(b, 0),
                                            .y = place(b, 1)},
             3 * elements);
  memory_row(b, LADE_K_SWIGLU_BWD,
             &(struct lade_swiglu_bwd_args){.dtype = LADE_BF16, .n = rows, .f = d / 2, .x = place(b, 0),
                                            .dy = place(b, 1), .dx = place(b, 2)},
             5 * elements);
  memory_row(b, LADE_K_COLUMN_SUM,
             &(struct lade_column_sum_args){.dtype = LADE_BF16, .m = rows, .n = d, .x = place(b, 0),
                                            .sum = place(b, 1), .workspace = place(b, WORKSPACE)},
             2 * elements);
}

static void memory_bench(struct bench *bench)
{
  const int64_t n = (int64_t)(bench->place_bytes / 2); /* of BF16 */
  double seconds = seconds_take(bench, bench->copies, copy_submit, NULL);
  bench->copy_bytes_per_s = 2 * (double)bench->place_bytes / seconds;
  printf("| copy | %.1f | %.1f | %.0f | 100 %% |\n", 2 * (double)bench->place_bytes / 1e6, seconds * 1e6,
         bench->copy_bytes_per_s / 1e9);
  elements_bench(bench, n);
  adamw_bench(bench, n / 2);
  rows_bench(bench, n, bench->is_small ? 64 : 4096);
  bias_bench(bench, n, bench->is_small ? 16 : 1600); /* gpt2-1.5b */
  bias_bench(bench, n, bench->is_small ? 64 : 6400);
}

/* ---- gradients of the token table ---- */

/* Copy the tokens of @n rows to place 1: a number of them in turn, so each has equally many rows. */
static void tokens_put(struct bench *bench, int64_t n, int64_t n_tokens)
{
  int32_t *tokens = malloc((size_t)n * sizeof(*tokens));
  uint64_t count = 0;
  for (int64_t i = 0; tokens && i < n; i++)
    tokens[i] = (int32_t)(i % n_tokens);
  if (tokens)
    lade_queue_copy(bench->copies, &(struct lade_copy){.dst = place(bench, 1), .src = tokens,
                                                       .bytes = (size_t)n * sizeof(*tokens)}, &count);
  const int status = tokens ? lade_queue_sync(bench->copies, count) : -ENOMEM;
  free(tokens);
  if (status) {
    fprintf(stderr, "bench-gpu: tokens: %s\n", strerror(-status));
    exit(1);
  }
}

/* Measure the gradients of a token table where rows have tokens of their own, and where they share few or one. */
static void embed_bench(struct bench *bench)
{
  const int64_t n = bench->is_small ? 256 : 16384, d = bench->is_small ? 16 : 4096;
  const int64_t tokens[] = {n, n / 64, 16, 1};
  const struct lade_embed_bwd_args args = {.dtype = LADE_BF16, .batch = 1, .seq_len = n, .d = d, .vocabulary = n,
                                           .accumulate_token = true, .dx = place(bench, 0), .tokens = place(bench, 1),
                                           .d_token_table = place(bench, 2), .workspace = place(bench, WORKSPACE)};
  for (size_t i = 0; i < LADE_COUNT(tokens); i++) {
    tokens_put(bench, n, tokens[i]);
    const double seconds = kernel_seconds(bench, LADE_K_EMBED_BWD, &args);
    const double bytes = 2 * (double)(n * d) + 8 * (double)(tokens[i] * d);
    printf("| %lld tokens in %lld rows | %.1f | %.1f | %.0f |\n", (long long)tokens[i], (long long)n, bytes / 1e6,
           seconds * 1e6, bytes / seconds / 1e9);
  }
}

/* ---- products ---- */

/* Append the choice of number @i to the file of choices. */
static void choice_write(const struct bench *bench, const struct lade_matmul_args *args, int i)
{
  FILE *file = fopen(bench->choices_path, "a");
  int status = file ? lade_cublaslt_choice_write(bench->table.cublaslt, args, i, file) : -errno;
  if (file && fclose(file) && !status)
    status = -errno;
  if (!status)
    return;
  fprintf(stderr, "bench-gpu: %s: %s\n", bench->choices_path, strerror(-status));
  exit(1);
}

/* Return the time of a product; with GELU or its slope of the op that it is. */
static double product_seconds(struct bench *bench, const struct lade_matmul_args *args)
{
  const struct lade_matmul_gelu_bwd_args with_slope = {.product = *args};
  if (args->gelu_y)
    return kernel_seconds(bench, LADE_K_MATMUL_GELU_FWD, args);
  return args->gelu_x ? kernel_seconds(bench, LADE_K_MATMUL_GELU_BWD, &with_slope)
                      : kernel_seconds(bench, LADE_K_MATMUL, args);
}

/*
 * Return the time of the best algorithm that the heuristic offers; restores the run's own choice. With a file of
 * choices the best is written there, if it is faster than the first by more than times vary.
 */
static double best_seconds(struct bench *bench, const struct lade_matmul_args *args, double own_seconds)
{
  double best = own_seconds, first = own_seconds;
  int best_number = 0;
  for (int i = 0; i < MAX_CHOICES && bench->table.cublaslt; i++) {
    if (!lade_cublaslt_choose(bench->table.cublaslt, args, i))
      break;
    const double seconds = product_seconds(bench, args);
    first = i ? first : seconds;
    best_number = i && seconds < fmin(best, CLEARLY_FASTER * first) ? i : best_number;
    best = fmin(best, seconds);
  }
  if (bench->table.cublaslt)
    lade_cublaslt_choose(bench->table.cublaslt, args, -1);
  if (bench->choices_path && best_number)
    choice_write(bench, args, best_number);
  return best;
}

/* The forms of products, by their names in the table and on the command line. */
enum epilogue { PLAIN, BIAS, SLOPE, GELU };
static const struct product_form {
  const char *name;
  enum lade_matmul_layout layout;
  enum epilogue epilogue;
} product_forms[] = {{"NT", LADE_NT, PLAIN}, {"NT+bias", LADE_NT, BIAS}, {"NN", LADE_NN, PLAIN},
                     {"NN+gelu", LADE_NN, SLOPE}, {"NT+bias+gelu", LADE_NT, GELU}, {"TN", LADE_TN, PLAIN}};

static const struct product_form *form_find(enum lade_matmul_layout layout, enum epilogue epilogue)
{
  const struct product_form *form = product_forms;
  while (form->layout != layout || form->epilogue != epilogue)
    form++;
  return form;
}

static void product_row(struct bench *bench, const struct product_form *form, int64_t m, int64_t n, int64_t k)
{
  const double flops = 2 * (double)m * (double)n * (double)k;
  const bool has_bias = form->epilogue == BIAS || form->epilogue == GELU;
  const struct lade_matmul_args args = {.layout = form->layout, .dtype = LADE_BF16,
                                        .out = form->layout == LADE_TN ? LADE_F32 : LADE_BF16, .m = m, .n = n, .k = k,
                                        .a = place(bench, 0), .b = place(bench, 1), .c = place(bench, 2),
                                        .bias = has_bias ? place(bench, 3) : NULL,
                                        .gelu_x = form->epilogue == SLOPE ? place(bench, 3) : NULL,
                                        .gelu_y = form->epilogue == GELU ? place(bench, 4) : NULL,
                                        .workspace = place(bench, WORKSPACE)};
  double own = product_seconds(bench, &args), best = best_seconds(bench, &args, own);
  *bench->best_flops_per_s = fmax(*bench->best_flops_per_s, flops / best);
  printf("| %s %lld x %lld x %lld | %.1f | %.1f | %.1f | %.0f %% |\n", form->name, (long long)m, (long long)n,
         (long long)k, own * 1e6, flops / own / 1e12, flops / best / 1e12, 100 * best / own);
}

/* Measure a layer's products, forward and backward, over @rows tokens. */
static void layer_bench(struct bench *bench, int64_t rows, int64_t in, int64_t out)
{
  product_row(bench, form_find(LADE_NT, BIAS), rows, out, in);
  product_row(bench, form_find(LADE_NN, PLAIN), rows, in, out);
  product_row(bench, form_find(LADE_TN, PLAIN), out, in, rows);
}

/* Measure the product that @text states, FORM:MxNxK. */
static void product_bench(struct bench *bench, const char *text)
{
  const double max = (double)bench->place_bytes / 4;
  for (size_t i = 0; i < LADE_COUNT(product_forms); i++) {
    const size_t begin = strlen(product_forms[i].name) + 1;
    long long m, n, k;
    int end = 0;
    if (strncmp(text, product_forms[i].name, begin - 1) != 0 || text[begin - 1] != ':' ||
        sscanf(text + begin, "%lldx%lldx%lld%n", &m, &n, &k, &end) != 3 ||
        text[begin + (size_t)end] || m < 1 || n < 1 || k < 1 || (double)m * (double)n > max ||
        (double)m * (double)k > max || (double)n * (double)k > max)
      continue;
    product_row(bench, &product_forms[i], m, n, k);
    return;
  }
  fprintf(stderr, "bench-gpu: '%s' is no product NT:MxNxK, NT+bias:MxNxK, NT+bias+gelu:MxNxK, NN:MxNxK, "
          "NN+gelu:MxNxK or TN:MxNxK of matrices of at most %.0f numbers\n", text, max);
  exit(2);
}

static void products_bench(struct bench *bench)
{
  for (char **text = bench->products; *text; text++)
    product_bench(bench, *text);
  if (*bench->products)
    return;
  if (bench->is_small) {
    layer_bench(bench, 32, 16, 64);
    product_row(bench, form_find(LADE_NT, GELU), 32, 64, 16);
    product_row(bench, form_find(LADE_NN, SLOPE), 32, 64, 16);
    return;
  }
  layer_bench(bench, 16384, 1600, 4800); /* gpt2-1.5b */
  layer_bench(bench, 16384, 1600, 6400);
  product_row(bench, form_find(LADE_NT, GELU), 16384, 6400, 1600);
  product_row(bench, form_find(LADE_NN, SLOPE), 16384, 6400, 1600);
  layer_bench(bench, 8192, 4096, 6144); /* llama3-8b */
  layer_bench(bench, 8192, 4096, 14336);
}

/* ---- attention ---- */

struct variant {
  lade_kernel_fn *fn;
  const void *args;
};

struct variant_call {
  struct bench *bench;
  const struct variant *variant;
};

static int variant_enqueue(void *stream, void *found)
{
  const struct variant_call *call = found;
  return lade_cuda_kernels_call(call->bench->kernels, stream, call->variant->fn, call->variant->args,
                                &call->bench->words->step);
}

static uint64_t variant_submit(struct bench *bench, const void *work, struct lade_span *ret_span)
{
  struct variant_call call = {bench, work};
  uint64_t count = 0;
  lade_cuda_queue_enqueue(bench->compute, variant_enqueue, &call, ret_span, &count);
  return count;
}

/*
 * Measure backward of llama3-8b's heads in one short sequence, whose key heads are fewer than multiprocessors: with
 * query heads divided among blocks, as a run has it, and with a block for whole key heads.
 */
static void grouped_rows(struct bench *bench)
{
  const char *kernel_name = getenv("LADE_ATTENTION");
  const int64_t seq_len = bench->is_small ? 16 : 2048, heads = bench->is_small ? 2 : 32;
  const int64_t dim = bench->is_small ? 64 : 128;
  const int64_t n_kv_heads = bench->is_small ? 1 : 8;
  const struct lade_attention_fwd_args fwd = {.dtype = LADE_BF16, .batch = 1, .seq_len = seq_len, .heads = heads,
                                              .n_kv_heads = n_kv_heads, .head_dim = dim, .drop = {.scale = 1},
                                              .qkv = place(bench, 0), .out = place(bench, 2), .lse = place(bench, 3)};
  const struct lade_attention_bwd_args bwd = {.dtype = LADE_BF16, .batch = 1, .seq_len = seq_len, .heads = heads,
                                              .n_kv_heads = n_kv_heads, .head_dim = dim, .drop = {.scale = 1},
                                              .qkv = place(bench, 0), .out = place(bench, 2), .lse = place(bench, 3),
                                              .d_out = place(bench, 1), .d_qkv = place(bench, 4),
                                              .workspace = place(bench, WORKSPACE)};
  lade_kernel_fn *const divided = bench->table.fn[LADE_K_ATTENTION_BWD];
  const struct {
    const char *name;
    lade_kernel_fn *fn;
  } ways[] = {{"query heads in parts", divided}, {"whole key heads", lade_cuda_attention_whole_fn(divided)}};
  kernel_seconds(bench, LADE_K_ATTENTION_FWD, &fwd); /* for out and lse */
  for (size_t i = 0; i < LADE_COUNT(ways) && ways[i].fn; i++) {
    const double flops = 5 * (double)(heads * dim) * (double)(seq_len * (seq_len + 1));
    const double seconds = seconds_take(bench, bench->compute, variant_submit, &(struct variant){ways[i].fn, &bwd});
    printf("| one sequence of %lld, %s, backward, %s | %.1f | %.1f | %.0f %% |\n", (long long)seq_len, ways[i].name,
           kernel_name, seconds * 1e6, flops / seconds / 1e12, 100 * flops / seconds / *bench->best_flops_per_s);
  }
}

struct attention_shape {
  const char *name;
  int64_t batch, seq_len, heads, head_dim, window; /* window 0: none */
  struct lade_drop drop;
};

/*
 * Measure attention over the pairs of causal rows, or of those with a window, with dropout; backward has five
 * products for the forward's two.
 */
static void attention_rows(struct bench *bench, const struct attention_shape *shape)
{
  const char *kernel_name = getenv("LADE_ATTENTION");
  const int64_t seen = shape->window ? shape->window : shape->seq_len;
  const double twice_pairs = (double)shape->batch * (double)(seen * (seen + 1) + 2 * (shape->seq_len - seen) * seen);
  const double flops = 2 * (double)(shape->heads * shape->head_dim) * twice_pairs;
  const struct lade_attention_fwd_args fwd = {
      .dtype = LADE_BF16, .batch = shape->batch, .seq_len = shape->seq_len, .heads = shape->heads,
      .n_kv_heads = shape->heads, .head_dim = shape->head_dim, .drop = shape->drop, .form = {.window = shape->window},
      .qkv = place(bench, 0), .out = place(bench, 2), .lse = place(bench, 3), .workspace = place(bench, WORKSPACE)};
  const struct lade_attention_bwd_args bwd = {
      .dtype = LADE_BF16, .batch = shape->batch, .seq_len = shape->seq_len, .heads = shape->heads,
      .n_kv_heads = shape->heads, .head_dim = shape->head_dim, .drop = shape->drop, .form = {.window = shape->window},
      .qkv = place(bench, 0), .out = place(bench, 2), .lse = place(bench, 3), .d_out = place(bench, 1),
      .d_qkv = place(bench, 4), .workspace = place(bench, WORKSPACE)};
  double forward = kernel_seconds(bench, LADE_K_ATTENTION_FWD, &fwd);
  printf("| %sforward, %s | %.1f | %.1f | %.0f %% |\n", shape->name, kernel_name, forward * 1e6, flops / forward / 1e12,
         100 * flops / forward / *bench->best_flops_per_s);
  double backward = kernel_seconds(bench, LADE_K_ATTENTION_BWD, &bwd);
  printf("| %sbackward, %s | %.1f | %.1f | %.0f %% |\n", shape->name, kernel_name, backward * 1e6,
         2.5 * flops / backward / 1e12, 100 * 2.5 * flops / backward / *bench->best_flops_per_s);
}

/*
 * Measure whole attention: of long sequences; GPT-2 1.5B's, whose tiles are few; of few key heads; with dropout by both
 * ways to draw; and with a window of an eighth, for which mma.sync replaces wgmma.
 */
static void attention_bench(struct bench *bench)
{
  enum { N_SHAPES = 5 };
  const struct lade_drop none = {.scale = 1}, shared = {1u << 29, 1, 8.0f / 7, 0}, within = {1u << 29, 1, 8.0f / 7, 1};
  const struct attention_shape shapes[2][N_SHAPES] = {
      {{"", 1, 4096, 16, 128, 0, none}, {"heads of 64, 1024 tokens, ", 16, 1024, 25, 64, 0, none},
       {"dropout, words shared, ", 1, 4096, 16, 128, 0, shared},
       {"dropout, rows that begin within a draw, ", 1, 4096, 16, 128, 0, within},
       {"window of an eighth, ", 1, 4096, 16, 128, 512, none}},
      {{"", 1, 32, 1, 64, 0, none}, {"heads of 64, 1024 tokens, ", 2, 16, 1, 64, 0, none},
       {"dropout, words shared, ", 1, 32, 1, 64, 0, shared},
       {"dropout, rows that begin within a draw, ", 1, 32, 1, 64, 0, within},
       {"window of an eighth, ", 1, 32, 1, 64, 4, none}}};
  for (int i = 0; i < N_SHAPES; i++)
    attention_rows(bench, &shapes[bench->is_small][i]);
  grouped_rows(bench);
}

/* ---- the device ---- */

static int arena_map(struct bench *bench, struct lade_error *error)
{
  struct lade_device_info info;
  lade_device_get_info(bench->device, &info);
  bench->arena_bytes = lade_align_up(N_PLACES * bench->place_bytes + sizeof(*bench->words), info.chunk_bytes);
  int status = lade_device_reserve(bench->device, bench->arena_bytes, &bench->arena);
  if (!status)
    status = lade_device_chunk_create(bench->device, bench->arena_bytes, &bench->chunk);
  if (!status)
    status = lade_device_map(bench->device, bench->arena, bench->chunk);
  bench->words = place(bench, N_PLACES);
  return status ? lade_error_set(error, status, "there are no %llu bytes of the GPU's memory free",
                                 (unsigned long long)bench->arena_bytes)
                : 0;
}

/* Open the device and its tensors. On failure bench_close closes the open parts. */
static int bench_open(struct bench *bench, struct lade_error *error)
{
  const struct lade_cuda_device_params params = {.struct_size = sizeof(params)};
  const struct words words = {{.seed = 1, .lr = 1e-4f, .beta1 = 0.9f, .beta2 = 0.99f, .eps = 1e-8f,
                               .correction1 = 1, .correction2 = 1, .loss_scale = 1}, {.norm = 1, .factor = 1}};
  uint64_t count = 0;
  bench->place_bytes = bench->is_small ? 32768 : (uint64_t)256 << 20;
  int status = lade_device_open_cuda(&params, error, &bench->device);
  if (!status)
    status = lade_cuda_kernels_open(bench->device, NULL, error, &bench->kernels);
  if (!status)
    status = arena_map(bench, error);
  if (!status)
    status = lade_queue_create(bench->device, LADE_QUEUE_COMPUTE, &bench->compute);
  if (!status)
    status = lade_queue_create(bench->device, LADE_QUEUE_TO_DEVICE, &bench->copies);
  if (status)
    return status;
  lade_cuda_kernels_get(bench->kernels, &bench->table);
  const struct lade_copy copy = {.dst = bench->words, .src = &words, .bytes = sizeof(words)};
  lade_queue_copy(bench->copies, &copy, &count);
  status = lade_queue_sync(bench->copies, count);
  if (!status)
    places_fill(bench, 0, N_PLACES, 0xffff);
  return status;
}

static void bench_close(struct bench *bench)
{
  lade_queue_destroy(bench->copies);
  lade_queue_destroy(bench->compute);
  lade_cuda_kernels_close(bench->kernels);
  lade_device_chunk_release(bench->device, bench->chunk);
  if (bench->arena)
    lade_device_release(bench->device, bench->arena, bench->arena_bytes);
  lade_device_close(bench->device);
}

/* ---- sections ---- */

typedef void bench_fn(struct bench *bench);

/* Print the choices that a run would get. */
static void choice_tell(struct bench *bench)
{
  struct lade_device_info info;
  lade_device_get_info(bench->device, &info);
  printf("%s; products by %s; attention by %s, backward %s\n%s\n", info.name,
         bench->table.library ? bench->table.library : "plain kernels", bench->table.variant[LADE_K_ATTENTION_FWD],
         bench->table.variant[LADE_K_ATTENTION_BWD], lade_cuda_kernels_attention_note(bench->kernels));
}

/* Sections that do not measure attention skip its check. */
static const struct section {
  const char *name, *attention, *head;
  bench_fn *run;
} sections[] = {
    {"what a run gets", NULL, "", choice_tell},
    {"kernels bound by memory", "plain", "| kernel | MB | us | GB/s | of the copy |\n|---|---|---|---|---|\n",
     memory_bench},
    {"gradients of the token table", "plain", "\n| embedding | MB | us | GB/s |\n|---|---|---|---|\n", embed_bench},
    {"products", "plain",
     "\n| product m x n x k | us | TFLOP/s | TFLOP/s of the best choice | of the best |\n|---|---|---|---|---|\n",
     products_bench},
    {"attention by wgmma", "wgmma", "\n| attention | us | TFLOP/s | of the best product |\n|---|---|---|---|\n",
     attention_bench},
    {"attention by mma", "mma", "", attention_bench},
    {"attention by plain kernels", "plain", "", attention_bench},
};

/* Run a section in its own process. An attention that this GPU does not have is left out. */
static int section_main(struct bench *bench, const struct section *section)
{
  struct lade_error error = {0};
  if (!bench->is_small)
    alarm(SECTION_S);
  if (section->attention)
    setenv("LADE_ATTENTION", section->attention, 1);
  int status = bench_open(bench, &error);
  bool is_absent = status == -ENODEV && section->run == attention_bench && bench->device;
  if (!status)
    section->run(bench);
  else if (!is_absent)
    fprintf(stderr, "bench-gpu: %s: %s\n", section->name, *error.text ? error.text : strerror(-status));
  bench_close(bench);
  return !status || is_absent ? 0 : status == -ENODEV ? MISSING : 1;
}

/* Run a section; return its exit code, 1 if a signal ended it. */
static int section_run(struct bench *bench, const struct section *section)
{
  int state = 0;
  printf("%s", section->head);
  fflush(stdout);
  pid_t child = fork();
  if (child == 0)
    exit(section_main(bench, section));
  if (child < 0 || waitpid(child, &state, 0) < 0) {
    fprintf(stderr, "bench-gpu: %s: %s\n", section->name, strerror(errno));
    return 1;
  }
  if (WIFEXITED(state))
    return WEXITSTATUS(state);
  fprintf(stderr, "bench-gpu: %s: %s\n", section->name,
          WTERMSIG(state) == SIGALRM ? "it does not end" : strsignal(WTERMSIG(state)));
  return 1;
}

int main(int argc, char **argv)
{
  struct bench bench = {0};
  int code = 0;
  argv++;
  for (; *argv && **argv == '-'; argv++) {
    bench.is_small |= strcmp(*argv, "--small") == 0;
    if (strcmp(*argv, "--choices") == 0 && argv[1])
      bench.choices_path = *++argv;
    else if (strcmp(*argv, "--small") != 0) {
      fprintf(stderr, "bench-gpu: usage: bench-gpu [--small] [--choices FILE [PRODUCT...]]\n");
      return 2;
    }
  }
  bench.products = argv;
  bench.best_flops_per_s = mmap(NULL, sizeof(double), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (bench.best_flops_per_s == MAP_FAILED)
    return 1;
  setvbuf(stdout, NULL, _IOLBF, 0);
  for (size_t i = 0; i < LADE_COUNT(sections) && code != MISSING; i++) {
    if (bench.choices_path && sections[i].run != products_bench)
      continue;
    const int ended = section_run(&bench, &sections[i]);
    code = ended ? ended : code;
  }
  return code;
}
