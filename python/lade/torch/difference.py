# SPDX-License-Identifier: Apache-2.0
"""Find the ops whose bits first differ between a captured step and the uncaptured one, for the audit's message.

Both steps run once more from one state, and every result of every op is digested. A captured call differs if no
uncaptured call of the same op has its bits. Results that no kernel writes, such as those of empty(), are left out.
"""
import re
import sys

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

_NAMED_MAX = 3
_UNWRITTEN = ("aten.empty", "aten.new_empty", "aten.empty_like")


def _digests(out, bits):
    """Return {position: digest} of the tensors of a result."""
    leaves = pytree.tree_leaves(out)
    return {i: bits(t) for i, t in enumerate(leaves) if isinstance(t, torch.Tensor) and t.numel()}


class _Uncaptured(TorchDispatchMode):
    """Within this mode the results of all ops are digested."""

    def __init__(self, bits):
        super().__init__()
        self.bits, self.found = bits, {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for i, digest in _digests(out, self.bits).items():
            self.found.setdefault((str(func), i), set()).add(digest)
        return out


class _Captured:
    """Within this context the calls of a generated function are noted: (line, digests)."""

    def __init__(self, function, bits):
        self.scope, self.bits, self.calls = function.__globals__, bits, []

    def __enter__(self):
        self.held = {name: call for name, call in self.scope.items() if name.startswith("f_")}
        self.scope.update((name, self._noting(call)) for name, call in self.held.items())
        return self

    def __exit__(self, *fault):
        self.scope.update(self.held)

    def _noting(self, call):
        def noted(*args, **kwargs):
            out = call(*args, **kwargs)
            self.calls.append((sys._getframe(1).f_lineno, _digests(out, self.bits)))
            return out
        return noted


def others(planned, run_captured, run_uncaptured, bits):
    """Return a text that names the first ops whose bits differ, or an empty text. Both runs begin from one state."""
    with _Captured(planned.function, bits) as captured:
        run_captured()
    with _Uncaptured(bits) as uncaptured:
        run_uncaptured()
    lines, found = planned.source.splitlines(), []
    for line, digests in captured.calls:
        number = re.match(r"\s*v(\d+)", lines[line - 1])
        if number is None:
            continue  # it has no result
        node = planned.values.nodes[int(number[1])]
        op = str(node.target)
        if node in planned.values.is_view or op.startswith(_UNWRITTEN):
            continue
        other = [i for i, digest in digests.items() if digest not in uncaptured.found.get((op, i), (digest,))]
        if other:
            where = node.meta.get("lade_module")
            found.append(f"{op} result {other[0]}" + (f" in {where}" if where else ""))
        if len(found) == _NAMED_MAX:
            break
    return ", then ".join(found)
