#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's own runtime, in a program or as a shared library, reaches the driver through the shim; on a GPU it is
bounded.

Usage: runtime.py LADE DRIVER-FOLDER|gpu PROGRAM
"""
import json
import os
import subprocess
import sys
import tempfile

LADE, PROGRAM = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[3])
IS_GPU = sys.argv[2] == "gpu"
MIB = 1 << 20

with tempfile.TemporaryDirectory(prefix="lade-runtime-") as scratch:
    path = os.path.join(scratch, "report.json")
    settings = dict(os.environ, TMPDIR=scratch)
    if not IS_GPU:
        settings["LD_LIBRARY_PATH"] = os.path.abspath(sys.argv[2])
    result = subprocess.run([LADE, "run", "--budget", "32MiB", "--report", path, "--", PROGRAM], env=settings,
                            capture_output=True, text=True, check=False, timeout=240)
    if IS_GPU and ("no CUDA driver" in result.stderr or result.stdout.split()[:1] not in ([], ["0"])):
        print("SKIP: no CUDA driver here that starts: " + (result.stdout or result.stderr).strip())
        sys.exit(77)
    assert result.returncode == 0, result
    with open(path, encoding="utf-8") as file:
        [process] = json.load(file)["processes"]
    assert process["program"] == os.path.basename(PROGRAM), process
    if IS_GPU:
        assert result.stdout == "0 2\n", result  # the second is above the budget: cudaErrorMemoryAllocation
        [device] = process["devices"]
        assert MIB <= device["peak_bytes"] <= 32 * MIB and device["refused"]["count"] >= 1, device
