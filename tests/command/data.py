#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`lade data` and its token files in `lade train` and `lade sample`: bytes, refusals, kills, full disks.

Usage: data.py LADE

A fake takes the place of the package tokenizers (tests/fakes/tokenizers). Where LADE_TORCH_PYTHON has the package
itself, its tokenizers are tried too.
"""
import glob
import json
import os
import resource
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time

LADE = os.path.abspath(sys.argv[1])
FAKES = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "fakes", "tokenizers")
SCRATCH = tempfile.TemporaryDirectory(prefix="lade-data-")  # removed with the process
os.chdir(SCRATCH.name)
ENVIRONMENT = {**os.environ, "LADE_PYTHON": sys.executable, "XDG_CACHE_HOME": os.getcwd(),
               "PYTHONPATH": os.pathsep.join(filter(None, [FAKES, os.environ.get("PYTHONPATH")]))}
STEPS = ["--steps", "2", "--batch", "2", "--seq", "16", "--eval-iters", "1", "--quiet", "--machine", "a100-40g"]
END = "<|endoftext|>"
TEXT = "".join(f"{i * i % 97} bottles of {'beer' if i % 3 else 'wine — ß'}{'.' * (i % 4)}\n{chr(10) * (i % 5 == 0)}"
               for i in range(24000)) + "the end"


def tokenizer_write(path, special=(END,), vocabulary=600, cut="lines"):
    with open(path, "w", encoding="ascii") as file:
        json.dump({"special": list(special), "vocabulary": vocabulary, "cut": cut}, file)


def write(path, data):
    with open(path, "wb") as file:
        file.write(data if isinstance(data, bytes) else data.encode("utf-8"))


def run(*words, limit=None, **environment):
    def limits_set():
        if limit:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    result = subprocess.run([LADE, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False,
                            stdin=subprocess.DEVNULL, env={**ENVIRONMENT, **environment}, preexec_fn=limits_set)
    return result.returncode, result.stdout, result.stderr


def refused(code, *words, says=(), limit=None, **environment):
    got, out, err = run(*words, limit=limit, **environment)
    assert got == code, (words, got, out, err)
    assert len(err.splitlines()) == 1 and err.startswith("lade ") and not out, (words, out, err)
    for part in says:
        assert part in err, (part, err)


def data(output, *words, **environment):
    shutil.rmtree(output, ignore_errors=True)
    code, out, err = run("data", *words, "-o", output, "--json", **environment)
    assert code == 0 and not err, (words, code, err)
    return json.loads(out)


def tokens_read(path):
    """Return a file's header words and its tokens."""
    with open(path, "rb") as file:
        header, body = file.read(1024), file.read()
    words = struct.unpack("<256i", header)
    kind = "H" if words[0] == 20240520 else "I"
    return words, header[64:320].rstrip(b"\0").decode(), struct.unpack(f"<{len(body) // struct.calcsize(kind)}{kind}", body)


def encode(text, special=(END,)):
    sys.path.insert(0, FAKES)
    import tokenizers
    tokenizer = tokenizers.Tokenizer({"special": list(special), "vocabulary": 600, "cut": None})
    tokenizer.encode_special_tokens = True
    return tokenizer.encode(text, False).ids


def mistakes_have_one_line():
    write("a.txt", "some text")
    tokenizer_write("t.json")
    ok = ["data", "a.txt", "--tokenizer", "t.json", "-o", "out"]
    refused(2, "data", says=["lade data FILE..."])
    refused(2, "data", "a.txt", "-o", "out", says=["--tokenizer FILE is missing"])
    refused(2, "data", "a.txt", "--tokenizer", "t.json", says=["-o DIR is missing"])
    refused(2, "data", "absent", *ok[2:], says=["absent: No such file"])
    refused(2, "data", "a.txt", "--tokenizer", "absent.json", "-o", "out", says=["absent.json"])
    refused(2, "data", "a.txt", "--tokenizer", "a.txt", "-o", "out", says=["a.txt: not a tokenizer.json"])
    refused(2, *ok, "--separator", "<x>", says=["--separator <x>"])
    refused(2, *ok, "--valid-fraction", "0.95", says=["--valid-fraction"])
    refused(2, *ok[:-1], "no/where", says=["no/where"])
    refused(7, *ok, LADE_PYTHON="/nowhere/python", says=["/nowhere/python", "LADE_PYTHON"])
    os.mkdir("none")
    write("none/tokenizers.py", "raise ImportError('none')")
    refused(7, *ok, PYTHONPATH="none", says=["package tokenizers is missing", "pip install tokenizers"])
    os.makedirs("alone/bin")
    shutil.copy(LADE, "alone/bin/lade")
    lone = subprocess.run(["alone/bin/lade", *ok], stderr=subprocess.PIPE, text=True, check=False,
                          env={**ENVIRONMENT, "PYTHONNOUSERSITE": "1"})
    assert lone.returncode == 7 and "package lade is missing" in lone.stderr and lone.stderr.count("\n") == 1, lone
    tokenizer_write("bare.json", special=())
    refused(2, *ok[:2], "--tokenizer", "bare.json", "-o", "out", says=["--separator TOKEN names one"])
    assert not os.path.exists("out") and not glob.glob(".out*"), "a refused run leaves files"
    os.mkdir("full")
    write("full/file", "")
    refused(2, *ok[:-1], "full", says=["-o full: the directory has files"])


def tokens_are_those_of_the_whole_text():
    """A text is cut for processes only where its tokens stay; their number changes no byte."""
    write("long.txt", TEXT)
    tokenizer_write("t.json")
    summary = data("one", "long.txt", "--tokenizer", "t.json", "--processes", "1")
    words, name, tokens = tokens_read("one/train.bin")
    assert list(tokens) == encode(TEXT) + [0], "a long text has other tokens than the whole"
    assert words[:8] == (20240520, 1, len(tokens), 0, 0x4544414C, 1, 600, 0) and name == "t.json", (words[:8], name)
    assert struct.pack("<4i", *words[8:12]).hex() == summary["tokenizer_hash"], summary
    assert (summary["documents"], summary["train_tokens"], summary["bits"]) == (1, len(tokens), 16), summary
    assert open("one/tokenizer.json", "rb").read() == open("t.json", "rb").read(), "the tokenizer is another file"
    assert sorted(os.listdir("one")) == ["tokenizer.json", "train.bin"], os.listdir("one")
    for n in ("2", "3"):
        data("more", "long.txt", "--tokenizer", "t.json", "--processes", n)
        assert open("more/train.bin", "rb").read() == open("one/train.bin", "rb").read(), f"{n} processes differ"
    tokenizer_write("whole.json", cut=None)
    data("more", "long.txt", "--tokenizer", "whole.json")
    assert tokens_read("more/train.bin")[2] == tokens, "a text that cannot be cut has other tokens"


def documents_are_separated():
    tokenizer_write("t.json", special=("<pad>", "<eos>"), vocabulary=70000)
    two = ("<pad>", "<eos>")
    lines = [{"text": "one <eos> two", "n": 1}, {"text": "three"}, {"n": 2, "text": "é"}]
    write("d.jsonl", "\n".join(map(json.dumps, lines)) + "\n\n")
    summary = data("o", "d.jsonl", "--tokenizer", "t.json")
    words, _, tokens = tokens_read("o/train.bin")
    wanted = [token for line in lines for token in encode(line["text"], two) + [1]]
    assert list(tokens) == wanted and words[0] == 20240801 and words[1] == 7 and words[6:8] == (70000, 1), words[:8]
    assert summary["documents"] == 3 and summary["separator"] == "<eos>" and summary["bits"] == 32, summary
    data("o", "d.jsonl", "--tokenizer", "t.json", "--separator", "none")
    words, _, tokens = tokens_read("o/train.bin")
    assert 1 not in tokens and words[7] == -1, "no separator was asked for"
    data("o", "d.jsonl", "--tokenizer", "t.json", "--separator", "<pad>", "--special-tokens")
    assert tokens_read("o/train.bin")[2].count(1) == 1, "a special token in the text is no token"
    write("tokenizer_config.json", json.dumps({"eos_token": {"content": "<pad>"}}))
    assert data("o", "d.jsonl", "--tokenizer", "t.json")["separator"] == "<pad>"
    os.remove("tokenizer_config.json")
    write("p.txt", "\ufeffa b\nc\n\n \nd\r\n\r\ne")
    assert data("o", "p.txt", "--tokenizer", "t.json", "--documents", "paragraph")["documents"] == 3
    wanted = [token for text in ("a b\nc", "d", "e") for token in encode(text, two) + [1]]
    assert list(tokens_read("o/train.bin")[2]) == wanted, "paragraphs"
    assert data("o", "p.txt", "--tokenizer", "t.json", "--documents", "line")["documents"] == 4


def damage_is_named():
    tokenizer_write("t.json")
    rest = ["--tokenizer", "t.json", "-o", "bad"]
    good = json.dumps({"text": "good"}) + "\n"
    for name, content, says in (("j.jsonl", good + '{"text": "bad"', ["j.jsonl:2: not JSON"]),
                                ("j.jsonl", good + "[1]\n", ["j.jsonl:2: not a JSON object"]),
                                ("j.jsonl", good + good + '{"txt": "a"}', ['j.jsonl:3: field "text" is missing']),
                                ("j.jsonl", '{"text": null}', ['j.jsonl:1: field "text" is null']),
                                ("j.jsonl", '{"text": "\\ud800"}', ["j.jsonl:1:", "U+D800"]),
                                ("j.jsonl", good.encode() + b'{"text": "\xff"}', ["j.jsonl:2: byte 0xff is not UTF-8"]),
                                ("x.txt", TEXT.encode() + b"\nok\nb\xc3(", [f"x.txt:{TEXT.count(chr(10)) + 3}: byte 0xc3"])):
        write(name, content)
        refused(5, "data", name, *rest, says=says)
    write("x.txt", "\n \n")
    refused(5, "data", "x.txt", *rest, "--documents", "line", says=["no document has a token"])
    write("x.parquet", "PAR1")
    os.makedirs("none", exist_ok=True)
    write("none/pyarrow.py", "raise ImportError('none')")
    refused(7, "data", "x.parquet", *rest, PYTHONPATH=f"none2:{FAKES}:none", says=["pip install pyarrow"])
    write("big.txt", TEXT)
    refused(5, "data", "big.txt", *rest, limit=1 << 18, says=["-o bad: File too large", "nothing is written"])
    assert not os.path.exists("bad") and not glob.glob(".bad*"), "a failed run leaves files"


def columns_of_parquet_are_read():
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        print("SKIP: no pyarrow to write Parquet with")
        return
    tokenizer_write("t.json")
    texts = [f"row {i} é" for i in range(3000)]
    parquet.write_table(pyarrow.table({"n": list(range(3000)), "body": texts}), "x.parquet", row_group_size=500)
    summary = data("o", "x.parquet", "--field", "body", "--tokenizer", "t.json", "--processes", "2")
    assert summary["documents"] == 3000, summary
    assert list(tokens_read("o/train.bin")[2]) == [token for text in texts for token in encode(text) + [0]], "rows"
    parquet.write_table(pyarrow.table({"text": ["a", None]}), "null.parquet")
    with open("x.parquet", "rb") as file:
        write("cut.parquet", file.read()[:3000])
    for name, says in (("x.parquet", 'column "text" is missing'), ("null.parquet", "row 2: field"),
                       ("cut.parquet", "row 1")):
        refused(5, "data", name, "--tokenizer", "t.json", "-o", "bad", says=[name, says])


def a_part_validates():
    tokenizer_write("t.json")
    write("v.txt", TEXT)
    summary = data("v", "v.txt", "--tokenizer", "t.json", "--valid-fraction", "0.1")
    train, valid = tokens_read("v/train.bin")[2], tokens_read("v/valid.bin")[2]
    cut = TEXT.encode().index(b"\n", int(len(TEXT.encode()) * 0.9)) + 1
    head, tail = TEXT.encode()[:cut].decode(), TEXT.encode()[cut:].decode()
    assert list(train) == encode(head) + [0] and list(valid) == encode(tail) + [0], "a text is split elsewhere"
    assert summary["valid_tokens"] == len(valid) and summary["valid"] == ["v/valid.bin"], summary
    write("v.jsonl", "".join(json.dumps({"text": f"{i}"}) + "\n" for i in range(40)))
    for n in ("1", "2"):
        data("v", "v.jsonl", "--tokenizer", "t.json", "--valid-fraction", "0.25", "--processes", n)
        valid = tokens_read("v/valid.bin")[2]
        assert list(valid) == [token for i in range(3, 40, 4) for token in encode(f"{i}") + [0]], "another split"
    refused(2, "data", "v.jsonl", "--tokenizer", "t.json", "--valid-fraction", "0.001", "-o", "w", says=["too few"])


def a_killed_run_leaves_nothing_that_trains():
    tokenizer_write("t.json")
    write("k.txt", TEXT * 2)
    for number in (signal.SIGKILL, signal.SIGTERM):
        job = subprocess.Popen([LADE, "data", "k.txt", "--tokenizer", "t.json", "-o", "k", "--processes", "1"],
                               env={**ENVIRONMENT, "FAKE_SECONDS": "3"}, stderr=subprocess.PIPE, text=True)
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline and not glob.glob(".k.lade-data/train*"):
            time.sleep(0.01)
        refused(2, "data", "k.txt", "--tokenizer", "t.json", "-o", "k", says=["another lade data writes it"])
        job.send_signal(number)
        _, err = job.communicate(timeout=20)
        assert job.returncode == (-9 if number == signal.SIGKILL else 143) and not err, (job.returncode, err)
        assert not os.path.exists("k"), "a killed run has an output"
        if number == signal.SIGKILL:
            part = glob.glob(".k.lade-data/train*.bin")[0]
            assert b"LADEPART" in open(part, "rb").read(16) or os.path.getsize(part) == 0, "a half file has a header"
            shutil.copy(part, "half.bin")
            os.rename(part, ".k.lade-data/left-over")
    assert not glob.glob(".k*"), "a stopped run leaves files"
    write("half", b"LADEPART" + bytes(2000))
    for name in ("half.bin", "half"):
        code, _, err = run("train", "--model", "nano", "--data", name, *STEPS)
        assert code != 0 and len(err.splitlines()) == 1, (name, code, err)
    assert "was not finished" in err, err
    data("k", "k.txt", "--tokenizer", "t.json")


def two_signals_end_all_processes():
    tokenizer_write("t.json")
    write("s.txt", TEXT * 20)
    for wait in (0, 0.3):  # between the signals; processes are busy for longer
        job = subprocess.Popen([LADE, "data", "s.txt", "--tokenizer", "t.json", "-o", "s", "--processes", "2"],
                               env={**ENVIRONMENT, "FAKE_SECONDS": "2"}, stderr=subprocess.DEVNULL,
                               stdout=subprocess.PIPE, start_new_session=True)
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline and not glob.glob(".s.lade-data/train*"):
            time.sleep(0.01)
        os.killpg(job.pid, signal.SIGINT)
        time.sleep(wait)
        os.killpg(job.pid, signal.SIGINT)
        job.communicate(timeout=20)  # until every process that has the pipe is gone
        assert job.returncode == 130, job.returncode
        assert not os.path.exists("s"), "a stopped run has an output"


def a_stop_ends_no_other_child():
    code = ("import multiprocessing, time\n"
            "from lade import data\n"
            "child = multiprocessing.get_context('fork').Process(target=time.sleep, args=(60,))\n"
            "child.start()\n"
            "try:\n"
            "    with data._pool(2, None) as pool:\n"
            "        pool.submit(time.sleep, 60)\n"
            "        raise KeyboardInterrupt\n"
            "except KeyboardInterrupt:\n"
            "    print(child.is_alive(), len(multiprocessing.active_children()))\n"
            "    child.kill()\n")
    python = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(FAKES))), "python")
    found = subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": python}, timeout=40,
                           capture_output=True, text=True, check=False)
    assert found.stdout == "True 1\n", found


def a_terminal_sees_progress():
    tokenizer_write("t.json")
    write("p.txt", TEXT)
    terminal, end = os.openpty()
    with subprocess.Popen([LADE, "data", "p.txt", "--tokenizer", "t.json", "-o", "p"], env=ENVIRONMENT, stderr=end,
                          stdout=subprocess.DEVNULL) as job:
        os.close(end)
        shown = b""
        while True:
            try:
                part = os.read(terminal, 4096)
            except OSError:  # the other end is closed
                break
            shown += part
    os.close(terminal)
    assert job.returncode == 0 and b" %  " in shown and b"M tokens" in shown and shown.endswith(b"\r\x1b[K"), shown


def models_train_and_speak():
    tokenizer_write("t.json")
    write("m.txt", TEXT[:20000])
    data("m", "m.txt", "--tokenizer", "t.json", "--valid-fraction", "0.1")
    code, out, err = run("train", "--model", "nano", "--data", "m/train.bin", "--valid", "m/valid.bin", "--save", "run",
                         "--save-every", "1", "--keep", "1", *STEPS, "--json")
    assert code == 0 and glob.glob("run/step-*") == ["run/step-00000002"], (err, os.listdir("run"))
    assert open("run/step-00000002/tokenizer.json", "rb").read() == open("t.json", "rb").read(), "no tokenizer"
    assert json.load(open("run/step-00000002/config.json", encoding="ascii"))["vocab_size"] == 600, "vocabulary"
    code, out, err = run("sample", "run", "--prompt", "der Spaß", "--tokens", "8", "--seed", "2")
    assert code == 0 and out.startswith("der Spaß") and out.endswith("\n"), (code, out, err)
    assert run("sample", "run", "--prompt", "der Spaß", "--tokens", "8", "--seed", "2")[1] == out, "another text"
    refused(7, "sample", "run", LADE_PYTHON="/nowhere/python", says=["/nowhere/python"])
    refused(2, "sample", "run", "--prompt", "", says=["--prompt is empty"])
    refused(7, "sample", "run", PYTHONPATH="none", says=["lade sample: the Python package tokenizers is missing"])
    write("run/step-00000002/tokenizer.json", "{}")
    refused(5, "sample", "run", says=["tokenizer.json is damaged"])
    write("small.json", json.dumps({"model_type": "gpt2", "vocab_size": 599, "n_positions": 64, "n_embd": 32,
                                    "n_layer": 1, "n_head": 2}))
    refused(2, "train", "--model", "small.json", "--data", "m/train.bin", *STEPS,
            says=["m/train.bin: its tokenizer, t.json, has a vocabulary of 600, the model one of 599"])
    tokenizer_write("u.json", vocabulary=601)
    data("u", "m.txt", "--tokenizer", "u.json")
    refused(2, "train", "--model", "nano", "--data", "m/train.bin", "u/train.bin", *STEPS,
            says=["another u.json", "one tokenizer"])
    shutil.copy("u/tokenizer.json", "m/tokenizer.json")
    code, out, err = run("train", "--model", "nano", "--data", "m/train.bin", "--save", "other", *STEPS)
    assert code == 0 and "checkpoints get no tokenizer" in err and "another hash" in err, (code, err)
    assert not os.path.exists("other/step-00000002/tokenizer.json"), "a checkpoint has another tokenizer"


REAL = """
import sys
sys.path.insert(0, sys.argv[1])
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers, decoders, Regex
from lade.data.documents import pieces_of
from lade.data.vocabulary import Encoder
text = open("long.txt", encoding="utf-8").read()
llama = r"(?i:'s|'t)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
byte_level = lambda **how: pre_tokenizers.ByteLevel(add_prefix_space=False, **how)
splitters = {"gpt2": byte_level(), "llama3": pre_tokenizers.Sequence(
    [pre_tokenizers.Split(Regex(llama), "isolated"), byte_level(use_regex=False)]),
    "metaspace": pre_tokenizers.Metaspace(), "words": pre_tokenizers.Whitespace(), "none": None}
for name, splitter in splitters.items():
    tokenizer = Tokenizer(models.BPE(byte_fallback=name == "none"))
    if splitter:
        tokenizer.pre_tokenizer = splitter
    tokenizer.normalizer = normalizers.NFC()
    few = [text[i:i + 2000] for i in range(0, len(text), 300000)]
    tokenizer.train_from_iterator(few, trainers.BpeTrainer(vocab_size=500, show_progress=False,
        special_tokens=["<|endoftext|>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    encoder = Encoder(tokenizer, 0, False)
    how = {"format": "text", "documents": "file", "valid_fraction": 0}
    pieces = list(pieces_of("long.txt", how, encoder.cut_is_neutral))
    found = [token for piece in pieces for token in tokenizer.encode(piece.text, add_special_tokens=False).ids]
    assert found == tokenizer.encode(text, add_special_tokens=False).ids, name
    assert len(pieces) > 1 or name in ("metaspace", "none"), (name, len(pieces))
    ids = tokenizer.encode("a <|endoftext|> b", add_special_tokens=False).ids
    assert 0 not in ids, (name, ids)
print("REAL")
"""


def real_tokenizers_cut_without_a_trace():
    python = os.environ.get("LADE_TORCH_PYTHON")
    if not python:
        print("SKIP: the package tokenizers itself is tried by scripts/test --torch")
        return
    package = os.path.join(os.path.dirname(os.path.dirname(LADE)), "python")
    result = subprocess.run([python, "-c", REAL, package], stdout=subprocess.PIPE, text=True, check=False,
                            env={**os.environ, "PYTHONPATH": ""})
    assert result.returncode == 0 and "REAL" in result.stdout, result


for test in (mistakes_have_one_line, tokens_are_those_of_the_whole_text, documents_are_separated, damage_is_named,
             columns_of_parquet_are_read, a_part_validates, a_killed_run_leaves_nothing_that_trains,
             two_signals_end_all_processes, a_stop_ends_no_other_child, a_terminal_sees_progress,
             models_train_and_speak, real_tokenizers_cut_without_a_trace):
    begun = time.monotonic()
    test()
    print(f"{test.__name__}: {time.monotonic() - begun:.1f} s")
