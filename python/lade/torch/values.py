# SPDX-License-Identifier: Apache-2.0
"""A captured graph as values, storages and ops.

A value is a tensor that a node of the graph makes: (node, None), or (node, i) for output i of several. Values that
share memory belong to one storage. A node whose outputs are all views of its inputs is no op. Generated code makes the
view where it is needed, and makes it again if the storage came back. All other calls are ops, which read, write and update
storages.
"""
import operator

import torch

from ..errors import CannotCapture
from ..graph import DEVICE
from . import optimizers
from .tracing.assignment import ASSIGN
from .tracing.branches import BRANCH, VALUES
from .tracing.draws import RANDOM
from .tracing.spans import SPANS
from .pricing.kernels import HIDDEN_WRITES
from .pricing.meter import storage_bytes

_REFUSED = {"aten::resize_", "aten::set_", "aten::_resize_output_", "aten::resize_as_"}
# Ops that may end a step: branches, checks, and calls of other libraries, which refuse some values.
MAY_END = BRANCH, VALUES, ASSIGN, SPANS, RANDOM, torch.ops.aten._assert_async.msg, torch.ops.aten._assert_async.default


class Op:
    """One op: its node, its operands as storages, and its price, which pricing/prices.py fills in."""
    __slots__ = ("node", "name", "reads", "writes", "updates", "draws", "is_once", "is_bound", "is_watched", "outputs",
                 "scratch_bytes", "ns", "part")

    def __init__(self, node, name):
        self.node, self.name = node, name
        self.reads, self.writes, self.updates, self.outputs = [], [], [], []
        self.draws = self.is_once = self.is_bound = self.is_watched = False
        # is_bound: scratch_bytes is a bound, not exact. is_watched: the first step finds it, for all equal calls
        self.scratch_bytes = self.ns = self.part = 0

    def need_bytes(self, storages):
        """Return the bytes of its operands, results and scratch."""
        return sum(storages[k]["bytes"] for k in {*self.reads, *self.writes, *self.updates}) + self.scratch_bytes


class _Union:
    def __init__(self):
        self.parent = {}

    def find(self, key):
        path = []
        while self.parent.setdefault(key, key) != key:
            path.append(key)
            key = self.parent[key]
        for k in path:
            self.parent[k] = key
        return key

    def join(self, a, b):
        self.parent[self.find(a)] = self.find(b)


def flat_args(node):
    """Return all leaves of a call's arguments that are nodes, in order."""
    found = []
    torch.fx.node.map_arg((node.args, node.kwargs), found.append)
    return found


def schema_name(node):
    return node.target._schema.name


class Values:
    """Values, storages and ops of a graph."""

    def __init__(self, gm, n_inputs, device=torch.device("cpu")):
        """@device: of the step. Storages on another device, such as step counters on the CPU, count 0 bytes."""
        self.gm, self.nodes, self.device = gm, list(gm.graph.nodes), device
        self.alias_of = {}      # getitem node -> value
        self.metas = {}         # value -> fake tensor
        self.is_view = set()    # nodes that only make views
        self.mutated_of = {}    # value -> the operand that it is, for results of in-place ops
        self.constants = {}     # get_attr node -> real tensor
        self.union, self.storage_of_key, self.storages = _Union(), {}, []
        self.ops, self.inputs = [], []
        self.foreign = []       # (first address, end, value) of given tensors over memory that is not torch's
        for node in self.nodes:
            self._visit(node)
        if len(self.inputs) != n_inputs:
            raise CannotCapture(f"the graph has {len(self.inputs)} inputs of {n_inputs}", "make_fx")
        self._number()
        self._check_foreign()

    # values

    def value(self, node):
        """Return the value that a node in an argument list stands for."""
        return self.alias_of.get(node, (node, None))

    def _key(self, value):
        return self.metas[value].untyped_storage()._cdata

    def _outputs(self, node):
        val = node.meta.get("val")
        if isinstance(val, torch.Tensor):
            return [((node, None), val)]
        if isinstance(val, (list, tuple)):
            return [((node, i), t) for i, t in enumerate(val) if isinstance(t, torch.Tensor)]
        return []

    def _visit(self, node):
        if node.op == "placeholder":
            self._real(node, node.meta["val"], node.meta.get("lade_real"))
            self.inputs.append(node)
        elif node.op == "get_attr":
            self._constant(node)
        elif node.op == "call_function" and node.target is operator.getitem:
            source, index = node.args
            if (source, index) not in self.metas:
                if not node.users and not isinstance(node.meta.get("val"), (torch.Tensor, list, tuple)):
                    return  # a result that the call does not give, such as an unwanted gradient
                raise CannotCapture("results nested in results are not captured", str(source.target))
            self.alias_of[node] = (source, index)
        elif node.op == "call_function":
            self._call(node)
        elif node.op != "output":
            raise CannotCapture(f"a node of kind {node.op}", str(node.target))

    def _constant(self, node):
        real = self.gm
        for part in node.target.split("."):
            real = getattr(real, part)
        if not isinstance(real, torch.Tensor):
            text = "a generator of your own is not captured; draw from torch's default one" \
                if isinstance(real, torch.Generator) else "higher-order ops are not captured"
            raise CannotCapture(text, node.target)
        if real.layout is not torch.strided:
            raise CannotCapture("sparse tensors are not captured", "constant")
        self.constants[node] = real
        self._real(node, node.meta.get("val", real), real)

    def _real(self, node, meta, real):
        """Note a given tensor: with others over its memory it is one storage, of all bytes that this has."""
        self.metas[(node, None)] = meta
        if real is not None and real.layout is torch.strided:
            storage = real.untyped_storage()
            if meta.untyped_storage().nbytes() < storage.nbytes():  # a tensor that the capture met is described without the rest
                meta.untyped_storage().resize_(storage.nbytes())
            self.union.join(self._key((node, None)), ("real", storage._cdata))
            if not storage.resizable():
                self.foreign.append((storage.data_ptr(), storage.data_ptr() + storage.nbytes(), (node, None)))

    def _call(self, node):
        target = node.target
        if getattr(target, "namespace", "") == "profiler":
            return
        if not isinstance(target, torch._ops.OpOverload):
            raise CannotCapture("calls that are no ATen ops are not captured", str(target))
        if schema_name(node) in _REFUSED:
            raise CannotCapture("an op that changes a tensor's storage is not captured", str(target))
        outputs = self._outputs(node)
        if any(meta.layout is not torch.strided for _, meta in outputs):
            raise CannotCapture("sparse tensors are not captured", str(target))
        written = self._written(node)
        before = {self.union.find(self._key(self.value(a))) for a in flat_args(node) if self.value(a) in self.metas}
        for value, meta in outputs:
            self.metas[value] = meta
        self._join_declared(node, outputs)
        if not written and outputs and all(self.union.find(self._key(v)) in before for v, _ in outputs):
            self.is_view.add(node)
            return
        op = Op(node, str(target).replace("aten.", ""))
        op.outputs = [value for value, _ in outputs]
        op.updates = written
        op.draws = torch.Tag.nondeterministic_seeded in target.tags
        op.is_once = "c10d" in target.namespace or target in (SPANS, RANDOM)
        for value, _ in outputs:
            for operand in written:
                if self.union.find(self._key(value)) == self.union.find(self._key(operand)):
                    self.mutated_of[value] = operand
        self.ops.append(op)

    def _written(self, node):
        """Return the values that a call writes in place, by its schema and by HIDDEN_WRITES."""
        found, schema = [], node.target._schema
        for i, argument in enumerate(schema.arguments):
            arg = node.args[i] if i < len(node.args) else node.kwargs.get(argument.name)
            is_hidden = i in HIDDEN_WRITES.get(schema.name, ())
            if is_hidden or argument.alias_info is not None and argument.alias_info.is_write:
                for item in arg if isinstance(arg, (list, tuple)) else [arg]:
                    if isinstance(item, torch.fx.Node):
                        found.append(self.value(item))
        return found

    def _join_declared(self, node, outputs):
        """Join the storages of outputs with those of the operands that the schema says they are."""
        schema = node.target._schema
        if len(schema.returns) != len(outputs) and len(schema.returns) != 1:
            return
        is_list = len(schema.returns) == 1 and len(outputs) > 1  # of views; a list's set of aliases is empty
        returns = schema.returns * len(outputs) if is_list else schema.returns
        for returned, (value, _) in zip(returns, outputs):
            info = returned.alias_info
            for i, argument in enumerate(schema.arguments):
                arg = node.args[i] if i < len(node.args) else node.kwargs.get(argument.name)
                if info and argument.alias_info and isinstance(arg, torch.fx.Node) \
                        and (is_list or info.before_set & argument.alias_info.before_set):
                    self.union.join(self._key(value), self._key(self.value(arg)))

    # storages

    def storage(self, value):
        """Return the number of a value's storage."""
        return self.storage_of_key[self.union.find(self._key(value))]

    def _storage_new(self, value, is_given):
        root = self.union.find(self._key(value))
        if root not in self.storage_of_key:
            self.storage_of_key[root] = len(self.storages)
            self.storages.append({"root": value, "is_given": is_given, "tier": DEVICE,
                                  "bytes": storage_bytes(self.metas[value], self.device)})
        return self.storage_of_key[root]

    def _number(self):
        for node in (*self.inputs, *self.constants):
            self._storage_new((node, None), True)
        for op in self.ops:
            written = [self.storage(value) for value in op.updates]
            op.reads = sorted({self.storage(self.value(a)) for a in flat_args(op.node)} - set(written))
            op.updates = sorted(set(written))
            n = len(self.storages)
            for value in op.outputs:
                self._storage_new(value, False)
            op.writes = list(range(n, len(self.storages)))
            given = any(self.storages[k]["is_given"] for k in op.updates)
            op.is_once = op.is_once or given

    def _check_foreign(self):
        """Refuse a step that writes memory which several storages have, as those of slices of one array do."""
        written, end, last = {k for op in self.ops for k in op.updates}, 0, None
        for begin, own_end, storage in sorted((begin, end, self.storage(value)) for begin, end, value in self.foreign):
            if begin < end and storage != last and (storage in written or last in written):
                raise CannotCapture("the step writes an array of which two tensors were made; make one tensor of it, and views of "
                                    "that", "arguments")
            if own_end > end:
                end, last = own_end, storage

    def at_start(self):
        """Return the given storages that are on the device when a step begins."""
        return {k for k, s in enumerate(self.storages) if s["is_given"] and s["tier"] == DEVICE}

    def changes_given(self, op):
        """True if an op writes a storage that outlives the step, such as running statistics."""
        return any(self.storages[k]["is_given"] for k in op.updates)

    def results(self):
        """Return the values that the graph returns."""
        return [self.value(node) for node in self.nodes[-1].args[0]]


def updates_early(values):
    """Move each parameter's update to follow the last op that reads or writes one of its operands.

    An update frees its gradient. It may run as soon as the gradient is final and no op needs the old parameter. It stays
    after branches and checks, which may end the step.
    """
    last, rest, moved = {}, [], []
    for op in values.ops:
        (moved if op.node.target is optimizers.UPDATE else rest).append(op)
    place = {id(op): i for i, op in enumerate(values.ops)}
    touched, ends = {}, [(place[id(op)], i) for i, op in enumerate(rest) if op.node.target in MAY_END]
    for i, op in enumerate(rest):
        for k in (*op.reads, *op.writes, *op.updates):
            touched.setdefault(k, []).append((place[id(op)], i))
    for op in moved:
        at = max((i for p, i in ends if p < place[id(op)]), default=-1)
        for k in (*op.reads, *op.updates):
            uses = touched.get(k, ())
            if any(p > place[id(op)] for p, _ in uses):
                at = None  # an op after the update reads an operand of it: the order stays
                break
            at = max(at, max((i for _, i in uses), default=-1))
        last[id(op)] = at
    if any(at is None for at in last.values()):
        return
    followers = {}  # place of an op -> the updates that follow it
    for op in moved:
        followers.setdefault(last[id(op)], []).append(op)
    values.ops = followers.get(-1, [])
    for i, op in enumerate(rest):
        values.ops += [op, *followers.get(i, ())]
