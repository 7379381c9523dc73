#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Speed of a small model of each family beside Llama's, in interleaved rounds: one line of a table for each.

Usage: families.py LADE [ROUNDS [FAMILY...]]

The models have 4 layers of width 512 with 8 heads and 4 KV heads, and train in BF16 on 2 rows of 512 tokens, on one
core. The figure is the step's necessary operations per second of the core's time, user's and system's: the difference
of two runs, of 2 and of 6 steps, each the shortest of all rounds, because other programs only lengthen a run. Beside
Llama's it is the ratio. If Llama reaches the share s of the speed of light, a family's is s times the ratio: from 0.95
on it is within 5 points for each s. The last column has the least and most ratio of single rounds, which shows the
load of the machine.
"""
import json
import os
import subprocess
import sys
import tempfile

LADE = os.path.abspath(sys.argv[1])
ROUNDS = int(sys.argv[2]) if len(sys.argv) > 2 else 5
BASE = {"vocab_size": 4096, "hidden_size": 512, "intermediate_size": 1408, "num_hidden_layers": 4,
        "num_attention_heads": 8, "num_key_value_heads": 4, "max_position_embeddings": 512, "pad_token_id": None}
CUT = {"sliding_window": 128, "layer_types": ["sliding_attention", "full_attention"] * 2}
FAMILIES = {
    "llama": BASE, "mistral": {**BASE, "sliding_window": 128}, "ministral": {**BASE, **CUT},
    "qwen2": {**BASE, "tie_word_embeddings": True}, "qwen3": {**BASE, "head_dim": 64},
    "gemma": {**BASE, "head_dim": 64}, "gemma2": {**BASE, "head_dim": 64, "sliding_window": 128},
    "gemma3_text": {**BASE, **CUT, "head_dim": 64}, "phi3": {**BASE, "partial_rotary_factor": 0.5}, "olmo2": BASE,
    "smollm3": {**BASE, "no_rope_layers": [1, 1, 1, 0]}, "starcoder2": BASE, "gpt_neox": BASE,
    "falcon": {**BASE, "new_decoder_architecture": True, "num_kv_heads": 4}, "mpt": BASE, "bloom": BASE,
    "ministral3": {**BASE, "head_dim": 64}, "olmo3": {**BASE, **CUT}, "seed_oss": {**BASE, "head_dim": 64}, "arcee": BASE,
    "exaone4": {**BASE, **CUT}, "stablelm": BASE, "nemotron": {**BASE, "head_dim": 64},
    "vaultgemma": {**BASE, "head_dim": 64, "sliding_window": 128}, "granite": BASE, "helium": {**BASE, "head_dim": 64},
    "ernie4_5": {**BASE, "head_dim": 64}, "glm": {**BASE, "head_dim": 64}, "glm4": {**BASE, "head_dim": 64},
    "cohere": BASE, "cohere2": {**BASE, **CUT}, "gpt_neo": {**BASE, "window_size": 128},
    "gpt_bigcode": {**BASE, "n_inner": 1408}, "hunyuan_v1_dense": {**BASE, "head_dim": 64},
    "cwm": {**BASE, **CUT, "head_dim": 64}, "jais2": BASE, "internlm3": {**BASE, "head_dim": 64},
}


CORE = str(min(os.sched_getaffinity(0)))
TIED = {"gemma", "gemma2", "gemma3_text", "smollm3", "starcoder2", "falcon", "mpt", "bloom", "ernie4_5", "cohere", "cohere2", "vaultgemma",
        "gpt_neo", "gpt_bigcode"}  # if the configuration does not say
N_WINDOWED = {"mistral": 4, "ministral": 2, "gemma2": 2, "gemma3_text": 2, "olmo3": 2, "exaone4": 2, "vaultgemma": 2,
              "cohere2": 2, "gpt_neo": 2, "cwm": 2}
HAS_POSITIONS = {"gpt_neo", "gpt_bigcode"}  # a table of them
ROWS, SEQ = 2, 512


def run(family, n_steps):
    """Return the seconds of the core, and the summary."""
    command = ["taskset", "-c", CORE, LADE, "train", "--model", f"{family}.json", "--data", "tokens.bin", "--batch",
               str(ROWS), "--seq", str(SEQ), "--steps", str(n_steps), "--eval-iters", "1", "--quiet", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        text = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, command
    return usage.ru_utime + usage.ru_stime, json.loads(text)


def flops(family, fields, n_parameters):
    """Return the necessary operations of a step, as docs/models.md counts them; norms and biases are next to nothing."""
    width, n_layers = fields["hidden_size"], fields["num_hidden_layers"]
    window = fields.get("sliding_window", fields.get("window_size", 0))
    n_lookups = 0 if fields.get("tie_word_embeddings", family in TIED) else fields["vocab_size"] * width
    n_lookups += SEQ * width * (family in HAS_POSITIONS)
    n_windowed = N_WINDOWED.get(family, 0)
    keys = (n_layers - n_windowed) * SEQ + n_windowed * window * (2 - window / SEQ)
    return 6 * ROWS * SEQ * (n_parameters - n_lookups + width * keys)


def round_run(family):
    """Return the seconds of both runs, and the operations of the 4 steps between them."""
    few, _ = run(family, 2)
    many, summary = run(family, 6)
    return few, many, 4 * flops(family, FAMILIES[family], summary["parameters"])


def speed(rounds):
    """Return operations per second of the core, from the shortest runs."""
    return rounds[0][2] / (min(many for _, many, _ in rounds) - min(few for few, _, _ in rounds))


with tempfile.TemporaryDirectory(prefix="lade-families-") as scratch:
    os.chdir(scratch)
    with open("tokens.bin", "wb") as file:
        for i in range(40000):
            file.write((i * i % 4093).to_bytes(2, "little"))
    for name, fields in FAMILIES.items():
        with open(f"{name}.json", "w", encoding="utf-8") as file:
            json.dump({"model_type": name, **fields}, file)
    os.environ["XDG_CACHE_HOME"] = scratch
    found = {name: [] for name in FAMILIES if name == "llama" or not sys.argv[3:] or name in sys.argv[3:]}
    for _ in range(ROUNDS):
        for name, rounds in found.items():
            rounds.append(round_run(name))
print("| family | GFLOP a second of a core | beside Llama | least and most |\n|---|---|---|---|")
for name, rounds in found.items():
    ratios = [speed([own]) / speed([llama]) for own, llama in zip(rounds, found["llama"])]
    print(f"| {name} | {speed(rounds) / 1e9:.0f} | {speed(rounds) / speed(found['llama']):.2f} | {min(ratios):.2f} to "
          f"{max(ratios):.2f} |")
