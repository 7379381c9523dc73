#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`lade run` around programs of the driver API, over the fake driver. Every route to the driver is caught, every kind
of memory is in the ledger, the budget holds, and the driver's reports agree with it. Endings, signals and children
are the command's own.

Usage: shim.py LADE DRIVER-FOLDER HOLDER HOLDER-LINKED OPENER GUEST
       shim.py LADE gpu HOLDER HOLDER-LINKED   properties that hold over any driver, over this machine's
"""
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile

IS_GPU = sys.argv[2] == "gpu"
LADE, FOLDER, HOLDER, LINKED = (os.path.abspath(path) for path in sys.argv[1:5])
OPENER, GUEST = (None, None) if IS_GPU else (os.path.abspath(path) for path in sys.argv[5:7])
DRIVER = os.path.realpath(os.path.join(FOLDER, "libcuda.so.1"))
MIB = 1 << 20
OUT_OF_MEMORY = 2
SCRATCH = tempfile.TemporaryDirectory(prefix="lade-shim-")
REPORT = os.path.join(SCRATCH.name, "report.json")


def environment(**more):
    settings = dict(os.environ, TMPDIR=SCRATCH.name)
    if IS_GPU:  # meson leads every test to the libraries that its programs are linked with, the fake among them
        paths = settings.get("LD_LIBRARY_PATH", "").split(":")
        settings["LD_LIBRARY_PATH"] = ":".join(path for path in paths if path and path != os.path.dirname(HOLDER))
    else:
        settings.update(LD_LIBRARY_PATH=FOLDER, LADE_FAKE="devices=2")
    settings.update(more)
    return {name: value for name, value in settings.items() if value is not None}


def run(*command, options=(), cwd=None, **more):
    """Return exit code, both outputs and the report of the command under `lade run`; check that no record is left."""
    if os.path.exists(REPORT):
        os.remove(REPORT)
    result = subprocess.run([LADE, "run", "--report", REPORT, *options, "--", *command], capture_output=True,
                            text=True, check=False, timeout=60, env=environment(**more), cwd=cwd)
    assert [name for name in os.listdir(SCRATCH.name) if name.startswith("lade-run.")] == [], result
    report = None
    if os.path.exists(REPORT):
        with open(REPORT, encoding="utf-8") as file:
            report = json.load(file)
    return result.returncode, result.stdout, result.stderr, report


def held(*command, **more):
    """Return the output and the report of a command that must succeed."""
    code, out, err, report = run(*command, **more)
    assert code == 0, (command, code, out, err)
    return out, report


def refused(code, words, *arguments, **more):
    result = subprocess.run([LADE, "run", *arguments], capture_output=True, text=True, check=False, timeout=60,
                            env=environment(**more))
    assert result.returncode == code and not result.stdout and result.stderr.count("\n") == 1, (arguments, result)
    assert words in result.stderr, (words, result)


def numbers(out, line):
    return [int(word) for word in out.split(line + " ")[1].split("\n")[0].replace(",", "").split() if word.isdigit()]


def mistakes_are_one_line():
    refused(2, "the command is missing")
    refused(2, "the command is missing", "--budget", "1GiB", "--")
    refused(2, "no program 'no-such-program'", "--", "no-such-program")
    for budget in ("x", "0", "-1", "nan", "0%", "101%", "-5%", "inf%", "80%%", "1GiB x", "99999999999GiB"):
        refused(2, "budget", "--budget", budget, "--", "true")
    refused(2, "no/such/folder", "--report", "/no/such/folder/x", "--", "true")
    refused(2, "lade run inside lade run", "--", "true", LADE_RUN_DRIVER="x")
    refused(2, "TMPDIR", "--", "true", TMPDIR="/no/such/folder")
    find = [sys.executable, "-c", "import ctypes; ctypes.CDLL('libcuda.so.1')"]
    if subprocess.run(find, stderr=subprocess.DEVNULL, check=False, env=environment(LD_LIBRARY_PATH=None)).returncode:
        refused(7, "no CUDA driver here", "--", "true", LD_LIBRARY_PATH=None)
    broken = os.path.join(SCRATCH.name, "broken")
    with open(broken, "w", encoding="utf-8") as file:
        file.write("#!/no/such/interpreter\n")
    os.chmod(broken, 0o755)
    refused(2, "cannot be run", "--", broken)


def other_names():
    """The driver under names unknown to the loader: the search path to them, and routes by path."""
    bare = os.path.join(SCRATCH.name, "bare")
    versioned = os.path.join(bare, "libcuda.so.999.1")
    os.mkdir(bare)
    for name in (os.path.join(bare, "libcuda.so"), versioned):
        os.symlink(DRIVER, name)
    return FOLDER + ":" + bare, [(HOLDER, kind + path) for kind in ("path:", "space:") for path in (DRIVER, versioned)]


def every_route_is_bounded():
    """The same program fills the same budget to the byte by each route, and reports it."""
    routes = [(LINKED, "linked"), (HOLDER, "soname"), (HOLDER, "bare"), (HOLDER, "lookup"), (HOLDER, "lookup_old"),
              (HOLDER, "per_thread"), (HOLDER, "deep"), (HOLDER, "space")]
    more = {}
    if not IS_GPU:
        more["LD_LIBRARY_PATH"], by_path = other_names()
        routes += by_path
    for program, route in routes:
        out, report = held(program, route, "fill", options=["--budget", "24MiB"], **more)
        assert numbers(out, "empty") == [24 * MIB] * 3, (route, out)
        assert numbers(out, "full") == [0, 24 * MIB, 24 * MIB], (route, out)
        assert f"filled 24, then {OUT_OF_MEMORY} 0\n" in out, (route, out)
        [process] = report["processes"]
        [device] = process["devices"]
        assert process["program"] == os.path.basename(program), process
        assert device["peak_bytes"] == device["bytes"] == device["budget_bytes"] == 24 * MIB, (route, device)
        assert device["refused"] == {"count": 2, "largest_bytes": 2 * MIB}, (route, device)
        assert device["kinds"] == {"linear": {"peak_bytes": 24 * MIB, "bytes": 24 * MIB, "taken": 25,
                                              "given_back": 1}}, (route, device)
    assert report["budget"] == "24MiB" and report["schema_version"] == 1
    assert IS_GPU or report["driver"] == DRIVER


def a_budget_may_be_a_part_of_the_device():
    out, report = held(HOLDER, "soname", "fill", options=["--budget", "25%"])
    assert numbers(out, "full") == [0, 64 * MIB, 64 * MIB], out
    assert report["processes"][0]["devices"][0]["budget_bytes"] == 64 * MIB
    out, report = held(HOLDER, "soname", "fill", options=["--budget", "1TiB"])
    assert numbers(out, "empty") == [248 * MIB, 256 * MIB, 256 * MIB], out  # no more than the budget
    out, report = held(HOLDER, "soname", "fill")
    assert numbers(out, "full") == [0, 256 * MIB, 256 * MIB], out
    device = report["processes"][0]["devices"][0]
    assert device["budget_bytes"] is None and device["refused"]["count"] == 0 and report["budget"] is None
    assert device["peak_bytes"] == 248 * MIB, device


def threads_share_the_last_bytes():
    out, report = held(HOLDER, "lookup", "threads", options=["--budget", "50MiB"])
    device = report["processes"][0]["devices"][0]
    assert numbers(out, "threads hold") == [50] and numbers(out, "full")[0] == 0, out
    assert device["bytes"] == device["peak_bytes"] == 50 * MIB, device
    linear = device["kinds"]["linear"]
    assert linear["taken"] - linear["given_back"] == 50, linear


def every_kind_is_in_the_ledger():
    out, report = held(HOLDER, "soname", "kinds", options=["--budget", "100MiB"])
    [process] = report["processes"]
    first, second = process["devices"]

    def kind(where, name):
        sums = where["kinds"][name]
        return [sums["peak_bytes"], sums["bytes"], sums["taken"], sums["given_back"]]

    assert kind(first, "linear") == [MIB, MIB, 1, 0]
    assert kind(first, "pitched") == [10240, 10240, 1, 0]
    assert kind(first, "managed") == [3 * MIB, 3 * MIB, 1, 0]
    assert kind(first, "pool") == [3 * MIB, 2 * MIB, 3, 1]
    assert kind(first, "chunk") == [4 * MIB, 2 * MIB, 2, 1]
    layers = 4 * 4 * (64 * 64 + 32 * 32 + 16 * 16)
    assert kind(first, "array") == [1600000, 262144 + layers, 4, 1], first
    assert kind(first, "imported") == [9 * MIB, 9 * MIB, 3, 1], first
    assert kind(second, "pool") == [14 * MIB, 14 * MIB, 3, 0]
    assert kind(process["host"], "chunk") == [2 * MIB, 2 * MIB, 1, 0]
    assert kind(process["host"], "pinned") == [12288, 12288, 2, 1]
    assert kind(process["host"], "registered") == [8192, 0, 1, 1]
    counted = ("linear", "pitched", "managed", "pool", "chunk", "array")
    assert first["bytes"] == sum(first["kinds"][name]["bytes"] for name in counted), first
    assert numbers(out, "end")[0] == 100 * MIB - first["bytes"], out
    before = 100 * MIB - 10240 - 4 * MIB
    assert numbers(out, "released")[0] == numbers(out, "retained")[0] == before - 4 * MIB, out
    assert numbers(out, "gone")[0] == before - 2 * MIB, out


def the_drivers_refusals_are_the_programs():
    """A call that the driver fails is not counted, and memory that it did not free is still held."""
    for function, code, line in (("cuMemAlloc", 8, "700 from"), ("cuMemFree", 8, "700 from"), ("cuInit", 8, "700 from"),
                                 ("cuMemGetInfo", 8, "700 from"), ("cuDeviceTotalMem", 8, "700 from")):
        status, out, err, report = run(HOLDER, "soname", "once", options=["--budget", "4MiB"],
                                       LADE_FAKE=f"fail={function},code=700,forever=1")
        assert status == code and line in out and f"({function}" in out.replace("_v2", ""), (function, status, out, err)
        sums = [device for process in report["processes"] for device in process["devices"]]
        expected = {"cuMemFree": [MIB], "cuMemAlloc": [0]}.get(function, [])
        assert [device["bytes"] for device in sums] == [device["peak_bytes"] for device in sums] == expected, report
    status, out, err, report = run(HOLDER, "lookup", "once", LADE_FAKE="fail=cuGetProcAddress,nth=4,code=1")
    assert status == 9 and out.startswith("no cu"), (status, out)


def memory_ends_with_its_context():
    out, report = held(HOLDER, "soname", "owners", options=["--budget", "16MiB"])
    assert numbers(out, "wrong") == [1] and numbers(out, "held")[0] == 11 * MIB, out
    assert numbers(out, "one left")[0] == 13 * MIB and numbers(out, "anew")[0] == 16 * MIB, out
    assert report["processes"][0]["devices"][0]["kinds"]["linear"]["given_back"] == 2
    if not IS_GPU:  # newer drivers may have dropped these forms
        out, report = held(HOLDER, "soname", "detach", options=["--budget", "16MiB"])
        assert numbers(out, "attached")[0] == 11 * MIB and numbers(out, "detached")[0] == 16 * MIB, out


def old_and_new_functions_are_reached():
    out, report = held(HOLDER, "soname", "ancient", options=["--budget", "16MiB"])
    assert numbers(out, "ancient") == [15 * MIB, 16 * MIB] and numbers(out, "total") == [16 * MIB], out
    for route in ("soname", "lookup"):
        out, report = held(HOLDER, route, "novelty")
        assert out == f"novelty 42, table untouched {DRIVER}, none 0\n", out
    assert report["processes"][0]["devices"] == []


def memory_of_graphs_counts():
    out, report = held(HOLDER, "soname", "graphs", options=["--budget", "10MiB"])
    free = [numbers(out, line)[0] for line in ("captured", "made", "unmade", "again")]
    assert free == [9 * MIB, 3 * MIB, 9 * MIB, 3 * MIB] and numbers(out, "second") == [OUT_OF_MEMORY] * 3, out
    device = report["processes"][0]["devices"][0]
    assert device["kinds"]["graph"] == {"peak_bytes": 6 * MIB, "bytes": 6 * MIB, "taken": 2, "given_back": 1}, device
    assert device["refused"] == {"count": 3, "largest_bytes": 6 * MIB}, device
    failing = run(HOLDER, "soname", "graphs", LADE_FAKE="fail=cuGraphInstantiateWithFlags,nth=1,code=700")
    assert failing[0] == 8 and failing[3]["processes"][0]["devices"][0]["bytes"] == MIB, failing


    out, report = held(HOLDER, "soname", "far_graph", options=["--budget", "16MiB"])
    assert numbers(out, "outlived")[0] == 12 * MIB and numbers(out, "destroyed")[0] == 16 * MIB, out


def memory_that_is_opened_again_is_one():
    for arguments, left in ((["0"], MIB), (["1"], MIB), (["2"], 0), (["0", "end"], 0), (["1", "end"], 0)):
        out, report = held(HOLDER, "soname", "imports", *arguments)
        sums = report["processes"][0]["devices"][0]["kinds"]["imported"]
        assert out == "again the same\n", out
        assert sums == {"peak_bytes": MIB, "bytes": left, "taken": 1, "given_back": int(not left)}, (arguments, sums)


def forms_of_another_day_pass_and_are_reported():
    code, out, err, report = run(HOLDER, "lookup", "future", options=["--budget", "4MiB"])
    assert code == 0 and out == "future 0\nknown 0\n", (code, out)
    assert "newer CUDA than this build knows is used, and not counted: cuMemAlloc\n" in err, err
    assert report["processes"][0]["devices"][0]["bytes"] == MIB, report


def padding_counts():
    out, report = held(HOLDER, "soname", "padding", options=["--budget", "4MiB"])
    assert numbers(out, "padding") == [OUT_OF_MEMORY] and numbers(out, "padded")[0] == 4 * MIB, out
    device = report["processes"][0]["devices"][0]
    assert device["bytes"] == 0 and device["refused"]["count"] == 1, device


def sizes_that_no_device_has_are_refused():
    out, report = held(HOLDER, "soname", "absurd", options=["--budget", "4MiB"])
    assert numbers(out, "absurd") == [OUT_OF_MEMORY] * 2 and numbers(out, "as before")[0] == 4 * MIB, out
    device = report["processes"][0]["devices"][0]
    assert device["bytes"] == 0 and device["refused"] == {"count": 2, "largest_bytes": (1 << 63) - 1}, device


def endings_are_the_commands():
    for code in (0, 1, 3, 200):
        assert run(HOLDER, "soname", "leave", str(code))[0] == code
    code, out, err, report = run("true")
    assert code == 7 and "nothing was intercepted" in err and report["processes"] == [], (code, err)
    code, out, err, report = run("env", "-u", "LD_PRELOAD", HOLDER, "soname", "start")
    assert code == 7 and "it cleared LD_PRELOAD" in err and report["processes"] == [], (code, err)
    code, out, err, report = run("sh", "-c", f"exec 2>&-; exec {HOLDER} soname start")
    assert code == 0 and "took no memory" in err, (code, err)
    code, out, err, report = run("sh", "-c", "echo out; echo err >&2; exit 5")
    assert code == 5 and out == "out\n" and err.startswith("err\n") and "nothing was intercepted" in err, (code, err)
    assert report["exit_code"] == 5 and report["signal"] is None
    code, out, err, report = run("sh", "-c", "kill -KILL $$")
    assert code == -signal.SIGKILL and report["signal"] == signal.SIGKILL and report["exit_code"] is None, code
    out, report = held(HOLDER, "soname", "start")
    assert report["processes"][0]["devices"] == []
    assert "took no memory" in run(HOLDER, "soname", "start")[2]


def signals_pass():
    """A signal that ends the command ends `lade run` too, and the last figures are reported."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the parent may have it ignored (nohup), for good
    for number in (signal.SIGTERM, signal.SIGUSR1):
        job = subprocess.Popen([LADE, "run", "--report", REPORT, "--", HOLDER, "soname", "wait"], text=True,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment())
        assert job.stdout.readline() == "ready\n"
        job.send_signal(number)
        _, err = job.communicate(timeout=60)
        assert job.returncode == -number and "3.0 MiB" in err, (job.returncode, err)
        with open(REPORT, encoding="utf-8") as file:
            assert json.load(file)["processes"][0]["devices"][0]["bytes"] == 3 * MIB
    job = subprocess.Popen([LADE, "run", "--", "sh", "-c", "trap 'exit 9' HUP; echo ready; read x; exit 1"],
                           stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                           env=environment())
    assert job.stdout.readline() == "ready\n"
    job.send_signal(signal.SIGHUP)
    assert job.wait(timeout=60) == 9
    job.stdin.close()
    job = subprocess.Popen([LADE, "run", "--", HOLDER, "soname", "wait"], text=True, stdout=subprocess.PIPE,
                           stderr=subprocess.DEVNULL, env=environment())
    assert job.stdout.readline() == "ready\n"
    job.kill()
    assert job.stdout.read() == ""  # the end of the pipe: the command died with it
    job.wait(timeout=60)
    leftovers = [name for name in os.listdir(SCRATCH.name) if name.startswith("lade-run.")]
    assert leftovers
    assert run("true")[0] == 7  # which checks that nothing is left over


def only_files_of_dead_runs_are_removed():
    """A living run keeps its records; other users' files, and targets of links, stay."""
    job = subprocess.Popen([LADE, "run", "--report", REPORT + ".lives", "--", HOLDER, "soname", "wait"], text=True,
                           stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment())
    assert job.stdout.readline() == "ready\n"
    other, foreign, link, dead = (os.path.join(SCRATCH.name, name)
                                  for name in ("other", "lade-run.others", "lade-run.alinks", "lade-run.isdead"))
    for folder in (other, foreign, dead):
        os.mkdir(folder)
        with open(os.path.join(folder, "record"), "w", encoding="utf-8"):
            pass
    os.symlink(other, link)
    if os.geteuid() == 0:
        os.chown(foreign, 65534, 65534)
    subprocess.run([LADE, "run", "--", "true"], capture_output=True, check=False, timeout=60, env=environment())
    assert os.path.exists(os.path.join(other, "record")) and os.path.islink(link) and not os.path.exists(dead)
    assert os.path.exists(foreign) == (os.geteuid() == 0)
    job.send_signal(signal.SIGTERM)
    job.communicate(timeout=60)
    with open(REPORT + ".lives", encoding="utf-8") as file:
        assert json.load(file)["processes"][0]["devices"][0]["bytes"] == 3 * MIB
    os.unlink(link)
    for folder in (other, foreign):
        shutil.rmtree(folder, ignore_errors=True)


def files_that_are_no_records_are_skipped():
    """A command may create any file in the folder of the records: none of them blocks."""
    code, _, err, report = run("sh", "-c", "mkfifo $LADE_RUN_DIRECTORY/f; ln -s /dev/zero $LADE_RUN_DIRECTORY/z")
    assert code == 7 and report["processes"] == [] and report["unrecorded_processes"] == 0, (code, err)
    fifo = os.path.join(SCRATCH.name, "fifo")
    os.mkfifo(fifo)
    code, _, err, _ = run(HOLDER, "soname", "start", options=("--report", fifo))
    assert code == 5 and f"--report {fifo}" in err, (code, err)
    os.unlink(fifo)


def names_move_no_cursor():
    name = os.path.join(SCRATCH.name, "a\033[31m\nb")
    os.symlink(HOLDER, name)
    for words in (["soname", "start"], ["soname", "once"]):
        code, _, err, _ = run(name, *words)
        assert code == 0 and "\033" not in err and "a\\033[31m\\nb (" in err, (code, err)
    os.unlink(name)


def children_have_reports_of_their_own():
    out, report = held(HOLDER, "soname", "children", HOLDER, "lookup", "fill", options=["--budget", "8MiB"])
    peaks = sorted(sum(device["peak_bytes"] for device in process["devices"]) for process in report["processes"])
    assert peaks == [0, MIB, 2 * MIB, 8 * MIB], report
    assert len({process["pid"] for process in report["processes"]}) == 3, report  # exec keeps the number
    out, report = held("sh", "-c", f"{HOLDER} soname fill; {HOLDER} lookup fill", options=["--budget", "8MiB"])
    assert [process["devices"][0]["peak_bytes"] for process in report["processes"]] == [8 * MIB] * 2, report


def many_processes_are_reported_in_few_lines():
    """Processes without CUDA are left out, those that took nothing share one line, and of the others the largest are
    shown.
    """
    both = f"/bin/true; {HOLDER} soname start; {HOLDER} soname once >/dev/null; "
    code, _, err, report = run("sh", "-c", both * 12 + f"{HOLDER} soname fill >/dev/null", options=["--budget", "8MiB"])
    lines = err.splitlines()
    assert code == 0 and len(report["processes"]) == 25, (code, report)
    assert "at most 8.0 MiB" in lines[0] and err.count("at most 1.0 MiB of 256.0 MiB") == 9, err
    assert lines[-2:] == ["lade run: 3 more processes, at most 1.0 MiB each, 0 requests refused; --report has them all",
                          "lade run: 12 processes started the driver and took no memory"], err
    assert len(lines) == 4 + 9 * 3 + 2, err


def the_loader_sees_the_caller():
    """Search paths and RTLD_NEXT are those of the calling library, not the shim's."""
    folder = os.path.join(SCRATCH.name, "beside")
    os.mkdir(folder)
    opener = shutil.copy(OPENER, folder)
    shutil.copy(GUEST, folder)
    out, _ = held(HOLDER, "soname", "opener", opener)
    assert out == "beside found, next none\n", out


def surroundings_do_not_matter():
    out, report = held(HOLDER, "soname", "surroundings", options=["--budget", "8MiB"])
    assert out == "own library found\n" and report["processes"][0]["devices"][0]["bytes"] == 2 * MIB, (out, report)
    show = ["sh", "-c", "echo $LD_PRELOAD"]
    code, out, err, _ = run(*show, LD_PRELOAD=None)
    shim = out.strip()
    assert os.path.basename(shim) == "lade-run.so" and ":" not in shim, out
    code, out, err, _ = run(*show, LD_PRELOAD=DRIVER)  # any existing library
    assert out.strip() == f"{DRIVER}:{shim}", out
    for driver, words in (("/no/such/driver", "/no/such/driver"), ("", "LADE_RUN_DRIVER is not set")):
        result = subprocess.run([HOLDER, "soname", "start"], capture_output=True, text=True, check=False,
                                env=environment(LD_PRELOAD=shim, LADE_RUN_DRIVER=driver))
        assert result.returncode == 8 and result.stdout.startswith("100 from"), result
        assert words in result.stderr, result
    result = subprocess.run([HOLDER, "soname", "fill"], capture_output=True, text=True, check=False,
                            env=environment(LD_PRELOAD=shim, LADE_RUN_DRIVER=DRIVER, LADE_RUN_BUDGET="much",
                                            LADE_RUN_DIRECTORY="/no/such/folder"))
    assert result.stdout.startswith("empty 1 1 1\nfull 1 1 1\n"), result
    assert "is no budget" in result.stderr and "not be in the report" in result.stderr, result
    maps = run("cat", "/proc/self/maps")[1]
    assert "lade-run.so" in maps and "libcuda" not in maps, maps  # the driver is not loaded before it is used


def a_report_that_cannot_be_written_is_reported():
    """The command has run, and its ledger is on stderr; if the command failed, its own code stands."""
    folder = os.path.join(SCRATCH.name, "short-lived")
    for where, remove in (("/dev/full", ""), (os.path.join(folder, "report.json"), f"rmdir {folder}; ")):
        for code in (0, 3):
            os.makedirs(folder, exist_ok=True)
            command = ["sh", "-c", f"{remove}{HOLDER} soname once; exit {code}"]
            result = subprocess.run([LADE, "run", "--report", where, "--", *command], capture_output=True, text=True,
                                    check=False, timeout=60, env=environment())
            assert result.returncode == (code or 5) and f"--report {where}: " in result.stderr, result
            assert "at most 1.0 MiB" in result.stderr, result


def programs_without_preloading_are_reported():
    """Programs without preloading: an empty environment, and a program without a loader if one can be built."""
    whole = os.path.join(SCRATCH.name, "whole")
    compiler = [*os.environ.get("CC", "cc").split(), "-static", "-x", "c", "-", "-o", whole]
    is_made = shutil.which(compiler[0]) and subprocess.run(compiler, input="int main(void) { return 0; }", text=True,
                                                           stderr=subprocess.DEVNULL, check=False).returncode == 0
    for command in [["env", "-i", "/bin/sh", "-c", "exit 0"]] + [[whole]] * bool(is_made):
        code, _, err, report = run(*command)
        assert code == 7 and err.count("\n") == 1 and "nothing was intercepted" in err, (command, code, err)
        assert report["processes"] == [] and report["exit_code"] == 0, report


def a_parents_habits_do_not_matter():
    """A parent that ignores the end of its children, and other parents that write numbers in other ways."""
    result = subprocess.run([LADE, "run", "--", HOLDER, "soname", "leave", "3"], env=environment(), check=False,
                            preexec_fn=lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN), capture_output=True,
                            timeout=60)
    assert result.returncode == 3, result
    for locale in ("de_DE.UTF-8", "tr_TR.UTF-8", "no_SUCH"):
        out, report = held(HOLDER, "soname", "fill", options=["--budget", "12.5%"], LC_ALL=locale, LANGUAGE=locale)
        assert report["processes"][0]["devices"][0]["budget_bytes"] == 32 * MIB, (locale, report)


def a_folder_without_room_is_reported():
    """Before the command starts, or at the end if the folder filled up meanwhile."""
    folder = os.path.join(SCRATCH.name, "small")
    os.mkdir(folder)
    space = ["unshare", "-rm", "sh", "-c", 'mount -t tmpfs -o size=1m none "$0" && exec "$@"', folder]
    if subprocess.run([*space, "true"], stderr=subprocess.DEVNULL, check=False).returncode:
        print("no file system may be mounted here: a full one is left out")
        return
    fill = f"head -c 2000000 /dev/zero 2>/dev/null >{folder}/fill"
    run_there = f"{LADE} run --report {REPORT} --"
    for script, words in ((f"{fill}; exec {run_there} touch {SCRATCH.name}/started", "no room for the records"),
                          (f"exec {run_there} sh -c '{fill}; exec {HOLDER} soname once'",
                           "1 of 1 processes had no room for a record")):
        result = subprocess.run([*space, "sh", "-c", script], capture_output=True, text=True, check=False, timeout=60,
                                env=environment(TMPDIR=folder))
        assert result.returncode == 5 and words in result.stderr and "intercepted" not in result.stderr, result
    assert not os.path.exists(os.path.join(SCRATCH.name, "started"))
    with open(REPORT, encoding="utf-8") as file:
        report = json.load(file)
    assert report["unrecorded_processes"] == 1 and report["processes"] == [] and report["exit_code"] == 0, report


def gpu_or_skip():
    code, _, err, _ = run(HOLDER, "soname", "once")
    if "no CUDA driver" in err or code == 8:  # none, or one that does not start
        print("SKIP: no CUDA driver here that starts")
        sys.exit(77)


ANYWHERE = (every_route_is_bounded, threads_share_the_last_bytes, memory_ends_with_its_context, padding_counts,
            sizes_that_no_device_has_are_refused, children_have_reports_of_their_own)
ON_FAKES = (mistakes_are_one_line, a_budget_may_be_a_part_of_the_device, every_kind_is_in_the_ledger,
            the_drivers_refusals_are_the_programs, memory_of_graphs_counts, memory_that_is_opened_again_is_one,
            forms_of_another_day_pass_and_are_reported,
            many_processes_are_reported_in_few_lines, the_loader_sees_the_caller, old_and_new_functions_are_reached,
            endings_are_the_commands, signals_pass,
            only_files_of_dead_runs_are_removed, files_that_are_no_records_are_skipped, names_move_no_cursor, surroundings_do_not_matter, a_parents_habits_do_not_matter,
            a_report_that_cannot_be_written_is_reported, programs_without_preloading_are_reported,
            a_folder_without_room_is_reported)
if IS_GPU:
    gpu_or_skip()
for test in ANYWHERE if IS_GPU else ANYWHERE + ON_FAKES:
    test()
