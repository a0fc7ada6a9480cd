"""Descriptions in Croissant: every column is there, `mlcroissant` finds nothing wrong, records stream through them."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys

import pytest

from reasonknee_hf.errors import PublishError
from reasonknee_hf.knee.description import open_release
from reasonknee_hf.knee.release_croissant import release_croissant
from reasonknee_hf.publish.convert import convert
from reasonknee_hf.publish.croissant import version_croissant

Image = pytest.importorskip("PIL.Image", reason="previews are drawn by Pillow")


@pytest.fixture(scope="module")
def version(sample_dir, tmp_path_factory):
    out = tmp_path_factory.mktemp("version") / "knee"
    options = {"source": str(sample_dir), "on_error": "null", "limit": 4}
    return out, convert(out, "full", previews=True, frames=2, crops=True, **options)


def test_every_column_is_described(version):
    out, conversion = version
    told = json.loads((out / "croissant.json").read_text("utf-8"))
    assert told["conformsTo"] == "http://mlcommons.org/croissant/1.1"
    assert len(told["creator"]) == 8
    described = {one["@id"]: [field["name"] for field in one["field"]] for one in told["recordSet"]}
    assert described == {config.name: ["split", *config.features] for config in conversion.configs}
    (grades,) = (f for r in told["recordSet"] for f in r["field"] if f["@id"] == "full/grades")
    assert [part["name"] for part in grades["subField"]] == ["lesion", "attribute", "grade"]


def test_descriptions_of_others_stay(version):
    _, conversion = version
    theirs = {
        "distribution": [{"@id": "x-files"}, {"@id": "full-files"}],
        "recordSet": [{"@id": "x"}, {"@id": "full"}],
    }
    told = json.loads(version_croissant(json.dumps(theirs), conversion, "me/knee"))
    assert [one["@id"] for one in told["recordSet"]] == ["x", "full", "full_volumes", "full_crops"]
    assert [one["@id"] for one in told["distribution"]][:3] == ["repo", "x-files", "full-files"]
    with pytest.raises(PublishError, match="not JSON"):
        version_croissant("{", conversion, "me/knee")


def test_records_of_a_version_stream_through_it(version):
    mlc = pytest.importorskip("mlcroissant")
    out, _ = version
    described = mlc.Dataset(str(out / "croissant.json"), mapping={"repo": out})
    assert described.metadata.ctx.issues.errors == set()
    assert described.metadata.ctx.issues.warnings == set()
    found = list(described.records("full"))
    assert len(found) == 3 * 4
    assert {row["full/split"] for row in found} == {b"train", b"validation", b"test"}
    row = next(row for row in found if row["full/bbox"] is not None)
    assert len(row["full/bbox"]) == 6
    assert isinstance(row["full/preview"], Image.Image)
    volume = next(iter(described.records("full_volumes")))
    assert volume["full_volumes/image"][:2] == b"\x1f\x8b"


def test_records_of_the_release_stream_through_it(sample_dir, tmp_path):
    mlc = pytest.importorskip("mlcroissant")
    path = tmp_path / "r.json"
    path.write_text(json.dumps(release_croissant(open_release(str(sample_dir)))))
    described = mlc.Dataset(str(path), mapping={"repo": sample_dir})
    assert described.metadata.ctx.issues.errors == set()
    assert {one.id for one in described.metadata.distribution} >= {
        "volumes",
        "data/masks_aa",
        "data/masks_ab",
    }
    scans = list(described.records("scans_test"))
    listed = (sample_dir / "data/split_files/test_split.csv").read_text().splitlines()[1:]
    assert [row["scans_test/series_folder"].decode() for row in scans] == [
        line.split(",")[3] for line in listed
    ]
    published = json.loads((sample_dir / "data/generate_data/test.json").read_text("utf-8"))
    for row, record in itertools.islice(zip(described.records("records_test"), published, strict=False), 5):
        assert row["records_test/prompt"].decode() == record["prompt"]


def test_command(sample_dir):
    command = [sys.executable, "-m", "reasonknee_hf", "croissant", "--source", str(sample_dir)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["@type"] == "sc:Dataset"
