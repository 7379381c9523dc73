# SPDX-License-Identifier: Apache-2.0
"""Builders of training-step graphs: a forward half by calls, the backward half from a tape.

`Step` holds storages and ops as docs/graph.md describes them. `Net` adds an autograd of images: each forward call
notes its backward op, which reads the gradient and the tensors that PyTorch's autograd would save for it. A tensor
with several readers gets its gradients summed pairwise by `sum` ops, as autograd accumulates them. The gradients of
parameters are results of the step, or are read by one update op each.

Times are a roofline of a large GPU in FP32: the larger of arithmetic and memory traffic, plus a launch.
"""
import json

ELEMENT = 4               # bytes of a number
LAUNCH_NS = 4000          # of each op
BYTES_PER_NS = 700        # memory traffic that a GPU of 900 GB/s sustains
FLOPS_PER_NS = 9000       # of dense convolutions and products
GROUPED_FLOPS_PER_NS = 900  # of depthwise convolutions, which keep the units of products idle


class Step:
    """Storages and ops of one step."""

    def __init__(self, has_classes=False):
        self.storages, self.ops, self.kept = [], [], []
        self.has_classes = has_classes
        self.part = "forward"  # the pass of the ops that are added

    def storage(self, name, n_bytes, is_given=False, class_name=None, tier="device"):
        """Add a storage, and return its index."""
        storage = {"name": name, "bytes": n_bytes}
        if is_given:
            storage["given"] = True
        if tier != "device":
            storage["tier"] = tier
        if class_name and self.has_classes:
            storage["class"] = class_name
        self.storages.append(storage)
        return len(self.storages) - 1

    def op(self, name, reads, writes, ns, updates=(), scratch_bytes=0, is_repeatable=True):
        """Add an op; its operands are all of their storages."""
        op = {"name": name, "reads": list(dict.fromkeys(reads)), "writes": list(writes), "ns": ns}
        if self.part != "forward":
            op["pass"] = self.part
        if updates:
            op["updates"] = list(updates)
        if scratch_bytes:
            op["scratch_bytes"] = scratch_bytes
        if not is_repeatable:
            op["repeatable"] = False
        self.ops.append(op)

    def bytes_of(self, storages):
        return sum(self.storages[storage]["bytes"] for storage in storages)

    def save(self, path):
        """Write the graph as JSON, one storage and one op a line."""
        with open(path, "w", encoding="utf-8") as file:
            file.write('{"schema_version":1,"addresses":false,"storages":[\n')
            file.write(",\n".join(json.dumps(storage, separators=(",", ":")) for storage in self.storages))
            file.write('\n],"ops":[\n')
            file.write(",\n".join(json.dumps(op, separators=(",", ":")) for op in self.ops))
            file.write(f'\n],"keep":{json.dumps(self.kept, separators=(",", ":"))}}}\n')


class Tensor:
    """An activation: its storage, its shape without the batch, and whether it has a gradient."""

    def __init__(self, storage, channels, height=1, width=1, has_gradient=True):
        self.storage, self.has_gradient = storage, has_gradient
        self.channels, self.height, self.width = channels, height, width

    def elements(self):
        return self.channels * self.height * self.width


class Net(Step):
    """A convolutional network with a tape. Every method makes one forward op, and returns its output."""

    def __init__(self, batch, is_split=False, has_updates=False, has_classes=False):
        super().__init__(has_classes)
        self.batch, self.is_split, self.has_updates = batch, is_split, has_updates
        self.tape = []       # (output, backward), in forward order
        self.gradients = {}  # storage of a tensor -> storage of its gradient so far
        self.parameters = []  # (name, storage, storage of its gradient)

    # ---- pieces ----

    def tensor(self, name, channels, height=1, width=1):
        n_bytes = self.batch * channels * height * width * ELEMENT
        return Tensor(self.storage(name, n_bytes), channels, height, width)

    def like(self, name, tensor):
        return self.tensor(name, tensor.channels, tensor.height, tensor.width)

    def input(self, channels, height, width):
        """Return the batch, a given storage without a gradient."""
        n_bytes = self.batch * channels * height * width * ELEMENT
        return Tensor(self.storage("input", n_bytes, is_given=True), channels, height, width, has_gradient=False)

    def parameter(self, name, elements):
        return self.storage(name, elements * ELEMENT, is_given=True)

    def timed(self, name, reads, writes, flops=0, flops_per_ns=FLOPS_PER_NS):
        """Add an op whose time is the roofline's."""
        traffic = (self.bytes_of(set(reads)) + self.bytes_of(writes)) // BYTES_PER_NS
        self.op(name, reads, writes, LAUNCH_NS + max(traffic, flops // flops_per_ns))

    def gradient_of(self, tensor, name):
        """Return a new storage for a gradient of @tensor."""
        return self.storage(name, self.storages[tensor.storage]["bytes"])

    def accumulate(self, tensor, gradient):
        """Note a gradient of @tensor; a second one is summed with the first."""
        if not tensor.has_gradient:
            return
        before = self.gradients.get(tensor.storage)
        if before is not None:
            total = self.gradient_of(tensor, f"d.sum{len(self.ops)}")
            self.timed(f"sum{len(self.ops)}", [before, gradient], [total])
            gradient = total
        self.gradients[tensor.storage] = gradient

    def parameter_gradient(self, name, parameter):
        gradient = self.storage(f"{name}.dw", self.storages[parameter]["bytes"])
        self.parameters.append((name, parameter, gradient))
        return gradient

    # ---- layers ----

    def product(self, name, x, y, elements, flops, flops_per_ns=FLOPS_PER_NS):
        """Add a layer with weights, whose gradients read its input and its weights: one op, or two if split."""
        weights = self.parameter(f"{name}.w", elements)
        self.timed(name, [x.storage, weights], [y.storage], flops, flops_per_ns)

        def backward(g):
            if not x.has_gradient:
                self.timed(f"{name}.bwd", [g, x.storage], [self.parameter_gradient(name, weights)], flops, flops_per_ns)
                return
            dx, dw = self.gradient_of(x, f"{name}.dx"), self.parameter_gradient(name, weights)
            if self.is_split:
                self.timed(f"{name}.wgrad", [g, x.storage], [dw], flops, flops_per_ns)
                self.timed(f"{name}.dgrad", [g, weights], [dx], flops, flops_per_ns)
            else:
                self.timed(f"{name}.bwd", [g, x.storage, weights], [dx, dw], 2 * flops, flops_per_ns)
            self.accumulate(x, dx)

        self.tape.append((y, backward))
        return y

    def conv(self, name, x, channels, kernel, stride=1, groups=1, padding=None):
        if isinstance(kernel, int):
            kernel = (kernel, kernel)
        pads = (kernel[0] // 2, kernel[1] // 2) if padding is None else (padding, padding)
        y = self.tensor(name, channels, (x.height + 2 * pads[0] - kernel[0]) // stride + 1,
                        (x.width + 2 * pads[1] - kernel[1]) // stride + 1)
        elements = channels * (x.channels // groups * kernel[0] * kernel[1])
        flops = 2 * self.batch * y.height * y.width * elements
        return self.product(name, x, y, elements + channels, flops,
                            FLOPS_PER_NS if groups == 1 else GROUPED_FLOPS_PER_NS)

    def linear(self, name, x, channels):
        elements = x.elements() * channels
        return self.product(name, x, self.tensor(name, channels), elements + channels, 2 * self.batch * elements)

    def norm(self, name, x):
        """Batch norm. Its backward reads its input and the batch's statistics."""
        y = self.like(name, x)
        weights = self.parameter(f"{name}.w", 2 * x.channels)
        stats = self.storage(f"{name}.stats", 2 * x.channels * ELEMENT)
        self.timed(name, [x.storage, weights], [y.storage, stats])

        def backward(g):
            dx, dw = self.gradient_of(x, f"{name}.dx"), self.parameter_gradient(name, weights)
            self.timed(f"{name}.bwd", [g, x.storage, weights, stats], [dx, dw])
            self.accumulate(x, dx)

        self.tape.append((y, backward))
        return y

    def relu(self, name, x):
        """An activation whose backward reads its output, as ReLU's does, and that of ReLU6 in place."""
        y = self.like(name, x)
        self.timed(name, [x.storage], [y.storage])

        def backward(g):
            dx = self.gradient_of(x, f"{name}.dx")
            self.timed(f"{name}.bwd", [g, y.storage], [dx])
            self.accumulate(x, dx)

        self.tape.append((y, backward))
        return y

    def maxpool(self, name, x, kernel, stride, padding=0):
        """Its backward reads its input and the 8-byte indices of the largest elements."""
        y = self.tensor(name, x.channels, (x.height + 2 * padding - kernel) // stride + 1,
                        (x.width + 2 * padding - kernel) // stride + 1)
        indices = self.storage(f"{name}.indices", self.batch * y.elements() * 8)
        self.timed(name, [x.storage], [y.storage, indices])

        def backward(g):
            dx = self.gradient_of(x, f"{name}.dx")
            self.timed(f"{name}.bwd", [g, x.storage, indices], [dx])
            self.accumulate(x, dx)

        self.tape.append((y, backward))
        return y

    def resample(self, name, x, height, width):
        """Average pooling or bilinear upsampling: its backward reads the gradient alone."""
        y = self.tensor(name, x.channels, height, width)
        self.timed(name, [x.storage], [y.storage])

        def backward(g):
            dx = self.gradient_of(x, f"{name}.dx")
            self.timed(f"{name}.bwd", [g], [dx])
            self.accumulate(x, dx)

        self.tape.append((y, backward))
        return y

    def add(self, name, a, b):
        """A residual sum: its gradient is both inputs' gradient, without an op."""
        y = self.like(name, a)
        self.timed(name, [a.storage, b.storage], [y.storage])

        def backward(g):
            self.accumulate(a, g)
            self.accumulate(b, g)

        self.tape.append((y, backward))
        return y

    def concat(self, name, parts):
        y = self.tensor(name, sum(part.channels for part in parts), parts[0].height, parts[0].width)
        self.timed(name, [part.storage for part in parts], [y.storage])

        def backward(g):
            pieces = [self.gradient_of(part, f"{name}.d{i}") for i, part in enumerate(parts)]
            self.timed(f"{name}.bwd", [g], pieces)
            for part, piece in zip(parts, pieces):
                self.accumulate(part, piece)

        self.tape.append((y, backward))
        return y

    def loss(self, x):
        """Cross entropy of each pixel or image, the last op of the forward half; a result of the step."""
        target = self.storage("target", self.batch * x.height * x.width * 8, is_given=True)
        logs, loss = self.like("logp", x), self.storage("loss", ELEMENT)
        self.timed("logsoftmax", [x.storage], [logs.storage])
        self.timed("nll", [logs.storage, target], [loss])
        self.kept.append(loss)

        def backward(_):
            dlogs, dx = self.gradient_of(x, "nll.dx"), self.gradient_of(x, "logsoftmax.dx")
            self.timed("nll.bwd", [target], [dlogs])
            self.timed("logsoftmax.bwd", [dlogs, logs.storage], [dx])
            self.accumulate(x, dx)

        self.tape.append((None, backward))

    # ---- the other half ----

    def finish(self):
        """Add the backward half from the tape, and the updates if asked for; return the step."""
        self.part = "backward"
        for output, backward in reversed(self.tape):
            backward(self.gradients.pop(output.storage) if output else None)
        self.part = "update"
        for name, weights, gradient in self.parameters:
            if self.has_updates:
                momentum = self.storage(f"{name}.m", self.storages[weights]["bytes"], is_given=True)
                ns = LAUNCH_NS + 5 * self.storages[weights]["bytes"] // BYTES_PER_NS
                self.op(f"{name}.update", [gradient], [], ns, updates=[weights, momentum])
            else:
                self.kept.append(gradient)
        return self
