#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The measurements of scripts/gpu-check, over the fakes and with a small model. Every figure that has a target is made
and kept with it, and a failing part leaves the others. A program that answers like bench/torch_steps.py replaces
PyTorch. Times are meaningless here.
unknowns: the whole script, from its options to its last line, with the part that comes first on a GPU. Programs of a few
lines replace nvidia-smi and ninja.

Usage: gpu_check.py GPU-CHECK BUILD [unknowns]
"""
import argparse
import importlib.machinery
import importlib.util
import io
import json
import os
import re
import shutil
import sys
import tempfile
from contextlib import redirect_stdout

sys.dont_write_bytecode = True
loader = importlib.machinery.SourceFileLoader("gpu_check", os.path.abspath(sys.argv[1]))
gpu_check = importlib.util.module_from_spec(importlib.util.spec_from_loader("gpu_check", loader))
loader.exec_module(gpu_check)
build, gpus = os.path.abspath(sys.argv[2]), ["NVIDIA H200, 0.0, 256 MiB"]

# The smallest model with everything: a tier besides the device, several microbatches, a budget that moves something.
TINY = {"vocab_size": 256}
GPT2 = dict(TINY, model_type="gpt2", n_embd=32, n_layer=2, n_head=2, n_positions=8192)
LLAMA = dict(TINY, model_type="llama", hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
             num_key_value_heads=1, max_position_embeddings=64)
MACHINE = ["--machine", "h200-141g", "--warmup", "1"]


def small_make(scratch):
    """Replace the measured models by others."""
    paths = {}
    for name, model in (("gpt2", GPT2), ("llama", LLAMA)):
        paths[name] = os.path.join(scratch, name + ".json")
        with open(paths[name], "w", encoding="utf-8") as file:
            json.dump(model, file)
    shape = ["--seq", "16", "--batch", "2", "--micro-batch", "1", *MACHINE]
    gpu_check.SPEEDS = [(paths["gpt2"], [*shape, "--steps", "2"], 2, 32)]
    gpu_check.BUDGETS = ["--model", paths["gpt2"], *shape, "--steps", "2"]
    gpu_check.BUDGET_TARGETS = {"60%": None, "40%": 1.3}
    gpu_check.STEADY = [*gpu_check.BUDGETS[:-2], "--budget", "60%"]
    gpu_check.LARGEST = ["--model", paths["llama"], "--seq", "16", "--batch", "1", "--host-budget", "4MiB", *MACHINE]
    text = os.path.join(scratch, "text.txt")
    with open(text, "w", encoding="utf-8") as file:
        file.writelines(f"{i * i % 97} bottles of wine on the wall, {i}\n" for i in range(2000))
    return ["--data", text]


def kernels_fail():
    """Failing benchmarks keep their measurements: of each table the lines before the launch that broke."""
    for nth, kept in (5, False), (40, True):
        os.environ["LADE_FAKE"] = f"fail=cuLaunchKernel,nth={nth},code=719"
        check = gpu_check.Check(patience=20)
        gpu_check.kernels_measure(check, build, "--small")
        assert check.counts == {"passed": 0, "failed": 1, "skipped": 0}, check.counts
        assert "| copy |" in check.tables and ("| add |" in check.tables) == kept, check.tables
        assert "| NT+bias " in check.tables and "| TN " in check.tables, "products are cuBLASLt's, and another process's"
    os.environ["LADE_FAKE"] = "memory=64"


def targets_are_found():
    """The targets compiled first are those that run on a GPU, and they exist."""
    targets = gpu_check.targets_find(gpu_check.Check(patience=20), build)
    for name in ("lade", "bench/bench-gpu", "bench/bench-collectives", "preload/lade-run.so", "tests/conform/conform-device", "tests/preload/holder",
                 "tests/on_fakes/test-gpu-kernels"):
        assert name in targets, (name, targets)
    assert not [name for name in targets if "unit" in name or not os.path.exists(os.path.join(build, name))], targets


PEER = """#!/usr/bin/env python3
import json, os, sys
arguments = dict(zip(sys.argv[1::2], sys.argv[2::2]))
behaviour = os.environ.get("PEER", "")
if behaviour == "missing":
    sys.exit(print("SKIP: PyTorch is not installed (no such thing)") or 77)
if behaviour == "broken":
    sys.exit("CUDA error: an illegal memory access was encountered")
assert arguments["--steps"] == "2" and arguments["--seq"] and arguments["--batch"] and arguments["--micro-batch"], arguments
counts = json.load(open(__file__ + ".json"))
print("a warning first")
print(json.dumps({"tokens_per_second": 1.0, "parameters": counts[arguments["--model"]] + (behaviour == "other"),
                  "recomputed_blocks": 0, "peak_bytes": 1e9, "torch": "9.9"}))
"""


def peer_make(scratch):
    """Make the program that replaces PyTorch, which knows how many parameters the models have."""
    path, counts = os.path.join(scratch, "peer.py"), {}
    with open(path, "w", encoding="utf-8") as file:
        file.write(PEER)
    for model, options, _, _ in gpu_check.SPEEDS:
        code, plan = gpu_check.lade_json(gpu_check.Check(patience=20), build, "plan", "--model", model, *options[:6],
                                         *MACHINE[:2], "--json", limit_s=60)
        assert code == 0, plan
        counts[model] = plan["parameters"]
    with open(path + ".json", "w", encoding="utf-8") as file:
        json.dump(counts, file)
    return [sys.executable, path]


def peers_are_reported(data):
    """A missing peer is tried once; one that breaks, or trains another shape, is not compared."""
    for behaviour, counts in (("missing", (2, 0, 1)), ("broken", (2, 2, 0)), ("other", (2, 2, 0))):
        os.environ["PEER"] = behaviour
        check, turns = gpu_check.Check(patience=20), gpu_check.Turns()
        for entry in gpu_check.SPEEDS * 2:
            turns.take(check, build, gpus, data, entry)
            turns.take_again(check, build, gpus, data, entry)
        assert tuple(check.counts.values()) == counts, (behaviour, check.counts)
        assert not [what for what in check.figures if "PyTorch" in what], check.figures
    del os.environ["PEER"]


def steps_go_on_with_safer_attention(data):
    """A run that breaks is repeated once with the next kernel."""
    os.environ["LADE_FAKE"] = "memory=64,lose=60,lose_code=719"
    check = gpu_check.Check(patience=20)
    assert gpu_check.step_measure(check, build, *gpu_check.SPEEDS[0][:2], data) is None
    assert check.counts["failed"] == (1 if os.environ.get("LADE_ATTENTION") else 2), check.counts
    os.environ["LADE_FAKE"] = "memory=64"


def budgets_are_reported_one_by_one(data):
    """When the time ends between two budgets, the first has its figures, and the second is reported as missing."""
    check, run, done = gpu_check.Check(patience=20), gpu_check.Check.run, []

    def limited(*args, **more):
        if len(done) == 2:
            check.end = 0
        done.append(args)
        return run(check, *args, **more)
    check.run = limited
    check.guard("budgets", gpu_check.budgets_compare, build, data)
    reported = {what[len("3. gpt2-774m at "):].split(":")[0]: figure[1] for what, figure in check.figures.items()}
    assert check.counts == {"passed": 2, "failed": 1, "skipped": 0} and len(done) == 3, (check.counts, done)
    assert list(reported) == ["60%", "40%"] and reported["40%"] == "exit 124", check.figures
    assert len(check.figures) == 3, check.figures


def everything_measure(scratch):
    """Return the text of the kept results, of all parts in their order and of the largest model's steps. Tests on the GPU
    and the unknowns have tests of their own."""
    data, kernels = small_make(scratch), gpu_check.kernels_measure
    results = os.path.join(scratch, "bench", "results")
    gpu_check.PEER = peer_make(scratch)
    peers_are_reported(data)
    steps_go_on_with_safer_attention(data)
    budgets_are_reported_one_by_one(data)
    gpu_check.tokens_make = lambda *_: data
    gpu_check.kernels_measure = lambda check, folder: kernels(check, folder, "--small")
    gpu_check.gpu_tests_run = lambda check, _: check.figure("0. tests", "gpu")
    gpu_check.unknowns_measure = lambda check, folder, *_: check.figure("0. unknowns", folder)
    plan = gpu_check.largest_plan
    gpu_check.ROOT, text = scratch, ""
    for is_largest in (False, True):
        # Its steps begin with this plan, which takes longer than all other parts.
        gpu_check.largest_plan = plan if is_largest else lambda check, folder, store, data: None
        options = argparse.Namespace(build=build, only=[], turns=0, largest=is_largest, store=None)
        check, name = gpu_check.Check(patience=20), "largest" if is_largest else ""
        gpu_check.measure(check, options, gpus)
        assert check.counts["failed"] == 0 and not check.left, (check.counts, check.left)
        later = gpu_check.Check()
        gpu_check.results_read(later, gpus, build, name)
        assert (later.figures, later.tables) == (check.figures, check.tables), later.figures
        gpu_check.results_read(later, ["another GPU"], build, name)
        assert later.figures == check.figures, "another GPU's results are not this one's"
        os.remove(gpu_check.kept_path(build, name))
    assert sorted(os.listdir(results)) == ["nvidia-h200-largest.md", "nvidia-h200.md"], os.listdir(results)
    for name in sorted(os.listdir(results)):
        with open(os.path.join(results, name), encoding="utf-8") as file:
            text += file.read()
    return text


def programs_make(folder):
    """Make an nvidia-smi that lists a GPU, and a ninja that finds everything built, first on PATH."""
    for name, line in (("nvidia-smi", f"echo {gpus[0]}"), ("ninja", "exit 0")):
        with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
            file.write(f"#!/bin/sh\n{line}\n")
        os.chmod(os.path.join(folder, name), 0o755)
    os.environ["PATH"] = folder + os.pathsep + os.environ["PATH"]


def whole_run(scratch):
    """Return the output of the script with the unknowns alone, and the kept results."""
    kept, said = gpu_check.kept_path(build, ""), io.StringIO()
    gpu_check.ROOT = scratch
    sys.argv = ["gpu-check", "--build", build, "--only", "unknowns"]
    with redirect_stdout(said):
        code = gpu_check.main()
    os.remove(kept)
    assert code == 0, said.getvalue()
    with open(os.path.join(scratch, "bench", "results", "nvidia-h200.md"), encoding="utf-8") as file:
        return said.getvalue(), file.read()


def no_gpu_is_a_table():
    """Without a GPU the script ends with its table, in which each part is not run."""
    said, driver = io.StringIO(), os.environ["LADE_FAKE"]
    os.environ["LADE_FAKE"] = "devices=0"
    sys.argv = ["gpu-check", "--build", build, "--only", "unknowns,kernels"]
    with redirect_stdout(said):
        gpu_check.main()
    os.environ["LADE_FAKE"] = driver
    table = said.getvalue()[said.getvalue().index("| what |"):]
    assert "| unknowns | not run here |  |  |\n" in table and "| kernels | not run here |" in table, said.getvalue()
    assert "gpt2-1.5b" not in table, table


def unknowns_measured(scratch):
    """Every unknown has its figure and its target, in the results and in the table before the last line; one that
    breaks is reported in its place."""
    small_make(scratch)
    programs_make(scratch)
    gpu_check.CAPTURE = [*gpu_check.BUDGETS]
    gpu_check.CAPTURE[gpu_check.CAPTURE.index("--seq"):] = ["--seq", "16", "--batch", "2", "--micro-batch", "1", "--steps",
                                                            "2", *MACHINE]
    gpu_check.LARGE_BYTES = 65536
    gpu_check.tokens_make = lambda *_: ["--data", os.path.join(scratch, "text.txt")]
    os.environ.update(LADE_FAKE="memory=64,channels=8", LADE_FAKE_NCCL="memory=512,connect=1024")
    said, kept = whole_run(scratch)
    table = said[said.index("| what |"):]
    assert re.search(r"\n\d+ passed, 0 failed, \d+ skipped\n$", said) and table.count("\n\n") == 1, said
    figures = [r"attention's probe \| forward \w+, backward \w+ \| no candidate is off \| yes",
               r"NCCL's memory, one rank: .* \| none again \| yes", r"microseconds to submit a small sum, one rank \| [\d.]+, and "
               r"[\d.]+ with its end; polled [\d.]+ \| 30 \| (yes|NO)", r"graphs with products \| captured, equal bits \| .* \| yes"]
    if shutil.which("mpirun") and os.path.exists(os.path.join(build, "src", "parallel", "liblade-mpi.so")):
        figures += [r"NCCL's memory, two processes on one GPU: .* \| 2, 3, 4, 5, 5 MiB \| none again \| yes",
                    r"a pipeline, two processes on one GPU \| \d+ us for a message and its answer, right \| right \| yes"]
    for figure in figures:
        assert re.search(rf"^\| 0\. {figure} \|$", table, re.MULTILINE), (figure, table)
        assert re.search(rf"^\| 0\. {figure} \|$", kept, re.MULTILINE), (figure, kept)
    no_gpu_is_a_table()
    os.environ.update(LADE_FAKE_NCCL="fail=ncclAllReduce", LADE_FAKE="memory=64,channels=8,fail=cuStreamBeginCapture,forever=1")
    said, _ = whole_run(scratch)
    for figure in (r"NCCL, one rank \| exit 1: .*ncclAllReduce: internal error.* \| runs \| NO",
                   r"graphs with products \| .*launched one by one.*equal bits \| .* \| NO"):
        assert re.search(rf"^\| 0\. {figure} \|$", said, re.MULTILINE), (figure, said)


with tempfile.TemporaryDirectory(prefix="lade-gpu-check-") as folder:
    os.environ["XDG_CACHE_HOME"] = folder
    if sys.argv[3:] == ["unknowns"]:
        unknowns_measured(folder)
        sys.exit(0)
    kernels_fail()
    targets_are_found()
    text = everything_measure(folder)
assert "products by cuBLASLt 130100" in text, text
for row in ("copy", "adamw", "residual_bwd", r"NT\+bias \d+ x \d+ x \d+", r"TN \d+ x \d+ x \d+", r"NN\+gelu \d+ x \d+ x \d+",
            "forward, wgmma", "backward, wgmma", "forward, mma", "backward, mma", "forward, plain", "backward, plain"):
    assert re.search(rf"^\| {row} \|( *[0-9.]+( %)? \|)+$", text, re.MULTILINE), (row, text)
for figure in (r"0\. tests \| gpu \|", r"0\. unknowns \| ", r"1\. the memory-bound kernel .* \| \d+ %, [-\w, ]+ \| 85 % \| (yes|NO)", r"1\. the product .* \| 98 % \| (yes|NO)",
               r"1\. attention forward.* \| 60 % \| (yes|NO)", r"1\. attention backward.* \| 45 % \| (yes|NO)",
               r"2\. .* of the data sheet's dense BF16 rate \| 0\.0 % \| 60 % \| NO", r"2\. .* GB yes \|  \| ",
               r"2\. .* against PyTorch, .* turns: 2 and 2; PyTorch 9\.9, 0 blocks recomputed, 1\.0 GB\) \| 1\.1 \| yes",
               r"3\. .* at 40%: peak.*yes; equal \| equal \| yes", r"3\. .* at 40%: step time .* \| 1\.3 \| (yes|NO)",
               r"4\. the largest .* \| 20 G \| NO", r"4\. its bytes per parameter.*", r"4\. three steps of it: .* GB yes;",
               r"5\. allocations .* \| 0 \(beside [1-9]\d*\) \| 0 \| yes", r"5\. of a step with graphs.* \| 3 % \| (yes|NO)",
               r"5\. a step without graphs against one with them \| \d"):
    assert re.search(rf"^\| {figure}", text, re.MULTILINE), (figure, text)
