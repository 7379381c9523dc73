#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""lade plan over all ranks of a layout: one table, groups with their members, and an answer for every rank; and of one
rank that has host memory to spare.

Usage: plan_ranks.py LADE [large]
With large: all ranks of GPT-3 on 64 GPUs, and both ends of PTD's trillion parameters on 3072, through the executor.
"""
import contextlib
import json
import os
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "parallel"))
from plans import LADE, plan, plan_json, require

SMALL = ["--model", "nano", "--machine", "a100-40g", "--batch", "16", "--seq", "32", "--micro-batch", "2",
         "--host-budget", "0"]


def shards_of_gradients_cost_no_time():
    """ZeRO 1 and 2 send the same in a step of one microbatch, so their steps take the same within a few percent."""
    times = [plan_json("--machine", "a100-80g", "--model", "gpt2-350m", "--dp", "8", "--batch", "8", "--seq", "1024",
                       "--host-budget", "0", "--rank", "0", "--zero", zero)["predicted_step_seconds"]
             for zero in ("1", "2")]
    require(times[1] < 1.03 * times[0], "reductions of ZeRO 2 wait for one another", times)


LARGE = ["--machine", "h100-80g", "--model", "gpt2-1.5b", "--dp", "8", "--rank", "0"]


def zero_stages_take_the_same(batch, *host):
    """Both send the same in a step of one microbatch, and gather all weights beside the forward pass."""
    one, two = (plan_json(*LARGE, "--batch", batch, *host, "--zero", zero) for zero in ("1", "2"))
    require(abs(two["predicted_step_seconds"] / one["predicted_step_seconds"] - 1) < 0.01, "ZeRO 1 and 2 differ",
            (one["predicted_step_seconds"], two["predicted_step_seconds"]))
    weight_bytes = 2 * 1557611200 * 7 // 8  # BF16, without this rank's own block
    for stage in (one, two):
        require(0 <= stage["forward_gather_bytes"] - weight_bytes < weight_bytes // 100,
                "weights are not gathered beside the forward pass", stage["forward_gather_bytes"])


def zero_stages_take_the_same_on_the_device():
    zero_stages_take_the_same("8", "--host-budget", "0")
    for zero in ("1", "2"):
        require("weights gathered beside the forward pass: " in plan(*SMALL, "--dp", "2", "--zero", zero).stdout,
                "gathers are hidden", zero)


def zero_stages_take_the_same_with_a_host():
    zero_stages_take_the_same("8")
    zero_stages_take_the_same("32")


def host_memory_makes_no_step_slower():
    """A step of many microbatches has few trajectories; one of them uses no tier, another prices exposed updates."""
    step = ["--model", "gpt2-124m", "--machine", "h100-80g", "--seq", "1024", "--batch", "256", "--micro-batch", "16",
            "--budget", "70%"]
    alone, offered = plan_json(*step, "--host-budget", "0"), plan_json(*step)
    require(offered["slowdown"] <= alone["slowdown"] < 1.15, "host memory makes a step slower",
            (offered["slowdown"], alone["slowdown"]))


def every_rank_is_in_the_table():
    layout = ["--tp", "2", "--pp", "2", "--dp", "2"]
    whole = plan_json(*SMALL, *layout)
    stages = whole["by_stage"]
    require([stage["rank"] for stage in stages] == [0, 4] and all(stage["ranks_alike"] == 4 for stage in stages)
            and whole["fits"], "ranks are missing", stages)
    for rank in (3, 6):
        alone = plan_json(*SMALL, *layout, "--rank", str(rank))
        stage = stages[rank // 4]
        require(alone["planned_peak_bytes"] == stage["ledger"]["total"] and alone["comm_bytes"] == stage["comm_bytes"]
                and "by_stage" not in alone, f"rank {rank} has another plan than its stage", (alone, stage))
    totals = sorted(stage["ledger"]["total"] for stage in stages)
    spread = whole["ledger_over_ranks"]["total"]
    require(spread == {"min": totals[0], "median": sum(totals) // 2, "max": totals[1]}, "the spread is wrong", spread)
    require(sum(stages[0]["ledger"][owner] for owner in stages[0]["ledger"] if owner != "total")
            == stages[0]["ledger"]["total"], "a ledger does not sum to its peak", stages[0])
    require(whole["groups"]["tp"]["members"] == [[0, 1], [2, 3], [4, 5], [6, 7]]
            and whole["groups"]["pp"]["members"] == [[0, 4], [1, 5], [2, 6], [3, 7]], "groups", whole["groups"])
    require(0 < whole["bubble"] < 1 and 0 < whole["exposed_communication"] < 1
            and whole["all_ranks_step_seconds"] > max(s["predicted_step_seconds"] for s in stages), "times", whole)
    text = plan(*SMALL, *layout, "--detail").stdout
    require("{0 4} {1 5} {2 6} {3 7}" in text and "all ranks     a step of" in text and "; bubble" in text, "the table",
            text)


def ranks_of_a_stage_have_one_program():
    """Every instruction, its queue and its time: the plan of one of them holds for all."""
    timelines = []
    with tempfile.TemporaryDirectory() as directory:
        for rank in ("0", "1", "2", "3"):
            path = os.path.join(directory, rank)
            plan(*SMALL, "--tp", "2", "--dp", "2", "--zero", "1", "--rank", rank, "--timeline", path)
            with open(path, "rb") as file:
                timelines.append(file.read())
    require(len(timelines[0]) > 10000 and len(set(timelines)) == 1, "ranks of a stage have other programs")


def every_rank_builds_its_own():
    """From its own graph, with the same messages and needs as its stage's first rank."""
    for layout, n in ((["--tp", "2", "--pp", "2", "--dp", "2", "--sequence-parallel"], 4),
                      (["--dp", "4", "--shard", "2", "--zero", "3", "--recompute", "none"], 4)):
        for device in ("dry", "host"):
            first = plan_json(*SMALL, *layout, "--device", device)
            every = plan_json(*SMALL, *layout, "--device", device, "--every-rank")
            require(all(stage["ranks_built"] == n for stage in every["by_stage"])
                    and all(stage["ranks_built"] == 1 for stage in first["by_stage"]), "ranks are left out", every)
            require([stage["ledger"] for stage in every["by_stage"]] == [stage["ledger"] for stage in first["by_stage"]],
                    "another plan", every)
    require("each rank's own program" in plan(*SMALL, "--dp", "2", "--every-rank").stdout, "it is not said")
    plan(*SMALL, "--dp", "2", "--every-rank", "--rank", "1", code=2)


def the_screen_shows_the_plan():
    """On a terminal, in a line that is removed again; never among the results, and not with --quiet."""
    stages, largest = ["--pp", "2"], ["--max", "layers", "--budget", "16MiB"]
    for extra, words in ((stages, "planning the ranks of stage 2 of 2"), ([*stages, "--quiet"], ""),
                         (largest, "planning with --layers 2"), ([*largest, "--quiet"], "")):
        terminal, side = os.openpty()
        result = subprocess.run([LADE, "plan", "--json", *SMALL, *extra], stdout=subprocess.PIPE, stderr=side,
                                check=True)
        os.close(side)
        shown = b""
        with contextlib.suppress(OSError):  # the end of a terminal without an open reader
            while more := os.read(terminal, 4096):
                shown += more
        os.close(terminal)
        require(json.loads(result.stdout)["schema_version"] and (words.encode() in shown and shown.endswith(b"\r\x1b[K") if words
                                                       else not shown), "what is planned is not shown", shown)


def a_rank_that_does_not_fit_is_named():
    arguments = ["--model", "gpt2-124m", "--layers", "2", "--batch", "4", "--micro-batch", "2", "--seq", "64",
                 "--tp", "2", "--pp", "2", "--machine", "a100-40g"]
    least = [plan_json(*arguments, "--rank", rank)["min_budget_bytes"] for rank in ("0", "3")]
    require(least[0] < least[1], "stages need the same", least)
    for device in ("host", "dry"):
        result = plan("--json", *arguments, "--budget", str(least[0]), "--device", device, code=3)
        whole = json.loads(result.stdout)
        require(not whole["fits"] and [stage["fits"] for stage in whole["by_stage"]] == [True, False],
                "ranks that do not fit are not distinguished", whole["by_stage"])
        require("rank 2 does not fit" in result.stderr, "the rank is not named", result.stderr)


def the_smallest_budget_is_one_that_fits():
    """One chunk: only a longer search packs the state found for it."""
    small = ["--model", "nano", "--layers", "2", "--batch", "16", "--micro-batch", "2", "--machine", "a100-40g",
             "--dp", "2", "--zero", "3", "--rank", "1"]
    rank = plan_json(*small, "--budget", "min")
    require(rank["planned_peak_bytes"] == rank["min_budget_bytes"], "the smallest budget is not used", rank)


def ranks_of_a_node_share_its_host():
    arguments = [*SMALL[:-2], "--tp", "2", "--recompute", "none", "--host-budget", "64MiB"]
    require(plan_json(*arguments, "--node-ranks", "2")["host_budget_bytes"] == 32 << 20
            and plan_json(*arguments)["host_budget_bytes"] == 32 << 20  # the two ranks of a described node
            and plan_json(*arguments, "--node-ranks", "1")["host_budget_bytes"] == 64 << 20,
            "the host's budget is not shared")
    here = [word for word in arguments if word not in ("--machine", "a100-40g")]
    require(plan_json(*here)["host_budget_bytes"] == 32 << 20, "a plan for this machine is not of all its ranks")


def places_are_those_of_a_rank():
    """With everything on the device, the reported units add up to the ledger, except for the padding of pages."""
    for zero in ("1", "3"):
        rank = plan_json("--model", "nano", "--machine", "a100-40g", "--batch", "8", "--seq", "32", "--dp", "4",
                         "--zero", zero, "--rank", "1", "--host-budget", "0", "--recompute", "none")
        for what, owner in (("parameters", "parameters"), ("optimizer state", "optimizer_state")):
            held = sum(choice["bytes"] for unit in rank["residency"] for choice in unit["choices"]
                       if choice["what"] == what)
            require(0.75 * rank["ledger"]["device"][owner] < held <= rank["ledger"]["device"][owner],
                    f"zero {zero}: the {what} of units are not the rank's", (held, rank["ledger"]["device"]))


def listed_choices_are_lines_of_a_residency_file():
    """Every line of the listing is a line of a residency file, which then fixes everything listed."""
    arguments = [*SMALL[:-2], "--host-budget", "64MiB"]
    words = {"parameters": "weights", "optimizer state": "optimizer"}
    lines = []
    for unit in plan_json(*arguments, "--budget", "60%")["residency"]:
        for choice in unit["choices"]:
            what, where = choice["what"], choice["where"]
            lines.append(f"{words[what]} {unit['unit']} {where}\n" if what in words else f"{what} {where}\n")
    require("ln_1 keep\n" in lines or "ln_1 host\n" in lines or "ln_1 recompute\n" in lines, "no ln_1", lines)
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "places")
        with open(path, "w", encoding="utf-8") as file:
            file.writelines(lines)
        for unit in plan_json(*arguments, "--residency", path)["residency"]:
            for choice in unit["choices"]:
                require("fixed by the residency file" in choice["reason"], "what is listed cannot be written", choice)


def a_line_may_be_about_another_stage():
    """A line of a residency file: other stages ignore it, and a spelling mistake is an error at every rank."""
    arguments = [*SMALL[:-2], "--host-budget", "64MiB", "--pp", "2"]
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "places")
        for lines, code in (("h.0 recompute\noptimizer h.3.* host\n", 0), ("h.0 recompute\nh.4 recompute\n", 2)):
            with open(path, "w", encoding="utf-8") as file:
                file.write(lines)
            for rank, unit, what in (("0", "h.0", "mlp.gelu"), ("1", "h.3", "optimizer state")):
                result = plan("--json", *arguments, "--residency", path, "--rank", rank, code=code)
                if code:
                    require("line 2: the pattern matches nothing in this model" in result.stderr, "no reason", result.stderr)
                    continue
                fixed = [(place["unit"], choice["what"]) for place in json.loads(result.stdout)["residency"]
                         for choice in place["choices"] if "fixed by the residency file" in choice["reason"]]
                require((unit, what) in fixed and {place[0] for place in fixed} == {unit}, "another place is fixed", fixed)


def copies_of_kv_heads_have_blocks_of_their_own():
    """Scales of 8-bit moments over both own and shared rows would let copies drift apart, until saves are refused."""
    model = {"model_type": "llama", "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 1,
             "hidden_size": 100, "intermediate_size": 64, "max_position_embeddings": 32, "vocab_size": 256}
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "config.json")
        arguments = ["--model", path, "--machine", "a100-40g", "--batch", "4", "--tp", "4"]
        for head_dim, moments, code in ((22, "8bit", 2), (22, "bf16", 0), (32, "8bit", 0)):
            with open(path, "w", encoding="utf-8") as file:
                json.dump({**model, "head_dim": head_dim}, file)
            err = plan(*arguments, "--moments", moments, code=code).stderr
            require(code == 0 or "within a block of 128 elements" in err and "--tp 1 at most" in err, "no reason", err)


def all_ranks_of_gpt3_run_dry():
    whole = plan_json("--model", "gpt3-175b", "--batch", "32", "--micro-batch", "1", "--seq", "2048", "--tp", "8",
                      "--pp", "8", "--machine", "h100-80g", "--device", "dry", "--every-rank")
    require(whole["ranks"] == 64 and sum(stage["ranks_built"] for stage in whole["by_stage"]) == 64, "a rank is missing",
            whole)
    for stage in whole["by_stage"]:
        require(stage["measured_peak_bytes"] == stage["ledger"]["total"] > 40 << 30, "a peak is not as planned", stage)
        require(abs(stage["dry_step_seconds"] - stage["predicted_step_seconds"]) < 0.01 * stage["dry_step_seconds"],
                "a dry step is not as predicted", stage)
    held = [stage["ledger"]["saved_activations"] for stage in whole["by_stage"]]
    require(held == sorted(held, reverse=True), "later stages hold more microbatches", held)
    require(0.15 < whole["bubble"] < 0.35, "a bubble far from 7/32", whole["bubble"])


def both_ends_of_a_trillion_run_dry():
    for rank in ("0", "3071"):
        end = plan_json("--model", "gpt-1t", "--batch", "3072", "--micro-batch", "1", "--seq", "2048", "--tp", "8",
                        "--pp", "64", "--dp", "6", "--machine", "a100-80g", "--device", "dry", "--rank", rank)
        require(end["ranks"] == 3072 and end["fits"] and end["dry_step_seconds"] > 60, "an end does not run", end)


TESTS = [every_rank_is_in_the_table, shards_of_gradients_cost_no_time, zero_stages_take_the_same_on_the_device,
         host_memory_makes_no_step_slower, every_rank_builds_its_own, ranks_of_a_stage_have_one_program, the_screen_shows_the_plan,
         a_rank_that_does_not_fit_is_named,
         the_smallest_budget_is_one_that_fits, ranks_of_a_node_share_its_host, places_are_those_of_a_rank,
         listed_choices_are_lines_of_a_residency_file, a_line_may_be_about_another_stage,
         copies_of_kv_heads_have_blocks_of_their_own]
if sys.argv[2:] == ["large"]:
    TESTS = [all_ranks_of_gpt3_run_dry, both_ends_of_a_trillion_run_dry,
             zero_stages_take_the_same_with_a_host]
for test in TESTS:
    test()
    print("ok", test.__name__, flush=True)
