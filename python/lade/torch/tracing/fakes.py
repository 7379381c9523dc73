# SPDX-License-Identifier: Apache-2.0
"""What a step sees of a fake tensor: the class, attributes, addresses and deep copies of the tensor that it stands for.

Code may ask for the class of a tensor, or whether it is a parameter, read an attribute that the user set on one, or compare
addresses to find weights that are shared. A fake tensor has a class of its own and no address, so these answers would choose
another branch than an eager step does. conversions.py serves type().
"""
import contextlib
from unittest import mock

import torch
from torch._subclasses.fake_tensor import FakeTensor

from ...errors import CannotCapture

_PLAIN = (int, float, str, bytes, type(None))
_CLASS = "_lade_class"  # of the tensor that a fake one stands for
_ADDRESS_SHIFT = 32     # the addresses of a storage's bytes differ from those of all others
_HELD = "_lade_held"    # names of attributes that a graph does not look up, such as those that are tensors
_MEMO = "_memo"         # in the names of FakeTensor's own attributes that ops change
_FUNCTIONS = {torch.Tensor.__torch_function__.__func__, torch.nn.Parameter.__torch_function__}


class _Shown:
    """The first base of FakeTensor within a capture: its __class__ is that of an eager step's tensor."""
    __slots__ = ()

    @property
    def __class__(self):
        own = vars(self)
        return own.get(_CLASS) or (torch.nn.Parameter if own.get("_is_param") else torch.Tensor)

    def __getattr__(self, name):
        if name != _HELD and name in vars(self).get(_HELD, ()):
            raise CannotCapture(f"the step reads the attribute {name} of a tensor, which is no number and no text; keep it in a "
                                "module or a dict", "Python state")
        raise AttributeError(f"'Tensor' object has no attribute {name!r}")


def plain_attributes(tensor):
    """Return ((name, value), ...) of the numbers and texts that are attributes of a tensor of the user's."""
    return tuple((key, value) for key, value in vars(tensor).items() if isinstance(value, _PLAIN))


def show(fake, real):
    """Give a fake tensor the attributes and the class of the tensor that it stands for; return its attributes then.

    CannotCapture for a tensor of a class whose operators are its own.
    """
    own = vars(fake)
    own.update((key, value) for key, value in plain_attributes(real) if key not in own)
    own[_HELD] = frozenset(vars(real)) - own.keys()
    if isinstance(real, torch.nn.Parameter):
        own["_is_param"] = True
    if type(real) is not FakeTensor:
        own[_CLASS] = type(real)
        function = type(real).__torch_function__
        if getattr(function, "__func__", function) not in _FUNCTIONS:
            raise CannotCapture("its class has operators of its own, which a graph has not; give a plain tensor",
                                type(real).__name__)
    return dict(own)


def refuse_set(name, fake, before):
    """Raise CannotCapture if the step has set an attribute of a tensor, which had those of @before."""
    for key, value in vars(fake).items():
        if key not in before or isinstance(value, _PLAIN) and _MEMO not in key and value != before[key]:
            raise CannotCapture(f"the step sets the attribute {key} of {name}; keep it elsewhere", "Python state")


def address(fake):
    """Return a number for data_ptr(): equal where fake tensors share their first byte."""
    return address_of(fake.untyped_storage()) + fake.storage_offset() * fake.element_size() if fake.numel() else 0


def address_of(storage):
    return storage._cdata << _ADDRESS_SHIFT if storage.nbytes() else 0


def is_set_to(one, other):
    """Return Tensor.is_set_to() of two fake tensors."""
    return one.untyped_storage()._cdata == other.untyped_storage()._cdata and one.shape == other.shape \
        and one.stride() == other.stride() and one.storage_offset() == other.storage_offset()


def deep_copy(fake, memo):
    """Return the deep copy of a fake tensor; copies of views share their memory as in an eager step."""
    if not fake.is_leaf:
        raise RuntimeError("Only Tensors created explicitly by the user (graph leaves) support the deepcopy protocol at the "
                           "moment")
    if id(fake) in memo:
        return memo[id(fake)]
    with torch.no_grad():
        if isinstance(fake, torch.nn.Parameter):
            made = torch.nn.Parameter(fake.detach().clone(memory_format=torch.preserve_format), fake.requires_grad)
        else:
            storage, copies = fake.untyped_storage(), memo.setdefault("torch", {})
            if storage._cdata not in copies:
                n = storage.nbytes() // fake.element_size()
                copies[storage._cdata] = fake.detach().as_strided((n,), (1,), 0).clone()
            made = copies[storage._cdata].view(fake.dtype).as_strided(fake.shape, fake.stride(), fake.storage_offset())
            made = made.detach().requires_grad_(fake.requires_grad)
            if fake.grad is not None:
                made.grad = deep_copy(fake.grad, memo)
    memo[id(fake)] = made
    return made


@contextlib.contextmanager
def showing():
    """Within this context fake tensors have the class and the addresses of an eager step's tensors."""
    plain = torch.UntypedStorage.data_ptr

    def data_ptr(storage):
        return address_of(storage) if storage.device.type == "meta" else plain(storage)
    FakeTensor.__bases__ = (_Shown, *(base for base in FakeTensor.__bases__ if base is not _Shown))
    try:
        with mock.patch.object(torch.UntypedStorage, "data_ptr", data_ptr):
            yield
    finally:
        FakeTensor.__bases__ = tuple(base for base in FakeTensor.__bases__ if base is not _Shown)
