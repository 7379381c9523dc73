/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Machines by name: data-sheet figures times the share that well-written programs reach.
 *
 * The factors below turn a data sheet's figure into a sustained rate. They are averages of commonly published results
 * for large dense products, streaming kernels and pinned copies, and stand in this one place:
 *   matrix products 0.75 of the dense peak (without sparsity), device memory 0.88, host memory 0.75,
 *   PCI Express 0.80 of the raw rate of the lanes per direction, NVLink-C2C 0.85, drives 0.90.
 * FP32 means IEEE FP32 on the vector units, never TF32: FP32 end to end is a mode that keeps its bits.
 *
 * Capacities are the marketed ones, in powers of ten or two as the vendor counts them. The memory of the context and
 * the libraries is not subtracted: it is measured on the device and counted by the ledger. Hosts and drives are one
 * device's share of a common server; a file with "preset" overrides its differences.
 *
 * Sources: NVIDIA data sheets of the A100, H100, H200 Tensor Core GPUs, GH200 Grace Hopper, GB200 NVL72 (half of a
 * superchip), DGX B200 (an eighth of the system) and the Ada GPU architecture paper (RTX 4090, BF16 with FP32
 * accumulation); PCI-SIG for lanes (16 GT/s and 32 GT/s, 16 lanes); Samsung PM9A3 3.84 TB for the drive of servers (6.8
 * GB/s read, 4.0 GB/s write); AMD and Intel specifications for hosts (memory channels x rate; cores x all-core clock x
 * FP32 flops per cycle).
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/base.h"
#include "machine/machine.h"

#define GB 1e9
#define GIB(n) ((uint64_t)(n) << 30)
/* Shares of a data sheet's figure that programs sustain: see above. */
#define PRODUCT 0.75
#define DEVICE_MEMORY 0.88
#define HOST_MEMORY 0.75
#define PCIE 0.80
#define C2C 0.85
#define DRIVE 0.90
#define PCIE_LATENCY_NS 8000 /* from submitting to the first byte of a pinned copy */
#define C2C_LATENCY_NS 4000

#define RATES(f32, half) {[LADE_F32] = PRODUCT * (f32), [LADE_BF16] = PRODUCT * (half), [LADE_F16] = PRODUCT * (half)}
#define LINK(factor, rate, latency) {.bytes_per_s = (uint64_t)((factor) * (rate)), .latency_ns = (latency)}
#define PCIE_4 LINK(PCIE, 31.5 * GB, PCIE_LATENCY_NS)
#define PCIE_5 LINK(PCIE, 63.0 * GB, PCIE_LATENCY_NS)
#define SERVER_DRIVE \
  {.bytes = 3840000000000, .read_bytes_per_s = DRIVE * 6.8 * GB, .write_bytes_per_s = DRIVE * 4.0 * GB, \
   .total_bytes_per_s = DRIVE * 6.8 * GB, .latency_ns = 90000}
#define LAPTOP_DRIVE \
  {.bytes = 1000000000000, .read_bytes_per_s = DRIVE * 3.5 * GB, .write_bytes_per_s = DRIVE * 2.0 * GB, \
   .total_bytes_per_s = DRIVE * 3.5 * GB, .latency_ns = 90000}

#define LAUNCH_NS 4000       /* of a kernel in a stream that is never empty */
#define HOST_LAUNCH_NS 3000  /* waking a queue's thread and the pool */

/* On a host, device and host memory are the same and a copy is one core's memcpy. */
#define HOST_PRESET(cores, bytes, f32, half, memory, core_copy) \
  .n_cores = (cores), .is_unified = true, .device_bytes = (bytes), .host_bytes = (bytes), \
  .matmul_flops_per_s = RATES(f32, half), .device_bytes_per_s = HOST_MEMORY * (memory), .launch_ns = HOST_LAUNCH_NS, \
  .to_host = LINK(1, core_copy, 1000), .to_device = LINK(1, core_copy, 1000), .is_duplex = true, \
  .host_bytes_per_s = HOST_MEMORY * (memory)

static const struct lade_machine presets[] = {
    {.name = "a100-40g", .n_cores = 16, .device_bytes = GIB(40), .host_bytes = GIB(128),
     .matmul_flops_per_s = RATES(19.5e12, 312e12), .device_bytes_per_s = DEVICE_MEMORY * 1555 * GB,
     .launch_ns = LAUNCH_NS, .to_host = PCIE_4, .to_device = PCIE_4, .is_duplex = true,
     .host_bytes_per_s = HOST_MEMORY * 51.2 * GB, .store = SERVER_DRIVE},
    {.name = "a100-80g", .n_cores = 16, .device_bytes = GIB(80), .host_bytes = GIB(256),
     .matmul_flops_per_s = RATES(19.5e12, 312e12), .device_bytes_per_s = DEVICE_MEMORY * 2039 * GB,
     .launch_ns = LAUNCH_NS, .to_host = PCIE_4, .to_device = PCIE_4, .is_duplex = true,
     .host_bytes_per_s = HOST_MEMORY * 51.2 * GB, .store = SERVER_DRIVE},
    {.name = "h100-80g", .n_cores = 14, .device_bytes = GIB(80), .host_bytes = GIB(256),
     .matmul_flops_per_s = RATES(67e12, 989e12), .device_bytes_per_s = DEVICE_MEMORY * 3350 * GB,
     .launch_ns = LAUNCH_NS, .to_host = PCIE_5, .to_device = PCIE_5, .is_duplex = true,
     .host_bytes_per_s = HOST_MEMORY * 76.8 * GB, .store = SERVER_DRIVE},
    {.name = "h200-141g", .n_cores = 14, .device_bytes = 141000000000, .host_bytes = GIB(256),
     .matmul_flops_per_s = RATES(67e12, 989e12), .device_bytes_per_s = DEVICE_MEMORY * 4800 * GB,
     .launch_ns = LAUNCH_NS, .to_host = PCIE_5, .to_device = PCIE_5, .is_duplex = true,
     .host_bytes_per_s = HOST_MEMORY * 76.8 * GB, .store = SERVER_DRIVE},
    {.name = "gh200-96g", .n_cores = 72, .device_bytes = 96000000000, .host_bytes = 480000000000,
     .matmul_flops_per_s = RATES(67e12, 989e12), .device_bytes_per_s = DEVICE_MEMORY * 4000 * GB,
     .launch_ns = LAUNCH_NS, .to_host = LINK(C2C, 450 * GB, C2C_LATENCY_NS),
     .to_device = LINK(C2C, 450 * GB, C2C_LATENCY_NS), .is_duplex = true,
     .host_bytes_per_s = HOST_MEMORY * 384 * GB, .store = SERVER_DRIVE},
    {.name = "b200-180g", .n_cores = 14, .device_bytes = 180000000000, .host_bytes = GIB(256),
     .matmul_flops_per_s = RATES(75e12, 2250e12), .device_bytes_per_s = DEVICE_MEMORY * 8000 * GB,
     .launch_ns = LAUNCH_NS, .to_host = PCIE_5, .to_device = PCIE_5, .is_duplex = true,
     .host_bytes_per_s = HOST_MEMORY * 89.6 * GB, .store = SERVER_DRIVE},
    /* Half of a GB200 superchip: one of the two GPUs that share a Grace, its memory and its NVLink-C2C. */
    {.name = "gb200-186g", .n_cores = 36, .device_bytes = 186000000000, .host_bytes = 240000000000,
     .matmul_flops_per_s = RATES(80e12, 2500e12), .device_bytes_per_s = DEVICE_MEMORY * 8000 * GB,
     .launch_ns = LAUNCH_NS, .to_host = LINK(C2C, 225 * GB, C2C_LATENCY_NS),
     .to_device = LINK(C2C, 225 * GB, C2C_LATENCY_NS), .is_duplex = true,
     .host_bytes_per_s = HOST_MEMORY * 256 * GB, .store = SERVER_DRIVE},
    {.name = "rtx4090-24g", .n_cores = 16, .device_bytes = GIB(24), .host_bytes = GIB(64),
     .matmul_flops_per_s = RATES(82.6e12, 165.2e12), .device_bytes_per_s = DEVICE_MEMORY * 1008 * GB,
     .launch_ns = LAUNCH_NS, .to_host = PCIE_4, .to_device = PCIE_4, .is_duplex = true,
     .host_bytes_per_s = HOST_MEMORY * 83.2 * GB, .store = LAPTOP_DRIVE},
    /* AMD EPYC 9654: 96 cores, 12 channels of DDR5-4800; 64 FP32 and 128 BF16 flops a cycle at 3.0 GHz. */
    {.name = "epyc9654-96c", HOST_PRESET(96, GIB(768), 18.4e12, 36.9e12, 460.8 * GB, 10 * GB), .store = SERVER_DRIVE},
    /* Intel Xeon 8480+: 56 cores, 8 channels of DDR5-4800; 64 FP32 and (AMX) 2048 BF16 flops a cycle at 2.0 GHz. */
    {.name = "xeon8480-56c", HOST_PRESET(56, GIB(512), 7.2e12, 229e12, 307.2 * GB, 9 * GB), .store = SERVER_DRIVE},
    /* A laptop with 8 cores, AVX2 (32 FP32 flops a cycle at 3.0 GHz, BF16 through FP32), 2 channels of DDR5-5600. */
    {.name = "laptop-8c", HOST_PRESET(8, GIB(16), 0.77e12, 0.62e12, 89.6 * GB, 10 * GB), .store = LAPTOP_DRIVE},
};

const char *lade_machine_preset_name(int i)
{
  return i >= 0 && i < (int)LADE_COUNT(presets) ? presets[i].name : NULL;
}

int lade_machine_preset(const char *name, struct lade_error *error, struct lade_machine *ret_machine)
{
  for (size_t i = 0; i < LADE_COUNT(presets); i++) {
    if (!strcmp(presets[i].name, name)) {
      *ret_machine = presets[i];
      return 0;
    }
  }
  char names[256] = "";
  for (size_t i = 0, at = 0; i < LADE_COUNT(presets); i++)
    at += (size_t)snprintf(names + at, sizeof(names) - at, "%s%s", i ? ", " : "", presets[i].name);
  return lade_error_set(error, -ENOENT, "no machine named '%.64s': expected one of %s", name, names);
}
