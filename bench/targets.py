#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measure Lade's targets: budgets against the unconstrained run, in interleaved rounds.

Usage: bench/targets.py [--lade build/lade] [--data FILE] [--store DIR] [--rounds N] [--steps N] [--curves] [--only-streams]
       [--out FILE]

Every ratio is of medians over rounds; within a round each configuration runs once, so that a busy machine
disturbs all of them alike. Curves (--curves) train `nano` for 2000 steps in each dtype. The report is markdown.
"""
import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

from report import data_find, machine_name, publish

BABY = ["--model", "baby", "--lr", "1e-3", "--eval-iters", "1"]
CURVE = ["--model", "nano", "--batch", "12", "--steps", "2000", "--lr", "1e-3", "--min-lr", "1e-4", "--warmup", "100",
         "--beta1", "0.9", "--beta2", "0.99", "--dropout", "0", "--eval-every", "250"]


EMPTY = "an empty directory in --store"


def run(args, *options):
    """Run one training; return its summary, or None if it was refused."""
    with tempfile.TemporaryDirectory(prefix="lade-targets-", dir=args.store) as empty:  # so that durable state begins anew
        options = [empty if option == EMPTY else option for option in options]
        command = [args.lade, "train", "--json", "--data", args.data, *options]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        print(f"{' '.join(command)}: exit {done.returncode}: {done.stderr.strip().splitlines()[-1:]}", file=sys.stderr)
        return None
    return json.loads(done.stdout)


def configurations(args):
    """Return name, target ratio (None: none stated), name of the run it is compared with, options."""
    b16, b32, b64 = ["--batch", "16"], ["--batch", "32"], ["--batch", "64"]
    disk = ["--host-budget", "0", "--store", args.store]
    link = ["--link-rate", args.link]
    rows = [("host tier 100%", None, None, [*b16, "--budget", "100%"])]
    for budget, max_ratio in (("60%", None), ("40%", 1.20), ("25%", None), ("min", None)):
        rows.append((f"host tier {budget}", max_ratio, "host tier 100%", [*b16, "--budget", budget]))
    for budget, max_ratio in (("60%", None), ("40%", 1.5), ("25%", None), ("min", None)):
        rows.append((f"store only {budget}", max_ratio, "host tier 100%", [*b16, *disk, "--budget", budget]))
    rows.append(("batch 64, 100%", None, None, [*b64, "--budget", "100%"]))
    rows.append(("batch 64, recompute alone 40%", 1.35, "batch 64, 100%",
                 [*b64, "--budget", "40%", "--host-budget", "0"]))
    rows.append((f"throttled links 40%", 1.35, "host tier 100%", [*b16, *link, "--budget", "40%"]))
    rows.append(("batch 32, 100%", None, None, [*b32, "--budget", "100%"]))
    rows.append(("batch 32, optimizer state on the drive", 1.25, "batch 32, 100%",
                 [*b32, *disk, "--residency", args.optimizer_file, "--budget", "100%"]))
    rows.append(("batch 32, durable state", None, "batch 32, optimizer state on the drive",
                 [*b32, "--host-budget", "0", "--store", EMPTY, "--durable", "--budget", "100%"]))
    rows.append(("batch 32, store only 25%", 1.6, "batch 32, 100%", [*b32, *disk, "--budget", "25%"]))
    return rows


def budgets_measure(args, out):
    rows = configurations(args)
    results = {name: [] for name, *_ in rows}
    for number in range(args.rounds):
        for name, _, _, options in rows:
            summary = run(args, *BABY, "--steps", str(args.steps), *options)
            if summary:
                results[name].append(summary)
            print(f"round {number + 1}/{args.rounds}: {name}", file=sys.stderr)
    seconds = {name: statistics.median(s["measured_step_seconds"] for s in runs) for name, runs in results.items() if runs}
    out.append("| `baby`, BF16 | peak: planned = measured | of unconstrained | of the lower bound | step, ms | ratio | target "
               "| predicted / measured | loss digest |")
    out.append("|---|---|---|---|---|---|---|---|---|")
    for name, max_ratio, base, _ in rows:
        runs = results[name]
        if not runs:
            out.append(f"| {name} | refused | | | | | | | |")
            continue
        peaks = {(s["planned_peak_bytes"], s["measured_peak_bytes"]) for s in runs}
        is_kept = all(a == b for a, b in peaks)
        ratio = seconds[name] / seconds[base] if base else 1
        accuracy = statistics.median(s["predicted_step_seconds"] / s["measured_step_seconds"] for s in runs)
        whole = results[base or name][0]["planned_peak_bytes"]
        peak = max(a for a, _ in peaks)
        digests = {s["loss_digest"] for s in runs}
        bound = runs[0]["lower_bound_bytes"]
        out.append(f"| {name} | {peak / 1e6:.1f} MB {'yes' if is_kept else 'NO: ' + str(peaks)} | {100 * peak / whole:.1f} % "
                   f"| {peak / bound:.2f} | {1e3 * seconds[name]:.0f} | {ratio:.2f} | {max_ratio or ''} | {accuracy:.2f} | {' '.join(sorted(digests))} |")
    base = [s for s in results["host tier 100%"]]
    if base:
        best = max(s["speed_of_light"] for s in base)
        median = statistics.median(s["speed_of_light"] for s in base)
        scale = 100 if best <= 1.5 else 1
        out.append("")
        out.append(f"Speed of light, unconstrained: median {scale * median:.0f} %, best {scale * best:.0f} % (target 60 %).")


# Name, options, limit of bytes per parameter each way.
FORMS = [("exact", [], 10.1), ("BF16 moments", ["--moments", "bf16"], 6.1), ("8-bit moments", ["--moments", "8bit"], 4.1),
         ("8-bit moments, 24-bit master", ["--moments", "8bit", "--master", "24bit"], 3.1)]
STREAM_STEPS = 12  # minimum for a run that measures them


# Requests of the size that updates make, and of fio's target for the store: bytes each, number in flight.
REQUESTS = [("512k", 8), ("1m", 8), ("8m", 32)]


def duplex_measure(args, path, size, depth):
    """Return bytes per second that the drive reads and writes together, half each, by fio; None without fio."""
    command = ["fio", "--name=duplex", f"--filename={path}", "--size=1g", "--rw=rw", "--rwmixread=50", f"--bs={size}",
               f"--iodepth={depth}", "--ioengine=io_uring", "--direct=1", "--overwrite=1", "--iomem=malloc",
               "--iomem_align=2097152", "--output-format=json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          env=dict(os.environ, GLIBC_TUNABLES="glibc.malloc.hugetlb=1"))
    if done.returncode:
        print(f"fio: exit {done.returncode}: {done.stderr.strip().splitlines()[-1:]}", file=sys.stderr)
        return None
    job = json.loads(done.stdout)["jobs"][0]
    milliseconds = max(job["read"]["runtime"], job["write"]["runtime"], 1)
    return 1e3 * (job["read"]["io_bytes"] + job["write"]["io_bytes"]) / milliseconds


def drive_measure(args, path, requests, rounds=1):
    """Return medians of the drive's rates both ways at once, by requests; {} if fio failed."""
    rates = {request: [duplex_measure(args, path, *request) for _ in range(rounds)] for request in requests}
    if any(None in each for each in rates.values()):
        return {}
    return {request: statistics.median(each) for request, each in rates.items()}


def streams_measure(args, out):
    """Compare updates whose state streams from the drive with the drive's best time for their bytes.

    The drive's best request is found first, over as many rounds. Taking the best of each round would be too optimistic,
    because a drive's rate varies. Then this request is measured between any two runs. The rate for a run is the mean of
    the measurements before and after it, because it drifts: a virtual drive's may change by a third from one second to
    the next."""
    if not shutil.which("fio"):
        print("no fio: the drive's duplex bandwidth is not measured", file=sys.stderr)
        return
    results = {name: [] for name, *_ in FORMS}
    with tempfile.TemporaryDirectory(prefix="lade-targets-", dir=args.store) as directory:
        path = os.path.join(directory, "duplex")
        duplex_measure(args, path, *REQUESTS[0])  # the first write to the file is slower
        rates = drive_measure(args, path, REQUESTS, args.rounds)
        if not rates:
            return
        best = max(rates, key=rates.get)
        before = duplex_measure(args, path, *best)
        for number in range(args.rounds):
            for name, options, _ in FORMS:
                summary = run(args, "--model", "baby", "--layers", "24", "--batch", "1", "--seq", "16", "--eval-iters", "1",
                              "--steps", str(max(args.steps, STREAM_STEPS)), "--budget", "100%", "--host-budget", "0",
                              "--store", args.store, "--residency", args.optimizer_file, *options)
                after = duplex_measure(args, path, *best)
                if summary and before and after:
                    results[name].append((summary, (before + after) / 2))
                before = after
                print(f"round {number + 1}/{args.rounds}: state on the drive, {name}", file=sys.stderr)
    out += ["", "| `baby` of 24 layers, state on the drive, working copies in memory | read, bytes per parameter | written | at most "
            "| update, ms | the drive, GB/s | of the drive's duplex rate (target 0.90) | least and most of a round |",
            "|---|---|---|---|---|---|---|---|"]
    for name, _, max_bytes in FORMS:
        if not results[name]:
            out.append(f"| {name} | refused | | | | | | |")
            continue
        first = results[name][0][0]
        each = [first[f"store_{way}_bytes_per_step"] / first["parameters"] for way in ("read", "written")]
        moved = first["store_read_bytes_per_step"] + first["store_written_bytes_per_step"]
        times = [summary["measured_queue_seconds"]["io"] for summary, _ in results[name]]
        drive = [rate for _, rate in results[name]]
        ratios = [moved / time / rate for time, rate in zip(times, drive)]
        out.append(f"| {name} | {each[0]:.3f} | {each[1]:.3f} | {max_bytes} | {1e3 * statistics.median(times):.0f} "
                   f"| {statistics.median(drive) / 1e9:.2f} | {statistics.median(ratios):.2f} | {min(ratios):.2f} to {max(ratios):.2f} |")
    medians = [f"{depth} of {size} {rate / 1e9:.2f}" for (size, depth), rate in rates.items()]
    out += ["", "The drive, by fio, reading and writing at once, GB/s together: " + ", ".join(medians) +
            f". Ratios are to {best[1]} of {best[0]} before and behind each run."]


def curves_measure(args, out):
    out.append("")
    out.append("| `nano`, 2000 steps | 0 | 250 | 500 | 750 | 1000 | 1250 | 1500 | 1750 | 2000 | target |")
    out.append("|---|---|---|---|---|---|---|---|---|---|---|")
    for dtype in ("bf16", "fp32", "fp16"):
        with tempfile.NamedTemporaryFile(suffix=".jsonl") as log:
            if run(args, *CURVE, "--dtype", dtype, "--log", log.name):
                events = [json.loads(line) for line in open(log.name)]
                losses = [e["val_loss"] for e in events if e["event"] == "eval"]
                out.append(f"| {dtype}, validation loss | " + " | ".join(f"{x:.4f}" for x in losses) + " | 1.90 |")


def plans_measure(args, out):
    out.append("")
    for title, options in (("`lade plan --model gpt-1t`", ["plan", "--model", "gpt-1t", "--batch", "1", "--json"]),
                          ("one dry step of gpt3-175b with NVMe",
                           ["train", "--model", "gpt3-175b", "--device", "dry", "--batch", "1", "--steps", "1", "--budget",
                            "80GB", "--store", args.store, "--store-budget", "4TB", "--machine", "h100-80g", "--json"])):
        times = []
        for _ in range(3):
            start = time.monotonic()
            done = subprocess.run([args.lade, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            times.append(time.monotonic() - start)
        out.append(f"* {title}: {statistics.median(times):.2f} s, exit {done.returncode}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lade", default="build/lade")
    parser.add_argument("--data", help="any text of a megabyte or so [tinyshakespeare.txt of LADE_SHARED]")
    parser.add_argument("--store", default=".")
    # A100 over PCIe 4: 25 GB/s with products at 250 TFLOP/s, 1e-4 bytes per flop. The machines in
    # bench/results/ attain 0.35 to 0.7 TFLOP/s, which corresponds to 35 to 70 MB/s.
    parser.add_argument("--link", default="50MB", help="rate of the throttled copy queues")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--curves", action="store_true")
    parser.add_argument("--only-streams", action="store_true", help="nothing but updates from the drive")
    parser.add_argument("--out")
    args = parser.parse_args()
    args.data = data_find(args.data, "tinyshakespeare.txt")
    with tempfile.NamedTemporaryFile("w", suffix=".residency", delete=False) as file:
        file.write("optimizer * store\n")
    args.optimizer_file = file.name
    conditions = f"of {args.steps} steps; links of the throttled run: {args.link}/s each way"
    out = [f"# {machine_name()}", "", f"{args.rounds} interleaved rounds{'' if args.only_streams else ' ' + conditions}.", ""]
    if not args.only_streams:
        budgets_measure(args, out)
    streams_measure(args, out)
    if args.curves:
        curves_measure(args, out)
    if not args.only_streams:
        plans_measure(args, out)
    os.unlink(args.optimizer_file)
    publish(out, args.out)


if __name__ == "__main__":
    main()
