/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The process's settings, its record and the brackets around calls of the driver.
 *
 * The record is a file in the directory of `lade run`, mapped and shared. Its figures survive any end of the process,
 * SIGKILL included, without code at exit. The first driver call with a hook makes it, usually cuInit; a process without
 * CUDA makes none. A forked child makes one of its own, with an empty ledger: it does not own its parent's memory, and
 * the driver does not work across a fork anyway.
 *
 * This file and driver.c hold the process's global state; a preloaded library has one copy per process.
 */
#include "account.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/base.h"
#include "base/lock.h"
#include "driver.h"

#define RECORDS_MAX 10000 /* of one process number, by exec or by namespaces */

static struct settings settings;
static _Atomic(lade_ledger *) ledger;
static struct lade_lock ledger_lock; /* held while the ledger is created */
static _Thread_local int depth;      /* of nested brackets, because the driver calls itself */

void say(const char *subject, const char *reason)
{
  char line[PATH_MAX + 256];
  int n = snprintf(line, sizeof(line), "lade run: %s: %s\n", subject, reason);
  ssize_t ignored = write(STDERR_FILENO, line, LADE_MIN((size_t)n, sizeof(line) - 1));
  (void)ignored;
}

/* ---- settings ---- */

static void setting_read(const char *name, char *text, size_t text_bytes)
{
  const char *value = getenv(name);
  snprintf(text, text_bytes, "%s", value ? value : "");
}

/* Read settings as early as possible, because programs change their environment. */
__attribute__((constructor)) static void settings_read(void)
{
  setting_read("LADE_RUN_DRIVER", settings.driver, sizeof(settings.driver));
  setting_read("LADE_RUN_DIRECTORY", settings.directory, sizeof(settings.directory));
  setting_read("LADE_RUN_BUDGET", settings.budget, sizeof(settings.budget));
}

const struct settings *settings_get(void)
{
  if (!settings.driver[0])
    settings_read(); /* another library's constructor ran before ours */
  return &settings;
}

/* ---- the record ---- */

/* Create a new file in the directory; return its descriptor, or a negative errno. */
static int record_open(void)
{
  char path[PATH_MAX + 32];
  int fd = -1;
  for (int i = 0; i < RECORDS_MAX && fd < 0; i++) {
    snprintf(path, sizeof(path), "%s/%d.%d", settings.directory, (int)getpid(), i);
    fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0 && errno != EEXIST)
      return -errno;
  }
  if (fd < 0)
    return -EEXIST;
  int code = posix_fallocate(fd, 0, sizeof(struct lade_ledger_record)); /* otherwise a full disk would be a fault
                                                                           later */
  if (code) {
    int ignored = ftruncate(fd, 0); /* an empty file reports that the process ran but had no disk space for its
                                       record */
    (void)ignored;
    close(fd);
    return -code;
  }
  return fd;
}

/*
 * Map the record's memory. If no file can be made, the memory is private: no other process reads it, but the budget
 * holds. NULL: out of memory.
 */
static struct lade_ledger_record *record_map(void)
{
  int fd = record_open(), flags = fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
  if (fd < 0)
    say("this process will not be in the report", strerror(-fd));
  void *record = mmap(NULL, sizeof(struct lade_ledger_record), PROT_READ | PROT_WRITE, flags, fd < 0 ? -1 : fd, 0);
  if (fd >= 0)
    close(fd);
  return record == MAP_FAILED ? NULL : record;
}

static void child_begin(void)
{
  atomic_store(&ledger, NULL);
  ledger_lock = (struct lade_lock){0};
  depth = 0;
}

/* Register before the program's own handlers, so that in a child ours, which makes the ledger anew, runs first. */
__attribute__((constructor)) static void forks_await(void)
{
  pthread_atfork(NULL, NULL, child_begin);
}

/* Create the ledger. pre: lock held. */
static void ledger_make(void)
{
  struct lade_ledger_budget budget = {.bytes = 1}; /* if invalid: no memory at all, rather than no limit */
  struct lade_ledger_record *record = record_map();
  lade_ledger *made = NULL;
  if (lade_ledger_budget_parse(settings.budget, &budget, NULL))
    say("LADE_RUN_BUDGET is no budget, so nothing may be allocated", settings.budget);
  if (!record || lade_ledger_create(record, &budget, &made)) {
    say("no memory for the ledger", settings.budget[0] ? "nothing may be allocated" : "nothing is counted");
    return;
  }
  record->pid = (int32_t)getpid();
  snprintf(record->program, sizeof(record->program), "%s", program_invocation_short_name);
  record->version = LADE_LEDGER_RECORD_VERSION;
  atomic_store(&ledger, made);
}

lade_ledger *account_ledger(void)
{
  if (!atomic_load(&ledger)) {
    lade_lock_lock(&ledger_lock);
    if (!atomic_load(&ledger))
      ledger_make();
    lade_lock_unlock(&ledger_lock);
  }
  return atomic_load(&ledger);
}

/* ---- places ---- */

struct account_place place_device(int device)
{
  lade_ledger *ours = account_ledger();
  size_t bytes = 0;
  if (!ours || device < 0 || device >= LADE_LEDGER_DEVICES)
    return (struct account_place){.account = -1};
  if (!lade_ledger_knows(ours, device) && REAL(cuDeviceTotalMem_v2)(&bytes, device) == 0)
    lade_ledger_device(ours, device, bytes);
  return (struct account_place){.account = device};
}

struct account_place place_current(void)
{
  cuda_context context = NULL;
  cuda_device_id device;
  if (REAL(cuCtxGetCurrent)(&context) || !context || REAL(cuCtxGetDevice)(&device))
    return (struct account_place){.account = -1};
  struct account_place place = place_device(device);
  place.owner = context;
  return place;
}

struct account_place place_context(cuda_context context)
{
  cuda_context current = NULL;
  if (REAL(cuCtxGetCurrent)(&current) == 0 && current == context)
    return place_current();
  if (REAL(cuCtxPushCurrent_v2)(context))
    return (struct account_place){.account = -1};
  struct account_place place = place_current();
  REAL(cuCtxPopCurrent_v2)(&context);
  return place;
}

struct account_place place_location(const struct cuda_location *location)
{
  return location->type == CUDA_LOCATION_DEVICE ? place_device(location->id) : PLACE_HOST;
}

/* ---- brackets ---- */

bool is_outermost(void)
{
  return depth == 0;
}

cuda_result taking_begin(struct taking *taking, struct account_place place, enum lade_ledger_kind kind, uint64_t bytes)
{
  *taking = (struct taking){.ledger = account_ledger()};
  if (!taking->ledger && settings.budget[0])
    return CUDA_OUT_OF_MEMORY; /* uncounted memory cannot be bounded */
  if (taking->ledger && place.account >= 0 && depth == 0 &&
      lade_ledger_charge(taking->ledger, place.account, kind, bytes, place.owner, &taking->holding))
    return CUDA_OUT_OF_MEMORY;
  depth++;
  return CUDA_DONE;
}

cuda_result taking_end(struct taking *taking, cuda_result result, enum lade_ledger_space space, uint64_t key,
                       uint64_t bytes)
{
  depth--;
  if (!taking->holding)
    return result;
  if (!result && lade_ledger_settle(taking->ledger, taking->holding, space, key, bytes))
    result = CUDA_OUT_OF_MEMORY;
  if (result)
    lade_ledger_drop(taking->ledger, taking->holding);
  return result;
}

struct giving giving_begin(enum lade_ledger_space space, uint64_t key)
{
  struct giving giving = {.ledger = account_ledger()};
  if (giving.ledger && depth == 0)
    giving.holding = lade_ledger_take(giving.ledger, space, key);
  depth++;
  return giving;
}

cuda_result giving_end(struct giving *giving, cuda_result result)
{
  depth--;
  if (giving->holding && result)
    lade_ledger_keep(giving->ledger, giving->holding);
  else if (giving->holding)
    lade_ledger_drop(giving->ledger, giving->holding);
  return result;
}
