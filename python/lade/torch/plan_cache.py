# SPDX-License-Identifier: Apache-2.0
"""Plans on disk: a later run of the same step, versions, machine and budget takes the list that an earlier one found.

The key covers everything that the plan depends on but the measured times, which differ a little in each run. A list
from disk is replayed by the library against the graph of this run, so a damaged or foreign file is never believed.
"""
import contextlib
import hashlib
import json
import os
import platform
import tempfile

import torch

from ..errors import Error
from ..graph import Plan
from ..library import version

_KEPT_MAX = 200  # plans; the oldest go first


def folder():
    """Return the folder of plans, below XDG_CACHE_HOME."""
    return os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "lade", "torch-plans")


def key_of(values, limits, budget, device):
    """Return the key of a plan."""
    total = hashlib.sha256()
    parts = [1, version(), torch.__version__, platform.machine(), platform.node(), torch.get_num_threads(), budget,
             limits.host_bytes if limits.host_exact else "auto", bool(limits.store_bytes), limits.ways,
             torch.cuda.get_device_name(device) if device.type == "cuda" else device.type]
    parts += [(s["bytes"], s["is_given"], s["tier"]) for s in values.storages]
    parts += [(op.name, op.reads, op.writes, op.updates, op.scratch_bytes, op.is_once) for op in values.ops]
    for part in parts:
        total.update(repr(part).encode())
    return total.hexdigest()[:32]


def load(key, graph, budget):
    """Return the plan of @key that fits @budget, or None."""
    try:
        with open(os.path.join(folder(), key + ".json"), encoding="ascii") as file:
            saved = json.load(file)
        instrs = [tuple(map(int, instr)) for instr in saved["instrs"]]
        totals = graph.replay(instrs)
        if totals["peak_bytes"] != saved["info"]["planned_peak_bytes"] or budget and totals["peak_bytes"] > budget:
            return None
        return Plan(saved["info"], instrs)
    except (OSError, ValueError, KeyError, TypeError, Error):
        return None


def save(key, plan):
    """Keep a plan; a folder that cannot be written keeps none."""
    with contextlib.suppress(OSError):
        os.makedirs(folder(), exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=folder(), delete=False, encoding="ascii") as file:
            json.dump({"info": plan.info, "instrs": plan.instrs}, file)
        os.replace(file.name, os.path.join(folder(), key + ".json"))
        found = sorted((entry.stat().st_mtime, entry.path) for entry in os.scandir(folder()))
        for _, path in found[:-_KEPT_MAX]:
            os.unlink(path)
