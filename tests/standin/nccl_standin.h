/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A stand-in for NCCL: a libnccl.so.2 of exactly the calls that Lade makes, for machines without GPUs. It goes with the
 * stand-in for the driver: work runs as host functions of its streams, on its memory, and processes meet in a shared
 * file.
 *
 * It is strict where NCCL hangs, corrupts or is undefined: a call on a handle that is still in progress, an empty
 * collective, a group that mixes collectives, buffers that are no device memory, members that run different
 * collectives, sends and receives that do not fit, members of which some pass registered buffers and some do not,
 * registered memory that is given back too early, or never. Where NCCL may do as it likes, it does what is least
 * convenient: every call is in progress for a while, the first of a pair until the peer's has come, and its work is
 * not on the stream before that is over, sums start at another rank for each part and round BF16 at each addition,
 * small sends end before their receive, and nobody notices that a process has ended.
 *
 * This header is the control calls, which tests look up with dlsym.
 */
#ifndef LADE_TEST_NCCL_STANDIN_H
#define LADE_TEST_NCCL_STANDIN_H

#include <stdint.h>

/*
 * Settings as in standin.h, from LADE_STANDIN_NCCL or this call:
 *   version=22809  polls=2 (how often a call is found in progress)
 *   fail=ncclAllReduce  nth=1  code=3  forever=0   that call number of that function answers code
 *   async=N  async_code=6     the Nth piece of work hangs, and that is its communicator's asynchronous error
 *   rank=R                    fail and async are for the process of this rank of mpirun's alone
 *   memory=0                  KiB of the device that a communicator takes
 *   register=1                what ncclCommRegister makes of memory; 0: nothing, which is no error
 * Starts counting anew. Returns 0, or -1 for a key that it does not know.
 */
typedef int standin_nccl_set_fn(const char *settings);
/* Calls of one function since counting began; calls that were made to fail, and asynchronous errors. */
typedef uint64_t standin_nccl_calls_fn(const char *function);
typedef uint64_t standin_nccl_failed_fn(void);
/* Collectives, sends and receives whose buffers were registered. */
typedef uint64_t standin_nccl_direct_fn(void);
/* Communicators that are neither destroyed nor aborted. */
typedef int64_t standin_nccl_live_fn(void);

#endif
