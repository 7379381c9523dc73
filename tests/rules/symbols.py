#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The shared library exports what symbols.txt lists, what the public headers declare, and no more.

Three lists must be one: the symbols of liblade.so under the version LADE_0, the functions marked
LADE_API in include/lade, and symbols.txt, which makes every change of the ABI a line in a diff.
Nor may the library need a GPU's or a launcher's libraries to load. The library liblade-allocator.so exports the
functions marked LADE_PLUGGED and no more, and needs liblade and libc alone.

Usage: symbols.py liblade.so [liblade-allocator.so] [--update]   --update writes symbols.txt from the library
"""
import os
import re
import subprocess
import sys

import tree

LIST = "tests/rules/symbols.txt"
NEVER_NEEDED = ("libcuda", "libcudart", "libcublas", "libnccl", "libmpi")


def exported_get(library):
    output = subprocess.run(["nm", "-D", "--defined-only", "--with-symbol-versions", library],
                            capture_output=True, text=True, check=True).stdout
    names = [line.split()[2] for line in output.splitlines()]
    return {name for name in names if name != "LADE_0"}


def declared_get(mark):
    names = set()
    for path in tree.files():
        if path.startswith("include/lade/"):
            code = re.sub(r"/\*.*?\*/|^\s*#.*?$", "", tree.text(path), flags=re.DOTALL | re.MULTILINE)
            names |= {name + "@@LADE_0" for name in re.findall(mark + r"\b[^;{(]*?\b(\w+)\s*\(", code)}
    return names


def needed_get(library):
    dynamic = subprocess.run(["readelf", "-d", library], capture_output=True, text=True, check=True).stdout
    return re.findall(r"NEEDED.*\[(.*)\]", dynamic)


def plugin_check(library):
    """The problems of liblade-allocator.so."""
    declared, shown = declared_get("LADE_PLUGGED"), exported_get(library)
    allowed = ("liblade.so.0", "libc.so", "ld-linux", "libdl.so", "libpthread.so", "libm.so", "libasan", "libubsan",
               "libtsan")
    return (differences(declared, "the public headers (LADE_PLUGGED)", shown, "liblade-allocator.so")
            + differences(shown, "liblade-allocator.so", declared, "the public headers (LADE_PLUGGED)")
            + [f"liblade-allocator.so needs {name} to load" for name in needed_get(library)
               if not name.startswith(allowed)])


def differences(names, what, others, other_what):
    return [f"{name.split('@')[0]} is in {what} and not in {other_what}" for name in sorted(names - others)]


exported = exported_get(sys.argv[1])
if sys.argv[2:] == ["--update"]:  # of one library
    with open(os.path.join(tree.ROOT, LIST), "w", encoding="utf-8") as file:
        file.writelines(name + "\n" for name in sorted(exported))
listed = set(tree.text(LIST).split())
declared = declared_get("LADE_API")
problems = (differences(exported, "liblade.so", listed, LIST + " (symbols.py LIBRARY --update writes it)")
            + differences(listed, LIST, exported, "liblade.so")
            + differences(declared, "the public headers (LADE_API)", exported, "liblade.so")
            + differences(exported, "liblade.so", declared, "the public headers (LADE_API)"))
dynamic = subprocess.run(["readelf", "-d", sys.argv[1]], capture_output=True, text=True, check=True).stdout
problems += [f"liblade.so needs {name} to load" for name in re.findall(r"NEEDED.*\[(.*)\]", dynamic)
             if name.startswith(NEVER_NEEDED)]
if "SONAME" not in dynamic or "[liblade.so.0]" not in dynamic:
    problems.append("liblade.so does not carry the soname liblade.so.0")
if sys.argv[2:] and sys.argv[2] != "--update":
    problems += plugin_check(sys.argv[2])
tree.report(problems)
