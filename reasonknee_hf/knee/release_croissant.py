"""The Croissant description of a release as it is published."""

from __future__ import annotations

from typing import Any

from reasonknee_hf.knee import layout
from reasonknee_hf.knee.knee_card import KNEE_CARD
from reasonknee_hf.knee.release import Release
from reasonknee_hf.knee.scans import SPLIT_COLUMNS
from reasonknee_hf.publish.croissant import (
    dataset_entry,
    field_entry,
    file_object,
    file_set,
    record_set,
    repository_entry,
    typed_entry,
)

_RECORD_TEXTS = ("image", "prompt", "answer")


def release_croissant(release: Release) -> dict[str, Any]:
    """Describes a release as it is published: volumes, archive parts, tables and annotation arrays.

    Records of its split tables and texts of its annotation arrays can be streamed through it. To read a local copy with
    `mlcroissant`, map the id `repo` to the folder.
    """
    paths = release.tree.entries()
    distribution = [repository_entry(KNEE_CARD.source_url, release.sha)]
    distribution.append(
        file_set("volumes", ["data/images/**/*.nii.gz"], "application/gzip", "MRI volumes, NIfTI")
    )
    records = []
    for path, entry in paths.items():
        if path.startswith((f"{layout.MASKS_FOLDER}_", f"{layout.MASKS_FOLDER}.")):
            told = {"sha256": entry.sha256} if entry.sha256 else {}
            text = "Piece of the zip archive of the masks; joined in order of their names they are one zip"
            distribution.append(file_object(path, "application/zip", text) | told)
    for split in release.splits:
        table = layout.split_table(split)
        distribution.append(file_object(table, "text/csv", f"Scans of the split {split}"))
        fields = [
            field_entry(f"scans_{split}", name, "sc:Text", {"fileObject": table}, name)
            for name in SPLIT_COLUMNS
        ]
        records.append(record_set(f"scans_{split}", fields, f"Scans of the split {split}"))
    for split in release.annotated_splits():
        array = layout.annotation_file(split)
        distribution.append(file_object(array, "application/json", f"Records of the split {split}"))
        fields = []
        for name in _RECORD_TEXTS:
            source = {"fileObject": {"@id": array}, "extract": {"jsonPath": f"$[*].{name}"}}
            fields.append(typed_entry(f"records_{split}/{name}", name, "sc:Text") | {"source": source})
        records.append(
            record_set(
                f"records_{split}",
                fields,
                f"Questions of the split {split}; final_diagnosis is left out: nested",
            )
        )
    return dataset_entry(
        KNEE_CARD, KNEE_CARD.name, KNEE_CARD.about, KNEE_CARD.source_url, distribution, records
    )
