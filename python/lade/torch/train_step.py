# SPDX-License-Identifier: Apache-2.0
"""lade.torch.step: the user's own training step inside a byte budget.

The first call captures the whole step, prices its ops, plans it, and checks the captured step against the uncaptured
one. Later calls run the generated code of the plan for their shapes. Between calls model and optimizer read as after an
eager step.
"""
import contextlib
import hashlib
import os
import threading
import time
import warnings

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree

from ..errors import CannotCapture, DoesNotFit, Error
from . import forms, generators, optimizers
from .answering import Answerer, planned_part
from .running import parked, residents, tiers, worker
from .audit import Audit
from .digests import bits
from .interrupts import Interrupts, without_autocast
from .tracing.branches import OFFSET, Otherwise
from .pricing.meter import events_of
from .planned import Planned, Tiers
from .plans import PLANS_MAX, Plans
from .pricing.prices import Pricer, Relayout
from .running.runtime import Runtime
from .tracing import arguments, flags
from .tracing.fakes import attributes_key
from .tracing.numbers import Deferred
from .tracing.places import refuse_change
from .tracing.reads import Known
from .tracing.trace import Given, calling_depth, calling_line, line_of, modules_of, trace
from .tracing.watch import NESTED, SPARSE

WAYS = ("recompute", "host", "store")
PLAN_SECONDS = 0.5, 3.0 # of the search for one plan: min, max
BACK_MAX = 8           # new beginnings of one call that know no more answers than the one before
CAPTURES_MAX = 8       # of one step, each with more strides known
FORMS_MAX = 256        # of arguments and of what the step reads, each with plans of its own
FEW_MAX = 4            # forms of lists, dicts and objects, before the user is told
_SHAPES_MAX = 4        # of arguments, in a message
VALUES_MAX = 3         # of a number that the step reads in Python, before the user is told


class Report(dict):
    """A report: planned beside measured."""

    def __str__(self):
        lines = []
        for key, value in self.items():
            if isinstance(value, dict):
                lines.append(f"{key}:")
                lines += [f"  {name:14} {n:16,}" for name, n in sorted(value.items(), key=lambda item: -item[1])]
            else:
                lines.append(f"{key:26} {value:,}" if isinstance(value, int) else f"{key:26} {value}")
        return "\n".join(lines)


class _Ready:
    """A plan with its runtime, and the state that its calls share."""

    def __init__(self, planned, seconds):
        self.planned, self.capture_seconds, self.runtime = planned, seconds, None
        self.is_audited, self.note = False, ""
        self.plans, self.n_ended = lambda: None, 0  # plans(): those of its form; n_ended: calls that it ended


class Step:
    """A callable like the user's function, whose peak stays within a budget."""

    def __init__(self, fn, model, optimizer, limits, audit):
        self.fn, self.model, self.optimizer = fn, model, optimizers.joined(optimizer)
        self.limits, self.audit = limits, audit
        self.ready, self.is_told = {}, False  # key of a plan (_key) -> Plans
        self.last, self.broken, self.given = None, None, None
        self.accepted = None  # the shapes of the last arguments that had a plan made, as a text
        self.pricer = Pricer(self.optimizer)
        self.moded = []  # modules outside of the model whose training mode a step changed
        self.fields = set()  # (group, key) of the optimizer's fields that graphs have as constants
        self.read_of_batch = set()  # names of attributes that the step reads of tensors of its arguments
        self.constants = {}  # address of a storage of plans' constants -> its number, below 0
        self.places = {}  # by their ids: where the step leaves tensors in Python, and what changes between steps there
        self.seen = {}  # place, argument or form -> hashes of values that had a plan made
        self.known = Known()  # what the step reads in Python
        self.n_moved = 0  # calls before which contents of sets, arrays or slots had changed
        self.measured, self.at_work, self.is_hooked = {}, None, False
        self.store, self.pid = tiers.SharedStore(limits.store), os.getpid()
        self.parked, self.is_running = [], False  # parked: (tensor, storage) of all that wait on a tier between steps
        self.device = self._device()
        _refuse_wrapped(model)

    def _device(self):
        kinds = {p.device for module in _models(self.model) for p in module.parameters()}
        if len(kinds) > 1:
            raise CannotCapture(f"parameters lie on several devices: {sorted(map(str, kinds))}", "model")
        return next(iter(kinds), torch.device("cpu"))

    # calls

    def __call__(self, *args, **kwargs):
        return self._call(args, kwargs, None)

    def _call(self, args, kwargs, meter):
        if self.pid != os.getpid():
            raise Error("this step belongs to the process that forked this one; make a step here")
        if self.is_running:
            raise Error("this step is running: it is called inside of itself, or by another thread")
        if self.broken:
            raise Error(f"a step failed, and the model is between two steps or lacks bytes: {self.broken}")
        if self.device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            raise Error("a CUDA graph is being captured, and a planned step plans, draws and moves bytes outside of graphs: "
                        "call the step without one")
        branch, n_back = None, 0
        while True:
            try:
                return self._call_branch(args, kwargs, meter, branch)
            except Otherwise as fault:
                n_back += branch is not None and len(fault.branch) <= len(branch)
                if n_back > BACK_MAX:
                    raise Error("a computed value differs in each run of the step from one state: set "
                                f"torch.use_deterministic_algorithms(True) ({fault.line})") from fault
                branch = fault.branch

    def _call_branch(self, args, kwargs, meter, branch):
        """Run the step with the first answers of branches.py, None for those of the last call. Otherwise has the due ones."""
        try:
            leaves, ready = self._find(args, kwargs, branch)
        except CannotCapture as fault:
            if branch and _is_users(fault.__cause__) and fault.op == type(fault.__cause__).__name__:
                raise fault.__cause__  # the branch itself, such as a loop that stops at a loss of NaN
            raise
        self.last = ready
        before = generators.states_of_step(self.device) if ready.planned.trace.branches else None
        try:
            if self.audit and not ready.is_audited:
                return Audit(self, ready).run(args, kwargs, leaves, meter)
            return self._run(ready, leaves, meter, (args, kwargs))
        except Otherwise as fault:
            if self.broken:
                raise Error(self.broken) from fault
            if fault.branch == ready.planned.trace.branch:
                raise Error("the step asks other questions than its capture, and has no plan of the branch "
                            f"{fault.branch}") from fault
            generators.set_states_of_step(self.device, before)
            self.interrupts.deliver()  # all is as before the step
            raise

    def prepare(self, *args, **kwargs):
        """Capture and plan the step for these arguments, and run nothing. DoesNotFit, CannotCapture."""
        self.last = self._find(args, kwargs, can_run=False)[1]
        return self

    def _find(self, args, kwargs, branch=None, can_run=True):
        """Return (flat arguments, the plan that serves them); without a @branch one of the last call's, or the first.

        @can_run: parts of the step may run to answer questions about computed values.
        """
        leaves, spec = forms.flatten((args, kwargs))
        for place in self.known.changed(self.places):
            self.places[place.id] = place
            self._forget()
        self._contents_check()
        if any(isinstance(leaf, FakeTensor) for leaf in leaves):
            raise CannotCapture("a step inside of a step is not captured; call the function that it wraps", "step")
        if self.given is None or not self.given.is_current(self.places):
            self.given = Given(self.model, self.optimizer)
            self._forget()
        plans = self.ready.get(self._key(spec, leaves))
        ready = plans.find(plans.branch if branch is None else branch, leaves) if plans else None
        if ready is None and plans and branch is None and plans.branch:
            ready = plans.find((), leaves)
        return leaves, ready or self._prepare(args, kwargs, leaves, spec, branch or (), can_run)

    def _contents_check(self):
        """Drop all plans if a set, an array or slots that they have as constants changed."""
        name = self.known.moved()
        if name is not None:
            self._forget()
            self.n_moved += 1
            self._tell(f"lade: the step reads {name.rstrip('.')}, whose contents changed {self.n_moved} times between calls; each time "
                       "the step is captured and planned anew, which takes longer than a step. Keep numbers in a tensor"
                       if self.n_moved > VALUES_MAX else None)

    def _forget(self):
        """Drop all plans, with the objects that they and their keys are made for."""
        self.ready, self.constants = {}, {}
        self.known.forget()
        for place in self.places.values():
            place.others.clear()

    def _key(self, spec, leaves):
        """Return the key of a plan: the form of the arguments and the modes that it is made for."""
        same = tuple(self.given.places_of.get(id(leaf), (None, ""))[1] and id(leaf) for leaf in leaves)
        first = {}  # tensors in several places: a plan holds for these
        twice = tuple(first.setdefault(id(t), len(first)) for place in self.places.values() for t in place.tensors())
        names = sorted(self.read_of_batch)
        attributes = tuple(attributes_key(leaf, names) for leaf in leaves if isinstance(leaf, torch.Tensor)) if names else ()
        memory = parked.memory_key(self._tensors(leaves), OFFSET in self.read_of_batch, self.constants)
        return (repr(spec), tuple(map(_leaf_key, leaves)), attributes, same, twice, memory, self.given.signature(),
                tuple(place.signature() for place in self.places.values()), self._fields(), tuple(m.training for m in self.moded))

    def _tensors(self, leaves):
        """Yield all tensors that a plan may move: of the arguments, the model, its gradients, the optimizer and places."""
        given, state = self.given, self.optimizer.state if self.optimizer else {}
        yield from (leaf for leaf in leaves if isinstance(leaf, torch.Tensor))
        yield from (t for _, p in given.params for t in (p, p.grad) if t is not None)
        slots = (given.places_of[id(t)] for _, t in given.buffers)
        yield from (own[name] for own, name in slots if own.get(name) is not None)
        yield from (t for p in given.opt_params for _, t in optimizers.state_tensors(state.get(p, {})))
        yield from (t for place in self.places.values() for t in place.tensors())

    def _fields(self):
        """Return the values of the optimizer's fields that the step reads in Python."""
        groups = self.optimizer.param_groups if self.optimizer else []
        return tuple(repr(groups[i].get(key)) for i, key in sorted(self.fields) if i < len(groups))

    def _prepare(self, args, kwargs, leaves, spec, branch, can_run):
        _refuse_wrapped(self.model)
        plans = self.ready.get(self._key(spec, leaves))
        if plans and not plans.has_room():
            raise CannotCapture(f"the step has asked for values that had {PLANS_MAX} different answers, each with a plan of its "
                                "own; keep them in tensors, or decide outside of the step", "value of a tensor")
        self.sync()
        try:
            planned, seconds = self._plan(args, kwargs, branch, Answerer(self) if can_run else None)
        except CannotCapture as fault:
            fault.within(line_of(self.fn))
            raise
        except DoesNotFit as fault:
            if self.accepted is None or self.accepted == _shapes(leaves):
                raise
            raise DoesNotFit(f"arguments of the shapes {_shapes(leaves)} have no plan: {fault}; those of the shapes {self.accepted} "
                             "have one in this budget", fault.min_budget_bytes) from None
        self.accepted = _shapes(leaves)
        with Interrupts() as interrupts:  # a state that exists in part would fail an eager step
            ready = self._made_ready(planned, seconds)
            if len(self.ready) >= FORMS_MAX:
                self._forget()
                self.known.add(planned.trace.reads)
            for t in planned.values.constants.values():
                self.constants.setdefault(t.untyped_storage()._cdata, -1 - len(self.constants))
            plans = self.ready.setdefault(self._key(spec, leaves), Plans())
            plans.add(ready)
        interrupts.deliver()
        self._tell(plans.note() or self._varied(spec, leaves))
        return ready

    def _varied(self, spec, leaves):
        """Return a text for the user if the step's state or arguments had several forms, each with a plan of its own, or None."""
        named = [(place.id, f"the step reads {place.name}", place.signature()) for place in self.places.values()]
        named += [(i, f"flat argument {i} is a {type(leaf).__name__}", _leaf_key(leaf)) for i, leaf in enumerate(leaves)
                  if not isinstance(leaf, (torch.Tensor, bool, str, type(None)))]
        named.append(("form", "the step takes lists, dicts or objects of several forms", repr(spec)))
        for key, text, value in named:
            seen = self.seen.setdefault(key, set())
            seen.add(hash(value))
            if len(seen) > (FEW_MAX if key == "form" else VALUES_MAX):
                return (f"lade: {text}, with {len(seen)} values so far; each is captured and planned "
                        "anew, which takes longer than a step. Keep a number in a tensor, and a list at one length")
        return None

    def _tell(self, text):
        """Say once that plans are made in each call."""
        if text is not None and not self.is_told:
            self.is_told = True
            warnings.warn(text, RuntimeWarning, stacklevel=calling_depth() - 1)

    def _made_ready(self, planned, seconds):
        """Take the bytes of a plan's tiers, and create the state of its optimizer. Error changes nothing."""
        ready = _Ready(planned, seconds)
        if planned.trace.is_cut:
            ready.is_audited = True  # it never ends a step
            ready.note = ("a part of the step, up to a computed value that decides a shape or a list "
                          f"({planned.trace.branch_lines[-1]}); a call plans the whole step")
        ready.runtime = Runtime(planned, self.store)
        self._create_state(planned.trace)
        new = {place.id: place for place in planned.trace.places if place.id not in self.places}
        captured = planned.trace
        outside = [thing for thing, name, _ in captured.flags if name == "training" and not self.given.has(thing)]
        moded = [module for module in outside if all(module is not other for other in self.moded)]
        if new or moded or not captured.fields <= self.fields or not captured.read_of_batch <= self.read_of_batch:  # constants of other plans
            self.places.update(new)
            self.moded += moded
            self.fields |= captured.fields
            self.read_of_batch |= captured.read_of_batch
            self._forget()
            self.known.add(planned.trace.reads)
        if planned.living and not self.is_hooked:
            residents.install(self, _models(self.model), optimizers.members_of(self.optimizer))
            self.is_hooked = True
        return ready

    def _plan(self, args, kwargs, branch, answerer):
        """Return (plan, seconds of capture). A capture is repeated while its pricing finds other strides."""
        seconds = 0.0
        for _ in range(CAPTURES_MAX):
            start = time.perf_counter()
            captured = self._capture(args, kwargs, branch, answerer)
            self._refuse_counters(captured, args, kwargs)
            seconds += time.perf_counter() - start
            branch = captured.branch  # a new capture asks no answered question again
            self.known.add(captured.reads)
            if self.broken:
                raise Error(self.broken)
            try:
                planned = planned_part(self, captured) if captured.is_cut else \
                    Planned(captured, self.pricer, self.limits, self.device, PLAN_SECONDS)
            except Relayout:
                continue
            if captured.is_cut and planned.is_final:
                raise CannotCapture("a computed value decides a shape after writes to more than 16 MiB of buffers; compute "
                                    "it before them", "value of a tensor", captured.branch_lines[-1])
            self._note_parts(planned, answerer)
            return planned, seconds
        raise CannotCapture("its kernels return strides or dtypes that no description gives", "capture")

    def _note_parts(self, planned, answerer):
        """Note the peak of the parts that ran. DoesNotFit if one was above the budget, which the whole step's plan decides."""
        planned.part_peak_bytes = answerer.peak_bytes if answerer else 0
        if planned.budget is not None and not planned.trace.is_cut and planned.part_peak_bytes > planned.budget:
            raise DoesNotFit(f"the part of the step before a computed value that decides a shape needs {planned.part_peak_bytes} "
                             f"bytes, and the budget is {planned.budget}", planned.part_peak_bytes)

    def _capture(self, args, kwargs, branch, answerer):
        """Return the captured step; after a guess that the user's code refuses the other answer is tried.

        If none is captured, the refusal is that of the capture which came furthest: others may end at a check of a wrong guess.
        """
        answers, furthest = branch, None
        while True:
            try:
                captured = trace(self.fn, self.model, self.optimizer, args, kwargs, self.pricer.layouts,
                                 self.places.values(), answers, answerer)
                captured.branch = captured.found or branch
                return captured
            except CannotCapture as fault:
                if furthest is None or fault.n_ops > furthest.n_ops:
                    furthest = fault
                if not _is_users(fault.__cause__) or fault.other_guess is None:
                    raise furthest from furthest.__cause__
                answers = fault.other_guess

    def _refuse_counters(self, captured, args, kwargs):
        """Refuse numbers and texts that a second step would change again; one that changes once is put after the step."""
        changed = [place for place in captured.places if place.is_plain]
        if not changed:
            return
        try:
            for place in changed:
                place.put(place.leaves[0])
            again = trace(self.fn, self.model, self.optimizer, args, kwargs, self.pricer.layouts, self.places.values(),
                          captured.branches)
            for place in again.places:
                if place.is_plain:
                    refuse_change(place.name)
        finally:
            for place in changed:
                place.put(place.before)

    def _create_state(self, captured):
        """Create the optimizer's state that its first step would create; the plan was accepted with it."""
        updated, new = {id(where[0]): where[0] for kind, _, where, _ in captured.inputs if kind == "state"}, []
        try:
            for member in filter(optimizers.is_per_param, optimizers.members_of(self.optimizer)):
                own = [p for p in optimizers.params_of(member) if id(p) in updated]
                new += [(member.state, p) for p in own if not member.state.get(p)]
                optimizers.create_state(member, updated, member.state)
        except BaseException:
            for state, p in new:
                state.pop(p, None)
            raise

    # one step

    def _run(self, ready, leaves, meter, given, is_last=True):
        """Run a step by its plan. @given: its arguments. Unless it @is_last, schedulers stay as they are."""
        planned = ready.planned
        bound = arguments.bind(planned.trace.changes, *given)  # as they are before the step
        if self.at_work not in (None, ready.runtime):
            self.sync()
            self.at_work.rest()  # plans of several shapes take the host's and the store's budget one at a time
        self.interrupts = Interrupts()
        with self.interrupts:
            held = self._unpark()
            try:
                tensors = [t for _, _, t in planned.tensors(leaves)]
                stand_ins = planned.stand_ins(tensors).begin()
            except BaseException:
                self._park(held)
                raise
            try:
                results = [t.detach() if t.requires_grad else t for t in self._execute(ready, tensors, meter)]  # views of parameters
            finally:
                stand_ins.end()
        results = stand_ins.returned(results)
        plans = ready.plans()
        if plans is not None:
            plans.ended(ready)
        if ready.runtime.exact:
            self._settle(ready, ready.runtime.exact)
            ready.runtime.exact = {}
        self._leave(planned.trace, results, bound, leaves, is_last)
        self.interrupts.deliver()
        return _returned(planned.trace, results)

    def _execute(self, ready, tensors, meter):
        """Run the code of a plan on the given tensors; return its results. After a failure gradients are as before."""
        planned, runtime = ready.planned, ready.runtime
        grads = [(p, p.grad) for _, p in planned.trace.given.params]
        for p, _ in grads:
            p.grad = None  # gradients that the step reads are in @tensors
        if not any(kind == "grad" for kind, *_ in planned.trace.inputs):
            grads = ()
        self.at_work, self.is_running, clock = runtime, True, _Clock(self.device)
        try:
            runtime.begin(meter, tensors)
            if meter:
                self.measured["given_bytes"] = planned.given_bytes(tensors)
            with torch.no_grad(), without_autocast(), meter or contextlib.nullcontext():
                results = planned.function(runtime, *tensors)
        except BaseException as fault:
            for p, grad in grads:
                p.grad = grad
            self._failed(runtime, fault)
            raise
        finally:
            self.is_running, runtime.kept = False, []
            self._park(planned.living_tensors(tensors))
        clock.end()
        self.measured["clock"] = clock
        return results

    @staticmethod
    def _leave(captured, results, bound, leaves, is_last):
        """Do after a step what it leaves in Python: gradients, schedulers, tensors in places and arguments, hooks."""
        for p, grad in zip(captured.grads, results[captured.n_tensors:]):
            p.grad = grad
        for optimizer in captured.stepped:
            optimizer._opt_called = True  # schedulers warn without it
        if is_last:
            for scheduler, args, kwargs in captured.late:
                scheduler.step(*args, **kwargs)
        generators.set_python_states(captured.seeded)
        made = iter(results[captured.n_out:captured.n_tensors])
        for place in captured.places:
            place.put_results(made)
        for change in captured.changes:
            change.put(bound, leaves, made)
        flags.put(captured.flags)
        for i in captured.wanting:
            leaves[i].requires_grad_()
        for own, hooks in captured.hooks:
            own.update(hooks)

    def _settle(self, ready, exact):
        """Take the exact scratch of ops. A plan that turns out to be above its budget is made anew at the next call."""
        if not ready.planned.settle(exact):
            for plans in self.ready.values():
                plans.remove(ready)

    def settle(self, ready):
        """Run the calls whose scratch has a bound, on made-up operands."""
        exact = ready.planned.run_bounded()
        if exact:
            self._settle(ready, exact)

    def _failed(self, runtime, fault):
        """Bring back the bytes that are elsewhere. A step that failed before its first write can be called again."""
        lost = runtime.bring_back()
        if lost is not None:
            self.broken = f"{len(runtime.away)} storages cannot be fetched: {lost}"
        elif runtime.is_updated:
            self.broken = f"{type(fault).__name__}: {fault}"
        else:
            runtime.undo()

    # for users

    def sync(self):
        """Bring all bytes of model and optimizer back to the device. Error if a tier does not return them.

        Below a budget of all given bytes, parameters and state live on a tier between steps. Their first use in Python
        calls this; code that takes tensors past Python calls it before. The next step sends them there again.
        """
        if self.at_work is None or self.is_running:
            return
        if self.pid != os.getpid():  # the threads of its tiers are in the other process
            raise Error("bytes of this model wait in the process that forked this one; call train.sync() there before")
        held = self._unpark()
        lost = self.at_work.bring_back()
        if lost is not None:
            self._park(held)
            raise Error(f"{len(self.at_work.away)} storages of the model or its optimizer cannot be fetched: {lost}")

    def _park(self, tensors):
        """Make the tensors of @tensors whose bytes are on a tier fetch them at their first use."""
        self.parked = [(tensor, k) for tensor, k in tensors if k in self.at_work.away]
        for tensor, k in self.parked:
            parked.park(tensor, self, self.at_work.sizes[k])

    def _unpark(self):
        """Give all parked tensors their class back; return them."""
        held, self.parked = self.parked, []
        for tensor, _ in held:
            parked.unpark(tensor)
        return held

    def __del__(self):
        with contextlib.suppress(Exception):  # a model that outlives its step has its bytes
            if worker.is_own_thread():  # sync() waits for copies of this thread
                threading.Thread(target=self.sync, name="lade sync").start()
            else:
                self.sync()

    def __deepcopy__(self, _memo):
        raise Error("a step is not copied: copy the model and its optimizer, and make a step of the copies")

    def __reduce_ex__(self, _protocol):
        raise Error("a step is not pickled: save the state_dict of the model and of its optimizer")

    def report(self):
        """Return planned and measured figures of the last call's plan."""
        if self.last is None:
            raise Error("no step was planned yet; call the step, or prepare it")
        ready = self.last
        found = Report(ready.planned.report())
        found["capture_seconds"] = ready.capture_seconds
        found["measured_step_seconds"] = self.measured["clock"].seconds() if "clock" in self.measured else None
        found["measured_peak_bytes"] = self.measured.get("peak_bytes")
        found["is_audited"], found["note"] = ready.is_audited and not ready.planned.trace.is_cut, ready.note
        found["ledger"], found["modules"] = ready.planned.ledger()
        return found


class _Clock:
    """The time of a step, on CUDA by events of the current stream."""

    def __init__(self, device):
        self.device, self.marks = device, []
        self.end()

    def end(self):
        if self.device.type == "cuda":
            self.marks.append(torch.cuda.Event(enable_timing=True))
            self.marks[-1].record(torch.cuda.current_stream(self.device))
        else:
            self.marks.append(time.perf_counter())

    def seconds(self):
        """Return the seconds between creation and end(); waits for the device."""
        start, end = self.marks
        if self.device.type != "cuda":
            return end - start
        end.synchronize()
        return start.elapsed_time(end) / 1e3


def _returned(captured, results):
    """Return the result of the user's function, made of a step's @results."""
    made = iter(results[:captured.n_out])
    leaves = [next(made) if leaf is torch.Tensor else leaf.value(made) if isinstance(leaf, Deferred) else leaf
              for leaf in captured.out_leaves]
    return pytree.tree_unflatten(leaves, captured.out_spec)


def _is_users(fault):
    """True for an exception that neither torch nor this package defines."""
    return fault is not None and type(fault).__module__.split(".")[0] not in ("torch", "lade")


def _models(model):
    return model if isinstance(model, (list, tuple)) else [model]


def _refuse_wrapped(model):
    """Refuse wrappers by name, with the line of the user's call."""
    saved = "lade.torch.saved serves it"
    for name, module in modules_of(model):
        kind = type(module).__name__
        if kind in ("DistributedDataParallel", "FullyShardedDataParallel", "DataParallel"):
            raise CannotCapture(f"its hooks run outside of the graph; {saved}", kind, calling_line())
        if any(base.__name__ == "FSDPModule" for base in type(module).__mro__):
            raise CannotCapture(f"fully_shard's hooks on {name or 'the model'!r} run outside of the graph; {saved}", kind,
                                calling_line())
        if isinstance(module, torch.jit.ScriptModule):
            raise CannotCapture(f"torch.jit's module {name!r} is not captured; give the plain module", kind, calling_line())
        if kind == "OptimizedModule":
            raise CannotCapture("torch.compile inside of the step is not captured; give the plain model", kind,
                                calling_line())
        for key, param in module._parameters.items():
            if torch.nn.parameter.is_lazy(param):
                raise CannotCapture(f"{name}.{key} has no shape yet; call the model once before".lstrip("."), kind,
                                    calling_line())
            if type(param).__name__ == "DTensor" or type(getattr(param, "data", None)).__name__ == "DTensor":
                raise CannotCapture(f"{name}.{key} is a DTensor, whose collectives are not captured; {saved}".lstrip("."),
                                    "DTensor", calling_line())


def _leaf_key(leaf):
    if isinstance(leaf, torch.Tensor):
        if leaf.is_nested or leaf.layout is not torch.strided:
            raise CannotCapture(NESTED if leaf.is_nested else SPARSE, "arguments", calling_line())
        return (tuple(leaf.shape), leaf.stride(), leaf.dtype, leaf.device, leaf.requires_grad,
                leaf.untyped_storage().nbytes(), leaf.storage_offset() * leaf.element_size() % 64)
    if isinstance(leaf, tuple) and any(isinstance(one, torch.Tensor) for one in leaf):  # torch 2.6 takes few kinds of tuples apart
        raise CannotCapture(f"this torch does not take a {type(leaf).__name__} among the arguments apart; give its tensors",
                            "arguments", calling_line())
    try:
        hash(leaf)
    except TypeError:
        raise CannotCapture(f"an argument of type {type(leaf).__name__} is no tensor and no plain value",
                            "arguments") from None
    return (type(leaf), leaf)


def _shapes(leaves):
    """Return the shapes of the first tensors among flat arguments, as a text."""
    found = [str(tuple(leaf.shape)) for leaf in leaves if isinstance(leaf, torch.Tensor)]
    return ", ".join(found[:_SHAPES_MAX]) + (" and others" if len(found) > _SHAPES_MAX else "")


def _check_arguments(fn, model, optimizer, ways):
    """Raise a ValueError that names the argument which is of another kind than step() takes."""
    if not callable(fn):
        raise ValueError(f"fn is a {type(fn).__name__}; expected the function of the training step")
    for one in _models(model):
        if not isinstance(one, torch.nn.Module):
            raise ValueError(f"model is a {type(one).__name__}; expected a torch.nn.Module, or a list of them")
    for one in optimizer if isinstance(optimizer, (list, tuple)) else [optimizer] if optimizer is not None else []:
        if not isinstance(optimizers.unwrapped(one), torch.optim.Optimizer):
            raise ValueError(f"optimizer is a {type(one).__name__}; expected a torch.optim.Optimizer, a list of them, or None")
    if isinstance(ways, str):
        raise ValueError(f"ways is the text {ways!r}; expected a tuple of \"recompute\", \"host\", \"store\"")


def step(fn, model, optimizer, budget, host=None, store=None, store_budget=None, ways=WAYS, audit=True):
    """Return a callable like @fn, the whole training step, that runs inside @budget bytes with the bits of @fn.

    @budget: bytes, "8GiB", "60%" of the step's own unconstrained peak, or "min". @host: bytes that may wait in host
    memory, or "auto". @store: a directory for bytes that may wait on its drive, at most @store_budget. @ways: how bytes
    may leave the device. @audit: compare the first step with the uncaptured one. The first call raises DoesNotFit or
    CannotCapture before anything was changed.
    """
    _check_arguments(fn, model, optimizer, ways)
    return Step(fn, model, optimizer, Tiers(budget, host, store, store_budget, ways), audit)


def measure(train, *batch, **kwargs):
    """Run one step under the allocator's events; return {"peak_bytes": ...}.

    The peak is the bytes of given storages on the device when the step begins, plus the largest sum of allocations less
    frees since. Other tensors of the process do not count.
    """
    train.settle(train._find(batch, kwargs)[1])
    ready = train._find(batch, kwargs)[1]  # another plan, if the first one is above its budget
    events = events_of(train.device)
    train.last = ready
    train._call(batch, kwargs, events)
    (maximum, _), given = events.peak(), train.measured["given_bytes"]
    train.measured["peak_bytes"] = given + maximum
    return {"peak_bytes": given + maximum, "given_bytes": given}


def digest(model, optimizer=None):
    """Return 16 hexadecimal digits over the bits of parameters, buffers and optimizer state."""
    total = hashlib.sha256()
    for root in _models(model):
        for name, tensor in root.state_dict(keep_vars=True).items():
            if isinstance(tensor, torch.Tensor):
                total.update(f"{name} {tensor.dtype} {tuple(tensor.shape)} {bits(tensor)}".encode())
    if optimizers.joined(optimizer) is not None:
        inner = optimizers.joined(optimizer)
        for i, p in enumerate(optimizers.params_of(inner)):
            for key, value in optimizers.state_items(inner.state.get(p, {})):
                total.update(f"{i} {key} {bits(value) if isinstance(value, torch.Tensor) else value!r}".encode())
    return total.hexdigest()[:16]
