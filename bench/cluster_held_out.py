#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Predicted step times beside published ones that led to no price and to no constant.

Usage: bench/cluster_held_out.py [--lade build/lade] [--out FILE]

The end of the page says which parts of their layouts the sources do not state.
"""
import argparse
import json
import math
import os
import sys
import tempfile

from cluster import MEMORY_SHARE, Planner, percent, summary
from report import machine_name, publish

# NeMo Framework 23.07: tokens a second of all devices, by nodes of eight.
GPT_5B = [(1, 40345), (2, 79815), (4, 161754), (8, 312774), (16, 659481), (32, 1159288)]
GPT_175B = [(8, 7500), (16, 14950), (32, 29537), (64, 58211), (128, 109684)]
TINY = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 2048, "intermediate_size": 5632,
        "num_hidden_layers": 22, "num_attention_heads": 32, "num_key_value_heads": 4, "max_position_embeddings": 2048,
        "vocab_size": 32000, "rms_norm_eps": 1e-5, "tie_word_embeddings": False}
A100_40G = {"preset": "dgx-a100-80g", "usable_device_bytes": "38GiB",
            "device": {"device_bytes": "40GiB", "device_bytes_per_s": MEMORY_SHARE * 1555e9}}

SOURCES = """
NeMo: NVIDIA/NeMo-Framework-Launcher, README.md, section 7.1.2 (DGX SuperPOD of A100 of 80 GB). It states no layouts. Those of
5B are of launcher_scripts/conf/training/gpt3/5b.yaml. Of 175B, the fewest devices are 64: eight tensor parallel ranks and eight
stages. At 117 tokens a second of a device it recomputes all, as in 2022: with selective recompute Korthikanti et al. 2022 print
149. TinyLlama: jzhang38/TinyLlama, README.md (FSDP on 16 A100 of 40 GB, 24,000 tokens a second of a device) and pretrain/
tinyllama.py (1,024 sequences, eight a microbatch). It names fused layer norms, those of the FlashAttention repository: as one
kernel (--fused-norms) they make the step 25 % shorter than as PyTorch's ops, and the prediction was this much too slow without.
Other tables have no step in BF16, or no layout: NeMo and Megatron-Bridge print FP8 on H100 since 2024."""


def rows_of(planner):
    """Yield (run, published and predicted tokens a second)."""
    for nodes, tokens in GPT_5B:
        found = planner.plan("dgx-a100-80g", planner.model_file((32, 4096, 24)), [
            "--dp", str(8 * nodes), "--batch", "2048", "--micro-batch", "4", "--seq", "2048", "--zero", "1", "--recompute",
            "none", "--software", "megatron"])
        yield f"GPT 5B, dp {8 * nodes}, micro-batch 4, zero 1, recompute none; NeMo 23.07", tokens, found["tokens_per_second"]
    for nodes, tokens in GPT_175B:
        found = planner.plan("dgx-a100-80g", planner.model_file((96, 12288, 96)), [
            "--tp", "8", "--pp", "8", "--dp", str(nodes // 8), "--batch", "1536", "--micro-batch", "1", "--seq", "2048",
            "--zero", "0", "--recompute", "full"])
        yield f"GPT 175B, tp 8 pp 8 dp {nodes // 8}, recompute full; NeMo 23.07", tokens, found["tokens_per_second"]
    path = os.path.join(planner.directory, "tiny.json")
    with open(path, "w", encoding="ascii") as file:
        json.dump(TINY, file)
    for how in ([], ["--fused-norms"]):
        found = planner.plan(planner.cluster_file(A100_40G), path, [
            "--dp", "16", "--batch", "1024", "--micro-batch", "8", "--seq", "2048", "--zero", "3", "--recompute", "none", *how])
        yield f"TinyLlama 1.1B on 40 GB, dp 16, micro-batch 8, zero 3{' --fused-norms' * bool(how)}", 16 * 24000, found["tokens_per_second"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lade", default="build/lade")
    parser.add_argument("--out")
    args = parser.parse_args()
    out = [f"# Held-out steps on A100: {machine_name()}", "", "`bench/cluster_held_out.py`: step times of `lade plan "
           "--cluster` beside published ones. No time of this machine enters.", "",
           "| run | published, tokens/s | predicted, tokens/s | error of the time |", "|---|---|---|---|"]
    errors = []
    with tempfile.TemporaryDirectory(prefix="lade-cluster-") as directory:
        for run, published, predicted in rows_of(Planner(args.lade, directory)):
            errors.append(math.log(published / predicted))
            out.append(f"| {run} | {published} | {predicted:.0f} | {percent(errors[-1])} |")
    del errors[-2]  # TinyLlama counts with its own norms
    mean, largest = summary(errors)
    out += [f"| all {len(errors)} runs, TinyLlama with its norms: mean, largest | | | {100 * mean:.1f} %, {100 * largest:.1f} % |",
            SOURCES]
    publish(out, args.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
