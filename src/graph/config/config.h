/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared by the files that read config.json: one field (fields.c), names of fields (table.c), families (families.c),
 * rotary positions (rope.c), mixtures of experts (experts.c). write.c writes the file.
 */
#ifndef LADE_GRAPH_CONFIG_H
#define LADE_GRAPH_CONFIG_H

#include <jansson.h>

#include "graph/build.h"
#include "graph/family.h"

/* The largest real config.json is some hundred kilobytes; larger files are refused. */
#define CONFIG_MAX_BYTES (4 << 20)

struct config {
  const char *path;
  json_t *object; /* that contains the fields */
  const char *prefix; /* prefix of field names in messages: "", "rope_scaling." */
  struct lade_error *error;
};

/* Which layers of a family may have a window: none, all, or those of the list layer_types. */
enum config_windows { CONFIG_WINDOWS_NONE, CONFIG_WINDOWS_ALL, CONFIG_WINDOWS_BY_TYPE };

/*
 * A family's fields: their names, and the values that transformers gives absent ones. A NULL name: the family has no
 * such field. null and an absent field are the same except where a comment says otherwise.
 */
struct config_fields {
  struct lade_model_labels sizes; /* required, except those with a default below */
  const char *activation;
  int64_t n_kv_heads;  /* if absent; null: as many as heads; 0: also if absent */
  int64_t head_dim;    /* if absent or null; 0: width / heads */
  int64_t context;     /* if absent; 0: required */
  int64_t hidden_of_width; /* the hidden width is so many widths if absent; 0: required */
  bool is_hidden_fixed;    /* hidden_of_width alone gives it: no field does */
  bool has_head_dim;       /* the field head_dim */
  float norm_eps, rope_theta;
  float local_theta;       /* of layers with the window; 0: as in other layers */
  bool is_tied;
  int64_t pad_token;   /* if absent; null: none; -1: also if absent */
  int64_t window;      /* if absent; null: none; 0: also if absent */
  enum config_windows windows;
  int64_t window_period;  /* without a list of types, one layer in this many, the last, lacks the window; 0: none */
  bool is_unwindowed_first; /* of window_period: the first layer of each period lacks the window, not the last */
  bool has_window_pattern; /* the field sliding_window_pattern states the period */
  bool has_window_switch; /* use_sliding_window, off if absent, and max_window_layers */
  bool turns_windowed;    /* layers without the window have no rotary positions */
  bool turns_unwindowed;  /* of turns_windowed: if no window is stated, all layers have them */
  float partial_rotary;   /* the part of a head that turns if no field states it; 0: heads turn whole */
  unsigned attention_biases; /* parts with a bias if attention_bias is true; bits of enum lade_bias */
  bool has_attention_bias;   /* attention_bias if absent */
  bool has_mlp_bias;         /* the field mlp_bias */
  bool is_mlp_biased;        /* mlp_bias if absent */
};

/* Return the fields of @family; GPT-2 included. */
const struct config_fields *config_fields_get(enum lade_family family);

/* Return the name of an activation in configurations, "silu"; or find one, LADE_ACTIVATION_USUAL if there is none. */
const char *config_activation_name(enum lade_activation activation);
enum lade_activation config_activation_find(const char *name);

/* ---- one field (fields.c) ---- */

/* Set the error "@name is <value>: expected @expected". -EINVAL. */
int field_refuse(const struct config *config, const char *name, const char *expected);
/* Find a field. An absent field and null are the same. */
const json_t *field_find(const struct config *config, const char *name);
/* Return the object @name of @outer as a configuration with the @prefix of its names; the object is NULL if absent. */
struct config field_object(const struct config *outer, const char *name, const char *prefix);
/* True if the field is absent, not even null. */
bool field_is_absent(const struct config *config, const char *name);
/* Read a whole number; lade_model_check checks its range. @fallback below 0: required. */
int field_integer(const struct config *config, const char *name, int64_t fallback, int64_t *ret_value);
/* Read a number. @fallback below 0: required. */
int field_number(const struct config *config, const char *name, float fallback, float *ret_value);
int field_boolean(const struct config *config, const char *name, bool fallback, bool *ret_value);
/* Check a switch that must be @expected, which is also its default. */
int field_fixed(const struct config *config, const char *name, bool expected);
/* Check a string that must be @a or @b (@b may be NULL). It may be absent if @is_optional. */
int field_choice(const struct config *config, const char *name, bool is_optional, const char *a, const char *b);

/* ---- parts ---- */

/* Read a model from the text of a config.json; @path begins messages. Errors: lade_model_load's. */
int config_text_read(const char *path, const char *text, size_t n_bytes, struct lade_model *ret_model,
                     struct lade_error *error);

/* Read a model of @family and check it. */
int config_family_read(const struct config *config, enum lade_family family, struct lade_model *model);

/*
 * Read rotary positions: rope_theta with rope_scaling, or rope_parameters, also one for each type of layer. pre: sizes
 * are read.
 */
int config_rope_read(const struct config *config, struct lade_model *model);

#endif
