#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`lade bench`: every name that it knows measures and prints what its contract says; mistakes are one line and 2.

Usage: bench.py LADE
"""
import json
import os
import re
import subprocess
import sys

LADE = sys.argv[1]

# Not with memory that the C library fills for tests: it would fill gigabytes of blocks that nobody touches.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "MALLOC_PERTURB_"}


def run(*args, stdout=subprocess.PIPE):
    result = subprocess.run([LADE, "bench", *args], stdout=stdout, stderr=subprocess.PIPE, text=True, check=False,
                            env=ENVIRONMENT)
    return result.returncode, result.stdout, result.stderr


def refused(*args, words):
    code, out, err = run(*args)
    assert code == 2 and not out and err.count("\n") == 1 and err.startswith("lade bench: "), (args, code, out, err)
    for word in words:
        assert word in err, (args, word, err)
    return err


def numbers_check(report, where):
    """All that is in @report below its version is a positive number."""
    for name, value in report.items():
        if isinstance(value, dict):
            numbers_check(value, where + [name])
        elif name != "schema_version":
            assert isinstance(value, float) and value > 0, (where, name, value)


KEYS = {"alloc": {"pair_ns", "best_fit_pair_ns", "malloc_pair_ns", "threads"}}

names = re.search(r"there is: (.*)$", refused(words=["which?"])).group(1).split(", ")
assert set(names) == set(KEYS), names
refused("--json", words=["which?"])
refused("no-such-bench", "--json", words=["'no-such-bench'", names[0]])
help_text = run("--help")[1]
for name in names:
    assert f"lade bench {name}" in help_text, name
    refused(name, "--no-such-option", words=["--no-such-option"])
    refused(name, "stray", words=["'stray'"])
    assert run(name, "--help") == (0, help_text, "")
    code, out, err = run(name, "--json")
    report = json.loads(out)
    assert code == 0 and not err and report["schema_version"] == 1, (name, code, err)
    assert set(report) == KEYS[name] | {"schema_version"}, (name, report)
    numbers_check(report, [name])

assert set(json.loads(run("alloc", "--json")[1])["threads"]) == {"1", "8"}
code, out, err = run("alloc")
assert code == 0 and not err and re.search(r"caching allocator +\d+\.\d\n.* 4 queues\n.*best fit.*\n.*malloc", out), out
with open("/dev/full", "w", encoding="utf-8") as full:
    code, out, err = run("alloc", "--json", stdout=full)
assert code == 5 and "standard output" in err, (code, err)
