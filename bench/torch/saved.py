#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""GPT-2 in eager mode under lade.torch.saved beside eager mode alone, as ratios of one interleaved run.

Usage: saved.py [--rows N] [--columns N] [--layers N] [--rounds N] [--threads N] [--vocab N]
                [--shares 0.5,0.25] [--tiers store,host] --store DIR
Each round runs one eager step and one step with the tensors that autograd saves waiting on the host or in the store;
two more steps before teach the order of use. The limit is a share of the bytes that the step saves.
"""
import argparse
import copy
import statistics
import time

import gpt2_step
from gpt2_step import fused_adamw, ids_of, model_of

import torch

import lade.torch


def trainer(model, held=None):
    optimizer = fused_adamw(model.parameters())
    return gpt2_step.trainer(model, optimizer, held=held), optimizer


def timed(call, *args):
    """Return (seconds, CPU seconds of the process)."""
    start = time.perf_counter(), time.process_time()
    call(*args)
    return time.perf_counter() - start[0], time.process_time() - start[1]


def saved_bytes(model, ids):
    """Return the bytes of a step's saved storages."""
    held = lade.torch.saved(model, live="1TiB", host=0)
    trainer(copy.deepcopy(model), held)[0](ids)
    held.close()
    return held.peak_bytes


def case(options, model, ids, total, share, tier):
    eager, other = copy.deepcopy(model), copy.deepcopy(model)
    where = {"host": total} if tier == "host" else {"store": options.store, "store_bytes": total + (64 << 20)}
    held = lade.torch.saved(other, live=int(total * share), **where)
    plain, plain_optimizer = trainer(eager)
    bounded, bounded_optimizer = trainer(other, held)
    for train in (plain, bounded):
        torch.manual_seed(1)
        train(ids)
        train(ids)
    pairs = []
    held.peak_bytes = held.moved_bytes = 0
    for i in range(options.rounds):
        torch.manual_seed(2 + i)
        a = timed(plain, ids)
        torch.manual_seed(2 + i)
        pairs.append((a, timed(bounded, ids)))
    moved = held.moved_bytes // options.rounds
    same = lade.torch.digest(eager, plain_optimizer) == lade.torch.digest(other, bounded_optimizer)
    held.close()
    print(f"| {share:.0%}, {tier} | {total * share / 1e6:.0f} | {held.peak_bytes / 1e6:.0f} | {moved / 1e6:.0f} | "
          f"{'same' if same else 'OTHER'} | {statistics.median(a[0] for a, _ in pairs):.2f} | "
          f"{statistics.median(b[0] / a[0] for a, b in pairs):.3f} | "
          f"{statistics.median(b[1] / a[1] for a, b in pairs):.3f} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("rows", 4), ("columns", 256), ("layers", 6), ("rounds", 3), ("threads", 1),
                          ("vocab", 50257)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--shares", default="0.5")
    parser.add_argument("--tiers", default="store,host")
    parser.add_argument("--store", required=True, help="a directory on a drive")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    model = model_of(options.layers, vocab=options.vocab)
    ids = ids_of(options.rows, options.columns, options.vocab)
    total = saved_bytes(model, ids)
    print(f"torch {torch.__version__}, {options.threads} threads, {options.layers} layers, {options.rows} x "
          f"{options.columns}, {total / 1e6:.0f} MB saved\n")
    print("| limit | live limit MB | live peak MB | moved MB a step | bits | eager step s | of eager | CPU time of eager |\n|" + "---|" * 8)
    for tier in options.tiers.split(","):
        for share in map(float, options.shares.split(",")):
            case(options, model, ids, total, share, tier)


if __name__ == "__main__":
    main()
