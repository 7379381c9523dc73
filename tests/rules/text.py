#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How files look: licence line first, no trailing blanks, no tabs in C, lines, functions and files
of a length that can be read, and `#if` only on the ground floor and in the files that stand in for
what is absent (*_stub.c, *_none.c); and threads are started where their signals are blocked (base/thread.h).

A function past 70 lines and a file past 800 owe a reason: a comment with the word `long:` before
the function's end, or in the first 50 lines of the file.
"""
import os
import re

import tree

SOURCE = tree.CODE + (".py", ".sh", ".build", ".map")
TEXT = SOURCE + (".md", ".txt", ".json", ".yml")
COLUMNS, FUNCTION_LINES, FILE_LINES = 120, 70, 800
PROSE_COLUMNS = 130 # pages are wrapped near 120; a word put in later need not wrap a paragraph anew


def is_text(path):
    return path.endswith(TEXT) or "." not in os.path.basename(path) and tree.is_script(path)


def is_source(path):
    return path.endswith(SOURCE) or os.path.basename(path) == "meson_options.txt" or tree.is_script(path)


def lines_check(path, lines):
    problems = []
    for number, line in enumerate(lines, 1):
        if line != line.rstrip():
            problems.append(f"{path}:{number}: blanks at the end of the line")
        if path.endswith(tree.CODE) and "\t" in line:
            problems.append(f"{path}:{number}: a tab")
        if path.endswith(tree.CODE) and len(line) > COLUMNS:
            problems.append(f"{path}:{number}: {len(line)} columns, over {COLUMNS}")
    if lines and not lines[-1]:
        problems.append(f"{path}: empty lines at the end")
    return problems


def prose_check(path, lines):
    """Rows of tables are as long as they must be, and what stands between fences is as it was printed."""
    problems, is_fenced = [], False
    for number, line in enumerate(lines, 1):
        is_fenced ^= line.startswith("```")
        if len(line) > PROSE_COLUMNS and not is_fenced and not line.startswith("|"):
            problems.append(f"{path}:{number}: {len(line)} columns of prose, over {PROSE_COLUMNS}")
    return problems


def licence_check(path, lines):
    head = lines[1:2] if lines and lines[0].startswith("#!") else lines[:1]
    if head and "SPDX-License-Identifier: Apache-2.0" in head[0]:
        return []
    return [f"{path}: its first line is not the SPDX line"]


def functions_check(path, lines):
    """A function's braces stand alone in the first column: the style makes this exact."""
    problems = []
    start = name = None
    since = 0 # the end of the function before, where this one's comment begins
    for number, line in enumerate(lines):
        if line == "{":
            heads = [head for head in lines[since:number] if re.match(r"\w.*\(", head)]
            start, name = number, heads[-1] if heads else "?"
        elif line.startswith("}"):
            if start is not None and number - start - 1 > FUNCTION_LINES:
                if not any("long:" in around for around in lines[since:number]):
                    problems.append(f"{path}:{start}: {number - start - 1} lines, over {FUNCTION_LINES}: {name}")
            start, since = None, number + 1
    return problems


def conditions_check(path, lines):
    """A header's guard and its C++ part are no conditions; the tests and examples are free."""
    if not path.startswith(("src/", "kernels/", "tools/")) or path.startswith("src/base/"):
        return []
    if path.endswith(("_stub.c", "_none.c")):
        return []
    return [f"{path}:{number}: a condition of the preprocessor outside src/base and stand-in files"
            for number, line in enumerate(lines, 1)
            if re.match(r"\s*#\s*(if|ifdef|ifndef|elif)\b", line)
            and not re.match(r"#ifndef LADE_\w+_H$|#ifdef __cplusplus$", line)]


def threads_check(path, lines):
    if not path.startswith(("src/", "kernels/", "tools/", "preload/")) or path == "src/base/thread.c":
        return []
    return [f"{path}:{number}: a thread that lade_thread_start does not start"
            for number, line in enumerate(lines, 1) if re.search(r"\bpthread_create\(", line)]


def check(path, content):
    lines = content.split("\n")
    problems = [] if content.endswith("\n") or not content else [f"{path}: no newline at the end"]
    if not lines[-1]:
        lines.pop()
    problems += lines_check(path, lines)
    if path.endswith(".md"):
        problems += prose_check(path, lines)
    if is_source(path):
        problems += licence_check(path, lines)
    if path.endswith((".c", ".h", ".cu")):
        problems += functions_check(path, lines) + conditions_check(path, lines) + threads_check(path, lines)
        if len(lines) > FILE_LINES and not any("long:" in line for line in lines[:50]):
            problems.append(f"{path}: {len(lines)} lines, over {FILE_LINES}")
    return problems


def self_test():
    """Each rule fires on the smallest file that breaks it."""
    spdx = "/* SPDX-License-Identifier: Apache-2.0 */\n"
    body = "  x++;\n" * 71
    assert not check("COPYING.c", spdx + "int f(void)\n{\n  return 0;\n}\n")
    assert check("a.c", spdx + "int f(void)\n{\n" + body + "}\n")
    assert not check("a.c", spdx + "/* long: one table */\nint f(void)\n{\n" + body + "}\n")
    assert check("a.c", spdx + "int x;\n" * 800)
    assert check("a.c", spdx + "int x; \n") and check("a.c", spdx + "\tint x;\n") and check("a.c", "int x;\n")
    assert check("src/run/a.c", spdx + "#if X\n") and not check("src/base/a.c", spdx + "#if X\n")
    assert check("tools/a.c", spdx + "  pthread_create(&thread, NULL, main, NULL);\n")
    assert prose_check("a.md", ["x" * 131]) and not prose_check("a.md", ["|" + "x" * 131, "```", "x" * 131, "```"])
    assert prose_check("a.md", ["```", "x", "```", "x" * 131])
    assert check("a.c", spdx + "int x;") and check("a.c", spdx + "/*" + "x" * 120 + "*/\n")


self_test()
tree.report([problem for path in tree.files() if is_text(path) for problem in check(path, tree.text(path))])
