#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A run with --durable is killed at any moment, and the same command resumes with the digests of an undisturbed run.

Usage: durable.py LADE [N_TRACED N_RANDOM]

Each life resumes from the state of the one before. It is killed by strace at a system call (the files' and the ring's,
in turns and ever later), or after a random time. A step that a life has logged was published: the next life must begin
behind it. A life that reaches the last step must have the digests. Further tests cover refusals and damage; with
numbers of kills, only the kills run.
"""
import collections
import contextlib
import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time

LADE = os.path.abspath(sys.argv[1])
KILLS_ALONE = len(sys.argv) > 3
N_TRACED, N_RANDOM = map(int, sys.argv[2:4]) if KILLS_ALONE else (8, 5)
N_STEPS = 6
SCRATCH = tempfile.TemporaryDirectory(prefix="lade-durable-", dir=os.getcwd())  # on a drive, unlike /tmp
os.chdir(SCRATCH.name)
os.environ["XDG_CACHE_HOME"] = os.getcwd()
RUN = [LADE, "train", "--model", "nano", "--data", "text.txt", "--batch", "2", "--seq", "32", "--dropout", "0.1",
       "--eval-iters", "1", "--budget", "min", "--host-budget", "0", "--machine", "laptop-8c", "--quiet", "--json",
       "--steps", str(N_STEPS)]
STORE = ["--store", "drive", "--durable"]
DURABLE = RUN + STORE
DIGESTS = ["loss_digest", "params_digest", "steps"]
# With threads in place of the ring every transfer is a call; with the ring its submissions are.
CALLS = ["pwrite64", "pread64", "fdatasync", "fsync", "renameat", "ftruncate", "fallocate", "openat", "flock", "write"]
RING_CALLS = ["io_uring_enter", "fdatasync", "pwrite64"]
NO_RING = ["-e", "inject=io_uring_setup:error=ENOSYS"]
STRACE = ["strace", "-f", "-qq", "-o", "trace"]


def run(command, **more):
    result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False, **more)
    return result.returncode, result.stdout, result.stderr


def durable(n_steps):
    return RUN[:-1] + [str(n_steps)] + STORE


def digests(out):
    summary = json.loads(out)
    return {name: summary[name] for name in DIGESTS}


def logged():
    """Steps that the lives so far have logged: at least these are kept."""
    if not os.path.exists("log"):
        return 0
    with open("log", encoding="utf-8") as file:
        lines = [line for line in file if line.endswith("\n")]
    steps = [json.loads(line)["step"] for line in lines if '"event":"step"' in line]
    return max(steps, default=-1) + 1


def digest_from_saves():
    """Digest of parameters if the first steps are a run of their own, because the schedule depends on the end."""
    code, out, err = run(RUN + ["--resume", "saves"])
    assert code == 0, err
    return json.loads(out)["params_digest"]


known = 0  # steps kept at least; a killed life may have published one more than it logged


def clear():
    global known
    known = 0
    shutil.rmtree("drive", ignore_errors=True)
    os.mkdir("drive")
    if os.path.exists("log"):
        os.remove("log")


def live(prefix=(), seconds=None):
    """Run one life, under @prefix or killed after @seconds. Return whether it was killed; else check its digests."""
    global known
    with subprocess.Popen([*prefix, *DURABLE, "--log", "log"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          stdin=subprocess.DEVNULL) as child:
        try:
            out, err = child.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            child.kill()
            out, err = child.communicate()
    found = re.search(r"continuing from step (\d+)", err)
    if found:
        assert known <= int(found[1]) <= known + 1, (known, found[1], err)
        known = int(found[1])
    assert found or not known or child.returncode, (known, err)
    known = max(known, logged())
    is_killed = child.returncode in (-signal.SIGKILL, 128 + signal.SIGKILL)
    if is_killed:
        return True
    assert child.returncode == 0, (prefix, child.returncode, err)
    assert digests(out) == whole, (prefix, out, whole)
    clear()
    return False


def calls_count(more, calls):
    """Return how often the busiest thread makes each call in an undisturbed life."""
    traced = calls + ["io_uring_setup"] if more else calls
    assert not live([*STRACE, "-e", "trace=" + ",".join(traced), *more])
    by_thread = collections.Counter()
    with open("trace", encoding="utf-8", errors="replace") as file:
        for line in file:
            words = line.split(None, 1)
            name = words[1].split("(")[0] if len(words) > 1 else ""
            if name in calls:
                by_thread[words[0], name] += 1
    return {name: max((n for (_, other), n in by_thread.items() if other == name), default=0) for name in calls}


def traced_kills(n_kills, more, calls):
    """Kill at calls spread over all calls of a life, in turns."""
    counts = {name: n for name, n in calls_count(more, calls).items() if n}
    points = [(name, 1 + i * n // per) for name, n in counts.items()
              for per in [max(1, min(n, n_kills // len(counts) + 1))] for i in range(per)]
    random.shuffle(points)
    n_killed = 0
    for name, when in points[:n_kills]:
        command = [*STRACE, "-e", "trace=" + name + (",io_uring_setup" if more else ""), *more,
                   "-e", f"inject={name}:signal=KILL:when={when}"]
        n_killed += live(command)
    while live():
        pass
    return n_killed


def random_kills(n_kills):
    start = time.monotonic()
    assert not live()
    seconds = time.monotonic() - start
    n_killed = 0
    for _ in range(n_kills):
        n_killed += live(seconds=random.uniform(0, 1.2 * seconds))
    while live():
        pass
    return n_killed


def refused(code, words, command=None, **more):
    got, out, err = run(command or DURABLE, **more)
    lines = [line for line in err.splitlines() if ": note: " not in line]
    assert got == code and not out and len(lines) == 1, (code, got, out, err)
    for word in words:
        assert word in lines[0], (word, lines)


def changed(path, offset, by=1):
    with open(path, "r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ by]))
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def refusals():
    assert not live()
    data, journal = "drive/lade-durable.data", "drive/lade-durable.journal"
    code, out, err = run(DURABLE)
    assert code == 0 and digests(out) == whole, err
    assert os.stat(data).st_mode & 0o7777 == os.stat(journal).st_mode & 0o7777 == 0o600
    code, out, err = run(DURABLE)  # no step is left, and the state is unchanged
    assert code == 0 and digests(out) == whole and f"continuing from step {N_STEPS}" in err, (code, err)
    # Another process, another model, another form, another place.
    with subprocess.Popen(durable(100000), stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True) as other:
        while not other.stderr.readline().startswith("lade train: note: continuing"):
            assert other.poll() is None
        refused(1, ["drive/lade-durable.data", "another run"])
        other.terminate()
        code = other.wait()
        said = other.stderr.read()
        stopped = ("kept in drive; the same command continues", "before its first step; no state has changed, and the same")
        assert code == 128 + signal.SIGTERM and any(words in said for words in stopped), (code, said)
    refused(2, ["drive", "another model", "nano"], DURABLE + ["--layers", "2"])
    refused(2, ["drive", "--dtype was bf16 and is fp32"], DURABLE + ["--dtype", "fp32"])
    code, out, err = run(durable(N_STEPS + 1))
    assert code == 0, err
    refused(2, ["--store drive is at step", "past --steps 6"])
    clear()
    refused(2, ["one directory"], RUN + ["--store", "drive,.", "--durable"])
    refused(2, ["--store"], RUN + ["--durable"])
    with open("tiers", "w", encoding="utf-8") as file:
        file.write("optimizer * device\n")
    refused(2, ["--residency tiers", "all state is in the store"], DURABLE + ["--residency", "tiers"])
    refused(3, ["--store-budget", "two slots"], DURABLE + ["--store-budget", "20MiB"])
    refused(5, ["drive", "ulimit -f"],
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (8 << 20, 8 << 20)))
    assert not os.listdir("drive")
    # Checkpoints and durable state: one to begin with, one that is not newer, and one that is newer, which is not
    # ignored.
    for n_steps, directory in ((3, "saves"), (N_STEPS + 1, "further")):
        code, out, err = run(RUN[:-1] + [str(n_steps), "--save", directory])
        assert code == 0, err
    for word in ("", "is not newer"):
        code, out, err = run(DURABLE + ["--resume", "saves"])
        assert code == 0 and word in err and json.loads(out)["params_digest"] == digest_from_saves(), (code, err)
    refused(2, ["further/step-00000007 is of step 7", "of step 6"], durable(N_STEPS + 1) + ["--resume", "further"])
    # Damage: both records; the state itself; a future version.
    size = os.stat(data).st_size
    slots = size - 2 * ((size - 65536 * 3) // 2 // 65536 * 65536)
    changed(data, slots + 100)
    changed(data, slots + (size - slots) // 2 + 100)
    refused(5, ["lade-durable.data", "tensor embed.wte", "offset", "damaged"], DURABLE)
    changed(journal, 8, 2 ^ 1)
    changed(journal, 4096 + 8, 2 ^ 1)
    refused(2, ["lade-durable.journal", "format version 2"])
    changed(journal, 0)
    changed(journal, 4096)
    refused(5, ["lade-durable.journal is damaged", "byte 0"])
    clear()


def limit_in_the_middle():
    """The file size limit falls below the state while steps run: it has its own error, and published steps stay."""
    n_steps = 400
    clear()
    with contextlib.suppress(FileNotFoundError):
        os.remove("log")
    with subprocess.Popen(durable(n_steps) + ["--log", "log"], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          text=True) as process:
        while process.poll() is None and not (os.path.exists("log") and '"event":"step"' in open("log").read()):
            time.sleep(0.01)
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
        out, err = process.communicate()
    lines = [line for line in err.splitlines() if ": note: " not in line]
    assert process.returncode == 5 and not out and len(lines) == 1, (process.returncode, out, err)
    assert "lade-durable" in lines[0] and "File too large" in lines[0], lines
    n_done = max(event["step"] for event in map(json.loads, open("log")) if event["event"] == "step")
    want = run(RUN[:-1] + [str(n_done + 2)])
    code, out, err = run(durable(n_done + 2))
    assert code == 0 and digests(out) == digests(want[1]), (n_done, code, err, want)
    clear()


def failures():
    """An error of the drive ends the run with its name, and published steps are found when the drive works again."""
    ends = [(["fallocate:error=ENOSPC"], ["drive", "need", "are free"], False),
            (["fdatasync:error=EIO:when=1"], ["lade-durable.data", "Input/output error"], False),
            (["fdatasync:error=EIO:when=8"], ["lade-durable", "Input/output error"], True),
            (["renameat:error=EIO"], ["lade-durable.journal", "Input/output error"], False),
            (["pwrite64:error=EINTR:when=6+"], ["lade-durable", "Interrupted system call"], True),
            (["pwrite64:error=EIO:when=60+", "io_uring_setup:error=ENOSYS"], ["lade-durable", "Input/output error"], True)]
    for injections, words, is_kept in ends:
        calls = ",".join(one.split(":")[0] for one in injections)
        command = [*STRACE, "-e", "trace=" + calls]
        for one in injections:
            command += ["-e", "inject=" + one]
        refused(5, words, command + DURABLE)
        assert os.path.exists("drive/lade-durable.journal") == is_kept, injections
        code, out, err = run(DURABLE)
        assert code == 0 and digests(out) == whole, (injections, code, err)
        clear()


seed = int.from_bytes(os.urandom(4), "little")
random.seed(seed)
print(f"seed {seed}", flush=True)
with open("text.txt", "w", encoding="utf-8") as text:
    text.writelines(f"{i * i % 97} bottles of {'beer' if i % 3 else 'wine'}, {i}\n" for i in range(4000))
clear()
code, out, err = run(RUN)
assert code == 0, (code, err)
whole = digests(out)
code, out, err = run(DURABLE)
if code == 5 and ("O_DIRECT" in err or "tmpfs" in err):
    print("no store here:", err.strip())
    sys.exit(77)
assert code == 0 and digests(out) == whole, (code, out, err, whole)
clear()

if not KILLS_ALONE:
    refusals()
    limit_in_the_middle()
n_killed = random_kills(N_RANDOM)
can_trace = shutil.which("strace") and not run([*STRACE, "true"])[0]
if can_trace and not KILLS_ALONE:
    failures()
n_traced = traced_kills(N_TRACED, NO_RING, CALLS) if can_trace else 0
if can_trace and KILLS_ALONE:
    n_traced += traced_kills(N_TRACED // 2, [], RING_CALLS)
assert n_traced >= (N_TRACED // 4 if can_trace else 0), n_traced  # most points lie within the lives that they are for
print(f"{n_killed} random kills and {n_traced} at system calls, all with {whole['loss_digest']}")
if not can_trace:
    print("no strace here, or tracing is forbidden: kills at system calls are left out")
    sys.exit(77)
