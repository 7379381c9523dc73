#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""scripts/gpu-check ends what it started when its time is over: the next part would find the GPU in use. On a machine
that has nothing to build with it says so, counts it, and ends with its line all the same; so it does when it is told to
end, and when a part meets what it did not expect. Where the fastest kernels break the device it goes on with others.

Usage: gpu_check.py SCRIPT
"""
import importlib.machinery
import importlib.util
import os
import signal
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


def signal_check():
    """In the middle of a command."""
    with tempfile.TemporaryDirectory(prefix="lade-gpu-check-") as folder:
        program, started = os.path.join(folder, "nvidia-smi"), os.path.join(folder, "started")
        with open(program, "w", encoding="utf-8") as file:
            file.write(f"#!/bin/sh\n: >{started}\nexec sleep 600\n")
        os.chmod(program, 0o755)
        job = subprocess.Popen([sys.executable, os.path.abspath(sys.argv[1]), "--build", "no-such-build"], text=True,
                               env=dict(os.environ, PATH=folder + ":" + os.environ["PATH"]), stdout=subprocess.PIPE)
        deadline = time.monotonic() + 60
        while not os.path.exists(started):
            assert time.monotonic() < deadline and job.poll() is None, job
            time.sleep(0.01)
        job.send_signal(signal.SIGTERM)
        lines = job.communicate(timeout=60)[0].splitlines()
    assert job.returncode == 1 and "ended by SIGTERM" in lines[-2] and lines[-1] == "0 passed, 1 failed, 0 skipped", lines


DOCTOR = """#!/bin/sh
echo "GPU  $LADE_ATTENTION"
test "$LADE_ATTENTION" = "$WORKING"
"""


def doctor_check():
    """The first kernel for attention that leaves the device whole; none of them, and no GPU at all."""
    with tempfile.TemporaryDirectory(prefix="lade-gpu-check-") as folder:
        with open(os.path.join(folder, "lade"), "w", encoding="utf-8") as file:
            file.write(DOCTOR)
        os.chmod(os.path.join(folder, "lade"), 0o755)
        script.NEWER_DRIVERS = []
        for working, gpus, counts in (("", ["a GPU"], (1, 0)), ("plain", ["a GPU"], (1, 2)), ("none", ["a GPU"], (0, 3)),
                                      ("plain", [], (0, 1))):
            os.environ.update(WORKING=working, LADE_ATTENTION="")
            check = script.Check()
            assert script.doctor_ask(check, folder, gpus) == bool(counts[0]), working
            assert (check.counts["passed"], check.counts["failed"]) == counts, (working, check.counts)
            assert not counts[0] or os.environ["LADE_ATTENTION"] == working
        del os.environ["LADE_ATTENTION"], os.environ["WORKING"]


def guard_check():
    check = script.Check()
    assert check.guard("a part", lambda _: {}["missing"]) is None and check.counts["failed"] == 1
    assert check.guard("a part", lambda _, n: n + 1, 1) == 2 and check.counts["failed"] == 1
    for name, rate in (("NVIDIA H200", 989.4e12), ("NVIDIA A100-SXM4-80GB", 312e12), ("NVIDIA H100 80GB HBM3", 989.4e12),
                       ("NVIDIA H100 PCIe", None), ("NVIDIA H200 NVL", None), ("NVIDIA L4", None)):
        assert script.dense_find([name + ", 580.1, 1 MiB"]) == rate, name


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
signal_check()
doctor_check()
guard_check()
with tempfile.TemporaryDirectory(prefix="lade-gpu-check-") as scratch:
    script.ROOT = scratch
    script.GRACE_S = 1
    os.chdir(scratch)
    assert script.Check().run("sh", "-c", "echo here; exit 3") == (3, "here\n")
    assert script.Check().run("./no-such-program")[0] == 127
    check = script.Check()
    assert check.run("sleep", "600", limit_s=0.1)[0] == 124 and check.run("true") == (0, ""), "one part takes all time"
    code, output = check.run("sh", "-c", "echo some; sleep 600", limit_s=1)
    assert code == 124 and output.startswith("some\n"), "what was said before the end is lost"
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
