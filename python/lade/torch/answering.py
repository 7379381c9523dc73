# SPDX-License-Identifier: Apache-2.0
"""Answers to questions of a capture about computed values: the ops before the question run within the capture.

Such a part of the step has a plan of its own, which keeps the step's budget. It begins where the step begins, so it draws
the numbers that the step will draw. Whatever it writes is brought back, and the capture goes on with the answer. A capture
costs more than the runs of all its parts, so a step whose routing is new in each call is captured once a call.

A budget of P % gives a part P % of its own unconstrained peak. That peak is at most the whole step's, so the part stays
within the step's budget. A part that does not fit so is planned for its smallest budget, which is compared with the step's.
"""
import contextlib

import torch
from torch.utils._python_dispatch import _disable_current_modes

from ..errors import DoesNotFit
from . import generators
from .interrupts import Interrupts, without_autocast
from .planned import Planned, forget_batch
from .running.runtime import Runtime
from .tracing.branches import Otherwise

_SEARCH_SECONDS = 0.1, 0.1  # of a part's plan: min, max
_LONG_SECONDS = 3.0, 3.0    # before a refusal, as the search for a whole step takes


def planned_part(step, part):
    """Return the plan of a part of a step. DoesNotFit after a long search."""
    wide = step.limits.smallest() if step.limits.is_share else step.limits
    try:
        for limits in (step.limits, wide) if step.limits.is_share else (wide,):
            with contextlib.suppress(DoesNotFit):
                return Planned(part, step.pricer, limits, step.device, _SEARCH_SECONDS)
        return Planned(part, step.pricer, wide, step.device, _LONG_SECONDS)
    finally:
        forget_batch(part)


class Answerer:
    """Answers the questions of one capture of a step."""

    def __init__(self, step):
        self.step, self.peak_bytes = step, 0  # peak_bytes: the largest of the parts' plans

    def __call__(self, part):
        """Return the answer to the question at the end of a part, or None: then the part becomes a plan that reports why."""
        with _disable_current_modes(), torch._C.DisableTorchFunction(), torch.no_grad(), without_autocast():
            try:
                planned = planned_part(self.step, part)
                answers = None if planned.is_final else self._run(planned)
            except Exception:  # a plan of the part meets it again outside of the capture, and raises it there
                return None
            self.peak_bytes = max(self.peak_bytes, planned.plan.info["planned_peak_bytes"])
        is_last = answers is not None and len(answers) == len(part.branches) and answers[:-1] == part.branches[:-1]
        return answers[-1] if is_last else None  # another branch is due before the question

    def _run(self, planned):
        """Run a part; return the answers that its step has to begin with, or None. All is as before then."""
        step, answers, tensors = self.step, None, planned.trace.tensors
        if step.at_work is not None:  # nothing waits on its tiers
            step.at_work.rest()
            step.at_work = None
        before, runtime = generators.states_of_step(step.device), Runtime(planned, step.store)
        with Interrupts() as interrupts:
            stand_ins = planned.stand_ins(tensors).begin()
            try:
                runtime.begin(None, tensors)
                planned.function(runtime, *tensors)
            except Otherwise as fault:
                answers = fault.branch
            finally:
                lost = runtime.bring_back()
                if lost is not None:
                    step.broken = f"{len(runtime.away)} storages cannot be fetched: {lost}"
                runtime.undo()
                stand_ins.end()
                runtime.rest()
                generators.set_states_of_step(step.device, before)
        interrupts.deliver()
        return answers
