#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measure the start of a build for GPUs on a machine without a driver: `lade doctor` of it and of a CPU build, in turns.

Usage: bench/startup.py [--lade build/lade] --without OTHER/lade [--rounds N] [--out FILE]

OTHER is a build with -Dcuda=disabled. Each process is timed from its start to its end; medians, and the median of the
differences within a round. The report is markdown.
"""
import argparse
import statistics
import subprocess
import time

from report import machine_name, publish

MAX_MS = 20  # limit of the extra time of the build for GPUs


def milliseconds(lade):
    start = time.monotonic()
    subprocess.run([lade, "doctor"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    return 1e3 * (time.monotonic() - start)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lade", default="build/lade")
    parser.add_argument("--without", required=True, help="the command of a build with -Dcuda=disabled")
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--out", help="also write the report here")
    args = parser.parse_args()
    lines = ["# Start-up of a build for GPUs, without a driver (`bench/startup.py`)", "", machine_name(), ""]
    milliseconds(args.lade), milliseconds(args.without)  # into the page cache
    pairs = [(milliseconds(args.lade), milliseconds(args.without)) for _ in range(args.rounds)]
    with_cuda, without = (statistics.median(side) for side in zip(*pairs))
    more = statistics.median(a - b for a, b in pairs)
    lines += ["| `lade doctor` | with CUDA, ms | without, ms | more, ms | target | met |", "|---|---|---|---|---|---|",
              f"| median of {args.rounds} rounds | {with_cuda:.1f} | {without:.1f} | {more:.1f} | {MAX_MS} | "
              f"{'yes' if more <= MAX_MS else 'NO'} |"]
    publish(lines, args.out)


if __name__ == "__main__":
    main()
