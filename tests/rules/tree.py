# SPDX-License-Identifier: Apache-2.0
"""What the rules share: the files of the tree, and how a rule reports.

The tree is walked, not asked of git: the rules also hold in a tarball.
"""
import os
import re
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
CODE = (".c", ".h", ".cu", ".S")
# Comments and literals of C, C++ and assembly. A comment's match starts with a slash.
PROSE = re.compile(r"""//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])+'""", re.DOTALL)


FOLDERS = (".ci", "bench", "docs", "examples", "include", "kernels", "preload", "python", "scripts", "src",
           "tests", "tools")


def files():
    """Every file of the project as a path from its root; what else lies beside it is not the project's."""
    found = [name for name in os.listdir(ROOT)
             if os.path.isfile(os.path.join(ROOT, name)) and not name.startswith(".")]
    for top in FOLDERS:
        for folder, folders, names in os.walk(os.path.join(ROOT, top)):
            folders[:] = [name for name in folders if name != "__pycache__"]
            found += [os.path.relpath(os.path.join(folder, name), ROOT) for name in names]
    return sorted(found)


def text(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        return file.read()


def is_script(path):
    """A file that starts with #!, whatever it is called."""
    with open(os.path.join(ROOT, path), "rb") as file:
        return file.read(2) == b"#!"


def report(problems):
    """Prints every problem, one line each, and ends the process as a test does."""
    for problem in problems:
        print(problem)
    sys.exit(1 if problems else 0)
