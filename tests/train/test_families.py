"""Ids and pixels are those that each family's own `apply_chat_template(tokenize=True)` gives."""

from __future__ import annotations

import pytest
import torch
from tiny_model import tiny_processor  # noqa: F401 - the folder of examples is on the path
from transformers.video_utils import VideoMetadata

from reasonknee_hf.errors import OptionError, RecordError
from reasonknee_hf.train import Collator, conversation, get_recipe
from train.families import FAMILIES, VIDEO

pytestmark = pytest.mark.train

IMAGES = get_recipe("o1", size=28, kind="images")
PROMPTS = {str(number): f"Question {number}: grade it." for number in range(1, 70)}


@pytest.fixture(scope="module")
def row(rows):
    return rows[0]


def own(processor, row, view, **options):
    chat = conversation(row, view=view, target=None, prompts=PROMPTS)
    return processor.apply_chat_template(
        [chat],
        tokenize=True,
        add_generation_prompt=True,
        return_dict=True,
        return_tensors="pt",
        processor_kwargs={"padding": True, **options},
    )


def equal(ours, theirs):
    assert set(ours) == set(theirs)
    for name, tensor in theirs.items():
        assert torch.equal(torch.as_tensor(ours[name]), torch.as_tensor(tensor)), name


@pytest.mark.parametrize("family", FAMILIES)
def test_images(family, row):
    processor = FAMILIES[family]()
    view = get_recipe(IMAGES, slices="o1")
    equal(Collator(processor, view=view, target=None, prompts=PROMPTS)([row]), own(processor, row, view))


@pytest.mark.parametrize("family", VIDEO)
def test_videos(family, row):
    processor = FAMILIES[family]()
    view = get_recipe("o1", size=28, kind="video", fps=2.0)
    batch = Collator(processor, view=view, target=None, prompts=PROMPTS)([row])
    seen = batch.references[0].view
    frames = seen.pictures
    metadata = VideoMetadata(
        total_num_frames=frames,
        fps=seen.fps,
        duration=frames / seen.fps,
        frames_indices=list(range(frames)),
        height=28,
        width=28,
    )
    equal(batch, own(processor, row, view, do_sample_frames=False, video_metadata=[metadata]))


@pytest.mark.parametrize("family", FAMILIES)
def test_answers_follow_the_prompt_with_one_first_token(family, row):
    processor = FAMILIES[family]()
    asked = Collator(processor, view=IMAGES, target=None, prompts=PROMPTS)([row])
    trained = Collator(processor, view=IMAGES, target="grades", prompts=PROMPTS)([row])
    count = asked["input_ids"].shape[1]
    assert torch.equal(trained["input_ids"][:, :count], asked["input_ids"])
    assert (trained["labels"][:, :count] == -100).all()
    bos = processor.tokenizer.bos_token_id
    if bos is not None:
        assert (trained["input_ids"] == bos).sum() == 1


@pytest.mark.parametrize("family", FAMILIES)
def test_batches_of_rows_with_different_numbers_of_frames(family, rows):
    processor = FAMILIES[family]()
    first = rows[0]
    other = next(row for row in rows if row["image"].shape[0] != first["image"].shape[0])
    kind = "video" if family in VIDEO else "images"
    collator = Collator(
        processor, view=get_recipe("upstream", size=28, kind=kind), target=None, prompts=PROMPTS
    )
    if family in ("llava_onevision", "llava_next_video", "internvl"):
        with pytest.raises(
            RecordError, match=rf"{first['id']} has 28.*{other['id']} has 32.*one row a batch"
        ):
            collator([first, other])
        return
    batch, alone = collator([first, other]), collator([other])["input_ids"]
    assert torch.equal(batch["input_ids"][1, -alone.shape[1] :], alone[0])


def test_a_family_without_video_says_what_to_take():
    with pytest.raises(OptionError, match="kind='images'"):
        Collator(FAMILIES["gemma3"](), view="upstream")
