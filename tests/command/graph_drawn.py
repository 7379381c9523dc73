#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`lade plan --graph` on drawn graphs: each list passes bench/graphs/replay.py, which shares no code with the library.

Graphs have ranges, ops with several outputs, updates in place, random draws and scratch. They also have ops that run
once, results that the caller keeps, and storages that live on other tiers. A plan with other tiers is no slower and no
larger than plans by recompute alone and by transfers alone.

Usage: graph_drawn.py LADE [GRAPHS]
"""
import copy
import json
import os
import random
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "bench", "graphs"))
import replay  # noqa: E402

LADE = os.path.abspath(sys.argv[1])
N_GRAPHS = int(sys.argv[2]) if len(sys.argv) > 2 else 40
TIERS = ["--machine", "laptop-8c", "--host-budget", "2048", "--store-budget", "1MiB"]
STATED = {"planned_peak_bytes": "peak_bytes", "compute_ns": "compute_ns", "n_redone": "n_redone",
          "moved_bytes": "moved_bytes"}
os.chdir(tempfile.mkdtemp(prefix="lade-drawn-"))


class Drawn:
    """A drawn step: a forward pass over parameters, a backward pass over some of what it made, and updates."""

    def __init__(self, seed):
        self.draw, self.storages, self.ops = random.Random(seed), [], []
        self.has_tiers = seed % 3 == 0
        draw = self.draw
        self.params = [self.storage(draw.randrange(400), given=True, **self.tier())
                       for _ in range(draw.randrange(1, 8))]
        self.made = []
        for _ in range(draw.randrange(2, 30)):
            self.layer()
        gradient = self.backward()
        if draw.random() < 0.5:
            for param in self.params:
                if draw.random() < 0.6:
                    self.op([] if gradient is None else [gradient], [], updates=[param], repeatable=False,
                            **{"pass": "update"})
        kept = {draw.choice(self.made) for _ in range(draw.randrange(3))} | ({gradient} - {None})
        self.text = {"schema_version": 1, "storages": self.storages, "ops": self.ops, "keep": sorted(kept)}

    def tier(self):
        return {"tier": self.draw.choice(["host", "store"])} if self.has_tiers and self.draw.random() < 0.5 else {}

    def storage(self, size, **fields):
        self.storages.append({"name": f"s{len(self.storages)}", "bytes": size, **fields})
        return len(self.storages) - 1

    def op(self, reads, writes, **fields):
        self.ops.append({"name": f"op{len(self.ops)}", "reads": reads, "writes": writes, "ns": self.draw.randrange(500),
                         **fields})

    def layer(self):
        draw = self.draw
        out = self.storage(2 * draw.randrange(600))
        half = self.storages[out]["bytes"] // 2
        reads = [draw.choice(self.params)] + draw.sample(self.made, min(len(self.made), draw.randrange(4)))
        outs = [out] + ([self.storage(draw.randrange(300))] if draw.random() < 0.2 else [])
        if len(outs) == 1 and half and draw.random() < 0.25:  # two ops write a half each
            self.op(reads, [[out, 0, half]])
            self.op(reads, [[out, half, half]])
        else:
            self.op(reads, outs, scratch_bytes=draw.randrange(300), draws=draw.random() < 0.3,
                    repeatable=draw.random() < 0.9)
        if draw.random() < 0.25:
            self.op([], [], updates=[out])
        self.made += outs

    def backward(self):
        """Return the last gradient; None if no value has one."""
        gradient = None
        for value in reversed(self.made):
            if self.draw.random() < 0.7:
                before, gradient = gradient, self.storage(self.draw.randrange(500))
                self.op([value] + ([] if before is None else [before]), [gradient], **{"pass": "backward"})
        return gradient


def plan_check(graph, seed, *options):
    """Plan g.json; check the list and the figures. Return the plan; None if the budget is refused."""
    result = subprocess.run([LADE, "plan", "--graph", "g.json", *options, "--seed", str(seed), "--iterations", "1500",
                             "--json", "--instructions", "list.json"], capture_output=True, text=True, check=False)
    assert result.returncode in (0, 3), (seed, options, result.returncode, result.stderr)
    plan = json.loads(result.stdout)
    assert plan["fits"] == (result.returncode == 0), (seed, options, plan)
    if result.returncode:
        assert result.stderr.count("\n") == 1, (seed, result.stderr)
        return None
    with open("list.json", encoding="utf-8") as file:
        totals = replay.replay(graph, json.load(file)["instructions"])
    for stated, counted in STATED.items():
        assert plan[stated] == totals[counted], (seed, options, stated, plan[stated], totals[counted])
    assert totals["peak_bytes"] <= plan["budget_bytes"], (seed, options, plan)
    assert plan["base_ns"] <= plan["compute_ns"] <= plan["predicted_step_ns"], (seed, options, plan)
    assert plan["bound_ns"] <= plan["predicted_step_ns"], (seed, options, plan)
    return plan


def ways_check(seed):
    """Compare plans by recompute and transfers with those by one way alone. Transfers take about as long as ops."""
    text = Drawn(seed).text
    for storage in text["storages"]:
        storage["bytes"] *= 1000
    for op in text["ops"]:
        op["ns"] *= 1000
    once = copy.deepcopy(text)
    for op in once["ops"]:
        op["repeatable"] = False

    def plan(graph, *options):
        with open("g.json", "w", encoding="utf-8") as file:
            json.dump(graph, file)
        return plan_check(replay.Graph("g.json"), 0, *options)

    least = []
    for host, budget, figure in (("300KiB", lambda: "min", "min_budget_bytes"),
                                 ("1GiB", lambda: str(least[0] * 11 // 10), "predicted_step_ns")):
        host_options = ("--machine", "laptop-8c", "--host-budget", host)
        both = plan(text, "--budget", budget(), *host_options)[figure]
        for graph, options in ((text, ("--host-budget", "0")), (once, host_options)):
            alone = plan(graph, "--budget", budget(), *options)
            assert alone is None or both <= alone[figure], (seed, figure, both, alone[figure])
        least.append(both)


def homes_check(seed):
    """Compare a plan with a host budget with one without. Storages live on other tiers, so both have transfers."""
    text, ns = Drawn(seed).text, []
    for storage in text["storages"]:
        storage["bytes"] *= 1000
    for op in text["ops"]:
        op["ns"] *= 1000
    with open("g.json", "w", encoding="utf-8") as file:
        json.dump(text, file)
    graph, budget = replay.Graph("g.json"), "min"
    for host in ("0", "0", "300KiB"):
        plan = plan_check(graph, seed, "--budget", budget, "--machine", "laptop-8c", "--host-budget", host)
        budget = str(plan["min_budget_bytes"] * 11 // 10) if budget == "min" else budget
        ns.append(plan["predicted_step_ns"])
    assert ns[2] <= ns[1], (seed, ns)


n_planned = n_moved = n_redone = 0
for seed in range(N_GRAPHS):
    drawn = Drawn(seed)
    with open("g.json", "w", encoding="utf-8") as file:
        json.dump(drawn.text, file)
    graph = replay.Graph("g.json")
    tiers = TIERS if drawn.has_tiers or seed % 3 == 1 else []
    least = plan_check(graph, seed, "--budget", "min", *tiers)
    assert least, seed
    for plan in (least, plan_check(graph, seed, "--budget", f"{drawn.draw.randrange(40, 101)}%", *tiers)):
        if plan:
            n_planned += 1
            n_moved += plan["moved_bytes"] > 0
            n_redone += plan["n_redone"] > 0
assert n_planned > 1.5 * N_GRAPHS and n_moved > N_GRAPHS / 2 and n_redone > N_GRAPHS / 2, (n_planned, n_moved, n_redone)
for seed in (2, 5, 41):  # 2: recompute alone has the smallest schedule; 5, 41: transfers alone have a fast one
    ways_check(seed)
for seed in (99, 111, 138, 216):
    homes_check(seed)
for seed, moves in ((190, "1"), (206, "30"), (1012, "200")):  # their last search ends far below the smallest budget
    with open("g.json", "w", encoding="utf-8") as file:
        json.dump(Drawn(seed).text, file)
    budget = "min"
    for _ in range(2):
        budget = str(json.loads(subprocess.run([LADE, "plan", "--graph", "g.json", "--budget", budget, "--iterations", moves,
                                                "--json"], stdout=subprocess.PIPE, check=True).stdout)["min_budget_bytes"])
