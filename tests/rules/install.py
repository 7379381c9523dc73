#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""An installed Lade is usable: headers, library and lade.pc are enough to build every example.

Installs into an empty folder, asks pkg-config as a user's build would, builds each file of
examples/ with `cc x.c $(pkg-config --cflags --libs lade)`, and runs each against the installed
shared library, looking at what it prints. The library, lade.pc and the command are of one version.

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
#include <stdio.h>
int main(void)
{
  printf("%s", lade_version());
  return 0;
}
"""

# How the examples are run: arguments, exit code, and what the output must match. TEXT is a file of English; RANKS
# starts two of them, where there is an MPI.
RUNS = {
    "examples/allocator.c": [([], 0, r"step 3: peak 16\.2 MiB live, arena 16\.\d MiB, 32 of 64 allocations planned so far, "
                                     r"0 steps left the plan\nstep 4: .* 1 steps left the plan\n48 MiB: .*limit")],
    "examples/adam.c": [([], 0, r"step 400: mean squared distance [\d.]+e-(0[5-9]|1\d)\n5\.02 bytes per parameter")],
    "examples/batches.c": [(["12"], 0, r"validation loss 4\.\d+ before, [0-3]\.\d+ after 12 steps")],
    "examples/cache.c": [([], 0, r"step 0: peak \d+\.\d MiB live, \d+\.\d MiB reserved, \d+ chunks mapped")],
    "examples/durable.c": [([".", "2"], 0, r"published step \d+\npublished step \d+"),
                           ([".", "1"], 0, r"found step \d+\npublished step \d+"), ([], 2, r"usage")],
    "examples/graph.c": [([], 0, r"(planned peak +(\d+) MiB, measured peak +\2 MiB, +\d+ ops run again, loss .*\n){5}"
                                 r"the weights of all five are equal")],
    "examples/pack.c": [([], 0, r"one after another \d+ KiB; packed \d+ KiB, which is optimal")],
    "examples/plan.c": [([], 0, r"minimum .*\n\ngpt2-124m: 124439808 parameters; smallest budget"),
                        (["no-such-model"], 1, r"no-such-model.*gpt2-")],
    "examples/shard.c": [([], 0, r"step 400: loss 0\.0000\nrank 0 of 1: elements 0 to 100000, 10\.0\d bytes"),
                         (["RANKS"], 0, r"(?s)\A(?=.*step 400: loss 0\.5000\n).*rank 1 of 2: elements 50176 to 100000, "
                                        r"5\.0\d bytes")],
    "examples/store.c": [(["."], 0, r"put 16 tensors.*\n.*got 16 tensors, all as they were put\nweight: .*\n"),
                         ([], 2, r"usage"), (["/no/such/directory"], 1, r"/no/such/directory")],
    "examples/train.c": [(["TEXT", "16", "3"], 0, r"step    2 .*\nvalidation loss .*\n.*planned peak ([\d.]+) MiB, "
                                                  r"measured peak \1 MiB.*\ndigest"),
                         (["TEXT", "1", "3"], 1, r"budget"), ([], 2, r"usage")],
    "examples/types.c": [([], 0, r"bf16 +2 bytes")],
}


def run(command, **more):
    """The output of @command, which must succeed."""
    result = subprocess.run(command, capture_output=True, text=True, check=False, **more)
    if result.returncode:
        tree.report([f"{' '.join(command)}\n{result.stdout}{result.stderr}"])
    return result.stdout


def pkg_config(pc, *arguments):
    """What pkg-config gives for an installation that was moved as a whole, as DESTDIR moves it."""
    destination = pc[:pc.index(prefix_get(pc))] + prefix_get(pc)
    environment = dict(os.environ, PKG_CONFIG_PATH=os.path.dirname(pc))
    command = [os.environ.get("PKG_CONFIG", "pkg-config"), "--define-variable=prefix=" + destination]
    return run(command + list(arguments) + ["lade"], env=environment).split()


def prefix_get(pc):
    with open(pc, encoding="utf-8") as file:
        return re.search(r"^prefix=(.*)$", file.read(), re.MULTILINE).group(1)


def ranks_can_be(library):
    return shutil.which("mpirun") and os.path.exists(os.path.join(library, "liblade-mpi.so"))


def example_run(program, library, source, folder, lade):
    """The problems of one example's runs."""
    problems = []
    text = os.path.join(tree.ROOT, "LICENSE")
    environment = dict(os.environ, LD_LIBRARY_PATH=library)
    for arguments, code, pattern in RUNS.get(source, []):
        if arguments == ["RANKS"] and not ranks_can_be(library):
            continue
        command = [program] + [text if argument == "TEXT" else argument for argument in arguments]
        if arguments == ["RANKS"]:
            command = [lade, "launch", "-n", "2", "--", program]
        result = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=folder)
        output = result.stdout + result.stderr
        if result.returncode != code or not re.search(pattern, output):
            problems.append(f"{source} {' '.join(arguments)}: exit {result.returncode}, expected {code} and "
                            f"/{pattern}/ in:\n{output}")
    return problems if source in RUNS else [f"{source}: has no line in RUNS of tests/rules/install.py"]


def versions_check(pc, folder, compiler, flags, command):
    """Headers, library, lade.pc and the command agree."""
    small = os.path.join(folder, "small.c")
    with open(small, "w", encoding="utf-8") as file:
        file.write(SMALL)
    run(compiler + [small, "-o", small[:-2]] + flags)
    version = run([small[:-2]], env=dict(os.environ, LD_LIBRARY_PATH=os.path.dirname(os.path.dirname(pc))))
    stated = pkg_config(pc, "--modversion")[0]
    said = run([command, "--version"])
    return [] if version == stated and said == f"lade {stated}\n" else [
        f"lade.pc is of version {stated}, the library of {version}, the command says {said}"]


def command_build_check(build, installed):
    """`scripts/build --command` makes the command and every plug-in that is installed, and leaves out tests and the rest."""
    made = run([sys.executable, os.path.join(tree.ROOT, "scripts", "suite-targets"), build, "--command"]).split()
    missing = [path for path in made if not os.path.exists(os.path.join(build, path))]
    plugins = {os.path.basename(path) for path in installed if re.search(r"/(lade-run|liblade-mpi|liblade-onednn)\.so$", path)}
    other = {os.path.basename(path) for path in made} ^ (plugins | {"lade"})
    return [f"scripts/build --command: {', '.join(sorted([*missing, *other]))}: made and not installed, or the reverse"
            ] if missing or other else []


def main(build, compiler):
    if not shutil.which("meson"):
        print("SKIP: meson is not on PATH, so nothing could be installed")
        sys.exit(77)
    with tempfile.TemporaryDirectory() as folder:
        run(["meson", "install", "-C", build, "--no-rebuild", "--quiet", "--destdir", folder])
        installed = [os.path.join(where, name) for where, _, names in os.walk(folder) for name in names]
        pc = next(path for path in installed if path.endswith("/pkgconfig/lade.pc"))
        command = next(path for path in installed if path.endswith("/bin/lade"))
        flags = pkg_config(pc, "--cflags", "--libs")
        problems = versions_check(pc, folder, compiler, flags, command) + command_build_check(build, installed)
        program = os.path.join(folder, "a.out")
        for source in (path for path in tree.files() if path.startswith("examples/") and path.endswith(".c")):
            run(compiler + ["-Wall", "-Wextra", "-Werror", os.path.join(tree.ROOT, source), "-o", program] + flags)
            problems += example_run(program, os.path.dirname(os.path.dirname(pc)), source, folder, command)
        public = {path for path in tree.files() if path.startswith("include/lade/")}
        missing = {path for path in public if not any(have.endswith("/" + path) for have in installed)}
        tree.report(problems + [f"{path} is not installed" for path in sorted(missing)])


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
