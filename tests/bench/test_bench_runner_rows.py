"""Files as programs that run models write them: the same answers in any form give the same report."""

from __future__ import annotations

import csv
import json

import pyarrow as pa
import pytest
from bench_cases import answer, rows
from pyarrow import parquet

import reasonknee_hf as rk
from reasonknee_hf.bench import score
from reasonknee_hf.cli import main
from reasonknee_hf.errors import PredictionError

REFERENCES = list(rows(scans=2))
ANSWERS = {row["id"]: answer(row) for row in REFERENCES[:-2]}
FAILED = REFERENCES[-2]["id"]


def chat(text):
    return {"choices": [{"index": 0, "message": {"role": "assistant", "content": text}}]}


def batch(item, text, status=200):
    return {
        "id": f"batch_req_{item}", "custom_id": item, "error": None,
        "response": {"status_code": status, "request_id": "r", "body": text},
    }  # fmt: skip


FORMS = {
    "rows": lambda item, text: {"id": item, "prediction": text},
    "lm-eval": lambda item, text: {
        "doc_id": 1, "doc": {"id": item, "prompt": "x", "image": "y"}, "target": "never read",
        "arguments": [["x"]], "resps": [[text]], "filtered_resps": [text],
    },
    "batch": lambda item, text: batch(item, chat(text)),
    "batch, parts": lambda item, text: batch(item, chat([{"type": "text", "text": text}])),
    "batch, vllm": lambda item, text: batch(item, {"choices": [{"text": text}]}) | {"id": "vllm-1"},
    "batch, responses": lambda item, text: batch(
        item, {"output": [{"type": "reasoning"}, {"type": "message", "content": [{"type": "text", "text": text}]}]}
    ),
    "inspect": lambda item, text: {"id": item, "epoch": 1, "target": "never read", "output": chat(text)},
    "rows, response": lambda item, text: {"id": item, "response": text, "seconds": 3},
    "rows, output": lambda item, text: {"custom_id": item, "output": text},
    "rows, text": lambda item, text: {"item_id": item, "text": text},
    "rows, answer": lambda item, text: {"id": item, "answer": text},
}  # fmt: skip


def figures(report):
    data = json.loads(json.dumps(report.data))
    forms = data["inputs"].pop("forms")
    return data, forms


@pytest.mark.parametrize("name", FORMS)
def test_the_same_answers_give_the_same_report(tmp_path, name):
    plain, _ = figures(score(ANSWERS, REFERENCES, rounds=10))
    path = tmp_path / "file.jsonl"
    path.write_text("".join(json.dumps(FORMS[name](item, text)) + "\n" for item, text in ANSWERS.items()))
    data, forms = figures(score(path, REFERENCES, rounds=10))
    assert data == plain
    assert forms == [name.partition(",")[0]]


def test_tables_with_names_that_are_found_or_given(tmp_path):
    plain, _ = figures(score(ANSWERS, REFERENCES, rounds=10))
    table = tmp_path / "run.csv"
    with table.open("w", newline="") as file:
        csv.writer(file).writerows([["qid", "output", "note"], *((i, t, "x, y") for i, t in ANSWERS.items())])
    assert figures(score(table, REFERENCES, rounds=10))[0] == plain
    named = pa.table(
        {"question": [*ANSWERS], "what it said": [*ANSWERS.values()], "output": ["no"] * len(ANSWERS)}
    )
    parquet.write_table(named, tmp_path / "run.parquet")
    given = {"id_column": "question", "answer_column": "what it said"}
    assert figures(score(tmp_path / "run.parquet", REFERENCES, rounds=10, **given))[0] == plain
    with pytest.raises(
        PredictionError, match=r"row 1: has the keys question, what it said, output.*name the columns"
    ):
        score(tmp_path / "run.parquet", REFERENCES)


@pytest.mark.parametrize(
    "row",
    [
        batch(FAILED, {"error": {"message": "too many requests"}}, status=429),
        {"id": "b", "custom_id": FAILED, "response": None, "error": {"code": "expired"}},
        {"id": FAILED, "error": "RuntimeError: CUDA"},
        {"id": FAILED, "output": chat("{}"), "error": {"message": "x"}},
    ],
)
def test_a_failed_call_is_no_answer(tmp_path, row):
    path = tmp_path / "file.jsonl"
    lines = [FORMS["batch"](item, text) for item, text in ANSWERS.items()]
    path.write_text("".join(json.dumps(line) + "\n" for line in [*lines, row]))
    report = score(path, REFERENCES, rounds=0)
    assert report.data["invalid"]["error"] == 1
    assert report.data["invalid"]["missing"] == 1


def test_a_reference_is_never_taken_for_an_answer(tmp_path):
    """Rows of the dataset itself have an `answer`; without an answer of a model they are no predictions."""
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"id": FAILED, "prompt": "x", "answer": "truth", "cot": "truth"}) + "\n")
    with pytest.raises(PredictionError, match=r"has the keys id, prompt, answer, cot"):
        score(path, REFERENCES)


def test_the_command_names_the_form_and_the_columns(sample_dir, tmp_path, capsys):
    ds = rk.load_dataset("bench", split="test", streaming=True, source=str(sample_dir))
    item, path = next(iter(ds))["id"], tmp_path / "run.csv"
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([["item", "said"], [item, "{}"]])
    options = ["--source", str(sample_dir), "--rounds", "0", "--id-column", "item", "--answer-column", "said"]
    assert main(["bench", "score", str(path), *options]) == 0
    assert "1 predictions read (rows)" in capsys.readouterr().out


@pytest.mark.parametrize(
    "body",
    [
        {"choices": [{"message": "a text"}]}, {"choices": ["a text"]}, {"choices": {"a": 1}}, "a text",
        {"output": ["a text", 1]}, {"choices": [None]},
    ],
)  # fmt: skip
@pytest.mark.parametrize("form", ["batch", "inspect"])
def test_a_reply_of_another_shape_is_an_error_and_no_traceback(tmp_path, body, form):
    if form == "inspect" and not (isinstance(body, dict) and "choices" in body):
        pytest.skip("is no sample of Inspect")
    path = tmp_path / "answers.jsonl"
    row = batch(FAILED, body) if form == "batch" else {"id": FAILED, "output": body}
    path.write_text(json.dumps(row) + "\n")
    assert score(str(path), REFERENCES, rounds=0).data["invalid"]["error"] == 1


@pytest.mark.parametrize("said", ["", None])
def test_an_error_beside_an_empty_answer_is_an_error(tmp_path, said):
    path = tmp_path / "answers.jsonl"
    path.write_text(json.dumps({"id": FAILED, "response": said, "error": "timed out"}) + "\n")
    assert score(str(path), REFERENCES, rounds=0).data["invalid"]["error"] == 1


def test_a_whole_log_of_inspect_is_read_by_its_samples(tmp_path):
    log, lines = tmp_path / "log.json", tmp_path / "rows.jsonl"
    samples = [FORMS["inspect"](item, text) for item, text in ANSWERS.items()]
    log.write_text(json.dumps({"version": 2, "status": "success", "plan": {"steps": []}, "samples": samples}))
    lines.write_text("".join(json.dumps(FORMS["rows"](*one)) + "\n" for one in ANSWERS.items()))
    found, wanted = (score(str(p), REFERENCES, rounds=0, name="run") for p in (log, lines))
    assert figures(found)[0] == figures(wanted)[0]


@pytest.mark.parametrize("item", [None, [1], {"a": 1}])
def test_what_is_no_id_is_named(tmp_path, item):
    path = tmp_path / "answers.jsonl"
    path.write_text(
        json.dumps({"id": item, "prediction": "x"}) + "\n" + json.dumps({"id": "y", "prediction": "x"})
    )
    with pytest.raises(PredictionError, match="line 1: has the keys id, prediction"):
        score(str(path), REFERENCES, rounds=0)


def test_a_file_of_one_sample_of_lm_eval(tmp_path):
    path = tmp_path / "samples_x.jsonl"
    item, text = next(iter(ANSWERS.items()))
    path.write_text(json.dumps(FORMS["lm-eval"](item, text)) + "\n")
    assert figures(score(str(path), REFERENCES, rounds=0))[1] == ["lm-eval"]
