"""The file by which the Hub knows a benchmark: written with the whole of it, merged with care, gone with the last."""

from __future__ import annotations

import json

import yaml
from publishing import REPO, push_bench

from reasonknee_hf.cli import main

OTHERS = b"name: Mine\nevaluation_framework: inspect-ai\ntasks:\n- {id: mine, config: default, split: test}\n"


def there(origin) -> dict | None:
    files = origin.store.repos[REPO].at("main").files
    return yaml.safe_load(bytes(files["eval.yaml"].content)) if "eval.yaml" in files else None


def test_the_benchmark_is_pushed_with_the_tasks_that_results_name(origin, sample_dir, tmp_path):
    push_bench(origin, sample_dir)
    told = there(origin)
    assert told["evaluation_framework"] == "inspect-ai"
    assert {(task["config"], task["split"]) for task in told["tasks"]} == {("bench", "test")}
    answers, results = tmp_path / "answers.jsonl", tmp_path / "results.yaml"
    answers.write_text(json.dumps({"id": "9000003_00M_20041013_10000041_1_1", "prediction": "{}"}) + "\n")
    words = ["--source", str(sample_dir), "--rounds", "0", "--eval-results", str(results)]
    assert main(["bench", "score", str(answers), *words]) == 0
    named = {entry["dataset"]["task_id"] for entry in yaml.safe_load(results.read_text())}
    assert set() < named <= {task["id"] for task in told["tasks"]}


def test_a_part_of_the_benchmark_is_none(origin, sample_dir):
    push_bench(origin, sample_dir, categories="BML")
    assert there(origin) is None


def test_what_others_wrote_stays(origin, sample_dir, caplog):
    origin.put_tree(REPO, {"eval.yaml": OTHERS, "README.md": b"# mine\n"})
    push_bench(origin, sample_dir)
    assert bytes(origin.store.repos[REPO].at("main").files["eval.yaml"].content) == OTHERS
    assert "eval.yaml was written by others and stays" in caplog.text


def test_what_is_no_yaml_stays_too(origin, sample_dir):
    origin.put_tree(REPO, {"eval.yaml": b"tasks: [", "README.md": b"# mine\n"})
    push_bench(origin, sample_dir)
    assert bytes(origin.store.repos[REPO].at("main").files["eval.yaml"].content) == b"tasks: ["


def test_configs_come_and_go_and_edits_of_its_words_stay(origin, sample_dir):
    push_bench(origin, sample_dir)
    edited = {**there(origin), "name": "Knees", "description": "Ours."}
    files = {n: bytes(b.content) for n, b in origin.store.repos[REPO].at("main").files.items()}
    origin.put_tree(REPO, files | {"eval.yaml": yaml.safe_dump(edited).encode()})
    push_bench(origin, sample_dir, name="again")
    told = there(origin)
    assert (told["name"], told["description"]) == ("Knees", "Ours.")
    assert {task["config"] for task in told["tasks"]} == {"bench", "again"}
    push_bench(origin, sample_dir, name="few", limit=3, delete_configs=["bench"])
    assert {task["config"] for task in there(origin)["tasks"]} == {"again"}
    push_bench(origin, sample_dir, name="few", limit=3, delete_configs=["again"])
    assert there(origin) is None
