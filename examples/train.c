/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Train the preset `nano` on a text file within a budget, and print the loss.
 *
 *   cc train.c $(pkg-config --cflags --libs lade) && ./a.out TEXT [BUDGET-MIB [STEPS]]
 *
 * Losses and digest are the same at every budget, bit for bit.
 */
#include <lade/train.h>
#include <stdio.h>
#include <stdlib.h>

#define MIB (1024.0 * 1024.0)

static int train(lade_trainer *trainer, int64_t steps, struct lade_error *error)
{
  struct lade_trainer_report report = {.struct_size = sizeof(report)};
  double loss;
  for (int64_t step = 0; step < steps; step++) {
    int status = lade_trainer_step(trainer, &report, error);
    if (status)
      return status;
    if (step % 20 == 0 || step == steps - 1)
      printf("step %4lld  loss %.4f  lr %.1e  %.1f ms\n", (long long)report.step, report.loss, report.lr,
             (double)report.wall_ns / 1e6);
  }
  int status = lade_trainer_eval(trainer, &loss, error);
  if (!status)
    printf("validation loss %.4f\n", loss);
  return status;
}

static void summary_print(lade_trainer *trainer)
{
  struct lade_trainer_info info = {.struct_size = sizeof(info)};
  if (lade_trainer_get_info(trainer, &info))
    return;
  printf("device: budget %.1f MiB, planned peak %.1f MiB, measured peak %.1f MiB; host %.1f MiB\n",
         (double)info.budget_bytes / MIB, (double)info.planned_peak_bytes / MIB,
         (double)info.measured_peak_bytes / MIB, (double)info.host_bytes / MIB);
  printf("digest of all losses: %016llx\n", (unsigned long long)info.loss_digest);
}

int main(int argc, char **argv)
{
  struct lade_run_params run;
  struct lade_trainer_params params;
  struct lade_error error = {0};
  lade_trainer *trainer;
  if (argc < 2) {
    fprintf(stderr, "usage: %s TEXT [BUDGET-MIB [STEPS]]\n", argv[0]);
    return 2;
  }
  const char *text = argv[1];
  lade_run_params_init(&run, sizeof(run));
  run.model = "nano";
  if (argc > 2) {
    run.budget.kind = LADE_BUDGET_BYTES;
    run.budget.bytes = (uint64_t)(strtod(argv[2], NULL) * MIB);
  }
  lade_trainer_params_init(&params, sizeof(params));
  params.run = &run;
  params.data = &text;
  params.n_data = 1;
  params.steps = argc > 3 ? strtol(argv[3], NULL, 10) : 200;
  params.warmup = params.steps / 10;
  int status = lade_trainer_open(&params, &error, &trainer);
  if (!status) {
    status = train(trainer, params.steps, &error);
    if (!status)
      summary_print(trainer);
    lade_trainer_close(trainer);
  }
  if (status)
    fprintf(stderr, "%s\n", error.text);
  return status ? 1 : 0;
}
