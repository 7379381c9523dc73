#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Masked documents train as if each had a row of its own, at any budget and in any layout.

Usage: documents.py LADE PLUGIN
"""
import json
import os
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "system"))

import jobs
from jobs import losses, require

LADE = os.path.abspath(sys.argv[1])
TOKENS = 16  # of a document, its separator included
MODEL = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "intermediate_size": 96,
         "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 256,
         "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": False}
STEADY = ["--data", "text.txt", "--model", "model/config.json", "--order", "sequential", "--valid-fraction", "0",
          "--dtype", "fp32", "--steps", "4", "--lr", "1e-3", "--warmup", "0", "--quiet", "--machine", "a100-40g"]
PACKED = ["--seq", str(2 * TOKENS), "--batch", "8", "--micro-batch", "2", "--mask-documents", "--separator", "10"]


def files_write():
    """Write the model, and documents of equal length that a newline ends."""
    os.mkdir("model")
    with open("model/config.json", "w", encoding="ascii") as file:
        json.dump(MODEL, file)
    with open("text.txt", "w", encoding="ascii") as file:
        for i in range(400):
            file.write(f"{i * i} and {i * 7919}........"[:TOKENS - 1].ljust(TOKENS - 1, "x") + "\n")


def run(line, environment=None):
    result = subprocess.run(line, env=environment, capture_output=True, text=True, timeout=jobs.PATIENCE, check=False)
    require(result.returncode == 0, " ".join(line), result.stderr)
    return result.stdout


def train(name, *options):
    """Return losses and summary of one process."""
    out = run([LADE, "train", *STEADY, "--json", "--log", name, *options])
    return losses(name), json.loads(out)


def is_near(some, others):
    return len(some) == len(others) == 4 and all(abs(a - b) <= 1e-5 * b for a, b in zip(some, others))


def as_if_alone():
    packed, summary = train("packed.log", *PACKED)
    alone, _ = train("alone.log", "--seq", str(TOKENS), "--batch", "16")
    unmasked, _ = train("unmasked.log", *PACKED[:-3])
    require(is_near(packed, alone), "packed documents have other losses than alone", f"{packed} {alone}")
    require(not is_near(packed, unmasked), "masks have no effect", f"{packed} {unmasked}")
    low, least = train("min.log", *PACKED, "--budget", "min")
    require(low == packed and all(least[key] == summary[key] for key in ("loss_digest", "params_digest")),
            "the smallest budget has other numbers", f"{low} {packed}")
    full, _ = train("full.log", *PACKED, "--recompute", "full")
    require(full == packed, "recomputed layers have other numbers", f"{full} {packed}")
    return packed


def in_every_layout(packed):
    """With three stages the second one reads neither tokens nor targets; with four the last one has the head alone."""
    environment = jobs.environment(sys.argv[2])
    for n, layout in ((2, ["--tp", "2"]), (2, ["--tp", "2", "--sequence-parallel"]), (2, ["--pp", "2"]),
                      (3, ["--pp", "3"]), (4, ["--pp", "4"]), (2, ["--dp", "2", "--zero", "3"])):
        run(jobs.command(LADE, n, *STEADY, *PACKED, *layout, "--log", "ranks.log"), environment)
        require(is_near(losses("ranks.log"), packed), f"{layout} has other losses", f"{losses('ranks.log')} {packed}")


def refusals():
    for options, words in ((["--mask-documents"], "--separator"), (["--separator", "10"], "--mask-documents"),
                           (["--mask-documents", "--separator", "256"], "vocabulary of 256")):
        result = subprocess.run([LADE, "train", *STEADY, "--seq", "16", *options], capture_output=True, text=True,
                                timeout=jobs.PATIENCE, check=False)
        require(result.returncode == 2 and words in result.stderr, f"{options} are accepted", result.stderr)


def main():
    with tempfile.TemporaryDirectory() as directory:
        os.chdir(directory)
        files_write()
        refusals()
        in_every_layout(as_if_alone())


sys.argv[2] = os.path.abspath(sys.argv[2]) if sys.argv[2] != "none" else "none"
main()
