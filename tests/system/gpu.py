#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""GPUs at the command line, on a machine that may have none: a missing part is one line and exit 7, and CUDA's
libraries are loaded only on request.

Usage: gpu.py LADE [FAKES [KERNELS]]
FAKES: the folder of the fake driver, without it the build has no CUDA; KERNELS: the library of kernels on the CPU
"""
import json
import os
import re
import subprocess
import sys
import tempfile

LADE = os.path.abspath(sys.argv[1])
FAKES = sys.argv[2] if len(sys.argv) > 2 else None
KERNELS = sys.argv[3] if len(sys.argv) > 3 else None


def run(*args, driver=None, **more):
    """Run the command. @driver: settings of the fake; None: without a driver, on a machine that has none."""
    environment = dict(os.environ, **{"LADE_ATTENTION": "mma", **more})  # trying all of them is slow here
    environment.pop("LD_LIBRARY_PATH", None)
    if driver is not None:
        environment.update(LD_LIBRARY_PATH=FAKES, LADE_FAKE=driver)
    result = subprocess.run([LADE, *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False,
                            env=environment, cwd=SCRATCH.name)
    # Notes of the kernels that stand in for faster ones are those of tests/on_fakes/test_cuda_launch.c.
    said = [line for line in result.stderr.splitlines(keepends=True) if ": note: attention has" not in line]
    return result.returncode, result.stdout, "".join(said)


def refused(words, *args, **more):
    code, out, err = run(*args, **more)
    assert code == 7 and not out and err.count("\n") == 1, (args, code, out, err)
    assert all(word in err for word in words), (words, err)


def on_host(words, **more):
    """A run that requests a GPU only if there is one: the host's numbers, and one line with the reason."""
    code, out, err = run(*TRAIN, *SMALL, "--json", "--device", "auto", **more)
    assert code == 0 and err.count("\n") == 1 and err.endswith("; the host trains\n"), (code, out, err)
    assert all(word in err for word in words), (words, err)
    host = run(*TRAIN, *SMALL, "--json", "--device", "host")[1]
    assert json.loads(out)["loss_digest"] == json.loads(host)["loss_digest"], (out, host)


def finding(*args, code=0, name="GPU", **more):
    status, out, err = run("doctor", "--json", *args, **more)
    assert status == code and not err, (args, status, out, err)
    return next(found for found in json.loads(out)["findings"] if found["name"] == name)


def libraries(driver, *args):
    """Return the libraries that the loader opens in a process of the command."""
    _, _, err = run(*args, driver=driver, LD_DEBUG="files")
    return set(re.findall(r"file=([^/\s]+) ", err))


def documented():
    """Return exit codes and the driver's results that docs/cuda.md assigns to them."""
    docs = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "docs", "cuda.md")
    rows = re.findall(r"^\| (\d) \| `-E[A-Z]+` \| (.+) \|$", open(docs, encoding="utf-8").read(), re.M)
    found = [(int(code), re.findall(r"\b\d+\b", words)) for code, words in rows]
    assert [code for code, _ in found] == [4, 5, 7, 1] and all(results for _, results in found), found
    return found


SCRATCH = tempfile.TemporaryDirectory(prefix="lade-gpu-")
open(os.path.join(SCRATCH.name, "text.txt"), "w", encoding="utf-8").write("some words\n" * 2000)
TRAIN = ["train", "--model", "nano", "--data", "text.txt", "--steps", "1", "--batch", "1", "--quiet"]
SMALL = ["--layers", "1", "--seq", "8", "--machine", "h200-141g", "--eval-iters", "1"]
has_driver = "cuda" in subprocess.run(["ldconfig", "-p"], capture_output=True, text=True, check=False).stdout

code, out, err = run("train", "--device", "cuda:x", "--data", "text.txt")
assert code == 2 and "--device 'cuda:x': expected host|cuda:N|auto|dry" in err, (code, err)
if not FAKES:
    refused(["this build has no CUDA"], *TRAIN, "--device", "cuda:0")
    on_host(["this build has no CUDA"])
    assert "this build has no CUDA" in finding()["text"]
    sys.exit(0)

if not has_driver:
    refused(["device cuda:0", "no CUDA driver here"], *TRAIN, "--device", "cuda:0")
    on_host(["device cuda:0", "no CUDA driver here"])
    found = finding()
    assert found["state"] == "ok" and "no CUDA driver here" in found["text"] and "the host trains" in found["text"]
    found = finding("--device", "cuda:0", code=7)
    assert found["state"] == "missing" and found["fix"], found

for driver, words in (("version=11080", ["11.8", "12.0"]), ("devices=0", ["no GPU"]), ("sm=70", ["7.0", "8.0"]),
                      ("fail=cuInit,code=999", ["cuInit", "CUDA_ERROR_UNKNOWN"])):
    refused(words, *TRAIN, "--device", "cuda:0", driver=driver)
    on_host(words, driver=driver)
    assert finding("--device", "cuda:0", code=7, driver=driver)["state"] == "missing"
    assert finding(driver=driver)["state"] == "ok"
refused(["no GPU number 5"], *TRAIN, "--device", "cuda:5", driver="devices=2")
# The driver and no machine code for its GPU.
refused(["cuda:1", "adamw.fatbin"], *TRAIN, "--device", "cuda:1", driver="devices=2")
on_host(["cuda:0", "adamw.fatbin"], driver="devices=2")
assert finding("--device", "cuda:0", code=7, driver="")["state"] == "missing"
if KERNELS:
    found = finding("--device", "cuda:0", driver="memory=512", LADE_FAKE_KERNELS=KERNELS)
    assert found["state"] == "ok" and "Fake GPU, 512.0 MiB, of which 504.0 MiB are free" in found["text"], found
    # The library that multiplies matrices; if it does not work a note says so, and a line of the run without it.
    found = finding(name="GPU matmul", driver="", LADE_FAKE_KERNELS=KERNELS)
    assert found["state"] == "ok" and found["text"] == "cuBLASLt 130100, Fake GPU", found
    found = finding(name="GPU matmul", driver="", LADE_FAKE_KERNELS=KERNELS, LADE_MATMUL="plain")
    assert found["state"] == "ok" and "LADE_MATMUL" in found["text"], found
    # A file of choices among its algorithms, for this library, GPU and driver, or for others.
    for driver, state, words in ((13000, "ok", ", choices "), (12000, "note", "has no choices for this library")):
        with open(os.path.join(SCRATCH.name, "choices"), "w", encoding="utf-8") as file:
            file.write(f"cuBLASLt 130100, Fake GPU, driver {driver}: TN bf16 f32 64 16 96 - 1\n")
        found = finding(name="GPU matmul", driver="", LADE_FAKE_KERNELS=KERNELS, LADE_MATMUL_CHOICES=file.name)
        assert found["state"] == state and words in found["text"], found
    # The attention kernel: the one named, if this GPU has it; else the best correct one, with a line on those that are
    # wrong.
    found = finding(name="GPU attention", driver="", LADE_FAKE_KERNELS=KERNELS, LADE_ATTENTION="wgmma")
    assert found["state"] == "ok" and found["text"] == "forward cuda_wgmma, backward cuda_wgmma", found
    refused(["cuda:0", "LADE_ATTENTION is 'wgmma'", "of 8.0"], *TRAIN, "--device", "cuda:0", driver="sm=80",
            LADE_FAKE_KERNELS=KERNELS, LADE_ATTENTION="wgmma")
    wrong = {"LADE_FAKE_KERNELS": KERNELS, "LADE_ATTENTION": "", "LADE_FAKE_IDLE":
             "attention_wgmma_fwd_128_bf16"}
    found = finding(name="GPU attention", driver="", **wrong)
    assert found["state"] == "note" and "mma attends instead" in found["text"] and found["fix"], found
    code, out, err = run("doctor", driver="", LADE_MATMUL="plan")
    assert code == 2 and not out and "LADE_MATMUL is 'plan'" in err, (code, out, err)
    code, out, err = run("doctor", driver="", LADE_ATTENTION="onednn")
    assert code == 2 and not out and "LADE_ATTENTION is 'onednn'" in err, (code, out, err)
    code, out, err = run("doctor", driver="", LADE_CUDA_GRAPHS="no")
    assert code == 2 and not out and "LADE_CUDA_GRAPHS is 'no'" in err, (code, out, err)
    broken = {"LADE_FAKE_KERNELS": KERNELS, "LADE_FAKE_CUBLASLT": "fail=cublasLtCreate,code=1"}
    found = finding(name="GPU matmul", driver="", **broken)
    assert found["state"] == "note" and "plain kernels" in found["text"] and found["fix"], found
    # Failing runs on a GPU, in the driver's own words: missing memory, by a stated budget or because another process
    # has it; refused calls; a device that breaks in the middle of a step, or before the first.
    GPU = [*TRAIN, *SMALL, "--device", "cuda:0"]
    for status, words, driver in ((3, "more than this GPU has left", "memory=16"),
                                  (4, "(cuMemCreate: CUDA_ERROR_OUT_OF_MEMORY (2): out of memory), of 251658240 that it "
                                      "has; others may have taken it", "fail=cuMemCreate,code=2"),
                                  (4, "(cuMemMap: CUDA_ERROR_OUT_OF_MEMORY", "fail=cuMemMap,code=2"),
                                  (5, "(cuMemSetAccess: CUDA_ERROR_ECC_UNCORRECTABLE", "fail=cuMemSetAccess,code=214"),
                                  (1, "of addresses (cuMemAddressReserve: CUDA_ERROR_LAUNCH_FAILED",
                                   "fail=cuMemAddressReserve,code=719"),
                                  (4, "refused a queue (cuStreamCreate: CUDA_ERROR_OUT_OF_MEMORY",
                                   "fail=cuStreamCreate,nth=2,code=2"),
                                  (5, "copying from or to the device failed (cuMemcpyAsync: CUDA_ERROR_ECC_UNCORRECTABLE",
                                   "fail=cuMemcpyAsync,code=214"),
                                  (5, "kernel adamw_f32 cannot be used (cuFuncSetAttribute: CUDA_ERROR_ECC_UNCORRECTABLE",
                                   "fail=cuFuncSetAttribute,code=214"),
                                  (7, "so old a driver", "fail=cuModuleLoad,code=222"),
                                  (7, "no code for this GPU", "fail=cuModuleLoad,code=209"),
                                  (1, "CUDA_ERROR_INVALID_VALUE", "fail=cuGraphLaunch,nth=2,code=1"),
                                  (1, "CUDA_ERROR_UNKNOWN", "fail=cuGraphLaunch,nth=2,code=999")):
        budget = ["--budget", "64MiB"] if status == 3 else []
        code, out, err = run(*GPU, *budget, driver=driver, LADE_FAKE_KERNELS=KERNELS)
        assert code == status and not out and err.count("\n") == 1 and words in err, (driver, code, out, err)
    # Bytes on the GPU outside the plan, by taker, and as a row of the ledger.
    code, out, err = run("plan", "--json", "--model", "nano", "--layers", "1", "--device", "cuda:0",
                         driver="modules=64,functions=1", LADE_FAKE_KERNELS=KERNELS)
    plan, held = json.loads(out), json.loads(out)["outside"]
    assert code == 0 and held["context"] == 8 << 20 and held["kernels"] >= 20 << 16 and not held["nccl"] + held["others"], (plan, err)
    assert sum(held.values()) == plan["outside_bytes"] == plan["ledger"]["device"].pop("context"), plan
    assert plan["ledger"]["device"].pop("total") == plan["planned_peak_bytes"] + plan["outside_bytes"], plan
    assert sum(plan["ledger"]["device"].values()) == plan["planned_peak_bytes"], plan
    code, out, err = run("plan", "--model", "nano", "--layers", "1", "--device", "cuda:0", "--machine", "h200-141g",
                         driver="", LADE_FAKE_KERNELS=KERNELS)
    assert code == 0 and "8.0 MiB of the GPU are outside of the budget: context 8.0 MiB, kernels 0 B" in out, (out, err)
    # Any driver error gives the documented exit code.
    for status, results in documented():
        for result in results:
            code, out, err = run(*GPU, driver=f"lose=60,lose_code={result}", LADE_FAKE_KERNELS=KERNELS)
            assert code == status and not out and err.count("\n") == 1 and f"({result})" in err, (status, result, code, err)
    code, _, err = run(*GPU, "--steps", "0", driver="", **broken)
    assert code == 0 and "matrix products are plain kernels" in err and "cublasLtCreate" in err, (code, err)
    code, _, err = run(*GPU, "--steps", "0", driver="", **wrong)
    assert code == 0 and err.count("attention by wgmma is wrong") == 1, (code, err)
    for args in (["--link-rate", "1GiB"], ["--dp", "2"]):
        code, out, err = run(*GPU, *args, driver="", LADE_FAKE_KERNELS=KERNELS)
        assert code == 2 and not out and err.count("\n") == 1, (args, code, out, err)

# A run on the host does not open the driver, although there is one.
loaded = libraries("", *TRAIN)
assert "libc.so.6" in loaded and not [name for name in loaded if name.startswith(("libcu", "libnv"))], loaded
assert "libcuda.so.1" in libraries("", "doctor")
