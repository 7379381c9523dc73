#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""lade plan --export: DeepSpeed's, torchtitan's and Megatron-LM's own parsers take what Lade writes. What is not installed
is skipped. LADE_MEGATRON names a checkout of Megatron-LM, whose parser is in no package.

Usage: exports.py LADE
"""
import dataclasses
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import shlex
import subprocess
import sys
import tempfile
import types
import typing
import unittest.mock

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


class Absent(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Modules of kernels for GPUs, which Megatron-LM imports and its parser does not use."""

    def find_spec(self, name, path=None, target=None):
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if name.split(".")[0] == "triton" else None

    def create_module(self, spec):
        module = unittest.mock.MagicMock(name=spec.name)
        module.__spec__, module.__path__, module.__name__, module.__version__ = spec, [], spec.name, "3.0"
        return module

    def exec_module(self, module):
        pass


def megatron_import(folder):
    """Return Megatron-LM's parser, on a machine without a GPU and a Python that may be older than it asks for."""
    import torch._dynamo
    import torch._inductor.compile_fx
    import torch.utils.flop_counter  # PyTorch's own imports go before the stubs
    sys.meta_path.append(Absent())
    sys.path.insert(0, folder)
    typing.override = getattr(typing, "override", lambda function: function)
    from megatron.training import arguments
    arguments.get_device_arch_version = lambda: 9
    os.environ.update(RANK="0", LOCAL_RANK="0", CUDA_DEVICE_MAX_CONNECTIONS="1")
    return arguments


def megatron_takes_them(folder):
    arguments = megatron_import(folder)
    for layout in LAYOUTS:
        given = dict(zip(layout, layout[1:]))
        stages, replicas = int(given.get("--pp", 1)), int(given["--dp"])
        lines = [line for line in export("megatron", layout).splitlines() if not line.startswith("#")]
        words = [word for line in lines for word in shlex.split(line)]
        sys.argv = ["pretrain_gpt.py", *words, "--train-iters", "10", "--lr", "1e-4", "--tokenizer-type", "NullTokenizer",
                    "--vocab-size", "128256", "--mock-data"]
        os.environ["WORLD_SIZE"] = str(2 * stages * replicas)
        args = arguments.validate_args(arguments.parse_args())
        assert (args.tensor_model_parallel_size, args.pipeline_model_parallel_size, args.data_parallel_size) == (
            2, stages, replicas), (layout, words)
        assert (args.num_layers, args.num_query_groups, args.global_batch_size) == (32, 8, 256), (layout, words)
        assert args.sequence_parallel == ("--sequence-parallel" in layout), (layout, words)
        assert args.recompute_granularity == given["--recompute"], (layout, words)
        assert (args.virtual_pipeline_model_parallel_size or 1) == int(given.get("--virtual-stages", 1)), (layout, words)
        assert args.fp16 == ("fp16" in layout) and args.bf16 != args.fp16, (layout, words)


has = {name: importlib.util.find_spec(name) is not None for name in ("torch", "deepspeed", "torchtitan")}
MEGATRON = os.environ.get("LADE_MEGATRON")
if not has["torch"] or not (has["deepspeed"] or has["torchtitan"] or MEGATRON):
    print("SKIP: neither deepspeed nor torchtitan before 0.3 is installed beside torch, nor does LADE_MEGATRON name a "
          "checkout of Megatron-LM")
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
    if MEGATRON:
        megatron_takes_them(MEGATRON)
        print("megatron takes the exports")
