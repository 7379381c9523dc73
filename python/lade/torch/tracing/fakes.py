# SPDX-License-Identifier: Apache-2.0
"""What a step sees of a fake tensor: the class, attributes, addresses and deep copies of the tensor that it stands for.

Code may ask for the class of a tensor, or whether it is a parameter, read an attribute that the user set on one, or compare
addresses to find weights that are shared. A fake tensor has a class of its own and no address, so these answers would choose
another branch than an eager step does. conversions.py serves type() and id().

Attributes of the user's are those of the tensor itself, read and written in its own dict. For tensors of the model that dict
is a container as others are, whose changes places.py finds and reads.py keys. Those of a batch's tensor are read alone, and the
names that a step read are a part of its plans' key.
"""
import copy
import threading
from unittest import mock

import torch
from torch._subclasses.fake_tensor import FakeTensor

from ...errors import CannotCapture

_PLAIN = (int, float, str, bytes, type(None))
_SHOWN = "_lade_shown"      # in the attributes of a fake tensor: its Shown
_ADDRESS = "_lade_address"  # in those of a storage: the address of the one that it stands for
_ADDRESS_SHIFT = 32         # the addresses of a storage's bytes differ from those of all others
_FUNCTIONS = {torch.Tensor.__torch_function__.__func__, torch.nn.Parameter.__torch_function__}
_FIELDS = frozenset((*FakeTensor.__annotations__, _SHOWN, "_is_param", "_debug_trace"))  # of FakeTensor, with those of its memos
_MEMOS = tuple(f"_{name}" for name, one in vars(FakeTensor).items() if type(one).__name__ == "SymNumberMemoDescriptor")
_CLASS_FIELDS = frozenset(("__module__", "__qualname__", "__doc__", "__init__", "__new__", "__annotations__", "__dict__",
                           "__weakref__", "__slots__", "__torch_function__", "__static_attributes__", "__firstlineno__"))

_ABSENT = object()


class Shown:
    """What a step sees of a fake tensor: a class, attributes and an id."""

    def __init__(self, kind, table, real=None, names=None, branches=None, is_argument=False):
        """@kind: the class, None for a tensor that the step makes. @table: the attributes. @real: the tensor that it stands for.

        @names: those that the step reads are added here. An @is_argument's attributes are not written: each call has another one.
        """
        self.kind, self.table, self.id, self.names = kind, table, id(real) if real is not None else None, names
        self.branches, self.is_argument = branches, is_argument

    def get(self, name):
        if self.names is not None:
            self.names.add(name)
        if name in self.table:
            self._check(name)
            return self.table[name]
        if self.kind and any(name in vars(kind) for kind in _own_classes(self.kind)):
            self.branches.refuse(f"the step reads {name} of a tensor's class {self.kind.__name__}, which a graph has not; keep it "
                                 "in an attribute of the tensor", "Python state")
        raise AttributeError(f"'Tensor' object has no attribute {name!r}")

    def set(self, name, value):
        self._check_write(name)
        self.table[name] = value

    def delete(self, name):
        self._check_write(name)
        if name not in self.table:
            raise AttributeError(name)
        del self.table[name]

    def copy(self, memo):
        """Return the deep copy of the attributes."""
        if self.names is not None:
            self.names.update(self.table)
        for name in self.table:
            self._check(name)
        return copy.deepcopy(self.table, memo)

    def _check(self, name):
        if self.is_argument and not isinstance(self.table[name], _PLAIN):
            self.branches.refuse(f"the step reads the attribute {name} of a tensor of its arguments, which is no number and no "
                                 "text; give it as an argument", "Python state")

    def _check_write(self, name):
        if self.is_argument:
            self.branches.refuse(f"the step sets or deletes the attribute {name} of a tensor of its arguments; do so outside of "
                                 "it", "Python state")


class _Base:
    """The first base of FakeTensor within a capture: its __class__ and its attributes are those of an eager step's tensor."""
    __slots__ = ()

    @property
    def __class__(self):
        own = vars(self)
        return _SHOWN in own and own[_SHOWN].kind or (torch.nn.Parameter if own.get("_is_param") else torch.Tensor)

    def __getattr__(self, name):
        return _shown(self).get(name)

    def __setattr__(self, name, value):
        if _is_own(name):
            torch.Tensor.__setattr__(self, name, value)
        else:
            _shown(self).set(name, value)

    def __delattr__(self, name):
        if _is_own(name):
            torch.Tensor.__delattr__(self, name)
        else:
            _shown(self).delete(name)


def _is_own(name):
    """True for an attribute of FakeTensor's."""
    return name in _FIELDS or name.startswith(_MEMOS) or hasattr(FakeTensor, name)


def _shown(fake):
    own = vars(fake)
    if _SHOWN not in own:
        own[_SHOWN] = Shown(None, {})
    return own[_SHOWN]


def _own_classes(kind):
    """Return the bases of a tensor's class that are not torch's own."""
    return [one for one in kind.__mro__ if one not in torch.nn.Parameter.__mro__]


def show(fake, real, read, branches, is_argument=False):
    """Give a fake tensor the class, the attributes and the address of the tensor that it stands for; @read: names of Shown.

    CannotCapture for a tensor of a class whose operators, methods or results are its own.
    """
    kind = torch.nn.Parameter if isinstance(real, FakeTensor) and isinstance(real, torch.nn.Parameter) else \
        torch.Tensor if isinstance(real, FakeTensor) else type(real)
    function = kind.__torch_function__
    is_known = kind is torch.Tensor or issubclass(kind, torch.nn.Parameter)
    is_plain = is_known and getattr(function, "__func__", function) in _FUNCTIONS
    names = {name for one in _own_classes(kind) for name in vars(one)} - _CLASS_FIELDS
    if not is_plain or any(hasattr(torch.Tensor, name) for name in names):
        raise CannotCapture("its class has operators or methods of its own, which a graph has not; give a plain tensor", kind.__name__)
    own = vars(fake)
    if kind is not torch.Tensor:
        own["_is_param"] = True
    own[_SHOWN] = Shown(kind, attributes_of(real), real, read, branches, is_argument)
    if not isinstance(real, FakeTensor) and real.layout is torch.strided and real.untyped_storage().nbytes():
        vars(fake.untyped_storage())[_ADDRESS] = real.untyped_storage().data_ptr()


def hide(fake):
    """Undo show(), so that a fake tensor holds nothing of its capture."""
    vars(fake).pop(_SHOWN, None)


def attributes_of(tensor):
    """Return the dict of the user's attributes of a tensor, or a copy if it is a fake one."""
    own = vars(tensor)
    return {name: value for name, value in own.items() if not _is_own(name)} if isinstance(tensor, FakeTensor) else own


def attributes_key(tensor, names):
    """Return a key of the attributes @names of a tensor, in which 1, 1.0 and True differ."""
    own = vars(tensor)
    found = [own.get(name, _ABSENT) for name in names]
    return tuple((type(value), repr(value) if isinstance(value, _PLAIN) else None) for value in found)


def id_of(fake):
    """Return the id of the tensor that a fake one stands for, or its own."""
    shown = vars(fake).get(_SHOWN)
    return shown and shown.id or id(fake)


def address(fake):
    """Return a number for data_ptr(): equal where fake tensors share their first byte."""
    return address_of(fake.untyped_storage()) + fake.storage_offset() * fake.element_size() if fake.numel() else 0


def address_of(storage):
    if not storage.nbytes():
        return 0
    return vars(storage).get(_ADDRESS) or storage._cdata << _ADDRESS_SHIFT


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
            vars(made)[_SHOWN] = Shown(None, _shown(fake).copy(memo))
            if fake.grad is not None:
                made.grad = deep_copy(fake.grad, memo)
    memo[id(fake)] = made
    return made


class _Showing:
    """Within this context fake tensors have the class and the addresses of an eager step's tensors. Threads may capture at once."""

    def __init__(self):
        plain = torch.UntypedStorage.data_ptr
        self.lock, self.n_within = threading.Lock(), 0
        self.addresses = mock.patch.object(torch.UntypedStorage, "data_ptr", lambda storage: address_of(storage)
                                           if storage.device.type == "meta" else plain(storage))

    def __enter__(self):
        with self.lock:
            self.n_within += 1
            if self.n_within == 1:
                FakeTensor.__bases__ = (_Base, *FakeTensor.__bases__)
                self.addresses.start()

    def __exit__(self, *fault):
        with self.lock:
            self.n_within -= 1
            if not self.n_within:
                FakeTensor.__bases__ = FakeTensor.__bases__[1:]
                self.addresses.stop()


SHOWING = _Showing()
