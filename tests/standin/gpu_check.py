#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The benchmarks of scripts/gpu-check, over the stand-ins: every table is made and kept; where they fail no file is.

Usage: gpu_check.py GPU-CHECK BUILD
"""
import importlib.machinery
import importlib.util
import os
import re
import sys
import tempfile

sys.dont_write_bytecode = True
loader = importlib.machinery.SourceFileLoader("gpu_check", sys.argv[1])
gpu_check = importlib.util.module_from_spec(importlib.util.spec_from_loader("gpu_check", loader))
loader.exec_module(gpu_check)
build, gpus = os.path.abspath(sys.argv[2]), ["Stand-in GPU, 0.0, 256 MiB"]

with tempfile.TemporaryDirectory(prefix="lade-gpu-check-") as results:
    os.environ["LADE_STANDIN"] = "fail=cuLaunchKernel,nth=5,code=719"
    check = gpu_check.Check()
    gpu_check.benches_run(check, build, gpus, results, "--small")
    assert check.counts == {"passed": 0, "failed": 1, "skipped": 0} and not os.listdir(results), check.counts
    del os.environ["LADE_STANDIN"]
    check = gpu_check.Check()
    gpu_check.benches_run(check, build, gpus, results, "--small")
    assert check.counts == {"passed": 1, "failed": 0, "skipped": 0}, check.counts
    assert os.listdir(results) == ["stand-in-gpu.md"], os.listdir(results)
    with open(os.path.join(results, "stand-in-gpu.md"), encoding="utf-8") as file:
        text = file.read()
assert "products by cuBLASLt 130100" in text, text
for row in ("copy", "adamw", "residual_bwd", r"NT \d+ x \d+ x \d+", r"TN \d+ x \d+ x \d+",
            "forward, wgmma", "backward, wgmma", "forward, mma", "backward, mma", "forward, plain", "backward, plain"):
    assert re.search(rf"^\| {row} \|( *[0-9.]+( %)? \|)+$", text, re.MULTILINE), (row, text)
