# SPDX-License-Identifier: Apache-2.0
"""Flags that a step leaves other than it found them: a module's training mode, and requires_grad of its tensors.

A capture depends on the flags at its begin, which are a part of a plan's key (trace.Given). The flags at its end are set
after each step of the plan.
"""
from ...errors import CannotCapture


class Flags:
    """The flags of a model's modules and tensors as they are before a capture."""

    def __init__(self, given, fakes):
        """@fakes: id of a parameter or a buffer -> the fake tensor that stands for it in the capture."""
        self.modes = [(module, module.training) for _, module in given.modules]
        own = [(name, t, fakes[id(t)]) for name, t in (*given.params, *given.buffers)]
        self.tensors = [(name, t, fake, fake.requires_grad) for name, t, fake in own]
        self.buffers = [(name, fakes[id(t)]) for name, t in given.buffers]

    def changed(self):
        """Return (module or tensor, flag, value) of each flag that the step leaves other than before."""
        for name, fake in self.buffers:
            if fake.is_leaf and fake.grad is not None:
                raise CannotCapture(f"the step leaves a gradient in the buffer {name}; make it a parameter", "backward")
        found = [(module, "training", module.training) for module, before in self.modes if module.training != before]
        return found + [(t, "requires_grad", fake.requires_grad) for _, t, fake, before in self.tensors
                        if fake.is_leaf and fake.requires_grad != before]


def put(flags):
    """Set flags as changed() returned them."""
    for thing, name, value in flags:
        setattr(thing, name, value)
