"""Chats and pictures as files: what readers find there, and what a run that was stopped goes on with."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from itertools import islice

import numpy as np
import pytest
from datasets import load_dataset as stock_load

from reasonknee_hf.cli import main
from reasonknee_hf.errors import OptionError, RecordError
from reasonknee_hf.train import conversation, export, get_recipe

Image = pytest.importorskip("PIL.Image")
EIGHT = {"view": get_recipe("eight", size=56), "target": "grades", "setting": "gt_region"}


def lines(out) -> list[dict]:
    return [json.loads(line) for line in (out / "data.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("form", ["messages", "sharegpt"])
def test_a_line_is_the_chat_of_its_row(rows, tmp_path, form) -> None:
    some, out = rows[:70], tmp_path / "out"
    assert export(some, out, format=form, view="o1", target="grades", system="Be brief.") == 70
    found = lines(out)
    assert [line["id"] for line in found] == [row["id"] for row in some]
    chat = conversation(some[3], view="o1", target="grades", system="Be brief.")
    texts = [message["content"][-1]["text"] for message in chat]
    if form == "messages":
        said = [(message["role"], message["content"]) for message in found[3]["messages"]]
        speakers = ["system", "user", "assistant"]
    else:
        said = [(turn["from"], turn["value"]) for turn in found[3]["conversations"]]
        speakers = ["system", "human", "gpt"]
    shown = [block["image"] for message in chat for block in message["content"] if block["type"] == "image"]
    texts[1] = "<image>" * len(shown) + texts[1]
    assert said == list(zip(speakers, texts, strict=True))
    for name, picture in zip(found[3]["images"], shown, strict=True):
        assert name.startswith(some[3]["scan_id"] + "/")
        assert np.array_equal(np.asarray(Image.open(out / name).convert("RGB")), np.asarray(picture))
    # rows that see the same share their pictures, in one folder a scan
    assert len(list(out.rglob("*.png"))) == len({*[r["scan_id"] for r in some]}) * len(shown)
    read = stock_load("json", data_files=str(out / "data.jsonl"), split="train")
    assert read.num_rows == 70
    (info,) = json.loads((out / "dataset_info.json").read_text()).values()
    assert {*info["columns"].values()} < {*read.column_names}


def test_a_video_has_the_frames_of_the_view(rows, tmp_path) -> None:
    av = pytest.importorskip("av")
    row, out = rows[0], tmp_path / "out"
    recipe = get_recipe("eight", size=(57, 61))
    export([row], out, frames="mp4", setting="gt_region", view=recipe, target="grades")
    (line,) = lines(out)
    assert line["messages"][0]["content"].startswith("<video>")
    (video,) = conversation(row, view=recipe, setting="gt_region", target="grades")[0]["content"][:1]
    with av.open(str(out / line["videos"][0])) as held:
        decoded = [frame.to_ndarray(format="gray") for frame in held.decode(video=0)]
        assert float(held.streams.video[0].average_rate) == recipe.fps
    assert len(decoded) == len(video["video"])
    height, width = video["video"].shape[1:3]
    for frame, shown in zip(decoded, video["video"][..., 0], strict=True):
        off = np.abs(frame[:height, :width].astype(int) - shown)
        assert off.mean() < 4


def test_a_stopped_run_goes_on_behind_the_last_whole_line(rows, tmp_path) -> None:
    whole, out = tmp_path / "whole", tmp_path / "out"
    export(rows[:40], whole, **EIGHT)
    export(rows[:15], out, **EIGHT)
    with (out / "data.jsonl").open("a") as file:
        file.write('{"id": "cut in the mid')
    stamps = {path: path.stat().st_mtime_ns for path in out.rglob("*.png")}
    assert export(rows[:40], out, **EIGHT) == 40
    assert (out / "data.jsonl").read_bytes() == (whole / "data.jsonl").read_bytes()
    assert all(path.stat().st_mtime_ns == stamp for path, stamp in stamps.items())
    names = sorted(p.relative_to(whole) for p in whole.rglob("*"))
    assert sorted(p.relative_to(out) for p in out.rglob("*")) == names


def test_rows_with_one_id_are_all_written(rows, tmp_path) -> None:
    twice = [rows[0], rows[1], rows[0]]
    export(twice[:2], tmp_path / "out", **EIGHT)
    assert export(twice, tmp_path / "out", **EIGHT) == 3
    assert [line["id"] for line in lines(tmp_path / "out")] == [row["id"] for row in twice]


def test_a_killed_command_goes_on(sample_dir, tmp_path) -> None:
    out = tmp_path / "out"
    arguments = [str(out), "--source", str(sample_dir), "--on-error", "skip", "--limit", "100"]
    command = subprocess.Popen([sys.executable, "-m", "reasonknee_hf", "export", *arguments])
    while not (out / "data.jsonl").exists() or len((out / "data.jsonl").read_bytes()) < 10_000:
        assert command.poll() is None
        time.sleep(0.01)
    os.kill(command.pid, signal.SIGKILL)
    command.wait()
    assert main(["export", *arguments]) == 0
    found = lines(out)
    assert len(found) == len({line["id"] for line in found}) == 100
    assert all((out / name).exists() for line in found for name in line["images"])


def test_what_cannot_be_right_is_refused(rows, tmp_path, capsys) -> None:
    out = tmp_path / "out"
    export(rows[:2], out, **EIGHT)
    with pytest.raises(
        OptionError, match=r"begun with other options \(setting: 'gt_region', now 'zero_shot'"
    ):
        export(rows[:2], out, **EIGHT | {"setting": "zero_shot"})
    with pytest.raises(OptionError, match="target=None"):
        export(rows, tmp_path / "none", target=None)
    with pytest.raises(OptionError, match="is no video"):
        export(rows, tmp_path / "none", view="o1", frames="mp4")
    with pytest.raises(OptionError, match="around the true box"):
        export(rows, tmp_path / "none", view="region", target="box_grades")
    with pytest.raises(RecordError, match="holds <image>"):
        export(rows, tmp_path / "held", **EIGHT, prompts={str(n): "An <image>?" for n in range(70)})
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").touch()
    with pytest.raises(OptionError, match="holds other files"):
        export(islice(rows, 1), tmp_path / "mine", **EIGHT)
    assert not (tmp_path / "none").exists()
    with pytest.raises(SystemExit):
        main(["export", str(out), "--view", "sideways"])
    assert "choose from" in capsys.readouterr().err
