# SPDX-License-Identifier: Apache-2.0
"""Ops whose kernels act beyond their schema, or choose by the thread's mode."""
import torch

# Ops that write operands which their schema calls read-only: running statistics.
HIDDEN_WRITES = {"aten::native_batch_norm": (3, 4), "aten::cudnn_batch_norm": (3, 4), "aten::miopen_batch_norm": (3, 4),
                 "aten::batch_norm_update_stats": (1, 2), "aten::batch_norm_gather_stats": (3, 4),
                 "aten::batch_norm_gather_stats_with_counts": (3, 4)}
# Ops whose scratch depends on values: the one of all their operands' elements that takes the most. A larger norm takes a
# longer series for matrix_exp.
SCRATCH_BY_VALUES = {"aten::linalg_matrix_exp": 64.0}
# The gradient of the largest rows of bags takes scratch by the bags that are not empty. Made-up sizes of 1 make all so.
_BAGS, _BAGS_MODE, _BAGS_MAX = "aten::_embedding_bag_backward", 8, 2
# Writes at a mask find its places, whose number is not known before the step where the step computes the mask.
_MASKED_WRITES = {"aten::index_put", "aten::index_put_", "aten::_index_put_impl_"}
# oneDNN's LSTM returns its workspace only where gradients are recorded.
_WORKSPACE = {"aten::mkldnn_rnn_layer": 3}


def _recording(op):
    """Return @op, called as autograd calls it: below its own recording, with gradients on."""
    def call(*args, **kwargs):
        with torch._C._AutoDispatchBelowAutograd(), torch.enable_grad():
            return op(*args, **kwargs)
    return call


def max_scratch_value(node):
    """Return the value of made-up operands with which a call takes the most scratch, or None if none differs."""
    schema = getattr(node.target, "_schema", None)
    if schema is not None and schema.name == _BAGS and node.args[_BAGS_MODE] == _BAGS_MAX:
        return 1
    return SCRATCH_BY_VALUES.get(schema.name) if schema is not None else None


def is_bound(values, node):
    """True if the scratch of a call is the most that its operands may take: a mask counts as true everywhere."""
    if max_scratch_value(node) is not None:
        return True
    if getattr(node.target, "_schema", None) is None or node.target._schema.name not in _MASKED_WRITES:
        return False

    def meta(arg):
        return values.metas[values.value(arg)]
    masks = [index for index in node.args[1] if index is not None and meta(index).dtype in (torch.bool, torch.uint8)]
    is_filled = meta(node.args[2]).numel() == 1  # such a write needs no places
    return bool(masks) and not is_filled and "lade_digest" not in node.meta


def callable_of(node):
    """Return the function that runs a node's call."""
    if node.target._schema.name not in _WORKSPACE or not node.meta.get("lade_grad"):
        return node.target
    return _recording(node.target)


def is_opaque(node, output):
    """True if an output is scratch of a kernel: its size is the kernel's own, and other kernels alone read it."""
    return output is not None and _WORKSPACE.get(node.target._schema.name) == output
