/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Measurements of earlier probes, in one small JSON file.
 *
 * The file's name is a hash of all inputs of measurements: the CPU's name, the number of threads, the variants of the
 * host's kernels and of the GPU's (lade_kernels_key) and the version of this format. The same identity stands inside
 * and is compared, so a file copied from another machine is not used. Rates are stored as a machine without a drive.
 * Drives are stored by the path of their directory, with a number that finds them for other directories until the
 * machine boots; ops by key.
 *
 * It is a cache: any defect of it (damaged, another version, unreadable, no writable place) means measuring again,
 * never an error. A single value out of its range discards the whole file. It is replaced whole; of two processes that
 * write at once, one wins. Entries are never dropped, up to a limit past which the file starts anew.
 */
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <jansson.h>
#include <xxhash.h>

#include "base/base.h"
#include "base/cpu.h"
#include "base/file.h"
#include "machine/probe_internal.h"

#define FORMAT 5                 /* version of the file; another one is not read */
#define MAX_FILE_BYTES (4 << 20) /* enough for MAX_OPS */
#define MAX_OPS 20000            /* past it the file starts anew: shapes of thousands of models */
#define MAX_NS 1e15             /* of an op, and most units per second of a rate: larger ones are damage */

struct identity {
  char cpu[LADE_MACHINE_NAME_BYTES];
  int n_threads;
  char kernels_key[17];
};

static void identity_get(const struct lade_probe_params *params, struct identity *ret_identity)
{
  memset(ret_identity, 0, sizeof(*ret_identity)); /* padding too: the struct is hashed whole */
  probe_machine_name(params, ret_identity->cpu);
  ret_identity->n_threads = lade_pool_n_threads(params->pool);
  uint64_t keys[2] = {lade_kernels_key(params->kernels), 0};
  if (params->gpu) {
    struct lade_kernels kernels;
    lade_cuda_kernels_get(params->gpu->kernels, &kernels);
    keys[1] = lade_kernels_key(&kernels);
  }
  snprintf(ret_identity->kernels_key, sizeof(ret_identity->kernels_key), "%016" PRIx64,
           XXH3_64bits(keys, sizeof(keys)));
}

/* ---- the file's place ---- */

/* Make @path and its parents, as far as possible. */
static void directories_make(char *path)
{
  for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
    *slash = 0;
    mkdir(path, 0700);
    *slash = '/';
  }
  mkdir(path, 0700);
}

/* True if @dir is a link that neither this user nor root made: in a shared directory it may lead anywhere. */
static bool is_foreign_link(const char *dir)
{
  struct stat status;
  return lstat(dir, &status) == 0 && S_ISLNK(status.st_mode) && status.st_uid != geteuid() && status.st_uid != 0;
}

bool probe_cache_dir(const struct lade_probe_params *params, bool is_written, char ret_dir[PATH_MAX])
{
  const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
  int length;
  if (params->cache_dir)
    length = snprintf(ret_dir, PATH_MAX, "%s", params->cache_dir);
  else if (cache && cache[0] == '/')
    length = snprintf(ret_dir, PATH_MAX, "%s/lade", cache);
  else if (home && home[0] == '/')
    length = snprintf(ret_dir, PATH_MAX, "%s/.cache/lade", home);
  else
    return false;
  if (length <= 0 || length >= PATH_MAX || is_foreign_link(ret_dir))
    return false;
  if (is_written)
    directories_make(ret_dir);
  return true;
}

/* Return the cache file of @identity in @ret_path. False if it has no place. */
static bool path_get(const struct lade_probe_params *params, const struct identity *identity, bool is_written,
                     char ret_path[PATH_MAX])
{
  char dir[PATH_MAX];
  const uint64_t hash = XXH3_64bits_withSeed(identity, sizeof(*identity), FORMAT);
  return probe_cache_dir(params, is_written, dir) &&
         snprintf(ret_path, PATH_MAX, "%s/probe-%016" PRIx64 ".json", dir, hash) < PATH_MAX;
}

/*
 * A drive's names in the file: its directory without links, and the name that other directories on it share until boot.
 * Several directories together have the second name for both, because their requests are cut in another way.
 */
struct store_name {
  char path[PATH_MAX];
  char drives[32];
};

static bool store_name_get(const struct lade_probe_params *params, struct store_name *ret_name)
{
  uint64_t free_bytes, drives;
  if (!params->store || lade_store_room(params->store->dir, &free_bytes, &drives, NULL))
    return false;
  const bool is_one = realpath(params->store->dir, ret_name->path);
  snprintf(ret_name->drives, sizeof(ret_name->drives), "%s%016" PRIx64, is_one ? "" : "several ", drives);
  if (!is_one)
    snprintf(ret_name->path, sizeof(ret_name->path), "%s", ret_name->drives);
  return true;
}

/* ---- reading ---- */

static bool identity_matches(const json_t *root, const struct identity *identity)
{
  const char *cpu = json_string_value(json_object_get(root, "cpu"));
  const char *kernels_key = json_string_value(json_object_get(root, "kernels_key"));
  return json_integer_value(json_object_get(root, "format")) == FORMAT && cpu && !strcmp(cpu, identity->cpu) &&
         kernels_key && !strcmp(kernels_key, identity->kernels_key) &&
         json_integer_value(json_object_get(root, "threads")) == identity->n_threads;
}

/* Return the file's object, or NULL. The caller releases the reference. */
static json_t *root_load(const char *path, const struct identity *identity)
{
  char *text;
  size_t bytes;
  if (lade_file_load(path, MAX_FILE_BYTES, NULL, &text, &bytes))
    return NULL;
  json_t *root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, NULL);
  free(text);
  if (root && !identity_matches(root, identity)) {
    json_decref(root);
    return NULL;
  }
  return root;
}

static bool rate_read(const json_t *object, const char *name, double low, double *ret_rate)
{
  const json_t *value = json_object_get(object, name);
  *ret_rate = json_number_value(value);
  return json_is_number(value) && *ret_rate >= low && *ret_rate <= MAX_NS;
}

static bool ops_read(const json_t *ops, struct lade_cost *cost)
{
  const char *name;
  json_t *value;
  if (!json_is_object(ops) || json_object_size(ops) > MAX_OPS)
    return false;
  json_object_foreach((json_t *)ops, name, value)
  {
    char *end;
    uint64_t key = strtoull(name, &end, 16);
    double ns = (double)json_integer_value(value);
    if (strlen(name) != 16 || *end || !json_is_integer(value) || ns < 1 || ns > MAX_NS ||
        lade_cost_set(cost, key, (int64_t)json_integer_value(value)))
      return false;
  }
  return true;
}

static bool size_read(const json_t *object, const char *name, uint64_t max, uint64_t *ret_size)
{
  const json_t *value = json_object_get(object, name);
  const json_int_t size = json_integer_value(value);
  *ret_size = (uint64_t)size;
  return json_is_integer(value) && size >= 0 && (uint64_t)size <= max; /* 0: not tuned */
}

/* Return the entry of @path, or of another directory on the same drives; NULL: none. */
static const json_t *store_find(const json_t *stores, const struct store_name *name)
{
  const json_t *entry = json_object_get(stores, name->path);
  const char *path;
  json_t *other;
  if (entry)
    return entry;
  json_object_foreach((json_t *)stores, path, other)
  {
    const char *drives = json_string_value(json_object_get(other, "drives"));
    if (drives && !strcmp(drives, name->drives))
      return other;
  }
  return NULL;
}

static bool store_read(const json_t *stores, const struct store_name *name, struct lade_machine_store *store)
{
  const json_t *entry = store_find(stores, name);
  uint64_t n_pieces, n_windows;
  if (!entry)
    return true;
  if (!size_read(entry, "piece_bytes", UINT32_MAX, &store->piece_bytes) ||
      !size_read(entry, "pieces", INT_MAX, &n_pieces) ||
      !size_read(entry, "window_bytes", UINT32_MAX, &store->window_bytes) ||
      !size_read(entry, "windows", INT_MAX, &n_windows))
    return false;
  store->n_pieces = (int)n_pieces;
  store->n_windows = (int)n_windows;
  return rate_read(entry, "read_bytes_per_s", 1e3, &store->read_bytes_per_s) &&
         rate_read(entry, "write_bytes_per_s", 1e3, &store->write_bytes_per_s) &&
         rate_read(entry, "total_bytes_per_s", 1e3, &store->total_bytes_per_s) &&
         rate_read(entry, "total_mostly_writes_bytes_per_s", 0, &store->total_mostly_writes_bytes_per_s) &&
         rate_read(entry, "total_mostly_reads_bytes_per_s", 0, &store->total_mostly_reads_bytes_per_s) &&
         rate_read(entry, "latency_ns", 0, &store->latency_ns) &&
         (!json_object_get(entry, "lasting_read_bytes_per_s") ||
          (rate_read(entry, "lasting_read_bytes_per_s", 0, &store->lasting_read_bytes_per_s) &&
           rate_read(entry, "lasting_write_bytes_per_s", 0, &store->lasting_write_bytes_per_s) &&
           rate_read(entry, "lasting_bytes_per_s", 0, &store->lasting_bytes_per_s) &&
           rate_read(entry, "lasting_latency_ns", 0, &store->lasting_latency_ns) &&
           size_read(entry, "burst_bytes", UINT64_C(1) << 50, &store->burst_bytes))) &&
         (!json_object_get(entry, "known_bytes") ||
          size_read(entry, "known_bytes", UINT64_C(1) << 50, &store->known_bytes));
}

bool probe_cache_load(const struct lade_probe_params *params, struct lade_cost *cost)
{
  struct identity identity;
  struct store_name name;
  char path[PATH_MAX];
  identity_get(params, &identity);
  json_t *root = path_get(params, &identity, false, path) ? root_load(path, &identity) : NULL;
  if (!root)
    return false;
  struct lade_cost read = {0};
  bool is_good = !lade_machine_from_json(json_object_get(root, "machine"), path, NULL, &read.machine) &&
                 rate_read(root, "sum_squares_bytes_per_s", 1e3, &read.sum_squares_bytes_per_s) &&
                 ops_read(json_object_get(root, "ops"), &read);
  if (is_good && store_name_get(params, &name))
    is_good = store_read(json_object_get(root, "stores"), &name, &read.machine.store) &&
              !lade_machine_check(&read.machine, path, NULL);
  json_decref(root);
  if (is_good)
    *cost = read;
  else
    lade_cost_finish(&read);
  return is_good;
}

/* ---- writing ---- */

static json_t *ops_json(const struct lade_cost *cost)
{
  json_t *ops = json_object();
  for (int i = cost->n_ops > MAX_OPS ? cost->n_ops : 0; i < cost->n_ops; i++) {
    char name[17];
    snprintf(name, sizeof(name), "%016" PRIx64, cost->ops[i].key);
    json_object_set_new(ops, name, json_integer((json_int_t)LADE_MAX(cost->ops[i].ns, 1)));
  }
  return ops;
}

/* Return the entry of a drive. It has the fields that store_read reads. */
static json_t *store_json(const struct lade_machine_store *store, const char *drives)
{
  json_t *entry = json_pack("{s:s,s:f,s:f,s:f,s:f,s:f,s:f,s:I,s:i,s:I,s:i}", "drives", drives, "read_bytes_per_s",
                            store->read_bytes_per_s, "write_bytes_per_s", store->write_bytes_per_s,
                            "total_bytes_per_s", store->total_bytes_per_s, "total_mostly_writes_bytes_per_s",
                            store->total_mostly_writes_bytes_per_s, "total_mostly_reads_bytes_per_s",
                            store->total_mostly_reads_bytes_per_s, "latency_ns", store->latency_ns, "piece_bytes",
                            (json_int_t)store->piece_bytes, "pieces", store->n_pieces, "window_bytes",
                            (json_int_t)store->window_bytes, "windows", store->n_windows);
  json_t *lasting = json_pack("{s:f,s:f,s:f,s:f,s:I,s:I}", "lasting_read_bytes_per_s", store->lasting_read_bytes_per_s,
                              "lasting_write_bytes_per_s", store->lasting_write_bytes_per_s, "lasting_bytes_per_s",
                              store->lasting_bytes_per_s, "lasting_latency_ns", store->lasting_latency_ns,
                              "burst_bytes", (json_int_t)store->burst_bytes, "known_bytes",
                              (json_int_t)store->known_bytes);
  json_object_update(entry, lasting);
  json_decref(lasting);
  return entry;
}

/* Return the entries of the store: this one's, and those of other drives from @old, which may be NULL. */
static json_t *stores_json(const struct lade_probe_params *params, const struct lade_cost *cost, const json_t *old)
{
  struct store_name name;
  json_t *stores = json_deep_copy(json_object_get(old, "stores"));
  if (!json_is_object(stores)) {
    json_decref(stores);
    stores = json_object();
  }
  if (store_name_get(params, &name))
    json_object_set_new(stores, name.path, store_json(&cost->machine.store, name.drives));
  return stores;
}

void probe_file_save(const char *path, const json_t *root)
{
  char *text = root ? json_dumps(root, JSON_INDENT(1)) : NULL;
  if (text) {
    lade_file_remove_leftovers(path);
    lade_file_replace(path, text, strlen(text), NULL);
  }
  free(text);
}

void probe_cache_save(const struct lade_probe_params *params, const struct lade_cost *cost)
{
  struct identity identity;
  char path[PATH_MAX];
  identity_get(params, &identity);
  if (!path_get(params, &identity, true, path))
    return;
  struct lade_machine machine = cost->machine;
  machine.store = (struct lade_machine_store){0};
  json_t *old = root_load(path, &identity);
  json_t *root = json_pack("{s:i,s:s,s:i,s:s,s:o,s:f,s:o,s:o}", "format", FORMAT, "cpu", identity.cpu, "threads",
                           identity.n_threads, "kernels_key", identity.kernels_key, "machine",
                           lade_machine_to_json(&machine), "sum_squares_bytes_per_s", cost->sum_squares_bytes_per_s,
                           "stores", stores_json(params, cost, old), "ops", ops_json(cost));
  probe_file_save(path, root);
  json_decref(root);
  json_decref(old);
}

double lade_probe_best_rate(const struct lade_probe_params *params, enum lade_dtype dtype, double flops_per_s)
{
  static const char *const names[LADE_N_DTYPES] = {[LADE_F32] = "f32", [LADE_BF16] = "bf16", [LADE_F16] = "f16"};
  struct identity identity;
  char path[PATH_MAX];
  identity_get(params, &identity);
  json_t *root = path_get(params, &identity, false, path) ? root_load(path, &identity) : NULL;
  json_t *rates = json_object_get(json_object_get(root, "machine"), "matmul_flops_per_s");
  double best = json_number_value(json_object_get(rates, names[dtype]));
  if (json_is_object(rates) && flops_per_s > best && flops_per_s <= MAX_NS &&
      json_object_set_new(rates, names[dtype], json_real(flops_per_s)) == 0) {
    best = flops_per_s;
    probe_file_save(path, root);
  }
  json_decref(root);
  return best;
}

/* Put @rate, 0 if it was not seen, into @entry. False: out of memory. */
static bool lasting_put(json_t *entry, const char *name, double rate, bool lower_only)
{
  const double known = json_number_value(json_object_get(entry, name));
  if (rate < 1e3 || rate > MAX_NS || (lower_only && known > 0 && known < rate))
    rate = known;
  return json_object_set_new(entry, name, json_real(rate)) == 0;
}

/* Put @bytes into @entry, 0 if they were not seen. False: out of memory. */
static bool bytes_put(json_t *entry, const char *name, uint64_t bytes)
{
  return !bytes || json_object_set_new(entry, name, json_integer((json_int_t)bytes)) == 0;
}

void lade_probe_keep_lasting(const struct lade_probe_params *params, const struct lade_drive_lasting *lasting,
                             bool lower_only)
{
  struct identity identity;
  struct store_name name;
  char path[PATH_MAX];
  identity_get(params, &identity);
  json_t *root = path_get(params, &identity, false, path) ? root_load(path, &identity) : NULL;
  json_t *stores = json_object_get(root, "stores");
  const json_t *entry = store_name_get(params, &name) ? store_find(stores, &name) : NULL;
  const bool is_good = lasting->latency_ns >= 0 && lasting->latency_ns <= MAX_NS;
  json_t *own = entry && is_good ? json_deep_copy(entry) : NULL;
  if (own && bytes_put(own, "burst_bytes", lasting->burst_bytes) &&
      bytes_put(own, "known_bytes", lasting->known_bytes) &&
      lasting_put(own, "lasting_read_bytes_per_s", lasting->read_bytes_per_s, lower_only) &&
      lasting_put(own, "lasting_write_bytes_per_s", lasting->write_bytes_per_s, lower_only) &&
      lasting_put(own, "lasting_bytes_per_s", lasting->total_bytes_per_s, lower_only) &&
      json_object_set_new(own, "lasting_latency_ns", json_real(lasting->latency_ns)) == 0 &&
      json_object_set(stores, name.path, own) == 0)
    probe_file_save(path, root);
  json_decref(own);
  json_decref(root);
}

void probe_machine_name(const struct lade_probe_params *params, char ret_name[LADE_MACHINE_NAME_BYTES])
{
  struct lade_device_info info = {.name = ""};
  char cpu[LADE_MACHINE_NAME_BYTES];
  lade_cpu_name(cpu, sizeof(cpu));
  if (params->gpu)
    lade_device_get_info(params->gpu->device, &info);
  snprintf(ret_name, LADE_MACHINE_NAME_BYTES, "%.48s%s%s", info.name, params->gpu ? ", " : "", cpu);
}
