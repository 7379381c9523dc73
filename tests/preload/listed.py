#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every driver function that the toolkit's headers declare has an entry in the shim, in each of its forms.

Usage: listed.py LIST COMPILER...
"""
import re
import subprocess
import sys

HEADERS = ("cuda.h", "cudaProfiler.h", "cudaGL.h", "cudaEGL.h", "cudaVDPAU.h")
REQUIRED = HEADERS[:1]
FORMS = ([], ["-DCUDA_API_PER_THREAD_DEFAULT_STREAM"], ["-D__CUDA_API_VERSION_INTERNAL"])


def declared(compiler, header, form):
    """Return the names that a program is linked with, from the preprocessor; None if the header lacks others."""
    result = subprocess.run([*compiler, "-E", *form, "-"], input=f"#include <cuda.h>\n#include <{header}>\n",
                            capture_output=True, text=True, check=False)
    assert result.returncode == 0 or header not in REQUIRED, result.stderr
    text = re.sub(r"static inline[^;{]*", "", result.stdout)
    return None if result.returncode else set(re.findall(r"CUresult\s+(cu[A-Z]\w+)\s*\(", text))


def main(listed, *compiler):
    with open(listed, encoding="utf-8") as file:
        known = {line.strip() for line in file if not line.startswith("#")}
    missing = set()
    for header in HEADERS:
        for form in FORMS:
            names = declared(compiler, header, form)
            if names is None:
                print(f"{header} wants headers that are not here: it is left out")
                break
            assert names, (header, form)
            missing |= names - known
    assert not missing, f"not in {listed}: {sorted(missing)}"


main(*sys.argv[1:])
