#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Ranks on a GPU each, over the fakes for the driver and for NCCL.
ranks: shards, parts of layers and stages have the losses of one rank on a host, and the same bits at any budget; NCCL's
errors are reported, and all its memory is taken before a budget is made. Stages on two nodes send in parts.
brief: as ranks, without two nodes, where code is slow because it is instrumented.
layouts: the same in more layouts of four ranks; every schedule of a pipeline.
Streams share the driver's hardware channels, of which the command asks for as many as there can be. Each schedule also
runs with one channel for all streams of a process, in which the fake runs work in the order of submission.
dtypes: some of them with BF16 and FP16, of both families.
seats: each rank has a GPU, or a slice of one, of its own, however GPUs are made visible; one line if it cannot have
one.

Usage: train_ranks.py LADE PLUGIN FAKES KERNELS ranks|brief|layouts|dtypes|seats
"""
import json
import os
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "system"))
import jobs
from jobs import losses, require

LADE = os.path.abspath(sys.argv[1])
ENVIRONMENT = jobs.environment(sys.argv[2])
FAKES, KERNELS = (os.path.abspath(path) for path in sys.argv[3:5])
NCCL_KIB = 512  # of a communicator
CONNECT_KIB = 64  # of the first use of an algorithm by a communicator
SCRATCH = tempfile.TemporaryDirectory(prefix="lade-gpu-ranks-")
os.chdir(SCRATCH.name)
ENVIRONMENT.update(LADE_FAKE_KERNELS=KERNELS, LADE_ATTENTION="mma", XDG_CACHE_HOME=os.getcwd(),
                   LD_LIBRARY_PATH=FAKES, LADE_FAKE="devices=4,channels=8", LADE_FAKE_NCCL=f"memory={NCCL_KIB},connect={CONNECT_KIB}")
with open("text.txt", "w", encoding="utf-8") as file:
    file.writelines(f"{i * i % 97} bottles of wine on the wall, {i}\n" for i in range(2000))
with open("tiny.json", "w", encoding="utf-8") as file:
    json.dump({"model_type": "gpt2", "n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 8192, "vocab_size": 256},
              file)
with open("llama.json", "w", encoding="utf-8") as file:
    json.dump({"model_type": "llama", "hidden_size": 128, "intermediate_size": 512, "num_hidden_layers": 4,
               "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64, "vocab_size": 256},
              file)
MODEL = ["--model", "./tiny.json", "--dtype", "fp32"]
SHORT = ["--seq", "16", "--data", "text.txt", "--batch", "4", "--micro-batch", "1",
         "--warmup", "1", "--lr", "1e-2", "--eval-iters", "1", "--quiet", "--machine", "h200-141g", "--steps", "2",
         "--json", "--log", "log"]


def command(ranks, *args, model=MODEL):
    return jobs.command(LADE, ranks, *SHORT, *model, *args)


def summary(line, environment=None):
    """Return its summary, with the losses of all steps."""
    if os.path.exists("log"):
        os.remove("log")
    code, out, err = jobs.run(line, environment or ENVIRONMENT)
    require(code == 0, f"{line} ends with {code}", err)
    found = json.loads(out)
    found["losses"] = losses("log")
    return found


def refused(code, words, line, **more):
    """Check that the job ends with @code and one line of Lade's that has @words."""
    got, _, err = jobs.run(line, dict(ENVIRONMENT, **more))
    ours = [said for said in jobs.messages(err) if words in said]
    require(got == code and len(ours) == 1, f"{line} ends with {got}, not {code} and '{words}'", err)


GPUS = ["--device", "cuda:0"]
SOME = ["--dp 4 --shard 2 --zero 3", "--tp 2 --pp 2"]
# Every pair of axes; stages 2 and 3 of ZeRO alone, and each stage beside another axis.
MORE = ["--dp 4", "--dp 4 --zero 2", "--dp 4 --zero 3", "--dp 4 --shard 2 --zero 2", "--tp 2 --dp 2 --zero 1",
        "--tp 2 --sequence-parallel --dp 2 --zero 3", "--tp 2 --sequence-parallel --pp 2", "--pp 2 --dp 2",
        "--pp 2 --dp 2 --zero 3", "--pp 2 --dp 2 --schedule zbh1 --zero 2"]
SCHEDULES = ["1f1b", "gpipe", "zbh1", "zbh2", "interleaved --virtual-stages 2"]
LLAMA = ["--model", "./llama.json", "--dtype", "fp32"]
# Models, dtypes, and the largest relative distance of a loss from one host rank's, as in train.py.
DTYPES = [(["--model", "./tiny.json", "--dtype", "bf16"], 2e-3), (["--model", "./llama.json", "--dtype", "bf16"], 2e-3),
          (["--model", "./llama.json", "--dtype", "fp16"], 2e-3)]
MIXED = ["--tp 2 --sequence-parallel --dp 2 --zero 3", "--pp 2 --dp 2 --schedule zbh1 --zero 2"]


def layout_verify(layout, one, model=MODEL, bound=1e-5):
    """Any budget, also the smallest, gives one set of bits, near those of @one rank."""
    runs = [summary(command(4, *GPUS, *layout.split(), *budget, model=model)) for budget in ([], ["--budget", "min"])]
    for run in runs:
        is_near = all(abs(a - b) <= bound * abs(a) for a, b in zip(one["losses"], run["losses"]))
        require(len(run["losses"]) == 2 and is_near, f"{layout} has other losses", (one["losses"], run["losses"]))
        require(run["planned_peak_bytes_by_rank"] == run["measured_peak_bytes_by_rank"] and run["ranks"] == 4,
                f"planned and measured peaks of {layout} differ", run)
        held = run["outside"]
        require(held["context"] == 8 << 20 and held["nccl"] >> 10 > 2 * (NCCL_KIB + CONNECT_KIB) and not held["kernels"]
                and sum(held.values()) == run["outside_bytes"], f"the ledger of a GPU does not sum in {layout}", run)
        require(run["outside_grown_bytes"] == 0, f"NCCL takes memory during steps of {layout}", run)
        require(run["params_digest"] == runs[0]["params_digest"], f"a budget changes bits of {layout}", run)
    most, least = (run["measured_peak_bytes"] for run in runs)
    require(least < most, f"a budget saves nothing in {layout}", runs)


def nodes_verify(schedule):
    """Stages on two nodes, by the launcher's variables, send half of the bytes, for the same bits."""
    args = [*GPUS, "--tp", "2", "--pp", "2", "--schedule", *schedule.split()]
    train = " ".join([LADE, "train", *SHORT, *LLAMA, *args])
    near = summary(command(4, *args, model=LLAMA))
    apart = summary([LADE, "launch", "-n", "4", "--", "sh", "-c", "export CUDA_VISIBLE_DEVICES=$OMPI_COMM_WORLD_RANK "
                     "OMPI_COMM_WORLD_LOCAL_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=$((OMPI_COMM_WORLD_RANK % 2)); "
                     f"exec {train}"])
    require(near["params_digest"] == apart["params_digest"] and near["losses"] == apart["losses"],
            f"two nodes change bits of {schedule}", (near, apart))
    norms = 8  # bytes of the stage's sum of squares
    require(apart["comm_bytes"]["pp"] - norms == (near["comm_bytes"]["pp"] - norms) / 2 and
            apart["comm_bytes"]["tp"] > near["comm_bytes"]["tp"] and apart["outside_grown_bytes"] == 0,
            f"{schedule} is not sent in parts", (near["comm_bytes"], apart["comm_bytes"]))


def channel_verify(schedules, parts):
    """Stages whose streams share one hardware channel end under each schedule, with the bits that many channels give to
    1f1b, and say once that they share it.
    """
    lines = [command(4 if parts else 2, *GPUS, "--pp", "2", *parts, "--schedule", *schedule.split(), model=LLAMA)
             for schedule in schedules]
    many = summary(lines[0])
    for line in lines:
        os.remove("log")
        code, out, err = jobs.run(line, dict(ENVIRONMENT, CUDA_DEVICE_MAX_CONNECTIONS="1"))
        require(code == 0 and err.count("gives streams 1 hardware channels") == 1, f"{line} with one channel: {code}",
                err)
        require(json.loads(out)["params_digest"] == many["params_digest"] and losses("log") == many["losses"],
                f"one channel changes bits of {line}", out)


if sys.argv[5] == "dtypes":
    for model, bound in DTYPES:
        alone = summary(command(0, "--device", "host", model=model))
        require(len(alone["losses"]) == 2, "steps are missing", alone)
        for layout in MIXED:
            layout_verify(layout, alone, model, bound)
    sys.exit(0)
if sys.argv[5] != "seats":
    alone = summary(command(0, "--device", "host"))
    require(len(alone["losses"]) == 2, "steps are missing", alone)
    for layout in MORE if sys.argv[5] == "layouts" else SOME:
        layout_verify(layout, alone)
    for schedule in {"layouts": SCHEDULES, "ranks": ["interleaved --virtual-stages 2"], "brief": []}[sys.argv[5]]:
        nodes_verify(schedule)
    if sys.argv[5] == "layouts":
        channel_verify(SCHEDULES, [])
    schedules, parts = {"layouts": (SCHEDULES, ["--tp", "2"]), "ranks": (["1f1b"], ["--tp", "2"]), "brief": (["1f1b"], [])}[sys.argv[5]]
    channel_verify(schedules, parts)
    refused(5, "ncclAllReduce: internal error", command(2, *GPUS, "--dp", "2"),
            LADE_FAKE_NCCL="fail=ncclAllReduce,nth=4,rank=1")
    refused(5, "unhandled cuda error", command(2, *GPUS, "--dp", "2"), LADE_FAKE_NCCL="connect=1048576,rank=1")
    train = " ".join([LADE, "train", *SHORT, *MODEL, *GPUS, "--dp", "2"])
    refused(2, "other matrix products (another library or GPU, another LADE_MATMUL, or another file of "
            "LADE_MATMUL_CHOICES)", [LADE, "launch", "-n", "2", "--", "sh", "-c",
            f"[ $OMPI_COMM_WORLD_LOCAL_RANK = 0 ] || export LADE_MATMUL=plain; exec {train}"])
    sys.exit(0)


def shown(ranks, gpus, *args, wrap=""):
    """Return the line that makes @gpus, words of a shell, visible to rank $R of @ranks, and starts it by the command
    @wrap.
    """
    train = " ".join([LADE, "train", *SHORT, *MODEL, *GPUS, *args])
    return [LADE, "launch", "-n", str(ranks), "--", "sh", "-c",
            f"R=$OMPI_COMM_WORLD_LOCAL_RANK; export CUDA_VISIBLE_DEVICES={gpus}; exec {wrap} {train}"]


# Each rank sees one GPU alone, or two; all see some in another order, or some share theirs with another.
two, four = ["--dp", "2"], ["--dp", "4"]
for ranks, same in ((2, [shown(2, "$R", *two), shown(2, "$((2*R)),$((2*R+1))", *two), shown(2, "0,$((R+1))", *two),
                         shown(2, "3,1", *two)]),
                    (4, [shown(4, "$((3-R)),$R", *four), shown(4, "$((R/2*2)),$((R/2*2+1))", *four)])):
    found = [summary(line) for line in same]
    require(all(run["params_digest"] == found[0]["params_digest"] for run in found), f"who shows GPUs to {ranks} ranks "
            "changes bits", found)
SHARED = "ranks 0 and 1 would share the GPU 57ad0000-0000-0000-0000-000000000002; each needs one of its own"
refused(7, SHARED, command(2, *GPUS, *two), CUDA_VISIBLE_DEVICES="2")
refused(7, "ranks 0 and 2 would share the GPU", command(4, *GPUS, *four), LADE_FAKE="devices=2")
refused(7, "ranks 0 and 1 would share the GPU", command(2, "--device", "cuda:1", *two), LADE_FAKE="devices=2")
refused(7, "there is no GPU number 2", command(2, "--device", "cuda:2", *two), LADE_FAKE="devices=2")

# One rank alone cannot have its GPU: it is named, and all end with its code.
for trouble, status, words in (("fail=cuInit,code=999", 7, "rank 1: cuInit: "), ("sm=70", 7, "rank 1: device cuda:0: "),
                               ("fail=cuDevicePrimaryCtxRetain,code=2", 4, "rank 1: device cuda:0: ")):
    refused(status, words, shown(2, "$R", *two, wrap=f"env LADE_FAKE=devices=4$([ $R = 0 ] || echo ,{trouble})"))

# With a GPU requested only if available: all ranks are on the host if one has to be, and report it.
line = shown(2, "$R", *two, wrap="env LADE_FAKE=devices=4$([ $R = 0 ] || echo ,sm=70)")
line[-1] = line[-1].replace("cuda:0", "auto")
run = summary(line)
require(run["params_digest"] == summary(command(2, "--device", "host", *two))["params_digest"],
        "--device auto without a GPU has not the host's numbers", run)
_, _, err = jobs.run(line, ENVIRONMENT)
require("rank 1: device cuda:0: " in err and "; the host trains" in err, "nobody says that the host trains", err)

# Slices of one GPU are two; one slice is not.
SLICES = dict(ENVIRONMENT, LADE_FAKE="devices=4,slices=2")
summary(shown(2, "MIG-57ad0000-0000-0000-0000-00000000000$R", *two), SLICES)
refused(7, SHARED, shown(2, "MIG-57ad0000-0000-0000-0000-000000000002", *two), LADE_FAKE=SLICES["LADE_FAKE"])

# One machine with two names, as containers have them, has each GPU once; two machines of one name have one each.
def elsewhere(gpus, script):
    """Run a job whose ranks are placed by @script."""
    return shown(2, gpus, *two, wrap=f"unshare -u -m sh -c '{script} && exec \"$0\" \"$@\"'")


if subprocess.run(["unshare", "-u", "-m", "true"], capture_output=True, check=False).returncode:
    print("no namespaces are to be had: machines with two names, and of one, are left out")
    sys.exit(0)
for rank in range(2):
    with open(f"boot{rank}", "w", encoding="ascii") as file:
        file.write(f"{rank}d5f0c2e-0000-4000-8000-000000000000\n")
NAMED = "hostname node$OMPI_COMM_WORLD_RANK"
BOOTED = "mount --bind boot$OMPI_COMM_WORLD_RANK /proc/sys/kernel/random/boot_id"
summary(elsewhere("0,1", NAMED))
refused(7, SHARED, elsewhere("2", NAMED))
summary(elsewhere("2", BOOTED))
