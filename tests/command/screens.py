#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`lade plan` fits a screen, and its advice gives what it says.

Usage: screens.py LADE
"""
import json
import os
import subprocess
import sys

LADE = os.path.abspath(sys.argv[1])
LINES, COLUMNS = 24, 100
H100 = ["--machine", "h100-80g"]
SMALL = ["--model", "gpt2-124m", "--layers", "2", "--seq", "128"]
PLANS = (["--model", "nano", "--machine", "laptop-8c"],
         ["--model", "baby", "--batch", "16", "--machine", "laptop-8c", "--budget", "40%", "--store", "DIR"],
         [*SMALL, "--batch", "8", "--machine", "rtx4090-24g", "--budget", "min", "--device", "dry"],
         ["--model", "gpt2-350m", "--batch", "4", "--seq", "256", *H100],
         ["--model", "gpt2-774m", "--batch", "2", "--seq", "512", "--machine", "rtx4090-24g", "--budget", "6GiB", "--store",
          "DIR", "--host-budget", "4GiB"],  # five queues
         ["--model", "gpt2-350m", "--layers", "3", "--seq", "100", "--batch", "4", "--machine", "laptop-8c", "--budget",
          "33%", "--host-budget", "0", "--store", "DIR", "--store-budget", "1TiB"],
         ["--model", "gpt2-1.5b", "--layers", "3", "--batch", "1", "--seq", "128", *H100, "--budget", "100MiB"],
         ["--model", "gpt2-774m", "--layers", "4", "--batch", "16", "--micro-batch", "1", "--tp", "2", "--pp", "2",
          "--dp", "4", "--zero", "1", "--sequence-parallel", "--host-budget", "64GiB", *H100],
         ["--model", "llama3-8b", "--layers", "2", "--batch", "1", *H100, "--budget", "12GiB"],
         ["--model", "llama3-70b", "--layers", "8", "--batch", "1", "--seq", "512", *H100, "--budget", "8GiB"],
         ["--model", "gpt3-175b", "--layers", "8", "--batch", "1", "--seq", "512", *H100, "--host-budget", "0"],
         ["--model", "gpt-1t", "--batch", "1", *H100])
CLUSTERED = (["--cluster", "dgx-h100", "--ranks", "64", "--model", "llama3-8b", "--batch", "64", "--seq", "4096", "--search"],
             ["--cluster", "dgx-h100", "--ranks", "16", "--model", "llama3-8b", "--layers", "4", "--tp", "2", "--dp", "8",
              "--batch", "16", "--seq", "2048"],
             ["--cluster", "dgx-h100", "--model", "llama3-8b", "--tp", "2", "--dp", "2", "--cp", "2", "--batch", "128",
              "--micro-batch", "1", "--seq", "8192"])
# Those whose advice is followed, with the words that it must hold at the least.
ADVISED = (([*SMALL, "--batch", "4", *H100, "--budget", "30%"], "--budget 100%"),
           ([*SMALL, "--batch", "4", *H100, "--budget", "100MiB", "--host-budget", "0"], "--moments 8bit"),
           (["--model", "baby", "--batch", "24", "--machine", "laptop-8c", "--budget", "30MiB"], "--micro-batch 12"),
           ([*SMALL, "--batch", "8", "--dp", "4", *H100, "--budget", "300MiB", "--host-budget", "0"], "--zero"))


def plan(*words, codes=(0, 3)):
    result = subprocess.run([LADE, "plan", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                            check=False)
    assert result.returncode in codes, (words, result)
    return result.stdout


for words in PLANS:
    out = plan(*words)
    lines = out.splitlines()
    assert len(lines) <= LINES and max(map(len, lines)) <= COLUMNS, (words, out)
    assert "data sheet, not measured" in out and "smallest budget" in out, (words, out)
    assert ("proved" in out) == ("slowdown" in out) == ("tokens/s" in out) == ("--detail" in out), (words, out)
    assert "memory at the peak" not in out, out
for words in CLUSTERED:
    lines = plan(*words).splitlines()
    assert len(lines) <= LINES and max(map(len, lines)) <= COLUMNS, (words, lines)
    assert any(line.endswith(" %") and "TFLOP/s" in line for line in lines), (words, lines)
detail = plan(*PLANS[0], "--detail")
assert "memory at the peak" in detail and "where values wait" in detail, detail

n_followed = 0
for words, needed in ADVISED:
    before = json.loads(plan(*words, "--json"))
    assert any(advice["change"].startswith(needed) for advice in before["advice"]), (words, before["advice"])
    assert len(before["advice"]) <= 3 and not before["is_measured"], before
    for advice in before["advice"]:
        after = json.loads(plan(*words, *advice["change"].split(), "--json"))
        assert after["min_budget_bytes"] == advice["min_budget_bytes"] and after["fits"] == advice["fits"], (words, advice)
        if after["fits"]:
            step = after.get("all_ranks_step_seconds", after["predicted_step_seconds"])
            assert abs(step - advice["step_seconds"]) < 1e-8, (words, advice, step)
            tokens = after["batch"] * after["seq"]
            assert abs(after["tokens_per_second"] * step / tokens - 1) < 1e-6, after["tokens_per_second"]
            assert after["slowdown"] >= 1, after["slowdown"]
        if before["fits"]:  # it is faster
            assert advice["step_seconds"] < before.get("all_ranks_step_seconds", before["predicted_step_seconds"]), words
        else:  # it fits, or needs less
            assert after["fits"] or after["min_budget_bytes"] < before["min_budget_bytes"], (words, advice)
        n_followed += 1
assert n_followed >= 5, n_followed
unneeded = json.loads(plan(*PLANS[3], "--json"))
assert unneeded["slowdown"] < 1.02 and unneeded["advice"] == [], unneeded["advice"]
# No plan is faster than the step without a budget: with ZeRO 2 the first plan that keeps everything is not the best.
sharded = json.loads(plan("--model", "gpt2-1.5b", "--layers", "4", "--batch", "64", "--micro-batch", "1", "--dp", "8",
                          "--zero", "2", "--machine", "h100-80g", "--json"))
assert sharded["slowdown"] >= 1 and sharded["unconstrained_step_seconds"] <= sharded["predicted_step_seconds"], sharded
# ZeRO 1 and 2 send the same bytes in a step of one microbatch, and take the same time. Each further microbatch adds a
# reduction of all gradients under ZeRO 2, which keeps no whole gradient from one to the next.
sent, seconds = {}, {}
for n_microbatches in (1, 2, 4):
    for zero in (1, 2):
        said = json.loads(plan("--model", "gpt2-1.5b", "--layers", "4", "--batch", str(8 * n_microbatches), "--micro-batch",
                               "1", "--dp", "8", "--zero", str(zero), "--machine", "h100-80g", "--json"))
        sent[zero, n_microbatches] = said["comm_bytes"]["shard"]
        seconds[zero, n_microbatches] = said["predicted_step_seconds"]
assert sent[1, 1] == sent[2, 1] == sent[1, 2] and sent[1, 4] < 1.01 * sent[1, 1], sent
assert sent[2, 4] - sent[2, 2] == 2 * (sent[2, 2] - sent[2, 1]) > 0, sent
assert abs(seconds[2, 1] / seconds[1, 1] - 1) < 0.02, seconds
