# SPDX-License-Identifier: Apache-2.0
"""Loops that many people write: several optimizers in one step, averaged weights, distributions, flags in buffers."""
import copy
import os
import types
from unittest import mock

from fixture import *  # noqa: F403

import numpy
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

SAMPLE = torch.randn(16, 8, generator=torch.Generator().manual_seed(1))
GPT_OF_BOTH = GPT()


def net(n_in=8, n_out=4):
    return nn.Sequential(nn.Linear(n_in, 64), nn.LeakyReLU(0.2), nn.Dropout(0.1), nn.Linear(64, 64), nn.SiLU(),
                         nn.Linear(64, n_out))


def sgd(params):
    return torch.optim.SGD(params, lr=1e-2, momentum=0.9)


def adam(params):
    return torch.optim.AdamW(params, lr=1e-3)


class Lion(torch.optim.Optimizer):
    """An optimizer of its own, which creates its state in its first step and keeps more in attributes."""

    def __init__(self, params, lr=1e-3):
        super().__init__(params, dict(lr=lr))
        self.count, self.array = 0, numpy.zeros(2)
        self.space = types.SimpleNamespace(counts=torch.zeros(1), seen=[])

    @torch.no_grad()
    def step(self):
        self.count += 1
        self.array += 1
        self.space.counts += 1
        self.space.seen.append(self.count)
        scale = 1 + self.array[0] * 0.01 + len(self.space.seen) * 0.1 + self.space.counts
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state["mean"], state["steps"] = torch.zeros_like(p), 0
                state["steps"] += 1
                update = (state["mean"] * 0.9 + p.grad * 0.1).sign_()
                p.add_(update * scale.float(), alpha=-group["lr"] / state["steps"])
                state["mean"].mul_(0.99).add_(p.grad, alpha=0.01)


def numbers(results):
    return [float(t) for t in (results if isinstance(results, (tuple, list)) else [results])]


def same(name, model, make, data=(SAMPLE,), n_steps=4):
    """Assert eager's bits and the planned peak at 100 % and "min", on the device alone and with a host tier, and audited.

    @make(model) returns (optimizer or optimizers, step).
    """
    own = copy.deepcopy(model)
    optimizer, train = make(own)
    torch.manual_seed(SEED)
    wanted = [numbers(train(*data)) for _ in range(n_steps)]
    digest = lade.torch.digest(own, optimizer)
    for budget, host, audit in (("100%", None, True), ("min", None, False), ("min", "64MiB", False)):
        own = copy.deepcopy(model)
        optimizer, train = make(own)
        step = lade.torch.step(train, own, optimizer, budget, host=host, audit=audit)
        torch.manual_seed(SEED)
        found = [numbers(step(*data)) for _ in range(n_steps - 1)]
        peak = lade.torch.measure(step, *data)["peak_bytes"]
        assert found == wanted[:-1], (name, budget, host, found, wanted)
        assert lade.torch.digest(own, optimizer) == digest, (name, budget, host)
        assert peak == step.report()["planned_peak_bytes"], (name, budget, peak, step.report())
    print(name, flush=True)


def adversaries(make_generator, make_critic):
    """Return a step of two nets against each other, each with an optimizer and a scheduler."""
    def make(model):
        generator, critic = model
        optimizers = make_generator(generator.parameters()), make_critic(critic.parameters())
        schedulers = [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.8) for optimizer in optimizers]

        def train(x):
            made = generator(torch.randn(16, 8))
            loss = F.softplus(-critic(x)).mean() + F.softplus(critic(made.detach())).mean()
            optimizers[1].zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(critic.parameters(), 1.0)
            optimizers[1].step()
            schedulers[1].step()
            own = F.softplus(-critic(made)).mean()
            optimizers[0].zero_grad()
            own.backward()
            optimizers[0].step()
            schedulers[0].step()
            return loss.detach(), own.detach()
        return list(optimizers), train
    return make


def two_optimizers_step_in_one_step():
    model = nn.ModuleList([net(8, 8), net(8, 1)])
    same("Adam against SGD", model, adversaries(adam, sgd))
    same("an optimizer of its own against Adam", model, adversaries(Lion, adam))
    same("two optimizers of their own", model, adversaries(Lion, Lion))


def lades_optimizer_steps_beside_another():
    def make(model):
        matrices = [p for p in model.blocks.parameters() if p.dim() == 2]
        others = [p for p in model.parameters() if all(p is not q for q in matrices)]
        first, second = sgd(matrices), lade.torch.AdamW(others, lr=1e-3, where="host")

        def train(x, y):
            loss = model(x, y)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            first.step()
            second.step()
            model.zero_grad()
            return loss.detach()
        return (first, second), train
    same("matrices and the rest", GPT(), make, batch())


def runs_resume_from_a_checkpoint_of_both():
    """torch.save and load of a model and two optimizers, one of which is Lade's, go on with eager's bits."""
    def made():
        model = copy.deepcopy(GPT_OF_BOTH)
        optimizers = sgd(model.blocks.parameters()), lade.torch.AdamW(
            [*model.tokens.parameters(), *model.places.parameters(), *model.norm.parameters(), *model.head.parameters()],
            lr=1e-3, state="bf16", where="host")

        def train(x, y):
            loss = model(x, y)
            loss.backward()
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
            return loss.detach()
        return model, optimizers, train

    def planned(model, optimizers, train):
        return lade.torch.step(train, model, optimizers, "min", host="64MiB", audit=False)
    model, optimizers, train = made()
    torch.manual_seed(SEED)
    wanted = [float(train(*batch())) for _ in range(4)], lade.torch.digest(model, optimizers)
    model, optimizers, train = made()
    step = planned(model, optimizers, train)
    torch.manual_seed(SEED)
    found = [float(step(*batch())) for _ in range(2)]
    path = os.path.join(SCRATCH.name, "checkpoint")
    torch.save({"model": model.state_dict(), "optimizers": [one.state_dict() for one in optimizers],
                "drawn": torch.get_rng_state()}, path)
    torch.manual_seed(99)
    model, optimizers, train = made()
    saved = torch.load(path, weights_only=True)
    model.load_state_dict(saved["model"])
    for optimizer, state in zip(optimizers, saved["optimizers"]):
        optimizer.load_state_dict(state)
    step = planned(model, optimizers, train)
    torch.set_rng_state(saved["drawn"])
    found += [float(step(*batch())) for _ in range(2)]
    assert (found, lade.torch.digest(model, optimizers)) == wanted, (found, wanted)


def one_scaler_serves_two_optimizers():
    def make(model):
        optimizers = adam(model[0].parameters()), sgd(model[1].parameters())
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0)

        def train(x):
            loss = model[1](model[0](x)).square().mean()
            scaler.scale(loss).backward()
            for optimizer in optimizers:
                scaler.step(optimizer)
            scaler.update()
            for optimizer in optimizers:
                optimizer.zero_grad()
            return loss.detach()
        return optimizers, train
    same("a scaler", nn.ModuleList([net(8, 8), net(8, 1)]), make)


def optimizers_that_are_not_given_are_refused():
    model = nn.ModuleList([net(8, 8), net(8, 1)])
    (first, second), train = adversaries(adam, sgd)(model)
    refused(lade.CannotCapture, lambda: lade.torch.step(train, model, first, "100%")(SAMPLE), "optimizer=[...]", "loops.py")
    refused(lade.CannotCapture, lambda: lade.torch.step(train, model, [first, adam(model[0].parameters())], "100%")(SAMPLE),
            "in two optimizers")
    refused(ValueError, lambda: lade.torch.step(train, model, [first, "second"], "100%"), "str", "a list of them")
    before = lade.torch.digest(model, [first, second])
    step = lade.torch.step(train, model, [first, second], "100%")
    step(SAMPLE)
    assert lade.torch.digest(model, [first, second]) != before


def plain_step(model, optimizer, loss_of):
    def train(x):
        loss = loss_of(model, x)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()
    return train


def weights_are_averaged_in_the_step():
    """The average copies the weights at its first step, by a count in a buffer, and mixes them after."""
    def averaged(is_given, **options):
        def make(model):
            optimizer, average = adam(model.parameters()), AveragedModel(model[0], **options)
            inner = plain_step(model, optimizer, lambda model, x: model[0](x).square().mean())

            def train(x):
                loss = inner(x)
                average.update_parameters(model[0])
                return loss, average.n_averaged, sum(p.sum() for p in average.parameters()).detach()
            if is_given:
                model.append(average)
            return optimizer, train
        return make
    same("an average outside of the model", nn.ModuleList([net()]), averaged(False))
    same("an exponential one in the model", nn.ModuleList([net()]),
         averaged(True, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True))


class ActNorm(nn.Module):
    """Scales by its first batch, which a flag in a buffer marks."""

    def __init__(self, flag=torch.tensor(False)):
        super().__init__()
        self.scale, self.net = nn.Parameter(torch.ones(8)), net()
        self.register_buffer("is_ready", flag.clone())

    def forward(self, x):
        if self.is_ready.item() == 0:
            with torch.no_grad():
                self.scale.copy_(1 / x.std(0))
                self.is_ready.fill_(True)
        return self.net(x * self.scale)


def flags_in_buffers_choose_the_plan():
    def make(model):
        optimizer = adam(model.parameters())
        return optimizer, plain_step(model, optimizer, lambda model, x: model(x).square().mean())
    same("a flag", ActNorm(), make)
    same("a byte", ActNorm(torch.tensor(0, dtype=torch.uint8)), make)
    model = ActNorm()
    optimizer, train = make(model)
    step = lade.torch.step(train, model, optimizer, "100%")
    for _ in range(3):
        step(SAMPLE)
    assert sum(map(len, step.ready.values())) == 2, step.ready
    model.is_ready.fill_(False)  # a user begins anew: the first plan serves again
    scale = model.scale.detach().clone()
    step(SAMPLE)
    assert model.is_ready and not torch.equal(scale, model.scale) and sum(map(len, step.ready.values())) == 2


class Stepped(nn.Module):
    """Scales by numbers in buffers, as codecs keep their strides."""

    def __init__(self, adds):
        super().__init__()
        self.net, self.adds = net(), adds
        self.register_buffer("stride", torch.tensor(3))

    def forward(self, x):
        x = self.net(x) * (1 + self.stride.item() // 2)
        if self.adds:
            self.stride += 1
        return x


def numbers_in_buffers_choose_the_plan():
    def make(model):
        optimizer = adam(model.parameters())
        return optimizer, plain_step(model, optimizer, lambda model, x: model(x).square().mean())
    same("a number", Stepped(False), make)
    model = Stepped(True)
    optimizer, train = make(model)
    refused(lade.CannotCapture, lambda: lade.torch.step(train, model, optimizer, "100%")(SAMPLE), "count outside", "loops.py")
    model = Stepped(False)
    optimizer, train = make(model)
    step = lade.torch.step(train, model, optimizer, "100%", audit=False)

    def count():
        for _ in range(40):
            step.prepare(SAMPLE)
            model.stride += 1
    refused(lade.CannotCapture, count, "32 different answers")
    model.stride.fill_(3)
    step(SAMPLE)  # the answers before keep their plans
    assert sum(map(len, step.ready.values())) == 32, step.ready


def arguments_are_compared_with_constants():
    """The copy of a constant is real where a question about an argument needs it before each call."""
    def loss(model, x):
        return model(x).square().mean() * (2 if (x.sum(0) != torch.arange(8.0)).any() else 1)

    def make(model):
        optimizer = adam(model.parameters())
        return optimizer, plain_step(model, optimizer, loss)
    same("a constant beside an argument", net(), make)


class Clamped(nn.Module):
    """Clamps hidden states that are not finite, as DETR does."""

    def __init__(self):
        super().__init__()
        self.first, self.second = net(8, 8), net()

    def forward(self, x):
        x = self.first(x)
        if not torch.isfinite(x).all():
            x = torch.nan_to_num(x, 0.5)
        return self.second(x)


def guarded(ask):
    """Return a maker of steps that leave out the update of a loss for which @ask is true."""
    def make(model):
        optimizer = adam(model.parameters())

        def train(x):
            loss = model(x).square().mean()
            if ask(loss):
                return loss.detach() * 0 - 1
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()
        return optimizer, train
    return make


def branches_on_finite_values_are_those_of_eager():
    """Batches with NaN take the other branch, by a plan of its own, and later ones the first branch again."""
    data = [SAMPLE, SAMPLE * float("nan"), SAMPLE, SAMPLE + float("inf"), SAMPLE]
    never = guarded(lambda loss: False)
    asks = {"not isfinite": lambda loss: not torch.isfinite(loss), "isnan or isinf": lambda loss: loss.isnan() or loss.isinf(),
            "isnan | isinf": lambda loss: (torch.isnan(loss) | torch.isinf(loss)).item(), "!=": lambda loss: loss != loss,
            "by keyword": lambda loss: torch.is_nonzero(input=torch.isnan(input=loss)),
            "by counts": lambda loss: torch.isnan(loss).sum() > 0 or not loss.isinf().sum() == 0}
    for name, model, make in (("clamped", Clamped(), never), *((name, net(), guarded(ask)) for name, ask in asks.items())):
        own = copy.deepcopy(model)
        optimizer, train = make(own)
        torch.manual_seed(SEED)
        wanted = [repr(float(train(x))) for x in data], lade.torch.digest(own, optimizer), torch.get_rng_state().tolist()
        for budget, host, audit in (("100%", None, True), ("100%", None, False), ("min", "64MiB", False)):
            own = copy.deepcopy(model)
            optimizer, train = make(own)
            step = lade.torch.step(train, own, optimizer, budget, host=host, audit=audit)
            torch.manual_seed(SEED)
            losses = [repr(float(step(x))) for x in data]
            assert (losses, lade.torch.digest(own, optimizer), torch.get_rng_state().tolist()) == wanted, (name, budget, losses)
            peak = lade.torch.measure(step, data[1])["peak_bytes"]
            assert peak == step.report()["planned_peak_bytes"], (name, budget, peak, step.report())
            n_plans = sum(map(len, step.ready.values()))  # a loss is asked once, also by `a or b` and its `if`
            assert n_plans == 2, (name, budget, n_plans)
        print(name, flush=True)


def assertions_of_finite_values_take_one_capture():
    """As I-BERT asserts at each quantized layer that no value is NaN: the first guess is the one that goes on."""
    def loss_of(model, x):
        for layer in model:
            x = layer(x)
            assert x.isnan().sum() == 0, "NaN"
        return x.square().mean()
    model = net()
    optimizer = adam(model.parameters())
    step = lade.torch.step(plain_step(model, optimizer, loss_of), model, optimizer, "100%")
    with mock.patch.object(lade.torch.train_step, "trace", wraps=lade.torch.train_step.trace) as traced:
        step(SAMPLE)
    assert traced.call_count == 1, traced.call_count
    refused(AssertionError, lambda: step(SAMPLE * float("nan")), "NaN")


def audits_of_the_first_rows_take_their_own_branch():
    """The whole batch has a NaN that its first rows have not, and the uncaptured step of the whole does not fit."""
    data = SAMPLE.repeat(64, 1)
    data[-1] = float("nan")
    model = Clamped()
    optimizer, train = guarded(lambda loss: False)(model)
    step = lade.torch.step(train, model, optimizer, "100%").prepare(data)
    free = step.last.planned.unconstrained_bytes - 1
    own = copy.deepcopy(model)
    _, eager = guarded(lambda loss: False)(own)
    torch.manual_seed(SEED)
    wanted = repr(float(eager(data)))
    torch.manual_seed(SEED)
    with mock.patch.object(lade.torch.audit, "free_bytes", lambda device: free):
        assert repr(float(step(data))) == wanted
        note = step.report()["note"]
        assert note.startswith("audited on") and "take another branch" in note, note
    assert lade.torch.digest(model) == lade.torch.digest(own)


def audits_of_the_first_rows_end_where_these_are_refused():
    """The whole batch has a plan, and a capture of its first rows is refused."""
    data, model = SAMPLE.repeat(8, 1)[:8], net()
    optimizer = adam(model.parameters())
    train = plain_step(model, optimizer, lambda model, x: model(x).square().mean())
    step = lade.torch.step(train, model, optimizer, "100%").prepare(data)
    find = step._find

    def refusing(args, *rest):
        if len(args[0]) < 8:
            raise lade.CannotCapture("no rows", "rows")
        return find(args, *rest)
    with mock.patch.object(lade.torch.audit, "free_bytes", lambda device: step.last.planned.unconstrained_bytes - 1), \
            mock.patch.object(step, "_find", refusing):
        step(data)
    assert "have no plan (rows: no rows)" in step.report()["note"], step.report()["note"]


def other_branches_end_as_eager_does_or_say_so():
    def stops(loss):
        if torch.isnan(loss):
            raise ArithmeticError("the loss is no number")
        return False
    model = net()
    optimizer, train = guarded(stops)(model)
    step = lade.torch.step(train, model, optimizer, "100%")
    step(SAMPLE)
    before = lade.torch.digest(model, optimizer)
    refused(ArithmeticError, lambda: step(SAMPLE * float("nan")), "no number")
    assert lade.torch.digest(model, optimizer) == before
    step(SAMPLE)
    model = nn.ModuleList([net(), net()])

    def train_both(x):  # the first optimizer has changed its parameters before the second loss is known
        loss = model[0](x).square().mean()
        loss.backward()
        both[0].step()
        other = model[1](x).square().mean()
        if torch.isnan(other):
            return loss.detach()
        other.backward()
        both[1].step()
        for one in both:
            one.zero_grad()
        return loss.detach()
    both = [adam(part.parameters()) for part in model]
    step = lade.torch.step(train_both, model, both, "100%")
    step(SAMPLE)
    with torch.no_grad():
        model[1][0].weight.fill_(float("nan"))
    refused(lade.Error, lambda: step(SAMPLE), "branch", "loops.py")
    refused(lade.Error, lambda: step(SAMPLE), "a step failed")


class Dropped(nn.Module):
    """Leaves layers out by draws, behind statistics that have changed by then."""

    def __init__(self):
        super().__init__()
        self.norm, self.layers = nn.BatchNorm1d(8), nn.ModuleList(net(8, 8) for _ in range(3))

    def forward(self, x):
        x = self.norm(x)
        for layer in self.layers:
            skips = torch.rand([]) < 0.5
            if self.training and skips:
                continue
            x = x + layer(x)
        return x


def branches_on_computed_values_are_those_of_eager():
    """A draw, a number that is no flag, a check: each way through the step has a plan, also behind changed statistics."""
    def by_loss(model, x):
        loss = model(x).square().mean() + x.square().mean()
        return loss * 2 if loss > 5 else loss.sqrt() if (loss > 0.5).sum() else loss

    def checked(model, x):
        loss = model(x).square().mean()
        if not (loss > -1).all() or not torch.gt(loss, -2):
            raise ArithmeticError("the loss is negative")
        return loss

    def make_of(loss_of):
        def make(model):
            optimizer = adam(model.parameters())
            return optimizer, plain_step(model, optimizer, loss_of)
        return make
    of_loss = make_of(lambda model, x: model(x).square().mean())
    for name, model, make, n_plans in (("dropped layers", Dropped(), of_loss, 3), ("by the loss", net(), make_of(by_loss), 3),
                                       ("checked", net(), make_of(checked), 1)):
        data = [SAMPLE, SAMPLE * 3, SAMPLE, SAMPLE * 0.1, SAMPLE, SAMPLE]
        own = copy.deepcopy(model)
        optimizer, train = make(own)
        torch.manual_seed(SEED)
        wanted = [float(train(x)) for x in data], lade.torch.digest(own, optimizer), torch.get_rng_state().tolist()
        for budget, host, audit in (("100%", None, True), ("min", "64MiB", False)):
            own = copy.deepcopy(model)
            optimizer, train = make(own)
            step = lade.torch.step(train, own, optimizer, budget, host=host, audit=audit)
            torch.manual_seed(SEED)
            losses = [float(step(x)) for x in data[:-1]]
            peak = lade.torch.measure(step, data[-1])["peak_bytes"]
            assert losses == wanted[0][:-1], (name, budget, losses, wanted)
            assert (lade.torch.digest(own, optimizer), torch.get_rng_state().tolist()) == wanted[1:], (name, budget)
            assert peak == step.report()["planned_peak_bytes"], (name, budget, peak)
            assert sum(map(len, step.ready.values())) >= n_plans, (name, step.ready)
        print(name, flush=True)


def old_branches_make_room_for_new_ones():
    model = Dropped()
    optimizer = adam(model.parameters())
    step = lade.torch.step(plain_step(model, optimizer, lambda model, x: model(x).square().mean()), model, optimizer, "100%",
                           audit=False)
    own = copy.deepcopy(model)
    other = adam(own.parameters())
    eager = plain_step(own, other, lambda model, x: model(x).square().mean())
    with mock.patch.object(lade.torch.plans, "PLANS_MAX", 2):
        for i in range(6):
            torch.manual_seed(i)
            wanted = float(eager(SAMPLE))
            torch.manual_seed(i)
            assert float(step(SAMPLE)) == wanted, i
            assert sum(map(len, step.ready.values())) <= 2
    assert lade.torch.digest(model, optimizer) == lade.torch.digest(own, other)


def a_step_that_fails_behind_statistics_brings_them_back():
    """A check of a computed value fails in the step, which had written running statistics: the step goes on."""
    model = nn.Sequential(nn.BatchNorm1d(8), net())
    optimizer = adam(model.parameters())
    step = lade.torch.step(plain_step(model, optimizer, lambda model, x: -torch.distributions.Normal(
        model(x), 1.0, validate_args=True).log_prob(torch.zeros(4)).mean()), model, optimizer, "100%", audit=False)
    step(SAMPLE)
    before = lade.torch.digest(model, optimizer)
    refused(RuntimeError, lambda: step(SAMPLE * float("nan")), "outside of its constraint")
    assert lade.torch.digest(model, optimizer) == before
    step(SAMPLE)


def loops_that_a_computed_value_ends_are_refused():
    """The guess that no value is small enough would capture turns without end."""
    def loss_of(model, x):
        x = model(x)
        while True:
            x = x * 0.5
            if x.abs().max() < 0.01:
                return x.square().mean()
    model = net()
    optimizer = adam(model.parameters())
    before = lade.torch.digest(model, optimizer)
    step = lade.torch.step(plain_step(model, optimizer, loss_of), model, optimizer, "100%")
    with mock.patch.object(lade.torch.tracing.branches, "_ANSWERS_MAX", 64):
        fault = refused(lade.CannotCapture, lambda: step(SAMPLE), "more than 64 computed values", "loops.py")
    assert fault.op == "value of a tensor" and "< 0.01" in fault.line, fault
    assert lade.torch.digest(model, optimizer) == before


def closures_run_once():
    """torch's own optimizers call a closure once, with gradients on, and return its loss."""
    def closed(make_optimizer):
        def make(model):
            optimizer = make_optimizer(model.parameters())

            def train(x):
                def closure():
                    optimizer.zero_grad()
                    loss = model(x).square().mean()
                    loss.backward()
                    return loss
                with torch.no_grad():
                    return optimizer.step(closure).detach()
            return optimizer, train
        return make
    same("a closure", net(), closed(adam))
    same("a closure of Lade's optimizer", net(), closed(lambda params: lade.torch.AdamW(params, lr=1e-3, where="host")))
    model = net()
    optimizer, train = closed(torch.optim.LBFGS)(model)
    refused(lade.CannotCapture, lambda: lade.torch.step(train, model, optimizer, "100%")(SAMPLE), "LBFGS.step: ", "closure", "loops.py")


def a_flag_is_not_known_once_a_view_of_it_is_written():
    """The step has the branch of the new value, never that of the old one."""
    for is_whole in (True, False):
        memory = torch.zeros(2 if is_whole else 100)
        flag, model = memory[:2], net()
        optimizer = adam(model.parameters())

        def loss_of(model, x):
            memory[:1].fill_(1)
            return model(x).square().mean() * (1 if flag[0] > 0 else float("nan"))
        step = lade.torch.step(plain_step(model, optimizer, loss_of), model, optimizer, "100%", audit=False)
        assert torch.isfinite(step(SAMPLE)) and memory.sum() == 1


def faults_that_a_step_takes_are_no_ops():
    """A call that fails, because of its operands' shapes, and another in its place."""
    def fitting(model, x):
        try:
            return model(x[:, 1:]).square().mean()
        except RuntimeError:
            return model(x).square().mean()
    same("a fault that the step takes", net(), lambda model: (own := adam(model.parameters()), plain_step(model, own, fitting)),
         n_steps=3)


def losses(model, x):
    d = torch.distributions
    mean, log_variance = model[0](x).chunk(2, -1)
    posterior = d.Independent(d.Normal(mean, (0.5 * log_variance).exp()), 1)
    z = posterior.rsample()
    prior = d.Independent(d.Normal(torch.zeros(4), torch.ones(4)), 1)
    loss = d.kl_divergence(posterior, prior).mean() - d.Normal(model[1](z), 1.0).log_prob(x).sum(-1).mean()
    actions = d.Categorical(logits=model[2](x))
    loss = loss - (actions.log_prob(actions.sample()) * x[:, 0]).mean() - 0.01 * actions.entropy().mean()
    squashed = d.TransformedDistribution(d.Normal(mean, 1.0), d.TanhTransform(cache_size=1))
    return loss + 0.01 * squashed.log_prob(squashed.rsample()).mean() + \
        d.Dirichlet(F.softplus(mean) + 0.5).rsample().square().mean()


def distributions_check_their_arguments():
    """Checks run in each step: one of a computed value fails there, one of the batch before, and the step goes on."""
    def make(model):
        optimizer = adam(model.parameters())
        return optimizer, plain_step(model, optimizer, losses)
    model = nn.ModuleList([net(8, 8), net(4, 8), net(8, 5)])
    same("distributions", model, make)
    optimizer, train = make(model)
    step = lade.torch.step(train, model, optimizer, "100%", audit=False)
    step(SAMPLE)
    before = lade.torch.digest(model, optimizer)
    refused(RuntimeError, lambda: step(SAMPLE * 1e38), "ValueError: an argument of", "outside of its constraint")
    refused(lade.CannotCapture, lambda: step(SAMPLE * float("nan")), "ValueError", "the support (Real())", "loops.py")
    assert lade.torch.digest(model, optimizer) == before
    step(SAMPLE)


def refusals_name_what_torch_calls_it():
    def of(loss_of, make_model=net, make_optimizer=adam):
        model = make_model()
        optimizer = make_optimizer(model.parameters())
        return lambda: lade.torch.step(plain_step(model, optimizer, loss_of), model, optimizer, "100%")(SAMPLE)
    fault = refused(lade.CannotCapture, of(lambda m, x: torch.cond(x.sum() > 0, lambda h: h * 2, lambda h: h - 1,
                                                                   (m(x),)).mean()), "torch.cond: ", "branch by if", "loops.py")
    assert fault.op == "torch.cond"
    fault = refused(lade.CannotCapture, of(lambda m, x: m(torch.nested.nested_tensor(
        [x[:3], x[3:]], layout=torch.jagged)).values().mean()), "torch.nested: ", "loops.py")
    assert fault.op == "torch.nested"
    fault = refused(lade.CannotCapture, of(lambda m, x: {}["the word dynamo"]), "the word dynamo", "loops.py")
    assert fault.op == "KeyError"
    refused(lade.CannotCapture, of(lambda m, x: m(x.abs().long()).mean(), lambda: nn.Embedding(8, 4, sparse=True),
                                   torch.optim.SparseAdam), "sparse=False", "loops.py")
    refused(lade.CannotCapture, of(lambda m, x: torch.func.jvp(m, (x,), (x,))[1].mean()), "forward-mode AD", "loops.py")
    refused(lade.CannotCapture, of(lambda m, x: torch.unique(m(x) > 0, dim=0).float().mean()), "keep the shape", "loops.py")
    refused(lade.CannotCapture, of(lambda m, x: m(x).mean() * len(f"{m(x).mean():.3f}")), "value of a tensor: ", "loops.py")
    of(lambda m, x: -torch.distributions.Wishart(m(x).square().mean() + 9, torch.eye(3)).log_prob(torch.eye(3)).mean())()


TESTS = [two_optimizers_step_in_one_step, lades_optimizer_steps_beside_another, runs_resume_from_a_checkpoint_of_both,
         one_scaler_serves_two_optimizers, optimizers_that_are_not_given_are_refused, weights_are_averaged_in_the_step,
         flags_in_buffers_choose_the_plan, numbers_in_buffers_choose_the_plan, arguments_are_compared_with_constants,
         branches_on_finite_values_are_those_of_eager, other_branches_end_as_eager_does_or_say_so,
         branches_on_computed_values_are_those_of_eager, old_branches_make_room_for_new_ones,
         a_step_that_fails_behind_statistics_brings_them_back, loops_that_a_computed_value_ends_are_refused,
         audits_of_the_first_rows_take_their_own_branch,
         audits_of_the_first_rows_end_where_these_are_refused, assertions_of_finite_values_take_one_capture,
         closures_run_once, a_flag_is_not_known_once_a_view_of_it_is_written, faults_that_a_step_takes_are_no_ops,
         distributions_check_their_arguments, refusals_name_what_torch_calls_it]

if __name__ == "__main__":
    lade.torch.train_step.PLAN_SECONDS = 0.2, 0.2
    for test in TESTS:
        torch.manual_seed(0)
        test()
