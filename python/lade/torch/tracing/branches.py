# SPDX-License-Identifier: Apache-2.0
"""Branches of a step on values that it computes.

A model may clamp hidden states that are not finite, drop a layer by a draw, or leave out an update by its loss. A capture takes
one branch and leaves an op in the graph, which looks at the value in each step. If the other branch is due, that op ends the
step before it has changed anything that outlives it. The step begins anew by a plan of the other branch.

The first capture takes the branch of finite values. Of other flags it takes the one where all() is true and any other flag
is false. A capture that fails behind such a guess is repeated with the other answer. A loop that such guesses never end is
refused.
"""
import torch
from torch.overrides import TorchFunctionMode

from ...errors import CannotCapture

_ANSWERS_MOST = 1024  # of one capture: a model of a hundred layers asks a few times in each
_LIBRARY = torch.library.Library("lade", "FRAGMENT")
_LIBRARY.define("branch(Tensor flag, bool wanted, int index) -> ()")
_LIBRARY.impl("branch", lambda *_args: None, "CompositeExplicitAutograd")
BRANCH = torch.ops.lade.branch.default
torch.fx.node.has_side_effect(BRANCH)  # its result is not used

_T = torch.Tensor
_TESTS = {torch.isfinite: True, _T.isfinite: True, torch.isinf: False, _T.isinf: False, torch.isnan: False, _T.isnan: False}
_REDUCTIONS = torch.all, _T.all, torch.any, _T.any
_NOT = torch.logical_not, _T.logical_not, torch.bitwise_not, _T.bitwise_not, _T.__invert__
_OR = torch.logical_or, _T.logical_or, torch.bitwise_or, _T.bitwise_or, _T.__or__
_AND = torch.logical_and, _T.logical_and, torch.bitwise_and, _T.bitwise_and, _T.__and__
_DIFFERS = torch.ne, _T.ne, _T.__ne__  # of a value and itself: it is no number
_TRUTHS = _T.__bool__, torch.is_nonzero, _T.is_nonzero
_ASKS = *_TRUTHS, _T.item


class Otherwise(Exception):
    """A step has to begin anew with @branch, the answers that lead to the other branch."""

    def __init__(self, branch, line):
        super().__init__(f"a value is not as in the plan's branch ({line}), and the step had changed what outlives it, such as "
                         "parameters, before it asked")
        self.branch = branch


class Branches(TorchFunctionMode):
    """Answers questions about computed values during a capture."""

    def __init__(self, forced, line_of):
        """@forced: the first answers; later ones are guesses. @line_of(): the user's line."""
        super().__init__()
        self.forced, self.line_of = forced, line_of
        self.answers, self.lines, self.known = [], [], {}  # known: id of a tensor -> (itself, its value if all is finite)
        self.answered = {}  # (id of a tensor, its version) -> (itself, the answer): `a or b` and its `if` ask one tensor twice

    def __exit__(self, *fault):
        self.known, self.answered = {}, {}
        return super().__exit__(*fault)

    def __torch_function__(self, func, types, args=(), kwargs=None):
        asked = [*args, *(kwargs or {}).values()]
        if func in _ASKS and id(asked[0]) in self.known:
            return self.answer(*self.known[id(asked[0])])
        if func in _TRUTHS and asked[0].dtype != torch.bool and asked[0].numel() == 1:
            return bool(asked[0] != 0)
        result = func(*args, **(kwargs or {}))
        value = self._value(func, args)
        if value is not None and isinstance(result, torch.Tensor):
            self.known[id(result)] = result, value
        return result

    def _value(self, func, args):
        """Return what a result is where all is finite, or None if that is not known."""
        if func in _TESTS:
            return _TESTS[func]
        if func in _DIFFERS and len(args) == 2 and args[0] is args[1]:
            return False
        found = [self.known.get(id(one), (None, None))[1] for one in args[:2] if isinstance(one, torch.Tensor)]
        if not found or None in found:
            return None
        if func in _REDUCTIONS:
            return found[0]
        if func in _NOT:
            return not found[0]
        if func in _OR:
            return any(found)
        return all(found) if func in _AND else None

    def answer(self, flag, value):
        """Return the answer about @flag, a tensor: the forced one, or the guess @value."""
        key = id(flag), flag._version
        if key in self.answered:
            return self.answered[key][1]
        index = len(self.answers)
        if index == _ANSWERS_MOST:
            raise CannotCapture(f"the step branches on more than {_ANSWERS_MOST} computed values, as a loop does that a value "
                                "ends; give the loop a number of turns", "value of a tensor")
        answer = self.forced[index] if index < len(self.forced) else value
        self.answers.append(answer)
        self.answered[key] = flag, answer  # a tensor that is gone may leave its id to another one
        self.lines.append(self.line_of())
        BRANCH(flag, answer, index)
        return answer

    def other_guess(self):
        """Return the answers with the last one turned if it was a guess, or None."""
        is_guessed = len(self.answers) > len(self.forced)
        return (*self.answers[:-1], not self.answers[-1]) if is_guessed else None
