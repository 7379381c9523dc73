#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""scripts/gpu-check ends what it started when its time is over: the next part would find the GPU in use. On a machine
that has nothing to build with it says so, counts it, and ends with its line all the same.

Usage: gpu_check.py SCRIPT
"""
import importlib.machinery
import importlib.util
import os
import subprocess
import sys
import tempfile
import time

loader = importlib.machinery.SourceFileLoader("gpu_check_script", os.path.abspath(sys.argv[1]))
sys.dont_write_bytecode = True
script = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
loader.exec_module(script)

CHILD = "sleep 600 & echo $! >pid.new && mv pid.new pid"


def is_alive(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def bare_check():
    """Without meson on PATH or among Python's modules, and --deps of a folder that is not there."""
    with tempfile.TemporaryDirectory(prefix="lade-gpu-check-") as modules:
        with open(os.path.join(modules, "mesonbuild.py"), "w", encoding="utf-8") as module:
            module.write("raise ImportError\n")
        done = subprocess.run([sys.executable, os.path.abspath(sys.argv[1]), "--deps", "missing", "--build", "no-such-build"],
                              env={"PATH": "/nowhere", "PYTHONPATH": modules}, stdout=subprocess.PIPE, text=True,
                              check=False)
    lines = done.stdout.splitlines()
    assert done.returncode == 1 and "--deps missing: there is no such folder" in lines[0], done
    assert "meson is not on PATH" in done.stdout and lines[-1] == "0 passed, 2 failed, 1 skipped", done


def overrun(seconds, command):
    """The child of a command that has no end within @seconds; None if there was no time for one."""
    check = script.Check()
    check.end = time.monotonic() + seconds
    code, output = check.run("sh", "-c", command)
    assert code == 124 and "no time is left" in output, (code, output)
    return int(open("pid", encoding="ascii").read()) if os.path.exists("pid") else None


def pack_check():
    """What --pack makes is found by who looks for tools, headers, libraries and modules; here of a package by itself."""
    with tempfile.TemporaryDirectory(prefix="lade-gpu-check-") as deps:
        usr = os.path.join(deps, "usr")
        os.mkdir(usr)
        source = os.path.join(usr, "some.pc")
        with open(source, "w", encoding="utf-8") as file:
            file.write("prefix=/usr\nlibdir=${prefix}/lib/somewhere\nincludedir=${prefix}/include\nLibs: -L${libdir} -lsome\n")
        script.file_pack(source, deps)
        with open(os.path.join(deps, "lib", "pkgconfig", "some.pc"), encoding="utf-8") as file:
            assert file.read() == ("prefix=${pcfiledir}/../..\nlibdir=${prefix}/lib\nincludedir=${prefix}/include\n"
                                   "Libs: -L${libdir} -lsome\n")
        script.file_pack("/usr/share/doc/some/copyright", deps)
        assert sorted(os.listdir(deps)) == ["lib", "usr"], os.listdir(deps)


bare_check()
pack_check()
with tempfile.TemporaryDirectory(prefix="lade-gpu-check-") as scratch:
    script.ROOT = scratch
    script.GRACE_S = 1
    os.chdir(scratch)
    assert script.Check().run("sh", "-c", "echo here; exit 3") == (3, "here\n")
    assert script.Check().run("./no-such-program")[0] == 127
    check = script.Check()
    assert check.run("sleep", "600", limit_s=0.1)[0] == 124 and check.run("true") == (0, ""), "one part takes all time"
    # One that waits for its child, one that has left it behind, and one that does not listen.
    for rest in ("wait", "exit 0", "trap '' TERM; while :; do sleep 600; done"):
        seconds, child = 0.5, None
        while child is None:
            child = overrun(seconds, f"{CHILD}; {rest}")
            seconds *= 2
        deadline = time.monotonic() + 60
        while is_alive(child):
            assert time.monotonic() < deadline, rest
            time.sleep(0.01)
        os.remove("pid")
    os.chdir("/")
