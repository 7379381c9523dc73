# SPDX-License-Identifier: Apache-2.0
"""float() of computed values within a step: during a capture calls of float() in the step's code become calls of as_float().
sum() of Python 3.12 and later rounds another way than a chain of additions, so it becomes as_sum() there. type() of one object
becomes as_type(), and id() becomes as_id().

float() returns a true float, so no object of a capture can stand for its result. A copy of each code object names as_float where
the code calls float, and leaves it where the code compares or passes float itself. The flag of LOAD_GLOBAL that tells the two
apart exists since Python 3.11; before, float() of a computed value is refused, and type() gives a class of this package. So it
does where type is passed to another function. Another thread that runs the copy meanwhile gets what float() gives it.
"""
import builtins
import collections
import contextlib
import dis
import functools
import sys
import types

import torch
from torch._subclasses.fake_tensor import FakeTensor

from . import fakes, numbers
from .numbers import ComputedNumber, HAS_EXACT_SUMS, is_among, of_sum
from .places import ENTRIES_MAX
from .reads import is_users

_IS_TOLD = sys.version_info >= (3, 11)  # the lowest bit of LOAD_GLOBAL's argument stands for a call
_INDEX_MAX = 127  # of a name in one byte, beside the flag
_VISITED_MAX = 100_000
_PLAIN = (int, float, str, bytes, type(None), torch.Tensor)
_CACHED = type(functools.lru_cache(len))


def as_float(*args):
    """Return float(*args), or a number of the capture for a computed value."""
    if len(args) == 1 and isinstance(args[0], FakeTensor):
        args = args[0].item(),
    if len(args) == 1 and type(args[0]) is ComputedNumber:
        return numbers.as_float(args[0])
    return float(*args)


def as_sum(*args, **kwargs):
    """Return sum(*args, **kwargs), or one number of the capture for a sum with computed values."""
    values, *rest = args or ((),)
    if not args or len(rest) + len(kwargs) > 1 or kwargs.keys() - {"start"}:
        return sum(*args, **kwargs)
    values = list(values)
    return of_sum(*rest, *kwargs.values(), values=values) if is_among(values + rest + list(kwargs.values())) else sum(values, *rest, **kwargs)


def as_type(*args, **kwargs):
    """Return type(*args, **kwargs), or the type that a computed number or a fake tensor has in an eager step."""
    if len(args) == 1 and not kwargs:
        if type(args[0]) is ComputedNumber:
            return numbers.type_of(args[0])
        return args[0].__class__ if type(args[0]) is FakeTensor else type(args[0])
    name = sys._getframe(1).f_globals.get("__name__")
    if len(args) == 3 and type(args[2]) is dict and name is not None:  # type() takes the module of its caller
        args = *args[:2], {"__module__": name, **args[2]}
    return type(*args, **kwargs)


def as_id(thing, /):
    """Return id(thing), that of the tensor which a fake one stands for."""
    return fakes.id_of(thing) if type(thing) is FakeTensor else id(thing)


_Called = collections.namedtuple("_Called", "own plain stand_in")  # name of the stand-in, Python's function, the stand-in
_CALLED = {"float": _Called("__lade_float__", float, as_float), "type": _Called("__lade_type__", type, as_type),
           "id": _Called("__lade_id__", id, as_id)}
if HAS_EXACT_SUMS:
    _CALLED["sum"] = _Called("__lade_sum__", sum, as_sum)


def _loads(code, name):
    """Return the offsets where a code object loads a global @name to call it, and whether it uses that name elsewhere too."""
    found = [one for one in dis.get_instructions(code) if one.opcode in dis.hasname and one.argval == name]
    calls = [one.offset for one in found if one.opname == "LOAD_GLOBAL" and one.arg & 1]
    return calls, len(calls) < len(found)


def replaced(code, names=frozenset(_CALLED)):
    """Return a copy of a code object that calls the functions of this file for those of @names, or itself if it calls none."""
    inner = tuple(replaced(one, names) if isinstance(one, types.CodeType) else one for one in code.co_consts)
    is_changed = any(new is not old for new, old in zip(inner, code.co_consts))
    raw, own = bytearray(code.co_code), list(code.co_names)
    for name in sorted(names.intersection(code.co_names)):
        calls, has_other = _loads(code, name)
        index = len(own) if has_other else own.index(name)
        if not calls or has_other and index > _INDEX_MAX:
            continue
        is_changed = True
        own[index:index + 1] = _CALLED[name].own,
        for offset in calls if has_other else ():
            raw[offset + 1] = index << 1 | 1
    return code.replace(co_code=bytes(raw), co_names=tuple(own), co_consts=inner) if is_changed else code


def _replaced_names(function):
    """Return the names that mean Python's own functions in a function's code: neither its module nor its builtins bind another."""
    if function.__builtins__ is not vars(builtins):
        return frozenset()
    return frozenset(name for name, called in _CALLED.items()
                     if function.__globals__.get(name, vars(builtins).get(name)) is called.plain)


def _functions(roots):
    """Yield the user's functions that @roots reach: through closures, globals, defaults, wrappers, attributes, lists and dicts."""
    queue, met = collections.deque(roots), set()
    while queue and len(met) < _VISITED_MAX:
        thing = queue.popleft()
        if id(thing) in met or isinstance(thing, _PLAIN):
            continue
        met.add(id(thing))
        if isinstance(thing, types.FunctionType):
            queue += [getattr(thing, "__wrapped__", None), *map(_content, thing.__closure__ or ())]
            if is_users(thing.__code__.co_filename, thing.__module__ or ""):
                yield thing
                queue += [*(thing.__defaults__ or ()), *(thing.__kwdefaults__ or {}).values()]
                if id(thing.__globals__) not in met:
                    met.add(id(thing.__globals__))
                    queue += list(thing.__globals__.values())
        else:
            queue += _within(thing)


def _within(thing):
    """Return the objects in another one that is no function."""
    if isinstance(thing, functools.partial):
        return [thing.func]
    if isinstance(thing, types.MethodType):
        return [thing.__func__, thing.__self__]
    if isinstance(thing, (staticmethod, classmethod, _CACHED)):
        return [thing.__wrapped__]
    if isinstance(thing, property):
        return [thing.fget, thing.fset]
    if isinstance(thing, functools.cached_property):
        return [thing.func]
    if isinstance(thing, types.ModuleType):
        return list(vars(thing).values()) if is_users(getattr(thing, "__file__", None) or "<", thing.__name__) else []
    if isinstance(thing, type):
        return [one for kind in thing.__mro__ if is_users(_file_of(kind.__module__), kind.__module__) for one in list(vars(kind).values())]
    if type(thing) in (dict, collections.OrderedDict, list, tuple):
        return list(thing.values() if isinstance(thing, dict) else thing) if len(thing) <= ENTRIES_MAX else []
    kind = type(thing)
    if isinstance(thing, torch.nn.Module) or is_users(_file_of(kind.__module__), kind.__module__) and kind.__dictoffset__:
        return [kind, *list(object.__getattribute__(thing, "__dict__").values())]
    return []


def _file_of(module):
    return getattr(sys.modules.get(module), "__file__", None) or "<stdin>"


def _content(cell):
    try:
        return cell.cell_contents
    except ValueError:  # it has none yet
        return None


@contextlib.contextmanager
def replacing(*roots):
    """Within this context the functions of a step and of its hooks, @roots, call as_float() where they call float()."""
    held = [(one, one.__code__, replaced(one.__code__, _replaced_names(one))) for one in _functions(roots)] if _IS_TOLD else []
    for called in _CALLED.values() if held else ():
        setattr(builtins, called.own, called.stand_in)  # it stays: another thread may be in a copy for longer
    try:
        for function, code, copy in held:
            if copy is not code:
                function.__code__ = copy
        yield
    finally:
        for function, code, copy in held:
            if copy is not code:
                function.__code__ = code
