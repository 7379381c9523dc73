#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A drive that is fast for the probe and slow in steps, reads and writes at rates of their own: the first run predicts
the first rates and says so, and keeps the rates of its steps; the next run predicts its step within a tenth.

Usage: slow_drive.py LADE REFUSE SLOW_DRIVE [probe | burst | limit | optional]

With "probe" the drive is slow for the probe too. `lade doctor --probe` then stops at its time limit and keeps the bytes
that a long run moves, fewer than those of a fast drive.

With "burst" the drive serves its first 300 MB eight times as fast as the rest. A long run measures the drive past them
before it plans, and its first step takes the time that it predicts. A second one does not measure again.

With "limit" a run measures a slow drive within a twentieth of its time, and does not begin to on a slower one. A signal
stops the run while it measures.

With "optional" the drive is slow for measurements alone, so that runs of hours take a second. Runs with and without
their measurement end with the same bits: one rank, two of them, a durable run, and runs whose measurement fails.
"""
import errno
import glob
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time

LADE, REFUSE, SLOW = (os.path.abspath(path) for path in sys.argv[1:4])
URING_SETUP = "425"  # io_uring_setup, on every architecture
SCRATCH = tempfile.TemporaryDirectory(prefix="lade-slow-drive-")  # removed with the process
os.chdir(SCRATCH.name)
RATES = {"SLOW_READ": "30e6", "SLOW_WRITE": "120e6"}
os.environ.update(XDG_CACHE_HOME=os.getcwd(), SLOW_FILE_BYTES=str(24 << 20))
TRAIN = ["--model", "nano", "--data", "text.txt", "--batch", "2", "--seq", "32", "--budget", "min", "--host-budget", "0",
         "--store", ".", "--allow-tmpfs", "--json"]
with open("text.txt", "w", encoding="utf-8") as file:
    file.writelines(f"{i * i % 97} bottles on the wall, {i}\n" for i in range(2000))


PREFIX = [REFUSE, str(errno.ENOSYS), URING_SETUP, "--", "/usr/bin/env", "LD_PRELOAD=" + SLOW, LADE]


def lade(*args, **rates):
    result = subprocess.run([*PREFIX, *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False,
                            env={**os.environ, **rates})
    if result.returncode == 77 or "O_DIRECT" in result.stderr:
        print("no store without io_uring here:", result.stderr.strip())
        sys.exit(77)
    assert result.returncode == 0, (result.returncode, result.stderr)
    return result.stdout, result.stderr


def train(steps, **rates):
    out, err = lade("train", *TRAIN, "--steps", str(steps), "--eval-iters", "1", **rates)
    return json.loads(out), err


def moved_bytes():
    """Bytes that the slow drive moved, by the size of their file. The next run begins a new log."""
    moved = {}
    with open("calls", encoding="utf-8") as file:
        for line in file:
            size, n = map(int, line.split())
            moved[size] = moved.get(size, 0) + n
    os.remove("calls")
    return moved


def rates_forget():
    path, probed = kept()
    for entry in probed["stores"].values():
        for kind in ("read_", "write_", ""):
            entry[f"lasting_{kind}bytes_per_s"] = 0.0
        entry["burst_bytes"] = entry["known_bytes"] = 0
    with open(path, "w", encoding="utf-8") as file:
        json.dump(probed, file)


def kept():
    path = max(glob.glob("lade/probe-*.json"), key=os.path.getmtime)  # ranks with fewer threads have one of their own
    with open(path, encoding="utf-8") as file:
        probed = json.load(file)
    return path, probed


if sys.argv[4:] == ["probe"]:
    lade("doctor", "--probe", "--store", ".", "--allow-tmpfs", **RATES, SLOW_FILE_BYTES=str(256 << 20))
    [entry] = kept()[1]["stores"].values()
    assert 0 < entry["burst_bytes"] < 2 << 30, entry  # 10 s of at most 120 MB/s, in whole passes
    assert 15e6 < entry["lasting_read_bytes_per_s"] < 45e6 and 60e6 < entry["lasting_write_bytes_per_s"] < 180e6, entry
    sys.exit(0)

BURST = {"SLOW_READ": "40e6", "SLOW_WRITE": "40e6", "SLOW_FILE_BYTES": str(256 << 20)}  # io is most of a step, also beside load


def text_of(path):
    """The contents of a file that may not exist yet."""
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except FileNotFoundError:
        return ""


def stopped_run(steps, is_due, **rates):
    """Begin a run of @steps, stop it when is_due() holds, and return its words."""
    with open("log.jsonl", "w", encoding="utf-8"), open("words", "w", encoding="utf-8") as words:
        child = subprocess.Popen([*PREFIX, "train", *TRAIN, "--steps", str(steps), "--eval-iters", "1", "--log", "log.jsonl"],
                                 stdout=subprocess.DEVNULL, stderr=words, env={**os.environ, **rates})
    while not is_due() and child.poll() is None:
        time.sleep(0.01)
    child.send_signal(signal.SIGINT)
    code, err = child.wait(), text_of("words")
    assert code == 130, (code, err)
    return err


def logged_steps():
    return [line for line in text_of("log.jsonl").splitlines(True) if '"event":"step"' in line and line.endswith("\n")]


def long_run(steps, n_awaited, **rates):
    """Begin a run of @steps and stop it after @n_awaited. Return the predicted time of a step, the measured times and
    the words."""
    err = stopped_run(steps, lambda: len(logged_steps()) >= n_awaited and "drive:" in text_of("words"), **rates)
    events = logged_steps()
    units = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
    moved, unit, rate, per = re.search(r"a step moves ([\d.]+) (\w+), ([\d.]+) (\w+)/s of", err).groups()
    seconds = [2 * 32 / json.loads(line)["tokens_per_second"] for line in events]
    return float(moved) * units[unit] / float(rate) / units[per], seconds, err


if sys.argv[4:] == ["burst"]:
    fast, err = train(2, **BURST, SLOW_BURST_BYTES="1e12")
    path, before = kept()
    [entry] = before["stores"].values()
    assert "at first" in err and entry["lasting_bytes_per_s"] == 0, (err, entry)  # a short run begins at once
    steps = int(90 / fast["predicted_step_seconds"])  # a measurement of 4.5 s
    for attempt in range(4):  # a busy machine may delay the steps, and the measurement
        with open(path, "w", encoding="utf-8") as file:
            json.dump(before, file)
        predicted, seconds, err = long_run(steps, 5, **BURST, SLOW_BURST_BYTES="300e6")
        assert "that it does in long runs" in err, err
        [entry] = kept()[1]["stores"].values()
        are_found = all(20e6 < entry[f"lasting_{kind}bytes_per_s"] < 60e6 for kind in ("read_", "write_", ""))
        if are_found and 5e7 < entry["burst_bytes"] < 1e9 and 0.9 < predicted / min(seconds) < 1.1:
            break
    else:
        raise AssertionError((predicted, seconds, fast["predicted_step_seconds"], entry))
    _, _, err = long_run(steps, 0, **BURST, SLOW_BURST_BYTES="300e6")
    [again] = kept()[1]["stores"].values()
    for field in ("lasting_read_bytes_per_s", "lasting_write_bytes_per_s", "lasting_bytes_per_s", "burst_bytes"):
        assert again[field] == entry[field], (field, again, entry)  # they are known, and not measured again
    assert "that it does in long runs" in err, err
    # A long run told these rates, after a measurement of few bytes: this run's measurement would tell less.
    path, probed = kept()
    told = dict.fromkeys(("lasting_read_bytes_per_s", "lasting_write_bytes_per_s", "lasting_bytes_per_s"), 25e6)
    [entry] = probed["stores"].values()
    entry.update(told, burst_bytes=20_000_000, known_bytes=8 << 30)
    for attempt in range(3):  # on a busy machine the check of a run's begin may find another drive, to be measured again
        with open(path, "w", encoding="utf-8") as file:
            json.dump(probed, file)
        long_run(steps, 0, **BURST, SLOW_BURST_BYTES="300e6")
        [again] = kept()[1]["stores"].values()
        if {field: again[field] for field in told} == told and again["known_bytes"] == 8 << 30:
            break
    else:
        raise AssertionError(again)
    print(f"predicted {predicted:.3f} s, taken {seconds}; by the first rates {fast['predicted_step_seconds']:.3f} s")
    sys.exit(0)

STEADY = {"SLOW_READ": "60e6", "SLOW_WRITE": "60e6", "SLOW_FILE_BYTES": str(256 << 20), "SLOW_LOG": "calls"}
PIECE = 2 << 20
MEASURED = [n * PIECE for n in (4, 8, 12)]  # sizes of a file in which the lasting rates of these drives are measured


def measured_bytes(seconds, rate, **rates):
    """Bytes that a run moves for the lasting rates, when a twentieth of its predicted time is @seconds at @rate."""
    rates_forget()
    long_run(int(20 * seconds / fast["predicted_step_seconds"] * rate / 60e6), 0, **{**STEADY, **rates})
    moved = moved_bytes()
    return sum(moved.get(size, 0) for size in MEASURED), kept()[1]["stores"]


if sys.argv[4:] == ["limit"]:
    fast, err = train(2, **STEADY)
    moved_bytes()
    n, stores = measured_bytes(5, 60e6)
    assert 0 < n <= 1.05 * 60e6 * 5 and all(entry["known_bytes"] > 0 for entry in stores.values()), (n, stores)
    # The drive's burst ends within the measurement: its second half would take too long, and the first rates stay.
    burst = 4 * 32 * 2**20  # of the check of known rates three parts, and the first passes
    n, stores = measured_bytes(5, 60e6, SLOW_READ="7.5e6", SLOW_WRITE="7.5e6", SLOW_BURST_BYTES=str(burst))
    assert n <= 1.05 * 60e6 * 5 / 2 and all(entry["lasting_bytes_per_s"] == 0 for entry in stores.values()), (n, stores)
    # A pass of the slower drive takes too long: no byte is moved.
    n, stores = measured_bytes(4.5, 20e6, SLOW_READ="20e6", SLOW_WRITE="20e6")
    assert n == 0 and all(entry["lasting_bytes_per_s"] == 0 for entry in stores.values()), (n, stores)
    # A stop signal ends the measurement, and the run before its first step.
    rates_forget()
    lines = tuple(f"{size} " for size in MEASURED)
    err = stopped_run(int(20 * 9 / fast["predicted_step_seconds"]),
                      lambda: any(line.startswith(lines) for line in text_of("calls").splitlines()), **STEADY)
    moved, stores = moved_bytes(), kept()[1]["stores"]
    n = sum(moved.get(size, 0) for size in MEASURED)
    assert "stopped before its first step" in err and not logged_steps(), err
    assert fast["store_bytes"] not in MEASURED and fast["store_bytes"] not in moved, (fast["store_bytes"], moved)  # no fill
    assert n < 60e6 * 9 / 3 and all(entry["lasting_bytes_per_s"] == 0 for entry in stores.values()), (n, stores)
    sys.exit(0)


def ended(steps, *options, n_ranks=0, **rates):
    """Run to the end. Return the digests, the words, and the lasting rate of the drive's entry."""
    launch = ["launch", "-n", str(n_ranks), "--", LADE] if n_ranks else []
    out, err = lade(*launch, "train", *TRAIN, *options, "--steps", str(steps), "--eval-iters", "1",
                    **rates)
    summary = json.loads(out)
    return [summary[name] for name in ("loss_digest", "params_digest")], err, [
        entry["lasting_bytes_per_s"] for entry in kept()[1]["stores"].values()][0]


def told_mib(err):
    return float(re.search(r"of the ([\d.]+) MiB/s that it does in long runs", err)[1])


if sys.argv[4:] == ["optional"]:
    SIZES = {**STEADY, "SLOW_SIZES": ",".join(map(str, [*MEASURED, 32 << 20, 64 << 20]))}
    first, _ = train(2, **SIZES)
    steps = int(20 * 5 / first["predicted_step_seconds"])
    usual, err, rate = ended(steps)  # on the fast drive
    assert "at first" in err and rate == 0, (err, rate)
    digests, err, rate = ended(steps, **SIZES)
    assert digests == usual and 45 < told_mib(err) < 70, (digests, usual, err, rate)
    for error in (errno.EIO, errno.ENOSPC):
        rates_forget()
        failing = {"SLOW_ERRNO": str(error), "SLOW_ERRNO_FILE_BYTES": str(9 << 20), "SLOW_ERRNO_BYTES": "50e6"}
        digests, err, rate = ended(steps, **SIZES, **failing)
        assert digests == usual and rate == 0 and "at first" in err, (digests, usual, err, rate)
        assert "note: the drive's rates in long runs were not measured: " in err, err
    rates_forget()
    digests, err, rate = ended(steps, "--durable", **SIZES)
    assert digests == usual and 45 < told_mib(err) < 70, (digests, usual, err, rate)
    usual, err, _ = ended(steps, n_ranks=2)
    digests, err, rate = ended(steps, n_ranks=2, **SIZES)
    assert digests == usual and 30e6 < rate < 90e6, (digests, usual, err, rate)
    told = [float(number) for number in re.findall(r"of the ([\d.]+) MiB/s that it does in long runs", err)]
    assert told and all(0.5 * 0.8 < value * 2**20 / rate < 0.5 * 1.2 for value in told), (told, rate)  # each has a half
    sys.exit(0)

fast, err = train(2)
moved = fast["store_read_bytes_per_step"] + fast["store_written_bytes_per_step"]
assert re.search(r"^drive: .*/s that it does at first$", err, re.M), err
path, probed = kept()
for entry in probed["stores"].values():
    assert entry["lasting_read_bytes_per_s"] == 0 and entry["burst_bytes"] == 0, entry
    entry["burst_bytes"] = 3 * moved
with open(path, "w", encoding="utf-8") as file:
    json.dump(probed, file)

# A run that moves less than the burst keeps nothing.
train(2, **RATES)
assert all(entry["lasting_read_bytes_per_s"] == 0 for entry in kept()[1]["stores"].values()), kept()
# The first rates are wrong about a longer run. Its own are kept, reads and writes apart, and are right about the next.
first, err = train(5, **RATES)
assert "at first" in err and first["predicted_step_seconds"] < 0.7 * first["measured_step_seconds"], first
for attempt in range(4):  # a busy machine may delay the run that tells the rates, or the next one
    [entry] = kept()[1]["stores"].values()
    second, err = train(5, **RATES)
    assert "that it does in long runs" in err, err
    share = second["predicted_step_seconds"] / second["measured_step_seconds"]
    if 0.9 < share < 1.1 and entry["lasting_write_bytes_per_s"] > 2 * entry["lasting_read_bytes_per_s"]:
        break
else:
    raise AssertionError((share, entry, second["predicted_queue_seconds"], second["measured_queue_seconds"],
                          second["predicted_step_seconds"], second["measured_step_seconds"]))
assert entry["known_bytes"] >= 3 * moved == entry["burst_bytes"], entry  # more bytes than a measurement's told the rates
assert second["params_digest"] == first["params_digest"] and second["loss_digest"] == first["loss_digest"]
words = lade("doctor", "--store", ".", "--allow-tmpfs")[0]
[entry] = kept()[1]["stores"].values()  # the last run may have changed the rates that it was predicted with
rates = [f"{entry[f'lasting_{kind}bytes_per_s'] / 1e9:.2f}" for kind in ("read_", "write_", "")]
assert "in long runs: read {} GB/s, write {}, half of each {}".format(*rates) in words, (rates, words)
print(f"predicted {share:.2f} of the second run's step; first run {first['predicted_step_seconds']:.4f} of "
      f"{first['measured_step_seconds']:.4f} s; {entry}")

# Prices of another machine's drive: this one is not measured for them, at rates that make the run a long one or at none.
path, before = kept()
usual, _ = train(2)
for rate in (1e4, 0):
    with open("machine.json", "w", encoding="utf-8") as file:
        json.dump({"preset": "a100-80g", "store": {"read_bytes_per_s": rate or 1e4, "write_bytes_per_s": rate or 1e4,
                                                   "total_bytes_per_s": rate}}, file)
    described, err = lade("train", *TRAIN, "--machine", "machine.json", "--steps", "2", "--eval-iters", "1")
    described = json.loads(described)
    assert described["predicted_step_seconds"] * 2 > 80 and "drive: " in err and "long runs" not in err, (described, err)
    assert described["loss_digest"] == usual["loss_digest"] and described["params_digest"] == usual["params_digest"]
