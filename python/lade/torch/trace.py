# SPDX-License-Identifier: Apache-2.0
"""Capture of a whole step: forward, backward, clipping and optimizer as one graph of ATen ops.

The parameters, buffers, optimizer state, gradients and the batch are replaced by fake tensors, the user's function runs
once under make_fx, and everything is put back. Nothing is computed and nothing is allocated.
"""
import contextlib
import functools
import gc
import os
import traceback

import torch
import torch.utils.checkpoint  # noqa: F401 patches.py replaces its body
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from ..errors import CannotCapture
from . import optimizers, patches
from .layouts import Mode
from .watch import Watch

_TORCH = os.path.dirname(torch.__file__)
_OWN = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_PLAIN = (int, float, bool, str)
_MODULE_FIELDS = frozenset(vars(torch.nn.Module()))


def modules_of(model):
    """Return all modules of a model, or of several."""
    models = model if isinstance(model, (list, tuple)) else [model]
    found = {}
    for root in models:
        for name, module in root.named_modules():
            found.setdefault(id(module), (name, module))
    return list(found.values())


class Given:
    """Tensors that exist before the step: (name, tensor) lists of parameters, buffers, state and gradients."""

    def __init__(self, model, optimizer):
        self.modules, self.optimizer = modules_of(model), optimizer
        self.params, self.buffers, self.slots = [], [], []
        seen = set()
        for module_name, module in self.modules:
            for kind, own in ((self.params, module._parameters), (self.buffers, module._buffers)):
                for name, tensor in own.items():
                    if tensor is None:
                        continue
                    self.slots.append((own, name, tensor))
                    if id(tensor) not in seen:
                        seen.add(id(tensor))
                        kind.append((f"{module_name}.{name}".lstrip("."), tensor))
        self.opt_params = optimizers.params_of(optimizer) if optimizer else []
        lost = [p for p in self.opt_params if id(p) not in seen]
        if lost:
            raise CannotCapture(f"a parameter of shape {tuple(lost[0].shape)} is in the optimizer and not in the model; "
                                "give every module as model=[...]", "optimizer")

    def is_current(self):
        """True if all slots still hold the tensors of the capture."""
        return all(own.get(name) is tensor for own, name, tensor in self.slots)

    def signature(self):
        """Return the modes and flags that a captured graph depends on."""
        return (tuple(module.training for _, module in self.modules),
                tuple(p.requires_grad for _, p in self.params), tuple(p.grad is None for _, p in self.params),
                tuple(len(self.optimizer.state.get(p, ())) for p in self.opt_params) if self.optimizer else (),
                torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"),
                torch.is_autocast_enabled("cuda"), torch.get_default_dtype())


class Recorder:
    """Collects the acts of a capture that are Python's: updates, and schedulers that run behind the step."""

    def __init__(self, optimizer, fakes, states):
        self.optimizer, self.fakes, self.states = optimizer, fakes, states
        self.late, self.n_steps = [], 0
        self.pairs = {id(p): fakes[id(p)] for p in optimizers.params_of(optimizer)} if optimizer else {}

    def after_step(self, scheduler, args, kwargs):
        if any(isinstance(a, torch.Tensor) for a in (*args, *kwargs.values())):
            raise CannotCapture("a scheduler reads a tensor", "LRScheduler.step")
        if not self.n_steps and scheduler.optimizer is self.optimizer:
            raise CannotCapture("the scheduler is stepped before the optimizer", "LRScheduler.step")
        self.late.append((scheduler, args, kwargs))

    def step(self, closure=None, **kwargs):
        if closure is not None or kwargs:
            raise CannotCapture("a step with a closure runs the model an unknown number of times", "optimizer.step")
        self.update(self.optimizer, [])

    def update(self, optimizer, found_inf):
        if optimizers.unwrapped(optimizer) is not self.optimizer:
            raise CannotCapture("the step drives another optimizer than the one given", "optimizer.step")
        if self.late:
            raise CannotCapture("the optimizer is stepped behind its scheduler", "optimizer.step")
        self.n_steps += 1
        with torch.no_grad():
            if optimizers.is_per_param(self.optimizer):
                self._each(found_inf)
            else:
                self._all(found_inf)

    def _each(self, found_inf):
        for index, (real, fake) in enumerate(self._params()):
            if fake.grad is not None:
                if fake.grad.is_sparse:
                    raise CannotCapture("sparse gradients are not captured", "optimizer.step")
                optimizers.UPDATE(fake, fake.grad, self.states.get(id(real), []), found_inf, index)

    def _all(self, found_inf):
        pairs = [(real, fake) for real, fake in self._params() if fake.grad is not None]
        state = [t for real, _ in pairs for t in self.states.get(id(real), [])]
        optimizers.UPDATE_ALL([fake for _, fake in pairs], [fake.grad for _, fake in pairs], state, found_inf)

    def _params(self):
        return [(real, self.pairs[id(real)]) for real in self.real_params]


class Trace:
    """The captured graph: gm, its inputs in order, and what becomes of its results."""

    def __init__(self, gm, given, inputs, fakes):
        self.gm, self.given, self.inputs, self.fakes = gm, given, inputs, fakes
        self.out_spec, self.out_leaves, self.grads, self.late = None, [], [], []


def user_line(fault):
    """Return "file:line: source" of the user's innermost frame in a traceback, or None."""
    frames = [f for f in traceback.extract_tb(fault.__traceback__)
              if not f.filename.startswith((_TORCH, _OWN, "<"))]
    return f"{frames[-1].filename}:{frames[-1].lineno}: {frames[-1].line}" if frames else None


def calling_line():
    """Return "file:line: source" of the user's frame that called the package, or None."""
    frames = [f for f in traceback.extract_stack() if not f.filename.startswith((_TORCH, _OWN, "<"))]
    return f"{frames[-1].filename}:{frames[-1].lineno}: {frames[-1].line}" if frames else None


def _refusal(fault):
    """Return CannotCapture for an exception of a capture."""
    if isinstance(fault, CannotCapture):
        return CannotCapture(str(fault).partition(": ")[2], fault.op, fault.line or user_line(fault))
    func = getattr(fault, "func", None)
    op = str(func) if func is not None else type(fault).__name__
    texts = {"DataDependentOutputException": "the value of a tensor decides what the step does; return the tensor, and "
             "call .item() behind the step",
             "DynamicOutputShapeException": "a shape depends on the values of a tensor"}
    text = texts.get(type(fault).__name__, " ".join(str(fault).split())[:300])
    if "dynamo" in type(fault).__module__ or "dynamo" in text.lower():
        text = "torch.compile inside of the step is not captured; give the plain model: " + text
    return CannotCapture(text, op, user_line(fault))


@contextlib.contextmanager
def _swapped(given, fakes, optimizer, recorder):
    """Put fakes in the place of all given tensors, and back."""
    held_dicts = [(module, dict(module.__dict__), dict(module._parameters), dict(module._buffers), _containers(module))
                  for _, module in given.modules]
    groups = [group["params"] for group in optimizer.param_groups] if optimizer else []
    fields = [_plain_fields(group) for group in optimizer.param_groups] if optimizer else []
    state, own = (optimizer.state, optimizer.__dict__.get("step")) if optimizer else (None, None)
    flat = [(m, m._flat_weights) for _, m in given.modules if hasattr(m, "_flat_weights")]
    try:
        for slots, name, tensor in given.slots:
            slots[name] = fakes[id(tensor)]
        for module, weights in flat:
            module._flat_weights = [fakes.get(id(w), w) for w in weights]
        if optimizer:
            recorder.real_params = [p for params in groups for p in params]
            for group, params in zip(optimizer.param_groups, groups):
                group["params"] = [fakes[id(p)] for p in params]
            optimizer.state = optimizers.empty_state()
            optimizer.step = recorder.step
        yield
    finally:
        changed = _restore(held_dicts, flat)
        if optimizer:
            for group, old in zip(optimizer.param_groups, fields):
                lost = [key for key, value in _plain_fields(group).items() if old.get(key, value) != value]
                changed = f"the optimizer's {lost[0]}" if lost else changed
                group.update(old)
            for group, params in zip(optimizer.param_groups, groups):
                group["params"] = params
            optimizer.state = state
            del optimizer.step
            if own is not None:
                optimizer.step = own
    if changed:
        raise CannotCapture(f"the step changes {changed} in Python, so each step may be another graph", "Python state")


def _containers(module):
    """Return copies of a module's own lists and dicts, those of torch.nn.Module apart."""
    return {name: value.copy() for name, value in vars(module).items()
            if type(value) in (list, dict) and name not in _MODULE_FIELDS}


def _plain_fields(group):
    return {key: value for key, value in group.items() if isinstance(value, _PLAIN) or isinstance(value, tuple)}


def _restore(held_dicts, flat):
    """Put the modules' attributes back; return the name of a plain one that the step changed, or of a list that grew."""
    changed = None
    for module, attributes, params, buffers, lists in held_dicts:
        for name, value in module.__dict__.items():
            if isinstance(value, (int, float)) and attributes.get(name, value) != value:
                changed = f"{type(module).__name__}.{name}"
        for name, items in lists.items():
            if len(attributes[name]) != len(items):
                changed = f"{type(module).__name__}.{name}" if isinstance(items, list) else changed
                attributes[name].clear()
                (attributes[name].extend if isinstance(items, list) else attributes[name].update)(items)
        module.__dict__.clear()
        module.__dict__.update(attributes)
        for own, old in ((module._parameters, params), (module._buffers, buffers)):
            own.clear()
            own.update(old)
    for module, weights in flat:
        module._flat_weights = weights
    return changed


def _copy_hooks(param, fake):
    """Let the hooks of a parameter run in the capture."""
    if not param.requires_grad:
        return
    for hook in (param._backward_hooks or {}).values():
        fake.register_hook(hook)
    for hook in (param._post_accumulate_grad_hooks or {}).values():
        fake.register_post_accumulate_grad_hook(hook)


def _cells(fn):
    """Return plain Python values that the function can change: its closure, its globals, its object."""
    values = {}
    while isinstance(fn, functools.partial):
        fn = fn.func
    owner, function = getattr(fn, "__self__", None), getattr(fn, "__func__", fn)
    code = getattr(function, "__code__", None)
    if owner is not None and not isinstance(owner, torch.nn.Module):
        values.update((f"self.{name}", value) for name, value in getattr(owner, "__dict__", {}).items()
                      if isinstance(value, _PLAIN))
    if code is None:
        return values
    for name, cell in zip(code.co_freevars, function.__closure__ or ()):
        with contextlib.suppress(ValueError):
            value = cell.cell_contents
            if isinstance(value, _PLAIN):
                values[name] = value
            elif isinstance(value, (list, dict)):
                values[f"len({name})"] = len(value)
    for name in code.co_names:
        value = function.__globals__.get(name)
        if isinstance(value, _PLAIN):
            values[name] = value
        elif isinstance(value, (list, dict)):
            values[f"len({name})"] = len(value)
    return values


def _mode_of(tensors, layouts):
    for tensor in tensors:
        if isinstance(tensor, FakeTensor):
            return tensor.fake_mode
    return Mode(layouts)


def _described(mode, tensor):
    """Return a fake tensor of @mode for a real or a fake one."""
    return tensor.detach() if isinstance(tensor, FakeTensor) else mode.from_tensor(tensor.detach(), static_shapes=True)


def _fake_state(given, mode, fakes, optimizer):
    """Return {id(parameter): fake state tensors}; state that does not exist yet is described as it will be."""
    states, names = {}, {}
    if not optimizer:
        return states, names
    fresh = optimizers.empty_state()
    if optimizers.is_per_param(optimizer):
        missing = {id(p): fakes[id(p)] for p in given.opt_params if not optimizer.state.get(p)}
        with mode:
            optimizers.create_state(optimizer, missing, fresh)
    for p in given.opt_params:
        real = optimizer.state.get(p)
        if real:
            found = optimizers.state_tensors(real)
            states[id(p)] = [_described(mode, t) for _, t in found]
        else:
            found = optimizers.state_tensors(fresh.get(fakes[id(p)], {}))
            states[id(p)] = [t for _, t in found]
        names[id(p)] = [key for key, _ in found]
    return states, names


def _drop_unused_state(result, optimizer):
    """Forget state that no update reads and that does not exist: an eager step creates none for it either."""
    nodes = [node for node in result.gm.graph.nodes if node.op == "placeholder"]
    kept = []
    for node, given in zip(nodes, result.inputs):
        kind, _, where, _ = given
        if kind == "state" and not node.users and not optimizer.state.get(where[0]):
            result.gm.graph.erase_node(node)
        else:
            kept.append(given)
    result.inputs = kept


@contextlib.contextmanager
def without_collections():
    """Within this context Python's collector of cycles rests: a capture makes many objects and few of them end."""
    is_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if is_on:
            gc.enable()


@without_collections()
def trace(fn, model, optimizer, args, kwargs, layouts=None):
    """Capture fn(*args, **kwargs), with strides by @layouts (layouts.py). CannotCapture names the op and the user's line; nothing has changed then."""
    given = Given(model, optimizer)
    leaves, spec = pytree.tree_flatten((args, kwargs))
    mode = _mode_of([t for _, t in given.params], layouts or {})
    with torch.no_grad():
        fake = functools.partial(_described, mode)
        fakes = {id(t): fake(t) for _, t in (*given.params, *given.buffers)}
        states, state_names = _fake_state(given, mode, fakes, optimizer)
        grads = {id(p): fake(p.grad) for _, p in given.params if p.grad is not None}
        batch = [fake(leaf) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
    inputs = [("param", name, t, fakes[id(t)]) for name, t in given.params]
    inputs += [("buffer", name, t, fakes[id(t)]) for name, t in given.buffers]
    param_names = {id(t): name for name, t in given.params}
    for p in given.opt_params:
        for key, t in zip(state_names[id(p)], states[id(p)]):
            inputs.append(("state", f"{param_names[id(p)]}.{key}", (p, key), t))
    inputs += [("grad", f"{name}.grad", t, grads[id(t)]) for name, t in given.params if id(t) in grads]
    inputs += [("batch", f"batch.{i}", i, f) for i, f in enumerate(batch) if isinstance(f, torch.Tensor)]
    recorder = Recorder(optimizer, fakes, states)
    recorder.modules, recorder.is_cuda = given.modules, any(t.is_cuda for _, t in given.params)
    result = Trace(None, given, inputs, fakes)

    def whole(*flat):
        for _, t in given.params:
            fakes[id(t)].requires_grad_(t.requires_grad)
            fakes[id(t)].grad = grads.get(id(t))
            _copy_hooks(t, fakes[id(t)])
        for i, leaf in enumerate(leaves):
            if isinstance(leaf, torch.Tensor) and leaf.requires_grad:
                batch[i].requires_grad_()
        own_args, own_kwargs = pytree.tree_unflatten(batch, spec)
        with watch:
            out = fn(*own_args, **own_kwargs)
        result.out_leaves, result.out_spec = pytree.tree_flatten(out)
        tensors = [leaf for leaf in result.out_leaves if isinstance(leaf, torch.Tensor)]
        result.grads = [t for _, t in given.params if fakes[id(t)].grad is not None]
        tensors += [fakes[id(t)].grad for t in result.grads]
        result.n_tensors = len(tensors) - len(result.grads)
        return [t.detach() if isinstance(t, FakeTensor) else t for t in tensors]

    before, watch = _cells(fn), Watch()
    recorder.watch = watch
    try:
        with patches.capturing(recorder), _swapped(given, fakes, optimizer, recorder), torch.enable_grad(), mode:
            result.gm = make_fx(whole, tracing_mode="real")(*[f for _, _, _, f in inputs])
    except (KeyboardInterrupt, MemoryError):
        raise
    except Exception as fault:
        raise _refusal(fault) from fault
    finally:
        watch.restore()
        for t in fakes.values():
            t.grad = None
    after = _cells(fn)
    for name, value in after.items():
        if name in before and before[name] != value:
            raise CannotCapture(f"the step changes {name} in Python, so each step may be another graph", "Python state")
    result.out_leaves = [leaf if not isinstance(leaf, torch.Tensor) else torch.Tensor for leaf in result.out_leaves]
    _drop_unused_state(result, optimizer)
    result.late, result.n_steps, result.mode = recorder.late, recorder.n_steps, mode
    return result
