#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A run stays within its control group's memory, or is refused: the kernel never ends it.

Usage: memory.py LADE
"""
import contextlib
import ctypes
import errno
import json
import os
import random
import subprocess
import sys
import tempfile

LADE = os.path.abspath(sys.argv[1])
SCRATCH = tempfile.TemporaryDirectory(prefix="lade-memory-", dir=os.getcwd())  # on a drive: a store is opened in it
os.chdir(SCRATCH.name)
os.environ["XDG_CACHE_HOME"] = os.getcwd()
MIB = 1 << 20
CLONE_NEWNS, MS_REC, MS_PRIVATE = 0x20000, 0x4000, 1 << 18
BABY = ["--model", "baby", "--layers", "2", "--data", "text.txt", "--batch", "8", "--seq", "128", "--budget", "min"]
TRAIN = ["train", *BABY, "--steps", "2", "--eval-iters", "1", "--quiet"]
libc = ctypes.CDLL(None, use_errno=True)


def group_parents():
    """Return the groups in which one with a limit may be made: (directory, name of the limit's file)."""
    with open("/proc/self/mountinfo", encoding="utf-8") as mounts:
        for mount in mounts:
            place, _, kind = mount.partition(" - ")
            if kind.startswith("cgroup2 "):
                yield place.split()[4], "memory.max"
            elif kind.startswith("cgroup ") and "memory" in kind.split()[2].split(","):
                yield place.split()[4], "memory.limit_in_bytes"


@contextlib.contextmanager
def group_of(n_bytes):
    """Make a group with a limit; None if none can be made."""
    for parent, name in group_parents():
        group = os.path.join(parent, f"lade-test-{os.getpid()}")
        try:
            os.mkdir(group)
        except OSError:
            continue
        try:
            limit = os.path.join(group, name)
            if os.path.exists(limit):  # else the parent does not pass the controller on
                with open(limit, "w", encoding="utf-8") as file:
                    file.write(str(n_bytes))
                yield limit
                return
        finally:
            os.rmdir(group)
    yield None


def run_in(limit, *args):
    def enter():
        with open(os.path.join(os.path.dirname(limit), "cgroup.procs"), "w", encoding="utf-8") as procs:
            procs.write("0")
    result = subprocess.run([LADE, *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False,
                            preexec_fn=enter)
    return result.returncode, result.stdout, result.stderr


def proc_hide():
    """Give this process a /proc without files, in a mount namespace of its own."""
    if libc.unshare(CLONE_NEWNS) or libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None) or \
            libc.mount(b"none", b"/proc", b"tmpfs", 0, None):
        os._exit(77 if ctypes.get_errno() in (errno.EPERM, errno.ENOSYS) else 99)


def refused(code, err, limit):
    """Check for one line that names the limit, and for the exit code."""
    assert code == 3 and err.count("\n") == 1 and limit in err, (code, err)


with open("text.txt", "w", encoding="utf-8") as text:
    random.seed(1)
    for _ in range(2000):
        text.write("".join(random.choices("abcdefgh ", k=60)) + "\n")
os.mkdir("drive")

# Without /proc the machine's memory is unknown: a line says so, and nothing is refused because of it.
result = subprocess.run([LADE, *TRAIN], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False,
                        preexec_fn=proc_hide)
if result.returncode == 77:
    print("SKIP: without /proc: mount namespaces are forbidden")
else:
    assert result.returncode == 7 and "/proc/meminfo" in result.stderr, (result.returncode, result.stderr)

# At every limit a run succeeds or is refused, and its plan says the same; with a store it needs less.
codes = []
for mib in (48, 72, 88, 144):
    with group_of(mib * MIB) as limit:
        if not limit:
            print("SKIP: no control group with a limit of memory can be made here")
            sys.exit(77)
        code, out, err = run_in(limit, *TRAIN, "--json")
        codes.append(code)
        if code:
            refused(code, err, limit)
        else:
            record = json.loads(out)
            assert record["measured_peak_bytes"] + record["host_bytes"] < mib * MIB, record
        if mib == 72:
            planned, _, err = run_in(limit, "plan", *BABY)
            refused(planned, err, limit)
            code, _, err = run_in(limit, *TRAIN, "--budget", "auto")
            refused(code, err, limit)
            code, _, err = run_in(limit, *TRAIN, "--host-budget", "0", "--store", "drive")
            assert code == 0, (code, err)
            code, _, err = run_in(limit, "plan", *BABY, "--machine", "h100-80g")
            assert code == 0, (code, err)  # another machine's memory is not this one's
        if mib == 144:
            planned, _, err = run_in(limit, "plan", *BABY)
            assert planned == 0, (planned, err)
            code, _, err = run_in(limit, *TRAIN, "--save", "saves", "--host-budget", "64GiB")
            assert code == 0, (code, err)
assert codes[0] == 3 and codes[-1] == 0 and codes == sorted(codes, reverse=True), codes

# A store in memory counts towards the same limit as the other tiers.
with group_of(96 * MIB) as limit, tempfile.TemporaryDirectory(prefix="lade-memory-", dir="/dev/shm") as memory:
    stored = ["--host-budget", "0", "--store", memory, "--allow-tmpfs"]
    code, _, err = run_in(limit, *TRAIN, *stored)
    assert code in (0, 3), (code, err)
    code, _, err = run_in(limit, *TRAIN, *stored, "--durable")
    refused(code, err, limit)
