# SPDX-License-Identifier: Apache-2.0
"""Changes that a step makes to the containers among its arguments, such as a dict of hidden states.

A capture gives the step containers of its own. What it leaves in them is a result of the graph, put into the caller's
containers after each step.
"""
import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree

from ...errors import CannotCapture
from ..forms import PLAIN
from .numbers import ComputedNumber
from .places import ABSENT, keeps_fakes, refuse_change

_ATTRIBUTES = object()  # in a path: the attributes of an object


class _Leaf:
    """In a value: argument @index of the step, in the order of its flat arguments."""

    def __init__(self, index):
        self.index = index


class Change:
    """A new value of one entry of a container."""

    def __init__(self, path, key, leaves, spec):
        """@path: keys that lead from (args, kwargs) to the container. @leaves: flat values, torch.Tensor for a result."""
        self.path, self.key, self.leaves, self.spec = path, key, leaves, spec

    def put(self, args, kwargs, leaves, results):
        """Make the change in the arguments of a call; @leaves: its flat arguments, @results: an iterator over tensors."""
        found = [next(results) if leaf is torch.Tensor else leaves[leaf.index] if type(leaf) is _Leaf else leaf for leaf in self.leaves]
        container = (args, kwargs)
        for key in self.path:
            container = vars(container) if key is _ATTRIBUTES else container[key]
        if self.spec is None:
            container.pop(self.key, None)
        else:
            container[self.key] = pytree.tree_unflatten(found, self.spec)


class Arguments:
    """The containers that a capture gives to the step, as they were before."""

    def __init__(self, args, kwargs, made):
        """@made: the objects among them that the capture has made anew (forms.py)."""
        self.held, self.made = [], made  # held: (path, container, its entries before)
        self._visit((), (args, kwargs))

    def _visit(self, path, thing):
        if isinstance(thing, (list, dict)):
            self.held.append((path, thing, thing.copy()))
        if isinstance(thing, (list, tuple)):
            inner = list(enumerate(thing))
        elif isinstance(thing, dict):
            inner = list(thing.items())
        else:
            inner = [(_ATTRIBUTES, vars(thing))] if any(thing is one for one in self.made) else []
        for key, value in inner:
            self._visit((*path, key), value)

    def changes(self, batch, own):
        """Return ([Change], tensors of the graph that they hold). CannotCapture for changes that a graph does not have.

        @batch: the flat arguments of the capture. @own: id of a fake tensor -> the tensor of the model.
        """
        found, tensors, places = [], [], {id(t): _Leaf(i) for i, t in enumerate(batch) if isinstance(t, torch.Tensor)}
        for path, container, before in self.held:
            if isinstance(container, list) and len(container) != len(before):
                refuse_change(f"len({_named(path)})")
            keys = range(len(before)) if isinstance(container, list) else {**before, **container}
            for key in keys:
                old = before[key] if isinstance(container, list) or key in before else ABSENT
                now = container[key] if isinstance(container, list) or key in container else ABSENT
                if now is not old and not self._is_inner(now):
                    found.append(self._change(path, key, old, now, places, own, tensors))
        return [change for change in found if change is not None], tensors

    def _is_inner(self, thing):
        """True for a container of the capture, whose changes are found by themselves."""
        return any(thing is container for _, container, _ in self.held)

    @staticmethod
    def _change(path, key, old, now, places, own, tensors):
        name = f"{_named(path)}[{key!r}]"
        if now is ABSENT:
            return Change(path, key, [], None)
        leaves, spec = pytree.tree_flatten(now)
        if any(type(leaf) is ComputedNumber for leaf in leaves):
            raise CannotCapture(f"the step keeps the number of .item() in {name}; return it, and assign it after the step",
                                "arguments")
        if isinstance(now, PLAIN):
            if type(now) is type(old) and now == old:
                return None
            if isinstance(old, (int, float)) and isinstance(now, (int, float)):
                refuse_change(name)
        for i, leaf in enumerate(leaves):
            if id(leaf) in places:
                leaves[i] = places[id(leaf)]
            elif id(leaf) in own:
                leaves[i] = own[id(leaf)]
            elif isinstance(leaf, FakeTensor):
                tensors.append(leaf)
                leaves[i] = torch.Tensor
            elif not isinstance(leaf, torch.Tensor) and keeps_fakes(leaf):
                raise CannotCapture(f"the step keeps a {type(leaf).__name__} with tensors in {name}; keep the tensors alone, or "
                                    "return them", "arguments")
        return Change(path, key, leaves, spec)


def _named(path):
    """Return a name of the container for the user."""
    kind, *keys = [key for key in path if key is not _ATTRIBUTES]
    return ("args" if kind == 0 else "kwargs") + "".join(f"[{key!r}]" for key in keys)
