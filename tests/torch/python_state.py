#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a step keeps in Python, and what its arguments decide: eager's bits, or a refusal that names the place.

Usage: python_state.py LIBLADE
"""
import _thread
import collections
import contextvars
import copy
import dataclasses
import enum
import functools
import itertools
import os
import sys
import threading
import time
import types

from fixture import F, SEED, lade, nn, refused, torch
from torch import set_default_dtype

TOTAL = torch.zeros(())
TEACHER = nn.Dropout(0.3)


def batches():
    return [(torch.randn(8, 16, generator=torch.Generator().manual_seed(s)),
             torch.randint(0, 5, (8,), generator=torch.Generator().manual_seed(s))) for s in range(4)]


def updated(loss, optimizer):
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach()


def same_bits(make, data=None, **options):
    """Assert that captured steps have eager's results, bits, and values in Python; return the captured step.

    @make returns (train, model, optimizer, observe), where observe() returns tensors that the step keeps.
    """
    runs = []
    for budget in (None, "100%", "min"):
        torch.manual_seed(0)
        train, model, optimizer, observe = make()
        call = train if budget is None else lade.torch.step(train, model, optimizer, budget, **options)
        torch.manual_seed(SEED)
        seen = []
        for one in data or batches():
            results = call(*one)
            seen.append([t.tolist() for t in (results, *observe())])
        runs.append((seen, lade.torch.digest(model, optimizer), torch.get_rng_state().tolist()))
        assert runs[-1] == runs[0], (make.__name__, budget, runs[-1][0], runs[0][0])
        if budget:
            peak = lade.torch.measure(call, *(data or batches())[0])["peak_bytes"]
            assert peak == call.report()["planned_peak_bytes"], (make.__name__, budget, peak)
    return call


def net():
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 5))
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2)


class Centred(nn.Module):
    """Assigns a buffer, or an attribute, anew in each step; the first step finds @first there."""

    def __init__(self, is_buffer, first):
        super().__init__()
        self.net = nn.Linear(16, 5)
        if is_buffer:
            self.register_buffer("mean", first)
        else:
            self.mean = first

    def forward(self, x):
        new = x.mean(0)
        self.mean = new if self.mean is None else 0.9 * self.mean + 0.1 * new
        return self.net(x - self.mean)


class Stateful(nn.Module):
    """Keeps the state of its LSTM, a tuple, from step to step."""

    def __init__(self):
        super().__init__()
        self.net, self.head, self.state = nn.LSTM(16, 8), nn.Linear(8, 5), None

    def forward(self, x):
        out, state = self.net(x[None], self.state)
        self.state = tuple(t.detach() for t in state)
        return self.head(out[0])


def of_model(build, observe):
    model = build()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    return lambda x, y: updated(F.cross_entropy(model(x), y), optimizer), model, optimizer, lambda: observe(model)


def tensors_in_modules_are_renewed():
    for is_buffer, first in itertools.product((True, False), (None, torch.zeros(16))):
        build = functools.partial(Centred, is_buffer, first)
        same_bits(named(f"centred {is_buffer} {first is None}", lambda: of_model(build, lambda model: [model.mean])),
                  audit=False)
    step = same_bits(named("stateful", lambda: of_model(Stateful, lambda model: model.state)))
    assert sorted(len(plans) for plans in step.ready.values()) == [1, 1] and step.report()["is_audited"]


def named(name, make):
    make.__name__ = name
    return make


def helped(stats, loss):
    stats["helped"] = stats["helped"] * 0.5 + loss


def variables():
    """A variable of the closure, a global, entries of a dict and of an object, and what a hook keeps."""
    global TOTAL
    TOTAL = torch.zeros(())
    (model, optimizer), average = net(), torch.zeros(())
    stats, owner, kept = {"helped": torch.zeros(()), "last": None}, types.SimpleNamespace(best=[torch.zeros(())]), {}
    model[0].register_forward_hook(lambda _module, _args, out: kept.update(out=out))

    def train(x, y):
        nonlocal average
        global TOTAL
        loss = updated(F.cross_entropy(model(x), y) + kept["out"].pow(2).mean() * 0.01, optimizer)
        average = 0.9 * average + loss
        TOTAL = TOTAL + loss
        stats["last"], owner.best[0] = loss, torch.maximum(owner.best[0], loss)
        helped(stats, loss)
        return loss
    return train, model, optimizer, lambda: [average, TOTAL, stats["last"], stats["helped"], owner.best[0],
                                             kept["out"]]


def metrics_are_kept_apart():
    """A tensor that a step left in Python is not written by later steps."""
    model, optimizer = net()
    stats = {"loss": torch.zeros(())}

    def train(x, y):
        stats["loss"] = updated(F.cross_entropy(model(x), y), optimizer)
    step, seen = lade.torch.step(train, model, optimizer, "100%"), []
    for one in batches():
        step(*one)
        seen.append(stats["loss"])
    assert len({t.item() for t in seen}) == 4, seen


class Shift(nn.Module):
    """Sets a number once, in its first step, as models do that learn the size of their input."""

    def __init__(self):
        super().__init__()
        self.net, self.shift, self.kind = nn.Linear(16, 5), 3, None

    def forward(self, x):
        self.shift, self.kind = 0, "labels"
        return self.net(x.roll(self.shift, 1))


def numbers_that_change_once():
    same_bits(named("once", lambda: of_model(Shift, lambda model: [torch.tensor(model.shift)])))


class Watched(nn.Module):
    """Registers a hook in its first step and says so in a flag, as transformers does for hidden states."""

    def __init__(self):
        super().__init__()
        self.net, self.n_seen = nn.Linear(16, 5), []

    def forward(self, x):
        if not hasattr(self, "is_watched"):
            self.net.register_forward_hook(lambda _module, _args, out: out * 2)
            self.is_watched = True
        return self.net(x)


def hooks_are_registered_once():
    for options in (dict(audit=False), {}):
        step = same_bits(named("hooks", lambda: of_model(Watched, lambda model: [])), **options)
        assert len(step.model.net._forward_hooks) == 1 and step.model.is_watched, step.model.net._forward_hooks


def rates_that_the_step_reads():
    """A learning rate that the step reads is a constant of its graph, so another rate gets a plan."""
    def make():
        model, optimizer = net()
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)

        def train(x, y):
            loss = updated(F.cross_entropy(model(x), y) * (1 + optimizer.param_groups[0]["lr"]), optimizer)
            scheduler.step()
            return loss
        return train, model, optimizer, lambda: []
    same_bits(make)


def arguments_that_are_parameters():
    results = []
    for is_planned in (False, True):
        torch.manual_seed(0)
        model, optimizer = net()

        def train(x, y, weight):
            return updated(F.cross_entropy(model(x), y) + weight.pow(2).sum() * 0.1, optimizer)
        call = lade.torch.step(train, model, optimizer, "min", audit=False) if is_planned else train
        torch.manual_seed(SEED)
        losses = [call(x, y, model[0].weight).item() for x, y in batches()]
        losses.append(call(*batches()[0], torch.ones(32, 16)).item())  # another tensor of its form has another graph
        results.append((losses, lade.torch.digest(model, optimizer)))
    assert results[0] == results[1], results


def answers_about_arguments():
    """A branch on a mask's values gets a plan for each answer; the answers of a batch choose."""
    def make():
        model, optimizer = net()

        def train(x, y, mask):
            if not mask.to(torch.bool).all():
                x = x.masked_fill(mask[:, None] == 0, 0.5)
            torch._check_tensor_all_with(ValueError, y >= 0, lambda: "a label is below 0")
            torch._check_tensor_all_with(ValueError, model[0].weight < 9, lambda: "a weight is large")
            return updated(F.cross_entropy(model(x), y), optimizer)
        return train, model, optimizer, lambda: []
    holes = torch.tensor([1, 1, 1, 1, 1, 0, 0, 1])
    data = [(*one, mask) for one, mask in zip(batches(), (torch.ones(8), holes, torch.ones(8), holes.flip(0)))]
    step = same_bits(make, [(x, y, mask.long()) for x, y, mask in data])
    assert sorted(len(plans) for plans in step.ready.values())[-1] == 2, step.ready
    x, y, mask = data[0]
    refused(lade.CannotCapture, lambda: step(x, y - 100, mask.long()), "ValueError", "a label is below 0")
    with torch.no_grad():
        step.model[0].weight[3, 4] = 10.0
    refused(RuntimeError, lambda: step(x, y, mask.long()), "ValueError: a weight is large")


def caches_without_tensors_are_kept():
    """A cache of the step's tensors is emptied after a capture, and one of the user's objects is not."""
    @functools.lru_cache(maxsize=None)
    def ramp(n):
        return torch.arange(n) / n

    @functools.lru_cache(maxsize=4)
    def settings():
        return types.SimpleNamespace(rate=0.1)
    own, model = settings(), nn.Linear(16, 5)
    optimizer = torch.optim.AdamW(model.parameters())
    step = lade.torch.step(lambda x, y: updated((model(x) * ramp(5)).square().mean(), optimizer), model, optimizer, "100%")
    for x, y in batches():
        step(x, y)
    assert settings() is own
    assert type(ramp(5)) is torch.Tensor


def counted(model, optimizer, places):
    def train(x, y):
        places["n"] += 1
        return updated(F.cross_entropy(model(x), y) / places["n"], optimizer)
    return train


@dataclasses.dataclass
class Result:
    loss: torch.Tensor


class Replacing(torch.optim.Optimizer):
    """Makes new tensors for its state in each step."""

    def __init__(self, params):
        super().__init__(params, dict(lr=1e-2))

    @torch.no_grad()
    def step(self):
        for p in self.param_groups[0]["params"]:
            state = self.state[p]
            state["v"] = 0.9 * state.get("v", torch.zeros_like(p)) + p.grad
            p.sub_(state["v"], alpha=1e-2)


def refusals():
    """Each is refused by name before step 0, and the step's own things are as they were."""
    model, optimizer = net()
    rng = __import__("numpy").random.default_rng(0)
    places = {"n": 0, "nested": {"losses": []}, "set": set(), "deque": collections.deque([None] * 2, maxlen=2), "x": None}
    data, sparse, scheduler = iter(batches()), torch.eye(8).to_sparse(), torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    loss_of = lambda x, y: F.cross_entropy(model(x), y)

    def fork(x, y):
        with torch.random.fork_rng():
            return updated(loss_of(x + torch.randn(16), y), optimizer)

    def of_other_dtype(x, y):
        torch.set_default_dtype(torch.float64)
        noise = torch.randn(8, 16)
        torch.set_default_dtype(torch.float32)
        return updated(loss_of(x + noise.float(), y), optimizer)

    def of_other_dtype_by_name(x, y):
        set_default_dtype(torch.float64)
        noise = torch.randn(8, 16).float()
        set_default_dtype(torch.float32)
        return updated(loss_of(x + noise, y), optimizer)

    def deterministic_in_part(x, y):
        torch.use_deterministic_algorithms(True)
        loss = loss_of(x, y)
        torch.use_deterministic_algorithms(False)
        return updated(loss, optimizer)

    def of_other_precision(x, y):
        loss = updated(loss_of(x, y), optimizer)
        torch.set_float32_matmul_precision("medium")
        return loss

    def buffer_wants_gradient(x, y):
        model.extra.requires_grad_()
        return updated(F.cross_entropy(model(x) + model.extra, y), optimizer)
    model.register_buffer("extra", torch.zeros(5))

    def leaves_a_hook(x, y):
        model[0].bias.register_hook(lambda grad: grad * 0.5)
        return updated(loss_of(x, y), optimizer)

    def data_anew(x, y):
        loss_of(x, y).backward()
        for p in model.parameters():
            p.data = p.data - 0.1 * p.grad

    def replaced(x, y):
        model[0].weight = nn.Parameter(model[0].weight.detach() * 0.5)
        return loss_of(x, y)
    cases = [
        (of_other_dtype, "default dtype"), (of_other_dtype_by_name, "default dtype"),
        (deterministic_in_part, "deterministic"), (of_other_precision, "precision"),
        (buffer_wants_gradient, "a gradient in the buffer extra"), (leaves_a_hook, "a hook of the parameter 0.bias"),
        (counted(model, optimizer, places), "places['n']"),
        (lambda x, y: places["nested"]["losses"].append(updated(loss_of(x, y), optimizer)), "len(places['nested']['losses'])"),
        (lambda x, y: places["set"].add(updated(loss_of(x, y), optimizer)), "the set places['set']"),
        (lambda x, y: places["deque"].append(updated(loss_of(x, y), optimizer)), "len(places['deque'])"),
        (lambda x, y: places.update(x=Result(loss_of(x, y))), "Result", "places['x']"),
        (lambda x, y: Result(updated(loss_of(x, y), optimizer)), "return", "Result"),
        (lambda x, y: updated(loss_of(*next(data)), optimizer), "list_iterator", "data"),
        (lambda x, y: updated(loss_of(x, y) * rng.random(), optimizer), "rng", "Generator"),
        (lambda x, y: (torch.default_generator.manual_seed(3), loss_of(x, y))[1], "manual_seed"),
        (fork, "torch.set_rng_state", "fork_rng()"), (data_anew, "0.weight", ".data.copy_()"),
        (replaced, "the parameter Linear.weight"),
        (lambda x, y: (updated(loss_of(x, y), optimizer), scheduler.step(), scheduler.get_last_lr())[0], "lr after"),
        (lambda x, y: (sparse @ model(x)).sum(), "sparse")]
    held, before = copy.deepcopy(places), lade.torch.digest(model, optimizer)
    drawn = torch.get_rng_state()
    for train, *words in cases:
        refused(lade.CannotCapture, lambda: lade.torch.step(train, model, optimizer, "100%")(*batches()[0]), *words)
        assert lade.torch.digest(model, optimizer) == before and torch.equal(torch.get_rng_state(), drawn), words
        assert places == held, (words, places)
        assert not torch.are_deterministic_algorithms_enabled() and torch.get_float32_matmul_precision() == "highest", words

    def failing(x, y):
        torch.default_generator.manual_seed(3)
        raise ValueError("a fault of it")
    refused(lade.CannotCapture, lambda: lade.torch.step(failing, model, optimizer, "100%")(*batches()[0]), "a fault of it")
    assert torch.equal(torch.get_rng_state(), drawn)
    x, y = batches()[0]
    refused(lade.CannotCapture, lambda: lade.torch.step(lambda x, y: updated(loss_of(x, y), optimizer), model, optimizer,
                                                        "100%")(x.requires_grad_(), y), "gradient in a tensor of its arg")
    own = Replacing(model.parameters())
    refused(lade.CannotCapture, lambda: lade.torch.step(lambda x, y: updated(loss_of(x, y), own), model, own, "100%")(
        x.detach(), y), "Replacing.step", "new tensors for its state")
    for other, word in ((nn.LazyLinear(5), "no shape yet"), (torch.jit.script(nn.Linear(16, 5)), "torch.jit")):
        refused(lade.CannotCapture, lambda: lade.torch.step(loss_of, nn.Sequential(other), None, "100%"), word)


def variables_are_renewed():
    same_bits(variables)


def code_is_noted_in_each_capture():
    """A second capture in a process notes what it runs, and a profiler of the user's stays; its calls are all told."""
    from lade.torch.tracing.reads import Codes

    def inner():
        return len(batches())
    told, noted = [], []
    for profiler in (None, None, lambda frame, event, _arg: told.append((frame.f_code, event))):
        sys.setprofile(profiler)
        codes = Codes()
        with codes:
            is_paused = codes.pause()
            if is_paused:
                codes.resume()
            inner()
        assert sys.getprofile() is profiler
        sys.setprofile(None)
        noted.append([code for code, own in codes.found.values() if own is globals() and code in (inner.__code__, batches.__code__)])
    wanted = [inner.__code__, batches.__code__]
    assert noted[:2] == [wanted, wanted] and noted[2] in (wanted, []), noted
    assert (inner.__code__, "call") in told
    if hasattr(sys, "monitoring"):
        assert noted[2] == wanted and not any(sys.monitoring.get_tool(tool) == "lade" for tool in range(6))


def code_of_other_threads_is_not_noted():
    """Neither that of threading nor that of the main thread; a thread that C++ starts has no caller in Python, and is autograd's."""
    from lade.torch.tracing.reads import Codes
    started, done = threading.Event(), threading.Event()

    def beats(one):
        return one + 1

    def beat():
        while not done.is_set():
            beats(1)
            started.set()
            time.sleep(0.001)

    def bare(ended):
        beats(1)
        ended.set()

    def noted(code):
        return any(one is code for one, _ in list(codes.found.values()))
    other, codes, ended = threading.Thread(target=beat, daemon=True), Codes(), threading.Event()
    with codes:
        other.start()
        started.wait()
        assert not noted(beats.__code__)
        assert beats(1) == 2 and noted(beats.__code__)
        is_told = codes.tool is not None
        _thread.start_new_thread(bare, (ended,))
        ended.wait()
        assert noted(bare.__code__) == is_told
    done.set()
    other.join()
    codes, here, done = Codes(), threading.Event(), threading.Event()

    def captured():
        with codes:
            here.set()
            done.wait()
    second = threading.Thread(target=captured, daemon=True)
    second.start()
    here.wait()
    beats(1)
    done.set()
    second.join()
    assert not noted(beats.__code__)


def equal_functions_have_their_own_globals():
    """Two modules of one source, and two functions of one code object: a change in the globals of either one is seen."""
    text = "SCALE = 1.0\ndef scale():\n    return SCALE\n"
    spaces = [{"__name__": name} for name in ("first_of_two", "second_of_two")]
    for space in spaces:
        exec(compile(text, f"/{space['__name__']}.py", "exec"), space)
    one, other = (space["scale"] for space in spaces)
    assert one.__code__ == other.__code__ and one.__code__ is not other.__code__
    for functions in ((one, other), (one, types.FunctionType(one.__code__, spaces[1]))):
        for changed in spaces:
            def scaled(functions=functions, changed=changed):
                model = nn.Linear(16, 5)
                optimizer, count = torch.optim.AdamW(model.parameters(), fused=False, foreach=False), []
                for space in spaces:
                    space["SCALE"] = 1.0

                def train(x, y):
                    return updated(F.cross_entropy(model(x), y) * functions[0]() * functions[1](), optimizer)

                def observe():
                    count.append(1)
                    changed["SCALE"] = 1.0 + len(count)
                    return []
                return train, model, optimizer, observe
            same_bits(scaled)


def flags_that_a_step_leaves():
    """Modes of modules, and which parameters are frozen: the next step and the caller find them."""
    def made(act, n_nets=1):
        def flagged():
            TEACHER.train()
            nets = [net()[0] for _ in range(n_nets)]
            model = nn.ModuleList(nets)
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

            def train(x, y):
                return act(nets, optimizer, x, y)
            return train, model, optimizer, lambda: [torch.tensor([*(m.training for m in model.modules()), *(
                p.requires_grad for p in model.parameters())])]
        return flagged

    def toggled(nets, optimizer, x, y):
        nets[0].train(not nets[0].training)
        return updated(F.cross_entropy(nets[0](x), y), optimizer)

    def left_in_eval(nets, optimizer, x, y):
        loss = updated(F.cross_entropy(nets[0](x), y), optimizer)
        nets[0].eval()
        return loss

    def frozen(nets, optimizer, x, y):
        loss = updated(F.cross_entropy(nets[0](x), y), optimizer)
        nets[0][0].requires_grad_(False)
        return loss

    def in_turns(nets, optimizer, x, y):
        nets[1].requires_grad_(True)
        nets[0].requires_grad_(False)
        updated(F.cross_entropy(nets[1](nets[0][0:1](x)[:, :16]), y), optimizer)
        nets[1].requires_grad_(False)
        nets[0].requires_grad_(True)
        return updated(F.cross_entropy(nets[1](nets[0][0:1](x)[:, :16]), y), optimizer)

    def of_another(nets, optimizer, x, y):
        TEACHER.train(not TEACHER.training)
        return updated(F.cross_entropy(nets[0](TEACHER(x)), y), optimizer)
    for act in (toggled, left_in_eval, frozen, in_turns, of_another):
        for options in ({}, {"audit": False}):
            same_bits(made(act, 2), **options)


def hooks_of_frozen_parameters_run():
    """The step lets them require a gradient itself."""
    def thawed():
        model, optimizer = net()
        model[0].requires_grad_(False)
        model[0].weight.requires_grad_()
        model[0].weight.register_hook(lambda grad: grad * 0.5)
        model[0].weight.requires_grad_(False)

        def train(x, y):
            model[0].requires_grad_(True)
            loss = updated(F.cross_entropy(model(x), y), optimizer)
            model[0].requires_grad_(False)
            return loss
        return train, model, optimizer, lambda: []
    same_bits(thawed, audit=False)


def hooks_come_and_go_between_steps():
    """Hooks of parameters and of modules that the caller registers, and removes."""
    def changing():
        model, optimizer = net()
        held, kinds = [], [lambda: model[0].weight.register_hook(lambda grad: grad * 0.5),
                           lambda: model[2].register_forward_hook(lambda _module, _args, out: out * 1.5)]

        def observe():
            for hook in held:
                hook.remove()
            held[:] = [kinds.pop()()] if kinds else []
            return []
        return lambda x, y: updated(F.cross_entropy(model(x), y), optimizer), model, optimizer, observe
    same_bits(changing, audit=False)


def hooks_of_parameters_reach_optimizers():
    """A dict from parameters to their optimizers, which a hook steps as soon as a gradient is there."""
    def backward_updates():
        model = net()[0]
        own = {p: torch.optim.AdamW([p], lr=1e-2) for p in model.parameters()}

        def hook(p):
            own[p].step()
            own[p].zero_grad()
        for p in model.parameters():
            p.register_post_accumulate_grad_hook(hook)

        def train(x, y):
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            return loss.detach()
        return train, model, list(own.values()), lambda: []
    same_bits(backward_updates)
    model, optimizer = net()
    count = [0]

    def counted(grad):
        count[0] += 1
        return grad / count[0]
    model[0].weight.register_hook(counted)
    step = lade.torch.step(lambda x, y: updated(F.cross_entropy(model(x), y), optimizer), model, optimizer, "100%", audit=False)
    refused(lade.CannotCapture, lambda: step(*batches()[0]), "count[0]")


class Phase(enum.Enum):
    A, B = range(2)


class Slotted:
    __slots__ = ("n",)
    rate = 1


CHOICE = contextvars.ContextVar("choice", default=0)


def first_layer(model):
    return model.layers[0]


def second_layer(model):
    return model.layers[1]


def swapping(act, is_between=False):
    """Return a maker for same_bits: @act(model, own) exchanges what chooses a layer, in the step or between two of them."""
    def made():
        model = nn.Module()
        model.layers, model.extra = nn.ModuleList([nn.Linear(16, 8), nn.Linear(16, 8)]), nn.Dropout(0.5)
        model.active, model.head = model.layers[0], nn.Linear(8, 5)
        own = types.SimpleNamespace(active=model.active, order=[0, 1], phase=Phase.A, choice=first_layer, table={"n": (0, 1)})
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

        def train(x, y):
            hidden = model.active(x) + 0.5 * own.active(x) + 0.25 * model.layers[own.order[0]](x) + model.layers[0](x).tanh()
            hidden = hidden * own.choice(model)(x) + model.layers[own.table["n"][0]](x) * (2 if own.phase is Phase.A else 3)
            loss = updated(F.cross_entropy(model.head(hidden if model.extra is None else model.extra(hidden)), y), optimizer)
            if not is_between:
                act(model, own)
            return loss

        def observe():
            if is_between:
                act(model, own)
            chosen = [model.active is model.layers[0], own.active is model.layers[0], *own.order, own.phase is Phase.A,
                      own.choice is first_layer, own.table["n"][0], model.extra is None]
            return [torch.tensor([float(one) for one in chosen])]
        return train, model, optimizer, observe
    return named(act.__name__, made)


def objects_that_a_step_exchanges():
    """Modules, members of enumerations, functions and lists of numbers: each choice has a plan, and the next step finds it."""
    def of_model(model, _own):
        model.active = model.layers[model.active is model.layers[0]]

    def of_list(model, _own):
        model.layers[0], model.layers[1] = model.layers[1], model.layers[0]

    def to_none(model, _own):
        model.extra = None

    def of_object(model, own):
        own.active = model.layers[own.active is model.layers[0]]
        own.phase = Phase.B if own.phase is Phase.A else Phase.A

    def of_numbers(_model, own):
        own.order, own.table = own.order[::-1], {"n": own.table["n"][::-1]}

    def of_functions(_model, own):
        own.choice = second_layer if own.choice is first_layer else first_layer
    for act in (of_model, of_list, to_none, of_object, of_numbers, of_functions):
        same_bits(swapping(act), audit=False)
    for act in (of_model, of_list):
        same_bits(swapping(act, is_between=True), audit=False)
    same_bits(swapping(of_model))

    def activation(model, _own):
        model.extra = nn.Tanh() if type(model.extra) is not nn.Tanh else nn.Dropout(0.3)
    same_bits(swapping(activation, is_between=True), audit=False)


def contents_that_a_step_changes():
    """Sets, arrays, slots, classes, functions and the environment: numbers that the step changes there are refused and put back."""
    model, optimizer = net()
    slotted, names, numbers, flags = Slotted(), {"a"}, __import__("numpy").zeros(2), bytearray(2)
    slotted.n, first_layer.n = 0, 1
    changes = [(lambda: setattr(slotted, "n", 1), "Slotted"), (lambda: names.add("b"), "the set names"),
               (lambda: setattr(Slotted, "rate", Slotted.rate + 1), "Slotted.rate"),
               (lambda: setattr(first_layer, "n", first_layer.n + 1), "first_layer.n"),
               (lambda: CHOICE.set(1), "the variable choice"), (lambda: os.environ.update(LADE_TEST_CHOICE="1"), "LADE_TEST_CHOICE"),
               (lambda kept=[0]: kept.__setitem__(0, kept[0] + 1), "a default of <lambda>[0]"), (lambda: numbers.fill(1), "the ndarray numbers"),
               (lambda: flags.__setitem__(0, 1), "the bytearray flags")]
    for change, word in changes:
        def train(x, y):
            change()
            return updated(F.cross_entropy(model(x), y), optimizer) + slotted.n + len(names) + flags[0] + numbers[0] * first_layer.n
        refused(lade.CannotCapture, lambda: lade.torch.step(train, model, optimizer, "100%")(*batches()[0]), word, "python_state.py")
        assert (slotted.n, names, numbers.tolist(), bytes(flags)) == (0, {"a"}, [0, 0], bytes(2)), word
        assert (Slotted.rate, first_layer.n, CHOICE.get(), os.environ.get("LADE_TEST_CHOICE")) == (1, 1, 0, None), word


def arguments_and_autograd_are_left_as_eager_leaves_them():
    """An argument that the step lets require a gradient, and the mode of autograd."""
    for options in ({"audit": False}, {}):
        runs = []
        for budget in (None, "100%", "min"):
            torch.manual_seed(0)
            model, optimizer = net()

            def train(x, y):
                with torch.enable_grad():
                    out = model(x.requires_grad_())
                    gradient = torch.autograd.grad(out.sum(), x, create_graph=True)[0]
                    optimizer.zero_grad()
                    loss = F.cross_entropy(out, y) + gradient.square().mean()
                    loss.backward(inputs=list(model.parameters()))
                    optimizer.step()
                torch.set_grad_enabled(False)
                return loss.detach()
            call = train if budget is None else lade.torch.step(train, model, optimizer, budget, **options)
            seen = []
            for x, y in batches():
                seen.append((call(x, y).item(), x.requires_grad, x.grad, torch.is_grad_enabled()))
            torch.set_grad_enabled(True)
            runs.append((seen, lade.torch.digest(model, optimizer)))
        assert runs[0] == runs[1] == runs[2], (options, runs)
        assert runs[0][0][0][1:] == (True, None, False)


def states_of_optimizers_are_not_read():
    """A capture has no moments to show: reads and writes are refused with the line, also where the step takes faults."""
    model, optimizer = net()

    def reads(x, y):
        loss = updated(F.cross_entropy(model(x), y), optimizer)
        try:
            return loss + optimizer.state[model[0].weight]["exp_avg"].norm()  # reads
        except Exception:
            return loss

    def writes(x, y):
        optimizer.state[model[0].weight]["old"] = model[0].weight.detach().clone()  # writes
        return updated(F.cross_entropy(model(x), y), optimizer)

    def counts(x, y):
        return updated(F.cross_entropy(model(x), y), optimizer) * len(optimizer.state_dict()["state"])  # counts
    for train in (reads, writes, counts):
        step = lade.torch.step(train, model, optimizer, "100%", audit=False)
        refused(lade.CannotCapture, lambda: step(*batches()[0]), "optimizer.state", "between steps", f"# {train.__name__}")
    assert not optimizer.state


def hooks_of_nodes_that_accumulate():
    """Those of a parameter's node are refused by name, also if they come between steps; a hook of several tensors runs."""
    def made(mode):
        def gathered():
            model, optimizer = net()
            total = torch.zeros(())
            norm = (lambda grads: total.add_(sum(g.norm() for g in grads))) if mode == "all" else lambda grad: total.add_(grad.norm())
            torch.autograd.graph.register_multi_grad_hook(list(model.parameters()), norm, mode=mode)
            return lambda x, y: updated(F.cross_entropy(model(x), y), optimizer), model, optimizer, lambda: [total]
        return gathered
    for mode in ("all", "any"):
        same_bits(made(mode), audit=False)
    for kind in ("register_hook", "register_prehook"):
        model, optimizer = net()
        step = lade.torch.step(lambda x, y: updated(F.cross_entropy(model(x), y), optimizer), model, optimizer, "100%", audit=False)
        step(*batches()[0])
        node = model[3].bias.expand_as(model[3].bias).grad_fn.next_functions[0][0]

        def halved(*_grads):
            model[3].bias.grad.mul_(0.5)
        hook, before = getattr(node, kind)(halved), lade.torch.digest(model, optimizer)
        refused(lade.CannotCapture, lambda: step(*batches()[1]), "AccumulateGrad", "3.bias", "in halved()")
        assert lade.torch.digest(model, optimizer) == before
        hook.remove()
        step(*batches()[1])


def views_of_parameters_are_returned():
    """Also by a plan whose parameters live on the host between steps: those stay, and hold their bytes."""
    def viewed():
        model, optimizer = net()
        kept = {"weight": None}

        def train(x, y):
            loss = updated(F.cross_entropy(model(x), y), optimizer)
            kept["weight"] = model[0].weight.detach()
            return torch.stack([loss, model[0].weight.detach()[1, 1]]), model[0].weight.detach().T
        return train, model, optimizer, kept
    for budget, host in (("100%", None), ("min", "64MiB")):
        wanted, found = [], []
        for is_captured, seen in ((False, wanted), (True, found)):
            torch.manual_seed(0)
            train, model, optimizer, kept = viewed()
            step = lade.torch.step(train, model, optimizer, budget, host=host, audit=False) if is_captured else train
            torch.manual_seed(SEED)
            seen += [[(t.tolist(), t.requires_grad) for t in step(*one)] for one in batches()]
            seen.append((kept["weight"].tolist(), kept["weight"].requires_grad, kept["weight"] is model[0].weight))
        assert found == wanted, (budget, found, wanted)


for case in (code_is_noted_in_each_capture, code_of_other_threads_is_not_noted, equal_functions_have_their_own_globals, tensors_in_modules_are_renewed, variables_are_renewed, metrics_are_kept_apart, numbers_that_change_once,
             hooks_are_registered_once, rates_that_the_step_reads, arguments_that_are_parameters, answers_about_arguments,
             caches_without_tensors_are_kept, flags_that_a_step_leaves, hooks_of_frozen_parameters_run,
             hooks_come_and_go_between_steps, hooks_of_parameters_reach_optimizers, hooks_of_nodes_that_accumulate,
             objects_that_a_step_exchanges, contents_that_a_step_changes, arguments_and_autograd_are_left_as_eager_leaves_them,
             states_of_optimizers_are_not_read,
             views_of_parameters_are_returned, refusals):
    case()
    print(case.__name__, flush=True)
