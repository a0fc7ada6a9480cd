"""A model of `transformers` answers the benchmark in one command; presets fit each family's own processor."""

from __future__ import annotations

import json

import pytest
from tiny_model import tiny_model, tiny_processor

from reasonknee_hf.cli import main
from reasonknee_hf.running import PRESETS, run
from reasonknee_hf.running.asking import BackendError
from reasonknee_hf.running.presets import view_for
from reasonknee_hf.train import Collator, get_recipe
from train.conftest import PROMPTS
from train.families import FAMILIES

pytestmark = pytest.mark.train
OF_FAMILY = {
    "qwen2.5-vl": "qwen2_5_vl", "qwen3-vl": "qwen3_vl", "internvl": "internvl", "gemma-3": "gemma3",
    "llava-onevision": "llava_onevision", "smolvlm": "smolvlm",
}  # fmt: skip


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp("models") / "tiny-qwen2.5-vl"
    processor = tiny_processor()
    tiny_model(processor).save_pretrained(folder)
    processor.save_pretrained(folder)
    return str(folder)


def test_one_command_scores_the_whole_bench(sample_dir, tmp_path, model, capsys):
    words = [
        "--model",
        model,
        "--out",
        str(tmp_path),
        "--source",
        str(sample_dir),
        "--size",
        "28",
        "--view",
        "o1",
    ]
    generation = json.dumps({"max_new_tokens": 2})
    assert (
        main(["bench", "run", *words, "--generation", generation, "--batch-size", "8", "--score", "--quiet"])
        == 0
    )
    assert "124 answered" in capsys.readouterr().out
    assert json.loads((tmp_path / "report.json").read_text())["count"]["items"] == 124
    told = json.loads((tmp_path / "run.json").read_text())
    assert told["backend"] == "transformers"
    assert told["generation"] == {"max_new_tokens": 2, "do_sample": False}


def test_what_is_no_model_of_images_is_one_error(sample_dir, tmp_path, model):
    options = {"opening": {"source": str(sample_dir)}, "view": get_recipe("o1", size=28), "limit": 2}
    with pytest.raises(BackendError, match="no model that answers about images"):
        run(str(tmp_path / "nothing"), out=tmp_path / "a", **options)
    with pytest.raises(BackendError, match="tokens, more than the"):
        run(model, out=tmp_path / "b", generation={"max_new_tokens": 10_000_000}, **options)


@pytest.mark.parametrize("preset", PRESETS, ids=lambda preset: preset.name)
def test_a_preset_fits_the_processor_of_its_family(preset, rows):
    view = view_for(preset.name, None, videos=True, size=28)
    assert view.kind == preset.kind
    collator = Collator(FAMILIES[OF_FAMILY[preset.name]](), view=view, target=None, prompts=PROMPTS)
    batch = collator([rows[0]])
    assert batch["input_ids"].shape[0] == 1
    assert batch.references[0].view.pictures == 32
