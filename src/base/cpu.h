/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What this CPU can do and how much of it is ours: instruction sets, and the number of threads
 * that CPU affinity and the cgroup's quota leave us. Probed, never assumed; nothing is cached
 * between calls, so that a test can change the affinity and ask again.
 */
#ifndef LADE_CPU_H
#define LADE_CPU_H

#include <stdbool.h>

struct lade_cpu {
  bool has_avx2;        /* AVX2, FMA and F16C together */
  bool has_avx512;      /* F, BW, DQ and VL together, with the OS saving the registers */
  bool has_avx512_bf16; /* and VDPBF16PS, VCVTNEPS2BF16 */
  /*
   * VDPBF16PS is there and slower than widening to FP32 and FMA. So on Intel's cores: one in two cycles against two
   * FMAs in one, 32 flops against 64 (uops.info; measured on Emerald Rapids: 110 and 195 GFLOP/s). AMD's Zen 4 and 5
   * start one dot product for each FMA. By maker and not by timing, since it decides about bits.
   */
  bool is_bf16_dot_slow;
  bool has_amx_bf16;    /* tiles of BF16, with AVX512_BF16 and the OS saving them; lade_cpu_permit_amx comes first */
};

/*
 * Environment LADE_CPU=plain|avx2|avx512 lowers the answer, for tests and bug reports; avx512_bf16 takes dot products
 * even where they are slow, and no tiles, so that a run gives the bits that it would give elsewhere. Any thread.
 */
struct lade_cpu lade_cpu_get(void);

/*
 * Ask the kernel that this process may use tiles, which it grants for good: from then on its signal frames have room
 * for them, 8 KiB more. False where it refuses: a thread's alternate signal stack is too small for that, or seccomp
 * forbids the question. Any thread.
 */
bool lade_cpu_permit_amx(void);

/*
 * Do all cores count the ticks of base/ticks.h at one rate and from one moment? On x86 only the kernel knows, which has
 * compared them: it is so where it keeps its own time by them. Any thread; reads a small file.
 */
bool lade_cpu_has_steady_ticks(void);

/* Threads to use: min(affinity, cgroup v1/v2 quota rounded up), at least 1. Any thread. */
int lade_cpu_count(void);

/* "AMD EPYC 9xx5" or "unknown"; into @name. */
void lade_cpu_name(char *name, int name_bytes);

/* Bytes of memory this process may use: the smaller of MemAvailable and what the cgroup leaves. */
long long lade_cpu_memory_bytes(void);

#endif
