"""Commands take the second dataset by its name, or by that of a config of it."""

from __future__ import annotations

import json

import datasets
import pytest
from huggingface_hub import constants

import reasonknee_hf as rk
from reasonknee_hf.cli import main
from reasonknee_hf.tumor.tumor_files import SOURCE, VOLUMES
from reasonknee_hf.tumor.tumor_sample import tumor_sample_folder

SAMPLE = ("--source", "sample")


@pytest.mark.parametrize("wanted", ["bench_00000", "BDMAP_00001500", "BDMAP_00009000"])
@pytest.mark.parametrize("kind", ["png", "html"])
def test_show_finds_rows_and_scans(wanted, kind, tmp_path):
    out = tmp_path / f"case.{kind}"
    page = ["--html"] if kind == "html" else []
    assert main(["show", wanted, "--dataset", "deeptumorvqa", "--out", str(out), *page, *SAMPLE]) == 0
    if kind == "html" and wanted.startswith("bench"):
        row = next(
            iter(rk.load_dataset("deeptumorvqa/benchmark", split="test", streaming=True, source="sample"))
        )
        assert row["question"][:30] in out.read_text("utf-8")


def test_show_of_an_unknown_id_is_one_line(tmp_path, capsys):
    assert main(["show", "bench_99999", "--dataset", "deeptumorvqa", *SAMPLE]) == 1
    assert "no row and no scan has the id 'bench_99999'" in capsys.readouterr().err


def test_export_says_what_the_dataset_says_first(tmp_path):
    out = tmp_path / "out"
    told = ["export", str(out), "deeptumorvqa/benchmark", "--split", "test", "--limit", "2"]
    assert main([*told, "--view", "middle", *SAMPLE]) == 0
    lines = [json.loads(line) for line in (out / "data.jsonl").read_text("utf-8").splitlines()]
    rows = rk.load_dataset("deeptumorvqa/benchmark", split="test", streaming=True, source="sample").take(2)
    assert [one["messages"][-1]["content"] for one in lines] == [row["answer"] for row in rows]


def test_records_about_no_volume_are_written_without_volumes(tmp_path):
    out = str(tmp_path / "agents")
    assert main(["convert", out, "--config", "deeptumorvqa/agent_sft", *SAMPLE]) == 0
    written = datasets.load_dataset(out, cache_dir=str(tmp_path / "cache"))
    assert datasets.get_dataset_config_names(out) == ["agent_sft"]
    for split, rows in written.items():
        ours = rk.load_dataset("deeptumorvqa/agent_sft", split=split, streaming=True, source="sample")
        assert list(rows) == list(ours)


def test_a_dataset_without_masks_gets_no_column_of_them(tmp_path):
    rk.convert(tmp_path / "out", "deeptumorvqa/benchmark", source="sample", on_error="skip")
    rows = datasets.load_dataset(
        str(tmp_path / "out"), "benchmark_volumes", split="test", cache_dir=str(tmp_path / "cache")
    )
    assert rows.column_names == ["scan_id", "image"]


def test_download_fetches_the_volumes_of_both_repositories(origin, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(constants, "HF_ASSETS_CACHE", str(tmp_path / "assets"))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    for name in ("REASONKNEE_CACHE", "REASONKNEE_CACHE_SIZE"):
        monkeypatch.setenv(name, "")
    for repo, part in ((SOURCE, "release"), (VOLUMES, "volumes")):
        root = tumor_sample_folder() / part
        paths = [path for path in root.rglob("*") if path.is_file()]
        origin.put_tree(repo, {path.relative_to(root).as_posix(): path.read_bytes() for path in paths})
    for config, split in (("benchmark", "test"), ("train", "train")):
        told = ["download", f"deeptumorvqa/{config}", "--split", split, "--images", "--endpoint", origin.url]
        assert main(told) == 0, capsys.readouterr().err
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
        rows = rk.load_dataset(
            f"deeptumorvqa/{config}", split=split, streaming=True, endpoint=origin.url, on_error="null"
        )
        assert all(row["image"].array().any() for row in rows if row["image"] is not None)
        monkeypatch.delenv("HF_HUB_OFFLINE")
