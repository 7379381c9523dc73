#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""lade plan --export: DeepSpeed's and torchtitan's own parsers take what Lade writes. What is not installed is skipped.

Usage: exports.py LADE
"""
import dataclasses
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import types

LADE = sys.argv[1]
BASE = ["plan", "--cluster", "dgx-h100", "--model", "llama3-8b", "--seq", "8192", "--batch", "256", "--tp", "2",
        "--micro-batch", "1"]
LAYOUTS = [["--pp", "4", "--dp", "8", "--zero", "1", "--schedule", "interleaved", "--virtual-stages", "2", "--recompute",
            "selective"],
           ["--pp", "4", "--dp", "8", "--zero", "1", "--schedule", "zbh1", "--recompute", "full"],
           ["--dp", "32", "--zero", "3", "--shard", "8", "--sequence-parallel", "--recompute", "full"],
           ["--dp", "32", "--zero", "2", "--recompute", "full", "--dtype", "fp16"]]


def export(project, layout):
    result = subprocess.run([LADE, *BASE, *layout, "--export", project], capture_output=True, text=True, check=False)
    assert result.returncode in (0, 3), result
    return result.stdout


def deepspeed_takes_them():
    import deepspeed.comm
    from deepspeed.runtime.config import DeepSpeedConfig
    deepspeed.comm.get_rank = lambda *_: 0  # otherwise a parser outside of a job counts one rank
    for layout in LAYOUTS:
        replicas = int(layout[layout.index("--dp") + 1])
        text = export("deepspeed", layout)
        wanted = json.loads("\n".join(line for line in text.splitlines() if not line.startswith("//")))
        mesh = types.SimpleNamespace(get_data_parallel_world_size=lambda n=replicas: n)
        config = DeepSpeedConfig(wanted, mpu=mesh)
        assert config.zero_optimization_stage == wanted["zero_optimization"]["stage"], (layout, text)
        assert config.train_batch_size == 256 and config.train_micro_batch_size_per_gpu == 1, (layout, text)
        assert config.gradient_accumulation_steps == wanted["gradient_accumulation_steps"], (layout, text)


def torchtitan_takes_them(directory):
    # Only its configuration: the package as a whole imports kernels for GPUs.
    place = importlib.util.find_spec("torchtitan").submodule_search_locations
    package = types.ModuleType("torchtitan")
    package.__path__ = list(place)
    sys.modules["torchtitan"] = package
    from torchtitan.config.manager import ConfigManager
    for layout in LAYOUTS[:3]:
        path = os.path.join(directory, "titan.toml")
        with open(path, "w", encoding="utf-8") as file:
            file.write(export("torchtitan", layout))
        config = ConfigManager().parse_args(["--job.config_file", path])
        parallel = dataclasses.asdict(config.parallelism)
        replicas = parallel["data_parallel_replicate_degree"] * parallel["data_parallel_shard_degree"]
        assert replicas == int(layout[layout.index("--dp") + 1]), (layout, parallel)
        assert parallel["tensor_parallel_degree"] == 2 and config.training.global_batch_size == 256, (layout, config)
        assert config.activation_checkpoint.mode == layout[layout.index("--recompute") + 1], (layout, config)
        if config.activation_checkpoint.mode == "selective":
            assert config.activation_checkpoint.selective_ac_option == "op", config


has = {name: importlib.util.find_spec(name) is not None for name in ("torch", "deepspeed", "torchtitan")}
if not has["torch"] or not (has["deepspeed"] or has["torchtitan"]):
    print("SKIP: neither deepspeed nor torchtitan before 0.3 is installed beside torch")
    sys.exit(77)
with tempfile.TemporaryDirectory(prefix="lade-exports-") as scratch:
    if has["deepspeed"]:
        deepspeed_takes_them()
        print("deepspeed takes the exports")
    if has["torchtitan"] and importlib.util.find_spec("torchtitan").submodule_search_locations:
        if os.path.exists(os.path.join(list(importlib.util.find_spec("torchtitan").submodule_search_locations)[0],
                                       "config", "job_config.py")):
            torchtitan_takes_them(scratch)
            print("torchtitan takes the exports")
