#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every script parses, says what it is for, can be executed, and passes shellcheck where there is one. scripts/build
refuses suites that an option would drop. No build file asks meson for a Python installation: that needs distutils,
which a bare python3 lacks, and nothing would configure."""
import os
import shutil
import subprocess

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


scripts = [problem for path in tree.files() if tree.is_script(path) for problem in problems_find(path)]
WHEEL = "python/meson.build" # read where a wheel is built, by a whole Python
builds = [f"{path}: import('python') needs more than a bare python3; find_program('python3') does not"
          for path in tree.files() if os.path.basename(path) == "meson.build" and path != WHEEL
          and "import('python')" in tree.text(path)]
tree.report(scripts + refusals_check() + builds)
