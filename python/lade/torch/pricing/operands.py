# SPDX-License-Identifier: Apache-2.0
"""Made-up operands for calls whose prices are measured."""
import ctypes
import mmap

import torch

from ..tracing.layouts import alignment

_FILLED_MAX = 96 << 20 # bytes of made-up values; operands after them are zeros, which cost no memory
_ALIGN = 512             # of an operand, as CUDA's allocator aligns
_BLOCK = 4096           # elements of made-up values that repeat


class Arena:
    """Operands for calls, cut from one buffer for each dtype. Values are made up where they are first cut."""

    def __init__(self, device, needs):
        """@needs: {dtype: bytes of the operands of the largest call}."""
        self.device, self.needs, self.buffers, self.used, self.filled = device, needs, {}, {}, {}
        self.fill = None  # of all operands, instead of made-up values

    def forget(self):
        """Let operands be made up anew: a call may have written them."""
        self.buffers, self.filled = {}, {}

    def reset(self):
        self.used = {}

    def cut(self, meta):
        """Return a tensor like @meta: its shape, strides and alignment."""
        if meta.device.type not in (self.device.type, "meta"):
            return torch.ones(meta.shape, dtype=meta.dtype, device=meta.device)
        size, stride, width = meta.shape, meta.stride(), meta.element_size()
        span = 1 + sum((n - 1) * s for n, s in zip(size, stride)) if meta.numel() else 0
        lead = meta.storage_offset() * width % alignment(meta.device) // width
        first = self.used.get(meta.dtype, 0)
        self.used[meta.dtype] = (first + (lead + span) * width + _ALIGN - 1) // _ALIGN * _ALIGN
        buffer = self._buffer(meta.dtype, self.used[meta.dtype])
        whole = self._storage(buffer, first, (lead + span) * width) if span else buffer
        cut = torch.as_strided(whole, size, stride, whole.storage_offset() + lead)
        is_number = meta.dtype.is_floating_point or meta.dtype.is_complex
        if not is_number or self.fill is not None:
            fill = self.fill if self.fill is not None else meta.dtype == torch.bool
            whole[:lead + span].fill_(fill)  # calls may write it
        cut = torch.conj(cut) if meta.is_conj() else cut  # kernels may copy one whose elements are conjugated or negated
        return torch._neg_view(cut) if meta.is_neg() else cut

    def _storage(self, buffer, first, n_bytes):
        """Return bytes of a buffer, on the CPU as a storage of their own: some kernels ask whether operands share one."""
        if self.device.type != "cpu":
            return buffer[first // buffer.element_size():]
        raw = (ctypes.c_char * n_bytes).from_address(buffer.data_ptr() + first)
        return torch.frombuffer(raw, dtype=buffer.dtype)

    def _buffer(self, dtype, n_bytes):
        """Return the buffer of a dtype, made up as far as @n_bytes."""
        width = dtype.itemsize
        if dtype not in self.buffers:
            n = (self.needs[dtype] // width + _BLOCK) // _BLOCK * _BLOCK
            self.buffers[dtype] = torch.frombuffer(mmap.mmap(-1, n * width), dtype=dtype) \
                if self.device.type == "cpu" else torch.zeros(n, dtype=dtype, device=self.device)
            self.filled[dtype] = 0
        buffer, first = self.buffers[dtype], self.filled[dtype]
        last = (min(n_bytes, _FILLED_MAX) // width + _BLOCK - 1) // _BLOCK * _BLOCK
        if last > first and (dtype.is_floating_point or dtype.is_complex):
            buffer[first:last].view(-1, _BLOCK).copy_(_made_up(dtype, self.device))
            self.filled[dtype] = last
        return buffer


def needs_of(metas):
    """Return {dtype: bytes} that cuts of @metas take from an arena."""
    needs = {}
    for meta in metas:
        span = 1 + sum((n - 1) * s for n, s in zip(meta.shape, meta.stride())) if meta.numel() else 0
        needs[meta.dtype] = needs.get(meta.dtype, 0) + span * meta.element_size() + 2 * _ALIGN
    return needs


def _made_up(dtype, device):
    """Return fractions of both halves of (0, 1)."""
    return (torch.arange(_BLOCK, device=device) * 2654435761 % 1021).to(torch.float32).div_(1361).add_(0.25).to(dtype)
