"""Rows as chats: the settings of the benchmark, all views, all targets."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest

from reasonknee_hf.bench import read_answer
from reasonknee_hf.errors import OptionError, RecordError
from reasonknee_hf.knee.moaks import QUESTIONS
from reasonknee_hf.knee.scoring.settings import bench_items
from reasonknee_hf.knee.training.targets import TARGETS
from reasonknee_hf.prompting.chats import make_style, row_view
from reasonknee_hf.prompting.recipes import RECIPES
from reasonknee_hf.train import conversation, get_recipe


@pytest.fixture(scope="module")
def row(rows: list[dict]) -> dict:
    return next(row for row in rows if row["question_id"] == 16)


def said(chat: list[dict], role: str) -> str:
    return "".join(
        part["text"]
        for message in chat
        if message["role"] == role
        for part in message["content"]
        if part["type"] == "text"
    )


@pytest.mark.parametrize("view", list(RECIPES))
@pytest.mark.parametrize("setting", ["zero_shot", "instruction", "gt_region"])
def test_chats_hold_pixels_question_and_answer(row: dict, view: str, setting: str) -> None:
    told = (
        view in ("eight", "region") and setting != "gt_region"
    )  # made around the box: it is not asked for then
    target = "grades" if told else "box_grades"
    chat = conversation(row, view=view, setting=setting, region_as="text", target=target)
    assert [message["role"] for message in chat] == ["user", "assistant"]
    pictures = [part for part in chat[0]["content"] if part["type"] != "text"]
    layout = row_view(
        row, make_style({"view": view, "target": target, "setting": setting, "region_as": "text"})
    )
    if RECIPES[view].kind == "video":
        (video,) = pictures
        assert video["video"].shape == (*layout.grid[:1], *layout.size, 3)
        assert video["video"].dtype == np.uint8
        assert len(video["video"]) % 2 == 0
    else:
        assert len(pictures) == (32 if view == "o1" else 1)
        assert all(
            part["image"].mode == "RGB" and part["image"].size == layout.size[::-1] for part in pictures
        )
    assert row["prompt"] in said(chat, "user")
    assert read_answer(said(chat, "assistant"), QUESTIONS[16]).valid


@pytest.mark.parametrize("setting", ["zero_shot", "instruction", "gt_region"])
def test_training_asks_what_the_benchmark_asks(rows: list[dict], setting: str) -> None:
    some = [row for row in rows if row["bbox"]][:62]
    for row, item in zip(some, bench_items(some, setting), strict=True):
        chat = conversation(row, setting=setting, region_as="text", view=get_recipe("planes", size=28))
        sides, _, asked = said(chat, "user").partition("\n")
        assert sides.endswith("the patient's right is on the left of the coronal and axial planes.")
        assert asked == item["prompt"]


def test_the_true_region_as_text_as_crop_and_both(row: dict) -> None:
    a, b, *_ = row["bbox"]
    shown = {}
    for region_as in ("text", "crop", "both"):
        chat = conversation(row, setting="gt_region", view="upstream", region_as=region_as)
        frames = chat[0]["content"][0]["video"].shape[0]
        shown[region_as] = (f"start_slice {a}, end_slice {b}" in said(chat, "user"), frames)
    whole = -(-row["image"].shape[0] // 2) * 2
    assert shown["text"] == (True, whole)
    assert shown["crop"][0] is False
    assert shown["both"][0] is True
    assert shown["crop"][1] == shown["both"][1] < whole


@pytest.mark.parametrize("target", ["box_grades", "think_box"])
@pytest.mark.parametrize("view", ["upstream", "region", "planes"])
def test_boxes_in_the_coordinates_of_the_view_lead_back(row: dict, view: str, target: str) -> None:
    chat = conversation(
        row, view=view, target=target, coordinates="view", setting="gt_region", region_as="text"
    )
    layout = row_view(row, make_style({"view": view}))
    box = read_answer(said(chat, "assistant"), QUESTIONS[16]).box
    assert list(box) == layout.to_view(row["bbox"])
    assert str(layout.to_view(row["bbox"])) in said(chat, "user")
    assert f"{layout.size[1]}" in said(chat, "user")
    if view != "planes":
        assert layout.to_voxels(box) == row["bbox"]


def test_chats_without_an_answer_end_with_the_user(row: dict) -> None:
    chat = conversation(row, view="planes", target=None, system="Be brief.")
    assert [message["role"] for message in chat] == ["system", "user"]


def test_other_prompts_take_the_place_of_the_rows_own(row: dict) -> None:
    chat = conversation(row, view="planes", setting="instruction", prompts={"16": "Grade it."})
    assert said(chat, "user").split("\n")[1:] == ["Grade it."]
    with pytest.raises(OptionError, match="no text for question 16"):
        conversation(row, view="planes", prompts={"15": "Grade it."})


def test_chats_survive_json_but_for_their_pixels(row: dict) -> None:
    chat = conversation(row, view="planes", target="think")
    plain = [
        {**message, "content": [part for part in message["content"] if part["type"] == "text"]}
        for message in chat
    ]
    assert json.loads(json.dumps(plain)) == plain
    assert all(set(part) == {"type", "text"} for message in plain for part in message["content"])


@pytest.mark.parametrize("target", TARGETS)
def test_targets_are_said_as_they_are(row: dict, target: str) -> None:
    from reasonknee_hf.train import target_text

    assert said(conversation(row, view="planes", target=target), "assistant") == target_text(row, target)


@pytest.mark.parametrize(
    ("changes", "options", "error", "match"),
    [
        ({"image": None}, {}, RecordError, "its volume is null.*images="),
        ({"image": "x.nii.gz"}, {}, OptionError, "is a str, not a KneeVolume"),
        ({"bbox": None}, {"setting": "gt_region"}, RecordError, "bbox is null"),
        ({"prompt": None}, {}, RecordError, "no prompt"),
        ({"question_id": None}, {"setting": "instruction"}, RecordError, "none of the 69"),
        ({}, {"setting": "sft"}, OptionError, "zero_shot, instruction, gt_region"),
        ({}, {"veiw": "o1"}, OptionError, "no option of a conversation 'veiw'"),
        ({}, {"coordinates": "mm"}, OptionError, "voxels, view"),
        ({}, {"view": "planes", "setting": "gt_region"}, OptionError, "region_as='text'"),
        (
            {},
            {
                "view": "eight",
                "coordinates": "view",
                "target": "box_grades",
                "setting": "gt_region",
                "region_as": "text",
            },
            RecordError,
            "clip=True",
        ),
    ],
)
def test_what_does_not_fit_is_named(row: dict, changes, options, error, match) -> None:
    long = {"bbox": [0, row["image"].shape[0] - 1, *row["bbox"][2:]]} if "coordinates" in options else {}
    with pytest.raises(error, match=match):
        conversation({**row, **long, **changes}, **options)


def test_columns_dropped_by_a_trainer_are_explained(row: dict) -> None:
    with pytest.raises(OptionError, match="remove_unused_columns=False"):
        conversation({"id": row["id"]})


def test_a_missing_volume_is_named_with_its_row(row: dict, tmp_path) -> None:
    from reasonknee_hf.errors import VolumeMissingError
    from reasonknee_hf.volumes.volume import KneeVolume

    gone = KneeVolume(str(tmp_path / "gone.nii.gz"), label=row["id"])
    with pytest.raises(VolumeMissingError, match=f"{row['id']}.*images="):
        conversation({**row, "image": gone})


def test_torch_is_not_imported_before_it_is_used() -> None:
    code = (
        "import sys, reasonknee_hf.train as t; from reasonknee_hf.train import Collator, conversation,"
        " get_recipe;"
        "from reasonknee_hf.train import training_stream, training_arguments;"
        "print([m for m in ('torch', 'transformers', 'trl') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
