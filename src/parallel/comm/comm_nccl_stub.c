/* SPDX-License-Identifier: Apache-2.0 */
/* NCCL in a build without CUDA: opening returns an error. */
#include <errno.h>

#include "parallel/comm/comm_internal.h"

int lade_comm_open_nccl(const struct lade_comm_params *params, struct lade_error *error, lade_comm **ret_comm)
{
  return lade_error_set(error, -ENOSYS, "this build has no CUDA, and so no NCCL; configure with -Dcuda=enabled");
}
