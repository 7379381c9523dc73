#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How files look: licence line first, no trailing blanks, no tabs in C, lines, functions and files
of a length that can be read, and `#if` only on the ground floor and in the files that replace
what is absent (*_stub.c, *_none.c); and threads are started where their signals are blocked (base/thread.h).
Comments name things: `what` and `who` stay below LIMITS, in a thousand words of all comments.

A function past 70 lines and a file past 800 owe a reason: a comment with the word `long:` before
the function's end, or in the first 50 lines of the file.

With --report, print the numbers of the comments as one line of JSON and check only those.
"""
import ast
import io
import json
import os
import re
import sys
import tokenize

import tree

SOURCE = tree.CODE + (".py", ".sh", ".build", ".map")
TEXT = SOURCE + (".md", ".txt", ".json", ".yml")
COLUMNS, FUNCTION_LINES, FILE_LINES = 120, 70, 800
PROSE_COLUMNS = 130 # pages are wrapped near 120; a word put in later need not wrap a paragraph anew

COMMENTED = tree.CODE + (".cpp", ".py")
RIDDLES = {"what": re.compile(r"\bwhat\b", re.IGNORECASE),
           "who": re.compile(r"\b(who|whoever|nobody|somebody|everybody)\b", re.IGNORECASE)}
LIMITS = {"what": 1.5, "who": 0.5} # in a thousand words of comments
WORD = re.compile(r"[A-Za-z]+(?:['’][A-Za-z]+)*")


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
    return [f"{path}:{number}: a condition of the preprocessor outside src/base and stub files"
            for number, line in enumerate(lines, 1)
            if re.match(r"\s*#\s*(if|ifdef|ifndef|elif)\b", line)
            and not re.match(r"#ifndef LADE_\w+_H$|#ifdef __cplusplus$", line)]


def threads_check(path, lines):
    if not path.startswith(("src/", "kernels/", "tools/", "preload/")) or path == "src/base/threads/thread.c":
        return []
    return [f"{path}:{number}: a thread that lade_thread_start does not start"
            for number, line in enumerate(lines, 1) if re.search(r"\bpthread_create\(", line)]


def comments_of(path, content):
    """Return the text of all comments of a file, and in Python of its docstrings. Literals are none."""
    if not path.endswith(".py"):
        return "\n".join(token for token in tree.PROSE.findall(content) if token.startswith("/"))
    found = [token.string for token in tokenize.generate_tokens(io.StringIO(content).readline)
             if token.type == tokenize.COMMENT]
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    found += [ast.get_docstring(node) or "" for node in ast.walk(ast.parse(content)) if isinstance(node, documented)]
    return "\n".join(found)


def riddles_report(comments):
    """Return the numbers of all comments, a map from each path to its text, and the problems with them."""
    counts = {path: {name: len(word.findall(text)) for name, word in RIDDLES.items()}
              for path, text in comments.items()}
    n_words = sum(len(WORD.findall(text)) for text in comments.values())
    report, problems = {}, []
    for name, limit in LIMITS.items():
        rate = round(1000 * sum(count[name] for count in counts.values()) / max(n_words, 1), 3)
        report[f"{name}_per_1000"] = rate
        if rate > limit:
            problems.append(f"comments: {name} {rate} times in 1,000 words, over {limit}; most of them in:")
            worst = sorted(counts, key=lambda path: (-counts[path][name], path))[:10]
            problems += [f"{path}: {name} {counts[path][name]} times" for path in worst if counts[path][name]]
    return {**report, "comment_words": n_words, "files": len(comments)}, problems


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
    riddle = 'int x; /* What\n is it? */ char *s = "what"; // whatever nobody\'s\n'
    assert riddles_report({"a.c": comments_of("a.c", riddle)})[0] == {
        "what_per_1000": 200, "who_per_1000": 200, "comment_words": 5, "files": 1}
    assert comments_of("a.py", '"""What"""\nx = "what" # who\n').split() == ["#", "who", "What"]
    assert len(riddles_report({"a.c": "what", "b.c": "copy"})[1]) == 2
    assert not riddles_report({"a.c": "what who" + " copy" * 2000})[1]


self_test()
numbers, riddles = riddles_report({path: comments_of(path, tree.text(path)) for path in tree.files()
                                   if path.endswith(COMMENTED)})
if "--report" in sys.argv[1:]:
    print(json.dumps(numbers))
    sys.exit(1 if riddles else 0)
tree.report(riddles + [problem for path in tree.files() if is_text(path) for problem in check(path, tree.text(path))])
