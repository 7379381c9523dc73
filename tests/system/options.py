#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Options: every mistake is one line and exit code 2; a configuration that is printed reads back as itself.

Usage: options.py LADE SOURCE
"""
import json
import os
import re
import subprocess
import sys
import tempfile

LADE = os.path.abspath(sys.argv[1])


def run(*args, cwd=None):
    result = subprocess.run([LADE, *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False,
                            cwd=cwd, stdin=subprocess.DEVNULL)
    return result.returncode, result.stdout, result.stderr


def refused(*args, words=(), code=2, cwd=None):
    """@args are refused with one line on stderr that has all @words, and nothing on stdout."""
    got, out, err = run(*args, cwd=cwd)
    assert got == code and not out, (args, got, out, err)
    assert err.count("\n") == 1 and err.startswith("lade"), (args, err)
    for word in words:
        assert word in err, (args, word, err)


verbs = set(re.findall(r"^  (\w+) +\S", run("--help")[1], re.MULTILINE)) - {"lade"}
assert "doctor" in verbs

# Doctor: every finding has its fields, a fix exactly where something is wrong, and the code follows.
code, out, err = run("doctor", "--json")
report = json.loads(out)
assert report["schema_version"] == 1 and code == (0 if report["ok"] else 7), (code, report)
assert {"cpu", "threads", "memory", "memlock", "huge pages", "NUMA", "O_DIRECT", "GPU", "MPI"} <= {
    finding["name"] for finding in report["findings"]}
for finding in report["findings"]:
    assert finding["state"] in ("ok", "note", "missing") and finding["text"], finding
    assert (finding["fix"] is None) == (finding["state"] == "ok"), finding
assert report["ok"] == all(finding["state"] != "missing" for finding in report["findings"])
code, out, err = run("doctor", "--store", "/no/such/directory", "--json")
assert code == 7 and not json.loads(out)["ok"], (code, out)
code, out, err = run("doctor")
assert code in (0, 7) and "\033" not in out and not err
refused("doctor", "--stroe", "x", words=["--stroe", "--store"])
refused("doctor", "--foo", words=["no option --foo", "`lade doctor --help` lists all"])  # near to nothing
refused("doctor", "--threads", "0", words=["--threads"])

if not {"train", "sweep", "plan"} <= verbs:
    sys.exit(0)

refused("train", words=["--data"])
refused("train", "--data", words=["--data", "FILE"])
refused("train", "--data", "x", "--batchsize", "3", words=["--batchsize", "mean --batch?"])
refused("train", "-batch", "3", words=["no option -batch;", "mean --batch?"])
refused("train", "--data", "x", "--steps", "5000000000", words=["from 0 to 4000000000"])
refused("train", "--data", "x", "--batchsize", "3", words=["--batchsize", "mean --batch?"])
refused("train", "-batch", "3", words=["no option -batch;", "mean --batch?"])
refused("train", "--data", "x", "--steps", "5000000000", words=["from 0 to 4000000000"])
refused("train", "--data", "x", "--batch", "40000", words=["from 1 to 32767"])
refused("train", "--data", "x", "--microbatch", "3", words=["--microbatch", "--micro-batch"])
refused("train", "--data", "x", "--batch", "12", "--micro-batch", "5", words=["5", "12", "1, 2, 3, 4, 6, 12"])
refused("train", "--data", "x", "--batch", "zwölf", words=["--batch", "whole number"])
refused("train", "--data", "x", "--batch", "-1", words=["--batch"])
refused("train", "--data", "x", "--batch", "0", words=["--batch"])
refused("train", "--data", "x", "--lr", "1e-3x", words=["--lr"])
refused("train", "--data", "x", "--lr", "nan", words=["--lr"])
refused("train", "--data", "x", "--lr", "1e-4", "--min-lr", "1e-3", words=["--min-lr", "--lr"])
refused("train", "--data", "x", "--dropout", "1", words=["--dropout"])
refused("train", "--data", "x", "--dtype", "int8", words=["--dtype", "bf16"])
for budget in ("24MiBs", "0%", "-3%", "60%%", "120%dev", "mini", ""):
    refused("train", "--data", "x", "--budget", budget, words=["budget"])
refused("train", "--data", "x", "--host-budget", "much", words=["--host-budget"])
refused("train", "--data", "x", "--store-budget", "1GiB", words=["--store-budget", "--store"])
refused("train", "--data", "x", "--save-every", "5", words=["--save-every", "--save"])
refused("train", "--data", "x", "--keep", "5", words=["--keep", "--save"])
refused("train", "--data", "x", "--resume", "a", "--init", "b", words=["--resume", "--init"])
refused("train", "--data", "x", "--valid", "a", "--valid-fraction", "0.2", words=["--valid"])
refused("train", "--device", "dry", "--save", "a", words=["--save", "dry"])
refused("train", "--data", "x", "--json=maybe", words=["--json"])
for words in (["--data", ""], ["--data", "x", ""], ["--data", "x", "--valid="], ["--data", "x", "--save", ""]):
    refused("train", *words, words=[next(word for word in reversed(words) if word)[:6], "empty"])
refused("train", "-x", words=["x"])
refused("train", "stray", words=["stray"])
refused("train", "--budgets", "min", words=["--budgets", "--budget"])
refused("sweep", "--data", "x", "--budgets", "100%,,min", words=["budget"])
refused("plan", "--max", "height", words=["--max", "layers"])
refused("run", "true", words=["lade run -- true"])
if "sample" in verbs:
    refused("sample", words=["DIR"])
if "sample" in verbs:
    refused("sample", "a", "b", words=["b"])

with tempfile.TemporaryDirectory() as scratch:
    def config(text):
        path = os.path.join(scratch, "run.conf")
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        return path

    refused("train", "--config", "missing.conf", words=["--config missing.conf"], cwd=scratch)
    refused("train", "--config", config("# fine\nbach = 3\n"), words=["line 2", "bach"])
    refused("train", "--config", config("batch 3\n"), words=["line 1", "name = value"])
    refused("train", "--config", config("batch = three\n"), words=["line 1", "--batch"])
    refused("train", "--config", config("batch =\n"), words=["line 1", "--batch"])
    refused("train", "--config", config('data = "open\n'), words=["line 1", "quotes"])
    refused("train", "--config", config("config = other\n"), words=["line 1", "config"])

    refused("train", "--config", config("batch = 3\nseq = 8\nbatch = 4\n"), words=["line 3", "batch", "line 1"])
    refused("train", "--batch", "2", "--config", config("batch = 3\nbatch = 4\n"), words=["line 2", "line 1"])
    refused("train", "--batch", "2", "--config", config("batch = three\n"), words=["line 1", "--batch"])

    # The command line outranks the file, the file the default; a value with blanks and signs survives.
    path = config('# a run\nbatch = 24   # twice\nlr=2e-3\ndata = a b.txt\ndata = "c # \\"d\\".txt"\nprompt = "x\\ny"\n'
                  "json = true\n")
    code, printed, err = run("train", "--config", path, "--lr", "5e-4", "--print-config")
    assert code == 0 and not err, (code, err)
    assert re.search(r"^batch = 24 +# .*line 2$", printed, re.MULTILINE), printed
    assert re.search(r"^lr = 5e-4 +# command line$", printed, re.MULTILINE), printed
    assert re.search(r"^steps = 2000 +# default$", printed, re.MULTILINE), printed
    assert re.search(r"^data = a b.txt +# ", printed, re.MULTILINE), printed
    assert re.search(r'^data = "c # \\"d\\".txt" +# ', printed, re.MULTILINE), printed
    assert re.search(r"^json = true +# ", printed, re.MULTILINE), printed
    code, again, err = run("train", "--config", config(printed), "--print-config")

    def values(text):
        return [re.sub(r" +# [^#]*$", "", line) for line in text.splitlines() if not line.startswith("#")]
    assert code == 0 and values(again) == values(printed), (printed, again)
    assert os.listdir(scratch) == ["run.conf"]

# A plan for more than the described device has is made, and says so.
code, out, err = run("plan", "--model", "nano", "--machine", "laptop-8c", "--budget", "100GiB")
assert code == 0 and "proved" in out and err.count("\n") == 1 and "the budget of 100.0 GiB is more than" in err, (code, err)

# Every default that help shows is one that parses: print-config shows the same.
for verb in ("train", "sweep", "plan"):
    help_text = run(verb, "--help")[1]
    assert help_text.startswith("Examples:\n"), help_text
    code, printed, err = run(verb, "--print-config")
    assert code == 0, err
    for name in re.findall(r"^(?:# )?([a-z0-9-]+)(?: =| is not set)", printed, re.MULTILINE):
        assert f"  --{name} " in help_text or f"  --{name}\n" in help_text, (verb, name)

# Pages for people speak of options that there are.
every = set(re.findall(r"--([a-z0-9][a-z0-9-]*)", " ".join(run(*verb.split(), "--help")[1]
                                                          for verb in sorted(verbs) + ["bench store"])))
docs = os.path.join(sys.argv[2], "docs")
for page in sorted(os.listdir(docs)):
    if page.endswith(".1") or page in ("guide.md", "tools.md"):
        with open(os.path.join(docs, page), encoding="utf-8") as file:
            named = set(re.findall(r"--([a-z0-9][a-z0-9-]*)", file.read().replace("\\-", "-")))
        assert named <= every, (page, named - every)
