/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The driver's lookup. cuGetProcAddress returns the driver's own functions, and the shim's hooks where they exist. A
 * hook is found by the address that the driver returned. If a driver returns other addresses than it exports, the hook
 * is found by the requested name and version. Tables of private functions (cuGetExportTable) pass unchanged.
 */
#include <string.h>

#include "account.h"
#include "base/base.h"
#include "driver.h"

#define PER_THREAD_STREAM 2 /* CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM */

static const struct hook {
  const char *symbol, *name;
  int since;
  bool is_per_thread;
  unsigned number;
  void *own;
} hooks[] = {
#define HOOK(symbol, name, since, per_thread, arguments) \
  {#symbol, name, since, per_thread, FUNCTION_##symbol, (void *)symbol},
    LADE_SHIM_HOOKS(HOOK)
#undef HOOK
};

int hook_number(const char *symbol)
{
  for (size_t i = 0; i < LADE_COUNT(hooks); i++)
    if (strcmp(hooks[i].symbol, symbol) == 0)
      return (int)hooks[i].number;
  return -1;
}

void *hook_for(void *found, const char *name, int version, uint64_t flags)
{
  const struct hook *best = NULL;
  bool is_per_thread = flags & PER_THREAD_STREAM;
  for (size_t i = 0; i < LADE_COUNT(hooks); i++) {
    const struct hook *hook = &hooks[i];
    if (function_get(hook->number) == found || hook->own == found)
      return hook->own;
    if (strcmp(hook->name, name) == 0 && hook->since <= version && (is_per_thread || !hook->is_per_thread))
      best = hook; /* the list goes from old to new */
  }
  return best ? best->own : found;
}

/*
 * True if @found is a form of @name that the shim knows. A version later than ours may have a newer form, with another
 * signature; if the driver returns one function for both versions, it has not.
 */
static bool form_is_known(void *found, const char *name, int version, uint64_t flags)
{
  void *ours = NULL;
  return version <= LADE_SHIM_CUDA_VERSION ||
         (REAL(cuGetProcAddress)(name, &ours, LADE_SHIM_CUDA_VERSION, flags) == 0 && ours == found);
}

/* Return the hook for the driver's result. A form newer than ours passes, and its memory is not counted. */
static void *answer(void *found, const char *name, int version, uint64_t flags)
{
  static atomic_flag is_said = ATOMIC_FLAG_INIT;
  if (form_is_known(found, name, version, flags))
    return hook_for(found, name, version, flags);
  if (hook_for(found, name, LADE_SHIM_CUDA_VERSION, flags) != found && !atomic_flag_test_and_set(&is_said))
    say("a function of a newer CUDA than this build knows is used, and not counted", name);
  return found;
}

cuda_result cuGetProcAddress(const char *name, void **ret, int version, uint64_t flags)
{
  cuda_result result = REAL(cuGetProcAddress)(name, ret, version, flags);
  if (!result && *ret)
    *ret = answer(*ret, name, version, flags);
  return result;
}

cuda_result cuGetProcAddress_v2(const char *name, void **ret, int version, uint64_t flags, int *ret_status)
{
  cuda_result result = REAL(cuGetProcAddress_v2)(name, ret, version, flags, ret_status);
  if (!result && *ret)
    *ret = answer(*ret, name, version, flags);
  return result;
}
