# SPDX-License-Identifier: Apache-2.0
"""Bytes by the allocator's own events: torch's profiler reports every allocation and every free, in order.

The profiler needs no compiler and sees all threads. Libraries that allocate past torch's allocator (oneDNN's own
scratch, cuBLAS) are not in its numbers, and are not counted here.
"""
import torch
from torch.autograd import DeviceType


TOLD_BYTES = 2345671  # the size of a mark in the events, which stands for a free that was told


def _device_type(kind):
    return {"cpu": DeviceType.CPU, "cuda": DeviceType.CUDA}.get(kind, DeviceType.CPU)


class Events:
    """Within this context all allocations and frees of a device are recorded: sizes, negative for a free."""

    def __init__(self, kind="cpu"):
        self.kind = _device_type(kind)
        activities = [torch.profiler.ProfilerActivity.CPU]
        self.profiler = torch.profiler.profile(activities=activities, profile_memory=True)
        self.sizes, self.told = [], []

    def mark(self):
        """Leave a mark in the events."""
        mark = torch.empty(TOLD_BYTES, dtype=torch.uint8)
        del mark

    def told_free(self, n_bytes):
        """Between this mark and the next one @n_bytes are freed that are older than the events.

        The profiler does not report such a free, or reports the size of another block that had the address.
        """
        self.told.append(n_bytes)
        self.mark()

    def __enter__(self):
        self.profiler.__enter__()
        return self

    def __exit__(self, *fault):
        self.profiler.__exit__(*fault)
        self.sizes = [event.nbytes() for event in self.profiler.profiler.kineto_results.events()
                      if event.name() == "[memory]" and event.device_type() == self.kind]
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


def peak_of(sizes):
    """Return (largest running sum, last running sum) of sizes."""
    live = most = 0
    for size in sizes:
        live += size
        most = max(most, live)
    return most, live
