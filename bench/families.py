#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Speed of light of a small model of each family beside Llama's: one line of a table as soon as it is measured.

Usage: families.py LADE [ROUNDS [FAMILY...]]

The models have 4 layers of width 512 with 8 heads and 4 KV heads, and train in BF16 on 2 rows of 512 tokens, on one
core. A round runs the family and Llama in turn. A run's share is the rate of the necessary operations in its fastest
step, over the measured rate of matrix products of that core: `speed_of_light` of the summary, which counts the median
step, times the ratio of the two steps. Neighbours only lengthen a step, so the fastest one shows the kernels. The table
has the largest shares of the rounds, their difference in points, and the least and greatest difference of a round. The
target is a difference of -5 points or more. Give the script a core nearly of its own (nice -n -18).
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
ROWS, SEQ, STEPS = 2, 512, 4


def speed_of_light(family):
    """Train a few steps, and return the share of the speed of light in the fastest one, in percent."""
    command = ["taskset", "-c", CORE, LADE, "train", "--model", f"{family}.json", "--data", "tokens.bin", "--batch",
               str(ROWS), "--seq", str(SEQ), "--steps", str(STEPS), "--valid-fraction", "0", "--log", "log", "--quiet",
               "--json"]
    if os.path.exists("log"):
        os.remove("log")
    summary = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    with open("log", encoding="utf-8") as lines:
        rates = [line["tokens_per_second"] for line in map(json.loads, lines) if line["event"] == "step"]
    fastest_seconds = ROWS * SEQ / max(rates)
    return 100 * summary["speed_of_light"] * summary["measured_step_seconds"] / fastest_seconds


def family_measure(family):
    """Return (share, Llama's share) of each round."""
    rounds = []
    for i in range(ROUNDS):
        names = ("llama", family) if i % 2 else (family, "llama")  # neither is always the first
        shares = {name: speed_of_light(name) for name in names}
        rounds.append((shares[family], shares["llama"]))
    return rounds


with tempfile.TemporaryDirectory(prefix="lade-families-") as scratch:
    os.chdir(scratch)
    with open("tokens.bin", "wb") as file:
        for i in range(40000):
            file.write((i * i % 4093).to_bytes(2, "little"))
    for name, fields in FAMILIES.items():
        with open(f"{name}.json", "w", encoding="utf-8") as file:
            json.dump({"model_type": name, **fields}, file)
    os.environ["XDG_CACHE_HOME"] = scratch
    speed_of_light("llama")  # measures the core's rates, which are kept
    print("| family | speed of light | Llama's | points | least and most |\n|---|---|---|---|---|")
    for name in sys.argv[3:] or [family for family in FAMILIES if family != "llama"]:
        found = family_measure(name)
        own, llama = (max(shares) for shares in zip(*found))
        points = [share - other for share, other in found]
        print(f"| {name} | {own:.1f} % | {llama:.1f} % | {own - llama:+.1f} | {min(points):+.1f} to "
              f"{max(points):+.1f} |", flush=True)
