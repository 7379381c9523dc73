#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A CUDA build of PyTorch under the shim, over the fake driver, as far as its runtime goes there.

NVIDIA's runtime first asks the driver for an entry without a name, by a private contract that the fake cannot keep. So
PyTorch finds no device, and no allocation of its own is seen here; tests/preload/runtime.py and holder.c stand for
those. This test shows the way up to there: PyTorch loads beside the shim, its runtime opens the driver through the
shim, a missing device is PyTorch's own error, and its pluggable allocator takes the symbols of liblade-allocator.so.

The build is gigabytes. LADE_TORCH_CUDA names a folder; a virtual environment is made there if it has none.

Usage: torch_cuda.py LADE DRIVER-FOLDER ALLOCATOR
"""
import json
import os
import subprocess
import sys
import tempfile
import venv

PROGRAM = """
import sys, torch
from torch.cuda.memory import CUDAPluggableAllocator
assert torch.version.cuda, 'not a CUDA build'
assert not torch.cuda.is_available() and torch.cuda.device_count() == 0
try:
    torch.empty(1, device='cuda')
except RuntimeError as error:
    print('refused:', str(error).splitlines()[0])
allocator = CUDAPluggableAllocator(sys.argv[1], 'lade_plugged_alloc', 'lade_plugged_free')
assert allocator.allocator() is not None
try:
    CUDAPluggableAllocator(sys.argv[1], 'lade_no_such_function', 'lade_plugged_free')
except (RuntimeError, AttributeError):
    print('an allocator without the function is refused')
"""


def python_get(folder):
    """Return the environment's Python; make the environment and install PyTorch if it is not there."""
    python = os.path.join(folder, "bin/python")
    if not os.path.exists(python):
        venv.create(folder, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", "torch"], check=True)
    return python


def main():
    lade, drivers, allocator = map(os.path.abspath, sys.argv[1:])
    folder = os.environ.get("LADE_TORCH_CUDA")
    if not folder:
        print("SKIP: LADE_TORCH_CUDA names no folder for a CUDA build of PyTorch")
        sys.exit(77)
    python = python_get(os.path.abspath(folder))
    with tempfile.TemporaryDirectory(prefix="lade-torch-cuda-") as scratch:
        path = os.path.join(scratch, "report.json")
        result = subprocess.run([lade, "run", "--budget", "32MiB", "--report", path, "--", python, "-W", "ignore", "-c",
                                 PROGRAM, allocator], env=dict(os.environ, TMPDIR=scratch, LD_LIBRARY_PATH=drivers),
                                capture_output=True, text=True, check=False, timeout=240)
        assert result.returncode == 0, result
        assert "refused: " in result.stdout and "an allocator without the function" in result.stdout, result
        with open(path, encoding="utf-8") as file:
            processes = json.load(file)["processes"]
        assert processes and not processes[0]["devices"], processes  # seen by the shim, and nothing was allocated
        print(result.stdout)


main()
