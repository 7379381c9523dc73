# SPDX-License-Identifier: Apache-2.0
"""Tensors whose bytes are on a tier between steps: the first use brings the bytes back.

A parked tensor keeps its identity, shape and place in the model, and its storage is empty. Its class is a subclass whose
__torch_function__ fetches before any call that could read or write bytes, then calls again. The tensor has its own class
back by then, as torch.nn.parameter.UninitializedParameter does it. Reading the shape, dtype, gradient and the like
fetches nothing. Copies and pickles fetch first. Code that takes a tensor past Python, such as a compiled extension, calls
sync() of the step before.

Another tensor over the same memory (a view, p.data, p.detach()) would lose its bytes unseen. So a step whose plan sends
bytes away refuses to begin while such a tensor is held. A graph of autograd that saved a parked tensor finds another
version of it, and its backward says so.
"""
import copy
import gc
import weakref

import torch
from torch.utils import _pytree as pytree

from ...errors import Error

_STEP = "_lade_step"    # of a parked tensor: a weak reference to its step
_BYTES = "_lade_bytes"  # and the bytes that its storage has when they are back

_FIELDS = ("shape", "dtype", "device", "requires_grad", "is_leaf", "grad", "grad_fn", "ndim", "layout", "names", "is_cuda",
           "is_cpu", "is_meta", "is_mps", "is_xpu", "is_mtia", "is_sparse", "is_sparse_csr", "is_quantized", "is_nested",
           "is_mkldnn", "retains_grad", "output_nr", "itemsize", "nbytes", "_version", "_base", "_backward_hooks",
           "_post_accumulate_grad_hooks")
_METHODS = ("size", "stride", "dim", "ndimension", "numel", "nelement", "element_size", "storage_offset", "is_contiguous",
            "is_floating_point", "is_complex", "is_signed", "requires_grad_", "register_hook",
            "register_post_accumulate_grad_hook", "get_device", "dim_order", "__len__")


def _described():
    """Return the functions that read and write no bytes of their tensors."""
    found = {getattr(torch.Tensor, name) for name in _METHODS if hasattr(torch.Tensor, name)}
    for name in _FIELDS:
        field = getattr(torch.Tensor, name, None)
        found.update(getattr(field, kind) for kind in ("__get__", "__set__", "__delete__") if hasattr(field, kind))
    return frozenset(found | {torch.is_floating_point, torch.is_complex, torch.numel})


_DESCRIBED = _described()


class _Parked:
    """The part of a parked tensor's class."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func in _DESCRIBED:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        fetch(*pytree.tree_leaves((args, kwargs)))
        return func(*args, **kwargs)

    def __deepcopy__(self, memo):
        fetch(self)
        return copy.deepcopy(self, memo)

    def __reduce_ex__(self, protocol):
        fetch(self)
        return self.__reduce_ex__(protocol)


_CLASSES = {torch.Tensor: type("ParkedTensor", (_Parked, torch.Tensor), {}),
            torch.nn.Parameter: type("ParkedParameter", (_Parked, torch.nn.Parameter), {})}


def can_park(tensor):
    """True if a tensor's class has a parked one."""
    return type(tensor) in _CLASSES or isinstance(tensor, _Parked)


def park(tensor, step, n_bytes):
    """Make the first use of @tensor, whose storage of @n_bytes was emptied, fetch the bytes that @step holds."""
    torch.autograd.graph.increment_version(tensor)
    tensor.__dict__.update({_STEP: weakref.ref(step), _BYTES: n_bytes})
    tensor.__class__ = _CLASSES[type(tensor)]


def unpark(tensor):
    """Give a tensor its own class back."""
    if isinstance(tensor, _Parked):
        tensor.__class__ = next(kind for kind, parked in _CLASSES.items() if type(tensor) is parked)
        del tensor.__dict__[_STEP], tensor.__dict__[_BYTES]


def fetch(*things):
    """Bring the bytes of parked tensors among @things back. Error if a tier does not return them."""
    for thing in things:
        if isinstance(thing, _Parked):
            step = thing.__dict__[_STEP]()
            if step is None:
                raise Error("the step that holds this tensor's bytes is gone")
            step.sync()


def memory_key(tensors, has_offsets, constants):
    """Return which of @tensors share a storage, the bytes of each storage, and with @has_offsets where each tensor begins.

    A plan empties and fills whole storages, so it holds for tensors that are alike in this. Nothing is fetched. @constants:
    numbers below 0 of the storages of plans' constants, by their addresses.
    """
    numbers, found, foreign = {}, [], []
    with torch._C.DisableTorchFunctionSubclass():
        for tensor in tensors:
            if tensor.layout is torch.strided:
                storage = tensor.untyped_storage()
                n_bytes = tensor.__dict__[_BYTES] if isinstance(tensor, _Parked) else storage.nbytes()
                found += numbers.setdefault(storage._cdata, constants.get(storage._cdata, len(numbers))), n_bytes
                if has_offsets:
                    found.append(tensor.storage_offset())
                if n_bytes and not storage.resizable():
                    foreign.append((storage.data_ptr(), n_bytes, len(found)))
    foreign.sort()
    found += ((a[2], b[2]) for a, b in zip(foreign, foreign[1:]) if b[0] < a[0] + a[1])  # two over one array
    return tuple(found)


def _n_users(storage):
    return torch._C._storage_Use_Count(storage._cdata)


def refuse_shared(name, tensor, n_own):
    """Refuse a tensor whose memory other tensors read than the @n_own of the model and its optimizer."""
    storage = tensor.untyped_storage()  # this object is a user too
    if _n_users(storage) <= n_own + 1:
        return
    gc.collect()
    if _n_users(storage) > n_own + 1:
        raise Error(f"{name} waits on a tier during the step, and another tensor over its memory is held (.data, .detach() "
                    "or a view): delete that tensor or keep a clone of it, or give a larger budget")


def _guard_dlpack():
    """Make to_dlpack() fetch, because it calls no __torch_function__."""
    for module, name in ((torch.utils.dlpack, "to_dlpack"), (torch, "to_dlpack")):
        plain = getattr(module, name, None)
        if plain is not None and not hasattr(plain, "lade_plain"):
            def to_dlpack(tensor, plain=plain):
                fetch(tensor)
                return plain(tensor)
            to_dlpack.lade_plain, to_dlpack.__doc__ = plain, plain.__doc__
            setattr(module, name, to_dlpack)


_guard_dlpack()
