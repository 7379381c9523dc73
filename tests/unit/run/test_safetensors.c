/* SPDX-License-Identifier: Apache-2.0 */
/* Written files read back byte for byte; a file that breaks the format is refused; no partial file stays. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/base.h"
#include "base/file.h"
#include "run/safetensors.h"
#include "tests/support/scratch.h"

static const struct lade_safetensors_entry entries[] = {
    {"wte.weight", LADE_F32, 2, {5, 3}},
    {"ln \"odd\" \xc3\xa9", LADE_BF16, 1, {7}},
    {"empty", LADE_F16, 2, {0, 4}},
    {"residual", LADE_I16, 3, {2, 1, 3}},
    {"scalar", LADE_F64, 0, {0}},
};
static const struct lade_safetensors_pair metadata[] = {{"format", "pt"}, {"step", "12"}};
#define DATA_BYTES (5 * 3 * 4 + 7 * 2 + 0 + 6 * 2 + 8)

static struct lade_safetensors_params params_make(const char *path, struct lade_faults *faults)
{
  return (struct lade_safetensors_params){.struct_size = sizeof(struct lade_safetensors_params), .path = path,
                                          .entries = entries, .n_entries = LADE_COUNT(entries), .metadata = metadata,
                                          .n_metadata = LADE_COUNT(metadata), .faults = faults};
}

static void data_make(char data[DATA_BYTES])
{
  for (int i = 0; i < DATA_BYTES; i++)
    data[i] = (char)(i * 37 + 1);
}

/* Write all tensors in pieces of @piece bytes. */
static int file_write(const char *path, uint64_t piece, struct lade_faults *faults)
{
  struct lade_safetensors_params params = params_make(path, faults);
  lade_safetensors_writer *writer;
  char data[DATA_BYTES];
  data_make(data);
  int rc = lade_safetensors_create(&params, NULL, &writer);
  if (rc)
    return rc;
  for (uint64_t at = 0; at < DATA_BYTES && !rc; at += piece)
    rc = lade_safetensors_write_at(writer, at, data + at, LADE_MIN(piece, DATA_BYTES - at), NULL);
  if (rc) {
    lade_safetensors_abort(writer);
    return rc;
  }
  return lade_safetensors_commit(writer, NULL);
}

static void written_files_read_back(void **state)
{
  const char *path = in_scratch("good");
  assert_int_equal(file_write(path, 11, NULL), 0);
  lade_safetensors *file;
  assert_int_equal(lade_safetensors_open(path, NULL, NULL, &file), 0);
  assert_int_equal(lade_safetensors_count(file), LADE_COUNT(entries));
  char data[DATA_BYTES], bytes[DATA_BYTES];
  data_make(data);
  uint64_t at = 0;
  for (size_t i = 0; i < LADE_COUNT(entries); i++) {
    const struct lade_safetensor *tensor = lade_safetensors_find(file, entries[i].name);
    assert_non_null(tensor);
    assert_string_equal(tensor->name, entries[i].name);
    assert_int_equal(tensor->dtype, entries[i].dtype);
    assert_int_equal(tensor->n_dims, entries[i].n_dims);
    for (int dim = 0; dim < tensor->n_dims; dim++)
      assert_int_equal(tensor->dims[dim], entries[i].dims[dim]);
    assert_int_equal(lade_safetensors_read(file, tensor, 0, tensor->bytes, bytes, NULL), 0);
    assert_memory_equal(bytes, data + at, tensor->bytes);
    at += tensor->bytes;
  }
  assert_int_equal(at, DATA_BYTES);
  const struct lade_safetensor *table = lade_safetensors_find(file, "wte.weight");
  assert_int_equal(lade_safetensors_read(file, table, 2 * 12, 24, bytes, NULL), 0);
  assert_memory_equal(bytes, data + 2 * 12, 24);
  assert_null(lade_safetensors_find(file, "wte"));
  assert_string_equal(lade_safetensors_metadata(file, "step"), "12");
  assert_null(lade_safetensors_metadata(file, "steps"));
  lade_safetensors_close(file);
  unlink(path);
}

static void the_header_is_padded_to_eight_bytes(void **state)
{
  const char *path = in_scratch("padded");
  char *text;
  size_t bytes;
  assert_int_equal(file_write(path, 64, NULL), 0);
  assert_int_equal(lade_file_load(path, 1 << 20, NULL, &text, &bytes), 0);
  uint64_t header_bytes = 0;
  memcpy(&header_bytes, text, 8);
  assert_int_equal(header_bytes % 8, 0);
  assert_int_equal(text[8], '{');
  assert_int_equal(bytes, 8 + header_bytes + DATA_BYTES);
  free(text);
  unlink(path);
}

static void a_writer_is_held_to_its_header(void **state)
{
  const char *path = in_scratch("held");
  struct lade_safetensors_params params = params_make(path, NULL);
  lade_safetensors_writer *writer, *second;
  char data[DATA_BYTES + 1] = {0};
  assert_int_equal(lade_safetensors_create(&params, NULL, &writer), 0);
  assert_int_equal(lade_safetensors_create(&params, NULL, &second), -EEXIST);
  assert_int_equal(lade_safetensors_write_at(writer, 0, data, DATA_BYTES + 1, NULL), -EINVAL);
  assert_int_equal(lade_safetensors_write_at(writer, 0, data, DATA_BYTES - 1, NULL), 0);
  assert_int_equal(lade_safetensors_commit(writer, NULL), -EINVAL);
  assert_int_equal(access(path, F_OK), -1);
  static const struct lade_safetensors_entry twice[] = {{"a", LADE_F32, 0, {0}}, {"a", LADE_F32, 0, {0}}};
  static const struct lade_safetensors_entry wrong[] = {{"a", LADE_F32, 2, {INT64_MAX, 8}}};
  static const struct lade_safetensors_entry latin[] = {{"\xe9", LADE_F32, 0, {0}}};
  const struct lade_safetensors_entry *bad[] = {twice, wrong, latin};
  for (size_t i = 0; i < LADE_COUNT(bad); i++) {
    params.entries = bad[i];
    params.n_entries = i ? 1 : 2;
    assert_int_equal(lade_safetensors_create(&params, NULL, &writer), -EINVAL);
    assert_int_equal(access(path, F_OK), -1);
  }
}

/* Make a file of @header and @data_bytes of zeros; a negative @stated takes the header's true length. */
static const char *file_make(const char *header, int64_t stated, size_t data_bytes)
{
  const char *path = in_scratch("bad");
  FILE *file = fopen(path, "wb");
  uint64_t length = stated < 0 ? strlen(header) : (uint64_t)stated;
  assert_non_null(file);
  fwrite(&length, 8, 1, file);
  fwrite(header, 1, strlen(header), file);
  for (size_t i = 0; i < data_bytes; i++)
    fputc(0, file);
  fclose(file);
  return path;
}

static void positioned_writes_make_the_same_file(void **state)
{
  const char *path = in_scratch("positioned");
  struct lade_safetensors_params params = params_make(path, NULL);
  lade_safetensors_writer *writer;
  lade_safetensors *file;
  char data[DATA_BYTES], bytes[DATA_BYTES];
  data_make(data);
  assert_int_equal(lade_safetensors_create(&params, NULL, &writer), 0);
  assert_int_equal(lade_safetensors_write_at(writer, DATA_BYTES - 1, data, 2, NULL), -EINVAL);
  assert_int_equal(lade_safetensors_write_at(writer, DATA_BYTES + 1, data, 0, NULL), -EINVAL);
  for (int at = DATA_BYTES - 1; at >= 0; at--)
    assert_int_equal(lade_safetensors_write_at(writer, (uint64_t)at, data + at, 1, NULL), 0);
  assert_int_equal(lade_safetensors_write_at(writer, 0, data, 1, NULL), -EINVAL); /* everything is written */
  assert_int_equal(lade_safetensors_commit(writer, NULL), 0);
  assert_int_equal(lade_safetensors_open(path, NULL, NULL, &file), 0);
  uint64_t at = 0;
  for (int i = 0; i < lade_safetensors_count(file); i++) {
    const struct lade_safetensor *tensor = lade_safetensors_get(file, i);
    assert_int_equal(lade_safetensors_read(file, tensor, 0, tensor->bytes, bytes + at, NULL), 0);
    at += tensor->bytes;
  }
  assert_int_equal(at, DATA_BYTES);
  assert_memory_equal(bytes, data, DATA_BYTES);
  lade_safetensors_close(file);
}

static void files_that_break_the_format_are_refused(void **state)
{
  static const struct {
    const char *header;
    int64_t stated;
    size_t data_bytes;
    const char *names;
  } bad[] = {
      {"", -1, 0, "header of 0"},
      {"{}", 100, 0, "cut short"},
      {"{}", INT64_MAX, 0, "cut short"},
      {"[]", -1, 0, "no JSON object"},
      {"{\"a\":", -1, 0, "not valid JSON"},
      {"{\"a\":1}", -1, 0, "entry is no JSON object"},
      {"{\"a\":{}}", -1, 0, "dtype"},
      {"{\"a\":{\"dtype\":\"F33\",\"shape\":[],\"data_offsets\":[0,4]}}", -1, 4, "dtype"},
      {"{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}", -1, 4, "shape"},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[-1],\"data_offsets\":[0,4]}}", -1, 4, "shape has"},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1.0],\"data_offsets\":[0,4]}}", -1, 4, "shape has"},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,0]}}", -1, 0, "shape has"},
      {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1,1,1,1,1,1,1,1,1],\"data_offsets\":[0,1]}}", -1, 1, "at most 8"},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", -1, 4, "data_offsets"},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4,8]}}", -1, 4, "data_offsets"},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,0]}}", -1, 4, "outside"},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", -1, 4, "outside"},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,4]}}", -1, 4, "do not match"},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", -1, 5, "5 bytes of data"},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}", -1, 8, "before it"},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
       "\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[2,6]}}", -1, 6, "b: overlaps"},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
       "\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}", -1, 8, "not valid JSON"},
      {"{\"__metadata__\":{\"a\":1}}", -1, 0, "__metadata__"},
      {"{\"__metadata__\":[]}", -1, 0, "__metadata__"},
      {"{\"a\\nb\":1}", -1, 0, "a?b"},
  };
  for (size_t i = 0; i < LADE_COUNT(bad); i++) {
    lade_safetensors *file = NULL;
    struct lade_error error = {0};
    const char *path = file_make(bad[i].header, bad[i].stated, bad[i].data_bytes);
    assert_int_equal(lade_safetensors_open(path, NULL, &error, &file), -EBADMSG);
    assert_null(file);
    if (!strstr(error.text, bad[i].names) || strchr(error.text, '\n'))
      fail_msg("%s: %s", bad[i].header, error.text);
  }
}

static void foreign_types_and_no_tensors_are_fine(void **state)
{
  lade_safetensors *file;
  assert_int_equal(lade_safetensors_open(file_make("{}", -1, 0), NULL, NULL, &file), 0);
  assert_int_equal(lade_safetensors_count(file), 0);
  assert_null(lade_safetensors_find(file, "a"));
  lade_safetensors_close(file);
  const char *path = file_make("{\"m\":{\"dtype\":\"I64\",\"shape\":[2],\"data_offsets\":[1,17]},"
                               "\"b\":{\"dtype\":\"BOOL\",\"shape\":[1],\"data_offsets\":[0,1]}}", -1, 17);
  assert_int_equal(lade_safetensors_open(path, NULL, NULL, &file), 0);
  assert_int_equal(lade_safetensors_find(file, "m")->dtype, -1);
  assert_string_equal(lade_safetensors_find(file, "m")->type, "I64");
  assert_string_equal(lade_safetensors_get(file, 0)->name, "b"); /* in the order of the data */
  lade_safetensors_close(file);
}

static void every_truncation_is_noticed(void **state)
{
  const char *path = in_scratch("truncated");
  char *text;
  size_t bytes;
  assert_int_equal(file_write(path, 64, NULL), 0);
  assert_int_equal(lade_file_load(path, 1 << 20, NULL, &text, &bytes), 0);
  lade_safetensors *file;
  for (size_t cut = 0; cut < bytes; cut++) {
    assert_int_equal(truncate(path, (off_t)(bytes - cut - 1)), 0);
    assert_int_equal(lade_safetensors_open(path, NULL, NULL, &file), -EBADMSG);
  }
  assert_int_equal(lade_file_replace(path, text, bytes, NULL), 0);
  assert_int_equal(lade_safetensors_open(path, NULL, NULL, &file), 0);
  assert_int_equal(truncate(path, (off_t)bytes - 1), 0); /* after opening */
  double scalar;
  assert_int_equal(lade_safetensors_read(file, lade_safetensors_find(file, "scalar"), 0, 8, &scalar, NULL), -EIO);
  lade_safetensors_close(file);
  free(text);
  unlink(path);
}

static void a_refused_write_leaves_no_file(void **state)
{
  const char *path = in_scratch("refused");
  struct lade_faults faults;
  lade_faults_init(&faults);
  assert_int_equal(file_write(path, 16, &faults), 0);
  uint64_t n_calls = lade_faults_count(&faults, LADE_FAULT_ANY);
  unlink(path);
  assert_true(n_calls > 6);
  for (uint64_t nth = 1; nth <= n_calls; nth++) {
    lade_faults_arm(&faults, LADE_FAULT_ANY, nth, false, -ENOSPC);
    int rc = file_write(path, 16, &faults);
    assert_true(rc == -ENOSPC || rc == -ENOMEM);
    assert_int_equal(access(path, F_OK), -1);
  }
}

static void a_refused_read_is_reported(void **state)
{
  const char *path = in_scratch("unread");
  struct lade_faults faults;
  lade_safetensors *file;
  double scalar;
  lade_faults_init(&faults);
  assert_int_equal(file_write(path, 16, NULL), 0);
  assert_int_equal(lade_safetensors_open(path, &faults, NULL, &file), 0);
  assert_int_equal(lade_safetensors_read(file, lade_safetensors_find(file, "scalar"), 0, 8, &scalar, NULL), 0);
  lade_safetensors_close(file);
  uint64_t n_calls = lade_faults_count(&faults, LADE_FAULT_ANY);
  for (uint64_t nth = 1; nth <= n_calls; nth++) {
    struct lade_error error = {0};
    lade_faults_arm(&faults, LADE_FAULT_ANY, nth, false, -EIO);
    int rc = lade_safetensors_open(path, &faults, &error, &file);
    if (!rc) {
      rc = lade_safetensors_read(file, lade_safetensors_find(file, "scalar"), 0, 8, &scalar, &error);
      lade_safetensors_close(file);
    }
    assert_true(rc == -EIO || rc == -ENOMEM);
    assert_true(error.text[0] != 0);
  }
  unlink(path);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(written_files_read_back),
      cmocka_unit_test(the_header_is_padded_to_eight_bytes),
      cmocka_unit_test(a_writer_is_held_to_its_header),
      cmocka_unit_test(positioned_writes_make_the_same_file),
      cmocka_unit_test(files_that_break_the_format_are_refused),
      cmocka_unit_test(foreign_types_and_no_tensors_are_fine),
      cmocka_unit_test(every_truncation_is_noticed),
      cmocka_unit_test(a_refused_write_leaves_no_file),
      cmocka_unit_test(a_refused_read_is_reported),
  };
  return cmocka_run_group_tests(tests, scratch_setup_in_memory, scratch_teardown);
}
