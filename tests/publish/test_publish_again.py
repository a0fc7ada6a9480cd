"""A second call sees what changed since the first, and files that cannot be read follow `on_error`."""

from __future__ import annotations

import copy
import functools
import gzip
import importlib
import json
import shutil
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from publishing import HAS_PILLOW
from support import files_below, in_fresh_process

from reasonknee_hf.errors import PublishError, RecordError, VolumeDataError, VolumeFormatError
from reasonknee_hf.knee.description import open_release
from reasonknee_hf.publish.convert import convert
from reasonknee_hf.publish.row_selection import Selection


@pytest.fixture
def release(sample_dir, tmp_path) -> Path:
    """A release of its own, to change."""
    return Path(shutil.copytree(sample_dir, tmp_path / "release"))


def image_of(release: Path, number: int = 0) -> Path:
    opened = open_release(str(release))
    return Path(opened.find_image(opened.scans("test")[number]))


def written(out: Path, config: str, kind: str | None = None, **options) -> list[dict]:
    """The rows that a conversion says it wrote, of the config or one beside it."""
    done = convert(out, config, **({"splits": "test", "on_error": "null"} | options))
    folder = f"{options.get('name', config)}{kind or ''}/"
    files = [name for name in done.files if name.startswith(folder)]
    return [row for name in files for row in pq.read_table(out / name).to_pylist()]


# --- what changed ------------------------------------------------------------------------------------------------

BODIES = (
    "return row['category'] == 'BML'",
    "return row['category'] == 'Meniscus'",
    "return any(one == 1 for one in row)",
    "return any(one == 2 for one in row)",
    "return helper(row)\ndef helper(row): return 1",
    "return helper(row)\ndef helper(row): return 0",
    "return row['category'] in WANTED\nWANTED = {'BML', 'Meniscus'}",
    "return row['category'] in WANTED\nWANTED = {'Meniscus', 'Ligament & Tendon'}",
)


def test_filters_of_a_module_are_told_apart_by_their_code(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    told = []
    for number, body in enumerate(BODIES):
        (tmp_path / "a_filter.py").write_text(f"def keep(row):\n    {body}\n{'#' * number}\n")
        importlib.invalidate_caches()
        sys.modules.pop("a_filter", None)
        keep = importlib.import_module("a_filter").keep
        told += [Selection(where=one).describe()["where"] for one in (keep, functools.partial(keep))]
    assert len(set(told)) == len(told)
    code = """
    import a_filter
    from reasonknee_hf.publish.row_selection import Selection
    print(Selection(where=a_filter.keep).describe()["where"])
    """
    for seed in ("1", "2"):  # words in a set come in another order
        out = in_fresh_process(code, tmp_path, PYTHONHASHSEED=seed)
        assert out.strip() == told[-2]
    del sys.modules["a_filter"]


def counting(row) -> bool:
    global COUNT
    COUNT += 1
    return COUNT < 3


COUNT = 0


def test_a_filter_may_keep_state(sample_dir, tmp_path):
    rows = written(tmp_path / "o", "full", source=str(sample_dir), volumes="none", where=counting)
    assert len(rows) == 2


@pytest.mark.parametrize("on_error", ["null", "skip"])
def test_a_volume_that_appears_later_is_taken(release, tmp_path, on_error):
    options = {"source": str(release), "on_error": on_error}
    image = image_of(release)
    image.rename(tmp_path / "away")
    before = written(tmp_path / "o", "scans", **options)
    assert [row["image"] is not None for row in before] == ([False, True] if on_error == "null" else [True])
    (tmp_path / "away").rename(image)
    after = written(tmp_path / "o", "scans", **options)
    assert [row["image"] is not None for row in after] == [True, True]


@pytest.mark.skipif(not HAS_PILLOW, reason="drawn by Pillow")
@pytest.mark.parametrize("volumes", ["embed", "files"])
def test_a_volume_that_was_replaced_is_taken(release, tmp_path, volumes):
    out, image = tmp_path / "o", image_of(release)
    options = {"source": str(release), "volumes": volumes, "previews": True, "crops": True, "limit": 8}

    def look() -> tuple:
        stored = written(out, "full", "_volumes", **options)[0]
        stored = stored["image"]["bytes"] if volumes == "embed" else (out / stored["image_file"]).read_bytes()
        pictures = [row["preview"] for row in written(out, "full", **options)]
        return stored, pictures, written(out, "full", "_crops", **options)

    plain = bytearray(gzip.decompress(image.read_bytes()))
    image.write_bytes(plain)
    before = look()
    assert look() == before
    plain[352:] = plain[:351:-1]  # the same size, other voxels
    image.write_bytes(plain)
    after = look()
    assert after[0] == plain
    assert all(one != other for one, other in zip(before, after, strict=True))


def test_a_list_of_scans_that_was_edited_is_taken(sample_dir, tmp_path):
    ids = [scan.scan_id for scan in open_release(str(sample_dir)).scans("test")]
    listed = tmp_path / "list.csv"
    for scan_id in ids:
        listed.write_text(f"scan_id\n{scan_id}\n")
        options = {"source": str(sample_dir), "volumes": "none", "high_fidelity": str(listed)}
        assert {row["scan_id"] for row in written(tmp_path / "o", "high_fidelity", **options)} == {scan_id}


def test_names_do_not_depend_on_the_time_of_hub_files(origin, sample_dir, tmp_path):

    origin.put_tree("me/release", files_below(sample_dir))
    options = {"source": "me/release", "endpoint": origin.url, "on_error": "null", "splits": "test"}
    once, again = (convert(tmp_path / name, "scans", **options).files for name in "ab")
    assert once == again


# --- what cannot be read -----------------------------------------------------------------------------------------


def cut(content: bytes) -> bytes:
    return content[: len(content) // 2]


def wrong_checksum(content: bytes) -> bytes:
    return content[:-8] + bytes(4) + content[-4:]


def short(content: bytes) -> bytes:
    return gzip.compress(gzip.decompress(content)[:-1000])


def no_image(content: bytes) -> bytes:
    return b"<html>not here</html>" * 100


@pytest.mark.parametrize("spoil", [cut, wrong_checksum, short, no_image])
@pytest.mark.parametrize("volumes", ["embed", "files"])
def test_a_volume_that_cannot_be_read_follows_on_error(release, tmp_path, spoil, volumes):
    image = image_of(release)
    image.write_bytes(spoil(image.read_bytes()))
    scan_ids = [scan.scan_id for scan in open_release(str(release)).scans("test")]
    options = {"source": str(release), "volumes": volumes}
    kind = VolumeFormatError if spoil is no_image else VolumeDataError
    with pytest.raises(kind, match=rf"{scan_ids[0]}, {image.name}.*on_error="):
        written(tmp_path / "o", "scans", on_error="raise", **options)
    column = "image" if volumes == "embed" else "image_file"
    rows = written(tmp_path / "null", "scans", on_error="null", **options)
    assert [(row["scan_id"], row[column] is None) for row in rows] == list(
        zip(scan_ids, (True, False), strict=True)
    )
    rows = written(tmp_path / "skip", "scans", on_error="skip", **options)
    assert [row["scan_id"] for row in rows] == scan_ids[1:]


@pytest.mark.skipif(not HAS_PILLOW, reason="drawn by Pillow")
@pytest.mark.parametrize("drawn", [{"previews": True}, {"frames": 2}, {"crops": True}])
def test_pictures_and_crops_of_a_broken_volume_follow_on_error(release, tmp_path, drawn):
    image = image_of(release)
    image.write_bytes(cut(image.read_bytes()))
    first, second = (scan.scan_id for scan in open_release(str(release)).scans("test"))
    options = {"source": str(release), "volumes": "none", **drawn}
    with pytest.raises(VolumeDataError, match=rf"{first}_\d+.*on_error="):
        written(tmp_path / "o", "full", on_error="raise", where=has_box, **options)
    for on_error in ("null", "skip"):
        rows = written(
            tmp_path / on_error, "full", "_crops" if "crops" in drawn else None, on_error=on_error, **options
        )
        column = next(iter(drawn)).removesuffix("s") if "crops" in drawn or "previews" in drawn else "frames"
        assert {row["scan_id"] for row in rows if row[column] is not None} == {second}
        assert len({row["scan_id"] for row in rows}) == (1 if "crops" in drawn else 2)


def has_box(row) -> bool:
    return row["bbox"] is not None


# --- records of scans that no table lists --------------------------------------------------------------------------


@pytest.mark.parametrize("config", ["full", "records"])
def test_unlisted_records_of_other_patients_stay_out(release, tmp_path, config):
    array = release / "data/generate_data/test.json"
    records = json.loads(array.read_text("utf-8"))
    patient = records[0]["image"].split("/")[3]
    for other in ("9999999", patient):
        record = copy.deepcopy(records[0])
        record["image"] = (
            record["image"].replace(patient, other).replace("_1.nii", "_2.nii").replace("/00M/", "/48M/")
        )
        records.append(record)
    array.write_text(json.dumps(records))
    options = {"source": str(release), "volumes": "none"}
    rows = written(tmp_path / "o", config, patients=patient, **options)
    kept = [record for record in records if f"/{patient}/" in record["image"]]
    assert [row["prompt"] for row in rows] == [record["prompt"] for record in kept]
    assert len(written(tmp_path / "v", config, patients=patient, visits="48M", **options)) == 1
    if config == "full":
        with pytest.raises(RecordError, match="volume of no scan"):
            written(tmp_path / "raise", config, patients="9999999", on_error="raise", **options)
        written(tmp_path / "other", config, patients=patient, visits="00M", on_error="skip", **options)


@pytest.mark.parametrize("option", ["categories", "structures", "patients", "visits", "grades"])
def test_an_empty_choice_keeps_nothing(sample_dir, tmp_path, option):
    with pytest.raises(PublishError, match="keeps no row"):
        written(tmp_path / "o", "bench", source=str(sample_dir), volumes="none", **{option: []})
