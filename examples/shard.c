/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fit a vector to a mean by data parallel AdamW with sharded optimizer state (ZeRO stage 1). Each rank has its own
 * data, all weights, and the optimizer state of its block.
 *
 *   cc shard.c $(pkg-config --cflags --libs lade) && lade launch -n 2 -- ./a.out
 */
#include <errno.h>
#include <lade/adam.h>
#include <lade/shard.h>
#include <stdio.h>
#include <stdlib.h>

#define N 100000
#define STEPS 400

struct trainer {
  lade_ranks *ranks;
  lade_shard *shard;
  lade_adam *adam;
  struct lade_ranks_info job;
  struct lade_shard_info layout;
  struct lade_shard_block block;
  struct lade_adam_shard own; /* this rank's block, and its state */
  float *grads, *own_grad;    /* gradients of all weights, and of the block */
  unsigned short *weights;    /* BF16 */
  unsigned long long state_bytes;
};

/* Return element @i of this rank's data; the weights are fitted to the mean over ranks. */
static float data_at(const struct trainer *t, int i)
{
  float spread = t->job.size > 1 ? 2 * (float)t->job.rank / (float)(t->job.size - 1) - 1 : 0;
  return (float)(i % 201 - 100) / 100 + spread;
}

static float weight_at(const struct trainer *t, int i)
{
  union {
    unsigned bits;
    float value;
  } wide = {.bits = (unsigned)t->weights[i] << 16};
  return wide.value;
}

static int ranks_join(struct trainer *t, struct lade_error *error)
{
  t->job.struct_size = sizeof(t->job);
  t->layout.struct_size = sizeof(t->layout);
  t->block.struct_size = sizeof(t->block);
  int status = lade_ranks_open(NULL, error, &t->ranks);
  if (!status)
    status = lade_ranks_get_info(t->ranks, &t->job, error);
  if (!status)
    status = lade_shard_create(t->ranks, N, error, &t->shard);
  if (!status)
    status = lade_shard_get_info(t->shard, &t->layout, error);
  if (!status)
    status = lade_shard_get_block(t->shard, t->job.rank, &t->block, error);
  return status;
}

/* Allocate all weights and gradients, and the state of the block. */
static int memory_take(struct trainer *t, struct lade_error *error)
{
  struct lade_adam_bytes bytes = {.struct_size = sizeof(bytes)};
  void *weights = NULL, *grads = NULL;
  t->own = (struct lade_adam_shard){.struct_size = sizeof(t->own), .dtype = LADE_BF16, .grad_dtype = LADE_F32,
                                    .n_elements = (int64_t)t->layout.block_elements,
                                    .first_element = t->block.first_element};
  int status = lade_adam_get_bytes(&t->own, &bytes, error);
  if (!status)
    status = lade_ranks_alloc(t->ranks, t->layout.padded_elements * sizeof(*t->weights), error, &weights);
  t->weights = weights;
  if (!status)
    status = lade_ranks_alloc(t->ranks, t->layout.padded_elements * sizeof(*t->grads), error, &grads);
  t->grads = grads;
  if (status)
    return status;
  t->own_grad = malloc(bytes.grad);
  t->own.grad = t->own_grad;
  t->own.weight = t->weights + t->block.first_element;
  t->own.residual = malloc(bytes.residual);
  t->own.m = malloc(bytes.m);
  t->own.v = malloc(bytes.v);
  t->state_bytes = bytes.residual + bytes.m + bytes.v;
  if (!t->own_grad || !t->own.residual || !t->own.m || !t->own.v)
    return lade_error_set(error, -ENOMEM, "out of memory");
  return lade_adam_create(0, error, &t->adam);
}

static void trainer_finish(struct trainer *t)
{
  lade_adam_destroy(t->adam);
  free(t->own.v);
  free(t->own.m);
  free(t->own.residual);
  free(t->own_grad);
  lade_ranks_free(t->ranks, t->grads);
  lade_ranks_free(t->ranks, t->weights);
  lade_shard_destroy(t->shard);
  lade_ranks_close(t->ranks);
}

/* Set the weights to zero at all ranks. */
static int weights_begin(struct trainer *t, struct lade_error *error)
{
  float *master = calloc(t->layout.block_elements, sizeof(*master));
  if (!master)
    return lade_error_set(error, -ENOMEM, "out of memory");
  int status = lade_adam_set(t->adam, &t->own, master, error);
  free(master);
  return status ? status : lade_shard_gather(t->shard, LADE_BF16, t->own.weight, t->weights, error);
}

/* Compute the gradient of half the squared distance from this rank's data, and its mean over all ranks in @ret_loss. */
static int gradient_find(struct trainer *t, float *ret_loss, struct lade_error *error)
{
  double sum = 0;
  for (int i = 0; i < N; i++) {
    t->grads[i] = weight_at(t, i) - data_at(t, i);
    sum += 0.5 * (double)t->grads[i] * (double)t->grads[i];
  }
  float loss = (float)(sum / N / t->job.size);
  int status = lade_ranks_sum(t->ranks, &loss, 1, error);
  *ret_loss = loss;
  return status;
}

static int train(struct trainer *t, struct lade_error *error)
{
  struct lade_adam_step step = {.struct_size = sizeof(step), .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8,
                                .grad_scale = 1.0 / t->job.size};
  int status = weights_begin(t, error);
  for (int i = 0; i <= STEPS && !status; i++) {
    float loss = 0;
    step.step = (unsigned)i;
    step.lr = 0.02 * (STEPS - i) / STEPS;
    status = gradient_find(t, &loss, error);
    if (!status && i % 100 == 0 && t->job.rank == 0)
      printf("step %3d: loss %.4f\n", i, loss);
    if (!status)
      status = lade_shard_reduce(t->shard, LADE_F32, t->grads, t->own_grad, error);
    if (!status)
      status = lade_adam_update(t->adam, &t->own, &step, error);
    if (!status)
      status = lade_shard_gather(t->shard, LADE_BF16, t->own.weight, t->weights, error);
  }
  return status;
}

int main(void)
{
  struct lade_error error = {0};
  struct trainer t = {0};
  int status = ranks_join(&t, &error);
  if (!status)
    status = memory_take(&t, &error);
  if (!status)
    status = train(&t, &error);
  if (status)
    fprintf(stderr, "%s\n", error.text);
  else
    printf("rank %d of %d: elements %llu to %llu, %.2f bytes of state per parameter of all\n", t.job.rank, t.job.size,
           (unsigned long long)t.block.first_element, (unsigned long long)(t.block.first_element + t.block.n_elements),
           (double)t.state_bytes / N);
  trainer_finish(&t);
  return status ? 1 : 0;
}
