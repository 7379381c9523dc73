#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Ranks that are lost: one message with the rank, the place and the newest checkpoint, exit 1, nothing left behind; and
jobs that start again go on with the numbers of a run that nobody disturbed.

Usage: lost.py LADE PLUGIN [N]

With N jobs that start again, and N kills of a random rank at a random moment of a job that saves every other step, each
resumed to its end.
"""
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

LADE, PLUGIN = (os.path.abspath(path) for path in sys.argv[1:3])
if not shutil.which("mpirun"):
    print("SKIP: mpirun is not on PATH (apt-get install openmpi-bin)")
    sys.exit(77)
if sys.argv[2] == "none":
    print("SKIP: built without Open MPI (apt-get install libopenmpi-dev)")
    sys.exit(77)

PATIENCE = 240  # seconds until a job counts as hung
ENVIRONMENT = dict(os.environ, LADE_MPI_PLUGIN=PLUGIN)
for name, option in (("ASAN_OPTIONS", "detect_leaks=0"), ("TSAN_OPTIONS", "ignore_noninstrumented_modules=1")):
    ENVIRONMENT[name] = ":".join(part for part in (os.environ.get(name), option) if part)
TRAIN = ["train", "--model", "nano", "--dtype", "fp32", "--batch", "8", "--seq", "32", "--eval-iters", "1", "--quiet",
         "--machine", "a100-40g", "--data", "text.txt"]
GONE = r"rank {} \(process \d+\) has ended; the other ranks cannot go on without it"
PLACE = (r"((step|in the save after step|in a save before step|between steps, after step|at the end of step) \d+"
         r"(, instruction \d+ \(\w+ .+ over \w+\))?: )?")


def require(truth, what, output=""):
    if not truth:
        print(f"FAILED: {what}\n{output}")
        sys.exit(1)


class Job:
    """A job of several ranks, each of which can be found."""

    def __init__(self, ranks, *arguments, launch=()):
        self.name = f"job-{os.getpid()}-{time.monotonic_ns()}"
        self.log = self.name + ".log"
        self.process = subprocess.Popen([LADE, "launch", "-n", str(ranks), *launch, "--", *TRAIN, "--log", self.log,
                                         *arguments], env=dict(ENVIRONMENT, LADE_TEST_JOB=self.name),
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def ranks(self):
        """Processes of the ranks, by number."""
        found = {}
        for entry in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{entry}/environ", "rb") as file:
                    environ = file.read()
                with open(f"/proc/{entry}/cmdline", "rb") as file:
                    words = file.read().split(b"\0")
            except OSError:
                continue
            rank = re.search(rb"OMPI_COMM_WORLD_RANK=(\d+)", environ)
            if rank and f"LADE_TEST_JOB={self.name}".encode() in environ and b"train" in words:
                found[int(rank[1])] = int(entry)
        return found

    def until(self, words, n=1):
        """Wait until the log has an event @n times."""
        deadline = time.monotonic() + PATIENCE
        while not os.path.exists(self.log) or open(self.log, encoding="utf-8").read().count(words) < n:
            require(self.process.poll() is None and time.monotonic() < deadline, f"no {words} in the log",
                    self.process.stderr.read() if self.process.poll() is not None else "")
            time.sleep(0.02)

    def end(self):
        """Exit code, output and messages; nothing of the job may stay."""
        out, err = self.process.communicate(timeout=PATIENCE)
        deadline = time.monotonic() + PATIENCE
        while self.ranks():
            require(time.monotonic() < deadline, "a rank stays behind", err)
            time.sleep(0.05)
        return self.process.returncode, out, [line for line in err.splitlines() if line.startswith("lade")]


def lost(ranks, bad, number, arguments, words, event='"event":"step"'):
    """Rank @bad of a job gets signal @number: the one message is @words."""
    job = Job(ranks, "--steps", "100000", *arguments)
    job.until(event)
    os.kill(job.ranks()[bad], number)
    code, _, lines = job.end()
    require(code == 1, f"the job ends with {code}", lines)
    require(len(lines) == 1 and re.fullmatch("lade train: " + words, lines[0]), f"not one message of {words}", lines)
    return lines[0]


def a_rank_is_killed():
    """In a collective, in a pipeline, and while it saves."""
    newest = r"; the newest complete checkpoint is saves/step-\d+"
    lost(2, 1, signal.SIGKILL, [], PLACE + GONE.format(1))
    lost(4, 2, signal.SIGKILL, ["--pp", "4", "--micro-batch", "1"], PLACE + GONE.format(2))
    lost(2, 0, signal.SIGKILL, ["--save", "saves", "--save-every", "1"], PLACE + GONE.format(0) + newest, '"event":"save"')


def a_rank_is_stopped():
    """It is found out, told, and ended with the others."""
    words = PLACE + r"rank 1 \(process \d+\) is stopped; the other ranks cannot go on without it"
    lost(2, 1, signal.SIGSTOP, [], words)


def a_rank_ends_before_the_first_message():
    """Killed, or well, before it has joined."""
    words = r"lade \w+: rank 1 (ended before it began, without a word|has not begun within 2 s; .*)\n"
    for way in ("kill -9 $$", "exit 0"):
        script = f'[ $OMPI_COMM_WORLD_RANK = 1 ] && {way}; exec "$0" "$@"'
        result = subprocess.run([LADE, "launch", "-n", "2", "--", "sh", "-c", script, LADE, *TRAIN, "--steps", "3",
                                 "--comm-timeout", "2"],
                                env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                timeout=PATIENCE, check=False)
        require(result.returncode == 1 and re.fullmatch(words, result.stderr),
                f"{way}: {result.returncode}, not one message of {words}", result.stderr)


def digests(out):
    summary = json.loads(out)
    return {name: summary[name] for name in ("loss_digest", "params_digest", "steps")}


def a_job_starts_again():
    """With all ranks: the digests of a run that nobody disturbed. With those that remain: to the end, on fewer."""
    steps = ["--steps", "40", "--json", "--zero", "1", "--save-every", "10"]
    code, out, lines = Job(2, *steps, "--save", "job-whole").end()
    require(code == 0, "a job fails", lines)
    job = Job(2, *steps, "--save", "job-again", launch=["--max-restarts", "2"])
    job.until('"event":"save"')
    os.kill(job.ranks()[random.randrange(2)], signal.SIGKILL)
    code, again, lines = job.end()
    require(code == 0 and len(lines) == 2, f"a job with restarts ends with {code}", lines)
    require(re.fullmatch(r"lade launch: restart 1 of 2, 2 ranks, goes on after step \d+: \d+ steps and \d+\.\d s lost",
                         lines[1]) and "after step 0:" not in lines[1], "what was lost is not told", lines)
    require(digests(out) == digests(again), "it goes on with other numbers", (digests(out), digests(again)))
    job = Job(3, "--steps", "40", "--json", "--batch", "12", "--save", "less", "--save-every", "10",
              launch=["--max-restarts", "1", "--elastic"])
    job.until('"event":"save"')
    os.kill(job.ranks()[2], signal.SIGKILL)
    code, out, lines = job.end()
    require(code == 0 and json.loads(out)["ranks"] == 2 and json.loads(out)["steps"] == 40
            and "restart 1 of 1, 2 ranks" in lines[-1], "it does not go on with the ranks that remain", lines)
    lose = 'shift; [ $OMPI_COMM_WORLD_RANK != 2 ] || [ -e lost ] || { touch lost; kill -9 $$; }; exec "$0" "$@"'
    job = Job(3, "--steps", "2", "--json", "--batch", "12", "--dp", "3", "--save", "none",
              launch=["--max-restarts", "1", "--elastic", "--", "sh", "-c", lose, LADE])
    code, out, lines = job.end()
    require(code == 0 and json.loads(out)["ranks"] == 2 and json.loads(out)["steps"] == 2,
            "a layout that was asked for is not shrunk where a rank is lost before it begins", lines)


def a_restart_that_finds_all_done_says_so():
    """No step is left to take: the line comes at the end."""
    once = '[ $OMPI_COMM_WORLD_RANK = 0 ] || [ -e once ] || { touch once; kill -9 $$; }; exec "$0" "$@"'
    steps = ["--steps", "2", "--save", "done"]
    code, _, lines = Job(2, *steps).end()
    require(code == 0, "a job fails", lines)
    result = subprocess.run([LADE, "launch", "-n", "2", "--max-restarts", "1", "--", "sh", "-c", once, LADE, *TRAIN,
                             *steps], env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                            timeout=PATIENCE, check=False)
    require(result.returncode == 0 and "restart 1 of 1, 2 ranks, goes on after step 2: 0 steps and" in result.stderr,
            f"a job with nothing left to do ends with {result.returncode}", result.stderr)


def what_ranks_call_wrong_is_not_tried_again():
    """It would be wrong again."""
    result = subprocess.run([LADE, "launch", "-n", "2", "--max-restarts", "5", "--", *TRAIN, "--budget", "1MiB"],
                            env=ENVIRONMENT, stderr=subprocess.PIPE, text=True, timeout=PATIENCE, check=False)
    require(result.returncode == 3 and result.stderr.count("lade train:") == 1 and "restart" not in result.stderr,
            "a budget that is too small is tried again", result.stderr)


def a_code_after_all_ranks_ended_well_is_not_tried_again():
    """No rank was lost: the code is that of what the command did afterwards."""
    result = subprocess.run([LADE, "launch", "-n", "2", "--max-restarts", "2", "--", "sh", "-c",
                             'echo start >>starts; "$0" "$@" && exit 3', LADE, *TRAIN, "--steps", "1"],
                            env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                            text=True, timeout=PATIENCE, check=False)
    with open("starts", encoding="ascii") as file:
        starts = file.read().count("start")
    require(result.returncode == 3 and starts == 2 and "restart" not in result.stderr,
            f"{starts} ranks were started, and the job ends with {result.returncode}", result.stderr)


def many(n):
    """@n kills of a random rank at a random moment, each followed by a resumed run to the end."""
    arguments = ["--steps", "12", "--json", "--zero", "1", "--save-every", "2"]
    begin = time.monotonic()
    code, out, lines = Job(2, *arguments, "--save", "whole").end()
    require(code == 0, "a job fails", lines)
    want, seconds = digests(out), time.monotonic() - begin
    n_kills = n_resumed = 0
    while n_kills < n:
        shutil.rmtree("again", ignore_errors=True)
        job = Job(2, *arguments, "--save", "again", launch=["--max-restarts", "1"])
        try:
            job.process.wait(random.uniform(0, seconds))
        except subprocess.TimeoutExpired:
            pass
        ranks = job.ranks()
        if ranks:
            try:
                os.kill(random.choice(list(ranks.values())), signal.SIGKILL)
                n_kills += 1
            except ProcessLookupError:
                pass
        code, out, lines = job.end()
        require(code == 0, f"kill {n_kills}: the job ends with {code}", lines)
        require(digests(out) == want, f"kill {n_kills}: other numbers", (want, digests(out), lines))
        n_resumed += any("restart 1 of 1" in line for line in lines)
    print(f"{n_kills} kills, {n_resumed} of them restarted, all with {want['loss_digest']} {want['params_digest']}")


TMP = tempfile.mkdtemp(prefix="lade-lost-")
try:
    os.chdir(TMP)
    seed = int.from_bytes(os.urandom(4), "little")
    random.seed(seed)
    print(f"seed {seed}", flush=True)
    with open("text.txt", "w", encoding="ascii") as text:
        text.write("".join(f"{i} green bottles stood on the wall, and {i * 7 % 13} fell. " for i in range(2000)))
    quick = (a_rank_is_killed, a_rank_is_stopped, a_rank_ends_before_the_first_message,
             what_ranks_call_wrong_is_not_tried_again)
    long = (a_job_starts_again, a_restart_that_finds_all_done_says_so,
            a_code_after_all_ranks_ended_well_is_not_tried_again)
    if len(sys.argv) > 3:
        many(int(sys.argv[3]))
    for test in long if len(sys.argv) > 3 else quick:
        start = time.monotonic()
        test()
        print(f"ok {test.__name__} ({time.monotonic() - start:.1f} s)", flush=True)
finally:
    os.chdir("/")
    shutil.rmtree(TMP, ignore_errors=True)
