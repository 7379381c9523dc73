#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a program does with its model between steps, and what it gives to step(): eager's bits, or one line that helps.

Usage: between_steps.py LIBLADE
"""
import collections
import contextlib
import copy
import dataclasses
import gc
import os
import pickle
import signal
import tempfile
import warnings
import weakref
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


class Space:
    """Attributes that a step reads."""

    def __init__(self, **own):
        self.__dict__.update(own)


@dataclasses.dataclass
class Batch:
    x: torch.Tensor
    y: torch.Tensor
    name: str = "a batch"


class Tempered(nn.Module):
    """A model that reads a number and a tensor of its own, neither of which is a buffer."""

    def __init__(self):
        super().__init__()
        self.body, self.drop, self.mask, self.temperature, self.steps = nn.Linear(6, 4), nn.Dropout(0.1), None, 1.0, 0

    def forward(self, x):
        return self.drop(self.body(x if self.mask is None else x * self.mask)) / self.temperature


def small(make, n_plans, n_steps=5, budgets=("100%", "min")):
    """Assert eager's bits and the planned peak of steps whose arguments, and acts before each, make(model) gives.

    make(model) returns (optimizer, train, arguments_of): arguments_of(i) acts and returns the arguments of step @i.
    """
    wanted = None
    for budget in (None, *budgets):
        torch.manual_seed(0)
        model = Tempered()
        optimizer, train, arguments_of = make(model)
        call = train if budget is None else lade.torch.step(train, model, optimizer, budget, audit=budget != "min")
        torch.manual_seed(SEED)
        found = [call(*arguments_of(i)).item() for i in range(n_steps)], lade.torch.digest(model, optimizer)
        if budget is None:
            wanted = found
            continue
        assert found == wanted, (budget, found, wanted)
        n = sum(map(len, call.ready.values()))
        assert n == n_plans, (budget, n, [place.name for place in call.places.values()])
        assert lade.torch.measure(call, *arguments_of(n_steps))["peak_bytes"] == call.report()["planned_peak_bytes"]


def data(i):
    generator = torch.Generator().manual_seed(i)
    return torch.randn(8, 6, generator=generator), torch.randint(0, 4, (8,), generator=generator)


def trained(model, loss_of):
    """Return (optimizer, train) of a step that minimizes loss_of(...)."""
    optimizer = adamw(model)

    def train(*args):
        loss = loss_of(*args)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()
    return optimizer, train


def changing(act, n_plans, loss_of=None, config=None):
    """Assert eager's bits where @act(model, config, i) runs before step i."""
    def make(model):
        space = Space(beta=1.0, weights={"w": torch.ones(6)}, parts=[1.0], unread=0) if config is None else config()
        optimizer, train = trained(model, (lambda x, y: loss_of(model, space, x, y)) if loss_of else
                                   lambda x, y: F.cross_entropy(model(x), y))

        def arguments_of(i):
            act(model, space, i)
            return data(i)
        return optimizer, train, arguments_of
    small(make, n_plans)


def what_a_step_reads_changes_between_steps():
    """Numbers and tensors in attributes, closures, dicts and lists are those of each call; unread ones make no plan."""
    changing(lambda model, _space, i: setattr(model, "temperature", 1.0 + i // 2), 2)
    changing(lambda model, _space, i: setattr(model.drop, "p", 0.1 * (i // 3)), 1)
    changing(lambda model, _space, i: setattr(model, "mask", torch.full((6,), 1.0 + i)), 1)
    changing(lambda model, _space, i: setattr(model, "mask", torch.ones(6) * i if i else None), 1)
    changing(lambda model, _space, i: setattr(model, "steps", i), 1)

    def weighted(model, space, x, y):
        return F.cross_entropy(model(x * space.weights["w"]), y) * space.beta * sum(space.parts) * len(space.parts)
    changing(lambda _model, space, i: space.weights.update(w=torch.full((6,), 2.0 + i)), 1, weighted)
    changing(lambda _model, space, i: setattr(space, "weights", {"w": torch.full((6,), 2.0 + i)}), 1, weighted)
    changing(lambda _model, space, i: setattr(space, "beta", 1.0 + i % 2), 2, weighted)
    changing(lambda _model, space, i: space.parts.append(0.5) if i == 2 else None, 1, weighted)
    changing(lambda _model, space, i: setattr(space, "unread", i), 1, weighted)

    def scaled(model, space, x, y):
        return F.cross_entropy(model(x), y) * getattr(space, "scale", 1.0)
    changing(lambda _model, space, i: setattr(space, "scale", 3.0) if i == 3 else None, 1, scaled)

    def own_batch(model):
        trainer = Space()
        optimizer, train = trained(model, lambda: F.cross_entropy(model(trainer.batch["x"]), trainer.batch["y"]))

        def arguments_of(i):
            trainer.batch = dict(zip("xy", data(i)))
            return ()
        return optimizer, train, arguments_of
    small(own_batch, 1)


def names_that_a_step_does_not_load_make_no_plan():
    """A global loop variable, and a trainer's counter, that are called step beside optimizer.step()."""
    space = {"F": F, "step": 0}
    exec(compile(LOOP, "<stdin>", "exec"), space)  # a cell of a notebook

    def make(model):
        trainer, optimizer = Space(step=0, scale=1.0), adamw(model)
        train = space["made"](model, optimizer, trainer)

        def arguments_of(i):
            space["step"] = trainer.step = i
            space["beta"] = 1.0 + i // 3
            return data(i)
        return optimizer, train, arguments_of
    small(make, 1)


LOOP = """
beta = 1.0


def made(model, optimizer, trainer):
    def train(x, y):
        loss = F.cross_entropy(model(x), y) * beta * trainer.scale
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()
    return train
"""


def keys_that_replace_others_are_seen():
    def read(model, space, x, y):
        return F.cross_entropy(model(x), y) * space.options.get("scale", 1.0) * getattr(space, "scale", 1.0)

    def swaps(_model, space, i):
        space.options.clear()
        space.options.update({"warm": None} if i < 2 else {"scale": 3.0})
        if i == 3:
            del space.warm
            space.scale = 2.0
    changing(swaps, 1, read, lambda: Space(options={"warm": None}, warm=None))


def classes_and_functions_have_attributes():
    """An attribute of a class, a base class, a function, and the closure of a decorated method."""
    class Config:
        beta = 1.0

    class Head(Config):
        pass

    def scaled(own):
        return lambda act: lambda self, x: act(self, x) * own.kappa

    def read(model, space, x, y):
        return F.cross_entropy(model(x), y) * space.read()
    for get, kind, key in ((lambda: Config.beta, Config, "beta"), (lambda: head.beta, Config, "beta"),
                           (lambda: scaled.rate, scaled, "rate"), (lambda: head.go(1.0), OWN, "kappa")):
        head, scaled.rate, OWN.kappa, Config.beta = Head(), 1.0, 1.0, 1.0
        Head.go = scaled(OWN)(lambda _self, x: x)
        changing(lambda _model, _space, i, kind=kind, key=key: setattr(kind, key, 1.0 + i // 3), 1, read,
                 lambda get=get: Space(read=get))


OWN = Space()


def containers_of_past_steps_are_freed():
    """A step keeps at most one batch that its trainer held, of dicts and of objects with slots."""
    class Slots:
        __slots__ = ("x", "y")

        def __getitem__(self, key):
            return getattr(self, key)
    for is_dict in (True, False):
        model, trainer, alive = Tempered(), Space(batch=None), []
        optimizer, train = trained(model, lambda: F.cross_entropy(model(trainer.batch["x"]), trainer.batch["y"]))
        call = lade.torch.step(train, model, optimizer, "100%", audit=False)
        with mock.patch.object(lade.torch.train_step, "FORMS_MAX", 2), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for i in range(6):
                x, y = data(i)
                trainer.batch = {"x": x, "y": y} if is_dict else Slots()
                if not is_dict:
                    trainer.batch.x, trainer.batch.y = x, y
                alive.append(weakref.ref(x))
                del x, y
                call()
        trainer.batch = None
        gc.collect()
        assert sum(ref() is not None for ref in alive) <= (1 if is_dict else 2), (is_dict, alive)


def lists_that_grow_are_told():
    def of_places(model):
        history = [torch.zeros(())]
        optimizer, train = trained(model, lambda x, y: F.cross_entropy(model(x), y) + torch.stack(history[-1:]).mean())

        def arguments_of(i):
            history.append(torch.tensor(float(i)))
            return data(i)
        return optimizer, train, arguments_of

    def of_arguments(model):
        own = {"losses": []}
        optimizer, train = trained(model, lambda own, x, y: F.cross_entropy(model(x), y) + sum(own["losses"]))

        def arguments_of(i):
            own["losses"] = [*own["losses"], torch.ones(())]
            return own, *data(i)
        return optimizer, train, arguments_of
    for make, text in ((of_places, "reads history"), (of_arguments, "lists, dicts or objects of several forms")):
        model = Tempered()
        optimizer, train, arguments_of = make(model)
        call = lade.torch.step(train, model, optimizer, "100%", audit=False)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            for i in range(7):
                call(*arguments_of(i))
        told = [str(one.message) for one in told if "lade" in str(one.message)]
        assert len(told) == 1 and text in told[0], told


def numbers_that_change_in_each_call_are_told():
    model = Tempered()
    optimizer, train = trained(model, lambda x, y: F.cross_entropy(model(x), y))
    call = lade.torch.step(train, model, optimizer, "100%", audit=False)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for i in range(6):
            model.temperature = 1.0 + i
            call(*data(i))
    told = [str(one.message) for one in told if "lade" in str(one.message)]
    assert len(told) == 1 and "reads Tempered.temperature" in told[0], told


def objects_carry_batches():
    """A dataclass, a UserDict and an object with tensors are taken apart; one object serves many calls."""
    def loss_of(model, batch):
        return F.cross_entropy(model(batch.x), batch.y)

    def of_class(kind, is_kept):
        def make(model):
            optimizer, train = trained(model, lambda batch: loss_of(model, batch))
            kept = kind(*data(0))

            def arguments_of(i):
                if is_kept:
                    kept.x, kept.y = data(i)
                return (kept,) if is_kept else (kind(*data(i)),)
            return optimizer, train, arguments_of
        return make
    for is_kept in (False, True):
        small(of_class(Batch, is_kept), 1)
        small(of_class(lambda x, y: Space(x=x, y=y, name="a batch", inner=Space(z=[x])), is_kept), 1)

    def of_dicts(model):
        optimizer, train = trained(model, lambda batch: F.cross_entropy(model(batch["x"]), batch["y"]))
        return optimizer, train, lambda i: (collections.UserDict(zip("xy", data(i))),)
    small(of_dicts, 1)

    def of_configs(model):
        config = Space(beta=1.0)
        optimizer, train = trained(model, lambda config, x, y: F.cross_entropy(model(x), y) * config.beta)

        def arguments_of(i):
            config.beta = 1.0 + i // 3
            return (config, *data(i))
        return optimizer, train, arguments_of
    small(of_configs, 1)


def steps_change_their_arguments():
    """Tensors that a step leaves in a dict, a list or an object among its arguments are there after each step."""
    def of(state, keep, n_plans):
        def make(model):
            own = copy.deepcopy(state)

            def loss_of(own, x, y):
                before, put = keep(own)
                loss = F.cross_entropy(model(x) + before, y)
                put(loss.detach() * 0.5 + x.mean())
                return loss
            optimizer, train = trained(model, loss_of)
            return optimizer, train, lambda i: (own, *data(i))
        small(make, n_plans)
    of({"inner": {"h": torch.zeros(())}}, lambda own: (own["inner"]["h"], lambda h: own["inner"].update(h=h)), 1)
    of({}, lambda own: (own.get("h", 0.0), lambda h: own.update(h=h)), 2)
    of([torch.zeros(())], lambda own: (own[0], lambda h: own.__setitem__(0, h)), 1)
    of(Space(h=torch.zeros(())), lambda own: (own.h, lambda h: setattr(own, "h", h)), 1)

    def popped(model):
        optimizer, train = trained(model, lambda batch: F.cross_entropy(model(batch.pop("x")), batch["y"]))
        return optimizer, train, lambda i: (dict(zip("xy", data(i))),)
    small(popped, 1)
    for state, change, text in (([], lambda own, loss: own.append(loss.detach()), "len(args[0])"),
                                ({"n": 0}, lambda own, loss: own.update(n=own["n"] + 1), "args[0]['n']"),
                                ({"loss": 0.0}, lambda own, loss: own.update(loss=loss.item()), "number of .item() in args[0]['loss']")):
        model = Tempered()
        before = lade.torch.digest(model)

        def loss_of(own, x, y, model=model, change=change):
            loss = F.cross_entropy(model(x), y)
            change(own, loss)
            return loss
        optimizer, train = trained(model, loss_of)
        refused(lade.CannotCapture, lambda: lade.torch.step(train, model, optimizer, "100%")(state, *data(0)), text)
        assert lade.torch.digest(model) == before


def old_norms_share_memory_before_the_first_step():
    """torch.nn.utils.spectral_norm() leaves a weight over the memory of its parameter, which the first forward replaces."""
    for norm in (torch.nn.utils.spectral_norm, torch.nn.utils.weight_norm):
        runs = []
        for budget in (None, "100%", "min"):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", FutureWarning)  # weight_norm's, in some releases
                torch.manual_seed(0)
                model = nn.Sequential(norm(nn.Linear(64, 128)), nn.ReLU(), nn.Linear(128, 64))
            optimizer, train = trained(model, lambda x, model=model: model(x).square().mean())
            step = train if budget is None else lade.torch.step(train, model, optimizer, budget, **LIVING)
            torch.manual_seed(SEED)
            runs.append([step(torch.randn(8, 64)).item() for _ in range(3)] + [lade.torch.digest(model, optimizer)])
        assert step.last.planned.living and runs[0] == runs[1] == runs[2], (norm.__name__, runs)
        other = lade.torch.step(train, model, optimizer, "min", **LIVING)  # nothing holds the first weight's memory
        for step in (other, step, other):
            step(torch.randn(8, 64))
        assert other.last.planned.living


for case in (programs_change_their_model, what_a_step_reads_changes_between_steps,
             names_that_a_step_does_not_load_make_no_plan, keys_that_replace_others_are_seen, containers_of_past_steps_are_freed,
             classes_and_functions_have_attributes, lists_that_grow_are_told, numbers_that_change_in_each_call_are_told,
             objects_carry_batches, steps_change_their_arguments, shapes_that_change_each_time, two_steps_share_a_model,
             steps_are_neither_nested_nor_copied, forked_processes_are_reported, an_interrupted_audit_takes_no_step,
             arguments_of_another_kind_are_named, old_norms_share_memory_before_the_first_step):
    case()
    print(case.__name__, flush=True)
