#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""lade.torch.AdamW beside torch's fused AdamW, and its state on a store beside the drive.

Usage: adamw.py [--width N] [--layers N] [--rounds N] [--threads N] [--store DIR]
In memory, each round runs one step of each optimizer, in CPU time; the table has medians of the rounds' ratios. On the
store, each round moves as many bytes as the step reads and writes by plain reads and writes of 2 MiB, sixteen at once,
past the page cache. Then it runs a step; the ratio is the drive's time over the step's. Both directions of a step share
the drive, so the plain transfers mix them, too.
"""
import argparse
import mmap
import os
import statistics
import sys
import tempfile
import threading
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "python"))

import torch

import lade.torch

PIECE, N_THREADS = 2 << 20, 16


def shapes(width, layers, vocab=50257, places=1024):
    """Return the shapes of a GPT-2's parameters."""
    block = [(width,), (width,), (3 * width, width), (3 * width,), (width, width), (width,), (width,), (width,),
             (4 * width, width), (4 * width,), (width, 4 * width), (width,)]
    return [(vocab, width), (places, width)] + block * layers + [(width,), (width,)]


def parameters(options):
    torch.manual_seed(0)
    params = [torch.nn.Parameter(torch.randn(s) * 0.02) for s in shapes(options.width, options.layers)]
    for p in params:
        p.grad = torch.randn_like(p) * 1e-3
    return params


def timed(call, clock=time.perf_counter):
    start = clock()
    call()
    return clock() - start


class Drive:
    """Plain transfers of a file past the page cache, as many bytes in each direction as asked for."""

    def __init__(self, directory, n_bytes):
        self.n_pieces = max(1, n_bytes // PIECE)
        self.file = tempfile.NamedTemporaryFile(dir=directory)
        self.fd = os.open(self.file.name, os.O_RDWR | os.O_DIRECT)
        os.posix_fallocate(self.fd, 0, self.n_pieces * PIECE)
        self.buffers = [mmap.mmap(-1, PIECE) for _ in range(N_THREADS)]
        self.next, self.lock = 0, threading.Lock()
        self.run()

    def _work(self, buffer):
        while True:
            with self.lock:
                at, self.next = self.next, self.next + 1
            if at >= self.n_pieces:
                return
            os.preadv(self.fd, [buffer], at * PIECE)
            os.pwritev(self.fd, [buffer], at * PIECE)

    def run(self):
        self.next = 0
        threads = [threading.Thread(target=self._work, args=(b,)) for b in self.buffers]
        for t in threads:
            t.start()
        for t in threads:
            t.join()


def in_memory(options, state):
    fused = torch.optim.AdamW(parameters(options), lr=1e-4, fused=True)
    own = lade.torch.AdamW(parameters(options), lr=1e-4, state=state)
    for optimizer in (fused, own):
        optimizer.step()
    pairs = [(timed(fused.step, time.process_time), timed(own.step, time.process_time)) for _ in range(options.rounds)]
    print(f"| {state}, host | {statistics.median(b for _, b in pairs):.3f} | "
          f"{statistics.median(a for a, _ in pairs):.3f} | {statistics.median(b / a for a, b in pairs):.3f} |", flush=True)


def on_store(options, state):
    own = lade.torch.AdamW(parameters(options), lr=1e-4, state=state, where=f"store:{options.store}")
    own.step()
    n_bytes = own.state_bytes()
    drive = Drive(options.store, n_bytes)
    pairs = [(timed(drive.run) * n_bytes / (drive.n_pieces * PIECE), timed(own.step)) for _ in range(options.rounds)]
    print(f"| {state}, store, {n_bytes / 1e6:.0f} MB each way | {statistics.median(b for _, b in pairs):.3f} | "
          f"{statistics.median(a for a, _ in pairs):.3f} | {statistics.median(a / b for a, b in pairs):.3f} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("width", 768), ("layers", 12), ("rounds", 5), ("threads", 1)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--store", help="a directory on a drive")
    parser.add_argument("--states", default="fp32,bf16,8bit")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    count = sum(torch.Size(s).numel() for s in shapes(options.width, options.layers))
    print(f"torch {torch.__version__}, {options.threads} threads, {count / 1e6:.0f} million FP32 parameters\n")
    print("| state | step s | fused or drive s | ratio |\n|---|---|---|---|")
    for state in options.states.split(","):
        in_memory(options, state)
        if options.store:
            on_store(options, state)


if __name__ == "__main__":
    main()
