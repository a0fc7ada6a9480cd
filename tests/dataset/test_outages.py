"""An outage is never data: whatever an endpoint does, `on_error` loses no row to it, and it is named for what it is."""

from __future__ import annotations

import gzip

import pytest
from hub.faults import cut, html, ignore_range, shifted, short_range, status, swapped, without
from support import files_below

import reasonknee_hf
from reasonknee_hf import errors
from reasonknee_hf.hub.wire import mirrors
from reasonknee_hf.volumes import volume_cache
from reasonknee_hf.volumes.volume import KneeVolume

REPO = "someone/knees"


@pytest.fixture(autouse=True)
def _fresh(monkeypatch):
    monkeypatch.setenv("REASONKNEE_RETRY_TIME", "0.1")
    monkeypatch.setattr(mirrors, "_health", {})
    monkeypatch.setattr(volume_cache, "_cache", None)


@pytest.fixture
def hub(origin, sample_dir):
    origin.put_tree(REPO, files_below(sample_dir))
    return origin


def scans(hub, **options):
    return reasonknee_hf.load_dataset("scans", split="test", source=REPO, endpoint=hub.url, **options)


def complete(rows, sample_dir) -> bool:
    clean = reasonknee_hf.load_dataset("scans", split="test", streaming=True, source=str(sample_dir))
    found = [(row["scan_id"], row["image"] is not None, row["mask"] is not None) for row in rows]
    return found == [(row["scan_id"], True, True) for row in clean]


@pytest.mark.parametrize("match", ["data/images", "masks_a"])
@pytest.mark.parametrize(
    "fault",
    [
        status(404, X_Error_Code="EntryNotFound"), status(403), html, swapped(), swapped(headers=False), cut(100),
        without("Content-Length"), status(429, Retry_After="3600"), ignore_range, shifted(7, lie=True), short_range,
    ],
)  # fmt: skip
def test_no_row_is_lost(hub, sample_dir, fault, match, tmp_path):
    ds = scans(hub, on_error="skip", streaming=True)
    hub.faults(fault, match=match)
    try:
        found = list(ds)
    except FileNotFoundError:
        pytest.fail("an outage taken for a missing file")
    except errors.EndpointError:
        found = None
    assert found is None or complete(found, sample_dir)
    assert not reasonknee_hf.report(ds)


@pytest.mark.parametrize("fault", [status(404), html, swapped(headers=False)])
@pytest.mark.parametrize("on_error", ["skip", "null"])
def test_nothing_of_it_stays(hub, sample_dir, fault, on_error, tmp_path):
    hub.faults(fault, match="data/images|masks_a")
    with pytest.raises(Exception) as caught:  # datasets puts an error of its own around it
        scans(hub, on_error=on_error, cache_dir=str(tmp_path))
    assert isinstance(caught.value.__cause__ or caught.value, errors.EndpointError)
    hub.clear()
    mirrors._health.clear()
    prepared = scans(hub, on_error=on_error, cache_dir=str(tmp_path))
    assert complete(prepared, sample_dir)
    assert not reasonknee_hf.report(prepared)


def test_a_damaged_copy_beside_a_good_one(hub, second_origin, sample_dir):
    second_origin.put_tree(REPO, files_below(sample_dir))
    hub.faults(swapped(headers=False), match="data/images")
    ds = reasonknee_hf.load_dataset(
        "scans",
        split="test",
        streaming=True,
        source=REPO,
        endpoint=[hub.url, second_origin.url],
        on_error="skip",
    )
    assert complete(ds, sample_dir)


def test_what_is_broken_in_the_release_is_skipped_all_the_same(origin, sample_dir):
    files = files_below(sample_dir)
    clean = reasonknee_hf.load_dataset("scans", split="train", streaming=True, source=str(sample_dir))
    name = "data/images/" + next(iter(clean))["image"].path.rpartition("data/images/")[2]
    files[name] = gzip.compress(gzip.decompress(files[name]))[:-3000]
    origin.put_tree(REPO, files)
    ds = reasonknee_hf.load_dataset(
        "scans", split="train", streaming=True, source=REPO, endpoint=origin.url, on_error="skip"
    )
    assert len(list(ds)) > 0
    (fault,) = [f for f in reasonknee_hf.report(ds).faults if name.rpartition("/")[2] in f.reason]
    assert "is cut" in fault.reason


@pytest.mark.parametrize("code", [401, 404, 503])
def test_errors_of_the_network_name_the_row_and_give_no_advice_on_where_to_get_volumes(hub, code):
    row = next(iter(scans(hub, streaming=True)))
    hub.faults(status(code), match="data/images|masks_a")
    for column in ("image", "mask"):
        for touch in (KneeVolume.array, lambda volume: volume.shape):
            with pytest.raises(errors.EndpointError) as caught:
                touch(row[column])
            assert str(caught.value).startswith(f"{row['scan_id']}, reasonknee://")
            assert str(caught.value).count(row["scan_id"] + ", ") == 1
            assert str(code) in str(caught.value)
            assert "nda.nih.gov" not in str(caught.value)


def test_a_file_server_that_is_away_is_no_missing_file(tmp_path, sample_dir):
    volume = KneeVolume("http://127.0.0.1:9/x.nii.gz", label="row 7")
    for touch in (volume.array, lambda: volume.shape):
        with pytest.raises(OSError, match=r"127\.0\.0\.1") as caught:
            touch()
        assert not isinstance(caught.value, FileNotFoundError)


def test_shape_and_masks_without_ranges_fetch_the_whole_file_once(hub):
    row = next(iter(scans(hub, streaming=True)))
    hub.faults(ignore_range)
    hub.log.clear()
    shape = row["image"].shape
    assert row["mask"].array().shape == row["mask"].shape == shape
    whole = [request.path for request in hub.requests("/resolve/") if request.range is None]
    assert len(whole) == len(set(whole))
    assert any(path.endswith("masks_aa") for path in whole)


def test_where_a_box_lies_is_not_decided_by_an_outage(hub):
    ds = reasonknee_hf.load_dataset("full", split="test", streaming=True, source=REPO, endpoint=hub.url)
    row = next(row for row in ds if row["bbox"] is not None)
    row["image"].array()
    hub.faults(status(503), match="masks_a")
    with pytest.raises(errors.EndpointError, match="503"):
        row["image"].crop(row["bbox"])
    hub.clear()
    assert row["image"].crop(row["bbox"]).size
