#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Copies of CUDA steps by the driver's functions (the fake driver's): their order, their events, and the bits of a step.

Usage: copies.py LIBLADE. The fake's libcuda.so.1 is on LD_LIBRARY_PATH, or nothing is tested.
"""
import ctypes
import os
from unittest import mock

from fixture import GPT, adamw, batch, lade, plain, refused, run_eager, SEED, skip, torch

from lade.torch.running import cuda_copies, tiers

CUDA = torch.device("cuda", 0)


def copies_come_back():
    host, tensor = tiers.Host(1 << 16, CUDA), torch.arange(1000.0)
    out = host.begin(64, tensor, 4000, True, 0)
    out.wait()
    assert out.is_done()
    tensor.zero_()
    back = host.begin(64, tensor, 4000, False, 0, [out])
    back.hold(0)
    back.wait()
    assert torch.equal(tensor, torch.arange(1000.0))
    idle = len(host.copies.idle)
    del out, back
    assert len(host.copies.idle) == idle + 2, "events are used again"
    host.rest()
    again = tiers.Host(1 << 16, CUDA)
    assert again.copies is host.copies, "the streams of a device are those of all hosts"


def failures_have_a_name():
    fault = refused(lade.Error, lambda: cuda_copies.Copies(99), "cuDeviceGet failed", "CUDA error")
    assert fault.code < 0


def steps_move_by_the_driver():
    """A step whose values wait on the host has eager's bits. On this device ops run at once, so waits block."""
    torch.manual_seed(0)
    model = GPT(dropout=0.1)
    wanted = run_eager(model, adamw, plain, batch())
    optimizer = adamw(model)
    step = lade.torch.step(plain(model, optimizer), model, optimizer, "min", audit=False, host="64MiB", ways=("host",))
    step.prepare(*batch())
    runtime = step.last.runtime
    runtime.is_cuda, runtime.host = True, tiers.Host(runtime.planned.host_bytes, CUDA)
    n_copies, begin = [], cuda_copies.Copies.begin

    def counted(*args):
        n_copies.append(args)
        return begin(*args)
    torch.manual_seed(SEED)
    with mock.patch.object(cuda_copies.Event, "hold", lambda event, stream: event.wait()), \
            mock.patch.object(cuda_copies.Copies, "begin", counted):
        losses = [float(step(*batch())) for _ in range(3)]
        assert (losses, lade.torch.digest(model, optimizer)) == wanted[:2]
    assert len(n_copies) > 100 and not runtime.reading and not runtime.moving, len(n_copies)


os.environ["CUDA_VISIBLE_DEVICES"] = "0"
try:
    ctypes.CDLL("libcuda.so.1").fake_status
except (OSError, AttributeError):
    skip("the fake driver is not on LD_LIBRARY_PATH")
with mock.patch.object(torch.cuda, "synchronize", lambda device=None: None), \
        mock.patch.object(tiers, "current_stream", lambda device: 0):
    for case in (copies_come_back, failures_have_a_name, steps_move_by_the_driver):
        case()
        print(case.__name__, flush=True)
