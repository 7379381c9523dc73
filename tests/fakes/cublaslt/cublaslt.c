/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The fake for cuBLASLt. Descriptors store their settings. An algorithm's words hold the product that it was chosen
 * for, its split of k, and the promised alignments. A product copies all of that and runs as a piece of work of the
 * driver's fake, column by column. Each element is a sum of fused multiply-adds in rising order of k. GELU's slope
 * multiplies the sum before it is rounded. GELU takes the sum before it is rounded, and the rounded sum goes to aux.
 */
#include <dlfcn.h>
#include <math.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "base/float.h"
#include "fake_cublaslt.h"
#include "kernels/cuda/matmul/cublaslt_library.h"
#include "tests/fakes/cuda_driver/control.h"
#include "tests/fakes/cuda_driver/fake_driver_internal.h"

#define DECLARE(type, name, arguments) EXPORT type name arguments;
LADE_CUBLASLT_FUNCTIONS(DECLARE)

EXPORT fake_cublaslt_set_fn fake_cublaslt_set;
EXPORT fake_cublaslt_calls_fn fake_cublaslt_calls;
EXPORT fake_cublaslt_failed_fn fake_cublaslt_failed;
EXPORT fake_cublaslt_live_fn fake_cublaslt_live;

#define MAGIC 0x4c745374616e6421u /* of algorithms */
#define WORKSPACE_ALIGN_BYTES 256
#define MAX_KERNELS 4096
#define SPLIT_K 48 /* smallest k that is split in two */

struct layout {
  int type;
  uint64_t rows, columns;
  int64_t stride;
};

struct descriptor {
  int compute, scale;
  int32_t a_op, b_op;
  uint32_t epilogue;
  const void *bias, *aux;
  int64_t aux_stride;
};

struct preference {
  uint64_t workspace_bytes;
  uint32_t schemes, align_bytes[4]; /* of a, b, c, d */
};

struct cublasLtContext {
  int unused;
};

/* The contents of an algorithm's words. */
struct algo {
  uint64_t magic, product;
  uint32_t scheme, n_splits;
  uint16_t align_bytes[4], bias_align_bytes, aux_align_bytes;
  uint64_t workspace_bytes;
};
_Static_assert(sizeof(struct algo) <= sizeof(struct cublaslt_algo), "an algorithm fits its words");

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t version = 130100;
static const struct setting settings[] = {{"version", &version}, {NULL, NULL}};
static struct control control = {.settings = settings, .nth = 1, .code = CUBLASLT_INTERNAL_ERROR};
static int64_t n_live;

__attribute__((format(printf, 1, 2), noreturn)) static void misuse(const char *format, ...)
{
  va_list args;
  va_start(args, format);
  fprintf(stderr, "fake cuBLASLt: ");
  vfprintf(stderr, format, args);
  fprintf(stderr, "\n");
  va_end(args);
  abort();
}

/* ---- settings, counting, failing ---- */

int fake_cublaslt_set(const char *text)
{
  pthread_mutex_lock(&lock);
  int status = control_set(&control, text);
  pthread_mutex_unlock(&lock);
  return status;
}

__attribute__((constructor)) static void settings_load(void)
{
  control_load("LADE_FAKE_CUBLASLT", fake_cublaslt_set);
}

/* Count a call and return its answer. Unless it fails, @n_made handles or descriptors are created. */
static cublaslt_status enter(const char *function, int n_made)
{
  pthread_mutex_lock(&lock);
  cublaslt_status result = (cublaslt_status)control_enter(&control, function);
  n_live += result ? 0 : n_made;
  pthread_mutex_unlock(&lock);
  return result;
}

uint64_t fake_cublaslt_calls(const char *function)
{
  pthread_mutex_lock(&lock);
  uint64_t n = control_calls(&control, function);
  pthread_mutex_unlock(&lock);
  return n;
}

uint64_t fake_cublaslt_failed(void)
{
  pthread_mutex_lock(&lock);
  uint64_t n = control.n_failed;
  pthread_mutex_unlock(&lock);
  return n;
}

int64_t fake_cublaslt_live(void)
{
  pthread_mutex_lock(&lock);
  int64_t n = n_live;
  pthread_mutex_unlock(&lock);
  return n;
}

/* ---- the driver's fake ---- */

typedef enum fake_place place_fn(uint64_t address, uint64_t bytes);
typedef void put_fn(cuda_stream stream, cuda_host_fn *fn, void *args);
typedef cuda_result status_fn(void);
typedef bool is_captured_fn(void);
typedef void drain_fn(void);

static struct {
  pthread_once_t once;
  place_fn *place;
  put_fn *put;
  status_fn *status;
  is_captured_fn *is_captured;
  drain_fn *drain;
} driver = {.once = PTHREAD_ONCE_INIT};

static void driver_find(void)
{
  void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  if (!library)
    misuse("there is no driver in this process");
  driver.place = (place_fn *)dlsym(library, "fake_place");
  driver.put = (put_fn *)dlsym(library, "fake_put_call");
  driver.status = (status_fn *)dlsym(library, "fake_status");
  driver.is_captured = (is_captured_fn *)dlsym(library, "fake_is_captured");
  driver.drain = (drain_fn *)dlsym(library, "fake_drain");
  dlclose(library);
  if (!driver.place || !driver.put || !driver.status || !driver.is_captured || !driver.drain)
    misuse("the driver in this process is not the fake");
}

static void memory_check(const char *what, const void *at, uint64_t bytes)
{
  if (driver.place((uint64_t)(uintptr_t)at, bytes) != PLACE_DEVICE)
    misuse("%s (%p, %llu bytes) is no device memory", what, at, (unsigned long long)bytes);
}

/* ---- handles and descriptors ---- */

size_t cublasLtGetVersion(void)
{
  return version;
}

const char *cublasLtGetStatusName(cublaslt_status status)
{
  return status == CUBLASLT_ALLOC_FAILED ? "CUBLAS_STATUS_ALLOC_FAILED"
         : status == CUBLASLT_INTERNAL_ERROR ? "CUBLAS_STATUS_INTERNAL_ERROR"
                                             : "CUBLAS_STATUS_OTHER";
}

/* Make the object of @function: a copy of the @bytes of @first. */
static cublaslt_status thing_make(const char *function, const void *first, size_t bytes, void **ret_thing)
{
  cublaslt_status result = enter(function, 1);
  if (result)
    return result;
  void *thing = malloc(bytes);
  LADE_ASSERT(thing);
  *ret_thing = memcpy(thing, first, bytes);
  return result;
}

static cublaslt_status thing_end(const char *function, void *thing)
{
  free(thing);
  pthread_mutex_lock(&lock);
  n_live--;
  pthread_mutex_unlock(&lock);
  return enter(function, 0);
}

cublaslt_status cublasLtCreate(cublaslt_handle *ret_handle)
{
  pthread_once(&driver.once, driver_find);
  if (driver.status() == CUDA_INVALID_CONTEXT)
    misuse("a handle is made without a context");
  const struct cublasLtContext first = {0};
  return thing_make("cublasLtCreate", &first, sizeof(first), (void **)ret_handle);
}

cublaslt_status cublasLtDestroy(cublaslt_handle handle)
{
  return thing_end("cublasLtDestroy", handle);
}

cublaslt_status cublasLtMatrixLayoutCreate(cublaslt_layout *ret_layout, int type, uint64_t rows, uint64_t columns,
                                           int64_t stride)
{
  const struct layout first = {type, rows, columns, stride};
  return thing_make("cublasLtMatrixLayoutCreate", &first, sizeof(first), ret_layout);
}

cublaslt_status cublasLtMatrixLayoutDestroy(cublaslt_layout layout)
{
  return thing_end("cublasLtMatrixLayoutDestroy", layout);
}

cublaslt_status cublasLtMatmulDescCreate(cublaslt_product *ret_product, int compute_type, int scale_type)
{
  const struct descriptor first = {.compute = compute_type, .scale = scale_type, .epilogue = CUBLASLT_EPILOGUE_NONE};
  return thing_make("cublasLtMatmulDescCreate", &first, sizeof(first), ret_product);
}

cublaslt_status cublasLtMatmulDescDestroy(cublaslt_product product)
{
  return thing_end("cublasLtMatmulDescDestroy", product);
}

cublaslt_status cublasLtMatmulDescSetAttribute(cublaslt_product product, int attribute, const void *value,
                                               size_t value_bytes)
{
  struct descriptor *descriptor = product;
  const struct {
    int attribute;
    void *at;
    size_t bytes;
  } table[] = {{CUBLASLT_DESC_TRANSA, &descriptor->a_op, 4},
               {CUBLASLT_DESC_TRANSB, &descriptor->b_op, 4},
               {CUBLASLT_DESC_EPILOGUE, &descriptor->epilogue, 4},
               {CUBLASLT_DESC_BIAS_POINTER, &descriptor->bias, sizeof(void *)},
               {CUBLASLT_DESC_AUX_POINTER, &descriptor->aux, sizeof(void *)},
               {CUBLASLT_DESC_AUX_STRIDE, &descriptor->aux_stride, sizeof(int64_t)}};
  cublaslt_status result = enter("cublasLtMatmulDescSetAttribute", 0);
  if (result)
    return result;
  for (size_t i = 0; i < LADE_COUNT(table); i++)
    if (table[i].attribute == attribute && table[i].bytes == value_bytes) {
      memcpy(table[i].at, value, value_bytes);
      return CUBLASLT_DONE;
    }
  misuse("a product has no attribute %d of %zu bytes", attribute, value_bytes);
}

cublaslt_status cublasLtMatmulPreferenceCreate(cublaslt_preference *ret_preference)
{
  const struct preference first = {.schemes = 7, .align_bytes = {256, 256, 256, 256}};
  return thing_make("cublasLtMatmulPreferenceCreate", &first, sizeof(first), ret_preference);
}

cublaslt_status cublasLtMatmulPreferenceDestroy(cublaslt_preference preference)
{
  return thing_end("cublasLtMatmulPreferenceDestroy", preference);
}

cublaslt_status cublasLtMatmulPreferenceSetAttribute(cublaslt_preference handle, int attribute, const void *value,
                                                     size_t value_bytes)
{
  struct preference *preference = handle;
  bool is_workspace = attribute == CUBLASLT_PREF_MAX_WORKSPACE_BYTES;
  bool is_schemes = attribute == CUBLASLT_PREF_REDUCTION_SCHEMES;
  bool is_align = attribute >= CUBLASLT_PREF_MIN_ALIGNMENT_A && attribute <= CUBLASLT_PREF_MIN_ALIGNMENT_D;
  cublaslt_status result = enter("cublasLtMatmulPreferenceSetAttribute", 0);
  if (result)
    return result;
  if (!(is_workspace || is_schemes || is_align) || value_bytes != (is_workspace ? 8 : 4))
    misuse("a preference has no attribute %d of %zu bytes", attribute, value_bytes);
  memcpy(is_workspace ? (void *)&preference->workspace_bytes
         : is_schemes ? &preference->schemes
                      : &preference->align_bytes[attribute - CUBLASLT_PREF_MIN_ALIGNMENT_A],
         value, value_bytes);
  return CUBLASLT_DONE;
}

/* ---- products ---- */

static size_t type_bytes(int type)
{
  return type == CUBLASLT_R_32F ? 4 : 2;
}

static float element_get(int type, const void *at, uint64_t i)
{
  if (type == CUBLASLT_R_32F)
    return ((const float *)at)[i];
  uint16_t bits = ((const uint16_t *)at)[i];
  return type == CUBLASLT_R_16BF ? lade_bf16_to_f32(bits) : lade_f16_to_f32(bits);
}

static void element_put(int type, void *at, uint64_t i, float value)
{
  if (type == CUBLASLT_R_32F)
    ((float *)at)[i] = value;
  else
    ((uint16_t *)at)[i] = type == CUBLASLT_R_16BF ? lade_f32_to_bf16(value) : lade_f32_to_f16(value);
}

static uint64_t layout_bytes(const struct layout *layout)
{
  return ((layout->columns - 1) * (uint64_t)layout->stride + layout->rows) * type_bytes(layout->type);
}

/* A product: m x n sums over k, with all settings. */
struct product {
  struct descriptor how;
  struct layout a, b, d;
  uint64_t k;
};

static void type_check(int type)
{
  if (type != CUBLASLT_R_32F && type != CUBLASLT_R_16F && type != CUBLASLT_R_16BF)
    misuse("%d is no type of a matrix", type);
}

static bool has_bias(uint32_t epilogue)
{
  return epilogue == CUBLASLT_EPILOGUE_ADD_BIAS || epilogue == CUBLASLT_EPILOGUE_ADD_BIAS_MAKE_GELU;
}

/* True for the epilogue that writes GELU's input to aux. */
static bool has_gelu(uint32_t epilogue)
{
  return epilogue == CUBLASLT_EPILOGUE_MAKE_GELU || epilogue == CUBLASLT_EPILOGUE_ADD_BIAS_MAKE_GELU;
}

static bool has_aux(uint32_t epilogue)
{
  return epilogue == CUBLASLT_EPILOGUE_GELU_SLOPE || has_gelu(epilogue);
}

static struct product product_get(cublaslt_product how, cublaslt_layout a, cublaslt_layout b, cublaslt_layout c,
                                  cublaslt_layout d)
{
  struct product p = {.how = *(const struct descriptor *)how, .a = *(const struct layout *)a,
                      .b = *(const struct layout *)b, .d = *(const struct layout *)d};
  bool is_a = p.how.a_op == CUBLASLT_OP_T, is_b = p.how.b_op == CUBLASLT_OP_T;
  const struct layout *layouts[] = {&p.a, &p.b, &p.d};
  p.k = is_a ? p.a.rows : p.a.columns;
  for (int i = 0; i < 3; i++) {
    type_check(layouts[i]->type);
    if (!layouts[i]->rows || !layouts[i]->columns || layouts[i]->stride < (int64_t)layouts[i]->rows)
      misuse("matrix %d is of %llu x %llu, its columns %lld apart", i, (unsigned long long)layouts[i]->rows,
             (unsigned long long)layouts[i]->columns, (long long)layouts[i]->stride);
  }
  if ((is_a ? p.a.columns : p.a.rows) != p.d.rows || (is_b ? p.b.rows : p.b.columns) != p.d.columns ||
      (is_b ? p.b.columns : p.b.rows) != p.k || p.a.type != p.b.type || c != d)
    misuse("the matrices of a product do not fit each other");
  if ((p.d.type != p.a.type && p.d.type != CUBLASLT_R_32F) || p.how.scale != CUBLASLT_R_32F ||
      (p.how.compute != CUBLASLT_COMPUTE_32F && p.how.compute != CUBLASLT_COMPUTE_32F_PEDANTIC))
    misuse("there is no product of these types");
  const bool is_plain = p.how.epilogue == CUBLASLT_EPILOGUE_NONE, takes_aux = has_aux(p.how.epilogue);
  if ((has_bias(p.how.epilogue) && !p.how.bias) || (takes_aux && !p.how.aux) ||
      (!is_plain && !takes_aux && !has_bias(p.how.epilogue)))
    misuse("epilogue %u is not known or lacks its operand", p.how.epilogue);
  if (takes_aux && (p.how.aux_stride % 8 || p.how.aux_stride < (int64_t)p.d.rows || type_bytes(p.d.type) != 2))
    misuse("rows of GELU's input, %lld apart, do not fit the product", (long long)p.how.aux_stride);
  return p;
}

/* Return FNV-1a of all fields but the addresses of bias and aux. */
static uint64_t product_hash(struct product p)
{
  const uint64_t words[] = {(uint64_t)p.how.compute, (uint64_t)p.how.a_op, (uint64_t)p.how.b_op, p.how.epilogue,
                            (uint64_t)p.a.type, p.a.rows, p.a.columns, (uint64_t)p.a.stride, p.b.rows, p.b.columns,
                            (uint64_t)p.b.stride, (uint64_t)p.d.type, (uint64_t)p.d.stride,
                            (uint64_t)p.how.aux_stride};
  uint64_t hash = 0xcbf29ce484222325;
  for (size_t i = 0; i < LADE_COUNT(words); i++)
    hash = (hash ^ words[i]) * 0x100000001b3;
  return hash;
}

static bool has_algorithm(const struct product *p)
{
  const struct layout *layouts[] = {&p->a, &p->b, &p->d};
  for (int i = 0; i < 3; i++)
    if (type_bytes(layouts[i]->type) == 2 && layouts[i]->stride % 8)
      return false;
  return true;
}

static int32_t low_bit(const void *at)
{
  uintptr_t bits = (uintptr_t)at;
  return (int32_t)LADE_MIN(bits & -bits, (uintptr_t)256);
}

static struct cublaslt_choice choice_make(const struct product *p, const struct preference *preference,
                                          uint32_t scheme)
{
  struct cublaslt_choice choice = {.waves = 1};
  struct algo algo = {.magic = MAGIC, .product = product_hash(*p), .scheme = scheme, .n_splits = scheme ? 2 : 1,
                      .bias_align_bytes = p->how.bias ? (uint16_t)low_bit(p->how.bias) : 1,
                      .aux_align_bytes = p->how.aux ? (uint16_t)low_bit(p->how.aux) : 1};
  for (int i = 0; i < 4; i++)
    algo.align_bytes[i] = (uint16_t)preference->align_bytes[i];
  if (scheme == CUBLASLT_REDUCE_COMPUTE_TYPE)
    algo.workspace_bytes = 2 * p->d.rows * p->d.columns * sizeof(float);
  if (p->how.epilogue != CUBLASLT_EPILOGUE_NONE) /* with an epilogue it is another algorithm */
    algo.workspace_bytes += p->d.rows * sizeof(float);
  memcpy(&choice.algo, &algo, sizeof(algo));
  choice.workspace_bytes = algo.workspace_bytes;
  return choice;
}

cublaslt_status cublasLtMatmulAlgoGetHeuristic(cublaslt_handle handle, cublaslt_product how, cublaslt_layout a,
                                               cublaslt_layout b, cublaslt_layout c, cublaslt_layout d,
                                               cublaslt_preference preference, int n_wanted,
                                               struct cublaslt_choice *ret_choices, int *ret_n)
{
  static const uint32_t schemes[] = {CUBLASLT_REDUCE_IN_PLACE, CUBLASLT_REDUCE_OUTPUT_TYPE,
                                     CUBLASLT_REDUCE_COMPUTE_TYPE, CUBLASLT_REDUCE_NONE};
  const struct preference *wish = preference;
  cublaslt_status result = enter("cublasLtMatmulAlgoGetHeuristic", 0);
  if (driver.status() == CUDA_INVALID_CONTEXT)
    misuse("a heuristic is asked without a context");
  if (result)
    return result;
  if (driver.is_captured()) /* as in CUDA 13.3, whose first call needs memory of the context */
    return CUBLASLT_INTERNAL_ERROR;
  struct product p = product_get(how, a, b, c, d);
  if (n_wanted < 2 || !has_algorithm(&p))
    return CUBLASLT_NOT_SUPPORTED;
  int n = 0;
  ret_choices[n++] = (struct cublaslt_choice){.status = CUBLASLT_NOT_SUPPORTED, .workspace_bytes = SIZE_MAX};
  for (size_t i = 0; i < LADE_COUNT(schemes) && n < n_wanted; i++) {
    struct cublaslt_choice choice = choice_make(&p, wish, schemes[i]);
    if ((!schemes[i] || (p.k >= SPLIT_K && wish->schemes & schemes[i])) &&
        choice.workspace_bytes <= wish->workspace_bytes)
      ret_choices[n++] = choice;
  }
  *ret_n = n;
  return CUBLASLT_DONE;
}

/* A product in flight. */
struct run {
  struct product p;
  struct algo algo;
  float alpha, beta;
  const void *a, *b;
  void *d, *workspace;
};

/* Return an operand; FP32 in tensor cores keeps ten bits of fraction. */
static float operand_get(const struct run *run, const struct layout *layout, const void *at, uint64_t row,
                         uint64_t column)
{
  float value = element_get(layout->type, at, column * (uint64_t)layout->stride + row);
  bool is_cut = layout->type == CUBLASLT_R_32F && run->p.how.compute != CUBLASLT_COMPUTE_32F_PEDANTIC;
  return is_cut ? lade_f32_from_bits(lade_f32_bits(value) & 0xffffe000u) : value;
}

static float part_sum(const struct run *run, uint64_t row, uint64_t column, uint64_t first, uint64_t end)
{
  bool is_a = run->p.how.a_op == CUBLASLT_OP_T, is_b = run->p.how.b_op == CUBLASLT_OP_T;
  float sum = 0;
  for (uint64_t i = first; i < end; i++)
    sum = fmaf(operand_get(run, &run->p.a, run->a, is_a ? i : row, is_a ? row : i),
               operand_get(run, &run->p.b, run->b, is_b ? column : i, is_b ? i : column), sum);
  return sum;
}

/* Sum one element. Schemes without a workspace keep partial sums in the type of the output. */
static float element_sum(const struct run *run, uint64_t row, uint64_t column)
{
  float sum = 0;
  for (uint64_t s = 0, n = run->algo.n_splits; s < n; s++) {
    sum += part_sum(run, row, column, run->p.k * s / n, run->p.k * (s + 1) / n);
    if (run->algo.scheme == CUBLASLT_REDUCE_IN_PLACE || run->algo.scheme == CUBLASLT_REDUCE_OUTPUT_TYPE) {
      uint16_t half = lade_f32_to_bf16(sum); /* rounds whatever the type is: Lade must not ask for such a scheme */
      sum = lade_bf16_to_f32(half);
    }
  }
  return sum;
}

/* Return GELU's tanh form. */
static float gelu(float x)
{
  const double u = 0.79788456080286535588 * ((double)x + 0.044715 * (double)x * (double)x * (double)x);
  return (float)(0.5 * (double)x * (1 + tanh(u)));
}

/* Return the slope of GELU's tanh form. */
static float gelu_slope(float at)
{
  const double x = LADE_MAX(LADE_MIN(at, 100.0), -100.0), root = 0.79788456080286535588, cubic = 0.044715;
  const double t = tanh(root * (x + cubic * x * x * x));
  return (float)(0.5 * (1 + t) + 0.5 * x * (1 - t * t) * root * (1 + 3 * cubic * x * x));
}

static void product_run(void *args)
{
  const struct run *run = args;
  const struct layout *d = &run->p.d;
  if (run->algo.workspace_bytes)
    memset(run->workspace, 0xff, run->algo.workspace_bytes);
  for (uint64_t column = 0; column < d->columns; column++)
    for (uint64_t row = 0; row < d->rows; row++) {
      uint64_t i = column * (uint64_t)d->stride + row;
      float value = run->alpha * element_sum(run, row, column);
      if (run->beta != 0)
        value += run->beta * element_get(d->type, run->d, i);
      const uint64_t i_aux = column * (uint64_t)run->p.how.aux_stride + row;
      if (has_bias(run->p.how.epilogue))
        value += element_get(d->type, run->p.how.bias, row);
      if (run->p.how.epilogue == CUBLASLT_EPILOGUE_GELU_SLOPE)
        value *= gelu_slope(element_get(d->type, run->p.how.aux, i_aux));
      if (has_gelu(run->p.how.epilogue)) {
        element_put(d->type, (void *)(uintptr_t)run->p.how.aux, i_aux, value);
        value = gelu(value);
      }
      element_put(d->type, run->d, i, value);
    }
}

static void aligned_check(const char *what, const void *at, uint64_t align_bytes)
{
  if ((uintptr_t)at % align_bytes)
    misuse("%s (%p) is not aligned to %llu bytes, as was promised", what, at, (unsigned long long)align_bytes);
}

static void apart_check(const struct run *run, const char *what, const void *at, uint64_t bytes)
{
  uintptr_t first = (uintptr_t)at, d = (uintptr_t)run->d;
  if (first < d + layout_bytes(&run->p.d) && d < first + bytes)
    misuse("%s overlaps the result", what);
}

static void run_check(const struct run *run)
{
  const struct algo *algo = &run->algo;
  const struct product *p = &run->p;
  if (algo->magic != MAGIC || algo->product != product_hash(*p))
    misuse("an algorithm is used that was not chosen for this product");
  memory_check("a", run->a, layout_bytes(&p->a));
  memory_check("b", run->b, layout_bytes(&p->b));
  memory_check("d", run->d, layout_bytes(&p->d));
  apart_check(run, "a", run->a, layout_bytes(&p->a));
  apart_check(run, "b", run->b, layout_bytes(&p->b));
  apart_check(run, "the workspace", run->workspace, algo->workspace_bytes);
  aligned_check("a", run->a, algo->align_bytes[0]);
  aligned_check("b", run->b, algo->align_bytes[1]);
  aligned_check("c", run->d, algo->align_bytes[2]);
  aligned_check("d", run->d, algo->align_bytes[3]);
  if (has_bias(p->how.epilogue)) {
    memory_check("the bias", p->how.bias, p->d.rows * type_bytes(p->d.type));
    aligned_check("the bias", p->how.bias, algo->bias_align_bytes);
  }
  if (has_aux(p->how.epilogue)) {
    const uint64_t bytes = ((p->d.columns - 1) * (uint64_t)p->how.aux_stride + p->d.rows) * type_bytes(p->d.type);
    memory_check("GELU's input", p->how.aux, bytes);
    apart_check(run, "GELU's input", p->how.aux, bytes);
    aligned_check("GELU's input", p->how.aux, algo->aux_align_bytes);
  }
}

/* Load the kernel of an algorithm at its first launch. */
static void kernel_load(uint64_t product)
{
  static uint64_t loaded[MAX_KERNELS];
  static size_t n_loaded;
  pthread_mutex_lock(&lock);
  size_t i = 0;
  while (i < n_loaded && loaded[i] != product)
    i++;
  const bool is_new = i == n_loaded;
  if (is_new && n_loaded < MAX_KERNELS)
    loaded[n_loaded++] = product;
  pthread_mutex_unlock(&lock);
  if (is_new)
    driver.drain();
}

cublaslt_status cublasLtMatmul(cublaslt_handle handle, cublaslt_product how, const void *alpha, const void *a,
                               cublaslt_layout a_layout, const void *b, cublaslt_layout b_layout, const void *beta,
                               const void *c, cublaslt_layout c_layout, void *d, cublaslt_layout d_layout,
                               const struct cublaslt_algo *algo, void *workspace, size_t workspace_bytes,
                               cublaslt_stream stream)
{
  cublaslt_status result = enter("cublasLtMatmul", 0);
  if (driver.status() == CUDA_INVALID_CONTEXT || !stream || c != d)
    misuse("a product has no context, no stream, or another place for c than for d");
  if (!result && driver.status())
    result = CUBLASLT_EXECUTION_FAILED;
  if (result)
    return result;
  struct run *run = malloc(sizeof(*run));
  LADE_ASSERT(run);
  *run = (struct run){.p = product_get(how, a_layout, b_layout, c_layout, d_layout), .alpha = *(const float *)alpha,
                      .beta = *(const float *)beta, .a = a, .b = b, .d = d, .workspace = workspace};
  memcpy(&run->algo, algo, sizeof(run->algo));
  run_check(run);
  if (run->algo.workspace_bytes > workspace_bytes) {
    free(run);
    return CUBLASLT_INVALID_VALUE;
  }
  if (workspace_bytes) {
    memory_check("the workspace", workspace, workspace_bytes);
    aligned_check("the workspace", workspace, WORKSPACE_ALIGN_BYTES);
  }
  kernel_load(run->algo.product);
  driver.put(stream, product_run, run);
  return CUBLASLT_DONE;
}
