#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Whole training steps of PyTorch, of a shape that Lade trains too: scripts/gpu-check compares Lade's steps with them.

Usage: bench/torch_steps.py --model gpt2-1.5b|llama3-8b [--seq N] [--batch N] [--micro-batch N] [--steps N]
         [--device cuda|cpu] [--eager] [--count] [--layers N] [--width N] [--heads N] [--n-kv-heads N] [--hidden N]
         [--vocabulary N]

The fastest that plain PyTorch has: parameters, gradients and moments in BF16 with no master copy beside them, which is
less than Lade keeps; torch.compile of a block, which all layers share, and of the head with its loss; attention by
scaled_dot_product_attention; AdamW in its fused form, after clipping by the norm of all gradients; GPT-2's
vocabulary rounded up to a multiple of 64. Blocks are recomputed in the backward pass only where the step does not fit
without: first none, then half of them, then all.

A step is --batch sequences of --seq tokens in microbatches, and the update. Prints one line of JSON: tokens a second
and seconds of the median step, all steps' seconds, the parameters (without padding), the peak of allocated
bytes, how many blocks were recomputed, the last loss, and PyTorch's version. --count prints the parameters alone and
needs no PyTorch. Exits 77 with one line where PyTorch is not installed or has no such device.
"""
import argparse
import json
import math
import statistics
import sys
import time

SHAPES = {
    "gpt2-1.5b": {"layers": 48, "width": 1600, "heads": 25, "n_kv_heads": 25, "hidden": 6400, "vocabulary": 50257},
    "llama3-8b": {"layers": 32, "width": 4096, "heads": 32, "n_kv_heads": 8, "hidden": 14336, "vocabulary": 128256},
}
ROPE_BASE = 500000
WARM_UPS = 2  # microbatches before the first step: the first compiles, the second adds to existing gradients


def is_llama(args):
    return args.model.startswith("llama")


def block_shapes(args):
    """Return the shapes of a block's parameters, in the order of its function's arguments."""
    d, f, head = args.width, args.hidden, args.width // args.heads
    if is_llama(args):
        return [(d,), ((args.heads + 2 * args.n_kv_heads) * head, d), (d, d), (d,), (2 * f, d), (d, f)]
    return [(d,), (d,), (3 * d, d), (3 * d,), (d, d), (d,), (d,), (d,), (f, d), (f,), (d, f), (d,)]


def rows_of(args):
    """Return the rows of the token table; GPT-2's odd number is slow on every library, so it is rounded up."""
    return args.vocabulary if is_llama(args) else -(-args.vocabulary // 64) * 64


def outer_shapes(args):
    """Return the shapes of token table and last norm; then GPT-2's positions and norm's bias, or Llama's head."""
    d, rows = args.width, rows_of(args)
    return [(rows, d), (d,), (rows, d)] if is_llama(args) else [(rows, d), (d,), (args.seq, d), (d,)]


def parameters_count(args):
    shapes = outer_shapes(args) + block_shapes(args) * args.layers
    return sum(math.prod(shape) for shape in shapes) - (rows_of(args) - args.vocabulary) * args.width


class Model:
    """Functions over lists of tensors, so that one compiled block serves all layers."""

    def __init__(self, torch, args):
        self.torch, self.args, self.n_recomputed = torch, args, 0
        self.functional = torch.nn.functional
        self.outer = [self.tensor_make(shape) for shape in outer_shapes(args)]
        self.blocks = [[self.tensor_make(shape) for shape in block_shapes(args)] for _ in range(args.layers)]
        head = args.width // args.heads
        angles = torch.outer(torch.arange(args.seq), ROPE_BASE ** (-torch.arange(0, head, 2) / head))
        self.turns = [part.to(args.device, torch.bfloat16) for part in (angles.cos(), angles.sin())]
        compiled = (lambda function: function) if args.eager else torch.compile
        self.block = compiled(self.llama_block if is_llama(args) else self.gpt2_block)
        self.head = compiled(self.loss_get)

    def tensor_make(self, shape):
        values = self.torch.empty(shape, dtype=self.torch.bfloat16, device=self.args.device)
        values = values.fill_(1) if len(shape) == 1 else values.normal_(std=0.02)
        return values.requires_grad_()

    def parameters(self):
        return self.outer + [parameter for block in self.blocks for parameter in block]

    def attend(self, q, k, v):
        out = self.functional.scaled_dot_product_attention(
            *[part.transpose(1, 2) for part in (q, k, v)], is_causal=True,
            **({"enable_gqa": True} if q.shape[2] != k.shape[2] else {}))
        return out.transpose(1, 2).flatten(2)

    def gpt2_block(self, x, norm1, bias1, qkv, qkv_bias, out, out_bias, norm2, bias2, up, up_bias, down, down_bias):
        linear, layer_norm, heads = self.functional.linear, self.functional.layer_norm, self.args.heads
        y = linear(layer_norm(x, x.shape[-1:], norm1, bias1), qkv, qkv_bias)
        x = x + linear(self.attend(*y.unflatten(-1, (3, heads, -1)).unbind(2)), out, out_bias)
        y = linear(layer_norm(x, x.shape[-1:], norm2, bias2), up, up_bias)
        return x + linear(self.functional.gelu(y, approximate="tanh"), down, down_bias)

    def rms_norm(self, x, weight):
        wide = x.float()
        return (wide * self.torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-5)).to(x.dtype) * weight

    def turn(self, x):
        """Apply rotary positions to the halves of each head."""
        left, right = x.chunk(2, dim=-1)
        cosines, sines = (part[None, :, None, :] for part in self.turns)
        return self.torch.cat([left * cosines - right * sines, right * cosines + left * sines], dim=-1)

    def llama_block(self, x, norm1, qkv, out, norm2, gate_up, down):
        linear, args = self.functional.linear, self.args
        y = linear(self.rms_norm(x, norm1), qkv).unflatten(-1, (args.heads + 2 * args.n_kv_heads, -1))
        q, k, v = y.split([args.heads, args.n_kv_heads, args.n_kv_heads], dim=2)
        x = x + linear(self.attend(self.turn(q), self.turn(k), v), out)
        gate, up = linear(self.rms_norm(x, norm2), gate_up).chunk(2, dim=-1)
        return x + linear(self.functional.silu(gate) * up, down)

    def loss_get(self, x, targets, table, norm, bias):
        y = self.rms_norm(x, norm) if is_llama(self.args) else self.functional.layer_norm(x, x.shape[-1:], norm, bias)
        logits = self.functional.linear(y, table).flatten(0, 1)
        return self.functional.cross_entropy(logits.float(), targets.flatten())

    def loss_of(self, tokens, targets):
        table, norm, other, *bias = self.outer
        x = self.functional.embedding(tokens, table)
        x = x if is_llama(self.args) else x + other
        for i, block in enumerate(self.blocks):
            x = (self.torch.utils.checkpoint.checkpoint(self.block, x, *block, use_reentrant=False)
                 if i < self.n_recomputed else self.block(x, *block))
        return self.head(x, targets, other if is_llama(self.args) else table, norm, bias[0] if bias else None)


class Trainer:
    """Steps of one model. @clock waits for the device first."""

    def __init__(self, torch, args):
        self.torch, self.args = torch, args
        self.model = Model(torch, args)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1,
                                           fused=True)
        self.n_micro = args.batch // args.micro_batch
        self.tokens = torch.randint(args.vocabulary, (args.micro_batch, args.seq + 1), device=args.device)

    def clock(self):
        if self.args.device == "cuda":
            self.torch.cuda.synchronize()
        return time.perf_counter()

    def micro_batch(self):
        loss = self.model.loss_of(self.tokens[:, :-1], self.tokens[:, 1:])
        (loss / self.n_micro).backward()
        return loss.detach()

    def update(self):
        self.torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def warm_up(self):
        for _ in range(WARM_UPS):
            self.micro_batch()
        self.update()

    def step(self):
        """Run one step; return seconds, and the last microbatch's loss."""
        began = self.clock()
        for _ in range(self.n_micro):
            loss = self.micro_batch()
        self.update()
        return self.clock() - began, float(loss)


def step_fits(trainer):
    """Return True if a step fits in memory; otherwise free the memory that it took."""
    out_of_memory = getattr(trainer.torch, "OutOfMemoryError", trainer.torch.cuda.OutOfMemoryError)  # since 2.5
    try:
        trainer.warm_up()
        return True
    except out_of_memory:
        trainer.optimizer.zero_grad(set_to_none=True)
    trainer.torch.cuda.empty_cache()  # after the exception, whose frames hold the tensors
    return False


def steps_measure(torch, args):
    trainer = Trainer(torch, args)
    for n_recomputed in (0, args.layers // 2, args.layers):
        trainer.model.n_recomputed = n_recomputed
        if step_fits(trainer):
            break
    else:
        sys.exit(f"torch_steps: {args.model} does not fit, though every block is recomputed")
    if args.device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    steps = [trainer.step() for _ in range(args.steps)]
    seconds = [step[0] for step in steps]
    median = statistics.median(seconds)
    return {"tokens_per_second": args.batch * args.seq / median, "step_seconds": median, "steps_seconds": seconds,
            "parameters": parameters_count(args), "recomputed_blocks": trainer.model.n_recomputed,
            "peak_bytes": torch.cuda.max_memory_allocated() if args.device == "cuda" else None,
            "loss": steps[-1][1], "torch": torch.__version__}


def torch_find(args):
    """Return the module, or end the program with the reason why it cannot be used."""
    try:
        import torch
        import torch.utils.checkpoint
    except (ImportError, OSError) as error:  # missing, or without its libraries
        why = f"PyTorch is not installed ({error})"
    else:
        if args.device == "cpu" or torch.cuda.is_available():
            return torch
        why = f"PyTorch {torch.__version__} finds no CUDA device"
    print(f"SKIP: {why}")
    sys.exit(77)


def arguments_read():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=SHAPES, required=True)
    for name, default in (("seq", 1024), ("batch", 16), ("micro-batch", 16), ("steps", 3)):
        parser.add_argument("--" + name, type=int, default=default)
    for name in SHAPES["gpt2-1.5b"]:
        parser.add_argument("--" + name.replace("_", "-"), type=int, help="other than the model's")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--eager", action="store_true", help="compile nothing")
    parser.add_argument("--count", action="store_true", help="print the number of parameters, and nothing else")
    args = parser.parse_args()
    for name, value in SHAPES[args.model].items():
        if getattr(args, name) is None:
            setattr(args, name, value)
    if args.steps < 1 or args.batch % args.micro_batch:
        parser.error("--steps is at least 1, and --batch a multiple of --micro-batch")
    return args


def main():
    args = arguments_read()
    if args.count:
        print(parameters_count(args))
        return
    torch = torch_find(args)
    torch.manual_seed(1)
    print(json.dumps(steps_measure(torch, args)))


if __name__ == "__main__":
    main()
