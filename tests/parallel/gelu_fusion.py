#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""GELU in its product has the same bits at every budget, and is the separate GELU in FP32. In 16 bits it is another
model, so neither resumes the other.

Usage: gelu_fusion.py LADE PLUGIN
"""
import json
import os
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "system"))

import jobs
from jobs import require

LADE = os.path.abspath(sys.argv[1])
STEADY = ["--data", "text.txt", "--model", "nano", "--layers", "2", "--steps", "2", "--batch", "4", "--micro-batch", "2", "--seq", "32",
          "--dropout", "0.1", "--lr", "1e-3", "--warmup", "0", "--valid-fraction", "0", "--quiet",
          "--machine", "a100-40g"]
FUSED = "--gelu-fusion"


def run(line, environment=None):
    return subprocess.run(line, env=environment, capture_output=True, text=True, timeout=jobs.PATIENCE, check=False)


def train(*options, n_ranks=1):
    """Return the digests of a run, whose measured peak is the planned one."""
    line = [LADE, "train", *STEADY, "--json", *options]
    environment = None
    if n_ranks > 1:
        line, environment = jobs.command(LADE, n_ranks, *STEADY, "--json", *options), jobs.environment(sys.argv[2])
    result = run(line, environment)
    require(result.returncode == 0, " ".join(line), result.stderr)
    summary = json.loads(result.stdout)
    require(summary["measured_peak_bytes"] == summary["planned_peak_bytes"], f"{options}: the peak is another", summary)
    return summary["loss_digest"], summary["params_digest"]


def budgets_have_the_same_bits():
    """A file of residencies keeps one output and makes the other again, each way."""
    for name, kept, made in (("sums.txt", "fc", "fc.gelu"), ("gelu.txt", "fc.gelu", "fc")):
        with open(name, "w", encoding="ascii") as file:
            file.write(f"h.*.mlp.{kept} host\nh.*.mlp.{made} recompute\n")
    whole, apart = train(FUSED), train()
    require(whole != apart, "the numbers in 16 bits are those of GELU alone", whole)
    for options in (["--budget", "min"], ["--recompute", "full"], ["--residency", "sums.txt"],
                    ["--residency", "gelu.txt"]):
        require(train(FUSED, *options) == whole, f"{options} has other numbers", whole)
    require(train(FUSED, "--dtype", "fp32") == train("--dtype", "fp32"), "FP32 has other numbers", "")


def ranks_have_the_same_bits():
    """Sums of ranks are in one order in FP32; in 16 bits a budget changes no bit of a layout."""
    if sys.argv[2] == "none":
        return
    fp32 = [FUSED, "--dtype", "fp32", "--dropout", "0"]
    require(train(*fp32, "--tp", "2", n_ranks=2) == train(*fp32), "two ranks have other numbers", fp32)
    require(train(FUSED, "--tp", "2", n_ranks=2) == train(FUSED, "--tp", "2", "--budget", "min", n_ranks=2),
            "two ranks have other numbers at the smallest budget", "")


def refused(words, *options, verb=("train", *STEADY)):
    result = run([LADE, *verb, *options])
    require(result.returncode == 2 and result.stderr.count("\n") == 1 and words in result.stderr, f"{options}: {words}",
            result.stderr)


def other_forms_are_refused():
    os.mkdir("drive")
    durable = ["--store", "drive", "--allow-tmpfs", "--durable"]
    train(FUSED, "--save", "fused")
    train("--save", "apart")
    train(FUSED, *durable, "--steps", "1")
    refused("with --gelu-fusion", "--steps", "3", "--resume", "fused")
    refused("without --gelu-fusion", "--steps", "3", "--resume", "apart", FUSED)
    refused("with --gelu-fusion", *durable)
    train(FUSED, *durable)
    train(FUSED, "--steps", "3", "--resume", "fused")
    train(FUSED, "--dtype", "fp32", "--save", "fp32")
    line = [LADE, "train", *STEADY, "--dtype", "fp32", "--steps", "3", "--resume", "fp32"]
    result = run(line)
    require(result.returncode == 0 and "gelu" not in result.stderr, "FP32 does not resume as it is", result.stderr)
    refused("have none", FUSED, "--model", "llama3.2-1b", verb=("plan", "--machine", "a100-40g"))


def main():
    with tempfile.TemporaryDirectory() as directory:
        os.chdir(directory)
        with open("text.txt", "w", encoding="ascii") as file:
            file.writelines(f"{i * i} bottles and {i * 7919}\n" for i in range(400))
        budgets_have_the_same_bits()
        other_forms_are_refused()
        ranks_have_the_same_bits()


sys.argv[2] = os.path.abspath(sys.argv[2]) if sys.argv[2] != "none" else "none"
main()
