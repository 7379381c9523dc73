# SPDX-License-Identifier: Apache-2.0
"""Changes that a step makes to the containers among its arguments, such as a dict of hidden states.

A capture gives the step containers of its own. What it leaves in them is a result of the graph, put into the caller's
containers after each step. A container that the step moves is the caller's own. All containers of the caller are found
before the step runs, because the step may remove one from another.
"""
import collections

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree

from ...errors import CannotCapture
from ..forms import PLAIN
from .numbers import ComputedNumber, line_of
from .places import ABSENT, keeps_fakes, refuse_change

_ATTRIBUTES = object()  # in a path: the attributes of an object
_LISTS = (list, collections.deque)


class _Leaf:
    """In a value: argument @index of the step, in the order of its flat arguments."""

    def __init__(self, index):
        self.index = index


class _At:
    """In a value: the caller's container or object at @path."""

    def __init__(self, path):
        self.path = path


class Change:
    """New values of entries of one container."""

    def __init__(self, path, entries, order):
        """@path: keys that lead from (args, kwargs) to the container. @order: the keys of a dict in a new order, or None.

        @entries: (key, leaves, spec) of each, without a spec for one that goes. Leaves are torch.Tensor for a result.
        """
        self.path, self.entries, self.order = path, entries, order

    def paths(self):
        """Return the paths of all containers and objects that the change needs."""
        return [self.path] + [leaf.path for _, leaves, _ in self.entries for leaf in leaves if type(leaf) is _At]

    def put(self, bound, leaves, results):
        """Make the change; @leaves: the flat arguments of the call, @results: an iterator over tensors."""
        def value(leaf):
            kind = type(leaf)
            return next(results) if leaf is torch.Tensor else leaves[leaf.index] if kind is _Leaf else \
                bound[leaf.path] if kind is _At else leaf
        container = bound[self.path]
        for key, own, spec in self.entries:
            found = list(map(value, own))
            if spec is None:
                container.pop(key, None)
            else:
                container[key] = pytree.tree_unflatten(found, spec)
        if self.order is not None:
            entries = [(key, container[key]) for key in self.order]
            container.clear()
            container.update(entries)


def bind(changes, args, kwargs):
    """Return {path: the caller's container or object} for all that @changes need."""
    return {path: _found(path, args, kwargs) for change in changes for path in change.paths()}


def _found(path, args, kwargs):
    container = (args, kwargs)
    for key in path:
        container = vars(container) if key is _ATTRIBUTES else container[key]
    return container


class Arguments:
    """The containers that a capture gives to the step, as they were before."""

    def __init__(self, args, kwargs, made, given):
        """@made: the objects among them that the capture has made anew (forms.py). @given: the caller's (args, kwargs)."""
        self.held, self.others = [], []  # (path, container, its entries before), (path, node of pytree, its leaves before)
        self.made, self.paths = {id(one): one for one in made}, {}  # paths: id of a container or an object -> its path
        self._visit((), (args, kwargs))
        self.twins, first = {}, {}  # path of a container that the caller gives twice -> the other path
        for path, _, _ in self.held:
            other = first.setdefault(id(_found(path, *given)), path)
            if other is not path:
                self.twins[path], self.twins[other] = other, path

    def _visit(self, path, thing):
        inner = []
        if isinstance(thing, (dict, *_LISTS)):
            self.held.append((path, thing, dict(thing) if isinstance(thing, dict) else list(thing)))
            self.paths[id(thing)] = path
        if isinstance(thing, (tuple, *_LISTS)):
            inner = list(enumerate(thing))
        elif isinstance(thing, dict):
            inner = list(thing.items())
        elif id(thing) in self.made:
            self.paths[id(thing)] = path
            inner = [(_ATTRIBUTES, vars(thing))]
        elif type(thing) in pytree.SUPPORTED_NODES:
            self.others.append((path, thing, pytree.tree_flatten(thing)))
        for key, value in inner:
            self._visit((*path, key), value)

    def changes(self, batch, own, reached):
        """Return ([Change], tensors of the graph that they hold). CannotCapture for changes that a graph does not have.

        @batch: the flat arguments of the capture. @own: id of a fake tensor -> the tensor of the model. @reached: ids of
        containers of the program's, which a change keeps as they are.
        """
        self.reached = reached
        self.leaf_of = {id(t): _Leaf(i) for i, t in enumerate(batch) if isinstance(t, torch.Tensor)}
        self.own, self.tensors, self.new = own, [], {}  # new: id of a container that the step makes -> (itself, its name)
        for path, node, (leaves, spec) in self.others:
            now, spec_now = pytree.tree_flatten(node)
            if spec_now != spec or any(a is not b for a, b in zip(now, leaves)):
                refuse_change(f"{_named(path)}, a {type(node).__name__},")
        found = [self._change(path, container, before) for path, container, before in self.held]
        return [change for change in found if change is not None], self.tensors

    def _change(self, path, container, before):
        """Return the Change of one container, or None."""
        if isinstance(container, dict):
            keys = {**before, **container}
            entries = [self._entry(path, key, before.get(key, ABSENT), container.get(key, ABSENT)) for key in keys]
            order = list(container) if list(container) != [key for key in keys if key in container] else None
        else:
            if len(container) != len(before):
                refuse_change(f"len({_named(path)})")
            entries, order = [self._entry(path, i, *pair) for i, pair in enumerate(zip(before, container))], None
        entries = [entry for entry in entries if entry is not None]
        if not entries and order is None:
            return None
        if path in self.twins:
            raise CannotCapture(f"the step changes {_named(path)}, and {_named(self.twins[path])} is the same "
                                f"{type(container).__name__}; give it once, or a copy", "arguments")
        return Change(path, entries, order)

    def _entry(self, path, key, old, now):
        """Return (key, leaves, spec) of an entry that is another one than before, or None."""
        name = f"{_named(path)}[{key!r}]"
        if now is old:
            return None
        if now is ABSENT:
            return key, [], None
        leaves, spec = pytree.tree_flatten(now, is_leaf=lambda thing: self._is_held(thing, name))
        if any(type(leaf) is ComputedNumber for leaf in leaves):
            raise CannotCapture(f"the step keeps the number of .item() in {name}; return it, and assign it after the step",
                                "arguments", next(line_of(leaf) for leaf in leaves if type(leaf) is ComputedNumber))
        if isinstance(now, PLAIN):
            if type(now) is type(old) and now == old:
                return None
            if isinstance(old, (int, float)) and isinstance(now, (int, float)):
                refuse_change(name)
        return key, [self._taken(leaf, name) for leaf in leaves], spec

    def _is_held(self, thing, name):
        """True for a container that the step has not made. CannotCapture if the step keeps a new container twice."""
        if id(thing) in self.paths or id(thing) in self.reached:
            return True
        if isinstance(thing, (dict, *_LISTS)):
            if id(thing) in self.new:
                raise CannotCapture(f"the step keeps one {type(thing).__name__} in {self.new[id(thing)][1]} and in {name}; "
                                    "keep a copy", "arguments")
            self.new[id(thing)] = thing, name
        return False

    def _taken(self, leaf, name):
        """Return what stands for one leaf of a value that the step leaves at @name."""
        if id(leaf) in self.paths:
            return _At(self.paths[id(leaf)])
        if id(leaf) in self.leaf_of:
            return self.leaf_of[id(leaf)]
        if id(leaf) in self.own:
            return self.own[id(leaf)]
        if isinstance(leaf, FakeTensor):
            self.tensors.append(leaf)
            return torch.Tensor
        if not isinstance(leaf, torch.Tensor) and keeps_fakes(leaf):
            raise CannotCapture(f"the step keeps a {type(leaf).__name__} with tensors in {name}; keep the tensors alone, or "
                                "return them", "arguments")
        return leaf


def _named(path):
    """Return a name of the container for the user."""
    kind, *keys = [key for key in path if key is not _ATTRIBUTES]
    return ("args" if kind == 0 else "kwargs") + "".join(f"[{key!r}]" for key in keys)
