#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Where device and host are one memory, the smallest budget over a drive makes the whole process small.

Usage: small.py LADE MODEL
"""
import json
import os
import subprocess
import sys
import tempfile

LADE, MODEL = os.path.abspath(sys.argv[1]), sys.argv[2]
MAX_BYTES = 60 << 20  # resident, code and libraries included

with tempfile.TemporaryDirectory(prefix="lade-small-") as scratch:
    os.chdir(scratch)
    os.environ["XDG_CACHE_HOME"] = scratch
    with open("text.txt", "wb") as file:
        file.write(os.urandom(100000))

    def train(*words):
        return json.loads(subprocess.run(
            [LADE, "train", "--model", MODEL, "--data", "text.txt", "--batch", "16", "--steps", "2", "--eval-iters", "1",
             "--quiet", "--json", *words], stdout=subprocess.PIPE, check=True).stdout)

    os.mkdir("store")
    stored = train("--budget", "min", "--host-budget", "0", "--store", "store", "--allow-tmpfs")
    kept = train("--budget", "100%")
    assert stored["loss_digest"] == kept["loss_digest"], (stored, kept)
    assert 0 < stored["resident_peak_bytes"] < MAX_BYTES, stored["resident_peak_bytes"]
    for kind in ("read", "written"):
        planned, moved = (stored[f"{head}store_{kind}_bytes_per_step"] for head in ("", "measured_"))
        assert planned <= moved <= 1.05 * planned, (kind, planned, moved)
    assert stored["store_bytes"] > 0 and stored["resident_peak_bytes"] < kept["resident_peak_bytes"] / 4 or MODEL == "nano"
