# SPDX-License-Identifier: Apache-2.0
"""Draws of a step from the generators of Python's random and of numpy.random.

Functions that draw one float, such as random.random() and numpy.random.beta(), are ops of the graph, which draw in each step.
Their numbers are those of numbers.py, so a layer that is dropped by one is a branch. A generator that the step seeds before it
draws gives the same numbers in each step: the capture draws them, and each step leaves that generator as the capture did. With
any other draw each step would be another graph; it is refused.
"""
import contextlib
import functools
import pickle
import random
import sys
import threading

import torch

from ...errors import CannotCapture
from .. import generators
from . import numbers, spans

_LIBRARY = torch.library.Library("lade", "FRAGMENT")
_LIBRARY.define("random(int generator, str name, float[] operands) -> Tensor", tags=(torch.Tag.nondeterministic_seeded,))
# Functions that draw one float -> how many operands they take at most; with more, NumPy's return arrays.
_FLOATS = ({"random": 0, "uniform": 2, "betavariate": 2, "gauss": 2, "normalvariate": 2, "expovariate": 1, "triangular": 3},
           {"rand": 0, "random": 0, "random_sample": 0, "uniform": 2, "normal": 2, "beta": 2})


def _modules():
    return random, getattr(sys.modules.get("numpy"), "random", None)


def _random(generator, name, operands):
    function = generators.plain(getattr(_modules()[generator], name))
    return torch.full((), function(*operands), dtype=torch.float64)


_LIBRARY.impl("random", _random, "CompositeExplicitAutograd")
torch.library.register_fake("lade::random", lambda *_args: torch.empty((), dtype=torch.float64, device="cpu"), lib=_LIBRARY)
RANDOM = torch.ops.lade.random.default
torch.fx.node.has_side_effect(RANDOM)
_LOOKS = "getstate", "get_state"
_TEXT = ("the step draws from Python's or NumPy's generator, so each step is another graph; draw from torch's, or outside of the "
         "step")


class Draws:
    """What a capture has drawn; generators are 0, Python's, and 1, NumPy's."""

    def __init__(self, branches):
        self.branches, self.thread, self.before = branches, threading.get_ident(), self._states()
        self.line = None  # the user's line of the first draw that is refused
        self.is_seeded, self.is_set, self.has_ops = [False, False], [False, False], [False, False]
        self.is_lost = False  # True if the step has drawn, and then set a state
        self.is_moved = False  # True if functions of the generators were called

    @staticmethod
    def _states():
        return list(map(pickle.dumps, generators.python_states()))

    def _draw(self, index, name, plain, args, kwargs):
        if threading.get_ident() != self.thread:
            return plain(*args, **kwargs)
        if "state" in name:
            self.is_lost |= not self.is_seeded[index] and not self.is_set[index] and self._states()[index] != self.before[index]
            self.is_seeded[index], self.is_set[index] = False, True
        elif name == "seed" and (args or kwargs) and not any(one is None for one in (*args, *kwargs.values())):
            is_first = not self.has_ops[index] and self._states()[index] == self.before[index]
            self.is_seeded[index] = self.is_seeded[index] or is_first
        elif name == "seed":  # by the clock
            self.is_seeded[index] = False
        elif self._is_float(index, name, args, kwargs) and not self.is_seeded[index] and not self.is_set[index]:
            return self._number(index, name, args)
        self.is_moved = True
        if not self.is_seeded[index] and "state" not in name:
            self.line = self.line or self.branches.line_of()
        return plain(*args, **kwargs)

    @staticmethod
    def _is_float(index, name, args, kwargs):
        return len(args) <= _FLOATS[index].get(name, -1) and not kwargs and all(type(one) in (int, float) for one in args)

    def _number(self, index, name, args):
        self.has_ops[index] = self.branches.has_numbers = True
        drawn = RANDOM(index, name, list(map(float, args)))
        self.branches.drawn[id(drawn)] = drawn
        return numbers.ComputedNumber(self.branches, drawn, None, (), self.branches.line_of())

    def end(self, recorder):
        """Note the generators that each step leaves as the capture did. CannotCapture for any other draw."""
        found, after = generators.python_states(), self._states()
        self.restore()
        are_changed = [a != b for a, b in zip(after, self.before)]
        has_spans = any(node.target is spans.SPANS for node in self.branches.graph.nodes) if self.branches.graph else False
        if any(changed and not seeded for changed, seeded in zip(are_changed, self.is_seeded)) \
                or any(ops and (is_set or changed) for ops, is_set, changed in zip(self.has_ops, self.is_set, are_changed)) \
                or self.is_lost or are_changed[1] and has_spans:
            raise CannotCapture(_TEXT, "random", self.line)
        recorder.seeded = [state if changed else None for state, changed in zip(found, are_changed)]

    def restore(self):
        """Put the generators back where the capture has drawn."""
        if self.is_moved:
            generators.set_python_states(map(pickle.loads, self.before))


@contextlib.contextmanager
def noted(branches):
    """Within this context the functions of the generators note draws; yield what they note."""
    draws, held = Draws(branches), []
    for index, module in enumerate(_modules()):
        own = getattr(getattr(module, "random", None), "__self__", None)  # the generator of the module's functions
        held += [(index, module, name, function) for name, function in list(vars(module).items() if module else ())
                 if name == "seed" or getattr(function, "__self__", module) is own and name not in _LOOKS]

    def replaced(index, name, plain):
        @functools.wraps(plain)
        def drawn(*args, **kwargs):
            return draws._draw(index, name, plain, args, kwargs)
        return drawn
    for index, module, name, function in held:
        setattr(module, name, replaced(index, name, function))
    try:
        yield draws
    except BaseException:
        draws.restore()
        raise
    finally:
        for _, module, name, function in held:
            setattr(module, name, function)
