#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The .deb in a clean root: dpkg installs it, CMake and pkg-config build every example from its own pages, the examples
and the completions run, and dpkg removes all of it. A second root has the build alone, and pkg-config's file of it.

The root is a layer of memory over this machine's /usr, /etc and /var, in a user namespace: it has neither the source nor
the build, and nothing on the machine changes. Usage: chroot.py SOURCE BUILD CC...
"""
import glob
import os
import re
import shutil
import subprocess
import sys
import tempfile

SOURCE, BUILD, COMPILER = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2]), sys.argv[3:]
sys.path.insert(0, os.path.join(SOURCE, "tests", "rules"))
import install  # the examples' arguments and output

NAMES = [os.path.basename(path)[:-2] for path in sorted(glob.glob(os.path.join(SOURCE, "examples", "*.c")))]
PAGES = "/usr/share/doc/lade"
CMAKE = """
cmake_minimum_required(VERSION 3.16)
project(consumer C)
find_package(lade REQUIRED)
foreach(name %s)
  add_executable(${name} %s/examples/${name}.c)
  target_link_libraries(${name} lade::lade)
endforeach()
add_executable(plugged plugged.c)
target_link_libraries(plugged lade::allocator)
"""


def plugged_get():
    """Return the source of the allocator's consumer, which lies beside this file."""
    with open(os.path.join(SOURCE, "tests", "command", "plugged.c"), encoding="utf-8") as file:
        return file.read()


def skip(reason):
    print(f"SKIP: {reason}")
    sys.exit(77)


def run(*command, code=0, **how):
    """Return the output of @command, whose exit code is @code."""
    result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, **how)
    if code is not None and result.returncode != code:
        sys.exit(f"{' '.join(command)}: exit {result.returncode}\n{result.stdout}")
    return result.stdout


def enter_namespace():
    """Run this file again in a user and mount namespace, where it may mount. Return its exit code.

    Only this outer process removes files: all mounts, those of /proc and /dev too, end with the inner one.
    """
    ways = ["unshare", "--user", "--map-root-user", "--mount"]
    if not shutil.which("unshare") or subprocess.run([*ways, "true"], stderr=subprocess.DEVNULL, check=False).returncode:
        skip("user namespaces are not allowed here, so there is no clean root")
    with tempfile.TemporaryDirectory(prefix="lade-chroot-") as scratch:
        return subprocess.run([*ways, sys.executable, *sys.argv], env=dict(os.environ, LADE_CHROOT=scratch),
                              check=False).returncode


class Root:
    """A root in memory at @at: /usr, /etc and /var of the machine under a writable layer, its devices, nothing else."""

    def __init__(self, at):
        self.root = os.path.join(at, "root")
        run("mount", "-t", "tmpfs", "none", at)
        os.mkdir(self.root)
        for name in os.listdir("/"):  # bin, lib, ...: links into /usr
            if os.path.islink(f"/{name}"):
                os.symlink(os.readlink(f"/{name}"), f"{self.root}/{name}")
        for name in ("usr", "etc", "var"):
            up, work, to = f"{at}/{name}-up", f"{at}/{name}-work", f"{self.root}/{name}"
            for folder in (up, work, to):
                os.mkdir(folder)
            options = f"userxattr,lowerdir=/{name},upperdir={up},workdir={work}"
            if subprocess.run(["mount", "-t", "overlay", "overlay", "-o", options, to], stderr=subprocess.DEVNULL,
                              check=False).returncode:
                skip("overlay file systems are not allowed in user namespaces here, so there is no clean root")
        drive = at + "-drive"  # not in memory, for the example of the store
        os.mkdir(drive)
        os.mkdir(f"{self.root}/drive")
        run("mount", "--bind", drive, f"{self.root}/drive")
        self.has_drive = run("stat", "-f", "-c", "%T", drive).strip() not in ("tmpfs", "ramfs")
        for name in ("tmp", "root", "run", "proc", "sys", "dev", "dev/shm", "dev/pts"):
            os.mkdir(f"{self.root}/{name}")
        for name in ("proc", "sys"):
            run("mount", "--rbind", f"/{name}", f"{self.root}/{name}")
        run("mount", "-t", "devpts", "-o", "newinstance,ptmxmode=0666", "devpts", f"{self.root}/dev/pts")
        os.symlink("pts/ptmx", f"{self.root}/dev/ptmx")
        for name in ("null", "zero", "full", "random", "urandom", "tty"):
            with open(f"{self.root}/dev/{name}", "wb"):
                run("mount", "--bind", f"/dev/{name}", f"{self.root}/dev/{name}")

    def show(self, path):
        """Make a folder of the machine visible, read-only."""
        os.makedirs(self.root + path, exist_ok=True)
        run("mount", "--bind", path, self.root + path)
        run("mount", "-o", "remount,bind,ro", self.root + path)

    def run(self, *command, code=0, env=None):
        clean = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/tmp", "LC_ALL": "C.UTF-8",
                 "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        return run("chroot", self.root, *command, code=code, env=dict(clean, **(env or {})))

    def shell(self, line, **how):
        return self.run("bash", "-ec", line, **how)

    def write(self, path, text):
        os.makedirs(os.path.dirname(self.root + path), exist_ok=True)
        with open(self.root + path, "w", encoding="utf-8") as file:
            file.write(text)


def examples_run(root, folder, library=None):
    """Run every example of @folder with the arguments, codes and output of tests/rules/install.py."""
    for name in NAMES:
        for arguments, code, pattern in install.RUNS[f"examples/{name}.c"]:
            words = [f"{PAGES}/LICENSE" if word == "TEXT" else word for word in arguments]
            line = f"cd /drive && exec {folder}/{name} {' '.join(words)}"
            if arguments == ["RANKS"]:
                if library or not shutil.which("mpirun"):
                    continue
                line = f"cd /drive && exec lade launch -n 2 -- {folder}/{name}"
            if arguments == ["."] and not root.has_drive:
                continue
            out = root.shell(line, code=code, env={"LD_LIBRARY_PATH": library} if library else None)
            assert re.search(pattern, out), (name, arguments, out)
    out = root.shell(f"exec {folder}/plugged", env={"LD_LIBRARY_PATH": library} if library else None)
    assert "plugged: " in out, out


def pkg_config_build(root, folder, examples, path=""):
    """Build every example with pkg-config's flags alone, as a user would."""
    root.write(f"{folder}/plugged.c", plugged_get())
    cc = " ".join(COMPILER[-1:])
    root.shell(f"cd {folder}; export PKG_CONFIG_PATH={path}; for name in {' '.join(NAMES)}; do "
               f"{cc} {examples}/$name.c -o $name $(pkg-config --cflags --libs lade); done; "
               f"{cc} plugged.c -o plugged $(pkg-config --cflags --libs lade-allocator)")


def completions_are_tried(root):
    """The shells offer the command's options and choices from the installed files."""
    script = "/usr/share/bash-completion/completions/lade"

    def offered(*words):
        return root.shell(f"source {script}; complete -p lade >/dev/null; COMP_WORDS=({' '.join(words)}); "
                          f"COMP_CWORD={len(words) - 1}; _lade; echo ${{COMPREPLY[*]}}").split()
    assert {"train", "plan", "doctor"} <= set(offered("lade", "''")), offered("lade", "''")
    assert offered("lade", "train", "--dtype", "b") == ["bf16"]
    assert "--budget" in offered("lade", "plan", "--bud")
    if shutil.which("zsh"):
        # The completion system loads the file by itself, and the function then completes a line of a pseudo-terminal.
        out = root.run("zsh", "-fc", "autoload -U compinit; compinit -D; print -r -- $_comps[lade]")
        assert out.strip() == "_lade", out
        out = root.run("zsh", "-fc", "zmodload zsh/zpty; zpty z zsh -fi; zpty -w z 'autoload -U compinit; compinit -D; "
                       "setopt no_list_beep; PS1=REA\"\"DY'; zpty -r z all '*READY*'; zpty -w -n z $'lade train --dtype b\\t'; "
                       "zpty -r z all '*bf16*'; print -r -- $all")  # each read waits for its words
        assert "bf16" in out, out
    else:
        print("zsh is not on PATH: its completions are not tried")


def installed_package(scratch):
    package = run(os.path.join(SOURCE, "scripts", "package"), BUILD, scratch).strip().splitlines()[-1]
    os.mkdir(os.path.join(scratch, "clean"))
    root = Root(os.path.join(scratch, "clean"))
    assert not os.path.exists(root.root + BUILD) and not os.path.exists(f"{root.root}/usr/bin/lade")
    shutil.copy(package, f"{root.root}/tmp/lade.deb")
    root.run("dpkg", "--install", "/tmp/lade.deb")
    version = root.run("dpkg-query", "-W", "-f", "${Version}", "lade")
    assert root.run("lade", "--version") == f"lade {version}\n"
    pkg_config_build(root, "/tmp/pkg", f"{PAGES}/examples")
    examples_run(root, "/tmp/pkg")
    root.write("/tmp/cmake/CMakeLists.txt", CMAKE % (" ".join(NAMES), PAGES))
    root.write("/tmp/cmake/plugged.c", plugged_get())
    root.run("cmake", "-S", "/tmp/cmake", "-B", "/tmp/cmake/build", f"-DCMAKE_C_COMPILER={COMPILER[-1]}")
    root.run("cmake", "--build", "/tmp/cmake/build")
    examples_run(root, "/tmp/cmake/build")
    for page in set(re.findall(r"docs/\w+\.md", root.run("lade", "train", "--help"))):
        root.run("test", "-f", f"{PAGES}/{page}")
    assert "lade plan" in root.shell("zcat -f /usr/share/man/man1/lade-plan.1* | head -40").replace("\\-", "-")
    completions_are_tried(root)
    root.run("dpkg", "--remove", "lade")
    left = root.shell("find /usr -name '*lade*' -newer /tmp/lade.deb ! -type d 2>/dev/null", code=None)
    assert not left.strip(), left
    assert root.shell("pkg-config --exists lade || echo gone").strip() == "gone"


def uninstalled_build(scratch):
    os.mkdir(os.path.join(scratch, "build"))
    root = Root(os.path.join(scratch, "build"))
    root.show(SOURCE)
    if not BUILD.startswith(SOURCE + os.sep):
        root.show(BUILD)
    pkg_config_build(root, "/tmp/pkg", f"{SOURCE}/examples", f"{BUILD}/meson-uninstalled")
    os.makedirs(root.root + PAGES, exist_ok=True)
    shutil.copy(os.path.join(SOURCE, "LICENSE"), root.root + PAGES)
    examples_run(root, "/tmp/pkg", BUILD)


def main():
    for tool in ("dpkg-deb", "dpkg", "cmake", "pkg-config", "meson", "bash", "chroot", "mount"):
        if not shutil.which(tool):
            skip(f"{tool} is not on PATH")
    if not os.environ.get("LADE_CHROOT"):
        sys.exit(enter_namespace())
    installed_package(os.environ["LADE_CHROOT"])
    uninstalled_build(os.environ["LADE_CHROOT"])


main()
