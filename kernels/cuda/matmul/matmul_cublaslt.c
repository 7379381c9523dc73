/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Products by cuBLASLt. A kind of product is layout, dtypes, sizes and whether there is a bias. Its algorithm is chosen
 * once: the first of the library's heuristic, under preferences that are the same for all kinds. If the machine's file
 * of choices names another, that one is taken (matmul_choices.c). It is kept with the descriptors, so that running one
 * is a look-up and one call. The heuristic measures nothing: for one version of the library and one model of GPU its
 * answer follows from the kind alone.
 *
 * The library is column-major. Our row-major c[m,n] is its n x m matrix, so it computes c' = op(b)' op(a)': its A is
 * our b, its B our a. A bias over our columns is one over its rows, as it requires.
 *
 * The requests, so that the bits are those that kernels.h defines:
 *  - Sums in FP32. FP32 operands are multiplied as FP32 (pedantic: neither TF32 nor any splitting).
 *  - Where k is split, partial sums are kept in FP32 and added in a step of their own (REDUCE_COMPUTE_TYPE). The
 *    schemes that add into the output would round in between, and accumulate in pieces.
 *  - With accumulate beta is 1: the sum is complete, in FP32, when c is added to it. The algorithm is the same with
 *    and without, so a gradient that is moved away and added later has the same bits.
 *  - Scratch comes from the plan, as much as the algorithm needs. The library has none of its own, so the work of
 *    other streams cannot change a result.
 *  - Operands are promised to lie at ALIGN_BYTES, always. The plain kernel computes the others; as tensors begin at
 *    64 bytes, the choice follows from shapes and not from a tensor's place in a plan.
 *
 * Epilogues are the bias, added to the sum in FP32 and rounded once, as kernels.h says; the slope of GELU, which
 * multiplies the sum before it is rounded; and GELU of the sum before it is rounded, whose other output is the rounded
 * sum. That GELU takes the unrounded sum is how the library's manual describes the epilogue, and no GPU has shown it.
 * The latter two are one op each in every plan (matmul_gelu_bwd, matmul_gelu), which is repeated whole, so no
 * residency changes their bits. GELU of the unrounded sum has other bits than GELU of the stored value. So the model's
 * graph says which of both is computed, and no plan mixes them. The library's gradient of the bias is not used: it
 * overwrites, where ours accumulates over microbatches, and the precision of its sum is not documented.
 */
#include "kernels/cuda/matmul/matmul_cublaslt.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "device/cuda.h"
#include "kernels/cuda/matmul/cublaslt_library.h"
#include "kernels/cuda/matmul/matmul_choices.h"

#define ALIGN_BYTES 16u                            /* the widest load of a thread */
#define WORKSPACE_ALIGN_BYTES 256u                 /* cuBLAS's requirement for a workspace */
#define MAX_WORKSPACE_BYTES (UINT64_C(32) << 20)   /* cuBLAS's recommendation for sm_90; other GPUs take less */
#define N_CHOICES 8
#define GELU_ROW_ELEMENTS 8                        /* the library's requirement for rows of GELU's x */

/* A driver runs the libraries of its own major version and of those before. */
static const char *const sonames[] = {"libcublasLt.so.13", "libcublasLt.so.12"};

struct chosen_product {
  struct lade_product_kind kind;
  bool is_plain;           /* the library has no algorithm for it */
  struct lade_error error; /* the reason why it could not be chosen; code 0: no error */
  cublaslt_product descriptor;
  cublaslt_layout a, b, c; /* the library's: a is our b */
  struct cublaslt_algo algo;
  size_t workspace_bytes;
};

struct lade_cublaslt {
  struct cublaslt_library library;
  lade_device *device;
  cublaslt_handle handle;
  cublaslt_preference preference;
  char key[160];                       /* of choices: library, GPU and driver */
  char name[192];
  struct lade_product_choices choices; /* none unless LADE_MATMUL_CHOICES names a file */
  pthread_mutex_t lock; /* guards the fields below, and a descriptor's pointer */
  LADE_ARRAY(struct chosen_product *) products;
  bool has_missed; /* a kind could not be allocated, so plans do not know its scratch: no product may run */
};

/* ---- kinds ---- */

static struct lade_product_kind kind_get(const struct lade_matmul_args *args)
{
  return (struct lade_product_kind){args->layout, args->dtype, args->out, args->m, args->n, args->k,
                                    args->bias != NULL, args->gelu_x != NULL, args->gelu_y != NULL};
}

static int type_of(enum lade_dtype dtype)
{
  return dtype == LADE_BF16 ? CUBLASLT_R_16BF : dtype == LADE_F16 ? CUBLASLT_R_16F : CUBLASLT_R_32F;
}

/*
 * True if the library can take it: it counts in 32 bits, takes a bias only in the type of the output, and GELU's x, as
 * an input or an output, only in 16 bits, in rows that are multiples of 16 bytes.
 */
static bool kind_is_known(const struct lade_product_kind *kind)
{
  const bool has_aux = kind->has_gelu || kind->makes_gelu;
  return LADE_MAX(LADE_MAX(kind->m, kind->n), kind->k) <= INT32_MAX && kind->dtype <= LADE_F16 &&
         !(kind->has_bias && kind->out != kind->dtype) &&
         !(has_aux && (kind->dtype == LADE_F32 || kind->out != kind->dtype || kind->n % GELU_ROW_ELEMENTS));
}

/* ---- choosing ---- */

static void product_destroy(const struct lade_cublaslt *lt, struct chosen_product *product)
{
  const struct cublaslt_library *library = &lt->library;
  if (product->a)
    library->cublasLtMatrixLayoutDestroy(product->a);
  if (product->b)
    library->cublasLtMatrixLayoutDestroy(product->b);
  if (product->c)
    library->cublasLtMatrixLayoutDestroy(product->c);
  if (product->descriptor)
    library->cublasLtMatmulDescDestroy(product->descriptor);
  product->a = product->b = product->c = product->descriptor = NULL;
}

/* Record the failure of @call in @error. True on success. */
static bool call_check(const struct lade_cublaslt *lt, const char *call, cublaslt_status result,
                       struct lade_error *error)
{
  if (result)
    lade_cublaslt_error_set(&lt->library, call, result, error);
  return !result;
}

static bool layout_make(const struct lade_cublaslt *lt, struct chosen_product *product, enum lade_dtype dtype,
                        int64_t rows, int64_t columns, cublaslt_layout *ret_layout)
{
  return call_check(lt, "cublasLtMatrixLayoutCreate",
                    lt->library.cublasLtMatrixLayoutCreate(ret_layout, type_of(dtype), (uint64_t)rows,
                                                           (uint64_t)columns, rows),
                    &product->error);
}

/* Make the layouts of the matrices in memory: column by column and dense. */
static bool layouts_make(const struct lade_cublaslt *lt, struct chosen_product *product)
{
  const struct lade_product_kind *kind = &product->kind;
  bool is_nt = kind->layout == LADE_NT, is_tn = kind->layout == LADE_TN;
  return layout_make(lt, product, kind->dtype, is_nt ? kind->k : kind->n, is_nt ? kind->n : kind->k, &product->a) &&
         layout_make(lt, product, kind->dtype, is_tn ? kind->m : kind->k, is_tn ? kind->k : kind->m, &product->b) &&
         layout_make(lt, product, kind->out, kind->n, kind->m, &product->c);
}

static bool attribute_set(const struct lade_cublaslt *lt, struct chosen_product *product, int attribute,
                          const void *value, size_t value_bytes)
{
  return call_check(lt, "cublasLtMatmulDescSetAttribute",
                    lt->library.cublasLtMatmulDescSetAttribute(product->descriptor, attribute, value, value_bytes),
                    &product->error);
}

static uint32_t epilogue_get(const struct lade_product_kind *kind)
{
  if (kind->makes_gelu)
    return kind->has_bias ? CUBLASLT_EPILOGUE_ADD_BIAS_MAKE_GELU : CUBLASLT_EPILOGUE_MAKE_GELU;
  return kind->has_bias   ? CUBLASLT_EPILOGUE_ADD_BIAS
         : kind->has_gelu ? CUBLASLT_EPILOGUE_GELU_SLOPE
                          : CUBLASLT_EPILOGUE_NONE;
}

static bool descriptor_make(const struct lade_cublaslt *lt, struct chosen_product *product)
{
  const struct lade_product_kind *kind = &product->kind;
  const int compute = kind->dtype == LADE_F32 ? CUBLASLT_COMPUTE_32F_PEDANTIC : CUBLASLT_COMPUTE_32F;
  const int32_t a_op = kind->layout == LADE_NT ? CUBLASLT_OP_T : CUBLASLT_OP_N;
  const int32_t b_op = kind->layout == LADE_TN ? CUBLASLT_OP_T : CUBLASLT_OP_N;
  const uint32_t epilogue = epilogue_get(kind);
  const bool has_aux = kind->has_gelu || kind->makes_gelu;
  const void *aligned = (const void *)(uintptr_t)ALIGN_BYTES; /* the heuristic reads the alignment alone */
  return call_check(lt, "cublasLtMatmulDescCreate",
                    lt->library.cublasLtMatmulDescCreate(&product->descriptor, compute, CUBLASLT_R_32F),
                    &product->error) &&
         attribute_set(lt, product, CUBLASLT_DESC_TRANSA, &a_op, sizeof(a_op)) &&
         attribute_set(lt, product, CUBLASLT_DESC_TRANSB, &b_op, sizeof(b_op)) &&
         attribute_set(lt, product, CUBLASLT_DESC_EPILOGUE, &epilogue, sizeof(epilogue)) &&
         (!kind->has_bias || attribute_set(lt, product, CUBLASLT_DESC_BIAS_POINTER, &aligned, sizeof(aligned))) &&
         (!has_aux || (attribute_set(lt, product, CUBLASLT_DESC_AUX_STRIDE, &kind->n, sizeof(kind->n)) &&
                       attribute_set(lt, product, CUBLASLT_DESC_AUX_POINTER, &aligned, sizeof(aligned))));
}

/*
 * Take number @wanted of the algorithms that the library offers. False, without an error, if there is none: it reports
 * some products as not supported and others, equally valid, as invalid.
 */
static bool algo_choose(const struct lade_cublaslt *lt, struct chosen_product *product, int wanted)
{
  struct cublaslt_choice choices[N_CHOICES];
  int n = 0, i = 0;
  cublaslt_status result = lt->library.cublasLtMatmulAlgoGetHeuristic(
      lt->handle, product->descriptor, product->a, product->b, product->c, product->c, lt->preference, N_CHOICES,
      choices, &n);
  if (result && result != CUBLASLT_NOT_SUPPORTED && result != CUBLASLT_INVALID_VALUE) {
    call_check(lt, "cublasLtMatmulAlgoGetHeuristic", result, &product->error);
    return false;
  }
  while (!result && i < n && (choices[i].status || choices[i].workspace_bytes > MAX_WORKSPACE_BYTES || wanted-- > 0))
    i++;
  if (result || i == n)
    return false;
  product->algo = choices[i].algo;
  product->workspace_bytes = choices[i].workspace_bytes;
  return true;
}

/* Choose the algorithm that the file of choices names, or the heuristic's first. */
static void algo_choose_own(const struct lade_cublaslt *lt, struct chosen_product *product)
{
  const struct lade_product_kind *kind = &product->kind;
  const int number = lade_product_choices_find(&lt->choices, kind);
  const bool has_algo = algo_choose(lt, product, number);
  product->is_plain = !has_algo && !product->error.code && !number;
  if (!has_algo && !product->error.code && number)
    lade_error_set(&product->error, -EINVAL, "LADE_MATMUL_CHOICES names algorithm %d for a product of %lld x %lld x "
                   "%lld, and cuBLASLt offers fewer; measure it again with bench-gpu --choices", number,
                   (long long)kind->m, (long long)kind->n, (long long)kind->k);
}

/* Return the product of @kind, chosen now if it is new; NULL: out of memory. pre: lock held, context current. */
static struct chosen_product *product_get(struct lade_cublaslt *lt, const struct lade_product_kind *kind)
{
  for (int i = 0; i < lt->products.n; i++)
    if (lade_product_kind_is(&lt->products.items[i]->kind, kind))
      return lt->products.items[i];
  struct chosen_product *product = calloc(1, sizeof(*product));
  if (!product || !LADE_PUSH(&lt->products, product)) {
    free(product);
    lt->has_missed = true;
    return NULL;
  }
  product->kind = *kind;
  product->is_plain = !kind_is_known(kind);
  if (!product->is_plain && layouts_make(lt, product) && descriptor_make(lt, product))
    algo_choose_own(lt, product);
  if (product->is_plain || product->error.code)
    product_destroy(lt, product);
  return product;
}

struct choosing {
  struct lade_cublaslt *lt;
  struct lade_product_kind kind;
  bool is_changed; /* to number @wanted of the heuristic's choices; below 0: to the run's own */
  int wanted;
  bool has_choice, is_plain;
  size_t workspace_bytes;
};

static int choosing_run(void *args)
{
  struct choosing *choosing = args;
  pthread_mutex_lock(&choosing->lt->lock);
  struct chosen_product *product = product_get(choosing->lt, &choosing->kind);
  choosing->is_plain = product && product->is_plain;
  choosing->has_choice = product && !product->is_plain && !product->error.code;
  if (choosing->has_choice && choosing->is_changed)
    choosing->has_choice =
        algo_choose(choosing->lt, product,
                    choosing->wanted < 0 ? lade_product_choices_find(&choosing->lt->choices, &choosing->kind)
                                         : choosing->wanted);
  choosing->workspace_bytes = product ? product->workspace_bytes : 0;
  pthread_mutex_unlock(&choosing->lt->lock);
  return 0;
}

size_t lade_cublaslt_workspace_bytes(struct lade_cublaslt *lt, const struct lade_matmul_args *args)
{
  struct choosing choosing = {.lt = lt, .kind = kind_get(args)};
  lade_cuda_call(lt->device, choosing_run, &choosing);
  return choosing.workspace_bytes ? choosing.workspace_bytes + WORKSPACE_ALIGN_BYTES : 0;
}

bool lade_cublaslt_lacks(struct lade_cublaslt *lt, const struct lade_matmul_args *args)
{
  struct choosing choosing = {.lt = lt, .kind = kind_get(args)};
  lade_cuda_call(lt->device, choosing_run, &choosing);
  return choosing.is_plain;
}

bool lade_cublaslt_choose(struct lade_cublaslt *lt, const struct lade_matmul_args *args, int i)
{
  struct choosing choosing = {.lt = lt, .kind = kind_get(args), .is_changed = true, .wanted = i};
  lade_cuda_call(lt->device, choosing_run, &choosing);
  return choosing.has_choice;
}

int lade_cublaslt_choice_write(const struct lade_cublaslt *lt, const struct lade_matmul_args *args, int i, FILE *file)
{
  return lade_product_choice_write(file, lt->key, &(struct lade_product_choice){kind_get(args), i});
}

/* ---- running ---- */

/* Set the addresses of bias and GELU's x. The product with GELU has the stored sum, our c, as its second output. */
static bool pointers_set(const struct lade_cublaslt *lt, struct chosen_product *product,
                         const struct lade_matmul_args *args, struct lade_error *error)
{
  const struct {
    int attribute;
    const void *at;
  } pointers[] = {{CUBLASLT_DESC_BIAS_POINTER, args->bias},
                  {CUBLASLT_DESC_AUX_POINTER, args->gelu_y ? args->c : args->gelu_x}};
  for (size_t i = 0; i < LADE_COUNT(pointers); i++)
    if (pointers[i].at &&
        !call_check(lt, "cublasLtMatmulDescSetAttribute",
                    lt->library.cublasLtMatmulDescSetAttribute(product->descriptor, pointers[i].attribute,
                                                               &pointers[i].at, sizeof(pointers[i].at)),
                    error))
      return false;
  return true;
}

/*
 * Put a chosen product on @stream. A failure is reported in @error and not kept with the product: it may belong to the
 * stream, whose capture the library refuses, and the next call may succeed.
 */
static void product_put(struct lade_cublaslt *lt, struct chosen_product *product, void *stream,
                        const struct lade_matmul_args *args, struct lade_error *error)
{
  static const float one = 1, zero = 0;
  const struct cublaslt_library *library = &lt->library;
  uintptr_t workspace = lade_align_up((uintptr_t)args->workspace, WORKSPACE_ALIGN_BYTES);
  LADE_ASSERT(args->workspace || !product->workspace_bytes);
  void *const out = args->gelu_y ? args->gelu_y : args->c;
  if (!pointers_set(lt, product, args, error))
    return;
  call_check(lt, "cublasLtMatmul",
             library->cublasLtMatmul(lt->handle, product->descriptor, &one, args->b, product->a, args->a, product->b,
                                     args->accumulate ? &one : &zero, out, product->c, out, product->c,
                                     &product->algo, product->workspace_bytes ? (void *)workspace : NULL,
                                     product->workspace_bytes, stream),
             error);
}

bool lade_cublaslt_run(struct lade_cublaslt *lt, void *stream, const struct lade_matmul_args *args,
                       struct lade_error *error)
{
  const struct lade_product_kind kind = kind_get(args);
  const uintptr_t bits = (uintptr_t)args->a | (uintptr_t)args->b | (uintptr_t)args->c | (uintptr_t)args->bias |
                         (uintptr_t)args->gelu_x | (uintptr_t)args->gelu_y;
  struct lade_error why = {0};
  if (lade_device_status(lt->device)) /* its context may not be current, and no product would run */
    return true;
  pthread_mutex_lock(&lt->lock);
  struct chosen_product *product = product_get(lt, &kind);
  bool is_plain = product && (product->is_plain || bits % ALIGN_BYTES);
  if (lt->has_missed) {
    lade_error_set(&why, -ENOMEM, "no memory for the descriptors of a matrix product");
  } else if (!is_plain) {
    why = product->error;
    if (!why.code)
      product_put(lt, product, stream, args, &why);
  }
  pthread_mutex_unlock(&lt->lock);
  if (why.code)
    *error = why;
  return !is_plain || why.code;
}

/* ---- opening ---- */

static cublaslt_status preference_make(struct lade_cublaslt *lt)
{
  const struct cublaslt_library *library = &lt->library;
  const uint64_t workspace_bytes = MAX_WORKSPACE_BYTES;
  const uint32_t schemes = CUBLASLT_REDUCE_COMPUTE_TYPE, align_bytes = ALIGN_BYTES; /* and none, which has no bit */
  const struct {
    int attribute;
    const void *value;
    size_t bytes;
  } wanted[] = {{CUBLASLT_PREF_MAX_WORKSPACE_BYTES, &workspace_bytes, sizeof(workspace_bytes)},
                {CUBLASLT_PREF_REDUCTION_SCHEMES, &schemes, sizeof(schemes)},
                {CUBLASLT_PREF_MIN_ALIGNMENT_A, &align_bytes, sizeof(align_bytes)},
                {CUBLASLT_PREF_MIN_ALIGNMENT_B, &align_bytes, sizeof(align_bytes)},
                {CUBLASLT_PREF_MIN_ALIGNMENT_C, &align_bytes, sizeof(align_bytes)},
                {CUBLASLT_PREF_MIN_ALIGNMENT_D, &align_bytes, sizeof(align_bytes)}};
  cublaslt_status result = library->cublasLtMatmulPreferenceCreate(&lt->preference);
  for (size_t i = 0; i < LADE_COUNT(wanted) && !result; i++)
    result = library->cublasLtMatmulPreferenceSetAttribute(lt->preference, wanted[i].attribute, wanted[i].value,
                                                           wanted[i].bytes);
  return result;
}

/* pre: the context is current, or lost: then the handle's memory on the device is lost with it. */
static void handle_destroy(struct lade_cublaslt *lt)
{
  if (lt->preference)
    lt->library.cublasLtMatmulPreferenceDestroy(lt->preference);
  if (lt->handle)
    lt->library.cublasLtDestroy(lt->handle);
  lt->preference = NULL;
  lt->handle = NULL;
}

/* Make the handle. pre: the context is current. */
static int handle_make(struct lade_cublaslt *lt, struct lade_error *error)
{
  const char *call = "cublasLtCreate";
  cublaslt_status result = lt->library.cublasLtCreate(&lt->handle);
  if (!result) {
    call = "a preference of cuBLASLt";
    result = preference_make(lt);
  }
  if (!result)
    return 0;
  handle_destroy(lt);
  int status = lade_cublaslt_error_set(&lt->library, call, result, error);
  return status == -ENOMEM ? status : -ENOSYS; /* a library that this driver does not run counts as missing */
}

struct opening {
  struct lade_cublaslt *lt;
  struct lade_error *error;
};

/* Open the first library that works. If none does, report the error of the newest that exists. */
static int opening_run(void *args)
{
  const struct opening *opening = args;
  int status = -ENOENT;
  for (size_t i = 0; i < LADE_COUNT(sonames) && status != -ENOMEM; i++) {
    struct lade_error why;
    int one = lade_cublaslt_library_open(&opening->lt->library, sonames[i], &why);
    if (!one)
      one = handle_make(opening->lt, &why);
    if (!one)
      return 0;
    if (status == -ENOENT)
      status = lade_error_set(opening->error, one, "%s", why.text);
  }
  return status;
}

static int closing_run(void *args)
{
  handle_destroy(args);
  return 0;
}

/* Set key and name, and read the file of choices, if the environment names one. */
static int choices_open(struct lade_cublaslt *lt, struct lade_error *error)
{
  struct lade_device_info info;
  const char *path = getenv("LADE_MATMUL_CHOICES");
  lade_device_get_info(lt->device, &info);
  const char *model = strstr(info.name, ": "); /* follows its number, which changes no bit */
  snprintf(lt->name, sizeof(lt->name), "cuBLASLt %zu, %s", lt->library.version, model ? model + 2 : info.name);
  snprintf(lt->key, sizeof(lt->key), "%.120s, driver %d", lt->name, lade_cuda_get_version(lt->device));
  if (!path || !*path)
    return 0;
  int status = lade_product_choices_read(path, lt->key, error, &lt->choices);
  const size_t used = strlen(lt->name);
  if (!status && lt->choices.list.n)
    snprintf(lt->name + used, sizeof(lt->name) - used, ", choices %08x (%d)", lt->choices.hash, lt->choices.list.n);
  return status;
}

int lade_cublaslt_open(lade_device *device, struct lade_error *error, struct lade_cublaslt **ret_cublaslt)
{
  struct lade_cublaslt *lt = calloc(1, sizeof(*lt));
  if (!lt)
    return lade_error_set(error, -ENOMEM, "no memory for cuBLASLt");
  lt->device = device;
  pthread_mutex_init(&lt->lock, NULL);
  *error = (struct lade_error){0};
  int status = lade_cuda_call(device, opening_run, &(struct opening){lt, error});
  if (status) {
    if (!error->code) /* no library was opened: the context cannot be entered */
      lade_cuda_get_error(device, error);
    lade_cublaslt_close(lt);
    return status;
  }
  status = choices_open(lt, error);
  if (status) {
    lade_cublaslt_close(lt);
    return status;
  }
  *ret_cublaslt = lt;
  return 0;
}

void lade_cublaslt_close(struct lade_cublaslt *lt)
{
  if (!lt)
    return;
  for (int i = 0; i < lt->products.n; i++) {
    product_destroy(lt, lt->products.items[i]);
    free(lt->products.items[i]);
  }
  lade_cuda_call(lt->device, closing_run, lt);
  handle_destroy(lt); /* the handle still exists if the context could not be entered */
  LADE_ARRAY_FREE(&lt->products);
  lade_product_choices_finish(&lt->choices);
  pthread_mutex_destroy(&lt->lock);
  free(lt);
}

const char *lade_cublaslt_name(const struct lade_cublaslt *lt)
{
  return lt->name;
}
