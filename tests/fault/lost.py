#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Lost ranks: one message with the rank, the place and the newest checkpoint, exit 1, nothing left behind; and
restarted jobs continue with the numbers of an undisturbed run.

Usage: lost.py LADE PLUGIN [long | N]

With long jobs that restart. With N that many kills of a random rank at a random moment of jobs of several layouts, half
of them inside a save, each resumed to its end; the places of the kills are printed.
"""
import collections
import contextlib
import fcntl
import json
import os
import random
import re
import select
import shlex
import shutil
import signal
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "system"))
import jobs
from jobs import require

LADE = os.path.abspath(sys.argv[1])
ENVIRONMENT = jobs.environment(sys.argv[2])
PATIENCE = jobs.PATIENCE
TRAIN = ["train", "--model", "nano", "--dtype", "fp32", "--batch", "8", "--seq", "32", "--eval-iters", "1", "--quiet",
         "--machine", "a100-40g", "--data", "text.txt"]
# mpirun's code gives the signal, unless it saw another rank's end first.
GONE = r"rank {} \(process \d+\) has ended; the other ranks cannot go on without it(; signal 9 \(Killed\) ended it)?"
AGAIN = r"lade launch: restart 1 of 1, {} ranks?, continues after step (\d+): (\d+) steps and (\d+\.\d) s lost"
AFTER = r"lade launch: {}(rank 1|a rank) ended by signal {} \(.+\) after the job's results were written"
NEWEST = r"; the newest complete checkpoint is /.+/step-(\d+); continue with:"
PLACE = (r"((step|in the save after step|in a save before step|between steps, after step|at the end of step) \d+"
         r"(, instruction \d+ \(\w+ .+ over \w+\))?: )?")


def begin(ranks, *arguments, launch=()):
    """Start a job that trains during the test; each has a log of its own."""
    log = f"job-{time.monotonic_ns()}.log"
    return jobs.Job(jobs.command(LADE, ranks, *TRAIN[1:], "--log", log, *arguments, launch=launch), ENVIRONMENT, log)


def lost(ranks, bad, number, arguments, words, event="step"):
    """Send signal @number to rank @bad of a job: the one message is @words."""
    job = begin(ranks, "--steps", "100000", *arguments)
    job.until(event)
    os.kill(job.ranks()[bad], number)
    code, _, lines = job.end()
    require(code == 1, f"the job ends with {code}", lines)
    require(len(lines) == 1 and re.fullmatch("lade train: " + words, lines[0]), f"not one message of {words}", lines)
    return lines[0]


def a_rank_is_killed():
    """In a collective, in a pipeline, and during a save."""
    lost(2, 1, signal.SIGKILL, [], PLACE + GONE.format(1))
    lost(4, 2, signal.SIGKILL, ["--pp", "4", "--micro-batch", "1"], PLACE + GONE.format(2))
    lost(2, 0, signal.SIGKILL, ["--save", "saves", "--save-every", "1"], PLACE + GONE.format(0) + NEWEST, "save")


def a_rank_is_stopped():
    """A stopped rank is detected, reported, and ended with the others."""
    words = PLACE + r"rank 1 \(process \d+\) is stopped; the other ranks cannot go on without it"
    lost(2, 1, signal.SIGSTOP, [], words)


def cpu_seconds(process):
    """Return the time for which its own threads have run; 0 if it does not exist."""
    try:
        with open(f"/proc/{process}/stat", encoding="ascii") as stat:
            fields = stat.read().rsplit(")", 1)[1].split()
    except OSError:
        return 0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def the_rank_that_plans_is_lost():
    """Killed and stopped while the others wait for its decision, long before a step."""
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


class Places:
    """Directories of this test's own for all that Open MPI writes."""

    def __init__(self, name):
        self.names = [os.path.abspath(name + "-session"), os.path.abspath(name + "-segments")]
        for directory in self.names:
            os.mkdir(directory)
        self.environment = dict(ENVIRONMENT, TMPDIR=self.names[0], OMPI_MCA_btl_vader_backing_directory=self.names[1])

    def entries(self):
        return [os.listdir(directory) for directory in self.names]

    def job(self, log):
        """Start a job that computes and has its files open."""
        job = jobs.Job(jobs.command(LADE, 2, *TRAIN[1:], "--log", log, "--steps", "100000"), self.environment, log)
        job.until("step")
        require(all(self.entries()), "Open MPI keeps its files elsewhere", self.entries())
        return job, job.ranks()


def parent(process):
    with open(f"/proc/{process}/stat", encoding="ascii") as stat:
        return int(stat.read().rsplit(")", 1)[1].split()[1])


def a_kill_leaves_no_file_behind():
    """No file of mpirun or of a rank is left: Open MPI's session and its shared memory end with the job."""
    places = Places("kill")
    for find in (parent, lambda process: process):
        job, ranks = places.job(f"kill-{time.monotonic_ns()}.log")
        os.kill(find(ranks[1]), signal.SIGKILL)
        code, _, lines = job.end()
        require(code == 1 and places.entries() == [[], []], f"files stay behind, and {code}", (places.entries(), lines))


def locks_end(folder, own, others, deadline):
    """Wait until the directories of @folder but @others are unlocked: a process closes its files behind its memory."""
    for name in os.listdir(folder):
        while name.startswith(own) and name[len(own):] not in others:
            with contextlib.suppress(BlockingIOError):
                lock = os.open(os.path.join(folder, name), os.O_RDONLY)
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                finally:
                    os.close(lock)
            require(time.monotonic() < deadline, "a killed process keeps its files")
            time.sleep(0.02)


def the_next_launch_removes_files_of_a_dead_one():
    """Files without a lock holder are removed; files of other users stay, and links are not followed."""
    places = Places("dead")
    own = f"lade-launch.{os.geteuid()}."
    locked, link, others = (os.path.join(places.names[0], name) for name in (own + "locked", own + "link", "others"))
    os.mkdir(locked, 0o700)
    os.mkdir(others, 0o700)
    jobs.text_write(os.path.join(others, "text"))
    os.symlink(others, link)
    lock = os.open(locked, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    job, ranks = places.job("dead.log")
    killed = [job.process.pid, parent(ranks[0]), *ranks.values()]
    for process in killed:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    job.process.wait()
    deadline = time.monotonic() + PATIENCE
    while any(os.path.exists(f"/proc/{process}/exe") for process in killed):
        require(time.monotonic() < deadline, "a killed process does not end")
        time.sleep(0.02)
    locks_end(places.names[0], own, {"locked", "link"}, deadline)
    require(len(places.entries()[0]) == 4 and len(places.entries()[1]) == 1, "a dead launch leaves other files",
            places.entries())
    launch = [LADE, "launch", "-n", "1", "--", "true"]
    require(jobs.run(launch, places.environment)[0] == 0, "a launch fails")
    require(set(places.entries()[0]) == {"others", own + "link", own + "locked"} and not places.entries()[1] and
            os.listdir(others) == ["text"], "files of a dead launch stay, or others do not", places.entries())
    os.close(lock)
    require(jobs.run(launch, places.environment)[0] == 0, "a launch fails")
    require(set(places.entries()[0]) == {"others", own + "link"}, "a directory without a lock stays", places.entries())


def a_rank_ends_before_the_first_message():
    """Killed, or ended successfully, before it has joined."""
    words = r"lade \w+: rank 1 (ended before it began, without a word(, by signal 9 .Killed.)?|has not begun within 2 s; .*)\n"
    for way in ("kill -9 $$", "exit 0"):
        script = f'[ $OMPI_COMM_WORLD_RANK = 1 ] && {way}; exec "$0" "$@"'
        result = subprocess.run([LADE, "launch", "-n", "2", "--", "sh", "-c", script, LADE, *TRAIN, "--steps", "3",
                                 "--comm-timeout", "2"],
                                env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                timeout=PATIENCE, check=False)
        # Open MPI 5 has no option that silences its mpirun's framed messages; 4 must be silent.
        said = re.sub(r"-{70,}\n\s*prterun .*?-{70,}\n", "", result.stderr, flags=re.DOTALL)
        require(result.returncode == 1 and re.fullmatch(words, said),
                f"{way}: {result.returncode}, not one message of {words}", result.stderr)


def a_rank_never_comes_to_mpirun_alone():
    """Without a status table no process sees it end before MPI's start, which waits for it. The other rank begins when
    mpirun has seen the end, which it would take for a failure behind a rank's start."""
    script = '[ $OMPI_COMM_WORLD_RANK = 1 ] && exit 0; sleep 1; exec "$0" "$@"'
    result = subprocess.run(["mpirun", "--oversubscribe", "-n", "2", "sh", "-c", script, LADE, *TRAIN, "--steps",
                             "3", "--comm-timeout", "1"],
                            env=dict(ENVIRONMENT, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1"),
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=PATIENCE, check=False)
    require(result.returncode == 1 and jobs.messages(result.stderr) == [
        "lade train: the ranks of this job have not met within 2 s: one of its 2 has ended, or never began"],
        f"a job that a rank never joins ends with {result.returncode}", result.stderr)


def a_rank_without_the_first_speaks():
    """The first rank's message, if no first rank can end the job."""
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
    """With all ranks: the digests of an undisturbed run. With the remaining ranks: to the end, on fewer."""
    steps = ["--steps", "40", "--json", "--zero", "1", "--save-every", "10"]
    code, out, lines = begin(2, *steps, "--save", "job-whole").end()
    require(code == 0, "a job fails", lines)
    job = begin(2, *steps, "--save", "job-again", launch=["--max-restarts", "2"])
    job.until("save")
    os.kill(job.ranks()[random.randrange(2)], signal.SIGKILL)
    code, again, lines = job.end()
    require(code == 0 and len(lines) == 2, f"a job with restarts ends with {code}", lines)
    require(re.fullmatch(r"lade launch: restart 1 of 2, 2 ranks, continues after step \d+: \d+ steps and \d+\.\d s lost",
                         lines[1]) and "after step 0:" not in lines[1], "what was lost is not reported", lines)
    require(digests(out) == digests(again), "it goes on with other numbers", (digests(out), digests(again)))
    lose = 'shift; [ $OMPI_COMM_WORLD_RANK != 2 ] || [ -e lost ] || { touch lost; kill -9 $$; }; exec "$0" "$@"'
    job = begin(3, "--steps", "2", "--json", "--batch", "12", "--dp", "3", "--save", "none",
              launch=["--max-restarts", "1", "--elastic", "--", "sh", "-c", lose, LADE])
    code, out, lines = job.end()
    require(code == 0 and json.loads(out)["ranks"] == 2 and json.loads(out)["steps"] == 2,
            "a layout that was asked for is not shrunk where a rank is lost before it begins", lines)


def shrinks(ranks, layout, left, sizes):
    """A job of @layout that loses a rank continues with @left ranks as @sizes."""
    common = ["--steps", "24", "--json", "--batch", "12", "--micro-batch", "2", "--save-every", "6", "--save", sizes]
    job = begin(ranks, *common, *layout, launch=["--max-restarts", "1", "--elastic"])
    job.until("save")
    os.kill(job.ranks()[ranks - 1], signal.SIGKILL)
    code, out, lines = job.end()
    again = [said for said in (re.fullmatch(AGAIN.format(left), line) for line in lines) if said]
    require(code == 0 and len(again) == 1, f"{layout} ends with {code}", lines)
    summary = json.loads(out)
    require(summary["ranks"] == left and summary["layout"] == sizes and summary["steps"] == 24 and int(again[0][1]) > 0
            and float(again[0][3]) > 0, f"{layout} does not go on as {sizes}", (summary, lines))
    steps = {event["step"] for event in jobs.events(job.log, "step")}
    require(len(steps) == 24, "steps are left out", steps)


def jobs_shrink():
    """First fewer replicas, then stages, then tensor parallel ranks, as sizes divide: the remaining ranks."""
    shrinks(3, ["--dp", "3", "--zero", "1"], 2, "dp2, zero 1 over 2")
    shrinks(4, ["--tp", "2", "--dp", "2"], 2, "tp2")
    shrinks(4, ["--pp", "4"], 2, "pp2, 1f1b")
    shrinks(2, ["--tp", "2"], 1, "one rank")


def starts_until(job, before):
    """Wait for a start whose ranks are none of @before and that has taken a step; return its ranks."""
    deadline = time.monotonic() + PATIENCE

    def wait_until(is_met):
        while not is_met():
            require(not job.has_ended() and time.monotonic() < deadline, "the job does not go on",
                    job.process.stderr.read() if job.has_ended() else "")
            time.sleep(0.02)

    def is_fresh():
        ranks = set(job.ranks().values())  # one look: ranks of the start before may go at any moment
        return ranks and not ranks & set(before.values())

    wait_until(is_fresh)
    n_steps = job.count("step")
    wait_until(lambda: job.count("step") > n_steps)
    return job.ranks()


def ranks_without_a_use_remain():
    """One of three ranks is lost: two cannot share 9 rows, so one continues, then the other when that is lost, too."""
    job = begin(3, "--steps", "100000", "--batch", "9", "--dp", "3", launch=["--max-restarts", "2", "--elastic"])
    job.until("step")
    ranks = job.ranks()
    for _ in range(2):
        os.kill(max(ranks.values()), signal.SIGKILL)
        ranks = starts_until(job, ranks)
        require(len(ranks) == 1, "not one rank goes on", ranks)
    job.process.send_signal(signal.SIGTERM)
    code, _, lines = job.end()
    require(code == 128 + signal.SIGTERM and sum(", 1 rank, continues after" in line for line in lines) == 2,
            f"the job ends with {code}", lines)


def is_waiting(process):
    """True if it has begun, and waits for other ranks."""
    with contextlib.suppress(OSError):
        with open(f"/proc/{process}/maps", encoding="ascii") as maps, \
                open(f"/proc/{process}/stat", encoding="ascii") as stat:
            return "lade-job-status" in maps.read() and stat.read().rsplit(")", 1)[1].split()[0] == "S"
    return False


def loses_one_before(late, left):
    """Rank 1 of three is killed while rank @late has not begun: @left continue."""
    script = (f'shift; [ $OMPI_COMM_WORLD_RANK != {late} ] || [ -e begun-{late} ] || '
              f'{{ touch begun-{late}; sleep 1000; }}; exec "$0" "$@"')
    job = begin(3, "--steps", "2", "--json", "--batch", "12", "--dp", "3",
                launch=["--max-restarts", "1", "--elastic", "--", "sh", "-c", script, LADE])
    deadline, ranks, others = time.monotonic() + PATIENCE, {}, {0, 1, 2} - {late}
    while not (os.path.exists(f"begun-{late}") and others <= set(ranks) and
               all(is_waiting(ranks[rank]) for rank in others)):
        require(not job.has_ended() and time.monotonic() < deadline, "ranks do not wait for another")
        time.sleep(0.02)
        ranks = job.ranks()
    os.kill(ranks[1], signal.SIGKILL)
    code, out, lines = job.end()
    require(code == 0 and json.loads(out)["ranks"] == left, f"not {left} ranks go on, and the job ends with {code}", lines)


def ranks_that_have_not_begun_are_not_lost():
    """One is lost, and mpirun ends the others. If the first one has reported no layout, all start again."""
    loses_one_before(2, 2)
    loses_one_before(0, 3)


def a_layout_that_lacks_memory_ends_the_job():
    """As a first start would with that budget: two ranks share state that one has no space for."""
    job = begin(2, "--steps", "100000", "--save", "tight", "--save-every", "4", "--zero", "3", "--budget", "3MiB",
                launch=["--max-restarts", "1", "--elastic"])
    job.until("save")
    os.kill(job.ranks()[1], signal.SIGKILL)
    code, _, lines = job.end()
    require(code == 3 and "does not fit" in lines[-2] and '"one rank", does not fit' in lines[-1], f"the job ends with {code}", lines)


def no_rank_remains():
    """A job that lost all of its ranks was not started wrongly: it ends like any that lost a rank, with the resume
    line.
    """
    job = begin(2, "--steps", "100000", "--save", "all", "--save-every", "4",
                launch=["--max-restarts", "1", "--elastic"])
    job.until("save")
    ranks = job.ranks()
    # mpirun and the launcher stand still meanwhile: a rank that they find alive behind the first one's end remains.
    watchers = (job.process.pid, parent(ranks[0]))
    for number, processes in ((signal.SIGSTOP, (*watchers, *ranks.values())), (signal.SIGKILL, ranks.values())):
        for process in processes:
            os.kill(process, number)
    time.sleep(0.5)
    for process in reversed(watchers):
        os.kill(process, signal.SIGCONT)
    _, err = job.process.communicate(timeout=PATIENCE)
    said = re.fullmatch(r"lade launch: rank 0 ended before the others could see it, without a word, by signal 9 \(Killed\)"
                        + NEWEST + r"\n  .+\nlade launch: no ranks remain to start again with\n", err)
    require(job.process.returncode == 1 and said, f"the job ends with {job.process.returncode}", err)


def mpirun_is_killed():
    """Its ranks end with it, also a stopped one; the command that resumes from the newest checkpoint is printed."""
    job = begin(2, "--steps", "100000", "--save", "left", "--save-every", "2")
    job.until("save")
    ranks = job.ranks()
    os.kill(ranks[1], signal.SIGSTOP)
    with open(f"/proc/{ranks[1]}/stat", encoding="ascii") as stat:
        os.kill(int(stat.read().rsplit(")", 1)[1].split()[1]), signal.SIGKILL)
    _, err = job.process.communicate(timeout=PATIENCE)
    require(not job.ranks(), "ranks stay behind", err)
    said = re.fullmatch(r"lade launch: mpirun was ended by signal 9 \(Killed\), and its ranks with it" + NEWEST +
                        r"\n  (.+)\n", err)
    require(job.process.returncode == 1 and said, f"the job ends with {job.process.returncode}", err)
    code, out, err = jobs.run(shlex.split(said[2]) + ["--steps", str(int(said[1]) + 1), "--json"], ENVIRONMENT)
    require(code == 0 and json.loads(out)["steps"] == int(said[1]) + 1, "the reported command does not go on", err)


def a_restart_with_no_step_left_reports_it():
    """No step is left: the line comes at the end."""
    once = '[ $OMPI_COMM_WORLD_RANK = 0 ] || [ -e once ] || { touch once; kill -9 $$; }; exec "$0" "$@"'
    steps = ["--steps", "2", "--save", "done"]
    code, _, lines = begin(2, *steps).end()
    require(code == 0, "a job fails", lines)
    result = subprocess.run([LADE, "launch", "-n", "2", "--max-restarts", "1", "--", "sh", "-c", once, LADE, *TRAIN,
                             *steps, "--resume", "done"], env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                            timeout=PATIENCE, check=False)
    said = re.search(AGAIN.format(2), result.stderr)
    require(result.returncode == 0 and said and said.group(1, 2) == ("2", "0"),
            f"a job with nothing left to do ends with {result.returncode}", result.stderr)


def lost_after_results(number):
    """End rank 1 of a job by signal @number once its results are there; return its exit code and messages."""
    job = begin(2, "--steps", "2", "--json", launch=["--max-restarts", "1"])
    job.until("step")
    ranks = job.ranks()
    require(select.select([job.process.stdout], [], [], PATIENCE)[0], "a job writes no results")
    with contextlib.suppress(KeyError, ProcessLookupError):
        os.kill(ranks[1], number)
    code, out, lines = job.end()
    require(digests(out)["steps"] == 2, "a job writes other results", (out, lines))  # once: they are one JSON object
    return code, lines


def a_rank_is_lost_after_the_results():
    """No other start repeats the results. A rank that may have ended is tried again."""
    for number, wanted, kind in ((signal.SIGKILL, 0, "note: "), (signal.SIGSEGV, 128 + signal.SIGSEGV, "")):
        for _ in range(10):
            code, lines = lost_after_results(number)
            if lines:
                break
            require(code == 0, f"a job that loses no rank ends with {code}")
        require(code == wanted and len(lines) == 1 and re.fullmatch(AFTER.format(kind, int(number)), lines[0]),
                f"a rank that ends by signal {number} after the results: code {code}", lines)


def a_restart_leaves_other_runs_alone():
    """Checkpoints in --save from before the job are not the job's: a restart does the same as the first start."""
    once = '[ $OMPI_COMM_WORLD_RANK = 0 ] || [ -e gone ] || { touch gone; kill -9 $$; }; exec "$0" "$@"'
    for seed, directory in (("1", "first"), ("2", "second")):
        code, _, lines = begin(2, "--steps", "2", "--seed", seed, "--save", directory).end()
        require(code == 0, "a job fails", lines)
    for more, wanted in (([], 2), (["--resume", "first"], 0)):
        if os.path.exists("gone"):
            os.remove("gone")
        code, out, lines = begin(2, "--steps", "4", "--json", "--save", "second", *more, launch=[
            "--max-restarts", "1", "--", "sh", "-c", 'shift; ' + once, LADE]).end()
        said = "\n".join(lines)
        require(code == wanted and "second/step" not in said, f"{more} ends with {code}", lines)
        if wanted:
            require("--save second has a run's checkpoint of step 2" in said, "another run is taken up", lines)
        else:
            undisturbed = begin(2, "--steps", "4", "--json", "--resume", "first").end()[1]
            require(digests(out) == digests(undisturbed), "another run goes on", (out, undisturbed))


def a_restart_takes_its_own_saves():
    """Also from among newer ones of another run; the resume line after the last loss names them."""
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
    said = re.fullmatch(AGAIN.format(2), lines[-1])
    require(code == 0 and said and int(said[1]) >= 4, f"the job's own saves are not taken; it ends with {code}", lines)
    require(digests(out) == digests(undisturbed), "another run goes on", (out, undisturbed))
    job = begin(2, *steps, "--resume", "origin", "--save", "spare")
    job.until("save")
    os.kill(job.ranks()[1], signal.SIGKILL)
    code, out, err = job.process.wait(), job.process.stdout.read(), job.process.stderr.read()
    said = re.search(NEWEST + r"\n  (.+)\n", err)
    require(code == 1 and said and 4 <= int(said[1]) <= 60, f"the newest checkpoint of the job is not reported; exit {code}", err)
    code, out, err = jobs.run(shlex.split(said[2]), ENVIRONMENT)
    require(code == 0 and digests(out) == digests(undisturbed), "the reported command does not go on", err)


def failures_that_ranks_report_are_not_retried():
    """A restart would fail again."""
    result = subprocess.run([LADE, "launch", "-n", "2", "--max-restarts", "5", "--", *TRAIN, "--budget", "1MiB"],
                            env=ENVIRONMENT, stderr=subprocess.PIPE, text=True, timeout=PATIENCE, check=False)
    require(result.returncode == 3 and result.stderr.count("lade train:") == 1 and "restart" not in result.stderr,
            "a budget that is too small is tried again", result.stderr)


def a_code_after_all_ranks_ended_well_is_not_tried_again():
    """No rank was lost: the code is that of the command after its ranks."""
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
    """True if a checkpoint is being written there."""
    try:
        return any(name.startswith(".step-") for name in os.listdir(directory))
    except FileNotFoundError:
        return False


class Undisturbed:
    """An undisturbed job of a layout: its digests, and the duration of its steps and its saves."""

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
    """Return the place of the kill: the checkpoint that was being written, else as the other rank reports it."""
    if was_saving or "in the save" in message or "in a save" in message:
        return "in a save"
    if re.search(r": step \d+(, instruction .+)?: rank", message):
        return "in a step"
    return "between steps" if "between steps" in message else "at the end"


def killed_once(undisturbed):
    """Kill one of a job's ranks. Return the place, whether the signal is reported, the step that the job resumes after,
    and the steps and seconds lost. None: the job had ended before.
    """
    shutil.rmtree("again", ignore_errors=True)
    job = begin(2, *KILLED, *undisturbed.layout, "--save", "again", launch=["--max-restarts", "1"])
    job.until("step")
    ranks = job.ranks()
    moment_wait(job, "again", undisturbed)
    with contextlib.suppress(IndexError, ProcessLookupError):
        os.kill(random.choice(list(ranks.values())), signal.SIGKILL)
    was_saving = is_saving("again")
    code, out, lines = job.end()
    said = [line for line in lines if ": note: " not in line]
    require(out and digests(out) == undisturbed.digests, f"a job of {undisturbed.layout} ends with {code} and other "
            "numbers", (undisturbed.digests, out, lines))
    if not said:  # its results were written
        require(code == 0, f"a job of {undisturbed.layout} that is complete ends with {code}", lines)
        return None
    require(code == 0 and len(said) == 2 and re.search(r"rank \d (\(process \d+\) has )?ended", said[0]) and
            re.fullmatch(AGAIN.format(2), said[1]), "a kill is not reported in one line, and its restart in another", lines)
    again = re.fullmatch(AGAIN.format(2), said[1])
    return place(said[0], was_saving), "signal 9" in said[0], int(again[1]), int(again[2]), float(again[3])


def kills(n):
    """Kill a random rank at a random moment @n times; run to the end with the undisturbed digests after each kill."""
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
    quick = (a_rank_is_killed, a_rank_is_stopped, a_kill_leaves_no_file_behind,
             failures_that_ranks_report_are_not_retried)
    long = (the_rank_that_plans_is_lost, the_next_launch_removes_files_of_a_dead_one,
            a_rank_ends_before_the_first_message, ranks_without_a_use_remain, ranks_that_have_not_begun_are_not_lost,
            a_rank_never_comes_to_mpirun_alone, a_rank_without_the_first_speaks, a_job_starts_again,
            jobs_shrink, a_layout_that_lacks_memory_ends_the_job, no_rank_remains, mpirun_is_killed,
            a_restart_with_no_step_left_reports_it, a_rank_is_lost_after_the_results, a_restart_leaves_other_runs_alone,
            a_restart_takes_its_own_saves, a_code_after_all_ranks_ended_well_is_not_tried_again, kills_of_each_layout)
    if sys.argv[3:] not in ([], ["long"]):
        kills(int(sys.argv[3]))
    else:
        jobs.tests_run(long if sys.argv[3:] else quick)
