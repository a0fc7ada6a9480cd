"""Prediction files as people have them, and what merging makes of repeats and conflicts."""

from __future__ import annotations

import gzip
import json
import random

import pytest
from bench_cases import answer, noisy, rows, truth

from reasonknee_hf.bench import score
from reasonknee_hf.errors import PredictionError

REFERENCES = list(rows(scans=2))


def right(references):
    return {row["id"]: answer(row) for row in references}


def published_zero_shot(references, name="qwen25vl_result"):
    """What the published zero-shot scripts write: objects, wrapped text, errors, entries never filled."""
    content = {}
    for index, row in enumerate(references):
        text = answer(row)
        result = [json.loads(text), {"response": f"I see: {text}"}, {"error": "CUDA out of memory"}, None][
            index % 4
        ]
        content[row["id"]] = {"question": row["prompt"], name: result, "qwen25vl_total_tokens": 1200}
        if result is None:
            content[row["id"]] = {}
    return content


def published_sft(references):
    """What the published SFT script writes; `final_diagnosis` is the reference and must not be read."""
    entries = []
    for row in references:
        patient, visit, *rest = row["scan_id"].split("_")
        entries.append(
            {
                "image": f"/data/images/{patient}/{visit}/{'_'.join(rest)}.nii.gz",
                "prompt": row["prompt"],
                "generated_text": f"Bright marrow. Final diagnosis: {answer(row)}<|im_end|>",
                "final_diagnosis": {"bounding_box": [0, 1, 0, 1, 0, 1], "final_diagnosis": {}},
            }
        )
    return entries


def test_every_kind_of_file_gives_the_same_score(tmp_path):
    table = right(REFERENCES)
    lines = [{"id": item, "prediction": text} for item, text in table.items()]
    objects = [{"id": item, "prediction": json.loads(text), "seconds": 3} for item, text in table.items()]
    files = {
        "lines.jsonl": "\n".join(map(json.dumps, lines)) + "\n\n",
        "objects.jsonl": "\n".join(map(json.dumps, objects)),
        "bom.jsonl": "\ufeff" + "\n".join(map(json.dumps, lines)),
        "list.json": json.dumps(lines, indent=2),
        "mapping.json": json.dumps(table),
        "one_line.json": json.dumps({i: {"o1_result": json.loads(t)} for i, t in table.items()}),
        "sft_0.json": json.dumps(published_sft(REFERENCES), indent=2),
    }
    for name, content in files.items():
        path = tmp_path / name
        path.write_text(content, encoding="utf-8")
        report = score(path, REFERENCES, rounds=0)
        assert report.figure("item_accuracy") == report.figure("iou") == 1.0, name
    assert score(lines, REFERENCES, rounds=0).figure("item_accuracy") == 1.0
    assert score(table, REFERENCES, rounds=0).figure("item_accuracy") == 1.0


def test_the_published_zero_shot_file_is_read_as_it_is(tmp_path):
    path = tmp_path / "results_qwen25vl3B_zeroshot.json"
    path.write_text(json.dumps(published_zero_shot(REFERENCES), indent=2))
    report = score(path, REFERENCES, rounds=0)
    quarter = len(REFERENCES) / 4
    assert report.data["invalid"] == {"empty": quarter, "error": quarter}
    assert report.data["repairs"] == {"surrounding_text": quarter}
    assert report.figure("item_accuracy") == 0.5
    assert report.data["inputs"]["missing_items"] == 0


def test_the_result_of_the_item_before_is_no_answer():
    # What the published o1 script writes after a failed call.
    content = {}
    for row, before in zip(REFERENCES[1:], REFERENCES, strict=False):
        content[row["id"]] = {"question": row["prompt"], "o1_result": json.loads(answer(before))}
    report = score(content, REFERENCES[1:], rounds=0)
    assert report.data["invalid"] == {"other_lesion": len(REFERENCES) - 1}


def test_the_reference_inside_an_sft_file_is_not_read(tmp_path):
    entries = [entry | {"generated_text": "nothing"} for entry in published_sft(REFERENCES)]
    report = score(entries, REFERENCES, rounds=0)
    assert report.data["invalid"] == {"no_object": len(REFERENCES)}
    assert report.data["localisation"]["answers_hold_boxes"] is False


def test_an_sft_prompt_outside_the_table_is_found_by_its_scan_and_text():
    references = [row | {"prompt": f"Question {row['question_id']}?"} for row in REFERENCES]
    assert score(published_sft(references), references, rounds=0).figure("item_accuracy") == 1.0
    unknown = [entry | {"prompt": "What is this?"} for entry in published_sft(references)[:3]]
    report = score(unknown, references, rounds=0)
    assert report.data["inputs"]["unknown_entries"] == 1  # one scan, one prompt


def test_ids_that_lost_their_leading_zeros_still_match():
    references = [
        row
        | {
            "id": "00" + row["id"][2:],
            "scan_id": "00" + row["scan_id"][2:],
            "patient_id": "00" + row["patient_id"][2:],
        }
        for row in REFERENCES
    ]
    table = {item.lstrip("0"): text for item, text in right(references).items()}
    report = score(table, references, rounds=0)
    assert report.figure("item_accuracy") == 1.0
    assert report.data["inputs"]["respelled_ids"] == len(references)
    assert any("leading zeros" in warning for warning in report.data["warnings"])


def test_an_id_that_fits_two_references_without_zeros_fits_none():
    twins = [REFERENCES[0] | {"id": "012_1"}, REFERENCES[0] | {"id": "0012_1"}]
    report = score({"12_1": answer(REFERENCES[0])}, twins, rounds=0)
    assert report.data["inputs"]["unknown_ids"] == ["12_1"]


def test_ranks_that_padded_their_batches_count_once(tmp_path):
    references = list(rows(scans=1, questions=range(1, 23)))
    table = noisy(references) | {references[0]["id"]: answer(references[0])}
    items = [{"id": row["id"], "prediction": table.get(row["id"], "")} for row in references]
    single = tmp_path / "single.jsonl"
    single.write_text("\n".join(map(json.dumps, items)))
    padded = items + items[:2]  # 22 items, 3 ranks of 8: two come twice
    ranks = [padded[rank::3] for rank in range(3)]
    paths = []
    for rank, part in enumerate(ranks):
        random.Random(rank).shuffle(part)
        paths.append(tmp_path / f"rank{rank}.jsonl")
        paths[-1].write_text("\n".join(map(json.dumps, part)))
    merged, alone = score(paths, references), score(single, references)
    assert merged.data["inputs"].pop("identical_repeats") == 2
    assert alone.data["inputs"].pop("identical_repeats") == 0
    assert (merged.data["inputs"].pop("entries"), alone.data["inputs"].pop("entries")) == (24, 22)
    assert merged.data == alone.data


@pytest.mark.parametrize("flip", [False, True])
def test_conflicting_repeats_follow_the_stated_rule(flip):
    row = REFERENCES[0]
    both = [{"id": row["id"], "prediction": text} for text in (answer(row), "no idea", answer(row))]
    entries = both[::-1] if flip else both
    report = score(entries, [row], rounds=0, conflicts="invalid")
    inputs = report.data["inputs"]
    assert (inputs["identical_repeats"], inputs["conflicting_items"], inputs["conflicting_ids"]) == (
        1,
        1,
        [row["id"]],
    )
    assert report.data["invalid"] == {"conflicting": 1}
    with pytest.raises(PredictionError, match=rf"{row['id']}.*bench compare"):
        score(entries, [row], rounds=0)


def test_runs_of_chance_do_not_add_up_to_a_better_one(tmp_path):
    # Each guesses one grade for all; where the least text counted, their merger was always the lowest grade.
    guesses = [
        {row["id"]: answer(row, grades=dict.fromkeys(truth(row), grade)) for row in REFERENCES}
        for grade in (0, 1)
    ]
    paths = [tmp_path / f"seed{seed}.json" for seed in range(2)]
    for path, guess in zip(paths, guesses, strict=True):
        path.write_text(json.dumps(guess))
    with pytest.raises(PredictionError, match="several runs"):
        score(paths, REFERENCES, rounds=0)
    merged = score(paths, REFERENCES, rounds=0, conflicts="invalid")
    assert merged.figure("item_accuracy") == merged.figure("coverage") == 0


NO_ANSWERS = [None, "", " \n", {}, [], {"error": "rate limit"}]


@pytest.mark.parametrize("nothing", NO_ANSWERS, ids=repr)
@pytest.mark.parametrize("conflicts", ["invalid", "raise"])
@pytest.mark.parametrize("resumed_last", [True, False])
def test_an_entry_without_an_answer_never_beats_an_answer(nothing, conflicts, resumed_last, tmp_path):
    given = [json.loads, str, lambda text: f"I think {text}", lambda text: "No idea."]
    good = {row["id"]: given[i % 4](answer(row)) for i, row in enumerate(REFERENCES)}
    parts = [tmp_path / "part1.json", tmp_path / "part2.json"]
    half = dict.fromkeys(list(good)[:62], nothing)
    parts[0].write_text(json.dumps({item: {"o1_result": text} for item, text in half.items()}))
    parts[1].write_text(json.dumps({item: {"o1_result": text} for item, text in good.items()}))
    expected = score(parts[1], REFERENCES, rounds=0, conflicts=conflicts)
    order = parts if resumed_last else parts[::-1]
    report = score(order, REFERENCES, rounds=0, conflicts=conflicts)
    assert report.figure("item_accuracy") == expected.figure("item_accuracy") == 0.75
    inputs = report.data["inputs"]
    assert (inputs["passed_over_entries"], inputs["conflicting_items"]) == (62, 0)
    assert "62 entries without an answer passed over" in report.text()


def test_an_item_that_nothing_answers_keeps_one_entry_whatever_the_order():
    entries = [{"id": REFERENCES[0]["id"], "prediction": nothing} for nothing in [*NO_ANSWERS, None]]
    for given in (entries, entries[::-1]):
        inputs = (report := score(given, REFERENCES[:1], rounds=0)).data["inputs"]
        assert report.data["invalid"] == {"empty": 1}
        assert (inputs["passed_over_entries"], inputs["identical_repeats"]) == (len(NO_ANSWERS) - 1, 1)
        assert inputs["conflicting_items"] == 0


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b'{"id": "a", "prediction": "x"}\n{"id": "b", "pred', r"line 2: not JSON .* cut off\?$"),
        (b'{"id": "a"}\n', 'line 1: has the keys id; needs "id"'),
        (b'{"item_id": "a", "text": "x"}\n{"item_id": "b"}\n', "line 2: has the keys item_id; needs"),
        (b'{"id": "a", "prediction": ' + b"[" * 9999 + b"]" * 9999 + b"}\n", "nested too deeply"),
        (
            b'{"id": "a", "prediction": 1}\n{"id": ' + b"[" * 9999 + b"]" * 9999 + b"}",
            "line 2: .* too deeply",
        ),
        (b'[{"prompt": "p"}]', "entry 0"),
        (b"[1, 2]", "entry 0"),
        (b'{"a": {"x_result": {}, "y_result": {}}}', "members end in _result"),
        (b'{\n "a": {"x_result": {}', "cut off"),
        (b"\xff\xfe\x00", "not UTF-8 at byte 0"),
        (
            b'\xef\xbb\xbf{"id": "a", "prediction": "' + b"x" * 99_970 + b'\xff"}\n',
            "not UTF-8 at byte 100000",
        ),
        (gzip.compress(b'{"id": "a", "prediction": "x"}', mtime=0), "compressed with gzip"),
        (b"3", "single int"),
        (b"id,prediction\n", "holds no predictions"),
        (b"id,prediction\na,b,c\n", "damaged table"),
        (b"PAR1 and no more", "damaged table"),
        (b"name,text\na,b\n", "not JSON .* no table with a column id"),
        (b"PK\x03\x04\xff", "spreadsheet"),
        (b"", "holds no predictions"),
        (b'{"id": "a", "response": "x", "output": "y"}\n', "has the keys id, response, output"),
        (b'{"id": "a", "response": "x", "confidence": "high"}\n', "confidence 'high' is no number"),
        (b'{\n"prediction": 3}', "one row"),
    ],
)
def test_a_file_that_cannot_be_read_is_one_error_that_names_it(tmp_path, content, words):
    path = tmp_path / "broken.json"
    path.write_bytes(content)
    with pytest.raises(PredictionError, match=words) as caught:
        score(path, REFERENCES)
    assert str(caught.value).count("broken.json") == 1


def test_answers_in_memory_that_are_nested_too_deeply_to_be_compared():
    deep: list = []
    for _ in range(100_000):
        deep = [deep]
    assert score({REFERENCES[0]["id"]: deep}, REFERENCES[:1], rounds=0).data["invalid"] == {"no_object": 1}
    entries = [{"id": REFERENCES[0]["id"], "prediction": found} for found in (deep, "text")]
    with pytest.raises(PredictionError, match=REFERENCES[0]["id"]):
        score(entries, REFERENCES[:1])


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(PredictionError, match=r"nowhere\.jsonl"):
        score(tmp_path / "nowhere.jsonl", REFERENCES)


def test_the_empty_file_of_a_rank_without_work_is_no_error(tmp_path):
    paths = [tmp_path / "rank6.jsonl", tmp_path / "rank7.jsonl"]
    paths[0].write_text(json.dumps({"id": REFERENCES[0]["id"], "prediction": "x"}))
    paths[1].write_text("")
    report = score(paths, REFERENCES, rounds=0)
    assert report.data["invalid"] == {"missing": len(REFERENCES) - 1, "no_object": 1}


@pytest.mark.parametrize(
    "key", ["prediction", "response", "output", "completion", "generation", "generated_text"]
)
def test_tables_and_frames_are_read_whatever_the_answer_is_called(tmp_path, key):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(
        {"id": right(REFERENCES).keys(), key: right(REFERENCES).values(), "seconds": 1.5}
    )
    frame.to_csv(tmp_path / "a.csv", index=False)
    frame.to_csv(tmp_path / "b.csv", index=False, sep=";", encoding="utf-8-sig")
    frame.to_csv(tmp_path / "c.tsv", index=False, sep="\t")
    frame.to_parquet(tmp_path / "d.parquet")
    frame.to_json(tmp_path / "e.jsonl", orient="records", lines=True)
    table = frame.set_index("id")[key]
    for given in [*sorted(tmp_path.iterdir()), frame, table]:
        report = score(given, REFERENCES, rounds=0)
        assert report.figure("item_accuracy") == report.figure("iou") == 1.0, given
        assert report.data["inputs"]["entries"] == len(REFERENCES)


def test_long_answers_over_several_lines_stay_whole_in_a_table(tmp_path):
    pandas = pytest.importorskip("pandas")
    text = 'a, "b"\n' * 30_000 + answer(REFERENCES[0])
    frame = pandas.DataFrame({"id": [REFERENCES[0]["id"], REFERENCES[1]["id"]], "prediction": [text, None]})
    frame.to_csv(tmp_path / "a.csv", index=False)
    for given in (tmp_path / "a.csv", frame):
        report = score(given, REFERENCES[:2], rounds=0)
        assert report.figure("item_accuracy") == 0.5
        assert report.data["invalid"] == {"empty": 1}


@pytest.mark.parametrize(
    "spelled",
    [
        lambda row: f" {row['id']}\n",
        lambda row: f"{row['scan_id']}.nii.gz_{row['question_id']}",
        lambda row: f"{row['scan_id']}.nii_{row['question_id']}",
        lambda row: row["id"].replace("_", " "),
    ],
)
def test_ids_with_blanks_and_endings_match_and_are_counted(spelled):
    entries = [{"id": spelled(row), "prediction": answer(row)} for row in REFERENCES]
    report = score(entries, REFERENCES, rounds=0)
    assert report.figure("item_accuracy") == 1.0
    assert report.data["inputs"]["respelled_ids"] == len(REFERENCES)
    assert "after leading zeros, blanks and .nii.gz were ignored" in report.text()


def test_the_reference_answer_of_a_row_is_never_taken_for_the_models():
    """Beside an id alone it is what a program wrote; a row of the dataset has other columns too."""
    row = {"id": REFERENCES[0]["id"], "prompt": "?", "answer": answer(REFERENCES[0])}
    with pytest.raises(PredictionError, match="keys id, prompt, answer"):
        score([row], REFERENCES)
