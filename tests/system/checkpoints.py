#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A run of eight ranks is saved, and other layouts resume it.

Usage: checkpoints.py LADE PLUGIN

The small Llama (grouped-query heads) trains on tp2 pp2 dp2 and is saved. One rank, eight ranks of FSDP, and tp4 dp2
load it: the same bits of parameters right after the load, and the next ten losses within 1e-5 of the saving layout's
own. Then the files are damaged. Last, a model whose tables are several parameters under ZeRO-3 in BF16 goes from four
ranks to one and back.
"""
import array
import json
import os
import sys

import jobs
from jobs import require

LADE = os.path.abspath(sys.argv[1])
ENVIRONMENT = jobs.environment(sys.argv[2])
PATIENCE = 600  # seconds until a job counts as hung
MODEL = {"model_type": "llama", "hidden_size": 256, "intermediate_size": 688, "num_hidden_layers": 8,
         "num_attention_heads": 8, "num_key_value_heads": 4, "max_position_embeddings": 64, "vocab_size": 1000,
         "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": False, "hidden_act": "silu"}
TALL = {**MODEL, "hidden_size": 64, "intermediate_size": 192, "num_hidden_layers": 2, "vocab_size": 5000}
N_SAVED, N_MORE = 3, 10
EIGHT = ["--tp", "2", "--pp", "2", "--dp", "2"]
OTHERS = [(0, []), (8, ["--dp", "8", "--zero", "3"]), (8, ["--tp", "4", "--dp", "2"])]


def run(ranks, *arguments):
    line = jobs.command(LADE, ranks, "--model", "config.json", "--data", "tokens.bin", "--dtype", "fp32", "--batch", "8",
                        "--micro-batch", "1", "--seq", "16", "--lr", "1e-4", "--min-lr", "1e-4", "--warmup", "0",
                        "--eval-iters", "1", "--quiet", "--machine", "a100-40g", "--json", *arguments)
    return jobs.run(line, ENVIRONMENT, PATIENCE)


def summary(ranks, *arguments):
    code, out, err = run(ranks, *arguments)
    require(code == 0, f"{ranks} ranks with {arguments} end with {code}", err)
    return json.loads(out)


def layouts_go_on():
    saved = summary(8, "--steps", str(N_SAVED), "--save", "eight", "--save-file", "8MiB", *EIGHT)
    more = str(N_SAVED + N_MORE)
    summary(8, "--steps", more, "--resume", "eight", "--log", "same.log", *EIGHT)
    wanted = jobs.losses("same.log")
    require(len(wanted) == N_MORE, "the saving layout does not go on", wanted)
    for i, (ranks, layout) in enumerate(OTHERS):
        loaded = summary(ranks, "--steps", str(N_SAVED), "--resume", "eight", *layout)
        require(loaded["params_digest"] == saved["params_digest"] and loaded["loss_digest"] == saved["loss_digest"],
                f"{layout} loads other bits", (loaded, saved))
        summary(ranks, "--steps", more, "--resume", "eight", "--log", f"other{i}.log", *layout)
        found = jobs.losses(f"other{i}.log")
        worst = max(abs(a - b) / abs(b) for a, b in zip(found, wanted))
        print(f"{layout or 'one rank'}: the next {len(found)} losses differ by at most {worst:.2g}", flush=True)
        require(len(found) == N_MORE and worst <= 1e-5, f"{layout} goes on with other losses", (found, wanted))


def is_refused(words, code=5):
    found, _, err = run(8, "--steps", "4", "--resume", "eight", *OTHERS[2][1])
    lines = [line for line in jobs.messages(err) if ": note" not in line]
    require(found == code and len(lines) == 1 and all(word in lines[0] for word in words),
            f"damage ends with {found} and does not name {words}", err)


def damage_is_reported_once():
    """One line for all ranks, with the tensor or the file, and exit code 5."""
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


def tables_in_parts_go_around():
    """One rank's losses within BF16's bound, peaks as planned, one tensor in the file, and its bits at every load."""
    with open("tall.json", "w", encoding="utf-8") as config:
        json.dump(TALL, config)
    with open("drop.txt", "w", encoding="ascii") as file:
        file.write("copies head.lm_head.weight drop\ncopies embed.tokens.weight.1 drop\n")
    tall = ["--model", "tall.json", "--dtype", "bf16", "--steps", str(N_SAVED)]
    shards = ["--dp", "4", "--zero", "3", "--residency", "drop.txt"]
    alone = summary(0, *tall, "--log", "alone.log")
    saved = summary(4, *tall, *shards, "--save", "parts", "--log", "parts.log")
    require(saved["planned_peak_bytes_by_rank"] == saved["measured_peak_bytes_by_rank"], "peaks are not as planned", saved)
    for a, b in zip(jobs.losses("parts.log"), jobs.losses("alone.log")):
        require(abs(a - b) <= 2e-3 * abs(b), "parts have other losses than one rank's table", (saved, alone))
    loaded = summary(0, *tall, "--resume", "parts", "--save", "whole")
    again = summary(4, *tall, *shards, "--resume", "whole", "--save", "again")
    require(saved["params_digest"] == loaded["params_digest"] == again["params_digest"], "loads have other bits",
            (saved, loaded, again))
    for name in ("model.safetensors", "optimizer.safetensors"):
        files = [f"{directory}/step-{N_SAVED:08d}/{name}" for directory in ("parts", "whole", "again")]
        contents = [open(path, "rb").read() for path in files]
        require(contents[0] == contents[1] == contents[2], f"{name} is another file in another layout")


with jobs.scratch():
    with open("config.json", "w", encoding="utf-8") as config:
        json.dump(MODEL, config)
    with open("tokens.bin", "wb") as tokens:
        array.array("H", (i * i % 997 if i % 5 else i // 5 % 3 for i in range(40000))).tofile(tokens)
    jobs.tests_run((layouts_go_on, damage_is_reported_once, tables_in_parts_go_around))
