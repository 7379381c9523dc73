#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Hostile surroundings: files that a run would overwrite, names that are not text, closed streams, limits of the
process. Every refusal is one line with its code, and leaves nothing behind.

Usage: hostile.py LADE
"""
import fcntl
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import struct
import tempfile
import termios
import time

LADE = os.path.abspath(sys.argv[1])
SCRATCH = tempfile.TemporaryDirectory(prefix="lade-hostile-")  # removed with the process
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


# On a terminal a line of progress fits in its row, however narrow: a wrapped one could not be rewritten.
terminal, end = os.openpty()
fcntl.ioctl(end, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 20, 0, 0))
with subprocess.Popen([LADE, "train", *SHORT, "--data", "text.txt"], stdout=subprocess.DEVNULL, stderr=end) as job:
    os.close(end)
    shown = b""
    while True:
        try:
            shown += os.read(terminal, 4096)
        except OSError:  # the other end is closed
            break
os.close(terminal)
lines = re.findall(rb"\r\x1b\[K([^\r]*)", shown)
assert job.returncode == 0 and any(line.startswith(b"step 2/2  loss") for line in lines), shown
assert all(len(line) < 20 for line in lines), shown

# Outputs are checked before a run begins, and the data is never in danger.
train("--json")  # fills the cache of measurements, which is no trace of a refusal
os.link("text.txt", "same.txt")
refused(2, "--timeline missing/trace.json: No such file", "--timeline", "missing/trace.json", "--save", "run", "--log",
        "log")
refused(2, "--log missing/log: No such file", "--log", "missing/log", "--save", "run")
os.symlink("a", "b")
os.symlink("b", "a")
refused(2, "store directory a: Too many levels of symbolic links", "--store", "a")
refused(2, "--save text.txt: Not a directory", "--save", "text.txt")
for option in ("--log", "--timeline"):
    for name in ("text.txt", "same.txt"):
        refused(2, f"{option} {name} would overwrite the input --data text.txt", option, name)
refused(2, "Is a directory", "--log", ".")

# The same for every other file that is read, or written under another option: by path, through links, and before it
# exists.
os.mkdir("saved")
code, out, err = train("--save", "saved", "--log", "saved/log")
assert code == 0, err
CHECKPOINT = "saved/step-00000002"
for name in ("weights", "residency", "run.conf"):
    shutil.copy(f"{CHECKPOINT}/model.safetensors", name)
with open("residency", "w", encoding="utf-8") as file:
    file.write("* keep\n")
with open("run.conf", "w", encoding="utf-8") as file:
    file.write("batch = 2\n")
shutil.copy(f"{CHECKPOINT}/config.json", "model.json")
with open("machine.json", "w", encoding="utf-8") as file:
    file.write("{}")
os.mkdir("stored")
with open("stored/lade-durable.data", "w", encoding="utf-8"):
    pass
os.link(f"{CHECKPOINT}/optimizer.safetensors", "hard")
os.symlink("new", "dangling")


def spared(words, *args, verb="train"):
    """Check that @args of @verb are refused, for @words, and every file is unchanged."""
    def contents():
        return {path: os.lstat(path).st_size for folder in (".", "saved", CHECKPOINT, "stored")
                for path in (os.path.join(folder, name) for name in os.listdir(folder))}
    before = contents()
    got, out, err = run(verb, *(SHORT[:-4] if verb == "plan" else [*SHORT, "--data", "text.txt"]), *args)
    assert got == 2 and not out and err.count("\n") == 1 and contents() == before, (args, got, out, err)
    assert "would overwrite" in err and all(word in err for word in words), (args, err)


for output in ("--log", "--timeline"):
    spared([output, "--init weights"], output, "weights", "--init", "weights")
    spared([output, "--residency residency"], output, "./residency", "--residency", "residency")
    spared([output, "--config run.conf"], output, "run.conf", "--config", "run.conf")
    spared([output, "--model ./model.json"], output, "model.json", "--model", "./model.json")
    spared([output, "--machine machine.json"], output, "machine.json", "--machine", "machine.json")
    spared([output, "--valid weights"], output, "weights", "--valid", "weights")
    for name in (f"{CHECKPOINT}/state.json", "hard", "saved/lade.conf", "saved/step-00000003"):
        spared([output, "--resume saved"], output, name, "--resume", "saved")
    spared([output, "--save saved"], output, "hard", "--save", "saved")
    spared([output, "--store"], output, "stored/lade-durable.data", "--store", "saved,stored")
spared(["--log", "--timeline"], "--log", "x", "--timeline", "x")
spared(["--log", "--timeline"], "--log", "dangling", "--timeline", "./new")
spared(["--log", "--save"], "--log", "x", "--save", "x/")
spared(["--timeline", "--residency"], "--timeline", "residency", "--residency", "residency", verb="plan")
spared(["--timeline", "--model"], "--timeline", "model.json", "--model", "model.json", verb="plan")
code, out, err = train("--resume", "saved", "--steps", "3", "--save", "saved", "--log", "saved/log")
assert code == 0, err  # a log next to the checkpoints is usual
code, out, err = train("--log", "nano", "--timeline", "none")  # words that are not files
assert code == 0, err
code, out, err = train("--log", "/dev/null", "--timeline", "/dev/null")
assert code == 0, err

# A fifo as an output never blocks the run: without a reader it is refused, with one it is written.
os.mkfifo("unheard")
for option in ("--log", "--timeline"):
    code, out, err = train(option, "unheard")
    assert code == 2 and err.count("\n") == 1 and f"{option} unheard" in err, (option, code, err)
with subprocess.Popen(["cat", "unheard"], stdout=subprocess.PIPE) as reader:
    with open("unheard", "wb"):  # returns once the reader has it open
        code, out, err = train("--log", "unheard")
    assert code == 0 and b'"summary"' in reader.communicate()[0], (code, err)
for option in ("--data", "--valid", "--init", "--resume", "--config", "--residency", "--machine"):
    code, out, err = train(option, "unheard")
    assert code == 2 and err.count("\n") == 1 and "unheard" in err, (option, code, err)
refused(5, "--log /dev/full: it cannot be written", "--log", "/dev/full")

# A timeline that cannot be written costs no result.
got, out, err = train("--json", "--timeline", "/dev/full")
assert got == 5 and json.loads(out)["loss_digest"], (got, out)
assert err.count("\n") == 1 and "--timeline /dev/full: it could not be written, and is incomplete: No space" in err, err

with open("text.txt", "rb") as file:
    assert file.read() == TEXT

# A message is one line, and contains the reason for any length of name.
refused(2, "a\\nb\\033[31m", "--data", "a\nb\x1b[31m")
refused(2, "File name too long", "--save", "y/" * 2100)
refused(2, "LADE_CPU is 'avx9'", env={"LADE_CPU": "avx9"})

# A file of choices must be a regular file: no wait for a writer, no endless read, no file taken for empty. A comment
# may have any length; a zero byte hides nothing.
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

# Closed streams: no message ends up in a file, and results that cannot be written are an error.
for closed, expected in ((">&-", 5), ("2>&-", 0), ("<&- >&- 2>&-", 5)):
    command = '"$@" ' + closed
    result = subprocess.run(["sh", "-c", command, "sh", LADE, "train", *SHORT, "--data", "text.txt", "--log", "closed"],
                            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    assert result.returncode == expected, (closed, result.returncode)
    with open("closed", encoding="utf-8") as file:
        assert json.loads(file.read().splitlines()[-1])["event"] == "summary", closed

# A reader that has gone does not end a run that can still save.
reader, writer = os.pipe()
os.close(reader)
code, _, err = run("train", *SHORT, "--data", "text.txt", "--save", "unread", stderr=writer)
assert code == 0 and "step-00000002" in os.listdir("unread"), (code, err)
code, _, err = run("plan", "--model", "nano", "--json", stdout=writer)
assert code == -signal.SIGPIPE and not err, (code, err)  # as every command behind which `head` has ended
os.close(writer)

# A link under a temporary name is a leftover; its target directory is not.
os.makedirs("linked/victim")
open("linked/victim/thesis", "w", encoding="utf-8").close()
os.symlink("victim", "linked/.step-1.tmp-")
assert train("--save", "linked")[0] == 0
assert os.listdir("linked/victim") == ["thesis"] and not os.path.islink("linked/.step-1.tmp-"), os.listdir("linked")
shutil.rmtree("linked")

# Another user's link or file is not written through, also in a shared directory.
if os.geteuid() == 0:
    os.mkdir("shared")
    os.chmod("shared", 0o1777)
    os.symlink("../same.txt.kept", "shared/link")
    os.lchown("shared/link", 65534, 65534)
    for option in ("--log", "--timeline"):
        refused(2, f"{option} shared/link: a link of another user", option, "shared/link")
    for name in (".lade.lock", "lade.conf"):
        os.symlink("../planted", "shared/" + name)
        os.lchown("shared/" + name, 65534, 65534)
        refused(2, name, "--save", "shared")
        assert not os.path.lexists("planted")
        os.unlink("shared/" + name)
    with open("shared/lade.conf", "w", encoding="utf-8") as file:
        os.fchmod(file.fileno(), 0o666)
        os.fchown(file.fileno(), 65534, 65534)
    refused(2, "lade.conf: belongs to another user", "--save", "shared")
    with open("shared/lade-durable.data", "wb") as file:
        os.fchmod(file.fileno(), 0o666)
        os.fchown(file.fileno(), 65534, 65534)
    got, out, err = train("--store", "shared", "--durable", "--host-budget", "0", "--budget", "min")
    assert got == 5 and "shared/lade-durable.data" in err, (got, out, err)
    shutil.rmtree("shared")

# A path under which only the names of a save are too long is refused before the first step.
refused(2, "File name too long", "--save", "./" * 2023 + "deep")

# A save directory that disappears during the run is an I/O failure, not a usage mistake.
child = subprocess.Popen([LADE, "train", *SHORT[:-4], "--steps", "1000000", "--eval-iters", "1", "--quiet", "--data",
                          "text.txt", "--save", "moved", "--save-every", "1"], stderr=subprocess.PIPE, text=True)
while not any(name.startswith("step-") for name in (os.listdir("moved") if os.path.exists("moved") else [])):
    time.sleep(0.002)
os.rename("moved", "moved-away")
os.close(os.open("moved", os.O_CREAT | os.O_WRONLY))  # a file in its place
err = child.communicate()[1]
assert child.returncode == 5 and "moved" in err, (child.returncode, err)
os.unlink("moved")
shutil.rmtree("moved-away")

# A file size limit is an error with a name, reported before the steps that could not be saved, and no partial file
# stays.
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

# A new run over another run's saves is refused before a save is replaced, or removed by --keep.
before = sorted(os.listdir("one"))
refused(2, "--resume one", "--save", "one", "--keep", "1", "--batch", "4")
with open("one/lade.conf", "rb") as file:
    assert sorted(os.listdir("one")) == before and file.read() == config
newest = os.path.join("one", max(step for step in before if step.startswith("step-")), "state.json")
os.truncate(newest, os.path.getsize(newest) // 2)
refused(5, "for a new run name another directory", "--save", "one")
for step in before:
    if step.startswith("step-"):
        shutil.rmtree(os.path.join("one", step))
code, out, err = train("--save", "one")
assert code == 0, (code, err)  # the lock ended with the process

# Unwritable home and temporary directories cost the cache and nothing else.
code, out, err = train("--json", env={"XDG_CACHE_HOME": "", "HOME": "/proc/no/such/home", "TMPDIR": "/no/such/place"})
assert code == 0 and not err and json.loads(out)["steps"] == 2, (code, err)
