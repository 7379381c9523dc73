# SPDX-License-Identifier: Apache-2.0
"""Shared by the tests of lade.torch: the package of this checkout, a small GPT, and a comparison with eager steps.

LADE_TORCH_PYTHON (scripts/torch-env) is the Python that has torch. A test that needs torch exits 77 with one line where
it is absent. Usage of each: TEST.py LIBLADE.
"""
import copy
import os
import sys
import tempfile

if os.environ.get("LADE_TORCH_PYTHON", sys.executable) != sys.executable:
    os.execv(os.environ["LADE_TORCH_PYTHON"], [os.environ["LADE_TORCH_PYTHON"], *sys.argv])
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "python"))
if len(sys.argv) > 1:
    os.environ["LADE_LIBRARY"] = os.path.abspath(sys.argv[1])
os.environ["HF_HUB_OFFLINE"] = "1"
SCRATCH = tempfile.TemporaryDirectory(prefix="lade-torch-") # removed with the process
os.environ["XDG_CACHE_HOME"] = SCRATCH.name


def skip(reason):
    print(f"SKIP: {reason}")
    sys.exit(77)


try:
    import torch
    import torch.nn.functional as F
    from torch import nn
except ImportError as absent:
    skip(f"PyTorch is not installed ({absent}); scripts/test --torch installs it")

import lade
import lade.torch

torch.set_num_threads(1)
lade.torch.train_step.PLAN_SECONDS = 0.4, 0.4  # small graphs
SEED = 6


class Block(nn.Module):
    def __init__(self, width, heads, dropout):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down, self.drop = nn.Linear(width, 4 * width), nn.Linear(4 * width, width), nn.Dropout(dropout)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.drop(self.out(a.transpose(1, 2).reshape(b, t, d)))
        return x + self.drop(self.down(F.gelu(self.up(self.norm2(x)))))


class GPT(nn.Module):
    """A small GPT; @is_tied shares the token table with the head."""

    def __init__(self, width=32, layers=2, dropout=0.1, vocab=64, is_tied=False):
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocab, width), nn.Embedding(64, width)
        self.blocks = nn.ModuleList(Block(width, 2, dropout) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocab, bias=False)
        if is_tied:
            self.head.weight = self.tokens.weight

    def hidden(self, x):
        return self.tokens(x) + self.places(torch.arange(x.shape[1], device=x.device))

    def forward(self, x, y):
        h = self.hidden(x)
        for block in self.blocks:
            h = block(h)
        return F.cross_entropy(self.head(self.norm(h)).flatten(0, 1), y.flatten())


def batch(rows=8, columns=32, vocab=64):
    generator = torch.Generator().manual_seed(1)
    return tuple(torch.randint(0, vocab, (rows, columns), generator=generator) for _ in range(2))


def plain(model, optimizer):
    """Return an ordinary training step."""
    def train(x, y):
        loss = model(x, y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()
    return train


def adamw(model):
    return torch.optim.AdamW(model.parameters(), lr=1e-3)


def made(budget="100%", dropout=0.1, layers=2, **options):
    """Return (model, optimizer, step) of a small GPT."""
    torch.manual_seed(0)
    model = GPT(layers=layers, dropout=dropout)
    optimizer = adamw(model)
    return model, optimizer, lade.torch.step(plain(model, optimizer), model, optimizer, budget, **options)


def run_eager(model, make_optimizer, make_train, data, n_steps=3):
    """Return (losses, digest, generator) of uncaptured steps of a copy of @model."""
    model = copy.deepcopy(model)
    optimizer = make_optimizer(model)
    train = make_train(model, optimizer)
    torch.manual_seed(SEED)
    losses = [float(train(*data)) for _ in range(n_steps)]
    return losses, lade.torch.digest(model, optimizer), torch.get_rng_state().tolist()


def check(name, model, data, *, make_optimizer=adamw, make_train=plain, budgets=("100%", "min"), n_steps=3, **options):
    """Assert that captured steps have the bits of eager ones and the planned peak, at each budget that is accepted.

    The audit is off, so that the captured code alone makes the bits. At least one budget below 100 % must be accepted.
    """
    wanted = run_eager(model, make_optimizer, make_train, data, n_steps)
    reports = []
    for budget in budgets:
        own = copy.deepcopy(model)
        optimizer = make_optimizer(own)
        step = lade.torch.step(make_train(own, optimizer), own, optimizer, budget, audit=False, **options)
        torch.manual_seed(SEED)
        losses = [float(step(*data)) for _ in range(n_steps - 1)]
        peak = lade.torch.measure(step, *data)["peak_bytes"]
        report = step.report()
        assert losses == wanted[0][:-1], (name, budget, losses, wanted[0])
        assert lade.torch.digest(own, optimizer) == wanted[1], (name, budget, "other bits")
        assert torch.get_rng_state().tolist() == wanted[2], (name, budget, "the generator ends elsewhere")
        assert peak == report["planned_peak_bytes"], (name, budget, peak, report["planned_peak_bytes"])
        reports.append(report)
    print(f"{name}: {len(budgets)} budgets, {reports[-1]['n_redone']} redone, {reports[-1]['moved_bytes']} bytes moved",
          flush=True)
    return reports


def refused(kind, call, *words):
    """Assert that a call raises @kind with these words."""
    try:
        call()
    except kind as fault:
        assert all(word in str(fault) for word in words), (words, str(fault))
        return fault
    raise AssertionError(f"{kind.__name__} was not raised; expected {words}")
