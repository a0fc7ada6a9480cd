"""What a model must answer in each setting, and what one setting buys over another."""

from __future__ import annotations

import json

import pytest
from bench_cases import answer, noisy, rows, truth

from reasonknee_hf.bench import score
from reasonknee_hf.bench.setting_pairs import attribution, attribution_table
from reasonknee_hf.errors import OptionError, PredictionError, RecordError
from reasonknee_hf.knee.scoring.settings import SETTINGS, bench_items, read_questions

REFERENCES = list(rows(scans=6, patients=4, questions=range(1, 70)))


@pytest.mark.parametrize("setting", SETTINGS)
def test_every_item_of_the_benchmark_is_asked_once(setting):
    items = list(bench_items(REFERENCES, setting))
    assert [item["id"] for item in items] == [row["id"] for row in REFERENCES]
    assert {item["setting"] for item in items} == {setting}
    for item, row in zip(items, REFERENCES, strict=True):
        assert item["prompt"].endswith(row["prompt"])
        json.dumps(item)


def test_the_true_region_is_given_in_one_setting_alone():
    for setting in SETTINGS:
        for item, row in zip(bench_items(REFERENCES, setting), REFERENCES, strict=True):
            if setting == "gt_region":
                assert item["region"] == item["frames"]["around"] == row["bbox"]
                assert f"start_slice {row['bbox'][0]}, end_slice {row['bbox'][1]}" in item["prompt"]
            else:
                assert item["region"] is None
                assert "around" not in item["frames"]
                assert "region of the volume" not in item["prompt"]
    without = next(bench_items([REFERENCES[0] | {"bbox": None}], "gt_region"))
    assert without["region"] is None
    assert without["frames"]["recipe"] == "upstream"


def test_the_instruction_says_more_than_the_question_and_all_guidance_is_there():
    plain = list(bench_items(REFERENCES, "zero_shot"))
    guided = list(bench_items(REFERENCES, "instruction"))
    assert all(len(g["prompt"]) > len(p["prompt"]) for g, p in zip(guided, plain, strict=True))
    assert [
        item["target"] for item in (plain[0], *(next(bench_items(REFERENCES, s)) for s in ("sft", "sft_cot")))
    ] == [
        None,
        "grades",
        "reasoning_grades",
    ]


def test_grades_never_reach_the_prompt():
    for setting in SETTINGS:
        changed = [row | {"grades": [g | {"grade": 0} for g in row["grades"]]} for row in REFERENCES]
        assert list(bench_items(REFERENCES, setting)) == list(bench_items(changed, setting))


def test_a_box_is_asked_for_once_and_only_when_wanted():
    asked = next(bench_items(REFERENCES, "zero_shot", ask_box=True))
    assert asked["prompt"].count("bounding_box") == 1
    again = next(bench_items([REFERENCES[0] | {"prompt": asked["prompt"]}], "zero_shot", ask_box=True))
    assert again["prompt"].count("bounding_box") == 1
    assert "bounding_box" not in next(bench_items(REFERENCES, "gt_region", ask_box=True))["prompt"]


def test_published_prompts_take_the_place_of_the_rows_own(upstream_dir, tmp_path):
    questions = read_questions(upstream_dir / "question_files" / "questions_nobbox_guided.json")
    assert sorted(questions) == list(range(1, 70))
    for item in bench_items(REFERENCES, "instruction", questions=questions):
        assert item["prompt"] == questions[item["question_id"]]
        assert item["prompt_from"] == "questions"
    bad = tmp_path / "bad.json"
    bad.write_text("[1]")
    with pytest.raises(PredictionError, match=r"bad\.json"):
        read_questions(bad)


def test_images_are_named_and_not_opened():
    paths = ["/a.nii.gz", None, "/c.nii.gz", "/d.nii.gz"]
    kinds = [
        {"path": "/a.nii.gz", "bytes": None},
        None,
        "/c.nii.gz",
        type("Volume", (), {"path": "/d.nii.gz"})(),
    ]
    given = [row | {"image": image} for row, image in zip(REFERENCES, kinds, strict=False)]
    assert [item["image"] for item in bench_items(given, "zero_shot")] == paths


def test_a_row_without_a_prompt_is_named():
    with pytest.raises(RecordError, match=REFERENCES[0]["id"]):
        next(bench_items([REFERENCES[0] | {"prompt": None}], "zero_shot"))
    filled = next(bench_items([REFERENCES[0] | {"prompt": None}], "zero_shot", questions={1: "Well?"}))
    assert filled["prompt"] == "Well?"


def test_unknown_settings_and_subsets():
    with pytest.raises(OptionError, match="gt_region"):
        next(bench_items(REFERENCES, "few_shot"))
    assert next(bench_items(REFERENCES, "sft", subset="two scans"))["subset"] == "two scans"


def _run(right):
    """A run in which `right(row)` says whether an item is answered right."""
    answers = {}
    for row in REFERENCES:
        wrong = {name: 1 - min(grade, 1) for name, grade in truth(row).items()}
        answers[row["id"]] = answer(row, grades=truth(row) if right(row) else wrong)
    return score(answers, REFERENCES, rounds=200, subset="made up")


def test_attribution_is_the_paired_difference():
    runs = {
        "zero_shot": _run(lambda row: row["category"] == "Osteophyte"),
        "instruction": _run(lambda row: row["category"] == "Osteophyte"),
        "gt_region": _run(lambda row: row["category"] in ("Osteophyte", "BML")),
    }
    data = attribution(runs)
    instruction, region = data["effects"]
    assert (instruction["of"], instruction["micro"]["value"]) == ("the instruction", 0)
    assert instruction["micro"]["ci"] == [0, 0], "the same answers differ in no resample"
    assert region["category"]["BML"]["value"] == 1
    assert region["category"]["Osteophyte"]["value"] == 0
    assert region["micro"]["value"] == pytest.approx(15 / 69)
    assert region["macro"]["value"] == pytest.approx(1 / 7)
    text = attribution_table(data).text()
    assert "the true region (gt_region - instruction)" in text
    assert "SUBSET: made up" in text


def test_all_five_settings_make_four_effects():
    runs = {
        setting: score(noisy(REFERENCES, seed), REFERENCES, rounds=20)
        for seed, setting in enumerate(SETTINGS)
    }
    assert [effect["of"] for effect in attribution(runs)["effects"]] == [
        "the instruction",
        "the true region",
        "training",
        "reasoning in the target",
    ]


@pytest.mark.parametrize(
    ("settings", "effects"),
    [
        (["zero_shot", "gt_region"], ["gt_region over zero_shot"]),
        (["zero_shot", "sft_cot"], ["sft_cot over zero_shot"]),
        (["zero_shot", "sft", "gt_region"], ["training", "gt_region over zero_shot"]),
        (["gt_region", "zero_shot", "sft"], ["training", "zero_shot over gt_region"]),
        (["instruction", "gt_region", "sft"], ["the true region", "sft over instruction"]),
    ],
)
def test_any_pair_of_settings_can_be_compared(settings, effects):
    runs = {setting: _run(lambda row: row["category"] == "BML") for setting in settings}
    assert [effect["of"] for effect in attribution(runs)["effects"]] == effects


def test_runs_that_cannot_be_compared_are_refused():
    whole, part = _run(bool), score({}, REFERENCES[:3])
    with pytest.raises(OptionError, match="pair"):
        attribution({"zero_shot": whole})
    with pytest.raises(OptionError, match="other items"):
        attribution({"sft": whole, "sft_cot": part})
    with pytest.raises(OptionError, match="other rules"):
        attribution({"sft": whole, "sft_cot": score({}, REFERENCES, rounds=200, strict=True)})
