#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Improve a plan of recomputation, or bound it, by constraint programming with CP-SAT (`pip install ortools`).

Usage: bench/graphs/cpsat.py GRAPH.json --budget P% [--plan OUT.json] [--seconds N] [--more N] [--bound] [--instructions OUT]

The program is Moccasin's (Bartan et al. 2023, arXiv 2304.14463). Stage t ends with the first run of op t, and runs any
ops before t again, in their order. Each op has a number of optional runs: those of --plan, and --more others. A storage
has one retention interval for each run of its op: from that run to its last read. Each read chooses one interval of each
storage. The sum of the bytes of all intervals, and the scratch of the run, is within the budget at each run.

With --plan the search begins from the plan of `lade plan --instructions`, and improves it by large neighbourhoods. With
--bound it proves a bound instead. One thread. Prints one line of JSON; a plan that is found is replayed by replay.py.
"""
import argparse
import json
import math
import sys

from ortools.sat.python import cp_model

import replay


class Program:
    """Runs, retention intervals and reads of one graph within a budget."""

    def __init__(self, graph, budget, hint, more):
        self.graph, self.model, n = graph, cp_model.CpModel(), len(graph.ops)
        self.reads = [[s for s, _ in reads if not graph.given[s]] for reads, _ in graph.runs]
        self.writes = [[s for s, _ in writes] for _, writes in graph.runs]
        if any(graph.given[s] for writes in self.writes for s in writes) or max(graph.versions) > 1:
            sys.exit("a storage is updated or written twice: expected a graph whose ops each make new storages")
        self.maker = {s: op for op, writes in enumerate(self.writes) for s in writes}
        self.width, self.hint = n + 1, hint
        fixed = sum(size for size, is_given in zip(graph.bytes, graph.given) if is_given)
        self.unit = math.gcd(*(size for size in graph.bytes if size), *(op.get("scratch_bytes", 0) for op in graph.ops))
        self.capacity = (budget - fixed) // self.unit
        self.runs = [self.runs_make(op, more) for op in range(n)]
        self.intervals, self.demands = [], []
        self.ends = {s: [self.retention_make(s, c) for c in range(len(self.runs[op]))] for s, op in self.maker.items()}
        for op, runs in enumerate(self.runs):
            for c, run in enumerate(runs):
                self.scratch_make(op, c, run)
                for s in set(self.reads[op]):
                    self.read_make(op, c, run, s)
        self.model.add_cumulative(self.intervals, self.demands, self.capacity)
        self.model.minimize(sum(graph.ops[op]["ns"] * run[0] for op, runs in enumerate(self.runs) for run in runs[1:]))

    def runs_make(self, op, more):
        """Return [(is present, stage)] of an op, the first run and then the others, in order of stages."""
        model, n, stages = self.model, len(self.graph.ops), self.hint.get(op, [])
        runs = [(1, op)]
        last = op
        for c in range(len(stages) + more if self.graph.ops[op].get("repeatable", True) and op + 1 < n else 0):
            present, stage = model.new_bool_var(""), model.new_int_var(op + 1, n - 1, "")
            if c < len(stages):
                last = stages[c]
            model.add_hint(present, c < len(stages))
            model.add_hint(stage, max(last, op + 1))
            if c:
                model.add_implication(present, runs[-1][0])
                model.add(stage > runs[-1][1]).only_enforce_if(present)
            runs.append((present, stage))
        return runs

    def at(self, op, run):
        return run[1] * self.width + op

    def retention_make(self, storage, c):
        """Return the end of the interval that begins with run @c of the storage's op."""
        op, model = self.maker[storage], self.model
        present, stage = self.runs[op][c]
        end = model.new_int_var(op * self.width + op, len(self.graph.ops) * self.width, "")
        size = model.new_int_var(0, len(self.graph.ops) * self.width, "")
        start = self.at(op, (present, stage))
        if c == 0 and storage in self.graph.kept:
            model.add(end == len(self.graph.ops) * self.width)
        self.intervals.append(model.new_optional_interval_var(start, size, end + 1, present, ""))
        self.demands.append(self.graph.bytes[storage] // self.unit)
        if c + 1 < len(self.runs[op]):
            later = self.runs[op][c + 1]
            if storage not in self.graph.kept:
                model.add(end < self.at(op, later)).only_enforce_if(later[0])
        return end

    def scratch_make(self, op, c, run):
        scratch = self.graph.ops[op].get("scratch_bytes", 0)
        if scratch:
            at = self.at(op, run)
            self.intervals.append(self.model.new_optional_interval_var(at, 1, at + 1, run[0], ""))
            self.demands.append(scratch // self.unit)

    def read_make(self, op, c, run, storage):
        """Let a run read one of the intervals of a storage."""
        model, maker = self.model, self.maker[storage]
        picks = []
        for k, source in enumerate(self.runs[maker]):
            pick = model.new_bool_var("")
            if k:
                model.add_implication(pick, source[0])
                model.add(source[1] <= run[1]).only_enforce_if(pick)
            model.add(self.at(op, run) <= self.ends[storage][k]).only_enforce_if(pick)
            picks.append(pick)
        model.add(sum(picks) == run[0])

    def solve(self, seconds, is_bound, is_log):
        solver = cp_model.CpSolver()
        solver.parameters.num_workers = 1
        solver.parameters.max_time_in_seconds = seconds
        solver.parameters.log_search_progress = is_log
        solver.parameters.interleave_search = not is_bound
        status = solver.solve(self.model)
        if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            return solver.status_name(status), None, solver.best_objective_bound
        runs = [(solver.value(stage), op, c) for op, runs in enumerate(self.runs)
                for c, (present, stage) in enumerate(runs) if solver.value(present)]
        return solver.status_name(status), sorted(runs), solver.best_objective_bound


def hint_read(path):
    """Return for each op the stages in which a plan runs it again."""
    stages, waiting = {}, []
    with open(path, encoding="utf-8") as file:
        instructions = json.load(file)["instructions"]
    for verb, index, *_ in instructions:
        if verb == "redo":
            waiting.append(index)
        elif verb == "op":
            for op in waiting:
                stages.setdefault(op, []).append(index)
            waiting = []
    return stages


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("graph")
    parser.add_argument("--budget", required=True, help="of the unconstrained peak: P%%")
    parser.add_argument("--plan")
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--more", type=int, default=1)
    parser.add_argument("--bound", action="store_true")
    parser.add_argument("--log", action="store_true")
    parser.add_argument("--instructions")
    args = parser.parse_args()
    graph = replay.Graph(args.graph)
    base = replay.replay(graph, graph.unconstrained())
    budget = replay.bytes_parse(args.budget, base["peak_bytes"])
    program = Program(graph, budget, hint_read(args.plan) if args.plan else {}, args.more)
    status, runs, bound = program.solve(args.seconds, args.bound, args.log)
    record = {"status": status, "base_ns": base["compute_ns"], "bound_ns": base["compute_ns"] + int(bound)}
    if args.plan:
        with open(args.plan, encoding="utf-8") as file:
            record["plan_ns"] = replay.replay(graph, json.load(file)["instructions"])["compute_ns"]
    if runs:
        lines = graph.instructions([(op, c > 0) for _, op, c in runs])
        totals = replay.replay(graph, lines)
        if totals["peak_bytes"] > budget:
            sys.exit(f"{args.graph}: a solution of {args.budget} takes {totals['peak_bytes']} bytes of {budget}")
        record["compute_ns"] = totals["compute_ns"]
        record["overhead_percent"] = round(100 * (totals["compute_ns"] / base["compute_ns"] - 1), 3)
        if args.instructions:
            with open(args.instructions, "w", encoding="utf-8") as file:
                json.dump({"instructions": lines}, file)
    print(json.dumps(record))


if __name__ == "__main__":
    main()
