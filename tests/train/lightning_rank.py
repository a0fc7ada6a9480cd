"""A `lightning` run that writes which rows each of its batches had; started by test_lightning.py."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

os.environ.update(OMP_NUM_THREADS="1", TOKENIZERS_PARALLELISM="false")

import torch
from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback

from reasonknee_hf.dataset.loading import load_dataset
from reasonknee_hf.train import RowsDataModule
from reasonknee_hf.train.trainer_stream import PaddingRow


class Ids(list):
    """A batch of ids that travels to a device as it is."""

    def to(self, *args: object, **options: object) -> Ids:
        return self


def ids(rows: list) -> Ids:
    return Ids(row["id"] for row in rows if not isinstance(row, PaddingRow))


class Model(LightningModule):
    """One weight; keeps the ids of what it saw."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.seen: list[list[str]] = []
        self.validated: list[str] = []

    def training_step(self, batch: Ids, number: int) -> torch.Tensor:
        self.seen.append(list(batch))
        return (self.weight**2).sum()

    def validation_step(self, batch: Ids, number: int) -> None:
        self.validated += batch

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Stop(Callback):
    """Saves a checkpoint behind a step, and stops."""

    def __init__(self, step: int, path: Path) -> None:
        self.step, self.path = step, path

    def on_train_batch_end(self, trainer: Trainer, *_: object) -> None:
        if trainer.global_step == self.step:
            trainer.save_checkpoint(self.path)
            trainer.should_stop = True


def main(given: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--source")
    parser.add_argument("--ranks", type=int)
    parser.add_argument("--workers", type=int)
    parser.add_argument("--stop", type=int, default=0)
    parser.add_argument("--resume")
    args = parser.parse_args(given)
    args.out.mkdir(parents=True, exist_ok=True)
    rows = load_dataset("full", split="train", streaming=True, source=args.source, masks=False, shuffle=3)
    few = load_dataset("full", split="train", streaming=True, source=args.source, masks=False, questions=7)
    data = RowsDataModule(rows, few, collate_fn=ids, batch_size=16, num_workers=args.workers)
    model = Model()
    trainer = Trainer(
        max_epochs=2,
        accelerator="cpu",
        devices=args.ranks,
        strategy="ddp" if args.ranks > 1 else "auto",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        callbacks=[Stop(args.stop, args.out / "last.ckpt")] if args.stop else [],
    )
    trainer.fit(model, data, ckpt_path=args.resume)
    seen = {"train": model.seen, "validation": model.validated}
    (args.out / f"rank{trainer.global_rank}.json").write_text(json.dumps(seen))


if __name__ == "__main__":
    main()
