# SPDX-License-Identifier: Apache-2.0
"""Moves, draws and updates of a running step."""
import collections
import ctypes

import torch

from ... import graph as g
from ...errors import Error
from . import parked, tiers, worker
from .. import generators, optimizers
from ..tracing.branches import Otherwise, read
from .cuda_copies import copies_of
from ..pricing.meter import events_of

_FAULTS = Error, OSError, RuntimeError  # of a copy; PyTorch's are RuntimeError


class Runtime:
    """The object R of generated functions: moves, draws and updates of a running step."""

    def __init__(self, planned, store):
        """@store: of all plans of the step, where nothing waits."""
        self.planned, values = planned, planned.values
        self.bytes = [s["bytes"] for s in values.storages]
        self.is_cuda = planned.device.type == "cuda"
        self.host = tiers.Host(planned.host_bytes, planned.device if self.is_cuda else None)
        self.store = store
        store.grow(planned.store_need)
        self.states, self.is_updated, self.sizes = {}, False, {}  # sizes: bytes of storages that were put
        self.moving, self.away = {}, {}  # copies under way, storages elsewhere
        self.joined = {}  # numbers of parameters -> updaters that update them together
        self.meter, self.older, self.is_metered = None, set(), False
        self.kept = []  # (storage, its bytes before the step's first write), outside of torch's allocator
        self.watching, self.exact = None, {}  # the op that is being recorded; scratch of ops by their number
        self.bounced = tiers.Bounced(self.store, planned.device) if self.is_cuda else None
        self.stream, self.reading = None, {}  # of CUDA: the ops' stream; (first, last, event) of copies from the host
        self.on_cuda = {i for i, op in enumerate(values.ops) if op.draws and op.outputs
                        and all(values.metas[value].device.type == "cuda" for value in op.outputs)}
        self.updaters = [optimizers.Updater(optimizer, i, [param])
                         for optimizer in optimizers.members_of(planned.trace.given.optimizer)
                         for i, group in enumerate(optimizer.param_groups) for param in group["params"]]
        self.opaque = self._opaque_updaters()

    def _opaque_updaters(self):
        """Return {number of an op: updater} of the steps of optimizers that are one op."""
        members = optimizers.members_of(self.planned.trace.given.optimizer)
        return {i: optimizers.OpaqueUpdater(members[op.node.args[4]], self._opaque_params(op.node))
                for i, op in enumerate(self.planned.values.ops) if op.node.target is optimizers.UPDATE_ALL}

    def _opaque_params(self, node):
        planned = self.planned
        by_node = {n: where for n, (kind, _, where, _) in zip(planned.values.inputs, planned.trace.inputs)
                   if kind == "param"}
        return [by_node[planned.values.value(p)[0]] for p in node.args[0]]

    def rest(self):
        """Give the host's memory and the store's room to another plan. pre: nothing waits there."""
        self.host.rest()
        self.store.rest()

    def begin(self, meter, tensors):
        """Prepare a step. @meter, if any, is told of frees of given storages, which are older than its events."""
        self.is_updated, self.moving, self.meter, self.is_metered, self.kept = False, {}, None, meter is not None, []
        self.store.grow(self.planned.store_need)  # another plan that failed to grow it may have lost it
        self._follow_stream()
        self._send_out(tensors)
        self.meter = meter if not self.is_cuda else None
        self.older = self.planned.values.at_start() if self.meter else set()

    def _follow_stream(self):
        """Note the stream that torch's ops run on: none of a step changes it."""
        self.reading = {}
        if self.is_cuda:
            self.stream = tiers.current_stream(self.planned.device)

    def _send_out(self, tensors):
        """Put the storages that live on a tier there, where an earlier step has not."""
        planned, living = self.planned, self.planned.living_tensors(tensors)
        n_own = collections.Counter(k for _, k in living)
        if any(k not in self.away for _, k in living):
            n_own.update(self._replaced(living))
        for tensor, k in living:
            if k not in self.away:
                parked.refuse_shared(planned.names[k], tensor, n_own[k])
        for tensor, k in living:
            if k not in self.away:
                tier = planned.values.storages[k]["tier"]
                self.put(k, tier, planned.living[k], tensor)
                self.wait(k)

    def _replaced(self, living):
        """Return the storages of tensors that wait in places which the step gives other tensors, such as an old spectral norm's weight.

        @living: (tensor, storage) of the given tensors that live on a tier.
        """
        places = self.planned.trace.places
        if not living or not places:
            return []
        known = {id(tensor) for tensor, _ in living}
        own = {tensor.untyped_storage()._cdata: k for tensor, k in living}
        held = {id(t): t for place in places for t in place.tensors() if id(t) not in known}
        return [own[t.untyped_storage()._cdata] for t in held.values() if t.untyped_storage()._cdata in own]

    def release(self, index, tensor):
        """Empty a storage whose copy on its tier is unchanged."""
        self.away[index] = self.planned.values.storages[index]["tier"], self.planned.living[index], tensor
        self._empty(index, tensor.untyped_storage())

    def update(self, index, grad, found_inf):
        self.is_updated = True
        if any(t.item() for t in found_inf):
            return
        self.updaters[index]([grad])

    def update_some(self, indices, grads, found_inf):
        """Update several parameters, those of each group by one call."""
        self.is_updated = True
        if any(t.item() for t in found_inf):
            return
        if indices not in self.joined:
            self.joined[indices] = self._joined(indices)
        for updater, positions in self.joined[indices]:
            updater([grads[i] for i in positions])

    def _joined(self, indices):
        """Return [(updater, positions in @indices)], one of each group."""
        groups = {}
        for position, index in enumerate(indices):
            updater = self.updaters[index]
            groups.setdefault((id(updater.optimizer), updater.index), []).append(position)
        found = []
        for positions in groups.values():
            each = [self.updaters[indices[i]] for i in positions]
            found.append((optimizers.Updater(each[0].optimizer, each[0].index, [u.params[0] for u in each]), positions))
        return found

    def update_all(self, index, grads, found_inf):
        self.is_updated = True
        if not any(t.item() for t in found_inf):
            self.opaque[index](grads)

    def branch(self, flag, wanted, index):
        """Go on if the value is that of the plan's branch."""
        if bool(flag) != wanted:
            trace = self.planned.trace
            raise Otherwise((*trace.branches[:index], not wanted), trace.branch_lines[index])

    def values(self, tensor, is_count, wanted, index):
        """Go on if a tensor's values, or the number of those that are true, are those of the plan."""
        found = read(tensor, is_count)
        if found != wanted:
            trace = self.planned.trace
            raise Otherwise((*trace.branches[:index], tuple(found)), trace.branch_lines[index])

    def keep(self, tensor):
        """Keep the bytes of a storage that the step is about to write, while it may still end."""
        storage = tensor.untyped_storage()
        held = storage.cpu()
        self.kept.append((storage, ctypes.string_at(held.data_ptr(), held.nbytes())))

    def undo(self):
        """Bring back the bytes that keep() kept. pre: no storage is elsewhere."""
        for storage, data in self.kept:
            held = torch.frombuffer(bytearray(data), dtype=torch.uint8).untyped_storage()
            storage.copy_(held)
        self.kept = []

    # moves

    def put(self, index, tier, place, tensor):
        """Begin to copy a storage out; wait() empties it."""
        storage = tensor.untyped_storage()
        n = self.sizes[index] = storage.nbytes()
        if n:
            work = self._begin(index, tier, place, tensor, n, True)
            self.moving[index] = work, tier, place, tensor, storage, True

    def get(self, index, tier, place, tensor):
        """Fill a storage from its copy; an op that needs it waits for that."""
        n, storage = self.sizes[index], tensor.untyped_storage()
        if n:
            storage.resize_(n)
            work = self._begin(index, tier, place, tensor, n, False)
            self.moving[index] = work, tier, place, tensor, storage, False

    def _begin(self, index, tier, place, tensor, n, is_out):
        """Begin a copy; its result() waits for it. A tier has one thread: a place on the host is written after it was read."""
        if self.is_cuda:
            return self._begin_cuda(index, tier, place, tensor, n, is_out)
        if tier == g.HOST:
            return worker.submit(tier, self.host.put if is_out else self.host.get, place, tensor, n)
        call = self.store.put if is_out else self.store.get
        return worker.submit(tier, call, b"%d" % index, (tensor.untyped_storage().data_ptr(), n))

    def _begin_cuda(self, index, tier, place, tensor, n, is_out):
        """Begin a copy after the ops before it.

        The block of a storage belongs to the ops' stream, which waits for the copy before the block is freed (wait). So
        the allocator needs no record of the copy's stream.
        """
        if tier == g.HOST:
            after = [event for first, last, event in self.reading.values() if first < place + n and place < last] \
                if is_out and self.reading else ()
            event = self.host.begin(place, tensor, n, is_out, self.stream, after)
            if not is_out:
                self.reading[index] = place, place + n, event
            return _OnStream(event, self)
        with copies_of(tiers.device_index(self.planned.device)) as copies:
            ready = copies.record(self.stream)
        return worker.submit(tier, self.bounced.move, b"%d" % index, tensor, n, is_out, ready)

    def wait(self, index):
        """Wait for the copy of a storage. Error if it failed."""
        if index not in self.moving:
            return
        work, tier, place, tensor, storage, is_out = self.moving[index]
        work.result()
        del self.moving[index]
        if is_out:
            self.away[index] = tier, place, tensor
            self._empty(index, storage)
        else:
            self.away.pop(index, None)
            self.reading.pop(index, None)

    def _empty(self, index, storage):
        is_older = self.meter is not None and index in self.older
        if is_older:
            self.older.discard(index)
            self.meter.told_free(self.bytes[index])
        storage.resize_(0)
        if is_older:
            self.meter.mark()

    def bring_back(self):
        """After a failure end all copies, and fill the given storages that are elsewhere.

        Return the first fault of a copy that left bytes there, or None if all are back. PyTorch's faults count too: a
        device that has no memory for a storage leaves its bytes on the tier.
        """
        self.watched()
        self._follow_stream()
        lost = None
        for index in list(self.moving):
            work, tier, place, tensor, _, is_out = self.moving.pop(index)
            try:
                work.result()
            except _FAULTS:
                if not is_out:
                    self.away.setdefault(index, (tier, place, tensor))
                continue
            if not is_out:  # it is back, and its place on the host may hold the bytes of a later copy by now
                self.away.pop(index, None)
                self.reading.pop(index, None)
        for index, (tier, place, tensor) in list(self.away.items()):
            if not self.planned.values.storages[index]["is_given"]:
                del self.away[index]
                continue
            try:
                self.get(index, tier, place, tensor)
                self.wait(index)
            except _FAULTS as fault:
                self.moving.pop(index, None)
                tensor.untyped_storage().resize_(0)  # its bytes are no copy
                lost = lost or fault
        return lost

    # scratch

    def watch(self, index):
        """Record the allocator's events of one op, whose scratch has a bound; measure() has the exact one before."""
        if not self.is_metered:
            self.watching = index, events_of(self.planned.device)
            self.watching[1].__enter__()

    def watched(self):
        if self.watching is not None:
            (index, events), self.watching = self.watching, None
            events.__exit__(None, None, None)
            maximum, left = events.peak()
            self.exact[index] = maximum - left

    # draws

    def draw(self, index):
        """Keep the generators' states of an op that draws again; outside of torch's allocator."""
        self.states[index] = self._state(index)

    def redraw(self, index):
        self.states["now"] = self._state(index)
        self.states[index].restore()

    def redrawn(self):
        self.states.pop("now").restore()

    def _state(self, index):
        """Return the state of the generator of op @index; an op on a CUDA device moves the offset of that one alone."""
        kind = generators.Offset if index in self.on_cuda else generators.States
        return kind(self.planned.device)


class _OnStream:
    """A copy on another stream; the ops' stream waits for it, and the host does not."""

    def __init__(self, event, runtime):
        self.event, self.runtime = event, runtime

    def result(self):
        self.event.hold(self.runtime.stream)
