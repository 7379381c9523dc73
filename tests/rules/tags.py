#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One tag, one concept: no tag of a struct, union or enum is defined twice in the library, kernels, tools and preload.

A tag local to a file takes its noun first (`struct cache_block`, `struct pool_job`).
"""
import re

import tree

FOLDERS = ("include/", "src/", "kernels/", "tools/", "preload/")
DEFINITION = re.compile(r"\b(?:struct|union|enum)\s+(?:(?:__attribute__|__align__|alignas|_Alignas)\s*\(+[^{};]*?\)+\s*)?"
                        r"(\w+)\s*(?::\s*\w+\s*)?\{")


def tags_of(content):
    """Return each tag that @content defines with the number of its line."""
    code = tree.PROSE.sub(lambda match: re.sub(r"[^\n]", " ", match.group()), content)
    return [(match.group(1), code.count("\n", 0, match.start()) + 1) for match in DEFINITION.finditer(code)]


def check(contents):
    """Return the problems of a tree: @contents maps each path to its text."""
    places = {}
    for path, content in sorted(contents.items()):
        for tag, line in tags_of(content):
            places.setdefault(tag, []).append((path, line))
    problems = []
    for tag, found in sorted(places.items()):
        if len(found) > 1:
            spots = [f"{path}:{line}" for path, line in found]
            problems += [f"{spot}: the tag {tag} is also defined at {spots[0 if i else 1]}; rename one of them"
                         for i, spot in enumerate(spots)]
    return problems


def self_test():
    """The rule sees definitions of every form, and neither uses nor comments."""
    assert len(check({"src/a.c": "struct block {", "src/b.c": "\nstruct block\n{"})) == 2
    assert check({"src/a.c": "struct block {\n};\nenum block { ONE };"})
    assert check({"src/a.h": "union _Alignas(64) block {", "tools/b.c": "template <class T> struct block {"})
    assert not check({"src/a.c": "struct block {", "src/b.c": "struct block *f(struct block *b)\n{\n"})
    assert not check({"src/a.c": "struct block {", "src/b.c": "/* struct block { */ \"struct block {\""})
    assert not check({})


self_test()
tree.report(check({path: tree.text(path) for path in tree.files()
                   if path.startswith(FOLDERS) and path.endswith(tree.CODE + (".cpp",))}))
