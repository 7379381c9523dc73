# SPDX-License-Identifier: Apache-2.0
"""State of torch's that a capture does not have: an optimizer's, and hooks of the nodes that accumulate gradients.

An optimizer's state is updated by ops of the graph, so a capture has no values to show. A node of autograd that accumulates
a parameter's gradient belongs to the parameter itself, and the fake one that stands for it has another node.
"""
import collections
import gc
from unittest import mock

import torch
from torch.fx.experimental.proxy_tensor import get_proxy_mode

from ...errors import CannotCapture


class UnreadState(collections.defaultdict):
    """The state of an optimizer in a capture: each use of it by the step is refused with the user's line."""

    def __init__(self, branches):
        super().__init__(dict)
        self.branches = branches


def _refusing(name):
    plain = getattr(collections.defaultdict, name)

    def refuse(state, *args, **kwargs):
        if get_proxy_mode() is not None:  # else a part of the step runs, to answer a question of the capture
            state.branches.refuse("the step reads or writes the optimizer's state, such as its moments, in Python, and a graph "
                                  "has it in updates alone; read it between steps, or keep tensors of your own in a dict",
                                  "optimizer.state")
        return plain(state, *args, **kwargs)
    return refuse


for _name in ("__getitem__", "__setitem__", "__delitem__", "__contains__", "__iter__", "__len__", "__eq__", "__ne__", "__or__",
              "__ior__", "__ror__", "__reversed__", "__repr__", "__copy__", "__reduce__", "get", "items", "keys", "values", "pop", "popitem", "setdefault", "update", "clear", "copy"):
    setattr(UnreadState, _name, _refusing(_name))


def accumulator_hooks(params):
    """Return [(name, key, hook)] of the nodes of autograd that accumulate the gradients of @params, (name, parameter) of each."""
    found = []
    with torch._C.DisableTorchFunctionSubclass():  # tensors that wait on a tier stay there
        for name, param in params:
            if param.requires_grad and param._use_count() > 1:  # hooks hold the node, and that the tensor
                own = param._backward_hooks, param._post_accumulate_grad_hooks
                tables = [one for one in gc.get_referents(_accumulator(param)) if isinstance(one, dict)]
                found += [(name, key, hook) for one in tables if all(one is not table for table in own) for key, hook in one.items()]
    return found


def _accumulator(param):
    with torch.enable_grad():
        return param.view_as(param).grad_fn.next_functions[0][0]


def refuse_accumulator_hooks(params):
    """Refuse hooks of nodes that accumulate the gradients of @params, (name, parameter) of each."""
    for name, _, hook in accumulator_hooks(params):
        code = getattr(hook, "__code__", None)
        raise CannotCapture(f"a hook of the node that accumulates the gradient of {name} is not captured; register it by "
                            "the parameter's register_hook() or register_post_accumulate_grad_hook()", "AccumulateGrad",
                            code and f"{code.co_filename}:{code.co_firstlineno}: in {code.co_name}()")


def accumulators(fakes):
    """Return a patch by which a hook of several tensors is asked about the nodes of fake tensors, @fakes by their tensors' ids."""
    executes = torch._C._will_engine_execute_node

    def of_fake(node):
        fake = fakes.get(id(getattr(node, "variable", None)))
        return executes(node if fake is None else _accumulator(fake))
    return mock.patch.object(torch._C, "_will_engine_execute_node", of_fake)
