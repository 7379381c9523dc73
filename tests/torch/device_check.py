#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Run the cases of bench/torch/cuda_check.py, on the CPU where there is no CUDA device, and check its figures.

Usage: device_check.py LIBLADE
"""
import json
import os
import subprocess
import sys

from fixture import ROOT, torch

if torch.cuda.is_available():
    device = []
else:
    device = ["--device", "cpu"]
done = subprocess.run([sys.executable, os.path.join(ROOT, "bench", "torch", "cuda_check.py"), *device, "--small",
                       "--seconds", "300", "audit", "adamw", "saved", "limit"], stdout=subprocess.PIPE, text=True)
print(done.stdout)
lines = {line["case"]: line for line in map(json.loads, filter(lambda t: t.startswith("{"), done.stdout.splitlines()))
         if "case" in line}
assert done.returncode == 0, done.returncode
assert len(lines) == 6 and not any("error" in line or "skipped" in line for line in lines.values()), lines
planned = [line for line in lines.values() if "planned" in line]
assert len(planned) == 3 and all(line["planned"] == line["measured"] and line["is_same"] for line in planned), planned
assert lines["adamw fp32"]["from_torch"] < 1e-4 and lines["adamw fp32"]["is_same_on_store"], lines["adamw fp32"]
assert lines["saved store"]["moved"] > lines["saved store"]["limit"] and lines["saved store"]["is_bounded"]
