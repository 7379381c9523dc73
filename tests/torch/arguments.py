#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Containers and objects among a step's arguments, and what the audit restores: eager's bits and Python's state, or a refusal.

Usage: arguments.py LIBLADE
"""
import collections
import copy
import dataclasses
import signal
import time
import types
from unittest import mock

from fixture import F, SEED, lade, nn, refused, torch

import numpy

from lade.torch.running import stand_ins


def data(i):
    generator = torch.Generator().manual_seed(i)
    return torch.randn(8, 6, generator=generator), torch.randint(0, 4, (8,), generator=generator)


def trained(model, loss_of):
    """Return a step that minimizes loss_of(model, ...), and its optimizer."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    def train(*args):
        loss = loss_of(model, *args)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()
    return train, optimizer


def written(thing):
    """Return texts of all that an argument holds, in order, each container with the number of its first meeting."""
    met = {}

    def text(one):
        if isinstance(one, torch.Tensor):
            return one.tolist()
        if not isinstance(one, (dict, list, tuple, collections.deque)) and not hasattr(one, "__dict__"):
            return repr(one)
        if id(one) in met:
            return f"number {met[id(one)][0]}"
        met[id(one)] = len(met), one
        own = list(one.items()) if isinstance(one, dict) else list(one) if isinstance(one, (list, tuple, collections.deque)) \
            else list(vars(one).items())
        return [type(one).__name__] + [text(part) for part in own]
    return text(thing)


def same(loss_of, arguments_of, n_steps=5, kept=lambda model: None, audits=(True, False), state=None):
    """Assert that losses, parameters, and all that is in the arguments and in kept(model), are those of eager steps.

    arguments_of(i, own, model) returns the arguments of step @i; @own is a copy of @state.
    """
    wanted = None
    for audit in (None, *audits):
        torch.manual_seed(0)
        model, own = nn.Linear(6, 4), copy.deepcopy(state)
        train, optimizer = trained(model, loss_of)
        call = train if audit is None else lade.torch.step(train, model, optimizer, "100%", audit=audit)
        torch.manual_seed(SEED)
        found = []
        for i in range(n_steps):
            args = arguments_of(i, own, model)
            loss = call(*args)
            found.append((loss.item(), written((args, own, kept(model)))))
        found.append(lade.torch.digest(model))
        wanted = found if wanted is None else wanted
        for i, (a, b) in enumerate(zip(found, wanted)):
            assert a == b, (audit, i, a, b)


def declined(loss_of, args, *words, kind=lade.CannotCapture):
    """Assert a refusal that changes nothing."""
    model = nn.Linear(6, 4)
    train, optimizer = trained(model, loss_of)
    before = lade.torch.digest(model), written(args)
    refused(kind, lambda: lade.torch.step(train, model, optimizer, "100%")(*args), *words)
    assert (lade.torch.digest(model), written(args)) == before


def with_state(i, own, _model):
    return (own, *data(i))


def loss_at(model, x, y):
    return F.cross_entropy(model(x), y)


def audits_restore_tensors_of_places():
    """The program replaces a tensor that the step writes in place: the audited call writes it once."""
    def average(model, x, y):
        out = model(x)
        model.ema.mul_(0.9).add_(out.detach().mean(0) * 0.1)
        return F.cross_entropy(out, y)

    def history(model, x, y):
        out = model(x) + model.ema * 0.1
        model.ema.add_(out.detach().mean(0))
        return F.cross_entropy(out, y)

    def arguments_of(i, _own, model):
        if i in (0, 1, 3):
            model.ema = torch.full((4,), float(i))
        return data(i)
    same(average, arguments_of, kept=lambda model: model.ema)
    same(history, arguments_of, kept=lambda model: model.ema)


def steps_move_containers():
    """A container that the step moves, removes or replaces is the caller's own, and its entries are those of the step."""
    def popped(model, own, x, y):
        loss, inner = loss_at(model, x, y), own.pop("inner")
        inner["h"] = inner["h"] + loss.detach()
        own["again"] = {"h": inner["h"]}
        return loss
    same(popped, lambda i, _own, _model: ({"inner": {"h": torch.zeros(())}}, *data(i)))

    def kept_elsewhere(model, own, inner, x, y):
        loss = loss_at(model, x, y) + own["inner"]["h"]
        own["old"] = own["inner"]
        own["inner"]["h"] = 7 * loss.detach()
        own["inner"] = {"h": loss.detach()}
        inner["h"] = loss.detach()
        return loss
    same(kept_elsewhere, lambda i, own, _model: (own, {"h": torch.ones(())}, *data(i)), state={"inner": {"h": torch.zeros(())}})

    def shifted(model, own, x, y):
        loss = loss_at(model, x, y) + sum(own["prev"]) * 0.1
        own["prev"] = own["cur"]
        own["cur"] = [loss.detach()]
        return loss
    same(shifted, with_state, state={"prev": [torch.zeros(())], "cur": [torch.ones(())]})

    def swapped(model, own, x, y):
        loss = loss_at(model, x, y) + own.a[0] * 0.1
        own.a, own.b = own.b, own.a
        own.b[0] = loss.detach()
        return loss
    same(swapped, with_state, state=types.SimpleNamespace(a=[torch.zeros(())], b=[torch.ones(())]))

    def last(model, own, batch):
        loss = loss_at(model, batch["x"], batch["y"]) + (own["last"]["x"].mean() if "last" in own else 0.0)
        own["last"] = batch
        return loss
    same(last, lambda i, own, _model: (own, dict(zip("xy", data(i)))), state={})
    shared = {"rate": [1.0]}

    def configured(model, own, x, y):
        own["config"] = shared
        return loss_at(model, x, y) * own["config"]["rate"][0]
    same(configured, with_state, state={}, kept=lambda _model: shared)

    def reordered(model, own, x, y):
        loss = loss_at(model, x, y) + sum(k * t for k, t in enumerate(own.values()))
        first = next(iter(own))
        own.pop(first)
        own[first] = loss.detach()
        return loss
    same(reordered, with_state, state={"a": torch.ones(()), "b": torch.zeros(()), "c": torch.full((), 0.5)})

    def doubled(_model, own, loss):
        own["a"] = own["b"] = [loss]
    declined(lambda model, own, x, y: (loss_at(model, x, y), doubled(model, own, x.mean()))[0], ({}, *data(0)),
             "keeps one list in args[0]['a'] and in args[0]['b']")


def deques_are_held():
    """A deque's entries are those of the step; one that grows is refused."""
    def rolled(model, own, x, y):
        loss = loss_at(model, x, y) + sum(k * t for k, t in enumerate(own)) * 0.1
        own.append(loss.detach())
        return loss
    full = collections.deque([torch.zeros(()), torch.ones(())], 2)
    same(rolled, with_state, state=full)
    declined(rolled, (collections.deque([torch.zeros(())], 3), *data(0)), "len(args[0])")

    def shown(model, own, x, y):
        loss = loss_at(model, x, y) + own[0]
        own[0] = loss.detach()
        return loss
    same(shown, with_state, state=collections.deque([torch.zeros(())]))


def containers_are_given_twice():
    """One dict in two arguments is served unless the step changes it; a plan of two dicts does not serve one."""
    def read(model, a, b, x, y):
        return loss_at(model, x, y) + a["h"] + b["h"]
    same(read, lambda i, own, _model: (own, own, *data(i)), state={"h": torch.ones(())})

    def changed(model, a, b, x, y):
        loss = loss_at(model, x, y)
        a["h"] = loss.detach()
        return loss + b["h"]
    own = {"h": torch.ones(())}
    declined(changed, (own, own, *data(0)), "changes args[0], and args[1] is the same dict")
    declined(changed, (own, own, *data(0)), "changes args[0]")
    model = nn.Linear(6, 4)
    train, optimizer = trained(model, changed)
    call = lade.torch.step(train, model, optimizer, "100%")
    call({"h": torch.ones(())}, {"h": torch.ones(())}, *data(0))
    before = lade.torch.digest(model)
    refused(lade.CannotCapture, lambda: call(own, own, *data(0)), "is the same dict")
    assert lade.torch.digest(model) == before and own["h"].item() == 1.0


def audits_restore_containers():
    """A fault of the audited step leaves the arguments as they were, and the audit compares what the step leaves there."""
    def popping(model, batch):
        loss = loss_at(model, batch.pop("x"), batch["y"])
        batch["loss"] = loss.detach()
        return loss
    model, batch = nn.Linear(6, 4), dict(zip("xy", data(0)))
    train, optimizer = trained(model, popping)
    call = lade.torch.step(train, model, optimizer, "100%").prepare(batch)
    before = lade.torch.digest(model), written(batch)

    def interrupted(batch):
        train(batch)
        raise KeyboardInterrupt
    with mock.patch.object(call, "fn", interrupted):
        refused(KeyboardInterrupt, lambda: call(batch))
    assert (lade.torch.digest(model), written(batch)) == before
    call(batch)
    assert list(batch) == ["y", "loss"]

    def marked(model, own, x, y):
        own["mark"] = str(time.perf_counter_ns())  # a constant of the capture
        return loss_at(model, x, y)
    model = nn.Linear(6, 4)
    train, optimizer = trained(model, marked)
    refused(lade.Error, lambda: lade.torch.step(train, model, optimizer, "100%")({}, *data(0)), "argument")


class Made:
    def __new__(cls, x, y):
        self = object.__new__(cls)
        self.x, self.y = x, y
        return self


class Slotted:
    __slots__ = ("y",)


class Mixed(Slotted):
    def __init__(self, x, y):
        self.x, self.y = x, y


class Ending:
    n_ended = 0

    def __init__(self, x, y):
        self.x, self.y = x, y

    def __del__(self):
        Ending.n_ended += 1


class Table(dict):
    pass


@dataclasses.dataclass(eq=False)
class Node:
    x: torch.Tensor
    y: torch.Tensor
    kids: list
    up: object = None


class PlainNode:
    def __init__(self, x, y, kids, up=None):
        self.x, self.y, self.kids, self.up = x, y, kids, up


def objects_of_any_class():
    """Classes whose objects attributes alone do not make are served as before, or refused by name."""
    def loss_of(model, batch):
        return loss_at(model, batch.x, batch.y)
    for kind in (Made, Mixed, lambda x, y: types.SimpleNamespace(x=x, y=y)):
        same(loss_of, lambda i, _own, _model, kind=kind: (kind(*data(i)),), n_steps=3)
    kept = [Ending(*data(i)) for i in range(3)]
    same(loss_of, lambda i, _own, _model: (kept[i],), n_steps=3)
    assert Ending.n_ended == 0
    table = Table(zip("xy", data(0)))
    table.w = torch.ones(2)
    declined(lambda model, batch: loss_at(model, batch["x"], batch["y"]) * batch.w.mean(), (table,), "of type Table")
    same(lambda model, batch: loss_at(model, batch["x"], batch["y"]),
         lambda i, _own, _model: (collections.UserDict({**dict(zip("xy", data(i))), "fn": print}),))
    for kind in (Node, PlainNode):
        root = kind(*data(0), [])
        root.kids = [kind(*data(i), [], root) for i in range(12)]
        assert len(lade.torch.forms.flatten(((root,), {}))[0]) == 1
        same(loss_of, lambda i, _own, _model, root=root: (root,), n_steps=2)


class Squared(torch.autograd.Function):
    @staticmethod
    def forward(ctx, weight):
        ctx.save_for_backward(weight)
        return weight.square().sum()

    @staticmethod
    def backward(ctx, grad):
        return grad * 2 * ctx.saved_tensors[0]


class Hidden:
    __slots__ = "weight",


def parameters_in_attributes_are_the_models():
    """Those of other objects, also where __slots__ hide them. One that a capture does not see is refused; its gradient stays."""
    for space in (types.SimpleNamespace(), Hidden()):
        found = []
        for is_planned in (False, True):
            torch.manual_seed(0)
            model = nn.Linear(6, 4)
            space.weight = model.weight
            train, optimizer = trained(model, lambda model, x, y: loss_at(model, x, y) + space.weight.square().sum())
            train = lade.torch.step(train, model, optimizer, "100%", audit=False) if is_planned else train
            found.append((repr([train(*data(i)) for i in range(2)]), lade.torch.digest(model, optimizer)))
        assert found[0] == found[1], found
    train, optimizer = trained(model, lambda model, x, y: loss_at(model, x, y) + Squared.apply(space.weight))
    for grad in (None, torch.ones(4, 6)):
        model.weight.grad = grad
        refused(lade.CannotCapture, lambda: lade.torch.step(train, model, optimizer, "100%")(*data(0)),
                "reads the parameter weight from an attribute")
        assert model.weight.grad is grad and (grad is None or grad.eq(1).all())


class Gathers(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.up, self.head = nn.Embedding(50, 64), nn.Linear(64, 256), nn.Linear(256, 50)

    def forward(self, x, scale, rows):
        return self.head(self.up(self.table(x) * scale).relu())[rows]


def memory_that_cannot_be_emptied_stays_its_owners():
    """Arrays under arguments and attributes are refilled before a step, which moves them away, and read after it."""
    found = []
    for is_planned in (False, True):
        torch.manual_seed(0)
        model, draws, shared = Gathers(), numpy.random.RandomState(0), torch.zeros(16, 64, 64).share_memory_()
        x, scale, sums = numpy.zeros((16, 64), int), numpy.zeros((16, 64, 64), numpy.float32), numpy.zeros((64, 50), numpy.float32)
        model.sums, rows = torch.from_numpy(sums), numpy.arange(4096) % 16

        def loss_of(model, x, scale, shared):
            out = model(x, scale * shared, rows)  # an array of the step itself is a constant of the plan
            model.sums.add_(out.detach().sum(0))
            return F.cross_entropy(out.flatten(0, 1), x[0, 0].expand(out.shape[0] * 64)) + scale.square().mean()
        train, optimizer = trained(model, lambda *args: loss_of(*args))
        step = lade.torch.step(lambda *args: (train(*args), args[1], args[1][2:, 1]), model, optimizer, "min", host="64MiB",
                               audit=False)
        call = step if is_planned else step.fn
        tensors = torch.from_numpy(x), torch.from_numpy(scale), shared
        for i in range(3):
            x[:], scale[:] = draws.randint(0, 50, x.shape), draws.rand(*scale.shape)
            shared.fill_(i + 1)
            loss, whole, view = call(*tensors)
            place = tensors[1].data_ptr()
            assert (whole.data_ptr(), view.data_ptr()) == (place, place + 4 * (2 * 64 * 64 + 64))
            found.append((loss.item(), sums.tobytes(), scale.tobytes(), shared.sum().item(), view.sum().item()))
        found.append(lade.torch.digest(model, optimizer))
        if is_planned:
            planned = step.last.planned
            names = {planned.trace.inputs[i][1] for i, _ in planned.put_inputs}
            assert len(names) >= 3 and step.report()["moved_bytes"] > 0, names
            for constant, _ in planned.put_constants:  # which a plan moves depends on measured prices
                held, copies = constant.clone(), stand_ins.StandIns([constant]).begin()
                assert stand_ins.can_be_emptied(constant) and torch.equal(constant, held)
                copies.end()
                assert torch.equal(constant, held)
            assert lade.torch.measure(step, *tensors)["peak_bytes"] == step.report()["planned_peak_bytes"]
    for a, b in zip(found[:4], found[4:]):
        assert a == b, (a, b)


def parameters_that_processes_share_stay_shared():
    """As Hogwild shares them. Their state waits on the host between steps, they do not; nor can that begin later."""
    found, places = [], lambda model: [p.data_ptr() for p in model.parameters()]
    for is_planned in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 512), nn.Linear(512, 4)).share_memory()
        train, optimizer = trained(model, loss_at)
        call = lade.torch.step(train, model, optimizer, "min", host="64MiB", audit=False) if is_planned else train
        before = places(model)
        found.append(([call(*data(i)).item() for i in range(3)], lade.torch.digest(model, optimizer)))
        assert places(model) == before and model[0].weight.is_shared()
    assert found[0] == found[1] and call.last.planned.living, found
    model = nn.Sequential(nn.Linear(6, 512), nn.Linear(512, 4))
    train, optimizer = trained(model, loss_at)
    call = lade.torch.step(train, model, optimizer, "min", host="64MiB", audit=False)
    call(*data(0))
    before = lade.torch.digest(model.share_memory(), optimizer)
    refused(lade.Error, lambda: call(*data(1)), "0.weight", "share_memory_()", "before the first step")
    assert lade.torch.digest(model, optimizer) == before


def calls_share_memory_in_other_ways():
    """Arguments, gradients and attributes of equal forms: views of one tensor in some calls and not in others, at several offsets."""
    draws = torch.Generator().manual_seed(0)
    rows, sums = torch.randn(6, 256, 64, generator=draws), numpy.zeros(2 * 64 * 256 + 64 + 256, numpy.float32)
    both = lambda model, x, y: (model(x) - y).square().mean() + (model(y) - x).square().mean()

    def of_arguments(i, _model):
        x, y = torch.randn(2, 256, 65, generator=torch.Generator().manual_seed(i))
        x, y = x.clone(), y.clone()
        return (x[:, :-1], (x if i % 2 else y)[:, 1:])

    def of_constants(i, _model):
        return (rows if i % 2 else rows.clone())[1], rows[0].clone()

    def of_offsets(i, _model):
        return rows[i], rows[5 - i]

    def of_gradients(i, model):
        sums[:], at = 0.25, 0
        flat = torch.from_numpy(sums)
        for p in model.parameters():
            p.grad = torch.ones_like(p) if i < 1 else flat[at:at + p.numel()].view_as(p)
            at += p.numel()
        return rows[0].clone(), rows[1].clone()

    def of_attributes(i, model):
        model.scale, model.shift = (torch.ones(256, 64), torch.ones(256, 64)) if not i else (rows[i], rows[5 - i])
        return rows[0].clone(), rows[1].clone()
    for arguments_of, loss_of in ((of_arguments, both), (of_gradients, both),
                                  (of_constants, lambda model, x, y: both(model, x, rows[1]) + both(model, y, rows[2])),
                                  (of_offsets, lambda model, x, y: both(model, x, y) + x.as_strided((3,), (1,), x.storage_offset()).sum()),
                                  (of_attributes, lambda model, x, y: both(model, x * model.scale, y + model.shift))):
        found = []
        for is_planned in (False, True):
            torch.manual_seed(0)
            model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64))
            train, optimizer = trained(model, loss_of)
            call = lade.torch.step(train, model, optimizer, "min", host="64MiB", audit=False) if is_planned else train
            with mock.patch.object(lade.torch.train_step, "PLAN_SECONDS", (0.05, 0.05)):
                found.append([call(*arguments_of(i, model)).item() for i in range(3)] + [lade.torch.digest(model, optimizer), sums.tobytes()])
        assert found[0] == found[1], arguments_of.__name__
        args = arguments_of(1, model)
        assert lade.torch.measure(call, *args)["peak_bytes"] == call.report()["planned_peak_bytes"], arguments_of.__name__


def tensors_over_one_array():
    """Those that the step reads are right with a copy each. To write one is refused, because the other would not see it."""
    array = numpy.random.RandomState(0).rand(256, 128).astype(numpy.float32)
    left, right = torch.from_numpy(array[:, :64]), torch.from_numpy(array[:, 64:])

    def loss_of(model, x, y):
        return (model(x) - y).square().mean() + (model(y) * x).mean()

    def written_of(model, x, y):
        out = model(x)
        loss = (out - y).square().mean()
        y.add_(out.detach())
        return loss
    for wanted, batches in ((loss_of, ((left, right), (torch.rand(256, 64), right), (left, right))), (written_of, ((left, right),))):
        found = []
        for is_planned in (False, True):
            torch.manual_seed(0)
            model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64))
            train, optimizer = trained(model, wanted)
            call = lade.torch.step(train, model, optimizer, "min", host="64MiB", audit=False) if is_planned else train
            if wanted is written_of and is_planned:
                before = array.tobytes(), lade.torch.digest(model, optimizer)
                refused(lade.CannotCapture, lambda: call(left, right), "writes an array", "one tensor")
                assert (array.tobytes(), lade.torch.digest(model, optimizer)) == before
            else:
                found.append(([call(*batch).item() for batch in batches], lade.torch.digest(model, optimizer)))
        assert wanted is written_of or found[0] == found[1], found


def faults_of_copies_lose_nothing():
    """No memory for a copy, and Ctrl-C in each: parameters are parked as before, arrays keep their tensors, the next step is right."""
    found, clone, copy_ = [], torch.UntypedStorage.clone, torch.UntypedStorage.copy_
    for is_planned in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64))
        arrays = [numpy.full((256, 64), i + 1.0, numpy.float32) for i in range(3)]
        given = [torch.from_numpy(array) for array in arrays]

        def loss_of(model, x, y, z):
            out = model(x)
            loss = (out - y).square().mean() + (out - z).square().mean()
            y.add_(out.detach())
            z.sub_(out.detach())
            return loss
        train, optimizer = trained(model, loss_of)
        call = lade.torch.step(train, model, optimizer, "min", host="64MiB", audit=False) if is_planned else train
        losses, calls = [call(*given).item()], []
        assert not is_planned or len(call.last.planned.put_inputs) > 2 and call.parked

        def failing(storage):
            calls.append(storage)
            if len(calls) == 2:
                raise MemoryError("no memory")
            return clone(storage)

        def interrupted(storage, source):
            calls.append(storage)
            if len(calls) == 2:
                signal.raise_signal(signal.SIGINT)
            return copy_(storage, source)
        if is_planned:
            with mock.patch.object(torch.UntypedStorage, "clone", failing):
                refused(MemoryError, lambda: call(*given), "no memory")
            assert call.parked and call.broken is None
            calls.clear()
            with mock.patch.object(torch.UntypedStorage, "copy_", interrupted):
                refused(KeyboardInterrupt, lambda: call(*given))  # the step has ended
            assert len(calls) >= 2
        else:
            call(*given)
        assert [t.data_ptr() for t in given] == [a.ctypes.data for a in arrays]
        losses += [call(*given).item()]
        found.append((losses, [a.tobytes() for a in arrays], lade.torch.digest(model, optimizer)))
    assert found[0] == found[1], [one[0] for one in found]


def parts_of_a_step_share_memory_with_constants():
    """A part that answers a question about computed values moves the memory that the batch has with a constant once."""
    found = []
    for is_planned in (False, True):
        torch.manual_seed(0)
        kept = torch.randn(512, 64)
        model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64))

        def loss_of(model, x):
            of_both = (model(kept) * kept).mean() + (x * x).mean()
            out = model(x).relu() + of_both + (kept * kept).mean()
            return out[out.sum(1) > out.sum(1).mean()].square().mean() + of_both + (x * x).mean() + (kept * kept).mean()
        train, optimizer = trained(model, loss_of)
        call = lade.torch.step(train, model, optimizer, "min", host="64MiB", audit=False) if is_planned else train
        batches = kept[:256], torch.randn(256, 64), kept[256:]
        with mock.patch.object(lade.torch.train_step, "PLAN_SECONDS", (0.05, 0.05)):
            found.append([call(x).item() for x in batches] + [lade.torch.digest(model, optimizer), kept.sum().item()])
    assert found[0] == found[1], found


for case in (audits_restore_tensors_of_places, memory_that_cannot_be_emptied_stays_its_owners,
             parameters_that_processes_share_stay_shared, calls_share_memory_in_other_ways,
             parts_of_a_step_share_memory_with_constants, tensors_over_one_array, faults_of_copies_lose_nothing,
             steps_move_containers,
             deques_are_held, containers_are_given_twice, audits_restore_containers, objects_of_any_class,
             parameters_in_attributes_are_the_models):
    case()
    print(case.__name__, flush=True)
