#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Files call each other in one direction only, and folders stay small.

A file uses another if its code names a non-static function that the other defines at column 0, be it in a call or in a
table of operations. Files that reach each other over such uses form a circle, and a circle has no order to be read in.
The name must be one that a header declares which the file includes, directly or through others: else it is a variable
of the same name. Two things are no use: an inline function in a header, because headers have their own rule (floors.py),
and a member that shares its name with a function.

Several files may define one function because they stand in for each other: a stub, a CPU level, a set of names for one
library. A use of such a function counts as a use of the first file that is no stub. Files for nvcc (.cu) are left out:
each is compiled alone.

With --report one line of JSON tells the numbers; without it each circle is listed with the uses that close it.
"""
import json
import os
import re
import sys

import tree

FOLDERS = ("src/", "kernels/", "tools/", "preload/")
CODE_FOLDERS = FOLDERS + ("tests/", "include/")
FILES_MAX = 25  # of a folder: one screen of a listing
# One file of a circle that may stay, and the reason.
EXCEPTIONS = {}
EXCEPTIONS_MAX = 3
STUB = re.compile(r"_(stub|none)\.c$")

NOISE = re.compile(r"""//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'""", re.DOTALL)
# A definition: a type and a name at column 0, arguments without a semicolon, and the brace at column 0.
DEFINITION = re.compile(r"^([A-Za-z_][\w \t*]*?[ \t*])(\w+)\(([^;{}]*?)\)[^;{}()]*\n\{", re.MULTILINE)
INCLUDE = re.compile(r'^\s*#\s*include\s+["<]([^">]+)[">]', re.MULTILINE)
# No use: a member, and a function of the real library that the shim stands in for.
MEMBER = re.compile(r"(?:->|\.)\s*\w+|\bREAL\(\w+\)")
CALLED = re.compile(r"\b([A-Za-z_]\w*)\(")
DECLARED = re.compile(r"^\w+_fn ([^;(){}]+);", re.MULTILINE) # several functions of one type
WORD = re.compile(r"\b[A-Za-z_]\w*\b")


def code_of(text):
    """@text without comments, strings, members of structs and functions of the library that a shim stands in for."""
    return MEMBER.sub(" ", NOISE.sub(" ", text))


def functions_of(code):
    """The names of the functions that @code defines: those of other files' reach, and the static ones."""
    shared, own = set(), set()
    for head, name, _ in DEFINITION.findall(code):
        (own if re.search(r"\bstatic\b", head) else shared).add(name)
    return shared, own


def include_of(name, path, paths):
    """The file of ours that @path includes as @name, or None for the system's."""
    for folder in (os.path.dirname(path), "include", "src", ""):
        candidate = os.path.normpath(os.path.join(folder, name))
        if candidate in paths:
            return candidate
    return None


def declared_of(code):
    """The names that a header's @code declares as functions."""
    return set(CALLED.findall(code)).union(*map(WORD.findall, DECLARED.findall(code)))


def seen_of(path, texts, declared, seen):
    """The names that all headers declare which @path includes, directly or through others. @seen keeps the answers."""
    if path not in seen:
        seen[path] = set()
        for name in INCLUDE.findall(texts[path]):
            header = include_of(name, path, texts)
            if header:
                seen[path] |= declared[header] | seen_of(header, texts, declared, seen)
    return seen[path]


def uses_of(texts):
    """A map from each .c file of @texts (path to text) to {file that it uses: the names it uses there}."""
    all_codes = {path: code_of(text) for path, text in texts.items()}
    declared = {path: declared_of(code) for path, code in all_codes.items()}
    codes = {path: code for path, code in all_codes.items() if path.endswith(".c")}
    functions = {path: functions_of(code) for path, code in codes.items()}
    seen = {}
    definers = {}
    for path in sorted(codes, key=lambda path: (bool(STUB.search(path)), path)):
        for name in functions[path][0]:
            definers.setdefault(name, path)
    uses = {path: {} for path in codes}
    for path, code in codes.items():
        names = set(WORD.findall(code)) & seen_of(path, texts, declared, seen)
        for name in names - functions[path][0] - functions[path][1]:
            if name in definers:
                uses[path].setdefault(definers[name], set()).add(name)
    return uses


def circles_of(uses):
    """The strongly connected components of more than one file, each sorted (Tarjan's algorithm)."""
    number, low, stack, circles = {}, {}, [], []

    def visit(path):
        number[path] = low[path] = len(number)
        stack.append(path)
        for target in sorted(uses[path]):
            if target not in number:
                visit(target)
                low[path] = min(low[path], low[target])
            elif target in stack:
                low[path] = min(low[path], number[target])
        if low[path] == number[path]:
            at = stack.index(path)
            if len(stack) - at > 1:
                circles.append(sorted(stack[at:]))
            del stack[at:]

    for path in sorted(uses):
        if path not in number:
            visit(path)
    return circles


def circle_lines(circle, uses):
    """A circle as lines of text: its files, and each use between two of them."""
    lines = ["files use each other in a circle: " + " ".join(circle)]
    for path in circle:
        for target in sorted(set(uses[path]) & set(circle)):
            lines.append(f"  {path} uses {target}: " + " ".join(sorted(uses[path][target])))
    return lines


def folders_of(paths):
    """A map from each folder of code to its number of files."""
    sizes = {}
    for path in paths:
        if path.startswith(CODE_FOLDERS):
            folder = os.path.dirname(path)
            sizes[folder] = sizes.get(folder, 0) + 1
    return sizes


def self_test():
    """The rule sees what it is for; a scan that finds nothing anywhere proves nothing."""
    head = "int low(void);\nint *high(void);\n"
    low = "#include \"all.h\"\nint low(void)\n{\n  return 1;\n}\n"
    high = ("#include \"all.h\"\nstatic int own(int a,\n               int b)\n{\n  return low();\n}\n\n"
            "int *high(void)\n{\n  own(1, 2);\n}\n")

    def uses(**files):
        texts = {"a.h": head, "all.h": "#include \"a.h\"\n"}
        return uses_of({**texts, **{name + ".c": text for name, text in files.items()}})

    assert functions_of(high) == ({"high"}, {"own"})
    assert uses(low=low, high=high) == {"low.c": {}, "high.c": {"low.c": {"low"}}}
    assert not circles_of(uses(low=low, high=high))
    back = low + "static int up(void)\n{\n  high();\n}\n"
    assert circles_of(uses(low=back, high=high)) == [["high.c", "low.c"]]
    assert len(circle_lines(["high.c", "low.c"], uses(low=back, high=high))) == 3
    assert circles_of(uses(low=low + "const struct ops ops = {\n  .run = high,\n};\n", high=high))
    for innocent in ("/* high() */", "// high()\n", 'char *s = "high()";', "int a = ops->high(1) + ops.high(2);",
                     "static int high(void)\n{\n  return 2;\n}\n"):
        assert not circles_of(uses(low=low + innocent, high=high)), innocent
    assert not circles_of(uses(low=back.replace("#include", "//"), high=high)) # a name that no header declares
    assert declared_of("read_fn low, high;\nint own(int a);\n") == {"low", "high", "own"}
    # Of files that stand in for each other only one is linked.
    stub = "#include \"all.h\"\nint *high(void)\n{\n  return 0;\n}\n"
    assert uses(a_stub=stub, low=back, real=high)["low.c"] == {"real.c": {"high"}}
    assert circles_of({"a": {"b": {}}, "b": {"c": {}}, "c": {"a": {}}, "d": {"a": {}}}) == [["a", "b", "c"]]
    assert folders_of(["src/a/b.c", "src/a/c.h", "docs/memory.md"]) == {"src/a": 2}


def main():
    paths = tree.files()
    uses = uses_of({path: tree.text(path) for path in paths
                    if path.startswith(FOLDERS + ("include/",)) and path.endswith((".c", ".h"))})
    circles = circles_of(uses)
    excused = [circle for circle in circles if set(circle) & set(EXCEPTIONS)]
    sizes = folders_of(paths)
    problems = [line for circle in circles if circle not in excused for line in circle_lines(circle, uses)]
    problems += [f"{folder}: {n} files; a folder has at most {FILES_MAX}" for folder, n in sorted(sizes.items())
                 if n > FILES_MAX]
    problems += [f"{path}: is in no circle; take it out of EXCEPTIONS in tests/rules/circles.py" for path in EXCEPTIONS
                 if not any(path in circle for circle in circles)]
    if len(EXCEPTIONS) > EXCEPTIONS_MAX:
        problems.append(f"{len(EXCEPTIONS)} exceptions; there are at most {EXCEPTIONS_MAX}")
    if "--report" in sys.argv[1:]:
        print(json.dumps({"circles": len(circles) - len(excused), "exceptions": len(EXCEPTIONS),
                          "largest_folder": max(sizes.values())}, separators=(",", ":")))
        sys.exit(1 if problems else 0)
    tree.report(problems)


self_test()
main()
