# SPDX-License-Identifier: Apache-2.0
"""Shared parts of tests of several ranks: machines that can run them, jobs with findable ranks, and their errors."""
import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time

PATIENCE = 240  # seconds until a job counts as hung


def skip(why):
    print("SKIP: " + why)
    sys.exit(77)


def require(truth, what, output=""):
    if not truth:
        print(f"FAILED: {what}\n{output}")
        sys.exit(1)


def environment(plugin):
    """Return the environment of jobs over the MPI plug-in @plugin; ends the test if there can be none."""
    if not shutil.which("mpirun"):
        skip("mpirun is not on PATH (apt-get install openmpi-bin)")
    if plugin == "none":
        skip("built without Open MPI (apt-get install libopenmpi-dev)")
    found = dict(os.environ, LADE_MPI_PLUGIN=os.path.abspath(plugin))
    # Open MPI leaks at its end and is not instrumented: sanitizers check Lade's side; one rank checks for leaks.
    for name, option in (("ASAN_OPTIONS", "detect_leaks=0"), ("TSAN_OPTIONS", "ignore_noninstrumented_modules=1")):
        found[name] = ":".join(part for part in (os.environ.get(name), option) if part)
    return found


def command(lade, ranks, *arguments, launch=()):
    """Return the command line that trains on @ranks; 0: in one process, without a launcher."""
    start = [lade, "launch", "-n", str(ranks), *launch, "--"] if ranks else [lade]
    return start + ["train", *arguments]


def run(line, environ, patience=PATIENCE):
    """Run; return exit code, output and messages."""
    result = subprocess.run(line, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                            timeout=patience, check=False)
    return result.returncode, result.stdout, result.stderr


def messages(err):
    return [line for line in err.splitlines() if line.startswith("lade")]


def events(path, kind):
    """Return the complete events of the log."""
    with open(path, encoding="utf-8") as log:
        found = [json.loads(line) for line in log if line.endswith("\n")]
    return [event for event in found if event["event"] == kind]


def losses(path):
    return [event["loss"] for event in events(path, "step")]


def text_write(path):
    """Write a training text."""
    with open(path, "w", encoding="ascii") as text:
        text.write("".join(f"{i} green bottles stood on the wall, and {i * 7 % 13} fell. " for i in range(2000)))


class Job:
    """A job of several ranks that runs during the test; each rank can be found."""

    def __init__(self, line, environ, log):
        self.name = f"job-{os.getpid()}-{time.monotonic_ns()}"
        self.log = log
        self.process = subprocess.Popen(line, env=dict(environ, LADE_TEST_JOB=self.name), stdout=subprocess.PIPE,
                                        stderr=subprocess.PIPE, text=True)

    def ranks(self):
        """Return processes of the ranks, by number."""
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

    def has_ended(self):
        return self.process.poll() is not None

    def count(self, kind):
        """Return the number of events of a kind in the log so far."""
        try:
            with open(self.log, encoding="utf-8") as log:
                return log.read().count(f'"event":"{kind}"')
        except FileNotFoundError:
            return 0

    def until(self, kind, n=1):
        """Wait until the log has @n events of a kind."""
        deadline = time.monotonic() + PATIENCE
        while self.count(kind) < n:
            require(not self.has_ended() and time.monotonic() < deadline, f"no {kind} in the log",
                    self.process.stderr.read() if self.has_ended() else "")
            time.sleep(0.02)

    def end(self):
        """Return exit code, output and messages; check that nothing of the job stays."""
        out, err = self.process.communicate(timeout=PATIENCE)
        deadline = time.monotonic() + PATIENCE
        while self.ranks():
            require(time.monotonic() < deadline, "a rank stays behind", err)
            time.sleep(0.05)
        return self.process.returncode, out, messages(err)


@contextlib.contextmanager
def scratch():
    """Enter a directory of the test's own."""
    before, directory = os.getcwd(), tempfile.mkdtemp(prefix="lade-jobs-")
    try:
        os.chdir(directory)
        yield directory
    finally:
        os.chdir(before)
        shutil.rmtree(directory, ignore_errors=True)


def tests_run(tests):
    for test in tests:
        begin = time.monotonic()
        test()
        print(f"ok {test.__name__} ({time.monotonic() - begin:.1f} s)", flush=True)
