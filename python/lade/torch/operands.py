# SPDX-License-Identifier: Apache-2.0
"""Made-up operands for calls whose prices are measured."""
import ctypes
import mmap

import torch

_FILLED_MOST = 256 << 20 # bytes of made-up values; operands behind them are zeros, which cost no memory


class Arena:
    """Operands for calls, cut from one buffer for each dtype."""

    def __init__(self, device):
        self.device, self.buffers, self.used = device, {}, {}
        self.fill = None  # of all operands, instead of made-up values

    def reset(self):
        self.used = {}

    def cut(self, meta):
        """Return a tensor like @meta: its shape, strides and alignment."""
        if meta.device.type not in (self.device.type, "meta"):
            return torch.ones(meta.shape, dtype=meta.dtype, device=meta.device)
        size, stride, width = meta.shape, meta.stride(), meta.element_size()
        span = 1 + sum((n - 1) * s for n, s in zip(size, stride)) if meta.numel() else 0
        lead = meta.storage_offset() * width % 64 // width
        buffer = self._buffer(meta.dtype, (lead + span) * width + 64)
        first = self.used.get(meta.dtype, 0)
        self.used[meta.dtype] = (first + (lead + span) * width + 63) // 64 * 64
        whole = self._storage(buffer, first, (lead + span) * width) if span else buffer
        cut = torch.as_strided(whole, size, stride, lead)
        is_number = meta.dtype.is_floating_point or meta.dtype.is_complex
        if not is_number or self.fill is not None:
            fill = self.fill if self.fill is not None else meta.dtype == torch.bool
            whole[:lead + span].fill_(fill)  # calls may write it
        return cut

    def _storage(self, buffer, first, n_bytes):
        """Return bytes of a buffer as a storage of their own: some kernels ask whether two operands share one."""
        if self.device.type != "cpu":
            return buffer[first // buffer.element_size():]
        raw = (ctypes.c_char * n_bytes).from_address(buffer.data_ptr() + first)
        return torch.frombuffer(raw, dtype=buffer.dtype)

    def _buffer(self, dtype, n_bytes):
        wanted = self.used.get(dtype, 0) + n_bytes
        width = torch.empty(0, dtype=dtype).element_size()
        buffer = self.buffers.get(dtype)
        if buffer is None or buffer.numel() * width < wanted:
            if self.used.get(dtype, 0):
                raise Grow(dtype, wanted)
            self.grow(dtype, wanted)
        return self.buffers[dtype]

    def grow(self, dtype, n_bytes):
        """Have a buffer of @n_bytes; its growth by at least half bounds the bytes that all growths fill."""
        old = self.buffers.pop(dtype, None)
        n_bytes = max(n_bytes, 1 << 16, old.numel() * old.element_size() * 3 // 2 if old is not None else 0)
        del old
        self.buffers[dtype] = _filled(n_bytes // dtype.itemsize + 64, dtype, self.device)


class Grow(Exception):
    pass


def _filled(n, dtype, device):
    """Return n elements: fractions of both halves of (0, 1) for floating point, zeros for indices, ones for masks."""
    if dtype == torch.bool:
        return torch.ones(n, dtype=dtype, device=device)
    if not (dtype.is_floating_point or dtype.is_complex):
        return torch.zeros(n, dtype=dtype, device=device)
    block = (torch.arange(4096, device=device) * 2654435761 % 1021).to(torch.float32).div_(1361).add_(0.25).to(dtype)
    n = (n + 4095) // 4096 * 4096
    result = torch.frombuffer(mmap.mmap(-1, n * dtype.itemsize), dtype=dtype) if device.type == "cpu" else \
        torch.zeros(n, dtype=dtype, device=device)
    result[:min(n, _FILLED_MOST // dtype.itemsize)].view(-1, 4096).copy_(block)
    return result
