# SPDX-License-Identifier: Apache-2.0
"""Common parts of the reports of bench/: data, the line that names machine and build, the output."""
import os
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SKIPPED = 77  # meson's exit code for a skipped test


def data_find(given, name):
    """Return the path of --data, else @name in the folder of data (bench/README.md). Skip if it does not exist."""
    path = given or os.path.join(os.environ.get("LADE_SHARED", os.path.join(ROOT, "..", "shared", "data")), name)
    if os.path.exists(path):
        return path
    where = "--data" if given else "--data, or LADE_SHARED, names it; bench/README.md says where it is from"
    print(f"SKIP: {os.path.normpath(path)} is not there: {where}")
    sys.exit(SKIPPED)


def build_name():
    """Return the commit of this tree, marked if the tree has changes; an empty text without git."""
    command = ["git", "-C", ROOT, "describe", "--always", "--dirty", "--exclude=*"]
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    except OSError:
        return ""
    return f", commit {done.stdout.strip()}" if done.returncode == 0 else ""


def machine_name():
    """Return the processor, its usable cores, the current load, and the build."""
    with open("/proc/cpuinfo") as info:
        name = next((line.split(":", 1)[1].strip() for line in info if line.startswith("model name")), "unknown")
    cores, load = len(os.sched_getaffinity(0)), os.getloadavg()[0]
    return f"{name}, {cores} cores, load {load:.0f} at the start{build_name()}"


def publish(lines, path):
    """Print the lines, and write them to @path if it is given."""
    text = "\n".join(lines) + "\n"
    print(text)
    if path:
        with open(path, "w") as report:
            report.write(text)
