/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The stand-in's start, devices and contexts; its settings, and the calls that shall fail.
 *
 * Each call counts under its name, by the address of the text: a function names itself in one place. Two places that
 * name it count apart and are added up when somebody asks.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "standin_internal.h"

#define MAX_FUNCTIONS 128
#define MAX_CONTEXTS 16 /* that one thread has pushed */
#define CONTEXT_BYTES ((uint64_t)8 << 20)

struct standin standin = {
    .lock = PTHREAD_MUTEX_INITIALIZER,
    .changed = PTHREAD_COND_INITIALIZER,
    .settings = {.version = 13000, .devices = 1, .sm = 90, .memory = 256, .words = 1, .nth = 1, .code = 2,
                 .lose_code = 719},
};

static struct {
  const char *name;
  uint64_t n;
} calls[MAX_FUNCTIONS];
static uint64_t n_all_calls, n_failed_calls;
static bool is_started;

static _Thread_local cuda_context stack[MAX_CONTEXTS];
static _Thread_local int stack_depth;
static _Thread_local bool is_in_host_function;

/* ---- settings ---- */

static uint64_t *setting_find(const char *key, size_t n)
{
  struct standin_settings *s = &standin.settings;
  const struct {
    const char *key;
    uint64_t *at;
  } table[] = {{"version", &s->version}, {"devices", &s->devices}, {"sm", &s->sm},     {"memory", &s->memory},
               {"words", &s->words},     {"nth", &s->nth},         {"code", &s->code}, {"forever", &s->forever},
               {"lose", &s->lose},       {"lose_code", &s->lose_code}};
  for (size_t i = 0; i < LADE_COUNT(table); i++)
    if (strlen(table[i].key) == n && memcmp(table[i].key, key, n) == 0)
      return table[i].at;
  return NULL;
}

static void counting_restart(void)
{
  for (int i = 0; i < MAX_FUNCTIONS && calls[i].name; i++)
    calls[i].n = 0;
  n_all_calls = n_failed_calls = standin.n_async = 0;
}

static int setting_set(const char *text, size_t n)
{
  const char *equals = memchr(text, '=', n);
  if (!equals)
    return -1;
  size_t key = (size_t)(equals - text), value = n - key - 1;
  if (key == 4 && (memcmp(text, "fail", 4) == 0 || memcmp(text, "lose", 4) == 0))
    counting_restart();
  if (key == 4 && memcmp(text, "fail", 4) == 0) {
    snprintf(standin.settings.fail, sizeof(standin.settings.fail), "%.*s", (int)value, equals + 1);
    return 0;
  }
  uint64_t *at = setting_find(text, key);
  if (!at)
    return -1;
  *at = strtoull(equals + 1, NULL, 10);
  return 0;
}

int standin_set(const char *settings)
{
  int status = 0;
  pthread_mutex_lock(&standin.lock);
  for (const char *at = settings; *at && !status;) {
    size_t n = strcspn(at, ",");
    status = setting_set(at, n);
    at += n + (at[n] == ',');
  }
  pthread_mutex_unlock(&standin.lock);
  return status;
}

__attribute__((constructor)) static void settings_load(void)
{
  const char *settings = getenv("LADE_STANDIN");
  if (settings && standin_set(settings)) {
    fprintf(stderr, "stand-in driver: LADE_STANDIN has a key that is not known: %s\n", settings);
    abort();
  }
}

/* ---- counting and failing ---- */

static uint64_t *calls_of(const char *function)
{
  int i = 0;
  while (i < MAX_FUNCTIONS && calls[i].name && calls[i].name != function)
    i++;
  LADE_ASSERT(i < MAX_FUNCTIONS);
  calls[i].name = calls[i].name ? calls[i].name : function;
  return &calls[i].n;
}

uint64_t standin_calls(const char *function)
{
  pthread_mutex_lock(&standin.lock);
  uint64_t n = n_all_calls;
  if (strcmp(function, "any") != 0) {
    n = 0;
    for (int i = 0; i < MAX_FUNCTIONS && calls[i].name; i++)
      n += strcmp(calls[i].name, function) == 0 ? calls[i].n : 0;
  }
  pthread_mutex_unlock(&standin.lock);
  return n;
}

uint64_t standin_failed(void)
{
  pthread_mutex_lock(&standin.lock);
  uint64_t n = n_failed_calls;
  pthread_mutex_unlock(&standin.lock);
  return n;
}

int64_t standin_live(void)
{
  pthread_mutex_lock(&standin.lock);
  int64_t n = standin.n_live;
  pthread_mutex_unlock(&standin.lock);
  return n;
}

void standin_alive(int n)
{
  pthread_mutex_lock(&standin.lock);
  standin.n_live += n;
  pthread_mutex_unlock(&standin.lock);
}

/* Count a call; what it shall answer. Lock held. */
static cuda_result call_count(const char *function)
{
  const struct standin_settings *s = &standin.settings;
  uint64_t n = ++*calls_of(function), n_any = ++n_all_calls;
  bool is_any = strcmp(s->fail, "any") == 0;
  if (!is_any && strcmp(s->fail, function) != 0)
    return 0;
  n = is_any ? n_any : n;
  if (n != s->nth && !(s->forever && n > s->nth))
    return 0;
  n_failed_calls++;
  return (cuda_result)s->code;
}

cuda_result standin_enter(const char *function, bool wants_context)
{
  pthread_mutex_lock(&standin.lock);
  cuda_result result = call_count(function);
  cuda_context context = standin_context();
  if (!result && is_in_host_function)
    result = CUDA_INVALID_CONTEXT;
  if (!result && !is_started && wants_context)
    result = CUDA_NOT_INITIALIZED;
  if (!result && wants_context)
    result = context ? context->broken : CUDA_INVALID_CONTEXT;
  pthread_mutex_unlock(&standin.lock);
  return result;
}

cuda_result standin_leave(const char *function)
{
  pthread_mutex_lock(&standin.lock);
  cuda_result result = call_count(function);
  cuda_context context = standin_context();
  if (!result && context)
    result = context->broken;
  pthread_mutex_unlock(&standin.lock);
  return result;
}

void standin_in_host_function(bool is_inside)
{
  is_in_host_function = is_inside;
}

void standin_break(cuda_context context, cuda_result code)
{
  context->broken = context->broken ? context->broken : code;
  pthread_cond_broadcast(&standin.changed);
}

/* ---- memory's count ---- */

bool standin_take(int device, uint64_t bytes)
{
  pthread_mutex_lock(&standin.lock);
  bool is_there = bytes <= (standin.settings.memory << 20) - standin.used_bytes[device];
  if (is_there)
    standin.used_bytes[device] += bytes;
  pthread_mutex_unlock(&standin.lock);
  return is_there;
}

void standin_give_back(int device, uint64_t bytes)
{
  pthread_mutex_lock(&standin.lock);
  LADE_ASSERT(bytes <= standin.used_bytes[device]);
  standin.used_bytes[device] -= bytes;
  pthread_mutex_unlock(&standin.lock);
}

/* ---- the driver ---- */

EXPORT cuda_result cuInit(unsigned flags);
EXPORT cuda_result cuDriverGetVersion(int *ret_version);
EXPORT cuda_result cuGetErrorName(cuda_result result, const char **ret_text);
EXPORT cuda_result cuGetErrorString(cuda_result result, const char **ret_text);
EXPORT cuda_result cuDeviceGetCount(int *ret_n);
EXPORT cuda_result cuDeviceGet(cuda_device_id *ret_id, int ordinal);
EXPORT cuda_result cuDeviceGetName(char *ret_name, int bytes, cuda_device_id id);
EXPORT cuda_result cuDeviceGetAttribute(int *ret_value, int attribute, cuda_device_id id);
EXPORT cuda_result cuDeviceTotalMem_v2(size_t *ret_bytes, cuda_device_id id);
EXPORT cuda_result cuDevicePrimaryCtxRetain(cuda_context *ret_context, cuda_device_id id);
EXPORT cuda_result cuDevicePrimaryCtxRelease_v2(cuda_device_id id);
EXPORT cuda_result cuDevicePrimaryCtxReset_v2(cuda_device_id id);
EXPORT cuda_result cuDevicePrimaryCtxGetState(cuda_device_id id, unsigned *ret_flags, int *ret_is_active);
EXPORT cuda_result cuCtxCreate_v2(cuda_context *ret_context, unsigned flags, cuda_device_id id);
EXPORT cuda_result cuCtxDestroy_v2(cuda_context context);
EXPORT cuda_result cuCtxPushCurrent_v2(cuda_context context);
EXPORT cuda_result cuCtxPopCurrent_v2(cuda_context *ret_context);
EXPORT cuda_result cuCtxGetCurrent(cuda_context *ret_context);
EXPORT cuda_result cuCtxSetCurrent(cuda_context context);
EXPORT cuda_result cuCtxGetDevice(cuda_device_id *ret_id);
EXPORT cuda_result cuMemGetInfo_v2(size_t *ret_free, size_t *ret_total);
EXPORT cuda_result cuMemGetInfo(unsigned *ret_free, unsigned *ret_total);
EXPORT cuda_result cuDeviceTotalMem(unsigned *ret_bytes, cuda_device_id id);

cuda_context standin_context(void)
{
  return stack_depth ? stack[stack_depth - 1] : NULL;
}

static bool is_device(cuda_device_id id)
{
  return id >= 0 && id < (int)LADE_MIN(standin.settings.devices, MAX_DEVICES);
}

cuda_result cuInit(unsigned flags)
{
  cuda_result result = standin_enter("cuInit", false);
  if (result)
    return result;
  if (standin.settings.devices == 0)
    return CUDA_NO_DEVICE;
  is_started = true;
  for (int i = 0; i < MAX_DEVICES; i++)
    standin.primary[i].device = i;
  return 0;
}

cuda_result cuDriverGetVersion(int *ret_version)
{
  *ret_version = (int)standin.settings.version;
  return standin_enter("cuDriverGetVersion", false);
}

static const char *const errors[][3] = {
    {"1", "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {"2", "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {"201", "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {"214", "CUDA_ERROR_ECC_UNCORRECTABLE", "uncorrectable ECC error encountered"},
    {"700", "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {"719", "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {"999", "CUDA_ERROR_UNKNOWN", "unknown error"},
};

static cuda_result error_text(cuda_result result, int i_column, const char **ret_text)
{
  for (size_t i = 0; i < LADE_COUNT(errors); i++) {
    if (atoi(errors[i][0]) == result) {
      *ret_text = errors[i][i_column];
      return 0;
    }
  }
  *ret_text = NULL;
  return CUDA_INVALID_VALUE;
}

cuda_result cuGetErrorName(cuda_result result, const char **ret_text)
{
  return error_text(result, 1, ret_text);
}

cuda_result cuGetErrorString(cuda_result result, const char **ret_text)
{
  return error_text(result, 2, ret_text);
}

cuda_result cuDeviceGetCount(int *ret_n)
{
  *ret_n = (int)standin.settings.devices;
  return standin_enter("cuDeviceGetCount", false);
}

cuda_result cuDeviceGet(cuda_device_id *ret_id, int ordinal)
{
  cuda_result result = standin_enter("cuDeviceGet", false);
  *ret_id = ordinal;
  return result ? result : is_device(ordinal) ? 0 : CUDA_INVALID_DEVICE;
}

cuda_result cuDeviceGetName(char *ret_name, int bytes, cuda_device_id id)
{
  snprintf(ret_name, (size_t)bytes, "Stand-in GPU");
  return standin_enter("cuDeviceGetName", false);
}

cuda_result cuDeviceGetAttribute(int *ret_value, int attribute, cuda_device_id id)
{
  cuda_result result = standin_enter("cuDeviceGetAttribute", false);
  const struct standin_settings *s = &standin.settings;
  *ret_value = attribute == CUDA_ATTRIBUTE_CAPABILITY_MAJOR   ? (int)s->sm / 10
               : attribute == CUDA_ATTRIBUTE_CAPABILITY_MINOR ? (int)s->sm % 10
               : attribute == CUDA_ATTRIBUTE_STREAM_WORDS     ? (int)s->words
               : attribute == CUDA_ATTRIBUTE_SHARED_MOST      ? 227 << 10
                                                              : 1;
  return result;
}

cuda_result cuDeviceTotalMem_v2(size_t *ret_bytes, cuda_device_id id)
{
  *ret_bytes = standin.settings.memory << 20;
  return standin_enter("cuDeviceTotalMem", false);
}

cuda_result cuDevicePrimaryCtxRetain(cuda_context *ret_context, cuda_device_id id)
{
  cuda_result result = standin_enter("cuDevicePrimaryCtxRetain", false);
  if (result || !is_device(id))
    return result ? result : CUDA_INVALID_DEVICE;
  pthread_mutex_lock(&standin.lock);
  bool is_first = standin.primary[id].n_refs++ == 0;
  if (is_first)
    standin.primary[id].broken = 0;
  standin.n_live++;
  pthread_mutex_unlock(&standin.lock);
  if (is_first && !standin_take(id, CONTEXT_BYTES)) {
    standin.primary[id].n_refs = 0;
    standin_alive(-1);
    return CUDA_OUT_OF_MEMORY;
  }
  *ret_context = &standin.primary[id];
  return 0;
}

cuda_result cuDevicePrimaryCtxRelease_v2(cuda_device_id id)
{
  pthread_mutex_lock(&standin.lock);
  LADE_ASSERT(is_device(id) && standin.primary[id].n_refs > 0);
  bool is_last = --standin.primary[id].n_refs == 0;
  standin.n_live--;
  pthread_mutex_unlock(&standin.lock);
  if (is_last) {
    standin_blocks_end(&standin.primary[id]);
    standin_give_back(id, CONTEXT_BYTES);
  }
  return standin_leave("cuDevicePrimaryCtxRelease");
}

cuda_result cuDevicePrimaryCtxReset_v2(cuda_device_id id)
{
  pthread_mutex_lock(&standin.lock);
  int n_refs = standin.primary[id].n_refs;
  standin.primary[id].n_refs = 0;
  standin.n_live -= n_refs;
  pthread_mutex_unlock(&standin.lock);
  if (n_refs) {
    standin_blocks_end(&standin.primary[id]);
    standin_give_back(id, CONTEXT_BYTES);
  }
  return standin_leave("cuDevicePrimaryCtxReset");
}

cuda_result cuDevicePrimaryCtxGetState(cuda_device_id id, unsigned *ret_flags, int *ret_is_active)
{
  *ret_flags = 0;
  *ret_is_active = standin.primary[id].n_refs > 0;
  return standin_enter("cuDevicePrimaryCtxGetState", false);
}

cuda_result cuCtxCreate_v2(cuda_context *ret_context, unsigned flags, cuda_device_id id)
{
  cuda_result result = standin_enter("cuCtxCreate", false);
  if (result || !is_device(id))
    return result ? result : CUDA_INVALID_DEVICE;
  if (!standin_take(id, CONTEXT_BYTES))
    return CUDA_OUT_OF_MEMORY;
  cuda_context context = calloc(1, sizeof(*context));
  LADE_ASSERT(context);
  context->device = id;
  standin_alive(1);
  *ret_context = context;
  return cuCtxPushCurrent_v2(context);
}

cuda_result cuCtxDestroy_v2(cuda_context context)
{
  if (standin_context() == context)
    stack_depth--;
  standin_blocks_end(context);
  standin_give_back(context->device, CONTEXT_BYTES);
  free(context);
  standin_alive(-1);
  return standin_leave("cuCtxDestroy");
}

cuda_result cuCtxPushCurrent_v2(cuda_context context)
{
  cuda_result result = standin_enter("cuCtxPushCurrent", false);
  if (result || !context || stack_depth == MAX_CONTEXTS)
    return result ? result : CUDA_INVALID_CONTEXT;
  stack[stack_depth++] = context;
  return 0;
}

cuda_result cuCtxPopCurrent_v2(cuda_context *ret_context)
{
  if (stack_depth == 0)
    return CUDA_INVALID_CONTEXT;
  *ret_context = stack[--stack_depth];
  return standin_leave("cuCtxPopCurrent");
}

cuda_result cuCtxGetCurrent(cuda_context *ret_context)
{
  *ret_context = standin_context();
  return standin_enter("cuCtxGetCurrent", false);
}

cuda_result cuCtxSetCurrent(cuda_context context)
{
  cuda_result result = standin_enter("cuCtxSetCurrent", false);
  if (result)
    return result;
  stack_depth = stack_depth ? stack_depth : 1;
  stack[stack_depth - 1] = context;
  return 0;
}

cuda_result cuCtxGetDevice(cuda_device_id *ret_id)
{
  cuda_result result = standin_enter("cuCtxGetDevice", true);
  if (!result)
    *ret_id = standin_context()->device;
  return result;
}

cuda_result cuMemGetInfo_v2(size_t *ret_free, size_t *ret_total)
{
  cuda_result result = standin_enter("cuMemGetInfo", true);
  if (result)
    return result;
  pthread_mutex_lock(&standin.lock);
  *ret_total = standin.settings.memory << 20;
  *ret_free = *ret_total - standin.used_bytes[standin_context()->device];
  pthread_mutex_unlock(&standin.lock);
  return 0;
}

cuda_result cuMemGetInfo(unsigned *ret_free, unsigned *ret_total)
{
  size_t free_bytes = 0, total_bytes = 0;
  cuda_result result = cuMemGetInfo_v2(&free_bytes, &total_bytes);
  *ret_free = (unsigned)free_bytes;
  *ret_total = (unsigned)total_bytes;
  return result;
}

cuda_result cuDeviceTotalMem(unsigned *ret_bytes, cuda_device_id id)
{
  size_t bytes = 0;
  cuda_result result = cuDeviceTotalMem_v2(&bytes, id);
  *ret_bytes = (unsigned)bytes;
  return result;
}
