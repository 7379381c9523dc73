# SPDX-License-Identifier: Apache-2.0
"""lade.torch.saved: eager mode's saved tensors wait on the host or a drive, within a bound of bytes on the device.

Autograd hands each tensor that a backward needs to pack(), and asks for it by unpack(). Tensors are held by storage:
views of one storage count once and come back as views. A storage is copied out while the forward goes on, and freed
when its copy is complete. The hook pack() waits for copies only while more bytes than the limit are held, copies in
flight included.

The first step learns which storages there are and in which order they are used. Later steps copy those out that are
used last, from the moment they are saved, as many bytes as do not fit. The backward fetches ahead in the learned order
as far as the limit allows. Before the order is known, the storage that was saved first counts as used last.

Parameters, buffers and their views are left alone. A write in place to a saved tensor is found by its version counter,
and is an error when the tensor is used.
"""
import collections
import threading

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from ..errors import DoesNotFit, Error
from ..size import size_bytes
from .running import tiers, worker
from .running.cuda_copies import copies_of
from .planned import disk_free
from .tracing.trace import modules_of

SMALL_BYTES = 4096 # smaller tensors stay


class _Entry:
    """A saved storage: where its bytes are, and which tensors need it."""
    __slots__ = ("number", "key", "weak", "n_bytes", "tensor", "version", "is_original", "is_written", "copy", "where",
                 "out", "work", "n_handles", "used")

    def __init__(self, number, tensor):
        storage = tensor.untyped_storage()
        self.number, self.n_bytes, self.key, self.weak = number, storage.nbytes(), storage._cdata, StorageWeakRef(storage)
        self.tensor, self.version = tensor, tensor._version
        self.is_original, self.is_written = True, False  # original: the tensor is the one that was saved, no copy
        self.copy = self.where = self.out = self.work = None
        self.n_handles, self.used = 0, False


class _ThreadCopy:
    """A copy in a thread; the store's requests and the events of CUDA's copies have the same two functions.

    A destructor may begin one: the garbage collector ends entries, whose sweep makes room.
    """

    def __init__(self, call, *args):
        self.future = worker.submit("saved", call, *args)

    def is_done(self):
        return self.future.done()

    def wait(self):
        self.future.result()


class _Handle:
    """A saved tensor: a view of an entry's storage. Autograd drops it after its last use."""
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
        devices = {p.device for _, m in modules_of(model) for p in m.parameters(recurse=False)}
        self.device = next(iter(devices), torch.device("cpu"))
        if len(devices) > 1 or self.device.type not in ("cpu", "cuda"):
            raise Error(f"the model is on {', '.join(sorted(map(str, devices)))}: saved tensors are moved from the CPU or "
                        "from one CUDA device")
        self.model, self.left_alone, self.kept = model, set(), []
        self.store_dir, self.store = store, None
        if store is not None:
            wanted = size_bytes(store_bytes) if store_bytes is not None else min(8 * self.limit, disk_free(store) // 2)
            self.store = tiers.Store(store, wanted)
        self.bounced = tiers.Bounced(self.store, self.device) if self.store and self.device.type == "cuda" else None
        self.lock, self.inside, self.dropped = threading.RLock(), False, collections.deque()
        self.entries, self.by_storage, self.rooms, self.outs = {}, {}, {}, collections.deque()
        self.live_bytes = self.peak_bytes = self.moved_bytes = self.number = self.n_ahead = 0
        self.order, self.sequence, self.at, self.to_move = {}, [], 0, set()
        self.learning, self.sizes, self.fault = [], {}, None
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
        with self.lock:
            self._sweep()
        _ThreadCopy(int).wait()  # its call follows the copies under way
        self.rooms.clear()
        if self.store is not None:
            self.store.close()

    # hooks

    def pack(self, tensor):
        if not self._is_movable(tensor):
            return tensor
        with self.lock, _Inside(self):
            self._sweep()
            key = tensor.untyped_storage()._cdata
            entry = self.by_storage.get(key)
            if entry is None or entry.version != tensor._version or entry.weak.expired():
                self._make_room(tensor.untyped_storage().nbytes())
                entry = self._entry_new(tensor.detach())
            handle = _Handle(self, entry, tensor)
            if entry.number in self.to_move or (not self.sequence and self.live_bytes > self.limit // 2):
                self._out_begin(entry if self.sequence else self._farthest())
            self._make_room(0)
            return handle

    def unpack(self, packed):
        if not isinstance(packed, _Handle):
            return packed
        with self.lock, _Inside(self):
            self._sweep()
            entry = packed.entry
            self._learn(entry)
            self._fetch(entry)
            if entry.is_written or (entry.is_original and entry.tensor._version != packed.version):
                raise Error(f"a saved tensor of shape {tuple(packed.size)} was written in place")
            tensor = torch.empty(0, dtype=packed.dtype, device=entry.tensor.device)
            tensor.set_(entry.tensor.untyped_storage(), packed.offset, packed.size, packed.stride)
            self._fetch_ahead()
            return tensor

    def _is_movable(self, tensor):
        if isinstance(tensor, torch.nn.Parameter) or type(tensor) is not torch.Tensor or tensor.device != self.device:
            return False
        if tensor.is_leaf and tensor.requires_grad or tensor.layout != torch.strided:
            return False
        base = tensor._base
        if base is not None and base.is_leaf and base.requires_grad:
            return False
        storage = tensor.untyped_storage()
        return storage.nbytes() > SMALL_BYTES and storage._cdata not in self.left_alone

    # entries

    def _entry_new(self, tensor):
        if not self.entries:
            self._step_begin()
        entry = _Entry(self.number, tensor)
        self.number += 1
        self.entries[entry.number] = self.by_storage[entry.key] = entry
        self.sizes[entry.number] = entry.n_bytes
        self._count(entry.n_bytes)
        return entry

    def _step_begin(self):
        """Take over the order of use and the storages to copy out, which the last step learned."""
        if self.learning:
            self.sequence, self.order = self.learning, {number: at for at, number in enumerate(self.learning)}
            excess = sum(self.sizes[number] for number in self.sequence) - self.limit
            self.to_move = set()
            for number in reversed(self.sequence):
                if excess <= 0:
                    break
                self.to_move.add(number)
                excess -= self.sizes[number]
        self.number, self.learning, self.sizes, self.at = 0, [], {}, 0

    def forget(self, entry):
        """Drop one handle of an entry. The garbage collector may call this at any point of this class's own code."""
        self.dropped.append(entry)
        if not self.inside and self.lock.acquire(blocking=False):
            try:
                with _Inside(self):
                    self._sweep()
            finally:
                self.lock.release()

    def _sweep(self):
        """Free the bytes of entries without handles, and the storages whose copies are complete."""
        self._check()
        while self.dropped:
            entry = self.dropped.popleft()
            entry.n_handles -= 1
            if not entry.n_handles:
                self._end(entry)
        while self.outs and (self.outs[0].out is None or self.outs[0].out.is_done()):
            self._out_end(self.outs.popleft())

    def _end(self, entry):
        for work in (entry.out, entry.work):
            if work is not None:
                self._wait(work)
        entry.out = entry.work = None
        self._release(entry)
        if entry.copy is not None:
            self._copy_free(entry)
        self.entries.pop(entry.number, None)
        if self.by_storage.get(entry.key) is entry:
            del self.by_storage[entry.key]

    def _count(self, n_bytes):
        self.live_bytes += n_bytes
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)

    def _release(self, entry):
        """Free the storage on the device, if it is there."""
        if entry.tensor is not None:
            entry.tensor, entry.is_original = None, False
            self.live_bytes -= entry.n_bytes

    def _wait(self, work):
        """Wait for a copy; its failure is also that of all later calls, because bytes are lost."""
        try:
            work.wait()
        except Error as fault:
            self.fault = fault
            raise

    def _check(self):
        if self.fault is not None:
            raise self.fault

    # out

    def _use(self, entry):
        """Return the place of an entry's next use; without an order the first saved is used last."""
        return self.order.get(entry.number, -entry.number)

    def _farthest(self):
        """Return the storage on the device whose use is farthest and of which no copy is under way.

        Storages that have a copy come first.
        """
        held = [e for e in self.entries.values() if e.tensor is not None and not e.used and not e.out and not e.work]
        ready = [e for e in held if e.copy is not None]
        return max(ready or held, key=self._use, default=None)

    def _make_room(self, n_bytes):
        """Wait for copies, and begin others, until @n_bytes more are within the limit, or nothing else can leave."""
        while self.live_bytes + n_bytes > self.limit:
            if self.outs:
                self._out_end(self.outs.popleft())
                continue
            entry = self._farthest()
            if entry is None:
                return
            if entry.copy is not None:
                self._release(entry)
            else:
                self._out_begin(entry)

    def _out_begin(self, entry):
        """Begin to copy a storage out."""
        if entry is None or entry.tensor is None or entry.copy is not None or entry.used:
            return
        self._room(entry)
        entry.out = self._copy(entry, True)
        self.moved_bytes += entry.n_bytes
        self.outs.append(entry)

    def _out_end(self, entry):
        """Wait for a copy and free the storage, unless it is in use by now."""
        if entry.out is None:
            return
        work, entry.out = entry.out, None
        self._wait(work)
        entry.is_written |= entry.tensor._version != entry.version
        if not entry.used:
            self._release(entry)

    def _room(self, entry):
        """Take room for a copy on the host, or else in the store."""
        rooms = self.rooms.setdefault(entry.n_bytes, [])
        if rooms:
            entry.copy, entry.where = rooms.pop(), "host"
        elif entry.n_bytes <= self.host_free:
            self.host_free -= entry.n_bytes
            entry.copy = tiers.Host(entry.n_bytes, self.device if self.device.type == "cuda" else None)
            entry.where = "host"
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

    # in

    def _fetch(self, entry):
        """Bring a storage to the device, or wait until it is there."""
        if entry.tensor is None:
            self._make_room(entry.n_bytes)
            self._in_begin(entry)
        if entry.work is not None:
            work, entry.work = entry.work, None
            self._wait(work)

    def _in_begin(self, entry):
        self._count(entry.n_bytes)
        entry.tensor = torch.empty(entry.n_bytes, dtype=torch.uint8, device=self.device)
        entry.work = self._copy(entry, False)
        self.moved_bytes += entry.n_bytes

    def _copy(self, entry, is_out):
        """Begin to copy a storage out, or in. On CUDA the copy follows the current stream's work."""
        if self.device.type == "cuda":
            if entry.where == "host":
                return entry.copy.begin(0, entry.tensor, entry.n_bytes, is_out, tiers.current_stream(self.device))
            with copies_of(tiers.device_index(self.device)) as copies:
                ready = copies.record(tiers.current_stream(self.device))
            return _ThreadCopy(self.bounced.move, entry.copy, entry.tensor, entry.n_bytes, is_out, ready)
        if entry.where == "host":
            return _ThreadCopy(entry.copy.put if is_out else entry.copy.get, 0, entry.tensor, entry.n_bytes)
        begin = self.store.submit_put if is_out else self.store.submit_get
        return begin(entry.copy, (entry.tensor.untyped_storage().data_ptr(), entry.n_bytes))

    def _learn(self, entry):
        if not entry.used:
            entry.used = True
            self.learning.append(entry.number)

    def _fetch_ahead(self):
        """Begin to fetch the next storages in the learned order, as far as the limit allows."""
        while self.at < len(self.sequence):
            entry = self.entries.get(self.sequence[self.at])
            if entry is not None and not entry.used and entry.tensor is None:
                if self.live_bytes + entry.n_bytes > self.limit:
                    return
                self._in_begin(entry)
                self.n_ahead += 1
            self.at += 1


class _Inside:
    """Marks that a thread is within a hook, which holds the lock."""

    def __init__(self, owner):
        self.owner = owner

    def __enter__(self):
        self.before, self.owner.inside = self.owner.inside, True

    def __exit__(self, *fault):
        self.owner.inside = self.before
