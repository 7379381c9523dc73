#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""lade.torch.saved: eager steps keep their bits, and saved bytes stay within the limit, on host and store.

Usage: saved_tensors.py LIBLADE
"""
import copy
import os
import tempfile

from fixture import GPT, adamw, batch, lade, plain, refused, torch

from torch.utils.checkpoint import checkpoint


def steps(context, n_steps=3, model=None):
    torch.manual_seed(0)
    model = model or GPT(width=64, layers=3)
    optimizer = adamw(model)
    train = plain(model, optimizer)
    held = context(model)
    torch.manual_seed(1)
    for _ in range(n_steps):
        with held:
            train(*batch())
    return lade.torch.digest(model, optimizer), held


class Nothing:
    def __enter__(self):
        return self

    def __exit__(self, *fault):
        return None


def bits_and_bound(scratch):
    wanted, _ = steps(lambda model: Nothing())
    for options in (dict(host="64MiB"), dict(store=scratch, store_bytes="16MiB"),
                    dict(host="512KiB", store=scratch, store_bytes="16MiB")):
        for live in (300 << 10, 1 << 20):
            found, held = steps(lambda model: lade.torch.saved(model, live=live, **options))
            assert found == wanted, (options, live)
            assert held.moved_bytes > 0 and held.peak_bytes <= live, (options, live, held.peak_bytes)
            assert held.live_bytes == 0 and not held.entries, "a step leaves nothing behind"
            held.close()


def parameters_stay():
    model = GPT()
    held = lade.torch.saved(model, live="1MiB", host="1MiB")
    view, detached = model.tokens.weight.view(-1), model.head.weight.detach()
    with held:
        for tensor in (model.head.weight, view, detached):
            assert held.pack(tensor) is tensor
    held.close()


def views_come_back():
    held = lade.torch.saved(GPT(), live=0, host="16MiB")
    with held:
        a = torch.randn(64, 64, requires_grad=True) * 1.0
        b = (a.t()[1:] * a[:, 1:].t()).sum() + (a[::2] * a[1::2]).sum()
    grad, = torch.autograd.grad(b, a)
    plain_grad = torch.autograd.grad((a.t()[1:] * a[:, 1:].t()).sum() + (a[::2] * a[1::2]).sum(), a)[0]
    assert torch.equal(grad, plain_grad)
    held.close()


def writes_in_place_are_found():
    for live in (0, "1MiB"):
        held = lade.torch.saved(GPT(), live=live, host="1MiB")
        a = torch.ones(4096, requires_grad=True)
        with held:
            b = a * 2
            c = b * b
        if live:
            with torch.no_grad():
                b.add_(1)
            refused(lade.Error, c.sum().backward, "in place")
        else:
            with torch.no_grad():
                b.add_(1) # the copy has the bytes that were saved
            c.sum().backward()
            assert a.grad.eq(8).all()
        held.close()


def no_room_is_an_error():
    refused(lade.DoesNotFit, lambda: steps(lambda model: lade.torch.saved(model, live=0, host="8KiB")), "no room")
    refused(lade.Error, lambda: lade.torch.saved(GPT(), live=0, store="/no/such/folder"), "/no/such/folder")


def fetches_are_ahead():
    _, held = steps(lambda model: lade.torch.saved(model, live="1MiB", host="64MiB"), n_steps=2)
    assert len(held.order) > 10 and held.n_ahead > 10, (len(held.order), held.n_ahead)
    held.close()


def checkpoints_inside():
    class Checkpointed(GPT):
        def forward(self, x, y):
            h = self.hidden(x)
            for block in self.blocks:
                h = checkpoint(block, h, use_reentrant=False)
            return torch.nn.functional.cross_entropy(self.head(self.norm(h)).flatten(0, 1), y.flatten())
    torch.manual_seed(0)
    model = Checkpointed()
    wanted, _ = steps(lambda m: Nothing(), model=copy.deepcopy(model))
    found, held = steps(lambda m: lade.torch.saved(m, live=0, host="16MiB"), model=copy.deepcopy(model))
    assert found == wanted
    held.close()


with tempfile.TemporaryDirectory(prefix="lade-saved-", dir=os.getcwd()) as folder:
    bits_and_bound(folder)
for case in (parameters_stay, views_come_back, writes_in_place_are_found, no_room_is_an_error, fetches_are_ahead,
             checkpoints_inside):
    case()
