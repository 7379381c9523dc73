#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Training-step graphs of known networks as JSON, for `lade plan --graph`.

Usage: bench/graphs/nets.py NAME [--batch N] [--size HxW] [--layers N] [--seed N] [--split] [--updates] [--classes]
                                 [--state TIER] -o FILE
       bench/graphs/nets.py --all DIR
       bench/graphs/nets.py --small DIR

NAME is one of unet, vgg16, vgg19, resnet18, resnet34, resnet50, resnet101, mobilenetv1, mobilenetv2, googlenet,
densenet121, the networks of zoo.py, chain, transformer, and the small ones: unet-small, vgg-small, resnet-small.
--layers: stages of a chain, layers of a transformer, depth of a unet-small, blocks of a resnet-small. --split: two ops
for the gradients of a layer with weights. --updates: SGD's updates consume the gradients of weights, which are results
of the step otherwise. --classes: storages of equal layers name a class. --state: where a transformer's optimizer state
lives.
Files are equal on every machine. Dropout and the running statistics of batch norms are left out.
"""
import argparse
import os
import random

from step import LAUNCH_NS, Net, Step
from transformer import transformer
from zoo import ZOO, block


# ---- networks ----

def vgg(net, size, plan, features=(4096, 4096), classes=1000):
    x = net.input(3, *size)
    for stage, (n, channels) in enumerate(plan, 1):
        for i in range(1, n + 1):
            x = net.relu(f"s{stage}.relu{i}", net.conv(f"s{stage}.conv{i}", x, channels, 3))
        x = net.maxpool(f"s{stage}.pool", x, 2, 2)
    for i, channels in enumerate(features, 1):
        x = net.relu(f"fc{i}.relu", net.linear(f"fc{i}", x, channels))
    net.loss(net.linear("head", x, classes))


def vgg16(net, size, _):
    vgg(net, size, ((2, 64), (2, 128), (3, 256), (3, 512), (3, 512)))


def vgg19(net, size, _):
    vgg(net, size, ((2, 64), (2, 128), (4, 256), (4, 512), (4, 512)))


def vgg_small(net, size, _):
    """As VGG, with two stages fewer and larger images in relation."""
    vgg(net, size, ((3, 32), (2, 64), (2, 128)), features=(256,), classes=100)


def unet_levels(net, size, depth, width, pair):
    """A U-Net with @depth poolings; @pair makes two convolutions, each with its norm and activation."""
    x, skips = net.input(3, *size), []
    for level in range(depth):
        x = pair(f"down{level}", x, width << level)
        skips.append(x)
        x = net.maxpool(f"pool{level}", x, 2, 2)
    x = pair("bottom", x, width << (depth - 1))
    for level in reversed(range(depth)):
        skip = skips[level]
        x = net.concat(f"cat{level}", [skip, net.resample(f"up{level}", x, skip.height, skip.width)])
        x = pair(f"up{level}", x, width << max(level - 1, 0))
    net.loss(net.conv("head", x, 2, 1))


def unet(net, size, _):
    def pair(name, x, channels):
        return block(net, f"{name}.b", block(net, f"{name}.a", x, channels, 3), channels, 3)
    unet_levels(net, size, 4, 64, pair)


def unet_small(net, size, layers):
    """One convolution with ReLU a level."""
    def single(name, x, channels):
        return net.relu(f"{name}.relu", net.conv(f"{name}.conv", x, channels, 3))
    unet_levels(net, size, layers or 2, 32, single)


def bottleneck(net, name, x, width, stride):
    y = block(net, f"{name}.a", x, width, 1)
    y = block(net, f"{name}.b", y, width, 3, stride)
    y = block(net, f"{name}.c", y, 4 * width, 1, has_relu=False)
    if stride != 1 or x.channels != 4 * width:
        x = block(net, f"{name}.skip", x, 4 * width, 1, stride, has_relu=False)
    return net.relu(f"{name}.relu", net.add(f"{name}.add", y, x))


def basic(net, name, x, width, stride):
    y = block(net, f"{name}.a", x, width, 3, stride)
    y = block(net, f"{name}.b", y, width, 3, has_relu=False)
    if stride != 1 or x.channels != width:
        x = block(net, f"{name}.skip", x, width, 1, stride, has_relu=False)
    return net.relu(f"{name}.relu", net.add(f"{name}.add", y, x))


def resnet(net, size, blocks, unit):
    x = block(net, "stem", net.input(3, *size), 64, 7, 2)
    x = net.maxpool("pool", x, 3, 2, 1)
    for stage, (n, width) in enumerate(zip(blocks, (64, 128, 256, 512))):
        for i in range(n):
            x = unit(net, f"s{stage}.{i}", x, width, 2 if stage and not i else 1)
    net.loss(net.linear("head", net.resample("average", x, 1, 1), 1000))


def resnet18(net, size, _):
    resnet(net, size, (2, 2, 2, 2), basic)


def resnet34(net, size, _):
    resnet(net, size, (3, 4, 6, 3), basic)


def resnet50(net, size, _):
    resnet(net, size, (3, 4, 6, 3), bottleneck)


def resnet101(net, size, _):
    resnet(net, size, (3, 4, 23, 3), bottleneck)


def resnet_small(net, size, layers):
    """Two convolutions with ReLU a block, without norms; each third block halves the image."""
    x = net.relu("stem.relu", net.conv("stem", net.input(3, *size), 32, 3))
    for i in range(layers or 3):
        stride = 2 if i % 3 == 2 else 1
        channels = x.channels * stride
        y = net.relu(f"b{i}.relu1", net.conv(f"b{i}.conv1", x, channels, 3, stride))
        y = net.conv(f"b{i}.conv2", y, channels, 3)
        skip = x if stride == 1 else net.conv(f"b{i}.skip", x, channels, 1, stride)
        x = net.relu(f"b{i}.relu2", net.add(f"b{i}.add", y, skip))
    net.loss(net.linear("head", net.resample("average", x, 1, 1), 100))


def mobilenetv2(net, size, _):
    x = block(net, "stem", net.input(3, *size), 32, 3, 2)
    plan = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
    for stage, (factor, channels, n, first_stride) in enumerate(plan):
        for i in range(n):
            name, stride, hidden, y = f"s{stage}.{i}", 1 if i else first_stride, x.channels * factor, x
            if factor != 1:
                y = block(net, f"{name}.expand", y, hidden, 1)
            y = block(net, f"{name}.depth", y, hidden, 3, stride, hidden)
            y = block(net, f"{name}.project", y, channels, 1, has_relu=False)
            x = net.add(f"{name}.add", x, y) if stride == 1 and x.channels == channels else y
    x = block(net, "last", x, 1280, 1)
    net.loss(net.linear("head", net.resample("average", x, 1, 1), 1000))


def mobilenetv1(net, size, _):
    x = block(net, "stem", net.input(3, *size), 32, 3, 2)
    plan = ((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *((512, 1),) * 5, (1024, 2), (1024, 1))
    for i, (channels, stride) in enumerate(plan):
        x = block(net, f"b{i}.depth", x, x.channels, 3, stride, x.channels)
        x = block(net, f"b{i}.point", x, channels, 1)
    net.loss(net.linear("head", net.resample("average", x, 1, 1), 1000))


INCEPTIONS = (  # 1x1; 3x3 reduced, 3x3; 5x5 reduced, 5x5; pool's 1x1; None: a pooling
    (64, 96, 128, 16, 32, 32), (128, 128, 192, 32, 96, 64), None,
    (192, 96, 208, 16, 48, 64), (160, 112, 224, 24, 64, 64), (128, 128, 256, 24, 64, 64), (112, 144, 288, 32, 64, 64),
    (256, 160, 320, 32, 128, 128), None,
    (256, 160, 320, 32, 128, 128), (384, 192, 384, 48, 128, 128))


def googlenet(net, size, _):
    """As torchvision's, without the auxiliary heads: batch norms, and 3x3 in place of 5x5."""
    x = net.maxpool("pool1", block(net, "stem1", net.input(3, *size), 64, 7, 2), 3, 2, 1)
    x = block(net, "stem3", block(net, "stem2", x, 64, 1), 192, 3)
    x = net.maxpool("pool2", x, 3, 2, 1)
    for i, inception in enumerate(INCEPTIONS):
        if inception is None:
            x = net.maxpool(f"pool{i}", x, 3, 2, 1)
            continue
        name, (a, b1, b, c1, c, d) = f"i{i}", inception
        parts = [block(net, f"{name}.a", x, a, 1),
                 block(net, f"{name}.b2", block(net, f"{name}.b1", x, b1, 1), b, 3),
                 block(net, f"{name}.c2", block(net, f"{name}.c1", x, c1, 1), c, 3),
                 block(net, f"{name}.d", net.maxpool(f"{name}.pool", x, 3, 1, 1), d, 1)]
        x = net.concat(f"{name}.cat", parts)
    net.loss(net.linear("head", net.resample("average", x, 1, 1), 1000))


def densenet121(net, size, _):
    x = net.maxpool("pool", block(net, "stem", net.input(3, *size), 64, 7, 2), 3, 2, 1)
    for stage, n in enumerate((6, 12, 24, 16)):
        for i in range(n):
            name = f"d{stage}.{i}"
            y = net.relu(f"{name}.relu1", net.norm(f"{name}.bn1", x))
            y = net.relu(f"{name}.relu2", net.norm(f"{name}.bn2", net.conv(f"{name}.conv1", y, 128, 1)))
            x = net.concat(f"{name}.cat", [x, net.conv(f"{name}.conv2", y, 32, 3)])
        x = net.relu(f"t{stage}.relu", net.norm(f"t{stage}.bn", x))
        if stage < 3:
            x = net.conv(f"t{stage}.conv", x, x.channels // 2, 1)
            x = net.resample(f"t{stage}.pool", x, x.height // 2, x.width // 2)
    net.loss(net.linear("head", net.resample("average", x, 1, 1), 1000))


def chain(stages, seed):
    """A chain of unequal stages: each backward op reads its stage's input, output, or both, and the gradient."""
    step, draw = Step(), random.Random(seed)
    values = [step.storage("a0", draw.randrange(1, 64) << 20)]
    inputs = step.storage("input", 1 << 20, is_given=True)
    step.op("f0", [inputs], values, LAUNCH_NS + draw.randrange(1, 1000) * 1000)
    costs = [draw.randrange(1, 1000) * 1000 for _ in range(stages)]
    for i in range(1, stages):
        values.append(step.storage(f"a{i}", draw.randrange(1, 64) << 20))
        step.op(f"f{i}", [values[i - 1]], [values[i]], LAUNCH_NS + costs[i])
    gradient = step.storage(f"g{stages - 1}", step.storages[values[-1]]["bytes"])
    step.part = "backward"
    step.op("loss", [values[-1]], [gradient], LAUNCH_NS)
    for i in reversed(range(1, stages)):
        saved = ([values[i - 1]], [values[i]], [values[i - 1], values[i]])[draw.randrange(3)]
        before = step.storage(f"g{i - 1}", step.storages[values[i - 1]]["bytes"])
        step.op(f"b{i}", [gradient] + saved, [before], LAUNCH_NS + 2 * costs[i])
        gradient = before
    result = step.storage("result", 1 << 20)
    step.op("b0", [gradient, values[0], inputs], [result], LAUNCH_NS + 2 * costs[0])
    step.kept.append(result)
    return step


# ---- command line ----

NETS = {  # name: builder, batch, size
    "unet": (unet, 11, (416, 608)), "vgg16": (vgg16, 176, (224, 224)), "vgg19": (vgg19, 160, (224, 224)),
    "resnet18": (resnet18, 448, (224, 224)), "resnet34": (resnet34, 320, (224, 224)),
    "resnet50": (resnet50, 184, (224, 224)), "resnet101": (resnet101, 112, (224, 224)),
    "mobilenetv1": (mobilenetv1, 320, (224, 224)), "mobilenetv2": (mobilenetv2, 272, (224, 224)),
    "googlenet": (googlenet, 320, (224, 224)), "densenet121": (densenet121, 96, (224, 224)),
    "unet-small": (unet_small, 16, (128, 128)), "vgg-small": (vgg_small, 64, (64, 64)),
    "resnet-small": (resnet_small, 32, (64, 64)), **ZOO}
CHAIN_STAGES, TRANSFORMER_LAYERS = 50, 10


def build(name, batch=None, size=None, layers=None, seed=1, is_split=False, has_updates=False, has_classes=False,
          state_tier="device"):
    """Return the step of the net @name."""
    if name == "chain":
        return chain(layers or CHAIN_STAGES, seed)
    if name == "transformer":
        return transformer(layers or TRANSFORMER_LAYERS, batch or 8, has_classes=has_classes,
                           state_tier=state_tier)
    builder, usual_batch, usual_size = NETS[name]
    net = Net(batch or usual_batch, is_split, has_updates, has_classes)
    builder(net, size or usual_size, layers)
    return net.finish()


def suite(is_small):
    """Yield the file names of a suite with their arguments of build."""
    if is_small:
        yield "vgg-small", {"name": "vgg-small"}
        for depth in (1, 2, 3):
            yield f"unet-small-{depth}", {"name": "unet-small", "layers": depth}
        for n in (2, 3, 4):
            yield f"resnet-small-{n}", {"name": "resnet-small", "layers": n}
        for n in (10, 20, 30):
            yield f"chain-{n}", {"name": "chain", "layers": n}
        return
    for name in NETS:
        if not name.endswith("-small"):
            yield name, {"name": name}
    for name in ("unet", "resnet50"):
        yield f"{name}-split-updates", {"name": name, "is_split": True, "has_updates": True}
    for n in (50, 100, 200):
        yield f"chain-{n}", {"name": "chain", "layers": n, "seed": n}
    for n in (10, 100):
        yield f"transformer-{n}", {"name": "transformer", "layers": n}


def arguments_parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", nargs="?", choices=[*NETS, "chain", "transformer"])
    parser.add_argument("-o", "--out")
    parser.add_argument("--all", metavar="DIR")
    parser.add_argument("--small", metavar="DIR")
    for option in ("--batch", "--layers"):
        parser.add_argument(option, type=int)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--state", choices=("device", "host", "store"), default="device")
    parser.add_argument("--size", type=lambda text: tuple(int(part) for part in text.split("x")))
    for option in ("--split", "--updates", "--classes"):
        parser.add_argument(option, action="store_true")
    args = parser.parse_args()
    if bool(args.all or args.small) == bool(args.name) or args.name and not args.out:
        parser.error("expected NAME with -o FILE, --all DIR or --small DIR")
    return args


def main():
    args = arguments_parse()
    if args.name:
        build(args.name, args.batch, args.size, args.layers, args.seed, args.split, args.updates,
              args.classes, args.state).save(args.out)
        return
    for folder, is_small in ((args.all, False), (args.small, True)):
        if folder:
            os.makedirs(folder, exist_ok=True)
            for name, arguments in suite(is_small):
                build(**arguments).save(os.path.join(folder, f"{name}.json"))


if __name__ == "__main__":
    main()
