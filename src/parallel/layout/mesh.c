/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Compute and check a mesh.
 *
 * The four axes that multiply have strides 1, tp, tp*cp, tp*cp*dp. The axes inside dp start at dp's stride: a run of ep
 * (or shard) neighbours has that stride, and the axis across the runs has ep (or shard) times it. So one formula serves
 * all axes. Rejected: a table of members, which costs world * axes entries in every rank of a large job.
 *
 * A size that does not divide is refused with the list of divisors, because the user must choose one of them. Long
 * lists are shortened: the useful sizes are near the requested one or near the ends.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/base.h"
#include "parallel/mesh.h"

#define LISTED_MAX 24 /* sizes in one message */

static const char *const axis_names[LADE_N_AXES] = {"tp", "cp", "ep", "dp", "pp", "expert-dp", "shard", "replicate",
                                                   "embed", "key"};

/* Write "1, 2, 4 or 8", the divisors of @n from 1 to @max, into @text. */
static char *divisors_list(int64_t n, int64_t max, char *text, size_t text_bytes)
{
  int64_t found[LISTED_MAX];
  int n_found = 0;
  for (int64_t size = 1; size <= LADE_MIN(n, max); size++) {
    if (n % size)
      continue;
    if (n_found == LISTED_MAX) /* keep the larger ones, and 1 */
      memmove(&found[1], &found[2], (LISTED_MAX - 2) * sizeof(*found));
    found[n_found == LISTED_MAX ? LISTED_MAX - 1 : n_found++] = size;
  }
  size_t at = 0;
  text[0] = 0;
  for (int i = 0; i < n_found && at < text_bytes; i++)
    at += (size_t)snprintf(text + at, text_bytes - at, "%s%lld", i == 0 ? "" : i == n_found - 1 ? " or " : ", ",
                           (long long)found[i]);
  return text;
}

static int size_refuse(struct lade_error *error, const char *axis, int64_t size, const char *whole, int64_t n)
{
  char list[256];
  return lade_error_set(error, -EINVAL, "%s %lld does not divide %s %lld; sizes that do: %s", axis, (long long)size,
                        whole, (long long)n, divisors_list(n, LADE_WORLD_MAX, list, sizeof(list)));
}

static int sizes_check(const struct lade_mesh_params *params, struct lade_error *error)
{
  const struct {
    const char *name;
    int size;
  } sizes[] = {{"world", params->world}, {"tp", params->tp}, {"cp", params->cp},      {"ep", params->ep},
               {"dp", params->dp},       {"pp", params->pp}, {"shard", params->shard}};
  for (size_t i = 0; i < LADE_COUNT(sizes); i++) {
    if (sizes[i].size < 0 || sizes[i].size > LADE_WORLD_MAX)
      return lade_error_set(error, -EINVAL, "%s %d is out of range; expected 1 to %d", sizes[i].name, sizes[i].size,
                            LADE_WORLD_MAX);
  }
  return 0;
}

/* Divide the world by tp, cp and pp in turn; the rest is dp, or must equal it. */
static int world_divide(const struct lade_mesh_params *given, struct lade_mesh_params *sizes, struct lade_error *error)
{
  const struct {
    const char *name;
    int size;
  } parts[] = {{"tp", sizes->tp}, {"cp", sizes->cp}, {"pp", sizes->pp}};
  int left = given->world;
  for (size_t i = 0; i < LADE_COUNT(parts); i++) {
    if (left % parts[i].size)
      return size_refuse(error, parts[i].name, parts[i].size,
                         left == given->world ? "the world of" : "what other axes leave of the world,", left);
    left /= parts[i].size;
  }
  if (given->dp && given->dp != left)
    return lade_error_set(error, -EINVAL, "tp %d x cp %d x dp %d x pp %d is %lld ranks, and the world has %d; dp %d "
                          "would use them all", sizes->tp, sizes->cp, given->dp, sizes->pp,
                          (long long)sizes->tp * sizes->cp * given->dp * sizes->pp, given->world, left);
  sizes->dp = left;
  return 0;
}

static int world_multiply(struct lade_mesh_params *sizes, struct lade_error *error)
{
  sizes->dp = LADE_MAX(1, sizes->dp);
  int64_t world = 1;
  const int parts[] = {sizes->tp, sizes->cp, sizes->dp, sizes->pp};
  for (size_t i = 0; i < LADE_COUNT(parts); i++) {
    world *= parts[i]; /* below 10^12: each factor is at most 10^6, and so was the product */
    if (world > LADE_WORLD_MAX)
      return lade_error_set(error, -EINVAL, "tp %d x cp %d x dp %d x pp %d is more than %d ranks", sizes->tp, sizes->cp,
                            sizes->dp, sizes->pp, LADE_WORLD_MAX);
  }
  sizes->world = (int)world;
  return 0;
}

static void axis_set(struct lade_mesh *mesh, enum lade_axis axis, int size, int stride)
{
  LADE_ASSERT(size >= 1 && stride >= 1 && (int64_t)(size - 1) * stride < mesh->world);
  mesh->axes[axis].size = size;
  mesh->axes[axis].stride = stride;
}

/* Return the number of tensor parallel ranks that hold the same KV head. */
static int kv_ranks(const struct lade_mesh_params *sizes)
{
  const bool is_shared = sizes->n_kv_heads > 0 && sizes->tp % sizes->n_kv_heads == 0;
  return is_shared ? (int)(sizes->tp / sizes->n_kv_heads) : 1;
}

static void axes_fill(struct lade_mesh *mesh, const struct lade_mesh_params *sizes)
{
  int data = sizes->tp * sizes->cp; /* the stride of dp */
  mesh->world = sizes->world;
  axis_set(mesh, LADE_AXIS_TP, sizes->tp, 1);
  axis_set(mesh, LADE_AXIS_CP, sizes->cp, sizes->tp);
  axis_set(mesh, LADE_AXIS_DP, sizes->dp, data);
  axis_set(mesh, LADE_AXIS_PP, sizes->pp, data * sizes->dp);
  axis_set(mesh, LADE_AXIS_EP, sizes->ep, data);
  axis_set(mesh, LADE_AXIS_EXPERT_DP, sizes->dp / sizes->ep, data * sizes->ep);
  axis_set(mesh, LADE_AXIS_SHARD, sizes->shard, data);
  axis_set(mesh, LADE_AXIS_REPLICATE, sizes->dp / sizes->shard, data * sizes->shard);
  axis_set(mesh, LADE_AXIS_EMBED, LADE_MIN(sizes->pp, 2), LADE_MAX(sizes->pp - 1, 1) * data * sizes->dp);
  axis_set(mesh, LADE_AXIS_KV, kv_ranks(sizes), 1);
}

int lade_mesh_init(const struct lade_mesh_params *params, struct lade_error *error, struct lade_mesh *ret_mesh)
{
  struct lade_mesh_params given, sizes;
  int status = lade_struct_read("struct lade_mesh_params", params, &given, sizeof(given), error);
  if (!status)
    status = sizes_check(&given, error);
  if (status)
    return status;
  sizes = given;
  sizes.tp = LADE_MAX(1, given.tp);
  sizes.cp = LADE_MAX(1, given.cp);
  sizes.ep = LADE_MAX(1, given.ep);
  sizes.pp = LADE_MAX(1, given.pp);
  status = given.world ? world_divide(&given, &sizes, error) : world_multiply(&sizes, error);
  if (status)
    return status;
  sizes.shard = given.shard ? given.shard : sizes.dp;
  if (sizes.dp % sizes.ep)
    return size_refuse(error, "ep", sizes.ep, "dp", sizes.dp);
  if (sizes.dp % sizes.shard)
    return size_refuse(error, "shard", sizes.shard, "dp", sizes.dp);
  axes_fill(ret_mesh, &sizes);
  return 0;
}

const char *lade_axis_name(enum lade_axis axis)
{
  LADE_ASSERT(axis >= 0 && axis < LADE_N_AXES);
  return axis_names[axis];
}

int lade_mesh_position(const struct lade_mesh *mesh, enum lade_axis axis, int rank)
{
  LADE_ASSERT(rank >= 0 && rank < mesh->world);
  return rank / mesh->axes[axis].stride % mesh->axes[axis].size;
}

int lade_mesh_member(const struct lade_mesh *mesh, enum lade_axis axis, int rank, int position)
{
  LADE_ASSERT(position >= 0 && position < mesh->axes[axis].size);
  int member = rank + (position - lade_mesh_position(mesh, axis, rank)) * mesh->axes[axis].stride;
  LADE_ASSERT(member >= 0 && member < mesh->world);
  return member;
}

int lade_mesh_group(const struct lade_mesh *mesh, enum lade_axis axis, int rank)
{
  return lade_mesh_member(mesh, axis, rank, 0);
}
