#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Predicted step times on clusters beside published ones.

Usage: bench/cluster.py [--lade build/lade] [--out FILE]

Rows that the constants of dgx-a100-80g were fitted to: table 1 of Narayanan et al. 2021 and table 5 of Korthikanti et
al. 2022. Beside each error stands that of a fit without the row: the fit is repeated on the logarithms of the constants,
linearised at the preset, with a penalty for leaving it. Then rows of other software, with the options that say how it
ran; the last lines are the same runs by their layouts alone, without such options. Two constants of the H100, the rates
of products and of NVLink, were chosen by those on H100; beside each project stands the mean error under the best rate of
products for all others. The GB200's rate of products was chosen by its runs; no constant was fitted to the rest. Trials
of BLOOM's layout are in no table; a paragraph states their errors. The exit status is 1 where a bound is missed.
"""
import argparse
import csv
import json
import math
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field

from report import machine_name, publish

PTD_BOUNDS, RECOMPUTE_BOUNDS = (0.05, 0.10), (0.03, 0.06)
STEP = 0.05          # of a constant's logarithm, for its derivative
PENALTY = 1e-4       # of a constant that leaves its preset by its own size, beside a squared relative error

# The fitted constants, and their places in a cluster file.
CONSTANTS = [("product rate", ("device", "kernels", "product_flops_per_s")),
             ("product depth", ("device", "kernels", "product_depth")),
             ("score bytes forward", ("device", "kernels", "score_forward_bytes")),
             ("score bytes backward", ("device", "kernels", "score_backward_bytes")),
             ("memory rate", ("device", "device_bytes_per_s")), ("launch", ("device", "launch_ns")),
             ("NVLink rate", ("levels", 0, "bytes_per_s")), ("NVLink latency", ("levels", 0, "latency_ns")),
             ("rail rate", ("levels", 1, "bytes_per_s")), ("rail latency", ("levels", 1, "latency_ns"))]

PRESETS = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "src/machine/cluster_presets.c")


def kernels_of(macro):
    """Return the constants of the kernels that @macro of the presets' source states."""
    with open(PRESETS, encoding="ascii") as file:
        text = re.search(r"#define " + macro + r" ((?:.*\\\n)*.*)", file.read())[1]
    return {name.replace("n_sms", "sms"): float(value) for name, value in re.findall(r"\.(\w+) = ([\d.e]+)", text)}


def preset_row(name):
    """Return (memory's bytes a second, then (bytes a second, latency) of both levels) of preset @name."""
    with open(PRESETS, encoding="ascii") as file:
        source = file.read()
    row = re.search(r'\{"' + name + r'".*?\},\n', source, re.S)[0].replace(
        "MEMORY_SHARE", re.search(r"#define MEMORY_SHARE ([\d.]+)", source)[1])
    memory, last = row.split("_KERNELS")[0].split(", ")[-2], row.split("_KERNELS")[1].replace("}", "").split(",")[3:]
    numbers = [math.prod(float(factor) for factor in text.split("*")) for text in (memory, *last)
               if re.fullmatch(r"[\d.e* \n]+", text) and text.strip()]
    return numbers[0], numbers[1:3], numbers[4:6]


def launch_ns():
    with open(PRESETS, encoding="ascii") as file:
        return float(re.search(r"#define LAUNCH_NS ([\d.]+)", file.read())[1])


A100_KERNELS, H100_KERNELS = kernels_of("A100_KERNELS"), kernels_of("H100_KERNELS")
MEMORY, NVLINK, RAILS = preset_row("dgx-a100-80g")
MEMORY_SHARE = preset_row("dgx-h100")[0] / 3350e9  # of a data sheet's rate

# Values of the preset dgx-a100-80g. A file that begins from the preset restates them, so that a fit can move them.
BASE = {"preset": "dgx-a100-80g", "nodes": 512,
        "device": {"device_bytes_per_s": MEMORY, "launch_ns": launch_ns(), "kernels": {
            name: A100_KERNELS[name] for name in ("product_flops_per_s", "product_depth", "score_forward_bytes",
                                                  "score_backward_bytes")}},
        "levels": [{"name": "nvlink", "devices": 8, "bytes_per_s": NVLINK[0], "latency_ns": NVLINK[1]},
                   {"name": "rails", "devices": 4096, "bytes_per_s": RAILS[0], "latency_ns": RAILS[1]}]}


@dataclass
class Row:
    group: str
    name: str
    seconds: float
    options: list
    model: tuple = None  # heads, width, layers of a GPT; else the options name one
    errors: dict = field(default_factory=dict)


def schedule_of(chunks):
    return ["--schedule", "interleaved", "--virtual-stages", str(chunks)] if chunks > 1 else []


def gpt_flops(width, layers, batch):
    """Return the flops of a step with the recomputed forward half, equation 3 of Narayanan et al."""
    return 96 * batch * 2048 * layers * width ** 2 * (1 + 2048 / (6 * width) + 51200 / (16 * layers * width))


def rows_of_tflops(group, rows):
    for heads, width, layers, tp, pp, dp, batch, micro, chunks, tflops in rows:
        ranks = tp * pp * dp
        yield Row(group, f"width {width}, {layers} layers, tp {tp} pp {pp} dp {dp}",
                  gpt_flops(width, layers, batch) / (ranks * tflops * 1e12),
                  ["--tp", str(tp), "--pp", str(pp), "--dp", str(dp), "--batch", str(batch), "--micro-batch",
                   str(micro), "--seq", "2048", "--recompute", "full", *schedule_of(chunks)], (heads, width, layers))


PTD = [(24, 2304, 24, 1, 1, 32, 512, 16, 1, 137), (32, 3072, 30, 2, 1, 32, 512, 16, 1, 138),
       (32, 4096, 36, 4, 1, 32, 512, 16, 1, 142), (48, 6144, 40, 8, 1, 32, 1024, 8, 1, 135),
       (64, 8192, 48, 8, 2, 32, 1536, 4, 1, 138), (80, 10240, 60, 8, 4, 32, 1792, 2, 3, 140),
       (96, 12288, 80, 8, 8, 24, 2304, 2, 2, 148), (128, 16384, 96, 8, 16, 15, 2160, 1, 2, 155),
       (128, 20480, 105, 8, 35, 9, 2520, 1, 3, 163), (160, 25600, 128, 8, 64, 6, 3072, 1, 1, 163)]
PTD_2 = [(96, 12288, 96, 8, 12, 4, 1536, 1, 1, 153), (96, 12288, 96, 8, 12, 8, 1536, 1, 1, 149),
         (96, 12288, 96, 8, 12, 16, 1536, 1, 1, 141), (128, 20480, 105, 8, 35, 2, 2240, 1, 1, 171),
         (128, 20480, 105, 8, 35, 4, 2240, 1, 1, 167), (128, 20480, 105, 8, 35, 8, 2240, 1, 1, 159)]
KORTHIKANTI = [(64, 6144, 48, 1, 1, 1, 4, 4, 1.42, 1.10), (96, 12288, 96, 8, 3, 1, 64, 1, 18.13, 13.75),
               (128, 20480, 105, 35, 3, 1, 280, 1, 49.05, 37.83), (160, 25600, 128, 64, 1, 1, 512, 1, 94.42, 71.49),
               (128, 20480, 105, 35, 3, 8, 2240, 1, None, 39.15)]


def recompute_rows():
    for heads, width, layers, pp, chunks, dp, batch, micro, full, selective in KORTHIKANTI:
        for seconds, how in ((full, ["--recompute", "full"]),
                             (selective, ["--recompute", "selective", "--sequence-parallel"])):
            if seconds:
                yield Row("recompute", f"width {width}, {layers} layers, pp {pp} dp {dp}, {how[1]}", seconds,
                          ["--tp", "8", "--pp", str(pp), "--dp", str(dp), "--batch", str(batch), "--micro-batch",
                           str(micro), "--seq", "2048", *schedule_of(chunks), *how], (heads, width, layers))


# Options that say how other software ran a layout, beyond its sizes. Without them the layout decides (--software auto).
HOW = ("--overlap-tensor", "--eager", "--late-gathers", "--fused-attention", "--fused-norms")

# Cluster, model, options, TFLOP/s of a device, source. Llama 3 was trained with PyTorch's FSDP, whose gradients and
# optimizer states alone are sharded (--zero 2); FlashAttention-3 came after it.
OTHERS = [
    ("dgx-h100", "llama3-405b", "--tp 8 --pp 16 --dp 64 --batch 2048 --micro-batch 1 --seq 8192 --sequence-parallel "
     "--zero 2 --schedule interleaved --virtual-stages 8 --recompute none", 430, "Llama 3 (2024), table 4"),
    ("dgx-h100", "llama3-405b", "--tp 8 --pp 16 --dp 128 --batch 2048 --micro-batch 1 --seq 8192 --sequence-parallel "
     "--zero 2 --schedule interleaved --virtual-stages 8 --recompute none", 400, "Llama 3 (2024), table 4"),
    ("dgx-h100", "llama3-405b", "--tp 8 --pp 16 --cp 16 --dp 8 --batch 128 --micro-batch 1 --seq 131072 "
     "--sequence-parallel --zero 2 --schedule interleaved --virtual-stages 8 --recompute none", 380,
     "Llama 3 (2024), table 4"),
    ("dgx-h100", "mixtral-8x7b", "--ep 8 --pp 4 --dp 32 --batch 256 --micro-batch 1 --seq 4096 --zero 1 --schedule "
     "interleaved --virtual-stages 8 --recompute none", 468,
     "Megatron-Core 0.9, README of its experts; the layout is not stated there"),
    ("dgx-a100-80g", None, "--tp 2 --pp 4 --dp 12 --batch 1536 --micro-batch 4 --seq 2048 --zero 1 --recompute full "
     "--eager", 117, "GPT-NeoX-20B (2022)"),
]


# torchtitan's selective recompute: all but attention and every second product runs again, which is this share of the
# products of Llama 3 8B. The step is between those without and with full recompute.
TITAN_AGAIN = (1 / 4 + 1 + 3.5) / (2 + 2 / 4 + 3 * 3.5)
# Its H100 has 96 GB of HBM2e at 2.4 TB/s and a power limit of 500 W; attention is PyTorch's, compiled or not.
TITAN_H100 = {"preset": "dgx-h100", "usable_device_bytes": "93GiB",
              "device": {"device_bytes": "96GiB", "device_bytes_per_s": MEMORY_SHARE * 2.4e12, "kernels": {
                  "power_watts": 500, "attention_forward": H100_KERNELS["eager_attention_forward"],
                  "attention_backward": H100_KERNELS["eager_attention_backward"]}}}
# Cluster, model, tokens, tp, shards, rows of a group of tp devices, recompute, compiled, tokens a second of a device.
TITAN = [("dgx-h100", "llama3-8b", 8192, 1, 8, 2, "selective", "compiled", 6667),
         ("dgx-h100", "llama3-8b", 8192, 1, 8, 2, "selective", "not compiled", 5762),
         ("dgx-h100", "llama3-8b", 8192, 1, 128, 2, "selective", "compiled", 6514),
         ("dgx-h100", "llama3-8b", 8192, 1, 128, 2, "selective", "not compiled", 5605),
         ("dgx-h100", "llama3-8b", 8192, 8, 8, 12, "selective", "compiled", 4378),
         ("dgx-h100", "llama3-8b", 8192, 8, 8, 12, "selective", "compiled, overlap", 4809.4),
         ("dgx-h100", "llama3-70b", 8192, 8, 32, 16, "full", "compiled", 597.3),
         ("dgx-h100", "llama3-70b", 8192, 8, 32, 16, "full", "compiled, overlap", 652.4),
         ("dgx-h100", "llama3-405b", 8192, 8, 16, 2, "full", "not compiled", 109),
         ("dgx-a100-80g", "llama3-8b", 8192, 1, 64, 1, "selective", "not compiled", 2973),
         ("dgx-a100-80g", "llama3-70b", 8192, 1, 64, 1, "full", "not compiled", 331),
         ("dgx-a100-80g", "13b", 4096, 1, 64, 2, "none", "not compiled", 2162),
         ("dgx-a100-80g", "13b", 4096, 1, 64, 2, "selective", "not compiled", 1904),
         ("dgx-a100-80g", "70b", 4096, 1, 64, 1, "selective", "not compiled", 355),
         ("dgx-a100-80g", "70b", 4096, 1, 64, 2, "full", "not compiled", 353)]

# Llama 2 of IBM's fms-fsdp on 128 A100 with 400 Gb/s a node ("Maximizing training throughput using PyTorch FSDP"), eager,
# gradients in BF16: model, rows and options, tokens a second of a device. Sizes: width, hidden width, layers, heads, KV heads.
LLAMA2 = {"7b": (4096, 11008, 32, 32, 32), "13b": (5120, 13824, 40, 40, 40), "34b": (8192, 22016, 48, 64, 8),
          "70b": (8192, 28672, 80, 64, 8), "30b": (6656, 17920, 60, 52, 52), "65b": (8192, 22016, 80, 64, 64)}
FMS = [("7b", 2, "--shard 8 --recompute none", 3760), ("13b", 1, "--shard 8 --recompute none", 1700),
       ("34b", 8, "--recompute full", 772), ("70b", 6, "--recompute full", 380)]

# Recipes of NVIDIA's dgxc-benchmarking on H100 in BF16, microbatches of 1: model, options, seconds of a step. With
# tensor parallel ranks, collectives run beside products (--tp-comm-overlap).
DGXC = [("llama3-405b", "--tp 8 --pp 9 --cp 2 --dp 4 --batch 252 --seq 8192 --virtual-stages 7", 17.20),
        ("llama3-405b", "--tp 8 --pp 9 --cp 2 --dp 16 --batch 1008 --seq 8192 --virtual-stages 7", 17.62),
        ("llama3-70b", "--tp 4 --pp 4 --cp 2 --dp 2 --batch 128 --seq 8192 --virtual-stages 5", 14.72),
        ("llama3-70b", "--tp 4 --pp 4 --cp 2 --dp 64 --batch 4096 --seq 8192 --virtual-stages 5", 14.98),
        ("gpt3-175b", "--tp 4 --pp 8 --dp 4 --batch 256 --seq 2048 --virtual-stages 12", 8.309),
        ("gpt3-175b", "--tp 4 --pp 8 --dp 64 --batch 4096 --seq 2048 --virtual-stages 12", 8.49),
        ("llama3-8b", "--cp 2 --dp 4 --batch 128 --seq 8192", 12.91),
        ("llama3-8b", "--cp 2 --dp 64 --batch 2048 --seq 8192", 13.10)]

# Nemotron 4 of the same recipes (NeMo 24.11, BF16), collectives beside products: width, layers; options; seconds.
NEMOTRON = [((6144, 32), f"--tp 4 --dp {dp} --batch {16 * dp} --micro-batch 4", seconds)
            for dp, seconds in ((4, 2.812), (16, 2.845), (512, 2.887))]
NEMOTRON.append(((6144, 32), "--tp 2 --dp 8 --batch 64 --micro-batch 2", 2.746))
NEMOTRON += [((18432, 96), f"--tp 8 --pp 8 --dp {dp} --batch {16 * dp} --micro-batch 1 --schedule interleaved "
              "--virtual-stages 12", seconds) for dp, seconds in ((2, 4.61), (8, 4.70), (32, 4.84))]

# The 340B recipe on GB200 (tp 8, pp 4, 12 chunks): replicas, batch, seconds. The preset's rate of products was fitted to
# them.
NEMOTRON_GB200 = [(4, 32, 2.189), (8, 64, 2.19), (16, 128, 2.229), (4, 512, 32.66), (16, 512, 8.468)]

# Megatron-LM's table of runs on H100 (README, Megatron-Core 0.8), 48 replicas, sequences of 4,096, vocabulary 131,072,
# collectives beside products: heads, width, layers, tp, pp, batch, TFLOP/s of a device. Microbatches and chunks are not
# stated. Without a pipeline: the fastest of microbatches of 1, 2 and 4. With one: microbatches of 1, and the fastest
# number of chunks, because sends run beside kernels, which Megatron-LM does between chunks alone. Its loss is not fused:
# logits are written, cast to 32 bits, reduced to their maximum, shifted, raised, summed and divided (2, 6, 4, 8, 8, 4, 8
# bytes), and their gradients scaled, cast and read by two products (8, 6, 4).
MEGATRON_LOGIT_BYTES = 58
MEGATRON = [(16, 2048, 24, 1, 1, 192, 408.8), (32, 4096, 30, 2, 1, 192, 465.9), (48, 6144, 32, 4, 1, 192, 489.1),
            (56, 7168, 48, 8, 1, 192, 459.6), (64, 8192, 84, 8, 2, 384, 419.7), (80, 10240, 92, 8, 4, 768, 420.5),
            (96, 12288, 96, 8, 6, 1152, 432.8), (128, 16384, 96, 8, 8, 1536, 474.4),
            (144, 18432, 112, 8, 16, 3072, 459.9)]

# Runs of Megatron-DeepSpeed on A100, not compiled (--eager), whose pipeline is its own: heads, width, layers; vocabulary;
# options; seconds; network: bytes a second of a device's port, 0 for the preset's.
DEEPSPEED = [("Megatron-Turing NLG 530B (2022)", (128, 20480, 105), 50272, f"--tp 8 --pp 35 --dp {dp} --batch 1920 "
              "--micro-batch 1 --zero 0", seconds, 0) for dp, seconds in ((8, 60.1), (10, 50.2), (12, 44.4))]
DEEPSPEED.append(("BLOOM 176B (2022)", (112, 14336, 70), 250880, "--tp 4 --pp 12 --dp 8 --batch 2048 --micro-batch 2 "
                  "--zero 1", 104.5, 6.25e9))
# Trials of BLOOM's authors before the training (SOURCES), from 25 February 2022 on, whose errors are stated apart: heads,
# width, layers, replicas, tp, pp, microbatch, batch, seconds. Vocabulary, ZeRO stage and ports are BLOOM's.
TRIALS = [
    (64, 14336, 72, 8, 8, 6, 4, 2048, 114.11), (64, 14336, 72, 8, 8, 6, 6, 2016, 123.57),
    (64, 14336, 72, 4, 8, 12, 4, 1568, 92.75), (64, 14336, 72, 4, 8, 12, 4, 2048, 117.07),
    (64, 14336, 72, 4, 8, 12, 2, 1568, 99.93), (64, 14336, 72, 4, 8, 12, 2, 2048, 128.82),
    (64, 14336, 72, 6, 8, 8, 4, 2016, 113.16), (64, 14336, 72, 12, 8, 4, 2, 2016, 125.52),
    (64, 14336, 72, 12, 8, 4, 4, 2016, 114.81), (64, 14336, 72, 24, 8, 2, 1, 2016, 145.45),
    (64, 14336, 72, 24, 8, 2, 2, 2016, 136.13), (64, 14336, 72, 8, 4, 12, 4, 2048, 111.89),
    (64, 14336, 72, 8, 4, 12, 2, 2048, 110.48), (64, 14336, 72, 16, 4, 6, 4, 2048, 117.11),
    (64, 14336, 72, 16, 4, 6, 2, 2048, 111.71), (64, 14336, 72, 16, 2, 12, 2, 2048, 112.50),
    (64, 14336, 72, 8, 2, 24, 1, 2048, 119.53), (64, 14336, 72, 4, 4, 24, 1, 2048, 130.60),
    (96, 12288, 96, 8, 1, 48, 1, 2048, 142.17), (64, 13824, 78, 8, 4, 12, 2, 2048, 103.51),
    (64, 13824, 78, 8, 4, 12, 4, 2048, 106.72), (96, 13824, 78, 8, 4, 12, 2, 512, 35.77),
    (96, 13824, 78, 8, 4, 12, 2, 1024, 59.65), (96, 13824, 78, 8, 4, 12, 2, 1536, 83.11),
    (96, 13824, 78, 8, 4, 12, 2, 2048, 107.12), (96, 13824, 78, 8, 8, 6, 4, 2048, 118.12),
    (96, 13824, 78, 8, 8, 6, 2, 2048, 133.57), (96, 13824, 78, 16, 4, 6, 4, 2048, 115.55),
    (64, 13312, 84, 8, 4, 12, 2, 2048, 103.82), (64, 13312, 84, 8, 8, 6, 2, 2048, 129.61),
    (96, 12288, 106, 8, 4, 12, 2, 2048, 118.79), (64, 12288, 100, 8, 8, 6, 4, 2048, 120.96),
    (64, 13312, 82, 4, 8, 12, 4, 2048, 111.79), (64, 13312, 82, 8, 4, 12, 2, 2048, 104.45),
    (64, 13312, 82, 8, 4, 12, 4, 2048, 104.82), (64, 14336, 70, 4, 8, 12, 2, 2048, 121.63),
    (64, 14336, 70, 8, 4, 12, 2, 2048, 102.03), (64, 14336, 70, 8, 4, 12, 4, 2048, 102.27)]


# MPT of MosaicML's llm-foundry, fully sharded, by layout alone: scripts/train/benchmarking/README.md. Every row of 7b and
# larger of up to 64 devices, and some of smaller ones: model, tokens, devices, microbatch, microbatches, recompute, TFLOP/s
# of a device.
MPT_SIZES = {"125m": (12, 768, 12), "350m": (16, 1024, 24), "760m": (12, 1536, 24), "1b": (16, 2048, 24),
             "3b": (20, 2560, 32), "7b": (32, 4096, 32), "13b": (40, 5120, 40), "30b": (56, 7168, 48), "70b": (64, 8192, 80)}
MPT = {
    "dgx-h100": [
        ("70b", 2048, 64, 8, 4, "full", 421.3), ("70b", 2048, 32, 2, 16, "full", 357.7),
        ("30b", 8192, 8, 1, 21, "full", 296.1), ("30b", 4096, 8, 1, 21, "full", 354.8),
        ("30b", 2048, 32, 14, 3, "full", 434.6), ("30b", 2048, 16, 10, 3, "full", 426.2),
        ("30b", 2048, 8, 3, 21, "full", 377.1), ("30b", 1024, 8, 6, 21, "full", 383.5),
        ("13b", 32768, 8, 1, 3, "full", 313.5), ("13b", 16384, 8, 3, 3, "full", 351.7),
        ("13b", 4096, 8, 10, 3, "full", 411.6), ("13b", 2048, 64, 2, 1, "none", 394.4),
        ("13b", 2048, 32, 2, 1, "none", 395.3), ("13b", 2048, 16, 2, 1, "none", 391.7),
        ("13b", 2048, 8, 2, 1, "none", 393.7), ("13b", 1024, 8, 40, 3, "full", 438.0),
        ("7b", 65536, 8, 1, 2, "full", 282.9), ("7b", 32768, 8, 2, 2, "full", 306.2),
        ("7b", 8192, 8, 8, 2, "full", 367.5), ("7b", 4096, 8, 16, 2, "full", 400.0),
        ("7b", 2048, 8, 6, 1, "none", 459.5), ("7b", 1024, 8, 64, 2, "full", 423.8),
        ("3b", 2048, 64, 6, 3, "none", 403.8), ("3b", 8192, 8, 3, 6, "none", 398.8),
        ("1b", 2048, 64, 20, 1, "none", 404.2), ("760m", 2048, 8, 24, 2, "none", 345.3)],
    "dgx-a100-80g": [
        ("70b", 2048, 64, 8, 4, "full", 166.4), ("70b", 2048, 32, 2, 16, "full", 151.5),
        ("30b", 8192, 8, 1, 21, "full", 122.9), ("30b", 4096, 8, 1, 21, "full", 160.3),
        ("30b", 2048, 8, 3, 21, "full", 172.5), ("30b", 1024, 8, 6, 21, "full", 174.2),
        ("30b", 512, 8, 12, 21, "full", 176.0), ("13b", 32768, 8, 1, 3, "full", 161.3),
        ("13b", 16384, 8, 3, 3, "full", 168.7), ("13b", 8192, 8, 5, 3, "full", 175.0),
        ("13b", 4096, 8, 10, 3, "full", 179.8), ("13b", 2048, 8, 2, 3, "none", 185.9),
        ("13b", 1024, 8, 40, 3, "full", 185.6), ("7b", 65536, 8, 1, 2, "full", 146.5),
        ("7b", 32768, 8, 2, 2, "full", 154.3), ("7b", 16384, 8, 4, 2, "full", 162.1),
        ("7b", 8192, 8, 8, 2, "full", 169.9), ("7b", 4096, 8, 16, 2, "full", 171.1),
        ("7b", 2048, 8, 6, 2, "none", 200.4), ("7b", 1024, 8, 64, 2, "full", 181.0),
        ("3b", 2048, 8, 10, 2, "none", 193.8), ("3b", 8192, 8, 3, 6, "none", 185.2),
        ("1b", 2048, 8, 14, 4, "none", 186.8), ("760m", 2048, 8, 24, 2, "none", 177.4)]}


# The other runs of the same tables, stated apart: size, tokens, devices, microbatch, microbatches, ZeRO stage and full or
# no recompute, tokens a second of a device. The A100 of 40 GB has 1.6 Tb/s of RoCE in a node, as the other one.
MPT_MORE = {
    "dgx-h100":
        "70b 2048 512 8 1 3f 1007; 70b 2048 256 8 1 3f 1035; 70b 2048 128 8 1 3f 1058; 30b 2048 512 8 1 3f 2115; "
        "30b 2048 256 8 1 3f 2148; 30b 2048 128 8 1 3f 2199; 13b 2048 512 16 1 3f 4952; 13b 2048 256 16 1 3f 4989; "
        "13b 2048 128 16 1 3f 5080; 7b 2048 512 6 1 3n 9670; 7b 2048 256 6 1 3n 10119; 7b 2048 128 6 1 3n 10475; "
        "3b 2048 512 8 1 2n 21664; 3b 2048 256 8 1 2n 22772; 3b 2048 128 8 1 2n 23422; 1b 2048 512 12 1 2n 39837; "
        "1b 2048 256 12 1 2n 42555; 1b 2048 128 12 1 2n 44123; 3b 65536 8 1 2 3f 3262; 3b 32768 8 3 6 3f 5873; "
        "3b 16384 8 1 6 3n 11152; 3b 4096 8 5 6 3n 20964; 3b 2048 32 6 3 3n 23021; 3b 2048 16 10 3 3n 24142; "
        "3b 1024 8 20 6 3n 27046; 3b 512 8 40 6 3n 27965; 1b 65536 8 1 2 3f 5506; 1b 32768 8 1 4 3n 12025; "
        "1b 16384 8 2 4 3n 19649; 1b 8192 8 3 4 3n 29157; 1b 4096 8 7 4 3n 38535; 1b 2048 32 20 1 3n 45130; "
        "1b 2048 16 20 1 3n 46037; 1b 2048 8 14 1 3n 45455; 1b 1024 8 18 4 3n 48910; 1b 512 8 56 4 3n 52275; "
        "760m 32768 8 1 2 3n 16291; 760m 16384 8 3 2 3n 27815; 760m 8192 8 6 2 3n 41825; 760m 4096 8 12 2 3n 55459; "
        "760m 2048 32 24 1 3n 67971; 760m 2048 16 24 1 3n 68551; 760m 1024 8 48 2 3n 78581; 760m 512 8 96 2 3n 83749",
    "dgx-a100-80g":
        "3b 65536 8 1 2 3f 1767; 3b 32768 8 3 6 3f 3029; 3b 16384 8 1 6 3n 5529; 3b 4096 8 5 6 3n 9457; "
        "3b 1024 8 20 6 3n 11580; 3b 512 8 40 6 3n 12127; 1b 65536 8 1 2 3f 3044; 1b 32768 8 1 4 3n 6275; "
        "1b 16384 8 2 4 3n 9956; 1b 8192 8 3 4 3n 13814; 1b 4096 8 7 4 3n 17807; 1b 1024 8 18 4 3n 22112; "
        "1b 512 8 56 4 3n 23148; 760m 65536 8 1 2 3f 4143; 760m 32768 8 1 2 3n 8802; 760m 16384 8 3 2 3n 14274; "
        "760m 8192 8 6 2 3n 20933; 760m 4096 8 12 2 3n 27351; 760m 1024 8 48 2 3n 29765; 760m 512 8 96 2 3n 29446; "
        "350m 65536 8 1 2 3n 7524; 350m 32768 8 2 2 3n 13652; 350m 16384 8 4 2 3n 23559; 350m 8192 8 8 2 3n 36569; "
        "350m 4096 8 16 2 3n 49555; 350m 2048 8 32 2 3n 58782; 350m 1024 8 64 2 3n 64813; 350m 512 8 128 2 3n 69330; "
        "125m 65536 8 1 2 3n 20368; 125m 32768 8 2 2 3n 36407; 125m 16384 8 4 2 3n 60040; 125m 8192 8 8 2 3n 90392; "
        "125m 4096 8 16 2 3n 118396; 125m 2048 8 40 2 3n 142830; 125m 2048 8 32 2 3n 141737; "
        "125m 1024 8 64 2 3n 156468; 125m 512 8 128 2 3n 165681",
    "A100 of 40 GB":
        "70b 2048 128 4 1 3f 376; 70b 2048 64 2 1 3f 276; 30b 2048 128 6 1 3f 865; 30b 2048 32 4 1 3f 857; "
        "13b 8192 8 1 16 3f 1407; 13b 4096 8 2 16 3f 1603; 13b 2048 128 16 1 3f 1972; 13b 2048 64 16 1 3f 1976; "
        "13b 2048 32 14 1 3f 1998; 13b 2048 16 10 1 3f 1993; 13b 2048 8 4 16 3f 1668; 13b 1024 8 8 16 3f 1727; "
        "13b 512 8 16 16 3f 1763; 7b 16384 8 1 4 3f 2249; 7b 8192 8 3 4 3f 2887; 7b 4096 8 6 4 3f 3366; "
        "7b 2048 128 18 1 3f 3623; 7b 2048 64 18 1 3f 3665; 7b 2048 32 18 1 3f 3725; 7b 2048 16 16 1 3f 3645; "
        "7b 2048 8 12 4 3f 3679; 7b 1024 8 24 4 3f 3854; 7b 512 8 48 4 3f 3895; 3b 32768 8 1 4 3f 2955; "
        "3b 16384 8 2 8 3f 4465; 3b 8192 8 1 8 3n 7149; 3b 4096 8 2 8 3n 8777; 3b 2048 128 6 1 3n 9538; "
        "3b 2048 64 6 1 3n 9736; 3b 2048 32 6 1 3n 9914; 3b 2048 16 5 1 3n 9750; 3b 2048 8 5 8 3n 10065; "
        "3b 1024 8 10 8 3n 10731; 3b 512 8 20 8 3n 11324; 1b 32768 8 1 4 3f 5095; 1b 16384 8 1 8 3n 9715; "
        "1b 8192 8 2 8 3n 13474; 1b 4096 8 4 8 3n 16856; 1b 2048 128 10 1 3n 18647; 1b 2048 64 10 1 3n 19001; "
        "1b 2048 32 10 1 3n 15555; 1b 2048 16 8 1 3n 19085; 1b 2048 8 8 8 3n 19271; 1b 1024 8 16 8 3n 20959; "
        "1b 512 8 32 8 3n 21782; 760m 32768 8 1 4 3f 7183; 760m 16384 8 1 4 3n 13914; 760m 8192 8 3 4 3n 20106; "
        "760m 4096 8 6 4 3n 25863; 760m 2048 128 12 1 3n 28940; 760m 2048 64 12 1 3n 29344; "
        "760m 2048 32 12 1 3n 29648; 760m 2048 16 12 1 3n 29607; 760m 2048 8 12 4 3n 30173; "
        "760m 1024 8 24 4 3n 33422; 760m 512 8 48 4 3n 34938; 350m 32768 8 1 4 3n 13416; 350m 16384 8 2 4 3n 22896; "
        "350m 8192 8 4 4 3n 34933; 350m 4096 8 8 4 3n 46833; 350m 2048 128 18 1 3n 51934; "
        "350m 2048 64 18 1 3n 52689; 350m 2048 32 18 1 3n 53811; 350m 2048 16 18 1 3n 55413; "
        "350m 2048 8 16 4 3n 55995; 350m 1024 8 32 4 3n 62523; 350m 512 8 64 4 3n 66284; 125m 32768 8 1 4 3n 32651; "
        "125m 16384 8 2 3 3n 55484; 125m 8192 8 5 3 3n 86858; 125m 4096 8 13 3 3n 115162; "
        "125m 2048 128 26 1 3n 123936; 125m 2048 64 26 1 3n 125234; 125m 2048 32 26 1 3n 127122; "
        "125m 2048 16 26 1 3n 130535; 125m 2048 8 26 3 3n 136334; 125m 1024 8 52 3 3n 148289; "
        "125m 512 8 104 3 3n 156735"}


# Runs that were predicted before any constant or rule was looked at with them. Megatron-LM as Jiang et al. ran it, tp 8,
# pp 8, 6 chunks, vocabulary 64,000: devices, batch, seconds.
MEGASCALE = [(256, 768, 40.0), (512, 768, 21.2), (768, 768, 15.2), (1024, 768, 11.9), (3072, 6144, 29.02),
             (6144, 6144, 14.78), (8192, 6144, 12.24), (12288, 6144, 8.57)]
# Nemotron-4's reports: width, layers; options; seconds. Microbatches of the 15B model are not stated: 4.
NEMOTRON_REPORTS = [((18432, 96), f"--tp 8 --pp 12 --dp {dp} --batch {batch} --micro-batch 1 --schedule interleaved "
                     "--virtual-stages 8", seconds) for dp, batch, seconds in ((16, 768, 10.3), (32, 1536, 10.3),
                                                                              (64, 2304, 8.0))]
NEMOTRON_REPORTS += [((6144, 32), f"--tp 8 --dp {dp} --batch {4 * dp} --micro-batch 4", seconds)
                     for dp, seconds in ((96, 0.57), (192, 0.58), (288, 0.64))]
# Qi et al. 2024, 1F1B of Megatron-LM without recompute, sequences of 1,024, microbatches of 6, 3, 1 and 1: heads, width,
# layers, stages, microbatch; microbatches, seconds of forward, both backward halves, and the rate of idle time (tables 3
# and 5), which together are the step's time.
BUBBLES = [((24, 2304, 22, 8, 6), ((24, 45.945e-3, 0.2431), (32, 45.930e-3, 0.1985), (64, 45.964e-3, 0.1240))),
           ((32, 4096, 30, 8, 3), ((24, 79.089e-3, 0.2347), (32, 78.760e-3, 0.1898), (64, 78.944e-3, 0.1091))),
           ((40, 5120, 46, 16, 1), ((48, 30.727e-3, 0.2552), (64, 30.662e-3, 0.2082), (128, 30.742e-3, 0.1251))),
           ((48, 6144, 62, 32, 1), ((96, 28.341e-3, 0.2646), (128, 28.315e-3, 0.2168), (256, 28.348e-3, 0.1352)))]


SOURCES = """
Sources: Narayanan et al. 2021 (arXiv 2104.04473); Korthikanti et al. 2022 (2205.05198); Llama 3 (2407.21783); GPT-NeoX-20B
(2204.06745); Megatron-LM in Jiang et al. 2024 (2402.15627), table 2; Nemotron-4 340B (2406.11704), table 2, and 15B
(2402.16819), table 2; Qi et al. 2024 (2401.10241); Megatron-Turing NLG (2201.11990), section 2.4; BLOOM (2211.05100):
150 TFLOP/s of a device, recompute counted, are 104.5 s; its nodes have four ports of 100 Gb/s, and its launches waited for
kernels (CUDA_LAUNCH_BLOCKING: bigscience-workshop/bigscience, train/tr11-176B-ml/chronicles-prequel.md); FlashAttention-2
(2307.08691); Hagemann et al. 2023 (2311.05610) with the sheets of Aleph-Alpha/
NeurIPS-WANT-submission-efficient-parallelization-layouts. In repositories:
NVIDIA/dgxc-benchmarking, llama3.1/README_405b.md, README_70b.md, README_8b.md and nemo_megatron/README_175b.md (NeMo 24.09,
BF16), nemotron/README_15b.md, README_340b.md and README.md; NVIDIA/Megatron-LM, README.md and images/model_table.png;
pytorch/torchtitan, its page performance (A100, and 405B on H100), benchmarks of December 2024 and June 2025 (memory, power
and asynchronous tensor parallelism of its H100); foundation-model-stack/fms-fsdp, README.md (400 Gb/s a
node: "Maximizing training throughput using PyTorch FSDP", pytorch.org); mosaicml/llm-foundry,
scripts/train/benchmarking/README.md and submit_benchmarks.py; mosaicml/composer, FSDPConfig."""


# ---- running ----

class Planner:
    def __init__(self, lade, directory):
        self.lade, self.directory = lade, directory
        self.h100_rate = 1  # times the preset's rate of products; attention keeps its own
        self.is_plain = False  # leave out the options and the kernels that say how other software ran

    def model_file(self, model, context=2048, vocabulary=51200):
        heads, width, layers = model
        path = os.path.join(self.directory, f"gpt-{heads}-{width}-{layers}-{context}-{vocabulary}.json")
        if not os.path.exists(path):
            with open(path, "w", encoding="ascii") as file:
                json.dump({"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_layer": layers,
                           "n_head": heads, "n_embd": width, "n_positions": context, "vocab_size": vocabulary,
                           "layer_norm_epsilon": 1e-5}, file)
        return path

    def llama_file(self, size, context=4096, vocabulary=32000):
        width, hidden, layers, heads, n_kv_heads = LLAMA2[size]
        path = os.path.join(self.directory, f"llama2-{size}-{context}-{vocabulary}.json")
        with open(path, "w", encoding="ascii") as file:
            json.dump({"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": width,
                       "intermediate_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads,
                       "num_key_value_heads": n_kv_heads, "max_position_embeddings": context, "vocab_size": vocabulary,
                       "rms_norm_eps": 1e-5, "tie_word_embeddings": False}, file)
        return path

    def nemotron_file(self, width, layers):
        path = os.path.join(self.directory, f"nemotron-{width}.json")
        with open(path, "w", encoding="ascii") as file:
            json.dump({"model_type": "nemotron", "architectures": ["NemotronForCausalLM"], "hidden_size": width,
                       "intermediate_size": 4 * width, "num_hidden_layers": layers,
                       "num_attention_heads": {6144: 48, 18432: 96}[width], "num_key_value_heads": 8,
                       "max_position_embeddings": 4096, "vocab_size": 256000, "norm_eps": 1e-5,
                       "hidden_act": "relu2", "partial_rotary_factor": 0.5, "rope_theta": 10000.0,
                       "tie_word_embeddings": False}, file)
        return path

    def with_rate(self, cluster, share):
        """Return the file of @cluster, a preset or a file, with @share times the H100's rate of products."""
        described = {"preset": cluster}
        if os.path.exists(cluster):
            with open(cluster, encoding="ascii") as file:
                described = json.load(file)
        kernels = described.setdefault("device", {}).setdefault("kernels", {})
        kernels["product_flops_per_s"] = H100_KERNELS["product_flops_per_s"] * share
        kernels |= {key: kernels.get(key, H100_KERNELS[key]) / share for key in H100_KERNELS if "attention" in key}
        path = os.path.join(self.directory, "rate.json")
        with open(path, "w", encoding="ascii") as file:
            json.dump(described, file)
        return path

    def cluster_file(self, cluster):
        """Return the file of @cluster, a described one."""
        path = os.path.join(self.directory, "described.json")
        with open(path, "w", encoding="ascii") as file:
            json.dump(cluster, file)
        return path

    def with_ports(self, bytes_per_s):
        """Return the file of dgx-a100-80g with other ports, of which sums sustain the same share."""
        cluster = json.loads(json.dumps(BASE))
        cluster["levels"][1]["bytes_per_s"] *= bytes_per_s / 25e9
        return self.cluster_file(cluster)

    def with_kernels(self, cluster, **kernels):
        """Return the file of preset @cluster with other constants of kernels."""
        if self.is_plain:
            return cluster
        return self.cluster_file({"preset": cluster, "device": {"kernels": kernels}})

    def plan(self, cluster, model, options):
        if self.h100_rate != 1:
            cluster = self.with_rate(cluster, self.h100_rate)
        if self.is_plain:
            options = [option for option in options if option not in HOW]
        done = subprocess.run([self.lade, "plan", "--cluster", cluster, "--model", model, "--json", *options],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
        if done.returncode not in (0, 3):
            raise RuntimeError(done.stderr)
        return json.loads(done.stdout)

    def error(self, row, cluster="dgx-a100-80g"):
        found = self.plan(cluster, self.model_file(row.model), row.options)
        return math.log(found["all_ranks_step_seconds"] / row.seconds)

    def cluster_with(self, place, factor):
        """Return the file of the preset with one constant multiplied."""
        cluster = json.loads(json.dumps(BASE))
        at = cluster
        for key in place[:-1]:
            at = at[key]
        at[place[-1]] *= factor
        return self.cluster_file(cluster)


# ---- leaving rows out ----

def solve(matrix, vector):
    """Solve a small linear system by elimination with pivots."""
    n = len(vector)
    rows = [list(matrix[i]) + [vector[i]] for i in range(n)]
    for i in range(n):
        pivot = max(range(i, n), key=lambda r: abs(rows[r][i]))
        rows[i], rows[pivot] = rows[pivot], rows[i]
        for r in range(n):
            if r != i:
                factor = rows[r][i] / rows[i][i]
                rows[r] = [a - factor * b for a, b in zip(rows[r], rows[i])]
    return [rows[i][n] / rows[i][i] for i in range(n)]


def left_out_error(at, errors, slopes):
    """Return the error of row @at under the fit to all other rows."""
    n = len(CONSTANTS)
    matrix = [[sum(slopes[i][a] * slopes[i][b] for i in range(len(errors)) if i != at) + (PENALTY if a == b else 0)
               for b in range(n)] for a in range(n)]
    vector = [-sum(slopes[i][a] * errors[i] for i in range(len(errors)) if i != at) for a in range(n)]
    moved = solve(matrix, vector)
    return errors[at] + sum(slope * by for slope, by in zip(slopes[at], moved))


def percent(error):
    return f"{100 * math.expm1(error):+.1f} %"


def summary(errors):
    sizes = [abs(math.expm1(error)) for error in errors]
    return sum(sizes) / len(sizes), max(sizes)


def fitted_report(planner, out):
    rows = [*rows_of_tflops("layouts", PTD), *recompute_rows()]
    errors = [planner.error(row) for row in rows]
    slopes = [[] for _ in rows]
    for _, place in CONSTANTS:
        cluster = planner.cluster_with(place, math.exp(STEP))
        for i, row in enumerate(rows):
            slopes[i].append((planner.error(row, cluster) - errors[i]) / STEP)
    out += ["", "| row | published, s | error | error without the row |", "|---|---|---|---|"]
    left = [left_out_error(i, errors, slopes) for i in range(len(rows))]
    for row, error, without in zip(rows, errors, left):
        out.append(f"| {row.group}: {row.name} | {row.seconds:.2f} | {percent(error)} | {percent(without)} |")
    is_good = True
    for group, bounds in (("layouts", PTD_BOUNDS), ("recompute", RECOMPUTE_BOUNDS)):
        mean, largest = summary([e for row, e in zip(rows, errors) if row.group == group])
        mean_left, largest_left = summary([e for row, e in zip(rows, left) if row.group == group])
        is_good &= mean <= bounds[0] and largest <= bounds[1]
        out.append(f"| {group}: mean, largest (bounds {100 * bounds[0]:.0f} %, {100 * bounds[1]:.0f} %) | | "
                   f"{100 * mean:.1f} %, {100 * largest:.1f} % | {100 * mean_left:.1f} %, {100 * largest_left:.1f} % |")
    return is_good


TABLE_HEAD = ["", "Runs of other software; TFLOP/s of a device, attention's whole square counted.", "",
              "| cluster | run | published | predicted | error of the time |", "|---|---|---|---|---|"]


def others_report(planner, out):
    for row in rows_of_tflops("ranks", PTD_2):
        error = planner.error(row)
        out.append(f"| dgx-a100-80g | {row.name}; Narayanan et al. 2021, table 2 | {row.seconds:.1f} s | "
                   f"{row.seconds * math.exp(error):.1f} s | {percent(error)} |")
    for cluster, model, options, tflops, source in OTHERS:
        found = planner.plan(cluster, model or planner.model_file((64, 6144, 44)), options.split())
        model = model or "GPT of width 6144, 44 layers"
        error = math.log(tflops / found["model_tflops_per_rank"])
        out.append(f"| {cluster} | {model} {options.split(' --batch')[0]}; {source} | {tflops} TFLOP/s | "
                   f"{found['model_tflops_per_rank']:.0f} TFLOP/s | {percent(error)} |")


def mpt_report(planner, out):
    errors = {}
    for cluster, rows in MPT.items():
        for size, seq, ranks, micro, n_micro, recompute, tflops in rows:
            found = planner.plan(cluster, planner.model_file(MPT_SIZES[size], seq, 50368), [
                "--dp", str(ranks), "--batch", str(ranks * micro * n_micro), "--micro-batch", str(micro), "--seq", str(seq),
                "--zero", "3", "--recompute", recompute])
            error = math.log(tflops / found["model_tflops_per_rank"])
            errors.setdefault((cluster, recompute), []).append(error)
            out.append(f"| {cluster} | MPT {size}, dp {ranks}, {seq} tokens, micro-batch {micro}, recompute {recompute}; "
                       f"llm-foundry | {tflops} TFLOP/s | {found['model_tflops_per_rank']:.0f} TFLOP/s | "
                       f"{percent(error)} |")
    for (cluster, recompute), some in errors.items():
        out.append(f"| {cluster} | MPT, recompute {recompute}: mean, largest | | | {100 * summary(some)[0]:.1f} %, "
                   f"{100 * summary(some)[1]:.1f} % |")


def mpt_more_report(planner, out):
    """Add a paragraph on the runs of MPT that are in no table."""
    parts = []
    a100_40g = {"preset": "dgx-a100-80g", "usable_device_bytes": "38GiB",
                "device": {"device_bytes": "40GiB", "device_bytes_per_s": MEMORY_SHARE * 1555e9}}
    for name, text in MPT_MORE.items():
        errors = []
        for row in text.split("; "):
            size, seq, ranks, micro, n_micro, how, tokens = row.split()
            cluster = name if name in MPT else planner.cluster_file(a100_40g)
            found = planner.plan(cluster, planner.model_file(MPT_SIZES[size], int(seq), 50368), [
                "--dp", ranks, "--batch", str(int(ranks) * int(micro) * int(n_micro)), "--micro-batch", micro, "--seq", seq,
                "--zero", how[0], "--recompute", {"f": "full", "n": "none"}[how[1]]])
            errors.append(math.log(float(tokens) * int(ranks) / found["tokens_per_second"]))
        mean, largest = summary(errors)
        parts.append(f"- {name}: {len(errors)} runs, mean {100 * mean:.1f} %, largest {100 * largest:.1f} %")
    out += ["", "Other runs of MPT, by their layouts alone. No constant was fitted to any. The rules of FSDP were made before "
            "those of", "the A100 of 40 GB were looked at.", "", *parts]


def seconds_row(out, cluster, run, published, predicted):
    out.append(f"| {cluster} | {run} | {published:.2f} s | {predicted:.2f} s | {percent(math.log(predicted / published))} |")
    return math.log(predicted / published)


def titan_report(planner, out):
    for cluster, model, seq, tp, dp, rows, recompute, how, tokens in TITAN:
        options = ["--tp", str(tp), "--dp", str(dp), "--batch", str(dp * rows), "--micro-batch", str(rows), "--seq",
                   str(seq), "--zero", "3", *["--eager"] * ("not compiled" in how), *["--sequence-parallel"] * (tp > 1),
                   *["--overlap-tensor"] * ("overlap" in how),
                   *["--software", "lade"] * ("not compiled" not in how and not planner.is_plain), "--recompute"]
        described = planner.cluster_file(TITAN_H100) if cluster == "dgx-h100" else cluster
        recipes = ("none", "full") if recompute == "selective" else (recompute,)
        seconds = [planner.plan(described, planner.llama_file(model) if model in LLAMA2 else model,
                                [*options, recipe])["all_ranks_step_seconds"] for recipe in recipes]
        seconds_row(out, cluster, f"{'Llama 2 ' * (model in LLAMA2)}{model} --tp {tp} --dp {dp}, {rows} rows, {recompute}; "
                    f"torchtitan, {how}", rows * seq / tp / tokens, seconds[0] + TITAN_AGAIN * (seconds[-1] - seconds[0]))


def fms_report(planner, out):
    for size, rows, how, tokens in FMS:
        found = planner.plan(planner.with_ports(6.25e9), planner.llama_file(size), [
            "--dp", "128", "--batch", str(128 * rows), "--micro-batch", str(rows), "--seq", "4096", "--zero", "3",
            "--grad-reduce", "bf16", "--eager", *how.split()])
        seconds_row(out, "dgx-a100-80g", f"Llama 2 {size}, dp 128, micro-batch {rows}, {how[2:]}; fms-fsdp, 400 Gb/s a node",
                    rows * 4096 / tokens, found["all_ranks_step_seconds"])


def dgxc_report(planner, out):
    errors = []
    for model, options, seconds in DGXC:
        how = [*options.split(), "--micro-batch", "1", "--zero", "1", "--recompute", "none"]
        how += ["--sequence-parallel", "--schedule", "interleaved"] if "--tp" in how else []
        found = planner.plan("dgx-h100", model, how)
        name = f"{model} {options.split(' --batch')[0]}; dgxc-benchmarking"
        errors.append(seconds_row(out, "dgx-h100", name, seconds, found["all_ranks_step_seconds"]))
    out.append(f"| dgx-h100 | dgxc-benchmarking: mean, largest | | | {100 * summary(errors)[0]:.1f} %, "
               f"{100 * summary(errors)[1]:.1f} % |")


def nemotron_report(planner, out):
    for (width, layers), options, seconds in NEMOTRON:
        found = planner.plan("dgx-h100", planner.nemotron_file(width, layers), [
            *options.split(), "--seq", "4096", "--zero", "1", "--recompute", "none", "--sequence-parallel"])
        size = "15B" if width == 6144 else "340B"
        seconds_row(out, "dgx-h100", f"Nemotron 4 {size} {options.split(' --batch')[0]}; dgxc-benchmarking", seconds,
                    found["all_ranks_step_seconds"])
    for dp, batch, seconds in NEMOTRON_GB200:
        found = planner.plan("gb200-nvl72", planner.nemotron_file(18432, 96), [
            "--tp", "8", "--pp", "4", "--dp", str(dp), "--batch", str(batch), "--micro-batch", "1", "--seq", "4096", "--zero",
            "1", "--recompute", "none", *schedule_of(12), "--sequence-parallel"])
        seconds_row(out, "gb200-nvl72", f"Nemotron 4 340B --tp 8 --pp 4 --dp {dp}, batch {batch}; dgxc-benchmarking",
                    seconds, found["all_ranks_step_seconds"])


def megatron_report(planner, out):
    for heads, width, layers, tp, pp, batch, tflops in MEGATRON:
        base = ["--tp", str(tp), "--pp", str(pp), "--dp", "48", "--batch", str(batch), "--seq", "4096", "--zero", "1",
                "--recompute", "none", *["--sequence-parallel"] * (tp > 1)]
        model = planner.model_file((heads, width, layers), 4096, 131072)
        stage = layers // pp
        choices = [["--micro-batch", micro] for micro in ("1", "2", "4")] if pp == 1 else [
            ["--micro-batch", "1", *schedule_of(n)] for n in range(2, stage + 1) if stage % n == 0]
        cluster = planner.with_kernels("dgx-h100", logit_bytes=MEGATRON_LOGIT_BYTES)
        rate = max(planner.plan(cluster, model, [*base, *choice])["model_tflops_per_rank"] for choice in choices)
        out.append(f"| dgx-h100 | width {width}, {layers} layers, tp {tp} pp {pp} dp 48; Megatron-LM | {tflops} TFLOP/s "
                   f"| {rate:.0f} TFLOP/s | {percent(math.log(tflops / rate))} |")


def deepspeed_report(planner, out):
    for name, model, vocabulary, options, seconds, ports in DEEPSPEED:
        found = planner.plan(planner.with_ports(ports) if ports else "dgx-a100-80g",
                             planner.model_file(model, 2048, vocabulary),
                             [*options.split(), "--seq", "2048", "--recompute", "full", "--eager"])
        seconds_row(out, "dgx-a100-80g", f"{name}, {options.split(' --batch')[0]}", seconds,
                    found["all_ranks_step_seconds"])


def trials_report(planner, out, errors):
    """Add a paragraph on the trials of BLOOM's layout, and the mean of the A100's @errors with theirs."""
    trials = []
    for heads, width, layers, dp, tp, pp, micro, batch, seconds in TRIALS:
        found = planner.plan(planner.with_ports(DEEPSPEED[-1][5]), planner.model_file((heads, width, layers), 2048, 250880), [
            "--tp", str(tp), "--pp", str(pp), "--dp", str(dp), "--batch", str(batch), "--micro-batch", str(micro), "--zero",
            "1", "--seq", "2048", "--recompute", "full", "--eager"])
        trials.append(math.log(found["all_ranks_step_seconds"] / seconds))
    mean, largest = summary(trials)
    n_fast = sum(error < 0 for error in trials)
    alone = [math.log1p(error) for error in errors]
    out += ["", f"Left out of the tables: {len(trials)} trials of BLOOM's authors on 384 A100 before its training "
            "(chronicles-prequel.md, below); a 39th", "is BLOOM's row. They are left out because the notes say that jobs of "
            "this size hung without CUDA_LAUNCH_BLOCKING=1,", "and do not say which trials had it. Each launch then waits for "
            "its kernel, which no prediction here has. The authors compared", "both: 6 % slower once, equal twice. Predicted "
            f"as BLOOM's row, their mean error is {100 * mean:.1f} %, the largest {100 * largest:.1f} %, and {n_fast} of them",
            f"are predicted too fast. With them the mean of all {len(trials) + len(alone)} runs on A100 is "
            f"{100 * summary([*trials, *alone])[0]:.1f} % instead of {100 * summary(alone)[0]:.1f} %."]


LAYOUTS_TEXT = """All layouts of Llama that Hagemann et al. 2023 ran on A100 with FlashAttention-2 (bench/layouts_a100.csv). No constant was
fitted; the first predictions, by layout alone, were off by 9.8 %. Input gradients summed for each product were found with
these runs in view. Not priced: a time of 13B on two stages that grows as the square of the microbatch; networks of 256 ranks."""


def layouts_report(planner, out):
    """Add the layouts of layouts_a100.csv."""
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "layouts_a100.csv"), encoding="ascii") as file:
        rows, groups = list(csv.DictReader(file)), {}
    for row in rows:
        found = planner.plan("dgx-a100-80g", planner.llama_file(row["size"], int(row["seq"]), 128000), [
            "--tp", row["tp"], "--pp", row["pp"], "--dp", row["dp"], "--batch", {"2048": "2048", "8192": "512"}[row["seq"]],
            "--micro-batch", row["micro_batch"], "--seq", row["seq"], "--zero", str(int(row["dp"] != "1")), "--recompute",
            row["recompute"], "--eager", *["--sequence-parallel"] * int(row["sequence_parallel"]), *["--fused-norms"] * int(
                row["fused_norms"])])
        cut = "no tensor ranks" if row["tp"] == "1" else "rows cut" if row["sequence_parallel"] == "1" else "rows whole"
        name = f"{'256' if row['ranks'] == '256' else 'up to 128'} ranks, {cut}, recompute {row['recompute']}"
        groups.setdefault(name, []).append(math.log(found["all_ranks_step_seconds"] / float(row["seconds"])))
    groups["all"] = [error for some in groups.values() for error in some]
    how, text = (", by layout alone", []) if planner.is_plain else ("", ["", LAYOUTS_TEXT])
    out += [*text, "", f"| runs{how} | number | geometric mean of errors | arithmetic mean of sizes, largest |", "|---|---|---|---|"]
    for name, errors in groups.items():
        mean, largest = (100 * size for size in summary(errors))
        out.append(f"| {name} | {len(errors)} | {percent(sum(errors) / len(errors))} | {mean:.1f} %, {largest:.1f} % |")


def later_report(planner, out):
    """Add the runs that were predicted first."""
    for n, batch, seconds in MEGASCALE:
        found = planner.plan("dgx-a100-80g", planner.model_file((128, 12288, 96), 2048, 64000), [
            "--tp", "8", "--pp", "8", "--dp", str(n // 64), "--batch", str(batch), "--micro-batch", "1", "--seq", "2048",
            "--recompute", "selective", "--sequence-parallel", *schedule_of(6)])
        seconds_row(out, "dgx-a100-80g", f"175B, {n} devices, batch {batch}; Jiang et al. 2024", seconds,
                    found["all_ranks_step_seconds"])
    for (width, layers), options, seconds in NEMOTRON_REPORTS:
        found = planner.plan("dgx-h100", planner.nemotron_file(width, layers), [
            *options.split(), "--seq", "4096", "--zero", "1", "--recompute", "none", "--sequence-parallel"])
        seconds_row(out, "dgx-h100", f"{'15B' if width == 6144 else '340B'} {options.split(' --micro')[0]}; reports of "
                    "Nemotron-4", seconds, found["all_ranks_step_seconds"])
    for (heads, width, layers, pp, micro), rows in BUBBLES:
        for m, each, rate in rows:
            found = planner.plan("dgx-a100-80g", planner.model_file((heads, width, layers), 1024), [
                "--pp", str(pp), "--dp", "1", "--batch", str(m * micro), "--micro-batch", str(micro), "--seq", "1024",
                "--recompute", "none"])
            seconds_row(out, "dgx-a100-80g", f"width {width}, {layers} layers, pp {pp}, {m} microbatches; Qi et al. 2024",
                        m * each / (1 - rate), found["all_ranks_step_seconds"])


REPORTS = (others_report, dgxc_report, nemotron_report, megatron_report, titan_report, fms_report, deepspeed_report,
           mpt_report, later_report)
PROJECTS = ("Llama 3 (2024)", "Mixtral", "dgxc-benchmarking", "Megatron-LM", "torchtitan", "llm-foundry",
            "reports of Nemotron-4")
RATES = (0.92, 0.96, 1, 1.04, 1.08)  # times the H100's rate of products


def row_errors(out):
    """Return (cluster, run, error) of the rows of other software."""
    rows = [row for row in out if row.endswith(" % |") and "mean, largest" not in row]
    return [(row.split("|")[1].strip(), row.split("|")[2].strip(), float(row.split("|")[-2].strip(" %")) / 100)
            for row in rows]


def all_report(out, table, how):
    for cluster in ("dgx-a100-80g", "dgx-h100", "gb200-nvl72"):
        errors = [abs(error) for name, _, error in row_errors(table) if name == cluster]
        out.append(f"| {cluster} | all {len(errors)} runs{how}: mean, largest | | | {100 * sum(errors) / len(errors):.1f} %, "
                   f"{100 * max(errors):.1f} % |")


def rate_report(planner, out):
    """Add the mean error of each project on H100, and that under the rate of products that is best for all others."""
    errors = {}
    for rate in RATES:
        planner.h100_rate, table = rate, []
        for report in REPORTS:
            report(planner, table)
        for cluster, run, error in row_errors(table):
            if cluster == "dgx-h100":
                project = next(name for name in PROJECTS if name.lower() in run.lower())
                errors.setdefault(project, {}).setdefault(rate, []).append(abs(error))
    planner.h100_rate = 1

    def mean(rate, projects):
        some = [error for project in projects for error in errors[project][rate]]
        return sum(some) / len(some)
    out += ["", "| project on H100 | runs | mean error | with the project left out |", "|---|---|---|---|"]
    for project in PROJECTS:
        best = min(RATES, key=lambda rate, own=project: mean(rate, [name for name in PROJECTS if name != own]))
        out.append(f"| {project} | {len(errors[project][1])} | {100 * mean(1, [project]):.1f} % | "
                   f"{100 * mean(best, [project]):.1f} % |")
    out.append(f"| all | {sum(len(errors[name][1]) for name in PROJECTS)} | {100 * mean(1, PROJECTS):.1f} %; at the best "
               f"of five rates {100 * min(mean(rate, PROJECTS) for rate in RATES):.1f} % | |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lade", default="build/lade")
    parser.add_argument("--out")
    args = parser.parse_args()
    out = [f"# Clusters: {machine_name()}", "", "`bench/cluster.py`: step times of `lade plan --cluster` beside "
           "published ones. No time of this machine enters."]
    with tempfile.TemporaryDirectory(prefix="lade-cluster-") as directory:
        planner = Planner(args.lade, directory)
        is_good = fitted_report(planner, out)
        table = []
        for report in REPORTS:
            report(planner, table)
        out += TABLE_HEAD + table
        all_report(out, table, "")
        planner.is_plain, plain, layouts = True, [], []
        for report, rows in (*((report, plain) for report in REPORTS), (layouts_report, layouts)):
            report(planner, rows)
        planner.is_plain = False
        all_report(out, plain, " by their layouts alone")
        rate_report(planner, out)
        mpt_more_report(planner, out)
        layouts_report(planner, out)
        out += layouts
        trials_report(planner, out, [error for name, _, error in row_errors(table) if name == "dgx-a100-80g"])
    out.append(SOURCES)
    publish(out, args.out)
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
