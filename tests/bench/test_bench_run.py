"""Runs over a benchmark: every question answered once, whatever happens; volumes decoded once; settings kept."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from bench_cases import answer
from hub.faults import status
from model_server import ModelServer
from support import files_below

import reasonknee_hf as rk
from reasonknee_hf.cli import main
from reasonknee_hf.errors import EndpointError, OptionError, StateError
from reasonknee_hf.prompting.recipes import get_recipe
from reasonknee_hf.running import PRESETS, preset_of, run
from reasonknee_hf.running.asking import BackendError
from reasonknee_hf.running.presets import view_for
from reasonknee_hf.volumes.volume_cache import volume_cache

pytest.importorskip("PIL")
VIEW = get_recipe("o1", size=28)


@pytest.fixture(scope="module")
def rows(sample_dir):
    return list(
        rk.load_dataset("bench", split="test", streaming=True, source=str(sample_dir), on_error="null")
    )


def lines(out: Path) -> list[dict]:
    return [json.loads(line) for line in (out / "predictions.jsonl").read_text().splitlines()]


def answered(out: Path) -> Counter[str]:
    return Counter(line["id"] for line in lines(out) if "prediction" in line)


SEEN: list[list[str]] = []


def function(chat):
    """What the backend `function` calls: says what it was shown."""
    *blocks, text = chat[-1]["content"]
    SEEN.append([block["type"] for block in blocks])
    return f"{len(blocks)} pictures, {len(text['text'])} letters"


def test_each_volume_is_decoded_once_for_all_its_questions(sample_dir, tmp_path, rows):
    cache = volume_cache()
    cache.clear()
    before = cache.decodes
    done = run(function, backend="function", out=tmp_path, view=VIEW, opening={"source": str(sample_dir)})
    assert done.answered == len(rows) == 124
    assert cache.decodes - before == len({row["scan_id"] for row in rows}) <= len(rows) / 60
    assert answered(tmp_path) == Counter(row["id"] for row in rows)
    assert SEEN[-1] == ["image"] * 32
    told = json.loads((tmp_path / "run.json").read_text())
    assert told["model"].endswith(":function")
    assert told["view"]["size"] == 28
    scans = [json.loads(line) for line in (tmp_path / "scans.jsonl").read_text().splitlines()]
    again = tmp_path / "again"
    run(function, backend="function", out=again, view=VIEW, opening={"source": str(sample_dir)})
    assert [json.loads(line) for line in (again / "scans.jsonl").read_text().splitlines()] == scans


def test_a_run_goes_on_and_asks_errors_again(sample_dir, tmp_path, rows):
    wanted = {row["id"] for row in rows}
    lot, asked = random.Random(1), Counter()

    def falls(chat):
        text = chat[-1]["content"][-1]["text"]
        asked[text] += 1
        if lot.random() < 0.2:
            raise RuntimeError("CUDA out of memory")
        return "an answer"

    options = {"backend": "function", "out": tmp_path, "view": VIEW, "opening": {"source": str(sample_dir)}}
    first = run(falls, **options)
    assert 0 < first.failed < 60
    assert first.answered + first.failed == 124
    errors = [line for line in lines(tmp_path) if "error" in line]
    assert errors[0]["error"] == "RuntimeError: CUDA out of memory"
    with (tmp_path / "predictions.jsonl").open("a") as file:
        file.write('{"id": "cut off in the mid')
    while run(falls, **options).answered < 124:
        pass
    assert answered(tmp_path) == Counter(wanted)
    once = run(falls, **options)
    assert (once.answered, once.failed) == (124, 0)
    report = tmp_path / "report.json"
    words = [
        "bench",
        "score",
        str(tmp_path / "predictions.jsonl"),
        "--source",
        str(sample_dir),
        "--rounds",
        "0",
    ]
    assert main([*words, "--json", str(report)]) == 0
    assert "error" not in json.loads(report.read_text())["invalid"]


def test_a_server_with_faults_answers_every_question_once(sample_dir, tmp_path, rows, monkeypatch):
    monkeypatch.setenv("REASONKNEE_RETRY_TIME", "20")
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    options = {"backend": "openai", "out": tmp_path, "view": VIEW, "opening": {"source": str(sample_dir)}}
    with ModelServer(faults=3) as server:
        for _ in range(20):
            if run("mine", url=server.url, concurrency=4, **options).failed == 0:
                break
        assert answered(tmp_path) == Counter(row["id"] for row in rows)
        assert server.keys == {"Bearer secret"}
    assert "secret" not in (tmp_path / "run.json").read_text()


def test_kill_9_at_ten_places_loses_nothing_and_asks_nothing_twice(sample_dir, tmp_path, rows):
    log = tmp_path / "answered.log"
    server = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("model_server.py")), "2", str(log)],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        url = server.stdout.readline().strip()
        out = tmp_path / "run"
        command = [
            sys.executable, "-m", "reasonknee_hf", "bench", "run", "--model", "mine", "--backend", "openai",
            "--url", url, "--out", str(out), "--source", str(sample_dir), "--size", "28", "--view", "o1",
            "--concurrency", "2", "--quiet",
        ]  # fmt: skip
        environment = os.environ | {"REASONKNEE_RETRY_TIME": "20"}
        lot = random.Random(5)
        for _ in range(10):
            running = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
            before = len(lines(out)) if (out / "predictions.jsonl").exists() else 0
            target = before + lot.randrange(1, 12)
            while running.poll() is None:
                if (out / "predictions.jsonl").exists():
                    count = (out / "predictions.jsonl").read_bytes().count(b"\n")
                    if count >= target:
                        running.send_signal(signal.SIGKILL)
                        break
                time.sleep(0.002)
            running.wait()
        for _ in range(20):
            if (
                subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, timeout=120).returncode
                == 0
            ):
                break
        assert answered(out) == Counter(row["id"] for row in rows)
    finally:
        server.kill()
        server.wait()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"setting": "gt_region"}, "setting: 'zero_shot', now 'gt_region'"),
        ({"view": get_recipe("o1", size=56)}, "view: "),
        ({"generation": {"max_tokens": 3}}, "generation: "),
    ],
)
def test_another_setting_is_refused_in_the_same_folder(sample_dir, tmp_path, options, said):
    common = {
        "backend": "function",
        "out": tmp_path,
        "view": VIEW,
        "opening": {"source": str(sample_dir)},
        "limit": 2,
    }
    run(function, **common)
    with pytest.raises(StateError, match=said):
        run(function, **common | options)


def test_what_cannot_be_asked_is_one_error_before_a_volume_is_read(sample_dir, tmp_path, monkeypatch):
    monkeypatch.setenv("REASONKNEE_RETRY_TIME", "0.1")
    opening = {"opening": {"source": str(sample_dir)}, "view": VIEW}
    cache = volume_cache()
    cache.clear()
    before = cache.decodes
    with pytest.raises(BackendError, match="names no function"):
        run("nowhere:function", backend="function", out=tmp_path / "1", **opening)
    with pytest.raises(OptionError, match="needs url="):
        run("mine", backend="openai", out=tmp_path / "2", **opening)
    with pytest.raises(BackendError, match="no model server"):
        run("mine", backend="openai", url="http://127.0.0.1:9/v1", out=tmp_path / "3", **opening)
    with (
        ModelServer(models=("other",)) as server,
        pytest.raises(BackendError, match="no model 'mine', but other"),
    ):
        run("mine", backend="openai", url=server.url, out=tmp_path / "4", **opening)
    with pytest.raises(OptionError, match="no backend 'vllm'"):
        run("mine", backend="vllm", out=tmp_path / "5", **opening)
    with pytest.raises(OptionError, match="generation= is a mapping"):
        run(function, backend="function", out=tmp_path / "7", generation=[1], **opening)
    with pytest.raises(OptionError, match="asks nothing"):
        run(function, backend="function", out=tmp_path / "8", config="scans", **opening)
    with pytest.raises(OptionError, match="no such option: 'batch_size'"):
        run(function, backend="function", out=tmp_path / "9", batch_size=3, **opening)
    with pytest.raises(OptionError, match="size and most of a view are above 0"):
        run(function, backend="function", out=tmp_path / "10", view_options={"size": -3}, **opening)
    with pytest.raises(OptionError, match="around the true box"):
        run(function, backend="function", out=tmp_path / "6", **opening | {"view": "region"})
    assert cache.decodes == before


def test_a_server_that_refuses_is_asked_once(sample_dir, tmp_path):
    with ModelServer() as server:
        server.status = 400
        with pytest.raises(BackendError, match=r"400.*context length exceeded"):
            run("mine", backend="openai", url=server.url, concurrency=1, out=tmp_path, view=VIEW,
                opening={"source": str(sample_dir)})  # fmt: skip
        assert sum(server.asked.values()) == 1


def test_a_redirect_takes_the_key_nowhere(sample_dir, tmp_path, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    with ModelServer() as server, ModelServer() as other:
        for status in (302, 307):
            server.status, server.elsewhere = status, f"{other.url}/chat/completions"
            with pytest.raises(BackendError, match=f"answered {status}"):
                run("mine", backend="openai", url=server.url, out=tmp_path / str(status), view=VIEW,
                    opening={"source": str(sample_dir)})  # fmt: skip
        assert not other.keys


def test_answers_under_way_are_kept_when_a_run_ends(sample_dir, tmp_path):
    """The server refuses the fifth question; the others that were asked at that time are answered."""
    with ModelServer() as server:
        server.refused_from = 5
        with pytest.raises(BackendError, match="answered 401"):
            run("mine", backend="openai", url=server.url, concurrency=4, out=tmp_path, view=VIEW,
                opening={"source": str(sample_dir)})  # fmt: skip
        assert sum(answered(tmp_path).values()) == sum(server.answered.values()) == 4


def test_a_scan_without_volume_is_an_error_of_its_questions_and_the_run_goes_on(sample_dir, tmp_path):
    root = tmp_path / "release"
    shutil.copytree(sample_dir, root)
    rows = [*rk.load_dataset("bench", split="test", streaming=True, source=str(root))]
    lost = rows[0]["scan_id"]
    Path(rows[0]["image"].path).unlink()
    done = run(function, backend="function", out=tmp_path / "run", view=VIEW, opening={"source": str(root)})
    assert done.answered == sum(row["scan_id"] != lost for row in rows)
    assert done.failed == sum(row["scan_id"] == lost for row in rows) > 20
    assert "VolumeMissingError" in lines(tmp_path / "run")[0]["error"]


def test_a_release_out_of_reach_ends_the_run_and_the_next_one_goes_on(
    origin, sample_dir, tmp_path, monkeypatch
):
    monkeypatch.setenv("REASONKNEE_RETRY_TIME", "0.1")
    origin.put_tree("me/knees", files_below(sample_dir))
    opening = {"source": "me/knees", "endpoint": origin.url}
    options = {"backend": "function", "out": tmp_path / "run", "view": VIEW, "opening": opening}
    calls = []

    def falls(chat):
        calls.append(chat[-1]["content"][-1]["text"])
        if len(calls) == 30:
            origin.faults(status(503), match=r"GET .*nii")
        return "an answer"

    with pytest.raises(EndpointError):
        run(falls, **options)
    assert 30 <= len(answered(tmp_path / "run")) < 124
    assert not [line for line in lines(tmp_path / "run") if "error" in line]
    origin.faults()
    assert run(falls, **options).answered == 124
    assert len(calls) == 124


def test_two_runs_do_not_share_a_folder(sample_dir, tmp_path):
    options = {"backend": "function", "out": tmp_path, "view": VIEW, "opening": {"source": str(sample_dir)}}

    def asks_again(chat):
        said.append(subprocess.run(
            [sys.executable, "-m", "reasonknee_hf", "bench", "run", "--model", "json:dumps", "--backend", "function",
             "--out", str(tmp_path), "--source", str(sample_dir)],
            capture_output=True, text=True, timeout=100,
        ).stderr)  # fmt: skip
        return "an answer"

    said: list[str] = []
    run(asks_again, **options, limit=1)
    assert "another process is at this run" in said[0]


@pytest.mark.parametrize("given", [None, 7, ["a text"]])
def test_what_a_function_returns_is_a_text_or_an_error(sample_dir, tmp_path, given):
    done = run(lambda chat: given, backend="function", out=tmp_path, view=VIEW, limit=2,
               opening={"source": str(sample_dir)})  # fmt: skip
    assert (done.answered, done.failed) == (0, 2)
    assert f"a {type(given).__name__}, not a text" in lines(tmp_path)[0]["error"]


@pytest.mark.parametrize(
    ("name", "text"),
    [("run.json", "[]"), ("run.json", "{"), ("predictions.jsonl", "{}\n"), ("predictions.jsonl", "no\n")],
)
def test_a_folder_of_something_else_is_refused(sample_dir, tmp_path, name, text):
    options = {"backend": "function", "out": tmp_path, "view": VIEW, "opening": {"source": str(sample_dir)}}
    run(function, **options, limit=1)
    (tmp_path / name).write_text(text)
    with pytest.raises(StateError, match=name):
        run(function, **options, limit=1)


def test_a_tuned_model_is_asked_what_it_was_asked_in_training(sample_dir, tmp_path):
    asked: dict[str, list[str]] = {}
    for setting in ("zero_shot", "sft", "gt_region", "sft_gt_region"):
        said = asked.setdefault(setting, [])
        run(lambda chat, said=said: said.append(chat[-1]["content"][-1]["text"]) or "an answer",
            backend="function", out=tmp_path / setting, setting=setting, view=VIEW, limit=2, config="full",
            opening={"source": str(sample_dir)})  # fmt: skip
        assert json.loads((tmp_path / setting / "run.json").read_text())["setting"] == setting
    assert asked["sft"] == asked["zero_shot"] != asked["gt_region"] == asked["sft_gt_region"]


def test_a_longer_run_goes_on_from_a_shorter_one(sample_dir, tmp_path):
    options = {"backend": "function", "out": tmp_path, "view": VIEW, "opening": {"source": str(sample_dir)}}
    run(function, **options, limit=3)
    assert run(function, **options, limit=70).answered == 70
    assert len({line["prompt"] for line in lines(tmp_path)}) > 30


def test_many_errors_in_a_row_end_the_run(sample_dir, tmp_path):
    def never(chat):
        raise RuntimeError("no")

    with pytest.raises(BackendError, match="20 questions in a row"):
        run(never, backend="function", out=tmp_path, view=VIEW, opening={"source": str(sample_dir)})


def test_the_command_from_a_name_to_a_table(sample_dir, tmp_path, rows, capsys, monkeypatch):
    truth = rk.load_dataset("full", split="test", streaming=True, source=str(sample_dir))
    table = {row["prompt"].strip(): answer(row) for row in truth}
    monkeypatch.setitem(sys.modules, "knows", type(sys)("knows"))
    sys.modules["knows"].it = lambda chat: table[chat[-1]["content"][-1]["text"].strip()]
    words = ["--backend", "function", "--view", "o1", "--size", "28", "--source", str(sample_dir), "--quiet"]
    assert main(["bench", "run", "--model", "knows:it", "--out", str(tmp_path / "a"), *words]) == 0
    capsys.readouterr()
    both = ["--score", "--compare-with", str(tmp_path / "a")]
    assert main(["bench", "run", "--model", "knows:it", "--out", str(tmp_path / "b"), *words, *both]) == 0
    told = capsys.readouterr().out
    assert "124 answered, 0 ended in errors" in told
    report = json.loads((tmp_path / "b/report.json").read_text())
    assert report["count"]["items"] == 124
    assert "paper" in (tmp_path / "b/report.md").read_text().lower()
    made = ["report.png", "comparison.json", "comparison.md", "comparison.png"]
    assert all((tmp_path / "b" / name).stat().st_size for name in made)


def test_the_second_dataset_runs_too(tmp_path, capsys):
    done = run(
        lambda chat: "A", backend="function", config="deeptumorvqa/benchmark", target="option",
        view=get_recipe("middle", kind="images"), out=tmp_path, opening={"source": "sample"},
    )  # fmt: skip
    assert done.answered == 63
    assert done.failed == 1  # its volume is not shipped
    words = ["bench", "score", str(done.predictions), "--dataset", "deeptumorvqa", "--source", "sample"]
    assert main([*words, "--form", "mc"]) == 0
    assert "error" in capsys.readouterr().out


def test_presets_are_found_by_name_and_changed_by_options():
    names = {
        "Qwen/Qwen2.5-VL-7B-Instruct": "qwen2.5-vl", "Qwen/Qwen3-VL-4B-Instruct": "qwen3-vl",
        "OpenGVLab/InternVL3-8B": "internvl", "google/medgemma-4b-it": "gemma-3", "google/gemma-3-4b-it": "gemma-3",
        "llava-hf/llava-onevision-qwen2-7b-ov-hf": "llava-onevision", "HuggingFaceTB/SmolVLM2-2.2B": "smolvlm",
    }  # fmt: skip
    assert {preset_of(name).name for name in names} == {preset.name for preset in PRESETS}
    assert all(preset_of(name).name == wanted for name, wanted in names.items())
    assert preset_of("gpt-5") is None
    assert view_for("Qwen/Qwen2.5-VL-7B", None, videos=True).kind == "video"
    assert view_for("Qwen/Qwen2.5-VL-7B", None, videos=False).kind == "images"
    assert view_for("Qwen/Qwen2.5-VL-7B", None, videos=True, size=56).size == 56
    assert view_for("gpt-5", "upstream", videos=False).kind == "images"
