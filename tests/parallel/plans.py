# SPDX-License-Identifier: Apache-2.0
"""Runs of `lade plan` for tests; the first argument of the test is the command."""
import json
import subprocess
import sys

LADE = sys.argv[1]


def require(truth, what, output=""):
    if not truth:
        print(f"FAILED: {what}\n{output}")
        sys.exit(1)


def plan(*arguments, code=0):
    """Run `lade plan`, which must end with @code; None: with any that prints a layout, whether it fits or not."""
    result = subprocess.run([LADE, "plan", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                            check=False)
    require(result.returncode == code or code is None and result.returncode in (0, 3),
            f"{arguments} ends with {result.returncode}, not {code}", result.stderr)
    return result


def fields_once(pairs):
    """Return the object of @pairs, none of which may have the name of another."""
    names = [name for name, _ in pairs]
    require(len(set(names)) == len(names), "an object has one name twice", names)
    return dict(pairs)


def plan_json(*arguments, code=0):
    return json.loads(plan("--json", *arguments, code=code).stdout, object_pairs_hook=fields_once)
