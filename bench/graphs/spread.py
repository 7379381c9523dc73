#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Plan the graphs of variants.py with several seeds, replay every plan, and print how far the seeds differ.

Usage: bench/graphs/spread.py DIR -o FILE.jsonl [--lade build/lade] [--seeds 1,2] [--third P] [--only TEXT] [--table]
                              [--iterations N] [--keep DIR]

DIR has `pairs.json`. Each pair is planned with the default options by recompute alone. A third seed is run where the
first two differ by more than --third percent of the unconstrained step. A budget that is refused is replaced by the
smallest one that was found, rounded up to the next half percent and one more; `raised` names that. Each pair is one line
of FILE.jsonl, and pairs that are there already are skipped, so the program can be stopped and run again. --iterations
plans with so many iterations instead of the default. --table prints the lines of the file, and plans nothing. All plans
are replayed by replay.py; an invalid one ends the program.

Columns: graph, ops, budget and the smallest one found (percent of the unconstrained peak), overheads by seed, their spread
and the planner's bound (percent of the unconstrained step), most CPU seconds of a plan, and the description.
"""
import argparse
import json
import math
import os
import resource
import subprocess
import sys
import tempfile

import replay
import run

HERE = os.path.dirname(os.path.abspath(__file__))


def plan(args, path, budget, seed, out):
    """Return (lade's JSON or None if it refuses the budget, the smallest budget, CPU seconds)."""
    command = [args.lade, "plan", "--graph", path, "--budget", str(budget), "--host-budget", "0", "--seed", str(seed),
               "--json", "--instructions", out]
    command += ["--iterations", str(args.iterations)] if args.iterations else []
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=900)
    seconds = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
    if result.returncode not in (0, 3):
        raise run.Fault(f"exit {result.returncode}: {(result.stderr or result.stdout).strip()[-300:]}")
    text = json.loads(result.stdout)
    return (text if result.returncode == 0 else None), run.find(text, "min_budget_bytes"), seconds


def seed_plan(args, record, path, graph, budget, seed):
    """Plan with @seed, and note the result in @record; return the smallest budget if the budget is refused."""
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(args.keep or folder, f"{os.path.basename(path)[:-5]}-{seed}.out.json")
        text, least, seconds = plan(args, path, budget, seed, out)
        record["least_bytes"] = min(record.get("least_bytes", least), least)
        if text is None:
            return least
        totals = run.check(graph, budget, text, out)
    record["compute_ns"][str(seed)] = totals["compute_ns"]
    record["seconds"][str(seed)] = round(seconds, 1)
    record["bound_ns"] = max(record.get("bound_ns", 0), run.find(text, "bound_ns"))
    record["n_redone"] = totals["n_redone"]
    return None


def spread(record):
    """Return the difference between the most and the least of the seeds, in percent of the unconstrained step."""
    times = record["compute_ns"].values()
    return 100 * (max(times) - min(times)) / record["base_ns"]


def pair_plan(args, pair):
    path = os.path.join(args.folder, pair["graph"])
    graph = replay.Graph(path)
    base = replay.replay(graph, graph.unconstrained())
    record = {"graph": pair["graph"], "budget_percent": pair["budget_percent"], "about": pair["about"],
              "n_ops": len(graph.ops), "peak_bytes": base["peak_bytes"],
              "base_ns": base["compute_ns"], "iterations": args.iterations, "compute_ns": {}, "seconds": {}}
    seeds = args.seeds.split(",")
    while True:
        budget = int(record["budget_percent"] * base["peak_bytes"] / 100)
        least = seed_plan(args, record, path, graph, budget, seeds[0])
        if least is None:
            break
        raised = math.ceil(200 * least / base["peak_bytes"]) / 2 + 1
        if raised <= record["budget_percent"] or raised > 100:
            return {**record, "refused": least}
        record.update(budget_percent=raised, raised=True)
    for seed in seeds[1:]:
        if seed_plan(args, record, path, graph, budget, seed) is not None:
            record["refused_seed"] = seed
    if spread(record) > args.third and len(seeds) == 2:
        seed_plan(args, record, path, graph, budget, 3)
    return record


def table_row(record):
    def percent(ns):
        return f"{100 * (ns / record['base_ns'] - 1):.3f}"
    times = record["compute_ns"]
    if not times:
        return f"| {record['graph'][:-5]} | {record['n_ops']} | {record['budget_percent']:g} | refused |"
    least = f"{100 * record['least_bytes'] / record['peak_bytes']:.1f}" if "peak_bytes" in record else ""
    cells = [record["graph"][:-5], str(record["n_ops"]), f"{record['budget_percent']:g}", least,
             ", ".join(percent(ns) for ns in times.values()), f"{spread(record):.3f}", percent(record["bound_ns"]),
             str(max(record["seconds"].values())), record["about"]]
    return "| " + " | ".join(cells) + " |"


def arguments_parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("-o", "--out", required=True)
    parser.add_argument("--lade", default=os.path.join(HERE, "..", "..", "build", "lade"))
    parser.add_argument("--seeds", default="1,2")
    parser.add_argument("--third", type=float, default=0.05)
    parser.add_argument("--iterations", type=int)
    parser.add_argument("--only", default="", help="graphs whose name has this text")
    parser.add_argument("--keep", help="a folder for the lists")
    parser.add_argument("--table", action="store_true")
    return parser.parse_args()


def main():
    args, records = arguments_parse(), []
    if os.path.exists(args.out):
        with open(args.out, encoding="utf-8") as file:
            records = [json.loads(line) for line in file]
    if args.table:
        print("\n".join(table_row(record) for record in records))
        return
    with open(os.path.join(args.folder, "pairs.json"), encoding="utf-8") as file:
        pairs = json.load(file)
    done = {record["graph"] for record in records}
    for pair in pairs:
        if pair["graph"] in done or args.only not in pair["graph"]:
            continue
        try:
            record = pair_plan(args, pair)
        except (run.Fault, replay.Violation) as fault:
            sys.exit(f"{pair['graph']} at {pair['budget_percent']} %: {fault}")
        with open(args.out, "a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
        print(table_row(record), flush=True)


if __name__ == "__main__":
    main()
