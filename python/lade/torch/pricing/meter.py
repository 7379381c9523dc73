# SPDX-License-Identifier: Apache-2.0
"""Bytes by the allocator's own events: every allocation and every free, in order, of all threads.

On the CPU torch's profiler reports them; on CUDA the allocator's own history does. Neither needs a compiler. Libraries
that allocate past torch's allocator (oneDNN's own scratch) are not in these numbers, and are not counted here.

CUDA's allocator hands out multiples of 512 bytes, so each allocation counts as its size rounded up to that. A block
that the allocator leaves whole because its rest is small counts without that rest, which depends on earlier frees.
"""
import gc

import torch
from torch.autograd import DeviceType

from ...errors import Error


TOLD_BYTES = 2345671  # the size of a mark in the events, which stands for a free that was told
START_BYTES = 1357913  # the size of a mark before the first event
MARK_BYTES = 1234577  # the size of a mark between two calls that are priced; no power of two, no page
_CUDA_UNIT = 512      # bytes; CUDA's allocator hands out multiples
_SIGNS = {"alloc": 1, "free_completed": -1}


def counted(n_bytes, device):
    """Return the bytes that an allocation of @n_bytes takes on a device."""
    return (n_bytes + _CUDA_UNIT - 1) // _CUDA_UNIT * _CUDA_UNIT if device.type == "cuda" else n_bytes


def storage_bytes(tensor, device):
    """Return the bytes that a tensor's storage takes on @device: 0 if it lies on another device."""
    return counted(tensor.untyped_storage().nbytes(), device) if tensor.device.type == device.type else 0


def events_of(device):
    """Return a context that records all allocations and frees on a device as sizes, negative for a free."""
    return History(device) if device.type == "cuda" else Events()


def peak_of(sizes):
    """Return (largest running sum, last running sum) of sizes."""
    live = peak = 0
    for size in sizes:
        live += size
        peak = max(peak, live)
    return peak, live


class _Record:
    """A record of events, during which Python's collector of cycles is off.

    The collector frees tensors that are older than the record. The profiler takes such a free for that of another block
    which had the address.
    """
    collects = False

    def rest(self):
        self.collects = gc.isenabled()
        gc.disable()

    def end(self):
        if self.collects:
            gc.enable()


class History(_Record):
    """The events of a CUDA device, by the allocator's history. A history that the user records goes on."""

    def __init__(self, device):
        self.device, self.sizes, self.is_own = device, [], True

    def __enter__(self):
        backend = torch.cuda.get_allocator_backend()
        if backend != "native":
            raise Error(f"PyTorch's CUDA allocator is {backend!r}, which reports no allocations; lade.torch.step needs the "
                        "native one, without lade.torch.limit")
        torch.cuda.synchronize(self.device)
        self.is_own = not torch._C._cuda_isHistoryEnabled()
        if self.is_own:
            torch.cuda.memory._record_memory_history("all", context=None, stacks="python")
        start = torch.empty(START_BYTES, dtype=torch.uint8, device=self.device)
        self.rest()  # nothing after it can fail, so end() follows
        del start
        return self

    def __exit__(self, *fault):
        self.end()
        torch.cuda.synchronize(self.device)
        index = self.device.index if self.device.index is not None else torch.cuda.current_device()
        events = torch.cuda.memory._snapshot()["device_traces"][index]
        if self.is_own:
            torch.cuda.memory._record_memory_history(None)
        events = [(event["action"], event["size"]) for event in events if event["action"] in _SIGNS]
        starts = [i for i, event in enumerate(events) if event == ("free_completed", START_BYTES)]
        if not starts and not any(fault):
            raise Error("the CUDA memory history that this program records has lost the step's events: record it with "
                        "enabled=\"all\" and more max_entries, or call _record_memory_history(None) before")
        own = events[starts[-1] + 1:] if starts else []
        self.sizes = [_SIGNS[action] * (n_bytes if n_bytes == MARK_BYTES else counted(n_bytes, self.device))
                      for action, n_bytes in own]

    def peak(self):
        """Return (largest sum since the start, sum at the end)."""
        return peak_of(self.sizes)


class Events(_Record):
    """The events of the CPU, by torch's profiler."""

    def __init__(self):
        self.profiler, self.sizes, self.told = None, [], []

    def mark(self):
        """Leave a mark in the events."""
        mark = torch.empty(TOLD_BYTES, dtype=torch.uint8)
        del mark

    def told_free(self, n_bytes):
        """Note that between this mark and the next one @n_bytes are freed that are older than the events.

        The profiler does not report such a free, or reports the size of another block that had the address.
        """
        self.told.append(n_bytes)
        self.mark()

    def __enter__(self):
        activities = [torch.profiler.ProfilerActivity.CPU]
        self.profiler, self.told = torch.profiler.profile(activities=activities, profile_memory=True), []
        self.profiler.__enter__()
        self.rest()
        return self

    def __exit__(self, *fault):
        self.end()
        self.profiler.__exit__(*fault)
        self.sizes = [event.nbytes() for event in self.profiler.profiler.kineto_results.events()
                      if event.name() == "[memory]" and event.device_type() == DeviceType.CPU]
        self.profiler = None
        self.sizes = self._corrected()

    def _corrected(self):
        """Return the events with each told free in the place of its two marks and the events between them."""
        found, told, is_between = [], iter(self.told), False
        for size in self.sizes:
            if size == TOLD_BYTES:
                found += [] if is_between else [-next(told)]
                is_between = not is_between
            elif size != -TOLD_BYTES and not is_between:
                found.append(size)
        return found

    def peak(self):
        """Return (largest sum since the start, sum at the end)."""
        return peak_of(self.sizes)
