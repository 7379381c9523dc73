#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The floors of the house: a file includes only from its own floor or from below.

The floors stand in FLOORS, lowest first. Of a lower floor only the public face is seen: a header
called *_internal.h, and one in a folder below the floor's own, belong to their floor alone.
A public header lade/X.h counts as part of the floor that implements it, the one with a file or a
folder X; without one it is ground. No headers include each other in a circle. Tests, benchmarks
and examples stand outside the house; examples see public headers only.
"""
import os
import re

import tree

FLOORS = ["src/base", "src/device", "kernels", "src/alloc", "src/offload", "src/graph", "src/parallel", "src/machine",
          "src/program", "src/recompute", "src/run", "preload", "tools"]
# Public headers that no file or folder of their floor is named for.
PUBLIC = {"graph_plan": "src/program", "plan": "src/program", "shard": "src/parallel", "types": "src/base", "train": "src/run"}
OUTSIDE = ("tests/", "bench/", "examples/")
INCLUDE = re.compile(r'^\s*#\s*include\s+(["<])([^">]+)[">]', re.MULTILINE)


def floor_of(path, paths):
    """The floor's number, or None outside the house."""
    if path.startswith("include/lade/"):
        name = os.path.splitext(os.path.basename(path))[0]
        for i, floor in enumerate(FLOORS):
            if floor == PUBLIC.get(name) or os.path.basename(floor) == name:
                return i
            if any(f"{floor}/{name}{end}" in paths for end in (".c", ".h", f"/{name}.c")):
                return i
        return 0
    for i, floor in enumerate(FLOORS):
        if path.startswith(floor + "/"):
            return i
    return None


def is_private(path):
    """Whether only the floor's own files may see this header."""
    if path.startswith("include/"):
        return False
    below = next(path[len(floor) + 1:] for floor in FLOORS if path.startswith(floor + "/"))
    return path.endswith("_internal.h") or "/" in below


def resolve(name, path, paths):
    """The file of ours that an include means, or None for the system's."""
    for folder in (os.path.dirname(path), "include", "src", ""):
        candidate = os.path.normpath(os.path.join(folder, name))
        if candidate in paths:
            return candidate
    return None


def includes_of(path, paths):
    for match in INCLUDE.finditer(tree.text(path)):
        target = resolve(match.group(2), path, paths)
        if target:
            yield target


def cycle_find(graph):
    """One circle of includes as a list, or None. Depth first, three colours."""
    state = {}

    def visit(path, trail):
        state[path] = "open"
        for target in graph.get(path, ()):
            if state.get(target) == "open":
                return trail[trail.index(target):] + [target]
            if target not in state:
                cycle = visit(target, trail + [target])
                if cycle:
                    return cycle
        state[path] = "done"
        return None

    for path in graph:
        if path not in state:
            cycle = visit(path, [path])
            if cycle:
                return cycle
    return None


def check(paths, includes):
    """The problems of a tree: @paths its files, @includes a map from each code file to its targets."""
    problems = []
    for path, targets in includes.items():
        floor = floor_of(path, paths)
        if floor is None and path.startswith(("src/", "kernels/")):
            problems.append(f"{path}: its folder is no floor; add it to FLOORS in tests/rules/floors.py")
        for target in targets:
            if path.startswith("examples/") and not target.startswith("include/"):
                problems.append(f"{path}: includes {target}; examples see public headers only")
            if path.startswith("include/") and not target.startswith("include/"):
                problems.append(f"{path}: includes {target}, which is not installed")
            target_floor = floor_of(target, paths)
            if floor is None or target_floor is None or path.startswith(OUTSIDE):
                continue
            if target_floor > floor:
                problems.append(f"{path}: includes {target} from a floor above ({FLOORS[target_floor]})")
            elif target_floor < floor and is_private(target):
                problems.append(f"{path}: includes {target}, which is private to {FLOORS[target_floor]}")
    cycle = cycle_find(includes)
    if cycle:
        problems.append("headers include each other: " + " -> ".join(cycle))
    return problems


def self_test():
    """The rule sees what it is for; a scan that finds nothing anywhere proves nothing."""
    paths = {"src/base/a.h", "src/run/b.h", "src/run/b_internal.h", "tools/c.c", "src/base/d.c", "src/new/e.c"}
    assert not check(paths, {"src/run/b.h": ["src/base/a.h", "src/run/b_internal.h"]})
    assert check(paths, {"src/base/d.c": ["src/run/b.h"]})
    assert check(paths, {"tools/c.c": ["src/run/b_internal.h"]})
    assert check(paths, {"src/base/a.h": ["src/run/b.h"], "src/run/b.h": ["src/base/a.h"]})[-1].startswith("headers")
    assert check(paths, {"src/new/e.c": []})


self_test()
all_paths = set(tree.files())
all_includes = {path: list(includes_of(path, all_paths)) for path in sorted(all_paths) if path.endswith(tree.CODE)}
tree.report(check(all_paths, all_includes))
