/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Clusters as JSON. The device is a machine object, read by machine.c; the cluster's own fields go through two tables,
 * one for the cluster and one for a level. A file may begin from a preset ("preset": "dgx-h100") and state only the
 * differences; a file's "levels" replace all of the preset's, its "device" and its "store_per_node" are read over the
 * preset's. Drives of a node have the fields of a machine's store and are read by machine.c too.
 *
 * Fields that the tables lack are refused. Ranges are wide: they catch wrong units, zeros and infinities.
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
#include "machine/cluster.h"

#define MAX_FILE_BYTES (1 << 20) /* far more than any description has */

enum cluster_field_type { CLUSTER_COUNT, CLUSTER_BYTES, CLUSTER_NUMBER, CLUSTER_FLAG };

struct cluster_field {
  const char *name;
  size_t offset;
  enum cluster_field_type type;
  double low, high;
  bool is_optional;
  double preset; /* value of an optional field that is absent */
};

#define OF_CLUSTER(member) offsetof(struct lade_cluster, member)
#define OF_LEVEL(member) offsetof(struct lade_cluster_level, member)

static const struct cluster_field cluster_fields[] = {
    {"nodes", OF_CLUSTER(n_nodes), CLUSTER_COUNT, 1, 1 << 24, false, 0},
    {"devices_per_node", OF_CLUSTER(n_node_devices), CLUSTER_COUNT, 1, 4096, false, 0},
    {"usable_device_bytes", OF_CLUSTER(usable_device_bytes), CLUSTER_BYTES, 1 << 20, 0x1p60, false, 0},
    {"host_bytes_per_node", OF_CLUSTER(node_host_bytes), CLUSTER_BYTES, 1 << 20, 0x1p60, false, 0},
    {"peak_flops_per_s", OF_CLUSTER(peak_flops_per_s), CLUSTER_NUMBER, 1e6, 1e18, false, 0},
    {"error_share", OF_CLUSTER(error_share), CLUSTER_NUMBER, 0, 1, true, 0.2},
    {"nccl_version", OF_CLUSTER(nccl_version), CLUSTER_COUNT, 0, 1 << 20, true, LADE_CLUSTER_NCCL},
};

static const struct cluster_field level_fields[] = {
    {"devices", OF_LEVEL(n_devices), CLUSTER_COUNT, 1, 1 << 30, false, 0},
    {"bytes_per_s", OF_LEVEL(bytes_per_s), CLUSTER_NUMBER, 1e3, 1e18, false, 0},
    {"latency_ns", OF_LEVEL(latency_ns), CLUSTER_NUMBER, 0, 1e9, false, 0},
    {"oversubscription", OF_LEVEL(oversubscription), CLUSTER_NUMBER, 1, 1e3, true, 1},
    {"over_host_link", OF_LEVEL(is_over_host_link), CLUSTER_FLAG, 0, 1, true, 0},
    {"sum_gain", OF_LEVEL(sum_gain), CLUSTER_NUMBER, 1, 4, true, 1},
};

static double field_get(const struct cluster_field *field, const void *base)
{
  const void *at = (const char *)base + field->offset;
  switch (field->type) {
  case CLUSTER_COUNT:
    return (double)*(const int64_t *)at;
  case CLUSTER_BYTES:
    return (double)*(const uint64_t *)at;
  case CLUSTER_FLAG:
    return *(const bool *)at;
  default:
    return *(const double *)at;
  }
}

static void field_put(const struct cluster_field *field, double number, void *base)
{
  void *at = (char *)base + field->offset;
  if (field->type == CLUSTER_COUNT)
    *(int64_t *)at = (int64_t)number;
  else if (field->type == CLUSTER_BYTES)
    *(uint64_t *)at = (uint64_t)number;
  else if (field->type == CLUSTER_FLAG)
    *(bool *)at = number != 0;
  else
    *(double *)at = number;
}

/* Read @value in the form of @field. False if it has another form or is out of range. */
static bool field_read(const struct cluster_field *field, const json_t *value, void *base)
{
  uint64_t bytes = 0;
  double number = json_is_true(value) ? 1 : json_number_value(value);
  if (field->type == CLUSTER_BYTES && json_is_string(value) && !lade_size_parse(json_string_value(value), &bytes))
    number = (double)bytes;
  else if (field->type == CLUSTER_FLAG ? !json_is_boolean(value) : !json_is_number(value))
    return false;
  const bool is_whole = field->type != CLUSTER_NUMBER;
  if (!isfinite(number) || number < field->low || number > field->high || (is_whole && number != floor(number)))
    return false;
  field_put(field, number, base);
  return true;
}

/* The members of one JSON object: where it stands, its numbers, and its other members by name, ended by NULL. */
struct object_fields {
  const char *where, *prefix; /* the file, and the path within it that messages put before a member's name */
  const struct cluster_field *fields;
  size_t n;
  const char *const *others;
};

static int value_refuse(const struct object_fields *known, const struct cluster_field *field, const json_t *value,
                        struct lade_error *error)
{
  if (field->type == CLUSTER_FLAG)
    return lade_error_set(error, -EINVAL, "%s: %s%s is %s: expected true or false", known->where, known->prefix,
                          field->name, value ? lade_json_echo(value).text : "missing");
  return lade_error_set(error, -EINVAL, "%s: %s%s is %s: expected %s from %g to %g", known->where, known->prefix,
                        field->name,
                        value ? lade_json_echo(value).text : "missing",
                        field->type == CLUSTER_NUMBER ? "a number" : "a whole number", field->low, field->high);
}

/* Read the numbers of @object into @base. Absent ones keep their value if @has_values, or take their preset. */
static int fields_read(const struct object_fields *known, const json_t *object, bool has_values, void *base,
                       struct lade_error *error)
{
  for (size_t i = 0; i < known->n; i++) {
    const struct cluster_field *field = &known->fields[i];
    const json_t *value = json_object_get(object, field->name);
    if (!value && has_values)
      continue;
    if (!value && field->is_optional)
      field_put(field, field->preset, base);
    else if (!value || !field_read(field, value, base))
      return value_refuse(known, field, value, error);
  }
  return 0;
}

/* Refuse members of @object that @known does not have. */
static int unknown_refuse(const struct object_fields *known, const json_t *object, struct lade_error *error)
{
  const char *key;
  json_t *value;
  json_object_foreach((json_t *)object, key, value)
  {
    bool is_known = false;
    for (size_t i = 0; i < known->n; i++)
      is_known |= strcmp(key, known->fields[i].name) == 0;
    for (size_t i = 0; known->others[i]; i++)
      is_known |= strcmp(key, known->others[i]) == 0;
    if (is_known)
      continue;
    json_t *name = json_string(key);
    int status = lade_error_set(error, -EINVAL, "%s: unknown field %s%s: see docs/cluster.md", known->where,
                                known->prefix, name ? lade_json_echo(name).text : "?");
    json_decref(name);
    return status;
  }
  return 0;
}

/*
 * Copy the name @value into @ret_text. False if it is no text, is too long, or has control characters, which reports
 * would print.
 */
static bool text_read(const json_t *value, char *ret_text, size_t text_bytes)
{
  const char *text = json_string_value(value);
  if (!text || !*text || strlen(text) >= text_bytes)
    return false;
  for (const char *at = text; *at; at++) {
    if ((unsigned char)*at < ' ' || *at == 0x7f)
      return false;
  }
  memcpy(ret_text, text, strlen(text) + 1);
  return true;
}

/* Read the name of @object into @ret_name of @size bytes. */
static int name_read(const struct object_fields *known, const json_t *object, size_t size, char *ret_name,
                     struct lade_error *error)
{
  const json_t *value = json_object_get(object, "name");
  if (text_read(value, ret_name, size))
    return 0;
  return lade_error_set(error, -EINVAL, "%s: %sname is %s: expected 1 to %zu printable bytes", known->where,
                        known->prefix, value ? lade_json_echo(value).text : "missing", size - 1);
}

static int level_read(const char *where, int at, const json_t *object, struct lade_cluster_level *ret_level,
                      struct lade_error *error)
{
  static const char *const others[] = {"name", NULL};
  char prefix[32];
  const struct object_fields known = {where, prefix, level_fields, LADE_COUNT(level_fields), others};
  snprintf(prefix, sizeof(prefix), "levels[%d].", at);
  if (!json_is_object(object))
    return lade_error_set(error, -EINVAL, "%s: levels[%d] is no object", where, at);
  int status = unknown_refuse(&known, object, error);
  if (!status)
    status = name_read(&known, object, sizeof(ret_level->name), ret_level->name, error);
  return status ? status : fields_read(&known, object, false, ret_level, error);
}

/* Read a list of levels and check their ranges. lade_cluster_check finds levels that do not nest. */
static int levels_read(const char *where, const json_t *list, struct lade_cluster *cluster, struct lade_error *error)
{
  const size_t n = json_array_size(list);
  if (!json_is_array(list) || n < 1 || n > LADE_CLUSTER_LEVELS_MAX)
    return lade_error_set(error, -EINVAL, "%s: levels: expected a list of 1 to %d levels, innermost first", where,
                          LADE_CLUSTER_LEVELS_MAX);
  int status = 0;
  cluster->n_levels = (int)n;
  for (int i = 0; i < (int)n && !status; i++)
    status = level_read(where, i, json_array_get(list, (size_t)i), &cluster->levels[i], error);
  return status;
}

/* Read the device: a machine preset's name, or an object of a machine file, laid over @cluster's if it has one. */
static int device_read(const char *where, const json_t *value, bool has_device, struct lade_cluster *cluster,
                       struct lade_error *error)
{
  char text[160];
  snprintf(text, sizeof(text), "%.120s: device", where);
  if (json_is_string(value)) {
    struct lade_error why;
    return lade_machine_preset(json_string_value(value), &why, &cluster->device)
               ? lade_error_set(error, -EINVAL, "%s: %s", text, why.text)
               : 0;
  }
  if (!json_is_object(value))
    return lade_error_set(error, -EINVAL, "%s: device: expected a machine's name or an object (docs/machines.md)",
                          where);
  json_t *whole = has_device && !json_object_get(value, "preset") ? lade_machine_to_json(&cluster->device)
                                                                 : json_object();
  int status = whole && !json_object_update_recursive(whole, (json_t *)value) ? 0 : -ENOMEM;
  if (status)
    lade_error_set(error, status, "%s: out of memory", where);
  else
    status = lade_machine_from_json(whole, text, error, &cluster->device);
  json_decref(whole);
  return status;
}

/*
 * Read the drives of a node, laid over @cluster's: as the store of its device, whose table and checks machine.c has.
 * pre: @cluster has its device.
 */
static int drives_read(const char *where, const json_t *value, struct lade_cluster *cluster, struct lade_error *error)
{
  char text[160];
  struct lade_machine node = cluster->device;
  node.store = cluster->node_store;
  snprintf(text, sizeof(text), "%.120s: store_per_node", where);
  if (!json_is_object(value))
    return lade_error_set(error, -EINVAL, "%s: expected an object, as a machine's store (docs/machines.md)", text);
  if (!node.store.bytes && !json_object_get(value, "bytes"))
    return lade_error_set(error, -EINVAL, "%s: store.bytes is missing: expected those of all drives of a node", text);
  json_t *whole = lade_machine_to_json(&node);
  int status = whole && !json_object_update(json_object_get(whole, "store"), (json_t *)value) ? 0 : -ENOMEM;
  if (status)
    lade_error_set(error, status, "%s: out of memory", text);
  else
    status = lade_machine_from_json(whole, text, error, &node);
  json_decref(whole);
  if (!status)
    cluster->node_store = node.store;
  return status;
}

int lade_cluster_from_json(const json_t *object, const char *where, struct lade_error *error,
                           struct lade_cluster *ret_cluster)
{
  static const char *const others[] = {"name", "preset", "device", "levels", "store_per_node", NULL};
  struct lade_cluster cluster = {0};
  struct lade_error why;
  if (!json_is_object(object))
    return lade_error_set(error, -EBADMSG, "%s: not a JSON object", where);
  const struct object_fields known = {where, "", cluster_fields, LADE_COUNT(cluster_fields), others};
  int status = unknown_refuse(&known, object, error);
  const json_t *preset = json_object_get(object, "preset"), *device = json_object_get(object, "device");
  const json_t *levels = json_object_get(object, "levels"), *drives = json_object_get(object, "store_per_node");
  if (!status && preset && (!json_is_string(preset) ||
                            lade_cluster_preset(json_string_value(preset), &why, &cluster)))
    return lade_error_set(error, -EINVAL, "%s: preset: %s", where,
                          json_is_string(preset) ? why.text : "expected a cluster's name");
  if (!status && (json_object_get(object, "name") || !preset))
    status = name_read(&known, object, sizeof(cluster.name), cluster.name, error);
  if (!status)
    status = fields_read(&known, object, preset != NULL, &cluster, error);
  if (!status && (device || !preset))
    status = device_read(where, device, preset != NULL, &cluster, error);
  if (!status && drives)
    status = drives_read(where, drives, &cluster, error);
  if (!status)
    cluster.device.store = lade_machine_store_share(&cluster.node_store, cluster.n_node_devices);
  if (!status && (levels || !preset))
    status = levels_read(where, levels, &cluster, error);
  else if (!status && json_object_get(object, "nodes")) /* the preset's last level joins all devices */
    cluster.levels[cluster.n_levels - 1].n_devices = cluster.n_nodes * cluster.n_node_devices;
  if (!status)
    status = lade_cluster_check(&cluster, where, error);
  if (!status)
    *ret_cluster = cluster;
  return status;
}

static int levels_check(const struct lade_cluster *cluster, const char *where, struct lade_error *error)
{
  const int64_t n_devices = cluster->n_nodes * cluster->n_node_devices;
  int64_t inner = 1;
  for (int i = 0; i < cluster->n_levels; i++) {
    const struct lade_cluster_level *level = &cluster->levels[i];
    if (level->n_devices % inner || level->n_devices < inner)
      return lade_error_set(error, -EINVAL, "%s: levels[%d].devices is %lld: levels nest, so expected a multiple of "
                            "the %lld of the level below", where, i, (long long)level->n_devices, (long long)inner);
    if (level->n_devices % cluster->n_node_devices && cluster->n_node_devices % level->n_devices)
      return lade_error_set(error, -EINVAL, "%s: levels[%d].devices is %lld: neither whole nodes of "
                            "devices_per_node %lld nor an even part of one", where, i, (long long)level->n_devices,
                            (long long)cluster->n_node_devices);
    for (int j = 0; j < i; j++) {
      if (strcmp(cluster->levels[j].name, level->name) == 0)
        return lade_error_set(error, -EINVAL, "%s: levels[%d].name is \"%s\", the name of levels[%d]: expected another",
                              where, i, level->name, j);
    }
    inner = level->n_devices;
  }
  if (inner < n_devices)
    return lade_error_set(error, -EINVAL, "%s: levels[%d].devices is %lld: the last level joins all %lld nodes of "
                          "%lld devices, %lld", where, cluster->n_levels - 1, (long long)inner,
                          (long long)cluster->n_nodes, (long long)cluster->n_node_devices, (long long)n_devices);
  return 0;
}

int lade_cluster_check(const struct lade_cluster *cluster, const char *where, struct lade_error *error)
{
  for (size_t i = 0; i < LADE_COUNT(cluster_fields); i++) {
    const double value = field_get(&cluster_fields[i], cluster);
    if (!(value >= cluster_fields[i].low && value <= cluster_fields[i].high))
      return lade_error_set(error, -EINVAL, "%s: %s is %g: expected %g to %g", where, cluster_fields[i].name, value,
                            cluster_fields[i].low, cluster_fields[i].high);
  }
  if (cluster->usable_device_bytes > cluster->device.device_bytes)
    return lade_error_set(error, -EINVAL, "%s: usable_device_bytes is %llu: more than the device's %llu", where,
                          (unsigned long long)cluster->usable_device_bytes,
                          (unsigned long long)cluster->device.device_bytes);
  for (int i = 0; i < cluster->n_levels; i++) {
    for (size_t f = 0; f < LADE_COUNT(level_fields); f++) {
      const double value = field_get(&level_fields[f], &cluster->levels[i]);
      if (!(value >= level_fields[f].low && value <= level_fields[f].high))
        return lade_error_set(error, -EINVAL, "%s: levels[%d].%s is %g: expected %g to %g", where, i,
                              level_fields[f].name, value, level_fields[f].low, level_fields[f].high);
    }
  }
  return levels_check(cluster, where, error);
}

static json_t *table_json(const struct cluster_field *fields, size_t n, const void *base)
{
  json_t *object = json_object();
  for (size_t i = 0; i < n; i++) {
    const double value = field_get(&fields[i], base);
    json_object_set_new(object, fields[i].name,
                        fields[i].type == CLUSTER_NUMBER ? json_real(value)
                        : fields[i].type == CLUSTER_FLAG ? json_boolean(value != 0)
                                                         : json_integer((json_int_t)value));
  }
  return object;
}

json_t *lade_cluster_levels_to_json(const struct lade_cluster *cluster)
{
  json_t *levels = json_array();
  for (int i = 0; i < cluster->n_levels; i++) {
    json_t *level = table_json(level_fields, LADE_COUNT(level_fields), &cluster->levels[i]);
    json_object_set_new(level, "name", json_string(cluster->levels[i].name));
    json_array_append_new(levels, level);
  }
  return levels;
}

int lade_cluster_levels_from_json(const json_t *list, const char *where, struct lade_error *error,
                                  struct lade_cluster *cluster)
{
  int status = levels_read(where, list, cluster, error);
  return status ? status : levels_check(cluster, where, error);
}

json_t *lade_cluster_to_json(const struct lade_cluster *cluster)
{
  json_t *object = table_json(cluster_fields, LADE_COUNT(cluster_fields), cluster);
  json_object_set_new(object, "name", json_string(cluster->name));
  json_object_set_new(object, "levels", lade_cluster_levels_to_json(cluster));
  struct lade_machine node = cluster->device;
  node.store = cluster->node_store;
  json_t *whole = lade_machine_to_json(&node); /* which has the form of the drives */
  int status = json_object_set(object, "store_per_node", json_object_get(whole, "store"));
  json_decref(whole);
  if (status || json_object_set_new(object, "device", lade_machine_to_json(&cluster->device))) {
    json_decref(object);
    return NULL;
  }
  return object;
}

static int cluster_load(const char *path, struct lade_error *error, struct lade_cluster *ret_cluster)
{
  char *text;
  size_t bytes;
  json_error_t problem;
  int status = lade_file_load(path, MAX_FILE_BYTES, error, &text, &bytes);
  if (status)
    return status;
  const size_t mark_bytes = lade_text_mark_bytes(text, bytes);
  json_t *object = json_loadb(text + mark_bytes, bytes - mark_bytes, JSON_REJECT_DUPLICATES, &problem);
  free(text);
  if (!object)
    return lade_error_set(error, -EBADMSG, "%s:%d: not valid JSON: %s", path, problem.line, problem.text);
  status = lade_cluster_from_json(object, path, error, ret_cluster);
  json_decref(object);
  return status;
}

int lade_cluster_get(const char *name, struct lade_error *error, struct lade_cluster *ret_cluster)
{
  struct lade_error from_preset;
  int status = lade_cluster_preset(name, &from_preset, ret_cluster);
  if (status != -ENOENT)
    return status;
  status = cluster_load(name, error, ret_cluster);
  const size_t n = strlen(name);
  const bool is_path = strchr(name, '/') || (n > 5 && strcmp(name + n - 5, ".json") == 0);
  if (status != -ENOENT || is_path)
    return status;
  return lade_error_set(error, status, "%s, or the path of a description", from_preset.text);
}
