#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The wheel: built from this checkout, repaired by auditwheel where that is installed, and installed into a fresh
environment that has no compiler and no PyTorch. Usage: wheel.py LIBLADE"""
import glob
import importlib.util
import os
import subprocess
import sys
import tempfile

if os.environ.get("LADE_TORCH_PYTHON", sys.executable) != sys.executable:
    os.execv(os.environ["LADE_TORCH_PYTHON"], [os.environ["LADE_TORCH_PYTHON"], *sys.argv])
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
USE = """
import sys
import lade
from lade import graph as g
assert "torch" not in sys.modules and lade.__file__.startswith(sys.prefix), lade.__file__
graph = g.Graph()
a = graph.add_storage("a", 4096, is_given=True)
b = graph.add_storage("b", 4096)
graph.add_op("f", [a], [b], ns=10)
graph.keep(b)
graph.set_addresses(False)
graph.close()
assert graph.plan().info["planned_peak_bytes"] == 8192
from lade import library
import ctypes, os
ctypes.CDLL(os.path.join(os.path.dirname(library.library()._name), "liblade-allocator.so.0")).lade_plugged_limit
"""


def run(*command, **options):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, **options)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout[-3000:]}"
    return done.stdout


def built(folder, tools):
    """Build the wheel; return (its path, True if auditwheel checked it)."""
    run(sys.executable, "-m", "pip", "wheel", "-q", "--no-build-isolation", "--no-deps", "-w", folder, ROOT, env=tools)
    wheel, = glob.glob(os.path.join(folder, "*.whl"))
    assert "-py3-none-" in wheel, wheel
    if importlib.util.find_spec("auditwheel") is None:
        return wheel, False
    run(sys.executable, "-m", "auditwheel", "repair", "-w", os.path.join(folder, "repaired"), wheel, env=tools)
    wheel, = glob.glob(os.path.join(folder, "repaired", "*.whl"))
    assert "manylinux" in wheel, wheel
    return wheel, True


def main():
    if importlib.util.find_spec("mesonpy") is None:
        print("SKIP: meson-python is not installed; scripts/torch-env installs it")
        sys.exit(77)
    plain = {key: value for key, value in os.environ.items() if not key.startswith(("LD_", "LADE_", "PYTHON"))}
    tools = {**plain, "PATH": os.path.dirname(sys.executable) + os.pathsep + plain["PATH"]}
    with tempfile.TemporaryDirectory(prefix="lade-wheel-") as folder:
        wheel, is_checked = built(folder, tools)
        fresh = os.path.join(folder, "fresh")
        run(sys.executable, "-m", "venv", fresh, env=plain)
        python, bare = os.path.join(fresh, "bin", "python"), {**plain, "PATH": "/nonexistent"}
        run(python, "-m", "pip", "install", "-q", "--no-deps", "--no-index", wheel, env=bare)
        run(python, "-c", USE, env=bare, cwd=folder)
        said = run(os.path.join(fresh, "bin", "lade"), "--version", env=bare, cwd=folder)
        assert run(python, "-m", "lade", "--version", env=bare, cwd=folder) == said, said
        failed = subprocess.run([python, "-c", "import lade.torch"], env=bare, cwd=folder, capture_output=True, text=True,
                                check=False)
        assert failed.returncode and "No module named 'torch'" in failed.stderr, failed.stderr
    print(f"{os.path.basename(wheel)}: {'checked by auditwheel, ' if is_checked else ''}installed without a compiler")


main()
