/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fit a vector to a target by AdamW, with 8-bit moments and a 24-bit master. Weight and state take 5 bytes per
 * parameter; in FP32 they would take 12.
 *
 *   cc adam.c $(pkg-config --cflags --libs lade) && ./a.out
 */
#include <lade/adam.h>
#include <stdio.h>
#include <stdlib.h>

#define N 100000
#define STEPS 400

static float target_at(int i)
{
  return (float)(i % 201 - 100) / 100;
}

/* Allocate all arrays of @shard; shard_free frees them. Return the bytes of weight and state, or 0 without memory. */
static unsigned long long shard_alloc(struct lade_adam_shard *shard, float **ret_grad)
{
  struct lade_adam_bytes bytes = {.struct_size = sizeof(bytes)};
  if (lade_adam_get_bytes(shard, &bytes, NULL))
    return 0;
  *ret_grad = malloc(bytes.grad);
  shard->grad = *ret_grad;
  shard->weight = malloc(bytes.weight);
  shard->residual = malloc(bytes.residual);
  shard->m = malloc(bytes.m);
  shard->v = malloc(bytes.v);
  shard->m_scales = malloc(bytes.m_scales);
  shard->v_scales = malloc(bytes.v_scales);
  if (!*ret_grad || !shard->weight || !shard->residual || !shard->m || !shard->v || !shard->m_scales
      || !shard->v_scales)
    return 0;
  return bytes.weight + bytes.residual + bytes.m + bytes.v + bytes.m_scales + bytes.v_scales;
}

static void shard_free(struct lade_adam_shard *shard, float *grad)
{
  free(grad);
  free(shard->weight);
  free(shard->residual);
  free(shard->m);
  free(shard->v);
  free(shard->m_scales);
  free(shard->v_scales);
}

/* Write the gradient of half the squared distance, which is the distance. Return the mean of its squares. */
static double gradient_fill(const float *master, float *grad)
{
  double sum = 0;
  for (int i = 0; i < N; i++) {
    grad[i] = master[i] - target_at(i);
    sum += (double)grad[i] * (double)grad[i];
  }
  return sum / N;
}

static int fit(lade_adam *adam, const struct lade_adam_shard *shard, float *master, float *grad,
               struct lade_error *error)
{
  struct lade_adam_step step = {
      .struct_size = sizeof(step), .seed = 1, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8};
  int status = lade_adam_set(adam, shard, master, error);
  for (int i = 0; i <= STEPS && !status; i++) {
    step.step = (unsigned)i;
    step.lr = 0.02 * (STEPS - i) / STEPS;
    status = lade_adam_get(adam, shard, master, NULL, NULL, error);
    double distance = gradient_fill(master, grad);
    if (i % 100 == 0)
      printf("step %3d: mean squared distance %.2e\n", i, distance);
    if (!status)
      status = lade_adam_update(adam, shard, &step, error);
  }
  return status;
}

int main(void)
{
  struct lade_adam_shard shard = {.struct_size = sizeof(shard), .dtype = LADE_BF16, .grad_dtype = LADE_F32,
                                  .moments = LADE_MOMENTS_8BIT, .master = LADE_MASTER_24BIT, .n_elements = N};
  struct lade_error error = {0};
  lade_adam *adam = NULL;
  float *grad = NULL, *master = calloc(N, sizeof(*master));
  unsigned long long bytes = shard_alloc(&shard, &grad);
  if (!bytes || !master || lade_adam_create(0, &error, &adam) || fit(adam, &shard, master, grad, &error)) {
    fprintf(stderr, "%s\n", error.text[0] ? error.text : "out of memory");
    return 1;
  }
  printf("%.2f bytes per parameter, its weight included\n", (double)bytes / N);
  lade_adam_destroy(adam);
  shard_free(&shard, grad);
  free(master);
  return 0;
}
