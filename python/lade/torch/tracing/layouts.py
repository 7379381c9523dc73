# SPDX-License-Identifier: Apache-2.0
"""Fake tensors with the strides, dtypes and storages that the kernels return.

Descriptions of some ops give other strides or dtypes than their kernels. A capture under such a description would ask for
views that the real tensor does not have, and cast a tensor that needs no cast. Pricing runs each call and finds the
difference; the next capture corrects it.
"""
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils import _pytree as pytree

# Described once with one tensor for two results, and at later calls, from a cache, with two, as the kernel returns them.
_APART = (torch.ops.aten.mkldnn_rnn_layer_backward.default,)
# CTC losses, of which torch has no descriptions: number of the operand with the targets' lengths.
_CTC = {torch.ops.aten._ctc_loss.default: 3, torch.ops.aten._ctc_loss.Tensor: 3}
_CTC_BACKWARD = torch.ops.aten._ctc_loss_backward.default, torch.ops.aten._ctc_loss_backward.Tensor


def alignment(device):
    """Return the bytes of an address's alignment that kernels ask for: cuBLAS up to 256."""
    return 256 if device.type == "cuda" else 64


class Described:
    """A tensor in the key of a call."""

    def __init__(self, meta):
        self.fields = (tuple(meta.shape), meta.stride(), meta.dtype, meta.device.type,
                       meta.storage_offset() * meta.element_size() % alignment(meta.device))
        if meta.is_conj() or meta.is_neg():
            self.fields += meta.is_conj(), meta.is_neg()

    def __repr__(self):
        return repr(self.fields)


class Mode(FakeTensorMode):
    """A mode whose results have the forms of @layouts: key of a call -> {output: (strides, dtype)}."""

    def __init__(self, layouts):
        super().__init__(allow_non_fake_inputs=True)
        self.layouts = layouts
        self.next_form = None  # of the next call: its op, and forms of its results or the longest target of a CTC loss

    def dispatch(self, func, types, args=(), kwargs=None):
        if func in _CTC:
            lengths = args[_CTC[func]]
            return self._ctc(args[0], self.next_form[1] if isinstance(lengths, torch.Tensor) else max(lengths, default=0))
        if func in _CTC_BACKWARD:
            return self._new(args[1].shape, args[1].dtype, args[1].device)
        if self.next_form is not None and self.next_form[0] is func:
            first = next(t for t in pytree.tree_leaves(args) if isinstance(t, torch.Tensor))
            return pytree.tree_map_only(torch.Tensor, lambda t: self._new_like(t, first.device), self.next_form[1])
        result = super().dispatch(func, types, args, kwargs)
        if func in _APART:
            result = self._apart(result)
        forms = self._forms(func, args, kwargs or {}) if self.layouts else None
        if not forms:
            return result
        if isinstance(result, torch.Tensor):
            return self._like(result, *forms[None])
        return type(result)(self._like(t, *forms[i]) if i in forms else t for i, t in enumerate(result))

    def _new(self, shape, dtype, device):
        return FakeTensor(self, torch.empty(shape, dtype=dtype, device="meta"), device)

    def _new_like(self, form, device):
        return FakeTensor(self, torch.empty_strided(form.shape, form.stride(), dtype=form.dtype, device="meta"), device)

    def _ctc(self, scores, longest):
        """Return the losses of a CTC loss and the table that its backward reads, of @longest targets."""
        n_times, n_rows = scores.shape[0], scores.shape[1]
        return (self._new((n_rows,), scores.dtype, scores.device),
                self._new((n_rows, n_times, 2 * longest + 1), scores.dtype, scores.device))

    def _apart(self, tensors):
        made = []
        for t in tensors:
            made.append(self._like(t, t.stride(), t.dtype) if any(t is other for other in made) else t)
        return type(tensors)(made)

    def _forms(self, func, args, kwargs):
        key = pytree.tree_map_only(torch.Tensor, Described, (tuple(args), dict(kwargs)))
        return self.layouts.get((str(func), repr(key)))

    def _like(self, tensor, stride, dtype):
        made = torch.empty_strided(tensor.shape, stride, dtype=dtype, device="meta")
        return FakeTensor(self, made, tensor.device)
