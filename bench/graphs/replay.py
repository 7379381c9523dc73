#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Replay a list of instructions of a planned step, check it, and count it. Shares no code with Lade.

Usage: bench/graphs/replay.py GRAPH.json [OUT.json] [--budget BYTES|P%] [--host-budget BYTES]

OUT.json is the file of `lade plan --graph GRAPH.json --instructions OUT.json`; without it the unconstrained list is
replayed: every op once, each storage dropped after its last use. Prints one line of JSON; the exit status is 1 with
the first violation on standard error.

The rules. Storages have versions: every write or update makes the next one; given storages begin at version 0. An op
runs only if each operand that it reads has the version that the unconstrained step would read. It leaves the versions
that it made the first time, so a redo of an early writer takes a storage back. First runs stand in order, each op once.
A drop or put needs its storage on the device, a get needs a copy on a tier. At the end results are on the device and
given storages are where they began, all at their last version; every other storage has been dropped, on all tiers.
"""
import argparse
import json
import sys

DEVICE = "device"


class Violation(Exception):
    """The first rule that a list breaks."""


class Graph:
    """A step with the versions that each operand of each op has."""

    def __init__(self, path):
        with open(path, encoding="utf-8") as file:
            text = json.load(file)
        self.storages, self.ops = text["storages"], text["ops"]
        self.kept = set(text.get("keep", ()))
        self.bytes = [storage["bytes"] for storage in self.storages]
        self.given = [bool(storage.get("given")) for storage in self.storages]
        self.home = [storage.get("tier", DEVICE) for storage in self.storages]
        self.versions = [0] * len(self.storages)  # after the step
        self.runs = [self.op_resolve(index, op) for index, op in enumerate(self.ops)]

    def op_resolve(self, index, op):
        """Return ([(storage, version before)], [(storage, version made)]) of an op."""
        reads = {}
        for operand in (*op.get("reads", ()), *op.get("updates", ())):
            reads[self.storage_of(operand)] = None
        writes = [self.storage_of(operand) for operand in (*op.get("writes", ()), *op.get("updates", ()))]
        for operand in op.get("writes", ()):
            storage = self.storage_of(operand)
            if self.is_partial(operand) and (self.given[storage] or self.versions[storage]):
                reads[storage] = None  # the bytes around the range stay
        for storage in reads:
            if not self.given[storage] and not self.versions[storage]:
                raise Violation(f"op {index}: storage {storage} is read before an op made it")
            reads[storage] = self.versions[storage]
        for storage in dict.fromkeys(writes):
            self.versions[storage] += 1
        return list(reads.items()), [(storage, self.versions[storage]) for storage in dict.fromkeys(writes)]

    @staticmethod
    def storage_of(operand):
        if isinstance(operand, int):
            return operand
        return operand["storage"] if isinstance(operand, dict) else operand[0]

    def is_partial(self, operand):
        if isinstance(operand, int):
            return False
        offset, n_bytes = ((operand.get("offset", 0), operand.get("bytes", 0)) if isinstance(operand, dict)
                           else (operand[1], operand[2]))
        return bool(offset) or bool(n_bytes) and n_bytes != self.bytes[self.storage_of(operand)]

    def unconstrained(self):
        """Return the list that runs every op once, and drops each storage after its last use."""
        last = {}
        for index, (reads, writes) in enumerate(self.runs):
            for storage, _ in reads + writes:
                last[storage] = index
        dying = {}
        for storage, index in last.items():
            if not self.given[storage] and storage not in self.kept:
                dying.setdefault(index, []).append(storage)
        instructions = []
        for index in range(len(self.ops)):
            instructions.append(["op", index])
            instructions += [["drop", storage] for storage in dying.get(index, ())]
        return instructions

    def instructions(self, runs):
        """Return the list of @runs, pairs of an op and whether it runs again: each storage is dropped after its last read
        before it is made again. pre: no op updates a storage in place.
        """
        dying, wanted = [[] for _ in runs], set(self.kept)  # wanted: read later or kept, and not made again before
        for at in reversed(range(len(runs))):
            reads, writes = self.runs[runs[at][0]]
            touched = {storage for storage, _ in reads + writes if not self.given[storage]}
            dying[at] = sorted(touched - wanted)
            wanted = (wanted | touched) - {storage for storage, _ in writes}
        instructions = []
        for (op, is_again), storages in zip(runs, dying):
            instructions.append(["redo" if is_again else "op", op])
            instructions += [["drop", storage] for storage in storages]
        return instructions

    def floor(self):
        """Return bytes that every list has: the largest need of one op, beside the given storages on the device."""
        resident = sum(n for n, given, home in zip(self.bytes, self.given, self.home) if given and home == DEVICE)
        need = 0
        for op, (reads, writes) in zip(self.ops, self.runs):
            operands = {storage for storage, _ in reads + writes if not self.given[storage]}
            need = max(need, sum(self.bytes[storage] for storage in operands) + op.get("scratch_bytes", 0))
        return resident + need


class Replay:
    """The state of all tiers between two instructions."""

    def __init__(self, graph):
        self.graph = graph
        self.live = {}     # storage -> version on the device
        self.copies = {}   # storage -> (tier, version)
        self.used = self.peak = 0
        self.waiting = {}  # tier -> bytes there, those of given storages that live there apart
        self.waiting_peak = {}
        self.compute_ns = self.n_redone = self.moved = self.next = 0
        for storage, is_given in enumerate(graph.given):
            if is_given and graph.home[storage] == DEVICE:
                self.live[storage] = 0
                self.used += graph.bytes[storage]
            elif is_given:
                self.copies[storage] = (graph.home[storage], 0)
        self.peak = self.used

    def place(self, storage, version):
        if storage not in self.live:
            self.used += self.graph.bytes[storage]
        self.live[storage] = version

    def remove(self, storage, verb):
        if storage not in self.live:
            raise Violation(f"{verb} storage {storage} ({self.name(storage)}): it is not on the device")
        self.used -= self.graph.bytes[storage]
        return self.live.pop(storage)

    def name(self, storage):
        return self.graph.storages[storage].get("name", "")

    def wait(self, storage, tier, sign):
        if self.graph.given[storage] and self.graph.home[storage] == tier:
            return
        self.waiting[tier] = self.waiting.get(tier, 0) + sign * self.graph.bytes[storage]
        self.waiting_peak[tier] = max(self.waiting_peak.get(tier, 0), self.waiting[tier])

    def run(self, index):
        op, (reads, writes) = self.graph.ops[index], self.graph.runs[index]
        for storage, version in reads:
            found = self.live.get(storage)
            if found is None:
                raise Violation(f"op {index} ({op['name']}) needs storage {storage} ({self.name(storage)}): "
                                "it is not on the device")
            if found != version:
                raise Violation(f"op {index} ({op['name']}) needs version {version} of storage {storage} "
                                f"({self.name(storage)}): it has version {found}")
        for storage, version in writes:
            self.place(storage, version)
        self.peak = max(self.peak, self.used + op.get("scratch_bytes", 0))
        self.compute_ns += op["ns"]

    def op(self, index):
        if index != self.next:
            raise Violation(f"op {index} stands where op {self.next} is the next")
        self.next += 1
        self.run(index)

    def redo(self, index):
        if not 0 <= index < self.next:
            raise Violation(f"redo of op {index}, which has not run")
        if not self.graph.ops[index].get("repeatable", True):
            raise Violation(f"redo of op {index} ({self.graph.ops[index]['name']}), which may not run again")
        self.n_redone += 1
        self.run(index)

    def drop(self, storage):
        self.remove(storage, "drop")

    def put(self, storage, tier):
        version = self.remove(storage, "put")
        if storage in self.copies:
            before = self.copies[storage][0]
            if before != tier:
                raise Violation(f"put storage {storage} to {tier}: a copy waits on {before}")
        else:
            self.wait(storage, tier, 1)
        self.copies[storage] = (tier, version)
        self.moved += self.graph.bytes[storage]

    def get(self, storage, tier=None):
        if storage not in self.copies:
            raise Violation(f"get storage {storage} ({self.name(storage)}): no copy of it waits")
        if storage in self.live:
            raise Violation(f"get storage {storage} ({self.name(storage)}): it is on the device")
        place, version = self.copies[storage]
        if tier not in (None, place):
            raise Violation(f"get storage {storage} from {tier}: its copy waits on {place}")
        self.place(storage, version)
        self.peak = max(self.peak, self.used)
        self.moved += self.graph.bytes[storage]
        if not (self.graph.given[storage] and self.graph.home[storage] == place):
            del self.copies[storage]
            self.wait(storage, place, -1)

    def finish(self):
        graph = self.graph
        if self.next != len(graph.ops):
            raise Violation(f"the list ends before op {self.next}")
        for storage, last in enumerate(graph.versions):
            on_device = graph.given[storage] and graph.home[storage] == DEVICE or storage in graph.kept
            place = f"storage {storage} ({self.name(storage)})"
            if on_device and self.live.get(storage) != last:
                raise Violation(f"at the end {place} has version {self.live.get(storage)}: expected {last}")
            if not on_device and storage in self.live:
                raise Violation(f"at the end {place} is on the device: expected a drop")
            away = graph.given[storage] and graph.home[storage] != DEVICE
            if away and self.copies.get(storage) != (graph.home[storage], last):
                raise Violation(f"at the end {place} is not at version {last} on {graph.home[storage]}")
            if not away and storage in self.copies:
                raise Violation(f"at the end {place} waits on {self.copies[storage][0]}")

    def totals(self):
        return {"peak_bytes": self.peak, "compute_ns": self.compute_ns, "n_redone": self.n_redone,
                "moved_bytes": self.moved, "host_peak_bytes": self.waiting_peak.get("host", 0),
                "store_peak_bytes": self.waiting_peak.get("store", 0)}


def replay(graph, instructions):
    """Return the totals of a list; Violation names its first fault."""
    state = Replay(graph)
    verbs = {"op": (state.op, (2,), len(graph.ops)), "redo": (state.redo, (2,), len(graph.ops)),
             "drop": (state.drop, (2,), len(graph.bytes)), "put": (state.put, (3,), len(graph.bytes)),
             "get": (state.get, (2, 3), len(graph.bytes))}
    for at, instruction in enumerate(instructions):
        try:
            verb, lengths, end = verbs.get(instruction[0], (None, (), 0))
            if verb is None or len(instruction) not in lengths or not 0 <= instruction[1] < end:
                raise Violation("it is unknown, or its index is out of range")
            verb(*instruction[1:])
        except Violation as violation:
            raise Violation(f"instruction {at} {json.dumps(instruction)}: {violation}") from None
    state.finish()
    return state.totals()


def bytes_parse(text, whole):
    return int(float(text[:-1]) * whole / 100) if text.endswith("%") else int(text)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("graph")
    parser.add_argument("out", nargs="?")
    parser.add_argument("--budget", help="fail if the peak is larger; P%% is of the unconstrained peak")
    parser.add_argument("--host-budget", help="fail if more bytes wait on the host")
    args = parser.parse_args()
    try:
        graph = Graph(args.graph)
        base = replay(graph, graph.unconstrained())
        totals = base
        if args.out:
            with open(args.out, encoding="utf-8") as file:
                totals = replay(graph, json.load(file)["instructions"])
        totals.update(unconstrained_bytes=base["peak_bytes"], base_ns=base["compute_ns"], floor_bytes=graph.floor())
        if args.budget and totals["peak_bytes"] > bytes_parse(args.budget, base["peak_bytes"]):
            raise Violation(f"the peak is {totals['peak_bytes']} bytes, over the budget of {args.budget}")
        if args.host_budget and totals["host_peak_bytes"] > bytes_parse(args.host_budget, 0):
            raise Violation(f"{totals['host_peak_bytes']} bytes wait on the host, over {args.host_budget}")
    except Violation as violation:
        print(f"{args.out or args.graph}: {violation}", file=sys.stderr)
        sys.exit(1)
    print(json.dumps(totals))


if __name__ == "__main__":
    main()
