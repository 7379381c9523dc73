#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The command around its verbs: help, version, mistakes, and output that cannot be written.

Usage: command.py LADE
"""
import re
import subprocess
import sys

LADE = sys.argv[1]


def run(*args, stdout=subprocess.PIPE):
    result = subprocess.run([LADE, *args], stdout=stdout, stderr=subprocess.PIPE, text=True, check=False)
    return result.returncode, result.stdout, result.stderr


code, out, err = run("--help")
assert code == 0 and out.startswith("Usage: lade VERB") and not err, (code, out, err)
verbs = [name for name in re.findall(r"^  (\w+) +\S", out, re.MULTILINE) if name != "lade"]

code, out, err = run("--version")
assert code == 0 and out.startswith("lade ") and not err, (code, out, err)

code, out, err = run()
assert code == 2 and not out and err.startswith("Usage: lade VERB"), (code, out, err)

code, out, err = run("no-such-verb")
assert code == 2 and not out and err.count("\n") == 1 and "'no-such-verb'" in err and "--help" in err, (code, out, err)

code, out, err = run("--verison")
assert code == 2 and not out and err.count("\n") == 1 and "--version" in err, (code, out, err)
assert run("help") == run("--help")

with open("/dev/full", "w", encoding="utf-8") as full:
    for words in (["--help"], ["plan", "--detail", "--machine", "laptop-8c"]):  # the second is more than one buffer
        code, out, err = run(*words, stdout=full)
        assert code == 5 and err == "lade: standard output: No space left on device; the results are incomplete\n", err

for verb in verbs:
    code, out, err = run(verb, "--help")
    assert code == 0 and out and not err, (verb, code, out, err)
    assert run("help", verb) == (code, out, err), verb
    code, out, err = run(verb, "--no-such-option")
    assert code == 2 and not out and "--no-such-option" in err, (verb, code, out, err)
