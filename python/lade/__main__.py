# SPDX-License-Identifier: Apache-2.0
"""python -m lade: the command `lade` of this package."""
import os
import sys

from .errors import Error
from .library import _ROOT, installed


def command():
    """Return the path of the command. Error names the places searched."""
    places = [os.path.join(_ROOT, "build", "lade")] if os.path.exists(os.path.join(_ROOT, "meson.build")) else []
    places += [os.path.join(os.path.dirname(sys.executable), "lade"), *installed("bin", "lade")]
    for place in places:
        if os.access(place, os.X_OK):
            return place
    raise Error("the command lade is not found in " + ", ".join(places))


if __name__ == "__main__":
    try:
        path = command()
    except Error as fault:
        sys.exit(f"lade: {fault}")
    os.execv(path, ["lade", *sys.argv[1:]])
