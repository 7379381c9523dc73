#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Train small models of HuggingFace families by lade.torch at several budgets: planned and measured peak, bits, seconds.

Usage: families.py [--budgets 100%,60%,40%,min] [--host SIZE] [--steps N] [--plan-seconds N] [FAMILY ...]
Prints one line for each model and budget, as a table of Markdown. Exits 1 if bits or bytes differ anywhere.
"""
import argparse
import os
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path[:0] = [os.path.join(ROOT, "python"), os.path.join(ROOT, "tests", "torch")]

SCRATCH = tempfile.TemporaryDirectory(prefix="lade-families-") # plans of earlier runs are not taken
os.environ["XDG_CACHE_HOME"] = SCRATCH.name

import torch
import transformers

import families
import lade.torch

SEED = 3


def eager(name, n_steps):
    model, batch = families.make(name)
    optimizer, train = families.trainer(model)
    torch.manual_seed(SEED)
    losses = [train(batch).item() for _ in range(n_steps)]
    start = time.perf_counter()
    bits = losses, lade.torch.digest(model, optimizer)
    return bits, start


def run(name, budget, host, bits, n_steps):
    """Return the row of one budget, and whether bits and bytes are right."""
    model, batch = families.make(name)
    optimizer, train = families.trainer(model)
    step = lade.torch.step(train, model, optimizer, budget, host=host)
    torch.manual_seed(SEED)
    try:
        losses = [step(batch).item() for _ in range(n_steps - 1)]
        peak = lade.torch.measure(step, batch)["peak_bytes"]
    except lade.DoesNotFit as fault:
        return f"refused, the smallest is {fault.min_budget_bytes:,}", True
    # measure drops the last loss: the digest has all bits of the step
    is_same = losses == bits[0][:-1] and lade.torch.digest(model, optimizer) == bits[1]
    report = step.report()
    planned = report["planned_peak_bytes"]
    row = (f"{planned:,} | {peak:,} | {'equal' if peak == planned else peak - planned} | "
           f"{'same' if is_same else 'DIFFERENT'} | {planned / report['unconstrained_peak_bytes']:.1%} | "
           f"{planned / report['floor_bytes']:.3f} | "
           f"{planned / report['largest_op_bytes']:.3f} | {report['n_redone']} | {report['moved_bytes'] / 1e6:.1f} | "
           f"{report['capture_seconds']:.1f} | {report['price_seconds']:.1f} | {report['plan_seconds']:.1f}")
    return row, is_same and peak == planned


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--budgets", default="100%,60%,40%,min")
    parser.add_argument("--host")
    parser.add_argument("--plan-seconds", type=float, help="of the search for each plan; by default the package's")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("families", nargs="*")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.plan_seconds:
        lade.torch.train_step.PLAN_SECONDS = options.plan_seconds, options.plan_seconds
    transformers.logging.set_verbosity_error()
    print(f"torch {torch.__version__}, transformers {transformers.__version__}, host {options.host}, one thread\n")
    print("| family | budget | planned | measured | bytes | bits | of unconstrained | of floor | "
          "of largest op | redone | moved MB | capture s | price s | plan s |\n|" + "---|" * 14)
    all_right = True
    for name in options.families or families.FAMILIES:
        try:
            bits, _ = eager(name, options.steps)
            for budget in options.budgets.split(","):
                row, is_right = run(name, budget, options.host, bits, options.steps)
                all_right = all_right and is_right
                print(f"| {name} | {budget} | {row} |", flush=True)
        except (lade.Error, RuntimeError, ValueError, TypeError, AttributeError, KeyError, ImportError) as fault:
            all_right = False
            print(f"| {name} | | {type(fault).__name__}: {' '.join(str(fault).split())[:400]} |", flush=True)
    sys.exit(0 if all_right else 1)


if __name__ == "__main__":
    main()
