/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Resume after a crash: a loop that keeps its weights and its step on a drive. Run it, end it at any moment, and run it
 * again: it continues from the last step that it published.
 *
 *   cc durable.c $(pkg-config --cflags --libs lade) && ./a.out /nvme/scratch 3
 */
#include <lade/store.h>
#include <stdio.h>
#include <stdlib.h>

#define N_TENSORS 4
#define N_ELEMENTS (1 << 16) /* 256 KiB each */

struct state {
  int step;
  float *weights[N_TENSORS];
};

/* Put all tensors of @state at once, wait, and publish them for the next run. */
static int state_publish(lade_tensor_store *store, struct state *state, struct lade_error *error)
{
  static const char *const names[N_TENSORS] = {"wte", "attention", "mlp", "head"};
  lade_tensor_ticket *tickets[N_TENSORS];
  int n = 0, status = 0;
  for (; n < N_TENSORS && !status; n++) {
    const struct lade_tensor_request put = {.struct_size = sizeof(put), .op = LADE_TENSOR_PUT, .name = names[n],
                                            .data = state->weights[n], .bytes = N_ELEMENTS * sizeof(float)};
    status = lade_tensor_store_submit(store, &put, error, &tickets[n]);
    n -= status != 0;
  }
  for (int i = 0; i < n; i++) { /* every ticket is waited for, also after a failure */
    int code = lade_tensor_store_wait(store, tickets[i], status ? NULL : error);
    status = status ? status : code;
  }
  if (!status)
    status = lade_tensor_store_put(store, "step", &state->step, sizeof(state->step), error);
  return status ? status : lade_tensor_store_publish(store, error);
}

/* Get the tensors that an earlier run published; the first run begins at step -1. */
static int state_find(lade_tensor_store *store, struct state *state, struct lade_error *error)
{
  static const char *const names[N_TENSORS] = {"wte", "attention", "mlp", "head"};
  int status = lade_tensor_store_get(store, "step", &state->step, sizeof(state->step), NULL);
  for (int i = 0; i < N_TENSORS && !status; i++) {
    status = lade_tensor_store_get(store, names[i], state->weights[i], N_ELEMENTS * sizeof(float), error);
    for (int k = 0; k < N_ELEMENTS && !status; k++)
      if (state->weights[i][k] != (float)(state->step * 10 + i))
        status = lade_error_set(error, -1, "%s is not of step %d", names[i], state->step);
  }
  return status;
}

static int steps_run(lade_tensor_store *store, struct state *state, int n_steps, struct lade_error *error)
{
  uint64_t bytes;
  int status = lade_tensor_store_find(store, "step", &bytes) ? 0 : state_find(store, state, error);
  if (!status)
    printf("found step %d\n", state->step);
  for (const int end = state->step + n_steps; state->step < end && !status;) {
    state->step++;
    for (int i = 0; i < N_TENSORS; i++)
      for (int k = 0; k < N_ELEMENTS; k++)
        state->weights[i][k] = (float)(state->step * 10 + i); /* here a trainer computes */
    status = state_publish(store, state, error);
    if (!status)
      printf("published step %d\n", state->step);
    fflush(stdout);
  }
  return status;
}

int main(int argc, char **argv)
{
  struct lade_tensor_store_params params = {.struct_size = sizeof(params), .budget_bytes = 4 << 20, .is_durable = true};
  struct lade_error error = {0};
  struct state state = {.step = -1};
  lade_tensor_store *store = NULL;
  if (argc != 3) {
    fprintf(stderr, "usage: durable DIR STEPS\n");
    return 2;
  }
  params.dirs = argv[1];
  int status = lade_tensor_store_open(&params, &error, &store);
  for (int i = 0; i < N_TENSORS && !status; i++) {
    state.weights[i] = aligned_alloc(4096, N_ELEMENTS * sizeof(float)); /* the drive accesses it directly */
    status = state.weights[i] ? 0 : lade_error_set(&error, -1, "no memory");
  }
  if (!status)
    status = steps_run(store, &state, atoi(argv[2]), &error);
  if (status)
    fprintf(stderr, "%s\n", error.text);
  lade_tensor_store_close(store);
  for (int i = 0; i < N_TENSORS; i++)
    free(state.weights[i]);
  return status ? 1 : 0;
}
