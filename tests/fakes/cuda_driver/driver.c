/* SPDX-License-Identifier: Apache-2.0 */
/* The fake's start, devices and contexts; its settings, and the calls that fail. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "fake_driver_internal.h"

#define MAX_CONTEXTS 16 /* pushed by one thread */
#define CONTEXT_BYTES ((uint64_t)8 << 20)

static const struct setting settings[] = {
    {"version", &fake.version}, {"devices", &fake.devices}, {"sm", &fake.sm},
    {"memory", &fake.memory},   {"words", &fake.words},     {"handles", &fake.handles},
    {"channels", &fake.channels}, {"lose", &fake.lose},
    {"lose_code", &fake.lose_code}, {"host_chunks", &fake.host_chunks}, {"slices", &fake.slices},
    {"modules", &fake.modules}, {"functions", &fake.functions},
    {"cold", &fake.cold},
    {NULL, NULL}};

struct fake fake = {
    .lock = PTHREAD_MUTEX_INITIALIZER,
    .changed = PTHREAD_COND_INITIALIZER,
    .control = {.settings = settings, .nth = 1, .code = CUDA_OUT_OF_MEMORY},
    .version = 13000, .devices = 1, .sm = 90, .memory = 256, .words = 1, .handles = 1, .slices = 1, .host_chunks = 1,
    .lose_code = CUDA_LAUNCH_FAILED,
};

static bool is_started;

static _Thread_local cuda_context stack[MAX_CONTEXTS];
static _Thread_local int stack_depth;
static _Thread_local bool is_in_host_function;

/* ---- settings, counting, failing ---- */

int fake_set(const char *text)
{
  pthread_mutex_lock(&fake.lock);
  fake.n_async = 0;
  int status = control_set(&fake.control, text);
  pthread_mutex_unlock(&fake.lock);
  return status;
}

__attribute__((constructor)) static void settings_load(void)
{
  control_load("LADE_FAKE", fake_set);
}

uint64_t fake_calls(const char *function)
{
  pthread_mutex_lock(&fake.lock);
  uint64_t n = control_calls(&fake.control, function);
  pthread_mutex_unlock(&fake.lock);
  return n;
}

uint64_t fake_failed(void)
{
  pthread_mutex_lock(&fake.lock);
  uint64_t n = fake.control.n_failed;
  pthread_mutex_unlock(&fake.lock);
  return n;
}

uint64_t fake_interrupts(void)
{
  pthread_mutex_lock(&fake.lock);
  uint64_t n = fake.n_interrupts;
  pthread_mutex_unlock(&fake.lock);
  return n;
}

int64_t fake_live(void)
{
  pthread_mutex_lock(&fake.lock);
  int64_t n = fake.n_live;
  pthread_mutex_unlock(&fake.lock);
  return n;
}

void fake_alive(int n)
{
  pthread_mutex_lock(&fake.lock);
  fake.n_live += n;
  pthread_mutex_unlock(&fake.lock);
}

void fake_turn_wait(void)
{
  while (fake.is_held && !pthread_equal(fake.holder, pthread_self()))
    pthread_cond_wait(&fake.changed, &fake.lock);
}

void fake_hold(void)
{
  fake_turn_wait();
  fake.is_held = true;
  fake.holder = pthread_self();
}

void fake_let_go(void)
{
  fake.is_held = false;
  pthread_cond_broadcast(&fake.changed);
}

cuda_result fake_enter(const char *function, bool wants_context)
{
  pthread_mutex_lock(&fake.lock);
  fake_turn_wait();
  cuda_result result = (cuda_result)control_enter(&fake.control, function);
  cuda_context context = fake_context();
  if (!result && is_in_host_function)
    result = CUDA_INVALID_CONTEXT;
  if (!result && !is_started && wants_context)
    result = CUDA_NOT_INITIALIZED;
  if (!result && wants_context)
    result = context ? context->broken : CUDA_INVALID_CONTEXT;
  if (!result)
    result = fake_capture_refuses(function);
  pthread_mutex_unlock(&fake.lock);
  return result;
}

cuda_result fake_leave(const char *function)
{
  pthread_mutex_lock(&fake.lock);
  fake_turn_wait();
  cuda_result result = (cuda_result)control_enter(&fake.control, function);
  cuda_context context = fake_context();
  if (!result && context)
    result = context->broken;
  pthread_mutex_unlock(&fake.lock);
  return result;
}

void fake_in_host_function(bool is_inside)
{
  is_in_host_function = is_inside;
}

void fake_break(cuda_context context, cuda_result code)
{
  context->broken = context->broken ? context->broken : code;
  pthread_cond_broadcast(&fake.changed);
}

/* ---- memory counts ---- */

bool fake_take(int device, uint64_t bytes)
{
  pthread_mutex_lock(&fake.lock);
  bool is_there = bytes <= (fake.memory << 20) - fake.used_bytes[device];
  if (is_there)
    fake.used_bytes[device] += bytes;
  pthread_mutex_unlock(&fake.lock);
  return is_there;
}

void fake_give_back(int device, uint64_t bytes)
{
  pthread_mutex_lock(&fake.lock);
  LADE_ASSERT(bytes <= fake.used_bytes[device]);
  fake.used_bytes[device] -= bytes;
  pthread_mutex_unlock(&fake.lock);
}

int fake_library_take(uint64_t bytes)
{
  cuda_context context = fake_context();
  return context && fake_take(context->device, bytes) ? context->device : -1;
}

void fake_library_give_back(int device, uint64_t bytes)
{
  if (device >= 0)
    fake_give_back(device, bytes);
}

/* ---- the driver ---- */

EXPORT cuda_result cuInit(unsigned flags);
EXPORT cuda_result cuDriverGetVersion(int *ret_version);
EXPORT cuda_result cuGetErrorName(cuda_result result, const char **ret_text);
EXPORT cuda_result cuGetErrorString(cuda_result result, const char **ret_text);
EXPORT cuda_result cuDeviceGetCount(int *ret_n);
EXPORT cuda_result cuDeviceGet(cuda_device_id *ret_id, int ordinal);
EXPORT cuda_result cuDeviceGetName(char *ret_name, int bytes, cuda_device_id id);
EXPORT cuda_result cuDeviceGetUuid_v2(struct cuda_uuid *ret_uuid, cuda_device_id id);
EXPORT cuda_result cuDeviceGetAttribute(int *ret_value, int attribute, cuda_device_id id);
EXPORT cuda_result cuDeviceTotalMem_v2(size_t *ret_bytes, cuda_device_id id);
EXPORT cuda_result cuDevicePrimaryCtxRetain(cuda_context *ret_context, cuda_device_id id);
EXPORT cuda_result cuDevicePrimaryCtxRelease_v2(cuda_device_id id);
EXPORT cuda_result cuDevicePrimaryCtxReset_v2(cuda_device_id id);
EXPORT cuda_result cuDevicePrimaryCtxGetState(cuda_device_id id, unsigned *ret_flags, int *ret_is_active);
EXPORT cuda_result cuCtxCreate_v2(cuda_context *ret_context, unsigned flags, cuda_device_id id);
EXPORT cuda_result cuCtxAttach(cuda_context *ret_context, unsigned flags);
EXPORT cuda_result cuCtxDetach(cuda_context context);
EXPORT cuda_result cuCtxDestroy_v2(cuda_context context);
EXPORT cuda_result cuCtxPushCurrent_v2(cuda_context context);
EXPORT cuda_result cuCtxPopCurrent_v2(cuda_context *ret_context);
EXPORT cuda_result cuCtxGetCurrent(cuda_context *ret_context);
EXPORT cuda_result cuCtxSetCurrent(cuda_context context);
EXPORT cuda_result cuCtxGetDevice(cuda_device_id *ret_id);
EXPORT cuda_result cuMemGetInfo_v2(size_t *ret_free, size_t *ret_total);
EXPORT cuda_result cuMemGetInfo(unsigned *ret_free, unsigned *ret_total);
EXPORT cuda_result cuDeviceTotalMem(unsigned *ret_bytes, cuda_device_id id);

cuda_context fake_context(void)
{
  return stack_depth ? stack[stack_depth - 1] : NULL;
}

cuda_result fake_status(void)
{
  pthread_mutex_lock(&fake.lock);
  cuda_context context = fake_context();
  cuda_result result = context ? context->broken : CUDA_INVALID_CONTEXT;
  pthread_mutex_unlock(&fake.lock);
  return result;
}

/*
 * Return the number of devices in CUDA_VISIBLE_DEVICES, a list of numbers or of UUIDs; all devices without it. Of
 * several slices a process sees only the first.
 */
static int visible_count(void)
{
  const char *list = getenv("CUDA_VISIBLE_DEVICES");
  int n = list && *list ? 1 : 0;
  for (const char *at = list; at && *at; at++)
    n += *at == ',';
  n = list ? n : (int)LADE_MIN(fake.devices, MAX_DEVICES);
  return fake.slices > 1 ? LADE_MIN(n, 1) : n;
}

/*
 * Return the machine's number of visible device @id. Slices count as devices; those of one GPU are consecutive. A UUID
 * ends with the number (cuDeviceGetUuid).
 */
static int physical_device(cuda_device_id id)
{
  const char *at = getenv("CUDA_VISIBLE_DEVICES");
  for (int i = 0; at && i < id; i++)
    at = strchr(at, ',') ? strchr(at, ',') + 1 : at;
  if (!at)
    return id;
  const size_t n = strcspn(at, ",");
  const char *last = memrchr(at, '-', n);
  return last ? (int)strtol(last + 1, NULL, 16) : atoi(at);
}

static bool is_device(cuda_device_id id)
{
  return id >= 0 && id < visible_count();
}

cuda_result cuInit(unsigned flags)
{
  cuda_result result = fake_enter("cuInit", false);
  if (result)
    return result;
  if (visible_count() == 0)
    return CUDA_NO_DEVICE;
  is_started = true;
  for (int i = 0; i < MAX_DEVICES; i++)
    fake.primary[i].device = i;
  return 0;
}

cuda_result cuDriverGetVersion(int *ret_version)
{
  *ret_version = (int)fake.version;
  return fake_enter("cuDriverGetVersion", false);
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
  *ret_n = visible_count();
  return fake_enter("cuDeviceGetCount", false);
}

cuda_result cuDeviceGet(cuda_device_id *ret_id, int ordinal)
{
  cuda_result result = fake_enter("cuDeviceGet", false);
  *ret_id = ordinal;
  return result ? result : is_device(ordinal) ? 0 : CUDA_INVALID_DEVICE;
}

cuda_result cuDeviceGetName(char *ret_name, int bytes, cuda_device_id id)
{
  snprintf(ret_name, (size_t)bytes, "Fake GPU");
  return fake_enter("cuDeviceGetName", false);
}

/* Return the UUID: of device 2 "GPU-57ad0000-0000-0000-0000-000000000002", or "MIG-" and so on for a slice. */
cuda_result cuDeviceGetUuid_v2(struct cuda_uuid *ret_uuid, cuda_device_id id)
{
  cuda_result result = fake_enter("cuDeviceGetUuid", false);
  if (result || !is_device(id))
    return result ? result : CUDA_INVALID_DEVICE;
  *ret_uuid = (struct cuda_uuid){{0x57, 0xad}};
  ret_uuid->bytes[sizeof(ret_uuid->bytes) - 1] = (unsigned char)physical_device(id);
  return 0;
}

cuda_result cuDeviceGetAttribute(int *ret_value, int attribute, cuda_device_id id)
{
  cuda_result result = fake_enter("cuDeviceGetAttribute", false);
  *ret_value = attribute == CUDA_ATTRIBUTE_CAPABILITY_MAJOR   ? (int)fake.sm / 10
               : attribute == CUDA_ATTRIBUTE_CAPABILITY_MINOR ? (int)fake.sm % 10
               : attribute == CUDA_ATTRIBUTE_STREAM_WORDS     ? (int)fake.words
               : attribute == CUDA_ATTRIBUTE_HOST_CHUNKS      ? (int)fake.host_chunks
               : attribute == CUDA_ATTRIBUTE_SHARED_MAX      ? 227 << 10
               : attribute == CUDA_ATTRIBUTE_PCI_DOMAIN       ? 0
               : attribute == CUDA_ATTRIBUTE_PCI_BUS          ? 0xc1
               : attribute == CUDA_ATTRIBUTE_PCI_DEVICE       ? 1 + physical_device(id) / (int)fake.slices
                                                              : 1; /* also the number of multiprocessors */
  return result;
}

cuda_result cuDeviceTotalMem_v2(size_t *ret_bytes, cuda_device_id id)
{
  *ret_bytes = fake.memory << 20;
  return fake_enter("cuDeviceTotalMem", false);
}

cuda_result cuDevicePrimaryCtxRetain(cuda_context *ret_context, cuda_device_id id)
{
  cuda_result result = fake_enter("cuDevicePrimaryCtxRetain", false);
  if (result || !is_device(id))
    return result ? result : CUDA_INVALID_DEVICE;
  pthread_mutex_lock(&fake.lock);
  bool is_first = fake.primary[id].n_refs++ == 0;
  if (is_first)
    fake.primary[id].broken = 0;
  fake.n_live++;
  pthread_mutex_unlock(&fake.lock);
  if (is_first && !fake_take(id, CONTEXT_BYTES)) {
    fake.primary[id].n_refs = 0;
    fake_alive(-1);
    return CUDA_OUT_OF_MEMORY;
  }
  *ret_context = &fake.primary[id];
  return 0;
}

cuda_result cuDevicePrimaryCtxRelease_v2(cuda_device_id id)
{
  pthread_mutex_lock(&fake.lock);
  LADE_ASSERT(is_device(id) && fake.primary[id].n_refs > 0);
  bool is_last = --fake.primary[id].n_refs == 0;
  fake.n_live--;
  pthread_mutex_unlock(&fake.lock);
  if (is_last) {
    fake_blocks_end(&fake.primary[id]);
    fake_give_back(id, CONTEXT_BYTES);
  }
  return fake_leave("cuDevicePrimaryCtxRelease");
}

cuda_result cuDevicePrimaryCtxReset_v2(cuda_device_id id)
{
  pthread_mutex_lock(&fake.lock);
  int n_refs = fake.primary[id].n_refs;
  fake.primary[id].n_refs = 0;
  fake.n_live -= n_refs;
  pthread_mutex_unlock(&fake.lock);
  if (n_refs) {
    fake_blocks_end(&fake.primary[id]);
    fake_give_back(id, CONTEXT_BYTES);
  }
  return fake_leave("cuDevicePrimaryCtxReset");
}

cuda_result cuDevicePrimaryCtxGetState(cuda_device_id id, unsigned *ret_flags, int *ret_is_active)
{
  *ret_flags = 0;
  *ret_is_active = fake.primary[id].n_refs > 0;
  return fake_enter("cuDevicePrimaryCtxGetState", false);
}

cuda_result cuCtxCreate_v2(cuda_context *ret_context, unsigned flags, cuda_device_id id)
{
  cuda_result result = fake_enter("cuCtxCreate", false);
  if (result || !is_device(id))
    return result ? result : CUDA_INVALID_DEVICE;
  if (!fake_take(id, CONTEXT_BYTES))
    return CUDA_OUT_OF_MEMORY;
  cuda_context context = calloc(1, sizeof(*context));
  LADE_ASSERT(context);
  context->device = id;
  fake_alive(1);
  *ret_context = context;
  return cuCtxPushCurrent_v2(context);
}

cuda_result cuCtxDestroy_v2(cuda_context context)
{
  if (fake_context() == context)
    stack_depth--;
  fake_blocks_end(context);
  fake_give_back(context->device, CONTEXT_BYTES);
  free(context);
  fake_alive(-1);
  return fake_leave("cuCtxDestroy");
}

cuda_result cuCtxAttach(cuda_context *ret_context, unsigned flags)
{
  cuda_result result = fake_enter("cuCtxAttach", true);
  if (result)
    return result;
  *ret_context = fake_context();
  (*ret_context)->n_refs++;
  return 0;
}

cuda_result cuCtxDetach(cuda_context context)
{
  cuda_result result = fake_enter("cuCtxDetach", true);
  if (result || context != fake_context())
    return result ? result : CUDA_INVALID_CONTEXT;
  return context->n_refs-- > 0 ? 0 : cuCtxDestroy_v2(context);
}

cuda_result cuCtxPushCurrent_v2(cuda_context context)
{
  cuda_result result = fake_enter("cuCtxPushCurrent", false);
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
  return fake_leave("cuCtxPopCurrent");
}

cuda_result cuCtxGetCurrent(cuda_context *ret_context)
{
  *ret_context = fake_context();
  return fake_enter("cuCtxGetCurrent", false);
}

cuda_result cuCtxSetCurrent(cuda_context context)
{
  cuda_result result = fake_enter("cuCtxSetCurrent", false);
  if (result)
    return result;
  stack_depth = stack_depth ? stack_depth : 1;
  stack[stack_depth - 1] = context;
  return 0;
}

cuda_result cuCtxGetDevice(cuda_device_id *ret_id)
{
  cuda_result result = fake_enter("cuCtxGetDevice", true);
  if (!result)
    *ret_id = fake_context()->device;
  return result;
}

cuda_result cuMemGetInfo_v2(size_t *ret_free, size_t *ret_total)
{
  cuda_result result = fake_enter("cuMemGetInfo", true);
  if (result)
    return result;
  pthread_mutex_lock(&fake.lock);
  *ret_total = fake.memory << 20;
  *ret_free = *ret_total - fake.used_bytes[fake_context()->device];
  pthread_mutex_unlock(&fake.lock);
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
