# SPDX-License-Identifier: Apache-2.0
"""The plans of one form of a step's arguments: shapes, modes and plain values are equal, and each plan has its own answers.

Answers are branches, shapes and counts that values decide. A step whose values give new answers in each call makes a plan in
each call; a warning tells the user once. When PLANS_MAX plans were made and no call met one again, older ones only hold
memory, so they are dropped.
"""
import weakref

PLANS_MAX = 32  # of one form
_NEW_MAX = 3    # new plans in a row, without a call that met an older one, before the user is told


class Plans:
    """Plans of one form, the one that served the last call at the end."""

    def __init__(self):
        self.all, self.n_made, self.n_new, self.is_met = [], 0, 0, False  # n_new: since a call ended by an older plan
        self.branch = ()  # of the last call that ended

    def __iter__(self):
        return iter(self.all)

    def __len__(self):
        return len(self.all)

    def find(self, branch, leaves):
        """Return the plan of a branch whose answers about the arguments hold, or None.

        A plan of the whole step that has these answers and more serves too. It asks all its questions again. If one of the
        others is answered differently, the step begins anew with that answer.
        """
        exact = [plan for plan in self.all if plan.planned.trace.branch == branch]
        longer = [plan for plan in reversed(self.all) if not plan.planned.trace.is_cut
                  and len(plan.planned.trace.branch) > len(branch) > 0 and plan.planned.trace.branch[:len(branch)] == branch]
        for plan in (*exact, *longer):
            if plan.planned.trace.answers.hold(leaves):
                self.all.append(self.all.pop(self.all.index(plan)))
                return plan
        return None

    def has_room(self):
        """True if one more plan may be made: beyond the most it takes the place of another branch, shape or count."""
        return len(self.all) < PLANS_MAX or any(map(_is_open, self.all))

    def add(self, plan):
        """Keep a new plan; beyond the most the open one that was used longest ago goes. pre: has_room()."""
        self.n_made += 1
        self.n_new += not plan.planned.trace.is_cut
        if len(self.all) >= PLANS_MAX:
            self.all.remove(next(filter(_is_open, self.all)))
        if self.n_made > PLANS_MAX and not self.is_met:
            self.all = [other for other in self.all if not _is_open(other)]
        self.all.append(plan)
        plan.plans = weakref.ref(self)  # no cycle: a step that ends frees its plans' memory at once

    def ended(self, plan):
        """Note the plan of a call that has ended: the next call begins with it if computed values decide shapes."""
        if plan.n_ended:
            self.is_met, self.n_new = True, 0
        plan.n_ended, trace = plan.n_ended + 1, plan.planned.trace
        self.branch = () if all(isinstance(answer, bool) for answer in trace.branch) else trace.branch

    def remove(self, plan):
        self.all = [other for other in self.all if other is not plan]

    def note(self):
        """Return a text for the user if the last calls met no older plan, or None."""
        trace = self.all[-1].planned.trace
        lines = [line for answer, line in zip(trace.branches, trace.branch_lines) if not isinstance(answer, bool)]
        line = trace.answers.open_line or (lines[0] if lines else None)
        if self.n_new < _NEW_MAX or trace.is_cut or line is None:
            return None
        return (f"lade: {self.n_new} calls of the step had {self.n_new} different shapes or numbers by values ({line}); each is "
                "captured and planned anew, which takes longer than a step. Return the tensor and read it after the step, or keep to "
                "one size")


def _is_open(plan):
    """True if calls may give many other plans of the form: values decide a branch, a shape or a count of this one."""
    return bool(plan.planned.trace.branch) or plan.planned.trace.answers.is_open
