#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A container refuses io_uring with EPERM, a kernel without it with ENOSYS. A run over a store then falls back to
threads, says so once, and has the same numbers. `lade doctor` names the refusal and the remedy.

Usage: uring.py LADE REFUSE
"""
import errno
import json
import os
import subprocess
import sys
import tempfile

LADE, REFUSE = (os.path.abspath(path) for path in sys.argv[1:3])
URING_SETUP = "425"  # io_uring_setup, on every architecture
SCRATCH = tempfile.TemporaryDirectory(prefix="lade-uring-")  # removed with the process
os.chdir(SCRATCH.name)
os.environ["XDG_CACHE_HOME"] = os.getcwd()
TRAIN = ["train", "--model", "nano", "--data", "text.txt", "--batch", "2", "--seq", "32", "--steps", "3", "--quiet",
         "--eval-iters", "1", "--budget", "min", "--host-budget", "0", "--store", ".", "--allow-tmpfs", "--json"]

with open("text.txt", "w", encoding="utf-8") as file:
    file.writelines(f"{i * i % 97} bottles on the wall, {i}\n" for i in range(2000))


def run(*command):
    result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
    return result.returncode, result.stdout, result.stderr


def refusing(number, *args):
    code, out, err = run(REFUSE, str(number), URING_SETUP, "--", LADE, *args)
    if code == 77:
        print("seccomp is forbidden here")
        sys.exit(77)
    return code, out, err


code, out, err = run(LADE, *TRAIN)
if code == 5 and "O_DIRECT" in err:
    print("no store here:", err.strip())
    sys.exit(77)
assert code == 0, (code, err)
whole = json.loads(out)
assert whole["store_bytes"] > 0, whole

for number in (errno.EPERM, errno.ENOSYS):
    code, out, err = refusing(number, *TRAIN)
    assert code == 0, (code, err)
    assert err.count("\n") == 1 and "note: store: io_uring refused" in err and os.strerror(number) in err, err
    refused = json.loads(out)
    assert refused["store_bytes"] > 0, refused
    for field in ("loss_digest", "params_digest", "measured_peak_bytes"):
        assert refused[field] == whole[field], (field, refused, whole)
    code, out, err = refusing(number, "doctor", "--json")
    finding = [one for one in json.loads(out)["findings"] if one["name"] == "io_uring"]
    assert finding and finding[0]["state"] != "ok" and finding[0]["fix"], (out, err)
