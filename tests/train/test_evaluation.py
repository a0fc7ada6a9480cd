"""Evaluation: each row once, whatever ranks, workers and batches are; metrics that know ids."""

from __future__ import annotations

import itertools
import json
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support import text_release
from tiny_model import tiny_model, tiny_processor
from transformers import Trainer

from reasonknee_hf.dataset.loading import load_dataset
from reasonknee_hf.errors import OptionError, StateError
from reasonknee_hf.train import (
    Collator,
    RowEvaluation,
    evaluation_stream,
    get_recipe,
    training_arguments,
    training_stream,
)
from reasonknee_hf.train.predictions import prediction_line
from reasonknee_hf.train.trainer_stream import PaddingRow
from train.conftest import PROMPTS

pytestmark = pytest.mark.train

EIGHT = get_recipe("eight", size=28)


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """Makes streams over 5 scans, the last of which has fewer records."""
    release = str(text_release(tmp_path_factory.mktemp("text") / "release", 5, 62 * 5 - 25))

    def make(**options):
        return load_dataset("full", split="train", streaming=True, source=release, masks=False, **options)

    return make


def as_worker(monkeypatch, worker: int, workers: int) -> None:
    info = SimpleNamespace(id=worker, num_workers=workers) if workers else None
    monkeypatch.setattr("torch.utils.data.get_worker_info", lambda: info)


@settings(max_examples=12, deadline=None)
@given(
    ranks=st.integers(1, 7),
    workers=st.integers(0, 3),
    rows=st.integers(1, 70),
    kind=st.sampled_from(["plain", "shuffle", "mapped", "filtered"]),
)
def test_each_row_comes_once_and_all_parts_are_as_long(text, ranks, workers, rows, kind) -> None:
    ds = text(shuffle=3) if kind == "shuffle" else text()
    if kind == "filtered":
        ds = ds.filter(lambda row: row["question_id"] % 3 == 1)
    ds = ds.take(rows) if kind != "plain" else ds
    if kind == "mapped":
        ds = ds.map(lambda row: {"id": row["id"]})
    whole = [row["id"] for row in ds]
    parts = []
    with pytest.MonkeyPatch.context() as monkeypatch:
        for rank, worker in itertools.product(range(ranks), range(max(workers, 1))):
            stream = evaluation_stream(ds).shard(ranks, rank)
            as_worker(monkeypatch, worker, workers)
            parts.append(list(stream))
            as_worker(monkeypatch, 0, 0)
    assert len({len(part) for part in parts}) == 1
    assert [r["id"] for part in parts for r in part if not isinstance(r, PaddingRow)] == whole
    assert all(set(row) == set(parts[0][0]) for part in parts for row in part)


def test_a_rank_of_a_loaded_split_begins_at_its_place(text, monkeypatch) -> None:
    from reasonknee_hf.dataset.joining import Joiner

    read = []
    original = Joiner.row
    monkeypatch.setattr(Joiner, "row", lambda self, record: read.append(1) or original(self, record))
    assert len(list(evaluation_stream(text()).shard(5, 4))) == 57
    assert len(read) <= 57 + 4  # none of the 228 before it


def test_what_is_no_whole_stream_is_refused(text) -> None:
    with pytest.raises(OptionError, match="part"):
        evaluation_stream(training_stream(text(shuffle=1)).shard(2, 0))
    with pytest.raises(OptionError, match="no rows"):
        evaluation_stream(text().filter(lambda row: False))
    with pytest.raises(OptionError, match="streaming=True"):
        evaluation_stream([])
    with pytest.raises(StateError, match="whole"):
        evaluation_stream(text()).load_state_dict(text().state_dict())


class RowTrainer(RowEvaluation, Trainer):
    """A trainer whose metrics know the rows."""


def trainer(make_stream, tmp_path, collator, rows=7, metrics=None, **options):
    arguments = training_arguments(
        str(tmp_path),
        per_device_eval_batch_size=3,
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
        **options,
    )
    return RowTrainer(
        tiny_model(collator.processor),
        arguments,
        eval_dataset=evaluation_stream(make_stream().take(rows)),
        data_collator=collator,
        compute_metrics=metrics,
    )


@pytest.mark.parametrize("workers", [0, 2])
def test_metrics_get_every_row_with_its_id(make_stream, rows, tmp_path, workers) -> None:
    collator = Collator(tiny_processor(), view=EIGHT, prompts=PROMPTS)
    got = []

    def metrics(evaluated):
        got.append(evaluated)
        return {"rows": len(evaluated.ids)}

    found = trainer(
        make_stream, tmp_path, collator, metrics=metrics, dataloader_num_workers=workers
    ).evaluate()
    assert found["eval_rows"] == 7
    assert got[0].ids == sorted(row["id"] for row in rows[:7])
    by_id = {row["id"]: row for row in rows}
    for reference, labels in zip(got[0].references, got[0].label_ids, strict=True):
        said = collator.processor.tokenizer.decode(labels[labels != -100], skip_special_tokens=True)
        assert reference.answer.strip() in said
        assert reference.bbox == tuple(by_id[reference.id]["bbox"])
    model = tiny_model(collator.processor).eval()
    total = tokens = 0
    with torch.no_grad():
        for row in rows[:7]:
            batch = collator([row])
            counted = int((batch["labels"] != -100).sum())
            total, tokens = total + float(model(**batch).loss) * counted, tokens + counted
    assert found["eval_loss"] == pytest.approx(total / tokens, rel=1e-4)


def test_the_bench_scores_what_the_model_says_inside_trainer(make_stream, tmp_path) -> None:
    from reasonknee_hf.bench import score

    collator = Collator(tiny_processor(), view=get_recipe("o1", size=28), prompts=PROMPTS, target=None)
    tokenizer = collator.processor.tokenizer

    def metrics(evaluated):
        texts = tokenizer.batch_decode(
            [said[said != -100] for said in evaluated.predictions], skip_special_tokens=True
        )
        lines = [prediction_line(*pair) for pair in zip(evaluated.references, texts, strict=True)]
        file = tmp_path / "answers.jsonl"
        file.write_text("".join(json.dumps(line) + "\n" for line in lines))
        reasons = score(file, make_stream().take(7)).outcome.reasons
        return {"items": len(reasons), "missing": reasons.count("missing")}

    made = trainer(make_stream, tmp_path, collator, metrics=metrics)
    made.generation = {"max_new_tokens": 4, "do_sample": False}
    found = made.evaluate()
    assert (found["eval_items"], found["eval_missing"]) == (7, 0)


def test_predict_tells_the_tokens_of_each_row(make_stream, tmp_path) -> None:
    collator = Collator(tiny_processor(), view=EIGHT, prompts=PROMPTS)
    found = trainer(make_stream, tmp_path, collator).predict(evaluation_stream(make_stream().take(4)))
    assert found.predictions.shape == found.label_ids.shape
    assert len(found.predictions) == 4
    assert "test_loss" in found.metrics


def test_the_trainer_of_trl_evaluates_while_it_trains(make_stream, rows, tmp_path) -> None:
    from trl import SFTConfig, SFTTrainer

    class RowSFTTrainer(RowEvaluation, SFTTrainer):
        """The same over the trainer of TRL."""

    collator = Collator(tiny_processor(), view=EIGHT, prompts=PROMPTS)
    arguments = training_arguments(
        str(tmp_path),
        SFTConfig,
        max_steps=2,
        per_device_train_batch_size=2,
        per_device_eval_batch_size=3,
        eval_strategy="steps",
        eval_steps=1,
        report_to="none",
        use_cpu=True,
        bf16=False,
        disable_tqdm=True,
    )
    seen = []
    made = RowSFTTrainer(
        tiny_model(collator.processor),
        arguments,
        train_dataset=training_stream(make_stream().take(6), rows=6),
        eval_dataset=evaluation_stream(make_stream().take(7)),
        data_collator=collator,
        processing_class=collator.processor,
        compute_metrics=lambda evaluated: seen.append(evaluated.ids) or {"rows": len(evaluated.ids)},
    )
    made.train()
    assert seen == [sorted(row["id"] for row in rows[:7])] * 2
    assert [entry["eval_rows"] for entry in made.state.log_history if "eval_rows" in entry] == [7, 7]


def test_rows_that_fill_a_batch_have_no_labels(rows) -> None:
    collator = Collator(tiny_processor(), view=EIGHT, prompts=PROMPTS)
    batch = collator([rows[0], PaddingRow(rows[0])])
    assert [reference.is_padding for reference in batch.references] == [False, True]
    assert (batch["labels"][0] != -100).any()
    assert (batch["labels"][1] == -100).all()
