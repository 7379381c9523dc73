#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""GPT-2 124M by lade.torch beside eager PyTorch: CPU time of a step as ratios of one interleaved run.

Usage: gpt2.py [--rows N] [--columns N] [--layers N] [--rounds N] [--bf16] [--cases 100%,60%,40%+host]
Each round runs one eager step and one planned step. The table has medians of the rounds' ratios, in CPU time of the
process, which other processes of a shared machine change less than the clock.
"""
import argparse
import os
import statistics
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "python"))

import torch
import transformers

import lade.torch


def made(options):
    torch.manual_seed(0)
    config = transformers.GPT2Config(n_layer=options.layers, use_cache=False)
    model = transformers.GPT2LMHeadModel(config).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def train(ids):
        with torch.autocast("cpu", torch.bfloat16, enabled=options.bf16):
            loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()
    return model, optimizer, train


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
    ids = torch.randint(0, 50257, (options.rows, options.columns), generator=torch.Generator().manual_seed(1))
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
