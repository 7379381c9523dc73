#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draw held-out graphs of U-Nets, VGGs, ResNets and MobileNetV2s, each with a profile of its own and a budget.

Usage: bench/graphs/variants.py DIR [--count N] [--seed N] [--plain] [--small]

A graph differs from those of nets.py in its batch, image, depth and widths, and in its layers: VGG with or without batch
norms, U-Net with one or two convolutions a level, sums or concatenations, one or two ops for the gradients of a layer,
updates or results. Its profile differs in the rates of memory and arithmetic, in the launch time, in workspaces of
products, and in a factor of each op's time, which is log-normal. Some profiles leave out the bytes of parameters.
--plain draws no updates, which milp.py and cpsat.py refuse. --small draws graphs of 25 to 64 ops for integer programs.

DIR gets one JSON a graph and `pairs.json`, a list of {"graph", "budget_percent", "about"}. Budgets are 35 to 90 % of the
unconstrained peak, small ones more often, because plans are hard to find there.
"""
import argparse
import json
import math
import os
import random

import nets
from step import FLOPS_PER_NS, LAUNCH_NS, Net
from zoo import block

BUDGET_LEAST, BUDGET_MOST = 35, 90  # percent of the unconstrained peak
OPS_LEAST, OPS_MOST = 100, 400      # of a graph that is not small
OPS_SMALL_LEAST, OPS_SMALL_MOST = 25, 64


class Profile:
    """Rates and noise of one imagined profile."""

    def __init__(self, draw):
        self.draw = draw
        self.bytes_per_ns = draw.choice((200, 450, 700, 1400, 2600))
        self.flops_share = draw.choice((0.5, 1, 1, 3, 8))  # of the rates of step.py
        self.launch_ns = draw.choice((1500, LAUNCH_NS, 9000))
        self.noise = draw.choice((0, 0.02, 0.1, 0.2, 0.4))  # sigma of the logarithm of a time
        self.workspace = draw.choice((0, 0, 0.1, 0.4))      # of the bytes of a product's operands
        self.has_parameters = draw.random() < 0.7

    def ns(self, traffic_bytes, flops, flops_per_ns):
        least_ns = max(traffic_bytes / self.bytes_per_ns, flops / (flops_per_ns * self.flops_share))
        normal = sum(self.draw.random() for _ in range(12)) - 6  # nearly, and bounded
        return max(1, int((self.launch_ns + least_ns) * math.exp(self.noise * normal)))

    def __str__(self):
        return (f"{self.bytes_per_ns} bytes/ns, flops x{self.flops_share}, noise {self.noise}, workspace "
                f"{self.workspace}{'' if self.has_parameters else ', no parameters'}")


class ProfiledNet(Net):
    """A net whose times and workspaces are those of a profile."""

    def __init__(self, profile, batch, is_split, has_updates):
        super().__init__(batch, is_split, has_updates)
        self.profile = profile

    def timed(self, name, reads, writes, flops=0, flops_per_ns=FLOPS_PER_NS):
        traffic = self.bytes_of(set(reads)) + self.bytes_of(writes)
        scratch = int(traffic * self.profile.workspace * self.profile.draw.random()) // 512 * 512 if flops else 0
        self.op(name, reads, writes, self.profile.ns(traffic, flops, flops_per_ns), scratch_bytes=scratch)

    def parameter(self, name, elements):
        return super().parameter(name, elements if self.profile.has_parameters else 0)


# ---- networks: each draws one, and returns its description and a function of the net ----

def rounded(channels, share):
    """Return @channels times @share in multiples of 8, as width multipliers are rounded."""
    return max(8, int(channels * share + 4) // 8 * 8)


def draw_unet(draw, is_small):
    depth = draw.choice((1, 2) if is_small else (3, 4, 4, 5))
    width, n_convs, has_norms = draw.choice((16, 32, 48, 64)), draw.choice((1, 2)), draw.random() < 0.7
    if is_small:
        n_convs, has_norms = 1, depth == 1 and has_norms
    elif depth < 5:
        n_convs, has_norms = 2, True
    size = tuple(draw.choice((96, 128, 192, 256, 320)) for _ in range(2))

    def build(net):
        def level(name, x, channels):
            for i in range(n_convs):
                x = (block(net, f"{name}.{i}", x, channels, 3) if has_norms else
                     net.relu(f"{name}.{i}.relu", net.conv(f"{name}.{i}.conv", x, channels, 3)))
            return x
        nets.unet_levels(net, size, depth, width, level)
    return f"unet depth {depth} width {width} convs {n_convs}{' norms' if has_norms else ''} {size}", build


def draw_vgg(draw, is_small):
    counts = draw.choice(((1, 1), (2, 1), (1, 1, 1), (2, 2)) if is_small else
                         ((1, 1, 2, 2, 2), (2, 2, 2, 2, 2), (2, 2, 3, 3, 3), (2, 2, 4, 4, 4)))
    has_norms = draw.random() < 0.7 and not is_small or sum(counts) < 10 and not is_small
    share, side = draw.choice((0.25, 0.5, 1)), draw.choice((64, 96) if is_small else (128, 160, 224, 320))
    features = (256,) if is_small else draw.choice(((), (512,), (4096, 4096)))

    def build(net):
        x = net.input(3, side, side)
        for stage, n in enumerate(counts):
            for i in range(n):
                x = net.conv(f"s{stage}.{i}.conv", x, rounded(64 << min(stage, 3), share), 3)
                x = net.norm(f"s{stage}.{i}.bn", x) if has_norms else x
                x = net.relu(f"s{stage}.{i}.relu", x)
            x = net.maxpool(f"s{stage}.pool", x, 2, 2)
        for i, channels in enumerate(features):
            x = net.relu(f"fc{i}.relu", net.linear(f"fc{i}", x, channels))
        net.loss(net.linear("head", x, 100))
    return f"vgg {counts} width x{share}{' norms' if has_norms else ''} {side} {features}", build


def scaled(unit, share):
    """Return a builder of residual blocks whose widths are multiplied."""
    return lambda net, name, x, width, stride: unit(net, name, x, rounded(width, share), stride)


def draw_resnet(draw, is_small):
    unit, blocks = draw.choice(((nets.basic, (1, 1)), (nets.basic, (2,)), (nets.bottleneck, (1,)))
                               if is_small else
                               ((nets.basic, (2, 2, 2, 2)), (nets.basic, (3, 4, 6, 3)), (nets.bottleneck, (3, 4, 6, 3)),
                                (nets.bottleneck, (2, 3, 3, 2)), (nets.bottleneck, (1, 2, 8, 2))))
    share, side = draw.choice((0.5, 1, 1.5)), draw.choice((64, 96) if is_small else (128, 160, 224, 288))
    text = f"resnet {unit.__name__} {blocks} width x{share} {side}"
    return text, lambda net: nets.resnet(net, (side, side), blocks, scaled(unit, share))


def inverted(net, name, x, channels, factor, stride):
    """An inverted residual block: expand, depthwise, project, and a sum where the shapes are equal."""
    hidden = x.channels * factor
    y = block(net, f"{name}.expand", x, hidden, 1) if factor > 1 else x
    y = block(net, f"{name}.depth", y, hidden, 3, stride, hidden)
    y = block(net, f"{name}.project", y, channels, 1, has_relu=False)
    return net.add(f"{name}.add", x, y) if stride == 1 and x.channels == channels else y


def draw_mobilenet(draw, is_small):
    share, side = draw.choice((0.35, 0.5, 1, 1.4)), draw.choice((64, 96) if is_small else (128, 160, 224))
    factor = draw.choice((3, 4, 6, 6))
    counts = draw.choice(((1,), (2,)) if is_small else ((1, 2, 3, 4, 3, 3, 1), (1, 2, 2, 3, 2, 2, 1), (1, 3, 3, 4, 3, 3, 1)))

    def build(net):
        x = block(net, "stem", net.input(3, side, side), rounded(32, share), 3, 2)
        for stage, (n, channels, first) in enumerate(zip(counts, (16, 24, 32, 64, 96, 160, 320), (1, 2, 2, 2, 1, 2, 1))):
            for i in range(n):
                x = inverted(net, f"s{stage}.{i}", x, rounded(channels, share), factor if stage or is_small else 1,
                             1 if i else first)
        x = x if is_small else block(net, "last", x, rounded(1280, max(share, 1)), 1)
        net.loss(net.linear("head", net.resample("average", x, 1, 1), 100))
    return f"mobilenetv2 {counts} width x{share} factor {factor} {side}", build


FAMILIES = {"unet": draw_unet, "vgg": draw_vgg, "resnet": draw_resnet, "mobilenetv2": draw_mobilenet}


# ---- drawing ----

def draw_graph(draw, family, is_small, is_plain):
    """Return (description, step) of a graph whose number of ops is in the range."""
    least, most = (OPS_SMALL_LEAST, OPS_SMALL_MOST) if is_small else (OPS_LEAST, OPS_MOST)
    while True:
        text, build = FAMILIES[family](draw, is_small)
        profile = Profile(draw)
        is_split, has_updates = draw.random() < 0.4, not is_plain and draw.random() < 0.4
        batch = draw.choice((4, 8, 16)) if is_small else draw.choice((8, 16, 32, 64, 128))
        net = ProfiledNet(profile, batch, is_split, has_updates)
        build(net)
        step = net.finish()
        if least <= len(step.ops) <= most:
            notes = "".join(note for note, has in ((", split", is_split), (", updates", has_updates)) if has)
            return f"{text}, batch {batch}{notes}, {profile}", step


def draw_budget(draw):
    """Return percent of the unconstrained peak, in half percents."""
    return BUDGET_LEAST + round(2 * (BUDGET_MOST - BUDGET_LEAST) * draw.random() ** 2) / 2


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--count", type=int, default=64, help="of graphs, over all families")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("--small", action="store_true")
    args = parser.parse_args()
    os.makedirs(args.folder, exist_ok=True)
    pairs = []
    for i in range(args.count):
        family = list(FAMILIES)[i % len(FAMILIES)]
        draw = random.Random(f"{args.seed}.{i}")
        text, step = draw_graph(draw, family, args.small, args.plain or args.small)
        name = f"{family}-{i:03}"
        step.save(os.path.join(args.folder, f"{name}.json"))
        pairs.append({"graph": f"{name}.json", "budget_percent": draw_budget(draw), "about": text})
    with open(os.path.join(args.folder, "pairs.json"), "w", encoding="utf-8") as file:
        json.dump(pairs, file, indent=1)


if __name__ == "__main__":
    main()
