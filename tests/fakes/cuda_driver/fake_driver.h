/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A fake for the CUDA driver: a libcuda.so.1 over host memory and threads, for machines without a GPU.
 *
 * It is strict where the real driver is forgiving or undefined. Fresh memory is poison. An access to a place that is
 * not mapped and open is an illegal address. A call that needs a context fails without one. Copies from memory that is
 * not pinned make the caller wait. A host function may not call the driver. Loading a kernel, at its first launch,
 * waits for the whole context and blocks all other calls. The environment or fake_set determine the versions, devices
 * and memory that it reports, and the calls that fail.
 *
 * This header declares the control calls, which tests look up with dlsym.
 */
#ifndef LADE_TEST_FAKE_DRIVER_H
#define LADE_TEST_FAKE_DRIVER_H

#include <stdint.h>

#define EXPORT __attribute__((visibility("default")))

/* The 16-byte name of the only table of private functions. */
#define FAKE_TABLE "fake's table"

/*
 * Apply settings "key=value,key=value", from LADE_FAKE when the library is loaded or from this call; other settings
 * keep their values. Values are numbers, except for fail.
 *   version=13000  devices=1  sm=90  memory=256 (MiB per device)  words=1 (stream words supported)
 *   host_chunks=1 (memory of the host's node 0 by cuMemCreate)
 *   slices=1       (MIG) slices of each device; a process sees only one of them
 *   channels=0             N: streams share N hardware channels, and the work of one runs in the order of submission;
 *                          CUDA_DEVICE_MAX_CONNECTIONS replaces N, as it does the driver's 8
 *   modules=0  functions=0 KiB of the device that a module takes when it is loaded, and a function when it is
 *   handles=1              0: exportable memory cannot be made, although the device reports that it can
 *   cold=0                 the next N kernels take 1,000 times as long, by the clock of events
 *   fail=cuMemCreate  nth=1  code=2  forever=0     that call number of that function returns code; "any": of all
 *   lose=N  lose_code=719                          the Nth piece of asynchronous work breaks its context
 * Resets the call counts. Return 0, or -1 for an unknown key.
 */
typedef int fake_set_fn(const char *settings);
/* Return the calls of one function since the counts were reset, or of all with "any"; and the failed calls. */
typedef uint64_t fake_calls_fn(const char *function);
typedef uint64_t fake_failed_fn(void);
/* Return the driver's objects that exist: contexts, streams, events, ranges, memory, mappings, pinned memory. */
typedef int64_t fake_live_fn(void);

/* Return the times that events with blocking synchronisation were recorded: on a GPU, each is an interrupt. */
typedef uint64_t fake_interrupts_fn(void);

EXPORT fake_set_fn fake_set;
EXPORT fake_calls_fn fake_calls;
EXPORT fake_failed_fn fake_failed;
EXPORT fake_live_fn fake_live;
EXPORT fake_interrupts_fn fake_interrupts;

#endif
