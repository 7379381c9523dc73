#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Kill a run that saves every step, at any moment, repeatedly.

Usage: kill.py LADE [N]

Each life of the run resumes from the state of the one before, and is killed (SIGKILL) after a random time: while it
starts, steps, writes, renames or removes. After each of the N kills the newest checkpoint is at least as new as before,
and the next life accepts it. When the last step is done, the digests of every step's loss and of all parameters are
those of an undisturbed run.
"""
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time

LADE = os.path.abspath(sys.argv[1])
N_KILLS = int(sys.argv[2]) if len(sys.argv) > 2 else 200
N_STEPS = 2 * N_KILLS  # more than most lives get to
RUN = ["train", "--model", "nano", "--data", "text.txt", "--batch", "2", "--seq", "32",
       "--dropout", "0.1", "--eval-iters", "1", "--budget", "50%", "--host-budget", "256MiB", "--machine", "laptop-8c",
       "--quiet", "--json"]
DIGESTS = ["loss_digest", "params_digest", "steps", "train_loss", "val_loss"]


def newest(directory):
    names = os.listdir(directory) if os.path.isdir(directory) else []
    return max((int(name[5:]) for name in names if name.startswith("step-") and name[5:].isdigit()), default=-1)


def command(directory, n_steps):
    resume = ["--resume", directory] if newest(directory) >= 0 else []
    return [LADE, *RUN, "--steps", str(n_steps), "--save", directory, "--save-every", "1", "--keep", "2", *resume]


def digests(out):
    summary = json.loads(out)
    return {name: summary[name] for name in DIGESTS}


def are_same(end, want):
    """Compare the ends. The life that runs the last step has its loss; after a kill behind the last save none is left
    to run.
    """
    return end == want or end == {**want, "train_loss": None}


def live(directory, seconds, n_steps=N_STEPS):
    """Run one life: killed after @seconds (None: never). Return its summary if it reached the end, else None."""
    child = subprocess.Popen(command(directory, n_steps), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                             stdin=subprocess.DEVNULL)
    try:
        out, err = child.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        child.kill()
        child.communicate()
        return None
    assert child.returncode == 0, (child.returncode, err)
    return digests(out)


def main():
    seed = int.from_bytes(os.urandom(4), "little")
    random.seed(seed)
    print(f"seed {seed}", flush=True)
    work = tempfile.mkdtemp(prefix="lade-kill-", dir=".")
    os.chdir(work)
    os.environ["XDG_CACHE_HOME"] = os.getcwd()
    with open("text.txt", "w", encoding="utf-8") as file:
        file.writelines(f"{i * i % 97} bottles of {'beer' if i % 3 else 'wine'}, {i}\n" for i in range(4000))
    want = live("undisturbed", None)
    start = time.monotonic()
    live("short", None, 1)
    short_seconds = time.monotonic() - start
    n_kills = n_ends = 0
    while n_kills < N_KILLS:
        before = newest("saves")
        end = live("saves", random.uniform(0, 2 * short_seconds))
        assert newest("saves") >= before, f"step {before} was there, and is not any more"
        if end is None:
            n_kills += 1
            continue
        assert are_same(end, want), (end, want)
        n_ends += 1
        shutil.rmtree("saves")
    end = live("saves", None)
    assert are_same(end, want), (end, want)
    print(f"{n_kills} kills, {n_ends + 1} runs to the end, all with {want['loss_digest']} {want['params_digest']}")
    os.chdir("..")
    shutil.rmtree(work)


main()
