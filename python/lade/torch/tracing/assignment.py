# SPDX-License-Identifier: Apache-2.0
"""Assignments of rows to columns within a step, as losses of detection models match queries and targets.

scipy.optimize.linear_sum_assignment runs on the host and reads values, but its results have a shape by its operand's alone.
So a call with a computed tensor is one op of the graph, which runs SciPy in each step. SciPy refuses costs that are no
numbers, so the op may end a step. A step that imports SciPy itself gets the replacement from its import.
"""
import sys
from unittest import mock

import torch
from torch._subclasses.fake_tensor import FakeTensor

from .imports import Imports

_NAME, _MODULE = "linear_sum_assignment", "scipy.optimize"
_LIBRARY = torch.library.Library("lade", "FRAGMENT")
_LIBRARY.define("assign(Tensor cost, bool maximize) -> (Tensor, Tensor)")


def _assign(cost, maximize):
    from scipy.optimize import linear_sum_assignment
    return tuple(torch.tensor(places.tolist(), dtype=torch.int64)
                 for places in linear_sum_assignment(cost.detach().cpu().numpy(), maximize))


def _described(cost, maximize):
    del maximize
    return tuple(torch.empty(min(cost.shape), dtype=torch.int64, device="cpu") for _ in range(2))


_LIBRARY.impl("assign", _assign, "CPU")
_LIBRARY.impl("assign", _assign, "CUDA")
torch.library.register_fake("lade::assign", _described, lib=_LIBRARY)
ASSIGN = torch.ops.lade.assign.default


def _replacement(plain):
    """Return a function like SciPy's @plain that takes computed tensors."""
    def assigned(cost_matrix, maximize=False):
        if isinstance(cost_matrix, FakeTensor):
            return ASSIGN(cost_matrix.detach(), maximize)
        return plain(cost_matrix, maximize)
    return assigned


def patches():
    """Yield patches of SciPy's function in all modules that name it, or of its import where none has made it."""
    plain = getattr(sys.modules.get(_MODULE), _NAME, None)
    if plain is None:
        yield Imports(lambda name: name == _MODULE, _NAME, lambda _module, plain: _replacement(plain))
        return
    assigned = _replacement(plain)
    for module in list(sys.modules.values()):
        if getattr(module, "__dict__", {}).get(_NAME) is plain:
            yield mock.patch.object(module, _NAME, assigned)
