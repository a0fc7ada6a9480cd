"""Figures of a run: denominators, averages, kappa, intervals, stages, and independence of order."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from bench_cases import answer, noisy, rows, truth
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from reasonknee_hf.bench import BoxConvention, count_grades, load_priors, read_references, score
from reasonknee_hf.bench.metrics import Bootstrap, ac1, farthest, kappas, pair_tables
from reasonknee_hf.errors import OptionError, PredictionError, RecordError
from reasonknee_hf.knee.moaks import CATEGORIES, QUESTIONS
from reasonknee_hf.knee.scoring.reference_reading import ATTRIBUTE_KINDS, SCHEME

REFERENCES = list(rows(scans=6, patients=4))


def with_grades(row, **grades):
    return row | {
        "grades": [{"lesion": "", "attribute": name, "grade": grade} for name, grade in grades.items()]
    }


def osteophytes(grades):
    """One item for each grade, each of its own patient."""
    made = rows(scans=len(grades), questions=[30])
    return [with_grades(row, grade=grade) for row, grade in zip(made, grades, strict=True)]


def test_invalid_and_missing_answers_stay_in_the_denominator():
    references = osteophytes([1, 1, 1, 1])
    right, wrong, unreadable, _ = (row["id"] for row in references)
    answers = {
        right: answer(references[0]),
        wrong: answer(references[1], grades={"grade": 2}),
        unreadable: "hm",
    }
    answers["stranger_1"] = answer(references[0])
    report = score(answers, references)
    assert report.figure("item_accuracy") == report.figure("attribute_accuracy") == 1 / 4
    assert report.figure("coverage") == 2 / 4
    assert report.data["invalid"] == {"missing": 1, "no_object": 1}
    assert report.data["invalid_by_category"] == {"Osteophyte": {"missing": 1, "no_object": 1}}
    assert report.data["inputs"]["unknown_ids"] == ["stranger_1"]
    assert [item["reason"] for item in report.items()] == [None, None, "no_object", "missing"]


def test_a_model_that_always_says_zero_does_not_look_good():
    references = osteophytes([0] * 95 + [1, 2, 3, 1, 2])
    answers = {row["id"]: answer(row, grades={"grade": 0}) for row in references}
    report = score(answers, references, priors=count_grades(references[:50], "train"))
    attribute = report.data["attributes"]["table"]["osteophyte: grade"]
    assert report.figure("item_accuracy") == 0.95
    assert attribute["balanced_accuracy"]["value"] == attribute["chance"] == 0.25
    assert attribute["recall"] == [1.0, 0.0, 0.0, 0.0]
    assert attribute["weighted_kappa"]["value"] == 0
    assert report.data["grades"]["category"]["Osteophyte"]["prior_item_accuracy"]["value"] == 0.95
    assert report.figure("balanced_accuracy", "macro") == 0.25


def test_a_grade_that_never_occurs_has_no_recall_and_is_left_out():
    references = osteophytes([0, 0, 2])
    report = score({row["id"]: answer(row) for row in references}, references)
    attribute = report.data["attributes"]["table"]["osteophyte: grade"]
    assert attribute["recall"] == [1.0, None, 1.0, None]
    assert attribute["balanced_accuracy"]["value"] == 1.0
    assert attribute["chance"] == 0.5
    assert json.loads(report.to_json()) == json.loads(json.dumps(report.data))


@pytest.mark.parametrize("references", [[], REFERENCES])
def test_nothing_at_all_divides_by_nothing(references):
    report = score([], references)
    report.to_json()
    assert report.text(compare_paper=True)
    assert report.markdown()
    assert report.figure("item_accuracy") == (0.0 if references else None)


def test_partly_valid_answers_count_for_the_attributes_they_give():
    row = with_grades(next(rows(questions=[16])), size=2, depth=1)
    report = score({row["id"]: json.dumps({QUESTIONS[16].release_key: {"size": 2, "depth": 9}})}, [row])
    assert report.figure("attribute_accuracy") == 0.5
    assert report.figure("item_accuracy") == report.figure("coverage") == 0
    assert report.data["invalid"] == {"out_of_range": 1}


def test_accuracy_by_range_of_the_grades():
    report = score(noisy(REFERENCES), REFERENCES, rounds=0, priors=count_grades(REFERENCES))
    ranges = report.data["grade_ranges"]
    counts = {name: row["attribute_accuracy"]["n"] for name, row in ranges.items()}
    assert counts["0-8"] == 6 * 6
    assert counts["0/1"] == 6 * sum(a.high == 1 for q in list(QUESTIONS.values())[:62] for a in q.attributes)
    assert sum(counts.values()) == report.data["count"]["grades"]
    assert ranges["0/1"]["prior_attribute_accuracy"]["value"] >= 0.5


def test_micro_pools_and_macro_is_the_mean_of_the_categories():
    references = [*osteophytes([1]), *(with_grades(row, presence=1) for row in rows(scans=3, questions=[58]))]
    report = score({references[0]["id"]: answer(references[0])}, references)
    assert report.figure("item_accuracy", "micro") == 1 / 4
    assert report.figure("item_accuracy", "macro") == (1 + 0) / 2


def test_the_papers_last_column_holds_the_other_three_categories():
    references = list(rows(scans=2, questions=range(1, 70)))
    report = score({row["id"]: answer(row) for row in references}, references)
    counts = {name: row["item_accuracy"]["n"] for name, row in report.data["grades"]["category"].items()}
    paper = {name: row["item_accuracy"]["n"] for name, row in report.data["grades"]["paper"].items()}
    assert list(counts) == list(CATEGORIES)
    assert paper["Others"] == sum(counts[name] for name in CATEGORIES[4:])
    assert sum(paper.values()) == len(references)


def _kappa(truths, answers, width):
    """Straight from the definition, for one attribute."""
    table = np.zeros((width, width))
    np.add.at(table, (truths, answers), 1)
    weights = np.subtract.outer(np.arange(width), np.arange(width)) ** 2
    expected = np.outer(table.sum(1), table.sum(0)) / table.sum()
    return 1 - (weights * table).sum() / (weights * expected).sum()


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=2, max_size=30))
def test_weighted_kappa_follows_its_definition(pairs):
    truths, answers = np.array(pairs).T
    kind = next(code for code, k in enumerate(ATTRIBUTE_KINDS) if k.name == "osteophyte: grade")
    kinds = np.full(len(pairs), kind)
    tables = pair_tables(SCHEME, np.arange(len(pairs)), kinds, truths, answers, Bootstrap(len(pairs), 0))
    value = kappas(SCHEME, tables)[kind][0]
    if len({*truths, *answers}) == 1:
        assert np.isnan(value)
    else:
        assert value == pytest.approx(_kappa(truths, answers, 4))


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), min_size=1, max_size=30))
def test_ac1_follows_its_definition(pairs):
    truths, answers = np.array(pairs).T
    table = np.zeros((1, 3, 3))
    np.add.at(table[0], (truths, answers), 1)
    share = [((truths == grade).mean() + (answers == grade).mean()) / 2 for grade in range(3)]
    chance = sum(p * (1 - p) for p in share) / 2
    assert ac1(table)[0] == pytest.approx(((truths == answers).mean() - chance) / (1 - chance))


def test_ac1_stays_high_where_a_rare_finding_makes_kappa_low():
    references = [
        with_grades(row, presence=int(n < 2)) for n, row in enumerate(rows(scans=50, questions=[58]))
    ]
    said = {row["id"]: answer(row, grades={"presence": int(n == 2)}) for n, row in enumerate(references)}
    row = score(said, references).data["attributes"]["table"]["meniscal root tear: presence"]
    assert row["weighted_kappa"]["value"] < 0.1
    assert row["ac1"]["value"] > 0.9
    assert row["ac1"]["ci"][0] <= row["ac1"]["value"] <= row["ac1"]["ci"][1]


def test_kappa_by_category_and_compartment_is_the_mean_of_its_attributes():
    report = score(noisy(REFERENCES), REFERENCES, rounds=50)
    section = report.data["attributes"]["weighted_kappa"]
    table = report.data["attributes"]["table"]
    of_bml = [row["weighted_kappa"]["value"] for row in table.values() if row["category"] == "BML"]
    assert section["category"]["BML"]["value"] == pytest.approx(np.mean(of_bml))
    assert section["category"]["BML"]["ci"] is not None
    assert list(section["compartment"]) == [
        "patellofemoral",
        "medial tibiofemoral",
        "lateral tibiofemoral",
        "no compartment",
    ]
    medial = [row for row in REFERENCES if "medial" in f"{row['structure']} {row['subregion']}"]
    medial = [row for row in medial if row["structure"] != "patella" and "trochlea" not in row["subregion"]]
    ids = {row["id"] for row in medial}
    answers = {item: text for item, text in noisy(REFERENCES).items() if item in ids}
    alone = score(answers, medial, rounds=0).data["attributes"]["weighted_kappa"]["compartment"]
    assert alone["medial tibiofemoral"]["value"] == pytest.approx(
        section["compartment"]["medial tibiofemoral"]["value"]
    )
    assert "medial tibiofemoral" in report.text()


def test_risk_falls_where_the_surest_answers_are_right():
    entries = [
        {"id": row["id"], "prediction": answer(row) if n % 2 else "hm", "confidence": n % 2}
        for n, row in enumerate(REFERENCES)
    ]
    report = score(entries, REFERENCES, rounds=0)
    risk = report.data["risk"]
    assert (risk["risk"]["0.1"], risk["risk"]["0.5"], risk["risk"]["1"]) == (0, 0, 0.5)
    assert risk["items"] == len(REFERENCES)
    assert "Risk by coverage" in report.text()
    assert score(noisy(REFERENCES), REFERENCES, rounds=0).data["risk"] == {}
    flat = [entry | {"confidence": 1} for entry in entries]
    assert set(score(flat, REFERENCES, rounds=0).data["risk"]["risk"].values()) == {0.5}


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.booleans()), min_size=1, max_size=8))
def test_equally_sure_items_count_in_expectation(items):
    from itertools import pairwise, permutations

    from reasonknee_hf.bench.selective import risk_curve

    sure, wrong = np.array(items, float).T
    curves = []
    for order in permutations(range(len(items))) if len(items) < 6 else []:
        if all(sure[a] >= sure[b] for a, b in pairwise(order)):
            curves.append(np.cumsum(wrong[list(order)]) / np.arange(1, len(items) + 1))
    curve = risk_curve(sure, wrong)
    assert curve[-1] == pytest.approx(wrong.mean())
    if curves:
        assert curve == pytest.approx(np.mean(curves, axis=0))


def test_kappa_is_left_out_for_codes_without_order_and_silence_counts_against_it():
    report = score(noisy(REFERENCES), REFERENCES, rounds=0)
    table = report.data["attributes"]["table"]
    assert table["meniscal morphology: morphology"]["weighted_kappa"] is None
    assert table["meniscal cyst: tear_location"]["weighted_kappa"] is None
    assert table["BML: size"]["weighted_kappa"]["value"] is not None
    kind = np.array([0, 0, 0])
    assert farthest(SCHEME, kind, np.array([0, 3, 2]), np.array([-1, -1, 2])).tolist() == [3, 0, 2]


def test_intervals_are_over_patients_and_seeded():
    answers = noisy(REFERENCES)
    one, same, other = (score(answers, REFERENCES, seed=seed).data for seed in (0, 0, 1))
    assert one == same
    figure = [data["grades"]["overall"]["item_accuracy"]["micro"] for data in (one, other)]
    assert figure[0]["value"] == figure[1]["value"]
    assert figure[0]["ci"] != figure[1]["ci"]
    low, high = figure[0]["ci"]
    assert low <= figure[0]["value"] <= high
    alone = [row | {"patient_id": "p"} for row in REFERENCES]
    single = score(answers, alone).data
    assert single["grades"]["overall"]["item_accuracy"]["micro"]["ci"] is None
    assert any("two patients" in warning for warning in single["warnings"])


def test_the_bootstrap_draws_patients_not_items():
    # One patient all right, one all wrong: resamples of two patients give 0, 1/2 or 1 and nothing else.
    references = [
        row | {"patient_id": "ab"[scan]}
        for scan in range(2)
        for row in rows(scans=scan + 1, questions=ALL_BML)
    ]
    references = [row | {"id": f"{number}_1"} for number, row in enumerate(references)]
    answers = {row["id"]: answer(row) for row in references if row["patient_id"] == "a"}
    report = score(answers, references)
    assert report.data["grades"]["overall"]["item_accuracy"]["micro"]["ci"] == [0.0, 1.0]


ALL_BML = range(1, 16)


@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.randoms(use_true_random=False), st.integers(1, 5), st.integers(0, 20))
def test_scores_do_not_depend_on_order_sharding_or_repeats(chance, parts, repeats):
    entries = [{"id": item, "prediction": text} for item, text in noisy(REFERENCES).items()]
    expected = score(entries, REFERENCES, rounds=50).data
    references = REFERENCES + chance.sample(REFERENCES, repeats)
    entries += chance.sample(entries, repeats)
    chance.shuffle(references)
    chance.shuffle(entries)
    sharded = [entry for part in range(parts) for entry in entries[part::parts]]
    got = score(sharded, references, rounds=50).data
    assert got["inputs"].pop("identical_repeats") == repeats
    assert got["inputs"].pop("entries") - repeats == expected["inputs"]["entries"]
    kept = {key: value for key, value in expected["inputs"].items() if key in got["inputs"]}
    assert got == expected | {"inputs": kept}


def test_a_box_is_scored_even_where_the_grade_is_not_right_and_the_other_way_round():
    row = REFERENCES[0]
    wrong = {name: (grade + 1) % 4 for name, grade in truth(row).items()}
    assert score({row["id"]: answer(row, grades=wrong)}, [row]).figure("iou") == 1
    assert score({row["id"]: answer(row, box=[0, 1, 0, 1, 0, 1])}, [row]).figure("item_accuracy") == 1


def test_the_mean_iou_is_over_all_items_with_a_reference_box():
    references = [
        row | {"bbox": None if index == 3 else row["bbox"]} for index, row in enumerate(REFERENCES[:4])
    ]
    answers = {references[0]["id"]: answer(references[0], box=references[0]["bbox"])}
    answers[references[1]["id"]] = answer(references[1], box=references[1]["bbox"][::-1])
    answers[references[3]["id"]] = answer(REFERENCES[3], box=[0, 1, 0, 1, 0, 1])
    report = score(answers, references)
    places = report.data["localisation"]
    assert places["overall"]["iou"]["micro"]["value"] == pytest.approx(1 / 3)
    assert places["overall"]["iou"]["micro"]["n"] == 3
    assert places["invalid"] == {"no_box": 1, "reversed": 1}
    assert places["overall"]["hit_rate_0.5"]["micro"]["value"] == pytest.approx(1 / 3)


def test_stages_name_the_first_link_that_broke():
    references = REFERENCES[:5]
    far = [0, 1, 0, 1, 0, 1]
    wrong = {name: (grade + 1) % 4 for name, grade in truth(references[2]).items()}
    answers = {
        references[0]["id"]: "no idea",
        references[1]["id"]: answer(references[1], box=far),
        references[2]["id"]: answer(references[2], grades=wrong),
        references[3]["id"]: answer(references[3]),
    }
    report = score(answers, references)
    assert [item["stage"] for item in report.items()] == [
        "no valid answer",
        "wrong place",
        "wrong grade",
        "right",
        "no valid answer",
    ]
    shares = report.data["stages"]["overall"]
    assert (shares["no valid answer"], shares["wrong place"], shares["wrong grade"], shares["right"]) == (
        0.4,
        0.2,
        0.2,
        0.2,
    )
    assert shares["right grade at a wrong place"] == 0.2
    blind = {item: json.dumps(QUESTIONS[row["question_id"]].answer(truth(row))) for item, row in
             ((row["id"], row) for row in references)}  # fmt: skip
    unjudged = score(blind, references).data
    assert unjudged["stages"]["places_judged"] is False
    assert unjudged["stages"]["overall"]["right"] == 1


def test_correctness_follows_place_in_the_correlation():
    references = [row for row in REFERENCES if row["category"] == "BML"]
    answers = {}
    for index, row in enumerate(references):
        wrong = {name: (grade + 1) % 4 for name, grade in truth(row).items()}
        good = index % 2 == 0
        box = row["bbox"] if good else [0, 1, 0, 1, 0, 1]
        answers[row["id"]] = answer(row, grades=truth(row) if good else wrong, box=box)
    report = score(answers, references)
    assert report.data["localisation"]["correlation_with_correctness"]["BML"]["value"] == pytest.approx(1)
    constant = score({row["id"]: answer(row) for row in references}, references)
    assert constant.data["localisation"]["correlation_with_correctness"]["BML"]["value"] is None


def test_the_box_convention_is_reported_and_changes_the_score():
    row = REFERENCES[0] | {"bbox": [10, 20, 10, 20, 10, 20]}
    answers = {row["id"]: answer(row, box=[15, 25, 10, 20, 10, 20])}
    for ends, value in (("inclusive", 0.375), ("continuous", 1 / 3)):
        report = score(answers, [row], convention=BoxConvention(ends))
        assert report.figure("iou") == pytest.approx(value)
        assert f"ends {ends}" in report.text()
        assert report.data["rules"]["box_ends"] == ends


@pytest.mark.parametrize(
    ("order", "words"),
    [([0, 2, 4, 1, 3, 5], "order sxysxy"), ([4, 5, 2, 3, 0, 1], "order yyxxss"), ([0, 1, 2, 3, 4, 5], None)],
)
def test_boxes_in_another_order_are_warned_of_in_the_report(order, words):
    spread = [
        row | {"bbox": [s // 4 if axis < 2 else s + 150 for axis, s in enumerate(row["bbox"])]}
        for row in REFERENCES
    ]
    answers = {row["id"]: answer(row, box=[row["bbox"][place] for place in order]) for row in spread}
    report = score(answers, spread, rounds=0)
    assert report.data["warnings"] == [] if words is None else words in report.text()
    if words:
        declared = BoxConvention(order=words.split()[1])
        right = score(answers, spread, rounds=0, convention=declared)
        assert right.figure("iou") == 1
        assert right.data["warnings"] == []


def test_priors_come_from_training_rows_and_their_absence_is_said(tmp_path):
    train = list(rows(scans=9, seed=7))
    priors = count_grades(train, "the training split")
    priors.save(tmp_path / "priors.json")
    loaded = load_priors(tmp_path / "priors.json")
    assert loaded == priors
    assert sum(priors.counts[30]["grade"]) == 9
    report = score(noisy(REFERENCES), REFERENCES, priors=loaded)
    known = [(row["question_id"], name, grade) for row in REFERENCES for name, grade in truth(row).items()]
    expected = np.mean([loaded.majority(question, name) == grade for question, name, grade in known])
    assert report.figure("prior_attribute_accuracy") == pytest.approx(expected)
    assert "the training split" in report.text()
    bare = score(noisy(REFERENCES), REFERENCES)
    assert "Prior: not given" in bare.text()
    assert "prior_attribute_accuracy" not in bare.data["grades"]["overall"]
    partial = score(noisy(REFERENCES), REFERENCES, priors=count_grades(rows(questions=[1])))
    assert any("prior knows no grade" in warning for warning in partial.data["warnings"])
    (tmp_path / "other.json").write_text("[]")
    with pytest.raises(PredictionError, match="priors"):
        load_priors(tmp_path / "other.json")


def test_a_subset_says_so_in_every_output():
    answers = dict(list(noisy(REFERENCES).items())[:40])
    report = score(answers, REFERENCES, only_answered=True, subset="first scans")
    assert report.data["count"]["items"] == 40
    assert report.data["inputs"]["missing_items"] == 0
    said = "first scans; answered items only"
    for output in (report.text(), report.markdown(), report.to_json(), report.eval_results()):
        assert said in " ".join(output.split())
    assert report.item(0)["subset"] == said
    whole = score(answers, REFERENCES)
    assert "SUBSET" not in whole.text()


@pytest.mark.parametrize("references", [[], REFERENCES[:1], REFERENCES])
def test_the_picture_is_drawn_whatever_there_is(references, tmp_path):
    pytest.importorskip("matplotlib")
    from PIL import Image

    from reasonknee_hf.bench.plots import draw

    sizes = []
    for answers in ({}, noisy(references)):
        path = draw(score(answers, references, rounds=20, subset="a part"), tmp_path / "new" / "run.png")
        with Image.open(path) as picture:
            sizes.append(picture.size)
    assert sizes[0] == sizes[1]
    assert sizes[0][0] == 1540


def test_references_of_any_kind_are_read_without_their_volumes():
    import datasets

    table = {name: [row[name] for row in REFERENCES] for name in REFERENCES[0]}
    table["category"] = [CATEGORIES.index(name) for name in table["category"]]
    dataset = datasets.Dataset.from_dict(table).add_column("image", [{"path": "/nowhere"}] * len(REFERENCES))
    answers = noisy(REFERENCES)
    expected = score(answers, REFERENCES).data
    assert score(answers, dataset).data == expected
    assert score(answers, dataset.to_iterable_dataset()).data == expected
    assert score(answers, read_references(dataset)).data == expected


def test_references_that_cannot_be_graded_are_named_not_dropped():
    references = [dict(row) for row in REFERENCES[:4]]
    references[0]["question_id"] = None
    references[1]["grades"] = []
    references[2] = with_grades(references[2], size=5, number=0, percent_bml=0)
    report = score({row["id"]: answer(row) for row in REFERENCES[:4]}, references)
    assert report.data["unscored_count"] == 3
    assert "size=5" in report.data["unscored"][references[2]["id"]]
    assert report.data["count"]["items"] == 4
    assert report.data["count"]["graded_items"] == 2
    with pytest.raises(RecordError, match="bench"):
        score([], [{"id": "x"}])
    with pytest.raises(RecordError, match="twice"):
        score([], [REFERENCES[0], REFERENCES[0] | {"bbox": None}])


def test_options_that_do_not_exist_are_refused():
    for option, values in {
        "conflicts": ["last", "first"],
        "iou_threshold": [0, float("nan")],
        "rounds": [-1, 2.5, None],
        "seed": [-1, 0.5],
        "spacing": [(0, 0, 0), (-1, 1, 1), (1, 1), (1, 1, float("nan")), (1, 1, float("inf")), 1, "abc"],
    }.items():
        for value in values:
            with pytest.raises(OptionError, match=option):
                score([], REFERENCES, **{option: value})
    given = {"rounds": np.int64(0), "seed": np.int64(1), "spacing": np.ones(3)}
    assert json.loads(score([], REFERENCES, **given).to_json())["rules"]["spacing_mm"] == [1, 1, 1]
    with pytest.raises(OptionError, match="item_accuracy"):
        score([], REFERENCES).figure("accuracy")


def test_the_eval_results_are_what_the_hub_reads():
    import yaml
    from huggingface_hub import EvalResultEntry
    from huggingface_hub._eval_results import parse_eval_result_entries

    report = score(noisy(REFERENCES), REFERENCES, name="my model")
    text = report.eval_results(revision="7a611f92fd3ad3954e8b62feef49ee12bfef725a", date="2026-11-30")
    entries = parse_eval_result_entries(yaml.safe_load(text))
    assert all(isinstance(entry, EvalResultEntry) for entry in entries)
    assert [entry.value for entry in entries] == [report.figure("item_accuracy"), report.figure("iou")]
    assert "my model" in entries[0].notes
    assert entries[0].dataset_id == "rajpurkarlab/3DReasonKnee"


def test_an_old_hub_client_is_named(monkeypatch):
    import huggingface_hub

    from reasonknee_hf.errors import ExtraMissingError

    monkeypatch.setattr(
        huggingface_hub, "__getattr__", lambda name: (_ for _ in ()).throw(AttributeError(name))
    )
    monkeypatch.delitem(huggingface_hub.__dict__, "EvalResultEntry", raising=False)
    monkeypatch.delitem(huggingface_hub.__dict__, "eval_result_entries_to_yaml", raising=False)
    with pytest.raises(ExtraMissingError, match=huggingface_hub.__version__):
        score([], REFERENCES).eval_results()


def test_the_scorer_is_reached_from_the_package():
    program = "import reasonknee_hf as rk; print(rk.bench.score([], [], rounds=0).figure('item_accuracy'))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "None"


MEMORY = """
import sys
sys.path.insert(0, {tests!r})
from bench_cases import answer, rows
from reasonknee_hf.bench import score
from reasonknee_hf.bench.inputs import read_entries
def entries():
    for row in rows(scans=1290, patients=400):
        text = "The signal is bright. " * 20 + "Final diagnosis: " + answer(row)
        yield {{"id": row["id"], "prediction": text}}
report = score(entries(), rows(scans=1290, patients=400), rounds=1000)
assert report.data["count"]["items"] == 1290 * 62 == 79980
assert report.figure("item_accuracy") == 1.0
# ru_maxrss would hold the peak of the test process too, from before exec.
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the peak from /proc")
def test_eighty_thousand_predictions_fit_in_half_a_gigabyte():
    program = MEMORY.format(tests=str(Path(__file__).parents[1]))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert int(done.stdout) * 1024 < 500_000_000, f"{int(done.stdout) // 1000} MB"


@pytest.mark.parametrize(("patients", "said"), [(4, True), (19, True), (20, False)])
def test_few_patients_are_a_caveat_beside_the_intervals(patients, said):
    references = list(rows(scans=20, questions=[1, 30], patients=patients))
    report = score(noisy(references), references, rounds=20)
    assert (f"CAVEAT: Only {patients} patients" in report.text()) == said
    assert bool(report.data["caveats"]) == said


def test_kappa_is_printed_with_its_interval():
    report = score(noisy(REFERENCES), REFERENCES, rounds=50)
    low, high = report.data["attributes"]["table"]["BML: size"]["weighted_kappa"]["ci"]
    line = next(line for line in report.text().splitlines() if line.lstrip().startswith("BML: size"))
    assert f"[{low:.2f}, {high:.2f}]" in line


def test_the_room_of_scoring_knows_no_knee_until_it_is_asked():
    program = (
        "import sys, reasonknee_hf.bench.setting_pairs, reasonknee_hf.bench.comparison\n"
        "import reasonknee_hf.bench.plots, reasonknee_hf.bench.forest_plot, reasonknee_hf.bench.item\n"
        "knee = 'reasonknee_hf.knee.scoring', 'reasonknee_hf.knee.moaks'\n"
        "print([name for name in sys.modules if name.startswith(knee)])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_another_benchmark_is_an_argument():
    from reasonknee_hf.bench.reading import Reading
    from reasonknee_hf.bench.scorer import scorer_of

    class Other(type(scorer_of())):
        title, task_id, rules_version = "Other-Bench", "other", 7

        def read(self, answer, question, **options):
            return Reading(grades={a.name: int(answer) for a in question.attributes})

    report = score({row["id"]: "0" for row in REFERENCES}, REFERENCES, rounds=0, scorer=Other())
    zero = [set(truth(row).values()) == {0} for row in REFERENCES]
    assert report.figure("item_accuracy") == pytest.approx(np.mean(zero))
    assert report.text().startswith("Other-Bench: this run")
    assert report.data["rules"]["version"] == 7
