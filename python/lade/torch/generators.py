# SPDX-License-Identifier: Apache-2.0
"""The states of torch's default generators, kept outside of torch's allocator: of the CPU, and of a CUDA device.

A whole step may draw from Python's generator and from NumPy's besides (tracing/draws.py, tracing/spans.py).
"""
import random
import sys

import torch


_set_state = torch.set_rng_state  # a capture replaces it (tracing/patches.py), and a part of a step runs in one


def states(device):
    """Return the states of the generators that ops of a step on @device draw from."""
    found = [torch.get_rng_state()]
    if device.type == "cuda":
        found.append(torch.cuda.get_rng_state(device))
    return [state.numpy().tobytes() for state in found]


def set_states(device, saved):
    """Go back to @saved states."""
    cpu, *cuda = [torch.frombuffer(bytearray(state), dtype=torch.uint8) for state in saved]
    _set_state(cpu)
    for state in cuda:
        torch.cuda.set_rng_state(state, device)


def python_states():
    """Return the state of Python's generator and that of NumPy's, None for one that is not imported."""
    numpy = sys.modules.get("numpy")
    return random.getstate(), numpy.random.get_state(legacy=False) if numpy else None


def set_python_states(saved):
    """Go back to @saved states of Python's generator and NumPy's; None leaves one as it is."""
    own, drawn = saved
    if own is not None:
        plain(random.setstate)(own)
    if drawn is not None:
        plain(sys.modules["numpy"].random.set_state)(drawn)


def plain(function):
    """Return what a capture has replaced, which would take this call for one of the step."""
    return getattr(function, "__wrapped__", function)


def states_of_step(device):
    """Return the states of all generators that a step on @device draws from."""
    return states(device), *python_states()


def set_states_of_step(device, saved):
    """Go back to @saved states of all generators."""
    set_states(device, saved[0])
    set_python_states(saved[1:])


class Offset:
    """The place of a CUDA device's generator in its stream of numbers, whose seed no step changes."""

    def __init__(self, device):
        index = device.index if device.index is not None else torch.cuda.current_device()
        self.generator = torch.cuda.default_generators[index]
        self.offset = self.generator.get_offset()

    def restore(self):
        self.generator.set_offset(self.offset)


class States:
    """The states of all generators that ops of a step on @device draw from."""

    def __init__(self, device):
        self.device, self.held = device, states(device)

    def restore(self):
        set_states(self.device, self.held)
