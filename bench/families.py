#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Speed of light of a small model of each family beside Llama's, in interleaved rounds: one line of a table for each.

Usage: families.py LADE [ROUNDS]

The models have 4 layers of width 512 with 8 heads and 4 KV heads, and train in BF16 on 4 rows of 512 tokens. The figure
of a round is the share of the cores' measured matmul rate that the step's necessary operations take; medians are
printed, with the difference to Llama's in points.
"""
import json
import os
import statistics
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
    "falcon": {**BASE, "new_decoder_architecture": True, "num_kv_heads": 4},
}


def speed(family):
    result = subprocess.run([LADE, "train", "--model", f"{family}.json", "--data", "tokens.bin", "--batch", "4", "--seq",
                             "512", "--steps", "4", "--eval-iters", "1", "--quiet", "--json"], stdout=subprocess.PIPE,
                            check=True)
    return 100 * json.loads(result.stdout)["speed_of_light"]


with tempfile.TemporaryDirectory(prefix="lade-families-") as scratch:
    os.chdir(scratch)
    with open("tokens.bin", "wb") as file:
        for i in range(40000):
            file.write((i * i % 4093).to_bytes(2, "little"))
    for name, fields in FAMILIES.items():
        with open(f"{name}.json", "w", encoding="utf-8") as file:
            json.dump({"model_type": name, **fields}, file)
    found = {name: [] for name in FAMILIES}
    for _ in range(ROUNDS):
        for name, rounds in found.items():
            rounds.append(speed(name))
llama = statistics.median(found["llama"])
print("| family | speed of light, % | beside Llama's, points |\n|---|---|---|")
for name, rounds in found.items():
    median = statistics.median(rounds)
    print(f"| {name} | {median:.1f} | {median - llama:+.1f} |")
