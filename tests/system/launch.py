#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`lade launch`: ranks are numbered; output, signals and exit codes pass through; mistakes are one line. A restart
after a failure begins anew without a checkpoint, and fails with a damaged one. An mpirun that does not end is
killed, unless its output waits for a reader.

Usage: launch.py LADE
"""
import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

LADE = os.path.abspath(sys.argv[1])


def run(*args, **more):
    return subprocess.run([LADE, "launch", *args], capture_output=True, text=True, check=False, timeout=60, **more)


def refused(code, words, *args, **more):
    result = run(*args, **more)
    assert result.returncode == code and not result.stdout and result.stderr.count("\n") == 1, (args, result)
    assert result.stderr.startswith("lade launch: ") and words in result.stderr, (args, result)


refused(2, "the number of ranks is missing")
refused(2, "the number of ranks is missing", "hostname")
refused(2, "no option '--ranks'", "--ranks", "2")
for number in ("0", "-3", "x", "4097", "2x"):
    refused(2, "from 1 to 4096", "-n", number, "--", "true")
refused(2, "from 1 to 4096", "-n")
refused(2, "the command is missing", "-n", "2")
refused(2, "the command is missing", "-n2", "--")
refused(2, "no option '--verbose'", "-n", "2", "--verbose", "true")
refused(2, "cannot begin with '-'", "-n", "2", "--", "--verbose", "true")
refused(2, "from 0 to", "-n", "2", "--max-restarts", "-1", "true")
refused(2, "--elastic needs --max-restarts", "-n", "2", "--elastic", "true")
refused(2, "no program 'no-such-program'", "-n", "2", "--", "no-such-program")
refused(2, "no program '/tmp'", "-n", "2", "--", "/tmp")  # a directory is searchable and not executable
plain = os.path.join(os.path.dirname(os.path.abspath(__file__)), "meson.build")
refused(2, f"no program '{plain}' that this user may execute", "-n", "2", "--", plain)
with tempfile.TemporaryDirectory() as empty:
    refused(7, "apt-get install openmpi-bin", "-n", "2", "--", "/bin/true", env={"PATH": empty})
assert run("--help").stdout.startswith("Usage: lade launch -n N")
if not shutil.which("mpirun"):
    print("SKIP: mpirun is not on PATH (apt-get install openmpi-bin)")
    sys.exit(77)

# mpiruns that never end: they are waited for at the end of this test.
STUCK = """#!/usr/bin/env python3
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
at = sys.argv.index("-n") + 1
ranks = [subprocess.Popen(sys.argv[at + 1:], start_new_session=True,
                          env=dict(os.environ, OMPI_COMM_WORLD_RANK=str(rank), OMPI_COMM_WORLD_SIZE=sys.argv[at]))
         for rank in range(int(sys.argv[at]))]
while True:
    signal.pause()
"""
# One that kills the other ranks of three without asking, and after mpirun's pause before it asks.
HASTY = STUCK.split("while True", maxsplit=1)[0] + """
ended, _ = os.wait()
if len(ranks) == 3:
    time.sleep(1)
    for rank in ranks:
        if rank.pid != ended:
            rank.kill()
    sys.exit(137)
"""


class Stuck:
    """A job whose mpirun never ends, or ends by @script."""

    def __init__(self, *args, script=STUCK):
        self.scratch = tempfile.TemporaryDirectory(prefix="lade-stuck-")
        mpirun = os.path.join(self.scratch.name, "mpirun")
        with open(mpirun, "w", encoding="ascii") as file:
            file.write(script)
        os.chmod(mpirun, 0o755)
        with open(os.path.join(self.scratch.name, "text.txt"), "w", encoding="ascii") as text:
            text.write("all that is green " * 1000)
        self.path = self.scratch.name + ":" + os.environ["PATH"]
        self.job = subprocess.Popen([LADE, "launch", *args], cwd=self.scratch.name, stdout=subprocess.PIPE,
                                    stderr=subprocess.PIPE, text=True, env=dict(os.environ, PATH=self.path))

    def left(self):
        """Return the processes of the job that still run."""
        found = []
        for name in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                with open(f"/proc/{name}/environ", "rb") as environ:
                    found += [name] if self.path.encode() in environ.read() else []
        return found

    def ranks(self, n):
        """Return the first @n ranks, by number, once they wait for others."""
        found = {}
        while len(found) < n:
            assert self.job.poll() is None, self.job.communicate()
            for name in self.left():
                with contextlib.suppress(OSError), open(f"/proc/{name}/environ", encoding="utf-8") as environ, \
                        open(f"/proc/{name}/maps", encoding="ascii") as maps, \
                        open(f"/proc/{name}/stat", encoding="ascii") as stat:
                    rank = re.search(r"OMPI_COMM_WORLD_RANK=(\d+)", environ.read())
                    if rank and "lade-job-status" in maps.read() and stat.read().rsplit(")", 1)[1].split()[0] == "S":
                        found[int(rank[1])] = int(name)
            time.sleep(0.02)
        return found

    def ends(self, code, after):
        """Check that it is killed, and nothing of the job stays; return its standard output."""
        out, err = self.job.communicate(timeout=100)
        note = f"lade launch: note: mpirun did not end within 10 s of {after}, and was killed; "
        assert self.job.returncode == code and err.startswith(note), (self.job.returncode, out, err)
        assert not self.left(), "processes stay behind"
        self.scratch.cleanup()
        return out


stuck_well = Stuck("-n", "1", "--", "train", "--data", "text.txt", "--batch", "2", "--seq", "16", "--steps", "1",
                   "--eval-iters", "1", "--quiet", "--json", "--machine", "laptop-8c")
stuck_other = Stuck("-n", "2", "--max-restarts", "3", "--", "true")
stuck_signalled = Stuck("-n", "2", "--", "sh", "-c", "echo up; sleep 1000; true")
assert stuck_signalled.job.stdout.readline() == "up\n"
stuck_signalled.job.send_signal(signal.SIGTERM)

# Of three ranks the first is stopped, the second killed, and the third has not begun.
HOLD = """echo $OMPI_COMM_WORLD_SIZE >>sizes; [ $OMPI_COMM_WORLD_SIZE = 3 ] || { kill -9 $PPID; exit 0; }
          [ $OMPI_COMM_WORLD_RANK != 2 ] || sleep 1000; exec "$0" "$@" """
THREE = ["-n", "3", "--max-restarts", "1", "--elastic", "--", "sh", "-c", HOLD, LADE, "train", "--data", "text.txt",
         "--machine", "laptop-8c", "--batch", "6", "--dp", "3"]
held_jobs = [Stuck(*THREE), Stuck(*THREE, script=HASTY)]
for held in held_jobs:
    held_ranks = held.ranks(2)
    os.kill(held_ranks[0], signal.SIGSTOP)
    os.kill(held_ranks[1], signal.SIGKILL)

# A job whose reader takes longer than an mpirun may take to end; it is read at the end of this test.
unread = subprocess.Popen([LADE, "launch", "-n", "1", "--", "sh", "-c", "sleep 2; seq 40000"], stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True)

ranks = run("-n", "5", "--", "sh", "-c", "echo $OMPI_COMM_WORLD_RANK of $OMPI_COMM_WORLD_SIZE $1", "sh", "a b")
assert ranks.returncode == 0, ranks
assert sorted(ranks.stdout.splitlines()) == [f"{rank} of 5 a b" for rank in range(5)], ranks
assert run("-n1", "true").returncode == 0
assert run("-n", "3", "--", "sh", "-c", "test $OMPI_COMM_WORLD_RANK != 1 || exit 6").returncode == 6

# A signal that ends a rank is reported, because mpirun is quiet; other commands report their own errors. Ranks of Lade
# that end before they have begun have reported nothing. Messages name the verb that the ranks run.
killed = run("-n", "2", "--", "sh", "-c", "kill -SEGV $$")
assert killed.returncode == 139 and killed.stderr.count("\n") == 1, killed
assert "lade launch: mpirun ended with code 139, the code of a rank that signal 11 (Segmentation fault) ended" in killed.stderr
assert not run("-n", "2", "--", "sh", "-c", "exit 3").stderr
with tempfile.TemporaryDirectory() as quiet:
    with open(os.path.join(quiet, "mpirun"), "w", encoding="ascii") as script:
        script.write("#!/bin/sh\nexit 9\n")
    os.chmod(script.name, 0o755)
    path = {**os.environ, "PATH": quiet + ":" + os.environ["PATH"]}
    refused(9, "no rank has begun: mpirun ended with code 9", "-n", "2", "--", "train", "--data", "x", env=path)
    assert not run("-n", "2", "--", "true", env=path).stderr
for words in (["store", "--nonsense"], []):  # these print their own errors
    bench = run("-n", "2", "--", "bench", *words)
    assert bench.returncode == 2 and "lade launch:" not in bench.stderr and "lade bench" in bench.stderr, bench
links = run("-n", "2", "--", "bench", "links", "--device", "dry")
assert links.returncode == 2 and links.stderr.startswith("lade bench links: --device: links of host"), links


def lost_output(code, words, script, **more):
    """Standard output of a job of two ranks takes no byte of those that @script writes to it."""
    result = subprocess.run([LADE, "launch", "-n", "2", "--", "sh", "-c", script], stderr=subprocess.PIPE, text=True,
                            check=False, timeout=60, **more)
    said = [line for line in result.stderr.splitlines() if line.startswith("lade")]
    assert result.returncode == code and len(said) == len(words), (script, result)
    assert all(line.startswith("lade launch: standard output: ") and word in line for line, word in zip(said, words)), said


# mpirun ignores write errors; a code of the command takes precedence, and without output nothing is lost.
reader, writer = os.pipe()
os.close(reader)
with open("/dev/full", "w", encoding="ascii") as full, open(writer, "w", encoding="ascii") as unread_pipe:
    lost_output(5, ["No space left on device"], "echo up", stdout=full)
    lost_output(6, ["No space left on device"], "echo up; exit 6", stdout=full)
    lost_output(5, ["Broken pipe"], "echo up", stdout=unread_pipe)
    lost_output(0, [], "echo up >&2", stdout=full)
lost_output(5, ["Bad file descriptor"], "echo up", preexec_fn=lambda: os.close(1))
lost_output(0, [], "echo up >&2", preexec_fn=lambda: os.close(1))

# A kill in Open MPI's search for shared memory would leave an empty file of the first kind that it tries; mpirun holds
# the locks of its directories, so that another launch does not take them for abandoned ones.
opened = run("-n", "1", "--", "sh", "-c", "ls -l /proc/$PPID/fd").stdout
assert "/dev/shm/open_mpi" not in opened, opened
assert len(re.findall(r"/lade-launch\.\d+\.\w{6}$", opened, re.MULTILINE)) == 2, opened

many = str((os.cpu_count() or 1) + 1)
threads = run("-n", many, "--", "sh", "-c", "echo $OMP_NUM_THREADS", env=dict(os.environ, OMP_NUM_THREADS="3"))
assert set(threads.stdout.split()) == {"3"}, threads
environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
threads = run("-n", many, "--", "sh", "-c", "echo $OMP_NUM_THREADS", env=environment)
assert set(threads.stdout.split()) == {"1"}, threads

# To the job and its group, as `timeout` does.
job = subprocess.Popen([LADE, "launch", "-n", "2", "--", "sh", "-c", "echo up; sleep 50"], stdout=subprocess.PIPE,
                       stderr=subprocess.PIPE, text=True, start_new_session=True)
assert job.stdout.readline() == "up\n" and job.stdout.readline() == "up\n"
begin = time.monotonic()
job.send_signal(signal.SIGTERM)
os.killpg(job.pid, signal.SIGTERM)
_, err = job.communicate(timeout=40)
assert job.returncode == 128 + signal.SIGTERM and err.count("lade launch:") == 1, (job.returncode, err)
assert "lade launch: ended by signal 15 (Terminated)\n" in err, err
assert time.monotonic() - begin < 30, "a signal ends the job before its sleep does"

# A job is killed and its newest checkpoint damaged: the restart ends with the name of the previous one, which stays. A
# job killed before it trains has no checkpoint, and its restart trains as the first start would have.
LOSE = '[ -e lost ] || { touch lost; kill -9 $$; }; exec "$0" "$@"'
DAMAGE = """[ -e hurt ] && exec "$0" "$@"
            touch hurt; "$0" "$@" & until [ -e saves/step-00000005 ]; do sleep 0.01; done; kill -9 $!; wait
            for newest in saves/step-*; do :; done; truncate -s 100 $newest/state.json; kill -9 $$"""
with tempfile.TemporaryDirectory(prefix="lade-launch-") as scratch:
    train = ["train", "--model", "nano", "--data", "text.txt", "--batch", "2", "--seq", "16", "--eval-iters", "1",
             "--quiet", "--machine", "laptop-8c", "--save", "saves", "--save-every", "1"]
    again = ["-n", "1", "--max-restarts", "1", "--", "sh", "-c"]
    saves = os.path.join(scratch, "saves")

    def kept():
        return sorted(name for name in os.listdir(saves) if name.startswith("step-"))

    with open(os.path.join(scratch, "text.txt"), "w", encoding="utf-8") as text:
        text.write("".join(f"{i * i % 97} bottles\n" for i in range(2000)))
    anew = run(*again, LOSE, LADE, *train, "--keep", "2", "--steps", "3", cwd=scratch)
    assert anew.returncode == 0 and kept() == [f"step-{step:08d}" for step in (2, 3)], (anew, kept())
    shutil.rmtree(saves)
    damaged = run(*again, DAMAGE, LADE, *train, "--keep", "1000", "--steps", "100000", cwd=scratch)
    lines = [line for line in damaged.stderr.splitlines() if line.startswith("lade train: ")]
    assert damaged.returncode == 5 and len(lines) == 1, damaged
    assert "state.json is damaged" in lines[0] and lines[0].endswith("/saves/" + kept()[-2]), (damaged, kept())

# Without a status table the lost rank is unknown: one rank is left out.
FEWER = 'echo $OMPI_COMM_WORLD_SIZE; [ -e lost ] || [ $OMPI_COMM_WORLD_RANK != 1 ] || { touch lost; kill -9 $$; }; sleep 1'
with tempfile.TemporaryDirectory(prefix="lade-launch-") as scratch:
    fewer = run("-n", "3", "--max-restarts", "1", "--elastic", "--", "sh", "-c", FEWER, cwd=scratch)
    assert fewer.returncode == 0 and fewer.stdout.split()[-2:] == ["2", "2"], fewer

# A signal that the command survives uses up no restart.
with tempfile.TemporaryDirectory() as directory:
    SCRIPT = """trap '' USR1; echo up; [ -e done ] && exit 0
                while ! [ -e go ]; do sleep 0.05; done; touch done; kill -9 $$"""
    job = subprocess.Popen([LADE, "launch", "-n", "1", "--max-restarts", "1", "--", "sh", "-c", SCRIPT], cwd=directory,
                           stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert job.stdout.readline() == "up\n"
    job.send_signal(signal.SIGUSR1)
    with open(os.path.join(directory, "go"), "w", encoding="ascii"):
        pass
    out, _ = job.communicate(timeout=40)
    assert job.returncode == 0 and out == "up\n", (job.returncode, out)

# A job whose ranks all succeeded succeeds; the codes of other commands are unknown. A rank that lived is not lost.
assert '"steps": 1,' in stuck_well.ends(0, "its ranks")
stuck_other.ends(1, "its ranks")
stuck_signalled.ends(128 + signal.SIGTERM, "a signal")
for held in held_jobs:
    held_err = held.job.communicate(timeout=100)[1]
    with open(os.path.join(held.scratch.name, "sizes"), encoding="ascii") as sizes:
        held_sizes = sizes.read().split()
    assert held_sizes[:4] == ["3", "3", "3", "2"] and not held.left(), (held_sizes, held_err)
    held.scratch.cleanup()

out, err = unread.communicate(timeout=40)
assert unread.returncode == 0 and not err and out.endswith("\n40000\n"), (unread.returncode, err, out[-100:])
