#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Captured steps have the bits of eager ones where captures go wrong: each case is a trap that changes numbers in silence.

Each case runs three steps inside a budget that forces redos, and compares losses, parameters, buffers, state and the
generator with eager steps. Usage: traps.py LIBLADE [CASE ...]
"""
from fixture import F, GPT, adamw, batch, check, lade, nn, refused, torch

import sys

from torch.utils.checkpoint import checkpoint


def dropout_redraws():
    reports = check("dropout", GPT(layers=3, dropout=0.3), batch(), budgets=("min",))
    assert reports[0]["n_redone"] > 0
    check("dropout moved", GPT(), batch(), budgets=("min",), host="64MiB", ways=("host",))


class Checkpointed(GPT):
    is_reentrant = False

    def forward(self, x, y):
        h = self.hidden(x)
        for block in self.blocks:
            h = checkpoint(block, h, use_reentrant=self.is_reentrant)
        return F.cross_entropy(self.head(self.norm(h)).flatten(0, 1), y.flatten())


class Reentrant(Checkpointed):
    is_reentrant = True


def checkpoint_inside():
    check("checkpoint", Checkpointed(), batch(), budgets=("min",))
    check("reentrant checkpoint", Reentrant(), batch(), budgets=("min",))


def tied_weights():
    check("tied weights", GPT(is_tied=True), batch(), budgets=("min",))


class Conv(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.Conv2d(8, 8, 3),
                                 nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(8 * 12 * 12, 10))

    def forward(self, x, y):
        return F.cross_entropy(self.net(x), y)


def images():
    generator = torch.Generator().manual_seed(1)
    return torch.randn(16, 3, 16, 16, generator=generator), torch.randint(0, 10, (16,), generator=generator)


def batch_norm_writes_once():
    reports = check("BatchNorm, in place", Conv(), images(), budgets=("100%", "min"))
    assert reports[1]["n_redone"] > 0


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, grad):
        x, = ctx.saved_tensors
        return 2 * x * grad


class Custom(GPT):
    def forward(self, x, y):
        h = self.hidden(x)
        for block in self.blocks:
            h = h + Square.apply(block(h)) * 0.01
        return F.cross_entropy(self.head(self.norm(h)).flatten(0, 1), y.flatten())


def custom_function():
    check("custom function", Custom(), batch(), budgets=("min",))


def autocast(model, optimizer):
    def train(x, y):
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(x, y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()
    return train


def accumulation(model, optimizer):
    def train(x, y):
        total = 0
        for a, b in zip(x.chunk(2), y.chunk(2)):
            loss = model(a, b) / 2
            loss.backward()
            total = total + loss.detach()
        optimizer.step()
        optimizer.zero_grad()
        return total
    return train


def zero_first(model, optimizer):
    """Gradients stay between steps, as in loops that begin with zero_grad()."""
    def train(x, y):
        optimizer.zero_grad()
        loss = model(x, y)
        loss.backward()
        optimizer.step()
        return loss.detach()
    return train


def loops():
    check("autocast", GPT(), batch(), make_train=autocast, budgets=("min",))
    check("accumulation", GPT(), batch(), make_train=accumulation, budgets=("min",))
    check("zero_grad first", GPT(), batch(), make_train=zero_first, budgets=("min",))


def scaled(model, optimizer):
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 127, growth_interval=2)

    def train(x, y):
        loss = model(x, y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        return loss.detach()
    return train


def grad_scaler_skips_and_grows():
    """A loss of 4 overflows at a scale of 2^127 and of 2^126; the third step updates."""
    check("GradScaler", GPT(), batch(), make_train=scaled, budgets=("min",), n_steps=5)


def scheduled(model, optimizer):
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0 / (1 + step))
    inner = accumulation(model, optimizer)

    def train(x, y):
        loss = inner(x, y)
        scheduler.step()
        return loss
    return train


def live_values():
    check("scheduler inside", GPT(), batch(), make_train=scheduled, budgets=("min",), n_steps=4)
    for kind, fields in (("SGD", dict(lr=0.1, momentum=0.9, nesterov=True)), ("SGD", dict(lr=0.1)),
                         ("Adam", dict(lr=1e-3, amsgrad=True, weight_decay=0.1)), ("AdamW", dict(lr=1e-3, fused=True)),
                         ("AdamW", dict(lr=1e-3, foreach=True)), ("RMSprop", dict(lr=1e-3)), ("NAdam", dict(lr=1e-3))):
        check(f"{kind} {fields}", GPT(layers=1), batch(), budgets=("min",),
              make_optimizer=lambda m, kind=kind, fields=fields: getattr(torch.optim, kind)(m.parameters(), **fields))


def groups(model):
    decayed = [p for p in model.parameters() if p.dim() > 1]
    rest = [p for p in model.parameters() if p.dim() <= 1]
    return torch.optim.AdamW([dict(params=decayed, weight_decay=0.1), dict(params=rest, weight_decay=0.0, lr=2e-3)],
                             lr=1e-3)


def several_groups():
    check("groups", GPT(), batch(), make_optimizer=groups, budgets=("min",))


class Recurrent(nn.Module):
    """Keeps a second list of its parameters."""

    def __init__(self):
        super().__init__()
        self.table, self.gru, self.head = nn.Embedding(64, 16), nn.GRU(16, 16, 2, batch_first=True), nn.Linear(16, 64)

    def forward(self, x, y):
        return F.cross_entropy(self.head(self.gru(self.table(x))[0]).flatten(0, 1), y.flatten())


def parameters_in_lists():
    check("GRU", Recurrent(), batch(4, 12), budgets=("100%",))


def refusals():
    model = GPT()
    optimizer = adamw(model)
    before = lade.torch.digest(model, optimizer)

    def item(x, y):
        loss = model(x, y)
        if loss.item() > 1:
            loss = loss * 2
        loss.backward()
        return loss.detach()
    fault = refused(lade.CannotCapture, lambda: lade.torch.step(item, model, optimizer, "100%")(*batch()),
                    "_local_scalar_dense", "traps.py", "loss.item() > 1")
    assert fault.op and "traps.py" in fault.line, fault
    counts = [0]

    def counting(x, y):
        loss = model(x, y)
        loss.backward()
        counts.append(1)
        return loss.detach()
    refused(lade.CannotCapture, lambda: lade.torch.step(counting, model, optimizer, "100%")(*batch()), "len(counts)")
    step = lade.torch.step(plain_of(model, optimizer), model, optimizer, 1000)
    fault = refused(lade.DoesNotFit, lambda: step(*batch()), "smallest")
    assert fault.min_budget_bytes > 1000
    assert lade.torch.digest(model, optimizer) == before and not optimizer.state
    assert all(p.grad is None for p in model.parameters())
    compiled = torch.compile(model, backend="aot_eager")
    refused(lade.CannotCapture, lambda: lade.torch.step(plain_of(compiled, optimizer), compiled, optimizer, "100%"),
            "torch.compile")
    refused(ValueError, lambda: lade.torch.step(item, model, optimizer, "100%", ways=("magic",)), "magic")


def plain_of(model, optimizer):
    def train(x, y):
        loss = model(x, y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()
    return train


for case in (dropout_redraws, checkpoint_inside, tied_weights, batch_norm_writes_once, custom_function, loops,
             grad_scaler_skips_and_grows, live_values, several_groups, parameters_in_lists, refusals):
    if not sys.argv[2:] or case.__name__ in sys.argv[2:]:
        case()
