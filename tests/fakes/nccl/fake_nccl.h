/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A fake for NCCL: a libnccl.so.2 of exactly the calls that Lade makes, for machines without GPUs. It needs the fake
 * driver: work runs as host functions of its streams, on its memory, and processes meet in a shared file.
 *
 * It is strict where NCCL hangs, corrupts or is undefined. It ends the process at a call on a handle in progress, an
 * empty collective, a group that mixes collectives, or buffers outside device memory. The same holds for members that
 * run different collectives, sends and receives that do not match, and registered buffers at only some members. A
 * receive alone, whose send may come late, needs a communicator with a limit of blocks. Registered memory must not be
 * released too early, and must be released. A handle must not be aborted while a thread is in a call on it.
 *
 * Where NCCL is free to choose, it does the least convenient thing. Calls on a handle that does not block are in
 * progress for a while. Each group of such a handle has a thread, as in NCCL since 2.23. The first call of a pair waits
 * for the peer's, and its work is not on the stream before that: a handle that blocks waits in the call, until its
 * family is aborted. Sums start at another rank for each part and round BF16 at each addition. Small sends end before
 * their receive. The end of a process goes unnoticed. As in NCCL since 2.22, a communicator takes memory for
 * connections at its first use of each algorithm. It takes memory for a peer at the first send or receive. Kind, size
 * and registration decide the algorithm.
 *
 * This header declares the control calls, which tests look up with dlsym.
 */
#ifndef LADE_TEST_FAKE_NCCL_H
#define LADE_TEST_FAKE_NCCL_H

#include <stdint.h>

/*
 * Apply settings as in fake_driver.h, from LADE_FAKE_NCCL or this call:
 *   version=22809  polls=2 (how often a call is found in progress)
 *   fail=ncclAllReduce  nth=1  code=3  forever=0   that call number of that function returns code
 *   async=N  async_code=6     the Nth piece of work hangs, and that is its communicator's asynchronous error
 *   rank=R                    fail and async apply only to the process of this rank of mpirun
 *   memory=0                  KiB of the device that a family of communicators takes
 *   connect=0                 KiB that the first use of an algorithm, or of a peer, takes
 *   register=1                0: ncclCommRegister registers nothing and returns success
 * Resets the counts. Return 0, or -1 for an unknown key.
 */
typedef int fake_nccl_set_fn(const char *settings);
/* Return the calls of one function since the counts were reset; failed calls, and asynchronous errors. */
typedef uint64_t fake_nccl_calls_fn(const char *function);
typedef uint64_t fake_nccl_failed_fn(void);
/* Return the collectives, sends and receives whose buffers were registered. */
typedef uint64_t fake_nccl_direct_fn(void);
/* Return the communicators that are neither destroyed nor aborted. */
typedef int64_t fake_nccl_live_fn(void);
#endif
