#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Ranks on a GPU each, over the stand-ins for the driver and for NCCL. ranks: shards, parts of layers and stages have
the losses of one rank on a host, and the same bits at any budget; each rank has a GPU of its own however it is shown;
one line for what cannot be. layouts: the first of it in more layouts of four ranks.

Usage: train_ranks.py LADE PLUGIN STANDIN KERNELS ranks|layouts
"""
import json
import os
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "system"))
import jobs
from jobs import losses, require

LADE = os.path.abspath(sys.argv[1])
ENVIRONMENT = jobs.environment(sys.argv[2])
STANDIN, KERNELS = (os.path.abspath(path) for path in sys.argv[3:5])
SCRATCH = tempfile.TemporaryDirectory(prefix="lade-gpu-ranks-")
os.chdir(SCRATCH.name)
ENVIRONMENT.update(LADE_STANDIN_KERNELS=KERNELS, LADE_ATTENTION="mma", XDG_CACHE_HOME=os.getcwd(),
                   LD_LIBRARY_PATH=STANDIN, LADE_STANDIN="devices=4")
with open("text.txt", "w", encoding="utf-8") as file:
    file.writelines(f"{i * i % 97} bottles of wine on the wall, {i}\n" for i in range(2000))
with open("tiny.json", "w", encoding="utf-8") as file:
    json.dump({"model_type": "gpt2", "n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 8192, "vocab_size": 256},
              file)
SHORT = ["--model", "./tiny.json", "--seq", "16", "--data", "text.txt", "--batch", "4", "--micro-batch", "1",
         "--warmup", "1", "--lr", "1e-2", "--eval-iters", "1", "--quiet", "--machine", "h200-141g", "--steps", "2",
         "--dtype", "fp32", "--json", "--log", "log"]


def command(ranks, *args):
    return jobs.command(LADE, ranks, *SHORT, *args)


def summary(line, environment=None):
    """Its summary, with the losses of all steps."""
    if os.path.exists("log"):
        os.remove("log")
    code, out, err = jobs.run(line, environment or ENVIRONMENT)
    require(code == 0, f"{line} ends with {code}", err)
    found = json.loads(out)
    found["losses"] = losses("log")
    return found


def refused(code, words, line, **more):
    """The job ends with @code and one line of ours that has @words."""
    got, _, err = jobs.run(line, dict(ENVIRONMENT, **more))
    ours = [said for said in jobs.messages(err) if words in said]
    require(got == code and len(ours) == 1, f"{line} ends with {got}, not {code} and '{words}'", err)


GPUS = ["--device", "cuda:0"]
SOME = ["--dp 4 --shard 2 --zero 3", "--tp 2 --pp 2"]
MORE = ["--dp 4", "--dp 4 --zero 1", "--dp 4 --zero 2", "--dp 4 --zero 3", "--dp 4 --shard 2 --zero 1",
        "--dp 4 --shard 2 --zero 2", "--tp 2 --dp 2", "--tp 2 --dp 2 --zero 1", "--tp 2 --dp 2 --zero 2",
        "--tp 2 --dp 2 --zero 3", "--tp 2 --sequence-parallel --dp 2 --zero 3", "--tp 2 --sequence-parallel --pp 2",
        "--pp 2 --dp 2", "--pp 2 --dp 2 --zero 1", "--pp 2 --dp 2 --zero 2", "--pp 2 --dp 2 --zero 3",
        "--pp 2 --dp 2 --schedule gpipe", "--pp 2 --dp 2 --schedule zbh1 --zero 2"]
one = summary(command(0, "--device", "host"))
require(len(one["losses"]) == 2, "steps are missing", one)


def layout_verify(layout):
    """Any budget, the least too, gives one set of bits, near those of one rank."""
    runs = [summary(command(4, *GPUS, *layout.split(), *budget)) for budget in ([], ["--budget", "min"])]
    for run in runs:
        is_near = all(abs(a - b) <= 1e-5 * abs(a) for a, b in zip(one["losses"], run["losses"]))
        require(len(run["losses"]) == 2 and is_near, f"{layout} has other losses", (one["losses"], run["losses"]))
        require(run["planned_peak_bytes_by_rank"] == run["measured_peak_bytes_by_rank"] and run["ranks"] == 4,
                f"planned and measured peaks of {layout} differ", run)
        require(run["params_digest"] == runs[0]["params_digest"], f"a budget changes bits of {layout}", run)
    most, least = (run["measured_peak_bytes"] for run in runs)
    require(least < most, f"a budget saves nothing in {layout}", runs)


for layout in MORE if sys.argv[5] == "layouts" else SOME:
    layout_verify(layout)
if sys.argv[5] == "layouts":
    sys.exit(0)

# Each rank is shown one GPU alone; all are shown some in another order; not all have one of their own.
train = " ".join([LADE, "train", *SHORT, *GPUS, "--dp", "2"])
alone = summary([LADE, "launch", "-n", "2", "--", "sh", "-c",
                 f"CUDA_VISIBLE_DEVICES=$OMPI_COMM_WORLD_LOCAL_RANK exec {train}"])
again = summary(command(2, *GPUS, "--dp", "2"), dict(ENVIRONMENT, CUDA_VISIBLE_DEVICES="3,1"))
require(alone["params_digest"] == again["params_digest"], "who shows GPUs changes bits", (alone, again))
refused(7, "would share the GPU at 0000:c1:03.0", command(2, *GPUS, "--dp", "2"), CUDA_VISIBLE_DEVICES="2")
refused(7, "there is no GPU number 2", command(2, "--device", "cuda:1", "--dp", "2"), LADE_STANDIN="devices=2")
refused(5, "ncclAllReduce: internal error", command(2, *GPUS, "--dp", "2"),
        LADE_STANDIN_NCCL="fail=ncclAllReduce,nth=4,rank=1")
