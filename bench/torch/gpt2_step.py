# SPDX-License-Identifier: Apache-2.0
"""GPT-2 with its training step, for the benchmarks of lade.torch. Importing it finds the package of this checkout."""
import contextlib
import os
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "python"))
os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import transformers


def model_of(layers=12, width=768, vocab=50257, places=1024, dropout=0.1, device="cpu"):
    """Return a GPT-2 in training mode with random weights, 12 heads of 64 elements by default."""
    config = transformers.GPT2Config(n_layer=layers, n_embd=width, n_head=max(2, width // 64), vocab_size=vocab,
                                     n_positions=places, use_cache=False, resid_pdrop=dropout, embd_pdrop=dropout,
                                     attn_pdrop=dropout)
    return transformers.GPT2LMHeadModel(config).train().to(device)


def ids_of(rows, columns, vocab=50257, device="cpu"):
    """Return the batch."""
    return torch.randint(0, vocab, (rows, columns), generator=torch.Generator().manual_seed(1)).to(device)


def fused_adamw(params):
    return torch.optim.AdamW(params, lr=1e-4, fused=True)


def trainer(model, optimizer, is_bf16=False, held=None):
    """Return a step: forward, backward, clipping, update. @held: the lade.torch.saved around the forward, if any."""
    kind = next(model.parameters()).device.type

    def train(ids):
        with held or contextlib.nullcontext(), torch.autocast(kind, torch.bfloat16, enabled=is_bf16):
            loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()
    return train
