#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`lade bench`: every subject measures and prints the figures of its contract; mistakes are one line and exit code 2.

Usage: bench.py LADE
"""
import glob
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time

LADE = sys.argv[1]

# Without memory that the C library fills for tests, because it would fill gigabytes of untouched blocks.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "MALLOC_PERTURB_"}


def run(*args, stdout=subprocess.PIPE):
    result = subprocess.run([LADE, "bench", *args], stdout=stdout, stderr=subprocess.PIPE, text=True, check=False,
                            env=ENVIRONMENT)
    return result.returncode, result.stdout, result.stderr


def refused(*args, words):
    code, out, err = run(*args)
    assert code == 2 and not out and err.count("\n") == 1 and re.match("lade bench( store)?: ", err), (args, code, out, err)
    for word in words:
        assert word in err, (args, word, err)
    return err


def numbers_check(report, where):
    """Check that every figure in @report below its version is a positive number."""
    for name, value in report.items():
        if isinstance(value, dict):
            numbers_check(value, where + [name])
        elif name not in ("schema_version", "engine", "has_fio"):
            is_missing = value is None and not report.get("has_fio", True)
            assert is_missing or isinstance(value, (int, float)) and value > 0, (where, name, value)


KEYS = {"adam": {"parameters", "exact_vs_cast_sequence", "bf16_moments_vs_cast_sequence",
                 "eight_bit_vs_cast_sequence", "exact_fraction_of_rmw"},
        "alloc": {"pair_ns", "best_fit_pair_ns", "malloc_pair_ns", "threads"},
        "store": {"rounds", "bytes", "engine", "has_fio"} | {
            name for op in ("read", "write")
            for name in (f"fio_{op}_bytes_per_s", f"store_{op}_bytes_per_s", f"{op}_ratio", f"{op}_checked_ratio",
                         f"posix_{op}_ratio", f"posix_{op}_checked_ratio", f"store_{op}_cpu_s_per_gb",
                         f"store_{op}_checked_cpu_s_per_gb", f"{op}_durable_ratio", f"store_{op}_durable_cpu_s_per_gb",
                         f"fio_{op}_cpu_s_per_gb", f"fio_default_{op}_cpu_s_per_gb")} | {"durable_publish_seconds"}}

# Arguments for each subject that keep it short.
ARGUMENTS = {"store": ["--dir", ".", "--size", "64MiB", "--rounds", "2"]}

names = re.search(r"one of: (.*)$", refused(words=["lade bench NAME"])).group(1).split(", ")
names.remove("links")  # of several ranks: tests/parallel/links.py
assert set(names) == set(KEYS), names
refused("--json", words=["lade bench NAME"])
refused("no-such-bench", "--json", words=["'no-such-bench'", names[0]])
help_text = run("--help")[1]
for name in names:
    assert f"lade bench {name}" in help_text, name
    refused(name, "--no-such-option", words=["--no-such-option"])
    refused(name, "stray", words=["'stray'"])
    page = run(name, "--help")
    assert page[0] == 0 and f"lade bench {name}" in page[1] and not page[2], page
    code, out, err = run(name, "--json", *ARGUMENTS.get(name, []))
    if name == "store" and code in (2, 5, 7):
        print("no store here:", err.strip())
        continue
    report = json.loads(out)
    assert code == 0 and (not err or name == "store") and report["schema_version"] == 1, (name, code, err)
    assert set(report) == KEYS[name] | {"schema_version"}, (name, report)
    numbers_check(report, [name])

assert set(json.loads(run("alloc", "--json")[1])["threads"]) == {"1", "8"}
code, out, err = run("alloc")
assert code == 0 and not err and re.search(r"caching allocator +\d+\.\d\n.* 4 queues\n.*best fit.*\n.*malloc", out), out
with open("/dev/full", "w", encoding="utf-8") as full:
    code, out, err = run("alloc", "--json", stdout=full)
assert code == 5 and "standard output" in err, (code, err)

# A drive: mistakes, and a machine without fio, which is reported.
refused("store", words=["--dir"])
refused("store", "--dir", "no-such", words=["no-such"])
refused("store", "--dir", ".", "--size", "9MiB", words=["--size", "8MiB"])
refused("store", "--dir", ".", "--size", "4MiB", words=["--size", "at least 8.0 MiB"])
refused("store", "--dir", ".", "--rounds", "0", words=["--rounds"])
ENVIRONMENT["PATH"] = "/nonexistent"
code, out, err = run("store", "--json", "--dir", ".", "--size", "8MiB", "--rounds", "1")
if code == 0:
    report = json.loads(out)
    assert "fio" in err and not report["has_fio"] and report["read_ratio"] is None, (err, report)
    assert report["store_read_bytes_per_s"] > 0, report
    code, out, err = run("store", "--dir", ".", "--size", "8MiB", "--rounds", "1")
    assert code == 0 and re.search(r"store, checksums +[\d.]+ GB/s +[\d.]+ GB/s", out), out
    assert re.search(r"durable state +[\d.]+ GB/s +[\d.]+ GB/s.*publishing a generation.* [\d.]+ ms", out, re.DOTALL), out
    os.mkdir("one, with a comma")
    code, out, err = run("store", "--dir", "one, with a comma", "--size", "8MiB", "--rounds", "1")
    os.rmdir("one, with a comma")  # it is empty
    assert code == 0 and "durable state" in out, (code, err)
    # A signal ends the bench after a pass, and durable state's named files are removed.
    with tempfile.TemporaryDirectory(dir=".") as directory:
        bench = subprocess.Popen([LADE, "bench", "store", "--dir", directory, "--size", "8MiB", "--rounds", "99"],
                                 stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=ENVIRONMENT)
        while not glob.glob(directory + "/lade-bench-*/*") and bench.poll() is None:
            time.sleep(0.01)
        bench.send_signal(signal.SIGINT)
        assert bench.wait() == 128 + signal.SIGINT, bench.returncode
        assert not os.listdir(directory), os.listdir(directory)
