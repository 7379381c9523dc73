# SPDX-License-Identifier: Apache-2.0
"""Flat forms of a step's arguments: those of torch.utils._pytree, and the attributes of objects that carry a batch.

Such an object is of a dataclass, of a UserDict such as transformers' BatchEncoding, or of a plain class whose attributes are
tensors, numbers, texts and containers of these. The form keeps no tensor. Another object, such as a module or a configuration,
is one leaf; so is an object that its attributes alone do not make, or that refers to itself.
"""
import collections
import dataclasses
import enum
import types

import torch
from torch.utils import _pytree as pytree

PLAIN = (int, float, complex, bool, str, bytes)
_ATOMS = (*PLAIN, type(None), enum.Enum, torch.dtype, torch.device, torch.Tensor)
_CLOSED = (*_ATOMS, type, torch.nn.Module, torch.optim.Optimizer)
_CONTAINERS = (list, dict, collections.deque)
_DEEP_MAX = 8


class Form:
    """The form of nested arguments."""

    def __init__(self, spec, objects, twice=()):
        """@objects: {number of a leaf of @spec: (class, Form of its attributes)}. @twice: numbers of containers that are equal."""
        self.spec, self.objects, self.twice = spec, objects, tuple(twice)
        self.n = spec.num_leaves - len(objects) + sum(form.n for _, form in objects.values())

    def __repr__(self):
        inner = "".join(f" {i}:{kind.__module__}.{kind.__qualname__}@{id(kind)}({form!r})" for i, (kind, form) in self.objects.items())
        return repr(self.spec) + inner + (f" twice {self.twice}" if self.twice else "")

    def unflatten(self, leaves, made=None):
        """Return the arguments with @leaves, an iterator or a list; objects that are made join the list @made."""
        leaves, found = iter(leaves), []
        for i in range(self.spec.num_leaves):
            if i in self.objects:
                kind, form = self.objects[i]
                found.append(_new(kind))
                found[-1].__dict__.update(form.unflatten(leaves, made))
                if made is not None:
                    made.append(found[-1])
            else:
                found.append(next(leaves))
        return pytree.tree_unflatten(found, self.spec)


class _Met:
    """The containers and objects of one tree, numbered as they are met."""

    def __init__(self):
        self.numbers, self.twice, self.n = {}, [], 0  # numbers: id -> (number, itself, so that no later one has its id)

    def note(self, thing):
        first = self.numbers.setdefault(id(thing), (self.n, thing))[0]
        if first != self.n:
            self.twice.append((self.n, first))
        self.n += 1

    def note_container(self, thing):
        """Note a node of pytree; return False, because it is no leaf."""
        if isinstance(thing, _CONTAINERS):
            self.note(thing)
        return False

    def things(self):
        return [thing for _, thing in self.numbers.values()]


def flatten(tree):
    """Return (leaves, Form) of nested arguments."""
    return _flattened(tree, (), _Met())


def containers(tree):
    """Return the lists, dicts and deques of nested arguments, and the attributes of objects, each once."""
    met = _Met()
    _flattened(tree, (), met)
    return [thing if isinstance(thing, _CONTAINERS) else vars(thing) for thing in met.things()]


def entries_of(container):
    """Return a copy of a container's entries."""
    return dict(container) if isinstance(container, dict) else list(container)


def set_entries(container, entries):
    """Give a container the entries that entries_of() returned."""
    if isinstance(container, dict):
        if list(container) != list(entries) or any(container[key] is not entries[key] for key in entries):
            container.clear()
            container.update(entries)
    elif len(container) != len(entries) or any(a is not b for a, b in zip(container, entries)):
        container.clear()
        container.extend(entries)


def _flattened(tree, above, met):
    """Return (leaves, Form) of what is within the objects with the ids @above."""
    leaves, spec = pytree.tree_flatten(tree, is_leaf=met.note_container)
    flat, objects = [], {}
    for i, leaf in enumerate(leaves):
        if _carries(leaf, above):
            met.note(leaf)
            inner, form = _flattened(_attributes(leaf, above), (*above, id(leaf)), met)
            objects[i] = type(leaf), form
            flat += inner
        else:
            flat.append(leaf)
    return flat, Form(spec, objects, () if above else met.twice)


def _attributes(thing, above):
    """Return the attributes of an object that carries a batch; those of a UserDict without what its library keeps beside."""
    own = vars(thing)
    if not isinstance(thing, collections.UserDict):
        return own
    return {key: own[key] for key in own if key == "data" or _are_atoms(own[key], (*above, id(thing)))}


def _carries(thing, above):
    """True if an object, within those with the ids @above, carries a batch."""
    if len(above) > _DEEP_MAX or id(thing) in above or not _may_carry(thing) or not _can_make(type(thing)):
        return False
    if isinstance(thing, collections.UserDict):
        return True
    if dataclasses.is_dataclass(thing):
        return all(field.name in vars(thing) for field in dataclasses.fields(thing)) and not _is_circular(thing, above, set())
    return _are_atoms(vars(thing), (*above, id(thing)))


def _may_carry(thing):
    """True for an object of a kind that carries batches, and for one that has tensors."""
    if isinstance(thing, _CLOSED) or callable(thing) or type(getattr(thing, "__dict__", None)) is not dict:
        return False
    return isinstance(thing, collections.UserDict) or dataclasses.is_dataclass(thing) \
        or any(isinstance(leaf, torch.Tensor) for leaf in pytree.tree_leaves(vars(thing)))


def _are_atoms(tree, above):
    return all(isinstance(leaf, _ATOMS) or _carries(leaf, above) for leaf in pytree.tree_leaves(tree))


def _is_circular(thing, above, done):
    """True if an object refers to itself or to one with the ids @above. @done: ids of objects that do not."""
    if id(thing) in above:
        return True
    if id(thing) in done:
        return False
    above = (*above, id(thing))
    if any(_may_carry(leaf) and _is_circular(leaf, above, done) for leaf in pytree.tree_leaves(vars(thing))):
        return True
    done.add(id(thing))
    return False


def _new(kind):
    """Return an object of a class, without attributes."""
    return kind.__new__(kind) if issubclass(kind, types.SimpleNamespace) else object.__new__(kind)


def _can_make(kind):
    """True if an object of a class is its attributes alone: it has no slots, no base in C, and nothing runs when it ends."""
    for base in kind.__mro__:
        slots = vars(base).get("__slots__", ())
        if {*((slots,) if isinstance(slots, str) else slots)} - {"__dict__", "__weakref__"}:
            return False
    try:
        return not hasattr(kind, "__del__") and _new(kind) is not None
    except TypeError:
        return False
