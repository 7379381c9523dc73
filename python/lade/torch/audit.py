# SPDX-License-Identifier: Apache-2.0
"""The audit: a step's first call runs captured and uncaptured from the same state, and all bits must be equal.

The uncaptured step needs the memory that the budget saves. Where the device lacks it, the audit takes the first rows of
the batch, with a plan of their own, and brings the state back. The captured step of the whole batch runs without an audit.
"""
import copy
import pickle

import torch

from ..errors import CannotCapture, DoesNotFit, Error
from . import difference, forms, generators, optimizers
from .digests import bits
from .tracing import flags
from .tracing.branches import Otherwise


def free_bytes(device):
    """Return the bytes that the device can still give."""
    if device.type == "cuda":  # idle memory of torch's allocator counts too
        return torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device) \
            - torch.cuda.memory_allocated(device)
    with open("/proc/meminfo", encoding="ascii") as file:
        fields = dict(line.split(":") for line in file)
    return int(fields["MemAvailable"].split()[0]) * 1024


def _first_rows(leaves):
    """Return (leaves, rows, all rows) of half the batch, or None if it has one row or no common first dimension."""
    sizes = {t.shape[0] for t in leaves if isinstance(t, torch.Tensor) and t.dim()}
    if len(sizes) != 1 or min(sizes) < 2:
        return None
    rows = sizes.pop()
    return [t[:rows // 2] if isinstance(t, torch.Tensor) and t.dim() else t for t in leaves], rows // 2, rows


class Audit:
    """The audit of one plan."""

    def __init__(self, step, ready):
        self.step, self.ready = step, ready

    def run(self, args, kwargs, leaves, meter):
        """Run the step, checked; return its result. Error if bits differ."""
        if self._fits(self.ready):
            return self._whole(self.ready, args, kwargs, leaves, meter)
        self._smaller(args, kwargs, leaves)
        self.ready.is_audited = True
        return self.step._run(self.ready, leaves, meter, (args, kwargs))

    def _fits(self, ready):
        """True if the device can give the bytes of an uncaptured step beside given storages, and of copies of those."""
        return ready.planned.unconstrained_bytes <= free_bytes(self.step.device)

    def _whole(self, ready, args, kwargs, leaves, meter):
        self.step.sync()
        before = Snapshot(self.step, ready, leaves, args, kwargs)
        try:
            self.step._run(ready, leaves, meter, (args, kwargs), is_last=False)
            self.step.sync()
            captured = self._digest(ready, before)
            before.restore()
            result = self.step.fn(*args, **kwargs)
        except BaseException:  # a fault, or Ctrl-C: no step was taken
            try:
                self.step.sync()
            finally:
                before.restore()
            self.step.broken = None
            raise
        eager = self._digest(ready, before)
        if captured != eager:
            before.restore()
            self.step.fn(*args, **kwargs)
            again = self._digest(ready, before)
            self._refuse(captured, eager, again, self.ops_apart(ready, before, args, kwargs, leaves))
        ready.is_audited = True
        return result

    def _smaller(self, args, kwargs, leaves):
        """Audit the first rows of the batch, half of them or less, and note what was audited."""
        form, found, whole = forms.flatten((args, kwargs))[1], _first_rows(leaves), self.ready.planned
        no_room = "not audited: the uncaptured step does not fit the device"
        while found is not None:
            less, rows, _ = found
            try:
                small = self._rows(*form.unflatten(less), less)
            except (CannotCapture, DoesNotFit, Otherwise) as fault:  # the step of the whole batch has its plan
                self.ready.note = f"{no_room}, and the first rows of the batch have no plan ({fault})"
                return
            if small is not None:
                other = "" if small.planned.trace.branches == whole.trace.branches else ", whose computed values take another branch"
                self.ready.note = (f"audited on {rows} rows of the batch{other}: the uncaptured step of the whole batch needs "
                                   f"{whole.unconstrained_bytes:,} bytes")
                return
            found = _first_rows(less)
        self.ready.note = f"{no_room}, and no smaller batch does"

    def _rows(self, args, kwargs, leaves):
        """Audit a smaller batch by the plan of its own branch; return it, or None if the uncaptured step does not fit."""
        branch = None
        while True:
            small = self.step._find(args, kwargs, branch)[1]
            if not self._fits(small):
                return None
            self.step.sync()
            before = Snapshot(self.step, small, leaves, args, kwargs)
            try:
                self._whole(small, args, kwargs, leaves, None)
                return small
            except Otherwise as fault:
                if branch is not None and len(fault.branch) <= len(branch):
                    raise  # a value that differs in each run
                branch = fault.branch
            finally:
                self.step.sync()
                before.restore()

    def ops_apart(self, ready, before, args, kwargs, leaves):
        """Return the ops that first have other bits than those of the uncaptured step, which is the last to run."""
        def captured():
            before.restore()
            self.step._run(ready, leaves, None, (args, kwargs), is_last=False)
            self.step.sync()

        def uncaptured():
            before.restore()
            self.step.fn(*args, **kwargs)
        return difference.others(ready.planned, captured, uncaptured, bits)

    def _refuse(self, captured, eager, again, ops):
        """Raise an Error that names the difference, or the one between two uncaptured steps if they differ too."""
        name = _other(captured, eager)
        self.step.broken = f"the audit found other bits in the captured step, first in {name}" + (f", made by {ops}" if ops else "")
        if eager != again:
            name = _other(again, eager)
            self.step.broken = (f"the audit ran the uncaptured step twice from one state, and its bits differ, first in "
                                f"{name}: set torch.use_deterministic_algorithms(True), or audit=False")
        raise Error(f"lade: {self.step.broken}; the model is as after the uncaptured step")

    def _digest(self, ready, before):
        step = self.step
        found = {f"{kind} {name}": bits(t) for kind, name, t in stateful(step, ready)}
        found.update((f"{kind} {name}", bits(t)) for kind, name, t in before.inputs)
        for i, p in enumerate(ready.planned.trace.given.opt_params):
            for key, value in optimizers.state_items(step.optimizer.state.get(p, {})):
                found[f"state {i}.{key}"] = bits(value) if isinstance(value, torch.Tensor) else repr(value)
        for place in ready.planned.trace.places:
            found.update((f"place {place.name}.{i}", _value(leaf)) for i, leaf in enumerate(forms.flatten(place.get())[0]))
        leaves, form = forms.flatten(before.arguments)
        found["containers of the arguments"] = repr(form)
        found.update((f"argument {i} after the step", _value(leaf)) for i, leaf in enumerate(leaves))
        found.update((f"{name} {i}", value) for i, (_, name, value) in enumerate(before.flags_now()))
        names = "generator", "Python's generator", "NumPy's generator"
        found.update(zip(names, map(pickle.dumps, generators.states_of_step(step.device))))
        return found


def _once(tensor):
    """Return a view of a tensor with each element of an expanded one once, because torch writes to no element twice."""
    return tensor.detach()[tuple(slice(1 if stride == 0 else None) for stride in tensor.stride())]


def _value(leaf):
    """Return what the audit compares of a tensor, a number, a text or another object."""
    return bits(leaf) if isinstance(leaf, torch.Tensor) else repr(leaf) if isinstance(leaf, forms.PLAIN) else type(leaf).__name__


def _other(found, wanted):
    """Return the first name whose value is another one in @found than in @wanted."""
    return next(name for name in (*wanted, *found) if name not in found or name not in wanted or found[name] != wanted[name])


def stateful(step, ready):
    """Yield (kind, name, tensor) of all that a step may change."""
    given = ready.planned.trace.given
    yield from (("parameter", name, t) for name, t in given.params)
    yield from (("buffer", name, t) for name, t in given.buffers)
    yield from (("gradient", name, t.grad) for name, t in given.params if t.grad is not None)
    if step.optimizer:
        for i, p in enumerate(given.opt_params):
            for key, t in optimizers.state_tensors(step.optimizer.state.get(p, {})):
                yield "state", f"{i}.{key}", t
    for i, t in enumerate(ready.planned.values.constants.values()):
        yield "constant", str(i), t


class Snapshot:
    """Copies of all that a step changes, to go back to them."""

    def __init__(self, step, ready, leaves, args, kwargs):
        self.step, self.given, self.arguments = step, ready.planned.trace.given, (args, kwargs)
        self.inputs = [(kind, name, t) for kind, name, t in ready.planned.tensors(leaves) if kind == "place"]
        self.inputs += [("argument", str(i), t) for i, t in enumerate(leaves) if isinstance(t, torch.Tensor)]
        copied = {id(t): t for kind, _, t in (*stateful(step, ready), *self.inputs) if kind != "gradient"}
        self.copies = [(t, _once(t).clone()) for t in copied.values()]
        self.containers = [(one, forms.entries_of(one)) for one in forms.containers(self.arguments)]
        self.grads = [(p, None if p.grad is None else p.grad.clone()) for _, p in self.given.params]
        members = optimizers.members_of(step.optimizer)
        self.inner = [(one, one.snapshot()) for one in members if hasattr(one, "snapshot")]
        self.own = [kind(one) for one in members if not optimizers.is_per_param(one)
                    for kind in (optimizers.Attributes, optimizers.States)]
        self.groups = [{k: v for k, v in group.items() if k != "params" and not isinstance(v, torch.Tensor)}
                       for group in step.optimizer.param_groups] if step.optimizer else []
        self.places = [(place, place.get(), [(t, _once(t).clone()) for t in place.tensors()])
                       for place in ready.planned.trace.places]
        self.hooks = ready.planned.trace.hooks
        self.changed = ready.planned.trace.flags
        self.flags = self.flags_now()
        self.schedulers = [(one, copy.deepcopy(one.state_dict())) for one, _, _ in ready.planned.trace.late]
        self.generators = generators.states_of_step(step.device)

    def flags_now(self):
        return flags.present(self.given, self.changed, [t for kind, _, t in self.inputs if kind == "argument"])

    def restore(self):
        for kept in self.own:
            kept.restore()
        with torch.no_grad():
            for tensor, held in self.copies:
                _once(tensor).copy_(held)
            for place, value, tensors in self.places:
                place.put(value)
                for tensor, held in tensors:
                    _once(tensor).copy_(held)
        for container, entries in self.containers:
            forms.set_entries(container, entries)
        for own, hooks in self.hooks:
            for key in hooks:
                own.pop(key, None)
        flags.put(self.flags)
        for param, grad in self.grads:
            param.grad = grad
        for optimizer, held in self.inner:
            optimizer.restore(held)
        for scheduler, held in self.schedulers:
            scheduler.load_state_dict(held)
        for group, held in zip(self.step.optimizer.param_groups if self.step.optimizer else (), self.groups):
            group.update(held)
        generators.set_states_of_step(self.step.device, self.generators)
