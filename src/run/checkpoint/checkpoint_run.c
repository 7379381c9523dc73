/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The settings that determine a run's numbers beside its state: one table of fields. By it they are written into
 * state.json, read back, and compared when a run resumes. Names are those of the command's options, so a difference is
 * reported by the option that caused it.
 *
 * A state.json may lack the object: then nothing is compared, and the checkpoint loads. An object that lacks a field of
 * this table is damaged like one that lacks any other field; only the fields from moments on are optional.
 */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "run/checkpoint/checkpoint_internal.h"

enum run_field_type { FIELD_COUNT, FIELD_REAL, FIELD_DTYPE, FIELD_ORDER, FIELD_MOMENTS, FIELD_MASTER,
                     FIELD_GRAD_DTYPE, FIELD_FLAG };

static const struct run_field {
  const char *name;
  enum run_field_type type;
  bool is_schedule; /* has no effect if the learning rate is constant */
  size_t offset;
} fields[] = {
    {"dtype", FIELD_DTYPE, false, offsetof(struct lade_checkpoint_run, dtype)},
    {"batch", FIELD_COUNT, false, offsetof(struct lade_checkpoint_run, batch)},
    {"micro-batch", FIELD_COUNT, false, offsetof(struct lade_checkpoint_run, micro_batch)},
    {"seq", FIELD_COUNT, false, offsetof(struct lade_checkpoint_run, seq)},
    {"order", FIELD_ORDER, false, offsetof(struct lade_checkpoint_run, order)},
    {"steps", FIELD_COUNT, true, offsetof(struct lade_checkpoint_run, steps)},
    {"lr", FIELD_REAL, false, offsetof(struct lade_checkpoint_run, lr)},
    {"min-lr", FIELD_REAL, false, offsetof(struct lade_checkpoint_run, min_lr)},
    {"warmup", FIELD_COUNT, false, offsetof(struct lade_checkpoint_run, warmup)},
    {"dropout", FIELD_REAL, false, offsetof(struct lade_checkpoint_run, dropout)},
    {"beta1", FIELD_REAL, false, offsetof(struct lade_checkpoint_run, beta1)},
    {"beta2", FIELD_REAL, false, offsetof(struct lade_checkpoint_run, beta2)},
    {"eps", FIELD_REAL, false, offsetof(struct lade_checkpoint_run, eps)},
    {"weight-decay", FIELD_REAL, false, offsetof(struct lade_checkpoint_run, weight_decay)},
    {"clip", FIELD_REAL, false, offsetof(struct lade_checkpoint_run, clip)},
    {"moments", FIELD_MOMENTS, false, offsetof(struct lade_checkpoint_run, moments)},
    {"master", FIELD_MASTER, false, offsetof(struct lade_checkpoint_run, master)},
    {"grad-dtype", FIELD_GRAD_DTYPE, false, offsetof(struct lade_checkpoint_run, grad_dtype)},
    {"grad-reduce", FIELD_GRAD_DTYPE, false, offsetof(struct lade_checkpoint_run, grad_reduce)},
    {"gelu-fusion", FIELD_FLAG, false, offsetof(struct lade_checkpoint_run, gelu_fusion)},
};

#define DATA_KEY "data"
#define MAX_DATA_POSITION (INT64_C(1) << 62) /* tokens; each step adds to them, and must not overflow */

static const char *const dtype_texts[] = {[LADE_F32] = "fp32", [LADE_BF16] = "bf16", [LADE_F16] = "fp16"};
static const char *const grad_dtype_texts[] = {[LADE_F32] = "fp32", [LADE_BF16] = "bf16"};
static const char *const flag_texts[] = {"off", "on"};
static const char *const order_texts[] = {[LADE_ORDER_SEQUENTIAL] = "sequential", [LADE_ORDER_RANDOM] = "random"};

static const char *const moments_texts[] = {
    [LADE_MOMENTS_F32] = "fp32", [LADE_MOMENTS_BF16] = "bf16", [LADE_MOMENTS_8BIT] = "8bit"};
static const char *const master_texts[] = {[LADE_MASTER_EXACT] = "exact", [LADE_MASTER_24BIT] = "24bit"};

json_t *hex_json(uint64_t value)
{
  char text[20];
  snprintf(text, sizeof(text), "%016" PRIx64, value);
  return json_string(text);
}

bool hex_get(const json_t *value, uint64_t *ret_value)
{
  const char *text = json_string_value(value);
  if (!text || strlen(text) != 16 || strspn(text, "0123456789abcdef") != 16)
    return false;
  *ret_value = strtoull(text, NULL, 16);
  return true;
}

static const char *const *texts_of(enum run_field_type type, size_t *ret_n)
{
  switch (type) {
  case FIELD_DTYPE:
    *ret_n = LADE_COUNT(dtype_texts);
    return dtype_texts;
  case FIELD_GRAD_DTYPE:
    *ret_n = LADE_COUNT(grad_dtype_texts);
    return grad_dtype_texts;
  case FIELD_FLAG:
    *ret_n = LADE_COUNT(flag_texts);
    return flag_texts;
  case FIELD_MOMENTS:
    *ret_n = LADE_COUNT(moments_texts);
    return moments_texts;
  case FIELD_MASTER:
    *ret_n = LADE_COUNT(master_texts);
    return master_texts;
  default:
    *ret_n = LADE_COUNT(order_texts);
    return order_texts;
  }
}

static const void *field_of(const struct lade_checkpoint_run *run, const struct run_field *field)
{
  return (const char *)run + field->offset;
}

static int64_t count_of(const struct lade_checkpoint_run *run, const struct run_field *field)
{
  return *(const int64_t *)field_of(run, field);
}

static double real_of(const struct lade_checkpoint_run *run, const struct run_field *field)
{
  return *(const double *)field_of(run, field);
}

static const char *text_of(const struct lade_checkpoint_run *run, const struct run_field *field)
{
  size_t n;
  const char *const *texts = texts_of(field->type, &n);
  int64_t value = count_of(run, field);
  LADE_ASSERT(value >= 0 && value < (int64_t)n);
  return texts[value];
}

/* ---- ranges ---- */

static bool is_in_range(const struct lade_checkpoint_run *run, const struct run_field *field)
{
  size_t n;
  if (field->type == FIELD_REAL)
    return isfinite(real_of(run, field));
  if (field->type == FIELD_COUNT)
    return count_of(run, field) >= 0;
  texts_of(field->type, &n);
  return count_of(run, field) >= 0 && count_of(run, field) < (int64_t)n;
}

static const char *run_fault(const struct lade_checkpoint_run *run)
{
  unsigned char is_known; /* the byte, because a bool that is neither 0 nor 1 must not be read as one */
  memcpy(&is_known, &run->is_known, sizeof(is_known));
  if (is_known > 1)
    return "is_known";
  for (size_t i = 0; i < LADE_COUNT(fields) && is_known; i++) {
    if (!is_in_range(run, &fields[i]))
      return fields[i].name;
  }
  return NULL;
}

const char *saved_state_fault(const struct lade_checkpoint_state *state)
{
  if (state->step < 0 || state->step > UINT32_MAX)
    return "step";
  if (!isfinite(state->loss_scale) || state->loss_scale <= 0)
    return "loss_scale";
  if (state->good_steps < 0 || state->good_steps > UINT32_MAX)
    return "good_steps";
  if (!memchr(state->model, 0, sizeof(state->model)))
    return "model";
  if (state->data_position < 0 || state->data_position > MAX_DATA_POSITION)
    return "data_position";
  return run_fault(&state->run);
}

/* ---- JSON ---- */

static json_t *field_json(const struct lade_checkpoint_run *run, const struct run_field *field)
{
  switch (field->type) {
  case FIELD_COUNT:
    return json_integer(count_of(run, field));
  case FIELD_REAL:
    return json_real(real_of(run, field));
  default:
    return json_string(text_of(run, field));
  }
}

json_t *saved_run_json(const struct lade_checkpoint_run *run)
{
  json_t *object = json_object();
  bool is_whole = object && json_object_set_new(object, DATA_KEY, hex_json(run->data_key)) == 0;
  for (size_t i = 0; i < LADE_COUNT(fields) && is_whole; i++)
    is_whole = json_object_set_new(object, fields[i].name, field_json(run, &fields[i])) == 0;
  if (is_whole)
    return object;
  json_decref(object);
  return NULL;
}

static bool choice_read(const json_t *value, enum run_field_type type, int64_t *ret_value)
{
  size_t n;
  const char *const *texts = texts_of(type, &n), *text = json_string_value(value);
  for (size_t i = 0; i < n && text; i++) {
    if (strcmp(text, texts[i]) == 0) {
      *ret_value = (int64_t)i;
      return true;
    }
  }
  return false;
}

static bool field_read(const json_t *value, const struct run_field *field, struct lade_checkpoint_run *run)
{
  void *at = (char *)run + field->offset;
  if (!value && field->type >= FIELD_MOMENTS)
    return true; /* optional: 0 is the exact form */
  switch (field->type) {
  case FIELD_COUNT:
    *(int64_t *)at = json_integer_value(value);
    return json_is_integer(value);
  case FIELD_REAL:
    *(double *)at = json_number_value(value);
    return json_is_number(value);
  default:
    return choice_read(value, field->type, at);
  }
}

bool saved_run_read(const json_t *object, struct lade_checkpoint_run *ret_run)
{
  struct lade_checkpoint_run run = {.is_known = true};
  bool is_whole = hex_get(json_object_get(object, DATA_KEY), &run.data_key);
  for (size_t i = 0; i < LADE_COUNT(fields) && is_whole; i++)
    is_whole = field_read(json_object_get(object, fields[i].name), &fields[i], &run);
  if (is_whole)
    *ret_run = run;
  return is_whole;
}

/* ---- comparing ---- */

static bool is_constant_rate(const struct lade_checkpoint_run *run)
{
  return run->lr == run->min_lr;
}

static bool is_same(const struct lade_checkpoint_run *a, const struct lade_checkpoint_run *b,
                    const struct run_field *field)
{
  if (field->is_schedule && is_constant_rate(a) && is_constant_rate(b))
    return true;
  return field->type == FIELD_REAL ? real_of(a, field) == real_of(b, field) : count_of(a, field) == count_of(b, field);
}

static void value_format(const struct lade_checkpoint_run *run, const struct run_field *field, char text[32])
{
  if (field->type == FIELD_COUNT)
    snprintf(text, 32, "%lld", (long long)count_of(run, field));
  else if (field->type == FIELD_REAL)
    snprintf(text, 32, "%.9g", real_of(run, field));
  else
    snprintf(text, 32, "%s", text_of(run, field));
}

/*
 * Describe a difference. The layout determines the microbatch from batch and --micro-batch; other fields are options.
 */
static void difference_describe(const struct run_field *field, const char *old, const char *new, char text[128])
{
  if (field->offset == offsetof(struct lade_checkpoint_run, micro_batch))
    snprintf(text, 128, "microbatches had %s rows and have %s, by the layout or --micro-batch", old, new);
  else
    snprintf(text, 128, "--%s was %s and is %s", field->name, old, new);
}

/* Append to a list of differences, as far as there is room. */
static void difference_add(char *text, size_t text_bytes, const char *difference)
{
  size_t used = strlen(text);
  snprintf(text + used, text_bytes - used, "%s%s", used ? ", " : "", difference);
}

int lade_checkpoint_run_compare(const struct lade_checkpoint_run *saved, const struct lade_checkpoint_run *now,
                                char *text, size_t text_bytes)
{
  int n = 0;
  LADE_ASSERT(text_bytes > 0);
  *text = 0;
  if (!saved->is_known || !now->is_known)
    return 0;
  for (size_t i = 0; i < LADE_COUNT(fields); i++) {
    char old[32], new[32], difference[128];
    if (is_same(saved, now, &fields[i]))
      continue;
    value_format(saved, &fields[i], old);
    value_format(now, &fields[i], new);
    difference_describe(&fields[i], old, new, difference);
    difference_add(text, text_bytes, difference);
    n++;
  }
  if (saved->data_key != now->data_key) {
    difference_add(text, text_bytes, "the training data is another, or its documents are masked in another way");
    n++;
  }
  return n;
}
