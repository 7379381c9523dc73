#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Ranks that are lost: one message with the rank, the place and the newest checkpoint, exit 1, nothing left behind; and
jobs that start again go on with the numbers of a run that nobody disturbed.

Usage: lost.py LADE PLUGIN [long | N]

With long jobs that start again. With N that many kills of a random rank at a random moment of jobs of several layouts,
half of them inside a save, each resumed to its end; where they fell is printed.
"""
import collections
import contextlib
import json
import os
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time

import jobs
from jobs import require

LADE = os.path.abspath(sys.argv[1])
ENVIRONMENT = jobs.environment(sys.argv[2])
PATIENCE = jobs.PATIENCE
TRAIN = ["train", "--model", "nano", "--dtype", "fp32", "--batch", "8", "--seq", "32", "--eval-iters", "1", "--quiet",
         "--machine", "a100-40g", "--data", "text.txt"]
# mpirun's code says the signal, unless it saw another rank's end first.
GONE = r"rank {} \(process \d+\) has ended; the other ranks cannot go on without it(; signal 9 \(Killed\) ended it)?"
AGAIN = r"lade launch: restart 1 of 1, {} ranks?, goes on after step (\d+): (\d+) steps and (\d+\.\d) s lost"
NEWEST = r"; the newest complete checkpoint is /.+/step-(\d+); go on with:"
PLACE = (r"((step|in the save after step|in a save before step|between steps, after step|at the end of step) \d+"
         r"(, instruction \d+ \(\w+ .+ over \w+\))?: )?")


def begin(ranks, *arguments, launch=()):
    """A job that trains beside the test; each has a log of its own."""
    log = f"job-{time.monotonic_ns()}.log"
    return jobs.Job(jobs.command(LADE, ranks, *TRAIN[1:], "--log", log, *arguments, launch=launch), ENVIRONMENT, log)


def lost(ranks, bad, number, arguments, words, event="step"):
    """Rank @bad of a job gets signal @number: the one message is @words."""
    job = begin(ranks, "--steps", "100000", *arguments)
    job.until(event)
    os.kill(job.ranks()[bad], number)
    code, _, lines = job.end()
    require(code == 1, f"the job ends with {code}", lines)
    require(len(lines) == 1 and re.fullmatch("lade train: " + words, lines[0]), f"not one message of {words}", lines)
    return lines[0]


def a_rank_is_killed():
    """In a collective, in a pipeline, and while it saves."""
    lost(2, 1, signal.SIGKILL, [], PLACE + GONE.format(1))
    lost(4, 2, signal.SIGKILL, ["--pp", "4", "--micro-batch", "1"], PLACE + GONE.format(2))
    lost(2, 0, signal.SIGKILL, ["--save", "saves", "--save-every", "1"], PLACE + GONE.format(0) + NEWEST, "save")


def a_rank_is_stopped():
    """It is found out, told, and ended with the others."""
    words = PLACE + r"rank 1 \(process \d+\) is stopped; the other ranks cannot go on without it"
    lost(2, 1, signal.SIGSTOP, [], words)


def cpu_seconds(process):
    """That it has run for, by its own threads; 0 of one that is not there."""
    try:
        with open(f"/proc/{process}/stat", encoding="ascii") as stat:
            fields = stat.read().rsplit(")", 1)[1].split()
    except OSError:
        return 0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def the_rank_that_plans_is_lost():
    """While the others wait for what it decides, long before a step: killed, and stopped."""
    for number, words in ((signal.SIGKILL, GONE.format(0)),
                          (signal.SIGSTOP, r"rank 0 \(process \d+\) is stopped; the other ranks cannot go on without it")):
        job = begin(2, "--steps", "1", "--zero", "3", "--model", "baby", "--layers", "48", "--budget", "50%")
        deadline, ranks = time.monotonic() + PATIENCE, {}
        while len(ranks) < 2 or cpu_seconds(ranks[0]) < cpu_seconds(ranks[1]) + 1:
            require(not job.has_ended() and time.monotonic() < deadline, "no rank plans for another",
                    job.process.stderr.read() if job.has_ended() else "")
            time.sleep(0.02)
            ranks = ranks if len(ranks) == 2 else job.ranks()
        os.kill(ranks[0], number)
        code, _, lines = job.end()
        require(code == 1 and len(lines) == 1 and re.fullmatch("lade train: before step 0: " + words, lines[0]),
                f"a job whose planner gets signal {number} ends with {code}", lines)


def a_rank_ends_before_the_first_message():
    """Killed, or well, before it has joined."""
    words = r"lade \w+: rank 1 (ended before it began, without a word(, by signal 9 .Killed.)?|has not begun within 2 s; .*)\n"
    for way in ("kill -9 $$", "exit 0"):
        script = f'[ $OMPI_COMM_WORLD_RANK = 1 ] && {way}; exec "$0" "$@"'
        result = subprocess.run([LADE, "launch", "-n", "2", "--", "sh", "-c", script, LADE, *TRAIN, "--steps", "3",
                                 "--comm-timeout", "2"],
                                env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                timeout=PATIENCE, check=False)
        # Open MPI 5 has nothing that keeps its mpirun from framed words of its own; 4 is to be silent.
        told = re.sub(r"-{70,}\n\s*prterun .*?-{70,}\n", "", result.stderr, flags=re.DOTALL)
        require(result.returncode == 1 and re.fullmatch(words, told),
                f"{way}: {result.returncode}, not one message of {words}", result.stderr)


def a_rank_never_comes_to_mpirun_alone():
    """Without a board nobody sees it end well before MPI's start, which waits for it."""
    script = '[ $OMPI_COMM_WORLD_RANK = 1 ] && exit 0; exec "$0" "$@"'
    result = subprocess.run(["mpirun", "--oversubscribe", "-n", "2", "sh", "-c", script, LADE, *TRAIN, "--steps",
                             "3", "--comm-timeout", "1"],
                            env=dict(ENVIRONMENT, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1"),
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=PATIENCE, check=False)
    require(result.returncode == 1 and jobs.messages(result.stderr) == [
        "lade train: the ranks of this job have not met within 2 s: one of its 2 has ended, or never began"],
        f"a job that a rank never joins ends with {result.returncode}", result.stderr)


def a_rank_without_the_first_speaks():
    """What the first one would say, where there is no first one that ends the job."""
    result = subprocess.run([LADE, *TRAIN, "--steps", "3"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                            env=dict(ENVIRONMENT, OMPI_COMM_WORLD_RANK="1", OMPI_COMM_WORLD_SIZE="2"), timeout=PATIENCE,
                            check=False)
    require(result.returncode == 2 and jobs.messages(result.stderr) == [
        "lade train: MPI says rank 0 of 1 and mpirun's variables rank 1 of 2; start with mpirun"],
        f"a rank alone ends with {result.returncode}", result.stderr)


def digests(out):
    summary = json.loads(out)
    return {name: summary[name] for name in ("loss_digest", "params_digest", "steps")}


def a_job_starts_again():
    """With all ranks: the digests of a run that nobody disturbed. With those that remain: to the end, on fewer."""
    steps = ["--steps", "40", "--json", "--zero", "1", "--save-every", "10"]
    code, out, lines = begin(2, *steps, "--save", "job-whole").end()
    require(code == 0, "a job fails", lines)
    job = begin(2, *steps, "--save", "job-again", launch=["--max-restarts", "2"])
    job.until("save")
    os.kill(job.ranks()[random.randrange(2)], signal.SIGKILL)
    code, again, lines = job.end()
    require(code == 0 and len(lines) == 2, f"a job with restarts ends with {code}", lines)
    require(re.fullmatch(r"lade launch: restart 1 of 2, 2 ranks, goes on after step \d+: \d+ steps and \d+\.\d s lost",
                         lines[1]) and "after step 0:" not in lines[1], "what was lost is not told", lines)
    require(digests(out) == digests(again), "it goes on with other numbers", (digests(out), digests(again)))
    lose = 'shift; [ $OMPI_COMM_WORLD_RANK != 2 ] || [ -e lost ] || { touch lost; kill -9 $$; }; exec "$0" "$@"'
    job = begin(3, "--steps", "2", "--json", "--batch", "12", "--dp", "3", "--save", "none",
              launch=["--max-restarts", "1", "--elastic", "--", "sh", "-c", lose, LADE])
    code, out, lines = job.end()
    require(code == 0 and json.loads(out)["ranks"] == 2 and json.loads(out)["steps"] == 2,
            "a layout that was asked for is not shrunk where a rank is lost before it begins", lines)


def shrinks(ranks, layout, left, sizes):
    """A job of @layout that loses a rank goes on with @left ranks as @sizes."""
    common = ["--steps", "24", "--json", "--batch", "12", "--micro-batch", "2", "--save-every", "6", "--save", sizes]
    job = begin(ranks, *common, *layout, launch=["--max-restarts", "1", "--elastic"])
    job.until("save")
    os.kill(job.ranks()[ranks - 1], signal.SIGKILL)
    code, out, lines = job.end()
    again = [told for told in (re.fullmatch(AGAIN.format(left), line) for line in lines) if told]
    require(code == 0 and len(again) == 1, f"{layout} ends with {code}", lines)
    summary = json.loads(out)
    require(summary["ranks"] == left and summary["layout"] == sizes and summary["steps"] == 24 and int(again[0][1]) > 0
            and float(again[0][3]) > 0, f"{layout} does not go on as {sizes}", (summary, lines))
    steps = {event["step"] for event in jobs.events(job.log, "step")}
    require(len(steps) == 24, "steps are left out", steps)


def jobs_shrink():
    """Replicas first, then stages, then tensor parallel ranks, by what divides: the ranks that are left."""
    shrinks(3, ["--dp", "3", "--zero", "1"], 2, "dp2, zero 1 over 2")
    shrinks(4, ["--tp", "2", "--dp", "2"], 2, "tp2")
    shrinks(4, ["--pp", "4"], 2, "pp2, 1f1b")
    shrinks(2, ["--tp", "2"], 1, "one rank")


def a_layout_that_lacks_memory_ends_the_job():
    """As a first start would with that budget: two ranks share what one has no room for."""
    job = begin(2, "--steps", "100000", "--save", "tight", "--save-every", "4", "--zero", "3", "--budget", "3MiB",
                launch=["--max-restarts", "1", "--elastic"])
    job.until("save")
    os.kill(job.ranks()[1], signal.SIGKILL)
    code, _, lines = job.end()
    require(code == 3 and "does not fit" in lines[-1] and "goes on" not in lines[-1], f"the job ends with {code}", lines)


def no_rank_remains():
    """A job that lost all of them did not begin wrongly: it ends as any that lost a rank, with the line that goes on."""
    job = begin(2, "--steps", "100000", "--save", "all", "--save-every", "4",
                launch=["--max-restarts", "1", "--elastic"])
    job.until("save")
    ranks = job.ranks()
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for process in ranks.values():
            os.kill(process, number)
    _, err = job.process.communicate(timeout=PATIENCE)
    told = re.fullmatch(r"lade launch: rank 0 ended before the others could see it, without a word, by signal 9 \(Killed\)"
                        + NEWEST + r"\n  .+\nlade launch: no ranks remain to go on with\n", err)
    require(job.process.returncode == 1 and told, f"the job ends with {job.process.returncode}", err)


def mpirun_is_killed():
    """Its ranks end with it, also one that is stopped; the line that goes on from the newest checkpoint is told."""
    job = begin(2, "--steps", "100000", "--save", "left", "--save-every", "2")
    job.until("save")
    ranks = job.ranks()
    os.kill(ranks[1], signal.SIGSTOP)
    with open(f"/proc/{ranks[1]}/stat", encoding="ascii") as stat:
        os.kill(int(stat.read().rsplit(")", 1)[1].split()[1]), signal.SIGKILL)
    _, err = job.process.communicate(timeout=PATIENCE)
    require(not job.ranks(), "ranks stay behind", err)
    told = re.fullmatch(r"lade launch: mpirun was ended by signal 9 \(Killed\), and its ranks with it" + NEWEST +
                        r"\n  (.+)\n", err)
    require(job.process.returncode == 1 and told, f"the job ends with {job.process.returncode}", err)
    code, out, err = jobs.run(shlex.split(told[2]) + ["--steps", str(int(told[1]) + 1), "--json"], ENVIRONMENT)
    require(code == 0 and json.loads(out)["steps"] == int(told[1]) + 1, "the line that was told does not go on", err)


def a_restart_that_finds_all_done_says_so():
    """No step is left to take: the line comes at the end."""
    once = '[ $OMPI_COMM_WORLD_RANK = 0 ] || [ -e once ] || { touch once; kill -9 $$; }; exec "$0" "$@"'
    steps = ["--steps", "2", "--save", "done"]
    code, _, lines = begin(2, *steps).end()
    require(code == 0, "a job fails", lines)
    result = subprocess.run([LADE, "launch", "-n", "2", "--max-restarts", "1", "--", "sh", "-c", once, LADE, *TRAIN,
                             *steps, "--resume", "done"], env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                            timeout=PATIENCE, check=False)
    told = re.search(AGAIN.format(2), result.stderr)
    require(result.returncode == 0 and told and told.group(1, 2) == ("2", "0"),
            f"a job with nothing left to do ends with {result.returncode}", result.stderr)


def a_restart_leaves_other_runs_alone():
    """What --save held before the job is not of it: a start after a loss does what the first one would have done."""
    once = '[ $OMPI_COMM_WORLD_RANK = 0 ] || [ -e gone ] || { touch gone; kill -9 $$; }; exec "$0" "$@"'
    for seed, directory in (("1", "first"), ("2", "second")):
        code, _, lines = begin(2, "--steps", "2", "--seed", seed, "--save", directory).end()
        require(code == 0, "a job fails", lines)
    for more, wanted in (([], 2), (["--resume", "first"], 0)):
        if os.path.exists("gone"):
            os.remove("gone")
        code, out, lines = begin(2, "--steps", "4", "--json", "--save", "second", *more, launch=[
            "--max-restarts", "1", "--", "sh", "-c", 'shift; ' + once, LADE]).end()
        told = "\n".join(lines)
        require(code == wanted and "second/step" not in told, f"{more} ends with {code}", lines)
        if wanted:
            require("--save second has a run's checkpoint of step 2" in told, "another run is taken up", lines)
        else:
            undisturbed = begin(2, "--steps", "4", "--json", "--resume", "first").end()[1]
            require(digests(out) == digests(undisturbed), "another run goes on", (out, undisturbed))


def a_restart_takes_its_own_saves():
    """Also from among newer ones of another run; the line that goes on after the last loss names them."""
    steps = ["--steps", "60", "--json", "--save-every", "4"]
    for seed, directory, n in (("1", "origin", "2"), ("2", "shared", "80")):
        code, _, lines = begin(2, "--steps", n, "--seed", seed, "--save", directory).end()
        require(code == 0, "a job fails", lines)
    shutil.copytree("shared", "spare")
    undisturbed = begin(2, *steps, "--resume", "origin", "--save", "whole").end()[1]
    job = begin(2, *steps, "--resume", "origin", "--save", "shared", "--keep", "2", launch=["--max-restarts", "1"])
    job.until("save")
    os.kill(job.ranks()[random.randrange(2)], signal.SIGKILL)
    code, out, lines = job.end()
    told = re.fullmatch(AGAIN.format(2), lines[-1])
    require(code == 0 and told and int(told[1]) >= 4, f"the job's own saves are not taken; it ends with {code}", lines)
    require(digests(out) == digests(undisturbed), "another run goes on", (out, undisturbed))
    job = begin(2, *steps, "--resume", "origin", "--save", "spare")
    job.until("save")
    os.kill(job.ranks()[1], signal.SIGKILL)
    code, out, err = job.process.wait(), job.process.stdout.read(), job.process.stderr.read()
    told = re.search(NEWEST + r"\n  (.+)\n", err)
    require(code == 1 and told and 4 <= int(told[1]) <= 60, f"the newest of the job is not told, and {code}", err)
    code, out, err = jobs.run(shlex.split(told[2]), ENVIRONMENT)
    require(code == 0 and digests(out) == digests(undisturbed), "the line that was told does not go on", err)


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


# ---- many kills ----

LAYOUTS = (["--zero", "1"], ["--zero", "3"], ["--tp", "2"], ["--pp", "2"])
KILL_STEPS, KILL_EVERY = 24, 4
KILLED = ["--steps", str(KILL_STEPS), "--save-every", str(KILL_EVERY), "--keep", "2", "--json"]
SAVE_SHARE = 0.5  # of the kills are aimed into a save
LOOK_S = 0.0005


def is_saving(directory):
    """Is a checkpoint being written there?"""
    try:
        return any(name.startswith(".step-") for name in os.listdir(directory))
    except FileNotFoundError:
        return False


class Undisturbed:
    """A layout's job that nobody disturbs: its digests, and how long its steps and its saves take."""

    def __init__(self, layout):
        directory = "-".join(layout).strip("-")
        job = begin(2, *KILLED, *layout, "--save", directory)
        job.until("step")
        first = time.monotonic()
        last, n_looks, n_saving = first, 0, 0
        while not job.has_ended():
            last = last if job.count("step") == KILL_STEPS else time.monotonic()
            n_looks += 1
            n_saving += is_saving(directory)
            time.sleep(LOOK_S)
        code, out, lines = job.end()
        require(code == 0, f"a job of {layout} ends with {code}", lines)
        self.layout, self.digests = layout, digests(out)
        self.step_s = (last - first) / KILL_STEPS
        self.save_s = (time.monotonic() - first) * n_saving / max(n_looks, 1) / (KILL_STEPS // KILL_EVERY)


def moment_wait(job, directory, undisturbed):
    """Wait for a random moment after the first step, of a save or of any step, or for the end of the job."""
    is_save = random.random() < SAVE_SHARE
    step = random.randrange(1, KILL_STEPS)
    while not job.has_ended() and (job.count("step") < step or (is_save and not is_saving(directory))):
        time.sleep(LOOK_S)
    time.sleep(random.uniform(0, undisturbed.save_s if is_save else undisturbed.step_s))


def place(message, was_saving):
    """Where the kill fell: by the checkpoint that was being written then, else by what the other rank says."""
    if was_saving or "in the save" in message or "in a save" in message:
        return "in a save"
    if re.search(r": step \d+(, instruction .+)?: rank", message):
        return "in a step"
    return "between steps" if "between steps" in message else "at the end"


def killed_once(undisturbed):
    """Kill one of a job's ranks: where that was, whether the signal is told, the step that the job goes on after, the
    steps and the seconds that it lost. None: the job had ended before."""
    shutil.rmtree("again", ignore_errors=True)
    job = begin(2, *KILLED, *undisturbed.layout, "--save", "again", launch=["--max-restarts", "1"])
    job.until("step")
    ranks = job.ranks()
    moment_wait(job, "again", undisturbed)
    with contextlib.suppress(IndexError, ProcessLookupError):
        os.kill(random.choice(list(ranks.values())), signal.SIGKILL)
    was_saving = is_saving("again")
    code, out, lines = job.end()
    told = [line for line in lines if ": note: " not in line]
    require(out and digests(out) == undisturbed.digests, f"a job of {undisturbed.layout} ends with {code} and other "
            "numbers", (undisturbed.digests, out, lines))
    if not told:  # it was through with everything
        return None
    require(code == 0 and len(told) == 2 and re.search(r"rank \d (\(process \d+\) has )?ended", told[0]) and
            re.fullmatch(AGAIN.format(2), told[1]), "a kill is not told in one line, and its restart in another", lines)
    again = re.fullmatch(AGAIN.format(2), told[1])
    return place(told[0], was_saving), "signal 9" in told[0], int(again[1]), int(again[2]), float(again[3])


def kills(n):
    """@n kills of a random rank at a random moment, each followed by a run to the end with the undisturbed digests."""
    found = []
    undisturbed = [Undisturbed(layout) for layout in LAYOUTS[:n]]
    while len(found) < n:
        kill = killed_once(undisturbed[len(found) % len(undisturbed)])
        if kill:
            found.append(kill)
            print(f"kill {len(found)}: {kill[0]}, goes on after step {kill[2]}, {kill[3]} steps and {kill[4]} s lost",
                  flush=True)
    for name, count in sorted(collections.Counter(kill[0] for kill in found).items()):
        print(f"| {name} | {count} |")
    for first in range(0, KILL_STEPS, KILL_EVERY):
        count = sum(kill[2] == first for kill in found)
        print(f"| goes on after step {first} | {count} |")
    print(f"| ended clean, one message | {len(found)} |\n| of them with the signal | {sum(kill[1] for kill in found)} |")
    print(f"| resumed to the right digests | {len(found)} |")
    print(f"| steps lost, most | {max(kill[3] for kill in found)} |")
    print(f"| seconds lost, most | {max(kill[4] for kill in found)} |")


def kills_of_each_layout():
    kills(len(LAYOUTS))


with jobs.scratch():
    jobs.text_write("text.txt")
    seed = int.from_bytes(os.urandom(4), "little")
    random.seed(seed)
    print(f"seed {seed}", flush=True)
    quick = (a_rank_is_killed, a_rank_is_stopped, the_rank_that_plans_is_lost, a_rank_ends_before_the_first_message,
             a_rank_never_comes_to_mpirun_alone, a_rank_without_the_first_speaks,
             what_ranks_call_wrong_is_not_tried_again)
    long = (a_job_starts_again, jobs_shrink, a_layout_that_lacks_memory_ends_the_job, no_rank_remains,
            mpirun_is_killed,
            a_restart_that_finds_all_done_says_so, a_restart_leaves_other_runs_alone, a_restart_takes_its_own_saves,
            a_code_after_all_ranks_ended_well_is_not_tried_again,
            kills_of_each_layout)
    if sys.argv[3:] not in ([], ["long"]):
        kills(int(sys.argv[3]))
    else:
        jobs.tests_run(long if sys.argv[3:] else quick)
