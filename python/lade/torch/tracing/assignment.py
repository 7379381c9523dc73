# SPDX-License-Identifier: Apache-2.0
"""Assignments of rows to columns within a step, as losses of detection models match queries and targets.

scipy.optimize.linear_sum_assignment runs on the host and reads values, but its results have a shape by its operand's alone.
So a call with a computed tensor is one op of the graph, which runs SciPy in each step.
"""
import sys
from unittest import mock

import torch
from torch._subclasses.fake_tensor import FakeTensor

_NAME = "linear_sum_assignment"
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


def patches():
    """Yield patches of SciPy's function in all modules that name it."""
    optimize = sys.modules.get("scipy.optimize")
    plain = getattr(optimize, _NAME, None)

    def assigned(cost_matrix, maximize=False):
        if isinstance(cost_matrix, FakeTensor):
            return torch.ops.lade.assign(cost_matrix.detach(), maximize)
        return plain(cost_matrix, maximize)
    for module in list(sys.modules.values()) if plain is not None else ():
        if getattr(module, "__dict__", {}).get(_NAME) is plain:
            yield mock.patch.object(module, _NAME, assigned)
