/* SPDX-License-Identifier: Apache-2.0 */
/*
 * liblade-allocator.so: the pluggable allocator with one instance for the process, in PyTorch's signatures.
 *
 * The signatures have no handle, so this library has the only mutable state of a process: one pointer, set once. The
 * allocator is never destroyed, because callers free blocks in exit handlers, and the library is never unloaded
 * (-z nodelete).
 *
 * PyTorch takes the address that it gets, NULL too, and faults later in a kernel. Its allocators report by exceptions
 * of C++. Here one is thrown by a function of libstdc++, which every such process has loaded; the file is compiled with
 * unwind tables (-fexceptions). So no part of Lade is C++, and a process in C needs no libstdc++.
 */
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "base/base.h"
#include "lade/allocator.h"

#define LIMIT_VARIABLE "LADE_ALLOCATOR_LIMIT"
#define MIN_LIMIT_BYTES 65536 /* a smaller limit has lost its unit */

static struct {
  pthread_mutex_t lock;     /* guards creation and @error; never taken once the allocator exists */
  _Atomic(lade_allocator *) allocator;
  struct lade_error error;  /* of creation */
} process = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* Read the variable's limit; without it *ret_bytes stays. */
static int limit_read(uint64_t *ret_bytes, struct lade_error *error)
{
  const char *text = getenv(LIMIT_VARIABLE);
  uint64_t bytes = 0;
  if (!text || !*text)
    return 0;
  if (lade_size_parse(text, &bytes) || bytes < MIN_LIMIT_BYTES)
    return lade_error_set(error, -EINVAL, LIMIT_VARIABLE "=%.60s is no limit: expected a size such as 20GiB, of 64 KiB "
                          "or more", text);
  *ret_bytes = bytes;
  return 0;
}

/* Create the allocator, unless another thread has. With @limit_bytes NULL the variable has the limit. Lock held. */
static int process_open(const uint64_t *limit_bytes, struct lade_error *error)
{
  struct lade_allocator_params params = {.struct_size = sizeof(params), .limit_bytes = limit_bytes ? *limit_bytes : 0};
  lade_allocator *allocator = NULL;
  if (atomic_load(&process.allocator))
    return limit_bytes ? lade_allocator_set_limit(atomic_load(&process.allocator), *limit_bytes, error) : 0;
  int status = limit_bytes ? 0 : limit_read(&params.limit_bytes, error);
  if (!status)
    status = lade_allocator_create(&params, error, &allocator);
  if (!status)
    atomic_store(&process.allocator, allocator);
  return status;
}

lade_allocator *lade_plugged_allocator(struct lade_error *error)
{
  struct lade_error own = {0};
  if (atomic_load(&process.allocator))
    return atomic_load(&process.allocator);
  pthread_mutex_lock(&process.lock);
  int status = process_open(NULL, &own);
  if (status)
    process.error = own;
  pthread_mutex_unlock(&process.lock);
  if (status && error)
    *error = own;
  return atomic_load(&process.allocator);
}

int lade_plugged_limit(uint64_t limit_bytes, struct lade_error *error)
{
  if (atomic_load(&process.allocator))
    return lade_allocator_set_limit(atomic_load(&process.allocator), limit_bytes, error);
  pthread_mutex_lock(&process.lock);
  int status = process_open(&limit_bytes, error);
  pthread_mutex_unlock(&process.lock);
  return status;
}

void lade_plugged_error(struct lade_error *ret_error)
{
  if (atomic_load(&process.allocator)) {
    lade_allocator_get_error(atomic_load(&process.allocator), ret_error);
    return;
  }
  pthread_mutex_lock(&process.lock);
  *ret_error = process.error;
  pthread_mutex_unlock(&process.lock);
}

static void *block_get(ssize_t size, int device, void *stream, struct lade_error *error)
{
  void *address = NULL;
  lade_allocator *allocator = lade_plugged_allocator(error);
  if (!allocator || size == 0)
    return NULL;
  lade_allocator_alloc(allocator, size < 0 ? UINT64_MAX : (uint64_t)size, device, stream, error, &address);
  return address;
}

void *lade_plugged_alloc(ssize_t size, int device, void *stream)
{
  struct lade_error error = {0};
  return block_get(size, device, stream, &error);
}

/* Throw std::runtime_error with @text, which the exception copies. Return if the process has no libstdc++. */
static void exception_throw(const char *text)
{
  void *library = dlopen("libstdc++.so.6", RTLD_LAZY | RTLD_NOLOAD);
  void (*throw_it)(const char *) = library ? (void (*)(const char *))dlsym(library, "_ZSt21__throw_runtime_errorPKc")
                                           : NULL;
  if (library)
    dlclose(library);
  if (throw_it)
    throw_it(text);
}

void *lade_plugged_alloc_or_throw(ssize_t size, int device, void *stream)
{
  struct lade_error error = {0};
  void *address = block_get(size, device, stream, &error);
  if (!address && error.code)
    exception_throw(error.text);
  return address;
}

void lade_plugged_free(void *address, ssize_t size, int device, void *stream)
{
  lade_allocator *allocator = lade_plugged_allocator(NULL);
  if (allocator)
    lade_allocator_free(allocator, address, device, stream, NULL); /* a failure stays for lade_plugged_error */
}

void lade_plugged_record_stream(void *address, void *stream)
{
  lade_allocator *allocator = lade_plugged_allocator(NULL);
  if (allocator)
    lade_allocator_record(allocator, address, stream, NULL); /* likewise */
}

void lade_plugged_reset(void)
{
  lade_allocator *allocator = lade_plugged_allocator(NULL);
  if (allocator)
    lade_allocator_trim(allocator, 0);
}
