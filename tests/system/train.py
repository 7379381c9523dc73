#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Training from a script: the contract of the summary and the log, budgets, resuming, signals, exit codes.

Usage: train.py LADE
"""
import glob
import json
import math
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time

LADE = os.path.abspath(sys.argv[1])
CHUNK = 2 << 20
SHORT = ["--model", "nano", "--batch", "2", "--seq", "32", "--warmup", "2", "--eval-iters", "2", "--quiet"]
QUEUES = {"compute", "to_host", "to_device", "io", "host"}

SCRATCH = tempfile.TemporaryDirectory(prefix="lade-train-")  # removed with the process
os.chdir(SCRATCH.name)
os.environ["XDG_CACHE_HOME"] = os.getcwd()
with open("text.txt", "w", encoding="utf-8") as file:
    for i in range(4000):
        file.write(f"{i * i % 97} bottles of {'beer' if i % 3 else 'wine'} on the wall, {i}\n")


def run(*args):
    result = subprocess.run([LADE, *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False,
                            stdin=subprocess.DEVNULL)
    return result.returncode, result.stdout, result.stderr


def done(*args):
    code, out, err = run(*args)
    assert code == 0, (args, code, err)
    return json.loads(out)


def train(*args):
    return done("train", *SHORT, "--data", "text.txt", "--json", *args)


def refused(code, *args, words=()):
    got, out, err = run(*args)
    assert got == code, (args, got, out, err)
    lines = [line for line in err.splitlines() if line.startswith("lade ") and ": note:" not in line]
    assert len(lines) == 1, (args, err)
    for word in words:
        assert word in lines[0], (args, word, err)


def events(path):
    with open(path, encoding="utf-8") as log:
        return [json.loads(line) for line in log]


# The summary has every field of the contract; measured peaks are the planned ones.
whole = train("--steps", "6", "--log", "log.jsonl", "--timeline", "trace.json", "--eval-every", "2")
for field in ("parameters", "budget_bytes", "planned_peak_bytes", "measured_peak_bytes", "host_bytes", "store_bytes",
              "steps", "train_loss", "val_loss", "tokens_per_second", "speed_of_light", "predicted_step_seconds",
              "measured_step_seconds"):
    assert isinstance(whole[field], (int, float)), (field, whole)
for field in ("loss_digest", "params_digest", "numerics_key"):
    assert re.fullmatch("[0-9a-f]{16}", whole[field]), (field, whole)
assert whole["event"] == "summary" and whole["schema_version"] == 1 and whole["steps"] == 6
assert whole["planned_peak_bytes"] == whole["measured_peak_bytes"] <= whole["budget_bytes"]
assert set(whole["predicted_queue_seconds"]) == set(whole["measured_queue_seconds"]) == QUEUES
assert set(whole["stall_seconds"]) == QUEUES
assert 0 <= sum(whole["stall_seconds"].values()) < whole["measured_step_seconds"]

# The log: the configuration, evaluations before, between and after, every step, and the same summary at the end.
log = events("log.jsonl")
assert log[0]["event"] == "config" and log[0]["options"]["batch"] == {"value": "2", "from": "command line"}
assert [event["step"] for event in log if event["event"] == "eval"] == [0, 2, 4, 6]
steps = [event for event in log if event["event"] == "step"]
assert [event["step"] for event in steps] == list(range(6))
assert all({"loss", "grad_norm", "lr", "tokens_per_second", "peak_bytes"} <= set(event) for event in steps)
assert log[-1]["event"] == "summary" and log[-1]["params_digest"] == whole["params_digest"]
assert steps[-1]["loss"] < steps[0]["loss"] and abs(steps[-1]["loss"] - whole["train_loss"]) < 1e-6

with open("trace.json", encoding="utf-8") as file:
    trace = json.load(file)["traceEvents"]
for process in (1, 2):
    spans = [event for event in trace if event["pid"] == process and event["ph"] == "X"]
    assert len(spans) > 50 and any("matmul" in event["name"] for event in spans), len(spans)

# Updates inside the backward pass: the same bits without clipping; with it, or with fp16, refused with the reason.
late, early = (train("--steps", "6", "--clip", "0", *flag, "--micro-batch", "1")
               for flag in ([], ["--optimizer-in-backward"]))
assert early["params_digest"] == late["params_digest"] != whole["params_digest"]
assert early["loss_digest"] == late["loss_digest"]
refused(2, "train", *SHORT, "--data", "text.txt", "--optimizer-in-backward", words=["--clip 0", "norm"])
refused(2, "train", *SHORT, "--data", "text.txt", "--optimizer-in-backward", "--clip", "0", "--dtype", "fp16",
        words=["fp16", "overflows"])

# Over a drive: the bytes that a step moves are stated before it and in the summary, the same in plan and run.
os.mkdir("drive")
DRIVE = ["--budget", "min", "--host-budget", "0", "--store", "drive", "--allow-tmpfs"]
if run("doctor", "--store", "drive")[0] == 0:
    stored, planned = train("--steps", "2", *DRIVE), done("plan", *SHORT, "--data", "text.txt", "--json", *DRIVE)
    for field in ("store_read_bytes_per_step", "store_written_bytes_per_step"):
        assert stored[field] == planned[field] >= 10 * stored["parameters"], (field, stored, planned)
    # The tuner's results are cached with the drive's rates, and no number depends on them.
    [cache] = glob.glob("lade/probe-*.json")
    with open(cache, encoding="utf-8") as file:
        kept = file.read()
    probed = json.loads(kept)
    for entry in probed["stores"].values():
        assert all(entry[size] > 0 for size in ("piece_bytes", "pieces", "window_bytes", "windows")), entry
        entry.update(piece_bytes=65536, pieces=2, windows=2)
    with open(cache, "w", encoding="utf-8") as file:
        json.dump(probed, file)
    fewer = train("--steps", "2", *DRIVE)
    # The doctor states the drive's rates, before and after a long run has been kept.
    unknown = run("doctor", "--store", "drive")[1]
    for entry in probed["stores"].values():
        entry.update(lasting_read_bytes_per_s=1.25e9, lasting_write_bytes_per_s=0.5e9, lasting_latency_ns=0)
    with open(cache, "w", encoding="utf-8") as file:
        json.dump(probed, file)
    known = run("doctor", "--store", "drive")[1]
    assert "long runs: not known" in unknown and "long runs: read 1.25 GB/s, write 0.50," in known, (unknown, known)
    assert fewer["params_digest"] == stored["params_digest"] and fewer["store_bytes"] > 0, (fewer, stored)
    with open(cache, "w", encoding="utf-8") as file:
        file.write(kept)
    for kind in ("read", "written"):  # as the drive counts them, in whole blocks
        planned, moved = (stored[f"{head}store_{kind}_bytes_per_step"] for head in ("", "measured_"))
        assert planned <= moved <= 1.1 * planned + (1 << 18), (kind, planned, moved)
    # Several directories are one store, at the price of a drive.
    os.mkdir("drive,too")
    several = train("--steps", "2", *DRIVE, "--store", "drive,drive,,too")
    assert several["params_digest"] == stored["params_digest"] and several["predicted_step_seconds"] < 1000, several
    code, out, err = run("train", *[word for word in SHORT if word != "--quiet"], "--data", "text.txt", "--steps", "2", *DRIVE)
    assert code == 0 and re.search("^drive: .* reserved; a step moves .*/s that it does at first$", err, re.M), err
    for words in (out, run("plan", *SHORT, "--data", "text.txt", *DRIVE)[1]):
        assert re.search("^drive .* read and .* written by a step; 600 TB are written in .* days\n +.* of room, and .*/s of "
                         "the .*/s that it does at first$", words, re.M), words
    # Gradients of two microbatches wait between them in the tier that a residency file names, also in part, and change
    # no number.
    two = train("--steps", "2", "--micro-batch", "1")
    for lines, n_bytes in (("gradients * keep", 0), ("gradients h.0.* host", 0), ("gradients * store", 4)):
        with open("tiers", "w", encoding="utf-8") as file:  # updates over the drive would write, too, where they save time
            file.write("optimizer * device\n" + lines + "\n")
        apart = train("--steps", "2", "--micro-batch", "1", "--store", "drive", "--allow-tmpfs", "--residency", "tiers")
        assert (apart["loss_digest"], apart["params_digest"]) == (two["loss_digest"], two["params_digest"]), lines
        assert apart["store_written_bytes_per_step"] == n_bytes * apart["parameters"], (lines, apart)
    for lines, words in (("gradients * drop", "keep, or wait"), ("gradients *", "line 1"), ("gradients x host", "nothing")):
        with open("tiers", "w", encoding="utf-8") as file:
            file.write(lines + "\n")
        refused(2, "train", *SHORT, "--data", "text.txt", "--residency", "tiers", words=["--residency tiers", words])
    with open("tiers", "w", encoding="utf-8") as file:
        file.write("optimizer * store\n")
    refused(3, "train", *SHORT, "--data", "text.txt", *DRIVE, "--residency", "tiers", "--store-budget", "1MiB",
            words=["does not fit in any budget", "store 1.0 MiB", "--store-budget"])
    code, out, err = run("plan", *SHORT, "--data", "text.txt", *DRIVE, "--durable", "--store-budget", "1MiB")
    assert code == 3 and "smallest budget none" in out and "two slots" in err, (code, out, err)
assert whole["store_read_bytes_per_step"] == whole["store_written_bytes_per_step"] == 0

# Long windows for a drive are for speed. Without memory for them, or if other values are worth more there, the usual
# ones are taken. The smallest budget is therefore the same, and stated at any other; and no larger budget is slower.
MACHINE = {"name": "liking long windows", "cores": 2, "unified": True, "device_bytes": "8GiB", "host_bytes": "8GiB",
           "matmul_flops_per_s": {"f32": 1e11, "bf16": 4e11}, "device_bytes_per_s": 2e10, "launch_ns": 1000,
           "to_host": {"bytes_per_s": 10**10}, "to_device": {"bytes_per_s": 10**10}, "duplex": True,
           "host_bytes_per_s": 2e10, "store": {"bytes": "100GiB", "read_bytes_per_s": 2e9, "write_bytes_per_s": 2e9}}
smallest = []
for sizes in ({}, {"window_bytes": 6 << 20, "windows": 12}):
    MACHINE["store"].update(sizes)
    with open("machine.json", "w", encoding="utf-8") as file:
        json.dump(MACHINE, file)
    seconds = []
    for budget in ("min", *(str(smallest[0] + i * CHUNK) for i in (range(11) if smallest else []))):
        planned = done("plan", "--model", "baby", "--layers", "2", "--batch", "4", "--seq", "128", "--device", "dry",
                       "--machine", "machine.json", *DRIVE[2:], "--store-budget", "1GiB", "--json", "--budget", budget)
        smallest.append(planned["min_budget_bytes"])
        seconds.append(planned["predicted_step_seconds"])
        assert budget != "min" or planned["planned_peak_bytes"] == smallest[-1], planned
    assert seconds == sorted(seconds, reverse=True), seconds
assert len(set(smallest)) == 1, smallest

# A budget changes no bit; the smallest is exact.
plan = done("plan", *SHORT, "--data", "text.txt", "--json", "--budget", "min")
least = plan["min_budget_bytes"]
assert plan["fits"] and plan["planned_peak_bytes"] == least and plan["lower_bound_bytes"] <= least
for space in ("device", "host", "store"):
    ledger = plan["ledger"][space]
    assert sum(ledger.values()) == 2 * ledger["total"], ledger
assert plan["ledger"]["device"]["total"] == least
assert [unit["unit"] for unit in plan["residency"]] == ["embed", "h.0", "h.1", "h.2", "h.3", "head"]
for unit in plan["residency"]:
    for choice in unit["choices"]:
        assert choice["where"] in ("keep", "recompute", "device", "host", "store"), choice
        assert choice["bytes"] > 0 and choice["seconds"] >= 0 and choice["reason"] and choice["what"], choice
small = train("--steps", "6", "--budget", "min")
assert small["measured_peak_bytes"] == small["planned_peak_bytes"] == least, (small, least)
assert (small["loss_digest"], small["params_digest"]) == (whole["loss_digest"], whole["params_digest"])

# Rounded gradients give other numbers, near, and the same at every budget.
rounded, small = (train("--steps", "6", "--grad-dtype", "bf16", "--budget", budget) for budget in ("100%", "min"))
assert (small["loss_digest"], small["params_digest"]) == (rounded["loss_digest"], rounded["params_digest"])
assert rounded["loss_digest"] != whole["loss_digest"]
assert abs(rounded["train_loss"] / whole["train_loss"] - 1) < 0.01, (rounded, whole)
refused(3, "train", *SHORT, "--data", "text.txt", "--budget", str(least - CHUNK),
        words=[f"{least - CHUNK} bytes", f"({least} bytes)"])
refused(3, "train", *SHORT, "--data", "text.txt", "--budget", "1.5%",
        words=["--budget 1.5%: ", f"({plan['unconstrained_bytes'] * 3 // 200} bytes)", f"({least} bytes)"])
refused(3, "train", *SHORT, "--data", "text.txt", "--host-budget", "1000TiB",
        words=["--host-budget takes 1000.0 TiB", f"({least} bytes): state --budget as well, or a smaller --host-budget"])
code, out, err = run("plan", *SHORT, "--json", "--budget", str(least - CHUNK))
assert code == 3 and str(least) in err and not json.loads(out)["fits"], (code, out, err)

# A store must be a directory, also if a plan turns out not to need it.
for verb in ("train", "plan"):
    refused(2, verb, *SHORT, "--data", "text.txt", "--store", "text.txt", words=["store text.txt is not a directory"])

# The same over a drive alone, if this directory can hold a store; options of a store are refused without one.
code, out, err = run("train", *SHORT, "--data", "text.txt", "--json", "--steps", "6", "--budget", "min",
                     "--host-budget", "0", "--store", ".")
if code == 5 and ("tmpfs" in err or "O_DIRECT" in err):
    print("no store here:", err.strip())
else:
    assert code == 0, (code, err)
    drive = json.loads(out)
    assert drive["store_bytes"] > 0 and drive["measured_peak_bytes"] == drive["planned_peak_bytes"], drive
    assert (drive["loss_digest"], drive["params_digest"]) == (whole["loss_digest"], whole["params_digest"])
    # And over two directories, one with a comma in its name.
    os.mkdir("a")
    os.mkdir("b,c")
    drives = done("train", *SHORT, "--data", "text.txt", "--json", "--steps", "6", "--budget", "min",
                  "--host-budget", "0", "--store", "a,b,,c")
    os.rmdir("a")
    os.rmdir("b,c")
    assert drives["store_bytes"] > 0, drives
    assert (drives["loss_digest"], drives["params_digest"]) == (whole["loss_digest"], whole["params_digest"])

# Dry: the real executor on a simulated clock, and the simulator's time.
dry = done("plan", *SHORT, "--json", "--device", "dry")
assert dry["dry_step_seconds"] > 0 and set(dry["dry_queue_seconds"]) == QUEUES

# The largest that fits: one more does not.
found = done("plan", *SHORT, "--json", "--max", "layers", "--budget", "16MiB", "--host-budget", "0")["value"]
assert found >= 1
fit = ["plan", *SHORT, "--json", "--budget", "16MiB", "--host-budget", "0", "--layers"]
assert done(*fit, str(found))["fits"]
assert run(*fit, str(found + 1))[0] == 3

# By described prices: a run measures its ops anew, and the sizes that fit may depend on them.
wide = ["--model", "nano", "--batch", "64", "--budget", "20MiB", "--host-budget", "0", "--data", "text.txt", "--machine",
        "laptop-8c"]
found = done("plan", *wide, "--json", "--max", "seq")["value"]
longest = ["train", *wide, "--steps", "1", "--eval-iters", "1", "--quiet", "--seq"]
assert 1 <= found < 64 and run(*longest, str(found))[0] == 0 and run(*longest, str(found + 1))[0] == 3, found

# The learning rate: up over the warm-up, down half a cosine to the minimum; constant when both are equal.
train("--steps", "10", "--lr", "1e-3", "--min-lr", "1e-4", "--warmup", "4", "--log", "lr.jsonl")
rates = [event["lr"] for event in events("lr.jsonl") if event["event"] == "step"]
want = [1e-3 * (i + 1) / 5 for i in range(4)] + [1e-4 + 0.5 * (1 + math.cos(math.pi * i / 6)) * 9e-4 for i in range(6)]
assert all(math.isclose(got, rate, rel_tol=1e-6) for got, rate in zip(rates, want, strict=True)), (rates, want)
train("--steps", "5", "--lr", "2e-3", "--min-lr", "2e-3", "--warmup", "0", "--log", "constant.jsonl")
rates = [event["lr"] for event in events("constant.jsonl") if event["event"] == "step"]
assert all(math.isclose(rate, 2e-3, rel_tol=1e-6) for rate in rates), rates

# A run in two parts has the bits of a run in one. The directory holds the configuration.
half = ["--steps", "6", "--save", "saved"]
train(*half, "--save-every", "2", "--keep", "2", "--log", "parts.jsonl", "--steps", "3", "--lr", "1e-3")
with open("saved/lade.conf", encoding="utf-8") as file:
    assert "batch = 2 " in file.read()
assert sorted(name for name in os.listdir("saved") if name.startswith("step-")) == ["step-00000002", "step-00000003"]

# The first signal ends the run after its step, saves, and prints how to resume; that command ends with the same bits.
train("--steps", "40", "--log", "reference.jsonl")
reference = events("reference.jsonl")[-1]
command = [LADE, "train", *SHORT, "--data", "text.txt", "--steps", "40", "--save", "stopped", "--log", "stop.jsonl",
           "--json"]
with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
    while not (os.path.exists("stop.jsonl") and '"step"' in open("stop.jsonl", encoding="utf-8").read()):
        time.sleep(0.002)
    child.send_signal(signal.SIGTERM)
    out, err = child.communicate()
if child.returncode == 0:
    print("the run was over before the signal came")
else:
    assert child.returncode == 128 + signal.SIGTERM and not out, (child.returncode, out, err)
    resume = [line for line in err.splitlines() if "--resume" in line][0]
    result = done(*shlex.split(resume)[1:])
    assert result["steps"] == 40
    assert result["loss_digest"] == reference["loss_digest"], (result, reference)
    assert result["params_digest"] == reference["params_digest"], (result, reference)
    assert [event["step"] for event in events("stop.jsonl") if event["event"] == "step"] == list(range(40))

# A closing terminal sends SIGHUP, usually twice, and the run saves; a SIGHUP ignored at the start stays ignored.
def hung_up(folder, disposition, *numbers):
    command = [LADE, "train", *SHORT, "--data", "text.txt", "--steps", "1000000", "--save", folder, "--log",
               folder + ".jsonl", "--quiet"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True,
                          preexec_fn=lambda: signal.signal(signal.SIGHUP, disposition)) as hung:
        while not (os.path.exists(command[-2]) and '"step"' in open(command[-2], encoding="utf-8").read()):
            time.sleep(0.002)
        for number in numbers:
            hung.send_signal(number)
        said = hung.communicate()[1]
    assert "--resume" in said and [name for name in os.listdir(folder) if name.startswith("step-")], (numbers, said)
    return hung.returncode


assert hung_up("hung", signal.SIG_DFL, signal.SIGHUP, signal.SIGHUP) == 128 + signal.SIGHUP
assert hung_up("ended", signal.SIG_DFL, signal.SIGTERM) == 128 + signal.SIGTERM
assert hung_up("nohup", signal.SIG_IGN, signal.SIGHUP, signal.SIGTERM) == 128 + signal.SIGTERM

# Resuming with other options runs, and reports once the differences to an uninterrupted run; the seed is the
# checkpoint's, for the batches too.
train("--steps", "3", "--seed", "7", "--save", "seeded")
go_on = ["--data", "text.txt", "--steps", "6", "--resume", "seeded", "--quiet", "--json"]
code, out, err = run("train", *SHORT, *go_on, "--batch", "4", "--dtype", "fp32")
assert code == 0 and err.count("\n") == 2, (code, err)
assert "--seed 7, not 1; going on with 7" in err.splitlines()[0], err
for difference in ("--dtype was bf16 and is fp32", "--batch was 2 and is 4", "--steps was 3 and is 6"):
    assert difference in err.splitlines()[1], err
with open("other.txt", "wb") as file:
    file.write(open("text.txt", "rb").read()[::-1])
code, out, err = run("train", *SHORT, *go_on, "--seed", "7", "--data", "other.txt")
assert code == 0 and "the training data is another" in err, (code, err)
default, seeded = (run("train", *SHORT, *go_on, *seed) for seed in ((), ("--seed", "7")))
assert json.loads(default[1])["loss_digest"] == json.loads(seeded[1])["loss_digest"], (default, seeded)
os.mkfifo("seeded/step-00000004")
refused(5, "train", *SHORT, *go_on, words=["step-00000004", "Not a directory"])
os.rename("seeded/step-00000004", "pipe")
os.rename("seeded/step-00000003/state.json", "state.json")
os.mkfifo("seeded/step-00000003/state.json")
refused(5, "train", *SHORT, *go_on, words=["state.json", "not a regular file"])
os.rename("state.json", "seeded/step-00000003/state.json")
os.rename("seeded/step-00000003", "seeded/step-00000005")
refused(5, "train", *SHORT, *go_on, words=["is of step 3"])

# A sweep: the same digests, one summary for each; a budget that is too small is named and the code is 3.
sweep = ["sweep", *SHORT, "--data", "text.txt", "--steps", "3", "--json"]
runs = done(*sweep, "--budgets", "100%, 50%, min")["runs"]
assert [one["budget"] for one in runs] == ["100%", "50%", "min"]
assert len({(one["loss_digest"], one["params_digest"]) for one in runs}) == 1
assert all(one["measured_peak_bytes"] <= one["budget_bytes"] for one in runs)
code, out, err = run(*sweep, "--budgets", "100%,1MiB")
runs = json.loads(out)["runs"]
assert code == 3 and runs[0]["steps"] == 3 and runs[1] == {"budget": "1MiB", "exit_code": 3}, (code, runs)
done(*sweep, "--budgets", "100%,100%", "--save", "twice")
assert {name for name in os.listdir(".") if name.startswith("twice")} == {"twice.100%", "twice.100%.2"}, os.listdir(".")
code, out, err = run("sweep", *SHORT, "--data", "text.txt", "--steps", "3", "--budgets", "100%,min")
assert code == 0 and "same bits" in out and "lade train" in out and "\033" not in out, out

# Bad input: the right code, one line, and no file written.
before = sorted(os.listdir("."))
open("empty.txt", "w", encoding="utf-8").close()
with open("bad.json", "w", encoding="utf-8") as file:
    file.write('{"model_type": "gpt2", "vocab_size": 256, "n_embd": 64, "n_head": 4, "n_positions": 64, "n_layer": -3}')
refused(2, "train", *SHORT, "--data", "missing.txt", "--save", "never", "--log", "never.jsonl", words=["missing.txt"])
refused(2, "train", *SHORT, "--data", "empty.txt", "--save", "never", words=["empty.txt"])
refused(2, "train", *SHORT, "--data", "text.txt", "--model", "bad.json", words=["bad.json", "n_layer"])
refused(2, "train", *SHORT, "--data", "text.txt", "--model", "nanno", words=["nanno", "nano"])
refused(2, "train", *SHORT, "--data", "text.txt", "--model", "gpt2-124m", words=["vocabulary"])
refused(2, "train", *SHORT, "--data", "text.txt", "--seq", "65", words=["65", "64"])
refused(2, "train", *SHORT, "--data", "text.txt", "--resume", "nowhere", words=["nowhere"])
refused(2, "train", *SHORT, "--data", "text.txt", "--init", "nowhere", words=["nowhere"])
refused(2, "train", *SHORT, "--data", "text.txt", "--store", "nowhere", "--budget", "min", words=["nowhere"])
refused(2, "train", *SHORT, "--data", "text.txt", "--machine", "nowhere", words=["nowhere"])
refused(2, "train", *SHORT, "--data", "text.txt", "--steps", "1", "--resume", "saved", words=["--steps"])
refused(5, "train", *SHORT, "--data", "text.txt", "--steps", "1", "--log", "/dev/full", words=["/dev/full"])
assert sorted(os.listdir(".")) == sorted(before + ["bad.json", "empty.txt"]), os.listdir(".")

# Validation uses the whole model, without dropout; training steps use dropout.
clean, dropped = train("--steps", "0"), train("--steps", "0", "--dropout", "0.5")
assert clean["val_loss"] == dropped["val_loss"], (clean, dropped)
assert train("--steps", "1")["loss_digest"] != train("--steps", "1", "--dropout", "0.5")["loss_digest"]

# Save interval from a failure rate, after measuring the first step's save. Rare failures leave that save and the last
# one; with constant ones every step is saved.
for mtbf, wanted in (("1e11", [1, 5]), ("1e-9", [1, 2, 3, 4, 5])):
    train("--steps", "5", "--save", "paced", "--save-every", "auto", "--mtbf", mtbf, "--log", "paced.log")
    saves = [event for event in events("paced.log") if event["event"] == "save"]
    assert [event["step"] for event in saves] == wanted, saves
    for event in saves:
        assert abs(event["interval_seconds"] / (2 * event["seconds"] * float(mtbf)) ** 0.5 - 1) < 1e-9, event
    shutil.rmtree("paced")
refused(2, "train", "--data", "text.txt", "--save", "paced", "--save-every", "auto", words=["--mtbf"])
refused(2, "train", "--data", "text.txt", "--mtbf", "10", words=["--save"])

# Text from a checkpoint: the same seed prints the same bytes; a model that cannot be sampled is refused.
train("--steps", "4", "--save", "sampled")
sample = ["sample", "sampled", "--prompt", "9 bottles", "--tokens", "20"]


def text(*args):
    result = subprocess.run([LADE, *sample, *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)
    assert result.returncode == 0 and result.stdout.startswith(b"9 bottles"), result
    assert len(result.stdout) == len(b"9 bottles") + 20 + 1, result
    return result.stdout


assert text("--seed", "3") == text("--seed", "3") != text("--seed", "4")
assert text("--temperature", "0") == text("--temperature", "0", "--seed", "9") == text("--top-k", "1")
assert len(text("--tokens", "20")) > 0
refused(2, "sample", "nowhere", words=["nowhere"])
refused(2, "sample", "sampled", "--prompt", "", words=["--prompt"])
with open("sampled/step-00000004/model.safetensors", "r+b") as file:
    file.truncate(5000)
refused(5, *sample, words=["model.safetensors"])
