/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plan a model at falling budgets on a described GPU, and print the memory and the time of each plan. The program
 * allocates and runs nothing, so a laptop can plan models that it could not hold.
 *
 *   cc plan.c $(pkg-config --cflags --libs lade) && ./a.out [MODEL [MACHINE]]
 */
#include <lade/plan.h>
#include <stdio.h>

#define MIB (1024.0 * 1024.0)

static void ledger_print(const struct lade_plan_report *plan)
{
  for (int owner = 0; owner < LADE_N_OWNERS; owner++) {
    uint64_t device = plan->owner_bytes[LADE_DEVICE][owner], host = plan->owner_bytes[LADE_HOST][owner];
    if (device || host)
      printf("  %-22s %12.1f %12.1f\n", lade_owner_name((enum lade_owner)owner), (double)device / MIB,
             (double)host / MIB);
  }
  printf("  %-22s %12.1f %12.1f\n", "together", (double)plan->peak_bytes[LADE_DEVICE] / MIB,
         (double)plan->peak_bytes[LADE_HOST] / MIB);
}

int main(int argc, char **argv)
{
  static const double percents[] = {100, 60, 40, 25, 10};
  struct lade_run_params run;
  struct lade_plan_report plan = {.struct_size = sizeof(plan)};
  struct lade_error error = {0};
  lade_run_params_init(&run, sizeof(run));
  run.model = argc > 1 ? argv[1] : "gpt2-124m";
  run.machine = argc > 2 ? argv[2] : "rtx4090-24g";
  printf("%s on %s: six plans, each searched anew, which takes seconds\n\n", run.model, run.machine);
  printf("   budget        MiB    peak MiB    host MiB     step ms\n");
  for (unsigned i = 0; i <= sizeof(percents) / sizeof(percents[0]); i++) {
    int is_min = i == sizeof(percents) / sizeof(percents[0]);
    run.budget.kind = is_min ? LADE_BUDGET_MIN : LADE_BUDGET_PERCENT;
    run.budget.percent = is_min ? 0 : percents[i];
    fflush(stdout); /* also into a pipe */
    int status = lade_plan_find(&run, &plan, &error);
    if (status) {
      fprintf(stderr, "%s\n", error.text);
      return 1;
    }
    printf(is_min ? "  minimum " : "%7.0f %% ", run.budget.percent);
    printf("%10.1f  ", (double)plan.budget_bytes[LADE_DEVICE] / MIB);
    if (plan.has_plan)
      printf("%10.1f  %10.1f  %10.2f\n", (double)plan.peak_bytes[LADE_DEVICE] / MIB,
             (double)plan.peak_bytes[LADE_HOST] / MIB, (double)plan.step_ns / 1e6);
    else
      printf("does not fit\n");
  }
  printf("\n%s: %lld parameters; smallest budget %.1f MiB, nothing can do with less than %.1f MiB\n", run.model,
         (long long)plan.n_params, (double)plan.min_budget_bytes / MIB, (double)plan.lower_bound_bytes / MIB);
  printf("\nat the minimum, MiB            device         host\n");
  ledger_print(&plan);
  return 0;
}
