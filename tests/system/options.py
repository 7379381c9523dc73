#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Options: every mistake is one line and exit code 2; a printed configuration reads back as itself.

Usage: options.py LADE SOURCE
"""
import json
import os
import random
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
refused("train", "--data", "x", "--batch", "4000000", words=["from 1 to 1000000"])
refused("train", "--data", "x", "--microbatch", "3", words=["--microbatch", "--micro-batch"])
refused("train", "--data", "x", "--batch", "12", "--micro-batch", "5", words=["5", "12", "1, 2, 3, 4, 6, 12"])
refused("train", "--data", "x", "--batch", "zwölf", words=["--batch", "whole number"])
refused("train", "--data", "x", "--batch", "-1", words=["--batch"])
refused("train", "--data", "x", "--batch", "0", words=["--batch"])
refused("train", "--data", "x", "--lr", "1e-3x", words=["--lr"])
for rate in ("nan", "nan(1)", "inf", "1e400", "0x10", " 5", "5 ", "", "٣"):  # decimal numbers alone
    refused("train", "--data", "x", "--lr", rate, words=["--lr", "expected a number"])
refused("train", "--data", "x", "--lr", "1e-4", "--min-lr", "1e-3", words=["--min-lr", "--lr"])
refused("train", "--data", "x", "--dropout", "1", words=["--dropout"])
refused("train", "--data", "x", "--dtype", "int8", words=["--dtype", "bf16"])
for budget in ("24MiBs", "0%", "-3%", "60%%", "120%dev", "mini", "", "5 ", " 5", "0x10%", " 60%"):
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
for recipe in ("auto", "none", "selective", "full"):
    for verb in ("train", "sweep", "plan"):
        refused(verb, "--data", "x", "--residency", recipe, words=["--residency", f"--recompute {recipe}", f"./{recipe}"])
for words in (["--update", "early"], ["--update=end"]):
    refused("plan", *words, words=["--update", "--optimizer-in-backward"])
refused("plan", "--recompute", "some", words=["--recompute", "auto|none|selective|full"])
refused("plan", "--residency", "./full", words=["--residency", "./full"])
assert "auto" not in run("plan", "--residency", "./full")[2]  # no recipe is a name of --residency
refused("plan", "--optimizer-in-backward", words=["--optimizer-in-backward", "--clip"])
assert "optimizer" not in run("doctor", "--update")[2]
refused("train", "-x", words=["x"])
refused("train", "stray", words=["stray"])
refused("train", "--budgets", "min", words=["--budgets", "--budget"])
refused("sweep", "--data", "x", "--budgets", "100%,,min", words=["budget"])
refused("sweep", "--data", "x", "--budgets", "100%, ,min", words=["budget"])
refused("plan", "--model", "nano", "--machine", "h100-80g", "--batch", "8192", "--micro-batch", "1",
        words=["--batch 8192 makes 8192 microbatches", "a program takes 8191"])
refused("plan", "--budget", "0%", words=["0%", "above 0"])
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
    refused("train", "--config", config("batch = 3\nresidency = full  # default\n"), words=["line 2", "--recompute full"])
    refused("train", "--config", config("batch = 3\nupdate = early\n"), words=["line 2", "optimizer-in-backward"])
    refused("plan", "--recompute", "full", "--config", config("residency = auto\n"), words=["line 1", "--recompute auto"])

    refused("train", "--config", config("batch = 3\nseq = 8\nbatch = 4\n"), words=["line 3", "batch", "line 1"])
    refused("train", "--batch", "2", "--config", config("batch = 3\nbatch = 4\n"), words=["line 2", "line 1"])
    refused("train", "--batch", "2", "--config", config("batch = three\n"), words=["line 1", "--batch"])

    # The command line takes precedence over the file, the file over the default; a value with blanks and signs
    # survives.
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

    # Lade reads its own configurations as the same run: random options, right and wrong ones, and their messages.
    draw = random.Random(20)
    common = {"model": ["nano", "baby"], "layers": ["2"], "batch": ["8", "12"], "micro-batch": ["4", "5"], "seq": ["16"],
              "dtype": ["fp32", "bf16"], "moments": ["fp32", "8bit"], "dropout": ["0", "0.1"],
              "host-budget": ["0", "1GiB"], "store": ["st", "a,,b"], "store-budget": ["1GiB"], "allow-tmpfs": None,
              "recompute": ["full", "auto"], "residency": ["./full", "no such"], "optimizer-in-backward": None, "mask-documents": None,
              "machine": ["laptop-8c"], "separator": ["0", "50256"],
              "timeline": ["t 1", "t\n2"], "valid": ["v", 'a "b" # c'], "valid-fraction": ["0.1", "0.2"],
              "save": ["s\033"], "save-every": ["5", "auto"], "mtbf": ["9"], "keep": ["2"], "resume": ["r"],
              "init": ["i"], "lr": ["1e-3", "1e-5"], "min-lr": ["1e-4"], "log": ["l\r "], "device": ["host", "dry"]}
    rank = {"durable": None, "budget": ["min", "60%"], "sequence-parallel": None, "zero": ["0", "1"]}
    own = {"train": rank, "sweep": {"budgets": ["min,60%"]},
           "plan": {**rank, "rank": ["0"], "every-rank": None, "max": ["seq"], "graph": ["g 1", "-"], "seed": ["3"],
                    "iterations": ["7"], "seconds": ["0.5"], "instructions": ["o#"], "frontier": None, "svg": ["f"],
                    "detail": None}}
    empty = os.path.join(scratch, "empty")
    os.mkdir(empty)
    for verb in ("train", "sweep", "plan"):
        table = {**common, **own[verb]}
        for _ in range(40):
            words = ["--data=no\nsuch", "--data=nor 'this'"]
            for name in draw.sample(sorted(table), draw.randrange(8)):
                words.append(f"--{name}={draw.choice(table[name])}" if table[name] else f"--{name}")
            code, printed, err = run(verb, *words, "--print-config", cwd=empty)
            assert code == 0 and not err, (verb, words, err)
            path = config(printed)
            code, again, err = run(verb, "--config", path, "--print-config", cwd=empty)
            assert code == 0 and values(again) == values(printed), (verb, words, printed, again)
            if verb != "plan":  # the missing data ends it before anything is measured
                want, got = run(verb, *words, cwd=empty), run(verb, "--config", path, cwd=empty)
                assert want == got and want[0], (verb, words, want, got)
    for words in ([], ["--rank", "0"], ["--max", "seq"], ["--valid", "v"], ["--store", empty, "--allow-tmpfs"]):
        words += ["--layers", "1", "--batch", "1", "--seq", "8", "--machine", "laptop-8c"]
        path = config(run("plan", *words, "--print-config")[1])
        assert run("plan", *words)[:2] == run("plan", "--config", path)[:2], words  # stderr has progress after 2 s

    # An option of the file gives way to one of the command line that excludes it, and to no other of the file.
    path = config("init = i\ndata = no such\n")
    code, printed, err = run("train", "--config", path, "--resume", "r", "--print-config")
    assert code == 0 and "# init is not set" in printed and not err, (printed, err)
    refused("train", "--config", config("init = i\ndata = x\nresume = r\n"), words=["--resume", "--init"])

    # A recipe and a residency file together: the file takes precedence for the values that it names.
    with open(os.path.join(empty, "places"), "w", encoding="utf-8") as file:
        file.write("gelu keep\n")
    code, printed, err = run("plan", "--machine", "laptop-8c", "--layers", "1", "--recompute", "full", "--residency", "places",
                             "--detail", cwd=empty)
    assert code == 0 and re.search("keep +mlp.gelu .*residency file", printed), (printed, err)
    assert re.search("recompute +attn.qkv .*--recompute full", printed), printed

    # The path of the file is a comment of one line, whatever its characters.
    path = os.path.join(scratch, "a\nsteps = 7\033")
    os.rename(config("batch = 8\n"), path)
    code, printed, err = run("train", "--config", path, "--print-config")
    assert code == 0 and "\033" not in printed and not re.search("^steps = 7", printed, re.MULTILINE), printed

# A plan for more than the described device has is made, and says so.
code, out, err = run("plan", "--model", "nano", "--machine", "laptop-8c", "--budget", "100GiB")
assert code == 0 and "proved" in out and err.count("\n") == 1 and "the budget of 100.0 GiB is more than" in err, (code, err)

# More layers on a rank than can be planned in seconds are refused before any work, with the limit; in stages they fit.
with tempfile.TemporaryDirectory() as scratch:
    model = {"model_type": "llama", "hidden_size": 8, "intermediate_size": 8, "num_attention_heads": 1, "vocab_size": 256,
             "max_position_embeddings": 8, "rms_norm_eps": 1e-5}
    path = os.path.join(scratch, "config.json")
    for layers in (1023, 4000, 10000):
        with open(path, "w", encoding="utf-8") as file:
            json.dump({**model, "num_hidden_layers": layers}, file)
        for words in (["plan"], ["plan", "--device", "dry"], ["train", "--device", "dry"]):
            refused(*words, "--model", path, "--batch", "1", words=["at most 1024", "--layers", "--pp"])
    code, out, err = run("plan", "--model", path, "--batch", "1", "--machine", "laptop-8c", "--layers", "100", "--pp", "50",
                         "--rank", "0")
    assert code == 0, err
    code, out, err = run("plan", "--model", path, "--batch", "1", "--machine", "laptop-8c", "--layers", "2000", "--pp",
                         "1000", "--rank", "0")
    assert code == 0, err

# Every default in the help parses: print-config shows the same.
for verb in ("train", "sweep", "plan"):
    help_text = run(verb, "--help")[1]
    assert help_text.startswith("Examples:\n"), help_text
    code, printed, err = run(verb, "--print-config")
    assert code == 0, err
    for name in re.findall(r"^(?:# )?([a-z0-9-]+)(?: =| is not set)", printed, re.MULTILINE):
        assert f"  --{name} " in help_text or f"  --{name}\n" in help_text, (verb, name)

# Pages mention only options that exist.
every = set(re.findall(r"--([a-z0-9][a-z0-9-]*)", " ".join(run(*verb.split(), "--help")[1]
                                                          for verb in sorted(verbs) + ["bench store", "bench links"])))
docs = os.path.join(sys.argv[2], "docs")
manual = sorted(os.path.join("man", page) for page in os.listdir(os.path.join(docs, "man")))
assert "man/lade-train.1" in manual
for page in ["guide.md", "residency.md", *manual]:
    with open(os.path.join(docs, page), encoding="utf-8") as file:
        named = set(re.findall(r"--([a-z0-9][a-z0-9-]*)", file.read().replace("\\-", "-")))
    assert named <= every, (page, named - every)
