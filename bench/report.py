# SPDX-License-Identifier: Apache-2.0
"""What the reports of bench/ have in common: data, the line that names machine and build, where the text goes."""
import os
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SKIPPED = 77  # meson's code for what cannot be run here


def data_find(given, name):
    """The path that --data gave; else @name in the folder of data (bench/README.md). Skips where it is not there."""
    path = given or os.path.join(os.environ.get("LADE_SHARED", os.path.join(ROOT, "..", "shared", "data")), name)
    if os.path.exists(path):
        return path
    where = "--data" if given else "--data, or LADE_SHARED, names it; bench/README.md says where it is from"
    print(f"SKIP: {os.path.normpath(path)} is not there: {where}")
    sys.exit(SKIPPED)


def build_name():
    """The commit of this tree, with a mark if it was changed since; nothing in a tree without git."""
    command = ["git", "-C", ROOT, "describe", "--always", "--dirty", "--exclude=*"]
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    except OSError:
        return ""
    return f", commit {done.stdout.strip()}" if done.returncode == 0 else ""


def machine_name():
    """The processor, its cores that may be used, the load at this moment, and the build."""
    with open("/proc/cpuinfo") as info:
        name = next((line.split(":", 1)[1].strip() for line in info if line.startswith("model name")), "unknown")
    cores, load = len(os.sched_getaffinity(0)), os.getloadavg()[0]
    return f"{name}, {cores} cores, load {load:.0f} at the start{build_name()}"


def publish(lines, path):
    """Prints the lines, and writes them to the file if one was named."""
    text = "\n".join(lines) + "\n"
    print(text)
    if path:
        with open(path, "w") as report:
            report.write(text)
