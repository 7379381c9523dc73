#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`lade replay`: its fields for scripts, its exit codes, its plot, and hostile files.

Usage: replay.py LADE SOURCE
"""
import json
import os
import pickle
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as xml

LADE = os.path.abspath(sys.argv[1])
DATA = os.environ.get("LADE_SHARED", os.path.join(sys.argv[2], "../shared/data"))
POLICIES = ["caching", "torch-native", "torch-expandable", "packed"]
FIELDS = {"schema_version", "policy", "allocations", "peak_live_bytes", "reserved_peak_bytes", "lower_bound_bytes",
          "waste", "seconds", "verified"}
MIB = 1 << 20
os.chdir(tempfile.mkdtemp(prefix="lade-replay-"))


def run(*args, **how):
    result = subprocess.run([LADE, "replay", *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False, **how)
    return result.returncode, result.stdout.decode(), result.stderr.decode("utf-8", "backslashreplace")


def refused(code, words, *args):
    """Check that @args end with @code, one line on stderr with @words, and no other effect."""
    before = sorted(os.listdir())
    got, out, err = run(*args)
    assert got == code and not out and err.count("\n") == 1 and err.startswith("lade replay: "), (args, got, out, err)
    assert words in err, (args, words, err)
    assert sorted(os.listdir()) == before, args


def replayed(*args, code=0):
    got, out, err = run(*args, "--json")
    assert got == code and (not err if code == 0 else err.count("\n") == 1), (args, got, out, err)
    return json.loads(out), err


def write(name, text):
    with open(name, "wb") as file:
        file.write(text if isinstance(text, bytes) else text.encode())
    return name


def event(action, address, size, stream=0):
    return {"action": action, "addr": address, "size": size, "stream": stream, "time_us": 1, "frames": []}


# Ten blocks of 3 MiB that nest, and one that comes after the others have ended.
write("nest.csv", "id,lower,upper,size\n" + "".join(f"b{i},{i},{30 - i},{3 * MIB}\n" for i in range(10))
      + f"last,31,40,{5 * MIB}\n")
for policy in POLICIES:
    result, _ = replayed("nest.csv", "--policy", policy)
    assert set(result) == FIELDS, result
    assert result["schema_version"] == 1 and result["policy"] == policy and result["verified"] is True, result
    assert result["allocations"] == 11 and result["peak_live_bytes"] == 30 * MIB == result["lower_bound_bytes"], result
    assert result["reserved_peak_bytes"] >= 30 * MIB and result["seconds"] >= 0, result
    assert abs(result["waste"] - (result["reserved_peak_bytes"] / (30 * MIB) - 1)) < 1e-6, result
assert replayed("nest.csv", "--policy", "packed")[0]["reserved_peak_bytes"] == 30 * MIB
together, _ = replayed("nest.csv")
assert together["schema_version"] == 1 and [each["policy"] for each in together["policies"]] == POLICIES, together
assert all(set(each) == FIELDS for each in together["policies"]), together

# The same calls in Lade's own lines give the same.
lines = ["lade-trace 1"]
for time in range(41):
    lines += [f"free {time} {i}" for i in range(10) if 30 - i == time]
    lines += [f"alloc {time} {i} {3 * MIB} 0" for i in range(10) if i == time]
    lines += [f"alloc {time} 10 {5 * MIB} 0"] if time == 31 else []
write("nest.trace", "\n".join(lines) + "\n")
for policy in POLICIES:
    csv, own = replayed("nest.csv", "--policy", policy)[0], replayed("nest.trace", "--policy", policy)[0]
    assert csv["reserved_peak_bytes"] == own["reserved_peak_bytes"] and own["allocations"] == 11, (csv, own)

# A budget: enough, too little for the policy, too little for any policy. The figures are the need.
for policy in POLICIES:
    needed = replayed("nest.csv", "--policy", policy)[0]["reserved_peak_bytes"]
    assert replayed("nest.csv", "--policy", policy, "--budget", str(needed))[0]["reserved_peak_bytes"] <= needed
    result, err = replayed("nest.csv", "--policy", policy, "--budget", "12MiB", code=3)
    assert result["reserved_peak_bytes"] == needed and set(result) == FIELDS, result
    # The fifth block is the first that does not fit; PyTorch takes 20 MiB for the first.
    call, line, live = (1, 2, "0 B") if policy.startswith("torch") else (5, 6, "12.0 MiB")
    assert f"{policy}: a budget of 12.0 MiB runs out at call {call} of 22 (line {line}, time {call - 1})" in err, err
    assert f"3.0 MiB more with {live} live; the live peak is past it, and it needs " in err, err
    assert f"({needed} bytes)" in err, err
    replayed("nest.csv", "--policy", policy, "--budget", "1", code=3)
code, out, err = run("nest.csv", "--budget", "12MiB")
assert code == 3 and err.count("\n") == len(POLICIES) and out.count("over the budget") == len(POLICIES), (code, out, err)

# A snapshot: recorded bytes are shown with the replayed ones.
snapshot = {
    "segments": [{"device": 0, "address": 1 << 30, "total_size": 20 * MIB, "stream": 0, "blocks": [
        {"address": 1 << 30, "size": 8 * MIB, "requested_size": 7 * MIB, "state": "active_allocated"},
        {"address": (1 << 30) + 8 * MIB, "size": 12 * MIB, "requested_size": 0, "state": "inactive"}]}],
    "device_traces": [[event("segment_alloc", 1 << 30, 20 * MIB), event("alloc", (1 << 30) + 8 * MIB, 4 * MIB, 3),
                       event("free_requested", (1 << 30) + 8 * MIB, 4 * MIB, 3),
                       event("free_completed", (1 << 30) + 8 * MIB, 4 * MIB, 3)]],
    "allocator_settings": {"expandable_segments": False, "ratio": 0.5, "none": None, "huge": 1 << 200, "less": -1}}
for protocol in (2, 3, 4, 5):
    write("snapshot.pickle", pickle.dumps(snapshot, protocol=protocol))
    result, _ = replayed("snapshot.pickle", "--policy", "packed")
    assert set(result) == FIELDS | {"recorded_reserved_bytes"}, result
    assert result["recorded_reserved_bytes"] == 20 * MIB and result["allocations"] == 2, result
    assert result["peak_live_bytes"] == result["reserved_peak_bytes"] == 11 * MIB, result
    result, err = replayed("snapshot.pickle", "--policy", "packed", "--budget", "8MiB", code=3)
    assert "(entry 2, time 1): 4.0 MiB more with 7.0 MiB live" in err, err
    result, err = replayed("snapshot.pickle", "--policy", "packed", "--budget", "1MiB", code=3)
    assert "(from before the trace)" in err, err


# The holders of the peak, by call site: the innermost frame of the user's own Python.
def frame(filename, line, name):
    return {"filename": filename, "line": line, "name": name}


LIBRARY = [frame("??", 0, "c10::cuda::malloc"), frame("/opt/site-packages/torch/nn/linear.py", 9, "forward")]
SITES = ([LIBRARY + [frame("/home/me/model/block.py", 12, "mlp"), frame("/home/me/train.py", 3, "step")]] * 3
         + [LIBRARY + [frame("/home/me/train.py", 40, "\x1b[31mlo\u00e4d")], LIBRARY, LIBRARY[:1], [], ["no dict"]])
held = {"segments": [], "device_traces": [[
    dict(event("alloc", i * 16 * MIB, (i + 1) * MIB), frames=frames) for i, frames in enumerate(SITES)] + [
        dict(event("alloc", 1 << 40, 1), frames=[frame("/home/me/late.py", 1, "small")]),
        event("free_completed", 1 << 40, 1)]]}
result, _ = replayed(write("held.pickle", pickle.dumps(held)), "--policy", "packed")
assert [(each["site"], each["blocks"], each["bytes"]) for each in result["holders"]] == [
    (None, 2, 15 * MIB), ("??:0 c10::cuda::malloc", 1, 6 * MIB), ("model/block.py:12 mlp", 3, 6 * MIB),
    ("nn/linear.py:9 forward", 1, 5 * MIB), ("me/train.py:40 ?[31mlo??d", 1, 4 * MIB),
    ("me/late.py:1 small", 1, 1)], result["holders"]
assert sum(each["bytes"] for each in result["holders"]) == result["peak_live_bytes"], result
out = subprocess.run([LADE, "replay", "held.pickle"], stdout=subprocess.PIPE, text=True, check=True).stdout
assert re.search(r"model/block\.py:12 mlp +3 +6\.0 MiB +16\.7 %", out) and "\x1b[31mlo" not in out, out
for i in range(30):  # more sites than the text lists
    held["device_traces"][0].insert(0, dict(event("alloc", (1 << 41) + i * MIB, MIB),
                                            frames=[frame(f"/home/me/f{i}.py", i, "f")]))
out = subprocess.run([LADE, "replay", write("more.pickle", pickle.dumps(held))], stdout=subprocess.PIPE, text=True,
                     check=True).stdout
assert re.search(r"^others +26 ", out, re.M), out


class Hostile:
    """Unpickled by Python, this would create a file."""

    def __reduce__(self):
        return os.system, ("touch was-run",)


for protocol in range(6):
    write("hostile.pickle", pickle.dumps({"segments": [], "device_traces": [[Hostile()]]}, protocol=protocol))
    refused(5, "calls code" if protocol >= 2 else "begins no trace", "hostile.pickle", "--policy", "packed")
assert not os.path.exists("was-run")
refused(5, "cut short?", write("cut.pickle", pickle.dumps(snapshot, protocol=2)[:-1]))

# Bad contents are damage, bad words are usage; each is one line, and no page is left behind.
refused(5, "bad.csv: line 3: size is '-4'", write("bad.csv", "id,lower,upper,size\n1,0,1,4\n2,0,1,-4\n"), "--html", "x")
refused(5, "line 2: the lifetime from 4 to 4 is empty", write("bad.csv", "id,lower,upper,size\n1,4,4,4\n"))
refused(5, "line 3: id 1 stands on line 2 already", write("bad.csv", "id,lower,upper,size\n1,0,4,4\n1,2,5,4\n"))
refused(5, "empty.csv: there is nothing in it: expected the header", write("empty.csv", ""))
refused(2, "No such file", "no-such-file")
refused(2, "not a regular file", ".")
refused(2, "lade replay FILE")
refused(2, "--policy 'best': expected caching|torch-native|torch-expandable|packed|all", "nest.csv", "--policy", "best")
refused(2, "--budget '-1'", "nest.csv", "--budget", "-1")
refused(2, "--budget '60%'", "nest.csv", "--budget", "60%")
refused(2, "--seconds 0: it must be from", "nest.csv", "--seconds", "0")
refused(2, "argument 'more.csv'", "nest.csv", "more.csv")
refused(2, "--html nest.csv would overwrite the input --trace nest.csv", "nest.csv", "--html", "nest.csv")
refused(2, "--html missing/page.html: No such file", "nest.csv", "--html", "missing/page.html")

# As text: a table, and a plot that is plain outside a terminal.
code, out, err = run("nest.csv")
assert code == 0 and not err and out.isascii() and "\033" not in out, (code, out, err)
rows = [line for line in out.splitlines() if "|" in line]
assert len(rows) == 10 and "#" in rows[0] and rows[0].count("#") < rows[-1].count("#") and len(set(map(len, rows))) == 1
assert "30.0 MiB" in rows[0] and "peak live     30.0 MiB, at call 10 (line 11)" in out, out

# The page is XML, has the table's figures, and no external references.
write("<&>\"'.csv", open("nest.csv", "rb").read())
code, out, err = run("<&>\"'.csv", "--budget", "64MiB", "--html", "page.html")
assert code == 0 and not err, (code, err)
page = open("page.html", encoding="utf-8").read()
root = xml.fromstring(page)
names = [element.tag.split("}")[1] for element in root.iter()]
assert names.count("svg") == 2 and names.count("polyline") == len(POLICIES) and names.count("polygon") == 2, names
assert not {"script", "link", "img", "iframe", "object", "image", "use"} & set(names), names
assert not [key for element in root.iter() for key in element.attrib if key.split("}")[-1] in ("href", "src")], page
assert "http" not in page.replace("http://www.w3.org/", "") and "url(" not in page, page
text = "".join(root.itertext())
tables = [element for element in root.iter() if element.tag.endswith("table")]
holders = ["".join(row.itertext()) for row in tables[-1]][1:]
assert len(tables) == 2 and len(holders) == 10 and holders[0].startswith("1line 2") and "10.0 %" in holders[0], holders
assert not any("5.0 MiB" in row for row in holders), holders  # the last block comes after the peak
assert "<&>\"'.csv" in text and f"{30 * MIB} bytes" in text and f"{64 * MIB} bytes" in text, text
code, out, err = run(b"nest.csv", "--json", "--policy", "packed", "--html", b"page-\xff.html")
assert code == 0 and json.loads(out) and os.path.exists(b"page-\xff.html"), (code, err)

# A result that cannot be written is an error.
with open("/dev/full", "w", encoding="utf-8") as full:
    result = subprocess.run([LADE, "replay", "nest.csv", "--json"], stdout=full, stderr=subprocess.PIPE, check=False)
assert result.returncode == 5 and b"standard output" in result.stderr, result

# The public traces, if present: guarantees for each kind, without timing.
if not os.path.isdir(os.path.join(DATA, "packing")):
    print("the public traces are not beside this tree; the rest was tested")
    sys.exit(0)
for name in "ABCDEF":
    path = os.path.join(DATA, f"packing/minimalloc_{name}.csv")
    result, _ = replayed(path, "--policy", "packed", "--budget", "1048576", "--seconds", "60")
    assert result["reserved_peak_bytes"] <= 1048576, (name, result)
for name in ("medium_128_training", "medium_256_training", "medium_512_inference"):
    result, _ = replayed(os.path.join(DATA, f"packing/torch_{name}.csv"), "--policy", "caching")
    assert result["waste"] < 0.015, (name, result)
for name in ("medium_256_training", "medium_512_inference"):
    result, _ = replayed(os.path.join(DATA, f"snapshots/{name}.pickle"), "--policy", "caching")
    assert result["waste"] < 0.015 < result["recorded_reserved_bytes"] / result["peak_live_bytes"] - 1, (name, result)
