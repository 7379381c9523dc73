/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Execute a stage dry: a device with exactly the planned peak, an executor over both programs, one step. The program
 * has as many microbatches as its peak needs, so the step is that of these, of the stage alone: a receive takes the
 * time of its bytes and waits for no other rank.
 */
#include <errno.h>

#include "base/base.h"
#include "run/dry_stage.h"
#include "run/executor.h"

static int device_open(const struct lade_layout_job *job, const struct lade_plan *plan, struct lade_error *error,
                       lade_device **ret_device)
{
  const struct lade_machine *machine = &job->cluster->device;
  const struct lade_dry_device_params params = {.struct_size = sizeof(params),
                                                .capacity_bytes = plan->peak_bytes[LADE_DEVICE],
                                                .chunk_bytes = LADE_STAGE_CHUNK_BYTES, .to_host = machine->to_host,
                                                .to_device = machine->to_device};
  return lade_device_open_dry(&params, error, ret_device);
}

static int step_run(lade_executor *executor, lade_device *device, const struct lade_plan *plan,
                    struct lade_error *error, struct lade_dry_stage *ret_dry)
{
  const struct lade_step step = {.lr = 1e-4f, .loss_scale = 1};
  struct lade_step_result result;
  struct lade_device_info info;
  int status = lade_executor_step(executor, &step, &result, error);
  if (status)
    return status;
  lade_device_get_info(device, &info);
  if (info.peak_bytes != plan->peak_bytes[LADE_DEVICE])
    return lade_error_set(error, -EBADMSG, "a dry step took %llu bytes of device memory, and %llu were planned",
                          (unsigned long long)info.peak_bytes, (unsigned long long)plan->peak_bytes[LADE_DEVICE]);
  *ret_dry = (struct lade_dry_stage){info.peak_bytes, result.wall_ns};
  return 0;
}

int lade_dry_stage_run(const struct lade_layout_job *job, const struct lade_stage_build *build,
                       struct lade_error *error, struct lade_dry_stage *ret_dry)
{
  struct lade_plan plan = {.train = build->train, .eval = build->eval, .residency = build->residency,
                           .predicted_ns = build->train->predicted_ns};
  lade_device *device = NULL;
  lade_executor *executor = NULL;
  LADE_ASSERT(build->eval);
  for (int space = 0; space < LADE_N_SPACES; space++)
    plan.peak_bytes[space] = LADE_MAX(build->train->peak_bytes[space], build->eval->peak_bytes[space]);
  int status = device_open(job, &plan, error, &device);
  if (status)
    return status;
  const struct lade_executor_params params = {.struct_size = sizeof(params), .plan = &plan, .device = device,
                                              .kernels = job->kernels};
  status = lade_executor_create(&params, error, &executor);
  if (!status)
    status = step_run(executor, device, &plan, error, ret_dry);
  lade_executor_destroy(executor);
  lade_device_close(device);
  return status;
}
