#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How the command ends: exit codes of failing runs, and signals.

Usage: endings.py LADE
"""
import array
import fcntl
import json
import math
import mmap
import os
import re
import signal
import struct
import subprocess
import sys
import tempfile
import time

LADE = os.path.abspath(sys.argv[1])
SCRATCH = tempfile.TemporaryDirectory(prefix="lade-endings-")  # removed with the process
os.chdir(SCRATCH.name)
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
                     "0", "--save", "burst", "--save-every", "1", "--dtype", "fp32", "--log", "burst.jsonl")
assert code == 1 and not out, (code, err)
assert err.count("\n") == 1 and err.startswith("lade train: step ") and err.endswith("; nothing was updated\n"), err
assert re.search(r"the loss is (nan|inf), and the first gradient that is not finite is d\.embed\.wte\.weight;|: "
                 r"d\.[a-z0-9.]+ is not finite, though the loss is", err), err
step = int(err.split()[3].rstrip(":"))
assert f"step-{step:08d}" in os.listdir("burst"), (step, os.listdir("burst"))
with open("burst.jsonl", encoding="utf-8") as file:  # it was being written when the step failed
    saves = [event["step"] for event in map(json.loads, file) if event["event"] == "save"]
assert saves == list(range(1, step + 1)), (step, saves)

# A failed async save ends the run at the next step, not when the next save is due, because none is.
os.mkdir("locked")
lock = os.open("locked", os.O_RDONLY)
fcntl.flock(lock, fcntl.LOCK_EX)
code, out, err = run("train", *SHORT, "--steps", "1000000", "--save", "locked", "--save-every", "auto", "--mtbf", "1e12",
                     "--log", "locked.jsonl")
os.close(lock)
assert code == 1 and not out and err.count("\n") == 1 and "locked" in err, (code, out, err)
assert not any(name.startswith("step-") for name in os.listdir("locked")), os.listdir("locked")

# The same with parameters updated inside the backward pass: some were updated, and the message says so.
code, out, err = run("train", *SHORT, "--steps", "50", "--lr", "1000", "--min-lr", "1000", "--warmup", "0", "--clip",
                     "0", "--save", "early", "--save-every", "1", "--dtype", "fp32", "--optimizer-in-backward",
                     "--host-budget", "0", "--budget", "min")
assert code == 1 and not out and "others were updated before it; go on from the newest save" in err, (code, err)
assert f"step-{step:08d}" in os.listdir("early") and f"step-{step + 1:08d}" not in os.listdir("early"), (step, err)

# A bit of the spilled state flips on the drive: exit 5, with the tensor's name. The file has no name, only a
# descriptor.
os.mkdir("drive")
STORED = ["--budget", "min", "--host-budget", "0", "--store", "drive", "--steps", "3000", "--log", "flip.jsonl"]
if run("doctor", "--store", "drive")[0] == 0:
    child = start("train", *SHORT, *STORED)
    wait_for_steps("flip.jsonl")
    spilled = [path for path in (f"/proc/{child.pid}/fd/{fd}" for fd in os.listdir(f"/proc/{child.pid}/fd"))
               if os.readlink(path).startswith(os.path.realpath("drive"))]
    assert spilled
    drive, block = os.open(spilled[0], os.O_RDWR | os.O_DIRECT), mmap.mmap(-1, 4096)  # as the store: no page cache
    size = os.fstat(drive).st_size
    while child.poll() is None:  # a byte of every granule, until one is read before it is written again
        for at in range(0, size, 65536):
            os.preadv(drive, [block], at)
            block[1000] ^= 0x10
            os.pwritev(drive, [block], at)
    os.close(drive)
    out, err = child.communicate()
    assert child.returncode == 5 and not out and err.count("\n") == 1, (child.returncode, out, err)
    assert re.search(r"tensor [a-z0-9._]+ ", err), err

# A loss that overflows while every gradient is finite. Every logit of the text's byte is -2.4e38, and another's as far
# on the other side, but gradients are differences of probabilities. The update was made, and no tensor is named.
WIDTH = 64
CONFIG = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 256, "hidden_size": WIDTH,
          "intermediate_size": WIDTH, "num_hidden_layers": 1, "num_attention_heads": 1, "num_key_value_heads": 1,
          "max_position_embeddings": 32, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu",
          "tie_word_embeddings": False}


def tensors_write(path, tensors):
    header, data = {}, b""
    for name, (shape, values) in tensors.items():
        part = array.array("f", values)
        assert len(part) == math.prod(shape)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + 4 * len(part)]}
        data += part.tobytes()
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)


square, ones = ([WIDTH, WIDTH], [0.0] * WIDTH * WIDTH), ([WIDTH], [1.0] * WIDTH)
head = [0.0] * 256 * WIDTH
for byte, logit in ((b"a", -2.4e38), (b"b", 2.4e38)):
    head[byte[0] * WIDTH:(byte[0] + 1) * WIDTH] = [logit / WIDTH] * WIDTH
layer = {f"model.layers.0.{name}.weight": square for name in (
    "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj",
    "mlp.down_proj")}
tensors_write("huge.safetensors", {
    "model.embed_tokens.weight": ([256, WIDTH], [1.0] * 256 * WIDTH), "model.norm.weight": ones,
    "model.layers.0.input_layernorm.weight": ones, "model.layers.0.post_attention_layernorm.weight": ones,
    "lm_head.weight": ([256, WIDTH], head), **layer})
with open("huge.json", "w", encoding="utf-8") as file:
    json.dump(CONFIG, file)
with open("a.txt", "w", encoding="utf-8") as file:
    file.write("a" * 1000)
code, out, err = run("train", "--model", "huge.json", "--data", "a.txt", "--init", "huge.safetensors", "--dtype", "fp32",
                     "--batch", "1", "--seq", "8", "--steps", "3", "--valid-fraction", "0", "--quiet")
assert code == 1 and not out and err.count("\n") == 1, (code, out, err)
assert err.startswith("lade train: step 0: the loss is inf, while all gradients are finite") and "was made" in err, err

# Numbers that differ: during a sweep the text is replaced. The run that has it open keeps the old one, and the next one
# opens the new one.
def opens(pid, path):
    try:
        return any(os.readlink(f"/proc/{pid}/fd/{fd}") == path for fd in os.listdir(f"/proc/{pid}/fd"))
    except FileNotFoundError:  # it has ended, or closed a file
        return False


def wait_for_open(parent, path):
    for _ in range(30000):
        with open(f"/proc/{parent}/task/{parent}/children", encoding="ascii") as children:
            if any(opens(pid, path) for pid in children.read().split()):
                return
        time.sleep(0.002)
    raise AssertionError(f"no run has opened {path}")


def wait_for_handler(pid, number):
    for _ in range(30000):
        with open(f"/proc/{pid}/status", encoding="ascii") as status:
            caught = next(line for line in status if line.startswith("SigCgt:")).split()[1]
        if int(caught, 16) >> (number - 1) & 1:
            return
        time.sleep(0.002)
    raise AssertionError(f"process {pid} has no handler of signal {number}")


with start("sweep", *SHORT, "--steps", "50", "--budgets", "100%,100%") as child:
    wait_for_open(child.pid, os.path.realpath("text.txt"))
    os.rename("text.txt", "text-before.txt")
    text_write("gfedcba")
    out, err = child.communicate()
assert child.returncode == 6 and "differ" in err and "DIFFER" in out, (child.returncode, out, err)

# The first signal lets the step finish. Without --save nothing is saved.
with start("train", *SHORT, "--steps", "100000", "--log", "first.jsonl") as child:
    wait_for_steps("first.jsonl")
    child.send_signal(signal.SIGINT)
    out, err = child.communicate()
assert child.returncode == 130 and not out and "nothing was saved" in err, (child.returncode, out, err)
with open("first.jsonl", encoding="utf-8") as log:
    assert '"event":"interrupted"' in log.read().splitlines()[-1]

# A signal that comes while the run opens ends it before its first step; nothing is saved, as nothing has changed.
with start("train", *SHORT, "--steps", "100000", "--log", "opening.jsonl", "--save", "opening") as child:
    wait_for_handler(child.pid, signal.SIGINT)
    child.send_signal(signal.SIGINT)
    out, err = child.communicate()
assert child.returncode == 130 and not out and "stopped before its first step" in err, (child.returncode, out, err)
assert not os.path.exists("opening") or not os.listdir("opening")

# The second signal ends the run at once. Both are made to arrive together.
with start("train", *SHORT, "--steps", "100000", "--log", "second.jsonl", "--save", "second") as child:
    wait_for_steps("second.jsonl")
    for number in (signal.SIGSTOP, signal.SIGINT, signal.SIGTERM, signal.SIGCONT):
        child.send_signal(number)
    out, err = child.communicate()
assert child.returncode in (130, 143) and not out and not err, (child.returncode, out, err)
assert not any(name.startswith("step-") for name in os.listdir("second"))

# A sweep passes the signal on, and its run saves nothing without --save.
with start("sweep", *SHORT, "--steps", "100000", "--log", "swept", "--budgets", "100%,min") as child:
    wait_for_steps("swept.100%")
    child.send_signal(signal.SIGTERM)
    out, err = child.communicate()
assert child.returncode == 143 and not os.path.exists("swept.min"), (child.returncode, out, err)
assert "100%" in out and "stopped" in out and "failed" not in out, out

# Standard output that cannot be written is an error, whatever the run did.
with open("/dev/full", "w", encoding="utf-8") as full:
    for verb in (["train", *SHORT, "--steps", "1", "--json"], ["plan", "--model", "nano", "--json"], ["doctor"]):
        result = subprocess.run([LADE, *verb], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
        assert result.returncode == 5 and "standard output" in result.stderr, (verb, result)
