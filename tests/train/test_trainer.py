"""`transformers.Trainer` and TRL's `SFTTrainer` over the stream."""

from __future__ import annotations

import pytest
import torch
from tiny_model import tiny_model, tiny_processor
from transformers import Trainer, TrainerCallback, TrainingArguments

from reasonknee_hf.errors import OptionError, StateError
from reasonknee_hf.train import (
    Collator,
    ResumeCallback,
    check_arguments,
    get_recipe,
    training_arguments,
    training_stream,
)
from train.conftest import PROMPTS

pytestmark = pytest.mark.train

EIGHT = get_recipe("eight", size=56)


@pytest.fixture(scope="module")
def collator():
    return Collator(tiny_processor(), view=EIGHT, prompts=PROMPTS)


class Watched(Trainer):
    """Notes the rows of each step and its loss."""

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        self.seen: list[list[str]] = []
        self.losses: list[float] = []

    def training_step(self, model, inputs, num_items_in_batch=None):
        self.seen.append([reference.id for reference in inputs.references])
        loss = super().training_step(model, inputs, num_items_in_batch)
        self.losses.append(float(loss))
        return loss


def run(stream, collator, folder, *, resume=None, callbacks=(), **options) -> Watched:
    settings = {
        "per_device_train_batch_size": 2,
        "learning_rate": 5e-3,
        "lr_scheduler_type": "constant",
        "logging_strategy": "no",
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": True,
    }
    model = tiny_model(collator.processor)
    trainer = Watched(
        model,
        training_arguments(str(folder), **(settings | options)),
        train_dataset=stream,
        data_collator=collator,
        callbacks=list(callbacks),
    )
    trainer.train(resume_from_checkpoint=None if resume is None else str(resume))
    return trainer


def some(make_stream, count: int):
    """The first and the last rows of the split, which lie in different shards."""
    ds = make_stream()
    ids = [row["id"] for row in ds]
    chosen = {*ids[: count // 2], *ids[count // 2 - count :]}
    return training_stream(ds.filter(lambda row: row["id"] in chosen), rows=count)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("accumulated", [1, 2])
def test_a_resumed_run_sees_what_an_undisturbed_one_sees(
    make_stream, collator, tmp_path, clean_cache, workers, accumulated
) -> None:
    options = {
        "max_steps": 20,
        "per_device_train_batch_size": 1,
        "gradient_accumulation_steps": accumulated,
        "save_strategy": "steps",
        "save_steps": 12,
        "dataloader_num_workers": workers,
    }
    whole = run(some(make_stream, 10), collator, tmp_path, **options)
    checkpoint = tmp_path / "checkpoint-12"
    assert checkpoint.is_dir()
    stream = some(make_stream, 10)
    callbacks = [ResumeCallback(stream)]
    resumed = run(stream, collator, tmp_path, resume=checkpoint, callbacks=callbacks, **options)
    plain = run(some(make_stream, 10), collator, tmp_path, resume=checkpoint, **options)
    after = 12 * accumulated
    assert len(whole.seen) == 20 * accumulated
    assert resumed.seen == plain.seen == whole.seen[after:]
    assert resumed.losses == pytest.approx(whole.losses[after:], rel=1e-3)


def test_weights_that_trainer_does_not_find_are_loaded(make_stream, collator, tmp_path, clean_cache) -> None:
    options = {"save_strategy": "steps", "save_steps": 3}
    run(some(make_stream, 10), collator, tmp_path, max_steps=3, **options)
    stream = some(make_stream, 10)
    checkpoint, found = tmp_path / "checkpoint-3", {}

    class Look(TrainerCallback):
        def on_train_begin(self, args, state, control, model=None, **_):
            found.update({name: tensor.clone() for name, tensor in model.state_dict().items()})

    again = run(
        stream,
        collator,
        tmp_path,
        resume=checkpoint,
        callbacks=[ResumeCallback(stream), Look()],
        max_steps=4,
        **options,
    )
    saved = type(again.model).from_pretrained(checkpoint).state_dict()
    assert all(torch.equal(found[name], tensor) for name, tensor in saved.items())
    fresh = tiny_model(collator.processor).state_dict()
    assert not all(torch.equal(fresh[name], tensor) for name, tensor in saved.items())


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"dataloader_num_workers": 2}, "loader workers: 0 in the checkpoint, 2 now"),
        ({"per_device_train_batch_size": 1}, "rows in a batch: 2 in the checkpoint, 1 now"),
        ({"gradient_accumulation_steps": 2}, "batches in a step: 1 in the checkpoint, 2 now"),
    ],
)
def test_a_run_that_divides_rows_in_another_way_is_refused(
    make_stream, collator, tmp_path, change, said
) -> None:
    options = {"save_strategy": "steps", "save_steps": 2, "max_steps": 2}
    first = some(make_stream, 10)
    run(first, collator, tmp_path, callbacks=[ResumeCallback(first)], **options)
    stream = some(make_stream, 10)
    with pytest.raises(StateError, match=said):
        run(
            stream,
            collator,
            tmp_path,
            resume=tmp_path / "checkpoint-2",
            callbacks=[ResumeCallback(stream)],
            **(options | change),
        )


def test_another_order_than_in_the_checkpoint_is_refused(make_stream, collator, tmp_path) -> None:
    options = {"save_strategy": "steps", "save_steps": 2, "max_steps": 2}
    first = training_stream(make_stream(shuffle=1))
    run(first, collator, tmp_path, callbacks=[ResumeCallback(first)], **options)
    stream = training_stream(make_stream(shuffle=2))
    with pytest.raises(StateError, match="order: "):
        run(
            stream,
            collator,
            tmp_path,
            resume=tmp_path / "checkpoint-2",
            callbacks=[ResumeCallback(stream)],
            **options,
        )


def test_nothing_is_decoded_while_skipping(make_stream, collator, tmp_path, clean_cache) -> None:
    ds = make_stream()
    scans = list(dict.fromkeys(row["scan_id"] for row in ds))
    steps = sum(1 for _ in ds) // 8
    options = {
        "max_steps": steps,
        "per_device_train_batch_size": 8,
        "save_strategy": "steps",
        "save_steps": steps - 1,
    }
    run(training_stream(ds), collator, tmp_path, **options)
    decodes = []
    for with_callback in (True, False):
        clean_cache.clear()
        before = clean_cache.decodes
        stream = training_stream(make_stream())
        callbacks = [ResumeCallback(stream)] if with_callback else []
        checkpoint = tmp_path / f"checkpoint-{steps - 1}"
        run(stream, collator, tmp_path, resume=checkpoint, callbacks=callbacks, **options)
        decodes.append(clean_cache.decodes - before)
    assert decodes == [1, len(scans)]


def test_a_trainer_learns_from_the_stream(make_stream, collator, tmp_path) -> None:
    trainer = run(some(make_stream, 4), collator, tmp_path, max_steps=12)
    assert sum(trainer.losses[-2:]) < sum(trainer.losses[:2]) - 1


def test_sft_trainer_of_trl(make_stream, collator, tmp_path) -> None:
    from trl import SFTConfig, SFTTrainer

    arguments = training_arguments(
        str(tmp_path),
        SFTConfig,
        max_steps=10,
        per_device_train_batch_size=2,
        learning_rate=5e-3,
        lr_scheduler_type="constant",
        logging_steps=1,
        report_to="none",
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        disable_tqdm=True,
    )
    trainer = SFTTrainer(
        tiny_model(collator.processor),
        arguments,
        train_dataset=some(make_stream, 2),
        data_collator=collator,
        processing_class=collator.processor,
    )
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert len(losses) == 10
    assert losses[-1] < losses[0] - 0.5


def test_arguments_that_would_lose_columns_or_dispatch_are_refused(tmp_path) -> None:
    for options, match in (
        ({"remove_unused_columns": True}, "remove_unused_columns=True"),
        ({"accelerator_config": {"dispatch_batches": True}}, "accelerator_config.dispatch_batches=True"),
        ({"accelerator_config": {"split_batches": True}}, "accelerator_config.split_batches=True"),
    ):
        with pytest.raises(OptionError, match=match):
            training_arguments(str(tmp_path), report_to="none", **options)
    with pytest.raises(OptionError, match="remove_unused_columns=True"):
        check_arguments(TrainingArguments(str(tmp_path), report_to="none"))
    check_arguments(training_arguments(str(tmp_path), report_to="none"))


def test_default_arguments_lead_to_an_error_that_names_the_option(make_stream, collator, tmp_path) -> None:
    arguments = TrainingArguments(
        str(tmp_path), max_steps=1, report_to="none", use_cpu=True, disable_tqdm=True
    )
    trainer = Trainer(
        tiny_model(collator.processor), arguments, train_dataset=some(make_stream, 2), data_collator=collator
    )
    with pytest.raises(OptionError, match="remove_unused_columns=False"):
        trainer.train()
