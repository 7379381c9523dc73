#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""HuggingFace families, unmodified: bits of eager and planned = measured at 100 %, 60 %, 40 % and min, where accepted.

Usage: models.py LIBLADE FAMILY ... | all
"""
import sys

from fixture import lade, skip, torch

try:
    import transformers
except ImportError as absent:
    skip(f"transformers is not installed ({absent})")

import families

transformers.logging.set_verbosity_error()
SEED, N_STEPS = 3, 3


def run(name):
    model, batch = families.make(name)
    optimizer, train = families.trainer(model)
    torch.manual_seed(SEED)
    losses, wanted = [train(batch).item() for _ in range(N_STEPS)], lade.torch.digest(model, optimizer)
    accepted = []
    for budget in ("100%", "60%", "40%", "min"):
        model, batch = families.make(name)
        optimizer, train = families.trainer(model)
        step = lade.torch.step(train, model, optimizer, budget, audit=budget == "min")
        torch.manual_seed(SEED)
        try:
            found = [step(batch).item() for _ in range(N_STEPS - 1)]
        except lade.DoesNotFit as fault:
            assert budget not in ("100%", "min") and fault.min_budget_bytes > 0, (name, budget, fault)
            continue
        peak = lade.torch.measure(step, batch)["peak_bytes"]
        report = step.report()
        assert found == losses[:-1], (name, budget, found, losses)
        assert lade.torch.digest(model, optimizer) == wanted, (name, budget)
        assert peak == report["planned_peak_bytes"] <= report["budget_bytes"], (name, budget, peak, report)
        accepted.append(budget)
    print(f"{name}: {', '.join(accepted)}: planned = measured, same bits", flush=True)


names = sys.argv[2:]
for family in families.FAMILIES if names == ["all"] else names:
    run(family)
