#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's own runtime, linked statically into a program, comes to the driver by way of the shim.

Usage: runtime.py LADE DRIVER-FOLDER PROGRAM
"""
import json
import os
import subprocess
import sys
import tempfile

LADE, FOLDER, PROGRAM = (os.path.abspath(path) for path in sys.argv[1:4])

with tempfile.TemporaryDirectory(prefix="lade-runtime-") as scratch:
    report = os.path.join(scratch, "report.json")
    settings = dict(os.environ, LD_LIBRARY_PATH=FOLDER, TMPDIR=scratch)
    result = subprocess.run([LADE, "run", "--report", report, "--", PROGRAM], env=settings, capture_output=True, text=True,
                            check=False, timeout=60)
    assert result.returncode == 0, result
    with open(report, encoding="utf-8") as file:
        processes = json.load(file)["processes"]
    assert [process["program"] for process in processes] == [os.path.basename(PROGRAM)], processes
