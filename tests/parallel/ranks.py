#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Run a test program on N ranks under mpirun; every rank must print DONE and succeed.

Usage: ranks.py PROGRAM PLUGIN N [ARGUMENT...]
A first argument "abort" is a job whose communicators fail: MPI then calls its end improper, whatever ranks return.
"""
import os
import shutil
import subprocess
import sys

PROGRAM, PLUGIN, RANKS = sys.argv[1:4]
if not shutil.which("mpirun"):
    print("SKIP: mpirun is not on PATH (apt-get install openmpi-bin)")
    sys.exit(77)
if PLUGIN == "none":
    print("SKIP: built without Open MPI (apt-get install libopenmpi-dev)")
    sys.exit(77)

environment = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1", LADE_MPI_PLUGIN=PLUGIN)
# Open MPI leaks at its end and is not instrumented: sanitizers check Lade's side.
for name, option in (("ASAN_OPTIONS", "detect_leaks=0"), ("TSAN_OPTIONS", "ignore_noninstrumented_modules=1")):
    environment[name] = ":".join(part for part in (os.environ.get(name), option) if part)
mpirun = ["mpirun", "--oversubscribe", "--mca", "mpi_yield_when_idle", "1", "-n", RANKS, PROGRAM] + sys.argv[4:]
result = subprocess.run(mpirun, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                        check=False)
print(result.stdout)
if result.stdout.count("DONE") != int(RANKS):
    print("FAILED: not every rank is through")
    sys.exit(1)
sys.exit(0 if sys.argv[4:5] == ["abort"] else result.returncode)
