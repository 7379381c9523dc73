#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Graphs and results that others published, for comparison with `lade plan --graph`.

Usage: bench/graphs/published.py DATA -o DIR [--order ids|generations]
       bench/graphs/published.py --table

DATA is the folder data/ of a checkout of github.com/haoming-codes/moccasin (Bartan et al., "Moccasin: Efficient Tensor
Rematerialization for Neural Networks", ICML 2023). Its "(MLSys)" files are the graphs of the Checkmate paper (Jain et
al., MLSys 2020): sizes and profiled times of VGG16, VGG19, MobileNet, ResNet-50, FCN-8, SegNet and a VGG U-Net, with
one backward node a forward node. The random_layered files are synthetic. Each becomes one JSON graph in DIR: a node is
an op that makes one storage. Parameters are not in them. Costs are microseconds, or flops where the paper had no
profile (fcn_8_vgg), of which one counts as one ns; the times of VGG16 and U-Net are dispatch times of a profiler, so
their ratios are not those of GPU times. Ops stand in the order of node numbers (--order ids), which is topological for
the training graphs; `generations` is the order of networkx.topological_sort, which the Moccasin experiments use, and
random_layered files state their own.

--table prints results that the authors of MONeT published (README of github.com/utsaslab/MONeT, commit 98a5c7d; Shah et
al., ICLR 2021): 24 hours of Gurobi, measured on a GPU of 16 GB. MONeT also chooses among implementations of ops, so
some overheads are below zero. Its memory includes parameters and gradients. The nets of the same names and batches of
nets.py have unconstrained peaks within 8 % of PyTorch's there.
"""
import argparse
import json
import os
import re
import sys

from step import Step

MONET = {  # net, batch: PyTorch's peak in GB, [(budget in GB, overhead in %)]
    ("resnet50", 184): (15.06, [(10.01, 3.22), (9.01, 4.68), (8.01, 5.56), (6.99, 7.28), (6.00, 9.31), (4.99, 11.95)]),
    ("googlenet", 320): (14.93, [(9.98, 7.13), (8.99, 7.87), (8.01, 8.44), (7.02, 9.71), (6.01, 12.14), (4.99, 15.77)]),
    ("unet", 11): (14.32, [(10.01, -4.10), (9.01, -2.07), (8.02, -0.09), (7.00, 1.39), (6.01, 4.95), (5.01, 11.51)]),
    ("mobilenetv2", 272): (14.46, [(10.02, 2.40), (9.01, 3.10), (8.02, 4.77), (7.01, 5.53), (6.01, 7.55),
                                   (5.01, 8.72)]),
    ("vgg16", 176): (14.12, [(9.71, -5.30), (8.66, -4.64), (7.88, -2.18), (6.82, 1.99), (5.90, 5.44), (5.51, 9.11)])}


def generations(n, links):
    """Return the nodes by generations: each lists the nodes whose last predecessor is in the one before."""
    followers, degree = [[] for _ in range(n)], [0] * n
    for source, target in links:
        followers[source].append(target)
        degree[target] += 1
    order, ready = [], [node for node in range(n) if not degree[node]]
    while ready:
        order += ready
        following = []
        for node in ready:
            for target in followers[node]:
                degree[target] -= 1
                if not degree[target]:
                    following.append(target)
        ready = following
    return order


def convert(path, order_name):
    """Return the graph of a node-link file."""
    ns = 1 if os.path.basename(path).startswith("fcn_8_vgg") else 1000  # of a cost
    with open(path, encoding="utf-8") as file:
        text = json.load(file)
    nodes = text["nodes"]
    ends = ("source", "target") if "source" in text["links"][0] else ("0", "1")
    links = [(link[ends[0]], link[ends[1]]) for link in text["links"]]
    order = text["graph"].get("order") or (generations(len(nodes), links) if order_name == "generations"
                                           else list(range(len(nodes))))
    step = Step()
    storages = {}
    for node in order:
        sources = [storages[source] for source, target in links if target == node]
        field = nodes[node]
        name = str(field["name"])
        step.part = "backward" if field.get("backward") else "forward"
        storages[node] = step.storage(f"{name}.out", field.get("cost_ram", field.get("out_cost")))
        step.op(name, sources, [storages[node]], ns * field.get("cost_cpu", field.get("duration")))
    step.kept.append(storages[order[-1]])  # every op runs anyway; a result that is made last occupies nothing before
    return step


def short_name(file_name):
    """Return `resnet50-256-train` for `ResNet50 (MLSys)_256_(224, 224, 3)_train_nx.json`."""
    known = re.match(r"(\w+) \(MLSys\)_(\d+)_.*_(train|test)_nx\.json", file_name)
    if known:
        return "-".join(known.groups()).lower()
    return re.match(r"(random_layered_n\d+)", file_name).group(1).replace("_", "-")


def table_print():
    print("| net (nets.py) | batch | budget, % of unconstrained | overhead of MONeT, % |\n|---|---|---|---|")
    for (net, batch), (whole, points) in MONET.items():
        for budget, overhead in points:
            print(f"| {net} | {batch} | {100 * budget / whole:.1f} | {overhead:.2f} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="?")
    parser.add_argument("-o", "--out")
    parser.add_argument("--order", choices=("ids", "generations"), default="ids")
    parser.add_argument("--table", action="store_true")
    args = parser.parse_args()
    if args.table:
        table_print()
        return
    if not args.data or not args.out:
        parser.error("expected DATA with -o DIR, or --table")
    os.makedirs(args.out, exist_ok=True)
    names = sorted(name for name in os.listdir(args.data) if name.endswith(".json"))
    if not names:
        sys.exit(f"{args.data}: no .json files")
    for name in names:
        convert(os.path.join(args.data, name), args.order).save(os.path.join(args.out, f"{short_name(name)}.json"))


if __name__ == "__main__":
    main()
