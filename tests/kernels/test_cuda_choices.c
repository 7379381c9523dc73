/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The file of choices among cuBLASLt's algorithms, over the fakes. The reader takes the lines that the writer makes.
 * The same file gives the same algorithms and name, another file another name. A choice that cannot be taken is an
 * error that names its place.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/base.h"
#include "device/cuda.h"
#include "kernels/cuda/matmul/matmul_cublaslt.h"

/* The fake splits k of a long product in its first algorithm, which needs scratch, and not in the next. */
static const struct lade_matmul_args product = {.layout = LADE_NT, .dtype = LADE_BF16, .out = LADE_BF16, .m = 16,
                                                .n = 24, .k = 4096};
static char path[64];
static const struct lade_matmul_args with_epilogue[] = {
    {.layout = LADE_NT, .dtype = LADE_BF16, .out = LADE_BF16, .m = 16, .n = 24, .k = 4096, .bias = path},
    {.layout = LADE_NT, .dtype = LADE_BF16, .out = LADE_BF16, .m = 16, .n = 24, .k = 4096, .gelu_x = path},
    {.layout = LADE_NT, .dtype = LADE_BF16, .out = LADE_BF16, .m = 16, .n = 24, .k = 4096, .gelu_y = path},
    {.layout = LADE_NT, .dtype = LADE_BF16, .out = LADE_BF16, .m = 16, .n = 24, .k = 4096, .bias = path,
     .gelu_y = path}};

/* Make the file of one @text. */
static void file_make(const char *text)
{
  FILE *file = fopen(path, "w");
  assert_non_null(file);
  assert_true(fputs(text, file) >= 0);
  assert_int_equal(fclose(file), 0);
}

static lade_device *device_open(void)
{
  const struct lade_cuda_device_params params = {.struct_size = sizeof(params)};
  struct lade_error error = {0};
  lade_device *device = NULL;
  assert_int_equal(lade_device_open_cuda(&params, &error, &device), 0);
  return device;
}

/* Open the library and return the scratch of the product of @args; the library's name in @ret_name. */
static size_t scratch_of_get(const struct lade_matmul_args *args, char ret_name[192])
{
  struct lade_error error = {0};
  lade_device *device = device_open();
  lade_cublaslt *lt = NULL;
  assert_int_equal(lade_cublaslt_open(device, &error, &lt), 0);
  const size_t bytes = lade_cublaslt_workspace_bytes(lt, args);
  snprintf(ret_name, 192, "%s", lade_cublaslt_name(lt));
  lade_cublaslt_close(lt);
  lade_device_close(device);
  return bytes;
}

static size_t scratch_get(char ret_name[192])
{
  return scratch_of_get(&product, ret_name);
}

/* Write number @i of the product of @args to the end of the file, as a bench does. */
static void choice_of_append(const struct lade_matmul_args *args, int i)
{
  struct lade_error error = {0};
  lade_device *device = device_open();
  lade_cublaslt *lt = NULL;
  unsetenv("LADE_MATMUL_CHOICES");
  assert_int_equal(lade_cublaslt_open(device, &error, &lt), 0);
  FILE *file = fopen(path, "a");
  assert_int_equal(lade_cublaslt_choice_write(lt, args, i, file), 0);
  fclose(file);
  lade_cublaslt_close(lt);
  lade_device_close(device);
  setenv("LADE_MATMUL_CHOICES", path, 1);
}

static void choice_append(int i)
{
  choice_of_append(&product, i);
}

static void a_file_gives_its_algorithms_and_a_name_of_its_own(void **state)
{
  char plain[192], first[192], again[192], other[192];
  unsetenv("LADE_MATMUL_CHOICES");
  assert_true(scratch_get(plain) > 0);
  assert_null(strstr(plain, "choices"));
  file_make("# of another machine\n\ncuBLASLt 1, NVIDIA: X, driver 1: NT bf16 bf16 16 24 4096 - 7\n");
  setenv("LADE_MATMUL_CHOICES", path, 1);
  assert_true(scratch_get(other) > 0);
  assert_string_equal(other, plain); /* no line is of this key, and no bit changes */
  choice_append(1);
  assert_int_equal(scratch_get(first), 0);
  assert_true(strstr(first, ", choices ") && strstr(first, " (1)"));
  assert_int_equal(scratch_get(again), 0);
  assert_string_equal(again, first);
  choice_append(0); /* the last line of a product counts */
  assert_true(scratch_get(other) > 0);
  assert_string_not_equal(other, first);
}

/* Each epilogue has a name of its own in the file: the same sizes with another one are another product. */
static void every_epilogue_is_another_product(void **state)
{
  char name[192];
  for (size_t i = 0; i < LADE_COUNT(with_epilogue); i++) {
    file_make("");
    setenv("LADE_MATMUL_CHOICES", path, 1);
    const size_t first_bytes = scratch_of_get(&with_epilogue[i], name);
    choice_of_append(&with_epilogue[i], 1);
    assert_true(scratch_get(name) > 0);
    assert_non_null(strstr(name, " (1)"));
    for (size_t j = 0; j < LADE_COUNT(with_epilogue); j++)
      assert_int_equal(scratch_of_get(&with_epilogue[j], name) < first_bytes, i == j);
  }
}

/* A comment may be of any length, and the line after it still has its number. */
static void a_long_comment_is_skipped(void **state)
{
  char text[3000], name[192];
  memset(text, 'x', sizeof(text));
  text[0] = '#';
  strcpy(text + sizeof(text) - 2, "\n");
  file_make(text);
  choice_append(1);
  assert_int_equal(scratch_get(name), 0);
  strcpy(text + sizeof(text) - 8, "\nno key");
  file_make(text);
  struct lade_error error = {0};
  lade_device *device = device_open();
  lade_cublaslt *lt = NULL;
  assert_int_equal(lade_cublaslt_open(device, &error, &lt), -EINVAL);
  assert_non_null(strstr(error.text, "line 2"));
  lade_device_close(device);
}

static void choices_that_a_run_cannot_follow_are_errors(void **state)
{
  static const char *const texts[] = {"#\ncuBLASLt: NT bf16 bf16 16 24 4096 bias\n",
                                      "\nK: XX bf16 bf16 16 24 4096 - 1\n", "\nK: NT bf17 bf16 16 24 4096 - 1\n",
                                      "\nK: NT bf16 bf16 16 0 4096 - 1\n", "\nK: NT bf16 bf16 16 24 4096 - -1\n",
                                      "\nK: NT bf16 bf16 16 24 4096 - 1 2\n", "\nno key\n"};
  lade_device *device = device_open();
  setenv("LADE_MATMUL_CHOICES", path, 1);
  for (size_t i = 0; i <= LADE_COUNT(texts); i++) {
    struct lade_error error = {0};
    lade_cublaslt *lt = NULL;
    if (i < LADE_COUNT(texts))
      file_make(texts[i]);
    else
      unlink(path);
    assert_int_equal(lade_cublaslt_open(device, &error, &lt), -EINVAL);
    assert_non_null(strstr(error.text, path));
    assert_true(i == LADE_COUNT(texts) || strstr(error.text, "line 2"));
  }
  lade_device_close(device);
}

/* The product fails with a reason, and is not computed by another algorithm, whose bits would differ. */
static void a_number_that_is_not_offered_fails_the_product(void **state)
{
  struct lade_error error = {0};
  file_make("");
  choice_append(9);
  lade_device *device = device_open();
  lade_cublaslt *lt = NULL;
  assert_int_equal(lade_cublaslt_open(device, &error, &lt), 0);
  assert_int_equal(lade_cublaslt_workspace_bytes(lt, &product), 0);
  assert_false(lade_cublaslt_lacks(lt, &product)); /* the plain kernel does not take its place */
  assert_true(lade_cublaslt_run(lt, NULL, &product, &error));
  assert_int_equal(error.code, -EINVAL);
  assert_non_null(strstr(error.text, "algorithm 9 for a product of 16 x 24 x 4096"));
  lade_cublaslt_close(lt);
  lade_device_close(device);
}

static int file_remove(void **state)
{
  unlink(path);
  return 0;
}

int main(void)
{
  snprintf(path, sizeof(path), "/tmp/lade-choices-%d", (int)getpid());
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_file_gives_its_algorithms_and_a_name_of_its_own),
      cmocka_unit_test(every_epilogue_is_another_product),
      cmocka_unit_test(a_long_comment_is_skipped),
      cmocka_unit_test(choices_that_a_run_cannot_follow_are_errors),
      cmocka_unit_test(a_number_that_is_not_offered_fails_the_product),
  };
  return cmocka_run_group_tests(tests, NULL, file_remove);
}
