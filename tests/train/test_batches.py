"""The collator with the real processor and a model of 0.2 million parameters."""

from __future__ import annotations

import logging
import pickle
import warnings

import numpy as np
import pytest
import torch
from tiny_model import tiny_model, tiny_processor
from transformers.utils.logging import warning_once

from reasonknee_hf.bench import read_answer
from reasonknee_hf.errors import OptionError, RecordError, StateError, VolumeMissingError
from reasonknee_hf.knee.moaks import QUESTIONS
from reasonknee_hf.knee.training.targets import TARGETS, target_text
from reasonknee_hf.prompting.recipes import RECIPES
from reasonknee_hf.train import Batch, Collator, get_recipe
from reasonknee_hf.train.trainer_stream import PASSED
from reasonknee_hf.volumes.volume import KneeVolume
from train.conftest import PROMPTS

pytestmark = pytest.mark.train

EIGHT = get_recipe("eight", size=56)
JITTER = get_recipe("jitter", size=56, most=8)
TOLD = {"setting": "gt_region", "region_as": "text"}


@pytest.fixture(scope="module")
def processor():
    return tiny_processor()


@pytest.fixture(scope="module")
def pair(rows: list[dict]) -> list[dict]:
    """Rows of two volumes that differ in shape, with answers of different lengths."""
    first = rows[0]
    other = next(
        row for row in rows if row["image"].shape != first["image"].shape and row["question_id"] == 58
    )
    return [first, other]


@pytest.mark.parametrize("view", list(RECIPES))
def test_every_view_trains_on_volumes_of_different_shapes(processor, pair, view) -> None:
    recipe = RECIPES[view] if view == "region" else get_recipe(view, size=56)
    batch = Collator(processor, view=recipe, target="box_grades", **TOLD, prompts=PROMPTS)(pair)
    assert batch["input_ids"].shape == batch["labels"].shape == batch["attention_mask"].shape
    loss = tiny_model(processor)(**batch).loss
    loss.backward()
    assert torch.isfinite(loss)


@pytest.mark.parametrize("target", TARGETS)
def test_only_the_target_has_labels(processor, pair, target) -> None:
    batch = Collator(processor, view=EIGHT, target=target, **TOLD)(pair)
    for row, ids, labels, kept, reference in zip(
        pair, batch["input_ids"], batch["labels"], batch["attention_mask"], batch.references, strict=True
    ):
        said = labels != -100
        assert processor.tokenizer.decode(ids[said]) == target_text(row, target) + "<|im_end|>\n"
        assert (ids[said] == labels[said]).all()
        prompt = processor.tokenizer.decode(ids[kept.bool() & ~said])
        assert row["prompt"] in prompt
        assert prompt.endswith("<|im_start|>assistant\n")
        assert (ids[kept == 0] == processor.tokenizer.pad_token_id).all()
        assert reference.answer == target_text(row, target)
        assert read_answer(reference.answer, QUESTIONS[row["question_id"]]).valid


def test_tokens_are_those_that_generation_starts_from(processor, pair) -> None:
    trained = Collator(processor, view=EIGHT, **TOLD)(pair)
    asked = Collator(processor, view=EIGHT, target=None, **TOLD)(pair)
    assert "labels" not in asked
    for i in range(2):
        prompt = asked["input_ids"][i][asked["attention_mask"][i].bool()]
        assert (trained["input_ids"][i][: len(prompt)] == prompt).all()
    assert asked["attention_mask"][:, -1].all()  # padded on the left
    assert (trained["pixel_values_videos"] == asked["pixel_values_videos"]).all()


def test_generation_runs(processor, pair) -> None:
    batch = Collator(processor, view=JITTER, target=None, prompts=PROMPTS)(pair)
    said = tiny_model(processor).generate(**batch, max_new_tokens=3, do_sample=False)
    assert said.shape[1] == batch["input_ids"].shape[1] + 3


def test_pixels_are_those_of_the_view(processor, pair) -> None:
    batch = Collator(processor, view="region")(pair)
    for i, (row, reference) in enumerate(zip(pair, batch.references, strict=True)):
        frames = reference.view.draw(row["image"])
        n, height, width = frames.shape
        assert batch["video_grid_thw"][i].tolist() == [n // 2, height // 14, width // 14]
    t, h, w = batch["video_grid_thw"][0].tolist()
    first = batch["pixel_values_videos"][: t * h * w].reshape(t * h * w, 3, 2, 14, 14)
    mean, std = processor.video_processor.image_mean[0], processor.video_processor.image_std[0]
    grey = ((first[0, 0, 0] * std + mean) * 255).round().numpy()
    drawn = batch.references[0].view.draw(pair[0]["image"])[0, :14, :14]
    assert np.abs(grey - drawn).max() <= 1


def test_frame_rates_reach_the_model_and_nothing_warns(processor, pair, caplog, monkeypatch) -> None:
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    warning_once.cache_clear()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        batch = Collator(processor, view=get_recipe(EIGHT, fps=2.0))(pair)
    assert batch["second_per_grid_ts"].tolist() == [1.0, 1.0]
    assert not caplog.records


def test_references_travel_beside_the_tensors(processor, pair) -> None:
    batch = Collator(processor, view=EIGHT)(pair)
    assert all(isinstance(tensor, torch.Tensor) for tensor in batch.values())
    for other in (batch.to("cpu"), batch.pin_memory() if torch.cuda.is_available() else batch):
        assert [reference.id for reference in other.references] == [row["id"] for row in pair]
    back = pickle.loads(pickle.dumps(batch))
    assert isinstance(back, Batch)
    assert back.references == batch.references
    assert back.references[1].bbox == tuple(pair[1]["bbox"])


def test_collators_and_batches_pickle_without_voxels(processor, pair) -> None:
    collator = Collator(processor, view=EIGHT)
    assert (pickle.loads(pickle.dumps(collator))(pair)["labels"] == collator(pair)["labels"]).all()


# --- what does not fit
# -------------------------------------------------------------------------------------------


def test_a_processor_without_videos_says_which_view_to_take(pair) -> None:
    blind = tiny_processor()
    blind.video_processor = None
    with pytest.raises(OptionError, match=r"get_recipe\('eight', kind='images'\)"):
        Collator(blind, view=EIGHT)
    batch = Collator(blind, view=get_recipe("eight", kind="images", size=56))(pair)
    assert len(batch["image_grid_thw"]) == 16


def test_a_tokenizer_is_no_processor(processor) -> None:
    with pytest.raises(OptionError, match="AutoProcessor"):
        Collator(processor.tokenizer)


def test_a_template_that_rewrites_answers_is_refused(pair) -> None:
    strange = tiny_processor()
    strange.chat_template = strange.chat_template.replace(
        "part['text']", "part['text'].split('</think>')[-1]"
    )
    with pytest.raises(OptionError, match="another target"):
        Collator(strange, view=EIGHT, target="think")(pair)
    Collator(strange, view=EIGHT, target="grades")(pair)


def test_rows_that_are_too_long_are_not_cut(processor, pair) -> None:
    with pytest.raises(RecordError, match=f"{pair[0]['id']}.*max_length=50"):
        Collator(processor, view=EIGHT, max_length=50)(pair)


def test_a_missing_volume_names_its_row(processor, pair, tmp_path) -> None:
    gone = {**pair[1], "image": KneeVolume(str(tmp_path / "gone.nii.gz"), label=pair[1]["id"])}
    with pytest.raises(VolumeMissingError, match=f"{pair[1]['id']}.*images="):
        Collator(processor, view=EIGHT)([pair[0], gone])


def test_passed_rows_make_an_empty_batch_and_never_half_of_one(processor, pair) -> None:
    collator = Collator(processor, view=EIGHT)
    assert collator([PASSED, PASSED]) == {}
    with pytest.raises(StateError, match="batch size"):
        collator([PASSED, pair[0]])


def test_public_names_are_what_they_say_whatever_was_imported_before() -> None:
    import reasonknee_hf.prompting.chats
    import reasonknee_hf.train.trainer_stream  # noqa: F401
    from reasonknee_hf import train

    modules = {name for name in train.__all__ if type(getattr(train, name)).__name__ == "module"}
    assert not modules
