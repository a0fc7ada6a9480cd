"""`reasonknee bench` on the built-in sample."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from bench_cases import answer, noisy

from reasonknee_hf.cli import main

SAMPLE = ["--source", "sample"]


@pytest.fixture(scope="module")
def references():
    from reasonknee_hf import load_dataset

    return list(load_dataset("bench", split="test", streaming=True, source="sample", masks=False))


@pytest.fixture
def predictions(references, tmp_path):
    path = tmp_path / "model.jsonl"
    lines = [{"id": item, "prediction": text} for item, text in noisy(references).items()]
    path.write_text("\n".join(map(json.dumps, lines)))
    return path


def test_score_writes_every_output_and_each_says_what_was_scored(predictions, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    outputs = {name: tmp_path / "out" / f"run.{name}" for name in ("json", "md", "jsonl", "png", "yaml")}
    options = ["--json", outputs["json"], "--markdown", outputs["md"], "--items", outputs["jsonl"]]
    options += [
        "--plot",
        outputs["png"],
        "--eval-results",
        outputs["yaml"],
        "--compare",
        "paper",
        "--priors",
        "train",
    ]
    assert main(["bench", "score", str(predictions), *SAMPLE, *map(str, options)]) == 0
    text = capsys.readouterr().out
    assert "synthetic sample" in text
    assert "PAPER, as published: zero-shot, o1" in text
    assert "the training split of sample" in text
    for name in ("json", "md", "jsonl", "yaml"):
        assert "synthetic sample" in outputs[name].read_text(), name
    data = json.loads(outputs["json"].read_text())
    assert data["grades"]["overall"]["prior_item_accuracy"]["micro"]["value"] is not None
    assert len(outputs["jsonl"].read_text().splitlines()) == data["count"]["items"] == 124
    assert outputs["png"].read_bytes().startswith(b"\x89PNG")


def test_scoring_against_a_hub_names_the_commit_and_reads_no_volume(origin, predictions, tmp_path, capsys):
    import yaml

    from reasonknee_hf.knee.sample import sample_folder

    root = sample_folder()
    files = {
        path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()
    }
    sha = origin.put_tree("lab/knees", files)
    out = tmp_path / "results.yaml"
    where = ["--source", "lab/knees", "--endpoint", origin.url]
    assert main(["bench", "score", str(predictions), "--eval-results", str(out), *where]) == 0
    assert not [request.path for request in origin.log if "nii" in request.path or "masks_" in request.path]
    entry = yaml.safe_load(out.read_text())[0]
    assert entry["dataset"] == {"id": "lab/knees", "task_id": "reasonknee_bench", "revision": sha}
    assert "SUBSET" not in capsys.readouterr().out


@pytest.mark.parametrize("where", ["sample", "folder"])
def test_evaluation_results_say_what_was_scored(where, predictions, tmp_path):
    import shutil

    import yaml

    from reasonknee_hf.knee.sample import sample_folder

    source = "sample"
    if where == "folder":
        source = str(tmp_path / "release")
        shutil.copytree(sample_folder(), source, ignore=shutil.ignore_patterns("*.nii.gz", "masks_*"))
    out = tmp_path / "results.yaml"
    assert main(["bench", "score", str(predictions), "--eval-results", str(out), "--source", source]) == 0
    entries = yaml.safe_load(out.read_text())
    named = {"sample": "synthetic sample", "folder": "local folder release"}[where]
    assert {entry["dataset"]["id"] for entry in entries} == {named}
    assert "rajpurkarlab" not in out.read_text()
    assert str(tmp_path) not in out.read_text()
    assert "rules 2" in out.read_text()


@pytest.mark.parametrize("command", ["score", "compare"])
@pytest.mark.parametrize("content", ["", '{"id": "somebody_1", "prediction": "x"}\n', "id,prediction\n"])
def test_nothing_matched_is_an_error(command, content, tmp_path, capsys):
    path = tmp_path / "model.jsonl"
    path.write_text(content)
    assert main(["bench", command, str(path), *SAMPLE]) == 1
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1
    assert "model.jsonl" in said[0]
    assert "somebody_1; ids wanted: 9" in said[0] or "holds no predictions" in said[0]


def test_a_reference_that_does_not_fit_is_named_and_kept(predictions, tmp_path, capsys):
    import shutil

    from reasonknee_hf.knee.sample import sample_folder

    shutil.copytree(
        sample_folder(), tmp_path / "release", ignore=shutil.ignore_patterns("*.nii.gz", "masks_*")
    )
    path = tmp_path / "release" / "data" / "generate_data" / "test.json"
    records = json.loads(path.read_text())
    records[0]["final_diagnosis"]["final_diagnosis"]["patella_medial_BML"]["size"] = 7
    path.write_text(json.dumps(records))
    out = tmp_path / "out.json"
    source = ["--source", str(tmp_path / "release")]
    assert main(["bench", "score", str(predictions), "--json", str(out), *source]) == 0
    data = json.loads(out.read_text())
    assert data["count"]["items"] == 124
    assert data["unscored_count"] == 1
    assert any("cannot be graded" in warning for warning in data["warnings"])


def test_priors_are_counted_once_and_used_again(predictions, tmp_path, capsys):
    path = tmp_path / "priors.json"
    assert main(["bench", "priors", str(path), *SAMPLE]) == 0
    outputs = []
    for given in (str(path), "train"):
        assert main(["bench", "score", str(predictions), "--priors", given, *SAMPLE]) == 0
        outputs.append(capsys.readouterr().out)
    assert outputs[0] == outputs[1]


def test_a_set_of_runs_prints_the_attribution_table(predictions, tmp_path, capsys):
    runs = [f"{setting}={predictions}" for setting in ("instruction", "gt_region", "sft", "sft_cot")]
    out = tmp_path / "all.json"
    assert main(["bench", "score", *runs, "--name", "m", "--json", str(out), "--rounds", "50", *SAMPLE]) == 0
    text = capsys.readouterr().out
    assert "the true region (gt_region - instruction)" in text
    assert "reasoning in the target (sft_cot - sft)" in text
    assert list(json.loads(out.read_text())["runs"]) == ["instruction", "gt_region", "sft", "sft_cot"]


def test_part_of_the_benchmark_is_called_that(predictions, capsys):
    assert main(["bench", "score", str(predictions), "--scans", "1", "--only-answered", *SAMPLE]) == 0
    said = capsys.readouterr().out
    assert "first 1 scans; answered items only" in said
    assert "(SUBSET)" in said


def test_prompts_are_one_json_line_an_item(references, tmp_path, capsys):
    assert main(["bench", "prompts", "--setting", "gt_region", *SAMPLE]) == 0
    items = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [item["id"] for item in items] == [row["id"] for row in references]
    assert items[0]["region"] == list(references[0]["bbox"])
    assert Path(items[0]["image"]).is_file()
    out = tmp_path / "items.jsonl"
    assert main(["bench", "prompts", "--setting", "sft", "--scans", "1", "--out", str(out), *SAMPLE]) == 0
    assert len(out.read_text().splitlines()) == 62


def test_one_item_shows_what_was_read_and_how_it_was_judged(references, tmp_path, capsys):
    row = references[0]
    path = tmp_path / "answers.jsonl"
    path.write_text(json.dumps({"id": row["id"], "prediction": f"<think>Hm.</think> So: {answer(row)}"}))
    assert main(["bench", "item", row["id"], str(path), *SAMPLE]) == 0
    text = capsys.readouterr().out
    for part in (
        row["prompt"][:60],
        "So: {",
        "Repairs   surrounding_text",
        "3D IoU    1.000",
        "Stage     right",
    ):
        assert part in text
    assert main(["bench", "item", row["id"], *SAMPLE]) == 0
    assert "(none)" in capsys.readouterr().out


def test_the_picture_of_an_item_is_that_of_show(references, tmp_path):
    pytest.importorskip("matplotlib")
    pytest.importorskip("reasonknee_hf.cli.show_command")
    out = tmp_path / "item.png"
    assert main(["bench", "item", references[0]["id"], "--out", str(out), *SAMPLE]) == 0
    assert out.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("option", ["--json", "--markdown", "--items", "--plot", "--eval-results"])
def test_targets_are_checked_before_the_references_are_read(option, predictions, tmp_path, capsys):
    kept = tmp_path / "kept.json"
    kept.write_text("mine")
    call = ["bench", "score", str(predictions), "--source", str(tmp_path / "nowhere"), option]
    assert main([*call, str(tmp_path)]) == 1
    assert "Is a directory" in capsys.readouterr().err
    if option != "--plot":  # one that could be written is as it was
        assert main([*call, str(kept)]) == main([*call, str(tmp_path / "new" / "x.json")]) == 1
        assert "nowhere" in capsys.readouterr().err
        assert kept.read_text() == "mine"
        assert not (tmp_path / "new" / "x.json").exists()


def test_halves_of_characters_in_answers_are_written_as_json_writes_them(references, tmp_path, capsys):
    row = references[0]
    path, items = tmp_path / "answers.jsonl", tmp_path / "items.jsonl"
    text = f"\ud83d {answer(row)}"
    path.write_text("\n".join(json.dumps({"id": i, "prediction": text}) for i in (row["id"], "a\udc80")))
    assert main(["bench", "item", row["id"], str(path), *SAMPLE]) == 0
    assert (
        main(["bench", "score", str(path), "--items", str(items), "--json", str(tmp_path / "a"), *SAMPLE])
        == 0
    )
    assert "\\ud83d" in capsys.readouterr().out
    assert json.loads((tmp_path / "a").read_text("utf-8"))["inputs"]["unknown_ids"] == ["a\udc80"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["score", "nowhere.jsonl"], "nowhere.jsonl"),
        (["score", "{file}", "--box-grid", "1,1"], "three numbers"),
        (["score", "{file}", "--box-grid", "1,1,1"], "shape"),
        (["score", "{file}", "--volume-shape", "nan,1,1"], "--volume-shape is three numbers above 0"),
        (["score", "{file}", "--volume-shape", "inf,1,1"], "--volume-shape is three numbers above 0"),
        (["score", "{file}", "--volume-shape", "1.5,1,1"], "whole numbers of voxels"),
        (["score", "{file}", "--spacing=-1,1,1"], "--spacing is three numbers above 0"),
        (["score", "{file}", "--spacing", "0,0,0"], "--spacing is three numbers above 0"),
        (["score", "{file}", "--rounds", "-1"], "--rounds is a whole number, 0 or more, not -1"),
        (["score", "{file}", "--scans", "0"], "at least 1, not 0"),
        (["prompts", "--setting", "sft", "--scans", "-3"], "at least 1, not -3"),
        (["score", "{file}", "--split", "foo"], "no split 'foo'. Valid: train, validation, test"),
        (["prompts", "--setting", "sft", "--split", "foo"], "no split 'foo'"),
        (["item", "nobody_1", "--split", "foo"], "no split 'foo'"),
        (["score", "{file}", "sft={file}"], "to all prediction files"),
        (["score", "sft={file}", "sft_cot={file}", "--eval-results", "x.yaml"], "one run"),
        (["item", "nobody_1"], "nobody_1"),
        (["score", "{file}", "--plot", "{file}.xyz"], "'xyz'; use one of"),
        (["item", "nobody_1", "--out", "{file}.xyz"], "'xyz'; use one of"),
        (["prompts", "--setting", "sft", "--out", "{file}/a"], "model.jsonl"),
        (["priors", "{file}/a"], "model.jsonl"),
    ],
)
def test_a_wrong_call_is_one_line_with_the_next_step(arguments, words, predictions, capsys):
    filled = [argument.format(file=predictions) for argument in arguments]
    assert main(["bench", *filled, *SAMPLE]) == 1
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1
    assert words in said[0]
