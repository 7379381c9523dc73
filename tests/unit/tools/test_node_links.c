/* SPDX-License-Identifier: Apache-2.0 */
/* Links of a node from files as a kernel has them, in a directory of the test's own. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/support/scratch.h"
#include "tools/report/node_links.h"

/* Make @path below the test's directory, with its parents. */
static void directory_make(const char *path)
{
  char whole[SCRATCH_PATH_BYTES];
  snprintf(whole, sizeof(whole), "%s/%s", scratch, path);
  for (char *slash = strchr(whole + strlen(scratch) + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
    *slash = 0;
    mkdir(whole, 0700);
    *slash = '/';
  }
  mkdir(whole, 0700);
}

static void text_write(const char *path, const char *text)
{
  FILE *file = fopen(in_scratch(path), "w");
  assert_non_null(file);
  fputs(text, file);
  fclose(file);
}

static void a_machine_without_files_has_no_links(void **state)
{
  struct node_links links;
  node_links_find(scratch, &links);
  assert_true(links.n_infiniband == 0 && links.n_efa == 0 && links.n_nvswitches == 0 && !links.has_gpudirect);
  assert_string_equal(links.first, "");
}

static void devices_are_counted_by_their_driver(void **state)
{
  struct node_links links;
  directory_make("sys/class/infiniband/mlx5_1/ports/1");
  directory_make("sys/class/infiniband/mlx5_0/ports/1");
  directory_make("sys/class/infiniband/rdmap16s27/device");
  directory_make("sys/module/nvidia_peermem");
  directory_make("dev");
  text_write("sys/class/infiniband/mlx5_0/ports/1/rate", "400 Gb/sec (4X NDR)\n");
  text_write("dev/nvidia-nvswitch0", "");
  text_write("dev/nvidia-nvswitch3", "");
  assert_int_equal(symlink("../../../../bus/pci/drivers/efa",
                           in_scratch("sys/class/infiniband/rdmap16s27/device/driver")), 0);
  node_links_find(scratch, &links);
  assert_int_equal(links.n_infiniband, 2);
  assert_int_equal(links.n_efa, 1);
  assert_int_equal(links.n_nvswitches, 2);
  assert_true(links.has_gpudirect);
  assert_string_equal(links.first, "mlx5_0");
  assert_string_equal(links.rate, "400 Gb/sec (4X NDR)");
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(a_machine_without_files_has_no_links, scratch_setup, scratch_teardown),
      cmocka_unit_test_setup_teardown(devices_are_counted_by_their_driver, scratch_setup, scratch_teardown),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
