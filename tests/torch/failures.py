#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Interrupts and failures of tiers: before the first update nothing is lost, behind it training ends and says so.

Usage: failures.py LIBLADE
"""
import contextlib
import gc
import os
import signal
import tempfile
import threading
import weakref
from concurrent import futures
from unittest import mock

from fixture import SEED, adamw, batch, lade, made, nn, plain, refused, torch

from lade.torch import optimizers, plan_cache, train_step
from lade.torch.planned import Planned
from lade.torch.pricing import prices
from lade.torch.running import parked, runtime, tiers, worker

SMALL = batch(4, 8)
STORED = dict(audit=False, ways=("store",), store_budget="64MiB")


def interrupts_wait_for_the_end():
    model, optimizer, step = made()
    step(*batch())
    held = step.last.planned.function

    def interrupting(runtime, *tensors):
        os.kill(os.getpid(), signal.SIGINT)
        return held(runtime, *tensors)
    step.last.planned.function = interrupting
    before = lade.torch.digest(model, optimizer)
    with contextlib.suppress(KeyboardInterrupt):
        step(*batch())
        raise AssertionError("the interrupt was lost")
    assert step.broken is None and lade.torch.digest(model, optimizer) != before


def failures_behind_an_update_end_training():
    _, _, step = made()
    step(*batch())
    runtime = step.last.runtime
    held, runtime.update = runtime.update, None

    def failing(index, grad, found):
        if index == 1:
            raise OSError("the drive is gone")
        held(index, grad, found)
    runtime.update = failing
    refused(OSError, lambda: step(*batch()), "the drive is gone")
    refused(lade.Error, lambda: step(*batch()), "the drive is gone", "between two steps")


def drives_fail():
    """A failure before the first write is undone. A failure behind it ends training, and says so."""
    model, optimizer, step = made("min", audit=False, host="64MiB", ways=("host",))
    twin, other, _ = made()
    for own, call in ((optimizer, step), (other, plain(twin, other))):
        torch.manual_seed(8)
        call(*batch())
    tier, before, seeds = step.last.runtime.host, lade.torch.digest(model, optimizer), torch.get_rng_state()

    def failing(held, n_good):
        def call(*args):
            nonlocal n_good
            n_good -= 1
            if n_good < 0:
                raise lade.Error("the drive is gone")
            held(*args)
        return call
    with mock.patch.object(tier, "put", failing(tier.put, 3)):
        refused(lade.Error, lambda: step(*batch()), "the drive is gone")
    step.sync()
    assert not step.broken and lade.torch.digest(model, optimizer) == before
    torch.set_rng_state(seeds)
    step(*batch())
    torch.set_rng_state(seeds)
    plain(twin, other)(*batch())
    assert lade.torch.digest(model, optimizer) == lade.torch.digest(twin, other)
    n_gets = sum(kind == lade.graph.GET for kind, _, _ in step.last.planned.plan.instrs)
    with mock.patch.object(tier, "get", failing(tier.get, n_gets - 1)):
        refused(lade.Error, lambda: step(*batch()), "the drive is gone")
    refused(lade.Error, lambda: step(*batch()), "the drive is gone", "between two steps")


def finite(model, optimizer):
    """Return a step that updates only if its loss is finite."""
    def train(x):
        loss = model(x).square().mean()
        if torch.isfinite(loss):
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        return loss.detach()
    return train


def tiers_that_fail_behind_a_branch_are_named():
    """A step begins anew by another branch, and its tier does not return the bytes: the fault is the tier's."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 8))
    optimizer = adamw(model)
    step = lade.torch.step(finite(model, optimizer), model, optimizer, "min", host="64MiB", audit=False)
    data = torch.ones(16, 8)
    step(data)

    is_asked, own = [], step.last.runtime
    held, branch = own.host.get, own.branch

    def asks(*args):
        is_asked.append(True)
        branch(*args)

    def fails(*args):
        if is_asked:
            raise lade.Error("the drive is gone")
        held(*args)
    with mock.patch.object(own, "branch", asks), mock.patch.object(own.host, "get", fails):
        refused(lade.Error, lambda: step(data * float("nan")), "cannot be fetched", "the drive is gone")
    assert "the drive is gone" in step.broken and "branch" not in step.broken, step.broken


def interrupts_of_a_step_that_begins_anew_are_delivered():
    """Ctrl-C before a branch that has no plan yet ends the call; model and generators are as before it."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 8))
    optimizer = adamw(model)
    step = lade.torch.step(finite(model, optimizer), model, optimizer, "100%", audit=False)
    data = torch.ones(16, 8)
    step(data)
    before, seeds = lade.torch.digest(model, optimizer), torch.get_rng_state()
    own = step.last.runtime
    branch = own.branch

    def interrupted(*args):
        os.kill(os.getpid(), signal.SIGINT)
        branch(*args)
    with mock.patch.object(own, "branch", interrupted):
        refused(KeyboardInterrupt, lambda: step(data * float("nan")), "")
    assert step.broken is None and lade.torch.digest(model, optimizer) == before
    assert torch.equal(torch.get_rng_state(), seeds)
    assert step(data * float("nan")).isnan()


def living_bytes_that_do_not_return_are_an_error():
    _, _, step = made("min", audit=False, host="64MiB")
    step(*batch())

    def gone(*_args):
        raise lade.Error("the drive is gone")
    with mock.patch.object(step.last.runtime.host, "get", gone):
        refused(lade.Error, step.sync, "cannot be fetched")
    step.sync()


def plans_share_the_host_budget():
    """The host memory of a plan is given back while a plan of another shape is at work."""
    _, _, step = made("min", audit=False, host="64MiB")
    step(*batch(8))
    first = step.last.runtime.host
    assert any(first.map[:first.n_bytes])
    step(*batch(5))
    assert not any(first.map[:first.n_bytes])
    step(*batch(8))


def steps_are_collected_while_another_submits_a_copy():
    """The collector may run inside submit(). What it destroys there submits copies of its own, and has eager's bits."""
    model, optimizer, old = made("min", audit=False, host="64MiB", ways=("host",))
    twin, other, _ = made()
    for own, call in ((optimizer, old), (other, plain(twin, other))):
        torch.manual_seed(8)
        call(*batch())
    assert old.last.runtime.away
    _, _, step = made("min", audit=False, host="64MiB", ways=("host",))
    step(*batch())
    old.itself = old  # a cycle: the collector alone destroys it
    alive = weakref.ref(old)
    del old, call, own
    held = futures.Future.__init__

    def collecting(future):
        gc.collect()
        held(future)
    with mock.patch.object(futures.Future, "__init__", collecting):
        step(*batch())
    assert alive() is None
    assert lade.torch.digest(model, optimizer) == lade.torch.digest(twin, other)


def steps_are_collected_in_a_thread_of_copies():
    """The collector may run in the thread whose copies a destroyed step waits for."""
    model, optimizer, old = made("min", audit=False, host="64MiB", ways=("host",))
    old(*batch())
    assert old.last.runtime.away
    old.itself, n = old, len(old.last.runtime.away)
    del old
    use = next(use for use, _ in worker._WORKERS)
    worker.submit(use, gc.collect).result(60)
    for thread in threading.enumerate():
        if thread.name == "lade sync":
            thread.join(60)
    assert n and not any(isinstance(p, parked._Parked) for p in model.parameters())
    lade.torch.digest(model, optimizer)


@contextlib.contextmanager
def need_of(n_bytes):
    """Let plans reserve at least @n_bytes of a store: their own needs depend on measured prices."""
    def placed(self, place=Planned._place):
        offsets = place(self)
        self.store_need = max(self.store_need, n_bytes)
        return offsets
    with mock.patch.object(Planned, "_place", placed):
        yield


def plans_share_the_store(scratch):
    """The plans of a step take one reservation, as large as the largest need, and have eager's bits in any order."""
    model, optimizer, step = made("min", layers=1, store=scratch, **STORED)
    twin, other, _ = made(layers=1)
    needs = []
    for rows in (4, 8, 4, 6):
        for call in (step, plain(twin, other)):
            torch.manual_seed(SEED + rows)
            with need_of(16 << 20 if rows == 8 else 0):
                call(*batch(rows, 8))
        needs.append(step.last.planned.store_need)
        assert step.store.n_bytes == step.store.store.info()["budget_bytes"] == max(needs), needs
        assert step.store.store.info()["used_bytes"] <= needs[-1], "bytes of another plan wait"
    assert lade.torch.digest(model, optimizer) == lade.torch.digest(twin, other)
    assert needs[1] == 16 << 20 > max(needs[0], *needs[2:]), needs
    before = lade.torch.digest(model, optimizer)
    with mock.patch.object(tiers, "Store", no_space):
        with need_of(32 << 20):
            refused(lade.Error, lambda: step.prepare(*batch(64, 32)), "no space")
        refused(lade.Error, lambda: step(*SMALL), "no space")
    assert lade.torch.digest(model, optimizer) == before
    for call in (step, plain(twin, other)):
        torch.manual_seed(SEED)
        call(*SMALL)
    assert lade.torch.digest(model, optimizer) == lade.torch.digest(twin, other) and not step.broken


def interrupts_of_a_plan_change_nothing():
    """Ctrl-C in a capture, a price, a search, and in the creation of state: the next call works."""
    def interrupt(*_args, **_kwargs):
        raise KeyboardInterrupt

    def on_its_way(*args, **kwargs):
        os.kill(os.getpid(), signal.SIGINT)
        return held(*args, **kwargs)
    model, optimizer, step = made("min", layers=1, audit=False)
    twin, other, _ = made(layers=1)
    torch.manual_seed(SEED)
    before = lade.torch.digest(model, optimizer), torch.get_rng_state().tolist()
    for place, name, how in ((torch.nn.functional, "gelu", interrupt), (prices.Pricer, "_once", interrupt),
                             (prices.Pricer, "_once", on_its_way), (prices.Pricer, "_read", interrupt),
                             (lade.Graph, "plan", interrupt), (lade.Graph, "plan", on_its_way),
                             (plan_cache, "save", interrupt), (optimizers, "_init_lazily", interrupt)):
        held = getattr(place, name)
        with mock.patch.object(place, name, how), contextlib.suppress(KeyboardInterrupt):
            step.prepare(*SMALL)
            raise AssertionError(f"the interrupt in {name} was lost")
        assert (lade.torch.digest(model, optimizer), torch.get_rng_state().tolist()) == before, name
        assert not step.ready and not optimizer.state and "step" not in vars(optimizer), name
    held = optimizers._init_lazily
    with mock.patch.object(optimizers, "_init_lazily", on_its_way), contextlib.suppress(KeyboardInterrupt):
        step.prepare(*SMALL)
        raise AssertionError("the interrupt was lost")
    assert all(len(state) == 3 for state in optimizer.state.values()), "no state exists in part"
    for call in (step, plain(twin, other)):
        torch.manual_seed(SEED)
        call(*SMALL)
    assert lade.torch.digest(model, optimizer) == lade.torch.digest(twin, other)


def stores_fail_in_a_step(scratch):
    """A store that becomes full or read-only at any write of a step."""
    model, optimizer, step = made("min", layers=1, store=scratch, **STORED)
    twin, other, _ = made(layers=1)
    eager = plain(twin, other)
    for call in (step, eager):
        torch.manual_seed(SEED)
        call(*SMALL)
    put, n_undone, is_broken = step.store.put, 0, False
    n_puts = sum(kind == lade.graph.PUT for kind, _, _ in step.last.planned.plan.instrs) + len(step.last.planned.living)
    for n_good in range(0, n_puts, 6):
        left = [n_good]

        def limited(*args):
            left[0] -= 1
            if left[0] < 0:
                raise lade.Error("write: Read-only file system")
            put(*args)
        state = lade.torch.digest(model, optimizer), torch.get_rng_state()
        for call in (step, eager):
            torch.set_rng_state(state[1])
            call(*SMALL)  # parameters and state wait in the store again
        state = lade.torch.digest(twin, other), torch.get_rng_state()
        with mock.patch.object(step.store, "put", limited):
            refused(lade.Error, lambda: step(*SMALL), "Read-only")
        if step.broken:
            is_broken = True
            refused(lade.Error, lambda: step(*SMALL), "Read-only", "between two steps or lacks bytes")
            break
        n_undone += 1
        assert lade.torch.digest(model, optimizer) == state[0], (n_good, "bytes are lost")
        torch.set_rng_state(state[1])
    assert n_undone > 2 and is_broken, (n_undone, is_broken)


def bytes_lost_by_a_drive_are_named(scratch):
    """The store's file ends while parameters and state wait in it."""
    _, _, step = made("min", layers=1, store=scratch, **STORED)
    step(*SMALL)
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if scratch in os.readlink(f"/proc/self/fd/{fd}"):
                os.truncate(f"/proc/self/fd/{fd}", 0)
    refused(lade.Error, lambda: step(*SMALL))
    assert step.broken
    refused(lade.Error, lambda: step(*SMALL), "lacks bytes")


def the_store_is_taken_before_step_0():
    with tempfile.TemporaryDirectory(prefix="lade-taken-", dir=os.getcwd()) as scratch:
        model, optimizer, step = made("min", store=scratch, store_budget="64MiB", ways=("store",))
        before = lade.torch.digest(model, optimizer)
        step.prepare(*batch())
        taken = sum(os.stat(f"/proc/self/fd/{fd}").st_blocks * 512 for fd in os.listdir("/proc/self/fd")
                    if scratch in os.path.realpath(f"/proc/self/fd/{fd}"))
        assert taken >= step.last.planned.store_need > 0, (taken, step.last.planned.store_need)
        model, optimizer, step = made("min", store=scratch, store_budget="64MiB", ways=("store",))
        with mock.patch.object(runtime.tiers, "Store", no_space):
            refused(lade.Error, lambda: step(*batch()), "no space")
        assert lade.torch.digest(model, optimizer) == before


def no_space(*_args):
    raise lade.Error("no space left on the drive")


if __name__ == "__main__":
    train_step.PLAN_SECONDS = 0.3, 0.3
    for case in (interrupts_wait_for_the_end, failures_behind_an_update_end_training, drives_fail,
                 interrupts_of_a_step_that_begins_anew_are_delivered,
                 tiers_that_fail_behind_a_branch_are_named, living_bytes_that_do_not_return_are_an_error,
                 plans_share_the_host_budget, steps_are_collected_while_another_submits_a_copy,
                 steps_are_collected_in_a_thread_of_copies,
                 interrupts_of_a_plan_change_nothing, the_store_is_taken_before_step_0):
        case()
        print(case.__name__, flush=True)
    for case in (plans_share_the_store, stores_fail_in_a_step, bytes_lost_by_a_drive_are_named):
        with tempfile.TemporaryDirectory(prefix="lade-failures-", dir=os.getcwd()) as folder:
            case(folder)
        print(case.__name__, flush=True)
