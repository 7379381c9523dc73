#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a program does with its model between steps, and what it gives to step(): eager's bits, or one line that helps.

Usage: between_steps.py LIBLADE
"""
import contextlib
import copy
import os
import pickle
import signal
import tempfile
from unittest import mock

from fixture import F, GPT, SEED, adamw, batch, lade, nn, plain, refused, torch

LIVING = dict(host="64MiB", audit=False)  # with "min": parameters and state wait on the host between steps


def pair(budget="min", make=adamw, **options):
    """Return (model, optimizer, call) of a captured step and of its eager twin."""
    found = []
    for is_planned in (True, False):
        torch.manual_seed(0)
        model = GPT(layers=1)
        optimizer = make(model)
        train = plain(model, optimizer)
        found.append((model, optimizer, lade.torch.step(train, model, optimizer, budget, **options) if is_planned else train))
    return found


def act_between(act, n_steps=3, budgets=("min",), **options):
    """Assert that captured steps have eager's bits where @act(model, optimizer) runs behind each."""
    for budget in budgets:
        runs = []
        for model, optimizer, call in pair(budget, **options):
            torch.manual_seed(SEED)
            losses = []
            for i in range(n_steps):
                losses.append(call(*batch(8)).item())
                act(model, optimizer, i)
            runs.append((losses, lade.torch.digest(model, optimizer)))
        assert runs[0] == runs[1], (act.__name__, budget, runs)


def freezes(model, _optimizer, i):
    model.head.weight.requires_grad_(i % 2 == 1)


def changes_its_dtype(model, optimizer, i):
    model.to(torch.float64 if i == 0 else torch.float32)
    optimizer.load_state_dict(optimizer.state_dict())  # it has the dtypes of the parameters then


def replaces_a_parameter(model, optimizer, i):
    """As code that grows a table does: the optimizer gets the new parameter."""
    if i == 0:
        old = model.head.weight
        model.head.weight = nn.Parameter(old.detach().clone() * 0.5)
        for group in optimizer.param_groups:
            group["params"] = [model.head.weight if p is old else p for p in group["params"]]
        optimizer.state.pop(old, None)


def adds_a_group(model, optimizer, i):
    if i == 0:
        optimizer.add_param_group(dict(params=[model.norm.bias], lr=0.1))


def loads_its_state(_model, optimizer, _i):
    """The groups are other objects behind it, and a schedule writes those."""
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for group in optimizer.param_groups:
        group["lr"] *= 0.5


def without_a_bias(model):
    return torch.optim.AdamW([p for p in model.parameters() if p is not model.norm.bias], lr=1e-3)


def programs_change_their_model():
    act_between(freezes)
    act_between(changes_its_dtype)
    act_between(replaces_a_parameter)
    act_between(adds_a_group, make=without_a_bias)
    act_between(loads_its_state)
    act_between(loads_its_state, **LIVING)
    act_between(adds_a_group, make=without_a_bias, **LIVING)


def shapes_that_change_each_time():
    """Plans of many shapes have eager's bits, and take the tiers' room one at a time."""
    with tempfile.TemporaryDirectory(prefix="lade-shapes-", dir=os.getcwd()) as scratch:
        for options in (LIVING, dict(store=scratch, store_budget="64MiB", ways=("store",), audit=False)):
            runs = []
            for model, optimizer, call in pair(**options):
                torch.manual_seed(SEED)
                losses = [call(*batch(rows, columns)).item() for rows, columns in ((8, 32), (5, 16), (8, 32), (3, 9), (5, 16))]
                runs.append((losses, lade.torch.digest(model, optimizer)))
            assert runs[0] == runs[1], (options, runs)


def two_steps_share_a_model():
    """A step finds the model where another step of it has left it: on that step's tier."""
    runs = []
    for model, optimizer, call in pair(**LIVING):
        other = plain(model, optimizer)
        if isinstance(call, lade.torch.train_step.Step):
            other = lade.torch.step(other, model, optimizer, "min", **LIVING)
        torch.manual_seed(SEED)
        runs.append(([one(*batch(rows)).item() for one, rows in ((call, 8), (other, 4), (call, 8), (other, 4))],
                     lade.torch.digest(model, optimizer)))
    assert runs[0] == runs[1], runs


def steps_are_neither_nested_nor_copied():
    model, optimizer, step = pair()[0]
    outer = lade.torch.step(lambda x, y: step(x, y), model, optimizer, "min")
    refused(lade.CannotCapture, lambda: outer(*batch()), "inside of a step")
    step(*batch())
    refused(lade.Error, lambda: copy.deepcopy(step), "copy the model")
    refused(lade.Error, lambda: pickle.dumps(step), "state_dict")


def forked_processes_are_reported():
    """A child of fork() has no threads for the tiers: it says so instead of waiting for ever."""
    model, _, step = pair(**LIVING)[0]
    step(*batch())
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        with contextlib.suppress(BaseException):
            for act in (model.head.weight.sum, lambda: step(*batch())):
                try:
                    act()
                except lade.Error as fault:
                    os.write(writer, f"{fault}\n".encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as lines:
        found = lines.read().splitlines()
    os.waitpid(child, 0)
    assert len(found) == 2 and "train.sync() there" in found[0] and "make a step here" in found[1], found
    assert model.head.weight.sum().item()


def an_interrupted_audit_takes_no_step():
    """Ctrl-C in either half of the audit leaves model, optimizer and generator as before the call."""
    for in_captured in (True, False):
        model, optimizer, step = pair("100%")[0]
        step.prepare(*batch())
        before, drawn = lade.torch.digest(model, optimizer), torch.get_rng_state()
        plan, fn = step.last.planned, step.fn
        held = plan.function

        def captured(runtime, *tensors):
            os.kill(os.getpid(), signal.SIGINT)
            return held(runtime, *tensors)

        def uncaptured(x, y):
            fn(x, y)
            raise KeyboardInterrupt
        with mock.patch.object(plan, "function", captured if in_captured else held), \
                mock.patch.object(step, "fn", fn if in_captured else uncaptured):
            refused(KeyboardInterrupt, lambda: step(*batch()))
        assert lade.torch.digest(model, optimizer) == before and torch.equal(torch.get_rng_state(), drawn), in_captured
        assert step.broken is None and step(*batch()).item()
        twin = pair("100%")[1]
        torch.set_rng_state(drawn)
        twin[2](*batch())
        assert lade.torch.digest(*twin[:2]) == lade.torch.digest(model, optimizer)


def arguments_of_another_kind_are_named():
    model = GPT(layers=1)
    optimizer, loss = adamw(model), lambda x, y: model(x, y)
    step = lade.torch.step
    for budget in (None, 1.5, True, -1, "", "8 apples", "0%", "-5%", [], b"8GiB"):
        refused(ValueError, lambda budget=budget: step(loss, model, optimizer, budget), repr(budget))
    for options, word in ((dict(host=1.5), "1.5"), (dict(host="some"), "some"), (dict(store=5), "store is 5"),
                          (dict(store=".", store_budget=[]), "[]"), (dict(ways="host"), "ways is the text"),
                          (dict(ways=("disk",)), "disk")):
        refused(ValueError, lambda options=options: step(loss, model, optimizer, "8GiB", **options), word)
    refused(ValueError, lambda: step(model(*batch()), model, optimizer, "8GiB"), "fn is a Tensor")
    refused(ValueError, lambda: step(loss, model.state_dict(), optimizer, "8GiB"), "model is a OrderedDict")
    refused(ValueError, lambda: step(loss, None, optimizer, "8GiB"), "model is a NoneType")
    refused(ValueError, lambda: step(loss, model, model, "8GiB"), "optimizer is a GPT")
    refused(lade.CannotCapture, lambda: step(loss, model, adamw(GPT()), "8GiB")(*batch()), "not in the model")

    def failing(x, y):
        return F.cross_entropy(model(x, y), y)
    fault = refused(lade.CannotCapture, lambda: step(failing, model, optimizer, "8GiB")(*batch()), "between_steps.py",
                    "return F.cross_entropy(model(x, y), y)")
    assert isinstance(fault.__cause__, (IndexError, RuntimeError, ValueError)), fault.__cause__


for case in (programs_change_their_model, shapes_that_change_each_time, two_steps_share_a_model,
             steps_are_neither_nested_nor_copied, forked_processes_are_reported, an_interrupted_audit_takes_no_step,
             arguments_of_another_kind_are_named):
    case()
    print(case.__name__, flush=True)
