# SPDX-License-Identifier: Apache-2.0
"""Packed sequences within a step: torch.nn.utils.rnn's functions, and recurrent layers on a PackedSequence.

Their lengths decide shapes, and torch reads them by address, which fake tensors do not have. The lengths of a batch are an
answer of the capture (watch.py), so each set of lengths has a plan of its own; lengths that the step computes become a question
about computed values. The batch sizes of a PackedSequence are then a real constant, by which recurrent layers run as the ops
that torch makes of them. Packing is torch's own op, with a backward that reads no address. Padding is the ops of torch's.
"""
from unittest import mock

import torch
from torch import _VF
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes

_LAYERS = "lstm", "gru", "rnn_tanh", "rnn_relu"


class _Pack(torch.autograd.Function):
    """torch's packing; its gradient is added row by row, as torch does."""

    @staticmethod
    def forward(ctx, padded, lengths, batch_first, batch_sizes):
        ctx.batch_first, ctx.batch_sizes, ctx.shape = batch_first, batch_sizes, padded.shape
        return torch.ops.aten._pack_padded_sequence.default(padded, lengths, batch_first)[0]

    @staticmethod
    def backward(ctx, grad):
        first, second, *rest = ctx.shape
        found = grad.new_zeros([second, first, *rest] if ctx.batch_first else ctx.shape)
        offset = 0
        for i, n in enumerate(ctx.batch_sizes):
            found[i, :n].add_(grad[offset:offset + n])
            offset += n
        return found.transpose(0, 1) if ctx.batch_first else found, None, None, None


def _pack(watch, plain):
    def pack(padded, lengths, batch_first):
        if not isinstance(padded, FakeTensor):
            return plain(padded, lengths, batch_first)
        known = watch.constant(lengths)
        with _disable_current_modes():
            _, batch_sizes = plain(torch.empty(padded.shape[:2]), known, batch_first)  # which checks the lengths
        watch.keep_constant(batch_sizes)
        return _Pack.apply(padded, lengths, batch_first, batch_sizes.tolist()), batch_sizes
    return pack


def _pad(watch, plain):
    def pad(data, batch_sizes, batch_first, padding_value, total_length):
        if not isinstance(data, FakeTensor):
            return plain(data, batch_sizes, batch_first, padding_value, total_length)
        sizes = watch.constant(batch_sizes).tolist()
        found = data.new_full((total_length, sizes[0], *data.shape[1:]), padding_value)
        first = offset = 0
        for i, n in enumerate(sizes):
            if i + 1 == len(sizes) or sizes[i + 1] != n:  # the last of the rows that are as wide
                rows = i + 1 - first
                found[first:i + 1, :n].copy_(data[offset:offset + rows * n].view(rows, n, *data.shape[1:]))
                first, offset = i + 1, offset + rows * n
        lengths = torch.tensor([sum(n > i for n in sizes) for i in range(sizes[0])])
        return found.transpose(0, 1) if batch_first else found, lengths
    return pad


def _layer(watch, name, plain):
    def layer(*args):
        is_packed = isinstance(args[1], torch.Tensor) and (name == "lstm" or not isinstance(args[2], (list, tuple)))
        return plain(args[0], watch.constant(args[1]), *args[2:]) if is_packed else plain(*args)
    return layer


def patches(watch):
    """Yield patches of the functions that read lengths by address."""
    yield mock.patch.object(_VF, "_pack_padded_sequence", _pack(watch, _VF._pack_padded_sequence))
    yield mock.patch.object(_VF, "_pad_packed_sequence", _pad(watch, _VF._pad_packed_sequence))
    for name in _LAYERS:
        yield mock.patch.object(_VF, name, _layer(watch, name, getattr(_VF, name)))
