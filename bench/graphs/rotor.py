#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compare plans of chains with the optimum of the persistent dynamic program (rotor; Beaumont and others, 2019).

Usage: bench/graphs/rotor.py [--lade build/lade] [--stages N] [--seed N] [--budgets N] [--iterations N] [--equal]

Stage i reads its input, writes its output and more that its backward op needs; that op reads these, the input and the
gradient of the output. The program plans segments of such a chain within whole units of bytes: save all outputs of the
first stage, or keep the input of a later one alone and run the segment before it again. Prints a line for each budget:
overhead of the program's optimum and of lade's plan, in percent of the unconstrained step. --equal: equal stages. Exit 1
if a plan is slower than the optimum, or is refused where the program has one.
"""
import argparse
import json
import os
import random
import subprocess
import sys
import tempfile

INFINITY = float("inf")
UNIT = 1 << 20
HERE = os.path.dirname(os.path.abspath(__file__))


class Chain:
    """Sizes in units, times in ns."""

    def __init__(self, stages, seed, is_equal):
        draw = random.Random(seed)
        self.n = stages
        self.out = [4 if is_equal else draw.randrange(1, 9) for _ in range(stages)]
        self.more = [8 if is_equal else draw.randrange(0, 13) for _ in range(stages)]
        self.ns = [1000 if is_equal else draw.randrange(100, 2000) for _ in range(stages)]

    def graph(self):
        storages, ops = [{"name": "input", "bytes": UNIT, "given": True}], []

        def add(name, units):
            storages.append({"name": name, "bytes": units * UNIT})
            return len(storages) - 1
        made, before = [], 0
        for i in range(self.n):
            out, more = add(f"a{i}", self.out[i]), add(f"x{i}", self.more[i])
            ops.append({"name": f"f{i}", "reads": [before], "writes": [out, more], "ns": self.ns[i]})
            made.append((before, out, more))
            before = out
        gradient = add("loss.d", self.out[-1])
        ops.append({"name": "loss", "reads": [before], "writes": [gradient], "ns": 100, "repeatable": False})
        for i in reversed(range(self.n)):
            below = add(f"g{i}", self.out[i - 1] if i else 1)
            ops.append({"name": f"b{i}", "reads": [gradient, *made[i]], "writes": [below], "ns": 2 * self.ns[i],
                        "repeatable": False})
            gradient = below
        return {"schema_version": 1, "storages": storages, "ops": ops, "keep": [gradient]}

    def run_units(self, s, k):
        """Return the units that running stages s .. k - 1 takes, if only the last output stays."""
        return max(self.out[j] + self.more[j] + (self.out[j - 1] if j > s else 0) for j in range(s, k))

    def optimum(self, m_max):
        """Return by units, up to @m_max, the least time of forward ops; the input of the chain is apart."""
        n, best = self.n, {}
        for length in range(n):
            for s in range(n - length):
                t = s + length
                gradient = self.out[t] if t < n - 1 else 0
                row = [INFINITY] * (m_max + 1)
                saved = self.out[s] + self.more[s]
                below = self.out[s - 1] if s else 1
                m_min = max(saved + gradient, saved + self.out[s] + below)
                for m in range(m_min, m_max + 1):
                    rest = 0 if s == t else best[s + 1, t][m - saved]
                    row[m] = self.ns[s] + rest
                for k in range(s + 1, t + 1):
                    kept, run = self.out[k - 1], sum(self.ns[s:k])
                    after, before = best[k, t], best[s, k - 1]
                    for m in range(max(self.run_units(s, k) + gradient, kept), m_max + 1):
                        ns = run + after[m - kept] + before[m]
                        if ns < row[m]:
                            row[m] = ns
                best[s, t] = row
        return best[0, n - 1]


def plan(args, path, budget):
    """Return the time of all ops of lade's plan, or infinity."""
    command = [args.lade, "plan", "--graph", path, "--budget", str(budget), "--json", "--iterations",
               str(args.iterations)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode == 3:
        return INFINITY
    if result.returncode:
        sys.exit(result.stderr)
    return json.loads(result.stdout)["compute_ns"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lade", default=os.path.join(HERE, "..", "..", "build", "lade"))
    for option, value in (("--stages", 30), ("--seed", 1), ("--budgets", 6), ("--iterations", 60000)):
        parser.add_argument(option, type=int, default=value)
    parser.add_argument("--equal", action="store_true")
    args = parser.parse_args()
    chain = Chain(args.stages, args.seed, args.equal)
    whole = sum(chain.out) + sum(chain.more) + 2 * max(chain.out)
    best = chain.optimum(whole)
    m_min = next(m for m in range(whole + 1) if best[m] < INFINITY)
    base = sum(chain.ns)
    n_slower = 0
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "chain.json")
        with open(path, "w", encoding="utf-8") as file:
            json.dump(chain.graph(), file)
        for i in range(args.budgets):
            m = m_min + (whole - m_min) * i * i // (args.budgets * args.budgets)
            step = 3 * base + 100
            ours, theirs = plan(args, path, (m + 1) * UNIT), best[m] + 2 * base + 100
            n_slower += ours > theirs
            print(f"{args.stages} stages, {100 * m / whole:5.1f} % of all bytes: optimum {100 * (theirs / step - 1):7.3f} %, "
                  f"plan {100 * (ours / step - 1):7.3f} %", flush=True)
    sys.exit(1 if n_slower else 0)


if __name__ == "__main__":
    main()
