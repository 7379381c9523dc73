# SPDX-License-Identifier: Apache-2.0
"""Masked spans of speech models within a step, which transformers draws from NumPy's generator.

_compute_mask_indices() of wav2vec2, Whisper and their kin returns an array whose shape its arguments decide and whose values
it draws. A call is one op of the graph, which calls the model's own function in each step. So the spans are those of an eager
step, and NumPy's generator ends where eager leaves it. The op runs once, because a second run would draw other spans.
"""
import sys
from unittest import mock

import torch

from .imports import Imports

_NAME = "_compute_mask_indices"
_LIBRARY = torch.library.Library("lade", "FRAGMENT")
_LIBRARY.define("spans(Tensor? mask, str module, int[] shape, float share, int length, int minimum) -> Tensor",
                tags=(torch.Tag.nondeterministic_seeded,))


def _spans(mask, module, shape, share, length, minimum):
    function = getattr(sys.modules[module], _NAME)
    function = getattr(function, "plain", function)  # a capture in another thread may have replaced it
    return torch.from_numpy(function(tuple(shape), share, length, mask, minimum)).clone()  # in memory of torch's allocator


def _described(_mask, _module, shape, _share, _length, _min):
    return torch.empty(shape, dtype=torch.bool, device="cpu")


_LIBRARY.impl("spans", _spans, "CompositeExplicitAutograd")
torch.library.register_fake("lade::spans", _described, lib=_LIBRARY)
SPANS = torch.ops.lade.spans.default


def _replacement(module, plain):
    def drawn(shape, mask_prob, mask_length, attention_mask=None, min_masks=0):
        if not 1 <= mask_length <= shape[1]:
            return plain(shape, mask_prob, mask_length, attention_mask, min_masks)  # which refuses it
        found = SPANS(attention_mask, module.__name__, list(shape), mask_prob, mask_length, min_masks)
        found.lade_is_spans = True
        return found
    drawn.plain = plain
    return drawn


def are_spans(tensor):
    """True for the spans of a capture, where an eager step has an array."""
    return getattr(tensor, "lade_is_spans", False)


def patches():
    """Yield patches of the function in all modules of transformers that define it, and in those that the step imports."""
    found = [module for name, module in list(sys.modules.items()) if _is_model(name) and _NAME in getattr(module, "__dict__", {})]
    for module in found:
        yield mock.patch.object(module, _NAME, _replacement(module, getattr(module, _NAME)))
    yield Imports(_is_model, _NAME, _replacement)


def _is_model(name):
    return name.startswith("transformers.models.")
