#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Training on a GPU, or over the fake driver: losses are the host's within a bound, no budget, residency or checkpoint
changes a bit, and the peak is the planned one.

Usage: train.py LADE tiny|nano|brief [FAKES KERNELS]
FAKES: the folder of the fake driver, KERNELS: the library of kernels on the CPU; without them the machine's own GPU,
and 77 if there is none
brief: of tiny one run of each kind, enough for a sanitizer
"""
import json
import os
import shutil
import subprocess
import sys
import tempfile

LADE, SIZE = os.path.abspath(sys.argv[1]), sys.argv[2]
FAKES, KERNELS = (os.path.abspath(path) for path in sys.argv[3:5]) if len(sys.argv) > 3 else (None, None)
# Largest relative distance of a step's loss from the host's: sums have other cuts, and are rounded to the dtype.
BOUNDS = {"fp32": 1e-5, "bf16": 2e-3, "fp16": 2e-3}

SCRATCH = tempfile.TemporaryDirectory(prefix="lade-gpu-train-")
os.chdir(SCRATCH.name)
os.environ["XDG_CACHE_HOME"] = os.getcwd()
if FAKES:
    os.environ["LADE_FAKE_KERNELS"] = KERNELS
    os.environ["LADE_ATTENTION"] = "mma"  # trying all of them is slow here; others lack this head size
with open("text.txt", "w", encoding="utf-8") as file:
    file.writelines(f"{i * i % 97} bottles of {'beer' if i % 3 else 'wine'} on the wall, {i}\n" for i in range(2000))
# Long positions: parameters that are worth moving, with little arithmetic.
with open("tiny.json", "w", encoding="utf-8") as file:
    json.dump({"model_type": "gpt2", "n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 8192, "vocab_size": 256},
              file)
os.mkdir("drive")
SHORT = ["--model", "nano" if SIZE == "nano" else "./tiny.json", "--seq", "16",
         "--data", "text.txt", "--batch", "2", "--micro-batch", "1", "--warmup", "1", "--lr", "1e-2", "--eval-iters", "1",
          "--quiet", "--json", "--log", "log"]
DRIVE = ["--store", "drive", "--allow-tmpfs"]


def run(device, *args, machine="h200-141g"):
    """Return exit code, standard output and error of `lade train`; a described machine is not measured."""
    environment = dict(os.environ)
    if FAKES and device != "host":
        environment["LD_LIBRARY_PATH"] = FAKES
    args += ("--machine", machine) if machine else ()
    result = subprocess.run([LADE, "train", *SHORT, "--device", device, *args], stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True, check=False, env=environment)
    return result.returncode, result.stdout, result.stderr


def train(device, *args, **more):
    """Return its summary, with the losses of all steps."""
    if os.path.exists("log"):
        os.remove("log")
    code, out, err = run(device, *args, **more)
    assert code == 0, (device, args, code, err)
    summary = json.loads(out)
    with open("log", encoding="utf-8") as log:
        events = [json.loads(line) for line in log]
    summary["losses"] = [event["loss"] for event in events if event["event"] == "step"]
    assert (summary["outside_bytes"] > 0) == (device != "host"), summary
    assert summary["measured_peak_bytes"] == summary["planned_peak_bytes"] <= summary["budget_bytes"], summary
    return summary


def digests(summary):
    return summary["loss_digest"], summary["params_digest"]


def near(a, b, bound):
    return abs(a - b) <= bound * abs(b)


if not FAKES:
    code, _, err = run("cuda:0", "--steps", "0")
    if code == 7:
        print("SKIP: " + err.strip())
        sys.exit(77)

# Compared with the host, in every dtype; a GPU gives the same bits twice.
STEPS = ["--steps", "2"]
for dtype in {"brief": ["bf16"], "tiny": ["fp32", "bf16"], "nano": ["fp32", "fp16", "bf16"]}[SIZE]:
    host, whole = (train(device, *STEPS, "--dtype", dtype) for device in ("host", "cuda:0"))
    assert len(whole["losses"]) == len(host["losses"]) > 1
    assert all(near(*pair, BOUNDS[dtype]) for pair in zip(whole["losses"], host["losses"])), (whole, host)
    assert near(whole["val_loss"], host["val_loss"], BOUNDS[dtype]), (whole, host)
    assert whole["numerics_key"] != host["numerics_key"]
if SIZE != "brief":
    assert digests(train("cuda:0", *STEPS)) == digests(whole)

# No memory setting changes a bit: host tier, drive, recompute, all of them at once.
least = whole["unconstrained_bytes"]
residencies = [["--budget", "min"], ["--budget", "min", *DRIVE, "--host-budget", "6MiB"], ["--recompute", "full"]]
if SIZE != "brief":
    residencies += [["--budget", "60%"], ["--recompute", "selective"]]
for args in residencies:
    there = train("cuda:0", *STEPS, *args)
    assert digests(there) == digests(whole), (args, there, whole)
    least = min(least, there["measured_peak_bytes"])
assert least < whole["unconstrained_bytes"], (least, whole)
# Kernels launched one by one are loaded before a step as well: within it the driver would wait for work that waits for
# the load.
os.environ["LADE_CUDA_GRAPHS"] = "0"
assert digests(train("cuda:0", *STEPS, "--budget", "min", *DRIVE, "--host-budget", "6MiB")) == digests(whole)
del os.environ["LADE_CUDA_GRAPHS"]
pairs = [] if SIZE == "brief" else [(["--clip", "0"], ["--optimizer-in-backward", "--budget", "min"]),
                                    (["--gelu-fusion"], ["--recompute", "full"])]
if SIZE == "nano":
    pairs += [(["--grad-dtype", "bf16"], ["--budget", "min"]),
              (["--moments", "8bit", "--master", "24bit"], ["--budget", "min"])]
for same, more in pairs:
    assert digests(train("cuda:0", *STEPS, *same)) == digests(train("cuda:0", *STEPS, *same, *more)), (same, more)

if SIZE == "nano":
    sys.exit(0)

# Independent of the model. State that outlives a run, a checkpoint's or a drive's, is resumed without a change; on
# another device the run reports that.
train("cuda:0", *STEPS, "--save", "saves", "--save-every", "1")
for name in sorted(name for name in os.listdir("saves") if name.startswith("step-"))[1:]:
    shutil.rmtree(os.path.join("saves", name))
if SIZE != "brief":
    code, _, err = run("host", *STEPS, "--resume", "saves")
    assert code == 0 and "other kernels" in err, (code, err)
assert digests(train("cuda:0", *STEPS, "--resume", "saves")) == digests(whole)
for _ in range(2):
    assert digests(train("cuda:0", *STEPS, *DRIVE, "--durable")) == digests(whole)

# With prices measured on this device, the numbers are the same.
measured = train("cuda:0", *STEPS, "--budget", "min", machine=None)
assert digests(measured) == digests(whole) and measured["speed_of_light"] > 0, (measured, whole)

# A product whose rows the library does not take with GELU would be a plain kernel's.
with open("odd.json", "w", encoding="utf-8") as file:
    json.dump({"model_type": "gpt2", "n_embd": 32, "n_inner": 36, "n_layer": 1, "n_head": 2, "n_positions": 64,
               "vocab_size": 256}, file)
SHORT[1] = "./odd.json"
code, out, err = run("cuda:0", *STEPS, "--gelu-fusion")
assert code == 2 and not out and "no product of 16 x 36 x 32 with GELU in bf16" in err, (code, out, err)
SHORT[1] = "./tiny.json"

# A budget beyond any GPU is refused before anything is taken.
code, out, err = run("cuda:0", *STEPS, "--budget", "900TiB")
refusals = [line for line in err.splitlines() if ": note: " not in line]
assert code == 3 and not out and len(refusals) == 1, (code, out, err)
