#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""lade.torch on a CUDA device: planned beside measured bytes, digests beside uncaptured steps, times beside eager.

Usage: cuda_check.py [--device cuda|cpu] [--seconds N] [--small] [CASE ...]
Cases: bf16 and fp32 (each budget), large (GPT-2 124M), limit, streams, saved, adamw, store, variants (of BF16), audit; all
by default, in the order given.
liblade is the file in LADE_LIBRARY, or the one that the package finds. Each case prints one line of JSON and, if it
fails, its traceback; a table follows. host_s is the time until a step's call returns, before its device is done; python
has the functions of most time of their own in one call. A case that would begin after the time limit is left out and
said so. Exits 1 if a case failed, or if bits or bytes differ. --device cpu runs the same cases over a small model, to
check this script.
"""
import argparse
import contextlib
import cProfile
import json
import os
import pstats
import statistics
import subprocess
import sys
import tempfile
import time
import traceback

START = time.perf_counter()
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS is deterministic with it
SCRATCH = tempfile.TemporaryDirectory(prefix="lade-cuda-check-")
os.environ["XDG_CACHE_HOME"] = SCRATCH.name  # plans of earlier runs are not taken

from gpt2_step import ids_of, model_of, trainer

import torch
import transformers

import lade.torch
from lade.torch import audit
from lade.torch.pricing import meter

SEED, STEPS = 5, 3
SIZES = {"small": (2, 64, 256, 4, 32), "middle": (6, 512, 8192, 8, 256), "large": (12, 768, 50257, 4, 512)}
FIELDS = ("case", "planned", "measured", "torch_peak", "is_equal", "is_same", "ratio", "redone", "moved", "capture_s",
          "price_s", "plan_s", "predicted_s", "host_s", "step_s", "error")


class Check:
    """The cases of one device, and their lines."""

    def __init__(self, options):
        self.device, self.options, self.lines = torch.device(options.device), options, []
        if self.device.type == "cuda":
            self.device = torch.device("cuda", torch.cuda.current_device())
        self.size = "small" if options.small or options.device == "cpu" else "middle"
        self.eager_of, self.dropout = {}, 0.1
        self.n_timed = 10 if self.device.type == "cuda" else 3

    # models

    def made(self, size, is_bf16, make=None):
        """Return (model, optimizer, train, ids)."""
        layers, width, vocab, rows, columns = SIZES[size]
        torch.manual_seed(SEED)
        model = model_of(layers, width, vocab, columns, self.dropout, self.device)
        optimizer = (make or (lambda p: torch.optim.AdamW(p, lr=1e-3, fused=True)))(model.parameters())
        ids = ids_of(rows, columns, vocab, self.device)
        torch.manual_seed(SEED + 1)
        return model, optimizer, trainer(model, optimizer, is_bf16), ids

    def eager(self, size, is_bf16, make=None, key=None):
        """Return (losses, digest, weights, train, ids) of uncaptured steps, kept for the next case."""
        key = (size, is_bf16, key)
        if key not in self.eager_of:
            model, optimizer, train, ids = self.made(size, is_bf16, make)
            losses = [train(ids).item() for _ in range(STEPS)]
            digest = lade.torch.digest(model, optimizer)
            weights = {name: t.detach().cpu() for name, t in model.state_dict().items()}
            self.eager_of[key] = losses, digest, weights, train, ids
        return self.eager_of[key]

    def wait(self):
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def seconds(self, call, ids):
        """Return the time of a call with its device's work, and the time until it returned."""
        self.wait()
        start = time.perf_counter()
        call(ids)
        returned = time.perf_counter()
        self.wait()
        return time.perf_counter() - start, returned - start

    def python(self, step, ids, n=12):
        """Return the functions of most time of their own in one call: "file:function calls milliseconds"."""
        profile = cProfile.Profile()
        self.wait()
        profile.runcall(step, ids)
        found = sorted(pstats.Stats(profile).stats.items(), key=lambda item: -item[1][2])[:n]
        return [f"{os.path.basename(file)}:{name} {n_calls} {own * 1e3:.1f}"
                for (file, _, name), (_, n_calls, own, _, _) in found]

    # cases

    def reproducible(self, size, is_bf16):
        """Compare two uncaptured runs from one seed. If they differ, no other digest can be compared."""
        first, digest, *_ = self.eager(size, is_bf16)
        del self.eager_of[size, is_bf16, None]
        again, other, *_ = self.eager(size, is_bf16)
        return dict(is_same=digest == other and first == again, digest=digest)

    def step(self, size, is_bf16, budget, make=None, key=None, n_timed=10, **options):
        losses, digest, weights, eager, ids = self.eager(size, is_bf16, make, key)
        model, optimizer, train, _ = self.made(size, is_bf16, make)
        options.setdefault("audit", False)
        step = lade.torch.step(train, model, optimizer, budget, **options)
        found = [step(ids).item() for _ in range(STEPS - 1)]
        peak = lade.torch.measure(step, ids)["peak_bytes"]
        same = found == losses[:-1] and lade.torch.digest(model, optimizer) == digest
        report = step.report()
        line = dict(planned=report["planned_peak_bytes"], measured=peak, is_equal=peak == report["planned_peak_bytes"],
                    is_same=same, unconstrained=report["unconstrained_peak_bytes"], floor=report["floor_bytes"],
                    redone=report["n_redone"], moved=report["moved_bytes"], n_ops=report["n_ops"],
                    capture_s=report["capture_seconds"], price_s=report["price_seconds"],
                    plan_s=report["plan_seconds"], n_moves=report["n_moves"],
                    paths={tier: [round(path.bytes_per_s / 1e9, 1) for path in paths]
                           for tier, paths in step.last.planned.limits.paths.items()}, predicted_s=report["predicted_step_seconds"], note=report["note"])
        if not same:
            line["differs"] = dict(self.difference(model, weights), ops=ops_apart(step, ids))
        if not line["is_equal"]:
            line["at"] = where_of_peak(step, ids)
        line["torch_peak"] = self.torch_peak(step, ids)
        pairs = [(self.seconds(eager, ids), self.seconds(step, ids)) for _ in range(n_timed)]
        for name, i, j in (("eager_s", 0, 0), ("eager_host_s", 0, 1), ("step_s", 1, 0), ("host_s", 1, 1)):
            line[name] = statistics.median(pair[i][j] for pair in pairs)
        line["ratio"] = statistics.median(b / a for (a, _), (b, _) in pairs)
        if n_timed > 2:
            line["python"] = self.python(step, ids)
        del self.eager_of[size, is_bf16, key]  # it has trained on
        return line

    def variant(self, size, dropout, backend):
        """Run a step in BF16 with another dropout or attention. The variants without eager's bits point to the kernels that differ."""
        self.dropout = dropout
        try:
            with torch.nn.attention.sdpa_kernel(backend) if backend is not None else contextlib.nullcontext():
                return self.step(size, True, "100%", key=("variant", dropout, str(backend)), n_timed=1)
        finally:
            self.dropout = 0.1

    def streams(self):
        """Compare the bits of steps on another stream, with a host tier, with eager's; a step in a CUDA graph is refused."""
        if self.device.type != "cuda":
            return dict(skipped_on="cpu")
        losses, digest, *_ = self.eager(self.size, True)
        model, optimizer, train, ids = self.made(self.size, True)
        step = lade.torch.step(train, model, optimizer, "40%", host="4GiB", audit=False)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            found = [step(ids).item() for _ in range(STEPS)]
        torch.cuda.current_stream().wait_stream(side)
        line = dict(is_same=found == losses and lade.torch.digest(model, optimizer) == digest)
        try:
            with torch.cuda.graph(torch.cuda.CUDAGraph()):
                step(ids)
            line["error"] = "a step inside of a CUDA graph must be refused"
        except lade.Error as fault:
            line["refused"] = str(fault)
        step(ids)  # it can be called after the refusal
        return line

    def torch_peak(self, step, ids):
        """Return the peak of torch's own statistics in a step, without tensors of others."""
        if self.device.type != "cuda":
            return None
        self.wait()
        before = torch.cuda.memory_allocated(self.device)
        torch.cuda.reset_peak_memory_stats(self.device)
        step(ids)
        self.wait()
        return torch.cuda.max_memory_allocated(self.device) - before + step.measured.get("given_bytes", 0)

    def difference(self, model, weights):
        """Return the first weight that differs, and how far weights differ at most."""
        far = {name: (t.detach().cpu().double() - weights[name].double()).abs().max().item()
               for name, t in model.state_dict().items() if not torch.equal(t.detach().cpu(), weights[name])}
        return dict(n=len(far), first=next(iter(far), None), max=max(far.values(), default=0.0))

    def adamw(self, state, is_bf16):
        """Compare the bits of lade.torch.AdamW on the host, on a store and in a planned step; give its distance from torch's."""
        runs = {}
        for where in ("host", "store:" + SCRATCH.name):
            make = lambda p: lade.torch.AdamW(p, lr=1e-3, state=state, where=where)
            runs[where] = self.eager(self.size, is_bf16, make, (state, where))
        (_, host, weights, *_), (_, store, *_) = runs.values()
        torch_weights = self.eager(self.size, is_bf16)[2]
        far = max((weights[n].double() - torch_weights[n].double()).abs().max().item() for n in weights)
        make = lambda p: lade.torch.AdamW(p, lr=1e-3, state=state, where="host")
        line = self.step(self.size, is_bf16, "60%", make, (state, "host"), n_timed=3)
        return dict(line, is_same=line["is_same"] and host == store, is_same_on_store=host == store, from_torch=far)

    def saved(self, where):
        """Compare the bits of steps within saved() with plain eager steps, and its live bytes with the limit."""
        losses, digest, _, _, _ = self.eager(self.size, False)
        model, optimizer, train, ids = self.made(self.size, False)
        layers, width, vocab, rows, columns = SIZES[self.size]
        limit = 4 * rows * columns * 4 * max(vocab, 4 * width)  # four of the largest saved tensors
        held = lade.torch.saved(model, live=limit, **where)
        found = []
        for _ in range(STEPS):
            with held:
                found.append(train(ids).item())
        line = dict(is_same=found == losses and lade.torch.digest(model, optimizer) == digest, limit=limit,
                    live_peak=held.peak_bytes, moved=held.moved_bytes, is_bounded=held.peak_bytes <= limit)
        held.close()
        return line

    def limit(self):
        """Run the limit over CUDAPluggableAllocator in a process of its own, because it must come before any CUDA tensor."""
        if self.device.type != "cuda":
            try:
                lade.torch.limit("2GiB")
            except lade.Error as fault:
                return dict(refused=str(fault))
            raise AssertionError("a limit without a CUDA device must be refused")
        done = subprocess.run([sys.executable, os.path.abspath(__file__), "--limit-alone"], capture_output=True, text=True,
                              timeout=60)
        if done.returncode:
            raise RuntimeError(done.stdout + done.stderr)
        return json.loads(done.stdout.splitlines()[-1])

    # running

    def run(self, name, case, *args, **kwargs):
        """Run a case; print its line, and its traceback if it fails."""
        left = self.options.seconds - (time.perf_counter() - START)
        if left < 0:
            line = dict(case=name, skipped="no time is left")
        else:
            began = time.perf_counter()
            try:
                line = dict(case=name, **case(*args, **kwargs))
            except Exception as fault:
                traceback.print_exc(file=sys.stdout)
                line = dict(case=name, error=f"{type(fault).__name__}: {' '.join(str(fault).split())[:300]}")
            line["case_s"] = time.perf_counter() - began
        self.lines.append(line)
        print(json.dumps({key: round(value, 5) if isinstance(value, float) else value for key, value in line.items()}),
              flush=True)

    def table(self):
        print("\n| " + " | ".join(FIELDS) + " |\n|" + "---|" * len(FIELDS))
        for line in self.lines:
            print("| " + " | ".join(_cell(line.get(field)) for field in FIELDS) + " |")

    def is_good(self):
        return all(line.get("is_same", True) and line.get("is_equal", True) and line.get("is_bounded", True)
                   and "error" not in line and "skipped" not in line for line in self.lines)


def _cell(value):
    return "" if value is None else f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else \
        f"{value:.4f}" if isinstance(value, float) else str(value)


def ops_apart(step, ids):
    """Return the ops of one more step that first have other bits than those of an uncaptured step from the same state."""
    step.sync()
    check = audit.Audit(step, step.last)
    return check.ops_apart(step.last, audit.Snapshot(step, step.last, [ids]), (ids,), {}, [ids])


def where_of_peak(step, ids):
    """Return the line of the generated code at which the measured peak stands, with its allocations and frees."""
    planned, runtime, source = step.last.planned, step.last.runtime, step.last.planned.source
    lines = source.splitlines()
    body = [f"  R.cut({i})\n{line}" for i, line in enumerate(lines) if i]
    scope = dict(planned.function.__globals__)
    exec("\n".join([lines[0], *body]), scope)
    held, planned.function = planned.function, scope["step"]
    order = []

    def cut(i):
        order.append(i)
        mark = torch.empty(meter.MARK_BYTES, dtype=torch.uint8, device=step.device)
        del mark
    runtime.cut = cut
    events = meter.events_of(step.device)
    try:
        step._call((ids,), {}, events)
    finally:
        planned.function = held
        del runtime.cut
    live, peak, at, number, own = step.measured["given_bytes"], 0, None, -1, {}
    for size in events.sizes:
        if abs(size) == meter.MARK_BYTES:
            number += size > 0
            continue
        own.setdefault(number, []).append(size)
        live += size
        if live > peak:
            peak, at = live, number
    return dict(bytes=peak, line=lines[order[at]].strip()[:300] if at is not None and at >= 0 else "before the first op",
                events=own.get(at))


def limit_alone():
    """Train eager steps under a limit; print one line of JSON."""
    held = lade.torch.limit("2GiB")
    options = argparse.Namespace(device="cuda", small=True, seconds=60)
    check = Check(options)
    model, optimizer, train, ids = check.made("middle", False)
    for _ in range(6):
        train(ids)
        held.step()
    torch.cuda.synchronize()
    try:
        torch.empty(4 << 30, dtype=torch.uint8, device="cuda")
        refusal = None
    except RuntimeError as fault:
        refusal = " ".join(str(fault).split())[:300]
    assert refusal, "an allocation of 4 GiB within 2 GiB must be refused"
    stats = held.stats()
    assert stats["reserved_peak_bytes"] <= stats["limit_bytes"] == 2 << 30, stats
    train(ids)
    twin = dict(model.state_dict())
    assert all(torch.isfinite(t).all() for t in twin.values())
    print(json.dumps(dict(refusal=refusal, digest=lade.torch.digest(model, optimizer), **{
        key: stats[key] for key in ("peak_bytes", "reserved_peak_bytes", "n_allocs", "n_served", "n_mismatches")})))


HOST = dict(host="4GiB")


def run_budgets(check, is_bf16):
    name = "bf16" if is_bf16 else "fp32"
    check.run(f"{name} uncaptured twice", check.reproducible, check.size, is_bf16)
    for budget, more in (("100%", {}), ("40%", HOST), ("60%", {}), ("min", HOST)):
        check.run(f"{name} {budget}{' host' if more else ''}", check.step, check.size, is_bf16, budget,
                  n_timed=check.n_timed, **more)


def run_variants(check):
    for dropout in (0.1, 0.0) if check.device.type == "cuda" else ():
        for backend in (torch.nn.attention.SDPBackend.MATH, torch.nn.attention.SDPBackend.FLASH_ATTENTION):
            check.run(f"bf16 100% dropout {dropout} {backend.name}", check.variant, check.size, dropout, backend)


def run_audit(check):
    check.run("audit, torch's foreach AdamW", check.step, check.size, True, "60%",
              lambda p: torch.optim.AdamW(p, lr=1e-3), "foreach", n_timed=check.n_timed, audit=True, **HOST)


def run_adamw(check):
    for state in ("fp32", "8bit"):
        check.run(f"adamw {state}", check.adamw, state, False)


def run_saved(check):
    check.run("saved host", check.saved, HOST)
    check.run("saved store", check.saved, dict(store=SCRATCH.name, store_bytes="256MiB"))


def run_store(check):
    check.run("fp32 min store", check.step, check.size, False, "min", n_timed=2, store=SCRATCH.name, store_budget="256MiB")


def run_large(check):
    cases = (True, "100%", {}), (True, "40%", HOST), (False, "100%", {}), (True, "60%", {})
    for is_bf16, budget, more in cases if check.device.type == "cuda" and not check.options.small else ():
        check.run(f"124M {'bf16' if is_bf16 else 'fp32'} {budget}{' host' if more else ''}", check.step, "large", is_bf16,
                  budget, **more)


CASES = {"bf16": lambda check: run_budgets(check, True), "large": run_large,
         "limit": lambda check: check.run("limit", check.limit), "streams": lambda check: check.run("streams", check.streams),
         "saved": run_saved, "adamw": run_adamw, "store": run_store, "fp32": lambda check: run_budgets(check, False),
         "variants": run_variants, "audit": run_audit}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="CASE")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--seconds", type=float, default=90, help="no case begins later; default 90")
    parser.add_argument("--small", action="store_true", help="a model of 2 layers")
    parser.add_argument("--limit-alone", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    unknown = set(options.cases) - set(CASES)
    if unknown:
        parser.error(f"no case is called {sorted(unknown)[0]}; expected {', '.join(CASES)}")
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("this PyTorch finds no CUDA device; --device cpu checks the script")
    if options.limit_alone:
        limit_alone()
        return 0
    if options.device == "cpu":
        torch.set_num_threads(1)
        lade.torch.train_step.PLAN_SECONDS = 0.4, 0.4  # small graphs
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False
    check = Check(options)
    is_cuda = check.device.type == "cuda"
    print(json.dumps(dict(torch=torch.__version__, cuda=torch.version.cuda, transformers=transformers.__version__,
                          lade=lade.version(), device=torch.cuda.get_device_name() if is_cuda else "cpu")), flush=True)
    for name in options.cases or CASES:
        CASES[name](check)
    check.table()
    return 0 if check.is_good() else 1


if __name__ == "__main__":
    sys.exit(main())
