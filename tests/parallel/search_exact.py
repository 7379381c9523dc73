#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""lade plan --search finds a layout as fast as the fastest of all, each planned alone: built, proved and taken if it fits.
It says that it leaves none undecided.

Usage: search_exact.py LADE
"""
import itertools
import json
import os
import subprocess
import tempfile

from plans import LADE, plan, require

GPT = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_layer": 6, "n_head": 8, "n_embd": 1024,
       "n_positions": 512, "vocab_size": 8192, "layer_norm_epsilon": 1e-5}
BATCH = 16
CASES = ((4, "330MiB"), (4, "400MiB"), (4, "500MiB"), (8, "250MiB"))
SCHEDULES = (("1f1b", "1"), ("zbh1", "1"), ("zbh2", "1"), ("interleaved", "2"), ("interleaved", "3"))


def layouts(ranks):
    """All layouts of @ranks: ones that cannot be are refused by plan."""
    for tp, pp in itertools.product((1, 2, 4, 8), repeat=2):
        dp = ranks // (tp * pp)
        if tp * pp * dp != ranks:
            continue
        for zero, is_sequence, micro_batch, (schedule, chunks) in itertools.product(
                range(4 if dp > 1 else 1), (False, True)[:1 + (tp > 1)], (1, 2, 4, 8, 16), SCHEDULES[:5 if pp > 1 else 1]):
            if micro_batch * dp > BATCH:
                continue
            yield ["--tp", str(tp), "--pp", str(pp), "--dp", str(dp), "--zero", str(zero), "--micro-batch", str(micro_batch),
                   *["--sequence-parallel"] * is_sequence, *(["--schedule", schedule, "--virtual-stages", chunks] if pp > 1
                                                             else [])]


def fastest_of_all(base, ranks):
    """Return (seconds, layout) of the fastest layout that fits, and the numbers of layouts that fit and that do not."""
    best, n_fit, n_not = (float("inf"), None), 0, 0
    for layout in layouts(ranks):
        done = subprocess.run([LADE, "plan", "--json", *base, *layout], capture_output=True, text=True, check=False)
        require(done.returncode in (0, 2, 3), layout, done.stderr)
        if done.returncode == 2:
            continue
        found = json.loads(done.stdout)
        n_fit, n_not = n_fit + found["fits"], n_not + (not found["fits"])
        if found["fits"]:
            best = min(best, (found["step_seconds"], layout))
    return best, n_fit, n_not


with tempfile.TemporaryDirectory(prefix="lade-search-") as scratch:
    model = os.path.join(scratch, "gpt.json")
    with open(model, "w", encoding="ascii") as file:
        json.dump(GPT, file)
    for ranks, budget in CASES:
        base = ["--cluster", "dgx-h100", "--model", model, "--batch", str(BATCH), "--seq", "512", "--budget", budget]
        (seconds, layout), n_fit, n_not = fastest_of_all(base, ranks)
        search = json.loads(plan("--json", *base, "--ranks", str(ranks), "--search", "--top", "1").stdout)
        found = search["layouts"][0]
        print(f"{ranks} ranks, {budget}: {n_fit} layouts fit, {n_not} do not; the fastest takes {seconds:.6f} s, the one found "
              f"{found['step_seconds']:.6f} s", layout, flush=True)
        require(n_fit and n_not, "a budget that some layouts fit", (budget, n_fit, n_not))
        require(search["unproved"] == 0, "the search is exact", (search["unproved"], search["unproved_step_seconds"]))
        require(found["step_seconds"] <= seconds * (1 + 1e-9), "the search misses the fastest layout", (layout, found))
