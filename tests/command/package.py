#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What scripts/package packs is whole: the package's files build all examples through CMake and pkg-config, and so does
the build that is not installed; the examples run; completions and pages are in their places.

Usage: package.py SOURCE BUILD CC...
"""
import glob
import os
import re
import shutil
import subprocess
import sys
import tempfile

SOURCE, BUILD, COMPILER = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2]), sys.argv[3:]
NAMES = sorted(os.path.basename(path)[:-2] for path in glob.glob(os.path.join(SOURCE, "examples", "*.c")))
# Examples that need no arguments, and words of their output.
RUNS = {"pack": "packed", "plan": "smallest budget", "types": "bf16", "adam": "bytes per parameter"}
PLUGGED = os.path.join(os.path.dirname(os.path.abspath(__file__)), "plugged.c")
CMAKE = """
cmake_minimum_required(VERSION 3.16)
project(consumer C)
find_package(lade {version} REQUIRED)
foreach(name {names})
  add_executable(${{name}} {source}/examples/${{name}}.c)
  target_link_libraries(${{name}} lade::lade)
endforeach()
add_executable(plugged {scratch}/plugged.c)
target_link_libraries(plugged lade::allocator)
"""


def run(*command, **how):
    result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, **how)
    if result.returncode:
        sys.exit(f"{' '.join(command)}\n{result.stdout}")
    return result.stdout


def examples_run(folder, library):
    for name, words in (RUNS | {"plugged": "plugged: "}).items():
        out = run(os.path.join(folder, name), env=dict(os.environ, LD_LIBRARY_PATH=library))
        assert words in out, (name, out)


def pkg_config_build(folder, path, *define):
    """Build all examples with the flags of the lade.pc in @path."""
    flags = run("pkg-config", *define, "--cflags", "--libs", "lade",
                env=dict(os.environ, PKG_CONFIG_PATH=path, PKG_CONFIG_ALLOW_SYSTEM_CFLAGS="1")).split()
    os.makedirs(folder)
    for name in NAMES:
        run(*COMPILER, os.path.join(SOURCE, "examples", name + ".c"), "-o", os.path.join(folder, name), *flags)
    plugged = run("pkg-config", *define, "--cflags", "--libs", "lade-allocator",
                  env=dict(os.environ, PKG_CONFIG_PATH=path, PKG_CONFIG_ALLOW_SYSTEM_CFLAGS="1")).split()
    run(*COMPILER, os.path.join(os.path.dirname(folder), "plugged.c"), "-o", os.path.join(folder, "plugged"), *plugged)
    assert any(os.path.isdir(os.path.join(flag[2:], "lade")) for flag in flags if flag[:2] == "-I"), flags


def completed(script, *words):
    """Return the completions that bash offers for the last of @words."""
    line = f"source {script}; COMP_WORDS=({' '.join(words)}); COMP_CWORD={len(words) - 1}; _lade; echo ${{COMPREPLY[*]}}"
    return run("bash", "-c", line).split()


for tool in ("dpkg-deb", "cmake", "pkg-config", "meson", "bash"):
    if not shutil.which(tool):
        print(f"SKIP: {tool} is not on PATH")
        sys.exit(77)
with tempfile.TemporaryDirectory(prefix="lade-package-") as scratch:
    package = run(os.path.join(SOURCE, "scripts", "package"), BUILD, scratch).strip().splitlines()[-1]
    fields = run("dpkg-deb", "--field", package)
    assert re.search(r"^Depends: .*libjansson4.*libxxhash0|^Depends: .*libxxhash0.*libjansson4", fields, re.M), fields
    root = os.path.join(scratch, "root")
    run("dpkg-deb", "--extract", package, root)
    usr = os.path.join(root, "usr")
    pc = glob.glob(os.path.join(usr, "**", "lade.pc"), recursive=True)[0]
    library = os.path.dirname(os.path.dirname(pc))
    lade = os.path.join(usr, "bin", "lade")
    version = run(lade, "--version").split()[1]
    assert f"Version: {version}" in fields, fields

    shutil.copy(PLUGGED, scratch)
    pkg_config_build(os.path.join(scratch, "installed"), os.path.dirname(pc), f"--define-variable=prefix={usr}")
    examples_run(os.path.join(scratch, "installed"), library)
    pkg_config_build(os.path.join(scratch, "uninstalled"), os.path.join(BUILD, "meson-uninstalled"))
    examples_run(os.path.join(scratch, "uninstalled"), BUILD)

    consumer = os.path.join(scratch, "cmake")
    os.mkdir(consumer)
    with open(os.path.join(consumer, "CMakeLists.txt"), "w", encoding="utf-8") as file:
        file.write(CMAKE.format(version=version.rsplit(".", 1)[0], names=" ".join(NAMES), source=SOURCE,
                                scratch=scratch))
    run("cmake", "-S", consumer, "-B", os.path.join(consumer, "build"), f"-DCMAKE_PREFIX_PATH={usr}",
        f"-DCMAKE_C_COMPILER={COMPILER[-1]}")
    run("cmake", "--build", os.path.join(consumer, "build"))
    examples_run(os.path.join(consumer, "build"), library)
    asked = subprocess.run(["cmake", "-S", consumer, "-B", os.path.join(consumer, "later"), f"-DCMAKE_PREFIX_PATH={usr}"],
                           stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    assert asked.returncode == 0, asked.stdout
    with open(os.path.join(consumer, "CMakeLists.txt"), "w", encoding="utf-8") as file:
        file.write(CMAKE.format(version="99.0", names="types", source=SOURCE, scratch=scratch))
    asked = subprocess.run(["cmake", "-S", consumer, "-B", os.path.join(consumer, "never"), f"-DCMAKE_PREFIX_PATH={usr}"],
                           stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    assert asked.returncode and "compatible" in asked.stdout, asked.stdout

    # Pages that the help names, and the completions of every option in it.
    pages = os.path.join(usr, "share", "doc", "lade")
    script = os.path.join(usr, "share", "bash-completion", "completions", "lade")
    verbs = set(re.findall(r"^  (\w+) +\S", run(lade, "--help"), re.M)) - {"lade"}
    assert verbs <= set(completed(script, "lade", "''")), completed(script, "lade", "''")
    with open(os.path.join(usr, "share", "zsh", "vendor-completions", "_lade"), encoding="utf-8") as file:
        zsh = file.read()
    for verb in verbs:
        assert os.path.exists(os.path.join(usr, "share", "man", "man1", f"lade-{verb}.1")), verb
        text = run(lade, verb, "--help")
        assert all(os.path.exists(os.path.join(pages, page)) for page in re.findall(r"docs/\w+\.md", text)), text
        options = set(re.findall(r"^  (--[a-z0-9-]+)", text, re.M))
        assert options <= set(completed(script, "lade", verb, "--")) or verb == "bench", (verb, options)
        assert all(option in zsh for option in options - {"--size", "--rounds", "--dir"}), (verb, options)
    assert completed(script, "lade", "train", "--dtype", "b") == ["bf16"]
    assert completed(script, "lade", "train", "--dtype", "=", "b") == ["bf16"]
    assert completed(script, "lade", "plan", "--machine", "h1") == ["h100-80g"]
    assert completed(script, "lade", "plan", "--model", "mixtral-8x7") == ["mixtral-8x7b"]
    assert completed(script, "lade", "train", "--model", "mixtral-8x7") == []
    assert completed(script, "lade", "launch", "-n", "2", "--", "tr") == ["train"]
    assert "--model" in completed(script, "lade", "launch", "-n", "2", "--", "train", "--mod")
    if shutil.which("zsh"):
        folder = os.path.join(usr, "share", "zsh", "vendor-completions")
        run("zsh", "-n", os.path.join(folder, "_lade"))
        for line, word in (("plan --machine h1", "h100-80g"), ("launch -n 2 -- train --optimizer-in", "backward")):
            out = run("zsh", "-fc", f"zmodload zsh/zpty; zpty z zsh -fi; zpty -w z 'fpath=({folder} $fpath); autoload -U "
                      "compinit; compinit -D -u; setopt no_list_beep; PS1=REA\"\"DY'; zpty -r z all '*READY*'; zpty -w -n z "
                      f"$'lade {line}\\t'; zpty -r z all '*{word}*'; print -r -- $all")  # each read waits for its words
            assert word in out, (line, out)
