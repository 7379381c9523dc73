#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""lade.torch.AdamW: bits do not depend on the place of the state, state round trips, torch holds none of it.

The cases of bench/torch/cuda_check.py run last, on the CPU where there is no CUDA device.
Usage: optimizer.py LIBLADE
"""
import copy
import itertools
import json
import os
import subprocess
import sys
import tempfile

from fixture import GPT, ROOT, batch, lade, plain, refused, torch

from lade.torch import AdamW
from lade.torch.pricing.meter import events_of

STEPS = 4
lade.torch.adamw._PIECE_ELEMENTS = dict.fromkeys(("fp32", "bf16", "8bit"), 512)  # of parameters that have a few thousand
lade.torch.adamw._SMALL_BYTES = 8192  # biases and norms stay in memory


def run(make, n_steps=STEPS, dtype=torch.float32, budget=None, model=None):
    torch.manual_seed(0)
    model = model or GPT(dropout=0.0).to(dtype)
    optimizer = make(model.parameters())
    train = plain(model, optimizer)
    if budget:
        train = lade.torch.step(train, model, optimizer, budget)
    losses = [train(*batch()).item() for _ in range(n_steps)]
    return losses, model, optimizer


def places_have_equal_bits(scratch):
    for state, dtype in itertools.product(("fp32", "bf16", "8bit"), (torch.float32, torch.bfloat16)):
        digests = set()
        for where, budget in (("host", None), (f"store:{scratch}", None), ("host", "min"), (f"store:{scratch}", "min")):
            _, model, optimizer = run(lambda p, state=state, where=where: AdamW(p, lr=1e-2, state=state, where=where),
                                      dtype=dtype, budget=budget)
            digests.add(lade.torch.digest(model, optimizer))
        assert len(digests) == 1, (state, dtype, digests)


def it_is_close_to_torch():
    wanted, model, _ = run(lambda p: torch.optim.AdamW(p, lr=1e-2))
    for state, limit in (("fp32", 2e-3), ("bf16", 5e-3), ("8bit", 5e-2)):
        losses, own, _ = run(lambda p, state=state: AdamW(p, lr=1e-2, state=state))
        worst = max((a - b).abs().max().item() for a, b in zip(own.parameters(), model.parameters()))
        assert worst < limit and abs(losses[-1] - wanted[-1]) < limit, (state, worst, losses, wanted)


def state_round_trips(scratch):
    path = os.path.join(scratch, "state.pt")
    for state, where in (("fp32", "host"), ("8bit", f"store:{scratch}"), ("bf16", "host")):
        make = lambda p, state=state, where=where: AdamW(p, lr=1e-2, state=state, where=where)
        _, model, optimizer = run(make)
        _, half, other = run(make, STEPS // 2)
        torch.save(other.state_dict(), path)
        again = copy.deepcopy(half)
        resumed = make(again.parameters())
        resumed.load_state_dict(torch.load(path, weights_only=True))
        train = plain(again, resumed)
        for _ in range(STEPS - STEPS // 2):
            train(*batch())
        assert lade.torch.digest(again, resumed) == lade.torch.digest(model, optimizer), (state, where)
        moments = other.state_dict()["state"][0]
        assert moments["exp_avg"].shape == half.tokens.weight.shape and moments["step"] == STEPS // 2
    wrong = AdamW(again.parameters(), state="8bit")
    refused(lade.Error, lambda: wrong.load_state_dict(other.state_dict()), "another form")


def torch_holds_no_state():
    _, model, optimizer = run(lambda p: AdamW(p, lr=1e-2))
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    with events_of(torch.device("cpu")) as events:
        optimizer.step()
    assert events.peak() == (0, 0), events.peak()
    version = model.head.weight._version
    optimizer.step()
    assert model.head.weight._version > version, "autograd must see the write"


def schedulers_and_groups():
    _, model, _ = run(lambda p: AdamW(p, lr=1e-2))
    optimizer = AdamW([dict(params=[model.head.weight], lr=0.5), dict(params=[model.norm.weight])], lr=0.0)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5 ** step)
    before = model.norm.weight.clone()
    model.head.weight.grad, model.norm.weight.grad = torch.ones_like(model.head.weight), torch.ones_like(before)
    old = model.head.weight.clone()
    optimizer.step()
    scheduler.step()
    assert torch.equal(model.norm.weight, before) and not torch.equal(model.head.weight, old)
    assert optimizer.param_groups[0]["lr"] == 0.25


def errors_have_names(scratch):
    weight = torch.nn.Parameter(torch.ones(4))
    refused(ValueError, lambda: AdamW([weight], state="4bit"), "4bit")
    refused(ValueError, lambda: AdamW([weight], where="moon"), "moon")
    half = torch.nn.Parameter(torch.ones(4, dtype=torch.float16))
    half.grad = torch.ones_like(half)
    refused(lade.Error, AdamW([half]).step, "float16")
    weight.grad = torch.ones(4)
    refused(lade.Error, AdamW([weight], where=f"store:{scratch}/none").step, "none")


def pieces_and_failures(scratch):
    """Many pieces of one parameter stream through the ring with the same bits; damage in one of them is an error."""
    _, model, optimizer = run(lambda p: AdamW(p, lr=1e-2))
    _, cut, pieces = run(lambda p: AdamW(p, lr=1e-2, where=f"store:{scratch}"))
    moments = pieces.state[cut.blocks[0].up.weight]["lade"]
    assert len(moments.pieces) > 1 and lade.torch.digest(cut, pieces) == lade.torch.digest(model, optimizer)
    pieces.shared.store.drop(moments.pieces[1].name)
    for p in cut.parameters():
        p.grad = torch.ones_like(p)
    refused(lade.Error, pieces.step, moments.pieces[1].name.decode())
    wanted = [piece.name for p in cut.parameters() for piece in pieces.state[p]["lade"].pieces]
    assert len(set(wanted)) == len(wanted) > 20


def devices_are_checked():
    device = [] if torch.cuda.is_available() else ["--device", "cpu"]
    done = subprocess.run([sys.executable, os.path.join(ROOT, "bench", "torch", "cuda_check.py"), *device, "--small",
                           "--seconds", "300", "audit", "adamw", "saved", "limit"], stdout=subprocess.PIPE, text=True)
    print(done.stdout)
    lines = {line["case"]: line for line in map(json.loads, filter(lambda t: t.startswith("{"), done.stdout.splitlines()))
             if "case" in line}
    assert done.returncode == 0, done.returncode
    assert len(lines) == 6 and not any("error" in line or "skipped" in line for line in lines.values()), lines
    planned = [line for line in lines.values() if "planned" in line]
    assert len(planned) == 3 and all(line["planned"] == line["measured"] and line["is_same"] for line in planned), planned
    assert lines["adamw fp32"]["from_torch"] < 1e-4 and lines["adamw fp32"]["is_same_on_store"], lines["adamw fp32"]
    assert lines["saved store"]["moved"] > lines["saved store"]["limit"] and lines["saved store"]["is_bounded"]


with tempfile.TemporaryDirectory(prefix="lade-optimizer-", dir=os.getcwd()) as folder:
    places_have_equal_bits(folder)
    it_is_close_to_torch()
    state_round_trips(folder)
    torch_holds_no_state()
    schedulers_and_groups()
    errors_have_names(folder)
    pieces_and_failures(folder)
devices_are_checked()
