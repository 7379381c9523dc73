#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""GPT-2 124M by lade.torch beside eager PyTorch: CPU time of a step as ratios of one interleaved run.

Usage: gpt2.py [--rows N] [--columns N] [--layers N] [--rounds N] [--bf16] [--cases 100%,60%,40%+host]
Each round runs one eager step and one planned step. The table has medians of the rounds' ratios, in CPU time of the
process. Other processes of a shared machine change CPU time less than the clock.
"""
import argparse
import statistics
import time

from gpt2_step import fused_adamw, ids_of, model_of, trainer

import torch

import lade.torch


def made(options):
    torch.manual_seed(0)
    model = model_of(options.layers)
    optimizer = fused_adamw(model.parameters())
    return model, optimizer, trainer(model, optimizer, options.bf16)


def timed(call, *args):
    start = time.process_time()
    call(*args)
    return time.process_time() - start


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("rows", 4), ("columns", 512), ("layers", 12), ("rounds", 3), ("threads", 1)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--cases", default="100%,60%,40%+host")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    ids = ids_of(options.rows, options.columns)
    _, _, eager = made(options)
    eager(ids)
    print(f"torch {torch.__version__}, {options.threads} threads, {options.rows} x {options.columns}, "
          f"{'BF16 autocast' if options.bf16 else 'FP32'}\n")
    print("| case | planned | measured | redone | moved MB | capture s | price s | plan s | predicted s | step s | "
          "of eager |\n|" + "---|" * 11, flush=True)
    for case in options.cases.split(","):
        budget, _, host = case.partition("+")
        model, optimizer, train = made(options)
        step = lade.torch.step(train, model, optimizer, budget, host="16GiB" if host else None, audit=False)
        try:
            peak = lade.torch.measure(step, ids)["peak_bytes"]
        except lade.DoesNotFit as fault:
            print(f"| {case} | refused, the smallest is {fault.min_budget_bytes:,} |", flush=True)
            continue
        pairs = [(timed(eager, ids), timed(step, ids)) for _ in range(options.rounds)]
        report = step.report()
        print(f"| {case} | {report['planned_peak_bytes']:,} | {peak:,} | {report['n_redone']} | "
              f"{report['moved_bytes'] / 1e6:.0f} | {report['capture_seconds']:.1f} | {report['price_seconds']:.1f} | "
              f"{report['plan_seconds']:.1f} | {report['predicted_step_seconds']:.2f} | "
              f"{statistics.median(b for _, b in pairs):.2f} | {statistics.median(b / a for a, b in pairs):.3f} |",
              flush=True)


if __name__ == "__main__":
    main()
