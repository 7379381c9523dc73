# SPDX-License-Identifier: Apache-2.0
"""Optimizers in a captured step.

Of the optimizers in PER_PARAM each parameter's update is an op of its own, which may come as soon as its gradient is
complete. The op runs the class's own step over one parameter, so its bits are the optimizer's. Learning rates, step
counters and all other fields of a group stay live. Any other optimizer is one opaque op over all parameters.
"""
import collections
import contextlib
import copy
import functools
import inspect
import sys
import types

import torch

from ..errors import CannotCapture
from .running.residents import Fetch

PER_PARAM = tuple(getattr(torch.optim, name) for name in
                  ("AdamW", "Adam", "SGD", "Adagrad", "RMSprop", "Adadelta", "Adamax", "NAdam", "RAdam"))

_HOOKS = "_optimizer_step_pre_hooks", "_optimizer_step_post_hooks"
_LIBRARY = torch.library.Library("lade", "DEF")
_LIBRARY.define("update(Tensor(a!) param, Tensor grad, Tensor(b!)[] state, Tensor[] found_inf, int index) -> ()")
_LIBRARY.define("update_all(Tensor(a!)[] params, Tensor[] grads, Tensor(b!)[] state, Tensor[] found_inf, int member) -> ()")
_LIBRARY.impl("update", lambda *_args: None, "CompositeExplicitAutograd")
_LIBRARY.impl("update_all", lambda *_args: None, "CompositeExplicitAutograd")
UPDATE, UPDATE_ALL = torch.ops.lade.update.default, torch.ops.lade.update_all.default


def unwrapped(optimizer):
    """Return torch's optimizer below a trainer's wrapper."""
    inner = getattr(optimizer, "optimizer", None)
    return inner if isinstance(inner, torch.optim.Optimizer) else optimizer


class Joint:
    """Several optimizers of one step as one: the groups and parameters of each follow those of the one before."""

    def __init__(self, members):
        self.members = members

    @property
    def param_groups(self):
        return [group for member in self.members for group in member.param_groups]

    @property
    def state(self):
        return _JointState([member.state for member in self.members])


class _JointState:
    """The state of several optimizers by parameter; each parameter belongs to one of them."""

    def __init__(self, states):
        self.states = states

    def get(self, param, default=None):
        return next((state[param] for state in self.states if param in state), default)

    def __getitem__(self, param):
        return next(state for state in self.states if param in state)[param]


def joined(optimizer):
    """Return torch's optimizer, a Joint of a list of several, or None for none."""
    if not isinstance(optimizer, (list, tuple)):
        return unwrapped(optimizer) if optimizer is not None else None
    members = [unwrapped(one) for one in optimizer]
    return Joint(members) if len(members) > 1 else members[0] if members else None


def members_of(optimizer):
    """Return the optimizers that @optimizer, a joined() one, stands for."""
    return optimizer.members if isinstance(optimizer, Joint) else [optimizer] if optimizer is not None else []


def owner_of(optimizer, index):
    """Return the one of joined optimizers that has parameter @index."""
    for member in members_of(optimizer):
        n = len(params_of(member))
        if index < n:
            return member
        index -= n
    raise IndexError(index)


def is_per_param(optimizer):
    """True if updates of single parameters have the bits of the whole step."""
    kind = type(optimizer)
    hooks = [hook for name in _HOOKS for hook in getattr(optimizer, name, {}).values()]
    if any(not isinstance(hook, Fetch) for hook in hooks):
        return False
    return kind in PER_PARAM or getattr(kind, "lade_per_param", False)


def narrowed(optimizer, group, params, state):
    """Return a copy of @optimizer that knows @params alone, with the fields of @group."""
    slim = copy.copy(optimizer)
    slim.__dict__ = {name: value for name, value in optimizer.__dict__.items() if name != "step"}
    slim.__dict__.update((name, collections.OrderedDict()) for name in _HOOKS)
    slim.param_groups = [{**group, "params": params}]
    slim.state = state
    return slim


@functools.cache
def _standard_names():
    """Return the attributes of every optimizer; "step" is set by schedulers."""
    return {"step", *vars(torch.optim.Optimizer([torch.zeros(1)], {}))}


def _has_fields(value):
    """True for optimizers, namespaces, and objects of classes that are neither torch's nor of Python's library."""
    room = type(value).__module__.split(".")[0]
    return isinstance(value, (torch.optim.Optimizer, types.SimpleNamespace)) or \
        hasattr(value, "__dict__") and not callable(value) and room != "torch" and room not in sys.stdlib_module_names


def _is_array(value):
    """True for a NumPy array that can be written."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.ndarray) and value.flags.writeable


def _keep(value, seen):
    """Return a function that gives @value its present content back, in place, and returns it. @seen: ids that were kept."""
    if id(value) in seen:
        return lambda: value
    seen.add(id(value))
    if isinstance(value, torch.Tensor):
        held = value.detach().clone()
        return lambda: (value.detach().copy_(held), value)[1]
    if _is_array(value):
        held = value.copy()
        return lambda: (value.__setitem__(..., held), value)[1]
    if isinstance(value, dict):
        parts = {key: _keep(part, seen) for key, part in value.items()}
        return lambda: _refill(value, {key: back() for key, back in parts.items()})
    if isinstance(value, (list, tuple, set, collections.deque)):
        parts = [_keep(part, seen) for part in value]
        return lambda: _refill(value, [back() for back in parts])
    if _has_fields(value):
        back_of_fields = _keep(vars(value), seen)
        return lambda: (back_of_fields(), value)[1]
    return lambda: value


def _refill(value, content):
    if isinstance(value, dict):
        for key in [key for key in value if key not in content]:
            del value[key]
        value.update(content)
    elif not isinstance(value, tuple):
        value.clear()
        (value.update if isinstance(value, set) else value.extend)(content)
    return value


class Attributes:
    """Copies of all that an optimizer of its own class keeps beside its groups and state: a step may write it."""

    def __init__(self, optimizer):
        self.optimizer, seen = optimizer, {id(optimizer)}
        self.backs = {key: _keep(value, seen) for key, value in vars(optimizer).items() if key not in _standard_names()}

    def restore(self):
        fields = vars(self.optimizer)
        for key in [key for key in fields if key not in self.backs and key not in _standard_names()]:
            del fields[key]
        with torch.no_grad():
            fields.update((key, back()) for key, back in self.backs.items())


class States:
    """State that an optimizer of its own class keeps for each parameter, to go back to; the caller copies the tensors."""

    def __init__(self, optimizer):
        self.state, seen = optimizer.state, set()
        self.backs = {param: {key: self._back(value, seen) for key, value in own.items()}
                      for param, own in optimizer.state.items()}

    @staticmethod
    def _back(value, seen):
        return (lambda: value) if isinstance(value, torch.Tensor) else _keep(value, seen)

    def restore(self):
        """Put back the same tensors and all other content; state of later steps is dropped."""
        _refill(self.state, {param: {key: back() for key, back in own.items()} for param, own in self.backs.items()})


def params_of(optimizer):
    """Return all parameters of an optimizer, in the order of its groups."""
    return [p for group in optimizer.param_groups for p in group["params"]]


def _init_lazily(slim, param):
    """Let the class create the state of one parameter, as its first step would."""
    if not hasattr(slim, "_init_group"):
        return
    names = list(inspect.signature(slim._init_group).parameters)[1:]
    args = [slim.param_groups[0].get("amsgrad", False) if name == "amsgrad" else [] for name in names]
    held, param.grad = param.grad, param.detach()
    try:
        with torch.no_grad():
            slim._init_group(slim.param_groups[0], *args)
    finally:
        param.grad = held


def create_state(optimizer, pairs, state):
    """Fill @state for (parameter of the optimizer, parameter to describe) pairs that have none; bits of a first step.

    SGD's momentum starts as a copy of the gradient: -0.0 * momentum + gradient has its bits, without dampening.
    """
    for group in optimizer.param_groups:
        for real in group["params"]:
            param = pairs.get(id(real))
            if param is None or state.get(param):
                continue
            slim = narrowed(optimizer, group, [param], state)
            _init_lazily(slim, param)
            if isinstance(optimizer, torch.optim.SGD) and group["momentum"]:
                if group["dampening"]:
                    raise CannotCapture("SGD with dampening needs one uncaptured step before its first captured one",
                                        "SGD.step")
                with torch.no_grad():
                    state[param]["momentum_buffer"] = torch.full_like(param, -0.0).detach()


def empty_state():
    """Return an optimizer's empty state."""
    return collections.defaultdict(dict)


def state_items(state):
    """Return (key, value) of all of one parameter's state in a fixed order, that in liblade as tensors."""
    found = {}
    for key, value in state.items():
        found.update(value.save() if hasattr(value, "save") else {key: value})
    return [(key, found[key]) for key in sorted(found, key=str)]


def state_tensors(state):
    """Return (key, tensor) of one parameter's state, in a fixed order."""
    return [(key, state[key]) for key in sorted(state, key=str) if isinstance(state[key], torch.Tensor)]


@contextlib.contextmanager
def _gradients(params, grads):
    """Within this context parameters have @grads."""
    held = [param.grad for param in params]
    for param, grad in zip(params, grads):
        param.grad = grad
    try:
        yield
    finally:
        for param, grad in zip(params, held):
            param.grad = grad


class Updater:
    """The update of some parameters of one group at run time."""

    def __init__(self, optimizer, index, params):
        """@index: the number of the group, because loading a state exchanges the groups themselves."""
        self.optimizer, self.index, self.params = optimizer, index, params
        self.slim = narrowed(optimizer, optimizer.param_groups[index], params, optimizer.state)
        self.own = self.slim.param_groups[0]
        self.step = type(optimizer).step

    def __call__(self, grads):
        own = self.own
        for key, value in self.optimizer.param_groups[self.index].items():
            if key != "params":
                own[key] = value
        self.slim.state = self.optimizer.state
        with _gradients(self.params, grads):
            self.step(self.slim)


class OpaqueUpdater:
    """The step of an optimizer that is one op."""

    def __init__(self, optimizer, params):
        self.optimizer, self.params, self.step = optimizer, params, type(optimizer).step

    def __call__(self, grads):
        with _gradients(self.params, grads):
            self.step(self.optimizer)
