# SPDX-License-Identifier: Apache-2.0
"""Storages that can be emptied, in place of storages that cannot.

A plan empties the storages that it puts elsewhere. Storages over the memory of NumPy, of mapped files and of other
processes cannot be emptied. Their owners may write that memory before each step and read it after. So such a tensor gets
a copy while a step runs. After the step it has its own storage again, with the bytes that the step wrote.

Parameters and the optimizer's state get their copy once, and keep it: a model's weights are often mapped from a file.
Parameters in shared memory get one for each step, as arguments do.
"""
import torch


def _over(tensor, storage):
    """Return a tensor over @storage of the place and shape of @tensor."""
    return torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(
        storage, tensor.storage_offset(), tensor.size(), tensor.stride())


def is_shared(tensor):
    """True if processes share a tensor's memory on the host. To resize it ends the process, though it counts as resizable."""
    return tensor.device.type == "cpu" and tensor.untyped_storage().is_shared()


def can_be_emptied(tensor):
    return tensor.untyped_storage().resizable() and not is_shared(tensor)


class StandIns:
    """Copies of the storages of tensors; of those that share a storage there is one. They serve from begin() to end()."""

    def __init__(self, tensors, written=()):
        """@tensors: those that the plan puts elsewhere. @written: places in @tensors of those that the step writes."""
        self.tensors, self.written, self.held, self.copies = tensors, written, [], {}

    def begin(self):
        """Give the tensors their copies. If there is no memory for one, all tensors are as before."""
        for i, tensor in enumerate(self.tensors):
            if not can_be_emptied(tensor):
                storage = tensor.untyped_storage()
                if storage._cdata not in self.copies:
                    self.copies[storage._cdata] = storage, storage.clone()
                self.held.append((i, tensor, *self.copies[storage._cdata]))
        for _, tensor, _, copy in self.held:
            tensor.data = _over(tensor, copy)
        return self

    def end(self):
        """Give the tensors their own storages back, with what the step wrote."""
        for i, tensor, storage, copy in self.held:
            if i in self.written and copy.nbytes() == storage.nbytes():  # it is empty where a tier lost its bytes
                storage.copy_(copy)
            tensor.data = _over(tensor, storage)
        self.held = []

    def returned(self, results):
        """Return a step's results; views of a copy become views of the storage that it stood for."""
        if not self.copies:
            return results
        own = {copy._cdata: storage for storage, copy in self.copies.values()}
        return [_over(t, own[t.untyped_storage()._cdata]) if t.untyped_storage()._cdata in own else t for t in results]


def keep(tensors):
    """Give @tensors for good storages that can be emptied."""
    StandIns(tensors).begin()
