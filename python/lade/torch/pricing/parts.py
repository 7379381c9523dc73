# SPDX-License-Identifier: Apache-2.0
"""Parts of large calls that stand for them when prices are measured.

The products of a step take most of its time, so running each once would price a step at the cost of a step. A call on
some rows or columns of the same operands, whose strides stay, takes the same path of the kernel. Its time grows with the
sliced dimension. Scratch, if the part has any, is measured at the whole call. Updates of single parameters work element
by element, so their scratch grows with the elements.
"""
import torch

_WHOLE_FLOPS, _WHOLE_BYTES = 5e8, 32 << 20  # calls up to here run whole
_MIN = 128                                # of a sliced dimension of a product

_aten = torch.ops.aten
_PRODUCTS = (_aten.mm.default, _aten.addmm.default, _aten.bmm.default)
_ROWS = (_aten._log_softmax.default, _aten._softmax.default)
_ALIKE = (_aten.bernoulli_.float,)  # in-place ops of no other tensors
_NORM, _EMBEDDING = _aten.linalg_vector_norm.default, _aten.embedding_dense_backward.default
_LOSS_BACKWARD = (_aten.nll_loss_backward.default,)
_ROWS_BACKWARD = (_aten._log_softmax_backward_data.default, _aten._softmax_backward_data.default)


def smaller(target, args, kwargs):
    """Return (args, factor of the whole call's time), or None for a call that runs whole."""
    if target is _aten._to_copy.default and not kwargs.keys() - {"dtype", "layout", "device"}:
        return _rows(args)
    if kwargs:
        return None
    if target in _PRODUCTS:
        return _product(target, args)
    is_whole_norm = target is _NORM and (len(args) < 3 or args[2] is None)
    if torch.Tag.pointwise in target.tags and not target._schema.is_mutable or target in _ALIKE or is_whole_norm:
        return _rows(args)
    if target is _EMBEDDING:
        return _table(args)
    if target in _LOSS_BACKWARD:
        return _loss(args)
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
    inner = a.shape[-1]
    whole = max(rows, columns, inner)
    n = max(_MIN, int(whole * _WHOLE_FLOPS / flops))
    if n >= whole:
        return None
    if whole == inner:
        return (*bias, a[..., :n], b[..., :n, :]), whole / n
    if whole == rows:
        bias = tuple(t[:n] if t.dim() == 2 and t.shape[0] == rows else t for t in bias)
        return (*bias, a[..., :n, :], b), whole / n
    bias = tuple(t[..., :n] if t.shape[-1] == columns else t for t in bias)
    return (*bias, a, b[..., :n]), whole / n


def _loss(args):
    """Return the gradient of a loss over the first rows."""
    grad, scores, labels, *rest = args
    n = _n_rows(scores)
    if n is None or scores.dim() != 2 or not scores.is_contiguous():
        return None
    return (grad[:n] if grad.dim() else grad, scores[:n], labels[:n], *rest), scores.shape[0] / n


def _table(args):
    """Return the gradient of the first rows of a table, of which most are zeros. Made-up indices are those of its first row."""
    grad, indices, n_rows, *rest = args
    n_bytes = n_rows * grad.shape[-1] * grad.element_size()
    n = max(4 * indices.numel(), n_rows * (_WHOLE_BYTES // 2) // max(n_bytes, 1))
    return ((grad, indices, n, *rest), n_rows / n) if n_bytes > _WHOLE_BYTES and n < n_rows else None


def rows_of_update(param):
    """Return how many rows of a parameter stand for it in an update, or None for all."""
    return _n_rows(param) if param.device.type == "cpu" and param.is_contiguous() and param.dim() else None


def _n_rows(tensor):
    rows, n_bytes = tensor.shape[0], tensor.numel() * tensor.element_size()
    n = max(1, rows * (_WHOLE_BYTES // 2) // max(n_bytes, 1))
    return n if n_bytes > _WHOLE_BYTES and n < rows else None


def _rows(args):
    """Return a call on the first rows of operands that have one shape."""
    tensors = [t for t in args if isinstance(t, torch.Tensor) and t.dim()]
    if not tensors or any(t.shape != tensors[0].shape or not t.is_contiguous() for t in tensors):
        return None
    n = _n_rows(tensors[0])
    if n is None:
        return None
    return tuple(t[:n] if isinstance(t, torch.Tensor) and t.dim() else t for t in args), tensors[0].shape[0] / n
