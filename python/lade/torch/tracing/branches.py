# SPDX-License-Identifier: Apache-2.0
"""Branches of a step on values that it computes.

A model may clamp hidden states that are not finite, drop a layer by a draw, or leave out an update by its loss. A capture takes
one branch and leaves an op in the graph, which looks at the value in each step. If the other branch is due, that op ends the
step before it has changed anything that outlives it. The step begins anew by a plan of the other branch.

The first capture takes the branch of finite values. Of other flags it takes the one where all() is true and any other flag
is false. A capture that fails after such a guess is repeated with the other answer. A loop that such guesses never end is
refused.

A step may also take a shape or a list of numbers from values that it computes, such as the tokens that a router gives to each
expert. No guess serves there. The ops before such a question are a plan of their own, which runs, finds the answer and ends.
In a call this happens within the capture, which then goes on (answering.py). Elsewhere the capture ends at the question, and a
call that runs the part begins anew with the answer. A plan of the whole step asks again in each call, and serves all calls
with its answers.
"""
import contextlib
import os
import sys

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import TorchFunctionMode

from ...errors import CannotCapture
from . import fakes, numbers

_ANSWERS_MAX = 1024  # of one capture: a model of a hundred layers asks a few times in each
_LIBRARY = torch.library.Library("lade", "FRAGMENT")
_LIBRARY.define("branch(Tensor flag, bool wanted, int index) -> ()")
_LIBRARY.impl("branch", lambda *_args: None, "CompositeExplicitAutograd")
BRANCH = torch.ops.lade.branch.default
_LIBRARY.define("values(Tensor tensor, bool is_count, int[]? wanted, int index) -> ()")


def read(tensor, is_count):
    """Return how many elements are true, in a list, or all elements."""
    return [int(tensor.count_nonzero())] if is_count else list(map(int, tensor.flatten().tolist()))


def _values(tensor, is_count, _wanted, _index):
    read(tensor, is_count)  # a price runs this


_LIBRARY.impl("values", _values, "CPU")
_LIBRARY.impl("values", _values, "CUDA")
torch.library.register_fake("lade::values", lambda *_args: None, lib=_LIBRARY)
VALUES = torch.ops.lade.values.default
torch.fx.node.has_side_effect(BRANCH)  # results of both are not used
torch.fx.node.has_side_effect(VALUES)

_T = torch.Tensor
_TESTS = {torch.isfinite: True, _T.isfinite: True, torch.isinf: False, _T.isinf: False, torch.isnan: False, _T.isnan: False}
_REDUCTIONS = torch.all, _T.all, torch.any, _T.any
_NOT = torch.logical_not, _T.logical_not, torch.bitwise_not, _T.bitwise_not, _T.__invert__
_OR = torch.logical_or, _T.logical_or, torch.bitwise_or, _T.bitwise_or, _T.__or__
_AND = torch.logical_and, _T.logical_and, torch.bitwise_and, _T.bitwise_and, _T.__and__
_SUMS = torch.sum, _T.sum, torch.count_nonzero, _T.count_nonzero
_COMPARED = {torch.eq: True, _T.eq: True, _T.__eq__: True, torch.ne: False, _T.ne: False, _T.__ne__: False, torch.gt: False,
             _T.gt: False, _T.__gt__: False}  # with 0, where the number of true elements is 0
_DIFFERS = torch.ne, _T.ne, _T.__ne__  # of a value and itself: it is no number
_TRUTHS = _T.__bool__, torch.is_nonzero, _T.is_nonzero
_ASKS = *_TRUTHS, _T.item
_TEXTS = _T.__format__, _T.__repr__
_SEEN = {_T.data_ptr: fakes.address, _T.is_set_to: fakes.is_set_to, _T.__deepcopy__: fakes.deep_copy}  # of fake tensors
_SET_DATA = _T.data.__set__
_TORCH, _OWN = (os.path.join(os.path.dirname(os.path.abspath(file)), "") for file in (torch.__file__, os.path.dirname(__file__)))
_STRIDED = _T.as_strided, torch.as_strided, _T.as_strided_, torch.as_strided_, torch.as_strided_copy
OFFSET = "storage_offset()"  # among the names of attributes that a step reads of tensors


def _is_users(frame):
    """True if a call of @frame, below those of other modes, is neither torch's own, as in each capture, nor this package's."""
    while frame.f_code.co_name == "__torch_function__":
        frame = frame.f_back
    return not frame.f_code.co_filename.startswith((_TORCH, _OWN))


class Otherwise(Exception):
    """Raised if a step must begin again with @branch, the answers that lead to the other branch."""

    def __init__(self, branch, line):
        super().__init__(f"a value is not as in the plan's branch ({line}), and the step had changed what outlives it, such as "
                         "parameters, before it asked")
        self.branch, self.line = branch, line


class Asked(BaseException):
    """Ends a capture at a question that no guess serves; no handler of the user's takes it."""


class Branches(TorchFunctionMode):
    """Answers questions about computed values during a capture."""

    def __init__(self, forced, line_of):
        """@forced: the first answers; later ones are guesses. @line_of(): the user's line."""
        super().__init__()
        self.forced, self.line_of = forced, line_of
        self.answers, self.lines, self.known = [], [], {}  # known: id of a tensor -> (itself, its value if all is finite)
        self.zeros = {}  # id of a tensor -> itself, a number that is 0 if all is finite
        self.watch = self.is_late = None  # is_late(): True after the optimizer's step
        self.read_of_batch = set()  # names of attributes that the step reads of tensors of its arguments
        self.graph = None  # of the capture, so far
        self.find = lambda: None  # find(): the answer to the last question by a run of the graph, or None
        self.n_found = 0   # answers up to the last one that find() gave
        self.snapshots = {}  # _key() of a tensor -> (itself, its copy): numbers of item() are those of their time
        self.has_numbers = False  # True if the step has read a computed number
        self.given = {}      # of serving()
        self.drawn = {}      # id of a number that an op draws (draws.py) -> itself
        self.assigned = {}   # id of a tensor whose data the step assigned -> the user's line
        self.are_zero, self.forms = {}, {}  # of divisors among computed numbers, by their forms; numbers of forms
        self.answered = {}  # (id of a tensor, its versions) -> (itself, the answer): `a or b` and its `if` ask one tensor twice
        self.refusal = None  # the first of refuse(), which code of the user's may have caught, as logging does

    @contextlib.contextmanager
    def serving(self, given):
        """Within this context the tensors @given, id of one -> its fake, are served where code reaches them itself."""
        self.given = given
        try:
            yield
        finally:
            self.given = {}

    def __exit__(self, *fault):
        self.known, self.answered, self.zeros, self.snapshots, self.are_zero, self.forms, self.drawn = ({} for _ in range(7))
        return super().__exit__(*fault)

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if self.given:
            args, kwargs = tuple(map(self._served, args)), {key: self._served(one) for key, one in (kwargs or {}).items()}
        asked = [*args, *(kwargs or {}).values()]
        if (func is _T.storage_offset or func in _STRIDED and (kwargs or len(args) > 3)) and _is_users(sys._getframe(1)):
            self.read_of_batch.add(OFFSET)  # a constant of the graph
        if func == _SET_DATA:
            self.assigned[id(args[0])] = self.line_of()
        if func in _SEEN and isinstance(asked[0], FakeTensor):
            return _SEEN[func](*asked)
        if func in _ASKS and id(asked[0]) in self.known:
            return self.answer(*self.known[id(asked[0])])
        if func in _TRUTHS and asked[0].dtype != torch.bool and asked[0].numel() == 1:
            return bool(asked[0] != 0)
        if func is _T.__format__ and isinstance(asked[0], FakeTensor) and asked[0].dim() == 0:
            self.watch.learn(asked[0])
            if self.watch.knows(asked[0]):
                return format(asked[0].item(), *args[1:])
        if func in _TEXTS and isinstance(asked[0], FakeTensor):
            fault = self._refused("the step makes text of a tensor; return the tensor, and print or log it after the step",
                                  "value of a tensor")
            if not asked[0].dim():  # texts of more values are those of checks, too: what such a check raises comes first
                raise fault
        if func is _T.item and self._is_computed(asked[0]):
            return numbers.ComputedNumber(self, *self._snapshot(asked[0]))
        if func is _T.__float__ and self._is_computed(asked[0]):
            self.refuse("float() of a computed value is called where its call is not seen; return the tensor, and print or log it "
                        "after the step, or write .item() instead", "float()")
        if numbers.is_among(asked):
            args, kwargs = numbers.with_tensors(func, args, kwargs or {})
        result = func(*args, **(kwargs or {}))
        value = self._value(func, args)
        if value is not None and isinstance(result, torch.Tensor):
            self.known[id(result)] = result, value
        elif func in _SUMS and isinstance(result, torch.Tensor) and self.known.get(id(asked[0]), (None, None))[1] is False:
            self.zeros[id(result)] = result
        return result

    def _served(self, one):
        """Return an operand with fakes in the place of the model's own tensors."""
        if isinstance(one, (list, tuple)) and any(id(each) in self.given for each in one):
            return [self.given.get(id(each), each) for each in one]
        return self.given.get(id(one), one)

    def refuse(self, text, op):
        """Raise CannotCapture with the user's line. The capture fails by it even if that code goes on."""
        raise self._refused(text, op)

    def _refused(self, text, op):
        """Return CannotCapture with the user's line, by which a capture fails that ends."""
        self.refusal = self.refusal or CannotCapture(text, op, self.line_of())
        return self.refusal

    def _is_computed(self, tensor):
        """True for one number that neither constants nor arguments decide."""
        return isinstance(tensor, FakeTensor) and tensor.numel() == 1 and tensor.dtype != torch.bool and not tensor.is_complex() \
            and not self.watch.knows(tensor)

    def _snapshot(self, tensor):
        """Return a copy of a tensor, which later writes to it do not reach, and the user's line; one for all reads between two writes.

        As operands of a ComputedNumber.
        """
        key = self._key(tensor, False)
        if key not in self.snapshots:
            with torch.no_grad():
                self.snapshots[key] = tensor, tensor.detach().clone(), self.line_of()
        _, copy, line = self.snapshots[key]
        self.has_numbers = True
        return copy, None, (), line

    def _value(self, func, args):
        """Return the value of a result if all is finite, or None if that is not known."""
        if func in _TESTS:
            return _TESTS[func]
        if func in _DIFFERS and len(args) == 2 and args[0] is args[1]:
            return False
        if func in _COMPARED and len(args) == 2 and id(args[0]) in self.zeros and type(args[1]) in (int, float) \
                and args[1] == 0:
            return _COMPARED[func]
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
        key = id(flag), *self._version(flag)
        if key in self.answered:
            return self.answered[key][1]
        index = self._new()
        answer = self.forced[index] if index < len(self.forced) else value
        self.answers.append(answer)
        self.answered[key] = flag, answer  # a tensor that is gone may leave its id to another one
        BRANCH(flag, answer, index)
        return answer

    def ask(self, tensor, is_count):
        """Return read() of a computed tensor as a tuple; Asked if the answer is not known yet, None after an update."""
        key = self._key(tensor, is_count)
        if key in self.answered:
            return self.answered[key][1]
        if self.is_late():
            return None  # the step could not begin anew
        index = self._new()
        answer = self.forced[index] if index < len(self.forced) else None
        self.answers.append(answer)
        self.answered[key] = tensor, answer
        VALUES(tensor, is_count, None if answer is None else list(answer), index)
        if answer is None:
            answer = self._found(index)
            self.answered[key] = tensor, answer
        return answer

    def _found(self, index):
        """Return the answer to the last question, which its op expects from then on. Asked if none is found now."""
        asking = next(node for node in reversed(self.graph.nodes) if node.target is VALUES)
        answer = self.find()
        if answer is None:
            raise Asked
        self.answers[index], self.n_found = answer, index + 1
        asking.update_arg(2, list(answer))
        return answer

    def has_count(self, tensor):
        """True if the step has asked how many elements of a tensor are true."""
        return self._key(tensor, True) in self.answered

    def _version(self, tensor):
        """Return numbers that every write to a tensor changes, also one by .data."""
        return tensor._version, self.watch.n_writes[tensor.untyped_storage()._cdata]

    def _key(self, tensor, is_count):
        """Return a key of a tensor's values, which autograd may save and return as another object."""
        return (tensor.untyped_storage()._cdata, tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype,
                *self._version(tensor), is_count)

    def _new(self):
        """Return the number of one more question."""
        if len(self.answers) == _ANSWERS_MAX:
            raise CannotCapture(f"the step branches on more than {_ANSWERS_MAX} computed values, as a loop does that a value "
                                "ends; give the loop a number of turns", "value of a tensor")
        self.lines.append(self.line_of())
        return len(self.answers)

    def other_guess(self):
        """Return the answers with the last one turned if it was a guess, or None."""
        is_guessed = len(self.answers) > len(self.forced) and isinstance(self.answers[-1], bool)
        return (*self.answers[:-1], not self.answers[-1]) if is_guessed else None
