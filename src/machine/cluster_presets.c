/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Clusters by name. Each number is a data sheet's, a data sheet's times a share stated here, published, measured,
 * fitted, or assumed. The fitted ones of the A100, ten, are those marked so; bench/cluster.py prints the fit's errors,
 * with each row left out in turn. Assumed ones are marked so, with the reason, and --explain names those of the
 * cluster. Repositories named with a number are issues there.
 *
 *   devices   NVIDIA data sheets: A100 (312 TFLOP/s dense BF16, 108 multiprocessors, 2039 or 1555 GB/s), H100 SXM (989
 *             TFLOP/s, 132, 3350 GB/s), H200 (989, 132, 4800 GB/s), GB200 NVL72 (a 72nd of 180 PFLOP/s and of 576 TB/s;
 *             186 GB); B200 (148 multiprocessors), RTX 4090 (165.2 TFLOP/s with FP32 sums, 128, 1008 GB/s)
 *   products  A100: 255 TFLOP/s and a depth of 165, fitted; cuBLAS prints 250 to 275 on large BF16 products. H100 and
 *             H200: a depth of 100 fits the products that an H200 was timed with here (80 to 100). Its best ones reach
 *             788 TFLOP/s alone and 699 on average within a step, at 1,644 MHz under its 700 W
 *             (bench/results/nvidia-h200-power.md). Jobs of many devices sustain less, because the slowest device sets
 *             their pace: 640 TFLOP/s, fitted (bench/cluster.py). GB200: 1,215 TFLOP/s, fitted to five runs of NVIDIA's
 *             recipes; cuBLAS reaches 1,610 alone on a B200 (NVIDIA, Tilus documentation: products of 8,192 in 16
 *             bits); its depth is the H100's times the rate of a multiprocessor. RTX 4090: PyTorch's products of 10,240
 *             in BF16 reach 158.5 TFLOP/s (zzc0721/torch-performance-test-data 78); its depth is the A100's times the
 *             rate of a multiprocessor
 *   attention Causal attention over T tokens reaches T / (T + 490) of its rate. FlashAttention-2's figures (Dao 2023,
 *             heads of 128, 512 to 16,384 tokens, both halves) are 193 T / (T + 490) TFLOP/s on A100 and 331 T /
 *             (T + 490) on H100, within 4 %. A step slows it as it slows products, to 0.94 on A100 (255 of 270): 0.81
 *             and 0.68 of the products' rate. The H100 computes PyTorch's own ops with it: the same, 0.51 and 0.48.
 *             Else 412 and 332 TFLOP/s of 4,096 tokens, 0.86 and 0.84 of the 480 and 394 that heads of 128 reach alone
 *             on the H200, because a step slows attention by as much: 0.72 and 0.58.
 *             GB200: cuDNN 9.13 reaches 1,235 TFLOP/s forward on a B200, FlashAttention-4's 1,605 over 1.3 (its
 *             authors, 2026); assumed as Hopper's are: 0.85 of it in a
 *             step, and the H100's ratio backward. RTX 4090, assumed: the A100's, whose kernels it
 *             runs. Scores of attention that is not fused, 8 and 18 bytes: fitted; the passes of mask, softmax and
 *             dropout and of the products, at two bytes each, count 8 to 12 and 15 to 20
 *   power     the data sheets' limits: A100 400 W, H100 and H200 700 W, GB200 1200 W, RTX 4090 450 W. At a lower one,
 *             kernels.power_watts, the clock is lower (cost.c)
 *   launches  PyTorch launches a kernel of a training step in 11 us. A step of Qwen3 on a B200 launches 8,080 in 90 ms,
 *             and they run for 37 ms (modelscope/FunASR 3705: 0.244 s, less 1 s in 59 of 382 steps for plans). Other
 *             hosts take 10 us (a laptop) to 31 us (a cloud's L4; roboflow/rf-detr 1410) and 24 us (a B200 with
 *             replicas; huggingface/lerobot 4607)
 *   memory    0.785 of the data sheet's rate, fitted on A100 and used for all; launch 5.75 us, fitted on A100
 *   NVLink    600 GB/s on an A100 in both directions, 900 on Hopper, 1800 on Blackwell. Collectives sustain 0.50 of one
 *             direction beside other work, and a hop takes 2.9 us: fitted on A100 (nccl-tests alone print 0.77).
 *             Hopper: 0.65, fitted to runs whose collectives have no product beside them (Llama 3 405B; torchtitan's
 *             70B and 405B: within 1 %, and 5 to 10 % slow at 0.45); nccl-tests alone print 0.78 to 0.80 (NVIDIA/nccl
 *             1281). GB200, assumed: the same share. With sums in the switch (NVLS) an all-reduce is 480/360 as fast:
 *             nccl-tests, which print 811 GB/s alone on GB200 over two nodes
 *   rails     one HDR port (25 GB/s) per device of a DGX A100, of which gradient sums sustain 0.48, and a hop 24 us:
 *             fitted; Narayanan et al. 2021 report 12.9 TB/s over the bisection for 3072 devices. One NDR port (50
 *             GB/s) per device of a DGX H100 and of a GB200 NVL72 (ConnectX-7), of which reduce-scatters of nccl-tests
 *             sustain 0.80 over 16 nodes, 0.90 over 4 and 0.65 over 128 (NVIDIA/nccl 1229). A hop is assumed to take
 *             the A100's 24 us: gradient sums of published runs hide behind kernels. p4d: four 100 Gb/s EFA interfaces
 *             per eight devices, of which all-reduces of nccl-tests sustain 0.60 over 3 and 4 nodes (NVIDIA/nccl 527);
 *             p5: thirty-two, of which all-gathers of 128 MB to 2 GB over 2 to 32 nodes sustain 0.78, with 66 us for a
 *             hop (least squares over the 25 of crazyguitar/aws-gpu-communication-benchmark, within 10 %); p4d's hop
 *             is assumed to take as long
 *   PCIe      RTX 4090 has no peer copies, so each byte crosses PCI Express 4.0 twice, through the host: half of its
 *             rate, and 10 us for a hop, both assumed
 *   usable    80 GB cards have 80 GiB less about 0.7 GiB that the driver reports as reserved (nvidia-smi: 81,920 MiB,
 *             81,251 usable); the context takes about 0.5 GiB, cuBLAS workspaces 0.1, NCCL buffers about 0.7 with three
 *             communicators. 2 GiB are left out on servers, more on larger cards, 1.5 GiB on the RTX 4090
 *   NCCL      2.12 on A100, whose published runs are of 2020 to 2022; else LADE_CLUSTER_NCCL
 *   host      2 TB per DGX A100, DGX H100 and p5; 1.1 TB per p4d; 480 GB per Grace, one for two GPUs
 *   drives    eight of 3.84 TB for data in a DGX A100 of 80 GB cards, a DGX H100 and a DGX H200 (NVIDIA's user guides
 *             and DGX BasePOD reference architecture) and in a p5, eight of 1 TB in a p4d (AWS, instance types). Rates
 *             are data sheets', times the 0.90 that programs sustain (presets.c), times eight, not measured: those of
 *             the Samsung PM9A3 of 3.84 TB, 6.8 GB/s read and 4.0 GB/s written, and together as reads alone. AWS states
 *             16 GB/s read of a p4d's eight; their writes are assumed to have the PM9A3's ratio to reads. A GB200 NVL72
 *             is sold with drives of its integrator's choice, and of rtx4090x4 no data sheet exists: none
 *   ports     NICs are behind the PCIe switch of their GPUs in a DGX A100, H100 and H200 (NVIDIA's user guides), a p4d
 *             and a p5 (AWS: GPUDirect RDMA), and behind the CPU, by NVLink-C2C, in a GB200 NVL72; peers of an RTX 4090
 *             copy through the host. So their bytes take the device's link to the host too
 *
 * error_share covers most runs (docs/cluster.md): on A100 all of Megatron-LM, and the means of other projects but
 * Megatron-Turing NLG; on H100 the means of all projects. GB200: five runs of NVIDIA's recipes are too few to say less
 * than 0.30. Elsewhere it is assumed.
 *
 * A preset has as many nodes as a job may use: it describes a kind of cluster, not one. Files state their own number.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/base.h"
#include "machine/cluster.h"

#define GIB(n) ((uint64_t)(n) << 30)
#define MAX_DEVICES (INT64_C(1) << 24) /* more than any job uses */

struct cluster_preset {
  const char *name, *device; /* a machine preset */
  int64_t n_node_devices, n_switch_devices;
  double usable_gib, node_host_bytes, peak_flops_per_s, error_share;
  double memory_bytes_per_s; /* sustained by kernels */
  struct lade_kernel_model kernels;
  const char *inner, *outer; /* names of the levels; no outer level: one node, whose level is PCI Express */
  double inner_bytes_per_s, inner_latency_ns, inner_gain, outer_bytes_per_s, outer_latency_ns;
  const char *assumed; /* numbers without a source, as --explain names them; NULL: none */
  double drive_bytes, drive_read_bytes_per_s; /* of each of DRIVES, by data sheets; 0: no drives */
  int64_t nccl_version; /* 0: LADE_CLUSTER_NCCL */
};

#define ATTENTION_DEPTH 490 /* tokens */

#define A100_KERNELS \
  {.n_sms = 108, .product_flops_per_s = 255e12, .product_depth = 165, .attention_forward = 0.81, \
   .attention_backward = 0.68, .attention_depth = ATTENTION_DEPTH, .score_forward_bytes = 8, \
   .score_backward_bytes = 18, .rated_watts = 400}
#define H100_KERNELS \
  {.n_sms = 132, .product_flops_per_s = 640e12, .product_depth = 100, .attention_forward = 0.72, \
   .attention_backward = 0.58, .attention_depth = ATTENTION_DEPTH, .eager_attention_forward = 0.51, \
   .eager_attention_backward = 0.48, .rated_watts = 700}

#define HOP_ASSUMED "the latency of a hop between nodes"

#define DRIVES 8                /* of a node: "drives" above */
#define DRIVE_SHARE 0.90        /* of the data sheet's rate */
#define DRIVE_WRITE (4.0 / 6.8) /* rate of writes over that of reads */
#define DRIVE_LATENCY_NS 90000  /* as machine presets have it */
#define SERVER_DRIVES 3.84e12, 6.8e9
#define P4D_DRIVES 1e12, 16e9 / DRIVES

#define A100_NCCL 21200 /* "NCCL" above */

#define MEMORY_SHARE 0.785 /* of the data sheet's rate: "memory" above */
#define LAUNCH_NS 5750     /* of a kernel in a stream: "memory" above */
#define HOST_OP_NS 11000   /* of the host, for a kernel of PyTorch's: "launches" above */

static const struct cluster_preset presets[] = {
    {"dgx-a100-80g", "a100-80g", 8, 8, 78, 2e12, 312e12, 0.15, MEMORY_SHARE * 2039e9, A100_KERNELS, "nvlink", "rails",
     0.50 * 300e9, 2900, 1, 0.48 * 25e9, 24000, NULL, SERVER_DRIVES, A100_NCCL},
    {"dgx-h100", "h100-80g", 8, 8, 78, 2e12, 989e12, 0.20, MEMORY_SHARE * 3350e9, H100_KERNELS, "nvlink", "rails",
     0.65 * 450e9, 2900, 1.33, 0.80 * 50e9, 24000, HOP_ASSUMED, SERVER_DRIVES},
    {"dgx-h200", "h200-141g", 8, 8, 129, 2e12, 989e12, 0.20, MEMORY_SHARE * 4800e9, H100_KERNELS, "nvlink", "rails",
     0.65 * 450e9, 2900, 1.33, 0.80 * 50e9, 24000, HOP_ASSUMED, SERVER_DRIVES},
    {"gb200-nvl72", "gb200-186g", 4, 72, 169, 960e9, 2500e12, 0.30, MEMORY_SHARE * 8000e9,
     {.n_sms = 148, .product_flops_per_s = 1215e12, .product_depth = 169, .attention_forward = 0.86,
      .attention_backward = 0.70, .attention_depth = ATTENTION_DEPTH, .rated_watts = 1200}, "nvlink", "rails",
     0.65 * 900e9, 2900, 1.33, 0.80 * 50e9, 24000,
     "the share of attention's published rate within a step, NVLink's share, " HOP_ASSUMED},
    {"p4d", "a100-40g", 8, 8, 38, 1.152e12, 312e12, 0.20, MEMORY_SHARE * 1555e9, A100_KERNELS, "nvlink", "efa",
     0.50 * 300e9, 2900, 1, 0.60 * 6.25e9, 66000, HOP_ASSUMED ", the error to expect", P4D_DRIVES, A100_NCCL},
    {"p5", "h100-80g", 8, 8, 78, 2e12, 989e12, 0.20, MEMORY_SHARE * 3350e9, H100_KERNELS, "nvlink", "efa",
     0.65 * 450e9, 2900, 1.33, 0.78 * 50e9, 66000, "the error to expect", SERVER_DRIVES},
    {"rtx4090x4", "rtx4090-24g", 4, 4, 22.5, 256e9, 165.2e12, 0.30, MEMORY_SHARE * 1008e9,
     {.n_sms = 128, .product_flops_per_s = 158.5e12, .product_depth = 87, .attention_forward = 0.81,
      .attention_backward = 0.68, .attention_depth = ATTENTION_DEPTH, .rated_watts = 450}, "pcie", NULL, 0.5 * 31.5e9,
     10000, 1, 0, 0,
     "attention's rates, PCI Express's rate and latency, the error to expect"},
};

const char *lade_cluster_preset_name(int i)
{
  return i >= 0 && i < (int)LADE_COUNT(presets) ? presets[i].name : NULL;
}

static void level_set(struct lade_cluster *cluster, const char *name, int64_t n_devices, double bytes_per_s,
                      double latency_ns, double sum_gain)
{
  struct lade_cluster_level *level = &cluster->levels[cluster->n_levels++];
  *level = (struct lade_cluster_level){.n_devices = n_devices, .bytes_per_s = bytes_per_s, .latency_ns = latency_ns,
                                       .oversubscription = 1, .sum_gain = sum_gain};
  snprintf(level->name, sizeof(level->name), "%s", name);
}

/* Return the drives of a node, all together. */
static struct lade_machine_store drives_make(const struct cluster_preset *preset)
{
  const double read = DRIVE_SHARE * DRIVES * preset->drive_read_bytes_per_s;
  if (preset->drive_bytes == 0)
    return (struct lade_machine_store){0};
  return (struct lade_machine_store){.bytes = (uint64_t)(DRIVES * preset->drive_bytes), .read_bytes_per_s = read,
                                     .write_bytes_per_s = DRIVE_WRITE * read, .total_bytes_per_s = read,
                                     .latency_ns = DRIVE_LATENCY_NS};
}

static int preset_make(const struct cluster_preset *preset, struct lade_error *error, struct lade_cluster *ret_cluster)
{
  struct lade_cluster cluster = {.n_node_devices = preset->n_node_devices,
                                 .n_nodes = preset->outer ? MAX_DEVICES / preset->n_switch_devices *
                                                                preset->n_switch_devices / preset->n_node_devices
                                                          : 1,
                                 .usable_device_bytes = (uint64_t)(preset->usable_gib * 0x1p30),
                                 .node_host_bytes = (uint64_t)preset->node_host_bytes,
                                 .peak_flops_per_s = preset->peak_flops_per_s, .error_share = preset->error_share,
                                 .nccl_version = preset->nccl_version ? preset->nccl_version : LADE_CLUSTER_NCCL};
  int status = lade_machine_preset(preset->device, error, &cluster.device);
  if (status)
    return status;
  snprintf(cluster.name, sizeof(cluster.name), "%s", preset->name);
  cluster.assumed = preset->assumed;
  cluster.device.kernels = preset->kernels;
  cluster.device.kernels.host_op_ns = HOST_OP_NS;
  cluster.device.launch_ns = LAUNCH_NS;
  cluster.device.device_bytes_per_s = preset->memory_bytes_per_s;
  cluster.device.host_bytes = cluster.node_host_bytes / (uint64_t)cluster.n_node_devices;
  cluster.node_store = drives_make(preset);
  cluster.device.store = lade_machine_store_share(&cluster.node_store, cluster.n_node_devices);
  level_set(&cluster, preset->inner, preset->n_switch_devices, preset->inner_bytes_per_s, preset->inner_latency_ns,
            preset->inner_gain);
  if (preset->outer)
    level_set(&cluster, preset->outer, cluster.n_nodes * cluster.n_node_devices, preset->outer_bytes_per_s,
              preset->outer_latency_ns, 1);
  cluster.levels[cluster.n_levels - 1].is_over_host_link = true; /* "ports" above */
  *ret_cluster = cluster;
  return 0;
}

int lade_cluster_preset(const char *name, struct lade_error *error, struct lade_cluster *ret_cluster)
{
  char names[256] = "";
  for (size_t i = 0, at = 0; i < LADE_COUNT(presets); i++) {
    if (strcmp(presets[i].name, name) == 0)
      return preset_make(&presets[i], error, ret_cluster);
    at += (size_t)snprintf(names + at, sizeof(names) - at, "%s%s", i ? ", " : "", presets[i].name);
  }
  return lade_error_set(error, -ENOENT, "no cluster named '%.64s': expected one of %s", name, names);
}
