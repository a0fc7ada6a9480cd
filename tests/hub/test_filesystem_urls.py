"""URLs of `reasonknee://` as paths: which source they mean, whoever is asked."""

from __future__ import annotations

import datasets
import fsspec
import pytest

from reasonknee_hf.errors import OptionError
from reasonknee_hf.hub.fs.filesystem import ReasonKneeFileSystem

pytestmark = pytest.mark.floor

REPO = "owner/knees"
TABLES = {"data/a.csv": b"v\n1\n", "data/b.csv": b"v\n2\n", "README.md": b"# knees\n"}


@pytest.fixture
def hub(origin):
    origin.sha = origin.put_tree(REPO, TABLES)
    return origin


def root_of(fs: ReasonKneeFileSystem) -> str:
    return fs.unstrip_protocol("")


def test_every_call_takes_urls_and_answers_with_urls(hub):
    fs = ReasonKneeFileSystem(REPO, endpoint=hub.url)
    root = root_of(fs)
    assert fs.cat(f"{root}/data/a.csv") == b"v\n1\n"
    assert fs.glob(f"{root}/data/*.csv") == [f"{root}/data/a.csv", f"{root}/data/b.csv"]
    assert fs.find(root) == [f"{root}/{path}" for path in sorted(TABLES)]
    assert fs.ls(f"{root}/data", detail=False) == fs.glob(f"{root}/**/*.csv")
    assert fs.info(root)["name"] == root
    assert fs.info(f"{root}/data")["type"] == "directory"
    assert fs.cat([f"{root}/data/b.csv"]) == {f"{root}/data/b.csv": b"v\n2\n"}
    assert fs.cat_ranges([f"{root}/data/b.csv", "data/a.csv"], [2, 2], [3, 3]) == [b"2", b"1"]
    assert fs.open(f"{root}/data/a.csv").read() == b"".join(fs.stream(f"{root}/data/a.csv")) == b"v\n1\n"
    assert fs.url(f"{root}/data/a.csv") == fs.url("data/a.csv")
    assert fs.glob("data/*.csv") == ["data/a.csv", "data/b.csv"]


def test_a_url_of_another_source_is_not_answered_from_this_one(hub, second_origin):
    later = hub.put_tree(REPO, {**TABLES, "data/a.csv": b"v\n9\n"})
    other = hub.put_tree("somebody/else", {"data/a.csv": b"v\n7\n"})
    second_origin.put_tree(REPO, TABLES)
    fs = ReasonKneeFileSystem(REPO, revision=hub.sha, endpoint=hub.url)
    strangers = [
        root_of(ReasonKneeFileSystem(REPO, revision=later, endpoint=hub.url)),
        root_of(ReasonKneeFileSystem("somebody/else", revision=other, endpoint=hub.url)),
        root_of(ReasonKneeFileSystem(REPO, endpoint=second_origin.url)),
    ]
    for stranger in strangers:
        with pytest.raises(OptionError, match="does not lie in"):
            fs.cat(f"{stranger}/data/a.csv")
        with pytest.raises(OptionError, match="one by one"):
            [
                file.open().read()
                for file in fsspec.open_files([fs.url("data/a.csv"), f"{stranger}/data/a.csv"])
            ]
    read = [fsspec.open(f"{root}/data/a.csv").open().read() for root in (root_of(fs), *strangers)]
    assert read == [b"v\n1\n", b"v\n9\n", b"v\n7\n", b"v\n1\n"]


def test_what_a_url_does_not_say_may_be_an_option(hub, monkeypatch):
    later = hub.put_tree(REPO, {**TABLES, "data/a.csv": b"v\n9\n"})
    for revision, content in ((hub.sha, b"v\n1\n"), (later, b"v\n9\n")):
        with fsspec.open(f"reasonknee://{REPO}/data/a.csv", revision=revision, endpoint=hub.url) as file:
            assert file.read() == content


def test_a_folder_is_the_same_by_path_and_by_url(tmp_path):
    (tmp_path / "a.csv").write_bytes(b"v\n1\n")
    fs = ReasonKneeFileSystem(tmp_path)
    assert fs.cat(f"{root_of(fs)}/a.csv") == b"v\n1\n"
    filesystem, path = fsspec.core.url_to_fs(f"{root_of(fs)}/a.csv")
    assert filesystem.cat(path) == b"v\n1\n"


@pytest.mark.parametrize("streaming", [True, False])
def test_datasets_reads_tables_by_url_from_the_endpoint_that_it_names(hub, streaming, tmp_path):
    root = root_of(ReasonKneeFileSystem(REPO, endpoint=hub.url))
    for files in (f"{root}/data/*.csv", [f"{root}/data/a.csv", f"{root}/data/b.csv"]):
        rows = datasets.load_dataset(
            "csv", data_files=files, split="train", streaming=streaming, cache_dir=str(tmp_path)
        )
        assert [row["v"] for row in rows] == [1, 2]
    assert {request.path.split("/")[1] for request in hub.requests("resolve")} == {"datasets"}


def test_a_folder_is_listed_anew_when_told_so(tmp_path):
    (tmp_path / "a.csv").write_bytes(b"v\n1\n")
    fs = ReasonKneeFileSystem(tmp_path)
    assert fs.ls("", detail=False) == ["a.csv"]
    (tmp_path / "b.csv").write_bytes(b"v\n2\n")
    (tmp_path / "a.csv").write_bytes(b"v\n1\n3\n")
    with pytest.raises(OSError, match="longer than the 4 bytes"):
        fs.cat("a.csv")
    fs.invalidate_cache()
    assert fs.ls("", detail=False) == ["a.csv", "b.csv"]
    assert fs.cat("a.csv") == b"v\n1\n3\n"


def test_nobody_is_made_anonymous_by_another_instance(hub, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_IMPLICIT_TOKEN", False)
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    assert ReasonKneeFileSystem(REPO, revision=hub.sha, token=False).cat("data/a.csv") == b"v\n1\n"
    hub.token = "hf_secret"
    again = ReasonKneeFileSystem(REPO, revision=hub.sha, token=True)
    assert again.cat("data/b.csv") == b"v\n2\n"


def test_sizes_that_a_mirror_does_not_list_are_asked_for(hub):
    hub.bare = True
    fs = ReasonKneeFileSystem(REPO, endpoint=hub.url)
    assert fs.size("data/a.csv") == 4
    assert fs.du("") == sum(map(len, TABLES.values()))


def test_what_a_range_could_not_give_is_returned_in_its_place(tmp_path):
    (tmp_path / "a.csv").write_bytes(b"v\n1\n")
    fs = ReasonKneeFileSystem(tmp_path)
    found = fs.cat_ranges(["a.csv", "nope"], 0, 1, on_error="omit")
    assert found[0] == b"v"
    assert isinstance(found[1], FileNotFoundError)
