/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Instruction sets of this CPU, and the number of threads that CPU affinity and the cgroup's quota leave this process.
 * Each call probes anew and caches nothing, so that a test can change the affinity.
 */
#ifndef LADE_CPU_H
#define LADE_CPU_H

#include <stdbool.h>

struct lade_cpu {
  bool has_avx2;        /* AVX2, FMA and F16C together */
  bool has_avx512;      /* F, BW, DQ and VL together, with the OS saving the registers */
  bool has_avx512_bf16; /* and VDPBF16PS, VCVTNEPS2BF16 */
  /*
   * VDPBF16PS exists but is slower than widening to FP32 and FMA. This holds on Intel's cores: one VDPBF16PS in two
   * cycles against two FMAs in one cycle, so 32 flops against 64 (uops.info; measured on Emerald Rapids: 110 and 195
   * GFLOP/s). AMD's Zen 4 and 5 start one dot product for each FMA. The CPU vendor decides, not a timing, because the
   * choice changes the bits of results.
   */
  bool is_bf16_dot_slow;
  bool has_amx_bf16;    /* BF16 tiles, with AVX512_BF16 and an OS that saves tiles. Call lade_cpu_permit_amx before
                           use. */
};

/*
 * Return the instruction sets of this CPU. Environment LADE_CPU=plain|avx2|avx512 removes the higher ones, for tests
 * and bug reports. LADE_CPU=avx512_bf16 uses dot products even where they are slow, and no tiles, so that a run
 * reproduces the bits of another machine. Any thread.
 */
struct lade_cpu lade_cpu_get(void);

/*
 * Ask the kernel to let this process use tiles. The permission lasts for the process's life, and its signal frames grow
 * by 8 KiB for the tiles. False if the kernel refuses: a thread's alternate signal stack is too small for that, or
 * seccomp forbids the call. Any thread.
 */
bool lade_cpu_permit_amx(void);

/*
 * True if all cores count the ticks of base/ticks.h at one rate and from one moment. On x86 only the kernel knows this,
 * because it has compared the cores: true if the kernel's own clock source is the TSC. Any thread; reads a small file.
 */
bool lade_cpu_has_steady_ticks(void);

/* Return the number of threads to use: min(affinity, cgroup v1/v2 quota rounded up), at least 1. Any thread. */
int lade_cpu_count(void);

/* Write the CPU's name, "AMD EPYC 9xx5", or "unknown", into @name. */
void lade_cpu_name(char *name, int name_bytes);

#endif
