/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opening a communicator of the host: one rank by itself, or several through MPI.
 */
#include <errno.h>

#include "parallel/comm/comm_internal.h"

int lade_comm_open_host(const struct lade_comm_params *params, struct lade_error *error, lade_comm **ret_comm)
{
  struct lade_error found = {0};
  bool is_alone = !params->launch || params->launch->world == 1;
  if (params->engine == LADE_COMM_SELF || (params->engine == LADE_COMM_AUTO && is_alone)) {
    if (!is_alone)
      return lade_error_set(error, -EINVAL, "%d ranks cannot be a world of one", params->launch->world);
    return comm_error_pass(lade_comm_open_self(params, &found, ret_comm), &found, error);
  }
  return comm_error_pass(lade_comm_open_mpi(params, &found, ret_comm), &found, error);
}
