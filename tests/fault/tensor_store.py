#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The tensor store of examples/durable.c when the kernel refuses, or kills it: each life finds the last publish whole.

strace makes system calls fail, or delivers SIGKILL at them. Usage: tensor_store.py EXAMPLE
"""
import os
import shutil
import subprocess
import sys
import tempfile

EXAMPLE = os.path.abspath(sys.argv[1])
SCRATCH = tempfile.TemporaryDirectory(prefix="lade-tensor-store-", dir=os.getcwd())  # on a drive, unlike /tmp
os.chdir(SCRATCH.name)
NO_RING = "io_uring_setup:error=ENOSYS"


def life(*injections):
    """Run one life; return (exit status, the step that it found or -1, its last published step or -1, its line)."""
    command = []
    if injections:
        command = ["strace", "-f", "-qq", "-o", "trace", "-e", "trace=" + ",".join(i.split(":")[0] for i in injections)]
        for one in injections:
            command += ["-e", "inject=" + one]
    done = subprocess.run(command + [EXAMPLE, "drive", "3"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          check=False)
    lines = done.stdout.splitlines()
    numbers = {line.split()[0]: int(line.split()[-1]) for line in lines}
    return done.returncode, numbers.get("found", None), numbers.get("published", -1), done.stderr.strip()


os.mkdir("drive")
code, found, published, err = life()
if code and ("O_DIRECT" in err or "tmpfs" in err):
    print("no store here:", err)
    sys.exit(77)
assert (code, found, published) == (0, -1, 2), (code, found, published, err)
code, found, published, err = life()
assert (code, found, published) == (0, 2, 5), (code, found, published, err)
if not shutil.which("strace") or subprocess.run(["strace", "-qq", "-o", "trace", "true"], check=False).returncode:
    print("no strace here, or tracing is forbidden: the rest is left out")
    sys.exit(77)

# Killed at a sync, a write, or a submission to the ring: the last publish is found, or the one that was killed.
at = published
for call, when in (("fdatasync", 1), ("fdatasync", 2), ("fdatasync", 3), ("fdatasync", 5), ("pwrite64", 1),
                   ("pwrite64", 3), ("pwrite64", 6), ("io_uring_enter", 2), ("io_uring_enter", 5)):
    code, found, published, err = life(f"{call}:signal=KILL:when={when}")
    assert code != 0 or published == found + 3, (call, when, code, err) # without a ring there is no such call
    assert found is None or found in (at, at + 1), (call, when, at, found)
    if found is not None:
        at = max(found, published)
code, found, published, err = life()
assert code == 0 and found in (at, at + 1), (at, found, err)
at = published

# Refused syncs and writes end a life with a line that names file and reason, and lose nothing.
for injection, word in (("fdatasync:error=EIO:when=3", "Input/output error"),
                        ("fdatasync:error=ENOSPC:when=2", "No space left"),
                        ("pwrite64:error=EIO:when=2+", "Input/output error")):
    code, found, published, err = life(NO_RING, injection)
    assert code == 1 and word in err and "drive" in err, (injection, code, err)
    at = max(at, published)
    code, found, published, err = life()
    assert code == 0 and found in (at, at + 1), (injection, at, found, err)
    at = published
for error in ("EINTR", "EAGAIN"):
    code, found, published, err = life(NO_RING, f"pwrite64:error={error}:when=2+2")
    assert code == 0 and found == at, (error, code, err)
    at = published
