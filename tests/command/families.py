#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A few steps of a small model of each family from a config.json: their losses are stored here, from a build that
tests/torch/decoders.py compared with transformers. The smallest budget has the same digest
for those that have every op.

Usage: families.py LADE [--print]
"""
import json
import os
import subprocess
import sys
import tempfile

LADE = os.path.abspath(sys.argv[1])
SCRATCH = tempfile.TemporaryDirectory(prefix="lade-families-")  # removed with the process
os.chdir(SCRATCH.name)
os.environ["XDG_CACHE_HOME"] = os.getcwd()
BASE = {"vocab_size": 256, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64, "pad_token_id": None}
CUT = {"sliding_window": 7, "layer_types": ["sliding_attention", "full_attention"]}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "rope_theta": 10000.0}
# model_type: (the fields of its config.json, the loss of the last step)
FAMILIES = {
    "llama": ({**BASE, "attention_bias": True, "mlp_bias": True}, 4.398780),
    "mistral": ({**BASE, "sliding_window": 7}, 4.522358),
    "ministral": ({**BASE, **CUT}, 4.501740),
    "qwen2": ({**BASE, "tie_word_embeddings": True}, 4.105125),
    "qwen3": ({**BASE, "head_dim": 20, "rope_parameters": YARN}, 4.568827),
    "gemma": ({**BASE, "head_dim": 18}, 4.034481),
    "gemma2": ({**BASE, "head_dim": 14, "sliding_window": 7, "final_logit_softcapping": 2.0}, 4.451488),
    "gemma3_text": ({**BASE, **CUT, "head_dim": 16}, 4.589284),
    "phi3": ({**BASE, "partial_rotary_factor": 0.5}, 4.528897),
    "olmo2": ({**BASE}, 4.393137),
    "smollm3": ({**BASE, "no_rope_layers": [1, 0]}, 4.135706),
    "starcoder2": ({**BASE, "sliding_window": 9}, 4.317434),
    "gpt_neox": ({**BASE, "rotary_pct": 0.5}, 4.433728),
    "falcon": ({**BASE, "new_decoder_architecture": True, "num_kv_heads": 2}, 4.151916),
    "falcon-alibi": ({**BASE, "model_type": "falcon", "num_attention_heads": 6, "multi_query": False,
                      "parallel_attn": False, "bias": True, "alibi": True}, 4.374487),
    "mpt": ({"vocab_size": 256, "d_model": 48, "n_layers": 2, "n_heads": 6, "attn_config": {"clip_qkv": 0.1}}, 4.211593),
    "bloom": ({"vocab_size": 256, "n_embed": 48, "n_layer": 2, "n_head": 6}, 4.124940),
    "ministral3": ({**BASE, "head_dim": 12, "rope_parameters": {
        **YARN, "original_max_position_embeddings": 7, "mscale": 1, "mscale_all_dim": 1,
        "llama_4_scaling_beta": 0.3}}, 4.527623),
    "olmo3": ({**BASE, **CUT, "rope_scaling": {key: YARN[key] for key in YARN if key != "rope_theta"}}, 4.354341),
    "seed_oss": ({**BASE, "head_dim": 14, "attention_out_bias": True}, 4.582830),
    "arcee": ({**BASE, "mlp_bias": True}, 4.320521),
    "exaone4": ({**BASE, **CUT}, 4.451626),
    "stablelm": ({**BASE, "hidden_size": 64, "use_qkv_bias": True, "use_parallel_residual": True}, 3.974125),
    "nemotron": ({**BASE, "head_dim": 20, "attention_bias": True}, 4.300821),
    "granite": ({**BASE, "embedding_multiplier": 3, "residual_multiplier": 0.4, "logits_scaling": 2,
                 "attention_multiplier": 0.2, "mlp_bias": True}, 4.926748),
    "helium": ({**BASE, "head_dim": 12}, 4.509627),
    "ernie4_5": ({**BASE, "head_dim": 20, "use_bias": True}, 4.196800),
    "glm": ({**BASE, "head_dim": 16}, 4.391102),
    "glm4": ({**BASE, "head_dim": 20, "partial_rotary_factor": 0.4}, 4.275992),
    "cohere": ({**BASE, "logit_scale": 0.25}, 5.184867),
    "cohere2": ({**BASE, **CUT}, 5.454818),
    "gpt_neo": ({**BASE, "window_size": 7}, 4.138671),
    "gpt_bigcode": ({**BASE, "n_inner": 80}, 4.141405),
    "hunyuan_v1_dense": ({**BASE, "head_dim": 20, "rope_scaling": {"type": "dynamic", "factor": 1.0, "alpha": 50.0}},
                         4.557375),
    "cwm": ({**BASE, **CUT, "head_dim": 16}, 4.373048),
    "jais2": ({**BASE}, 4.402683),
    "internlm3": ({**BASE, "head_dim": 20, "qkv_bias": True, "bias": True}, 4.231076),
    "vaultgemma": ({**BASE, "head_dim": 14, "sliding_window": 7, "final_logit_softcapping": 2.0}, 4.139659),
}
STEPS, TOLERANCE = 4, 2e-5
TEXT = "".join(f"{i * i % 97} bottles of {'beer' if i % 3 else 'wine'} on the wall, {i}\n" for i in range(400))
with open("train.txt", "w", encoding="utf-8") as file:
    file.write(TEXT)


def loss_of(name, *args):
    command = [LADE, "train", "--model", f"{name}.json", "--data", "train.txt", "--valid-fraction", "0", "--dtype", "fp32",
               "--batch", "2", "--seq", "24", "--steps", str(STEPS), "--warmup", "0", "--lr", "1e-2", "--quiet", "--json",
               "--log", f"{name}.log", *args]
    result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
    assert result.returncode == 0, (command, result.stderr)
    with open(f"{name}.log", encoding="utf-8") as log:
        losses = [line["loss"] for line in map(json.loads, log) if "loss" in line]
    os.remove(f"{name}.log")
    return losses[-1], json.loads(result.stdout)["loss_digest"]


for model_type, (fields, expected) in FAMILIES.items():
    with open(f"{model_type}.json", "w", encoding="utf-8") as file:
        json.dump({"model_type": model_type, **fields}, file)
    found, digest = loss_of(model_type)
    if sys.argv[2:] == ["--print"]:
        print(f"{model_type} {found:.6f}")
        continue
    assert abs(found - expected) < TOLERANCE, (model_type, found, expected)
    if model_type in ("qwen3", "gemma2", "olmo2", "falcon", "mpt", "hunyuan_v1_dense"):
        assert loss_of(model_type, "--budget", "min")[1] == digest, model_type
