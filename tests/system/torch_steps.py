#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""bench/torch_steps.py trains the same shapes as Lade, counts tokens in the same way, and says in one line why it
cannot run. If PyTorch is installed it trains a small model on the processor.

Usage: torch_steps.py LADE SCRIPT
"""
import importlib.util
import json
import os
import subprocess
import sys
import tempfile

LADE, SCRIPT = (os.path.abspath(path) for path in sys.argv[1:3])
SMALL = ["--layers", "2", "--width", "32", "--heads", "4", "--hidden", "64", "--vocabulary", "100", "--seq", "16",
         "--batch", "6", "--micro-batch", "2", "--steps", "3", "--device", "cpu", "--eager"]


def run(*args, **more):
    done = subprocess.run([sys.executable, SCRIPT, *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          check=False, env=dict(os.environ, PYTHONDONTWRITEBYTECODE="1", **more))
    return done.returncode, done.stdout, done.stderr


def shapes_are_lades():
    for model, seq in (("gpt2-1.5b", "1024"), ("llama3-8b", "2048")):
        done = subprocess.run([LADE, "plan", "--model", model, "--seq", seq, "--batch", "1", "--machine", "h200-141g",
                               "--json"], stdout=subprocess.PIPE, text=True, check=True)
        code, out, err = run("--model", model, "--seq", seq, "--count")
        assert code == 0 and int(out) == json.loads(done.stdout)["parameters"], (model, out, err)


def missing_software_is_one_line():
    with tempfile.TemporaryDirectory(prefix="lade-torch-") as modules:
        for text, words in (("raise ImportError('nothing here')", "PyTorch is not installed (nothing here)"),
                            ("raise OSError('libcudart.so.13: cannot open')", "libcudart.so.13"),
                            ("import sys, types\n__version__ = '9.9'\ncuda = types.SimpleNamespace(is_available=lambda: False)\n"
                             "__path__ = []\nsys.modules['torch.utils'] = types.ModuleType('torch.utils')\n"
                             "sys.modules['torch.utils.checkpoint'] = types.ModuleType('torch.utils.checkpoint')",
                             "PyTorch 9.9 finds no CUDA device")):
            with open(os.path.join(modules, "torch.py"), "w", encoding="utf-8") as file:
                file.write(text)
            code, out, err = run("--model", "gpt2-1.5b", PYTHONPATH=modules)
            assert code == 77 and out.startswith("SKIP: ") and out.count("\n") == 1 and words in out, (code, out, err)
    for wrong in (["--steps", "0"], ["--batch", "3", "--micro-batch", "2"]):
        assert run("--model", "gpt2-1.5b", *wrong)[0] == 2, wrong


def small_models_train():
    for model, n_kv_heads, parameters in (("gpt2-1.5b", "4", 2 * 8544 + 3200 + 512 + 64),
                                         ("llama3-8b", "2", 2 * 9280 + 2 * 3200 + 32)):
        code, out, err = run("--model", model, *SMALL, "--n-kv-heads", n_kv_heads)
        assert code == 0, (code, out, err)
        report = json.loads(out)
        assert report["parameters"] == parameters and report["recomputed_blocks"] == 0, report
        assert len(report["steps_seconds"]) == 3 and sorted(report["steps_seconds"])[1] == report["step_seconds"], report
        assert abs(report["tokens_per_second"] * report["step_seconds"] - 6 * 16) < 1e-6, report
        assert 3 < report["loss"] < 6, report  # near the logarithm of 100


shapes_are_lades()
missing_software_is_one_line()
if importlib.util.find_spec("torch"):
    small_models_train()
else:
    print("SKIP: PyTorch is not installed: no steps of it")
