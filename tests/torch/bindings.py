#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The package without PyTorch: sizes, graphs, plans, replays, errors. Usage: bindings.py LIBLADE"""
import os
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "python"))
os.environ["LADE_LIBRARY"] = os.path.abspath(sys.argv[1])

import lade
from lade import graph as g


def raises(kind, call, *words):
    try:
        call()
    except kind as fault:
        assert all(word in str(fault) for word in words), (words, str(fault))
        return fault
    raise AssertionError(f"{kind.__name__} was not raised")


def sizes_are_the_commands():
    for text, n in (("24GiB", 24 << 30), ("1.5GB", 1500000000), ("512KB", 512000), ("4096", 4096), (7, 7), ("0", 0),
                    ("24 MiB", 24 << 20), ("2g", 2 << 30)):
        assert lade.size_bytes(text) == n, (text, lade.size_bytes(text))
    for text in ("", "GiB", "-1", "1e", "nan", "0x10", -1, None, True, "5 apples"):
        raises(ValueError, lambda text=text: lade.size_bytes(text), "size")
    assert lade.budget_bytes("60%", 1000) == 600 and lade.budget_bytes("min", 1000) is None
    for text in ("0%", "x%", "-5%", "nan%"):
        raises(ValueError, lambda text=text: lade.budget_bytes(text, 1000))


def chain(n=8):
    """Return a graph of a forward chain whose backward reads every value: recompute halves its peak."""
    graph = g.Graph()
    weight = graph.add_storage("weight", 100, is_given=True)
    values = [graph.add_storage(f"x{i}", 1000) for i in range(n)]
    for i, value in enumerate(values):
        graph.add_op(f"forward{i}", [weight, *values[max(i - 1, 0):i]], [value], ns=1000)
    grads = [graph.add_storage(f"g{i}", 1000) for i in range(n)]
    for i in reversed(range(n)):
        graph.add_op(f"backward{i}", [values[i], *grads[i + 1:i + 2]], [grads[i]], ns=1000, part=g.BACKWARD)
    graph.add_op("update", [grads[0]], [], [weight], ns=10, part=g.UPDATE, is_once=True)
    graph.set_addresses(False)
    graph.close()
    return graph


def plans_fit_and_replay():
    graph = chain()
    whole, floor = graph.bounds()
    plan = graph.plan(whole)
    assert plan.planned_peak_bytes == whole and plan.n_redone == 0 and len(plan.instrs) >= graph.n_ops
    smaller = graph.plan(whole * 6 // 10, iterations=20000)
    totals = graph.replay(smaller.instrs)
    assert floor <= totals["peak_bytes"] == smaller.planned_peak_bytes <= whole * 6 // 10
    assert smaller.n_redone == totals["n_redone"] > 0
    path = g.Path(1e9, 100)
    moved = graph.plan(whole * 6 // 10, host_budget_bytes=1 << 20, to_host=path, from_host=path, iterations=20000)
    assert moved.planned_peak_bytes <= whole * 6 // 10
    fault = raises(lade.DoesNotFit, lambda: graph.plan(200, iterations=20000), "smallest")
    assert fault.min_budget_bytes >= floor
    raises(lade.Error, lambda: graph.replay(smaller.instrs[1:]))
    raises(AttributeError, lambda: plan.no_such_field)


def errors_name_their_place():
    graph = g.Graph()
    weight = graph.add_storage("weight", 100, is_given=True)
    fault = raises(lade.Error, lambda: graph.add_op("broken", [weight + 7], []), "broken")
    assert fault.code == -22
    raises(lade.Error, lambda: graph.add_storage("", 100) and graph.add_op("x" * 300, [99], []))
    raises(lade.Error, lambda: g.Graph("/no/such/file.json"), "file.json")


def graphs_are_saved():
    with tempfile.TemporaryDirectory(prefix="lade-graph-") as scratch:
        path = os.path.join(scratch, "step.json")
        graph = chain()
        graph.save(path)
        again = g.Graph(path)
        assert again.bounds() == graph.bounds() and again.n_storages == graph.n_storages


def the_library_is_named_when_absent():
    env = {**os.environ, "LADE_LIBRARY": "/no/such/liblade.so"}
    done = subprocess.run([sys.executable, "-c", "import lade; lade.Graph()"], capture_output=True, text=True,
                          env={**env, "PYTHONPATH": os.path.join(ROOT, "python")}, check=False)
    assert done.returncode == 1 and "/no/such/liblade.so" in done.stderr.splitlines()[-1], done.stderr
    done = subprocess.run([sys.executable, "-c", "import lade, sys; assert 'torch' not in sys.modules"],
                          env={**env, "PYTHONPATH": os.path.join(ROOT, "python")}, check=False)
    assert done.returncode == 0


for check in (sizes_are_the_commands, plans_fit_and_replay, errors_name_their_place, graphs_are_saved,
              the_library_is_named_when_absent):
    check()
