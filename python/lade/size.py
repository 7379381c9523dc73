# SPDX-License-Identifier: Apache-2.0
"""Sizes as the command reads them: "24GiB", "1.5GB", "4096"; "60%" of a whole; "min"."""
import re

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kKmMgGtT]?)(i?)([bB]?)")
_POWER = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def size_bytes(size):
    """Return the bytes of a number or of a text such as "8GiB". ValueError names the text."""
    if isinstance(size, bool):
        raise ValueError(f"{size!r} is no size")
    if isinstance(size, int) and size >= 0:
        return size
    match = _SIZE.fullmatch(size.strip()) if isinstance(size, str) else None
    if not match or (match[3] and not match[2]):
        raise ValueError(f"{size!r} is no size: expected bytes, or a text such as \"8GiB\" or \"512MB\"")
    base = 1024 if match[3] or not match[4] else 1000
    number = float(match[1]) if "." in match[1] else int(match[1])
    return int(number * base ** _POWER[match[2].lower()])


def budget_bytes(budget, whole_bytes):
    """Return the bytes of a budget: a size, or a text such as "60%" of @whole_bytes. None means "min"."""
    if budget == "min":
        return None
    if isinstance(budget, str) and budget.strip().endswith("%"):
        try:
            share = float(budget.strip()[:-1])
        except ValueError:
            share = 0
        if not 0 < share <= 1000:
            raise ValueError(f"{budget!r} is no budget: expected a percentage above 0")
        return whole_bytes if share == 100 else int(whole_bytes * share / 100)
    try:
        return size_bytes(budget)
    except ValueError:
        wanted = "bytes, or a text such as \"8GiB\", \"60%\" or \"min\""
        raise ValueError(f"{budget!r} is no budget: expected {wanted}") from None
