"""Models against each other: paired differences, what chance makes of them, and what is never merged."""

from __future__ import annotations

import json
from itertools import product

import numpy as np
import pytest
from bench_cases import answer, noisy, rows, truth

from reasonknee_hf.bench import score
from reasonknee_hf.bench.comparison import compare, comparison_json, comparison_text
from reasonknee_hf.cli import main
from reasonknee_hf.errors import OptionError

REFERENCES = list(rows(scans=8, patients=6, questions=[1, 30, 44, 58]))


def run(right, **options):
    """A run in which `right(row)` says whether an item is answered right."""
    answers = {}
    for row in REFERENCES:
        wrong = {name: 1 - min(grade, 1) for name, grade in truth(row).items()}
        answers[row["id"]] = answer(row, grades=truth(row) if right(row) else wrong)
    return score(answers, REFERENCES, rounds=200, **options)


def of(data, figure="item_accuracy"):
    return [entry for entry in data["differences"] if entry["figure"] == figure]


def test_a_difference_is_paired_and_its_p_is_that_of_flipped_patients():
    good = run(lambda row: row["question_id"] in (1, 30, 44))
    bad = run(lambda row: row["question_id"] == 1 or row["patient_id"].endswith("1"))
    (entry,) = of(compare({"good": [good], "bad": [bad]}))
    gained = {}
    for row in REFERENCES:
        a = row["question_id"] in (1, 30, 44)
        b = row["question_id"] == 1 or row["patient_id"].endswith("1")
        gained[row["patient_id"]] = gained.get(row["patient_id"], 0) + a - b
    sums = np.array(list(gained.values()))
    assert entry["micro"]["value"] == pytest.approx(sums.sum() / len(REFERENCES))
    flips = [abs((np.array(signs) * sums).sum()) for signs in product((1, -1), repeat=len(sums))]
    assert entry["p"] == pytest.approx(np.mean(np.array(flips) >= abs(sums.sum()) - 1e-9))
    assert entry["p_holm"] == entry["p"]
    assert entry["micro"]["ci"][0] <= entry["micro"]["value"] <= entry["micro"]["ci"][1]
    assert entry["least_detectable"] > 0


def test_the_same_answers_differ_in_nothing():
    data = compare({"a": [run(bool)], "b": [run(bool)]})
    assert {entry["p"] for entry in data["differences"]} == {1.0}
    assert all(
        entry["micro"] == {"value": 0, "ci": [0, 0], "n": entry["micro"]["n"]}
        for entry in data["differences"]
    )


def test_seeds_of_one_model_are_averaged_and_never_merged():
    seeds = [run(lambda row, part=part: row["question_id"] == part) for part in (1, 30)]
    alone = compare({"model": seeds})
    assert alone["models"]["model"]["runs"] == 2
    mean = np.mean([seed.figure("item_accuracy") for seed in seeds])
    assert alone["models"]["model"]["item_accuracy"]["micro"]["value"] == pytest.approx(mean)
    assert alone["differences"] == []
    (entry,) = of(compare({"model": seeds, "none": [run(lambda row: False)]}))
    assert entry["micro"]["value"] == pytest.approx(mean)


def test_more_than_two_are_corrected_by_holm():
    runs = {
        "all": [run(bool)],
        "some": [run(lambda row: row["question_id"] != 1)],
        "few": [run(lambda row: row["patient_id"] == "9000001")],
    }
    entries = of(compare(runs))
    assert [(entry["a"], entry["b"]) for entry in entries] == [
        ("all", "some"),
        ("all", "few"),
        ("some", "few"),
    ]
    p = sorted(entry["p"] for entry in entries)
    expected = np.maximum.accumulate(np.minimum(1, np.array(p) * [3, 2, 1]))
    assert sorted(entry["p_holm"] for entry in entries) == pytest.approx(expected)


def test_p_is_uniform_where_there_is_nothing_to_find():
    from reasonknee_hf.bench.comparison import _flip

    chance = np.random.default_rng(0)
    values = np.array([_flip(chance.normal(size=10)) for _ in range(300)])
    assert abs((values <= 0.05).mean() - 0.05) < 0.04
    many = np.array([_flip(chance.normal(size=20)) for _ in range(60)])
    assert 0.3 < many.mean() < 0.7


def test_what_cannot_be_compared_is_refused():
    whole = run(bool)
    with pytest.raises(OptionError, match="other items"):
        compare({"a": [whole], "b": [score({}, REFERENCES[:3])]})
    with pytest.raises(OptionError, match="other rules"):
        compare({"a": [whole], "b": [run(bool, strict=True)]})
    with pytest.raises(OptionError, match="kappa"):
        compare({"a": [whole]}, ["kappa"])


def test_one_patient_gives_no_p_and_no_interval():
    alone = [row | {"patient_id": "p"} for row in REFERENCES]
    data = compare({name: [score(noisy(alone, seed), alone)] for seed, name in enumerate("ab")})
    assert {entry["p"] for entry in data["differences"]} == {None}
    assert json.loads(comparison_json(data))["models"]["a"]["item_accuracy"]["micro"]["ci"] is None
    assert "least detectable" in comparison_text(data)


SAMPLE = ["--source", "sample", "--rounds", "50"]


@pytest.fixture
def files(tmp_path):
    from reasonknee_hf import load_dataset

    references = list(load_dataset("bench", split="test", streaming=True, source="sample", masks=False))
    paths = {}
    for name, seed in (("a", 1), ("b", 2), ("c", 3)):
        paths[name] = tmp_path / f"{name}.json"
        paths[name].write_text(json.dumps(noisy(references, seed)))
    return paths


def test_the_command_writes_tables_figures_and_a_forest(files, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    out = {name: tmp_path / f"out.{name}" for name in ("json", "md", "png")}
    options = ["--json", out["json"], "--markdown", out["md"], "--plot", out["png"]]
    call = ["bench", "compare", files["a"], files["b"], f"C={files['c']}", *options, *SAMPLE]
    assert main([*map(str, call)]) == 0
    said = capsys.readouterr().out
    data = json.loads(out["json"].read_text())
    assert list(data["models"]) == ["a", "b", "C"]
    assert len(data["differences"]) == 9
    for text in (said, out["md"].read_text()):
        assert "a - b" in text
        assert "SUBSET: synthetic sample" in text
        assert "CAVEAT" in text
    assert out["png"].read_bytes().startswith(b"\x89PNG")


def test_seeds_and_parts_are_named_in_the_call(files, tmp_path, capsys):
    answers = json.loads(files["b"].read_text())
    parts = [tmp_path / "part1.json", tmp_path / "part2.json"]
    for number, part in enumerate(parts):
        part.write_text(json.dumps(dict(list(answers.items())[number::2])))
    out = tmp_path / "out.json"
    call = [
        "bench",
        "compare",
        f"m={files['a']}",
        f"m={parts[0]},{parts[1]}",
        f"x={files['b']}",
        "--json",
        str(out),
    ]
    assert main([*call, *SAMPLE]) == 0
    data = json.loads(out.read_text())
    assert {name: row["runs"] for name, row in data["models"].items()} == {"m": 2, "x": 1}
    assert main(["bench", "compare", str(files["a"]), str(files["a"]), *SAMPLE]) == 1
    assert "Two files are called a" in capsys.readouterr().err
    assert main(["bench", "compare", str(files["a"]), str(tmp_path), *SAMPLE]) == 1
    assert "a folder" in capsys.readouterr().err
