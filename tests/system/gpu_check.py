#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""scripts/gpu-check ends its child processes when their time is over, because the next part would find the GPU in use.
On a machine without build tools it reports that, counts it, and still prints its last line; also when it is
terminated, and when a part fails unexpectedly. If the fastest kernels break the device it goes on with others.

Usage: gpu_check.py SCRIPT
"""
import argparse
import importlib.machinery
import importlib.util
import os
import signal
import subprocess
import sys
import tempfile
import time

sys.argv[1] = os.path.abspath(sys.argv[1])
loader = importlib.machinery.SourceFileLoader("gpu_check_script", sys.argv[1])
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
    """Without meson on PATH or among Python's modules, and --deps of a missing folder."""
    with tempfile.TemporaryDirectory(prefix="lade-gpu-check-") as modules:
        with open(os.path.join(modules, "mesonbuild.py"), "w", encoding="utf-8") as module:
            module.write("raise ImportError\n")
        done = subprocess.run([sys.executable, sys.argv[1], "--deps", "missing", "--build", "no-such-build"],
                              env={"PATH": "/nowhere", "PYTHONPATH": modules}, stdout=subprocess.PIPE, text=True,
                              check=False)
    lines = done.stdout.splitlines()
    assert done.returncode == 1 and "--deps missing: there is no such folder" in lines[0], done
    assert "meson is not on PATH" in done.stdout and lines[-1] == "0 passed, 2 failed, 1 skipped", done


def signal_check():
    """A signal in the middle of a command."""
    with tempfile.TemporaryDirectory(prefix="lade-gpu-check-") as folder:
        program, started = os.path.join(folder, "nvidia-smi"), os.path.join(folder, "started")
        with open(program, "w", encoding="utf-8") as file:
            file.write(f"#!/bin/sh\n: >{started}\nexec sleep 600\n")
        os.chmod(program, 0o755)
        job = subprocess.Popen([sys.executable, sys.argv[1], "--build", "no-such-build"], text=True,
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
    """The first attention kernel that leaves the device whole; none of them, and no GPU at all."""
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
    """Return the child of a command that has no end within @seconds; None if there was no time for one."""
    check = script.Check()
    check.end = time.monotonic() + seconds
    code, output = check.run("sh", "-c", command)
    assert code == 124 and "no time is left" in output, (code, output)
    return int(open("pid", encoding="ascii").read()) if os.path.exists("pid") else None


def pack_check():
    """Tools, headers, libraries and modules packed by --pack are found; here in a package of its own."""
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


def results_text(folder):
    with open(os.path.join(folder, "bench", "results", "some-gpu.md"), encoding="utf-8") as file:
        return file.read()


SUITE = """project('suite')
foreach seconds : ['600', '0']
  test('sleeps-' + seconds, find_program('sleep'), args: seconds, suite: 'gpu', is_parallel: false, timeout: 300)
endforeach
built = configure_file(input: 'program.in', output: 'program', copy: true)
test('is-inside', find_program('test'), args: ['-f', built], suite: 'gpu')
test('has-an-environment', find_program('sh'), args: ['-c', 'test "${NAMED%%:*}" = value'], env: {'NAMED': 'value'}, suite: 'gpu')
test('is-skipped', find_program('sh'), args: ['-c', 'exit 77'], suite: 'gpu')
test('is-another', find_program('false'), suite: 'other')
"""


def suite_check(folder):
    """A hanging test on the GPU fails, and leaves time for the others. A folder that was compiled elsewhere has its tests
    here, by the paths of this machine."""
    for name, text in (("meson.build", SUITE), ("program.in", "")):
        with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
            file.write(text)
    script.TEST_S = 2
    check = script.Check()
    meson = script.meson_find()
    if not meson:
        print("SKIP: meson is not on PATH: a suite is left out")
        return
    assert check.run(*meson, "setup", "of-tests")[0] == 0
    os.rename("of-tests", "moved")
    script.gpu_tests_run(check, "moved")
    assert check.counts == {"passed": 3, "failed": 1, "skipped": 1}, check.counts


def parts_check(folder):
    """A part that is ended keeps the measurements of earlier parts. Parts without time left are named with the command
    that runs them. Parts run by name later keep the others' figures, and drop their own earlier ones.
    """
    def ended(_):
        raise script.Ended(signal.SIGTERM)
    bodies = {"tests": lambda check: check.figure("0. tests", "all"), "kernels": ended}
    script.parts_list = lambda options, *_: [(name, f"the {name}", body) for name, body in bodies.items()
                                             if not options.only or name in options.only]
    options = argparse.Namespace(build="kept", only=[], turns=0, largest=False)
    check = script.Check()
    try:
        script.measure(check, options, ["Some GPU, 1"])
        assert False, "an end is not passed on"
    except script.Ended:
        pass
    assert "| 0. tests | all |" in results_text(folder), results_text(folder)
    check.end = time.monotonic()
    script.measure(check, options, ["Some GPU, 1"])
    left = "No time was left for all of: tests, kernels. `scripts/gpu-check --only tests,kernels` measures them."
    assert check.counts["skipped"] == 2 and left in results_text(folder), (check.counts, results_text(folder))
    check = script.Check()
    bodies["kernels"] = lambda check: setattr(check, "end", time.monotonic())  # ended in the middle
    script.measure(check, options, ["Some GPU, 1"])
    assert check.left == ["kernels"] and "`scripts/gpu-check --only kernels` measures them" in results_text(folder)
    bodies["kernels"] = lambda check: check.figure("1. copy", "fast")
    options.only = ["kernels"]
    script.measure(script.Check(), options, ["Some GPU, 1"])
    assert "| 0. tests | all |" in results_text(folder) and "| 1. copy | fast |" in results_text(folder)
    bodies["tests"] = lambda check: check.figure("0. others", "none")
    options.only = ["tests"]
    script.measure(script.Check(), options, ["Some GPU, 1"])
    text = results_text(folder)
    assert "No time was left" not in text and "0. tests" not in text and text.index("| 0. others |") < text.index("| 1. copy | fast |"), text
    done = subprocess.run([sys.executable, sys.argv[1], "--only", "tests,no-such"], text=True,
                          stderr=subprocess.PIPE, check=False)
    assert done.returncode == 2 and "'no-such' is no part; parts are build, unknowns, tests, " in done.stderr, done
    for words, expected in ((["--limit", "5", "--turns", "2"], "--limit is for the measurements"),
                            (["--limit", "0"], "expected more than 0 seconds")):
        done = subprocess.run([sys.executable, sys.argv[1], *words], text=True, stderr=subprocess.PIPE, check=False)
        assert done.returncode == 2 and expected in done.stderr, done


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
    # One that waits for its child, one that has left it behind, and one that ignores signals.
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
    suite_check(scratch)
    parts_check(scratch)
    os.chdir("/")
