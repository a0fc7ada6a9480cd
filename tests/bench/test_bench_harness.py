"""The task of lm-evaluation-harness, run by the harness itself with a model that answers by rule."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys

import numpy as np
import pytest
from bench_cases import answer, noisy

lm_eval = pytest.importorskip("lm_eval", reason="needs lm-evaluation-harness: pip install lm-eval")
pytest.importorskip("PIL", reason="frames are PIL pictures")

from lm_eval.api.model import LM  # noqa: E402

from reasonknee_hf.bench import score  # noqa: E402
from reasonknee_hf.knee.harness import FOLDER, TASK, task_manager  # noqa: E402


class RuleModel(LM):
    """Answers each request from a table and keeps what it was shown."""

    MULTIMODAL = True

    def __init__(self, answers):
        super().__init__()
        self.answers = answers
        self.shown = []

    def generate_until(self, requests, disable_tqdm=False):
        replies = []
        for request in requests:
            context, options, extra = request.args
            assert options["until"] == []
            self.shown.append((request.doc["id"], context, [(p.mode, p.size) for p in extra["visual"]]))
            replies.append(self.answers.get(request.doc["id"], ""))
        return replies

    def loglikelihood(self, requests, disable_tqdm=False):
        raise NotImplementedError

    loglikelihood_rolling = loglikelihood


@pytest.fixture(scope="module")
def references():
    from reasonknee_hf import load_dataset

    return list(load_dataset("bench", split="test", streaming=True, source="sample", masks=False))[:62]


def run(model, **options):
    manager = task_manager(source="sample", scans=1, **options)
    return lm_eval.simple_evaluate(model=model, tasks=[TASK], task_manager=manager, bootstrap_iters=10)


def evaluate(model, **options):
    return {name.split(",")[0]: value for name, value in run(model, **options)["results"][TASK].items()}


def test_the_harness_gives_the_scores_of_the_scorer(references):
    answers = noisy(references)
    results = evaluate(RuleModel(answers), frames=2)
    report = score({row["id"]: answers.get(row["id"], "") for row in references}, references, rounds=0)
    for name in ("item_accuracy", "attribute_accuracy", "coverage", "iou"):
        assert results[name] == pytest.approx(report.figure(name))
    assert 0 < results["item_accuracy"] < 1


def test_results_have_an_error_and_samples_a_score(references):
    answers = noisy(references)
    outcome = run(RuleModel(answers), frames=2)
    results = {name.split(",")[0]: value for name, value in outcome["results"][TASK].items()}
    for name in ("item_accuracy", "coverage", "iou"):
        values = [sample[name] for sample in outcome["samples"][TASK]]
        assert all(type(value) is float for value in values)
        assert results[f"{name}_stderr"] == pytest.approx(np.std(values, ddof=1) / len(values) ** 0.5)
    shares = [sample["attribute_accuracy"] for sample in outcome["samples"][TASK]]
    assert all(0 <= share <= 1 for share in json.loads(json.dumps(shares)))
    assert [pickle.loads(pickle.dumps(share)).of for share in shares] == [share.of for share in shares]


def test_where_no_box_is_asked_for_there_is_no_iou(references, tmp_path):
    questions = tmp_path / "questions.json"
    texts = {row["question_id"]: f"Question {row['question_id']}?" for row in references}
    questions.write_text(json.dumps(texts))
    results = evaluate(RuleModel({}), frames=2, questions=str(questions))
    assert "iou" not in results
    assert results["item_accuracy"] == results["coverage"] == 0
    asked = evaluate(RuleModel({}), frames=2, questions=str(questions), ask_box=True)
    assert asked["iou"] == 0


def test_each_request_holds_frames_of_its_volume_and_one_placeholder_for_each(references):
    model = RuleModel({row["id"]: answer(row) for row in references})
    results = evaluate(model, frames=3, size=32, setting="gt_region")
    assert results["item_accuracy"] == results["iou"] == 1
    assert [shown[0] for shown in model.shown] == [row["id"] for row in references]
    for _, context, pictures in model.shown:
        assert context.count("<image>") == 3
        assert "region of the volume" in context
        assert pictures == [("L", (32, 32))] * 3


def test_the_folder_for_the_command_line_is_printed():
    done = subprocess.run(
        [sys.executable, "-m", "reasonknee_hf.knee.harness"], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == str(FOLDER)
    assert (FOLDER / f"{TASK}.yaml").is_file()
