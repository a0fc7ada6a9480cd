"""The task of Inspect, run by Inspect itself with a model that answers by rule and sees the frames."""

from __future__ import annotations

import json

import pytest
from bench_cases import noisy

inspect_ai = pytest.importorskip("inspect_ai", reason="needs Inspect: pip install inspect-ai")
pytest.importorskip("PIL", reason="frames are PIL pictures")

from inspect_ai.model import GenerateConfig, ModelAPI, ModelOutput, get_model, modelapi  # noqa: E402

import reasonknee_hf as rk  # noqa: E402
from reasonknee_hf.bench import score  # noqa: E402
from reasonknee_hf.knee.harness.inspect_task import reasonknee_bench  # noqa: E402


@modelapi(name="rule")
class RuleModel(ModelAPI):
    """Answers each prompt from a table and keeps what it was shown."""

    def __init__(self, model_name, base_url=None, api_key=None, config=GenerateConfig(), **options):  # noqa: B008
        super().__init__(model_name, base_url, api_key, [], config)
        self.answers, self.shown = options["answers"], options["shown"]

    async def generate(self, input, tools, tool_choice, config):
        *pictures, text = input[-1].content
        assert all(block.image.startswith("data:image/png;base64,") for block in pictures)
        self.shown.append([block.type for block in (*pictures, text)])
        said = next(said for asked, said in self.answers.items() if text.text.strip().startswith(asked))
        return ModelOutput.from_content("rule/model", said)


def test_inspect_gives_the_figures_of_the_bench(tmp_path):
    rows = list(rk.load_dataset("bench", split="test", streaming=True, source="sample", masks=False))[:62]
    answers = noisy(rows)
    by_prompt = {row["prompt"].strip(): answers.get(row["id"], "") for row in rows}
    shown = []

    task = reasonknee_bench(source="sample", scans=1, frames=4, size=32)
    model = get_model("rule/model", answers=by_prompt, shown=shown)
    (log,) = inspect_ai.eval(task, model=model, log_dir=str(tmp_path), display="none")
    assert log.status == "success", log.error
    assert len(shown) == 62
    assert all(kinds == ["image"] * 4 + ["text"] for kinds in shown)
    figures = {one.name: {name: m.value for name, m in one.metrics.items()} for one in log.results.scores}
    report = score(answers, rows, rounds=0)
    assert figures["item_accuracy"]["mean"] == pytest.approx(report.figure("item_accuracy"))
    assert figures["attribute_accuracy"]["over_grades"] == pytest.approx(report.figure("attribute_accuracy"))
    # The log is a prediction file.
    path = tmp_path / "samples.jsonl"
    path.write_text("".join(json.dumps(sample.model_dump(mode="json")) + "\n" for sample in log.samples))
    again = score(path, rows, rounds=0)
    assert again.data["inputs"]["forms"] == ["inspect"]
    assert again.figure("item_accuracy") == report.figure("item_accuracy")
