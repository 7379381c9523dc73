# SPDX-License-Identifier: Apache-2.0
"""Numbers that a step reads from tensors it computes, such as the item() of a loss or of a norm.

A capture has no value for them. A ComputedNumber stands for one. Where the step returns it, alone or calculated with, the
number is made in Python after the step, as eager code makes it. A comparison is a branch (branches.py). Where it scales, divides
or is added to a tensor of floating-point numbers, a 0-dimensional tensor of the CPU takes its place in the graph. Kernels take
such a tensor by the same path as a Python number: in double precision, without an influence on the result's dtype. Whole
numbers that size something become a question about a computed value. conversions.py serves float(). Any other use is refused.
"""
import dis
import json.encoder
import math
import operator
import sys
from numbers import Number
from unittest import mock

import torch
from torch.utils import _pytree as pytree

from ...errors import CannotCapture

_TEXT = ("the value of a tensor decides what the step does; return the tensor, and call .item() after the step")
_AS_TEXT = "the step makes text of the number of .item(); return the number, and print or log it after the step"
_AS_ARRAY = "the step gives the number of .item() to NumPy; return the number, and call NumPy after the step"
_AS_KEY = "the step makes a key of the number of .item(), as sets and dicts do; return the number, and do so after the step"
_LATE = ("the step compares the number of .item() after optimizer.step(), and it could not begin anew for the other answer; compare "
         "before optimizer.step(), or return the number and compare after the step")
_SUM = ("sum() of numbers of .item() rounds another way than additions; it is served where the step's own code calls it and the result "
        "is returned. Add by +, or return the number")
HAS_EXACT_SUMS = sys.version_info >= (3, 12)  # sum() of floats carries the rounding errors along
_DRAWN = ("the step draws a number from Python's or NumPy's generator and uses it in another way than by + - * / and comparisons; draw from "
          "torch's, or outside of the step")
_PLAIN = int, float, bool, type(None)
_NAMES = {kind: frozenset(dir(kind)) for kind in (int, float)}
_WHOLE = math.floor, math.ceil, math.trunc  # functions of whole results
_REAL = {function for name, function in vars(math).items() if callable(function)} - set(_WHOLE)  # a capture replaces the names
_EXACT = operator.add, operator.sub, operator.mul, operator.truediv, operator.neg, operator.abs, float  # equal in Python and in torch
_WITH_TENSORS = {"mul", "mul_", "multiply", "div", "div_", "divide", "true_divide", "add", "add_", "sub", "sub_", "subtract", "rsub",
                 "__mul__", "__rmul__", "__imul__", "__truediv__", "__rtruediv__", "__itruediv__", "__div__", "__rdiv__", "__idiv__",
                 "__add__", "__radd__", "__iadd__", "__sub__", "__rsub__", "__isub__", "gt", "ge", "lt", "le",
                 "__gt__", "__ge__", "__lt__", "__le__"}
_QUOTIENTS = {"div", "div_", "divide", "true_divide", "__truediv__", "__itruediv__", "__div__", "__idiv__"}


class _Made:
    """In the operands of a Deferred: the value that its call @index makes."""

    def __init__(self, index):
        self.index = index


class Deferred:
    """In the results of a capture: a number that is made of values of tensors after the step. It holds no tensor."""

    def __init__(self, calls):
        """@calls: (function, operands) in the order of their calls, without a function for the next tensor's value."""
        self.calls = calls

    def value(self, tensors):
        """Return the number; @tensors: an iterator over the step's results."""
        made = []
        for function, operands in self.calls:
            made.append(next(tensors).item() if function is None else
                        function(*(made[one.index] if type(one) is _Made else one for one in operands)))
        return made[-1]


class ComputedNumber:
    """A number of a capture: the value of a tensor, or a Python function's result of other numbers.

    It has the attributes of a number alone, so that code which asks for one by its attributes finds what it finds in eager steps.
    """
    __slots__ = ("_branches", "_base", "_function", "_operands", "_line", "_is_floating", "_is_plain")

    def __init__(self, branches, base=None, function=None, operands=(), line=None):
        """@base: a tensor of one element, read in the user's @line, or None for a number that @function makes of its @operands."""
        self._branches, self._base, self._function, self._operands, self._line = branches, base, function, operands, line
        self._is_floating = base.is_floating_point() if function is None else _makes_floating(function, operands)
        self._is_plain = all(one._is_plain if type(one) is ComputedNumber else type(one) in _PLAIN for one in operands)

    @property
    def __class__(self):  # code may ask whether it is a number
        return float if self._is_floating else int

    @classmethod
    def __torch_function__(cls, func, _types, args=(), kwargs=None):  # behind branches.py, which replaces operands
        found = (one for one in pytree.tree_leaves((args, kwargs or {})) if type(one) is ComputedNumber)
        refuse(found, _TEXT, getattr(func, "__name__", str(func)))

    def __array__(self, *_args, **_kwargs):
        refuse([self], _AS_ARRAY, "numpy")

    __array_ufunc__ = __array__

    def __getattr__(self, name):  # of no attribute above
        if name in _NAMES[self.__class__]:
            refuse([self], _TEXT, name)
        raise AttributeError(f"{self.__class__.__name__!r} object has no attribute {name!r}")

    def __copy__(self):
        return self

    def __deepcopy__(self, _memo):
        return self

    def __reduce_ex__(self, _protocol):
        refuse([self], _TEXT, "pickle")

    def __hash__(self):
        refuse([self], _AS_KEY, "hash()")

    def _parts(self):
        """Return the computed numbers that this one is made of and itself, each behind its operands."""
        found, queue = {}, [self]
        while queue:
            todo = [one for one in queue[-1]._operands if type(one) is ComputedNumber and id(one) not in found]
            if not todo:
                one = queue.pop()
                found[id(one)] = one
            queue += todo
        return list(found.values())

    def _folded(self, leaf, join):
        """Return the number's value, of leaf(base) and join(number, values of its operands); no recursion bounds a sum."""
        made = {}
        for one in self._parts():
            made[id(one)] = leaf(one._base) if one._function is None else \
                join(one, [made[id(other)] if type(other) is ComputedNumber else other for other in one._operands])
        return made[id(self)]

    def _bases(self):
        return [one._base for one in self._parts() if one._function is None]

    def _tensor(self):
        """Return a 0-dimensional tensor of the number, in double precision or of whole numbers."""
        def taken(base):
            kind = torch.float64 if base.is_floating_point() else torch.int64
            return base.detach().reshape(()).to(device="cpu", dtype=kind)

        def joined(one, operands):
            if one._function not in _EXACT:
                refuse([self], *((_SUM, "sum") if one._function is _summed else (_TEXT, one._function.__name__)))
            kind = torch.float64 if one._is_floating else torch.int64
            if one._function is operator.truediv and type(one._operands[1]) is ComputedNumber:
                one._operands[1]._refuse_zero(operands[1])
            operands = [each.to(kind) if isinstance(each, torch.Tensor) else each for each in operands]
            return operands[0] if one._function is float else one._function(*operands)
        return self._folded(taken, joined)

    def _refuse_zero(self, tensor):
        """Raise Python's error in the branch of the step where this divisor is 0; one question serves equal divisors.

        @tensor: of the number.
        """
        form = self._form()
        if form not in self._branches.are_zero:
            self._branches.are_zero[form] = self._branches.answer(tensor == 0, False)
        if self._branches.are_zero[form]:
            raise ZeroDivisionError("division by zero")

    def _form(self):
        """Return a key of how the number is made. The copies of branches.py live, so their ids serve."""
        forms = self._branches.forms

        def joined(one, operands):
            own = tuple(each if type(other) is ComputedNumber else (type(other), other)
                        for each, other in zip(operands, one._operands))
            return forms.setdefault((one._function, *own), len(forms))
        return self._folded(lambda base: forms.setdefault(id(base), len(forms)), joined)

    # in Python

    def _add(self, function, *operands):
        """Return a sum of two operands. CannotCapture where a function in C adds, such as sum(), which adds floats by a way of its own."""
        made = self._with(function, *operands)
        if HAS_EXACT_SUMS and type(made) is ComputedNumber and made._is_floating:
            frame = sys._getframe(2)
            if dis.opname[frame.f_code.co_code[frame.f_lasti]] != "BINARY_OP":
                refuse([self], _SUM, "sum")
        return made

    def _with(self, function, *operands):
        if not all(isinstance(one, (int, float)) for one in operands):
            return NotImplemented  # the other operand's own operator, such as that of a tensor, which branches.py serves
        return ComputedNumber(self._branches, None, function, operands)

    def _power(self, base, exponent, modulus=None):
        if modulus is not None:
            refuse([self], _TEXT, "pow")
        if isinstance(base, int) and isinstance(exponent, int) and type(exponent) is ComputedNumber:
            refuse([self], _TEXT, "pow")  # the exponent's sign decides the type
        return self._with(operator.pow, base, exponent)

    def _rounded(self, digits=None):
        if digits is None:
            return self._with(round, self)
        return self._with(round, self, digits if type(digits) is ComputedNumber else operator.index(digits))

    def _is(self, function, other):
        """Return the answer of a comparison, in this branch of the step."""
        if isinstance(other, torch.Tensor):
            return NotImplemented
        if not isinstance(other, (int, float)):  # computed ones are, by their class
            if isinstance(other, Number):
                refuse([self], _TEXT, function.__name__)
            return NotImplemented
        own = self._tensor()
        if _is_floating(self) or _is_floating(other):  # torch takes a whole number and a float in single precision
            if type(other) is not ComputedNumber and isinstance(other, int) and not _is_double(other):
                refuse([self], _TEXT, function.__name__)  # Python compares all digits of a whole number
            own, other = own.double(), other._tensor().double() if type(other) is ComputedNumber else float(other)
        return self._compared(function(own, other._tensor() if type(other) is ComputedNumber else other))

    def _compared(self, flag):
        if self._branches.is_late():
            refuse([self], _LATE, "value of a tensor")
        return self._branches.answer(flag, False)

    def _is_true(self, test, guess):
        """Return the answer of a test such as torch.isfinite, in this branch of the step."""
        return self._branches.answer(test(self._tensor()), guess)

    def __bool__(self):
        return self._compared(self._tensor() != 0)

    def _whole(self, text=_TEXT):
        """Return a whole number by questions about its tensors; refuse by @text if they have no answer."""
        watch = self._branches.watch
        if not self._is_floating:
            for base in self._bases():
                watch.learn(base)
        if self._is_floating or not all(map(watch.knows, self._bases())):
            refuse([self], text, "value of a tensor")
        return self._folded(torch.Tensor.item, lambda one, operands: one._function(*operands))

    def __float__(self):
        return float(self._whole())

    def __format__(self, form):
        return format(self._whole(_AS_TEXT), form)

    def __repr__(self):
        return repr(self._whole(_AS_TEXT))

    def __int__(self):
        return self._whole()

    __index__ = __trunc__ = __int__


# Functions of other files have the numbers as arguments, because a number's own attributes are those of Python's numbers.

def refuse(found, text, op):
    """Raise CannotCapture with the user's line by the first of the numbers @found. The capture fails even if code catches it."""
    for number in found:
        number._branches.refuse(_DRAWN if any(id(base) in number._branches.drawn for base in number._bases()) else text, op)
    raise CannotCapture(text, op)


def line_of(number):
    """Return the user's line that read a number, or the first of those that it is made of."""
    return next((one._line for one in number._parts() if one._line), None)


def deferred(number):
    """Return the Deferred that makes a number after the step, and the tensors whose values it takes, in its order."""
    parts = number._parts()
    made = {id(one): _Made(i) for i, one in enumerate(parts)}
    calls = [(one._function, [made.get(id(other), other) for other in one._operands]) for one in parts]
    return Deferred(calls), number._bases()


def as_float(number):
    """Return the number that float() makes of another one."""
    return number if number._is_floating else number._with(float, number)


def type_of(number):
    """Return Python's type of a number. CannotCapture if another library's scalar is an operand, whose type decides it."""
    if not number._is_plain:
        refuse([number], _TEXT, "type()")
    return number.__class__


def _makes_floating(function, operands):
    """True if a function's result is a float."""
    if function is operator.pow and not any(map(_is_floating, operands)):
        return operands[1] < 0
    return not _is_whole(function, operands) and (function in (operator.truediv, float) or function in _REAL
                                                  or any(map(_is_floating, operands)))


def _is_whole(function, operands):
    """True for a function whose results are whole numbers, such as round() without a number of digits."""
    return function in _WHOLE or function is round and operands[1:] in ((), (None,))


def _is_double(whole):
    """True for a whole number that a float holds with all its digits."""
    try:
        return int(float(whole)) == whole
    except OverflowError:
        return False


def _is_floating(one):
    return one._is_floating if type(one) is ComputedNumber else isinstance(one, float)


def _add_operators():
    def unary(function):
        return lambda self, *rest: self._with(function, self, *rest)

    def reflected(function):
        return lambda self, other: self._with(function, other, self)

    def compared(function):
        return lambda self, other: self._is(function, other)
    for name in ("sub", "mul", "truediv", "floordiv", "mod"):
        setattr(ComputedNumber, f"__{name}__", unary(getattr(operator, name)))
        setattr(ComputedNumber, f"__r{name}__", reflected(getattr(operator, name)))
    ComputedNumber.__pow__ = lambda self, other, modulus=None: self._power(self, other, modulus)
    ComputedNumber.__rpow__ = lambda self, other, modulus=None: self._power(other, self, modulus)
    ComputedNumber.__add__ = lambda self, other: self._add(operator.add, self, other)
    ComputedNumber.__radd__ = lambda self, other: self._add(operator.add, other, self)
    for name in ("neg", "pos", "abs"):
        setattr(ComputedNumber, f"__{name}__", unary(getattr(operator, name)))
    ComputedNumber.__round__ = ComputedNumber._rounded
    for name in ("lt", "le", "gt", "ge", "eq", "ne"):
        setattr(ComputedNumber, f"__{name}__", compared(getattr(operator, name)))


_add_operators()


def _of_computed(function, operands):
    """Return the number that a function of Python's makes of computed ones."""
    first = next(one for one in operands if type(one) is ComputedNumber)
    made = first._with(function, *operands)
    if made is NotImplemented:
        refuse([first], _TEXT, function.__name__)
    return made


def _summed(start, *values):
    return sum(values, start)


def of_sum(start=0, *, values):
    """Return the number that sum(@values, @start) makes after the step. pre: a computed number is among them."""
    operands = (start, *values)
    if not any(map(_is_floating, operands)) or not all(isinstance(one, (int, float)) for one in operands):
        return sum(values, start)  # whole numbers, or tensors, by their own operators
    return _of_computed(_summed, operands)


def is_among(args):
    """True if there are computed numbers among operands, or in lists of them."""
    return any(type(one) is ComputedNumber or isinstance(one, (list, tuple)) and any(type(each) is ComputedNumber for each in one)
               for one in args)


def _sized(one, name):
    """Return an operand with sizes in the place of whole numbers. CannotCapture for other ones."""
    if isinstance(one, (list, tuple)):
        return [_sized(each, name) for each in one] if is_among([one]) else one
    if type(one) is ComputedNumber:
        if one._is_floating:
            refuse([one], _TEXT, name)
        return int(one)
    return one


def with_tensors(func, args, kwargs):
    """Return (args, kwargs) of a call without computed numbers: tensors or sizes take their places.

    CannotCapture if the results could have other bits.
    """
    name, operands = getattr(func, "__name__", ""), [*args, *kwargs.values()]
    others = [one for one in operands if isinstance(one, torch.Tensor)]
    if name not in _WITH_TENSORS or len(operands) != 2 or len(others) != 1:
        return [_sized(one, name or str(func)) for one in args], {key: _sized(one, name) for key, one in kwargs.items()}
    other = others[0]
    is_scalar = not other.dim()
    is_reciprocal = name in _QUOTIENTS and operands[0] is other and is_scalar and other.device.type == "cuda"  # in eager steps
    if is_reciprocal or not other.dtype.is_floating_point or is_scalar and other.dtype not in (torch.float32, torch.float64):
        refuse((one for one in operands if type(one) is ComputedNumber), _TEXT, name)

    def operand(one):
        if type(one) is not ComputedNumber:
            return one
        made = one._tensor()
        return made if other.dim() else made.to(device=other.device, dtype=other.dtype)
    return list(map(operand, args)), {key: operand(one) for key, one in kwargs.items()}


_MATH = ("exp", "exp2", "expm1", "log", "log10", "log1p", "log2", "sqrt", "pow", "tanh", "sin", "cos", "floor", "ceil", "trunc", "fabs")


def patches():
    """Yield patches of Python's tests of numbers, which read their values, and of functions, which are called after the step."""
    for name in _MATH:
        if hasattr(math, name):
            def called(*operands, plain=getattr(math, name)):
                return _of_computed(plain, operands) if is_among(operands) else plain(*operands)
            yield mock.patch.object(math, name, called)
    for name, test, guess in (("isfinite", torch.isfinite, True), ("isnan", torch.isnan, False), ("isinf", torch.isinf, False)):
        def tested(number, plain=getattr(math, name), test=test, guess=guess):
            return number._is_true(test, guess) if type(number) is ComputedNumber else plain(number)
        yield mock.patch.object(math, name, tested)
    if json.encoder.c_make_encoder is not None:
        yield mock.patch.object(json.encoder, "c_make_encoder", _encoder(json.encoder.c_make_encoder))


def _encoder(plain):
    """Return json's maker of encoders in C, which take a computed number for an object that the user's function makes text of."""
    def made(markers, default, *rest):
        def encoded(thing):
            if type(thing) is ComputedNumber:
                refuse([thing], _AS_TEXT, "json")
            return default(thing)
        return plain(markers, encoded, *rest)
    return made
