#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`lade plan --graph`: lists that replay within every budget, figures for scripts, exit codes, the frontier.

The replay here is a program of its own: it knows the rules of docs/graph.md, and nothing of the library.

Usage: graph.py LADE
"""
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as xml

LADE = os.path.abspath(sys.argv[1])
FIELDS = {"schema_version", "fits", "budget_bytes", "planned_peak_bytes", "unconstrained_bytes", "min_budget_bytes",
          "floor_bytes", "host_bytes", "store_bytes", "base_ns", "compute_ns", "bound_ns", "predicted_step_ns", "seconds",
          "n_redone", "moved_bytes"}
OF_A_PLAN = {"planned_peak_bytes", "host_bytes", "store_bytes", "compute_ns", "predicted_step_ns", "n_redone",
             "moved_bytes"}
POINT_FIELDS = {"budget_bytes", "planned_peak_bytes", "compute_ns", "predicted_step_ns", "bound_ns", "n_redone",
                "moved_bytes"}
QUICK = ["--iterations", "3000"]
NETS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "bench", "graphs", "nets.py")
os.chdir(tempfile.mkdtemp(prefix="lade-graph-"))


def run(*args, **how):
    result = subprocess.run([LADE, "plan", *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False, **how)
    return result.returncode, result.stdout.decode(), result.stderr.decode("utf-8", "backslashreplace")


def planned(*args, code=0, **how):
    got, out, err = run(*args, *QUICK, "--json", **how)
    assert got == code and err.count("\n") == (code != 0), (args, got, out, err)
    return json.loads(out)


def refused(code, words, *args):
    """Check that @args end with @code, one line on stderr with all @words, and no other effect."""
    before = sorted(os.listdir())
    got, out, err = run(*args)
    assert got == code and not out and err.count("\n") == 1 and err.startswith("lade plan: "), (args, got, out, err)
    for word in words:
        assert word in err, (args, word, err)
    assert sorted(os.listdir()) == before, args


def write(name, value):
    with open(name, "w", encoding="utf-8") as file:
        file.write(value if isinstance(value, str) else json.dumps(value))
    return name


# ---- graphs ----

class Graph:
    """A graph under construction."""

    def __init__(self):
        self.storages, self.ops, self.keep = [], [], []

    def storage(self, size, **fields):
        self.storages.append({"name": f"s{len(self.storages)}", "bytes": size, **fields})
        return len(self.storages) - 1

    def op(self, ns, reads, writes, **fields):
        self.ops.append({"name": f"op{len(self.ops)}", "reads": reads, "writes": writes, "ns": ns, **fields})

    def text(self):
        return {"schema_version": 1, "storages": self.storages, "ops": self.ops, "keep": self.keep}


def layers(n, draw, skips=False, in_place=False, ranges=False, draws=False, updates=False):
    """A forward pass, the backward pass over what it kept, and the update of the parameters."""
    graph = Graph()
    params = [graph.storage(draw.randrange(100, 400), given=True) for _ in range(n)]
    made, before = [], None
    for i in range(n):
        out = graph.storage(2 * draw.randrange(100, 1000))
        size = graph.storages[out]["bytes"]
        reads = [params[i]] + ([] if before is None else [before])
        if skips and i > 3 and i % 3 == 0:
            reads.append(made[draw.randrange(i - 1)])
        if ranges and i % 4 == 1: # two ops write a half each
            graph.op(draw.randrange(50, 500), reads, [[out, 0, size // 2]])
            graph.op(draw.randrange(50, 500), reads, [[out, size // 2, size // 2]])
        else:
            graph.op(draw.randrange(50, 500), reads, [out], draws=draws and i % 2 == 0,
                     scratch_bytes=draw.randrange(0, 300))
        if in_place and i % 3 == 2:
            graph.op(draw.randrange(20, 100), [], [], updates=[out])
        made.append(out)
        before = out
    loss, gradient = graph.storage(4), None
    graph.op(5, [before], [loss])
    graph.keep = [loss]
    for i in reversed(range(n)):
        above, gradient = gradient, graph.storage(draw.randrange(50, 400))
        graph.op(draw.randrange(50, 900), [params[i], made[i]] + ([] if above is None else [above]), [gradient],
                 **{"pass": "backward"})
        if updates:
            graph.op(30, [gradient], [], updates=[params[i]], repeatable=False, **{"pass": "update"})
    return graph.text()


draw_all = random.Random(5)
GRAPHS = {"chain": layers(20, draw_all), "skips": layers(25, draw_all, skips=True),
          "in-place": layers(20, draw_all, in_place=True), "ranges": layers(16, draw_all, ranges=True),
          "draws": layers(18, draw_all, draws=True), "updates": layers(18, draw_all, updates=True),
          "all": layers(24, draw_all, True, True, True, True, True)}
for name, graph in GRAPHS.items():
    write(name + ".json", graph)

# A step of our own models is a graph, too. Its plan keeps all on the device, or no graph is written.
OWN = ["--model", "nano", "--layers", "2", "--batch", "4", "--micro-batch", "2", "--machine", "h100-80g", "--dropout", "0.1",
       "--host-budget", "0", "--recompute", "none", "--graph-out", "own.json"]
code, out, err = run(*OWN, "--json")
assert code == 0 and not err, (code, err)
model_plan = json.loads(out)
with open("own.json", encoding="utf-8") as file:
    own = json.load(file)
whole_bytes = json.loads(run("--graph", "own.json", "--json", *QUICK)[1])["unconstrained_bytes"]
assert abs(whole_bytes - model_plan["planned_peak_bytes"]) < 4 << 20, (whole_bytes, model_plan)  # chunks and offsets
assert any(op.get("draws") for op in own["ops"]) and own["keep"]
os.remove("own.json")
refused(2, ["keeps all values on the device", "computes a value again"], *OWN[:-4], "--recompute", "full", *OWN[-2:])
refused(2, ["--graph-out", "--frontier"], *OWN, "--frontier")
refused(2, ["no-such-folder"], *OWN[:-1], "no-such-folder/own.json")
write("own.json", own)


# ---- a replay ----

def operands(op, field):
    return [item if isinstance(item, list) else [item, 0, 0] for item in op.get(field, [])]


class Replay:
    """The device, as a list of instructions changes it."""

    def __init__(self, graph):
        self.graph, self.storages = graph, graph["storages"]
        self.version = {i: 0 for i, storage in enumerate(self.storages) if storage.get("given")}
        self.takes = []  # by op: the version of each storage that its first run finds
        self.latest = dict.fromkeys(range(len(self.storages)), 0)
        self.peak = self.bytes = sum(self.storages[i]["bytes"] for i in self.version)
        self.ns = self.n_redone = self.moved = self.host_bytes = self.host_peak = 0
        self.copies = {}

    def is_first_write(self, storage, version):
        return version == 0 and not self.storages[storage].get("given")

    def use(self, number, takes):
        """Run op @number, whose operands must be there at the versions @takes; None: those that the first run finds."""
        op = self.graph["ops"][number]
        changed = {storage for field in ("writes", "updates") for storage, _, _ in operands(op, field)}
        used = changed | {storage for storage, _, _ in operands(op, "reads")}
        if takes is None:
            takes = {storage: self.latest[storage] for storage in used}
            self.takes.append(takes)
            for storage in changed:
                self.latest[storage] += 1
        else:
            assert op.get("repeatable", True), ("runs again", number)
            assert not any(self.storages[storage].get("given") for storage in changed), ("changes twice", number)
        for storage in used:
            found = self.version.get(storage)
            if not (storage in changed and self.is_first_write(storage, takes[storage])):
                assert found == takes[storage], (number, storage, found, takes[storage])
            elif found is None:
                self.bytes += self.storages[storage]["bytes"]
        for storage in changed:
            self.version[storage] = takes[storage] + 1
        self.peak = max(self.peak, self.bytes + op.get("scratch_bytes", 0))
        self.ns += op["ns"]

    def move(self, kind, index, tier):
        """Put a storage to @tier, or get it back: its copy there has the version of the put."""
        size = self.storages[index]["bytes"]
        if kind == "put":
            self.copies[index] = (tier[0], self.version.pop(index))
            self.bytes -= size
            self.host_bytes += size
            self.host_peak = max(self.host_peak, self.host_bytes)
        else:
            assert not tier and index not in self.version, (kind, index)
            self.version[index] = self.copies.pop(index)[1]
            self.bytes += size
            self.host_bytes -= size
            self.peak = max(self.peak, self.bytes)
        self.moved += size

    def step(self, kind, index, *tier):
        if kind in ("put", "get"):
            self.move(kind, index, tier)
            return
        assert not tier
        if kind == "op":
            assert index == len(self.takes), ("order", index)
            self.use(index, None)
        elif kind == "redo":
            self.use(index, self.takes[index])
            self.n_redone += 1
        else:
            assert kind == "drop" and not self.storages[index].get("given"), (kind, index)
            del self.version[index]
            self.bytes -= self.storages[index]["bytes"]

    def end(self):
        assert len(self.takes) == len(self.graph["ops"])
        stays = set(self.graph["keep"]) | {i for i, storage in enumerate(self.storages) if storage.get("given")}
        assert set(self.version) == stays and not self.copies, (self.version, stays, self.copies)
        assert all(self.version[i] == self.latest[i] for i in stays)


def replay(graph, path, plan):
    with open(path, encoding="utf-8") as file:
        listed = json.load(file)
    assert set(listed) == {"instructions"}
    device = Replay(graph)
    for instr in listed["instructions"]:
        device.step(*instr)
    device.end()
    assert device.peak == plan["planned_peak_bytes"], (device.peak, plan)
    assert device.ns == plan["compute_ns"] and device.n_redone == plan["n_redone"], (device.ns, plan)
    assert device.moved == plan["moved_bytes"] and device.host_peak == plan["host_bytes"], (device.moved, plan)


# ---- plans within every budget ----

def plans_check(name, graph):
    path, last_ns = name + ".json", None
    whole = planned("--graph", path, "--instructions", "list.json")
    assert set(whole) == FIELDS and whole["fits"] and whole["budget_bytes"] is None, whole
    assert whole["planned_peak_bytes"] == whole["unconstrained_bytes"] and whole["n_redone"] == 0, whole
    assert whole["base_ns"] == whole["compute_ns"] == whole["bound_ns"] == sum(op["ns"] for op in graph["ops"]), whole
    replay(graph, "list.json", whole)
    n_fits = 0
    for percent in range(30, 101, 10):
        budget = whole["unconstrained_bytes"] * percent // 100
        code, out, err = run("--graph", path, "--budget", f"{percent}%", "--instructions", "list.json", "--json", *QUICK)
        plan = json.loads(out)
        assert set(plan) == FIELDS and plan["schema_version"] == 1 and code == (0 if plan["fits"] else 3), (plan, err)
        assert plan["budget_bytes"] == budget and plan["unconstrained_bytes"] == whole["unconstrained_bytes"], plan
        assert plan["floor_bytes"] == whole["floor_bytes"] <= plan["min_budget_bytes"], plan
        if not plan["fits"]:
            assert all(plan[field] is None for field in OF_A_PLAN) and plan["min_budget_bytes"] > budget, plan
            assert f"({plan['min_budget_bytes']} bytes)" in err and err.count("\n") == 1, (plan, err)
            continue
        n_fits += 1
        assert plan["planned_peak_bytes"] <= budget and plan["bound_ns"] <= plan["compute_ns"], plan
        assert plan["moved_bytes"] == plan["host_bytes"] == plan["store_bytes"] == 0 and plan["seconds"] >= 0, plan
        replay(graph, "list.json", plan)
        last_ns = plan["compute_ns"]
    assert n_fits >= 4 and last_ns == whole["base_ns"], (name, n_fits, last_ns)
    least = planned("--graph", path, "--budget", "min", "--instructions", "list.json")
    assert least["fits"] and least["planned_peak_bytes"] <= least["budget_bytes"] == least["min_budget_bytes"], least
    assert least["n_redone"] > 0, least
    replay(graph, "list.json", least)
    again = planned("--graph", path, "--budget", str(least["budget_bytes"]))
    assert again["budget_bytes"] == least["budget_bytes"] and again["compute_ns"] <= least["compute_ns"] * 2, again


for name, graph in GRAPHS.items():
    plans_check(name, graph)
for budget in ("100%", "95%", "min"):
    plan = planned("--graph", "own.json", "--budget", budget, "--instructions", "list.json")
    assert plan["fits"] and (plan["n_redone"] > 0) == (budget != "100%"), plan
    replay(own, "list.json", plan)

# With the host: given storages are moved, too, and come back. The plan is not slower than one without the host.
HOST = ["--machine", "laptop-8c", "--host-budget", "1MiB"]
n_moved = 0
for name in ("updates", "all", "in-place"):
    path = name + ".json"
    for percent in (85, 70):
        budget = ["--budget", f"{percent}%", "--instructions", "list.json"]
        with_host = planned("--graph", path, *budget, *HOST)
        replay(GRAPHS[name], "list.json", with_host)
        assert with_host["planned_peak_bytes"] <= with_host["budget_bytes"], with_host
        assert with_host["bound_ns"] <= with_host["predicted_step_ns"], with_host
        n_moved += with_host["moved_bytes"] > 0
        code, out, err = run("--graph", path, *budget, "--json", *QUICK)
        if code == 0:
            assert with_host["predicted_step_ns"] <= json.loads(out)["predicted_step_ns"], (name, percent)
least = {name: planned("--graph", name + ".json", "--budget", "min", *more)["planned_peak_bytes"]
         for name, more in (("updates", []), ("all", []))}
for name, smallest in least.items():
    with_host = planned("--graph", name + ".json", "--budget", "min", "--instructions", "list.json", *HOST)
    replay(GRAPHS[name], "list.json", with_host)
    assert with_host["planned_peak_bytes"] < smallest and with_host["moved_bytes"] > 0, (name, smallest, with_host)

# Equal inputs give equal bytes; the seed counts; a limit of time ends a search without a number of iterations.
lists = {}
for seed in ("1", "1", "2", "3", "4", "5"):
    planned("--graph", "all.json", "--budget", "55%", "--seed", seed, "--instructions", "list.json")
    with open("list.json", "rb") as file:
        text = file.read()
    assert lists.setdefault(seed, text) == text, seed
assert len(set(lists.values())) > 1
code, out, err = run("--graph", "all.json", "--budget", "60%", "--seconds", "0.2", "--json")
assert code == 0 and json.loads(out)["fits"], (code, err)

# A graph comes from a pipe, too, and a list goes into one.
with open("chain.json", "rb") as file:
    assert planned("--graph", "-", "--budget", "60%", stdin=file)["fits"]
code, out, err = run("--graph", "chain.json", "--instructions", "/dev/stdout", *QUICK)
assert code == 0 and out.startswith('{"instructions":[\n["op",0],\n'), (code, out, err)

# For persons: at most a dozen lines, with the figures.
code, out, err = run("--graph", "all.json", "--budget", "60%", *QUICK)
assert code == 0 and not err and out.count("\n") <= 12, (out, err)
for word in ("fits          yes", "budget", "unconstrained", "smallest", "lower bound", "predicted", "redone", "%"):
    assert word in out, (word, out)
code, out, err = run("--graph", "all.json", "--budget", "1", *QUICK)
assert code == 3 and "fits          no" in out and err.count("\n") == 1, (code, out, err)

# ---- mistakes ----

G = ["--graph", "chain.json"]
refused(2, ["nope.json", "No such file"], "--graph", "nope.json")
refused(2, ["."], "--graph", ".")
for text in ("", "{", "\0\xff"):
    refused(5, ["bad.json", "not JSON"], "--graph", write("bad.json", text))
refused(5, ["bad.json", "it is []: expected an object"], "--graph", write("bad.json", "[]"))
for text in ('{"schema_version":1}', '{"schema_version":2,"storages":[],"ops":[]}',
             '{"schema_version":1,"storages":[],"ops":[{"name":"a","reads":[3],"writes":[],"ns":1}]}',
             '{"schema_version":1,"storages":[{"name":"a","bytes":-1}],"ops":[]}'):
    refused(2, ["bad.json"], "--graph", write("bad.json", text))
refused(2, ["--instructions", "missing/list.json", "No such file"], *G, "--instructions", "missing/list.json")
refused(2, ["--instructions chain.json", "overwrite", "--graph chain.json"], *G, "--instructions", "chain.json")
with open("chain.json", "rb") as file:  # the file behind standard input is an input, too
    result = subprocess.run([LADE, "plan", "--graph", "-", "--instructions", "chain.json"], stdin=file,
                            capture_output=True, check=False)
    assert result.returncode == 2 and b"would overwrite the input --graph -" in result.stderr, result
    file.seek(0)
    assert json.load(file)["schema_version"] == 1
refused(2, ["--svg chain.json", "overwrite", "--graph chain.json"], *G, "--frontier", "--svg", "chain.json")
refused(5, ["--instructions /dev/full"], *G, "--instructions", "/dev/full", *QUICK)
for option in ("--batch=3", "--model=baby", "--tp=2", "--layers=2", "--device=dry", "--max=seq", "--timeline=t",
               "--recompute=full", "--store=.", "--data=x", "--steps=4", "--threads=1", "--rank=0", "--durable"):
    refused(2, ["--graph", option.partition("=")[0], "exclude"], *G, option)
for option in ("--iterations=3", "--instructions=x", "--seconds=1"):
    refused(2, [option.partition("=")[0], "needs --graph"], option)
refused(2, ["--svg", "--frontier"], *G, "--svg", "x.svg")
refused(2, ["--frontier", "--budget"], *G, "--frontier", "--budget", "60%")
refused(2, ["--frontier", "--instructions"], *G, "--frontier", "--instructions", "x")
for budget in ("0", "0%", "much", "120%dev", ""):
    refused(2, ["udget"], *G, "--budget", budget)
refused(2, ["--budget 50%dev", "--machine"], *G, "--budget", "50%dev")
refused(2, ["--host-budget", "--machine"], *G, "--host-budget", "1MiB")
refused(2, ["--store-budget", "--machine"], *G, "--store-budget", "1MiB")
huge = write("huge.json", {"schema_version": 1, "storages": [{"name": "x", "bytes": 2**53 + 1}],
                          "ops": [{"name": "f", "reads": [], "writes": [0], "ns": 1}]})
for budget in ("100%", str(2**53 + 1)):
    assert planned("--graph", huge, "--budget", budget)["budget_bytes"] == 2**53 + 1
assert planned("--graph", huge, "--budget", str(2**53), code=3)["budget_bytes"] == 2**53
refused(2, ["nothing", "laptop-8c"], *G, "--machine", "nothing")
for option in (["--iterations", "0"], ["--seconds", "0"], ["--seconds", "nan"], ["--iterations", "-1"]):
    refused(2, [option[0]], *G, *option)
assert planned(*G, "--budget", "50%dev", "--machine", "h100-80g")["budget_bytes"] == 40 << 30
assert planned(*G, "--host-budget", "0", "--store-budget", "0")["fits"]
assert planned(*G, "--host-budget", "1GiB", "--store-budget", "1GiB", "--machine", "laptop-8c")["fits"]

# Options of models in a configuration give way to --graph; a printed configuration reads back.
write("run.conf", "model = baby\nbatch = 4\n")
assert planned(*G, "--config", "run.conf")["fits"]
write("run.conf", run(*G, "--budget", "60%", "--seed", "7", "--iterations", "500", "--print-config")[1])
for options in ([*G, "--budget", "60%", "--seed", "7", "--iterations", "500"], ["--config", "run.conf"]):
    code, out, err = run(*options, "--instructions", "list.json", "--json")
    assert code == 0, err
    with open("list.json", "rb") as file:
        lists[options[0]] = file.read()
assert lists["--graph"] == lists["--config"]

# A signal ends a long search.
process = subprocess.Popen([LADE, "plan", "--graph", "all.json", "--budget", "min", "--seconds", "600"],
                           stdout=subprocess.PIPE, stderr=subprocess.PIPE)
try:
    process.wait(0.5)
except subprocess.TimeoutExpired:
    process.send_signal(signal.SIGINT)
assert process.wait(30) == -signal.SIGINT
process.communicate()

# ---- the frontier ----

for name in ("chain", "all"):
    code, out, err = run("--graph", name + ".json", "--frontier", "--svg", "f.svg", "--json", "--iterations", "30000")
    assert code == 0, err
    frontier, points = json.loads(out), json.loads(out)["points"]
    whole = planned("--graph", name + ".json")
    assert frontier["schema_version"] == 1 and frontier["base_ns"] == whole["base_ns"] and 2 <= len(points) <= 16
    assert all(set(point) == POINT_FIELDS for point in points), points
    for small, large in zip(points, points[1:]):
        assert small["budget_bytes"] < large["budget_bytes"], (small, large)
        assert small["predicted_step_ns"] >= large["predicted_step_ns"], (small, large)
    for point in points:
        assert point["planned_peak_bytes"] <= point["budget_bytes"] and point["bound_ns"] <= point["compute_ns"], point
    assert points[-1]["budget_bytes"] == whole["unconstrained_bytes"], points
    assert points[-1]["predicted_step_ns"] == whole["base_ns"] < points[0]["predicted_step_ns"], points
    svg = xml.parse("f.svg").getroot()
    assert svg.tag == "{http://www.w3.org/2000/svg}svg" and len(svg.findall("{*}circle")) == len(points), svg
    curve, = [line for line in svg.findall("{*}polyline") if not line.get("stroke-dasharray")]
    bound, = [line for line in svg.findall("{*}polyline") if line.get("stroke-dasharray")]
    for line in (curve, bound):
        spots = [tuple(map(float, spot.split(","))) for spot in line.get("points").split()]
        assert all(0 <= x <= 840 and 0 <= y <= 510 for x, y in spots) and len(spots) >= len(points), spots
        assert all(a[0] <= b[0] and a[1] <= b[1] for a, b in zip(spots, spots[1:])), spots
    labels = [text.text for text in svg.findall("{*}text")]
    assert name + ".json" in labels and "device budget" in labels and any("KiB" in label for label in labels), labels
code, out, err = run("--graph", "chain.json", "--frontier", "--iterations", "3000")
assert code == 0 and "lower bound" in out and out.count("\n") <= 20, (out, err)

# The frontier of a model: plans of all ranks at budgets that grow, none slower than the one before.
code, out, err = run("--model", "nano", "--layers", "1", "--machine", "laptop-8c", "--frontier", "--svg", "f.svg", "--json")
assert code == 0, err
frontier = json.loads(out)
points = frontier["points"]
assert frontier["model"] == "nano" and 2 <= len(points) <= 16 and points[0]["budget_bytes"] >= frontier["min_budget_bytes"]
for point, following in zip(points, points[1:]):
    assert point["budget_bytes"] < following["budget_bytes"], (point, following)
    assert point["predicted_step_ns"] >= following["predicted_step_ns"], (point, following)
    assert point["planned_peak_bytes"] <= point["budget_bytes"] and set(point) == POINT_FIELDS, point
assert points[0]["predicted_step_ns"] > points[-1]["predicted_step_ns"] and xml.parse("f.svg").getroot().tag.endswith("svg")
refused(2, ["--frontier", "--timeline"], "--model", "nano", "--frontier", "--timeline", "t")
refused(2, ["--max", "--frontier"], "--model", "nano", "--frontier", "--max", "seq")

# A frontier of one budget; titles of any letters; no ops at all.
os.rename(write("one.json", {"schema_version": 1, "storages": [], "ops": []}), b"<&>\xff.json")
code, out, err = run("--frontier", "--graph", b"<&>\xff.json", "--json", "--svg", "f.svg")
assert code == 0 and len(json.loads(out)["points"]) == 1, (out, err)
assert "<&>" in "".join(text.text for text in xml.parse("f.svg").getroot().findall("{*}text"))
for budget in ("min", "1", "60%", "auto"):
    assert planned("--graph", b"<&>\xff.json", "--budget", budget)["fits"], budget

# Networks at budgets where weaker searches ended at more: VGG-16 without long detours at 3.02 %, U-Net with annealing
# alone at 11.93 %, ResNet-50 without prices of the bound at 9.75 %. The best known are 1.573, 10.877 and 9.42.
for net, budget, most in (("vgg16", "60%", 1.6), ("unet", "35%", 11.8), ("resnet50", "40%", 9.6)):
    subprocess.run([sys.executable, NETS, net, "-o", f"{net}.json"], check=True)
    code, out, err = run("--graph", f"{net}.json", "--budget", budget, "--host-budget", "0", "--iterations", "800000",
                         "--json")
    assert code == 0, (net, code, err)
    found = json.loads(out)
    overhead = 100 * (found["compute_ns"] / found["base_ns"] - 1)
    assert found["fits"] and overhead <= most, (net, budget, overhead)

# Layers whose ops read values made up to thirty ops before: to make one again, its inputs are held instead of it.
# Releases alone find no plan of these graphs.
for seed, most in ((2, 14), (3, 11)):
    draw = random.Random(seed)
    graph = {"schema_version": 1, "storages": [], "ops": [], "keep": [149]}
    for i in range(150):
        graph["storages"].append({"name": f"v{i}", "bytes": draw.randrange(100, 6000)})
        reads = {i - 1 - int(30 * draw.random() ** 3) for _ in range(draw.randrange(1, 4))} if i else set()
        graph["ops"].append({"name": f"op{i}", "reads": sorted(read for read in reads if read >= 0), "writes": [i],
                             "ns": draw.randrange(1000, 1000000)})
    code, out, err = run("--graph", write("layers.json", graph), "--budget", "80%", "--host-budget", "0", "--iterations",
                         "20000", "--json")
    assert code == 0, (seed, code, err)
    found = json.loads(out)
    assert found["fits"] and found["compute_ns"] <= (1 + most / 100) * found["base_ns"], (seed, found)

# The smallest budget with room on the host is near the largest need of one op: redos alone end
# at 1.3 times as much, because they need operands too.
subprocess.run([sys.executable, NETS, "mobilenetv2", "-o", "mobilenetv2.json"], check=True)
found = planned("--graph", "mobilenetv2.json", "--budget", "min", "--host-budget", "400GiB", "--machine", "a100-80g")
assert found["planned_peak_bytes"] <= 1.05 * found["floor_bytes"], found

# A budget for which a backward op has to run again with all that leads to it: annealing alone does not find one.
subprocess.run([sys.executable, NETS, "resnet-small", "--layers", "2", "-o", "resnet.json"], check=True)
code, out, err = run("--graph", "resnet.json", "--budget", "60%", "--host-budget", "0", "--iterations", "60000", "--json")
assert code == 0 and json.loads(out)["compute_ns"] <= 6378457, (out, err)
