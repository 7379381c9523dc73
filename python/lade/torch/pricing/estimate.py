# SPDX-License-Identifier: Apache-2.0
"""Prices of ops without running them, for steps that this machine cannot hold.

An op takes the longer of its arithmetic at the device's rate and its bytes at the memory's rate, plus a launch. Scratch
is not known and counts as 0: the plan's peak is of the storages alone.
"""
import torch
from torch.fx.node import map_arg
from torch.utils.flop_counter import flop_registry

from .. import optimizers


class Estimator:
    """Takes the place of a Pricer: fills in time from shapes."""

    def __init__(self, flops_per_s=100e12, bytes_per_s=1e12, launch_ns=5000):
        self.flops_per_s, self.bytes_per_s, self.launch_ns = flops_per_s, bytes_per_s, launch_ns

    def price(self, values, _device):
        for op in values.ops:
            n = sum(values.storages[k]["bytes"] for k in (*op.reads, *op.writes, *op.updates, *op.updates))
            flops = self._flops(values, op)
            op.ns = int(max(flops / self.flops_per_s, n / self.bytes_per_s) * 1e9) + self.launch_ns

    @staticmethod
    def _flops(values, op):
        count = flop_registry.get(op.node.target.overloadpacket)
        if count is None or op.node.target in (optimizers.UPDATE, optimizers.UPDATE_ALL):
            return 0
        args, kwargs = map_arg((tuple(op.node.args), dict(op.node.kwargs)), lambda n: values.metas[values.value(n)])
        out = op.node.meta["val"]
        return count(*args, **kwargs, out_val=out if isinstance(out, torch.Tensor) else tuple(out))
