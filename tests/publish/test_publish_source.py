"""A published version is a source: the same rows, volumes and masks by key, wherever it lies."""

from __future__ import annotations

import json
import pickle
import shutil

import pytest
from huggingface_hub import constants
from publishing import REPO, push_bench, rows_of
from support import files_below

from reasonknee_hf.dataset.loading import load_dataset
from reasonknee_hf.errors import OptionError, ReleaseError
from reasonknee_hf.hub.disk import our_folder
from reasonknee_hf.hub.fs.stretch import stretch_url
from reasonknee_hf.knee.description import open_release
from reasonknee_hf.publish.convert import convert
from reasonknee_hf.publish.job import make_job
from reasonknee_hf.publish.options import ConvertOptions
from reasonknee_hf.verify import verify


def all_rows(source: str, config: str, split: str, **options) -> list[dict]:
    return list(load_dataset(config, split=split, streaming=True, source=source, on_error="null", **options))


def told(row: dict) -> dict:
    """A row with the content of its volumes instead of where they lie."""
    return {
        name: value if name not in ("image", "mask") or value is None else bytes(value.array().tobytes())
        for name, value in row.items()
    }


@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_rows_and_volumes_of_a_folder_are_the_same(full_folder, sample_dir, split):
    before, after = (all_rows(str(place), "full", split) for place in (sample_dir, full_folder))
    listed = [row for row in before if row["image"] is not None and row["study"]]
    assert len(listed) > 50
    assert list(map(told, after)) == list(map(told, before))


@pytest.mark.parametrize("volumes", ["files", "embed"])
def test_scans_of_a_folder_are_the_same(sample_dir, tmp_path, volumes):
    convert(tmp_path, "scans", source=str(sample_dir), on_error="null", volumes=volumes)
    before, after = (all_rows(str(place), "scans", "test") for place in (sample_dir, tmp_path))
    assert list(map(told, after)) == list(map(told, before))


def test_references_to_files_of_this_machine_are_the_same(sample_dir, tmp_path):
    options = {"source": str(sample_dir), "images": str(sample_dir / "data/images"), "on_error": "null"}
    convert(tmp_path, "full", volumes="reference", splits="test", **options)
    before, after = (all_rows(str(place), "full", "test") for place in (sample_dir, tmp_path))
    assert list(map(told, after)) == list(map(told, before))


def test_records_of_a_folder_are_the_same(sample_dir, tmp_path):
    convert(tmp_path, "records", source=str(sample_dir), on_error="null", volumes="none")
    convert(tmp_path / "again", "records", source=str(tmp_path), on_error="null", volumes="none")
    release = open_release(str(tmp_path))
    for name in ("train", "test"):
        path = f"data/generate_data/{name}.json"
        assert json.loads(release.tree.read(path)) == json.loads((sample_dir / path).read_text("utf-8"))


def test_a_pushed_version_is_read_by_key(origin, sample_dir, tmp_path):
    push_bench(origin, sample_dir, config="full")
    options = {"endpoint": origin.url}
    rows = load_dataset("full", split="test", streaming=True, source=REPO, on_error="null", **options)
    before = all_rows(str(sample_dir), "full", "test")
    found = list(rows)
    assert [row["id"] for row in found] == [row["id"] for row in before]
    volumes = [row["image"] for row in found if row["image"] is not None]
    assert [volume.path.rpartition("/")[2] for volume in volumes] == [
        row["image"].path.rpartition("/")[2] for row in before if row["image"] is not None
    ]
    assert told({"image": pickle.loads(pickle.dumps(volumes[0]))}) == told({"image": before[0]["image"]})
    read = [one for one in origin.requests("full_volumes/", "GET") if ".parquet" in one.path]
    assert read
    assert all(one.range is not None for one in read)  # no table of volumes is fetched whole


def test_rows_are_prepared_scored_and_converted_again(full_folder, sample_dir, tmp_path):
    rows = load_dataset(
        "bench", split="test", source=str(full_folder), on_error="null", cache_dir=str(tmp_path)
    )
    assert [row["id"] for row in rows] == [row["id"] for row in rows_of(sample_dir, "bench", "test")]
    options = {"on_error": "null", "splits": "test"}
    convert(tmp_path / "a", "full", source=str(full_folder), **options)
    convert(tmp_path / "b", "full", source=str(sample_dir), **options)
    import pyarrow.parquet as pq

    for folder in ("full", "full_volumes"):
        one, other = (
            [
                row
                for path in sorted((tmp_path / name / folder).glob("*.parquet"))
                for row in pq.read_table(path).to_pylist()
            ]
            for name in "ab"
        )
        assert one == other


def test_the_second_opening_reads_no_table(origin, sample_dir):
    push_bench(origin, sample_dir, config="full", splits="test", volumes="none")
    open_release(REPO, endpoint=origin.url)
    origin.clear()
    open_release(REPO, endpoint=origin.url)
    assert not [one.path for one in origin.requests("/resolve/", "GET") if one.path.endswith(".parquet")]


def test_what_a_version_lacks_is_said(bench_folder, caplog):
    release = open_release(str(bench_folder))
    assert release.annotated_splits() == ("test",)


def test_stretches_of_a_file(tmp_path):
    import fsspec

    (tmp_path / "t").write_bytes(bytes(range(100)))
    url = stretch_url(str(tmp_path / "t"), 10, 20, "x.nii.gz")
    filesystem, name = fsspec.core.url_to_fs(url)
    assert filesystem.size(name) == 20
    assert filesystem.cat_file(name) == bytes(range(10, 30))
    assert filesystem.cat_file(name, start=5, end=50) == bytes(range(15, 30))
    assert filesystem.cat_file(name, start=-3) == bytes(range(27, 30))
    with fsspec.open(url, "rb") as file:
        file.seek(4)
        assert file.read(2) == bytes([14, 15])
    with pytest.raises(FileNotFoundError):
        filesystem.info("nothing")
    assert files_below(tmp_path).keys() == {"t"}


def test_a_version_without_answers_is_no_source_of_rows_with_answers(sample_dir, tmp_path):
    convert(tmp_path, "bench", source=str(sample_dir), on_error="null", volumes="none")
    assert all_rows(str(tmp_path), "bench", "test")
    with pytest.raises(
        OptionError, match=r"written without answer, cot: its rows are those of the config bench"
    ):
        load_dataset("full", streaming=True, source=str(tmp_path))


def test_a_version_of_scans_with_expert_masks_knows_which_those_are(sample_dir, tmp_path):
    for config in ("full", "high_fidelity"):
        convert(tmp_path, config, source=str(sample_dir), on_error="null", volumes="none")
    before, after = (
        [row["id"] for row in load_dataset("high_fidelity", split="test", streaming=True, source=str(place), **options)]
        for place, options in ((sample_dir, {"masks": False}), (tmp_path, {}))
    )  # fmt: skip
    assert after == before != []


def test_several_versions_in_one_place_are_put_together(sample_dir, tmp_path, caplog):
    options = {"source": str(sample_dir), "on_error": "null", "volumes": "none", "splits": "test"}
    convert(tmp_path, "full", categories="BML", name="few", **options)
    convert(tmp_path, "full", categories=("BML", "Meniscus"), name="more", **options)
    convert(tmp_path, "bench", **options)
    names = [row["id"] for row in all_rows(str(sample_dir), "full", "test", category=("BML", "Meniscus"))]
    assert 0 < len(names) < 124
    found = [row["id"] for row in load_dataset("full", split="test", streaming=True, source=str(tmp_path))]
    assert sorted(found) == sorted(names)
    assert f"{124 - len(names)} rows of test that only its version without answers has" in caplog.text


def test_what_is_in_its_tables_is_found_by_verify(full_folder):
    release = open_release(str(full_folder))
    report = verify(release, deep=True)
    assert report.release == f"folder {full_folder}"
    count = {finding.kind: finding.count for finding in report.findings}
    assert not count.keys() & {"volumes-absent", "masks-absent", "mask-missing"}
    lost = [scan for scan in release.all_scans() if release.find_image(scan) is None]
    assert count["volume-missing"] == len(lost) > 0


def test_messages_name_what_was_asked_for(origin, sample_dir):
    push_bench(origin, sample_dir, config="full", splits="test", volumes="none")
    release = pickle.loads(pickle.dumps(open_release(REPO, endpoint=origin.url)))
    assert release.tree.name.startswith(f"{REPO} at ")


def test_a_stream_goes_on_where_other_tables_are_kept(origin, sample_dir, tmp_path, monkeypatch):
    push_bench(origin, sample_dir, config="full", splits="test", volumes="none")
    ids, state = [], None
    for home in "ab":  # two machines
        monkeypatch.setattr(constants, "HF_ASSETS_CACHE", str(tmp_path / home))
        rows = load_dataset("full", split="test", streaming=True, source=REPO, endpoint=origin.url)
        if state is not None:
            rows.load_state_dict(state)
        for row in rows:
            ids.append(row["id"])
            if state is None and len(ids) == 70:
                break
        state = rows.state_dict()
    assert ids == [row["id"] for row in rows_of(sample_dir, "full", "test")]


def test_a_token_inside_an_endpoint_is_not_for_workers(sample_dir, tmp_path):
    for endpoint in ({"url": "http://h", "token": "hidden"}, [{"url": "http://h", "token": "hidden"}]):
        with pytest.raises(OptionError, match=r"endpoint= is to be a URL .* token= of convert") as caught:
            convert(tmp_path / "out", source="me/x", endpoint=endpoint)
        assert "hidden" not in str(caught.value)


def test_tables_that_were_pruned_are_written_again(full_folder):
    before = all_rows(str(full_folder), "full", "test", masks=False)
    lost = our_folder("published").rglob("test.json")
    assert [path.unlink() for path in lost]
    assert [row["id"] for row in all_rows(str(full_folder), "full", "test", masks=False)] == [
        row["id"] for row in before
    ]


def test_a_version_of_a_version_names_where_it_comes_from(origin, sample_dir, full_folder, tmp_path):
    push_bench(origin, sample_dir, volumes="none")
    commit = origin.store.repos[REPO].refs["main"]
    given = {"volumes": "none", "on_error": "null"}
    done = convert(tmp_path / "a", "bench", source=REPO, endpoint=origin.url, **given)
    assert (done.job.origin, done.job.sha) == (REPO, commit)
    assert f"| source | {REPO} |" in (tmp_path / "a" / "README.md").read_text()
    done = convert(tmp_path / "b", "bench", source=str(full_folder), **given)
    assert (done.job.origin, done.job.sha) == ("a local copy of a derived version", None)


@pytest.mark.parametrize(("volumes", "requests"), [("none", 2), ("embed", 3)])
def test_the_first_row_of_a_pushed_version_costs_few_requests(
    origin, sample_dir, tmp_path, monkeypatch, volumes, requests
):
    """A manifest for each config, and the table of its rows; no table of volumes is opened."""
    monkeypatch.setattr(constants, "HF_ASSETS_CACHE", str(tmp_path))
    push_bench(origin, sample_dir, volumes=volumes)
    origin.clear()
    row = next(iter(load_dataset("bench", split="test", streaming=True, source=REPO, endpoint=origin.url)))
    assert row["prompt"]
    listing, *behind = [request.path for request in origin.log]
    assert "/revision/" in listing
    assert len(behind) == requests, behind


@pytest.mark.parametrize("config", ["reasonknee/bench", "deeptumorvqa/benchmark"])
@pytest.mark.parametrize(("kind", "spoil"), [("", "cut"), ("", "other"), ("_volumes", "cut")])
def test_a_table_that_its_manifest_does_not_tell_is_one_error(config, kind, spoil, tmp_path):
    convert(tmp_path / "out", config, source="sample", on_error="skip")
    load_dataset(config, split="test", streaming=True, source=str(tmp_path / "out"))
    name = config.partition("/")[2] + kind
    table = next((tmp_path / "out" / name).glob("*.parquet"))
    data = table.read_bytes()
    table.write_bytes(data[:-100] if spoil == "cut" else data[:500] + b"?" + data[501:])
    if spoil == "other":  # as long as it was: what was kept of it before is still true
        shutil.rmtree(our_folder("published"))
    with pytest.raises(ReleaseError, match="is not the file that its manifest tells"):
        load_dataset(config, split="test", streaming=True, source=str(tmp_path / "out"))


def test_workers_open_the_commit_that_a_url_of_a_branch_led_to(origin, sample_dir, tmp_path):
    origin.put_tree(REPO, files_below(sample_dir))
    given = ConvertOptions("bench", source=f"hf://datasets/{REPO}@main", endpoint=origin.url)
    job, release = make_job(given, tmp_path, None)
    assert pickle.loads(pickle.dumps(job.release)).open().identity == release.identity
