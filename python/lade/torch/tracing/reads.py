# SPDX-License-Identifier: Apache-2.0
"""Entries of Python's containers that a step's code reads, so that a later call sees where one has changed between steps.

A capture takes a number in an attribute, a closure or a list as a constant, and a tensor there as itself. The code objects
that ran in the capture name the attributes, globals and keys that it may have read. Each call compares these entries with
those of the capture. One that differs becomes a place (places.py): its value is a part of a plan's key, and its tensors are
looked up in each step.
"""
import dis
import functools
import operator
import os
import sys
import threading
import types
import weakref
from unittest import mock

import torch

from .. import forms
from .places import ENTRIES_MAX, LISTS as _LISTS, MODULE_FIELDS, OWN as _OWN, PACKAGES as _PACKAGES, SMALL_MAX, STDLIB as _STDLIB, STEPPED, \
    Place, Places, bytes_of, entry_of, has_contents, is_foreign, is_users

_TORCH = os.path.join(os.path.dirname(torch.__file__), "")
_MONITORING = getattr(sys, "monitoring", None)  # since Python 3.12
_TOOLS = 3, 4, 5  # of sys.monitoring, those that debuggers, coverage and profilers do not take first
_PLAIN = (int, float, str, bytes)
_LOOKUPS = os.path.join(_STDLIB, "os.py"), os.path.join(_STDLIB, "_collections_abc.py"), "<frozen "  # that os.environ runs in
_GLOBALS = frozenset(("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"))
_ATTRIBUTES = frozenset(("LOAD_ATTR", "LOAD_SUPER_ATTR", "LOAD_SUPER_METHOD", "IMPORT_FROM"))
_HAS_FLAG = sys.version_info >= (3, 12)  # the lowest bit of LOAD_ATTR's argument stands for a call
_BY_TEXT = frozenset(("getattr", "hasattr", "vars", "__dict__", "attrgetter", "__getattribute__"))


class Codes:
    """Within this context the code objects that run in this thread are noted, with the globals of their functions.

    Equal code objects of two files are equal keys of a dict, so ids are the keys. sys.monitoring tells of a library's code once,
    and of each call of the user's, which may run with other globals. It tells of all threads. Autograd's own run hooks of the
    step, and count. Before Python 3.12 a profiler is told of each call, so it pauses below an op; one of the user's keeps its place.
    """

    def __init__(self):
        self.found, self.is_on, self.tool = {}, False, None  # found: (id of a code object, id of globals) -> both
        self.thread = None
        self.variables = Variables()

    def _note(self, frame, event, _arg):
        if event == "call":
            code, own = frame.f_code, frame.f_globals
            self.found[id(code), id(own)] = code, own

    def _started(self, code, _offset):
        if not _has_names(code.co_filename):
            return _MONITORING.DISABLE
        frame = sys._getframe(1)
        if threading.get_ident() != self.thread and _is_of_python(frame):
            return None
        self.found[id(code), id(frame.f_globals)] = code, frame.f_globals
        return None if is_users(code.co_filename) else _MONITORING.DISABLE

    def _monitor(self, callback, events):
        for event in (_MONITORING.events.PY_START, _MONITORING.events.PY_RESUME):
            _MONITORING.register_callback(self.tool, event, callback)
        _MONITORING.set_events(self.tool, events)

    def __enter__(self):
        self.thread = threading.get_ident()
        self.variables.__enter__()
        self.tool = next((tool for tool in _TOOLS if _MONITORING.get_tool(tool) is None), None) if _MONITORING else None
        if self.tool is not None:
            _MONITORING.use_tool_id(self.tool, "lade")
            self._monitor(self._started, _MONITORING.events.PY_START | _MONITORING.events.PY_RESUME)
            _MONITORING.restart_events()  # those that an earlier capture was told of
            return self
        self.is_on = sys.getprofile() is None
        if self.is_on:
            sys.setprofile(self._note)
        return self

    def __exit__(self, *fault):
        self.variables.__exit__(*fault)
        if self.tool is not None:
            self._monitor(None, 0)
            _MONITORING.free_tool_id(self.tool)
            self.tool = None
        if self.is_on:
            sys.setprofile(None)
            self.is_on = False

    def pause(self):
        """Stop noting; return True if resume() is due."""
        is_due = self.is_on and _MONITORING is None and sys.getprofile() is not None
        if is_due:
            sys.setprofile(None)
        return is_due

    def resume(self):
        sys.setprofile(self._note)


class Variables:
    """Within this context the keys of the environment that code asks for are noted, but for code of torch and Python's library.

    Reads by all threads count: another variable that a plan depends on costs a comparison in each call.
    """

    def __init__(self):
        self.keys, self.is_whole = set(), False  # as os.environ stores them; is_whole: all of them are read

    def __enter__(self):
        kind, variables = type(os.environ), self
        self.patches = [mock.patch.object(kind, name, variables._noting(getattr(kind, name))) for name in ("__getitem__", "__iter__", "__len__")]
        for patch in self.patches:
            patch.__enter__()

    def __exit__(self, *fault):
        for patch in self.patches:
            patch.__exit__(*fault)

    def _noting(self, plain):
        def noted(environment, *key):
            if environment is os.environ and _has_names(_caller()):
                if not key:
                    self.is_whole = True
                elif isinstance(key[0], str):
                    self.keys.add(environment.encodekey(key[0]))
            return plain(environment, *key)
        return noted

    def entries(self):
        """Return the entries of the environment that were read, or None."""
        own = os.environ._data
        if self.is_whole:
            return _Entries("os.environ", own, dict(own), None)
        return _Entries("os.environ.", own, {key: own[key] for key in self.keys if key in own}, frozenset(self.keys)) if self.keys else None


def _caller():
    """Return the file of the code that asks os.environ."""
    frame = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename.startswith(_LOOKUPS):
        frame = frame.f_back
    return frame.f_code.co_filename if frame is not None else ""


def _is_of_python(frame):
    """True for a frame of a thread that Python started; the callers in one of autograd's are its hooks alone."""
    if threading.get_ident() == threading.main_thread().ident:
        return True
    while frame.f_back is not None:
        frame = frame.f_back
    return frame.f_code is threading.Thread._bootstrap.__code__


class _Names:
    """The names that code objects load: globals, attributes, attributes that they call, and texts."""

    def __init__(self, code=None):
        self.globals, self.attributes, self.methods, self.texts = set(), set(), set(), set()
        for one in dis.get_instructions(code) if code is not None else ():
            if one.opname in _GLOBALS:
                self.globals.add(one.argval)
            elif one.opname == "LOAD_METHOD" or one.opname == "LOAD_ATTR" and _HAS_FLAG and one.arg & 1:
                self.methods.add(one.argval)
            elif one.opname in _ATTRIBUTES:
                self.attributes.add(one.argval)
        if code is not None:
            self._add_texts(code.co_consts)

    def _add_texts(self, constants):
        for one in constants:
            if isinstance(one, str):
                self.texts.add(one)
            elif isinstance(one, (tuple, frozenset)):
                self._add_texts(one)

    def join(self, other):
        self.globals |= other.globals
        self.attributes |= other.attributes
        self.methods |= other.methods
        self.texts |= other.texts

    def asked(self):
        """Return the names of attributes that the code may ask for; texts are names where it calls getattr or the like."""
        return self.attributes | self.texts if _BY_TEXT & (self.globals | self.attributes | self.methods) else self.attributes


@functools.lru_cache(4096)
def _names_of(code):
    return _Names(code)


def _has_names(file):
    """True for a file whose code may ask for attributes of the user's objects."""
    if file.startswith(_TORCH):
        return "/nn/" in file
    return file.startswith(_PACKAGES) or not file.startswith((_STDLIB, _OWN))


class Reads(Places):
    """The entries that the code of one capture may have read, with their values."""

    def __init__(self, fn, modules, arguments, codes, known, read):
        """@known: places, whose signatures and inputs have all that lists and dicts there hold.

        @read: id of a tensor of the model -> the names of its attributes that the step reads.
        """
        self.read = read
        self.codes, self.entries, self.known = list(codes.found.values()), {}, {place.id for place in known}
        self.names = self.called = None  # without a note every name may be read
        if self.codes:
            all_names = _Names()
            for code, _ in self.codes:
                if _has_names(code.co_filename):
                    all_names.join(_names_of(code))
            self.names, self.called = all_names.asked(), all_names.methods
        self.environment = codes.variables.entries()
        super().__init__(fn, modules, arguments)
        asked = self.names
        self.contents = [(name, thing, {key: value for key, value in before.items() if asked is None or key in asked}
                          if isinstance(before, dict) else before) for name, thing, before in self.contents]

    def holders(self, own, places):
        """Yield names of entries that are, or are tuples of, tensors with ids in @own, and that @places has not exchanged."""
        seen = {*places.held, *(id(container) for _, container, _ in places.keyed)}
        found = [(entries.label(key), value) for entries in self.entries.values() if id(entries.container) not in seen
                 for key, value in entries.values.items()]
        found += [(name, container) for name, container, _ in self.keyed if id(container) not in seen]
        for name, value in found:
            if any(id(one) in own for one in (value if isinstance(value, (tuple, frozenset, set, dict)) else [value])):
                yield name

    def _start(self):
        if self.environment is not None:
            self._add(self.environment)
        for code, own in self.codes:
            if is_users(code.co_filename, str(own.get("__name__") or "")):
                self._attributes("", own, _names_of(code).globals)

    def _visit(self, name, thing):
        if isinstance(thing, types.ModuleType):
            if is_users(getattr(thing, "__file__", None) or "<", thing.__name__):
                self._attributes(name + ".", vars(thing))
        elif isinstance(thing, type):
            file = getattr(sys.modules.get(thing.__module__), "__file__", None) or "<stdin>"
            if is_users(file, thing.__module__):
                self._attributes(name + ".", thing)
        elif self.names is not None or not isinstance(thing, STEPPED):  # a scheduler counts its steps
            super()._visit(name, thing)
            if type(thing).__module__ != "builtins" and not is_foreign(type(thing).__module__):
                self._queue += [(kind.__name__, kind) for kind in type(thing).__mro__]

    def _module(self, module):
        kind, own = type(module).__name__ + ".", vars(module)
        if not isinstance(module, torch.jit.ScriptModule):
            self._attributes(kind, own, wanted=lambda key: key not in MODULE_FIELDS)
            self._add(_Entries(kind, module._modules, dict(module._modules), None))
            self._queue += [(kind + key, hook) for key in own if key.endswith("_hooks") for hook in (own[key] or {}).values()]
            for key, tensor in (*module._parameters.items(), *module._buffers.items()):
                if self.read.get(id(tensor)):
                    self._attributes(f"{kind}{key}.", vars(tensor), frozenset(self.read[id(tensor)]))

    def _function(self, function):
        self._queue += list(zip(function.__code__.co_freevars, function.__closure__ or ()))
        if function.__dict__:
            self._attributes(function.__name__ + ".", function.__dict__)

    def _cell(self, name, cell):
        self._add(_Entries(name, cell, {None: entry_of(cell, None)}, None))

    def _hold(self, name, container, wanted=None):
        if isinstance(container, dict) and name.endswith("."):
            self._attributes(name, container, wanted=wanted)
            return
        values = {} if len(container) > ENTRIES_MAX else dict(container if isinstance(container, dict) else enumerate(container))
        self._add(_Entries(name, container, values, None))

    def _content(self, name, thing):
        """Hold the contents of a small set or array, which are constants of the plan."""
        is_small = len(thing) <= ENTRIES_MAX if isinstance(thing, set) else bytes_of(thing) <= SMALL_MAX
        if is_small and not any(isinstance(one, weakref.ref) for one in (thing if isinstance(thing, set) else ())):
            super()._content(name, thing)

    def _attributes(self, name, own, names=None, wanted=None):
        """Hold the attributes of an object or a class that code may ask for, or globals with one of the @names.

        @wanted(key): True for an attribute that may be held.
        """
        called = (self.called if names is None else None) or ()
        names = self.names if names is None else names
        names = frozenset(filter(wanted, _table(own) if names is None else names))
        values = {key: value for key, value in list(_table(own).items())
                  if key in names or key in called and callable(value) and (wanted is None or wanted(key))}
        self._add(_Entries(name, own, values, names))

    def _add(self, entries):
        """Hold entries, and visit their values."""
        container = entries.container
        for key, value in list(entries.values.items()):
            if (id(container), key) in self.known:
                del entries.values[key]
                self._queue += [(entries.label(key), leaf) for leaf in forms.flatten(value)[0]]
            else:
                self._queue.append((entries.label(key), value))
        if id(container) in self.entries:
            self.entries[id(container)].join(entries)
        else:
            self.entries[id(container)] = entries


class _Entries:
    """The entries of one container."""

    def __init__(self, name, container, values, names):
        """@values: {key: value}. @names: of attributes that code may ask for, None if all keys are read."""
        self.name, self.container, self.values, self.names = name, container, values, names
        self.is_whole = names is None and not isinstance(container, types.CellType)  # its length is read too
        self.shape = _shape(container)

    def copy(self):
        other = _Entries(self.name, self.container, dict(self.values), self.names)
        other.shape = self.shape
        return other

    def join(self, other):
        self.values.update(other.values)
        if self.names is not None:
            self.names = self.names | other.names if other.names is not None else None

    def is_same(self):
        if self.shape is None:
            return all(entry_of(self.container, None) is value for value in self.values.values())
        if not _is_of(self.container, self.shape):
            return False
        table = _table(self.container)
        now = map(table.__getitem__ if isinstance(table, _LISTS) else table.get, self.values)
        return all(map(operator.is_, now, self.values.values()))

    def places(self, known):
        """Return places of the entries that differ, those of @known apart, or None if the whole container is one."""
        has_changed = self.shape is not None and not _is_of(self.container, self.shape)
        if self.is_whole and has_changed:
            return None
        found = []
        for key, before in list(self.values.items()):
            now = entry_of(self.container, key)
            if now is before:
                continue
            if (id(self.container), key) in known:
                del self.values[key]
            elif type(now) is type(before) and isinstance(now, _PLAIN) and now == before and repr(now) == repr(before):
                self.values[key] = now
            else:
                del self.values[key]
                found.append(self._place(key))
        if has_changed:
            new = _table(self.container).keys() - self.shape
            self.shape = _shape(self.container)
            found += [self._place(key) for key in new if key in self.names and key not in self.values
                      and (id(self.container), key) not in known
                      and not any(place.key == key for place in found)]
        return found

    def label(self, key):
        if isinstance(self.container, types.CellType):
            return self.name
        key = os.fsdecode(key) if isinstance(key, bytes) and self.names is not None else key
        return f"{self.name}{key}" if self.names is not None else f"{self.name}[{key!r}]"

    def _place(self, key):
        return Place(self.label(key), self.container, key, None)


def _table(container):
    """Return a container, or the attributes of a class."""
    return vars(container) if isinstance(container, type) else container


def _shape(container):
    """Return the keys of a dict or a class, the length of a list, or None for a cell."""
    if isinstance(container, types.CellType):
        return None
    table = _table(container)
    return frozenset(table) if not isinstance(table, _LISTS) and len(table) <= ENTRIES_MAX else len(table)


def _is_of(container, shape):
    table = _table(container)
    return table.keys() == shape if isinstance(shape, frozenset) else len(table) == shape


class Known:
    """The entries that the captures of a step's plans may have read."""

    def __init__(self):
        self.all, self.wholes = {}, {}  # by the ids of containers; wholes: those that are a place as a whole
        self.contents = {}  # by the ids of sets, arrays and objects with slots: (name, itself, its contents)

    def forget(self):
        """Drop the entries and contents of plans that are dropped."""
        self.all, self.contents = {}, {}

    def moved(self):
        """Return the name of a set, an array or an object whose contents are not those of the captures, or None."""
        return next((name for name, thing, before in self.contents.values() if not has_contents(thing, before)), None)

    def add(self, reads):
        self.contents.update((id(thing), (name, thing, before)) for name, thing, before in reads.contents)
        for key, entries in reads.entries.items():
            if key in self.wholes:
                continue
            if key in self.all:
                self.all[key].join(entries)
            else:
                self.all[key] = entries.copy()

    def changed(self, known):
        """Return new places of entries that differ from the captures', those of the places @known apart."""
        found = []
        for key, entries in list(self.all.items()):
            if not entries.is_same():
                places = entries.places(known)
                if places is None:
                    del self.all[key]
                    box = {"all": entries.container}
                    self.wholes[key] = entries.container
                    places = [Place(entries.name, box, "all", None)]
                found += places
        return found
