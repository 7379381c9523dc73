# SPDX-License-Identifier: Apache-2.0
"""More networks with skips: builders for nets.py.

Each takes (net, size, layers), as those of nets.py do. Tokens of a transformer are an image of one column, so that its
products are 1x1 convolutions.
"""


def block(net, name, x, channels, kernel, stride=1, groups=1, padding=None, has_relu=True):
    """Convolution, batch norm, ReLU."""
    x = net.norm(f"{name}.bn", net.conv(f"{name}.conv", x, channels, kernel, stride, groups, padding))
    return net.relu(f"{name}.relu", x) if has_relu else x


def fcn8(net, size, _):
    """FCN-8s on VGG-16: two skips from poolings into sums of upsampled scores."""
    x, pools = net.input(3, *size), []
    for stage, (n, channels) in enumerate(((2, 64), (2, 128), (3, 256), (3, 512), (3, 512))):
        for i in range(n):
            x = net.relu(f"s{stage}.relu{i}", net.conv(f"s{stage}.conv{i}", x, channels, 3))
        x = net.maxpool(f"s{stage}.pool", x, 2, 2)
        pools.append(x)
    for i, kernel in enumerate((7, 1)):
        x = net.relu(f"fc{i}.relu", net.conv(f"fc{i}", x, 4096, kernel))
    x = net.conv("score", x, 21, 1)
    for level in (3, 2):
        x = net.resample(f"up{level}", x, pools[level].height, pools[level].width)
        x = net.add(f"sum{level}", x, net.conv(f"score{level}", pools[level], 21, 1))
    net.loss(net.resample("up", x, *size))


def segnet(net, size, _):
    """An encoder and a decoder of equal depth, with norms and without skips."""
    x = net.input(3, *size)
    plan = ((2, 64), (2, 128), (3, 256), (3, 512), (3, 512))
    sizes = []
    for stage, (n, channels) in enumerate(plan):
        for i in range(n):
            x = block(net, f"e{stage}.{i}", x, channels, 3)
        sizes.append((x.height, x.width))
        x = net.maxpool(f"e{stage}.pool", x, 2, 2)
    for stage in reversed(range(len(plan))):
        x = net.resample(f"d{stage}.up", x, *sizes[stage])
        n, channels = plan[stage]
        for i in range(n):
            last = plan[max(stage - 1, 0)][1] if i == n - 1 else channels
            x = block(net, f"d{stage}.{i}", x, last, 3)
    net.loss(net.conv("head", x, 21, 1))


def unetpp(net, size, layers):
    """U-Net++: every level reads all earlier nodes of its row (Zhou et al. 2018)."""
    depth = layers or 4
    nodes = {}
    x = net.input(3, *size)
    for level in range(depth):
        x = block(net, f"n{level}.0", x if not level else net.maxpool(f"pool{level}", x, 2, 2), 32 << level, 3)
        nodes[level, 0] = x
    for column in range(1, depth):
        for level in range(depth - column):
            skip, below = nodes[level, 0], nodes[level + 1, column - 1]
            up = net.resample(f"up{level}.{column}", below, skip.height, skip.width)
            parts = [nodes[level, c] for c in range(column)] + [up]
            nodes[level, column] = block(net, f"n{level}.{column}", net.concat(f"cat{level}.{column}", parts),
                                         32 << level, 3)
    net.loss(net.conv("head", nodes[0, depth - 1], 2, 1))


def efficientnet(net, size, _):
    """EfficientNet-B0 with its squeezes: a gate from the pooled image scales each block's depthwise part."""
    x = block(net, "stem", net.input(3, *size), 32, 3, 2)
    plan = ((1, 16, 1, 1, 3), (6, 24, 2, 2, 3), (6, 40, 2, 2, 5), (6, 80, 3, 2, 3), (6, 112, 3, 1, 5),
            (6, 192, 4, 2, 5), (6, 320, 1, 1, 3))
    for stage, (factor, channels, n, first_stride, kernel) in enumerate(plan):
        for i in range(n):
            name, stride, hidden, y = f"s{stage}.{i}", 1 if i else first_stride, x.channels * factor, x
            if factor != 1:
                y = block(net, f"{name}.expand", y, hidden, 1)
            y = block(net, f"{name}.depth", y, hidden, kernel, stride, hidden)
            gate = net.relu(f"{name}.squeeze.relu", net.conv(f"{name}.squeeze", net.resample(f"{name}.pool", y, 1, 1),
                                                             max(1, x.channels // 4), 1))
            y = scale(net, f"{name}.scale", y, net.relu(f"{name}.gate", net.conv(f"{name}.excite", gate, hidden, 1)))
            y = block(net, f"{name}.project", y, channels, 1, has_relu=False)
            x = net.add(f"{name}.add", x, y) if stride == 1 and x.channels == channels else y
    x = block(net, "last", x, 1280, 1)
    net.loss(net.linear("head", net.resample("average", x, 1, 1), 1000))


def scale(net, name, x, gate):
    """The product of an image and a gate for each channel; the backward reads both."""
    y = net.like(name, x)
    net.timed(name, [x.storage, gate.storage], [y.storage])

    def backward(g):
        dx, dgate = net.gradient_of(x, f"{name}.dx"), net.gradient_of(gate, f"{name}.dgate")
        net.timed(f"{name}.bwd", [g, x.storage, gate.storage], [dx, dgate])
        net.accumulate(x, dx)
        net.accumulate(gate, dgate)

    net.tape.append((y, backward))
    return y


def hrnet(net, size, layers):
    """Branches of three resolutions that exchange sums after each stage."""
    x = block(net, "stem", net.input(3, *size), 32, 3, 2)
    branches = [x, block(net, "b1", x, 64, 3, 2), block(net, "b2", x, 128, 3, 4)]
    for stage in range(layers or 4):
        for b, y in enumerate(branches):
            z = block(net, f"s{stage}.{b}.a", y, y.channels, 3)
            z = block(net, f"s{stage}.{b}.b", z, y.channels, 3, has_relu=False)
            branches[b] = net.relu(f"s{stage}.{b}.relu", net.add(f"s{stage}.{b}.add", y, z))
        branches = [exchange(net, f"s{stage}.x{b}", branches, b) for b in range(len(branches))]
    parts = [branches[0]] + [net.resample(f"up{b}", y, x.height, x.width) for b, y in enumerate(branches[1:], 1)]
    net.loss(net.conv("head", net.concat("cat", parts), 19, 1))


def exchange(net, name, branches, to):
    total = branches[to]
    for b, y in enumerate(branches):
        if b == to:
            continue
        z = net.conv(f"{name}.from{b}", y, total.channels, 1)
        total = net.add(f"{name}.add{b}", total, net.resample(f"{name}.size{b}", z, total.height, total.width))
    return net.relu(f"{name}.relu", total)


def attention(net, name, q, k, v):
    """Fused attention: its backward reads the inputs, the output, and one number a row."""
    y, sums = net.like(name, q), net.storage(f"{name}.lse", net.batch * q.height * 16 * 4)
    flops = 4 * net.batch * q.height * k.height * q.channels
    net.timed(name, [q.storage, k.storage, v.storage], [y.storage, sums], flops)

    def backward(g):
        parts = [(part, net.gradient_of(part, f"{name}.d{i}")) for i, part in enumerate((q, k, v))]
        reads = [g, q.storage, k.storage, v.storage, y.storage, sums]
        net.timed(f"{name}.bwd", reads, [gradient for _, gradient in parts], 5 * flops // 2)
        for part, gradient in parts:
            net.accumulate(part, gradient)

    net.tape.append((y, backward))
    return y


def attend(net, name, x, source):
    """A residual attention of @x over @source."""
    y = net.norm(f"{name}.norm", x)
    keys = y if source is x else source
    q, k, v = (net.conv(f"{name}.{part}", y if part == "q" else keys, x.channels, 1) for part in "qkv")
    return net.add(f"{name}.add", x, net.conv(f"{name}.o", attention(net, f"{name}.mix", q, k, v), x.channels, 1))


def feed(net, name, x):
    y = net.conv(f"{name}.in", net.norm(f"{name}.norm", x), 4 * x.channels, 1)
    return net.add(f"{name}.add", x, net.conv(f"{name}.out", net.relu(f"{name}.act", y), x.channels, 1))


def translator(net, size, layers):
    """An encoder whose output each decoder layer attends to."""
    n = layers or 4
    x = net.conv("embed", net.input(256, size[0], 1), 512, 1)
    for i in range(n):
        x = feed(net, f"e{i}.mlp", attend(net, f"e{i}.self", x, x))
    memory = net.norm("memory", x)
    y = net.conv("shifted", net.input(256, size[0], 1), 512, 1)
    for i in range(n):
        y = attend(net, f"d{i}.self", y, y)
        y = feed(net, f"d{i}.mlp", attend(net, f"d{i}.cross", y, memory))
    net.loss(net.conv("head", y, 8000, 1))


def uvit(net, size, layers):
    """A transformer with long skips from its first half into its second one (Bao et al. 2023)."""
    n, skips = layers or 4, []
    x = net.conv("embed", net.input(64, size[0], 1), 512, 1)
    for i in range(n):
        x = feed(net, f"i{i}.mlp", attend(net, f"i{i}.self", x, x))
        skips.append(x)
    x = feed(net, "middle.mlp", attend(net, "middle.self", x, x))
    for i in range(n):
        x = net.conv(f"o{i}.join", net.concat(f"o{i}.cat", [x, skips.pop()]), 512, 1)
        x = feed(net, f"o{i}.mlp", attend(net, f"o{i}.self", x, x))
    net.loss(net.conv("head", x, 64, 1))


def dense_layers(net, name, x, n, growth):
    """Concatenate @n convolutions with all that is before them."""
    for i in range(n):
        y = net.relu(f"{name}.{i}.relu", net.norm(f"{name}.{i}.bn", x))
        x = net.concat(f"{name}.{i}.cat", [x, net.conv(f"{name}.{i}.conv", y, growth, 3)])
    return x


def fcdensenet(net, size, layers):
    """A U-Net of dense blocks (Jegou et al. 2017)."""
    depth, skips = layers or 4, []
    x = block(net, "stem", net.input(3, *size), 48, 3)
    for level in range(depth):
        x = dense_layers(net, f"d{level}", x, 4, 16)
        skips.append(x)
        y = net.relu(f"td{level}.r", net.norm(f"td{level}.n", x))
        x = net.maxpool(f"pool{level}", net.conv(f"td{level}", y, x.channels, 1), 2, 2)
    x = dense_layers(net, "bottom", x, 4, 16)
    for level in reversed(range(depth)):
        skip = skips[level]
        up = net.resample(f"up{level}", net.conv(f"tu{level}", x, 64, 1), skip.height, skip.width)
        x = dense_layers(net, f"u{level}", net.concat(f"cat{level}", [skip, up]), 4, 16)
    net.loss(net.conv("head", x, 11, 1))


def pyramid(net, levels, channels, convs):
    """Sums from the top level down, and two heads on each level (Lin et al. 2017)."""
    sums = [net.conv(f"lat{i}", x, channels, 1) for i, x in enumerate(levels)]
    for i in reversed(range(len(sums) - 1)):
        up = net.resample(f"tdup{i}", sums[i + 1], sums[i].height, sums[i].width)
        sums[i] = net.add(f"td{i}", sums[i], up)
    parts = []
    for i, total in enumerate(sums):
        a = b = net.conv(f"p{i}", total, channels, 3)
        for j in range(convs):
            a = net.relu(f"cls{i}.{j}.r", net.conv(f"cls{i}.{j}", a, channels, 3))
            b = net.relu(f"box{i}.{j}.r", net.conv(f"box{i}.{j}", b, channels, 3))
        part = net.concat(f"o{i}", [net.conv(f"cls{i}", a, 20, 1), net.conv(f"box{i}", b, 4, 1)])
        parts.append(net.resample(f"os{i}", part, parts[0].height, parts[0].width) if i else part)
    net.loss(net.concat("all", parts))


def retinanet(net, size, _):
    """ResNet-18, whose last three stages feed a pyramid."""
    x, levels = net.maxpool("pool", block(net, "stem", net.input(3, *size), 64, 7, 2), 3, 2, 1), []
    for stage, width in enumerate((64, 128, 256, 512)):
        for i in range(2):
            name, stride = f"s{stage}.{i}", 2 if stage and not i else 1
            y = block(net, f"{name}.b", block(net, f"{name}.a", x, width, 3, stride), width, 3, has_relu=False)
            if stride != 1 or x.channels != width:
                x = block(net, f"{name}.skip", x, width, 1, stride, has_relu=False)
            x = net.relu(f"{name}.r", net.add(f"{name}.add", y, x))
        if stage:
            levels.append(x)
    pyramid(net, levels, 128, 2)


def residual_convs(net, name, x, n, channels):
    """@n convolutions of 5x5 with a sum over them."""
    y = x
    for i in range(n):
        y = block(net, f"{name}.{i}", y, channels, 5, has_relu=i < n - 1)
    if x.channels != channels:
        x = net.conv(f"{name}.fit", x, channels, 1)
    return net.relu(f"{name}.r", net.add(f"{name}.add", x, y))


def vnet(net, size, _):
    """A U-Net whose levels are residual (Milletari et al. 2016), on images."""
    counts, skips = (1, 2, 3, 3), []
    x = net.conv("stem", net.input(1, *size), 16, 5)
    for level, n in enumerate(counts):
        x = residual_convs(net, f"d{level}", x, n, x.channels)
        skips.append(x)
        x = block(net, f"down{level}", x, x.channels * 2, 2, 2, padding=0)
    x = residual_convs(net, "bottom", x, 3, x.channels)
    for level in reversed(range(len(counts))):
        skip = skips[level]
        up = block(net, f"up{level}", net.resample(f"ups{level}", x, skip.height, skip.width), skip.channels, 1)
        x = residual_convs(net, f"u{level}", net.concat(f"cat{level}", [skip, up]), counts[level], 2 * skip.channels)
    net.loss(net.conv("head", x, 2, 1))


ZOO = {  # name: builder, batch, size
    "fcn8": (fcn8, 24, (416, 608)), "segnet": (segnet, 12, (416, 608)), "unetpp": (unetpp, 12, (256, 256)),
    "efficientnet": (efficientnet, 192, (224, 224)), "hrnet": (hrnet, 16, (384, 384)),
    "translator": (translator, 64, (256, 1)), "uvit": (uvit, 64, (256, 1)),
    "fcdensenet": (fcdensenet, 8, (224, 224)), "retinanet": (retinanet, 16, (320, 320)),
    "vnet": (vnet, 16, (256, 256))}
