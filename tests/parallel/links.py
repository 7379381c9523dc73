#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""lade bench links: ranks measure their links, and the file that they write is a cluster that plans. The links are kept
for later jobs.

Usage: links.py LADE [FAKES KERNELS]: links of hosts, or of GPUs over the fakes for the driver and for NCCL
"""
import glob
import json
import os
import shutil
import subprocess
import sys
import tempfile

LADE = sys.argv[1]
ENVIRONMENT = dict(os.environ)
# Open MPI leaks at its end: sanitizers check Lade's side.
ENVIRONMENT["ASAN_OPTIONS"] = ":".join(part for part in (os.environ.get("ASAN_OPTIONS"), "detect_leaks=0") if part)
DEVICE, ENGINE = [], "hosts"
if sys.argv[2:]:
    DEVICE, ENGINE = ["--device", "cuda:0"], "nccl"
    ENVIRONMENT.update(LD_LIBRARY_PATH=os.path.abspath(sys.argv[2]), LADE_FAKE_KERNELS=os.path.abspath(sys.argv[3]),
                       LADE_FAKE="devices=2,channels=8", LADE_ATTENTION="mma")


def run(*args, seconds=120):
    return subprocess.run([LADE, *args], capture_output=True, text=True, check=False, timeout=seconds, env=ENVIRONMENT)


def refused(words, *args):
    result = run(*args)
    assert result.returncode == 2 and not result.stdout and words in result.stderr, (args, result)


refused("lade launch -n N", "bench", "links")
refused("--writes", "bench", "links", "--writes", "x")
if not shutil.which("mpirun"):
    print("SKIP: mpirun is not on PATH (apt-get install openmpi-bin)")
    sys.exit(77)
with tempfile.TemporaryDirectory(prefix="lade-links-") as directory:
    path = os.path.join(directory, "cluster.json")
    ENVIRONMENT["XDG_CACHE_HOME"] = directory
    failed = run("launch", "-n", "2", "--", "bench", "links", "--device", "dry")
    assert failed.returncode == 2 and "are measured" in failed.stderr, failed
    result = run("launch", "-n", "2", "--", "bench", "links", *DEVICE, "--json", "--write", path)
    assert result.returncode == 0, result
    kept, = (json.load(open(name, encoding="utf-8")) for name in glob.glob(os.path.join(directory, "lade", "links-*")))
    assert kept["engine"] == ENGINE and (kept["version"] > 0) == bool(DEVICE) and kept["devices_per_node"] == 2, kept
    printed = json.loads(result.stdout)
    with open(path, encoding="utf-8") as file:
        written = json.load(file)
    assert (printed["nodes"], printed["devices_per_node"]) == (1, 2), printed
    level, = printed["levels"]
    assert abs(kept["levels"][0]["bytes_per_s"] / level["bytes_per_s"] - 1) < 1e-3, (kept, level)
    assert level["name"] == "node" and level["devices"] == 2, level
    assert level["bytes_per_s"] > 1e6 and 0 < level["latency_ns"] < 1e9 and 1 <= level["sum_gain"] <= 4, level
    assert written["levels"][0]["devices"] == 2 and written["device"]["name"] == printed["device"]["name"], written
    planned = run("plan", "--cluster", path, "--model", "nano", "--dp", "2", "--batch", "8", "--json")
    assert planned.returncode == 0 and json.loads(planned.stdout)["exposed_gradient_seconds"] > 0, planned
    # A slower link makes a slower step: the measured rates are the ones that a plan uses.
    written["levels"][0]["bytes_per_s"] /= 100
    with open(path, "w", encoding="utf-8") as file:
        json.dump(written, file)
    slower = run("plan", "--cluster", path, "--model", "nano", "--dp", "2", "--batch", "8", "--json")
    assert (json.loads(slower.stdout)["all_ranks_step_seconds"] >
            json.loads(planned.stdout)["all_ranks_step_seconds"]), (planned, slower)
    if DEVICE:
        failed = run("launch", "-n", "3", "--", "bench", "links", *DEVICE)
        assert failed.returncode == 7 and "would share the GPU" in failed.stderr, failed
        # One rank's GPU has no queue: the others do not wait for it.
        trouble = "fail=cuStreamCreate,nth=3"
        failed = run("launch", "-n", "2", "--", "sh", "-c", f"[ $OMPI_COMM_WORLD_RANK = 0 ] || LADE_FAKE=$LADE_FAKE,{trouble}; "
                     f"exec {os.path.abspath(LADE)} bench links --device cuda:0", seconds=45)
        assert failed.returncode == 4 and "queue" in failed.stderr, failed  # one of them reports it
    failed = run("launch", "-n", "2", "--", "bench", "links", *DEVICE, "--write", os.path.join(directory, "none", "x"))
    assert failed.returncode == 5 and "cannot be written" in failed.stderr, failed
