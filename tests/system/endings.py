#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How the command ends: the codes that need more than a wrong word, and signals.

Usage: endings.py LADE
"""
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time

LADE = os.path.abspath(sys.argv[1])
os.chdir(tempfile.mkdtemp(prefix="lade-endings-"))
os.environ["XDG_CACHE_HOME"] = os.getcwd()
SHORT = ["--model", "nano", "--data", "text.txt", "--batch", "4", "--eval-iters", "1", "--quiet"]


def text_write(letters):
    with open("text.txt", "r+" if os.path.exists("text.txt") else "w", encoding="utf-8") as text:
        for line in range(3000):
            text.write(letters[line % len(letters)] * (1 + line % 7) + "\n")


def run(*args):
    result = subprocess.run([LADE, *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
    return result.returncode, result.stdout, result.stderr


def start(*args):
    return subprocess.Popen([LADE, *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for_steps(path):
    for _ in range(30000):
        if os.path.exists(path) and '"event":"step"' in open(path, encoding="utf-8").read():
            return
        time.sleep(0.002)
    raise AssertionError(f"{path}: no step was logged")


text_write("abcdefg")

# A loss that is not finite: the step is named, and the newest save is from before.
code, out, err = run("train", *SHORT, "--steps", "50", "--lr", "1000", "--min-lr", "1000", "--warmup", "0", "--clip",
                     "0", "--save", "burst", "--save-every", "1", "--dtype", "fp32")
assert code == 1 and not out, (code, err)
assert err.count("\n") == 1 and err.startswith("lade train: step ") and "nothing was updated" in err, err
step = int(err.split()[3].rstrip(":"))
assert f"step-{step:08d}" in os.listdir("burst"), (step, os.listdir("burst"))

# Numbers that differ: the text is changed under a sweep between its runs. Both runs stop at a pipe for their residency
# file, which they read after they have opened the data and before they train on it.
os.mkfifo("pins")


def pins_feed():
    for letters in ("abcdefg", "gfedcba"):
        with open("pins", "w", encoding="utf-8") as pipe:
            text_write(letters)
            pipe.write("h.0 keep\n")
        time.sleep(0.05)


feeder = threading.Thread(target=pins_feed, daemon=True)
feeder.start()
code, out, err = run("sweep", *SHORT, "--steps", "2", "--residency", "pins", "--budgets", "100%,100%")
assert code == 6 and "differ" in err and "DIFFER" in out, (code, out, err)
feeder.join()

# The first signal lets the step finish. It is not saved if nobody asked for that.
with start("train", *SHORT, "--steps", "100000", "--log", "first.jsonl") as child:
    wait_for_steps("first.jsonl")
    child.send_signal(signal.SIGINT)
    out, err = child.communicate()
assert child.returncode == 130 and not out and "nothing was saved" in err, (child.returncode, out, err)
with open("first.jsonl", encoding="utf-8") as log:
    assert '"event":"interrupted"' in log.read().splitlines()[-1]

# The second ends at once. Both are made to arrive together.
with start("train", *SHORT, "--steps", "100000", "--log", "second.jsonl", "--save", "second") as child:
    wait_for_steps("second.jsonl")
    for number in (signal.SIGSTOP, signal.SIGINT, signal.SIGTERM, signal.SIGCONT):
        child.send_signal(number)
    out, err = child.communicate()
assert child.returncode in (130, 143) and not out and not err, (child.returncode, out, err)
assert not any(name.startswith("step-") for name in os.listdir("second"))

# A sweep hands the signal on, and its run saves nothing that was not asked for.
with start("sweep", *SHORT, "--steps", "100000", "--log", "swept", "--budgets", "100%,min") as child:
    wait_for_steps("swept.100%")
    child.send_signal(signal.SIGTERM)
    out, err = child.communicate()
assert child.returncode == 143 and not os.path.exists("swept.min"), (child.returncode, out, err)

# Standard output that cannot be written is an error, whatever the run did.
with open("/dev/full", "w", encoding="utf-8") as full:
    for verb in (["train", *SHORT, "--steps", "1", "--json"], ["plan", "--model", "nano", "--json"], ["doctor"]):
        result = subprocess.run([LADE, *verb], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
        assert result.returncode == 5 and "standard output" in result.stderr, (verb, result)
