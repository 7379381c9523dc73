/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Matrix products by oneDNN: a table of primitives, one per shape, made on first use under a mutex and kept until the
 * process ends. MAX_PRIMITIVES bounds it; past that a shape is refused.
 *
 * Each product runs on the calling thread alone. The number of OpenMP threads is a property of the calling thread and
 * is set to one before any primitive is made or run. So no team ever exists, and bits do not depend on the pool's
 * number of threads. Scratch is oneDNN's own.
 */
#include <dnnl.h>
#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>

#include "kernels/host/matmul/matmul_onednn.h"

/* OpenMP API 3.2.1; declared here because its header belongs to one compiler. */
void omp_set_num_threads(int n_threads);

#define MAX_PRIMITIVES 512
#define EXPORT __attribute__((visibility("default")))

EXPORT lade_onednn_prepare_fn lade_onednn_prepare;
EXPORT lade_onednn_run_fn lade_onednn_run;

/* A primitive with the descriptors of its operands. */
struct onednn_product {
  struct lade_onednn_block shape;
  dnnl_primitive_t primitive;
  dnnl_memory_desc_t a, b, bias, c;
};

static struct {
  pthread_mutex_t mutex;
  dnnl_engine_t engine;
  struct onednn_product products[MAX_PRIMITIVES];
  int n_products;
} cache = {.mutex = PTHREAD_MUTEX_INITIALIZER};

static bool shape_equal(const struct lade_onednn_block *x, const struct lade_onednn_block *y)
{
  const struct lade_matmul_args *p = &x->args, *q = &y->args;
  return p->layout == q->layout && p->dtype == q->dtype && p->out == q->out && p->m == q->m && p->n == q->n &&
         p->k == q->k && !p->bias == !q->bias && x->a_stride == y->a_stride;
}

static dnnl_data_type_t type_of(enum lade_dtype dtype)
{
  return dtype == LADE_BF16 ? dnnl_bf16 : dnnl_f32;
}

static bool descriptors_make(struct onednn_product *product)
{
  const struct lade_matmul_args *shape = &product->shape.args;
  dnnl_dims_t a = {shape->m, shape->k}, b = {shape->k, shape->n}, bias = {1, shape->n}, c = {shape->m, shape->n};
  dnnl_dims_t rows = {product->shape.a_stride, 1}, columns = {1, product->shape.a_stride};
  return dnnl_memory_desc_init_by_strides(&product->a, 2, a, type_of(shape->dtype),
                                          shape->layout == LADE_TN ? columns : rows) == dnnl_success &&
         dnnl_memory_desc_init_by_tag(&product->b, 2, b, type_of(shape->dtype),
                                      shape->layout == LADE_NT ? dnnl_ba : dnnl_ab) == dnnl_success &&
         dnnl_memory_desc_init_by_tag(&product->bias, 2, bias, type_of(shape->dtype), dnnl_ab) == dnnl_success &&
         dnnl_memory_desc_init_by_tag(&product->c, 2, c, type_of(shape->out), dnnl_ab) == dnnl_success;
}

static int primitive_make(struct onednn_product *product)
{
  dnnl_matmul_desc_t desc;
  dnnl_primitive_desc_t primitive_desc;
  if (!descriptors_make(product) ||
      dnnl_matmul_desc_init(&desc, &product->a, &product->b, product->shape.args.bias ? &product->bias : NULL,
                            &product->c) != dnnl_success)
    return -ENOTSUP;
  dnnl_status_t status = dnnl_primitive_desc_create(&primitive_desc, &desc, NULL, cache.engine, NULL);
  if (status != dnnl_success)
    return status == dnnl_out_of_memory ? -ENOMEM : -ENOTSUP;
  status = dnnl_primitive_create(&product->primitive, primitive_desc);
  dnnl_primitive_desc_destroy(primitive_desc);
  return status == dnnl_success ? 0 : status == dnnl_out_of_memory ? -ENOMEM : -ENOTSUP;
}

/* Find the product of a shape; make it if it is new. pre: the mutex is held. */
static int product_find(const struct lade_onednn_block *shape, struct onednn_product **ret_product)
{
  for (int i = 0; i < cache.n_products; i++) {
    if (shape_equal(&cache.products[i].shape, shape)) {
      *ret_product = &cache.products[i];
      return 0;
    }
  }
  if (cache.n_products == MAX_PRIMITIVES)
    return -ENOTSUP;
  if (!cache.engine && dnnl_engine_create(&cache.engine, dnnl_cpu, 0) != dnnl_success)
    return -ENOTSUP;
  struct onednn_product *product = &cache.products[cache.n_products];
  *product = (struct onednn_product){.shape = *shape};
  int error = primitive_make(product);
  if (error)
    return error;
  cache.n_products++;
  *ret_product = product;
  return 0;
}

static int product_get(const struct lade_onednn_block *shape, struct onednn_product **ret_product)
{
  omp_set_num_threads(1);
  if (shape->args.dtype != LADE_F32 && shape->args.dtype != LADE_BF16)
    return -ENOTSUP;
  pthread_mutex_lock(&cache.mutex);
  int error = product_find(shape, ret_product);
  pthread_mutex_unlock(&cache.mutex);
  return error;
}

int lade_onednn_prepare(const struct lade_onednn_block *block)
{
  struct onednn_product *product;
  return product_get(block, &product);
}

/* Wrap the operands, run, unwrap. */
static int product_run(const struct onednn_product *product, dnnl_stream_t stream, const struct lade_matmul_args *args)
{
  const dnnl_memory_desc_t *descs[] = {&product->a, &product->b, &product->c, &product->bias};
  void *const data[] = {(void *)args->a, (void *)args->b, args->c, (void *)args->bias};
  static const int names[] = {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST, DNNL_ARG_BIAS};
  dnnl_exec_arg_t operands[4];
  int n = 0, n_wanted = args->bias ? 4 : 3;
  dnnl_status_t status = dnnl_success;
  while (n < n_wanted && status == dnnl_success) {
    operands[n].arg = names[n];
    status = dnnl_memory_create(&operands[n].memory, descs[n], cache.engine, data[n]);
    n += status == dnnl_success;
  }
  if (status == dnnl_success)
    status = dnnl_primitive_execute(product->primitive, stream, n, operands);
  if (status == dnnl_success)
    status = dnnl_stream_wait(stream);
  while (n)
    dnnl_memory_destroy(operands[--n].memory);
  return status == dnnl_success ? 0 : -ENOMEM;
}

int lade_onednn_run(const struct lade_onednn_block *block)
{
  struct onednn_product *product;
  dnnl_stream_t stream;
  int error = product_get(block, &product);
  if (error)
    return error;
  if (dnnl_stream_create(&stream, cache.engine, dnnl_stream_default_flags) != dnnl_success)
    return -ENOMEM;
  error = product_run(product, stream, &block->args);
  dnnl_stream_destroy(stream);
  return error;
}
