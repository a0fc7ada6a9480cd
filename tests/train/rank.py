"""One of two processes that train together; started by test_ranks.py. Writes what it saw as JSON."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
from pathlib import Path

os.environ.update(OMP_NUM_THREADS="1", ACCELERATE_USE_CPU="true", TOKENIZERS_PARALLELISM="false")

import torch
from accelerate import Accelerator, DataLoaderConfiguration
from accelerate.state import AcceleratorState, GradientState
from tiny_model import tiny_model, tiny_processor
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from transformers import Trainer

from reasonknee_hf.dataset.loading import load_dataset
from reasonknee_hf.errors import OptionError
from reasonknee_hf.train import (
    Collator,
    ResumeCallback,
    RowEvaluation,
    evaluation_stream,
    get_recipe,
    training_arguments,
    training_stream,
)
from reasonknee_hf.volumes.volume_cache import volume_cache
from train.conftest import PROMPTS

RANK = int(os.environ.get("RANK", 0))


class Said(logging.Handler):
    """Keeps what the stream logs."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def steps(model, batches, backward) -> dict:
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    seen, losses = [], []
    for batch in batches:
        seen.append([reference.id for reference in batch.references])
        loss = model(**batch).loss
        backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    return {"seen": seen, "losses": losses}


def main(source: str, out: str) -> None:
    torch.set_num_threads(1)
    said = Said()
    logging.getLogger("reasonknee_hf.train").addHandler(said)
    logging.getLogger("reasonknee_hf.train").setLevel(logging.INFO)
    collator = Collator(tiny_processor(), view=get_recipe("eight", size=28), prompts=PROMPTS)

    def stream():
        return training_stream(load_dataset("full", split="train", streaming=True, source=source))

    found: dict = {"rows": len(stream())}
    torch.distributed.init_process_group("gloo")
    model = DistributedDataParallel(tiny_model(collator.processor))
    loader = DataLoader(stream().shard(2, RANK), batch_size=16, collate_fn=collator)
    found["ddp"] = steps(model, loader, lambda loss: loss.backward())
    found["decodes"], found["said"] = volume_cache().decodes, said.lines

    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(dispatch_batches=False))
    loader = DataLoader(stream(), batch_size=16, collate_fn=collator)
    model, loader = accelerator.prepare(tiny_model(collator.processor), loader)
    found["accelerate"] = steps(model, loader, accelerator.backward)

    class Watched(Trainer):
        def training_step(self, model, inputs, num_items_in_batch=None):
            found["trainer"]["seen"].append([reference.id for reference in inputs.references])
            loss = super().training_step(model, inputs, num_items_in_batch)
            found["trainer"]["losses"].append(float(loss))
            return loss

    _forget()
    found["trainer"] = {"seen": [], "losses": []}
    arguments = training_arguments(
        f"{out}-trainer",
        num_train_epochs=1,
        per_device_train_batch_size=16,
        learning_rate=5e-3,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
    )
    Watched(tiny_model(collator.processor), arguments, train_dataset=stream(), data_collator=collator).train()

    _forget()
    found["evaluated"] = evaluated(source, out)

    _forget()
    accelerator = Accelerator(cpu=True)
    loader = accelerator.prepare(DataLoader(stream(), batch_size=2, collate_fn=collator))
    Path(f"{out}.json").write_text(json.dumps(found))
    if RANK == 0:  # the other rank waits for batches that never come, and is ended by the test
        try:
            next(iter(loader))
        except OptionError as error:
            found["dispatch"] = str(error)
        Path(f"{out}.json").write_text(json.dumps(found))
        os._exit(0)
    with contextlib.suppress(Exception):
        next(iter(loader))
    os._exit(0)


class RowTrainer(RowEvaluation, Trainer):
    """Its metrics know the rows."""


def evaluated(source: str, out: str) -> dict:
    """What evaluation of rows that two ranks do not divide evenly finds, and how it refuses other streams."""
    collator = Collator(tiny_processor(), view=get_recipe("eight", size=28), prompts=PROMPTS)
    arguments = training_arguments(
        f"{out}-evaluated",
        per_device_train_batch_size=4,
        per_device_eval_batch_size=4,
        max_steps=1,
        save_strategy="no",
        eval_strategy="steps",
        eval_steps=1,
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
    )

    def load():
        return load_dataset("full", split="train", streaming=True, source=source).take(21)

    def trainer(cls, eval_dataset, **options):
        return cls(
            tiny_model(collator.processor),
            arguments,
            train_dataset=training_stream(load(), rows=21),
            eval_dataset=eval_dataset,
            data_collator=collator,
            **options,
        )

    def metrics(rows):
        right = (rows.predictions[:, :-1] == rows.label_ids[:, 1:]) & (rows.label_ids[:, 1:] != -100)
        return {"ids": rows.ids, "right": int(right.sum())}

    found = {"row": trainer(RowTrainer, evaluation_stream(load()), compute_metrics=metrics).evaluate()}
    labels = []

    def count(prediction):
        labels.append(prediction.label_ids)
        return {"rows": len(prediction.label_ids), "empty": int((labels[0] == -100).all(1).sum())}

    found["plain"] = trainer(Trainer, evaluation_stream(load()), compute_metrics=count).evaluate()
    for name, cls, dataset, callbacks in (
        ("loaded", Trainer, load(), []),
        ("training", RowTrainer, training_stream(load(), rows=21), []),
        ("watched", Trainer, training_stream(load(), rows=21), None),
    ):
        made = trainer(cls, dataset, callbacks=callbacks)
        if callbacks is None:
            made.add_callback(ResumeCallback(made.train_dataset))
        try:
            made.evaluate()
        except OptionError as error:
            found[name] = str(error)
        _forget_loaders()
    return found


def _forget_loaders() -> None:
    GradientState().dataloader_references = [None]


def _forget() -> None:
    """`accelerate` keeps its settings in the class; the next launcher must not find those of the one
    before."""
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


if __name__ == "__main__":
    main(*sys.argv[1:])
