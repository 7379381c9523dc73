#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`lade train --html` and `lade replay --html`: pages that are XML, refer to nothing outside, and show owners or call
sites, holders and queues.

Usage: pages.py LADE

Where Chromium is installed it opens the pages as well.
"""
import os
import pickle
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as xml
import zlib

LADE = os.path.abspath(sys.argv[1])
SCRATCH = tempfile.TemporaryDirectory(prefix="lade-page-")
os.chdir(SCRATCH.name)
os.environ["XDG_CACHE_HOME"] = os.getcwd()
with open("text.txt", "w", encoding="utf-8") as file:
    file.write("".join(f"{i * i % 97} bottles on the wall, {i}\n" for i in range(2000)))
TRAIN = [LADE, "train", "--model", "nano", "--batch", "2", "--seq", "32", "--steps", "2", "--data", "text.txt"]


def page_read(name, n_drawings, n_tables):
    """Parse a page as XML and check that it is self-contained."""
    text = open(name, encoding="utf-8").read()
    tree = xml.fromstring(text)
    names = [element.tag.split("}")[1] for element in tree.iter()]
    assert names.count("svg") == n_drawings and names.count("table") == n_tables, names
    assert not {"script", "link", "img", "iframe", "object", "image", "use"} & set(names), names
    assert "http" not in text.replace("http://www.w3.org/", "") and "url(" not in text
    return tree


def heights(tree):
    return [[float(point.split(",")[1]) for point in element.get("points").split()]
            for element in tree.iter() if element.tag.endswith("polygon")]


def tables(tree):
    return [[["".join(cell.itertext()) for cell in row] for row in table][1:]
            for table in tree.iter() if table.tag.endswith("table")]


def pixels(path):
    """Count the colours of a PNG file of 8 bits a channel, as "#rrggbb"."""
    data = open(path, "rb").read()
    width, height, depth, kind = struct.unpack(">IIBB", data[16:26])
    assert depth == 8 and kind in (2, 6), (depth, kind)
    n_channels, at, packed = (3 if kind == 2 else 4), 8, b""
    while at < len(data):
        n_bytes, name = struct.unpack(">I4s", data[at:at + 8])
        packed += data[at + 8:at + 8 + n_bytes] if name == b"IDAT" else b""
        at += 12 + n_bytes
    raw, stride, counts = zlib.decompress(packed), width * n_channels, {}
    before = bytearray(stride)
    for row in range(height):
        rule, line = raw[row * (stride + 1)], bytearray(raw[row * (stride + 1) + 1:(row + 1) * (stride + 1)])
        if rule or any(line):
            for i in range(stride if rule else 0):
                left = line[i - n_channels] if i >= n_channels else 0
                corner = before[i - n_channels] if i >= n_channels else 0
                guess = left + before[i] - corner
                nearest = min((left, before[i], corner), key=lambda value: abs(guess - value))
                line[i] = line[i] + (0, left, before[i], (left + before[i]) // 2, nearest)[rule] & 255
        for i in range(0, stride, n_channels):
            color = bytes(line[i:i + 3])
            counts[color] = counts.get(color, 0) + 1
        before = line
    return {"#" + color.hex(): n for color, n in counts.items()}


subprocess.run([*TRAIN, "--html", "page.html"], check=True, stdout=subprocess.DEVNULL)
root = page_read("page.html", 2, 2)

# The areas are stacked: each owner's polygon reaches as high as the one below it, or higher, at every column.
areas = heights(root)
assert len({len(area) for area in areas}) == 1 and len(areas) > 3, [len(area) for area in areas]
for upper, lower in zip(areas, areas[1:]):
    assert all(a <= b for a, b in zip(upper, lower)), "the areas are not stacked"
assert min(areas[0]) == 10.0, "the peak does not reach the top"

owners, holders = tables(root)
assert {"parameters", "saved_activations"} <= {row[1] for row in owners}, owners
sizes = [int(row[3]) for row in holders]
assert sizes and sizes == sorted(sizes, reverse=True) and {row[1] for row in holders} <= {row[1] for row in owners}

# Both colours, predicted and measured, lie within the drawing.
bars = [element for element in root.iter() if element.tag.endswith("rect")]
assert len({bar.get("fill") for bar in bars}) == 2, "predicted or measured work is missing"
assert all(float(bar.get("x")) + float(bar.get("width")) < 1072 for bar in bars)

# A page that cannot be written is refused before the run.
result = subprocess.run([*TRAIN, "--html", "missing/page.html"], capture_output=True, text=True, check=False)
assert result.returncode == 2 and "--html missing/page.html: No such file" in result.stderr, result


# A trace with call sites is stacked by them; the sites with the largest maxima have areas of their own, and the table
# of holders has the colours of the areas. Twelve sites: f0 is large, and gone at the peak.
MIB = 1 << 20


def call(action, i, mib, time_us):
    frames = [] if i == 11 else [{"filename": f"/home/me/<b>/f{i}.py", "line": 7, "name": "step"}]
    return {"action": action, "addr": i << 40, "size": mib * MIB, "stream": i % 2, "time_us": time_us, "frames": frames}


calls = [call("alloc", 0, 40, 0), call("free_completed", 0, 40, 50)]
calls += [call("alloc", i, i + 3, 100 * i) for i in range(1, 12)]
calls += [call("free_completed", i, i + 3, 2000 + i) for i in range(1, 12)]
with open("held.pickle", "wb") as file:
    pickle.dump({"segments": [], "device_traces": [calls]}, file)
subprocess.run([LADE, "replay", "held.pickle", "--policy", "packed", "--html", "held.html"], check=True,
               stdout=subprocess.DEVNULL)
trace = page_read("held.html", 2, 3)
areas = heights(trace)
stacked = areas[:-2]  # the last two are the queues over time
assert len(stacked) == 11, len(stacked)  # nine sites, the others, and the block without frames
titles = [element.text for element in trace.iter() if element.tag.endswith("title")]
assert titles[1:4] == ["unknown: before the history, or without frames", "other call sites", "<b>/f3.py:7 step"], titles
assert titles[11] == "<b>/f0.py:7 step" and titles[12:] == ["queue 0", "queue 1"], titles
policies, sites, blocks = tables(trace)
peak = sum(range(4, 15)) * MIB
assert [row[1] for row in sites][:2] == ["unknown: before the history, or without frames", "<b>/f10.py:7 step"], sites
assert [int(row[4].split()[0]) for row in sites] == [i * MIB for i in range(14, 3, -1)], sites
assert policies[0][3] == f"{peak} bytes" and [row[2] for row in blocks][:2] == ["unknown", "<b>/f10.py:7 step"], blocks

browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "chromium-headless-shell"))), None)
if browser:
    HEADLESS = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    for name, tree in (("page.html", root), ("held.html", trace)):
        dump = subprocess.run([*HEADLESS, "--dump-dom", name], capture_output=True, text=True, check=True).stdout
        shown = [re.sub("<[^>]*>", "", cell).replace("&lt;", "<").replace("&gt;", ">")
                 for cell in re.findall("<td[^>]*>.*?</td>", dump)]
        assert shown == [cell for table in tables(tree) for row in table for cell in row], (name, shown)
        assert len(re.findall("<polygon", dump)) == len(heights(tree)), f"{name}: the browser shows another page"
    # On the screenshot each area of the trace has pixels of its colour.
    subprocess.run([*HEADLESS, "--window-size=600,800", "--screenshot=held.png", "held.html"], capture_output=True,
                   check=True)
    seen = pixels("held.png")
    colors = [element.get("fill") for element in trace.iter() if element.tag.endswith("polygon")]
    assert all(seen.get(color, 0) > 50 for color in colors), [(color, seen.get(color, 0)) for color in colors]
else:
    print("no Chromium here; the pages were read as XML alone")
