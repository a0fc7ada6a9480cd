"""The main job over HTTP: rows, volumes and masks from an origin and from a real mirror of it."""

from __future__ import annotations

import io
import json
import random
import zipfile
from itertools import islice

import pytest
from support import files_below, in_fresh_process, plain

import reasonknee_hf
from hub.faults import Rule, ignore_range
from reasonknee_hf.knee.sample import write_sample

REPO = "someone/knees"
FILLER = 12_000_000


@pytest.fixture(scope="module")
def tree(tmp_path_factory) -> dict[str, bytes]:
    """The sample release with an archive of masks large enough for its share to tell."""
    files = files_below(write_sample(tmp_path_factory.mktemp("mirror") / "release", scans=6))
    archive = io.BytesIO(files["data/masks_aa"] + files["data/masks_ab"])
    with zipfile.ZipFile(archive, "a") as masks:
        noise = random.Random(0)
        for number in range(6):
            masks.writestr(f"masks/filler_{number}.bin", noise.randbytes(FILLER // 6))
    whole = archive.getvalue()
    files["data/masks_aa"], files["data/masks_ab"] = whole[:7_000_000], whole[7_000_000:]
    return files


def local_rows(tree, tmp_path):
    for path, content in tree.items():
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    return reasonknee_hf.load_dataset("full", split="train", streaming=True, source=str(tmp_path))


def test_first_row_with_a_mask_through_a_real_mirror(olah, olah_origin, tree, tmp_path):
    sha = olah_origin.put_tree(REPO, tree)
    expected = next(iter(local_rows(tree, tmp_path)))
    printed = in_fresh_process(
        """
        import json, sys
        import reasonknee_hf
        from datasets import load_dataset
        row = next(iter(load_dataset("reasonknee", split="train", streaming=True, source=sys.argv[1])))
        mask = row["mask"].array()
        print(json.dumps([row["id"], row["mask"].path, list(mask.shape), int(mask.sum())]))
        """,
        tmp_path,
        REPO,
        HF_ENDPOINT=olah,
    )
    row_id, path, shape, total = json.loads(printed)
    assert row_id == expected["id"]
    assert path.startswith(f"reasonknee://{REPO}@{sha}/data/masks/knee_")
    array = expected["mask"].array()
    assert (tuple(shape), total) == (array.shape, int(array.sum()))
    assert olah_origin.sent() < 3_000_000
    assert olah_origin.sent("masks_a") < FILLER / 4
    assert not olah_origin.requests("data/images")


def test_rows_alone_fetch_no_byte_of_a_volume_or_mask(origin, tmp_path):
    files = files_below(write_sample(tmp_path / "release", scans=36))
    origin.put_tree(REPO, files)
    stream = reasonknee_hf.load_dataset(
        "full", split="train", streaming=True, source=REPO, endpoint=origin.url
    )
    origin.log.clear()
    assert sum(1 for _ in islice(stream, 1000)) == 1000
    assert not origin.requests("data/images")
    assert not origin.requests("masks_")
    arrays = origin.requests("data/generate_data")
    assert len(arrays) == 1
    assert arrays[0].range is None


def test_rows_volumes_and_masks_equal_the_local_ones(origin, tree, tmp_path):
    origin.put_tree(REPO, tree)
    remote = reasonknee_hf.load_dataset(
        "full", split="train", streaming=True, source=REPO, endpoint=origin.url
    )
    rows = zip(remote, local_rows(tree, tmp_path), strict=True)
    seen = set()
    for ours, theirs in rows:
        volumes = {"image", "mask"}
        assert {k: v for k, v in plain(ours).items() if k not in volumes} == {
            k: v for k, v in plain(theirs).items() if k not in volumes
        }
        if ours["scan_id"] not in seen:
            seen.add(ours["scan_id"])
            assert (ours["image"].array() == theirs["image"].array()).all()
            assert (ours["mask"].array() == theirs["mask"].array()).all()
    assert len(origin.requests("data/images")) == len(seen)


def test_a_server_that_ignores_ranges_sends_each_part_once(origin, tree, tmp_path):
    origin.put_tree(REPO, tree)
    local_rows(tree, tmp_path)
    options = {"split": "train", "streaming": True}
    expected = {
        row["scan_id"]: row["mask"].array()
        for row in reasonknee_hf.load_dataset("scans", source=str(tmp_path), **options)
    }
    rows = reasonknee_hf.load_dataset("scans", source=REPO, endpoint=origin.url, **options)
    origin.faults(Rule(ignore_range, match="masks_a"))
    for row in rows:
        assert (row["mask"].array() == expected[row["scan_id"]]).all()
    whole = [request for request in origin.requests("masks_a") if request.range is None]
    assert len(whole) == len({request.path for request in whole}) <= 2
    assert origin.sent("masks_a") < 1.5 * sum(len(tree[f"data/masks_{part}"]) for part in ("aa", "ab"))


def test_the_box_lies_on_the_structure_that_was_drawn(sample_dir):
    release = reasonknee_hf.open_release(str(sample_dir))
    mapping = release.question_files()["question_subregion_mapping"]
    checked = 0
    for row in reasonknee_hf.load_dataset("full", split="train", streaming=True, source=str(sample_dir)):
        names = mapping[str(row["question_id"])]
        ids = [release.labels[name] for name in ([names] if isinstance(names, str) else names)]
        inside = sum(int((row["mask"].crop(row["bbox"]) == label).sum()) for label in ids)
        everywhere = sum(int((row["mask"].array() == label).sum()) for label in ids)
        assert inside == everywhere > 0
        assert row["image"].crop(row["bbox"]).shape == row["mask"].crop(row["bbox"]).shape
        checked += 1
    assert checked >= 62
