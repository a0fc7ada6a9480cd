"""`reasonknee://` and `cutzip` as fsspec filesystems: the abstract suites, addresses, processes, requests."""

from __future__ import annotations

import errno
import multiprocessing
import os
import pickle
import random
import re
import threading
from pathlib import Path

import fsspec
import pytest
from archives import cut, make_zip
from fsspec.implementations.local import LocalFileSystem
from fsspec.tests import abstract
from hypothesis import given
from hypothesis import strategies as st

from hub import faults
from reasonknee_hf.errors import EndpointError, FileMissingError, OptionError
from reasonknee_hf.hub.fs.cutzip import CutZipFileSystem
from reasonknee_hf.hub.fs.filesystem import ReasonKneeFileSystem
from reasonknee_hf.hub.tree import Address, build_url, parse_url

MEMBERS = {f"export/knee_{i:03d}.nii.gz": random.Random(i).randbytes(9_000 + i) for i in range(40)}
ZIP = make_zip(MEMBERS)
CUT = 200_001
IMAGE = random.Random(77).randbytes(700_000)
FILES = {
    "README.md": b"# knees\n",
    "data/images/9000001/00M/x.nii.gz": IMAGE,
    "data/table.csv": b"a,b\n1,2\n",
    **{f"data/{name}": content for name, content in cut(ZIP, CUT).items()},
}
MASK = "data/masks/knee_003.nii.gz"
REPO = "owner/knees"


pytestmark = pytest.mark.floor


def write(folder: Path, files: dict[str, bytes]) -> Path:
    for path, content in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
    return folder


@pytest.fixture
def folder(tmp_path):
    return write(tmp_path / "release", FILES)


@pytest.fixture
def fs(folder):
    return ReasonKneeFileSystem(folder)


@pytest.fixture
def hub(origin):
    origin.sha = origin.put_tree(REPO, FILES)
    return origin


# --- the abstract suites of fsspec that need no writing -----------------------------------------------------


@pytest.fixture(scope="module")
def scenarios(tmp_path_factory):
    """The folders that the suites want, written by the suites' own code."""
    local, root = LocalFileSystem(auto_mkdir=True), tmp_path_factory.mktemp("scenarios")
    writer = abstract.BaseAbstractFixtures()
    for name in ("bulk_operations_scenario_0", "glob_edge_cases_files", "dir_and_file_with_same_name_prefix",
                 "10_files_with_hashed_names"):  # fmt: skip
        getattr(writer, f"_{name}")(local, os.path.join, str(root / name))
    return root


class ReadOnlyFixtures(abstract.AbstractFixtures):
    """Scenarios that are there already, in place of ones that are written for each test."""

    @pytest.fixture
    def fs_bulk_operations_scenario_0(self, fs_join, fs_path):
        return fs_join(fs_path, "bulk_operations_scenario_0/source")

    @pytest.fixture
    def fs_glob_edge_cases_files(self, fs_join, fs_path):
        return fs_join(fs_path, "glob_edge_cases_files/source")

    @pytest.fixture
    def fs_dir_and_file_with_same_name_prefix(self, fs_join, fs_path):
        return fs_join(fs_path, "dir_and_file_with_same_name_prefix/source")

    @pytest.fixture
    def fs_10_files_with_hashed_names(self, fs_join, fs_path):
        return fs_join(fs_path, "10_files_with_hashed_names/source")

    @pytest.fixture
    def fs_join(self):
        return lambda *steps: "/".join(step for step in steps if step)

    @pytest.fixture
    def supports_empty_directories(self):
        return False

    def test_get_directory_recursive(self, fs, fs_join, fs_path, local_fs, local_join, local_target):
        """The test of the suite, which makes its folder itself, over one that is there."""
        source = fs_join(fs_path, "dir_and_file_with_same_name_prefix/source/subdir")
        for turn in range(2):
            fs.get(source, local_target, recursive=True)
            assert local_fs.isfile(local_join(local_target, "subfile.txt"))
            assert local_fs.exists(local_join(local_target, "subdir", "subfile.txt")) == (turn == 1)
        local_fs.rm(local_target, recursive=True)
        for _ in range(2):
            fs.get(source + "/", local_target, recursive=True)
            assert local_fs.isfile(local_join(local_target, "subfile.txt"))
            assert not local_fs.exists(local_join(local_target, "subdir"))


def _zipped(scenarios: Path) -> bytes:
    files = {
        str(p.relative_to(scenarios)): p.read_bytes() for p in sorted(scenarios.rglob("*")) if p.is_file()
    }
    return make_zip(files)


class TestGetFromFolder(ReadOnlyFixtures, abstract.AbstractGetTests):
    @pytest.fixture
    def fs(self, scenarios):
        return ReasonKneeFileSystem(scenarios)

    @pytest.fixture
    def fs_path(self):
        return ""


class TestGetFromMount(ReadOnlyFixtures, abstract.AbstractGetTests):
    @pytest.fixture
    def fs(self, scenarios, tmp_path):
        data = _zipped(scenarios)
        return ReasonKneeFileSystem(
            write(tmp_path / "zipped", {f"d/{k}": v for k, v in cut(data, 300).items()})
        )

    @pytest.fixture
    def fs_path(self):
        return "d/masks"


class TestGetFromCutZip(ReadOnlyFixtures, abstract.AbstractGetTests):
    @pytest.fixture
    def fs(self, scenarios, tmp_path):
        return CutZipFileSystem(
            str(write(tmp_path, cut(_zipped(scenarios), 300))), parts=["masks_aa", "masks_ab"]
        )

    @pytest.fixture
    def fs_path(self):
        return ""


# --- reading ------------------------------------------------------------------------------------------------


def test_listing(fs):
    assert fs.ls("", detail=False) == ["README.md", "data"]
    assert fs.ls("data", detail=False) == [
        "data/images", "data/masks", "data/masks_aa", "data/masks_ab", "data/table.csv"
    ]  # fmt: skip
    assert len(fs.ls("data/masks")) == 40
    assert fs.info(MASK) == {"name": MASK, "size": 9003, "type": "file"}
    assert fs.info("data/masks")["type"] == fs.info("data")["type"] == "directory"
    assert fs.isfile("README.md")
    assert fs.isdir("data/images/9000001")
    assert fs.size("README.md") == 8
    assert not fs.exists("data/masks/nothing")
    assert len(fs.find("")) == 5 + 40
    assert len(fs.find("data/masks")) == 40
    assert fs.glob("data/masks/knee_00[12].nii.gz") == [
        "data/masks/knee_001.nii.gz",
        "data/masks/knee_002.nii.gz",
    ]
    assert fs.ls(MASK, detail=False) == [MASK]
    assert fs.members("data/masks") == [name.removeprefix("export/") for name in MEMBERS]
    assert fs.members("data/images") == ["9000001/00M/x.nii.gz"]


def test_an_archive_is_not_opened_to_list_what_is_around_it(folder):
    (folder / "data/broken.zip").write_bytes(b"no zip")
    fs = ReasonKneeFileSystem(folder, skip_instance_cache=True)
    assert "data/broken" in fs.ls("data", detail=False)
    assert fs.cat(MASK) == MEMBERS["export/knee_003.nii.gz"]
    with pytest.raises(OSError, match="no zip archive"):
        fs.ls("data/broken")


def test_an_unpacked_folder_wins(folder):
    write(folder, {MASK: b"unpacked"})
    fs = ReasonKneeFileSystem(folder, skip_instance_cache=True)
    assert fs.archives == {}
    assert fs.cat(MASK) == b"unpacked"
    assert fs.url(MASK) == str(folder / MASK)


def test_reading(fs):
    content = MEMBERS["export/knee_003.nii.gz"]
    assert fs.cat(MASK) == fs.cat_file(MASK) == fs.open(MASK).read() == content
    assert fs.cat_file(MASK, 5, 9) == content[5:9]
    assert fs.cat_file(MASK, -5) == content[-5:]
    assert fs.cat_file("README.md", 2, -1) == b"knees"
    assert fs.head(MASK, 7) == content[:7]
    assert fs.tail(MASK, 7) == content[-7:]
    assert fs.read_text("data/table.csv") == "a,b\n1,2\n"
    assert b"".join(fs.stream(MASK, 3, 5000)) == content[3:5000]
    assert b"".join(fs.stream("data/table.csv", 4)) == b"1,2\n"
    with fs.open("data/table.csv", "rt") as file:
        assert file.readlines() == ["a,b\n", "1,2\n"]


def test_reading_many(fs):
    paths = [MASK, "README.md", "data/masks/knee_004.nii.gz"]
    assert fs.cat(paths) == {path: fs.cat(path) for path in paths}
    assert fs.cat("data/masks/*3.nii.gz").keys() == set(fs.glob("data/masks/*3.nii.gz"))
    assert len(fs.cat("data/masks", recursive=True)) == 40
    image = "data/images/9000001/00M/x.nii.gz"
    assert fs.cat_ranges([image, MASK, image, "nothing"], [10, 0, -4, 0], [20, None, None, 5])[:3] == [
        IMAGE[10:20], fs.cat(MASK), IMAGE[-4:]
    ]  # fmt: skip
    assert isinstance(fs.cat_ranges([MASK, "nothing"], 0, 5)[1], FileMissingError)
    with pytest.raises(FileMissingError):
        fs.cat_ranges(["nothing"], 0, 5, on_error="raise")
    assert fs.cat([MASK, "nothing"], on_error="omit").keys() == {MASK}
    assert isinstance(fs.cat([MASK, "nothing"], on_error="return")["nothing"], FileMissingError)
    with pytest.raises(ValueError, match="2 paths, 1 starts"):
        fs.cat_ranges([MASK, MASK], [1], [2, 2])


def test_what_is_not_there(fs):
    for call in (fs.info, fs.cat_file, fs.open, fs.ls, fs.url):
        with pytest.raises(FileNotFoundError, match="knee_999"):
            call("data/masks/knee_999.nii.gz")
    with pytest.raises(IsADirectoryError):
        fs.open("data/masks")
    with pytest.raises(IsADirectoryError):
        fs.cat_file("data")


@given(st.lists(st.tuples(st.integers(0, len(IMAGE)), st.integers(1, 300_000)), max_size=5))
def test_a_file_reads_like_any_other(steps):
    fs = ReasonKneeFileSystem(fsspec.filesystem("memory").unstrip_protocol("/plain"))
    fsspec.filesystem("memory").pipe_file("/plain/x", IMAGE)
    with fs.open("x") as file:
        assert file.size == len(IMAGE)
        for position, length in steps:
            file.seek(position)
            assert file.tell() == position
            assert file.read(length) == IMAGE[position : position + length]
        file.seek(-3, os.SEEK_END)
        assert file.read() == IMAGE[-3:]


@pytest.mark.parametrize("name", ["mkdir", "makedirs", "rm", "rm_file", "rmdir", "touch", "created"])
def test_writing_is_refused(fs, name):
    if name == "created":
        with pytest.raises(NotImplementedError):
            fs.created("README.md")
        return
    with pytest.raises(OSError) as caught:
        getattr(fs, name)("README.md")
    assert caught.value.errno == errno.EROFS


def test_every_other_way_of_writing_is_refused(fs, tmp_path):
    (tmp_path / "x").write_bytes(b"x")
    for call in (
        lambda: fs.open("new", "wb"),
        lambda: fs.open("new", "w"),
        lambda: fs.open("README.md", "ab"),
        lambda: fs.open("new", "xb"),
        lambda: fs.pipe({"new": b""}),
        lambda: fs.pipe_file("new", b""),
        lambda: fs.put(str(tmp_path / "x"), "new"),
        lambda: fs.put_file(str(tmp_path / "x"), "new"),
        lambda: fs.copy("README.md", "new"),
        lambda: fs.mv("README.md", "new"),
        lambda: fs.write_text("new", "text"),
    ):
        with pytest.raises(OSError) as caught:
            call()
        assert caught.value.errno == errno.EROFS


# --- instances ----------------------------------------------------------------------------------------------


def test_instances_are_kept_by_source_revision_endpoints_and_token_which_nothing_shows():
    one = ReasonKneeFileSystem(REPO, endpoint="http://127.0.0.1:1", token="hf_first")
    assert ReasonKneeFileSystem(source=REPO, endpoint=["http://127.0.0.1:1/"], token="hf_first") is one
    for other in ("hf_second", None, False):
        assert ReasonKneeFileSystem(REPO, endpoint="http://127.0.0.1:1", token=other) is not one
    assert ReasonKneeFileSystem(REPO, endpoint="http://127.0.0.1:2") is not one
    assert ReasonKneeFileSystem(REPO, "main", endpoint="http://127.0.0.1:1") is not one
    assert ReasonKneeFileSystem(REPO, endpoint="http://127.0.0.1:1", skip_instance_cache=True) is not one
    everything = [
        repr(one),
        str(one.storage_options),
        str(one.storage_args),
        one._fs_token,
        repr(one.to_dict()),
    ]
    assert not any("hf_" in text for text in everything)
    assert b"hf_first" not in pickle.dumps(one)


def test_endpoints_of_the_environment_are_read_when_called(monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    one = ReasonKneeFileSystem(REPO)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:2")
    assert ReasonKneeFileSystem(REPO) is not one


def test_threads_share_an_instance(folder):
    found = []
    threads = [threading.Thread(target=lambda: found.append(ReasonKneeFileSystem(folder))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(map(id, found))) == 1


def test_options_that_make_no_sense(folder):
    with pytest.raises(OptionError, match="REASONKNEE_SOURCE"):
        ReasonKneeFileSystem()
    with pytest.raises(OptionError, match="cache_size must be a number of bytes"):
        ReasonKneeFileSystem(folder, cache_size="plenty")
    with pytest.raises(OptionError, match=r"\['revison'\]; known are .*'revision'"):
        ReasonKneeFileSystem(folder, revison="x")


def test_the_source_of_the_environment(monkeypatch, folder):
    monkeypatch.setenv("REASONKNEE_SOURCE", str(folder))
    assert fsspec.filesystem("reasonknee").cat(MASK) == MEMBERS["export/knee_003.nii.gz"]


# --- addresses ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("reasonknee://o/n@abc/d/x.nii.gz", Address("o/n", "d/x.nii.gz", "abc")),
        ("reasonknee://o/n/d/x.nii.gz", Address("o/n", "d/x.nii.gz")),
        ("reasonknee://o/n@refs%2Fpr%2F1", Address("o/n", "", "refs/pr/1")),
        (
            "reasonknee://http%3A%2F%2F127.0.0.1%3A80/o/n@s/x",
            Address("o/n", "x", "s", ("http://127.0.0.1:80",)),
        ),
        (
            "reasonknee://https%3A%2F%2Fa%2Chttps%3A%2F%2Fb%2Fp/o/n@s/x@y",
            Address("o/n", "x@y", "s", ("https://a", "https://b/p")),
        ),
        ("reasonknee://file%3A%2F%2F%2Fabs%2Ffolder/data/x%20y", Address("file:///abs/folder", "data/x%20y")),
        ("reasonknee://folder%3Ahttps%3A%2F%2Fhost%2Fdir/x", Address("https://host/dir", "x")),
        ("reasonknee://memory%3A%2F%2Frelease/x", Address("memory://release", "x")),
        ("reasonknee://options%3A%2F%2Fanonymous/o/n@s/x", Address("o/n", "x", "s", (), "anonymous")),
        (
            "reasonknee://https%3A%2F%2Fa%2Coptions%3A%2F%2Fgiven-0-1/o/n@s/x",
            Address("o/n", "x", "s", ("https://a",), "given-0-1"),
        ),
    ],
)
def test_addresses_go_both_ways(url, address):
    assert parse_url(url) == address
    assert build_url(address) == url
    assert url.endswith(address.path)


@pytest.mark.parametrize("url", ["reasonknee://", "reasonknee://only", "reasonknee:///x"])
def test_addresses_that_say_nothing(url):
    with pytest.raises(OptionError, match="does not say which repository"):
        parse_url(url)


def _cat_url(url: str, queue) -> None:
    with fsspec.open(url, "rb") as file:
        queue.put(file.read())


@pytest.mark.parametrize("method", ["spawn", "fork"])
@pytest.mark.parametrize("path", [MASK, "data/table.csv"])
def test_a_url_opens_in_another_process(hub, method, path):
    fs = ReasonKneeFileSystem(REPO, endpoint=hub.url)
    url = fs.url(path)
    assert url == f"reasonknee://{hub.url.replace(':', '%3A').replace('/', '%2F')}/{REPO}@{hub.sha}/{path}"
    context = multiprocessing.get_context(method)
    queue = context.Queue()
    child = context.Process(target=_cat_url, args=(url, queue))
    child.start()
    assert queue.get(timeout=60) == fs.cat(path)
    child.join()


def test_a_url_of_a_folder_opens_anywhere(fs, folder, monkeypatch, tmp_path):
    url = fs.url(MASK)
    assert re.fullmatch(r"reasonknee://file%3A%2F%2F.*/data/masks/knee_003\.nii\.gz", url)
    monkeypatch.chdir(tmp_path)
    with fsspec.open(url) as file:
        assert file.read() == MEMBERS["export/knee_003.nii.gz"]
    assert fs.url("data/table.csv") == str(folder / "data/table.csv")
    filesystem, path = fsspec.core.url_to_fs(url)
    assert filesystem.cat(path) == fs.cat(MASK)


def test_a_relative_folder_is_pinned_to_where_it_was(folder, monkeypatch, tmp_path):
    monkeypatch.chdir(folder.parent)
    fs = ReasonKneeFileSystem("release")
    monkeypatch.chdir("/")
    assert fs.cat(MASK) == MEMBERS["export/knee_003.nii.gz"]
    assert fs is ReasonKneeFileSystem(folder)


def test_the_environments_endpoints_are_not_part_of_urls(hub, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    fs = ReasonKneeFileSystem(REPO)
    assert fs.url(MASK) == f"reasonknee://{REPO}@{hub.sha}/{MASK}"
    assert fs.url("README.md") == f"reasonknee://{REPO}@{hub.sha}/README.md"
    assert fsspec.open(fs.url(MASK)).open().read() == MEMBERS["export/knee_003.nii.gz"]


def test_a_pickle_keeps_the_commit_although_the_branch_moves(hub):
    fs = ReasonKneeFileSystem(REPO, endpoint=hub.url, skip_instance_cache=True)
    assert fs.cat("README.md") == b"# knees\n"
    sent = pickle.dumps(fs)
    hub.put_tree(REPO, {**FILES, "README.md": b"moved\n"})
    ReasonKneeFileSystem.clear_instance_cache()
    again = pickle.loads(sent)
    assert again.tree.sha == hub.sha
    assert again.cat("README.md") == b"# knees\n"


def test_a_token_reaches_the_url_but_no_text(hub):
    hub.token = "hf_secret"
    fs = ReasonKneeFileSystem(REPO, endpoint=hub.url, token="hf_secret")
    url = fs.url(MASK)
    assert "hf_secret" not in url
    assert fsspec.open(url).open().read() == MEMBERS["export/knee_003.nii.gz"]
    assert b"hf_secret" not in pickle.dumps(fs)


def test_a_new_token_is_used_although_another_is_open(hub):
    hub.token = "hf_old"
    fs = ReasonKneeFileSystem(REPO, endpoint=hub.url, token="hf_old")
    fs.cat("README.md")
    hub.token = "hf_new"
    hub.clear()
    hub.token = "hf_new"
    fs = ReasonKneeFileSystem(REPO, endpoint=hub.url, token="hf_new")
    assert fs.cat(MASK) == MEMBERS["export/knee_003.nii.gz"]
    assert {request.auth for request in hub.log} == {"Bearer hf_new"}


# --- requests over http -------------------------------------------------------------------------------------


def data_requests(hub) -> list:
    return hub.requests("masks_a")


def test_requests_of_masks_over_http(hub):
    fs = ReasonKneeFileSystem(REPO, endpoint=hub.url, skip_instance_cache=True)
    fs.tree.entries()
    hub.clear()
    assert fs.cat(MASK) == MEMBERS["export/knee_003.nii.gz"]
    assert [r.method for r in data_requests(hub)] == ["GET"] * len(data_requests(hub))
    assert len(data_requests(hub)) <= 3  # the last part is shorter than the tail, so the directory takes two
    hub.clear()
    assert fs.cat("data/masks/knee_004.nii.gz") == MEMBERS["export/knee_004.nii.gz"]
    assert len(hub.log) == 1
    assert hub.sent() <= 1.005 * 9_100
    hub.clear()
    assert len(fs.cat([f"data/masks/knee_{i:03d}.nii.gz" for i in range(40)])) == 40
    assert len(hub.log) <= 3


def test_reading_a_file_from_the_front_is_one_plain_get(hub):
    fs = ReasonKneeFileSystem(REPO, endpoint=hub.url)
    fs.tree.entries()
    hub.clear()
    with fs.open("data/images/9000001/00M/x.nii.gz") as file:
        assert file.read(2) == IMAGE[:2]
        file.seek(0)  # what readers do that look at the magic number first
        assert file.read() == IMAGE
    assert [(r.method, r.range) for r in hub.log] == [("GET", None)]
    fs.cat_file(
        "data/images/9000001/00M/x.nii.gz", 1, 3
    )  # once in a process an endpoint shows that it cuts ranges honestly
    hub.clear()
    with fs.open("data/images/9000001/00M/x.nii.gz") as file:
        file.seek(500_000)
        assert file.read(100) == IMAGE[500_000:500_100]
    assert len(hub.log) == 1
    assert hub.log[0].range is not None


def test_a_file_seeks_inside_what_has_come(hub):
    fs = ReasonKneeFileSystem(REPO, endpoint=hub.url)
    fs.cat_file("data/images/9000001/00M/x.nii.gz", 1, 3)
    hub.clear()
    with fs.open("data/images/9000001/00M/x.nii.gz") as file:
        for position in range(100_000, 300_000, 20_000):
            file.seek(position)
            assert file.read(100) == IMAGE[position : position + 100]
    assert sum(request.sent for request in hub.log) <= 300_000


def exhaust(file) -> None:
    while file.read(50_000):
        pass


@pytest.mark.parametrize(
    "rules",
    [
        lambda: [faults.Rule(faults.cut(200_000), times=1), faults.Rule(faults.status(500))],
        lambda: [faults.Rule(faults.swapped(headers=False))],
    ],
)
def test_a_file_does_not_end_where_an_error_was(hub, monkeypatch, rules):
    monkeypatch.setenv("REASONKNEE_TIMEOUT", "1")
    fs = ReasonKneeFileSystem(REPO, endpoint=hub.url)
    fs.tree.entries()
    hub.faults(*rules())
    with fs.open("data/images/9000001/00M/x.nii.gz", "rb") as file:
        with pytest.raises(EndpointError):
            exhaust(file)
        hub.faults()
        at = file.tell()
        rest = file.read()
    assert at < len(IMAGE)
    assert rest == IMAGE[at:]


def test_the_same_commit_is_listed_once_for_a_branch_and_for_its_urls(hub):
    fs = ReasonKneeFileSystem(REPO, endpoint=hub.url)
    url = fs.url(MASK)
    hub.clear()
    fsspec.open(url).open().read()
    assert len(hub.log) == 1


def test_the_disk_cache_serves_members_offline(hub, tmp_path, monkeypatch):
    options = {"endpoint": hub.url, "cache": str(tmp_path / "cache"), "cache_size": 10_000_000}
    fs = ReasonKneeFileSystem(REPO, **options)
    content = fs.cat(MASK)
    table = fs.cat("data/table.csv")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    hub.clear()
    ReasonKneeFileSystem.clear_instance_cache()
    again = ReasonKneeFileSystem(REPO, **options, skip_instance_cache=True)
    assert again.cat(MASK) == content
    assert again.cat("data/table.csv") == table
    assert hub.log == []


# --- the cut zip alone --------------------------------------------------------------------------------------


def test_a_cut_zip_over_any_base(folder, hub, tmp_path):
    memory = fsspec.filesystem("memory")
    for name, content in cut(ZIP, CUT).items():
        memory.pipe_file(f"/parts/{name}", content)
    parts = ["masks_aa", "masks_ab"]
    web = f"{hub.url}/datasets/{REPO}/resolve/{hub.sha}/data"
    for fs in (
        CutZipFileSystem("memory://parts", parts=parts),
        CutZipFileSystem("memory://parts/masks_aa"),
        CutZipFileSystem(memory, parts=["/parts/masks_aa", "/parts/masks_ab"]),
        CutZipFileSystem(str(folder / "data"), parts=parts),
        CutZipFileSystem(str(folder / "data/masks_ab")),
        CutZipFileSystem("/parts", parts=parts, target_protocol="memory"),
        CutZipFileSystem(web, parts=parts),
        CutZipFileSystem(f"hf://datasets/{REPO}/data", parts=parts, target_options={"endpoint": hub.url}),
    ):
        assert len(fs.find("")) == 40
        assert fs.cat("export/knee_003.nii.gz") == MEMBERS["export/knee_003.nii.gz"]
        assert fs.ls("", detail=False) == ["export"]
        assert (
            pickle.loads(pickle.dumps(fs)).cat("export/knee_001.nii.gz") == MEMBERS["export/knee_001.nii.gz"]
        )
        assert fs.cat_ranges(["export/knee_003.nii.gz"], 2, 5) == [MEMBERS["export/knee_003.nii.gz"][2:5]]
        with pytest.raises(OSError) as caught:
            fs.open("new", "wb")
        assert caught.value.errno == errno.EROFS


def test_a_cut_zip_in_a_chained_url(folder):
    fsspec.register_implementation("cutzip", CutZipFileSystem, clobber=True)
    url = f"cutzip://export/knee_003.nii.gz::file://{folder}/data/masks_aa"
    with fsspec.open(url) as file:
        assert file.read() == MEMBERS["export/knee_003.nii.gz"]


def test_cut_zips_of_two_hubs_and_one_that_is_written_anew(hub, second_origin, tmp_path):
    second_origin.put_tree(REPO, {"data/x.zip": make_zip({"a.txt": b"of the second"})})
    hub.put_tree(REPO, {"data/x.zip": make_zip({"a.txt": b"of the first"})})
    read = [
        CutZipFileSystem(ReasonKneeFileSystem(REPO, endpoint=one.url), parts=["data/x.zip"]).cat("a.txt")
        for one in (hub, second_origin)
    ]
    assert read == [b"of the first", b"of the second"]
    for content in (b"old", b"quite new"):
        (tmp_path / "x.zip").write_bytes(make_zip({"a.txt": content}))
        assert fsspec.open(f"cutzip://a.txt::file://{tmp_path}/x.zip").open().read() == content


def test_files_are_not_writable(fs):
    for path in (MASK, "data/table.csv"):
        with fs.open(path) as file, pytest.raises(OSError):
            file.write(b"x")


def _cat_in_child(fs, path, queue) -> None:
    queue.put(fs.cat(path))


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_filesystems_go_to_other_processes(hub, method):
    web = f"{hub.url}/datasets/{REPO}/resolve/{hub.sha}/data"
    context = multiprocessing.get_context(method)
    for fs, path in (
        (ReasonKneeFileSystem(REPO, endpoint=hub.url), MASK),
        (CutZipFileSystem(web, parts=["masks_aa", "masks_ab"]), "export/knee_003.nii.gz"),
    ):
        assert fs.cat(path) == MEMBERS["export/knee_003.nii.gz"]
        queue = context.Queue()
        child = context.Process(target=_cat_in_child, args=(fs, path, queue))
        child.start()
        assert queue.get(timeout=60) == MEMBERS["export/knee_003.nii.gz"]
        child.join()
