#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every layout trains as one rank does: losses, gradients of the first step, peaks, and bytes sent.

Usage: bench/layouts.py [--lade build/lade] [--data FILE] [--steps N] [--only TEXT] [--no-gradients] [--out FILE]

Two models in FP32, `baby` and a small Llama whose 4 KV heads are fewer than 8 tensor parallel ranks; each axis alone
at 2, 4 and 8 ranks where the model divides, then several together. One rank with the same global batch is the
reference. Bytes that rank 0 sends are compared with closed forms worked out here, from the models' shapes alone;
padding of shards and scalars (losses, sums of squares) are listed apart. The report is markdown; the exit status is 1
where a bound is missed. Times are not measured.
"""
import argparse
import json
import math
import os
import random
import shutil
import struct
import subprocess
import sys
import tempfile
from dataclasses import dataclass

from report import data_find, machine_name, publish

LOSS_BOUND, GRADIENT_BOUND = 1e-5, 1e-6
BATCH, SEQ_LEN, ELEMENT = 8, 32, 4  # sequences, tokens of each, bytes of a number
SHARD_ELEMENTS = 512  # a shard is a multiple of this
LLAMA = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_act": "silu", "num_hidden_layers": 8,
         "num_attention_heads": 8, "num_key_value_heads": 4, "hidden_size": 256, "intermediate_size": 704,
         "vocab_size": 1000, "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
         "tie_word_embeddings": False, "attention_bias": False, "mlp_bias": False}


# ---- models ----

@dataclass
class Tensor:
    """A parameter on one rank."""
    n: int                    # elements
    n_gathers: int            # per microbatch if it is dropped between the halves: one for each half that reads it
    is_everywhere: bool = False  # on every tensor parallel rank, with parts of its gradient if rows are cut
    n_of_kv: int = 0        # elements of KV heads
    is_at_both_ends: bool = False  # a tied table


def head_gathers(tp):
    """Return the gathers of the head's table. A single rank uses it for the backward half right after the forward."""
    return 1 if tp == 1 else 2


class Baby:
    name, layers, width, vocabulary, heads = "baby", 6, 384, 256, 6

    def key_sharers(self, tp):
        return 1

    def embedding(self, tp):
        table = Tensor(self.vocabulary // tp * self.width, head_gathers(tp), is_at_both_ends=True)
        return [table, Tensor(256 * self.width, 1)]

    def block(self, tp):
        d = self.width
        norm, bias = [Tensor(d, 2, True), Tensor(d, 1, True)], Tensor(d, 1, True)  # the bias is added after a sum
        return norm + [Tensor(3 * d * d // tp, 2), Tensor(3 * d // tp, 1), Tensor(d * d // tp, 2), bias] + norm + [
            Tensor(4 * d * d // tp, 2), Tensor(4 * d // tp, 1), Tensor(4 * d * d // tp, 2), bias]

    def head(self, tp):
        return [Tensor(self.width, 2, True), Tensor(self.width, 1, True)]

    def flops(self):
        """Return the flops of a block and of the head, per token."""
        return 6 * 12 * self.width ** 2 + 6 * self.width * SEQ_LEN, 6 * self.vocabulary * self.width


class Llama:
    name, layers, width, vocabulary, heads = "small Llama", 8, 256, 1000, 8
    n_kv_heads, head_width, hidden = 4, 32, 704

    def key_sharers(self, tp):
        return max(tp // self.n_kv_heads, 1)

    def embedding(self, tp):
        return [Tensor(self.vocabulary // tp * self.width, 1)]

    def block(self, tp):
        d, keys = self.width, 2 * max(self.n_kv_heads // tp, 1) * self.head_width * self.width
        return [Tensor(d, 2, True), Tensor(d * d // tp + keys, 2, n_of_kv=keys), Tensor(d * d // tp, 2),
                Tensor(d, 2, True), Tensor(2 * self.hidden // tp * d, 2), Tensor(self.hidden // tp * d, 2)]

    def head(self, tp):
        return [Tensor(self.width, 2, True), Tensor(self.vocabulary // tp * self.width, head_gathers(tp))]

    def flops(self):
        d = self.width
        block = 2 * d * d + 2 * d * self.n_kv_heads * self.head_width + 3 * d * self.hidden
        return 6 * block + 6 * d * SEQ_LEN, 6 * self.vocabulary * d


# ---- layouts ----

@dataclass
class Layout:
    tp: int = 1
    pp: int = 1
    dp: int = 1
    zero: int = 0
    shard: int = 0
    is_sequence: bool = False
    schedule: str = ""
    chunks: int = 1
    micro: int = 0  # sequences of a microbatch; 0: all that a replica has
    is_dropping: bool = False  # zero 3: all working copies are dropped between halves; else all are kept

    @property
    def ranks(self):
        return self.tp * self.pp * self.dp

    @property
    def micro_rows(self):
        return self.micro or BATCH // self.dp

    @property
    def microbatches(self):
        return BATCH // self.dp // self.micro_rows

    @property
    def shards(self):
        return (self.shard or self.dp) if self.zero else 1

    def options(self):
        words = ["--tp", self.tp, "--pp", self.pp, "--dp", self.dp, "--zero", self.zero]
        words += ["--micro-batch", self.micro_rows]
        words += ["--shard", self.shard] if self.shard else []
        words += ["--sequence-parallel"] if self.is_sequence else []
        words += ["--schedule", self.schedule] if self.schedule else []
        words += ["--virtual-stages", self.chunks] if self.chunks > 1 else []
        return [str(word) for word in words]

    def name(self):
        parts = [f"{axis}{size}" for axis, size in (("tp", self.tp), ("pp", self.pp), ("dp", self.dp)) if size > 1]
        parts += ["rows cut"] if self.is_sequence else []
        parts += [f"zero {self.zero}" + (f" over {self.shard}" if self.shard else "")] if self.zero else []
        parts += ["dropping"] if self.is_dropping else []
        parts += [self.schedule + (f" x{self.chunks}" if self.chunks > 1 else "")] if self.schedule else []
        return ", ".join([" ".join(parts), f"m {self.microbatches}"])


def layouts_of(model):
    """Return the layouts that divide @model."""
    found = []
    for n in (2, 4, 8):
        if model.heads % n == 0:
            found += [Layout(tp=n), Layout(tp=n, is_sequence=True)]
        if n <= model.layers:
            found += [Layout(pp=n, micro=1, schedule=schedule) for schedule in ("1f1b", "gpipe", "zbh1")]
        found += [Layout(pp=n, micro=1, schedule="interleaved", chunks=2)] if 2 * n <= model.layers else []
        found += [Layout(dp=n)] + [Layout(dp=n, zero=zero, micro=1) for zero in (1, 2, 3)]
        found += [Layout(dp=n, zero=3, micro=1, is_dropping=True)]
    found.append(Layout(tp=2, pp=2, dp=2, micro=1))
    found.append(Layout(pp=2, dp=4, zero=3, micro=1, is_dropping=True))
    found.append(Layout(tp=2, dp=4, zero=3, micro=1, is_dropping=True))
    found.append(Layout(tp=2, dp=4, zero=3, shard=2, micro=1, is_dropping=True))
    return found


# ---- closed forms: bytes that rank 0 sends in a step ----

def first_stage_layers(model, layout):
    """Return the layers of rank 0's chunks, by the cut of docs/ranks.md."""
    pieces = layout.pp * layout.chunks
    if pieces == 1:
        return model.layers
    block, head = model.flops()
    choices = range(1, model.layers - pieces + 2)
    last = min(choices, key=lambda n: max(n * block + head, math.ceil((model.layers - n) / (pieces - 1)) * block))
    each, extra = divmod(model.layers - last, pieces - 1)
    own = [piece for piece in range(pieces - 1) if piece % layout.pp == 0]
    return sum(each + (piece >= pieces - 1 - extra) for piece in own)


def ring(n_bytes, ranks):
    """Return the bytes sent in an all-gather or a reduce-scatter of @n_bytes (Thakur, Rabenseifner, Gropp 2005)."""
    return n_bytes * (ranks - 1) // ranks


class Sent:
    """Bytes sent by axis: those that formulas count, padding, scalars."""

    def __init__(self):
        self.axes = {}

    def add(self, axis, n_bytes, padding=0, scalars=0):
        now = self.axes.setdefault(axis, [0, 0, 0])
        for i, more in enumerate((n_bytes, padding, scalars)):
            now[i] += more

    def totals(self):
        return {axis: sum(now) for axis, now in self.axes.items() if sum(now)}


def sent_by_tp(sent, model, layout, layers, is_last):
    tokens = layout.micro_rows * SEQ_LEN
    n_sums = layout.microbatches * (4 * layers + 1 + is_last)
    sent.add("tp", n_sums * 2 * ring(tokens * model.width * ELEMENT, layout.tp))
    sent.add("tp", is_last * layout.microbatches * 12 * tokens * (layout.tp - 1), scalars=8 * (layout.tp - 1))


def sent_of_gradient(sent, model, layout, tensor):
    """Add the bytes of a gradient, and of the weight if it is in shards."""
    n = layout.shards
    padded = math.ceil(tensor.n / n / SHARD_ELEMENTS) * SHARD_ELEMENTS * n if n > 1 else tensor.n
    block = 4 * padded // n
    gathers = ELEMENT * (layout.microbatches * tensor.n_gathers if layout.is_dropping else 1)
    reduces = 4 * (layout.microbatches if layout.zero > 1 else 1)
    if n > 1:
        payload = ring(tensor.n * (reduces + gathers), n)
        sent.add("shard", payload, padding=ring(padded * (reduces + gathers), n) - payload)
    summed = {"replicate": layout.dp // n if layout.zero else 1, "dp": 1 if layout.zero else layout.dp,
              "tp": layout.tp if layout.is_sequence and tensor.is_everywhere else 1,
              "embed": 2 if layout.pp > 1 and tensor.is_at_both_ends else 1}
    for axis, ranks in summed.items():
        payload = 2 * ring(4 * tensor.n // n, ranks)
        sent.add(axis, payload, padding=2 * ring(block, ranks) - payload)
    sharers = model.key_sharers(layout.tp)
    if tensor.n_of_kv and sharers > 1 and n == 1:
        sent.add("key", 2 * ring(4 * tensor.n_of_kv, sharers))


def sent_in_a_step(model, layout):
    sent, layers, is_last = Sent(), first_stage_layers(model, layout), layout.pp == 1
    tensors = model.embedding(layout.tp) + model.block(layout.tp) * layers + (model.head(layout.tp) if is_last else [])
    for tensor in tensors:
        sent_of_gradient(sent, model, layout, tensor)
    if layout.tp > 1:
        sent_by_tp(sent, model, layout, layers, is_last)
    if layout.pp > 1:
        boundary_bytes = layout.micro_rows * SEQ_LEN * model.width * ELEMENT // (layout.tp if layout.is_sequence else 1)
        sent.add("pp", layout.microbatches * (2 * layout.chunks - 1) * boundary_bytes, scalars=8 * (layout.pp - 1))
    if layout.zero:
        sent.add("shard", 0, scalars=8 * (layout.shards - 1))
    if layout.dp > 1 and is_last:
        sent.add("dp", 0, scalars=layout.microbatches * (2 * 4 * (layout.dp - 1) // layout.dp))
    return sent


# ---- runs ----

class Job:
    """The command's constant part, and the directory of its files."""

    def __init__(self, args, model, config, data, directory):
        self.args, self.directory = args, directory
        for choice in ("keep", "drop"):
            with open(self.copies(choice), "w", encoding="ascii") as file:
                file.write(f"copies * {choice}\n")
        self.options = ["--model", config, "--data", data, "--dtype", "fp32", "--batch", str(BATCH), "--seq", str(SEQ_LEN),
                        "--lr", "1e-4", "--min-lr", "1e-4", "--warmup", "0", "--eval-iters", "1", "--machine",
                        "a100-40g", "--device", "host", "--budget", "1GiB", "--host-budget", "0", "--threads", "1",
                        "--quiet", "--json"]
        self.reference = self.run(None, self.args.steps)
        self.gradients = None if args.no_gradients else self.gradients_of(None)

    def copies(self, choice):
        return os.path.join(self.directory, choice)

    def command(self, layout, steps, *more):
        start = [self.args.lade]
        start += ["launch", "-n", str(layout.ranks), "--"] if layout and layout.ranks > 1 else []
        given = layout.options() if layout else []
        if layout and layout.zero == 3:
            given += ["--residency", self.copies("drop" if layout.is_dropping else "keep")]
        return start + ["train", *self.options, "--steps", str(steps), *given, *more]

    def start(self, layout, steps, *more):
        done = subprocess.run(self.command(layout, steps, *more), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              text=True, timeout=self.args.patience, check=False)
        if done.returncode:
            raise RuntimeError((done.stderr.strip().splitlines() or ["no word"])[0])
        return json.loads(done.stdout)

    def run(self, layout, steps):
        """Return losses and the summary."""
        log = os.path.join(self.directory, "log")
        summary = self.start(layout, steps, "--log", log)
        with open(log, encoding="utf-8") as file:
            events = [json.loads(line) for line in file]
        os.unlink(log)
        return [event["loss"] for event in events if event["event"] == "step"], summary

    def gradients_of(self, layout):
        """Return the gradients: the first moments after one step with beta1 0."""
        save = os.path.join(self.directory, "save")
        self.start(layout, 1, "--save", save, "--beta1", "0", "--clip", "0", "--keep", "1")
        found = {}
        for where, _, names in os.walk(save):
            for name in names:
                if name.startswith("optimizer") and name.endswith(".safetensors"):
                    found.update(gradients_read(os.path.join(where, name)))
        shutil.rmtree(save)  # a run refuses a directory with another run's checkpoints
        return found


def gradients_read(path):
    with open(path, "rb") as file:
        size, = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(size))
        body = file.read()
    found = {}
    for name, entry in header.items():
        if name.startswith("exp_avg."):
            begin, end = entry["data_offsets"]
            found[name[len("exp_avg."):]] = struct.unpack(f"<{(end - begin) // 4}f", body[begin:end])
    return found


def worst_gradient(got, want):
    """Return the largest relative error of a tensor, by norms, and its name; absolute for a zero gradient."""
    worst = (0.0, "")
    for name, expected in want.items():
        off = math.dist(got[name], expected)
        norm = math.dist(expected, (0.0,) * len(expected))
        worst = max(worst, (off / norm if norm else off, name))
    return worst


def row_of(job, model, layout, out):
    """Add a line to the table; return whether every bound is kept."""
    wanted = job.reference[0]
    try:
        losses, summary = job.run(layout, job.args.steps)
    except (RuntimeError, subprocess.TimeoutExpired) as error:
        out.append(f"| {model.name} | {layout.name()} | {layout.ranks} | failed: {error} | | | | | |")
        return False
    loss = max(abs(a - b) / abs(b) for a, b in zip(losses, wanted)) if len(losses) == len(wanted) else math.inf
    is_planned = summary["planned_peak_bytes_by_rank"] == summary["measured_peak_bytes_by_rank"]
    sent = sent_in_a_step(model, layout)
    found = {axis: int(n) for axis, n in summary["comm_bytes"].items()}
    is_sent = found == sent.totals()
    gradient, off = "not measured", 0
    if job.gradients:
        off, name = worst_gradient(job.gradients_of(layout), job.gradients)
        gradient = f"{off:.1e}" if off <= GRADIENT_BOUND else f"{off:.1e} MISSED ({name})"
    is_good = loss <= LOSS_BOUND and off <= GRADIENT_BOUND and is_planned and is_sent
    payload, padding, scalars = (sum(now[i] for now in sent.axes.values()) for i in range(3))
    mark = "yes" if is_sent else f"NO: {found} for {sent.totals()}"
    peaks = [int(peak) for peak in summary["measured_peak_bytes_by_rank"]]
    missed = "" if loss <= LOSS_BOUND else " MISSED"
    out.append(f"| {model.name} | {layout.name()} | {layout.ranks} | {loss:.1e}{missed} | {gradient} | "
               f"{min(peaks) / 1e6:.1f} to {max(peaks) / 1e6:.1f} | {'yes' if is_planned else 'NO'} "
               f"| {payload} + {padding} + {scalars} | {mark} |")
    return is_good


def tokens_make(text, path):
    """Write 16-bit tokens below 1000 from pairs of bytes, by a seeded mapping: as unevenly distributed as text."""
    names = random.Random(1).sample(range(1000), 1000)
    tokens = [names[(a * 251 + b) % 1000] for a, b in zip(text[::2], text[1::2])]
    tokens[0] = 999  # so that the vocabulary is 1000 for any text
    with open(path, "wb") as file:
        file.write(struct.pack(f"<{len(tokens)}H", *tokens))


def jobs(args, directory):
    with open(args.data, "rb") as file:
        tokens_make(file.read(1 << 20), os.path.join(directory, "tokens.bin"))
    config = os.path.join(directory, "config.json")
    with open(config, "w", encoding="ascii") as file:
        json.dump(LLAMA, file)
    tokens = os.path.join(directory, "tokens.bin")
    for model, name, data in ((Baby(), "baby", args.data), (Llama(), config, tokens)):
        wanted = [layout for layout in layouts_of(model) if args.only in f"{model.name}: {layout.name()}"]
        if wanted:
            yield model, wanted, Job(args, model, name, data, directory)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lade", default="build/lade")
    parser.add_argument("--data", help="any text of a megabyte or so [tinyshakespeare.txt of LADE_SHARED]")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--only", default="", help="layouts whose line has this in it: 'baby: tp2'")
    parser.add_argument("--no-gradients", action="store_true")
    parser.add_argument("--patience", type=int, default=600, help="seconds until a job counts as hung")
    parser.add_argument("--out")
    args = parser.parse_args()
    args.data = data_find(args.data, "tinyshakespeare.txt")
    out = [f"# Layouts: {machine_name()}", "", f"FP32, {args.steps} steps of {BATCH} sequences of {SEQ_LEN} tokens, "
           "learning rate 1e-4, no dropout; m: microbatches of a rank. Bytes sent by rank 0 in a step: closed form + "
           "padding + scalars.", "",
           f"| model | layout | ranks | losses, worst relative (bound {LOSS_BOUND:.0e}) | gradients of step 1, worst "
           f"tensor (bound {GRADIENT_BOUND:.0e}) | peak of ranks, MB | all as planned | bytes sent | as counted |",
           "|---|---|---|---|---|---|---|---|---|"]
    is_good = True
    with tempfile.TemporaryDirectory(prefix="lade-layouts-") as directory:
        for model, layouts, job in jobs(args, directory):
            for layout in layouts:
                is_good &= row_of(job, model, layout, out)
                print(out[-1], file=sys.stderr, flush=True)
    publish(out, args.out)
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
