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

    def freed(self, n_bytes):
        """Tell of a free of @n_bytes that was allocated before: the profiler does not report such a free on the CPU."""
        self.told.append(n_bytes)
        mark = torch.empty(TOLD_BYTES, dtype=torch.uint8)
        del mark

    def __enter__(self):
        self.profiler.__enter__()
        return self

    def __exit__(self, *fault):
        self.profiler.__exit__(*fault)
        self.sizes = [event.nbytes() for event in self.profiler.profiler.kineto_results.events()
                      if event.name() == "[memory]" and event.device_type() == self.kind]
        self.profiler, told = None, iter(self.told)
        self.sizes = [-next(told) if size == TOLD_BYTES else size for size in self.sizes if size != -TOLD_BYTES]

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
