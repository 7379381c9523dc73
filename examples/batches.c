/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Train on the program's own batches: a function fills them, and no file is read. Each row counts with a stride of one
 * to four, and the model learns to continue it. The program also compiles as C++.
 *
 *   cc batches.c $(pkg-config --cflags --libs lade) && ./a.out [STEPS]
 */
#include <lade/train.h>
#include <stdio.h>
#include <stdlib.h>

#define VOCABULARY 64

/* Fill a batch as a function of its numbers alone, so a resumed run gets the same batches. Validation rows differ. */
static int batch_fill(void *user, const struct lade_batch *batch, struct lade_error *error)
{
  const int64_t max_stride = *(const int64_t *)user;
  (void)error; /* nothing fails here; a loader would write its line there and return a negative errno */
  for (int64_t row = 0; row < batch->n_rows; row++) {
    int64_t number = 1000 * batch->number + batch->first_row + row, stride = 1 + number % max_stride;
    for (int64_t t = 0; t < batch->seq; t++) {
      int64_t at = row * batch->seq + t, value = number * (batch->is_valid ? 7 : 5) + t * stride;
      batch->tokens[at] = (int32_t)(value % VOCABULARY);
      batch->targets[at] = t < 2 ? -1 : (int32_t)((value + stride) % VOCABULARY); /* two tokens show the stride */
    }
  }
  return 0;
}

static int train(lade_trainer *trainer, long steps, struct lade_error *error)
{
  double before, after;
  int status = lade_trainer_eval(trainer, &before, error);
  for (long step = 0; !status && step < steps; step++)
    status = lade_trainer_step(trainer, NULL, error);
  if (!status)
    status = lade_trainer_eval(trainer, &after, error);
  if (!status)
    printf("validation loss %.4f before, %.4f after %ld steps\n", before, after, steps);
  return status;
}

int main(int argc, char **argv)
{
  int64_t max_stride = 4;
  struct lade_run_params run;
  struct lade_trainer_params params;
  struct lade_error error = {0};
  lade_trainer *trainer;
  long steps = argc > 1 ? strtol(argv[1], NULL, 10) : 200;
  lade_run_params_init(&run, sizeof(run));
  run.model = "nano";
  run.vocabulary = VOCABULARY;
  run.batch = 8;
  run.seq = 32;
  lade_trainer_params_init(&params, sizeof(params));
  params.run = &run;
  params.batch = batch_fill;
  params.batch_user = &max_stride;
  params.n_valid_batches = 4;
  params.steps = steps;
  params.warmup = 10;
  int status = lade_trainer_open(&params, &error, &trainer);
  if (!status) {
    status = train(trainer, steps, &error);
    lade_trainer_close(trainer);
  }
  if (status)
    fprintf(stderr, "%s\n", error.text);
  return status ? 1 : 0;
}
