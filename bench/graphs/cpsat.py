#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Improve a plan of recomputation, or bound it, by constraint programming with CP-SAT (`pip install ortools`).

Usage: bench/graphs/cpsat.py GRAPH.json --budget P% [--plan OUT.json] [--seconds N] [--more N] [--bound] [--instructions OUT]
       bench/graphs/cpsat.py GRAPH.json --budget P% --plan OUT.json --windows N [--kind turns|ops|both] [--window-seconds N]

The program is Moccasin's (Bartan et al. 2023, arXiv 2304.14463). Stage t ends with the first run of op t, and runs any
ops before t again, in their order; a last stage has no first run. Each op has a number of optional runs: those of --plan,
and --more others. A storage has one retention interval for each run of its op: from that run to its last read. Each read
chooses one interval of each storage, and so does the end of the step for a result. The sum of the bytes of all intervals,
and the scratch of the run, is within the budget at each run.

With --plan the search begins from the plan of `lade plan --instructions`, and improves it by large neighbourhoods. With
--bound it proves a bound instead. One thread. Prints one line of JSON; a plan that is found is replayed by replay.py.

--windows asks whether a plan is locally optimal. A window frees all runs of N neighbouring stages (turns), or all runs of
N neighbouring ops in any stage (ops), and fixes the other runs; which intervals are read stays free. Windows overlap by
half. Each is solved from the plan until its optimum is proved, or for --window-seconds. A better plan replaces the plan
for the windows behind it. Prints one line for each window: the time that it gains, in percent of the step, and the ops
whose stages changed, with those before and after.
"""
import argparse
import json
import math
import sys

from ortools.sat.python import cp_model

import replay


class Window:
    """Runs that may change: those of ops or of stages in a range."""

    def __init__(self, kind, first, end):
        self.kind, self.first, self.end = kind, first, end

    def has(self, op, stage):
        return self.first <= (op if self.kind == "ops" else stage) < self.end

    def stages(self, op, last):
        """Return the first and the last stage in which @op may run again."""
        if self.kind == "ops":
            return op + 1, last if self.first <= op < self.end else op
        return max(op + 1, self.first), min(self.end - 1, last)


class Program:
    """Runs, retention intervals and reads of one graph within a budget."""

    def __init__(self, graph, budget, hint, more, window=None):
        self.graph, self.model, n = graph, cp_model.CpModel(), len(graph.ops)
        self.reads = [[s for s, _ in reads if not graph.given[s]] for reads, _ in graph.runs]
        self.writes = [[s for s, _ in writes] for _, writes in graph.runs]
        if any(graph.given[s] for writes in self.writes for s in writes) or max(graph.versions) > 1:
            sys.exit("a storage is updated or written twice: expected a graph whose ops each make new storages")
        self.maker = {s: op for op, writes in enumerate(self.writes) for s in writes}
        self.width, self.end_of_step = n + 1, (n + 1) * (n + 1)
        self.window = window or Window("turns", 0, n + 1)
        fixed = sum(size for size, is_given in zip(graph.bytes, graph.given) if is_given)
        self.unit = math.gcd(*(size for size in graph.bytes if size), *(op.get("scratch_bytes", 0) for op in graph.ops))
        self.capacity = (budget - fixed) // self.unit
        self.guesses = [[] for _ in range(n)]  # (is present, stage) of each run in the plan, beside self.runs
        self.runs = [self.runs_make(op, hint.get(op, ()), more) for op in range(n)]
        self.intervals, self.demands, self.guessed_ends = [], [], {}
        self.ends = {s: [self.retention_make(s, c) for c in range(len(self.runs[op]))] for s, op in self.maker.items()}
        for op, runs in enumerate(self.runs):
            for run, guess in zip(runs, self.guesses[op]):
                self.scratch_make(op, run)
                for s in sorted(set(self.reads[op])):
                    self.read_make(s, op, run, guess)
        for s in self.maker:
            if s in graph.kept:
                self.read_make(s, n, (1, n), (True, n))
        for s, ends in self.ends.items():
            for k, end in enumerate(ends):
                self.model.add_hint(end, self.guessed_ends.get((s, k), self.at(self.maker[s], self.guesses[self.maker[s]][k])))
        self.model.add_cumulative(self.intervals, self.demands, self.capacity)
        self.model.minimize(sum(graph.ops[op]["ns"] * run[0] for op, runs in enumerate(self.runs) for run in runs[1:]))

    def runs_make(self, op, stages, more):
        """Return [(is present, stage)] of an op: the first run, then the fixed ones, then those that may change."""
        model, runs = self.model, [(1, op)]
        runs += [(1, stage) for stage in stages if not self.window.has(op, stage)]
        self.guesses[op] = [(True, stage) for _, stage in runs]
        stages = [stage for stage in stages if self.window.has(op, stage)]
        least, most = self.window.stages(op, len(self.graph.ops))
        if least > most or not self.graph.ops[op].get("repeatable", True):
            return runs
        before = None
        for c in range(len(stages) + more):
            present, stage = model.new_bool_var(""), model.new_int_var(least, most, "")
            guess = c < len(stages), stages[min(c, len(stages) - 1)] if stages else least
            model.add_hint(present, guess[0])
            model.add_hint(stage, guess[1])
            self.guesses[op].append(guess)
            if before:
                model.add_implication(present, before[0])
                model.add(stage > before[1]).only_enforce_if(present)
            before = present, stage
            runs.append(before)
        return runs

    def at(self, op, run):
        return run[1] * self.width + op

    def retention_make(self, storage, c):
        """Return the end of the interval that begins with run @c of the storage's op."""
        op, model = self.maker[storage], self.model
        end = model.new_int_var(op * self.width + op, self.end_of_step, "")
        size = model.new_int_var(0, self.end_of_step, "")
        start = self.at(op, self.runs[op][c])
        self.intervals.append(model.new_optional_interval_var(start, size, end + 1, self.runs[op][c][0], ""))
        self.demands.append(self.graph.bytes[storage] // self.unit)
        return end

    def scratch_make(self, op, run):
        scratch = self.graph.ops[op].get("scratch_bytes", 0)
        if scratch:
            at = self.at(op, run)
            self.intervals.append(self.model.new_optional_interval_var(at, 1, at + 1, run[0], ""))
            self.demands.append(scratch // self.unit)

    def read_make(self, storage, op, run, guess):
        """Let a read by a run of @op choose one of the intervals of a storage, at first the latest one of the plan."""
        model, maker, picks, latest = self.model, self.maker[storage], [], 0
        for k, (source, (is_present, stage)) in enumerate(zip(self.runs[maker], self.guesses[maker])):
            latest = k if is_present and self.at(maker, (1, stage)) <= self.at(op, guess) else latest
            pick = model.new_bool_var("")
            if k:
                model.add_implication(pick, source[0])
                model.add(source[1] <= run[1]).only_enforce_if(pick)
            model.add(self.at(op, run) <= self.ends[storage][k]).only_enforce_if(pick)
            picks.append(pick)
        for k, pick in enumerate(picks):
            model.add_hint(pick, guess[0] and k == latest)
        if guess[0]:
            key = storage, latest
            self.guessed_ends[key] = max(self.guessed_ends.get(key, 0), self.at(op, guess))
        model.add(sum(picks) == run[0])

    def solve(self, seconds, is_bound, is_log):
        """Return (status, runs as (stage, op, is again) in their order or None, bound of the time of redos)."""
        solver = cp_model.CpSolver()
        solver.parameters.num_workers = 1
        solver.parameters.max_time_in_seconds = seconds
        solver.parameters.log_search_progress = is_log
        solver.parameters.interleave_search = not is_bound
        status = solver.solve(self.model)
        if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            return solver.status_name(status), None, solver.best_objective_bound
        runs = [(solver.value(stage), op, c > 0) for op, runs in enumerate(self.runs)
                for c, (present, stage) in enumerate(runs) if solver.value(present)]
        return solver.status_name(status), sorted(runs), solver.best_objective_bound


def hint_read(graph, path):
    """Return (for each op the stages in which a plan runs it again, the plan's instructions)."""
    stages, waiting = {}, []
    with open(path, encoding="utf-8") as file:
        instructions = json.load(file)["instructions"]
    for verb, index, *_ in [*instructions, ["op", len(graph.ops)]]:
        if verb == "redo":
            waiting.append(index)
        elif verb == "op":
            for op in waiting:
                stages.setdefault(op, []).append(index)
            waiting = []
    return stages, instructions


def again_of(runs):
    """Return for each op the stages in which @runs have it again."""
    stages = {}
    for stage, op, is_again in runs:
        if is_again:
            stages.setdefault(op, []).append(stage)
    return stages


def totals_of(graph, budget, runs):
    """Return (instructions of @runs, their totals by replay.py)."""
    lines = graph.instructions([(op, is_again) for _, op, is_again in runs])
    totals = replay.replay(graph, lines)
    if totals["peak_bytes"] > budget:
        sys.exit(f"a solution takes {totals['peak_bytes']} bytes of {budget}")
    return lines, totals


def windows_solve(args, graph, budget, hint, plan_ns, base_ns):
    """Solve windows over the whole plan; return the instructions of the best plan, or None."""
    lines, n = None, len(graph.ops) + 1
    for kind in ("turns", "ops") if args.kind == "both" else (args.kind,):
        for first in range(0, n, max(args.windows // 2, 1)):
            program = Program(graph, budget, hint, args.more, Window(kind, first, min(first + args.windows, n)))
            status, runs, _ = program.solve(args.window_seconds, False, args.log)
            record = {"kind": kind, "first": first, "status": status}
            if runs:
                found, totals = totals_of(graph, budget, runs)
                record["gain_percent"] = round(100 * (plan_ns - totals["compute_ns"]) / base_ns, 4)
                if totals["compute_ns"] < plan_ns:
                    again = again_of(runs)
                    changed = sorted(op for op in {*again, *hint} if again.get(op) != hint.get(op))
                    record["changed"] = {op: [hint.get(op, []), again.get(op, [])] for op in changed}
                    hint, plan_ns, lines = again, totals["compute_ns"], found
            print(json.dumps(record), flush=True)
    return lines


def arguments_parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("graph")
    parser.add_argument("--budget", required=True, help="of the unconstrained peak: P%%")
    parser.add_argument("--plan")
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--more", type=int, default=1)
    parser.add_argument("--bound", action="store_true")
    parser.add_argument("--windows", type=int, help="stages or ops of a window")
    parser.add_argument("--kind", choices=("turns", "ops", "both"), default="both")
    parser.add_argument("--window-seconds", type=float, default=30)
    parser.add_argument("--log", action="store_true")
    parser.add_argument("--instructions")
    return parser.parse_args()


def main():
    args = arguments_parse()
    graph = replay.Graph(args.graph)
    base = replay.replay(graph, graph.unconstrained())
    budget = replay.bytes_parse(args.budget, base["peak_bytes"])
    hint, record, lines = {}, {"base_ns": base["compute_ns"]}, None
    if args.plan:
        hint, instructions = hint_read(graph, args.plan)
        record["plan_ns"] = replay.replay(graph, instructions)["compute_ns"]
    if args.windows:
        lines = windows_solve(args, graph, budget, hint, record["plan_ns"], base["compute_ns"])
    else:
        record["status"], runs, bound = Program(graph, budget, hint, args.more).solve(args.seconds, args.bound, args.log)
        record["bound_ns"] = base["compute_ns"] + int(bound)
        lines = totals_of(graph, budget, runs)[0] if runs else None
    if lines:
        record["compute_ns"] = replay.replay(graph, lines)["compute_ns"]
        record["overhead_percent"] = round(100 * (record["compute_ns"] / base["compute_ns"] - 1), 3)
        if args.instructions:
            with open(args.instructions, "w", encoding="utf-8") as file:
                json.dump({"instructions": lines}, file)
    print(json.dumps(record))


if __name__ == "__main__":
    main()
