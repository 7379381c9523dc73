/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Machines as JSON: one table of fields drives reading, writing and checking.
 *
 * Each row of the table is a path in the JSON object ("store.read_bytes_per_s"), a place in the struct, a type and a
 * range. Reading goes through the table and looks each path up. Members of the file that the table lacks are refused,
 * so that a misspelt field never becomes a default silently. A file may begin from a preset ("preset": "h100-80g") and
 * state only the differences; without one every field that has no default in the table is required.
 *
 * Capacities are written in bytes and also accepted with units ("80GiB"); rates are plain numbers in units per second.
 * Ranges are wide (a rate from 1 kB/s to 1 EB/s). They catch a wrong unit, a sign or an infinity, because every number
 * is divided by later. Values echoed in a message come from jansson's encoder, cut short, so that a hostile string
 * stays one line.
 */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "base/base.h"
#include "base/echo.h"
#include "base/file.h"
#include "machine/machine.h"

#define MAX_FILE_BYTES (1 << 20) /* far more than any description has */

enum machine_field_type { FIELD_TEXT, FIELD_COUNT, FIELD_FLAG, FIELD_BYTES, FIELD_WHOLE_RATE, FIELD_NUMBER };

struct field {
  const char *path; /* at most one dot */
  size_t offset;
  enum machine_field_type type;
  double low, high;
  bool is_optional; /* if absent, the struct's value stays: 0, or the preset's */
  bool has_zero;    /* 0 is allowed below @low, with the meaning in machine.h */
};

#define AT(member) offsetof(struct lade_machine, member)
#define MIN_RATE 1e3      /* per second: a smaller one is likely in another unit */
#define MAX_RATE 1e18     /* per second: the same */
#define PIECE_ALIGN 65536 /* requests are whole granules of the store */

static const struct field fields[] = {
    {"name", AT(name), FIELD_TEXT, 1, LADE_MACHINE_NAME_BYTES - 1, false, false},
    {"cores", AT(n_cores), FIELD_COUNT, 1, 65536, false, false},
    {"unified", AT(is_unified), FIELD_FLAG, 0, 1, false, false},
    {"device_bytes", AT(device_bytes), FIELD_BYTES, 1 << 20, 0x1p60, false, false},
    {"host_bytes", AT(host_bytes), FIELD_BYTES, 1 << 20, 0x1p60, false, false},
    {"matmul_flops_per_s.f32", AT(matmul_flops_per_s[LADE_F32]), FIELD_NUMBER, 1e6, 1e18, false, false},
    {"matmul_flops_per_s.bf16", AT(matmul_flops_per_s[LADE_BF16]), FIELD_NUMBER, 1e6, 1e18, true, true},
    {"matmul_flops_per_s.f16", AT(matmul_flops_per_s[LADE_F16]), FIELD_NUMBER, 1e6, 1e18, true, true},
    {"device_bytes_per_s", AT(device_bytes_per_s), FIELD_NUMBER, MIN_RATE, MAX_RATE, false, false},
    {"launch_ns", AT(launch_ns), FIELD_NUMBER, 0, 1e9, false, false},
    {"to_host.bytes_per_s", AT(to_host.bytes_per_s), FIELD_WHOLE_RATE, MIN_RATE, MAX_RATE, false, false},
    {"to_host.latency_ns", AT(to_host.latency_ns), FIELD_WHOLE_RATE, 0, 1e12, true, false},
    {"to_device.bytes_per_s", AT(to_device.bytes_per_s), FIELD_WHOLE_RATE, MIN_RATE, MAX_RATE, false, false},
    {"to_device.latency_ns", AT(to_device.latency_ns), FIELD_WHOLE_RATE, 0, 1e12, true, false},
    {"duplex", AT(is_duplex), FIELD_FLAG, 0, 1, false, false},
    {"host_bytes_per_s", AT(host_bytes_per_s), FIELD_NUMBER, MIN_RATE, MAX_RATE, false, false},
    {"store.bytes", AT(store.bytes), FIELD_BYTES, 0, 0x1p62, true, false},
    {"store.read_bytes_per_s", AT(store.read_bytes_per_s), FIELD_NUMBER, MIN_RATE, MAX_RATE, true, true},
    {"store.write_bytes_per_s", AT(store.write_bytes_per_s), FIELD_NUMBER, MIN_RATE, MAX_RATE, true, true},
    {"store.total_bytes_per_s", AT(store.total_bytes_per_s), FIELD_NUMBER, MIN_RATE, MAX_RATE, true, true},
    {"store.total_mostly_writes_bytes_per_s", AT(store.total_mostly_writes_bytes_per_s), FIELD_NUMBER, MIN_RATE,
     MAX_RATE, true, true},
    {"store.total_mostly_reads_bytes_per_s", AT(store.total_mostly_reads_bytes_per_s), FIELD_NUMBER, MIN_RATE,
     MAX_RATE, true, true},
    {"store.lasting_read_bytes_per_s", AT(store.lasting_read_bytes_per_s), FIELD_NUMBER, MIN_RATE, MAX_RATE, true,
     true},
    {"store.lasting_write_bytes_per_s", AT(store.lasting_write_bytes_per_s), FIELD_NUMBER, MIN_RATE, MAX_RATE, true,
     true},
    {"store.lasting_bytes_per_s", AT(store.lasting_bytes_per_s), FIELD_NUMBER, MIN_RATE, MAX_RATE, true, true},
    {"store.lasting_latency_ns", AT(store.lasting_latency_ns), FIELD_NUMBER, 0, 1e12, true, true},
    {"store.latency_ns", AT(store.latency_ns), FIELD_NUMBER, 0, 1e12, true, false},
    {"store.piece_bytes", AT(store.piece_bytes), FIELD_BYTES, PIECE_ALIGN, 64 << 20, true, true},
    {"store.pieces", AT(store.n_pieces), FIELD_COUNT, 1, 1024, true, true},
    {"store.window_bytes", AT(store.window_bytes), FIELD_BYTES, 1 << 16, 256 << 20, true, true},
    {"store.windows", AT(store.n_windows), FIELD_COUNT, 2, 32, true, true},
    {"kernels.sms", AT(kernels.n_sms), FIELD_COUNT, 1, 65536, true, true},
    {"kernels.product_flops_per_s", AT(kernels.product_flops_per_s), FIELD_NUMBER, 1e6, 1e18, true, true},
    {"kernels.product_depth", AT(kernels.product_depth), FIELD_NUMBER, 1, 1e6, true, true},
    {"kernels.attention_forward", AT(kernels.attention_forward), FIELD_NUMBER, 1e-3, 1, true, true},
    {"kernels.attention_backward", AT(kernels.attention_backward), FIELD_NUMBER, 1e-3, 1, true, true},
    {"kernels.attention_depth", AT(kernels.attention_depth), FIELD_NUMBER, 1, 1e6, true, true},
    {"kernels.eager_attention_forward", AT(kernels.eager_attention_forward), FIELD_NUMBER, 1e-3, 1, true, true},
    {"kernels.eager_attention_backward", AT(kernels.eager_attention_backward), FIELD_NUMBER, 1e-3, 1, true, true},
    {"kernels.score_forward_bytes", AT(kernels.score_forward_bytes), FIELD_NUMBER, 1, 1e3, true, true},
    {"kernels.score_backward_bytes", AT(kernels.score_backward_bytes), FIELD_NUMBER, 1, 1e3, true, true},
    {"kernels.logit_bytes", AT(kernels.logit_bytes), FIELD_NUMBER, 1, 1e3, true, true},
    {"kernels.rated_watts", AT(kernels.rated_watts), FIELD_NUMBER, 1, 1e5, true, true},
    {"kernels.power_watts", AT(kernels.power_watts), FIELD_NUMBER, 1, 1e5, true, true},
    {"kernels.host_op_ns", AT(kernels.host_op_ns), FIELD_NUMBER, 1, 1e9, true, true},
};

static void *field_at(const struct field *field, const struct lade_machine *machine)
{
  return (char *)machine + field->offset;
}

/* Return the field's value as a number; for text its length. */
static double field_number(const struct field *field, const struct lade_machine *machine)
{
  const void *at = field_at(field, machine);
  switch (field->type) {
  case FIELD_TEXT:
    return (double)strlen(at);
  case FIELD_COUNT:
    return *(const int *)at;
  case FIELD_FLAG:
    return *(const bool *)at;
  case FIELD_BYTES:
  case FIELD_WHOLE_RATE:
    return (double)*(const uint64_t *)at;
  default:
    return *(const double *)at;
  }
}

static bool in_range(const struct field *field, double value)
{
  return (value >= field->low && value <= field->high) || (value == 0 && field->has_zero);
}

/* ---- reading ---- */

struct json_source {
  const char *where;
  const json_t *object;
  struct lade_error *error;
};

static const json_t *path_find(const json_t *object, const char *path)
{
  const char *dot = strchr(path, '.');
  if (!dot)
    return json_object_get(object, path);
  char head[32];
  size_t length = (size_t)(dot - path);
  LADE_ASSERT(length < sizeof(head));
  memcpy(head, path, length);
  head[length] = 0;
  return json_object_get(json_object_get(object, head), dot + 1);
}

/* Write the bytes that @field accepts, or the units if @value is a size whose unit is unknown. */
static void bytes_expect(const struct field *field, const json_t *value, char *expected, size_t expected_bytes)
{
  char low[32], high[32];
  uint64_t bytes;
  const char *text = json_string_value(value);
  if (text && text[0] >= '0' && text[0] <= '9' && lade_size_parse(text, &bytes) == -EINVAL)
    snprintf(expected, expected_bytes,
             "one of the units B, KiB, MiB, GiB, TiB, PiB, kB, MB, GB, TB and PB after the number");
  else
    snprintf(expected, expected_bytes, "bytes or a size such as \"80GiB\", from %s to %s%s",
             lade_size_format((uint64_t)field->low, low, sizeof(low)),
             lade_size_format((uint64_t)field->high, high, sizeof(high)), field->has_zero ? ", or 0" : "");
}

static int field_refuse(const struct json_source *source, const struct field *field, const json_t *value)
{
  char expected[96];
  if (field->type == FIELD_FLAG)
    snprintf(expected, sizeof(expected), "true or false");
  else if (field->type == FIELD_BYTES)
    bytes_expect(field, value, expected, sizeof(expected));
  else if (field->type == FIELD_TEXT)
    snprintf(expected, sizeof(expected), "a text of %g to %g bytes", field->low, field->high);
  else
    snprintf(expected, sizeof(expected), "%s from %g to %g%s",
             field->type == FIELD_NUMBER ? "a number" : "a whole number", field->low, field->high,
             field->has_zero ? ", or 0" : "");
  return lade_error_set(source->error, -EINVAL, "%s: %s is %s: expected %s", source->where, field->path,
                        lade_json_echo(value).text, expected);
}

/* Read @value in the form of @field, as a number. False if it has another form. */
static bool number_of(const struct field *field, const json_t *value, double *ret_number)
{
  uint64_t bytes;
  if (field->type == FIELD_FLAG) {
    *ret_number = json_is_true(value);
    return json_is_boolean(value);
  }
  if (field->type == FIELD_BYTES && json_is_string(value)) {
    if (lade_size_parse(json_string_value(value), &bytes))
      return false;
    *ret_number = (double)bytes;
    return true;
  }
  *ret_number = json_number_value(value);
  bool is_whole = field->type == FIELD_COUNT || field->type == FIELD_BYTES || field->type == FIELD_WHOLE_RATE;
  return json_is_number(value) && isfinite(*ret_number) && (!is_whole || *ret_number == floor(*ret_number));
}

static bool field_set(const struct field *field, const json_t *value, struct lade_machine *machine)
{
  void *at = field_at(field, machine);
  double number;
  if (field->type == FIELD_TEXT) {
    const char *text = json_string_value(value);
    if (!text || !in_range(field, (double)strlen(text)))
      return false;
    memcpy(at, text, strlen(text) + 1);
    return true;
  }
  if (!number_of(field, value, &number) || !in_range(field, number))
    return false;
  switch (field->type) {
  case FIELD_COUNT:
    *(int *)at = (int)number;
    break;
  case FIELD_FLAG:
    *(bool *)at = number != 0;
    break;
  case FIELD_BYTES:
  case FIELD_WHOLE_RATE:
    *(uint64_t *)at = json_is_integer(value) ? (uint64_t)json_integer_value(value) : (uint64_t)number;
    break;
  default:
    *(double *)at = number;
  }
  return true;
}

/* True if @path names a group of fields. Groups hold no groups, which bounds the depth of the file. */
static bool group_is(const char *path)
{
  size_t length = strlen(path);
  for (size_t i = 0; i < LADE_COUNT(fields); i++) {
    if (!strncmp(fields[i].path, path, length) && fields[i].path[length] == '.')
      return true;
  }
  return false;
}

static bool is_known(const char *path)
{
  for (size_t i = 0; i < LADE_COUNT(fields); i++) {
    if (!strcmp(fields[i].path, path))
      return true;
  }
  return group_is(path) || !strcmp(path, "preset");
}

/* Refuse members that are no field, and groups that are no objects. */
static int unknown_refuse(const struct json_source *source, const json_t *object, const char *prefix)
{
  const char *key;
  json_t *value;
  json_object_foreach((json_t *)object, key, value)
  {
    char path[80];
    bool fits = snprintf(path, sizeof(path), "%s%s", prefix, key) < (int)sizeof(path);
    if (!fits || !is_known(path)) {
      json_t *name = json_string(key); /* echoed through the encoder: a key may hold any bytes */
      int rc = lade_error_set(source->error, -EINVAL, "%s: unknown field %s%s: see docs/machines.md", source->where,
                              prefix, name ? lade_json_echo(name).text : "?");
      json_decref(name);
      return rc;
    }
    bool is_group = group_is(path);
    if (is_group != json_is_object(value))
      return lade_error_set(source->error, -EINVAL, "%s: %s is %s: expected %s", source->where, path,
                            is_group ? "no object" : "an object", is_group ? "one" : "a value");
    if (!is_group)
      continue;
    char deeper[84];
    snprintf(deeper, sizeof(deeper), "%s.", path);
    int rc = unknown_refuse(source, value, deeper);
    if (rc)
      return rc;
  }
  return 0;
}

/* Check that the constants of kernels are stated together. */
static int kernels_check(const struct lade_kernel_model *kernels, const char *where, struct lade_error *error)
{
  if (kernels->n_sms && (kernels->product_flops_per_s == 0 || kernels->product_depth == 0))
    return lade_error_set(error, -EINVAL, "%s: kernels.sms is stated without kernels.%s", where,
                          kernels->product_flops_per_s == 0 ? "product_flops_per_s" : "product_depth");
  if (kernels->n_sms && (kernels->attention_forward == 0 || kernels->attention_backward == 0))
    return lade_error_set(error, -EINVAL, "%s: kernels.sms is stated without kernels.attention_%s", where,
                          kernels->attention_forward == 0 ? "forward" : "backward");
  if ((kernels->eager_attention_forward == 0) != (kernels->eager_attention_backward == 0))
    return lade_error_set(error, -EINVAL, "%s: kernels.eager_attention_%s is stated without kernels.eager_attention_%s",
                          where, kernels->eager_attention_forward == 0 ? "backward" : "forward",
                          kernels->eager_attention_forward == 0 ? "forward" : "backward");
  if (kernels->power_watts > kernels->rated_watts)
    return lade_error_set(error, -EINVAL, "%s: kernels.power_watts is %g: expected at most kernels.rated_watts, %g, "
                          "the power at which kernels.product_flops_per_s holds", where, kernels->power_watts,
                          kernels->rated_watts);
  return 0;
}

int lade_machine_check(const struct lade_machine *machine, const char *where, struct lade_error *error)
{
  for (size_t i = 0; i < LADE_COUNT(fields); i++) {
    if (!in_range(&fields[i], field_number(&fields[i], machine)))
      return lade_error_set(error, -EINVAL, "%s: %s is %g: expected %g to %g", where, fields[i].path,
                            field_number(&fields[i], machine), fields[i].low, fields[i].high);
  }
  const struct lade_machine_store *store = &machine->store;
  if (store->bytes && (store->read_bytes_per_s == 0 || store->write_bytes_per_s == 0))
    return lade_error_set(error, -EINVAL, "%s: store.bytes is stated without store.%s_bytes_per_s", where,
                          store->read_bytes_per_s == 0 ? "read" : "write");
  if (store->piece_bytes % PIECE_ALIGN)
    return lade_error_set(error, -EINVAL, "%s: store.piece_bytes is %llu: expected a multiple of %d", where,
                          (unsigned long long)store->piece_bytes, PIECE_ALIGN);
  return kernels_check(&machine->kernels, where, error);
}

int lade_machine_from_json(const json_t *object, const char *where, struct lade_error *error,
                           struct lade_machine *ret_machine)
{
  struct json_source source = {where, object, error};
  struct lade_machine machine = {0};
  if (!json_is_object(object))
    return lade_error_set(error, -EBADMSG, "%s: not a JSON object", where);
  int rc = unknown_refuse(&source, object, "");
  if (rc)
    return rc;
  const json_t *preset = json_object_get(object, "preset");
  if (preset) {
    if (!json_is_string(preset))
      return lade_error_set(error, -EINVAL, "%s: preset is no text: expected a preset's name", where);
    struct lade_error unknown;
    rc = lade_machine_preset(json_string_value(preset), &unknown, &machine);
    if (rc) /* not -ENOENT: the file exists */
      return lade_error_set(error, -EINVAL, "%s: preset: %s", where, unknown.text);
  }
  for (size_t i = 0; i < LADE_COUNT(fields); i++) {
    const json_t *value = path_find(object, fields[i].path);
    if (!value && (preset || fields[i].is_optional))
      continue;
    if (!value || !field_set(&fields[i], value, &machine))
      return field_refuse(&source, &fields[i], value);
  }
  rc = lade_machine_check(&machine, where, error);
  if (!rc)
    *ret_machine = machine;
  return rc;
}

int lade_machine_load(const char *path, struct lade_error *error, struct lade_machine *ret_machine)
{
  char *text;
  size_t bytes;
  int rc = lade_file_load(path, MAX_FILE_BYTES, error, &text, &bytes);
  if (rc)
    return rc;
  json_error_t problem;
  const size_t mark_bytes = lade_text_mark_bytes(text, bytes);
  json_t *object = json_loadb(text + mark_bytes, bytes - mark_bytes, JSON_REJECT_DUPLICATES, &problem);
  free(text);
  if (!object)
    return lade_error_set(error, -EBADMSG, "%s:%d: not valid JSON: %s", path, problem.line, problem.text);
  rc = lade_machine_from_json(object, path, error, ret_machine);
  json_decref(object);
  return rc;
}

/* ---- writing ---- */

static json_t *field_json(const struct field *field, const struct lade_machine *machine)
{
  double number = field_number(field, machine);
  switch (field->type) {
  case FIELD_TEXT:
    return json_string(field_at(field, machine));
  case FIELD_FLAG:
    return json_boolean(number != 0);
  case FIELD_COUNT:
    return json_integer((json_int_t)number);
  case FIELD_BYTES:
  case FIELD_WHOLE_RATE:
    return json_integer((json_int_t)*(const uint64_t *)field_at(field, machine));
  default:
    return json_real(number);
  }
}

static bool path_set(json_t *object, const char *path, json_t *value)
{
  const char *dot = strchr(path, '.');
  if (!dot)
    return !json_object_set_new(object, path, value);
  char head[32];
  snprintf(head, sizeof(head), "%.*s", (int)(dot - path), path);
  json_t *group = json_object_get(object, head);
  if (!group && json_object_set_new(object, head, group = json_object())) {
    json_decref(value);
    return false;
  }
  return !json_object_set_new(group, dot + 1, value);
}

json_t *lade_machine_to_json(const struct lade_machine *machine)
{
  json_t *object = json_object();
  for (size_t i = 0; object && i < LADE_COUNT(fields); i++) {
    if (!path_set(object, fields[i].path, field_json(&fields[i], machine))) {
      json_decref(object);
      object = NULL;
    }
  }
  return object;
}

int lade_machine_save(const struct lade_machine *machine, const char *path, struct lade_error *error)
{
  json_t *object = lade_machine_to_json(machine);
  char *text = object ? json_dumps(object, JSON_INDENT(2)) : NULL;
  json_decref(object);
  if (!text)
    return lade_error_set(error, -ENOMEM, "%s: cannot write: out of memory, or the name is not UTF-8", path);
  int rc = lade_file_replace(path, text, strlen(text), error);
  free(text);
  return rc;
}

struct lade_machine_store lade_machine_store_share(const struct lade_machine_store *store, int64_t n)
{
  struct lade_machine_store share = *store;
  double *const rates[] = {&share.read_bytes_per_s, &share.write_bytes_per_s, &share.total_bytes_per_s,
                           &share.total_mostly_writes_bytes_per_s, &share.total_mostly_reads_bytes_per_s,
                           &share.lasting_read_bytes_per_s, &share.lasting_write_bytes_per_s,
                           &share.lasting_bytes_per_s};
  share.bytes /= (uint64_t)n;
  for (size_t i = 0; i < LADE_COUNT(rates); i++)
    *rates[i] /= (double)n;
  return share;
}

int lade_machine_get(const char *name, struct lade_error *error, struct lade_machine *ret_machine)
{
  struct lade_error from_preset;
  int rc = lade_machine_preset(name, &from_preset, ret_machine);
  if (rc != -ENOENT)
    return rc;
  rc = lade_machine_load(name, error, ret_machine);
  const bool is_path = strchr(name, '/') || strchr(name, '.');
  return rc == -ENOENT && !is_path ? lade_error_set(error, rc, "%s, or the path of a description", from_preset.text)
                                   : rc;
}

/* ---- drives ---- */

/*
 * Return seconds per byte when @share of the bytes are read: the least time in which reads, writes and both together
 * each stay within their rate.
 */
static double limits_seconds(const struct lade_machine_store *store, double share)
{
  double seconds = fmax(share / store->read_bytes_per_s, (1 - share) / store->write_bytes_per_s);
  return store->total_bytes_per_s > 0 ? fmax(seconds, 1 / store->total_bytes_per_s) : seconds;
}

/*
 * Return seconds per byte along the drive's curve, if known: straight lines through its five points. Time is
 * interpolated, not rate. For a drive that serves reads and writes in turns it is a straight line; for one that serves
 * both at once it has one corner.
 */
static double mix_seconds(const struct lade_machine_store *store, double share)
{
  const double rates[] = {store->write_bytes_per_s, store->total_mostly_writes_bytes_per_s, store->total_bytes_per_s,
                          store->total_mostly_reads_bytes_per_s, store->read_bytes_per_s};
  const int n_spans = (int)LADE_COUNT(rates) - 1;
  if (rates[1] <= 0 && rates[3] <= 0)
    return limits_seconds(store, share);
  double seconds[2];
  const int span = LADE_MIN((int)(share * n_spans), n_spans - 1);
  for (int i = 0; i < 2; i++)
    seconds[i] = rates[span + i] > 0 ? 1 / rates[span + i] : limits_seconds(store, (double)(span + i) / n_spans);
  const double part = share * n_spans - span;
  return seconds[0] + part * (seconds[1] - seconds[0]);
}

/*
 * Return the time of bytes in a long run over their time among the drive's first gigabytes, when @share of them are
 * read. It is linear between the known ratios of writes, of both and of reads, and constant beyond them.
 */
static double lasting_factor(const struct lade_machine_store *store, double share)
{
  const double rates[] = {store->lasting_write_bytes_per_s, store->lasting_bytes_per_s,
                          store->lasting_read_bytes_per_s};
  const int n_spans = (int)LADE_COUNT(rates) - 1;
  int low = -1, high = -1;
  for (int i = 0; i <= n_spans; i++) {
    if (rates[i] > 0 && (low < 0 || i <= share * n_spans))
      low = i;
    if (rates[i] > 0 && (high < 0 || high < share * n_spans))
      high = i;
  }
  if (low < 0)
    return 1;
  const double low_factor = 1 / (rates[low] * mix_seconds(store, (double)low / n_spans));
  const double high_factor = 1 / (rates[high] * mix_seconds(store, (double)high / n_spans));
  return high > low ? low_factor + (share * n_spans - low) / (high - low) * (high_factor - low_factor) : low_factor;
}

bool lade_drive_is_lasting(const struct lade_machine_store *store)
{
  return store->lasting_read_bytes_per_s > 0 || store->lasting_write_bytes_per_s > 0 || store->lasting_bytes_per_s > 0;
}

double lade_drive_latency_ns(const struct lade_machine_store *store)
{
  return lade_drive_is_lasting(store) ? store->lasting_latency_ns : store->latency_ns;
}

double lade_drive_bytes_per_s(const struct lade_machine_store *store, double share)
{
  return 1 / (mix_seconds(store, share) * lasting_factor(store, share));
}
