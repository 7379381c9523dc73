/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A stand-in for the CUDA driver: a libcuda.so.1 over host memory and threads, for machines without a GPU.
 *
 * It is strict where the real driver is forgiving or undefined: fresh memory is poison, an access to a place that is
 * not mapped and open is an illegal address, a call that wants a context and has none fails, copies from memory that
 * is not pinned make the caller wait, a host function may not call the driver, and loading a kernel, which its first
 * launch does, waits for the whole context and keeps all other calls out. What it says of itself (versions, devices,
 * memory) and which calls fail is told by the environment or by standin_set.
 *
 * This header is the control calls, which tests look up with dlsym.
 */
#ifndef LADE_TEST_STANDIN_H
#define LADE_TEST_STANDIN_H

#include <stdint.h>

#define EXPORT __attribute__((visibility("default")))

/* The name, of sixteen bytes, of the one table of private functions. */
#define STANDIN_TABLE "stand-in's table"

/*
 * Settings as "key=value,key=value", from LADE_STANDIN when the library is loaded or from this call; keys not named
 * keep their values. Numbers, but for fail.
 *   version=13000  devices=1  sm=90  memory=256 (MiB per device)  words=1 (stream words supported)
 *   host_chunks=1 (memory of the host's node 0 by cuMemCreate)
 *   slices=1       into how many (MIG) each device is cut; of slices a process sees one alone
 *   channels=0             1: all streams share a hardware channel, and their work runs in the order of submission
 *   modules=0  functions=0 KiB of the device that a module takes when it is loaded, and a function when it is
 *   handles=1              0: memory that could be exported is not made, whatever the device says of itself
 *   fail=cuMemCreate  nth=1  code=2  forever=0     that call number of that function answers code; "any": of all
 *   lose=N  lose_code=719                          the Nth piece of asynchronous work breaks its context
 * Starts counting calls anew. Returns 0, or -1 for a key that it does not know.
 */
typedef int standin_set_fn(const char *settings);
/* Calls of one function since counting began, or of all with "any"; and calls that were made to fail. */
typedef uint64_t standin_calls_fn(const char *function);
typedef uint64_t standin_failed_fn(void);
/* Things of the driver's that exist: contexts, streams, events, ranges, memory, mappings, pinned memory. */
typedef int64_t standin_live_fn(void);

EXPORT standin_set_fn standin_set;
EXPORT standin_calls_fn standin_calls;
EXPORT standin_failed_fn standin_failed;
EXPORT standin_live_fn standin_live;

#endif
