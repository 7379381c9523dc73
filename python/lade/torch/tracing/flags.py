# SPDX-License-Identifier: Apache-2.0
"""Flags that a step leaves other than it found them: a module's training mode, requires_grad of tensors, and autograd's mode.

A capture depends on the flags at its begin, which are a part of a plan's key (trace.Given, train_step). The flags at its
end are set after each step of the plan.
"""
import contextvars
import enum
import os

import torch

from ...errors import CannotCapture
from ..forms import PLAIN
from .places import ABSENT, hooks_of, refuse_change

_OF_TORCH = "TORCH", "TRITON"  # begins of variables that torch itself sets when it imports a part of it


class _Autograd:
    """The mode of autograd in this thread, as a flag."""

    @property
    def is_enabled(self):
        return torch.is_grad_enabled()

    @is_enabled.setter
    def is_enabled(self, value):
        torch.set_grad_enabled(value)


AUTOGRAD = _Autograd()


def _variables():
    """Return the variables of this context that have plain values."""
    return {key: value for key, value in contextvars.copy_context().items() if isinstance(value, (*PLAIN, enum.Enum))}


def _environment():
    return {key: value for key, value in os.environ.items() if not key.startswith(_OF_TORCH)}


class Flags:
    """The flags of modules and tensors as they are before a capture."""

    def __init__(self, given, fakes, modules, arguments):
        """@fakes: id of a parameter or a buffer -> the fake tensor that stands for it in the capture. @modules: others
        than those of the model that the step reaches; some may be of the model. @arguments: {index: fake tensor}.
        """
        self.is_enabled, self.variables, self.environment = torch.is_grad_enabled(), _variables(), _environment()
        self.arguments = [(i, fake) for i, fake in arguments.items() if not fake.requires_grad]
        self.modes = {id(module): (module, module.training) for module in (*(own for _, own in given.modules), *modules)}
        self.tensors = [(t, fakes[id(t)], fakes[id(t)].requires_grad) for _, t in (*given.params, *given.buffers)]
        self.buffers = [(name, fakes[id(t)]) for name, t in given.buffers]
        self.hooks = [(name, fakes[id(t)], hooks_of(fakes[id(t)])) for name, t in given.params]

    def changed(self):
        """Return (module or tensor, flag, value) of each flag that the step leaves other than before."""
        changed = [key.name for key, value in _variables().items() if self._before(key) is not value]
        changed += self._changed_environment()
        if changed:
            refuse_change(f"the variable {changed[0]} of the context or the environment")
        for name, fake in self.buffers:
            if fake.is_leaf and fake.grad is not None:
                raise CannotCapture(f"the step leaves a gradient in the buffer {name}; make it a parameter", "backward")
        for name, fake, before in self.hooks:
            if hooks_of(fake) != before:
                raise CannotCapture(f"the step registers or removes a hook of the parameter {name}; do so outside of it", "Python state")
        found = [(module, "training", module.training) for module, before in self.modes.values() if module.training != before]
        if torch.is_grad_enabled() != self.is_enabled:
            found.append((AUTOGRAD, "is_enabled", torch.is_grad_enabled()))
        return found + [(t, "requires_grad", fake.requires_grad) for t, fake, before in self.tensors
                        if fake.is_leaf and fake.requires_grad != before]

    def _changed_environment(self):
        now = _environment()
        return [key for key in {**self.environment, **now} if now.get(key) != self.environment.get(key)]

    def _before(self, variable):
        """Return the value of a variable of the context before the capture, or its default."""
        if variable in self.variables:
            return self.variables[variable]
        try:
            return contextvars.Context().run(variable.get)
        except LookupError:
            return ABSENT

    def wanting(self):
        """Return the indices of arguments that the step lets require a gradient."""
        return [i for i, fake in self.arguments if fake.is_leaf and fake.requires_grad]

    def restore(self):
        """Give all modules and autograd the mode that they had."""
        AUTOGRAD.is_enabled = self.is_enabled
        for key, value in _variables().items():
            if self._before(key) is not value and self._before(key) is not ABSENT:
                key.set(self._before(key))
        for key in self._changed_environment():
            os.environ.pop(key, None)
            os.environ.update({key: self.environment[key]} if key in self.environment else {})
        for module, before in self.modes.values():
            module.training = before


def present(given, changed, arguments=()):
    """Return (module or tensor, flag, value) of the model's flags, of those of @arguments and of those that a step changed."""
    things = [(module, "training") for _, module in given.modules]
    things += [(t, "requires_grad") for t in (*(t for _, t in (*given.params, *given.buffers)), *arguments)] + [(AUTOGRAD, "is_enabled")]
    things += [(thing, name) for thing, name, _ in changed if name == "training" and not given.has(thing)]
    return [(thing, name, getattr(thing, name)) for thing, name in things]


def put(flags):
    """Set flags as changed() and present() return them."""
    for thing, name, value in flags:
        if getattr(thing, name) != value:
            setattr(thing, name, value)
