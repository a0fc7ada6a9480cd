"""One of two ranks of runs that are undisturbed, killed in their second epoch, and resumed; started by test_killed.py.

Each run is a process of its own, forked from this one, which has imported all.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import traceback
from itertools import product
from pathlib import Path

os.environ.update(OMP_NUM_THREADS="1", ACCELERATE_USE_CPU="true", TOKENIZERS_PARALLELISM="false")

import torch
from peft import LoraConfig, get_peft_model
from tiny_model import tiny_model, tiny_processor
from transformers import Trainer

from reasonknee_hf.dataset.loading import load_dataset
from reasonknee_hf.train import Collator, ResumeCallback, get_recipe, training_arguments, training_stream
from train.conftest import PROMPTS

RUNS = [f"{kind}-{workers}" for kind, workers in product(("full", "lora"), (0, 2))]
LAST_STEP = 10  # of two epochs
KILLED_BEHIND = 9
SAVED_EVERY = 7


class Watched(Trainer):
    """Notes the rows of each step in a file, and may end all at once."""

    seen: Path
    killed = False

    def training_step(self, model, inputs, num_items_in_batch=None):
        loss = super().training_step(model, inputs, num_items_in_batch)
        with self.seen.open("a") as file:
            file.write(json.dumps([reference.id for reference in inputs.references]) + "\n")
        if self.killed and self.state.global_step + 1 == KILLED_BEHIND:
            torch.distributed.barrier()
            os.kill(os.getpid(), signal.SIGKILL)
        return loss


def train(source: str, folder: Path, run: str, name: str) -> None:
    kind, workers = run.split("-")
    rank = os.environ["RANK"]
    collator = Collator(tiny_processor(), view=get_recipe("eight", size=28), prompts=PROMPTS)
    model = tiny_model(collator.processor)
    if kind == "lora":
        torch.manual_seed(0)
        model = get_peft_model(model, LoraConfig(r=2, target_modules=["q_proj", "v_proj"], lora_dropout=0.1))
    rows = load_dataset("full", split="train", streaming=True, source=source, shuffle=7)
    stream = training_stream(rows.filter(lambda row: row["question_id"] <= 4))
    checkpoints = folder / f"{run}-{'whole' if name == 'whole' else 'other'}"
    trainer = Watched(
        model,
        training_arguments(
            str(checkpoints),
            num_train_epochs=2,
            per_device_train_batch_size=2,
            learning_rate=5e-3,
            dataloader_num_workers=int(workers),
            save_strategy="steps",
            save_steps=SAVED_EVERY,
            logging_strategy="no",
            report_to="none",
            use_cpu=True,
            disable_tqdm=True,
        ),
        train_dataset=stream,
        data_collator=collator,
        callbacks=[ResumeCallback(stream)],
    )
    trainer.seen = folder / f"{run}-{name}-{rank}.jsonl"
    trainer.killed = name == "killed"
    trainer.train(resume_from_checkpoint=True if name == "resumed" else None)
    assert trainer.state.global_step == LAST_STEP
    weights = hashlib.sha256()
    for key, tensor in sorted(trainer.model.state_dict().items()):
        weights.update(key.encode() + tensor.numpy().tobytes())
    (folder / f"{run}-{name}-{rank}.weights").write_text(weights.hexdigest())


def main(source: str, out: str, port: str) -> None:
    torch.set_num_threads(1)
    for number, (run, name) in enumerate(product(RUNS, ("whole", "killed", "resumed"))):
        child = os.fork()
        if child == 0:
            os.environ["MASTER_PORT"] = str(int(port) + number)
            try:
                train(source, Path(out), run, name)
                os._exit(0)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
        _, status = os.waitpid(child, 0)
        wanted = signal.SIGKILL if name == "killed" else 0
        assert status == wanted, (run, name, status)


if __name__ == "__main__":
    main(*sys.argv[1:])
