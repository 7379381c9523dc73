#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""FSDP2 on two ranks of this machine (gloo, CPU): lade.torch.saved and lade.torch.AdamW serve it.

Saved tensors wait on the host within the limit, with the bits of FSDP2 alone. AdamW updates each rank's part of a
DTensor. Its state, saved by torch.save on each rank, resumes with the same bits. Usage: sharded.py LIBLADE
"""
import os
import sys
import tempfile

from fixture import GPT, batch, lade, skip, torch

import torch.distributed as dist
import torch.multiprocessing as mp

N_RANKS, STEPS = 2, 3


def sharded(make_optimizer):
    from torch.distributed.fsdp import fully_shard
    torch.manual_seed(0)
    model = GPT(width=64, layers=3, dropout=0.0)
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    return model, make_optimizer(model.parameters())


def run(make_optimizer, held_by=None, n_steps=STEPS, model=None, optimizer=None):
    """Return (model, optimizer, context) after steps; @held_by makes the context of the forwards."""
    if model is None:
        model, optimizer = sharded(make_optimizer)
    held = held_by(model) if held_by else None
    for _ in range(n_steps):
        if held is None:
            loss = model(*batch())
        else:
            with held:
                loss = model(*batch())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return model, optimizer, held


def bits(model):
    return [p.to_local().detach().clone() for p in model.parameters()]


def same(a, b):
    return all(torch.equal(x, y) for x, y in zip(bits(a), bits(b)))


def saved_keeps_bits():
    make = lambda params: torch.optim.AdamW(params, lr=1e-2)
    plain, _, _ = run(make)
    live = 200 << 10
    other, _, held = run(make, lambda model: lade.torch.saved(model, live=live, host="64MiB"))
    largest = 64 * 4 * 8 * 32 * 4
    assert same(plain, other), "other bits"
    assert held.moved_bytes and held.peak_bytes <= live + largest, (held.peak_bytes, live)
    assert not held.entries, "a step leaves nothing behind"
    held.close()


def adamw_takes_its_part(scratch):
    for where in ("host", f"store:{scratch}"):
        make = lambda params, where=where: lade.torch.AdamW(params, lr=1e-2, where=where)
        model, optimizer, _ = run(make, n_steps=4)
        half, early, _ = run(make, n_steps=2)
        path = os.path.join(scratch, f"state-{dist.get_rank()}.pt")
        torch.save(early.state_dict(), path)
        resumed = make(half.parameters())
        resumed.load_state_dict(torch.load(path, weights_only=True))
        run(make, n_steps=2, model=half, optimizer=resumed)
        assert same(half, model), where
        shape = early.state_dict()["state"][0]["exp_avg"].shape
        assert shape == next(half.parameters()).to_local().shape, "the state is of the local part"


def rank_run(rank, scratch, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(N_RANKS))
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    try:
        saved_keeps_bits()
        adamw_takes_its_part(scratch)
    finally:
        dist.destroy_process_group()


def main():
    import socket
    if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 9):
        skip(f"FSDP2 of torch {torch.__version__} does not run on a CPU")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory(prefix="lade-sharded-", dir=os.getcwd()) as scratch:
        mp.spawn(rank_run, (scratch, port), N_RANKS)


if __name__ == "__main__":
    main()
