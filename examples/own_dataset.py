"""A dataset of one's own: questions about chest CT in JSON lines, with reasoning, and volumes in another folder.

{"VolumeName": "valid_1_a_1.nii.gz", "Question": "...", "Answer": "<think>...</think><answer>B</answer>"}

import own_dataset
rk.load_dataset("chest", split="train", streaming=True, source="questions/", images="volumes/")
"""

from __future__ import annotations

import re
from typing import Any

from datasets import Value

from reasonknee_hf.dataset.builder import RowsBuilder, RowsConfig, configs_of
from reasonknee_hf.dataset.contract import Config, Description, Records, make_known
from reasonknee_hf.dataset.files_release import FileScan, FilesRelease
from reasonknee_hf.dataset.row_features import RowFeatures
from reasonknee_hf.hub.fs.filesystem import ReasonKneeFileSystem
from reasonknee_hf.volumes.feature import VolumeFeature

FILES = {"all": {"train": "train.jsonl", "test": "test.jsonl"}}
TEXT = Value("string")


def open_release(source: str, images: str, **kept: Any) -> FilesRelease:
    opened = [
        ReasonKneeFileSystem(source=place, skip_instance_cache=True, **kept) for place in (source, images)
    ]
    return FilesRelease(CHEST, opened[0], FILES, opened[1])


def features(config: str, release: Any, masks: bool) -> RowFeatures:
    scan = {"scan_id": TEXT, "image": VolumeFeature(across="S")}  # slices lie along head and feet
    return RowFeatures(
        scan if config == "scans" else {"id": TEXT, **scan, "question": TEXT, "cot": TEXT, "answer": TEXT}
    )


def scan_row(scan: FileScan, image: str | None, mask: str | None) -> dict[str, Any]:
    return {"scan_id": scan.scan_id, "image": image and {"bytes": None, "path": image}}


def row(record: Any, scan: FileScan, image: str | None, mask: str | None) -> Any:
    said = re.fullmatch(r"(?s)<think>(.*)</think><answer>(.*)</answer>", record.get("Answer") or "")
    asked = {"question": record.get("Question"), "cot": said and said[1], "answer": said and said[2]}
    return {"id": f"{scan.scan_id}-{record.get('Id')}", **scan_row(scan, image, mask), **asked}, []


CHEST = Description(
    name="chest", title="Chest questions", text="Questions about chest CT.", source="me/chest", revision="main",
    licence="cc-by-4.0", configs={"asked": Config("All."), "scans": Config("Volumes.", asks=False)},
    records=lambda path: Records(image="VolumeName", prompt="Question"),
    open=open_release, open_options=("source", "images"), features=features, row=row, scan_row=scan_row,
    unlisted=lambda name, split="": FileScan(str(name).removesuffix(".nii.gz"), str(name), split),
    categories=(), questions={}, question_of=lambda text: None, builder=f"{__name__}:Chest",
)  # fmt: skip


class Chest(RowsBuilder):
    dataset = CHEST
    BUILDER_CONFIGS = configs_of(CHEST, RowsConfig)
    DEFAULT_CONFIG_NAME = "asked"


make_known("chest", f"{__name__}:CHEST")
