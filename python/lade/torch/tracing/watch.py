# SPDX-License-Identifier: Apache-2.0
"""Watches the ops of a capture: small constants that the step computes, and tensors that belong to no model.

Some code asks for the value of a tensor that no input decides, such as a causal mask that it just made. The ops that made
the tensor run for real beside the capture, so the question has an answer, the same one in every step.

Other code asks whether something is true of its arguments, such as that a mask has no zero. Or it asks for a flag in a
tensor of few elements, such as a buffer that counts. Each answer decides which graph it is. The ops that lead to it are
kept and run again before each call, and a plan serves the calls with its answers. A number in such a tensor is answered
too, if the step does not change it, or only sets a flag of 0 and 1.

An op whose results have a shape by its operands' values, such as masked_select, is captured where arguments and constants
decide them. The shape is an answer then. Prices are measured with the true operands (node.meta["lade_reals"]).

A check of torch.distributions that its arguments are valid becomes an op that fails where they are not. Tensors of the user
that are in no model stay real in a capture. An op that writes one would change it, so it is copied before and restored
after the capture. A result that is still held after the capture is in a place that the step does not renew.
"""
import collections
import gc
import itertools
import math
import os
import sys
import weakref

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from ...errors import CannotCapture
from .settings import Settings

_FOLLOWED_MAX = 1 << 16  # elements of a followed constant
_FLAG_MAX = 16           # elements in the memory of a followed tensor that outlives the step
_ARGUMENT_MAX = 1 << 22  # elements of a followed argument, and of results that it decides
_ASKED = (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.equal.default)
_SCALAR, _ASSERT = torch.ops.aten._local_scalar_dense.default, torch.ops.aten._assert_async.msg
_ANY = torch.ops.aten.any.default
_MAX = torch.ops.aten.max.default
_ALL = torch.ops.aten.all.default, torch.ops.aten.all.dim, torch.ops.aten.all.dims
_TORCH = os.path.join(os.path.dirname(torch.__file__), "")
_OWN = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "")
_DISTRIBUTIONS = os.path.join(_TORCH, "distributions", "")
_CHECKS = ("__init__", "_validate_sample", "_all_true_or_runtime_assert")
_DEVICE = torch.ops.prim.device.default
_ZERO = torch.ops.aten._efficientzerotensor.default
_SETS = torch.ops.aten.fill_.Scalar, torch.ops.aten.zero_.default
_COPIES = torch.ops.aten.fill_.Tensor, torch.ops.aten.copy_.default
COUNTS = ("the step reads a number from a tensor and changes it there, so each step would be another graph; keep the number "
          "in tensors, or count outside of the step")
NESTED = "nested tensors are not captured; pad the batch"
SPARSE = "sparse tensors are not captured; use dense ones, such as those of nn.Embedding(sparse=False)"
_MASKS = torch.bool, torch.uint8
_INDEX, _NONZERO = torch.ops.aten.index.Tensor, torch.ops.aten.nonzero.default
_SELECT = torch.ops.aten.masked_select.default
_UNIQUE = torch.ops.aten._unique2.default
_CLONE, _PACK = torch.ops.aten.clone.default, torch.ops.aten._pack_padded_sequence.default
_INDEXING = _INDEX, torch.ops.aten.index_put.default, torch.ops.aten.index_put_.default, \
    torch.ops.aten._index_put_impl_.default
_VALUES_MAX, _LIST_MAX = 128, 1024  # elements of a computed mask, and of a list, whose values are asked for
_CTC = torch.ops.aten._ctc_loss.Tensor, torch.ops.aten._ctc_loss_backward.Tensor
# Ops whose results no value of an operand decides, but its shape.
_LIKE = (torch.ops.aten.zeros_like.default, torch.ops.aten.ones_like.default, torch.ops.aten.full_like.default,
         torch.ops.aten.empty_like.default, torch.ops.aten.new_zeros.default, torch.ops.aten.new_ones.default,
         torch.ops.aten.new_full.default, torch.ops.aten.new_empty.default)
_LIFTS = (torch.ops.aten.lift_fresh.default, torch.ops.aten.lift.default)


class _Ref:
    """In the operands of a kept op: argument @op of the step if it is an int, or result @output of another kept op."""

    def __init__(self, op, output=0):
        self.op, self.output = op, output

    def value(self, leaves, done):
        return leaves[self.op] if isinstance(self.op, int) else self.op.run(leaves, done)[self.output]


class _Slot:
    """In the operands of a kept op: the tensor that a dict of the model has under a key."""

    def __init__(self, own, key, memory=None):
        self.own, self.key, self.memory = own, key, memory

    def value(self, _leaves, _done):
        return self.own[self.key]


class _Outside:
    """In the operands of a kept op: a tensor of the user that is in no model, or the one that is in its place now."""

    def __init__(self, tensor, found=None):
        """@found: the place of a tensor that each step looks up (places.Found)."""
        self.tensor, self.found, self.memory = tensor, found, tensor.untyped_storage()._cdata

    def value(self, _leaves, _done):
        return self.tensor if self.found is None else self.found.get()


_REFS = _Ref, _Slot, _Outside


class _Kept:
    """An op that arguments decide: its function and operands, tensors of arguments and of kept ops as _Ref."""

    def __init__(self, func, args, kwargs, before):
        """@before: kept ops that read tensors which this one writes, or that wrote tensors which it reads."""
        self.func, self.args, self.kwargs, self.before = func, args, kwargs, before

    def run(self, leaves, done):
        """Return the flat results for the arguments @leaves; @done has those of ops that ran."""
        if self not in done:
            for kept in self.before:
                kept.run(leaves, done)
            args, kwargs = pytree.tree_map_only(_REFS, lambda ref: ref.value(leaves, done), (self.args, self.kwargs))
            done[self] = pytree.tree_leaves(self.func(*args, **kwargs))
        return done[self]

    def sources(self):
        """Yield the operands that a call decides, its own and those of ops before it: _Ref to arguments, _Slot, _Outside."""
        for ref in pytree.tree_leaves((self.args, self.kwargs)):
            if isinstance(ref, _Ref) and not isinstance(ref.op, int):
                yield from ref.op.sources()
            elif isinstance(ref, _REFS):
                yield ref


class _Shapes:
    """Asks for the shapes of the results of a kept op."""

    def __init__(self, kept):
        self.kept = kept

    def run(self, leaves, done):
        return [[tuple(t.shape) for t in self.kept.run(leaves, done)]]


class _Values:
    """Asks for the values of the result of a kept op."""

    def __init__(self, kept):
        self.kept = kept

    def run(self, leaves, done):
        return [self.kept.run(leaves, done)[0].tolist()]


class Answers:
    """Questions of a step about its arguments, with the answers that its graph has."""

    def __init__(self):
        self.asked = []
        self.is_open, self.open_line = False, None  # True if arguments may give many answers: they decide a shape or a number

    def note(self, kept, answer, line_of=None):
        """@line_of(): the user's line; None if arguments may give few answers alone."""
        self.asked.append((kept, answer))
        if line_of is not None and not self.is_open:
            self.is_open, self.open_line = True, line_of()

    def hold(self, leaves):
        """True if the answers are those for the arguments @leaves.

        The ops that lead to them run in each call, and on CUDA each answer waits for the device.
        """
        done = {}
        with torch.no_grad():
            return all(kept.run(leaves, done)[0] == answer for kept, answer in self.asked)


def _fills(_tensor, indices, values, accumulate=False, *_):
    """True if a write at @indices is masked_fill_() in torch, which takes no scratch by the number of places."""
    return values.numel() == 1 and values.device.type == "cpu" and not accumulate \
        and sum(index is not None for index in indices) == 1


def _checked():
    """Return the class whose arguments torch.distributions checks now, or None if other code asks."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith((_TORCH, _OWN)):
        if frame.f_code.co_filename.startswith(_DISTRIBUTIONS) and frame.f_code.co_name in _CHECKS \
                and "self" in frame.f_locals:
            return type(frame.f_locals["self"]).__name__
        frame = frame.f_back
    return None


def _made_up(mask, count):
    """Return a mask like @mask, with @count true elements. One from outside that is too large to follow is real."""
    device = mask.fake_device if isinstance(mask, FakeTensor) else mask.device
    first = torch.arange(mask.numel(), device=device) < count[0]
    return first.reshape(mask.shape).to(mask.dtype)


class Watch(TorchDispatchMode):
    """Within this mode constants are followed, and writes to real tensors are noted."""

    def __init__(self, branches, mode, codes, looked_up):
        """@branches: answers about values that neither constants nor arguments decide. @mode: of the fake tensors.

        @codes: pauses below an op (reads.py). @looked_up: id of a tensor -> its place, which each step looks up.
        """
        super().__init__()
        self.codes, self.looked_up, self.settings = codes, looked_up, Settings()
        self.branches, self.mode = branches, mode
        self.asking = None  # operands of a call with masks
        self.operands = None  # of the call under way, the values that its price depends on
        self.known = {}     # id of a tensor -> (itself, its values, one of _REFS if a call decides them, or None)
        self.answers = Answers()
        self.n_writes = collections.Counter()  # of a storage; a tensor by .data has a version counter of its own
        self.written = {}   # id of a real tensor -> (itself, a copy from before the capture)
        self.made = []      # weak references to the results of all ops
        self.changed = set()  # storages of real tensors that the step has written: their values are not known any more
        self.learned = {}   # storage of a fake tensor -> ids of those that learn() follows, of which other views may be unknown
        self.outer = set()  # storages of arguments, flags and tensors outside: no op that runs again may write them
        self.touched = {}   # storage of a followed tensor -> [(kept op, True if it writes)], in the order of the step
        self.numbers = {}   # memory -> a number that the step asked for, which the tensor there decides
        self.any_of = self.all_of = None  # weak references to the last results of any() and all()

    def argue(self, leaves, fakes):
        """Follow the arguments of the step; @fakes stand for @leaves in the capture."""
        for i, (leaf, fake) in enumerate(zip(leaves, fakes)):
            if isinstance(leaf, torch.Tensor) and type(leaf) is torch.Tensor and not leaf.requires_grad \
                    and leaf.numel() <= _ARGUMENT_MAX and leaf.layout is torch.strided and not leaf.is_meta:
                self.known[id(fake)] = fake, leaf, _Ref(i)
                self.outer.add(leaf.untyped_storage()._cdata)

    def give(self, slots):
        """Follow flags: @slots are (fake tensor, real tensor, dict, key) of the buffers of the model."""
        for fake, real, own, key in slots:
            self._flag(fake, real, _Slot(own, key, real.untyped_storage()._cdata))

    def _flag(self, tensor, real, ref):
        if type(real) is not torch.Tensor or real.requires_grad or real.layout is not torch.strided or real.is_meta:
            return
        memory = real.untyped_storage()  # a whole one, so that all views that may write it are followed
        if memory.nbytes() <= _FLAG_MAX * real.element_size() and memory._cdata not in self.changed:
            self.known.setdefault(id(tensor), (tensor, real, ref))
            self.outer.add(memory._cdata)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is _DEVICE and type(args[0]) is FakeTensor:
            return args[0].fake_device  # most calls of a capture ask this
        self.check_settings()
        is_paused, given, self.branches.given = self.codes.pause(), self.branches.given, {}
        try:
            return self._dispatch(func, args, kwargs or {})
        finally:
            self.branches.given = given
            if is_paused:
                self.codes.resume()

    def check_settings(self):
        """Refuse a step that changes a setting of torch's which decides a kernel or a dtype and which a graph has not."""
        self.settings.check(self.branches)

    def _dispatch(self, func, args, kwargs):
        tensors = [t for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        for t in tensors:
            if not isinstance(t, FakeTensor) and func not in _LIFTS and id(t) not in self.written:
                self._flag(t, t, _Outside(t, self.looked_up.get(id(t))))
        if func is _NONZERO and args[0].dim() == 1 and args[0].numel() <= _VALUES_MAX:
            self.learn(args[0])
        reals = self._reals(func, tensors)
        if func in _ASKED and reals is not None:
            answer = self._run(func, args, kwargs)
            if not any(self._ref(t) for t in tensors):
                return answer
            kept = self._keep_op(func, args, kwargs)
            is_open = isinstance(answer, int) and not isinstance(answer, bool) and self._is_argued(kept)
            if is_open or isinstance(answer, bool) or self._note_number(kept, answer):
                self.answers.note(kept, answer, self.branches.line_of if is_open else None)
                return answer
        if func is _SCALAR and reals is None and args[0].dtype == torch.bool and not self._is_last(args[0], self.any_of):
            checked = _checked()
            if checked is not None:
                _ASSERT(args[0], f"ValueError: an argument of {checked} is outside of its constraint")
                return True
        if func is _SCALAR and reals is None and args[0].dtype == torch.bool:
            return self._guess(args[0])
        if func._schema.is_mutable:
            self._keep(func, args, kwargs)
        if func is _ZERO:
            raise CannotCapture("forward-mode AD, such as torch.func.jvp, is not captured; take gradients by torch.autograd.grad",
                                "torch.autograd.forward_ad")
        result = self._call(func, args, kwargs, tensors, reals)
        if any(t.layout is not torch.strided for t in pytree.tree_leaves(result) if isinstance(t, torch.Tensor)):
            raise CannotCapture(SPARSE, str(func))
        self.n_writes.update(t.untyped_storage()._cdata for t in self._written(func, args, kwargs))
        self._follow(func, args, kwargs, tensors, reals, result)
        if func is _ANY:
            self.any_of = weakref.ref(result)
        elif func in _ALL:
            self.all_of = weakref.ref(result)
        return result

    def _guess(self, flag):
        """Return the answer about a computed flag. A step cannot begin anew after an update, so it may not guess there.

        all() is true in steps that check something, and such a check fails in eager steps too.
        """
        is_check = self._is_last(flag, self.all_of)
        if self.branches.is_late() and not is_check:
            raise CannotCapture("the step branches on a computed value after optimizer.step(), and it could not begin anew for the "
                                "other branch; branch before optimizer.step(), or after the step", "value of a tensor")
        return self.branches.answer(flag, is_check)

    def _reals(self, func, tensors):
        """Return the values of all operands, or None if an input or a draw decides one of them."""
        found = [t if func in _LIFTS else self.known.get(id(t), (None, None, None))[1] for t in tensors]
        return None if any(t is None for t in found) or torch.Tag.nondeterministic_seeded in func.tags else found

    def _run(self, func, args, kwargs):
        def value(t):
            return self.known[id(t)][1] if id(t) in self.known else t
        real_args, real_kwargs = pytree.tree_map_only(torch.Tensor, value, (args, kwargs))
        with _disable_current_modes(), torch.no_grad():
            return func(*real_args, **real_kwargs)

    def _call(self, func, args, kwargs, tensors, reals):
        """Call an op; describe shapes that values decide, and note the values that its price depends on."""
        is_masked = any(t.dtype in _MASKS for t in tensors)
        if func in _CTC:
            self.mode.next_form = func, self._longest(args[4 if func is _CTC[1] else 3], func)
            self.operands = self._values(tensors)
        elif func in _INDEXING:
            if is_masked:
                self.operands, self.asking = [t if t is not None and t.dtype in _MASKS else None
                                              for t in self._values(tensors)], tensors
            if is_masked and func is _INDEX:
                self.mode.next_form = self._indexed(func, *args)
            elif is_masked and not _fills(*args):
                self._places_of(args[1], self._is_place_asked(*args[:3]))
        elif reals is not None and torch.Tag.dynamic_output_shape in func.tags:
            self.mode.next_form, self.operands = (func, self._shaped(func, args, kwargs, tensors)), self._values(tensors)
        elif func is _NONZERO or func is _SELECT:
            self._counted(func, args)
        elif func is _UNIQUE:
            self._distinct(func, args, kwargs)
        elif func is _PACK:
            self._packed(func, *args)
        graph = self.branches.graph
        last = next(iter(reversed(graph.nodes)), None) if graph else None
        try:
            return func(*args, **kwargs)
        except Exception:  # which the step may take: the call that failed is no op of its graph
            for node in list(itertools.takewhile(lambda node: node is not last, reversed(graph.nodes if graph else ()))):
                graph.erase_node(node)
            raise
        finally:
            self.operands = self.asking = self.mode.next_form = None

    def _values(self, tensors):
        """Return copies of the known values of tensors, which the step may change, None for each other one."""
        found = [self.known.get(id(t), (None, None))[1] for t in tensors]
        with _disable_current_modes(), torch.no_grad():
            return [None if t is None else t.clone() for t in found]

    def _shaped(self, func, args, kwargs, tensors):
        """Return the results of a call on known operands; their shapes are an answer if arguments decide them."""
        found = self._run(func, args, kwargs)
        if any(self._ref(t) for t in tensors):
            shapes = [tuple(t.shape) for t in pytree.tree_leaves(found)]
            self.answers.note(_Shapes(self._keep_op(func, args, kwargs)), shapes, self.branches.line_of)
        return found

    def _counted(self, func, args):
        """Describe the result of a call by the number of places in its mask, which the step computes.

        masked_select repeats each place of a mask as often as the operands' common shape has it.
        """
        mask = args[-1]
        count = self.branches.ask(mask, True)
        if count is None:
            return
        n_repeats = math.prod(torch.broadcast_shapes(*(t.shape for t in args))) // max(mask.numel(), 1)
        with _disable_current_modes():
            made_up = _made_up(mask, count)
            form = func(made_up) if func is _NONZERO else torch.empty(count[0] * n_repeats, dtype=args[0].dtype, device="meta")
        self.mode.next_form, self.operands = (func, form), [*[None] * (len(args) - 1), made_up]

    def _distinct(self, func, args, kwargs):
        """Describe the distinct values of a computed tensor by their number, which is asked for by its sorted values."""
        values = args[0].detach().flatten()
        first = values.sort().values
        count = self.branches.ask(first[1:] != first[:-1], True) if values.numel() else [-1]
        if count is None:
            return
        with _disable_current_modes():
            made_up = torch.arange(values.numel(), device=values.fake_device)
            if values.is_floating_point():  # each NaN is a value of its own, and BF16 counts to 256 only
                made_up = torch.where(made_up < count[0], math.nan, 0.0)
            made_up = made_up.clamp(max=count[0]).to(values.dtype).reshape(args[0].shape)
            self.mode.next_form, self.operands = (func, func(made_up, *args[1:], **kwargs)), [made_up]

    def _packed(self, func, padded, lengths, _batch_first):
        """Describe packed sequences by their lengths, which packed.py has asked for."""
        values = self._values([lengths])[0]
        with _disable_current_modes():
            n = int(values.sum())
            self.mode.next_form = func, (torch.empty((n, *padded.shape[2:]), dtype=padded.dtype, device="meta"),
                                         torch.empty(int(values.max()), dtype=torch.int64, device="meta"))
        self.operands = [None, values]

    def constant(self, tensor):
        """Return a real tensor of the values of @tensor, which are an answer of the capture."""
        if not isinstance(tensor, FakeTensor):
            self._flag(tensor, tensor, _Outside(tensor, self.looked_up.get(id(tensor))))
        self.learn(tensor)
        if not self.knows(tensor):
            raise CannotCapture("the lengths of packed sequences are computed after optimizer.step(), or in a large or outside "
                                "tensor; give them as an argument of the step", "pack_padded_sequence")
        if self._ref(tensor):
            kept, values = self._keep_op(_CLONE, (tensor,), {}), self.known[id(tensor)][1].tolist()
            self.answers.note(_Values(kept), values, self.branches.line_of)
        found = self._values([tensor])[0]
        self.keep_constant(found)
        return found

    def keep_constant(self, tensor):
        """Follow a real tensor whose values are the same in each step of the graph."""
        self.known[id(tensor)] = tensor, tensor, None

    def learn(self, tensor):
        """Ask for the values of a computed tensor of numbers or flags, if they are not known, and follow it from then on."""
        if not isinstance(tensor, FakeTensor) or id(tensor) in self.known or tensor.is_floating_point() \
                or tensor.is_complex() or tensor.numel() > _LIST_MAX:
            return
        values = self.branches.ask(tensor, False)
        if values is not None:
            with _disable_current_modes():
                real = torch.tensor(values, dtype=tensor.dtype).reshape(tensor.shape).to(tensor.fake_device)
            self.known[id(tensor)] = tensor, real, None
            self.learned.setdefault(tensor.untyped_storage()._cdata, []).append(id(tensor))

    def knows(self, tensor):
        return id(tensor) in self.known

    def _indexed(self, func, tensor, indices):
        """Return the form of a tensor at @indices, some of them masks, or None if the number of a mask's places is not known."""
        found = self._places_of(indices, True)
        if found is None:
            return None
        with _disable_current_modes():
            return func, func(torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta"), found)

    def _places_of(self, indices, is_asked):
        """Return descriptions of @indices with the places of masks, or None if their number is not known.

        The number of places is an answer: results have it as their size, and writes take scratch by it. @is_asked: the step asks
        for the number where it computes the mask.
        """
        found = []
        for index in indices:
            if index is not None and index.dtype in _MASKS:
                places = self._run(_NONZERO, (index,), {}) if id(index) in self.known else \
                    self._computed_places(index) if is_asked else None
                if places is None:
                    return None
                if self._ref(index):
                    self.answers.note(_Shapes(self._keep_op(_NONZERO, (index,), {})), [tuple(places.shape)],
                                      self.branches.line_of)
                found += [torch.empty(len(places), dtype=torch.int64, device="meta")] * places.shape[1]
            else:
                found.append(None if index is None else torch.empty(index.shape, dtype=torch.int64, device="meta"))
        return found

    def _is_place_asked(self, tensor, indices, values):
        """True if a write at @indices needs the number of a computed mask's places: other ops ask for it, or @values have it.

        The gradient of @values asks for it. Other writes have one plan, which counts all places.
        """
        masks = [index for index in indices if index is not None and index.dtype in _MASKS]
        n_rest = tensor.dim() - sum(mask.dim() for mask in masks)
        return values.requires_grad or values.dim() > n_rest or any(map(self.branches.has_count, masks))

    def _computed_places(self, mask):
        """Return as many places as a computed mask has, or None; prices are measured with them."""
        operands, self.operands = self.operands, None  # they are not those of the question
        count, self.operands = self.branches.ask(mask, True), operands
        if count is None:
            return None
        with _disable_current_modes():
            made_up = _made_up(mask, count)
            at = next(i for i, t in enumerate(self.asking) if t is mask)
            self.operands[at] = made_up
            return made_up.nonzero()

    def _longest(self, lengths, func):
        """Return the longest of a CTC loss's targets."""
        if id(lengths) not in self.known:
            raise CannotCapture("the step computes the lengths of its targets, which decide a shape; compute them outside",
                                str(func))
        longest = int(self._run(_MAX, (lengths,), {})) if lengths.numel() else 0
        if self._ref(lengths) and lengths.numel():
            self.answers.note(self._keep_op(_MAX, (lengths,), {}), longest, self.branches.line_of)
        return longest

    def _follow(self, func, args, kwargs, tensors, reals, result):
        made = [t for t in pytree.tree_leaves(result) if isinstance(t, torch.Tensor)]
        self.made += map(weakref.ref, made)
        is_argued, is_mutable = any(self._ref(t) for t in tensors), func._schema.is_mutable
        n_max = _ARGUMENT_MAX if is_argued else _FOLLOWED_MAX
        is_small = all(t.numel() <= n_max for t in made) and made
        if reals is None or not is_small or not all(isinstance(t, FakeTensor) for t in made) \
                or is_argued and is_mutable and not self._is_own(func, args, kwargs):
            if is_mutable:
                self._forget(func, args, kwargs)
            return
        is_argued = is_argued and func not in _LIKE
        kept = self._keep_op(func, args, kwargs) if is_argued else None
        values = [t for t in pytree.tree_leaves(self._run(func, args, kwargs)) if isinstance(t, torch.Tensor)]
        for i, (fake, real) in enumerate(zip(made, values)):
            self.known[id(fake)] = fake, real, _Ref(kept, i) if kept is not None else None

    def _is_own(self, func, args, kwargs):
        """True if a call writes results of kept ops alone, so that it may run again for an answer."""
        refs = [(self._ref(t), self.known[id(t)][1]) for t in self._written(func, args, kwargs) if id(t) in self.known]
        return all(isinstance(ref, _Ref) and not isinstance(ref.op, int) and real.untyped_storage()._cdata not in self.outer
                   for ref, real in refs)

    @staticmethod
    def _is_last(tensor, last):
        """True for the last result of any() or all(). A check that asks for any() fails where it is true."""
        return last is not None and last() is tensor

    def _note_number(self, kept, answer):
        """True if only tensors that outlive the step decide a number; an argument may give another one in each step."""
        if self._is_argued(kept):
            return False
        self.numbers.update((source.memory, answer) for source in kept.sources())
        return True

    @staticmethod
    def _is_argued(kept):
        """True if an argument decides a kept op."""
        return any(isinstance(source, _Ref) for source in kept.sources())

    def counts(self, tensor):
        """True if the step asked for a number that @tensor, a real one, decides."""
        return tensor.untyped_storage()._cdata in self.numbers

    def _ref(self, tensor):
        return self.known.get(id(tensor), (None, None, None))[2]

    def _keep_op(self, func, args, kwargs):
        """Return the op to run again: constants are its operands as they are."""
        def operand(t):
            if self._ref(t) or id(t) not in self.known:
                return self._ref(t) or t
            with _disable_current_modes(), torch.no_grad():  # the copy of a constant is real
                return self.known[id(t)][1].clone()
        operands = pytree.tree_map_only(torch.Tensor, operand, (tuple(args), dict(kwargs)))
        is_write = func._schema.is_mutable
        tensors = [t for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor) and self._ref(t)]
        touched = [self.touched.setdefault(memory, [])
                   for memory in {self.known[id(t)][1].untyped_storage()._cdata for t in tensors}]
        before = [kept for ops in touched for kept, is_other in ops if is_write or is_other]
        kept = _Kept(func, *operands, before)
        for ops in touched:
            ops.append((kept, is_write))
        return kept

    @staticmethod
    def _written(func, args, kwargs):
        """Yield the tensors that a call writes, by its schema."""
        for i, argument in enumerate(func._schema.arguments):
            if argument.alias_info is not None and argument.alias_info.is_write:
                written = pytree.tree_leaves(args[i] if i < len(args) else kwargs.get(argument.name))
                yield from (t for t in written if isinstance(t, torch.Tensor))

    def _forget(self, func, args, kwargs):
        """Forget all constants that share memory with tensors that a call writes: another value may be in them."""
        written = list(self._written(func, args, kwargs))
        keys = {id(t) for t in written}.union(*(self.learned.pop(t.untyped_storage()._cdata, ()) for t in written))
        lost = {self.known[key][1].untyped_storage()._cdata for key in keys & self.known.keys()}
        is_set = func in _SETS or func in _COPIES and id(args[1]) in self.known and not self._ref(args[1])
        for memory in lost & self.numbers.keys():
            if not is_set or self.numbers[memory] not in (0, 1):
                raise CannotCapture(COUNTS, "value of a tensor")
        self.changed |= lost
        for key in [k for k, (_, real, _) in self.known.items() if real.untyped_storage()._cdata in lost]:
            del self.known[key]

    def _keep(self, func, args, kwargs):
        """Copy the real tensors that a call writes, to bring them back."""
        for t in self._written(func, args, kwargs):
            if not isinstance(t, FakeTensor) and id(t) not in self.written:
                with _disable_current_modes(), torch.no_grad():
                    self.written[id(t)] = t, t.detach().clone()

    def restore(self):
        """Bring back the real tensors that the capture wrote, and torch's settings."""
        self.settings.restore()
        with torch.no_grad():
            for tensor, copy in self.written.values():
                if not torch.equal(tensor, copy):
                    tensor.detach().copy_(copy)
        self.known, self.written = {}, {}

    def held(self, known):
        """Return a result of an op, @known ones apart, that Python still holds after the capture, or None."""
        own = set(map(id, known))
        for is_last in (False, True):
            left = [t for t in (one() for one in self.made) if t is not None and id(t) not in own]
            if not left or is_last:
                return left[0] if left else None
            del left
            gc.collect()  # cycles of the step hold tensors too
        return None
