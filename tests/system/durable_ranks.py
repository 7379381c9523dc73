#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Jobs of two ranks with --durable: after a kill, or a drive that fails at one of them, the same command goes on with
the numbers of a job that nobody disturbed; ranks whose files are no parts of one state are refused.

Usage: durable_ranks.py LADE PLUGIN [N]

With N that many kills of a random rank at a random moment, and refusals.
"""
import json
import os
import random
import re
import shutil
import signal
import struct
import subprocess
import sys
import time

import jobs
from jobs import require

LADE = os.path.abspath(sys.argv[1])
ENVIRONMENT = jobs.environment(sys.argv[2])
N_STEPS = 6
TRAIN = ["--model", "nano", "--dtype", "fp32", "--batch", "8", "--seq", "32", "--eval-iters", "1", "--quiet", "--json",
         "--machine", "a100-40g", "--data", "text.txt", "--steps", str(N_STEPS), "--budget", "min", "--host-budget", "0",
         "--store", "state", "--durable", "--allow-tmpfs"]


def begin(*arguments, ranks=2, launch=()):
    return jobs.Job(jobs.command(LADE, ranks, *TRAIN, *arguments, launch=launch), ENVIRONMENT, "log")


def digests(out):
    summary = json.loads(out)
    return {name: summary[name] for name in ("loss_digest", "params_digest", "steps")}


def clear():
    shutil.rmtree("state", ignore_errors=True)
    os.mkdir("state")


def generation(rank):
    """The newest that is in a rank's journal, -1 without one."""
    path = f"state/lade-durable{f'-{rank}' if rank else ''}.journal"
    if not os.path.exists(path):
        return -1
    with open(path, "rb") as file:
        records = [file.read(4096) for _ in range(2)]
    return max(struct.unpack_from("<Q", record, 16)[0] for record in records if record.startswith(b"lade-dur"))


def undisturbed():
    clear()
    code, out, lines = begin().end()
    if code == 2 and any("O_DIRECT" in line for line in lines):
        jobs.skip("no store here: " + lines[0])
    require(code == 0 and generation(0) == generation(1) == N_STEPS, "a durable job fails", lines)
    clear()
    return digests(out)


def goes_on(what):
    """The same command, to the same end."""
    code, out, lines = begin().end()
    require(code == 0 and digests(out) == WANT, f"{what}: {code}, or other numbers", (lines, WANT, out))
    require(generation(0) == generation(1) == N_STEPS, f"{what}: ranks end apart", (generation(0), generation(1)))


def drive_fails(bad, nth):
    """Rank @bad cannot sync, and has not published the step that the other has: that one takes it back."""
    clear()
    script = (f'shift; [ $OMPI_COMM_WORLD_RANK = {bad} ] && exec strace -f -qq -o trace -e trace=fdatasync '
              f'-e inject=fdatasync:error=EIO:when={nth} "$0" "$@"; exec "$0" "$@"')
    code, _, lines = begin(launch=["--", "sh", "-c", script, LADE]).end()
    require(code == 5 and len(lines) == 1 and "Input/output error" in lines[0] and f"rank {bad}" in lines[0],
            f"a rank whose drive fails ends the job with {code}", lines)
    require(generation(1 - bad) == generation(bad) + 1, "the other rank is not ahead by one",
            (generation(0), generation(1)))
    goes_on(f"after a failure of rank {bad}")


def can_trace():
    if not shutil.which("strace"):
        return False
    return subprocess.run(["strace", "-qq", "-o", "trace", "true"], check=False).returncode == 0


def what_all_ranks_have_is_gone_on_from():
    if can_trace():
        drive_fails(1, 7)
    else:
        goes_on("anew")


def the_first_step_and_the_first_rank_are_no_others():
    for bad, nth in ((0, 9), (1, 1)) if can_trace() else ():
        drive_fails(bad, nth)


def refused(code, words, *arguments, ranks=2):
    got, out, lines = begin(*arguments, ranks=ranks).end()
    require(got == code and not out and len(lines) == 1 and re.search(words, lines[0]),
            f"it ends with {got}, and not with {code} and {words}", lines)


def journals_swap():
    os.rename("state/lade-durable.journal", "journal")
    os.rename("state/lade-durable-1.journal", "state/lade-durable.journal")
    os.rename("journal", "state/lade-durable-1.journal")


def what_is_not_one_state_is_refused_and_not_touched():
    clear()
    goes_on("anew")
    refused(2, 'of "dp2" keeps, and this is rank . of "tp2"', "--tp", "2")
    refused(2, 'of "dp2" keeps, and this is rank . of "dp3"', "--batch", "12", ranks=3)
    os.rename("state/lade-durable-1.journal", "journal")
    refused(5, "rank 1 finds no durable state, and rank 0 finds generation 6")
    os.rename("journal", "state/lade-durable-1.journal")
    journals_swap()
    refused(2, 'holds what rank . of "dp2" keeps, and this is rank')
    journals_swap()
    goes_on("after refusals")


def kills(n, seconds):
    """@n kills of a random rank at a random moment of a job that takes @seconds; the same command goes on."""
    clear()
    n_kills = n_ahead = 0
    while n_kills < n:
        job = begin()
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
        apart = abs(generation(0) - generation(1))
        require(apart <= 1, f"kill {n_kills}: ranks are apart", (generation(0), generation(1)))
        n_ahead += apart
        if code == 0:
            require(digests(out) == WANT, f"kill {n_kills}: other numbers", (WANT, digests(out), lines))
            clear()
    goes_on(f"after {n_kills} kills")
    print(f"{n_kills} kills, {n_ahead} of them with one rank ahead, all with {WANT['params_digest']}")


with jobs.scratch():
    jobs.text_write("text.txt")
    seed = int.from_bytes(os.urandom(4), "little")
    random.seed(seed)
    print(f"seed {seed}", flush=True)
    since = time.monotonic()
    WANT = undisturbed()
    took = time.monotonic() - since
    if len(sys.argv) > 3:
        kills(int(sys.argv[3]), took)
        jobs.tests_run((the_first_step_and_the_first_rank_are_no_others,
                        what_is_not_one_state_is_refused_and_not_touched))
    else:
        jobs.tests_run((what_all_ranks_have_is_gone_on_from,))
