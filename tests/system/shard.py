#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""lade/shard.h on several ranks: its properties, the ends of failing jobs, and processes that cannot form a job; with a
device, its vectors are in the memory of host devices, or of GPUs (the fakes').

Usage: shard.py LADE TEST-SHARD PLUGIN, or shard.py LADE SHARD-DEVICE PLUGIN host|cuda
"""
import os
import re
import subprocess
import sys

import jobs
from jobs import require

EPIPE, ECANCELED, EINVAL, ENOMEM = -32, -125, -22, -12
LADE, PROGRAM = sys.argv[1:3]
ENVIRONMENT = jobs.environment(sys.argv[3])


def ranks_run(n, *arguments):
    """Return exit code and output of the test on @n ranks."""
    result = subprocess.run([LADE, "launch", "-n", str(n), "--", PROGRAM, *arguments], env=ENVIRONMENT,
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=110, check=False)
    return result.returncode, result.stdout


def ending(what, ranks, status, words, own=None):
    """Check that every rank in @ranks gets @status with @words; the last rank @own, if it is another status."""
    code, output = ranks_run(4, *([what] if isinstance(what, str) else what))
    ends = re.findall(r"^END rank (\d+): (-?\d+): (.*)$", output, re.MULTILINE)
    require(code != 0, f"{what}: the job ends with 0", output)
    require(sorted(int(end[0]) for end in ends) == ranks, f"{what}: other ranks report than {ranks}", output)
    for rank, found, text in ends:
        if own and int(rank) == ranks[-1]:
            require(int(found) == own, f"{what}: rank {rank} finds {found}: {text}", output)
            continue
        require(int(found) == status and words in text, f"{what}: rank {rank} finds {found}: {text}", output)


def others_are_reported():
    """Processes that MPI did not start are two worlds of one, not a world of two."""
    for variables, way in (({"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}, "mpirun"),
                           ({"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2"}, "srun --mpi=pmix or mpirun")):
        result = subprocess.run([PROGRAM], env=dict(ENVIRONMENT, **variables), stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT, text=True, timeout=110, check=False)
        require(result.returncode == 1 and f"OPEN {EINVAL}: " in result.stdout and f"start with {way}" in result.stdout,
                f"{variables} without MPI are refused in one line", result.stdout)


def ranks_pass(counts, *arguments):
    for n_ranks in counts:
        exit_code, text = ranks_run(n_ranks, *arguments)
        require(exit_code == 0 and text.count("[  PASSED  ]") == n_ranks, f"{n_ranks} ranks end with {exit_code}", text)


if sys.argv[4:]:
    ENVIRONMENT["LADE_FAKE"] = "devices=4"
    ranks_pass((3,), sys.argv[4])
    ending((sys.argv[4], "abort"), [0, 1, 2, 3], ECANCELED, "rank 3 gave up: no data left")
    sys.exit(0)
ranks_pass((2, 4))
ending("kill", [0, 1, 2], EPIPE, "rank 3 (process ")
ending("abort", [0, 1, 2, 3], ECANCELED, "rank 3 gave up: no data left")
ending("memory", [0, 1, 2, 3], ECANCELED, "rank 3 gave up: no memory for a shard", ENOMEM)
ending("sizes", [0, 1, 2, 3], EINVAL, "rank 3 cuts 1001 elements and rank 0 1000")
others_are_reported()
