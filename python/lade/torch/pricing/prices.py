# SPDX-License-Identifier: Apache-2.0
"""Prices of ops: scratch, bytes of results, time. Each different call runs once or twice on made-up operands.

Equal layers have equal calls, so few calls run. Operands come from one arena for each dtype, so pricing takes the
memory of the largest op and not of the step. Between two marks in the allocator's events lie the events of one call.
"""
import hashlib
import time
import weakref

import torch
from torch.fx.node import map_arg

from ...errors import CannotCapture
from . import kernels, parts
from .. import generators, optimizers
from ..digests import bits
from ..tracing.branches import BRANCH, VALUES
from ..tracing.layouts import Described
from .meter import MARK_BYTES, events_of, peak_of, storage_bytes
from .operands import Arena, needs_of
from ..values import Op, flat_args

_SMALL_BYTES = 1 << 20   # operands up to here are compared before and after a call
_REPEAT_NS = 3_000_000   # calls below this run again, to be timed warm
_LONG_NS = 30_000_000    # a part's call above this is not run whole: its scratch has a bound until the first step
_BOUND_BYTES = 4 << 20   # of scratch above twice the part's


class Price:
    """The price of one call: bytes that it needs at most, sizes of its results' storages, time."""
    __slots__ = ("max_bytes", "sizes", "ns", "hidden", "is_part", "is_bound", "elements")

    def __init__(self):
        self.hidden, self.is_part = [], False  # is_part: a part of the call was run (parts.py)
        self.is_bound = False                  # max_bytes is a bound, not exact
        self.elements = None                   # of an update: (those of the part that was run, all)


def call_key(values, op):
    """Return a key that equal calls share."""
    args = map_arg((op.node.args, dict(op.node.kwargs)), lambda node: Described(values.metas[values.value(node)]))
    if op.node.target is optimizers.UPDATE:
        args = (args[0][:4], args[1])
    elif op.node.target in (BRANCH, VALUES):
        args = args[0][:len(args[0]) - 2]  # the answer and its number have no price
    if "lade_reals" in op.node.meta and "lade_digest" not in op.node.meta:
        op.node.meta["lade_digest"] = _digest(op.node.meta["lade_reals"])
    return str(op.node.target), repr(args) + op.node.meta.get("lade_digest", "")


def _digest(tensors):
    """Return a digest of the values that a price depends on; unknown ones are None."""
    return hashlib.sha256(repr([None if t is None else bits(t) for t in tensors]).encode()).hexdigest()


class Relayout(Exception):
    """Raised if kernels return other forms than their descriptions: the capture is repeated with Pricer.layouts."""


class Pricer:
    """Prices the calls of graphs; keeps prices for later graphs."""

    def __init__(self, optimizer):
        self.optimizer, self.table, self.arena = optimizer, {}, None
        self.layouts = {}  # key of a call -> {output: (strides, dtype)}, where they differ from the description
        self.odd = {}  # (key of a call, output) -> (shape, dtype, device), where another call cannot be priced without

    def price(self, values, device):
        """Fill in scratch, time and sizes of all ops and storages of @values."""
        keys, wanted = [self._key(values, op) for op in values.ops], {}
        for key, op in zip(keys, values.ops):
            if key not in self.table and key not in wanted:
                wanted[key] = op
        n_layouts = len(self.layouts)
        try:
            if wanted:
                self._run_all(values, wanted, device)
        except CannotCapture:  # a kernel may refuse operands that another one's description gives
            if len(self.layouts) == n_layouts:
                raise
        if len(self.layouts) > n_layouts:
            raise Relayout
        watched = set()
        for key, op in zip(keys, values.ops):
            self._apply(values, op, self.table[key])
            op.is_watched = op.is_bound and key not in watched
            watched.add(key)

    def _key(self, values, op):
        key = call_key(values, op)
        if op.node.target is optimizers.UPDATE:
            group = self._group(op.node.args[4])
            kind = type(optimizers.owner_of(self.optimizer, op.node.args[4]))
            return (*key, kind, tuple((k, repr(v)) for k, v in group.items() if k != "params" and not _is_live(k, v)))
        is_recording = kernels.callable_of(op.node) is not op.node.target
        return (*key, "recording") if is_recording else key  # another kernel

    def _group(self, index):
        for group in self.optimizer.param_groups:
            if index < len(group["params"]):
                return group
            index -= len(group["params"])
        raise IndexError(index)

    def _apply(self, values, op, price):
        op.ns, op.is_bound = max(1, int(price.ns)), price.is_bound
        new = {values.storage(v): n for v, n in zip(op.outputs, price.sizes)}
        for k in op.writes:
            values.storages[k]["bytes"] = new[k]
        op.scratch_bytes = max(0, price.max_bytes - sum(new[k] for k in op.writes))
        for position in price.hidden:
            k = values.storage(values.value(position_node(op.node, position)))
            if k not in op.updates:
                op.updates.append(k)
                op.reads = [r for r in op.reads if r != k]
                op.is_once = True

    # running

    def _run_all(self, values, wanted, device):
        self._run_some(values, wanted, device, device.type == "cpu")
        with_scratch = {key: op for key, op in wanted.items() if self.table[key].is_part
                        and self.table[key].max_bytes > self.table[key].sizes[0]}
        for key in [key for key in with_scratch if self.table[key].ns > _LONG_NS]:
            price, _ = self.table[key], with_scratch.pop(key)
            price.max_bytes, price.is_bound = 2 * price.max_bytes - price.sizes[0] + _BOUND_BYTES, True
        if with_scratch:
            self._run_some(values, with_scratch, device, False)

    def run_whole(self, values, ops, device):
        """Run calls whose scratch has a bound; return the exact scratch of each."""
        wanted = {self._key(values, op): op for op in ops}
        self._run_some(values, wanted, device, False)
        found = [self.table[self._key(values, op)] for op in ops]
        return [max(0, price.max_bytes - sum(price.sizes)) for price in found]

    def settle(self, values, op, scratch_bytes):
        """Take the exact scratch of a call, for equal calls of this graph and of later ones."""
        price = self.table[self._key(values, op)]
        price.max_bytes, price.is_bound = price.sizes[0] + scratch_bytes, False
        for other in values.ops:
            if other.is_bound and self.table[self._key(values, other)] is price:
                other.scratch_bytes, other.is_bound, other.is_watched = scratch_bytes, False, False

    def _run_some(self, values, wanted, device, in_part):
        """Run calls, of large products a part if @in_part."""
        self.arena, self.n_marks = Arena(device, self._needs(values, wanted.values())), 0
        states = generators.states_of_step(device)
        is_whole_update = any(op.node.target is optimizers.UPDATE_ALL for op in wanted.values())
        own = [optimizers.Attributes(one) for one in optimizers.members_of(self.optimizer)] if is_whole_update else ()
        # oneDNN and others prepare themselves at a call's first run: those events are no price.
        spans = []
        try:
            with torch.no_grad(), events_of(device) as events:
                for key, op in wanted.items():
                    spans.append((key, *self._run(values, op, device, in_part)))
        finally:
            generators.set_states_of_step(device, states)
            self.arena = None
            for attributes in own:
                attributes.restore()
        self._read(spans, events.sizes)

    @staticmethod
    def _needs(values, ops):
        """Return the most bytes of each dtype that one call's operands take."""
        needs = {}
        for op in ops:
            found = needs_of(values.metas[values.value(node)] for node in flat_args(op.node))
            needs.update((dtype, n) for dtype, n in found.items() if n > needs.get(dtype, 0))
        return needs

    def _read(self, spans, sizes):
        """Cut the events at the marks; @spans has the first mark of each call's last run."""
        cuts = [i for i, size in enumerate(sizes) if size == MARK_BYTES]
        if len(cuts) != self.n_marks:
            raise CannotCapture(f"the allocator's events have {len(cuts)} of {self.n_marks} marks", "pricing")
        for key, price, mark in spans:
            peak, left = peak_of(sizes[cuts[mark] + 2:cuts[mark + 1]])
            price.max_bytes = peak - left + price.sizes[0] if price.is_part else peak
            if price.elements:
                each, rest = divmod(peak, price.elements[0])
                price.max_bytes = each * price.elements[1] + rest
            self.table[key] = price

    def _run(self, values, op, device, in_part):
        """Return (price, its last run's mark). Some ops refuse made-up operands: they get fresh ones, ones, zeros."""
        max_value = kernels.max_scratch_value(op.node)
        for fill in (None, None, 1, 0) if max_value is None else (max_value,):
            self.arena.fill = fill
            try:
                found = self._run_filled(values, op, device, in_part)
                if max_value is not None:
                    self.arena.forget()
                return found
            except (RuntimeError, ValueError, IndexError) as fault:
                why = " ".join(str(fault).split())[:200]
                self.arena.forget()
        raise CannotCapture(f"refuses made-up operands, so it has no price: {why}", str(op.node.target))

    def _run_filled(self, values, op, device, in_part):
        """Long calls run once; short ones again, warm, and between sums that show hidden writes."""
        price, before, after = Price(), None, None
        call, args, kwargs, leaves = self._operands(values, op, price)
        part = parts.smaller(op.node.target, args, kwargs) if in_part else None
        if part is not None and values.metas[op.outputs[0]].is_contiguous():
            self._run_part(values, op, *part, price, device)
            return price, self.n_marks - 2
        out, price.ns = self._once(op, call, args, kwargs, device)
        if price.ns <= _REPEAT_NS or device.type == "cuda":  # CUDA's libraries allocate workspaces at a first call
            del out
            before = _sums(leaves)
            out, ns = self._once(op, call, args, kwargs, device)
            price.ns, after = min(price.ns, ns), _sums(leaves)
        mark = self.n_marks - 2
        if price.elements:
            price.ns *= price.elements[1] / price.elements[0]
        price.sizes = self._sizes(values, op, out, leaves)
        for value in op.outputs:
            self._note_odd(values, op, value, out)
        price.hidden = [i for i in range(len(leaves)) if before and before[i] != after[i]
                        and not self._is_declared(values, op, i)]
        return price, mark

    def _run_part(self, values, op, args, factor, price, device):
        """Price a large product by a part of it."""
        kwargs = op.node.kwargs  # of no tensors
        for _ in range(2):
            out, ns = self._once(op, op.node.target, args, kwargs, device)
            del out
        meta, is_new = values.metas[op.outputs[0]], values.storage(op.outputs[0]) in op.writes
        price.ns, price.is_part, price.sizes = int(ns * factor), True, [meta.numel() * meta.element_size() if is_new else 0]

    def _once(self, op, call, args, kwargs, device):
        """Run a call between two marks; return (results, time)."""
        self._mark(device)
        if op.draws:
            generators.set_states(device, generators.states(device))
        if device.type == "cuda":
            out, elapsed = _timed_cuda(device, call, args, kwargs)
        else:
            start = time.perf_counter_ns()
            out = call(*args, **kwargs)
            elapsed = time.perf_counter_ns() - start
        self._mark(device)
        return out, elapsed

    def _mark(self, device):
        self.n_marks += 1
        mark = torch.empty(MARK_BYTES, dtype=torch.uint8, device=device)
        del mark

    def _note_odd(self, values, op, value, out):
        """Keep the form of a result whose description does not say it: a kernel's scratch, a seed on the CPU, another dtype."""
        i = value[1]
        if i is None or not isinstance(out[i], torch.Tensor):
            return
        meta = values.metas[value]
        if kernels.is_opaque(op.node, i) or (out[i].device.type, out[i].dtype) != (meta.device.type, meta.dtype):
            self.odd[call_key(values, op), i] = out[i].shape, out[i].dtype, out[i].device

    def _is_declared(self, values, op, position):
        return values.storage(values.value(position_node(op.node, position))) in op.updates

    def _operands(self, values, op, price):
        if op.node.target in (optimizers.UPDATE, optimizers.UPDATE_ALL):
            return self._update(values, op, price)
        self.arena.reset()
        leaves, reals = [], op.node.meta.get("lade_reals")

        def cut(node):
            real = reals[len(leaves)] if reals is not None else None
            leaves.append(self._made_up(values, node) if real is None else real.clone())
            return leaves[-1]
        args, kwargs = map_arg((tuple(op.node.args), dict(op.node.kwargs)), cut)
        return kernels.callable_of(op.node), args, kwargs, leaves

    def _made_up(self, values, node):
        """Return an operand; for a kernel's scratch one like its own run returned."""
        (source, output), constant = values.value(node), values.constants.get(node)
        if constant is not None and constant.numel() <= 16:
            return constant.clone()
        if output is not None and self.odd:
            found = self.odd.get((call_key(values, Op(source, "")), output))
            if found is not None:
                shape, dtype, where = found
                return torch.zeros(shape, dtype=dtype, device=where)
        return self.arena.cut(values.metas[source, output])

    def _update(self, values, op, price):
        """Return a call that updates made-up parameters by a copy of the optimizer."""
        if op.node.target is optimizers.UPDATE_ALL:
            owner = optimizers.members_of(self.optimizer)[op.node.args[4]]
            nodes = list(zip(op.node.args[0], op.node.args[1]))
            pairs = [self._like(values, p, g) for p, g in nodes]
            slim = optimizers.narrowed(owner, owner.param_groups[0], pairs, {})
            groups, at = [], 0
            for group in owner.param_groups:
                n = len(group["params"])
                groups.append({**group, "params": pairs[at:at + n]})
                at += n
            slim.param_groups = groups
        else:
            meta = values.metas[values.value(op.node.args[0])]
            n_rows = parts.rows_of_update(meta)
            param = self._like(values, op.node.args[0], op.node.args[1], n_rows)
            price.elements = (param.numel(), meta.numel()) if n_rows else None
            owner = optimizers.owner_of(self.optimizer, op.node.args[4])
            slim = optimizers.narrowed(owner, self._group(op.node.args[4]), [param], {})
        slim.state, step = optimizers.empty_state(), type(owner).step
        if optimizers.is_per_param(owner):
            optimizers.create_state(slim, {id(param): param}, slim.state)
        else:
            try:
                step(slim)  # its first step creates state
            except Exception as fault:
                raise CannotCapture(f"it fails on parameters of its own, as before a first step: {type(fault).__name__}: {fault}",
                                    type(owner).__name__ + ".step") from fault
        return (lambda *_args, **_kwargs: _stepped(slim, step)), (), {}, []

    @staticmethod
    def _like(values, param, grad, n_rows=None):
        meta, grad_meta = values.metas[values.value(param)], values.metas[values.value(grad)]
        if n_rows:
            meta, grad_meta = meta[:n_rows], grad_meta[:n_rows]
        made = torch.empty_strided(meta.shape, meta.stride(), dtype=meta.dtype, device=meta.device).fill_(0.5)
        made.requires_grad_()
        made.grad = torch.empty_strided(grad_meta.shape, grad_meta.stride(), dtype=meta.dtype,
                                        device=meta.device).fill_(0.25)
        return made

    def _sizes(self, values, op, out, leaves):
        """Return the bytes of each output's storage; refuse an op whose results share memory unlike its description."""
        out = [out] if isinstance(out, torch.Tensor) or out is None else out
        held = {t.untyped_storage().data_ptr() for t in leaves if t.numel()}
        sizes, storages = [], set()
        for value in op.outputs:
            tensor, storage = out[value[1] or 0], values.storage(value)
            sizes.append(_size(values, op, value, tensor, () if storage in storages else held))
            if tensor is None:
                continue
            if sizes[-1] and not _is_as_described(tensor, values.metas[value]) and not kernels.is_opaque(op.node, value[1]):
                self.layouts.setdefault(call_key(values, op), {})[value[1]] = tensor.stride(), tensor.dtype
            if sizes[-1] and storage in op.writes:
                held.add(tensor.untyped_storage().data_ptr())
            storages.add(storage)
        return sizes


def _size(values, op, value, tensor, held):
    """Return the bytes of the storage of one result of an op; see Pricer._sizes."""
    if kernels.is_opaque(op.node, value[1]):
        return 0 if tensor is None else storage_bytes(tensor, values.device)
    if tensor is None and not any(user.args[1] == value[1] and user.users for user in op.node.users):
        return 0  # a result that the description makes and the kernel leaves out, such as an unwanted gradient
    if not isinstance(tensor, torch.Tensor):
        raise CannotCapture(f"has no result {value[1]}", str(op.node.target))
    meta, is_new = values.metas[value], values.storage(value) in op.writes
    if is_new and tensor.numel() and tensor.untyped_storage().data_ptr() in held:
        raise CannotCapture("returns a tensor twice, or an operand, where its description says a new one",
                            str(op.node.target))
    if is_new and tensor.shape != meta.shape:
        raise CannotCapture(f"returns {tuple(tensor.shape)} where its description says {tuple(meta.shape)}",
                            str(op.node.target))
    return storage_bytes(tensor, values.device)


def _is_as_described(tensor, meta):
    """True if a tensor has the dtype of its description, and its strides where they matter."""
    is_laid_out = all(a == b for a, b, n in zip(tensor.stride(), meta.stride(), tensor.shape) if n > 1)
    return tensor.dtype == meta.dtype and (tensor.numel() == 0 or is_laid_out)


def _stepped(optimizer, step):
    """Call the step of an optimizer. CannotCapture if it exchanges tensors of its state, whose bytes no price has then."""
    own = [weakref.ref(t) for p in optimizers.params_of(optimizer) for _, t in
           optimizers.state_tensors(optimizer.state.get(p, {}))]
    step(optimizer)
    if any(one() is None for one in own):
        raise CannotCapture("it makes new tensors for its state in each step; update them in place",
                            type(optimizer).__name__ + ".step")


def position_node(node, position):
    """Return the node at a position of a call's flattened tensor arguments."""
    found = []
    map_arg((node.args, node.kwargs), found.append)
    return found[position]


def _is_live(key, value):
    return key in ("lr", "initial_lr", "betas", "eps", "weight_decay", "momentum", "max_lr", "min_lr") \
        or isinstance(value, torch.Tensor)


def _timed_cuda(device, call, args, kwargs):
    """Return (results, time) of a call by events of the current stream; the device is idle before."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize(device)
    start.record(torch.cuda.current_stream(device))
    out = call(*args, **kwargs)
    end.record(torch.cuda.current_stream(device))
    end.synchronize()
    return out, int(start.elapsed_time(end) * 1e6)


def _sums(leaves):
    """Return sums over the bits of small operands, to see hidden writes."""
    found = []
    for t in leaves:
        n_bytes = t.numel() * t.element_size()
        is_small = 0 < n_bytes <= _SMALL_BYTES and t.is_contiguous() and t.dim() and not (t.is_conj() or t.is_neg())
        wide = torch.int64 if n_bytes % 8 == 0 and t.storage_offset() * t.element_size() % 8 == 0 else torch.uint8
        found.append(t.reshape(-1).view(wide).sum(dtype=torch.int64).item() if is_small else None)
    return found
