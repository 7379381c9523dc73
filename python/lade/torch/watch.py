# SPDX-License-Identifier: Apache-2.0
"""Watches the ops of a capture: small constants that the step computes, and tensors that belong to no model.

Some code asks for the value of a tensor that no input decides, such as a causal mask that it just made. The ops that made
the tensor run for real beside the capture, so the question has an answer, the same one in every step. Tensors of the
user that are in no model stay real in a capture. An op that writes one would change it, so it is copied before and
restored behind the capture.
"""
import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

_FOLLOWED_MOST = 1 << 16  # elements of a followed constant
_ASKED = (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.equal.default)
_DEVICE = torch.ops.prim.device.default
_LIFTS = (torch.ops.aten.lift_fresh.default, torch.ops.aten.lift.default)


class Watch(TorchDispatchMode):
    """Within this mode constants are followed, and writes to real tensors are noted."""

    def __init__(self):
        super().__init__()
        self.known = {}     # id of a fake tensor -> (itself, its values)
        self.written = {}   # id of a real tensor -> (itself, a copy from before the capture)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is _DEVICE and type(args[0]) is FakeTensor:
            return args[0].fake_device  # most calls of a capture ask this
        kwargs = kwargs or {}
        tensors = [t for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        reals = self._reals(func, tensors)
        if func in _ASKED and reals is not None:
            return self._run(func, args, kwargs)
        if func._schema.is_mutable:
            self._keep(func, args, kwargs)
        result = func(*args, **kwargs)
        self._follow(func, args, kwargs, tensors, reals, result)
        return result

    def _reals(self, func, tensors):
        """Return the values of all operands, or None if an input or a draw decides one of them."""
        found = [t if func in _LIFTS else self.known.get(id(t), (None, None))[1] for t in tensors]
        return None if any(t is None for t in found) or torch.Tag.nondeterministic_seeded in func.tags else found

    def _run(self, func, args, kwargs):
        def value(t):
            return self.known[id(t)][1] if id(t) in self.known else t
        real_args, real_kwargs = pytree.tree_map_only(torch.Tensor, value, (args, kwargs))
        with _disable_current_modes(), torch.no_grad():
            return func(*real_args, **real_kwargs)

    def _follow(self, func, args, kwargs, tensors, reals, result):
        made = [t for t in pytree.tree_leaves(result) if isinstance(t, torch.Tensor)]
        is_small = all(t.numel() <= _FOLLOWED_MOST for t in made) and made
        if reals is None or not is_small or not all(isinstance(t, FakeTensor) for t in made):
            if func._schema.is_mutable:
                self._forget(tensors)
            return
        values = [t for t in pytree.tree_leaves(self._run(func, args, kwargs)) if isinstance(t, torch.Tensor)]
        for fake, real in zip(made, values):
            self.known[id(fake)] = fake, real

    def _forget(self, tensors):
        """Forget all constants that share memory with @tensors: another value may be in them."""
        lost = {self.known[id(t)][1].untyped_storage()._cdata for t in tensors if id(t) in self.known}
        for key in [k for k, (_, real) in self.known.items() if real.untyped_storage()._cdata in lost]:
            del self.known[key]

    def _keep(self, func, args, kwargs):
        for i, argument in enumerate(func._schema.arguments):
            if argument.alias_info is None or not argument.alias_info.is_write:
                continue
            for t in pytree.tree_leaves(args[i] if i < len(args) else kwargs.get(argument.name)):
                if isinstance(t, torch.Tensor) and not isinstance(t, FakeTensor) and id(t) not in self.written:
                    with _disable_current_modes(), torch.no_grad():
                        self.written[id(t)] = t, t.detach().clone()

    def restore(self):
        """Bring back the real tensors that the capture wrote."""
        with torch.no_grad():
            for tensor, copy in self.written.values():
                if not torch.equal(tensor, copy):
                    tensor.detach().copy_(copy)
        self.known, self.written = {}, {}
