# SPDX-License-Identifier: Apache-2.0
"""A limit in bytes for all CUDA memory of PyTorch: liblade-allocator.so in the place of its allocator."""
import ctypes
import os

import torch

from ..errors import Error
from ..library import ErrorText, check, library, plugin_path
from ..size import size_bytes


class _Stats(ctypes.Structure):
    """struct lade_allocator_stats."""
    _fields_ = ([("struct_size", ctypes.c_size_t)]
                + [(name, ctypes.c_uint64) for name in (
                    "limit_bytes", "live_bytes", "peak_bytes", "reserved_bytes", "reserved_peak_bytes", "n_allocs",
                    "n_frees", "n_ooms", "n_events")]
                + [("n_streams", ctypes.c_int)]
                + [(name, ctypes.c_uint64) for name in (
                    "n_steps", "n_plans", "n_planned", "arena_bytes", "live_bound_bytes", "n_served", "n_mismatches",
                    "n_conflicts", "n_dropped", "mismatch_index", "mismatch_planned_bytes", "mismatch_bytes")])


def _declare(core, plugin):
    """Give the functions their types: pointers would be cut to 32 bits."""
    pointer, text = ctypes.c_void_p, ctypes.POINTER(ErrorText)
    plugin.lade_plugged_limit.argtypes = [ctypes.c_uint64, text]
    plugin.lade_plugged_allocator.argtypes, plugin.lade_plugged_allocator.restype = [text], pointer
    plugin.lade_plugged_error.argtypes = [text]
    core.lade_allocator_step.argtypes = [pointer, ctypes.c_int, text]
    core.lade_allocator_trim.argtypes = [pointer, ctypes.c_uint64]
    core.lade_allocator_get_stats.argtypes = [pointer, ctypes.c_int, ctypes.POINTER(_Stats), text]
    core.lade_allocator_get_cache.argtypes, core.lade_allocator_get_cache.restype = [pointer, ctypes.c_int], pointer
    core.lade_cache_report.argtypes = [pointer, ctypes.c_char_p, ctypes.c_size_t]
    core.lade_cache_report.restype = ctypes.c_size_t


class Limit:
    """The allocator that is in force: steps for replay, statistics, reports. lade.torch.limit makes it."""

    def __init__(self, core, plugin, path):
        self._core, self._plugin = core, plugin
        error = ErrorText()
        self._allocator = plugin.lade_plugged_allocator(ctypes.byref(error))
        if not self._allocator:
            check(error.code or -12, error, "lade_plugged_allocator")
        # The exception is PyTorch's RuntimeError; NULL would be an address to it.
        self._torch = torch.cuda.memory.CUDAPluggableAllocator(path, "lade_plugged_alloc_or_throw", "lade_plugged_free")
        hooks = self._torch.allocator()
        hooks.set_record_stream_fn(self._address("lade_plugged_record_stream"))
        hooks.set_reset_fn(self._address("lade_plugged_reset"))

    def _address(self, name):
        return ctypes.cast(getattr(self._plugin, name), ctypes.c_void_p).value

    def step(self, device=0):
        """End a training step. Two equal steps in a row are planned; later ones get the planned addresses."""
        error = ErrorText()
        check(self._core.lade_allocator_step(self._allocator, device, ctypes.byref(error)), error, "lade_allocator_step")

    def trim(self, keep="0"):
        """Return idle memory of every device until @keep bytes are reserved."""
        check(self._core.lade_allocator_trim(self._allocator, size_bytes(keep)), call="lade_allocator_trim")

    def stats(self, device=0):
        """Return the numbers of struct lade_allocator_stats as a dict (include/lade/allocator.h)."""
        stats, error = _Stats(struct_size=ctypes.sizeof(_Stats)), ErrorText()
        check(self._core.lade_allocator_get_stats(self._allocator, device, ctypes.byref(stats), ctypes.byref(error)),
              error, "lade_allocator_get_stats")
        return {name: getattr(stats, name) for name, _ in _Stats._fields_[1:]}

    def report(self, device=0):
        """Return a page of text: the limit, fragmentation, ways to make room. Empty before the first allocation."""
        cache = self._core.lade_allocator_get_cache(self._allocator, device)
        if not cache:
            return ""
        text = ctypes.create_string_buffer(self._core.lade_cache_report(cache, None, 0) + 4096)
        self._core.lade_cache_report(cache, text, len(text))
        return text.value.decode(errors="replace")

    def error(self):
        """Return the line of the newest failure, or an empty text."""
        error = ErrorText()
        self._plugin.lade_plugged_error(ctypes.byref(error))
        return error.text.decode(errors="replace") if error.code else ""


def limit(size):
    """Bound the CUDA memory that PyTorch takes, on each device, to @size bytes ("20GiB").

    Call it before the first CUDA tensor, as PyTorch replaces no allocator that is in use. An allocation that does not
    fit raises RuntimeError with the reason. Call step() of the result at the end of each training step,
    and the allocations of a repeating step get planned addresses. Error without a CUDA device.
    """
    limit_bytes = size_bytes(size)
    if limit_bytes < 1 << 16:
        raise ValueError(f"{size!r} is no limit: expected a size of 64 KiB or more, such as \"20GiB\"")
    if not torch.cuda.is_available():
        raise Error("lade.torch.limit needs a CUDA device, and this PyTorch finds none; lade.torch.step keeps a byte "
                    "budget on the CPU too", -19)
    core = library()
    path = plugin_path(core)
    try:
        plugin = ctypes.CDLL(path)
    except OSError as fault:
        raise Error(f"{os.path.basename(path)} is not beside {core._name}: {fault}", -38) from fault
    _declare(core, plugin)
    error = ErrorText()
    check(plugin.lade_plugged_limit(limit_bytes, ctypes.byref(error)), error, "lade_plugged_limit")
    made = Limit(core, plugin, path)
    torch.cuda.memory.change_current_allocator(made._torch)
    return made
