#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Several ranks train one model: the losses of one rank, one message, and a clear end after any failure.

Usage: ranks.py LADE PLUGIN [long]

With long the slower tests: every axis and schedule, their saves, budgets, slow ends.
"""
import array
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

import jobs
from jobs import losses, require

LADE = os.path.abspath(sys.argv[1])
ENVIRONMENT = jobs.environment(sys.argv[2])
PATIENCE = jobs.PATIENCE
DATA = "text.txt"
IS_LONG = sys.argv[3:] == ["long"]
STEADY = ["--model", "nano", "--dtype", "fp32", "--batch", "8", "--seq", "32", "--lr", "1e-4", "--min-lr", "1e-4",
          "--warmup", "0", "--eval-iters", "1", "--quiet", "--machine", "a100-40g"]


def command(ranks, *arguments):
    return jobs.command(LADE, ranks, "--data", DATA, *STEADY, *arguments)


def run_line(*words):
    return jobs.run(words, ENVIRONMENT)


def run(ranks, *arguments):
    return run_line(*command(ranks, *arguments))


def summary(ranks, *arguments):
    code, out, err = run(ranks, "--json", *arguments)
    require(code == 0, f"{ranks} ranks end with {code}", err)
    return json.loads(out)


def same_losses():
    """Replicas share the batch, and their losses are those of one rank that has all of it."""
    for extra in ([], ["--micro-batch", "2"], ["--dropout", "0.1"], ["--clip", "0"]) if IS_LONG else (
            ["--micro-batch", "2", "--dropout", "0.1"],):
        compare(2, ["--dp", "2"], extra)


def compare(ranks, layout, extra):
    """Losses of @ranks are those of one rank; every rank's peak is as planned."""
    summary(0, "--steps", "4", "--log", "one.log", *extra)
    many = summary(ranks, "--steps", "4", "--log", "many.log", *layout, *extra)
    require(many["ranks"] == ranks and many["planned_peak_bytes_by_rank"] == many["measured_peak_bytes_by_rank"]
            and len(many["planned_peak_bytes_by_rank"]) == ranks, "planned and measured peaks differ", many)
    require(many["bubble"] >= 0 and ("--pp" in layout or many["bubble"] == 0), "a bubble without stages", many)
    pairs = list(zip(losses("one.log"), losses("many.log")))
    require(len(pairs) == 4, "the log has other steps than the run", pairs)
    for a, b in pairs:
        require(abs(a - b) <= 1e-5 * abs(a), f"losses differ with {layout} {extra}", pairs)


def every_axis():
    """Tensor, sequence and pipeline parallel, shards, and all of them together."""
    for ranks, layout in (
            (2, ["--dp", "2", "--zero", "1"]),
            (2, ["--dp", "2", "--zero", "2"]),
            (2, ["--dp", "2", "--zero", "3"]),
            (4, ["--dp", "4", "--zero", "3", "--shard", "2"]),
            (2, ["--tp", "2"]),
            (2, ["--tp", "2", "--sequence-parallel"]),
            (2, ["--pp", "2"]),
            (2, ["--pp", "2", "--schedule", "zbh1"]),
            (2, ["--pp", "2", "--schedule", "interleaved", "--virtual-stages", "2"]),
            (8, ["--tp", "2", "--pp", "2", "--dp", "2", "--zero", "1"])):
        compare(ranks, layout, ["--micro-batch", "2"])


def plans_name_their_rank():
    """Planning needs no ranks; each stage has a plan of its own."""
    def plan(*arguments):
        result = subprocess.run([LADE, "plan", "--model", "nano", "--machine", "a100-40g", "--batch", "8", "--seq", "32",
                                 "--micro-batch", "2", "--tp", "2", "--pp", "2", *arguments], stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, text=True, timeout=PATIENCE, check=False)
        require(result.returncode == 0, f"no plan for {arguments}", result.stderr)
        return result.stdout
    first, last = json.loads(plan("--json")), json.loads(plan("--json", "--rank", "3"))
    require(first["ranks"] == last["ranks"] == 4 and first["layout"] == "tp2 pp2, 1f1b" and first["rank"] == 0
            and last["rank"] == 3, "a plan does not say whose it is", (first, last))
    require(set(last["comm_bytes"]) >= {"tp", "pp"} and first["ledger"] != last["ledger"],
            "stages have one plan", last["comm_bytes"])
    require("4 (tp2 pp2, 1f1b); this is rank 3; a step sends" in plan("--rank", "3"), "the layout is not stated", "")
    with open("drop.txt", "w", encoding="ascii") as file:
        file.write("copies * drop\n")
    shards = ["--json", "--dp", "2", "--zero", "3"]
    kept, dropped = json.loads(plan(*shards)), json.loads(plan(*shards, "--residency", "drop.txt"))
    require(kept["comm_bytes"]["shard"] < dropped["comm_bytes"]["shard"], "weights are gathered as often with room",
            (kept["comm_bytes"], dropped["comm_bytes"]))


def plans_are_those_that_run():
    """Plans of each rank, with the threads that it will have; the job's figures are the largest of any rank."""
    with open("small.json", "w", encoding="ascii") as file:
        json.dump({"model_type": "llama", "vocab_size": 1000, "max_position_embeddings": 64, "hidden_size": 64,
                   "num_hidden_layers": 6, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 192,
                   "rms_norm_eps": 1e-5, "hidden_act": "silu", "tie_word_embeddings": False}, file)
    with open("small.bin", "wb") as file:
        array.array("H", (i * i % 997 for i in range(20000))).tofile(file)
    described = ["--machine", "a100-40g"]
    for extra in ([], described, [*described, "--threads", "2"]):
        options = ["--model", "small.json", "--dtype", "fp32", "--grad-dtype", "bf16", "--batch", "24", "--micro-batch",
                   "4", "--seq", "32", "--pp", "2", "--schedule", "zbh1", "--budget", "min", "--quiet", "--json", *extra]
        code, out, err = run_line(LADE, "plan", *options)
        require(code == 0, "no plan", err)
        plan = json.loads(out)
        code, out, err = run_line(LADE, "launch", "-n", "2", "--", "train", "--data", "small.bin", "--steps", "1",
                                  "--eval-iters", "1", *options)
        require(code == 0, "the plan does not run", err)
        ran = json.loads(out)
        same = ("budget_bytes", "min_budget_bytes", "lower_bound_bytes", "unconstrained_bytes")
        if extra:  # a rank's use of its budget depends on times, which may have been measured twice
            same += ("planned_peak_bytes_by_rank", "planned_peak_bytes")
        require(all(plan[name] == ran[name] for name in same), f"another plan runs with {extra}", (plan, ran))
        require(ran["planned_peak_bytes"] == ran["measured_peak_bytes"] == max(ran["measured_peak_bytes_by_rank"])
                and ran["planned_peak_bytes_by_rank"] == ran["measured_peak_bytes_by_rank"], "peaks", ran)
    require(len(set(ran["planned_peak_bytes_by_rank"])) == 2, "stages are alike: the first's is every rank's", ran)


def resumes(directory, ranks, layout, wanted):
    """Ranks of a layout resume from step 3 with the losses of one rank."""
    summary(ranks, "--steps", "5", "--resume", directory, "--log", "again.log", *layout)
    found = losses("again.log")
    require(len(found) == 2 and all(abs(a - b) <= 1e-5 * abs(b) for a, b in zip(found, wanted)),
            f"{layout} goes on from {directory} with other losses", (found, wanted))
    os.remove("again.log")


def every_layout_is_saved_and_resumed():
    """A layout resumes one rank's checkpoint, and one rank resumes a layout's."""
    summary(0, "--steps", "3", "--save", "one")
    summary(0, "--steps", "5", "--log", "five.log")
    wanted = losses("five.log")[3:]
    for i, (ranks, layout) in enumerate(((2, ["--zero", "2"]), (2, ["--tp", "2"]), (2, ["--pp", "2"]))):
        resumes("one", ranks, layout, wanted)
        saved = summary(ranks, "--steps", "3", "--save", f"by{i}", "--save-file", "100KiB", *layout)
        again = summary(0, "--steps", "3", "--resume", f"by{i}")
        require(again["params_digest"] == saved["params_digest"], f"one rank loads other parameters of {layout}", again)
        resumes(f"by{i}", 0, [], wanted)


def shards_are_saved_whole():
    """A save does not change the numbers: a resumed run in shards equals the uninterrupted run."""
    summary(2, "--steps", "3", "--dp", "2", "--zero", "3", "--save", "three")
    whole = summary(2, "--steps", "5", "--dp", "2", "--zero", "3")
    again = summary(2, "--steps", "5", "--dp", "2", "--zero", "3", "--resume", "three")
    require(again["params_digest"] == whole["params_digest"], "a save of shards goes on with other numbers", again)


def a_store_changes_no_number(ranks, layout):
    """Each rank's blocks are in a store of its own: the same bits, peaks as planned, saves that one rank loads."""
    os.makedirs("drive", exist_ok=True)
    saved = "stored" + "".join(layout)
    with open("stored.txt", "w", encoding="ascii") as file:
        file.write("weights * store\n")
    store = ["--store", "drive", "--allow-tmpfs", "--residency", "stored.txt"]
    whole = summary(ranks, "--steps", "3", *layout)
    stored = summary(ranks, "--steps", "3", "--save", saved, *layout, *store)
    require(stored["store_bytes"] > 0 and stored["store_written_bytes_per_step"] > 0, "nothing is in the store", stored)
    require(all(stored[name] == whole[name] for name in ("loss_digest", "params_digest")),
            f"{layout} in a store has other numbers", (stored, whole))
    require(stored["planned_peak_bytes_by_rank"] == stored["measured_peak_bytes_by_rank"],
            "planned and measured peaks differ with a store", stored)
    alone = summary(0, "--steps", "3", "--resume", saved)
    require(alone["params_digest"] == stored["params_digest"], "one rank loads other parameters from a store", alone)
    more = summary(ranks, "--steps", "5", "--resume", saved, *layout, *store)
    require(more["params_digest"] == summary(ranks, "--steps", "5", *layout)["params_digest"],
            f"{layout} goes on in a store with other numbers", more)


def shards_wait_in_a_store():
    a_store_changes_no_number(2, ["--zero", "3", "--micro-batch", "2"])


def shards_of_parts_wait_in_a_store():
    """Blocks of parts of tensor parallel ranks, and of stages, too."""
    a_store_changes_no_number(4, ["--tp", "2", "--dp", "2", "--zero", "1"])
    a_store_changes_no_number(4, ["--pp", "2", "--dp", "2", "--zero", "3", "--micro-batch", "2"])


def a_min_budget_changes_no_number(ranks, layout):
    """Blocks of gradients wait on the host between microbatches: the same bits, and every rank's peak is as planned."""
    arguments = ["--steps", "3", "--micro-batch", "1", *layout]
    whole, least = summary(ranks, *arguments), summary(ranks, *arguments, "--budget", "min")
    require(all(least[name] == whole[name] for name in ("loss_digest", "params_digest")),
            f"{layout} has other numbers in its least budget", (least, whole))
    require(least["planned_peak_bytes_by_rank"] == least["measured_peak_bytes_by_rank"]
            and max(least["planned_peak_bytes_by_rank"]) < min(whole["planned_peak_bytes_by_rank"]),
            "planned and measured peaks of the least budget differ", least)
    require(max(least["planned_peak_bytes_by_rank"]) <= least["budget_bytes"] == least["min_budget_bytes"],
            "the largest peak is over the stated budget", least)


def shards_in_their_min_budgets():
    a_min_budget_changes_no_number(2, ["--dp", "2", "--zero", "2"])


def shards_of_every_axis_in_their_min_budgets():
    for layout in (["--dp", "4", "--zero", "2"], ["--dp", "4", "--zero", "3", "--shard", "2"],
                   ["--tp", "2", "--dp", "2", "--zero", "3"], ["--pp", "2", "--dp", "2", "--zero", "2"],
                   ["--pp", "2", "--dp", "2", "--zero", "3"]):
        a_min_budget_changes_no_number(4, layout)


def refusals():
    """One line for all ranks, and the exit code of the error. With long each of them."""
    with open("drop.txt", "w", encoding="ascii") as file:
        file.write("copies * drop\n")
    for i, (arguments, code, words) in enumerate((
            (["--dp", "3"], 2, "dp 2 would use them all"),
            (["--batch", "9"], 2, "dp 2 does not divide --batch 9"),
            (["--micro-batch", "3"], 2, "these do: 1, 2, 4"),
            (["--budget", "1MiB"], 3, "rank 0: does not fit"),
            (["--dpp", "2"], 2, "did you mean --dp?"),
            (["--save", "/proc/none/x"], 2, "--save /proc/none/x"),
            (["--data", "absent.txt"], 2, "absent.txt"),
            (["--shard", "2"], 2, "shard 2 has no effect with zero 0: give zero 1, 2 or 3"),
            (["--tp", "2", "--zero", "1"], 2, "shards nothing"),
            (["--tp", "2", "--grad-reduce", "bf16"], 2, "has no effect with one replica"),
            (["--zero", "2", "--residency", "drop.txt"], 2, "with --zero 3"),
            (["--sequence-parallel"], 2, "give --tp N"),
            (["--device", "dry"], 2, "lade plan --device dry"))):
        if i % 2 and not IS_LONG:
            continue
        found, _, err = run(2, "--steps", "2", *arguments)
        lines = jobs.messages(err)
        require(found == code, f"{arguments} ends with {found}, not {code}", err)
        require(len(lines) == 1 and words in lines[0], f"{arguments} is not reported in one line", err)
    found, _, err = run(0, "--steps", "2", "--dp", "2")
    require(found == 2 and "lade launch -n 2" in err, "one process gets no advice to start two", err)


def differently(arguments, start=(LADE, "launch", "-n", "2", "--"), alike=tuple(command(0, "--steps", "2")[2:])):
    """Run two ranks, each with @alike and the shell's expansion of @arguments, in which $R is its number."""
    script = 'R=$OMPI_COMM_WORLD_RANK; "$0" train "$@" ' + arguments
    return subprocess.run([*start, "sh", "-c", script, LADE, *alike],
                          env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=PATIENCE,
                          check=False)


def one_rank_fails():
    """Before the first step and alone: all end with its one line and code. With long each under every launcher."""
    summary(0, "--steps", "1", "--save", "whole")
    for name in ("whole0", "whole1", "whole2"):
        shutil.copytree("whole/step-00000001", name)
    for name in ("kept0", "kept1"):
        os.mkdir(name)
        shutil.copy(DATA, f"{name}/data")
        shutil.copy("whole0/config.json", f"{name}/config.json")
        open(f"{name}/pins", "w", encoding="ascii").close()
    with open("whole2/state.json", "r+", encoding="utf-8") as state:
        state.truncate(100)
    mpirun = ("mpirun", "--oversubscribe", "--allow-run-as-root", "--mca", "mpi_yield_when_idle", "1", "-n", "3")
    starts = [(LADE, "launch", "-n", "3", "--"), mpirun]
    boot = "/proc/sys/kernel/random/boot_id"
    if subprocess.run(["unshare", "-m", "mount", "--bind", DATA, boot], check=False, capture_output=True).returncode == 0:
        for rank in range(3):
            with open(f"boot{rank}", "w", encoding="ascii") as file:
                file.write(f"{rank}d5f0c2e-0000-4000-8000-000000000000\n")
        elsewhere = f'mount --bind boot$OMPI_COMM_WORLD_RANK {boot} && exec "$0" "$@"'
        starts.append((*mpirun, "unshare", "-m", "sh", "-c", elsewhere))  # each on a machine of its own
    for i, (arguments, code, words) in enumerate((
            ("--data kept$R/data", 2, "rank 2: kept2/data: "),
            ("--model ./kept$R/config.json", 2, "rank 2: ./kept2/config.json: "),
            ("--residency kept$R/pins", 2, "rank 2: "),
            ("--store kept$R --allow-tmpfs", 2, "rank 2: store directory kept2: "),
            ("--resume whole$R", 5, "whole2/state.json is damaged"),
            ("--init $([ $R = 2 ] && echo kept0 || echo whole)", 2, "rank 2: "),
            ("--batch $((9 - (R == 2)))", 2, "rank 2: dp 3 does not divide --batch 8"),
            ("--device $([ $R = 2 ] && echo cuda:9 || echo host)", 2, "rank 2: --device selects a GPU"))):
        for start in starts if IS_LONG else [starts[i % len(starts)]]:
            result = differently("--batch 9 " + arguments, start)
            if result.returncode == -signal.SIGSEGV and "pmix_server_log_fn" in result.stderr:
                # Open MPI 4.1's mpirun itself, rarely, when it passes on MPI_Abort's message
                result = differently("--batch 9 " + arguments, start)
            lines = jobs.messages(result.stderr)
            is_one = len(lines) == 1 and lines[0].startswith("lade train: ") and words in lines[0]
            is_reported = "lade train: " in result.stderr if "unshare" in start else is_one  # each machine reports, at once
            require(result.returncode == code and is_reported, f"{arguments} of {start} ends with {result.returncode}",
                    result.stderr)


def disagreement():
    """A rank with other options is named, with its value. With long each kind of option."""
    shutil.copy(DATA, "data0")
    with open("data1", "w", encoding="ascii") as text:
        text.write(open(DATA, encoding="ascii").read().replace("bottles", "kettles"))
    summary(0, "--steps", "1", "--save", "given")
    for rank in (0, 1):
        with open(f"pins{rank}", "w", encoding="ascii") as file:
            file.write(f"copies * {('keep', 'drop')[rank]}\n")
        shutil.copytree("given/step-00000001", f"init{rank}")
    with open("init1/model.safetensors", "r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\x3c")
    for i, (arguments, words) in enumerate((
            ("--zero 3 --residency pins$R", "another file of --residency"),
            ("--init init$R", "other weights of --init"),
            ("--lr 1e-$((3 + R))", "--lr was 0.001 and is 0.0001"),
            ("--eval-iters $((2 + R))", "--eval-iters 3 instead of 2"),
            ("$([ $R = 0 ] || echo --evl-every 2)", "the options of rank 1 are refused: there is no option --evl-"),
            ("--eval-every $((2 + R))", "--eval-every 3 instead of 2"),
            ("--data data$R", "other validation data"),
            ("--dp $((2 - R)) --tp $((1 + R))", 'the layout "tp2", and the first rank "dp2"'),
            ("--device $([ $R = 0 ] && echo cuda:0 || echo host)", "selects the host, and a GPU at the first rank"),
            ("$([ $R = 0 ] || echo --optimizer-in-backward) --clip 0", "--optimizer-in-backward at one of them only"))):
        if i % 3 and not IS_LONG:
            continue
        result = differently(arguments)
        lines = jobs.messages(result.stderr)
        require(result.returncode in (1, 2) and len(lines) == 1 and "rank 1" in lines[0] and words in lines[0],
                f"ranks that disagree by {arguments} are not reported", result.stderr)
    alike = [word for word in command(0, "--steps", "2")[2:] if word not in ("--machine", "a100-40g")]
    for rank in (0, 1):
        result = differently(f"$([ $R = {rank} ] && echo --machine a100-40g)", alike=alike)
        lines = jobs.messages(result.stderr)
        require(result.returncode == 2 and len(lines) == 1 and "a --machine at one of them only" in lines[0],
                f"a --machine of rank {rank} alone is not reported", result.stderr)


def a_stage_is_decided_once():
    """By its first rank; a rank with a number of its own decides for itself, and the numbers are the same."""
    for ranks, layout, stages in ((2, ["--zero", "3"], 1), (4, ["--tp", "2", "--pp", "2", "--micro-batch", "2"], 2)):
        found = summary(ranks, "--steps", "1", "--budget", "60%", *layout)
        require(found["deciding_ranks"] == stages, f"{layout} is planned by other ranks than one of each stage", found)
        require(found["planned_peak_bytes_by_rank"] == found["measured_peak_bytes_by_rank"],
                f"{layout}: planned and measured peaks differ", found)
    both, each = (json.loads(differently(f"--zero 3 --json --budget 60% --host-budget {host}GiB").stdout)
                  for host in ("4", "$((4 + R))"))
    require((both["deciding_ranks"], each["deciding_ranks"]) == (1, 2), "the number of deciding ranks is wrong", (both, each))
    same = ("loss_digest", "params_digest", "planned_peak_bytes_by_rank", "measured_peak_bytes_by_rank", "comm_calls")
    require(all(both[name] == each[name] for name in same), "who follows has other numbers than who searches",
            (both, each))


def budgets_of_their_own():
    """Ranks that share collectives plan for the smallest budget among them."""
    result = differently("--zero 3 --json --budget $((160 - 60 * R))%")
    require(result.returncode == 0, "ranks with budgets of their own do not train", result.stderr)
    many = json.loads(result.stdout)
    whole = summary(2, "--steps", "2", "--zero", "3", "--budget", "100%")
    require(many["planned_peak_bytes_by_rank"] == many["measured_peak_bytes_by_rank"]
            == whole["planned_peak_bytes_by_rank"], "ranks of a stage plan for different budgets", many)


def help_is_given_once():
    code, out, _ = run(2, "--help")
    require(code == 0 and out.count("Usage: lade train") == 1, "each rank explains itself", out)


def a_signal_stops_all():
    """All stop after the same step; the save resumes with the numbers of an uninterrupted run."""
    job = jobs.Job(command(2, "--steps", "100000", "--log", "stopped.log", "--save", "saved"), ENVIRONMENT,
                   "stopped.log")
    job.until("step")
    job.process.send_signal(signal.SIGINT)
    _, err = job.process.communicate(timeout=PATIENCE)
    require(job.process.returncode == 128 + signal.SIGINT and "stopped after step" in err,
            "the job does not say that it was stopped", err)
    require("launch -n 2 -- train" in err, "the line that goes on starts one rank", err)
    step = int(re.search(r"stopped after step (\d+)", err)[1])
    more = str(step + 3)
    summary(2, "--steps", more, "--save", "resumed", "--resume", "saved")
    whole = summary(2, "--steps", more, "--log", "whole.log", "--save", "undisturbed")
    again = summary(2, "--steps", more, "--resume", "resumed")
    require(again["params_digest"] == whole["params_digest"] and again["loss_digest"] == whole["loss_digest"],
            "a job that was stopped goes on with other numbers", (again, whole))
    alone = summary(0, "--steps", more, "--resume", "undisturbed")
    require(alone["params_digest"] == whole["params_digest"], "one rank loads other parameters", alone)


def variables_of_any_launcher_are_understood():
    """Variables of srun and torchrun, set by hand; MPI knows its ranks from mpirun."""
    script = """R=$OMPI_COMM_WORLD_RANK
                unset OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_SIZE OMPI_COMM_WORLD_LOCAL_RANK OMPI_COMM_WORLD_LOCAL_SIZE
                export """
    for variables in ("SLURM_PROCID=$R SLURM_STEP_NUM_TASKS=2 SLURM_LOCALID=$R",
                      "RANK=$R WORLD_SIZE=2 LOCAL_RANK=$R LOCAL_WORLD_SIZE=2 MASTER_ADDR=localhost MASTER_PORT=29500"):
        code, out, err = jobs.run([LADE, "launch", "-n", "2", "--", "sh", "-c", script + variables + '; exec "$0" "$@"'] +
                                  command(0, "--steps", "2", "--json"), ENVIRONMENT)
        require(code == 0 and json.loads(out)["ranks"] == 2, f"{variables} are not understood", err)


def a_slow_save_is_waited_for():
    """A signal, sent like `timeout` to the job and then to its group, lets a step and a save of 3 s each finish."""
    with open("slow.txt", "w", encoding="ascii") as file:
        file.write("optimizer * host\n")
    job = subprocess.Popen(command(2, "--steps", "100000", "--residency", "slow.txt", "--link-rate", "1MiB",
                                   "--save", "slow", "--log", "slow.log"), env=ENVIRONMENT, stdout=subprocess.PIPE,
                           stderr=subprocess.PIPE, text=True, start_new_session=True)
    deadline = time.monotonic() + PATIENCE
    while not os.path.exists("slow.log") or '"eval"' not in open("slow.log", encoding="utf-8").read():
        require(job.poll() is None and time.monotonic() < deadline, "nothing is evaluated")
        time.sleep(0.05)
    job.send_signal(signal.SIGTERM)
    os.killpg(job.pid, signal.SIGTERM)
    _, err = job.communicate(timeout=PATIENCE)
    step = re.match(r"lade train: stopped after step (\d+) and saved", err)
    require(job.returncode == 128 + signal.SIGTERM and step and "lade launch:" not in err,
            f"a slow job ends with {job.returncode}", err)
    require(os.path.isdir(f"slow/step-{int(step[1]):08}"), "it is not saved", os.listdir("slow"))


def left_of(word):
    """Return the processes with @word on their command line."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            with open(f"/proc/{name}/cmdline", encoding="utf-8", errors="replace") as file:
                found += [name] if word in file.read() else []
    return found


def a_second_signal_ends_all():
    """Also processes that ranks leave behind; the code stays that of the first."""
    forever = f"1000.{os.getpid()}"
    script = f'"$0" "$@"; echo left; sleep {forever}; true'
    job = subprocess.Popen([LADE, "launch", "-n", "2", "--", "sh", "-c", script] + command(0, "--steps", "1"),
                           env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while job.stdout.readline() not in ("left\n", ""):
        pass
    for _ in range(100):
        job.send_signal(signal.SIGINT)
        try:
            job.wait(0.6)
            break
        except subprocess.TimeoutExpired:
            pass
    _, err = job.communicate(timeout=PATIENCE)
    require(job.returncode == 128 + signal.SIGINT, f"a job ends with {job.returncode}", err)
    require(not left_of(forever), "what ranks had started stays behind", left_of(forever))


def a_linked_trainer_has_ranks():
    """Ranks of lade/train.h train as the command's do; without them a job of several is refused."""
    program = os.path.join(os.path.dirname(LADE), "tests", "unit", "test-train")
    if not os.path.exists(program):
        return
    def linked(how):
        return jobs.run([LADE, "launch", "-n", "2", "--", program, how, DATA], ENVIRONMENT)
    code, out, err = linked("ranks")
    code_of_command, summary, _ = jobs.run([LADE, "launch", "-n", "2", "--", "train", "--data", DATA, "--batch", "4",
                                            "--zero", "1", "--steps", "3", "--quiet", "--json"], ENVIRONMENT)
    digest = json.loads(summary)["loss_digest"]
    require(code == code_of_command == 0 and out.split("\n")[:2] == [f"DIGEST {digest}"] * 2,
            f"a linked trainer ends with {code} and another digest than {digest}", out + err)
    code, out, err = linked("alone")
    require(code and (out + err).count("mpirun started 2 ranks of this program") == 1,
            "two trainings run in silence, or are refused twice", out + err)


with jobs.scratch():
    jobs.text_write(DATA)
    quick = (same_losses, plans_name_their_rank, plans_are_those_that_run, refusals, one_rank_fails, disagreement,
             help_is_given_once, a_signal_stops_all, a_linked_trainer_has_ranks)
    long = (same_losses, one_rank_fails, disagreement, refusals, shards_wait_in_a_store,
            shards_in_their_min_budgets, a_stage_is_decided_once, every_axis, every_layout_is_saved_and_resumed, shards_are_saved_whole, budgets_of_their_own,
            shards_of_parts_wait_in_a_store, shards_of_every_axis_in_their_min_budgets,
            variables_of_any_launcher_are_understood, a_slow_save_is_waited_for, a_second_signal_ends_all)
    jobs.tests_run(long if IS_LONG else quick)
