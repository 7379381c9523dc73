# SPDX-License-Identifier: Apache-2.0
"""Capture of a whole step: forward, backward, clipping and optimizer as one graph of ATen ops.

Fake tensors replace the parameters, buffers, optimizer state, gradients and the batch. The user's function runs once under
make_fx, and everything is put back. Nothing is computed and nothing is allocated.
"""
import contextlib
import functools
import gc
import inspect
import linecache
import operator
import os
import sys
import traceback
import types

import torch
import torch.utils.checkpoint  # noqa: F401 patches.py replaces its body
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.experimental.proxy_tensor import get_proxy_mode, make_fx
from torch.utils import _pytree as pytree

from ...errors import CannotCapture
from . import conversions, fakes as shown, numbers, patches
from .. import forms, optimizers
from .arguments import Arguments
from .branches import Asked, Branches
from .flags import Flags
from .layouts import Mode
from .numbers import ComputedNumber
from .places import Found, Places, hooks_of, keeps_fakes
from .reads import Codes, Reads
from .state import UnreadState, accumulator_hooks, refuse_accumulator_hooks
from .watch import COUNTS, NESTED, SPARSE, Watch

_TORCH = os.path.join(os.path.dirname(torch.__file__), "")
_STDLIB, _PACKAGES = (os.path.join(os.path.dirname(file), "") for file in (os.__file__, os.path.dirname(torch.__file__)))
_NESTED, _COMPILED = os.path.join(_TORCH, "nested", ""), os.path.join(_TORCH, "_dynamo", "")
_OWN = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "")
_INNER = _TORCH, _OWN, os.path.join(_PACKAGES, "numpy", ""), "<"
_PLAIN = (int, float, bool, str)


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
        self.ids = {id(module) for _, module in self.modules}
        self.params, self.buffers, self.slots, self.places_of = [], [], [], {}
        seen = set()
        for module_name, module in self.modules:
            for kind, own in ((self.params, module._parameters), (self.buffers, module._buffers)):
                for name, tensor in own.items():
                    if tensor is None:
                        continue
                    self.slots.append((own, name, tensor))
                    if id(tensor) not in seen:
                        seen.add(id(tensor))
                        self.places_of[id(tensor)] = own, name
                        kind.append((f"{module_name}.{name}".lstrip("."), tensor))
        self.opt_params = optimizers.params_of(optimizer) if optimizer else []
        if len(self.opt_params) != len(set(map(id, self.opt_params))):
            raise CannotCapture("a parameter is in two optimizers, or twice in one", "optimizer")
        lost = [p for p in self.opt_params if id(p) not in seen]
        if lost:
            raise CannotCapture(f"a parameter of shape {tuple(lost[0].shape)} is in the optimizer and not in the model; "
                                "give every module as model=[...]", "optimizer")

    def is_current(self, changing=()):
        """True if slots hold the tensors of the capture, and the optimizer has the same parameters.

        @changing: (id of a dict, name) of slots that may hold other tensors.
        """
        params = optimizers.params_of(self.optimizer) if self.optimizer else []
        return (len(params) == len(self.opt_params) and all(map(operator.is_, params, self.opt_params)) and
                all(own.get(name) is tensor or (id(own), name) in changing for own, name, tensor in self.slots) and
                all(child is None or self.has(child) for _, module in self.modules for child in module._modules.values()))

    def has(self, module):
        """True for a module of the model."""
        return id(module) in self.ids

    def signature(self):
        """Return the modes and flags that a captured graph depends on."""
        state = self.optimizer.state if self.optimizer else {}
        return (tuple(module.training for _, module in self.modules), self._hooks(),
                tuple((p.requires_grad, p.grad is None, p.dtype, p.shape, p.device) for _, p in self.params),
                tuple((t.requires_grad, t.dtype, t.shape, t.device) for _, t in self.buffers),
                tuple(tuple((key, getattr(value, "dtype", None)) for key, value in state.get(p, {}).items())
                      for p in self.opt_params),
                tuple(len(group["params"]) for group in self.optimizer.param_groups) if self.optimizer else (),
                torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"),
                torch.is_autocast_enabled("cuda"), torch.get_default_dtype())

    def _hooks(self):
        """Return the numbers of all hooks that a capture runs; torch gives none twice. Those of this package do not count."""
        tables = [own for _, module in self.modules for own in (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks,
                                                                module._backward_pre_hooks) if own]
        tables += [own for _, p in self.params for own in (p._backward_hooks, p._post_accumulate_grad_hooks) if own]
        found = [key for own in tables for key, hook in own.items() if not getattr(hook, "is_of_lade", False)]
        return *found, *(key for _, key, _ in accumulator_hooks(self.params))


class _Noted(dict):
    """A parameter group in a capture. It notes the fields that the step reads, constants of the graph, and lines that set one."""

    def __init__(self, group, index, recorder):
        super().__init__(group)
        self.index, self.recorder, self.lines = index, recorder, {}  # lines: field -> the user's line that set it

    def __setitem__(self, key, value):
        self.lines.setdefault(key, calling_line())
        super().__setitem__(key, value)

    def update(self, *args, **kwargs):
        for key, value in dict(*args, **kwargs).items():
            self[key] = value

    def _note(self, keys):
        self.recorder.read((self.index, key) for key in keys if key != "params")

    def __getitem__(self, key):
        self._note([key])
        return super().__getitem__(key)

    def get(self, key, default=None):
        self._note([key] if key in self else [])
        return super().get(key, default)

    def values(self):
        self._note(self)
        return super().values()

    def items(self):
        self._note(self)
        return super().items()


class Recorder:
    """Collects the acts of a capture that are Python's: updates, and schedulers that run after the step."""

    def __init__(self, optimizer, fakes, states):
        self.optimizer, self.fakes, self.states = optimizer, fakes, states
        self.late, self.stepped, self.fields = [], [], set()  # fields: (group, key) of those that the step reads
        self.seeded = None, None  # states of Python's and NumPy's generators at the end of steps that seed them
        self.hooks = []  # (dict of a module, {key: hook}) of those that the step registers and leaves
        self.pairs = {id(p): fakes[id(p)] for p in optimizers.params_of(optimizer)} if optimizer else {}

    def after_step(self, scheduler, args, kwargs):
        if any(isinstance(a, torch.Tensor) for a in (*args, *kwargs.values())):
            raise CannotCapture("a scheduler reads a tensor", "LRScheduler.step")
        is_own = any(scheduler.optimizer is member for member in optimizers.members_of(self.optimizer))
        if is_own and not any(scheduler.optimizer is one for one in self.stepped):
            raise CannotCapture("the scheduler is stepped before the optimizer", "LRScheduler.step")
        self.late.append((scheduler, args, kwargs))

    def read(self, fields):
        """Note that the step reads @fields, (group, key) of each."""
        fields = set(fields)
        if fields and self.late:
            raise CannotCapture(f"the step reads the optimizer's {sorted(fields)[0][1]} after scheduler.step(), which runs "
                                "when the step has ended; read it outside", "LRScheduler.step")
        self.fields |= fields

    def step(self, member, closure=None, **kwargs):
        """Record a step; with a closure return its loss: the optimizers of PER_PARAM call it once, before their updates."""
        name, loss = f"{type(member).__name__}.step", None
        if kwargs:
            raise CannotCapture(f"takes {sorted(kwargs)[0]}, and a captured step takes a closure at most", name)
        if closure is not None:
            if not optimizers.is_per_param(optimizers.unwrapped(member)):
                raise CannotCapture("calls its closure a number of times that values may decide; call forward and backward "
                                    "before the step, or use an optimizer that needs no closure", name)
            with torch.enable_grad():
                loss = closure()
        self.update(member, [])
        return loss

    def update(self, optimizer, found_inf):
        """Record the step of one of the optimizers."""
        inner, first = optimizers.unwrapped(optimizer), 0
        for i, member in enumerate(optimizers.members_of(self.optimizer)):
            params = self.real_params[i]
            if member is inner:
                break
            first += len(params)
        else:
            raise CannotCapture("the step drives an optimizer that it was not given; give all of them as optimizer=[...]",
                                "optimizer.step")
        if any(scheduler.optimizer is inner for scheduler, _, _ in self.late):
            raise CannotCapture("the optimizer is stepped behind its scheduler", "optimizer.step")
        self.stepped.append(inner)
        pairs = [(real, self.pairs[id(real)]) for real in params]
        with torch.no_grad():
            if optimizers.is_per_param(inner):
                self._each(pairs, first, found_inf)
            else:
                self._all(pairs, i, found_inf)

    def _each(self, pairs, first, found_inf):
        for index, (real, fake) in enumerate(pairs, first):
            if fake.grad is not None:
                if fake.grad.is_sparse:
                    raise CannotCapture(SPARSE, "optimizer.step")
                optimizers.UPDATE(fake, fake.grad, self.states.get(id(real), []), found_inf, index)

    def _all(self, pairs, member, found_inf):
        pairs = [(real, fake) for real, fake in pairs if fake.grad is not None]
        state = [t for real, _ in pairs for t in self.states.get(id(real), [])]
        optimizers.UPDATE_ALL([fake for _, fake in pairs], [fake.grad for _, fake in pairs], state, found_inf, member)


class Trace:
    """The captured graph: gm, its inputs in order, and the uses of its results."""

    def __init__(self, gm, given, inputs, fakes):
        self.gm, self.given, self.inputs, self.fakes = gm, given, inputs, fakes
        self.out_spec, self.out_leaves, self.grads, self.late = None, [], [], []
        self.places = []  # where the step leaves tensors in Python
        self.flags = []  # which the step leaves other than before (flags.py)
        self.wanting = []  # indices of arguments that the step lets require a gradient
        self.changes = []  # of the containers among its arguments
        self.is_cut = False  # True if the graph ends at a question about a computed value
        self.tensors = None  # of a part that runs within its capture: the given tensors, in the order of the inputs


def _is_inner(file):
    """True for a file of torch, of NumPy, of this package or of Python's library."""
    return file.startswith(_INNER) or file.startswith(_STDLIB) and not file.startswith(_PACKAGES)


def user_line(fault):
    """Return "file:line: source" of the user's innermost frame in a traceback, or None."""
    frames = [f for f in traceback.extract_tb(fault.__traceback__) if not _is_inner(f.filename)]
    return f"{frames[-1].filename}:{frames[-1].lineno}: {frames[-1].line}" if frames else None


def calling_line():
    """Return "file:line: source" of the user's frame that called the package, or None."""
    frame = sys._getframe(1)
    while frame is not None and _is_inner(frame.f_code.co_filename):
        frame = frame.f_back
    if frame is None:
        return None
    file, number = frame.f_code.co_filename, frame.f_lineno
    linecache.lazycache(file, frame.f_globals)
    return f"{file}:{number}: {linecache.getline(file, number).strip()}"


def line_of(fn):
    """Return "file:line: in name()" of a function's definition, or None."""
    fn = fn.func if isinstance(fn, functools.partial) else fn
    try:
        fn = inspect.unwrap(fn)
    except ValueError:  # its wrappers are a circle
        pass
    code = getattr(fn, "__code__", None) or getattr(type(fn).__call__, "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}: in {code.co_name}()" if code is not None else None


def calling_depth():
    """Return how many frames the user's one that called the package is above this function, or those of the whole stack."""
    frame, depth = sys._getframe(), 1
    while frame.f_back is not None and _is_inner(frame.f_code.co_filename):
        frame, depth = frame.f_back, depth + 1
    return depth


# Words of an exception of torch -> (name of the op, meaning) for the user.
_MEANINGS = (
    (("FakeTensor.__format__", ".numpy() is not supported"), "value of a tensor",
     "the step reads the value of a tensor; return the tensor, and read it after the step"),
    (("ComputedNumber",), "value of a tensor",
     "the step gives the value of a tensor to a function that takes numbers alone; give it the tensor, or call it after the step"),
    (("HigherOrderOperator", "registered for HOP"), "torch.cond",
     "higher-order ops, such as torch.cond, are not captured; branch by if, or take a side by torch.where"),
    ((_NESTED,), "torch.nested", NESTED),
    ((_COMPILED,), "torch.compile", "torch.compile inside of the step is not captured; give the plain model"),
)


def _refusal(fault, has_numbers):
    """Return CannotCapture for an exception of a capture. @has_numbers: True if the step has read computed numbers."""
    if isinstance(fault, CannotCapture):
        text = str(fault).partition(": ")[2]
        return CannotCapture(text.removesuffix(f" ({fault.line})"), fault.op, fault.line or user_line(fault))
    func = getattr(fault, "func", None)
    op = str(func) if func is not None else type(fault).__name__
    texts = {"DataDependentOutputException": "the value of a tensor decides what the step does; return the tensor, and "
             "call .item() after the step",
             "DynamicOutputShapeException": "a shape depends on the values of a tensor; compute it outside of the step, or "
             "keep the shape and mask values, as torch.where does"}
    text = texts.get(type(fault).__name__, " ".join(str(fault).split())[:300])
    if has_numbers and isinstance(fault, TypeError):
        text += ": the number of .item() is computed after the capture; give a size as int(n), or call the function after the step"
    frames = traceback.extract_tb(fault.__traceback__)
    if "_dynamo" in type(fault).__module__ or frames[-1].filename.startswith(_COMPILED):
        text = _COMPILED
    if any(frame.filename.startswith(_NESTED) for frame in frames):
        text = _NESTED
    for words, name, meaning in _MEANINGS:
        if any(word in text for word in words):
            op, text = name, meaning
    return CannotCapture(text, op, user_line(fault))


@contextlib.contextmanager
def _swapped(given, fakes, optimizer, recorder):
    """Put fakes in the place of all given tensors, and back."""
    held_dicts = [(module, dict(module.__dict__), dict(module._parameters), dict(module._buffers))
                  for _, module in given.modules]
    held_optimizers, first = [], 0
    for member in optimizers.members_of(optimizer):
        held_optimizers.append(_HeldOptimizer(member, first))
        first += len(member.param_groups)
    flat = [(m, m._flat_weights) for _, m in given.modules if hasattr(m, "_flat_weights")]
    hooks = [(own, dict(own)) for _, module in given.modules for name, own in vars(module).items()
             if "hooks" in name and isinstance(own, dict)]
    try:
        for slots, name, tensor in given.slots:
            slots[name] = fakes[id(tensor)]
        for module, weights in flat:
            module._flat_weights = [fakes.get(id(w), w) for w in weights]
        recorder.real_params = [[p for params in held.params for p in params] for held in held_optimizers]
        for held in held_optimizers:
            held.swap(fakes, recorder)
        yield
    finally:
        _restore(held_dicts, flat)
        for table, old in hooks:
            added = {key: hook for key, hook in table.items() if key not in old}
            if added:
                recorder.hooks.append((table, added))
                for key in added:
                    del table[key]
        changed = [one for held in held_optimizers for one in held.restore()]
    if changed:
        text, line = changed[0]
        raise CannotCapture(f"the step changes {text} in Python, so each step may be another graph", "Python state", line)


class _HeldOptimizer:
    """An optimizer whose parameters, state and step a capture exchanges."""

    def __init__(self, optimizer, first):
        """@first: the number of its first group among those of all optimizers."""
        self.optimizer, self.first, self.groups, self.state = optimizer, first, optimizer.param_groups, optimizer.state
        self.params, self.fields = [g["params"] for g in self.groups], [_plain_fields(g) for g in self.groups]
        self.own, self.is_swapped = optimizer.__dict__.get("step"), False

    def swap(self, fakes, recorder):
        optimizer, self.is_swapped = self.optimizer, True
        for group, params in zip(self.groups, self.params):
            group["params"] = [fakes[id(p)] for p in params]
        optimizer.param_groups = [_Noted(group, i, recorder) for i, group in enumerate(self.groups, self.first)]
        optimizer.state, optimizer.step = UnreadState(recorder.branches), functools.partial(recorder.step, optimizer)

    def restore(self):
        """Put all back; return the step's changes, (text, the user's line or None) of each."""
        if not self.is_swapped:
            return []
        changed, optimizer = [], self.optimizer
        noted, optimizer.param_groups = optimizer.param_groups, self.groups
        if len(noted) != len(self.params):
            changed.append(("the number of the optimizer's groups", None))
        for group, old in (*zip(noted, self.fields), *zip(self.groups, self.fields)):
            lines = getattr(group, "lines", {})
            changed += [(f"the optimizer's {key}", lines.get(key)) for key, value in _plain_fields(group).items()
                        if old.get(key, value) != value]
            dict.update(group, old)
        for group, params in zip(self.groups, self.params):
            group["params"] = params
        optimizer.state = self.state
        del optimizer.step
        if self.own is not None:
            optimizer.step = self.own
        return changed


def _plain_fields(group):
    return {key: value for key, value in dict.items(group) if isinstance(value, _PLAIN) or isinstance(value, tuple)}


def _restore(held_dicts, flat):
    """Put the modules' attributes, parameters and buffers back."""
    for module, attributes, params, buffers in held_dicts:
        module.__dict__.clear()
        module.__dict__.update(attributes)
        for own, old in ((module._parameters, params), (module._buffers, buffers)):
            own.clear()
            own.update(old)
    for module, weights in flat:
        module._flat_weights = weights


def _copy_hooks(param, fake):
    """Let the hooks of a parameter run in the capture, also if the step itself lets it require a gradient."""
    fake.requires_grad_()
    for hook in (param._backward_hooks or {}).values():
        fake.register_hook(hook)
    for hook in (param._post_accumulate_grad_hooks or {}).values():
        fake.register_post_accumulate_grad_hook(hook)
    fake.requires_grad_(param.requires_grad)


def _mode_of(tensors, layouts):
    for tensor in tensors:
        if isinstance(tensor, FakeTensor):
            return tensor.fake_mode
    return Mode(layouts)


def _described(mode, tensor):
    """Return a fake tensor of @mode for a real or a fake one."""
    if isinstance(tensor, FakeTensor):
        return tensor.detach()
    fake = mode.from_tensor(tensor.detach(), static_shapes=True)
    n = tensor.untyped_storage().nbytes() if tensor.layout is torch.strided else 0
    if n and fake.untyped_storage().nbytes() < n:  # torch 2.6 describes a view without the rest of its storage
        fake.untyped_storage().resize_(n)
    return fake


def _fake_state(given, mode, fakes, optimizer):
    """Return {id(parameter): fake state tensors}; state that does not exist yet is described as it will be."""
    states, names = {}, {}
    fresh = optimizers.empty_state()
    for member in filter(optimizers.is_per_param, optimizers.members_of(optimizer)):
        missing = {id(p): fakes[id(p)] for p in optimizers.params_of(member) if not member.state.get(p)}
        with mode:
            optimizers.create_state(member, missing, fresh)
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


def _clear_caches():
    """Empty the caches of functools.lru_cache that hold fake tensors, which a later call would take for real ones."""
    for thing in gc.get_objects():
        if type(thing) is functools._lru_cache_wrapper:
            room = (getattr(thing, "__module__", None) or "torch").split(".")[0]
            if room != "torch" and room not in sys.stdlib_module_names and _caches_fakes(thing):
                thing.cache_clear()


def _caches_fakes(cached):
    """True if results that a function of functools.lru_cache keeps are, or have, fake tensors."""
    found = [value for one in gc.get_referents(cached) for value in (one.values() if type(one) is dict else [one])]
    return any(isinstance(leaf, FakeTensor) or keeps_fakes(leaf) for leaf in pytree.tree_leaves(found))


def _put_gradients(held):
    """Give parameters the gradients @held, (name, parameter, gradient); return the name of one that had another, or None."""
    others = [(name, p, grad) for name, p, grad in held if p.grad is not grad]
    for _, p, grad in others:
        p.grad = grad
    return others[0][0] if others else None


def _constant_gradient(gm, held):
    """Return the name of a parameter whose gradient, of @held, is a constant of the graph, or None."""
    real = {id(functools.reduce(getattr, node.target.split("."), gm)) for node in gm.graph.nodes if node.op == "get_attr"}
    return next((name for name, _, grad in held if id(grad) in real), None)


def _refuse_held(reads, places, own):
    """Refuse a step that reads tensors of the model, with ids in @own, where the capture does not exchange them."""
    for name in reads.holders(own, places):
        raise CannotCapture(f"the step reads a tensor of the model from {name}, where a capture does not see it; read it from its "
                            "module, or keep it in a variable, a list or a dict of the step's own file", "parameter")


def _refuse_kept(watch, known):
    """Refuse a step whose tensors are held by objects that places.py does not reach, such as those of an extension."""
    if watch.held(known) is not None:
        _clear_caches()
    kept = watch.held(known)
    if kept is None:
        return
    number = next((thing for thing in gc.get_referrers(kept) if type(thing) is ComputedNumber), None)
    if number is not None:
        raise CannotCapture("the step keeps the number of .item() in Python; return it, and keep it after the step",
                            "Python state", numbers.line_of(number))
    holders = {type(thing).__name__ for thing in gc.get_referrers(kept) if not isinstance(thing, types.FrameType)}
    raise CannotCapture(f"the step keeps a tensor of shape {tuple(kept.shape)} in Python ({', '.join(sorted(holders))}), "
                        "which a captured step would not renew; return it, or keep it in an attribute, a dict or a list",
                        "Python state")


def _found(places):
    """Return {id of a tensor: its place} of the tensors in @places."""
    found = {}
    for place in places:
        for i, tensor in enumerate(place.tensors()):
            found.setdefault(id(tensor), Found(place, i))
    return found


def _look_up(result, places, mode):
    """Make inputs of the constants that were in @places: each step looks them up there."""
    found, graph = _found(places), result.gm.graph
    made, first = {}, next(node for node in graph.nodes if node.op != "placeholder")
    for node in [node for node in graph.nodes if node.op == "get_attr"]:
        real = functools.reduce(getattr, node.target.split("."), result.gm)
        if id(real) not in found:
            continue
        if id(real) not in made:
            with graph.inserting_before(first):
                made[id(real)] = graph.placeholder(f"place_{len(made)}")
            made[id(real)].meta = {"val": _described(mode, real), **node.meta, "lade_real": real}
            result.inputs.append(("place", found[id(real)].place.name, found[id(real)], made[id(real)].meta["val"]))
        node.replace_all_uses_with(made[id(real)])
        graph.erase_node(node)


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


class _Fakes:
    """The fake tensors of one capture: of parameters, buffers, the optimizer's state, gradients and the batch."""

    def __init__(self, given, optimizer, leaves, mode, branches):
        """@leaves: the flat arguments of the step, of which tensors are described."""
        self.given, self.leaves = given, leaves
        with torch.no_grad():
            fake = functools.partial(_described, mode)
            self.own = {id(t): fake(t) for _, t in (*given.params, *given.buffers)}
            self.states, self.state_names = _fake_state(given, mode, self.own, optimizer)
            self.grads = {id(p): fake(p.grad) for _, p in given.params if p.grad is not None}
            self.read = {key: set() for key in (*self.own, None)}  # names of attributes that the step reads; None: of its arguments
            branches.read_of_batch = self.read[None]
            for _, t in (*given.params, *given.buffers):
                shown.show(self.own[id(t)], t, self.read[id(t)], branches)
            self.batch = [self.own.get(id(leaf)) if id(leaf) in self.own else
                          fake(leaf) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
            for made, leaf in zip(self.batch, leaves):
                if isinstance(leaf, torch.Tensor) and id(leaf) not in self.own:
                    shown.show(made, leaf, self.read[None], branches, is_argument=True)

    def inputs(self):
        """Return (kind, name, place, fake tensor) of the graph's inputs."""
        given, names = self.given, {id(t): name for name, t in self.given.params}
        found = [("param", name, t, self.own[id(t)]) for name, t in given.params]
        found += [("buffer", name, t, self.own[id(t)]) for name, t in given.buffers]
        found += [("state", f"{names[id(p)]}.{key}", (p, key), t) for p in given.opt_params
                  for key, t in zip(self.state_names[id(p)], self.states[id(p)])]
        found += [("grad", f"{name}.grad", t, self.grads[id(t)]) for name, t in given.params if id(t) in self.grads]
        return found + [("batch", f"batch.{i}", i, f) for i, f in enumerate(self.batch)
                        if isinstance(f, torch.Tensor) and id(self.leaves[i]) not in self.own]

    def reals(self):
        """Return the tensors that the graph's inputs stand for, None for state that does not exist yet."""
        def real(kind, where):
            if kind == "state":
                return self.given.optimizer.state.get(where[0], {}).get(where[1])
            return where.grad if kind == "grad" else self.leaves[where] if kind == "batch" else where
        return [real(kind, where) for kind, _, where, _ in self.inputs()]

    def all(self):
        """Return all fake tensors, those of the batch with its other arguments."""
        return [*self.own.values(), *self.batch, *self.grads.values(), *(t for own in self.states.values() for t in own)]


class _Body:
    """The user's function in a capture: called by make_fx, it returns the tensors that the graph returns."""

    def __init__(self, fn, spec, argued, fakes, places, watch, result):
        """@spec: the form of the arguments @argued, (args, kwargs). @result: the Trace, whose uses of results are filled in here."""
        self.fn, self.spec, self.argued, self.fakes, self.given = fn, spec, argued, fakes, fakes.given
        self.places, self.watch, self.result = places, watch, result
        own = (*self.given.params, *self.given.buffers)
        self.reals = {id(fakes.own[id(t)]): t for _, t in own}
        self.flags = None

    def __call__(self, *_flat):
        self._prepare()
        storages, made = self._storages(), []
        given = {i: t for i, t in enumerate(self.fakes.batch) if isinstance(t, FakeTensor) and id(self.fakes.leaves[i]) not in self.fakes.own}
        flags = self.flags = Flags(self.given, self.fakes.own, self.places.modules, given)
        args, kwargs = self.spec.unflatten(self.fakes.batch, made)
        self.arguments = Arguments(args, kwargs, made, self.argued)
        try:
            self.places.exchange(self.fakes.own)
            hooks = [hook for _, t in self.given.params for hook in hooks_of(t)]
            with conversions.replacing(self.fn, *hooks), self.watch.branches.serving(self.fakes.own), self.watch, self.watch.codes:
                out = self.fn(*args, **kwargs)
        except Asked:
            self.result.is_cut = True
            self.result.out_leaves, self.result.out_spec = pytree.tree_flatten(())
            self.result.n_out = self.result.n_tensors = 0
            return []
        self.watch.check_settings()
        if self.watch.branches.refusal is not None:
            raise self.watch.branches.refusal
        self._refuse_data(given.values(), storages)
        self.result.flags, self.result.wanting = flags.changed(), flags.wanting()
        tensors = [*self._returned(out), *self._left()]
        self.result.n_tensors = len(tensors)
        return [t.detach() if isinstance(t, FakeTensor) else t for t in (*tensors, *self._grads())]

    def _prepare(self):
        """Give fake tensors the gradients, hooks and flags of the real ones."""
        fakes, leaves, batch = self.fakes, self.fakes.leaves, self.fakes.batch
        for _, t in self.given.params:
            own = fakes.own[id(t)]
            own.grad = fakes.grads.get(id(t))
            if t.is_floating_point() or t.is_complex():
                _copy_hooks(t, own)
        for _, t in self.given.buffers:
            fakes.own[id(t)].requires_grad_(t.requires_grad)
        for fake, leaf in zip(batch, leaves):
            if isinstance(leaf, torch.Tensor) and leaf.requires_grad and id(leaf) not in fakes.own:
                fake.requires_grad_()
        self.watch.argue(leaves, batch)
        self.watch.give([(fakes.own[id(t)], t, *self.given.places_of[id(t)]) for _, t in self.given.buffers])

    def _storages(self):
        """Return {name: memory} of parameters and buffers."""
        own = (*self.given.params, *self.given.buffers)
        return {name: self.fakes.own[id(t)].untyped_storage()._cdata for name, t in own}

    def _refuse_data(self, arguments, storages):
        """Refuse data that was assigned anew, and gradients of @arguments."""
        changed = [name for name, memory in self._storages().items() if memory != storages[name]]
        if changed:
            t = next(t for name, t in (*self.given.params, *self.given.buffers) if name == changed[0])
            raise CannotCapture(f"the step assigns the data of {changed[0]} anew; write it in place, by .data.copy_()", "data",
                                self.watch.branches.assigned.get(id(self.fakes.own[id(t)])))
        if any(fake.is_leaf and fake.grad is not None for fake in arguments):
            raise CannotCapture("the step leaves a gradient in a tensor of its arguments; return the gradient, and set "
                                "that of the argument to None", "backward")

    def _returned(self, out):
        """Return the tensors of the function's result @out."""
        result = self.result
        result.out_leaves, result.out_spec = pytree.tree_flatten(out)
        tensors = []
        for i, leaf in enumerate(result.out_leaves):
            if isinstance(leaf, torch.Tensor):
                tensors.append(leaf)
            elif type(leaf) is ComputedNumber:
                result.out_leaves[i], bases = numbers.deferred(leaf)
                tensors += bases
            elif keeps_fakes(leaf):
                raise CannotCapture(f"the step returns a {type(leaf).__name__} with tensors; return them in tuples, lists and "
                                    "dicts", "return")
        result.n_out = len(tensors)
        return tensors

    def _left(self):
        """Return the tensors that the step leaves in Python."""
        found = self.result.places = self.places.changed()
        before = [t for place in found for t in pytree.tree_leaves(place.before) if isinstance(t, torch.Tensor)]
        if any(map(self.watch.counts, before)):
            raise CannotCapture(COUNTS, "value of a tensor")
        known = set(map(id, before))
        self.result.changes, tensors = self.arguments.changes(self.fakes.batch, self.reals, self.places.held)
        self.arguments = None  # it holds what the step left there
        return [t for place in found for t in place.take(self.reals, known)] + tensors

    def _grads(self):
        """Return the gradients that the step leaves."""
        self.result.grads = [t for _, t in self.given.params if self.fakes.own[id(t)].grad is not None]
        return [self.fakes.own[id(t)].grad for t in self.result.grads]


class _PartModule:
    """A graph and the constants that its nodes name."""

    def __init__(self, root, graph):
        self.root, self.graph = root, graph

    def __getattr__(self, name):
        return getattr(self.root, name)


def _part(result, branches, reals):
    """Return the Trace of the graph so far, which ends at a question; its tensors are those of @reals. It shares no node."""
    graph, inputs, tensors = torch.fx.Graph(), [], []
    graph.graph_copy(branches.graph, {})
    graph.output([])
    nodes = [node for node in graph.nodes if node.op == "placeholder"]
    for node, given, tensor in zip(nodes, result.inputs, reals):
        if tensor is None:  # state that no step has made yet
            graph.erase_node(node)
        else:
            node.meta["lade_real"] = tensor
            inputs.append(given)
            tensors.append(tensor)
    part = Trace(_PartModule(get_proxy_mode().tracer.root, graph), result.given, inputs, result.fakes)
    part.is_cut, part.tensors, part.branches, part.branch_lines = True, tensors, tuple(branches.answers), branches.lines
    return part


@without_collections()
def trace(fn, model, optimizer, args, kwargs, layouts=None, known=(), branch=(), answer=None):
    """Capture fn(*args, **kwargs), with strides by @layouts (layouts.py). CannotCapture names the op and the user's line;
    nothing has changed then. @known: places where other graphs of the step leave tensors. @branch: the first answers of
    branches.py. @answer(part): the answer to the question at the end of a Trace, or None; without it the capture ends there.
    """
    given = Given(model, optimizer)
    refuse_accumulator_hooks(given.params)
    leaves, spec = forms.flatten((args, kwargs))
    mode = _mode_of([t for _, t in given.params], layouts or {})
    branches = Branches(branch, calling_line)
    fakes = _Fakes(given, optimizer, leaves, mode, branches)
    result = Trace(None, given, fakes.inputs(), fakes.own)
    places, watch = Places(fn, given.modules, leaves), Watch(branches, mode, Codes(), _found(known))
    recorder = Recorder(optimizer, fakes.own, fakes.states)
    recorder.modules, recorder.is_cuda = given.modules, any(t.is_cuda for _, t in given.params)
    recorder.watch, recorder.branches = watch, branches
    branches.watch, branches.is_late = watch, lambda: bool(recorder.stepped)
    reals = fakes.reals()  # the capture exchanges them
    if answer is not None:
        branches.find = lambda: None if watch.written else answer(_part(result, branches, reals))
    body, grads = _Body(fn, spec, (args, kwargs), fakes, places, watch, result), [(name, p, p.grad) for name, p in given.params]
    try:
        with patches.capturing(recorder), _swapped(given, fakes.own, optimizer, recorder), mode:
            result.gm = make_fx(body.__call__, tracing_mode="real")(*[f for _, _, _, f in result.inputs])
    except (KeyboardInterrupt, MemoryError):
        raise
    except Exception as fault:
        refusal = _refusal(fault, branches.has_numbers)
        refusal.other_guess, refusal.n_ops = branches.other_guess(), len(branches.graph.nodes) if branches.graph else 0
        raise refusal from fault
    finally:
        if body.flags is not None:
            body.flags.restore()
        places.restore()
        watch.restore()
        for t in fakes.own.values():
            t.grad = None
        for t in fakes.all():
            if isinstance(t, FakeTensor):
                shown.hide(t)
        other = _put_gradients(grads)
    other = other or _constant_gradient(result.gm, grads)
    if other is not None:
        raise CannotCapture(f"the step reads the parameter {other} from an attribute or a variable that is not its module's; read "
                            "it from the module", "parameter")
    result.out_leaves = [leaf if not isinstance(leaf, torch.Tensor) else torch.Tensor for leaf in result.out_leaves]
    if not result.is_cut:
        _refuse_kept(watch, fakes.all())
    elif watch.held(fakes.all()) is not None:
        _clear_caches()
    for node, real in zip(result.gm.graph.nodes, reals):
        node.meta["lade_real"] = real
    _drop_unused_state(result, optimizer)
    _look_up(result, [*result.places, *known], mode)
    result.late, result.stepped, result.mode, result.fields = recorder.late, recorder.stepped, mode, recorder.fields
    result.answers, result.hooks, result.seeded = watch.answers, recorder.hooks, recorder.seeded
    result.read_of_batch = fakes.read.pop(None)
    result.reads = Reads(fn, given.modules, leaves, watch.codes, [*known, *result.places], fakes.read)
    _refuse_held(result.reads, places, fakes.own)
    for place in result.places:
        place.forget()
    result.branches, result.branch_lines = tuple(branches.answers), branches.lines
    result.found = result.branches[:branches.n_found]
    return result
