#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Mixtures of experts are planned, and not trained. Usage: experts.py LADE"""
import json
import os
import subprocess
import sys
import tempfile

LADE = os.path.abspath(sys.argv[1])
SCRATCH = tempfile.TemporaryDirectory(prefix="lade-experts-")  # removed with the process
os.chdir(SCRATCH.name)
os.environ["XDG_CACHE_HOME"] = os.getcwd()
H100 = ["--machine", "h100-80g"]
SMALL = {"model_type": "qwen3_moe", "vocab_size": 512, "max_position_embeddings": 256, "hidden_size": 128,
         "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
         "intermediate_size": 256, "moe_intermediate_size": 64, "num_experts": 8, "num_experts_per_tok": 2}
# Layers of this model have no experts at all: they are Llama's.
DENSE = {"model_type": "qwen2_moe", "qkv_bias": False, "vocab_size": 128256, "max_position_embeddings": 8192,
         "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
         "intermediate_size": 14336, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16,
         "num_experts": 2, "num_experts_per_tok": 1, "decoder_sparse_step": 100}


def run(*words):
    result = subprocess.run([LADE, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False,
                            stdin=subprocess.DEVNULL)
    return result.returncode, result.stdout, result.stderr


def plan(*words, code=0):
    got, out, err = run("plan", "--json", *words)
    assert got == code, (words, got, err)
    return json.loads(out)


def refused(code, *words, says):
    got, out, err = run(*words)
    assert got == code and not out and len(err.splitlines()) == 1, (words, got, out, err)
    for part in says:
        assert part in err, (part, err)


def counts_are_printed():
    mixtral = plan("--model", "mixtral-8x7b", "--batch", "1", *H100)
    assert mixtral["parameters"] == 46702792704 and mixtral["active_parameters"] == 12879925248, mixtral
    assert mixtral["trainable"] is False and mixtral["fits"] and mixtral["expert_rows"] == 256, mixtral
    llama = plan("--model", "llama3-8b", "--batch", "1", "--budget", "min", "--host-budget", "0", *H100)
    assert llama["parameters"] == llama["active_parameters"] == 8030261248 and llama["trainable"] is True, llama
    os.mkdir("small")
    with open("small/config.json", "w", encoding="ascii") as file:
        json.dump(SMALL, file)
    small = plan("--model", "small", "--layers", "2", "--batch", "2", *H100)
    norms, experts = 2 * 128 + 2 * 32, 8 * 3 * 128 * 64
    layer = 128 * 32 * (4 + 2 + 2 + 4) + norms + 8 * 128 + experts
    assert small["parameters"] == 2 * 512 * 128 + 128 + 2 * layer, small
    assert small["active_parameters"] == small["parameters"] - 2 * experts * 6 // 8, small
    code, out, _ = run("plan", "--model", "small", *H100)
    assert code == 0 and "planned, not trained" in out and max(map(len, out.splitlines())) <= 100, out


def a_dense_step_costs_what_the_other_planner_says():
    """Without experts the step is a Llama's: memory within a percent of its own plan, time within a percent. Its head
    makes the logits of the backward half again."""
    with open("again", "w", encoding="ascii") as file:
        file.write("loss.logits recompute\n")
    with open("dense.json", "w", encoding="ascii") as file:
        json.dump(DENSE, file)
    for shape in (["--batch", "1", "--seq", "2048"], ["--batch", "4", "--micro-batch", "2", "--seq", "4096"]):
        graph = plan("--model", "dense.json", *shape, *H100)
        model = plan("--model", "llama3-8b", "--budget", "400GiB", "--residency", "again", *shape, *H100)
        pairs = ((graph["unconstrained_bytes"], model["unconstrained_bytes"]),
                 (graph["predicted_step_ns"] / 1e9, model["unconstrained_step_seconds"]))
        for ours, theirs in pairs:
            assert abs(ours - theirs) <= 0.01 * theirs, (shape, pairs)


def budgets_and_loads_count():
    small = ["--model", "small", "--batch", "32", "--seq", "256", *H100]
    free, full = plan(*small), plan(*small, "--expert-capacity", "4")
    assert full["unconstrained_bytes"] > free["unconstrained_bytes"], (full, free)
    assert full["expert_rows"] == 32 * 256 and free["expert_rows"] == 32 * 256 // 4, (full, free)
    tight = plan(*small, "--budget", "60%", "--iterations", "2000")
    assert tight["planned_peak_bytes"] <= 0.6 * free["unconstrained_bytes"] and tight["n_redone"] > 0, tight
    assert tight["predicted_step_ns"] > free["predicted_step_ns"], (tight, free)
    again = plan(*small, "--budget", "60%", "--iterations", "2000")
    del tight["seconds"], again["seconds"]
    assert again == tight, "a plan is another one the second time"
    for name, words in (("small", "; the device has 80.0 GiB\n"), ("mixtral-8x7b", "which is less: --budget 100%dev\n")):
        result = subprocess.run([LADE, "plan", "--model", name, "--batch", "1", *H100], stdout=subprocess.PIPE, text=True,
                                check=True)
        assert "no --budget to fit into" in result.stdout and words in result.stdout, result.stdout
    none = plan(*small, "--budget", "1MiB", "--iterations", "1000", code=3)
    assert not none["fits"] and none["parameters"] == free["parameters"], none
    assert plan("--model", "small", "--batch", "2")["is_measured"], "this machine is not measured"


def the_rest_is_refused():
    refused(2, "train", "--model", "deepseek-v3", "--data", "small/config.json",
            says=["deepseek-v3 is a mixture of experts", "lade plan --model deepseek-v3"])
    refused(2, "train", "--model", "small", "--data", "small/config.json", says=["mixture of experts", "not trained"])
    refused(2, "plan", "--model", "small", "--tp", "2", says=["--tp: a mixture of experts"])
    refused(2, "plan", "--cluster", "dgx-h100", "--ranks", "8", "--model", "olmoe-1b-7b", says=["--cluster: a mixture"])
    refused(2, "plan", "--model", "small", "--expert-capacity", "5", says=["at 4 an expert has room for all tokens"])
    refused(2, "plan", "--model", "small", "--seq", "257", *H100, says=["longer than the context of 256"])
    refused(2, "plan", "--model", "nano", "--seconds", "1", says=["--seconds needs --graph"])
    refused(2, "plan", "--model", "nano", "--expert-capacity", "2", says=["--expert-capacity", "mixture of experts"])
    with open("bad.json", "w", encoding="ascii") as file:
        json.dump({**SMALL, "num_experts_per_tok": 9}, file)
    for words in (["plan"], ["plan", "--seconds", "1"]):
        refused(2, *words, "--model", "bad.json", says=["num_experts_per_tok is 9", "at most the number of experts"])


for test in (counts_are_printed, a_dense_step_costs_what_the_other_planner_says, budgets_and_loads_count,
             the_rest_is_refused):
    test()
