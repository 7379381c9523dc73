# SPDX-License-Identifier: Apache-2.0
"""One plan of a captured step: the library's graph, the budget, the list, and the function that runs it."""
import contextlib
import copy
import os
import time

import torch

from .. import graph as g
from ..errors import DoesNotFit, Error
from ..size import budget_bytes, size_bytes
from . import optimizers, plan_cache, reports
from .pricing import meter
from .running import generate, parked, residents, stand_ins, tiers
from .tracing.trace import without_collections
from .values import Values, updates_early

# Of a long search, without and with tiers, on an idle core of bench/results/torch-amd-epyc-zen4-2-cores.md. It ends by moves, so
# a busy machine finds the same plan. The library's own bounds of a search without iterations are others: it ends by time, too.
_MOVES_PER_SECOND = 200_000, 60_000
_OP_MOVES_PER_SECOND = 100_000_000, 30_000_000  # moves times ops, which bound those of long graphs
_OPS_PER_SECOND = 3000  # of a search: longer ones of GPT-2's 1,480 ops find steps that are 0.1 % faster


class Tiers:
    """The budgets of a step: device, host, store, and the ways that bytes may leave the device."""

    def __init__(self, budget, host, store, store_budget, ways):
        unknown = set(ways) - {"recompute", "host", "store"}
        if unknown:
            raise ValueError(f"ways has {sorted(unknown)[0]!r}: expected \"recompute\", \"host\", \"store\"")
        if not isinstance(budget, (int, str)):
            raise ValueError(f"{budget!r} is no budget: expected bytes, \"8GiB\", \"60%\" or \"min\"")
        budget_bytes(budget, 1)
        if store is not None and not isinstance(store, (str, os.PathLike)):
            raise ValueError(f"store is {store!r}; expected a directory")
        self.budget, self.store, self.ways = budget, store, tuple(ways)
        self.share_bytes = 0  # the largest budget of a plan that was accepted, if the budget is a share
        self.host_bytes, self.host_exact = 0, host != "auto"
        if host is not None and "host" in ways:
            self.host_bytes = _memory_free() // 2 if host == "auto" else size_bytes(host)
        self.store_bytes = 0
        if store is not None and "store" in ways:
            self.store_bytes = size_bytes(store_budget) if store_budget is not None else disk_free(store) // 2
        self.paths = {}

    @property
    def is_share(self):
        """True if the device's budget is a share of the step's unconstrained peak."""
        return isinstance(self.budget, str) and self.budget.rstrip().endswith("%")

    def smallest(self):
        """Return these budgets with the smallest one of the device."""
        part = copy.copy(self)
        part.budget = "min"
        return part

    def measure(self, device):
        """Measure the paths, once."""
        if not self.paths:
            none = (g.Path(), g.Path())
            self.paths["host"] = tiers.host_paths(device) if self.host_bytes else none
            self.paths["store"] = tiers.store_paths(self.store) if self.store_bytes else none
        return self.paths


def _memory_free():
    with open("/proc/meminfo", encoding="ascii") as file:
        fields = dict(line.split(":") for line in file)
    return int(fields["MemAvailable"].split()[0]) * 1024


def disk_free(directory):
    """Return the free bytes of a directory's drive."""
    try:
        found = os.statvfs(directory)
    except OSError as fault:
        raise Error(f"store {directory}: {fault.strerror}", -fault.errno) from fault
    return found.f_bavail * found.f_frsize


def names_of(values, trace):
    """Return a name for each storage: of a given one its kind and its name in the model."""
    names = [f"{s['root'][0].name}.{i}" for i, s in enumerate(values.storages)]
    for node, (kind, name, *_) in zip(values.inputs, trace.inputs):
        names[values.storage((node, None))] = f"{kind} {name}"
    return names


def graph_of(values, name_of, can_redo=True):
    """Return the library's graph of priced values; storages and ops keep their numbers."""
    graph = g.Graph()
    for i, storage in enumerate(values.storages):
        graph.add_storage(name_of(i), storage["bytes"], is_given=storage["is_given"], tier=storage["tier"])
    for op in values.ops:
        graph.add_op(op.name, op.reads, op.writes, op.updates, ns=op.ns, scratch_bytes=op.scratch_bytes,
                     is_once=op.is_once or not can_redo, draws=op.draws, part=op.part)
    for storage in {values.storage(value) for value in values.results()}:
        if not values.storages[storage]["is_given"]:
            graph.keep(storage)
    graph.set_addresses(False)
    graph.close()
    return graph


def forget_batch(trace):
    """Drop the tensors of the call that was captured: a plan keeps no batch."""
    for node in trace.gm.graph.nodes:
        node.meta.pop("lade_real", None)


class Planned:
    """A plan that fits, ready to run. DoesNotFit before anything of the user's was changed."""

    @without_collections()
    def __init__(self, trace, pricer, limits, device, plan_seconds):
        """@plan_seconds: (min, max) of the search."""
        self.trace, self.limits, self.device = trace, limits, device
        self.part_peak_bytes = 0  # of parts of the step that ran before its plan
        start = time.perf_counter()
        self.values = Values(trace.gm, len(trace.inputs), device)
        updates_early(self.values)
        self.n_ops, self.pricer = len(self.values.ops), pricer
        pricer.price(self.values, device)
        if limits.budget == "min":
            self._settle_ops(self.run_bounded())
        self._set_parts()
        for node in trace.gm.graph.nodes:
            node.meta.pop("lade_reals", None)
        if not trace.is_cut:  # planned_part() may make several plans
            forget_batch(trace)
        self.price_seconds = time.perf_counter() - start
        start = time.perf_counter()
        self.names = names_of(self.values, trace)
        self.graph = self._graph()
        self.unconstrained_bytes, self.floor_bytes = self.graph.bounds()
        self.budget = budget_bytes(limits.budget, self.unconstrained_bytes)
        self.plan = self._accepted(plan_seconds)
        if limits.is_share:
            limits.share_bytes = max(limits.share_bytes, self.budget)
        self.offsets = self._place()
        self.function, self.source = generate.compiled(self.values, self.plan, self.offsets)
        self.plan_seconds = time.perf_counter() - start

    def _accepted(self, seconds):
        """Return a plan. Where a share of this batch's peak does not suffice, the bytes of an earlier batch's share do."""
        try:
            return self._settled(seconds)
        except DoesNotFit:
            if not self.limits.is_share or self.limits.share_bytes <= self.budget:
                raise
            self.budget = self.limits.share_bytes
            return self._settled(seconds)

    def _settled(self, seconds):
        """Return a plan, if needed after the ops whose scratch is a bound have run and are exact."""
        try:
            return self._find(seconds)
        except DoesNotFit:
            if not self.bounded_ops():
                raise
            self._settle_ops(self.run_bounded())
            self.graph = self._graph()
            return self._find(seconds)

    def _set_parts(self):
        """Say of each op which part of the step it is in, for reports."""
        for op in self.values.ops:
            is_update = op.node.target in (optimizers.UPDATE, optimizers.UPDATE_ALL)
            op.part = g.UPDATE if is_update else g.BACKWARD if "backward" in op.name else g.FORWARD

    def _graph(self):
        return graph_of(self.values, lambda i: self.names[i], "recompute" in self.limits.ways)

    def _find(self, seconds):
        """Return a plan; one that needs given storages elsewhere between steps only if no other fits, or for "min"."""
        if not self.limits.host_bytes and not self.limits.store_bytes:
            try:
                return self._plan(seconds)
            except DoesNotFit as fault:
                raise DoesNotFit(f"{fault}; host= or store= lets bytes wait elsewhere", fault.min_budget_bytes) from None
        for kinds in ((), ("state",)):
            self._live_elsewhere(kinds)
            if self.budget is not None and self._need_bytes() <= self.budget:
                with contextlib.suppress(DoesNotFit):
                    return self._plan(seconds, is_last=False)
        self._live_elsewhere(("state", "param"))
        return self._plan(seconds)

    def _need_bytes(self):
        """Return a bound below the peak of every list: the storages at the step's start, or the largest op.

        The graph's own floor counts all given storages, which a tier can take in between.
        """
        storages = self.values.storages
        return max([sum(storages[k]["bytes"] for k in self.values.at_start()),
                    *(op.need_bytes(storages) for op in self.values.ops)])

    def _live_elsewhere(self, kinds):
        """Let given storages of @kinds live on tiers."""
        if kinds or len(self.values.at_start()) < sum(s["is_given"] for s in self.values.storages):
            residents.assign(self.values, self.names, self.limits, kinds, self._unparkable())
            self.graph = self._graph()
            self.floor_bytes = self.graph.bounds()[1]

    def _unparkable(self):
        """Return the storages of parameters and state that stay on the device: parked.py has no class for theirs,
        processes share them, or the step returns a view of them.

        State that does not exist yet is taken to have its parameter's class.
        """
        state = self.trace.given.optimizer.state if self.trace.given.optimizer else {}
        own = {(node, None) for node in self.values.inputs}
        found = {self.values.storage(value) for value in self.values.results() if value not in own}
        for node, (kind, _, where, _) in zip(self.values.inputs, self.trace.inputs):
            tensor = where if kind == "param" else state.get(where[0], {}).get(where[1]) if kind == "state" else None
            is_new = kind == "state" and tensor is None
            if is_new and not parked.can_park(where[0]) or tensor is not None and (
                    not parked.can_park(tensor) or stand_ins.is_shared(tensor)):
                found.add(self.values.storage((node, None)))
        return found

    def _plan(self, seconds, is_last=True):
        paths, limits = self.limits.measure(self.device), self.limits
        own = dict(to_host=paths["host"][0], from_host=paths["host"][1], to_store=paths["store"][0],
                   from_store=paths["store"][1],
                   host_budget_bytes=limits.host_bytes - residents.rooms(self.values, g.HOST)[1],
                   store_budget_bytes=limits.store_bytes - residents.rooms(self.values, g.STORE)[1])
        budget = g.BUDGET_MIN if self.budget is None else max(self.budget, 1)
        key = plan_cache.key_of(self.values, limits, budget, self.device)
        found = plan_cache.load(key, self.graph, budget)
        self.is_from_disk = found is not None and found.info["host_bytes"] <= limits.host_bytes
        if self.is_from_disk:
            return found
        plan = self._search(budget, *seconds, own, is_last)
        plan_cache.save(key, plan)
        return plan

    def _search(self, budget, min_s, max_s, own, is_last):
        """Return a plan, by a search that grows with the ops. For "min" and before a refusal it makes the moves of @max_s."""
        if budget != g.BUDGET_MIN:
            try:
                return self.graph.plan(budget, time_limit_s=min(max_s, max(min_s, self.n_ops / _OPS_PER_SECOND)), **own)
            except DoesNotFit:
                if not is_last:
                    raise
        return self.graph.plan(budget, iterations=self._moves(max_s), **own)

    def _moves(self, seconds):
        """Return how many moves a search makes in about @seconds on an idle core."""
        has_tiers = bool(self.limits.host_bytes or self.limits.store_bytes)
        rate = min(_MOVES_PER_SECOND[has_tiers], _OP_MOVES_PER_SECOND[has_tiers] // max(self.n_ops, 1))
        return max(int(rate * seconds), 1)

    def bounded_ops(self):
        """Return {number: op} of ops whose scratch is a bound, one of each kind of call."""
        return {i: op for i, op in enumerate(self.values.ops) if op.is_watched}

    def run_bounded(self):
        """Run the calls whose scratch is a bound, on made-up operands; return {number: exact bytes}."""
        ops = self.bounded_ops()
        return dict(zip(ops, self.pricer.run_whole(self.values, list(ops.values()), self.device))) if ops else {}

    def _settle_ops(self, exact):
        for i, n_bytes in exact.items():
            self.pricer.settle(self.values, self.values.ops[i], n_bytes)

    def settle(self, exact):
        """Take the exact scratch of ops, {number: bytes}; the list stays. False if its peak is above the budget then."""
        self._settle_ops(exact)
        self.graph, info = self._graph(), self.plan.info
        self.unconstrained_bytes, self.floor_bytes = self.graph.bounds()
        info["planned_peak_bytes"] = self.graph.replay(self.plan.instrs)["peak_bytes"]
        info["min_budget_bytes"] = min(info["min_budget_bytes"], info["planned_peak_bytes"])
        self.function, self.source = generate.compiled(self.values, self.plan, self.offsets)
        return self.budget is None or info["planned_peak_bytes"] <= self.budget

    # places

    def _place(self):
        storages, instrs = self.values.storages, self.plan.instrs
        spans = tiers.waits(instrs, storages, g.HOST)
        offsets, moving_bytes = tiers.pack([span for _, span in spans])
        self.places, living_bytes = residents.rooms(self.values, g.HOST)
        stored, stored_bytes = residents.rooms(self.values, g.STORE)
        self.host_bytes = moving_bytes + living_bytes
        if self.host_bytes > self.limits.host_bytes:
            raise DoesNotFit(f"the host budget of {self.limits.host_bytes} bytes is short of the {self.host_bytes} that "
                             "the packed plan takes", self.plan.min_budget_bytes)
        waiting = {instrs[put][1]: (n + 65535) // 65536 * 65536
                   for (put, _), (_, _, n) in tiers.waits(instrs, storages, g.STORE)}
        self.store_need = sum(waiting.values()) + stored_bytes
        self.living = {**self.places, **stored}
        inputs = [self.values.storage((node, None)) for node in self.values.inputs]
        self.living_inputs = [(i, k) for i, k in enumerate(inputs) if k in self.living]
        put_storages = {index for kind, index, _ in instrs if kind == g.PUT} | set(self.living)
        self.put_inputs = [(i, k) for i, k in enumerate(inputs) if k in put_storages]
        constants = [(t, self.values.storage((node, None))) for node, t in self.values.constants.items()]
        self.put_constants = [(t, k) for t, k in constants if k in put_storages]
        self.weights = {k for k, (kind, *_) in zip(inputs, self.trace.inputs) if kind in ("param", "state")}
        self.written = {k for op in self.values.ops for k in op.updates}
        places = {i: living_bytes + offset for (both, _), offset in zip(spans, offsets) for i in both}
        places.update((i, self.places[k]) for i, (kind, k, tier) in enumerate(instrs)
                      if kind in (g.PUT, g.GET) and tier == g.HOST and k in self.places)
        return places

    @property
    def is_final(self):
        """True if the list writes storages that outlive the step only where no restart follows (running/generate.py)."""
        return generate.FINAL in self.source

    def given_bytes(self, tensors):
        """Return the bytes of given storages, of @tensors and of constants, on the device, each storage once."""
        all_tensors = (*tensors, *self.values.constants.values())
        return sum({t.untyped_storage()._cdata: meter.storage_bytes(t, self.device) for t in all_tensors}.values())

    def tensors(self, batch):
        """Return (kind, name, tensor) of all given tensors, in the order of the graph's inputs."""
        found, looked_up = [], {}
        for kind, name, where, _ in self.trace.inputs:
            if kind == "param":
                tensor = where
            elif kind == "buffer":
                own, key = self.trace.given.places_of[id(where)]
                tensor = own[key]
            elif kind == "place":
                tensor = where.get(looked_up)
            elif kind == "state":
                tensor = self.trace.given.optimizer.state[where[0]][where[1]]
            elif kind == "grad":
                tensor = where.grad
            else:
                tensor = batch[where]
            found.append((kind, name, tensor))
        return found

    def living_tensors(self, tensors):
        """Return (tensor, storage) of the given tensors that live on a tier between steps."""
        return [(tensors[i], k) for i, k in self.living_inputs]

    def report(self):
        """Return the plan's side of a report."""
        return reports.report(self)

    def ledger(self):
        """Return ({owner: bytes}, {module: bytes}) on the device at the planned peak; each sum is the peak."""
        return reports.ledger(self)

    def stand_ins(self, tensors):
        """Return the copies that serve in a step for @tensors, the given ones. All that the plan puts elsewhere can be emptied
        then. Error if one cannot wait on a tier between steps any more.
        """
        put = [(tensors[i], k) for i, k in self.put_inputs]
        kept = [(t, k) for t, k in put if k in self.weights and not stand_ins.is_shared(t)]
        stand_ins.keep([t for t, _ in kept])
        moved = [(t, k) for t, k in put if (k not in self.weights or stand_ins.is_shared(t))] + self.put_constants
        for t, k in moved:
            if k in self.living:
                raise Error(f"{self.names[k]} waits on a tier between steps, and share_memory_() was called since its plan was "
                            "made: call it before the first step")
        return stand_ins.StandIns([t for t, _ in moved], {i for i, (_, k) in enumerate(moved) if k in self.written})
