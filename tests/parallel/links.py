#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""lade bench links: ranks measure their links, and the file that they write is a cluster that plans.

Usage: links.py LADE
"""
import json
import os
import shutil
import subprocess
import sys
import tempfile

LADE = sys.argv[1]


def run(*args):
    return subprocess.run([LADE, *args], capture_output=True, text=True, check=False, timeout=60)


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
    result = run("launch", "-n", "2", "--", "bench", "links", "--json", "--write", path)
    assert result.returncode == 0, result
    printed = json.loads(result.stdout)
    with open(path, encoding="utf-8") as file:
        written = json.load(file)
    assert (printed["nodes"], printed["devices_per_node"]) == (1, 2), printed
    level, = printed["levels"]
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
    failed = run("launch", "-n", "2", "--", "bench", "links", "--write", os.path.join(directory, "none", "x"))
    assert failed.returncode == 5 and "cannot be written" in failed.stderr, failed
