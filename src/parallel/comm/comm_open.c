/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opening a communicator: defaults are filled in, and the engine is chosen.
 *
 * NCCL needs a communicator of the host, its control (comm_nccl.c). So the engines of the host are opened by a function
 * of their own (comm_open_host.c), which opens the control too.
 */
#include <errno.h>

#include "parallel/comm/comm_internal.h"

int lade_comm_open(const struct lade_comm_params *params, struct lade_error *error, lade_comm **ret_comm)
{
  struct lade_comm_params own;
  struct lade_error found = {0};
  int status = lade_struct_read("struct lade_comm_params", params, &own, sizeof(own), error);
  if (status)
    return status;
  if (!own.kernels)
    return lade_error_set(error, -EINVAL, "a communicator needs a table of kernels");
  own.staging_bytes = own.staging_bytes ? lade_align_up(own.staging_bytes, 4096) : LADE_COMM_STAGING_BYTES;
  if (own.engine == LADE_COMM_NCCL && own.control) {
    own.timeout_ms = own.timeout_ms ? own.timeout_ms : own.control->params.timeout_ms;
    own.log = own.log ? own.log : own.control->params.log;
    own.log_user = own.log_user ? own.log_user : own.control->params.log_user;
  }
  own.timeout_ms = own.timeout_ms > 0 ? own.timeout_ms : LADE_COMM_TIMEOUT_MS;
  own.is_checked = own.is_checked || LADE_CHECK_FULL;
  if (own.engine == LADE_COMM_NCCL)
    return comm_error_pass(lade_comm_open_nccl(&own, &found, ret_comm), &found, error);
  return lade_comm_open_host(&own, error, ret_comm);
}
