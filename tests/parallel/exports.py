#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""lade plan --export: DeepSpeed's, torchtitan's and Megatron-LM's own parsers take what Lade writes, and PyTorch's
fully_shard runs it. A project that is not installed is skipped by name. LADE_MEGATRON names a checkout of Megatron-LM,
whose parser is in no package.

Usage: exports.py LADE
"""
import ast
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


def torchtitan_py_takes_them():
    """Its configurations are dataclasses with slots: a setting that they lack raises an error."""
    place = list(importlib.util.find_spec("torchtitan").submodule_search_locations)[0]
    name = "torchtitan_configs"
    spec = importlib.util.spec_from_file_location(name, os.path.join(place, "config", "configs.py"))
    configs = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(configs)
    with open(os.path.join(place, "distributed", "activation_checkpoint.py"), encoding="utf-8") as file:
        policies = {node.name for node in ast.parse(file.read()).body if isinstance(node, ast.ClassDef)}
    for layout in [*LAYOUTS, ["--dp", "32", "--zero", "1", "--recompute", "none"]]:
        text, recompute = export("torchtitan-py", layout), layout[layout.index("--recompute") + 1]
        policy = {"full": "FullAC", "selective": "SelectiveAC", "none": None}[recompute]
        assert policy in policies | {None}, policies
        stub = types.ModuleType("torchtitan.distributed.activation_checkpoint")
        setattr(stub, policy or "unused", types.SimpleNamespace(Config=lambda name=policy: name))
        config = types.SimpleNamespace(training=configs.TrainingConfig(), parallelism=configs.ParallelismConfig())
        scope = {}
        with unittest.mock.patch.dict(sys.modules, {stub.__name__: stub}):
            exec(compile(text, "lade_layout.py", "exec"), scope)  # pylint: disable=exec-used
            assert scope["apply"](config) is config, text
        parallel = config.parallelism
        replicas = parallel.data_parallel_replicate_degree * parallel.data_parallel_shard_degree
        assert replicas == int(layout[layout.index("--dp") + 1]) and parallel.tensor_parallel_degree == 2, (layout, config)
        assert parallel.enable_sequence_parallel == ("--sequence-parallel" in layout), (layout, config)
        assert config.training.global_batch_size == 256 and config.activation_checkpoint == policy, (layout, config)


FSDP2 = """
import sys, torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.testing._internal.distributed.fake_pg import FakeStore

def model_make():
    torch.manual_seed(0)
    model = torch.nn.Module()
    model.layers = torch.nn.ModuleList(torch.nn.Linear(64, 64) for _ in range(2))
    model.head = torch.nn.Linear(64, 64)
    model.forward = lambda x: model.head(model.layers[1](model.layers[0](x)))
    return model

def step(model, before):
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        model(torch.ones(4, 64)).float().square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert any((p.full_tensor() != old).any() for p, old in zip(model.parameters(), before)), "no step was made"

for path, world in zip(sys.argv[1::2], map(int, sys.argv[2::2])):
    if world == 1:
        dist.init_process_group("gloo", init_method="file://" + path + ".store", rank=0, world_size=1)
    else:  # collectives that move nothing, for a mesh of many ranks in one process
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=world)
    scope = {"model": model_make()}
    model, before = scope["model"], [p.detach().clone() for p in scope["model"].parameters()]
    exec(compile(open(path, encoding="utf-8").read().replace('"cuda"', '"cpu"'), path, "exec"), scope)
    assert all(isinstance(block, FSDPModule) for block in (model, *model.layers)), model
    for p, whole in zip(model.parameters(), before):
        assert isinstance(p, DTensor) and p.device_mesh.mesh_dim_names == ("replicate", "shard"), p
        assert p.to_local().numel() * scope["mesh"]["shard"].size() == whole.numel(), (p, whole)
    if world == 1:
        step(model, before)
    print(*scope["mesh"].shape)
    dist.destroy_process_group()
"""


def fsdp2_takes_them(directory):
    """Each layout on a mesh of all its ranks without a network, and one rank's with two steps over gloo."""
    program, words, meshes = os.path.join(directory, "fsdp2.py"), [], []
    with open(program, "w", encoding="utf-8") as file:
        file.write(FSDP2)
    for layout in [*LAYOUTS[:3], ["--tp", "1", "--dp", "1", "--zero", "0", "--recompute", "none"]]:
        given = {"--tp": "2", "--pp": "1", **dict(zip(layout, layout[1:]))}
        tp, pp, dp = (int(given[name]) for name in ("--tp", "--pp", "--dp"))
        shard = int(given.get("--shard", dp))
        words += [os.path.join(directory, f"fsdp2-{len(meshes)}.txt"), str(tp * pp * dp)]
        meshes.append(f"{pp} {dp // shard} {shard} {tp}")
        with open(words[-2], "w", encoding="utf-8") as file:
            file.write(export("fsdp2", layout))
    done = subprocess.run([sys.executable, program, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and done.stdout.split("\n")[:-1] == meshes, (done.stdout, done.stderr[-2000:])


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


def is_here(name, *parts):
    """True if package @name is installed, with the file @parts."""
    found = importlib.util.find_spec(name)
    places = list(found.submodule_search_locations or []) if found else []
    return any(os.path.exists(os.path.join(place, *parts)) for place in places)


MEGATRON = os.environ.get("LADE_MEGATRON")
if not is_here("torch"):
    print("SKIP: torch is not installed, which every parser needs")
    sys.exit(77)
with tempfile.TemporaryDirectory(prefix="lade-exports-") as scratch:
    checks = [("fully_shard", is_here("torch", "distributed", "fsdp", "_fully_shard"), "torch 2.6 or later is not installed",
               lambda: fsdp2_takes_them(scratch)),
              ("deepspeed", is_here("deepspeed"), "it is not installed", deepspeed_takes_them),
              ("torchtitan", is_here("torchtitan", "config", "job_config.py"), "no version with TOML, 0.2, is installed",
               lambda: torchtitan_takes_them(scratch)),
              ("torchtitan-py", is_here("torchtitan", "config", "configs.py"), "no version with Python, 0.3, is installed",
               torchtitan_py_takes_them),
              ("megatron", MEGATRON, "LADE_MEGATRON names no checkout of it", lambda: megatron_takes_them(MEGATRON))]
    for project, has_parser, reason, check in checks:
        if has_parser:
            check()
        print(f"{project} takes the exports" if has_parser else f"SKIP: {project}: {reason}")
    if not any(has_parser for _, has_parser, _, _ in checks):
        sys.exit(77)
