#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""RMM's own library over the pluggable allocator and the fake of the driver.

Usage: rmm.py SOURCE_ROOT BUILD_ROOT

LADE_RMM names a folder with the packages librmm-cu13 and rapids-logger (pip install --no-deps --target), or none is
compiled.
"""
import os
import shutil
import subprocess
import sys
import tempfile

SOURCE, BUILD = sys.argv[1:]
PROGRAM, FAKES = os.path.join(SOURCE, "tests", "on_fakes", "rmm.cpp"), os.path.join(BUILD, "tests", "on_fakes")
assert os.path.exists(PROGRAM) and os.path.exists(os.path.join(FAKES, "libcuda.so.1")), (PROGRAM, FAKES)
RMM, CUDA = os.environ.get("LADE_RMM"), os.environ.get("CUDA_HOME", "/usr/local/cuda")
compiler = shutil.which("c++") or shutil.which("g++")
if not RMM or not compiler or not os.path.exists(os.path.join(CUDA, "include", "cuda_runtime_api.h")):
    print("SKIP: LADE_RMM, a C++ compiler and CUDA's headers are needed")
    sys.exit(77)
headers = [os.path.join(RMM, "librmm", "include"), os.path.join(RMM, "librmm", "include", "rapids"),
           os.path.join(CUDA, "include"), os.path.join(SOURCE, "include")]
libraries = [os.path.join(RMM, "librmm", "lib64"), os.path.join(RMM, "rapids_logger", "lib64"), BUILD]
with tempfile.TemporaryDirectory(prefix="lade-rmm-") as folder:
    program = os.path.join(folder, "rmm")
    subprocess.run([compiler, "-std=c++20", PROGRAM, "-o", program,
                    *(f"-I{each}" for each in headers), *(f"-L{each}" for each in libraries), "-lrmm",
                    "-lrapids_logger", "-llade-allocator", "-llade"], check=True)
    path = os.pathsep.join([*libraries, FAKES])
    subprocess.run([program], env={**os.environ, "LD_LIBRARY_PATH": path, "LADE_ALLOCATOR_LIMIT": "64MiB"}, check=True)
