# SPDX-License-Identifier: Apache-2.0
"""Straight-line Python from a plan's list of instructions.

The generated function calls the ops of the graph in the plan's order. It deletes names so that each storage is freed where
the plan frees it. A put empties the storage and keeps its tensors, a get fills the same storage again, so views stay valid.
Copies run beside ops. A put's storage is emptied when the plan needs its bytes, at the latest. An op waits for a get that
brings its operand. A drop deletes all names of a storage. A view is made where an op first needs it, and made again after
its storage was dropped and computed again. No interpreter runs: a step costs as much Python as eager's own.
"""
import torch
from torch.fx.node import Node

from ...errors import Error
from ...graph import DEVICE, DROP, OP, PUT, REDO
from .. import optimizers
from ..pricing import kernels
from ..tracing.branches import BRANCH, VALUES
from ..values import MAY_END, flat_args


FINAL = "R.is_updated = True"  # after this a step cannot begin again
_KEPT_MAX = 16 << 20 # bytes of given storages that a step may write before it may end, such as running statistics


class Room:
    """Bytes on the device while copies are under way: says which copies to wait for, so that the peak stays the plan's."""

    def __init__(self, values, peak_bytes):
        self.bytes, self.peak_bytes = [s["bytes"] for s in values.storages], peak_bytes
        self.live = values.at_start()
        self.n_bytes = sum(self.bytes[k] for k in self.live)
        self.out, self.coming = {}, {}  # storages of puts and gets under way, oldest first

    def _ended(self, storages):
        """Note that copies have ended; return them."""
        for k in storages:
            if self.out.pop(k, None) is not None:
                self.n_bytes -= self.bytes[k]
            self.coming.pop(k, None)
        return storages

    def _make(self, n_bytes):
        """Return the puts to wait for until @n_bytes more are free: the oldest."""
        found = []
        while self.out and self.n_bytes + n_bytes > self.peak_bytes:
            found += self._ended([next(iter(self.out))])
        return found

    def _add(self, storages):
        for k in storages:
            self.live.add(k)
            self.n_bytes += self.bytes[k]

    def before_op(self, op):
        used = dict.fromkeys((*op.reads, *op.writes, *op.updates))
        found = self._ended([k for k in used if k in self.coming or k in self.out])
        new = [k for k in op.writes if k not in self.live]
        found += self._make(sum(self.bytes[k] for k in new) + op.scratch_bytes)
        self._add(new)
        return found

    def before_drop(self, storage):
        found = self._ended([k for k in (storage,) if k in self.coming or k in self.out])
        if storage in self.live:
            self.live.discard(storage)
            self.n_bytes -= self.bytes[storage]
        return found

    def before_put(self, storage):
        found = self._ended([k for k in (storage,) if k in self.coming])
        self.live.discard(storage)
        if self.bytes[storage]:
            self.out[storage] = True
        return found

    def before_get(self, storage):
        found = self._ended([k for k in (storage,) if k in self.out])
        found += self._make(self.bytes[storage])
        self._add([storage])
        if self.bytes[storage]:
            self.coming[storage] = True
        return found

    def all(self):
        return self._ended([*self.out, *self.coming])


class Generator:
    """Writes the function of one plan."""

    def __init__(self, values, instrs, places, peak_bytes):
        self.values, self.instrs, self.places, self.room = values, instrs, places, Room(values, peak_bytes)
        self.number = {node: i for i, node in enumerate(values.nodes)}
        self.lines, self.names = [], {"R": None, "torch": torch, "inf": float("inf"), "nan": float("nan")}
        self.bound, self.of_storage = set(), {}
        self.redrawn = {index for kind, index, _ in instrs if kind == REDO and values.ops[index].draws}
        self.saved_draws = set()
        self.last_end = max((i for i, (kind, index, _) in enumerate(instrs)
                             if kind == OP and values.ops[index].node.target in MAY_END), default=-1)
        self.kept = set()  # given storages that are written before an op which may end the step

    # names

    def name(self, value):
        node, i = value
        return f"v{self.number[node]}" + ("" if i is None else f"_{i}")

    def bind(self, value):
        self.bound.add(value)
        self.of_storage.setdefault(self.values.storage(value), set()).add(value)
        return self.name(value)

    def unbind(self, storage):
        """Delete all names of a storage."""
        held = sorted(self.of_storage.pop(storage, ()), key=self.name)
        if held:
            self.lines.append("del " + ", ".join(map(self.name, held)))
            self.bound.difference_update(held)

    def constant(self, thing, prefix):
        name = f"{prefix}{len(self.names)}"
        self.names[name] = thing
        return name

    def target(self, node):
        name = "f_" + "".join(c if c.isalnum() else "_" for c in str(node.target))
        call = kernels.callable_of(node)
        if call is not node.target:
            name += f"_{self.number[node]}"
        self.names[name] = call
        return name

    # operands

    def ensure(self, value):
        """Emit the lines that bind a value to its name, if it is not bound."""
        if value in self.bound:
            return
        node, i = value
        if value in self.values.mutated_of:
            source = self.values.mutated_of[value]
            self.ensure(source)
            self.lines.append(f"{self.bind(value)} = {self.name(source)}")
        elif node in self.values.is_view:
            self.call(node, self._values_of(node))
        else:
            self._ensure_by_storage(value)

    @staticmethod
    def _values_of(node):
        val = node.meta.get("val")
        if isinstance(val, torch.Tensor):
            return [(node, None)]
        return [(node, i) for i, t in enumerate(val) if isinstance(t, torch.Tensor)]

    def _ensure_by_storage(self, value):
        """Bind an output that shares the storage of an op's other value, by its shape and strides."""
        storage = self.values.storage(value)
        others = sorted(self.of_storage.get(storage, ()), key=self.name)
        if not others:
            raise Error(f"lade: the plan reads {value[0].name} where it is not on the device")
        meta = self.values.metas[value]
        self.lines.append(f"{self.bind(value)} = torch.empty(0, dtype={meta.dtype}, device={self.name(others[0])}.device)"
                          f".set_({self.name(others[0])}.untyped_storage(), {meta.storage_offset()}, "
                          f"{tuple(meta.shape)}, {tuple(meta.stride())})")

    def text(self, arg):
        """Return the source of an argument."""
        if isinstance(arg, Node):
            return self.name(self.values.value(arg))
        if isinstance(arg, (list, tuple)):
            inner = ", ".join(map(self.text, arg))
            return f"[{inner}]" if isinstance(arg, list) else f"({inner}{',' if len(arg) == 1 else ''})"
        if isinstance(arg, (torch.dtype, int, float, bool, str)) or arg is None:
            return repr(arg)
        return self.constant(arg, "c")

    def call(self, node, outputs):
        """Emit a call that binds @outputs."""
        for operand in flat_args(node):
            self.ensure(self.values.value(operand))
        args = [self.text(a) for a in node.args] + [f"{k}={self.text(a)}" for k, a in node.kwargs.items()]
        call = f"{self.target(node)}({', '.join(args)})"
        self.lines.append(self._left(node, outputs) + call)

    def _left(self, node, outputs):
        val = node.meta.get("val")
        if not outputs:
            return ""
        if not isinstance(val, (list, tuple)):
            return f"{self.bind(outputs[0])} = "
        made = {i: value for value in outputs for i in [value[1]]}
        return ", ".join(self.bind(made[i]) if i in made else "_" for i in range(len(val))) + ", = "

    # instructions

    def _wait(self, storages):
        """Emit waits for copies of storages."""
        self.lines += [f"R.wait({k})" for k in storages]

    def _before_update(self, op, at):
        """Emit the lines before instruction @at, which writes given storages: a step that may still end keeps their bytes."""
        new = [k for k in op.updates if self.values.storages[k]["is_given"] and k not in self.kept]
        n_bytes = sum(self.values.storages[k]["bytes"] for k in self.kept.union(new))
        is_update = op.node.target in (optimizers.UPDATE, optimizers.UPDATE_ALL)
        if at > self.last_end or is_update or n_bytes > _KEPT_MAX:
            self.lines.append(FINAL)
            return
        self.lines += [f"R.keep({self._held(k)})" for k in new]
        self.kept.update(new)

    def _op(self, index, is_again, at):
        op = self.values.ops[index]
        self._wait(self.room.before_op(op))
        if self.values.changes_given(op):
            self._before_update(op, at)
        if is_again:
            for storage in op.writes:
                self.unbind(storage)
        for operand in flat_args(op.node):
            self.ensure(self.values.value(operand))
        # On the CPU also where no redo follows: the generator's state is in the price of every draw.
        if op.draws and (is_again or index in self.redrawn or self.values.device.type == "cpu"):
            self.lines.append(f"R.redraw({index})" if is_again else f"R.draw({index if index in self.redrawn else -1})")
        is_watched = op.is_watched and not is_again
        if is_watched:
            self.lines.append(f"R.watch({index})")
        if op.node.target is optimizers.UPDATE:
            self._update(op.node)
        elif op.node.target is BRANCH:
            flag, wanted, number = op.node.args
            self.lines.append(f"R.branch({self.text(flag)}, {wanted}, {number})")
        elif op.node.target is VALUES:
            self.lines.append(f"R.values({', '.join(map(self.text, op.node.args))})")
        elif op.node.target is optimizers.UPDATE_ALL:
            _, grads, _, found, _ = op.node.args
            self.lines.append(f"R.update_all({index}, {self.text(grads)}, {self.text(found)})")
        else:
            self.call(op.node, op.outputs)
        if is_watched:
            self.lines.append("R.watched()")
        if index in self.redrawn and is_again:
            self.lines.append("R.redrawn()")

    def _update(self, node):
        _, grad, _, found, index = node.args
        self.lines.append(f"R.update({index}, {self.text(grad)}, {self.text(found)})")

    def _updates(self, at):
        """Emit one call for updates that follow one another at instruction @at; return how many instructions it takes.

        Gradients of the first ones are freed after the last one then. No op between them takes memory, so the peak is
        the plan's. One call has less of Python than several.
        """
        ops, drops, read = [], [], set()
        for kind, index, _ in self.instrs[at:]:
            op = self.values.ops[index] if kind == OP else None
            if op is not None and op.node.target is optimizers.UPDATE and not op.scratch_bytes \
                    and (not ops or op.node.args[3] == ops[0].node.args[3]):
                ops.append(op)
                read.update(op.reads)
            elif kind == DROP and index in read and self.values.storages[index]["tier"] == DEVICE:
                drops.append(index)
            else:
                break
        if len(ops) < 2:
            return 0
        for op in ops:
            self._wait(self.room.before_op(op))
            for operand in flat_args(op.node):
                self.ensure(self.values.value(operand))
        numbers, grads = [op.node.args[4] for op in ops], [op.node.args[1] for op in ops]
        self.lines.append(f"R.update_some({tuple(numbers)}, {self.text(grads)}, {self.text(ops[0].node.args[3])})")
        for index in drops:
            self._wait(self.room.before_drop(index))
            self._drop(index)
        return len(ops) + len(drops)

    def _drop(self, storage):
        """Free a made storage by its names; one that lives on a tier and is unchanged keeps its names."""
        if self.values.storages[storage]["tier"] == DEVICE:
            self.unbind(storage)
        else:
            self.lines.append(f"R.release({storage}, {self._held(storage)})")

    def _held(self, storage):
        others = sorted(self.of_storage.get(storage, ()), key=self.name)
        if not others:
            raise Error(f"lade: the plan moves storage {storage} where it is not on the device")
        return self.name(others[0])

    def generate(self, name):
        """Return (source, names): a function of the given tensors, in the order of the graph's inputs."""
        inputs = [self.bind((node, None)) for node in self.values.inputs]
        for node, tensor in self.values.constants.items():
            self.names[self.bind((node, None))] = tensor
        constants = {self.name((node, None)) for node in self.values.constants}
        done = 0  # instructions before this one are emitted
        for i, (kind, index, tier) in enumerate(self.instrs):
            if i >= done:
                done = i + self._updates(i)
            if i < done:
                continue
            if kind in (OP, REDO):
                self._op(index, kind == REDO, i)
            elif kind == DROP:
                self._wait(self.room.before_drop(index))
                self._drop(index)
            else:
                self._wait(self.room.before_put(index) if kind == PUT else self.room.before_get(index))
                verb = "put" if kind == PUT else "get"
                self.lines.append(f"R.{verb}({index}, {tier}, {self.places.get(i, 0)}, {self._held(index)})")
        self._wait(self.room.all())
        results = [self.values.value(node) for node in self.values.nodes[-1].args[0]]
        for value in results:
            self.ensure(value)
        head = [f"def {name}(R, {', '.join(inputs) or '*_'}):"]
        self._local_constants(constants, head)
        body = [f"  {line}" for line in self.lines]
        return "\n".join([*head, *body, "  return [" + ", ".join(map(self.name, results)) + "]"]), self.names

    def _local_constants(self, constants, head):
        """Make constants local names, which a drop may delete."""
        for local in sorted(constants):
            self.names["g_" + local] = self.names.pop(local)
            head.append(f"  {local} = g_{local}")


def compiled(values, plan, places, name="step"):
    """Return the function of a plan, and its source. @places: the host's offset of each put and get, by position."""
    source, names = Generator(values, plan.instrs, places, plan.info["planned_peak_bytes"]).generate(name)
    scope = dict(names)
    exec(compile(source, f"<lade {name}>", "exec"), scope)  # the text comes from this module alone
    return scope[name], source


__all__ = ["compiled"]
