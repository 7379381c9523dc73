#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The package without PyTorch: sizes, graphs, plans, replays, errors. Usage: bindings.py LIBLADE"""
import array
import errno
import gc
import os
import subprocess
import sys
import tempfile
import threading
from unittest import mock

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
    raises(ValueError, lambda: lade.budget_bytes("nonsense", 1000), "'nonsense' is no budget", '"60%"', '"min"')


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


def bytes_wait_in_a_store():
    """Any buffer is put and got, whole or in parts, at once or later; each failure has the library's line."""
    scratch = tempfile.TemporaryDirectory(prefix="lade-store,", dir=os.getcwd())  # the comma is the name's
    data = bytes(range(256)) * 1024
    numbers = array.array("d", range(5000))
    with lade.Store(scratch.name, "4MiB") as store:
        store.put("a", data)
        store.put(b"b", numbers)
        assert store.get("a") == data and store.names() == {"a": len(data), "b": 40000} and store.find("c") is None
        again = array.array("d", bytes(40000))
        assert store.get("b", again) is again and again == numbers
        whole = bytearray(len(data))
        parts = [store.submit_put("c", memoryview(data)[at:at + 65536], offset=at, tensor_bytes=len(data))
                 for at in range(0, len(data), 65536)]
        for part in parts:
            part.wait()
            part.wait()
            assert part.is_done()
        last = store.submit_get("c", memoryview(whole)[131072:], offset=131072, tensor_bytes=len(data))
        raises(BufferError, lambda: whole.extend(b"x"))  # the store borrows it
        last.wait()
        whole.extend(b"")
        assert not any(whole[:131072]) and whole[131072:] == data[131072:]
        raises(TypeError, lambda: store.put("d", [1, 2]), "bytes-like")
        raises((TypeError, BufferError), lambda: store.get("a", data))  # bytes are not written
        raises(BufferError, lambda: store.put("d", memoryview(data)[::2]))
        fault = raises(lade.Error, lambda: store.get("nothing"), "nothing")
        assert fault.code == -errno.ENOENT
        assert raises(lade.Error, lambda: store.get("a", bytearray(5)), "a").code == -errno.EINVAL
        assert raises(lade.Error, lambda: store.put("big", bytearray(8 << 20)), "budget").code == -errno.EOVERFLOW
        assert raises(lade.Error, lambda: store.publish()).code == -errno.EINVAL
        store.put(b"\xff", b"x")
        assert max(store.names()) == "\udcff" and store.get(max(store.names())) == b"x"
        assert raises(lade.Error, lambda: store.put("a\0b", b"x"), "zero byte").code == -errno.EINVAL
        store.drop(b"\xff")
        store.drop("b")
        assert raises(lade.Error, lambda: store.drop("b"), "b").code == -errno.ENOENT
        info = store.info()
        assert info["n_tensors"] == 2 and info["budget_bytes"] == 4 << 20 and not info["is_durable"], info
        assert isinstance(store.note(), str) and store.notices() == []
        begun = store.submit_put("e", data)
    raises(lade.Error, begun.wait, "closed")
    raises(lade.Error, lambda: store.find("a"), "closed")
    raises(lade.Error, lambda: lade.Store("/no/such/folder", "1MiB"), "/no/such/folder")
    raises(ValueError, lambda: lade.Store(scratch.name, "5 apples"), "size")


def requests_end_once_for_all_threads():
    """While one thread waits, is_done() is false in others, and their wait() returns with the first one's end."""
    with tempfile.TemporaryDirectory(prefix="lade-store-", dir=os.getcwd()) as scratch, lade.Store(scratch, "1MiB") as store:
        for code in (0, -errno.EIO):
            request, call, begun, go_on, ends = store.submit_put("a", b"x" * 100), store._call, threading.Event(), \
                threading.Event(), []

            def slow(name, *args):
                done = call(name, *args)
                if name != "wait":
                    return done
                begun.set()
                go_on.wait(10)
                return code

            def waits():
                try:
                    request.wait()
                    ends.append(0)
                except lade.Error as fault:
                    ends.append(fault.code)
            with mock.patch.object(store, "_call", slow):
                threads = [threading.Thread(target=waits) for _ in range(3)]
                threads[0].start()
                assert begun.wait(10)
                threads[1].start()
                threads[2].start()
                assert not request.is_done() and not ends
                threads[2].join(0.05)
                assert threads[1].is_alive() and threads[2].is_alive(), "a thread went on before the request ended"
                go_on.set()
                for thread in threads:
                    thread.join(10)
            assert ends == [code] * 3 and request.is_done(), ends
            request.wait()


def a_dropped_store_ends_its_requests():
    """A request without wait() is part of a cycle with its store; both go, and its data is whole and free again."""
    with tempfile.TemporaryDirectory(dir=os.getcwd()) as scratch:
        data, out = bytes(range(256)) * 1024, bytearray(256 * 1024)
        store = lade.Store(scratch, "1MiB")
        store.put("a", data)
        store.submit_get("a", out)
        del store
        gc.collect()
        assert out == data
        out.extend(b"x")


def published_bytes_outlive_the_store():
    with tempfile.TemporaryDirectory(prefix="lade-durable-", dir=os.getcwd()) as scratch:
        with lade.Store(scratch, "2MiB", is_durable=True) as store:
            store.put("kept", b"1" * 70000)
            store.publish()
            store.put("kept", b"2" * 70000)
            store.put("lost", b"3")
            assert raises(lade.Error, lambda: lade.Store(scratch, is_durable=True)).code == -errno.EBUSY
        with lade.Store([scratch], is_durable=True) as store:
            assert store.names() == {"kept": 70000} and store.get("kept") == b"1" * 70000
            assert store.info()["n_published"] == 1
        path = os.path.join(scratch, "lade-tensors.data")
        with open(path, "r+b") as file:
            at = file.read().index(b"1" * 4096)
            file.seek(at)
            file.write(b"0")
        with lade.Store(scratch, is_durable=True) as store:
            assert raises(lade.Error, lambda: store.get("kept"), "kept").code == -errno.EBADMSG


for check in (sizes_are_the_commands, plans_fit_and_replay, errors_name_their_place, graphs_are_saved,
              the_library_is_named_when_absent, bytes_wait_in_a_store, requests_end_once_for_all_threads,
              a_dropped_store_ends_its_requests, published_bytes_outlive_the_store):
    check()
