#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A run of eight ranks is saved, and other layouts go on with it.

Usage: checkpoints.py LADE PLUGIN

The small Llama (grouped-query heads) trains on tp2 pp2 dp2 and is saved. One rank, eight ranks of FSDP, and tp4 dp2 load
it: the same bits of parameters right after the load, and the next ten losses within 1e-5 of those that the saving layout
goes on to. Then the files are damaged.
"""
import array
import json
import os
import shutil
import subprocess
import sys
import tempfile

LADE, PLUGIN = (os.path.abspath(path) for path in sys.argv[1:3])
if not shutil.which("mpirun"):
    print("SKIP: mpirun is not on PATH (apt-get install openmpi-bin)")
    sys.exit(77)
if sys.argv[2] == "none":
    print("SKIP: built without Open MPI (apt-get install libopenmpi-dev)")
    sys.exit(77)

PATIENCE = 600  # seconds until a job counts as hung
ENVIRONMENT = dict(os.environ, LADE_MPI_PLUGIN=PLUGIN)
for name, option in (("ASAN_OPTIONS", "detect_leaks=0"), ("TSAN_OPTIONS", "ignore_noninstrumented_modules=1")):
    ENVIRONMENT[name] = ":".join(part for part in (os.environ.get(name), option) if part)
MODEL = {"model_type": "llama", "hidden_size": 256, "intermediate_size": 688, "num_hidden_layers": 8,
         "num_attention_heads": 8, "num_key_value_heads": 4, "max_position_embeddings": 64, "vocab_size": 1000,
         "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": False, "hidden_act": "silu"}
N_SAVED, N_MORE = 3, 10
EIGHT = ["--tp", "2", "--pp", "2", "--dp", "2"]
OTHERS = [(0, []), (8, ["--dp", "8", "--zero", "3"]), (8, ["--tp", "4", "--dp", "2"])]


def require(truth, what, output=""):
    if not truth:
        print(f"FAILED: {what}\n{output}")
        sys.exit(1)


def run(ranks, *arguments):
    start = [LADE, "launch", "-n", str(ranks), "--"] if ranks else [LADE]
    steady = ["--model", "config.json", "--data", "tokens.bin", "--dtype", "fp32", "--batch", "8", "--micro-batch", "1",
              "--seq", "16", "--lr", "1e-4", "--min-lr", "1e-4", "--warmup", "0", "--eval-iters", "1", "--quiet",
              "--machine", "a100-40g", "--json"]
    result = subprocess.run(start + ["train", *steady, *arguments], env=ENVIRONMENT, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True, timeout=PATIENCE, check=False)
    return result.returncode, result.stdout, result.stderr


def summary(ranks, *arguments):
    code, out, err = run(ranks, *arguments)
    require(code == 0, f"{ranks} ranks with {arguments} end with {code}", err)
    return json.loads(out)


def losses(path):
    with open(path, encoding="utf-8") as log:
        events = [json.loads(line) for line in log]
    return [event["loss"] for event in events if event["event"] == "step"]


def layouts_go_on():
    saved = summary(8, "--steps", str(N_SAVED), "--save", "eight", "--save-file", "8MiB", *EIGHT)
    more = str(N_SAVED + N_MORE)
    summary(8, "--steps", more, "--resume", "eight", "--log", "same.log", *EIGHT)
    wanted = losses("same.log")
    require(len(wanted) == N_MORE, "the saving layout does not go on", wanted)
    for i, (ranks, layout) in enumerate(OTHERS):
        loaded = summary(ranks, "--steps", str(N_SAVED), "--resume", "eight", *layout)
        require(loaded["params_digest"] == saved["params_digest"] and loaded["loss_digest"] == saved["loss_digest"],
                f"{layout} loads other bits", (loaded, saved))
        summary(ranks, "--steps", more, "--resume", "eight", "--log", f"other{i}.log", *layout)
        found = losses(f"other{i}.log")
        worst = max(abs(a - b) / abs(b) for a, b in zip(found, wanted))
        print(f"{layout or 'one rank'}: the next {len(found)} losses differ by at most {worst:.2g}", flush=True)
        require(len(found) == N_MORE and worst <= 1e-5, f"{layout} goes on with other losses", (found, wanted))


def is_refused(words, code=5):
    found, _, err = run(8, "--steps", "4", "--resume", "eight", *OTHERS[2][1])
    lines = [line for line in err.splitlines() if line.startswith("lade") and ": note" not in line]
    require(found == code and len(lines) == 1 and all(word in lines[0] for word in words),
            f"damage ends with {found} and does not name {words}", err)


def damage_is_told_once():
    """One line of all ranks, with the tensor or the file, and exit code 5."""
    directory = f"eight/step-{N_SAVED:08d}"
    names = sorted(name for name in os.listdir(directory) if name.startswith("optimizer-"))
    path = os.path.join(directory, names[0])
    with open(path, "r+b") as file:
        file.seek(-1, os.SEEK_END)
        byte = file.read(1)
        file.seek(-1, os.SEEK_END)
        file.write(bytes([byte[0] ^ 1]))
    is_refused(["tensor exp_avg.", "damaged", names[0]])
    with open(path, "r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(byte)
    os.rename(path, "away")
    is_refused([names[0], "missing"])


TMP = tempfile.mkdtemp(prefix="lade-checkpoints-")
try:
    os.chdir(TMP)
    with open("config.json", "w", encoding="utf-8") as config:
        json.dump(MODEL, config)
    with open("tokens.bin", "wb") as tokens:
        array.array("H", (i * i % 997 if i % 5 else i // 5 % 3 for i in range(40000))).tofile(tokens)
    for test in (layouts_go_on, damage_is_told_once):
        test()
        print("ok", test.__name__, flush=True)
finally:
    os.chdir("/")
    shutil.rmtree(TMP, ignore_errors=True)
