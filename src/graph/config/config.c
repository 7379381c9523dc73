/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reader of HuggingFace's config.json: the file. It is untrusted. A directory means the config.json in it. families.c
 * knows the fields of each family, rope.c those of rotary positions, fields.c reads one of them.
 *
 * Models of images and text (gemma3, mistral3) have the model of their text in the object text_config, which alone is
 * read.
 */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/base.h"
#include "base/file.h"
#include "graph/config/config.h"
#include "graph/experts.h"

/* ---- the file ---- */

/* Append a name to the list @text, after @between. */
static void name_append(char *text, size_t n_bytes, const char *between, const char *name)
{
  const size_t used = strlen(text);
  snprintf(text + used, n_bytes - used, "%s%s", between, name);
}

/*
 * Refuse a model_type without a row in the table of families. The message lists those that have one, and the mixtures
 * of experts that `lade plan` reads.
 */
static int type_refuse(const struct config *config)
{
  char expected[480] = "one of ";
  const char *name;
  for (int i = 0; i < LADE_N_FAMILIES; i++)
    name_append(expected, sizeof(expected), i ? ", " : "", lade_family_get(i)->model_type);
  for (int i = 0; (name = lade_experts_type(i)) != NULL; i++)
    name_append(expected, sizeof(expected), i ? ", " : "; to plan alone, ", name);
  return field_refuse(config, "model_type", expected);
}

/* Set field @name of a text_config to @value if it is absent. */
static int default_set(const struct config *outer, json_t *text, const char *name, json_t *value)
{
  if (json_object_get(text, name)) {
    json_decref(value);
    return 0;
  }
  if (json_object_set_new(text, name, value))
    return lade_error_set(outer->error, -ENOMEM, "%s: out of memory reading it", outer->path);
  return 0;
}

/*
 * Complete a text_config: the outer object's tied table overrules its own, and published files of Gemma 3 leave out
 * sizes.
 */
static int text_complete(const struct config *outer, json_t *text, bool is_gemma)
{
  json_t *tied = json_object_get(outer->object, "tie_word_embeddings");
  if (tied && json_object_set(text, "tie_word_embeddings", tied))
    return lade_error_set(outer->error, -ENOMEM, "%s: out of memory reading it", outer->path);
  int rc = 0;
  if (rc == 0 && is_gemma)
    rc = default_set(outer, text, "vocab_size", json_integer(262208));
  if (rc == 0 && is_gemma)
    rc = default_set(outer, text, "num_attention_heads", json_integer(8));
  return rc;
}

static int family_read(const struct config *config, struct lade_model *model)
{
  const char *type = json_string_value(field_find(config, "model_type"));
  int family = type ? lade_family_find(type) : -1;
  if (family < 0)
    return type_refuse(config);
  snprintf(model->name, sizeof(model->name), "%s", type);
  return config_family_read(config, family, model);
}

static int text_read(const struct config *outer, bool is_gemma, struct lade_model *model)
{
  struct config inner = *outer;
  inner.prefix = "text_config.";
  inner.object = json_object_get(outer->object, "text_config");
  if (!json_is_object(inner.object))
    return field_refuse(outer, "text_config", "an object with the model of the text");
  int rc = text_complete(outer, inner.object, is_gemma);
  return rc < 0 ? rc : family_read(&inner, model);
}

static int config_read(const struct config *config, struct lade_model *model)
{
  const char *type = json_string_value(field_find(config, "model_type"));
  if (lade_experts_has_type(type))
    return lade_experts_refuse(config->path, config->error);
  const bool is_gemma = type && strcmp(type, "gemma3") == 0;
  if (is_gemma || (type && strcmp(type, "mistral3") == 0))
    return text_read(config, is_gemma, model);
  return family_read(config, model);
}

int config_text_read(const char *path, const char *text, size_t n_bytes, struct lade_model *ret_model,
                     struct lade_error *error)
{
  int rc;
  json_error_t json_error;
  const size_t mark_bytes = lade_text_mark_bytes(text, n_bytes);
  json_t *root = json_loadb(text + mark_bytes, n_bytes - mark_bytes, JSON_REJECT_DUPLICATES, &json_error);
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

/* Load the config.json at @path, a file. */
static int file_load(const char *path, struct lade_model *ret_model, struct lade_error *error)
{
  char *text = NULL;
  size_t bytes = 0;
  int rc = lade_file_load(path, CONFIG_MAX_BYTES, error, &text, &bytes);
  if (rc == 0)
    rc = config_text_read(path, text, bytes, ret_model, error);
  free(text);
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
