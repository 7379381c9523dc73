# SPDX-License-Identifier: Apache-2.0
"""Digests of tensors' bits."""
import ctypes
import hashlib


def bits(tensor):
    """Return a digest of a tensor's bits. The storage is read by address, because after numpy() it cannot be resized."""
    flat = tensor.detach().cpu().contiguous()
    n = flat.numel() * flat.element_size()
    return hashlib.sha256((ctypes.c_char * n).from_address(flat.data_ptr()) if n else b"").hexdigest()
