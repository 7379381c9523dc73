# SPDX-License-Identifier: Apache-2.0
"""Exceptions of the package. Each has one line: the fault, its place, and the remedy."""


class Error(Exception):
    """A call failed. @code is the negative errno of the library, or None."""

    def __init__(self, text, code=None):
        super().__init__(text)
        self.code = code


class DoesNotFit(Error):
    """No plan fits the budget. @min_budget_bytes is the smallest budget that the search found."""

    def __init__(self, text, min_budget_bytes):
        super().__init__(text)
        self.min_budget_bytes = min_budget_bytes


class CannotCapture(Error):
    """A step cannot become a graph. @op names the reason, @line the place in the user's code."""
    other_guess = None  # answers about branches with which the capture is worth repeating
    n_ops = 0           # captured before it

    def __init__(self, text, op, line=None):
        super().__init__(f"{op}: {text}" + (f" ({line})" if line else ""))
        self.op, self.line = op, line

    def within(self, line):
        """Take @line, that of the whole step, if no nearer one is known."""
        if self.line is None and line is not None:
            self.line, self.args = line, (f"{self} ({line})",)
