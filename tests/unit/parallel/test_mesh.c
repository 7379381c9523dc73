/* SPDX-License-Identifier: Apache-2.0 */
/* Groups partition the world as in a brute-force recount; sizes that do not divide are refused with sizes that do. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/base.h"
#include "parallel/mesh.h"
#include "tests/support/names.h"

#define WORLD_MAX 1024

/* A rank's coordinates, counted by nested loops in rank order. */
struct place {
  int tp, cp, ep, expert_dp, pp; /* dp is ep + expert_dp * ep's size */
};

struct recount {
  struct lade_mesh_params sizes;
  struct place places[WORLD_MAX];
  int n;
};

static void ranks_count(struct recount *recount)
{
  const struct lade_mesh_params *s = &recount->sizes;
  recount->n = 0;
  for (int pp = 0; pp < s->pp; pp++)
    for (int dp = 0; dp < s->dp / s->ep; dp++)
      for (int ep = 0; ep < s->ep; ep++)
        for (int cp = 0; cp < s->cp; cp++)
          for (int tp = 0; tp < s->tp; tp++)
            recount->places[recount->n++] = (struct place){tp, cp, ep, dp, pp};
}

/* True if @rank is in the first or the last stage. */
static bool is_end(const struct recount *recount, int rank)
{
  return recount->places[rank].pp == 0 || recount->places[rank].pp == recount->sizes.pp - 1;
}

/* True if two ranks are in one group on an axis: equal in every coordinate that the axis does not vary. */
static bool is_together(const struct recount *recount, enum lade_axis axis, int a, int b)
{
  const struct place *x = &recount->places[a], *y = &recount->places[b];
  int ep = recount->sizes.ep, shard = recount->sizes.shard;
  int dp_x = x->ep + x->expert_dp * ep, dp_y = y->ep + y->expert_dp * ep;
  bool is_dp_equal = dp_x == dp_y;
  switch (axis) {
  case LADE_AXIS_EP: is_dp_equal = x->expert_dp == y->expert_dp; break;
  case LADE_AXIS_EXPERT_DP: is_dp_equal = x->ep == y->ep; break;
  case LADE_AXIS_SHARD: is_dp_equal = dp_x / shard == dp_y / shard; break;
  case LADE_AXIS_REPLICATE: is_dp_equal = dp_x % shard == dp_y % shard; break;
  case LADE_AXIS_DP: is_dp_equal = true; break;
  case LADE_AXIS_KV:
    if (!recount->sizes.n_kv_heads)
      return a == b;
    return is_dp_equal && x->cp == y->cp && x->pp == y->pp &&
           x->tp * recount->sizes.n_kv_heads / recount->sizes.tp ==
               y->tp * recount->sizes.n_kv_heads / recount->sizes.tp;
  case LADE_AXIS_EMBED:
    if (a != b && (!is_end(recount, a) || !is_end(recount, b)))
      return false;
    break;
  default: break;
  }
  return is_dp_equal && (axis == LADE_AXIS_TP || x->tp == y->tp) && (axis == LADE_AXIS_CP || x->cp == y->cp) &&
         (axis == LADE_AXIS_PP || axis == LADE_AXIS_EMBED || x->pp == y->pp);
}

static void axis_verify(const struct recount *recount, const struct lade_mesh *mesh, enum lade_axis axis)
{
  for (int rank = 0; rank < recount->n; rank++) {
    int n_members = 0;
    for (int other = 0; other < recount->n; other++) {
      if (!is_together(recount, axis, rank, other))
        continue;
      assert_int_equal(lade_mesh_member(mesh, axis, rank, n_members), other);
      assert_int_equal(lade_mesh_position(mesh, axis, other), n_members);
      assert_int_equal(lade_mesh_group(mesh, axis, other), lade_mesh_group(mesh, axis, rank));
      n_members++;
    }
    bool is_alone = axis == LADE_AXIS_EMBED && !is_end(recount, rank);
    assert_int_equal(n_members, is_alone ? 1 : mesh->axes[axis].size);
    assert_true(lade_mesh_group(mesh, axis, rank) <= rank);
  }
}

static void mesh_verify(const struct lade_mesh_params *sizes)
{
  static struct recount recount;
  struct lade_mesh mesh;
  recount.sizes = *sizes;
  ranks_count(&recount);
  assert_int_equal(lade_mesh_init(sizes, NULL, &mesh), 0);
  assert_int_equal(mesh.world, recount.n);
  for (int axis = 0; axis < LADE_N_AXES; axis++)
    axis_verify(&recount, &mesh, axis);
}

static void every_axis_groups_as_nested_loops_count(void **state)
{
  int n_meshes = 0;
  for (int tp = 1; tp <= 4; tp++)
    for (int cp = 1; cp <= 2; cp++)
      for (int dp = 1; dp <= 6; dp++)
        for (int pp = 1; pp <= 3; pp++)
          for (int ep = 1; ep <= dp; ep++)
            for (int shard = 1; shard <= dp; shard++) {
              if (dp % ep || dp % shard)
                continue;
              mesh_verify(&(struct lade_mesh_params){.struct_size = sizeof(struct lade_mesh_params), .tp = tp, .cp = cp,
                                                     .ep = ep, .dp = dp, .pp = pp, .shard = shard,
                                                     .n_kv_heads = tp % 2 ? 0 : 2});
              n_meshes++;
            }
  assert_int_equal(n_meshes, 4 * 2 * 3 * (1 + 4 + 4 + 9 + 4 + 16));
}

static void the_documented_example_has_these_groups(void **state)
{
  /* Megatron's own: 16 ranks, tp 2, pp 4: data groups {0,2} {1,3} {4,6} ..., pipeline groups {0,4,8,12} ... */
  struct lade_mesh mesh;
  struct lade_mesh_params params = {.struct_size = sizeof(params), .world = 16, .tp = 2, .pp = 4};
  assert_int_equal(lade_mesh_init(&params, NULL, &mesh), 0);
  assert_int_equal(mesh.axes[LADE_AXIS_DP].size, 2);
  assert_int_equal(lade_mesh_member(&mesh, LADE_AXIS_DP, 4, 1), 6);
  assert_int_equal(lade_mesh_member(&mesh, LADE_AXIS_PP, 0, 3), 12);
  assert_int_equal(lade_mesh_member(&mesh, LADE_AXIS_TP, 5, 0), 4);
  assert_int_equal(mesh.axes[LADE_AXIS_SHARD].size, 2);
  assert_int_equal(mesh.axes[LADE_AXIS_REPLICATE].size, 1);
}

/* Check that the mesh is refused with a line that has all @names, which end with NULL. */
static void refusal_verify(struct lade_mesh_params params, const char *const *names)
{
  struct lade_error error = {0};
  struct lade_mesh mesh = {.world = -7};
  params.struct_size = sizeof(params);
  assert_int_equal(lade_mesh_init(&params, &error, &mesh), -EINVAL);
  assert_int_equal(mesh.world, -7);
  names_verify(error.text, names, __FILE__, __LINE__);
}

static void sizes_that_do_not_divide_are_refused_with_those_that_do(void **state)
{
  refusal_verify((struct lade_mesh_params){.world = 8, .tp = 3},
                 NAMES("tp 3", "8", "1, 2, 4 or 8"));
  refusal_verify((struct lade_mesh_params){.world = 8, .tp = 4, .pp = 4},
                 NAMES("pp 4", "world", "1 or 2"));
  refusal_verify((struct lade_mesh_params){.world = 8, .tp = 2, .dp = 2},
                 NAMES("tp 2", "dp 2", "4 ranks", "8", "dp 4"));
  refusal_verify((struct lade_mesh_params){.dp = 6, .shard = 4},
                 NAMES("shard 4", "dp 6", "1, 2, 3 or 6"));
  refusal_verify((struct lade_mesh_params){.dp = 4, .ep = 3}, NAMES("ep 3", "dp 4", "1, 2 or 4"));
  refusal_verify((struct lade_mesh_params){.tp = -1}, NAMES("tp -1", "1 to 16777216"));
  refusal_verify((struct lade_mesh_params){.tp = 1000000, .dp = 1000000},
                 NAMES("tp 1000000", "dp 1000000", "16777216 ranks"));
}

static void a_long_list_keeps_one_and_the_largest(void **state)
{
  struct lade_error error = {0};
  struct lade_mesh mesh;
  struct lade_mesh_params params = {.struct_size = sizeof(params), .world = 720720, .tp = 17};
  assert_int_equal(lade_mesh_init(&params, &error, &mesh), -EINVAL);
  assert_names(error.text, "tp 17", "720720", ": 1", "or 720720");
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_axis_groups_as_nested_loops_count),
      cmocka_unit_test(the_documented_example_has_these_groups),
      cmocka_unit_test(sizes_that_do_not_divide_are_refused_with_those_that_do),
      cmocka_unit_test(a_long_list_keeps_one_and_the_largest),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
