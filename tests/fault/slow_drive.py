#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A drive that is fast for the probe and slow in steps, reads and writes at rates of their own: the first run predicts
the first rates and says so, and keeps the rates of its steps; the next run predicts its step within a tenth.

Usage: slow_drive.py LADE REFUSE SLOW_DRIVE [probe]

With "probe" the drive is slow for the probe too. `lade doctor --probe` then stops at its time limit and keeps the bytes
that a long run moves, fewer than those of a fast drive.
"""
import errno
import glob
import json
import os
import re
import subprocess
import sys
import tempfile

LADE, REFUSE, SLOW = (os.path.abspath(path) for path in sys.argv[1:4])
URING_SETUP = "425"  # io_uring_setup, on every architecture
SCRATCH = tempfile.TemporaryDirectory(prefix="lade-slow-drive-")  # removed with the process
os.chdir(SCRATCH.name)
RATES = {"SLOW_READ": "30e6", "SLOW_WRITE": "120e6"}
os.environ.update(XDG_CACHE_HOME=os.getcwd(), SLOW_FILE_BYTES=str(24 << 20))
TRAIN = ["--model", "nano", "--data", "text.txt", "--batch", "2", "--seq", "32", "--budget", "min", "--host-budget", "0",
         "--store", ".", "--allow-tmpfs", "--json"]
with open("text.txt", "w", encoding="utf-8") as file:
    file.writelines(f"{i * i % 97} bottles on the wall, {i}\n" for i in range(2000))


def lade(*args, **rates):
    result = subprocess.run([REFUSE, str(errno.ENOSYS), URING_SETUP, "--", "/usr/bin/env", "LD_PRELOAD=" + SLOW, LADE, *args],
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False,
                            env={**os.environ, **rates})
    if result.returncode == 77 or "O_DIRECT" in result.stderr:
        print("no store without io_uring here:", result.stderr.strip())
        sys.exit(77)
    assert result.returncode == 0, (result.returncode, result.stderr)
    return result.stdout, result.stderr


def train(steps, **rates):
    out, err = lade("train", *TRAIN, "--steps", str(steps), "--eval-iters", "1", **rates)
    return json.loads(out), err


def kept():
    [path] = glob.glob("lade/probe-*.json")
    with open(path, encoding="utf-8") as file:
        probed = json.load(file)
    return path, probed


if sys.argv[4:] == ["probe"]:
    lade("doctor", "--probe", "--store", ".", "--allow-tmpfs", **RATES, SLOW_FILE_BYTES=str(256 << 20))
    [entry] = kept()[1]["stores"].values()
    assert 0 < entry["burst_bytes"] < 2 << 30, entry  # 10 s of at most 120 MB/s, in whole passes
    assert 15e6 < entry["lasting_read_bytes_per_s"] < 45e6 and 60e6 < entry["lasting_write_bytes_per_s"] < 180e6, entry
    sys.exit(0)

fast, err = train(2)
moved = fast["store_read_bytes_per_step"] + fast["store_written_bytes_per_step"]
assert re.search(r"^drive: .*/s that it does at first$", err, re.M), err
path, probed = kept()
for entry in probed["stores"].values():
    assert entry["lasting_read_bytes_per_s"] == 0 and entry["burst_bytes"] == 0, entry
    entry["burst_bytes"] = 3 * moved
with open(path, "w", encoding="utf-8") as file:
    json.dump(probed, file)

# A run that moves less than the burst keeps nothing.
train(2, **RATES)
assert all(entry["lasting_read_bytes_per_s"] == 0 for entry in kept()[1]["stores"].values()), kept()
# The first rates are wrong about a longer run. Its own are kept, reads and writes apart, and are right about the next.
first, err = train(5, **RATES)
assert "at first" in err and first["predicted_step_seconds"] < 0.7 * first["measured_step_seconds"], first
for attempt in range(4):  # a busy machine may delay the run that tells the rates, or the next one
    [entry] = kept()[1]["stores"].values()
    second, err = train(5, **RATES)
    assert "that it does in long runs" in err, err
    share = second["predicted_step_seconds"] / second["measured_step_seconds"]
    if 0.9 < share < 1.1 and entry["lasting_write_bytes_per_s"] > 2 * entry["lasting_read_bytes_per_s"]:
        break
else:
    raise AssertionError((share, entry, second["predicted_queue_seconds"], second["measured_queue_seconds"],
                          second["predicted_step_seconds"], second["measured_step_seconds"]))
assert second["params_digest"] == first["params_digest"] and second["loss_digest"] == first["loss_digest"]
words = lade("doctor", "--store", ".", "--allow-tmpfs")[0]
[entry] = kept()[1]["stores"].values()  # the last run may have changed the rates that it was predicted with
rates = [f"{entry[f'lasting_{kind}bytes_per_s'] / 1e9:.2f}" for kind in ("read_", "write_", "")]
assert "in long runs: read {} GB/s, write {}, half of each {}".format(*rates) in words, (rates, words)
print(f"predicted {share:.2f} of the second run's step; first run {first['predicted_step_seconds']:.4f} of "
      f"{first['measured_step_seconds']:.4f} s; {entry}")
