#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""lade.torch.limit: refused without a CUDA device; with one (the fake driver's) PyTorch's allocator class gets the
plug-in's functions, and these keep the limit and replay steps.

Usage: limit.py LIBLADE. The fake's libcuda.so.1 is on LD_LIBRARY_PATH, or the second half is left out.
"""
import ctypes
import os

from fixture import lade, refused, torch


def no_device_is_refused():
    if not torch.cuda.is_available():
        fault = refused(lade.Error, lambda: lade.torch.limit("20GiB"), "CUDA device")
        assert fault is None or "\n" not in str(fault)
    for size in ("20 apples", None, True, "", 20, "4KiB"):
        refused(ValueError, lambda size=size: lade.torch.limit(size), "size" if size not in (20, "4KiB") else "64 KiB")


class Recorded:
    """The place of PyTorch's class in a build without CUDA: it keeps the functions that it is given."""

    def __init__(self, path, alloc, free):
        self.names, self.hooks = (path, alloc, free), {}

    def allocator(self):
        return self

    def set_record_stream_fn(self, address):
        self.hooks["record"] = address

    def set_reset_fn(self, address):
        self.hooks["reset"] = address


def functions_of(path):
    plugin = ctypes.CDLL(path)
    plugin.lade_plugged_alloc.restype = ctypes.c_void_p
    plugin.lade_plugged_alloc.argtypes = [ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]
    plugin.lade_plugged_free.argtypes = [ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]
    plugin.lade_plugged_free.restype = None
    return plugin.lade_plugged_alloc, plugin.lade_plugged_free


def the_limit_is_in_force():
    changed = []
    torch.cuda.is_available = lambda: True
    torch.cuda.memory.change_current_allocator = changed.append
    if not hasattr(torch._C, "_cuda_customAllocator"):
        torch.cuda.memory.CUDAPluggableAllocator = Recorded
    limit = lade.torch.limit("8MiB")
    assert len(changed) == 1 and changed[0] is limit._torch
    if isinstance(limit._torch, Recorded):
        assert limit._torch.names[1:] == ("lade_plugged_alloc_or_throw", "lade_plugged_free")
        assert set(limit._torch.hooks) == {"record", "reset"}
    alloc, free = functions_of(limit._plugin._name)
    assert limit.report() == "" and limit.error() == ""
    whole = alloc(8 << 20, 0, None)
    assert whole and not alloc(512, 0, None) and "8.0 MiB" in limit.error(), limit.error()
    free(whole, 8 << 20, 0, None)
    assert "limit" in limit.report()
    limit.step()
    places = []
    for _ in range(4):
        blocks = [alloc(1 << 20, 0, None) for _ in range(3)]
        for block in blocks:
            free(block, 1 << 20, 0, None)
        places.append(blocks)
        limit.step()
    stats = limit.stats()
    assert places[2] == places[3] and stats["n_served"] == 6 and stats["n_planned"] == 3, stats
    assert stats["limit_bytes"] == 8 << 20 == stats["reserved_peak_bytes"] and stats["n_mismatches"] == 0, stats
    limit.trim()
    assert limit.stats()["reserved_bytes"] == 0
    refused(lade.Error, lambda: lade.torch.limit("16MiB"), "before the first allocation")
    refused(lade.Error, lambda: limit.step(9), "cuda:9")


no_device_is_refused()
try:
    assert ctypes.CDLL("libcuda.so.1").fake_set(b"version=13000,devices=1,memory=256") == 0
except (OSError, AttributeError):
    print("without the fake driver the limit itself is not tested")
else:
    os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    the_limit_is_in_force()
