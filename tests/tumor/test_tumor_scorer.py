"""Scores of DeepTumorVQA 2.0: denominators, names of what is missing, forms apart, volumes drawn together."""

from __future__ import annotations

import json
import random
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import reasonknee_hf as rk
from reasonknee_hf.cli import main
from reasonknee_hf.dataset.contract import described
from reasonknee_hf.errors import OptionError, PredictionError, RecordError
from reasonknee_hf.tumor.question_types import QUESTIONS, STAGES
from reasonknee_hf.tumor.tumor_answers import said
from reasonknee_hf.tumor.tumor_report import Item, Settings, board, compare, read_items, released_items
from reasonknee_hf.tumor.tumor_sample import tumor_sample_folder
from reasonknee_hf.tumor.tumor_scorer import score

OPTIONS = tuple(zip("ABCD", ("1,480", "740", "2,220", "2,960"), strict=True))


@pytest.fixture(scope="module")
def items():
    ds = rk.load_dataset(
        "deeptumorvqa/benchmark", split="test", streaming=True, source="sample", on_error="null"
    )
    return read_items(ds)


def made(count: int) -> list[Item]:
    """Questions of all subtypes over 100 volumes."""
    lot = random.Random(0)
    answers = {"numeric": "1,480.0", "binary": "Yes", "categorical": "mild"}
    subtypes = [*QUESTIONS.values()]
    found = []
    for n in range(count):
        kind = subtypes[n % 42]
        truth = answers[kind.answer_type]
        found.append(Item(f"q{n:05}", f"v{lot.randrange(100)}", kind, truth, OPTIONS, "A"))
    return found


def test_denominators_are_those_of_the_references(items):
    right = {item.id: item.correct for item in items}
    assert score(right, items).data["overall"]["micro"]["value"] == 1
    one = dict([next(iter(right.items()))])
    report = score(one, items)
    assert report.data["overall"]["micro"] == {
        "value": pytest.approx(1 / len(items)), "ci": report.data["overall"]["micro"]["ci"], "n": len(items)
    }  # fmt: skip
    assert report.data["counts"]["missing"] == len(items) - 1
    assert sum(stage["micro"]["n"] for stage in report.data["stages"].values()) == len(items)
    assert [*report.data["stages"]] == list(STAGES)
    assert report.data["subtypes"]["pseudocyst determination"]["few"]


def test_everything_that_is_no_answer_is_counted_by_name(tmp_path, items):
    lines = [
        {"qid": items[0].id, "raw_output": items[0].correct, "answer": "never read", "correct_option": "Z"},
        {"qid": items[0].id, "raw_output": items[0].correct},
        {"qid": items[1].id, "raw_output": "[ERROR] RuntimeError: a CUDA error", "pred_answer": "A"},
        {"qid": items[2].id, "raw_output": "  "},
        {"qid": items[3].id, "raw_output": "<think>A, I am sure"},
        {"qid": items[4].id, "raw_output": "I cannot see pictures"},
        {"qid": "bench_99999", "raw_output": "A"},
        {"qid": items[5].id, "trajectory": [{"step": 1, "tool": "x"}, {"step": 2, "final_answer": items[5].correct}]},
    ]  # fmt: skip
    path = tmp_path / "results.json"
    path.write_text(json.dumps({"metrics": {"overall": 99}, "n_processed": 8, "results": lines}))
    report = score(str(path), items)
    assert report.data["counts"] == {
        "questions": len(items), "answered": 6, "missing": len(items) - 6, "error": 1, "empty": 1,
        "unreadable": 1, "reasoning only": 1, "identical repeats": 1, "unknown ids": 1,
    }  # fmt: skip
    assert report.data["overall"]["micro"]["value"] == pytest.approx(2 / len(items))
    path.write_text(json.dumps({"results": [*lines, {"qid": items[0].id, "raw_output": "another"}]}))
    with pytest.raises(PredictionError, match="more than one answer"):
        score(str(path), items)
    assert score(str(path), items, conflicts="invalid").data["counts"]["conflicting"] == 1


def test_free_answers_keep_numbers_and_matches_apart():
    items = made(420)
    answers = {item.id: item.answer for item in items}
    whole = score(answers, items, settings=Settings("freeform")).data
    assert whole["overall"]["micro"]["value"] == whole["numbers"]["relative_accuracy"]["value"] == 1
    near = answers | {item.id: "1,600" for item in items if item.kind == "numeric"}
    report = score(near, items, settings=Settings("freeform")).data
    off = 120 / 1480
    assert report["numbers"]["relative_accuracy"]["value"] == pytest.approx(1 - off)
    assert report["overall"]["micro"]["value"] == 1  # within a tenth of the truth
    assert [report["numbers"][f"within {share}"]["value"] for share in ("5%", "10%")] == [0, 1]
    strict = score(near, items, settings=Settings("freeform", tolerance=0.05)).data
    share = sum(item.kind != "numeric" for item in items) / len(items)
    assert strict["overall"]["micro"]["value"] == pytest.approx(share)
    silent = score({}, items, settings=Settings("freeform")).data
    assert silent["overall"]["micro"]["value"] == silent["numbers"]["relative_accuracy"]["value"] == 0
    no_truth = [Item("n", "v", QUESTIONS[10], "large", (), None), items[0]]
    told = score({"n": "3", items[0].id: items[0].answer}, no_truth, settings=Settings("freeform")).data
    assert told["counts"]["no truth"] == 1
    assert told["overall"]["micro"]["n"] == 1


def test_ten_thousand_answers_keep_their_denominators():
    items = made(10_000)
    answers = {item.id: "A" for item in items[::2]}
    report = score(answers, items).data
    assert report["overall"]["micro"]["n"] == 10_000
    assert report["overall"]["micro"]["value"] == 0.5
    assert report["counts"]["missing"] == 5_000
    low, high = report["overall"]["micro"]["ci"]
    assert low < 0.5 < high


def test_only_runs_with_equal_settings_are_compared(items):
    answers = {item.id: "A" for item in items}
    one, same = score(answers, items, name="one"), score({}, items, name="two")
    assert "one" in compare({"one": one, "two": same}).text()
    for other in (Settings("freeform"), Settings(mode="oracle"), Settings(input="2d_video")):
        with pytest.raises(OptionError, match="is no run to compare"):
            compare({"one": one, "two": score(answers, items, settings=other)})
    with pytest.raises(OptionError, match="other questions"):
        compare({"one": one, "two": score(answers, items[1:])})
    with pytest.raises(OptionError, match="mode='tools' is none of direct"):
        Settings(mode="tools")
    with pytest.raises(RecordError, match="none of the benchmark's"):
        read_items([{"id": "x", "subtype": "colour"}])


def test_the_board_shows_what_is_comparable():
    text = (
        "model,params,input,mode,overall,recog,meas,visr,medr,source\n"
        "Senior radiologist,-,3D vol,direct,54.5,70.0,40.0,64.0,44.0,paper\n"
        "made up,4B,2D,direct,38.8,1,1,1,1,paper\nmade up too,4B,2D+tools,oracle,61.9,1,1,1,1,paper\n"
    )
    assert len(board(text, Settings())) == 3
    assert [row["model"] for row in board(text, Settings(mode="oracle"))] == ["made up too"]
    rows = board(text, Settings(input="3d_volume"))
    items = made(42)
    shown = score({}, items).text(rows)
    assert "Senior radiologist (200 items)" in shown
    assert "made up" not in shown


def test_the_command(tmp_path, capsys, items):
    path, out, each = tmp_path / "run.jsonl", tmp_path / "report.json", tmp_path / "items.jsonl"
    path.write_text("".join(json.dumps({"qid": i.id, "raw_output": i.correct}) + "\n" for i in items))
    options = ["--dataset", "deeptumorvqa", "--source", "sample", "--rounds", "20", "--mode", "direct"]
    assert (
        main(
            [
                "bench",
                "score",
                str(path),
                *options,
                "--compare",
                "paper",
                "--json",
                str(out),
                "--items",
                str(each),
            ]
        )
        == 0
    )
    told = capsys.readouterr().out
    assert "SUBSET of the benchmark: synthetic sample" in told
    assert "made up" in told
    assert json.loads(out.read_text())["overall"]["micro"]["value"] == 1
    assert len(each.read_text().splitlines()) == len(items)
    assert main(["bench", "score", str(path), *options, "--form", "essay"]) == 1


def test_a_score_asks_for_no_volume(tmp_path, capsys, items, origin):
    root, path = tumor_sample_folder() / "release", tmp_path / "run.jsonl"
    files = {p.relative_to(root).as_posix(): p.read_bytes() for p in root.rglob("*") if p.is_file()}
    origin.put_tree("me/tumors", files)
    path.write_text("".join(json.dumps({"qid": i.id, "raw_output": i.correct}) + "\n" for i in items))
    options = [
        "--dataset",
        "deeptumorvqa",
        "--source",
        "me/tumors",
        "--endpoint",
        origin.url,
        "--rounds",
        "0",
    ]
    assert main(["bench", "score", str(path), *options]) == 0
    assert "overall" in capsys.readouterr().out
    assert origin.sent("test_qa.jsonl") > 0
    assert not origin.sent(".nii.gz")


def test_items_are_those_of_the_rows(items):
    assert released_items(described("deeptumorvqa").open(source="sample")) == items


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.sampled_from(["<think>", "</think>", "<answer>", "</answer>", "A", " ", "\n", "<b"]), max_size=14
    )
)
def test_what_is_said_is_said_once(parts):
    """The judge takes the answer out of its reasoning before it is read, and reading does so once more."""
    text = "".join(parts)
    plain = (
        re.sub(r"<think>.*?</think>", "", text, flags=re.S).rpartition("</think>")[2].partition("<think>")[0]
    )
    tagged = re.findall(r"<answer>(.*?)</answer>", plain, re.S)
    assert said(text) == (tagged[-1] if tagged else plain).strip()
    assert said(said(text)) == said(text)


def test_answers_to_something_else_are_one_error(tmp_path, items):
    path = tmp_path / "other.jsonl"
    path.write_text('{"id": "9000001_00M_20040101_1_1_1", "prediction": "A"}\n')
    with pytest.raises(PredictionError, match=f"none of 1 predictions.*{items[0].id}"):
        score(str(path), items)


def test_the_command_takes_named_columns_and_refuses_what_it_would_not_heed(tmp_path, capsys, items):
    path = tmp_path / "answers.csv"
    path.write_text("key,note,said\n" + "".join(f"{item.id},-,{item.correct}\n" for item in items))
    words = ["bench", "score", str(path), "--dataset", "deeptumorvqa", "--source", "sample", "--rounds", "0"]
    assert (
        main([*words, "--id-column", "key", "--answer-column", "said", "--json", str(tmp_path / "r.json")])
        == 0
    )
    capsys.readouterr()
    assert main([*words, "--markdown", str(tmp_path / "r.md"), "--strict"]) == 1
    assert (
        "--markdown, --strict: the benchmark of deeptumorvqa knows no such option" in capsys.readouterr().err
    )
    assert main(["bench", "score", str(path), "--source", "sample", "--form", "mc"]) == 1
    assert "--form: the benchmark of reasonknee" in capsys.readouterr().err
