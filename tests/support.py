"""Helpers that several tests share."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

from bigjson import RECORDS_PER_SCAN, write_big_json


def in_fresh_process(code: str, cwd: Path, *arguments: str, **env: str) -> str:
    """Runs `code` in a new interpreter and returns what it printed."""
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *arguments],
        cwd=cwd,
        env=os.environ | env,
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def plain(row: dict) -> dict:
    """A row with its volumes replaced by their paths, so that rows can be compared."""
    return {k: v.path if k in ("image", "mask") and v is not None else v for k, v in row.items()}


def files_below(root: Path) -> dict[str, bytes]:
    """Content of every file by its path below `root`."""
    return {p.relative_to(root).as_posix(): p.read_bytes() for p in sorted(root.rglob("*")) if p.is_file()}


def text_release(root: Path, scans: int, records: int | None = None) -> Path:
    """A release of tables and a train array only: no volume, no mask. The last scan may have fewer records."""
    table = ["patient_id,time,study_folder,series_folder,knee_side,path,image_filepath,label_filepath"]
    for number in range(scans):
        patient, series, side = 9000001 + number, 10300001 + number, 1 + number % 2
        image = f"../data/images/{patient}/00M/20041222_{series}_{side}.nii.gz"
        table.append(
            f"{patient},00M,20041222,{series},{side},-,{image},../data/masks/knee_{number:03}.nii.gz"
        )
    for folder in ("split_files", "generate_data"):
        (root / "data" / folder).mkdir(parents=True)
    (root / "data/split_files/train_split.csv").write_text("\n".join(table) + "\n")
    write_big_json(
        root / "data/generate_data/train.json",
        records=scans * RECORDS_PER_SCAN if records is None else records,
    )
    return root


def published_object(row: dict) -> object:
    """The record's `final_diagnosis` as published: the same keys in the same order, the same numbers.

    Returns `None` both where it was null (`row["final_diagnosis"] == "null"`) and where the record had none
    (`row["final_diagnosis"] is None`).
    """
    text = row["final_diagnosis"]
    return None if text is None else json.loads(text)


def grades_dict(row: dict) -> dict[str, dict[str, int]] | None:
    """`grades` as `{lesion: {attribute: grade}}` with only the keys that existed; `None` if it is null."""
    if row["grades"] is None:
        return None
    rebuilt: dict[str, dict[str, int]] = {}
    for item in row["grades"]:
        rebuilt.setdefault(item["lesion"], {})[item["attribute"]] = int(item["grade"])
    return rebuilt
