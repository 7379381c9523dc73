/* SPDX-License-Identifier: Apache-2.0 */
/* Batches equal those of llm.c and nanoGPT, whatever the files and the microbatches; bad files are named. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/base.h"
#include "run/data.h"
#include "tests/support/scratch.h"

static const char *file_make(const char *name, const void *header, size_t header_bytes, const void *data, size_t bytes)
{
  const char *path = in_scratch(name);
  FILE *file = fopen(path, "wb");
  assert_non_null(file);
  assert_int_equal(fwrite(header, 1, header_bytes, file), header_bytes);
  assert_int_equal(fwrite(data, 1, bytes, file), bytes);
  fclose(file);
  return path;
}

static const char *text_make(const char *name, int n)
{
  char text[4096];
  for (int i = 0; i < n; i++)
    text[i] = (char)(i * 7 + i / 256);
  return file_make(name, "", 0, text, (size_t)n);
}

/* Make a file of tokens 0, 1, 2, ... modulo @modulus. */
static const char *tokens_make(const char *name, int magic, int version, int n, int stated, int modulus)
{
  int32_t header[256] = {magic, version, stated};
  uint16_t half[4096] = {0}; /* silences a false warning of gcc 16 (maybe uninitialized) */
  uint32_t word[4096];
  for (int i = 0; i < n; i++)
    word[i] = half[i] = (uint16_t)(i % modulus);
  size_t header_bytes = magic ? sizeof(header) : 0;
  return magic == 20240801 ? file_make(name, header, header_bytes, word, (size_t)n * 4)
                           : file_make(name, header, header_bytes, half, (size_t)n * 2);
}

static int64_t seq_len_of_params;

static int batch_read(const lade_data *data, struct lade_batch batch, struct lade_error *error)
{
  batch.seq = seq_len_of_params;
  return lade_data_read(data, &batch, error);
}

static struct lade_data_params params_make(const char *const *files, int n_files, int64_t batch, int64_t seq_len)
{
  seq_len_of_params = seq_len;
  return (struct lade_data_params){.struct_size = sizeof(struct lade_data_params), .files = files, .n_files = n_files,
                                   .batch = batch, .seq_len = seq_len, .seed = 7};
}

static void sequential_batches_follow_the_stream_and_start_over(void **state)
{
  const char *files[] = {tokens_make("seq.bin", 20240520, 1, 100, 100, 50000)};
  struct lade_data_params params = params_make(files, 1, 3, 8);
  lade_data *data;
  int32_t tokens[24], targets[24];
  assert_int_equal(lade_data_open(&params, NULL, &data), 0);
  struct lade_data_info info;
  lade_data_get_info(data, &info);
  assert_int_equal(info.n_train_batches, 4); /* (100 - 1) / 24 */
  assert_int_equal(info.vocabulary, 50257);
  for (uint64_t step = 0; step < 10; step++) {
    assert_int_equal(batch_read(data, (struct lade_batch){.number = (int64_t)step, .n_rows = 3,
                                                          .tokens = tokens, .targets = targets}, NULL), 0);
    for (int i = 0; i < 24; i++) {
      assert_int_equal(tokens[i], (step % 4) * 24 + (uint64_t)i);
      assert_int_equal(targets[i], tokens[i] + 1);
    }
  }
  lade_data_close(data);
}

static void random_rows_depend_on_seed_step_and_row_alone(void **state)
{
  const char *files[] = {tokens_make("rand.bin", 0, 0, 1000, 0, 60000)};
  struct lade_data_params params = params_make(files, 1, 4, 16);
  params.order = LADE_ORDER_RANDOM;
  params.vocabulary = 1000;
  lade_data *data;
  int32_t whole[64], whole_targets[64], row[16], row_targets[16];
  bool is_seen[1000] = {false};
  int n_seen = 0;
  assert_int_equal(lade_data_open(&params, NULL, &data), 0);
  for (uint64_t step = 0; step < 500; step++) {
    assert_int_equal(batch_read(data, (struct lade_batch){.number = (int64_t)step, .n_rows = 4,
                                                          .tokens = whole, .targets = whole_targets}, NULL), 0);
    for (int r = 3; r >= 0; r--) { /* microbatches of one row, in any order, are the same rows */
      assert_int_equal(batch_read(data, (struct lade_batch){.number = (int64_t)step, .first_row = r, .n_rows = 1,
                                                            .tokens = row, .targets = row_targets}, NULL), 0);
      assert_memory_equal(row, whole + r * 16, sizeof(row));
      assert_memory_equal(row_targets, whole_targets + r * 16, sizeof(row));
      assert_int_equal(row_targets[15], row[0] + 16);
      n_seen += !is_seen[row[0]];
      is_seen[row[0]] = true;
    }
  }
  assert_true(n_seen > 800);                     /* 2000 draws of 984 offsets */
  assert_false(is_seen[984]);                    /* the last offset is 983: 16 tokens and a target */
  lade_data_close(data);
  params.seed = 8;
  assert_int_equal(lade_data_open(&params, NULL, &data), 0);
  int32_t other[64], other_targets[64];
  assert_int_equal(batch_read(data, (struct lade_batch){.number = 499, .n_rows = 4,
                                                        .tokens = other, .targets = other_targets}, NULL), 0);
  assert_memory_not_equal(other, whole, sizeof(whole));
  lade_data_close(data);
}

static void text_is_bytes_and_the_last_part_validates(void **state)
{
  const char *files[] = {text_make("text", 1001)};
  struct lade_data_params params = params_make(files, 1, 2, 10);
  params.valid_fraction = 0.1;
  lade_data *data;
  struct lade_data_info info;
  int32_t tokens[20], targets[20];
  assert_int_equal(lade_data_open(&params, NULL, &data), 0);
  lade_data_get_info(data, &info);
  assert_true(info.is_text);
  assert_int_equal(info.vocabulary, 256);
  assert_int_equal(info.n_train_tokens, 900); /* int(1001 * 0.9), as nanoGPT splits */
  assert_int_equal(info.n_valid_tokens, 101);
  assert_int_equal(info.n_valid_batches, 5);
  assert_int_equal(batch_read(data, (struct lade_batch){.is_valid = true, .number = 1, .n_rows = 2,
                                                        .tokens = tokens, .targets = targets}, NULL), 0);
  for (int i = 0; i < 20; i++) {
    int at = 900 + 20 + i;
    assert_int_equal(tokens[i], (uint8_t)(at * 7 + at / 256));
    assert_int_equal(targets[i], (uint8_t)((at + 1) * 7 + (at + 1) / 256));
  }
  lade_data_close(data);
}

static void several_files_are_one_stream(void **state)
{
  const char *files[] = {text_make("a", 7), text_make("b", 1), text_make("c", 30)};
  struct lade_data_params params = params_make(files, 3, 1, 9);
  const char *valid[] = {text_make("v", 25)};
  params.valid_files = valid;
  params.n_valid_files = 1;
  params.valid_fraction = 0.5; /* ignored, because there is a file */
  lade_data *data;
  int32_t tokens[9], targets[9];
  assert_int_equal(lade_data_open(&params, NULL, &data), 0);
  assert_int_equal(batch_read(data, (struct lade_batch){.number = 0, .n_rows = 1,
                                                        .tokens = tokens, .targets = targets}, NULL), 0);
  static const int expected[] = {0, 7, 14, 21, 28, 35, 42, 0, 0, 7};
  for (int i = 0; i < 9; i++) {
    assert_int_equal(tokens[i], expected[i]);
    assert_int_equal(targets[i], expected[i + 1]);
  }
  assert_int_equal(batch_read(data, (struct lade_batch){.is_valid = true, .number = 0, .n_rows = 1,
                                                        .tokens = tokens, .targets = targets}, NULL), 0);
  assert_int_equal(tokens[0], 0);
  assert_int_equal(targets[8], 63);
  struct lade_data_info info;
  lade_data_get_info(data, &info);
  assert_int_equal(info.n_train_tokens, 38);
  assert_int_equal(info.n_valid_tokens, 25);
  lade_data_close(data);
}

static void llama_tokens_have_32_bits_and_bare_ones_say_their_vocabulary(void **state)
{
  const char *llama[] = {tokens_make("llama.bin", 20240801, 7, 50, 50, 60000)};
  const char *bare[] = {tokens_make("bare.bin", 0, 0, 200, 0, 65)};
  struct lade_data_params params = params_make(llama, 1, 1, 4);
  lade_data *data;
  struct lade_data_info info;
  int32_t tokens[4], targets[4];
  assert_int_equal(lade_data_open(&params, NULL, &data), 0);
  lade_data_get_info(data, &info);
  assert_int_equal(info.vocabulary, 128256);
  assert_int_equal(batch_read(data, (struct lade_batch){.number = 2, .n_rows = 1,
                                                        .tokens = tokens, .targets = targets}, NULL), 0);
  assert_int_equal(tokens[3], 11);
  lade_data_close(data);
  params = params_make(bare, 1, 1, 4);
  assert_int_equal(lade_data_open(&params, NULL, &data), 0);
  lade_data_get_info(data, &info);
  assert_int_equal(info.vocabulary, 65);
  assert_false(info.is_text);
  lade_data_close(data);
}

static void open_refused(const char *const *files, int n_files, int64_t vocabulary, int64_t batch, const char *names)
{
  struct lade_data_params params = params_make(files, n_files, batch, 8);
  params.vocabulary = vocabulary;
  struct lade_error error = {0};
  lade_data *data = NULL;
  int rc = lade_data_open(&params, &error, &data);
  const bool is_damaged = strstr(names, "no whole number") || strstr(names, " tokens") || /* of a header */
                          strstr(names, "damaged") || strstr(names, "no end") || strstr(names, "not finished");
  assert_true(is_damaged ? rc == -EBADMSG : rc == -EINVAL || rc == -ENOENT);
  assert_null(data);
  if (!strstr(error.text, names))
    fail_msg("\"%s\" does not say \"%s\"", error.text, names);
  assert_null(strchr(error.text, '\n'));
}

static void bad_files_are_refused_with_the_reason(void **state)
{
  open_refused((const char *[]){in_scratch("missing")}, 1, 0, 1, "missing");
  open_refused((const char *[]){scratch}, 1, 0, 1, "not a regular file");
  open_refused((const char *[]){file_make("empty", "", 0, "", 0)}, 1, 0, 1, "is empty");
  open_refused((const char *[]){file_make("odd.bin", "", 0, "abc", 3)}, 1, 0, 1, "no whole number");
  open_refused((const char *[]){text_make("short", 16)}, 1, 0, 2, "needs 17");
  open_refused((const char *[]){text_make("words", 100)}, 1, 50257, 1, "vocabulary of 256");
  open_refused((const char *[]){tokens_make("cut.bin", 20240520, 1, 50, 60, 100)}, 1, 0, 1, "60 tokens");
  open_refused((const char *[]){tokens_make("none.bin", 20240520, 1, 0, 0, 100)}, 1, 0, 1, "0 tokens");
  open_refused((const char *[]){tokens_make("minus.bin", 20240520, 1, 10, -10, 100)}, 1, 0, 1, "-10 tokens");
  open_refused((const char *[]){tokens_make("version.bin", 20240520, 2, 50, 50, 100)}, 1, 0, 1, "version 2");
  open_refused((const char *[]){tokens_make("magic.bin", 20240522, 1, 50, 50, 100)}, 1, 0, 1, "magic 20240522");
  open_refused((const char *[]){tokens_make("range.bin", 20240520, 1, 200, 200, 100)}, 1, 90, 1, "token 90 is 90");
  open_refused((const char *[]){tokens_make("mix.bin", 20240520, 1, 50, 50, 100), text_make("mix", 50)}, 2, 0, 1,
               "one kind");
  open_refused(NULL, 0, 0, 1, "--data");
}

static void a_token_out_of_range_in_a_word_file_is_found(void **state)
{
  int32_t header[256] = {20240801, 7, 20};
  uint32_t tokens[20] = {0};
  tokens[13] = 0xffffffff;
  const char *files[] = {file_make("wild.bin", header, sizeof(header), tokens, sizeof(tokens))};
  open_refused(files, 1, 0, 1, "token 13 is 4294967295");
}

static void a_file_that_shrinks_is_an_error(void **state)
{
  const char *files[] = {text_make("shrinks", 1000)};
  struct lade_data_params params = params_make(files, 1, 2, 16);
  struct lade_error error;
  lade_data *data;
  int32_t tokens[32], targets[32];
  assert_int_equal(lade_data_open(&params, NULL, &data), 0);
  assert_int_equal(truncate(files[0], 40), 0);
  assert_int_equal(batch_read(data, (struct lade_batch){.number = 0, .n_rows = 2,
                                                        .tokens = tokens, .targets = targets}, &error), 0);
  assert_int_equal(batch_read(data, (struct lade_batch){.number = 1, .n_rows = 2,
                                                        .tokens = tokens, .targets = targets}, &error), -EIO);
  assert_non_null(strstr(error.text, "shorter"));
  lade_data_close(data);
}

static void every_refused_call_is_reported(void **state)
{
  const char *files[] = {tokens_make("faults.bin", 20240520, 1, 300, 300, 100)};
  struct lade_faults faults;
  lade_faults_init(&faults);
  struct lade_data_params params = params_make(files, 1, 2, 16);
  params.vocabulary = 100; /* so that it is scanned */
  params.faults = &faults;
  lade_data *data;
  int32_t tokens[32], targets[32];
  assert_int_equal(lade_data_open(&params, NULL, &data), 0);
  assert_int_equal(batch_read(data, (struct lade_batch){.number = 0, .n_rows = 2,
                                                        .tokens = tokens, .targets = targets}, NULL), 0);
  lade_data_close(data);
  uint64_t n_calls = lade_faults_count(&faults, LADE_FAULT_ANY);
  assert_true(n_calls > 5);
  for (uint64_t nth = 1; nth <= n_calls; nth++) {
    struct lade_error error = {0};
    lade_faults_arm(&faults, LADE_FAULT_ANY, nth, false, -EIO);
    int rc = lade_data_open(&params, &error, &data);
    if (!rc) {
      rc = batch_read(data, (struct lade_batch){.number = 0, .n_rows = 2,
                                                .tokens = tokens, .targets = targets}, &error);
      lade_data_close(data);
    }
    assert_true(rc == -EIO || rc == -ENOMEM);
    assert_true(error.text[0] != 0);
  }
}

/* The header of `lade data`: 16-bit tokens 0 to 99. */
struct made_header {
  int32_t magic, version, n_tokens, zero, extension, extension_version, vocabulary, separator;
  unsigned char hash[32];
  char name[256], rest[704];
};

static struct made_header made_header(int32_t vocabulary, int32_t separator, const char *name)
{
  struct made_header header = {20240520, 1, 300, 0, 0x4544414c, 1, vocabulary, separator, {5}, "", ""};
  snprintf(header.name, sizeof(header.name), "%s", name);
  return header;
}

static const char *made_file(const char *name, const struct made_header *header)
{
  uint16_t tokens[300];
  for (int i = 0; i < 300; i++)
    tokens[i] = (uint16_t)(i % 100);
  return file_make(name, header, sizeof(*header), tokens, sizeof(tokens));
}

static void a_header_names_its_tokenizer(void **state)
{
  const struct made_header header = made_header(120, 99, "to\nken.json");
  const char *files[] = {made_file("named.bin", &header), tokens_make("unnamed.bin", 20240520, 1, 300, 300, 100)};
  struct lade_data_params params = params_make(files, 2, 2, 16);
  struct lade_data_info info;
  struct lade_error error = {0};
  lade_data *data;
  char *text = NULL;
  size_t bytes = 0;
  _Static_assert(sizeof(header) == 1024, "256 words");
  assert_int_equal(lade_data_open(&params, &error, &data), 0);
  lade_data_get_info(data, &info);
  assert_int_equal(info.vocabulary, 120); /* stated, not the largest token's, and not GPT-2's */
  assert_int_equal(info.separator, 99);
  assert_string_equal(info.tokenizer, "to?ken.json");
  assert_int_equal(lade_data_load_tokenizer(data, &error, &text, &bytes), -ENOENT);
  file_make("tokenizer.json", "", 0, "{}", 2);
  assert_int_equal(lade_data_load_tokenizer(data, &error, &text, &bytes), -EINVAL);
  assert_non_null(strstr(error.text, "another hash"));
  lade_data_close(data);
  params.files = files + 1;
  params.n_files = 1;
  assert_int_equal(lade_data_open(&params, &error, &data), 0);
  lade_data_get_info(data, &info);
  assert_null(info.tokenizer);
  assert_int_equal(info.separator, -1);
  assert_int_equal(lade_data_load_tokenizer(data, &error, &text, &bytes), -ENODATA);
  lade_data_close(data);
}

/* The tokenizer's file is loaded if its hash is the header's. */
static void a_tokenizer_is_known_by_its_hash(void **state)
{
  struct made_header header = made_header(120, -1, "t.json");
  struct lade_tokenizer_hash hash;
  struct lade_error error = {0};
  lade_data *data;
  char *text = NULL;
  size_t bytes = 0;
  const char *path = file_make("tokenizer.json", "", 0, "{\"a\": 1}", 8);
  assert_int_equal(lade_tokenizer_hash_file(path, &hash, &error), 0);
  memcpy(header.hash, hash.bytes, sizeof(hash.bytes));
  const char *files[] = {made_file("hashed.bin", &header)};
  struct lade_data_params params = params_make(files, 1, 2, 16);
  assert_int_equal(lade_data_open(&params, &error, &data), 0);
  assert_int_equal(lade_data_load_tokenizer(data, &error, &text, &bytes), 0);
  assert_int_equal(bytes, 8);
  assert_memory_equal(text, "{\"a\": 1}", 8);
  free(text);
  lade_data_close(data);
}

static void tokenizers_that_do_not_fit_are_refused(void **state)
{
  struct made_header header = made_header(120, 0, "t.json"), other = header;
  const char *files[] = {made_file("fits.bin", &header), NULL};
  open_refused(files, 1, 119, 2, "its tokenizer, t.json, has a vocabulary of 120, the model one of 119");
  other.hash[0] = 6;
  files[1] = made_file("other.bin", &other);
  open_refused(files, 2, 200, 2, "one tokenizer");
  const struct made_header bad[] = {made_header(0, 0, ""), made_header(65537, 0, ""), made_header(120, 120, ""),
                                    made_header(120, -2, ""), made_header(-1, -1, "")};
  for (size_t i = 0; i < LADE_COUNT(bad); i++) {
    files[0] = made_file("bad.bin", &bad[i]);
    open_refused(files, 1, 0, 2, "damaged");
  }
  other = header;
  other.extension_version = 2;
  files[0] = made_file("later.bin", &other);
  open_refused(files, 1, 0, 2, "version 1 is expected");
  other = header;
  memset(other.name, 'x', sizeof(other.name));
  files[0] = made_file("endless.bin", &other);
  open_refused(files, 1, 0, 2, "no end");
  const char unfinished[2048] = "LADEPART";
  files[0] = file_make("unfinished", unfinished, sizeof(unfinished), "", 0);
  open_refused(files, 1, 0, 2, "was not finished");
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(sequential_batches_follow_the_stream_and_start_over),
      cmocka_unit_test(random_rows_depend_on_seed_step_and_row_alone),
      cmocka_unit_test(text_is_bytes_and_the_last_part_validates),
      cmocka_unit_test(several_files_are_one_stream),
      cmocka_unit_test(llama_tokens_have_32_bits_and_bare_ones_say_their_vocabulary),
      cmocka_unit_test(bad_files_are_refused_with_the_reason),
      cmocka_unit_test(a_token_out_of_range_in_a_word_file_is_found),
      cmocka_unit_test(a_file_that_shrinks_is_an_error),
      cmocka_unit_test(a_header_names_its_tokenizer),
      cmocka_unit_test(a_tokenizer_is_known_by_its_hash),
      cmocka_unit_test(tokenizers_that_do_not_fit_are_refused),
      cmocka_unit_test(every_refused_call_is_reported),
  };
  return cmocka_run_group_tests(tests, scratch_setup_in_memory, scratch_teardown);
}
