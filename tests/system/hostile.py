#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Clumsy and hostile surroundings: what a run would overwrite, names that are not text, streams that are closed,
limits of the process. Every refusal is one line with its code, and leaves nothing behind.

Usage: hostile.py LADE
"""
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time

LADE = os.path.abspath(sys.argv[1])
SCRATCH = tempfile.TemporaryDirectory(prefix="lade-hostile-")  # goes with the process
os.chdir(SCRATCH.name)
os.environ["XDG_CACHE_HOME"] = os.getcwd()
TEXT = "".join(f"{i * i % 97} bottles on the wall, {i}\n" for i in range(2000)).encode()
SHORT = ["--model", "nano", "--batch", "2", "--seq", "32", "--steps", "2", "--eval-iters", "1"]

with open("text.txt", "wb") as file:
    file.write(TEXT)


def run(*args, limit=None, env=None, **streams):
    def limits_set():
        if limit:
            resource.setrlimit(limit[0], (limit[1], limit[1]))

    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **streams}
    result = subprocess.run([LADE, *args], check=False, preexec_fn=limits_set, env={**os.environ, **(env or {})},
                            **streams)
    return result.returncode, result.stdout or b"", (result.stderr or b"").decode("utf-8", "backslashreplace")


def train(*args, **how):
    return run("train", *SHORT, "--quiet", "--data", "text.txt", *args, **how)


def refused(code, words, *args, **how):
    before = sorted(os.listdir())
    got, out, err = train(*args, **how)
    assert got == code and not out and err.count("\n") == 1 and words in err, (args, got, out, err)
    assert sorted(os.listdir()) == before, (args, os.listdir())


# What a run would write is looked at before it begins, and the data is never in danger.
train("--json")  # fills the cache of measurements, which is no trace of a refusal
os.link("text.txt", "same.txt")
refused(2, "--timeline missing/trace.json: No such file", "--timeline", "missing/trace.json", "--save", "run", "--log",
        "log")
refused(2, "--log missing/log: No such file", "--log", "missing/log", "--save", "run")
refused(2, "--save text.txt: Not a directory", "--save", "text.txt")
for option in ("--log", "--timeline"):
    for name in ("text.txt", "same.txt"):
        refused(2, f"{option} {name} would overwrite the data", option, name)
refused(2, "Is a directory", "--log", ".")
refused(5, "--log /dev/full: it cannot be written", "--log", "/dev/full")

# A picture that cannot be written costs no result.
got, out, err = train("--json", "--timeline", "/dev/full")
assert got == 5 and json.loads(out)["loss_digest"], (got, out)
assert err.count("\n") == 1 and "--timeline /dev/full: it could not be written; it is incomplete" in err, err

with open("text.txt", "rb") as file:
    assert file.read() == TEXT

# A message is one line, and says what is wrong however long the name is.
refused(2, "a?b?[31m", "--data", "a\nb\x1b[31m")
refused(2, "File name too long", "--save", "y/" * 2100)
refused(2, "LADE_CPU is 'avx9'", env={"LADE_CPU": "avx9"})

# What is named as a file of choices is one: nothing waits for a writer, reads without an end, or is taken for empty. A
# comment may be as long as it likes; a zero byte hides nothing.
os.mkfifo("pipe")
for name in ("pipe", "/dev/zero", "."):
    refused(2, f"--residency {name}: not a regular file", "--residency", name)
refused(5, "--residency /proc/self/mem: cannot read", "--residency", "/proc/self/mem")
for content, words in ((b"h.0 recompute\0junk\n", "line 1: not text"), (b"\n" + b"h" * 600 + b" keep", "line 2: a line has"),
                       (b"# " + b"x" * 5000 + b"\nh.9 keep\n", "line 2: the pattern matches nothing")):
    with open("choices", "wb") as file:
        file.write(content)
    refused(2, f"--residency choices, {words}", "--residency", "choices")
os.unlink("choices")

# Names that are not UTF-8 work, and JSON stays JSON.
os.mkdir(b"\xff")
os.link("text.txt", b"\xff/t\xe9.txt")
code, out, err = run("train", *SHORT, "--quiet", "--json", "--data", b"\xff/t\xe9.txt", "--log", b"\xff/log", "--save",
                     b"\xff/run", "--save-every", "1")
assert code == 0 and json.loads(out)["steps"] == 2, (code, out, err)
with open(b"\xff/log", encoding="utf-8") as file:
    log = [json.loads(line) for line in file]
assert log[0]["options"]["data"]["value"] == ["\ufffd/t\ufffd.txt"], log[0]
assert [event["dir"] for event in log if event["event"] == "save"] == ["\ufffd/run"] * 2, log

# Closed streams: no message lands in a file, and results that went nowhere are an error.
for closed, expected in ((">&-", 5), ("2>&-", 0), ("<&- >&- 2>&-", 5)):
    command = '"$@" ' + closed
    result = subprocess.run(["sh", "-c", command, "sh", LADE, "train", *SHORT, "--data", "text.txt", "--log", "closed"],
                            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    assert result.returncode == expected, (closed, result.returncode)
    with open("closed", encoding="utf-8") as file:
        assert json.loads(file.read().splitlines()[-1])["event"] == "summary", closed

# A reader that went away ends nothing that can still be saved.
reader, writer = os.pipe()
os.close(reader)
code, _, err = run("train", *SHORT, "--data", "text.txt", "--save", "unread", stderr=writer)
assert code == 0 and "step-00000002" in os.listdir("unread"), (code, err)
code, _, err = run("plan", "--model", "nano", "--json", stdout=writer)
assert code == 5 and "Broken pipe" in err, (code, err)
os.close(writer)

# A file size limit is an error with a name, told before the steps that could not be saved, and nothing half-written stays.
code, out, err = train("--save", "limited", "--log", "unlimited", limit=(resource.RLIMIT_FSIZE, 100000))
assert code == 5 and "the file size limit is 97.7 KiB (100000 bytes)" in err and err.count("\n") == 1, (code, err)
assert not os.path.exists("unlimited"), "steps were made that no checkpoint has room for"
assert sorted(os.listdir("limited")) == [".lade.lock", "lade.conf"], os.listdir("limited")

# Two runs into one directory: the second is refused before it writes anything, and the first loses nothing.
LONG = ["train", *SHORT[:-4], "--steps", "1000000", "--eval-iters", "1", "--quiet", "--data", "text.txt", "--save", "one"]
with subprocess.Popen([LADE, *LONG, "--log", "first"], stderr=subprocess.PIPE) as first:
    while not (os.path.exists("first") and b'"step"' in open("first", "rb").read()):
        time.sleep(0.01)
    with open("one/lade.conf", "rb") as file:
        config = file.read()
    refused(1, "--save one: another run saves into it", "--save", "one", "--batch", "4")
    with open("one/lade.conf", "rb") as file:
        assert file.read() == config
    first.send_signal(signal.SIGTERM)
    assert b"and saved" in first.communicate()[1] and first.returncode == 143, first.returncode

# Whoever begins anew over what a run saved is told before anything is replaced, or removed by --keep.
before = sorted(os.listdir("one"))
refused(2, "--resume one goes on with it", "--save", "one", "--keep", "1", "--batch", "4")
with open("one/lade.conf", "rb") as file:
    assert sorted(os.listdir("one")) == before and file.read() == config
newest = os.path.join("one", max(step for step in before if step.startswith("step-")), "state.json")
os.truncate(newest, os.path.getsize(newest) // 2)
refused(5, "for a new run name another directory", "--save", "one")
for step in before:
    if step.startswith("step-"):
        shutil.rmtree(os.path.join("one", step))
code, out, err = train("--save", "one")
assert code == 0, (code, err)  # the claim ended with the process

# Homes and temporary directories that cannot be written cost the cache and nothing else.
code, out, err = train("--json", env={"XDG_CACHE_HOME": "", "HOME": "/proc/no/such/home", "TMPDIR": "/no/such/place"})
assert code == 0 and not err and json.loads(out)["steps"] == 2, (code, err)
