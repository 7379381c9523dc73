#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Run conform-comm on several ranks under mpirun, and judge how failing jobs end.

Usage: comm.py CONFORM-COMM PLUGIN PATH 2|4|8|endings|unregistered|small-shm
"""
import os
import re
import shutil
import subprocess
import sys

RANKS = 4
NOTICE_MS = 500 # LADE_COMM_NOTICE_MS
LATE_MS = 2000  # ENDING_LATE_MS
SLACK_MS = 30000 # ranks outnumber cores, and other tests run at the same time; messages say which limit was meant
EIO, EPIPE, EPROTO, ETIMEDOUT, ECANCELED = -5, -32, -71, -110, -125


def skip(why):
    print("SKIP: " + why)
    sys.exit(77)


def ranks_run(n, command, wrap=()):
    """Return the exit code and output of @command on @n ranks."""
    environment = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
                       LADE_MPI_PLUGIN=PLUGIN)
    # Open MPI leaks at its end and is not instrumented: sanitizers check Lade's side. comm-self checks for leaks.
    for name, option in (("ASAN_OPTIONS", "detect_leaks=0"), ("TSAN_OPTIONS", "ignore_noninstrumented_modules=1")):
        environment[name] = ":".join(part for part in (os.environ.get(name), option) if part)
    mpirun = ["mpirun", "--oversubscribe", "--mca", "mpi_yield_when_idle", "1", "-n", str(n)]
    result = subprocess.run(list(wrap) + mpirun + command, env=environment, stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT, text=True, timeout=300, check=False)
    return result.returncode, result.stdout


def require(truth, what, output):
    if not truth:
        print(f"FAILED: {what}\n{output}")
        sys.exit(1)


def properties(n):
    code, output = ranks_run(n, [PROGRAM, PATH])
    print(output)
    require(code == 0, f"{n} ranks end with {code}", "")
    require(output.count("[  PASSED  ]") == n, "not every rank reports", "")
    expected = {"memfd": "mpi: shared memory (memfd)", "file": "mpi: shared memory (/dev/shm)",
                "apart": "mpi: MPI's collectives", "nccl": "nccl: NCCL's collectives"}
    require(f"PATH {expected[PATH]}" in output, "another path was taken", "")
    return output


def ending(what, ranks, statuses, max_ms, words):
    """Check that every rank in @ranks reports one of @statuses in time, with @words; return the output and the number
    of messages.
    """
    code, output = ranks_run(RANKS, [PROGRAM, PATH, what])
    ends = re.findall(r"^END rank (\d+): (-?\d+) after (\d+) ms(, speaks)?: (.*)$", output, re.MULTILINE)
    require(code != 0, f"{what}: the job ends with 0", output)
    require(sorted(int(end[0]) for end in ends) == ranks, f"{what}: other ranks report than {ranks}", output)
    for rank, found, ms, _, text in ends:
        require(int(found) in statuses, f"{what}: rank {rank} gets {found}, not one of {statuses}", output)
        require(int(ms) <= max_ms, f"{what}: rank {rank} needs {ms} ms, over {max_ms}", output)
        require(re.search(words, text), f"{what}: rank {rank} says '{text}'", output)
    return output, sum(bool(end[3]) for end in ends)


def endings():
    notice, others = NOTICE_MS + SLACK_MS, list(range(RANKS - 1))
    ended = r"rank \d \(process \d+\) has ended"
    output, n_speakers = ending("kill", others, [EPIPE], notice, ended.replace(r"\d", "3", 1))
    require(n_speakers == 1, "kill: one rank speaks", output)
    ending("mismatch", list(range(RANKS)), [EPROTO], notice, "rank 3 runs all_reduce of 49999 f32")
    ending("order", list(range(RANKS)), [EPROTO], notice, "rank 3 runs broadcast of 50000 f32")
    if PATH != "nccl":
        ending("short", [0], [EPROTO], notice, "recv of 80 bytes from rank 3: 40 came")
        ending("leave", [3], [ECANCELED], notice, "rank 3 gave up: no memory left") # its timeout would be 5 minutes
    if PATH == "apart": # nothing is shared: the first rank to give up ends, and later ones see that end
        ending("stop", others, [ETIMEDOUT, EPIPE], LATE_MS + notice, "did not come within 2 s|" + ended)
        return # "leave" has shown an abort there
    ending("stop", others, [ETIMEDOUT], LATE_MS + notice, "rank 3 .*did not come within 2 s")
    ending("busy", list(range(RANKS)), [0], 60000, "^$") # and without the notice it would not end
    ending("abort", list(range(RANKS)), [ECANCELED], notice, "rank 3 gave up: no memory left")
    if PATH == "nccl":
        nccl_endings()


def nccl_endings():
    """A call that blocks ends with its peer, and by its timeout. An error of the library at one rank is reported to the
    other ranks."""
    ending("unmet", [1], [EPIPE], NOTICE_MS + SLACK_MS, r"rank 3 \(process \d+\) has ended")
    ending("unmet-late", [1], [ETIMEDOUT], LATE_MS + NOTICE_MS + SLACK_MS, "did not come within 2 s")
    everybody, late = list(range(RANKS)), LATE_MS + NOTICE_MS + SLACK_MS
    for what, settings, words in (
            ("none", "async=25", r"an asynchronous error of NCCL: remote process exited \(6\)"),
            ("none", "fail=ncclAllReduce,nth=21", r"ncclAllReduce: internal error \(3\)"),
            ("split", "fail=ncclCommSplit,nth=3", r"ncclCommSplit: internal error \(3\)")):
        os.environ["LADE_FAKE_NCCL"] = settings + ",rank=3"
        output, n_speakers = ending(what, everybody, [EIO, ECANCELED], late, words)
        require(len(re.findall(r"rank 3 gave up", output)) == RANKS - 1, "three ranks hear of the fourth's", output)
        require(n_speakers == 1, "one rank speaks", output)
    # Every rank says that it failed: mpirun, which then exits with 0, must not end the others before they did.
    os.environ["OMPI_MCA_orte_abort_on_non_zero_status"] = "0"
    for function, rank in (("ncclGetUniqueId", 0), ("ncclCommInitRankConfig", 2)):
        os.environ["LADE_FAKE_NCCL"] = f"fail={function},rank={rank}"
        _, output = ranks_run(RANKS, [PROGRAM, PATH, "none"])
        require(len(re.findall(r"^OPEN -[0-9]+: ", output, re.MULTILINE)) == RANKS
                and re.search(rf"^OPEN {EIO}: {function}: internal error", output, re.MULTILINE)
                and "END" not in output, f"{function}: no rank opens", output)
    del os.environ["LADE_FAKE_NCCL"], os.environ["OMPI_MCA_orte_abort_on_non_zero_status"]


def unregistered():
    """Memory that NCCL does not register at one rank is registered at none, and everything works; one line says so."""
    os.environ["LADE_FAKE_NCCL"] = "fail=ncclCommRegister,forever=1,rank=1"
    output = properties(2)
    require(len(re.findall(r"^LOG: NCCL moves through buffers of its own", output, re.MULTILINE)) == 1, "said once", output)


def small_shm():
    """A container's /dev/shm of 64 MiB, in a mount namespace."""
    mount = ["unshare", "-m", "sh", "-c", "mount -t tmpfs -o size=64m tmpfs /dev/shm && exec \"$@\"", "sh"]
    if subprocess.run(mount + ["true"], capture_output=True, check=False).returncode:
        skip("no mount namespace is to be had")
    code, output = ranks_run(4, [PROGRAM, "auto"], mount)
    require(code == 0 and "PATH mpi: shared memory (memfd)" in output, "a memfd does not depend on /dev/shm", output)
    code, output = ranks_run(4, [PROGRAM, "file", "noroom"], mount)
    require(code == 0 and output.count("[  PASSED  ]") == 4, "the job goes on without shared memory", output)
    require("PATH mpi: MPI's collectives" in output, "another path was taken", output)
    require(len(re.findall(r"^LOG: .*No space left on device", output, re.MULTILINE)) == 1, "said once", output)


PROGRAM, PLUGIN, PATH, WHAT = sys.argv[1:5]
if not shutil.which("mpirun"):
    skip("mpirun is not on PATH (apt-get install openmpi-bin)")
if PLUGIN == "none":
    skip("built without Open MPI (apt-get install libopenmpi-dev)")
if WHAT.isdigit():
    properties(int(WHAT))
else:
    {"endings": endings, "unregistered": unregistered, "small-shm": small_shm}[WHAT]()
