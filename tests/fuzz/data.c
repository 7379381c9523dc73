/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as text and as token files: refused with one line, or every batch is read and in range. */
#include "run/data.h"
#include "tests/fuzz/fuzz_file.h"

#define BATCH 2
#define SEQ_LEN 3

static void batches_check(const lade_data *data, const struct lade_data_info *info)
{
  int32_t tokens[BATCH * SEQ_LEN], targets[BATCH * SEQ_LEN];
  for (int64_t step = 0; step < 8; step++) {
    const struct lade_batch batch = {.number = step, .n_rows = BATCH, .seq = SEQ_LEN, .tokens = tokens,
                                     .targets = targets};
    if (lade_data_read(data, &batch, NULL))
      abort();
    for (int i = 0; i < BATCH * SEQ_LEN; i++) {
      if (tokens[i] < 0 || tokens[i] >= info->vocabulary || targets[i] < 0 || targets[i] >= info->vocabulary)
        abort();
    }
  }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
  static const char *const names[] = {"text", "tokens.bin"};
  for (int i = 0; i < 4; i++) {
    const char *path = fuzz_file(names[i % 2], bytes, size);
    struct lade_data_params params = {.struct_size = sizeof(params), .files = &path, .n_files = 1, .batch = BATCH,
                                      .seq_len = SEQ_LEN, .valid_fraction = i / 2 ? 0.5 : 0,
                                      .order = i / 2 ? LADE_ORDER_RANDOM : LADE_ORDER_SEQUENTIAL,
                                      .vocabulary = i / 2 ? 256 : 0};
    struct lade_error error = {0};
    struct lade_data_info info;
    lade_data *data;
    if (lade_data_open(&params, &error, &data)) {
      fuzz_error_check(&error);
      continue;
    }
    lade_data_get_info(data, &info);
    batches_check(data, &info);
    lade_data_close(data);
  }
  return 0;
}
