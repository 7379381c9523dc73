# SPDX-License-Identifier: Apache-2.0
"""Entries of Python's containers that a step's code reads, so that a later call sees where one has changed between steps.

A capture takes a number in an attribute, a closure or a list as a constant, and a tensor there as itself. The code objects
that ran in the capture name the attributes, globals and keys that it may have read. Each call compares these entries with
those of the capture. One that differs becomes a place (places.py): its value is a part of a plan's key, and its tensors are
looked up in each step.
"""
import operator
import os
import sys
import types

import torch

from .places import ENTRIES_MOST, MODULE_FIELDS, Place, Places, entry_of, is_foreign

_PACKAGES = os.path.join(os.path.dirname(os.path.dirname(torch.__file__)), "")
_STDLIB = os.path.join(os.path.dirname(os.__file__), "")
_OWN = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "")
_CAN_PAUSE = sys.version_info < (3, 12)  # later releases instrument all code anew when a profiler comes or goes
_PLAIN = (int, float, str)


class Codes:
    """Within this context the code objects that run are noted, but below an op. A profiler of the user's keeps its place."""

    def __init__(self):
        self.found, self.is_on = {}, False  # found: code object -> globals of the function

    def _note(self, frame, event, _arg):
        if event == "call":
            self.found[frame.f_code] = frame.f_globals

    def __enter__(self):
        self.is_on = sys.getprofile() is None
        if self.is_on:
            sys.setprofile(self._note)
        return self

    def __exit__(self, *fault):
        if self.is_on:
            sys.setprofile(None)
            self.is_on = False

    def pause(self):
        """Stop noting; return True if resume() is due."""
        is_due = _CAN_PAUSE and self.is_on and sys.getprofile() is not None
        if is_due:
            sys.setprofile(None)
        return is_due

    def resume(self):
        sys.setprofile(self._note)

    def names(self):
        """Return the names and texts of the noted code, or None if nothing was noted."""
        found = set()
        for code in self.found:
            found.update(code.co_names)
            for constant in code.co_consts:
                found.update(one for one in (constant if isinstance(constant, tuple) else (constant,)) if isinstance(one, str))
        return found or None


def _is_users(file):
    return not file.startswith((_PACKAGES, _STDLIB, _OWN, "<"))


class Reads(Places):
    """The entries that the code of one capture may have read, with their values."""

    def __init__(self, fn, modules, arguments, codes):
        self.names, self.codes, self.entries = codes.names(), codes.found, {}
        super().__init__(fn, modules, arguments)

    def _start(self):
        for code, own in self.codes.items():
            if _is_users(code.co_filename):
                self._attributes("", own, set(code.co_names).__contains__)

    def _visit(self, name, thing):
        if isinstance(thing, types.ModuleType):
            if _is_users(getattr(thing, "__file__", None) or "<") and not is_foreign(thing.__name__):
                self._attributes(name + ".", vars(thing))
        else:
            super()._visit(name, thing)

    def _module(self, module):
        kind, own = type(module).__name__ + ".", vars(module)
        if not isinstance(module, torch.jit.ScriptModule):
            self._attributes(kind, own, lambda key: key not in MODULE_FIELDS)
            self._queue += [(kind + key, hook) for key in own if key.endswith("_hooks") for hook in (own[key] or {}).values()]
            self._queue += [(type(other).__name__, other) for other in module._modules.values() if other is not None]

    def _function(self, function):
        self._queue += list(zip(function.__code__.co_freevars, function.__closure__ or ()))

    def _cell(self, name, cell):
        value = entry_of(cell, None)
        self.entries[id(cell)] = _Entries(name, cell, {None: value}, None)
        self._queue.append((name, value))

    def _hold(self, name, container, _wanted=None):
        if isinstance(container, dict) and name.endswith("."):
            self._attributes(name, container)
            return
        values = {} if len(container) > ENTRIES_MOST else dict(container if isinstance(container, dict) else enumerate(container))
        self.entries[id(container)] = _Entries(name, container, values, None)
        self._queue += [(f"{name}[{key!r}]", value) for key, value in values.items()]

    def _attributes(self, name, own, wanted=lambda _key: True):
        """Hold the attributes of an object, or globals, that have one of the names and are @wanted."""
        values = {key: value for key, value in list(own.items()) if wanted(key) and (self.names is None or key in self.names)}
        known = self.entries.setdefault(id(own), _Entries(name, own, {}, self.names))
        known.values.update(values)
        self._queue += [(name + key, value) for key, value in values.items()]


class _Entries:
    """The entries of one container."""

    def __init__(self, name, container, values, names):
        """@values: {key: value}. @names: of attributes that code may ask for, None if all keys are read."""
        self.name, self.container, self.values, self.names = name, container, values, names
        self.is_whole = names is None and not isinstance(container, types.CellType)  # its length is read too
        self.n = None if isinstance(container, types.CellType) else len(container)

    def join(self, other):
        self.values.update(other.values)
        if self.names is not None:
            self.names = self.names | other.names if other.names is not None else None

    def is_same(self):
        if self.n is None:
            return all(entry_of(self.container, None) is value for value in self.values.values())
        if len(self.container) != self.n:
            return False
        now = map(self.container.get if isinstance(self.container, dict) else self.container.__getitem__, self.values)
        return all(map(operator.is_, now, self.values.values()))

    def places(self, known):
        """Return places of the entries that differ, those of @known apart; they are no entries any more."""
        if self.is_whole and len(self.container) != self.n:
            return None
        found = []
        for key, before in list(self.values.items()):
            now = entry_of(self.container, key)
            if now is before:
                continue
            if (id(self.container), key) in known:
                del self.values[key]
            elif type(now) is type(before) and isinstance(now, _PLAIN) and now == before:
                self.values[key] = now
            else:
                del self.values[key]
                found.append(self._place(key))
        if self.n is not None and len(self.container) != self.n:
            self.n = len(self.container)
            found += [self._place(key) for key in list(self.container) if key in self.names and key not in self.values
                      and key not in MODULE_FIELDS and (id(self.container), key) not in known]
        return found

    def _place(self, key):
        name = self.name if isinstance(self.container, types.CellType) else f"{self.name}{key}" if self.names is not None \
            else f"{self.name}[{key!r}]"
        return Place(name, self.container, key, None)


class Known:
    """The entries that all captures of a step may have read."""

    def __init__(self):
        self.all, self.wholes = {}, {}  # by the ids of containers; wholes: those that are a place as a whole

    def add(self, reads):
        for key, entries in reads.entries.items():
            if key in self.wholes:
                continue
            if key in self.all:
                self.all[key].join(entries)
            else:
                self.all[key] = entries

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
