# SPDX-License-Identifier: Apache-2.0
"""Replacements of torch's functions during the capture of a step.

A capture runs the user's function once on fake tensors. Some of the code that it calls acts in Python and leaves no op.
Examples are the optimizer's step, a learning-rate scheduler, a GradScaler's decision, a checkpoint's forked generator.
Each has a replacement here, which records the act as an op or for later, or refuses by name. After the capture torch's
own functions are back.
"""
import contextlib
import functools
import sys
from unittest import mock

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import TorchFunctionMode
from torch.fx.experimental import proxy_tensor
from torch.utils import _foreach_utils
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from ...errors import CannotCapture
from .. import generators, optimizers
from . import assignment, draws, fakes, numbers, packed, spans
from .batch_norm import averages
from .settings import flushing
from .state import accumulators

# A checkpoint's generator in one torch release and the other.
_GENERATORS = ("_checkpoint_without_reentrant_generator", "_checkpoint_without_reentrant_generator_impl")
_UNIFORM = (torch.rand, torch.rand_like)
_INDEXED = torch.Tensor.__getitem__, torch.Tensor.__setitem__
_BELOW = (torch.lt, torch.Tensor.lt, torch.Tensor.__lt__)


class Draws(TorchFunctionMode):
    """Decide `torch.rand([]) < p` for p <= 0 without a value: layers that are never dropped."""

    def __init__(self):
        super().__init__()
        self.uniform = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func in _BELOW and len(args) == 2 and any(args[0] is t for t in self.uniform):
            if isinstance(args[1], (int, float)) and args[1] <= 0:
                return False
        result = func(*args, **(kwargs or {}))
        if func in _UNIFORM and result.numel() == 1:
            self.uniform.append(result)
        return result


class Indices(TorchFunctionMode):
    """Stacks lists of computed elements among the indices of a tensor, which torch reads by address."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func in _INDEXED and isinstance(args[1], tuple):
            args = args[0], tuple(map(_index, args[1])), *args[2:]
        return func(*args, **(kwargs or {}))


def _index(one):
    """Return an index, or a tensor for nested lists with fake tensors: a mask for flags, else of whole numbers, as torch has it."""
    found = pytree.tree_leaves(one) if isinstance(one, (list, tuple)) else []
    if not any(isinstance(each, FakeTensor) for each in found):
        return one
    made = torch.tensor(one)  # that of _tensors()
    return made if made.dtype in (torch.bool, torch.uint8) else made.long()


def _plain_checkpoint(*_args, **_kwargs):
    """A checkpoint's generator that saves nothing: the body's ops are captured once, and the planner decides."""
    yield


class _PlainReentrant:
    @staticmethod
    def apply(function, _preserve_rng_state, *args):
        return function(*args)


def _refusing(op, text):
    def refuse(*_args, **_kwargs):
        raise CannotCapture(text, op)
    return refuse


def _scheduler_classes():
    import torch.optim.lr_scheduler as module
    kinds = [kind for kind in vars(module).values() if isinstance(kind, type) and hasattr(kind, "step")]
    return [kind for kind in kinds if "step" in vars(kind) and kind.__module__ == module.__name__]


def _schedulers(recorder):
    """Yield patches that let a step's schedulers run after it instead of in the capture."""
    for kind in _scheduler_classes():
        if kind.__name__ == "ReduceLROnPlateau":
            yield mock.patch.object(kind, "step", _refusing("ReduceLROnPlateau.step", "reads the value of a tensor"))
            continue

        def later(scheduler, *args, **kwargs):
            recorder.after_step(scheduler, args, kwargs)
        yield mock.patch.object(kind, "step", later)


def _last_rates(recorder):
    """Return a patch that notes that a step reads its learning rates."""
    from torch.optim.lr_scheduler import LRScheduler
    read = LRScheduler.get_last_lr

    def noted(scheduler):
        first = 0
        for member in optimizers.members_of(recorder.optimizer):
            n = len(member.param_groups)
            if scheduler.optimizer is member:
                recorder.read((i, "lr") for i in range(first, first + n))
            first += n
        return read(scheduler)
    return mock.patch.object(LRScheduler, "get_last_lr", noted)


def _applied():
    """Return a patch of module.to() and the like, which cannot exchange fake parameters: one that changes none is left out."""
    apply = torch.nn.Module._apply

    def applied(module, fn, *args, **kwargs):
        own = [t for t in (*module.parameters(), *module.buffers())]
        with torch.no_grad():
            is_same = all(fn(t) is t for t in own)
        return module if is_same else apply(module, fn, *args, **kwargs)
    return mock.patch.object(torch.nn.Module, "_apply", applied)


def _checks(recorder):
    """Return a patch that lets checks of tensors' values run in each step."""
    check = torch._check_tensor_all_with

    def checked(error_type, cond, message=None):
        if id(cond) in recorder.watch.known or not isinstance(cond, FakeTensor):
            check(error_type, cond, message)
            return
        text = "a check of the step failed"
        with contextlib.suppress(Exception):  # a text of values that a capture has not
            text = str(message() if callable(message) else message or text)
        torch.ops.aten._assert_async.msg(cond.all(), f"{error_type.__name__}: {text}")
    return mock.patch.object(torch, "_check_tensor_all_with", checked)


def _scalers(recorder):
    """Yield patches of GradScaler: its tensors are real and live, its decision becomes an operand of the update."""
    from torch.amp.grad_scaler import GradScaler
    lazy = GradScaler._lazy_init_scale_growth_tracker

    def create(scaler, device):
        with _disable_current_modes():
            lazy(scaler, device)

    def maybe_step(_scaler, optimizer, state, *_args, **_kwargs):
        recorder.update(optimizer, list(state["found_inf_per_device"].values()))
    yield mock.patch.object(GradScaler, "_lazy_init_scale_growth_tracker", create)
    yield mock.patch.object(GradScaler, "_maybe_opt_step", maybe_step)


def _lengths():
    """Return a patch of the CTC loss that makes tensors of lengths in lists, which torch reads by address."""
    plain = torch.ctc_loss

    def of_tensors(log_probs, targets, input_lengths, target_lengths, *args, **kwargs):
        lengths = [t if isinstance(t, torch.Tensor) else torch.tensor(t) for t in (input_lengths, target_lengths)]
        return plain(log_probs, targets, *lengths, *args, **kwargs)
    return mock.patch.object(torch, "ctc_loss", of_tensors)


def _tensors():
    """Yield patches of functions that make a tensor of a list, which torch reads by address: computed elements are stacked."""
    def patched(plain):
        def made(data, *args, dtype=None, device=None, requires_grad=False, **kwargs):
            if spans.are_spans(data):  # torch warns of a copy that an eager step makes of an array
                return data.clone().to(device=device, dtype=dtype or data.dtype)
            found = pytree.tree_leaves(data) if isinstance(data, (list, tuple)) else []
            if not any(isinstance(one, FakeTensor) for one in found):
                own = {"dtype": dtype, "device": device, **({"requires_grad": True} if requires_grad else {}), **kwargs}
                return plain(data, *args, **own)
            kind = dtype or functools.reduce(torch.promote_types, (one.dtype if isinstance(one, torch.Tensor) else plain(one).dtype
                                                                   for one in found))
            result = _stacked(data, kind).to(device or torch.get_default_device())
            return result.requires_grad_() if requires_grad else result
        return made
    yield mock.patch.object(torch, "tensor", patched(torch.tensor))
    yield mock.patch.object(torch, "as_tensor", patched(torch.as_tensor))


def _stacked(data, dtype):
    """Return a tensor of nested lists of tensors and numbers."""
    if isinstance(data, (list, tuple)):
        return torch.stack([_stacked(one, dtype) for one in data])
    if isinstance(data, torch.Tensor):
        return data.detach().to(dtype=dtype, device="cpu")
    return torch.full((), data, dtype=dtype)


def _lists(recorder):
    """Return a patch that asks for the values of a whole tensor where a step makes a list of it."""
    plain = FakeTensor.tolist

    def listed(tensor):
        recorder.watch.learn(tensor)
        return plain(tensor)
    return mock.patch.object(FakeTensor, "tolist", listed)


@contextlib.contextmanager
def _seed_kept():
    """Put torch's generator back if the body fails: a step may have seeded it by a function that is not replaced."""
    before = generators.states(torch.device("cpu"))
    try:
        yield
    except BaseException:
        generators.set_states(torch.device("cpu"), before)
        raise


def _whole_kernels():
    """Return a patch that keeps ops which have a kernel of their own, such as silu_backward, beside a composite form.

    A capture would decompose them, and the parts have other bits than the kernel.
    """
    decompose, has_kernel = torch._ops.OpOverload.decompose, torch._C._dispatch_has_kernel_for_dispatch_key
    known = {}

    def whole(op, *args, **kwargs):
        if op not in known:
            known[op] = has_kernel(op.name(), "CPU") or has_kernel(op.name(), "CUDA")
        return NotImplemented if known[op] else decompose(op, *args, **kwargs)
    return mock.patch.object(torch._ops.OpOverload, "decompose", whole)


def _known_is_real(recorder):
    """Yield a patch of transformers: a fake tensor whose values watch.py knows answers like a real one.

    For other fake tensors transformers makes masks that an eager step does without. Attention with a mask has another
    kernel.
    """
    module = sys.modules.get("transformers.utils.import_utils")
    if hasattr(module, "is_fake_tensor"):
        plain = module.is_fake_tensor
        yield mock.patch.object(module, "is_fake_tensor", lambda x: plain(x) and id(x) not in recorder.watch.known)


def _module_names(recorder, stack):
    """Let each node of the graph know the module whose forward made it, for reports."""
    names, entered = {id(module): name for name, module in recorder.modules}, []
    create = torch.fx.Graph.create_node

    def enter(module, _args):
        entered.append(names.get(id(module), type(module).__name__))

    def leave(_module, _args, _result):
        entered.pop()

    def create_named(graph, *args, **kwargs):
        node = create(graph, *args, **kwargs)
        node.meta["lade_grad"] = torch.is_grad_enabled()
        node.meta["lade_module"] = entered[-1] if entered else ""
        recorder.branches.graph = graph
        if recorder.watch.operands is not None:
            node.meta["lade_reals"] = recorder.watch.operands
        return node
    hooks = torch.nn.modules.module
    stack.callback(hooks.register_module_forward_pre_hook(enter).remove)
    stack.callback(hooks.register_module_forward_hook(leave, always_call=True).remove)
    stack.enter_context(mock.patch.object(torch.fx.Graph, "create_node", create_named))


@contextlib.contextmanager
def capturing(recorder):
    """Hold all replacements during a capture."""
    checkpoint = sys.modules["torch.utils.checkpoint"] if "torch.utils.checkpoint" in sys.modules else None
    seed = _refusing("torch.manual_seed", "a step that sets the seed is not captured; set it outside of the step")
    state = _refusing("torch.set_rng_state", "a step that sets the generator's state is not captured")
    before = generators.states(torch.device("cpu"))
    other = _refusing("optimizer.step", "the step drives an optimizer that it was not given; give all of them as optimizer=[...]")
    with contextlib.ExitStack() as stack:
        stack.enter_context(_seed_kept())
        stack.enter_context(fakes.SHOWING)
        drawn = stack.enter_context(draws.noted(recorder.branches))
        stack.callback(register_optimizer_step_pre_hook(other).remove)
        if checkpoint:
            for name in _GENERATORS:
                if hasattr(checkpoint, name):
                    stack.enter_context(mock.patch.object(checkpoint, name, _plain_checkpoint))
            stack.enter_context(mock.patch.object(checkpoint, "CheckpointFunction", _PlainReentrant))
        for patch in (*_schedulers(recorder), *_scalers(recorder), *_known_is_real(recorder), _applied(), _checks(recorder),
                      _last_rates(recorder), accumulators(recorder.fakes), averages(), _lengths(), _lists(recorder), *_tensors(), *assignment.patches(),
                      *spans.patches(), *flushing(), *numbers.patches(), *packed.patches(recorder.watch)):
            stack.enter_context(patch)
        # A step casts a weight once for all its uses, so their gradients are summed in the low precision.
        stack.enter_context(mock.patch.object(proxy_tensor, "disable_autocast_cache", contextlib.nullcontext))
        # A description of each result that no part of the package reads takes an eighth of a capture's time.
        stack.enter_context(mock.patch.object(proxy_tensor, "_extract_tensor_metadata", lambda *_args: None))
        stack.enter_context(mock.patch.object(torch, "manual_seed", seed))
        for module in (torch, torch.random):
            stack.enter_context(mock.patch.object(module, "set_rng_state", state))
        if recorder.is_cuda:  # foreach kernels have other bits than their parts, and a capture has fake tensors
            kinds = [torch.Tensor, FakeTensor]
            stack.enter_context(mock.patch.object(_foreach_utils, "_foreach_supported_types", kinds))
        stack.enter_context(_whole_kernels())
        _module_names(recorder, stack)
        stack.enter_context(Draws())
        stack.enter_context(Indices())
        stack.enter_context(recorder.branches)
        yield
    if generators.states(torch.device("cpu")) != before:
        generators.set_states(torch.device("cpu"), before)
        raise CannotCapture("a step that seeds torch's generator is not captured; seed it outside of the step", "manual_seed")
    drawn.end(recorder)
