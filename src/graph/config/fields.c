/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One field of a config.json at a time.
 *
 * A message is one line: the file, the field, its value, the expected value. Values are echoed through jansson's own
 * encoder, cut short, so a hostile string cannot break the line.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/base.h"
#include "base/echo.h"
#include "graph/config/config.h"

int field_refuse(const struct config *config, const char *name, const char *expected)
{
  return lade_error_set(config->error, -EINVAL, "%s: %s%s is %s: expected %s", config->path, config->prefix, name,
                        lade_json_echo(json_object_get(config->object, name)).text, expected);
}

const json_t *field_find(const struct config *config, const char *name)
{
  const json_t *value = json_object_get(config->object, name);
  return json_is_null(value) ? NULL : value;
}

struct config field_object(const struct config *outer, const char *name, const char *prefix)
{
  struct config inner = *outer;
  inner.object = json_object_get(outer->object, name);
  inner.prefix = prefix;
  return inner;
}

bool field_is_absent(const struct config *config, const char *name)
{
  return !json_object_get(config->object, name);
}

int field_integer(const struct config *config, const char *name, int64_t fallback, int64_t *ret_value)
{
  const json_t *value = field_find(config, name);
  if (!value && fallback >= 0) {
    *ret_value = fallback;
    return 0;
  }
  if (!json_is_integer(value))
    return field_refuse(config, name, "a whole number");
  *ret_value = json_integer_value(value);
  return 0;
}

int field_number(const struct config *config, const char *name, float fallback, float *ret_value)
{
  const json_t *value = field_find(config, name);
  if (!value && fallback >= 0) {
    *ret_value = fallback;
    return 0;
  }
  if (!json_is_number(value))
    return field_refuse(config, name, "a number");
  *ret_value = (float)json_number_value(value);
  return 0;
}

int field_boolean(const struct config *config, const char *name, bool fallback, bool *ret_value)
{
  const json_t *value = field_find(config, name);
  if (value && !json_is_boolean(value))
    return field_refuse(config, name, "true or false");
  *ret_value = value ? json_is_true(value) : fallback;
  return 0;
}

int field_fixed(const struct config *config, const char *name, bool expected)
{
  bool value = expected;
  int rc = field_boolean(config, name, expected, &value);
  if (rc == 0 && value != expected)
    rc = field_refuse(config, name, expected ? "true" : "false");
  return rc;
}

int field_choice(const struct config *config, const char *name, bool is_optional, const char *a, const char *b)
{
  const json_t *value = field_find(config, name);
  const char *text = json_string_value(value);
  if ((!value && is_optional) || (text && (strcmp(text, a) == 0 || (b && strcmp(text, b) == 0))))
    return 0;
  char expected[64];
  snprintf(expected, sizeof(expected), b ? "\"%s\" or \"%s\"" : "\"%s\"", a, b);
  return field_refuse(config, name, expected);
}
