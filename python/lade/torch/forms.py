# SPDX-License-Identifier: Apache-2.0
"""Flat forms of a step's arguments: those of torch.utils._pytree, and the attributes of objects that carry a batch.

Such an object is of a dataclass, of a UserDict such as transformers' BatchEncoding, or of a plain class whose attributes are
tensors, numbers, texts and containers of these. The form keeps no tensor. Another object, such as a module or a configuration,
is one leaf.
"""
import collections
import dataclasses
import enum

import torch
from torch.utils import _pytree as pytree

PLAIN = (int, float, complex, bool, str, bytes)
_ATOMS = (*PLAIN, type(None), enum.Enum, torch.dtype, torch.device, torch.Tensor)
_CLOSED = (*_ATOMS, type, torch.nn.Module, torch.optim.Optimizer)
_DEEP_MOST = 8


class Form:
    """The form of nested arguments."""

    def __init__(self, spec, objects):
        """@objects: {number of a leaf of @spec: (class, Form of its attributes)}."""
        self.spec, self.objects = spec, objects
        self.n = spec.num_leaves - len(objects) + sum(form.n for _, form in objects.values())

    def __repr__(self):
        inner = "".join(f" {i}:{kind.__module__}.{kind.__qualname__}@{id(kind)}({form!r})" for i, (kind, form) in self.objects.items())
        return repr(self.spec) + inner

    def unflatten(self, leaves, made=None):
        """Return the arguments with @leaves, an iterator or a list; objects that are made join the list @made."""
        leaves, found = iter(leaves), []
        for i in range(self.spec.num_leaves):
            if i in self.objects:
                kind, form = self.objects[i]
                found.append(kind.__new__(kind))
                found[-1].__dict__.update(form.unflatten(leaves, made))
                if made is not None:
                    made.append(found[-1])
            else:
                found.append(next(leaves))
        return pytree.tree_unflatten(found, self.spec)


def flatten(tree, depth=0):
    """Return (leaves, Form) of nested arguments."""
    leaves, spec = pytree.tree_flatten(tree)
    flat, objects = [], {}
    for i, leaf in enumerate(leaves):
        if _carries(leaf, depth):
            inner, form = flatten(_attributes(leaf), depth + 1)
            objects[i] = type(leaf), form
            flat += inner
        else:
            flat.append(leaf)
    return flat, Form(spec, objects)


def _attributes(thing):
    """Return the attributes of an object that carries a batch; those of a UserDict without what its library keeps beside."""
    own = vars(thing)
    return {key: own[key] for key in own if not isinstance(thing, collections.UserDict) or _are_atoms(own[key], 1)}


def _carries(thing, depth):
    """True if an object, within @depth others, carries a batch."""
    if isinstance(thing, _CLOSED) or callable(thing) or depth > _DEEP_MOST or type(getattr(thing, "__dict__", None)) is not dict:
        return False
    if isinstance(thing, collections.UserDict):
        return True
    if dataclasses.is_dataclass(thing):
        return all(field.name in vars(thing) for field in dataclasses.fields(thing))
    return any(isinstance(leaf, torch.Tensor) for leaf in pytree.tree_leaves(vars(thing))) and _are_atoms(vars(thing), depth + 1)


def _are_atoms(tree, depth):
    return all(isinstance(leaf, _ATOMS) or _carries(leaf, depth) for leaf in pytree.tree_leaves(tree))
