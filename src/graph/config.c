/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reader of HuggingFace's config.json: the file, and one field at a time. The files are untrusted. A directory stands for
 * the config.json in it. config_families.c knows the fields of each family, config_rope.c those of rotary positions.
 *
 * A message is one line: the file, the field, its value, the expected value. Values are echoed through jansson's own
 * encoder, cut short, so a hostile string cannot break the line.
 */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/base.h"
#include "base/echo.h"
#include "base/file.h"
#include "graph/config.h"

/* The largest real config.json is some hundred kilobytes; larger files are refused. */
#define MAX_FILE_BYTES (4 << 20)

/* ---- one field ---- */

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

/* ---- the file ---- */

/* Refuse a model_type without a row in the table of families, with the list of those that have one. */
static int type_refuse(const struct config *config)
{
  char expected[400] = "one of ";
  for (int i = 0; i < LADE_N_FAMILIES; i++) {
    size_t used = strlen(expected);
    snprintf(expected + used, sizeof(expected) - used, "%s%s", i ? ", " : "", lade_family_get(i)->model_type);
  }
  return field_refuse(config, "model_type", expected);
}

static int config_read(const struct config *config, struct lade_model *model)
{
  const char *type = json_string_value(field_find(config, "model_type"));
  int family = type ? lade_family_find(type) : -1;
  if (family < 0)
    return type_refuse(config);
  snprintf(model->name, sizeof(model->name), "%s", type);
  return config_family_read(config, family, model);
}

/* Load the config.json at @path, a file. */
static int file_load(const char *path, struct lade_model *ret_model, struct lade_error *error)
{
  char *text = NULL;
  size_t bytes = 0;
  int rc = lade_file_load(path, MAX_FILE_BYTES, error, &text, &bytes);
  if (rc < 0)
    return rc;
  json_error_t json_error;
  json_t *root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &json_error);
  free(text);
  if (!root && (json_error.text[0] == 0 || json_error_code(&json_error) == json_error_out_of_memory))
    return lade_error_set(error, -ENOMEM, "%s: out of memory reading it", path); /* a syntax error always has a text */
  if (!root)
    return lade_error_set(error, -EBADMSG, "%s: line %d: not JSON: %s", path, json_error.line, json_error.text);
  struct lade_model model = {0};
  struct config config = {.path = path, .object = root, .prefix = "", .error = error};
  if (json_is_object(root))
    rc = config_read(&config, &model);
  else
    rc = lade_error_set(error, -EBADMSG, "%s: not a JSON object: expected a model's config.json", path);
  json_decref(root);
  if (rc == 0)
    *ret_model = model;
  return rc;
}

int lade_model_load(const char *path, struct lade_model *ret_model, struct lade_error *error)
{
  char config[PATH_MAX];
  struct stat st;
  if (stat(path, &st) || !S_ISDIR(st.st_mode))
    return file_load(path, ret_model, error);
  if (snprintf(config, sizeof(config), "%s/config.json", path) >= (int)sizeof(config))
    return lade_error_set(error, -ENAMETOOLONG, "%.64s...: path too long", path);
  return file_load(config, ret_model, error);
}
