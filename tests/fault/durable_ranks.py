#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Jobs of several ranks with --durable, of replicas and of shards. After a kill, or a drive failure at one rank, the
same command resumes with the numbers of an undisturbed job. Ranks whose files are not parts of one state are
refused. A job whose state need not last ends in the same way when a rank's drive fails.

Usage: durable_ranks.py LADE PLUGIN REFUSE SLOW_DRIVE [N]

With N that many kills in each of two layouts, and refusals.
"""
import collections
import contextlib
import errno
import glob
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
import zlib

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "system"))
import jobs
from jobs import require

LADE, REFUSE, SLOW = (os.path.abspath(sys.argv[i]) for i in (1, 3, 4))
URING_SETUP = "425"  # io_uring_setup, on every architecture
ENVIRONMENT = jobs.environment(sys.argv[2])
N_STEPS = 6
TRAIN = ["--model", "nano", "--batch", "8", "--seq", "32", "--eval-iters", "1", "--quiet", "--json",
         "--machine", "a100-40g", "--data", "text.txt", "--steps", str(N_STEPS), "--budget", "min", "--host-budget", "0",
         "--store", "state", "--durable", "--allow-tmpfs", "--log", "log"]

Layout = collections.namedtuple("Layout", "ranks options is_durable", defaults=(True,))
# Sums have one order in these three, and so all numbers are equal.
REPLICAS = Layout(2, ("--dtype", "fp32"))
ZERO_1 = Layout(2, (*REPLICAS.options, "--zero", "1"))
ZERO_3 = Layout(2, (*REPLICAS.options, "--zero", "3"))
SCRATCH = Layout(2, ZERO_3.options, is_durable=False)
# Other layouts that cut a parameter or repeat its blocks, and other forms of state, with their padding.
ZERO_3_TP = Layout(4, ("--zero", "3", "--tp", "2", "--micro-batch", "2", "--moments", "bf16"))
HYBRID = Layout(4, ("--zero", "3", "--shard", "2", "--moments", "8bit", "--master", "24bit"))


def begin(layout, *more, launch=()):
    if os.path.exists("log"):
        os.remove("log")
    words = [word for word in TRAIN if layout.is_durable or word != "--durable"]
    return jobs.Job(jobs.command(LADE, layout.ranks, *words, *layout.options, *more, launch=launch), ENVIRONMENT, "log")


def digests(out):
    summary = json.loads(out)
    return {name: summary[name] for name in ("loss_digest", "params_digest", "steps")}


def clear():
    shutil.rmtree("state", ignore_errors=True)
    os.mkdir("state")


def generation(rank):
    """Return the newest generation in a rank's journal, -1 without one."""
    path = f"state/lade-durable{f'-{rank}' if rank else ''}.journal"
    if not os.path.exists(path):
        return -1
    with open(path, "rb") as file:
        records = [file.read(4096) for _ in range(2)]
    return max(struct.unpack_from("<Q", record, 16)[0] for record in records if record.startswith(b"lade-dur"))


def generations(layout):
    return [generation(rank) for rank in range(layout.ranks)]


def undisturbed(layout):
    """Return the results of an undisturbed job of the layout."""
    clear()
    code, out, lines = begin(layout).end()
    if code == 5 and any("O_DIRECT" in line for line in lines):
        jobs.skip("no store here: " + lines[0])
    require(code == 0 and set(generations(layout)) == {N_STEPS}, "a durable job fails", lines)
    clear()
    return digests(out)


def goes_on(layout, want, what):
    """Run the same command again, to the same end."""
    code, out, lines = begin(layout).end()
    require(code == 0 and digests(out) == want, f"{what}: {code}, or other numbers", (lines, want, out))
    require(set(generations(layout)) == {N_STEPS}, f"{what}: ranks end apart", generations(layout))


def at_sync(rank, nth, what):
    """Return the words before a job's command that apply @what of strace to @rank at its @nth sync."""
    script = (f'shift; [ $OMPI_COMM_WORLD_RANK = {rank} ] && exec strace -f -qq -o trace -e trace=fdatasync '
              f'-e inject=fdatasync:{what}:when={nth} "$0" "$@"; exec "$0" "$@"')
    return ["--", "sh", "-c", script, LADE]


def drive_fails(layout, bad, nth):
    """Rank @bad of two cannot sync, and has not published the step that the other has: the other withdraws it."""
    clear()
    code, _, lines = begin(layout, launch=at_sync(bad, nth, "error=EIO")).end()
    require(code == 5 and len(lines) == 1 and "Input/output error" in lines[0] and f"rank {bad}" in lines[0],
            f"a rank whose drive fails ends the job with {code}", lines)
    require(generation(1 - bad) == generation(bad) + 1, "the other rank is not ahead by one", generations(layout))
    goes_on(layout, WANT, f"after a failure of rank {bad}")


def reads_fail(layout, bad):
    """Prefetched blocks cannot be read, at rank @bad or at all ranks in the same step."""
    clear()
    which = f'[ $OMPI_COMM_WORLD_RANK = {bad} ] || exec "$0" "$@"; ' if bad is not None else ""
    paths = f"-P {os.getcwd()}/state/lade-durable.data -P {os.getcwd()}/state/lade-durable-1.data"
    strace = f"{shutil.which('strace')} -f -qq -o trace.$OMPI_COMM_WORLD_RANK {paths}"
    script = (f"shift; {which}exec {REFUSE} {errno.ENOSYS} {URING_SETUP} -- {strace} -e trace=pread64 "
              '-e inject=pread64:error=EIO:when=8+ "$0" "$@"')
    code, out, lines = begin(layout, launch=["--", "sh", "-c", script, LADE]).end()
    lines = [line for line in lines if ": note: " not in line]
    words = ("lade train: rank ", "reading back of tensor", "Input/output error",
             "lade-durable-1.data" if bad else "lade-durable")
    require(code == 5 and not out and lines and all(word in line for word in words for line in lines),
            f"ranks that cannot read end the job with {code}", lines)
    goes_on(layout, WANT, "after blocks that could not be read")


def scratch_fails(direction, begin_bytes, bad, words):
    """The scratch file of rank @bad, or of all ranks, fails all @direction after @begin_bytes of them."""
    which = f'[ $OMPI_COMM_WORLD_RANK = {bad} ] || exec "$0" "$@"; ' if bad is not None else ""
    fake = f"LD_PRELOAD={SLOW} SLOW_{direction}=1e12 SLOW_FILE_BYTES={1 << 40} SLOW_ERRNO={errno.EIO} " \
           f"SLOW_ERRNO_FILE_BYTES={1 << 40} SLOW_ERRNO_BYTES={begin_bytes}"
    script = f'shift; {which}exec {REFUSE} {errno.ENOSYS} {URING_SETUP} -- /usr/bin/env {fake} "$0" "$@"'
    code, out, lines = begin(SCRATCH, launch=["--", "sh", "-c", script, LADE]).end()
    lines = [line for line in lines if ": note: " not in line]
    require(code == 5 and not out and lines and all(word in line for word in (*words, "store in state", "Input/output error")
                                                    for line in lines), f"{direction} that fail end the job with {code}", lines)
    require(not os.listdir("state"), "files stay behind", os.listdir("state"))


def a_scratch_file_that_fails_at_a_rank_ends_the_job():
    clear()
    code, out, lines = begin(SCRATCH).end()
    require(code == 0, "a job over a store fails", lines)
    summary = json.loads(out)
    file_bytes, read_bytes = summary["store_bytes"], summary["store_read_bytes_per_step"]
    require(file_bytes > 0 and read_bytes > 0, "the job uses no store", out)
    scratch_fails("WRITE", 0, 0, ())
    scratch_fails("WRITE", 3 * file_bytes, 1, ("writing",))
    scratch_fails("READ", 2 * read_bytes, 1, ("lade train: rank 1: ", "reading"))
    scratch_fails("READ", 2 * read_bytes, None, ("lade train: rank ", "reading"))


def can_trace():
    if not shutil.which("strace"):
        return False
    return subprocess.run(["strace", "-qq", "-o", "trace", "true"], check=False).returncode == 0


def killed_in_steps(layout):
    """Kill all ranks of a job in a random step. Before it they may hold locks of mpirun, which then waits for them
    without bound.
    """
    job, n = begin(layout), random.randrange(1, N_STEPS)
    while job.count("step") < n and not job.has_ended():
        time.sleep(0.01)
    time.sleep(random.uniform(0, 0.05))
    for process in job.ranks().values():
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    return job.end()


def killed_at_sync(layout):
    """Kill one rank of a job at a random sync, of those at the start and of each step's two."""
    rank, nth = random.randrange(layout.ranks), random.randrange(1, 2 * N_STEPS)
    return begin(layout, launch=at_sync(rank, nth, "signal=KILL")).end()


def ranks_continue_from_the_generation_that_all_have():
    if can_trace():
        drive_fails(ZERO_3, 1, 7)
        reads_fail(ZERO_3, 1)
        reads_fail(ZERO_3, None)
    else:
        goes_on(ZERO_3, WANT, "anew")


def blocks_of_a_killed_job_are_gone_on_from():
    clear()
    killed_in_steps(ZERO_1)
    goes_on(ZERO_1, WANT, "after a kill of all ranks")
    a_checkpoint_at_one_rank_blocks_no_other(ZERO_1, WANT)


def a_checkpoint_at_one_rank_blocks_no_other(layout, want):
    """A job at its end is started again: all ranks learn of a checkpoint that only one rank checks."""
    alone = [word for word in TRAIN if word not in ("--store", "state", "--durable", "--allow-tmpfs")]
    code, _, err = jobs.run(jobs.command(LADE, 0, *alone, "--steps", "1", "--save", "ck"), ENVIRONMENT)
    require(code == 0, "no checkpoint is made", err)
    script = 'shift; [ $OMPI_COMM_WORLD_RANK = 1 ] && set -- "$@" --resume ck; exec "$0" "$@"'
    code, out, lines = begin(layout, launch=["--", "sh", "-c", script, LADE]).end()
    require(code == 0 and digests(out) == want, "a --resume at one rank does not reach the others", (code, lines))


def the_first_step_and_the_first_rank_are_no_others():
    for layout, bad, nth in ((REPLICAS, 0, 9), (ZERO_1, 1, 1)) if can_trace() else ():
        drive_fails(layout, bad, nth)


def files():
    """Return the contents of the files of durable state, as one number each."""
    found = {}
    for path in glob.glob("state/lade-durable*"):
        with open(path, "rb") as file:
            found[path] = zlib.crc32(file.read())
    return found


def refused(code, words, layout, *more, launch=()):
    before = files()
    got, out, lines = begin(layout, *more, launch=launch).end()
    require(got == code and not out and len(lines) == 1 and re.search(words, lines[0]),
            f"it ends with {got}, and not with {code} and {words}", lines)
    after = files()
    require(before == {path: after.get(path) for path in before}, "a refusal touches files", (before, after))


def journals_swap():
    os.rename("state/lade-durable.journal", "journal")
    os.rename("state/lade-durable-1.journal", "state/lade-durable.journal")
    os.rename("journal", "state/lade-durable-1.journal")


def second_rank_swap():
    """Exchange the files of rank 1 with those put aside."""
    os.makedirs("aside", exist_ok=True)
    for name in ("lade-durable-1.data", "lade-durable-1.journal"):
        if os.path.exists(f"aside/{name}"):
            os.rename(f"aside/{name}", name)
        os.rename(f"state/{name}", f"aside/{name}")
        if os.path.exists(name):
            os.rename(name, f"state/{name}")


def older_files_of_a_rank_are_refused():
    clear()
    require(begin(ZERO_3, "--steps", "2").end()[0] == 0, "a shorter job fails")
    second_rank_swap()
    clear()
    goes_on(ZERO_3, WANT, "anew")
    second_rank_swap()
    refused(5, "rank 1 finds generation 2 and rank 0 finds 6", ZERO_3)
    second_rank_swap()


def files_of_another_run_are_refused():
    """One generation behind, as ranks of one run may be: no rank withdraws a generation that the other run lacks."""
    shutil.rmtree("aside")
    os.rename("state", "kept")
    os.mkdir("state")
    require(begin(ZERO_3, "--seed", "2", "--steps", str(N_STEPS - 1)).end()[0] == 0, "a job of another seed fails")
    second_rank_swap()
    shutil.rmtree("state")
    os.rename("kept", "state")
    second_rank_swap()
    refused(5, f"rank 1 finds generation {N_STEPS - 1} of another run than rank 0", ZERO_3)
    second_rank_swap()


def a_directory_that_a_rank_lacks_is_named():
    os.makedirs("elsewhere", exist_ok=True)
    os.symlink("../text.txt", "elsewhere/text.txt")
    launch = ["--", "sh", "-c", 'shift; [ $OMPI_COMM_WORLD_RANK = 1 ] && cd elsewhere; exec "$0" "$@"', LADE]
    refused(2, "rank 1: store directory state: No such file", ZERO_3, launch=launch)
    os.mkdir("elsewhere/state")
    refused(5, "rank 1 finds no durable state, and rank 0 finds generation 6", ZERO_3, launch=launch)
    require(not os.listdir("elsewhere/state"), "a refusal leaves files")


def states_of_different_runs_are_refused_and_not_touched():
    older_files_of_a_rank_are_refused()
    files_of_another_run_are_refused()
    a_directory_that_a_rank_lacks_is_named()
    own = 'holds what rank . of "dp2, zero 3 over 2" keeps, and this is rank . of '
    refused(2, own + '"dp2"', REPLICAS)
    refused(2, own + '"dp2, zero 1 over 2"', ZERO_1)
    refused(2, own + '"tp2"', REPLICAS, "--tp", "2")
    refused(2, own + '"dp3, zero 3 over 3"', Layout(3, ZERO_3.options), "--batch", "12")
    journals_swap()
    refused(2, own + '"dp2, zero 3 over 2"', ZERO_3)
    journals_swap()
    goes_on(ZERO_3, WANT, "after refusals")


def kills(layout, n):
    """Kill @n times, one rank and all in turns, each after the life before; then run to the end."""
    want = undisturbed(layout)
    n_kills = n_ahead = 0
    while n_kills < n:
        is_one = n_kills % 2 == 0 and can_trace()
        code, out, lines = killed_at_sync(layout) if is_one else killed_in_steps(layout)
        apart = max(generations(layout)) - min(generations(layout))
        require(apart <= 1, f"kill {n_kills}: ranks are apart", generations(layout))
        n_ahead += apart
        n_kills += code != 0
        if code == 0:
            require(digests(out) == want, f"kill {n_kills}: other numbers", (want, digests(out), lines))
            clear()
    goes_on(layout, want, f"after {n_kills} kills")
    print(f"{n_kills} kills of {' '.join(layout.options)}, {n_ahead} of them with a rank ahead, all with {want}")


def layouts_survive_kills():
    for layout in (ZERO_3_TP, HYBRID):
        kills(layout, int(sys.argv[5]))


with jobs.scratch():
    jobs.text_write("text.txt")
    seed = int.from_bytes(os.urandom(4), "little")
    random.seed(seed)
    print(f"seed {seed}", flush=True)
    WANT = undisturbed(REPLICAS)
    if len(sys.argv) > 5:
        jobs.tests_run((layouts_survive_kills, the_first_step_and_the_first_rank_are_no_others,
                        states_of_different_runs_are_refused_and_not_touched))
    else:
        jobs.tests_run((ranks_continue_from_the_generation_that_all_have, blocks_of_a_killed_job_are_gone_on_from,
                        a_scratch_file_that_fails_at_a_rank_ends_the_job))
