# SPDX-License-Identifier: Apache-2.0
"""Tensors that a step keeps in Python between its calls.

A step may assign a buffer, an attribute, an entry of a dict or a list, or a variable of its closure. Each such
container and key is a place. A tensor that the step finds in a place is an input of the graph, looked up in each step. A
tensor that it leaves there is a result of the graph, and put there after each step. Which places a step changes is
found by comparing everything that its code reaches before and after the capture; the capture leaves all as it was.
Some changes make each step another graph, and are refused by name: numbers and texts that change, lists that grow,
iterators that advance, generators of random numbers that draw.
"""
import array
import collections
import contextlib
import functools
import gc
import operator
import os
import random
import struct
import sys
import types
import weakref

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree

from ...errors import CannotCapture
from .. import forms
from ..forms import PLAIN as _PLAIN
from .numbers import ComputedNumber, line_of

MODULE_FIELDS = frozenset({*vars(torch.nn.Module()), "_flat_weights"})  # trace.py exchanges and restores them
_FOREIGN = ("torch", "lade", "logging", "threading", "numpy", "asyncio", "multiprocessing", "weakref", "importlib",
            "concurrent", "tokenizers")  # packages whose objects no step changes, or which patches.py replaces
ENTRIES_MAX = 10_000   # of a container; those of larger ones, such as data sets, are compared, and not looked into
_COMPARED_MAX = 1 << 22  # entries of a container, of which a capture keeps a copy; larger ones have their length compared alone
_COPIED_MAX = 1 << 26   # bytes of all large arrays that a capture copies; others are not compared
SMALL_MAX = 1 << 17    # bytes of an array that is always copied
_VISITED_MAX = 200_000  # containers
_STDLIB_NAMES = sys.stdlib_module_names - {"__main__"}
_MADE_MAX = 20_000      # objects within one that a step makes
_BITS = struct.Struct("dd")
LISTS = (list, collections.deque)
_BUFFERS = bytearray, array.array, memoryview
_SKIPPED = torch.Tensor, type, types.ModuleType
STEPPED = torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler
_OPTIMIZERS = frozenset(("param_groups", "state", "defaults", "step", "_opt_called", "_zero_grad_profile_name"))  # others have them
PACKAGES = os.path.join(os.path.dirname(os.path.dirname(torch.__file__)), "")
STDLIB = os.path.join(os.path.dirname(os.__file__), "")
OWN = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "")
_CELLS = "<stdin", "<ipython", "<string>", "<python-input"
ABSENT = type("Absent", (), {"__repr__": lambda self: "absent"})()


def entry_of(container, key):
    if isinstance(container, types.CellType):
        try:
            return container.cell_contents
        except ValueError:
            return ABSENT
    if isinstance(container, type):
        return vars(container).get(key, ABSENT)
    if isinstance(container, dict):
        return container.get(key, ABSENT)
    return container[key] if key < len(container) else ABSENT


def _set(container, key, value):
    if isinstance(container, types.CellType):
        if value is ABSENT:
            del container.cell_contents
        else:
            container.cell_contents = value
    elif isinstance(container, type):
        if value is ABSENT:
            delattr(container, key)
        else:
            setattr(container, key, value)
    elif value is ABSENT:
        container.pop(key, None)
    else:
        container[key] = value


def _tensors(value):
    return [leaf for leaf in forms.flatten(value)[0] if isinstance(leaf, torch.Tensor)]


class Place:
    """A container and a key, where a step leaves tensors."""

    def __init__(self, name, container, key, before):
        self.name, self.container, self.key, self.before = name, container, key, before
        self.leaves = self.spec = None  # of the value that the step leaves; torch.Tensor stands for a result
        self.others = {}  # id of an object that was a part of a value -> itself, so that no later one has its id

    @property
    def id(self):
        return id(self.container), self.key

    def get(self):
        return entry_of(self.container, self.key)

    def take(self, fakes, inputs):
        """Note the value that the step left in the capture; return the tensors of it that the graph makes.

        @fakes: id of a fake tensor -> the tensor of the model. @inputs: ids of tensors that other places held before.
        """
        self.leaves, self.spec = pytree.tree_flatten(self.get())
        found = []
        for i, leaf in enumerate(self.leaves):
            if id(fakes.get(id(leaf), leaf)) in inputs:
                raise CannotCapture(f"the step moves a tensor to {self.name} from another place; keep a clone",
                                    "Python state")
            if id(leaf) in fakes:
                self.leaves[i] = fakes[id(leaf)]
            elif isinstance(leaf, FakeTensor):
                found.append(leaf)
                self.leaves[i] = torch.Tensor
        return found

    def put(self, value):
        _set(self.container, self.key, value)

    def put_results(self, results):
        """Put the value of a step there; @results yields its tensors."""
        self.put(pytree.tree_unflatten([next(results) if leaf is torch.Tensor else leaf for leaf in self.leaves],
                                       self.spec))

    def forget(self):
        """Drop the value from before the capture, whose memory no other tensor may share where it waits on a tier."""
        self.before = self.before if self.is_plain else None

    def tensors(self):
        """Return the tensors that are there now."""
        return _tensors(self.get())

    @property
    def is_plain(self):
        """True if a number or a text was there, and the step leaves another one."""
        return isinstance(self.before, _PLAIN)

    def signature(self):
        """Return the form of the value that is there now, on which a graph depends."""
        value = self.get()
        if value is None or value is ABSENT or isinstance(value, _PLAIN):
            return repr(value)
        leaves, form = forms.flatten(value)
        return repr(form), tuple(map(self._form_of, leaves))

    def _form_of(self, leaf):
        if isinstance(leaf, torch.Tensor):
            return tuple(leaf.shape), leaf.stride(), leaf.dtype, leaf.device
        if leaf is None or isinstance(leaf, _PLAIN):
            return repr(leaf)
        self.others[id(leaf)] = leaf
        return id(leaf)


class Found:
    """One tensor of a place, as an input that each step looks up."""

    def __init__(self, place, index):
        self.place, self.index = place, index

    def get(self, looked_up=None):
        """Return the tensor. @looked_up: {id of a place: its tensors}, which one step takes apart once."""
        if looked_up is None:
            return self.place.tensors()[self.index]
        if id(self.place) not in looked_up:
            looked_up[id(self.place)] = self.place.tensors()
        return looked_up[id(self.place)][self.index]


class Places:
    """All containers that the code of a step reaches, as they were before the capture."""

    def __init__(self, fn, modules, arguments=()):
        """@arguments: flat ones of the step, of which objects are a part of what its code reaches."""
        self.held = {}  # id of a container -> (name, container, its entries before)
        self.wanted = {}  # id of a dict that is held in part -> tests of its keys; one of them is true for each that is held
        self.moving = []  # (name, iterator or generator, its state before)
        self.keyed = []  # (name, dict or set with tensors as its keys, its entries before)
        self.contents = []  # (name, set, array or object with slots, a copy of its contents before)
        self.copied_bytes = 0  # of large arrays
        self.fakes = {}  # of exchange(): id of a tensor, or of a tuple with tensors -> itself, the one in its place
        self.globals, self.met, self.parameters = None, set(), set()
        self.modules = []  # all that the code reaches, those of the model too
        self._queue = [("", fn)] + [(type(module).__name__, module) for _, module in modules]
        self._queue += [(type(one).__name__, one) for one in arguments if not isinstance(one, (*_PLAIN, *_SKIPPED, *STEPPED))]
        self._start()
        while self._queue and len(self.met) < _VISITED_MAX:
            name, thing = self._queue.pop()
            if id(thing) not in self.met:
                self.met.add(id(thing))
                self._visit(name, thing)
        del self._queue

    # containers that the code reaches

    def _start(self):
        pass

    def _visit(self, name, thing):
        if isinstance(thing, type):
            self._class(name, thing)
        elif isinstance(thing, types.ModuleType) and is_users(getattr(thing, "__file__", None) or "<", thing.__name__):
            self._imported(thing)
        if thing is None or isinstance(thing, (*_PLAIN, *_SKIPPED)):
            return
        state = _state(thing)
        if state is not None:
            self.moving.append((name, thing, state))
        if isinstance(thing, torch.nn.Module):
            self._module(thing)
        elif isinstance(thing, STEPPED):
            self._hold(type(thing).__name__ + ".", vars(thing), _is_own)
            self._queue.append((type(thing).__name__, type(thing)))
        elif isinstance(thing, (dict, set)) and any(isinstance(key, torch.Tensor) for key in thing):
            self._key(name, thing)
        elif isinstance(thing, (dict, *LISTS)):
            self._hold(name, thing)
            self._object(name, thing)
        elif isinstance(thing, (weakref.WeakKeyDictionary, weakref.WeakValueDictionary, weakref.WeakSet)):
            self._queue.append((name, thing.data))
        elif _has_contents(thing):
            self._content(name, thing)
            self._object(name, thing)
        elif isinstance(thing, tuple):
            self._queue += [(f"{name}[{i}]", item) for i, item in enumerate(thing[:ENTRIES_MAX])]
        elif isinstance(thing, functools.partial):
            self._queue += [(name, part) for part in (thing.func, *thing.args, *thing.keywords.values())]
        elif isinstance(thing, types.MethodType):
            self._queue += [("self", thing.__self__), (name, thing.__func__)]
        elif isinstance(thing, types.FunctionType):
            self._function(thing)
        elif isinstance(thing, types.CellType):
            self._cell(name, thing)
        else:
            self._object(name, thing)

    def _content(self, name, thing):
        """Hold the contents of a set or an array."""
        n_bytes = bytes_of(thing)
        if n_bytes > SMALL_MAX:
            if self.copied_bytes + n_bytes > _COPIED_MAX:
                return
            self.copied_bytes += n_bytes
        contents = contents_of(thing)
        self.contents.append((name, thing, contents))
        if isinstance(contents, list):
            self._queue += [(f"{name}[{i}]", one) for i, one in enumerate(contents[:ENTRIES_MAX])]

    def _object(self, name, thing):
        """Hold the attributes of an object; a dict, a list or a set of the user's class has some beside its entries."""
        kind = type(thing)
        if is_foreign(kind.__module__) or isinstance(thing, (dict, set, *LISTS)) and kind.__module__ in _STDLIB_NAMES:
            return
        if type(getattr(thing, "__dict__", None)) is dict:
            self._hold(name + ".", thing.__dict__)
        slots = slots_in(thing)
        if slots:
            self.contents.append((name, thing, slots))
            self._queue += [(f"{name}.{key}", value) for key, value in slots.items()]
        self._queue.append((kind.__name__, kind))

    def _imported(self, module):
        """Hold the variables of a module of the user's. Other modules in it come by imports, and each for itself."""
        own = vars(module)
        self._hold(module.__name__ + ".", own,
                   lambda key: not key.startswith("__") and not isinstance(own.get(key), types.ModuleType))
        self._queue += [(key, other) for key, other in list(own.items()) if isinstance(other, types.ModuleType)]

    def _class(self, name, kind):
        """Hold the attributes of a class that is neither of Python's library nor of a foreign package, and of its bases."""
        for base in kind.__mro__:
            if not is_foreign(base.__module__) and base.__module__ not in _STDLIB_NAMES and id(base) not in self.held:
                own = {key: value for key, value in list(vars(base).items()) if not key.startswith(("__", "_abc_"))}
                self.held[id(base)] = f"{base.__name__}.", base, own
                self._queue += [(f"{base.__name__}.{key}", value) for key, value in own.items() if not callable(value)]
                self._queue += [(one.__name__, one) for value in vars(base).values() for one in _functions_of(value)]

    def _module(self, module):
        if isinstance(module, torch.jit.ScriptModule):
            return
        self.modules.append(module)
        kind, own = type(module).__name__ + ".", vars(module)
        self._hold(kind, own, lambda key: key not in MODULE_FIELDS)
        self._hold(kind, module._buffers)
        self._hold(kind, module._parameters)
        self._hold(kind, module._modules)
        self.parameters.add(id(module._parameters))
        for key, tensor in (*module._parameters.items(), *module._buffers.items()):
            if tensor is not None and not isinstance(tensor, FakeTensor):
                self._hold(f"{kind}{key}.", vars(tensor))  # attributes that the user gave it
                self._queue += [(f"a hook of {kind}{key}", hook) for hook in hooks_of(tensor)]
        self._queue += [(kind + key, own[key]) for key in own if key.endswith("_hooks") and own[key]]
        self._queue += [(type(other).__name__, other) for other in module._modules.values() if other is not None]
        self._queue.append((type(module).__name__, type(module)))
        forward = getattr(type(module), "forward", None)
        if isinstance(forward, types.FunctionType) and forward.__globals__ is self.globals:
            self._queue.append((kind + "forward", forward))

    def _key(self, name, container):
        """Hold a dict or a set with tensors as its keys."""
        entries = list(container.items() if isinstance(container, dict) else container)
        self.keyed.append((name, container, entries))
        self._queue += [(f"{name}[{i}]", value) for i, (_, value) in enumerate(entries)] if isinstance(container, dict) else []

    def _function(self, function):
        """Hold the variables of a function's closure, and the globals that it names if it is the step or of the user's files."""
        code = function.__code__
        for name, cell in zip(code.co_freevars, function.__closure__ or ()):
            self._queue.append((name, cell))
        if function.__dict__:
            self._hold(f"{function.__name__}.", function.__dict__)
        self._queue += [(f"a default of {function.__name__}", one) for one in (function.__defaults__, function.__kwdefaults__) if one]
        if self.globals is None:
            self.globals = function.__globals__
        own = function.__globals__
        module = str(own.get("__name__") or "")
        if own is not self.globals and not is_users(code.co_filename, module):
            return
        names = {name for one in _codes(code) for name in one.co_names}
        self._hold("" if own is self.globals else module + ".", own, names.__contains__)

    def _cell(self, name, cell):
        value = entry_of(cell, None)
        self.held[id(cell)] = name, cell, value
        self._queue.append((name, value))

    def _hold(self, name, container, wanted=None):
        is_dict = isinstance(container, dict)
        if wanted is None:
            self.wanted.pop(id(container), None)
        elif id(container) in self.wanted or id(container) not in self.held:
            self.wanted.setdefault(id(container), []).append(wanted)
        if len(container) > ENTRIES_MAX:
            self.held[id(container)] = name, container, _Large(container)
            return
        before = self.held.get(id(container), (None, None, {} if is_dict else []))[2]
        if is_dict:
            before = {**before, **{k: v for k, v in list(container.items()) if wanted is None or wanted(k)}}
            self._queue += [(_named(name, key), value) for key, value in before.items()]
        else:
            before = list(container)
            self._queue += [(f"{name}[{i}]", value) for i, value in enumerate(before)]
        self.held[id(container)] = name, container, before

    # changes of a capture

    def exchange(self, fakes):
        """Put fake tensors in the place of the model's; restore() puts those back.

        @fakes: id of a tensor of the model -> the one that stands for it in the capture.
        """
        self.fakes = dict(fakes)
        for _, container, before in self.held.values():
            entries = {None: before} if isinstance(container, types.CellType) else before if isinstance(before, dict) else \
                dict(enumerate(before)) if isinstance(before, list) else {}
            for key, value in entries.items():
                now = self._exchanged(value)
                if now is not value:
                    _set(container, key, now)
        for _, container, entries in self.keyed:
            _refill(container, map(self._exchanged, entries))

    def _exchanged(self, value):
        """Return a value with fake tensors in it, and in tuples, in the place of the model's."""
        if isinstance(value, (tuple, frozenset)) and id(value) not in self.fakes:
            made = [self._exchanged(one) for one in value]
            if any(new is not old for new, old in zip(made, value)):
                self.fakes[id(value)] = value._make(made) if hasattr(value, "_make") else type(value)(made)
        return self.fakes.get(id(value), value)

    def changed(self):
        """Return the places that hold other tensors than before. CannotCapture for changes that a graph does not have."""
        fakes = self.fakes
        for name, container, before in self.keyed:
            now = list(container.items() if isinstance(container, dict) else container)
            if len(now) != len(before) or any(new is not self._exchanged(old) for new, old in zip(_flat(now), _flat(before))):
                refuse_change(name)
        for name, thing, before in self.moving:
            if _state(thing) != before:
                raise CannotCapture(f"the step takes from {name}, a {type(thing).__name__}, so each step is another graph: "
                                    "take from it outside, and give the step what it gave", "Python state")
        for name, thing, before in self.contents:
            if not _are_same(_contents_like(thing, before), before):
                refuse_change(f"the {type(thing).__name__} {name}")
        found = []
        for name, container, before in self.held.values():
            if isinstance(container, types.CellType):
                found += self._compared(name, container, None, before, fakes)
            elif isinstance(before, _Large):
                if len(container) != before.length:
                    refuse_change(f"len({name})")
                if not before.is_same(container):
                    refuse_change(f"an entry of {name}")
            elif isinstance(container, type):
                for key, value in before.items():
                    found += self._compared(f"{name}{key}", container, key, value, fakes)
            elif isinstance(container, dict):
                for key in {**before, **container}:
                    if key not in before and not self._is_held(container, key):
                        continue
                    found += self._compared(_named(name, key), container, key, before.get(key, ABSENT), fakes)
                    if found and id(container) in self.parameters and found[-1].container is container:
                        refuse_change(f"the parameter {_named(name, key)}")
            elif len(container) != len(before) or _has_rolled(container, list(map(self._exchanged, before))):
                if any(type(one) is ComputedNumber for one in container):
                    raise CannotCapture(f"the step adds the number of .item() to {name}; return it, and add it after the step",
                                        "Python state", next(line_of(one) for one in container if type(one) is ComputedNumber))
                refuse_change(f"len({name})")
            else:
                for i, value in enumerate(before):
                    found += self._compared(f"{name}[{i}]", container, i, value, fakes)
        return found

    def _is_held(self, container, key):
        """True if the entry of a dict under @key is held, or would be if it were there."""
        tests = self.wanted.get(id(container))
        return tests is None or any(test(key) for test in tests)

    def _compared(self, name, container, key, before, fakes):
        """Return [Place] if a value is another one, or [] if it is the same or equal."""
        now = entry_of(container, key)
        if now is before or now is fakes.get(id(before), before):
            return []
        if isinstance(now, _PLAIN) and is_equal(now, before):
            return []
        if isinstance(now, _PLAIN) and not isinstance(before, (*_PLAIN, type(None))) and before is not ABSENT:
            refuse_change(name)
        if now is ABSENT or now is None and (isinstance(before, _PLAIN) or _tensors(before)):
            refuse_change(name)
        leaves = pytree.tree_leaves(now)
        if any(type(leaf) is ComputedNumber for leaf in leaves):
            raise CannotCapture(f"the step keeps the number of .item() in {name}; return it, and assign it after the step",
                                "Python state", next(line_of(leaf) for leaf in leaves if type(leaf) is ComputedNumber))
        if any(not isinstance(leaf, torch.Tensor) and keeps_fakes(leaf) and id(leaf) not in self.met for leaf in leaves):
            raise CannotCapture(f"the step keeps a {type(now).__name__} with tensors in {name}; keep the tensors alone, or "
                                "return them", "Python state")
        n_before = len(_tensors(before))
        if not _tensors(now) and not isinstance(now, _PLAIN):
            if id(now) not in self.met and is_equal(now, before):
                return []
            reaches = _reaches_fakes(now, self.met)
            if reaches:
                raise CannotCapture(f"the step keeps a {type(now).__name__} with tensors in {name}; keep the tensors alone, or "
                                    "return them", "Python state")
            if reaches is None:
                raise CannotCapture(f"the step keeps a {type(now).__name__} with over {_MADE_MAX} new objects in {name}; make it outside "
                                    "of the step", "Python state")
            return [Place(name, container, key, before)]
        if n_before and n_before != len(_tensors(now)):
            refuse_change(f"the number of tensors in {name}")
        return [Place(name, container, key, before)]

    def restore(self):
        """Put all entries back; iterators stay where they are."""
        for _, container, before in self.held.values():
            if isinstance(container, types.CellType):
                if entry_of(container, None) is not before:
                    _set(container, None, before)
            elif isinstance(before, _Large):
                before.restore(container)
            elif isinstance(container, type):
                for key in [key for key, value in before.items() if entry_of(container, key) is not value]:
                    _set(container, key, before[key])
            elif isinstance(container, dict):
                lost = [key for key in container if key not in before and self._is_held(container, key)]
                for key in lost:
                    del container[key]
                container.update(before)
                if len(container) == len(before) and list(container) != list(before):  # an entry that was removed is the last
                    _refill(container, before)
            elif len(container) != len(before) or any(a is not b for a, b in zip(container, before)):
                container.clear()
                container.extend(before)
        for _, container, entries in self.keyed:
            _refill(container, entries)
        for _, thing, before in self.contents:
            if not _are_same(_contents_like(thing, before), before):
                _set_contents(thing, before)


class _Large:
    """The entries of a large list or dict, which a step does not exchange; those that it makes anew and equal are the same."""

    def __init__(self, container):
        self.length = len(container)
        self.parts = list(map(list, self._parts(container))) if self.length <= _COMPARED_MAX else []

    @staticmethod
    def _parts(container):
        return (container.keys(), container.values()) if isinstance(container, dict) else (container,)

    def is_same(self, container):
        pairs = list(zip(self._parts(container), self.parts))
        return len(container) == self.length and all(all(map(operator.is_, *pair)) or all(map(_is_same, *pair)) for pair in pairs)

    def restore(self, container):
        if not self.parts or self.is_same(container):
            return
        container.clear()
        if isinstance(container, dict):
            container.update(zip(*self.parts))
        else:
            container.extend(self.parts[0])


def _is_same(now, before):
    """True for the same object, or an equal number or text."""
    return now is before or isinstance(now, _PLAIN) and is_equal(now, before)


def _refill(container, entries):
    container.clear()
    container.update(entries)


def _has_contents(thing):
    """True for a set or an array, whose contents are compared as a whole."""
    return isinstance(thing, (set, *_BUFFERS)) or _is_array(thing)


def _is_array(thing):
    """True for NumPy's arrays and scalars."""
    return type(thing).__module__ == "numpy" and hasattr(thing, "tobytes") and hasattr(thing, "flags")


def bytes_of(thing):
    """Return the bytes of an array or a buffer, 0 for a set."""
    return memoryview(thing).nbytes if isinstance(thing, _BUFFERS) else getattr(thing, "nbytes", 0)


def contents_of(thing):
    """Return a copy of the contents of a set or array, a large set's length, or None for other things."""
    if isinstance(thing, set):
        return set(thing) if len(thing) <= _COMPARED_MAX else len(thing)
    if isinstance(thing, bytearray):
        return bytes(thing)
    if isinstance(thing, _BUFFERS):
        return thing.tobytes()
    if not _is_array(thing):
        return None
    if thing.dtype == object:
        return thing.ravel().tolist()
    return None if thing.dtype.hasobject else thing.tobytes()


def slots_in(thing):
    """Return {key: value} of an object's slots."""
    return {key: getattr(thing, key) for key in _slots_of(type(thing)) if hasattr(thing, key)}


def _contents_like(thing, before):
    """Return what a thing has now, of the kind of @before: its slots or its contents."""
    return slots_in(thing) if isinstance(before, dict) else contents_of(thing)


def _are_same(now, before):
    """True if the contents of a thing, or its slots, are those that it had before."""
    if isinstance(before, list):
        return len(now) == len(before) and all(map(_is_same, now, before))
    if not isinstance(before, dict):
        return now == before
    return now.keys() == before.keys() and all(_is_same(one, before[key]) for key, one in now.items())


def has_contents(thing, before):
    """True if a thing has the contents @before, or these values in these slots."""
    if isinstance(before, dict):
        return all(_is_same(getattr(thing, key, ABSENT), value) for key, value in before.items())
    return _are_same(_contents_like(thing, before), before)


def _set_contents(thing, before):
    if isinstance(before, dict):
        for key in _slots_of(type(thing)):
            if key in before:
                setattr(thing, key, before[key])
            elif hasattr(thing, key):
                delattr(thing, key)
    elif isinstance(thing, set):
        if isinstance(before, set):
            _refill(thing, before)
    elif isinstance(thing, _BUFFERS):
        if isinstance(thing, memoryview) and thing.c_contiguous:
            thing = thing.cast("B")
        thing[:] = array.array(thing.typecode, before) if isinstance(thing, array.array) else \
            memoryview(before).cast(thing.format) if isinstance(thing, memoryview) else before
    elif isinstance(before, list):
        for i, one in enumerate(before):
            thing.flat[i] = one
    else:
        numpy = sys.modules["numpy"]
        thing[...] = numpy.frombuffer(before, thing.dtype).reshape(thing.shape)


@functools.lru_cache(4096)
def _slots_of(kind):
    """Return the slots of a class of the user's, those of private names as Python names them."""
    if is_foreign(kind.__module__) or kind.__module__ in _STDLIB_NAMES:
        return ()
    return tuple(key for base in kind.__mro__ if base.__module__ not in _STDLIB_NAMES
                 for key, value in vars(base).items() if isinstance(value, types.MemberDescriptorType))


def is_equal(one, other):
    """True if two values, of which the step has just made @one, have the same numbers, texts, functions and objects."""
    if one is other:
        return True
    if type(one) is not type(other) or isinstance(one, torch.Tensor):
        return False
    if isinstance(one, (float, complex)):  # by bits: 0.0 is not -0.0, and a number that is none is itself
        return _BITS.pack(one.real, one.imag) == _BITS.pack(other.real, other.imag)
    if isinstance(one, _PLAIN):
        return one == other
    if isinstance(one, types.FunctionType):
        cells = [[entry_of(cell, None) for cell in each.__closure__ or ()] for each in (one, other)]
        return one.__code__ is other.__code__ and is_equal([cells[0], one.__defaults__], [cells[1], other.__defaults__])
    if isinstance(one, weakref.ref):  # to a fake tensor, where the step refers to one of the model's
        return True
    if isinstance(one, types.MethodType):
        return one.__func__ is other.__func__ and one.__self__ is other.__self__
    if isinstance(one, (list, tuple, collections.deque)):
        return len(one) == len(other) and all(map(is_equal, one, other))
    if isinstance(one, dict):
        return list(one) == list(other) and all(map(is_equal, one.values(), other.values()))
    if isinstance(one, torch.nn.Module) or type(getattr(one, "__dict__", None)) is not dict:
        before = contents_of(other) if contents_of(other) is not None else slots_in(other) or None
        return before is not None and _are_same(_contents_like(one, before), before)
    return is_equal(vars(one), vars(other))


def _flat(entries):
    """Return the keys and values of a dict's entries, or the members of a set."""
    return [part for one in entries for part in (one if isinstance(one, tuple) else (one,))]


def _has_rolled(container, before):
    """True if a full deque has taken entries."""
    return isinstance(container, collections.deque) and len(before) == container.maxlen \
        and any(a is not b for a, b in zip(container, before))


def _state(thing):
    """Return the state of an iterator or a generator of random numbers, or None for other things."""
    if isinstance(thing, random.Random):
        return thing.getstate()
    if hasattr(type(thing), "bit_generator"):  # NumPy's
        return repr(thing.bit_generator.state)
    if isinstance(thing, types.GeneratorType):
        frame = thing.gi_frame
        return frame and (frame.f_lasti, {name: id(value) for name, value in frame.f_locals.items()})
    if not hasattr(type(thing), "__next__"):
        return None
    own = getattr(thing, "__dict__", None)
    if type(own) is dict:
        return {name: value for name, value in own.items() if isinstance(value, _PLAIN)}
    with contextlib.suppress(TypeError):
        return _counts(thing.__reduce__())
    return None


def _counts(thing):
    """Return the numbers of a pickled iterator, those of its iterators included; data that it goes through left out."""
    if isinstance(thing, tuple):
        return [_counts(item) for item in thing]
    if isinstance(thing, int):
        return thing
    return _state(thing) if hasattr(type(thing), "__next__") else None


def is_foreign(module):
    """True for the name of a module whose objects no step changes, or which patches.py replaces."""
    return module.split(".")[0] in _FOREIGN


def is_users(file, name=""):
    """True for the file of a user's code, or a cell of a notebook; @name: of its module."""
    if name.split(".")[0] in _STDLIB_NAMES or is_foreign(name):
        return False
    return file.startswith(_CELLS) or not file.startswith((PACKAGES, STDLIB, OWN, "<"))


def _is_own(key):
    """True for an attribute that the user, not torch, gives an optimizer or a scheduler."""
    return key not in _OPTIMIZERS and not key.startswith("_optimizer_")


def _functions_of(attribute):
    """Yield the functions of an attribute of a class that are of the user's files."""
    for one in (attribute, getattr(attribute, "__func__", None), *(getattr(attribute, key, None) for key in ("fget", "fset"))):
        if isinstance(one, types.FunctionType) and is_users(one.__code__.co_filename, one.__module__ or ""):
            yield one


def _named(name, key):
    if isinstance(key, weakref.ref):
        return f"{name}[a {type(key()).__name__}]"
    return f"{name}{key}" if not name or name.endswith(".") else f"{name}[{key!r}]"


def _codes(code):
    """Yield a code object and those of the functions inside of it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


def hooks_of(tensor):
    """Return the hooks of a parameter."""
    return [*(tensor._backward_hooks or {}).values(), *(tensor._post_accumulate_grad_hooks or {}).values()]


def keeps_fakes(thing):
    """True if an object has tensors of a capture as attributes."""
    own = getattr(thing, "__dict__", None)
    return type(own) is dict and any(isinstance(t, FakeTensor) for t in pytree.tree_leaves(list(own.values())))


def _reaches_fakes(thing, met):
    """True if an object that the step has made holds tensors of the capture, None if it is too large to tell.

    @met: ids of objects that were there before.
    """
    queue, seen = [thing], set(met)
    while queue:
        if len(seen) - len(met) >= _MADE_MAX:
            return None
        one = queue.pop()
        if isinstance(one, FakeTensor):
            return True
        if id(one) in seen or isinstance(one, (*_PLAIN, type, types.ModuleType, types.CodeType)):
            continue
        seen.add(id(one))
        queue += [one.__closure__, one.__defaults__, one.__kwdefaults__, one.__dict__] if isinstance(one, types.FunctionType) \
            else gc.get_referents(one)
    return False


def refuse_change(name):
    raise CannotCapture(f"the step changes {name} in Python, so each step may be another graph", "Python state")
