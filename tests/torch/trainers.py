#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The lines of docs/pytorch.md for trainers train with the bits of the trainers alone. Usage: trainers.py LIBLADE"""
import contextlib
import tempfile

from fixture import lade, skip, torch

try:
    import accelerate
    import transformers
except ImportError as absent:
    skip(f"a trainer is not installed ({absent})")

import families

transformers.logging.set_verbosity_error()


def examples(batch):
    return [{key: value[i] for key, value in batch.items()} for i in range(len(batch["input_ids"]))]


class Trainer(transformers.Trainer):
    def training_step(self, model, inputs, num_items_in_batch=None):
        if not hasattr(self, "planned"):
            def backward(inputs, num_items_in_batch):
                loss = self.compute_loss(model, inputs, num_items_in_batch=num_items_in_batch)
                loss.backward()
                return loss.detach()
            self.planned = lade.torch.step(backward, model, None, budget="80%")
        return self.planned(self._prepare_inputs(inputs), num_items_in_batch)


def trained(kind, scratch, optimizer=None, held_by=None):
    model, batch = families.make("gpt2")
    options = transformers.TrainingArguments(scratch, max_steps=3, per_device_train_batch_size=4, report_to=[], seed=1,
                                             save_strategy="no", use_cpu=True, disable_tqdm=True, logging_strategy="no")
    trainer = kind(model=model, args=options, train_dataset=examples(batch), optimizer_cls_and_kwargs=optimizer)
    if held_by is None:
        trainer.train()
    else:
        with held_by(model) as held:
            trainer.train()
        assert held.moved_bytes and not held.entries, "no tensor waited elsewhere"
        held.close()
    return lade.torch.digest(model), trainer


def the_trainer_of_huggingface():
    with tempfile.TemporaryDirectory(prefix="lade-trainer-") as scratch:
        wanted, _ = trained(transformers.Trainer, scratch)
        found, trainer = trained(Trainer, scratch)
    assert found == wanted
    report = trainer.planned.report()
    assert report["planned_peak_bytes"] < report["unconstrained_peak_bytes"], report


def the_trainer_with_state_elsewhere():
    with tempfile.TemporaryDirectory(prefix="lade-trainer-") as scratch:
        digests = {trained(transformers.Trainer, scratch, (lade.torch.AdamW, dict(lr=1e-3, where=where)))[0]
                   for where in ("host", f"store:{scratch}")}
        plain, _ = trained(transformers.Trainer, scratch)
        held, _ = trained(transformers.Trainer, scratch,
                          held_by=lambda model: lade.torch.saved(model, live="64KiB", host="256MiB"))
    assert len(digests) == 1 and plain == held, (digests, plain, held)


def accelerate_with_state_elsewhere(where, is_held):
    model, batch = families.make("gpt2")
    accelerator = accelerate.Accelerator(cpu=True)
    model, optimizer = accelerator.prepare(model, lade.torch.AdamW(model.parameters(), lr=1e-3, where=where))
    held = lade.torch.saved(model, live="64KiB", host="256MiB") if is_held else contextlib.nullcontext()
    torch.manual_seed(2)
    for _ in range(3):
        with held:
            loss = model(**batch).loss
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
    return lade.torch.digest(model)


def with_accelerate(is_planned):
    model, batch = families.make("gpt2")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    accelerator = accelerate.Accelerator(cpu=True)
    model, optimizer = accelerator.prepare(model, optimizer)

    def train(batch):
        loss = model(**batch).loss
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()
    if is_planned:
        train = lade.torch.step(train, model, optimizer, budget="min")
    torch.manual_seed(2)
    losses = [train(batch).item() for _ in range(3)]
    return losses, lade.torch.digest(model, optimizer)


the_trainer_of_huggingface()
the_trainer_with_state_elsewhere()
assert with_accelerate(True) == with_accelerate(False)
with tempfile.TemporaryDirectory(prefix="lade-trainer-") as folder:
    assert accelerate_with_state_elsewhere("host", False) == accelerate_with_state_elsewhere(f"store:{folder}", True)
