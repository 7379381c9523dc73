/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Links kept by an earlier job price the program of a session, and decide if stages send in the scattered form: only
 * where that is faster. Links of another number of ranks, or damaged ones, change nothing.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "machine/measured_links.h"
#include "run/session/session_internal.h"
#include "tests/support/run_fixture.h"
#include "tests/support/scratch.h"

static struct lade_session_params params_make(int n_node_ranks)
{
  struct lade_session_params params = run_fixture_session_params();
  params.machine = NULL; /* kept links count for the measured machine alone */
  params.is_plan_only = true;
  params.layout = (struct lade_layout_params){.tp = 2, .pp = 2, .world = 4};
  params.n_node_ranks = n_node_ranks;
  return params;
}

/* Keep links within nodes of two ranks, and between two nodes, as a job of @n_nodes nodes. */
static void links_keep(int64_t n_nodes, double node_bytes_per_s, double network_bytes_per_s)
{
  const struct lade_probe_params probe = {.struct_size = sizeof(probe)};
  const uint64_t host = lade_links_host();
  struct lade_links_key key = {.n_node_ranks = 2};
  struct lade_cluster cluster = {
      .n_nodes = n_nodes, .n_node_devices = 2, .n_levels = 2,
      .levels = {{"node", 2, node_bytes_per_s, 1000, 1, 1}, {"network", 2 * n_nodes, network_bytes_per_s, 5000, 1, 1}}};
  for (int64_t i = 0; i < n_nodes; i++)
    lade_links_key_add_node(&key, host, host);
  lade_links_keep(&probe, &key, &cluster);
}

/* Plan the ranks on nodes of two; check the form of sends and the source of prices. */
static void plan_check(bool has_links, bool is_scattered, uint64_t *ret_sent_bytes)
{
  const struct lade_session_params params = params_make(2);
  struct lade_session_info info;
  lade_session *session = run_fixture_session_open(&params);
  lade_session_get_info(session, &info);
  assert_int_equal(info.cost->links != NULL, has_links);
  assert_int_equal(session->is_scattered, is_scattered);
  assert_int_equal(info.graph->share.is_scattered, is_scattered);
  *ret_sent_bytes = info.comm_bytes[LADE_AXIS_PP];
  lade_session_close(session);
}

static void the_cheaper_form_of_a_send_is_taken(void **state)
{
  uint64_t unmeasured, slow_network, fast_network;
  plan_check(false, true, &unmeasured); /* between nodes, in parts */
  links_keep(2, 1e9, 1e12);
  plan_check(true, false, &fast_network);
  links_keep(2, 1e12, 1e9);
  plan_check(true, true, &slow_network);
  assert_true(unmeasured == slow_network && slow_network < fast_network);
}

static void other_links_are_not_taken(void **state)
{
  uint64_t unused;
  char command[2 * SCRATCH_PATH_BYTES];
  links_keep(3, 1e9, 1e12); /* of more nodes */
  plan_check(false, true, &unused);
  links_keep(2, 1e9, 1e12);
  plan_check(true, false, &unused);
  snprintf(command, sizeof(command), "sed -i s/latency_ns/latency/ %s/lade/links-*", getenv("XDG_CACHE_HOME"));
  assert_int_equal(system(command), 0);
  plan_check(false, true, &unused);
  struct lade_session_params params = params_make(2);
  params.machine = "laptop-8c"; /* a described machine has no measured links */
  links_keep(2, 1e9, 1e12);
  lade_session *session = run_fixture_session_open(&params);
  assert_false(session->has_links);
  lade_session_close(session);
}

/* Take the test's own directory for measurements. */
static int cache_setup(void **state)
{
  int status = scratch_setup(state);
  char *whole = realpath(scratch, NULL);
  status = status || !whole || setenv("XDG_CACHE_HOME", whole, 1);
  free(whole);
  return status;
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(the_cheaper_form_of_a_send_is_taken, cache_setup, scratch_teardown),
      cmocka_unit_test_setup_teardown(other_links_are_not_taken, cache_setup, scratch_teardown),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
