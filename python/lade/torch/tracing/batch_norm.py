# SPDX-License-Identifier: Apache-2.0
"""BatchNorm(momentum=None) in a capture: its running statistics are plain averages over all batches.

The weight of a batch is 1 / num_batches_tracked, a number that grows in each step, so it cannot be a constant of the graph.
An op of its own reads the counter in each step and calls the kernel that an eager step calls. On CUDA an eager step may call
cuDNN, so the module is refused there.
"""
from unittest import mock

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from ...errors import CannotCapture

_LIBRARY = torch.library.Library("lade", "FRAGMENT")
_LIBRARY.define("batch_norm_average(Tensor input, Tensor? weight, Tensor? bias, Tensor(a!) mean, Tensor(b!) var, Tensor count, "
                "float eps) -> (Tensor, Tensor, Tensor)")


def _run(x, weight, bias, mean, var, count, eps):
    """Normalize by the statistics of the batch, which weigh 1 / @count in the running ones. Made-up counters may be 0."""
    return torch.ops.aten.native_batch_norm(x, weight, bias, mean, var, True, 1.0 / max(1.0, float(count)), eps)


def _described(x, weight, bias, mean, var, _count, eps):
    return torch.ops.aten.native_batch_norm(x, weight, bias, mean, var, True, 0.0, eps)


_LIBRARY.impl("batch_norm_average", _run, "CPU")
_LIBRARY.impl("batch_norm_average", _described, "Meta")


class _Average(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias, mean, var, count, eps):
        out, own_mean, own_invstd = torch.ops.lade.batch_norm_average(x, weight, bias, mean, var, count, eps)
        ctx.save_for_backward(x, weight, mean, var, own_mean, own_invstd)
        ctx.eps = eps
        return out

    @staticmethod
    def backward(ctx, grad):
        x, weight, *statistics = ctx.saved_tensors
        needed = list(ctx.needs_input_grad[:3])
        found = torch.ops.aten.native_batch_norm_backward(grad, x, weight, *statistics, True, ctx.eps, needed)
        return *(one if is_needed else None for one, is_needed in zip(found, needed)), None, None, None, None


def averages():
    """Return a patch of the modules' forward."""
    plain = _BatchNorm.forward

    def forward(module, x):
        if module.momentum is not None or not module.training or not module.track_running_stats:
            return plain(module, x)
        if x.device.type != "cpu":
            raise CannotCapture("momentum=None is captured on the CPU alone; give a momentum", type(module).__name__)
        module._check_input_dim(x)
        module.num_batches_tracked.add_(1)
        return _Average.apply(x, module.weight, module.bias, module.running_mean, module.running_var,
                              module.num_batches_tracked, module.eps)
    return mock.patch.object(_BatchNorm, "forward", forward)
