# SPDX-License-Identifier: Apache-2.0
"""Shapes that the values of the arguments decide, packed sequences, CTC losses, and assignments by the host within a step."""
import contextlib
import copy
import gc
import importlib.abc
import importlib.machinery
import itertools
import pickle
import random
import types
import warnings
import weakref
from unittest import mock

from fixture import *  # noqa: F403

from torch.nn.utils.rnn import pack_padded_sequence, pack_sequence, pad_packed_sequence

GENERATOR = torch.Generator().manual_seed(1)
X = torch.randn(4, 12, 16, generator=GENERATOR)
Y = torch.randint(1, 8, (4, 12), generator=GENERATOR)
MASKS = [torch.arange(12)[None] < torch.tensor([[n], [12], [5], [7]]) for n in (3, 9, 3, 0)]


def net():
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 8))


def of(loss_of):
    """Return a maker of steps with a loss."""
    def make(model, optimizer):
        def train(*batch):
            loss = loss_of(model, *batch)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()
        return train
    return make


def seed():
    torch.manual_seed(SEED)
    random.seed(SEED)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(SEED)


def generators():
    """Return the states of torch's generator, of Python's and of NumPy's."""
    return pickle.dumps(lade.torch.generators.states_of_step(torch.device("cpu")))


def same(name, loss_of, data, n_plans, make_model=net):
    """Assert eager's bits and planned = measured over different batches, which need @n_plans plans."""
    torch.manual_seed(0)
    model = make_model()
    own = copy.deepcopy(model)
    optimizer = adamw(own)
    train = of(loss_of)(own, optimizer)
    seed()
    wanted = [float(train(*batch)) for batch in data], lade.torch.digest(own, optimizer), generators()
    for budget, host, audit in (("100%", None, True), ("min", "64MiB", False)):
        own = copy.deepcopy(model)
        optimizer = adamw(own)
        step = lade.torch.step(of(loss_of)(own, optimizer), own, optimizer, budget, host=host, audit=audit)
        seed()
        losses = []
        for batch in data[:-1]:
            losses.append(float(step(*batch)))
        peaks = lade.torch.measure(step, *data[-1])["peak_bytes"], step.report()["planned_peak_bytes"]
        assert losses == wanted[0][:-1], (name, budget, losses, wanted[0])
        assert lade.torch.digest(own, optimizer) == wanted[1], (name, budget)
        assert generators() == wanted[2], (name, budget)
        assert peaks[0] == peaks[1], (name, budget, peaks)
        assert n_plans is None or sum(map(len, step.ready.values())) == n_plans, (name, step.ready)
    print(name, flush=True)


def masks_of_the_batch_decide_shapes():
    masks = [(X, mask) for mask in MASKS[:3]]
    same("rows by a mask", lambda m, x, mask: m(x)[mask].square().mean(), masks, 2)
    same("rows by their places", lambda m, x, mask: m(x)[mask.nonzero(as_tuple=True)].square().mean(), masks, 2)
    same("labels by a mask", lambda m, x, mask, y: F.cross_entropy(m(x)[mask], y.masked_select(mask)),
         [(X, mask, Y) for mask in MASKS[:3]], 2)
    same("classes that occur", lambda m, x, y: m(x).flatten(0, 1)[torch.unique(y)].square().mean(),
         [(X, Y), (X, Y // 2), (X, Y)], 2)
    same("repeats", lambda m, x, n: torch.repeat_interleave(m(x)[0], n, dim=0).square().mean(),
         [(X, torch.arange(12)), (X, torch.arange(12) // 3), (X, torch.arange(12))], 2)


def counts_of_the_batch_are_numbers():
    """A number of tokens that the step reads has a plan for each value; old ones make room."""
    def loss_of(m, x, mask):
        n = mask.sum().item()
        assert mask.sum(-1).max().item() <= x.shape[1]
        return m(x).square().sum() / n
    same("a count", loss_of, [(X, mask) for mask in MASKS[:3]], 2)
    with mock.patch.object(lade.torch.plans, "PLANS_MAX", 1):
        same("a count, one plan at a time", loss_of, [(X, mask) for mask in MASKS], 1)


def step_of(loss_of, model, **options):
    optimizer = adamw(model)
    return lade.torch.step(of(loss_of)(model, optimizer), model, optimizer, **{"budget": "100%", "audit": False, **options})


def counts_that_never_come_again_are_told_once():
    """A step is told with its line at the third count, and of plans that no call met only the last is kept then."""
    step = step_of(lambda m, x, mask: m(x).square().sum() / mask.sum().item(), net())
    masks = [torch.arange(48).view(4, 12) < n for n in range(1, 7)]
    with mock.patch.object(lade.torch.plans, "PLANS_MAX", 4), warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for n, mask in enumerate(masks, 1):
            step(X, mask)
            assert sum(map(len, step.ready.values())) == (n if n <= 4 else 1), n
            own = [str(one.message) for one in told if "lade" in str(one.message)]
            assert len(own) == (n >= 3), (n, own)
    assert "3 different" in own[0] and "shapes.py" in own[0] and "mask.sum().item()" in own[0], own


def the_plan_that_was_used_longest_ago_makes_room():
    step = step_of(lambda m, x, mask: m(x)[mask].square().mean(), net())
    a, b, c = [torch.arange(48).view(4, 12) < n for n in (3, 5, 7)]
    with mock.patch.object(lade.torch.plans, "PLANS_MAX", 2):
        for mask, n_made in ((a, 1), (b, 2), (a, 2), (c, 3), (a, 3), (b, 4)):
            step(X, mask)
            plans, = step.ready.values()
            assert plans.n_made == n_made and len(plans) <= 2, (n_made, plans.n_made)


def a_capture_that_fails_takes_no_plans_room():
    def loss_of(m, x, mask):
        if mask.sum().item() == 5:
            raise ArithmeticError("five")
        return m(x).square().mean()
    step = step_of(loss_of, net())
    with mock.patch.object(lade.torch.plans, "PLANS_MAX", 1):
        step(X, torch.arange(48).view(4, 12) < 3)
        ready, = next(iter(step.ready.values()))
        refused(lade.CannotCapture, lambda: step(X, torch.arange(48).view(4, 12) < 5), "five")
        assert list(next(iter(step.ready.values()))) == [ready]


def masks_are_made_and_changed_in_the_step():
    """As Longformer does: a mask like the tokens, with a first place that is set; and copies of arguments that change."""
    def of_tokens(m, x, y):
        marks = torch.zeros_like(y)
        marks[:, 0] = 1
        return m(x)[(marks > 0).nonzero(as_tuple=True)].square().mean()

    def of_copies(m, x, mask):
        before, own = mask.sum().item(), mask.clone()
        first = own[:, 0]
        first.fill_(True)
        own[1].logical_and_(mask[0])
        return m(x)[own].square().mean() * (before + first.sum().item())

    def of_arguments(m, x, mask):
        mask[:, 0] = True
        return m(x)[mask].square().mean()
    same("places in new masks", of_tokens, [(X, Y), (X, Y // 2), (X, Y)], 1)
    same("places in changed copies", of_copies, [(X, mask.clone()) for mask in MASKS[:3]], 2)
    same("places in changed arguments", of_arguments, [(X, mask.clone()) for mask in MASKS[:2]], None)


class Rows(nn.Module):
    """Writes one row in the places of a mask, as models of masked speech do."""

    def __init__(self):
        super().__init__()
        self.net, self.row = net(), nn.Parameter(torch.ones(8))

    def forward(self, x, mask):
        x = self.net(x) * 1
        x[mask] = self.row
        return x


def masked_rows_are_written():
    same("a row in masked places", lambda m, x, mask: m(x, mask).square().mean(), [(X, mask) for mask in MASKS[:3]], 2, Rows)


def writes_at_masked_places_take_scratch_by_their_number():
    """Planned = measured where no gradient asks for the places; one value is filled in, which has one plan."""
    def writing(value):
        def loss_of(m, x, mask):
            weights = torch.zeros(64, 128, 64)
            weights[mask] = value
            return m(x).square().mean() * (1 + weights.mean())
        return loss_of
    data = [(X, torch.arange(64 * 128).view(64, 128) < n) for n in (5, 5, 4096)]
    same("rows in masked places of a constant", writing(torch.ones(64)), data, 2)
    same("a number in masked places", writing(1.0), data, 1)


def adaptive():
    return nn.ModuleList([nn.Linear(16, 32), nn.AdaptiveLogSoftmaxWithLoss(32, 20, [4, 10])])


def frequent_classes_have_a_head_of_their_own():
    same("an adaptive softmax", lambda m, x, y: m[1](m[0](x).flatten(0, 1), y.flatten()).loss,
         [(X, Y), (X, Y * 3 % 20), (X, Y)], 3, adaptive)


def ctc_losses_take_lengths_in_all_forms():
    def scores(m, x):
        return m(x).log_softmax(-1).transpose(0, 1)

    def concatenated(m, x, y):
        mask = y > 0
        return F.ctc_loss(scores(m, x), y.masked_select(mask), torch.full((4,), 12), mask.sum(-1), reduction="sum")
    lengths = [torch.tensor(n) for n in ([3, 5, 2, 4], [3, 4, 2, 4], [5, 5, 1, 4])]  # two plans: by the longest
    same("lengths in a tensor", lambda m, x, n: F.ctc_loss(scores(m, x), Y[:, :5].contiguous(), torch.full((4,), 12), n),
         [(X, n) for n in lengths], 2)
    same("lengths in lists", lambda m, x: F.ctc_loss(scores(m, x), Y[:, :5].contiguous(), [12] * 4, (3, 5, 2, 4),
                                                     zero_infinity=True), [(X,)] * 3, 1)
    same("targets in a row", concatenated, [(X, Y[:, :5] * mask[:, :5]) for mask in MASKS[:3]], 2)
    model = net()
    optimizer = adamw(model)
    train = of(lambda m, x: F.ctc_loss(scores(m, x), Y, torch.full((4,), 12), m(x)[:, 0].argmax(-1)))(model, optimizer)
    refused(lade.CannotCapture, lambda: lade.torch.step(train, model, optimizer, "100%")(X), "_ctc_loss", "lengths of its targets",
            "shapes.py")


def fake_scipy():
    """A module with SciPy's function, for environments without SciPy: the best assignment of rows to columns."""
    def linear_sum_assignment(cost_matrix, maximize=False):
        import numpy
        sign, (n_rows, n_columns) = (-1 if maximize else 1), cost_matrix.shape
        assert n_rows >= n_columns
        rows = min(itertools.permutations(range(n_rows), n_columns),
                   key=lambda rows: sign * sum(float(cost_matrix[r, c]) for c, r in enumerate(rows)))
        pairs = sorted((r, c) for c, r in enumerate(rows))
        return numpy.array([r for r, _ in pairs]), numpy.array([c for _, c in pairs])
    optimize = types.ModuleType("scipy.optimize")
    optimize.linear_sum_assignment = linear_sum_assignment
    package = types.ModuleType("scipy")
    package.optimize = optimize
    return {"scipy": package, "scipy.optimize": optimize}


def queries_are_matched_with_targets():
    """A loss as of DETR: the host matches queries and targets by computed costs, which change from step to step."""
    targets = torch.randn(4, 3, 8, generator=torch.Generator().manual_seed(2))
    with mock.patch.dict(sys.modules, fake_scipy()):
        from scipy.optimize import linear_sum_assignment

        def loss_of(m, x):
            found, loss = m(x)[:, :5], 0
            for own, wanted in zip(found, targets):
                with torch.no_grad():
                    rows, columns = sys.modules["scipy.optimize"].linear_sum_assignment(torch.cdist(own, wanted).cpu())
                rows, columns = torch.as_tensor(rows, dtype=torch.int64), torch.as_tensor(columns, dtype=torch.int64)
                loss = loss + (own[rows] - wanted[columns]).square().mean()
            return loss
        same("matched queries", loss_of, [(X,), (X.flip(0),), (X * 2,)], 1)
        assert sys.modules["scipy.optimize"].linear_sum_assignment is linear_sum_assignment


def a_step_imports_the_matcher_itself():
    """The import of scipy.optimize within a step gets the replacement, and SciPy has its own function after it."""
    with tempfile.TemporaryDirectory() as room, mock.patch.object(sys, "path", [room, *sys.path]), \
            mock.patch.dict(sys.modules):
        for name in [name for name in sys.modules if name.split(".")[0] == "scipy"]:
            del sys.modules[name]
        os.mkdir(os.path.join(room, "scipy"))
        for name, text in (("__init__", ""), ("optimize", "import numpy\ndef linear_sum_assignment(cost, maximize=False):\n"
                                                          "    places = numpy.arange(min(cost.shape))\n    return places, places\n")):
            with open(os.path.join(room, "scipy", f"{name}.py"), "w", encoding="utf-8") as file:
                file.write(text)

        def loss_of(m, x):
            from scipy.optimize import linear_sum_assignment
            found = m(x)[0]
            rows, _ = linear_sum_assignment(torch.cdist(found, found[:3]).detach())
            return found[torch.as_tensor(rows)].square().mean()
        step = step_of(loss_of, net())
        step(X)
        assert type(sys.modules["scipy.optimize"].linear_sum_assignment(torch.ones(2, 2))[0]).__name__ == "ndarray"
        assert "f_lade_assign" in step.last.planned.source
        assert not any("Imports" in type(one).__name__ for one in sys.meta_path)


class Memory(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds one module that lies on no path."""

    def __init__(self, name, text):
        self.name, self.text = name, text

    def find_spec(self, name, path, target=None):
        return importlib.machinery.ModuleSpec(name, self) if name == self.name else None

    def exec_module(self, module):
        exec(self.text, vars(module))


def a_step_imports_what_other_finders_find():
    """SciPy's and transformers' functions are replaced whatever finds their modules; a module that took one has its own again."""
    matcher = Memory("scipy.optimize", "import numpy\ndef linear_sum_assignment(cost, maximize=False):\n"
                                       "    places = numpy.arange(min(cost.shape))\n    return places, places\n")
    speech = Memory("transformers.models.heard", "import numpy\ndef _compute_mask_indices(shape, share, length, mask=None, least=0):\n"
                                                 "    return numpy.random.rand(*shape) < share\n")
    taker = Memory("taker", "from transformers.models.heard import _compute_mask_indices, _compute_mask_indices as other")
    packages = {name: types.ModuleType(name) for name in ("scipy", "transformers", "transformers.models")}
    for package in packages.values():
        package.__path__ = []
    with mock.patch.dict(sys.modules, packages), mock.patch.object(sys, "meta_path", [*sys.meta_path, matcher, speech, taker]):
        sys.modules.pop("scipy.optimize", None)

        def loss_of(m, x):
            from scipy.optimize import linear_sum_assignment
            import taker as own
            spans = torch.tensor(own._compute_mask_indices((4, 12), 0.5, 2), dtype=torch.bool)
            rows, _ = linear_sum_assignment(torch.cdist(m(x)[0], m(x)[1, :3]).detach())
            return m(x)[0][torch.as_tensor(rows)].square().mean() + (m(x).sum(-1) * spans).mean()
        step = step_of(loss_of, net())
        seed()
        step(X)
        assert "f_lade_assign" in step.last.planned.source and "f_lade_spans" in step.last.planned.source
        spans = sys.modules["transformers.models.heard"]._compute_mask_indices
        assert sys.modules["taker"]._compute_mask_indices is sys.modules["taker"].other is spans
        assert type(spans((1, 1), 0.5, 1)).__name__ == "ndarray" and speech.name not in sys.modules["taker"].__dict__
    for name in ("taker", "transformers.models.heard"):
        sys.modules.pop(name, None)


def questions_are_answered_within_a_capture():
    """A call with a new routing makes one plan; parts that answer keep the budget, and their peaks are those of their plans."""
    answering, peaks = lade.torch.answering, []
    run = answering.Answerer._run

    def metered(self, planned):
        tensors, events = planned.trace.tensors, lade.torch.pricing.meter.events_of(torch.device("cpu"))
        given = planned.given_bytes(tensors)
        with events:
            found = run(self, planned)
        peaks.append((planned.plan.info["planned_peak_bytes"], given + events.peak()[0]))
        return found
    for budget in ("100%", "85%", "min"):
        model = net()
        step = step_of(named, model, budget=budget)
        with mock.patch.object(answering.Answerer, "_run", metered):
            step(X)
            (plans,), report = step.ready.values(), step.report()
        asked = step.last.planned.trace.branches
        assert len(plans) == 1 and len(peaks) == len(asked) >= 3 and all(type(one) is tuple for one in asked), (peaks, asked)
        assert all(planned == measured for planned, measured in peaks), (budget, peaks)
        assert report["part_peak_bytes"] == max(peaks)[0] <= report["planned_peak_bytes"], (report["part_peak_bytes"], budget)
        peaks.clear()


def parts_that_fail_are_plans_that_say_why():
    """A check that fails in a part ends the step as it does outside of the capture, and nothing has changed."""
    def checked(m, x):
        h = m(x)
        torch._assert_async(((x * 1).abs() < 100).all(), "too large")
        return h[h > 0].square().mean()

    def checked_and_wrong(m, x):
        if not (m(x).detach().abs() < 100).all():  # a guess that the refusal does not blame
            raise ValueError("too large")
        raise KeyError("of the step")
    model = nn.Sequential(nn.Flatten(0, 1), nn.BatchNorm1d(16), net())
    refused(lade.CannotCapture, lambda: step_of(checked_and_wrong, model)(X), "of the step")
    step = step_of(checked, model)
    before = lade.torch.digest(model)
    refused(RuntimeError, lambda: step(X * 1000), "too large")
    assert lade.torch.digest(model) == before and not step.broken
    step(X)


COUNTER = itertools.count()
DRIFT = torch.library.Library("lade_test", "FRAGMENT")
DRIFT.define("drift(Tensor x) -> Tensor")
DRIFT.impl("drift", lambda x: x + 1 - next(COUNTER) % 2 * x.numel(), "CPU")
torch.library.register_fake("lade_test::drift", torch.empty_like, lib=DRIFT)


def values_that_differ_in_each_run_are_refused():
    """An op that is not deterministic decides a shape: the step ends, instead of beginning anew without end."""
    def drifting(m, x):
        h = torch.ops.lade_test.drift(m(x).detach())
        return m(x)[h > 0].square().mean()
    model = net()
    step = step_of(drifting, model)
    before = lade.torch.digest(model)
    refused(lade.Error, lambda: [step(X) for _ in range(3)], "differs in each run", "h > 0")
    assert lade.torch.digest(model) == before


def costs_that_are_no_numbers_end_a_step_before_its_updates():
    """SciPy refuses them: statistics that the step has written come back, and the next step runs."""
    modules = fake_scipy()
    plain = modules["scipy.optimize"].linear_sum_assignment

    def strict(cost_matrix, maximize=False):
        if (cost_matrix != cost_matrix).any():
            raise ValueError("matrix contains invalid numeric entries")
        return plain(cost_matrix, maximize)
    modules["scipy.optimize"].linear_sum_assignment = strict

    def loss_of(m, x):
        found = m(x[0])
        rows, _ = sys.modules["scipy.optimize"].linear_sum_assignment(torch.cdist(found[:5], torch.ones(3, 8)).detach())
        return found[torch.as_tensor(rows)].square().mean()
    with mock.patch.dict(sys.modules, modules):
        model = nn.Sequential(nn.BatchNorm1d(16), net())
        step = step_of(loss_of, model)
        step(X)
        before = lade.torch.digest(model, step.optimizer)
        refused(ValueError, lambda: step(X * float("nan")), "invalid numeric entries")
        assert lade.torch.digest(model, step.optimizer) == before
        step(X)


def plans_keep_no_batch():
    """Neither the operands of a price nor the bytes that a restart needs outlive a step, and no plan outlives its maker."""
    model = net()
    optimizer = adamw(model)

    def loss_of(m, x, y):
        x.mul_(0.5)  # before a branch, so the step keeps its bytes
        loss = m(x).flatten(0, 1)[torch.unique(y)].square().mean()
        return loss * 2 if loss > 5 else loss
    step = lade.torch.step(of(loss_of)(model, optimizer), model, optimizer, "100%", audit=False)
    x, y = X.clone(), Y.clone()
    held = weakref.ref(y)
    step(x, y)
    del x, y
    gc.collect()
    assert held() is None
    ready, = next(iter(step.ready.values()))
    assert not ready.runtime.kept
    assert not any("lade_reals" in node.meta for node in ready.planned.trace.gm.graph.nodes)
    plan = weakref.ref(ready)
    gc.disable()  # a plan holds the host's memory, which waits for no collection
    del step, ready
    gc.enable()
    assert plan() is None


def named(m, x):
    """A layer by a number that the step computes, as Switch Transformers chooses experts."""
    scores = m(x).flatten(0, 1)
    chosen, loss = scores.argmax(-1), 0
    for expert in F.one_hot(chosen, 8).sum(0).greater(0).nonzero():
        places, = torch.where(chosen == expert)
        loss = loss + scores[places].square().sum() * len(f"{'x' * (1 + int(f'{expert[0]}'))}")
    return loss / 48


def sized(m, x):
    """Parts of tokens by a list of sizes, as JetMoE gives tokens to experts."""
    scores = m(x).flatten(0, 1)
    sizes = F.one_hot(scores.argmax(-1), 8).sum(0)
    parts = scores[scores.argmax(-1).argsort()].split(sizes.tolist())
    return sum(part.square().sum() * (i + 1) for i, part in enumerate(parts)) / 48


def written(m, x):
    """Rows at places that the step computes; their gradient is a sum over as many rows."""
    scores = m(x) * 1
    scores[scores.sum(-1) > 0] = m[-1].bias
    return scores.square().mean()


OUTSIDE = (torch.arange(48) % 3 == 0).view(4, 12)


def outside(m, x):
    """Rows at places of a mask that is neither an argument nor the model's."""
    scores = m(x) * 1
    scores[OUTSIDE] = m[-1].bias
    return scores.square().mean() + torch.sum(input=scores) * len(OUTSIDE.nonzero())


def changed(m, x):
    """Numbers and a mask that the step changes after it asked for them, by other computed values and by .data."""
    h = m(x).flatten(0, 1)
    sizes = F.one_hot(h.argmax(-1), 8).sum(0)
    n, first = sizes.tolist()[0], sizes[0]
    sizes.add_((h.detach().sum(0) > 0).long() * 5)
    mask = h.detach() > 0.1
    n_true = len(mask.nonzero())
    mask.logical_not_()
    n_false = len(mask.data.nonzero())
    mask.data.logical_and_(h.detach() > 0)
    return h.square().mean() * (1 + int(f"{first}")) + (n + n_true + 2 * n_false + 3 * len(mask.nonzero())) * h.mean()


def tensors_are_made_of_computed_numbers():
    """As Qwen2-VL does with the places of images: torch.tensor of a list with numbers and computed ones."""
    def loss_of(m, x):
        h = m(x)
        rows = torch.tensor([h[0].argmax() % 48, 3, h[1].argmax() % 48], dtype=torch.int32)
        scale = torch.as_tensor([[h.detach().max(), 2], (True, h.detach().min().double())])
        assert scale.dtype == torch.float64
        large = h.argmax() * 0 + 16777217  # float32 does not have it
        row, other = h[0].argmax() % 4, h[1].argmax() % 4
        flags = torch.ones(4, 12, dtype=torch.bool)
        flags[(row, other), [(other, row)]] = False  # as UDOP does with the places of patches
        exact = torch.tensor([large, 2.5], dtype=torch.float64)[0] - torch.tensor([large, 0.5], dtype=torch.int64)[0] + 1
        h = h * flags[..., None] + h[[3, row], (other, 2)].sum()
        return h.flatten(0, 1)[rows].square().mean() + scale.sum() * exact.float() * h.mean()
    same("tensors of computed numbers", loss_of, [(X,), (X.flip(0),)], 1)


def selected(m, x):
    h = m(x)
    flags = h.detach() > 0
    return h.masked_select(flags).square().mean() + h.masked_select(flags[..., :1]).mean() + h[:1].masked_select(flags).square().sum()


def computed_values_decide_shapes():
    data = [(X,), (X.flip(1) * 3,), (X[:, :, torch.randperm(16, generator=GENERATOR)],), (X,)]
    same("rows by a computed mask", lambda m, x: (h := m(x))[h > 0].mean(), data, None,
         lambda: nn.Sequential(nn.Flatten(0, 1), nn.BatchNorm1d(16), net()))
    same("values by a computed mask", selected, data[:2], None)
    same("layers by a computed number", named, data[:3], None)
    same("sizes in a list", sized, data[:3], None)
    same("computed rows are written", written, data[:2], None)
    same("rows at an outside mask are written", outside, data[:2], None)
    same("values are changed after a question", changed, data[:2], None)


def a_prepared_part_says_so():
    """prepare() ends at the first computed shape; the report names its line, and that of a call is of the whole step."""
    step = step_of(lambda m, x: (h := m(x))[h > 0].square().mean(), net(), audit=True)
    step.prepare(X)
    part = step.report()
    assert "a part of the step" in part["note"] and "[h > 0]" in part["note"] and not part["is_audited"], part
    step(X)
    whole = step.report()
    assert not whole["note"] and whole["is_audited"] and whole["n_ops"] > part["n_ops"], whole


def plans_of_computed_shapes_are_told():
    """Three calls with three counts are told, and a call with a count that a plan has makes none."""
    step = step_of(lambda m, x: (h := m(x))[h > 0].square().mean(), nn.Sequential(nn.Linear(16, 8)))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for n, (x, n_told) in enumerate(((X, 0), (X * 2 + 1, 0), (X + 2, 1), (X - 2, 1))):
            with torch.no_grad():  # the same counts in each run
                step.model[0].weight.copy_(torch.eye(8, 16))
                step.model[0].bias.zero_()
            step(x)
            own = [str(one.message) for one in told if "lade" in str(one.message)]
            assert len(own) == n_told, (n, own)
    assert "3 different" in own[0] and "[h > 0]" in own[0], own
    assert [one.filename for one in told if "lade" in str(one.message)] == [__file__]  # the call's line
    *_, plans = step.ready.values()  # the first has no optimizer's state
    n_made = plans.n_made
    with torch.no_grad():
        step.model[0].weight.copy_(torch.eye(8, 16))
        step.model[0].bias.zero_()
    step(X - 2)
    assert plans.n_made == n_made
    assert not any(plan.planned.trace.is_cut for own in step.ready.values() for plan in own)


def sparse_and_nested_arguments_are_refused():
    step = step_of(lambda m, x, other: m(x).square().mean() * other.values().sum(), net())
    refused(lade.CannotCapture, lambda: step(X, torch.eye(3).to_sparse()), "sparse", "shapes.py")
    rows = [torch.ones(3), torch.ones(2)]
    for layout in (torch.jagged, torch.strided):
        refused(lade.CannotCapture, lambda: step(X, torch.nested.nested_tensor(rows, layout=layout)), "nested", "shapes.py")


def shapes_behind_an_update_are_refused():
    """The step could not begin anew there. Unique values have no count that a plan could ask for."""
    model = net()
    optimizer = adamw(model)

    def train(x):
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach(), (h := model(x).detach())[h > 0].mean()
    before = lade.torch.digest(model, optimizer)
    refused(lade.CannotCapture, lambda: lade.torch.step(train, model, optimizer, "100%")(X), "keep the shape", "shapes.py")
    refused(lade.CannotCapture, lambda: step_of(lambda m, x: torch.unique(m(x) > 0, dim=0).float().mean(), model)(X), "keep the shape")
    assert lade.torch.digest(model, optimizer) == before
    model = nn.Sequential(nn.Flatten(0, 1), nn.BatchNorm1d(16), net())
    step = step_of(lambda m, x: (h := m(x))[h > 0].mean(), model)
    before = lade.torch.digest(model, step.optimizer)
    with mock.patch.object(lade.torch.running.generate, "_KEPT_MAX", 64):
        refused(lade.CannotCapture, lambda: step(X), "16 MiB of buffers", "[h > 0]")
    assert lade.torch.digest(model, step.optimizer) == before and not step.broken


def parts_are_refused_after_a_long_search():
    """A part that a short search does not fit has a plan of a longer one; "min" is no share, so it has one short search."""
    answering, step = lade.torch.answering, mock.Mock()
    for is_share, wanted in ((False, [0.1, 3.0]), (True, [0.1, 0.1, 3.0])):
        tried, step.limits.is_share, node = [], is_share, mock.Mock(meta={"lade_real": X})
        part = mock.Mock()
        part.gm.graph.nodes = [node]

        def planned(_part, _pricer, _limits, _device, seconds, tried=tried):
            tried.append(seconds[1])
            if seconds[1] < 1:
                raise lade.DoesNotFit("a short search", 1)
            return "a plan"
        with mock.patch.object(answering, "Planned", planned):
            assert answering.planned_part(step, part) == "a plan" and tried == wanted, tried
        assert not node.meta, "the part holds no batch"


LENGTHS = torch.tensor([2, 4, 1, 3]), torch.tensor([4, 1, 3, 1]), torch.tensor([2, 4, 1, 3])
TOKENS = torch.randint(1, 32, (3, 4, 4), generator=GENERATOR)


class Recurrent(nn.Module):
    """A recurrent net over packed tokens; @is_sorted: the lengths come in descending order."""

    def __init__(self, kind, batch_first=True, is_sorted=False, **options):
        super().__init__()
        self.tokens, self.batch_first, self.is_sorted = nn.Embedding(32, 8), batch_first, is_sorted
        self.net = kind(8, 8, 2, batch_first=batch_first, dropout=0.1, **options)

    def pack(self, x, lengths):
        return pack_padded_sequence(self.tokens(x if self.batch_first else x.t()), lengths, self.batch_first, self.is_sorted)

    def forward(self, packed):
        found, hidden = self.net(packed)
        padded, lengths = pad_packed_sequence(found, self.batch_first, 0.5, 5)
        hidden = hidden[0] if isinstance(hidden, tuple) else hidden
        weights = lengths if self.batch_first else lengths[:, None]
        return (padded.flatten(1).t() * weights if self.batch_first else padded * weights).square().mean() + hidden.mean()


def sequences_are_packed():
    """By lengths of the batch, in tensors and lists, by those of a mask and computed ones, and by a PackedSequence."""
    def loss_of(model, x, lengths):
        return model(model.pack(x, lengths))
    same("LSTM", loss_of, list(zip(TOKENS, LENGTHS)), 2, lambda: Recurrent(nn.LSTM, bidirectional=True))
    data = [(x, sorted(lengths.tolist(), reverse=True)) for x, lengths in zip(TOKENS, LENGTHS)]
    same("GRU", loss_of, data[:2], 2, lambda: Recurrent(nn.GRU, False, True))
    same("RNN", loss_of, data[:1], 1, lambda: Recurrent(nn.RNN, True, True))
    padded = TOKENS * (torch.arange(4) < torch.stack(LENGTHS)[..., None])
    same("lengths of a mask", lambda m, x: m(m.pack(x, (x > 0).sum(1))), [(x,) for x in padded], 2, lambda: Recurrent(nn.GRU))

    def computed(model):
        return (model.tokens.weight[:4, 0].detach() > 0.1) * 2 + 1
    same("computed lengths", lambda m, x: m(m.pack(x, computed(m))), [(TOKENS[0],)], None, lambda: Recurrent(nn.GRU))
    rows = torch.randn(4, 8, generator=GENERATOR)
    data = [(pack_sequence([rows[:n] for n in lengths.tolist()], enforce_sorted=False),) for lengths in LENGTHS]

    def argued(model, packed):
        return model(packed)[0].data.square().mean()
    if len(torch.utils._pytree.tree_leaves(data[0])) > 1:
        same("a packed argument", argued, data, 2, lambda: nn.GRU(8, 8))
    else:
        refused(lade.CannotCapture, lambda: step_of(argued, nn.GRU(8, 8))(*data[0]), "PackedSequence", "give its tensors")


def lengths_that_torch_refuses():
    model = Recurrent(nn.GRU, True, True)
    optimizer, before = adamw(model), lade.torch.digest(model)

    def train(x, lengths):
        model(model.pack(x, lengths)).backward()
        optimizer.step()
    step = lade.torch.step(train, model, optimizer, "100%")
    refused(lade.CannotCapture, lambda: step(TOKENS[0], LENGTHS[0]), "sorted in decreasing order", "shapes.py")

    def late(x):
        train(x, [4, 4, 4, 4])
        return model.pack(x, (model.tokens.weight[:4, 0].detach() > 9) * 2 + 1).data
    fault = refused(lade.CannotCapture, lambda: lade.torch.step(late, model, optimizer, "100%")(TOKENS[0]), "give them as an argument")
    assert "shapes.py" in fault.line and lade.torch.digest(model) == before, fault


def spans_of(shape, mask_prob, mask_length, attention_mask=None, min_masks=0):
    """Draws as transformers' function does."""
    import numpy
    rows = numpy.zeros(shape, dtype=bool)
    lengths = attention_mask.sum(-1).tolist() if attention_mask is not None else [shape[1]] * shape[0]
    for row, length in zip(rows, lengths):
        n = max(int(mask_prob * length / mask_length + numpy.random.rand()), min_masks)
        for first in numpy.random.choice(max(length - mask_length, 1), min(n, max(length - mask_length, 1)), replace=False):
            row[first:first + mask_length] = True
    return rows


def spans_are_those_that_numpy_draws():
    """Its generator ends where eager steps leave it, and the number of masked places has plans of its own."""
    import numpy
    module = types.ModuleType("transformers.models.fake")
    module._compute_mask_indices = spans_of

    def loss_of(m, x, mask):
        h = m.net(x) * 1
        h[torch.tensor(module._compute_mask_indices((4, 12), 0.5, 3, mask, 1), dtype=torch.bool)] = m.row
        features = torch.tensor(module._compute_mask_indices((4, 8), mask_prob=0.3, mask_length=2), dtype=torch.bool)
        h[features[:, None].expand(-1, 12, -1)] = 0
        share = numpy.random.beta(0.4, 0.4)  # as mixup draws
        return (share * h + (1 - share) * h.flip(0)).square().mean() * numpy.random.rand()
    with mock.patch.dict(sys.modules, {"transformers.models.fake": module}):
        with contextlib.ExitStack() as others:  # a running step beside a capture in another thread
            for patch in lade.torch.tracing.spans.patches():
                others.enter_context(patch)
            assert torch.ops.lade.spans(None, module.__name__, [4, 12], 0.5, 3, 1).any()
        filters = warnings.filters
        with warnings.catch_warnings():
            warnings.filterwarnings("error", "To copy construct")
            same("spans of NumPy", loss_of, [(X, mask.long()) for mask in MASKS[:3]], None, Rows)
        assert warnings.filters is filters
        assert module._compute_mask_indices is spans_of


def drawn(m, x):
    """As MusicGen drops layers, and BigBird chooses blocks."""
    import numpy
    h = m(x)
    if random.random() < 0.5:
        h = h * 2
    h = h * random.uniform(1, 3)
    random.betavariate(0.4, 0.4)
    numpy.random.seed(5)
    return h[torch.tensor(numpy.random.permutation(4)[:2])].square().mean()


def draws_of_python_are_those_of_eager_steps():
    """Branches by them have a plan each; a generator that the step seeds ends as the seed makes it end."""
    same("draws of Python", drawn, [((Y + i)[..., None].float().expand(-1, -1, 16),) for i in range(3)], 2)  # the audit restores them

    def restored(m, x):
        state = random.getstate()
        random.shuffle([1, 2, 3])
        random.setstate(state)
        return m(x).mean()

    def late(m, x):
        random.random()
        random.seed(3)
        return m(x).mean()
    held, functions = random.getstate(), dict(vars(random))
    for loss_of, text, line in (
            (lambda m, x: m(x).mean() * random.choice([1, 2]), "draws from Python's", "random.choice"),
            (lambda m, x: m(x)[int(4 * random.random())].mean(), "draws a number from Python's", "int(4"),
            (restored, "draws from Python's", "random.shuffle"), (late, "draws from Python's", "random.seed(3)")):
        fault = refused(lade.CannotCapture, lambda: step_of(loss_of, net())(X), text)
        assert line in fault.line and dict(vars(random)) == functions and random.getstate() == held, fault


if __name__ == "__main__":
    lade.torch.train_step.PLAN_SECONDS = 0.1, 0.1
    for test in (masks_of_the_batch_decide_shapes, counts_of_the_batch_are_numbers,
                 counts_that_never_come_again_are_told_once, the_plan_that_was_used_longest_ago_makes_room,
                 a_capture_that_fails_takes_no_plans_room, masks_are_made_and_changed_in_the_step,
                 a_step_imports_the_matcher_itself, costs_that_are_no_numbers_end_a_step_before_its_updates,
                 masked_rows_are_written,
                 writes_at_masked_places_take_scratch_by_their_number, frequent_classes_have_a_head_of_their_own,
                 ctc_losses_take_lengths_in_all_forms, queries_are_matched_with_targets, plans_keep_no_batch,
                 tensors_are_made_of_computed_numbers, computed_values_decide_shapes, plans_of_computed_shapes_are_told,
                 a_prepared_part_says_so, questions_are_answered_within_a_capture, parts_that_fail_are_plans_that_say_why,
                 values_that_differ_in_each_run_are_refused, a_step_imports_what_other_finders_find,
                 parts_are_refused_after_a_long_search, sequences_are_packed,
                 lengths_that_torch_refuses, sparse_and_nested_arguments_are_refused, shapes_behind_an_update_are_refused,
                 spans_are_those_that_numpy_draws, draws_of_python_are_those_of_eager_steps):
        test()
