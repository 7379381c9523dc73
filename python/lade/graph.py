# SPDX-License-Identifier: Apache-2.0
"""Graphs of a step and their plans: lade/graph.h and lade/graph_plan.h by ctypes."""
import ctypes as c
import errno

from .errors import DoesNotFit
from .library import ErrorText, check, library

DEVICE, HOST, STORE = range(3)
FORWARD, BACKWARD, UPDATE = range(3)
OP, REDO, DROP, PUT, GET = range(5)
BUDGET_MIN, BUDGET_NONE = 0, 2 ** 64 - 1


class _Storage(c.Structure):
    _fields_ = [("struct_size", c.c_size_t), ("name", c.c_char_p), ("bytes", c.c_uint64), ("align", c.c_uint64),
                ("is_given", c.c_bool), ("tier", c.c_int), ("class_name", c.c_char_p)]


class _Range(c.Structure):
    _fields_ = [("storage", c.c_int), ("offset", c.c_uint64), ("bytes", c.c_uint64)]


class _Op(c.Structure):
    _fields_ = [("struct_size", c.c_size_t), ("name", c.c_char_p), ("reads", c.POINTER(_Range)),
                ("writes", c.POINTER(_Range)), ("updates", c.POINTER(_Range)), ("n_reads", c.c_int),
                ("n_writes", c.c_int), ("n_updates", c.c_int), ("scratch_bytes", c.c_uint64), ("ns", c.c_int64),
                ("is_once", c.c_bool), ("draws", c.c_bool), ("pass_", c.c_int), ("queue", c.c_int)]


class Path(c.Structure):
    """A one-way path to a tier: bytes_per_s, latency_ns."""
    _fields_ = [("bytes_per_s", c.c_double), ("latency_ns", c.c_int64)]


class _Params(c.Structure):
    _fields_ = [("struct_size", c.c_size_t), ("budget_bytes", c.c_uint64), ("host_budget_bytes", c.c_uint64),
                ("store_budget_bytes", c.c_uint64), ("to_host", Path), ("from_host", Path), ("to_store", Path),
                ("from_store", Path), ("iterations", c.c_int64), ("time_limit_ns", c.c_int64), ("seed", c.c_uint64)]


class _Info(c.Structure):
    _fields_ = [("struct_size", c.c_size_t), ("planned_peak_bytes", c.c_uint64), ("unconstrained_bytes", c.c_uint64),
                ("min_budget_bytes", c.c_uint64), ("floor_bytes", c.c_uint64), ("host_bytes", c.c_uint64),
                ("store_bytes", c.c_uint64), ("base_ns", c.c_int64), ("compute_ns", c.c_int64),
                ("bound_ns", c.c_int64), ("predicted_step_ns", c.c_int64), ("n_redone", c.c_int),
                ("moved_bytes", c.c_uint64), ("seconds", c.c_double)]


class _Instr(c.Structure):
    _fields_ = [("kind", c.c_int), ("index", c.c_int), ("tier", c.c_int)]


class _Totals(c.Structure):
    _fields_ = [("struct_size", c.c_size_t), ("peak_bytes", c.c_uint64), ("host_peak_bytes", c.c_uint64),
                ("store_peak_bytes", c.c_uint64), ("compute_ns", c.c_int64), ("n_redone", c.c_int),
                ("moved_bytes", c.c_uint64)]


def _fields(struct):
    return {name: getattr(struct, name) for name, _ in struct._fields_ if name != "struct_size"}


def _name(text):
    return text.encode()[:255].decode(errors="ignore").encode() or b"?"


def _ranges(operands):
    """Return a ctypes array of operands, each a storage's index or (storage, offset, bytes)."""
    items = [(o, 0, 0) if isinstance(o, int) else o for o in operands]
    return (_Range * len(items))(*items) if items else None


class Graph:
    """A graph of storages and opaque ops (lade/graph.h). Closed before it is planned."""

    def __init__(self, path=None):
        self._lib, self._error, self._graph = library(), ErrorText(), c.c_void_p()
        self._lib.lade_graph_destroy.argtypes = [c.c_void_p]
        self._lib.lade_graph_destroy.restype = None
        if path is None:
            check(self._lib.lade_graph_create(c.byref(self._graph)), None, "lade_graph_create")
        else:
            self._call("lade_graph_load", str(path).encode(), c.byref(self._error), c.byref(self._graph), bare=True)

    def __del__(self):
        if getattr(self, "_graph", None):
            self._lib.lade_graph_destroy(self._graph)
            self._graph = None

    def _call(self, function, *args, bare=False):
        own = () if bare else (self._graph,)
        return check(getattr(self._lib, function)(*own, *args), self._error, function)

    def add_storage(self, name, n_bytes, *, is_given=False, tier=DEVICE, align=0, class_name=None):
        """Add a storage; return its index."""
        index = c.c_int()
        storage = _Storage(c.sizeof(_Storage), _name(name), n_bytes, align, is_given, tier,
                           _name(class_name) if class_name else None)
        self._call("lade_graph_add_storage", c.byref(storage), c.byref(self._error), c.byref(index))
        return index.value

    def add_op(self, name, reads=(), writes=(), updates=(), *, ns=0, scratch_bytes=0, is_once=False, draws=False,
               part=FORWARD, queue=0):
        """Add an op after the others; return its index. Operands are storages or (storage, offset, bytes)."""
        index, arrays = c.c_int(), [_ranges(operands) for operands in (reads, writes, updates)]
        op = _Op(c.sizeof(_Op), _name(name), *arrays, len(reads), len(writes), len(updates), scratch_bytes, ns, is_once,
                 draws, part, queue)
        self._call("lade_graph_add_op", c.byref(op), c.byref(self._error), c.byref(index))
        return index.value

    def keep(self, storage):
        """Let the caller have a made storage after the step."""
        self._call("lade_graph_keep", storage, c.byref(self._error))

    def set_addresses(self, has_addresses):
        """Let plans have addresses (the default), or live bytes alone."""
        check(self._lib.lade_graph_set_addresses(self._graph, c.c_bool(has_addresses)), None,
              "lade_graph_set_addresses")

    def close(self):
        """Check the graph and make it immutable."""
        self._call("lade_graph_close", c.byref(self._error))

    def save(self, path):
        """Write the closed graph as JSON."""
        self._call("lade_graph_save", str(path).encode(), c.byref(self._error))

    @property
    def n_storages(self):
        return self._lib.lade_graph_n_storages(self._graph)

    @property
    def n_ops(self):
        return self._lib.lade_graph_n_ops(self._graph)

    def bounds(self):
        """Return (unconstrained bytes, floor bytes): the peak of the plain list, and a bound below every list's."""
        whole, floor = c.c_uint64(), c.c_uint64()
        self._call("lade_graph_bounds", c.byref(self._error), c.byref(whole), c.byref(floor))
        return whole.value, floor.value

    def plan(self, budget_bytes=BUDGET_MIN, *, host_budget_bytes=0, store_budget_bytes=0, to_host=Path(),
             from_host=Path(), to_store=Path(), from_store=Path(), iterations=0, time_limit_s=0.0, seed=0):
        """Plan the graph inside a budget. DoesNotFit has the smallest budget that was found."""
        params = _Params(c.sizeof(_Params), budget_bytes, host_budget_bytes, store_budget_bytes, to_host, from_host,
                         to_store, from_store, iterations, int(time_limit_s * 1e9), seed)
        info, plan = _Info(c.sizeof(_Info)), c.c_void_p()
        code = self._lib.lade_graph_plan_find(self._graph, c.byref(params), c.byref(self._error), c.byref(info),
                                              c.byref(plan))
        if code == -errno.ENOSPC:
            raise DoesNotFit(self._error.text.decode(), info.min_budget_bytes or info.planned_peak_bytes)
        check(code, self._error, "lade_graph_plan_find")
        try:
            return Plan(_fields(info), self._instrs(plan))
        finally:
            self._lib.lade_graph_plan_destroy(plan)

    def _instrs(self, plan):
        n = c.c_int()
        self._lib.lade_graph_plan_instrs.restype = c.POINTER(_Instr)
        instrs = self._lib.lade_graph_plan_instrs(plan, c.byref(n))
        return [(instrs[i].kind, instrs[i].index, instrs[i].tier) for i in range(n.value)]

    def replay(self, instrs):
        """Check a list with code that shares nothing with the search; return its totals."""
        totals, array = _Totals(c.sizeof(_Totals)), (_Instr * len(instrs))(*instrs)
        self._call("lade_graph_replay", array, len(instrs), c.byref(self._error), c.byref(totals))
        return _fields(totals)


class Plan:
    """A list of instructions (kind, index, tier), and its figures (struct lade_graph_plan_info)."""

    def __init__(self, info, instrs):
        self.info, self.instrs = info, instrs

    def __getattr__(self, name):
        if name != "info" and name in self.info:
            return self.info[name]
        raise AttributeError(name)
