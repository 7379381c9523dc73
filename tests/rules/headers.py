#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every public header compiles alone, twice in a row, as C11 and as C++17, without a warning.

Usage: headers.py CC...   the C compiler's command
"""
import os
import shutil
import subprocess
import sys
import tempfile

import tree


def problem_find(compiler, language, standard, header):
    """What the compiler says against a file that includes nothing but @header, or ''."""
    name = header[len("include/"):]
    with tempfile.TemporaryDirectory() as folder:
        source = os.path.join(folder, "alone." + language)
        with open(source, "w", encoding="utf-8") as file:
            file.write(f"#include <{name}>\n#include <{name}>\n")
        command = compiler + ["-std=" + standard, "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only",
                              "-I" + os.path.join(tree.ROOT, "include"), source]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
    return f"{header} as {standard}: {result.stderr}" if result.returncode else ""


headers = [path for path in tree.files() if path.startswith("include/") and path.endswith(".h")]
assert headers
cxx = os.environ.get("CXX") or next((name for name in ("c++", "g++", "clang++") if shutil.which(name)), None)
problems = [problem_find(sys.argv[1:], "c", "c11", header) for header in headers]
if cxx:
    problems += [problem_find(cxx.split(), "cpp", "c++17", header) for header in headers]
else:
    print("SKIP: no C++ compiler, so the headers were compiled as C only")
tree.report([problem for problem in problems if problem])
