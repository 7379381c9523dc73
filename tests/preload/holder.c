/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program that uses the driver API without Lade. It takes memory in the way that its second argument names, and
 * prints the results. tests/preload/shim.py runs it under `lade run` and compares.
 *
 * Usage: holder ROUTE SCENARIO [ARGUMENT...]
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/base.h"
#include "holder.h"
#include "preload/hooks.h"
#include "tests/fakes/cuda_driver/fake_driver.h"

#define MIB ((size_t)1 << 20)
#define CHUNK (2 * MIB)

cuda_result cuDeviceGet(cuda_device_id *ret_id, int ordinal);
cuda_result cuCtxCreate_v2(cuda_context *ret_context, unsigned flags, cuda_device_id id);
cuda_result cuCtxAttach(cuda_context *ret_context, unsigned flags);
cuda_result cuCtxSetCurrent(cuda_context context);
cuda_result cuGetExportTable(const void **ret_table, const void *id);
cuda_result cuStreamCreate(cuda_stream *ret_stream, unsigned flags);
cuda_result cuStreamBeginCapture_v2(cuda_stream stream, int mode);
cuda_result cuStreamEndCapture(cuda_stream stream, void **ret_graph);
cuda_result cuGraphDestroy(void *graph);
cuda_result cuMemAlloc_v3(void *params, cuda_address *ret_at, size_t bytes);
cuda_result cuMemAddressReserve(cuda_address *ret_at, size_t bytes, size_t alignment, cuda_address hint,
                                unsigned long long flags);
cuda_result cuMemExportToShareableHandle(void *ret_handle, cuda_memory memory, int type, unsigned long long flags);
cuda_result cuIpcGetMemHandle(struct cuda_ipc_handle *ret_handle, cuda_address at);
cuda_result cuFakeNovelty(int *ret_value);

/* Find a function by the program's route; it must exist. */
#define CALL(name) ((__typeof__(name) *)must_find(#name))
static void *must_find(const char *symbol)
{
  void *function = route_find(symbol);
  if (!function) {
    printf("no %s\n", symbol);
    exit(9);
  }
  return function;
}

/* Make a call that must succeed. */
#define DO(call) must(call, #call)
static void must(cuda_result result, const char *call)
{
  if (result) {
    printf("%d from %s\n", result, call);
    exit(8);
  }
}

static cuda_context begin(void)
{
  cuda_context context;
  cuda_device_id device;
  DO(CALL(cuInit)(0));
  DO(CALL(cuDeviceGet)(&device, 0));
  DO(CALL(cuCtxCreate_v2)(&context, 0, device));
  return context;
}

static void info_print(const char *when)
{
  size_t free_bytes = 0, total_bytes = 0, device_bytes = 0;
  DO(CALL(cuMemGetInfo_v2)(&free_bytes, &total_bytes));
  DO(CALL(cuDeviceTotalMem_v2)(&device_bytes, 0));
  printf("%s %zu %zu %zu\n", when, free_bytes, total_bytes, device_bytes);
}

/* ---- scenarios ---- */

/* Allocate all memory, a MiB at a time; then free one and allocate once more. */
static void fill(char **arguments)
{
  cuda_address at = 0, last = 0;
  int n = 0;
  begin();
  info_print("empty");
  while (CALL(cuMemAlloc_v2)(&at, MIB) == 0) {
    last = at;
    n++;
  }
  info_print("full");
  DO(CALL(cuMemFree_v2)(last));
  cuda_result large = CALL(cuMemAlloc_v2)(&at, 2 * MIB), small = CALL(cuMemAlloc_v2)(&at, MIB);
  printf("filled %d, then %d %d\n", n, large, small);
}

static void *taker_run(void *count)
{
  cuda_address at;
  DO(CALL(cuCtxSetCurrent)(*(cuda_context *)count));
  intptr_t n = 0;
  for (int i = 0; i < 200; i++) { /* allocates and frees, and keeps every fourth */
    if (CALL(cuMemAlloc_v2)(&at, MIB) == 0 && (i % 4 || n++ < 0))
      DO(CALL(cuMemFree_v2)(at));
  }
  while (CALL(cuMemAlloc_v2)(&at, MIB) == 0)
    n++;
  return (void *)n;
}

/* Several threads compete for the last bytes. */
static void threads(char **arguments)
{
  pthread_t takers[6];
  cuda_context context = begin();
  intptr_t sum = 0;
  for (size_t i = 0; i < LADE_COUNT(takers); i++)
    pthread_create(&takers[i], NULL, taker_run, &context);
  for (size_t i = 0; i < LADE_COUNT(takers); i++) {
    void *n;
    pthread_join(takers[i], &n);
    sum += (intptr_t)n;
  }
  printf("threads hold %d\n", (int)sum);
  info_print("full");
}

static void chunks_take(void)
{
  const struct cuda_memory_properties properties = {.type = CUDA_MEMORY_PINNED, .handle_types = CUDA_HANDLE_POSIX,
                                                    .location = {CUDA_LOCATION_DEVICE, 0}};
  const struct cuda_memory_properties on_host = {.type = CUDA_MEMORY_PINNED, .location = {3, 0}};
  cuda_memory whole, other, host, imported;
  cuda_address range;
  int fd;
  DO(CALL(cuMemAddressReserve)(&range, 4 * CHUNK, 0, 0, 0));
  DO(CALL(cuMemCreate)(&whole, CHUNK, &properties, 0));
  DO(CALL(cuMemCreate)(&other, CHUNK, &properties, 0));
  DO(CALL(cuMemCreate)(&host, CHUNK, &on_host, 0));
  DO(CALL(cuMemMap)(range, CHUNK, 0, whole, 0));
  DO(CALL(cuMemMap)(range + CHUNK, CHUNK, 0, whole, 0));
  DO(CALL(cuMemRelease)(whole)); /* mapped twice: it stays */
  info_print("released");
  DO(CALL(cuMemUnmap)(range, CHUNK));
  DO(CALL(cuMemRetainAllocationHandle)(&whole, (void *)(uintptr_t)(range + CHUNK)));
  DO(CALL(cuMemUnmap)(range + CHUNK, CHUNK));
  info_print("retained"); /* held by its handle alone */
  DO(CALL(cuMemRelease)(whole));
  info_print("gone");
  DO(CALL(cuMemExportToShareableHandle)(&fd, other, CUDA_HANDLE_POSIX, 0));
  DO(CALL(cuMemImportFromShareableHandle)(&imported, (void *)(intptr_t)fd, CUDA_HANDLE_POSIX));
  DO(CALL(cuMemMap)(range + 2 * CHUNK, CHUNK, 0, imported, 0));
  close(fd);
}

static void arrays_take(void)
{
  const struct cuda_array_shape flat = {1000, 100, 0x20, 4};               /* floats: 1.6 MB */
  const struct cuda_array_shape_3d deep = {64, 64, 64, 0x01, 1, 0};        /* bytes: 256 KiB */
  const struct cuda_array_shape_3d layers = {64, 64, 4, 0x10, 2, 0x01};    /* levels of 4 layers */
  const struct cuda_array_shape_3d sparse = {4096, 4096, 1, 0x20, 4, 0x40}; /* without memory */
  cuda_array array;
  cuda_mipmapped levels;
  DO(CALL(cuArrayCreate_v2)(&array, &flat));
  DO(CALL(cuArrayDestroy)(array));
  DO(CALL(cuArray3DCreate_v2)(&array, &deep));
  DO(CALL(cuArray3DCreate_v2)(&array, &sparse));
  DO(CALL(cuMipmappedArrayCreate)(&levels, &layers, 3));
}

static void pools_take(void)
{
  const struct cuda_pool_properties properties = {.type = CUDA_MEMORY_PINNED, .location = {CUDA_LOCATION_DEVICE, 1}};
  const struct cuda_pool_properties anywhere = {.type = CUDA_MEMORY_MANAGED};
  cuda_context other;
  cuda_pool pool;
  cuda_stream stream, far;
  cuda_address at;
  void *graph;
  DO(CALL(cuStreamCreate)(&stream, 0));
  DO(CALL(cuMemAllocAsync)(&at, 3 * MIB, stream));
  DO(CALL(cuMemFreeAsync)(at, stream));
  DO(CALL(cuMemAllocAsync)(&at, MIB, NULL));
  DO(CALL(cuMemPoolCreate)(&pool, &properties));
  DO(CALL(cuMemAllocFromPoolAsync)(&at, 5 * MIB, pool, stream)); /* on the other device */
  DO(CALL(cuMemPoolCreate)(&pool, &anywhere)); /* on this device */
  DO(CALL(cuMemAllocFromPoolAsync)(&at, MIB, pool, stream));
  DO(CALL(cuDeviceGetDefaultMemPool)(&pool, 1));
  DO(CALL(cuMemAllocFromPoolAsync)(&at, 7 * MIB, pool, stream));
  DO(CALL(cuCtxCreate_v2)(&other, 0, 1));
  DO(CALL(cuStreamCreate)(&far, 0));
  DO(CALL(cuCtxPopCurrent_v2)(&other));
  DO(CALL(cuMemAllocAsync)(&at, 2 * MIB, far)); /* on the other device, too, though the first one is current */
  DO(CALL(cuStreamBeginCapture_v2)(stream, 0));
  DO(CALL(cuMemAllocAsync)(&at, 64 * MIB, stream)); /* a node of a graph: no memory yet */
  DO(CALL(cuStreamEndCapture)(stream, &graph));
  DO(CALL(cuGraphDestroy)(graph));
}

static void host_take(void)
{
  static char own[8192];
  void *at;
  DO(CALL(cuMemHostAlloc)(&at, 4096, 0));
  DO(CALL(cuMemFreeHost)(at));
  DO(CALL(cuMemAllocHost_v2)(&at, 12288));
  DO(CALL(cuMemHostRegister_v2)(own, sizeof(own), 0));
  DO(CALL(cuMemHostUnregister)(own));
}

static void foreign_take(void)
{
  const struct cuda_external_properties outside = {.type = 1, .bytes = 7 * MIB};
  struct cuda_ipc_handle handle;
  cuda_external external;
  cuda_address at, theirs;
  DO(CALL(cuMemAlloc_v2)(&at, MIB));
  DO(CALL(cuIpcGetMemHandle)(&handle, at));
  DO(CALL(cuIpcOpenMemHandle_v2)(&theirs, handle, 0));
  DO(CALL(cuIpcCloseMemHandle)(theirs));
  DO(CALL(cuImportExternalMemory)(&external, &outside));
}

/*
 * Memory that a graph allocates when it runs counts as long as it can be launched: the range of its nodes, not their
 * sum.
 */
static void graphs(char **arguments)
{
  cuda_address before, first, again, beside;
  cuda_stream stream;
  cuda_graph graph;
  cuda_graph_exec exec, other;
  begin();
  DO(CALL(cuStreamCreate)(&stream, 0));
  DO(CALL(cuMemAllocAsync)(&before, MIB, stream));
  DO(CALL(cuStreamBeginCapture_v2)(stream, 0));
  DO(CALL(cuMemAllocAsync)(&first, 4 * MIB, stream));
  DO(CALL(cuMemFreeAsync)(first, stream));
  DO(CALL(cuMemAllocAsync)(&again, 4 * MIB, stream));
  DO(CALL(cuMemAllocAsync)(&beside, 2 * MIB, stream));
  DO(CALL(cuMemFreeAsync)(before, stream)); /* freed at a launch: until then it is held */
  DO(CALL(cuStreamEndCapture)(stream, (void **)&graph));
  info_print("captured");
  DO(CALL(cuGraphInstantiateWithFlags)(&exec, graph, 0));
  info_print("made");
  printf("second %d %d %d\n", CALL(cuGraphInstantiateWithFlags)(&other, graph, 0),
         CALL(cuGraphInstantiate_v2)(&other, graph, NULL, NULL, 0),
         CALL(cuGraphInstantiateWithParams)(&other, graph, NULL));
  DO(CALL(cuGraphExecDestroy)(exec));
  info_print("unmade");
  DO(CALL(cuGraphInstantiateWithParams_ptsz)(&exec, graph, NULL));
  DO(CALL(cuGraphDestroy)(graph));
  info_print("again");
}

/* A graph whose memory is on another device than the context in which it is made, and outlives that context. */
static void far_graph(char **arguments)
{
  cuda_context here = begin(), there;
  cuda_stream stream;
  cuda_address at;
  cuda_graph graph;
  cuda_graph_exec exec;
  DO(CALL(cuCtxCreate_v2)(&there, 0, 1));
  DO(CALL(cuStreamCreate)(&stream, 0));
  DO(CALL(cuStreamBeginCapture_v2)(stream, 0));
  DO(CALL(cuMemAllocAsync)(&at, 4 * MIB, stream));
  DO(CALL(cuStreamEndCapture)(stream, (void **)&graph));
  DO(CALL(cuCtxPopCurrent_v2)(&there));
  DO(CALL(cuGraphInstantiateWithFlags)(&exec, graph, 0));
  DO(CALL(cuCtxDestroy_v2)(here));
  DO(CALL(cuCtxSetCurrent)(there));
  info_print("outlived");
  DO(CALL(cuGraphExecDestroy)(exec));
  info_print("destroyed");
}

/* Another process's memory, opened twice and closed as often as the argument says, or ended with its context. */
static void imports(char **arguments)
{
  struct cuda_ipc_handle handle;
  cuda_address at, theirs, again;
  cuda_context context = begin();
  DO(CALL(cuMemAlloc_v2)(&at, MIB));
  DO(CALL(cuIpcGetMemHandle)(&handle, at));
  DO(CALL(cuIpcOpenMemHandle_v2)(&theirs, handle, 0));
  DO(CALL(cuIpcOpenMemHandle_v2)(&again, handle, 0));
  printf("again %s\n", again == theirs ? "the same" : "another");
  for (int i = 0; i < atoi(arguments[0]); i++)
    DO(CALL(cuIpcCloseMemHandle)(theirs));
  if (arguments[1])
    DO(CALL(cuCtxDestroy_v2)(context));
}

/* A form that the shim cannot know. */
static void future(char **arguments)
{
  cuda_address at = 0;
  void *found = NULL;
  int status;
  begin();
  DO(CALL(cuGetProcAddress_v2)("cuMemAlloc", &found, 99000, 0, &status));
  printf("future %d\n", ((__typeof__(cuMemAlloc_v3) *)found)(NULL, &at, MIB));
  DO(CALL(cuGetProcAddress_v2)("cuMemAlloc", &found, 12000, 0, &status));
  printf("known %d\n", ((__typeof__(cuMemAlloc_v2) *)found)(&at, MIB));
}

/* One allocation of every kind; shim.py checks the memory left at the end. */
static void kinds(char **arguments)
{
  cuda_address at;
  size_t pitch;
  begin();
  DO(CALL(cuMemAllocPitch_v2)(&at, &pitch, 1000, 10, 4)); /* ten rows of 1024 */
  DO(CALL(cuMemAllocManaged)(&at, 3 * MIB, 1));
  foreign_take();
  chunks_take();
  arrays_take();
  pools_take();
  host_take();
  info_print("end");
}

/* Memory that ends with a context is free again; a wrong address changes nothing. */
static void owners(char **arguments)
{
  cuda_address at;
  cuda_context context = begin();
  DO(CALL(cuMemAlloc_v2)(&at, 5 * MIB));
  printf("wrong %d\n", CALL(cuMemFree_v2)(at + 1));
  info_print("held");
  DO(CALL(cuCtxDestroy_v2)(context));
  for (int i = 0; i < 2; i++)
    DO(CALL(cuDevicePrimaryCtxRetain)(&context, 0));
  DO(CALL(cuCtxSetCurrent)(context));
  DO(CALL(cuMemAlloc_v2)(&at, 3 * MIB));
  DO(CALL(cuDevicePrimaryCtxRelease_v2)(0));
  info_print("one left");
  DO(CALL(cuDevicePrimaryCtxReset_v2)(0));
  DO(CALL(cuDevicePrimaryCtxRetain)(&context, 0));
  DO(CALL(cuCtxSetCurrent)(context));
  info_print("anew");
}

/* An attached context ends with its last detach. */
static void detach(char **arguments)
{
  cuda_address at;
  cuda_context context = begin(), same;
  DO(CALL(cuCtxAttach)(&same, 0));
  DO(CALL(cuMemAlloc_v2)(&at, 5 * MIB));
  DO(CALL(cuCtxDetach)(context));
  info_print("attached");
  DO(CALL(cuCtxDetach)(context));
  begin();
  info_print("detached");
}

/* The forms of before CUDA 3.2. */
static void ancient(char **arguments)
{
  unsigned at = 0, free_bytes = 0, total_bytes = 0;
  begin();
  DO(CALL(cuMemAlloc)(&at, MIB));
  DO(CALL(cuMemGetInfo)(&free_bytes, &total_bytes));
  printf("ancient %u %u\n", free_bytes, total_bytes);
  DO(CALL(cuMemFree)(at));
  DO(CALL(cuDeviceTotalMem)(&total_bytes, 0));
  printf("total %u\n", total_bytes);
}

/* Functions unknown to the shim, and functions that do not concern it. */
static void novelty(char **arguments)
{
  const void *const *table = NULL;
  int value = 0;
  Dl_info info = {0};
  DO(CALL(cuInit)(0));
  DO(CALL(cuFakeNovelty)(&value));
  DO(CALL(cuGetExportTable)((const void **)&table, FAKE_TABLE));
  dladdr(table, &info);
  printf("novelty %d, table %s %s, none %d\n", value, *table == table ? "untouched" : "changed",
         info.dli_fname, route_find("cuNoSuchFunction") != NULL);
}

/* The padding of rows exceeds a budget that the rows themselves do not. */
static void padding(char **arguments)
{
  cuda_address at;
  size_t pitch;
  begin();
  cuda_result result = CALL(cuMemAllocPitch_v2)(&at, &pitch, 16, MIB / 16, 4);
  info_print("padded");
  printf("padding %d\n", result);
}

/* Sizes that no device has, as from an underflowed sum. */
static void absurd(char **arguments)
{
  cuda_address at;
  begin();
  printf("absurd %d %d\n", CALL(cuMemAlloc_v2)(&at, SIZE_MAX), CALL(cuMemAllocManaged)(&at, SIZE_MAX - MIB, 1));
  info_print("as before");
}

static void wait_for_ever(char **arguments)
{
  cuda_address at;
  begin();
  DO(CALL(cuMemAlloc_v2)(&at, 3 * MIB));
  printf("ready\n");
  fflush(stdout);
  for (;;)
    pause();
}

/* A child of fork, before its parent uses the driver; and another program in the place of this one. */
static void children(char **arguments)
{
  cuda_address at;
  pid_t child = fork();
  begin();
  DO(CALL(cuMemAlloc_v2)(&at, (child ? 2 : 1) * MIB));
  if (!child)
    _exit(0);
  waitpid(child, NULL, 0);
  child = fork(); /* after: memory that the parent holds is not the child's */
  if (!child) {
    CALL(cuInit)(0);
    _exit(0);
  }
  waitpid(child, NULL, 0);
  execv(arguments[0], arguments);
  exit(7);
}

static void start_only(char **arguments)
{
  DO(CALL(cuInit)(0));
}

static void leave(char **arguments)
{
  begin();
  exit(atoi(arguments[0]));
}

/* Make one allocation and print the result. */
static void once(char **arguments)
{
  cuda_address at;
  begin();
  info_print("begun");
  DO(CALL(cuMemAlloc_v2)(&at, MIB));
  DO(CALL(cuMemFree_v2)(at));
}

/* A library that opens its neighbour. */
static void opener(char **arguments)
{
  void *library = dlopen(arguments[0], RTLD_NOW);
  void *(*beside)(void) = (void *(*)(void))dlsym(library, "opener_open");
  void *(*next)(void) = (void *(*)(void))dlsym(library, "opener_next");
  DO(CALL(cuInit)(0));
  printf("beside %s, next %s\n", beside() ? "found" : "lost", next() ? "some" : "none");
}

/* The environment is removed before the driver is used, and the library is closed between two uses. */
static void surroundings(char **arguments)
{
  cuda_address at;
  clearenv();
  begin();
  DO(CALL(cuMemAlloc_v2)(&at, MIB));
  void *again = dlopen("libcuda.so.1", RTLD_NOW);
  for (int i = 0; i < 3; i++)
    dlclose(again);
  DO(CALL(cuMemAlloc_v2)(&at, MIB));
  bool is_found = dlopen("libm.so.6", RTLD_NOW) != NULL, is_invented = dlopen("/no/such/libcuda.so.1", RTLD_NOW);
  printf("own library %s\n", is_found && !is_invented ? "found" : "lost");
}

int main(int argc, char **argv)
{
  static const struct {
    const char *name;
    void (*run)(char **arguments);
  } scenarios[] = {{"fill", fill},         {"threads", threads}, {"kinds", kinds},       {"owners", owners},
                   {"ancient", ancient},   {"novelty", novelty}, {"padding", padding},   {"wait", wait_for_ever},
                   {"graphs", graphs},     {"future", future},   {"far_graph", far_graph}, {"imports", imports},
                   {"detach", detach},     {"absurd", absurd},
                   {"children", children}, {"start", start_only}, {"leave", leave},
                   {"once", once},         {"opener", opener},
                   {"surroundings", surroundings}};
  if (argc < 3 || route_choose(argv[1]))
    return 10;
  for (size_t i = 0; i < LADE_COUNT(scenarios); i++) {
    if (strcmp(scenarios[i].name, argv[2]) == 0) {
      scenarios[i].run(argv + 3);
      return 0;
    }
  }
  return 11;
}
