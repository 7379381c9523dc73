#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""An installed Lade is usable: headers, library and lade.pc are enough to build every example.

Installs into an empty folder, asks pkg-config as a user's build would, builds each file of
examples/ with `cc x.c $(pkg-config --cflags --libs lade)`, and runs a small program against the
installed shared library.

Usage: install.py BUILD-FOLDER CC...
"""
import os
import re
import shutil
import subprocess
import sys
import tempfile

import tree

SMALL = """
#include <lade/types.h>
#include <string.h>
int main(void)
{
  return strcmp(lade_dtype_name(LADE_BF16), "bf16") != 0;
}
"""


def run(command, **more):
    """The output of @command, which must succeed."""
    result = subprocess.run(command, capture_output=True, text=True, check=False, **more)
    if result.returncode:
        tree.report([f"{' '.join(command)}\n{result.stdout}{result.stderr}"])
    return result.stdout


def flags_get(pc):
    """What pkg-config gives for an installation that was moved as a whole, as DESTDIR moves it."""
    destination = pc[:pc.index(prefix_get(pc))] + prefix_get(pc)
    environment = dict(os.environ, PKG_CONFIG_PATH=os.path.dirname(pc))
    command = [os.environ.get("PKG_CONFIG", "pkg-config"), "--define-variable=prefix=" + destination]
    return run(command + ["--cflags", "--libs", "lade"], env=environment).split()


def prefix_get(pc):
    with open(pc, encoding="utf-8") as file:
        return re.search(r"^prefix=(.*)$", file.read(), re.MULTILINE).group(1)


def main(build, compiler):
    if not shutil.which("meson"):
        print("SKIP: meson is not on PATH, so nothing could be installed")
        sys.exit(77)
    with tempfile.TemporaryDirectory() as folder:
        run(["meson", "install", "-C", build, "--no-rebuild", "--quiet", "--destdir", folder])
        installed = [os.path.join(where, name) for where, _, names in os.walk(folder) for name in names]
        pc = next(path for path in installed if path.endswith("/pkgconfig/lade.pc"))
        flags = flags_get(pc)
        small = os.path.join(folder, "small.c")
        with open(small, "w", encoding="utf-8") as file:
            file.write(SMALL)
        examples = [os.path.join(tree.ROOT, path) for path in tree.files()
                    if path.startswith("examples/") and path.endswith(".c")]
        for source in [small] + examples:
            run(compiler + ["-Wall", "-Wextra", "-Werror", source, "-o", os.path.join(folder, "a.out")] + flags)
            if source == small:
                run([os.path.join(folder, "a.out")],
                    env=dict(os.environ, LD_LIBRARY_PATH=os.path.dirname(os.path.dirname(pc))))
        command = next(path for path in installed if path.endswith("/bin/lade"))
        assert run([command, "--version"]).startswith("lade ")
        public = {path for path in tree.files() if path.startswith("include/lade/")}
        missing = {path for path in public if not any(have.endswith("/" + path) for have in installed)}
        tree.report([f"{path} is not installed" for path in sorted(missing)])


main(sys.argv[1], sys.argv[2:])
