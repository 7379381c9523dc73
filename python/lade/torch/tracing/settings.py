# SPDX-License-Identifier: Apache-2.0
"""Settings of torch's that choose a dtype or a kernel, which a graph does not have.

Kernels read some of them when they run, so a step that sets one, or enters and leaves a context that does, is refused. All
ops of a plan run with the settings that the caller has. Getters of other releases of torch are left out where they are absent.
"""
import sys
from unittest import mock

import torch

from ...errors import CannotCapture

_DTYPE = "the step sets the default dtype; pass dtype= to the calls that make tensors", "torch.set_default_dtype"
_DETERMINISTIC = ("the step sets whether algorithms are deterministic, or the precision of float32 products, which choose kernels; "
                  "set it once, outside of the step", "torch.use_deterministic_algorithms")
_FLAGS = "mkldnn_enabled mkldnn_deterministic cudnn_enabled cudnn_benchmark cudnn_deterministic " \
    "cublas_allow_fp16_reduced_precision_reduction cublas_allow_bf16_reduced_precision_reduction " \
    "cublas_allow_fp16_accumulation cpu_allow_fp16_reduced_precision_reduction".split()
_TF32 = () if hasattr(torch._C, "_get_fp32_precision_getter") else ("cudnn_allow_tf32", "cublas_allow_tf32")  # now a precision
_PRECISIONS = ("cuda", "matmul"), ("cuda", "conv"), ("cuda", "rnn"), ("mkldnn", "matmul"), ("mkldnn", "conv"), ("mkldnn", "rnn")


def _flag(name):
    return (getattr(torch._C, f"_get_{name}"), getattr(torch._C, f"_set_{name}"),
            (f"the step sets {name}, which chooses kernels; set it once, outside of the step", "torch.backends"))


def _precision(backend, op):
    return (lambda: torch._C._get_fp32_precision_getter(backend, op),
            lambda value: torch._C._set_fp32_precision_setter(backend, op, value),
            (f"the step sets the precision of {backend}'s {op}; set it once, outside of the step", "torch.backends"))


def _deterministic():
    return torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()


_TABLE = [  # (getter, setter, (text of a refusal, op))
    (torch.get_default_dtype, torch.set_default_dtype, _DTYPE),
    (_deterministic, lambda mode, is_told: torch.use_deterministic_algorithms(mode, warn_only=is_told), _DETERMINISTIC),
    (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision, _DETERMINISTIC),
    (torch.get_num_threads, torch.set_num_threads, ("the step sets the number of threads, by which kernels divide their sums; set it "
                                                    "once, outside of the step", "torch.set_num_threads")),
    *(_flag(name) for name in (*_FLAGS, *_TF32) if hasattr(torch._C, f"_get_{name}") and hasattr(torch._C, f"_set_{name}")),
    *(_precision(*one) for one in _PRECISIONS if hasattr(torch._C, "_get_fp32_precision_getter"))]


class Settings:
    """The settings before a capture."""

    def __init__(self):
        self.before = [getter() for getter, _, _ in _TABLE]

    def check(self, branches):
        """Refuse a step that has changed one."""
        now = [getter() for getter, _, _ in _TABLE]
        if now != self.before:
            branches.refuse(*next(refusal for (_, _, refusal), new, old in zip(_TABLE, now, self.before) if new != old))

    def restore(self):
        for (getter, setter, _), before in zip(_TABLE, self.before):
            if getter() != before:
                setter(*(before if isinstance(before, tuple) else (before,)))


def flushing():
    """Yield patches that refuse set_flush_denormal() in all modules that name it, as torch does not tell the setting."""
    plain = torch.set_flush_denormal

    def refuse(_mode):
        raise CannotCapture("the step sets whether small numbers are flushed to zero, which kernels read; set it once, outside of "
                            "the step", "torch.set_flush_denormal")
    for module in list(sys.modules.values()):
        if getattr(module, "__dict__", {}).get("set_flush_denormal") is plain:
            yield mock.patch.object(module, "set_flush_denormal", refuse)
