#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Captured steps have the bits of eager ones where captures go wrong: each case is a trap that changes numbers in silence.

Each case runs three steps inside a budget that forces redos, and compares losses, parameters, buffers, state and the
generator with eager steps. Usage: traps.py LIBLADE [CASE ...]

| trap | case |
|---|---|
| draws are repeated | dropout_redraws |
| a checkpoint inside forks the generator untraced | checkpoint_inside |
| two modules share a parameter | tied_weights |
| ops write without saying so | batch_norm_writes_once |
| values are read behind an update | updates_come_between |
| version counters, behind writes through pointers | writes_through_pointers_are_seen; hooks: saved_tensors.py |
| several views of a storage that leaves and comes back | dropout_redraws (moved), recurrent_layers, strides_are_those_of_kernels |
| parameters of FSDP2 | contract.py, wrappers_are_refused |
| arguments kept alive by a tuple | every case: planned = measured |
| numbers are constants of a graph | live_values, grad_scaler_skips_and_grows, refusals |
| shapes | contract.py, each_shape_and_mode_has_a_plan |
| autocast casts a weight once for several uses | weights_are_cast_once |
| a library asks whether tensors are fake | masks_are_those_of_eager_steps |
| alignment decides the kernel | alignment_is_part_of_a_plan |
| values and shapes that depend on data, a compiled model inside | refusals |
| kernels allocate past torch | every case with GELU: planned = measured |
| only the innermost hooks run | saved_tensors.py, checkpoints_inside |
"""
from fixture import F, GPT, SEED, adamw, batch, check, lade, nn, plain, refused, torch

import contextlib
import copy
import sys
from unittest import mock

from lade.torch.pricing import parts, prices
from torch.utils.checkpoint import checkpoint


def dropout_redraws():
    reports = check("dropout", GPT(layers=3, dropout=0.3), batch(), budgets=("min",))
    assert reports[0]["n_redone"] > 0
    check("dropout moved", GPT(), batch(), budgets=("min",), host="64MiB", ways=("host",))


class Checkpointed(GPT):
    is_reentrant = False

    def forward(self, x, y):
        h = self.hidden(x)
        for block in self.blocks:
            h = checkpoint(block, h, use_reentrant=self.is_reentrant)
        return F.cross_entropy(self.head(self.norm(h)).flatten(0, 1), y.flatten())


class Reentrant(Checkpointed):
    is_reentrant = True


def checkpoint_inside():
    check("checkpoint", Checkpointed(), batch(), budgets=("min",))
    check("reentrant checkpoint", Reentrant(), batch(), budgets=("min",))


def tied_weights():
    check("tied weights", GPT(is_tied=True), batch(), budgets=("min",))


class Conv(nn.Module):
    """The backward of its first layer gives no gradient of the images."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.BatchNorm2d(3), nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.Conv2d(8, 8, 3),
                                 nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(8 * 12 * 12, 10))

    def forward(self, x, y):
        return F.cross_entropy(self.net(x), y)


def images():
    generator = torch.Generator().manual_seed(1)
    return torch.randn(16, 3, 16, 16, generator=generator), torch.randint(0, 10, (16,), generator=generator)


def batch_norm_writes_once():
    reports = check("BatchNorm, in place", Conv(), images(), budgets=("100%", "min"))
    assert reports[1]["n_redone"] > 0
    model = Conv()
    for module in model.net:
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = None
    check("BatchNorm, plain averages", model, images(), budgets=("100%", "min"))


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, grad):
        x, = ctx.saved_tensors
        return 2 * x * grad


class Custom(GPT):
    def forward(self, x, y):
        h = self.hidden(x)
        for block in self.blocks:
            h = h + Square.apply(block(h)) * 0.01
        return F.cross_entropy(self.head(self.norm(h)).flatten(0, 1), y.flatten())


def custom_function():
    check("custom function", Custom(), batch(), budgets=("min",))


def autocast(model, optimizer):
    def train(x, y):
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(x, y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()
    return train


class Shared(GPT):
    """The layers are one, used several times."""

    def forward(self, x, y):
        h = self.hidden(x)
        for _ in range(3):
            h = self.blocks[0](h)
        return F.cross_entropy(self.head(self.norm(h)).flatten(0, 1), y.flatten())


def weights_are_cast_once():
    check("shared layers, autocast", Shared(layers=1), batch(), make_train=autocast, budgets=("min",))


def masks_are_those_of_eager_steps():
    """transformers makes masks for fake tensors that it leaves out for real ones, and a mask decides the kernel."""
    try:
        import transformers
    except ImportError:
        print("without transformers masks are not tested")
        return
    torch.manual_seed(0)
    sizes = dict(n_layer=1, n_embd=32, n_head=2, vocab_size=64, n_positions=32, bos_token_id=0, eos_token_id=0)
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(use_cache=False, **sizes)).train()
    attention, calls = F.scaled_dot_product_attention, []

    def noted(*args, attn_mask=None, is_causal=False, **kwargs):
        calls.append((attn_mask is None, is_causal))
        return attention(*args, attn_mask=attn_mask, is_causal=is_causal, **kwargs)

    def train(ids):
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        return loss.detach()
    with mock.patch.object(F, "scaled_dot_product_attention", noted):
        train(batch()[0])
        model.zero_grad()
        lade.torch.step(train, model, None, "100%").prepare(batch()[0])
    assert calls[0] == calls[1] == (True, True), calls


def accumulation(model, optimizer):
    def train(x, y):
        total = 0
        for a, b in zip(x.chunk(2), y.chunk(2)):
            loss = model(a, b) / 2
            loss.backward()
            total = total + loss.detach()
        optimizer.step()
        optimizer.zero_grad()
        return total
    return train


def zero_first(model, optimizer):
    """Gradients stay between steps, as in loops that begin with zero_grad()."""
    def train(x, y):
        optimizer.zero_grad()
        loss = model(x, y)
        loss.backward()
        optimizer.step()
        return loss.detach()
    return train


def loops():
    check("autocast", GPT(), batch(), make_train=autocast, budgets=("min",))
    check("accumulation", GPT(), batch(), make_train=accumulation, budgets=("min",))
    check("zero_grad first", GPT(), batch(), make_train=zero_first, budgets=("min",))


def scaled(model, optimizer):
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 127, growth_interval=2)

    def train(x, y):
        loss = model(x, y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        return loss.detach()
    return train


def grad_scaler_skips_and_grows():
    """A loss of 4 overflows at a scale of 2^127 and of 2^126; the third step updates."""
    check("GradScaler", GPT(), batch(), make_train=scaled, budgets=("min",), n_steps=5)


def scheduled(model, optimizer):
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0 / (1 + step))
    inner = accumulation(model, optimizer)

    def train(x, y):
        loss = inner(x, y)
        scheduler.step()
        return loss
    return train


def live_values():
    check("scheduler inside", GPT(), batch(), make_train=scheduled, budgets=("min",), n_steps=4)
    for kind, fields in (("SGD", dict(lr=0.1, momentum=0.9, nesterov=True)), ("SGD", dict(lr=0.1)),
                         ("Adam", dict(lr=1e-3, amsgrad=True, weight_decay=0.1)), ("AdamW", dict(lr=1e-3, fused=True)),
                         ("AdamW", dict(lr=1e-3, foreach=True)), ("RMSprop", dict(lr=1e-3)), ("NAdam", dict(lr=1e-3))):
        check(f"{kind} {fields}", GPT(layers=1), batch(), budgets=("min",),
              make_optimizer=lambda m, kind=kind, fields=fields: getattr(torch.optim, kind)(m.parameters(), **fields))


def groups(model):
    decayed = [p for p in model.parameters() if p.dim() > 1]
    rest = [p for p in model.parameters() if p.dim() <= 1]
    return torch.optim.AdamW([dict(params=decayed, weight_decay=0.1), dict(params=rest, weight_decay=0.0, lr=2e-3)],
                             lr=1e-3)


def several_groups():
    check("groups", GPT(), batch(), make_optimizer=groups, budgets=("min",))


class Recurrent(nn.Module):
    """Keeps a second list of its parameters. The LSTM's kernel returns a workspace that its description lacks."""

    def __init__(self, kind):
        super().__init__()
        self.table, self.net, self.head = nn.Embedding(64, 16), kind(16, 16, 2, batch_first=True), nn.Linear(16, 64)

    def forward(self, x, y):
        return F.cross_entropy(self.head(self.net(self.table(x))[0]).flatten(0, 1), y.flatten())


def recurrent_layers():
    check("GRU", Recurrent(nn.GRU), batch(4, 12), budgets=("100%",))
    check("LSTM", Recurrent(nn.LSTM), batch(4, 12), budgets=("min",))


class Halves(nn.Module):
    """As EnCodec: equal LSTMs, of which one gets no gradient and one runs without gradients, by a kernel of its own."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.head = nn.LSTM(16, 16), nn.LSTM(16, 16), nn.Linear(16, 1)

    def forward(self, x, _y):
        with torch.no_grad():
            x = x + self.first(x)[0]
        return self.head(self.second(self.first(x)[0].detach())[0]).square().mean()


def equal_calls_have_kernels_of_their_own():
    check("equal LSTMs", Halves(), (torch.randn(12, 4, 16), None), budgets=("100%", "min"))


class Slanted(GPT):
    """The gradient of softplus has the strides of its first operand, and its description those of the second."""

    def forward(self, x, y):
        h = self.hidden(x).transpose(1, 2)
        h = F.softplus(h).reshape(h.shape[0], -1, x.shape[1]).transpose(1, 2).contiguous()
        weighted = F.softplus(h) * h.transpose(1, 2).contiguous().transpose(1, 2)
        return F.cross_entropy(self.head(self.norm(weighted)).flatten(0, 1), y.flatten())


def strides_are_those_of_kernels():
    check("strides", Slanted(), batch(), budgets=("min",))


class Causal(GPT):
    """Asks for the value of a constant that it made, and draws by ops that refuse made-up operands."""

    def forward(self, x, y):
        mask = torch.ones(4, 4).tril()
        scale = 2.0 if bool((mask == torch.tril(mask)).all()) else 1.0
        drawn = torch.bernoulli(torch.full((4,), 0.5)).mean() + torch.multinomial(torch.ones(8), 3).float().mean()
        pivots = torch.linalg.solve(self.norm.weight[:4].diag(), torch.ones(4))
        return super().forward(x, y) * scale + drawn * pivots.sum() * 1e-3


class Gated(GPT):
    """silu_backward has a kernel and a composite form, whose bits differ."""

    def forward(self, x, y):
        h = self.hidden(x)
        return F.cross_entropy(self.head(self.norm(F.silu(h) * self.blocks[0](h))).flatten(0, 1), y.flatten())


def kernels_stay_whole():
    check("SiLU", Gated(layers=1), batch(), budgets=("min",))


def constants_have_values():
    check("constants", Causal(), batch(), budgets=("100%", "min"))


def parts_stand_for_large_calls():
    """Prices by parts of calls have the bytes of whole calls, also where an update takes scratch."""
    found, never = [], mock.patch.object(prices, "_LONG_NS", 1 << 62)  # a busy machine makes no call long
    for is_part in (True, False):
        small = dict(_WHOLE_FLOPS=1e4, _WHOLE_BYTES=4096, _MIN=32) if is_part else {}
        with never, mock.patch.multiple(parts, **small) if is_part else contextlib.nullcontext():
            model = GPT()
            optimizer = adamw(model)
            step = lade.torch.step(autocast(model, optimizer), model, optimizer, "100%", audit=False)
            step.prepare(*batch())
        planned = step.last.planned
        assert is_part == any(price.is_part for price in step.pricer.table.values())
        assert is_part == any(price.elements for price in step.pricer.table.values())
        assert any(op.scratch_bytes for op in planned.values.ops if "update" in op.name)
        found.append((planned.unconstrained_bytes, [(op.name, op.scratch_bytes) for op in planned.values.ops]))
    assert found[0] == found[1], [pair for pair in zip(found[0][1], found[1][1]) if pair[0] != pair[1]]
    with mock.patch.multiple(parts, _WHOLE_FLOPS=1e4, _WHOLE_BYTES=4096, _MIN=32):
        check("parts", GPT(), batch(), make_train=autocast, budgets=("min",))


def read_behind_updates(model, optimizer):
    """Return a step that uses values of old parameters, and new parameters, behind the update."""
    def train(x, y):
        old = torch.tanh(model.head.weight * 2) + model.blocks[0].up.weight.mean()
        loss = model(x, y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            return loss.detach() + (old - torch.tanh(model.head.weight * 2)).sum() + model(x, y)
    return train


def updates_in_a_row_are_one_call():
    """Updates that need no scratch and follow one another, such as those behind one clipping op, are one call a group."""
    def grouped(model):
        head = [model.head.weight]
        rest = [p for p in model.parameters() if p is not model.head.weight]
        return torch.optim.SGD([dict(params=head, lr=1e-2), dict(params=rest)], lr=1e-3, weight_decay=0.0, foreach=False)

    def halved(model, optimizer):
        def train(x, y):
            loss = model(x, y)
            loss.backward()
            torch._foreach_mul_([p.grad for p in model.parameters()], 0.5)
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()
        return train
    for make_optimizer in (grouped, lambda model: lade.torch.AdamW(model.parameters(), lr=1e-3)):
        check("updates in a row", GPT(), batch(), make_optimizer=make_optimizer, make_train=halved)
    model, calls = GPT(), []
    optimizer = grouped(model)
    step = lade.torch.step(halved(model, optimizer), model, optimizer, "100%", audit=False).prepare(*batch())
    module = sys.modules["torch.optim.sgd"]
    update = module.sgd
    with mock.patch.object(module, "sgd", lambda params, *args, **kwargs: (
            calls.append(len(params)), update(params, *args, **kwargs))):
        step(*batch())
    assert sorted(calls) == [1, len(list(model.parameters())) - 1], calls


class Counter:
    """Counts in a field, which no copy of an attribute reaches."""

    def __init__(self):
        self.n = 0


class Lookahead(torch.optim.SGD):
    """Keeps slow weights and counters in attributes, and writes them in its step."""

    def __init__(self, params):
        super().__init__(params, lr=0.1)
        self.n_steps, self.slow = 0, [p.detach().clone() for p in self.param_groups[0]["params"]]
        self._n_steps, self._seen, self.counter = {"n": 0}, [], Counter()

    @torch.no_grad()
    def step(self, closure=None):
        super().step()
        self.n_steps += 1
        self._n_steps["n"] += 1
        self._seen.append(self.n_steps)
        self.counter.n += 1
        if self.n_steps % 2 == 0:
            if not hasattr(self, "late"):
                self.late = [torch.zeros(1)]
            self.late[0] += 1
            for param, slow in zip(self.param_groups[0]["params"], self.slow):
                slow.lerp_(param, 0.5)
                param.copy_(slow)

    def kept(self):
        return self.n_steps, self._n_steps, self._seen, self.counter.n, self.late, [t.tolist() for t in self.slow]


def attributes_of_an_optimizer_are_its_own():
    """Pricing steps a copy of the optimizer, and the audit steps it twice: neither changes what its attributes hold."""
    torch.manual_seed(0)
    model, data = nn.Linear(16, 4), (torch.randn(8, 16), torch.randn(8, 4))

    runs = []
    for options in (None, dict(audit=True), dict(audit=False)):
        own = copy.deepcopy(model)
        optimizer = Lookahead(own.parameters())

        def train(x, y, own=own, optimizer=optimizer):
            loss = F.mse_loss(own(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()
        call = train if options is None else lade.torch.step(train, own, optimizer, "100%", **options)
        slow, seen = optimizer.slow, optimizer._seen
        losses = [float(call(*data)) for _ in range(4)]
        assert optimizer.slow is slow and optimizer._seen is seen, "other names hold the same lists"
        runs.append((losses, lade.torch.digest(own, optimizer), optimizer.kept()))
    assert runs[0] == runs[1] == runs[2], runs


class Normed(nn.Module):
    """Group norm returns statistics of another dtype than its description says, in BF16."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(4, 8), nn.SiLU(), nn.Conv2d(8, 3, 3, padding=1))

    def forward(self, x):
        return F.mse_loss(self.layers(x).float(), x)


def dtypes_are_those_of_kernels():
    def train_of(model, optimizer):
        def train(x):
            with torch.autocast("cpu", torch.bfloat16):
                loss = model(x)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()
        return train
    check("group norm in BF16", Normed(), (torch.randn(4, 3, 16, 16),), make_train=train_of)


class Rotated(nn.Module):
    """Rotates by the exponential of its argument."""

    def __init__(self):
        super().__init__()
        self.out = nn.Linear(2, 1)

    def forward(self, x, y):
        return F.mse_loss(self.out(torch.linalg.matrix_exp(x)).flatten(), y)


def scratch_by_values_counts_the_largest():
    """matrix_exp takes scratch by the norm of its operand: the plan is an upper bound, which a large norm reaches."""
    torch.manual_seed(0)
    model, peaks = Rotated(), []
    optimizer = adamw(model)
    step = lade.torch.step(plain(model, optimizer), model, optimizer, "100%")
    for scale in (1e-5, 50.0):
        x, y = torch.full((2, 2), scale), torch.randn(2)
        step(x, y)
        peaks.append(lade.torch.measure(step, x, y)["peak_bytes"])
    report = step.report()
    assert len(step.ready) == 1 and report["is_upper_bound"], report
    assert peaks[0] < peaks[1] == report["planned_peak_bytes"], (peaks, report["planned_peak_bytes"])


def gradients_of_bags_count_the_largest():
    """The gradient of the largest rows of bags takes scratch by the bags that are not empty."""
    torch.manual_seed(0)
    model, peaks = nn.ModuleList([nn.EmbeddingBag(100, 8, mode="max"), nn.Linear(8, 5)]), []
    optimizer, indices = adamw(model), torch.randint(100, (600,))

    def train(offsets):
        loss = model[1](model[0](indices, offsets)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()
    step = lade.torch.step(train, model, optimizer, "min")
    for offsets in (torch.zeros(200, dtype=torch.int64), torch.arange(200) * 3):
        step(offsets)
        peaks.append(lade.torch.measure(step, offsets)["peak_bytes"])
    report = step.report()
    assert report["is_upper_bound"] and max(peaks) <= report["planned_peak_bytes"], (peaks, report["planned_peak_bytes"])


def updates_come_between():
    """A value of a parameter's old bits is not computed again behind the update."""
    for options in (dict(), dict(host="64MiB")):
        check("behind updates", GPT(layers=1), batch(), make_train=read_behind_updates, budgets=("70%", "min"), **options)


def conjugated_operands_are_copied():
    """Products of complex matrices copy an operand whose elements a view conjugates: scratch of the backward."""
    def train_of(model, optimizer):
        def train(x):
            loss = model(x).abs().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()
        return train
    model = nn.Sequential(nn.Linear(8, 16, dtype=torch.cfloat), nn.Linear(16, 4, dtype=torch.cfloat))
    check("complex", model, (torch.randn(4, 8, dtype=torch.cfloat),), make_train=train_of,
          make_optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))


def writes_through_pointers_are_seen():
    """Autograd refuses a backward over a parameter that lade.torch.AdamW has written since its forward."""
    param = nn.Parameter(torch.ones(64))
    optimizer = lade.torch.AdamW([param], lr=1e-3)
    loss = (param * param).sum()
    param.grad = torch.ones(64)
    optimizer.step()
    refused(RuntimeError, loss.backward, "modified by an inplace operation")


def alignment_is_part_of_a_plan():
    """Kernels may choose by alignment: a batch off the alignment of the captured one gets a plan of its own."""
    flat, labels = torch.randn(1 + 16 * 3 * 256, generator=torch.Generator().manual_seed(2)), images()[1]
    off = flat[1:].view(16, 3, 16, 16)
    assert off.data_ptr() % 64
    check("off the alignment", Conv(), (off, labels), budgets=("100%", "min"))
    model = Conv()
    optimizer = adamw(model)
    step = lade.torch.step(plain_of(model, optimizer), model, optimizer, "100%", audit=False)
    step.prepare(off, labels)
    step.prepare(off.clone(), labels)
    assert len(step.ready) == 2, len(step.ready)


def hooked(model, optimizer):
    def shrink(p):
        p.grad.mul_(0.25)
    model.head.weight.register_hook(lambda grad: grad * 0.5)
    model.tokens.weight.register_post_accumulate_grad_hook(shrink)
    return plain_of(model, optimizer)


def hooks_of_parameters():
    check("hooks", GPT(layers=1), batch(), make_train=hooked, budgets=("100%",))


def tensors_of_no_model():
    """A tensor outside of the model that the step writes has its eager bits; the capture leaves it as it was."""
    def made():
        torch.manual_seed(0)
        model, extra = GPT(layers=1), torch.ones(32)
        optimizer = adamw(model)

        def train(x, y):
            extra.mul_(1.5)
            loss = model(x, y) + (model.norm.weight * extra).mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()
        return model, optimizer, train, extra
    results = []
    for is_planned in (False, True):
        model, optimizer, train, extra = made()
        call = lade.torch.step(train, model, optimizer, "min", audit=False) if is_planned else train
        torch.manual_seed(SEED)
        losses = [call(*batch()).item() for _ in range(3)]
        results.append((losses, extra.tolist(), lade.torch.digest(model, optimizer)))
    assert results[0] == results[1], results


def refusals():
    model = GPT()
    optimizer = adamw(model)
    before = lade.torch.digest(model, optimizer)

    def item(x, y):
        loss = model(x, y)
        if int(loss) > 1:
            loss = loss * 2
        loss.backward()
        return loss.detach()
    fault = refused(lade.CannotCapture, lambda: lade.torch.step(item, model, optimizer, "100%")(*batch()),
                    "_local_scalar_dense", "traps.py", "int(loss) > 1")
    assert fault.op and "traps.py" in fault.line, fault

    def selecting(x, y):
        loss = model(x, y)
        loss = loss + torch.unique((loss > 3)[None], dim=0).float().mean()
        loss.backward()
        return loss.detach()
    fault = refused(lade.CannotCapture, lambda: lade.torch.step(selecting, model, optimizer, "100%")(*batch()), "shape",
                    "torch.unique((loss > 3)[None]")
    assert "unique" in fault.op, fault.op
    counts = [0]

    def counting(x, y):
        loss = model(x, y)
        loss.backward()
        counts.append(1)
        return loss.detach()
    refused(lade.CannotCapture, lambda: lade.torch.step(counting, model, optimizer, "100%")(*batch()), "len(counts)")

    def slower(x, y):
        for group in optimizer.param_groups:
            group["lr"] *= 0.5
        return plain_of(model, optimizer)(x, y)
    fault = refused(lade.CannotCapture, lambda: lade.torch.step(slower, model, optimizer, "100%")(*batch()), "lr in Python")
    assert 'group["lr"] *= 0.5' in fault.line, fault

    other = torch.optim.SGD(model.parameters(), lr=0.1)

    def two(x, y):
        loss = model(x, y)
        loss.backward()
        other.step()
        return loss.detach()
    refused(lade.CannotCapture, lambda: lade.torch.step(two, model, optimizer, "100%")(*batch()), "an optimizer that it was not given")
    listing = Listing()
    refused(lade.CannotCapture, lambda: lade.torch.step(plain_of(listing, None), listing, None, "100%")(*batch()),
            "Listing.losses")
    assert not listing.losses
    step = lade.torch.step(plain_of(model, optimizer), model, optimizer, 1000)
    fault = refused(lade.DoesNotFit, lambda: step(*batch()), "smallest", "host= or store=")
    assert fault.min_budget_bytes > 1000
    assert lade.torch.digest(model, optimizer) == before and not optimizer.state
    assert all(p.grad is None for p in model.parameters())
    compiled = torch.compile(model, backend="aot_eager")
    refused(lade.CannotCapture, lambda: lade.torch.step(plain_of(compiled, optimizer), compiled, optimizer, "100%"),
            "torch.compile")
    refused(ValueError, lambda: lade.torch.step(item, model, optimizer, "100%", ways=("magic",)), "magic")


class Listing(GPT):
    """Keeps a list of its losses, which a captured step would not extend."""

    def __init__(self):
        super().__init__(layers=1)
        self.losses = []

    def forward(self, x, y):
        self.losses.append(super().forward(x, y))
        return self.losses[-1]


def plain_of(model, optimizer):
    def train(x, y):
        loss = model(x, y)
        loss.backward()
        if optimizer:
            optimizer.step()
            optimizer.zero_grad()
        return loss.detach()
    return train


for case in (dropout_redraws, checkpoint_inside, tied_weights, batch_norm_writes_once, custom_function, loops,
             weights_are_cast_once, masks_are_those_of_eager_steps,
             grad_scaler_skips_and_grows, live_values, several_groups, recurrent_layers, equal_calls_have_kernels_of_their_own,
             strides_are_those_of_kernels, kernels_stay_whole, constants_have_values, parts_stand_for_large_calls,
             hooks_of_parameters, tensors_of_no_model, updates_come_between, updates_in_a_row_are_one_call,
             scratch_by_values_counts_the_largest, gradients_of_bags_count_the_largest,
             attributes_of_an_optimizer_are_its_own, dtypes_are_those_of_kernels,
             conjugated_operands_are_copied, writes_through_pointers_are_seen, alignment_is_part_of_a_plan, refusals):
    if not sys.argv[2:] or case.__name__ in sys.argv[2:]:
        case()
