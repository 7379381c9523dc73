#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Predicted step times beside those of one model on 8 to 1,024 devices: InternLM 7B.

Usage: bench/cluster_scaling.py [--lade build/lade] [--out FILE]

No constant was fitted to these runs, but they led to the price of sums over the replicas of a shard group. They show what a step pays for more replicas. Options say how the software ran
(HOW in bench/cluster.py); the last lines are the same runs by their layouts alone.
"""
import argparse
import math
import sys
import tempfile

from cluster import Planner, percent, summary
from report import machine_name, publish

# Doc train_performance.md of InternLM: A100 of 80 GB, nodes with four RoCE ports of 100 Gb/s, sequences of 2,048,
# FlashAttention, apex's kernels, BF16. Tokens a second of a device, by devices: 8, 16, ... 1,024.
PORT_BYTES_PER_S = 6.25e9  # of a device: half a port
VOCABULARY = 103168
# tp, shard group (0: all replicas), microbatch, microbatches.
KEPT = [((1, 0, 2, 4), (4062, 3842, 3752, 3690, 3571, 3209, 2861, 2271)),
        ((1, 8, 2, 4), (4078, 3939, 3919, 3944, 3928, 3920, 3835, 3625)),
        ((2, 0, 4, 4), (3822, 3595, 3475, 3438, 3308, 3094, 2992, 2785)),
        ((2, 4, 4, 4), (3761, 3658, 3655, 3650, 3651, 3653, 3589, 3486))]
RERUN = [((1, 8, 8, 1), (3314, 3268, 3323, 3217, 3260, 3215, 3199, 3163))]
# The rest: recompute, devices, microbatch, microbatches, tokens a second of a device; tp 1, shards of 8.
SMALL = [("full", 512, 4, 1, 2963), ("full", 1024, 2, 1, 2341), ("full", 1024, 4, 1, 2796), ("none", 512, 2, 2, 3084),
         ("none", 1024, 2, 1, 2346), ("none", 1024, 2, 2, 2817)]


TEXT = ["Not priced: states over all of very many replicas, whose time grows with their number; the reason is not published.",
        "Megatron-LM's does not grow so (cluster-a100.md: 256 to 12,288 devices)."]


def runs():
    """Yield (group, recompute, devices, tp, shard group, microbatch, microbatches, tokens a second of a device)."""
    for recompute, table in (("none", KEPT), ("full", RERUN)):
        for (tp, shard, micro, n_micro), rates in table:
            group = f"tp {tp}, states over {shard or 'all'}, recompute {recompute}"
            for i, rate in enumerate(rates):
                yield group, recompute, 8 << i, tp, shard, micro, n_micro, rate
    for recompute, n, micro, n_micro, rate in SMALL:
        yield f"fewer tokens a step, recompute {recompute}", recompute, n, 1, 8, micro, n_micro, rate


def report(planner, out, has_rows):
    groups = {}
    model = planner.llama_file("7b", 2048, VOCABULARY)
    for group, recompute, n, tp, shard, micro, n_micro, rate in runs():
        dp = n // tp
        found = planner.plan(planner.with_ports(PORT_BYTES_PER_S), model, [
            "--tp", str(tp), "--dp", str(dp), "--batch", str(dp * micro * n_micro), "--micro-batch", str(micro), "--seq",
            "2048", "--zero", "1", *["--shard", str(shard)] * (0 < shard < dp), "--recompute", recompute, "--grad-reduce",
            "bf16", "--eager", "--fused-norms"])
        seconds, predicted = micro * n_micro * 2048 / tp / rate, found["all_ranks_step_seconds"]
        error = math.log(predicted / seconds)
        groups.setdefault(group, []).append(error)
        if has_rows:
            out.append(f"| {group} | {n} | {micro} x {n_micro} | {seconds:.2f} s | {predicted:.2f} s | {percent(error)} |")
    groups["all"] = [error for errors in groups.values() for error in errors]
    how = "by layout alone" if planner.is_plain else "as they ran"
    out += ["", f"| {how} | runs | geometric mean of the ratios, less 1 | arithmetic mean of sizes, largest |", "|---|---|---|---|"]
    for group, errors in groups.items():
        mean, largest = (100 * size for size in summary(errors))
        out.append(f"| {group} | {len(errors)} | {percent(sum(errors) / len(errors))} | {mean:.1f} %, {largest:.1f} % |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lade", default="build/lade")
    parser.add_argument("--out")
    args = parser.parse_args()
    out = [f"# InternLM 7B on 8 to 1,024 A100: {machine_name()}", "", "`bench/cluster_scaling.py`: step times of `lade plan "
           "--cluster` beside published ones. No time of this machine enters.", "", "| layout | devices | microbatch x number "
           "| published | predicted | error of the time |", "|---|---|---|---|---|---|"]
    with tempfile.TemporaryDirectory(prefix="lade-scaling-") as directory:
        planner = Planner(args.lade, directory)
        for planner.is_plain in (False, True):
            report(planner, out, not planner.is_plain)
    out += ["", *TEXT, "", "Source: InternLM/InternLM, doc/en/train_performance.md."]
    publish(out, args.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
