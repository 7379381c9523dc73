# SPDX-License-Identifier: Apache-2.0
"""Bytes that wait on the host and in the store, outside of torch's allocator.

The host tier is one anonymous mapping. The packer of liblade gives each waiting storage its place before the step. So the
mapping is as large as the most bytes that wait at once, and no step allocates. For a CUDA device its pages are locked, and
copies run on streams of their own (cuda_copies.py). The store is lade/store.h: taken in full before step 0, every 64 KiB
with a checksum.
"""
import contextlib
import ctypes as c
import mmap
import time

import torch

from ...errors import Error
from ...graph import GET, HOST, PUT, STORE, Path
from ...library import ErrorText, check, library
from ...store import Store
from .cuda_copies import copies_of


_HUGE_BYTES = 2 << 20    # of a huge page
_CUDA_MOVE_NS = 20_000   # of a move, however small: events, streams and Python


class _PackItem(c.Structure):
    _fields_ = [("lower", c.c_int32), ("upper", c.c_int32), ("bytes", c.c_uint64), ("align", c.c_uint32),
                ("fixed", c.c_int64), ("group", c.c_uint32)]


class _PackResult(c.Structure):
    _fields_ = [("peak_bytes", c.c_uint64), ("lower_bound_bytes", c.c_uint64), ("is_optimal", c.c_bool)]


def pack(intervals):
    """Return (offsets, peak bytes) of (first, last, bytes) intervals."""
    if not intervals:
        return [], 0
    lib, packer, error = library(), c.c_void_p(), ErrorText()
    items = (_PackItem * len(intervals))(*[(a, b, n, 64, -1, 0) for a, b, n in intervals])
    offsets, result = (c.c_uint64 * len(intervals))(), _PackResult()
    check(lib.lade_packer_create(c.byref(packer)), None, "lade_packer_create")
    try:
        check(lib.lade_packer_pack(packer, items, len(intervals), None, offsets, c.byref(result), c.byref(error)),
              error, "lade_packer_pack")
    finally:
        lib.lade_packer_destroy.argtypes = [c.c_void_p]
        lib.lade_packer_destroy.restype = None
        lib.lade_packer_destroy(packer)
    return list(offsets), result.peak_bytes


def waits(instrs, storages, tier):
    """Return [(positions of the put and its get, (first, last, bytes))] of a list, without storages that live there.

    A given storage whose put is the step's last waits until the first get of the next step: it counts for all of it.
    """
    found, begun, early = [], {}, {}
    whole = len(instrs) + 1
    for i, (kind, index, where) in enumerate(instrs):
        n = storages[index]["bytes"] if kind in (PUT, GET) else 0
        if where != tier or not n or storages[index]["tier"] == tier:
            continue
        if kind == PUT:
            begun[index] = i
        elif index in begun:
            put = begun.pop(index)
            found.append(((put, i), (put, i + 1, n)))
        else:
            early[index] = i
    found += [((put, early.get(k, put)), (0, whole, storages[k]["bytes"])) for k, put in begun.items()]
    return found


def device_index(device):
    """Return the number of a CUDA device."""
    return device.index if device.index is not None else torch.cuda.current_device()


def current_stream(device):
    """Return the handle of the stream that torch's ops run on now."""
    return torch.cuda.current_stream(device).cuda_stream


class Host:
    """The mapping of waiting bytes on the host."""

    def __init__(self, n_bytes, device=None):
        """@device: of the tensors, if it is no CPU."""
        self.map = mmap.mmap(-1, n_bytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) if n_bytes else None
        if n_bytes >= _HUGE_BYTES:
            with contextlib.suppress(OSError): # a kernel without huge pages
                self.map.madvise(mmap.MADV_HUGEPAGE)
        self.address = c.addressof(c.c_char.from_buffer(self.map)) if n_bytes else 0
        self.n_bytes, self.device, self.is_locked = n_bytes, device, False
        self.copies = copies_of(device_index(device)) if device is not None else None
        if device is not None:
            self._lock()

    def rest(self):
        """Give the memory back until the next put; waiting bytes are lost."""
        self._unlock()
        if self.map is not None:
            self.map.madvise(mmap.MADV_DONTNEED)

    def put(self, offset, tensor, n_bytes):
        c.memmove(self.address + offset, tensor.untyped_storage().data_ptr(), n_bytes)

    def get(self, offset, tensor, n_bytes):
        c.memmove(tensor.untyped_storage().data_ptr(), self.address + offset, n_bytes)

    # CUDA

    def begin(self, offset, tensor, n_bytes, is_out, stream, after=()):
        """Begin a copy after the events @after and the work of @stream (None: of no stream); return its event."""
        self._lock()
        here, there = self.address + offset, tensor.untyped_storage().data_ptr()
        with self.copies as copies:
            if stream is not None:
                after = (copies.record(stream), *after)
            return copies.begin(here, there, n_bytes, True, after) if is_out else \
                copies.begin(there, here, n_bytes, False, after)

    def _lock(self):
        if self.n_bytes and not self.is_locked:
            try:
                self.copies.lock(self.address, self.n_bytes)
            except Error as fault:
                raise Error(f"{self.n_bytes} bytes of host memory cannot be locked ({fault}); host must be smaller") from fault
            self.is_locked = True

    def _unlock(self):
        if self.is_locked:
            torch.cuda.synchronize(self.device)
            self.copies.unlock(self.address)
            self.is_locked = False

    def __del__(self):
        with contextlib.suppress(Exception):  # the process may be ending
            self._unlock()


class SharedStore:
    """The store of a step's plans, which take turns: one reservation, as large as the largest plan's need."""

    def __init__(self, directory):
        self.directory, self.n_bytes, self.store = directory, 0, None

    def grow(self, n_bytes):
        """Reserve @n_bytes, if fewer are. pre: nothing waits in it then. Error if the drive lacks them; it has the old ones
        again then, or none until the next call."""
        if n_bytes <= self.n_bytes:
            return
        before = self.n_bytes
        try:
            self._open(n_bytes)
        except BaseException:
            if before:
                self._open(before)
            raise

    def _open(self, n_bytes):
        if self.store is not None:
            self.store.close()
        self.store, self.n_bytes = None, 0
        self.store, self.n_bytes = Store(self.directory, n_bytes), n_bytes

    def rest(self):
        """Forget the waiting bytes, so that another plan has the room."""
        for name in self.store.names() if self.store is not None else ():
            self.store.drop(name)

    def put(self, name, data):
        self.store.put(name, data)

    def get(self, name, out):
        self.store.get(name, out)


class Bounced:
    """A store for tensors of a CUDA device: they pass through locked host memory, one at a time. One thread calls move."""

    def __init__(self, store, device):
        self.store, self.device, self.room = store, device, None

    def move(self, name, tensor, n_bytes, is_out, ready):
        """Copy a storage to or from the store, after the event @ready of cuda_copies.py."""
        if self.room is None or self.room.n_bytes < n_bytes:
            self.room = Host(n_bytes, self.device)
        if is_out:
            self.room.begin(0, tensor, n_bytes, True, None, [ready]).wait()
            self.store.put(name, (self.room.address, n_bytes))
        else:
            self.store.get(name, (self.room.address, n_bytes))
            self.room.begin(0, tensor, n_bytes, False, None, [ready]).wait()


def _cuda_paths(n, device):
    room, tensor = Host(n, device), torch.empty(n, dtype=torch.uint8, device=device)
    paths = []
    for is_out in (True, False):
        seconds = []
        for _ in range(3):
            torch.cuda.synchronize(device)
            start = time.perf_counter()
            room.begin(0, tensor, n, is_out, None).wait()
            seconds.append(time.perf_counter() - start)
        paths.append(Path(n / max(min(seconds), 1e-6), _CUDA_MOVE_NS))
    return tuple(paths)


def host_paths(device):
    """Return the (out, in) paths between torch's memory and the host tier, measured by copies of 16 MiB."""
    n = 16 << 20
    if device.type == "cuda":
        return _cuda_paths(n, device)
    room, tensor = Host(n), bytearray(n)
    address = c.addressof(c.c_char.from_buffer(tensor))
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        c.memmove(room.address, address, n)
        seconds.append(time.perf_counter() - start)
    path = Path(n / max(min(seconds), 1e-6), 2000)
    return path, path


def store_paths(directory):
    """Return the (out, in) paths of a store in @directory, measured by tensors of 8 MiB."""
    n = 8 << 20
    data, rates = bytearray(n), []
    with Store(directory, n) as store:
        for call in (store.put, store.get):
            start = time.perf_counter()
            call("probe", data)
            rates.append(n / max(time.perf_counter() - start, 1e-6))
    return Path(rates[0], 50000), Path(rates[1], 50000)


__all__ = ["HOST", "STORE", "Bounced", "Host", "Store", "host_paths", "pack", "store_paths", "waits"]
