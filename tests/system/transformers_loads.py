#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""transformers reads Lade's checkpoints, and --init reads those of transformers: GPT-2 and Llama (with grouped queries,
heads of another width, scaled RoPE, tied and not), each with the same evaluation loss in FP32.

Usage: transformers_loads.py LADE
"""
import json
import os
import subprocess
import sys
import tempfile

try:
    import torch
    import transformers
except ImportError as absent:
    print(f"SKIP: {absent}")
    sys.exit(77)

LADE = os.path.abspath(sys.argv[1])
SCRATCH = tempfile.TemporaryDirectory(prefix="lade-transformers-")  # removed with the process
os.chdir(SCRATCH.name)
os.environ["XDG_CACHE_HOME"] = os.getcwd()
os.environ["HF_HUB_OFFLINE"] = "1"
transformers.logging.set_verbosity_error()
torch.set_num_threads(1)
BATCH, SEQ, N_EVAL, TOLERANCE = 4, 32, 3, 2e-5  # FP32 sums in another order
TEXT = "".join(f"{i * i % 97} bottles of {'beer' if i % 3 else 'wine'} on the wall, {i}\n" for i in range(1000)).encode()
LLAMA = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 256, "hidden_size": 48,
         "intermediate_size": 80, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
         "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu"}
ROPE = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16}
CONFIGS = {"gpt2": {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "vocab_size": 256, "n_positions": 64,
                    "n_embd": 48, "n_layer": 2, "n_head": 4, "layer_norm_epsilon": 1e-5},
           "llama": {**LLAMA, "head_dim": 20, "rope_scaling": ROPE, "tie_word_embeddings": False},
           "tied": {**LLAMA, "tie_word_embeddings": True}}

for name, content in (("train.txt", TEXT), ("valid.txt", TEXT[::-1])):
    with open(name, "wb") as file:
        file.write(content)


def lade(config, *args):
    command = [LADE, "train", "--model", config, "--data", "train.txt", "--valid", "valid.txt", "--dtype", "fp32",
               "--batch", str(BATCH), "--seq", str(SEQ), "--eval-iters", str(N_EVAL), "--quiet", "--json", *args]
    result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
    assert result.returncode == 0, (command, result)
    return json.loads(result.stdout)["val_loss"]


def evaluate(model):
    tokens = torch.tensor(list(TEXT[::-1]))
    losses = []
    for first in range(0, N_EVAL * BATCH * SEQ, BATCH * SEQ):
        x, y = (tokens[first + shift:first + shift + BATCH * SEQ].view(BATCH, SEQ) for shift in (0, 1))
        with torch.no_grad():
            logits = model(x).logits
        losses.append(torch.nn.functional.cross_entropy(logits.flatten(0, 1), y.flatten()).item())
    return sum(losses) / len(losses)


for name, config in CONFIGS.items():
    with open(f"{name}.json", "w", encoding="utf-8") as file:
        json.dump(config, file)
    stated = lade(f"{name}.json", "--steps", "30", "--warmup", "2", "--lr", "3e-3", "--save", name)
    model, report = transformers.AutoModelForCausalLM.from_pretrained(
        f"{name}/step-00000030", output_loading_info=True, torch_dtype=torch.float32)
    assert not any(report.values()), (name, report)
    found = evaluate(model.eval())
    assert abs(found - stated) < TOLERANCE, (name, found, stated)
    print(f"{name}: {stated:.6f} here, {found:.6f} in transformers {transformers.__version__}")

    torch.manual_seed(7)
    fresh = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(**config)).eval()
    with torch.no_grad():
        for parameter in fresh.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    fresh.save_pretrained(f"{name}-hf")
    found = lade(f"{name}-hf/config.json", "--steps", "0", "--init", f"{name}-hf")
    assert abs(found - evaluate(fresh)) < TOLERANCE, (name, found, evaluate(fresh))
