# SPDX-License-Identifier: Apache-2.0
"""Find and load liblade by ctypes.

The library is, in this order: the file in LADE_LIBRARY; the one that the wheel installed; the one in build/ of a
checkout; the one that the system's loader finds. A loaded library must export the functions of the public headers.
"""
import ctypes
import functools
import glob
import os
import sysconfig

from .errors import Error

_HERE = os.path.dirname(os.path.abspath(__file__))
_ROOT = os.path.dirname(os.path.dirname(_HERE))


class ErrorText(ctypes.Structure):
    """struct lade_error."""
    _fields_ = [("code", ctypes.c_int), ("text", ctypes.c_char * 512)]


def _installed_prefixes():
    """Yield the prefixes that may hold the wheel's data, the one of this package first."""
    yield os.path.normpath(os.path.join(_HERE, *[os.pardir] * 4))  # PREFIX/lib/pythonX.Y/site-packages/lade
    yield sysconfig.get_path("data")
    import site
    yield site.getuserbase()


def installed(*parts):
    """Yield files of the wheel that match a pattern below a prefix."""
    for prefix in _installed_prefixes():
        yield from sorted(glob.glob(os.path.join(prefix, *parts)))


def _candidates():
    if os.environ.get("LADE_LIBRARY"):
        yield os.environ["LADE_LIBRARY"]
        return
    yield from sorted(glob.glob(os.path.join(_HERE, os.pardir, "lade.libs", "liblade*.so*")))
    yield from sorted(glob.glob(os.path.join(_HERE, os.pardir, ".lade.mesonpy.libs", "liblade.so*")))
    if os.path.exists(os.path.join(_ROOT, "meson.build")):
        yield os.path.join(_ROOT, "build", "liblade.so.0")
    for folder in ("lib", "lib64", "lib/*-linux-gnu"):
        yield from installed(folder, "liblade.so.0")
    yield "liblade.so.0"


@functools.lru_cache(maxsize=None)
def library():
    """Return the loaded library. Error names the places tried."""
    tried = []
    for path in _candidates():
        if os.sep in path and not os.path.exists(path):
            tried.append(path)
            continue
        try:
            loaded = ctypes.CDLL(path)
            loaded.lade_graph_create
        except (OSError, AttributeError) as fault:
            tried.append(f"{path}: {fault}")
            continue
        loaded.lade_version.restype = ctypes.c_char_p
        return loaded
    raise Error("liblade is not found; build it, install the wheel, or set LADE_LIBRARY. Tried " + "; ".join(tried))


def version():
    """Return the version of the library."""
    return library().lade_version().decode()


def check(code, error=None, call=""):
    """Raise Error for a negative @code, with the line that the library wrote."""
    if code >= 0:
        return code
    text = error.text.decode(errors="replace") if error is not None else ""
    raise Error(text or f"{call}: {os.strerror(-code)}", code)


def plugin_path(core):
    """Return the path of the pluggable allocator: beside the library @core, or by the loader's search."""
    folder, name = os.path.split(core._name)
    beside = os.path.join(folder, name.replace("liblade.", "liblade-allocator.", 1))
    return beside if folder and os.path.exists(beside) else "liblade-allocator.so.0"
