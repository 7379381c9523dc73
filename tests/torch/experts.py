#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Mixtures of experts have the parameters that transformers gives them, to the unit. Usage: experts.py LIBLADE LADE

Models are built on the meta device, from configs of random sizes and of the presets; `lade plan` reads the config.json
that transformers writes.
"""
import json
import os
import random
import subprocess
import sys
import tempfile

import fixture

try:
    import transformers
except ImportError as absent:
    fixture.skip(f"transformers is not installed ({absent})")
torch = fixture.torch
LADE = os.path.abspath(sys.argv[2])
LATENT = {"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
PRESETS = {
    "mixtral-8x7b": ("mixtral", {"vocab_size": 32000}),
    "qwen3-30b-a3b": ("qwen3_moe", {"vocab_size": 151936, "hidden_size": 2048, "num_hidden_layers": 48,
                                    "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128,
                                    "intermediate_size": 6144, "moe_intermediate_size": 768, "num_experts": 128}),
    "deepseek-v2-lite": ("deepseek_v2", {
        **LATENT, "vocab_size": 102400, "hidden_size": 2048, "num_hidden_layers": 27, "num_attention_heads": 16,
        "num_key_value_heads": 16, "q_lora_rank": None, "intermediate_size": 10944, "moe_intermediate_size": 1408,
        "n_routed_experts": 64, "n_shared_experts": 2, "num_experts_per_tok": 6, "first_k_dense_replace": 1}),
    "deepseek-v3": ("deepseek_v3", {}),
}


def plan(model):
    result = subprocess.run([LADE, "plan", "--model", model, "--batch", "1", "--seq", "8", "--machine", "h100-80g",
                             "--json"], stdout=subprocess.PIPE, check=True)
    return json.loads(result.stdout)


def model_make(kind, sizes):
    config = transformers.CONFIG_MAPPING[kind](**sizes)
    with torch.device("meta"):
        return config, transformers.AutoModelForCausalLM.from_config(config)


def counts(config, model):
    """Return the parameters, and those of a token: of routed experts the share that it passes."""
    n_experts = next(getattr(config, name) for name in ("n_routed_experts", "num_experts", "num_local_experts")
                     if getattr(config, name, None))
    whole = active = 0
    for name, parameter in model.named_parameters():
        n = parameter.numel()
        whole += n
        active += n * config.num_experts_per_tok // n_experts if ".experts." in name else n
    return whole, active


def compare(what, kind, sizes, path=None):
    config, model = model_make(kind, sizes)
    if path is None:
        path = os.path.join(fixture.SCRATCH.name, "model")
        config.save_pretrained(path)
    found = plan(path)
    wanted = counts(config, model)
    assert (found["parameters"], found["active_parameters"]) == wanted, (what, sizes, found, wanted)
    assert found["trainable"] is False


def sizes_draw(kind, draw):
    """Return the sizes of a random small model."""
    heads = draw.choice((2, 4))
    width = heads * draw.choice((16, 32))
    sizes = {"vocab_size": draw.randrange(100, 900), "hidden_size": width, "num_hidden_layers": draw.randrange(1, 6),
             "num_attention_heads": heads, "num_key_value_heads": draw.choice((1, 2)),
             "intermediate_size": draw.randrange(8, 99), "num_experts_per_tok": draw.randrange(1, 4),
             "tie_word_embeddings": draw.random() < 0.5, "max_position_embeddings": 64}
    n_experts = draw.randrange(4, 9)
    sizes["num_local_experts" if kind == "mixtral" else "n_routed_experts" if "deepseek" in kind else "num_experts"] = \
        n_experts
    if kind in ("qwen2_moe", "qwen3_moe"):
        sizes |= {"moe_intermediate_size": draw.randrange(8, 50), "decoder_sparse_step": draw.choice((1, 2)),
                  "mlp_only_layers": draw.choice(([], [0]))}
    if kind == "qwen2_moe":
        sizes |= {"shared_expert_intermediate_size": draw.randrange(8, 50), "qkv_bias": draw.random() < 0.7}
    if kind in ("qwen3_moe", "olmoe", "deepseek_v2", "deepseek_v3"):
        sizes["attention_bias"] = draw.random() < 0.5
    if kind == "qwen3_moe":
        sizes["head_dim"] = draw.choice((8, 24))
    if "deepseek" in kind:
        sizes |= {"moe_intermediate_size": draw.randrange(8, 50), "n_shared_experts": draw.randrange(1, 3),
                  "first_k_dense_replace": draw.randrange(0, 3), "kv_lora_rank": draw.randrange(8, 40),
                  "q_lora_rank": draw.choice((None, 12)), "qk_nope_head_dim": 16, "qk_rope_head_dim": 8,
                  "v_head_dim": draw.choice((8, 16, 24)), "num_key_value_heads": heads, "n_group": 1, "topk_group": 1}
    return sizes


random_sizes = random.Random(19)
for family in ("mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "deepseek_v2", "deepseek_v3"):
    for i in range(8):
        compare(f"{family} {i}", family, sizes_draw(family, random_sizes))
for preset, (family, its_sizes) in PRESETS.items():
    compare(preset, family, its_sizes, preset)
