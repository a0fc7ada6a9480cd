"""The declared schema, on every path that rows take through `datasets`."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pytest
from support import grades_dict, published_object

from reasonknee_hf.dataset.row_features import RowFeatures
from reasonknee_hf.errors import OptionError
from reasonknee_hf.knee.description import row_features
from reasonknee_hf.knee.moaks import QUESTIONS
from reasonknee_hf.knee.records import scan_columns, to_row
from reasonknee_hf.knee.scans import Scan
from reasonknee_hf.volumes.volume import KneeVolume

pytestmark = pytest.mark.floor

SCAN = Scan(
    "0012", "00M", "0007", "00010", "left", "../data/images/0012/00M/0007_00010_2.nii.gz", None, "train", "2"
)

DIAGNOSES: list[Any] = [
    {"bounding_box": [1, 2, 3, 4, 5, 6], "final_diagnosis": {"patella_medial_BML": {"size": 1, "number": 0}}},
    {"femur_lateral_central_BML": {"percent_bml": 3}},
    {},
    [],
    None,
    "missing",
]


def published() -> list[dict[str, Any]]:
    records = []
    for diagnosis, number in zip(DIAGNOSES, (1, 7, 44, 58, 60, None), strict=True):
        prompt = json.dumps(QUESTIONS[number].prompt_key) + ": ?" if number else "?"
        records.append({"prompt": prompt, "answer": "A. Final diagnosis: B", "final_diagnosis": diagnosis})
    del records[-1]["final_diagnosis"]
    return records


def rows() -> list[dict[str, Any]]:
    return [
        to_row(record, SCAN, f"{place}.nii.gz", None if place % 2 else "m.nii.gz")[0]
        for place, record in enumerate(published())
    ]


def stored(column: str, value: Any) -> Any:
    """`value` of a decoded row as it was put in."""
    if isinstance(value, KneeVolume):
        return {"path": value.path, "bytes": None}
    if column in ("knee_side", "category") and value is not None:
        return row_features("full")[column].int2str(value)
    return value


def same_rows(found: list[dict[str, Any]]) -> None:
    assert [{c: stored(c, v) for c, v in row.items() if c != "extra"} for row in found] == rows()


def arrow_types() -> dict[str, str]:
    return {field.name: str(field.type) for field in row_features("full").arrow_schema}


def test_declared_columns() -> None:
    volume = "struct<bytes: binary, path: string>"
    expected = dict.fromkeys(("id", "scan_id", "patient_id", "visit", "study", "series"), "string")
    expected |= {"knee_side": "int64", "image": volume, "mask": volume, "question_id": "int16"}
    expected |= {"category": "int64", "structure": "string", "subregion": "string", "prompt": "string"}
    types = arrow_types()
    box, grades = types.pop("bbox"), types.pop("grades")
    expected |= dict.fromkeys(("cot", "answer", "final_diagnosis"), "string")
    assert types == expected
    assert list(arrow_types()) == list(row_features("full"))
    assert pa.types.is_fixed_size_list(row_features("full").arrow_schema.field("bbox").type)
    assert box.endswith("[6]")
    assert "int32" in box
    assert grades.endswith("struct<lesion: string, attribute: string, grade: int8>>")


def test_names_of_classes() -> None:
    features = row_features("full")
    assert features["knee_side"].names == ["right", "left"]
    expected = "BML, Cartilage, Osteophyte, Meniscus, Ligament & Tendon, Synovitis & Effusion, Periarticular"
    assert features["category"].names == expected.split(", ")


def test_configs() -> None:
    full = list(row_features("full"))
    assert list(row_features("high_fidelity")) == full
    assert list(row_features("bench")) == [column for column in full if column not in ("cot", "answer")]
    assert list(row_features("scans")) == full[1:9]
    for config in ("full", "scans"):
        without = [column for column in row_features(config) if column != "mask"]
        assert list(row_features(config, masks=False)) == without
    with pytest.raises(OptionError, match=r"'none'.*full, high_fidelity, bench, scans"):
        row_features("none")


def test_masks_know_the_names_of_structures() -> None:
    assert row_features("full", labels={"medial meniscus": 44})["mask"].labels == {"medial meniscus": 44}
    assert row_features("full")["mask"].mask
    assert not row_features("full")["image"].mask


@pytest.mark.parametrize(
    "clone", [copy.copy, copy.deepcopy, lambda f: f.copy(), lambda f: pickle.loads(pickle.dumps(f))]
)
def test_survives_copying_and_pickling(clone: Callable[[RowFeatures], RowFeatures]) -> None:
    features = row_features("full", labels={"a": 1})
    again = clone(features)
    assert type(again) is RowFeatures
    assert again == features
    assert again["mask"].labels == {"a": 1}
    assert again.decode_example(features.encode_example(rows()[0]))["image"].label == rows()[0]["id"]


def test_serialised_form_needs_nothing_of_this_package() -> None:
    plain = json.loads(json.dumps(row_features("full").to_dict()))
    assert plain["image"]["_type"] == plain["mask"]["_type"] == "Nifti"


# --- paths through datasets ---------------------------------------------------------------------------------


def as_map(folder: Path) -> datasets.Dataset:
    features = row_features("full")
    return datasets.Dataset.from_generator(lambda: iter(rows()), features=features, cache_dir=str(folder))


def as_stream() -> datasets.IterableDataset:
    return datasets.IterableDataset.from_generator(lambda: iter(rows()), features=row_features("full"))


def test_stream() -> None:
    found = list(as_stream())
    same_rows(found)
    assert [row["image"].label for row in found] == [row["id"] for row in rows()]
    assert found[0]["mask"].label == rows()[0]["id"]


def test_map_style(tmp_path: Path) -> None:
    table = as_map(tmp_path)
    same_rows(list(table))
    assert table[1]["image"].label == rows()[1]["id"]
    batch = table[0:2]
    assert [volume.label for volume in batch["image"]] == [row["id"] for row in rows()[:2]]
    assert {field.name: str(field.type) for field in table.data.table.schema} == arrow_types()


def test_rows_of_scans_are_named_by_scan() -> None:
    scans = [scan_columns(SCAN, "a.nii.gz", "b.nii.gz")]
    stream = datasets.IterableDataset.from_generator(lambda: iter(scans), features=row_features("scans"))
    (row,) = stream
    assert row["image"].label == row["mask"].label == SCAN.scan_id


@pytest.mark.parametrize("features", [None, "declared"])
def test_parquet_round_trip(tmp_path: Path, features: str | None) -> None:
    as_map(tmp_path / "a").to_parquet(str(tmp_path / "rows.parquet"))
    declared = row_features("full") if features else None
    again = datasets.Dataset.from_parquet(
        str(tmp_path / "rows.parquet"), features=declared, cache_dir=str(tmp_path / "b")
    )
    kept = ("id", "patient_id", "series", "bbox", "grades", "final_diagnosis", "question_id", "cot")
    for found, row in zip(again.select_columns(list(kept)), rows(), strict=True):
        assert found == {column: row[column] for column in kept}
    if features:
        same_rows(list(again))


def test_pandas_keeps_identifiers_as_text(tmp_path: Path) -> None:
    columns = ["id", "patient_id", "study", "series"]
    frame = as_map(tmp_path / "a").select_columns(columns).to_pandas()
    assert frame["patient_id"].tolist() == ["0012"] * len(rows())
    again = datasets.Dataset.from_pandas(frame, preserve_index=False)
    assert again.to_list() == [{column: row[column] for column in columns} for row in rows()]


def test_map_and_filter_keep_the_schema(tmp_path: Path) -> None:
    changed = as_map(tmp_path).map(lambda row: {"extra": len(row["prompt"])})
    changed = changed.filter(lambda row: row["extra"] > 0)
    same_rows(list(changed))
    assert {name: kind for name, kind in changed.features.items() if name != "extra"} == row_features("full")
    declared = RowFeatures({**row_features("full"), "extra": datasets.Value("int64")})
    same_rows(list(as_stream().map(lambda row: {"extra": 1}, features=declared)))


def test_selected_columns(tmp_path: Path) -> None:
    for table in (as_map(tmp_path), as_stream()):
        chosen = list(table.select_columns(["id", "bbox", "grades"]))
        assert chosen == [{c: row[c] for c in ("id", "bbox", "grades")} for row in rows()]


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_formats(tmp_path: Path, kind: str) -> None:
    if kind == "torch":
        pytest.importorskip("torch")
    columns = ["id", "bbox", "question_id", "prompt"]
    for table in (as_map(tmp_path), as_stream()):
        found = list(table.select_columns(columns).with_format(kind))
        for row, expected in zip(found, rows(), strict=True):
            assert row["id"] == expected["id"]
            if expected["bbox"] is not None:
                assert row["bbox"].tolist() == expected["bbox"]
                assert "int" in str(row["bbox"].dtype)
    batch = as_map(tmp_path / "fresh").with_format(kind, columns=["id", "prompt"])[:2]
    assert list(batch["id"]) == [row["id"] for row in rows()[:2]]


def test_what_was_never_there_stays_apart_from_what_was_null(tmp_path: Path) -> None:
    as_map(tmp_path / "a").to_parquet(str(tmp_path / "rows.parquet"))
    again = datasets.Dataset.from_parquet(str(tmp_path / "rows.parquet"), cache_dir=str(tmp_path / "b"))
    for table in (as_stream(), as_map(tmp_path / "c"), again):
        found = [dict(row) for row in table.select_columns(["grades", "final_diagnosis"])]
        assert [published_object(row) for row in found] == [*DIAGNOSES[:-1], None]
        assert [row["final_diagnosis"] is None for row in found] == [False] * 5 + [True]
        assert [grades_dict(row) for row in found] == [
            {"patella medial BML": {"size": 1, "number": 0}},
            {"femur lateral central BML": {"percent_bml": 3}},
            {},
            {},
            None,
            None,
        ]
