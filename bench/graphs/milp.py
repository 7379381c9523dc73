#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Solve recomputation of a step as an integer program with HiGHS (`pip install highspy`), as a reference for planners.

Usage: bench/graphs/milp.py GRAPH.json --budget P% [--seconds N] [--relax] [--forward-only] [--instructions OUT.json]
       bench/graphs/milp.py --reference DIR -o reference.json [--budgets 40,50,...] [--seconds N] [--total N]

The program is Checkmate's (Jain et al., MLSys 2020, section 4), with stages that advance: stage t ends with the first
run of op t, and runs any ops before t again, in their order, each once at most. Lists that run an op twice between two
first runs are not among its solutions, so a planner can be below this optimum. R[t,i] is 1 if op i runs in stage t. L[t,v,k] is
1 if storage v is on the device while op k of stage t runs. The memory of an event is the sum of L, so ops with several
outputs are exact. Checkmate's U counts a storage twice if it is kept and made again:

    minimise  sum ns[i] R[t,i]        R[t,t] = 1, R binary
    L[t,v,k] >= R[t,k]                v: operands of k
    L[t,v,k] <= L[t,v,k-1] + (k makes v ? R[t,k] : 0)    L of the stage before its first event: the end of stage t-1
    sum bytes[v] L[t,v,k] + scratch[k] R[t,k] <= budget

L is continuous: with binary R its least solution is binary. Results are on the device from their first run on, and
given storages always. Graphs with updates are refused. --relax solves the linear relaxation, a lower bound.
--forward-only lets only ops run again that do not depend on the loss: not a proof, but far smaller.

--reference solves every graph of DIR at every budget, smallest graphs first, within --total seconds together. It writes
compute_ns, a lower bound and a status for each. Every solution is replayed by replay.py.
"""
import argparse
import json
import os
import sys
import time

import highspy
import numpy

import replay


class Program:
    """Columns and rows of one integer program, row by row."""

    def __init__(self):
        self.costs, self.uppers, self.lowers, self.is_integer = [], [], [], []
        self.starts, self.indices, self.values, self.row_lowers, self.row_uppers = [], [], [], [], []

    def column(self, cost=0.0, lower=0.0, upper=1.0, is_integer=False):
        self.costs.append(cost)
        self.lowers.append(lower)
        self.uppers.append(upper)
        self.is_integer.append(is_integer)
        return len(self.costs) - 1

    def row(self, terms, upper):
        """Add sum of (column, factor) <= upper."""
        self.starts.append(len(self.indices))
        for column, factor in terms:
            self.indices.append(column)
            self.values.append(factor)
        self.row_lowers.append(-highspy.kHighsInf)
        self.row_uppers.append(upper)

    def solve(self, seconds, is_relaxed):
        """Return (status, values or None, bound)."""
        lp = highspy.HighsLp()
        lp.num_col_, lp.num_row_ = len(self.costs), len(self.row_uppers)
        lp.col_cost_, lp.col_lower_ = numpy.array(self.costs), numpy.array(self.lowers)
        lp.col_upper_ = numpy.array(self.uppers)
        lp.row_lower_, lp.row_upper_ = numpy.array(self.row_lowers), numpy.array(self.row_uppers)
        lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        lp.a_matrix_.start_ = numpy.array(self.starts + [len(self.indices)], dtype=numpy.int32)
        lp.a_matrix_.index_ = numpy.array(self.indices, dtype=numpy.int32)
        lp.a_matrix_.value_ = numpy.array(self.values)
        if not is_relaxed:
            kinds = (highspy.HighsVarType.kContinuous, highspy.HighsVarType.kInteger)
            lp.integrality_ = [kinds[is_integer] for is_integer in self.is_integer]
        solver = highspy.Highs()
        solver.silent()
        for option, value in (("log_to_console", False), ("output_flag", False), ("threads", 1), ("time_limit", float(seconds)),
                              ("mip_rel_gap", 1e-6), ("mip_feasibility_tolerance", 1e-8),
                              ("primal_feasibility_tolerance", 1e-8)):
            solver.setOptionValue(option, value)
        solver.passModel(lp)
        solver.run()
        info, status = solver.getInfo(), solver.getModelStatus()
        has_solution = info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible
        values = list(solver.getSolution().col_value) if has_solution else None
        names = {highspy.HighsModelStatus.kOptimal: "optimal", highspy.HighsModelStatus.kInfeasible: "infeasible",
                 highspy.HighsModelStatus.kTimeLimit: "time limit"}
        bound = info.objective_function_value if is_relaxed else info.mip_dual_bound
        return names.get(status, str(status)), values, bound


class Remat:
    """The columns of one graph and budget."""

    def __init__(self, graph, budget, is_forward_only):
        self.graph, self.budget, self.program = graph, budget, Program()
        self.reads = [[storage for storage, _ in reads if not graph.given[storage]] for reads, _ in graph.runs]
        self.writes = [[storage for storage, _ in writes] for _, writes in graph.runs]
        if any(graph.given[storage] for writes in self.writes for storage in writes) or max(graph.versions) > 1:
            sys.exit("a storage is updated or written twice: expected a graph whose ops each make new storages")
        self.maker = {storage: op for op, writes in enumerate(self.writes) for storage in writes}
        self.base_ns = sum(op["ns"] for op in graph.ops)
        self.fixed = sum(n for n, is_given in zip(graph.bytes, graph.given) if is_given)
        self.again = self.repeatable(is_forward_only)
        self.last_need = self.needs()
        self.runs, self.live_end = {}, {}
        for stage in range(len(graph.ops)):
            self.stage_add(stage)

    def repeatable(self, is_forward_only):
        """Return for each op whether it may run again."""
        again = [op.get("repeatable", True) for op in self.graph.ops]
        if is_forward_only:
            first = next(i for i, op in enumerate(self.graph.ops) if op.get("pass", "forward") != "forward")
            again = [can and i < first for i, can in enumerate(again)]
        return again

    def needs(self):
        """Return for each storage the last stage that can read it: of a reader, or of anything made with it again."""
        last = [0] * len(self.graph.bytes)
        for op in reversed(range(len(self.graph.ops))):
            stage = max([op] + [last[storage] for storage in self.writes[op]]) if self.again[op] else op
            for storage in self.reads[op]:
                last[storage] = max(last[storage], stage)
        return last

    def is_useful(self, op, stage):
        """True if a run of @op in the later @stage can make a value that is still read."""
        return self.again[op] and any(self.last_need[storage] >= stage for storage in self.writes[op]
                                      if storage not in self.graph.kept)

    def stage_add(self, stage):
        program, ops = self.program, self.graph.ops
        events = [op for op in range(stage) if self.is_useful(op, stage)] + [stage]
        runs = {op: program.column(ops[op]["ns"] / self.base_ns, 1.0 if op == stage else 0.0, 1.0, True)
                for op in events}
        self.runs.update({(stage, op): column for op, column in runs.items()})
        live = dict(self.live_end)
        kept = sum(self.graph.bytes[storage] for storage in self.graph.kept if self.maker[storage] < stage)
        unit = 1.0 / self.budget
        for op in events:
            changed = {}
            for storage in self.writes[op]:
                if storage not in self.graph.kept:
                    changed[storage] = program.column()
            for storage in live:
                changed.setdefault(storage, program.column())
            operands = set(self.reads[op]) | set(self.writes[op])
            for storage, column in changed.items():
                before = [(live[storage], -1.0)] if storage in live else []
                made = [(runs[op], -1.0)] if self.maker[storage] == op else []
                program.row([(column, 1.0)] + before + made, 0.0)
                if storage in operands:
                    program.row([(runs[op], 1.0), (column, -1.0)], 0.0)
            resident = self.fixed + kept + (sum(self.graph.bytes[storage] for storage in self.writes[stage]
                                                if storage in self.graph.kept) if op == stage else 0)
            terms = [(column, self.graph.bytes[storage] * unit) for storage, column in changed.items()]
            scratch = ops[op].get("scratch_bytes", 0)
            if scratch:
                terms.append((runs[op], scratch * unit))
            program.row(terms, 1.0 - resident * unit)
            live = changed
        self.live_end = {storage: column for storage, column in live.items() if self.last_need[storage] > stage}

    def instructions(self, values):
        """Return the list of a solution."""
        return self.graph.instructions([(op, op != stage) for stage in range(len(self.graph.ops)) for op in range(stage + 1)
                                        if (stage, op) in self.runs and values[self.runs[stage, op]] > 0.5])


def solve(path, percent, seconds, is_relaxed=False, is_forward_only=False, out=None):
    """Return a record of one graph and budget."""
    graph = replay.Graph(path)
    base = replay.replay(graph, graph.unconstrained())
    budget = int(percent * base["peak_bytes"] / 100)
    start = time.monotonic()
    record = {"budget_percent": percent, "budget_bytes": budget, "base_ns": base["compute_ns"],
              "unconstrained_bytes": base["peak_bytes"], "floor_bytes": graph.floor(), "n_ops": len(graph.ops)}
    if budget < graph.floor():
        return {**record, "status": "infeasible", "seconds": 0.0}
    remat = Remat(graph, budget, is_forward_only)
    status, values, bound = remat.program.solve(seconds, is_relaxed)
    record["status"] = f"relaxation {status}" if is_relaxed else status
    if is_forward_only:
        record["status"] += ", forward ops only"
    if bound is not None and abs(bound) < 1e9 and status != "infeasible" and not is_forward_only:
        record["bound_ns"] = int(max(bound, 1.0) * base["compute_ns"] + 0.5)
    if values and not is_relaxed:
        lines = remat.instructions(values)
        totals = replay.replay(graph, lines)
        if totals["peak_bytes"] > budget:
            sys.exit(f"{path}: a solution of {percent}% takes {totals['peak_bytes']} bytes of {budget}")
        record["compute_ns"] = totals["compute_ns"]
        if out:
            with open(out, "w", encoding="utf-8") as file:
                json.dump({"instructions": lines}, file)
    record["seconds"] = round(time.monotonic() - start, 1)
    return record


def reference_save(found, path):
    """Write one record a line."""
    graphs = (json.dumps(name) + ": [\n" + ",\n".join(" " + json.dumps(record) for record in records) + "\n]"
              for name, records in found.items())
    with open(path, "w", encoding="utf-8") as file:
        file.write("{\n" + ",\n".join(graphs) + "\n}\n")


def reference(args):
    """Solve all graphs of a folder; a file that exists is continued."""
    found = {}
    if os.path.exists(args.out):
        with open(args.out, encoding="utf-8") as file:
            found = json.load(file)
    budgets = [float(text) for text in args.budgets.split(",")]
    paths = sorted((os.path.join(args.reference, name) for name in os.listdir(args.reference)), key=os.path.getsize)
    end = time.monotonic() + args.total
    for path in paths:
        name = os.path.splitext(os.path.basename(path))[0]
        records = found.setdefault(name, [])
        for percent in sorted(budgets, reverse=True):
            if time.monotonic() > end or any(record["budget_percent"] == percent for record in records):
                continue
            records.append(solve(path, percent, min(args.seconds, end - time.monotonic()), args.relax,
                                 args.forward_only))
            print(name, records[-1], flush=True)
            reference_save(found, args.out)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("graph", nargs="?")
    parser.add_argument("--budget", help="of the unconstrained peak: P%%")
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--relax", action="store_true")
    parser.add_argument("--forward-only", action="store_true")
    parser.add_argument("--instructions")
    parser.add_argument("--reference", metavar="DIR")
    parser.add_argument("-o", "--out")
    parser.add_argument("--budgets", default="90,80,70,60,50,40")
    parser.add_argument("--total", type=float, default=1e9)
    args = parser.parse_args()
    if args.reference:
        reference(args)
        return
    if not args.graph or not args.budget:
        parser.error("expected GRAPH.json with --budget, or --reference DIR")
    print(json.dumps(solve(args.graph, float(args.budget.rstrip("%")), args.seconds, args.relax, args.forward_only,
                           args.instructions)))


if __name__ == "__main__":
    main()
