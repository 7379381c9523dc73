# SPDX-License-Identifier: Apache-2.0
"""Parts of large calls that stand for them when prices are measured.

The products of a step take most of its time, so running each once would price a step at the cost of a step. A call on
some rows or columns of the same operands, whose strides stay, takes the same path of the kernel. Its time grows with the
sliced dimension. Scratch, if the part has any, is measured at the whole call.
"""
import torch

_WHOLE_FLOPS, _WHOLE_BYTES = 2e9, 64 << 20  # calls up to here run whole
_LEAST = 128                                # of a sliced dimension of a product

_aten = torch.ops.aten
_PRODUCTS = (_aten.mm.default, _aten.addmm.default, _aten.bmm.default)
_ROWS = (_aten._log_softmax.default, _aten._softmax.default)
_ROWS_BACKWARD = (_aten._log_softmax_backward_data.default, _aten._softmax_backward_data.default)


def smaller(target, args, kwargs):
    """Return (args, factor of the whole call's time), or None for a call that runs whole."""
    if kwargs:
        return None
    if target in _PRODUCTS:
        return _product(target, args)
    if torch.Tag.pointwise in target.tags and not target._schema.is_mutable:
        return _rows(args)
    dim = args[1] if target in _ROWS else args[2] if target in _ROWS_BACKWARD else None
    return _rows(args) if dim is not None and dim % args[0].dim() > 0 else None


def _product(target, args):
    bias, (a, b) = args[:-2], args[-2:]
    flops = 2.0 * a.numel() * b.shape[-1]
    rows, columns, lots = a.shape[-2], b.shape[-1], a.shape[0] if target is _aten.bmm.default else 1
    if flops <= _WHOLE_FLOPS:
        return None
    if lots > 1:
        n = max(1, int(lots * _WHOLE_FLOPS / flops))
        return ((a[:n], b[:n]), lots / n) if n < lots else None
    n = max(_LEAST, int(max(rows, columns) * _WHOLE_FLOPS / flops))
    if n >= max(rows, columns):
        return None
    if rows > columns:
        bias = tuple(t[:n] if t.dim() == 2 and t.shape[0] == rows else t for t in bias)
        return (*bias, a[:n], b), rows / n
    bias = tuple(t[..., :n] if t.shape[-1] == columns else t for t in bias)
    return (*bias, a, b[:, :n]), columns / n


def _rows(args):
    """Return a call on the first rows of operands that have one shape."""
    tensors = [t for t in args if isinstance(t, torch.Tensor) and t.dim()]
    if not tensors or any(t.shape != tensors[0].shape or not t.is_contiguous() for t in tensors):
        return None
    rows, n_bytes = tensors[0].shape[0], tensors[0].numel() * tensors[0].element_size()
    n = max(1, rows * (_WHOLE_BYTES // 2) // max(n_bytes, 1))
    if n_bytes <= _WHOLE_BYTES or n >= rows:
        return None
    return tuple(t[:n] if isinstance(t, torch.Tensor) and t.dim() else t for t in args), rows / n
