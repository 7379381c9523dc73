# SPDX-License-Identifier: Apache-2.0
"""Reports of a plan: bytes by owner and by module at the peak, and which values are computed again or moved."""
from .. import graph as g
from . import optimizers
from .pricing import kernels


def report(planned):
    """Return a plan's side of a report."""
    info, instrs, values = planned.plan.info, planned.plan.instrs, planned.values
    redone, seconds, moved = _redone(planned), 0.0, {}
    for kind, index, _ in instrs:
        if kind == g.REDO:
            seconds += planned.values.ops[index].ns / 1e9
        elif kind == g.PUT:
            name = _place_of(planned, index)
            moved[name] = moved.get(name, 0) + planned.values.storages[index]["bytes"]
    budget = planned.budget if planned.budget is not None else info["planned_peak_bytes"]
    return {"budget_bytes": budget,
            "planned_peak_bytes": info["planned_peak_bytes"], "unconstrained_peak_bytes": planned.unconstrained_bytes,
            "min_budget_bytes": info["min_budget_bytes"], "part_peak_bytes": planned.part_peak_bytes,
            "floor_bytes": min(planned.floor_bytes, info["floor_bytes"]),  # the plan's counts the tiers
            "given_bytes": sum(s["bytes"] for s in planned.values.storages if s["is_given"]),
            "resident_bytes": sum(values.storages[k]["bytes"] for k in values.at_start()),
            "largest_op_bytes": max((op.need_bytes(values.storages) for op in values.ops), default=0),
            "is_upper_bound": any(kernels.is_bound(values, op.node) for op in values.ops),
            "moved_bytes": info["moved_bytes"], "n_redone": info["n_redone"],
            "n_moves": sum(k == g.PUT for k, _, _ in instrs),
            "n_ops": planned.n_ops, "is_from_disk": planned.is_from_disk, "host_bytes": planned.host_bytes,
            "store_bytes": planned.store_need, "price_seconds": planned.price_seconds,
            "plan_seconds": planned.plan_seconds, "predicted_step_seconds": info["predicted_step_ns"] / 1e9,
            "why": _why(planned, budget, seconds), "redone": redone, "moved": moved}


def _why(planned, budget, seconds):
    over, info = planned.unconstrained_bytes - budget, planned.plan.info
    if over <= 0:
        return "the step fits without redone ops and moves"
    return (f"the step needs {over:,} bytes more than the budget: {info['n_redone']} ops run again for {seconds:.3f} s, "
            f"{info['moved_bytes']:,} bytes move")


def _redone(planned):
    """Return {module: ops that run again}."""
    found = {}
    for kind, index, _ in planned.plan.instrs:
        if kind == g.REDO:
            name = planned.values.ops[index].node.meta.get("lade_module") or "(outside of modules)"
            found[name] = found.get(name, 0) + 1
    return found


def ledger(planned):
    """Return ({owner: bytes}, {module: bytes}) at the planned peak."""
    values = planned.values
    live = values.at_start()
    best, at_best, total = -1, (), sum(values.storages[i]["bytes"] for i in live)
    for kind, index, _ in planned.plan.instrs:
        new, scratch = [], 0
        if kind in (g.OP, g.REDO):
            op = values.ops[index]
            new, scratch = [k for k in op.writes if k not in live], op.scratch_bytes
        elif kind == g.GET:
            new = [index]
        live.update(new)
        total += sum(values.storages[k]["bytes"] for k in new)
        if total + scratch > best:
            best, at_best = total + scratch, (frozenset(live), scratch)
        if kind in (g.DROP, g.PUT):
            live.discard(index)
            total -= values.storages[index]["bytes"]
    return _sums(planned, *at_best, _owner_of), _sums(planned, *at_best, _place_of)


def _sums(planned, live, scratch, name_of):
    found = {"scratch": scratch}
    for k in live:
        name = name_of(planned, k)
        found[name] = found.get(name, 0) + planned.values.storages[k]["bytes"]
    return found


def _owner_of(planned, k):
    values, name = planned.values, planned.names[k]
    if values.storages[k]["is_given"]:
        return name.split(" ")[0] if " " in name else "constant"
    grads = {values.storage(values.value(op.node.args[1])) for op in values.ops if op.node.target is optimizers.UPDATE}
    return "gradient" if k in grads else "activation"


def _place_of(planned, k):
    """Return the module that a storage belongs to, or that made it."""
    storage, name = planned.values.storages[k], planned.names[k]
    kind, _, path = name.partition(" ")
    if not storage["is_given"]:
        return storage["root"][0].meta.get("lade_module") or "(outside of modules)"
    if kind == "batch" or not path:
        return kind if path else "constants"
    parts = path.split(".")
    return ".".join(parts[:-2 if kind in ("state", "grad") else -1]) or "(the model itself)"
