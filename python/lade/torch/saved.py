# SPDX-License-Identifier: Apache-2.0
"""lade.torch.saved: eager mode's saved tensors wait on the host or a drive, within a bound of bytes on the device.

Autograd hands each tensor that a backward needs to pack(), and asks for it by unpack(). Tensors are held by storage:
views of one storage count once and come back as views. When the held bytes pass the limit, the storage whose use is
farthest is copied out by a thread and freed; pack() waits while more bytes than the limit are held or in flight. The
order of use is learned in the first step, and later steps fetch ahead in that order as far as the limit allows.

A copy stays valid until its tensor is no longer needed, so freeing a fetched storage again costs nothing. Parameters,
buffers and their views are left alone. A write in place to a saved tensor is found by its version counter.
"""
import threading
from concurrent.futures import ThreadPoolExecutor

import torch

from ..errors import DoesNotFit, Error
from ..size import size_bytes
from . import tiers
from .planned import disk_free
from .trace import modules_of

SMALL_BYTES = 4096 # smaller tensors stay


class _Entry:
    """A saved storage: where its bytes are, and which tensors need it."""
    __slots__ = ("number", "n_bytes", "tensor", "version", "base", "copy", "where", "work", "n_handles", "used")

    def __init__(self, number, tensor, base):
        self.number, self.n_bytes = number, tensor.untyped_storage().nbytes()
        self.tensor, self.version, self.base = tensor, tensor._version, base
        self.copy = self.where = self.work = None
        self.n_handles, self.used = 0, False


class _Handle:
    """A saved tensor: a view of an entry's storage. Autograd drops it behind its last use."""
    __slots__ = ("owner", "entry", "dtype", "offset", "size", "stride", "version")

    def __init__(self, owner, entry, tensor):
        self.owner, self.entry, self.version = owner, entry, tensor._version
        self.dtype, self.offset = tensor.dtype, tensor.storage_offset()
        self.size, self.stride = tensor.size(), tensor.stride()
        entry.n_handles += 1

    def __del__(self):
        self.owner.forget(self.entry)


class saved:
    """Within this context, saved tensors hold at most @live bytes on the device; the rest waits in @host bytes of
    memory and in the directory @store. @store_bytes of its drive are taken at the start; the default is 8 times @live.

    DoesNotFit if neither has room. Error if a saved tensor was written in place, or a drive failed.
    """

    def __init__(self, model, live, host=None, store=None, store_bytes=None):
        self.limit, self.host_free = size_bytes(live), size_bytes(host) if host is not None else 0
        devices = {str(p.device) for _, m in modules_of(model) for p in m.parameters(recurse=False)} - {"cpu"}
        if devices:
            raise Error(f"the model is on {sorted(devices)[0]}: saved tensors are moved from the CPU alone")
        self.model, self.left_alone, self.kept = model, set(), []
        self.store_dir, self.store = store, None
        if store is not None:
            wanted = size_bytes(store_bytes) if store_bytes is not None else min(8 * self.limit, disk_free(store) // 2)
            self.store = tiers.Store(store, wanted)
        self.lock, self.thread = threading.RLock(), ThreadPoolExecutor(1)
        self.entries, self.by_storage, self.rooms = {}, {}, {}
        self.live_bytes = self.peak_bytes = self.moved_bytes = self.number = self.n_ahead = 0
        self.order, self.learning, self.fault = {}, [], None
        self.hooks = None

    def __enter__(self):
        self.kept = [t for _, m in modules_of(self.model) for t in (*m._parameters.values(), *m._buffers.values())
                     if t is not None]
        self.left_alone = {t.untyped_storage()._cdata for t in self.kept} # kept, so that no other storage has the number
        self.hooks = torch.autograd.graph.saved_tensors_hooks(self.pack, self.unpack)
        self.hooks.__enter__()
        return self

    def __exit__(self, *fault):
        self.hooks.__exit__(*fault)
        self.hooks = None

    def close(self):
        """Free the host's memory and the store. pre: no backward is to come."""
        self.thread.shutdown()
        self.rooms.clear()
        if self.store is not None:
            self.store.close()

    # hooks

    def pack(self, tensor):
        if not self._is_movable(tensor):
            return tensor
        with self.lock:
            self._check()
            key = tensor.untyped_storage()._cdata
            entry = self.by_storage.get(key)
            if entry is None:
                entry = self._entry_new(tensor.detach(), key)
            elif entry.tensor is not None and entry.version != tensor._version:
                entry = self._entry_new(tensor.detach(), key)
            handle = _Handle(self, entry, tensor)
            self._make_room(entry)
            return handle

    def unpack(self, packed):
        if not isinstance(packed, _Handle):
            return packed
        with self.lock:
            self._check()
            entry = packed.entry
            self._learn(entry)
            self._fetch(entry)
            if entry.base is not None and entry.tensor._version != packed.version:
                raise Error(f"a saved tensor of shape {tuple(packed.size)} was written in place")
            tensor = torch.empty(0, dtype=packed.dtype, device=entry.tensor.device)
            tensor.set_(entry.tensor.untyped_storage(), packed.offset, packed.size, packed.stride)
            self._fetch_ahead(entry)
            return tensor

    def _is_movable(self, tensor):
        if isinstance(tensor, torch.nn.Parameter) or type(tensor) is not torch.Tensor:
            return False
        if tensor.is_leaf and tensor.requires_grad or tensor.layout != torch.strided:
            return False
        base = tensor._base
        if base is not None and base.is_leaf and base.requires_grad:
            return False
        storage = tensor.untyped_storage()
        return storage.nbytes() > SMALL_BYTES and storage._cdata not in self.left_alone

    # entries

    def _entry_new(self, tensor, key):
        if not self.entries:
            self._step_begin()
        entry = _Entry(self.number, tensor, tensor)
        self.number += 1
        self.entries[entry.number], self.by_storage[key] = entry, entry
        self._count(entry.n_bytes)
        return entry

    def _step_begin(self):
        if self.learning:
            self.order = {number: at for at, number in enumerate(self.learning)}
        self.number, self.learning = 0, []

    def forget(self, entry):
        """Drop one handle of an entry; the last one frees its bytes."""
        with self.lock:
            entry.n_handles -= 1
            if entry.n_handles:
                return
            if entry.work is not None:
                entry.work.result()
            self._release(entry)
            if entry.copy is not None:
                self._copy_free(entry)
            self.entries.pop(entry.number, None)
            for key in [k for k, e in self.by_storage.items() if e is entry]:
                del self.by_storage[key]

    def _count(self, n_bytes):
        self.live_bytes += n_bytes
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)

    def _release(self, entry):
        """Free the storage on the device, if it is there."""
        if entry.tensor is not None:
            for key in [k for k, e in self.by_storage.items() if e is entry]:
                del self.by_storage[key]
            entry.tensor = entry.base = None
            self.live_bytes -= entry.n_bytes

    # out

    def _use(self, entry):
        """Return the place of an entry's next use; without an order the first saved is used last."""
        return self.order.get(entry.number, -entry.number) if not entry.used else -1

    def _make_room(self, newest):
        """Copy storages out, the farthest use first, until the held bytes are within the limit."""
        while self.live_bytes > self.limit:
            held = [e for e in self.entries.values() if e.tensor is not None and not e.used]
            if not held:
                return
            ready = [e for e in held if e.copy is not None]
            self._put(max(ready or held, key=self._use), newest)

    def _put(self, entry, newest):
        if entry.work is not None:
            entry.work.result()
            entry.work = None
        if entry.copy is None:
            self._written(entry)
            self._room(entry)
            entry.work = self.thread.submit(self._copy_out, entry, entry.tensor.untyped_storage().data_ptr())
            self.moved_bytes += entry.n_bytes
            entry.work.result()  # back-pressure: the limit holds before the caller goes on
            entry.work = None
            self._check()
            self._written(entry)
        self._release(entry)

    def _written(self, entry):
        if entry.base is not None and entry.tensor._version != entry.version:
            raise Error(f"a saved tensor of shape {tuple(entry.tensor.shape)} was written in place")

    def _room(self, entry):
        """Take room for a copy on the host, or else in the store."""
        rooms = self.rooms.setdefault(entry.n_bytes, [])
        if rooms:
            entry.copy, entry.where = rooms.pop(), "host"
        elif entry.n_bytes <= self.host_free:
            self.host_free -= entry.n_bytes
            entry.copy, entry.where = tiers.Host(entry.n_bytes), "host"
        elif self.store is not None:
            entry.copy, entry.where = b"saved %d" % entry.number, "store"
        else:
            raise DoesNotFit(f"{entry.n_bytes} saved bytes find no room on the host; live, host or store must be larger",
                             self.limit + entry.n_bytes)

    def _copy_free(self, entry):
        if entry.where == "host":
            self.rooms.setdefault(entry.n_bytes, []).append(entry.copy)
        else:
            self.store.drop(entry.copy)
        entry.copy = entry.where = None

    def _copy_out(self, entry, address):
        try:
            if entry.where == "host":
                entry.copy.put(0, entry.tensor, entry.n_bytes)
            else:
                self.store.put(entry.copy, self._cpu(entry, address), entry.n_bytes)
        except Error as fault:
            self.fault = fault

    @staticmethod
    def _cpu(entry, address):
        if entry.tensor.device.type != "cpu":
            raise Error("the store takes tensors of the CPU")
        return address

    def _check(self):
        if self.fault is not None:
            raise self.fault

    # in

    def _fetch(self, entry):
        if entry.work is not None:
            entry.work.result()
            entry.work = None
            self._check()
        if entry.tensor is None:
            self._begin(entry)
            entry.work.result()
            entry.work = None
            self._check()

    def _begin(self, entry):
        device = torch.device("cpu")
        self._count(entry.n_bytes)
        entry.tensor = torch.empty(entry.n_bytes, dtype=torch.uint8, device=device)
        entry.work = self.thread.submit(self._copy_in, entry)
        self.moved_bytes += entry.n_bytes

    def _copy_in(self, entry):
        try:
            if entry.where == "host":
                entry.copy.get(0, entry.tensor, entry.n_bytes)
            else:
                self.store.get(entry.copy, entry.tensor.untyped_storage().data_ptr(), entry.n_bytes)
        except Error as fault:
            self.fault = fault

    def _learn(self, entry):
        if not entry.used:
            entry.used = True
            self.learning.append(entry.number)

    def _fetch_ahead(self, entry):
        """Begin to fetch the next storages in the learned order, as far as the limit allows."""
        here = self.order.get(entry.number)
        if here is None:
            return
        away = sorted((e for e in self.entries.values() if e.tensor is None and self._use(e) > here), key=self._use)
        for other in away[:8]:
            if self.live_bytes + other.n_bytes > self.limit:
                return
            self._begin(other)
            self.n_ahead += 1
