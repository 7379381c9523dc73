/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Check a layout before it is used. The mesh refuses sizes. This file refuses options without an effect under the other
 * options, because such an option is probably a mistake.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/base.h"
#include "parallel/layout.h"

#define LISTED_BYTES 256

static const char *const schedule_names[LADE_N_SCHEDULES] = {"1f1b", "gpipe", "interleaved", "zbh1", "zbh2"};

const char *lade_schedule_name(enum lade_schedule schedule)
{
  LADE_ASSERT(schedule >= 0 && schedule < LADE_N_SCHEDULES);
  return schedule_names[schedule];
}

static int mesh_make(const struct lade_layout_params *given, struct lade_error *error, struct lade_mesh *ret_mesh)
{
  const struct lade_mesh_params sizes = {.struct_size = sizeof(sizes), .world = given->world, .tp = given->tp,
                                         .pp = given->pp, .dp = given->dp, .shard = given->shard,
                                         .n_kv_heads = given->n_kv_heads};
  int status = lade_mesh_init(&sizes, error, ret_mesh);
  if (status)
    return status;
  if (given->rank < 0 || given->rank >= ret_mesh->world)
    return lade_error_set(error, -EINVAL, "rank %d is not one of a world of %d", given->rank, ret_mesh->world);
  return 0;
}

static int sharing_check(const struct lade_layout_params *given, const struct lade_mesh *mesh, struct lade_error *error)
{
  if (given->zero < 0 || given->zero > LADE_ZERO_MAX)
    return lade_error_set(error, -EINVAL, "zero %d: expected 0 to %d", given->zero, LADE_ZERO_MAX);
  if (given->zero && mesh->axes[LADE_AXIS_SHARD].size == 1)
    return lade_error_set(error, -EINVAL, "zero %d over one replica shards nothing: give dp, or shard, of 2 or more",
                          given->zero);
  if (given->shard > 1 && !given->zero)
    return lade_error_set(error, -EINVAL, "shard %d has no effect with zero 0: give zero 1, 2 or 3", given->shard);
  if (given->grad_reduce != LADE_F32 && given->grad_reduce != LADE_BF16)
    return lade_error_set(error, -EINVAL, "gradients are summed over ranks in fp32 or bf16 only");
  if (given->grad_reduce != LADE_F32 && mesh->axes[LADE_AXIS_DP].size == 1)
    return lade_error_set(error, -EINVAL, "grad-reduce bf16 has no effect with one replica: give dp of 2 or more, or "
                          "leave grad-reduce out");
  if (given->is_sequence && mesh->axes[LADE_AXIS_TP].size == 1)
    return lade_error_set(error, -EINVAL, "sequence parallel cuts rows over tensor parallel ranks, and tp is 1: "
                          "give --tp N, or leave sequence parallel out");
  return 0;
}

static int schedule_check(const struct lade_layout_params *given, const struct lade_mesh *mesh,
                          struct lade_error *error)
{
  if ((int)given->schedule < 0 || given->schedule >= LADE_N_SCHEDULES)
    return lade_error_set(error, -EINVAL, "schedule %d: no such", (int)given->schedule);
  const int stages = mesh->axes[LADE_AXIS_PP].size, chunks = LADE_MAX(given->virtual_stages, 1);
  const char *name = lade_schedule_name(given->schedule);
  if (given->virtual_stages < 0)
    return lade_error_set(error, -EINVAL, "virtual stages %d: expected 1 or more", given->virtual_stages);
  if (stages == 1 && given->schedule != LADE_SCHEDULE_1F1B)
    return lade_error_set(error, -EINVAL, "schedule %s orders the stages of a pipeline, and pp is 1", name);
  if (stages == 1 && chunks > 1)
    return lade_error_set(error, -EINVAL, "virtual stages %d divide the stages of a pipeline, and pp is 1", chunks);
  if (given->schedule == LADE_SCHEDULE_INTERLEAVED && chunks == 1)
    return lade_error_set(error, -EINVAL, "schedule interleaved needs 2 virtual stages or more");
  if (given->schedule != LADE_SCHEDULE_INTERLEAVED && chunks > 1)
    return lade_error_set(error, -EINVAL, "virtual stages %d are for schedule interleaved, not for %s", chunks, name);
  return 0;
}

int lade_layout_init(const struct lade_layout_params *params, struct lade_error *error, struct lade_layout *ret_layout)
{
  struct lade_layout_params given;
  struct lade_mesh mesh;
  int status = lade_struct_read("struct lade_layout_params", params, &given, sizeof(given), error);
  if (!status)
    status = mesh_make(&given, error, &mesh);
  if (!status)
    status = sharing_check(&given, &mesh, error);
  if (!status)
    status = schedule_check(&given, &mesh, error);
  if (status)
    return status;
  *ret_layout = (struct lade_layout){.mesh = mesh, .rank = given.rank, .zero = given.zero,
                                     .is_sequence = given.is_sequence, .schedule = given.schedule,
                                     .virtual_stages = LADE_MAX(given.virtual_stages, 1),
                                     .grad_reduce = given.grad_reduce};
  return 0;
}

/* Write "1, 2, 4", the divisors of @n, as many as fit into @text. */
static const char *divisors_list(int64_t n, char *text)
{
  size_t at = 0;
  text[0] = 0;
  for (int64_t size = 1; size <= n && at < LISTED_BYTES - 24; size++) {
    if (n % size == 0)
      at += (size_t)snprintf(text + at, LISTED_BYTES - at, "%s%lld", at ? ", " : "", (long long)size);
  }
  return text;
}

int lade_layout_share_batch(const struct lade_layout *layout, int64_t n_rows, int64_t micro_rows,
                            struct lade_error *error, int64_t *ret_micro_rows, int *ret_n_microbatches)
{
  char list[LISTED_BYTES];
  const int64_t dp = lade_layout_size(layout, LADE_AXIS_DP);
  if (n_rows < 1 || n_rows % dp)
    return lade_error_set(error, -EINVAL, "dp %lld does not divide --batch %lld; sizes that do: %s", (long long)dp,
                          (long long)n_rows, divisors_list(n_rows, list));
  const int64_t own = n_rows / dp, micro = micro_rows ? micro_rows : own;
  if (micro >= 1 && own % micro == 0) {
    *ret_micro_rows = micro;
    *ret_n_microbatches = (int)(own / micro);
    return 0;
  }
  if (dp == 1)
    return lade_error_set(error, -EINVAL, "--micro-batch %lld does not divide --batch %lld; these do: %s",
                          (long long)micro, (long long)n_rows, divisors_list(own, list));
  return lade_error_set(error, -EINVAL, "--micro-batch %lld does not divide the %lld rows that each of %lld replicas "
                        "has of --batch %lld; these do: %s", (long long)micro, (long long)own, (long long)dp,
                        (long long)n_rows, divisors_list(own, list));
}

/* Return @params with other sizes, and without the options that have no effect with these sizes. */
static struct lade_layout_params sizes_set(const struct lade_layout_params *params, int tp, int pp, int dp)
{
  struct lade_layout_params sized = *params;
  sized.world = tp * pp * dp;
  sized.rank = 0;
  sized.tp = tp;
  sized.pp = pp;
  sized.dp = dp;
  if (params->shard && dp % params->shard)
    sized.shard = 0;
  if (dp == 1) {
    sized.zero = sized.shard = 0;
    sized.grad_reduce = LADE_F32;
  }
  if (tp == 1)
    sized.is_sequence = false;
  if (pp == 1) {
    sized.schedule = LADE_SCHEDULE_1F1B;
    sized.virtual_stages = 0;
  }
  return sized;
}

static bool is_possible(const struct lade_layout_params *params, int64_t n_rows, int64_t micro_rows)
{
  struct lade_layout layout;
  int64_t micro;
  int n_microbatches;
  return !lade_layout_init(params, NULL, &layout) &&
         !lade_layout_share_batch(&layout, n_rows, micro_rows, NULL, &micro, &n_microbatches);
}

int lade_layout_shrink(const struct lade_layout_params *params, int world, int64_t n_rows, int64_t micro_rows,
                       struct lade_layout_params *ret_params)
{
  const int tp_max = LADE_MAX(params->tp, 1), pp_max = LADE_MAX(params->pp, 1);
  for (int tp = tp_max; tp > 0; tp--) {
    for (int pp = pp_max; pp > 0; pp--) {
      const bool is_part = tp_max % tp == 0 && pp_max % pp == 0;
      for (int dp = is_part ? world / (tp * pp) : 0; dp > 0; dp--) {
        const struct lade_layout_params sized = sizes_set(params, tp, pp, dp);
        if (!is_possible(&sized, n_rows, micro_rows))
          continue;
        *ret_params = sized;
        return 0;
      }
    }
  }
  return -EINVAL;
}

const char *lade_layout_name(const struct lade_layout *layout, char *name)
{
  static const enum lade_axis shown[] = {LADE_AXIS_TP, LADE_AXIS_PP, LADE_AXIS_DP};
  const size_t room = LADE_LAYOUT_NAME_BYTES;
  size_t at = 0;
  name[0] = 0;
  for (size_t i = 0; i < LADE_COUNT(shown); i++) {
    const int size = lade_layout_size(layout, shown[i]);
    if (size > 1)
      at += (size_t)snprintf(name + at, room - at, "%s%s%d", at ? " " : "", lade_axis_name(shown[i]), size);
  }
  if (!at) {
    snprintf(name, room, "one rank");
    return name;
  }
  if (layout->is_sequence)
    at += (size_t)snprintf(name + at, room - at, ", sequence parallel");
  if (layout->zero)
    at += (size_t)snprintf(name + at, room - at, ", zero %d over %d", layout->zero,
                           lade_layout_size(layout, LADE_AXIS_SHARD));
  if (layout->grad_reduce != LADE_F32)
    at += (size_t)snprintf(name + at, room - at, ", sums in bf16");
  if (lade_layout_size(layout, LADE_AXIS_PP) > 1)
    at += (size_t)snprintf(name + at, room - at, ", %s", lade_schedule_name(layout->schedule));
  if (layout->virtual_stages > 1)
    snprintf(name + at, room - at, " x%d", layout->virtual_stages);
  return name;
}
