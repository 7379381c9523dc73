# SPDX-License-Identifier: Apache-2.0
"""Numbers that a step reads from tensors it computes, by item(): what becomes of them, and the uses that are refused."""
import builtins
import contextlib
import copy
import decimal
import functools
import json
import logging
import math
import os
import pickle
import struct
import sys
import types
from unittest import mock

from fixture import *  # noqa: F403

IS_TOLD = sys.version_info >= (3, 11)  # calls of float(), type() and id() are
GENERATOR = torch.Generator().manual_seed(1)
X = torch.randn(4, 12, 16, generator=GENERATOR)
DATA = X, X * 3, X.flip(0), X * 0.5


class KEPT:
    kept = []


def net():
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 8))


def made(use, model):
    """Return (step, optimizer) of a loop that calls use(model, loss) between backward and update, and returns its result."""
    optimizer = adamw(model)

    def train(x):
        loss = model(x).square().mean()
        loss.backward()
        found = use(model, loss)
        optimizer.step()
        optimizer.zero_grad()
        return found
    return train, optimizer


def same(name, use, n_plans=1, data=DATA):
    """Assert eager's results, types and bits at two budgets, by @n_plans plans."""
    torch.manual_seed(0)
    model = net()
    own = copy.deepcopy(model)
    train, optimizer = made(use, own)
    torch.manual_seed(SEED)
    wanted = [repr(train(x)) for x in data], lade.torch.digest(own, optimizer)
    for budget, host, audit in (("100%", None, True), ("min", "64MiB", False)):
        own = copy.deepcopy(model)
        train, optimizer = made(use, own)
        step = lade.torch.step(train, own, optimizer, budget, host=host, audit=audit)
        torch.manual_seed(SEED)
        found = [repr(step(x)) for x in data]
        assert (found, lade.torch.digest(own, optimizer)) == wanted, (name, budget, found, wanted)
        assert sum(map(len, step.ready.values())) == n_plans, (name, step.ready)
        x = data[-1]
        assert lade.torch.measure(step, x)["peak_bytes"] == step.report()["planned_peak_bytes"], (name, budget)
    print(name, flush=True)


def norm_of(model):
    return torch.stack([p.grad.norm() for p in model.parameters()]).norm()


def numbers_are_returned():
    """Alone, calculated with in Python, and in a dict beside tensors and other numbers."""
    same("a loss", lambda m, loss: loss.item())
    class Three:
        def __index__(self):  # as NumPy's whole numbers
            return 3
    same("a report", lambda m, loss: {"loss": (round(loss.item(), 3), round(loss.item(), Three()), round(loss.item(), None)), "root": loss.item() ** 0.5 // 0.01, "n": 3,
                                      "norm": -norm_of(m).item() / loss.item(), "rows": (loss.detach() * 0 + 5).long().item(),
                                      "tensor": loss.detach(), "half": (loss.detach().bfloat16().item(), 1 - loss.item())})


def functions_are_called_after_the_step():
    """Those of math, of computed numbers and of plain ones; their results are compared by a function of their own alone."""
    same("a perplexity", lambda m, loss: (math.exp(loss.item()), math.sqrt(norm_of(m).item() + 1) * 2, math.floor(loss.item() * 100),
                                          math.pow(2, loss.item()), math.log(3.0)))
    assert math.exp.__module__ == math.floor.__module__ == "math" and not hasattr(math.exp, "__wrapped__")


def float_is_a_number():
    """float() of a tensor and of a number is returned, in a function of the step and within it; float itself stays a type."""
    def floats(model, loss):
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        count = (model[0].weight.detach() > 0.2).sum()
        return {"loss": float(loss), "half": float(norm) / 2, "each": [float(one) for one in (loss, norm)], "text": float("3.5"),
                "whole": (float(count), float(count.item()) / 3), "wide": loss.detach().float(), "is": isinstance(float(loss), float),
                "type": (type(float(3)) is float, torch.zeros(1, dtype=float), list(map(float, "12")))}
    same("floats", floats)
    assert "__lade_float__" not in floats.__code__.co_names
    code = (lambda x: isinstance(x, type) or x is float or x.type()).__code__
    replaced = lade.torch.tracing.conversions.replaced
    assert replaced(code) is code
    space = {}
    exec("def many(x):\n    return (" + ", ".join(f"a{i}" for i in range(300)) + ", float(x)) if x < 0 else float(x)", space)
    assert space["many"].__code__ != replaced(space["many"].__code__) and "__lade_float__" in replaced(space["many"].__code__).co_names
    one, other = (compile("def f(x):\n    return float(x)", file, "exec").co_consts[0] for file in ("/one.py", "/other.py"))
    assert one == other and [replaced(code).co_filename for code in (one, other)] == ["/one.py", "/other.py"]


def float_is_seen_where_functions_are():
    """Those of other modules, in wrappers of torch's, bases, defaults, containers and attributes; elsewhere .item() is named."""
    path = os.path.join(SCRATCH.name, "helpers_of_floats.py")
    with open(path, "w", encoding="utf-8") as file:
        file.write("def mean_of(loss):\n    return float(loss)\nclass Base:\n    def inherited(self, loss):\n        return float(loss)\n")
    sys.path.insert(0, SCRATCH.name)
    import helpers_of_floats as helpers

    class Meter(helpers.Base):
        def __init__(self):
            self.read = lambda loss: float(loss)

    @torch.no_grad()
    def bare(loss):
        return float(loss)

    @functools.lru_cache
    def cached(n):
        return float(n)
    meter, table = Meter(), {"read": [lambda loss: float(loss)]}

    def by_default(m, loss, read=lambda loss: float(loss)):
        return read(loss)
    same("far floats", lambda m, loss: (helpers.mean_of(loss), meter.inherited(loss), meter.read(loss), bare(loss), table["read"][0](loss),
                                        by_default(m, loss), cached(3)))
    same("a wrapped step", torch.enable_grad()(lambda m, loss: float(loss)))
    fault = refused_use(lambda m, loss: list(map(float, [loss])))
    assert "write .item()" in str(fault) and "computed_numbers.py" in fault.line, fault


def functions_named_float_are_the_users():
    """A module's own float, imported or defined there, in its globals or in the builtins of its globals."""
    text = "def scaled(loss):\n    return loss * float(0.5)\ndef named(model, loss):\n    return loss.detach() * float(0.5)\n"
    triple = {"float": lambda x: x * 3}
    for space in ({**triple}, {"__builtins__": {**vars(builtins), **triple}}):
        exec(compile(text, __file__, "exec"), space)
        same("a float of the user's", space["named"])

        def used(model, loss, space=space):
            for p in model.parameters():
                p.grad.mul_(space["scaled"](loss).item())
            return space["scaled"](torch.ones(()))
        same("a float of the user's in a helper", used)


def long_sums_are_returned():
    def summed(_model, loss):
        total = 0.0
        for i in range(600):
            total += loss.item() / (i + 1)
        return total, round(total), isinstance(round(total), int)
    same("a sum of many numbers", summed, 1, DATA[:2])


def sums_are_pythons():
    """sum() of floats carries rounding errors along since Python 3.12, which a chain of additions does not."""
    same("sums", lambda m, loss: (
        sum([loss.item() * k for k in (1e16, 1.0, -1e16, 3.0)]), sum((loss.item() * k for k in (1e16, 1.0, -1e16)), start=loss.item()),
        sum([0.1, loss.item(), 1]), sum([loss.item()], 2), sum(p.grad.norm().item() for p in m.parameters() for _ in range(9)),
        sum([1e16, 1.0, -1e16]), sum(p.grad.norm() for p in m.parameters()), loss.item() * 1e16 + 1.0 + loss.item() * -1e16))
    same("whole sums", lambda m, loss: m[0].weight.grad.mul_(sum([(m[0].weight.detach() > 0.2).sum().item(), 1])).sum())
    if sys.version_info >= (3, 12):
        for use in (lambda m, loss: loss.detach() * sum([loss.item(), 0.1, 0.2]), lambda m, loss: list(map(sum, [[loss.item(), 0.1]])),
                    lambda m, loss: getattr(builtins, "sum")([loss.item(), 0.1])):
            fault = refused_use(use)
            assert "sum()" in str(fault) and "computed_numbers.py" in fault.line, fault


class Scaled(nn.Module):
    """A model with a parameter of one element."""

    def __init__(self):
        super().__init__()
        self.body, self.scale = nn.Linear(16, 8), nn.Parameter(torch.tensor(1.0))

    def forward(self, x):
        return self.body(x) * self.scale


def numbers_are_those_of_their_time():
    """A write behind item() does not change its number."""
    def overwritten(use):
        def between(model, loss):
            value, count = loss.detach().clone(), (model[0].weight.detach() > 0.2).sum()
            numbers = value.item(), count.item()
            value.zero_()
            count.zero_()
            return use(model, *numbers), value.item()
        return between

    def compared(model, value, _n):
        if value > 0.01:
            model[0].weight.grad.mul_(0.5)
    same("returned after a write", overwritten(lambda model, value, n: (value, n, value + n)))
    same("compared after a write", overwritten(compared), 2)
    same("an operand after a write", overwritten(lambda model, value, _n: model[0].weight.grad.mul_(value).sum()))
    same("a range after a write", overwritten(lambda _model, _value, n: len(range(n))), len(sizes()), DATA[:2])
    torch.manual_seed(0)
    first, results = Scaled(), []
    for is_planned in (False, True):
        model = copy.deepcopy(first)
        optimizer = adamw(model)

        def train(x):
            model(x).square().mean().backward()
            scale = model.scale.item()
            optimizer.step()
            optimizer.zero_grad()
            return scale, model.scale.item()
        step = lade.torch.step(train, model, optimizer, "100%", audit=False) if is_planned else train
        results.append([step(x) for x in DATA] + [lade.torch.digest(model, optimizer)])
    assert results[0] == results[1], results


def numbers_decide_branches():
    def clipped(model, loss):
        norm = norm_of(model).item()
        if norm > 0.3:
            for p in model.parameters():
                p.grad.mul_(0.3 / (norm + 1e-6))
        return norm
    same("clipping by hand", clipped, 2)

    def least(model, loss):
        scale = min(1.0, 0.3 / (norm_of(model).item() + 1e-6))
        for p in model.parameters():
            p.grad *= scale
        return scale
    same("the least of two numbers", least, 2)

    def checked(model, loss):
        if not math.isfinite(loss.item()) or math.isnan(norm_of(model).item()):
            raise ArithmeticError("the loss is no number")
        many = (model[0].weight.detach() > -9).sum().item() * 0 + 16777217
        nan = loss.item() == math.nan, loss.item() < float("nan"), loss.item() != math.nan
        return loss.item() == norm_of(model).item(), bool(loss.item()), many > 16777216.0, nan
    model = net()
    train, optimizer = made(checked, model)
    step = lade.torch.step(train, model, optimizer, "100%", audit=False)
    assert step(X) == (False, True, True, (False, False, True))
    before = lade.torch.digest(model, optimizer)
    refused(ArithmeticError, lambda: step(X * float("nan")), "no number")
    assert lade.torch.digest(model, optimizer) == before and math.isfinite(1.0) and math.isfinite.__module__ == "math"


def a_failed_check_raises_what_the_user_wrote():
    """Also where its message has the text of a tensor, as those of torch.distributions have."""
    model = net()
    optimizer = adamw(model)

    def train(x):
        loss = model(x).square()
        if not torch.isfinite(loss).all():
            raise ArithmeticError(f"bad values: {loss}")
        loss.mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    train.__wrapped__ = train  # a circle of wrappers hides no refusal
    step = lade.torch.step(train, model, optimizer, "100%", audit=False)
    step(X)
    before = lade.torch.digest(model, optimizer)
    refused(ArithmeticError, lambda: step(X * float("nan")), "bad values")
    assert lade.torch.digest(model, optimizer) == before

    def told(x):
        loss = model(x).square()
        if not torch.isfinite(loss).all():
            str(loss)
            return
        loss.mean().backward()
        optimizer.step()
    told.__wrapped__ = told
    step = lade.torch.step(told, model, optimizer, "100%", audit=False)
    step(X)
    refused(lade.CannotCapture, lambda: step(X * float("nan")), "print or log it", "computed_numbers.py")


def numbers_are_operands_of_tensors():
    def scaled(model, loss):
        for p in model.parameters():
            p.grad.add_(p.detach() / loss.item() * (2 - loss.item()) - loss.item())
            p.grad.sub_(1 - (loss.item() * p.detach()).div(abs(-loss.item())))
        return loss.detach() * loss.item(), (model[0].weight.detach() > loss.item()).sum()
    same("operands", scaled)

    def named(model, loss):
        model[0].weight.grad.copy_(torch.sub(other=loss.item(), input=model[0].weight.grad))
    same("operands by name", named)

    def low(model, loss):
        half = model[0].weight.detach().bfloat16()
        model[0].weight.grad.add_((half * loss.item() / (3 + loss.item())).float())
        return half.double() * loss.item()
    same("operands of other precision", low)


def zero_divides_nothing():
    """A quotient of numbers ends the step as in Python, before anything changes."""
    for divisor in (lambda loss, n: n, lambda loss, n: n * loss.item()):
        model = net()

        def divided(model, loss, divisor=divisor):
            n = (model[0].weight.detach() > 90).sum().item()
            for p in model.parameters():
                p.grad.mul_(1.0 / divisor(loss, n))
            return loss.detach()
        train, optimizer = made(divided, model)
        before = lade.torch.digest(model)
        refused(ZeroDivisionError, lambda: lade.torch.step(train, model, optimizer, "100%")(X), "division by zero")
        assert lade.torch.digest(model) == before

    def many(model, loss):
        for p in model.parameters():
            p.grad.mul_(1.0 / (1.0 + loss.item()) / loss.item())
    with mock.patch.object(lade.torch.tracing.branches, "_ANSWERS_MAX", 2):
        same("one question for equal divisors", many)


def whole_numbers_are_sizes():
    """They are questions about computed values where they size something, and operands where they do not."""
    def sized(model, loss):
        n = (model[0].weight.detach() > 0.2).sum().item()
        return (model[0].weight.detach().flatten()[:n].sum() / n).item(), isinstance(n, int), len(range(n)), f"{n}"
    same("a size", sized, len(sizes()), DATA[:2])
    same("sizes of functions", lambda m, loss: torch.ones(2, (n := (m[0].weight.detach() > 0.2).sum().item())).sum() +
         torch.full((n,), 2).sum() + m[0].weight.new_zeros((n, 2)).sum(), len(sizes()), DATA[:2])
    same("a divisor", lambda m, loss: (loss.detach() / (m[0].weight.detach() > 0.2).sum().item()).item())


def sizes():
    """Return the different numbers of whole_numbers_are_sizes() in two eager steps."""
    torch.manual_seed(0)
    model, found = net(), []
    train, _ = made(lambda m, loss: found.append(int((m[0].weight.detach() > 0.2).sum())), model)
    torch.manual_seed(SEED)
    for x in DATA[:2]:
        train(x)
    return set(found)


def distinct_values_are_counted():
    def distinct(model, loss):
        rows = (model[0].weight.detach() * 4).round()
        values, places, counts = torch.unique(rows, return_inverse=True, return_counts=True)
        return values.sum(), values[places].sum(), counts.max(), torch.unique(rows[:0]).sum(), torch.unique(rows > 0)
    same("distinct values", distinct, 1, DATA[:2])
    for dtype in (torch.bfloat16, torch.float16):
        def low(_model, loss, dtype=dtype):
            values, places = torch.unique((torch.linspace(-30, 30, 40001).exp() * loss.detach().sign()).to(dtype), return_inverse=True)
            assert len(values) > 2048
            return len(values), values.double().sum(), values[places].double().sum()
        same(f"distinct values of {dtype}", low, 1, DATA[:2])


def numbers_have_pythons_types():
    """Their type, attributes and operators are those of a float or an int; type itself stays a class and makes classes."""
    def count(model):
        return (model[0].weight.detach() > 0.2).sum().item()

    def typed(model, loss):
        number = loss.item()
        made = type("Made", (), {"rate": 0.1})
        if type(number) is not float:  # a branch that only a capture could take
            model[0].weight.grad.mul_(0.5)
        return (type(number).__name__, type(count(model)) == int, type(float(loss)) in (float,), {float: 1}.get(type(number)),
                type(type) is type, made.__module__, made.rate, isinstance(made, type), copy.deepcopy({"a": number}),
                [hasattr(number, name) for name in ("tensor", "base", "item", "shape", "__dict__")], count(model) ** -1,
                isinstance(count(model) ** -1, float), number == "text", number is None, isinstance(3 * [0], list))
    same("types", typed)

    def caught(model, loss):
        found = []
        for use in (lambda: "text" + loss.item(), lambda: loss.item() + None):
            with contextlib.suppress(TypeError):
                found.append(use())
        return found, loss.item()
    same("operators of other types", caught)
    same("lists by a number", lambda m, loss: ([0] * count(m), isinstance("ab" * count(m), str)), len(sizes()), DATA[:2])


def what_a_class_or_a_value_decides_is_refused():
    """Where code in C would see the class or the value of the number of a capture; also if the step catches the fault."""
    def caught(use):
        def use_caught(_model, loss):
            with contextlib.suppress(Exception):
                use(loss.item())
            return loss.detach()
        return use_caught
    uses = {"hasattr": lambda n: hasattr(n, "is_integer"), "real": lambda n: n.real, "hash()": lambda n: {n: 1}, "pickle": pickle.dumps,
            "eq": lambda n: n == decimal.Decimal(0), "ne": lambda n: 0j != n, "pow": lambda n: pow(n, 3, 5), "lt": lambda n: n < 2 ** 53 + 1, "gt": lambda n: n > 10 ** 400,
            "json": lambda n: json.dumps([n], default=lambda one: type(one).__name__), "struct": lambda n: struct.pack("f", n)}
    with contextlib.suppress(ImportError):
        import numpy
        uses |= {"array": lambda n: numpy.array([n, 1.0]).dtype.name, "mean": lambda n: numpy.mean([n, 1.0]),
                 "scalar": lambda n: numpy.float32(2) * n, "compared": lambda n: numpy.float64(0.5) < n,
                 **({"type()": lambda n: type(n * numpy.float64(2))} if IS_TOLD else {})}
    for name, use in uses.items():
        fault = refused_use(caught(use))
        assert "computed_numbers.py" in fault.line, (name, fault)
        if name in ("hash()", "pickle", "eq", "ne", "pow", "lt", "gt", "json", "type()"):
            assert fault.op == name, (name, fault)
    fault = refused_use(lambda m, loss: (loss.item() > 0.1, json.dumps({"loss": loss.item()}, indent=1)))
    assert fault.op in ("value of a tensor", "json") and "computed_numbers.py" in fault.line, fault  # json's own loop in C since 3.13


class Doubled(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        result = super().__torch_function__(func, types, args, kwargs or {})
        return result * 2 if func is torch.Tensor.sum else result


class Summed(nn.Parameter):
    def sum(self):
        return super().sum() * 2


class Slow(nn.Parameter):
    rate = 0.5


class Slots:
    __slots__ = "weight",

    def __init__(self, weight):
        self.weight = weight


def compared(use, n_plans, between=lambda model, x, i: None, n_steps=2):
    """Assert eager's results and bits, without an audit. @between(model, x, i) is called before step i."""
    plain, results = net(), []
    for is_planned in (False, True):
        model = copy.deepcopy(plain)
        optimizer = adamw(model)

        def train(x, model=model, optimizer=optimizer):
            loss = model(x).square().mean()
            loss.backward()
            found = use(model, loss, x)
            optimizer.step()
            optimizer.zero_grad()
            return found
        step = lade.torch.step(train, model, optimizer, "100%", audit=False) if is_planned else train
        torch.manual_seed(SEED)
        results.append([])
        for i in range(n_steps):
            x = X.clone()
            between(model, x, i)
            results[-1].append((repr(step(x)), lade.torch.digest(model, optimizer)))
    assert results[0] == results[1], results
    assert sum(map(len, step.ready.values())) == n_plans, step.ready


def tensors_have_their_classes_and_addresses():
    """A parameter is one, with the attributes that the user set; tensors share memory where they do in an eager step."""
    def seen(model, loss, x):
        for p in model.parameters():
            if getattr(p, "is_slow", False) and isinstance(p, nn.Parameter):
                p.grad.mul_(0.5)
        w, b = model[0].weight, model[0].bias
        pair = copy.deepcopy([w, w.detach()[1:], b.detach()])
        pair[1].add_(1)
        kinds = [one.__class__.__name__ for one in (w, w.detach(), loss, pair[0], nn.Parameter(torch.ones(2)))]
        if IS_TOLD:
            assert kinds == [type(one).__name__ for one in (w, w.detach(), loss, pair[0], nn.Parameter(torch.ones(2)))]
        return (kinds, w.__class__ is nn.Parameter,
                loss.__class__ is torch.Tensor, w.data_ptr() == b.data_ptr(), w.data_ptr() == w.detach().data_ptr(),
                w.untyped_storage().data_ptr() == b.untyped_storage().data_ptr(), w.is_set_to(w.detach()), bool(w.data_ptr()),
                [one.detach().sum() for one in pair], hasattr(w, "is_fast"))
    compared(seen, 2, lambda model, x, i: setattr(model[0].weight, "is_slow", i != 1), 3)  # another value has another plan
    fakes = lade.torch.tracing.fakes
    with fakes.SHOWING:
        with fakes.SHOWING:  # the capture of another thread ends first
            pass
        assert fakes.FakeTensor.__bases__[0] is not torch.Tensor
    assert fakes.FakeTensor.__bases__ == (torch.Tensor,)
    model = net()
    train, optimizer = made(lambda model, loss: loss.detach(), model)
    for kind in (Doubled, Summed):
        fault = refused(lade.CannotCapture, lambda: lade.torch.step(train, model, optimizer, "100%")(X.as_subclass(kind)), "operators")
        assert fault.op == kind.__name__, fault


def attributes_are_those_of_the_tensors():
    """Each step sees the attributes of its time and leaves those that it sets; one that no step reads makes no plan."""
    def marked(model, x, i):
        model[0].weight.seen = model[0].bias.count = x.number = i
        x.mark = model[0].weight.nan = float("nan")
        model[0].weight.kind, x.kind = (1, 1.0, True)[i], (1, 1.0, True)[i]
        model[0].weight.main_grad = torch.full((2,), 1.0 + i)
    compared(lambda model, loss, x: (repr(model[0].weight.kind), repr(x.kind), x.mark, model[0].weight.nan, hasattr(x, "number_"),
                                     model[0].weight.main_grad.sum()), 2, marked, 3)

    def ready(model, x, i):
        if not i:
            model.register_buffer("own", torch.ones(2))
            model.own.flag = 7
            model[0].weight.register_post_accumulate_grad_hook(lambda p: setattr(p, "ready", type(p) is nn.Parameter or not IS_TOLD))
    compared(lambda model, loss, x: copy.deepcopy(model.own).flag, 2, ready, 3)

    def drop(model, x):
        del model[0].weight.slow
    for use, words in ((lambda model, x: setattr(x, "seen", 1), "sets or deletes the attribute seen"), (drop, "weight.slow in Python"),
                       (lambda model, x: model[0].weight.rate, "rate of a tensor's class Slow"), (lambda model, x: x.held, "attribute held")):
        model, x = net(), X.clone()
        model[0].weight, x.held = Slow(model[0].weight.detach()), []
        model[0].weight.slow = True
        optimizer = adamw(model)

        def train(x, model=model, use=use):
            model(x).sum().backward()
            with contextlib.suppress(Exception):
                use(model, x)
        fault = refused(lade.CannotCapture, lambda: lade.torch.step(train, model, optimizer, "100%", audit=False)(x), words)
        assert "computed_numbers.py" in fault.line and model[0].weight.slow and not hasattr(x, "seen"), fault


def tensors_of_the_model_are_found_elsewhere():
    """In variables, lists, tuples, sets, keys, ids, addresses and classes of the step; others are refused."""
    held = {}

    def hold(model, x, i):
        w = model[0].weight
        held.update(all=[p for p in model.parameters() if p.requires_grad], pair=(w, (w,)), rates={w: 0.5}, few={w}, ids={id(w)},
                    pointers={w.data_ptr()}, slots=Slots(w))

    def clipped(model, loss, x):
        norm = torch.nn.utils.clip_grad_norm_(held["all"], 0.01)
        found = []
        for p in model.parameters():
            p.grad.mul_(held["rates"].get(p, 1.0))
            found += p is held["pair"][0], p is held["pair"][1][0], p in held["few"], p.data_ptr() in held["pointers"]
            found += [id(p) in held["ids"]] if IS_TOLD else []
        held["slots"].weight.grad.mul_(0.5)
        return norm, found, any(p is held["all"][0] for p in model.parameters()), Slots.first is model[0].weight

    def hold_in_class(model, x, i):
        hold(model, x, i)
        Slots.first = model[0].weight
    compared(clipped, 1, hold_in_class)
    assert type(Slots.first) is nn.Parameter

    model, far = net(), types.ModuleType("far")
    exec("def read():\n    return WEIGHT", vars(far))
    far.WEIGHT = model[0].weight
    train, optimizer = made(lambda model, loss: sys.modules["far"].read() is model[0].weight, model)
    with mock.patch.dict(sys.modules, far=far):
        refused(lade.CannotCapture, lambda: lade.torch.step(train, model, optimizer, "100%", audit=False)(X), "WEIGHT", "its module")


def refused_use(use):
    model = net()
    train, optimizer = made(use, model)
    return refused(lade.CannotCapture, lambda: lade.torch.step(train, model, optimizer, "100%")(X))


def other_uses_are_refused():
    """By the line, and nothing has changed."""
    kept = []

    def caught(_model, loss):
        with contextlib.suppress(Exception):
            int(loss.item())
    uses = {"max=loss.item()": lambda m, loss: m[0].weight.clamp(max=loss.item()).sum(), ":.3f": lambda m, loss: f"{loss.item():.3f}",
            "math.exp": lambda m, loss: m[0].weight.detach() * math.exp(loss.item()), "** 0.5": lambda m, loss: m[0].weight.detach() * loss.item() ** 0.5,
            "torch.full": lambda m, loss: torch.full((2,), loss.item()), "kept": lambda m, loss: kept.append(loss.item()),
            "str()": lambda m, loss: str(loss.item()), "json": lambda m, loss: json.dumps({"loss": loss.item()}),
            "half": lambda m, loss: loss.detach().bfloat16() * loss.item(), "{loss.item(): 1}": lambda m, loss: {loss.item(): 1},
            "print(loss)": lambda m, loss: print(loss), "%s": lambda m, loss: logging.warning("%s", loss), "%f": lambda m, loss:
            logging.warning("%f", loss.item()), "%.4f": lambda m, loss: logging.warning("%.4f", loss), "caught": caught}
    sized = lambda m, loss: loss.new_zeros((m[0].weight.detach() > 0.2).sum().item(), 2)  # noqa: E731
    if torch.__version__.startswith("2.6."):  # its new_zeros() asks each size for a Python number, which decides a branch
        same("a size of new zeros", sized, 2)
    else:
        uses["new_zeros"] = sized
    for name, use in uses.items():
        model = net()
        before = lade.torch.digest(model)
        train, optimizer = made(use, model)
        with mock.patch.object(logging, "raiseExceptions", False):  # of a handler: it goes on without the text
            fault = refused(lade.CannotCapture, lambda: lade.torch.step(train, model, optimizer, "100%")(X))
        assert "computed_numbers.py" in fault.line, (name, fault)
        words = {"kept": "adds the number of .item() to kept; return it, and add it after", "json": "print or log it",
                 "new_zeros": "give a size as int(n)", "str()": "print or log it", "print(loss)": "print or log it",
                 "%s": "print or log it", "%f": "after the step", "%.4f": "print or log it"}.get(name, "")
        assert words in str(fault) and lade.torch.digest(model) == before and not kept, (name, fault)
    fault = refused_use(lambda m, loss: KEPT.kept.append(loss.item()))
    assert "adds the number of .item() to KEPT.kept" in str(fault) and "computed_numbers.py" in fault.line and not KEPT.kept, fault
    with mock.patch.dict(sys.modules, far=types.SimpleNamespace(kept=[])):
        fault = refused_use(lambda m, loss: sys.modules["far"].kept.append(loss.item()))
    assert "keeps the number of .item() in Python" in str(fault) and "computed_numbers.py" in fault.line, fault
    fault = refused_use(lambda m, loss: setattr(m, "last", loss.item()))
    assert "keeps the number of .item() in" in str(fault) and "assign it after the step" in str(fault), fault
    assert "computed_numbers.py" in fault.line, fault
    uses = [lambda loss, use=use: use(loss.item()) for use in (lambda number: number > 0.3, bool, lambda number: max(number, 2))]
    for use in (*uses, lambda loss: bool(loss > 0.3)):
        model = net()
        optimizer, before = adamw(model), lade.torch.digest(model)

        def train(x, model=model, optimizer=optimizer, use=use):
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            return use(loss)
        fault = refused(lade.CannotCapture, lambda: lade.torch.step(train, model, optimizer, "100%")(X), "before optimizer.step()")
        assert "computed_numbers.py" in fault.line and lade.torch.digest(model) == before, fault


if __name__ == "__main__":
    lade.torch.train_step.PLAN_SECONDS = 0.1, 0.1
    if IS_TOLD:
        numbers_have_pythons_types()
        float_is_a_number()
        functions_named_float_are_the_users()
        float_is_seen_where_functions_are()
    else:
        assert "computed_numbers.py" in refused_use(lambda m, loss: float(loss)).line
    for test in (tensors_of_the_model_are_found_elsewhere, attributes_are_those_of_the_tensors, numbers_are_returned, sums_are_pythons,
                 long_sums_are_returned, functions_are_called_after_the_step, numbers_are_those_of_their_time, numbers_decide_branches,
                 a_failed_check_raises_what_the_user_wrote, numbers_are_operands_of_tensors, zero_divides_nothing, whole_numbers_are_sizes, distinct_values_are_counted,
                 other_uses_are_refused, what_a_class_or_a_value_decides_is_refused, tensors_have_their_classes_and_addresses):
        test()
