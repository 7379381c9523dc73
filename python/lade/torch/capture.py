# SPDX-License-Identifier: Apache-2.0
"""python -m lade.torch.capture MODULE:FUNCTION -o step.json: the graph of a step, for `lade plan --graph`.

The function returns (train, model, optimizer, batch): the step, and the arguments of one call as a tuple, or as a dict
of keywords. It runs on fake tensors, which have shapes and no memory, so a model of any size is captured on any machine.
Times are estimated from arithmetic and bytes; scratch of ops counts as 0.
"""
import argparse
import importlib
import os
import sys
import time

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from ..errors import Error
from ..size import size_bytes
from .pricing.estimate import Estimator
from .planned import graph_of, names_of
from .tracing.trace import trace
from .values import Values, updates_early


def capture_graph(build, estimator):
    """Return (graph, values, seconds) of the step that @build describes."""
    start = time.perf_counter()
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    with mode:
        train, model, optimizer, batch = build()
    args, kwargs = ((), batch) if isinstance(batch, dict) else (tuple(batch), {})
    captured = trace(train, model, optimizer, args, kwargs)
    values = Values(captured.gm, len(captured.inputs))
    updates_early(values)
    estimator.price(values, torch.device("cpu"))
    names = names_of(values, captured)
    return graph_of(values, lambda i: names[i]), values, time.perf_counter() - start


def _function(name):
    module, _, function = name.partition(":")
    if not function:
        raise Error(f"{name!r} is no MODULE:FUNCTION")
    sys.path.insert(0, os.getcwd())
    try:
        return getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as fault:
        raise Error(f"{name}: {fault}") from fault


def main(argv=None):
    parser = argparse.ArgumentParser(prog="python -m lade.torch.capture", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("function", metavar="MODULE:FUNCTION")
    parser.add_argument("-o", "--output", required=True, metavar="FILE", help="the graph, as JSON")
    parser.add_argument("--flops-per-s", type=float, default=100e12, help="of the device; default 1e14")
    parser.add_argument("--bytes-per-s", default="1TB", help="of its memory; default 1TB")
    options = parser.parse_args(argv)
    try:
        estimator = Estimator(options.flops_per_s, size_bytes(options.bytes_per_s))
        graph, values, seconds = capture_graph(_function(options.function), estimator)
        graph.save(options.output)
    except (Error, ValueError) as fault:
        print(f"capture: {fault}", file=sys.stderr)
        return 1
    whole, floor = graph.bounds()
    print(f"{options.output}: {len(values.ops)} ops, {len(values.storages)} storages, {whole} bytes unconstrained, "
          f"at least {floor}, captured in {seconds:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
