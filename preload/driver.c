/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Find the real driver and its functions, and intercept requests to the loader for them.
 *
 * A program reaches the driver by its soname. The shim has the same soname and, being preloaded, comes first. That
 * catches programs that are linked with libcuda.so.1 and those that dlopen it. The CUDA runtime uses dlopen, linked
 * statically or not, and takes every function from cuGetProcAddress. Three ways are left, and for these the shim
 * intercepts dlopen, dlmopen and dlsym (entry.S):
 *
 * - dlopen of the driver by another name, libcuda.so or a path, would open the real one. Its name is replaced by the
 *   soname. Other files called libcuda, such as a toolkit's stub, are opened as requested.
 * - dlmopen of it would load another real one in a namespace without the shim. It is opened in the program's own
 *   namespace. (A driver that another library's dependencies load into a namespace is not caught.)
 * - dlsym in the shim for a function without a hook is passed to the real driver: the answer is the driver's own, also
 *   for functions newer than our list.
 *
 * The driver is opened on first use, so a program without CUDA does not load it. No lock is held around the loader's
 * calls, which take locks of their own: two threads that race find the same address.
 */
#include "driver.h"

#include <dlfcn.h>
#include <gnu/libc-version.h>
#include <link.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "account.h"
#include "hooks.h"

#define SONAME "libcuda.so.1"

typedef void *open_fn(const char *path, int flags);
typedef void *space_open_fn(Lmid_t space, const char *path, int flags);
typedef void *symbol_fn(void *handle, const char *name);

_Atomic(void *) lade_shim_slots[N_FUNCTIONS];
/* The loader's own calls, to which entry.S jumps. */
extern _Atomic(open_fn *) lade_shim_dlopen;
extern _Atomic(space_open_fn *) lade_shim_dlmopen;
extern _Atomic(symbol_fn *) lade_shim_dlsym;
_Atomic(open_fn *) lade_shim_dlopen;
_Atomic(space_open_fn *) lade_shim_dlmopen;
_Atomic(symbol_fn *) lade_shim_dlsym;

static _Atomic(void *) real_driver;

const char *lade_shim_look_open(const char *path, int flags);
void lade_shim_look_space(Lmid_t *space, const char **path);
void *lade_shim_look_symbol(void *handle, const char *name);

/* ---- the loader ---- */

/* Return dlsym's version in this C library; a lookup with another version would be an error, which takes memory. */
static const char *dlsym_version(void)
{
  const char *dot = strchr(gnu_get_libc_version(), '.');
  return dot && atoi(dot + 1) >= 34 ? "GLIBC_2.34" : LADE_SHIM_DLSYM_VERSION;
}

static void loader_find(void)
{
  if (atomic_load(&lade_shim_dlopen))
    return;
  symbol_fn *symbol = (symbol_fn *)dlvsym(RTLD_NEXT, "dlsym", dlsym_version());
  atomic_store(&lade_shim_dlsym, symbol);
  atomic_store(&lade_shim_dlmopen, (space_open_fn *)symbol(RTLD_NEXT, "dlmopen"));
  atomic_store(&lade_shim_dlopen, (open_fn *)symbol(RTLD_NEXT, "dlopen"));
}

/* Return the handle that dlopen(SONAME) gives the program. */
static void *own_handle(void)
{
  static _Atomic(void *) own;
  void *handle = atomic_load(&own);
  Dl_info info;
  if (!handle && dladdr1((void *)lade_shim_slots, &info, &handle, RTLD_DL_LINKMAP))
    atomic_store(&own, handle);
  return handle;
}

/* ---- the driver ---- */

static cuda_result no_driver(void)
{
  return CUDA_NO_DEVICE;
}

static cuda_result no_function(void)
{
  return CUDA_NOT_SUPPORTED;
}

static void *driver_open(void)
{
  static atomic_flag is_said = ATOMIC_FLAG_INIT;
  void *driver = atomic_load(&real_driver);
  if (driver)
    return driver;
  loader_find();
  const char *path = settings_get()->driver;
  if (path[0])
    driver = atomic_load(&lade_shim_dlopen)(path, RTLD_LAZY | RTLD_LOCAL | RTLD_NODELETE);
  if (!driver && !atomic_flag_test_and_set(&is_said))
    say("the CUDA driver cannot be opened", path[0] ? path : "LADE_RUN_DRIVER is not set");
  atomic_store(&real_driver, driver);
  return driver;
}

static const char *const function_names[] = {FUNCTION_NAMES};

static void *function_find(unsigned number)
{
  void *driver = driver_open();
  return driver ? atomic_load(&lade_shim_dlsym)(driver, function_names[number]) : NULL;
}

bool driver_has(unsigned number)
{
  return function_find(number) != NULL;
}

void *lade_shim_function(unsigned number)
{
  void *function = function_find(number);
  if (!function && !atomic_load(&real_driver))
    return (void *)no_driver;
  function = function ? function : (void *)no_function;
  atomic_store_explicit(&lade_shim_slots[number], function, memory_order_release);
  return function;
}

/* ---- requests to the loader ---- */

static bool is_same_file(const char *a, const char *b)
{
  struct stat stat_a, stat_b;
  return stat(a, &stat_a) == 0 && stat(b, &stat_b) == 0 && stat_a.st_dev == stat_b.st_dev &&
         stat_a.st_ino == stat_b.st_ino;
}

static bool is_driver(const char *path)
{
  const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
  size_t n = strlen("libcuda.so");
  if (strncmp(name, "libcuda.so", n) != 0 || (name[n] && name[n] != '.'))
    return false;
  return !slash || is_same_file(path, settings_get()->driver);
}

const char *lade_shim_look_open(const char *path, int flags)
{
  loader_find();
  return path && is_driver(path) ? SONAME : path;
}

void lade_shim_look_space(Lmid_t *space, const char **path)
{
  loader_find();
  if (*path && is_driver(*path)) {
    *space = LM_ID_BASE;
    *path = SONAME;
  }
}

void *lade_shim_look_symbol(void *handle, const char *name)
{
  loader_find();
  if (!handle || handle != own_handle())
    return handle;
  int number = hook_number(name);
  if (number >= 0 && driver_has((unsigned)number))
    return handle;
  void *driver = driver_open();
  return driver ? driver : handle;
}
