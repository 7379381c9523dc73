#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Objects and settings that a step's code changes or reads: refused by name and put back, or a plan for each value.

Usage: python_objects.py LIBLADE
"""
import array
import contextlib
import copy
import functools
import importlib.util
import os
import types
import weakref
from unittest import mock

from fixture import F, SCRATCH, SEED, lade, nn, refused, torch
import numpy
from torch import set_flush_denormal

from lade.torch import train_step
from lade.torch.tracing.settings import Settings


def imported(name, text):
    """Return a module of the user's with the code @text."""
    path = os.path.join(SCRATCH.name, f"{name}.py")
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


HELPER = imported("helper", "count = 0\ntotal = None\n\ndef tick():\n    global count\n    count += 1\n    return count\n\n\n"
                  "class Meter:\n    def tick(self):\n        return tick()\n\n\n"
                  "def add(loss):\n    global total\n    total = loss if total is None else total + loss\n")
training = 1.0
TICK, METER = HELPER.tick, HELPER.Meter()


class Private:
    __slots__ = ("__n", "items")

    def __init__(self):
        self.__n, self.items = 0, [0]

    def tick(self):
        self.__n += 1
        return self.__n


class Both(Private):
    """Has slots and a dict."""


class Table(dict):
    pass


class Rows(list):
    __slots__ = ("n",)


class Names(set):
    pass


def net():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 5))
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2)


def batches(n=3):
    return [(torch.randn(8, 16, generator=torch.Generator().manual_seed(s)),
             torch.randint(0, 5, (8,), generator=torch.Generator().manual_seed(s))) for s in range(n)]


def trained(model, optimizer, factor):
    """Return a step whose loss has the factor @factor()."""
    def train(x, y):
        loss = F.cross_entropy(model(x), y) * factor()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()
    return train


def refuses(model, optimizer, factor, *words):
    """Assert that a step whose factor changes in each call is refused with the user's line, and changes nothing."""
    before = lade.torch.digest(model, optimizer)
    step = lade.torch.step(trained(model, optimizer, factor), model, optimizer, "100%", audit=False)
    fault = refused(lade.CannotCapture, lambda: step(*batches(1)[0]), *words)
    assert "python_objects.py" in str(fault) and lade.torch.digest(model, optimizer) == before, str(fault)


def same_bits(make, between=lambda _i: None):
    """Assert that captured steps have eager's losses and bits; @make() returns (train, model, optimizer).

    @between(i) runs before step i.
    """
    runs = []
    for budget in (None, "100%"):
        train, model, optimizer = make()
        call = train if budget is None else lade.torch.step(train, model, optimizer, budget, audit=False)
        torch.manual_seed(SEED)
        seen = []
        for i, one in enumerate(batches()):
            between(i)
            seen.append(call(*one).tolist())
        runs.append((seen, lade.torch.digest(model, optimizer)))
    assert runs[0] == runs[1], (make.__name__, runs)


def counted(owner, key="n"):
    """Return a function that counts in an attribute and returns the count."""
    def count():
        setattr(owner, key, getattr(owner, key) + 1)
        return getattr(owner, key)
    return count


def attributes_that_a_step_counts_in():
    """Of a module, an optimizer, a scheduler, of classes like dict, list and set, and private slots."""
    model, optimizer = net()
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    private, both, table, rows, names = Private(), Both(), Table(a=1), Rows([1]), Names("a")
    optimizer.mine = scheduler.mine = table.n = rows.n = names.n = both.m = 0

    def in_slot():
        private.items[0] += 1
        return private.items[0]
    for factor, word in ((counted(HELPER, "count"), "helper.count"), (lambda: TICK(), "helper.count"),
                         (lambda: METER.tick(), "helper.count"), (counted(optimizer, "mine"), "AdamW.mine"),
                         (counted(scheduler, "mine"), "StepLR.mine"), (counted(table), "owner.n"), (counted(rows), "Rows"),
                         (counted(names), "owner.n"), (private.tick, "Private"), (in_slot, "items[0]"), (both.tick, "Both"),
                         (counted(both, "m"), "owner.m")):
        refuses(model, optimizer, factor, word)
        assert (HELPER.count, optimizer.mine, scheduler.mine, table.n, rows.n, names.n, both.m) == (0,) * 7, word
        assert private.items == [0] and private.tick() == 1 and both.tick() == 1, word
        private._Private__n = both._Private__n = 0


def modules_and_schedulers_are_read():
    """A tensor that a module of the user's keeps is renewed; a scheduler's count chooses the plan."""
    def totals():
        model, optimizer = net()
        HELPER.total = None

        def factor():
            HELPER.add(model[0].weight.detach().norm())
            return HELPER.total
        return trained(model, optimizer, factor), model, optimizer
    same_bits(totals)

    def scheduled():
        model, optimizer = net()
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
        train = trained(model, optimizer, lambda: 0.5 ** scheduler.last_epoch)

        def stepped(x, y):
            loss = train(x, y)
            scheduler.step()
            return loss
        return stepped, model, optimizer
    same_bits(scheduled)


class Within:
    """Runs the body of a module under a context."""

    def __init__(self, model, context):
        self.model, self.context = model, context

    def __call__(self, x):
        with self.context():
            return self.model(x)


def attributes_have_names_of_modules():
    """Such as training, a flag of many programs: one that changes between steps chooses the plan."""
    own = types.SimpleNamespace(training=1.0)

    def made():
        model, optimizer = net()
        return trained(model, optimizer, lambda: own.training * training), model, optimizer

    def changed(i):
        global training
        own.training, training = [(1.0, 1.0), (2.0, 1.0), (2.0, 0.5)][i]
    same_bits(made, changed)


def settings_that_kernels_read():
    """Contexts and settings that a step enters and leaves are refused, and are as before."""
    model, optimizer = net()

    @contextlib.contextmanager
    def threads():
        torch.set_num_threads(2)
        yield
        torch.set_num_threads(1)

    @contextlib.contextmanager
    def flushed():
        set_flush_denormal(True)
        yield
        set_flush_denormal(False)

    @contextlib.contextmanager
    def halves():
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
        yield
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = True
    flags = functools.partial(torch.backends.cudnn.flags, enabled=False, allow_tf32=True)
    for context, word in ((functools.partial(torch.backends.mkldnn.flags, enabled=False), "mkldnn_enabled"),
                          (flags, "cudnn_enabled"), (halves, "cublas_allow_bf16"), (threads, "number of threads"),
                          (flushed, "set_flush_denormal")):
        within, before = Within(model, context), Settings().before

        def train(x, y):
            loss = F.cross_entropy(within(x), y)
            loss.backward()
            optimizer.step()
            return loss.detach()
        fault = refused(lade.CannotCapture, lambda: lade.torch.step(train, model, optimizer, "100%")(*batches(1)[0]), word)
        assert "python_objects.py" in str(fault) and Settings().before == before, str(fault)

    def backward_within(x, y):
        loss = F.cross_entropy(model(x), y)
        with torch.backends.mkldnn.flags(enabled=False):
            loss.backward()
        optimizer.step()
        return loss.detach()
    refused(lade.CannotCapture, lambda: lade.torch.step(backward_within, model, optimizer, "100%")(*batches(1)[0]), "mkldnn_enabled")


def variables_of_the_environment_are_read():
    """Each value has a plan, also that of a variable that comes later or goes; others, and equal values, make none."""
    values = [{"LADE_TEST_A": "3"}, {"LADE_TEST_A": "3", "LADE_TEST_OTHER": "1"}, {"LADE_TEST_B": "2"}]

    def put(i):
        for key in {key for one in values for key in one}:
            os.environ.pop(key, None)
        os.environ.update(values[i])

    def asked():
        return float(os.getenv("LADE_TEST_A", "1")) * (2 if "LADE_TEST_B" in os.environ else 1)

    def whole():
        return sum(float(value) for key, value in os.environ.items() if key.startswith("LADE_TEST_"))
    for factor, n_captures in ((asked, 2), (whole, 3)):
        def made():
            model, optimizer = net()
            return trained(model, optimizer, factor), model, optimizer
        with mock.patch.object(train_step, "trace", side_effect=train_step.trace) as trace:
            same_bits(made, put)
        assert trace.call_count == n_captures, (factor.__name__, trace.call_count)
    put(2)
    os.environ.pop("LADE_TEST_B")


def contents_that_a_step_changes():
    """Large containers, arrays, views of bytes and weak dicts, and signs of zeros: refused, and as before."""
    model, optimizer = net()
    names, rows, table = set(range(20_000)), [0.0] * 20_000, dict.fromkeys(range(20_000), 0)
    numbers, flags, large = array.array("d", [0.0]), memoryview(bytearray(2)), numpy.zeros(20_000)
    objects, weak, zero = numpy.array([0, None], dtype=object), weakref.WeakKeyDictionary({model: 0}), [0.0]

    def added():
        names.add(len(names))
        return len(names)

    def set_in(container, key, value):
        container[key] = value(container[key]) if callable(value) else value
        return 1 + float(container[key])

    def next_of(number):
        return number + 1
    for factor, word in ((added, "the set names"), (lambda: set_in(rows, 5, next_of), "an entry of rows"),
                         (lambda: set_in(table, 5, next_of), "an entry of table"), (lambda: table.pop(7, 1), "len(table)"),
                         (lambda: set_in(numbers, 0, next_of), "the array numbers"),
                         (lambda: set_in(flags, 1, next_of), "the memoryview flags"),
                         (lambda: set_in(large, 9, next_of), "the ndarray large"),
                         (lambda: set_in(objects, 0, next_of), "the ndarray objects"),
                         (lambda: set_in(weak, model, next_of), "[a Sequential]"), (lambda: set_in(zero, 0, float.__neg__), "zero[0]")):
        refuses(model, optimizer, factor, word)
        assert (len(names), rows[5], table[5], table[7], numbers[0], flags[1], large[9], objects[0], weak[model]) == (20_000,) + (0,) * 8
        assert str(zero[0]) == "0.0" and list(table) == list(range(20_000)) and len(table) == 20_000, word

    def settled():
        rows[5], kept["nan"], table[5] = 0.0, float("nan"), 0
        return 1.0
    kept = {"nan": float("nan")}
    room = [bytearray(1 << 26), array.array("d", bytes(1 << 26))]  # too much to copy both in each capture

    def lasts():
        room[0][-1] += 1
        room[1][-1] += 1
        return 1.0
    refuses(model, optimizer, lasts, "room[")
    assert sorted(float(one[-1]) for one in room) == [0, 1]

    def made():
        own = net()
        return trained(*own, settled), *own
    with mock.patch.object(train_step, "trace", side_effect=train_step.trace) as trace:
        same_bits(made)
    assert trace.call_count == 1  # equal numbers, and one that is none, are no change


class Holder:
    __slots__ = ("items",)


def contents_that_change_between_steps():
    """Sets, arrays, buffers and slots are constants of a plan, so another plan is made; equal contents make none."""
    rows, banned, flags = numpy.zeros(8), {1}, bytearray(2)
    holder = Holder()
    holder.items = 0.5

    def factor():
        return float(rows[3]) + len(banned) + flags[1] + holder.items

    def made():
        own = net()
        rows[3], flags[1], holder.items = 0, 0, 0.5
        banned.intersection_update({1})
        return trained(*own, factor), *own
    changes = (lambda: rows.__setitem__(3, 1), lambda: banned.add(7), lambda: flags.__setitem__(1, 3),
               lambda: setattr(holder, "items", holder.items + 1))
    for change in changes:
        with mock.patch.object(train_step, "trace", side_effect=train_step.trace) as trace:
            same_bits(made, lambda i, change=change: change() if i == 1 else None)
        assert trace.call_count == 2
    with mock.patch.object(train_step, "trace", side_effect=train_step.trace) as trace:
        same_bits(made, lambda i: (rows.__setitem__(3, 0), banned.add(1), setattr(holder, "items", float("0.5"))))
    assert trace.call_count == 1


def large_objects_that_a_step_makes():
    """A capture does not look through all of one, so it is refused, as a tensor in it would be one of the capture."""
    model, optimizer = net()
    kept = [Holder()]

    def factor():
        kept[0] = Holder()
        kept[0].items = [[i] for i in range(30_000)]
        return 1.0
    refuses(model, optimizer, factor, "a Holder with over 20000 new objects in kept[0]")


def states_of_optimizers_have_no_operators():
    model, optimizer = net()

    def merged():
        optimizer.state |= {}
        return 1
    for factor in (lambda: len({} | optimizer.state), lambda: len(optimizer.state | {}), lambda: len([*reversed(optimizer.state)]),
                   lambda: float(optimizer.state != {}), lambda: len(copy.copy(optimizer.state)), merged):
        refuses(model, optimizer, factor, "optimizer.state")


for case in (attributes_that_a_step_counts_in, modules_and_schedulers_are_read, attributes_have_names_of_modules,
             settings_that_kernels_read,
             variables_of_the_environment_are_read, contents_that_a_step_changes, contents_that_change_between_steps, large_objects_that_a_step_makes,
             states_of_optimizers_have_no_operators):
    case()
    print(case.__name__, flush=True)
