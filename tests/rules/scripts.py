#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every script parses, says what it is for, can be executed, and passes shellcheck where there is one. scripts/build
refuses suites that an option would drop. scripts/bootstrap takes a compiler of several words. No build file asks meson
for a Python installation: that needs distutils, which a bare python3 lacks, and nothing would configure."""
import os
import shutil
import subprocess
import tempfile

import tree


def problems_find(path):
    full = os.path.join(tree.ROOT, path)
    problems = []
    if "$(mktemp" in tree.text(path) and not path.endswith(".py") and '[ -w "${TMPDIR:-/tmp}" ]' not in tree.text(path):
        problems.append(f"{path}: calls mktemp, and a TMPDIR that is not there would stop it: fall back to /tmp")
    if not os.access(full, os.X_OK) and not path.endswith(".py"):
        problems.append(f"{path}: not executable")
    interpreter = tree.text(path).split("\n", 1)[0]
    if "python" in interpreter:
        compile(tree.text(path), path, "exec")
        return problems
    shell = "bash" if "bash" in interpreter else "sh"
    commands = [[shell, "-n", full]]
    if shutil.which("shellcheck"):
        commands.append(["shellcheck", full])
    for command in commands:
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode:
            problems.append(f"{path}: {command[0]}: {result.stdout}{result.stderr}")
    return problems


def refusals_check():
    """Return a problem if `scripts/build --command SUITE` does not name the suite and exit with 2."""
    command = [os.path.join(tree.ROOT, "scripts", "build"), "--command", "rules"]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    return [] if result.returncode == 2 and "'rules'" in result.stderr else [
        f"scripts/build --command rules: exit status {result.returncode}, {result.stderr!r}: expected a refusal, 2"]


def compilers_check():
    """Return a problem if `CC="env cc" scripts/bootstrap` asks for a compiler.

    Nothing is installed: apt-get fails, and so does sudo, which would find the real one.
    """
    with tempfile.TemporaryDirectory(prefix="lade-scripts-") as folder:
        for name in ("apt-get", "sudo"):
            with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
                file.write("#!/bin/sh\nexit 1\n")
            os.chmod(file.name, 0o755)
        result = subprocess.run([os.path.join(tree.ROOT, "scripts", "bootstrap")], capture_output=True, text=True,
                                check=False, timeout=60,
                                env=dict(os.environ, CC="env cc", PATH=folder + os.pathsep + os.environ["PATH"]))
    return [f"CC='env cc' scripts/bootstrap: {result.stderr}"] if "build-essential" in result.stderr else []


scripts = [problem for path in tree.files() if tree.is_script(path) for problem in problems_find(path)]
WHEEL = "python/meson.build" # read where a wheel is built, by a whole Python
builds = [f"{path}: import('python') needs more than a bare python3; find_program('python3') does not"
          for path in tree.files() if os.path.basename(path) == "meson.build" and path != WHEEL
          and "import('python')" in tree.text(path)]
tree.report(scripts + refusals_check() + compilers_check() + builds)
