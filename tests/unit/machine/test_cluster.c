/* SPDX-License-Identifier: Apache-2.0 */
/* Clusters by name and from untrusted files; prices of groups over the levels that they cross. */
#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "base/base.h"
#include "machine/cluster.h"

static struct lade_cluster preset_get(const char *name)
{
  struct lade_cluster cluster;
  struct lade_error error;
  assert_int_equal(lade_cluster_preset(name, &error, &cluster), 0);
  return cluster;
}

static int text_read(const char *text, struct lade_error *error, struct lade_cluster *ret_cluster)
{
  json_error_t problem;
  json_t *object = json_loads(text, 0, &problem);
  assert_non_null(object);
  const int status = lade_cluster_from_json(object, "file", error, ret_cluster);
  json_decref(object);
  return status;
}

static void presets_pass_their_own_check_and_read_back(void **state)
{
  int n = 0;
  for (; lade_cluster_preset_name(n); n++) {
    const struct lade_cluster cluster = preset_get(lade_cluster_preset_name(n));
    struct lade_cluster read;
    struct lade_error error;
    assert_string_equal(cluster.name, lade_cluster_preset_name(n));
    assert_int_equal(lade_cluster_check(&cluster, cluster.name, &error), 0);
    assert_true(cluster.usable_device_bytes < cluster.device.device_bytes);
    json_t *object = lade_cluster_to_json(&cluster);
    assert_int_equal(lade_cluster_from_json(object, "file", &error, &read), 0);
    json_decref(object);
    assert_memory_equal(&read.levels, &cluster.levels, sizeof(read.levels));
    assert_true(read.device.kernels.n_sms == cluster.device.kernels.n_sms);
    assert_memory_equal(&read.node_store, &cluster.node_store, sizeof(read.node_store));
    assert_memory_equal(&read.device.store, &cluster.device.store, sizeof(read.device.store));
    assert_true(read.n_nodes == cluster.n_nodes && read.usable_device_bytes == cluster.usable_device_bytes &&
                read.nccl_version == cluster.nccl_version);
  }
  assert_int_equal(n, 7);
}

static void a_file_begins_from_a_preset(void **state)
{
  struct lade_cluster cluster;
  struct lade_error error;
  assert_int_equal(text_read("{\"preset\": \"dgx-h100\", \"nodes\": 4, \"usable_device_bytes\": \"70GiB\","
                             " \"device\": {\"launch_ns\": 7000}}", &error, &cluster), 0);
  assert_int_equal(cluster.n_nodes, 4);
  assert_int_equal(cluster.levels[1].n_devices, 32);
  assert_true(cluster.usable_device_bytes == UINT64_C(70) << 30);
  assert_true(cluster.device.launch_ns == 7000 && cluster.device.kernels.n_sms == 132);
}

static void devices_share_the_drives_of_their_node(void **state)
{
  struct lade_cluster cluster;
  struct lade_error error;
  assert_int_equal(text_read("{\"preset\": \"gb200-nvl72\", \"device\": \"gb200-186g\"," /* whose store gives way */
                             " \"store_per_node\": {\"bytes\": \"8TB\", \"read_bytes_per_s\": 12e9,"
                             " \"write_bytes_per_s\": 6e9, \"lasting_write_bytes_per_s\": 4e9, \"latency_ns\": 50000}}",
                             &error, &cluster), 0);
  const struct lade_machine_store *share = &cluster.device.store; /* a quarter: four devices a node */
  assert_true(share->bytes == UINT64_C(2000000000000) && share->read_bytes_per_s == 3e9);
  assert_true(share->write_bytes_per_s == 1.5e9 && share->lasting_write_bytes_per_s == 1e9);
  assert_true(share->latency_ns == 50000 && share->total_bytes_per_s == 0);
  assert_int_equal(text_read("{\"preset\": \"dgx-h100\", \"store_per_node\": {\"write_bytes_per_s\": 8e9}}", &error,
                             &cluster), 0);
  assert_true(cluster.node_store.bytes == UINT64_C(30720000000000) && share->write_bytes_per_s == 1e9);
  assert_int_equal(text_read("{\"preset\": \"dgx-h100\", \"store_per_node\": {\"bytes\": 0}}", &error, &cluster), 0);
  assert_true(cluster.node_store.bytes == 0 && share->bytes == 0);
}

static void wrong_files_are_refused_with_the_field(void **state)
{
  static const struct {
    const char *text, *word;
  } cases[] = {
      {"[]", "not a JSON object"},
      {"{\"preset\": \"dgx-h100\", \"spine\": 3}", "spine"},
      {"{\"preset\": \"nowhere\"}", "preset"},
      {"{\"preset\": \"dgx-h100\", \"device\": \"nowhere\"}", "file: device: no machine named 'nowhere'"},
      {"{\"preset\": \"dgx-h100\", \"nodes\": 0}", "nodes"},
      {"{\"preset\": \"dgx-h100\", \"nodes\": 1.5}", "nodes"},
      {"{\"preset\": \"dgx-h100\", \"usable_device_bytes\": \"90GiB\"}", "usable_device_bytes"},
      {"{\"preset\": \"dgx-h100\", \"nccl_version\": 2.23}", "nccl_version"},
      {"{\"preset\": \"dgx-h100\", \"levels\": []}", "levels"},
      {"{\"preset\": \"dgx-h100\", \"nodes\": 2, \"levels\": [{\"name\": \"a\", \"devices\": 8, \"bytes_per_s\": 0, "
       "\"latency_ns\": 1}]}", "levels[0].bytes_per_s"},
      {"{\"preset\": \"dgx-h100\", \"nodes\": 1, \"levels\": [{\"name\": \"a\", \"devices\": 8, \"bytes_per_s\": 1e9, "
       "\"latency_ns\": 1, \"over_host_link\": 1}]}", "levels[0].over_host_link is 1: expected true or false"},
      {"{\"preset\": \"dgx-h100\", \"nodes\": 1, \"levels\": [{\"name\": \"a\", \"devices\": 8, \"latency_ns\": 1}]}",
       "levels[0].bytes_per_s"},
      {"{\"preset\": \"dgx-h100\", \"nodes\": 1, \"levels\": [{\"name\": \"a\", \"devices\": 8, \"bytes_per_s\": 1e9, "
       "\"latency_ns\": -1}]}", "levels[0].latency_ns"},
      {"{\"preset\": \"dgx-h100\", \"nodes\": 2, \"levels\": [{\"name\": \"a\", \"devices\": 8, \"bytes_per_s\": 1e9, "
       "\"latency_ns\": 1}, {\"name\": \"b\", \"devices\": 12, \"bytes_per_s\": 1e9, \"latency_ns\": 1}]}",
       "levels[1].devices"},
      {"{\"preset\": \"dgx-h100\", \"nodes\": 2, \"levels\": [{\"name\": \"a\", \"devices\": 8, \"bytes_per_s\": 1e9, "
       "\"latency_ns\": 1}]}", "levels[0].devices"},
      {"{\"preset\": \"dgx-h100\", \"device\": {\"device_bytes_per_s\": 0}}", "device_bytes_per_s"},
      {"{\"preset\": \"dgx-a100-80g\", \"device\": {\"kernels\": {\"eager_attention_forward\": 0.5}}}",
       "kernels.eager_attention_forward is stated without kernels.eager_attention_backward"},
      {"{\"preset\": \"dgx-h100\", \"device\": {\"kernels\": {\"power_watts\": 701}}}",
       "kernels.power_watts is 701: expected at most kernels.rated_watts, 700"},
      {"{\"preset\": \"dgx-h100\", \"nodes\": 1, \"levels\": [{\"name\": \"a\", \"devices\": 7, \"bytes_per_s\": 1e9, "
       "\"latency_ns\": 1}, {\"name\": \"b\", \"devices\": 14, \"bytes_per_s\": 1e9, \"latency_ns\": 1}]}",
       "levels[0].devices is 7: neither whole nodes"},
      {"{\"preset\": \"dgx-h100\", \"name\": \"red\\u001b[31m\"}", "printable"},
      {"{\"nodes\": 2}", "name is missing"},
      {"{\"preset\": \"dgx-h100\", \"nodes\": 2, \"levels\": [{\"name\": \"a\", \"devices\": 8, \"bytes_per_s\": 1e9, "
       "\"latency_ns\": 1}, {\"name\": \"a\", \"devices\": 16, \"bytes_per_s\": 1e9, \"latency_ns\": 1}]}",
       "levels[1].name is \"a\""},
      {"{\"name\": \"x\"}", "nodes"},
      {"{\"preset\": \"p5\", \"store_per_node\": []}", "file: store_per_node: expected an object"},
      {"{\"preset\": \"p5\", \"store_per_node\": {\"read_bytes_per_s\": 0}}",
       "file: store_per_node: store.bytes is stated without store.read_bytes_per_s"},
      {"{\"preset\": \"p5\", \"store_per_node\": {\"write_bytes_per_s\": -1}}", "store.write_bytes_per_s is -1"},
      {"{\"preset\": \"p5\", \"store_per_node\": {\"drives\": 8}}", "unknown field store.\"drives\""},
      {"{\"preset\": \"gb200-nvl72\", \"store_per_node\": {\"read_bytes_per_s\": 1e9}}", "store.bytes is missing"},
  };
  for (size_t i = 0; i < LADE_COUNT(cases); i++) {
    struct lade_cluster cluster;
    struct lade_error error = {0};
    const bool is_damaged = strstr(cases[i].word, "JSON") != NULL;
    assert_int_equal(text_read(cases[i].text, &error, &cluster), is_damaged ? -EBADMSG : -EINVAL);
    if (!strstr(error.text, cases[i].word))
      print_error("%s: '%s' lacks '%s'\n", cases[i].text, error.text, cases[i].word);
    assert_non_null(strstr(error.text, cases[i].word));
  }
}

static void an_unknown_name_lists_the_presets(void **state)
{
  struct lade_cluster cluster;
  struct lade_error error;
  assert_int_equal(lade_cluster_get("no-such-cluster", &error, &cluster), -ENOENT);
  assert_non_null(strstr(error.text, "dgx-a100-80g"));
}

static struct lade_transfer_price gather_of(const struct lade_cluster *cluster, int size, int64_t stride)
{
  struct lade_transfer_price gather, sum;
  lade_cluster_group_price(cluster, size, stride, &gather, &sum);
  return gather;
}

static void a_group_pays_for_the_levels_that_it_crosses(void **state)
{
  const struct lade_cluster cluster = preset_get("dgx-a100-80g");
  const double nvlink = 1e9 / cluster.levels[0].bytes_per_s, rail = 1e9 / cluster.levels[1].bytes_per_s;
  assert_true(fabs(gather_of(&cluster, 8, 1).ns_per_byte - nvlink) < 1e-12);
  assert_true(fabs(gather_of(&cluster, 4, 2).ns_per_byte - nvlink) < 1e-12);
  assert_true(fabs(gather_of(&cluster, 4, 8).ns_per_byte - rail) < 1e-12);       /* one member a node, one rail */
  assert_true(fabs(gather_of(&cluster, 16, 4).ns_per_byte - rail / 2) < 1e-12);  /* two members a node */
  assert_true(fabs(gather_of(&cluster, 16, 1).ns_per_byte - LADE_MAX(rail / 8, nvlink)) < 1e-12);
  assert_true(gather_of(&cluster, 1, 1).ns_per_byte == 0 && gather_of(&cluster, 1, 1).latency_ns == 0);
  assert_true(gather_of(&cluster, 64, 8).latency_ns > gather_of(&cluster, 8, 1).latency_ns);
}

static void a_groups_level_is_the_outermost_that_it_crosses(void **state)
{
  const struct lade_cluster cluster = preset_get("dgx-a100-80g");
  assert_int_equal(lade_cluster_group_level(&cluster, 1, 1), -1);
  assert_int_equal(lade_cluster_group_level(&cluster, 1, 64), -1);
  assert_int_equal(lade_cluster_group_level(&cluster, 8, 1), 0);
  assert_int_equal(lade_cluster_group_level(&cluster, 4, 2), 0);
  assert_int_equal(lade_cluster_group_level(&cluster, 4, 4), 1);
  assert_int_equal(lade_cluster_group_level(&cluster, 16, 1), 1);
  assert_int_equal(lade_cluster_group_level(&cluster, 2, 8), 1);
}

static void sums_over_many_nodes_go_along_trees(void **state)
{
  const struct lade_cluster cluster = preset_get("dgx-a100-80g");
  struct lade_transfer_price gather, few, many;
  lade_cluster_group_price(&cluster, 16, 8, &gather, &few);
  lade_cluster_group_price(&cluster, 1024, 8, &gather, &many);
  assert_true(many.latency_ns < 4 * few.latency_ns);
  assert_true(gather.latency_ns > 10 * many.latency_ns);
}

/* Ratios of 8 ranks: (6.6 + 7 * 0.6) / (8.4 + 7 * 3.4) and (14 + 7 * 1.9) / (8.4 + 7 * 3.4) of NCCL's tuner. */
static void short_messages_take_protocols_with_less_latency(void **state)
{
  struct lade_cluster cluster = preset_get("dgx-a100-80g");
  const struct lade_transfer_price price = gather_of(&cluster, 8, 1);
  const double ring_ns = 7 * cluster.levels[0].latency_ns, byte_ns = 1e9 / cluster.levels[0].bytes_per_s;
  assert_true(fabs(lade_transfer_ns(&price, 1, 1024) - (ring_ns * 10.8 / 32.2 + 1024 * byte_ns / 0.5)) < 2);
  const double middle = 3e6; /* bytes: LL128 */
  assert_true(fabs(lade_transfer_ns(&price, 1, middle) - (ring_ns * 27.3 / 32.2 + middle * byte_ns / 0.92)) < 2);
  assert_true(lade_transfer_ns(&price, 1, 64e6) == (double)price.latency_ns + 64e6 * price.ns_per_byte);
  assert_true(lade_transfer_ns(&price, 9, 9 * middle) > 8.99 * lade_transfer_ns(&price, 1, middle));
  cluster.nccl_version = 0;
  assert_int_equal(gather_of(&cluster, 8, 1).n_short, 0);
  const struct lade_cluster pcie = preset_get("rtx4090x4"); /* LL128 needs NVLink */
  assert_int_equal(gather_of(&pcie, 4, 1).n_short, 1);
}

static void gathers_of_one_rank_a_node_go_along_trees_since_2_23(void **state)
{
  struct lade_cluster cluster = preset_get("dgx-h100");
  const struct lade_transfer_price pat = gather_of(&cluster, 256, 8), shared = gather_of(&cluster, 512, 4);
  cluster.nccl_version = 22200;
  const struct lade_transfer_price ring = gather_of(&cluster, 256, 8), shared_ring = gather_of(&cluster, 512, 4);
  assert_true(lade_transfer_ns(&pat, 1, 1e6) < 0.6 * lade_transfer_ns(&ring, 1, 1e6));
  assert_true(lade_transfer_ns(&pat, 1, 4e9) == lade_transfer_ns(&ring, 1, 4e9)); /* 3/4 of a ring's rate */
  assert_true(lade_transfer_ns(&shared, 1, 1e6) == lade_transfer_ns(&shared_ring, 1, 1e6));
}

/* A level's latency found from the time of a short message gives that time back. */
static void a_measured_short_message_is_priced_as_measured(void **state)
{
  struct lade_cluster cluster = preset_get("dgx-h100");
  const double short_ns = 5000;
  for (int is_between = 0; is_between < 2; is_between++) {
    const double share = lade_cluster_short_share(&cluster, 8, is_between);
    cluster.levels[is_between].latency_ns = short_ns / 7 / share;
    const struct lade_transfer_price price = gather_of(&cluster, 8, is_between ? 8 : 1);
    assert_true(share < 0.5 && fabs(lade_transfer_ns(&price, 1, 0) - short_ns) < 2);
  }
}

static void sums_in_the_switch_help_inside_it_alone(void **state)
{
  const struct lade_cluster cluster = preset_get("dgx-h100");
  struct lade_transfer_price gather, sum;
  lade_cluster_group_price(&cluster, 8, 1, &gather, &sum);
  assert_true(sum.ns_per_byte < gather.ns_per_byte);
  assert_true(sum.latency_ns < 2 * gather.latency_ns); /* two hops, not fourteen */
  lade_cluster_group_price(&cluster, 16, 1, &gather, &sum);
  assert_true(sum.ns_per_byte == gather.ns_per_byte);
}

/* Each rank sends its rows over its own links: of 16 ranks on two nodes, half of them leave the node. */
static void an_exchange_crosses_levels_by_the_members_behind_them(void **state)
{
  const struct lade_cluster cluster = preset_get("dgx-h100");
  const double nvlink = 1e9 / cluster.levels[0].bytes_per_s, rail = 1e9 / cluster.levels[1].bytes_per_s;
  struct lade_transfer_price price;
  lade_cluster_exchange_price(&cluster, 1, 1, &price);
  assert_true(price.ns_per_byte == 0 && price.latency_ns == 0);
  lade_cluster_exchange_price(&cluster, 8, 1, &price);
  assert_true(fabs(price.ns_per_byte - nvlink * 7 / 8) < 1e-12);
  lade_cluster_exchange_price(&cluster, 16, 1, &price);
  assert_true(fabs(price.ns_per_byte - rail / 2) < 1e-12);
  lade_cluster_exchange_price(&cluster, 4, 8, &price);
  assert_true(fabs(price.ns_per_byte - rail * 3 / 4) < 1e-12);
}

/* The slowest level's links are full; others carry as much as it leaves; a NIC's bytes take the host's link too. */
static void collectives_take_parts_of_links(void **state)
{
  struct lade_cluster cluster = preset_get("dgx-a100-80g");
  const double nvlink = cluster.levels[0].bytes_per_s, rail = cluster.levels[1].bytes_per_s;
  const double host = (double)cluster.device.to_host.bytes_per_s;
  static const struct {
    int size;
    int64_t stride;
    double nvlink, rail; /* rates, over a rail's; 0: not used; INFINITY: full */
  } cases[] = {{8, 1, INFINITY, 0}, {8, 8, 0, INFINITY}, {16, 4, 2, INFINITY}, {1, 1, 0, 0}};
  for (size_t i = 0; i < LADE_COUNT(cases); i++) {
    const struct lade_link_shares shares = lade_cluster_group_shares(&cluster, cases[i].size, cases[i].stride);
    assert_true(fabs(shares.of[LADE_LINK_LEVELS] - fmin(cases[i].nvlink * rail / nvlink, 1)) < 1e-9);
    assert_true(shares.of[LADE_LINK_LEVELS + 1] == (cases[i].rail > 0));
    assert_true(fabs(shares.of[LADE_LINK_HOST] - (cases[i].rail > 0 ? rail / host : 0)) < 1e-9);
  }
  const struct lade_link_shares node = lade_cluster_group_shares(&cluster, 8, 1);
  const struct lade_link_shares nodes = lade_cluster_group_shares(&cluster, 16, 4);
  const struct lade_link_shares rails = lade_cluster_group_shares(&cluster, 8, 8);
  assert_true(fabs(lade_links_slowdown(&node, &nodes) - (1 + 2 * rail / nvlink)) < 1e-9);
  assert_true(lade_links_slowdown(&node, &rails) == 1 && lade_links_slowdown(&nodes, &rails) == 2);
  cluster.levels[1].is_over_host_link = false;
  assert_true(lade_cluster_group_shares(&cluster, 8, 8).of[LADE_LINK_HOST] == 0);
}

/* Ranks of one node share no rail: parts over eight of them and a gather within the node beat the whole over one. */
static void stages_on_other_nodes_get_parts(void **state)
{
  const struct lade_cluster cluster = preset_get("dgx-a100-80g");
  static const struct {
    int tp, pp, dp, level;
    double bytes;
    bool is_scattered;
  } cases[] = {
      {8, 4, 1, 1, 1e8, true},  {8, 4, 1, 1, 1e3, false}, /* the gather's latency is more than the send */
      {2, 4, 1, 0, 1e8, false},                           /* all stages in one node */
      {4, 4, 1, 1, 1e8, true},                            /* every second boundary leaves the node */
      {1, 4, 8, 1, 1e8, false}, {16, 2, 1, 1, 1e8, true},
  };
  for (size_t i = 0; i < LADE_COUNT(cases); i++) {
    const struct lade_mesh_params sizes = {.struct_size = sizeof(sizes), .tp = cases[i].tp, .pp = cases[i].pp,
                                           .dp = cases[i].dp};
    struct lade_mesh mesh;
    struct lade_cluster_links links;
    assert_int_equal(lade_mesh_init(&sizes, NULL, &mesh), 0);
    lade_cluster_links_make(&cluster, &mesh, &links);
    assert_true(links.boundary.ns_per_byte == 1e9 / cluster.levels[cases[i].level].bytes_per_s);
    assert_true(lade_cluster_sends_scattered(&cluster, &mesh, cases[i].bytes) == cases[i].is_scattered);
  }
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(presets_pass_their_own_check_and_read_back),
      cmocka_unit_test(a_file_begins_from_a_preset),
      cmocka_unit_test(devices_share_the_drives_of_their_node),
      cmocka_unit_test(wrong_files_are_refused_with_the_field),
      cmocka_unit_test(an_unknown_name_lists_the_presets),
      cmocka_unit_test(a_group_pays_for_the_levels_that_it_crosses),
      cmocka_unit_test(a_groups_level_is_the_outermost_that_it_crosses),
      cmocka_unit_test(sums_over_many_nodes_go_along_trees),
      cmocka_unit_test(sums_in_the_switch_help_inside_it_alone),
      cmocka_unit_test(short_messages_take_protocols_with_less_latency),
      cmocka_unit_test(gathers_of_one_rank_a_node_go_along_trees_since_2_23),
      cmocka_unit_test(a_measured_short_message_is_priced_as_measured),
      cmocka_unit_test(an_exchange_crosses_levels_by_the_members_behind_them),
      cmocka_unit_test(collectives_take_parts_of_links),
      cmocka_unit_test(stages_on_other_nodes_get_parts),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
