#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A run over a store when the kernel refuses: the right numbers, or exit 5 with a line that names the failed object.

strace makes system calls fail, prlimit sets a limit, and the directory is removed during the run.

Usage: store_refused.py LADE
"""
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time

LADE = os.path.abspath(sys.argv[1])
SCRATCH = tempfile.TemporaryDirectory(prefix="lade-store-faults-", dir=os.getcwd())  # on a drive, unlike /tmp
os.chdir(SCRATCH.name)
os.environ["XDG_CACHE_HOME"] = os.getcwd()
TRAIN = [LADE, "train", "--model", "nano", "--data", "text.txt", "--batch", "2", "--seq", "32", "--quiet",
         "--eval-iters", "1", "--budget", "min", "--host-budget", "0", "--store", "drive", "--residency", "tiers", "--json"]
STEPS = ["--steps", "3"]
NO_RING = "io_uring_setup:error=ENOSYS"


def run(command, **more):
    result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False, **more)
    return result.returncode, result.stdout, result.stderr


def traced(*injections, path=(), steps=STEPS):
    """Run with system calls failing by @injections; return also strace's text about it."""
    calls = ",".join(one.split(":")[0] for one in injections)
    command = ["strace", "-f", "-qq", "-o", "trace", "-e", "trace=" + calls, *path]
    for one in injections:
        command += ["-e", "inject=" + one]
    code, out, err = run(command + TRAIN + steps)
    with open("trace", encoding="utf-8", errors="replace") as file:
        return code, out, err, file.read()


def survives(*injections, path=()):
    code, out, err, trace = traced(*injections, path=path)
    assert code == 0, (injections, code, err)
    assert "(INJECTED)" in trace, injections
    for field in ("loss_digest", "params_digest"):
        assert json.loads(out)[field] == whole[field], (injections, out)
    return err


def ends(*injections, words, path=(), steps=STEPS):
    code, out, err, trace = traced(*injections, path=path, steps=steps)
    lines = [line for line in err.splitlines() if "io_uring refused" not in line and not line.startswith("strace: ")]
    assert code == 5 and not out and len(lines) == 1, (injections, code, out, err)
    assert "(INJECTED)" in trace, injections
    for word in words:
        assert word in lines[0], (word, lines)


with open("text.txt", "w", encoding="utf-8") as text:
    text.writelines(f"{i * i % 97} bottles on the wall, {i}\n" for i in range(2000))
with open("tiers", "w", encoding="utf-8") as tiers:  # else a machine's measurements decide how much is read
    tiers.write("weights * store\noptimizer * store\n")
os.mkdir("drive")
code, out, err = run(TRAIN + STEPS)
if code == 5 and ("O_DIRECT" in err or "tmpfs" in err):
    print("no store here:", err.strip())
    sys.exit(77)
assert code == 0, (code, err)
whole = json.loads(out)
assert whole["store_bytes"] > 0, whole

# The directory is removed during the run: its file has no name and stays.
with subprocess.Popen(TRAIN + ["--steps", "40", "--log", "log"], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                      text=True) as process:
    while process.poll() is None and not (os.path.exists("log") and '"event":"step"' in open("log").read()):
        time.sleep(0.01)
    shutil.rmtree("drive")
    out, err = process.communicate()
    assert process.returncode == 0 and json.loads(out)["steps"] == 40, (process.returncode, err)
os.mkdir("drive")

# A file size limit is found before the signal would come.
code, out, err = run(TRAIN + STEPS, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20)))
assert code == 5 and err.count("\n") == 1 and "ulimit -f" in err and "drive" in err, (code, err)

if not shutil.which("strace") or run(["strace", "-qq", "-o", "trace", "true"])[0]:
    print("no strace here, or tracing is forbidden: the rest is left out")
    sys.exit(77)

# Temporary refusals, in storms, over threads and over the ring.
survives(NO_RING, "pread64,pwrite64:error=EINTR:when=10+3")
for error in ("EAGAIN", "EBUSY"):
    survives(NO_RING, f"pwrite64:error={error}:when=10+2")
for error in ("EINTR", "EAGAIN", "EBUSY"):
    survives(f"io_uring_enter:error={error}:when=5+2")
survives("fallocate:error=EINTR:when=1")

# Features that a file system may lack.
for error in ("EOPNOTSUPP", "EPERM"):
    survives(f"fallocate:error={error}")
assert "io_uring refused" in survives(NO_RING)
for error in ("ENOMEM", "EPERM", "EINVAL"):  # memory that is not pinned for the ring
    survives(f"io_uring_register:error={error}")
survives("openat:error=EOPNOTSUPP:when=1", path=["-P", "drive"])

# Errors that end a run name the place and the cause. They name the tensor too, except for the store's first writes,
# most of which one thread may make.
for error, why in (("EIO", "Input/output error"), ("ENOSPC", "No space left"), ("EROFS", "Read-only file system"),
                   ("ENODEV", "No such device")):
    ends(NO_RING, f"pwrite64:error={error}:when=30+", words=["store in drive", "writing", why])
# Per thread: in 8 steps the run's own reads its text 124 times, and one of the store's eight 280 times at least, for
# any request length that suits the drive.
ends(NO_RING, "pread64:error=EIO:when=140+", words=["store in drive", "reading tensor", "Input/output error"],
     steps=["--steps", "8"])
ends("fallocate:error=ENOSPC", words=["drive", "need", "are free"])
# Permanent refusals end it, too, wherever they begin.
for error, why in (("EINTR", "Interrupted system call"), ("EBUSY", "resource busy")):
    ends(f"fallocate:error={error}", words=["store in drive", why])
    for begin in (5, 150):  # mostly during the store's first writes, or after them, depending on the drive
        ends(f"io_uring_enter:error={error}:when={begin}+", words=["store in drive", why], steps=["--steps", "8"])
        ends(NO_RING, f"pwrite64:error={error}:when={begin // 2}+", words=["store in drive", "writing", why],
             steps=["--steps", "8"])

# A directory that cannot be a store from the start.
ends("openat:error=EROFS", path=["-P", "drive"], words=["store directory drive", "Read-only file system"])
