#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Commands that users tried and that once misled them: each gets the answer that its user needs.

Usage: use.py LADE
"""
import glob
import json
import os
import pickle
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile

LADE = os.path.abspath(sys.argv[1])
SCRATCH = tempfile.TemporaryDirectory(prefix="lade-use-")  # removed with the process
os.chdir(SCRATCH.name)
os.environ["XDG_CACHE_HOME"] = os.getcwd()
SHORT = ["--model", "nano", "--batch", "2", "--seq", "32", "--eval-iters", "1", "--data", "text.txt", "--quiet"]
PLAN = ["plan", "--layers", "1", "--batch", "1", "--seq", "32", "--machine", "laptop-8c"]


def run(*args):
    result = subprocess.run([LADE, *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
    return result.returncode, result.stdout, result.stderr


def refused(code, words, *args):
    """@args are refused with @code and one line on stderr that has all @words."""
    got, out, err = run(*args)
    assert got == code and not out and err.count("\n") == 1, (args, got, out, err)
    assert all(word in err for word in words), (args, words, err)
    return err


def write(name, data):
    with open(name, "wb") as file:
        file.write(data)
    return name


write("text.txt", b"".join(b"%d green bottles\n" % (i * i % 97) for i in range(3000)))

# A reader that leaves early, as head does, ends the command as it ends others: by SIGPIPE and without a line.
reader, writer = os.pipe()
os.close(reader)
result = subprocess.run([LADE, *PLAN], stdout=writer, stderr=subprocess.PIPE, check=False)
os.close(writer)
assert result.returncode == -signal.SIGPIPE and not result.stderr, result

# An option of another verb or another trainer is not answered with a hint at an unrelated one.
write("one.csv", b"id,lower,upper,size\n0,0,3,100\n")
assert "did you mean" not in refused(2, ["lade replay: --quiet is not an option of this verb"], "replay", "one.csv", "--quiet")
for verb, option, words in (("train", "--cp", "context parallel"), ("train", "--ep", "expert parallel"),
                            ("plan", "--cp", "--cluster"), ("plan", "--ep", "expert parallel")):
    assert "did you mean" not in refused(2, [option, words], verb, option, "2")
for option in ("--cp", "--ep"):
    assert "did you mean" not in refused(2, [option, "`lade replay --help`"], "replay", "one.csv", option, "2")

# A layout's refusal names the option that was given, not the default of another.
refused(2, ["virtual stages 3", "pp is 1"], *PLAN, "--virtual-stages", "3")
refused(2, ["schedule gpipe", "pp is 1"], *PLAN, "--schedule", "gpipe")

# Machines: a file that is missing, and a size whose unit is none.
open("torn.json", "w").write('{"preset": "h100-80g",')
refused(5, ["torn.json:1: not valid JSON"], *PLAN[:-1], "torn.json")
assert "expected one of" not in refused(2, ["missing.json: cannot open: No such file"], *PLAN[:-1], "missing.json")
refused(2, ["no machine named 'h100'", "h100-80g"], *PLAN[:-1], "h100")
write("machine.json", b'{"preset": "h100-80g", "device_bytes": "80 GiBs"}')
refused(2, ['device_bytes is "80 GiBs"', "units", "GiB"], *PLAN[:-1], "machine.json")

# Activations that wait on the host for the backward pass are saved ones in the ledger.
code, out, err = run("plan", "--model", "baby", "--batch", "16", "--machine", "laptop-8c", "--budget", "30%", "--json")
ledger = json.loads(out)["ledger"]["host"]
assert ledger["saved_activations"] > 100 * ledger["transient_activations"], ledger

# A budget that can only have lost its unit.
refused(2, ["--budget 40", "unit", "40MiB", "40%"], "plan", "--budget", "40")
refused(2, ["--budget 40", "unit", "40% of the device"], "run", "--budget", "40", "--", "true")
for option in ("--host-budget", "--store-budget"):
    err = refused(2, [f"{option} 16", "unit", "16MiB or 16GiB; 16B"], *PLAN, option, "16", "--store", ".")
    assert "%" not in err, err
refused(2, ["--store-budget 0", "leave out --store"], *PLAN, "--store", ".", "--store-budget", "0")
refused(2, ["--host-budget 16", "unit"], "sweep", "--data", "text.txt", "--host-budget", "16")
assert run(*PLAN, "--host-budget", "16B")[0] == run(*PLAN, "--host-budget", "0")[0] == 0
refused(2, ["--budgets 40", "unit"], "sweep", "--data", "text.txt", "--budgets", "100%,40")
assert run(*PLAN, "--budget", "40B")[0] == 3 and run(*PLAN, "--budget", str(16 << 20))[0] == 0
assert run("replay", "one.csv", "--budget", "100", "--policy", "packed")[0] == 0  # traces may be of small units

# A number out of its range is answered with the range, whatever its sign and length.
for option, number, range_words in (("--batch", "-1", "from 1 to 1000000"), ("--layers", "100000", "from 1 to 10000"),
                                    ("--steps", "9" * 20, "from 0 to"), ("--seed", "-1", "from 0 to 18446744073709551615"),
                                    ("--seed", "18446744073709551616", "from 0 to 18446744073709551615"),
                                    ("--budget", "16EiB", "less than 8 EiB"), ("--host-budget", "1e30", "less than 8 EiB")):
    verb = "train" if option == "--steps" else "plan"
    refused(2, [f"{option.strip('-')} {number}: it must be", range_words], verb, option, number)
for number in ("1e3", "1.5", "", "-", "x"):
    refused(2, [f"--batch '{number}': expected a whole number"], "plan", "--batch", number)

# A value for a tier that the run lacks is a usage error, because no budget makes it fit.
write("to-store", b"h.0.attn.qkv store\n")
write("to-host", b"optimizer * host\n")
refused(2, ["--residency to-store", "there is none", "--store DIR"], *PLAN, "--residency", "to-store")
refused(2, ["--residency to-host", "--host-budget is 0"], *PLAN, "--residency", "to-host", "--host-budget", "0")
assert run(*PLAN, "--residency", "to-store", "--store", ".")[0] == run(*PLAN, "--residency", "to-host")[0] == 0

# Host and store budgets are a node's for a described machine too, and the plan says how many ranks share them.
ranks = [*PLAN[:-1], "h100-80g", "--batch", "16", "--dp", "16", "--host-budget", "16GiB"]
for more, shared in (([], 8), (["--node-ranks", "2"], 2)):
    code, out, err = run(*ranks, *more)
    assert code == 0 and f"whose {shared} ranks share them" in out, (out, err)
    assert json.loads(run(*ranks, *more, "--json")[1])["host_budget_bytes"] == (16 << 30) // shared
assert json.loads(run(*ranks[:-2], "--json")[1])["host_budget_bytes"] > 16 << 30  # of the description: a rank's own

# More host memory never needs a larger budget: a part of a chunk, which the tier cannot use, misleads no plan.
least = [json.loads(run("plan", "--model", "nano", "--machine", "laptop-8c", "--budget", "min", "--host-budget",
                        f"{host}MiB", "--json")[1])["min_budget_bytes"] for host in (2, 3, 4, 5, 6)]
assert least == sorted(least, reverse=True), least

# A training with another machine's description says whose times are whose, before and after.
code, out, err = run("train", *SHORT[:-1], "--steps", "2", "--machine", "h100-80g", "--save", "run")
assert code == 0 and "--machine h100-80g: the plan" in err and "on this one" in err, (code, err)
assert "predicted for h100-80g and measured on this machine" in out and "measured here" in out, out
# Two peaks of memory, in training and before it: measuring may take more than training.
assert re.search(r"process [\d.]+ MiB resident at most in training.*\n +process [\d.]+ MiB resident at most before", out), out

# The process's memory stands beside the device's: here they are the same.
code, out, err = run("train", *SHORT, "--steps", "2", "--json")
summary = json.loads(out)
assert code == 0 and "machine" not in summary and summary["resident_peak_bytes"] > summary["measured_peak_bytes"] > 0
assert summary["resident_open_bytes"] > 0, summary
assert summary["speed_of_light"] <= 1, summary

# A kept rate that was probed in a busy moment is corrected by a run, which is never faster than light.
kept = glob.glob("lade/probe-*.json")
assert kept, os.listdir(".")
for name in kept:
    with open(name, encoding="utf-8") as file:
        rates = json.load(file)
    rates["machine"]["matmul_flops_per_s"] = {dtype: 1e6 for dtype in rates["machine"]["matmul_flops_per_s"]}
    write(name, json.dumps(rates).encode())
summary = json.loads(run("train", *SHORT, "--steps", "2", "--json")[1])
with open(kept[0], encoding="utf-8") as file:
    rates = json.load(file)["machine"]["matmul_flops_per_s"]
assert 0 < summary["speed_of_light"] <= 1 and max(rates.values()) > 1e8, (summary["speed_of_light"], rates)

# As little memory as it goes over a drive: the lines that say so keep the batch alone on the host.
# A drive without room for a single value is named, because the plan then goes without it.
for room, is_noted in (("64KiB", True), ("1GiB", False)):
    code, out, err = run(*PLAN, "--budget", "min", "--store", ".", "--store-budget", room)
    assert code == 0 and ("the plan keeps no values in --store ., which has 64.0 KiB of room" in err) == is_noted, (room, out, err)

# A path through links that lead to themselves names no file.
os.symlink("loop", "loop")
refused(2, ["loop/config.json", "symbolic links"], "plan", "--model", "loop/config.json")

# Texts of editors that write a byte order mark and CRLF read as others do.
MARK = b"\xef\xbb\xbf"
write("marked.json", MARK + b'{"model_type":"gpt2","n_layer":1,"n_head":2,\r\n"n_embd":64,"n_positions":64,"vocab_size":256}\r\n')
write("marked.txt", MARK + b"h.*  recompute\r\n\r\n")
write("marked.conf", MARK + b"batch = 4\r\n# seq = 8\r\n")
out = run("plan", "--machine", "laptop-8c", "--residency", "marked.txt", "--config", "marked.conf", "--detail")[1]
assert "batch 4 of" in out and "fixed by the residency file" in out, out
assert "gpt2, " in run("plan", "--model", "marked.json", "--device", "dry")[1]

# JSON text that is no object is damage in each kind of file.
write("list.json", b"[1,2]")
for asked in (["--model", "list.json"], ["--model", "nano", "--machine", "list.json"], ["--graph", "list.json"],
              ["--model", "nano", "--cluster", "list.json"]):
    refused(5, ["list.json", "object"], "plan", *asked)

SMALLEST = ["--budget", "min", "--host-budget", "0", "--store", "."]
plan = json.loads(run("plan", "--model", "baby", "--batch", "16", "--machine", "laptop-8c", *SMALLEST, "--json")[1])
assert plan["ledger"]["host"]["total"] <= 2 << 20 and not plan["ledger"]["host"]["optimizer_state"], plan["ledger"]
examples = [line for line in run("train", "--help")[1].splitlines() if "--budget min" in line and "--store" in line]
assert examples and all("--host-budget 0" in line for line in examples), examples

# A store that is too small for the rest is enlarged on its drive, not only by an option.
refused(3, ["the smallest budget found is", "a larger store: --store-budget, free bytes in --store"], "train", "--model",
        "baby", "--batch", "1", "--data", "text.txt", "--machine", "laptop-8c", "--quiet", "--budget", "10MiB",
        "--host-budget", "0", "--store", ".", "--store-budget", "1MiB")

# A directory of HuggingFace's files is a model, with and without a slash in its name; a damaged file is damage.
step = os.path.join("run", "step-00000002")
os.mkdir("hf")
for name in ("config.json", "model.safetensors"):
    shutil.copy(os.path.join(step, name), "hf")
for name in ("hf", "./hf"):
    code, out, err = run("train", "--model", name, *SHORT[2:], "--steps", "1", "--init", "hf", "--machine", "laptop-8c")
    assert code == 0 and not err and "gpt2" in out, (name, err)
refused(2, ["no model named 'hg'"], "plan", "--model", "hg")
with open("hf/model.safetensors", "rb") as file:
    whole = file.read()
for name, data in (("short.safetensors", whole[:1000]), ("no.safetensors", b"not a safetensors file"),
                   ("long.safetensors", whole + b"x")):
    refused(5, [name], "train", *SHORT, "--steps", "1", "--init", write(name, data))
shutil.copy("hf/config.json", "own-model")  # without a slash and without an ending
assert run("plan", "--model", "own-model", *PLAN[1:])[0] == 0
refused(5, ["text.txt", "JSON"], "plan", "--model", "text.txt")
for data in (b'{"model_type": "gpt2",', b"[]"):
    refused(5, ["cut.json", "JSON"], "plan", "--model", write("cut.json", data))
refused(5, ["cut.json: line 1", "not JSON"], "plan", "--graph", write("cut.json", b'{"schema_version": 1,'))
header = struct.pack("<256i", 20240520, 1, 1000, *[0] * 253)
for name, data, words in (("cut.bin", header + b"\1\0" * 10, "cut short"), ("odd.bin", b"\1\0\1", "cut short")):
    refused(5, [name, words], "train", "--model", "gpt2-124m", "--layers", "1", "--data", write(name, data))


# A snapshot without segments has no recorded figure, and says so.
events = [{"action": "alloc", "addr": 0, "size": 4096, "stream": 0, "time_us": 1, "frames": []},
          {"action": "free_completed", "addr": 0, "size": 4096, "stream": 0, "time_us": 2, "frames": []}]
took = {"action": "segment_alloc", "addr": 0, "size": 2 << 20, "stream": 0, "time_us": 0, "frames": []}
for before in ([], [took]):  # a history that took segments, of a snapshot from which they were dropped, as well
    write("bare.pickle", pickle.dumps({"segments": [], "device_traces": [before + events]}))
    code, out, err = run("replay", "bare.pickle")
    assert code == 0 and "recorded      unknown: the snapshot lists no segments" in out and "-100" not in out, (out, err)
    assert all("recorded_reserved_bytes" not in policy for policy in
               json.loads(run("replay", "bare.pickle", "--json")[1])["policies"])

SWEPT = [*SHORT, "--layers", "1", "--steps", "2", "--machine", "laptop-8c"]  # described: little is measured

# A sweep takes layouts, which lade launch starts, and rounds; the numbers of a layout are the same at every budget.
if shutil.which("mpirun"):
    code, out, err = run("sweep", *SWEPT, "--budgets", "100%,min", "--dp", "1,2", "--zero", "0", "--json")
    swept = json.loads(out)
    assert code == 0 and [(each["budget"], each["ranks"]) for each in swept["runs"]] == [
        ("100%", 1), ("100%", 2), ("min", 1), ("min", 2)], (code, out, err)
    for i in (0, 1):
        assert swept["runs"][i]["params_digest"] == swept["runs"][i + 2]["params_digest"], swept["runs"]
    # Ranks without a core each print a line beside their times.
    one_core = [LADE, "launch", "-n", "2", "--", "train", *SHORT, "--steps", "1", "--dp", "2", "--batch", "2"]
    crowded = subprocess.run(one_core, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=True,
                             preexec_fn=lambda: os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})).stdout
    assert "machine       2 ranks of 1 thread share 1 core; " in crowded, crowded
code, out, err = run("sweep", *SWEPT, "--budgets", "100%", "--repeat", "2", "--json")
swept = json.loads(out)
times = sorted(each["measured_step_seconds"] for each in swept["runs"])
assert code == 0 and [each["round"] for each in swept["runs"]] == [0, 1] and len(swept["medians"]) == 1, out
assert abs(swept["medians"][0]["step_seconds"] - sum(times) / 2) < 1e-8, (times, swept["medians"])
assert all(each["resident_peak_bytes"] > 0 for each in swept["runs"]), swept
refused(2, ["--tp '1;2'", "commas"], "sweep", *SHORT, "--tp", "1;2")
# As text, a budget that does not fit is a line of the table.
code, out, err = run("sweep", *SWEPT, "--budgets", "64KiB,100%")
assert code == 3 and re.search(r"^64KiB +does not fit$", out, re.M) and re.search(r"^100% .* [0-9a-f]{16}$", out, re.M), (
    code, out, err)
# Layouts on the dry device are planned as `lade plan` does, without data; a layout that is refused is a line.
PLANNED = ["--model", "nano", "--batch", "4", "--seq", "32", "--layers", "1", "--machine", "h100-80g", "--device", "dry"]
code, out, err = run("sweep", *PLANNED, "--budgets", "100%", "--tp", "1,3", "--dp", "1,2", "--zero", "0,1", "--json")
swept = json.loads(out)
assert code == 2 and err.count("3 tensor parallel ranks must divide 4 heads") == 3, (code, err)
assert [each["label"] for each in swept["medians"]] == ["100%", "100% dp2", "100% dp2 zero1"], swept["medians"]
plan = json.loads(run("plan", *PLANNED, "--budget", "100%", "--dp", "2", "--zero", "1", "--json")[1])
assert swept["runs"][2]["planned_peak_bytes"] == plan["planned_peak_bytes"], (swept["runs"][2], plan)
code, out, err = run("sweep", *PLANNED, "--budgets", "100%,50%", "--tp", "1,3")
assert err.count("3 tensor parallel ranks must divide 4 heads") == 1 and len(re.findall("refused", out)) == 2, (out, err)
code, out, err = run("sweep", *PLANNED, "--budgets", "100%,64KiB", "--dp", "2")
assert code == 3 and "data sheet, not measured" in out and re.search(r"^64KiB dp2 +does not fit$", out, re.M), (out, err)
refused(2, ["--repeat: --device dry plans"], "sweep", *PLANNED, "--dp", "2", "--repeat", "2")
