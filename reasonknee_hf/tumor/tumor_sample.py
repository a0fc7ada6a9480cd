"""A synthetic release of DeepTumorVQA 2.0: every file of its layout, with the defects that are known of it."""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import json
import random
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from reasonknee_hf.dataset.sample_cache import kept_sample
from reasonknee_hf.hub.disk import write_file
from reasonknee_hf.tumor import tumor_files as files
from reasonknee_hf.tumor.question_types import QUESTIONS, Subtype

LAYOUT = 1  # raised when other files come to be written
TEST, TRAIN, POOL = 4, 3, 4
SHAPE = (24, 20, 12)
"""Voxels of a volume along left, back and head."""

_ORGANS = ("liver", "spleen", "kidney", "pancreas")
_GRADES = ("normal", "mild", "moderate", "severe")
_MP4 = struct.pack(">I4s4sI4s", 20, b"ftyp", b"isom", 0, b"mp42")  # a video without frames


def tumor_sample_folder() -> Path:
    """A folder with `release`, and `volumes` for the repository of training volumes; written when first asked for."""
    return kept_sample(f"tumor-{LAYOUT}", write_tumor_sample)


def write_tumor_sample(folder: str | Path, *, seed: int = 0) -> Path:
    """Writes a synthetic release to `folder/release`, and the volumes of training to `folder/volumes`.

    Its defects are those of the published one: records name pictures in folders that do not exist, `lesion` is a truth
    value, its text or a word, JSON holds the bare word NaN, some questions have three options, spacing and shape are
    text, benchmark questions stand in the pool too, and one record names a volume that is not shipped.

    Args:
        folder: Where to write.
        seed: The same seed gives the same bytes.
    """
    root = Path(folder)
    lot = random.Random(f"tumor {seed}")
    release, volumes = root / "release", root / "volumes"
    tested = [f"BDMAP_{1500 + n:08}" for n in range(TEST)]
    trained = [f"BDMAP_{9000 + n:08}" for n in range(TRAIN)]
    for number, scan in enumerate([*tested, *trained]):
        place = release / "benchmark/ct" if scan in tested else volumes / "image_only"
        write_file(place / scan / "ct.nii.gz", _volume(number, seed))
        part = "benchmark" if scan in tested else "train"
        _write_pictures(release / part, scan, _ORGANS if scan in tested else ())
    asked = [_record(lot, number, scan, kind) for number, (scan, kind) in enumerate(_plan(tested))]
    asked.append(_record(lot, len(asked), "BDMAP_00007777", QUESTIONS[1]))  # a volume that is not shipped
    _write_questions(release, asked)
    pool = [
        _record(lot, n, scan, QUESTIONS[1 + 5 * n % 42], "train") for n, scan in enumerate(trained * POOL)
    ]
    _write_table(release / "train/train_qa.csv", pool[: 2 * TRAIN])
    _write_table(release / "train/val_qa_pool.csv", [*pool[2 * TRAIN :], *asked[:POOL]])
    _write_text(
        release / files.TRAIN_IDS,
        f"# Volumes\n\nTake them from {files.VOLUMES}:\n\n```\n{' '.join(trained)}\n```\n",
    )
    for split, scans in (("train", trained[:2]), ("holdout", trained[2:])):
        lines = (json.dumps(_trajectory(scan)) + "\n" for scan in scans)
        _write_text(release / f"agent_sft/{split}.jsonl", "".join(lines))
    for name in files.TOOL_CACHES:
        told = {scan: _tool_answers(scan) for scan in (trained if "training" in name else tested)}
        whole = told if name == files.TOOL_CACHES[1] else {"cache": told}  # the outer key is optional
        _write_text(release / files.TOOL_CACHE.format(name), json.dumps(whole))
    _write_metadata(release, asked)
    _write_manifest(release)
    return root


def _plan(scans: list[str]) -> Iterator[tuple[str, Subtype]]:
    """Every subtype once, and half of them again: records of a volume lie together."""
    kinds = [*QUESTIONS.values(), *list(QUESTIONS.values())[::2]]
    share = -(-len(kinds) // len(scans))
    for place, scan in enumerate(scans):
        yield from ((scan, kind) for kind in kinds[place * share : (place + 1) * share])


def _record(
    lot: random.Random, number: int, scan: str, kind: Subtype, split: str = "bench"
) -> dict[str, Any]:
    organ = lot.choice(_ORGANS)
    truth, options = _answers(lot, kind)
    lot.shuffle(options)
    letters = "ABCD"[: len(options)]
    shown = " ".join(f"{letter}: {text}" for letter, text in zip(letters, options, strict=True))
    question = f"{kind.name.capitalize()}: what does this CT show of the {organ}?"
    return {
        "qid": f"{split}_{number:05}",
        "image_id": scan,
        "spacing": "[0.83 0.83 5.0]",
        "shape": str(SHAPE),
        "sex": lot.choice(["F", "M", None]),
        "age": lot.choice([64.0, 71.0, None]),
        "scanner": float("nan"),
        "contrast": lot.choice(["portal venous", float("nan")]),
        "question": question,
        "answer": truth,
        "mc_question": f"{question} {shown}",
        "correct_option": letters[options.index(truth)],
        "organ": organ,
        "lesion": lot.choice([True, False, "True", "False", "lesion"]),
        "question_type": kind.stage,
        "question_subtype": kind.name,
        "requires_tools": ["segment_organ", "measure"],
        "slice_path": f"benchmark/slices/{scan}_{organ}.png",
        "video_path": f"benchmark/videos/{scan}_{organ}.mp4",
        "whole_slice_path": f"benchmark/slices_whole/{scan}.png",
        "whole_video_path": f"benchmark/videos_whole/{scan}.mp4",
    }


def _answers(lot: random.Random, kind: Subtype) -> tuple[str, list[str]]:
    """The right answer, and all options; two, three or four."""
    if kind.answer_type == "binary":
        return lot.choice(["Yes", "No"]), ["Yes", "No"]
    if kind.answer_type == "numeric":
        value = round(lot.uniform(1, 1800), 1)
        options = [f"{value * share:,.1f}" for share in (1, 0.5, 1.5, 2)]
        return options[0], options
    chosen = list(_GRADES[: 3 + kind.id % 2])
    return lot.choice(chosen), chosen


def _volume(number: int, seed: int) -> bytes:
    """A CT in Hounsfield units: air, a body, and an organ whose place tells the volume."""
    import nibabel

    voxels = np.full(SHAPE, -1000, np.int16)
    voxels[3:-3, 3:-3] = np.random.default_rng([seed, number]).integers(
        20, 80, (SHAPE[0] - 6, SHAPE[1] - 6, SHAPE[2])
    )
    voxels[6:10, 6 + number : 9 + number, 4:8] = 150
    image = nibabel.Nifti1Image(voxels, np.diag([0.83, 0.83, 5.0, 1.0]))
    image.set_qform(image.affine, 1)
    return gzip.compress(image.to_bytes(), 4, mtime=0)


def _write_pictures(part: Path, scan: str, organs: tuple[str, ...]) -> None:
    write_file(part / f"images_2d/whole/{scan}.png", _png(sum(scan.encode())))
    write_file(part / f"videos/whole/{scan}.mp4", _MP4)
    for organ in organs:
        write_file(part / f"images_2d/organ/{scan}_{organ}.png", _png(sum((scan + organ).encode())))


def _png(grey: int) -> bytes:
    """A picture of 8 x 8 pixels of one grey."""
    rows = zlib.compress((b"\x00" + bytes([grey % 256]) * 8) * 8)
    chunks = ((b"IHDR", struct.pack(">IIBBBBB", 8, 8, 8, 0, 0, 0, 0)), (b"IDAT", rows), (b"IEND", b""))
    told = (
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(told)


def _write_questions(release: Path, asked: list[dict[str, Any]]) -> None:
    _write_text(release / "benchmark/test_qa.jsonl", "".join(json.dumps(record) + "\n" for record in asked))
    kinds = sorted({record["question_type"] for record in asked})
    head = {"version": "4.1", "num_questions": len(asked), "num_images": TEST, "question_types": kinds}
    _write_text(release / "benchmark/test_qa.json", json.dumps({**head, "questions": asked}, indent=1))


def _write_table(path: Path, records: list[dict[str, Any]]) -> None:
    """Other names of columns than the benchmark has, and cells as a table writer leaves them."""
    names = [name for name in records[0] if not name.endswith("_path")]
    titles = {"qid": "QID", "image_id": "Image ID", "mc_question": "MC Question"}
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow([titles.get(name, name.replace("_", " ").title()) for name in names])
    for record in records:
        cells = [record[name] for name in names]
        table.writerow(["" if cell is None or cell != cell else cell for cell in cells])
    _write_text(path, text.getvalue())


def _trajectory(scan: str) -> dict[str, Any]:
    call = json.dumps({"name": "segment_organ", "arguments": {"target": "liver"}})
    turns = [
        ("system", "You read CT volumes."),
        ("human", f"Volume {scan}: how large is the liver?"),
        ("function_call", call),
        ("observation", '{"found": true}'),
        ("gpt", "<think>The liver was found.</think><answer>1,480.0</answer>"),
    ]
    tool = {
        "name": "segment_organ",
        "description": "Finds an organ.",
        "parameters": {"target": {"type": "string"}},
    }
    return {
        "conversations": [{"from": who, "value": text} for who, text in turns],
        "tools": json.dumps([tool]),
    }


def _tool_answers(scan: str) -> dict[str, Any]:
    measured = {organ: {"volume": 100.0 + sum(scan.encode()) % 50} for organ in _ORGANS}
    return {"segment": {organ: {"found": True} for organ in _ORGANS}, "measure": measured}


def _write_metadata(release: Path, asked: list[dict[str, Any]]) -> None:
    lines = ["subtype_name,task_group,n_benchmark,n_full_dataset"]
    lines += [f"{kind.name},{kind.stage.title()},{kind.benchmark},{kind.pool}" for kind in QUESTIONS.values()]
    _write_text(release / "metadata/subtype_schema.csv", "\n".join(lines) + "\n")
    for name in ("leaderboard", "leaderboard_freeform"):
        head = "model,params,input,mode,overall,recog,meas,visr,medr,source"
        _write_text(
            release / f"metadata/{name}.csv",
            f"{head}\nmade up,4B,2D,direct,50.0,60.0,40.0,50.0,45.0,nobody\n",
        )
    scans = dict.fromkeys(record["image_id"] for record in asked)
    reports = "".join(f"{scan},made up\n" for scan in scans)
    _write_text(release / "metadata/reports_and_metadata.csv", f"image_id,report\n{reports}")
    _write_text(
        release / "README.md",
        "# A synthetic release in the layout of DeepTumorVQA 2.0\n\nNothing here comes from a patient.\n",
    )


def _write_manifest(release: Path) -> None:
    """Hash, two blanks and path of each file but the manifest and the card."""
    paths = sorted(path for path in release.rglob("*") if path.is_file() and path.name != "README.md")
    lines = (
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.relative_to(release).as_posix()}\n"
        for path in paths
    )
    _write_text(release / "MANIFEST.sha256", "".join(lines))


def _write_text(path: Path, text: str) -> None:
    write_file(path, text.encode())
