# SPDX-License-Identifier: Apache-2.0
"""Given storages that wait on a tier between steps: optimizer state and parameters.

On the device between steps they bound the peak from below. Below that bound the plan lets them live on the host or in the
store. A step gets each for its uses, and puts it back if an op changed it. Between steps their tensors keep an empty
storage, and their first use fetches (parked.py). Saving, loading, calling the model and stepping the optimizer fetch
before they begin (Fetch).
"""
import weakref

from ... import graph as g
from ...errors import Error

_MIN_BYTES, _MIN_SHARE = 1024, 1 / 16384  # smaller ones stay: a copy costs more than they weigh


def assign(values, names, limits, kinds, staying):
    """Set the tiers of the given storages of @kinds, "state" or "param", but @staying, as far as tiers have room."""
    # the rest of the host is for values that wait during a step
    left = {g.HOST: limits.host_bytes // 2 if limits.store_bytes else limits.host_bytes * 3 // 4,
            g.STORE: limits.store_bytes * 3 // 4}
    min_bytes = max(_MIN_BYTES, sum(s["bytes"] for s in values.storages if s["is_given"]) * _MIN_SHARE)
    for k, storage in enumerate(values.storages):
        storage["tier"] = g.DEVICE
        if not storage["is_given"] or names[k].split(" ")[0] not in kinds or storage["bytes"] < min_bytes or k in staying:
            continue
        for tier, free in left.items():
            n = room_of(storage["bytes"], tier)
            if n <= free:
                storage["tier"], left[tier] = tier, free - n
                break


def room_of(n_bytes, tier):
    """Return the bytes that a storage takes on a tier."""
    unit = 64 if tier == g.HOST else 65536
    return (n_bytes + unit - 1) // unit * unit


def rooms(values, tier):
    """Return {storage: its place} of the storages that live on a tier, and the bytes of all."""
    places, n_bytes = {}, 0
    for k, storage in enumerate(values.storages):
        if storage["tier"] == tier and tier != g.DEVICE:
            places[k] = n_bytes
            n_bytes += room_of(storage["bytes"], tier)
    return places, n_bytes


class Fetch:
    """A hook that brings a step's storages back before the model or its optimizer is read. Copies of it do nothing."""

    is_of_lade = True  # no capture depends on it

    def __init__(self, step=None):
        self.step = weakref.ref(step) if step is not None else lambda: None

    def __call__(self, *_args, **_kwargs):
        step = self.step()
        if step is not None:
            step.sync()

    def __deepcopy__(self, _memo):
        return Fetch()

    def __reduce__(self):
        return Fetch, ()


def install(step, models, members):
    """Let saving, loading and calls of the models, and saving and loading of the optimizers @members, fetch."""
    fetch = Fetch(step)
    for model in models:
        model.register_forward_pre_hook(fetch)
        for module in model.modules():
            module.register_state_dict_pre_hook(fetch)
            _on_load(module)(fetch)
    for optimizer in members:
        optimizer.register_step_pre_hook(fetch)
        optimizer.register_state_dict_pre_hook(fetch)
        optimizer.register_load_state_dict_pre_hook(fetch)


def _on_load(module):
    for name in ("register_load_state_dict_pre_hook", "_register_load_state_dict_pre_hook"):
        if hasattr(module, name):
            return getattr(module, name)
    raise Error(f"{type(module).__name__} has no hook before load_state_dict")
