#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Plan graphs inside budgets with `lade plan --graph`, replay every plan, and print a table.

Usage: bench/graphs/run.py DIR... [--lade build/lade] [--budgets 35,40,...] [--seconds N] [--host-budget BYTES --machine M]
                           [--monet] [--reference reference.json] [--out FILE.md] [--keep DIR]

DIR has graphs as nets.py and published.py write them; a file is one graph. Budgets are shares of the unconstrained
peak that replay.py finds, in percent. --monet plans at the budgets of MONeT's published results instead, and
prints their overheads in the last column. `fits` is "no" if lade refuses the budget (exit 3), and "below floor" if no
list can fit. Overhead is compute over the unconstrained step's, bound gap over the planner's own bound. Reference gap
is over the best list of milp.py (reference.json), with a star where that list is proved optimal; it is below zero where
the planner runs an op twice between two first runs, which the integer program excludes. Exit 1 if a replay finds a
violation, a peak over the budget, or other numbers than lade states.
"""
import argparse
import glob
import json
import os
import subprocess
import sys
import tempfile
import time

import published
import replay

HERE = os.path.dirname(os.path.abspath(__file__))
HEADER = ("| graph | ops | budget, % | fits | overhead, % | bound gap, % | reference gap, % | published, % | redone | s |"
          "\n|---|---|---|---|---|---|---|---|---|---|")


class Fault(Exception):
    """An invalid plan."""


def percent(part, whole):
    return f"{100 * (part / whole - 1):.3f}" if part is not None and whole else ""


def plan(args, path, budget, out):
    """Return (lade's JSON, or None if it refuses the budget, seconds)."""
    command = [args.lade, "plan", "--graph", path, "--budget", str(budget), "--host-budget", args.host_budget,
               "--seconds", str(args.seconds), "--json", "--instructions", out]
    command += ["--machine", args.machine] if args.machine else []
    start = time.monotonic()
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    seconds = time.monotonic() - start
    if result.returncode == 3:
        return None, seconds
    if result.returncode:
        raise Fault(f"exit {result.returncode}: {(result.stderr or result.stdout).strip()[-300:]}")
    return json.loads(result.stdout), seconds


def find(text, key):
    """Return the value of @key anywhere in the JSON @text, or None."""
    if isinstance(text, dict):
        if key in text:
            return text[key]
        text = list(text.values())
    if isinstance(text, list):
        for part in text:
            value = find(part, key)
            if value is not None:
                return value
    return None


def check(graph, budget, text, out):
    """Replay the list of @out; return its totals."""
    with open(out, encoding="utf-8") as file:
        totals = replay.replay(graph, json.load(file)["instructions"])
    if totals["peak_bytes"] > budget:
        raise Fault(f"the peak is {totals['peak_bytes']} bytes, over the budget of {budget}")
    stated = {"planned_peak_bytes": "peak_bytes", "compute_ns": "compute_ns", "n_redone": "n_redone"}
    for key, counted in stated.items():
        value = find(text, key)
        if value is not None and value != totals[counted]:
            raise Fault(f"{key} is stated as {value}: the replay counts {totals[counted]}")
    return totals


def reference_cell(references, name, share, compute_ns):
    for record in references.get(name, ()):
        if abs(record["budget_percent"] - share) < 1e-9 and "compute_ns" in record:
            return percent(compute_ns, record["compute_ns"]) + ("*" if record["status"] == "optimal" else "")
    return ""


def row(args, references, path, graph, base, share, note):
    """Return the cells of one plan."""
    name = os.path.splitext(os.path.basename(path))[0]
    budget = int(share * base["peak_bytes"] / 100)
    cells = [name, str(len(graph.ops)), f"{share:g}"]
    if args.host_budget == "0" and budget < graph.floor():
        return [*cells, "below floor"] + [""] * 3 + [note] + [""] * 2
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(args.keep or folder, f"{name}-{share:g}.out.json")
        text, seconds = plan(args, path, budget, out)
        if text is None:
            return [*cells, "no"] + [""] * 3 + [note, "", f"{seconds:.1f}"]
        totals = check(graph, budget, text, out)
    compute_ns = totals["compute_ns"]
    return [*cells, "yes", percent(compute_ns, base["compute_ns"]), percent(compute_ns, find(text, "bound_ns")),
            reference_cell(references, name, share, compute_ns), note, str(totals["n_redone"]), f"{seconds:.1f}"]


def graph_paths(places):
    for place in places:
        yield from sorted(glob.glob(os.path.join(place, "*.json")), key=os.path.getsize) if os.path.isdir(place) \
            else [place]


def shares(args, path):
    """Yield (share of the unconstrained peak in percent, published overhead)."""
    if not args.monet:
        yield from ((float(text), "") for text in args.budgets.split(","))
        return
    name = os.path.splitext(os.path.basename(path))[0]
    for (net, _), (whole, points) in published.MONET.items():
        if net == name:
            yield from ((round(100 * budget / whole, 1), f"{overhead:.2f}") for budget, overhead in points)


def arguments_parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("graphs", nargs="+")
    parser.add_argument("--lade", default=os.path.join(HERE, "..", "..", "build", "lade"))
    parser.add_argument("--budgets", default="90,80,70,60,50,40,35")
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--host-budget", default="0")
    parser.add_argument("--machine", help="whose links move storages; --host-budget needs it")
    parser.add_argument("--monet", action="store_true")
    parser.add_argument("--reference", default=os.path.join(HERE, "reference.json"))
    parser.add_argument("--out")
    parser.add_argument("--keep", help="a folder for the lists")
    return parser.parse_args()


def main():
    args = arguments_parse()
    references = {}
    if os.path.exists(args.reference):
        with open(args.reference, encoding="utf-8") as file:
            references = json.load(file)
    if args.keep:
        os.makedirs(args.keep, exist_ok=True)
    lines, n_faults = [HEADER], 0
    print(HEADER, flush=True)
    for path in graph_paths(args.graphs):
        graph = replay.Graph(path)
        base = replay.replay(graph, graph.unconstrained())
        for share, note in shares(args, path):
            try:
                lines.append("| " + " | ".join(row(args, references, path, graph, base, share, note)) + " |")
            except (Fault, replay.Violation, ValueError, OSError) as fault:
                lines.append(f"| {os.path.basename(path)} | {len(graph.ops)} | {share:g} | WRONG: {fault} |")
                n_faults += 1
            print(lines[-1], flush=True)
    if args.out:
        with open(args.out, "w", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n")
    sys.exit(1 if n_faults else 0)


if __name__ == "__main__":
    main()
