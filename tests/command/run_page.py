#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`lade train --html`: a page that is XML, refers to nothing outside, and shows owners, holders and queues.

Usage: run_page.py LADE

Where Chromium is installed it opens the page as well.
"""
import os
import re
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as xml

LADE = os.path.abspath(sys.argv[1])
SCRATCH = tempfile.TemporaryDirectory(prefix="lade-page-")
os.chdir(SCRATCH.name)
os.environ["XDG_CACHE_HOME"] = os.getcwd()
with open("text.txt", "w", encoding="utf-8") as file:
    file.write("".join(f"{i * i % 97} bottles on the wall, {i}\n" for i in range(2000)))
TRAIN = [LADE, "train", "--model", "nano", "--batch", "2", "--seq", "32", "--steps", "2", "--data", "text.txt"]

subprocess.run([*TRAIN, "--html", "page.html"], check=True, stdout=subprocess.DEVNULL)
page = open("page.html", encoding="utf-8").read()
root = xml.fromstring(page)
names = [element.tag.split("}")[1] for element in root.iter()]
assert names.count("svg") == 2 and names.count("table") == 2, names
assert not {"script", "link", "img", "iframe", "object", "image", "use"} & set(names), names
assert "http" not in page.replace("http://www.w3.org/", "") and "url(" not in page

# The areas are stacked: each owner's polygon reaches as high as the one below it, or higher, at every column.
areas = [[float(point.split(",")[1]) for point in element.get("points").split()]
         for element in root.iter() if element.tag.endswith("polygon")]
assert len({len(area) for area in areas}) == 1 and len(areas) > 3, [len(area) for area in areas]
for upper, lower in zip(areas, areas[1:]):
    assert all(a <= b for a, b in zip(upper, lower)), "the areas are not stacked"
assert min(areas[0]) == 10.0, "the peak does not reach the top"

owners, holders = ([["".join(cell.itertext()) for cell in row] for row in table][1:]
                   for table in root.iter() if table.tag.endswith("table"))
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

browser = shutil.which("chromium") or shutil.which("chromium-browser")
if browser:
    dump = subprocess.run([browser, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom", "page.html"],
                          capture_output=True, text=True, check=True).stdout
    assert len(re.findall("<polygon", dump)) == len(areas), "the browser shows another page"
else:
    print("no Chromium here; the page was read as XML alone")
